use futures_util::StreamExt;
use platform_testing::{FakeModelServer, FakeToolServer, Reply, TestApp, TestDb};
pub use platform_testing::{PATIENCE, eventually};
use reqwest::{Method, StatusCode, Url};
use serde_json::{Value, json};

use crate::uploads::upload;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_platform-under-test");

/// How many times larger an experiment is when the whole of it is asked for (`just prove`); in the check it is small.
pub fn factor(whole: usize) -> usize {
    #[expect(clippy::disallowed_methods, reason = "a setting of the tests, not of the platform")]
    let is_whole = std::env::var("PROVE").is_ok_and(|how| how == "whole");
    if is_whole { whole } else { 1 }
}

/// The platform with the demo model on a database of its own.
pub async fn app() -> TestApp {
    app_with(&[]).await
}

/// The platform with the demo model, and with more settings.
pub async fn app_with(settings: &[(&str, &str)]) -> TestApp {
    TestApp::start(PROGRAM, &TestDb::new().await, settings)
}

/// All that is said in the chat that a message to an assistant begins, as JSON text.
pub async fn say_to(app: &TestApp, assistant: &str, message: &Value) -> String {
    let mut body = message.clone();
    body["skipSummarization"] = true.into();
    let said = app.post(&format!("/assistants/{assistant}/messages"), body).await;
    assert_eq!(said.status, StatusCode::OK, "{}", said.body);
    let texts = said.body.as_array().expect("messages").iter();
    texts.filter_map(|of| of["content"]["message"].as_str()).collect::<Vec<_>>().join("\n")
}

/// As many requests, connections and streams as a client likes.
pub const UNBOUNDED: [(&str, &str); 4] = [
    ("PLATFORM_RATE_FULL", "0"),
    ("PLATFORM_STREAMS_PER_KEY", "0"),
    ("PLATFORM_CONNECTIONS_PER_ADDRESS", "0"),
    ("PLATFORM_BODIES_PER_ADDRESS", "0"),
];

/// The platform with a scripted OpenAI-compatible server as its default model.
pub async fn app_with_model(settings: &[(&str, &str)]) -> (TestApp, FakeModelServer) {
    app_with_model_on(&TestDb::new().await, settings)
}

/// The same on a database that the test reads or writes.
pub fn app_with_model_on(db: &TestDb, settings: &[(&str, &str)]) -> (TestApp, FakeModelServer) {
    let model = FakeModelServer::start();
    let base = format!("{}/v1", model.url());
    let mut all = vec![
        ("OPENAI_BASE_URL", base.as_str()),
        ("OPENAI_API_KEY", "sk-test"),
        ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
        // Titles and summaries are not what is scripted.
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
    ];
    all.extend_from_slice(settings);
    (TestApp::start(PROGRAM, db, &all), model)
}

