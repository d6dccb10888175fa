//! Knowledge: documents with versions, folders, a search index, skills, and what assistants and agents find in them
//! (contract 06, 14).
//!
//! **Owns** the tables `documents`, `document_versions`, `document_texts`, `folders`, `chunks`, `chunk_vectors`, `skill_reads` and
//! `skill_installs`; the endpoints `/v1/documents`, `/v1/document-folders` and `/v1/skills`; the tools of
//! `builtin-knowledge`, `builtin-skills` and `builtin-files`. **Needs** `platform-db`,
//! `platform-files` for the files that documents are made of, `platform-jobs` for indexing, `platform-access` for who
//! refers to what, child processes that read files. It answers the port [`Recall`](platform_runtime::Recall).
//!
//! **Invariants**: a document that is not up to date in the index has a time at which it is due, and an account that
//! has such a document has a run, both written in one transaction; old pieces answer until new ones replace them, in
//! one transaction; what lies in a folder has its project; nothing lies within itself; a search never leaves its
//! account, and a turn finds what is attached and nothing else.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_core::{Caller, Result};
//! # use platform_jobs::Jobs;
//! # use platform_knowledge::*;
//! # async fn example(needs: KnowledgeNeeds, jobs: Arc<Jobs>, caller: Caller, new: NewDocument, query: SearchQuery) -> Result<()> {
//! let knowledge = Arc::new(PgKnowledge::new(needs));
//! let document = DocumentService::create(&*knowledge, &caller, new, None).await?;
//! jobs.start(works(&knowledge));
//! let found = knowledge.search(&caller.account, query, None).await?;
//! # Ok(()) }
//! ```

pub mod code;
mod document;
mod docx;
mod extract;
mod file_tools;
mod folder;
mod graph;
mod html;
mod index;
mod kinds;
mod not_found;
mod pdf;
mod schema;
mod search;
mod skill;
mod source;
mod tree;
mod uses;

pub use document::{
    Attached, Attachment, ChunkList, DeletedDocuments, Document, DocumentFilter, DocumentLimits, DocumentList,
    DocumentService, DocumentSettings, EmbeddingUsage, FolderResources, Indexing, IndexingError, KnowledgeNeeds,
    ListedChunk, NewDocument, PgKnowledge, PlannedDeletion, Queued, Reindex, SourceFiles, Upload, UsedBy, UsedByAgent,
    UsedByAssistant, Version, VersionText,
};
pub use extract::{EXTRACTION_WORKS, Extraction};
pub use file_tools::file_tools;
pub use folder::{Folder, FolderFilter, FolderService, FolderSettings};
pub use graph::{Graph, GraphEdge, GraphNode};
pub use index::{keep, works};
pub use kinds::{DOCUMENT, FOLDER, SKILL};
pub use search::{SearchQuery, SearchResult, SearchResults};
pub use skill::{
    ImportedSkill, Install, NewSkill, Scaffold, Skill, SkillFile, SkillFiles, SkillFilter, SkillList, SkillRef,
    SkillResources, SkillService, SkillTree, skill_tools,
};
pub use source::knowledge_tools;
pub use uses::{hold_in, use_in};
