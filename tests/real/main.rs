//! Other projects from npm and `PyPI`, as servers of tools, as OAuth clients, as an object store and as a database:
//! `just real` installs them and runs these tests.

mod bucket;
mod openapi;
mod vectors;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use platform_testing::{FakeToolServer, Reply, TestApp, TestDb, eventually};
use reqwest::StatusCode;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_platform-under-test");

/// A server of another project, gone with this value.
struct Real {
    child: Child,
    port: u16,
}

impl Real {
    /// Starts a program that is told its port, and waits until it listens.
    fn start(port: u16, program: &Path, arguments: &[&str]) -> Self {
        let child = Command::new(program)
            .args(arguments)
            .current_dir(directory())
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; `just real` installs it", program.display()));
        let mut real = Self { child, port };
        real.drain();
        let patience = Instant::now() + Duration::from_mins(1);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < patience, "{} never listens on {port}", program.display());
            std::thread::sleep(Duration::from_millis(50)); // it has no other way to say so
        }
        real
    }

    fn drain(&mut self) {
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            self.child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
            self.child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        ];
        for pipe in pipes.into_iter().flatten() {
            std::thread::spawn(move || BufReader::new(pipe).lines().for_each(drop));
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Sends it a signal, such as `STOP`.
    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "the signal {name} was not sent");
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("real")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

fn node(arguments: &[&str], port: u16) -> Real {
    Real::start(port, Path::new("node"), arguments)
}

fn python(port: u16, generation: &str) -> Real {
    Real::start(port, &directory().join("venv/bin/python"), &["mcp_server.py", &port.to_string(), generation])
}

async fn platform(settings: &[(&str, &str)]) -> TestApp {
    let settings = [&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")], settings].concat();
    TestApp::start(PROGRAM, &TestDb::new().await, &settings)
}

async fn make(app: &TestApp, server: Value) -> (String, Value) {
    let made = app.post("/tool-servers", server).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    (format!("/tool-servers/{}", made.body["_id"].as_str().expect("an id")), made.body)
}

async fn test(app: &TestApp, server: &str, tool: &str, parameters: Value) -> Value {
    let result = app.post(&format!("{server}/tools/{tool}/test"), json!({"parameters": parameters})).await;
    assert_eq!(result.status, StatusCode::OK, "{:?}", result.body);
    result.body
}

fn tool<'a>(server: &'a Value, name: &str) -> &'a Value {
    let tools = server["toolDefinitions"].as_array().expect("tools");
    tools.iter().find(|tool| tool["function"]["name"] == name).unwrap_or_else(|| panic!("no {name} in {tools:?}"))
}

