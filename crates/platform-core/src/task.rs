use std::future::Future;

use crate::{Error, Result};

use tokio::task::JoinHandle;
use tracing::{Instrument, Span};

/// Target of the spans that become traces; they are in no log.
pub const TRACES: &str = "traces";

/// Spawns a task that shows up in the log under its name.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
    tokio::spawn(future.instrument(tracing::debug_span!(parent: None, "task", name)))
}

/// Does what must not be left half done when whoever waits for it leaves: in a task of its own, which begins at
/// once and is a part of what is traced here.
pub fn run_detached<T: Send + 'static>(
    name: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> {
    let task = spawn(name, work.instrument(Span::current()));
    async { task.await.map_err(Error::internal)? }
}

/// Does what takes long (compiling rules and schemas, reading large texts) beside the threads that serve others.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Error::internal)?
}
