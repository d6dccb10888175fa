//! OpenAI Chat Completions (<https://platform.openai.com/docs/api-reference/chat>), which most other
//! servers speak as well.

use std::borrow::Cow;

use platform_runtime::{Message, ModelSpec, Prompt, Role, StopReason, Usage};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    broken::Broken,
    draft::{Draft, On, tokens},
    files::{Shape, data_url, described, shape},
};

pub(crate) fn body(prompt: &Prompt, model: &ModelSpec) -> Value {
    let mut messages = Vec::with_capacity(prompt.messages.len() + 1);
    let instruction = prompt.output.as_ref().filter(|_| !knows_schemas(model)).map(|output| output.instruction());
    let system = [prompt.system.as_str(), instruction.as_deref().unwrap_or_default()];
    let system: Vec<&str> = system.into_iter().filter(|text| !text.is_empty()).collect();
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system.join("\n\n")}));
    }
    messages.extend(prompt.messages.iter().map(|said| message(said, model)));
    let mut body = json!({"model": &*model.llm});
    let fields = body.as_object_mut().expect("an object");
    fields.insert("messages".to_owned(), messages.into());
    if model.capabilities.streaming {
        fields.insert("stream".to_owned(), json!(true));
        fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    if !prompt.tools.is_empty() {
        let tools: Vec<Value> = prompt
            .tools
            .iter()
            .map(|tool| {
                json!({"type": "function", "function":
                    {"name": tool.name, "description": tool.description, "parameters": tool.parameters}})
            })
            .collect();
        fields.insert("tools".to_owned(), tools.into());
    }
    if let Some(output) = prompt.output.as_ref().filter(|_| knows_schemas(model)) {
        let schema = json!({"name": output.name, "schema": output.schema(), "strict": output.is_closed()});
        fields.insert("response_format".to_owned(), json!({"type": "json_schema", "json_schema": schema}));
    }
    // Models that reason refuse the sampling parameters.
    let samples = !model.capabilities.reasoning;
    if let Some(temperature) = prompt.temperature.filter(|_| samples) {
        fields.insert("temperature".to_owned(), json!(temperature));
    }
    if let Some(top_p) = prompt.top_p.filter(|_| samples) {
        fields.insert("top_p".to_owned(), json!(top_p));
    }
    if let Some(most) = prompt.max_output_tokens {
        fields.insert("max_completion_tokens".to_owned(), json!(most));
    }
    if let Some(effort) = prompt.reasoning_effort.as_ref().filter(|_| model.capabilities.reasoning) {
        fields.insert("reasoning_effort".to_owned(), json!(effort));
    }
    body
}

/// Structured outputs are OpenAI's own and Ollama's; of other servers that speak this wire nobody knows.
fn knows_schemas(model: &ModelSpec) -> bool {
    matches!(&*model.provider, "openai" | "ollama")
}

fn message(message: &Message, model: &ModelSpec) -> Value {
    match message.role {
        Role::User if !message.files.is_empty() => {
            let text = (!message.text.is_empty()).then(|| json!({"type": "text", "text": message.text}));
            let files = message.files.iter().map(|file| match shape(file, model) {
                Shape::Image => json!({"type": "image_url", "image_url": {"url": data_url(file)}}),
                Shape::Pdf if &*model.provider == "openai" => {
                    json!({"type": "file", "file": {"filename": file.name, "file_data": data_url(file)}})
                }
                Shape::Pdf | Shape::Text => json!({"type": "text", "text": described(file)}),
            });
            json!({"role": "user", "content": text.into_iter().chain(files).collect::<Vec<_>>()})
        }
        Role::Tool => json!({"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}),
        Role::Assistant if !message.tool_calls.is_empty() => {
            let content = if message.text.is_empty() { Value::Null } else { json!(message.text) };
            json!({"role": "assistant", "content": content, "tool_calls": message.tool_calls})
        }
        // Not every compatible server knows the developer role.
        Role::Developer | Role::System => json!({"role": "system", "content": message.text}),
        role => json!({"role": role.as_str(), "content": message.text}),
    }
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    usage: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    /// `message` in an answer that is not streamed.
    #[serde(borrow, alias = "message")]
    delta: Option<Piece<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Piece<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    refusal: Option<Cow<'a, str>>,
    /// What the model says to itself, under the names that other servers have for it; some send both.
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<CallPiece<'a>>>,
}

#[derive(Deserialize)]
struct CallPiece<'a> {
    index: Option<usize>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    function: Option<FunctionPiece<'a>>,
}

#[derive(Deserialize)]
struct FunctionPiece<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Cow<'a, str>>,
}

/// Reads one event of the stream, or the whole of an answer that is not streamed.
pub(crate) fn read(data: &str, draft: &mut Draft, on: &mut On<'_>) -> Result<(), Broken> {
    if data == "[DONE]" {
        draft.complete = true;
        return Ok(());
    }
    let chunk: Chunk<'_> = serde_json::from_str(data).map_err(|_| Broken::protocol("an event is not valid JSON"))?;
    if let Some(error) = chunk.error {
        return Err(Broken::reported(&error));
    }
    if let Some(usage) = chunk.usage.as_ref().filter(|usage| tells_tokens(usage)) {
        draft.usage = Some(usage_of(usage));
    }
    let Some(choice) = chunk.choices.into_iter().next() else { return Ok(()) };
    if let Some(piece) = choice.delta {
        let reasoning = piece.reasoning_content.or(piece.reasoning);
        draft.reasoning(reasoning.map_or("", |text| text.get().trim_matches('"')))?;
        draft.text(&piece.content.unwrap_or_default(), on)?;
        draft.text(&piece.refusal.unwrap_or_default(), on)?;
        for (position, call) in piece.tool_calls.unwrap_or_default().into_iter().enumerate() {
            let index = call.index.unwrap_or(position);
            let function = call.function.unwrap_or(FunctionPiece { name: None, arguments: None });
            let (id, name) = (call.id.unwrap_or_default(), function.name.unwrap_or_default());
            draft.tool_call(index, &id, &name, &function.arguments.unwrap_or_default(), on)?;
        }
    }
    if let Some(reason) = choice.finish_reason {
        draft.stop = Some(match &*reason {
            "length" => StopReason::MaxTokens,
            "content_filter" => StopReason::ContentFilter,
            "tool_calls" | "function_call" => StopReason::ToolUse,
            _ => StopReason::EndTurn,
        });
    }
    Ok(())
}

/// A report without either number is none: it is estimated then.
fn tells_tokens(usage: &Value) -> bool {
    ["prompt_tokens", "completion_tokens"].iter().any(|name| usage.get(name).is_some_and(Value::is_number))
}

fn usage_of(usage: &Value) -> Usage {
    let input = usage.get("prompt_tokens_details");
    let output = usage.get("completion_tokens_details");
    Usage {
        input_tokens: tokens(usage.get("prompt_tokens")),
        output_tokens: tokens(usage.get("completion_tokens")),
        input_cached_tokens: tokens(input.and_then(|details| details.get("cached_tokens"))),
        input_cache_write_tokens: tokens(input.and_then(|details| details.get("cache_write_tokens"))),
        reasoning_output_tokens: tokens(output.and_then(|details| details.get("reasoning_tokens"))),
        ..Usage::default()
    }
    .normalised()
}
