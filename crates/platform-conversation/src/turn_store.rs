//! A conversation, and where it is kept.

use std::sync::Arc;

use async_trait::async_trait;
use platform_core::{AccountId, Error, Object, Owner, Result, Timestamp};
use platform_runtime::{Flow, MemoryPrompt, ModelSpec, OpenCall, Payer, SecondaryCall};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::message::{MessageRow, TokenUsage};

/// A chat or a thread as its turn finds it.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// Whose it is.
    pub account: AccountId,
    /// Under which its messages are kept.
    pub key: String,
    /// `chatUid` of its messages.
    pub uid: String,
    /// Calls of the newest answer without a result.
    pub open: Vec<OpenCall>,
    /// Whoever was to answer has had their time.
    pub is_late: bool,
    /// What was found before the turn waited is of this turn.
    pub has_waited: bool,
    /// No message has a later time.
    pub newest: Timestamp,
    /// Rises with every commit.
    pub revision: i64,
    /// Messages there are.
    pub message_count: i32,
    /// Position of the first message of the turn.
    pub turn_start: i32,
    /// What its answers took.
    pub usage: TokenUsage,
    /// What clients noted.
    pub metadata: Object,
    /// JSON text of what guardrails found in the last turns.
    pub guardrails: Option<String>,
    /// Summaries that stand for older messages.
    pub compactions: Vec<Compaction>,
    /// What the turn was told of memory before it waited.
    pub memory_prompt: Option<MemoryPrompt>,
    /// Who pays for its calls.
    pub payer: Payer,
}

impl Conversation {
    /// Whose it is.
    pub fn owner(&self) -> Owner {
        self.payer.owner()
    }

    /// Position of the first message that no summary stands for.
    pub fn compacted_to(&self) -> i32 {
        self.compactions.iter().map(|compaction| compaction.compacted_message_count).sum()
    }
}

/// Where a conversation is kept: what chats and threads store in ways of their own.
#[async_trait]
pub trait TurnStore: Send + Sync {
    /// Stores a step under the lease of its run.
    async fn step(&self, conversation: &Conversation, step: Step) -> Result<StepResult>;
    /// Adds secondary calls to what the conversation took.
    async fn charge(&self, asked: &[SecondaryCall]) -> Result<()>;
    /// Keeps a compaction on top of the `known` ones; `false` when another was faster.
    async fn compacted(&self, known: usize, compaction: &Compaction) -> Result<bool>;
}

/// A step of a turn: what was said, and what is open then.
#[derive(Debug)]
pub struct Step {
    /// Messages in their order.
    pub messages: Vec<MessageRow>,
    /// Calls without a result.
    pub open: Vec<OpenCall>,
    /// What its model calls took of quotas.
    pub took: Vec<Arc<RawValue>>,
    /// Whose answer it holds, if any.
    pub model: Option<ModelSpec>,
    /// The conversation's revision is at least this then.
    pub revision: i64,
    /// No call is under way: the model is asked next, or somebody is waited for.
    pub is_settled: bool,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepResult {
    /// The lease was lost: nothing was written.
    Lost,
    /// The conversation stands at this revision.
    At(i64, Flow),
}

/// The lease of a turn was lost: somebody else goes on with it, or a client ended it.
#[derive(Debug, thiserror::Error)]
#[error("the lease of this turn was lost")]
pub struct LeaseLost;

impl LeaseLost {
    /// Whether that is why something failed.
    pub fn is_in(error: &Error) -> bool {
        error.cause().and_then(|cause| cause.downcast_ref::<Self>()).is_some()
    }
}

/// A summary that stands for older messages.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Compaction {
    /// Id.
    pub uid: String,
    /// Made at.
    pub timestamp_ms: Timestamp,
    /// Messages it stands for, after those of the compaction before it.
    pub compacted_message_count: i32,
    /// About how many tokens the model would have got.
    pub tokens_before: u64,
    /// About how many it gets now.
    pub tokens_after: u64,
    /// The summary, which holds those before it.
    pub summary: String,
    /// The last message it stands for.
    pub until_message_uid: String,
}
