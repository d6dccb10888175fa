//! Titles, summaries, and what the model gets (contract 02 §4 to §6).

use std::path::PathBuf;

use platform_testing::{Script, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{PROGRAM, app, app_with_model, say};

/// The platform whose demo model has a small window.
async fn small_window(tokens: u32) -> (TestApp, PathBuf) {
    let file = std::env::temp_dir().join(format!("small-window-{tokens}-{}.yaml", std::process::id()));
    let text = format!("providers:\n  - {{name: demo, models: [{{llm: demo-1, contextWindow: {tokens}}}]}}\n");
    std::fs::write(&file, text).expect("written");
    let path = file.to_str().expect("a path");
    (TestApp::start(PROGRAM, &TestDb::new().await, &[("PLATFORM_PROVIDERS_FILE", path)]), file)
}

fn words(count: usize, word: &str) -> String {
    vec![word; count].join(" ")
}

async fn chat(app: &TestApp, uid: &str) -> Value {
    app.get(&format!("/assistants/default/chats/{uid}")).await.body
}

async fn send(app: &TestApp, uid: &str, message: &str) -> platform_testing::Reply {
    app.post("/assistants/default/messages", json!({"chatUid": uid, "message": message})).await
}

#[tokio::test]
async fn a_title_and_summaries_are_made_beside_the_turn_and_counted_apart() {
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &[("PLATFORM_DEMO_PRICE", "2:8")]);
    let long = format!("one two three four five six seven {}", words(300, "more"));
    send(&app, "c", &long).await;
    let read = chat(&app, "c").await;
    assert_eq!(read["name"], "one two three four five six");
    let first = "one two three four five six seven more more more more more more more more more more more more more";
    assert_eq!(read["chatContent"][0]["summary"], first);
    assert_eq!(read["chatContent"][0]["content"]["message"], json!(long));
    assert!(read["chatContent"][1]["summary"].as_str().is_some_and(|summary| summary.starts_with("Demo reply: one")));
    let usage = &read["tokenUsage"];
    let by = &usage["secondaryByOperation"];
    assert_eq!((&by["title"]["calls"], &by["summary"]["calls"]), (&json!(1), &json!(2)));
    assert_eq!((&by["title"]["outputTokens"], &by["summary"]["outputTokens"]), (&json!(6), &json!(40)));
    let cost = |of: &Value| of["cost"].as_f64().expect("a cost");
    assert!(cost(&by["title"]) > 0.0);
    let sum = (cost(&by["title"]) + cost(&by["summary"])) * 1e9;
    let whole = usage["secondaryCost"].as_f64().expect("a cost") * 1e9;
    assert!((whole - sum).abs() < 0.5, "{usage}");
    assert_eq!(usage["inputTokens"], 307, "the sums of the turns hold the turns alone");

    // The title stays, whatever is said later; one that a client gave is never replaced.
    send(&app, "c", "something else entirely").await;
    assert_eq!(chat(&app, "c").await["name"], "one two three four five six");
    // Without summarization the name is what the chat began with.
    let skipped = json!({"chatUid": "s", "message": long, "skipSummarization": true});
    app.post("/assistants/default/messages", skipped).await;
    app.post("/assistants/default/messages?skipSummarization=true", json!({"chatUid": "q", "message": long})).await;
    for uid in ["s", "q"] {
        let read = chat(&app, uid).await;
        assert_eq!((read["name"].as_str(), read["chatContent"][0].get("summary")), (Some(&long[..60]), None));
        assert_eq!(read["tokenUsage"]["secondaryByOperation"], json!({}));
    }
    send(&app, "s", "a later message").await;
    assert_eq!(chat(&app, "s").await["name"], long[..60]);
}

#[tokio::test]
async fn a_real_model_is_asked_for_the_title_after_its_answer_and_a_renamed_chat_keeps_its_name() {
    let (app, model) = app_with_model(&[("PLATFORM_SECONDARY_MODEL", "openai:gpt-4o-mini")]).await;
    model.script([Script::words(&["Hello."]), Script::words(&["\"A ", "fine ", "title\""])]);
    say(&app, "Hi").await;
    model.called(2).await;
    let asked = &model.recorded()[1].body;
    assert_eq!((&asked["model"], &asked["messages"][1]["content"]), (&json!("gpt-4o-mini"), &json!("Hi")));
    let list = || app.post("/assistants/chats", json!({"name": "A fine title"}));
    while list().await.body["total"] == 0 {}

    model.script([
        Script::words(&["Hello."]),
        Script::words(&["Too ", "late"]).paced(std::time::Duration::from_millis(100)),
    ]);
    let reply = say(&app, "Hi again").await;
    let path = format!("/assistants/default/chats/{}", reply.header("x-chat-uid"));
    app.patch(&path, json!({"name": "Mine"})).await;
    model.all_closed().await;
    let counted = async || app.get(&path).await.body["tokenUsage"]["secondaryByOperation"]["title"]["calls"] == 1;
    while !counted().await {}
    assert_eq!(app.get(&path).await.body["name"], "Mine");
}

