//! Entries of core memory, as clients see them.

use platform_core::{Checks, Result};
use platform_runtime::MemoryBucket;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that is remembered (contract 11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryEntry {
    /// From 1 in each bucket; never used again.
    pub id: i64,
    /// `persona`, `instructions`, `decisions`, `profile`, `facts` or a name of one's own.
    pub section: String,
    /// What it says.
    pub content: String,
    /// `user`, `assistant`, `api` or `system`: who wrote it.
    pub source: String,
    /// It comes first.
    pub pinned: bool,
    /// Neither sessions nor assistants change it.
    pub read_only: bool,
    /// The entry in whose place it stands.
    pub supersedes: Option<i64>,
    /// When it was put aside, in ISO 8601.
    pub archived_at: Option<String>,
    /// When it was written, in ISO 8601.
    pub created_at: String,
    /// When it was changed last, in ISO 8601.
    pub updated_at: String,
}

/// An entry that is to be written.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewEntry {
    /// What it says; space around it is taken off.
    pub content: String,
    /// `facts` unless said.
    #[schema(nullable = false)]
    pub section: Option<String>,
    /// It comes first.
    #[serde(default)]
    pub pinned: bool,
    /// Neither sessions nor assistants change it; not to be set by sessions.
    #[serde(default)]
    pub read_only: bool,
}

/// Sections that have a meaning; their names are read in any case (contract 00 §2.8).
const NAMED: [&str; 5] = ["persona", "instructions", "decisions", "profile", "facts"];

/// What is to be another way; another content makes another entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EntryPatch {
    /// What it says.
    pub content: String,
    /// Where it belongs.
    pub section: String,
    /// It comes first.
    pub pinned: bool,
    /// Neither sessions nor assistants change it.
    pub read_only: bool,
}

impl Default for EntryPatch {
    fn default() -> Self {
        Self { content: String::new(), section: "facts".to_owned(), pinned: false, read_only: false }
    }
}

impl EntryPatch {
    /// Brings it into its form and checks every rule on it.
    pub(crate) fn check(&mut self, limits: &MemoryLimits) -> Result<()> {
        self.content = self.content.trim().to_owned();
        let most = if limits.max_entry_chars == 0 { usize::MAX } else { limits.max_entry_chars };
        let mut checks = Checks::default();
        checks.length("content", &self.content, 1..=most);
        if NAMED.iter().any(|name| name.eq_ignore_ascii_case(&self.section)) {
            self.section.make_ascii_lowercase();
        }
        let mut letters = self.section.bytes();
        let fits = self.section.len() <= 32
            && letters.next().is_some_and(|first| first.is_ascii_lowercase())
            && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
        if !fits {
            let message = "section must be persona, instructions, decisions, profile, facts or a name of up to 32 \
                lower-case letters, digits, _ and -";
            checks.issue("section", "format", message);
        }
        checks.finish()
    }
}

/// Who wrote an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An end user, by a session.
    User,
    /// The assistant itself.
    Assistant,
    /// A key.
    Api,
}

impl Source {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Api => "api",
        }
    }

    /// Whether it may change what is read-only.
    pub(crate) fn is_trusted(self) -> bool {
        self == Self::Api
    }
}

/// Whose memory it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    /// The tenant; absent while the assistant remembers nothing, and so are the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The end user, where each has a memory of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// Id of the assistant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_id: Option<String>,
}

impl From<&MemoryBucket> for Bucket {
    fn from(bucket: &MemoryBucket) -> Self {
        Self {
            tenant_id: Some(bucket.tenant_id.clone()),
            subtenant_id: bucket.subtenant_id.clone(),
            entity_id: Some(bucket.assistant_id.clone()),
        }
    }
}

/// How much is remembered of one; 0 = no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryLimits {
    /// Characters of all live entries.
    pub max_chars: usize,
    /// Live entries.
    pub max_entries: usize,
    /// Characters of an entry.
    pub max_entry_chars: usize,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { max_chars: 8000, max_entries: 100, max_entry_chars: 1000 }
    }
}

/// What is remembered of one.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CoreMemoryEntries {
    /// Whether the assistant remembers anything.
    pub enabled: bool,
    /// Whose it is.
    pub bucket: Bucket,
    /// Pinned ones first, then by section, then by age.
    pub entries: Vec<MemoryEntry>,
    /// How much there may be.
    pub limits: MemoryLimits,
    /// Changes with what the assistant is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub revision: Option<String>,
}

/// An entry that was written, or was there.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AddedEntry {
    /// The entry as it is stored.
    pub entry: MemoryEntry,
    /// It was there: one with the same content, whatever its case and spaces.
    pub deduped: bool,
}

/// An entry that was put aside.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct RemovedEntry {
    /// `false`: it was already.
    pub removed: bool,
    /// Its id.
    pub id: i64,
}