/// The platform, and a server for its tools to call, which it may although it is not public.
pub async fn app_with_tools(settings: &[(&str, &str)]) -> (TestApp, FakeToolServer, TestDb) {
    let (db, server) = (TestDb::new().await, FakeToolServer::start());
    let settings = [&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")], settings].concat();
    (TestApp::start(PROGRAM, &db, &settings), server, db)
}

/// A tool that calls an endpoint; `more` lays fields over it.
pub fn tool(name: &str, endpoint: &str, more: &Value) -> Value {
    let mut tool = json!({"function": {"name": name}, "endpoint": endpoint});
    for (field, value) in more.as_object().expect("an object") {
        match (field.as_str(), value) {
            ("function", Value::Object(fields)) => {
                fields.iter().for_each(|(name, value)| tool["function"][name] = value.clone());
            }
            _ => tool[field] = value.clone(),
        }
    }
    tool
}

/// Makes a tool server; its id.
pub async fn tool_server(app: &TestApp, url: &str, tools: &[Value]) -> String {
    let made = app.post("/tool-servers", json!({"name": "Tools", "url": url, "toolDefinitions": tools})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    made.body["_id"].as_str().expect("an id").to_owned()
}

/// Sends a message and waits for its turn.
pub async fn say(app: &TestApp, message: &str) -> Reply {
    app.post("/assistants/default/messages", json!({"message": message})).await
}

/// Sends a message without waiting; the chat's id.
pub async fn start(app: &TestApp, message: &str) -> String {
    start_of(app, "default", message).await
}

/// The same with any assistant.
pub async fn start_of(app: &TestApp, assistant: &str, message: &str) -> String {
    let reply = app.post(&format!("/assistants/{assistant}/messages?async=true"), json!({"message": message})).await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    reply.body["chatUid"].as_str().expect("a chat").to_owned()
}

/// Follows a chat to its end and reads it.
pub async fn finished(app: &TestApp, chat: &str) -> Value {
    finished_of(app, "default", chat).await
}

/// The same for a chat of any assistant.
pub async fn finished_of(app: &TestApp, assistant: &str, chat: &str) -> Value {
    loop {
        let frames = Frames::open_of(app, assistant, chat, true).await.all().await;
        if frames.last().is_some_and(|frame| is_terminal(&frame.data)) {
            return app.get(&format!("/assistants/{assistant}/chats/{chat}")).await.body;
        }
    }
}

pub fn is_terminal(state: &Value) -> bool {
    matches!(state["status"].as_str(), Some("completed" | "error" | "limit_exceeded"))
}

/// Makes an agent; its id.
pub async fn agent(app: &TestApp, settings: Value) -> String {
    let mut all = json!({"name": "Agent"});
    settings.as_object().expect("an object").iter().for_each(|(name, value)| all[name] = value.clone());
    let made = app.post("/agents", all).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    made.body["_id"].as_str().expect("an id").to_owned()
}

/// Has every event be told to an address that leads nowhere.
pub async fn listen(app: &TestApp) {
    let made = app.post("/webhooks", json!({"url": "https://receiver.invalid/", "events": ["*"]})).await;
    assert_eq!(made.status, 201, "{}", made.body);
}

/// Starts a thread; its id.
pub async fn thread(app: &TestApp, agent: &str, message: &str) -> String {
    let started = app.post(&format!("/agents/{agent}/threads"), json!({"message": message})).await;
    assert_eq!(started.status, StatusCode::CREATED, "{:?}", started.body);
    started.body["threadId"].as_str().expect("an id").to_owned()
}

/// Follows a thread until it stands so; the thread then.
pub async fn thread_until(app: &TestApp, thread: &str, stands: impl Fn(&Value) -> bool) -> Value {
    let patience = std::time::Instant::now();
    loop {
        let mut frames = Frames::follow(app, &format!("/agents/threads/{thread}/stream?partial=1")).await;
        let mut folded = Folded::default();
        while let Some(frame) = frames.next().await {
            folded.fold(&frame);
            if stands(&folded.0) {
                return app.get(&format!("/agents/threads/{thread}?withTasks=true")).await.body;
            }
        }
        let now = app.get(&format!("/agents/threads/{thread}")).await.body;
        assert!(!stands(&now), "the stream did not show it");
        assert!(patience.elapsed() < PATIENCE, "it never came: {now:#}");
    }
}

/// Follows a thread into a state.
pub async fn thread_in(app: &TestApp, thread: &str, state: &str) -> Value {
    thread_until(app, thread, |thread| thread["state"] == state).await
}

/// An action on a thread that must work.
pub async fn act(app: &TestApp, thread: &str, action: &str, body: Value) -> Value {
    let acted = app.post(&format!("/agents/threads/{thread}/{action}"), body).await;
    assert_eq!(acted.status, StatusCode::OK, "{action}: {:?}", acted.body);
    acted.body
}

/// The states that a thread went through.
pub fn states(thread: &Value) -> Vec<&str> {
    let changes = thread["threadStatesChanges"].as_array().expect("a history");
    changes.iter().map(|change| change["state"].as_str().expect("a state")).collect()
}

/// Texts of the messages of a thread, by role.
pub fn said<'a>(thread: &'a Value, role: &str) -> Vec<&'a str> {
    let content = thread["threadContent"].as_array().expect("content");
    let of = content.iter().filter(|message| message["role"] == role);
    of.map(|message| message["content"]["message"].as_str().expect("text")).collect()
}

