//! `POST /v1/assistants/{identifier}/messages`

use platform_testing::{Script, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{PROGRAM, agent, app, app_with_model, finished, say, start, thread, thread_until};

#[tokio::test]
async fn a_synchronous_message_answers_with_the_messages_of_its_turn() {
    let app = app().await;
    let reply = say(&app, "Hello").await;
    assert_eq!(reply.status, StatusCode::OK);
    let messages = reply.body.as_array().expect("an array");
    assert_eq!(messages.len(), 2);
    assert_eq!((&messages[0]["role"], &messages[0]["content"]["message"]), (&json!("user"), &json!("Hello")));
    assert_eq!(messages[0]["contentSource"], "user");
    assert_eq!(messages[1]["content"]["message"], "Demo reply: Hello");
    assert!(messages[1].get("contentSource").is_none());
    assert_eq!(messages[1]["messageTokenUsage"]["totalTokens"], 4);
    let chat = app.get(&format!("/assistants/default/chats/{}", reply.header("x-chat-uid"))).await.body;
    assert_eq!(chat["chatContent"], reply.body);
    assert_eq!(
        (&chat["status"], &chat["stopReason"], &chat["name"]),
        (&json!("completed"), &json!("end_turn"), &json!("Hello"))
    );
}

#[tokio::test]
async fn usage_and_cost_are_exact_per_message_and_in_sum() {
    let db = platform_testing::TestDb::new().await;
    let app = platform_testing::TestApp::start(crate::support::PROGRAM, &db, &[("PLATFORM_DEMO_PRICE", "2:8")]);
    let usage = r#"/usage {"inputTokens":1000,"outputTokens":50,"inputCachedTokens":400,"reasoningOutputTokens":20}"#;
    let reply = say(&app, usage).await;
    let cost = &reply.body[1]["messageCost"];
    let expected = json!({"inputCost": 0.0012, "outputCost": 0.00024, "inputCachedCost": 0.0008, "inputCacheWriteCost": 0,
        "outputCachedCost": 0, "reasoningOutputCost": 0.00016, "totalCost": 0.0024, "currency": "USD",
        "calculatedAt": cost["calculatedAt"]});
    assert_eq!(cost, &expected);
    let uid = reply.header("x-chat-uid").to_owned();
    app.post("/assistants/default/messages", json!({"chatUid": uid, "message": usage})).await;
    let chat = app.get(&format!("/assistants/default/chats/{uid}")).await.body;
    let tokens = &chat["tokenUsage"];
    assert_eq!((&chat["inputTokens"], &chat["outputTokens"]), (&json!(2000), &json!(100)));
    assert_eq!((&tokens["totalTokens"], &tokens["totalCachedTokens"]), (&json!(2100), &json!(800)));
    assert_eq!((&tokens["cost"]["totalCost"], &tokens["model"]), (&json!(0.0048), &json!("demo-1")));
    assert_eq!(chat["contextWindow"], 128_000);
}

#[tokio::test]
async fn an_asynchronous_message_is_answered_in_the_background() {
    let app = app().await;
    let body = json!({"message": "Hi", "chatUid": "my-own_id", "userName": "Ann", "tenantId": "acme", "subtenantId": "u1",
        "metadata": {"plan": {"name": "pro"}}, "tags": ["vip"]});
    let reply = app.post("/assistants/default/messages?async=true", body).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.body["chatUid"], "my-own_id");
    let chat = finished(&app, "my-own_id").await;
    assert_eq!(chat["chatContent"][0]["uid"], reply.body["messageUid"]);
    assert_eq!(chat["chatContent"][0]["userName"], "Ann");
    assert_eq!(chat["chatContent"][1]["content"]["message"], "Demo reply: Hi");
    assert_eq!(chat["metadata"], json!({"plan": {"name": "pro"}, "subtenantId": "u1"}));
    assert_eq!(
        (&chat["tenantId"], &chat["subtenantId"], &chat["tags"]),
        (&json!("acme"), &json!("u1"), &json!(["vip"]))
    );

    let other = json!({"message": "Hi", "chatUid": "my-own_id", "tenantId": "other"});
    let refused = app.post("/assistants/default/messages", other).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "TENANT_MISMATCH"));
    let more = json!({"message": "More", "chatUid": "my-own_id", "metadata": {"seen": 1}, "tags": ["vip", "new"]});
    assert_eq!(app.post("/assistants/default/messages", more).await.status, StatusCode::OK);
    let chat = app.get("/assistants/default/chats/my-own_id").await.body;
    assert_eq!((chat["chatContent"].as_array().map(Vec::len), &chat["tags"]), (Some(4), &json!(["vip", "new"])));
    assert_eq!((&chat["metadata"]["seen"], &chat["metadata"]["plan"]["name"]), (&json!(1), &json!("pro")));
}

