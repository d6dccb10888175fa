//! What an operator sees and does: metrics, health, upgrade, backup.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use diesel_async::SimpleAsyncConnection;
use platform_testing::{FakeCollector, FakeMcpServer, FakeModelServer, FakeToolServer, Script, Span, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    mcp_gateway::{app_on, called, exposed, profile},
    support::{
        Frames, PROGRAM, agent, eventually, finished, finished_of, granted, say, start, text, thread, thread_until,
        tool, tool_server,
    },
    triggers::{server_of, trigger},
    uploads::upload,
};

/// An address that nobody listens on.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").to_string()
}

#[tokio::test]
async fn what_happens_is_counted_where_an_operator_looks_for_it() {
    let addr = free_address();
    let settings =
        [("PLATFORM_METRICS", "on"), ("PLATFORM_METRICS_ADDR", addr.as_str()), ("PLATFORM_DEMO_PRICE", "1:2")];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let read = async || {
        let reply = reqwest::get(format!("http://{addr}/metrics")).await.expect("an answer");
        assert_eq!(reply.status(), StatusCode::OK);
        assert_eq!(reply.headers()["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
        let text = reply.text().await.expect("text");
        assert!(text.ends_with("# EOF\n"), "it is whole");
        text
    };
    let value = |text: &str, sample: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let file = upload(&app, "a.txt", b"twelve bytes".as_slice()).await;
    let files = json!([{"name": "a.txt", "downloadUrl": file["downloadUrl"]}]);
    let hello = json!({"message": "Hello", "files": files, "skipSummarization": true});
    assert_eq!(app.post("/assistants/default/messages", hello).await.status, StatusCode::OK);
    app.get("/nothing").await;
    let text = read().await;
    let model = "provider=\"demo\",model=\"demo-1\"";
    for (sample, expected) in [
        (format!("platform_model_calls_total{{{model},operation=\"turn\",outcome=\"ok\"}}"), 1.0),
        (format!("platform_model_tokens_total{{{model},kind=\"output\"}}"), 3.0),
        (
            "platform_http_requests_total{method=\"POST\",route=\"/v1/assistants/{identifier}/messages\",status=\"200\"}"
                .to_owned(),
            1.0,
        ),
        ("platform_http_requests_total{method=\"GET\",route=\"(none)\",status=\"404\"}".to_owned(), 1.0),
        ("platform_streams_open".to_owned(), 0.0),
        ("platform_database_connections{state=\"waiting\"}".to_owned(), 0.0),
    ] {
        assert_eq!(value(&text, &sample), Some(expected), "{sample}: {text}");
    }
    let cost = value(&text, &format!("platform_model_cost_usd_total{{{model}}}")).expect("a cost");
    assert!(cost > 6e-6, "three tokens at two dollars a million: {cost}");
    let stored = |text: &str, of: &str| {
        let ours = text.lines().find_map(|line| line.strip_prefix(&format!("{of}{{account=\""))?.split_once("\"} "));
        ours.map(|(_, figure)| figure.to_owned())
    };
    assert_eq!(stored(&text, "platform_files").as_deref(), Some("1"), "{text}");
    assert_eq!(stored(&text, "platform_files_size_bytes").as_deref(), Some("12"), "{text}");
    assert_eq!(stored(&text, "platform_message_files_size_bytes").as_deref(), Some("12"), "{text}");

    // A thread that sleeps, a stream, and a call that is broken off.
    let agent = agent(&app, json!({})).await;
    let paused = json!({"message": "Hi", "state": "paused"});
    let thread = app.post(&format!("/agents/{agent}/threads"), paused).await.body["threadId"].clone();
    let until = json!({"until": 4_102_444_800_000_i64});
    app.post(&format!("/agents/threads/{}/pause", thread.as_str().expect("an id")), until).await;
    let sent = json!({"message": format!("/delay 100ms\n/say {}", "word ".repeat(300)), "chatUid": "slow"});
    app.post("/assistants/default/messages?async=true", sent).await;
    let mut frames = Frames::open(&app, "slow", true).await;
    // The model is being asked when its text grows.
    while frames.next().await.expect("a frame").event != "delta" {}
    let text = read().await;
    assert_eq!(value(&text, "platform_streams_open"), Some(1.0), "{text}");
    assert_eq!(value(&text, "platform_runs{kind=\"chat\",state=\"working\"}"), Some(1.0), "{text}");
    assert_eq!(value(&text, "platform_runs_here"), Some(1.0));
    app.post("/assistants/default/chats/slow/stop", json!({})).await;
    let dropped = format!("platform_model_calls_total{{{model},operation=\"turn\",outcome=\"dropped\"}}");
    eventually("the call that was stopped is counted", async || value(&read().await, &dropped)).await;
}

#[tokio::test]
async fn traces_say_where_the_time_went_and_not_what_was_said() {
    let (collector, tools, db) = (FakeCollector::start(), FakeToolServer::start(), TestDb::new().await);
    let settings = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
        ("PLATFORM_DEMO_PRICE", "1:2"),
    ];
    let app = TestApp::start(PROGRAM, &db, &settings);
    let server = tool_server(&app, tools.url(), &[tool("look_up", "/echo", &json!({}))]).await;
    let helper = json!({"name": "Helper", "identifier": "helper", "availableToolsGroupsUids": [server]});
    app.post("/assistants", helper).await;
    let ours = "4bf92f3577b34da6a3ce929d0e0e4736";
    let asked = json!({"message": "/tool look_up {}", "chatUid": "traced", "skipSummarization": true});
    let request = app.request(reqwest::Method::POST, "/assistants/helper/messages").json(&asked);
    let sent = app.send(request.header("traceparent", format!("00-{ours}-00f067aa0ba902b7-01"))).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
    let chat = start(&app, "/fail 500\ncanary").await;
    finished(&app, &chat).await;
    let periodic = json!({"enabled": true, "cronExpression": "0 4 1 1 *", "message": "Tick"});
    let clockwork = agent(&app, json!({"periodicExecution": periodic})).await;
    for times in 1..=2 {
        db.run("UPDATE runs SET due = now() WHERE kind = 'agent-schedule'").await;
        let path = format!("/agents/{clockwork}/threads?state=completed");
        let begun = async || (app.get(&path).await.body["total"] == times).then_some(());
        eventually("the thread of its time", begun).await;
    }
    app.signal("TERM");
    assert_eq!(app.ended().await, Some(0));
    // What another process carries out is in the trace of the request all the same.
    let role = |role| TestApp::start(PROGRAM, &db, &[&settings[..], &[("PLATFORM_ROLE", role)]].concat());
    let (api, worker) = (role("api"), role("worker"));
    let theirs = "0af7651916cd43dd8448eb211c80319c";
    let request = api.request(reqwest::Method::POST, "/assistants/helper/messages?async=true");
    let asked = json!({"message": "Hi", "chatUid": "elsewhere", "skipSummarization": true});
    let sent = api.send(request.json(&asked).header("traceparent", format!("00-{theirs}-b7ad6b7169203331-01"))).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
    finished_of(&api, "helper", "elsewhere").await;
    for process in [worker, api] {
        process.signal("TERM");
        assert_eq!(process.ended().await, Some(0));
    }

    let spans = collector.spans();
    let of = |span: &Span, name: &str| span.attributes.get(name).cloned().unwrap_or_default();
    let path = |span: &Span| {
        let mut names = vec![span.name.clone()];
        let mut parent = span.parent.clone();
        while let Some(span) = spans.iter().find(|span| span.id == parent) {
            names.push(span.name.clone());
            parent.clone_from(&span.parent);
        }
        names.reverse();
        names.join(" > ")
    };
    let turn = "POST /v1/assistants/{identifier}/messages > run chat > invoke_agent";
    let traced: Vec<&Span> = spans.iter().filter(|span| span.trace == ours).collect();
    let mut paths: Vec<String> = traced.iter().map(|span| path(span)).collect();
    paths.sort();
    let expected = [
        "POST /v1/assistants/{identifier}/messages".to_owned(),
        "POST /v1/assistants/{identifier}/messages > run chat".to_owned(),
        format!("{turn} helper"),
        format!("{turn} helper > chat demo-1"),
        format!("{turn} helper > chat demo-1"),
        format!("{turn} helper > execute_tool look_up"),
    ];
    assert_eq!(paths, expected);
    let call = spans.iter().find(|span| span.trace == theirs && span.name.starts_with("chat "));
    assert_eq!(call.map(path), Some(format!("{turn} helper > chat demo-1")));
    // What begins by the clock is a trace of its own each time, not one that never ends.
    let begun = spans.iter().filter(|span| span.name == "run agent-schedule");
    assert_eq!(begun.map(path).collect::<Vec<_>>(), ["run agent-schedule"; 2]);
    assert_eq!(spans.iter().filter(|span| path(span).starts_with("run agent-schedule > run thread >")).count(), 4);
    for span in &traced {
        let expected: &[(&str, &str)] = match span.name.as_str() {
            "chat demo-1" => &[
                ("gen_ai.operation.name", "chat"),
                ("gen_ai.provider.name", "demo"),
                ("gen_ai.request.model", "demo-1"),
                ("gen_ai.response.model", "demo-1"),
            ],
            "execute_tool look_up" => &[("gen_ai.operation.name", "execute_tool"), ("gen_ai.tool.name", "look_up")],
            "invoke_agent helper" => &[("gen_ai.agent.name", "helper"), ("gen_ai.conversation.id", "traced")],
            "run chat" => &[("platform.run.attempt", "1")],
            _ => &[("http.response.status_code", "200"), ("http.request.method", "POST")],
        };
        for (name, value) in
            expected.iter().chain(&[("service.name", "platform-gateway"), ("deployment.environment", "test")])
        {
            assert_eq!(of(span, name), *value, "{name} of {span:?}");
        }
        let took: Option<u64> = of(span, "gen_ai.usage.output_tokens").parse().ok();
        assert_eq!(took.is_some_and(|tokens| tokens > 0), span.name == "chat demo-1", "{span:?}");
    }
    let failed: Vec<&Span> = spans.iter().filter(|span| span.failed).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(path(failed[0]), format!("{turn} default > chat demo-1"));
    assert_eq!(of(failed[0], "error.type"), "UNAVAILABLE");
    let all = format!("{spans:?}");
    for secret in ["canary", "/tool look_up", "ak-"] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
}

#[tokio::test]
async fn health_says_when_nobody_works_or_no_provider_answers() {
    let db = TestDb::new().await;
    let model = FakeModelServer::start();
    let base = format!("{}/v1", model.url());
    let settings = [
        ("PLATFORM_ROLE", "api"),
        ("OPENAI_BASE_URL", base.as_str()),
        ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
        ("PLATFORM_MODEL_ATTEMPTS", "1"),
    ];
    let app = TestApp::start(PROGRAM, &db, &settings);
    let health = app.get("/health").await;
    assert_eq!((health.status, &health.body["status"]), (StatusCode::OK, &json!("ok")), "{}", health.body);
    for _ in 0..10 {
        model.script([Script::refusal(500)]);
        assert_eq!(say(&app, "Hello").await.status, StatusCode::BAD_GATEWAY);
    }
    app.post("/assistants/default/messages?async=true", json!({"message": "Hello", "chatUid": "waits"})).await;
    let ready = app.send(app.anonymous(reqwest::Method::GET, "/readyz")).await;
    assert_eq!(ready.status, StatusCode::OK, "it can answer all the same");
    db.run("UPDATE runs SET due = now() - interval '2 minutes'").await;
    let degraded = async || {
        let health = app.get("/health").await;
        let checks = &health.body["checks"];
        let expected = [&json!("ok"), &json!("degraded"), &json!("down")];
        ([&checks["database"], &checks["queue"], &checks["provider"]] == expected)
            .then_some((health.status, health.body["status"].clone()))
    };
    let said = eventually("the health is what it is", degraded).await;
    assert_eq!(said, (StatusCode::OK, json!("degraded")));
}

/// Everything a database of some age holds; what of it is compared later.
async fn furnish(app: &TestApp) -> Vec<serde_json::Value> {
    let tier = json!({"tierId": "pro", "name": "Pro", "isDefault": true, "rules": [
        {"scope": "tenant", "metric": "tokens", "windowUnit": "month", "limit": 1000}]});
    app.post("/tenant-admin/tiers", tier).await;
    let chat = json!({"message": "Hello", "chatUid": "kept", "tenantId": "acme", "skipSummarization": true});
    assert_eq!(app.post("/assistants/default/messages", chat).await.status, StatusCode::OK);
    let agent = agent(app, json!({"name": "Kept"})).await;
    let thread = thread(app, &agent, "Work").await;
    thread_until(app, &thread, |thread| thread["state"] == "completed").await;
    let secret = json!({"authenticationMethod": "jwt", "token": "canary"});
    let server = json!({"name": "Kept", "url": "https://a.example", "authenticationConfig": secret});
    assert_eq!(app.post("/tool-servers", server).await.status, StatusCode::CREATED);
    seen(app).await
}

async fn seen(app: &TestApp) -> Vec<serde_json::Value> {
    let mut seen = Vec::new();
    for path in [
        "/assistants/default/chats/kept",
        "/agents/threads",
        "/agents",
        "/tool-servers",
        "/tenants/acme/costs",
        "/tenant-usage/acme",
    ] {
        let reply = app.get(path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.body);
        seen.push(reply.body);
    }
    seen
}

#[tokio::test]
async fn a_database_of_an_older_version_comes_up_to_date_and_keeps_what_it_holds() {
    let db = TestDb::new().await;
    let before = furnish(&TestApp::start(PROGRAM, &db, &[])).await;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let mut migrations: Vec<_> =
        std::fs::read_dir(directory).expect("migrations").map(|entry| entry.expect("one").path()).collect();
    migrations.sort();
    let read = |migration: &Path, file: &str| std::fs::read_to_string(migration.join(file)).expect("a migration");
    let newer = migrations.iter().rposition(|migration| read(migration, "up.sql").contains("chats")).expect("one");
    for migration in migrations[newer..].iter().rev() {
        db.run(&format!("BEGIN; {}; COMMIT", read(migration, "down.sql"))).await;
    }
    db.run(&format!(
        "DELETE FROM __diesel_schema_migrations WHERE version IN (
        SELECT version FROM __diesel_schema_migrations ORDER BY version DESC LIMIT {})",
        migrations.len() - newer
    ))
    .await;
    // Somebody uses a table that is to change: others who write to it do not wait until they are done.
    let db = Arc::new(db);
    let handle = db.connect();
    let mut user = handle.conn().await.expect("a connection");
    user.batch_execute("BEGIN; LOCK TABLE chats IN ROW EXCLUSIVE MODE").await.expect("locked");
    let starting = [0, 1].map(|_| {
        let db = Arc::clone(&db);
        tokio::task::spawn_blocking(move || TestApp::start(PROGRAM, &db, &[]))
    });
    let waits = "SELECT count(*) AS n FROM pg_locks WHERE relation = 'chats'::regclass AND NOT granted";
    eventually("a migration waits", async || (db.number(waits).await > 0).then_some(())).await;
    let another = db.run("UPDATE chats SET archived = archived");
    tokio::time::timeout(Duration::from_secs(20), another).await.expect("nobody waits behind a migration");
    user.batch_execute("COMMIT").await.expect("done");
    let starting = futures_util::future::join_all(starting).await.into_iter().map(|app| app.expect("it starts"));
    let starting: Vec<_> = starting.collect();
    for app in &starting {
        assert_eq!(seen(app).await, before);
    }
    let project = starting[0].post("/projects", json!({"name": "p", "identifier": "p"})).await;
    assert_eq!(project.status, StatusCode::CREATED, "what is new is there");
}

