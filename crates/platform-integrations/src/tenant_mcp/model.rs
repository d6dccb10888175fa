//! What is shown of MCP servers that end users bring.

use platform_toolservers::CustomHeader;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An MCP server that an end user brings.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantMcpServer {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Address.
    pub url: String,
    /// `oauth`, `header` or `none`.
    pub auth_mode: String,
    /// `pending_auth`, `active` or `error`.
    pub status: String,
    /// Why it stands so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_reason: Option<String>,
    /// Its tools.
    pub tools: Vec<TenantMcpTool>,
    /// When it was brought.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
}

/// A tool of an MCP server that an end user brings.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TenantMcpTool {
    /// Its name there.
    pub name: String,
    /// What it does.
    pub description: String,
}

/// An MCP server to bring.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewTenantMcpServer {
    /// Address, `http(s)://`.
    pub url: String,
    /// Name, at most 100 characters; the host when absent.
    pub name: Option<String>,
    /// Who lets in.
    pub auth_mode: TenantMcpAuth,
    /// `header`: what lets in; never shown again.
    pub headers: Vec<CustomHeader>,
}

/// Who lets in to an MCP server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TenantMcpAuth {
    /// The server's own log-in, in a browser.
    Oauth,
    /// Headers.
    Header,
    /// Nobody needs to.
    #[default]
    None,
}

impl TenantMcpAuth {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Oauth => "oauth",
            Self::Header => "header",
            Self::None => "none",
        }
    }
}

/// Headers that let in instead of those before.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReconnectTenantMcp {
    /// `header`: what lets in; absent: as before.
    pub headers: Option<Vec<CustomHeader>>,
}

/// An MCP server that was brought, and where its user logs in to it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BroughtMcpServer {
    /// The server.
    pub server: TenantMcpServer,
    /// Where the user is to decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_url: Option<String>,
}

/// The MCP servers of an end user.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TenantMcpServers {
    /// The servers, oldest first.
    pub servers: Vec<TenantMcpServer>,
    /// How many there may be.
    pub limits: TenantMcpLimits,
}

/// How much an end user may bring.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantMcpLimits {
    /// Servers.
    pub max_servers: usize,
    /// Tools of each.
    pub max_tools_per_server: usize,
    /// Servers that there are.
    pub used: usize,
}
