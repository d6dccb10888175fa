use std::collections::BTreeMap;

use platform_conversation::{ChatMessage, Compaction, File, StoredJson, TokenUsage, TurnRequest, check_message};
use platform_core::{Checks, Error, FieldLimits, Id, Object, Result, Timestamp};
use platform_runtime::ToolCall;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::state::{StateChange, ThreadState};

/// Kind of thread ids.
pub(crate) enum ThreadKind {}
pub(crate) type ThreadId = Id<ThreadKind>;

/// A thread as it is sent (contract 03 §3).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Thread {
    /// Id of the thread.
    #[serde(rename = "_id")]
    pub id: String,
    /// The same.
    pub thread_id: String,
    /// Its agent.
    pub agent_id: String,
    /// Its account.
    #[serde(rename = "clientUID")]
    pub client_uid: String,
    /// Who started it.
    #[serde(rename = "userUID")]
    pub user_uid: String,
    /// Project of its agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Name, when one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_source: Option<String>,
    /// Tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// End user within the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// What it does.
    pub state: ThreadState,
    /// Its messages, oldest first; left out with `omitContent` and in the answers of actions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<ChatMessage>>)]
    pub thread_content: Option<Vec<StoredJson>>,
    /// What it set out to do; only with `withTasks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<Task>>,
    /// Tags.
    pub tags: Vec<String>,
    /// What clients noted.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// The last turn began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp_ms: Option<Timestamp>,
    /// The last turn ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_timestamp_ms: Option<Timestamp>,
    /// Milliseconds in processing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<i64>,
    /// Why it ended; the first word is the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Why it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_reason: Option<String>,
    /// When it goes on by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Timestamp>,
    /// The same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_until: Option<Timestamp>,
    /// When it was paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_timestamp_ms: Option<Timestamp>,
    /// It will be paused after the running step.
    pub pause_requested: bool,
    /// Why it waits in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_reason: Option<&'static str>,
    /// Where it waits, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<i64>,
    /// The how-manieth try of its current step this is.
    pub attempt: i32,
    /// Every change of state, oldest first.
    pub thread_states_changes: Vec<StateChange>,
    /// Provider of the last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Model of the last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub llm: Option<String>,
    /// Why the model stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Tokens and costs.
    #[schema(value_type = TokenUsage)]
    pub token_usage: StoredJson,
    /// Prompt and answer tokens together.
    pub total_tokens: i64,
    /// Another thread or a chat handed its work over.
    pub is_subthread: bool,
    /// Who did, and in which call.
    #[serde(flatten)]
    pub parent: ParentLink,
    /// Threads that work was handed to.
    pub hand_off_sub_thread_ids: Vec<String>,
    /// Those of them that are not done.
    pub pending_hand_off_sub_thread_ids: Vec<String>,
    /// What waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_approval: Option<PendingApproval>,
    /// Calls whose results come later.
    pub pending_async_tool_calls: Vec<PendingAsyncToolCall>,
    /// What guardrails found in the last 20 turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub guardrail_results: Option<Value>,
    /// Summaries that stand for older messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compactions: Vec<Compaction>,
    /// Empty answers that were asked for again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_content_retries: Option<EmptyContentRetries>,
    /// What started it, when no client did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub trigger_source: Option<Value>,
    /// The last output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ThreadResult>,
    /// The last evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub last_evaluation: Option<Value>,
    /// Set by a pause: when, ISO 8601.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<String>,
}

/// Who handed work to a sub-thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ParentLink {
    /// The thread that did.
    #[serde(rename = "parentThreadId", default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Its agent.
    #[serde(rename = "parentAgentId", default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The chat that did.
    #[serde(rename = "parentChatUID", default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<String>,
    /// The call that did.
    #[serde(rename = "subThreadToolCallId", default, skip_serializing_if = "Option::is_none")]
    pub tool_call: Option<String>,
}

/// Something a thread set out to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Id of the task.
    #[serde(rename = "_id")]
    pub id: String,
    /// What.
    pub title: String,
    /// More of it.
    #[serde(default)]
    pub description: String,
    /// Done.
    #[serde(default)]
    pub completed: bool,
}

/// Calls of one answer that wait for approval (contract 03 §5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingApproval {
    /// Names this approval.
    pub uid: String,
    /// The calls, with arguments exactly as they will be run.
    pub tool_calls: Vec<ToolCall>,
    /// Why they wait.
    pub reason: String,
    /// Since when.
    pub requested_at_ms: Timestamp,
    /// Until when.
    pub expires_at_ms: Timestamp,
}