#[tokio::test]
async fn the_everything_server_of_the_mcp_project_offers_its_tools() {
    let port = free_port();
    let real = node(&["node_modules/@modelcontextprotocol/server-everything/dist/index.js", "streamableHttp"], port);
    let app = platform(&[]).await;
    let (path, made) = make(&app, json!({"name": "Everything", "url": real.url("/mcp"), "mcpType": true})).await;
    assert_eq!((&made["health"], &made["type"]), (&json!("ok"), &json!("mcp")), "{made}");
    assert!(tool(&made, "get-sum")["function"]["parameters"]["properties"]["a"].is_object(), "{made}");
    let sum = test(&app, &path, "get-sum", json!({"a": 2, "b": 40})).await;
    assert!(sum["success"] == true && sum["data"]["result"].as_str().is_some_and(|text| text.contains("42")), "{sum}");
    let wrong = test(&app, &path, "get-sum", json!({"a": "two"})).await;
    assert!(wrong["error"].as_str().is_some_and(|error| error.starts_with("INVALID_ARGUMENTS: ")), "{wrong}");
    let structured = test(&app, &path, "get-structured-content", json!({"location": "New York"})).await;
    assert!(structured["data"]["temperature"].is_number(), "{structured}");
    let picture = test(&app, &path, "get-tiny-image", json!({})).await;
    assert!(
        picture["data"]["result"].as_array().is_some_and(|parts| parts.iter().any(|part| part["type"] == "image")),
        "{picture}"
    );
    let together = (0..20).map(|n| test(&app, &path, "echo", json!({"message": format!("m{n}")})));
    for (n, echo) in futures_util::future::join_all(together).await.into_iter().enumerate() {
        assert_eq!(echo["data"]["result"], format!("Echo: m{n}"), "{echo}");
    }

    // In a turn its tools have the identifier before their names.
    let id = path.rsplit('/').next().unwrap_or_default();
    app.post("/assistants", json!({"name": "H", "identifier": "helper", "availableToolsGroupsUids": [id]})).await;
    let message = "/tool everything__get-sum {\"a\": 1, \"b\": 2}\n/tool everything__echo {\"message\": \"hi\"}\nDone";
    let turn = app.post("/assistants/helper/messages", json!({"message": message})).await;
    let said: Vec<&str> = turn
        .body
        .as_array()
        .expect("messages")
        .iter()
        .filter_map(|message| message["content"]["message"].as_str())
        .collect();
    assert!(said[2].contains('3') && said[3] == "Echo: hi", "{said:?}");
    assert!(app.post(&format!("{path}/refresh"), json!({})).await.status.is_success());

    // An end user brings the same server for themselves.
    let brings = json!({"name": "B", "identifier": "b", "tenantMcpConfig": {"enabled": true}});
    app.post("/assistants", brings).await;
    let own = json!({"url": real.url("/mcp"), "name": "Mine"});
    let of = |who: &str| format!("/tenant-mcp?assistantId=b&tenantId=acme&subtenantId={who}");
    let brought = app.post(&of("u1"), own).await;
    assert_eq!((brought.status, &brought.body["server"]["status"]), (StatusCode::CREATED, &json!("active")));
    for (who, is_theirs) in [("u1", true), ("u2", false)] {
        let message = "/tool mine__get-sum {\"a\": 40, \"b\": 2}\nDone";
        let message = json!({"message": message, "tenantId": "acme", "subtenantId": who});
        let turn = app.post("/assistants/b/messages", message).await.body.to_string();
        assert_eq!((turn.contains("is 42"), turn.contains("TOOL_NOT_AVAILABLE")), (is_theirs, !is_theirs), "{turn}");
    }

    // A server that is away keeps its tools; calls say so, and go on when it is back.
    drop(real);
    let refused = app.post(&format!("{path}/refresh"), json!({})).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::BAD_GATEWAY, "UPSTREAM_ERROR"));
    let kept = app.get(&path).await.body;
    assert_eq!((&kept["health"], &kept["toolCount"]), (&json!("down"), &made["toolCount"]));
    let away = test(&app, &path, "echo", json!({"message": "x"})).await;
    assert!(away["error"].as_str().is_some_and(|error| error.starts_with("UPSTREAM_ERROR: ")), "{away}");
    let _back = node(&["node_modules/@modelcontextprotocol/server-everything/dist/index.js", "streamableHttp"], port);
    let back = test(&app, &path, "echo", json!({"message": "back"})).await;
    assert_eq!(back["data"]["result"], "Echo: back", "{back}");
}

#[tokio::test]
async fn the_python_sdk_speaks_the_newest_protocol_and_a_changed_description_is_noticed() {
    let port = free_port();
    let real = python(port, "first");
    let app = platform(&[]).await;
    let (path, made) = make(&app, json!({"name": "Py", "url": real.url("/mcp"), "type": "mcp"})).await;
    assert_eq!(made["health"], "ok", "{made}");
    assert_eq!(tool(&made, "add")["function"]["description"], "Adds two numbers (first)");
    let sum = test(&app, &path, "add", json!({"a": 2, "b": 3})).await;
    assert!(sum["data"]["result"] == 5 || sum["data"]["result"] == "5", "{sum}");
    let failed = test(&app, &path, "fail", json!({})).await;
    assert!(failed["success"] == false && failed["data"].to_string().contains("Error executing tool fail"), "{failed}");
    app.patch(&format!("{path}/tools/add"), json!({"requiresApproval": true})).await;
    assert_eq!(app.patch(&format!("{path}/tools/add"), json!({"function": {"name": "x"}})).await.error(), "CONFLICT");
    drop(real);
    let _second = python(port, "second");
    let refreshed = app.post(&format!("{path}/refresh"), json!({})).await.body;
    let add = tool(&refreshed, "add");
    assert_eq!(
        (&add["function"]["description"], &add["requiresApproval"]),
        (&json!("Adds two numbers (second)"), &json!(true))
    );
    assert!(
        add["changedTimestampMs"].is_i64() && tool(&refreshed, "fail").get("changedTimestampMs").is_none(),
        "{refreshed}"
    );
}

