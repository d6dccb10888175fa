use async_trait::async_trait;
use platform_core::{AccountId, Error, Result};
use platform_runtime::TurnTool;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Conversation, TurnRequest, code};

/// The tool with which a model hands work to an agent, and the other name it goes by (contract 03 §8).
pub const HAND_OFF_TOOLS: [&str; 2] = ["hand_off_subagent", "delegate_to_agent"];
/// Kind of the runs that end a thread nobody waits for any more; the subject is the thread.
pub const ABANDON: &str = "thread-abandon";
/// Kind of the runs that bring the result of a sub-thread to the chat that waits for it.
pub const CHAT_RETURN: &str = "chat-return";

/// What such a run brings.
#[derive(Debug, Serialize, Deserialize)]
pub struct Returned {
    /// The chat or thread that waits.
    pub waiting: String,
    /// The sub-thread.
    pub thread: String,
    /// What the call gave.
    pub value: Value,
    /// How often it was tried in vain.
    #[serde(default)]
    pub tries: u32,
}

/// The port to agents, as far as others name them (contract 03 §8).
#[async_trait]
pub trait SubAgents: Send + Sync {
    /// `INVALID_SUBAGENTS` unless work can be handed to all of them.
    async fn check(&self, account: &AccountId, ids: &[String]) -> Result<()>;
}

/// The port to agents, as far as work is handed to them.
#[async_trait]
pub trait SubAgentLauncher: Send + Sync {
    /// The tool that hands work to them, under each of its names; none when there is nobody (any more).
    async fn tools(&self, ids: &[String], parent: &HandOff) -> Result<Vec<TurnTool>>;
}

/// Nobody to hand work to: for whoever has no agents.
#[async_trait]
impl SubAgents for () {
    async fn check(&self, _account: &AccountId, ids: &[String]) -> Result<()> {
        let missing: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "NOT_FOUND")).collect();
        invalid_sub_agents(&missing)
    }
}

#[async_trait]
impl SubAgentLauncher for () {
    async fn tools(&self, _ids: &[String], _parent: &HandOff) -> Result<Vec<TurnTool>> {
        Ok(Vec::new())
    }
}

/// `INVALID_SUBAGENTS` when there are any, each with its reason.
pub fn invalid_sub_agents(invalid: &[(&str, &str)]) -> Result<()> {
    if invalid.is_empty() {
        return Ok(());
    }
    let message = format!("Work cannot be handed to these sub-agents: {}.", named(invalid.iter().copied()));
    let invalid: Vec<Value> = invalid.iter().map(|(id, reason)| json!({"id": id, "reason": reason})).collect();
    Err(Error::new(code::INVALID_SUBAGENTS, message).with("field", "subagentsIds").with("invalidSubagents", invalid))
}

/// Ids, each with what is wrong with it, for a sentence: some clients show nothing else of an error.
pub(crate) fn named<'a>(invalid: impl ExactSizeIterator<Item = (&'a str, &'a str)>) -> String {
    const MOST: usize = 20;
    let more = invalid.len().saturating_sub(MOST);
    let shown =
        invalid.take(MOST).map(|(id, reason)| format!("{} ({reason})", id.chars().take(64).collect::<String>()));
    let rest = (more > 0).then(|| format!("{more} more"));
    shown.chain(rest).collect::<Vec<_>>().join(", ")
}

/// Who hands work to a sub-agent.
#[derive(Debug, Clone)]
pub struct HandOff {
    /// Account of chat and threads.
    pub account: AccountId,
    /// Chat that waits, if it is one.
    pub chat: Option<String>,
    /// Thread that waits, if it is one.
    pub thread: Option<String>,
    /// Who asked for the turn.
    pub user_uid: String,
    /// Tenant of the work.
    pub tenant_id: Option<String>,
    /// End user within the tenant.
    pub subtenant_id: Option<String>,
    /// Tools that need approval here or above: they need it below.
    pub approval_tools: Vec<String>,
    /// Tools that need approval in this turn.
    pub own_approvals: Vec<String>,
    /// How many triggers led to the turn.
    pub depth: u8,
}

impl HandOff {
    /// A chat hands work over.
    pub fn of_chat(chat: &Conversation, request: &TurnRequest, approval_tools: &[String]) -> Self {
        Self {
            account: chat.account.clone(),
            chat: Some(chat.uid.clone()),
            thread: None,
            user_uid: request.user_uid.clone(),
            tenant_id: chat.payer.tenant_id.clone(),
            subtenant_id: chat.payer.subtenant_id.clone(),
            approval_tools: approval_tools.to_vec(),
            own_approvals: approval_tools.to_vec(),
            depth: request.depth,
        }
    }
}
