use std::collections::HashMap;

use diesel::{
    dsl::{case_when, sql},
    pg::Pg,
    prelude::*,
    sql_types::{Array, BigInt, Bool, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_access::Place;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::{Conn, containing};
use serde_json::Value;

use super::model::{Document, DocumentFilter, Indexing, ListedChunk};
use crate::{
    index::BY_CLIENT,
    schema::{chunks, document_texts, documents},
};

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = documents)]
pub(crate) struct DocumentRow {
    pub account_id: String,
    pub id: String,
    pub name: String,
    pub file_name: String,
    pub file_type: String,
    pub status: String,
    pub size: i64,
    pub token_count: i64,
    pub summary: String,
    pub is_skill: bool,
    pub tags: Value,
    pub project_id: Option<String>,
    pub folder_id: Option<String>,
    pub parent_id: Option<String>,
    pub current_version: i32,
    pub content_hash: String,
    pub indexing: Value,
    pub due_ms: Option<i64>,
    pub language: String,
    pub created_by: String,
    pub source_file_id: Option<String>,
    /// SHA-256 of that, where it is no text.
    pub binary_hash: Option<String>,
    /// The text of its file could never be read.
    pub unread: bool,
    pub version: i64,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl DocumentRow {
    /// The record as it is sent.
    pub fn shown(self, markdown_content: Option<String>) -> Result<Document> {
        Ok(Document {
            id: self.id,
            name: self.name,
            file_name: self.file_name,
            file_type: self.file_type,
            status: self.status,
            size: self.size,
            token_count: self.token_count,
            markdown_content,
            summary: self.summary,
            is_skill: self.is_skill,
            tags: serde_json::from_value(self.tags).map_err(Error::internal)?,
            project_id: self.project_id,
            folder_id: self.folder_id,
            parent_document_id: self.parent_id,
            current_version: self.current_version,
            versions: None,
            indexing: serde_json::from_value(self.indexing).map_err(Error::internal)?,
            content_hash: self.content_hash,
            created_by_user_uid: self.created_by,
            source_file_id: self.source_file_id,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
            version_created: None,
            version: self.version,
        })
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
pub(crate) fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    documents::table.filter(documents::account_id.eq(account)).filter(documents::id.eq(id))
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<DocumentRow>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(DocumentRow::as_select()).first(&mut conn).await.optional()?)
}

/// Names of those of these documents that are there, by id.
pub(crate) async fn names(conn: &Conn, account: &AccountId, ids: &[String]) -> Result<HashMap<String, String>> {
    let mut conn = conn;
    let of = documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)));
    let names = of.select((documents::id, documents::name)).load::<(String, String)>(&mut conn);
    Ok(names.await?.into_iter().collect())
}

/// Where a document is.
pub(crate) async fn place(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<Place>> {
    let mut conn = conn;
    let project = by_id(account.as_str(), id).select(documents::project_id).first(&mut conn).await.optional()?;
    Ok(project.map(|project| Place { project, ..Place::default() }))
}

/// The project of the document that a file is kept for.
pub(crate) async fn project_of_source(conn: &Conn, account: &AccountId, file: &str) -> Result<Option<String>> {
    let mut conn = conn;
    let document = documents::table.filter(documents::account_id.eq(account.as_str()));
    let document = document.filter(documents::source_file_id.eq(file)).select(documents::project_id);
    Ok(document.first::<Option<String>>(&mut conn).await.optional()?.flatten())
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<DocumentRow>> {
    let document = by_id(account.as_str(), id).for_no_key_update().select(DocumentRow::as_select());
    Ok(document.first(conn).await.optional()?)
}

/// Locks documents that are to be deleted, before anything that refers to them: nobody refers to them anew; the files
/// that they were made of.
pub(crate) async fn lock_all(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<Vec<String>> {
    let all = documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)));
    let sources = all.order(documents::id).for_update().select(documents::source_file_id);
    Ok(sources.load::<Option<String>>(conn).await?.into_iter().flatten().collect())
}

