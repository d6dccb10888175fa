//! `/v1/tenant-usage`, `/v1/tenant-admin`

use std::{sync::Arc, time::Duration};

use platform_access::Kind;
use platform_core::{Error, Id, Result};
use platform_http::{Answer, Group, OpenTo, Request, account_key, key, session};
use platform_tenants::{
    HistoryFilter, Metric, NewTier, PgTenantService, Subtenant, Tenant, UsageService, WindowUnit,
    code::INVALID_USAGE_AMOUNT,
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::tenants::{SUBTENANT, TENANT};
use crate::module::{Keeper, Module};

/// Tiers.
const TIER: Kind = Kind::of_account("tier");

fn admin_group(services: Arc<dyn UsageService>) -> Group {
    let mut group = Group::of("tenant-admin", "Tiers and quotas of tenants, and changes to them", services)
        .naming("subtenantId", SUBTENANT)
        .naming("tenantId", TENANT)
        .naming("tierId", TIER);
    let read = account_key("tenant-admin:read");
    group.post("/v1/tenant-admin/tiers", OpenTo::ADMIN, create_tier).with(spec::create_tier);
    group.put("/v1/tenant-admin/tiers/{tierId}", OpenTo::ADMIN, replace_tier).with(spec::replace_tier);
    group.delete("/v1/tenant-admin/tiers/{tierId}", OpenTo::ADMIN, delete_tier).with(spec::delete_tier);
    group
        .post("/v1/tenant-admin/{tenantId}/add-usage", OpenTo::ADMIN, add_usage)
        .with(spec::add_usage)
        .counting(INVALID_USAGE_AMOUNT);
    group.get("/v1/tenant-admin/{tenantId}/audit", read, audit).with(spec::audit);
    group
        .post("/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/add-usage", OpenTo::ADMIN, add_usage)
        .with(spec::add_usage)
        .counting(INVALID_USAGE_AMOUNT);
    group.get("/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/audit", read, audit).with(spec::audit);
    group
        .post("/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/tier", OpenTo::ADMIN, set_tier)
        .with(spec::set_tier);
    group
        .post("/v1/tenant-admin/{tenantId}/subtenants/{subtenantId}/usage-limits/reset", OpenTo::ADMIN, reset)
        .with(spec::reset);
    group.post("/v1/tenant-admin/{tenantId}/tier", OpenTo::ADMIN, set_tier).with(spec::set_tier);
    group.put("/v1/tenant-admin/{tenantId}/usage-limits", OpenTo::ADMIN, set_limits).with(spec::set_limits);
    group.get("/v1/tenant-admin/{tenantId}/usage-limits", read, limits).with(spec::limits);
    group.post("/v1/tenant-admin/{tenantId}/usage-limits/reset", OpenTo::ADMIN, reset).with(spec::reset);
    group.build()
}

/// What tenants have used, and may.
pub(crate) fn module(tenants: &Arc<PgTenantService>, run_lease: Duration) -> Module {
    Module {
        groups: vec![group(tenants.clone()), admin_group(tenants.clone())],
        keepers: vec![
            Keeper::new("usage windows", Arc::clone(tenants).keep()),
            Keeper::new("usage reservations", Arc::clone(tenants).keep_reservations(run_lease)),
        ],
        ..Module::default()
    }
}

fn group(services: Arc<dyn UsageService>) -> Group {
    let mut group = Group::of("tenant-usage", "What tenants and their end users have used, and may", services)
        .naming("subtenantId", SUBTENANT)
        .naming("tenantId", TENANT);
    let session_read = session("tenant-usage:read");
    group.get("/v1/tenant-usage/tiers", key("tenant-usage:read"), tiers).with(spec::tiers);
    group.get("/v1/tenant-usage/{tenantId}", session_read, usage).with(spec::usage);
    group.get("/v1/tenant-usage/{tenantId}/history", session_read, history).with(spec::history);
    group.get("/v1/tenant-usage/{tenantId}/subtenants/{subtenantId}", session_read, usage).with(spec::usage);
    group
        .get("/v1/tenant-usage/{tenantId}/subtenants/{subtenantId}/history", session_read, history_of_subtenant)
        .with(spec::history_of_subtenant);
    group.build()
}

/// The tenant of the path, and the end user if it names one.
fn whose(request: &Request) -> (Id<Tenant>, Option<Id<Subtenant>>) {
    (request.id("tenantId"), request.path.get("subtenantId").map(|name| Id::named(name)))
}

async fn tiers(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (tiers, total) = usage.tiers(request.account()?).await?;
    Ok(Answer::ok(&tiers)?.header("x-total-count", total.to_string()))
}

async fn create_tier(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (account, once) = (request.account()?, request.once.as_ref());
    let tier = usage.create_tier(account, request.body().await?, once).await?;
    Ok(Answer::created(&tier)?.etag(tier.version))
}

async fn replace_tier(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (id, new): (_, NewTier) = (request.path("tierId"), request.body().await?);
    if !new.tier_id.is_empty() && new.tier_id != id {
        let message = format!("tierId: the address names the tier `{id}`; leave it out, or say the same");
        return Err(Error::invalid("tierId", "conflict", message));
    }
    let tier = NewTier { tier_id: id.to_owned(), ..new };
    let tier = usage.replace_tier(request.account()?, tier, &request.if_match()?).await?;
    Ok(Answer::ok(&tier)?.etag(tier.version))
}

async fn delete_tier(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (account, tier) = (request.account()?, &request.id("tierId"));
    usage.delete_tier(account, tier, &request.if_match()?).await?;
    Answer::deleted("tier", tier)
}

async fn usage(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (account, (tenant, subtenant)) = (request.account()?, whose(&request));
    Answer::ok(&usage.usage(account, &tenant, subtenant.as_ref(), request.session().is_some()).await?)
}

async fn history(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let filter: HistoryFilter = request.query()?;
    rows(&*usage, &request, &filter).await
}

/// Which windows of an end user to list.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct SubtenantHistoryQuery {
    /// Only this metric.
    metric: Option<Metric>,
    /// Only windows of this unit.
    window_unit: Option<WindowUnit>,
    /// Windows that end at or after, epoch milliseconds.
    from: Option<i64>,
    /// Windows that begin at or before.
    to: Option<i64>,
}

