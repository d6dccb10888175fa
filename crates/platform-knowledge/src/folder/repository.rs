use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{Array, BigInt, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::Conn;
use serde_json::Value;

use super::model::{Folder, FolderFilter, FolderSettings};
use crate::schema::{documents, folders};

/// Folders of a list.
const MOST: i64 = 1000;
/// Documents in a folder, directly.
const COUNT: &str =
    "(SELECT count(*) FROM documents d WHERE d.account_id = folders.account_id AND d.folder_id = folders.id)";

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = folders)]
pub(crate) struct FolderRow {
    pub account_id: String,
    pub id: String,
    pub name: String,
    pub project_id: Option<String>,
    pub parent_id: Option<String>,
    pub color: Option<String>,
    pub tags: Value,
    pub is_skill: bool,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl FolderRow {
    /// What a client set.
    pub fn settings(&self) -> Result<FolderSettings> {
        Ok(FolderSettings {
            name: self.name.clone(),
            project_id: self.project_id.clone(),
            parent_folder_id: self.parent_id.clone(),
            color: self.color.clone(),
            tags: serde_json::from_value(self.tags.clone()).map_err(Error::internal)?,
            is_skill: self.is_skill,
        })
    }

    /// The record as it is sent.
    pub fn shown(&self, document_count: i64) -> Result<Folder> {
        Ok(Folder {
            id: self.id.clone(),
            settings: self.settings()?,
            document_count,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
        })
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    folders::table.filter(folders::account_id.eq(account)).filter(folders::id.eq(id))
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<FolderRow>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(FolderRow::as_select()).first(&mut conn).await.optional()?)
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<FolderRow>> {
    let folder = by_id(account.as_str(), id).for_no_key_update().select(FolderRow::as_select());
    Ok(folder.first(conn).await.optional()?)
}

/// Locks folders that are to be deleted, before anything that refers to them: nobody refers to them anew.
pub(crate) async fn lock_all(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<()> {
    let all = folders::table.filter(folders::account_id.eq(account.as_str()).and(folders::id.eq_any(ids)));
    all.order(folders::id).for_update().select(folders::id).load::<String>(conn).await?;
    Ok(())
}

pub(crate) async fn insert(conn: &mut Conn, row: &FolderRow) -> Result<()> {
    diesel::insert_into(folders::table).values(row).execute(conn).await?;
    Ok(())
}

pub(crate) async fn update(conn: &mut Conn, account: &AccountId, row: &FolderRow) -> Result<()> {
    diesel::update(by_id(account.as_str(), &row.id))
        .set((
            folders::name.eq(&row.name),
            folders::project_id.eq(&row.project_id),
            folders::parent_id.eq(&row.parent_id),
            folders::color.eq(&row.color),
            folders::tags.eq(&row.tags),
            folders::is_skill.eq(row.is_skill),
            folders::edited_ms.eq(row.edited_ms),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Documents in a folder, directly.
pub(crate) async fn count(conn: &Conn, account: &AccountId, id: &str) -> Result<i64> {
    let mut conn = conn;
    let of = documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::folder_id.eq(id)));
    Ok(of.count().get_result(&mut conn).await?)
}

/// Those that the filter keeps, newest first, at most 1,000, each with the documents in it.
pub(crate) async fn list(conn: &Conn, account: &AccountId, filter: &FolderFilter) -> Result<Vec<(FolderRow, i64)>> {
    let mut conn = conn;
    let mut found = folders::table.filter(folders::account_id.eq(account.as_str())).into_boxed();
    if let Some(project) = &filter.project_id {
        found = found.filter(folders::project_id.eq(project));
    }
    if let Some(within) = &filter.within {
        found = found.filter(folders::project_id.is_null().or(folders::project_id.eq_any(within)));
    }
    match filter.parent_folder_id.as_deref() {
        Some("none") => found = found.filter(folders::parent_id.is_null()),
        Some(parent) => found = found.filter(folders::parent_id.eq(parent)),
        None => {}
    }
    if let Some(is_skill) = filter.is_skill {
        found = found.filter(folders::is_skill.eq(is_skill));
    }
    let newest_first = (folders::created_ms.desc(), folders::id.desc());
    let found = found.order(newest_first).limit(MOST).select((FolderRow::as_select(), sql::<BigInt>(COUNT)));
    Ok(found.load(&mut conn).await?)
}

#[derive(QueryableByName)]
struct Found {
    #[diesel(sql_type = Text)]
    id: String,
}

/// Ids of folders and of all below them.
pub(crate) async fn tree(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<Vec<String>> {
    let tree = "WITH RECURSIVE tree AS (\
            SELECT id FROM folders WHERE account_id = $1 AND id = ANY($2) \
            UNION SELECT f.id FROM folders f JOIN tree ON f.parent_id = tree.id WHERE f.account_id = $1) \
        SELECT id FROM tree";
    let tree = diesel::sql_query(tree).bind::<Text, _>(account.as_str()).bind::<Array<Text>, _>(ids);
    Ok(tree.load::<Found>(conn).await?.into_iter().map(|found| found.id).collect())
}

/// Ids of a folder and of all that it lies in, the innermost first.
pub(crate) async fn above(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Vec<String>> {
    let above = "WITH RECURSIVE above AS (\
            SELECT id, parent_id, 0 AS depth FROM folders WHERE account_id = $1 AND id = $2 \
            UNION ALL SELECT f.id, f.parent_id, depth + 1 FROM folders f JOIN above ON f.id = above.parent_id \
            WHERE f.account_id = $1) \
        SELECT id FROM above ORDER BY depth";
    let above = diesel::sql_query(above).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
    Ok(above.load::<Found>(conn).await?.into_iter().map(|found| found.id).collect())
}

/// Gives folders and the documents in them another project.
pub(crate) async fn move_to(
    conn: &mut Conn,
    account: &AccountId,
    ids: &[String],
    project: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    for of in [
        "UPDATE folders SET project_id = $3, edited_ms = $4 WHERE account_id = $1 AND id = ANY($2)",
        "UPDATE documents SET project_id = $3, edited_ms = $4, version = version + 1 \
            WHERE account_id = $1 AND folder_id = ANY($2)",
    ] {
        let moving = diesel::sql_query(of).bind::<Text, _>(account.as_str()).bind::<Array<Text>, _>(ids);
        moving.bind::<Nullable<Text>, _>(project).bind::<BigInt, _>(now.0).execute(conn).await?;
    }
    Ok(())
}

/// Ids of the documents in these folders, directly.
pub(crate) async fn documents_in(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<Vec<String>> {
    let of = documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::folder_id.eq_any(ids)));
    Ok(of.select(documents::id).load(conn).await?)
}

/// Puts what lies in a folder into another, or into none.
pub(crate) async fn empty_into(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    into: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    for of in [
        "UPDATE folders SET parent_id = $3, edited_ms = $4 WHERE account_id = $1 AND parent_id = $2",
        "UPDATE documents SET folder_id = $3, edited_ms = $4, version = version + 1 \
            WHERE account_id = $1 AND folder_id = $2",
    ] {
        let moving = diesel::sql_query(of).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
        moving.bind::<Nullable<Text>, _>(into).bind::<BigInt, _>(now.0).execute(conn).await?;
    }
    Ok(())
}

/// Deletes folders that nothing but each other lies in.
pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<()> {
    let of = || folders::table.filter(folders::account_id.eq(account.as_str()).and(folders::id.eq_any(ids)));
    diesel::update(of()).set(folders::parent_id.eq(None::<String>)).execute(conn).await?;
    diesel::delete(of()).execute(conn).await?;
    Ok(())
}
