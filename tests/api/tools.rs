//! Tools in the turns of a chat (contract 02 §5, §6, 04 §6, §7).

use std::time::{Duration, Instant};

use platform_testing::{FakeToolServer, Reply, TestApp};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Frames, PATIENCE, app, app_with_model, app_with_tools, tool, tool_server};

/// Makes an assistant `helper` with the tools of a server, and with other settings.
async fn helper(app: &TestApp, server: &str, settings: &Value) {
    let mut assistant = json!({"name": "Helper", "identifier": "helper", "availableToolsGroupsUids": [server]});
    settings.as_object().expect("an object").iter().for_each(|(name, value)| assistant[name] = value.clone());
    let made = app.post("/assistants", assistant).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
}

async fn ask(app: &TestApp, body: Value) -> Reply {
    app.post("/assistants/helper/messages", body).await
}

/// Sends a message without waiting; the path of its chat.
async fn begin(app: &TestApp, body: Value) -> String {
    let reply = app.post("/assistants/helper/messages?async=true", body).await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    format!("/assistants/helper/chats/{}", reply.body["chatUid"].as_str().expect("a chat"))
}

/// Follows a chat until it has a status.
async fn until(app: &TestApp, chat: &str, status: &str) -> Value {
    let uid = chat.rsplit('/').next().unwrap_or_default();
    let reached = async {
        loop {
            let mut frames = Frames::open_of(app, "helper", uid, false).await;
            while let Some(frame) = frames.next().await {
                if frame.data["status"] == status {
                    return frame.data;
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("never {status}"))
}

fn roles(messages: &Value) -> Vec<&str> {
    messages.as_array().expect("messages").iter().filter_map(|message| message["role"].as_str()).collect()
}

/// Results of tools in their order, as data.
fn results(messages: &Value) -> Vec<Value> {
    let messages = messages.as_array().expect("messages").iter();
    let text = |message: &Value| message["content"]["message"].as_str().unwrap_or_default().to_owned();
    messages
        .filter(|message| message["role"] == "tool")
        .map(|message| serde_json::from_str(&text(message)).unwrap_or_else(|_| text(message).into()))
        .collect()
}

fn responses(answers: &[(&Value, Value)]) -> Value {
    let answer = |(id, content): &(&Value, Value)| json!({"tool_call_id": id, "content": content});
    json!({"responses": answers.iter().map(answer).collect::<Vec<_>>()})
}

#[tokio::test]
async fn a_turn_calls_tools_stores_call_and_result_and_answers_with_them() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let properties = json!({"properties": {"id": {"type": "string"}}});
    let echo =
        tool("echo", "/echo/${id}", &json!({"function": {"parameters": properties}, "pathParametersKeys": ["id"]}));
    let id = tool_server(&app, server.url(), &[echo, tool("text", "/text", &json!({}))]).await;
    helper(&app, &id, &json!({})).await;
    let reply = ask(&app, json!({"message": "/tool echo {\"id\": \"a/b\"}\n/tool text\nThanks"})).await;
    assert_eq!(roles(&reply.body), ["user", "assistant", "tool", "tool", "assistant"], "{:?}", reply.body);
    let chat = format!("/assistants/helper/chats/{}", reply.header("x-chat-uid"));
    assert_eq!(app.get(&chat).await.body["chatContent"], reply.body, "what is answered is what is stored");
    let calls = reply.body[1]["tool_calls"].as_array().expect("calls");
    assert_eq!((&calls[0]["type"], &calls[0]["function"]["name"]), (&json!("function"), &json!("echo")));
    assert_eq!((&reply.body[2]["tool_call_id"], &reply.body[3]["tool_call_id"]), (&calls[0]["id"], &calls[1]["id"]));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(reply.body[2]["content"]["data"]["path"], "/echo/a%2Fb", "an object is data, too");
    assert_eq!(
        (&reply.body[3]["content"]["message"], reply.body[3]["content"].get("data")),
        (&json!("just text"), None)
    );
    assert!(reply.body[1]["messageTokenUsage"].is_object() && reply.body[2]["latencyMs"].is_u64());
    let sent = server.recorded().into_iter().find(|request| request.path.starts_with("/echo")).expect("called");
    assert_eq!(json!(sent.header("idempotency-key")), calls[0]["id"], "a call is known by its id");
    let answer = reply.body[4]["content"]["message"].as_str().expect("text");
    assert!(answer.starts_with("Demo reply: Thanks [tools: echo={") && answer.contains("text=just text"), "{answer}");

    // Watchers see the call when it is stored, the result when it is stored, and no doubled message.
    let chat = begin(&app, json!({"message": "/tool text\nAgain"})).await;
    let uid = chat.rsplit('/').next().unwrap_or_default();
    let frames = Frames::open_of(&app, "helper", uid, false).await.all().await;
    let last = &frames.last().expect("a frame").data;
    assert_eq!(
        (roles(&last["chatHistory"]), &last["status"]),
        (vec!["user", "assistant", "tool", "assistant"], &json!("completed"))
    );
    assert!(frames.windows(2).all(|pair| pair[0].id < pair[1].id));
    let usage = app.get(&chat).await.body["tokenUsage"].clone();
    assert!(usage["inputTokens"].as_u64() > Some(4), "both model calls count: {usage}");
}

#[tokio::test]
async fn eight_calls_of_one_answer_take_the_time_of_one_and_are_stored_in_their_order() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let names: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
    let tools: Vec<Value> = (0..8).map(|n| tool(&names[n], &format!("/slow/{}", 330 - n * 10), &json!({}))).collect();
    let id = tool_server(&app, server.url(), &tools).await;
    helper(&app, &id, &json!({})).await;
    let lines: Vec<String> = names.iter().map(|name| format!("/tool {name}")).collect();
    let began = Instant::now();
    let reply = ask(&app, json!({"message": lines.join("\n"), "skipSummarization": true})).await;
    let took = began.elapsed();
    let slept: Vec<Value> = results(&reply.body).into_iter().map(|result| result["slept"].clone()).collect();
    assert_eq!(slept, ["330", "320", "310", "300", "290", "280", "270", "260"]);
    assert!(took < Duration::from_secs(1), "eight calls of about 300 ms took {took:?}");
}

#[tokio::test]
async fn calls_that_cannot_be_made_are_answered_to_the_model_and_limits_are_exact() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let properties =
        json!({"required": ["n"], "additionalProperties": false, "properties": {"n": {"type": "integer"}}});
    let tools = [
        tool("count", "/echo", &json!({"function": {"parameters": properties}, "queryParametersKeys": ["n"]})),
        tool("other", "/status/418", &json!({})),
        tool("current_time", "/text", &json!({})),
    ];
    let id = tool_server(&app, server.url(), &tools).await;
    let groups = json!([id, "builtin-time", "builtin-finish"]);
    helper(&app, &id, &json!({"availableToolsGroupsUids": groups, "maxToolCalls": 3})).await;

    let refused = "/tool nothing\n/tool count {\"n\": \"x\"}\n/tool count [1]";
    let reply = ask(&app, json!({"message": refused})).await;
    let errors: Vec<Value> = results(&reply.body).into_iter().map(|result| result["error"].clone()).collect();
    assert_eq!(errors, ["TOOL_NOT_AVAILABLE", "INVALID_ARGUMENTS", "INVALID_ARGUMENTS"], "{:?}", reply.body);
    assert!(results(&reply.body)[1]["issues"].is_array());
    assert_eq!(server.recorded().len(), 0);

    let four = "/tool count {\"n\": 1}\n/tool count {\"n\": 2}\n/tool count {\"n\": 3}\n/tool count {\"n\": 4}";
    let reply = ask(&app, json!({"message": four})).await;
    assert_eq!(
        (server.recorded().len(), reply.body[1]["tool_calls"].as_array().map(Vec::len)),
        (3, Some(4)),
        "exactly so many"
    );
    assert_eq!(results(&reply.body)[3]["error"], "TOOL_NOT_AVAILABLE");
    let chat = app.get(&format!("/assistants/helper/chats/{}", reply.header("x-chat-uid"))).await.body;
    assert_eq!((&chat["status"], &chat["stopReason"]), (&json!("completed"), &json!("max_tool_calls")));

    // A name that clashes with a built-in one gets a prefix; both names allow a tool, for the turn only what both lists hold.
    let both = json!({"message": "/tool current_time\n/tool tools__current_time\n/tool other"});
    let reply = ask(&app, both).await;
    let got = results(&reply.body);
    assert!(got[0]["timestampMs"].is_i64() && got[1] == "just text", "{got:?}");
    assert_eq!((&got[2]["error"], &got[2]["body"]), (&json!("HTTP_418"), &json!({"status": "418"})));
    let narrowed = json!({"message": "/tool current_time\n/tool other\n/tool wait_until {\"seconds\": 1}", "enabledTools": ["other", "wait_until"]});
    let got = results(&ask(&app, narrowed).await.body);
    assert_eq!(
        (&got[0]["error"], &got[1]["error"], &got[2]["error"]),
        (&json!("TOOL_NOT_AVAILABLE"), &json!("HTTP_418"), &json!("TOOL_NOT_AVAILABLE"))
    );
    app.patch("/assistants/helper", json!({"enabledTools": []})).await;
    let got = results(&ask(&app, json!({"message": "/tool other"})).await.body);
    assert_eq!(got[0]["error"], "TOOL_NOT_AVAILABLE", "an empty list allows none");
    app.patch("/assistants/helper", json!({"enabledTools": null})).await;

    let done = ask(
        &app,
        json!({"message": "/tool finish_execution {\"message\": \"All done.\", \"data\": {\"n\": 1}}\nnever said"}),
    )
    .await;
    let last = done.body.as_array().and_then(|messages| messages.last()).expect("a message");
    assert_eq!(
        (&last["content"]["message"], &last["contentSource"], &last["content"]["data"]),
        (&json!("All done."), &json!("finish_tool"), &json!({"n": 1}))
    );
    app.patch(&format!("/tool-servers/{id}"), json!({"enabled": false})).await;
    assert_eq!(results(&ask(&app, json!({"message": "/tool other"})).await.body)[0]["error"], "TOOL_NOT_AVAILABLE");
}

