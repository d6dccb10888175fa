//! Child processes of this program, which read and run what clients wrote: one list says what they can do.

use std::{io, sync::Arc, time::Duration};

use platform_child::{Children, Work};
use platform_guardrails::GUARDRAIL_WORKS;
use platform_knowledge::{EXTRACTION_WORKS, Extraction};
use platform_runtime::{ChildPool, SCHEMA_WORKS};
use platform_speech::AUDIO_WORKS;

/// The command that makes this program such a child.
pub(crate) const COMMAND: &str = "child";
/// Expressions, schemas and patterns under way.
const QUICK: usize = 3;
/// Descriptions under way.
const SLOW: usize = 2;
/// Files under way, as many of those that take long, and how long one may take on a machine that has much else to do.
const FILES: usize = 2;
const FILE_TIME: Duration = Duration::from_secs(90);

/// The child processes by what they read; none is started before there is work.
pub(crate) struct Pools {
    /// Expressions, schemas and patterns: quick.
    pub quick: Arc<ChildPool>,
    /// Descriptions that become tool servers: may take seconds.
    pub descriptions: Arc<ChildPool>,
    /// Files that become documents: may take half a minute.
    pub files: Extraction,
}

impl Pools {
    pub fn new() -> io::Result<Self> {
        let children = || Children::of_this_program(COMMAND);
        let files = || Ok::<_, io::Error>(Arc::new(ChildPool::new(children()?.lasting(FILE_TIME), FILES)));
        Ok(Self {
            quick: Arc::new(ChildPool::new(children()?, QUICK)),
            descriptions: Arc::new(ChildPool::new(children()?, SLOW)),
            files: Extraction { short: files()?, long: files()? },
        })
    }
}

/// Serves as a child until its parent ends.
pub(crate) fn serve() -> io::Result<()> {
    let works = SCHEMA_WORKS.into_iter().chain(GUARDRAIL_WORKS).chain(platform_toolservers::child_works());
    let works: Vec<Work> = works.chain(EXTRACTION_WORKS).chain(AUDIO_WORKS).collect();
    platform_child::serve(&works)
}
