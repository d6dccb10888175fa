//! `/v1/tenant-mcp`: MCP servers that end users bring for an assistant.

use platform_testing::{FakeMcpServer, Reply, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    integrations::app_with_crm,
    support::{eventually, say_to, text},
};

async fn app() -> (TestApp, platform_testing::TestDb) {
    let (app, _, db, _) = app_with_crm("tenant-mcp", &[]).await;
    for (name, config) in
        [("a", json!({"enabled": true, "maxServers": 2, "maxToolsPerServer": 2})), ("off", json!({"enabled": false}))]
    {
        let made = json!({"name": name, "identifier": name, "tenantMcpConfig": config,
            "accessConfiguration": {"externalAccess": true}});
        let made = app.post("/assistants", made).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    }
    (app, db)
}

fn of(who: &str) -> String {
    format!("?assistantId=a&tenantId=acme&subtenantId={who}")
}

async fn bring(app: &TestApp, who: &str, server: Value) -> Reply {
    app.post(&format!("/tenant-mcp{}", of(who)), server).await
}

async fn call(app: &TestApp, who: &str, tool: &str) -> String {
    let message = format!("/tool {tool} {{}}\nDone");
    say_to(app, "a", &json!({"message": message, "tenantId": "acme", "subtenantId": who})).await
}

#[tokio::test]
async fn the_tools_of_a_server_are_those_of_whoever_brought_it_within_what_the_assistant_allows() {
    let (app, db) = app().await;
    let server = FakeMcpServer::start();
    server.set_tools(&["echo", "second", "third"]);
    let headers = json!([{"headerName": "Authorization", "value": "Bearer header-canary"}]);
    let given = json!({"url": server.url(), "name": "My Server", "authMode": "header", "headers": headers});
    let made = bring(&app, "u1", given).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let (record, id) = (&made.body["server"], text(&made.body["server"]["id"]));
    assert_eq!((&record["status"], &record["authMode"]), (&json!("active"), &json!("header")), "{record}");
    let names: Vec<_> = record["tools"].as_array().expect("tools").iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["echo", "second"], "as many as the assistant allows");
    let listed = app.get(&format!("/tenant-mcp{}", of("u1"))).await.body;
    assert_eq!(listed["limits"], json!({"maxServers": 2, "maxToolsPerServer": 2, "used": 1}));
    assert!(!listed.to_string().contains("header-canary"), "{listed}");
    assert!(!db.dump().await.contains("header-canary"), "it is sealed");
    assert_eq!(app.get(&format!("/tenant-mcp{}", of("u2"))).await.body["servers"], json!([]));

    let said = call(&app, "u1", "my-server__echo").await;
    assert!(said.contains("echo") && !said.contains("header-canary"), "{said}");
    assert_eq!(server.requests("tools/call")[0].header("authorization"), "Bearer header-canary");
    for (who, tool) in [("u2", "my-server__echo"), ("u1", "my-server__third")] {
        assert!(call(&app, who, tool).await.contains("TOOL_NOT_AVAILABLE"), "{who} {tool}");
    }
    // Another name of the same sound, and no third.
    let second = bring(&app, "u1", json!({"url": server.url(), "name": "My server"})).await;
    assert_eq!(second.status, StatusCode::CREATED, "{}", second.body);
    assert!(call(&app, "u1", "my-server-2__echo").await.contains("echo"));
    assert_eq!(bring(&app, "u1", json!({"url": server.url()})).await.error(), "CONFLICT");
    // An assistant that allows fewer has the oldest.
    for (most, is_there) in [(1, false), (2, true)] {
        let fewer = json!({"tenantMcpConfig": {"enabled": true, "maxServers": most, "maxToolsPerServer": 2}});
        assert_eq!(app.patch("/assistants/a", fewer).await.status, StatusCode::OK);
        assert!(!call(&app, "u1", "my-server__echo").await.contains("TOOL_NOT_AVAILABLE"), "{most}");
        assert_eq!(!call(&app, "u1", "my-server-2__echo").await.contains("TOOL_NOT_AVAILABLE"), is_there, "{most}");
    }

    server.set_tools(&["other"]);
    let again = app.post(&format!("/tenant-mcp/{id}/reconnect{}", of("u1")), json!({})).await.body;
    assert_eq!(again["server"]["tools"][0]["name"], "other");
    server.be_away(true);
    let again = app.post(&format!("/tenant-mcp/{id}/reconnect{}", of("u1")), json!({})).await.body;
    assert_eq!(again["server"]["status"], "error", "{again}");
    assert!(again["server"]["statusReason"].is_string() && again["server"]["tools"][0]["name"] == "other", "{again}");
    server.be_away(false);
    // Other headers take the place of those that were given, where there are any.
    let other = json!({"headers": [{"headerName": "Authorization", "value": "Bearer other-canary"}]});
    let again = app.post(&format!("/tenant-mcp/{id}/reconnect{}", of("u1")), other.clone()).await.body;
    assert!(again["server"]["status"] == "active" && !again.to_string().contains("other-canary"), "{again}");
    assert!(call(&app, "u1", "my-server__other").await.contains("other"));
    let sent = server.requests("tools/call").pop().expect("a call");
    assert_eq!(sent.header("authorization"), "Bearer other-canary");
    let of_second = format!("/tenant-mcp/{}/reconnect{}", text(&second.body["server"]["id"]), of("u1"));
    assert_eq!(app.post(&of_second, other).await.error(), "VALIDATION_ERROR");

    let strange = format!("/tenant-mcp/{id}{}", of("u2"));
    assert_eq!(app.delete(&strange).await.error(), "SERVER_NOT_FOUND");
    assert_eq!(app.delete(&format!("/tenant-mcp/{id}{}", of("u1"))).await.body["deletedId"], json!(id));
    assert!(call(&app, "u1", "my-server__other").await.contains("TOOL_NOT_AVAILABLE"));
    app.delete("/tenants/acme").await;
    assert_eq!(db.number("SELECT count(*) AS n FROM tenant_mcp_servers").await, 0, "they go with their tenant");
}

