use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Page, Result, Timestamp};
use platform_db::Conn;

use super::model::{SessionFilter, TenantSession};
use crate::{
    key::repository::KeyRow,
    schema::{api_keys, tenant_sessions},
};

/// Sessions that have ended are known so long.
const KEEP_MS: i64 = 7 * 86_400_000;

#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = tenant_sessions)]
pub(crate) struct SessionRow {
    pub id: String,
    pub account_id: String,
    pub tenant_id: String,
    pub subtenant_id: Option<String>,
    pub api_key_id: String,
    pub assistant_ids: Option<Vec<String>>,
    pub created_ms: i64,
    pub expires_ms: i64,
    pub revoked_ms: Option<i64>,
    pub key_digest: Option<String>,
    pub user_id: Option<String>,
    pub grant_id: Option<String>,
}

impl From<SessionRow> for TenantSession {
    fn from(row: SessionRow) -> Self {
        Self {
            session_id: row.id,
            tenant_id: row.tenant_id,
            subtenant_id: row.subtenant_id,
            api_key_id: row.api_key_id,
            assistant_ids: row.assistant_ids,
            creation_timestamp_ms: Timestamp(row.created_ms),
            expires_at: Timestamp(row.expires_ms),
            revoked_timestamp_ms: row.revoked_ms.map(Timestamp),
        }
    }
}

pub(crate) async fn insert(conn: &mut Conn, session: &SessionRow) -> Result<()> {
    diesel::insert_into(tenant_sessions::table).values(session).execute(conn).await?;
    Ok(())
}

/// A session and the key that minted it, if that is still there.
pub(crate) async fn find(
    conn: &mut &Conn,
    account: &AccountId,
    id: &str,
) -> Result<Option<(SessionRow, Option<KeyRow>)>> {
    let session = tenant_sessions::table
        .left_join(api_keys::table.on(api_keys::id.eq(tenant_sessions::api_key_id)))
        .filter(tenant_sessions::account_id.eq(account.as_str()).and(tenant_sessions::id.eq(id)))
        .select((SessionRow::as_select(), Option::<KeyRow>::as_select()));
    Ok(session.first(conn).await.optional()?)
}

