//! Every door that takes an address: what it names itself, and what a redirect there names (contract 01 §7).

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use platform_testing::TestApp;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{
    integrations::{connectors, pack},
    support::{UNBOUNDED, agent, app_with, eventually, tool},
    triggers::server_of,
};

/// Reads a request to its end, since what is left unread may take the answer with it; its path.
fn request(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(first.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// A server that sends whoever asks to another address; the first parts of the paths that were asked for.
fn redirects(to: String) -> (String, Arc<Mutex<BTreeSet<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (url, asked) = (format!("http://{}", listener.local_addr().expect("an address")), Arc::default());
    let seen: Arc<Mutex<BTreeSet<String>>> = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let path = request(&mut stream).unwrap_or_default();
            seen.lock().expect("lock").extend(path.split(['/', '?']).nth(1).map(str::to_owned));
            let answer = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (url, asked)
}

/// A server that nobody is to reach; how often somebody did.
fn inner() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.2:0").expect("a port");
    let (url, visits) =
        (format!("http://{}", listener.local_addr().expect("an address")), Arc::new(AtomicUsize::new(0)));
    let counts = Arc::clone(&visits);
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    (url, visits)
}

/// Doors that call an address when they are given it, or soon after.
const DOORS: [&str; 14] = [
    "audioUrl",
    "callbackUrl",
    "files",
    "http-request",
    "mcp",
    "openapi",
    "pack",
    "read-file",
    "rss",
    "tenant-mcp",
    "token",
    "tool",
    "webhook",
    "webhookUrl",
];

/// Goes through a door; all that was answered.
async fn through(app: &TestApp, door: &str, url: &str) -> String {
    let said = Mutex::new(String::new());
    let post = async |path: &str, body: Value| {
        let reply = app.post(path, body).await;
        said.lock().expect("lock").push_str(&reply.body.to_string());
        reply
    };
    let say = async |assistant: &str, words: String| {
        post(&format!("/assistants/{assistant}/messages"), json!({"message": words})).await
    };
    let call = async |settings: Value| {
        let made = post("/tool-servers", settings).await.body;
        post(&format!("/tool-servers/{}/tools/x/test", made["_id"].as_str().unwrap_or_default()), json!({})).await
    };
    let tools = json!([tool("x", "/", &json!({}))]);
    match door {
        "audioUrl" => post("/speech-to-text", json!({"audioUrl": url})).await,
        "callbackUrl" => {
            let of = agent(app, json!({"name": "A"})).await;
            post(&format!("/agents/{of}/threads"), json!({"message": "Work", "callbackUrl": url})).await
        }
        "webhookUrl" => {
            let made = post("/agents", json!({"name": "A", "webhookUrl": url})).await.body;
            post(&format!("/agents/{}/threads", made["_id"].as_str().unwrap_or_default()), json!({"message": "Work"}))
                .await
        }
        "webhook" => {
            let made = post("/webhooks", json!({"url": url, "events": ["*"]})).await.body;
            post(&format!("/webhooks/{}/test", made["_id"].as_str().unwrap_or_default()), json!({})).await
        }
        "files" => {
            let file = json!({"name": "a.txt", "downloadUrl": url});
            post("/assistants/default/messages", json!({"message": "Read it", "files": [file]})).await
        }
        "http-request" => say("doors", format!("/tool http_request {}", json!({"method": "GET", "url": url}))).await,
        "read-file" => say("doors", format!("/tool read_file {}", json!({"downloadUrl": url}))).await,
        "mcp" => post("/tool-servers", json!({"name": "M", "type": "mcp", "url": url})).await,
        "tenant-mcp" => post("/tenant-mcp?assistantId=doors&tenantId=acme", json!({"url": url, "name": "M"})).await,
        "pack" => {
            let given = json!({"authScheme": "API_KEY", "accountFields": {"key": "good-key"}});
            post("/integrations/crm/connect", given).await
        }
        "openapi" => post("/tool-servers/import-openapi", json!({"url": url})).await,
        "rss" => {
            let (of, server) = (agent(app, json!({"name": "A"})).await, server_of(app, "rss").await);
            let body = json!({"toolServerId": server, "triggerSlug": "new_item", "agentId": of, "triggerConfig": {"url": url}});
            post("/triggers", body).await
        }
        "token" => {
            let auth = json!({"authenticationMethod": "oauth2", "clientId": "c", "clientSecret": "s", "refreshTokenEndpoint": url, "grant_type": "client_credentials"});
            call(json!({"name": "T", "url": "https://a.example", "authenticationConfig": auth, "toolDefinitions": tools})).await
        }
        "tool" => call(json!({"name": "T", "url": url, "toolDefinitions": tools})).await,
        other => panic!("nobody goes through {other}"),
    };
    said.into_inner().expect("lock")
}

#[tokio::test]
async fn no_door_leads_to_an_inner_address_neither_by_its_name_nor_by_a_redirect() {
    let (inner, visits) = inner();
    let (redirecting, asked) = redirects(inner.clone());
    for base in [inner.as_str(), &redirecting] {
        let directory = connectors("doors", &pack(&format!("{base}/pack")));
        let directory = directory.display().to_string();
        let settings = [("PLATFORM_EGRESS_ALLOW", "127.0.0.1"), ("PLATFORM_CONNECTORS_DIR", directory.as_str())];
        let app = app_with(&[&UNBOUNDED[..], &settings].concat()).await;
        let assistant = json!({"name": "Doors", "identifier": "doors", "approvalTools": ["none"],
            "availableToolsGroupsUids": ["builtin-http", "builtin-files"],
            "accessConfiguration": {"externalAccess": true}, "tenantMcpConfig": {"enabled": true}});
        assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
        // What is followed later than its redirect comes is followed by the end of the second pass.
        for _ in 0..2 {
            asked.lock().expect("lock").clear();
            for door in DOORS {
                let said = through(&app, door, &format!("{base}/{door}")).await;
                assert!(base == redirecting || said.contains("URL_NOT_ALLOWED"), "{door}: {said}");
            }
            for door in DOORS.iter().filter(|_| base == redirecting) {
                let called = async || asked.lock().expect("lock").contains(*door).then_some(());
                eventually(&format!("a call of {door}"), called).await;
            }
        }
    }
    assert_eq!(visits.load(Ordering::Relaxed), 0);
}
