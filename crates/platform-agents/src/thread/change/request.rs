//! The bodies that clients send to threads.

use platform_conversation::{File, GivenFile, TriggerOrigin, check_message};
use platform_core::{Checks, Error, FieldLimits, Object, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::thread::change::state::ThreadState;

use crate::code;

/// A thread to start (contract 03 §6).
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewThread {
    /// What the agent is to do, at most 256 KiB; required unless there are files.
    pub message: Option<String>,
    /// At most 20 files.
    #[schema(value_type = Vec<GivenFile>)]
    pub files: Vec<File>,
    /// Name, 1 to 200 characters.
    pub name: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Notes; `promptTemplateParams` fills the system prompt.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// Tenant.
    pub tenant_id: Option<String>,
    /// End user within the tenant.
    pub subtenant_id: Option<String>,
    /// `queued`, or `paused`.
    pub state: Option<String>,
    /// Provider of the first turn.
    pub provider: Option<String>,
    /// Model of the first turn.
    #[serde(alias = "model")]
    pub llm: Option<String>,
    /// Gets the events of this thread, signed with the account's default secret.
    pub callback_url: Option<String>,
    /// The event it is about, when no client starts it.
    #[serde(skip)]
    #[schema(ignore)]
    pub trigger: Option<TriggerOrigin>,
}

impl NewThread {
    /// Every rule that needs no look at the agent; whether it begins paused.
    pub(crate) fn check(&mut self, limits: &FieldLimits) -> Result<bool> {
        let mut checks = Checks::within(limits);
        check_message(&mut checks, self.message.as_deref(), &self.files, limits);
        if let Some(name) = &self.name {
            checks.length("name", name, 1..=200);
        }
        checks.tags("tags", &mut self.tags);
        if let Some(metadata) = &self.metadata {
            checks.metadata("metadata", metadata);
        }
        checks.tenants(self.tenant_id.as_deref(), self.subtenant_id.as_deref());
        checks.bytes("callbackUrl", self.callback_url.as_ref().map_or(0, String::len), 2048);
        checks.finish()?;
        match self.state.as_deref().map(|state| (state, ThreadState::parse(state))) {
            None | Some((_, Some(ThreadState::Queued))) => Ok(false),
            Some((_, Some(ThreadState::Paused))) => Ok(true),
            Some((_, Some(_))) => Err(Error::invalid("state", "enum", "state must be queued or paused")),
            Some((given, None)) => Err(unknown_state(given)),
        }
    }
}

/// A text that names no state.
pub(crate) fn unknown_state(given: &str) -> Error {
    let states: Vec<&str> = ThreadState::ALL.iter().map(|state| state.as_str()).collect();
    let shown: String = given.chars().take(64).collect();
    Error::new(code::INVALID_STATE_VALUE, format!("`{shown}` is no state of a thread.")).with("states", states)
}

/// Changes to a thread.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ThreadPatch {
    /// Name, 1 to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Replaces the metadata.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub metadata: Object,
}

impl ThreadPatch {
    pub(crate) fn check(&mut self, limits: &FieldLimits) -> Result<()> {
        let mut checks = Checks::within(limits);
        if let Some(name) = &self.name {
            checks.length("name", name, 1..=200);
        }
        checks.tags("tags", &mut self.tags);
        checks.metadata("metadata", &self.metadata);
        checks.finish()
    }
}

/// A message to a thread.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct ThreadMessage {
    /// Text, at most 256 KiB; required unless there are files.
    pub message: Option<String>,
    /// At most 20 files.
    #[schema(value_type = Vec<GivenFile>)]
    pub files: Vec<File>,
}

impl ThreadMessage {
    pub(crate) fn check(&self, limits: &FieldLimits) -> Result<()> {
        let mut checks = Checks::within(limits);
        check_message(&mut checks, self.message.as_deref(), &self.files, limits);
        checks.finish()
    }
}