#[tokio::test]
async fn what_was_kept_before_it_had_a_type_is_read_by_its_type() {
    let db = TestDb::new().await;
    let before = TestApp::start(PROGRAM, &db, &[]);
    before.post("/assistants", json!({"name": "A", "identifier": "a"})).await;
    let agent = crate::support::agent(&before, json!({"assistantSpecialization": {"presets": "Be brief."}})).await;
    drop(before);
    db.run(
        r#"DELETE FROM __diesel_schema_migrations WHERE version IN ('20261122091600', '20261122091700');
        UPDATE assistants SET settings = settings || '{
            "tenantIntegrationsConfig": {"enabled": true, "identityMode": "SIGNED", "apps": [5, {"app": "slack", "tools": [1, "post"]}]},
            "tenantMcpConfig": {"enabled": "yes", "maxServers": -1, "maxToolsPerServer": 7}}';
        UPDATE agents SET settings = settings || '{"evaluationConfig": {"customCriteria": [["a", "b"]]},
            "assistantSpecialization": {"presets": "Be brief.", "identifier": 5, "contextManagement": [3, true]}}';
        UPDATE agent_versions SET settings = agents.settings FROM agents WHERE id = agent_id"#,
    )
    .await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let assistant = app.get("/assistants/a").await.body;
    let apps = json!([{"app": "slack", "tools": ["post"], "triggers": []}]);
    let integrations = json!({"enabled": true, "identityMode": "signed", "apps": apps});
    let servers = json!({"enabled": false, "maxServers": 10, "maxToolsPerServer": 7});
    assert_eq!(
        (&assistant["tenantIntegrationsConfig"], &assistant["tenantMcpConfig"]),
        (&integrations, &servers),
        "{assistant}"
    );
    let read = app.get(&format!("/agents/{agent}")).await.body;
    assert_eq!(read["assistantSpecialization"], json!({"presets": "Be brief."}), "{read}");
    assert_eq!(read["evaluationConfig"], json!({"customCriteria": []}));
    let thread = crate::support::thread(&app, &agent, "Work").await;
    crate::support::thread_in(&app, &thread, "completed").await;
}

