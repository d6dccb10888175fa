use std::collections::HashMap;

use async_trait::async_trait;
use bytes::Bytes;
use platform_core::{AccountId, Owner, Result};

use crate::{Payer, SecondaryCall, TurnMemory};

/// The group of tools that look into what is attached.
pub const KNOWLEDGE_TOOLS: &str = "builtin-knowledge";

/// The group of tools that load skills.
pub const SKILL_TOOLS: &str = "builtin-skills";

/// The group of tools that work on the machine of an environment.
pub const SANDBOX_TOOLS: &str = "builtin-sandbox";

/// The group of the tools of apps that end users connect.
pub const TENANT_APPS: &str = "tenant-apps";

/// The group of the tools of MCP servers that end users bring.
pub const TENANT_MCP: &str = "tenant-mcp";

/// An app whose tools an assistant offers to those it talks to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantAppOffer {
    /// Its slug.
    pub app: String,
    /// Names of its tools; none = all.
    pub tools: Vec<String>,
}

/// A skill of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnSkill {
    /// Id of the document or folder.
    pub id: String,
    /// Its text stands in the prompt from the start.
    pub preload: bool,
}

/// For whom a turn runs, and what of the account it sees.
#[derive(Debug, Clone, Default)]
pub struct TurnScope {
    /// Whose the chat or thread is, and who pays for what is asked for it; `None` = nobody in particular.
    pub payer: Option<Payer>,
    /// Id of the chat or thread.
    pub conversation: String,
    /// What its assistant remembers of whom it talks to; `None` = nothing.
    pub memory: Option<TurnMemory>,
    /// Documents that are attached to its assistant or agent.
    pub documents: Vec<String>,
    /// Folders that are, each with all below.
    pub folders: Vec<String>,
    /// Skills that are enabled.
    pub skills: Vec<TurnSkill>,
    /// Apps that end users connect themselves.
    pub tenant_apps: Vec<TenantAppOffer>,
    /// MCP servers that an end user brings, the oldest, and tools of each; `None` = they bring none.
    pub tenant_mcp: Option<(usize, usize)>,
    /// The environment that it works in.
    pub environment: Option<String>,
    /// Who works: the kind and id of an agent or assistant.
    pub worker: Option<(&'static str, String)>,
    /// How many triggers led to the turn (contract 09 §3).
    pub depth: u8,
}

impl TurnScope {
    /// Whose the chat or thread is.
    pub fn owner(&self) -> Owner {
        self.payer.as_ref().map(Payer::owner).unwrap_or_default()
    }

    /// Whether anything is attached that can be searched.
    pub fn has_knowledge(&self) -> bool {
        !self.documents.is_empty() || !self.folders.is_empty()
    }
}

/// How much of what is known comes with a turn.
#[derive(Debug, Clone, Copy)]
pub struct RecallBudget {
    /// Passages.
    pub limit: u32,
    /// Tokens of them together.
    pub max_tokens: u32,
}

/// What a turn should know before its model is asked first.
#[async_trait]
pub trait Recall: Send + Sync {
    /// What the model is told of the skills of a turn; the same skills give the same text. `None` when there are none.
    async fn skills(&self, account: &AccountId, scope: &TurnScope) -> Result<Option<String>>;

    /// Those of these documents that are there, by id and name, in their order.
    async fn documents(&self, account: &AccountId, ids: &[String]) -> Result<Vec<(String, String)>>;

    /// The passages of what is attached that are nearest to a question.
    async fn passages(
        &self,
        account: &AccountId,
        scope: &TurnScope,
        question: &str,
        budget: RecallBudget,
    ) -> Result<Recalled>;
}

/// Reads documents that are no plain text.
#[async_trait]
pub trait DocumentReader: Send + Sync {
    /// What a PDF or Word document says; `None` when it is none, or cannot be read in little time.
    /// `SERVICE_UNAVAILABLE` when too many others are being read.
    async fn text(&self, account: &AccountId, name: &str, bytes: &Bytes) -> Result<Option<String>>;
}

/// Nothing is read.
#[async_trait]
impl DocumentReader for () {
    async fn text(&self, _: &AccountId, _: &str, _: &Bytes) -> Result<Option<String>> {
        Ok(None)
    }
}

/// What is known of a question.
#[derive(Debug, Clone, Default)]
pub struct Recalled {
    /// A text for the model; `None` when nothing was found.
    pub text: Option<String>,
    /// What it took to find it.
    pub asked: Vec<SecondaryCall>,
}

/// Nothing is known.
#[async_trait]
impl Recall for () {
    async fn skills(&self, _: &AccountId, _: &TurnScope) -> Result<Option<String>> {
        Ok(None)
    }

    async fn documents(&self, _: &AccountId, _: &[String]) -> Result<Vec<(String, String)>> {
        Ok(Vec::new())
    }

    async fn passages(&self, _: &AccountId, _: &TurnScope, _: &str, _: RecallBudget) -> Result<Recalled> {
        Ok(Recalled::default())
    }
}

/// Which chats are at work.
#[async_trait]
pub trait ChatStates: Send + Sync {
    /// Those of these chats in which a turn is under way, or waits for somebody.
    async fn busy(&self, account: &AccountId, ids: &[String]) -> Result<Vec<String>>;
}

/// How far threads of agents are.
#[async_trait]
pub trait ThreadStates: Send + Sync {
    /// Whether each of these threads is over; what is no thread is left out.
    async fn are_over(&self, account: &AccountId, ids: &[String]) -> Result<HashMap<String, bool>>;
}
