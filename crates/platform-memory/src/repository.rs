use diesel::{dsl::sql, prelude::*, sql_types::Text};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result, Timestamp};
use platform_db::Conn;
use platform_runtime::MemoryBucket;

use crate::{
    entry::{EntryPatch, MemoryEntry},
    schema::{memory_buckets, memory_entries},
};

#[derive(Queryable, Selectable)]
#[diesel(table_name = memory_entries)]
struct EntryRow {
    id: i64,
    section: String,
    content: String,
    source: String,
    pinned: bool,
    read_only: bool,
    supersedes: Option<i64>,
    archived_ms: Option<i64>,
    created_ms: i64,
    edited_ms: i64,
}

impl From<EntryRow> for MemoryEntry {
    fn from(row: EntryRow) -> Self {
        Self {
            id: row.id,
            section: row.section,
            content: row.content,
            source: row.source,
            pinned: row.pinned,
            read_only: row.read_only,
            supersedes: row.supersedes,
            archived_at: row.archived_ms.map(|at| Timestamp(at).to_iso()),
            created_at: Timestamp(row.created_ms).to_iso(),
            updated_at: Timestamp(row.edited_ms).to_iso(),
        }
    }
}

/// The end user of a bucket as it is stored: none is empty.
fn end_user(bucket: &MemoryBucket) -> &str {
    bucket.subtenant_id.as_deref().unwrap_or_default()
}

#[diesel::dsl::auto_type(no_type_alias)]
fn entries_of<'a>(account: &'a str, bucket: &'a MemoryBucket) -> _ {
    let (tenant, user): (&'a str, &'a str) = (bucket.tenant_id.as_str(), end_user(bucket));
    let assistant: &'a str = bucket.assistant_id.as_str();
    memory_entries::table
        .filter(memory_entries::account_id.eq(account))
        .filter(memory_entries::tenant_id.eq(tenant))
        .filter(memory_entries::subtenant_id.eq(user))
        .filter(memory_entries::assistant_id.eq(assistant))
}

/// Entries of a bucket, in their order: pinned ones first, then by section, then by id.
pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    bucket: &MemoryBucket,
    with_archived: bool,
) -> Result<Vec<MemoryEntry>> {
    let mut conn = conn;
    // The same text of a prompt on every server, whatever its language.
    let by_section = sql::<Text>("section COLLATE \"C\"");
    let rows: Vec<EntryRow> = entries_of(account.as_str(), bucket)
        .filter(memory_entries::archived_ms.is_null().or(with_archived.into_sql::<diesel::sql_types::Bool>()))
        .order((memory_entries::pinned.desc(), by_section, memory_entries::id))
        .select(EntryRow::as_select())
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().map(MemoryEntry::from).collect())
}

/// An entry of a bucket, also one that was put aside.
pub(crate) async fn find(
    conn: &mut Conn,
    account: &AccountId,
    bucket: &MemoryBucket,
    id: i64,
) -> Result<Option<MemoryEntry>> {
    let found = entries_of(account.as_str(), bucket).filter(memory_entries::id.eq(id));
    let row: Option<EntryRow> = found.select(EntryRow::as_select()).first(conn).await.optional()?;
    Ok(row.map(MemoryEntry::from))
}

/// Makes a bucket that is not there.
pub(crate) async fn make(conn: &mut Conn, account: &AccountId, bucket: &MemoryBucket) -> Result<()> {
    let new = (
        memory_buckets::account_id.eq(account.as_str()),
        memory_buckets::tenant_id.eq(&bucket.tenant_id),
        memory_buckets::subtenant_id.eq(end_user(bucket)),
        memory_buckets::assistant_id.eq(&bucket.assistant_id),
        memory_buckets::last_id.eq(0),
    );
    diesel::insert_into(memory_buckets::table).values(new).on_conflict_do_nothing().execute(conn).await?;
    Ok(())
}

/// Locks a bucket; the last id that was given in it, 0 when it is not there.
pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, bucket: &MemoryBucket) -> Result<i64> {
    let key = (account.as_str(), &bucket.tenant_id, end_user(bucket), &bucket.assistant_id);
    let last = memory_buckets::table.find(key).select(memory_buckets::last_id).for_update();
    Ok(last.first(conn).await.optional()?.unwrap_or(0))
}

