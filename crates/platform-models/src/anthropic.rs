//! Anthropic Messages (<https://docs.anthropic.com/en/api/messages>).

use std::borrow::Cow;

use platform_runtime::{Message, ModelSpec, OutputSchema, Prompt, Role, StopReason, Usage};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    broken::Broken,
    draft::{Draft, On, tokens},
    files::{Shape, base64, described, shape},
};

pub(crate) const VERSION: &str = "2023-06-01";

pub(crate) fn body(prompt: &Prompt, model: &ModelSpec) -> Value {
    let most = prompt.max_output_tokens.unwrap_or(model.max_output_tokens);
    let mut body = json!({"model": &*model.llm, "max_tokens": most, "stream": true});
    let fields = body.as_object_mut().expect("an object");
    fields.insert("messages".to_owned(), messages(&prompt.messages, model).into());
    let own_mode = |output: &OutputSchema| output.is_closed() && knows_schemas(&model.llm);
    let instruction = prompt.output.as_ref().filter(|output| !own_mode(output)).map(|output| output.instruction());
    let system = [prompt.system.as_str(), instruction.as_deref().unwrap_or_default()];
    let system: Vec<&str> = system.into_iter().filter(|text| !text.is_empty()).collect();
    if !system.is_empty() {
        fields.insert("system".to_owned(), json!(system.join("\n\n")));
    }
    if let Some(output) = prompt.output.as_ref().filter(|output| own_mode(output)) {
        let format = json!({"type": "json_schema", "schema": output.schema()});
        fields.insert("output_config".to_owned(), json!({"format": format}));
    }
    if !prompt.tools.is_empty() {
        let tools: Vec<Value> = prompt
            .tools
            .iter()
            .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.parameters}))
            .collect();
        fields.insert("tools".to_owned(), tools.into());
    }
    // Extended thinking excludes the sampling parameters.
    let budget = match prompt.reasoning_effort.as_deref().filter(|_| model.capabilities.reasoning) {
        Some("low") => Some(1024),
        Some("medium") => Some(4096),
        Some(_) => Some(16_384),
        None => None,
    };
    if let Some(budget) = budget.filter(|budget| *budget < most) {
        fields.insert("thinking".to_owned(), json!({"type": "enabled", "budget_tokens": budget}));
    } else {
        // Newer models take one of the two.
        if let Some(temperature) = prompt.temperature {
            fields.insert("temperature".to_owned(), json!(temperature.min(1.0)));
        } else if let Some(top_p) = prompt.top_p {
            fields.insert("top_p".to_owned(), json!(top_p));
        }
    }
    body
}

/// Structured outputs came with the models of version 4.5; the older ones refuse the field.
fn knows_schemas(llm: &str) -> bool {
    let numbers: Vec<u32> = llm.split('-').filter(|part| part.len() < 3).filter_map(|part| part.parse().ok()).collect();
    llm.starts_with("claude") && (numbers.first(), numbers.get(1).unwrap_or(&0)) >= (Some(&4), &5)
}

/// Roles must alternate: neighbours of one role become blocks of one message, tool results are the user's.
fn messages(messages: &[Message], model: &ModelSpec) -> Vec<Value> {
    let mut merged: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in messages {
        let (role, blocks) = blocks(message, model);
        if blocks.is_empty() {
            continue;
        }
        match merged.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            _ => merged.push((role, blocks)),
        }
    }
    let said = |(role, content): (&str, Vec<Value>)| {
        Value::from_iter([("role", Value::from(role)), ("content", content.into())])
    };
    merged.into_iter().map(said).collect()
}