#[tokio::test]
async fn a_tool_of_the_platform_keeps_the_time_of_a_call_and_says_who_is_to_blame() {
    let (app, server, _db) = app_with_tools(&[]).await;
    for (name, timeout) in [("short", 1000), ("long", 60_000)] {
        let assistant = json!({"name": name, "identifier": name, "availableToolsGroupsUids": ["builtin-files"],
            "toolCallTimeoutMs": timeout});
        assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    }
    let url = server.url();
    for (assistant, address, said) in [
        ("short", format!("{url}/hold"), "The call takes more than 1000 ms."),
        ("long", format!("{url}/status/404"), "UPSTREAM_ERROR"),
        ("long", "http://127.0.0.1:1/x".to_owned(), "UPSTREAM_ERROR"),
        ("long", "http://10.0.0.1/x".to_owned(), "URL_NOT_ALLOWED"),
    ] {
        let message = format!("/tool read_file {}", json!({"downloadUrl": address}));
        let reply = app.post(&format!("/assistants/{assistant}/messages"), json!({"message": message})).await;
        assert!(reply.body.to_string().contains(said), "{address}: {}", reply.body);
    }
}

#[tokio::test]
async fn what_a_tool_ends_a_turn_with_is_judged_as_an_answer() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let id = tool_server(&app, server.url(), &[]).await;
    let rule = json!({"name": "words", "kind": "deny_list", "action": "block", "config": {"words": ["canary"]}});
    let guardrails = json!({"enabled": true, "output": [rule]});
    let groups = json!(["builtin-finish"]);
    helper(&app, &id, &json!({"availableToolsGroupsUids": groups, "guardrailsConfiguration": guardrails})).await;
    let finish = |arguments: &str| json!({"message": format!("/tool finish_execution {arguments}")});
    let reply = ask(&app, finish(r#"{"message": "the canary sings"}"#)).await;
    let last = reply.body.as_array().and_then(|messages| messages.last()).expect("a message").clone();
    assert_eq!(
        (&last["contentSource"], &last["content"]["message"]),
        (&json!("guardrail"), &json!("This request cannot be processed."))
    );
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
    app.patch("/assistants/helper", json!({"guardrailsConfiguration": null, "structuredOutput": {"schema": schema}}))
        .await;
    let reply = ask(&app, finish(r#"{"message": "done", "data": {"n": "x"}}"#)).await;
    assert_eq!(
        (reply.error(), &reply.body["details"]["code"]),
        ("UPSTREAM_ERROR", &json!("STRUCTURED_OUTPUT_INVALID"))
    );
    let reply = ask(&app, finish(r#"{"message": "done", "data": {"n": 1}}"#)).await;
    assert_eq!(reply.body[3]["content"], json!({"message": "{\"n\":1}", "data": {"n": 1}}), "{:?}", reply.body);
}

#[tokio::test]
async fn a_long_result_is_kept_and_the_model_gets_its_beginning() {
    let (app, model) = app_with_model(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]).await;
    let server = FakeToolServer::start();
    let id = tool_server(&app, server.url(), &[tool("big", "/big/100000", &json!({}))]).await;
    helper(&app, &id, &json!({"maxToolResponseInputTokens": 100})).await;
    let call = json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "call_x", "function": {"name": "big", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]});
    model.script([platform_testing::Script::events(&[call, json!("[DONE]")])]);
    let reply = ask(&app, json!({"message": "Go"})).await;
    assert_eq!(reply.body[2]["content"]["message"].as_str().map(str::len), Some(100_000), "{:?}", reply.body);
    assert_eq!(
        (&reply.body[1]["tool_calls"][0]["id"], &reply.body[2]["tool_call_id"]),
        (&json!("call_x"), &json!("call_x"))
    );
    for asked in [1, 2] {
        let sent = &model.recorded()[asked].body;
        let result = sent["messages"]
            .as_array()
            .expect("messages")
            .iter()
            .find(|message| message["role"] == "tool")
            .expect("a result");
        let text = result["content"].as_str().expect("text");
        assert!(
            text.starts_with(r#"{"content":"xxx"#) && text.len() < 2000 && text.contains(r#""truncated":true"#),
            "{text}"
        );
        assert_eq!(sent["tools"][0]["function"]["name"], "big");
        if asked == 1 {
            ask(&app, json!({"message": "More", "chatUid": reply.header("x-chat-uid")})).await;
        }
    }
}

#[tokio::test]
async fn who_waits_for_a_turn_gets_all_of_it_however_long() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let id = tool_server(&app, server.url(), &[tool("big", "/big/1040000", &json!({}))]).await;
    helper(&app, &id, &json!({})).await;
    let message = format!("{}/say THE REPLY", "/tool big\n".repeat(9));
    let reply = ask(&app, json!({"message": message, "skipSummarization": true})).await;
    assert_eq!(roles(&reply.body).len(), 12, "{:?}", roles(&reply.body));
    assert_eq!(reply.body[11]["content"]["message"], "THE REPLY");
}

#[tokio::test]
async fn a_secret_that_a_tool_echoes_reaches_neither_store_nor_model() {
    let (app, model) = app_with_model(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]).await;
    let server = FakeToolServer::start();
    let id = tool_server(&app, server.url(), &[tool("echo", "/echo", &json!({}))]).await;
    app.patch(
        &format!("/tool-servers/{id}"),
        json!({"authenticationConfig": {"authenticationMethod": "jwt", "token": "echo-canary-7"}}),
    )
    .await;
    helper(&app, &id, &json!({})).await;
    let call = json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "echo", "arguments": "{}"}}]}}]});
    model.script([platform_testing::Script::events(&[call, json!("[DONE]")])]);
    let reply = ask(&app, json!({"message": "Go"})).await;
    assert_eq!(server.last().header("authorization"), "Bearer echo-canary-7");
    let chat = app.get(&format!("/assistants/helper/chats/{}", reply.header("x-chat-uid"))).await;
    let seen = format!("{:?} {:?} {:?}", reply.body, chat.body, model.recorded());
    assert!(!seen.contains("echo-canary") && seen.contains("••••••••"), "{seen}");
}

