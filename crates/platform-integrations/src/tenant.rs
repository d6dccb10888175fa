//! Accounts of end users: of an app of an assistant, with which its tools are called (contract 10 §6).

use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use moka::sync::Cache;
use platform_core::{AccountId, Error, Owner, Result, run_blocking};
use platform_runtime::{SourceTool, TENANT_APPS, TenantAppOffer, ToolGroup, ToolSource, ToolTurn};
use platform_toolservers::OfferedServer;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    code,
    connections::refuses,
    model::{Connection, NewConnection, Schemes},
    repository::{self, ConnectionRow},
    service::{Connecting, PgIntegrations, shown_schemes, tools_of},
};

/// Apps that are ready to be offered, at once.
const MAX_READY: u64 = 2000;

/// An app that an end user may connect.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantIntegration {
    /// Slug of the app.
    pub app: String,
    /// Its name.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Address of its picture.
    pub logo: String,
    /// An account is good.
    pub connected: bool,
    /// The end user's accounts.
    pub accounts: Vec<Account>,
    /// Events of it that may start something.
    pub available_triggers: Vec<String>,
}

/// An account of an end user at an app.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TenantAccount)]
pub struct Account {
    /// Id.
    pub id: String,
    /// `pending`, `active`, `needs_reauth` or `expired`.
    pub status: String,
    /// When it was first good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected_at: Option<String>,
    /// When it last changed.
    pub updated_at: String,
    /// It is to be made again.
    pub needs_reconnect: bool,
    /// Why it stands so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_reason: Option<String>,
}

impl From<Connection> for Account {
    fn from(of: Connection) -> Self {
        Self {
            id: of.id,
            status: of.status,
            connected_at: of.connected_at,
            updated_at: of.updated_at,
            needs_reconnect: of.needs_reconnect,
            status_reason: of.status_reason,
        }
    }
}

/// An account that was begun, or made.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectedAccount {
    /// It is good.
    pub connected: bool,
    /// Where the user is to decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_url: Option<String>,
    /// The account.
    pub account_id: String,
}

/// What an assistant offers: apps with the tools and events of them.
pub type Offered<'a> = &'a [(TenantAppOffer, Vec<String>)];

impl PgIntegrations {
    /// The apps that an assistant offers, and how an end user stands with each.
    pub async fn tenant_list(
        &self,
        account: &AccountId,
        offered: Offered<'_>,
        owner: &Owner,
    ) -> Result<Vec<TenantIntegration>> {
        let rows = repository::list(self.connections.db.read().await?.get(), account, None, owner).await?;
        let shown = offered.iter().filter_map(|(offer, triggers)| {
            let connector = self.connector(&offer.app).ok()?;
            let of: Vec<&ConnectionRow> = rows.iter().filter(|row| row.app == offer.app).collect();
            Some(TenantIntegration {
                app: offer.app.clone(),
                name: connector.pack.name.clone(),
                description: connector.pack.description.clone(),
                logo: connector.pack.logo.clone(),
                connected: of.iter().any(|row| row.is_active()),
                accounts: of.into_iter().map(|row| row.shown().into()).collect(),
                available_triggers: triggers.clone(),
            })
        });
        Ok(shown.collect())
    }

    /// How an end user connects an app.
    pub fn tenant_schemes(&self, app: &str) -> Result<Schemes> {
        Ok(shown_schemes(&*self.connector(app)?, true))
    }

    /// An end user's accounts of an app.
    pub async fn tenant_accounts(&self, account: &AccountId, app: &str, owner: &Owner) -> Result<Vec<Account>> {
        let rows = repository::list(self.connections.db.read().await?.get(), account, Some(app), owner).await?;
        Ok(rows.iter().map(|row| row.shown().into()).collect())
    }

    /// Connects an end user's account, or begins to; what was connected before goes once this one is good.
    pub async fn tenant_connect(
        &self,
        account: &AccountId,
        app: &str,
        new: NewConnection,
        connecting: &Connecting,
    ) -> Result<ConnectedAccount> {
        let new = NewConnection { label: None, connection_id: None, ..new };
        let prepared = self.prepare(account, app, &new, None, true).await?;
        let connected = self.establish(account, prepared, new, None, connecting).await?;
        Ok(ConnectedAccount {
            connected: connected.connected,
            authorization_url: connected.authorization_url,
            account_id: connected.connection_id,
        })
    }