#[tokio::test]
async fn tokens_of_a_certified_oauth_server_are_fetched_rotated_and_replaced() {
    let port = free_port();
    let real = node(&["oauth_server.mjs", &port.to_string()], port);
    let app = platform(&[]).await;
    let auth = json!({"authenticationMethod": "oauth2", "clientId": "tools", "clientSecret": "client-canary-of-the-real-server",
        "refreshTokenEndpoint": real.url("/token"), "scope": "read"});
    let tools = json!([{"function": {"name": "who"}, "endpoint": "/resource"}]);
    let server = json!({"name": "O", "url": real.url(""), "authenticationConfig": auth, "toolDefinitions": tools});
    let (path, _) = make(&app, server).await;
    let who = test(&app, &path, "who", json!({})).await;
    assert_eq!((&who["data"]["client"], &who["data"]["kind"]), (&json!("tools"), &json!("ClientCredentials")), "{who}");

    let refresh: Value = reqwest::get(real.url("/refresh-token")).await.expect("an answer").json().await.expect("JSON");
    let mut rotating = auth.clone();
    (rotating["grant_type"], rotating["refreshToken"]) = (json!("refresh_token"), refresh["refreshToken"].clone());
    rotating.as_object_mut().expect("an object").remove("scope");
    app.patch(&path, json!({"authenticationConfig": rotating})).await;
    let who = test(&app, &path, "who", json!({})).await;
    assert_eq!(who["data"]["kind"], "AccessToken", "{who}");

    // The server forgets all it has given out: the refresh token too, so the reason is told.
    drop(real);
    let _real = node(&["oauth_server.mjs", &port.to_string()], port);
    let lost = test(&app, &path, "who", json!({})).await;
    assert!(
        lost["error"]
            .as_str()
            .is_some_and(|error| error.starts_with("AUTH_FAILED: ") && error.contains("invalid_grant")),
        "{lost}"
    );
    app.patch(&path, json!({"authenticationConfig": auth})).await;
    assert_eq!(test(&app, &path, "who", json!({})).await["success"], true);
}

#[tokio::test]
async fn openapi_descriptions_of_public_packages_become_tools() {
    let app = platform(&[("PLATFORM_MAX_JSON_BYTES", "8000000")]).await;
    for (file, least, most_skipped) in [
        ("@figma/rest-api-spec/openapi/openapi.yaml", 40, 0),
        ("@scalar/galaxy/dist/3.1.yaml", 8, 2),
        ("@readme/oas-examples/3.1/json/train-travel.json", 6, 0),
        ("@readme/oas-examples/3.0/json/petstore.json", 15, 6),
        ("@readme/oas-examples/3.0/json/parameters-style.json", 10, 6),
        ("@readme/oas-examples/3.0/json/circular.json", 1, 0),
        ("@readme/oas-examples/3.1/json/schema-types.json", 10, 0),
    ] {
        let text = std::fs::read_to_string(directory().join("node_modules").join(file)).expect("installed");
        let made =
            app.post("/tool-servers/import-openapi", json!({"spec": text, "baseUrl": "https://api.example"})).await;
        assert_eq!(made.status, StatusCode::CREATED, "{file}: {:?}", made.body);
        let skipped = made.body["skipped"].as_array().expect("a list");
        assert!(
            made.body["toolCount"].as_i64() >= Some(least) && skipped.len() <= most_skipped,
            "{file}: {} tools, skipped {skipped:?}",
            made.body["toolCount"]
        );
    }
}

/// What a program of another project prints at its end, as JSON.
async fn printed(program: &str, arguments: &[&str]) -> Value {
    let program = if program == "python" { directory().join("venv/bin/python") } else { PathBuf::from(program) };
    let run = tokio::process::Command::new(&program).args(arguments).current_dir(directory()).output();
    let run = run.await.unwrap_or_else(|error| panic!("{}: {error}; `just real` installs it", program.display()));
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{}: {text} {}", program.display(), String::from_utf8_lossy(&run.stderr));
    let last = || serde_json::from_str(text.lines().last().unwrap_or_default());
    serde_json::from_str(&text).or_else(|_| last()).unwrap_or_else(|_| panic!("JSON: {text}"))
}

