//! How often, how much at once, from where, and which version (contract 00 §6 and §8, 01 §8).

use futures_util::{StreamExt, future::join_all};
use platform_testing::{Ending, FakeModelServer, FakeToolServer, Reply, Script, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    Frames, PROGRAM, agent, app, app_with, app_with_tools, eventually, finished, other_account, start, thread, tool,
    tool_server,
};

fn number(reply: &Reply, header: &str) -> u64 {
    reply.header(header).parse().unwrap_or_else(|_| panic!("{header}: {:?}", reply.headers))
}

#[tokio::test]
async fn a_key_has_its_burst_and_the_headers_tell_the_truth() {
    let app = app_with(&[("PLATFORM_RATE_FULL", "30:5"), ("PLATFORM_RATE_CREATE_FULL", "30:2")]).await;
    for left in [4, 3] {
        let reply = app.get("/models").await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!((number(&reply, "ratelimit-limit"), number(&reply, "ratelimit-remaining")), (30, left));
        assert_eq!(number(&reply, "ratelimit-reset"), (5 - left) * 2, "two seconds each");
    }
    // Messages fall into a bucket of their own as well; the tighter one is shown.
    let hello = || app.post("/assistants/default/messages", json!({"message": "Hi"}));
    assert_eq!(number(&hello().await, "ratelimit-remaining"), 1);
    assert_eq!(number(&hello().await, "ratelimit-remaining"), 0);
    let refused = hello().await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMIT_EXCEEDED"));
    let wait = number(&refused, "retry-after");
    assert!((1..=2).contains(&wait) && refused.body["retryAfter"] == wait, "{:?}", refused.body);
    let refused = app.get("/models").await;
    assert_eq!((refused.status, number(&refused, "ratelimit-remaining")), (StatusCode::TOO_MANY_REQUESTS, 0));
    // It comes before anything in the request is looked at, and another key has a bucket of its own.
    let unread = app.request(Method::POST, "/assistants").header("content-type", "text/plain").body("x");
    assert_eq!(app.send(unread).await.status, StatusCode::TOO_MANY_REQUESTS);
    tokio::time::sleep(std::time::Duration::from_secs(wait)).await;
    assert_eq!(app.get("/models").await.status, StatusCode::OK, "what Retry-After says is enough");
    let public = app.send(app.anonymous(Method::GET, "/v1/health")).await;
    assert_eq!((public.status, public.header("ratelimit-limit")), (StatusCode::OK, ""));
}

#[tokio::test]
async fn what_is_said_to_a_thread_on_the_way_counts_as_a_message() {
    let app = app_with(&[("PLATFORM_RATE_FULL", "0"), ("PLATFORM_RATE_CREATE_FULL", "30:4")]).await;
    let of_agent = agent(&app, json!({})).await;
    let id = thread(&app, &of_agent, "/say hello").await;
    let says = async |how: &str, body: Value| app.post(&format!("/agents/threads/{id}/{how}"), body).await;
    says("resume", json!({"message": "x"})).await;
    says("pause-resume", json!({"action": "queued", "message": "x"})).await;
    let answers = says("approval", json!({"action": "approved", "message": "x"})).await;
    assert_ne!(answers.status, StatusCode::TOO_MANY_REQUESTS, "{}", answers.body);
    let refused = says("resume", json!({"message": "x"})).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMIT_EXCEEDED"));
    assert_ne!(says("resume", json!({})).await.status, StatusCode::TOO_MANY_REQUESTS, "nothing was said");
}

#[tokio::test]
async fn processes_share_the_rate_of_a_key() {
    let db = TestDb::new().await;
    let settings = [("PLATFORM_RATE_FULL", "1:40")];
    let apps = [TestApp::start(PROGRAM, &db, &settings), TestApp::start(PROGRAM, &db, &settings)];
    let requests = (0..80).map(|n| apps[n % 2].get("/models"));
    let replies = futures_util::stream::iter(requests).buffer_unordered(8).collect::<Vec<_>>().await;
    let passed = replies.iter().filter(|reply| reply.status == StatusCode::OK).count();
    assert!((36..=42).contains(&passed), "{passed} of 40 passed");
}

