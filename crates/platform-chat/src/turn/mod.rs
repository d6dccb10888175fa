mod accept;
mod admit;
mod finish;
mod message;
mod prompt;
mod work;

pub(crate) use accept::{Acceptance, PastRow};
pub(crate) use admit::{Admission, Candidate};
pub(crate) use finish::Finisher;
pub use message::{
    Accepted, ChatMessage, ClientFunction, ClientTool, File, MessageContent, NewMessage, PastMessage, Sent, StoredJson,
    TokenUsage,
};
pub(crate) use work::{KIND, TurnChat, TurnOutcome, TurnRequest, Turns, live_key};
