//! Files of messages, and the rules of the way out (contract 02 §3, 00 §9).

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use platform_testing::{FakeModelServer, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    document_files::pdf,
    support::{
        PROGRAM, UNBOUNDED, act, agent, app, eventually, factor, finished_of, text, thread_in, thread_until, tool,
        tool_server,
    },
    uploads::upload,
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nnot much of a picture";

/// A server of files that counts who connects.
async fn file_server() -> (String, Arc<AtomicUsize>) {
    file_server_at("127.0.0.1:0").await
}

async fn file_server_at(address: &str) -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind(address).await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    #[expect(clippy::disallowed_methods, reason = "a server of the test, not a task of the platform")]
    tokio::spawn(async move {
        loop {
            let Ok((mut socket, _)) = listener.accept().await else { return };
            counted.fetch_add(1, Ordering::Relaxed);
            let mut head = vec![0; 4096];
            let read = socket.read(&mut head).await.unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..read]).into_owned();
            let address = head.split_whitespace().nth(1).unwrap_or("/");
            let path = address.split('?').next().unwrap_or("/").to_owned();
            let (status, header, body): (&str, String, Vec<u8>) = match path.as_str() {
                "/picture.png" => ("200 OK", "content-type: application/octet-stream".into(), PNG.to_vec()),
                "/notes.txt" => ("200 OK", "content-type: text/plain; charset=utf-8".into(), b"Buy milk.".to_vec()),
                "/told" => ("200 OK", "content-type: image/png".into(), PNG.to_vec()),
                "/untold" => ("200 OK", "content-type: application/octet-stream".into(), b"Buy milk.".to_vec()),
                "/bytes" => ("200 OK", "content-type: application/zip".into(), vec![0xff, 0, 1]),
                "/song.mp3" => ("200 OK", "content-type: audio/mpeg".into(), b"la la".to_vec()),
                "/moved" => ("302 Found", "location: /notes.txt".into(), Vec::new()),
                "/away" => ("302 Found", "location: http://169.254.169.254/latest/meta-data".into(), Vec::new()),
                "/round" => ("302 Found", "location: /round".into(), Vec::new()),
                "/packed" => ("200 OK", "content-encoding: gzip".into(), b"zip".to_vec()),
                "/large" => ("200 OK", "content-type: text/plain".into(), vec![b'x'; 3000]),
                "/empty" => ("200 OK", "content-type: text/plain".into(), Vec::new()),
                _ => ("404 Not Found", "content-type: text/plain".into(), b"no".to_vec()),
            };
            let head =
                format!("HTTP/1.1 {status}\r\n{header}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = socket.write_all(&[head.into_bytes(), body].concat()).await;
        }
    });
    (address, connections)
}

