//! The servers behind the MCP endpoint: whose credentials they get, and what becomes of those that are away or lie.

use platform_testing::{FakeMcpServer, FakeToolServer, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{app, app_on, called, exposed, listed, modern, names, profile, rpc, set, wrong};
use crate::support::{eventually, peak_memory, text, tool};

#[tokio::test]
async fn calls_carry_the_credentials_that_the_server_says_and_never_the_callers() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    let shared = json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": "shared-canary"}});
    let one = exposed(&app, "one", &mcp, shared).await;
    let two = exposed(&app, "two", &mcp, json!({"mcpAuthMode": "passthrough"})).await;
    let servers = json!([{"toolServerId": one}, {"toolServerId": two}]);
    profile(&app, json!({"name": "default", "servers": servers, "auditPayloads": true})).await;
    let key = app.key().to_owned();
    called(&app, &key, "", "one__echo", json!({})).await;
    let sent = |at: usize| mcp.requests("tools/call")[at].header("authorization").to_owned();
    assert_eq!(sent(0), "Bearer shared-canary");
    assert_eq!(wrong(&called(&app, &key, "", "two__echo", json!({})).await), "BAD_REQUEST");
    for own in ["alice-of-upstream", "bob-of-upstream"] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "two__echo", "arguments": {"again": own}}});
        let bearer = format!("Bearer {own}");
        let request =
            app.anonymous(Method::POST, "/v1/mcp").bearer_auth(&key).header("X-Upstream-Authorization", bearer);
        let reply = app.send(request.json(&body)).await;
        assert!(reply.body["result"]["isError"].is_null(), "{}", reply.body);
        assert!(!reply.body.to_string().contains(own), "what is echoed is taken out: {}", reply.body);
        let audit = app.get("/mcp-gateway/audit").await.body;
        assert!(!audit.to_string().contains(own), "{audit}");
    }
    assert_eq!((sent(1), sent(2)), ("Bearer alice-of-upstream".to_owned(), "Bearer bob-of-upstream".to_owned()));
    // Whoever has a credential of its own needs none of the caller's.
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "one__echo"}});
    let request = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(&key);
    app.send(request.header("X-Upstream-Authorization", "Bearer stray-canary").json(&body)).await;
    assert_eq!(sent(3), "Bearer shared-canary");
    let everything = mcp.everything();
    assert!(!everything.contains(&key) && !everything.contains("stray-canary"), "the caller's own goes nowhere");
}

