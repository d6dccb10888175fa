use std::path::PathBuf;

use platform_core::{Checks, Money, Object, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Bytes of the text that is read of a file (contract 06 §2).
pub(crate) const MAX_TEXT: usize = 5 << 20;
const MAX_SUMMARY: usize = 4000;

/// What a client sets of a document (contract 06 §1).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DocumentSettings {
    /// Name without extension, 1 to 200 characters.
    pub name: String,
    /// What it is about; made from the text when nobody says.
    pub summary: String,
    /// Text, at most 5 MiB.
    pub markdown_content: String,
    /// Project it belongs to; in a folder that of the folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Folder it lies in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder_id: Option<String>,
    /// Document it is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_document_id: Option<String>,
    /// It is a skill (contract 14).
    pub is_skill: bool,
    /// Tags.
    pub tags: Vec<String>,
}

impl DocumentSettings {
    /// Every rule on the fields of a document.
    pub(crate) fn check(&mut self, most_bytes: usize) -> Result<()> {
        let mut checks = Checks::default();
        checks.name(&self.name);
        checks.length("summary", &self.summary, 0..=MAX_SUMMARY);
        checks.bytes("markdownContent", self.markdown_content.len(), most_bytes);
        checks.tags("tags", &mut self.tags);
        checks.finish()
    }
}

/// A document that is to be made.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewDocument {
    /// Name without extension, 1 to 200 characters.
    pub name: String,
    /// Text, at most 5 MiB.
    pub markdown_content: String,
    /// Project it belongs to; in a folder that of the folder.
    #[schema(nullable = false)]
    pub project_id: Option<String>,
    /// Folder it lies in.
    #[schema(nullable = false)]
    pub folder_id: Option<String>,
    /// Document it is a part of.
    #[schema(nullable = false)]
    pub parent_document_id: Option<String>,
    /// It is a skill (contract 14).
    #[serde(default)]
    pub is_skill: bool,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

impl From<NewDocument> for DocumentSettings {
    fn from(new: NewDocument) -> Self {
        Self {
            name: new.name,
            summary: String::new(),
            markdown_content: new.markdown_content,
            project_id: new.project_id,
            folder_id: new.folder_id,
            parent_document_id: new.parent_document_id,
            is_skill: new.is_skill,
            tags: new.tags,
        }
    }
}

/// A document that comes as a file.
#[derive(Debug)]
pub struct Upload {
    /// Name of the file.
    pub file_name: String,
    /// Where it is on this machine.
    pub path: PathBuf,
    /// In bytes.
    pub size: u64,
    /// SHA-256, in hex.
    pub sha256: String,
    /// The rest of the document; an empty name is that of the file.
    pub settings: DocumentSettings,
}

/// How far the search index of a document is.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Indexing {
    /// `queued`, `parsing`, `chunking`, `embedding`, `done` or `error`.
    pub state: String,
    /// Pieces that the text has.
    pub chunks_total: i64,
    /// Of them in the index.
    pub chunks_done: i64,
    /// How often it was tried.
    pub attempts: i64,
    /// Why the last try failed.
    pub error: Option<IndexingError>,
    /// When the last try began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub started_timestamp_ms: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub finished_timestamp_ms: Option<Timestamp>,
    /// What its vectors took.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub embedding: Option<EmbeddingUsage>,
}

/// What the vectors of a document took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Tokens.
    pub tokens: u64,
    /// US dollars.
    pub cost: Money,
}

impl Indexing {
    /// It waits for its turn.
    pub(crate) fn queued() -> Self {
        Self { state: "queued".to_owned(), ..Self::default() }
    }

    /// It cannot be read, and never will be.
    pub(crate) fn unreadable(error: IndexingError, now: Timestamp) -> Self {
        Self {
            state: "error".to_owned(),
            attempts: 1,
            error: Some(error),
            started_timestamp_ms: Some(now),
            finished_timestamp_ms: Some(now),
            ..Self::default()
        }
    }
}

