//! `/v1/mcp` as the protocol has it: both families, headers, streams, what passes through.

use std::time::{Duration, Instant};

use platform_testing::{FakeMcpServer, Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    access::key,
    mcp_gateway::{MODERN, app, app_on, called, exposed, listed, modern, profile, set, wrong},
    projects::enlist,
    support::{eventually, text, user},
};

#[tokio::test]
async fn both_families_are_spoken_and_mistakes_are_answered_in_the_protocols_terms() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    let server = exposed(&app, "s", &mcp, json!({})).await;
    profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let discovered = modern(&app, "", "server/discover", json!({}), json!({})).await;
    assert_eq!(discovered.status, StatusCode::OK, "{}", discovered.body);
    let result = &discovered.body["result"];
    assert_eq!((&result["supportedVersions"][0], &result["resultType"]), (&json!(MODERN), &json!("complete")));
    assert!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"].is_string());
    let listed = modern(&app, "", "tools/list", json!({}), json!({})).await.body;
    assert_eq!((&listed["result"]["cacheScope"], &listed["result"]["ttlMs"]), (&json!("private"), &json!(0)));
    let called = modern(&app, "", "tools/call", json!({"name": "s__echo"}), json!({})).await.body;
    assert_eq!(called["result"]["resultType"], "complete", "{called}");
    for method in ["initialize", "ping", "logging/setLevel", "unknown/method"] {
        let reply = modern(&app, "", method, json!({}), json!({})).await;
        assert_eq!((reply.status, &reply.body["error"]["code"]), (StatusCode::NOT_FOUND, &json!(-32601)), "{method}");
        assert_eq!(reply.body["id"], 7);
    }
    for revision in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let ask = async |method: &str, params: Value| {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
            let request = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key());
            app.send(request.header("mcp-protocol-version", revision).json(&body)).await.body["result"].clone()
        };
        let begun = ask("initialize", json!({"protocolVersion": revision, "capabilities": {}})).await;
        assert_eq!(begun["protocolVersion"], revision, "{begun}");
        assert_eq!(ask("tools/list", json!({})).await["tools"][0]["name"], "s__echo", "{revision}");
        assert!(ask("tools/call", json!({"name": "s__echo"})).await["content"].is_array(), "{revision}");
    }
    let two = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key());
    let two = two.header("x-upstream-authorization", "Bearer a").header("x-upstream-authorization", "Bearer b");
    let two = two.json(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
    assert_eq!(app.send(two).await.error(), "BAD_REQUEST", "nobody knows which of them is meant");
    let raw = async |body: &str| {
        let request = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key());
        app.send(request.header("content-type", "application/json").body(body.to_owned())).await
    };
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for (body, status, code) in [
        ("{", 400, -32700),
        (deep.as_str(), 400, -32700),
        ("[{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}]", 400, -32600),
        ("{\"jsonrpc\": \"1.0\", \"id\": 1, \"method\": \"ping\"}", 400, -32600),
        ("{\"jsonrpc\": \"2.0\", \"id\": {}, \"method\": \"ping\"}", 400, -32600),
        ("{\"jsonrpc\": \"2.0\", \"id\": null, \"method\": \"ping\"}", 400, -32600),
        ("{\"jsonrpc\": \"2.0\", \"id\": 1}", 400, -32600),
        ("{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": []}", 400, -32602),
        ("{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {}}", 200, -32602),
        ("{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/list\", \"params\": {\"cursor\": \"x\"}}", 200, -32602),
        ("{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"nothing\"}", 200, -32601),
    ] {
        let reply = raw(body).await;
        let shown = &body[..body.len().min(80)];
        assert_eq!((reply.status.as_u16(), &reply.body["error"]["code"]), (status, &json!(code)), "{shown}");
    }
    let noted = raw("{\"jsonrpc\": \"2.0\", \"method\": \"notifications/initialized\"}").await;
    assert_eq!(noted.status, StatusCode::ACCEPTED);
    for (said, status) in [("notifications/cancelled", 202), ("notifications/initialized", 400)] {
        let request = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key()).header("mcp-method", said);
        let body = json!({"jsonrpc": "2.0", "method": "notifications/cancelled"});
        let reply = app.send(request.header("mcp-protocol-version", MODERN).json(&body)).await;
        assert_eq!(reply.status.as_u16(), status, "{said}: {}", reply.body);
    }
    let listening = app.anonymous(Method::GET, "/v1/mcp").bearer_auth(app.key()).header("accept", "text/event-stream");
    let unknown = app.send(listening.header("mcp-protocol-version", "2099-01-01")).await;
    assert_eq!((unknown.status, &unknown.body["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(-32022)));
    let supported = json!([MODERN, "2025-11-25", "2025-06-18", "2025-03-26"]);
    assert_eq!(unknown.body["error"]["data"]["supported"], supported, "{}", unknown.body);
    let gone = app.send(app.anonymous(Method::DELETE, "/v1/mcp").bearer_auth(app.key())).await;
    assert_eq!(gone.status, StatusCode::METHOD_NOT_ALLOWED);
    let large = raw(&format!("{{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"{}\"}}", "x".repeat(3 << 20))).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    // Without a credential a client is told where to log in.
    let stranger = app.send(app.anonymous(Method::POST, "/v1/mcp/default").body("{}")).await;
    let challenge = stranger.headers["www-authenticate"].to_str().expect("text").to_owned();
    let at = challenge.split("resource_metadata=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("where");
    assert!(at.ends_with("/.well-known/oauth-protected-resource/v1/mcp/default"), "{challenge}");
    let metadata = app
        .send(app.anonymous(
            Method::GET,
            at.split_once("//").and_then(|(_, rest)| rest.find('/').map(|i| &rest[i..])).expect("a path"),
        ))
        .await;
    assert_eq!(metadata.body["scopes_supported"], json!(["mcp-gateway:read"]), "{}", metadata.body);
    assert!(text(&metadata.body["resource"]).ends_with("/v1/mcp/default"));
}

#[tokio::test]
async fn an_argument_that_a_header_repeats_is_checked_and_sent_on_by_a_process_that_never_listed_the_tool() {
    let db = TestDb::new().await;
    let (one, mcp) = (app_on(&db, &[]), FakeMcpServer::start());
    mcp.be_modern();
    let region = json!({"type": "string", "x-mcp-header": "Region"});
    mcp.describe(json!([{"name": "echo", "inputSchema": {"type": "object", "properties": {"region": region}}}]));
    let server = exposed(&one, "s", &mcp, json!({})).await;
    profile(&one, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let other = app_on(&db, &[]);
    let call = async |said: Option<&str>| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {}});
        let request = other
            .anonymous(Method::POST, "/v1/mcp")
            .bearer_auth(other.key())
            .header("MCP-Protocol-Version", MODERN)
            .header("Mcp-Method", "tools/call")
            .header("Mcp-Name", "s__echo");
        let request = said.into_iter().fold(request, |request, said| request.header("Mcp-Param-Region", said));
        let params = json!({"name": "s__echo", "arguments": {"region": "eu"}, "_meta": meta});
        other.send(request.json(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))).await
    };
    for wrong in [None, Some("us")] {
        let refused = call(wrong).await;
        assert_eq!((refused.status, &refused.body["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(-32020)));
    }
    assert_eq!(mcp.requests("tools/call").len(), 0);
    assert_eq!(call(Some("eu")).await.body["result"]["resultType"], "complete");
    assert_eq!(mcp.requests("tools/call")[0].headers["mcp-param-region"], "eu");
}

/// Opens the stream of changes of the older family.
async fn listening(app: &TestApp, headers: &[(&'static str, &str)]) -> reqwest::Response {
    listening_as(app, app.key(), headers).await
}

async fn listening_as(app: &TestApp, token: &str, headers: &[(&'static str, &str)]) -> reqwest::Response {
    let request = app.anonymous(Method::GET, "/v1/mcp").bearer_auth(token).header("accept", "text/event-stream");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let stream = request.send().await.expect("a stream");
    assert_eq!(stream.status(), StatusCode::OK);
    stream
}

/// Subscribes to changes as the newer family does, past the acknowledgement.
async fn subscribed(app: &TestApp) -> reqwest::Response {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {}});
    let mut stream = app
        .anonymous(Method::POST, "/v1/mcp")
        .bearer_auth(app.key())
        .header("accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", MODERN)
        .header("Mcp-Method", "subscriptions/listen")
        .json(&json!({"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen",
            "params": {"notifications": {"toolsListChanged": true}, "_meta": meta}}))
        .send()
        .await
        .expect("a stream");
    let (_, first) = next(&mut stream).await;
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    assert_eq!(first["params"]["_meta"][SUBSCRIPTION], "sub");
    stream
}

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

#[tokio::test]
async fn a_client_that_listens_hears_of_a_change_on_every_process_also_of_one_between_two_streams() {
    let db = TestDb::new().await;
    let (one, mcp) = (app_on(&db, &[]), FakeMcpServer::start());
    let other = app_on(&db, &[]);
    let server = exposed(&one, "s", &mcp, json!({})).await;
    let made = profile(&one, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let (mut old, mut new) = (listening(&other, &[]).await, subscribed(&other).await);
    let revision = ("mcp-protocol-version", "2025-11-25");
    let (before, primed) = next(&mut listening(&other, &[revision]).await).await;
    assert_eq!(primed, Value::Null, "that revision learns first what to come back with");
    let path = format!("/mcp-gateway/profiles/{}", text(&made["_id"]));
    let off = json!({"tools": [{"name": "s__echo", "enabled": false}]});
    one.send(one.request(Method::PUT, &format!("{path}/tools")).json(&off)).await;
    let ((_, told), (after, also)) = (next(&mut new).await, next(&mut old).await);
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(told["params"]["_meta"][SUBSCRIPTION], "sub");
    assert_eq!(also, json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    assert_eq!(listed(&other, other.key(), "").await, set(&[]));
    // Whoever was away is told at once, by any process; whoever missed nothing is not.
    let late = next(&mut listening(&one, &[("last-event-id", &before)]).await).await;
    assert_eq!(late, (after.clone(), also));
    let again = next(&mut listening(&one, &[revision, ("last-event-id", &after)]).await).await;
    assert_eq!(again, (after, Value::Null));

    // Whatever it is that changes: a switch of the profile or of the caller, a grant, a server.
    let key = text(&one.get("/api-keys").await.body["items"][0]["_id"]);
    let grant = json!({"profileId": made["_id"], "subjectType": "key", "subject": key, "toolPolicy": "deny",
        "tools": ["s__echo"]});
    let mut took = Vec::new();
    let mut told = async |request: reqwest::RequestBuilder, shown: &[&str]| {
        let reply = one.send(request).await;
        let changed = Instant::now();
        assert!(reply.status.is_success(), "{}", reply.body);
        next(&mut new).await;
        took.push(changed.elapsed());
        assert_eq!(listed(&other, other.key(), "").await, set(shown));
        reply.body
    };
    let (switches, own) = (format!("{path}/tools"), "/mcp-gateway/me/tools");
    let on = json!({"tools": [{"name": "s__echo", "enabled": true}]});
    told(one.request(Method::PUT, &switches).json(&on), &["s__echo"]).await;
    told(one.request(Method::PUT, own).json(&json!({"disabled": ["s__echo"]})), &[]).await;
    told(one.request(Method::PUT, own).json(&json!({"disabled": []})), &["s__echo"]).await;
    let granted = told(one.request(Method::POST, "/mcp-gateway/grants").json(&grant), &[]).await;
    let granted = format!("/mcp-gateway/grants/{}", text(&granted["_id"]));
    told(one.request(Method::DELETE, &granted), &["s__echo"]).await;
    for (fields, shown) in [
        (json!({"enabled": false}), &[][..]),
        (json!({"enabled": true}), &["s__echo"]),
        (json!({"mcpExposed": false}), &[]),
        (json!({"mcpExposed": true}), &["s__echo"]),
    ] {
        told(one.request(Method::PATCH, &format!("/tool-servers/{server}")).json(&fields), shown).await;
    }
    // A busy machine may be late often enough.
    took.sort();
    assert!(took[took.len() / 4] < Duration::from_secs(1), "{took:?}");

    // A subscription whose profile is gone has a result, and then its end.
    one.send(one.request(Method::DELETE, &path)).await;
    let (_, over) = next(&mut new).await;
    assert_eq!((&over["id"], &over["result"]["resultType"]), (&json!("sub"), &json!("complete")), "{over}");
    assert_eq!(over["result"]["_meta"][SUBSCRIPTION], "sub");
    assert!(new.chunk().await.expect("a clean end").is_none());
}

#[tokio::test]
async fn a_client_that_listens_hears_that_it_may_use_an_assistant_or_agent_or_no_longer() {
    let db = TestDb::new().await;
    let (one, other) = (app_on(&db, &[]), app_on(&db, &[]));
    let made = one.post("/assistants", json!({"name": "helper", "identifier": "helper"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let agent = text(&one.post("/agents", json!({"name": "Worker"})).await.body["_id"]);
    let project = json!({"name": "Secret", "identifier": "secret", "visibility": "private"});
    let project = text(&one.post("/projects", project).await.body["_id"]);
    let (ann, member) = user(&one, "ann", "member").await;
    let tools = json!([{"targetType": "assistant", "targetId": "helper"},
        {"targetType": "agent", "targetId": agent, "name": "run_worker"}]);
    profile(&one, json!({"name": "default", "visibility": "account", "platformTools": tools})).await;
    let mut stream = listening_as(&other, &member, &[]).await;
    let mut told = async |reply: Reply, shown: &[&str]| {
        assert!(reply.status.is_success(), "{}", reply.body);
        assert_eq!(next(&mut stream).await.1["method"], "notifications/tools/list_changed");
        assert_eq!(listed(&other, &member, "").await, set(shown));
    };
    told(one.patch("/assistants/helper", json!({"projectId": project})).await, &["run_worker"]).await;
    told(one.patch(&format!("/agents/{agent}"), json!({"projectId": project})).await, &[]).await;
    let (both, role) = (["ask_helper", "run_worker"], format!("/users/{ann}"));
    // Whoever becomes another while they listen is told so, too.
    told(one.patch(&role, json!({"role": "admin"})).await, &both).await;
    told(one.patch(&role, json!({"role": "member"})).await, &[]).await;
    told(enlist(&one, &project, &ann, "viewer").await, &both).await;

    let (id, narrow) = key(&one, json!({"projectIds": []})).await;
    let (key, mut of_key) = (format!("/api-keys/{id}"), listening_as(&other, &narrow, &[]).await);
    let widened = one.patch(&key, json!({"projectIds": [project]})).await;
    assert_eq!(widened.status, StatusCode::OK, "{}", widened.body);
    assert_eq!(next(&mut of_key).await.1["method"], "notifications/tools/list_changed");
    assert_eq!(listed(&other, &narrow, "").await, set(&both));
    assert_eq!(one.delete(&key).await.status, StatusCode::OK);
    let end = async { while of_key.chunk().await.expect("a clean end").is_some() {} };
    tokio::time::timeout(Duration::from_secs(20), end).await.expect("the stream of a key that is gone ends");

    told(one.delete("/assistants/helper").await, &["run_worker"]).await;
    told(one.delete(&format!("/agents/{agent}")).await, &[]).await;
}

#[tokio::test]
async fn a_change_of_an_upstream_without_sessions_reaches_whoever_listens() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.be_modern();
    let server = exposed(&app, "s", &mcp, json!({})).await;
    let open = json!({"name": "default", "servers": [{"toolServerId": server}], "newToolPolicy": "enabled"});
    profile(&app, open).await;
    let mut stream = subscribed(&app).await;
    eventually("the platform listens", async || (mcp.listeners() > 0).then_some(())).await;
    mcp.set_tools(&["echo", "more"]);
    assert_eq!(next(&mut stream).await.1["method"], "notifications/tools/list_changed");
    assert_eq!(listed(&app, app.key(), "").await, set(&["s__echo", "s__more"]));
}

/// Id and message of the next event of a stream; without being told a client would look again after a minute.
async fn next(stream: &mut reqwest::Response) -> (String, Value) {
    tokio::time::timeout(Duration::from_secs(20), event(stream)).await.expect("it is told of at once")
}

async fn event(stream: &mut reqwest::Response) -> (String, Value) {
    let mut text = String::new();
    loop {
        if let Some((event, _)) = text.split_once("\n\n").filter(|(event, _)| event.contains("data: ")) {
            let of = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            let data = of("data: ").filter(|data| !data.is_empty()).unwrap_or("null");
            return (of("id: ").unwrap_or_default().to_owned(), serde_json::from_str(data).expect("JSON"));
        }
        let chunk = stream.chunk().await.expect("it goes on").expect("it has not ended");
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
}

#[tokio::test]
async fn progress_passes_through_and_what_an_upstream_asks_reaches_a_caller_that_can_answer() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.be_modern();
    mcp.set_tools(&["slow", "ask", "demand", "echo"]);
    let jwt = json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": "sek-upstream"}});
    let server = exposed(&app, "s", &mcp, jwt).await;
    profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "s__slow", "arguments": {"echo": "Bearer sek-upstream"}, "_meta": {"progressToken": "mine"}}});
    let request = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key());
    let reply = request.header("accept", "application/json, text/event-stream").json(&call).send().await.expect("it");
    assert_eq!(reply.headers()["content-type"].to_str().expect("text"), "text/event-stream; charset=utf-8");
    let events = reply.text().await.expect("to its end");
    let messages: Vec<Value> = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    let (result, told) = messages.split_last().expect("messages");
    let (logged, progress): (Vec<&Value>, Vec<&Value>) =
        told.iter().partition(|told| told["method"] == "notifications/message");
    // What an operator's log would have, without the secret that the upstream was given, and no line of detail.
    assert_eq!(logged.len(), 1, "{events}");
    assert_eq!(logged[0]["params"]["level"], "warning");
    assert!(!events.contains("sek-upstream") && events.contains("Bearer \u{2022}"), "{events}");
    assert_eq!(progress[0]["params"]["progressToken"], "mine");
    let told: Vec<f64> = progress.iter().filter_map(|of| of["params"]["progress"].as_f64()).collect();
    assert_eq!(told, (1..=40).map(f64::from).collect::<Vec<_>>(), "all of it, in order, before the result");
    assert!(result["result"]["content"].is_array(), "{events}");

    let can = json!({"elicitation": {}});
    let asked = modern(&app, "", "tools/call", json!({"name": "s__ask"}), can.clone()).await.body;
    let result = &asked["result"];
    assert_eq!(
        (&result["resultType"], &result["requestState"]),
        (&json!("input_required"), &json!("asked")),
        "{asked}"
    );
    assert_eq!(result["inputRequests"]["name"]["method"], "elicitation/create");
    let answered = json!({"name": "s__ask", "requestState": "asked",
        "inputResponses": {"name": {"action": "accept", "content": {"name": "Ada"}}}});
    let done = modern(&app, "", "tools/call", answered, can).await.body;
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    assert_eq!(
        mcp.requests("tools/call").last().expect("one").json()["params"]["inputResponses"]["name"]["content"]["name"],
        "Ada"
    );
    for asks in ["s__ask", "s__demand"] {
        assert_eq!(wrong(&called(&app, app.key(), "", asks, json!({})).await), "INPUT_REQUIRED", "{asks}");
    }
}