/// A call whose result comes later.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingAsyncToolCall {
    /// The call.
    pub tool_call_id: String,
    /// Its tool.
    pub tool_name: String,
    /// Where its result is expected.
    pub callback_url: String,
}

/// Empty answers of the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EmptyContentRetries {
    /// How many were asked for again.
    pub attempts: u32,
    /// There were too many.
    pub exhausted: bool,
}

/// The last output of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ThreadResult {
    /// Text.
    pub message: String,
    /// Structured content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<Object>,
}

/// What a thread keeps beside what is looked for: everything that no query filters by.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Facts {
    pub turn: TurnFacts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<PendingApproval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hand_offs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Task>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ThreadResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Value>,
    /// Gets the events of this thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
    /// Messages whose files are not fetched yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unfetched: Vec<Unfetched>,
    /// Results that came while a turn still stored that they come later, by call or thread.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub arrived: BTreeMap<String, Value>,
    /// What it did in words, and the revision that is true of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<(i64, String)>,
    /// It is to be paused when its files are there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub begins_paused: bool,
}

/// Files of a message that are to be fetched.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Unfetched {
    pub message: String,
    pub files: Vec<File>,
}

/// What belongs to the newest turn.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TurnFacts {
    pub request: TurnRequest,
    /// Version of the agent that it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Prompt tokens of the thread before it.
    pub input_before: u64,
    pub attempt: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<EmptyContentRetries>,
}

/// A pause that was asked for, or that holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Pause {
    /// It is to come after the running step.
    pub requested: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Who handed work over, and with which rights.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Parent {
    #[serde(flatten)]
    pub link: ParentLink,
    /// Agents above this one, the nearest last.
    pub ancestors: Vec<String>,
    /// Tools that need approval there need it here.
    pub approval_tools: Vec<String>,
}

/// A thread to start (contract 03 §6).
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewThread {
    /// What the agent is to do, at most 256 KiB; required unless there are files.
    pub message: Option<String>,
    /// At most 20 files.
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
    /// Gets the events of this thread.
    pub callback_url: Option<String>,
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
    Error::new(platform_core::Code::InvalidStateValue, format!("`{shown}` is no state of a thread."))
        .with("states", states)
}

/// What a client is told of a thread that was accepted.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartedThread {
    /// Id of the thread.
    #[serde(rename = "_id")]
    pub id: String,
    /// The same.
    pub thread_id: String,
    /// Its agent.
    pub agent_id: String,
    /// `queued`, `paused` or `under_construction`.
    pub state: ThreadState,
    /// Its first message.
    pub message: String,
    /// Made at, ISO 8601.
    pub created_at: String,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
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

/// Calls that still wait for their results.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadResponded {
    /// The thread.
    pub thread_id: String,
    /// How many; it goes on at 0.
    pub pending: usize,
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

/// Which threads to list; all given conditions must hold (contract 03 §6).
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ThreadFilter {
    /// States, separated by commas.
    pub state: Option<String>,
    /// Made at or after: ISO 8601 or milliseconds.
    pub start_date: Option<String>,
    /// Made at or before.
    pub end_date: Option<String>,
    /// `asc` or `desc` by creation.
    pub date_order: Option<String>,
    /// `asc` or `desc` by time in processing.
    pub duration_order: Option<String>,
    /// `asc` or `desc` by tokens.
    pub tokens_order: Option<String>,
    /// Any of these tags, separated by commas.
    pub tags: Option<String>,
    /// Only this tenant.
    pub tenant_id: Option<String>,
    /// Only this end user.
    pub subtenant_id: Option<String>,
    /// Only this agent.
    pub agent_id: Option<String>,
    /// Only this project.
    pub project_id: Option<String>,
    /// Leave the messages out.
    pub omit_content: Option<bool>,
    /// Beside those in no project, only those of these; `None` = all.
    #[serde(skip)]
    #[schema(ignore)]
    pub within: Option<Vec<String>>,
}

/// A page of threads.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadList {
    /// The threads.
    pub threads: Vec<Thread>,
    /// How many match in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
    /// There are more.
    pub has_more: bool,
}

/// What to read of a thread beside its record.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ThreadView {
    /// With what it set out to do.
    pub with_tasks: Option<bool>,
    /// Leave the messages out.
    pub omit_content: Option<bool>,
    /// Skips so many messages.
    pub message_offset: Option<i64>,
    /// At most so many messages, 1000 at the most.
    pub message_limit: Option<i64>,
}

/// Feedback on a message of a thread.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadFeedback {
    /// The record.
    #[serde(flatten)]
    pub given: platform_conversation::Given,
    /// Its thread.
    pub thread_id: String,
    /// The thread's agent.
    pub agent_id: String,
}
