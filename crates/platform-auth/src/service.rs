use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{
    AccountId, Caller, Clock, Code, Credential, Error, Id, Object, Page, Result, Timestamp, overlay, spawn,
};
use platform_db::{Bus, Db, Idempotency, Remembered};

use crate::{
    model::{AccountRecord, ApiKey, ApiKeyPage, ApiKeyWithSecret, NewApiKey, Rotation},
    repository::{self, KeyRow},
    secret::{KeySecret, sha256},
};

/// The last use of a key is written at most this often.
const TOUCH_MS: i64 = 60_000;
/// Credentials that are remembered at once.
const MOST_REMEMBERED: u64 = 100_000;
const MASK: &str = "••••••••";

/// Accounts, keys, and whom a credential stands for.
#[async_trait]
pub trait AuthService: Send + Sync {
    /// Whom an API key stands for, or the 401 it deserves.
    async fn authenticate(&self, key: &str) -> Result<Arc<Caller>>;

    /// Makes a key. With `once`, the answer is stored for repetitions, its value masked.
    async fn create_key(&self, caller: &Caller, new: NewApiKey, once: Option<&Idempotency>)
    -> Result<ApiKeyWithSecret>;
    /// Keys of the account, newest first.
    async fn list_keys(&self, account: &AccountId, page: Page) -> Result<ApiKeyPage>;
    /// One key.
    async fn get_key(&self, account: &AccountId, id: &str) -> Result<ApiKey>;
    /// Changes the given fields.
    async fn update_key(&self, account: &AccountId, id: &str, patch: Object) -> Result<ApiKey>;
    /// Takes a key away; not the last one that works.
    async fn delete_key(&self, account: &AccountId, id: &str) -> Result<()>;
    /// Gives a key a new value; the old one works for the grace.
    async fn rotate_key(
        &self,
        account: &AccountId,
        id: &str,
        rotation: Rotation,
        once: Option<&Idempotency>,
    ) -> Result<ApiKeyWithSecret>;

    /// Makes an account; `CONFLICT` when the name is taken.
    async fn create_account(&self, name: &str) -> Result<AccountRecord>;
    /// All accounts of the server.
    async fn list_accounts(&self) -> Result<Vec<AccountRecord>>;
    /// The account of that id or name.
    async fn find_account(&self, id_or_name: &str) -> Result<Option<AccountId>>;
    /// Makes sure that the key with this value exists in the account.
    async fn ensure_key(&self, account: &AccountId, name: &str, secret: &KeySecret) -> Result<()>;
}

/// The service on PostgreSQL.
pub struct PgAuthService {
    db: Db,
    clock: Arc<dyn Clock>,
    prefix: String,
    /// Digest of a credential → the key as it was when it was looked up.
    keys: Arc<Remembered<String, Known>>,
}

struct Known {
    caller: Arc<Caller>,
    disabled: bool,
    expires: Option<Timestamp>,
    /// When the last use was written.
    touched: Mutex<Timestamp>,
}

impl PgAuthService {
    /// `prefix`: first part of new keys.
    pub fn new(db: &Db, bus: &Bus, clock: Arc<dyn Clock>, prefix: &str) -> Self {
        let keys = Remembered::new(bus, "api-key", MOST_REMEMBERED);
        Self { db: db.clone(), clock, prefix: prefix.to_owned(), keys }
    }

    async fn look_up(&self, digest: &str) -> Result<Option<Known>> {
        let conn = self.db.read().await?;
        let Some(row) = repository::key_by_digest(&mut conn.get(), digest).await? else { return Ok(None) };
        // An old value ends with its grace, whatever the key itself may do.
        let grace = (row.old_digest.as_deref() == Some(digest)).then_some(row.old_digest_until_ms.unwrap_or(0));
        let expires = [row.expires_at_ms, grace].into_iter().flatten().min().map(Timestamp);
        let caller = Caller {
            account: AccountId::parse(&row.account_id).map_err(|_| Error::internal("a stored id is malformed"))?,
            user_uid: format!("apikey:{}", row.id),
            credential: Credential::FullKey(row.id),
        };
        let touched = Mutex::new(Timestamp(row.last_used_ms.unwrap_or(0)));
        Ok(Some(Known { caller: Arc::new(caller), disabled: row.disabled, expires, touched }))
    }

