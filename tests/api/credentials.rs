//! Whoever made a credential stays its bound: it falls and shrinks with what it follows from (contract 01).

use std::time::Instant;

use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    access::{call, get, key, post},
    support::{Granted, PROGRAM, app, app_with, eventually, granted, text},
};

/// Two processes on one database.
async fn pair() -> (TestApp, TestApp) {
    let db = TestDb::new().await;
    (TestApp::start(PROGRAM, &db, &[]), TestApp::start(PROGRAM, &db, &[]))
}

/// Asks until the answer is so; it takes less than a second, since the change was told before.
async fn within_a_second(what: &str, ask: impl AsyncFn() -> Reply, is: impl Fn(&Reply) -> bool) {
    let since = Instant::now();
    loop {
        let reply = ask().await;
        if is(&reply) {
            return;
        }
        assert!(since.elapsed().as_secs_f64() < 1.0, "{what}: {} {}", reply.status, reply.body);
    }
}

/// A credential gets this code soon, on another process than the one that changed something.
async fn soon(app: &TestApp, credential: &str, path: &str, code: &str) {
    within_a_second(code, async || get(app, credential, path).await, |reply| reply.error() == code).await;
}

async fn works_soon(app: &TestApp, credential: &str, path: &str) {
    within_a_second("it works", async || get(app, credential, path).await, |reply| reply.status == StatusCode::OK)
        .await;
}

/// Makes something with a credential; its id.
fn made(reply: &Reply, field: &str) -> String {
    assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
    text(&reply.body[field])
}

async fn refresh(app: &TestApp, of: &Granted) -> Reply {
    let body = json!({"grantType": "refresh_token", "clientId": of.client_id, "refreshToken": of.refresh});
    app.send(app.anonymous(Method::POST, "/oauth/token").json(&body)).await
}

