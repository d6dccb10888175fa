//! How a document comes to be and changes: one place for all who write one.

use platform_core::{AccountId, Error, Id, Object, Result, Timestamp, overlay, sha256_hex};
use platform_db::Conn;
use platform_files::{PgFileService, StoredBytes};

use super::{
    DocumentLimits,
    model::{Document, DocumentSettings, Indexing, IndexingError, given, texts, tokens},
    repository::{self, DocumentRow},
    versions::{self, Change},
};
use crate::{extract::Extracted, index, tree};

/// `fileType` of a file of a skill that is no text.
pub(crate) const BINARY: &str = "binary";

/// A document that comes to be.
pub(crate) struct Making<'a> {
    pub settings: DocumentSettings,
    pub user_uid: &'a str,
    pub file_name: String,
    pub file_type: &'static str,
    /// The file that it is made of.
    pub source: Option<StoredBytes>,
    /// Why its text is not what is in the file.
    pub unreadable: Option<IndexingError>,
}

/// Stores a new document and has it indexed.
pub(crate) async fn create_in(
    conn: &mut Conn,
    files: &PgFileService,
    account: &AccountId,
    making: Making<'_>,
    now: Timestamp,
) -> Result<Document> {
    let Making { settings, user_uid, file_name, file_type, source, unreadable } = making;
    let id = String::from(Id::<Document>::generate());
    tree::share(conn, account).await?;
    let project_id = tree::project_in(conn, account, settings.folder_id.as_deref(), settings.project_id).await?;
    if let Some(parent) = &settings.parent_document_id {
        tree::check_parent(conn, account, &id, parent).await?;
    }
    let indexing = match &unreadable {
        Some(error) => Indexing::unreadable(error.clone(), now),
        None => Indexing::queued(),
    };
    let text = settings.markdown_content;
    let row = DocumentRow {
        account_id: account.as_str().to_owned(),
        id,
        name: settings.name,
        file_name,
        file_type: file_type.to_owned(),
        status: if unreadable.is_some() { "failed" } else { "pending" }.to_owned(),
        size: size(&text),
        token_count: i64::try_from(tokens(&text)).unwrap_or(i64::MAX),
        summary: settings.summary,
        is_skill: settings.is_skill,
        tags: texts(&settings.tags),
        project_id,
        folder_id: settings.folder_id,
        parent_id: settings.parent_document_id,
        current_version: 1,
        content_hash: sha256_hex(&text),
        indexing: serde_json::to_value(&indexing).map_err(Error::internal)?,
        due_ms: unreadable.is_none().then_some(now.0),
        language: "simple".to_owned(),
        created_by: user_uid.to_owned(),
        source_file_id: source.as_ref().map(|file| file.id().to_owned()),
        binary_hash: source.as_ref().filter(|_| file_type == BINARY).map(|file| file.sha256().to_owned()),
        unread: unreadable.is_some(),
        version: 1,
        created_ms: now.0,
        edited_ms: now.0,
    };
    if let Some(source) = source {
        files.create_in(conn, source).await?;
    }
    repository::insert(conn, &row).await?;
    let description = "The document was made.".to_owned();
    let change = Change { kind: "created", description, user_uid, text: Some(&text) };
    versions::add(conn, &row, change, usize::MAX).await?;
    match unreadable {
        Some(_) => index::publish_in(conn, account, &row.id, &indexing, now).await?,
        None => index::wake_in(conn, account).await?,
    }
    row.shown(Some(text))
}

/// Lays a patch over a document that is locked, whose text may have so many bytes.
pub(crate) async fn update_in(
    conn: &mut Conn,
    account: &AccountId,
    mut row: DocumentRow,
    (patch, limits): (Object, DocumentLimits),
    user_uid: &str,
    now: Timestamp,
) -> Result<Document> {
    let (parent, project) = (given(&patch, "parentDocumentId"), given(&patch, "projectId"));
    let text = repository::text(conn, account, &row.id, &row.content_hash).await?.unwrap_or_default();
    let before = DocumentSettings {
        name: row.name.clone(),
        summary: row.summary.clone(),
        markdown_content: String::new(),
        project_id: row.project_id.clone(),
        folder_id: row.folder_id.clone(),
        parent_document_id: row.parent_id.clone(),
        is_skill: row.is_skill,
        tags: serde_json::from_value(row.tags.clone()).map_err(Error::internal)?,
    };
    let (changes_text, says_summary) = (patch.contains_key("markdownContent"), patch.contains_key("summary"));
    let mut settings = overlay(&before, patch)?;
    // A record that was read and is sent back says nothing of its own.
    let changes_summary = says_summary && (settings.summary.is_empty() || settings.summary != before.summary);
    settings.check(limits.bytes)?;
    // In a folder its project is that of the folder, whatever it was before.
    let asked = project.or_else(|| settings.folder_id.is_none().then(|| settings.project_id.clone()).flatten());
    row.project_id = tree::project_in(conn, account, settings.folder_id.as_deref(), asked).await?;
    row.folder_id = settings.folder_id;
    if let Some(parent) = &parent {
        tree::check_parent(conn, account, &row.id, parent).await?;
    }
    row.parent_id = settings.parent_document_id;
    let (renamed, old_name) = (settings.name != row.name, std::mem::replace(&mut row.name, settings.name));
    if renamed {
        let extension = row.file_name.rsplit_once('.').map(|(_, extension)| format!(".{extension}"));
        row.file_name = format!("{}{}", row.name, extension.unwrap_or_default());
    }
    (row.summary, row.is_skill, row.tags) = (settings.summary, settings.is_skill, texts(&settings.tags));
    let new_text = settings.markdown_content;
    let is_new = changes_text && sha256_hex(&new_text) != row.content_hash;
    if is_new && row.file_type == BINARY {
        let message = "This file is no text; import its skill again to replace it.";
        return Err(Error::invalid("markdownContent", "format", message));
    }
    row.version += 1;
    row.edited_ms = now.0;
    let shown = if is_new {
        set_text(&mut row, &new_text)?;
        new_text
    } else {
        text
    };
    if is_new || renamed {
        row.current_version += 1;
        let (kind, description) = match (is_new, renamed) {
            (true, _) => ("updated", "The text was changed.".to_owned()),
            (false, _) => ("renamed", format!("`{old_name}` became `{}`.", row.name)),
        };
        let text = is_new.then_some(shown.as_str());
        versions::add(conn, &row, Change { kind, description, user_uid, text }, limits.versions).await?;
    }
    // Its name stands above all of its pieces.
    if renamed && !row.unread {
        queue(&mut row)?;
    }
    repository::update(conn, account, &row).await?;
    if changes_summary {
        let by_client = !row.summary.is_empty();
        repository::note_summary(conn, account, &row.id, by_client).await?;
        if !by_client {
            index::sum_up_in(conn, account).await?;
        }
    }
    if row.due_ms.is_some() {
        index::wake_in(conn, account).await?;
    }
    Ok(Document { version_created: Some(is_new), ..row.shown(Some(shown))? })
}