#[tokio::test]
async fn a_server_with_a_log_in_of_its_own_is_used_as_its_user_once_they_have_decided() {
    let (app, db) = app().await;
    let server = FakeMcpServer::start();
    server.require_log_in();
    let session = app.post("/tenant-sessions", json!({"tenantId": "acme", "subtenantId": "u1"})).await;
    let token = text(&session.body["token"]);
    let own = |method: Method, path: &str| {
        app.anonymous(method, &format!("/v1/tenant-mcp{path}?assistantId=a")).bearer_auth(&token)
    };
    let refused = app.send(own(Method::POST, "").json(&json!({"url": server.url(), "name": "s"}))).await;
    assert_eq!(refused.error(), "UPSTREAM_ERROR", "without a log-in it lets nobody in: {}", refused.body);
    let given = json!({"url": server.url(), "name": "s", "authMode": "oauth"});
    let made = app.send(own(Method::POST, "").json(&given)).await;
    assert_eq!((made.status, &made.body["server"]["status"]), (StatusCode::CREATED, &json!("pending_auth")));
    let url = text(&made.body["authorizationUrl"]);
    assert!(url.starts_with(&format!("{}/authorize?", server.origin())), "{url}");
    for field in
        ["code_challenge=", "code_challenge_method=S256", "resource=http", "client_id=registered", "scope=tools"]
    {
        assert!(url.contains(field), "{field} in {url}");
    }
    assert!(call(&app, "u1", "s__echo").await.contains("TOOL_NOT_AVAILABLE"), "nobody has decided yet");
    let state = url.split("state=").nth(1).expect("a state").split('&').next().expect("it").to_owned();
    let back = format!("/v1/integrations/callback?state={state}&code=good-u1");
    let decided = app.send(app.anonymous(Method::GET, &back)).await;
    assert_eq!(decided.status, StatusCode::OK, "{}", decided.body);
    let listed = app.send(own(Method::GET, "")).await.body;
    assert_eq!(listed["servers"][0]["status"], "active", "{listed}");
    assert_eq!(listed["servers"][0]["tools"][0]["name"], "echo");
    assert!(call(&app, "u1", "s__echo").await.contains("echo"));
    assert_eq!(server.requests("tools/call")[0].header("authorization"), "Bearer token-of-u1-1");
    assert!(call(&app, "u2", "s__echo").await.contains("TOOL_NOT_AVAILABLE"));
    assert!(!server.everything().contains(&token), "a session of ours goes to nobody");
    assert!(!db.dump().await.contains("token-of-u1"), "it is sealed");

    // What it was given is taken back when the server goes.
    let gone = format!("/{}", text(&listed["servers"][0]["id"]));
    assert_eq!(app.send(own(Method::DELETE, &gone)).await.status, StatusCode::OK);
    let revoked = async || server.everything().contains("/revoke").then_some(());
    eventually("its token is revoked", revoked).await;

    // One that is not there: the record says why.
    let away = FakeMcpServer::start();
    let url = away.url().to_owned();
    let _closed = away.stop().await;
    let made = app.send(own(Method::POST, "").json(&json!({"url": url, "name": "t", "authMode": "oauth"}))).await;
    assert_eq!((made.status, &made.body["server"]["status"]), (StatusCode::CREATED, &json!("pending_auth")));
    let listed = app.send(own(Method::GET, "")).await.body;
    assert_eq!(listed["servers"][0]["status"], "error", "{listed}");
    assert!(listed["servers"][0]["statusReason"].is_string());
}

