use diesel::{
    prelude::*,
    sql_types::{BigInt, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Caller, Credential, Error, Origin, Page, Result, Timestamp};
use platform_db::Conn;
use serde_json::Value;

use super::model::{ApiKey, Endpoint, IdentityMode, KeyKind, NewApiKey, Preset};
use crate::{
    schema::{api_key_old_values, api_keys},
    service::stored_account,
};

/// An old value past its grace is known so long: it is told that it has ended.
const KEEP_MS: i64 = 7 * 86_400_000;

#[derive(Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = api_keys)]
pub(crate) struct KeyRow {
    pub id: String,
    pub account_id: String,
    pub name: String,
    pub digest: String,
    pub prefix: String,
    pub last4: String,
    pub disabled: bool,
    pub expires_at_ms: Option<i64>,
    pub last_used_ms: Option<i64>,
    pub created_by: String,
    pub created_ms: i64,
    pub edited_ms: i64,
    pub identity_mode: String,
    pub allowed_domains: Vec<String>,
    pub allowed_endpoints: Value,
    pub preset: Option<String>,
    pub project_ids: Option<Vec<String>>,
    pub user_id: Option<String>,
    /// The grant of that user with which an application made it, and that application; it ends with them.
    pub grant_id: Option<String>,
    pub client_id: Option<String>,
}

impl KeyRow {
    /// What its maker may change of it.
    pub fn settings(&self) -> Result<NewApiKey> {
        let endpoints: Vec<Endpoint> =
            serde_json::from_value(self.allowed_endpoints.clone()).map_err(Error::internal)?;
        Ok(NewApiKey {
            name: self.name.clone(),
            identity_mode: if self.identity_mode == "signed" { IdentityMode::Signed } else { IdentityMode::Open },
            expires_at_ms: self.expires_at_ms.map(Timestamp),
            disabled: self.disabled,
            allowed_domains: self.allowed_domains.clone(),
            allowed_endpoints: endpoints,
            preset: self.preset.as_ref().map(|_| Preset::Ui),
            project_ids: self.project_ids.clone(),
        })
    }

    /// Takes what its maker changed.
    pub fn set(&mut self, new: NewApiKey) -> Result<()> {
        let mode = if new.identity_mode == IdentityMode::Signed { "signed" } else { "open" };
        mode.clone_into(&mut self.identity_mode);
        self.name = new.name;
        self.disabled = new.disabled;
        self.expires_at_ms = new.expires_at_ms.map(|at| at.0);
        self.allowed_domains = new.allowed_domains;
        self.allowed_endpoints = serde_json::to_value(new.allowed_endpoints).map_err(Error::internal)?;
        self.preset = new.preset.map(|Preset::Ui| "ui".to_owned());
        self.project_ids = new.project_ids;
        Ok(())
    }

    /// Whoever shows it.
    pub fn into_caller(self, origin: Origin) -> Result<Caller> {
        let is_restricted = self.settings()?.rules().is_restricted();
        Ok(Caller {
            account: stored_account(&self.account_id)?,
            origin,
            user_uid: format!("apikey:{}", self.id),
            credential: if is_restricted { Credential::RestrictedKey(self.id) } else { Credential::FullKey(self.id) },
            projects: self.project_ids,
        })
    }

    pub fn into_key(self) -> Result<ApiKey> {
        let settings = self.settings()?;
        Ok(ApiKey {
            kind: if settings.rules().is_restricted() { KeyKind::Restricted } else { KeyKind::Full },
            id: self.id,
            name: settings.name,
            identity_mode: settings.identity_mode,
            prefix: self.prefix,
            last4: self.last4,
            allowed_domains: settings.allowed_domains,
            allowed_endpoints: settings.allowed_endpoints,
            preset: settings.preset,
            project_ids: settings.project_ids,
            disabled: self.disabled,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
            last_used_timestamp_ms: self.last_used_ms.map(Timestamp),
            expires_at_ms: settings.expires_at_ms,
            created_by: self.created_by,
        })
    }

    /// It works now.
    pub fn is_usable(&self, now: Timestamp) -> bool {
        !self.disabled && self.expires_at_ms.is_none_or(|expires| expires > now.0)
    }
}

pub(crate) async fn insert_key(conn: &mut Conn, key: &KeyRow) -> Result<bool> {
    let inserted =
        diesel::insert_into(api_keys::table).values(key).on_conflict(api_keys::digest).do_nothing().execute(conn);
    Ok(inserted.await? == 1)
}

/// By the digest of a credential, which needs no account since it finds it: the key, and when the value ends if it is an
/// old one.
pub(crate) async fn key_by_digest(conn: &mut &Conn, digest: &str) -> Result<Option<(KeyRow, Option<i64>)>> {
    let current = api_keys::table.filter(api_keys::digest.eq(digest)).select(KeyRow::as_select());
    if let Some(key) = current.first(conn).await.optional()? {
        return Ok(Some((key, None)));
    }
    let old = api_keys::table
        .inner_join(api_key_old_values::table.on(api_key_old_values::key_id.eq(api_keys::id)))
        .filter(api_key_old_values::digest.eq(digest))
        .select((KeyRow::as_select(), api_key_old_values::until_ms));
    let old: Option<(KeyRow, i64)> = old.first(conn).await.optional()?;
    Ok(old.map(|(key, until)| (key, Some(until))))
}

/// How long a value of a key works.
pub(crate) enum Works {
    /// As long as the key.
    WithKey,
    /// Until then: it was rotated out.
    Until(i64),
    /// It does no longer.
    NoLonger,
}

/// How long a value of a key works.
pub(crate) async fn value_works(conn: &mut &Conn, key: &KeyRow, digest: &str) -> Result<Works> {
    if key.digest == digest {
        return Ok(Works::WithKey);
    }
    let old = api_key_old_values::table.find(digest).select(api_key_old_values::until_ms);
    Ok(old.first(conn).await.optional()?.map_or(Works::NoLonger, Works::Until))
}

/// How many old values of a key still work.
pub(crate) async fn count_old_values(conn: &mut Conn, key: &str, now: Timestamp) -> Result<i64> {
    let works = api_key_old_values::key_id.eq(key).and(api_key_old_values::until_ms.gt(now.0));
    Ok(api_key_old_values::table.filter(works).count().get_result(conn).await?)
}

/// Keeps the value that a key had until the end of its grace.
pub(crate) async fn keep_old_value(conn: &mut Conn, key: &KeyRow, until: Timestamp) -> Result<()> {
    diesel::insert_into(api_key_old_values::table)
        .values((
            api_key_old_values::digest.eq(&key.digest),
            api_key_old_values::key_id.eq(&key.id),
            api_key_old_values::until_ms.eq(until.0),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Forgets old values past their grace.
pub async fn purge(conn: &mut Conn, now: Timestamp) -> Result<usize> {
    let over = api_key_old_values::until_ms.lt(now.0 - KEEP_MS);
    Ok(diesel::delete(api_key_old_values::table.filter(over)).execute(conn).await?)
}

pub(crate) async fn key(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<KeyRow>> {
    let key = api_keys::table
        .filter(api_keys::account_id.eq(account.as_str()).and(api_keys::id.eq(id)))
        .for_no_key_update()
        .select(KeyRow::as_select());
    Ok(key.first(conn).await.optional()?)
}

/// The same as it is at the moment.
pub(crate) async fn find(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<KeyRow>> {
    let key = api_keys::table.filter(api_keys::account_id.eq(account.as_str()).and(api_keys::id.eq(id)));
    Ok(key.select(KeyRow::as_select()).first(conn).await.optional()?)
}

/// Which keys that applications made.
pub(crate) enum OfApplications<'a> {
    Grant(&'a str),
    Client(&'a str),
    User(&'a str),
}

/// Switches off what applications made.
pub(crate) async fn disable_of_applications(conn: &mut Conn, of: OfApplications<'_>, now: Timestamp) -> Result<()> {
    let (column, id) = match of {
        OfApplications::Grant(id) => ("grant_id", id),
        OfApplications::Client(id) => ("client_id", id),
        OfApplications::User(id) => ("user_id", id),
    };
    // In one order, as everywhere.
    let disable = format!(
        "WITH held AS (SELECT id FROM api_keys WHERE {column} = $1 AND grant_id IS NOT NULL AND NOT disabled
            ORDER BY id FOR NO KEY UPDATE)
        UPDATE api_keys SET disabled = true, edited_ms = $2 FROM held WHERE api_keys.id = held.id"
    );
    diesel::sql_query(disable).bind::<Text, _>(id).bind::<BigInt, _>(now.0).execute(conn).await?;
    Ok(())
}

/// `within`: only keys that reach no other projects.
pub(crate) async fn list_keys(
    conn: &mut Conn,
    account: &AccountId,
    within: Option<&[String]>,
    page: Page,
) -> Result<(Vec<KeyRow>, i64)> {
    let keys = || {
        let keys = api_keys::table.filter(api_keys::account_id.eq(account.as_str())).into_boxed();
        match within {
            Some(projects) => keys.filter(api_keys::project_ids.is_contained_by(projects.to_vec())),
            None => keys,
        }
    };
    let total = keys().count().get_result(conn).await?;
    let rows = keys()
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
            api_keys::last4.eq(&key.last4),
            api_keys::disabled.eq(key.disabled),
            api_keys::expires_at_ms.eq(key.expires_at_ms),
            api_keys::edited_ms.eq(key.edited_ms),
            api_keys::identity_mode.eq(&key.identity_mode),
            api_keys::allowed_domains.eq(&key.allowed_domains),
            api_keys::allowed_endpoints.eq(&key.allowed_endpoints),
            api_keys::preset.eq(&key.preset),
            api_keys::project_ids.eq(&key.project_ids),
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

/// All keys of the account, locked, so that two requests cannot take the last two away together.
pub(crate) async fn lock_keys(conn: &mut Conn, account: &AccountId) -> Result<Vec<KeyRow>> {
    let keys = api_keys::table.filter(api_keys::account_id.eq(account.as_str())).order(api_keys::id);
    Ok(keys.for_no_key_update().select(KeyRow::as_select()).load(conn).await?)
}

/// Switches off what a user who goes had made.
pub(crate) async fn disable_of_user(conn: &mut Conn, account: &AccountId, user: &str, now: Timestamp) -> Result<()> {
    diesel::update(api_keys::table.filter(api_keys::account_id.eq(account.as_str()).and(api_keys::user_id.eq(user))))
        .set((api_keys::disabled.eq(true), api_keys::edited_ms.eq(now.0)))
        .execute(conn)
        .await?;
    Ok(())
}

pub(crate) async fn touch_key(conn: &mut Conn, account: &AccountId, id: &str, now: Timestamp) -> Result<()> {
    diesel::update(api_keys::table.filter(api_keys::account_id.eq(account.as_str()).and(api_keys::id.eq(id))))
        .set(api_keys::last_used_ms.eq(now.0))
        .execute(conn)
        .await?;
    Ok(())
}