/// Writes an entry into a bucket that is locked.
pub(crate) async fn insert(
    conn: &mut Conn,
    account: &AccountId,
    bucket: &MemoryBucket,
    (id, entry): (i64, &EntryPatch),
    (source, supersedes): (&str, Option<i64>),
    now: Timestamp,
) -> Result<MemoryEntry> {
    let key = (account.as_str(), &bucket.tenant_id, end_user(bucket), &bucket.assistant_id);
    let count = memory_buckets::last_id.eq(id);
    diesel::update(memory_buckets::table.find(key)).set(count).execute(conn).await?;
    let row: EntryRow = diesel::insert_into(memory_entries::table)
        .values((
            memory_entries::account_id.eq(account.as_str()),
            memory_entries::tenant_id.eq(&bucket.tenant_id),
            memory_entries::subtenant_id.eq(end_user(bucket)),
            memory_entries::assistant_id.eq(&bucket.assistant_id),
            memory_entries::id.eq(id),
            memory_entries::section.eq(&entry.section),
            memory_entries::content.eq(&entry.content),
            memory_entries::source.eq(source),
            memory_entries::pinned.eq(entry.pinned),
            memory_entries::read_only.eq(entry.read_only),
            memory_entries::supersedes.eq(supersedes),
            memory_entries::created_ms.eq(now.0),
            memory_entries::edited_ms.eq(now.0),
        ))
        .returning(EntryRow::as_returning())
        .get_result(conn)
        .await?;
    Ok(row.into())
}

/// Changes where an entry stands.
pub(crate) async fn update(
    conn: &mut Conn,
    account: &AccountId,
    bucket: &MemoryBucket,
    (id, entry): (i64, &EntryPatch),
    now: Timestamp,
) -> Result<MemoryEntry> {
    let row: EntryRow = diesel::update(entries_of(account.as_str(), bucket).filter(memory_entries::id.eq(id)))
        .set((
            memory_entries::section.eq(&entry.section),
            memory_entries::pinned.eq(entry.pinned),
            memory_entries::read_only.eq(entry.read_only),
            memory_entries::edited_ms.eq(now.0),
        ))
        .returning(EntryRow::as_returning())
        .get_result(conn)
        .await?;
    Ok(row.into())
}

/// Puts an entry aside.
pub(crate) async fn archive(
    conn: &mut Conn,
    account: &AccountId,
    bucket: &MemoryBucket,
    id: i64,
    now: Timestamp,
) -> Result<()> {
    let at = (memory_entries::archived_ms.eq(now.0), memory_entries::edited_ms.eq(now.0));
    let of = entries_of(account.as_str(), bucket).filter(memory_entries::id.eq(id));
    diesel::update(of).set(at).execute(conn).await?;
    Ok(())
}

/// Entries that are put aside, beyond the newest so many, go.
pub(crate) async fn trim(conn: &mut Conn, account: &AccountId, bucket: &MemoryBucket, most: i64) -> Result<()> {
    let old: Vec<i64> = entries_of(account.as_str(), bucket)
        .filter(memory_entries::archived_ms.is_not_null())
        .order((memory_entries::archived_ms.desc(), memory_entries::id.desc()))
        .offset(most)
        .limit(100)
        .select(memory_entries::id)
        .load(conn)
        .await?;
    if !old.is_empty() {
        let of = entries_of(account.as_str(), bucket).filter(memory_entries::id.eq_any(old));
        diesel::delete(of).execute(conn).await?;
    }
    Ok(())
}

/// Forgets all that an assistant remembered.
pub(crate) async fn forget_assistant(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    let of = memory_buckets::account_id.eq(account.as_str()).and(memory_buckets::assistant_id.eq(id));
    diesel::delete(memory_buckets::table.filter(of)).execute(conn).await?;
    Ok(())
}

/// Forgets all of a tenant, or of one of its end users.
pub(crate) async fn forget(conn: &mut Conn, account: &AccountId, tenant: &str, user: Option<&str>) -> Result<()> {
    let mut of = diesel::delete(memory_entries::table)
        .filter(memory_entries::account_id.eq(account.as_str()).and(memory_entries::tenant_id.eq(tenant)))
        .into_boxed();
    if let Some(user) = user {
        of = of.filter(memory_entries::subtenant_id.eq(user));
    }
    of.execute(conn).await?;
    Ok(())
}
