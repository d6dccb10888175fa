//! The MCP gateway: one endpoint over many tool servers (contract 12).
//!
//! **Owns** the tables `mcp_profiles`, `mcp_grants`, `mcp_switches` and `mcp_audit`; the endpoints `/v1/mcp` and
//! `/v1/mcp-gateway`. **Needs** `platform-toolservers` for tools and their calls, `platform-integrations` for the
//! connections of users, `platform-chat` and `platform-agents` for assistants and agents that are tools.
//!
//! **Invariants**: what is listed, called, searched and previewed is one set: the profile's tools, of them those that
//! grants name, of them those that the caller may use and has not switched off; a tool that is new or described otherwise
//! waits for an operator unless the profile says otherwise; what lets a caller in here goes to no server; every call is
//! noted.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_access::Access;
//! # use platform_core::{Caller, Result};
//! # use platform_mcp::*;
//! # async fn example(needs: McpNeeds, caller: Caller, access: Arc<Access>) -> Result<()> {
//! let gateway = PgMcpGateway::new(needs);
//! let preview = gateway.preview(&Viewer::new(caller, &[], access), "default").await?;
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
mod rename;
mod repository;
mod schema;
mod search;
mod service;
mod surface;
mod viewer;

pub use endpoint::{Change, Changes, McpContext, McpReply, Messages};
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
pub use viewer::Viewer;