/// A pause.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewPause {
    /// `graceful` (after the running step) or `immediate` (the step is broken off).
    pub mode: Option<String>,
    /// Goes on by itself then, in milliseconds of the epoch.
    pub until: Option<i64>,
    /// Why, at most 1000 characters.
    pub reason: Option<String>,
}

impl NewPause {
    /// Whether the running step is broken off.
    pub(crate) fn check(&self) -> Result<bool> {
        let mut checks = Checks::default();
        let mode = self.mode.as_deref().unwrap_or("graceful").to_lowercase();
        if !matches!(mode.as_str(), "graceful" | "immediate") {
            checks.issue("mode", "enum", "mode must be graceful or immediate");
        }
        checks.length("reason", self.reason.as_deref().unwrap_or_default(), 0..=1000);
        checks.range("until", self.until.unwrap_or(0), &(0..=(1 << 53) - 1));
        checks.finish()?;
        Ok(mode == "immediate")
    }
}

/// How a client goes on with a thread.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewResume {
    /// Said to the agent first.
    pub message: Option<String>,
}

/// Pause or resume under one address.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct PauseOrResume {
    /// `paused` or `queued`.
    pub action: Option<String>,
    /// As of a pause.
    pub mode: Option<String>,
    /// As of a pause.
    pub until: Option<i64>,
    /// As of a pause.
    pub reason: Option<String>,
    /// As of a resume.
    pub message: Option<String>,
}

/// How a client ends a thread.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewCompletion {
    /// `completed`, `failed` or `terminated`.
    pub state: Option<String>,
    /// Why, at most 1000 characters.
    pub reason: Option<String>,
}

impl NewCompletion {
    pub(crate) fn check(&self) -> Result<ThreadState> {
        let mut checks = Checks::default();
        checks.length("reason", self.reason.as_deref().unwrap_or_default(), 0..=1000);
        checks.finish()?;
        let Some(given) = self.state.as_deref() else {
            let message = "state is required: completed, failed or terminated";
            return Err(Error::invalid("state", "required", message));
        };
        match ThreadState::parse(given).ok_or_else(|| unknown_state(given))? {
            state @ (ThreadState::Completed | ThreadState::Failed | ThreadState::Terminated) => Ok(state),
            _ => Err(Error::invalid("state", "enum", "state must be completed, failed or terminated")),
        }
    }
}

/// What a client decides of calls that wait for approval.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewApproval {
    /// `approved` or `rejected`.
    pub action: Option<String>,
    /// The same as a flag.
    pub approved: Option<bool>,
    /// Said to the agent.
    pub message: Option<String>,
    /// A rejected thread goes on and tries something else.
    pub retry: bool,
    /// The calls that are approved; absent = all.
    pub tool_call_ids: Option<Vec<String>>,
    /// Which approval is meant.
    pub uid: Option<String>,
}

impl NewApproval {
    /// Whether it approves.
    pub(crate) fn check(&self, limits: &FieldLimits) -> Result<bool> {
        let mut checks = Checks::default();
        checks.bytes("message", self.message.as_ref().map_or(0, String::len), limits.message_bytes);
        checks.finish()?;
        match (self.action.as_deref().map(str::to_lowercase).as_deref(), self.approved) {
            (Some("approved"), None | Some(true)) | (None, Some(true)) => Ok(true),
            (Some("rejected"), None | Some(false)) | (None, Some(false)) => Ok(false),
            (None, None) => Err(Error::invalid("action", "required", "action is required: approved or rejected")),
            (Some("approved" | "rejected"), _) => {
                Err(Error::invalid("approved", "conflict", "action and approved say different things"))
            }
            _ => Err(Error::invalid("action", "enum", "action must be approved or rejected")),
        }
    }
}

/// Results of calls that come later.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct AsyncResponses {
    /// A result for each call, or for some.
    pub responses: Vec<AsyncResponse>,
}

/// The result of one call.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AsyncResponse {
    /// The call.
    pub tool_call_id: String,
    /// Any JSON.
    pub content: Value,
}
