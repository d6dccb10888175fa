use std::{
    cell::RefCell,
    path::Path,
    sync::{
        LazyLock, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use diesel::sql_types::Text;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use platform_db::{Db, DbConfig, Embedded, MIGRATIONS_HASH};

/// Data that tests lose in a crash of the machine is no loss.
const SETTINGS: [&str; 4] = ["fsync=off", "full_page_writes=off", "max_connections=500", "shared_buffers=64MB"];
/// One process at a time makes the template and clears away what dead processes left.
const LOCK: &str = "SELECT pg_advisory_lock(7238412)";

/// Databases of tests that have ended, on their way to be dropped.
static ENDED: LazyLock<mpsc::Sender<String>> = LazyLock::new(|| {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(|| drop_each(ended));
    sender
});

thread_local! {
    static OF_THIS_TEST: RefCell<OfOneTest> = const { RefCell::new(OfOneTest(Vec::new())) };
}

/// A database of one test: all migrations, no rows. It goes with the thread of its test.
pub struct TestDb {
    url: String,
}

/// Names of the databases that a test has made.
struct OfOneTest(Vec<String>);

impl Drop for OfOneTest {
    fn drop(&mut self) {
        for name in self.0.drain(..) {
            let _ = ENDED.send(name);
        }
    }
}

#[derive(diesel::QueryableByName)]
struct Name {
    #[diesel(sql_type = Text)]
    datname: String,
}

impl TestDb {
    /// Clones the template.
    pub async fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (server, number) = (server().await, COUNT.fetch_add(1, Ordering::Relaxed));
        let template = format!("template_{MIGRATIONS_HASH}");
        let mut admin = connect(&admin_url(&server)).await;
        admin.batch_execute(LOCK).await.expect("the lock");
        if number == 0 {
            clear_away(&mut admin, &template).await;
        }
        if !databases(&mut admin).await.contains(&template) {
            make_template(&mut admin, &server, &template).await;
        }
        drop(admin);
        let name = format!("test_{}_{number}", std::process::id());
        let mut admin = connect(&admin_url(&server)).await;
        let create = format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY WAL_LOG");
        admin.batch_execute(&create).await.expect("a clone of the template");
        LazyLock::force(&ENDED);
        OF_THIS_TEST.with_borrow_mut(|names| names.0.push(name.clone()));
        Self { url: format!("{server} dbname={name}") }
    }

    /// A database that something else has made, and that stays.
    pub fn at(url: String) -> Self {
        Self { url }
    }

    /// Connection string.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Every row of every table, as text.
    pub async fn dump(&self) -> String {
        let tables = "SELECT format('SELECT t::text AS datname FROM %I t', tablename) AS datname FROM pg_tables \
            WHERE schemaname = 'public'";
        let mut conn = connect(&self.url).await;
        let tables: Vec<Name> = diesel::sql_query(tables).load(&mut conn).await.expect("the tables");
        assert!(!tables.is_empty(), "there is nothing to look through");
        let mut dump = String::new();
        for table in tables {
            let rows: Vec<Name> = diesel::sql_query(table.datname).load(&mut conn).await.expect("rows");
            dump.extend(rows.into_iter().map(|row| row.datname + "\n"));
        }
        dump
    }

    /// Runs statements, for what only time would bring about.
    pub async fn run(&self, sql: &str) {
        connect(&self.url).await.batch_execute(sql).await.expect("a statement");
    }

    /// What a statement that selects `n`, a number, gives.
    pub async fn number(&self, sql: &str) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Number {
            #[diesel(sql_type = diesel::sql_types::BigInt)]
            n: i64,
        }
        let mut conn = connect(&self.url).await;
        let number: Number = diesel::sql_query(sql).get_result(&mut conn).await.expect("a number");
        number.n
    }

    /// A handle to it.
    pub fn connect(&self) -> Db {
        Db::new(&DbConfig { url: self.url.clone(), pool: 8 }).expect("a pool")
    }
}

#[tokio::main(flavor = "current_thread")]
async fn drop_each(ended: mpsc::Receiver<String>) {
    let mut admin = connect(&admin_url(&server().await)).await;
    for name in ended {
        drop_database(&mut admin, &name).await;
    }
}

/// Drops what processes left that have ended, and templates of other migrations.
async fn clear_away(admin: &mut AsyncPgConnection, template: &str) {
    for name in databases(admin).await {
        let left_behind = match name.strip_prefix("test_").and_then(|rest| rest.split('_').next()) {
            Some(pid) => !Path::new("/proc").join(pid).exists(),
            None => name.starts_with("template_") && name != template,
        };
        if left_behind {
            drop_database(admin, &name).await;
        }
    }
}

async fn drop_database(admin: &mut AsyncPgConnection, name: &str) {
    let _ = admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
}

async fn make_template(admin: &mut AsyncPgConnection, server: &str, template: &str) {
    eprintln!("The migrations have changed: making a new template for the databases of the tests.");
    let unfinished = format!("unfinished_{template}");
    admin.batch_execute(&format!("DROP DATABASE IF EXISTS {unfinished}")).await.expect("dropped");
    admin.batch_execute(&format!("CREATE DATABASE {unfinished}")).await.expect("created");
    let db = Db::new(&DbConfig { url: format!("{server} dbname={unfinished}"), pool: 1 }).expect("a pool");
    db.migrate().await.expect("migrations run");
    drop(db);
    let rename = format!("ALTER DATABASE {unfinished} RENAME TO {template}");
    let patience = Instant::now() + Duration::from_secs(10);
    // The migrating connection takes a moment to go.
    while let Err(error) = admin.batch_execute(&rename).await {
        assert!(Instant::now() < patience, "the template cannot be put in place: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn databases(admin: &mut AsyncPgConnection) -> Vec<String> {
    let names: Vec<Name> =
        diesel::sql_query("SELECT datname::text FROM pg_database").load(admin).await.expect("a list of databases");
    names.into_iter().map(|name| name.datname).collect()
}

fn admin_url(server: &str) -> String {
    format!("{server} dbname=postgres")
}

async fn connect(url: &str) -> AsyncPgConnection {
    let patience = Instant::now() + Duration::from_mins(1);
    loop {
        match AsyncPgConnection::establish(url).await {
            Ok(connection) => return connection,
            // Another test process may be starting it just now.
            Err(error) => assert!(Instant::now() < patience, "the test server does not answer: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Connection string of the shared server, without a database.
async fn server() -> String {
    static SERVER: OnceLock<Embedded> = OnceLock::new();
    tokio::task::spawn_blocking(|| {
        let embedded = SERVER.get_or_init(|| {
            let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-postgres");
            let told =
                "These tests use a PostgreSQL of their own under target/test-postgres: it is started when it is not up";
            eprintln!("{told}, and left running; each test has a database of its own.");
            Embedded::join(&target, &SETTINGS).expect("a PostgreSQL for the tests")
        });
        embedded.url().replace(" dbname=postgres", "")
    })
    .await
    .expect("the server is looked for")
}