#[tokio::test]
async fn a_tool_of_the_client_holds_the_turn_until_its_result_comes() {
    let (mut app, server, _db) = app_with_tools(&[]).await;
    let id = tool_server(&app, server.url(), &[tool("text", "/text", &json!({}))]).await;
    helper(&app, &id, &json!({})).await;
    let client = |name: &str| json!({"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object", "properties": {}}}});
    for (tools, code) in [
        (json!([client("text")]), "DUPLICATE_TOOL_NAME"),
        (json!([client("a"), client("a")]), "DUPLICATE_TOOL_NAME"),
        (json!([client("no good")]), "INVALID_TOOL_DEFINITION"),
        (json!([{"function": {"name": "x", "parameters": {"type": "array"}}}]), "INVALID_TOOL_DEFINITION"),
    ] {
        assert_eq!(ask(&app, json!({"message": "x", "tools": tools})).await.error(), code, "{tools}");
    }
    let message =
        json!({"message": "/tool pick {\"a\": 1}\n/tool text\n/tool pick {\"a\": 2}\nDone", "tools": [client("pick")]});
    let reply = ask(&app, message.clone()).await;
    assert_eq!(
        (reply.status, roles(&reply.body)),
        (StatusCode::OK, vec!["user", "assistant", "tool"]),
        "{:?}",
        reply.body
    );
    let chat = format!("/assistants/helper/chats/{}", reply.header("x-chat-uid"));
    let state = app.get(&format!("{chat}/realtime")).await.body;
    let pending = state["pendingToolCalls"].as_array().expect("calls").clone();
    assert_eq!((&state["status"], pending.len()), (&json!("waiting_for_tool_response"), 2));
    assert_eq!(state["stopReason"], "tool_use");
    assert_eq!(
        (&pending[0]["kind"], &pending[0]["function"]["name"], &pending[0]["type"]),
        (&json!("client"), &json!("pick"), &json!("function"))
    );
    assert_eq!(
        pending[1]["function"]["arguments"].as_str().map(|text| serde_json::from_str::<Value>(text).ok()),
        Some(Some(json!({"a": 2})))
    );

    let busy = json!({"message": "x", "chatUid": reply.header("x-chat-uid")});
    assert_eq!(ask(&app, busy.clone()).await.error(), "CHAT_BUSY");
    let queued = app.post("/assistants/helper/messages?async=true", busy).await.body;
    assert_eq!((&queued["queued"], &queued["willProcess"]), (&json!(true), &json!("on_resume")));

    let path = format!("{chat}/tool-response");
    for bad in [
        json!({}),
        json!({"responses": []}),
        responses(&[(&json!("call_none"), json!(1))]),
        json!({"responses": [{"tool_call_id": pending[0]["id"], "role": "user"}]}),
    ] {
        assert_eq!(app.post(&path, bad.clone()).await.error(), "VALIDATION_ERROR", "{bad}");
    }
    let first = app.post(&path, responses(&[(&pending[1]["id"], json!({"picked": "second"}))])).await;
    assert_eq!((first.status, &first.body["pending"]), (StatusCode::OK, &json!(1)), "{:?}", first.body);
    // What was answered outlives the process; the first answer counts.
    app.crash();
    let again =
        app.post(&path, responses(&[(&pending[1]["id"], json!("late")), (&pending[0]["id"], json!("first"))])).await;
    assert_eq!(again.body["pending"], 0, "{:?}", again.body);
    let ended = until(&app, &chat, "completed").await;
    let in_order = [json!("first"), json!("just text"), json!({"picked": "second"})];
    assert_eq!(results(&ended["chatHistory"])[..3], in_order, "results stand in the order of the calls");
    let text = ended["chatHistory"][5]["content"]["message"].as_str().expect("a text");
    let paired = "[tools: pick=first, text=just text, pick={\"picked\":\"second\"}]";
    assert!(text.ends_with(paired), "the model got each result with its call: {text}");
    assert_eq!(results(&app.get(&chat).await.body["chatContent"])[..3], in_order);
    assert_eq!(
        roles(&ended["chatHistory"]),
        ["user", "assistant", "tool", "tool", "tool", "assistant", "user", "assistant"],
        "what waited is answered next"
    );
    assert_eq!(ended.get("pendingToolCalls"), None);
    assert_eq!(
        (app.post(&path, responses(&[(&pending[0]["id"], json!(1))])).await.error(), server.calls("/text")),
        ("CHAT_NOT_WAITING", 1)
    );

    // A stop ends it, and no call is left without a result.
    let chat = begin(&app, message).await;
    let waiting = until(&app, &chat, "waiting_for_tool_response").await;
    let frames = Frames::follow(&app, &format!("{chat}/stream")).await;
    for _ in 0..3 {
        let given = responses(&[(&waiting["pendingToolCalls"][1]["id"], json!("said again"))]);
        assert_eq!(app.post(&format!("{chat}/tool-response"), given).await.body["pending"], 1);
    }
    let stopped = app.post(&format!("{chat}/stop"), json!({})).await;
    assert_eq!(stopped.status, StatusCode::OK, "{:?}", stopped.body);
    let mut frames = frames.all().await;
    for frame in &mut frames {
        frame.data["lastUpdatedAt"] = Value::Null;
    }
    assert!(frames.windows(2).all(|pair| pair[0].data != pair[1].data), "each frame is news: {frames:?}");
    let state = app.get(&format!("{chat}/realtime")).await.body;
    assert_eq!((&state["status"], &state["stopReason"]), (&json!("completed"), &json!("stopped_by_user")));
    let interrupted = json!({"error": "INTERRUPTED"});
    assert_eq!(results(&state["chatHistory"]), [interrupted.clone(), json!("just text"), interrupted]);
    let on = json!({"message": "Go on", "chatUid": chat.rsplit('/').next()});
    assert_eq!(ask(&app, on).await.status, StatusCode::OK);
}