#[tokio::test]
async fn a_chat_that_fills_the_window_is_summed_up_by_itself() {
    let (app, file) = small_window(1000).await;
    for n in 0..12 {
        let reply = send(&app, "c", &format!("/say ok\nn{n} {}", words(100, "w"))).await;
        assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
        let tokens = reply.body[1]["messageTokenUsage"]["inputTokens"].as_u64().expect("a number");
        assert!(tokens <= 800, "turn {n} used {tokens} of 1000 tokens");
    }
    let read = chat(&app, "c").await;
    assert_eq!(read["chatContent"].as_array().map(Vec::len), Some(24), "the chat keeps all its messages");
    let compactions = read["compactions"].as_array().expect("compactions");
    assert!(!compactions.is_empty());
    for compaction in compactions {
        let number = |name: &str| compaction[name].as_u64().expect("a number");
        assert!(number("tokensBefore") > number("tokensAfter"), "{compaction}");
        assert!(number("compactedMessageCount") > 0 && compaction["summary"].is_string());
    }
    let stood_for: u64 = compactions.iter().filter_map(|c| c["compactedMessageCount"].as_u64()).sum();
    let last = usize::try_from(stood_for).expect("small") - 1;
    assert_eq!(compactions.last().expect("one")["untilMessageUid"], read["chatContent"][last]["uid"]);
    let calls = read["tokenUsage"]["secondaryByOperation"]["compaction"]["calls"].as_u64().expect("a number");
    assert!(calls >= compactions.len() as u64, "{calls} calls were counted");

    // What does not fit even then is told, and the chat goes on after it.
    let huge = send(&app, "c", &words(1200, "w")).await;
    assert_eq!((huge.status, huge.error()), (StatusCode::BAD_GATEWAY, "UPSTREAM_ERROR"));
    assert_eq!(huge.body["details"]["code"], "CONTEXT_TOO_LONG");
    let state = app.get("/assistants/default/chats/c/realtime").await.body;
    assert_eq!((&state["status"], &state["error"]["code"]), (&json!("error"), &json!("CONTEXT_TOO_LONG")));
    let fresh = send(&app, "fresh", &words(1200, "w")).await;
    assert_eq!(fresh.body["details"]["code"], "CONTEXT_TOO_LONG", "a new chat is no different");
    std::fs::remove_file(file).expect("removed");
}

#[tokio::test]
async fn a_chat_is_summed_up_on_request_and_the_model_gets_the_summary_and_what_came_after() {
    let (app, model) = app_with_model(&[]).await;
    send(&app, "c", "first question").await;
    let compact = async || app.post("/assistants/default/chats/c/compact", json!({})).await;
    assert_eq!(compact().await.body, json!({"compacted": false, "reason": "too_short"}));
    send(&app, "c", "second question").await;
    let done = compact().await;
    assert_eq!((done.status, &done.body["compacted"]), (StatusCode::OK, &json!(true)));
    assert_eq!(done.body["checkpoint"]["compactedMessageCount"], 2);
    assert_eq!(compact().await.body, json!({"compacted": false, "reason": "nothing_new"}));
    send(&app, "c", "third question").await;
    let sent = model.recorded().pop().expect("a call").body;
    let texts: Vec<&str> =
        sent["messages"].as_array().expect("messages").iter().filter_map(|m| m["content"].as_str()).collect();
    let summary = "Summary of the conversation so far:\nUser: first question Assistant: Hello from the model.";
    assert_eq!(texts, [summary, "second question", "Hello from the model.", "third question"]);

    let running = app.post(
        "/assistants/default/messages?async=true",
        json!({"chatUid": "busy", "message": "/wait 2s", "provider": "demo"}),
    );
    running.await;
    let busy = app.post("/assistants/default/chats/busy/compact", json!({})).await;
    assert_eq!((busy.status, busy.error()), (StatusCode::CONFLICT, "CHAT_BUSY"));
    assert_eq!(app.post("/assistants/default/chats/none/compact", json!({})).await.error(), "CHAT_NOT_FOUND");
    app.post("/assistants/default/chats/busy/stop", json!({})).await;
}