/// One server-sent event.
#[derive(Debug, Clone)]
pub struct Frame {
    pub id: i64,
    pub event: String,
    pub data: Value,
}

/// An open stream, read event by event.
pub struct Frames {
    body: std::pin::Pin<Box<dyn futures_util::Stream<Item = reqwest::Result<Vec<u8>>> + Send>>,
    buffer: String,
    pub comments: usize,
}

impl Frames {
    pub async fn open(app: &TestApp, chat: &str, partial: bool) -> Self {
        Self::open_of(app, "default", chat, partial).await
    }

    /// The stream of a chat of any assistant.
    pub async fn open_of(app: &TestApp, assistant: &str, chat: &str, partial: bool) -> Self {
        let partial = if partial { "?partial=1" } else { "" };
        Self::follow(app, &format!("/assistants/{assistant}/chats/{chat}/stream{partial}")).await
    }

    /// Any stream.
    pub async fn follow(app: &TestApp, path: &str) -> Self {
        Self::follow_as(app, app.key(), path).await
    }

    /// The same with another credential.
    pub async fn follow_as(app: &TestApp, credential: &str, path: &str) -> Self {
        let request = app.anonymous(Method::GET, &format!("/v1{path}")).bearer_auth(credential);
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
        let body = response.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec()));
        Self { body: Box::pin(body), buffer: String::new(), comments: 0 }
    }

    /// The next event; `None` when the server has closed.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, rest)) = self.buffer.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.buffer = rest;
                if frame.starts_with(':') {
                    self.comments += 1;
                    continue;
                }
                let field = |name: &str| {
                    frame.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default()
                };
                let data = serde_json::from_str(field("data")).expect("data is JSON");
                return Some(Frame { id: field("id").parse().unwrap_or(-1), event: field("event").to_owned(), data });
            }
            let chunk = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("no silence")?;
            self.buffer.push_str(&String::from_utf8(chunk.expect("a whole chunk")).expect("UTF-8"));
        }
    }

    pub async fn all(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}

/// What a client knows after folding frames (contract 02 §7.4).
#[derive(Debug, Default, Clone)]
pub struct Folded(pub Value);

impl Folded {
    pub fn fold(&mut self, frame: &Frame) {
        match frame.event.as_str() {
            "snapshot" => self.0 = frame.data.clone(),
            "partial" => self.0["streamingMessage"] = frame.data["streamingMessage"].clone(),
            "delta" => {
                let text = &mut self.0["streamingMessage"]["content"]["message"];
                let append = frame.data["append"].as_str().expect("text");
                *text = Value::String(format!("{}{append}", text.as_str().expect("a delta follows text")));
            }
            other => panic!("an unknown event {other}"),
        }
    }

    /// The reply so far: what is being written, or the last message when it is done.
    pub fn reply(&self) -> String {
        let streaming = self.0["streamingMessage"]["content"]["message"].as_str();
        let last = self.0["chatHistory"].as_array().and_then(|history| history.last());
        let stored = last.filter(|message| message["role"] == "assistant");
        let stored = stored.and_then(|message| message["content"]["message"].as_str());
        streaming.or(stored).unwrap_or_default().to_owned()
    }
}

/// A user of the account who let an application act for them: their id, and a token with all scopes.
pub async fn user(app: &TestApp, name: &str, role: &str) -> (String, String) {
    user_with(app, name, role, None).await
}

/// The same with these scopes.
pub async fn user_with(app: &TestApp, name: &str, role: &str, scopes: Option<Value>) -> (String, String) {
    let granted = granted(app, name, role, scopes).await;
    (granted.user, granted.access)
}

/// What a user granted an application.
pub struct Granted {
    /// Id of the user.
    pub user: String,
    /// Id of the application's record.
    pub client: String,
    /// Its name in the protocol.
    pub client_id: String,
    pub access: String,
    pub refresh: String,
}

