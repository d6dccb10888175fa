//! `/oauth`: users let applications act for them (contract 01 §5).

use std::collections::HashMap;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode, Url};
use serde_json::{Value, json};

use crate::support::{PROGRAM, app, eventually, user};

const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
const BACK: &str = "https://app.example/back?x=1";
const PASSWORD: &str = "correct horse battery";

/// An application and a user who may use it.
struct Fixture {
    app: TestApp,
    client: String,
    secret: Option<String>,
    user: String,
}

async fn fixture(client: Value, role: &str) -> Fixture {
    let app = app().await;
    let mut body = json!({"name": "Tool <b>", "redirectUris": [BACK, "http://127.0.0.1/cb"]});
    client.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
    let made = app.post("/oauth-clients", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let user =
        app.post("/users?strict=true", json!({"email": "Ann@example.com", "password": PASSWORD, "role": role})).await;
    assert_eq!((user.status, user.body.get("password")), (StatusCode::CREATED, None), "{}", user.body);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Fixture {
        client: text(&made.body["clientId"]).expect("an id"),
        secret: text(&made.body["clientSecret"]),
        user: text(&user.body["userUID"]).expect("an id"),
        app,
    }
}

impl Fixture {
    fn asked<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut fields = HashMap::from([
            ("response_type", "code"),
            ("client_id", self.client.as_str()),
            ("redirect_uri", BACK),
            ("state", "s 1"),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
        ]);
        fields.extend(more.iter().copied());
        fields.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }

    async fn page(&self, more: &[(&str, &str)]) -> Reply {
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        let url =
            Url::parse_with_params(&format!("{}/oauth/authorize", self.app.url()), self.asked(more)).expect("a URL");
        self.app.send(client.get(url)).await
    }

    async fn decide(&self, password: &str, more: &[(&str, &str)]) -> Reply {
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        let mut fields = self.asked(more);
        fields.extend([("email", "ann@EXAMPLE.com"), ("password", password)]);
        if !fields.iter().any(|(name, _)| *name == "decision") {
            fields.push(("decision", "allow"));
        }
        let body = Url::parse_with_params("http://x/", fields).expect("a URL").query().unwrap_or_default().to_owned();
        let request = client.post(format!("{}/oauth/authorize", self.app.url()));
        self.app.send(request.header("content-type", "application/x-www-form-urlencoded").body(body)).await
    }

    async fn code(&self, more: &[(&str, &str)]) -> String {
        let sent = self.decide(PASSWORD, more).await;
        assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.body);
        parameters(&sent)["code"].clone()
    }

    async fn token(&self, mut body: Value) -> Reply {
        body["clientId"] = self.client.as_str().into();
        if let Some(secret) = &self.secret {
            body["clientSecret"] = secret.as_str().into();
        }
        self.app.send(self.app.anonymous(Method::POST, "/oauth/token").json(&body)).await
    }

    async fn exchange(&self, code: &str) -> Reply {
        let body =
            json!({"grantType": "authorization_code", "redirectUri": BACK, "code": code, "codeVerifier": VERIFIER});
        self.token(body).await
    }

    async fn refresh(&self, token: &Value) -> Reply {
        self.token(json!({"grantType": "refresh_token", "refreshToken": token})).await
    }

    async fn get(&self, token: &Value, path: &str) -> Reply {
        let token = token.as_str().expect("a token");
        self.app.send(self.app.anonymous(Method::GET, &format!("/v1{path}")).bearer_auth(token)).await
    }
}

/// Where a user was sent, with what.
fn parameters(sent: &Reply) -> HashMap<String, String> {
    let url =
        Url::parse(sent.header("location")).unwrap_or_else(|_| panic!("a redirect: {} {}", sent.status, sent.body));
    url.query_pairs().into_owned().collect()
}