pub(crate) async fn insert(conn: &mut Conn, row: &DocumentRow) -> Result<()> {
    diesel::insert_into(documents::table).values(row).execute(conn).await?;
    Ok(())
}

/// Stores a changed row.
pub(crate) async fn update(conn: &mut Conn, account: &AccountId, row: &DocumentRow) -> Result<()> {
    diesel::update(by_id(account.as_str(), &row.id))
        .set((
            (
                documents::name.eq(&row.name),
                documents::file_name.eq(&row.file_name),
                documents::status.eq(&row.status),
                documents::size.eq(row.size),
                documents::token_count.eq(row.token_count),
                documents::summary.eq(&row.summary),
                documents::is_skill.eq(row.is_skill),
                documents::tags.eq(&row.tags),
                documents::project_id.eq(&row.project_id),
                documents::folder_id.eq(&row.folder_id),
            ),
            (
                documents::parent_id.eq(&row.parent_id),
                documents::current_version.eq(row.current_version),
                documents::content_hash.eq(&row.content_hash),
                documents::indexing.eq(&row.indexing),
                documents::unread.eq(row.unread),
                documents::due_ms.eq(row.due_ms),
                documents::language.eq(&row.language),
                documents::version.eq(row.version),
                documents::edited_ms.eq(row.edited_ms),
            ),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Notes that a client wrote the summary of a document, or that it is to be made from the text.
pub(crate) async fn note_summary(conn: &mut Conn, account: &AccountId, id: &str, by_client: bool) -> Result<()> {
    let of = documents::summary_of.eq(by_client.then_some(BY_CLIENT));
    diesel::update(by_id(account.as_str(), id)).set(of).execute(conn).await?;
    Ok(())
}

/// What the index holds of a document, as far as that is another now.
#[derive(Default, AsChangeset)]
#[diesel(table_name = documents)]
pub(crate) struct Indexed {
    pub language: Option<&'static str>,
    pub piece_count: Option<i32>,
    pub index_id: Option<String>,
}

/// How many pieces of a document are in the index.
pub(crate) async fn piece_count(conn: &Conn, account: &AccountId, id: &str) -> Result<i32> {
    let mut conn = conn;
    let count = by_id(account.as_str(), id).select(documents::piece_count).first(&mut conn).await.optional()?;
    Ok(count.unwrap_or_default())
}

/// Stores how far the index of a document is, and what it holds; nothing else of it changes. To be called once in a
/// transaction: PostgreSQL looks again for the parent of a row that is changed a second time, and whoever deletes both
/// holds that.
pub(crate) async fn note_indexing(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    status: &str,
    indexing: &Indexing,
    due: Option<Timestamp>,
    indexed: Indexed,
) -> Result<()> {
    let indexing = serde_json::to_value(indexing).map_err(Error::internal)?;
    let due = documents::due_ms.eq(due.map(|due| due.0));
    let noted = (documents::status.eq(status), documents::indexing.eq(indexing), due, indexed);
    diesel::update(by_id(account.as_str(), id)).set(noted).execute(conn).await?;
    Ok(())
}

/// The same of one whose index is up to date; `embedded_by`: the model of its vectors.
pub(crate) async fn note_ready(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    indexing: &Indexing,
    indexed: Indexed,
    embedded_by: Option<&str>,
) -> Result<()> {
    let indexing = serde_json::to_value(indexing).map_err(Error::internal)?;
    let is = (documents::status.eq("ready"), documents::indexing.eq(indexing), documents::due_ms.eq(None::<i64>));
    // Nothing sums up a text that was emptied; what a client wrote stays.
    let is_left = || documents::size.eq(0).and(documents::summary_of.is_distinct_from(BY_CLIENT));
    let summary = (
        documents::summary.eq(case_when(is_left(), "".into_sql::<Text>()).otherwise(documents::summary)),
        documents::summary_of
            .eq(case_when(is_left(), None::<String>.into_sql::<Nullable<Text>>()).otherwise(documents::summary_of)),
    );
    let of = by_id(account.as_str(), id);
    diesel::update(of).set((is, indexed, documents::embedded_by.eq(embedded_by), summary)).execute(conn).await?;
    Ok(())
}

/// The text that a document has now.
pub(crate) async fn text(conn: &Conn, account: &AccountId, id: &str, hash: &str) -> Result<Option<String>> {
    let mut conn = conn;
    let text = document_texts::table.find((account.as_str(), id, hash)).select(document_texts::markdown);
    Ok(text.first(&mut conn).await.optional()?)
}

pub(crate) type Listed<'a> = documents::BoxedQuery<'a, Pg>;

pub(crate) fn listed<'a>(account: &'a AccountId, filter: &'a DocumentFilter) -> Listed<'a> {
    let mut found = documents::table.filter(documents::account_id.eq(account.as_str())).into_boxed();
    if let Some(project) = &filter.project_id {
        found = found.filter(documents::project_id.eq(project));
    }
    if let Some(within) = &filter.within {
        found = found.filter(documents::project_id.is_null().or(documents::project_id.eq_any(within)));
    }
    if let Some(status) = &filter.status {
        found = found.filter(documents::status.eq(status));
    }
    if let Some(file_type) = &filter.file_type {
        found = found.filter(documents::file_type.eq(file_type));
    }
    if let Some(search) = &filter.search {
        let pattern = containing(search);
        found = found.filter(documents::name.ilike(pattern.clone()).or(documents::summary.ilike(pattern)));
    }
    match filter.folder_id.as_deref() {
        Some("none") => found = found.filter(documents::folder_id.is_null()),
        Some(folder) => found = found.filter(documents::folder_id.eq(folder)),
        None => {}
    }
    if filter.parent_only == Some(true) {
        found = found.filter(documents::parent_id.is_null());
    }
    if let Some(is_skill) = filter.is_skill {
        found = found.filter(documents::is_skill.eq(is_skill));
    }
    let tags = filter.tags();
    if !tags.is_empty() {
        found = found.filter(sql::<Bool>("documents.tags ?| ").bind::<Array<Text>, _>(tags));
    }
    found
}

/// A page of those that the filter keeps, newest first, and how many there are; with their texts as many as a list holds.
pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    filter: &DocumentFilter,
    page: Page,
) -> Result<(Vec<(DocumentRow, Option<String>)>, i64, Page)> {
    let (mut first, mut second) = (conn, conn);
    let newest_first = (documents::created_ms.desc(), documents::id.desc());
    let of = || listed(account, filter).order(newest_first);
    let sizes = of().limit(page.limit).offset(page.offset).select(documents::size);
    let total = listed(account, filter).count();
    let (sizes, total) = futures_util::try_join!(sizes.load::<i64>(&mut first), total.get_result(&mut second))?;
    let with_text = filter.include_content == Some(true);
    let page = if with_text { page.fitting(&sizes) } else { page };
    let text = if with_text {
        "(SELECT markdown FROM document_texts t WHERE t.account_id = documents.account_id \
         AND t.document_id = documents.id AND t.content_hash = documents.content_hash)"
    } else {
        "NULL"
    };
    let rows = of().limit(page.limit).offset(page.offset);
    let rows = rows.select((DocumentRow::as_select(), sql::<Nullable<Text>>(text))).load(&mut first).await?;
    Ok((rows, total, page))
}

/// Those that are parts of a document, directly, oldest first.
pub(crate) async fn below(
    conn: &Conn,
    account: &AccountId,
    id: &str,
    within: Option<&[String]>,
) -> Result<Vec<DocumentRow>> {
    let mut conn = conn;
    let below = documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::parent_id.eq(id)));
    let mut below = below.into_boxed();
    if let Some(within) = within {
        below = below.filter(documents::project_id.is_null().or(documents::project_id.eq_any(within)));
    }
    let below = below.order((documents::created_ms, documents::id)).limit(1000).select(DocumentRow::as_select());
    Ok(below.load(&mut conn).await?)
}

