//! Whether the process can do what it is there for.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use platform_core::Result;
use platform_db::{Conn, Db, can_write};
use platform_jobs::Jobs;

/// A queue that is looked at for longer counts as one that does not answer.
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// A run that has been due for so long has no worker.
const UNWORKED_SECONDS: f64 = 60.0;

/// How the process is; asks the database at most once a second.
pub(crate) struct Health {
    db: Db,
    jobs: Arc<Jobs>,
    pub ready: AtomicBool,
    pub started: Instant,
    last: tokio::sync::Mutex<Last>,
}

/// What was found when the database was asked last, and the connection over which it is asked.
#[derive(Default)]
struct Last {
    found: Option<(Instant, Store)>,
    conn: Option<Conn>,
}

/// How the database and what is queued in it are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    Down,
    /// It answers, but stores nothing: its disk is full, or it is a standby.
    ReadOnly,
    /// It answers, but runs that are due find no worker.
    Unworked,
    Fine,
}

impl Health {
    pub fn new(db: Db, jobs: Arc<Jobs>) -> Self {
        let last = tokio::sync::Mutex::default();
        Self { db, jobs, ready: AtomicBool::new(false), started: Instant::now(), last }
    }

    pub async fn store(&self) -> Store {
        // One question at a time is what the lock is for.
        let mut last = self.last.lock().await;
        match last.found {
            Some((at, store)) if at.elapsed() < Duration::from_secs(1) => store,
            _ => {
                let store = self.look(&mut last.conn).await;
                last.found = Some((Instant::now(), store));
                store
            }
        }
    }

    async fn look(&self, conn: &mut Option<Conn>) -> Store {
        let queues = tokio::time::timeout(LONGEST_LOOK, self.jobs.queues());
        // A connection that did not answer in time is in the middle of something.
        let mut own = conn.take();
        let written = tokio::time::timeout(LONGEST_LOOK, self.write(&mut own));
        let (queues, written) = tokio::join!(queues, written);
        if matches!(written, Ok(Ok(()))) {
            *conn = own;
        }
        match (queues, written) {
            (Ok(Ok(_)), Err(_) | Ok(Err(_))) => Store::ReadOnly,
            (Ok(Ok(queues)), _) if queues.iter().all(|queue| queue.oldest_seconds < UNWORKED_SECONDS) => Store::Fine,
            (Ok(Ok(_)), _) => Store::Unworked,
            _ => Store::Down,
        }
    }

    async fn write(&self, conn: &mut Option<Conn>) -> Result<()> {
        let conn = match conn {
            Some(conn) => conn,
            None => conn.insert(self.db.dedicated().await?),
        };
        can_write(conn).await
    }
}