#[tokio::test]
async fn pictures_and_documents_reach_models_that_take_them_and_stay_when_their_address_is_gone() {
    let (files, connections) = file_server().await;
    let model = FakeModelServer::start();
    let providers = std::env::temp_dir().join(format!("providers-files-{}.yaml", std::process::id()));
    let text = format!(
        "providers:\n  - {{name: blind, baseUrl: '{}/v1', models: [{{llm: m, contextWindow: 100000}}]}}\n",
        model.url()
    );
    std::fs::write(&providers, text).expect("written");
    let base = format!("{}/v1", model.url());
    let settings = [
        ("OPENAI_BASE_URL", base.as_str()),
        ("PLATFORM_DEFAULT_PROVIDER", "openai"),
        ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
        ("PLATFORM_PROVIDERS_FILE", providers.to_str().expect("a path")),
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.1"),
    ];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let message = json!({"chatUid": "c", "message": "What is this?", "files": [
        {"name": "picture.png", "url": format!("{files}/picture.png")},
        {"name": "notes.txt", "donwloadUrl": format!("{files}/moved")},
        {"name": "song.mp3", "downloadUrl": format!("{files}/song.mp3")}]});
    let reply = app.post("/assistants/default/messages", message).await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    let shown = &reply.body[0]["content"]["files"];
    assert_eq!(
        (&shown[0]["fileType"], &shown[1]["fileType"], &shown[2]["fileType"]),
        (&json!("image"), &json!("document"), &json!("audio"))
    );
    let fetched = connections.load(Ordering::Relaxed);
    assert_eq!(fetched, 4, "three files, one over a redirect");

    let picture = "data:image/png;base64,iVBORw0KGgpub3QgbXVjaCBvZiBhIHBpY3R1cmU=";
    let parts = json!([
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "text", "text": "[Attached file: notes.txt]\nBuy milk."},
        {"type": "text", "text": "[Attached file: song.mp3 (audio)]"}]);
    assert_eq!(model.recorded()[0].body["messages"], json!([{"role": "user", "content": parts}]));
    // The next turn has them from the store; a model without eyes gets the name.
    for (provider, expected) in [("openai", picture), ("blind", "[Attached file: picture.png (image/png)]")] {
        let again = json!({"chatUid": "c", "message": "And now?", "provider": provider});
        assert_eq!(app.post("/assistants/default/messages", again).await.status, StatusCode::OK);
        let sent = model.recorded().pop().expect("a call").body.to_string();
        assert!(sent.contains(expected), "{provider}: {sent}");
    }
    assert_eq!(connections.load(Ordering::Relaxed), fetched, "nothing is fetched twice");

    // In a delay the files of all messages come together.
    app.post("/assistants", json!({"name": "S", "identifier": "s", "inputDelayMs": 500})).await;
    for name in ["notes.txt", "picture.png"] {
        let message =
            json!({"chatUid": "b", "message": name, "files": [{"name": name, "url": format!("{files}/{name}")}]});
        assert_eq!(app.post("/assistants/s/messages?async=true", message).await.status, StatusCode::OK);
    }
    finished_of(&app, "s", "b").await;
    let sent = model.recorded().pop().expect("a call").body["messages"].clone();
    let parts = json!([
        {"type": "text", "text": "notes.txt\npicture.png"},
        {"type": "text", "text": "[Attached file: notes.txt]\nBuy milk."},
        {"type": "image_url", "image_url": {"url": picture}}]);
    assert_eq!(sent[0]["content"], parts);

    // What a document says is screened as if the user had said it.
    let rules = json!({"enabled": true, "input": [{"name": "milk", "kind": "deny_list", "action": "redact", "config": {"words": ["milk"]}}]});
    app.post("/assistants", json!({"name": "G", "identifier": "g", "guardrailsConfiguration": rules})).await;
    let message = json!({"message": "Read", "files": [{"name": "notes.txt", "url": format!("{files}/notes.txt")}]});
    assert_eq!(app.post("/assistants/g/messages", message).await.status, StatusCode::OK);
    let sent = model.recorded().pop().expect("a call").body["messages"].to_string();
    assert!(sent.contains("Buy [REDACTED:milk]."), "{sent}");
    // No model gets the document itself that says what was redacted, or that nobody could read.
    let broken = b"%PDF-1.7\nmilk, and nothing of a PDF".to_vec();
    for (name, bytes, says) in [
        ("milk.pdf", pdf("Buy milk now"), "[Attached file: milk.pdf]\\nBuy [REDACTED:milk] now"),
        ("broken.pdf", broken, "[Attached file: broken.pdf (application/pdf)]"),
    ] {
        let file = upload(&app, name, bytes).await;
        let message = json!({"message": "Read", "files": [{"name": name, "downloadUrl": file["downloadUrl"]}]});
        assert_eq!(app.post("/assistants/g/messages", message).await.status, StatusCode::OK);
        let sent = model.recorded().pop().expect("a call").body["messages"].to_string();
        assert!(sent.contains(says) && !sent.contains("base64"), "{sent}");
    }
    // A model that reads no PDF gets what it says, and of a long text as much as there may be.
    let report = upload(&app, "report.pdf", pdf("Quarterly figures rose")).await;
    let long = upload(&app, "long.txt", "many words ".repeat(25_000)).await;
    let both = json!({"message": "Read", "provider": "blind", "files": [
        {"name": "report.pdf", "downloadUrl": report["downloadUrl"]},
        {"name": "long.txt", "downloadUrl": long["downloadUrl"]}]});
    assert_eq!(app.post("/assistants/default/messages", both).await.status, StatusCode::OK);
    let sent = model.recorded().pop().expect("a call").body["messages"].to_string();
    assert!(sent.contains("[Attached file: report.pdf]\\nQuarterly figures rose"), "{}", &sent[..2000]);
    assert!(sent.contains("The rest of the file is left out") && sent.len() < 202_000, "{}", sent.len());

    let fetched = connections.load(Ordering::Relaxed);
    let foreign =
        json!({"chatUid": "c", "message": "x", "files": [{"name": "notes.txt", "url": format!("{files}/notes.txt")}]});
    assert_eq!(app.post("/assistants/g/messages", foreign).await.error(), "CHAT_NOT_FOUND");
    assert_eq!(connections.load(Ordering::Relaxed), fetched, "nothing is fetched for a chat that takes nothing");
    std::fs::remove_file(providers).expect("removed");
}