/// Ids of a document and of all that are parts of it, in any depth.
pub(crate) async fn tree(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Vec<String>> {
    #[derive(QueryableByName)]
    struct Found {
        #[diesel(sql_type = Text)]
        id: String,
    }
    let tree = "WITH RECURSIVE tree AS (\
            SELECT id FROM documents WHERE account_id = $1 AND id = $2 \
            UNION SELECT d.id FROM documents d JOIN tree ON d.parent_id = tree.id WHERE d.account_id = $1) \
        SELECT id FROM tree";
    let tree = diesel::sql_query(tree).bind::<Text, _>(account.as_str()).bind::<Text, _>(id);
    Ok(tree.load::<Found>(conn).await?.into_iter().map(|found| found.id).collect())
}

/// `PROJECT_FORBIDDEN` when one of these documents is in a project that is not `within`.
pub(crate) async fn check_within(
    conn: &mut Conn,
    account: &AccountId,
    ids: &[String],
    within: Option<&[String]>,
) -> Result<()> {
    let Some(within) = within else { return Ok(()) };
    let of = documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)));
    let is_outside = documents::project_id.is_not_null().and(documents::project_id.ne_all(within).assume_not_null());
    let outside = of.filter(is_outside).select(documents::id);
    match outside.first::<String>(conn).await.optional()? {
        Some(_) => Err(Error::new(
            platform_access::code::PROJECT_FORBIDDEN,
            "Parts of this are in projects in which you may change nothing.",
        )),
        None => Ok(()),
    }
}

