//! The database goes away and comes back: what was acknowledged is there, and nobody waits for long.

use std::{
    cell::Cell,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use platform_testing::{FakeToolServer, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
};

use crate::support::{PROGRAM, eventually, finished_of, tool, tool_server};

/// The longest that anybody waits to hear that the database is away, with room for a busy machine.
const LONGEST: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Open,
    /// Connections are cut, and none is taken.
    Cut,
    /// Nothing gets through any more, and nobody is told.
    Silent,
}

/// A socket before the database's own, whose line can be cut.
struct Proxy {
    directory: PathBuf,
    line: watch::Sender<Line>,
}

impl Proxy {
    fn start(db: &TestDb) -> Self {
        let name = db.url().rsplit("dbname=").next().unwrap_or_default();
        let directory = std::env::temp_dir().join(format!("proxy-{name}"));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join(".s.PGSQL.5432");
        let _ = std::fs::remove_file(&path);
        let host = db.url().split(' ').find_map(|part| part.strip_prefix("host=")).expect("a socket");
        let behind = PathBuf::from(host).join(".s.PGSQL.5432");
        let listener = std::os::unix::net::UnixListener::bind(path).expect("a socket");
        listener.set_nonblocking(true).expect("set");
        let line = watch::Sender::new(Line::Open);
        let state = line.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let carrying = async {
                let listener = UnixListener::from_std(listener).expect("a listener");
                let mut lines = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    lines.spawn(carry(client, behind.clone(), state.subscribe()));
                }
            };
            runtime.block_on(carrying);
        });
        Self { directory, line }
    }

    /// The same database through this socket.
    fn url(&self, db: &TestDb) -> String {
        let parts = db.url().split(' ').filter(|part| !part.starts_with("host="));
        format!("host={} {}", self.directory.display(), parts.collect::<Vec<_>>().join(" "))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

async fn carry(mut client: UnixStream, behind: PathBuf, mut line: watch::Receiver<Line>) {
    if *line.borrow() == Line::Cut {
        return;
    }
    let Ok(mut server) = UnixStream::connect(behind).await else { return };
    loop {
        let now = *line.borrow_and_update();
        match now {
            Line::Cut => return,
            Line::Silent => {
                if line.changed().await.is_err() {
                    return;
                }
            }
            Line::Open => tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => return,
                _ = line.changed() => {}
            },
        }
    }
}

