//! JavaScript expressions (contract 00 §10), in a child process: no host functions, bounded in time, memory
//! and result.

use std::{cell::Cell, rc::Rc, time::Duration};

use platform_child::{ChildError, Work};
use platform_core::AccountId;
use platform_runtime::{ChildPool, json_work, no_answer};
use rquickjs::{
    CatchResultExt, CaughtError, Context, Ctx, Function, Module, Runtime, Value as JsValue,
    context::intrinsic::{Date, Eval, Json, MapSet, Promise, RegExp, RegExpCompiler},
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// CPU time of one expression. Between steps of the language the engine looks at it by itself.
const MAX_TIME: Duration = Duration::from_millis(50);
/// What starting the engine and reading the input may take beside it.
const AROUND: Duration = Duration::from_millis(50);
const MAX_MEMORY: usize = 16 << 20;
const MAX_STACK: usize = 256 << 10;
const MAX_RESULT: usize = 1 << 20;
/// What is there beside the language.
type Intrinsics = (Date, Eval, RegExpCompiler, RegExp, Json, MapSet, Promise);
/// No code out of text: what is run is what was read.
const PRELUDE: &str = r#""use strict";
for (const made of [function () {}, function* () {}, async function () {}, async function* () {}]) {
  Reflect.defineProperty(Reflect.getPrototypeOf(made), "constructor", { value: undefined });
}
for (const name of ["eval", "Function", "Iterator", "BigInt", "globalThis"]) delete globalThis[name];
"#;

const EVALUATE: &str = "expression";
const CHECK: &str = "expressions";

/// What a child process does with expressions.
pub(crate) const WORKS: [Work; 2] = [
    Work { name: EVALUATE, run: evaluate_work, cpu: MAX_TIME.saturating_add(AROUND), memory: 64 << 20 },
    Work { name: CHECK, run: check_work, cpu: Duration::from_secs(2), memory: 64 << 20 },
];

#[derive(Serialize)]
struct Asked<'a> {
    expression: &'a str,
    variable: &'a str,
    value: &'a Value,
}

#[derive(Deserialize)]
struct Given {
    expression: String,
    variable: String,
    value: Value,
}

/// The value of an expression over one variable; the reason when there is none.
pub(crate) async fn evaluate(
    children: &ChildPool,
    account: &AccountId,
    expression: &str,
    variable: &'static str,
    value: &Value,
) -> Result<Value, String> {
    match children.ask(account, EVALUATE, &Asked { expression, variable, value }).await {
        Ok(evaluated) => evaluated,
        Err(ChildError::TooLong) => Err(too_long()),
        Err(error) => Err(format!("the expression has no value: {error}")),
    }
}

/// For each text the reason why it is no expression, if it is none. None of them is run. To be asked before a
/// transaction begins.
pub(crate) async fn check(
    children: &ChildPool,
    account: &AccountId,
    expressions: &[&str],
) -> platform_core::Result<Vec<Option<String>>> {
    if expressions.is_empty() {
        return Ok(Vec::new());
    }
    match children.ask(account, CHECK, &expressions).await {
        Ok(reasons) => Ok(reasons),
        Err(error @ (ChildError::TooLong | ChildError::TooLarge)) => {
            Ok(vec![Some(format!("it cannot be read: {error}")); expressions.len()])
        }
        Err(error) => Err(no_answer(error)),
    }
}

fn too_long() -> String {
    format!("the expression takes more than {} ms", MAX_TIME.as_millis())
}

fn evaluate_work(input: &[u8]) -> Vec<u8> {
    json_work(input, |Given { expression, variable, value }| {
        run(|context| apply(&context, &variable, &expression, value.to_string()))
    })
}

fn check_work(input: &[u8]) -> Vec<u8> {
    json_work(input, |expressions: Vec<String>| expressions.iter().map(|text| parse(text).err()).collect::<Vec<_>>())
}

/// Whether a text is an expression.
pub(crate) fn parse(expression: &str) -> Result<(), String> {
    run(|context| compile(&context, "value", expression).map(|_| ()))
}