/// Why a document is not in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IndexingError {
    /// `EXTRACTION_FAILED`, `TEXT_TOO_LARGE` or what the index failed with.
    pub code: String,
    /// What to do about it.
    pub message: String,
}

/// A document as clients see it (contract 06 §1).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// Name without extension.
    pub name: String,
    /// Name of the file.
    pub file_name: String,
    /// `md`, `pdf`, `txt`, `docx` or `html`; `binary`: a file of a skill that is no text.
    pub file_type: String,
    /// `pending`, `ready` or `failed`: of the search index.
    pub status: String,
    /// Bytes of the text.
    pub size: i64,
    /// About so many tokens.
    pub token_count: i64,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub markdown_content: Option<String>,
    /// What it is about.
    pub summary: String,
    /// It is a skill.
    pub is_skill: bool,
    /// Tags.
    pub tags: Vec<String>,
    /// Project it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub project_id: Option<String>,
    /// Folder it lies in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub folder_id: Option<String>,
    /// Document it is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub parent_document_id: Option<String>,
    /// Its newest version.
    pub current_version: i32,
    /// All versions that are kept, newest first; in a single read only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub versions: Option<Vec<Version>>,
    /// How far the search index is.
    pub indexing: Indexing,
    /// SHA-256 of the text, in hex.
    pub content_hash: String,
    /// Who made it.
    #[serde(rename = "createdByUserUID")]
    pub created_by_user_uid: String,
    /// The file as it was uploaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub source_file_id: Option<String>,
    /// When it was made.
    pub creation_timestamp_ms: Timestamp,
    /// When it was changed last.
    pub last_edit_timestamp_ms: Timestamp,
    /// Whether the change that is answered made another text of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub version_created: Option<bool>,
    /// Rises with every change; value of `ETag`.
    #[serde(skip)]
    pub version: i64,
}

/// Documents, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct DocumentList {
    /// The page.
    pub documents: Vec<Document>,
    /// All that the filter keeps.
    pub total: i64,
    /// How many were skipped.
    pub offset: i64,
    /// At most so many.
    pub limit: i64,
}

/// Which documents are listed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DocumentFilter {
    /// Of this project.
    pub project_id: Option<String>,
    /// `pending`, `ready` or `failed`.
    pub status: Option<String>,
    /// `md`, `pdf`, `txt`, `docx` or `html`; `binary`: a file of a skill that is no text.
    pub file_type: Option<String>,
    /// Text in name or summary.
    pub search: Option<String>,
    /// In this folder; `none`: in no folder.
    pub folder_id: Option<String>,
    /// Those that are no part of another.
    pub parent_only: Option<bool>,
    /// Skills, or all others.
    pub is_skill: Option<bool>,
    /// With one of these tags, separated by commas.
    pub tags: Option<String>,
    /// With their text.
    pub include_content: Option<bool>,
    /// In none or in one of these projects.
    #[serde(skip)]
    pub within: Option<Vec<String>>,
}

impl DocumentFilter {
    /// `VALIDATION_ERROR` for a word that is none of the known ones.
    pub fn check(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        let words: [(&str, &mut Option<String>, &[&str]); 2] = [
            ("status", &mut self.status, &["pending", "ready", "failed"]),
            ("fileType", &mut self.file_type, &["md", "pdf", "txt", "docx", "html", "binary"]),
        ];
        for (path, given, known) in words {
            let Some(given) = given else { continue };
            given.make_ascii_lowercase();
            if !known.contains(&given.as_str()) {
                checks.issue(path, "enum", format!("{path} must be one of {}", known.join(", ")));
            }
        }
        checks.finish()
    }

    /// The tags that are asked for.
    pub(crate) fn tags(&self) -> Vec<String> {
        let tags = self.tags.iter().flat_map(|tags| tags.split(','));
        tags.map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
    }
}