#[tokio::test]
async fn what_is_kept_for_a_time_goes_when_that_is_over_and_not_before() {
    let (db, mcp, receiver) = (TestDb::new().await, FakeMcpServer::start(), FakeToolServer::start());
    let mut app = app_on(&db, &[("PLATFORM_MCP_AUDIT_DAYS", "2")]);
    let server = exposed(&app, "s", &mcp, json!({})).await;
    profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let hears = json!({"url": format!("{}/echo/hook", receiver.url()), "events": ["chat.completed"]});
    assert_eq!(app.post("/webhooks", hears).await.status, StatusCode::CREATED);
    app.post("/assistants", json!({"name": "Helper", "identifier": "helper"})).await;
    let hook = trigger(&app, &server_of(&app, "webhook").await, "webhook", json!({"assistantId": "helper"})).await;
    let url = text(&hook["webhookUrl"]).strip_prefix(app.url()).expect("ours").to_owned();
    for n in 0..2 {
        called(&app, app.key(), "", "s__echo", json!({"n": n})).await;
        let sent = app.anonymous(Method::POST, &url).json(&json!({"n": n}));
        assert_eq!(app.send(sent).await.status, StatusCode::ACCEPTED);
    }
    let tables = [
        ("mcp_audit", "id", "timestamp_ms", 2),
        ("trigger_events", "id", "received_ms", 30),
        ("trigger_seen", "event_id", "seen_ms", 7),
        ("webhook_deliveries", "id", "created_ms", 30),
    ];
    let count = async |table: &str| db.number(&format!("SELECT count(*) AS n FROM {table}")).await;
    for (table, id, time, days) in tables {
        eventually(table, async || (count(table).await == 2).then_some(())).await;
        let of = |which: &str, hours: i64| {
            let (age, row) = ((days * 24 + hours) * 3_600_000, format!("SELECT {which}({id}) FROM {table}"));
            format!("UPDATE {table} SET {time} = {time} - {age} WHERE {id} = ({row});")
        };
        db.run(&(of("min", 1) + &of("max", -1))).await;
    }
    app.crash();
    for (table, ..) in tables {
        eventually(table, async || (count(table).await == 1).then_some(())).await;
    }
}

