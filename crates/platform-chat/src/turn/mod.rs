mod accept;
mod finish;
mod message;
mod prompt;
mod work;

pub(crate) use accept::{Acceptance, AcceptedChat, Acceptor, PastRow};
pub(crate) use finish::Finisher;
pub use message::{
    Accepted, ChatMessage, ClientFunction, ClientTool, File, MessageContent, NewMessage, PastMessage, Sent, StoredJson,
    TokenUsage,
};
pub(crate) use work::{KIND, TurnChat, TurnOutcome, TurnRequest, Turns, Warm, WarmStart, live_key};