#[tokio::test]
async fn bad_credentials_are_counted_by_address_and_good_ones_are_not() {
    let app = app_with(&[("PLATFORM_RATE_BAD_CREDENTIAL", "60:3"), ("PLATFORM_TRUSTED_PROXIES", "127.0.0.0/8")]).await;
    let guess = async |from: &str| {
        let request =
            app.anonymous(Method::GET, "/v1/models").bearer_auth("ak-guessed").header("x-forwarded-for", from);
        app.send(request).await
    };
    for _ in 0..3 {
        assert_eq!(guess("6.6.6.6, 1.1.1.1").await.error(), "UNAUTHENTICATED");
    }
    let refused = guess("7.7.7.7, 1.1.1.1").await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMIT_EXCEEDED"));
    assert!(number(&refused, "retry-after") >= 1);
    assert_eq!(guess("2.2.2.2").await.error(), "UNAUTHENTICATED", "somebody else");
    let good = app.request(Method::GET, "/models").header("x-forwarded-for", "1.1.1.1");
    assert_eq!(app.send(good).await.status, StatusCode::OK);
    for _ in 0..5 {
        let none = app.anonymous(Method::GET, "/v1/models").header("x-forwarded-for", "3.3.3.3");
        assert_eq!(app.send(none).await.error(), "UNAUTHENTICATED", "none was sent");
    }
}