pub(crate) async fn list(
    conn: &mut Conn,
    account: &AccountId,
    filter: &SessionFilter,
    page: Page,
    now: Timestamp,
) -> Result<(Vec<SessionRow>, i64)> {
    let sessions = || {
        let mut sessions = tenant_sessions::table.filter(tenant_sessions::account_id.eq(account.as_str())).into_boxed();
        if let Some(tenant) = &filter.tenant_id {
            sessions = sessions.filter(tenant_sessions::tenant_id.eq(tenant.clone()));
        }
        if let Some(subtenant) = &filter.subtenant_id {
            sessions = sessions.filter(tenant_sessions::subtenant_id.eq(subtenant.clone()));
        }
        if filter.active != Some(false) {
            let works = tenant_sessions::revoked_ms.is_null().and(tenant_sessions::expires_ms.gt(now.0));
            sessions = sessions.filter(works);
        }
        sessions
    };
    let total = sessions().count().get_result(conn).await?;
    let rows = sessions()
        .order((tenant_sessions::created_ms.desc(), tenant_sessions::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(SessionRow::as_select())
        .load(conn)
        .await?;
    Ok((rows, total))
}

/// `None` when there is no such session.
pub(crate) async fn revoke(conn: &mut Conn, account: &AccountId, id: &str, now: Timestamp) -> Result<Option<()>> {
    let session = tenant_sessions::account_id.eq(account.as_str()).and(tenant_sessions::id.eq(id));
    let first = diesel::dsl::sql::<diesel::sql_types::Nullable<diesel::sql_types::BigInt>>("coalesce(revoked_ms, ")
        .bind::<diesel::sql_types::BigInt, _>(now.0)
        .sql(")");
    let revoked = diesel::update(tenant_sessions::table.filter(session)).set(tenant_sessions::revoked_ms.eq(first));
    Ok((revoked.execute(conn).await? == 1).then_some(()))
}

/// Ends, in the caller's transaction, all that work now, of a tenant or of one of its end users; how many there were.
pub async fn revoke_all(
    conn: &mut Conn,
    account: &AccountId,
    tenant: &str,
    subtenant: Option<&str>,
    now: Timestamp,
) -> Result<usize> {
    let of_tenant = tenant_sessions::account_id.eq(account.as_str()).and(tenant_sessions::tenant_id.eq(tenant));
    let works = tenant_sessions::revoked_ms.is_null().and(tenant_sessions::expires_ms.gt(now.0));
    let revoked = tenant_sessions::revoked_ms.eq(now.0);
    Ok(match subtenant {
        Some(subtenant) => {
            let of = of_tenant.and(works).and(tenant_sessions::subtenant_id.eq(subtenant));
            diesel::update(tenant_sessions::table.filter(of)).set(revoked).execute(conn).await?
        }
        None => {
            let of = of_tenant.and(works);
            diesel::update(tenant_sessions::table.filter(of)).set(revoked).execute(conn).await?
        }
    })
}

/// All that a key minted and that work now.
pub(crate) async fn revoke_of_key(conn: &mut Conn, account: &AccountId, key: &str, now: Timestamp) -> Result<()> {
    let of_key = tenant_sessions::account_id.eq(account.as_str()).and(tenant_sessions::api_key_id.eq(key));
    let works = tenant_sessions::revoked_ms.is_null().and(tenant_sessions::expires_ms.gt(now.0));
    diesel::update(tenant_sessions::table.filter(of_key.and(works)))
        .set(tenant_sessions::revoked_ms.eq(now.0))
        .execute(conn)
        .await?;
    Ok(())
}

/// All that a value of a key minted and that work now end with it.
pub(crate) async fn end_of_value(
    conn: &mut Conn,
    account: &AccountId,
    digest: &str,
    until: Timestamp,
    now: Timestamp,
) -> Result<()> {
    let of_value = tenant_sessions::account_id.eq(account.as_str()).and(tenant_sessions::key_digest.eq(digest));
    let works = tenant_sessions::revoked_ms.is_null().and(tenant_sessions::expires_ms.gt(now.0));
    let ends = diesel::dsl::sql::<diesel::sql_types::BigInt>("least(expires_ms, ")
        .bind::<diesel::sql_types::BigInt, _>(until.0)
        .sql(")");
    diesel::update(tenant_sessions::table.filter(of_value.and(works)))
        .set((tenant_sessions::expires_ms.eq(ends), tenant_sessions::revoked_ms.eq((until <= now).then_some(now.0))))
        .execute(conn)
        .await?;
    Ok(())
}

/// All that were minted for a user, or by keys of theirs, and that work now.
pub(crate) async fn revoke_of_user(conn: &mut Conn, account: &AccountId, user: &str, now: Timestamp) -> Result<()> {
    let keys = api_keys::table
        .filter(api_keys::account_id.eq(account.as_str()).and(api_keys::user_id.eq(user)))
        .select(api_keys::id);
    let of_user = tenant_sessions::user_id.eq(user).assume_not_null().or(tenant_sessions::api_key_id.eq_any(keys));
    let works = tenant_sessions::revoked_ms.is_null().and(tenant_sessions::expires_ms.gt(now.0));
    let of_account = tenant_sessions::account_id.eq(account.as_str());
    diesel::update(tenant_sessions::table.filter(of_account.and(of_user).and(works)))
        .set(tenant_sessions::revoked_ms.eq(now.0))
        .execute(conn)
        .await?;
    Ok(())
}

/// Forgets sessions that ended seven days ago.
pub async fn purge(conn: &mut Conn, now: Timestamp) -> Result<usize> {
    let old = tenant_sessions::expires_ms.lt(now.0 - KEEP_MS);
    Ok(diesel::delete(tenant_sessions::table.filter(old)).execute(conn).await?)
}
