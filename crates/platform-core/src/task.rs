use std::{future::Future, num::NonZero, sync::LazyLock, thread::available_parallelism};

use crate::{Error, Result};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};
use tokio_util::task::TaskTracker;
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

/// What is to come to its end before the process does.
static FINISHING: LazyLock<TaskTracker> = LazyLock::new(TaskTracker::new);

/// The same for what the process waits for before it ends ([`finished`]).
pub fn spawn_finishing<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn(name, FINISHING.track_future(future))
}

/// Waits until all that [`spawn_finishing`] began has ended.
pub async fn finished() {
    FINISHING.close();
    FINISHING.wait().await;
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

/// Bytes that are read in some hundred microseconds at most.
const FEW_BYTES: usize = 64 << 10;

/// Threads that read many bytes: no more than can work at once, for each keeps the memory of the largest that it read.
static READERS: LazyLock<Runtime> = LazyLock::new(|| {
    let threads = available_parallelism().map_or(1, NonZero::get);
    let pool = Builder::new_current_thread().thread_name("reader").max_blocking_threads(threads).build();
    pool.expect("a pool without drivers is built")
});

/// Reads so many bytes: few at once, many beside the threads that serve others.
pub async fn run_sized<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if bytes <= FEW_BYTES {
        return work();
    }
    READERS.spawn_blocking(work).await.map_err(Error::internal)?
}
