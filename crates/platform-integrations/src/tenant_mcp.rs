//! MCP servers that end users bring, for the assistants that take them (contract 10 §7).

mod model;
mod servers;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use moka::sync::Cache;
use platform_core::{AccountId, Checks, Code, Error, Id, Owner, Result, Timestamp, run_blocking, spawn};
use platform_egress::Url;
use platform_runtime::{SourceTool, TENANT_MCP, ToolGroup, ToolSource, ToolTurn};
use platform_toolservers::{CustomHeader, NewMcpServer, OfferedServer, ToolDefinition, check_headers, slug};
use platform_vault::{Secret, SecretLocation};
use serde_json::json;
use tokio::time::timeout;
use tracing::warn;

pub use self::model::{
    BroughtMcpServer, NewTenantMcpServer, ReconnectTenantMcp, TenantMcpAuth, TenantMcpLimits, TenantMcpServer,
    TenantMcpServers, TenantMcpTool,
};
use self::servers::{ERROR, OAUTH, PENDING, ServerRow};
use crate::{
    code,
    model::NewConnection,
    repository::{self, ACTIVE as CONNECTED, ConnectionRow, PENDING as UNDECIDED},
    service::{Connecting, PgIntegrations},
};

enum BroughtKind {}

/// Longest look at a server while its user waits.
const LOOK: Duration = Duration::from_secs(20);
/// Tools that were read longer ago are read again, beside the turn that uses them; at most once a minute.
const STALE_MS: i64 = 600_000;
const BETWEEN_LOOKS: Duration = Duration::from_mins(1);
/// Servers that are ready to be offered, at once.
const MAX_READY: u64 = 2000;
/// Bytes of them, those of one beside its tools, and how long one waits to be asked for again.
const MAX_READY_BYTES: u64 = 64 << 20;
const SERVER_BYTES: usize = 32 << 10;
const READY: Duration = Duration::from_mins(10);

impl PgIntegrations {
    /// The MCP servers of an end user; `most`: servers, and tools of each.
    pub async fn brought_list(
        &self,
        account: &AccountId,
        owner: &Owner,
        (max_servers, max_tools_per_server): (usize, usize),
    ) -> Result<TenantMcpServers> {
        let rows = servers::list(self.connections.db.read().await?.get(), account, owner).await?;
        let mut servers = Vec::new();
        for mut row in rows {
            self.look_at_connection(account, &mut row).await?;
            let mut shown = row.shown()?;
            shown.tools.truncate(max_tools_per_server);
            servers.push(shown);
        }
        let limits = TenantMcpLimits { max_servers, max_tools_per_server, used: servers.len() };
        Ok(TenantMcpServers { servers, limits })
    }

    /// Takes an MCP server in. `CONFLICT` beyond `max_servers`, `URL_NOT_ALLOWED`, `UPSTREAM_ERROR`.
    pub async fn bring(
        &self,
        account: &AccountId,
        new: NewTenantMcpServer,
        (max_servers, max_tools): (usize, usize),
        return_to: Option<String>,
        connecting: &Connecting,
    ) -> Result<BroughtMcpServer> {
        let now = self.connections.clock.now();
        if new.url.trim().is_empty() {
            return Err(Error::invalid("url", "required", "url is required: where the MCP server is"));
        }
        let url = self.connections.egress.check(&new.url).await.map_err(|error| error.into_error("url"))?;
        let mut row = self.blank(account, new, &url, &connecting.owner, now)?;
        if servers::list(self.connections.db.read().await?.get(), account, &connecting.owner).await?.len()
            >= max_servers
        {
            return Err(full(max_servers));
        }
        if row.auth_mode != OAUTH {
            row.note(Ok(self.look(account, &row, max_tools).await?), now)?;
        }
        self.insert(account, &mut row, max_servers).await?;
        let server = row.shown()?;
        if row.auth_mode != OAUTH {
            return Ok(BroughtMcpServer { server, authorization_url: None });
        }
        match self.log_in(account, &row, return_to, connecting).await {
            Ok(url) => Ok(BroughtMcpServer { server, authorization_url: url }),
            Err(error) if error.code() == code::INVALID_RETURN_TO => {
                self.forget(account, &row.id).await?;
                Err(error)
            }
            Err(error) => {
                row.note(Err(error), now)?;
                self.store(&row).await?;
                let server = TenantMcpServer { status_reason: row.status_reason, ..server };
                Ok(BroughtMcpServer { server, authorization_url: None })
            }
        }
    }

