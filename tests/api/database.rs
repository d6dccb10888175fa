//! The database goes away and comes back: what was acknowledged is there, and nobody waits for long.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use platform_testing::{TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
};

use crate::support::{PROGRAM, eventually};

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
        let directory = std::env::temp_dir().join(format!("proxy-{}", std::process::id()));
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
