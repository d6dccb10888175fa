//! Versions of documents: who changed what when, and the text as it was.

use diesel::{
    prelude::*,
    sql_types::{BigInt, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result, Timestamp};
use platform_db::Conn;

use super::{model::Version, repository::DocumentRow};
use crate::schema::{document_texts, document_versions};

#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = document_versions)]
struct VersionRow {
    account_id: String,
    document_id: String,
    version: i32,
    content_hash: String,
    change_type: String,
    change_description: String,
    user_uid: String,
    size: i64,
    created_ms: i64,
}

/// How a version came to be.
pub(crate) struct Change<'a> {
    pub kind: &'static str,
    pub description: String,
    pub user_uid: &'a str,
    /// The text, when it is a new one.
    pub text: Option<&'a str>,
}

/// Adds the version that a document is at now, and forgets the oldest beyond `most`.
pub(crate) async fn add(conn: &mut Conn, document: &DocumentRow, change: Change<'_>, most: usize) -> Result<()> {
    if let Some(text) = change.text {
        diesel::insert_into(document_texts::table)
            .values((
                document_texts::account_id.eq(&document.account_id),
                document_texts::document_id.eq(&document.id),
                document_texts::content_hash.eq(&document.content_hash),
                document_texts::markdown.eq(text),
            ))
            .on_conflict_do_nothing()
            .execute(conn)
            .await?;
    }
    let row = VersionRow {
        account_id: document.account_id.clone(),
        document_id: document.id.clone(),
        version: document.current_version,
        content_hash: document.content_hash.clone(),
        change_type: change.kind.to_owned(),
        change_description: change.description,
        user_uid: change.user_uid.to_owned(),
        size: document.size,
        created_ms: document.edited_ms,
    };
    diesel::insert_into(document_versions::table).values(row).execute(conn).await?;
    let gone = i64::from(document.current_version).saturating_sub(i64::try_from(most).unwrap_or(i64::MAX));
    if gone > 0 {
        let forget = "DELETE FROM document_versions WHERE account_id = $1 AND document_id = $2 AND version <= $3";
        let forget = diesel::sql_query(forget).bind::<Text, _>(&document.account_id).bind::<Text, _>(&document.id);
        forget.bind::<BigInt, _>(gone).execute(conn).await?;
        let unread = "DELETE FROM document_texts t WHERE account_id = $1 AND document_id = $2 AND NOT EXISTS (\
            SELECT FROM document_versions v WHERE v.account_id = $1 AND v.document_id = $2 \
            AND v.content_hash = t.content_hash)";
        let unread = diesel::sql_query(unread).bind::<Text, _>(&document.account_id).bind::<Text, _>(&document.id);
        unread.execute(conn).await?;
    }
    Ok(())
}

/// What is said of a version whose text is what the file says.
pub(crate) const OF_FILE: &str = "The file could be read.";

/// Whether the text of a document that was made of a file is still what was read of it.
pub(crate) async fn is_of_file(conn: &Conn, account: &AccountId, document: &str) -> Result<bool> {
    let mut conn = conn;
    let newest: Option<(String, String)> = document_versions::table
        .filter(document_versions::account_id.eq(account.as_str()).and(document_versions::document_id.eq(document)))
        .filter(document_versions::change_type.ne("renamed"))
        .order(document_versions::version.desc())
        .select((document_versions::change_type, document_versions::change_description))
        .first(&mut conn)
        .await
        .optional()?;
    Ok(newest.is_some_and(|(kind, description)| kind == "created" || description == OF_FILE))
}

/// All that are kept, newest first.
pub(crate) async fn list(conn: &Conn, account: &AccountId, document: &str, current: i32) -> Result<Vec<Version>> {
    let mut conn = conn;
    let rows: Vec<VersionRow> = document_versions::table
        .filter(document_versions::account_id.eq(account.as_str()))
        .filter(document_versions::document_id.eq(document))
        .order(document_versions::version.desc())
        .select(VersionRow::as_select())
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().map(|row| shown(row, current)).collect())
}

/// One, with its text.
pub(crate) async fn find(
    conn: &Conn,
    account: &AccountId,
    document: &DocumentRow,
    version: i32,
) -> Result<Option<(Version, String)>> {
    let mut conn = conn;
    let row = document_versions::table
        .find((account.as_str(), &document.id, version))
        .select(VersionRow::as_select())
        .first::<VersionRow>(&mut conn)
        .await
        .optional()?;
    let Some(row) = row else { return Ok(None) };
    let text = document_texts::table.find((account.as_str(), &document.id, &row.content_hash));
    let text = text.select(document_texts::markdown).first::<String>(&mut conn).await.optional()?;
    Ok(text.map(|text| (shown(row, document.current_version), text)))
}

fn shown(row: VersionRow, current: i32) -> Version {
    Version {
        version: row.version,
        change_type: row.change_type,
        change_description: row.change_description,
        is_active: row.version == current,
        created_at: Timestamp(row.created_ms).to_iso(),
        user_uid: row.user_uid,
        size: row.size,
    }
}
