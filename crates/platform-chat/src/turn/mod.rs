mod accept;
mod admit;
mod compact;
mod context;
mod course;
mod files;
mod finish;
mod intake;
mod message;
mod notes;
mod queue;
mod respond;
mod tools;
mod work;

pub(crate) use admit::Admission;
pub use compact::Compaction;
pub(crate) use compact::{Span, compact};
pub(crate) use context::Stored;
pub(crate) use finish::Finisher;
pub(crate) use intake::Intake;
pub(crate) use message::secondary;
pub use message::{
    Accepted, ChatMessage, ClientFunction, ClientTool, File, MessageContent, NewMessage, PastMessage, Responded,
    SecondaryUsage, Sent, StoredJson, TokenUsage, ToolResponse, ToolResponses, Waiting,
};
pub(crate) use notes::Heard;
pub(crate) use queue::{StopOutcome, pending, stop};
pub(crate) use respond::{check as check_responses, respond};
pub(crate) use work::{KIND, TurnChat, TurnOutcome, Turns, live_key};