    /// Notes the use of a key, off the request's path.
    fn touch(&self, known: &Known, now: Timestamp) {
        let mut touched = known.touched.lock().expect("lock");
        if now.0 - touched.0 < TOUCH_MS {
            return;
        }
        *touched = now;
        let (db, caller) = (self.db.clone(), Arc::clone(&known.caller));
        spawn("touch key", async move {
            if let Ok(mut conn) = db.conn().await {
                let _ = repository::touch_key(&mut conn, &caller.account, caller.credential_id(), now).await;
            }
        });
    }

    fn row(&self, account: &AccountId, created_by: &str, new: NewApiKey, secret: &KeySecret) -> KeyRow {
        enum Key {}
        let now = self.clock.now();
        KeyRow {
            id: Id::<Key>::generate().into(),
            account_id: account.as_str().to_owned(),
            name: new.name,
            digest: secret.digest(),
            old_digest: None,
            old_digest_until_ms: None,
            prefix: self.prefix.clone(),
            last4: secret.last4(),
            disabled: new.disabled,
            expires_at_ms: new.expires_at_ms.map(|at| at.0),
            last_used_ms: None,
            created_by: created_by.to_owned(),
            created_ms: now.0,
            edited_ms: now.0,
        }
    }
}

#[async_trait]
impl AuthService for PgAuthService {
    async fn authenticate(&self, key: &str) -> Result<Arc<Caller>> {
        let digest = sha256(key);
        let known = self.keys.get_or_load(&digest, self.look_up(&digest)).await?.ok_or_else(unknown)?;
        let now = self.clock.now();
        if known.disabled {
            return Err(Error::new(Code::TokenRevoked, "This API key is disabled; use another one."));
        }
        if known.expires.is_some_and(|expires| expires <= now) {
            return Err(Error::new(Code::TokenExpired, "This API key is past its time; make a new one."));
        }
        self.touch(&known, now);
        Ok(Arc::clone(&known.caller))
    }

    async fn create_key(
        &self,
        caller: &Caller,
        new: NewApiKey,
        once: Option<&Idempotency>,
    ) -> Result<ApiKeyWithSecret> {
        new.check()?;
        let secret = KeySecret::generate(&self.prefix)?;
        let row = self.row(&caller.account, &caller.user_uid, new, &secret);
        let answer = ApiKeyWithSecret::new(row.clone().into(), &secret);
        self.db
            .conn()
            .await?
            .transaction(async |conn| {
                repository::insert_key(conn, &row).await?;
                store_masked(conn, once, 201, &answer).await
            })
            .await?;
        Ok(answer)
    }