#[tokio::test]
async fn real_oauth_clients_log_in_refresh_and_leave() {
    let app = platform(&[]).await;
    let (email, password) = ("ann@example.com", "correct horse battery");
    let user = app.post("/users", json!({"email": email, "password": password})).await;
    assert_eq!(user.status, StatusCode::CREATED, "{}", user.body);
    let redirects = json!(["http://127.0.0.1/callback", "http://localhost/callback"]);
    let made = async |confidential: bool| {
        let body = json!({"name": "Real", "redirectUris": redirects, "confidential": confidential});
        app.post("/oauth-clients", body).await.body
    };
    let (open, closed) = (made(false).await, made(true).await);
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let got = printed("node", &["oauth_clients.mjs", app.url(), &text(&open["clientId"]), email, password]).await;
    let openid = json!({"scope": "assistants:read models:read", "listed": 200, "rotated": true, "after": 401});
    assert_eq!(got["openidClient"], openid);
    let audience = format!("{}/v1/mcp", app.url());
    let mcp = json!({"asked": "REDIRECT", "given": "AUTHORIZED", "again": "AUTHORIZED", "audience": audience,
        "scope": "mcp-gateway:read", "rotated": true});
    assert_eq!(got["mcp"], mcp);
    let (id, secret) = (text(&closed["clientId"]), text(&closed["clientSecret"]));
    let authlib = printed("python", &["oauth_client.py", app.url(), &id, &secret, email, password]).await;
    assert_eq!(authlib, json!({"models": 200, "scope": "models:read", "after": 401}));
}

#[tokio::test]
async fn a_client_that_is_registered_nowhere_logs_in_by_the_document_at_its_own_address() {
    let folder = std::env::temp_dir().join(format!("client-document-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let at = |name: &str| folder.join(name).to_str().expect("a path").to_owned();
    let (key, certificate) = (at("key.pem"), at("cert.pem"));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=desk", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", &key, "-out", &certificate])
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let app = platform(&[("SSL_CERT_FILE", &certificate)]).await;
    let (email, password) = ("ann@example.com", "correct horse battery");
    app.post("/users", json!({"email": email, "password": password})).await;
    app.post("/mcp-gateway/profiles", json!({"name": "default", "visibility": "account"})).await;
    let got = printed("node", &["oauth_client_document.mjs", app.url(), &at(""), email, password]).await;
    let expected = json!({"isDocument": true, "given": "AUTHORIZED", "again": "AUTHORIZED", "reads": 1,
        "scope": "mcp-gateway:read", "listed": 200, "elsewhere": 403});
    assert_eq!(got, expected);
    std::fs::remove_dir_all(&folder).expect("it goes");
}

#[tokio::test]
async fn access_tokens_of_a_certified_issuer_are_taken_when_it_is_trusted() {
    let port = free_port();
    let real = node(&["oauth_server.mjs", &port.to_string()], port);
    let issuer = real.url("");
    let settings =
        [("PLATFORM_OAUTH_TRUSTED_ISSUER", issuer.as_str()), ("PLATFORM_OAUTH_TRUSTED_AUDIENCE", "platform")];
    let app = platform(&settings).await;
    let token = async |scope: &str| {
        let fields = [
            ("grant_type", "client_credentials"),
            ("client_id", "tools"),
            ("resource", "urn:platform"),
            ("client_secret", "client-canary-of-the-real-server"),
            ("scope", scope),
        ];
        let fields = fields.map(|(name, value)| format!("{name}={}", value.replace(':', "%3A"))).join("&");
        let client = reqwest::Client::builder().build().expect("a client");
        let post = client.post(real.url("/token")).body(fields);
        let answer = post.header("content-type", "application/x-www-form-urlencoded").send().await.expect("an answer");
        let answer: Value = answer.json().await.expect("JSON");
        answer["access_token"].as_str().unwrap_or_else(|| panic!("a token: {answer}")).to_owned()
    };
    let get = async |app: &TestApp, token: &str, path: &str| {
        app.send(app.anonymous(reqwest::Method::GET, path).bearer_auth(token)).await
    };
    let good = token("models:read").await;
    assert_eq!(get(&app, &good, "/v1/models").await.status, StatusCode::OK);
    assert_eq!(get(&app, &good, "/v1/assistants").await.error(), "INSUFFICIENT_SCOPE");
    let users = app.get("/users").await.body;
    assert_eq!((&users["items"][0]["userUID"], &users["items"][0]["role"]), (&json!("tools"), &json!("member")));
    let mut parts: Vec<&str> = good.split('.').collect();
    let signature = parts[2].replace(['A', 'B', 'C'], "x");
    parts[2] = &signature;
    assert_eq!(get(&app, &parts.join("."), "/v1/models").await.error(), "UNAUTHENTICATED");
    let other = platform(&[settings[0], ("PLATFORM_OAUTH_TRUSTED_AUDIENCE", "something else")]).await;
    assert_eq!(get(&other, &good, "/v1/models").await.error(), "UNAUTHENTICATED", "it is for somebody else");
    let stranger = platform(&[]).await;
    assert_eq!(get(&stranger, &good, "/v1/models").await.error(), "UNAUTHENTICATED", "nobody trusts it");
    // Nobody can be asked for keys: that is no fault of the token.
    let settings = [("PLATFORM_OAUTH_TRUSTED_ISSUER", issuer.as_str()), settings[1]];
    let late = platform(&settings).await;
    drop(real);
    assert_eq!(get(&late, &good, "/v1/models").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&app, &good, "/v1/models").await.status, StatusCode::OK, "whoever has the keys needs nobody");
}

