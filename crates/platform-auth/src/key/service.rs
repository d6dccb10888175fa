use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Caller, Code, Credential, Error, Id, Object, Origin, Page, Result, Timestamp, overlay};
use platform_db::{Conn, Idempotency};
use platform_vault::MASK;

use super::{
    model::{ApiKey, ApiKeyPage, ApiKeyWithSecret, NewApiKey, Rotation},
    repository::{self, KeyRow},
    secret::KeySecret,
};
use crate::{
    PgAuthService, code,
    oauth::{CONSOLE, grants},
    service::stands,
    session::{end_of_value, revoke_of_key},
};

/// Old values of a key that work at once.
const MAX_OLD_VALUES: i64 = 100;

/// API keys. No caller sees, changes or makes one that reaches further than its own credential.
#[async_trait]
pub trait KeyService: Send + Sync {
    /// Makes a key. With `once`, the answer is stored for repetitions, its value masked.
    async fn create_key(&self, caller: &Caller, new: NewApiKey, once: Option<&Idempotency>)
    -> Result<ApiKeyWithSecret>;
    /// Keys of the account, newest first.
    async fn list_keys(&self, caller: &Caller, page: Page) -> Result<ApiKeyPage>;
    /// One key.
    async fn get_key(&self, caller: &Caller, id: &Id<ApiKey>) -> Result<ApiKey>;
    /// The caller that a key authenticates as; `CONFLICT` when it does no longer.
    async fn key_caller(&self, caller: &Caller, id: &Id<ApiKey>) -> Result<Caller>;
    /// Changes the given fields.
    async fn update_key(&self, caller: &Caller, id: &Id<ApiKey>, patch: Object) -> Result<ApiKey>;
    /// Takes a key away, and its sessions with it; not the last full one without an end.
    ///
    /// Who is no administrator changes, rotates and takes away what follows from themselves alone.
    async fn delete_key(&self, caller: &Caller, id: &Id<ApiKey>) -> Result<()>;
    /// Gives a key a new value; the old one, and the sessions it minted, work for the grace.
    async fn rotate_key(
        &self,
        caller: &Caller,
        id: &Id<ApiKey>,
        rotation: Rotation,
        once: Option<&Idempotency>,
    ) -> Result<ApiKeyWithSecret>;
    /// Makes sure that the full key with this value exists in the account.
    async fn ensure_key(&self, account: &AccountId, name: &str, secret: &KeySecret) -> Result<()>;
}

impl PgAuthService {
    /// `by`: id of the user behind it, if any, and the name of who makes it.
    fn key_row(
        &self,
        account: &AccountId,
        by: (Option<&str>, &str),
        new: NewApiKey,
        secret: &KeySecret,
    ) -> Result<KeyRow> {
        enum Key {}
        let now = self.clock.now();
        let mut row = KeyRow {
            id: Id::<Key>::generate().into(),
            account_id: account.as_str().to_owned(),
            name: String::new(),
            digest: secret.digest(),
            prefix: self.config.key_prefix.clone(),
            last4: secret.last4(),
            disabled: false,
            expires_at_ms: None,
            last_used_ms: None,
            created_by: by.1.to_owned(),
            created_ms: now.0,
            edited_ms: now.0,
            identity_mode: String::new(),
            allowed_domains: Vec::new(),
            allowed_endpoints: serde_json::Value::Null,
            preset: None,
            project_ids: None,
            user_id: by.0.map(str::to_owned),
            grant_id: None,
            client_id: None,
        };
        row.set(new)?;
        Ok(row)
    }
}

/// The grant and the application that a key hangs on which this caller makes; both stand until it is made. What is made in
/// the console is its user's own.
async fn application_behind(conn: &mut Conn, caller: &Caller) -> Result<Option<(String, String)>> {
    let account = &caller.account;
    let ended = || Error::new(code::TOKEN_REVOKED, "The application may act for this user no longer.");
    match &caller.credential {
        Credential::Token { client, .. } if client != CONSOLE => {
            let Some(grant) = caller.origin.grant.clone() else { return Ok(None) };
            let stands = grants::stands_in(conn, &grant).await?;
            if stands { Ok(Some((grant, client.clone()))) } else { Err(ended()) }
        }
        Credential::FullKey(id) | Credential::RestrictedKey(id) => {
            let maker = repository::find(conn, account, id).await?;
            let Some(KeyRow { grant_id: Some(grant), client_id: Some(client), .. }) = maker else { return Ok(None) };
            // Whoever ends the grant from here on ends what is made, too.
            grants::stands_in(conn, &grant).await?;
            let is_disabled = repository::find(conn, account, id).await?.is_none_or(|maker| maker.disabled);
            if is_disabled { Err(ended()) } else { Ok(Some((grant, client))) }
        }
        Credential::Token { .. } | Credential::Session(_) => Ok(None),
    }
}

