//! Assistants and their chats: one turn at a time.
//!
//! **Owns** the tables `assistants`, `chats`, `messages`, `chat_feedback`; the endpoints
//! `/v1/assistants/…`. **Needs** `platform-db`, `platform-jobs` for durable runs,
//! `platform-realtime` for what is being written, and the port `Model`.
//!
//! **A turn** is two commits. The first accepts it: chat, user message and run in one statement,
//! with the run's lease taken at once when this process has room. The second ends it: reply,
//! usage and the end of the run in one statement, under the lease's fence. Turns that wait at
//! the same moment share both. In between the reply lives in memory.
//!
//! **Invariants**: what was accepted is answered exactly once, whoever dies; a chat has at most
//! one run; messages of a chat have gapless positions in the order they were accepted; token
//! sums change in the commit that stores the answer they count.

mod assistant;
mod chat;
mod schema;
mod turn;

pub use assistant::{
    Assistant, AssistantFilter, AssistantService, AssistantSettings, AssistantState, DEFAULT_ASSISTANT,
    PgAssistantService,
};
pub use chat::{
    Chat, ChatFilter, ChatList, ChatListQuery, ChatPage, ChatPatch, ChatService, Feedback, Match, Matches, NewFeedback,
    PgChatService, StatusError, Stopped, TimeBound,
};
pub use turn::{
    Accepted, ChatMessage, ClientFunction, ClientTool, File, MessageContent, NewMessage, PastMessage, Sent, StoredJson,
    TokenUsage,
};
