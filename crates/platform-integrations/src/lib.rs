//! Integrations: apps that packs describe, connections to them, and tool servers made of them (contract 08, 10 §6).
//!
//! **Owns** the tables `connections`, `connection_attempts`, `tenant_mcp_servers` and `app_credentials`; the endpoints `/v1/integrations` and
//! `/v1/tenant-integrations`. **Needs** `platform-toolservers`, whose servers carry the tools, `platform-egress` for
//! every request, `platform-vault` for what accounts gave. It answers the port
//! [`Connections`](platform_toolservers::Connections).
//!
//! **Invariants**: credentials go to the origin of their app and to no other; one process asks for another token at a
//! time, and the refresh token that came with it is stored before anybody uses the access token; a connection that its
//! app refuses says so; a state is good once, for some minutes; a pack that is wrong is left out.
//!
//! ```no_run
//! # use platform_core::{AccountId, Result};
//! # use platform_integrations::*;
//! # async fn example(integrations: PgIntegrations, account: AccountId, new: NewConnection, who: Connecting) -> Result<()> {
//! let app = integrations.connector("github")?;
//! let connected = integrations.connect(&account, "github", new, &who).await?;
//! # Ok(()) }
//! ```

mod catalog;
mod check;
pub mod code;
mod connecting;
mod connections;
mod mcp;
mod model;
mod oauth;
mod pack;
mod page;
mod repository;
mod revoke;
mod schema;
mod service;
pub mod template;
mod tenant;
mod tenant_mcp;

pub use catalog::{AppClient, Connector, ConnectorSource, Connectors, Directory, read_pack_file};
pub use check::{Problem, pack_schema, read_pack};
pub use connections::{ConnectionCredentials, ConnectionListener, ConnectionNeeds, PgConnections};
pub use mcp::McpTarget;
pub use model::{
    App, AppPage, Connected, ConnectedServer, Connection, ConnectionStatus, EventType, EventTypePage, ExposedTools,
    NewConnection, NewServer, Scheme, Schemes,
};
pub use pack::{
    AuthMode, AuthScheme, EventIdRule, EventKind, Field, Handshake, Pack, PackEventType, PackHeader, PackQuery,
    PackRequest, Poll, SignatureKind, SignatureRule, Subscribe, at_path,
};
pub use revoke::Revocations;
pub use service::{
    APP, CONNECTION, Callback, Connecting, IntegrationService, Listed, LoginOutcome, PgIntegrations, origin_of,
    purge_attempts, sample_of,
};
pub use tenant::{Account, ConnectedAccount, Offered, TenantApps, TenantIntegration};
pub use tenant_mcp::{
    BroughtMcpServer, NewTenantMcpServer, ReconnectTenantMcp, TenantMcp, TenantMcpAuth, TenantMcpLimits,
    TenantMcpServer, TenantMcpServers, TenantMcpTool,
};
