use platform_conversation::{ChatMessage, Compaction, StoredJson, TokenUsage};
use platform_core::{Error, Id, Object, Result, Timestamp};
use platform_runtime::{Refusal, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::change::state::{StateChange, ThreadState};

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
    /// Id, as `_id`.
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
    /// Environment that its agent works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
    /// Machine that it used last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
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
    /// As `pausedUntil`.
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
    /// What is to be done, in a line.
    pub title: String,
    /// What else is to be known of it.
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

/// Longest sentence about calls that wait, in bytes (contract 03 §3).
const MAX_REASON: usize = 1000;

impl PendingApproval {
    /// A sentence that names each call with its arguments, for the person who decides: some clients show nothing else.
    pub(super) fn question(&self) -> String {
        let head = "Approval is needed for: ";
        let names: usize = self.tool_calls.iter().map(|call| call.function.name.len() + " …, ".len()).sum();
        // Long arguments share what is left, so that no tool hides another.
        let each = MAX_REASON.saturating_sub(head.len() + names) / self.tool_calls.len().max(1);
        let one_line = |text: &str| text.split(|c: char| c.is_control()).collect::<Vec<_>>().join(" ");
        let shown = self.tool_calls.iter().map(|call| {
            let (name, arguments) = (&call.function.name, one_line(&call.function.arguments));
            match arguments.floor_char_boundary(each) {
                end if end == arguments.len() => format!("{name} {arguments}"),
                end => format!("{name} {}…", &arguments[..end]),
            }
        });
        let mut sentence = format!("{head}{}.", shown.collect::<Vec<_>>().join(", "));
        if sentence.len() > MAX_REASON {
            sentence.truncate(sentence.floor_char_boundary(MAX_REASON - "…".len()));
            sentence.push('…');
        }
        sentence
    }
}

/// A call whose result comes later.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingAsyncToolCall {
    /// The call.
    pub tool_call_id: String,
    /// Its tool.
    pub tool_name: String,
    /// Where its result is expected; only for who may give one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub callback_url: Option<String>,
    #[serde(skip)]
    pub(crate) address: String,
}

impl Thread {
    /// Shows where results of its calls are expected: whoever knows that can give them.
    pub fn show_callbacks(&mut self) {
        for call in &mut self.pending_async_tool_calls {
            call.callback_url = Some(call.address.clone());
        }
    }
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

/// What a client is told of a thread that was accepted.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartedThread {
    /// Id of the thread.
    #[serde(rename = "_id")]
    pub id: String,
    /// Id, as `_id`.
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

/// What came of starting a thread.
#[derive(Debug, Clone)]
pub enum ThreadStart {
    /// It was accepted.
    Started(StartedThread),
    /// A quota has no room for it: the thread is there, and has failed.
    Refused {
        /// Id of the thread.
        thread_id: String,
        /// Which quota.
        refusal: Refusal,
    },
}

impl ThreadStart {
    /// The thread that was accepted, else the refusal, with the thread's id as `threadId`.
    pub fn accepted(self) -> Result<StartedThread> {
        match self {
            Self::Started(started) => Ok(started),
            Self::Refused { thread_id, refusal } => Err(Error::from(&refusal).with("threadId", thread_id)),
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
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ThreadView {
    /// With what it set out to do.
    pub with_tasks: Option<bool>,
    /// Leave the messages out.
    pub omit_content: Option<bool>,
    /// Skips so many messages.
    #[schema(value_type = Option<i64>)]
    pub message_offset: Option<String>,
    /// At most so many messages, 1000 at the most.
    #[schema(value_type = Option<i64>)]
    pub message_limit: Option<String>,
}

/// Feedback on a message of a thread.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadFeedback {
    /// The record.
    #[serde(flatten)]
    pub given: platform_conversation::MessageFeedback,
    /// Its thread.
    pub thread_id: String,
    /// The thread's agent.
    pub agent_id: String,
}