#[tokio::test]
async fn each_user_calls_a_server_with_a_log_in_of_its_own_as_themselves() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    // Its tools are known before it wants a log-in.
    let server = exposed(&app, "s", &mcp, json!({"mcpAuthMode": "per_user"})).await;
    mcp.require_log_in();
    let servers = json!([{"toolServerId": server}]);
    profile(&app, json!({"name": "default", "visibility": "public", "servers": servers, "auditPayloads": true})).await;
    let mut tokens = Vec::new();
    for user in ["u1", "u2"] {
        let made = app.post("/tenant-sessions", json!({"tenantId": "acme", "subtenantId": user})).await;
        tokens.push(text(&made.body["token"]));
    }
    for (user, token) in ["u1", "u2"].iter().zip(&tokens) {
        let reply = called(&app, token, "", "s__echo", json!({})).await;
        assert_eq!(wrong(&reply), "NOT_CONNECTED");
        let url = text(&reply.body["result"]["structuredContent"]["connectUrl"]);
        let state = url.split("state=").nth(1).and_then(|rest| rest.split('&').next()).expect("a state");
        let back = format!("/v1/integrations/callback?state={state}&code=good-{user}");
        assert_eq!(app.send(app.anonymous(Method::GET, &back)).await.status, StatusCode::OK);
        let reply = called(&app, token, "", "s__echo", json!({})).await;
        assert!(reply.body["result"]["isError"].is_null(), "{}", reply.body);
        let sent = mcp.requests("tools/call").last().expect("a call").header("authorization").to_owned();
        assert!(sent.starts_with(&format!("Bearer token-of-{user}-")), "{sent}");
        // A server that says what it was given tells nobody.
        let canary = sent.trim_start_matches("Bearer ");
        let echoed = called(&app, token, "", "s__echo", json!({})).await.body.to_string();
        let audit = app.get("/mcp-gateway/audit").await.body.to_string();
        assert!(!echoed.contains(canary) && !audit.contains(canary), "{echoed} {audit}");
    }
    let again = called(&app, &tokens[0], "", "s__echo", json!({})).await;
    assert!(again.body["result"]["isError"].is_null());
    let sent = mcp.requests("tools/call").last().expect("a call").header("authorization").to_owned();
    assert!(sent.starts_with("Bearer token-of-u1-"), "nobody calls as somebody else: {sent}");
    // A client that can open an address is asked to, instead of being told.
    let opens = json!({"elicitation": {"url": {}}});
    let asked = modern(&app, "", "tools/call", json!({"name": "s__echo"}), opens.clone()).await.body;
    let connect = &asked["result"]["inputRequests"]["connect"]["params"];
    assert_eq!(
        (&asked["result"]["resultType"], &connect["mode"]),
        (&json!("input_required"), &json!("url")),
        "{asked}"
    );
    let url = text(&connect["url"]);
    let state = url.split("state=").nth(1).and_then(|rest| rest.split('&').next()).expect("a state");
    let answers = async |action: &str| {
        let params = json!({"name": "s__echo", "requestState": asked["result"]["requestState"],
            "inputResponses": {"connect": {"action": action}}});
        modern(&app, "", "tools/call", params, opens.clone()).await
    };
    assert_eq!(wrong(&answers("decline").await), "NOT_CONNECTED");
    let back = format!("/v1/integrations/callback?state={state}&code=good-u3");
    assert_eq!(app.send(app.anonymous(Method::GET, &back)).await.status, StatusCode::OK);
    let done = answers("accept").await.body;
    assert!(done["result"]["content"].is_array() && done["result"]["isError"].is_null(), "{done}");
    let sent = mcp.requests("tools/call").pop().expect("a call");
    assert!(!sent.body.contains("inputResponses"), "an answer to us goes no further: {sent:?}");
    // A server at another address gets none of these tokens.
    let moved = FakeMcpServer::start();
    app.patch(&format!("/tool-servers/{server}"), json!({"url": moved.url()})).await;
    let reply = called(&app, &tokens[0], "", "s__echo", json!({})).await;
    assert_eq!(reply.body["result"]["isError"], true, "{}", reply.body);
    assert!(!moved.everything().contains("token-of-u1"), "{}", moved.everything());
    assert!(tokens.iter().all(|token| !mcp.everything().contains(token)), "a caller's own goes nowhere");
}

