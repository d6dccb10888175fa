//! `/v1/tenants`

use std::sync::Arc;

use platform_access::Kind;
use platform_agents::ThreadService;
use platform_auth::SessionService;
use platform_chat::ChatService;
use platform_conversation::ASSISTANT;
use platform_core::{AccountId, Error, Id, Result};
use platform_http::{Answer, Group, Request, key};
use platform_memory::MemoryService;
use platform_tenants::TenantService;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    leaving::{Leaving, with_followers},
    module::Module,
};

/// What the handlers use.
pub(crate) struct Services {
    pub chat: Arc<dyn ChatService>,
    pub leaving: Arc<Leaving>,
    pub memory: Arc<dyn MemoryService>,
    pub sessions: Arc<dyn SessionService>,
    pub tenants: Arc<dyn TenantService>,
    pub threads: Arc<dyn ThreadService>,
}

/// Tenants.
pub(crate) const TENANT: Kind = Kind::of_account("tenant");
/// End users of tenants.
pub(crate) const SUBTENANT: Kind = Kind::of_account("subtenant");

/// Tenants.
pub(crate) fn module(services: Services) -> Module {
    Module { groups: vec![group(Arc::new(services))], ..Module::default() }
}

fn group(services: Arc<Services>) -> Group {
    let mut group = Group::of("tenants", "Tenants and their end users", services)
        .naming("subtenantId", SUBTENANT)
        .naming("tenantId", TENANT);
    let read = key("tenants:read");
    let write = key("tenants:write");
    group.get("/v1/tenants", read, list).with(spec::list);
    group.post("/v1/tenants", write, create).with(spec::create);
    group.get("/v1/tenants/{tenantId}", read, get).with(spec::get);
    group.patch("/v1/tenants/{tenantId}", write, update).with(spec::update);
    group.delete("/v1/tenants/{tenantId}", write, delete).with(spec::delete);
    group.get("/v1/tenants/{tenantId}/costs", read, costs).with(spec::costs);
    group.get("/v1/tenants/{tenantId}/stats", read, stats).with(spec::stats);
    group.get("/v1/tenants/{tenantId}/subtenants", read, list_users).with(spec::list_users);
    group.get("/v1/tenants/{tenantId}/subtenants/{subtenantId}", read, get_user).with(spec::get_user);
    group.patch("/v1/tenants/{tenantId}/subtenants/{subtenantId}", write, update_user).with(spec::update_user);
    group.delete("/v1/tenants/{tenantId}/subtenants/{subtenantId}", write, delete_user).with(spec::delete_user);
    group.build()
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, filter) = (request.account()?, request.query()?);
    Answer::ok(&services.tenants.list(account, &filter, request.page()?).await?)
}

async fn create(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, once) = (request.caller()?, request.once.as_ref());
    Answer::created(&services.tenants.create(caller, request.body().await?, once).await?)
}

async fn get(services: Arc<Services>, request: Request) -> Result<Answer> {
    Answer::ok(&services.tenants.get(request.account()?, &request.id("tenantId")).await?)
}

async fn update(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, tenant) = (request.account()?, &request.id("tenantId"));
    Answer::ok(&services.tenants.update(account, tenant, request.patch().await?).await?)
}

async fn delete(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, tenant) = (request.account()?, &request.id("tenantId"));
    // What goes with a tenant goes first, so that whoever is cut off can delete it again; and whatever happened, once more.
    let known = services.tenants.get(account, tenant).await;
    with_followers(known, forget(&services, account, tenant, None)).await?;
    services.tenants.delete(account, tenant).await?;
    // They have ended with it; whoever is remembered is forgotten.
    services.sessions.forget_sessions(tenant).await?;
    // Until then they could write.
    forget(&services, account, tenant, None).await?;
    Answer::deleted("tenant", tenant)
}

/// What is kept of a tenant, or of one of its end users, goes.
async fn forget(services: &Services, account: &AccountId, tenant: &str, user: Option<&str>) -> Result<()> {
    services.memory.forget(account, tenant, user).await?;
    services.leaving.tenant(account, tenant, user).await
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

async fn costs(services: Arc<Services>, request: Request) -> Result<Answer> {
    let CostQuery { granularity, from, to, subtenant_id } = request.query()?;
    let by_month = match granularity.as_deref().map(str::to_lowercase).as_deref() {
        None | Some("daily") => false,
        Some("monthly") => true,
        Some(_) => return Err(Error::invalid("granularity", "enum", "granularity must be daily or monthly")),
    };
    let (account, tenant) = (request.account()?, &request.id("tenantId"));
    let range = (("from", from.as_deref()), ("to", to.as_deref()));
    let (subtenant, within) = (subtenant_id.as_deref().map(Id::named), request.within().await?);
    let mut costs =
        services.tenants.costs(account, tenant, subtenant.as_ref(), within.as_deref(), by_month, range).await?;
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
        if !request.hides(ASSISTANT, name).await? {
            shown.push(cost);
        }
    }
    *by_assistant = shown;
    Ok(())
}

async fn stats(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (services, caller, tenant) = (&services, request.caller()?, &request.id("tenantId"));
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

async fn list_users(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, tenant, filter) = (request.account()?, &request.id("tenantId"), request.query()?);
    Answer::ok(&services.tenants.list_users(account, tenant, &filter, request.page()?).await?)
}

async fn get_user(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, tenant, user) = (request.account()?, &request.id("tenantId"), &request.id("subtenantId"));
    Answer::ok(&services.tenants.get_user(account, tenant, user).await?)
}

async fn update_user(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, tenant, user) = (request.account()?, &request.id("tenantId"), &request.id("subtenantId"));
    Answer::ok(&services.tenants.update_user(account, tenant, user, request.patch().await?).await?)
}

async fn delete_user(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, tenant, user) = (request.account()?, &request.id("tenantId"), &request.id("subtenantId"));
    let known = services.tenants.get_user(account, tenant, user).await;
    with_followers(known, forget(&services, account, tenant, Some(user))).await?;
    services.tenants.delete_user(account, tenant, user).await?;
    services.sessions.forget_sessions(tenant).await?;
    forget(&services, account, tenant, Some(user)).await?;
    Answer::deleted("subtenant", user)
}

mod spec {
    use platform_tenants::{
        NewTenant, Subtenant, SubtenantPage, SubtenantPatch, Tenant, TenantCost, TenantFilter, TenantPage, TenantPatch,
    };
    use serde_json::Value;

    use super::CostQuery;
    use platform_http::{Deleted, Operation};

    pub fn list() -> Operation {
        Operation::new("List tenants").query::<TenantFilter>().paged(50, 200).answers::<TenantPage>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make a tenant").body::<NewTenant>().requires(&["tenantId"]).answers::<Tenant>(201)
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
        Operation::new("List the end users of a tenant")
            .query::<TenantFilter>()
            .paged(50, 200)
            .answers::<SubtenantPage>(200)
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