    /// Looks at an MCP server again, with other headers when they are given; its user logs in again where that does
    /// not do. `SERVER_NOT_FOUND`.
    pub async fn bring_again(
        &self,
        account: &AccountId,
        id: &str,
        headers: Option<Vec<CustomHeader>>,
        max_tools: usize,
        return_to: Option<String>,
        connecting: &Connecting,
    ) -> Result<BroughtMcpServer> {
        let mut row = self.own(account, id, &connecting.owner).await?;
        if let Some(headers) = headers {
            let is_header = row.auth_mode == "header";
            check_given(is_header, &headers)?;
            row.headers = self.seal_headers(account, id, &headers);
        }
        let now = self.connections.clock.now();
        let is_connected =
            row.auth_mode != OAUTH || self.mcp_connection(account, &row.target(), &connecting.owner).await?.is_some();
        let read = if is_connected { self.look(account, &row, max_tools).await } else { Err(undecided()) };
        if row.auth_mode == OAUTH && read.is_err() {
            match self.log_in(account, &row, return_to, connecting).await {
                Ok(url) => {
                    (row.status, row.status_reason, row.updated_ms) = (PENDING.to_owned(), None, now.0);
                    self.store(&row).await?;
                    return Ok(BroughtMcpServer { server: row.shown()?, authorization_url: url });
                }
                Err(error) if error.code() == code::INVALID_RETURN_TO => return Err(error),
                Err(error) => row.note(Err(error), now)?,
            }
        } else {
            row.note(read, now)?;
        }
        self.store(&row).await?;
        Ok(BroughtMcpServer { server: row.shown()?, authorization_url: None })
    }

    /// Takes an MCP server away. `SERVER_NOT_FOUND`.
    pub async fn take_away(&self, account: &AccountId, id: &str, owner: &Owner) -> Result<()> {
        self.own(account, id, owner).await?;
        self.forget(account, id).await
    }

    /// Takes all MCP servers of a tenant away, or of one of its end users; their connections go with the tenant's.
    pub(crate) async fn forget_brought(
        &self,
        account: &AccountId,
        tenant: &str,
        subtenant: Option<&str>,
    ) -> Result<()> {
        servers::delete_of_tenant(&mut *self.connections.db.conn().await?, account, tenant, subtenant).await
    }

    /// A user has logged in somewhere: when that is an MCP server that was brought, its tools are read.
    pub(crate) async fn brought_connected(&self, account: &AccountId, connection: &ConnectionRow) -> Result<()> {
        let Some(id) = connection.app.strip_prefix("mcp:") else { return Ok(()) };
        if let Some(row) = servers::find(self.connections.db.read().await?.get(), account, id).await? {
            self.look_again(account, row).await?;
        }
        Ok(())
    }

    fn blank(
        &self,
        account: &AccountId,
        new: NewTenantMcpServer,
        url: &Url,
        owner: &Owner,
        now: Timestamp,
    ) -> Result<ServerRow> {
        let mut checks = Checks::default();
        checks.length("url", &new.url, 1..=2048);
        let name = new.name.filter(|name| !name.trim().is_empty());
        let name = name.unwrap_or_else(|| url.host_str().unwrap_or_default().to_owned());
        checks.length("name", &name, 1..=100);
        checks.finish()?;
        check_given(new.auth_mode == TenantMcpAuth::Header, &new.headers)?;
        if new.auth_mode == TenantMcpAuth::Header && new.headers.is_empty() {
            return Err(Error::invalid("headers", "required", "authMode header takes headers"));
        }
        let id = String::from(Id::<BroughtKind>::generate());
        Ok(ServerRow {
            account_id: account.as_str().to_owned(),
            tenant_id: owner.tenant_id.clone().unwrap_or_default(),
            subtenant_id: owner.subtenant_id.clone().unwrap_or_default(),
            identifier: slug(&name),
            name,
            url: url.to_string(),
            auth_mode: new.auth_mode.as_str().to_owned(),
            headers: self.seal_headers(account, &id, &new.headers),
            status: PENDING.to_owned(),
            status_reason: None,
            tools: json!([]),
            refreshed_ms: None,
            created_ms: now.0,
            updated_ms: now.0,
            id,
        })
    }