#[tokio::test]
async fn a_server_that_is_away_keeps_its_tools_for_a_while_and_pages_of_others_are_refused() {
    let db = TestDb::new().await;
    let app = app_on(&db, &[("PLATFORM_CORS_ORIGINS", "https://good.example")]);
    let mcp = FakeMcpServer::start();
    let server = exposed(&app, "s", &mcp, json!({})).await;
    let made = profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let health = async || text(&app.get("/mcp-gateway/servers").await.body["items"][0]["health"]);
    assert_eq!(health().await, "ok");
    mcp.be_away(true);
    let tried = app.post(&format!("/tool-servers/{server}/tools/echo/test"), json!({"parameters": {}})).await.body;
    assert_eq!(tried["success"], false, "{tried}");
    eventually("a call that it does not answer is noted", async || (health().await == "degraded").then_some(())).await;
    eventually("it is asked when it is used", async || (health().await == "down").then_some(())).await;
    let refreshed = app.post(&format!("/mcp-gateway/servers/{server}/refresh"), json!({})).await;
    assert_eq!(refreshed.error(), "UPSTREAM_ERROR");
    let shown = rpc(&app, app.key(), "", "tools/list", json!({})).await.body;
    assert_eq!(shown["result"]["tools"][0]["_meta"]["stale"], true, "{shown}");
    assert_eq!(wrong(&called(&app, app.key(), "", "s__echo", json!({})).await), "UPSTREAM_ERROR");
    let servers = app.get("/mcp-gateway/servers").await.body;
    assert_eq!((&servers["items"][0]["health"], &servers["items"][0]["toolCount"]), (&json!("down"), &json!(1)));
    let audit = app.get("/mcp-gateway/audit?outcome=upstream_error").await.body;
    assert_eq!(audit["total"], 1, "{audit}");
    let later = async |minutes: i64| {
        let ago = format!("UPDATE tool_servers SET down_since_ms = down_since_ms - {}", minutes * 60_000);
        db.run(&ago).await;
        let started = app_on(&db, &[]);
        listed(&started, started.key(), "").await
    };
    assert_eq!(later(9).await, set(&["s__echo"]), "a process that was started since shows them as long as others do");
    assert_eq!(later(2).await, set(&[]), "and no longer");
    mcp.be_away(false);
    eventually("it is asked again soon, by itself", async || {
        let listed = rpc(&app, app.key(), "", "tools/list", json!({})).await.body;
        let tool = &listed["result"]["tools"][0];
        (tool["name"] == "s__echo" && tool.get("_meta").is_none()).then_some(())
    })
    .await;
    assert_eq!(health().await, "ok");
    let object = json!({"type": "object"});
    mcp.describe(json!([{"name": "echo", "title": "Echo", "description": "Does echo", "inputSchema": object,
        "outputSchema": {"type": "object", "title": "What was said"}}]));
    app.post(&format!("/mcp-gateway/servers/{server}/refresh"), json!({})).await;
    let on = json!({"tools": [{"name": "s__echo", "enabled": true}]});
    app.send(app.request(Method::PUT, &format!("/mcp-gateway/profiles/{}/tools", text(&made["_id"]))).json(&on)).await;
    let tool = rpc(&app, app.key(), "", "tools/list", json!({})).await.body["result"]["tools"][0].clone();
    assert_eq!((&tool["title"], &tool["outputSchema"]["title"]), (&json!("Echo"), &json!("What was said")), "{tool}");
    let from = async |method: Method, origin: &str| {
        let request = app.anonymous(method, "/v1/mcp").bearer_auth(app.key()).header("origin", origin);
        let request = request.header("accept", "application/json, text/event-stream");
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        request.json(&ping).send().await.expect("an answer").status()
    };
    for method in [Method::POST, Method::GET] {
        for (origin, status) in [("https://evil.example", 403), ("https://good.example", 200), (app.url(), 200)] {
            assert_eq!(from(method.clone(), origin).await.as_u16(), status, "{method} {origin}");
        }
    }
}

