//! `/v1/integrations`: apps, connections to them, and tool servers made of them.

use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use platform_testing::{FakeApp, FakeToolServer, Reply, TestApp, TestDb, ToolRequest};
use reqwest::{Method, StatusCode, Url};
use serde_json::{Value, json};

use crate::{
    mcp_gateway,
    support::{PROGRAM, UNBOUNDED, agent, app, app_with_tools, eventually, said, text, thread, thread_in},
};

mod refreshed;

const MASK: &str = "••••••••";

/// A connector of an app at an address, with every way to connect.
pub fn pack(url: &str) -> String {
    format!(
        r#"
slug: crm
name: CRM
description: Customers and what they want.
categories: [sales]
baseUrl: {url}
auth:
  - mode: OAUTH2
    authorizationUrl: {url}/authorize?prompt=consent
    tokenUrl: {url}/token
    revocationUrl: {url}/revoke
    issuer: {url}
    scopes: [read, write]
    appFields:
      - {{name: clientId, label: Client id, required: true}}
      - {{name: clientSecret, label: Client secret, required: true, secret: true}}
    guideUrl: https://crm.example/guide
    refusals: {{error: [token_expired]}}
  - mode: API_KEY
    accountFields:
      - {{name: key, label: Key, required: true, secret: true}}
      - {{name: region, label: Region, default: eu}}
    headers:
      - {{headerName: X-Key, value: "${{key}}"}}
      - {{headerName: X-Region, value: "region-${{region}}"}}
    test: {{method: GET, endpoint: /api/me, expect: {{ok: true}}}}
  - mode: BASIC
    accountFields:
      - {{name: username, label: User, required: true}}
      - {{name: password, label: Password, required: true, secret: true}}
    test: {{method: GET, endpoint: /api/me}}
tools:
  - function:
      name: get_customer
      description: Read a customer.
      parameters: {{type: object, properties: {{id: {{type: string}}}}, required: [id]}}
    endpoint: /api/customers/${{id}}
    pathParametersKeys: [id]
    idempotent: true
  - function:
      name: note
      description: Note something.
      parameters: {{type: object, properties: {{text: {{type: string}}}}, required: [text]}}
    endpoint: /api/notes
    method: POST
    customHeaders: [{{headerName: X-Kind, value: a-note-of-ours}}]
eventTypes:
  - slug: customer_made
    name: Customer made
    description: Somebody became a customer.
    type: webhook
    config: {{type: object, properties: {{team: {{type: string}}, all: {{type: boolean}}}}, required: [team], additionalProperties: false}}
    payload: {{type: object, properties: {{kind: {{const: customer}}, data: {{type: object}}}}, required: [kind], examples: [{{kind: customer, data: {{name: Ada}}}}]}}
    signature: {{kind: hmac-sha256-hex, header: X-Crm-Signature, prefix: "sha256=", secret: "${{subscription.secret}}"}}
    eventId: {{header: X-Crm-Event}}
    subscribe:
      request: {{method: POST, endpoint: /hooks, body: {{url: "${{webhookUrl}}", secret: "${{subscription.secret}}", team: "${{config.team}}", all: "${{config.all}}"}}}}
      id: id
    unsubscribe: {{method: DELETE, endpoint: "/hooks/${{subscription.id}}"}}
    handshake: {{when: {{type: hello}}, answer: word}}
  - slug: item_added
    name: Item added
    type: poll
    config: {{type: object, properties: {{list: {{type: string, default: a}}}}}}
    payload: {{type: object}}
    intervalSeconds: 30
    poll: {{method: GET, endpoint: "/list?list=${{config.list}}&after=${{cursor}}", items: items, eventId: id, cursor: next}}
  - slug: page_added
    name: Item added to a page
    type: poll
    config: {{type: object, properties: {{}}}}
    payload: {{type: object}}
    poll: {{method: GET, endpoint: /list, items: items, eventId: id, nextPage: {{from: more, as: page}}}}
"#
    )
}

/// A directory with a connector in it.
pub fn connectors(name: &str, text: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("connectors-{name}"));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::write(directory.join("crm.yaml"), text).expect("a file");
    directory
}

