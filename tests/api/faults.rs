//! Whatever a provider does, a turn ends with a reason, and its chat goes on (contract 18 §3).

use std::time::{Duration, Instant};

use platform_testing::{Ending, FakeModelServer, Script, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{PROGRAM, factor, is_terminal};

const WIRES: [(&str, &str); 3] =
    [("openai", "gpt-4o"), ("anthropic", "claude-sonnet-4-5"), ("gemini", "gemini-2.5-flash")];

/// What a good answer looks like, an event each.
fn good(wire: &str) -> Vec<Value> {
    match wire {
        "openai" => vec![
            json!({"choices": [{"index": 0, "delta": {"content": "Well"}}]}),
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
            json!("[DONE]"),
        ],
        "anthropic" => vec![
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 7}}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Well"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}}),
            json!({"type": "message_stop"}),
        ],
        _ => vec![
            json!({"candidates": [{"content": {"parts": [{"text": "Well"}]}}]}),
            json!({"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}),
        ],
    }
}

/// Everything that has been seen to go wrong, and some more.
fn faults(wire: &str) -> Vec<(String, Script)> {
    let statuses = [400_u16, 401, 402, 403, 404, 408, 409, 413, 418, 422, 429, 500, 502, 503, 504, 529];
    let mut faults: Vec<(String, Script)> =
        statuses.iter().map(|status| (status.to_string(), Script::refusal(*status))).collect();
    let events = good(wire);
    let whole = || Script::events(&events);
    let instead = |event: Value| Script::events(&[vec![event], events[1..].to_vec()].concat());
    let wrong_types = match wire {
        "openai" => json!({"choices": [{"index": "first", "delta": {"content": {"text": 1}}}]}),
        "anthropic" => json!({"type": "content_block_delta", "index": "first", "delta": {"type": 1}}),
        _ => json!({"candidates": [{"content": {"parts": "text"}}]}),
    };
    let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded", "code": 529}});
    let half = events[0].to_string();
    faults.extend([
        ("no JSON".to_owned(), instead(json!("nothing that anybody could read"))),
        ("half an event".to_owned(), instead(json!(half[..half.len() / 2]))),
        ("a number".to_owned(), instead(json!(17))),
        ("a list".to_owned(), instead(json!([]))),
        ("null".to_owned(), instead(json!(null))),
        ("other types".to_owned(), instead(wrong_types)),
        ("a deep hole".to_owned(), instead(json!("[".repeat(100_000)))),
        ("a megabyte of nothing".to_owned(), instead(json!("x".repeat(1 << 20)))),
        ("an error".to_owned(), instead(error.clone())),
        ("an error later".to_owned(), Script::events(&[events[0].clone(), error])),
        ("no event".to_owned(), Script::events(&[])),
        ("no end".to_owned(), whole().ending(Ending::Close, 1)),
        ("a break before the first event".to_owned(), whole().ending(Ending::Break, 0)),
        ("a break after it".to_owned(), whole().ending(Ending::Break, 1)),
        ("silence".to_owned(), whole().ending(Ending::Hang, 0)),
        ("silence after a word".to_owned(), whole().ending(Ending::Hang, 1)),
    ]);
    faults
}

#[tokio::test]
async fn every_fault_of_every_provider_ends_the_turn_with_a_reason_and_the_chat_goes_on() {
    let servers = [FakeModelServer::start(), FakeModelServer::start(), FakeModelServer::start()];
    let openai = format!("{}/v1", servers[0].url());
    let settings = [
        ("OPENAI_API_KEY", "o-key"),
        ("OPENAI_BASE_URL", openai.as_str()),
        ("ANTHROPIC_API_KEY", "a-key"),
        ("ANTHROPIC_BASE_URL", servers[1].url()),
        ("GEMINI_API_KEY", "g-key"),
        ("GEMINI_BASE_URL", servers[2].url()),
        ("PLATFORM_MODEL_ATTEMPTS", "1"),
        ("PLATFORM_MODEL_FIRST_BYTE", "300ms"),
        ("PLATFORM_MODEL_IDLE", "300ms"),
        ("PLATFORM_RATE_FULL", "0"),
    ];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    for _ in 0..factor(50) {
        let providers = WIRES.iter().zip(&servers);
        let tried = providers.map(|(&(provider, llm), server)| try_all(&app, server, provider, llm));
        futures_util::future::join_all(tried).await;
    }
}

async fn try_all(app: &TestApp, server: &FakeModelServer, provider: &str, llm: &str) {
    for (fault, script) in faults(provider) {
        server.script([script]);
        let mut message = json!({"message": "Hello", "provider": provider, "model": llm, "skipSummarization": true});
        let began = Instant::now();
        let reply = app.post("/assistants/default/messages", message.clone()).await;
        let what = format!("{fault} of {provider}: {} {}", reply.status, reply.body);
        assert!(began.elapsed() < Duration::from_secs(5), "{what} after {:?}", began.elapsed());
        assert!(matches!(reply.status.as_u16(), 502 | 504), "{what}");
        assert!(reply.error().starts_with("UPSTREAM_"), "{what}");
        message["chatUid"] = reply.body["details"]["chatUid"].clone();
        let uid = message["chatUid"].as_str().expect("the chat");
        let state = app.get(&format!("/assistants/default/chats/{uid}/realtime")).await.body;
        assert!(is_terminal(&state) && state["error"]["code"].is_string(), "{what}: {state}");
        let again = app.post("/assistants/default/messages", message).await;
        assert_eq!(again.status, StatusCode::OK, "{what}: {}", again.body);
    }
}

/// One event of a text, of reasoning, or of the arguments of a call, in the wire of a provider.
fn piece(wire: &str, of: &str, text: &str) -> Value {
    match (wire, of) {
        ("openai", "text") => json!({"choices": [{"index": 0, "delta": {"content": text}}]}),
        ("openai", "reasoning") => json!({"choices": [{"index": 0, "delta": {"reasoning_content": text}}]}),
        ("openai", _) => json!({"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "function": {"name": "", "arguments": text}}]}}]}),
        ("anthropic", "text") => json!({"type": "content_block_delta", "index": 0, "delta":
            {"type": "text_delta", "text": text}}),
        ("anthropic", "reasoning") => json!({"type": "content_block_delta", "index": 0, "delta":
            {"type": "thinking_delta", "thinking": text}}),
        ("anthropic", _) => json!({"type": "content_block_start", "index": 1, "content_block":
            {"type": "tool_use", "id": "", "name": text}}),
        (_, "text") => json!({"candidates": [{"content": {"parts": [{"text": text}]}}]}),
        (_, "reasoning") => json!({"candidates": [{"content": {"parts": [{"text": text, "thought": true}]}}]}),
        _ => json!({"candidates": [{"content": {"parts": [{"functionCall": {"name": text, "args": {}}}]}}]}),
    }
}

#[tokio::test]
async fn a_provider_that_writes_without_end_is_stopped_at_the_bounds_of_an_answer() {
    const MEBIBYTE: usize = 1 << 20;
    let servers = [FakeModelServer::start(), FakeModelServer::start(), FakeModelServer::start()];
    let openai = format!("{}/v1", servers[0].url());
    // Models that may write as much as they like, as far as their tokens go.
    let file = std::env::temp_dir().join(format!("endless-{}.json", std::process::id()));
    let endless = |(name, llm): (&str, &str)| json!({"name": name, "models": [{"llm": llm, "contextWindow": 200_000_000, "maxOutputTokens": 100_000_000}]});
    std::fs::write(&file, json!({"providers": WIRES.map(endless)}).to_string()).expect("written");
    let settings = [
        ("OPENAI_API_KEY", "o-key"),
        ("OPENAI_BASE_URL", openai.as_str()),
        ("ANTHROPIC_API_KEY", "a-key"),
        ("ANTHROPIC_BASE_URL", servers[1].url()),
        ("GEMINI_API_KEY", "g-key"),
        ("GEMINI_BASE_URL", servers[2].url()),
        ("PLATFORM_PROVIDERS_FILE", file.to_str().expect("a path")),
    ];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    for (name, most) in [("brief", 100), ("long", 10_000_000)] {
        let assistant = json!({"name": name, "identifier": name, "maxOutputTokens": most, "maxToolCalls": 10});
        assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    }
    let large = "x".repeat(MEBIBYTE / 16);
    for (server, (provider, llm)) in servers.iter().zip(WIRES) {
        let begins = format!("{provider}-");
        for (assistant, of, text, reason) in [
            ("brief", "text", "word ", "max_tokens"),
            ("long", "text", large.as_str(), "max_tokens"),
            ("brief", "reasoning", "hm, ", "max_tokens"),
            ("long", "reasoning", large.as_str(), "max_tokens"),
            ("long", "calls", if provider == "openai" { large.as_str() } else { "call" }, "ends"),
        ] {
            server.script([Script::events(&[piece(provider, of, text)]).ending(Ending::Never, 1)]);
            let what = format!("{of} of {provider} for {assistant}");
            let chat = format!("{begins}{of}-{assistant}");
            let message = json!({"message": "Hello", "chatUid": chat, "provider": provider, "model": llm,
                "skipSummarization": true});
            let reply = app.post(&format!("/assistants/{assistant}/messages"), message).await;
            assert_eq!(reply.status, StatusCode::OK, "{what}: {}", reply.body);
            server.all_closed().await;
            let chat = app.get(&format!("/assistants/{assistant}/chats/{chat}")).await.body;
            let ends = if provider == "openai" { "max_tokens" } else { "max_tool_calls" };
            let reason = if reason == "ends" { ends } else { reason };
            assert_eq!((&chat["status"], &chat["stopReason"]), (&json!("completed"), &json!(reason)), "{what}");
            let answer = &chat["chatContent"][1];
            let said = answer["content"]["message"].as_str().expect("text");
            match (assistant, of) {
                ("brief", "text") => {
                    assert_eq!(said, "word ".repeat(110), "{what}: its tokens and a tenth");
                    assert_eq!(answer["messageTokenUsage"]["outputTokens"], 110, "{what}");
                }
                ("long", "text") => assert_eq!(said.len(), MEBIBYTE, "{what}"),
                _ => assert_eq!(said, "", "{what}"),
            }
            let calls = answer["tool_calls"].as_array().map_or(0, Vec::len);
            let most = if of == "calls" && provider != "openai" { 64 } else { 0 };
            assert_eq!(calls, most, "{what}: half a call is none, and 64 are enough");
        }
    }
    let _ = std::fs::remove_file(file);
}

#[tokio::test]
async fn a_provider_that_is_not_there_ends_the_turn_with_a_reason_and_the_chat_goes_on() {
    // A port that is taken, where nobody listens, and a name that nobody has.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let refused = format!("http://{}/v1", socket.local_addr().expect("an address"));
    for base in [refused.as_str(), "http://provider.invalid/v1"] {
        let settings = [
            ("OPENAI_BASE_URL", base),
            ("OPENAI_API_KEY", "sk-test"),
            ("PLATFORM_DEFAULT_MODEL", "gpt-4o"),
            ("PLATFORM_MODEL_ATTEMPTS", "2"),
        ];
        let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
        let message = json!({"message": "Hello", "chatUid": "c", "skipSummarization": true});
        let said = app.post("/assistants/default/messages", message).await;
        assert_eq!(said.error(), "UPSTREAM_ERROR", "{base}: {}", said.body);
        let chat = app.get("/assistants/default/chats/c/realtime").await.body;
        assert_eq!((&chat["status"], &chat["error"]["code"]), (&json!("error"), &json!("PROVIDER_ERROR")), "{chat}");
        let next = json!({"message": "Hello", "chatUid": "c", "provider": "demo", "skipSummarization": true});
        assert_eq!(app.post("/assistants/default/messages", next).await.status, StatusCode::OK, "{base}");
    }
}
