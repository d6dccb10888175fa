//! Assistants and their chats: one turn at a time.
//!
//! **Owns** the tables `assistants`, `chats`; the endpoints `/v1/assistants/…`. **Needs** `platform-db`,
//! `platform-jobs` for durable runs, `platform-conversation` for messages and the course of a turn,
//! `platform-toolservers` to say which servers an assistant uses.
//!
//! **A turn** is two commits. The first accepts it: chat, user message and run in one statement,
//! with the run's lease taken at once when this process has room. The second ends it: reply,
//! usage and the end of the run in one statement, under the lease's fence. Turns that wait at
//! the same moment share both. In between the reply lives in memory.
//!
//! A turn that calls tools has two commits more for each answer that calls some: the calls before
//! they are made, the results before the model sees them. One that needs its client (a tool of
//! the client's, an approval) gives its run up until the answer comes or its time is over.
//!
//! A message to a busy chat waits in `queued_messages`; the run that ends the turn leaves another
//! behind that takes in all that waits. A chat that gathers messages for a while is the same with a
//! run that is due later.
//!
//! **Invariants**: what was accepted is answered exactly once, whoever dies; a chat has at most
//! one run, and has one while messages wait; messages of a chat have gapless positions in the order they were accepted; token
//! sums change in the commit that stores the answer they count.
//!
//! ```no_run
//! # use platform_chat::*;
//! # use platform_core::{Caller, Result};
//! # async fn example(chats: &dyn ChatService, caller: Caller, message: NewMessage) -> Result<()> {
//! let sent = chats.send_and_wait(&caller, DEFAULT_ASSISTANT, message, None, None).await?;
//! # Ok(()) }
//! ```

mod assistant;
mod chat;
pub mod code;
mod schema;
mod turn;

pub use assistant::{
    ASSISTANT_DELETED, ASSISTANT_REFERENCES, ASSISTANT_TOPIC, Assistant, AssistantFilter, AssistantReferrer,
    AssistantService, DEFAULT_ASSISTANT, PgAssistantService,
};
pub use chat::{
    CHAT, Chat, ChatConfig, ChatFilter, ChatList, ChatListQuery, ChatPage, ChatPatch, ChatService, Checkpoint,
    Compacted, Feedback, GuardrailResults, PgChatService, PgChatStates, PgEarlierTurns, StatusError, Stopped,
    TimeBound,
};
pub use turn::{Accepted, NewMessage, PastMessage, Responded, Sent, ToolResponse, ToolResponses};