#[tokio::test]
async fn what_a_member_made_reaches_no_further_than_the_member_and_falls_with_them_on_every_process() {
    let (a, b) = pair().await;
    let project = made(&a.post("/projects", json!({"name": "P", "identifier": "p"})).await, "_id");
    for assistant in [
        json!({"name": "A", "identifier": "a", "projectId": project, "accessConfiguration": {"externalAccess": true}}),
        json!({"name": "H", "identifier": "h", "accessConfiguration": {"visibilityByRole": ["admin"]}}),
    ] {
        made(&a.post("/assistants", assistant).await, "_id");
    }
    let scopes = json!(["platform:write", "keys:write"]);
    let ann = granted(&a, "ann", "member", Some(scopes)).await;
    let members = format!("/projects/{project}/members");
    let role = async |role: &str| a.post(&members, json!({"userUID": ann.user, "role": role})).await;
    role("editor").await;
    let endpoints = json!([{"method": "*", "path": "/assistants/**"}, {"method": "POST", "path": "/tenant-sessions"}]);
    let listed = json!({"name": "k", "projectIds": [project], "allowedEndpoints": endpoints});
    let listed = post(&a, &ann.access, "/api-keys", listed).await.body;
    let (id, key) = (text(&listed["_id"]), text(&listed["key"]));
    let signed = json!({"name": "s", "projectIds": [project], "identityMode": "signed"});
    let signed = made(&post(&a, &ann.access, "/api-keys", signed).await, "key");
    let session = made(&post(&a, &signed, "/tenant-sessions", json!({"tenantId": "acme"})).await, "token");
    let path = "/assistants/a";
    for credential in [&key, &session] {
        works_soon(&b, credential, path).await;
    }
    let patch = async || call(&b, &key, Method::PATCH, path, Some(json!({"name": "B"}))).await;
    assert_eq!(patch().await.status, StatusCode::OK, "as its maker may");
    assert_eq!(get(&b, &key, "/assistants/h").await.error(), "ASSISTANT_NOT_FOUND", "nor may its maker see it");
    // Nobody takes over what another made.
    let (_, other) = self::key(&a, json!({"projectIds": [project], "preset": "ui"})).await;
    let others = a.get("/api-keys?limit=100").await.body;
    let others = others["items"].as_array().expect("keys").iter().find(|of| other.ends_with(&text(&of["last4"])));
    let rotate = format!("/api-keys/{}/rotate", text(&others.expect("the key")["_id"]));
    assert_eq!(post(&a, &ann.access, &rotate, json!({})).await.error(), "FORBIDDEN");

    // Nor does a token make a key that reaches what it does not.
    let bob = granted(&a, "bob", "member", Some(json!(["keys:write", "models:read"]))).await;
    let asks = async |more: Value| {
        let mut new = json!({"name": "wide", "projectIds": []});
        new.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        post(&a, &bob.access, "/api-keys", new).await
    };
    for wide in [
        json!({"allowedEndpoints": [{"method": "*", "path": "/**"}]}),
        json!({"allowedEndpoints": [{"method": "DELETE", "path": "/assistants/a"}]}),
        json!({"identityMode": "signed"}),
        json!({"preset": "ui"}),
        json!({"allowedDomains": ["example.com"]}),
    ] {
        assert_eq!(asks(wide.clone()).await.error(), "FORBIDDEN", "{wide}");
    }
    let narrow = asks(json!({"allowedEndpoints": [{"method": "GET", "path": "/models"}]})).await;
    assert_eq!(narrow.status, StatusCode::CREATED, "{}", narrow.body);
    let of_bob = format!("/api-keys/{}", text(&narrow.body["_id"]));
    let wide = json!({"allowedEndpoints": [{"method": "GET", "path": "/assistants/*"}]});
    assert_eq!(call(&a, &bob.access, Method::PATCH, &of_bob, Some(wide)).await.error(), "FORBIDDEN");

    role("viewer").await;
    within_a_second("a viewer", patch, |reply| reply.error() == "FORBIDDEN").await;
    a.delete(&format!("{members}/{}", ann.user)).await;
    for credential in [&key, &session] {
        soon(&b, credential, path, "PROJECT_FORBIDDEN").await;
    }
    role("owner").await;
    within_a_second("an editor again", patch, |reply| reply.status == StatusCode::OK).await;
    let of_user = format!("/users/{}", ann.user);
    a.patch(&of_user, json!({"disabled": true})).await;
    for credential in [&key, &session, &ann.access] {
        soon(&b, credential, path, "TOKEN_REVOKED").await;
    }
    // Who is let in again has their keys, and grants the rest anew.
    a.patch(&of_user, json!({"disabled": false})).await;
    works_soon(&b, &key, path).await;
    for credential in [&session, &ann.access] {
        soon(&b, credential, path, "TOKEN_REVOKED").await;
    }
    assert_eq!(a.delete(&of_user).await.status, StatusCode::OK);
    for credential in [&key, &session] {
        soon(&b, credential, path, "TOKEN_REVOKED").await;
    }
    a.patch(&format!("/api-keys/{id}"), json!({"disabled": false})).await;
    soon(&b, &key, path, "TOKEN_REVOKED").await;
}

#[tokio::test]
async fn a_full_key_ends_with_the_rights_of_the_administrator_behind_it() {
    let (a, b) = pair().await;
    let root = granted(&a, "root", "admin", Some(json!(["keys:write"]))).await;
    let first = made(&post(&a, &root.access, "/api-keys", json!({"name": "k"})).await, "key");
    let second = made(&post(&a, &first, "/api-keys", json!({"name": "k"})).await, "key");
    works_soon(&b, &second, "/users").await;
    // Only what hangs on no user is a last resort.
    let keys = a.get("/api-keys?limit=100").await.body;
    let own = keys["items"].as_array().expect("keys").iter().find(|of| a.key().ends_with(&text(&of["last4"])));
    let own = text(&own.expect("the first key")["_id"]);
    for change in [json!({"expiresAtMs": 9_999_999_999_999_i64}), json!({"disabled": true}), json!({"preset": "ui"})] {
        let refused = a.patch(&format!("/api-keys/{own}"), change).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::CONFLICT, "CONFLICT"));
    }
    assert_eq!(call(&a, &second, Method::DELETE, &format!("/api-keys/{own}"), None).await.error(), "CONFLICT");
    let of_user = format!("/users/{}", root.user);
    a.patch(&of_user, json!({"role": "member"})).await;
    for key in [&first, &second] {
        soon(&b, key, "/users", "TOKEN_REVOKED").await;
    }
    a.patch(&of_user, json!({"role": "admin"})).await;
    works_soon(&b, &second, "/users").await;
    a.delete(&of_user).await;
    for key in [&first, &second] {
        soon(&b, key, "/users", "TOKEN_REVOKED").await;
    }
}