#[tokio::test]
async fn a_key_has_so_many_streams_and_gets_one_back_when_it_closes_it() {
    let app = app_with(&[("PLATFORM_STREAMS_PER_KEY", "2")]).await;
    let chat = start(&app, "/wait 30s").await;
    let first = Frames::open(&app, &chat, true).await;
    let _second = Frames::open(&app, &chat, true).await;
    let third = app.get(&format!("/assistants/default/chats/{chat}/stream")).await;
    assert_eq!((third.status, third.error()), (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_STREAMS"));
    assert_eq!((number(&third, "retry-after"), &third.body["retryAfter"]), (5, &json!(5)));
    let missing = app.get("/assistants/default/chats/none/stream").await;
    assert_eq!(missing.error(), "TOO_MANY_STREAMS", "before the chat is looked for");
    drop(first);
    let open = async || {
        let request = app.request(Method::GET, &format!("/assistants/default/chats/{chat}/stream"));
        (request.send().await.expect("an answer").status() == StatusCode::OK).then_some(())
    };
    let given_back = eventually("the place that was given back", open);
    tokio::time::timeout(std::time::Duration::from_secs(20), given_back).await.expect("given back in time");
    app.post(&format!("/assistants/default/chats/{chat}/stop"), json!({})).await;
}

#[tokio::test]
async fn a_change_may_name_the_version_it_expects() {
    let app = app().await;
    let made = app.post("/assistants", json!({"name": "A", "identifier": "a"})).await;
    assert_eq!(made.header("etag"), "\"1\"");
    let change = async |method: Method, expected: &str, body: serde_json::Value| {
        app.send(app.request(method, "/assistants/a").header("if-match", expected).json(&body)).await
    };
    let changed = change(Method::PATCH, "\"1\"", json!({"name": "B"})).await;
    assert_eq!((changed.status, changed.header("etag")), (StatusCode::OK, "\"2\""));
    for method in [Method::PATCH, Method::PUT, Method::DELETE] {
        for stale in ["\"1\"", "W/\"2\"", "\"1\", \"7\"", "\"two\""] {
            let refused = change(method.clone(), stale, json!({"name": "C"})).await;
            assert_eq!((refused.status, refused.error()), (StatusCode::PRECONDITION_FAILED, "PRECONDITION_FAILED"));
            assert_eq!(refused.body["details"]["current"], 2);
        }
    }
    assert_eq!(change(Method::PATCH, "2", json!({})).await.error(), "BAD_REQUEST");
    assert_eq!(app.get("/assistants/a").await.body["name"], "B");
    // Fields are judged first, then existence, then the version.
    assert_eq!(change(Method::PATCH, "\"1\"", json!({"name": 7})).await.error(), "VALIDATION_ERROR");
    let missing = app.request(Method::PATCH, "/assistants/none").header("if-match", "\"1\"").json(&json!({}));
    assert_eq!(app.send(missing).await.error(), "ASSISTANT_NOT_FOUND");
    assert_eq!(app.patch("/assistants/none", json!({"name": 7})).await.error(), "VALIDATION_ERROR");
    assert_eq!(change(Method::PATCH, "*", json!({"name": "C"})).await.header("etag"), "\"3\"");
    assert_eq!(change(Method::PATCH, "\"9\", \"3\"", json!({"name": "D"})).await.status, StatusCode::OK);
    assert_eq!(change(Method::DELETE, "\"4\"", json!({})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn browsers_are_told_what_they_may_and_full_keys_are_not_for_them() {
    let preflight = async |app: &TestApp, path: &str, origin: &str| {
        let request = app.anonymous(Method::OPTIONS, path).header("origin", origin);
        let request = request.header("access-control-request-method", "PATCH");
        app.send(
            request
                .header("access-control-request-headers", "authorization, x-shop-api-source, x-evil, mcp-param-region"),
        )
        .await
    };
    let open = app().await;
    let reply = preflight(&open, "/v1/assistants/a", "https://app.example").await;
    assert_eq!(reply.status, StatusCode::NO_CONTENT);
    assert_eq!((reply.header("access-control-allow-origin"), reply.header("vary")), ("https://app.example", "Origin"));
    assert_eq!(reply.header("access-control-allow-methods"), "GET, HEAD, PATCH, PUT, DELETE");
    let headers = reply.header("access-control-allow-headers");
    assert!(headers.contains("If-Match") && headers.ends_with("x-shop-api-source, mcp-param-region"), "{headers}");
    assert_eq!(reply.header("access-control-max-age"), "600");
    // What does not exist says so to the request itself, where a page can read it.
    for path in ["/v1/nothing", "/api/v1/assistants/a/nothing/at/all"] {
        let asked = preflight(&open, path, "https://app.example").await;
        assert_eq!(
            (asked.status, asked.header("access-control-allow-origin")),
            (StatusCode::NO_CONTENT, "https://app.example")
        );
        assert!(asked.header("access-control-allow-methods").contains("PATCH"), "{path}");
        let missing = open.anonymous(Method::PATCH, path).header("origin", "https://app.example").bearer_auth("ak-x");
        let missing = open.send(missing).await;
        assert_eq!((missing.error(), missing.header("access-control-allow-origin")), ("NOT_FOUND", "*"));
    }
    assert_eq!(preflight(&open, "/nothing", "https://app.example").await.status, StatusCode::NOT_FOUND);
    let bare = open.send(open.anonymous(Method::OPTIONS, "/v1/assistants")).await;
    assert_eq!(bare.status, StatusCode::METHOD_NOT_ALLOWED);
    let said = "This path does not take OPTIONS; it takes POST, GET, HEAD.";
    assert_eq!((bare.body["message"].as_str(), bare.header("allow")), (Some(said), "POST, GET, HEAD"));

    let app = app_with(&[("PLATFORM_CORS_ORIGINS", "https://app.example, https://other.example")]).await;
    for (origin, allowed) in [("https://app.example", "https://app.example"), ("https://evil.example", "")] {
        // A preflight names no caller: the answer itself decides.
        let reply = preflight(&app, "/v1/assistants", origin).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (StatusCode::NO_CONTENT, origin));
        // Who is not known may read the error; a full key has no business in a browser.
        let refused = app.send(app.anonymous(Method::GET, "/v1/assistants").header("origin", origin)).await;
        assert_eq!(
            (refused.status, refused.header("access-control-allow-origin")),
            (StatusCode::UNAUTHORIZED, allowed)
        );
        assert_eq!(
            refused.header("access-control-expose-headers").contains("RateLimit-Remaining"),
            !allowed.is_empty()
        );
        let full = app.send(app.request(Method::GET, "/assistants").header("origin", origin)).await;
        assert_eq!((full.status, full.header("access-control-allow-origin")), (StatusCode::OK, ""));
        assert_eq!(full.header("access-control-allow-credentials"), "");
    }
}

#[tokio::test]
async fn sizes_are_settings() {
    let settings = [
        ("PLATFORM_LIMIT_MESSAGE_BYTES", "10"),
        ("PLATFORM_LIMIT_PRESETS_BYTES", "0"),
        ("PLATFORM_LIMIT_TAGS", "1"),
        ("PLATFORM_LIMIT_METADATA_DEPTH", "2"),
        ("PLATFORM_LIMIT_METADATA_BYTES", "40"),
        ("PLATFORM_LIMIT_STREAM_FRAME_BYTES", "700"),
    ];
    let app = app_with(&settings).await;
    let send = async |body: serde_json::Value| app.post("/assistants/default/messages", body).await;
    for body in [
        json!({"message": "eleven bytes"}),
        json!({"message": "x", "tags": ["a", "b"]}),
        json!({"message": "x", "metadata": {"a": {"b": {"c": 1}}}}),
        json!({"message": "x", "metadata": {"a": "x".repeat(40)}}),
    ] {
        let reply = send(body.clone()).await;
        assert_eq!(
            (reply.error(), &reply.body["details"]["issues"][0]["code"]),
            ("VALIDATION_ERROR", &json!("length")),
            "{body}"
        );
    }
    let large = app.post("/assistants", json!({"name": "L", "presets": "x".repeat(300_000)})).await;
    assert_eq!(large.status, StatusCode::CREATED);
    for _ in 0..4 {
        send(json!({"chatUid": "c", "message": "hello"})).await;
    }
    let state = app.get("/assistants/default/chats/c/realtime").await.body;
    assert_eq!(state["truncated"], true);
    let history = state["chatHistory"].as_array().expect("messages");
    assert!((1..4).contains(&history.len()), "only the newest: {}", history.len());
}

#[tokio::test]
async fn zero_takes_a_limit_away() {
    let names = [
        "RATE_FULL",
        "RATE_RESTRICTED",
        "RATE_OAUTH",
        "RATE_SESSION",
        "RATE_CREATE_FULL",
        "RATE_CREATE_KEY",
        "RATE_CREATE_SESSION",
        "RATE_BAD_CREDENTIAL",
        "STREAMS_PER_KEY",
        "STREAMS_PER_SESSION",
        "LIMIT_MESSAGE_BYTES",
        "LIMIT_PRESETS_BYTES",
        "LIMIT_METADATA_BYTES",
        "LIMIT_METADATA_DEPTH",
        "LIMIT_TAGS",
        "LIMIT_FILES_PER_MESSAGE",
        "LIMIT_EGRESS_BYTES",
        "LIMIT_STREAM_FRAME_BYTES",
        "LIMIT_TOOLS_PER_SERVER",
        "LIMIT_TOOL_RESPONSE_BYTES",
        "MODEL_CONCURRENCY",
        "EGRESS_CONCURRENCY",
        "EGRESS_PER_ACCOUNT",
    ]
    .map(|name| format!("PLATFORM_{name}"));
    let settings: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "0")).collect();
    let (app, server, _) = app_with_tools(&settings).await;
    let deep = (0..20).fold(json!({"leaf": "x".repeat(100_000)}), |inner, _| json!({"in": inner}));
    let file = json!({"name": "a.txt", "downloadUrl": format!("{}/text", server.url())});
    let body = json!({"message": "m".repeat(300_000), "tags": (0..60).map(|n| format!("t{n}")).collect::<Vec<_>>(),
        "metadata": deep, "files": vec![file; 21], "skipSummarization": true});
    let sent = app.post("/assistants/default/messages", body).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
    let chat = sent.header("x-chat-uid").to_owned();
    let frames = Frames::open(&app, &chat, true).await.all().await;
    assert_eq!(frames.last().expect("a frame").data["chatHistory"].as_array().map(Vec::len), Some(2));
    let tools: Vec<_> = (0..201).map(|n| tool(&format!("t{n}"), "/big/2000000", &json!({}))).collect();
    let id = tool_server(&app, server.url(), &tools).await;
    let called = app.post(&format!("/tool-servers/{id}/tools/t0/test"), json!({"parameters": {}})).await;
    assert_eq!(called.body["success"], true, "{}", called.body["error"]);
}

#[tokio::test]
async fn an_account_that_waits_for_many_slow_models_files_and_tools_holds_nobody_else_up() {
    let (db, model, server) = (TestDb::new().await, FakeModelServer::start(), FakeToolServer::start());
    let base = format!("{}/v1", model.url());
    let settings = [
        ("OPENAI_BASE_URL", base.as_str()),
        ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
        ("PLATFORM_MODEL_CONCURRENCY", "8"),
        ("PLATFORM_EGRESS_CONCURRENCY", "16"),
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
    ];
    let app = TestApp::start(PROGRAM, &db, &settings);
    let theirs = other_account(&db).await;
    let as_other = |path: &str, body: &serde_json::Value| {
        app.send(app.anonymous(Method::POST, &format!("/v1{path}")).bearer_auth(&theirs).json(body))
    };
    let messages = "/assistants/default/messages";
    // Three quarters of the calls to a provider are the most that one account has.
    model.script((0..6).map(|_| Script::words(&["a"]).ending(Ending::Hang, 0)));
    for _ in 0..20 {
        start(&app, "slow").await;
    }
    model.called(6).await;
    let reply = as_other(messages, &json!({"message": "Hi"})).await;
    assert_eq!(reply.body[1]["content"]["message"], "Hello from the model.", "{}", reply.body);
    assert_eq!(model.calls(), 7, "the others of the first account wait");

    // Of requests to addresses that clients name it has eight, and of messages with files three quarters.
    let demo = |path: &str| {
        json!({"message": "Hi", "provider": "demo", "skipSummarization": true, "files": [
        {"name": "a.txt", "downloadUrl": format!("{}{path}", server.url())}]})
    };
    let tools = [tool("hold", "/hold", &json!({})), tool("quick", "/text", &json!({}))];
    let own = tool_server(&app, server.url(), &tools).await;
    let made = json!({"name": "Tools", "url": server.url(), "toolDefinitions": tools});
    let others = as_other("/tool-servers", &made).await.body["_id"].as_str().expect("an id").to_owned();
    let hold = format!("/tool-servers/{own}/tools/hold/test");
    let fetches = join_all((0..10).map(|_| app.post(messages, demo("/hold"))));
    let calls = join_all((0..10).map(|_| app.post(&hold, json!({"parameters": {}}))));
    let other = async {
        server.called(8).await;
        let fetched = as_other(messages, &demo("/text")).await;
        assert_eq!(fetched.status, StatusCode::OK, "{}", fetched.body);
        let quick = as_other(&format!("/tool-servers/{others}/tools/quick/test"), &json!({"parameters": {}})).await;
        assert_eq!(quick.body["success"], true, "{}", quick.body);
        assert_eq!(server.calls("/hold"), 8, "the others of the first account wait");
        server.let_go();
    };
    let (fetched, called, ()) = tokio::join!(fetches, calls, other);
    assert!(fetched.iter().all(|reply| reply.status == StatusCode::OK), "{fetched:?}");
    assert!(called.iter().all(|reply| reply.body["success"] == true), "{called:?}");
}

#[tokio::test]
async fn an_account_with_many_runs_leaves_workers_to_others() {
    for kind in ["chat", "thread"] {
        leaves_workers(kind).await;
    }
}

async fn leaves_workers(kind: &str) {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_WORKER_CONCURRENCY", "8")]);
    let theirs = other_account(&db).await;
    let (slow, agent) = ("/wait 60s\nslow", agent(&app, json!({"concurrentExecutionLimit": 100})).await);
    for _ in 0..20 {
        match kind {
            "chat" => drop(start(&app, slow).await),
            _ => drop(thread(&app, &agent, slow).await),
        }
    }
    let as_other = |method: Method, path: &str| app.anonymous(method, &format!("/v1{path}")).bearer_auth(&theirs);
    let body = json!({"message": "Hi", "chatUid": "theirs", "skipSummarization": true});
    let sent = as_other(Method::POST, "/assistants/default/messages?async=true").json(&body);
    assert_eq!(app.send(sent).await.status, StatusCode::OK);
    let answered = async || {
        let chat = app.send(as_other(Method::GET, "/assistants/default/chats/theirs")).await.body;
        (chat["status"] == "completed").then_some(())
    };
    eventually("the other account is answered", answered).await;
    let worked = format!("SELECT count(*) AS n FROM runs WHERE kind = '{kind}' AND owner IS NOT NULL");
    let worked = async || (db.number(&worked).await == 6).then_some(());
    eventually("three quarters of the workers are theirs", worked).await;
}

#[tokio::test]
async fn no_frame_of_a_stream_is_above_its_limit() {
    const MOST: usize = 20_000;
    let app = app_with(&[("PLATFORM_LIMIT_STREAM_FRAME_BYTES", "20000")]).await;
    let body = |message: String| json!({"message": message, "chatUid": "c", "skipSummarization": true});
    let long = |words: usize| format!("/delay 1ms\n/say {}", "word ".repeat(words));
    let send = "/assistants/default/messages?async=true";
    for partial in [true, false] {
        app.post(send, body(long(500))).await;
        finished(&app, "c").await;
        // Longer than a frame by itself, with messages that wait.
        app.post(send, body(long(5000))).await;
        let mut frames = Frames::open(&app, "c", partial).await;
        for _ in 0..4 {
            app.post(send, body(format!("/say {}", "x".repeat(6000)))).await;
        }
        let mut events = Vec::new();
        while let Some(frame) = frames.next().await {
            let (id, event) = (frame.id.to_string(), &frame.event);
            let size = ["id: ", &id, "\nevent: ", event, "\ndata: ", &frame.data.to_string(), "\n\n"].concat().len();
            assert!(size <= MOST, "{} of {size} bytes", frame.event);
            assert!(frame.event != "snapshot" || frame.data["chatUID"] == "c");
            events.push(frame.event);
        }
        assert!(events.len() > 3, "{events:?}");
        finished(&app, "c").await;
    }
    let last = Frames::open(&app, "c", false).await.all().await.pop().expect("a frame");
    assert_eq!((&last.data["truncated"], &last.data["status"]), (&json!(true), &json!("completed")));
}