#[tokio::test]
async fn an_app_behind_a_certified_oauth_server_is_connected_by_a_user_and_its_tokens_are_renewed() {
    let (port, own) = (free_port(), free_port());
    let issuer = format!("http://127.0.0.1:{port}");
    let pack = format!(
        r"
slug: real
name: Real
baseUrl: {issuer}
auth:
  - mode: OAUTH2
    authorizationUrl: {issuer}/auth?prompt=consent
    tokenUrl: {issuer}/token
    issuer: {issuer}
    scopes: [openid, offline_access]
tools:
  - function: {{name: look, description: Looks., parameters: {{type: object, properties: {{}}}}}}
    endpoint: /resource
"
    );
    let connectors = Path::new(env!("CARGO_TARGET_TMPDIR")).join("connectors-real");
    std::fs::create_dir_all(&connectors).expect("a directory");
    std::fs::write(connectors.join("real.yaml"), pack).expect("a file");
    let public = format!("http://127.0.0.1:{own}");
    let callback = format!("{public}/v1/integrations/callback");
    let _real = node(&["oauth_server.mjs", &port.to_string(), &callback, "4"], port);
    let app = platform(&[
        ("PLATFORM_ADDR", &format!("127.0.0.1:{own}")),
        ("PLATFORM_PUBLIC_URL", &public),
        ("PLATFORM_CONNECTORS_DIR", &connectors.display().to_string()),
        ("PLATFORM_APP_REAL_CLIENT_ID", "tools"),
        ("PLATFORM_APP_REAL_CLIENT_SECRET", "client-canary-of-the-real-server"),
    ])
    .await;
    let begun = app.post("/integrations/real/connect", json!({"authScheme": "OAUTH2"})).await.body;
    let address = begun["authorizationUrl"].as_str().unwrap_or_else(|| panic!("an address: {begun}"));
    let came_back = printed("node", &["oauth_user.mjs", address]).await;
    assert_eq!(came_back, json!({"status": 200, "path": "/v1/integrations/callback"}));
    let server = app.post("/integrations/real/servers", json!({})).await.body;
    let path = format!("/integrations/servers/{}/tools/look/test", server["_id"].as_str().expect("an id"));
    let look = async || {
        let looked = app.post(&path, json!({})).await.body;
        assert_eq!(looked["success"], true, "{looked}");
        looked["data"].clone()
    };
    let first = look().await;
    assert_eq!((&first["client"], &first["kind"]), (&json!("tools"), &json!("AccessToken")), "{first}");
    let mut seen = std::collections::HashSet::from([first["token"].to_string()]);
    // The refresh token changes with each token too.
    let patience = Instant::now() + Duration::from_mins(1);
    while seen.len() < 3 {
        assert!(Instant::now() < patience, "its tokens are not renewed");
        let looked = look().await;
        tokio::time::sleep(Duration::from_millis(100)).await; // nobody says when they are
        seen.insert(looked["token"].to_string());
    }
}

