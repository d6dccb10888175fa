//! Whether the process can do what it is there for.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use platform_jobs::Jobs;

/// A queue that is looked at for longer counts as one that does not answer.
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// A run that has been due for so long has no worker.
const UNWORKED_SECONDS: f64 = 60.0;

/// How the process is; asks the database at most once a second.
pub(crate) struct Health {
    jobs: Arc<Jobs>,
    pub ready: AtomicBool,
    pub started: Instant,
    last: tokio::sync::Mutex<Option<(Instant, Store)>>,
}

/// How the database and what is queued in it are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    Down,
    /// It answers, but runs that are due find no worker.
    Unworked,
    Fine,
}

impl Health {
    pub fn new(jobs: Arc<Jobs>) -> Self {
        let last = tokio::sync::Mutex::default();
        Self { jobs, ready: AtomicBool::new(false), started: Instant::now(), last }
    }

    pub async fn store(&self) -> Store {
        // One question at a time is what the lock is for.
        let mut last = self.last.lock().await;
        match *last {
            Some((at, store)) if at.elapsed() < Duration::from_secs(1) => store,
            _ => {
                let store = self.look().await;
                *last = Some((Instant::now(), store));
                store
            }
        }
    }

    async fn look(&self) -> Store {
        match tokio::time::timeout(LONGEST_LOOK, self.jobs.queues()).await {
            Ok(Ok(queues)) if queues.iter().all(|queue| queue.oldest_seconds < UNWORKED_SECONDS) => Store::Fine,
            Ok(Ok(_)) => Store::Unworked,
            _ => Store::Down,
        }
    }
}
