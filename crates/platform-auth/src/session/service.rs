use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Caller, Credential, Error, Id, Origin, OriginUser, Page, Result, Session, Timestamp};
use platform_db::{Conn, Idempotency};
use platform_vault::MASK;

use super::{
    model::{MintedSession, NewSession, SessionFilter, SessionPage, TenantSession, tenant_required},
    repository::{self, SessionRow},
    token::{self, AUDIENCE, Claims},
};
use crate::{
    PgAuthService, code,
    identity::{Identity, Rights},
    key::repository::{self as keys, KeyRow},
    oauth::find_grant,
    service::{Known, stands, stored_account},
    user::repository as users,
};

/// What an application must be able to ask for while sessions work that it minted.
const MINTING: &str = "tenant-sessions:write";
/// A clock may be so far behind ours.
const LEEWAY_MS: i64 = 5000;

/// Sessions of end users.
#[async_trait]
pub trait SessionService: Send + Sync {
    /// Mints a session for the caller, which ends when they do. With `once`, the answer is stored for repetitions, its token masked.
    async fn mint(&self, caller: &Caller, new: &NewSession, once: Option<&Idempotency>) -> Result<MintedSession>;
    /// Sessions, newest first.
    async fn list_sessions(&self, account: &AccountId, filter: &SessionFilter, page: Page) -> Result<SessionPage>;
    /// Ends a session at once.
    async fn revoke_session(&self, account: &AccountId, id: &Id<TenantSession>) -> Result<()>;
    /// Ends all sessions of a tenant, or of one of its end users; how many there were.
    async fn revoke_sessions(
        &self,
        account: &AccountId,
        tenant: Option<&str>,
        subtenant: Option<&str>,
    ) -> Result<usize>;
    /// Forgets whose sessions they were, after those of a tenant ended in another transaction.
    async fn forget_sessions(&self, tenant: &str) -> Result<()>;
}

#[async_trait]
impl SessionService for PgAuthService {
    async fn mint(&self, caller: &Caller, new: &NewSession, once: Option<&Idempotency>) -> Result<MintedSession> {
        let (tenant, ttl) = new.check()?;
        let (now, origin) = (self.clock.now(), &caller.origin);
        let expires = Timestamp(now.0 + ttl * 1000);
        let expires = origin.ends.map_or(expires, |ends| ends.min(expires));
        let is_token = matches!(caller.credential, Credential::Token { .. });
        let row = SessionRow {
            id: Id::<Session>::generate().into(),
            account_id: caller.account.as_str().to_owned(),
            tenant_id: tenant.to_owned(),
            subtenant_id: new.subtenant_id.clone(),
            api_key_id: match &caller.credential {
                Credential::FullKey(id) | Credential::RestrictedKey(id) => id.clone(),
                _ => caller.user_uid.clone(),
            },
            assistant_ids: new.assistant_ids.clone(),
            created_ms: now.0,
            expires_ms: expires.0,
            revoked_ms: None,
            key_digest: origin.digest.clone(),
            user_id: origin.user.as_ref().filter(|_| is_token).map(|user| user.id.clone()),
            grant_id: origin.grant.clone(),
        };
        let claims = Claims {
            iss: self.config.issuer.clone(),
            aud: AUDIENCE.to_owned(),
            typ: Claims::typ(),
            cid: row.account_id.clone(),
            tid: row.tenant_id.clone(),
            stid: row.subtenant_id.clone(),
            key: row.api_key_id.clone(),
            aids: row.assistant_ids.clone(),
            iat: now.0 / 1000,
            exp: row.expires_ms / 1000,
            jti: row.id.clone(),
        };
        let answer = MintedSession {
            token: token::sign(&self.signing, &claims).await?,
            token_type: "tenant-session",
            session_id: row.id.clone(),
            tenant_id: row.tenant_id.clone(),
            subtenant_id: row.subtenant_id.clone(),
            expires_in: (expires.0 - now.0) / 1000,
            expires_at: Timestamp(row.expires_ms),
        };
        let mut conn = self.db.conn().await?;
        let minting = conn.transaction::<_, Error, _>(async |conn| {
            repository::insert(conn, &row).await?;
            if let Some(once) = once {
                once.store(conn, 201, &MintedSession { token: MASK.to_owned(), ..answer.clone() }).await?;
            }
            Ok(())
        });
        minting.await?;
        Ok(answer)
    }

