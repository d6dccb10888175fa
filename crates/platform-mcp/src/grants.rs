//! Grants: who sees a profile that is not theirs anyway, and with which tools.

use diesel_async::AsyncConnection;
use platform_access::Kind;
use platform_core::{AccountId, Checks, Code, Error, Id, Page, Result};
use platform_db::Idempotency;

use crate::{
    model::{Grant, GrantFilter, GrantPage, NewGrant, SubjectType, check_names},
    repository::{self, GrantRow},
    service::{PgMcpGateway, not_found},
};

/// Grants of them.
pub const MCP_GRANT: Kind = Kind::of_account("MCP grant");

/// Of an account.
const MAX_GRANTS: i64 = 10_000;
/// Names of tools in all grants of an account, which are kept in memory.
const MAX_GRANTED: i64 = 100_000;

impl PgMcpGateway {
    /// Makes a grant. `PROFILE_NOT_FOUND`.
    pub async fn grant(&self, account: &AccountId, new: NewGrant, once: Option<&Idempotency>) -> Result<Grant> {
        let mut checks = Checks::default();
        checks.length("subject", &new.subject, 1..=400);
        let is_pair = match new.subject_type {
            SubjectType::Subtenant => {
                new.subject.split_once('/').is_some_and(|(tenant, user)| is_tenant(tenant) && is_tenant(user))
            }
            SubjectType::Claim => new.subject.contains('='),
            SubjectType::Tenant => is_tenant(&new.subject),
            _ => true,
        };
        if !is_pair {
            let message =
                "subject of a tenant is its id, of a subtenant <tenantId>/<subtenantId>, of a claim name=value";
            checks.issue("subject", "format", message);
        }
        check_names(&mut checks, "tools", &new.tools);
        checks.finish()?;
        let row = GrantRow {
            account_id: account.as_str().to_owned(),
            id: Id::<Grant>::generate().into(),
            profile_id: new.profile_id,
            subject_type: new.subject_type.as_str().to_owned(),
            subject: new.subject,
            tool_policy: new.tool_policy.as_str().to_owned(),
            tools: new.tools,
            created_ms: self.clock.now().0,
        };
        let mut conn = self.db.conn().await?;
        let granting = conn.transaction::<_, Error, _>(async |conn| {
            let profile = repository::lock_profile(conn, account, &row.profile_id).await?;
            profile.ok_or_else(|| not_found(&row.profile_id))?;
            let (grants, named) = repository::count_grants(conn, account).await?;
            if grants >= MAX_GRANTS || named + i64::try_from(row.tools.len()).unwrap_or(i64::MAX) > MAX_GRANTED {
                let message =
                    format!("An account has at most {MAX_GRANTS} grants, which name at most {MAX_GRANTED} tools.");
                return Err(Error::new(Code::CONFLICT, message));
            }
            repository::insert_grant(conn, &row).await?;
            let made = Grant::from(row.clone());
            Idempotency::store_if(once, conn, 201, &made).await?;
            Ok(made)
        });
        let made = granting.await?;
        drop(conn);
        self.changed(account).await?;
        Ok(made)
    }

    /// Grants that the filter keeps, newest first.
    pub async fn grants(&self, account: &AccountId, filter: &GrantFilter, page: Page) -> Result<GrantPage> {
        let (items, total) = repository::grants(self.db.read().await?.get(), account, filter, page).await?;
        Ok(GrantPage { items, total, offset: page.offset, limit: page.limit })
    }

    /// Takes a grant back. `NOT_FOUND`.
    pub async fn revoke(&self, account: &AccountId, id: &Id<Grant>) -> Result<()> {
        if !repository::delete_grant(&mut *self.db.conn().await?, account, id).await? {
            return Err(Error::not_found(Code::NOT_FOUND, "grant", id));
        }
        self.changed(account).await
    }

    /// Forgets what was granted to somebody who is gone, and what they switched off; of a tenant its end users, too.
    pub async fn forget(&self, account: &AccountId, kind: SubjectType, subject: &str) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let below = kind == SubjectType::Tenant;
        repository::forget_subjects(&mut conn, account, kind.as_str(), subject, below).await?;
        drop(conn);
        self.switches.changed("").await?;
        self.changed(account).await
    }
}

/// Whether this can be the id of a tenant or of an end user.
fn is_tenant(id: &str) -> bool {
    let mut checks = Checks::default();
    checks.tenants(None, Some(id));
    checks.finish().is_ok()
}