/// The platform with the app of [`pack`]; the app may be called although it is not public.
pub async fn app_with_crm(name: &str, more: &[(&str, &str)]) -> (TestApp, FakeApp, TestDb, PathBuf) {
    let (crm, db) = (FakeApp::start(), TestDb::new().await);
    let directory = connectors(name, &pack(crm.url()));
    let path = directory.display().to_string();
    let settings = [
        &[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_CONNECTORS_DIR", path.as_str())],
        UNBOUNDED.as_slice(),
        more,
    ];
    (TestApp::start(PROGRAM, &db, &settings.concat()), crm, db, directory)
}

async fn connect(app: &TestApp, body: Value) -> Reply {
    app.post("/integrations/crm/connect", body).await
}

/// A connection by key; its id.
pub async fn connected_by_key(app: &TestApp) -> String {
    let made = connect(app, json!({"authScheme": "api_key", "accountFields": {"key": "good-key"}})).await;
    assert_eq!((made.status, &made.body["connected"]), (StatusCode::OK, &json!(true)), "{}", made.body);
    text(&made.body["connectionId"])
}

/// A connection by OAuth on which a user has decided; its id.
pub async fn connected_by_oauth(app: &TestApp, more: Value) -> String {
    let mut body = json!({"authScheme": "OAUTH2", "appFields": {"clientId": "app-id", "clientSecret": "app-secret"}});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let begun = connect(app, body).await;
    assert_eq!((begun.status, &begun.body["connected"]), (StatusCode::OK, &json!(false)), "{}", begun.body);
    let answer = decide(app, &begun.body, &[("code", "good")]).await;
    assert!(answer.status.is_success() || answer.status.is_redirection(), "{}", answer.body);
    text(&begun.body["connectionId"])
}

/// A user comes back from the app.
pub async fn decide(app: &TestApp, begun: &Value, more: &[(&str, &str)]) -> Reply {
    let url = Url::parse(begun["authorizationUrl"].as_str().expect("an address")).expect("a URL");
    let state = url.query_pairs().find(|(name, _)| name == "state").expect("a state").1.into_owned();
    let query: Vec<(&str, &str)> = more.iter().copied().chain([("state", state.as_str())]).collect();
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
    let callback = Url::parse_with_params(&format!("{}/v1/integrations/callback", app.url()), query).expect("a URL");
    // Whatever looks at links before they are opened uses up no code.
    let looked = client.head(callback.clone()).send().await.expect("an answer");
    assert_eq!(looked.status(), StatusCode::METHOD_NOT_ALLOWED);
    let answer = client.get(callback).send().await.expect("an answer");
    let (status, headers) = (answer.status(), answer.headers().clone());
    Reply { status, headers, body: answer.text().await.expect("text").into() }
}

async fn status(app: &TestApp, id: &str) -> Value {
    let all = app.get("/integrations/crm/connection-status").await.body;
    let all = all["connections"].as_array().expect("connections").clone();
    all.into_iter().find(|of| of["id"] == id).unwrap_or_default()
}

async fn server(app: &TestApp, body: Value) -> String {
    let made = app.post("/integrations/crm/servers", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    text(&made.body["_id"])
}

async fn call(app: &TestApp, server: &str, tool: &str, parameters: Value) -> Value {
    let path = format!("/integrations/servers/{server}/tools/{tool}/test");
    app.post(&path, json!({"parameters": parameters})).await.body
}

#[tokio::test]
async fn apps_are_found_read_and_say_how_to_connect_and_what_they_tell_of() {
    let app = app().await;
    let all = app.get("/integrations?limit=100").await.body;
    let slugs: Vec<&str> =
        all["items"].as_array().expect("items").iter().filter_map(|of| of["slug"].as_str()).collect();
    let expected =
        ["github", "gmail", "google-drive", "http", "linear", "notion", "rss", "schedule", "slack", "webhook"];
    assert_eq!((slugs, &all["totalItems"]), (expected.to_vec(), &json!(10)));
    assert!(all.get("nextCursor").is_none(), "{all}");
    let first = app.get("/integrations?limit=4").await.body;
    let cursor = first["nextCursor"].as_str().expect("a cursor");
    let second = app.get(&format!("/integrations?limit=4&cursor={cursor}")).await.body;
    assert_eq!((&second["items"][0]["slug"], &second["totalItems"]), (&json!("linear"), &json!(10)));
    for wrong in ["cursor=nonsense".to_owned(), "cursor=bzM".to_owned(), format!("search=a&cursor={cursor}")] {
        assert_eq!(app.get(&format!("/integrations?{wrong}")).await.error(), "INVALID_CURSOR", "{wrong}");
    }
    let elsewhere = format!("/integrations/github/triggers?cursor={cursor}");
    assert_eq!(app.get(&elsewhere).await.error(), "INVALID_CURSOR");
    assert_eq!(app.get("/integrations?limit=x").await.error(), "INVALID_PAGINATION");
    assert_eq!(app.get("/integrations?search=CHANNELS").await.body["items"][0]["slug"], "slack");
    assert_eq!(app.get("/integrations?category=news").await.body["totalItems"], 1);
    let github = app.get("/integrations/github").await.body;
    assert_eq!(
        (&github["name"], &github["noAuth"], &github["provider"]),
        (&json!("GitHub"), &json!(false), &json!("builtin"))
    );
    assert!(github["toolsCount"].as_i64() >= Some(8) && github["triggersCount"].as_i64() >= Some(6), "{github}");
    assert_eq!(app.get("/integrations/webhook").await.body["noAuth"], true);
    let schemes = app.get("/integrations/github/auth").await.body;
    let oauth = &schemes["schemes"][0];
    assert_eq!(
        (&oauth["mode"], &oauth["managed"], &oauth["redirect"]),
        (&json!("OAUTH2"), &json!(false), &json!(true))
    );
    assert_eq!(
        (&oauth["appFields"][1]["name"], &oauth["appFields"][1]["secret"]),
        (&json!("clientSecret"), &json!(true))
    );
    let events = app.get("/integrations/github/triggers?search=issue&limit=1").await.body;
    assert!(events["totalItems"].as_i64() > Some(1) && events["nextCursor"].is_string(), "{events}");
    let event = app.get("/integrations/github/triggers/issue_opened").await.body;
    assert_eq!((&event["app"], &event["type"]), (&json!("github"), &json!("webhook")));
    assert!(event["config"]["properties"]["repo"].is_object() && event.get("items").is_none(), "{event}");
    for (path, code) in [
        ("/integrations/none", "APP_NOT_FOUND"),
        ("/integrations/none/auth", "APP_NOT_FOUND"),
        ("/integrations/none/triggers", "APP_NOT_FOUND"),
        ("/integrations/github/triggers/none", "EVENT_TYPE_NOT_FOUND"),
        ("/integrations/none/connection-status", "APP_NOT_FOUND"),
    ] {
        assert_eq!(app.get(path).await.error(), code, "{path}");
    }
    // What needs nothing is connected at once.
    let connected = app.post("/integrations/schedule/connect", json!({})).await.body;
    assert_eq!((&connected["connected"], connected.get("authorizationUrl")), (&json!(true), None));
    let made = app.post("/integrations/webhook/servers", json!({})).await;
    assert_eq!(
        (made.status, &made.body["integration"]["connected"]),
        (StatusCode::CREATED, &json!(true)),
        "{}",
        made.body
    );
}

#[tokio::test]
async fn accounts_connect_by_key_or_password_when_the_app_lets_them_in() {
    let (app, crm, db, _) = app_with_crm("keys", &[]).await;
    let missing = connect(&app, json!({"authScheme": "API_KEY"})).await;
    assert_eq!((missing.status, missing.error()), (StatusCode::BAD_REQUEST, "INTEGRATION_SETUP_REQUIRED"));
    let told = ["toolkit", "authScheme", "stage", "code"].map(|name| missing.body[name].clone());
    assert_eq!(told, [json!("crm"), json!("API_KEY"), json!("account"), json!("INTEGRATION_SETUP_REQUIRED")]);
    assert_eq!(missing.body["fields"][0]["name"], "key");
    let operator = connect(&app, json!({})).await;
    assert_eq!(
        (&operator.body["stage"], &operator.body["guideUrl"]),
        (&json!("app"), &json!("https://crm.example/guide"))
    );
    let refused = connect(&app, json!({"authScheme": "API_KEY", "accountFields": {"key": "bad"}})).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::BAD_REQUEST, "CREDENTIALS_REJECTED"));
    assert_eq!(
        app.get("/integrations/crm/connection-status").await.body,
        json!({"connected": false, "connections": []})
    );
    for (body, code) in [
        (json!({"authScheme": "MAGIC"}), "VALIDATION_ERROR"),
        (json!({"authScheme": "API_KEY", "accountFields": {"key": "k", "colour": "red"}}), "VALIDATION_ERROR"),
        (json!({"authScheme": "API_KEY", "accountFields": {"key": 5}}), "VALIDATION_ERROR"),
        (json!({"authScheme": "API_KEY", "accountFields": {"key": {"a": 1}}}), "VALIDATION_ERROR"),
        (json!({"authScheme": "API_KEY", "label": "x".repeat(101)}), "VALIDATION_ERROR"),
        (json!({"authScheme": "API_KEY", "connectionId": "none"}), "CONNECTION_NOT_FOUND"),
    ] {
        assert_eq!(connect(&app, body.clone()).await.error(), code, "{body}");
    }
    let id = connected_by_key(&app).await;
    let sent = crm.requests("/api/me");
    let last = sent.last().expect("it was asked");
    assert_eq!((last.header("x-key"), last.header("x-region")), ("good-key", "region-eu"));
    let shown = status(&app, &id).await;
    assert_eq!(
        (&shown["status"], &shown["needsReconnect"], &shown["label"]),
        (&json!("active"), &json!(false), &json!("CRM"))
    );
    assert!(shown["connectedAt"].as_str().is_some_and(|at| at.ends_with('Z')), "{shown}");
    // The mask keeps what is stored, and is nothing where nothing is.
    let masked = json!({"authScheme": "API_KEY", "connectionId": id, "accountFields": {"key": MASK, "region": "us"}});
    assert_eq!(connect(&app, masked).await.body["connected"], true);
    let last = crm.requests("/api/me");
    let last = last.last().expect("it was asked");
    assert_eq!((last.header("x-key"), last.header("x-region")), ("good-key", "region-us"));
    for (mode, fields, path) in [("API_KEY", "accountFields", "key"), ("OAUTH2", "appFields", "clientSecret")] {
        let nothing = connect(&app, json!({"authScheme": mode, fields: {path: MASK}})).await;
        assert_eq!(nothing.error(), "VALIDATION_ERROR", "{}", nothing.body);
    }
    let basic = json!({"authScheme": "BASIC", "accountFields": {"username": "user", "password": "good-password"},
        "label": "Ops"});
    let basic = connect(&app, basic).await.body;
    assert_eq!(basic["connected"], true, "{basic}");
    let all = app.get("/integrations/crm/connection-status").await.body;
    let labels: Vec<_> = all["connections"].as_array().expect("all").iter().map(|of| of["label"].clone()).collect();
    assert_eq!((&all["connected"], labels), (&json!(true), vec![json!("Ops"), json!("CRM")]), "newest first");
    assert!(!db.dump().await.contains("good-key"), "what was given is sealed");
    let gone = format!("/integrations/connections/{id}");
    assert_eq!(app.delete(&gone).await.status, StatusCode::OK);
    assert_eq!(app.delete(&gone).await.error(), "CONNECTION_NOT_FOUND");
    let _closed = crm.stop().await;
    let away = connect(&app, json!({"authScheme": "API_KEY", "accountFields": {"key": "good-key"}})).await;
    assert_eq!(away.status, StatusCode::BAD_GATEWAY, "{}", away.body);
}

