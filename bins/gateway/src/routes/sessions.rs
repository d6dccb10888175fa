//! `/v1/tenant-sessions`

use platform_auth::{NewSession, SessionFilter};
use platform_core::Result;
use platform_tenants::Visit;
use serde_json::json;

use crate::{request::Request, respond::Answer};

pub(crate) async fn mint(request: Request) -> Result<Answer> {
    let (caller, mut new, once) = (request.caller()?, request.body::<NewSession>()?, request.once.as_ref());
    new.subtenant_id = Visit::subtenant_of(new.subtenant_id, &new.metadata);
    for assistant in new.assistant_ids.iter().flatten() {
        request.services.assistants.get(&caller.account, assistant).await?;
    }
    let tenant = new.tenant()?;
    let visit = Visit::of(tenant, new.subtenant_id.as_deref(), &new.metadata, false);
    request.services.tenants.register(&caller.account, &visit).await?;
    Answer::created(&request.services.sessions.mint(caller, &new, once).await?)
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    let (account, filter) = (&request.caller()?.account, request.query()?);
    Answer::ok(&request.services.sessions.list_sessions(account, &filter, request.page(20, 100)?).await?)
}

pub(crate) async fn revoke_all(request: Request) -> Result<Answer> {
    let (account, SessionFilter { tenant_id, subtenant_id, .. }) = (&request.caller()?.account, request.query()?);
    let sessions = &request.services.sessions;
    let revoked = sessions.revoke_sessions(account, tenant_id.as_deref(), subtenant_id.as_deref()).await?;
    Answer::ok(&json!({"success": true, "revoked": revoked}))
}

pub(crate) async fn revoke(request: Request) -> Result<Answer> {
    let id = request.path("sessionId");
    request.services.sessions.revoke_session(&request.caller()?.account, id).await?;
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

pub(super) mod spec {
    use platform_auth::{MintedSession, NewSession, SessionFilter, SessionPage};

    use super::{Revoked, Whose};
    use crate::openapi::{Deleted, Operation};

    pub fn mint() -> Operation {
        Operation::new("Mint a session for an end user; its token is shown this once")
            .body::<NewSession>()
            .answers::<MintedSession>(201)
    }
    pub fn list() -> Operation {
        Operation::new("List sessions").query::<SessionFilter>().paged().answers::<SessionPage>(200)
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
