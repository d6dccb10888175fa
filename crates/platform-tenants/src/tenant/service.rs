use std::collections::HashSet;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use futures_util::future::try_join_all;
use platform_auth::revoke_sessions_in;
use platform_core::{AccountId, Bound, Caller, Code, Credential, Error, Id, Object, Page, Period, Result, overlay};
use platform_db::{Conn, Idempotency};

use super::{
    former,
    model::{
        NewTenant, Subtenant, SubtenantPage, SubtenantPatch, Tenant, TenantFilter, TenantInfo, TenantPage, TenantPatch,
        domain_of,
    },
    repository::{self, SUBTENANT, TENANT, TenantRow},
};
use crate::{
    PgTenantService, code,
    costs::{self, CostTotals, Of, TenantCost},
    quota::counters,
    rule::Effective,
};

/// Tenants of an account and their end users.
#[async_trait]
pub trait TenantService: Send + Sync {
    /// Notes that a tenant and its end user were seen; makes them when they are new.
    async fn register(&self, account: &AccountId, info: &TenantInfo) -> Result<()>;
    /// Tenants, newest first.
    async fn list(&self, account: &AccountId, filter: &TenantFilter, page: Page) -> Result<TenantPage>;
    /// Makes a tenant; `IDENTIFIER_TAKEN` when there is one of that name, `FULL_KEY_REQUIRED` when it is to have another tier
    /// than the default and no full key says so.
    async fn create(&self, caller: &Caller, new: NewTenant, once: Option<&Idempotency>) -> Result<Tenant>;
    /// One tenant.
    async fn get(&self, account: &AccountId, tenant: &Id<Tenant>) -> Result<Tenant>;
    /// Changes the given fields, which from then on change by nothing else.
    async fn update(&self, account: &AccountId, tenant: &Id<Tenant>, patch: Object) -> Result<Tenant>;
    /// Takes a tenant away, with its end users and sessions; what it said and cost stays, and so does what holds for it until
    /// the windows of its rules end: coming back buys nothing.
    async fn delete(&self, account: &AccountId, tenant: &Id<Tenant>) -> Result<()>;
    /// What it cost, by day or with `by_month` by month; `within`: beside what is in no project only in these.
    async fn costs(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        within: Option<&[String]>,
        by_month: bool,
        range: (Bound<'_>, Bound<'_>),
    ) -> Result<Vec<TenantCost>>;
    /// What it cost in all.
    async fn totals(&self, account: &AccountId, tenant: &Id<Tenant>, within: Option<&[String]>) -> Result<CostTotals>;
    /// End users of a tenant, newest first.
    async fn list_users(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        filter: &TenantFilter,
        page: Page,
    ) -> Result<SubtenantPage>;
    /// One end user.
    async fn get_user(&self, account: &AccountId, tenant: &Id<Tenant>, subtenant: &Id<Subtenant>) -> Result<Subtenant>;
    /// Changes the given fields, which from then on change by nothing else.
    async fn update_user(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        subtenant: &Id<Subtenant>,
        patch: Object,
    ) -> Result<Subtenant>;
    /// Takes an end user away, with their sessions; what holds for them stays as with tenants.
    async fn delete_user(&self, account: &AccountId, tenant: &Id<Tenant>, subtenant: &Id<Subtenant>) -> Result<()>;
}

impl PgTenantService {
    async fn shown(&self, account: &AccountId, rows: Vec<TenantRow>) -> Result<Vec<Tenant>> {
        let conn = self.db.fair_conn(account).await?;
        let names: Vec<String> = rows.iter().map(|row| row.tenant_id.clone()).collect();
        let users = repository::count_users(&conn, account, &names).await?;
        let blocked = self.blocked(&conn, account, &names).await?;
        let tenant = |row: TenantRow| {
            let (count, blocked) = (users.get(&row.tenant_id).copied(), blocked.contains(&row.tenant_id));
            row.into_tenant(count.unwrap_or(0), blocked)
        };
        Ok(rows.into_iter().map(tenant).collect())
    }

    /// Those of these tenants a rule of whom is spent.
    async fn blocked(&self, conn: &Conn, account: &AccountId, tenants: &[String]) -> Result<HashSet<String>> {
        let standings = tenants.iter().map(|tenant| self.quotas.standing(account, tenant, None));
        let standings = try_join_all(standings).await?;
        let rules: Vec<(&str, &Effective)> = tenants
            .iter()
            .zip(&standings)
            .flat_map(|(tenant, standing)| standing.rules.iter().map(|found| (tenant.as_str(), found)))
            .collect();
        let counters = counters(conn, account, rules.iter().copied()).await?;
        let spent = rules.iter().zip(&counters).filter(|((_, found), counter)| counter.has_spent(found));
        Ok(spent.map(|((tenant, _), _)| (*tenant).to_owned()).collect())
    }
}