/// Deletes documents with all that is theirs.
pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, ids: &[String]) -> Result<()> {
    let of = || documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(ids)));
    // Parts and wholes go in one statement, whatever their order.
    diesel::update(of()).set(documents::parent_id.eq(None::<String>)).execute(conn).await?;
    diesel::delete(of()).execute(conn).await?;
    Ok(())
}

/// A page of the pieces of a document, and how many there are.
pub(crate) async fn chunks(conn: &Conn, account: &AccountId, id: &str, page: Page) -> Result<(Vec<ListedChunk>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let of = || chunks::table.filter(chunks::account_id.eq(account.as_str()).and(chunks::document_id.eq(id)));
    type Row = (String, i32, String, Value, i32);
    let rows = of().order(chunks::position).limit(page.limit).offset(page.offset).select((
        chunks::id,
        chunks::position,
        chunks::text,
        chunks::heading_path,
        chunks::token_count,
    ));
    let total = of().count();
    let (rows, total) = futures_util::try_join!(rows.load::<Row>(&mut first), total.get_result(&mut second))?;
    let chunks = rows.into_iter().map(|(chunk_id, index, text, heading_path, token_count)| {
        let heading_path = serde_json::from_value(heading_path).map_err(Error::internal)?;
        Ok(ListedChunk { chunk_id, index, text, heading_path, token_count })
    });
    Ok((chunks.collect::<Result<_>>()?, total))
}

/// How many documents are in a project.
pub(crate) async fn count(conn: &Conn, account: &AccountId, project: &str) -> Result<i64> {
    let mut conn = conn;
    let of = documents::table.filter(documents::account_id.eq(account.as_str()));
    Ok(of.filter(documents::project_id.eq(project)).select(sql::<BigInt>("count(*)")).first(&mut conn).await?)
}

/// Of these documents, and of those in these folders, as many as a turn looks at; newest first.
pub(crate) async fn attached(
    conn: &Conn,
    account: &AccountId,
    ids: &[String],
    folders: &[String],
) -> Result<Vec<DocumentRow>> {
    const MOST: i64 = 10_000;
    let mut conn = conn;
    let attached = documents::table
        .filter(documents::account_id.eq(account.as_str()))
        .filter(documents::id.eq_any(ids).or(documents::folder_id.eq_any(folders)))
        .order((documents::created_ms.desc(), documents::id.desc()))
        .limit(MOST)
        .select(DocumentRow::as_select());
    Ok(attached.load(&mut conn).await?)
}
