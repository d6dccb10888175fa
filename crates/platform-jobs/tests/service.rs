//! Leases on a real PostgreSQL, judged by its clock.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel::QueryableByName;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result, SystemClock};
use platform_db::{Bus, Conn, Db, JsonStatement};
use platform_jobs::{ENQUEUE, FINISH, Jobs, JobsConfig, Run, Work, is_held_in, stop_in};
use platform_testing::TestDb;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);
const CONFIG: JobsConfig =
    JobsConfig { lease: Duration::from_millis(900), heartbeat: Duration::from_millis(300), concurrency: 8 };

#[derive(QueryableByName)]
struct Ended {
    #[diesel(sql_type = diesel::sql_types::Text)]
    id: String,
}

async fn enqueue(conn: &mut Conn, account: &AccountId, subject: &str, owner: Option<&str>) -> String {
    let sql = format!(
        "WITH accepted AS (SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, subject text, kind text, run text,
            owner text, lease_ms bigint, payload jsonb, trace text)), queued AS ({ENQUEUE} RETURNING id) SELECT id FROM queued"
    );
    let row = json!({"account": account, "subject": subject, "kind": "test", "run": format!("run-{subject}"),
        "owner": owner, "lease_ms": owner.map(|_| 900), "payload": {"n": 1}});
    let rows: Vec<Ended> = statement(sql, &row).load(conn).await.expect("enqueued");
    rows.into_iter().map(|row| row.id).next().expect("a run")
}

/// Ends a run; whether its lease was held.
async fn finish(conn: &mut Conn, run: &Run) -> bool {
    let sql = format!(
        "WITH item AS (SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(run text, fence bigint)),
            ended AS ({FINISH}) SELECT id FROM ended"
    );
    let rows: Vec<Ended> =
        statement(sql, &json!({"run": run.id, "fence": run.fence})).load(conn).await.expect("a statement");
    rows.iter().any(|row| row.id == run.id)
}

fn statement(sql: String, row: &Value) -> JsonStatement {
    JsonStatement::new(sql.leak(), std::slice::from_ref(row)).expect("JSON")
}

/// Hands each run it is given to the test, and holds it until the test lets go or it is stopped.
struct Counted {
    runs: mpsc::UnboundedSender<Run>,
    ends: bool,
    db: Db,
}

#[async_trait]
impl Work for Counted {
    fn kind(&self) -> &'static str {
        "test"
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let _ = self.runs.send(run.clone());
        if !self.ends {
            stop.cancelled().await;
        }
        finish(&mut *self.db.conn().await?, run).await;
        Ok(())
    }
}

fn worker(db: &Db, bus: &Bus, name: &str, ends: bool) -> (Arc<Jobs>, mpsc::UnboundedReceiver<Run>) {
    let (runs, told) = mpsc::unbounded_channel();
    let jobs = Jobs::new(db, bus, Arc::new(SystemClock), CONFIG, name.to_owned());
    jobs.start(vec![Arc::new(Counted { runs, ends, db: db.clone() })]);
    (jobs, told)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_worker_is_taken_over_with_a_higher_fence_and_can_write_nothing_more() {
    let db = TestDb::new().await.connect();
    let account = AccountId::generate();
    let mut conn = db.conn().await.expect("a connection");
    // A worker that took its lease at once and was never heard of again.
    enqueue(&mut conn, &account, "a", Some("dead")).await;
    let dead = Run::begun("run-a".to_owned(), &account, "test", "a".to_owned(), json!({}));
    assert!(is_held_in(&mut conn, &dead).await.expect("a row"));
    let (_jobs, mut told) = worker(&db, &Bus::local(), "alive", true);
    let taken = tokio::time::timeout(PATIENCE, told.recv()).await.expect("in time").expect("a run");
    assert_eq!((taken.fence, taken.attempt, taken.payload["n"].as_i64()), (2, 2, Some(1)));
    assert!(!is_held_in(&mut conn, &dead).await.expect("no row"));
    assert!(!finish(&mut conn, &dead).await, "the dead worker's fence ends nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_keeps_the_lease_and_a_stop_reaches_the_worker() {
    let db = TestDb::new().await.connect();
    let bus = Bus::local();
    let account = AccountId::generate();
    let (first, mut told) = worker(&db, &bus, "first", false);
    let (_second, mut idle) = worker(&db, &Bus::local(), "second", false);
    first.announce();
    enqueue(&mut db.conn().await.expect("a connection"), &account, "a", None).await;
    first.announce();
    let run = tokio::select! {
        run = told.recv() => run.expect("a run"),
        run = idle.recv() => run.expect("a run"),
    };
    // Two leases long nobody else gets it.
    let other = async {
        tokio::select! { run = told.recv() => run, run = idle.recv() => run }
    };
    assert!(tokio::time::timeout(CONFIG.lease * 2, other).await.is_err(), "a held run was taken");
    let asked = stop_in(&mut db.conn().await.expect("a connection"), &account, "test", "a").await.expect("a row");
    first.stopped(&asked.expect("there is a run").id).await.expect("told");
    let mut conn = db.conn().await.expect("a connection");
    let gone = async {
        while is_held_in(&mut conn, &run).await.expect("a statement") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("stopped, wherever it was worked");
    let run = stop_in(&mut db.conn().await.expect("a connection"), &account, "test", "a").await.expect("no row");
    assert!(run.is_none(), "nothing is left to stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_hands_back_without_counting_the_attempt() {
    let db = TestDb::new().await.connect();
    let account = AccountId::generate();
    enqueue(&mut db.conn().await.expect("a connection"), &account, "a", None).await;
    let (first, mut told) = worker(&db, &Bus::local(), "first", false);
    let run = told.recv().await.expect("a run");
    assert_eq!((run.attempt, first.active()), (1, 1));
    first.drain(&[], Duration::from_millis(50)).await.expect("drained");
    let (_second, mut told) = worker(&db, &Bus::local(), "second", true);
    let again = told.recv().await.expect("the same run");
    assert_eq!((again.id, again.attempt), (run.id, 1));
    assert!(again.fence > run.fence + 1, "handing back and taking both raise the fence");
}
