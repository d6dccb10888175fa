//! Rules on what goes into a model and what comes out (contract 02 §8).
//!
//! **Owns** no table and no endpoint: the rules stand in the records they belong to, chats and
//! threads keep what was found. **Needs** the port [`platform_runtime::Model`] for judges.
//!
//! [`Guardrails`] is the wire type; [`Guardrails::check`] judges it, [`Guardrails::compile`] makes a [`Screen`],
//! which screens texts: [`Screen::arriving`] with the local rules, before a message is stored;
//! [`Screen::input`] with the judges, before a model is asked; [`Screen::output`] with all of
//! them, before anybody sees an answer.
//!
//! **Invariants**: every rule takes linear time; rules run in the order they are given and the
//! first that blocks ends the stage; what is redacted is gone from the text that comes back;
//! a judge that fails or answers nonsense blocks, unless its rule says otherwise.

mod injection;
mod matcher;
mod model;
mod normal;
mod screen;

pub use injection::{INJECTION_WEIGHTS, injection_score};
pub use model::{Finding, Guardrails, Rule};
pub use screen::{Moment, Screen, Screening};
