//! Answers that satisfy a schema (contract 02 §9).

use platform_testing::Script;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{app, app_with_model};

fn weather() -> Value {
    json!({"type": "object", "required": ["city", "degrees", "sky"], "additionalProperties": false, "properties": {
        "city": {"type": "string", "minLength": 2}, "degrees": {"type": "number", "minimum": -90},
        "sky": {"enum": ["clear", "grey"]}}})
}

async fn assistant(app: &platform_testing::TestApp, output: Value) {
    let made = app.post("/assistants", json!({"name": "W", "identifier": "w", "structuredOutput": output})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
}

#[tokio::test]
async fn a_valid_answer_is_data_and_an_invalid_one_an_error() {
    let app = app().await;
    assistant(&app, json!({"schema": weather()})).await;
    let ask =
        async |message: &str| app.post("/assistants/w/messages", json!({"chatUid": "c", "message": message})).await;
    let smallest = ask("What is it like?").await;
    assert_eq!(smallest.body[1]["content"]["data"], json!({"city": "xx", "degrees": -90, "sky": "clear"}));
    let given = ask("/json {\"city\": \"Rome\",  \"degrees\": 21.5, \"sky\": \"clear\"}").await;
    let content = &given.body[1]["content"];
    assert_eq!(content["data"], json!({"city": "Rome", "degrees": 21.5, "sky": "clear"}));
    let text: Value = serde_json::from_str(content["message"].as_str().expect("text")).expect("JSON");
    assert_eq!(text, content["data"]);
    // Tool calls before the answer are free.
    let called = ask("/tool radar\n/json {\"city\": \"Oslo\", \"degrees\": 1, \"sky\": \"grey\"}").await;
    assert_eq!(called.body[3]["content"]["data"]["city"], "Oslo");

    for wrong in [
        "/say It is nice.",
        "/json {\"city\": \"R\", \"degrees\": 1, \"sky\": \"clear\"}",
        "/json [1]",
        "/json {\"city\": \"Rome\"}",
    ] {
        let reply = ask(wrong).await;
        assert_eq!((reply.status, reply.error()), (StatusCode::BAD_GATEWAY, "UPSTREAM_ERROR"), "{wrong}");
        assert_eq!(reply.body["details"]["code"], "STRUCTURED_OUTPUT_INVALID");
        let state = app.get("/assistants/w/chats/c/realtime").await.body;
        assert_eq!((&state["status"], &state["error"]["code"]), (&json!("error"), &json!("STRUCTURED_OUTPUT_INVALID")));
    }
    let chat = app.get("/assistants/w/chats/c").await.body;
    assert!(!chat["chatContent"].to_string().contains("\"message\":\"It is nice.\""), "an invalid answer is not kept");
    assert!(chat["outputTokens"].as_u64() > Some(10), "but it is counted");
}

#[tokio::test]
async fn an_invalid_answer_is_repaired_by_asking_again_with_what_is_wrong() {
    let (app, model) = app_with_model(&[]).await;
    assistant(&app, json!({"name": "weather", "schema": weather(), "maxRepairs": 2})).await;
    model.script([
        Script::words(&["{\"city\": \"Rome\"}"]),
        Script::words(&["sorry"]),
        Script::words(&["```json\n{\"city\":\"Rome\",\"degrees\":3,\"sky\":\"grey\"}\n```"]),
    ]);
    let reply = app.post("/assistants/w/messages", json!({"message": "Rome?"})).await;
    assert_eq!(reply.body[1]["content"]["data"]["degrees"], 3);
    assert_eq!(reply.body.as_array().map(Vec::len), Some(2), "drafts are not kept");
    let sent = model.recorded();
    let format = &sent[0].body["response_format"];
    assert_eq!(
        (&format["type"], &format["json_schema"]["name"], &format["json_schema"]["strict"]),
        (&json!("json_schema"), &json!("weather"), &json!(false))
    );
    let repair = sent[1].body["messages"].as_array().and_then(|all| all.last()).cloned().expect("a message");
    let told = repair["content"].as_str().expect("text");
    assert!(told.contains("degrees") && told.contains("sky"), "{told}");
    let chat = app.get(&format!("/assistants/w/chats/{}", reply.header("x-chat-uid"))).await.body;
    assert_eq!(chat["inputTokens"], 21, "three calls of seven tokens");
}

#[tokio::test]
async fn schemas_that_cannot_be_used_are_refused() {
    let app = app().await;
    for schema in [
        json!({"type": "string"}),
        json!({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/schema"}}}),
        json!({"type": "object", "required": "a"}),
        json!({"type": "object", "description": "x".repeat(70_000)}),
    ] {
        let reply = app.post("/assistants", json!({"name": "W", "structuredOutput": {"schema": schema}})).await;
        assert_eq!((reply.status, reply.error()), (StatusCode::BAD_REQUEST, "INVALID_SCHEMA"));
    }
    let missing = app.post("/assistants", json!({"name": "W", "structuredOutput": {}})).await;
    assert_eq!(missing.body["details"]["issues"][0]["path"], "structuredOutput.schema");
    let often =
        app.post("/assistants", json!({"name": "W", "structuredOutput": {"schema": weather(), "maxRepairs": 4}})).await;
    assert_eq!(often.error(), "VALIDATION_ERROR");
    // Switched off it changes nothing.
    assistant(&app, json!({"enabled": false, "schema": weather()})).await;
    let reply = app.post("/assistants/w/messages", json!({"message": "Hi"})).await;
    assert_eq!(reply.body[1]["content"]["message"], "Demo reply: Hi");
}
