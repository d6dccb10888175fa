//! Golden files of the provider translations: what each wire is sent, and what its streams become.

use std::{path::PathBuf, sync::Arc};

use platform_child::Children;
use platform_core::AccountId;
use platform_runtime::{
    Attachment, ChildPool, Delta, Message, ModelSpec, Prompt, Role, StructuredOutput, Tool, ToolCall, ToolFunction,
};
use serde_json::{Value, json};

use crate::{anthropic, catalog, draft::Draft, gemini, openai};

fn prompt(provider: &str, llm: &str) -> (Prompt, ModelSpec) {
    let spec = catalog::bundled_model(&provider.into(), llm).expect("a known model");
    let call = |id: &str, arguments: &str| ToolCall {
        id: id.to_owned(),
        r#type: "function".to_owned(),
        function: ToolFunction { name: "weather".to_owned(), arguments: arguments.to_owned() },
    };
    let said = |role, text: &str| Message { role, ..Message::user(text) };
    let result = |id: &str, text: &str| Message { tool_call_id: Some(id.to_owned()), ..said(Role::Tool, text) };
    let messages = vec![
        Message::user("Weather in Rome and Oslo?"),
        Message {
            tool_calls: vec![call("c1", r#"{"city":"Rome"}"#), call("c2", r#"{"city":"Oslo"}"#)],
            ..said(Role::Assistant, "Looking.")
        },
        result("c1", r#"{"sky":"blue"}"#),
        result("c2", "snow"),
        said(Role::Assistant, "Blue in Rome, snow in Oslo."),
        said(Role::Developer, "The user attached: map.png (image)."),
        Message { files: attached(), ..Message::user("Thanks. And \"Bergen\"?") },
    ];
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let output: StructuredOutput = serde_json::from_value(json!({"name": "skies", "schema": {"type": "object",
        "properties": {"sky": {"type": "string"}}, "required": ["sky"], "additionalProperties": false}}))
    .expect("a structured output");
    let children = Arc::new(ChildPool::new(Children::new("/nowhere", ""), 1));
    let tool = Tool { name: "weather".into(), description: "Weather of a city".into(), parameters: Arc::new(schema) };
    let prompt = Prompt {
        system: "Be brief.".into(),
        messages,
        tools: vec![tool],
        temperature: Some(0.5),
        top_p: Some(0.9),
        max_output_tokens: Some(500),
        reasoning_effort: Some("low".into()),
        output: Some(output.ready(&children, &AccountId::generate())),
        ..Prompt::new(spec.clone())
    };
    (prompt, spec)
}

/// An image, a document, and one that no model takes.
fn attached() -> Vec<Attachment> {
    let file = |name: &str, media_type: &str| Attachment {
        name: name.to_owned(),
        media_type: media_type.to_owned(),
        bytes: bytes::Bytes::from_static(b"bytes"),
        text: None,
    };
    vec![file("map.png", "image/png"), file("plan.pdf", "application/pdf"), file("song.mp3", "audio/mpeg")]
}

/// Compares with a golden file, or with `GOLDEN=write` makes it anew.
fn compare(name: &str, actual: &Value) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        let text = serde_json::to_string_pretty(actual).expect("JSON");
        std::fs::write(&path, text + "\n").expect("written");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let expected: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(*actual, expected, "{name} differs; GOLDEN=write takes the new one");
}

/// Feeds the recorded events of a wire, one a line, and shows what became of them.
fn read(name: &str, mut event: impl FnMut(&str, &mut Draft, &mut (dyn for<'d> FnMut(Delta<'d>) + Send))) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let recorded = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (mut draft, mut streamed) = (Draft::default(), String::new());
    for line in recorded.lines().filter(|line| !line.is_empty()) {
        event(line, &mut draft, &mut |delta| {
            if let Delta::Text(text) = delta {
                streamed.push_str(text);
            }
        });
    }
    assert_eq!(streamed, draft.text, "what was streamed is what is kept");
    for call in &mut draft.tool_calls {
        if call.id.len() == ToolCall::new_id().len() {
            "(generated)".clone_into(&mut call.id);
        }
    }
    json!({
        "text": draft.text, "toolCalls": draft.tool_calls, "usage": draft.usage, "complete": draft.complete,
        "stop": draft.stop.map(platform_runtime::StopReason::as_str),
    })
}

#[test]
fn openai_is_asked_and_read_as_its_golden_files_say() {
    let (prompt, spec) = prompt("openai", "gpt-5-mini");
    compare("openai.request.json", &openai::body(&prompt, &spec));
    let answer = read("openai.events", |data, draft, on| openai::read(data, draft, on).expect("a good event"));
    compare("openai.answer.json", &answer);
}

#[test]
fn anthropic_is_asked_and_read_as_its_golden_files_say() {
    let (prompt, spec) = prompt("anthropic", "claude-3-5-haiku-latest");
    compare("anthropic.request.json", &anthropic::body(&prompt, &spec));
    let mut reader = anthropic::Reader::default();
    let answer = read("anthropic.events", |data, draft, on| reader.read(data, draft, on).expect("a good event"));
    compare("anthropic.answer.json", &answer);
}

#[test]
fn claude_4_5_and_later_enforce_schemas_themselves() {
    for (llm, own) in [
        ("claude-sonnet-4-5", true),
        ("claude-haiku-4-5-20251001", true),
        ("claude-opus-4-7", true),
        ("claude-sonnet-4-0", false),
        ("claude-3-7-sonnet-latest", false),
    ] {
        let (prompt, _) = prompt("anthropic", "claude-3-5-haiku-latest");
        let spec = ModelSpec { llm: llm.into(), ..prompt.model.clone() };
        let body = anthropic::body(&prompt, &spec);
        assert_eq!((body.get("output_config").is_some(), body["system"] == "Be brief."), (own, own), "{llm}");
    }
}

#[test]
fn gemini_is_asked_and_read_as_its_golden_files_say() {
    let (prompt, spec) = prompt("gemini", "gemini-2.5-flash");
    compare("gemini.request.json", &gemini::body(&prompt, &spec));
    let answer = read("gemini.events", |data, draft, on| gemini::read(data, draft, on).expect("a good event"));
    compare("gemini.answer.json", &answer);
}