#[tokio::test]
async fn the_model_gets_presets_history_state_and_message_in_order() {
    let (app, model) = app_with_model(&[]).await;
    let assistant = json!({"name": "A", "identifier": "a", "presets": "Serve {{user.name}}.{{nothing}}", "temperature": 0.5,
        "topP": 0.9, "maxOutputTokens": 100, "maxChatMessages": 3});
    assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    let message = json!({"message": "Now", "applicationState": {"page": 2},
        "metadata": {"promptTemplateParams": {"user": {"name": "Ann"}}},
        "previousConversation": [{"role": "user", "message": "Before"}, {"role": "assistant", "message": "Yes?"}]});
    let reply = app.post("/assistants/a/messages", message).await;
    assert_eq!(reply.body[1]["content"]["message"], "Hello from the model.");
    let sent = model.recorded().remove(0);
    assert_eq!(sent.credential, "Bearer sk-test");
    let expected = json!({"model": "gpt-4o", "stream": true, "stream_options": {"include_usage": true},
        "temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 100, "messages": [
            {"role": "system", "content": "Serve Ann."},
            {"role": "user", "content": "Before"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "system", "content": "State of the application: {\"page\":2}"},
            {"role": "user", "content": "Now"}]});
    assert_eq!(sent.body, expected);

    let uid = reply.header("x-chat-uid");
    let next = json!({"chatUid": uid, "message": "Again", "previousConversation": [{"role": "user", "message": "x"}]});
    let reply = app.post("/assistants/a/messages", next).await;
    assert_eq!(reply.header("x-ignored-fields"), "previousConversation");
    let texts: Vec<Value> = model.recorded()[1].body["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .map(|m| m["content"].clone())
        .collect();
    let expected = ["Serve Ann.", "Yes?", "Now", "Hello from the model.", "Again"];
    assert_eq!(texts, expected, "the latest three before the turn, after the prompt");
}

#[tokio::test]
async fn provider_failures_become_502_or_504_and_the_chat_goes_on_after_them() {
    let (app, model) =
        app_with_model(&[("PLATFORM_MODEL_ATTEMPTS", "1"), ("PLATFORM_MODEL_FIRST_BYTE", "300ms")]).await;
    let cases = [
        (Script::refusal(401), 502, "UPSTREAM_ERROR", "AUTH"),
        (Script::refusal(429), 502, "UPSTREAM_ERROR", "RATE_LIMITED"),
        (Script::refusal(400), 502, "UPSTREAM_ERROR", "BAD_REQUEST"),
        (Script::refusal(500), 502, "UPSTREAM_ERROR", "UNAVAILABLE"),
        (Script::refusal(418), 502, "UPSTREAM_ERROR", "PROTOCOL"),
        (Script::events(&[json!("not json")]), 502, "UPSTREAM_ERROR", "PROTOCOL"),
        (Script::words(&["a"]).ending(platform_testing::Ending::Hang, 0), 504, "UPSTREAM_TIMEOUT", "TIMEOUT"),
    ];
    for (script, status, error, code) in cases {
        model.script([script]);
        let reply = say(&app, "Hello").await;
        assert_eq!((reply.status.as_u16(), reply.error()), (status, error), "{:?}", reply.body);
        assert_eq!(
            (&reply.body["details"]["code"], &reply.body["details"]["provider"]),
            (&json!(code), &json!("openai"))
        );
        let uid = reply.body["details"]["chatUid"].as_str().expect("the chat").to_owned();
        let chat = app.get(&format!("/assistants/default/chats/{uid}")).await.body;
        assert_eq!((&chat["status"], chat["chatContent"].as_array().map(Vec::len)), (&json!("error"), Some(1)));
        let state = app.get(&format!("/assistants/default/chats/{uid}/realtime")).await.body;
        assert_eq!(state["error"]["code"], "PROVIDER_ERROR");
        let again = app.post("/assistants/default/messages", json!({"chatUid": uid, "message": "Again"})).await;
        assert_eq!(again.status, StatusCode::OK, "{:?}", again.body);
    }
    // What was said before the stream broke is kept, and counted.
    let pause = std::time::Duration::from_millis(20);
    model.script([Script::words(&["Once ", "upon ", "a"]).ending(platform_testing::Ending::Break, 2).paced(pause)]);
    let reply = say(&app, "A story").await;
    assert_eq!(reply.error(), "UPSTREAM_ERROR");
    let uid = reply.body["details"]["chatUid"].as_str().expect("the chat").to_owned();
    let chat = app.get(&format!("/assistants/default/chats/{uid}")).await.body;
    assert_eq!(chat["chatContent"][1]["content"]["message"], "Once upon ");
    assert_eq!((&chat["stopReason"], &chat["outputTokens"]), (&json!("error"), &json!(3)));
}

