use std::collections::HashSet;

use platform_core::{Object, Result};
use platform_runtime::{Message, Model, ModelSpec, Prompt, Role, ToolCall};
use serde::Deserialize;
use serde_json::Value;

use super::{message::File, work::TurnRequest};
use crate::assistant::Assistant;

/// A stored message, read as far as a model needs it.
#[derive(Deserialize)]
struct StoredMessage {
    role: Role,
    content: StoredContent,
    #[serde(default)]
    tool_calls: Vec<ToolCall>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct StoredContent {
    message: String,
    #[serde(default)]
    files: Vec<File>,
}

/// What the model gets, in the order of contract 02 §6. `turn` is the index in `stored` where the turn begins.
pub(crate) fn build(
    model: &dyn Model,
    assistant: &Assistant,
    request: &TurnRequest,
    metadata: &Object,
    stored: &[String],
    turn: usize,
) -> Result<Prompt> {
    let settings = assistant.settings();
    let spec = settings.choose(model, request.provider.as_deref(), request.model.as_deref())?;
    let fallbacks = settings
        .fallback_models
        .iter()
        .filter_map(|fallback| model.choose(Some(&fallback.provider), Some(&fallback.model)).ok())
        .filter(|fallback| *fallback != spec)
        .collect();
    let mut messages = Vec::with_capacity(stored.len() + 1);
    let mut turn_at = 0;
    let mut calls = HashSet::new();
    for (at, body) in stored.iter().enumerate() {
        let Ok(message) = serde_json::from_str::<StoredMessage>(body) else { continue };
        calls.extend(message.tool_calls.iter().map(|call| call.id.clone()));
        // A cut must not leave a result without its call.
        if message.tool_call_id.as_ref().is_some_and(|id| !calls.contains(id)) {
            continue;
        }
        if at == turn {
            if let Some(state) = &request.application_state {
                let state = serde_json::to_string(state).unwrap_or_default();
                messages.push(developer(format!("State of the application: {state}")));
            }
            turn_at = messages.len();
        }
        if !message.content.files.is_empty() {
            messages.push(developer(names(&message.content.files)));
        }
        messages.push(Message {
            role: message.role,
            text: message.content.message,
            tool_calls: message.tool_calls,
            tool_call_id: message.tool_call_id,
        });
    }
    let params = metadata.get("promptTemplateParams");
    Ok(Prompt {
        fallbacks,
        system: fill(&settings.presets, params.unwrap_or(&Value::Null)),
        messages,
        turn: turn_at,
        temperature: settings.temperature,
        top_p: settings.top_p,
        max_output_tokens: settings.max_output_tokens.map(|most| most.min(spec.max_output_tokens)),
        reasoning_effort: settings.reasoning_effort.clone(),
        ..Prompt::new(spec)
    })
}

/// How many bytes of messages fit beside an answer: four bytes a token, four fifths of the window.
pub(crate) fn budget(spec: &ModelSpec) -> usize {
    usize::try_from(spec.context_window).unwrap_or(usize::MAX).saturating_mul(4) / 5 * 4
}

fn developer(text: String) -> Message {
    Message { role: Role::Developer, text, tool_calls: Vec::new(), tool_call_id: None }
}

fn names(files: &[File]) -> String {
    let names: Vec<String> = files.iter().map(|file| format!("{} ({})", file.name, file.file_type)).collect();
    format!("The user attached: {}.", names.join(", "))
}

/// Fills `{{dotted.path}}` placeholders (contract 00 §10): data only, missing ones are empty.
pub(crate) fn fill(template: &str, params: &Value) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        filled.push_str(before);
        let Some((path, after)) = after.split_once("}}") else {
            filled.push_str("{{");
            rest = after;
            continue;
        };
        let value = path.trim().split('.').try_fold(params, |value, key| value.get(key));
        match value {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => filled.push_str(text),
            Some(other) => filled.push_str(&other.to_string()),
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn placeholders_are_filled_as_data_and_once() {
        let params = json!({"user": {"name": "{{secret}}"}, "list": [1, 2], "secret": "no", "n": 3});
        assert_eq!(fill("Hi {{ user.name }}, {{list}} {{n}}{{missing.x}}!", &params), "Hi {{secret}}, [1,2] 3!");
        assert_eq!(fill("open {{ only", &params), "open {{ only");
    }
}
