//! Transcripts, as clients see them.

use std::path::PathBuf;

use platform_core::{Checks, Owner, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::language;

/// Where a recording is.
#[derive(Debug)]
pub enum Recording {
    /// On this machine.
    File {
        /// Its path.
        path: PathBuf,
        /// In bytes.
        size: u64,
        /// SHA-256, in hex.
        sha256: String,
    },
    /// At an address, ours or another's.
    Url(String),
}

/// A recording that is to become text.
#[derive(Debug)]
pub struct NewTranscript {
    /// Where it is.
    pub recording: Recording,
    /// ISO 639-1 code of what is spoken, where that is known.
    pub language: Option<String>,
    /// The message that it belongs to.
    pub message_uid: Option<String>,
    /// The chat that it belongs to.
    pub chat_uid: Option<String>,
    /// Whose it is.
    pub owner: Owner,
    /// With what is said when.
    pub verbose: bool,
}

impl NewTranscript {
    /// Every rule on what comes with a recording.
    pub(crate) fn check(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        if let Some(language) = &mut self.language {
            language.make_ascii_lowercase();
            if !language::is_known(language) {
                checks.issue("language", "format", "language must be a code of ISO 639-1, such as en or de");
            }
        }
        for (path, value) in [("messageUid", &self.message_uid), ("chatUid", &self.chat_uid)] {
            checks.length(path, value.as_deref().unwrap_or("-"), 1..=64);
        }
        checks.tenants(self.owner.tenant_id.as_deref(), self.owner.subtenant_id.as_deref());
        checks.finish()
    }
}

/// What is said in a recording (contract 15).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transcript {
    /// Id.
    pub transcript_id: String,
    /// What is said.
    pub text: String,
    /// ISO 639-1 code of what is spoken: what was given, else what was heard; empty when it is neither.
    pub language: String,
    /// Address of the recording.
    pub audio_url: String,
    /// Who turned it into text.
    pub model: String,
    /// How long it is.
    pub duration_ms: i64,
    /// What was heard to be spoken.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub detected_language: Option<String>,
    /// What is said when, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub segments: Option<Vec<TranscriptSegment>>,
    /// The message that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub message_uid: Option<String>,
    /// The chat that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub chat_uid: Option<String>,
    /// The tenant whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tenant_id: Option<String>,
    /// When it was made.
    pub creation_timestamp_ms: Timestamp,
}

/// What is said at one time of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TranscriptSegment {
    /// Where it begins.
    pub start_ms: i64,
    /// Where it ends.
    pub end_ms: i64,
    /// What is said.
    pub text: String,
}