#[tokio::test]
async fn a_server_that_lies_ends_in_an_error_of_its_own_calls_and_changes_nobody_elses_list() {
    let (app, liar, honest) = (app().await, FakeMcpServer::start(), FakeMcpServer::start());
    liar.set_tools(&["stranger", "swapped", "endless", "huge", "page", "hang"]);
    let first = exposed(&app, "liar", &liar, json!({"timeoutMs": 1000})).await;
    let second = exposed(&app, "honest", &honest, json!({})).await;
    let servers = json!([{"toolServerId": first}, {"toolServerId": second}]);
    profile(&app, json!({"name": "default", "newToolPolicy": "enabled", "servers": servers})).await;
    let key = app.key().to_owned();
    let lies = [
        ("stranger", "UPSTREAM_ERROR"),
        ("swapped", "UPSTREAM_ERROR"),
        ("swapped", "UPSTREAM_ERROR"),
        ("endless", "UPSTREAM_TIMEOUT"),
        ("hang", "UPSTREAM_TIMEOUT"),
        ("huge", "RESPONSE_TOO_LARGE"),
        ("page", "UPSTREAM_ERROR"),
    ];
    let calls = lies.map(|(name, code)| {
        let (app, key) = (&app, &key);
        async move { (code, wrong(&called(app, key, "", &format!("liar__{name}"), json!({})).await)) }
    });
    for (expected, code) in futures_util::future::join_all(calls).await {
        assert_eq!(code, expected);
    }
    assert!(called(&app, &key, "", "honest__echo", json!({})).await.body["result"]["isError"].is_null());
    let late = app.get("/mcp-gateway/audit?outcome=timeout").await.body;
    assert_eq!(late["total"], 2, "{late}");
    assert!(late["items"][0]["durationMs"].as_i64().is_some_and(|took| took >= 1000), "{late}");

    // A list that cannot be read leaves the one that was there.
    let object = json!({"type": "object"});
    let tool = |name: &str, schema: &Value| json!({"name": name, "description": "Does it", "inputSchema": schema});
    let bomb = (0..200).fold(object.clone(), |of, _| json!({"type": "object", "properties": {"a": of}}));
    let refresh = format!("/mcp-gateway/servers/{first}/refresh");
    let before = listed(&app, &key, "").await;
    for lie in [json!([tool("deep", &bomb)]), json!([{"description": "x"}, 7])] {
        liar.describe(lie);
        assert_eq!(app.post(&refresh, json!({})).await.error(), "UPSTREAM_ERROR");
        assert_eq!(listed(&app, &key, "").await, before);
    }
    // Names are its own, whatever it writes into them, and what is too long is left out.
    liar.describe(json!([
        tool("echo", &object), tool("echo", &json!({"type": "object", "title": "again"})), tool("honest__echo", &object),
        tool(&"n".repeat(5000), &object), tool("line\nbreak", &object), tool("", &object),
        {"name": "said", "description": "x".repeat(2 << 20), "inputSchema": object},
    ]));
    assert_eq!(app.post(&refresh, json!({})).await.body["health"], "ok");
    let mut left = listed(&app, &key, "").await;
    for name in ["honest__echo", "liar__echo", "liar__honest__echo"] {
        assert!(left.remove(name), "{name}");
    }
    let is_fit = |name: &String| name.starts_with("liar__") && name.len() <= 64 && !name.contains('\n');
    assert!(left.len() == 2 && left.iter().all(is_fit), "{left:?}");
    called(&app, &key, "", "honest__echo", json!({})).await;
    assert_eq!(honest.requests("tools/call").len(), 2);
    // One tool that is described in a way that clients refuse does not take the others of the list with it.
    let good =
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!b)a"}, "b": {"$ref": "#"}}});
    let output = |name: &str, schema: Value| json!({"name": name, "inputSchema": object, "outputSchema": schema});
    let odd = json!({"properties": {"a": true, "b": false, "c": 5}, "required": ["a", 7]});
    liar.describe(json!([
        {"name": "odd", "inputSchema": odd, "description": 5, "annotations": {"title": 5, "readOnlyHint": true}},
        {"name": "text", "inputSchema": "none"},
        {"name": "lists", "inputSchema": {"type": "object", "properties": [], "required": null}},
        output("array", json!({"type": "array"})), output("unknown", json!({"type": "object", "properties": {"a": {"type": "x"}}})),
        output("draft", json!({"$schema": "https://acme.example/draft", "type": "object"})),
        output("dangling", json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}})),
        output("pattern", json!({"type": "object", "properties": {"a": {"pattern": "("}}})), output("page", good.clone()),
        output("letters", json!({"type": "object", "properties": {"a": {"pattern": format!("(?i){}", "\\pL".repeat(8000))}}})),
    ]));
    let before = peak_memory(&app);
    assert_eq!(app.post(&refresh, json!({})).await.body["health"], "ok");
    assert!(peak_memory(&app) < before + 100, "{before} MiB, then {}", peak_memory(&app));
    let list = rpc(&app, &key, "", "tools/list", json!({})).await.body["result"]["tools"].clone();
    let find = |name: &str| {
        let tools = list.as_array().expect("tools").iter();
        tools.clone().find(|tool| tool["name"] == format!("liar__{name}")).expect("a tool").clone()
    };
    let spelled = json!({"type": "object", "properties": {"a": {}, "b": {"not": {}}, "c": {}}, "required": ["a"]});
    assert_eq!((&find("odd")["inputSchema"], &find("odd")["annotations"]["title"]), (&spelled, &Value::Null), "{list}");
    assert_eq!(find("odd")["annotations"]["readOnlyHint"], true);
    let empty = json!({"type": "object", "properties": {}, "required": []});
    assert_eq!((&find("text")["inputSchema"], &find("lists")["inputSchema"]), (&empty, &empty), "{list}");
    for name in ["array", "unknown", "draft", "dangling", "pattern", "letters"] {
        assert_eq!(find(name).get("outputSchema"), None, "{name}");
    }
    assert_eq!(find("page")["outputSchema"], good);
    // Its failures have nothing that clients would hold against that schema.
    let failed = called(&app, &key, "", "liar__page", json!({})).await;
    assert!(!wrong(&failed).is_empty() && failed.body["result"].get("structuredContent").is_none(), "{}", failed.body);
}

