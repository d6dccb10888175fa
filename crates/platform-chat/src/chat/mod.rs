mod compaction;
mod earlier;
mod filter;
mod model;
pub(crate) mod repository;
mod service;
mod source;
mod states;
mod waiting;

pub use earlier::PgEarlierTurns;
pub use filter::{ChatFilter, ChatListQuery, TimeBound};
pub use model::{
    Chat, ChatList, ChatPage, ChatPatch, Checkpoint, Compacted, Feedback, GuardrailResults, StatusError, Stopped,
};
pub use service::{CHAT, ChatConfig, ChatService, PgChatService};
pub use states::PgChatStates;
