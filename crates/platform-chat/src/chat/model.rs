use platform_conversation::{Compaction, MessageFeedback, StoredJson, TokenUsage, guardrail_turns};
use platform_core::{Checks, FieldLimits, Object, Result, Timestamp};
use platform_guardrails::Finding;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A chat as it is sent, an element of `histories` (contract 02 §4).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Chat {
    /// Id of the chat.
    #[serde(rename = "chatUID")]
    pub uid: String,
    /// Its account.
    #[serde(rename = "clientUID")]
    pub client_uid: String,
    /// Who sent the first message.
    #[serde(rename = "userUID")]
    pub user_uid: String,
    /// Title.
    pub name: String,
    /// Put away.
    pub archived: bool,
    /// Its assistant.
    pub assistant_specialization_identifier: String,
    /// Its messages, oldest first; left out with `omitContent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_content: Option<Vec<StoredJson>>,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// Model of the last answer; empty before the first.
    pub llm: String,
    /// Provider of the last answer.
    pub provider: String,
    /// Window of that model, in tokens.
    pub context_window: i64,
    /// Prompt tokens of all answers.
    pub input_tokens: i64,
    /// Answer tokens of all answers.
    pub output_tokens: i64,
    /// Tokens and costs.
    #[schema(value_type = TokenUsage)]
    pub token_usage: StoredJson,
    /// What clients noted.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// Tags.
    pub tags: Vec<String>,
    /// Tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// End user within the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// Where it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_source: Option<String>,
    /// `buffering`, `processing`, `completed`, `error`, `waiting_for_tool_response`, `handed_off` or
    /// `limit_exceeded`.
    pub status: String,
    /// Why the last turn ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// What guardrails found in the last 20 turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guardrail_results: Option<GuardrailResults>,
    /// Given to a sub-agent.
    pub handed_off: bool,
    /// The sub-agent's thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed_off_sub_thread_id: Option<String>,
    /// The call that handed it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed_off_tool_call_id: Option<String>,
    /// The trigger that it began with: `{triggerId, triggerSlug, app, eventId}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub trigger_source: Option<Object>,
    /// Memories used.
    #[schema(value_type = Vec<Object>)]
    pub recalled_memories: Vec<Object>,
    /// Out of quota: until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Timestamp>,
    /// Out of quota: `TENANT_LIMIT_EXCEEDED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_reason: Option<&'static str>,
    /// Core memories.
    #[schema(value_type = Vec<Object>)]
    pub core_memories: Vec<Object>,
    /// Summaries that stand for older messages.
    pub compactions: Vec<Compaction>,
}

/// [`Status::Waiting`] as it is stored and sent.
pub(crate) const WAITING: &str = "waiting_for_tool_response";

/// [`Status::HandedOff`] as it is stored and sent.
pub(crate) const HANDED_OFF: &str = "handed_off";

/// How a chat without quota is stored and sent; a case of [`Status::Ended`].
pub(crate) const LIMIT_EXCEEDED: &str = "limit_exceeded";

/// The `stopReason` of a chat that waits (contract 02 §4); none while it does anything else.
pub(crate) fn waiting_reason(status: &str) -> Option<&'static str> {
    match status {
        WAITING => Some("tool_use"),
        HANDED_OFF => Some("handed_off"),
        _ => None,
    }
}

/// What a chat does (contract 02 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Buffering,
    Processing,
    /// For the client's tools or approvals.
    Waiting,
    /// For a sub-agent.
    HandedOff,
    /// Completed, in error, or out of quota.
    Ended,
}

impl Status {
    pub fn of(stored: &str) -> Self {
        match stored {
            "buffering" => Self::Buffering,
            "processing" => Self::Processing,
            WAITING => Self::Waiting,
            HANDED_OFF => Self::HandedOff,
            _ => Self::Ended,
        }
    }

    /// Nothing comes by itself.
    pub fn is_terminal(self) -> bool {
        self == Self::Ended
    }

    /// What a message to such a chat waits for.
    pub fn queue_word(self) -> &'static str {
        match self {
            Self::Buffering => "after_delay",
            // One that failed goes on with what waits.
            Self::Processing | Self::Ended => "next_turn",
            Self::Waiting | Self::HandedOff => "on_resume",
        }
    }
}

/// What guardrails found in the last turns (contract 02 §8).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct GuardrailResults {
    /// A rule has failed.
    pub triggered: bool,
    /// Failed rules, and what judges said.
    #[schema(value_type = Vec<Object>)]
    pub results: Vec<Finding>,
}

impl GuardrailResults {
    /// Reads what is stored, by turn.
    pub(crate) fn of(stored: &str) -> Self {
        let results: Vec<Finding> = guardrail_turns(Some(stored)).into_iter().flatten().collect();
        Self { triggered: results.iter().any(|finding| !finding.passed), results }
    }
}

/// Why a chat is in error.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StatusError {
    /// `PROVIDER_ERROR`, `STRUCTURED_OUTPUT_INVALID`, `CONTEXT_TOO_LONG`, `WORKER_LOST`.
    pub code: String,
    /// One sentence.
    pub message: String,
}

/// A page of chats.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatList {
    /// The chats, newest first.
    pub histories: Vec<Chat>,
    /// How many match in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// Which slice of a list, and whether with messages.
#[derive(Debug, Clone, Copy)]
pub struct ChatPage {
    /// The slice.
    pub page: platform_core::Page,
    /// Leave the messages out.
    pub omit_content: bool,
}

/// Changes to a chat.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ChatPatch {
    /// Title, 1 to 200 characters.
    #[schema(required = false)]
    pub name: String,
    /// Put away.
    #[serde(default)]
    pub archived: bool,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Replaces the metadata.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub metadata: Object,
}

impl ChatPatch {
    /// A chat to try changes on.
    pub(crate) fn blank() -> Self {
        Self { name: "New chat".to_owned(), archived: false, tags: Vec::new(), metadata: Object::new() }
    }

    /// Judges the fields that were given.
    pub(crate) fn check(&mut self, given: &[String], limits: &FieldLimits) -> Result<()> {
        let is_given = |name: &str| given.iter().any(|given| given == name);
        let mut checks = Checks::within(limits);
        if is_given("name") {
            checks.length("name", &self.name, 1..=200);
        }
        if is_given("tags") {
            checks.tags("tags", &mut self.tags);
        }
        if is_given("metadata") {
            checks.metadata("metadata", &self.metadata);
        }
        checks.finish()
    }
}

/// Answer of a stop.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stopped {
    /// The chat.
    pub chat_uid: String,
    /// What happened.
    pub message: String,
    /// Messages that waited and are not answered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub discarded_messages: Vec<StoredJson>,
}

/// Answer of a compaction.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Compacted {
    /// Whether older messages were summed up.
    pub compacted: bool,
    /// Why not: `too_short` or `nothing_new`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// What it came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
}

/// What a compaction came to.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Messages that were summed up.
    pub compacted_message_count: i32,
    /// About how many tokens the model would have got.
    pub tokens_before: u64,
    /// About how many it gets now.
    pub tokens_after: u64,
}

/// Feedback on a message of a chat (contract 02 §5).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Feedback {
    /// The record.
    #[serde(flatten)]
    pub given: MessageFeedback,
    /// Its chat.
    #[serde(rename = "chatUID")]
    pub chat_uid: String,
}
