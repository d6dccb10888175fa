//! `/v1/tenant-sessions`

use std::sync::Arc;

use platform_access::Kind;
use platform_auth::{NewSession, PgAuthService, SessionFilter, SessionService, purge_sessions};
use platform_chat::{AssistantService, PgAssistantService};
use platform_conversation::ASSISTANT;
use platform_core::Result;
use platform_http::{Answer, Group, OpenTo, Request, account_key};
use platform_tenants::{PgTenantService, TenantInfo, TenantService};
use serde_json::json;

use crate::module::{Module, Purge};

/// What the handlers use.
pub(crate) struct Services {
    pub assistants: Arc<dyn AssistantService>,
    pub sessions: Arc<dyn SessionService>,
    pub tenants: Arc<dyn TenantService>,
}

/// Sessions of end users.
const SESSION: Kind = Kind::of_account("session");

/// Sessions of end users.
pub(crate) fn module(
    auth: &Arc<PgAuthService>,
    assistants: &Arc<PgAssistantService>,
    tenants: &Arc<PgTenantService>,
) -> Module {
    let services = Services { assistants: assistants.clone(), sessions: auth.clone(), tenants: tenants.clone() };
    let purge = Purge::new("sessions", |conn, now| Box::pin(async move { purge_sessions(conn, now).await.map(drop) }));
    Module { groups: vec![group(Arc::new(services))], purges: vec![purge], ..Module::default() }
}

fn group(services: Arc<Services>) -> Group {
    let mut group = Group::of("tenant-sessions", "Sessions of end users", services)
        .naming("sessionId", SESSION)
        .referring(&[("assistantIds", ASSISTANT)]);
    let write = account_key("tenant-sessions:write");
    group.get("/v1/tenant-sessions", account_key("tenant-sessions:read"), list).with(spec::list);
    group.delete("/v1/tenant-sessions", write, revoke_all).with(spec::revoke_all);
    group.post("/v1/tenant-sessions", OpenTo::Minting { scope: "tenant-sessions:write" }, mint).with(spec::mint);
    group.delete("/v1/tenant-sessions/{sessionId}", write, revoke).with(spec::revoke);
    group.build()
}

async fn mint(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (caller, mut new, once) = (request.caller()?, request.body::<NewSession>().await?, request.once.as_ref());
    new.subtenant_id = TenantInfo::subtenant_of(new.subtenant_id, &new.metadata);
    new.check()?;
    for assistant in new.assistant_ids.iter().flatten() {
        services.assistants.get(&caller.account, assistant).await?;
    }
    let tenant = new.tenant()?;
    let tenant_info = TenantInfo::of(tenant, new.subtenant_id.as_deref(), &new.metadata, false);
    services.tenants.register(&caller.account, &tenant_info).await?;
    Answer::created(&services.sessions.mint(caller, &new, once).await?)
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, filter) = (request.account()?, request.query()?);
    Answer::ok(&services.sessions.list_sessions(account, &filter, request.page()?).await?)
}

async fn revoke_all(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (account, SessionFilter { tenant_id, subtenant_id, .. }) = (request.account()?, request.query()?);
    let sessions = &services.sessions;
    let revoked = sessions.revoke_sessions(account, tenant_id.as_deref(), subtenant_id.as_deref()).await?;
    Answer::ok(&json!({"success": true, "revoked": revoked}))
}

async fn revoke(services: Arc<Services>, request: Request) -> Result<Answer> {
    let id = &request.id("sessionId");
    services.sessions.revoke_session(request.account()?, id).await?;
    Answer::deleted("session", id)
}

/// How many sessions ended.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes what revoke_all answers")]
pub(crate) struct Revoked {
    success: bool,
    revoked: i64,
}

/// Whose sessions end.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes what revoke_all reads")]
#[schema(rename_all = "camelCase")]
pub(crate) struct Whose {
    tenant_id: String,
    subtenant_id: Option<String>,
}

mod spec {
    use platform_auth::{MintedSession, NewSession, SessionFilter, SessionPage};

    use super::{Revoked, Whose};
    use platform_http::{Deleted, Operation};

    pub fn mint() -> Operation {
        Operation::new("Mint a session for an end user; its token is shown this once")
            .body::<NewSession>()
            .requires(&["tenantId"])
            .answers::<MintedSession>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List sessions").query::<SessionFilter>().paged(20, 100).answers::<SessionPage>(200)
    }
    pub fn revoke_all() -> Operation {
        Operation::new("End all sessions of a tenant or of one of its end users")
            .query::<Whose>()
            .answers::<Revoked>(200)
    }
    pub fn revoke() -> Operation {
        Operation::new("End a session").answers::<Deleted>(200)
    }
}