    /// Stores a new server under an identifier that no other of its owner has.
    async fn insert(&self, account: &AccountId, row: &mut ServerRow, max_servers: usize) -> Result<()> {
        let owner = row.owner();
        let base = row.identifier.clone();
        let mut conn = self.connections.db.conn().await?;
        let inserting = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock_owner(conn, account, "mcp", &owner).await?;
            let others = servers::list(conn, account, &owner).await?;
            if others.len() >= max_servers {
                return Err(full(max_servers));
            }
            let is_taken = |identifier: &str| others.iter().any(|other| other.identifier == identifier);
            for n in 2.. {
                if !is_taken(&row.identifier) {
                    break;
                }
                let short: String = base.chars().take(20).collect();
                row.identifier = format!("{short}-{n}");
            }
            servers::insert(conn, row).await
        });
        inserting.await
    }

    async fn store(&self, row: &ServerRow) -> Result<()> {
        servers::update(&mut *self.connections.db.conn().await?, row).await
    }

    async fn own(&self, account: &AccountId, id: &str, owner: &Owner) -> Result<ServerRow> {
        let row = servers::find(self.connections.db.read().await?.get(), account, id).await?;
        let row = row.filter(|row| row.owner() == *owner);
        row.ok_or_else(|| Error::not_found(code::SERVER_NOT_FOUND, "MCP server", id))
    }

    async fn forget(&self, account: &AccountId, id: &str) -> Result<()> {
        servers::delete(&mut *self.connections.db.conn().await?, account, id).await?;
        self.forget_mcp(account, id).await
    }

    async fn log_in(
        &self,
        account: &AccountId,
        row: &ServerRow,
        return_to: Option<String>,
        connecting: &Connecting,
    ) -> Result<Option<String>> {
        let new = NewConnection { return_to, ..NewConnection::default() };
        let connected = self.connect_mcp(account, &row.target(), new, connecting).await?;
        Ok(connected.authorization_url)
    }

    /// What stands in the record of a server whose user logs in follows its connection.
    async fn look_at_connection(&self, account: &AccountId, row: &mut ServerRow) -> Result<()> {
        if row.auth_mode != OAUTH || row.status == ERROR {
            return Ok(());
        }
        let conn = self.connections.db.read().await?;
        let known = repository::list(conn.get(), account, Some(&format!("mcp:{}", row.id)), &row.owner()).await?;
        drop(conn);
        if known.iter().any(|of| of.status == CONNECTED) {
            return Ok(());
        }
        let newest = known.into_iter().next();
        if newest.as_ref().is_some_and(|of| of.status == UNDECIDED) {
            PENDING.clone_into(&mut row.status);
        } else if let Some(of) = newest {
            (row.status, row.status_reason) = (ERROR.to_owned(), of.status_reason);
        }
        Ok(())
    }

    fn headers(&self, account: &AccountId, row: &ServerRow) -> Result<Vec<CustomHeader>> {
        let Some(sealed) = &row.headers else { return Ok(Vec::new()) };
        let opened = self.connections.vault.open(&place(account, &row.id), sealed)?;
        let pairs: Vec<(String, String)> = serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        let header = |(header_name, value): (String, String)| CustomHeader { header_name, value: value.into() };
        Ok(pairs.into_iter().map(header).collect())
    }

    fn seal_headers(&self, account: &AccountId, id: &str, headers: &[CustomHeader]) -> Option<String> {
        let pairs: Vec<_> = headers.iter().map(|header| (&header.header_name, header.value.expose())).collect();
        let text: Secret = json!(pairs).to_string().into();
        (!headers.is_empty()).then(|| self.connections.vault.seal(&place(account, id), text.expose()))
    }

    /// A server as calls need it, with so many of its tools.
    async fn offered(
        &self,
        account: &AccountId,
        row: &ServerRow,
        connection: Option<String>,
        most: usize,
    ) -> Result<OfferedServer> {
        let mut tools = row.tools()?;
        tools.truncate(most);
        let new = NewMcpServer {
            id: row.id.clone(),
            identifier: row.identifier.clone(),
            url: row.url.clone(),
            tools,
            headers: self.headers(account, row)?,
            connection,
        };
        let account = account.clone();
        run_blocking(move || OfferedServer::mcp(&account, new)).await
    }

    /// The tools that a server has now.
    async fn look(&self, account: &AccountId, row: &ServerRow, most: usize) -> Result<Vec<ToolDefinition>> {
        let connection = match row.auth_mode.as_str() {
            OAUTH => self.mcp_connection(account, &row.target(), &row.owner()).await?,
            _ => None,
        };
        let server = self.offered(account, row, connection, 0).await?;
        let late = |_| Error::new(Code::UPSTREAM_ERROR, "The MCP server does not answer in time.");
        timeout(LOOK, self.tool_servers.read_tools(&server, most.clamp(1, MAX_TOOLS))).await.map_err(late)?
    }

    /// Reads the tools of a server again, as many as it had room for.
    async fn look_again(&self, account: &AccountId, mut row: ServerRow) -> Result<()> {
        let (read, before) = (self.look(account, &row, MAX_TOOLS).await, row.updated_ms);
        row.note(read, self.connections.clock.now())?;
        // Whoever changed it meanwhile knows better.
        servers::update_unchanged(&mut *self.connections.db.conn().await?, &row, before).await
    }
}

