//! `/`: the console, and how one is logged in to it.

use std::collections::HashMap;

use platform_testing::{Reply, TestApp};
use reqwest::{Method, StatusCode, Url, redirect::Policy};
use serde_json::{Value, json};

use crate::support::app;

const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
const CLIENT: &str = "platform-console";

async fn get(app: &TestApp, path: &str, headers: &[(&str, &str)]) -> Reply {
    let request =
        headers.iter().fold(app.anonymous(Method::GET, path), |request, (name, value)| request.header(*name, *value));
    app.send(request).await
}

/// What the console asks of the log-in page.
fn asked(app: &TestApp, more: &[(&str, &str)]) -> Url {
    let back = format!("{}/", app.url());
    let mut fields = HashMap::from([
        ("response_type", "code"),
        ("client_id", CLIENT),
        ("redirect_uri", back.as_str()),
        ("state", "s"),
        ("code_challenge", CHALLENGE),
        ("code_challenge_method", "S256"),
    ]);
    fields.extend(more.iter().copied());
    Url::parse_with_params(&format!("{}/oauth/authorize", app.url()), fields).expect("a URL")
}

/// The log-in page, with a cookie.
async fn page(app: &TestApp, cookie: &str, more: &[(&str, &str)]) -> Reply {
    let client = reqwest::Client::builder().redirect(Policy::none()).build().expect("a client");
    app.send(client.get(asked(app, more)).header("cookie", cookie)).await
}

/// What its form sends.
async fn decide(app: &TestApp, more: &[(&str, &str)], site: &str) -> Reply {
    let client = reqwest::Client::builder().redirect(Policy::none()).build().expect("a client");
    let url = asked(app, &[&[("decision", "allow")], more].concat());
    let request = client.post(format!("{}/oauth/authorize", app.url())).header("sec-fetch-site", site);
    let form = url.query().unwrap_or_default().to_owned();
    app.send(request.header("content-type", "application/x-www-form-urlencoded").body(form)).await
}

/// The value of the link that the start printed.
fn link(app: &TestApp) -> &str {
    app.log_in_link().and_then(|address| address.split_once("/#link=")).expect("the first start prints a link").1
}

/// What a redirect carries.
fn carried(sent: &Reply) -> HashMap<String, String> {
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.body);
    Url::parse(sent.header("location")).expect("a URL").query_pairs().into_owned().collect()
}

fn cookie(sent: &Reply) -> String {
    sent.header("set-cookie").split(';').next().expect("a cookie").to_owned()
}

async fn token(app: &TestApp, code: &str) -> Value {
    let body = json!({"grantType": "authorization_code", "clientId": CLIENT, "redirectUri": format!("{}/", app.url()),
        "code": code, "codeVerifier": VERIFIER});
    app.send(app.anonymous(Method::POST, "/oauth/token").json(&body)).await.body
}

#[tokio::test]
async fn a_browser_finds_the_console_where_a_client_of_the_api_finds_an_error() {
    let app = app().await;
    let page = get(&app, "/", &[("accept", "text/html,application/xhtml+xml,*/*;q=0.8")]).await;
    assert_eq!((page.status, page.header("content-type")), (StatusCode::OK, "text/html; charset=utf-8"));
    let html = page.body.as_str().expect("HTML");
    assert!(html.contains("/console/console.js") && !html.contains("<script>"), "{html}");
    let policy = page.header("content-security-policy");
    for rule in
        ["default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'", "trusted-types 'none'"]
    {
        assert!(policy.contains(rule), "{policy}");
    }
    assert_eq!(get(&app, "/", &[("accept", "TEXT/HTML; level=1; q=0.1")]).await.status, StatusCode::OK);
    for accept in ["*/*", "application/json", "text/html;q=0, */*"] {
        let refused = get(&app, "/", &[("accept", accept)]).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::NOT_FOUND, "NOT_FOUND"), "{accept}");
        assert!(refused.body["requestId"].is_string());
    }
    let script = get(&app, "/console/console.js", &[("accept-encoding", "gzip")]).await;
    assert_eq!((script.header("content-encoding"), script.status), ("gzip", StatusCode::OK));
    let plain = get(&app, "/console/console.js", &[]).await;
    assert!(plain.body.as_str().is_some_and(|text| text.len() > 50_000), "unpacked for who takes no compression");
    let known = get(&app, "/console/console.js", &[("if-none-match", script.header("etag"))]).await;
    assert_eq!(known.status, StatusCode::NOT_MODIFIED);
    assert_eq!(get(&app, "/console/other.js", &[]).await.error(), "NOT_FOUND");
}

