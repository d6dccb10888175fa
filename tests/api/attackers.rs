//! Attackers of one account, each at another door and all at once, and how everybody else fares meanwhile.

use std::{
    collections::HashSet,
    io::Write,
    net::TcpStream,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use platform_testing::{FakeMcpServer, FakeToolServer, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::{
    document_files,
    guessing::{PROXIES, client, log_in},
    hostile::{Probe, STALL, TURNS, longest_stall},
    hostile_files::endless,
    mcp_gateway::exposed,
    support::{PROGRAM, UNBOUNDED, factor, other_account, peak_memory, text},
};

/// What the attackers need.
struct Doors<'a> {
    app: &'a TestApp,
    tools: &'a FakeToolServer,
    environment: String,
    mcp: String,
    client: String,
    words: String,
}

impl Doors<'_> {
    /// Tries one way to take more than a share; what its door answered, where that is waited for.
    async fn attack(&self, way: usize) -> Option<StatusCode> {
        static FRESH: AtomicU64 = AtomicU64::new(0);
        let (app, fresh) = (self.app, FRESH.fetch_add(1, Ordering::Relaxed));
        let hold = format!("{}/hold", self.tools.url());
        match way {
            // Passwords and keys that are guessed.
            0 => {
                let (from, name) = (format!("203.0.113.{}", fresh % 200), format!("a{}", fresh % 20));
                let guessed = format!("sk-{fresh}");
                app.send(app.anonymous(Method::GET, "/v1/assistants").bearer_auth(guessed)).await;
                Some(log_in(app, &self.client, &from, &name, "wrong").await)
            }
            // A body that comes a little at a time.
            1 => {
                let address = app.url().trim_start_matches("http://").to_owned();
                let key = app.key().to_owned();
                let trickle = move || {
                    let mut connection = TcpStream::connect(address)?;
                    write!(
                        connection,
                        "POST /v1/assistants/default/messages HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\ncontent-length: 2000000\r\n\r\n"
                    )?;
                    for _ in 0..20 {
                        connection.write_all(&[b'x'; 1000])?;
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    Ok::<_, std::io::Error>(())
                };
                let _ = tokio::task::spawn_blocking(trickle).await;
                None
            }
            // Addresses that never answer.
            2 => {
                let files = vec![json!({"name": "a.png", "downloadUrl": hold, "fileType": "image"}); 5];
                app.post("/assistants/default/messages", json!({"message": "Look", "files": files})).await;
                None
            }
            // A file that takes as long to read as it may.
            3 => {
                document_files::upload(app, &format!("{fresh}.pdf"), endless(), &[]).await;
                None
            }
            // Lists of a server that has much to say.
            4 => Some(app.post(&format!("/mcp-gateway/servers/{}/refresh", self.mcp), json!({})).await.status),
            // Receivers that never answer.
            5 => {
                let webhook = json!({"url": format!("{hold}?{fresh}"), "events": ["chat.completed"]});
                let made = app.post("/webhooks", webhook).await;
                if let Some(id) = made.body["_id"].as_str() {
                    app.post(&format!("/webhooks/{id}/test"), json!({})).await;
                }
                Some(made.status)
            }
            // Streams that nobody reads.
            6 => {
                let message = json!({"message": "/delay 5ms\n/tokens 400"});
                let started = app.post("/assistants/default/messages?async=true", message).await;
                let chat = started.body["chatUid"].as_str()?;
                let path = format!("/assistants/default/chats/{chat}/stream");
                let readers = join_all((0..20).map(|_| app.request(Method::GET, &path).send())).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                readers.into_iter().flatten().next().map(|reader| reader.status())
            }
            // Questions of very many words, and lists of large records.
            7 if fresh.is_multiple_of(2) => Some(app.get("/tool-servers?limit=100").await.status),
            7 => Some(app.post("/documents/search", json!({"query": &self.words[..1900], "limit": 20})).await.status),
            // Turns that nobody waits for.
            8 => {
                let message = json!({"message": "/tokens 200"});
                Some(app.post("/assistants/default/messages?async=true", message).await.status)
            }
            // Machines that work all the time.
            9 => {
                let path = format!("/environments/{}/sandbox", self.environment);
                let started = app.post(&format!("{path}/start"), json!({"tenantId": format!("t{}", fresh % 50)})).await;
                if let Some(id) = started.body["sandboxId"].as_str() {
                    let busy = json!({"sandboxId": id, "command": "while :; do :; done", "timeoutSeconds": 1});
                    app.post(&format!("{path}/exec"), busy).await;
                }
                Some(started.status)
            }
            // Clients of OAuth that register themselves.
            10 => {
                let client = json!({"redirect_uris": ["https://a.example/cb"], "client_name": "x".repeat(200)});
                Some(app.send(app.anonymous(Method::POST, "/oauth/register").json(&client)).await.status)
            }
            // What was said long ago, asked for by end users without number.
            _ => {
                let message = json!({"message": self.words, "tenantId": format!("t{}", fresh % 5)});
                Some(app.post("/assistants/recalls/messages", message).await.status)
            }
        }
    }
}

#[tokio::test]
async fn twelve_attackers_at_other_doors_take_only_their_share() {
    let _turn = TURNS.acquire().await;
    let db = TestDb::new().await;
    let app =
        TestApp::start(PROGRAM, &db, &[UNBOUNDED[0], UNBOUNDED[1], PROXIES, ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]);
    let (tools, mcp, other) = (FakeToolServer::start(), FakeMcpServer::start(), other_account(&db).await);
    let described =
        |n: usize| json!({"name": format!("t{n}"), "description": "x".repeat(4000), "inputSchema": {"type": "object"}});
    mcp.describe((0..200).map(described).collect());
    let words = (0..400).map(|n| format!("word{n}")).collect::<Vec<_>>().join(" ");
    let text_of = json!({"name": "D", "markdownContent": format!("# Words\n\n{words}\n\n").repeat(20)});
    for _ in 0..10 {
        assert_eq!(app.post("/documents", text_of.clone()).await.status, StatusCode::CREATED);
    }
    let remembers = json!({"name": "R", "identifier": "recalls", "coreMemory": {"enabled": true, "recall": true}});
    assert_eq!(app.post("/assistants", remembers).await.status, StatusCode::CREATED);
    let tool =
        |n: usize| json!({"function": {"name": format!("t{n}"), "description": "x".repeat(4000)}, "endpoint": "/t"});
    let large = json!({"name": "L", "url": tools.url(), "toolDefinitions": (0..200).map(tool).collect::<Vec<_>>()});
    for _ in 0..20 {
        assert_eq!(app.post("/tool-servers", large.clone()).await.status, StatusCode::CREATED);
    }
    let environment = app.post("/environments", json!({"name": "E"})).await.body;
    let mcp = exposed(&app, "m", &mcp, json!({})).await;
    let (environment, client) = (text(&environment["_id"]), client(&app).await);
    let doors = Doors { app: &app, tools: &tools, environment, mcp, client, words };
    let hello = json!({"message": "Hello"});
    let ask = || Probe::start(&app, "POST /v1/assistants/default/messages", &other, &hello);
    let usual = ask();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let usual = usual.end();
    let over = Instant::now() + Duration::from_secs(5) * u32::try_from(factor(12)).expect("a number");
    let theirs = ask();
    let again = async |way: usize| {
        let mut answered = HashSet::new();
        while let Some(left) = over.checked_duration_since(Instant::now()) {
            // One that hangs is given up when the time is over.
            answered.extend(tokio::time::timeout(left, doors.attack(way)).await.ok().flatten());
        }
        answered
    };
    let (answered, stall) = longest_stall(&app, join_all((0..12).map(again))).await;
    let took = theirs.end();
    let (median, before, memory) = (took[took.len() / 2], usual[usual.len() / 2], peak_memory(&app));
    println!(
        "{} messages of another account: {median:?} each (alone {before:?}); health {stall:?}; {memory} MiB",
        took.len()
    );
    assert!(stall < STALL && took[took.len() - 1] < Duration::from_secs(5), "{stall:?}, {:?}", took.last());
    assert!(memory < 300, "{memory} MiB");
    // Each door was open, but for the machines where this host has none.
    for (way, answered) in answered.iter().enumerate() {
        let expected = if way == 0 { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
        let opened = |status: &StatusCode| *status == expected || status.is_success();
        assert!(matches!(way, 1..=3 | 9) || answered.is_empty() || answered.iter().any(opened), "{way}: {answered:?}");
    }
}