#[tokio::test]
async fn a_user_decides_once_within_ten_minutes_and_comes_back_only_where_it_is_safe() {
    let (app, crm, db, _) = app_with_crm("oauth", &[]).await;
    let fields = json!({"clientId": "app-id", "clientSecret": "app-secret"});
    let begun = connect(&app, json!({"appFields": fields})).await.body;
    let url = Url::parse(begun["authorizationUrl"].as_str().expect("an address")).expect("a URL");
    let of = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    assert_eq!(url.origin().ascii_serialization(), crm.url());
    assert_eq!(
        (of("prompt").as_deref(), of("client_id").as_deref(), of("scope").as_deref()),
        (Some("consent"), Some("app-id"), Some("read write"))
    );
    assert_eq!((of("code_challenge_method").as_deref(), of("response_type").as_deref()), (Some("S256"), Some("code")));
    assert_eq!(of("redirect_uri"), Some(format!("{}/v1/integrations/callback", app.url())));
    assert!(of("state").is_some_and(|state| state.len() >= 43));
    let id = text(&begun["connectionId"]);
    assert_eq!(status(&app, &id).await["status"], "pending");
    let page = decide(&app, &begun, &[("code", "good"), ("iss", crm.url())]).await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.header("content-type").starts_with("text/html") && page.body.to_string().contains("is connected"));
    assert_eq!(status(&app, &id).await["status"], "active");
    assert_eq!(decide(&app, &begun, &[("code", "good")]).await.status, StatusCode::BAD_REQUEST, "a state is good once");
    assert_eq!(status(&app, &id).await["status"], "active");

    // The operator's fields are known from now on.
    for (answer, reason) in [
        (vec![("error", "access_denied")], "access_denied"),
        (vec![("code", "bad")], "invalid_grant"),
        (vec![("code", "good"), ("iss", "https://evil.example")], "somebody else"),
    ] {
        let begun = connect(&app, json!({})).await.body;
        assert_eq!(decide(&app, &begun, &answer).await.status, StatusCode::BAD_REQUEST, "{answer:?}");
        let shown = status(&app, &text(&begun["connectionId"])).await;
        assert_eq!((&shown["status"], &shown["needsReconnect"]), (&json!("expired"), &json!(true)));
        assert!(shown["statusReason"].as_str().is_some_and(|of| of.contains(reason)), "{shown}");
    }
    let late = connect(&app, json!({})).await.body;
    db.run("UPDATE connection_attempts SET expires_ms = 0").await;
    db.run("UPDATE connections SET updated_ms = updated_ms - 600001 WHERE status = 'pending'").await;
    assert_eq!(decide(&app, &late, &[("code", "good")]).await.status, StatusCode::BAD_REQUEST);
    let late = text(&late["connectionId"]);
    eventually("expired", async || (status(&app, &late).await["status"] == "expired").then_some(())).await;

    let here = format!("{}/done?x=1", app.url());
    let begun = connect(&app, json!({"returnTo": here})).await.body;
    let back = decide(&app, &begun, &[("code", "good")]).await;
    let expected = format!("{here}&connectionId={}&status=active", text(&begun["connectionId"]));
    assert_eq!((back.status, back.header("location")), (StatusCode::FOUND, expected.as_str()));
    let refused = connect(&app, json!({"returnTo": here})).await.body;
    let back = decide(&app, &refused, &[("error", "access_denied")]).await;
    assert!(back.header("location").ends_with("&status=expired"), "{:?}", back.headers);
    app.post("/oauth-clients", json!({"name": "C", "redirectUris": ["https://client.example/cb"]})).await;
    let origin = "https://page.example";
    for (return_to, is_good) in [
        ("https://page.example/x", true),
        ("https://client.example/elsewhere", true),
        ("https://evil.example/", false),
        ("https://page.example.evil.example/", false),
        ("https://page.example@evil.example/", false),
        ("https://user@page.example/", false),
        ("//page.example/", false),
        ("/done", false),
        ("javascript:alert(1)", false),
        ("https:\\\\page.example/", false),
        ("https://page.example:8443/", false),
        ("http://page.example/", false),
        (" https://page.example/", false),
    ] {
        let request = app.request(Method::POST, "/integrations/crm/connect").header("origin", origin);
        let reply = app.send(request.json(&json!({"returnTo": return_to}))).await;
        if is_good {
            assert_eq!(reply.status, StatusCode::OK, "{return_to}: {}", reply.body);
        } else {
            assert_eq!(reply.error(), "INVALID_RETURN_TO", "{return_to}");
        }
    }
}

