//! `/v1/tenants`

use platform_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{request::Request, respond::Answer};

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let (account, filter) = (&request.caller()?.account, request.query()?);
    Answer::ok(&request.services.tenants.list(account, &filter, request.page(50, 200)?).await?)
}

pub(crate) async fn create(request: Request) -> Result<Answer> {
    let (caller, once) = (request.caller()?, request.once.as_ref());
    Answer::created(&request.services.tenants.create(caller, request.body()?, once).await?)
}

pub(crate) async fn get(request: Request) -> Result<Answer> {
    Answer::ok(&request.services.tenants.get(&request.caller()?.account, request.path("tenantId")).await?)
}

pub(crate) async fn update(request: Request) -> Result<Answer> {
    let (account, tenant) = (&request.caller()?.account, request.path("tenantId"));
    Answer::ok(&request.services.tenants.update(account, tenant, request.patch()?).await?)
}

pub(crate) async fn delete(request: Request) -> Result<Answer> {
    let (account, tenant) = (&request.caller()?.account, request.path("tenantId"));
    request.services.tenants.delete(account, tenant).await?;
    // They have ended with it; whoever is remembered is forgotten.
    request.services.sessions.revoke_sessions(account, Some(tenant), None).await?;
    Answer::deleted("tenant", tenant)
}

/// Which costs.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CostQuery {
    /// `daily` (the default) or `monthly`.
    granularity: Option<String>,
    /// The first day `YYYY-MM-DD`, or month `YYYY-MM`.
    from: Option<String>,
    /// The last one.
    to: Option<String>,
    /// Only this end user.
    subtenant_id: Option<String>,
}

pub(crate) async fn costs(request: Request) -> Result<Answer> {
    let CostQuery { granularity, from, to, subtenant_id } = request.query()?;
    let by_month = match granularity.as_deref().map(str::to_lowercase).as_deref() {
        None | Some("daily") => false,
        Some("monthly") => true,
        Some(_) => return Err(Error::invalid("granularity", "enum", "granularity must be daily or monthly")),
    };
    let (account, tenant) = (&request.caller()?.account, request.path("tenantId"));
    let range = (("from", from.as_deref()), ("to", to.as_deref()));
    let (subtenant, within) = (subtenant_id.as_deref(), request.within().await?);
    let mut costs =
        request.services.tenants.costs(account, tenant, subtenant, within.as_deref(), by_month, range).await?;
    for cost in &mut costs {
        without_hidden(&request, &mut cost.by_assistant).await?;
    }
    Answer::ok(&costs)
}

/// Takes assistants that the caller must not know of out of a list of costs.
pub(super) async fn without_hidden(request: &Request, by_assistant: &mut Vec<Value>) -> Result<()> {
    let mut shown = Vec::with_capacity(by_assistant.len());
    for cost in by_assistant.drain(..) {
        let name = cost["assistantIdentifier"].as_str().unwrap_or_default();
        if !request.services.assistants.hides(request.caller()?, name).await? {
            shown.push(cost);
        }
    }
    *by_assistant = shown;
    Ok(())
}

pub(crate) async fn stats(request: Request) -> Result<Answer> {
    let (services, caller, tenant) = (&request.services, request.caller()?, request.path("tenantId"));
    let account = &caller.account;
    let within = request.within().await?;
    let within = within.as_deref();
    let cost = services.tenants.totals(account, tenant, within).await?;
    let chats = services.chat.count_by_assistant(caller, tenant, within).await?;
    let threads = services.threads.count_by_agent(account, tenant, within).await?;
    let total = |counts: &[(String, i64)]| counts.iter().map(|(_, count)| count).sum::<i64>();
    let totals = json!({"chats": total(&chats), "threads": total(&threads)});
    let by_assistant = chats.iter().map(|(name, chats)| json!({"assistantIdentifier": name, "chats": chats}));
    let by_agent = threads.iter().map(|(id, threads)| json!({"agentId": id, "threads": threads}));
    Answer::ok(&json!({"byAssistant": by_assistant.collect::<Vec<_>>(), "byAgent": by_agent.collect::<Vec<_>>(),
        "totals": totals, "cost": cost}))
}

pub(crate) async fn list_users(request: Request) -> Result<Answer> {
    let (account, tenant, filter) = (&request.caller()?.account, request.path("tenantId"), request.query()?);
    Answer::ok(&request.services.tenants.list_users(account, tenant, &filter, request.page(50, 200)?).await?)
}

pub(crate) async fn get_user(request: Request) -> Result<Answer> {
    let (account, tenant, user) = (&request.caller()?.account, request.path("tenantId"), request.path("subtenantId"));
    Answer::ok(&request.services.tenants.get_user(account, tenant, user).await?)
}

pub(crate) async fn update_user(request: Request) -> Result<Answer> {
    let (account, tenant, user) = (&request.caller()?.account, request.path("tenantId"), request.path("subtenantId"));
    Answer::ok(&request.services.tenants.update_user(account, tenant, user, request.patch()?).await?)
}

pub(crate) async fn delete_user(request: Request) -> Result<Answer> {
    let (account, tenant, user) = (&request.caller()?.account, request.path("tenantId"), request.path("subtenantId"));
    request.services.tenants.delete_user(account, tenant, user).await?;
    request.services.sessions.revoke_sessions(account, Some(tenant), Some(user)).await?;
    Answer::deleted("subtenant", user)
}

pub(super) mod spec {
    use platform_tenants::{
        NewTenant, Subtenant, SubtenantPage, SubtenantPatch, Tenant, TenantCost, TenantFilter, TenantPage, TenantPatch,
    };
    use serde_json::Value;

    use super::CostQuery;
    use crate::openapi::{Deleted, Operation};

    pub fn list() -> Operation {
        Operation::new("List tenants").query::<TenantFilter>().paged().answers::<TenantPage>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make a tenant").body::<NewTenant>().answers::<Tenant>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read a tenant").answers::<Tenant>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change a tenant").body::<TenantPatch>().answers::<Tenant>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete a tenant; its chats, threads and costs stay").answers::<Deleted>(200)
    }
    pub fn costs() -> Operation {
        Operation::new("What a tenant cost, by day or month").query::<CostQuery>().answers::<Vec<TenantCost>>(200)
    }
    pub fn stats() -> Operation {
        Operation::new("Chats, threads and cost of a tenant").answers::<Value>(200)
    }
    pub fn list_users() -> Operation {
        Operation::new("List the end users of a tenant").query::<TenantFilter>().paged().answers::<SubtenantPage>(200)
    }
    pub fn get_user() -> Operation {
        Operation::new("Read an end user of a tenant").answers::<Subtenant>(200)
    }
    pub fn update_user() -> Operation {
        Operation::new("Change an end user of a tenant").body::<SubtenantPatch>().answers::<Subtenant>(200)
    }
    pub fn delete_user() -> Operation {
        Operation::new("Delete an end user of a tenant").answers::<Deleted>(200)
    }
}
