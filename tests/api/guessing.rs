//! Guesses and refusals are counted, and cost nobody else anything (contract 00 §8).

use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode, Url, redirect::Policy};
use serde_json::json;

use crate::support::{PROGRAM, app_with, text};

pub const PROXIES: (&str, &str) = ("PLATFORM_TRUSTED_PROXIES", "127.0.0.0/8");
const BACK: &str = "https://app.example/back";

pub async fn client(app: &TestApp) -> String {
    text(&app.post("/oauth-clients", json!({"name": "n", "redirectUris": [BACK]})).await.body["clientId"])
}

/// Tries to log in from an address.
pub async fn log_in(app: &TestApp, client: &str, from: &str, email: &str, password: &str) -> StatusCode {
    let fields = [
        ("response_type", "code"),
        ("client_id", client),
        ("redirect_uri", BACK),
        ("code_challenge", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"),
        ("code_challenge_method", "S256"),
        ("decision", "allow"),
        ("email", email),
        ("password", password),
    ];
    let body = Url::parse_with_params("http://x/", fields).expect("a URL").query().unwrap_or_default().to_owned();
    let browser = reqwest::Client::builder().redirect(Policy::none()).build().expect("a client");
    let request = browser.post(format!("{}/oauth/authorize", app.url())).header("x-forwarded-for", from);
    app.send(request.header("content-type", "application/x-www-form-urlencoded").body(body)).await.status
}

#[tokio::test]
async fn wrong_passwords_are_slowed_by_name_and_by_address_and_the_right_person_gets_in_elsewhere() {
    let app = app_with(&[PROXIES, ("PLATFORM_RATE_BAD_CREDENTIAL", "0")]).await;
    let client = client(&app).await;
    let password = "correct horse battery";
    for name in ["ann", "bob"] {
        app.post("/users", json!({"email": format!("{name}@example.com"), "password": password})).await;
    }
    let mut judged = 0;
    for at in 0..120 {
        let (from, name) =
            (format!("10.0.0.{}", at % 6), if at % 2 == 0 { "ann@example.com" } else { "Ann@Example.com" });
        judged += usize::from(log_in(&app, &client, &from, name, "wrong").await == StatusCode::UNAUTHORIZED);
    }
    assert!((10..=50).contains(&judged), "{judged} of 120 passwords were looked at");
    let right = async |from: &str, name: &str| log_in(&app, &client, from, name, password).await;
    assert_eq!(right("10.0.0.1", "ann@example.com").await, StatusCode::TOO_MANY_REQUESTS, "who guessed waits");
    assert_eq!(right("10.0.1.1", "ann@example.com").await, StatusCode::SEE_OTHER, "elsewhere");
    assert_eq!(right("10.0.0.1", "bob@example.com").await, StatusCode::SEE_OTHER, "another name");

    // A /64 is one address, whoever is guessed.
    let mut judged = 0;
    for at in 0..60 {
        let (from, name) = (format!("2001:db8::{at:x}"), format!("user{at}@example.com"));
        judged += usize::from(log_in(&app, &client, &from, &name, "wrong").await == StatusCode::UNAUTHORIZED);
    }
    assert!((30..=50).contains(&judged), "{judged} of 60 passwords were looked at");
    // What is right does not count.
    for _ in 0..40 {
        assert_eq!(right("10.0.2.1", "bob@example.com").await, StatusCode::SEE_OTHER);
    }
}

#[tokio::test]
async fn nonsense_at_the_token_endpoint_is_slowed_and_empties_no_cache() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[PROXIES, ("PLATFORM_RATE_BAD_CREDENTIAL", "60:5")]);
    let client = client(&app).await;
    let token = async |from: &str, body: String| {
        let request = app.anonymous(Method::POST, "/oauth/token").header("x-forwarded-for", from);
        app.send(request.header("content-type", "application/json").body(body)).await
    };
    assert_eq!(app.get("/models").await.status, StatusCode::OK);
    // Whoever is remembered is not asked for again, and this change tells nobody of itself.
    db.run("ALTER TABLE api_keys DISABLE TRIGGER USER").await;
    db.run("UPDATE api_keys SET disabled = true").await;
    let code = json!({"grantType": "authorization_code", "clientId": client, "code": "ac-no", "codeVerifier": "x"});
    let refresh = json!({"grantType": "refresh_token", "clientId": client, "refreshToken": "rt-nonsense"});
    let nobody = json!({"grantType": "refresh_token", "clientId": "nobody", "refreshToken": "rt-nonsense"});
    for (at, (body, error)) in
        [(&code, "invalid_grant"), (&refresh, "invalid_grant"), (&nobody, "invalid_client")].into_iter().enumerate()
    {
        assert_eq!(token(&format!("2001:db8::{at}"), body.to_string()).await.error(), error);
    }
    assert_eq!(app.get("/models").await.status, StatusCode::OK, "nothing changed");
    let mut refused = token("2001:db8::5", code.to_string()).await;
    for _ in 0..20 {
        refused = token("2001:db8::6", code.to_string()).await;
        if refused.status == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
    }
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMIT_EXCEEDED"));
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(token("2001:db8:0:1::1", code.to_string()).await.error(), "invalid_grant", "another network");
    let broken = token("10.0.0.1", "{\"grantType\": ".to_owned()).await;
    assert_eq!((broken.status, broken.error()), (StatusCode::BAD_REQUEST, "invalid_request"));
    assert!(broken.body["error_description"].is_string() && broken.body["statusCode"].is_null(), "{}", broken.body);
}

