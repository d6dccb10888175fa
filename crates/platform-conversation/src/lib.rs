//! What chats and threads have in common: messages, what a model gets of them, and the course of a turn.
//!
//! **Owns** the tables `messages`, `queued_messages`, `message_files`, `message_feedback`, keyed by the name
//! of a conversation that its owner chooses; no endpoint. **Needs** `platform-db`, `platform-guardrails` for
//! what may be said, `platform-realtime` for what is being written, `platform-egress` for the files of
//! messages, the port `Model` and the `Toolbox`, and offers some of its own: [`TurnStore`], where a conversation is
//! kept, [`SubAgents`] and [`SubAgentLauncher`], to whom work is handed, [`AssistantTemplates`], what agents are made from.
//!
//! [`AssistantSettings`] says what an assistant or agent is; a [`Profile`] is the same ready for turns; a
//! [`Turn`] asks the model about a [`Conversation`] and has its [`TurnStore`] store each step.
//!
//! **Invariants**: messages have gapless positions; what a model gets fits its window, newest first, and a call
//! is never without its result; text reaches watchers only where no rule has to see it whole; a step is
//! stored before the next begins.
//!
//! ```no_run
//! # use platform_conversation::*;
//! # use platform_core::{AccountId, Page, Result};
//! # use platform_db::Db;
//! # async fn example(db: Db, account: AccountId, message: MessageRow) -> Result<()> {
//! let conversation = ConversationStore::of(&account, "chat-1");
//! conversation.insert(&mut *db.conn().await?, &message).await?;
//! let first = conversation.content(db.read().await?.get(), Page { limit: 10, offset: 0 }).await?;
//! # Ok(()) }
//! ```

pub mod code;
mod columns;
mod compact;
mod content;
mod context;
mod dictation;
mod environments;
mod feedback;
mod files;
mod history;
mod kinds;
mod message;
mod parts;
mod ports;
mod queue;
mod refers;
mod request;
mod schema;
mod search;
mod settings;
mod store;
mod stored;
mod sub_agents;
mod texts;
mod tools;
mod turn;
mod turn_store;

pub use columns::{
    add_compaction, add_secondary, compactions, has_compactions, json, open_calls, open_text, result_positions,
};
pub use compact::{Span, TurnError, compact};
pub use content::{Content, ContentPages, listed_contents};
pub use context::UserMessage;
pub use dictation::Dictations;
pub use environments::{Environments, InheritedParts, check_environment, use_environments_in};
pub use feedback::{MessageFeedback, NewFeedback};
pub use files::{FetchError, FileFetcher, StoredFile, message_file_bytes, screen_files};
pub use history::kept_history;
pub use kinds::{AGENT, ASSISTANT, ENVIRONMENT};
pub use message::{
    ChatMessage, File, GivenFile, MessageContent, MessageCost, MessageRow, MessageUsage, SecondaryUsage, StoredJson,
    TextsRead, TokenUsage, check_message, new_message_uid, restamped, secondary,
};
pub use parts::{
    AccessConfiguration, ConnectionMode, ContextManagement, CoreMemory, FallbackModel, KnowledgeRecall, KnowledgeSkill,
    MemoryScope, ReasoningEffort, TenantApp, TenantIntegrationsConfig, TenantMcpConfig,
};
pub use ports::Ports;
pub use queue::{Queued, awaited};
pub use refers::Refers;
pub use request::{ClientFunction, ClientTool, TriggerOrigin, TurnRequest};
pub use search::{Match, Matches};
pub use settings::{AssistantSettings, AssistantState, AssistantTemplates, Profile, takes_no_tools};
pub use store::{ConversationStore, INSERT_MESSAGES, insert_messages};
pub use stored::Stored;
pub use sub_agents::{
    ABANDON, CHAT_RETURN, HAND_OFF_TOOLS, HandOff, Returned, SubAgentLauncher, SubAgents, invalid_sub_agents,
};
pub use texts::{Texts, UnlessLarge};
pub use tools::{ToolUser, check_client_schemas, check_client_tools, check_turn_tools, turn_tools};
pub use turn::{Bounds, Turn, guardrail_turns};
pub use turn_store::{Compaction, Conversation, LeaseLost, Step, StepResult, TurnStore};
