use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{
    AccountId, Bound, Caller, Checks, Code, Error, Id, Object, Page, Period, Precondition, Result, Timestamp, misfit,
};
use platform_db::{Conn, Idempotency};
use serde_json::{Value, json, value::to_raw_value};

use super::{
    history,
    model::{
        AddedUsage, HistoryFilter, HistoryRow, Limits, NewLimits, NewUsage, Reset, ResetDone, TierChange, TierChanged,
        Usage, UsageEntry, check_reason, shown,
    },
    tiers,
};
use crate::{
    PgTenantService,
    audit::{self, AuditPage},
    code,
    costs::{self, CostTotals, Of, ProjectCosts},
    quota::{Standing, clear, counted, counters, settle_in, spent},
    rule::{Effective, Metric, NewTier, Rule, Tier, check_rules},
    tenant::{
        Subtenant, Tenant, TenantInfo, exists, find, find_user, lock, not_found, register_in, standing, user_not_found,
    },
};

/// What tenants may take and took.
#[async_trait]
pub trait UsageService: Send + Sync {
    /// Tiers, newest first, as many as a list holds; and how many there are.
    async fn tiers(&self, account: &AccountId) -> Result<(Vec<Tier>, usize)>;
    /// Makes a tier; `IDENTIFIER_TAKEN` when there is one of that name.
    async fn create_tier(&self, account: &AccountId, new: NewTier, once: Option<&Idempotency>) -> Result<Tier>;
    /// Replaces a tier, for all its tenants at once.
    async fn replace_tier(&self, account: &AccountId, new: NewTier, expected: &Precondition) -> Result<Tier>;
    /// Takes a tier away that nobody has; `TIER_IN_USE` otherwise.
    async fn delete_tier(&self, account: &AccountId, tier: &Id<Tier>, expected: &Precondition) -> Result<()>;
    /// Rules of a tenant.
    async fn limits(&self, account: &AccountId, tenant: &Id<Tenant>) -> Result<Limits>;
    /// Replaces the rules of a tenant alone; one that was never seen is registered.
    async fn set_limits(&self, caller: &Caller, tenant: &Id<Tenant>, new: NewLimits) -> Result<Limits>;
    /// How the rules of a tenant, or of one of its end users, stand; `strangers` may ask for one never seen.
    async fn usage(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        strangers: bool,
    ) -> Result<Usage>;
    /// Windows that have ended, newest first, and how many there are.
    async fn history(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        filter: &HistoryFilter,
        page: Page,
    ) -> Result<(Vec<HistoryRow>, i64)>;
    /// Adds usage from outside, whole, unless a window is spent already.
    async fn add_usage(
        &self,
        caller: &Caller,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        new: NewUsage,
        once: Option<&Idempotency>,
    ) -> Result<AddedUsage>;
    /// Has the windows of now begin anew.
    async fn reset(
        &self,
        caller: &Caller,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        which: Reset,
        once: Option<&Idempotency>,
    ) -> Result<ResetDone>;
    /// Gives a tenant, or one of its end users, another tier.
    async fn set_tier(
        &self,
        caller: &Caller,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        change: Object,
        once: Option<&Idempotency>,
    ) -> Result<TierChanged>;
    /// What was spent in a project by day, or with `by_month` by month, and the period that was asked for; only those in
    /// which something was. `tenant`: for that one alone.
    async fn project_costs(
        &self,
        account: &AccountId,
        project: &str,
        tenant: Option<&str>,
        by_month: bool,
        range: (Bound<'_>, Bound<'_>),
    ) -> Result<(Period, ProjectCosts)>;
    /// What was spent in a project in all, and in the last 30 days.
    async fn project_totals(&self, account: &AccountId, project: &str) -> Result<(CostTotals, CostTotals)>;
    /// What was changed by hand.
    async fn audit(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        page: Page,
    ) -> Result<AuditPage>;
}

impl PgTenantService {
    /// `TIER_NOT_FOUND` when there is no such tier; it stays until the end of the transaction. Who does not decide on tiers
    /// may name the default one alone.
    pub(crate) async fn require_tier(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        tier: &str,
        decides: bool,
    ) -> Result<()> {
        let found = tiers::lock(conn, account, tier).await?;
        if !decides && !found.as_ref().is_some_and(|tier| tier.is_default) {
            let message = "Only a full API key of the whole account gives a tenant another tier than the default.";
            return Err(Error::new(platform_auth::code::FULL_KEY_REQUIRED, message));
        }
        found.map(drop).ok_or_else(|| tier_not_found(tier))
    }

