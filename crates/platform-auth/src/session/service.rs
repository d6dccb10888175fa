use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Caller, Code, Credential, Error, Id, Page, Result, Session, Timestamp};
use platform_db::Idempotency;
use platform_vault::MASK;

use super::{
    model::{MintedSession, NewSession, SessionFilter, SessionPage, TenantSession, tenant_required},
    repository::{self, SessionRow},
    token::{self, AUDIENCE, Claims},
};
use crate::{
    PgAuthService,
    identity::{Identity, Rights},
    service::{Known, stored_account},
    user::{Role, repository as users},
};

/// A clock may be so far behind ours.
const LEEWAY_MS: i64 = 5000;

/// Sessions of end users.
#[async_trait]
pub trait SessionService: Send + Sync {
    /// Mints a session for the caller's key. With `once`, the answer is stored for repetitions, its token masked.
    async fn mint(&self, caller: &Caller, new: &NewSession, once: Option<&Idempotency>) -> Result<MintedSession>;
    /// Sessions, newest first.
    async fn list_sessions(&self, account: &AccountId, filter: &SessionFilter, page: Page) -> Result<SessionPage>;
    /// Ends a session at once.
    async fn revoke_session(&self, account: &AccountId, id: &str) -> Result<()>;
    /// Ends all sessions of a tenant, or of one of its end users; how many there were.
    async fn revoke_sessions(
        &self,
        account: &AccountId,
        tenant: Option<&str>,
        subtenant: Option<&str>,
    ) -> Result<usize>;
}

#[async_trait]
impl SessionService for PgAuthService {
    async fn mint(&self, caller: &Caller, new: &NewSession, once: Option<&Idempotency>) -> Result<MintedSession> {
        let (tenant, ttl) = new.check()?;
        let now = self.clock.now();
        let row = SessionRow {
            id: Id::<Session>::generate().into(),
            account_id: caller.account.as_str().to_owned(),
            tenant_id: tenant.to_owned(),
            subtenant_id: new.subtenant_id.clone(),
            api_key_id: caller.principal().into_owned(),
            assistant_ids: new.assistant_ids.clone(),
            created_ms: now.0,
            expires_ms: now.0 + ttl * 1000,
            revoked_ms: None,
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
            expires_in: ttl,
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
        let mut conn = self.db.conn().await?;
        let (rows, total) = repository::list(&mut conn, account, filter, page, self.clock.now()).await?;
        let items = rows.into_iter().map(TenantSession::from).collect();
        Ok(SessionPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn revoke_session(&self, account: &AccountId, id: &str) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let revoked = repository::revoke(&mut conn, account, id, self.clock.now()).await?;
        drop(conn);
        revoked.ok_or_else(|| Error::not_found(Code::SessionNotFound, "session", id))?;
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
        self.known.changed(tenant).await?;
        Ok(revoked)
    }
}

/// Whom a session token stands for; `None` when it is not one of ours.
pub(crate) async fn authenticate(auth: &PgAuthService, token: &str) -> Result<Option<Known>> {
    let Some(claims) = token::verify(&auth.signing, token).await? else { return Ok(None) };
    let Ok(account) = AccountId::parse(&claims.cid) else { return Ok(None) };
    let conn = auth.db.read().await?;
    let Some((row, key)) = repository::find(&mut conn.get(), &account, &claims.jti).await? else { return Ok(None) };
    let (minter_is_gone, minted_for) = match (&key, &row.api_key_id.split('|').collect::<Vec<_>>()[..]) {
        (Some(key), _) => (key.disabled, None),
        // An application minted it for a user.
        (None, ["oauth", user, _]) => match users::find(conn.get(), &account, user).await? {
            Some(user) => (user.disabled, (user.role() != Role::Admin).then_some(user.id)),
            None => (true, None),
        },
        (None, _) => (true, None),
    };
    let subtenant = row.subtenant_id.as_deref().map_or_else(String::new, |subtenant| format!(":{subtenant}"));
    let caller = Caller {
        account: stored_account(&row.account_id)?,
        user_uid: format!("tenant:{}{subtenant}", row.tenant_id),
        projects: key.as_ref().and_then(|key| key.project_ids.clone()),
        credential: Credential::Session(Session {
            id: row.id,
            tenant_id: row.tenant_id,
            subtenant_id: row.subtenant_id,
            assistants: row.assistant_ids,
            minted_for,
        }),
    };
    Ok(Some(Known {
        identity: Arc::new(Identity { caller, rights: Rights::Session }),
        is_revoked: row.revoked_ms.is_some() || minter_is_gone,
        expires: [Some(row.expires_ms + LEEWAY_MS), key.and_then(|key| key.expires_at_ms)]
            .into_iter()
            .flatten()
            .min()
            .map(Timestamp),
        touched: None,
    }))
}