    async fn list_sessions(&self, account: &AccountId, filter: &SessionFilter, page: Page) -> Result<SessionPage> {
        let mut conn = self.db.fair_conn(account).await?;
        let (rows, total) = repository::list(&mut conn, account, filter, page, self.clock.now()).await?;
        let items = rows.into_iter().map(TenantSession::from).collect();
        Ok(SessionPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn revoke_session(&self, account: &AccountId, id: &Id<TenantSession>) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let revoked = repository::revoke(&mut conn, account, id, self.clock.now()).await?;
        drop(conn);
        revoked.ok_or_else(|| Error::not_found(code::SESSION_NOT_FOUND, "session", id))?;
        self.known.changed(id).await
    }

    async fn revoke_sessions(
        &self,
        account: &AccountId,
        tenant: Option<&str>,
        subtenant: Option<&str>,
    ) -> Result<usize> {
        let tenant = tenant.filter(|tenant| !tenant.is_empty()).ok_or_else(tenant_required)?;
        let mut conn = self.db.conn().await?;
        let revoked = repository::revoke_all(&mut conn, account, tenant, subtenant, self.clock.now()).await?;
        drop(conn);
        // Who is remembered is forgotten with all others: only when somebody is gone.
        if revoked > 0 {
            self.known.changed(tenant).await?;
        }
        Ok(revoked)
    }

    async fn forget_sessions(&self, tenant: &str) -> Result<()> {
        self.known.changed(tenant).await
    }
}

/// How what a session follows from stands now.
struct Follows {
    user: Option<OriginUser>,
    ends: Option<i64>,
    has_fallen: bool,
}

impl Follows {
    async fn of(conn: &Conn, account: &AccountId, session: &SessionRow, key: Option<&KeyRow>) -> Result<Self> {
        // An application minted it for a user.
        if let Some(id) = &session.user_id {
            let user = users::behind(conn, account, id).await?;
            let has_fallen = user.is_none()
                || match &session.grant_id {
                    Some(grant) => find_grant(conn, grant)
                        .await?
                        .is_none_or(|(grant, _, client)| grant.revoked_ms.is_some() || !client.scopes().open(MINTING)),
                    // Another issuer's: nobody tells us of its grants.
                    None => false,
                };
            return Ok(Self { user, ends: None, has_fallen });
        }
        let Some(key) = key else { return Ok(Self { user: None, ends: None, has_fallen: true }) };
        let works = match &session.key_digest {
            Some(digest) => keys::value_works(&mut &*conn, key, digest).await?,
            None => keys::Works::WithKey,
        };
        let (user, key_has_fallen) = stands(conn, key).await?;
        let has_fallen = key.disabled || key_has_fallen || matches!(works, keys::Works::NoLonger);
        let until = if let keys::Works::Until(until) = works { Some(until) } else { None };
        Ok(Self { user, ends: [key.expires_at_ms, until].into_iter().flatten().min(), has_fallen })
    }
}

/// Whom a session token stands for; `None` when it is not one of ours.
pub(crate) async fn authenticate(auth: &PgAuthService, token: &str) -> Result<Option<Known>> {
    let Some(claims) = token::verify(&auth.signing, token).await? else { return Ok(None) };
    let Ok(account) = AccountId::parse(&claims.cid) else { return Ok(None) };
    let conn = auth.db.read().await?;
    let Some((row, key)) = repository::find(&mut conn.get(), &account, &claims.jti).await? else { return Ok(None) };
    let follows = Follows::of(conn.get(), &account, &row, key.as_ref()).await?;
    let subtenant = row.subtenant_id.as_deref().map_or_else(String::new, |subtenant| format!(":{subtenant}"));
    let caller = Caller {
        account: stored_account(&row.account_id)?,
        user_uid: format!("tenant:{}{subtenant}", row.tenant_id),
        projects: key.and_then(|key| key.project_ids),
        origin: Origin { user: follows.user, ..Origin::default() },
        credential: Credential::Session(Session {
            id: row.id,
            tenant_id: row.tenant_id,
            subtenant_id: row.subtenant_id,
            assistants: row.assistant_ids,
        }),
    };
    Ok(Some(Known {
        identity: Arc::new(Identity { caller, rights: Rights::Session }),
        is_revoked: row.revoked_ms.is_some() || follows.has_fallen,
        expires: [Some(row.expires_ms + LEEWAY_MS), follows.ends].into_iter().flatten().min().map(Timestamp),
        touched: None,
    }))
}