    /// How rules stand in the windows of now.
    async fn entries(
        &self,
        conn: &Conn,
        account: &AccountId,
        tenant: &str,
        rules: &[Effective],
    ) -> Result<Vec<UsageEntry>> {
        let counters = counters(conn, account, rules.iter().map(|found| (tenant, found))).await?;
        let entry = |(found, counter): (&Effective, &crate::quota::Counter)| {
            UsageEntry::new(found, counter.consumed, counter.external, Timestamp(counter.resets_ms))
        };
        Ok(rules.iter().zip(&counters).map(entry).collect())
    }

    async fn register_for(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        tenant: &str,
        subtenant: Option<&str>,
    ) -> Result<()> {
        let mut checks = Checks::default();
        checks.tenants(Some(tenant), subtenant);
        checks.finish().map_err(|_| not_found(tenant))?;
        let info = TenantInfo::of(tenant, subtenant, &Object::new(), false);
        register_in(conn, account, &info, self.clock.now()).await
    }
}

#[async_trait]
impl UsageService for PgTenantService {
    async fn tiers(&self, account: &AccountId) -> Result<(Vec<Tier>, usize)> {
        tiers::list(&*self.db.fair_conn(account).await?, account).await
    }

    async fn create_tier(&self, account: &AccountId, mut new: NewTier, once: Option<&Idempotency>) -> Result<Tier> {
        new.check()?;
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let creating = conn.transaction::<_, Error, _>(async |conn| {
            tiers::lock_default(conn, account).await?;
            if !tiers::insert(conn, account, &new, now).await? {
                let message = format!("There is a tier `{}` already.", new.tier_id);
                return Err(Error::new(Code::IDENTIFIER_TAKEN, message));
            }
            let tier = tiers::lock(conn, account, &new.tier_id).await?.ok_or_else(|| tier_not_found(&new.tier_id))?;
            Idempotency::store_if(once, conn, 201, &tier).await?;
            Ok(tier)
        });
        let tier = creating.await?;
        drop(conn);
        self.quotas.changed(&tier.tier_id).await?;
        Ok(tier)
    }

    async fn replace_tier(&self, account: &AccountId, mut new: NewTier, expected: &Precondition) -> Result<Tier> {
        new.check()?;
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let replacing = conn.transaction::<_, Error, _>(async |conn| {
            tiers::lock_default(conn, account).await?;
            let missing = || tier_not_found(&new.tier_id);
            let current = tiers::lock(conn, account, &new.tier_id).await?.ok_or_else(missing)?;
            expected.check(current.version)?;
            tiers::replace(conn, account, &new, now).await?;
            tiers::lock(conn, account, &new.tier_id).await?.ok_or_else(missing)
        });
        let tier = replacing.await?;
        drop(conn);
        self.quotas.changed(&tier.tier_id).await?;
        Ok(tier)
    }