#[tokio::test]
async fn a_file_without_a_type_is_what_its_name_its_address_its_answer_or_its_content_says() {
    let (files, _) = file_server().await;
    let model = FakeModelServer::start();
    let base = format!("{}/v1", model.url());
    let settings = [
        ("OPENAI_BASE_URL", base.as_str()),
        ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.1"),
    ];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    // A name is often a display name.
    let given = [
        ("Our song.mp3", "/told", "audio"),
        ("A picture", "/picture.png?as=a.mp3", "image"),
        ("Another", "/told", "image"),
        ("v1.2 of the list", "/untold", "document"),
        ("Some bytes", "/bytes", "other"),
    ];
    let list: Vec<Value> =
        given.iter().map(|(name, path, _)| json!({"name": name, "donwloadUrl": format!("{files}{path}")})).collect();
    let types = |message: &Value| -> Vec<String> {
        let files = message["content"]["files"].as_array().expect("files").iter();
        files.map(|file| file["fileType"].as_str().expect("a type").to_owned()).collect()
    };
    let expected: Vec<&str> = given.iter().map(|(_, _, kind)| *kind).collect();
    let sent = app.post("/assistants/default/messages", json!({"message": "See", "files": list})).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
    assert_eq!(types(&sent.body[0]), expected, "{}", sent.body);
    let asked = model.recorded().pop().expect("a call").body["messages"].to_string();
    assert!(asked.contains("Buy milk.") && asked.matches("image_url\":{").count() == 2, "{asked}");
    // A thread fetches its files after it was accepted.
    let agent = agent(&app, json!({})).await;
    let task = json!({"message": "See", "files": list});
    let started = app.post(&format!("/agents/{agent}/threads"), task.clone()).await.body;
    let id = started["threadId"].as_str().expect("an id");
    let read = thread_in(&app, id, "completed").await;
    assert_eq!(types(&read["threadContent"][0]), expected);
    act(&app, id, "messages", task).await;
    let read = thread_until(&app, id, |thread| thread["chatHistory"].as_array().is_some_and(|all| all.len() > 3)).await;
    let again = read["threadContent"].as_array().expect("content").iter().rfind(|message| message["role"] == "user");
    assert_eq!(types(again.expect("a message")), expected);
    let asked = model.recorded().pop().expect("a call").body["messages"].to_string();
    assert_eq!(asked.matches("image_url\":{").count(), 4, "{asked}");
}