#[tokio::test]
async fn the_tools_of_a_server_that_lets_nobody_look_are_there_once_somebody_has_logged_in() {
    let (db, mcp) = (TestDb::new().await, FakeMcpServer::start());
    let app = app_on(&db, &[]);
    mcp.require_log_in();
    mcp.be_modern();
    let server = exposed(&app, "s", &mcp, json!({"mcpAuthMode": "per_user"})).await;
    let made = profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let key = app.key().to_owned();
    assert_eq!(listed(&app, &key, "").await, set(&["s__log_in"]));
    let reply = called(&app, &key, "", "s__log_in", json!({})).await;
    assert_eq!(wrong(&reply), "NOT_CONNECTED");
    let url = text(&reply.body["result"]["structuredContent"]["connectUrl"]);
    let again = called(&app, &key, "", "s__log_in", json!({})).await;
    assert_eq!(again.body["result"]["structuredContent"]["connectUrl"], json!(url), "one log-in is under way");
    assert_eq!(mcp.requests("tools/list").len(), 0, "nobody was let in yet");
    let state = url.split("state=").nth(1).and_then(|rest| rest.split('&').next()).expect("a state");
    let back = format!("/v1/integrations/callback?state={state}&code=good-ann");
    assert_eq!(app.send(app.anonymous(Method::GET, &back)).await.status, StatusCode::OK);
    let reply = called(&app, &key, "", "s__log_in", json!({})).await;
    assert_eq!(reply.body["result"]["structuredContent"]["tools"], 1, "{}", reply.body);
    assert_eq!(listed(&app, &key, "").await, set(&["s__echo"]));
    assert!(called(&app, &key, "", "s__echo", json!({})).await.body["result"]["isError"].is_null());
    // What was put in unseen is seen from now on, also what changes: over the connection of who is logged in, when the
    // server tells of it, and when the list is old.
    let told = |what: &str| json!([{"name": "echo", "description": what, "inputSchema": {"type": "object"}}]);
    eventually("it listens over that connection", async || (mcp.listeners() == 1).then_some(())).await;
    mcp.describe(told("Other"));
    eventually("it is new", async || (listed(&app, &key, "").await == set(&[])).then_some(())).await;
    let tools = format!("/mcp-gateway/profiles/{}/tools", text(&made["_id"]));
    let on = json!({"tools": [{"name": "s__echo", "enabled": true}]});
    app.send(app.request(Method::PUT, &tools).json(&on)).await;
    assert_eq!(listed(&app, &key, "").await, set(&["s__echo"]));
    db.run("UPDATE tool_servers SET refreshed_ms = 0").await;
    let second = app_on(&db, &[]);
    mcp.be_quiet();
    mcp.describe(told("Another"));
    assert!(called(&second, &key, "", "s__echo", json!({})).await.body["result"]["isError"].is_null());
    eventually("it is new again", async || (listed(&app, &key, "").await == set(&[])).then_some(())).await;
    let servers = app.get("/mcp-gateway/servers").await.body;
    assert_eq!(servers["items"][0]["health"], "ok", "who wants each caller's own is not down: {servers}");
}