/// A user who let an application act for them.
pub async fn granted(app: &TestApp, name: &str, role: &str, scopes: Option<Value>) -> Granted {
    let email = format!("{name}@example.com");
    let mut client = json!({"name": name, "redirectUris": [BACK]});
    if let Some(scopes) = scopes {
        client["scopes"] = scopes;
    }
    let record = app.post("/oauth-clients", client).await.body;
    let user = app.post("/users", json!({"email": email, "password": PASSWORD, "role": role})).await.body;
    let client = record["clientId"].as_str().expect("an id");
    let tokens = log_in(app, client, &email, &[]).await;
    Granted {
        user: text(&user["userUID"]),
        client: text(&record["_id"]),
        client_id: client.to_owned(),
        access: text(&tokens["access_token"]),
        refresh: text(&tokens["refresh_token"]),
    }
}

/// The password of every user, and where every application is told what they decided.
pub const PASSWORD: &str = "correct horse battery";
pub const BACK: &str = "https://app.example/back";

/// The tokens of a user who logs in to an application and lets it act for them; `more`: what it asks for.
pub async fn log_in(app: &TestApp, client: &str, email: &str, more: &[(&str, &str)]) -> Value {
    let (verifier, challenge) =
        ("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    let decision = [
        ("response_type", "code"),
        ("client_id", client),
        ("redirect_uri", BACK),
        ("code_challenge", challenge),
        ("code_challenge_method", "S256"),
        ("email", email),
        ("password", PASSWORD),
        ("decision", "allow"),
    ];
    let decision = decision.iter().chain(more);
    let body = Url::parse_with_params("http://x/", decision).expect("a URL").query().unwrap_or_default().to_owned();
    let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
    let request = browser.post(format!("{}/oauth/authorize", app.url()));
    let sent = app.send(request.header("content-type", "application/x-www-form-urlencoded").body(body)).await;
    let location = Url::parse(sent.header("location")).unwrap_or_else(|_| panic!("a redirect: {}", sent.body));
    let code = location.query_pairs().find(|(name, _)| name == "code").expect("a code").1.into_owned();
    let exchange = json!({"grantType": "authorization_code", "clientId": client, "redirectUri": BACK, "code": code,
        "codeVerifier": verifier});
    app.send(app.anonymous(Method::POST, "/oauth/token").json(&exchange)).await.body
}

/// From now on it is that moment for quotas, an expression of SQL.
pub async fn set_usage_clock(db: &TestDb, moment: &str) {
    let clock = "CREATE OR REPLACE FUNCTION usage_clock() RETURNS timestamptz LANGUAGE sql STABLE AS";
    db.run(&format!("{clock} $$SELECT {moment}$$")).await;
}

/// A value that is text.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("text: {value}")).to_owned()
}

/// An id of nothing.
pub const MISSING: &str = "018f0000-0000-7000-8000-000000000000";

/// An environment, and a session of its machine that has ended.
async fn ended_sandbox(app: &TestApp, environment: &str) -> String {
    let sandbox = format!("/environments/{environment}/sandbox");
    let started = app.post(&format!("{sandbox}/start"), json!({})).await.body;
    let stopped = app.post(&format!("{sandbox}/stop"), json!({"sandboxId": started["sandboxId"]})).await;
    assert!(stopped.status.is_success(), "{}", stopped.body);
    text(&started["sessionId"])
}

/// A tool server made of the app `webhook`, its connection, a trigger of it that starts an agent, and an event.
async fn event_of(app: &TestApp, agent: &str, project: Option<&str>) -> [String; 4] {
    let hooks = text(&app.post("/integrations/webhook/servers", json!({"name": "canary"})).await.body["_id"]);
    let mut trigger =
        json!({"toolServerId": hooks, "triggerSlug": "webhook", "agentId": agent, "name": "canary", "enabled": false});
    if let Some(project) = project {
        let moved = app.patch(&format!("/tool-servers/{hooks}"), json!({"projectId": project})).await;
        assert!(moved.status.is_success(), "{}", moved.body);
        trigger["projectId"] = json!(project);
    }
    let connections = app.get("/integrations/webhook/connection-status").await.body;
    let connection = text(&connections["connections"][0]["id"]);
    let trigger = text(&app.post("/triggers", trigger).await.body["id"]);
    let event = text(&app.post(&format!("/triggers/{trigger}/test"), json!({"payload": "canary"})).await.body["id"]);
    [hooks, connection, trigger, event]
}

