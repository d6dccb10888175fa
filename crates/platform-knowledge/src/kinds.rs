use platform_access::Kind;

/// Documents.
pub const DOCUMENT: Kind = Kind::placed("document");
/// Folders of documents.
pub const FOLDER: Kind = Kind::placed("folder");
