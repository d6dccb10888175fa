//! Tool servers: which tools assistants and agents can call, and the calls themselves.
//!
//! **Owns** the tables `tool_servers`, `tool_tokens`; the endpoints
//! `/v1/tool-servers/…` and `/v1/tool-groups`. **Needs** `platform-db`, `platform-vault` for
//! secrets, `platform-egress` for every request, child processes for the expressions of tools; implements the port `ToolSource`.
//!
//! A tool is a request over HTTP that its definition describes, or a tool of a remote MCP server,
//! or a request that the model describes itself ([`http_tools`]). What goes wrong in a call is a result that the model reads.
//!
//! **Invariants**: secrets are sealed in the table and masked everywhere else; a secret goes to the
//! scheme, host and port it was given for and to no other; an argument never changes the shape of
//! a request; secrets that a tool echoes are taken out of its result; nothing that an API call says
//! starts a process.
//!
//! ```no_run
//! # use platform_core::{AccountId, Object, Result};
//! # use platform_toolservers::*;
//! # async fn example(needs: ToolServerNeeds, account: AccountId, given: Object) -> Result<()> {
//! let servers = PgToolServerService::new(needs);
//! let server = servers.create(&account, given, None).await?;
//! # Ok(()) }
//! ```

mod apps;
mod authentication;
mod builtin;
mod calling;
pub mod code;
mod definition;
mod failure;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gateway;
mod http;
mod kinds;
mod mcp;
mod mcp_http;
mod mcp_updates;
mod model;
mod openapi;
mod refresh;
mod repository;
mod request;
mod rules;
mod schema;
mod script;
mod secrets;
mod server;
mod service;
mod source;
mod tokens;

pub use apps::{
    AppCredentials, AppFunction, AppTool, AppTools, Connections, NewAppServer, NewMcpServer, OfApp, OfferedServer,
    check_tools, set_connected_in, wrong_templates,
};
pub use authentication::{AuthenticationConfig, AuthenticationMethod};
pub use builtin::http_tools;
pub use definition::{
    BodyMode, CustomHeader, FunctionDefinition, HttpMethod, REFUSED_HEADERS as REFUSED_TOOL_HEADERS, TOOL_FIELDS,
    ToolDefinition, check_headers,
};
pub use gateway::{McpCall, McpOutcome};
pub use http::HasRoom;
pub use kinds::TOOL_SERVER;
pub use mcp_updates::McpUpdate;
pub use model::{
    AppLink, CloneRequest, DefinitionPatch, Integration, ListedGroup, McpAuthMode, OpenApiImport, ServerType,
    TestRequest, TestResult, ToolList, ToolServer, ToolServerFilter, ToolServerList, ToolServerSettings,
};
pub use repository::{hold_in, use_in};
pub use rules::{in_use, numbered, slug};
pub use server::UpstreamCredentials;
pub use service::{PgToolServerService, ToolServerNeeds, ToolServerService};

/// What child processes do with expressions and descriptions of clients.
pub fn child_works() -> impl Iterator<Item = platform_child::Work> {
    script::WORKS.into_iter().chain(openapi::WORKS)
}
