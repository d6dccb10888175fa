//! `/v1/tenant-usage`, `/v1/tenant-admin`

use platform_core::Result;
use platform_tenants::{HistoryFilter, NewTier};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::{request::Request, respond::Answer};

/// The tenant of the path, and the end user if it names one.
fn whose(request: &Request) -> (&str, Option<&str>) {
    (request.path("tenantId"), request.path.get("subtenantId").map(String::as_str))
}

pub(crate) async fn tiers(request: Request) -> Result<Answer> {
    Answer::ok(&request.services.usage.tiers(&request.caller()?.account).await?)
}

pub(crate) async fn create_tier(request: Request) -> Result<Answer> {
    let (account, once) = (&request.caller()?.account, request.once.as_ref());
    let tier = request.services.usage.create_tier(account, request.body()?, once).await?;
    Ok(Answer::created(&tier)?.header("etag", format!("\"{}\"", tier.version)))
}

pub(crate) async fn replace_tier(request: Request) -> Result<Answer> {
    let tier = NewTier { tier_id: request.path("tierId").to_owned(), ..request.body()? };
    let tier = request.services.usage.replace_tier(&request.caller()?.account, tier, &request.if_match()?).await?;
    Ok(Answer::ok(&tier)?.header("etag", format!("\"{}\"", tier.version)))
}

pub(crate) async fn delete_tier(request: Request) -> Result<Answer> {
    let (account, tier) = (&request.caller()?.account, request.path("tierId"));
    request.services.usage.delete_tier(account, tier, &request.if_match()?).await?;
    Answer::deleted("tier", tier)
}

pub(crate) async fn usage(request: Request) -> Result<Answer> {
    let (account, (tenant, subtenant)) = (&request.caller()?.account, whose(&request));
    Answer::ok(&request.services.usage.usage(account, tenant, subtenant, request.session().is_some()).await?)
}

pub(crate) async fn history(request: Request) -> Result<Answer> {
    let (account, (tenant, subtenant)) = (&request.caller()?.account, whose(&request));
    let mut filter: HistoryFilter = request.query()?;
    if let Some(subtenant) = subtenant {
        filter.subtenant_id = Some(subtenant.to_owned());
    }
    let (rows, total) = request.services.usage.history(account, tenant, &filter, request.page(100, 1000)?).await?;
    Ok(Answer::ok(&rows)?.header("x-total-count", total.to_string()))
}

pub(crate) async fn limits(request: Request) -> Result<Answer> {
    Answer::ok(&request.services.usage.limits(&request.caller()?.account, request.path("tenantId")).await?)
}

pub(crate) async fn set_limits(request: Request) -> Result<Answer> {
    let (caller, tenant) = (request.caller()?, request.path("tenantId"));
    Answer::ok(&request.services.usage.set_limits(caller, tenant, request.body()?).await?)
}

pub(crate) async fn add_usage(request: Request) -> Result<Answer> {
    let (caller, (tenant, subtenant), once) = (request.caller()?, whose(&request), request.once.as_ref());
    Answer::ok(&request.services.usage.add_usage(caller, tenant, subtenant, request.body()?, once).await?)
}

/// Whose counters.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResetQuery {
    /// Those of this end user instead of the tenant's.
    subtenant_id: Option<String>,
}

pub(crate) async fn reset(request: Request) -> Result<Answer> {
    let ResetQuery { subtenant_id } = request.query()?;
    let (caller, (tenant, subtenant), once) = (request.caller()?, whose(&request), request.once.as_ref());
    let subtenant = subtenant.or(subtenant_id.as_deref());
    Answer::ok(&request.services.usage.reset(caller, tenant, subtenant, request.body()?, once).await?)
}

pub(crate) async fn set_tier(request: Request) -> Result<Answer> {
    let (caller, (tenant, subtenant), once) = (request.caller()?, whose(&request), request.once.as_ref());
    Answer::ok(&request.services.usage.set_tier(caller, tenant, subtenant, request.patch()?, once).await?)
}

pub(crate) async fn audit(request: Request) -> Result<Answer> {
    let (account, (tenant, subtenant)) = (&request.caller()?.account, whose(&request));
    Answer::ok(&request.services.usage.audit(account, tenant, subtenant, request.page(20, 100)?).await?)
}

pub(super) mod spec {
    use platform_tenants::{
        AddedUsage, AuditPage, HistoryFilter, HistoryRow, Limits, NewLimits, NewTier, NewUsage, Reset, ResetDone, Tier,
        TierChange, TierChanged, Usage,
    };

    use super::ResetQuery;
    use crate::openapi::{Deleted, Operation};

    pub fn tiers() -> Operation {
        Operation::new("List tiers").answers::<Vec<Tier>>(200)
    }
    pub fn create_tier() -> Operation {
        Operation::new("Make a tier").body::<NewTier>().answers::<Tier>(201)
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
            .paged()
            .answers::<Vec<HistoryRow>>(200)
    }
    pub fn limits() -> Operation {
        Operation::new("Rules of a tenant").answers::<Limits>(200)
    }
    pub fn set_limits() -> Operation {
        Operation::new("Replace the rules of a tenant alone").body::<NewLimits>().answers::<Limits>(200)
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
        Operation::new("Give a tenant or end user another tier").body::<TierChange>().answers::<TierChanged>(200)
    }
    pub fn audit() -> Operation {
        Operation::new("What was changed by hand").paged().answers::<AuditPage>(200)
    }
}