    async fn delete_tier(&self, account: &AccountId, tier: &Id<Tier>, expected: &Precondition) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            let current = tiers::lock(conn, account, tier).await?.ok_or_else(|| tier_not_found(tier))?;
            expected.check(current.version)?;
            if current.is_default || tiers::is_assigned(conn, account, tier).await? {
                let message =
                    format!("The tier `{tier}` is the default or somebody has it; give them another one first.");
                return Err(Error::new(code::TIER_IN_USE, message).with("isDefault", current.is_default));
            }
            tiers::delete(conn, account, tier).await
        });
        deleting.await?;
        drop(conn);
        self.quotas.changed(tier).await
    }

    async fn limits(&self, account: &AccountId, tenant: &Id<Tenant>) -> Result<Limits> {
        let conn = self.db.read().await?;
        let found = find(conn.get(), account, tenant).await?.ok_or_else(|| not_found(tenant))?;
        let rules = found.rules()?;
        let tier = tiers::holding(conn.get(), account, found.tier_id).await?;
        let replaced = |rule: &Rule| rules.iter().any(|own| own.replaces(rule));
        let mut effective = Vec::new();
        if let Some(tier) = &tier {
            let kept = tier.rules.iter().filter(|rule| rule.enabled && !replaced(rule));
            for rule in kept {
                effective.push(shown(rule, Some(&tier.tier_id))?);
            }
        }
        for rule in rules.iter().filter(|rule| rule.enabled) {
            effective.push(shown(rule, None)?);
        }
        Ok(Limits { rules, effective })
    }

    async fn set_limits(&self, caller: &Caller, tenant: &Id<Tenant>, mut new: NewLimits) -> Result<Limits> {
        let mut checks = Checks::default();
        let mut rules = new.rules.take().unwrap_or_else(|| {
            checks.issue("rules", "required", "rules is required; [] clears those there are");
            Vec::new()
        });
        check_rules(&mut checks, &mut rules);
        checks.finish()?;
        let account = &caller.account;
        let mut conn = self.db.conn().await?;
        let setting = conn.transaction::<_, Error, _>(async |conn| {
            self.register_for(conn, account, tenant, None).await?;
            let before = lock(conn, account, tenant).await?.ok_or_else(|| not_found(tenant))?.rules()?;
            let rules = serde_json::to_value(&rules).map_err(Error::internal)?;
            tiers::set_rules(conn, account, tenant, rules.clone()).await?;
            let body = json!({"from": before, "to": rules});
            audit::note_in(conn, caller, (tenant, None), "limits", body, self.clock.now()).await
        });
        setting.await?;
        drop(conn);
        self.quotas.changed(tenant).await?;
        self.limits(account, tenant).await
    }

    async fn usage(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        strangers: bool,
    ) -> Result<Usage> {
        let subtenant = subtenant.map(Id::as_str);
        let (tenant_id, subtenant_id) = (tenant.to_string(), subtenant.map(str::to_owned));
        let conn = self.db.read().await?;
        let conn = conn.get();
        let Some(found) = find(conn, account, tenant).await? else {
            if strangers {
                return Ok(Usage { tenant_id, subtenant_id, tier_id: None, usage: Vec::new() });
            }
            return Err(not_found(tenant));
        };
        let user = match subtenant {
            Some(subtenant) => find_user(conn, account, tenant, subtenant).await?,
            None => None,
        };
        if let Some(subtenant) = subtenant.filter(|_| user.is_none() && !strangers) {
            return Err(user_not_found(subtenant));
        }
        // An end user may have a tier of their own.
        let tier_id = user.and_then(|user| user.tier_id).or(found.tier_id);
        let tier_id = tiers::holding(conn, account, tier_id).await?.map(|tier| tier.tier_id);
        let standing = standing(conn, account, tenant, subtenant).await?;
        let usage = self.entries(conn, account, tenant, &standing.rules).await?;
        Ok(Usage { tenant_id, subtenant_id, tier_id, usage })
    }

    async fn history(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        filter: &HistoryFilter,
        page: Page,
    ) -> Result<(Vec<HistoryRow>, i64)> {
        if let (Some(from), Some(to)) = (filter.from, filter.to)
            && from > to
        {
            return Err(Error::new(Code::INVALID_TIME_RANGE, "from must not be after to."));
        }
        history::list(&*self.db.fair_conn(account).await?, account, tenant, filter, page).await
    }

    async fn add_usage(
        &self,
        caller: &Caller,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        new: NewUsage,
        once: Option<&Idempotency>,
    ) -> Result<AddedUsage> {
        let amounts = new.check()?;
        let (account, subtenant) = (&caller.account, subtenant.map(Id::as_str));
        let mut conn = self.db.conn().await?;
        let adding = conn.transaction::<_, Error, _>(async |conn| {
            if let Some(once) = once {
                once.lock(conn).await?;
            }
            self.register_for(conn, account, tenant, subtenant).await?;
            let Standing { rules, .. } = standing(conn, account, tenant, subtenant).await?;
            let took = |tokens: i64, cost: i64| {
                to_raw_value(&json!({"id": Id::<NewUsage>::generate(), "account": account, "tenant": tenant,
                    "subtenant": subtenant.unwrap_or_default(), "kind": "external", "spender": amounts.source,
                    "input": tokens, "output": 0, "cost": cost, "secondary": false, "exempt": false, "external": true,
                    "rules": rules.iter().map(counted).collect::<Vec<_>>()}))
                .map(Arc::from)
                .map_err(Error::internal)
            };
            // Adding nothing makes the counters and locks them: who comes at the same moment waits here.
            settle_in(conn, &[took(0, 0)?]).await?;
            if let Some(refusal) = spent(conn, account, tenant, &rules).await? {
                return Err(Error::from(&refusal));
            }
            settle_in(conn, &[took(amounts.tokens, Metric::Cost.counted(amounts.cost))?]).await?;
            let counts = |found: &Effective| match found.rule.metric {
                Metric::Tokens => amounts.tokens > 0,
                Metric::Cost => amounts.cost > 0.0,
            };
            let applied = amounts.applied(rules.iter().any(counts));
            let body = json!({"source": amounts.source, "reason": new.reason, "amounts": applied});
            let now = self.clock.now();
            audit::note_in(conn, caller, (tenant, subtenant), "add_usage", body, now).await?;
            let added = AddedUsage {
                tenant_id: tenant.to_string(),
                subtenant_id: subtenant.map(str::to_owned),
                source: amounts.source.clone(),
                applied,
                usage: self.entries(conn, account, tenant, &rules).await?,
            };
            Idempotency::store_if(once, conn, 200, &added).await?;
            Ok(added)
        });
        adding.await
    }

    async fn reset(
        &self,
        caller: &Caller,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        which: Reset,
        once: Option<&Idempotency>,
    ) -> Result<ResetDone> {
        check_reason(which.reason.as_deref())?;
        let (account, subtenant) = (&caller.account, subtenant.map(Id::as_str));
        let mut conn = self.db.conn().await?;
        let resetting = conn.transaction::<_, Error, _>(async |conn| {
            if !exists(conn, account, tenant).await? {
                return Err(not_found(tenant));
            }
            let cleared = clear(conn, account, tenant, subtenant, &which).await?;
            let body = json!({"reason": which.reason, "amounts": {"cleared": cleared},
                "from": {"metric": which.metric, "windowUnit": which.window_unit}});
            audit::note_in(conn, caller, (tenant, subtenant), "reset", body, self.clock.now()).await?;
            let Standing { rules, .. } = standing(conn, account, tenant, subtenant).await?;
            let usage = self.entries(conn, account, tenant, &rules).await?;
            let done = ResetDone { success: true, cleared, usage };
            Idempotency::store_if(once, conn, 200, &done).await?;
            Ok(done)
        });
        resetting.await
    }

    async fn set_tier(
        &self,
        caller: &Caller,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        change: Object,
        once: Option<&Idempotency>,
    ) -> Result<TierChanged> {
        if !change.contains_key("tierId") {
            return Err(Error::invalid("tierId", "required", "tierId is required; null takes the tier away"));
        }
        let given: Object = change.into_iter().filter(|(name, value)| name == "tierId" || !value.is_null()).collect();
        let change: TierChange = serde_path_to_error::deserialize(Value::Object(given)).map_err(|error| {
            let path = error.path().to_string();
            misfit(&path, &error.into_inner())
        })?;
        check_reason(change.reason.as_deref())?;
        let (account, subtenant, now) = (&caller.account, subtenant.map(Id::as_str), self.clock.now());
        let mut conn = self.db.conn().await?;
        let changing = conn.transaction::<_, Error, _>(async |conn| {
            let missing = || subtenant.map_or_else(|| not_found(tenant), user_not_found);
            let before = tiers::assigned(conn, account, tenant, subtenant).await?.ok_or_else(missing)?;
            if let Some(tier) = &change.tier_id {
                self.require_tier(conn, account, tier, true).await?;
            }
            tiers::assign(conn, account, tenant, subtenant, change.tier_id.as_deref()).await?;
            if change.reset_usage {
                clear(conn, account, tenant, subtenant, &Reset::default()).await?;
            }
            let body = json!({"from": before, "to": change.tier_id, "reason": change.reason});
            audit::note_in(conn, caller, (tenant, subtenant), "tier", body, now).await?;
            let Standing { rules, .. } = standing(conn, account, tenant, subtenant).await?;
            let changed = TierChanged {
                tenant_id: tenant.to_string(),
                subtenant_id: subtenant.map(str::to_owned),
                tier_id: change.tier_id.clone(),
                previous_tier_id: before,
                usage: self.entries(conn, account, tenant, &rules).await?,
            };
            Idempotency::store_if(once, conn, 200, &changed).await?;
            Ok(changed)
        });
        let changed = changing.await?;
        drop(conn);
        self.quotas.changed(tenant).await?;
        Ok(changed)
    }

    async fn project_costs(
        &self,
        account: &AccountId,
        project: &str,
        tenant: Option<&str>,
        by_month: bool,
        range: (Bound<'_>, Bound<'_>),
    ) -> Result<(Period, ProjectCosts)> {
        let period = Period::of(by_month, range, self.clock.now())?;
        let conn = self.db.fair_conn(account).await?;
        Ok((period, costs::of_project(&conn, account, Of::Project(project, tenant), period).await?))
    }

    async fn project_totals(&self, account: &AccountId, project: &str) -> Result<(CostTotals, CostTotals)> {
        let month = Period::days(("", None), ("", None), self.clock.now())?;
        let (conn, of) = (self.db.fair_conn(account).await?, Of::Project(project, None));
        let all = costs::totals(&conn, account, of, None).await?;
        Ok((all, costs::totals(&conn, account, of, Some(month.first)).await?))
    }

    async fn audit(
        &self,
        account: &AccountId,
        tenant: &Id<Tenant>,
        subtenant: Option<&Id<Subtenant>>,
        page: Page,
    ) -> Result<AuditPage> {
        audit::list(&*self.db.fair_conn(account).await?, account, tenant, subtenant.map(Id::as_str), page).await
    }
}

fn tier_not_found(tier: &str) -> Error {
    Error::not_found(code::TIER_NOT_FOUND, "tier", tier)
}