#[tokio::test]
async fn tokens_and_the_sessions_they_minted_end_with_grant_client_and_password() {
    let (a, b) = pair().await;
    let open = json!({"name": "O", "identifier": "open", "accessConfiguration": {"externalAccess": true}});
    made(&a.post("/assistants", open).await, "_id");
    let path = "/assistants/open";
    for (name, end) in [("grant", 0), ("client", 1), ("password", 2), ("scope", 3)] {
        let scopes = json!(["platform:read", "platform:write", "keys:write"]);
        let of = granted(&a, name, "admin", Some(scopes)).await;
        let session = made(&post(&a, &of.access, "/tenant-sessions", json!({"tenantId": "acme"})).await, "token");
        // A key hangs on the grant it was made with, and so does one that was made with it.
        let key = made(&post(&a, &of.access, "/api-keys", json!({"name": "k"})).await, "key");
        let next = made(&post(&a, &key, "/api-keys", json!({"name": "l"})).await, "key");
        let own = format!("/api-keys/{}/rotate", made(&a.post("/api-keys", json!({"name": "own"})).await, "_id"));
        for by in [&of.access, &key] {
            assert_eq!(post(&a, by, &own, json!({})).await.error(), "FORBIDDEN", "it would outlive what made it");
        }
        for credential in [&of.access, &session, &key, &next] {
            works_soon(&b, credential, path).await;
        }
        let client = format!("/oauth-clients/{}", of.client);
        let ended = match end {
            0 => a.send(a.anonymous(Method::POST, "/oauth/revoke").json(&json!({"token": of.refresh}))).await,
            1 => a.delete(&client).await,
            2 => a.patch(&format!("/users/{}", of.user), json!({"password": "another long password"})).await,
            _ => a.patch(&client, json!({"scopes": ["assistants:read"]})).await,
        };
        assert_eq!(ended.status, StatusCode::OK, "{}", ended.body);
        soon(&b, &session, path, "TOKEN_REVOKED").await;
        for key in [&key, &next].into_iter().filter(|_| name != "scope") {
            soon(&b, key, path, "TOKEN_REVOKED").await;
        }
        match name {
            "client" => soon(&b, &of.access, path, "UNAUTHENTICATED").await,
            "scope" => soon(&b, &of.access, "/models", "INSUFFICIENT_SCOPE").await,
            _ => soon(&b, &of.access, path, "TOKEN_REVOKED").await,
        }
        let code = ["invalid_grant", "invalid_client", "invalid_grant", ""][end];
        assert_eq!(refresh(&b, &of).await.error(), code, "{name}");
    }
}