/// Whatever an assistant allows, so many tools of a server are kept.
const MAX_TOOLS: usize = 200;

fn check_given(is_header: bool, headers: &[CustomHeader]) -> Result<()> {
    let mut checks = Checks::default();
    if !is_header && !headers.is_empty() {
        checks.issue("headers", "conflict", "headers are for authMode header alone");
    }
    check_headers(&mut checks, "headers", headers);
    checks.finish()
}

fn full(most: usize) -> Error {
    Error::new(Code::CONFLICT, format!("There are {most} MCP servers, the most that this assistant takes."))
}

fn undecided() -> Error {
    Error::new(Code::UPSTREAM_ERROR, "Nobody has logged in to the MCP server.")
}

fn place<'a>(account: &'a AccountId, id: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "tenant_mcp_servers", column: "headers", row: id }
}

type ReadyKey = (AccountId, String, i64, Option<String>, usize);

/// The tools of the MCP servers of whom an assistant talks to.
pub struct TenantMcp {
    integrations: Arc<PgIntegrations>,
    /// With schemas compiled.
    ready: Cache<ReadyKey, OfferedServer>,
    /// Read a short while ago.
    looked: Cache<String, ()>,
}

impl TenantMcp {
    /// Those of these integrations.
    pub fn new(integrations: &Arc<PgIntegrations>) -> Self {
        let looked = Cache::builder().max_capacity(MAX_READY).time_to_live(BETWEEN_LOOKS).build();
        let weigh = |_: &ReadyKey, of: &OfferedServer| u32::try_from(SERVER_BYTES + of.bytes()).unwrap_or(u32::MAX);
        let ready = Cache::builder().weigher(weigh).max_capacity(MAX_READY_BYTES).time_to_idle(READY).build();
        Self { integrations: Arc::clone(integrations), ready, looked }
    }

    /// A server ready to be offered; `None` while nobody has logged in to it.
    async fn ready(&self, account: &AccountId, row: &ServerRow, most: usize) -> Result<Option<OfferedServer>> {
        let mut connection = None;
        if row.auth_mode == OAUTH {
            let app = format!("mcp:{}", row.id);
            let conn = self.integrations.connections.db.read().await?;
            let known = repository::list(conn.get(), account, Some(&app), &row.owner()).await?;
            drop(conn);
            // One that broke says so when it is called.
            let best = known.iter().find(|of| of.is_active()).or_else(|| known.first());
            let Some(best) = best else { return Ok(None) };
            connection = Some(best.id.clone());
        }
        let key = (account.clone(), row.id.clone(), row.updated_ms, connection.clone(), most);
        if let Some(known) = self.ready.get(&key) {
            return Ok(Some(known));
        }
        let ready = self.integrations.offered(account, row, connection, most).await?;
        self.ready.insert(key, ready.clone());
        Ok(Some(ready))
    }

    /// Has the tools of a server read again when that was long ago.
    fn look_soon(&self, account: &AccountId, row: &ServerRow) {
        let now = self.integrations.connections.clock.now().0;
        let is_stale = row.refreshed_ms.is_some_and(|at| now - at > STALE_MS);
        if !is_stale || self.looked.contains_key(&row.id) {
            return;
        }
        self.looked.insert(row.id.clone(), ());
        let (integrations, account, row) = (Arc::clone(&self.integrations), account.clone(), row.clone());
        spawn("read tools", async move {
            if let Err(error) = integrations.look_again(&account, row).await {
                warn!(%error, "The tools of an end user's MCP server could not be stored.");
            }
        });
    }
}

#[async_trait]
impl ToolSource for TenantMcp {
    async fn group(&self, _: &AccountId, _: &str) -> Result<Option<ToolGroup>> {
        Ok(None)
    }

    async fn tools(&self, account: &AccountId, uid: &str, turn: &ToolTurn<'_>) -> Result<Option<Vec<SourceTool>>> {
        let Some((most_servers, most)) = turn.scope.tenant_mcp.filter(|_| uid == TENANT_MCP) else { return Ok(None) };
        let conn = self.integrations.connections.db.read().await?;
        let rows = servers::list(conn.get(), account, &turn.scope.owner()).await?;
        drop(conn);
        let mut offered = Vec::new();
        for row in rows.into_iter().take(most_servers) {
            self.look_soon(account, &row);
            if let Some(server) = self.ready(account, &row, most).await? {
                offered.extend(self.integrations.tool_servers.offer_all(&server, turn));
            }
        }
        Ok(Some(offered))
    }
}