#[tokio::test]
async fn the_tools_of_a_server_that_wants_each_callers_header_are_listed_with_it() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.require_log_in();
    let server = exposed(&app, "s", &mcp, json!({"mcpAuthMode": "passthrough"})).await;
    profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let with = async |header: &str, method: &str, params: Value| {
        let request = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key());
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        app.send(request.header("X-Upstream-Authorization", header).json(&body)).await
    };
    assert_eq!(names(&with("Bearer wrong", "tools/list", json!({})).await), set(&[]));
    let tries = || mcp.everything().matches("Bearer wrong").count();
    let before = tries();
    for _ in 0..3 {
        with("Bearer wrong", "tools/list", json!({})).await;
    }
    assert!(before > 0 && tries() == before, "who refuses a header is left alone for a while");
    assert_eq!(names(&with("Bearer token-of-ann", "tools/list", json!({})).await), set(&["s__echo"]));
    assert_eq!(listed(&app, app.key(), "").await, set(&["s__echo"]), "they are known from then on");
    let reply = with("Bearer token-of-bob", "tools/call", json!({"name": "s__echo"})).await;
    assert!(reply.body["result"]["isError"].is_null(), "{}", reply.body);
    let sent = mcp.requests("tools/call")[0].header("authorization").to_owned();
    assert_eq!(sent, "Bearer token-of-bob");
    let without = called(&app, app.key(), "", "s__echo", json!({})).await;
    assert_eq!(wrong(&without), "BAD_REQUEST");
    let noted = async || {
        let rows = app.get("/mcp-gateway/audit?outcome=tool_error").await.body;
        (rows["total"] == 1 && rows["items"][0]["errorCode"] == "BAD_REQUEST").then_some(())
    };
    eventually("it is the caller's mistake, not the server's", noted).await;
}

#[tokio::test]
async fn calls_at_once_share_a_connection_and_one_that_breaks_off_is_made_again_where_it_does_no_harm() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    let tool =
        |name: &str, hints: Value| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": hints});
    mcp.describe(json!([
        tool("echo", json!({})),
        tool("broken", json!({})),
        tool("read_broken", json!({"readOnlyHint": true}))
    ]));
    let jwt = json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": "first"}});
    let server = exposed(&app, "s", &mcp, jwt).await;
    profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let (key, before) = (app.key().to_owned(), mcp.requests("initialize").len());
    let other = json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": "second"}});
    assert_eq!(app.patch(&format!("/tool-servers/{server}"), other).await.status, StatusCode::OK);
    let calls = (0..20).map(|_| called(&app, &key, "", "s__echo", json!({})));
    let replies = futures_util::future::join_all(calls).await;
    assert!(replies.iter().all(|reply| reply.body["result"]["isError"].is_null()));
    assert_eq!(mcp.requests("initialize").len() - before, 1, "one connection");
    let calls = |name: &str| {
        let made = mcp.requests("tools/call");
        made.iter().filter(|call| call.json()["params"]["name"] == name).count()
    };
    let reply = called(&app, &key, "", "s__read_broken", json!({})).await;
    assert!(reply.body["result"]["isError"].is_null() && calls("read_broken") == 2, "{}", reply.body);
    assert_eq!(wrong(&called(&app, &key, "", "s__broken", json!({})).await), "UPSTREAM_ERROR");
    assert_eq!(calls("broken"), 1, "it may have been done");
}

