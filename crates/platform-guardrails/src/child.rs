//! What a child process does with the patterns and words that clients wrote.

use std::{cell::RefCell, time::Duration};

use platform_child::Work;
use platform_core::Checks;
use platform_runtime::json_work;
use serde::{Deserialize, Serialize};

use crate::{
    code,
    matcher::ALL_BYTES,
    model::{Guardrails, Rule},
    screen::{Compiled, PATH, ScreenContext, Screening, compile},
};

pub(crate) const CHECK: &str = "guardrails";
pub(crate) const SCREEN: &str = "screen";
const MEMORY: u64 = 128 << 20;
/// Lists of rules that stay compiled.
const MAX_KNOWN: usize = 4;

/// What a child process does with guardrails.
pub const GUARDRAIL_WORKS: [Work; 2] = [
    Work { name: CHECK, run: check, cpu: Duration::from_secs(4), memory: MEMORY },
    Work { name: SCREEN, run: screen, cpu: Duration::from_secs(4), memory: MEMORY },
];

/// A text, and the rules of a stage that it is held against, none of them a judge.
#[derive(Serialize, Deserialize)]
pub(crate) struct Given {
    pub rules: Vec<Rule>,
    pub stage: String,
    pub text: String,
    pub context: ScreenContext,
}

/// The rules that cannot be used, as issues (contract 00 §7).
fn check(input: &[u8]) -> Vec<u8> {
    json_work(input, |guardrails: Guardrails| {
        let (mut checks, mut left) = (Checks::default(), ALL_BYTES);
        for (stage, rules) in [("input", &guardrails.input), ("output", &guardrails.output)] {
            compile(rules, &format!("{PATH}.{stage}"), Some(&mut left), &mut checks);
        }
        let broken = checks.finish_as(code::INVALID_GUARDRAIL).err();
        broken.map(|error| error.issues().to_vec()).unwrap_or_default()
    })
}

fn screen(input: &[u8]) -> Vec<u8> {
    thread_local! {
        static KNOWN: RefCell<Vec<(Vec<Rule>, Vec<Compiled>)>> = const { RefCell::new(Vec::new()) };
    }
    json_work(input, |Given { rules, stage, text, context }: Given| {
        KNOWN.with_borrow_mut(|known| {
            let at = known.iter().position(|(same, _)| *same == rules).unwrap_or_else(|| {
                known.truncate(MAX_KNOWN - 1);
                let compiled = compile(&rules, PATH, Some(&mut ALL_BYTES.clone()), &mut Checks::default());
                known.insert(0, (rules, compiled));
                0
            });
            let mut screening = Screening { text, ..Screening::default() };
            screening.apply(&known[at].1, &stage, &context);
            screening
        })
    })
}