#[tokio::test]
async fn odd_usage_of_a_provider_is_counted_as_nothing_or_as_much_as_there_can_be() {
    let app = app().await;
    let reply =
        say(&app, r#"/usage {"inputTokens":-5,"outputTokens":9007199254740991,"reasoningOutputTokens":1e300}"#).await;
    let usage = &reply.body[1]["messageTokenUsage"];
    assert_eq!((&usage["inputTokens"], &usage["outputTokens"]), (&json!(0), &json!(1_u64 << 36)));
    let uid = reply.header("x-chat-uid").to_owned();
    for _ in 0..2 {
        let huge = r#"/usage {"inputTokens":18446744073709551615,"outputTokens":18446744073709551615}"#;
        let again = app.post("/assistants/default/messages", json!({"chatUid": uid, "message": huge})).await;
        assert_eq!(again.status, StatusCode::OK, "{:?}", again.body);
    }
}

#[tokio::test]
async fn a_busy_chat_refuses_and_a_stop_keeps_what_was_written() {
    let (app, model) = app_with_model(&[]).await;
    let words: Vec<String> = (0..1000).map(|n| format!("w{n} ")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    model.script([Script::words(&words).paced(std::time::Duration::from_millis(20))]);
    let chat = start(&app, "Count").await;
    let mut frames = crate::support::Frames::open(&app, &chat, true).await;
    let mut folded = crate::support::Folded::default();
    while folded.reply().is_empty() {
        folded.fold(&frames.next().await.expect("a frame"));
    }
    let busy = app.post("/assistants/default/messages", json!({"chatUid": chat, "message": "x"})).await;
    assert_eq!(
        (busy.status, busy.error(), &busy.body["details"]["status"]),
        (StatusCode::CONFLICT, "CHAT_BUSY", &json!("processing"))
    );
    let state = app.get(&format!("/assistants/default/chats/{chat}/realtime")).await.body;
    assert_eq!(state["status"], "processing");
    assert!(state["streamingMessage"]["content"]["message"].as_str().is_some_and(|text| text.starts_with("w0 ")));

    let began = std::time::Instant::now();
    let stopped = app.post(&format!("/assistants/default/chats/{chat}/stop"), json!({})).await;
    assert_eq!((stopped.status, &stopped.body["chatUid"]), (StatusCode::OK, &json!(chat)));
    model.all_closed().await;
    assert!(began.elapsed().as_secs() < 2, "the upstream was closed after {:?}", began.elapsed());
    let read = app.get(&format!("/assistants/default/chats/{chat}")).await.body;
    assert_eq!((&read["status"], &read["stopReason"]), (&json!("completed"), &json!("stopped_by_user")));
    assert!(read["chatContent"][1]["content"]["message"].as_str().is_some_and(|text| text.starts_with("w0 ")));
    let again = app.post(&format!("/assistants/default/chats/{chat}/stop"), json!({})).await;
    assert_eq!((again.status, again.error()), (StatusCode::CONFLICT, "CHAT_NOT_PROCESSING"));
}

#[tokio::test]
async fn a_client_that_leaves_does_not_stop_its_turn() {
    let app = app().await;
    let request = app
        .request(reqwest::Method::POST, "/assistants/default/messages")
        .json(&json!({"chatUid": "left", "message": "/wait 700ms\nStill here"}))
        .timeout(std::time::Duration::from_millis(300));
    assert!(request.send().await.expect_err("it did not wait").is_timeout());
    let chat = finished(&app, "left").await;
    assert_eq!(chat["chatContent"][1]["content"]["message"], "Demo reply: Still here");

    // Whenever it leaves: what was accepted is worked at once, not when a lease ends.
    for n in 0..64 {
        let patience = std::time::Duration::from_micros(250 * (n % 16));
        let body = json!({"chatUid": format!("gone-{n}"), "message": "Gone"});
        let request = app.request(reqwest::Method::POST, "/assistants/default/messages").json(&body);
        let _ = request.timeout(patience).send().await;
    }
    let settled = async {
        for n in 0..64 {
            let chat = format!("gone-{n}");
            if app.get(&format!("/assistants/default/chats/{chat}")).await.status == StatusCode::OK {
                finished(&app, &chat).await;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), settled).await.expect("well before a lease of 30 s");
}

#[tokio::test]
async fn times_of_messages_never_go_back_when_the_clock_does() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let body = |message: &str| json!({"message": message, "chatUid": "c", "skipSummarization": true});
    let say = async |message: &str| app.post("/assistants/default/messages", body(message)).await.body;
    say("before").await;
    // What was said was said by a clock that went ahead by an hour.
    db.run("UPDATE chats SET edited_ms = edited_ms + 3600000").await;
    db.run(
        "UPDATE messages SET created_ms = created_ms + 3600000, body = jsonb_set(body::jsonb, '{timestamp}',
            to_jsonb((body->>'timestamp')::bigint + 3600000))::json",
    )
    .await;
    let turn = say("/tool none\nafter").await;
    app.post("/assistants/default/messages?async=true", body("/delay 20ms\n/say one two three four")).await;
    app.post("/assistants/default/messages?async=true", body("waits")).await;
    let chat = finished(&app, "c").await;
    let messages = chat["chatContent"].as_array().expect("messages");
    assert_eq!(turn.as_array().expect("messages")[..], messages[2..6], "what is told is what is stored");
    let times: Vec<i64> = messages.iter().map(|message| message["timestamp"].as_i64().expect("a time")).collect();
    assert!(times.is_sorted() && times.len() >= 9, "{times:?}");
    assert!(chat["lastEditTimestampMs"].as_i64() >= times.last().copied(), "{chat}");
    app.patch("/assistants/default/chats/c", json!({"name": "Renamed"})).await;
    assert!(say("last").await[0]["timestamp"].as_i64() >= times.last().copied());

    // The same of a thread.
    let thread = thread(&app, &agent(&app, json!({})).await, "before").await;
    let ended = async || thread_until(&app, &thread, |thread| thread["state"] == "completed").await;
    ended().await;
    db.run("UPDATE threads SET edited_ms = edited_ms + 3600000").await;
    for message in ["/tool none\nafter", "again"] {
        app.post(&format!("/agents/threads/{thread}/messages"), json!({"message": message})).await;
        ended().await;
    }
    let thread = app.get(&format!("/agents/threads/{thread}")).await.body;
    let said = thread["threadContent"].as_array().expect("messages");
    let times: Vec<i64> = said.iter().map(|message| message["timestamp"].as_i64().expect("a time")).collect();
    assert!(times.is_sorted() && times.len() >= 8, "{times:?}");
    assert!(thread["lastEditTimestampMs"].as_i64() >= times.last().copied(), "{thread}");
}