#[tokio::test]
async fn an_application_acts_for_a_user_who_let_it() {
    let fixture = fixture(json!({"scopes": ["assistants:write", "models:read"]}), "member").await;
    let page = fixture.page(&[]).await;
    assert_eq!((page.status, page.header("content-type")), (StatusCode::OK, "text/html; charset=utf-8"));
    assert_eq!(page.header("x-ignored-fields"), "", "its own parameters are read");
    let html = page.body.as_str().expect("HTML");
    assert!(html.contains("Tool &lt;b&gt; wants to act for you") && !html.contains("<script"), "{html}");
    assert!(html.contains("https://app.example"), "who asks is shown");
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(policy.contains("form-action 'self' https://app.example;"), "{policy}");

    let wrong = fixture.decide("wrong", &[]).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    assert!(!wrong.body.as_str().expect("HTML").contains("value=\"wrong\""), "a password is never shown");
    let denied = parameters(&fixture.decide(PASSWORD, &[("decision", "deny")]).await);
    assert_eq!((denied["error"].as_str(), denied["state"].as_str()), ("access_denied", "s 1"));
    let sent = fixture.decide(PASSWORD, &[]).await;
    let given = parameters(&sent);
    assert!(sent.header("location").starts_with("https://app.example/back?x=1&"), "{}", sent.header("location"));
    assert_eq!((given["state"].as_str(), given["iss"].as_str()), ("s 1", fixture.app.url()));

    let wrong = fixture
        .token(json!({"grantType": "authorization_code", "code": given["code"], "redirectUri": "https://other",
        "codeVerifier": VERIFIER}))
        .await;
    assert_eq!((wrong.status, wrong.error()), (StatusCode::BAD_REQUEST, "invalid_grant"));
    let tokens = fixture.exchange(&fixture.code(&[]).await).await;
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
    assert_eq!((&tokens.body["token_type"], &tokens.body["expires_in"]), (&json!("Bearer"), &json!(1800)));
    assert_eq!(tokens.body["scope"], "assistants:write models:read", "what the application may ask for");
    assert_eq!(tokens.header("cache-control"), "no-store");
    let access = tokens.body["access_token"].clone();
    assert_eq!(fixture.get(&access, "/assistants").await.status, StatusCode::OK);
    assert_eq!(fixture.get(&access, "/models").await.status, StatusCode::OK);
    let refused = fixture.get(&access, "/agents").await;
    assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "INSUFFICIENT_SCOPE"));
    assert_eq!(refused.body["details"]["requiredScopes"], json!(["agents:read"]));
    for path in ["/users", "/oauth-clients"] {
        assert_eq!(fixture.get(&access, path).await.error(), "FULL_KEY_REQUIRED");
    }
    let made = fixture.app.anonymous(Method::POST, "/v1/assistants").bearer_auth(access.as_str().expect("text"));
    assert_eq!(fixture.app.send(made.json(&json!({"name": "Ann's"}))).await.status, StatusCode::CREATED);

    // What introspection says, and what any verifier can check.
    let introspect = async |token: &Value| {
        let request = fixture.app.anonymous(Method::POST, "/oauth/introspect").bearer_auth(fixture.app.key());
        fixture.app.send(request.json(&json!({"token": token}))).await.body
    };
    let active = introspect(&access).await;
    assert_eq!((&active["active"], &active["sub"]), (&json!(true), &json!(fixture.user)), "{active}");
    assert_eq!(introspect(&json!("nothing")).await, json!({"active": false}));
    let jwks = fixture.app.send(fixture.app.anonymous(Method::GET, "/.well-known/jwks.json")).await.body;
    assert_eq!((&jwks["keys"][0]["kty"], &jwks["keys"][0]["crv"]), (&json!("OKP"), &json!("Ed25519")));
    assert_eq!(jwks["keys"][0].get("d"), None);
    let metadata =
        fixture.app.send(fixture.app.anonymous(Method::GET, "/.well-known/oauth-authorization-server")).await.body;
    assert_eq!(
        (&metadata["issuer"], &metadata["code_challenge_methods_supported"]),
        (&json!(fixture.app.url()), &json!(["S256"]))
    );
    let resource = fixture
        .app
        .send(fixture.app.anonymous(Method::GET, "/.well-known/oauth-protected-resource/v1/mcp/x"))
        .await
        .body;
    assert_eq!(resource["resource"], format!("{}/v1/mcp/x", fixture.app.url()));

    // A user who is shut out is out at once, and so is what they granted.
    fixture.app.patch(&format!("/users/{}", fixture.user), json!({"disabled": true})).await;
    assert_eq!(fixture.get(&access, "/assistants").await.error(), "TOKEN_REVOKED");
    assert_eq!(fixture.refresh(&tokens.body["refresh_token"]).await.error(), "invalid_grant");
    assert_eq!(fixture.decide(PASSWORD, &[]).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn tokens_are_signed_as_it_is_set_and_stay_good_when_that_changes() {
    let db = TestDb::new().await;
    let older = TestApp::start(PROGRAM, &db, &[("PLATFORM_OAUTH_ALGORITHM", "RS256")]);
    let newer = TestApp::start(PROGRAM, &db, &[]);
    let said = |token: &str| {
        let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap_or_default()).expect("base64");
        serde_json::from_slice::<Value>(&header).expect("JSON")
    };
    for (app, name, kind) in [(&older, "RS256", "RSA"), (&newer, "EdDSA", "OKP")] {
        let (_, token) = user(app, &kind.to_lowercase(), "member").await;
        let header = said(&token);
        assert_eq!(header["alg"], name);
        let jwks = app.send(app.anonymous(Method::GET, "/.well-known/jwks.json")).await.body;
        let keys = jwks["keys"].as_array().expect("keys");
        let key = keys.iter().find(|key| key["kid"] == header["kid"]).expect("its key");
        assert_eq!([&key["kty"], &key["alg"], &key["use"]], [&json!(kind), &json!(name), &json!("sig")]);
        assert!(["d", "p", "q"].iter().all(|secret| key.get(secret).is_none()), "{key}");
        for process in [&older, &newer] {
            let request = process.anonymous(Method::GET, "/v1/models").bearer_auth(&token);
            assert_eq!(process.send(request).await.status, StatusCode::OK, "{name}");
        }
        // The same words under the other algorithm's name.
        let other = if name == "RS256" { "EdDSA" } else { "RS256" };
        let header = URL_SAFE_NO_PAD.encode(header.to_string().replace(name, other));
        let forged = format!("{header}.{}", token.split_once('.').expect("a JWT").1);
        let refused = app.send(app.anonymous(Method::GET, "/v1/models").bearer_auth(&forged)).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn what_is_asked_wrongly_goes_to_the_application_only_when_it_is_proven() {
    let fixture = fixture(json!({}), "member").await;
    for (field, value) in [
        ("client_id", "nobody"),
        ("redirect_uri", "https://evil.example/back"),
        ("redirect_uri", ""),
        ("redirect_uri", "https://app.example/back"),
        ("redirect_uri", "http://127.0.0.1.evil.example/cb"),
    ] {
        let shown = fixture.page(&[(field, value)]).await;
        assert_eq!((shown.status, shown.header("location")), (StatusCode::BAD_REQUEST, ""), "{field}={value}");
        assert!(shown.body.as_str().is_some_and(|html| html.contains("This cannot be done")));
    }
    for (field, value, error) in [
        ("response_type", "token", "unsupported_response_type"),
        ("code_challenge", "", "invalid_request"),
        ("code_challenge_method", "plain", "invalid_request"),
        ("scope", "keys:write", "invalid_scope"),
        ("scope", "platform:read nonsense", "invalid_scope"),
        ("resource", "https://elsewhere.example/v1/mcp", "invalid_target"),
    ] {
        let sent = parameters(&fixture.page(&[(field, value)]).await);
        assert_eq!((sent["error"].as_str(), sent["state"].as_str()), (error, "s 1"), "{field}={value}");
        assert!(sent.contains_key("iss") && !sent.contains_key("code"));
    }
    let any_port = fixture.page(&[("redirect_uri", "http://127.0.0.1:49152/cb")]).await;
    assert_eq!(any_port.status, StatusCode::OK, "of a loopback address");
    for other in
        ["http://127.0.0.1:5/cb/../cb", "http://127.1:5/cb", "http://127.0.0.1:5\\cb", " http://127.0.0.1:5/cb"]
    {
        assert_eq!(fixture.page(&[("redirect_uri", other)]).await.status, StatusCode::BAD_REQUEST, "{other}");
    }
    // What no text can hold is nobody's.
    for (path, body, status) in [
        ("/oauth/token", "grant_type=refresh_token&client_id=%00&refresh_token=x", 401),
        ("/oauth/authorize", "client_id=%00", 400),
        ("/oauth/revoke", "token=%00", 200),
    ] {
        let form =
            fixture.app.anonymous(Method::POST, path).header("content-type", "application/x-www-form-urlencoded");
        assert_eq!(fixture.app.send(form.body(body)).await.status.as_u16(), status, "{path}");
    }
    let empty = fixture.app.anonymous(Method::POST, "/oauth/revoke").header("content-type", "application/json");
    assert_eq!(fixture.app.send(empty).await.status, StatusCode::OK, "there is nothing to revoke");
    let token = |body: Value| fixture.token(body);
    assert_eq!(token(json!({"grantType": "password"})).await.error(), "unsupported_grant_type");
    assert_eq!(token(json!({"grantType": "refresh_token"})).await.error(), "invalid_request");
    assert_eq!(token(json!({"grantType": "refresh_token", "refreshToken": "rt-x"})).await.error(), "invalid_grant");
    let code = fixture.code(&[]).await;
    let wrong = token(json!({"grantType": "authorization_code", "code": code, "codeVerifier": "x".repeat(43)})).await;
    assert_eq!(wrong.error(), "invalid_grant");
    assert_eq!(fixture.exchange(&code).await.error(), "invalid_grant", "a code is tried once");
    let form =
        fixture.app.anonymous(Method::POST, "/oauth/token").header("content-type", "application/x-www-form-urlencoded");
    let unknown = fixture.app.send(form.body("grant_type=refresh_token&client_id=nobody")).await;
    assert_eq!((unknown.status, unknown.error()), (StatusCode::UNAUTHORIZED, "invalid_client"));
    let named = |id: &str| json!({"name": "n", "redirectUris": ["https://a.b/"], "clientId": id});
    for bad in ["ab", &"x".repeat(65), "a b", "https://a.b/", "\u{e4}\u{e4}\u{e4}"] {
        let refused = fixture.app.post("/oauth-clients", named(bad)).await;
        assert_eq!(refused.body["details"]["issues"][0]["path"], "clientId", "{bad}: {}", refused.body);
    }
    for uri in ["http://app.example/x", "https://a.b/#f", "javascript:alert(1)", "/back", "https://u:p@a.b/"] {
        let refused = fixture.app.post("/oauth-clients", json!({"name": "n", "redirectUris": [uri]})).await;
        assert_eq!(refused.error(), "VALIDATION_ERROR", "{uri}");
    }
    assert_eq!(
        fixture.app.post("/users", json!({"email": "a@b.c", "password": "short"})).await.error(),
        "VALIDATION_ERROR"
    );
    assert_eq!(
        fixture.app.post("/users", json!({"email": "ANN@example.com", "password": PASSWORD})).await.error(),
        "NAME_TAKEN"
    );
}

#[tokio::test]
async fn a_client_goes_by_the_id_that_it_was_given_and_nobody_else_does() {
    let fixture = fixture(json!({"clientId": "My-App_1.0"}), "member").await;
    assert_eq!(fixture.client, "My-App_1.0");
    let code = fixture.code(&[]).await;
    let tokens = fixture.exchange(&code).await;
    assert_eq!(tokens.body["scope"], "platform:read platform:write", "{}", tokens.body);
    let again = json!({"name": "n", "redirectUris": ["https://a.b/"], "clientId": "My-App_1.0"});
    let taken = fixture.app.post("/oauth-clients", again).await;
    assert_eq!((taken.status, taken.error()), (StatusCode::CONFLICT, "IDENTIFIER_TAKEN"));
    let path = format!(
        "/oauth-clients/{}",
        fixture.app.get("/oauth-clients").await.body["items"][0]["_id"].as_str().expect("an id")
    );
    let renamed = fixture.app.patch(&path, json!({"clientId": "other"})).await;
    assert_eq!((renamed.status, renamed.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"));
    let same = fixture.app.patch(&path, json!({"clientId": "My-App_1.0", "name": "New"})).await;
    assert_eq!((&same.body["clientId"], &same.body["name"]), (&json!("My-App_1.0"), &json!("New")), "{}", same.body);
    fixture.app.patch(&path, json!({"scopes": ["platform:read"]})).await;
    let narrowed = fixture.refresh(&tokens.body["refresh_token"]).await;
    assert_eq!(narrowed.body["scope"], "platform:read", "what it may no longer ask for is not granted anew");
}

#[tokio::test]
async fn tokens_of_a_family_are_good_once_and_end_together() {
    let fixture = fixture(json!({"confidential": true}), "admin").await;
    let code = fixture.code(&[("scope", "platform:read")]).await;
    let body = json!({"grantType": "authorization_code", "code": code, "codeVerifier": VERIFIER, "clientId": fixture.client,
        "clientSecret": "cs-wrong"});
    let wrong = fixture.app.send(fixture.app.anonymous(Method::POST, "/oauth/token").json(&body)).await;
    assert_eq!((wrong.status, wrong.error()), (StatusCode::UNAUTHORIZED, "invalid_client"));
    let secret = fixture.secret.clone().expect("a secret");
    let form = format!("grant_type=authorization_code&code={code}&code_verifier={VERIFIER}");
    let basic = fixture.app.anonymous(Method::POST, "/oauth/token").basic_auth(&fixture.client, Some(&secret));
    let first = fixture.app.send(basic.header("content-type", "application/x-www-form-urlencoded").body(form)).await;
    assert_eq!((first.status, &first.body["scope"]), (StatusCode::OK, &json!("platform:read")), "{}", first.body);
    let second = fixture.refresh(&first.body["refresh_token"]).await;
    assert_eq!(second.status, StatusCode::OK);
    let repeated = fixture.refresh(&first.body["refresh_token"]).await;
    assert_eq!(repeated.body, second.body, "a repetition within ten seconds gets the same pair");
    let wider = fixture
        .token(json!({"grantType": "refresh_token", "refreshToken": second.body["refresh_token"],
        "scope": "platform:write"}))
        .await;
    assert_eq!(wider.error(), "invalid_scope");
    assert_eq!(fixture.get(&second.body["access_token"], "/models").await.status, StatusCode::OK);

    // A code that comes twice was stolen by one of the two.
    let code = fixture.code(&[]).await;
    let tokens = fixture.exchange(&code).await.body;
    assert_eq!(fixture.get(&tokens["access_token"], "/models").await.status, StatusCode::OK);
    assert_eq!(fixture.exchange(&code).await.error(), "invalid_grant");
    assert_eq!(fixture.get(&tokens["access_token"], "/models").await.error(), "TOKEN_REVOKED");
    assert_eq!(fixture.refresh(&tokens["refresh_token"]).await.error(), "invalid_grant");

    // Revoking either token ends both.
    let revoke = fixture.app.anonymous(Method::POST, "/oauth/revoke");
    let revoked = fixture
        .app
        .send(revoke.json(&json!({"token": second.body["refresh_token"], "clientId": fixture.client})))
        .await;
    assert_eq!((revoked.status, &revoked.body), (StatusCode::OK, &json!({})));
    assert_eq!(fixture.get(&second.body["access_token"], "/models").await.error(), "TOKEN_REVOKED");
    assert_eq!(fixture.refresh(&second.body["refresh_token"]).await.error(), "invalid_grant");
    let nothing = fixture.app.anonymous(Method::POST, "/oauth/revoke").json(&json!({"token": "nothing"}));
    assert_eq!(fixture.app.send(nothing).await.status, StatusCode::OK);

    // A token for one resource is good for no other.
    let mcp = format!("{}/v1/mcp", fixture.app.url());
    let tokens = fixture.exchange(&fixture.code(&[("resource", &mcp)]).await).await.body;
    assert_eq!(fixture.get(&tokens["access_token"], "/models").await.error(), "FORBIDDEN");
    for forged in [
        tokens["access_token"].as_str().expect("text").replace('.', ".x"),
        format!("{}x", tokens["access_token"].as_str().expect("text")),
    ] {
        assert_eq!(fixture.get(&json!(forged), "/models").await.error(), "UNAUTHENTICATED");
    }
}

#[tokio::test]
async fn a_stolen_refresh_token_ends_its_family_on_every_process_and_tries_to_log_in_are_counted() {
    let db = TestDb::new().await;
    let settings = [("PLATFORM_OAUTH_ACCESS_TTL", "2s"), ("PLATFORM_RATE_BAD_CREDENTIAL", "60:4")];
    let (a, b) = (TestApp::start(PROGRAM, &db, &settings), TestApp::start(PROGRAM, &db, &settings));
    let made = a.post("/oauth-clients", json!({"name": "n", "redirectUris": [BACK]})).await.body;
    a.post("/users", json!({"email": "ann@example.com", "password": PASSWORD})).await;
    let client = made["clientId"].as_str().expect("an id").to_owned();
    let fixture = Fixture { app: a, client, secret: None, user: String::new() };
    let first = fixture.exchange(&fixture.code(&[]).await).await.body;
    let second = fixture.refresh(&first["refresh_token"]).await.body;
    let elsewhere = async |token: &Value| {
        let token = token.as_str().expect("text").to_owned();
        b.send(b.anonymous(Method::GET, "/v1/models").bearer_auth(token)).await
    };
    assert_eq!(elsewhere(&second["access_token"]).await.status, StatusCode::OK);
    db.run("UPDATE oauth_refresh_tokens SET used_ms = used_ms - 10001 WHERE used_ms IS NOT NULL").await;
    assert_eq!(fixture.refresh(&first["refresh_token"]).await.error(), "invalid_grant");
    eventually("the end elsewhere", async || {
        (elsewhere(&second["access_token"]).await.error() == "TOKEN_REVOKED").then_some(())
    })
    .await;
    assert_eq!(fixture.refresh(&second["refresh_token"]).await.error(), "invalid_grant", "the whole family");
    let short = fixture.exchange(&fixture.code(&[]).await).await.body;
    eventually("its time", async || (elsewhere(&short["access_token"]).await.error() == "TOKEN_EXPIRED").then_some(()))
        .await;
    let tries = futures_util::future::join_all((0..8).map(|_| fixture.decide("wrong", &[]))).await;
    assert!(tries.iter().any(|tried| tried.status == StatusCode::TOO_MANY_REQUESTS), "guessing is slow");
}
