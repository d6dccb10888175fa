use std::future::Future;

use crate::{Error, Result};

use tokio::task::JoinHandle;
use tracing::Instrument;

/// Spawns a task that shows up in the log under its name, its span inherited from here.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
    tokio::spawn(future.instrument(tracing::debug_span!("task", name)))
}

/// Does what takes long (compiling rules and schemas, reading large texts) beside the threads that serve others.
pub async fn beside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Error::internal)?
}
