//! What tools are called, and what is said of them by their names.

use platform_testing::FakeMcpServer;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{app, called, exposed, listed, profile, set};
use crate::support::{text, user};

#[tokio::test]
async fn what_is_said_of_a_tool_stays_with_it_when_its_alias_or_the_slug_of_its_server_is_another() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.set_tools(&["big", "echo", "other", "off"]);
    let server = exposed(&app, "up", &mcp, json!({})).await;
    let made = profile(&app, json!({"name": "default", "servers": [{"toolServerId": server, "slug": "up"}]})).await;
    let path = format!("/mcp-gateway/profiles/{}", text(&made["_id"]));
    let put = async |tools: Value| {
        let tools = app.request(Method::PUT, &format!("{path}/tools")).json(&json!({"tools": tools}));
        assert_eq!(app.send(tools).await.status, StatusCode::OK);
    };
    put(json!([{"name": "up__big", "alias": "danger"}, {"name": "up__echo", "alias": "say"}, {"name": "up__off", "enabled": false}]))
        .await;
    let grant = json!({"profileId": made["_id"], "subjectType": "tenant", "subject": "acme", "toolPolicy": "deny",
        "tools": ["danger"]});
    assert_eq!(app.post("/mcp-gateway/grants", grant).await.status, StatusCode::CREATED);
    let session = app.post("/tenant-sessions", json!({"tenantId": "acme"})).await;
    let token = text(&session.body["token"]);
    let off = app.anonymous(Method::PUT, "/v1/mcp-gateway/me/tools?profile=default").bearer_auth(&token);
    assert_eq!(app.send(off.json(&json!({"disabled": ["say"]}))).await.status, StatusCode::OK);
    assert_eq!(listed(&app, &token, "").await, set(&["up__other"]));
    // The alias of one is another's now.
    put(json!([{"name": "up__big", "alias": null}, {"name": "up__echo", "alias": "speak"}, {"name": "up__other", "alias": "say"}]))
        .await;
    assert_eq!(listed(&app, &token, "").await, set(&["say"]));
    let moved = app.patch(&path, json!({"servers": [{"toolServerId": server, "slug": "net"}]})).await;
    assert_eq!(moved.status, StatusCode::OK, "{}", moved.body);
    assert_eq!(listed(&app, &token, "").await, set(&["say"]));
    let grants = app.get("/mcp-gateway/grants").await.body;
    assert_eq!(grants["items"][0]["tools"], json!(["net__big"]));
    put(json!([{"name": "net__off", "enabled": true}, {"name": "net__echo", "alias": null}])).await;
    assert_eq!(listed(&app, &token, "").await, set(&["say", "net__off"]), "what was switched off stays so");
}

#[tokio::test]
async fn what_was_denied_under_one_name_is_denied_under_another_and_goes_with_its_subject() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.set_tools(&["wipe", "look at/it"]);
    let server = exposed(&app, "s", &mcp, json!({})).await;
    // Whatever its name, the only one that somebody was granted is the one without a name in the address.
    let made = profile(&app, json!({"name": "only", "servers": [{"toolServerId": server}]})).await;
    profile(&app, json!({"name": "default", "visibility": "public"})).await;
    let grant = json!({"profileId": made["_id"], "subjectType": "tenant", "subject": "acme", "toolPolicy": "deny",
        "tools": ["s__wipe"]});
    assert_eq!(app.post("/mcp-gateway/grants", grant).await.status, StatusCode::CREATED);
    let session = app.post("/tenant-sessions", json!({"tenantId": "acme"})).await;
    let token = text(&session.body["token"]);
    let seen = listed(&app, &token, "").await;
    let odd = seen.first().expect("one").clone();
    assert!(seen.len() == 1 && odd.starts_with("s__look_at_it_"), "a name that clients take: {seen:?}");
    assert!(called(&app, &token, "", &odd, json!({})).await.body["result"]["content"].is_array());
    let path = format!("/mcp-gateway/profiles/{}/tools", text(&made["_id"]));
    let alias = json!({"tools": [{"name": "s__wipe", "alias": "wipe", "description": "Wipes"}]});
    assert_eq!(app.send(app.request(Method::PUT, &path).json(&alias)).await.status, StatusCode::OK);
    assert_eq!(listed(&app, &token, "").await.len(), 1);
    let bare = json!({"tools": [{"name": "wipe", "alias": null, "description": null}]});
    let shown = app.send(app.request(Method::PUT, &path).json(&bare)).await.body;
    assert!(shown.as_array().expect("tools").iter().all(|tool| tool.get("alias").is_none()), "{shown}");
    assert!(!shown.to_string().contains("Wipes"), "{shown}");
    assert_eq!(listed(&app, &token, "").await.len(), 1);
    app.delete("/tenants/acme").await;
    assert_eq!(app.get("/mcp-gateway/grants").await.body["total"], 0, "nobody inherits what a tenant was granted");
}

#[tokio::test]
async fn a_preview_shows_what_a_user_sees_whose_token_says_more_than_is_known_here() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    let server = exposed(&app, "s", &mcp, json!({})).await;
    let made = profile(&app, json!({"name": "P", "slug": "sales", "servers": [{"toolServerId": server}]})).await;
    let grant = json!({"profileId": made["_id"], "subjectType": "claim", "subject": "department=sales"});
    assert_eq!(app.post("/mcp-gateway/grants", grant).await.status, StatusCode::CREATED);
    let (ann, _) = user(&app, "ann", "member").await;
    let preview =
        async |claims: &str| app.get(&format!("/mcp-gateway/preview?profile=sales&userUID={ann}{claims}")).await;
    assert_eq!(preview("").await.error(), "PROFILE_NOT_FOUND");
    assert_eq!(preview("&claims=department%3Dbuying").await.error(), "PROFILE_NOT_FOUND");
    let shown = preview("&claims=team%3Done%2Cdepartment%3Dsales").await;
    assert_eq!(shown.status, StatusCode::OK, "{}", shown.body);
    assert!(shown.body["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{}", shown.body);
    assert_eq!(preview("&claims=sales").await.error(), "VALIDATION_ERROR");
}
