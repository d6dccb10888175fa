use std::collections::HashMap;

use diesel::{
    prelude::*,
    sql_types::{BigInt, Text},
};
use diesel_async::RunQueryDsl;
use futures_util::TryStreamExt;
use platform_core::{AccountId, Result, Timestamp};
use platform_db::Conn;

use super::archive::hashes;
use crate::{environment::repository::stored_for, schema::sandbox_snapshots};

#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = sandbox_snapshots)]
pub(crate) struct SnapshotRow {
    pub account_id: String,
    pub id: String,
    pub environment_id: String,
    pub tenant_id: Option<String>,
    pub status: String,
    pub is_current: bool,
    pub size_bytes: i64,
    pub runtime: String,
    pub memory_mib: i32,
    pub source_sandbox_id: Option<String>,
    pub generation: i32,
    pub error: Option<String>,
    pub owner: String,
    pub created_ms: i64,
    pub edited_ms: i64,
}

use sandbox_snapshots as s;

/// Longest making of a snapshot.
const MAX_MS: i64 = 30 * 60 * 1000;

#[diesel::dsl::auto_type(no_type_alias)]
fn of<'a>(account: &'a str, environment: &'a str) -> _ {
    s::table.filter(s::account_id.eq(account)).filter(s::environment_id.eq(environment))
}

/// Snapshots of one account begin, and pieces of them are removed, one after the other.
pub(crate) async fn lock_pieces(conn: &mut Conn, account: &AccountId) -> Result<()> {
    let lock = diesel::sql_query("SELECT pg_advisory_xact_lock(hashtext('snapshot pieces'), hashtext($1))");
    lock.bind::<Text, _>(account.as_str()).execute(conn).await?;
    Ok(())
}

/// The snapshots that new machines of these environments start from, those of tenants aside.
pub(crate) async fn currents(
    conn: &mut Conn,
    account: &AccountId,
    environments: &[String],
) -> Result<HashMap<String, String>> {
    let current = s::table
        .filter(s::account_id.eq(account.as_str()).and(s::environment_id.eq_any(environments)))
        .filter(s::tenant_id.is_null().and(s::is_current).and(s::status.eq("ready")))
        .select((s::environment_id, s::id));
    Ok(current.load::<(String, String)>(conn).await?.into_iter().collect())
}

/// The one that new machines begin with: the tenant's, else that of all.
pub(crate) async fn current(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    tenant: Option<&str>,
) -> Result<Option<SnapshotRow>> {
    let current = of(account.as_str(), environment).filter(s::is_current);
    let known = current.filter(s::tenant_id.is_null().or(s::tenant_id.eq(tenant)));
    let known = known.order(s::tenant_id.asc().nulls_last()).select(SnapshotRow::as_select());
    Ok(known.first(conn).await.optional()?)
}

/// Whether one of this lane is being saved.
pub(crate) async fn is_saving(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    tenant: Option<&str>,
) -> Result<bool> {
    let creating = of(account.as_str(), environment).filter(s::status.eq("creating"));
    let creating = creating.filter(s::tenant_id.is_not_distinct_from(tenant));
    Ok(diesel::select(diesel::dsl::exists(creating)).get_result(conn).await?)
}

/// Whether there was room for it: another one of its lane may be being saved. It takes the place of one that failed.
pub(crate) async fn insert(conn: &mut Conn, row: &SnapshotRow) -> Result<bool> {
    let lane = of(&row.account_id, &row.environment_id).filter(s::tenant_id.is_not_distinct_from(&row.tenant_id));
    diesel::delete(lane.filter(s::status.eq("failed"))).execute(conn).await?;
    let inserted = diesel::insert_into(s::table).values(row).on_conflict_do_nothing().execute(conn).await;
    Ok(stored_for(&row.environment_id, inserted)? > 0)
}

pub(crate) async fn next_generation(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    tenant: Option<&str>,
) -> Result<i32> {
    let of = of(account.as_str(), environment).filter(s::tenant_id.is_not_distinct_from(tenant));
    let last = of.select(diesel::dsl::max(s::generation)).first::<Option<i32>>(conn).await?;
    Ok(last.unwrap_or(0) + 1)
}

pub(crate) async fn list(conn: &mut Conn, account: &AccountId, environment: &str) -> Result<Vec<SnapshotRow>> {
    let rows = of(account.as_str(), environment).order((s::created_ms.desc(), s::id.desc())).limit(1000);
    Ok(rows.select(SnapshotRow::as_select()).load(conn).await?)
}