#[tokio::test]
async fn who_does_not_answer_in_time_is_told_to_the_model() {
    let (app, server, _db) = app_with_tools(&[("PLATFORM_CLIENT_TOOL_TIMEOUT", "700ms")]).await;
    let id = tool_server(&app, server.url(), &[]).await;
    helper(&app, &id, &json!({})).await;
    let tools = json!([{"function": {"name": "pick"}}]);
    let chat = begin(&app, json!({"message": "/tool pick\nDone", "tools": tools})).await;
    let ended = until(&app, &chat, "completed").await;
    assert_eq!(results(&ended["chatHistory"]), [json!({"error": "TIMEOUT"})]);
    assert!(
        ended["chatHistory"][3]["content"]["message"].as_str().is_some_and(|text| text.starts_with("Demo reply: Done"))
    );
}

#[tokio::test]
async fn a_call_that_needs_approval_is_made_once_it_is_approved_exactly_as_it_was_shown() {
    let (mut app, server, _db) = app_with_tools(&[]).await;
    let free = tool("free", "/text", &json!({}));
    let pay = tool("pay", "/echo/pay", &json!({"method": "POST", "requiresApproval": true}));
    let id = tool_server(&app, server.url(), &[free, pay, tool("listed", "/echo/listed", &json!({}))]).await;
    let groups = json!([id, "builtin-http"]);
    helper(&app, &id, &json!({"approvalTools": ["listed"], "availableToolsGroupsUids": groups})).await;
    let message = "/tool pay {\"amount\": 5}\n/tool free\n/tool listed\nDone";
    let reply = ask(&app, json!({"message": message})).await;
    let chat = format!("/assistants/helper/chats/{}", reply.header("x-chat-uid"));
    assert_eq!(
        (roles(&reply.body), server.recorded().len()),
        (vec!["user", "assistant", "tool"], 1),
        "what needs none runs first"
    );
    let state = app.get(&format!("{chat}/realtime")).await.body;
    let pending = state["pendingToolCalls"].as_array().expect("calls").clone();
    assert!(pending.iter().all(|call| call["kind"] == "approval") && pending.len() == 2, "{pending:?}");
    let path = format!("{chat}/tool-response");
    assert_eq!(
        app.post(&path, responses(&[(&pending[0]["id"], json!("yes, please"))])).await.error(),
        "VALIDATION_ERROR"
    );
    assert_eq!(app.post(&path, responses(&[(&pending[1]["id"], json!("rejected"))])).await.body["pending"], 1);
    app.crash();
    assert_eq!(app.post(&path, responses(&[(&pending[0]["id"], json!("approved"))])).await.body["pending"], 0);
    let ended = until(&app, &chat, "completed").await;
    let got = results(&ended["chatHistory"]);
    let paid_free_rejected = (&json!("/echo/pay"), &json!("just text"), &json!({"error": "REJECTED"}));
    assert_eq!((&got[0]["path"], &got[1], &got[2]), paid_free_rejected, "{got:?}");
    let paid: Vec<_> = server.recorded().into_iter().filter(|request| request.path == "/echo/pay").collect();
    assert_eq!(
        (paid.len(), paid[0].json(), json!(paid[0].header("idempotency-key"))),
        (1, json!({"amount": 5}), pending[0]["id"].clone())
    );
    assert_eq!(server.calls("/echo/listed"), 0);

    // An address that a model names needs approval, unless the assistant says what does.
    app.patch("/assistants/helper", json!({"approvalTools": []})).await;
    let request = format!("/tool http_request {{\"method\": \"GET\", \"url\": \"{}/text\"}}\nDone", server.url());
    let reply = ask(&app, json!({"message": request})).await;
    assert_eq!(roles(&reply.body), ["user", "assistant"], "{:?}", reply.body);
    app.patch("/assistants/helper", json!({"approvalTools": ["pay"]})).await;
    let reply = ask(&app, json!({"message": request})).await;
    assert_eq!(results(&reply.body), [json!({"status": 200, "body": "just text"})]);
    let inner = "/tool http_request {\"method\": \"GET\", \"url\": \"http://10.0.0.1/\"}";
    assert_eq!(results(&ask(&app, json!({"message": inner})).await.body)[0]["error"], "URL_NOT_ALLOWED");
    app.patch("/assistants/helper", json!({"approvalTools": ["*"]})).await;
    assert_eq!(roles(&ask(&app, json!({"message": "/tool free"})).await.body), ["user", "assistant"], "`*` is all");
}