#[tokio::test]
async fn the_official_libraries_of_standard_webhooks_verify_what_is_sent() {
    let (app, receiver) = (platform(&[]).await, FakeToolServer::start());
    let url = format!("{}/echo/hook", receiver.url());
    let hook = json!({"url": url, "events": ["chat.completed"], "includeContent": true});
    let secret = app.post("/webhooks", hook).await.body["secret"].as_str().expect("a secret").to_owned();
    app.post("/assistants/default/messages", json!({"message": "Hello"})).await;
    receiver.called(1).await;
    let sent = receiver.last();
    let headers = json!(sent.headers).to_string();
    for (program, file) in [("python", "webhook_library.py"), ("node", "webhook_library.mjs")] {
        let read = printed(program, &[file, &secret, &headers, &sent.body]).await;
        assert_eq!(read, json!({"type": "chat.completed", "changed": "refused"}), "{file}");
    }
    // For a day after a rotation, who has the secret from before verifies it as well.
    let path = format!("/webhooks/{}", app.get("/webhooks").await.body["items"][0]["_id"].as_str().expect("one"));
    let new =
        app.post(&format!("{path}/rotate-secret"), json!({})).await.body["secret"].as_str().expect("it").to_owned();
    app.post("/assistants/default/messages", json!({"message": "Hello"})).await;
    receiver.called(2).await;
    let sent = receiver.last();
    let headers = json!(sent.headers).to_string();
    for (program, file) in [("python", "webhook_library.py"), ("node", "webhook_library.mjs")] {
        for secret in [&secret, &new] {
            let read = printed(program, &[file, secret, &headers, &sent.body]).await;
            assert_eq!(read, json!({"type": "chat.completed", "changed": "refused"}), "{file}");
        }
    }
}

/// A profile of all these servers, which take part; the address of its endpoint.
async fn gateway(app: &TestApp, servers: &[(&str, String)], more: Value) -> String {
    let mut entries = Vec::new();
    for (name, url) in servers {
        let given = json!({"name": name, "identifier": name, "url": url, "mcpType": true, "mcpExposed": true});
        entries.push(json!({"toolServerId": make(app, given).await.1["_id"]}));
    }
    let mut given = json!({"name": "default", "visibility": "account", "servers": entries});
    given.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let made = app.post("/mcp-gateway/profiles", given).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    format!("{}/v1/mcp", app.url())
}