#[tokio::test]
async fn a_backup_that_is_restored_elsewhere_holds_everything() {
    let Some(programs) = postgres_programs() else { return };
    let (db, other) = (TestDb::new().await, TestDb::new().await);
    let before = furnish(&TestApp::start(PROGRAM, &db, &[])).await;
    let file = std::env::temp_dir().join(format!("backup-{}.dump", std::process::id()));
    let file = file.to_str().expect("a path");
    for (program, arguments) in [
        ("pg_dump", ["--format=custom", "--file", file, "--dbname", db.url()].as_slice()),
        ("pg_restore", &["--clean", "--if-exists", "--no-owner", "--dbname", other.url(), file]),
    ] {
        let output = tokio::process::Command::new(programs.join(program)).args(arguments).output().await.expect("run");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // The same master key: `TestApp` has but one.
    let restored = TestApp::start(PROGRAM, &other, &[]);
    assert_eq!(seen(&restored).await, before);
    let again = json!({"message": "And now?", "chatUid": "kept", "tenantId": "acme"});
    assert_eq!(restored.post("/assistants/default/messages", again).await.status, StatusCode::OK);
    let _ = std::fs::remove_file(file);
}

/// Where the programs of an installed PostgreSQL are.
fn postgres_programs() -> Option<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = installed.map(|entry| entry.path().join("bin")).collect();
    found.sort();
    let found = found.into_iter().rev().find(|bin| bin.join("pg_dump").exists() && bin.join("pg_restore").exists());
    if found.is_none() {
        eprintln!("There is no pg_dump here: a backup is not tried.");
    }
    found
}

