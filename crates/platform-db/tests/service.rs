//! The patterns everybody writes with, on a real PostgreSQL.

use diesel::{QueryableByName, sql_types::Integer};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use platform_core::{AccountId, Code, Error, Result};
use platform_db::{Bus, Capacity, Conn, GroupWriter, Idempotency, InvalidatedCache, JsonStatement, Notice, Stored};
use platform_testing::TestDb;
use serde_json::json;

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = Integer)]
    n: i32,
}

async fn insert(conn: &mut Conn, items: &[i32]) -> Result<Vec<usize>> {
    let rows: Vec<_> = items.iter().map(|n| json!({"n": n})).collect();
    let sql = "INSERT INTO numbers SELECT n FROM jsonb_to_recordset($1::jsonb) AS x(n int) RETURNING n";
    let written: Vec<Number> = JsonStatement::new(sql, &rows)?.load(conn).await?;
    assert!(written.iter().map(|row| row.n).eq(items.iter().copied()));
    // How many shared the statement.
    Ok(items.iter().map(|_| items.len()).collect())
}

#[tokio::test]
async fn writes_that_wait_together_share_a_statement_and_a_bad_one_fails_alone() {
    let db = TestDb::new().await.connect();
    let mut conn = db.conn().await.expect("a connection");
    conn.batch_execute("CREATE TABLE numbers (n int PRIMARY KEY CHECK (n > 0))").await.expect("a table");
    let writer = GroupWriter::new(&db, 64, |conn, items| Box::pin(insert(conn, items)));
    let all: Vec<Result<usize>> = futures_util::future::join_all((1..=50).map(|n| writer.write(n))).await;
    let groups: Vec<usize> = all.into_iter().map(|group| group.expect("written")).collect();
    assert!(groups.iter().any(|size| *size > 1), "nobody shared: {groups:?}");

    let mixed = futures_util::future::join_all([51, 52, -1, 53].map(|n| writer.write(n))).await;
    let outcomes: Vec<bool> = mixed.iter().map(Result::is_ok).collect();
    assert_eq!(outcomes, [true, true, false, true]);
    let count: Vec<Number> =
        diesel::sql_query("SELECT count(*)::int AS n FROM numbers").load(&mut conn).await.expect("a count");
    assert_eq!(count[0].n, 53);
}

#[tokio::test]
async fn an_idempotency_key_stands_and_falls_with_its_transaction() {
    use diesel_async::AsyncConnection;
    let db = TestDb::new().await.connect();
    let once =
        Idempotency { account: AccountId::generate(), scope: "account|key".to_owned(), body_hash: "a".to_owned() };
    let failed: Result<()> = db
        .conn()
        .await
        .expect("a connection")
        .transaction(async |conn| {
            once.store(conn, 201, &json!({"n": 1})).await?;
            Err(Error::new(Code::CONFLICT, "the effect did not happen"))
        })
        .await;
    assert!(failed.is_err());
    assert_eq!(once.find(&db).await.expect("a look"), None, "the key stayed free");

    let mut conn = db.conn().await.expect("a connection");
    once.store(&mut conn, 201, &json!({"n": 2})).await.expect("stored");
    let answer = Stored::Answer { status: 201, body: "{\"n\":2}".to_owned() };
    assert_eq!(once.find(&db).await.expect("a look"), Some(answer));
    let second = once.store(&mut conn, 201, &json!({"n": 3})).await.expect_err("taken");
    assert_eq!(second.code(), platform_db::code::IDEMPOTENCY_IN_PROGRESS);
    let other = Idempotency { body_hash: "b".to_owned(), ..once.clone() };
    assert_eq!(other.find(&db).await.expect_err("another body").code(), platform_db::code::IDEMPOTENCY_KEY_REUSED);
    diesel::sql_query("UPDATE idempotency SET created_at = now() - interval '25 hours'")
        .execute(&mut conn)
        .await
        .expect("aged");
    assert_eq!(Idempotency::purge(&mut conn).await.expect("purged"), 1);
}