#[tokio::test]
async fn a_server_that_forgot_its_session_begins_another_and_one_that_is_silent_is_known_to_be() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.set_tools(&["echo", "hang"]);
    mcp.forget_session();
    let server = exposed(&app, "s", &mcp, json!({})).await;
    profile(&app, json!({"name": "default", "newToolPolicy": "enabled", "servers": [{"toolServerId": server}]})).await;
    let key = app.key().to_owned();
    for _ in 0..2 {
        let reply = called(&app, &key, "", "s__echo", json!({})).await;
        assert!(reply.body["result"]["isError"].is_null(), "{}", reply.body);
        mcp.forget_session();
    }
    let refreshed = app.post(&format!("/mcp-gateway/servers/{server}/refresh"), json!({})).await;
    assert_eq!(refreshed.status, 200, "{}", refreshed.body);
    let health = async || app.get("/mcp-gateway/servers").await.body["items"][0]["health"].clone();
    assert_eq!(health().await, "ok");
    let changed = app.patch(&format!("/tool-servers/{server}"), json!({"timeoutMs": 1000})).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert_eq!(wrong(&called(&app, &key, "", "s__hang", json!({})).await), "UPSTREAM_TIMEOUT");
    eventually("it is known to be silent", async || (health().await == "degraded").then_some(())).await;
}

#[tokio::test]
async fn who_goes_away_in_the_middle_of_a_call_takes_it_back() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.set_tools(&["hang"]);
    let server = exposed(&app, "s", &mcp, json!({})).await;
    profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s__hang"}});
    let call = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key()).json(&body).send();
    let asked = eventually("it is asked", async || mcp.requests("tools/call").pop());
    let asked = tokio::select! {
        asked = asked => asked,
        reply = call => panic!("it has no answer: {reply:?}"),
    };
    let cancelled = eventually("it is cancelled", async || mcp.requests("notifications/cancelled").pop()).await;
    assert_eq!(cancelled.json()["params"]["requestId"], asked.json()["id"]);
    let row = eventually("it is a row", async || {
        let rows = app.get("/mcp-gateway/audit?outcome=upstream_error").await.body;
        (rows["total"] == 1).then(|| rows["items"][0].clone())
    })
    .await;
    assert_eq!(row["errorCode"], "CANCELLED", "{row}");
}

#[tokio::test]
async fn a_call_that_is_repeated_under_one_key_is_made_once_or_is_the_same_call_upstream() {
    let (app, mcp, http) = (app().await, FakeMcpServer::start(), FakeToolServer::start());
    mcp.set_tools(&["fail"]);
    let one = exposed(&app, "one", &mcp, json!({})).await;
    let two = json!({"name": "two", "identifier": "two", "url": http.url(), "mcpExposed": true,
        "toolDefinitions": [tool("trouble", "/status/422", &json!({}))]});
    let two = text(&app.post("/tool-servers", two).await.body["_id"]);
    let servers = json!([{"toolServerId": one}, {"toolServerId": two}]);
    profile(&app, json!({"name": "default", "servers": servers})).await;
    let call = async |name: &str, key: &str| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}});
        let request = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key()).header("Idempotency-Key", key);
        let reply = app.send(request.json(&body)).await;
        assert_eq!((reply.status, &reply.body["result"]["isError"]), (StatusCode::OK, &json!(true)), "{}", reply.body);
    };
    // That a tool failed is what came of the call.
    for key in ["a", "a", "b"] {
        call("one__fail", key).await;
    }
    assert_eq!(mcp.requests("tools/call").len(), 2);
    // One that came to no result is made again, and its server can tell.
    for key in ["c", "c", "d"] {
        call("two__trouble", key).await;
    }
    let keys: Vec<String> = http.recorded().iter().map(|call| call.header("idempotency-key").to_owned()).collect();
    assert!(keys.len() == 3 && keys[0] == keys[1] && keys[1] != keys[2], "{keys:?}");
}

