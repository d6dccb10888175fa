//! Starting, stopping, the command line.

use std::{
    io::Read,
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use platform_testing::{FakeModelServer, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Frames, PROGRAM, eventually, start};

/// Runs a command of the program; one that does not end is ended, as an operator would, after two minutes.
fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let child = Command::new(PROGRAM)
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("PLATFORM_ADDR", "127.0.0.1:0")
        .envs(settings.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let id = child.id();
    let (ended, end) = mpsc::channel::<()>();
    thread::spawn(move || {
        if end.recv_timeout(Duration::from_mins(2)) == Err(mpsc::RecvTimeoutError::Timeout) {
            terminate(id);
        }
    });
    let output = child.wait_with_output().expect("its output is read");
    drop(ended);
    output
}

fn terminate(process: u32) {
    let status = Command::new("kill").args(["-TERM", &process.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

#[test]
fn a_wrong_setting_stops_the_start_with_one_line_that_names_it() {
    for (name, value) in [
        ("PLATFORM_ADDR", "nowhere"),
        ("PLATFORM_PUBLIC_URL", "platform.example"),
        ("PLATFORM_PUBLIC_URL", "ftp://platform.example"),
        ("PLATFORM_PUBLIC_URL", "https://platform.example/?a=b"),
        ("PLATFORM_SANDBOX_PUBLIC_DOMAIN", "https://sandboxes.example"),
        ("PLATFORM_EVALUATOR_MODEL", "demo-1"),
        ("PLATFORM_EVALUATOR_MODEL", "demo:demo-2"),
        ("PLATFORM_EVALUATOR_MODEL", "openai:gpt-4o"),
        ("PLATFORM_SECONDARY_MODEL", "nobody:nothing"),
        ("PLATFORM_EMBEDDING_MODEL", "words"),
        ("PLATFORM_EMBEDDING_MODEL", "demo:demo-1"),
        ("PLATFORM_EMBEDDING_MODEL", "local:/no/such/folder"),
        ("PLATFORM_MAX_JSON_BYTES", "0"),
        ("PLATFORM_STREAM_KEEPALIVE", "0s"),
        ("PLATFORM_MODEL_IDLE", "0ms"),
        ("PLATFORM_DATABASE_POOL", "0"),
        ("PLATFORM_SYNC_TIMEOUT", "10 parsecs"),
        ("PLATFORM_ROLE", "worker"),
        ("PLATFORM_BOOTSTRAP_KEY", "short"),
        ("PLATFORM_KEY_PREFIX", "A"),
        ("PLATFORM_LOG", "loud=very=much"),
        ("PLATFORM_LOG", "verbose"),
        ("PLATFORM_CONNECTORS_DIR", "/no/such/folder"),
        ("PLATFORM_RUN_HEARTBEAT", "29s"),
        ("PLATFORM_DEMO_PRICE", "free"),
        ("PLATFORM_SECRET_KEY", "short"),
        ("PLATFORM_SPEECH_MODEL_PATH", "/models/ears"),
        ("PLATFORM_PROVIDERS_FILE", "/no/such/file"),
        ("OPENAI_BASE_URL", "ftp://x"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("DATABASE_URL", "host=/nowhere user=x"),
    ] {
        let output = run(&[], &[(name, value)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "{name}: {said}");
        assert!(said.contains(name), "{name}: {said}");
    }
}

#[test]
fn help_teaches_and_the_openapi_command_prints_the_document() {
    let help = String::from_utf8_lossy(&run(&["--help"], &[]).stdout).into_owned();
    for word in ["serve", "migrate", "accounts", "keys", "openapi", "PLATFORM_DATA_DIR", "OPENAI_API_KEY", "Examples:"]
    {
        assert!(help.contains(word), "{word} is not in the help");
    }
    let document: Value = serde_json::from_slice(&run(&["openapi"], &[]).stdout).expect("JSON");
    assert_eq!(document["info"]["version"], "1.0.0");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SETTINGS.md")).expect("a page");
    let said = run(&["settings"], &[("PLATFORM_ADDR", "nowhere")]);
    assert!(said.stdout == page.as_bytes(), "`just docs` writes docs/SETTINGS.md anew");
}

#[tokio::test]
async fn accounts_are_walls_and_keys_come_from_the_command_line() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let line = |arguments: &[&str]| -> Value {
        let output = run(arguments, &[("DATABASE_URL", db.url()), ("PLATFORM_LOG", "error")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one JSON record")
    };
    let account = line(&["accounts", "create", "--name", "other"]);
    let id = account["clientUID"].as_str().expect("an id");
    let key = line(&["keys", "create", "--account", id, "--name", "theirs"]);
    let theirs = key["key"].as_str().expect("a value").to_owned();
    let mine = app.post("/assistants/default/messages", json!({"message": "secret", "chatUid": "shared-name"})).await;
    assert_eq!(mine.status, StatusCode::OK);
    app.post("/assistants", json!({"name": "Mine", "identifier": "mine"})).await;
    let as_other = |method: reqwest::Method, path: &str| app.anonymous(method, path).bearer_auth(&theirs);
    for path in [
        "/v1/assistants/default/chats/shared-name",
        "/v1/assistants/mine",
        "/v1/assistants/default/chats/shared-name/stream",
    ] {
        assert_eq!(app.send(as_other(reqwest::Method::GET, path)).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let listed = app.send(as_other(reqwest::Method::POST, "/v1/assistants/chats").json(&json!({}))).await;
    assert_eq!(listed.body["total"], 0);
    let own = json!({"message": "theirs", "chatUid": "shared-name"});
    let own = app.send(as_other(reqwest::Method::POST, "/v1/assistants/default/messages").json(&own)).await;
    assert_eq!((own.status, own.body[0]["content"]["message"].as_str()), (StatusCode::OK, Some("theirs")));
}

#[tokio::test]
async fn sigterm_drains_streams_reconnect_and_unfinished_runs_go_on_elsewhere() {
    let db = TestDb::new().await;
    let model = FakeModelServer::start();
    let base = format!("{}/v1", model.url());
    let settings = [
        ("OPENAI_BASE_URL", base.as_str()),
        ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
        ("PLATFORM_SHUTDOWN_GRACE", "2s"),
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
    ];
    let app = TestApp::start(PROGRAM, &db, &settings);
    model.script([platform_testing::Script::words(&["a"]).ending(platform_testing::Ending::Hang, 0)]);
    let chat = start(&app, "Hello").await;
    model.called(1).await;
    let mut frames = Frames::open(&app, &chat, true).await;
    frames.next().await.expect("the state at once");
    app.signal("TERM");
    let last = frames.next().await.expect("a word of farewell");
    assert_eq!((last.event.as_str(), &last.data["code"]), ("reconnect", &json!("SHUTDOWN")));
    assert!(frames.next().await.is_none());
    assert_eq!(app.ended().await, Some(0));

    let next = TestApp::start(PROGRAM, &db, &settings);
    let chat = crate::support::finished(&next, &chat).await;
    assert_eq!(chat["chatContent"][1]["content"]["message"], "Hello from the model.");
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_message_that_is_cut_off_by_a_shutdown_is_answered_with_its_chat_and_what_a_repeat_would_do() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_SHUTDOWN_GRACE", "6s")]);
    let body = json!({"message": "/wait 60s\nHello", "chatUid": "cut"});
    let sent = app.post("/assistants/default/messages", body);
    let stop = async {
        let path = "/assistants/default/chats/cut";
        let is_there = async || (app.get(path).await.status == StatusCode::OK).then_some(());
        crate::support::eventually("the turn begins", is_there).await;
        app.signal("TERM");
    };
    let (told, ()) = tokio::join!(sent, stop);
    assert_eq!((told.status, told.error()), (StatusCode::SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE"), "{}", told.body);
    assert_eq!(told.body["details"]["chatUid"], "cut");
    let message = told.body["message"].as_str().expect("text");
    assert!(message.contains("is stored") && message.contains("Sent again, it is another message"), "{message}");
    assert!(told.body["retryAfter"].is_u64() && !told.header("retry-after").is_empty());
    assert_eq!(app.ended().await, Some(0));
}

#[tokio::test]
async fn an_empty_machine_gets_a_database_a_key_and_an_answer_and_survives_a_kill() {
    let dir = std::env::temp_dir().join(format!("platform-first-start-{}", std::process::id()));
    let begin = || {
        use std::io::{BufRead, BufReader};
        let mut child = Command::new(PROGRAM)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs([
                ("PLATFORM_DATA_DIR", dir.to_str().expect("a path")),
                ("PLATFORM_ADDR", "127.0.0.1:0"),
                ("PLATFORM_LOG", "warn"),
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = lines.next().expect("a line").expect("text");
        let url = first.split_whitespace().find(|word| word.starts_with("http")).expect("an address").to_owned();
        (child, url, lines)
    };
    let data_dir = dir.to_str().expect("a path");
    let alone = run(&["keys", "create"], &[("PLATFORM_DATA_DIR", data_dir)]);
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(said.contains("There is no platform in") && !dir.exists(), "a command makes none: {said}");
    let typo = [("PLATFORM_DATA_DIR", data_dir), ("PLATFORM_LOGS", "x"), ("PLATFORM_LOG", "warn")];
    let mut early = Command::new(PROGRAM)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("PLATFORM_ADDR", "127.0.0.1:0")
        .envs(typo)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let pid = dir.join("postgres/postmaster.pid");
    let server = eventually("a server", async || std::fs::read_to_string(&pid).ok()?.lines().next().map(str::to_owned));
    let server = server.await;
    terminate(early.id());
    assert_eq!(early.wait().expect("it ends").code(), Some(0));
    // One that has ended and was not asked after has no command line any more.
    let runs = std::fs::read(format!("/proc/{server}/cmdline")).is_ok_and(|line| !line.is_empty());
    assert!(!runs, "its PostgreSQL ends with it");
    let mut said = String::new();
    early.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(said.contains("PLATFORM_LOGS") && said.contains("Did you mean PLATFORM_LOG?"), "{said}");

    let (mut child, url, _lines) = begin();
    let key = std::fs::read_to_string(dir.join("bootstrap-key")).expect("the first key");
    let client = reqwest::Client::builder().build().expect("a client");
    let hello = async |url: &str, key: &str| {
        let request = client.post(format!("{url}/v1/assistants/default/messages")).bearer_auth(key);
        request.json(&json!({"message": "Hello"})).send().await.expect("an answer").status()
    };
    assert_eq!(hello(&url, &key).await, StatusCode::OK);
    let second = run(&[], &[("PLATFORM_DATA_DIR", dir.to_str().expect("a path"))]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("in use by process") && said.contains("PLATFORM_DATA_DIR"), "{said}");
    let made =
        run(&["keys", "create"], &[("PLATFORM_DATA_DIR", dir.to_str().expect("a path")), ("PLATFORM_LOG", "error")]);
    let made: Value = serde_json::from_slice(&made.stdout).expect("a key beside the running server");
    assert_eq!(hello(&url, made["key"].as_str().expect("a value")).await, StatusCode::OK);

    child.kill().expect("killed");
    child.wait().expect("gone");
    let (mut child, url, _lines) = begin();
    assert_eq!(hello(&url, &key).await, StatusCode::OK, "the key of the first start still works");
    terminate(child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    std::fs::remove_dir_all(dir).expect("removed");
}

#[tokio::test]
async fn a_stopped_worker_is_taken_over_and_changes_nothing_when_it_wakes() {
    let db = TestDb::new().await;
    let model = FakeModelServer::start();
    let base = format!("{}/v1", model.url());
    let settings = [
        ("OPENAI_BASE_URL", base.as_str()),
        ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
        ("PLATFORM_RUN_LEASE", "1s"),
        ("PLATFORM_RUN_HEARTBEAT", "300ms"),
    ];
    let first = TestApp::start(PROGRAM, &db, &settings);
    let pause = Duration::from_millis(100);
    model.script([platform_testing::Script::words(&["slow "; 20]).paced(pause)]);
    let chat = start(&first, "Hello").await;
    model.called(1).await;
    first.signal("STOP");
    let second = TestApp::start(PROGRAM, &db, &settings);
    let taken = crate::support::finished(&second, &chat).await;
    assert_eq!(taken["chatContent"][1]["content"]["message"], "Hello from the model.");
    first.signal("CONT");
    // It reads its stream to the end and tries to store it: the fence is another's by then.
    model.all_closed().await;
    assert_eq!(crate::support::say(&first, "Awake?").await.status, StatusCode::OK);
    let after = second.get(&format!("/assistants/default/chats/{chat}")).await.body;
    assert_eq!(after, taken, "the zombie changed something");
    assert_eq!(model.calls(), 3, "two leases of the turn, and one more turn");
}

#[tokio::test]
async fn the_log_has_one_json_line_a_request_and_never_a_secret() {
    let db = TestDb::new().await;
    let log = std::env::temp_dir().join(format!("platform-log-{}", std::process::id()));
    let model = FakeModelServer::start();
    let base = format!("{}/v1", model.url());
    let settings = [
        ("OPENAI_BASE_URL", base.as_str()),
        ("OPENAI_API_KEY", "sk-canary-provider"),
        ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
        ("PLATFORM_LOG", "trace"),
    ];
    let app = TestApp::start_logging(PROGRAM, &db, &settings, &log);
    let made = app.post("/api-keys", json!({"name": "canary"})).await;
    let value = made.body["key"].as_str().expect("a value").to_owned();
    let request = app.anonymous(reqwest::Method::GET, "/v1/models").bearer_auth(&value);
    assert_eq!(app.send(request.header("x-request-id", "findme")).await.status, StatusCode::OK);
    let secret_text = "canary-of-the-user";
    assert_eq!(crate::support::say(&app, secret_text).await.status, StatusCode::OK);
    let key = app.key().to_owned();
    drop(app);
    let text = std::fs::read_to_string(&log).expect("a log");
    std::fs::remove_file(&log).expect("removed");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let found: Vec<&Value> =
        lines.iter().filter(|line| line["request_id"] == "findme" && line["status"] == 200).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["message"], "GET /v1/models was answered with 200.");
    assert!(found[0]["micros"].is_u64() && found[0]["caller"].is_string());
    let own = lines.iter().filter(|line| line["target"].as_str().is_some_and(|target| target.starts_with("platform")));
    let own: String = own.map(ToString::to_string).collect();
    for secret in ["sk-canary-provider", value.as_str(), key.as_str(), secret_text] {
        assert!(!own.contains(secret), "the log tells {secret}");
    }
}
