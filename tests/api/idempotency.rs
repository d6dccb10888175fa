//! `Idempotency-Key` (contract 00 §5)

use platform_testing::{FakeToolServer, Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{PROGRAM, UNBOUNDED, agent, app, app_with, eventually, factor, finished, tool, tool_server};

async fn post(app: &TestApp, path: &str, key: &str, body: Value) -> Reply {
    app.send(app.request(Method::POST, path).header("idempotency-key", key).json(&body)).await
}

#[tokio::test]
async fn sixty_four_identical_posts_have_one_effect() {
    let app = app_with(&UNBOUNDED).await;
    let path = "/assistants/default/messages?async=true";
    for round in 1..=factor(25) {
        let (key, body) = (format!("k{round}"), json!({"message": "Once"}));
        let replies = futures_util::future::join_all((0..64).map(|_| post(&app, path, &key, body.clone()))).await;
        let first = replies.iter().find(|reply| reply.status == StatusCode::OK).expect("one was accepted").body.clone();
        for reply in &replies {
            match reply.status {
                StatusCode::OK => assert_eq!(reply.body, first),
                status => assert_eq!((status, reply.error()), (StatusCode::CONFLICT, "IDEMPOTENCY_IN_PROGRESS")),
            }
        }
        finished(&app, first["chatUid"].as_str().expect("a chat")).await;
        assert_eq!(app.post("/assistants/chats", json!({})).await.body["total"], round);
        let again = post(&app, path, &key, body).await;
        assert_eq!((again.header("idempotent-replayed"), &again.body), ("true", &first));
    }
    let other = post(&app, path, "k1", json!({"message": "Other"})).await;
    assert_eq!((other.status, other.error()), (StatusCode::UNPROCESSABLE_ENTITY, "IDEMPOTENCY_KEY_REUSED"));
    let odd = app.request(Method::POST, path).header("idempotency-key", "").json(&json!({}));
    assert_eq!(app.send(odd).await.error(), "BAD_REQUEST");
}

#[tokio::test]
async fn repeats_at_the_same_moment_are_the_first_answer_or_in_progress_whatever_else_they_would_clash_with() {
    let db = TestDb::new().await;
    let apps = [TestApp::start(PROGRAM, &db, &UNBOUNDED), TestApp::start(PROGRAM, &db, &UNBOUNDED)];
    let makes = [
        ("/assistants", json!({"name": "A", "identifier": "same"})),
        ("/users", json!({"email": "same@example.com", "password": "correct horse battery"})),
        ("/projects", json!({"name": "same", "identifier": "same"})),
        ("/tenants", json!({"tenantId": "same"})),
        ("/tenant-admin/tiers", json!({"tierId": "same", "name": "A"})),
    ];
    for (path, body) in makes {
        let repeats = (0..24).map(|at| post(&apps[at % 2], path, "k", body.clone()));
        let replies = futures_util::future::join_all(repeats).await;
        let first = replies.iter().find(|reply| reply.status == StatusCode::CREATED).expect("one has the effect");
        for reply in &replies {
            match reply.status {
                StatusCode::CREATED => assert_eq!(reply.body, first.body, "{path}"),
                _ => assert_eq!(reply.error(), "IDEMPOTENCY_IN_PROGRESS", "{path}: {}", reply.body),
            }
        }
        let other = post(&apps[0], path, "other", body).await;
        assert!(
            other.status == StatusCode::CONFLICT && other.error() != "IDEMPOTENCY_IN_PROGRESS",
            "{path}: {}",
            other.body
        );
    }
    // What only reads keeps nothing.
    let listed = post(&apps[0], "/assistants/chats", "k", json!({})).await;
    let again = post(&apps[0], "/assistants/chats", "k", json!({})).await;
    assert_eq!((listed.status, again.header("idempotent-replayed")), (StatusCode::CREATED, ""));
}

#[tokio::test]
async fn a_synchronous_message_is_in_progress_and_then_its_messages() {
    let app = app().await;
    let path = "/assistants/default/messages";
    let body = json!({"chatUid": "slow", "message": "/wait 1500ms\nDone"});
    let (first, second) = tokio::join!(post(&app, path, "k", body.clone()), async {
        while app.get("/assistants/default/chats/slow").await.status != StatusCode::OK {}
        post(&app, path, "k", body.clone()).await
    });
    assert_eq!(
        (second.status, second.error(), second.header("retry-after")),
        (StatusCode::CONFLICT, "IDEMPOTENCY_IN_PROGRESS", "1")
    );
    let third = post(&app, path, "k", body).await;
    assert_eq!((third.status, third.header("idempotent-replayed")), (StatusCode::OK, "true"));
    assert_eq!((&third.body, third.header("x-chat-uid")), (&first.body, "slow"));
    // The turn of the key has ended, whatever the chat does now.
    app.post(&format!("{path}?async=true"), json!({"chatUid": "slow", "message": "/wait 5s"})).await;
    let body = json!({"chatUid": "slow", "message": "/wait 1500ms\nDone"});
    assert_eq!(post(&app, path, "k", body).await.body, first.body);

    // A turn that failed leaves its key free: the next try is a new one.
    let failing = json!({"chatUid": "failing", "message": "/fail 400"});
    for tries in 1..=2 {
        assert_eq!(post(&app, path, "f", failing.clone()).await.error(), "UPSTREAM_ERROR");
        let chat = app.get("/assistants/default/chats/failing").await.body;
        assert_eq!(chat["chatContent"].as_array().map(Vec::len), Some(tries));
    }
    let other = post(&app, path, "f", json!({"chatUid": "failing", "message": "/say well"})).await;
    assert_eq!(other.status, StatusCode::OK, "also for another message: {}", other.body);
    assert_eq!(post(&app, path, "f", failing).await.error(), "IDEMPOTENCY_KEY_REUSED");
}

#[tokio::test]
async fn other_effects_are_repeated_too_secrets_masked_and_failures_leave_the_key_free() {
    let app = app().await;
    let made = post(&app, "/api-keys", "k", json!({"name": "once"})).await;
    let again = post(&app, "/api-keys", "k", json!({"name": "once"})).await;
    assert_eq!(
        (again.status, &again.body["_id"], &again.body["key"]),
        (StatusCode::CREATED, &made.body["_id"], &json!("••••••••"))
    );
    assert_eq!(post(&app, "/assistants", "k", json!({})).await.error(), "VALIDATION_ERROR");
    let made = post(&app, "/assistants", "k", json!({"name": "A"})).await;
    let again = post(&app, "/assistants", "k", json!({"name": "A"})).await;
    assert_eq!((made.status, made.body), (StatusCode::CREATED, again.body), "the failure left the key free");
    let (threads, large) = (format!("/agents/{}/threads", agent(&app, json!({})).await), "x".repeat(100_000));
    let large = json!({"message": large});
    let made = post(&app, &threads, "large", large.clone()).await;
    let again = post(&app, &threads, "large", large).await;
    assert_eq!(
        (again.status, &again.body["threadId"], &again.body["message"], &again.body["truncated"]),
        (StatusCode::CREATED, &made.body["threadId"], &Value::Null, &json!(true)),
        "of a large answer its short fields are kept"
    );
    app.post("/assistants", json!({"name": "M", "identifier": "m", "coreMemory": {"enabled": true}})).await;
    let entry = async |tenant: &str| {
        let path = format!("/memory/assistants/m/core?tenantId={tenant}");
        post(&app, &path, "entry", json!({"content": "likes tea"})).await
    };
    let (made, again, other) = (entry("acme").await, entry("acme").await, entry("globex").await);
    assert_eq!((made.status, &made.body), (StatusCode::CREATED, &again.body), "{}", made.body);
    assert_eq!(other.error(), "IDEMPOTENCY_KEY_REUSED", "what the query says is part of a request: {}", other.body);
    app.post("/assistants/default/messages", json!({"chatUid": "busy", "message": "x"})).await;
    let message = json!({"chatUid": "busy", "message": "x", "tenantId": "t"});
    for _ in 0..2 {
        let refused = post(&app, "/assistants/default/messages?async=true", "m", message.clone()).await;
        assert_eq!(refused.error(), "TENANT_MISMATCH", "what was refused is not kept");
    }
}

#[tokio::test]
async fn a_call_that_is_repeated_under_its_idempotency_key_is_made_once() {
    let (app, http) = (app_with(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]).await, FakeToolServer::start());
    let made = json!({"name": "s", "url": http.url(), "mcpExposed": true, "toolDefinitions": [tool("go", "/echo", &json!({}))]});
    let server = app.post("/tool-servers", made).await.body["_id"].clone();
    app.post("/mcp-gateway/profiles", json!({"name": "default", "servers": [{"toolServerId": server}]})).await;
    let call = async |key: &str, id: i64| {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "s__go"}});
        app.send(app.request(Method::POST, "/mcp").header("Idempotency-Key", key).json(&body)).await
    };
    let (first, again) = (call("one", 1).await, call("one", 1).await);
    assert_eq!((&first.body, again.header("idempotent-replayed")), (&again.body, "true"));
    assert_eq!(http.recorded().len(), 1);
    assert_eq!(call("one", 2).await.error(), "IDEMPOTENCY_KEY_REUSED");
    call("two", 1).await;
    assert_eq!(http.recorded().len(), 2);
    // With somebody else's rights it is another call.
    let other = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s__go"}});
    let other = app.request(Method::POST, "/mcp").header("Idempotency-Key", "one").json(&other);
    let other = app.send(other.header("X-Upstream-Authorization", "Bearer other")).await;
    assert_eq!(other.error(), "IDEMPOTENCY_KEY_REUSED");
    // What failed may be tried again.
    let wrong = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s__gone"}});
    for _ in 0..2 {
        let request = app.request(Method::POST, "/mcp").header("Idempotency-Key", "gone").json(&wrong);
        assert_eq!(app.send(request).await.header("idempotent-replayed"), "");
    }
}

#[tokio::test]
async fn what_was_begun_under_a_key_goes_on_to_its_end_when_its_client_has_gone() {
    let (app, http) = (app_with(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]).await, FakeToolServer::start());
    let server = tool_server(&app, http.url(), &[tool("wait", "/hold", &json!({}))]).await;
    let path = format!("/tool-servers/{server}/tools/wait/test");
    let ask = || post(&app, &path, "k", json!({"parameters": {}}));
    tokio::select! {
        answer = ask() => panic!("{}", answer.body),
        () = http.called(1) => {}
    }
    assert_eq!(ask().await.error(), "IDEMPOTENCY_IN_PROGRESS");
    http.let_go();
    let told = eventually("its end is told", async || {
        let answer = ask().await;
        (answer.status == StatusCode::OK).then_some(answer)
    });
    let told = told.await;
    assert_eq!((told.header("idempotent-replayed"), &told.body["success"]), ("true", &json!(true)), "{}", told.body);
    assert_eq!(http.recorded().len(), 1, "it was done once");
}