#[tokio::test]
async fn clients_of_the_official_sdks_reach_five_upstreams_through_one_endpoint() {
    let everything = free_port();
    let first =
        node(&["node_modules/@modelcontextprotocol/server-everything/dist/index.js", "streamableHttp"], everything);
    let pythons: Vec<Real> = (0..3).map(|n| python(free_port(), &format!("number {n}"))).collect();
    let folder = directory().join("target/files");
    std::fs::create_dir_all(&folder).expect("a directory");
    std::fs::write(folder.join("note.txt"), "forty-two").expect("a file");
    let path = folder.to_string_lossy().into_owned();
    let server = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";
    let files = node(&["stdio_bridge.mjs", server, &path], free_port());
    let app = platform(&[]).await;
    let (email, password) = ("ann@example.com", "correct horse battery");
    let user = app.post("/users", json!({"email": email, "password": password})).await;
    assert_eq!(user.status, StatusCode::CREATED, "{}", user.body);
    let names = ["everything", "files", "one", "two", "three"];
    let urls = [first.url("/mcp"), files.url("/mcp")].into_iter().chain(pythons.iter().map(|real| real.url("/mcp")));
    let servers: Vec<_> = names.into_iter().zip(urls).collect();
    let address = gateway(&app, &servers, json!({})).await;

    // From the first 401 on: found, registered, logged in, listed, called, told of progress.
    let slow = json!({"duration": 1, "steps": 3}).to_string();
    let tool = "everything__trigger-long-running-operation";
    let got = printed("node", &["mcp_client.mjs", app.url(), email, password, tool, &slow]).await;
    assert_eq!(
        (&got["first"], &got["registered"], &got["scope"]),
        (&json!("log in"), &json!(true), &json!("mcp-gateway:read"))
    );
    let tools = got["tools"].as_array().expect("tools");
    for name in ["everything__get-sum", "one__add", "two__add", "three__fail", "files__read_text_file"] {
        assert!(tools.contains(&json!(name)), "{name} in {tools:?}");
    }
    assert!(got["progress"].as_array().is_some_and(|told| told.len() >= 2), "{got}");
    let sum = json!({"a": 2, "b": 40}).to_string();
    let got = printed("python", &["mcp_client.py", &address, app.key(), "three__add", &sum]).await;
    for version in ["legacy", "2026-07-28"] {
        assert_eq!(got[version]["text"], "42", "{got}");
        assert_eq!(got[version]["tools"].as_u64(), Some(tools.len() as u64), "{got}");
    }
    assert_eq!(got["2026-07-28"]["version"], "2026-07-28");

    // The inspector, as a person types it.
    let header = format!("Authorization: Bearer {}", app.key());
    let inspect = async |more: &[&str]| {
        let inspector = "node_modules/@modelcontextprotocol/inspector/clients/cli/build/index.js";
        printed("node", &[&[inspector, &address, "--transport", "http", "--header", &header], more].concat()).await
    };
    let listed = inspect(&["--method", "tools/list"]).await;
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(tools.len()), "{listed}");
    // The same by the lines that the guide has for a client.
    let guide = std::fs::read_to_string(directory().join("../../docs/MCP.md")).expect("the guide");
    let (_, lines) = guide.split_once("```json\n{\"mcpServers\"").expect("lines to paste");
    let lines = format!("{{\"mcpServers\"{}", lines.split_once("\n```").expect("their end").0);
    let mut config: Value = serde_json::from_str(&lines).expect("JSON");
    let company = &mut config["mcpServers"]["company"];
    assert!(company["url"].as_str().is_some_and(|url| url.ends_with("/v1/mcp")), "{lines}");
    company["url"] = address.clone().into();
    company["headers"] = json!({"Authorization": format!("Bearer {}", app.key())});
    let file = std::env::temp_dir().join(format!("platform-mcp-{}.json", app.pid()));
    std::fs::write(&file, config.to_string()).expect("written");
    let inspector = "node_modules/@modelcontextprotocol/inspector/clients/cli/build/index.js";
    let file = file.to_str().expect("a path");
    let listed = printed("node", &[inspector, "--config", file, "--server", "company", "--method", "tools/list"]).await;
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(tools.len()), "{listed}");
    let path = format!("path={path}/note.txt");
    let read = inspect(&["--method", "tools/call", "--tool-name", "files__read_text_file", "--tool-arg", &path]).await;
    assert_eq!(read["content"][0]["text"], "forty-two", "{read}");
}

/// Scenarios of the conformance suite for servers of tools, which a gateway without prompts and resources is, that both
/// families have, and those of the newer one. What else there is asks for prompts, resources, completions, tasks, or a
/// connection that lasts.
const SCENARIOS: [&str; 10] = [
    "dns-rebinding-protection",
    "json-schema-2020-12",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-error",
    "tools-call-image",
    "tools-call-mixed-content",
    "tools-call-simple-text",
    "tools-call-with-progress",
    "tools-list",
];
const OLDER: [&str; 4] = ["logging-set-level", "ping", "server-initialize", "tools-call-with-logging"];
const NEWER: [&str; 18] = [
    "caching",
    "http-custom-header-server-validation",
    "http-header-validation",
    "input-required-result-basic-elicitation",
    "input-required-result-basic-list-roots",
    "input-required-result-basic-sampling",
    "input-required-result-capability-check",
    "input-required-result-ignore-extra-params",
    "input-required-result-missing-input-response",
    "input-required-result-multi-round",
    "input-required-result-multiple-input-requests",
    "input-required-result-request-state",
    "input-required-result-result-type",
    "input-required-result-tampered-state",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
    "server-sse-multiple-streams",
    "server-stateless",
];

/// Scenarios that are left out, by how their names begin, and why.
const LEFT_OUT: [(&str, &str); 13] = [
    ("completion-", "prompts and resources are not served"),
    ("prompts-", "prompts are not served"),
    ("resources-", "resources are not served"),
    ("sep-2164-", "resources are not served"),
    ("sep-2640-", "an extension: skills as resources"),
    ("tasks-", "an extension: tasks"),
    ("input-required-result-non-tool-request", "prompts are not served"),
    ("server-sse-multiple-streams", NO_SESSIONS),
    ("server-session-lifecycle", NO_SESSIONS),
    ("server-sse-polling", NO_SESSIONS),
    ("tools-call-sampling", NO_SESSIONS),
    ("tools-call-elicitation", NO_SESSIONS),
    ("elicitation-", NO_SESSIONS),
];
const NO_SESSIONS: &str = "the older family has no sessions here, in which clients could be asked";

