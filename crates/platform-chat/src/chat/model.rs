use platform_core::{Checks, Id, Object, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::turn::{StoredJson, TokenUsage};

/// Kind of chat ids.
pub(crate) enum ChatKind {}
pub(crate) type ChatId = Id<ChatKind>;

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
    /// Model of the last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub llm: Option<String>,
    /// Provider of the last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
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
    /// `processing`, `completed`, `error` or `limit_exceeded`.
    pub status: String,
    /// Why the last turn ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Given to a sub-agent.
    pub handed_off: bool,
    /// Memories used.
    #[schema(value_type = Vec<Object>)]
    pub recalled_memories: Vec<Object>,
    /// Core memories.
    #[schema(value_type = Vec<Object>)]
    pub core_memories: Vec<Object>,
    /// Summaries that stand for older messages.
    #[schema(value_type = Vec<Object>)]
    pub compactions: Vec<Object>,
}

/// Why a chat is in error.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StatusError {
    /// `PROVIDER_ERROR`, `CONTEXT_TOO_LONG`, `WORKER_LOST`.
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
    /// Judges the fields that were given.
    pub(crate) fn check(&mut self, given: &[String]) -> Result<()> {
        let is_given = |name: &str| given.iter().any(|given| given == name);
        let mut checks = Checks::default();
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
}

/// Messages that hold the searched text.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Matches {
    /// The first of them.
    pub matches: Vec<Match>,
    /// How many there are.
    pub total: i64,
}

/// A message that holds the searched text.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Its id.
    pub message_uid: String,
    /// Who said it.
    pub role: String,
    /// When.
    pub timestamp: Timestamp,
    /// The text around the first occurrence.
    pub snippet: String,
    /// Place of the message in the chat, from 0.
    pub position: i32,
}

/// Feedback as a client gives it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewFeedback {
    /// The message it is about.
    pub message_id: String,
    /// Whether it was good.
    pub feedback: bool,
    /// Words, at most 4000 characters.
    #[serde(default)]
    pub feedback_comment: Option<String>,
    /// Anything else.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub feedback_data: Option<Object>,
}

impl NewFeedback {
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        checks.length("feedbackComment", self.feedback_comment.as_deref().unwrap_or_default(), 0..=4000);
        if let Some(data) = &self.feedback_data {
            checks.metadata("feedbackData", data);
        }
        checks.finish()
    }
}

/// Feedback as it is kept (contract 02 §5).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Feedback {
    /// Id of the record.
    #[serde(rename = "_id")]
    pub id: String,
    /// The message it is about.
    pub request_id: String,
    /// First given at, ISO 8601.
    pub creation_timestamp: String,
    /// Its chat.
    #[serde(rename = "chatUID")]
    pub chat_uid: String,
    /// Whether it was good.
    pub feedback: bool,
    /// Words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback_comment: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub feedback_data: Option<Object>,
    /// Last given at, ISO 8601.
    pub last_edit_timestamp: String,
    /// Who gave it.
    #[serde(rename = "userUID")]
    pub user_uid: String,
}
