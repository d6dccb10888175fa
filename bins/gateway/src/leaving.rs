//! What goes with a key, a user or a tenant: the connections they made, what they were granted, and their machines; and what
//! stays because others use it.

use std::sync::Arc;

use platform_core::{AccountId, Code, Error, ErrorKind, Id, Result};
use platform_environments::PgEnvironments;
use platform_http::Request;
use platform_integrations::PgIntegrations;
use platform_mcp::{PgMcpGateway, SubjectType};
use platform_toolservers::{ToolServer, ToolServerService, in_use};
use serde::Deserialize;
use utoipa::ToSchema;

/// Whoever keeps something of somebody who leaves.
pub(crate) struct Leaving {
    pub environments: Arc<PgEnvironments>,
    pub integrations: Arc<PgIntegrations>,
    pub gateway: Arc<PgMcpGateway>,
}

impl Leaving {
    /// A key is gone.
    pub async fn key(&self, account: &AccountId, id: &str) -> Result<()> {
        self.integrations.forget_subject(account, &format!("key:{id}")).await?;
        self.gateway.forget(account, SubjectType::Key, id).await
    }

    /// A user is gone.
    pub async fn user(&self, account: &AccountId, id: &str) -> Result<()> {
        self.integrations.forget_subject(account, &format!("user:{id}")).await?;
        self.gateway.forget(account, SubjectType::User, id).await
    }

    /// A tenant is gone, or one of its end users.
    pub async fn tenant(&self, account: &AccountId, tenant: &str, subtenant: Option<&str>) -> Result<()> {
        self.integrations.forget_tenant(account, tenant, subtenant).await?;
        match subtenant {
            Some(user) => self.gateway.forget(account, SubjectType::Subtenant, &format!("{tenant}/{user}")).await,
            None => {
                self.environments.forget_tenant(account, tenant).await?;
                self.gateway.forget(account, SubjectType::Tenant, tenant).await
            }
        }
    }
}

/// What goes with a record goes also when the record is gone already: whoever was cut off deletes it again.
pub(crate) async fn with_followers<T>(deleted: Result<T>, followers: impl Future<Output = Result<()>>) -> Result<T> {
    if deleted.as_ref().err().is_none_or(|error| error.code().kind() == ErrorKind::NotFound) {
        followers.await?;
    }
    deleted
}

/// How a tool server is deleted.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct DeleteQuery {
    /// Take it out of what uses it, too.
    pub force: Option<bool>,
}

/// Deletes a server, unless others use it; of them the caller is told those that it sees.
pub(crate) async fn delete_unused(
    tool_servers: &dyn ToolServerService,
    request: &Request,
    account: &AccountId,
    id: &Id<ToolServer>,
) -> Result<()> {
    let DeleteQuery { force } = request.query()?;
    let force = force == Some(true);
    if force && !request.reach().await?.is_whole() {
        let message = "Who is bound to projects cannot take a tool server out of what uses it; change those first.";
        return Err(Error::new(Code::FORBIDDEN, message));
    }
    let users = tool_servers.delete(account, id, force, &request.if_match()?).await?;
    let (all, mut seen) = (users.len(), Vec::new());
    for (kind, id) in users {
        if request.sees((&kind, &id)).await? {
            seen.push((kind, id));
        }
    }
    if all == 0 { Ok(()) } else { Err(in_use(&seen, all - seen.len())) }
}