    /// Asks the apps whether an end user's accounts are still good.
    pub async fn tenant_refresh(&self, account: &AccountId, owner: &Owner) -> Result<()> {
        let rows = repository::list(self.connections.db.read().await?.get(), account, None, owner).await?;
        for row in rows.iter().filter(|row| row.is_active()) {
            let Ok(connector) = self.connector(&row.app) else { continue };
            let Some(scheme) = connector.pack.schemes().into_iter().find(|of| of.mode.as_str() == row.scheme) else {
                continue;
            };
            let Some(test) = &scheme.test else { continue };
            // An app that does not answer says nothing.
            if let Ok(answer) = self.connections.request(account, &row.id, test, &|_| None).await
                // 403 is also what asks too often, or for too much; with 200 an app may say that it has trouble of its own.
                && (answer.status == 401 || answer.status == 200 && refuses(&scheme, &answer.bytes))
            {
                self.connections.breaks(account, &row.id, "the app refuses the credentials").await?;
            }
        }
        Ok(())
    }

    /// Takes an end user's account away. `ACCOUNT_NOT_FOUND`.
    pub async fn tenant_disconnect(&self, account: &AccountId, id: &str, owner: &Owner) -> Result<()> {
        let mut conn = self.connections.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock(conn, account, id).await?;
            let is_own = row.is_some_and(|row| {
                row.tenant_id.is_some() && row.tenant_id == owner.tenant_id && row.subtenant_id == owner.subtenant_id
            });
            if !is_own {
                return Err(Error::not_found(code::ACCOUNT_NOT_FOUND, "account", id));
            }
            self.delete_in(conn, account, id).await
        });
        deleting.await?;
        drop(conn);
        self.settled(id, &[id.to_owned()]).await
    }

    /// Takes all accounts of a tenant away, or of one of its end users.
    pub async fn forget_tenant(&self, account: &AccountId, tenant: &str, subtenant: Option<&str>) -> Result<()> {
        let conn = self.connections.db.read().await?;
        let ids = repository::ids_of_tenant(conn.get(), account, tenant, subtenant).await?;
        drop(conn);
        self.forget_brought(account, tenant, subtenant).await?;
        self.delete_all(account, &ids).await
    }

    /// Takes connections away, here and at their apps.
    pub(crate) async fn delete_all(&self, account: &AccountId, ids: &[String]) -> Result<()> {
        for id in ids {
            let mut conn = self.connections.db.conn().await?;
            conn.transaction::<_, Error, _>(async |conn| self.delete_in(conn, account, id).await).await?;
            drop(conn);
            self.settled(id, std::slice::from_ref(id)).await?;
        }
        Ok(())
    }
}

type ReadyKey = (AccountId, String, Option<String>, Vec<String>);

/// The tools of the apps that an assistant offers to end users, called with the accounts of whom it talks to.
pub struct TenantApps {
    integrations: Arc<PgIntegrations>,
    /// With schemas compiled.
    ready: Cache<ReadyKey, OfferedServer>,
}

impl TenantApps {
    /// Those of these integrations.
    pub fn new(integrations: &Arc<PgIntegrations>) -> Self {
        Self { integrations: Arc::clone(integrations), ready: Cache::new(MAX_READY) }
    }

    async fn ready(
        &self,
        account: &AccountId,
        offer: &TenantAppOffer,
        connection: Option<String>,
    ) -> Result<Option<OfferedServer>> {
        let Ok(connector) = self.integrations.connector(&offer.app) else { return Ok(None) };
        let key = (account.clone(), offer.app.clone(), connection.clone(), offer.tools.clone());
        if let Some(known) = self.ready.get(&key) {
            return Ok(Some(known));
        }
        let exposed = (!offer.tools.is_empty()).then_some(offer.tools.as_slice());
        let (tools, url) = (tools_of(&connector, exposed), connector.pack.base_url.clone());
        let (account, app) = (account.clone(), offer.app.clone());
        let ready = run_blocking(move || OfferedServer::app(&account, (&app, url), tools, connection)).await?;
        self.ready.insert(key, ready.clone());
        Ok(Some(ready))
    }
}

#[async_trait]
impl ToolSource for TenantApps {
    async fn group(&self, _: &AccountId, _: &str) -> Result<Option<ToolGroup>> {
        Ok(None)
    }

    async fn tools(&self, account: &AccountId, uid: &str, turn: &ToolTurn<'_>) -> Result<Option<Vec<SourceTool>>> {
        if uid != TENANT_APPS {
            return Ok(None);
        }
        let owner = turn.scope.owner();
        let connections = &self.integrations.connections;
        let rows = repository::list(connections.db.read().await?.get(), account, None, &owner).await?;
        let mut offered = Vec::new();
        for offer in &turn.scope.tenant_apps {
            let active = rows.iter().find(|row| row.app == offer.app && row.is_active());
            // One that broke says so when it is called.
            let known = active.or_else(|| rows.iter().find(|row| row.app == offer.app));
            if let Some(app) = self.ready(account, offer, known.map(|row| row.id.clone())).await? {
                offered.extend(self.integrations.tool_servers.offer_all(&app, turn));
            }
        }
        Ok(Some(offered))
    }
}