#[async_trait]
impl TenantService for PgTenantService {
    async fn register(&self, account: &AccountId, info: &TenantInfo) -> Result<()> {
        let now = self.clock.now();
        let key = (account.clone(), info.tenant_id.clone(), info.subtenant_id.clone());
        let write = async || {
            let mut conn = self.db.conn().await?;
            conn.transaction::<_, Error, _>(async |conn| repository::register_in(conn, account, info, now).await).await
        };
        let load = async {
            write().await?;
            Ok(Some(crate::service::Seen::new(now, info)))
        };
        let Some(seen) = self.seen.get_or_load(&key, load).await? else { return Ok(()) };
        if seen.is_due(now, info) {
            write().await?;
        }
        Ok(())
    }

    async fn list(&self, account: &AccountId, filter: &TenantFilter, page: Page) -> Result<TenantPage> {
        let conn = self.db.fair_conn(account).await?;
        let (rows, total) = repository::list(&conn, account, filter.search.as_deref(), page).await?;
        drop(conn);
        Ok(TenantPage { items: self.shown(account, rows).await?, total })
    }

    async fn create(&self, caller: &Caller, new: NewTenant, once: Option<&Idempotency>) -> Result<Tenant> {
        new.check()?;
        let account = &caller.account;
        let decides = caller.is_admin() && matches!(caller.credential, Credential::FullKey(_));
        let fields = [
            ("displayName", &new.display_name),
            ("email", &new.email),
            ("imageUrl", &new.image_url),
            ("domain", &new.domain),
        ];
        let is_said = |given: &Option<String>| given.as_ref().is_some_and(|given| !given.is_empty());
        let pinned = fields.iter().filter(|(_, given)| is_said(given)).map(|(name, _)| (*name).to_owned()).collect();
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let creating = conn.transaction::<_, Error, _>(async |conn| {
            if let Some(tier) = &new.tier_id {
                self.require_tier(conn, account, tier, decides).await?;
            }
            if !repository::insert(conn, account, &new, pinned, now).await? {
                let message = format!("There is a tenant `{}` already.", new.tenant_id);
                return Err(Error::new(Code::IDENTIFIER_TAKEN, message));
            }
            former::restore(conn, account, &new.tenant_id, decides && new.tier_id.is_some()).await?;
            let row = repository::lock(conn, account, &new.tenant_id).await?;
            let tenant = row.ok_or_else(|| not_found(&new.tenant_id))?.into_tenant(0, false);
            Idempotency::store_if(once, conn, 201, &tenant).await?;
            Ok(tenant)
        });
        let tenant = creating.await?;
        drop(conn);
        self.quotas.changed(&tenant.tenant_id).await?;
        // What it had spent under this id it has spent.
        self.get(account, &Id::named(&tenant.tenant_id)).await
    }

    async fn get(&self, account: &AccountId, tenant: &Id<Tenant>) -> Result<Tenant> {
        let conn = self.db.read().await?;
        let row = repository::find(conn.get(), account, tenant).await?.ok_or_else(|| not_found(tenant))?;
        drop(conn);
        let mut shown = self.shown(account, vec![row]).await?;
        shown.pop().ok_or_else(|| not_found(tenant))
    }

