//! Gemini generateContent (<https://ai.google.dev/api/generate-content>).

use std::{borrow::Cow, collections::HashMap};

use platform_runtime::{Message, ModelSpec, Prompt, Role, StopReason, Usage};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    broken::Broken,
    draft::{Draft, On, tokens},
    files::{Shape, base64, described, shape},
};

pub(crate) fn body(prompt: &Prompt, model: &ModelSpec) -> Value {
    let mut body = json!({});
    let fields = body.as_object_mut().expect("an object");
    fields.insert("contents".to_owned(), contents(&prompt.messages, model).into());
    if !prompt.system.is_empty() {
        fields.insert("systemInstruction".to_owned(), json!({"parts": [{"text": prompt.system}]}));
    }
    if !prompt.tools.is_empty() {
        let declarations: Vec<Value> = prompt
            .tools
            .iter()
            .map(|tool| {
                json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters})
            })
            .collect();
        fields.insert("tools".to_owned(), json!([{"functionDeclarations": declarations}]));
    }
    let mut settings = serde_json::Map::new();
    if let Some(temperature) = prompt.temperature {
        settings.insert("temperature".to_owned(), json!(temperature));
    }
    if let Some(top_p) = prompt.top_p {
        settings.insert("topP".to_owned(), json!(top_p));
    }
    if let Some(most) = prompt.max_output_tokens {
        settings.insert("maxOutputTokens".to_owned(), json!(most));
    }
    if let Some(effort) = prompt.reasoning_effort.as_deref().filter(|_| model.capabilities.reasoning) {
        let budget = match effort {
            "low" => 1024,
            "medium" => 8192,
            _ => 24_576,
        };
        settings.insert("thinkingConfig".to_owned(), json!({"thinkingBudget": budget}));
    }
    if let Some(output) = &prompt.output {
        settings.insert("responseMimeType".to_owned(), json!("application/json"));
        settings.insert("responseJsonSchema".to_owned(), output.schema().clone());
    }
    if !settings.is_empty() {
        fields.insert("generationConfig".to_owned(), Value::Object(settings));
    }
    body
}

/// Neighbours of one role become parts of one content; a tool result names its function.
fn contents(messages: &[Message], model: &ModelSpec) -> Vec<Value> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut merged: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in messages {
        names.extend(message.tool_calls.iter().map(|call| (call.id.as_str(), call.function.name.as_str())));
        let role = if message.role == Role::Assistant { "model" } else { "user" };
        let mut parts = Vec::new();
        if message.role == Role::Tool {
            let name = message.tool_call_id.as_deref().and_then(|id| names.get(id)).copied().unwrap_or_default();
            let result = match serde_json::from_str(&message.text) {
                Ok(Value::Object(result)) => Value::Object(result),
                _ => json!({"result": message.text}),
            };
            parts.push(json!({"functionResponse": {"name": name, "response": result}}));
        } else if !message.text.is_empty() {
            parts.push(json!({"text": message.text}));
        }
        parts.extend(message.files.iter().map(|file| match shape(file, model) {
            Shape::Image | Shape::Pdf => json!({"inlineData": {"mimeType": file.media_type, "data": base64(file)}}),
            Shape::Text => json!({"text": described(file)}),
        }));
        for call in &message.tool_calls {
            let arguments: Value = serde_json::from_str(&call.function.arguments).unwrap_or_else(|_| json!({}));
            parts.push(json!({"functionCall": {"name": call.function.name, "args": arguments}}));
        }
        match merged.last_mut() {
            _ if parts.is_empty() => {}
            Some((last, content)) if *last == role => content.extend(parts),
            _ => merged.push((role, parts)),
        }
    }
    let said =
        |(role, parts): (&str, Vec<Value>)| Value::from_iter([("role", Value::from(role)), ("parts", parts.into())]);
    merged.into_iter().map(said).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk<'a> {
    #[serde(borrow, default)]
    candidates: Vec<Candidate<'a>>,
    prompt_feedback: Option<Value>,
    usage_metadata: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(borrow)]
    content: Option<Content<'a>>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    parts: Vec<Part<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(default)]
    thought: bool,
    function_call: Option<FunctionCall>,
}

#[derive(Deserialize)]
struct FunctionCall {
    id: Option<String>,
    name: String,
    #[serde(default)]
    args: Value,
}

pub(crate) fn read(data: &str, draft: &mut Draft, on: &mut On<'_>) -> Result<(), Broken> {
    let chunk: Chunk<'_> = serde_json::from_str(data).map_err(|_| Broken::protocol("an event is not valid JSON"))?;
    if let Some(error) = chunk.error {
        return Err(Broken::reported(&error));
    }
    if let Some(usage) = &chunk.usage_metadata {
        draft.usage = Some(usage_of(usage));
    }
    if chunk.prompt_feedback.is_some_and(|feedback| feedback.get("blockReason").is_some()) {
        draft.stop = Some(StopReason::ContentFilter);
        draft.complete = true;
    }
    let Some(candidate) = chunk.candidates.into_iter().next() else { return Ok(()) };
    for part in candidate.content.map(|content| content.parts).unwrap_or_default() {
        match part.text {
            Some(text) if part.thought => draft.reasoning(&text)?,
            Some(text) => draft.text(&text, on)?,
            None => {}
        }
        if let Some(call) = part.function_call {
            let index = draft.tool_calls.len();
            let id = call.id.unwrap_or_default();
            let arguments = if call.args.is_null() { "{}".to_owned() } else { call.args.to_string() };
            draft.tool_call(index, &id, &call.name, &arguments, on)?;
        }
    }
    // It counts while it writes, which is better than any guess.
    draft.counted(draft.usage.map_or(0, |usage| usage.output_tokens));
    if let Some(reason) = candidate.finish_reason {
        draft.complete = true;
        draft.stop = Some(match reason.as_str() {
            "STOP" if draft.tool_calls.is_empty() => StopReason::EndTurn,
            "STOP" => StopReason::ToolUse,
            "MAX_TOKENS" => StopReason::MaxTokens,
            "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" => StopReason::ContentFilter,
            _ => StopReason::EndTurn,
        });
    }
    Ok(())
}

/// `candidatesTokenCount` leaves the thoughts out, `promptTokenCount` holds the cached part.
fn usage_of(usage: &Value) -> Usage {
    let of = |name: &str| tokens(usage.get(name));
    let thoughts = of("thoughtsTokenCount");
    Usage {
        input_tokens: of("promptTokenCount") + of("toolUsePromptTokenCount"),
        output_tokens: of("candidatesTokenCount") + thoughts,
        input_cached_tokens: of("cachedContentTokenCount"),
        reasoning_output_tokens: thoughts,
        ..Usage::default()
    }
    .normalised()
}