/// Makes the text of an older version the newest.
pub(crate) async fn revert_in(
    conn: &mut Conn,
    account: &AccountId,
    mut row: DocumentRow,
    (version, text): (i32, String),
    user_uid: &str,
    limits: DocumentLimits,
    now: Timestamp,
) -> Result<Document> {
    let is_new = sha256_hex(&text) != row.content_hash;
    row.version += 1;
    row.edited_ms = now.0;
    row.current_version += 1;
    if is_new {
        set_text(&mut row, &text)?;
    } else if !row.unread {
        // What is found says which version it is of.
        queue(&mut row)?;
    }
    let description = format!("The text is that of version {version} again.");
    let change = Change { kind: "reverted", description, user_uid, text: Some(&text) };
    versions::add(conn, &row, change, limits.versions).await?;
    repository::update(conn, account, &row).await?;
    if row.due_ms.is_some() {
        index::wake_in(conn, account).await?;
    }
    Ok(Document { version_created: Some(is_new), ..row.shown(Some(text))? })
}

/// What a file says, read again, and what its document said before.
pub(crate) struct Reread {
    pub found: Extracted,
    pub hash: String,
    pub unread: bool,
}

/// Has a document indexed anew; `reread`: with what its file says now.
pub(crate) async fn reindex_in(
    conn: &mut Conn,
    account: &AccountId,
    mut row: DocumentRow,
    reread: Option<Reread>,
    limits: DocumentLimits,
    now: Timestamp,
) -> Result<Document> {
    row.edited_ms = now.0;
    row.version += 1;
    let mut unreadable = None;
    // Somebody may have given it a text meanwhile.
    let reread = reread.filter(|reread| (&reread.hash, reread.unread) == (&row.content_hash, row.unread));
    match reread.map(|reread| reread.found) {
        // What was read once stays.
        Some(Err(_)) if !row.unread => queue(&mut row)?,
        Some(Err(error)) => {
            "failed".clone_into(&mut row.status);
            let indexing = unreadable.insert(Indexing::unreadable(error, now));
            row.indexing = serde_json::to_value(indexing).map_err(Error::internal)?;
            row.due_ms = None;
        }
        Some(Ok(text)) => {
            let is_new = sha256_hex(&text) != row.content_hash;
            set_text(&mut row, &text)?;
            if is_new {
                row.current_version += 1;
                let description = versions::OF_FILE.to_owned();
                let user_uid = row.created_by.clone();
                let change = Change { kind: "updated", description, user_uid: &user_uid, text: Some(&text) };
                versions::add(conn, &row, change, limits.versions).await?;
            }
        }
        None => queue(&mut row)?,
    }
    repository::update(conn, account, &row).await?;
    if row.due_ms.is_some() {
        index::wake_in(conn, account).await?;
    }
    if let Some(indexing) = unreadable {
        index::publish_in(conn, account, &row.id, &indexing, now).await?;
    }
    let text = repository::text(conn, account, &row.id, &row.content_hash).await?;
    row.shown(Some(text.unwrap_or_default()))
}

fn set_text(row: &mut DocumentRow, text: &str) -> Result<()> {
    row.size = size(text);
    row.token_count = i64::try_from(tokens(text)).unwrap_or(i64::MAX);
    row.content_hash = sha256_hex(text);
    row.unread = false;
    queue(row)
}

/// Has a document indexed anew.
pub(crate) fn queue(row: &mut DocumentRow) -> Result<()> {
    "pending".clone_into(&mut row.status);
    row.indexing = serde_json::to_value(Indexing::queued()).map_err(Error::internal)?;
    row.due_ms = Some(row.edited_ms);
    Ok(())
}

fn size(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}