/// A version of a document, without its text.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// From 1.
    pub version: i32,
    /// `created`, `updated`, `reverted` or `renamed`.
    pub change_type: String,
    /// In a sentence.
    pub change_description: String,
    /// It is the newest.
    pub is_active: bool,
    /// RFC 3339.
    pub created_at: String,
    /// Who made it.
    #[serde(rename = "userUID")]
    pub user_uid: String,
    /// Bytes of its text.
    pub size: i64,
}

/// A version with its text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionText {
    /// The version.
    #[serde(flatten)]
    pub version: Version,
    /// Its text.
    pub markdown_content: String,
}

/// What a deletion took, or would take.
#[derive(Debug)]
pub enum DeletedDocuments {
    /// These are gone.
    Gone(Vec<String>),
    /// These would go.
    Planned(PlannedDeletion),
}

/// What a deletion would take.
#[derive(Debug, Serialize, ToSchema)]
pub struct PlannedDeletion {
    /// Ids of the documents that would go.
    pub documents: Vec<String>,
    /// Who uses them.
    pub usage: UsedBy,
}

/// Who uses a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsedBy {
    /// Agents.
    pub agents: Vec<UsedByAgent>,
    /// Assistants.
    pub assistants: Vec<UsedByAssistant>,
    /// Environments.
    pub environments: Vec<UsedByAgent>,
}

/// An agent or environment that uses a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsedByAgent {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// Name.
    pub name: String,
    /// `document`, `folder` or `skill`: by what.
    pub via: String,
}

/// An assistant that uses a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsedByAssistant {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// Identifier.
    pub identifier: String,
    /// Name.
    pub name: String,
    /// `document`, `folder` or `skill`: by what.
    pub via: String,
}

/// To what something is attached, or from what it is taken.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// `agent`, `assistant` or `environment`.
    pub target_type: String,
    /// Its id; of assistants the identifier, too.
    pub target_id: String,
}

/// Whether something is attached now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Attached {
    /// Always.
    pub success: bool,
    /// Whether it is.
    pub attached: bool,
}

/// Which documents are indexed anew: exactly one of these.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reindex {
    /// Those in this folder and below.
    #[schema(nullable = false)]
    pub folder_id: Option<String>,
    /// Those of this project.
    #[schema(nullable = false)]
    pub project_id: Option<String>,
    /// `failed`: those.
    #[schema(nullable = false)]
    pub status: Option<String>,
}

/// How many documents wait for their turn now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Queued {
    /// So many.
    pub queued: i64,
}

/// Pieces of a document.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkList {
    /// The page.
    pub chunks: Vec<ListedChunk>,
    /// Pieces of the whole document.
    pub total: i64,
    /// How many were skipped.
    pub offset: i64,
    /// At most so many.
    pub limit: i64,
}

/// A piece of a document.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedChunk {
    /// Id.
    pub chunk_id: String,
    /// Where it stands, from 0.
    pub index: i32,
    /// What it says.
    pub text: String,
    /// Headings above it, the outermost first.
    pub heading_path: Vec<String>,
    /// About so many tokens.
    pub token_count: i32,
}

/// The text that a patch gives a field.
pub(crate) fn given(patch: &Object, field: &str) -> Option<String> {
    patch.get(field)?.as_str().map(str::to_owned)
}

/// JSON of a list of texts as it is stored.
pub(crate) fn texts(list: &[String]) -> Value {
    Value::from(list.to_vec())
}

/// About so many tokens: four letters of ASCII, or one or two of others.
pub(crate) fn tokens(text: &str) -> usize {
    let others = text.chars().filter(|c| !c.is_ascii()).count();
    let ascii = text.len() - text.chars().filter(|c| !c.is_ascii()).map(char::len_utf8).sum::<usize>();
    ascii.div_ceil(4) + (others * 3).div_ceil(5)
}