#[tokio::test]
async fn who_asks_while_the_database_is_away_hears_so_at_once_and_nothing_acknowledged_is_lost() {
    let db = TestDb::new().await;
    let proxy = Proxy::start(&db);
    let url = proxy.url(&db);
    let app = TestApp::start(PROGRAM, &db, &[("DATABASE_URL", url.as_str()), ("PLATFORM_RATE_FULL", "0")]);
    let acknowledged = AtomicUsize::new(0);
    let say = async || {
        let (began, n) = (Instant::now(), acknowledged.load(Ordering::Relaxed));
        let body = json!({"message": format!("message {n}"), "chatUid": "kept", "skipSummarization": true});
        let reply = app.post("/assistants/default/messages", body).await;
        let took = began.elapsed();
        assert!(took < LONGEST, "{took:?}: {}", reply.body);
        // A turn that was accepted before goes on by itself.
        let known = [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE, StatusCode::CONFLICT];
        assert!(known.contains(&reply.status), "{}: {}", reply.status, reply.body);
        let is_done = reply.status == StatusCode::OK;
        acknowledged.fetch_add(is_done.into(), Ordering::Relaxed);
        is_done.then_some(())
    };
    assert!(say().await.is_some());
    // All connections are killed.
    db.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    eventually("it finds its way back", say).await;
    let ready = async || app.send(app.anonymous(Method::GET, "/readyz")).await.status;
    for line in [Line::Cut, Line::Silent] {
        proxy.line.send_replace(line);
        // Also those who wait for their turn.
        let asked = Instant::now();
        let refused = join_all((0..40).map(|_| app.get("/agents/threads"))).await;
        assert!(asked.elapsed() < LONGEST, "{:?}", asked.elapsed());
        assert!(refused.iter().all(|reply| reply.status == StatusCode::SERVICE_UNAVAILABLE), "{:?}", refused[0].body);
        let away = async || (ready().await == StatusCode::SERVICE_UNAVAILABLE).then_some(());
        eventually("the process is not ready", away).await;
        for path in ["/assistants", "/agents", "/tenants", "/projects", "/assistants/default/chats/kept"] {
            let began = Instant::now();
            let reply = app.get(path).await;
            assert!(began.elapsed() < LONGEST, "{path}: {:?}", began.elapsed());
            assert_eq!(
                (reply.status, reply.error()),
                (StatusCode::SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE"),
                "{path}"
            );
            assert!(!reply.header("retry-after").is_empty(), "{path}");
        }
        assert!(say().await.is_none(), "nothing is acknowledged that cannot be kept");
        assert_eq!(app.get("/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
        proxy.line.send_replace(Line::Open);
        let back = async || (ready().await == StatusCode::OK).then_some(());
        eventually("the process is ready by itself", back).await;
        eventually("it finds its way back", say).await;
    }
    let chat = app.get("/assistants/default/chats/kept").await.body;
    let replies = chat["chatContent"].as_array().expect("messages").iter();
    let replies = replies.filter(|message| message["role"] == "assistant").count();
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    assert!(replies >= acknowledged && acknowledged >= 4, "{replies} of {acknowledged}");
}

#[tokio::test]
async fn a_worker_that_is_cut_off_from_the_database_is_taken_over_and_repeats_nothing() {
    for line in [Line::Cut, Line::Silent] {
        let (db, server) = (TestDb::new().await, FakeToolServer::start());
        let proxy = Proxy::start(&db);
        let url = proxy.url(&db);
        let settings = [
            ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
            ("PLATFORM_RUN_LEASE", "1s"),
            ("PLATFORM_RUN_HEARTBEAT", "300ms"),
        ];
        let lost = TestApp::start(PROGRAM, &db, &[&settings[..], &[("DATABASE_URL", url.as_str())]].concat());
        let tools = [tool("pay", "/hold", &json!({"method": "POST"})), tool("read", "/echo", &json!({}))];
        let tools = tool_server(&lost, server.url(), &tools).await;
        let helper = json!({"name": "h", "identifier": "helper", "availableToolsGroupsUids": [tools]});
        assert_eq!(lost.post("/assistants", helper).await.status, StatusCode::CREATED);
        let message = "/tool read\n/tool pay\nDone";
        let asked = json!({"chatUid": "cut", "message": message, "skipSummarization": true});
        assert_eq!(lost.post("/assistants/helper/messages?async=true", asked).await.status, StatusCode::OK);
        server.called(2).await;
        proxy.line.send_replace(line);
        let other = TestApp::start(PROGRAM, &db, &settings);
        // The answer comes to who cannot store it.
        server.let_go();
        let chat = finished_of(&other, "helper", "cut").await;
        assert_eq!(chat["status"], "completed", "{chat}");
        let results = |chat: &serde_json::Value| -> Vec<String> {
            let messages = chat["chatContent"].as_array().expect("messages").iter();
            let results = messages.filter(|message| message["role"] == "tool");
            results.map(|message| message["content"]["data"].to_string()).collect()
        };
        let told = results(&chat);
        assert!(told.len() == 2 && told[1].contains("RESULT_UNKNOWN"), "{told:?}");
        assert_eq!(server.calls("/hold"), 1, "a payment is made once");
        proxy.line.send_replace(Line::Open);
        let ready =
            async || (lost.send(lost.anonymous(Method::GET, "/readyz")).await.status == StatusCode::OK).then_some(());
        eventually("it is ready by itself", ready).await;
        let after = lost.get("/assistants/helper/chats/cut").await.body;
        assert_eq!(after["chatContent"], chat["chatContent"], "whoever was cut off changes nothing");
        assert_eq!(server.calls("/hold"), 1);
    }
}

#[tokio::test]
async fn a_database_that_answers_and_stores_nothing_is_not_ready() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let ready = async || app.send(app.anonymous(Method::GET, "/readyz")).await.status;
    assert_eq!(ready().await, StatusCode::OK);
    let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let name = db.url().split(' ').find_map(|part| part.strip_prefix("dbname=")).expect("a name");
    let turned = |way: &str| format!("ALTER DATABASE \"{name}\" SET default_transaction_read_only = {way}");
    db.run(&turned("on")).await;
    db.run(all).await;
    let is = async |status: StatusCode| (ready().await == status).then_some(());
    eventually("it is not ready", async || is(StatusCode::SERVICE_UNAVAILABLE).await).await;
    let checks = async || {
        let health = app.get("/health").await;
        let expected = json!({"database": "degraded", "queue": "down", "storage": "down", "provider": "ok"});
        (health.body["checks"] == expected).then_some((health.status, health.body["status"].clone()))
    };
    let told = eventually("the health says why", checks).await;
    assert_eq!(told, (StatusCode::SERVICE_UNAVAILABLE, json!("down")));
    db.run(&format!("BEGIN READ WRITE; {}; COMMIT", turned("off"))).await;
    db.run(all).await;
    eventually("it is ready again", async || is(StatusCode::OK).await).await;
}

/// A small file system of its own, for who may make one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new() -> Option<Self> {
        let path = std::env::temp_dir().join(format!("small-disk-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=44m,mode=755", "tmpfs"])
            .arg(&path)
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(path))
    }

    /// Leaves no room on it.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("fill")).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn clear(&self) {
        std::fs::remove_file(self.0.join("fill")).expect("removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A message of so many words that no compression makes much shorter.
fn noise(words: u64) -> String {
    let random =
        |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (0..words).fold(String::new(), |text, n| text + &format!("{:016x} ", random(n)))
}

#[tokio::test]
async fn a_database_of_our_own_comes_back_when_it_is_killed_and_when_its_disk_was_full() {
    let home = std::env::temp_dir().join(format!("platform-own-{}", std::process::id()));
    let begin = || TestApp::start_alone(PROGRAM, &home, &[("PLATFORM_RATE_FULL", "0")]);
    let mut app = begin();
    let told = Cell::new(0);
    let say = async |app: &TestApp, words: u64| {
        let (began, chat) = (Instant::now(), format!("chat-{}", told.get()));
        let body = json!({"message": noise(words), "chatUid": chat, "skipSummarization": true});
        let reply = app.post("/assistants/default/messages", body).await;
        assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
        let known = [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE, StatusCode::CONFLICT];
        assert!(known.contains(&reply.status), "{}: {}", reply.status, reply.body);
        (reply.status == StatusCode::OK).then(|| told.set(told.get() + 1))
    };
    say(&app, 10).await.expect("it works");
    let server = std::fs::read_to_string(home.join("postgres/postmaster.pid")).expect("the server's process");
    let killed = Command::new("kill").args(["-9", server.lines().next().expect("a number")]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    eventually("a new server answers", async || say(&app, 10).await).await;

    let disk = SmallDisk::new();
    if let Some(disk) = &disk {
        app.signal("TERM");
        assert_eq!(app.ended().await, Some(0));
        let (log, there) = (home.join("postgres/pg_wal"), disk.0.join("pg_wal"));
        let moved = Command::new("cp").arg("-a").args([&log, &there]).status();
        assert!(moved.is_ok_and(|status| status.success()));
        std::fs::remove_dir_all(&log).expect("removed");
        std::os::unix::fs::symlink(&there, &log).expect("linked");
        app = begin();
        disk.fill();
        let mut refused = 0;
        while refused < 10 {
            refused += usize::from(say(&app, 4000).await.is_none());
        }
        let said = std::fs::read_to_string(home.join("postgres.log")).expect("the server's log");
        assert!(said.contains("No space left on device"), "{said}");
        let ready = async |status: StatusCode| {
            let answer = app.send(app.anonymous(Method::GET, "/readyz")).await;
            (answer.status == status).then_some(())
        };
        eventually("it is not ready", async || ready(StatusCode::SERVICE_UNAVAILABLE).await).await;
        disk.clear();
        eventually("it is ready again", async || ready(StatusCode::OK).await).await;
        eventually("it answers when there is room", async || say(&app, 10).await).await;
    } else {
        eprintln!("Nobody but root may make a small disk: a full one is not tried.");
    }
    for chat in 0..told.get() {
        let kept = app.get(&format!("/assistants/default/chats/chat-{chat}")).await;
        assert_eq!(kept.status, StatusCode::OK, "chat {chat} was acknowledged");
        let messages = kept.body["chatContent"].as_array().map(Vec::len);
        assert!(messages >= Some(2), "chat {chat}: {messages:?} messages");
    }
    app.signal("TERM");
    assert_eq!(app.ended().await, Some(0));
    std::fs::remove_dir_all(home).expect("removed");
}
