use diesel::{
    dsl::{count_star, sql},
    pg::Pg,
    prelude::*,
    sql_types::BigInt,
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Owner, Page, Result, Timestamp};
use platform_db::{Conn, containing};

use crate::{
    model::{FileFilter, Usage},
    schema::files,
};

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = files)]
pub(crate) struct FileRow {
    pub account_id: String,
    pub id: String,
    pub name: String,
    pub file_type: String,
    pub mime_type: String,
    pub sha256: String,
    pub size: i64,
    pub token: String,
    pub kept_for: Option<String>,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub expires_ms: Option<i64>,
    pub created_ms: i64,
}

pub(crate) async fn insert(conn: &mut Conn, file: &FileRow) -> Result<()> {
    diesel::insert_into(files::table).values(file).execute(conn).await?;
    Ok(())
}

/// One that has not expired.
pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str, now: Timestamp) -> Result<Option<FileRow>> {
    let mut conn = conn;
    let file = files::table
        .find((account.as_str(), id))
        .filter(files::expires_ms.is_null().or(files::expires_ms.gt(now.0)))
        .select(FileRow::as_select());
    Ok(file.first(&mut conn).await.optional()?)
}

/// The same by its token, whose account it may be.
pub(crate) async fn find_by_token(conn: &Conn, token: &str, now: Timestamp) -> Result<Option<FileRow>> {
    let mut conn = conn;
    let file = files::table
        .filter(files::token.eq(token))
        .filter(files::expires_ms.is_null().or(files::expires_ms.gt(now.0)))
        .select(FileRow::as_select());
    Ok(file.first(&mut conn).await.optional()?)
}

/// A page of those that the filter keeps, newest first; and how many there are.
pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    filter: &FileFilter,
    now: Timestamp,
    page: Page,
) -> Result<(Vec<FileRow>, i64)> {
    let of = || {
        let mut of = files::table
            .filter(files::account_id.eq(account.as_str()))
            .filter(files::expires_ms.is_null().or(files::expires_ms.gt(now.0)))
            .into_boxed::<Pg>();
        if !filter.with_kept {
            of = of.filter(files::kept_for.is_null());
        }
        if let Some(search) = &filter.search {
            of = of.filter(files::name.ilike(containing(search)));
        }
        if let Some(file_type) = &filter.file_type {
            of = of.filter(files::file_type.eq(file_type));
        }
        if let Some(tenant) = &filter.tenant_id {
            of = of.filter(files::tenant_id.eq(tenant));
        }
        of
    };
    let (mut first, mut second) = (conn, conn);
    let rows = of()
        .order((files::created_ms.desc(), files::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(FileRow::as_select());
    let (rows, total) = futures_util::try_join!(rows.load(&mut first), of().count().get_result(&mut second))?;
    Ok((rows, total))
}

/// Whether there was one.
pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<bool> {
    Ok(diesel::delete(files::table.find((account.as_str(), id))).execute(conn).await? == 1)
}

/// Takes some of those that have expired; account and id of each.
pub(crate) async fn take_expired(conn: &mut Conn, now: Timestamp, most: i64) -> Result<Vec<(String, String)>> {
    let expired = files::table
        .filter(files::expires_ms.le(now.0))
        .order(files::expires_ms)
        .limit(most)
        .select((files::account_id, files::id));
    let expired: Vec<(String, String)> = expired.load(conn).await?;
    for (account, id) in &expired {
        diesel::delete(files::table.find((account, id))).execute(conn).await?;
    }
    Ok(expired)
}

/// Which of these ids are files of an account.
pub(crate) async fn known(conn: &mut Conn, account: &str, ids: &[String]) -> Result<Vec<String>> {
    Ok(files::table
        .filter(files::account_id.eq(account).and(files::id.eq_any(ids)))
        .select(files::id)
        .load(conn)
        .await?)
}

/// What the files of an end user have together, in bytes.
pub(crate) async fn bytes_of(conn: &Conn, account: &AccountId, owner: &Owner, now: Timestamp) -> Result<i64> {
    let mut conn = conn;
    let theirs = files::table
        .filter(files::account_id.eq(account.as_str()).and(files::tenant_id.eq(&owner.tenant_id)))
        .filter(files::subtenant_id.is_not_distinct_from(&owner.subtenant_id))
        .filter(files::expires_ms.is_null().or(files::expires_ms.gt(now.0)));
    Ok(theirs.select(sql::<BigInt>("coalesce(sum(size), 0)::bigint")).first(&mut conn).await?)
}

/// What the accounts use that use the most.
pub(crate) async fn usage(conn: &Conn, most: i64) -> Result<Vec<Usage>> {
    let mut conn = conn;
    let bytes = sql::<BigInt>("coalesce(sum(size), 0)::bigint");
    let rows: Vec<(String, i64, i64)> = files::table
        .group_by(files::account_id)
        .select((files::account_id, count_star(), bytes))
        .order(sql::<BigInt>("3 DESC"))
        .limit(most)
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().map(|(account, files, bytes)| Usage { account, files, bytes }).collect())
}
