mod model;
pub(crate) mod repository;
mod service;
mod versions;
pub(crate) mod write;

pub use model::{
    Attached, Attachment, ChunkList, DeletedDocuments, Document, DocumentFilter, DocumentList, DocumentSettings,
    EmbeddingUsage, Indexing, IndexingError, ListedChunk, NewDocument, PlannedDeletion, Queued, Reindex, Upload,
    UsedBy, UsedByAgent, UsedByAssistant, Version, VersionText,
};
pub(crate) use model::{MAX_TEXT, tokens};
pub(crate) use service::Gone;
pub use service::{DocumentLimits, DocumentService, FolderResources, KnowledgeNeeds, PgKnowledge, SourceFiles};
pub(crate) use write::{BINARY, Making, create_in};