#[tokio::test]
async fn addresses_that_are_not_public_are_never_called() {
    let (files, connections) = file_server().await;
    let app = app().await;
    let port = files.rsplit(':').next().expect("a port");
    let send = async |app: &TestApp, url: String| {
        let message = json!({"message": "x", "files": [{"name": "a.txt", "url": url}]});
        app.post("/assistants/default/messages", message).await
    };
    let inner = [
        format!("http://127.0.0.1:{port}/notes.txt"),
        format!("http://localhost:{port}/notes.txt"),
        format!("http://LOCALHOST.:{port}/notes.txt"),
        format!("http://127.1:{port}/"),
        format!("http://0x7f000001:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://0.0.0.0:{port}/"),
        format!("http://user@127.0.0.1:{port}/"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "file:///etc/passwd".to_owned(),
        "ftp://example.com/a".to_owned(),
        "not an address".to_owned(),
    ];
    for url in inner {
        let reply = send(&app, url.clone()).await;
        assert_eq!(
            (reply.status, reply.error()),
            (StatusCode::BAD_REQUEST, "URL_NOT_ALLOWED"),
            "{url}: {:?}",
            reply.body
        );
        assert!(reply.body["message"].as_str().is_some_and(|message| message.starts_with("files[0].downloadUrl")));
    }
    assert_eq!(connections.load(Ordering::Relaxed), 0);
    assert_eq!(app.post("/assistants/chats", json!({})).await.body["total"], 0, "nothing was stored");

    let settings = [("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_MAX_UPLOAD_BYTES", "2000")];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    assert_eq!(send(&app, format!("{files}/notes.txt")).await.status, StatusCode::OK, "what is listed passes");
    assert_eq!(send(&app, format!("{files}/away")).await.error(), "URL_NOT_ALLOWED", "a redirect is judged again");
    assert_eq!(send(&app, format!("{files}/round")).await.error(), "URL_NOT_ALLOWED", "a fourth redirect");
    for path in ["packed", "large", "empty", "missing"] {
        let reply = send(&app, format!("{files}/{path}")).await;
        let issue: &Value = &reply.body["details"]["issues"][0]["path"];
        assert_eq!((reply.error(), issue), ("VALIDATION_ERROR", &json!("files[0].downloadUrl")), "{path}");
    }
    let nobody = send(&app, "http://127.0.0.1:1/a".to_owned()).await;
    assert_eq!(nobody.error(), "VALIDATION_ERROR");
}

/// Whether a mount namespace can be made here; it must be where the whole experiment is asked for.
fn may_mount() -> bool {
    let made = std::process::Command::new("unshare").args(["--mount", "true"]).output();
    let may = made.is_ok_and(|output| output.status.success());
    assert!(may || factor(2) == 1, "no mount namespace can be made here, so names that change cannot be tried");
    may
}

/// The platform in a mount namespace of its own, where `/etc/hosts` is this file.
fn app_with_hosts(db: &TestDb, hosts: &Path, settings: &[(&str, &str)]) -> TestApp {
    let program = hosts.with_extension("sh");
    let mount = format!("mount --bind {} /etc/hosts && exec {PROGRAM} \"$@\"", hosts.display());
    std::fs::write(&program, format!("#!/bin/sh\nexec unshare --mount sh -c '{mount}' sh \"$@\"\n")).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("it can be started");
    TestApp::start(program.to_str().expect("a path"), db, settings)
}

#[tokio::test]
async fn a_name_that_is_allowed_when_it_is_looked_at_and_leads_inside_when_it_is_called_is_not_called() {
    if !may_mount() {
        return;
    }
    let (inside, reached) = file_server().await;
    let port = inside.rsplit(':').next().expect("a port");
    let (_, allowed) = file_server_at(&format!("127.0.0.2:{port}")).await;
    let hosts = std::env::temp_dir().join(format!("hosts-{}", std::process::id()));
    // Written in place: what is mounted is this file, not its name.
    let lead_to = |addresses: &[&str]| {
        let line = |address: &&str| format!("{address} there.example\n");
        std::fs::write(&hosts, addresses.iter().map(line).collect::<String>()).expect("written");
    };
    lead_to(&["127.0.0.2"]);
    let db = TestDb::new().await;
    let settings = [&UNBOUNDED[..], &[("PLATFORM_EGRESS_ALLOW", "127.0.0.2")]].concat();
    let app = app_with_hosts(&db, &hosts, &settings);
    let url = format!("http://there.example:{port}");
    let id = tool_server(&app, &url, &[tool("look", "/notes.txt", &json!({}))]).await;
    let called = format!("/tool-servers/{id}/tools/look/test");
    let call = async || app.post(&called, json!({"arguments": {}})).await.body;
    assert_eq!(call().await["success"], true, "what is allowed is called");
    let hook = json!({"url": format!("{url}/notes.txt"), "events": ["*"]});
    let hook = format!("/webhooks/{}", text(&app.post("/webhooks", hook).await.body["_id"]));
    for addresses in [&["127.0.0.1"][..], &["127.0.0.2", "127.0.0.1"], &["::1"], &["10.0.0.1", "127.0.0.2"]] {
        lead_to(addresses);
        let refused = call().await;
        let error = refused["error"].as_str().unwrap_or_default();
        assert!(error.starts_with("URL_NOT_ALLOWED: "), "{addresses:?}: {refused}");
        let message = json!({"message": "x", "files": [{"name": "a.txt", "url": format!("{url}/notes.txt")}]});
        assert_eq!(app.post("/assistants/default/messages", message).await.error(), "URL_NOT_ALLOWED", "{addresses:?}");
        let import = app.post("/tool-servers/import-openapi", json!({"url": format!("{url}/spec.json")})).await;
        assert_eq!(import.error(), "URL_NOT_ALLOWED", "{addresses:?}");
        let sent = text(&app.post(&format!("{hook}/test"), json!({})).await.body["id"]);
        let error = eventually("an attempt", async || {
            let all = app.get(&format!("{hook}/deliveries")).await.body["items"].clone();
            let one = all.as_array()?.iter().find(|of| of["id"] == json!(sent))?;
            one["attempts"][0]["error"].as_str().map(str::to_owned)
        })
        .await;
        assert!(error.contains("is not public"), "{addresses:?}: {error}");
    }
    // The name goes to and fro while it is called.
    let (is_called, before) = (AtomicBool::new(true), allowed.load(Ordering::Relaxed));
    let calls = async {
        for _ in 0..200 * factor(10) {
            call().await;
        }
        is_called.store(false, Ordering::Relaxed);
    };
    let flips = async {
        while is_called.load(Ordering::Relaxed) {
            for address in ["127.0.0.1", "127.0.0.2"] {
                lead_to(&[address]);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    tokio::join!(calls, flips);
    assert!(allowed.load(Ordering::Relaxed) > before, "some calls were made");
    assert_eq!(reached.load(Ordering::Relaxed), 0, "none of them inside");
    for file in [hosts.with_extension("sh"), hosts] {
        std::fs::remove_file(file).expect("removed");
    }
}