#[tokio::test]
async fn a_change_is_told_with_its_commit_also_when_who_made_it_says_nothing() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let project = made(&app.post("/projects", json!({"name": "P", "identifier": "p"})).await, "_id");
    made(&app.post("/assistants", json!({"name": "A", "identifier": "a", "projectId": project})).await, "_id");
    let open = json!({"name": "O", "identifier": "open", "accessConfiguration": {"externalAccess": true}});
    made(&app.post("/assistants", open).await, "_id");
    let rules = json!([{"scope": "tenant", "metric": "tokens", "windowUnit": "month", "limit": 5}]);
    app.post("/tenant-admin/tiers", json!({"tierId": "t", "name": "t", "rules": rules})).await;
    let ann = granted(&app, "ann", "member", None).await;
    let role = json!({"userUID": ann.user, "role": "viewer"});
    app.post(&format!("/projects/{project}/members"), role).await;
    let (_, key) = key(&app, json!({"preset": "ui"})).await;
    let session = made(&app.post("/tenant-sessions", json!({"tenantId": "acme"})).await, "token");
    let say = || post(&app, app.key(), "/assistants/open/messages", json!({"message": "Hi", "tenantId": "acme"}));
    assert_eq!(say().await.status, StatusCode::OK);
    app.post("/tenant-admin/acme/add-usage", json!({"tokens": 10})).await;
    for (credential, path, change, code) in [
        (&ann.access, "/assistants/a", "DELETE FROM project_members", "PROJECT_FORBIDDEN"),
        (&ann.access, "/models", "UPDATE users SET disabled = true", "TOKEN_REVOKED"),
        (&ann.access, "/models", "UPDATE users SET disabled = false", ""),
        (&ann.access, "/models", "UPDATE oauth_grants SET revoked_ms = 1", "TOKEN_REVOKED"),
        (&session, "/assistants", "UPDATE tenant_sessions SET revoked_ms = 1", "TOKEN_REVOKED"),
        (&key, "/assistants", "UPDATE api_keys SET disabled = true WHERE preset = 'ui'", "TOKEN_REVOKED"),
        (&key, "/assistants", "DELETE FROM api_keys WHERE preset = 'ui'", "UNAUTHENTICATED"),
    ] {
        let before = get(&app, credential, path).await;
        assert_ne!(before.error(), code, "before: {change}");
        db.run(change).await;
        within_a_second(change, async || get(&app, credential, path).await, |reply| reply.error() == code).await;
    }
    assert_eq!(say().await.status, StatusCode::OK);
    db.run("UPDATE tenants SET tier_id = 't'").await;
    app.post("/tenant-admin/acme/add-usage", json!({"tokens": 10})).await;
    within_a_second("a tier", async || say().await, |reply| reply.error() == "TENANT_LIMIT_EXCEEDED").await;
}

#[tokio::test]
async fn an_access_token_that_is_over_ends_nothing() {
    let app = app_with(&[("PLATFORM_OAUTH_ACCESS_TTL", "1s")]).await;
    let of = granted(&app, "ann", "admin", None).await;
    eventually("its end", async || (get(&app, &of.access, "/models").await.error() == "TOKEN_EXPIRED").then_some(()))
        .await;
    let revoked = app.send(app.anonymous(Method::POST, "/oauth/revoke").json(&json!({"token": of.access}))).await;
    assert_eq!((revoked.status, revoked.body), (StatusCode::OK, json!({})));
    assert_eq!(refresh(&app, &of).await.status, StatusCode::OK, "its family goes on");
}

#[tokio::test]
async fn what_ends_makes_nothing_that_outlives_it() {
    let app = app().await;
    let ends = json!(9_000_000_000_000_i64);
    let (id, brief) = key(&app, json!({"expiresAtMs": ends})).await;
    let (endless, _) = key(&app, json!({"preset": "ui"})).await;
    for body in [json!({"name": "x"}), json!({"name": "x", "expiresAtMs": 9_000_000_000_001_i64})] {
        let refused = post(&app, &brief, "/api-keys", body).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "FORBIDDEN"));
        assert_eq!(refused.body["details"]["expiresAtMs"], ends);
    }
    let within = json!({"name": "x", "expiresAtMs": ends, "preset": "ui"});
    assert_eq!(post(&app, &brief, "/api-keys", within).await.status, StatusCode::CREATED);
    for (id, patch) in [(&id, json!({"expiresAtMs": null})), (&endless, json!({"preset": null}))] {
        let widened = call(&app, &brief, Method::PATCH, &format!("/api-keys/{id}"), Some(patch)).await;
        assert_eq!(widened.error(), "FORBIDDEN");
    }
    let rotated = post(&app, &brief, &format!("/api-keys/{endless}/rotate"), Value::Null).await;
    assert_eq!(rotated.status, StatusCode::BAD_REQUEST);
    assert_eq!(post(&app, &brief, &format!("/api-keys/{endless}/rotate"), json!({})).await.error(), "FORBIDDEN");
    assert_eq!(post(&app, &brief, &format!("/api-keys/{id}/rotate"), json!({})).await.status, StatusCode::OK);
    assert_eq!(get(&app, &brief, "/models").await.error(), "UNAUTHENTICATED");
}
