//! A run whose worker is lost is carried on by another one: `cargo run -p platform-jobs --example takeover`.
//!
//! It needs nothing but this crate: a PostgreSQL of its own is started in a temporary directory.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, Result, SystemClock};
use platform_db::{Bus, Db, DbConfig, Embedded};
use platform_jobs::{Jobs, JobsConfig, Run, When, Work, end_in, enqueue_in, is_held_in};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Counts to three; the first worker fails on the way, as if its machine were gone.
struct Counting {
    db: Db,
    done: mpsc::UnboundedSender<String>,
}

#[async_trait]
impl Work for Counting {
    fn kind(&self) -> &'static str {
        "counting"
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        for number in 1..=3 {
            println!("attempt {}: {number} of {}", run.attempt, run.subject);
            if run.attempt == 1 && number == 2 {
                return Err(Error::internal("this worker is lost"));
            }
        }
        // The result and the end of the run are one transaction, under the lease: it counts once.
        let ending = self
            .db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                let held = is_held_in(conn, run).await?;
                if held {
                    end_in(conn, run).await?;
                }
                Ok(held)
            })
            .await?;
        if ending {
            let _ = self.done.send(format!("{} is counted", run.subject));
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let data = std::env::temp_dir().join(format!("takeover-{}", std::process::id()));
    let place = data.clone();
    let server = tokio::task::spawn_blocking(move || Embedded::start(&place, &[])).await.map_err(Error::internal)?;
    let server = server.map_err(Error::internal)?;
    let db = Db::new(&DbConfig { url: server.url(), pool: 4 })?;
    db.migrate().await?;

    let config = JobsConfig { lease: Duration::from_secs(2), heartbeat: Duration::from_millis(500), concurrency: 4 };
    let jobs = Jobs::new(&db, &Bus::local(), Arc::new(SystemClock), config, "example".to_owned());
    let (done, mut told) = mpsc::unbounded_channel();
    let works: Vec<Arc<dyn Work>> = vec![Arc::new(Counting { db: db.clone(), done })];
    jobs.start(works.clone());

    // A run is enqueued in the transaction of whatever asks for it.
    let mut conn = db.conn().await?;
    conn.transaction::<_, Error, _>(async |conn| {
        let soon = When::After(Duration::ZERO);
        enqueue_in(conn, &AccountId::generate(), "counting", "sheep", json!({}), soon).await
    })
    .await?;
    drop(conn);
    jobs.announce();

    println!("{}", told.recv().await.expect("the second attempt ends it"));
    jobs.drain(&works, Duration::from_secs(5)).await?;
    tokio::task::spawn_blocking(move || drop(server)).await.map_err(Error::internal)?;
    std::fs::remove_dir_all(data).map_err(Error::internal)
}

#[test]
fn it_runs() {
    main().expect("a run that is taken over");
}