#[async_trait]
impl KeyService for PgAuthService {
    async fn create_key(
        &self,
        caller: &Caller,
        mut new: NewApiKey,
        once: Option<&Idempotency>,
    ) -> Result<ApiKeyWithSecret> {
        new.settle()?;
        refuse_wider(caller, &new)?;
        refuse_longer(caller, &new)?;
        let secret = KeySecret::generate(&self.config.key_prefix)?;
        let user = caller.origin.user.as_ref().map(|user| user.id.as_str());
        let mut row = self.key_row(&caller.account, (user, &caller.user_uid), new, &secret)?;
        let answer = ApiKeyWithSecret::new(row.clone().into_key()?, &secret);
        let mut conn = self.db.conn().await?;
        let creating = conn.transaction::<_, Error, _>(async |conn| {
            (row.grant_id, row.client_id) = application_behind(conn, caller).await?.unzip();
            repository::insert_key(conn, &row).await?;
            store_masked(conn, once, 201, &answer).await
        });
        creating.await?;
        Ok(answer)
    }

    async fn list_keys(&self, caller: &Caller, page: Page) -> Result<ApiKeyPage> {
        let mut conn = self.db.fair_conn(&caller.account).await?;
        let within = caller.projects.as_deref();
        let (rows, total) = repository::list_keys(&mut conn, &caller.account, within, page).await?;
        let items = rows.into_iter().map(KeyRow::into_key).collect::<Result<_>>()?;
        Ok(ApiKeyPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn get_key(&self, caller: &Caller, id: &Id<ApiKey>) -> Result<ApiKey> {
        let row = repository::key(&mut *self.db.conn().await?, &caller.account, id).await?;
        let row = row.ok_or_else(|| not_found(id))?;
        refuse_other_projects(caller, &row.settings()?)?;
        row.into_key()
    }

    async fn key_caller(&self, caller: &Caller, id: &Id<ApiKey>) -> Result<Caller> {
        let mut conn = self.db.conn().await?;
        let row = repository::key(&mut conn, &caller.account, id).await?.ok_or_else(|| not_found(id))?;
        refuse_other_projects(caller, &row.settings()?)?;
        let (user, has_fallen) = stands(&conn, &row).await?;
        if has_fallen || row.disabled || row.expires_at_ms.is_some_and(|ends| ends <= self.clock.now().0) {
            return Err(Error::new(Code::CONFLICT, "This key opens nothing any more."));
        }
        row.into_caller(Origin { user, ..Origin::default() })
    }

    async fn update_key(&self, caller: &Caller, id: &Id<ApiKey>, patch: Object) -> Result<ApiKey> {
        // Fields are judged before it matters what they are applied to.
        let named = NewApiKey { name: "named".to_owned(), ..NewApiKey::default() };
        overlay(&named, patch.clone())?.settle()?;
        let (account, now) = (&caller.account, self.clock.now());
        let mut conn = self.db.conn().await?;
        let updating = conn.transaction::<_, Error, _>(async |conn| {
            let keys = repository::lock_keys(conn, account).await?;
            let mut row = keys.iter().find(|key| key.id == **id).ok_or_else(|| not_found(id))?.clone();
            let current = row.settings()?;
            refuse_others(caller, &row)?;
            refuse_wider(caller, &current)?;
            let mut changed: NewApiKey = overlay(&current, patch)?;
            changed.settle()?;
            refuse_wider(caller, &changed)?;
            refuse_longer(caller, &changed)?;
            let was_last_resort = is_last_resort(&row, now)?;
            row.set(changed)?;
            row.edited_ms = now.0;
            if was_last_resort && !is_last_resort(&row, now)? && !others_remain(&keys, id, now)? {
                return Err(last_key());
            }
            if row.disabled {
                revoke_of_key(conn, account, id, now).await?;
            }
            repository::update_key(conn, account, &row).await?;
            Ok(row)
        });
        let updated = updating.await?;
        drop(conn);
        self.known.changed(id).await?;
        updated.into_key()
    }

    async fn delete_key(&self, caller: &Caller, id: &Id<ApiKey>) -> Result<()> {
        let (account, now) = (&caller.account, self.clock.now());
        let mut conn = self.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            let keys = repository::lock_keys(conn, account).await?;
            let row = keys.iter().find(|key| key.id == **id).ok_or_else(|| not_found(id))?;
            refuse_others(caller, row)?;
            refuse_wider(caller, &row.settings()?)?;
            if is_last_resort(row, now)? && !others_remain(&keys, id, now)? {
                return Err(last_key());
            }
            revoke_of_key(conn, account, id, now).await?;
            repository::delete_key(conn, account, id).await
        });
        deleting.await?;
        drop(conn);
        self.known.changed(id).await
    }

