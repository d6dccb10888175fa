//! Applications that register themselves, and what they reach.

use platform_testing::{FakeMcpServer, FakeToolServer, TestApp, TestDb, TlsProxy};
use reqwest::{Method, StatusCode, Url};
use serde_json::{Value, json};

use crate::{
    mcp_gateway::{app, app_on, exposed, listed, profile, rpc, set},
    support::{BACK, PASSWORD, PROGRAM, eventually, log_in, other_account, text},
};

#[tokio::test]
async fn an_application_that_registers_itself_reaches_the_mcp_endpoint_as_its_user_and_nothing_else() {
    let (db, mcp) = (TestDb::new().await, FakeMcpServer::start());
    let app = app_on(&db, &[]);
    let server = exposed(&app, "s", &mcp, json!({})).await;
    let made = profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let ann = app.post("/users", json!({"email": "ann@example.com", "password": PASSWORD})).await.body;
    let register = async |given: Value| app.send(app.anonymous(Method::POST, "/oauth/register").json(&given)).await;
    for (given, error) in [
        (json!({}), "invalid_redirect_uri"),
        (json!({"redirect_uris": ["http://evil.example/"]}), "invalid_redirect_uri"),
        (json!({"redirect_uris": ["javascript:alert(1)"]}), "invalid_redirect_uri"),
        (json!({"redirect_uris": ["app://x"]}), "invalid_redirect_uri"),
        (json!({"redirect_uris": [BACK], "token_endpoint_auth_method": "private_key_jwt"}), "invalid_client_metadata"),
        (json!({"redirect_uris": [BACK], "grant_types": ["password"]}), "invalid_client_metadata"),
    ] {
        let reply = register(given.clone()).await;
        assert_eq!((reply.status, &reply.body["error"]), (StatusCode::BAD_REQUEST, &json!(error)), "{given}");
    }
    let given = json!({"client_name": "Desk", "redirect_uris": [BACK], "token_endpoint_auth_method": "none",
        "scope": "platform:write mcp-gateway:read"});
    let registered = register(given).await;
    assert_eq!(registered.status, StatusCode::CREATED, "{}", registered.body);
    assert!(registered.body.get("client_secret").is_none());
    let client = text(&registered.body["client_id"]);
    assert_eq!(app.get("/oauth-clients").await.body["total"], 0, "it is no client of the account's");
    let resource = format!("{}/v1/mcp", app.url());
    let tokens =
        log_in(&app, &client, "ann@example.com", &[("resource", &resource), ("scope", "mcp-gateway:read")]).await;
    let token = text(&tokens["access_token"]);
    assert_eq!(
        rpc(&app, &token, "", "tools/list", json!({})).await.error(),
        "PROFILE_NOT_FOUND",
        "nothing is hers yet"
    );
    let grant = json!({"profileId": made["_id"], "subjectType": "user", "subject": ann["userUID"]});
    assert_eq!(app.post("/mcp-gateway/grants", grant).await.status, StatusCode::CREATED);
    assert_eq!(listed(&app, &token, "").await, set(&["s__echo"]));
    let other_mount = app.anonymous(Method::POST, "/api/v1/mcp").bearer_auth(&token);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(app.send(other_mount.json(&ping)).await.status, StatusCode::OK, "both mounts are one resource");
    for path in ["/v1/models", "/v1/assistants", "/v1/mcp-gateway/profiles", "/v1/mcp-gateway/audit"] {
        let refused = app.send(app.anonymous(Method::GET, path).bearer_auth(&token)).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
    }
    let all = log_in(&app, &client, "ann@example.com", &[]).await;
    assert_eq!(all["scope"], "mcp-gateway:read", "it asked for that alone when it registered");
    let refused = app.anonymous(Method::GET, "/v1/models").bearer_auth(text(&all["access_token"]));
    assert_eq!(app.send(refused).await.error(), "INSUFFICIENT_SCOPE");
    // The users of another account are theirs: one application serves both.
    let key = other_account(&db).await;
    let user = app.anonymous(Method::POST, "/v1/users").bearer_auth(&key);
    app.send(user.json(&json!({"email": "bob@example.com", "password": PASSWORD}))).await;
    let theirs = log_in(&app, &client, "bob@example.com", &[("resource", &resource)]).await;
    let theirs = text(&theirs["access_token"]);
    let refused = rpc(&app, &theirs, "", "tools/list", json!({})).await;
    assert_eq!(refused.error(), "PROFILE_NOT_FOUND", "{}", refused.body);
    let refused = rpc(&app, &theirs, "/default", "tools/list", json!({})).await;
    assert_eq!(refused.error(), "UNAUTHENTICATED", "each profile is a resource of its own: {}", refused.body);
    let challenge = refused.header("www-authenticate");
    assert!(challenge.contains("/oauth-protected-resource/v1/mcp/default\", error=\"invalid_token\""), "{challenge}");
    // A token for the endpoint is good for no other address.
    let wide = app.post("/oauth-clients", json!({"name": "Wide", "redirectUris": [BACK]})).await.body;
    let tokens = log_in(&app, &text(&wide["clientId"]), "ann@example.com", &[("resource", &resource)]).await;
    let elsewhere = app.anonymous(Method::GET, "/v1/models").bearer_auth(text(&tokens["access_token"]));
    assert_eq!(app.send(elsewhere).await.error(), "FORBIDDEN");
    // When the user goes, so does all that.
    app.delete(&format!("/users/{}", text(&ann["userUID"]))).await;
    assert_eq!(rpc(&app, &token, "", "ping", json!({})).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn applications_register_themselves_twenty_times_an_hour_and_not_at_all_where_that_is_off() {
    let app = app().await;
    let given = json!({"redirect_uris": ["http://127.0.0.1/back"]});
    let register = async |app: &TestApp| app.send(app.anonymous(Method::POST, "/oauth/register").json(&given)).await;
    for n in 0..20 {
        let made = register(&app).await;
        assert_eq!(made.status, StatusCode::CREATED, "{n}: {}", made.body);
        assert!(made.body["client_secret"].is_string() && made.body["client_secret_expires_at"] == 0);
    }
    assert_eq!(register(&app).await.error(), "RATE_LIMIT_EXCEEDED");
    let metadata = app.send(app.anonymous(Method::GET, "/.well-known/oauth-authorization-server")).await.body;
    assert!(text(&metadata["registration_endpoint"]).ends_with("/oauth/register"));
    let closed = app_on(&TestDb::new().await, &[("PLATFORM_OAUTH_REGISTRATION", "off")]);
    assert_eq!(register(&closed).await.error(), "FORBIDDEN");
    let metadata = closed.send(closed.anonymous(Method::GET, "/.well-known/oauth-authorization-server")).await.body;
    assert!(metadata.get("registration_endpoint").is_none());
}

#[tokio::test]
async fn an_application_whose_name_is_an_address_is_what_the_document_there_says() {
    let (db, mcp, server) = (TestDb::new().await, FakeMcpServer::start(), FakeToolServer::start());
    let proxy = TlsProxy::start(server.url()).await;
    let settings = [("SSL_CERT_FILE", proxy.certificate())];
    let app = app_on(&db, &settings);
    let at = |path: &str| format!("{}{path}", proxy.url());
    let put = |path: &str, document: &Value| {
        server.serve(path, "application/json", document.to_string().into_bytes().leak());
    };
    let desk = json!({"client_id": at("/desk.json"), "client_name": "Desk", "redirect_uris": [BACK],
        "token_endpoint_auth_method": "none", "scope": "platform:write mcp-gateway:read"});
    put("/desk.json", &desk);
    let tools = exposed(&app, "s", &mcp, json!({})).await;
    let made = profile(&app, json!({"name": "default", "servers": [{"toolServerId": tools}]})).await;
    let ann = app.post("/users", json!({"email": "ann@example.com", "password": PASSWORD})).await.body;
    let grant = json!({"profileId": made["_id"], "subjectType": "user", "subject": ann["userUID"]});
    assert_eq!(app.post("/mcp-gateway/grants", grant).await.status, StatusCode::CREATED);
    let ask = async |app: &TestApp, client: &str, back: &str| {
        let asked = [
            ("response_type", "code"),
            ("client_id", client),
            ("redirect_uri", back),
            ("code_challenge", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"),
            ("code_challenge_method", "S256"),
            ("state", "s"),
        ];
        let url = Url::parse_with_params(&format!("{}/oauth/authorize", app.url()), asked).expect("a URL");
        let browser = reqwest::Client::builder().build().expect("a client");
        app.send(browser.get(url)).await
    };

    // It is asked once, and shown to its user as it says it is.
    let resource = format!("{}/v1/mcp", app.url());
    let client = at("/desk.json");
    for _ in 0..2 {
        let tokens = log_in(&app, &client, "ann@example.com", &[("resource", &resource)]).await;
        assert_eq!(tokens["scope"], "mcp-gateway:read", "{tokens}");
        assert_eq!(listed(&app, &text(&tokens["access_token"]), "").await, set(&["s__echo"]));
        let fresh = json!({"grantType": "refresh_token", "clientId": client, "refreshToken": tokens["refresh_token"]});
        let fresh = app.send(app.anonymous(Method::POST, "/oauth/token").json(&fresh)).await;
        assert_eq!(fresh.status, StatusCode::OK, "{}", fresh.body);
    }
    let page = ask(&app, &client, BACK).await;
    assert!(page.status == StatusCode::OK && page.body.to_string().contains("Desk"), "{}", page.body);
    assert_eq!(server.calls("/desk.json"), 1, "it is known for an hour");
    assert_eq!(app.get("/oauth-clients").await.body["total"], 0, "it is no client of the account's");

    // One that says it is another, is no document or is not there is nobody.
    put("/other.json", &desk);
    let with = |path: &str, more: Value| {
        let mut document = desk.clone();
        document["client_id"] = at(path).into();
        document.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        put(path, &document);
    };
    with("/long.json", json!({"note": "x".repeat(16_384)}));
    with("/script.json", json!({"redirect_uris": ["javascript:alert(1)"]}));
    with("/password.json", json!({"grant_types": ["password"]}));
    with("/fine.json", json!({"note": "x".repeat(15_000)}));
    let redirect = format!("{}/to?{}", proxy.url(), at("/moved.json"));
    with("/moved.json", json!({"client_id": redirect}));
    let plain = format!("{}/desk.json", server.url());
    let wrong = ["/other.json", "/long.json", "/script.json", "/password.json", "/status/404", "/fine.json#x"].map(at);
    for client in wrong.iter().chain([&redirect, &plain]) {
        let refused = ask(&app, client, BACK).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{client}: {}", refused.body);
        assert!(refused.body.to_string().contains("not known here"), "{client}: {}", refused.body);
    }
    assert_eq!(ask(&app, &at("/fine.json"), BACK).await.status, StatusCode::OK);
    let elsewhere = ask(&app, &client, "https://evil.example/back").await;
    assert_eq!(elsewhere.status, StatusCode::BAD_REQUEST, "{}", elsewhere.body);
    let calls = server.recorded().len();
    let guarded = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let refused = ask(&guarded, &at("/fine.json"), BACK).await;
    assert!(refused.body.to_string().contains("not known here"), "{}", refused.body);
    assert_eq!(server.recorded().len(), calls, "an inner address is not asked");

    // What nobody has used for ninety days is forgotten, and a user may let it in again.
    let given = json!({"redirect_uris": [BACK], "client_name": "Lately"});
    app.send(app.anonymous(Method::POST, "/oauth/register").json(&given)).await;
    db.run("UPDATE oauth_clients SET used_ms = used_ms - CASE name WHEN 'Desk' THEN 91 ELSE 89 END * 86400000::bigint")
        .await;
    drop(app);
    let app = app_on(&db, &settings);
    let left = "SELECT count(*) AS n FROM oauth_clients WHERE name = 'Desk'";
    eventually("it is forgotten", async || (db.number(left).await == 0).then_some(())).await;
    assert_eq!(db.number("SELECT count(*) AS n FROM oauth_clients WHERE name = 'Lately'").await, 1);
    log_in(&app, &client, "ann@example.com", &[]).await;
    assert_eq!(db.number(left).await, 1);
}
