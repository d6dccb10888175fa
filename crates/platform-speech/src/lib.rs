//! Speech: recordings become text (contract 15).
//!
//! **Owns** the table `transcripts`; the endpoints `/v1/speech-to-text`. **Needs** `platform-db`, `platform-files` for the
//! recordings, `platform-egress` for those at addresses, a [`Budget`](platform_runtime::Budget) over a model that hears,
//! child processes that read containers. It answers the port [`Dictations`](platform_conversation::Dictations).
//!
//! **Invariants**: what a recording is its content says, never its name; a transcript has its recording, whose address is
//! as good as its file; one of a tenant is for that tenant alone; whoever pays is asked before an engine is.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_core::{AccountId, Result};
//! # use platform_speech::*;
//! # async fn example(needs: SpeechNeeds, account: AccountId, new: NewTranscript) -> Result<()> {
//! let speech: Arc<dyn SpeechService> = Arc::new(PgSpeech::new(needs));
//! let transcript = speech.transcribe(&account, new, None).await?;
//! # Ok(()) }
//! ```

mod audio;
pub mod code;
mod fragments;
mod language;
mod ogg;
mod repository;
mod schema;
mod service;
mod transcript;

pub use audio::AUDIO_WORKS;
pub use service::{PgSpeech, SpeechNeeds, SpeechService, TRANSCRIPT};
pub use transcript::{NewTranscript, Recording, Transcript, TranscriptSegment};