/// A session of an end user.
async fn session(app: &TestApp, tenant: &str, subtenant: &str) -> String {
    let minted = app.post("/tenant-sessions", json!({"tenantId": tenant, "subtenantId": subtenant})).await;
    text(&minted.body["token"])
}

#[tokio::test]
async fn refusals_count_as_requests() {
    let app = app_with(&[("PLATFORM_RATE_SESSION", "60:5")]).await;
    let session = session(&app, "t", "u").await;
    let agents = async || app.send(app.anonymous(Method::GET, "/v1/agents").bearer_auth(&session)).await;
    let first = agents().await;
    assert_eq!((first.error(), first.header("ratelimit-remaining")), ("SESSION_ROUTE_FORBIDDEN", "4"));
    let all = futures_util::future::join_all((0..20).map(|_| agents())).await;
    assert!(all.iter().any(|reply| reply.error() == "RATE_LIMIT_EXCEEDED"), "refusals are free");
}

#[tokio::test]
async fn end_users_whose_names_hold_the_same_characters_share_nothing() {
    let app = app_with(&[("PLATFORM_RATE_SESSION", "1:3")]).await;
    let assistant = json!({"name": "Open", "identifier": "open", "accessConfiguration": {"externalAccess": true}});
    app.post("/assistants", assistant).await;
    let send = async |session: &str| -> Reply {
        let request = app.anonymous(Method::POST, "/v1/assistants/open/messages").bearer_auth(session);
        app.send(request.header("idempotency-key", "k").json(&json!({"message": "Hello"}))).await
    };
    let pairs = [("a|b", "c"), ("a", "b|c"), ("a|b|c", ""), ("1:a", "b"), ("1", "a1:b")];
    let mut chats = std::collections::BTreeSet::new();
    for (tenant, subtenant) in pairs {
        let mut body = json!({"tenantId": tenant});
        if !subtenant.is_empty() {
            body["subtenantId"] = subtenant.into();
        }
        let session = text(&app.post("/tenant-sessions", body).await.body["token"]);
        let sent = send(&session).await;
        assert_eq!((sent.status, sent.header("idempotent-replayed")), (StatusCode::OK, ""), "{tenant} {subtenant}");
        assert!(chats.insert(sent.header("x-chat-uid").to_owned()), "the chat of somebody else");
        for _ in 0..2 {
            assert_eq!(send(&session).await.header("idempotent-replayed"), "true");
        }
        assert_eq!(send(&session).await.error(), "RATE_LIMIT_EXCEEDED", "a rate of their own");
    }
    // The same for ids in paths.
    for path in ["/tenant-admin/a%7Cb/subtenants/c/add-usage", "/tenant-admin/a/subtenants/b%7Cc/add-usage"] {
        let request = app.request(Method::POST, path).header("idempotency-key", "k").json(&json!({"tokens": 1}));
        let added = app.send(request).await;
        assert_eq!((added.status, added.header("idempotent-replayed")), (StatusCode::OK, ""), "{path}: {}", added.body);
    }
}