#[tokio::test]
async fn a_call_that_streams_comes_to_its_end_before_a_process_ends() {
    let (db, mcp) = (TestDb::new().await, FakeMcpServer::start());
    mcp.set_tools(&["held"]);
    let app = app_on(&db, &[]);
    let server = exposed(&app, "s", &mcp, json!({})).await;
    profile(&app, json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "s__held", "_meta": {"progressToken": "mine"}}});
    let request = app.anonymous(Method::POST, "/v1/mcp").bearer_auth(app.key());
    let request = request.header("accept", "application/json, text/event-stream").json(&call);
    let mut reply = request.send().await.expect("an answer");
    let told = reply.chunk().await.expect("a chunk").expect("progress");
    assert!(String::from_utf8_lossy(&told).contains("notifications/progress"), "{told:?}");
    app.signal("TERM");
    let is_closed = async || app.anonymous(Method::GET, "/v1/health").send().await.is_err().then_some(());
    eventually("it takes no connection", is_closed).await;
    mcp.set_tools(&["held"]);
    let rest = reply.text().await.expect("to its end");
    assert!(rest.contains("\"result\""), "{rest}");
    assert_eq!(app.ended().await, Some(0));
    assert_eq!(db.number("SELECT count(*) AS n FROM mcp_audit WHERE outcome = 'ok'").await, 1);
}

#[tokio::test]
async fn a_server_is_used_however_it_answers_to_discovery_and_though_tools_tell_no_arguments() {
    let (app, mcp) = (app().await, FakeMcpServer::start());
    mcp.describe(json!([{"name": "echo", "inputSchema": {"type": "object"}}, {"name": "bare"}]));
    for (n, (status, kind, body)) in [
        (200, "application/json", r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#),
        (200, "application/json", r#"{"jsonrpc":"2.0","id":$ID,"result":null}"#),
        (200, "application/json", "what?"),
        (200, "text/html", "<h1>Welcome</h1>"),
        (202, "application/json", ""),
        (400, "text/plain", "unknown"),
        (404, "application/json", "{}"),
        (500, "application/json", "{}"),
        (501, "text/plain", ""),
    ]
    .into_iter()
    .enumerate()
    {
        mcp.answer_discovery(status, kind, body);
        let made = app.post("/tool-servers", json!({"name": format!("s{n}"), "type": "mcp", "url": mcp.url()})).await;
        let named: Vec<&str> = made.body["toolDefinitions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|tool| tool["function"]["name"].as_str())
            .collect();
        assert_eq!(
            (&made.body["health"], named),
            (&json!("ok"), vec!["echo", "bare"]),
            "{status} {body}: {}",
            made.body
        );
    }
}

#[tokio::test]
async fn a_part_of_a_result_that_nobody_knows_is_told_as_text_and_loses_no_other() {
    let (app, server) = (app().await, FakeMcpServer::start());
    // The second answers as a stream.
    server.set_tools(&["novel", "novel_slow"]);
    let id = exposed(&app, "s", &server, json!({})).await;
    profile(&app, json!({"name": "default", "newToolPolicy": "enabled", "servers": [{"toolServerId": id}]})).await;
    for name in ["s__novel", "s__novel_slow"] {
        let content = called(&app, app.key(), "", name, json!({"a": 1})).await.body["result"]["content"].clone();
        assert!(content[0]["text"].as_str().is_some_and(|text| text.contains("\"a\":1")), "{name}: {content}");
        assert_eq!(content[1], json!({"type": "text", "text": "{\"data\":1,\"type\":\"novelty\"}"}), "{name}");
    }
}
