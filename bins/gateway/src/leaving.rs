//! What goes with a key, a user or a tenant: the connections they made, what they were granted, and their machines.

use std::sync::Arc;

use platform_core::{AccountId, ErrorKind, Result};
use platform_environments::PgEnvironments;
use platform_integrations::PgIntegrations;
use platform_mcp::{PgMcpGateway, SubjectType};

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