fn blocks(message: &Message, model: &ModelSpec) -> (&'static str, Vec<Value>) {
    let text = || (!message.text.is_empty()).then(|| json!({"type": "text", "text": message.text}));
    match message.role {
        Role::Tool => {
            let result = json!({"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.text});
            ("user", vec![result])
        }
        Role::Assistant => {
            let calls = message.tool_calls.iter().map(|call| {
                let input: Value = serde_json::from_str(&call.function.arguments).unwrap_or_else(|_| json!({}));
                json!({"type": "tool_use", "id": call.id, "name": call.function.name, "input": input})
            });
            ("assistant", text().into_iter().chain(calls).collect())
        }
        Role::User | Role::Developer | Role::System => {
            let files = message.files.iter().map(|file| {
                let source = || json!({"type": "base64", "media_type": file.media_type, "data": base64(file)});
                match shape(file, model) {
                    Shape::Image => json!({"type": "image", "source": source()}),
                    Shape::Pdf => json!({"type": "document", "title": file.name, "source": source()}),
                    Shape::Text => json!({"type": "text", "text": described(file)}),
                }
            });
            ("user", files.chain(text()).collect())
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart {
        message: Start,
    },
    ContentBlockStart {
        index: usize,
        #[serde(borrow)]
        content_block: Block<'a>,
    },
    ContentBlockDelta {
        index: usize,
        #[serde(borrow)]
        delta: Piece<'a>,
    },
    MessageDelta {
        delta: Stop,
        usage: Option<Value>,
    },
    MessageStop,
    Error {
        error: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Start {
    usage: Option<Value>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default)]
    r#type: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    #[serde(borrow, default)]
    id: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Piece<'a> {
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    #[serde(borrow, default)]
    thinking: Cow<'a, str>,
    #[serde(borrow, default)]
    partial_json: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Stop {
    stop_reason: Option<String>,
}

/// What is read of a report of usage.
const COUNTS: [&str; 4] = ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];

/// What must be remembered between events: which content blocks are tool calls, and the usage so far.
#[derive(Default)]
pub(crate) struct Reader {
    calls: Vec<usize>,
    usage: serde_json::Map<String, Value>,
}

impl Reader {
    pub fn read(&mut self, data: &str, draft: &mut Draft, on: &mut On<'_>) -> Result<(), Broken> {
        let event = serde_json::from_str(data).map_err(|_| Broken::protocol("an event is not valid JSON"))?;
        match event {
            Event::MessageStart { message } => self.count(message.usage, draft),
            Event::ContentBlockStart { index, content_block } => {
                if content_block.r#type == "tool_use" {
                    draft.tool_call(self.calls.len(), &content_block.id, &content_block.name, "", on)?;
                    self.calls.push(index);
                } else {
                    draft.text(&content_block.text, on)?;
                }
            }
            Event::ContentBlockDelta { index, delta } => {
                draft.reasoning(&delta.thinking)?;
                draft.text(&delta.text, on)?;
                if !delta.partial_json.is_empty()
                    && let Some(call) = self.calls.iter().position(|block| *block == index)
                {
                    draft.tool_call(call, "", "", &delta.partial_json, on)?;
                }
            }
            Event::MessageDelta { delta, usage } => {
                self.count(usage, draft);
                if let Some(reason) = delta.stop_reason {
                    draft.stop = Some(match reason.as_str() {
                        "max_tokens" | "model_context_window_exceeded" => StopReason::MaxTokens,
                        "tool_use" => StopReason::ToolUse,
                        "refusal" => StopReason::ContentFilter,
                        _ => StopReason::EndTurn,
                    });
                }
            }
            Event::MessageStop => {
                draft.complete = true;
                // A call without parameters sends no JSON at all.
                for call in &mut draft.tool_calls {
                    if call.function.arguments.is_empty() {
                        call.function.arguments.push_str("{}");
                    }
                }
            }
            Event::Error { error } => return Err(Broken::reported(&error)),
            Event::Other => {}
        }
        Ok(())
    }

    /// Later counts replace earlier ones; `input_tokens` leaves the cached parts out.
    fn count(&mut self, usage: Option<Value>, draft: &mut Draft) {
        let Some(Value::Object(usage)) = usage else { return };
        self.usage
            .extend(usage.into_iter().filter(|(name, value)| COUNTS.contains(&name.as_str()) && !value.is_null()));
        let of = |name: &str| tokens(self.usage.get(name));
        let (cached, written) = (of("cache_read_input_tokens"), of("cache_creation_input_tokens"));
        let counted = Usage {
            input_tokens: of("input_tokens") + cached + written,
            output_tokens: of("output_tokens"),
            input_cached_tokens: cached,
            input_cache_write_tokens: written,
            ..Usage::default()
        };
        draft.usage = Some(counted.normalised());
    }
}