/// Everything in a directory, as text.
fn everything_in(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            text.push_str(&everything_in(&path));
        } else if path.is_file() && entry.file_name() != "bootstrap-key" {
            text.push_str(&String::from_utf8_lossy(&std::fs::read(&path).expect("a file")));
        }
    }
    text
}

/// What is given out of other kinds of secrets, of which those that are taken in hold the word `kanarie`.
async fn secrets_of_every_other_kind(app: &TestApp) -> Vec<String> {
    let make = async |path: &str, body: Value| {
        let made = app.post(path, body).await;
        assert!(made.status.is_success(), "{path}: {}", made.body);
        made.body
    };
    let variables = json!({"OWN": "kanarie-variable"});
    let environment = json!({"name": "e", "envVars": variables, "sandboxConfig": {"envVars": variables}});
    let environment = text(&make("/environments", environment).await["_id"]);
    let worker = agent(app, json!({})).await;
    let path = format!("/environments/{environment}/connections/agent/{worker}");
    let own = app.send(app.request(Method::PUT, &path).json(&json!({"envVars": variables}))).await;
    assert!(own.status.is_success(), "{}", own.body);
    let app_fields = json!({"clientId": "c", "clientSecret": "kanarie-of-an-app"});
    make("/integrations/github/connect", json!({"authScheme": "OAUTH2", "appFields": app_fields})).await;
    let app_fields =
        json!({"clientId": "c", "clientSecret": "kanarie-of-slack", "signingSecret": "kanarie-that-signs"});
    make("/integrations/slack/connect", json!({"authScheme": "OAUTH2", "appFields": app_fields})).await;
    let signs = json!({"agentId": worker, "triggerConfig": {"secret": "kanarie-of-a-hook"}});
    let hook = trigger(app, &server_of(app, "webhook").await, "webhook", signs).await;
    let default = make("/webhooks/default-secret/rotate", json!({})).await;
    let webhook = make("/webhooks", json!({"url": "https://93.184.216.34/", "events": ["*"]})).await;
    let rotated = make(&format!("/webhooks/{}/rotate-secret", text(&webhook["_id"])), json!({})).await;
    let client = json!({"name": "c", "redirectUris": ["https://a.b/"], "confidential": true});
    let client = make("/oauth-clients", client).await;
    let user = granted(app, "ann", "member", None).await;
    let hook = text(&hook["webhookUrl"]).rsplit('/').next().expect("a token").to_owned();
    let signed = [&webhook["secret"], &rotated["secret"], &default["secret"], &client["clientSecret"]].map(text);
    [hook, user.access, user.refresh].into_iter().chain(signed).collect()
}