/// Checks within them that ask for prompts or resources.
const OTHERS: [&str; 2] = ["prompts", "resources"];

#[tokio::test]
async fn the_conformance_suite_of_the_mcp_project_finds_nothing_in_both_families() {
    let (upstream, door) = (free_port(), free_port());
    let app = platform(&[("PLATFORM_CORS_ORIGINS", &format!("http://localhost:{door},http://127.0.0.1:{door}"))]).await;
    let target = format!("{}/v1/mcp", app.url());
    let arguments =
        ["mcp_conformance.mjs", &upstream.to_string(), &door.to_string(), &target, app.key()].map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let real = Real::start(upstream, Path::new("node"), &arguments);
    let (_, server) =
        make(&app, json!({"name": "up", "url": real.url("/"), "mcpType": true, "mcpExposed": true})).await;
    let tools = server["toolDefinitions"].as_array().expect("tools");
    let aliases = tools.iter().map(|tool| {
        let name = tool["function"]["name"].as_str().expect("a name");
        json!({"name": format!("up__{name}"), "alias": name})
    });
    let aliases: Vec<Value> = aliases.collect();
    let given = json!({"name": "default", "newToolPolicy": "enabled", "toolOverrides": aliases,
        "servers": [{"toolServerId": server["_id"], "slug": "up"}]});
    assert_eq!(app.post("/mcp-gateway/profiles", given).await.status, StatusCode::CREATED);
    let mut failures = Vec::new();
    for (version, of_family) in [("2026-07-28", &NEWER[..]), ("2025-11-25", &OLDER)] {
        let results = directory().join(format!("target/conformance-{version}"));
        let _ = std::fs::remove_dir_all(&results);
        let suite = "node_modules/@modelcontextprotocol/conformance/dist/index.js";
        let url = format!("http://127.0.0.1:{door}/");
        let run = tokio::process::Command::new(directory().join("node_modules/.bin/node"))
            .args([suite, "server", "--url", &url, "--requirements", version, "-o"])
            .arg(&results)
            .current_dir(directory())
            .output();
        let run = run.await.expect("`just real` installs it");
        let (mut scenarios, mut checks, mut left_out) = (0, 0, BTreeMap::new());
        let directories =
            std::fs::read_dir(&results).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&run.stderr)));
        for entry in directories.filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            // `server-<scenario>-<when>`
            let scenario = &name["server-".len()..name.len() - "-2026-01-01T00-00-00-000Z".len()];
            if !SCENARIOS.iter().chain(of_family).any(|known| *known == scenario) {
                let why = LEFT_OUT.iter().find(|(begins, _)| scenario.starts_with(begins)).map(|(_, why)| *why);
                left_out.insert(scenario.to_owned(), why.unwrap_or_else(|| panic!("{scenario} is in no list")));
                continue;
            }
            scenarios += 1;
            let text = std::fs::read_to_string(entry.path().join("checks.json")).expect("checks");
            let before = checks;
            for check in serde_json::from_str::<Vec<Value>>(&text).expect("checks") {
                let id = check["id"].as_str().unwrap_or_default();
                let of_others = OTHERS.iter().any(|word| id.contains(word));
                match check["status"].as_str() {
                    Some("FAILURE" | "WARNING") if of_others => {
                        left_out.insert(format!("{scenario}, its check {id}"), "it asks for prompts or resources");
                    }
                    Some("FAILURE" | "WARNING") => {
                        failures.push(format!("{version} {scenario} {}: {}", check["id"], check["errorMessage"]));
                    }
                    Some("SUCCESS") => checks += 1,
                    _ => {}
                }
            }
            assert!(checks > before, "{version} {scenario} checks nothing: {text}");
        }
        println!(
            "{version}: {scenarios} scenarios for servers of tools, {checks} checks passed; left out: {left_out:#?}"
        );
        assert_eq!(scenarios, SCENARIOS.len() + of_family.len(), "{version}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