#[tokio::test]
async fn a_transaction_that_stands_still_gives_its_locks_back() {
    let db = TestDb::new().await.connect();
    let mut stopped = db.conn().await.expect("a connection");
    stopped.batch_execute("CREATE TABLE held (n int)").await.expect("a table");
    stopped.batch_execute("BEGIN; LOCK TABLE held").await.expect("locked");
    let mut other = db.conn().await.expect("a connection");
    let waits = other.batch_execute("INSERT INTO held VALUES (1)");
    tokio::time::timeout(std::time::Duration::from_secs(30), waits).await.expect("in time").expect("inserted");
    stopped.batch_execute("COMMIT").await.expect_err("it was ended");
}

#[tokio::test]
async fn of_an_account_with_too_many_idempotency_keys_the_oldest_are_forgotten() {
    let db = TestDb::new().await.connect();
    let mut conn = db.conn().await.expect("a connection");
    let (many, few) = (AccountId::generate(), AccountId::generate());
    for (account, keys) in [(&many, 100_007), (&few, 3)] {
        let insert = "INSERT INTO idempotency (scope, body_hash, status, account, created_at) \
            SELECT $1 || n, '', 200, $1, now() - n * interval '1 millisecond' FROM generate_series(1, $2) n";
        let insert = diesel::sql_query(insert).bind::<diesel::sql_types::Text, _>(account.as_str());
        insert.bind::<Integer, _>(keys).execute(&mut conn).await.expect("keys");
    }
    for (account, trimmed) in [(&many, 7), (&many, 0), (&few, 0)] {
        assert_eq!(Idempotency::trim(&db, account).await.expect("trimmed"), trimmed);
    }
    let once = |n: i32| Idempotency { account: many.clone(), scope: format!("{many}{n}"), body_hash: String::new() };
    assert!(once(100_000).find(&db).await.expect("a look").is_some());
    assert_eq!(once(100_001).find(&db).await.expect("a look"), None, "the oldest went");
}

#[tokio::test]
async fn a_change_told_on_one_process_is_forgotten_on_the_other() {
    let test = TestDb::new().await;
    // Two handles with buses of their own stand for two processes.
    let (here, there) = (test.connect(), test.connect());
    let (here, there) = (Bus::shared(&here), Bus::shared(&there));
    let mut heard = there.subscribe();
    // Until the line is up, hints may be missed: both say so when it is.
    while heard.recv().await.expect("a notice") != Notice::Missed {}
    let ours = InvalidatedCache::<&str, i32>::new(&here, "thing", Capacity::Entries(10));
    let theirs = InvalidatedCache::<&str, i32>::new(&there, "thing", Capacity::Entries(10));
    let load = |n: i32| async move { Ok(Some(n)) };
    assert_eq!(theirs.get_or_load(&"k", load(1)).await.expect("loaded").as_deref(), Some(&1));
    assert_eq!(theirs.get_or_load(&"k", load(2)).await.expect("known").as_deref(), Some(&1), "it is remembered");
    ours.changed("k").await.expect("told");
    let told = Notice::Changed { topic: "thing".to_owned(), id: "k".to_owned() };
    while heard.recv().await.expect("a notice") != told {}
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(1);
    while theirs.get_or_load(&"k", load(3)).await.expect("loaded").as_deref() != Some(&3) {
        assert!(std::time::Instant::now() < patience, "still remembered after a second");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_takes_long_takes_an_accounts_share_of_the_pool_and_no_more() {
    let db = TestDb::new().await.connect();
    let [greedy, other] = [(); 2].map(|()| AccountId::generate());
    let mut held = db.fair_conn(&greedy).await.expect("a connection");
    held.batch_execute("SELECT 1").await.expect("it is one of its own");
    let mut next = Box::pin(db.fair_conn(&greedy));
    assert!(futures_util::poll!(&mut next).is_pending(), "a pool of eight has one for each account");
    for _ in 0..4 {
        db.fair_conn(&other).await.expect("nobody else waits");
    }
    drop(held);
    next.await.expect("it goes on when the first is given back");
}
