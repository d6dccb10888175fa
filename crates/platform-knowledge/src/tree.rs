//! Folders and parents: what lies in what, in which project, without cycles.

use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result};
use platform_db::Conn;

use crate::{document::repository as documents, folder::repository as folders, not_found};

/// Changes of what lies in what are made one after another in an account.
pub(crate) async fn lock(conn: &mut Conn, account: &AccountId) -> Result<()> {
    let lock = diesel::sql_query("SELECT pg_advisory_xact_lock(hashtextextended('knowledge:' || $1, 0))");
    lock.bind::<Text, _>(account.as_str()).execute(conn).await?;
    Ok(())
}

/// Keeps what lies in what as it is until the transaction ends.
pub(crate) async fn share(conn: &mut Conn, account: &AccountId) -> Result<()> {
    let lock = diesel::sql_query("SELECT pg_advisory_xact_lock_shared(hashtextextended('knowledge:' || $1, 0))");
    lock.bind::<Text, _>(account.as_str()).execute(conn).await?;
    Ok(())
}

/// The project of what lies in a folder: that of the folder. Another that is given is refused.
pub(crate) async fn project_in(
    conn: &mut Conn,
    account: &AccountId,
    folder: Option<&str>,
    given: Option<String>,
) -> Result<Option<String>> {
    let Some(folder) = folder else { return Ok(given) };
    let row = folders::find(conn, account, folder).await?.ok_or_else(|| not_found::folder(folder))?;
    if given.is_some() && given != row.project_id {
        let message = "projectId must be that of the folder; leave it out, or move the folder";
        return Err(Error::invalid("projectId", "conflict", message));
    }
    Ok(row.project_id)
}

/// Refuses a document as its own part.
pub(crate) async fn check_parent(conn: &mut Conn, account: &AccountId, id: &str, parent: &str) -> Result<()> {
    if documents::find(conn, account, parent).await?.is_none() {
        return Err(not_found::document(parent));
    }
    if documents::tree(conn, account, id).await?.iter().any(|below| below == parent) {
        return Err(Error::invalid("parentDocumentId", "conflict", "a document cannot be a part of itself"));
    }
    Ok(())
}

/// Refuses a folder within itself.
pub(crate) async fn check_parent_folder(conn: &mut Conn, account: &AccountId, id: &str, parent: &str) -> Result<()> {
    if folders::find(conn, account, parent).await?.is_none() {
        return Err(not_found::folder(parent));
    }
    if folders::tree(conn, account, &[id.to_owned()]).await?.iter().any(|below| below == parent) {
        return Err(Error::invalid("parentFolderId", "conflict", "a folder cannot lie within itself"));
    }
    Ok(())
}