    async fn rotate_key(
        &self,
        caller: &Caller,
        id: &Id<ApiKey>,
        rotation: Rotation,
        once: Option<&Idempotency>,
    ) -> Result<ApiKeyWithSecret> {
        rotation.check()?;
        let secret = KeySecret::generate(&self.config.key_prefix)?;
        let (account, now) = (&caller.account, self.clock.now());
        let mut conn = self.db.conn().await?;
        let rotating = conn.transaction::<_, Error, _>(async |conn| {
            // Grants before keys, as everywhere.
            let application = application_behind(conn, caller).await?;
            let mut row = repository::key(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            refuse_others(caller, &row)?;
            refuse_takeover(caller, id)?;
            if application.is_some_and(|(grant, _)| row.grant_id != Some(grant)) {
                let message = "An application gives new values to keys that it made, and to no others.";
                return Err(Error::new(Code::FORBIDDEN, message));
            }
            refuse_wider(caller, &row.settings()?)?;
            refuse_longer(caller, &row.settings()?)?;
            let until = Timestamp(now.0 + rotation.grace_seconds * 1000);
            if until > now {
                if repository::count_old_values(conn, id, now).await? >= MAX_OLD_VALUES {
                    let message = "Too many old values of this key still work; rotate it without grace.";
                    return Err(Error::new(Code::CONFLICT, message));
                }
                repository::keep_old_value(conn, &row, until).await?;
            }
            end_of_value(conn, account, &row.digest, until, now).await?;
            row.digest = secret.digest();
            row.last4 = secret.last4();
            row.edited_ms = now.0;
            repository::update_key(conn, account, &row).await?;
            let answer = ApiKeyWithSecret::new(row.into_key()?, &secret);
            store_masked(conn, once, 200, &answer).await?;
            Ok(answer)
        });
        let answer = rotating.await?;
        drop(conn);
        self.known.changed(id).await?;
        Ok(answer)
    }

    async fn ensure_key(&self, account: &AccountId, name: &str, secret: &KeySecret) -> Result<()> {
        let new = NewApiKey { name: name.to_owned(), ..NewApiKey::default() };
        let row = self.key_row(account, (None, "server"), new, secret)?;
        repository::insert_key(&mut *self.db.conn().await?, &row).await?;
        Ok(())
    }
}

/// A key that works without an end and opens the whole account, whatever becomes of any user.
fn is_last_resort(key: &KeyRow, now: Timestamp) -> Result<bool> {
    let is_endless = key.is_usable(now) && key.expires_at_ms.is_none() && key.user_id.is_none();
    Ok(is_endless && key.settings()?.is_unbound())
}

fn others_remain(keys: &[KeyRow], id: &str, now: Timestamp) -> Result<bool> {
    for other in keys.iter().filter(|key| key.id != id) {
        if is_last_resort(other, now)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// No credential makes or changes a key that reaches further than itself (contract 01 §3).
fn refuse_wider(caller: &Caller, key: &NewApiKey) -> Result<()> {
    refuse_other_projects(caller, key)?;
    if caller.member().is_none() || key.rules().is_bound() {
        return Ok(());
    }
    Err(Error::new(Code::FORBIDDEN, "Only a full key or an administrator may make or change a full key."))
}

/// What ends makes nothing that outlives it.
fn refuse_longer(caller: &Caller, key: &NewApiKey) -> Result<()> {
    let Some(ends) = caller.origin.ends else { return Ok(()) };
    if key.expires_at_ms.is_some_and(|expires| expires <= ends) {
        return Ok(());
    }
    let message = "This key would outlive your credential; expiresAtMs must not be later than its end.";
    Err(Error::new(Code::FORBIDDEN, message).with("expiresAtMs", ends))
}

/// Whoever has the new value of a key is that key, with all that only it was granted: a key of some projects renews itself
/// alone.
fn refuse_takeover(caller: &Caller, id: &str) -> Result<()> {
    let is_own = matches!(&caller.credential, Credential::FullKey(own) | Credential::RestrictedKey(own) if own == id);
    if is_own || caller.projects.is_none() {
        return Ok(());
    }
    Err(Error::new(Code::FORBIDDEN, "A key of some projects can renew itself, and no other key."))
}

/// A member who learns the value of a key stays its bound: it is one of theirs.
fn refuse_others(caller: &Caller, key: &KeyRow) -> Result<()> {
    if caller.member().is_none_or(|member| key.user_id.as_deref() == Some(member)) {
        return Ok(());
    }
    Err(Error::new(Code::FORBIDDEN, "This key is not one of yours; ask an administrator."))
}

fn refuse_other_projects(caller: &Caller, key: &NewApiKey) -> Result<()> {
    let Some(own) = &caller.projects else { return Ok(()) };
    match &key.project_ids {
        Some(projects) if projects.iter().all(|project| own.contains(project)) => Ok(()),
        _ => {
            let message = "This key reaches other projects than your credential; projectIds must be among your own.";
            Err(Error::new(Code::FORBIDDEN, message).with("projectIds", own))
        }
    }
}

/// An answer that showed a secret is replayed with the secret masked (contract 00 §5).
async fn store_masked(
    conn: &mut Conn,
    once: Option<&Idempotency>,
    status: u16,
    answer: &ApiKeyWithSecret,
) -> Result<()> {
    let Some(once) = once else { return Ok(()) };
    once.store(conn, status, &ApiKeyWithSecret { key: MASK.to_owned(), ..answer.clone() }).await
}

fn not_found(id: &str) -> Error {
    Error::not_found(code::KEY_NOT_FOUND, "API key", id)
}

fn last_key() -> Error {
    Error::new(
        Code::CONFLICT,
        "This is the last full key that works without an end, whatever becomes of any user; make another one first.",
    )
}
