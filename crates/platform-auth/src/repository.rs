use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Page, Result, Timestamp};
use platform_db::Conn;

use crate::{
    model::{AccountRecord, ApiKey, IdentityMode, KeyKind},
    schema::{accounts, api_keys},
};

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = api_keys)]
pub(crate) struct KeyRow {
    pub id: String,
    pub account_id: String,
    pub name: String,
    pub digest: String,
    pub old_digest: Option<String>,
    pub old_digest_until_ms: Option<i64>,
    pub prefix: String,
    pub last4: String,
    pub disabled: bool,
    pub expires_at_ms: Option<i64>,
    pub last_used_ms: Option<i64>,
    pub created_by: String,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl From<KeyRow> for ApiKey {
    fn from(row: KeyRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            kind: KeyKind::Full,
            identity_mode: IdentityMode::Open,
            prefix: row.prefix,
            last4: row.last4,
            allowed_domains: Vec::new(),
            allowed_endpoints: Vec::new(),
            preset: None,
            project_ids: None,
            disabled: row.disabled,
            creation_timestamp_ms: Timestamp(row.created_ms),
            last_edit_timestamp_ms: Timestamp(row.edited_ms),
            last_used_timestamp_ms: row.last_used_ms.map(Timestamp),
            expires_at_ms: row.expires_at_ms.map(Timestamp),
            created_by: row.created_by,
        }
    }
}

pub(crate) async fn insert_account(conn: &mut Conn, account: &AccountRecord, now: Timestamp) -> Result<bool> {
    let inserted = diesel::insert_into(accounts::table)
        .values((
            accounts::id.eq(account.id.as_str()),
            accounts::name.eq(&account.name),
            accounts::created_ms.eq(now.0),
            accounts::edited_ms.eq(now.0),
        ))
        .on_conflict(accounts::name)
        .do_nothing()
        .execute(conn)
        .await?;
    Ok(inserted == 1)
}

pub(crate) async fn list_accounts(conn: &mut Conn) -> Result<Vec<(String, String)>> {
    Ok(accounts::table.select((accounts::id, accounts::name)).order(accounts::created_ms).load(conn).await?)
}

pub(crate) async fn account_id(conn: &mut Conn, id_or_name: &str) -> Result<Option<String>> {
    let account = accounts::table.filter(accounts::id.eq(id_or_name).or(accounts::name.eq(id_or_name)));
    Ok(account.select(accounts::id).first(conn).await.optional()?)
}

pub(crate) async fn insert_key(conn: &mut Conn, key: &KeyRow) -> Result<bool> {
    let inserted =
        diesel::insert_into(api_keys::table).values(key).on_conflict(api_keys::digest).do_nothing().execute(conn);
    Ok(inserted.await? == 1)
}

/// By the digest of a credential: the only query that needs no account, since it finds it.
pub(crate) async fn key_by_digest(conn: &mut &Conn, digest: &str) -> Result<Option<KeyRow>> {
    let key = api_keys::table
        .filter(api_keys::digest.eq(digest).or(api_keys::old_digest.eq(digest)))
        .select(KeyRow::as_select());
    Ok(key.first(conn).await.optional()?)
}

pub(crate) async fn key(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<KeyRow>> {
    let key = api_keys::table
        .filter(api_keys::account_id.eq(account.as_str()).and(api_keys::id.eq(id)))
        .for_no_key_update()
        .select(KeyRow::as_select());
    Ok(key.first(conn).await.optional()?)
}

pub(crate) async fn list_keys(conn: &mut Conn, account: &AccountId, page: Page) -> Result<(Vec<KeyRow>, i64)> {
    let keys = api_keys::table.filter(api_keys::account_id.eq(account.as_str()));
    let total = keys.count().get_result(conn).await?;
    let rows = keys
        .order((api_keys::created_ms.desc(), api_keys::id.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(KeyRow::as_select())
        .load(conn)
        .await?;
    Ok((rows, total))
}

pub(crate) async fn update_key(conn: &mut Conn, account: &AccountId, key: &KeyRow) -> Result<()> {
    diesel::update(api_keys::table.filter(api_keys::account_id.eq(account.as_str()).and(api_keys::id.eq(&key.id))))
        .set((
            api_keys::name.eq(&key.name),
            api_keys::digest.eq(&key.digest),
            api_keys::old_digest.eq(&key.old_digest),
            api_keys::old_digest_until_ms.eq(key.old_digest_until_ms),
            api_keys::last4.eq(&key.last4),
            api_keys::disabled.eq(key.disabled),
            api_keys::expires_at_ms.eq(key.expires_at_ms),
            api_keys::edited_ms.eq(key.edited_ms),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

pub(crate) async fn delete_key(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    diesel::delete(api_keys::table.filter(api_keys::account_id.eq(account.as_str()).and(api_keys::id.eq(id))))
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether the account has another key that works, besides `id`. Locks the account's keys, so
/// that two requests cannot take the last two keys away together.
pub(crate) async fn has_other_key(conn: &mut Conn, account: &AccountId, id: &str, now: Timestamp) -> Result<bool> {
    let usable: Vec<(String, bool, Option<i64>)> = api_keys::table
        .filter(api_keys::account_id.eq(account.as_str()))
        .order(api_keys::id)
        .for_no_key_update()
        .select((api_keys::id, api_keys::disabled, api_keys::expires_at_ms))
        .load(conn)
        .await?;
    Ok(usable
        .iter()
        .any(|(other, disabled, expires)| other != id && !disabled && expires.is_none_or(|expires| expires > now.0)))
}

pub(crate) async fn touch_key(conn: &mut Conn, account: &AccountId, id: &str, now: Timestamp) -> Result<()> {
    diesel::update(api_keys::table.filter(api_keys::account_id.eq(account.as_str()).and(api_keys::id.eq(id))))
        .set(api_keys::last_used_ms.eq(now.0))
        .execute(conn)
        .await?;
    Ok(())
}
