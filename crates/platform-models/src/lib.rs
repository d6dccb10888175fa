//! Language models over their real wire: OpenAI Chat Completions, Anthropic Messages, Gemini
//! generateContent, any OpenAI-compatible server, Ollama, and the offline provider `demo`.
//!
//! **Owns** no table; its providers come from settings ([`ProviderConfig`], the providers file).
//! **Needs** nothing but the network; implements the port [`platform_runtime::Model`].
//!
//! **Invariants** (contract 18 §3): a call is repeated only before its first token; after it,
//! the text so far comes back with the fault. Usage obeys contract 00 §13 whatever a provider's
//! fields mean. A provider that keeps failing is left alone for 30 seconds. Keys are never shown.
//!
//! ```no_run
//! # use platform_models::{Models, ModelsConfig};
//! # use platform_runtime::{Message, Catalog, Model, Prompt};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let models = Models::start(ModelsConfig::default()).await?;
//! let prompt = Prompt { messages: vec![Message::user("Hello")], ..Prompt::new(models.choose(None, None)?) };
//! let answer = models.answer(&prompt, &mut |_| {}).await.map_err(|fault| fault.message)?;
//! println!("{}", answer.text);
//! # Ok(()) }
//! ```
//!
//! `examples/ask.rs` is the same as a program.

mod anthropic;
mod breaker;
mod broken;
mod call;
mod catalog;
mod config;
mod connection;
mod demo;
mod draft;
mod embedding;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gemini;
#[cfg(test)]
mod golden;
mod models;
mod openai;
mod provider;
mod speech;
mod table;

pub use catalog::{DefaultModel, ModelList, ModelRecord};
pub use config::{
    CallLimits, ConfigError, EmbeddingChoice, ModelsConfig, Protocol, ProviderConfig, read_providers_file,
};
pub use models::Models;
pub use speech::SpeechConfig;
