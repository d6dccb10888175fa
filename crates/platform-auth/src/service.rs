use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use moka::sync::Cache;
use platform_core::{AccountId, Checks, Clock, Code, Error, Origin, OriginUser, Result, Timestamp, sha256_hex, spawn};
use platform_db::{Bus, Capacity, Conn, Db, InvalidatedCache};
use platform_egress::Egress;
use platform_vault::Vault;

use crate::{
    account::{self, AccountRecord},
    code,
    identity::{Identity, Rights},
    key::repository::{self, KeyRow},
    oauth::{self, ClientRow, External, TrustedIssuer},
    session,
    signing::{SigningKeys, TokenAlgorithm},
    user::repository as users,
};

/// The last use of a key is written at most this often.
const TOUCH_MS: i64 = 60_000;
/// Credentials that are remembered at once.
const MAX_REMEMBERED: u64 = 128 << 20;
/// Documents of applications that are remembered.
const MAX_DOCUMENTS: u64 = 1000;

/// Accounts, and whom a credential stands for.
#[async_trait]
pub trait AuthService: Send + Sync {
    /// Whom a credential stands for, or the 401 it deserves.
    async fn authenticate(&self, credential: &str) -> Result<Arc<Identity>>;

    /// Makes an account; `CONFLICT` when the name is taken.
    async fn create_account(&self, name: &str) -> Result<AccountRecord>;
    /// All accounts of the server.
    async fn list_accounts(&self) -> Result<Vec<AccountRecord>>;
    /// The account of that id or name.
    async fn find_account(&self, id_or_name: &str) -> Result<Option<AccountId>>;
}

/// What the service must know of its server.
#[derive(Clone)]
pub struct AuthConfig {
    /// First part of new keys.
    pub key_prefix: String,
    /// Address under which the server is known: the issuer of its tokens.
    pub issuer: String,
    /// How access tokens are signed.
    pub token_algorithm: TokenAlgorithm,
    /// How long access tokens last.
    pub access_ttl: Duration,
    /// How long a refresh token lasts that nobody uses.
    pub refresh_ttl: Duration,
    /// Whose access tokens are taken beside our own.
    pub trusted: Option<TrustedIssuer>,
    /// Applications may make themselves known (RFC 7591).
    pub registration: bool,
    /// The way out to documents of applications; `None` = they cannot be read.
    pub documents: Option<Egress>,
}

/// Accounts, keys and sessions on PostgreSQL.
pub struct PgAuthService {
    pub(crate) db: Db,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: AuthConfig,
    pub(crate) signing: SigningKeys,
    pub(crate) vault: Arc<Vault>,
    pub(crate) external: Option<External>,
    /// Applications whose documents were read.
    pub(crate) documents: Cache<String, ClientRow>,
    /// Digest of a credential → what it was when it was looked up.
    pub(crate) known: Arc<InvalidatedCache<String, Known>>,
}

/// A credential as it was looked up.
pub(crate) struct Known {
    pub identity: Arc<Identity>,
    /// Disabled or revoked.
    pub is_revoked: bool,
    pub expires: Option<Timestamp>,
    /// When its last use was written, if that is written at all.
    pub touched: Option<Mutex<Timestamp>>,
}

impl PgAuthService {
    /// Tells other processes of changes over the bus.
    pub fn new(db: &Db, bus: &Bus, clock: Arc<dyn Clock>, vault: Arc<Vault>, config: AuthConfig) -> Result<Self> {
        let bytes = |known: &Known| known.identity.rights.bytes();
        let known = InvalidatedCache::new(bus, "credential", Capacity::Bytes(MAX_REMEMBERED, bytes));
        let signing = SigningKeys::new(db, Arc::clone(&vault), Arc::clone(&clock));
        let external = config.trusted.clone().map(External::new).transpose()?;
        let documents = Cache::builder().max_capacity(MAX_DOCUMENTS).time_to_live(oauth::DOCUMENT).build();
        Ok(Self { db: db.clone(), clock, config, signing, vault, external, documents, known })
    }