#[tokio::test]
async fn no_secret_is_on_the_disk_not_even_in_the_write_ahead_log() {
    let home = std::env::temp_dir().join(format!("platform-secrets-{}", std::process::id()));
    let app = TestApp::start_alone(PROGRAM, &home, &[("PLATFORM_RATE_FULL", "0")]);
    let mut given = vec![app.key().to_owned()];
    for n in 0..50 {
        let secret = |what: &str| format!("kanarie-{what}-{n}");
        for auth in [
            json!({"authenticationMethod": "jwt", "token": secret("token")}),
            json!({"authenticationMethod": "customHeader", "customHeaders": [
                {"headerName": "X-Secret", "value": secret("header"), "isSecret": true}]}),
            json!({"authenticationMethod": "oauth2", "clientId": "c", "clientSecret": secret("client"),
                "refreshToken": secret("refresh"), "refreshTokenEndpoint": "https://a.example/token"}),
        ] {
            let server = json!({"name": "visible-name", "url": "https://a.example", "authenticationConfig": auth});
            let made = app.post("/tool-servers", server).await;
            assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
        }
    }
    let user = json!({"email": "a@b.example", "password": "kanarie-password-of-a-user"});
    assert_eq!(app.post("/users", user).await.status, StatusCode::CREATED);
    let made = [
        app.post("/api-keys", json!({"name": "k"})).await.body["key"].clone(),
        app.post("/tenant-sessions", json!({"tenantId": "t", "subtenantId": "s"})).await.body["token"].clone(),
    ];
    given.extend(made.iter().map(|value| value.as_str().expect("a value").to_owned()));
    given.extend(secrets_of_every_other_kind(&app).await);
    app.signal("TERM");
    assert_eq!(app.ended().await, Some(0));
    let written = everything_in(&home);
    assert!(written.contains("visible-name"), "what is no secret is found");
    for secret in given.iter().map(String::as_str).chain(["kanarie"]) {
        assert!(!written.contains(secret), "{secret} is on the disk");
    }
    std::fs::remove_dir_all(home).expect("removed");
}