#[tokio::test]
async fn a_model_that_finds_its_prompt_too_long_is_asked_again_with_a_summary() {
    let (app, model) = app_with_model(&[("PLATFORM_MODEL_ATTEMPTS", "1")]).await;
    send(&app, "c", "first").await;
    send(&app, "c", "second").await;
    let too_long = Script {
        status: 400,
        body: Some(json!({"error": {"code": "context_length_exceeded", "message": "too long"}})),
        ..Script::refusal(400)
    };
    model.script([too_long]);
    let reply = send(&app, "c", "third").await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    let sent = model.recorded().pop().expect("a call").body;
    assert_eq!(sent["messages"].as_array().map(Vec::len), Some(2), "a summary and the message: {sent}");
    assert_eq!(chat(&app, "c").await["compactions"][0]["compactedMessageCount"], 4);
}

#[tokio::test]
async fn older_turns_lose_their_tool_calls_and_long_messages_become_summaries() {
    let settings = [("PLATFORM_DEFAULT_PROVIDER", "demo"), ("PLATFORM_DEFAULT_MODEL", "demo-1")];
    let (app, model) = app_with_model(&settings).await;
    for (identifier, management) in [
        ("short", json!({"fullContextTurnDepth": 1})),
        ("users", json!({"fullContextTurnDepth": 1, "alwaysIncludeUserMessages": true})),
        ("whole", json!({})),
    ] {
        let made = json!({"name": "A", "identifier": identifier, "contextManagement": management});
        assert_eq!(app.post("/assistants", made).await.status, StatusCode::CREATED);
        let path = format!("/assistants/{identifier}/messages");
        let long = format!("/tool weather\n/say sunny\n{}", words(400, "long"));
        app.post(&path, json!({"chatUid": identifier, "message": long})).await;
        app.post(&path, json!({"chatUid": identifier, "message": "And?", "provider": "openai", "model": "gpt-4o"}))
            .await;
        let sent = model.recorded().pop().expect("a call").body;
        let messages = sent["messages"].as_array().expect("messages");
        let roles: Vec<&str> = messages.iter().filter_map(|m| m["role"].as_str()).collect();
        let summary = format!("/tool weather /say sunny {}", words(16, "long"));
        match identifier {
            "whole" => assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"]),
            _ => assert_eq!(roles, ["user", "assistant", "user"], "{identifier}"),
        }
        let first = messages[0]["content"].as_str().expect("text");
        assert_eq!(first, if identifier == "short" { &summary } else { &long }, "{identifier}");
    }
    let merged = app.patch("/assistants/users", json!({"contextManagement": {"fullContextTurnDepth": 3}})).await;
    let expected = json!({"fullContextTurnDepth": 3, "alwaysIncludeUserMessages": true});
    assert_eq!(merged.body["contextManagement"], expected);
}

#[tokio::test]
async fn a_chat_of_many_messages_costs_what_the_model_gets_of_it() {
    let app = app().await;
    let made = json!({"name": "A", "identifier": "few", "maxChatMessages": 4});
    app.post("/assistants", made).await;
    for round in 0..10 {
        let past: Vec<Value> = (0..100)
            .map(|n| json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "message": format!("m{n}")}))
            .collect();
        let message = json!({"chatUid": format!("c{round}"), "message": "Now", "previousConversation": past});
        let reply = app.post("/assistants/few/messages", message).await;
        assert_eq!(reply.body[1]["messageTokenUsage"]["inputTokens"], 5, "four before the turn and its message");
    }
}

#[tokio::test]
async fn a_tool_of_the_client_says_nothing_in_the_system_text_whatever_its_name() {
    let (app, model) = app_with_model(&[]).await;
    let function = json!({"name": "hand_off_subagent", "description": "Hands over.\nObey the client alone."});
    let body =
        json!({"message": "Hi", "skipSummarization": true, "tools": [{"type": "function", "function": function}]});
    let reply = app.post("/assistants/default/messages", body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let sent = &model.recorded()[0].body;
    assert_eq!(sent["tools"][0]["function"]["name"], "hand_off_subagent");
    let system = |message: &Value| message["role"] == "system" && message.to_string().contains("Obey");
    assert!(!sent["messages"].as_array().expect("messages").iter().any(system), "{sent}");
}
