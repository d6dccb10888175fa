//! `/v1/tenant-integrations`

use std::sync::Arc;

use platform_access::{Kind, Resources};
use platform_auth::{ClientService, PgAuthService};
use platform_chat::{AssistantService, PgAssistantService};
use platform_conversation::{ASSISTANT, AssistantSettings, ConnectionMode};
use platform_core::{Code, Error, ErrorKind, Owner, Result};
use platform_http::{Answer, Group, Request, session};
use platform_integrations::{APP, Connecting, NewConnection, PgIntegrations, code};
use platform_runtime::TenantAppOffer;
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{integrations::origins, tenant_mcp};
use crate::module::Module;

const ACCOUNT: Kind = Kind::of_account("account of an end user");

pub(super) struct Services {
    pub integrations: Arc<PgIntegrations>,
    assistants: Arc<PgAssistantService>,
    clients: Arc<dyn ClientService>,
}

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

/// Whose accounts are meant, and for which assistant.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WhoseAccounts {
    /// The assistant whose tools they are for: its identifier or id.
    assistant_id: Option<String>,
    /// The tenant; of a session its own.
    tenant_id: Option<String>,
    /// The end user.
    subtenant_id: Option<String>,
    /// Where the browser goes after the user has decided.
    return_to: Option<String>,
}

/// What a request is about: what an assistant offers, and to whom.
pub(super) struct Asked {
    pub owner: Owner,
    offered: Vec<(TenantAppOffer, Vec<String>)>,
    /// MCP servers, and tools of each.
    pub most: (usize, usize),
    pub return_to: Option<String>,
}

impl Asked {
    /// What is asked of the apps of an assistant; one message for everything that it does not offer.
    async fn of(services: &Services, request: &Request) -> Result<Self> {
        Self::offering(services, request, |assistant| assistant.tenant_integrations_config.enabled).await
    }

    /// The same of the MCP servers that it takes.
    pub async fn of_mcp(services: &Services, request: &Request) -> Result<Self> {
        Self::offering(services, request, |assistant| assistant.tenant_mcp_config.enabled).await
    }

    async fn offering(
        services: &Services,
        request: &Request,
        is_offered: impl FnOnce(&AssistantSettings) -> bool,
    ) -> Result<Self> {
        let WhoseAccounts { assistant_id, tenant_id, subtenant_id, return_to } = request.query()?;
        let Some(assistant) = assistant_id.filter(|id| !id.is_empty()) else {
            let message = "assistantId is required: whose tools the accounts are for";
            return Err(Error::invalid("assistantId", "required", message));
        };
        let (tenant, subtenant) = request.tenant_and_user(tenant_id, subtenant_id)?;
        let account = request.account()?;
        let known = services.assistants.get(account, &assistant).await.map_err(unless_known)?;
        if request.hides(ASSISTANT, &known.identifier).await? {
            return Err(unavailable());
        }
        let open = services.assistants.open_to(request.caller()?, &known.identifier).await;
        open.map_err(unless_known)?;
        request.check_use(ASSISTANT, &known.identifier).await?;
        let settings = known.settings();
        if !is_offered(settings) {
            return Err(unavailable());
        }
        let config = &settings.tenant_integrations_config;
        if config.identity_mode == ConnectionMode::Signed && request.session().is_none() {
            let message = "Accounts of this assistant are connected by its end users alone, with their sessions.";
            return Err(Error::new(Code::FORBIDDEN, message));
        }
        let triggers = config.apps.iter().map(|app| app.triggers.clone());
        let offered = config.offers().zip(triggers).collect();
        let mcp = &settings.tenant_mcp_config;
        let most = (mcp.max_servers as usize, mcp.max_tools_per_server as usize);
        Ok(Self { owner: Owner { tenant_id: Some(tenant), subtenant_id: subtenant }, offered, most, return_to })
    }

    /// How its user connects.
    pub async fn connecting(&self, services: &Services, request: &Request) -> Result<Connecting> {
        Ok(Connecting {
            by: request.caller()?.user_uid.clone(),
            // The page that asks, and no other.
            origins: origins(&*services.clients, request, false).await?,
            owner: self.owner.clone(),
        })
    }

    /// The same of one app that is offered.
    async fn of_app<'a>(services: &Services, request: &'a Request) -> Result<(Self, &'a str)> {
        let (asked, app) = (Self::of(services, request).await?, request.path("app"));
        let is_offered = asked.offered.iter().any(|(offer, _)| offer.app == app);
        if is_offered && services.integrations.connector(app).is_ok() { Ok((asked, app)) } else { Err(unavailable()) }
    }
}

/// Of an assistant that is not there no more is said than of one that offers nothing.
fn unless_known(error: Error) -> Error {
    if error.code().kind() == ErrorKind::NotFound { unavailable() } else { error }
}

fn unavailable() -> Error {
    let message = "This assistant offers no such thing to its end users.";
    Error::new(code::TENANT_INTEGRATIONS_UNAVAILABLE, message)
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

    use super::WhoseAccounts;

    pub fn list() -> Operation {
        Operation::new("List the apps that an assistant offers to an end user")
            .query::<WhoseAccounts>()
            .answers::<Vec<TenantIntegration>>(200)
    }
    pub fn refresh() -> Operation {
        Operation::new("List them once the apps were asked whether the accounts are good")
            .query::<WhoseAccounts>()
            .answers::<Vec<TenantIntegration>>(200)
    }
    pub fn accounts() -> Operation {
        Operation::new("List an end user's accounts of an app").query::<WhoseAccounts>().answers::<Vec<Account>>(200)
    }
    pub fn schemes() -> Operation {
        Operation::new("Read how an end user connects to an app").query::<WhoseAccounts>().answers::<Schemes>(200)
    }
    pub fn connect() -> Operation {
        Operation::new("Connect an end user's account, or begin to: open authorizationUrl in a browser")
            .query::<WhoseAccounts>()
            .body::<NewConnection>()
            .answers::<ConnectedAccount>(200)
    }
    pub fn disconnect() -> Operation {
        Operation::new("Take an end user's account away").query::<WhoseAccounts>().answers_object(200)
    }
}