/// A session, a key, a user and an OAuth client.
async fn credentials_of(app: &TestApp, whose: &str) -> [String; 4] {
    let make = async |path: &str, id: &str, body: Value| text(&app.post(path, body).await.body[id]);
    let user = json!({"email": format!("canary-{whose}@a.b"), "password": "correct horse battery"});
    [
        make("/tenant-sessions", "sessionId", json!({"tenantId": format!("{whose}-canary-tenant")})).await,
        make("/api-keys", "_id", json!({"name": "canary"})).await,
        make("/users", "userUID", user).await,
        make("/oauth-clients", "_id", json!({"name": "canary", "redirectUris": ["https://a.b/"]})).await,
    ]
}

/// A webhook and a delivery to it.
async fn delivery_of(app: &TestApp) -> [String; 2] {
    let webhook = json!({"url": "https://93.184.216.34/", "events": ["sandbox.finished"], "description": "canary"});
    let webhook = text(&app.post("/webhooks", webhook).await.body["_id"]);
    let delivery = text(&app.post(&format!("/webhooks/{webhook}/test"), json!({})).await.body["id"]);
    [webhook, delivery]
}

/// Makes one record of each kind, named after `whose` and holding the word `canary`; gives what to put for a
/// placeholder of a path.
pub async fn one_of_each(app: &TestApp, whose: &str) -> impl Fn(&str, &str) -> String + use<> {
    one_of_each_in(app, whose, None).await
}