    async fn list_keys(&self, account: &AccountId, page: Page) -> Result<ApiKeyPage> {
        let (rows, total) = repository::list_keys(&mut *self.db.conn().await?, account, page).await?;
        let items = rows.into_iter().map(ApiKey::from).collect();
        Ok(ApiKeyPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn get_key(&self, account: &AccountId, id: &str) -> Result<ApiKey> {
        let row = repository::key(&mut *self.db.conn().await?, account, id).await?;
        Ok(row.ok_or_else(|| not_found(id))?.into())
    }

    async fn update_key(&self, account: &AccountId, id: &str, patch: Object) -> Result<ApiKey> {
        let now = self.clock.now();
        let updated = self
            .db
            .conn()
            .await?
            .transaction(async |conn| {
                // All keys of the account first, in one order: two requests never wait for each other.
                let has_other = repository::has_other_key(conn, account, id, now).await?;
                let mut row = repository::key(conn, account, id).await?.ok_or_else(|| not_found(id))?;
                let current = NewApiKey {
                    name: row.name.clone(),
                    expires_at_ms: row.expires_at_ms.map(Timestamp),
                    disabled: row.disabled,
                    ..NewApiKey::default()
                };
                let changed: NewApiKey = overlay(&current, patch)?;
                changed.check()?;
                let stops_working = changed.disabled || changed.expires_at_ms.is_some_and(|expires| expires <= now);
                if stops_working && !has_other {
                    return Err(last_key());
                }
                row.name = changed.name;
                row.disabled = changed.disabled;
                row.expires_at_ms = changed.expires_at_ms.map(|at| at.0);
                row.edited_ms = now.0;
                repository::update_key(conn, account, &row).await?;
                Ok::<_, Error>(row)
            })
            .await?;
        self.keys.changed(id).await?;
        Ok(updated.into())
    }

    async fn delete_key(&self, account: &AccountId, id: &str) -> Result<()> {
        let now = self.clock.now();
        self.db
            .conn()
            .await?
            .transaction(async |conn| {
                let has_other = repository::has_other_key(conn, account, id, now).await?;
                repository::key(conn, account, id).await?.ok_or_else(|| not_found(id))?;
                if !has_other {
                    return Err(last_key());
                }
                repository::delete_key(conn, account, id).await
            })
            .await?;
        self.keys.changed(id).await
    }

    async fn rotate_key(
        &self,
        account: &AccountId,
        id: &str,
        rotation: Rotation,
        once: Option<&Idempotency>,
    ) -> Result<ApiKeyWithSecret> {
        rotation.check()?;
        let secret = KeySecret::generate(&self.prefix)?;
        let now = self.clock.now();
        let answer = self
            .db
            .conn()
            .await?
            .transaction(async |conn| {
                let mut row = repository::key(conn, account, id).await?.ok_or_else(|| not_found(id))?;
                let grace = rotation.grace_seconds > 0;
                row.old_digest = grace.then(|| row.digest.clone());
                row.old_digest_until_ms = grace.then(|| now.0 + rotation.grace_seconds * 1000);
                row.digest = secret.digest();
                row.last4 = secret.last4();
                row.edited_ms = now.0;
                repository::update_key(conn, account, &row).await?;
                let answer = ApiKeyWithSecret::new(row.into(), &secret);
                store_masked(conn, once, 200, &answer).await?;
                Ok::<_, Error>(answer)
            })
            .await?;
        self.keys.changed(id).await?;
        Ok(answer)
    }

    async fn create_account(&self, name: &str) -> Result<AccountRecord> {
        let account = AccountRecord { id: AccountId::generate(), name: name.to_owned() };
        let now = self.clock.now();
        if repository::insert_account(&mut *self.db.conn().await?, &account, now).await? {
            Ok(account)
        } else {
            Err(Error::new(Code::Conflict, format!("There is an account `{name}` already.")))
        }
    }

    async fn list_accounts(&self) -> Result<Vec<AccountRecord>> {
        let rows = repository::list_accounts(&mut *self.db.conn().await?).await?;
        let parse = |id: &str| AccountId::parse(id).map_err(|_| Error::internal("a stored id is malformed"));
        rows.into_iter().map(|(id, name)| Ok(AccountRecord { id: parse(&id)?, name })).collect()
    }

    async fn find_account(&self, id_or_name: &str) -> Result<Option<AccountId>> {
        let id = repository::account_id(&mut *self.db.conn().await?, id_or_name).await?;
        Ok(id.and_then(|id| AccountId::parse(&id).ok()))
    }

    async fn ensure_key(&self, account: &AccountId, name: &str, secret: &KeySecret) -> Result<()> {
        let new = NewApiKey { name: name.to_owned(), ..NewApiKey::default() };
        let row = self.row(account, "server", new, secret);
        repository::insert_key(&mut *self.db.conn().await?, &row).await?;
        Ok(())
    }
}

/// An answer that showed a secret is replayed with the secret masked (contract 00 §5).
async fn store_masked(
    conn: &mut platform_db::Conn,
    once: Option<&Idempotency>,
    status: u16,
    answer: &ApiKeyWithSecret,
) -> Result<()> {
    let Some(once) = once else { return Ok(()) };
    once.store(conn, status, &ApiKeyWithSecret { key: MASK.to_owned(), ..answer.clone() }).await
}

fn unknown() -> Error {
    Error::new(Code::Unauthenticated, "This API key is not known here; check the value after `Bearer`.")
}

fn not_found(id: &str) -> Error {
    Error::not_found(Code::KeyNotFound, "API key", id)
}

fn last_key() -> Error {
    Error::new(Code::Conflict, "This is the last full key that works; make another one first.")
}
