//! Child processes of this program, which read and run what clients wrote: one list says what they can do.

use std::{io, sync::Arc};

use platform_child::{Children, Work};
use platform_guardrails::GUARDRAIL_WORKS;
use platform_runtime::{ChildPool, SCHEMA_WORKS};

/// The command that makes this program such a child.
pub(crate) const COMMAND: &str = "child";
/// Expressions, schemas and patterns under way.
const QUICK: usize = 3;
/// Descriptions under way.
const SLOW: usize = 2;

/// The pool for what is quick, and the one for descriptions; nothing is started before there is work.
pub(crate) fn pools() -> io::Result<(Arc<ChildPool>, Arc<ChildPool>)> {
    let pool = |at_once| Children::of_this_program(COMMAND).map(|children| Arc::new(ChildPool::new(children, at_once)));
    Ok((pool(QUICK)?, pool(SLOW)?))
}

/// Serves as a child until its parent ends.
pub(crate) fn serve() -> io::Result<()> {
    let works: Vec<Work> =
        SCHEMA_WORKS.into_iter().chain(GUARDRAIL_WORKS).chain(platform_toolservers::child_works()).collect();
    platform_child::serve(&works)
}
