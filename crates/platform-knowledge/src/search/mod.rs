//! Search: which pieces of documents a query finds.

mod keyword;
mod model;

use platform_core::{AccountId, Code, Error, Result};
use platform_db::Db;

pub use model::{SearchQuery, SearchResult, SearchResults};

/// The words of a text as they are looked for: what stands between letters and digits is space, and so is where
/// `camelCase` goes on.
pub(crate) fn words(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    let mut before = ' ';
    for c in text.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            words.push(' ');
        }
        if c.is_alphanumeric() {
            words.push(c);
        } else if before.is_alphanumeric() {
            words.push(' ');
        }
        before = c;
    }
    words
}

/// What a search may find.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    /// These documents; `None` = all.
    pub documents: Option<Vec<String>>,
    /// Those in these folders, directly; `None` = all.
    pub folders: Option<Vec<String>>,
    /// Documents and folders are each enough, where both are said.
    pub either: bool,
    pub project: Option<String>,
    /// With one of these tags.
    pub tags: Vec<String>,
    /// In none or in one of these projects.
    pub within: Option<Vec<String>>,
}

/// What a query finds in an account, the best first.
pub(crate) async fn search(
    db: &Db,
    account: &AccountId,
    query: &SearchQuery,
    within: Option<Vec<String>>,
) -> Result<SearchResults> {
    if query.mode.as_deref() == Some("semantic") {
        let message = "There is no semantic index: no embedding model is configured. Search by keyword.";
        return Err(Error::new(Code::PROVIDER_NOT_CONFIGURED, message));
    }
    let folders = match &query.folder_ids {
        Some(folders) => Some(crate::folder::repository::tree(&mut *db.conn().await?, account, folders).await?),
        None => None,
    };
    let bounds = Bounds {
        documents: query.document_ids.clone(),
        folders,
        either: false,
        project: query.project_id.clone(),
        tags: query.tags.clone(),
        within,
    };
    let results = keyword::search(db, account, &query.query, &bounds, query.limit).await?;
    Ok(SearchResults { results })
}

/// The same in documents, and in folders with all below them.
pub(crate) async fn search_in(
    db: &Db,
    account: &AccountId,
    query: &str,
    documents: &[String],
    folders: &[String],
    limit: i64,
) -> Result<Vec<SearchResult>> {
    let folders = crate::folder::repository::tree(&mut *db.conn().await?, account, folders).await?;
    let bounds =
        Bounds { documents: Some(documents.to_vec()), folders: Some(folders), either: true, ..Bounds::default() };
    keyword::search(db, account, query, &bounds, limit).await
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn words_are_found_whatever_stands_around_them() {
        assert_eq!(
            words("`/livez` knowledgeRecall, PLATFORM_DATA_DIR\u{e4}x"),
            "livez knowledge Recall PLATFORM DATA DIR\u{e4}x"
        );
    }
}
