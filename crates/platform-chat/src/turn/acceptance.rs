use std::sync::Arc;

use platform_core::{AccountId, Object};
use platform_runtime::Charge;
use serde::Serialize;
use serde_json::Value;

/// A turn to accept: becomes a chat (new or going on), messages and a run in one statement.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Acceptance {
    pub account: String,
    pub subject: String,
    pub kind: &'static str,
    pub run: String,
    pub owner: Option<String>,
    pub lease_ms: Option<i64>,
    pub payload: Arc<Value>,
    /// The trace that its run belongs to, whoever carries it out.
    pub trace: Option<String>,
    pub assistant: String,
    /// The model that a new chat asks first: stored with it, its index needs no second entry when it has answered.
    pub llm: Arc<str>,
    pub name: String,
    /// The name is final.
    pub named: bool,
    pub user_uid: String,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub api_source: Option<String>,
    pub metadata: Object,
    pub tags: Vec<String>,
    /// So many tags and bytes of metadata may the chat have with these.
    pub most_tags: i32,
    pub most_metadata: i32,
    pub previous: Vec<PastRow>,
    pub message_uid: String,
    pub message: String,
    pub now_ms: i64,
    /// What is reserved of quotas for the turn's first call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge: Option<Charge>,
    /// The trigger that a new chat began with; noted where an idempotency key is stored with it.
    #[serde(skip)]
    pub trigger: Option<Object>,
}

impl Acceptance {
    /// Whose chat it is.
    pub fn account(&self) -> AccountId {
        AccountId::named(&self.account)
    }
}

/// A message from before the chat, at its position.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PastRow {
    pub position: usize,
    pub uid: String,
    pub role: &'static str,
    pub body: String,
}