/// Hashes of its pieces, one after the other.
pub(crate) async fn pieces(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<Vec<u8>>> {
    let row = s::table.filter(s::account_id.eq(account.as_str()).and(s::id.eq(id)).and(s::status.eq("ready")));
    Ok(row.select(s::pieces).first(conn).await.optional()?)
}

/// Those of the snapshots that one is likely to share some with: of its lane, and of all tenants.
pub(crate) async fn pieces_near(conn: &mut Conn, row: &SnapshotRow) -> Result<Vec<Vec<u8>>> {
    let near = of(&row.account_id, &row.environment_id).filter(s::status.eq("ready"));
    let near = near.filter(s::tenant_id.is_null().or(s::tenant_id.is_not_distinct_from(&row.tenant_id)));
    Ok(near.select(s::pieces).load(conn).await?)
}

/// Leaves of some pieces, by hash, those that no snapshot of their account names; `since`: of those edited since then.
pub(crate) async fn without_named(
    conn: &mut Conn,
    account: &AccountId,
    since: Timestamp,
    pieces: &mut HashMap<String, String>,
) -> Result<()> {
    let named = s::table.filter(s::account_id.eq(account.as_str()).and(s::status.eq("ready")));
    let named = named.filter(s::edited_ms.ge(since.0)).select(s::pieces);
    let mut named = named.load_stream::<Vec<u8>>(conn).await?;
    while let Some(named) = named.try_next().await? {
        for hash in hashes(&named) {
            pieces.remove(&hash);
        }
    }
    Ok(())
}

/// Whether any snapshot of an account is being saved.
pub(crate) async fn is_any_saving(conn: &mut Conn, account: &AccountId) -> Result<bool> {
    let creating = s::table.filter(s::account_id.eq(account.as_str()).and(s::status.eq("creating")));
    Ok(diesel::select(diesel::dsl::exists(creating)).get_result(conn).await?)
}

/// Makes it the current one of its lane; the one that was it until now is kept, the others go. `false` = it is gone.
pub(crate) async fn make_current(conn: &mut Conn, row: &SnapshotRow, now: Timestamp) -> Result<bool> {
    let tenant = row.tenant_id.as_deref();
    let lane = of(&row.account_id, &row.environment_id).filter(s::tenant_id.is_not_distinct_from(tenant));
    let unset = diesel::update(lane.filter(s::is_current)).set(s::is_current.eq(false)).returning(s::id);
    let former: Vec<String> = unset.get_results(conn).await?;
    let own = of(&row.account_id, &row.environment_id).filter(s::id.eq(&row.id));
    let made = diesel::update(own).set((s::is_current.eq(true), s::edited_ms.eq(now.0))).execute(conn).await?;
    let old = lane.filter(s::status.eq("ready").and(s::is_current.eq(false)).and(s::id.ne_all(former)));
    diesel::delete(old).execute(conn).await?;
    Ok(made > 0)
}

/// It is whole.
pub(crate) async fn set_ready(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    size: i64,
    pieces: Vec<u8>,
) -> Result<bool> {
    let own = s::table.filter(s::account_id.eq(account.as_str()).and(s::id.eq(id)).and(s::status.eq("creating")));
    let ready = (s::status.eq("ready"), s::size_bytes.eq(size), s::pieces.eq(pieces));
    Ok(diesel::update(own).set(ready).execute(conn).await? > 0)
}

/// What has become of a snapshot.
pub(crate) async fn status(conn: &mut Conn, row: &SnapshotRow) -> Result<Option<String>> {
    let own = s::table.filter(s::account_id.eq(&row.account_id).and(s::id.eq(&row.id)));
    Ok(own.select(s::status).first(conn).await.optional()?)
}

/// It has failed, if it is still its process's to make.
pub(crate) async fn set_failed(conn: &mut Conn, row: &SnapshotRow, error: &str, now: Timestamp) -> Result<()> {
    let own = s::table.filter(s::account_id.eq(&row.account_id).and(s::id.eq(&row.id)).and(s::owner.eq(&row.owner)));
    let own = own.filter(s::status.eq("creating"));
    let failed = (s::status.eq("failed"), s::error.eq(error), s::edited_ms.eq(now.0));
    diesel::update(own).set(failed).execute(conn).await?;
    Ok(())
}

/// What was being saved of a machine that is gone has failed; ids of machines are those of no other account.
pub(crate) async fn fail_of(conn: &mut Conn, sandbox: &str, now: Timestamp) -> Result<()> {
    let own = s::table.filter(s::source_sandbox_id.eq(sandbox).and(s::status.eq("creating")));
    let error = "Its machine ended before it was saved.";
    let failed = (s::status.eq("failed"), s::error.eq(error), s::edited_ms.eq(now.0));
    diesel::update(own).set(failed).execute(conn).await?;
    Ok(())
}

/// Notes of which machine it is.
pub(crate) async fn set_source(conn: &mut Conn, account: &AccountId, id: &str, sandbox: &str) -> Result<()> {
    let own = s::table.filter(s::account_id.eq(account.as_str()).and(s::id.eq(id)));
    diesel::update(own).set(s::source_sandbox_id.eq(sandbox)).execute(conn).await?;
    Ok(())
}

/// What was saved last of a machine, or is being.
pub(crate) async fn of_sandbox(conn: &mut Conn, account: &AccountId, sandbox: &str) -> Result<Option<SnapshotRow>> {
    let own = s::table.filter(s::account_id.eq(account.as_str()).and(s::source_sandbox_id.eq(sandbox)));
    Ok(own.order(s::created_ms.desc()).select(SnapshotRow::as_select()).first(conn).await.optional()?)
}

/// What was being made of a new machine that is gone waits for one who makes it.
pub(crate) async fn leave_unmade(conn: &mut Conn, account: &AccountId, id: &str, now: Timestamp) -> Result<()> {
    let own = s::table.filter(s::account_id.eq(account.as_str()).and(s::id.eq(id)).and(s::status.eq("creating")));
    let own = own.filter(s::created_ms.gt(now.0 - MAX_MS));
    let nobodys = (s::source_sandbox_id.eq(None::<String>), s::owner.eq(""));
    diesel::update(own).set(nobodys).execute(conn).await?;
    Ok(())
}

/// Snapshots that are to be made of new machines, and that nobody makes, of all accounts: they are this process's now.
pub(crate) async fn take_unmade(conn: &mut Conn, owner: &str, now: Timestamp) -> Result<Vec<SnapshotRow>> {
    // Whoever makes one says within this of which machine.
    const SAID_MS: i64 = 2 * 60 * 1000;
    let unmade = s::table.filter(s::status.eq("creating").and(s::source_sandbox_id.is_null()));
    let unmade = unmade.filter(s::created_ms.gt(now.0 - MAX_MS));
    let unmade = unmade.filter(s::owner.eq("").or(s::edited_ms.lt(now.0 - SAID_MS)));
    let taken = diesel::update(unmade).set((s::owner.eq(owner), s::edited_ms.eq(now.0)));
    Ok(taken.returning(SnapshotRow::as_returning()).get_results(conn).await?)
}

/// What is being saved for longer than anything is, and by no machine that is there, has failed, of all accounts.
pub(crate) async fn fail_forgotten(conn: &mut Conn, now: Timestamp) -> Result<()> {
    let fail = diesel::sql_query(
        "UPDATE sandbox_snapshots s SET status = 'failed', error = 'It was never finished.', edited_ms = $1 \
         WHERE s.status = 'creating' AND s.created_ms < $2 AND NOT EXISTS (SELECT FROM sandbox_sessions l \
             WHERE l.sandbox_id = s.source_sandbox_id AND l.status IN ('pending', 'creating', 'running', 'stopping'))",
    );
    fail.bind::<BigInt, _>(now.0).bind::<BigInt, _>(now.0 - MAX_MS).execute(conn).await?;
    Ok(())
}

/// The one before the current one of a lane.
pub(crate) async fn former(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    tenant: Option<&str>,
) -> Result<Option<SnapshotRow>> {
    let lane = of(account.as_str(), environment).filter(s::tenant_id.is_not_distinct_from(tenant));
    let ready = lane.filter(s::status.eq("ready").and(s::is_current.eq(false))).order(s::generation.desc());
    Ok(ready.select(SnapshotRow::as_select()).first(conn).await.optional()?)
}

/// Deletes those of a tenant; how many there were.
pub(crate) async fn delete_of_tenant(
    conn: &mut Conn,
    account: &AccountId,
    environment: &str,
    tenant: &str,
) -> Result<usize> {
    let own = of(account.as_str(), environment).filter(s::tenant_id.eq(tenant).and(s::status.ne("creating")));
    Ok(diesel::delete(own).execute(conn).await?)
}

/// Forgets the snapshots of a tenant in all environments, also one that is being made.
pub(crate) async fn forget_tenant(conn: &mut Conn, account: &AccountId, tenant: &str) -> Result<()> {
    let own = s::table.filter(s::account_id.eq(account.as_str()).and(s::tenant_id.eq(tenant)));
    diesel::delete(own).execute(conn).await?;
    Ok(())
}
