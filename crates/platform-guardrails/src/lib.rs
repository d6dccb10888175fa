//! Rules on what goes into a model and what comes out (contract 02 §8).
//!
//! **Owns** no table and no endpoint: the rules stand in the records they belong to, chats and
//! threads keep what was found. **Needs** the port [`platform_runtime::Model`] for judges, and child
//! processes ([`platform_runtime::ChildPool`]) for the patterns and words of clients.
//!
//! [`Guardrails`] is the wire type; [`Guardrails::check`] and [`Guardrails::check_written`] judge it,
//! [`Guardrails::ready`] makes a [`Screen`], which screens texts: [`Screen::arriving`] with the local rules, before a message is stored;
//! [`Screen::input`] with the judges, before a model is asked; [`Screen::output`] with all of
//! them, before anybody sees an answer.
//!
//! **Invariants**: what a client wrote is compiled and matched in a child process alone, and a text that takes
//! it too long is blocked; rules run in the order they are given and the
//! first that blocks ends the stage; what is redacted is gone from the text that comes back;
//! a judge that fails or answers nonsense blocks, unless its rule says otherwise.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_core::{AccountId, Result};
//! # use platform_guardrails::*;
//! # use platform_runtime::ChildPool;
//! # async fn example(rules: Guardrails, children: Arc<ChildPool>, account: AccountId, context: ScreenContext) -> Result<()> {
//! rules.check_written(&children, &account).await?;
//! let Some(screen) = rules.ready(&children, &account) else { return Ok(()) };
//! let screening = Arc::new(screen).arriving("My card is 4111 1111 1111 1111.".to_owned(), context).await?;
//! println!("{} (blocked: {})", screening.text, screening.blocked);
//! # Ok(()) }
//! ```

mod child;
pub mod code;
mod injection;
mod matcher;
mod model;
mod normal;
mod screen;

pub use child::GUARDRAIL_WORKS;
pub use injection::{INJECTION_WEIGHTS, injection_score};
pub use model::{Finding, Guardrails, Rule};
pub use screen::{Screen, ScreenContext, Screening};
