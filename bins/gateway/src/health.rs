//! Whether the process can do what it is there for.

use std::{
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::{Duration, Instant},
};

use platform_core::{Result, spawn};
use platform_db::{Conn, Db, can_write};
use platform_jobs::Jobs;

/// A queue that is looked at for longer counts as one that does not answer.
const MAX_LOOK: Duration = Duration::from_secs(2);
/// A run that has been due for so long has no worker.
const UNWORKED_SECONDS: f64 = 60.0;

/// What was found longer ago is looked for again.
const FRESH: Duration = Duration::from_secs(1);
/// What was found so long ago is told nobody any more.
const STALE: Duration = Duration::from_secs(2);

/// How the process is; asks the database at most once a second.
pub(crate) struct Health {
    pub ready: AtomicBool,
    pub started: Instant,
    database: Arc<Database>,
}

/// The database, as it is looked at.
struct Database {
    db: Db,
    jobs: Arc<Jobs>,
    found: Mutex<Option<(Instant, Store)>>,
    /// Over which it is asked; one question at a time is what the lock is for.
    conn: tokio::sync::Mutex<Option<Conn>>,
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
        let database = Arc::new(Database { db, jobs, found: Mutex::default(), conn: tokio::sync::Mutex::default() });
        Self { ready: AtomicBool::new(false), started: Instant::now(), database }
    }

    /// The database as it is, within a second.
    pub async fn store(&self) -> Store {
        match self.database.found_within(FRESH) {
            Some(store) => store,
            None => self.database.look().await,
        }
    }

    /// The database as it was lately, without waiting for it; who asks again is told what it is now.
    pub async fn store_lately(&self) -> Store {
        let lately = self.database.found_within(STALE);
        match (self.database.found_within(FRESH), lately) {
            (Some(store), _) => store,
            (None, Some(store)) => {
                if self.database.conn.try_lock().is_ok() {
                    let database = Arc::clone(&self.database);
                    spawn("health", async move { database.look().await });
                }
                store
            }
            (None, None) => self.database.look().await,
        }
    }
}

impl Database {
    fn found_within(&self, time: Duration) -> Option<Store> {
        let found = *self.found.lock().expect("lock");
        found.filter(|(at, _)| at.elapsed() < time).map(|(_, store)| store)
    }

    async fn look(&self) -> Store {
        let mut conn = self.conn.lock().await;
        // Somebody else may have looked meanwhile.
        if let Some(store) = self.found_within(FRESH) {
            return store;
        }
        let store = self.ask(&mut conn).await;
        *self.found.lock().expect("lock") = Some((Instant::now(), store));
        store
    }

    async fn ask(&self, conn: &mut Option<Conn>) -> Store {
        let queues = tokio::time::timeout(MAX_LOOK, self.jobs.queues());
        // A connection that did not answer in time is in the middle of something.
        let mut own = conn.take();
        let written = tokio::time::timeout(MAX_LOOK, self.write(&mut own));
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