    async fn look_up(&self, credential: &str, digest: &str) -> Result<Option<Known>> {
        if session::is_session_token(credential) {
            return session::authenticate(self, credential).await;
        }
        if oauth::part(credential, 1).is_some() {
            return oauth::authenticate(self, credential).await;
        }
        let conn = self.db.read().await?;
        let Some((row, grace)) = repository::key_by_digest(&mut conn.get(), digest).await? else { return Ok(None) };
        // An old value ends with its grace, whatever the key itself may do.
        let expires = [row.expires_at_ms, grace].into_iter().flatten().min().map(Timestamp);
        let rules = row.settings()?.rules();
        let (user, has_fallen) = stands(conn.get(), &row).await?;
        let (is_revoked, last_used) = (row.disabled || has_fallen, Timestamp(row.last_used_ms.unwrap_or(0)));
        let caller = row.into_caller(Origin { user, grant: None, digest: Some(digest.to_owned()), ends: expires })?;
        Ok(Some(Known {
            identity: Arc::new(Identity { caller, rights: Rights::Key(rules) }),
            is_revoked,
            expires,
            touched: Some(Mutex::new(last_used)),
        }))
    }

    /// Notes the use of a key, off the request's path.
    fn touch(&self, known: &Known, now: Timestamp) {
        let Some(touched) = &known.touched else { return };
        let mut touched = touched.lock().expect("lock");
        if now.0 - touched.0 < TOUCH_MS {
            return;
        }
        *touched = now;
        let (db, identity) = (self.db.clone(), Arc::clone(&known.identity));
        spawn("touch key", async move {
            if let Ok(mut conn) = db.conn().await {
                let caller = &identity.caller;
                let _ = repository::touch_key(&mut conn, &caller.account, &caller.principal(), now).await;
            }
        });
    }
}

#[async_trait]
impl AuthService for PgAuthService {
    async fn authenticate(&self, credential: &str) -> Result<Arc<Identity>> {
        let digest = sha256_hex(credential);
        let known = self.known.get_or_load(&digest, self.look_up(credential, &digest)).await?.ok_or_else(unknown)?;
        let now = self.clock.now();
        if known.is_revoked {
            return Err(Error::new(code::TOKEN_REVOKED, "This credential was disabled or revoked; use another one."));
        }
        if known.expires.is_some_and(|expires| expires <= now) {
            return Err(Error::new(code::TOKEN_EXPIRED, "This credential is past its time; get a new one."));
        }
        self.touch(&known, now);
        Ok(Arc::clone(&known.identity))
    }

    async fn create_account(&self, name: &str) -> Result<AccountRecord> {
        let name = name.trim();
        let mut checks = Checks::default();
        checks.length("name", name, 1..=200);
        checks.finish()?;
        let account = AccountRecord { id: AccountId::generate(), name: name.to_owned() };
        if account::insert(&mut *self.db.conn().await?, &account, self.clock.now()).await? {
            Ok(account)
        } else {
            Err(Error::new(Code::CONFLICT, format!("There is an account `{name}` already.")))
        }
    }

    async fn list_accounts(&self) -> Result<Vec<AccountRecord>> {
        let rows = account::list(&mut *self.db.conn().await?).await?;
        rows.into_iter().map(|(id, name)| Ok(AccountRecord { id: stored_account(&id)?, name })).collect()
    }

    async fn find_account(&self, id_or_name: &str) -> Result<Option<AccountId>> {
        let id = account::find(&mut *self.db.conn().await?, id_or_name).await?;
        Ok(id.and_then(|id| AccountId::parse(&id).ok()))
    }
}

/// The user behind a key, and whether it has fallen with them: they are gone or shut out, or it opens the whole account and
/// they are no administrator any more.
pub(crate) async fn stands(conn: &Conn, key: &KeyRow) -> Result<(Option<OriginUser>, bool)> {
    let Some(id) = &key.user_id else { return Ok((None, false)) };
    let user = users::behind(conn, &stored_account(&key.account_id)?, id).await?;
    let is_full = !key.settings()?.rules().is_bound();
    let has_fallen = user.as_ref().is_none_or(|user| is_full && !user.is_admin);
    Ok((user, has_fallen))
}

pub(crate) fn stored_account(id: &str) -> Result<AccountId> {
    AccountId::parse(id).map_err(|_| Error::internal("a stored id is malformed"))
}

/// The 401 of what is no credential.
pub(crate) fn unknown() -> Error {
    Error::new(code::UNAUTHENTICATED, "This credential is not known here; check the value after `Bearer`.")
}