#[tokio::test]
async fn after_a_crash_a_call_is_made_again_only_where_that_is_harmless() {
    let settings = [("PLATFORM_RUN_LEASE", "1s"), ("PLATFORM_RUN_HEARTBEAT", "300ms")];
    let (mut app, server, _db) = app_with_tools(&settings).await;
    let tools = [
        tool("read", "/hold/read", &json!({})),
        tool("write", "/hold/write", &json!({"method": "POST"})),
        tool("again", "/hold/again", &json!({"method": "POST", "idempotent": true})),
        tool("quick", "/echo/quick", &json!({"method": "POST"})),
    ];
    let id = tool_server(&app, server.url(), &tools).await;
    helper(&app, &id, &json!({})).await;
    let chat = begin(&app, json!({"message": "/tool quick\n/tool write\n/tool read\n/tool again\nDone"})).await;
    server.called(4).await;
    let uid = chat.rsplit('/').next().unwrap_or_default();
    // The first result is stored as soon as it is there: then the process dies.
    let mut frames = Frames::open_of(&app, "helper", uid, false).await;
    while roles(&frames.next().await.expect("a frame").data["chatHistory"]).last() != Some(&"tool") {}
    app.crash();
    server.let_go();
    let ended = until(&app, &chat, "completed").await;
    let got = results(&ended["chatHistory"]);
    assert_eq!((&got[0]["path"], &got[1]["error"]), (&json!("/echo/quick"), &json!("RESULT_UNKNOWN")), "{got:?}");
    assert_eq!((&got[2], &got[3]), (&json!({"held": true}), &json!({"held": true})));
    let calls = ["/echo/quick", "/hold/write", "/hold/read", "/hold/again"].map(|path| server.calls(path));
    assert_eq!(calls, [1, 1, 2, 2]);
    let keys: Vec<String> = server
        .recorded()
        .iter()
        .filter(|request| request.path == "/hold/again")
        .map(|request| request.header("idempotency-key").to_owned())
        .collect();
    assert_eq!(keys[0], keys[1], "the same call, under the same key");
    let ids: Vec<&Value> =
        ended["chatHistory"][1]["tool_calls"].as_array().expect("calls").iter().map(|call| &call["id"]).collect();
    let answered: Vec<&Value> = ended["chatHistory"]
        .as_array()
        .expect("messages")
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| &message["tool_call_id"])
        .collect();
    assert_eq!(ids, answered, "each call has one result, in order");
}