fn run<T>(work: impl FnOnce(Ctx<'_>) -> Result<T, String>) -> Result<T, String> {
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    runtime.set_memory_limit(MAX_MEMORY);
    runtime.set_max_stack_size(MAX_STACK);
    let context = Context::custom::<Intrinsics>(&runtime).map_err(|error| error.to_string())?;
    context.with(|context| context.eval::<(), _>(PRELUDE).catch(&context).map_err(reason))?;
    let until = cpu_time() + MAX_TIME;
    let late = Rc::new(Cell::new(false));
    let over = Rc::clone(&late);
    runtime.set_interrupt_handler(Some(Box::new(move || {
        over.set(cpu_time() > until);
        over.get()
    })));
    let outcome = context.with(work);
    if late.get() {
        return Err(too_long());
    }
    outcome
}

/// A function whose value is the expression. Making it runs nothing of the text: what can be read between both kinds
/// of brackets closes neither, so it is one expression and nothing beside it. A module that is declared is only read;
/// the function is part of one, too, since in a script `<!--` begins a comment.
fn compile<'js>(context: &Ctx<'js>, variable: &str, expression: &str) -> Result<Function<'js>, String> {
    for (open, close) in [('(', ')'), ('[', ']')] {
        let module = format!("export default {open}\n{expression}\n{close};");
        Module::declare(context.clone(), "expression", module).catch(context).map_err(reason)?;
    }
    let module = format!("export default function ({variable}) {{ return (\n{expression}\n); }}");
    let module = Module::declare(context.clone(), "function", module).catch(context).map_err(reason)?;
    let (module, done) = module.eval().catch(context).map_err(reason)?;
    done.finish::<()>().catch(context).map_err(reason)?;
    module.get("default").catch(context).map_err(reason)
}

fn apply(context: &Ctx<'_>, variable: &str, expression: &str, input: String) -> Result<Value, String> {
    let function = compile(context, variable, expression)?;
    let input = context.json_parse(input).catch(context).map_err(reason)?;
    let result: JsValue<'_> = function.call((input,)).catch(context).map_err(reason)?;
    let text = context.json_stringify(result).catch(context).map_err(reason)?;
    let Some(text) = text else { return Ok(Value::Null) };
    let text = text.to_string().catch(context).map_err(reason)?;
    if text.len() > MAX_RESULT {
        return Err(format!("the result has more than {MAX_RESULT} bytes"));
    }
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn reason(error: CaughtError<'_>) -> String {
    match error {
        CaughtError::Exception(exception) => exception.message().unwrap_or_else(|| "it failed".to_owned()),
        CaughtError::Value(_) => "it throws a value".to_owned(),
        CaughtError::Error(error) => error.to_string(),
    }
}

/// CPU time of this thread: a busy machine does not count.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(expression: &str, input: &Value) -> Result<Value, String> {
        run(|context| apply(&context, "params", expression, input.to_string()))
    }

    /// In a script what follows `<!--` is a comment, and the brackets of the next lines are others.
    const COMMENT_OF_SCRIPTS: &str = "1 <!-- a[(function () { f(\n); }), (() => { while (true) {} })(), \
        (function () { return (1 <!-- a ); })]";

    #[test]
    fn expressions_see_their_variable_and_nothing_of_the_host() {
        let params = json!({"id": "a", "items": [{"n": 1}, {"n": 2}]});
        assert_eq!(
            value("{id: params.id, sum: params.items.reduce((s, i) => s + i.n, 0)}", &params),
            Ok(json!({"id": "a", "sum": 3}))
        );
        assert_eq!(value("undefined", &params), Ok(Value::Null));
        for name in [
            "eval",
            "Function",
            "Proxy",
            "BigInt",
            "Uint8Array",
            "process",
            "require",
            "fetch",
            "console",
            "std",
            "os",
            "Deno",
            "setTimeout",
            "print",
            "load",
        ] {
            assert_eq!(value(&format!("typeof {name}"), &params), Ok(json!("undefined")), "{name}");
        }
        assert!(parse("params.x +").is_err() && parse("{a: 1}").is_ok() && parse("return 1").is_err());
        assert!(parse("(() => { while (true) {} })()").is_ok(), "parsing does not run it");
        for broken_out in [
            "1 ); }), (() => { while (true) {} })(), (function () { return (1",
            "1 ]; }), (() => { while (true) {} })(), (function () { return [1",
            "1; while (true) {}",
            "1) + (1",
            "1] + [1",
            "1 /*",
            "1 //",
            "`${1",
            "",
            COMMENT_OF_SCRIPTS,
        ] {
            let read = parse(broken_out);
            let is_one = ["1 //", COMMENT_OF_SCRIPTS].contains(&broken_out);
            assert_eq!(read.is_ok(), is_one, "{broken_out}: {read:?}");
            assert!(read.is_ok() || read.is_err_and(|reason| reason != too_long()), "{broken_out} was run");
        }
        assert!(value("params.missing.deeper", &params).expect_err("thrown").contains("undefined"));
    }
}