#[tokio::test]
async fn a_link_logs_in_once_and_a_browser_is_known_until_its_user_logs_out() {
    let app = app().await;
    let link = link(&app);
    let elsewhere = decide(&app, &[("link", link)], "cross-site").await;
    assert_eq!(elsewhere.status, StatusCode::FORBIDDEN, "no other page logs anybody in");
    let sent = decide(&app, &[("link", link)], "same-origin").await;
    let set = sent.header("set-cookie");
    assert!(["HttpOnly", "SameSite=Strict", "Path=/oauth"].iter().all(|part| set.contains(part)), "{set}");
    let tokens = token(&app, &carried(&sent)["code"]).await;
    let bearer = tokens["access_token"].as_str().expect("a token");
    let read = app.send(app.anonymous(Method::GET, "/v1/agents").bearer_auth(bearer)).await;
    assert_eq!(read.status, StatusCode::OK, "{}", read.body);
    let keys = app.send(app.anonymous(Method::GET, "/v1/api-keys").bearer_auth(bearer)).await;
    assert_eq!(keys.status, StatusCode::OK, "an administrator sees keys: {}", keys.body);
    let users = app.send(app.anonymous(Method::GET, "/v1/users").bearer_auth(bearer)).await;
    assert_eq!(users.error(), "FULL_KEY_REQUIRED", "what takes a full key takes one here, too");

    let again = decide(&app, &[("link", link)], "same-origin").await;
    assert_eq!((again.status, again.header("set-cookie")), (StatusCode::UNAUTHORIZED, ""), "a link is good once");

    let known = cookie(&sent);
    let quiet = carried(&page(&app, &known, &[("prompt", "none")]).await);
    assert!(token(&app, &quiet["code"]).await["access_token"].is_string());
    assert_eq!(page(&app, &known, &[("prompt", "login")]).await.status, StatusCode::OK, "asked for, it asks again");
    let port = [("redirect_uri", "http://127.0.0.1:9/"), ("prompt", "none")];
    assert_eq!(page(&app, &known, &port).await.status, StatusCode::BAD_REQUEST, "another port is somebody else's");
    let lured = app.send(
        reqwest::Client::builder()
            .redirect(Policy::none())
            .build()
            .expect("a client")
            .get(asked(&app, &[("prompt", "none")]))
            .header("cookie", &known)
            .header("sec-fetch-site", "same-site"),
    );
    assert_eq!(carried(&lured.await)["error"], "login_required", "no other page has a code made");
    let stranger = carried(&page(&app, "other=1", &[("prompt", "none")]).await);
    assert_eq!(stranger["error"], "login_required");
    let revoke =
        || app.anonymous(Method::POST, "/oauth/revoke").header("cookie", &known).json(&json!({"token": bearer}));
    let theirs = app.send(revoke().header("origin", "https://evil.example")).await;
    assert_eq!((theirs.status, theirs.header("set-cookie")), (StatusCode::OK, ""), "no other page logs anybody out");
    assert!(carried(&page(&app, &known, &[("prompt", "none")]).await).contains_key("code"));
    let out = app.send(revoke()).await;
    assert_eq!((out.status, out.header("set-cookie").contains("Max-Age=0")), (StatusCode::OK, true));
    assert_eq!(carried(&page(&app, &known, &[("prompt", "none")]).await)["error"], "login_required");
}

#[tokio::test]
async fn what_a_browser_holds_opens_the_console_alone_and_ends_with_the_password() {
    let app = app().await;
    let known = cookie(&decide(&app, &[("link", link(&app))], "same-origin").await);
    let made = json!({"name": "Other", "redirectUris": ["https://other.example/"]});
    let other = app.post("/oauth-clients", made).await.body;
    let id = other["clientId"].as_str().expect("an id");
    let theirs = [("client_id", id), ("redirect_uri", "https://other.example/")];
    let asks = page(&app, &known, &theirs).await;
    assert!(asks.body.as_str().is_some_and(|html| html.contains("wants to act for you")), "{}", asks.body);
    let elsewhere = page(&app, &known, &[("redirect_uri", "https://elsewhere.example/")]).await;
    assert_eq!(elsewhere.status, StatusCode::BAD_REQUEST, "the console is nowhere else");
    let taken = json!({"name": "Mine", "clientId": CLIENT, "redirectUris": ["https://other.example/"]});
    assert_eq!(app.post("/oauth-clients", taken).await.error(), "IDENTIFIER_TAKEN");

    let users = app.get("/users").await.body;
    let user = users["items"].as_array().and_then(|users| users.iter().find(|user| user["email"] == "admin@localhost"));
    let user = user.and_then(|user| user["userUID"].as_str()).expect("the first user");
    let off = app.patch(&format!("/users/{user}"), json!({"disabled": true})).await;
    assert_eq!(off.status, StatusCode::OK, "{}", off.body);
    assert_eq!(carried(&page(&app, &known, &[("prompt", "none")]).await)["error"], "login_required");
    app.patch(&format!("/users/{user}"), json!({"disabled": false, "password": "correct horse battery"})).await;
    let after = page(&app, &known, &[("prompt", "none")]).await;
    assert_eq!(carried(&after)["error"], "login_required", "a new password ends what was held");
    let password = [("email", "admin@localhost"), ("password", "correct horse battery")];
    assert!(carried(&decide(&app, &password, "same-origin").await).contains_key("code"));
}