#[tokio::test]
async fn what_cannot_be_brought_is_refused_and_nothing_is_kept() {
    let (app, db) = app().await;
    let server = FakeMcpServer::start();
    let plain = format!("{}/other", server.origin());
    for (given, code) in [
        (json!({"url": "http://169.254.169.254/mcp"}), "URL_NOT_ALLOWED"),
        (json!({"url": "ftp://x"}), "URL_NOT_ALLOWED"),
        (json!({"url": ""}), "VALIDATION_ERROR"),
        (json!({}), "VALIDATION_ERROR"),
        (json!({"url": plain}), "UPSTREAM_ERROR"),
        (json!({"url": server.url(), "authMode": "magic"}), "VALIDATION_ERROR"),
        (json!({"url": server.url(), "authMode": "header"}), "VALIDATION_ERROR"),
        (json!({"url": server.url(), "headers": [{"headerName": "X-Key", "value": "v"}]}), "VALIDATION_ERROR"),
        (
            json!({"url": server.url(), "authMode": "header", "headers": [{"headerName": "Host", "value": "v"}]}),
            "VALIDATION_ERROR",
        ),
    ] {
        assert_eq!(bring(&app, "u1", given.clone()).await.error(), code, "{given}");
    }
    assert_eq!(db.number("SELECT count(*) AS n FROM tenant_mcp_servers").await, 0);
    for (path, code) in [
        ("?tenantId=acme", "VALIDATION_ERROR"),
        ("?assistantId=a", "TENANT_ID_REQUIRED"),
        ("?assistantId=off&tenantId=acme", "TENANT_INTEGRATIONS_UNAVAILABLE"),
        ("?assistantId=none&tenantId=acme", "TENANT_INTEGRATIONS_UNAVAILABLE"),
    ] {
        assert_eq!(app.get(&format!("/tenant-mcp{path}")).await.error(), code, "{path}");
    }
    for path in ["/tenant-mcp/none", "/tenant-mcp/none/reconnect"] {
        let path = format!("{path}{}", of("u1"));
        let reply = if path.contains("reconnect") { app.post(&path, json!({})).await } else { app.delete(&path).await };
        assert_eq!(reply.error(), "SERVER_NOT_FOUND");
    }
}