    async fn update(&self, account: &AccountId, tenant: &Id<Tenant>, patch: Object) -> Result<Tenant> {
        // Fields are judged before it matters what they are applied to.
        overlay(&TenantPatch::default(), patch.clone())?.check()?;
        let mut conn = self.db.conn().await?;
        let updating = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, tenant).await?.ok_or_else(|| not_found(tenant))?;
            let current = TenantPatch {
                display_name: row.display_name.clone(),
                email: row.email.clone(),
                image_url: row.image_url.clone(),
                domain: row.domain.clone(),
                metadata: row.metadata(),
            };
            let known = [
                ("displayName", &row.display_name),
                ("email", &row.email),
                ("imageUrl", &row.image_url),
                ("domain", &row.domain),
            ];
            pin(&mut row.pinned, &patch, &known);
            let changes_domain = patch.contains_key("email") || patch.contains_key("domain");
            let changed = overlay(&current, patch)?;
            changed.check()?;
            let domain_is_its_own = row.pinned.iter().any(|name| name == "domain");
            let follows_mail = changes_domain && !domain_is_its_own;
            row.domain = if follows_mail { domain_of(&changed.email) } else { changed.domain };
            (row.display_name, row.email, row.image_url) = (changed.display_name, changed.email, changed.image_url);
            repository::update(conn, account, &row, changed.metadata).await
        });
        updating.await?;
        drop(conn);
        self.get(account, tenant).await
    }

    async fn delete(&self, account: &AccountId, tenant: &Id<Tenant>) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let now = self.clock.now();
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            if !repository::delete(conn, account, tenant, now).await? {
                return Err(not_found(tenant));
            }
            revoke_sessions_in(conn, account, tenant, None, now).await
        });
        deleting.await?;
        drop(conn);
        self.quotas.changed(tenant).await
    }

    async fn costs(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        within: Option<&[String]>,
        by_month: bool,
        range: (Bound<'_>, Bound<'_>),
    ) -> Result<Vec<TenantCost>> {
        let period = Period::of(by_month, range, self.clock.now())?;
        let conn = self.db.fair_conn(account).await?;
        repository::find(&conn, account, tenant).await?.ok_or_else(|| not_found(tenant))?;
        costs::of_tenant(&conn, account, Of::Tenant(tenant, subtenant.map(Id::as_str), within), period).await
    }

    async fn totals(&self, account: &AccountId, tenant: &Id<Tenant>, within: Option<&[String]>) -> Result<CostTotals> {
        let conn = self.db.fair_conn(account).await?;
        repository::find(&conn, account, tenant).await?.ok_or_else(|| not_found(tenant))?;
        costs::totals(&conn, account, Of::Tenant(tenant, None, within), None).await
    }

    async fn list_users(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        filter: &TenantFilter,
        page: Page,
    ) -> Result<SubtenantPage> {
        let conn = self.db.fair_conn(account).await?;
        repository::find(&conn, account, tenant).await?.ok_or_else(|| not_found(tenant))?;
        let (rows, total) = repository::list_users(&conn, account, tenant, filter.search.as_deref(), page).await?;
        Ok(SubtenantPage { items: rows.into_iter().map(Subtenant::from).collect(), total })
    }

    async fn get_user(&self, account: &AccountId, tenant: &Id<Tenant>, subtenant: &Id<Subtenant>) -> Result<Subtenant> {
        let conn = self.db.read().await?;
        let row = repository::find_user(conn.get(), account, tenant, subtenant).await?;
        Ok(row.ok_or_else(|| user_not_found(subtenant))?.into())
    }

    async fn update_user(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        subtenant: &Id<Subtenant>,
        patch: Object,
    ) -> Result<Subtenant> {
        // Fields are judged before it matters what they are applied to.
        overlay(&SubtenantPatch::default(), patch.clone())?.check()?;
        let mut conn = self.db.conn().await?;
        let updating = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock_user(conn, account, tenant, subtenant).await?;
            let mut row = row.ok_or_else(|| user_not_found(subtenant))?;
            let current = SubtenantPatch {
                display_name: row.display_name.clone(),
                email: row.email.clone(),
                image_url: row.image_url.clone(),
            };
            let known = [("displayName", &row.display_name), ("email", &row.email), ("imageUrl", &row.image_url)];
            pin(&mut row.pinned, &patch, &known);
            let changed = overlay(&current, patch)?;
            changed.check()?;
            (row.display_name, row.email, row.image_url) = (changed.display_name, changed.email, changed.image_url);
            repository::update_user(conn, account, &row).await?;
            Ok(row.into())
        });
        updating.await
    }

    async fn delete_user(&self, account: &AccountId, tenant: &Id<Tenant>, subtenant: &Id<Subtenant>) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let now = self.clock.now();
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            if !repository::delete_user(conn, account, tenant, subtenant, now).await? {
                return Err(user_not_found(subtenant));
            }
            revoke_sessions_in(conn, account, tenant, Some(subtenant), now).await
        });
        deleting.await?;
        drop(conn);
        self.quotas.changed(tenant).await
    }
}

/// What was said of a field stays, whatever messages say of it; what is back at its default does not, and what is sent back
/// as it was read says nothing.
fn pin(pinned: &mut Vec<String>, patch: &Object, fields: &[(&str, &String)]) {
    for (name, known) in fields {
        let Some(value) = patch.get(*name).filter(|value| value.as_str() != Some(known)) else { continue };
        pinned.retain(|pinned| pinned != name);
        if !value.is_null() {
            pinned.push((*name).to_owned());
        }
    }
}

pub(crate) fn not_found(tenant: &str) -> Error {
    Error::not_found(code::TENANT_NOT_FOUND, TENANT, tenant)
}

pub(crate) fn user_not_found(subtenant: &str) -> Error {
    Error::not_found(code::TENANT_NOT_FOUND, SUBTENANT, subtenant)
}