/// The same in a project, as far as records are in one.
pub async fn one_of_each_in(
    app: &TestApp,
    whose: &str,
    project: Option<&str>,
) -> impl Fn(&str, &str) -> String + use<> {
    const IN_PROJECTS: [&str; 7] = [
        "/agents",
        "/assistants",
        "/tool-servers",
        "/documents",
        "/document-folders",
        "/environments",
        "/skills/scaffold",
    ];
    let named = |what: &str| format!("{whose}-canary-{what}");
    let make = async |path: &str, mut body: Value| {
        if let Some(project) = project.filter(|_| IN_PROJECTS.contains(&path)) {
            body["projectId"] = json!(project);
        }
        let made = app.post(path, body).await;
        assert!(made.status.is_success(), "{path}: {}", made.body);
        made.body
    };
    let server =
        json!({"name": "Tools", "url": "https://a.example", "toolDefinitions": [tool("canary", "/x", &json!({}))]});
    let server = text(&make("/tool-servers", server).await["_id"]);
    let agent = json!({"name": "canary", "subAgentConfig": {"enabled": true}});
    let agent = text(&make("/agents", agent).await["_id"]);
    let thread = thread(app, &agent, "canary").await;
    thread_in(app, &thread, "completed").await;
    let evaluation = make(&format!("/agents/threads/{thread}/evaluate"), json!({})).await;
    let evaluation = text(&evaluation["evaluation"]["_id"]);
    let identifier = named("assistant");
    let memory = json!({"enabled": true});
    make("/assistants", json!({"name": "canary", "identifier": identifier, "coreMemory": memory})).await;
    let message = json!({"message": "canary", "chatUid": named("chat"), "tenantId": named("tenant"),
        "subtenantId": named("user"), "tags": ["canary"]});
    make(&format!("/assistants/{identifier}/messages"), message).await;
    let memory = format!("/memory/assistants/{identifier}/core?tenantId={}", named("tenant"));
    let entry = make(&memory, json!({"content": "canary"})).await["entry"]["id"].to_string();
    make("/tenant-admin/tiers", json!({"tierId": named("tier"), "name": "canary"})).await;
    let [session, key, user, client] = credentials_of(app, whose).await;
    let file = text(&upload(app, "canary.txt", "canary").await["fileId"]);
    let wav = include_bytes!("speech/hello.wav").as_slice();
    let recording = upload(app, "canary.wav", wav).await["downloadUrl"].clone();
    let transcript = text(&make("/speech-to-text", json!({"audioUrl": recording})).await["transcriptId"]);
    let folder = text(&make("/document-folders", json!({"name": "canary"})).await["_id"]);
    let document = json!({"name": "canary", "markdownContent": "canary"});
    let document = text(&make("/documents", document).await["_id"]);
    let skill = text(&make("/skills/scaffold", json!({"name": "canary"})).await["folder"]["_id"]);
    let [hooks, connection, trigger, event] = event_of(app, &agent, project).await;
    let [webhook, delivery] = delivery_of(app).await;
    let profile =
        text(&make("/mcp-gateway/profiles", json!({"name": "canary", "slug": format!("{whose}-canary")})).await["_id"]);
    let grant = json!({"profileId": profile, "subjectType": "user", "subject": "canary"});
    let grant = text(&make("/mcp-gateway/grants", grant).await["_id"]);
    let project = json!({"name": "canary", "identifier": named("project")});
    let project = text(&make("/projects", project).await["_id"]);
    let environment = json!({"name": "canary", "envVars": {"CANARY": "canary"}});
    let environment = text(&make("/environments", environment).await["_id"]);
    let sandbox_session = ended_sandbox(app, &environment).await;
    let whose = whose.to_owned();
    let named = |whose: &str, what: &str| format!("{whose}-canary-{what}");
    move |path: &str, name: &str| match name {
        "agentId" | "entityId" => agent.clone(),
        "threadId" => thread.clone(),
        "evaluationId" => evaluation.clone(),
        "identifier" => named(&whose, "assistant"),
        "chatUid" => named(&whose, "chat"),
        "toolServerId" => server.clone(),
        "toolName" => "canary".to_owned(),
        "tenantId" => named(&whose, "tenant"),
        "subtenantId" => named(&whose, "user"),
        "tierId" => named(&whose, "tier"),
        "environmentId" => environment.clone(),
        "entityType" => "agent".to_owned(),
        "sessionId" if path.contains("environments") => sandbox_session.clone(),
        "sessionId" => session.clone(),
        "userUID" => user.clone(),
        "fileId" => file.clone(),
        "entryId" => entry.clone(),
        "transcriptId" => transcript.clone(),
        "id" if path.contains("api-keys") => key.clone(),
        "id" if path.contains("document-folders") => folder.clone(),
        "id" if path.contains("documents") => document.clone(),
        "id" if path.contains("skills") => skill.clone(),
        "version" => "1".to_owned(),
        "id" if path.contains("webhooks") => webhook.clone(),
        "deliveryId" => delivery.clone(),
        "id" if path.contains("/integrations/servers") => hooks.clone(),
        "id" if path.contains("triggers") => trigger.clone(),
        "eventId" => event.clone(),
        "connectionId" => connection.clone(),
        "id" if path.contains("projects") => project.clone(),
        "id" if path.contains("oauth-clients") => client.clone(),
        "id" if path.contains("/mcp-gateway/profiles") => profile.clone(),
        "id" if path.contains("/mcp-gateway/grants") => grant.clone(),
        "profileSlug" => format!("{whose}-canary"),
        "id" if path.contains("tenant-mcp") => MISSING.to_owned(),
        // Nobody has one, or everybody.
        "file" | "filename" | "name" | "slug" | "token" | "app" | "tool" | "accountId" => MISSING.to_owned(),
        _ => panic!("{path}: make one to stand for {name}"),
    }
}

/// A second account on the same server, made as an operator makes one; its full key.
pub async fn other_account(db: &TestDb) -> String {
    let run = async |arguments: &[&str]| {
        let output = tokio::process::Command::new(PROGRAM).args(arguments).env("DATABASE_URL", db.url()).output().await;
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let account = text(&run(&["accounts", "create", "--name", "other"]).await["clientUID"]);
    text(&run(&["keys", "create", "--account", &account]).await["key"])
}

/// The most memory that the platform's process had, in MiB.
pub fn peak_memory(app: &TestApp) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", app.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}
