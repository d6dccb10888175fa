//! `/v1/tenant-integrations`

use std::sync::Arc;

use platform_access::Kind;
use platform_auth::PgAuthService;
use platform_chat::PgAssistantService;
use platform_core::Result;
use platform_http::{Answer, Group, Request, session};
use platform_integrations::{APP, NewConnection, PgIntegrations};
use serde_json::json;

use super::{
    tenant_accounts::{Asked, Services},
    tenant_mcp,
};
use crate::module::Module;

const ACCOUNT: Kind = Kind::of_account("account of an end user");

/// Accounts that end users connect, and MCP servers that they bring, for the tools of an assistant.
pub(crate) fn module(
    integrations: &Arc<PgIntegrations>,
    assistants: &Arc<PgAssistantService>,
    auth: &Arc<PgAuthService>,
) -> Module {
    let (integrations, assistants) = (Arc::clone(integrations), Arc::clone(assistants));
    let services = Arc::new(Services { integrations, assistants, clients: auth.clone() });
    Module { groups: vec![group(Arc::clone(&services)), tenant_mcp::group(services)], ..Module::default() }
}

fn group(services: Arc<Services>) -> Group {
    let mut group =
        Group::of("tenant-integrations", "Accounts that end users connect for the tools of an assistant", services)
            .naming("app", APP)
            .naming("accountId", ACCOUNT);
    let (read, write) = (session("tenant-integrations:read"), session("tenant-integrations:write"));
    group.get("/v1/tenant-integrations", read, list).with(spec::list);
    group.delete("/v1/tenant-integrations/accounts/{accountId}", write, disconnect).with(spec::disconnect);
    group.post("/v1/tenant-integrations/refresh", write, refresh).with(spec::refresh);
    group.get("/v1/tenant-integrations/{app}/accounts", read, accounts).with(spec::accounts);
    group.get("/v1/tenant-integrations/{app}/auth", read, schemes).with(spec::schemes);
    group.post("/v1/tenant-integrations/{app}/connect", write, connect).with(spec::connect);
    group.build()
}

async fn list(services: Arc<Services>, request: Request) -> Result<Answer> {
    let asked = Asked::of(&services, &request).await?;
    let account = request.account()?;
    Answer::ok(&services.integrations.tenant_list(account, &asked.offered, &asked.owner).await?)
}

async fn refresh(services: Arc<Services>, request: Request) -> Result<Answer> {
    let asked = Asked::of(&services, &request).await?;
    let account = request.account()?;
    services.integrations.tenant_refresh(account, &asked.owner).await?;
    Answer::ok(&services.integrations.tenant_list(account, &asked.offered, &asked.owner).await?)
}

async fn accounts(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (asked, app) = Asked::of_app(&services, &request).await?;
    Answer::ok(&services.integrations.tenant_accounts(request.account()?, app, &asked.owner).await?)
}

async fn schemes(services: Arc<Services>, request: Request) -> Result<Answer> {
    let (_, app) = Asked::of_app(&services, &request).await?;
    Answer::ok(&services.integrations.tenant_schemes(app)?)
}

async fn connect(services: Arc<Services>, request: Request) -> Result<Answer> {
    let new: NewConnection = request.body().await?;
    let (asked, app) = Asked::of_app(&services, &request).await?;
    let connecting = asked.connecting(&services, &request).await?;
    let new = NewConnection { return_to: new.return_to.or(asked.return_to), ..new };
    Answer::ok(&services.integrations.tenant_connect(request.account()?, app, new, &connecting).await?)
}

async fn disconnect(services: Arc<Services>, request: Request) -> Result<Answer> {
    let asked = Asked::of(&services, &request).await?;
    let (account, id) = (request.account()?, request.path("accountId"));
    services.integrations.tenant_disconnect(account, id, &asked.owner).await?;
    Answer::ok(&json!({"disconnected": true}))
}

mod spec {
    use platform_http::Operation;
    use platform_integrations::{Account, ConnectedAccount, NewConnection, Schemes, TenantIntegration};

    use super::super::tenant_accounts::WhoseAccounts;

    pub fn list() -> Operation {
        Operation::new("List the apps that an assistant offers to an end user")
            .query::<WhoseAccounts>()
            .without(&["returnTo"])
            .answers::<Vec<TenantIntegration>>(200)
    }
    pub fn refresh() -> Operation {
        Operation::new("List them once the apps were asked whether the accounts are good")
            .query::<WhoseAccounts>()
            .without(&["returnTo"])
            .answers::<Vec<TenantIntegration>>(200)
    }
    pub fn accounts() -> Operation {
        Operation::new("List an end user's accounts of an app")
            .query::<WhoseAccounts>()
            .without(&["returnTo"])
            .answers::<Vec<Account>>(200)
    }
    pub fn schemes() -> Operation {
        Operation::new("Read how an end user connects to an app")
            .query::<WhoseAccounts>()
            .without(&["returnTo"])
            .answers::<Schemes>(200)
    }
    pub fn connect() -> Operation {
        Operation::new("Connect an end user's account, or begin to: open authorizationUrl in a browser")
            .query::<WhoseAccounts>()
            .body::<NewConnection>()
            .answers::<ConnectedAccount>(200)
    }
    pub fn disconnect() -> Operation {
        Operation::new("Take an end user's account away")
            .query::<WhoseAccounts>()
            .without(&["returnTo"])
            .answers_object(200)
    }
}