#[tokio::test]
async fn a_stop_aborts_the_calls_that_are_under_way() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let id =
        tool_server(&app, server.url(), &[tool("hold", "/hold", &json!({})), tool("text", "/text", &json!({}))]).await;
    helper(&app, &id, &json!({})).await;
    let chat = begin(&app, json!({"message": "/tool text\n/tool hold\nnever"})).await;
    server.called(2).await;
    let began = Instant::now();
    assert_eq!(app.post(&format!("{chat}/stop"), json!({})).await.status, StatusCode::OK);
    assert!(began.elapsed() < Duration::from_secs(2));
    let state = app.get(&chat).await.body;
    assert_eq!((&state["status"], &state["stopReason"]), (&json!("completed"), &json!("stopped_by_user")));
    assert_eq!(results(&state["chatContent"]).last(), Some(&json!({"error": "INTERRUPTED"})));
    let on = ask(&app, json!({"message": "Go on", "chatUid": chat.rsplit('/').next()})).await;
    assert_eq!(on.status, StatusCode::OK, "{:?}", on.body);
}

#[tokio::test]
async fn a_model_that_takes_no_tools_is_refused_them() {
    let app = app().await;
    let tools = json!([{"function": {"name": "pick"}}]);
    let providers = app.get("/models").await.body;
    assert!(providers["models"].as_array().expect("models").iter().all(|model| model["capabilities"]["tools"] == true));
    let ok = app.post("/assistants/default/messages", json!({"message": "Hello", "tools": tools})).await;
    assert_eq!(ok.status, StatusCode::OK, "a tool that is not called changes nothing: {:?}", ok.body);

    let file = std::env::temp_dir().join(format!("providers-{}.yaml", std::process::id()));
    let text = "providers:\n  - name: mute\n    baseUrl: http://127.0.0.1:1/v1\n    models:\n      - llm: m\n        capabilities: {tools: false}\n";
    std::fs::write(&file, text).expect("written");
    let db = platform_testing::TestDb::new().await;
    let app =
        TestApp::start(crate::support::PROGRAM, &db, &[("PLATFORM_PROVIDERS_FILE", file.to_str().expect("text"))]);
    let refused = app.post("/assistants/default/messages", json!({"message": "x", "tools": tools})).await;
    assert_eq!(
        (refused.error(), &refused.body["details"]["capability"]),
        ("MODEL_NOT_SUPPORTED", &json!("tools")),
        "{:?}",
        refused.body
    );
    let refused = app.post("/assistants", json!({"name": "a", "availableToolsGroupsUids": ["builtin-time"]})).await;
    assert_eq!(refused.error(), "MODEL_NOT_SUPPORTED");
}
