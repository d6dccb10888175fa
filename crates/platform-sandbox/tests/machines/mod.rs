//! What tests without a harness have in common: the program itself becomes the machines that it tries.

use std::process::ExitCode;

use platform_egress::{Egress, EgressRules};
use platform_sandbox::serve_machine;

/// The argument that makes this program a machine.
pub const COMMAND: &str = "become-a-machine";

/// Becomes a machine when asked to, and runs the tests otherwise.
pub fn run(tests: impl AsyncFnOnce()) -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(COMMAND) {
        let stage = arguments.next().unwrap_or_default();
        return if serve_machine(&stage).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(tests());
    ExitCode::SUCCESS
}

pub fn egress() -> Egress {
    Egress::new(EgressRules::default()).expect("a way out")
}