#[tokio::test]
async fn a_client_that_is_known_by_a_header_alone_is_known_all_the_same_and_a_managed_app_needs_no_fields() {
    let managed = [("PLATFORM_APP_CRM_CLIENT_ID", "app-id"), ("PLATFORM_APP_CRM_CLIENT_SECRET", "app-secret")];
    let (app, crm, _, _) = app_with_crm("managed", &managed).await;
    crm.wants_basic();
    let schemes = app.get("/integrations/crm/auth").await.body;
    assert_eq!((&schemes["schemes"][0]["managed"], &schemes["schemes"][1]["managed"]), (&json!(true), &json!(false)));
    let begun = connect(&app, json!({})).await.body;
    assert_eq!(decide(&app, &begun, &[("code", "good")]).await.status, StatusCode::OK);
    assert_eq!(status(&app, &text(&begun["connectionId"])).await["status"], "active");
}

#[tokio::test]
async fn a_hundred_calls_over_two_processes_refresh_a_token_once_and_a_refusal_breaks_the_connection() {
    let (app, crm, db, directory) = app_with_crm("refresh", &[]).await;
    let hook = FakeToolServer::start();
    app.post("/webhooks", json!({"url": format!("{}/echo/hook", hook.url()), "events": ["*"]})).await;
    let path = directory.display().to_string();
    let settings = [("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_CONNECTORS_DIR", path.as_str())];
    let other = TestApp::start(PROGRAM, &db, &[settings.as_slice(), UNBOUNDED.as_slice()].concat());
    let other_key = app.key().to_owned();
    let id = connected_by_oauth(&app, json!({})).await;
    let server = server(&app, json!({})).await;
    let calls = async |path: &str| {
        let path = format!("/v1{path}");
        let one = |n: usize| {
            let asked = if n.is_multiple_of(2) { &app } else { &other };
            let request = asked.anonymous(Method::POST, &path).bearer_auth(&other_key);
            asked.send(request.json(&json!({"parameters": {"id": format!("c{n}")}})))
        };
        join_all((0..100).map(one)).await
    };
    let test = format!("/integrations/servers/{server}/tools/get_customer/test");
    // The token is at its end.
    db.run("UPDATE connections SET refresh_ms = 0, expires_ms = 0").await;
    for (app, key) in [(&app, &other_key), (&other, &other_key)] {
        let request = app.anonymous(Method::GET, "/v1/integrations/crm/connection-status").bearer_auth(key);
        app.send(request).await;
    }
    app.patch(&format!("/tool-servers/{server}"), json!({"description": "told"})).await;
    let issued = crm.issued();
    crm.forget_tokens();
    let answers = calls(&test).await;
    assert!(answers.iter().all(|reply| reply.body["success"] == true), "{}", answers[0].body);
    assert_eq!(crm.issued(), issued + 1, "one refresh");
    // It is refused before its time.
    crm.forget_tokens();
    let answers = calls(&test).await;
    assert!(answers.iter().all(|reply| reply.body["success"] == true), "{}", answers[0].body);
    assert_eq!(crm.issued(), issued + 2, "one more");
    crm.refuse_in_ok(true);
    crm.forget_tokens();
    let answers = calls(&test).await;
    assert!(answers.iter().all(|reply| reply.body["data"]["ok"] == true), "{}", answers[0].body);
    assert_eq!(crm.issued(), issued + 3, "one more, whatever the status of the refusal");
    crm.refuse_in_ok(false);
    // A token server that is away or busy breaks nothing.
    for (begin, end) in [(FakeApp::be_away as fn(&FakeApp, bool), "away"), (FakeApp::be_busy, "busy")] {
        begin(&crm, true);
        crm.forget_tokens();
        let away = call(&app, &server, "get_customer", json!({"id": "x"})).await;
        assert_eq!(away["success"], false, "{end}: {away}");
        assert_eq!(status(&app, &id).await["status"], "active", "{end}");
        begin(&crm, false);
    }
    assert_eq!(call(&app, &server, "get_customer", json!({"id": "x"})).await["success"], true);
    // One that refuses does.
    crm.refuse(true);
    crm.forget_tokens();
    let broken = call(&app, &server, "get_customer", json!({"id": "x"})).await;
    assert!(broken["error"].as_str().is_some_and(|error| error.starts_with("NOT_CONNECTED")), "{broken}");
    let shown = status(&app, &id).await;
    assert_eq!((&shown["status"], &shown["needsReconnect"]), (&json!("needs_reauth"), &json!(true)));
    assert!(shown["statusReason"].as_str().is_some_and(|reason| reason.contains("invalid_grant")), "{shown}");
    let connected = app.get("/integrations/connected").await.body;
    assert_eq!((&connected[0]["connected"], &connected[0]["status"]), (&json!(false), &json!("needs_reauth")));
    eventually("the record", async || {
        let record = app.get(&format!("/tool-servers/{server}")).await.body;
        (record["integration"]["connected"] == false).then_some(())
    })
    .await;
    assert_eq!(app.post("/integrations/crm/servers", json!({})).await.error(), "CONFLICT");
    // Connected again, all is as before, and those who listen were told of both.
    crm.refuse(false);
    let again = connected_by_oauth(&app, json!({})).await;
    assert_eq!((again.as_str(), &status(&app, &id).await["status"]), (id.as_str(), &json!("active")));
    assert_eq!(call(&app, &server, "get_customer", json!({"id": "x"})).await["success"], true);
    let told = eventually("both", async || {
        let told: Vec<Value> = hook.recorded().iter().map(ToolRequest::json).collect();
        (told.len() == 2).then_some(told)
    })
    .await;
    let mut told: Vec<_> = told.iter().map(|of| (text(&of["type"]), of["data"].clone())).collect();
    told.sort_by(|(one, _), (other, _)| one.cmp(other));
    let label = &status(&app, &id).await["label"];
    let expected =
        [("connection.expired", "needs_reauth"), ("connection.recovered", "active")].map(|(kind, status)| {
            (kind.to_owned(), json!({"connectionId": id, "app": "crm", "label": label, "status": status}))
        });
    assert_eq!(told, expected);
    // Deleted, its token is revoked at the app.
    assert_eq!(app.delete(&format!("/integrations/connections/{id}")).await.status, StatusCode::OK);
    eventually("revoked", async || (!crm.requests("/revoke").is_empty()).then_some(())).await;
    let gone = call(&app, &server, "get_customer", json!({"id": "x"})).await;
    assert!(gone["error"].as_str().is_some_and(|error| error.starts_with("NOT_CONNECTED")), "{gone}");
}

