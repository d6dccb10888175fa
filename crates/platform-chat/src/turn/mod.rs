mod accept;
mod admit;
mod course;
mod finish;
mod intake;
mod message;
mod notes;
mod queue;
mod respond;
mod work;

pub(crate) use admit::Admission;
pub(crate) use course::ChatKeeper;
pub(crate) use finish::Finisher;
pub(crate) use intake::Intake;
pub use message::{Accepted, NewMessage, PastMessage, Responded, Sent, ToolResponse, ToolResponses, Waiting};
pub(crate) use queue::{StopOutcome, pending, stop};
pub(crate) use respond::{check as check_responses, respond};
pub(crate) use work::{KIND, TurnChat, TurnOutcome, Turns, live_key};
