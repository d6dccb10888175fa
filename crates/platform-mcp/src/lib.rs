//! The MCP gateway: one endpoint over many tool servers (contract 12).
//!
//! **Owns** the tables `mcp_profiles`, `mcp_grants`, `mcp_switches` and `mcp_audit`; the endpoints `/v1/mcp` and
//! `/v1/mcp-gateway`. **Needs** `platform-toolservers` for tools and their calls, `platform-integrations` for the
//! connections of users, `platform-chat` and `platform-agents` for assistants and agents that are tools.
//!
//! **Invariants**: what is listed, called, searched and previewed is one set: the profile's tools, of them those that
//! grants name, of them those that are not switched off; a tool that is new or described otherwise waits for an
//! operator unless the profile says otherwise; what lets a caller in here goes to no server; every call is noted.
//!
//! ```no_run
//! # use platform_core::{AccountId, Id, Result};
//! # use platform_mcp::*;
//! # async fn example(needs: McpNeeds, account: AccountId, of: PreviewOf) -> Result<()> {
//! let gateway = PgMcpGateway::new(needs);
//! let tools = gateway.preview(&account, &of, true, &[]).await?;
//! # Ok(()) }
//! ```

mod audit;
mod calls;
pub mod code;
mod endpoint;
mod grants;
mod model;
mod profiles;
mod protocol;
mod repository;
mod schema;
mod search;
mod service;
mod surface;

pub use endpoint::{Asking, Change, Changes, McpReply, Messages};
pub use grants::MCP_GRANT;
pub use model::{
    AuditFilter, AuditPage, AuditRow, ExposeMode, GatewayServer, GatewayServerPage, Grant, GrantFilter, GrantPage,
    NewGrant, NewToolPolicy, PlatformTool, Preview, PreviewOf, Profile, ProfilePage, ProfileServer, ProfileSettings,
    ProfileTool, SubjectType, Switches, SwitchesPut, TargetType, ToolOverride, ToolPolicy, ToolSwitch, ToolSwitches,
    Visibility,
};
pub use profiles::{MCP_PROFILE, McpReferrer};
pub use protocol::{McpHeaders, PARAM_HEADER};
pub use service::{McpNeeds, PgMcpGateway, purge_audit};