#[tokio::test]
async fn a_newer_connector_reaches_the_servers_that_were_made_of_it_and_exposes_nothing_new_by_itself() {
    let (app, crm, db, directory) = app_with_crm("newer", &[]).await;
    connected_by_key(&app).await;
    let make = async |given: Value| text(&app.post("/integrations/crm/servers", given).await.body["_id"]);
    let (chosen, all) = (make(json!({"name": "Chosen", "tools": ["note"]})).await, make(json!({"name": "All"})).await);
    let guard = json!({"requiresApproval": true});
    assert_eq!(app.patch(&format!("/tool-servers/{chosen}/tools/note"), guard).await.status, StatusCode::OK);
    drop(app);
    let newer = pack(crm.url())
        .replace("Note something.", "Note anything.")
        .replace("name: get_customer", "name: find_customer");
    connectors("newer", &newer);
    let path = directory.to_str().expect("a path");
    let settings = [&UNBOUNDED[..], &[("PLATFORM_CONNECTORS_DIR", path)]].concat();
    let app = TestApp::start(PROGRAM, &db, &settings);
    let tools = async |server: &str| app.get(&format!("/tool-servers/{server}")).await.body["toolDefinitions"].clone();
    let renewed = eventually("it has what the newer one says", async || {
        let tools = tools(&chosen).await;
        (tools[0]["function"]["description"] == "Note anything.").then_some(tools)
    });
    let renewed = renewed.await;
    assert_eq!((renewed.as_array().map(Vec::len), &renewed[0]["requiresApproval"]), (Some(1), &json!(true)));
    let names = eventually("so has the one that exposes all", async || {
        let tools = tools(&all).await;
        let names: Vec<String> = tools.as_array()?.iter().map(|tool| text(&tool["function"]["name"])).collect();
        names.contains(&"find_customer".to_owned()).then_some(names)
    });
    assert_eq!(names.await, ["find_customer", "note"]);
    drop(app);
    // What is masked in answers counts, too, and more care than before.
    let guarded =
        newer.replace("method: POST\n    customHeaders", "method: POST\n    requiresApproval: true\n    customHeaders");
    connectors("newer", &guarded.replace("a-note-of-ours", "a-note-of-theirs"));
    let app = TestApp::start(PROGRAM, &db, &[&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")], &settings[..]].concat());
    eventually("it asks for approval", async || {
        let tools = app.get(&format!("/tool-servers/{all}")).await.body["toolDefinitions"].clone();
        (tools[1]["requiresApproval"] == true).then_some(())
    })
    .await;
    let noted = call(&app, &all, "note", json!({"text": "x"})).await;
    assert_eq!(noted["success"], true, "{noted}");
    assert_eq!(crm.requests("/api/notes")[0].header("x-kind"), "a-note-of-theirs");
}

#[tokio::test]
async fn a_tool_server_of_an_app_exposes_what_was_chosen_and_calls_with_its_connection() {
    let (app, crm, _, _) = app_with_crm("servers", &[]).await;
    assert_eq!(app.post("/integrations/crm/servers", json!({})).await.error(), "CONFLICT", "nobody is connected");
    let id = connected_by_key(&app).await;
    assert_eq!(app.post("/integrations/crm/servers", json!({"tools": ["none"]})).await.error(), "TOOL_NOT_FOUND");
    assert_eq!(app.post("/integrations/crm/servers", json!({"tools": []})).await.error(), "LAST_TOOL");
    let missing = app.post("/integrations/crm/servers", json!({"connectionId": "none"})).await;
    assert_eq!(missing.error(), "CONNECTION_NOT_FOUND");
    let made = app.post("/integrations/crm/servers", json!({"name": "Customers", "tools": ["note"]})).await;
    let stale = format!("/integrations/servers/{}/tools", text(&made.body["_id"]));
    let stale = app.request(Method::PATCH, &stale).header("if-match", "\"77\"").json(&json!({"all": true}));
    assert_eq!(app.send(stale).await.error(), "PRECONDITION_FAILED");
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let server = text(&made.body["_id"]);
    assert_eq!(
        (&made.body["type"], &made.body["name"], &made.body["identifier"]),
        (&json!("integration"), &json!("Customers"), &json!("customers"))
    );
    let expected = json!({"app": "crm", "apps": ["crm"], "connected": true, "connectionId": id, "enabledToolCount": 1});
    assert_eq!((&made.body["integration"], &made.body["toolCount"]), (&expected, &json!(1)));
    let tools = format!("/integrations/servers/{server}/tools");
    let names = |reply: &Value| -> Vec<(String, bool)> {
        let tools = reply["tools"].as_array().expect("tools").iter();
        tools.map(|tool| (text(&tool["function"]["name"]), tool["enabled"] == true)).collect()
    };
    let pair = |name: &str, enabled: bool| (name.to_owned(), enabled);
    assert_eq!(names(&app.get(&tools).await.body), [pair("note", true)]);
    let all = app.get(&format!("{tools}?available=true")).await.body;
    assert_eq!((names(&all), &all["total"]), (vec![pair("get_customer", false), pair("note", true)], &json!(2)));
    assert!(all["tools"][0]["function"]["parameters"]["properties"]["id"].is_object(), "{all}");
    let page = app.get(&format!("/tool-servers/{server}/tools?available=true&limit=1")).await.body;
    assert_eq!(names(&page), [pair("get_customer", false)]);
    let next = format!("/tool-servers/{server}/tools?available=true&cursor={}", text(&page["nextCursor"]));
    let last = app.get(&next).await.body;
    assert!(names(&last) == [pair("note", true)] && last.get("nextCursor").is_none(), "{last}");
    let test = |tool: &str| format!("{tools}/{tool}/test");
    // A tool has the headers of its pack, and its server is changed like any other.
    let noted = app.post(&test("note"), json!({"parameters": {"text": "x"}})).await;
    assert_eq!(noted.body["success"], true, "{}", noted.body);
    assert_eq!(crm.requests("/api/notes")[0].header("x-kind"), "a-note-of-ours");
    let changed = app.patch(&format!("/tool-servers/{server}"), json!({"description": "Theirs"})).await;
    assert_eq!(changed.status, StatusCode::OK, "{}", changed.body);
    assert_eq!(app.post(&test("get_customer"), json!({})).await.error(), "TOOL_NOT_EXPOSED");
    assert_eq!(app.post(&test("none"), json!({})).await.error(), "TOOL_NOT_FOUND");
    for (change, code) in [
        (json!({"enable": ["none"]}), "TOOL_NOT_FOUND"),
        (json!({"disable": ["note"]}), "LAST_TOOL"),
        (json!({"all": true, "enable": ["note"]}), "VALIDATION_ERROR"),
        (json!({"all": "yes"}), "VALIDATION_ERROR"),
    ] {
        assert_eq!(app.patch(&tools, change.clone()).await.error(), code, "{change}");
    }
    let both = app.patch(&tools, json!({"enable": ["get_customer"]})).await.body;
    assert_eq!(names(&both), [pair("get_customer", true), pair("note", true)]);
    let one = app.patch(&tools, json!({"disable": ["note"]})).await.body;
    assert_eq!(names(&one), [pair("get_customer", true)]);
    assert_eq!(app.get("/integrations/connected").await.body[0]["exposedToolCount"], 1);
    let all = app.patch(&tools, json!({"all": true})).await.body;
    assert_eq!(all["total"], 2);
    let record = app.get(&format!("/tool-servers/{server}")).await.body;
    assert!(record["integration"].get("enabledToolCount").is_none() && record["toolCount"] == 2, "{record}");
    assert_eq!(app.get("/integrations/connected").await.body[0]["exposedToolCount"], Value::Null);

    // In a turn its tools have the identifier before their names, and the connection's key goes along.
    let of = agent(&app, json!({"name": "A", "assistantSpecialization": {"availableToolsGroupsUids": [server]}})).await;
    let thread = thread(&app, &of, "/tool customers__note {\"text\": \"hi\"}\nDone").await;
    let done = thread_in(&app, &thread, "completed").await;
    let result = said(&done, "tool")[0].to_owned();
    assert!(result.contains("\"ok\":true") && result.contains("\"text\":\"hi\""), "{result}");
    assert!(!result.contains("good-key"), "{result}");
    assert_eq!(crm.requests("/api/notes")[0].header("x-key"), "good-key");

    // What its app says of it nobody else does.
    let path = format!("/tool-servers/{server}");
    let changed = json!({"name": "Clients", "url": "https://evil.example", "mcpType": true, "timeoutMs": 5000,
        "toolDefinitions": [{"function": {"name": "note"}, "requiresApproval": true, "endpoint": "/api/evil"}]});
    let changed = app.patch(&path, changed).await.body;
    assert_eq!(
        (&changed["name"], &changed["url"], &changed["type"]),
        (&json!("Clients"), &json!(crm.url()), &json!("integration"))
    );
    let note = &changed["toolDefinitions"][1];
    assert_eq!((&note["requiresApproval"], &note["endpoint"]), (&json!(true), &json!("/api/notes")));
    for reply in [
        app.post(&format!("{path}/clone"), json!({})).await,
        app.post(&format!("{path}/tools"), json!({"function": {"name": "x"}, "endpoint": "/x"})).await,
        app.post(&format!("{path}/refresh"), json!({})).await,
    ] {
        assert_eq!(reply.error(), "CONFLICT");
    }
    let http = app.post("/tool-servers", json!({"name": "H", "url": "https://a.example", "type": "integration"})).await;
    assert_eq!(http.error(), "VALIDATION_ERROR");
    let plain = text(&app.post("/tool-servers", json!({"name": "H", "url": "https://a.example"})).await.body["_id"]);
    for reply in [
        app.get(&format!("/integrations/servers/{plain}/tools")).await,
        app.patch(&format!("/integrations/servers/{plain}/tools"), json!({"all": true})).await,
        app.delete(&format!("/integrations/servers/{plain}")).await,
    ] {
        assert_eq!(reply.error(), "NOT_AN_INTEGRATION");
    }
    assert_eq!(app.get("/integrations/servers/none/tools").await.error(), "TOOL_SERVER_NOT_FOUND");
    let gone = format!("/integrations/servers/{server}");
    assert_eq!(app.delete(&gone).await.error(), "CONFLICT", "an agent uses it");
    assert_eq!(app.delete(&format!("{gone}?force=true")).await.status, StatusCode::OK);
    assert_eq!(app.get("/integrations/connected").await.body, json!([]));
}

#[tokio::test]
async fn three_refusals_break_a_connection_though_its_token_can_be_refreshed() {
    let (app, crm, _, _) = app_with_crm("refusals", &[]).await;
    let by_key = connected_by_key(&app).await;
    let server = server(&app, json!({})).await;
    let is_broken_by_three = async |id: &str| {
        crm.refuse_all();
        for n in 1..=3 {
            assert_eq!(status(&app, id).await["status"], "active", "before refusal {n}");
            let refused = call(&app, &server, "get_customer", json!({"id": "1"})).await;
            assert_eq!(refused["statusCode"], 401, "{refused}");
        }
        assert_eq!(status(&app, id).await["status"], "needs_reauth");
        crm.accept_all();
    };
    is_broken_by_three(&by_key).await;
    let by_token = connected_by_oauth(&app, json!({"connectionId": by_key})).await;
    is_broken_by_three(&by_token).await;
}

#[tokio::test]
async fn a_connector_that_is_wrong_is_left_out_and_the_command_says_why() {
    let wrong = "slug: bad\nname: Bad\nbaseUrl: ftp://a.example\nauth:\n  - mode: API_KEY\n";
    let directory = connectors("wrong", wrong);
    std::fs::write(directory.join("good.yml"), pack("https://crm.example")).expect("a file");
    let path = directory.display().to_string();
    let (db, log) = (TestDb::new().await, directory.join("log"));
    let app = TestApp::start_logging(PROGRAM, &db, &[("PLATFORM_CONNECTORS_DIR", path.as_str())], &log);
    assert_eq!(app.get("/integrations/bad").await.error(), "APP_NOT_FOUND");
    let logged = std::fs::read_to_string(&log).expect("a log");
    assert!(logged.lines().any(|line| line.contains("crm.yaml") && line.contains("left out")), "{logged}");
    assert_eq!(app.get("/integrations/crm").await.body["provider"], "custom");
    let run = async |arguments: &[&str]| {
        tokio::process::Command::new(PROGRAM).args(arguments).output().await.expect("it runs")
    };
    let file = directory.join("crm.yaml").display().to_string();
    let said = run(&["connectors", "check", &file]).await;
    let lines = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said.status.code(), Some(1), "{lines}");
    assert!(lines.contains(":3: baseUrl") && lines.contains(":5: API_KEY needs headers or query"), "{lines}");
    let template = pack("https://crm.example").replace(
        "endpoint: /api/notes\n",
        "endpoint: /api/notes\n    bodyMode: advanced\n    bodyJsonTemplate: \"((( params\"\n",
    );
    std::fs::write(directory.join("template.yaml"), template).expect("a file");
    let said = run(&["connectors", "check", &directory.join("template.yaml").display().to_string()]).await;
    let lines = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.code() == Some(1) && lines.contains("tool `note`: bodyJsonTemplate"), "{lines}");
    std::fs::remove_file(directory.join("template.yaml")).expect("a file");
    let good = directory.join("good.yml").display().to_string();
    let said = run(&["connectors", "check", &good]).await;
    assert!(said.status.success() && String::from_utf8_lossy(&said.stdout).contains("CRM is good"), "{said:?}");
    let schema: Value = serde_json::from_slice(&run(&["connectors", "schema"]).await.stdout).expect("JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(schema["properties"]["eventTypes"].is_object() && schema["$defs"]["ConnectorAuth"].is_object(), "{schema}");
}

#[tokio::test]
async fn a_request_that_is_described_whole_says_what_it_was_and_a_server_of_an_app_takes_no_credentials() {
    let (app, tools, _) = app_with_tools(&UNBOUNDED).await;
    let server = text(&app.post("/integrations/http/servers", json!({})).await.body["_id"]);
    let test = format!("/integrations/servers/{server}/tools/http_request/test");
    let asked =
        |method: &str, path: &str| json!({"parameters": {"method": method, "url": format!("{}{path}", tools.url())}});
    for (method, path, status) in [("DELETE", "/echo/z", 200), ("GET", "/status/500", 500)] {
        let told = app.post(&test, asked(method, path)).await.body;
        assert_eq!((&told["requestMethod"], &told["statusCode"]), (&json!(method), &json!(status)), "{told}");
    }
    assert!(!tools.recorded()[0].header("x-request-id").is_empty());
    let path = format!("/tool-servers/{server}");
    let jwt = json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": "canary"}});
    assert_eq!(app.patch(&path, jwt).await.error(), "VALIDATION_ERROR");
    let whole = app.get(&path).await.body;
    assert_eq!(app.patch(&path, whole).await.status, StatusCode::OK, "what is read can be sent back");
}

#[tokio::test]
async fn tools_of_an_app_are_offered_at_the_mcp_endpoint_with_the_rights_of_their_connection() {
    let (app, crm, _db, _) = app_with_crm("mcp", &[]).await;
    connected_by_key(&app).await;
    let id = server(&app, json!({"tools": ["get_customer", "note"]})).await;
    let exposed = app.patch(&format!("/tool-servers/{id}"), json!({"mcpExposed": true})).await;
    assert_eq!(exposed.status, StatusCode::OK, "{}", exposed.body);
    mcp_gateway::profile(&app, json!({"name": "default", "servers": [{"toolServerId": id, "slug": "crm"}]})).await;
    let all = mcp_gateway::listed(&app, app.key(), "").await;
    assert_eq!(all, mcp_gateway::set(&["crm__get_customer", "crm__note"]));
    let reply = mcp_gateway::called(&app, app.key(), "", "crm__get_customer", json!({"id": "7"})).await.body;
    assert!(reply["result"]["structuredContent"].is_object() && reply["result"]["isError"].is_null(), "{reply}");
    let sent = crm.requests("/api/customers/7");
    assert_eq!(sent.last().map(|request| request.header("x-key").to_owned()).as_deref(), Some("good-key"));
    assert!(!reply.to_string().contains("good-key"), "{reply}");
}

#[tokio::test]
async fn no_address_of_a_connector_leads_inside() {
    let (app, crm, _db, _) = app_with_crm("inside", &[("PLATFORM_EGRESS_ALLOW", "")]).await;
    let refused = connect(&app, json!({"authScheme": "api_key", "accountFields": {"key": "good-key"}})).await;
    assert!(!refused.status.is_success() && !refused.status.is_server_error(), "{}", refused.body);
    let fields = json!({"clientId": "app-id", "clientSecret": "app-secret"});
    let begun = connect(&app, json!({"authScheme": "OAUTH2", "appFields": fields})).await;
    let back = decide(&app, &begun.body, &[("code", "good")]).await;
    assert!(back.status.is_client_error(), "{}", back.body);
    assert_ne!(status(&app, &text(&begun.body["connectionId"])).await["status"], "active");
    for path in ["/api/me", "/token", "/revoke", "/hooks", "/list"] {
        assert!(crm.requests(path).is_empty(), "{path}");
    }
}

#[tokio::test]
async fn a_token_is_renewed_ahead_of_its_end_and_taken_back_at_the_app_also_when_that_is_away_at_first() {
    let (app, crm, db, _) = app_with_crm("ahead", &[]).await;
    crm.tokens_live(4);
    let id = connected_by_oauth(&app, json!({})).await;
    let server = server(&app, json!({})).await;
    let refreshed = async || db.number("SELECT max(refresh_ms)::bigint AS n FROM connections").await;
    let at_first = refreshed().await;
    crm.tokens_live(600);
    eventually("it is renewed, and nobody called", async || (refreshed().await > at_first).then_some(())).await;
    assert_eq!((crm.issued(), crm.requests("/api/customers/x").len()), (2, 0));
    // What came instead is what is kept: also a process that was started since uses it.
    let mut app = app;
    app.crash();
    assert_eq!(call(&app, &server, "get_customer", json!({"id": "x"})).await["success"], true);
    assert_eq!(status(&app, &id).await["status"], "active");
    let kept = db.dump().await;
    for secret in ["app-secret", "access-1", "access-2", "refresh-1", "refresh-2"] {
        assert!(!kept.contains(secret), "{secret} is kept as it is");
    }
    crm.refuse_revocations(1);
    assert_eq!(app.delete(&format!("/integrations/connections/{id}")).await.status, StatusCode::OK);
    eventually("it was tried", async || (crm.requests("/revoke").len() == 1).then_some(())).await;
    eventually("it is tried again", async || {
        db.run("UPDATE runs SET due = now() WHERE kind = 'revoke-connection' AND owner IS NULL").await;
        (crm.requests("/revoke").len() >= 2).then_some(())
    })
    .await;
}
