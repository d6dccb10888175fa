use platform_conversation::{
    ClientTool, File, GivenFile, StoredJson, TriggerOrigin, check_client_tools, check_message,
};
use platform_core::{Checks, FieldLimits, Id, Object, Result};
use platform_runtime::Role;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const STATE_BYTES: usize = 65_536;
const MAX_PAST_MESSAGES: usize = 100;

/// A message to an assistant (contract 02 §3).
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewMessage {
    /// Text, at most 256 KiB; required unless there are files.
    pub message: Option<String>,
    /// The chat to go on with; unknown ones are made under this id, absent ones are new.
    pub chat_uid: Option<String>,
    /// Name of the caller, at most 200 characters.
    pub user_name: Option<String>,
    /// Transcript of what was dictated; its text is said when there is no other.
    pub transcript_id: Option<String>,
    /// At most 20 files.
    #[schema(value_type = Vec<GivenFile>)]
    pub files: Vec<File>,
    /// Merged into the chat's metadata; `promptTemplateParams` fills the system prompt.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// Tenant.
    pub tenant_id: Option<String>,
    /// End user within the tenant.
    pub subtenant_id: Option<String>,
    /// What was said before, for a new chat; at most 100.
    pub previous_conversation: Vec<PastMessage>,
    /// Provider of this turn.
    pub provider: Option<String>,
    /// Model of this turn.
    #[serde(alias = "llm")]
    pub model: Option<String>,
    /// Added to the chat's tags.
    pub tags: Vec<String>,
    /// Shown to the model in this turn, not stored; at most 64 KiB.
    #[schema(value_type = Option<Object>)]
    pub application_state: Option<Object>,
    /// Of the assistant's tools, those that this turn may use.
    pub enabled_tools: Option<Vec<String>>,
    /// Apps of the end user whose tools this turn does without; at most 100.
    pub disabled_integrations: Vec<String>,
    /// Tools that the client runs, in this turn; at most 50.
    pub tools: Vec<ClientTool>,
    /// No title and no summaries for this turn.
    pub skip_summarization: bool,
    /// The event it is about, when no client sent it.
    #[serde(skip)]
    #[schema(ignore)]
    pub trigger: Option<TriggerOrigin>,
}

/// A message from before the chat.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PastMessage {
    /// Text.
    pub message: String,
    /// `user` or `assistant`.
    pub role: Role,
}

impl NewMessage {
    pub(crate) fn check(&mut self, limits: &FieldLimits) -> Result<()> {
        let mut checks = Checks::within(limits);
        check_message(&mut checks, self.message.as_deref(), &self.files, limits);
        if let Some(uid) = &self.chat_uid
            && Id::<crate::chat::Chat>::parse(uid).is_err()
        {
            checks.issue("chatUid", "format", "chatUid must match ^[A-Za-z0-9_-]{1,64}$; leave it out for a new chat");
        }
        if let Some(name) = &self.user_name {
            checks.length("userName", name, 0..=200);
        }
        if let Some(metadata) = &self.metadata {
            checks.metadata("metadata", metadata);
        }
        checks.tenants(self.tenant_id.as_deref(), self.subtenant_id.as_deref());
        checks.count("previousConversation", self.previous_conversation.len(), MAX_PAST_MESSAGES);
        for (i, past) in self.previous_conversation.iter().enumerate().take(MAX_PAST_MESSAGES) {
            checks.bytes(&format!("previousConversation[{i}].message"), past.message.len(), limits.message_bytes);
            if !matches!(past.role, Role::User | Role::Assistant) {
                let path = format!("previousConversation[{i}].role");
                checks.issue(&path, "enum", "role must be user or assistant");
            }
        }
        checks.tags("tags", &mut self.tags);
        checks.names("disabledIntegrations", &self.disabled_integrations, 100);
        checks.names("enabledTools", self.enabled_tools.as_deref().unwrap_or_default(), 1000);
        if let Some(state) = &self.application_state {
            let size = serde_json::to_string(state).map_or(0, |json| json.len());
            checks.bytes("applicationState", size, STATE_BYTES);
        }
        checks.finish()?;
        check_client_tools("tools", &self.tools)
    }
}

/// Answer of an asynchronous message.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accepted {
    /// The chat.
    pub chat_uid: String,
    /// The user message.
    pub message_uid: String,
    /// True when it waits; this and what follows is absent when its turn has begun.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub queued: bool,
    /// Its place in the queue, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<i32>,
    /// What it waits for: `after_delay`, `next_turn` or `on_resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub will_process: Option<&'static str>,
    /// Fields of the request that had no effect.
    #[serde(skip)]
    pub ignored: Vec<&'static str>,
}

/// What became of tool calls that waited for the client (contract 02 §5).
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ToolResponses {
    /// An answer for each call, or for some.
    pub responses: Vec<ToolResponse>,
}

/// What became of one call.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ToolResponse {
    /// The call.
    pub tool_call_id: String,
    /// What the tool gave, any JSON; to an approval `approved` or `rejected`.
    #[serde(default)]
    pub content: serde_json::Value,
    /// Always `tool`.
    #[serde(default)]
    pub role: Option<String>,
    /// Replaces the tools that the client runs in this turn.
    #[serde(default)]
    pub tools: Option<Vec<ClientTool>>,
}

/// Calls that still wait.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Responded {
    /// The chat.
    pub chat_uid: String,
    /// How many calls wait for an answer; the turn goes on at 0.
    pub pending: usize,
}

/// Answer of a synchronous message: the messages of its turn, the user message first.
#[derive(Debug, Clone)]
pub struct Sent {
    /// The chat, for `X-Chat-Uid`.
    pub chat_uid: String,
    /// The messages.
    pub messages: Vec<StoredJson>,
    /// Fields of the request that had no effect.
    pub ignored: Vec<&'static str>,
}
