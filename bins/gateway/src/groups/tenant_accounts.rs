//! Whose accounts a request is about, and what the assistant that it names offers them.

use std::sync::Arc;

use platform_access::Resources;
use platform_auth::ClientService;
use platform_chat::{AssistantService, PgAssistantService};
use platform_conversation::{ASSISTANT, AssistantSettings, ConnectionMode};
use platform_core::{Code, Error, ErrorKind, Owner, Result};
use platform_http::Request;
use platform_integrations::{Connecting, PgIntegrations, code};
use platform_runtime::TenantAppOffer;
use serde::Deserialize;
use utoipa::ToSchema;

use super::integrations::origins;

pub(super) struct Services {
    pub integrations: Arc<PgIntegrations>,
    pub assistants: Arc<PgAssistantService>,
    pub clients: Arc<dyn ClientService>,
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
    pub offered: Vec<(TenantAppOffer, Vec<String>)>,
    /// MCP servers, and tools of each.
    pub most: (usize, usize),
    pub return_to: Option<String>,
}

impl Asked {
    /// What is asked of the apps of an assistant; one message for everything that it does not offer.
    pub async fn of(services: &Services, request: &Request) -> Result<Self> {
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
    pub async fn of_app<'a>(services: &Services, request: &'a Request) -> Result<(Self, &'a str)> {
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
