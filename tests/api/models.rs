//! `GET /v1/models`, and how providers are called (contract 18)

use std::time::{Duration, Instant};

use platform_testing::{FakeModelServer, Script, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::json;

use crate::support::{PATIENCE, PROGRAM, app, app_with_model, say};

#[tokio::test]
async fn demo_is_the_default_only_while_nothing_else_is_configured() {
    let app = app().await;
    let listed = app.get("/models").await.body;
    assert_eq!(listed["default"], json!({"provider": "demo", "llm": "demo-1"}));
    assert_eq!(
        listed["models"][0]["capabilities"],
        json!({"tools": true, "vision": true, "streaming": true, "reasoning": false})
    );

    let (app, _model) = app_with_model(&[]).await;
    let listed = app.get("/models").await.body;
    assert_eq!(listed["default"], json!({"provider": "openai", "llm": "gpt-4o"}));
    let gpt = app.get("/models?provider=openai").await.body;
    let priced =
        gpt["models"].as_array().expect("models").iter().find(|model| model["llm"] == "gpt-4o").expect("known");
    assert_eq!((&priced["inputPricePerMTok"], &priced["outputPricePerMTok"]), (&json!(2.5), &json!(10)));
    assert!(gpt["models"].as_array().expect("models").iter().all(|model| model["provider"] == "openai"));
}

#[tokio::test]
async fn all_three_wires_work_and_a_file_adds_servers_and_prices() {
    let model = FakeModelServer::start();
    let file = std::env::temp_dir().join(format!("providers-api-{}.yaml", std::process::id()));
    let text = format!(
        "providers:\n  - {{name: local, baseUrl: '{0}/v1', headers: {{x-team: blue}}, models: \
         [{{llm: tiny, contextWindow: 4096, inputPricePerMTok: 1, outputPricePerMTok: 2}}, \
         {{llm: mute, capabilities: {{tools: false}}}}]}}\n",
        model.url()
    );
    std::fs::write(&file, text).expect("written");
    let settings = [
        ("ANTHROPIC_API_KEY", "a-key"),
        ("ANTHROPIC_BASE_URL", model.url()),
        ("GEMINI_API_KEY", "g-key"),
        ("GEMINI_BASE_URL", model.url()),
        ("PLATFORM_PROVIDERS_FILE", file.to_str().expect("a path")),
        ("PLATFORM_SECONDARY_MODEL", "demo:demo-1"),
    ];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let cases = [
        ("local", "tiny", "/v1/chat/completions", ""),
        ("anthropic", "claude-sonnet-4-5", "/v1/messages", "a-key"),
        ("gemini", "gemini-2.5-flash", "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", "g-key"),
    ];
    for (at, (provider, llm, path, credential)) in cases.into_iter().enumerate() {
        let message = json!({"message": "Hello", "provider": provider, "llm": llm});
        let reply = app.post("/assistants/default/messages", message).await;
        assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
        assert_eq!(reply.body[1]["content"]["message"], "Hello from the model.", "{provider}");
        let usage = &reply.body[1]["messageTokenUsage"];
        assert_eq!(
            (&usage["inputTokens"], &usage["outputTokens"], &usage["model"]),
            (&json!(7), &json!(4), &json!(llm))
        );
        assert!(reply.body[1]["messageCost"]["totalCost"].as_f64().is_some_and(|cost| cost > 0.0), "{provider}");
        let sent = &model.recorded()[at];
        assert_eq!((sent.path.as_str(), sent.credential.as_str()), (path, credential));
    }
    let default = app.get("/models").await.body["default"].clone();
    assert_eq!(default, json!({"provider": "local", "llm": "tiny"}), "the file comes first");
    // A model that takes no tools is nobody's fallback who has some.
    let mute = json!([{"provider": "local", "model": "mute"}]);
    let mut assistant = json!({"name": "M", "identifier": "m", "fallbackModels": mute});
    assert_eq!(app.post("/assistants", assistant.clone()).await.status, StatusCode::CREATED);
    model.script([Script::refusal(401)]);
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
    let failed = app.post("/assistants/m/messages", json!({"message": "Hi", "tools": tools})).await;
    assert_eq!((failed.status, model.recorded().len()), (StatusCode::BAD_GATEWAY, 4), "{}", failed.body);
    (assistant["identifier"], assistant["availableToolsGroupsUids"]) = (json!("n"), json!(["builtin-time"]));
    let refused = app.post("/assistants", assistant).await;
    assert_eq!((refused.error(), &refused.body["details"]["capability"]), ("MODEL_NOT_SUPPORTED", &json!("tools")));
    std::fs::remove_file(file).expect("removed");
}

#[tokio::test]
async fn calls_are_retried_before_the_first_token_then_fall_back() {
    let settings = [("PLATFORM_MODEL_ATTEMPTS", "2")];
    let (app, model) = app_with_model(&settings).await;
    let refused = |status| Script { retry_after: Some("0".to_owned()), ..Script::refusal(status) };
    model.script([refused(503)]);
    assert_eq!(say(&app, "again").await.status, StatusCode::OK);
    assert_eq!(model.calls(), 2);

    let assistant =
        json!({"name": "F", "identifier": "f", "fallbackModels": [{"provider": "demo", "model": "demo-1"}]});
    assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    for script in [vec![refused(500), refused(500)], vec![Script::refusal(401)]] {
        model.script(script);
        let reply = app.post("/assistants/f/messages", json!({"message": "Hi"})).await;
        assert_eq!(reply.body[1]["content"]["message"], "Demo reply: Hi");
        assert_eq!(reply.body[1]["messageTokenUsage"]["provider"], "demo");
    }
    // A Retry-After is waited for, a long one is not.
    model.script([Script { retry_after: Some("1".to_owned()), ..Script::refusal(429) }]);
    let began = Instant::now();
    assert_eq!(say(&app, "wait").await.status, StatusCode::OK);
    assert!(began.elapsed() >= Duration::from_secs(1));
    model.script([Script { retry_after: Some("120".to_owned()), ..Script::refusal(429) }]);
    assert_eq!(say(&app, "too long").await.body["details"]["code"], "RATE_LIMITED");
    // Ten failures in a row close the door; the model is not asked any more.
    model.script((0..10).map(|_| refused(500)));
    for _ in 0..5 {
        say(&app, "down").await;
    }
    let before = model.calls();
    assert_eq!(say(&app, "closed").await.body["details"]["code"], "UNAVAILABLE");
    assert_eq!(model.calls(), before);
}

#[tokio::test]
async fn a_listed_model_without_a_price_is_free_and_usable() {
    let (app, _model) = app_with_model(&[]).await;
    let patience = Instant::now() + PATIENCE;
    let names = async || {
        let models = app.get("/models?provider=openai").await.body;
        models["models"].as_array().expect("models").iter().any(|model| model["llm"] == "listed-model")
    };
    while !names().await {
        assert!(Instant::now() < patience, "the server's list never came");
    }
    let reply = app.post("/assistants/default/messages", json!({"message": "Hi", "model": "listed-model"})).await;
    assert_eq!((reply.status, &reply.body[1]["messageCost"]["totalCost"]), (StatusCode::OK, &json!(0)));
}

#[tokio::test]
async fn an_ollama_server_counts_while_it_answers() {
    let model = FakeModelServer::start();
    let host = model.url().trim_start_matches("http://").to_owned();
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &[("OLLAMA_HOST", &host)]);
    let listed = app.get("/models").await.body;
    assert_eq!(listed["default"], json!({"provider": "ollama", "llm": "listed-model"}));
    assert_eq!(say(&app, "Hello").await.body[1]["content"]["message"], "Hello from the model.");

    let app = TestApp::start(PROGRAM, &TestDb::new().await, &[("OLLAMA_HOST", "127.0.0.1:9")]);
    assert_eq!(app.get("/models").await.body["default"]["provider"], "demo", "nobody answers there");
    let reply = app.post("/assistants/default/messages", json!({"message": "Hi", "provider": "ollama"})).await;
    assert_eq!(reply.error(), "PROVIDER_NOT_CONFIGURED");
    assert_eq!(reply.body["details"]["available"], json!(["demo"]));
}
