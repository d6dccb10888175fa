use platform_access::Kind;

/// Documents.
pub const DOCUMENT: Kind = Kind::placed("document");
/// Folders of documents.
pub const FOLDER: Kind = Kind::placed("folder");
/// Documents and folders that are skills.
pub const SKILL: Kind = Kind::placed("skill");
