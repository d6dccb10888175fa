//! What one part of the platform brings to the whole.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use platform_access::{Kind, Resources};
use platform_core::{Result, Timestamp, spawn};
use platform_db::{Conn, Db};
use platform_http::Group;
use platform_jobs::Work;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// What one part of the platform brings: its URLs, and what runs beside requests.
#[derive(Default)]
pub(crate) struct Module {
    /// Its URLs.
    pub groups: Vec<Group>,
    /// Where its records are, by kind.
    pub resources: Vec<(Kind, Arc<dyn Resources>)>,
    /// The runs that it works.
    pub works: Vec<Arc<dyn Work>>,
    /// What it does all the time.
    pub keepers: Vec<Keeper>,
    /// What of its own is old at some time, and goes.
    pub purges: Vec<Purge>,
}

/// Something that is done as long as the process runs.
pub(crate) struct Keeper {
    what: &'static str,
    task: BoxFuture<'static, ()>,
    ends_early: bool,
}

impl Keeper {
    pub fn new(what: &'static str, task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { what, task: Box::pin(task), ends_early: false }
    }

    /// It begins nothing new once the process is told to end.
    pub fn ending_early(self) -> Self {
        Self { ends_early: true, ..self }
    }

    /// Goes on until `stopping`, or until `closing`.
    pub fn start(self, closing: &CancellationToken, stopping: &CancellationToken) {
        let end = if self.ends_early { closing } else { stopping }.clone();
        spawn(self.what, async move {
            end.run_until_cancelled(self.task).await;
        });
    }
}

type Purging = dyn for<'c> Fn(&'c mut Conn, Timestamp) -> BoxFuture<'c, Result<()>> + Send + Sync;

/// Something that is deleted when it is old.
pub(crate) struct Purge {
    what: &'static str,
    purge: Box<Purging>,
}

impl Purge {
    /// `purge` is given what time it is.
    pub fn new(
        what: &'static str,
        purge: impl for<'c> Fn(&'c mut Conn, Timestamp) -> BoxFuture<'c, Result<()>> + Send + Sync + 'static,
    ) -> Self {
        Self { what, purge: Box::new(purge) }
    }

    /// Deletes what is old; what fails is tried again the next time.
    pub async fn run(&self, db: &Db, now: Timestamp) {
        let purged = async { (self.purge)(&mut *db.conn().await?, now).await };
        if let Err(error) = purged.await {
            warn!(%error, "Old {} could not be purged; trying again in an hour.", self.what);
        }
    }
}