async fn history_of_subtenant(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let SubtenantHistoryQuery { metric, window_unit, from, to } = request.query()?;
    let subtenant_id = Some(request.path("subtenantId").to_owned());
    rows(&*usage, &request, &HistoryFilter { metric, window_unit, scope: None, subtenant_id, from, to }).await
}

async fn rows(usage: &dyn UsageService, request: &Request, filter: &HistoryFilter) -> Result<Answer> {
    let account = request.account()?;
    let (rows, total) = usage.history(account, &request.id("tenantId"), filter, request.page()?).await?;
    Ok(Answer::ok(&rows)?.header("x-total-count", total.to_string()))
}

async fn limits(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    Answer::ok(&usage.limits(request.account()?, &request.id("tenantId")).await?)
}

async fn set_limits(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (caller, tenant) = (request.caller()?, &request.id("tenantId"));
    Answer::ok(&usage.set_limits(caller, tenant, request.body().await?).await?)
}

async fn add_usage(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (caller, (tenant, subtenant), once) = (request.caller()?, whose(&request), request.once.as_ref());
    Answer::ok(&usage.add_usage(caller, &tenant, subtenant.as_ref(), request.body().await?, once).await?)
}

/// Whose counters.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResetQuery {
    /// Those of this end user instead of the tenant's.
    subtenant_id: Option<String>,
}

async fn reset(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let ResetQuery { subtenant_id } = request.query()?;
    let (caller, (tenant, subtenant), once) = (request.caller()?, whose(&request), request.once.as_ref());
    let subtenant = subtenant.or_else(|| subtenant_id.as_deref().map(Id::named));
    Answer::ok(&usage.reset(caller, &tenant, subtenant.as_ref(), request.body().await?, once).await?)
}

async fn set_tier(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (caller, (tenant, subtenant), once) = (request.caller()?, whose(&request), request.once.as_ref());
    Answer::ok(&usage.set_tier(caller, &tenant, subtenant.as_ref(), request.patch().await?, once).await?)
}

async fn audit(usage: Arc<dyn UsageService>, request: Request) -> Result<Answer> {
    let (account, (tenant, subtenant)) = (request.account()?, whose(&request));
    Answer::ok(&usage.audit(account, &tenant, subtenant.as_ref(), request.page()?).await?)
}

mod spec {
    use platform_tenants::{
        AddedUsage, AuditPage, HistoryFilter, HistoryRow, Limits, NewLimits, NewTier, NewUsage, Reset, ResetDone, Tier,
        TierChange, TierChanged, Usage,
    };

    use super::ResetQuery;
    use platform_http::{Deleted, Operation};

    pub fn tiers() -> Operation {
        Operation::new("List tiers").answers::<Vec<Tier>>(200)
    }
    pub fn create_tier() -> Operation {
        Operation::new("Make a tier").body::<NewTier>().requires(&["tierId", "name"]).answers::<Tier>(201)
    }
    pub fn replace_tier() -> Operation {
        Operation::new("Replace a tier, for all its tenants at once").body::<NewTier>().answers::<Tier>(200)
    }
    pub fn delete_tier() -> Operation {
        Operation::new("Delete a tier that nobody has").answers::<Deleted>(200)
    }
    pub fn usage() -> Operation {
        Operation::new("How the rules of a tenant or end user stand").answers::<Usage>(200)
    }
    pub fn history() -> Operation {
        Operation::new("Windows that have ended, newest first")
            .query::<HistoryFilter>()
            .paged(100, 1000)
            .answers::<Vec<HistoryRow>>(200)
    }
    pub fn history_of_subtenant() -> Operation {
        Operation::new("Windows of an end user that have ended, newest first")
            .query::<super::SubtenantHistoryQuery>()
            .paged(100, 1000)
            .answers::<Vec<HistoryRow>>(200)
    }
    pub fn limits() -> Operation {
        Operation::new("Rules of a tenant").answers::<Limits>(200)
    }
    pub fn set_limits() -> Operation {
        Operation::new("Replace the rules of a tenant alone")
            .body::<NewLimits>()
            .requires(&["rules"])
            .answers::<Limits>(200)
    }
    pub fn add_usage() -> Operation {
        Operation::new("Add usage from outside").body::<NewUsage>().answers::<AddedUsage>(200)
    }
    pub fn reset() -> Operation {
        Operation::new("Have the windows of now begin anew")
            .query::<ResetQuery>()
            .body::<Reset>()
            .answers::<ResetDone>(200)
    }
    pub fn set_tier() -> Operation {
        Operation::new("Give a tenant or end user another tier")
            .body::<TierChange>()
            .requires(&["tierId"])
            .answers::<TierChanged>(200)
    }
    pub fn audit() -> Operation {
        Operation::new("What was changed by hand").paged(20, 100).answers::<AuditPage>(200)
    }
}
