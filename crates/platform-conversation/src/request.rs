//! What a turn is asked for.

use platform_core::Object;
use platform_guardrails::Finding;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a turn must know beyond its conversation; stored with its run, or with the message while it waits.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TurnRequest {
    /// Provider of this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Model of this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Shown to the model in this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_state: Option<Object>,
    /// No title and no summaries.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_summarization: bool,
    /// Of the tools there are, those that the turn may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_tools: Option<Vec<String>>,
    /// Tools that the client runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ClientTool>,
    /// Apps whose tools the turn does without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled_integrations: Vec<String>,
    /// Who asked.
    pub user_uid: String,
    /// What the input rules found as its messages arrived.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// An input rule blocks the turn.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blocked: bool,
    /// How many triggers led to it, one after the other (contract 09 §3).
    #[serde(skip_serializing_if = "is_zero")]
    pub depth: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde gives it")]
fn is_zero(depth: &u8) -> bool {
    *depth == 0
}

impl TurnRequest {
    /// What the input rules found in one more message is of this turn.
    pub fn note_found(&mut self, findings: Vec<Finding>, blocked: bool) {
        self.findings.extend(findings);
        self.blocked |= blocked;
    }

    /// One turn for many messages: what the last one wants, what was found in any, as deep as the deepest; `None` without
    /// messages.
    pub fn joined(requests: Vec<Self>) -> Option<Self> {
        requests.into_iter().reduce(|mut earlier, last| {
            earlier.note_found(last.findings, last.blocked);
            let depth = earlier.depth.max(last.depth);
            Self { findings: earlier.findings, blocked: earlier.blocked, depth, ..last }
        })
    }
}

/// The event that a message or a thread is about (contract 09 §3).
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerOrigin {
    /// `{triggerId, triggerSlug, app, eventId}`.
    pub source: Object,
    /// How many triggers led to it, this one included.
    pub depth: u8,
}

/// A tool that the client runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClientTool {
    /// Always `function`.
    #[serde(default = "function", deserialize_with = "platform_core::lower_case")]
    #[schema(default = function)]
    pub r#type: String,
    /// What it is.
    pub function: ClientFunction,
}

fn function() -> String {
    "function".to_owned()
}

/// Name and shape of a client-side tool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClientFunction {
    /// Name.
    pub name: String,
    /// What it does.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its arguments.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub parameters: serde_json::Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_of_many_messages_is_as_deep_as_the_deepest() {
        let of = |depth| TurnRequest { depth, ..TurnRequest::default() };
        let depth = |depths: &[u8]| TurnRequest::joined(depths.iter().copied().map(of).collect()).map(|of| of.depth);
        assert_eq!((depth(&[4, 0]), depth(&[0, 2, 1]), depth(&[])), (Some(4), Some(2), None));
    }
}
