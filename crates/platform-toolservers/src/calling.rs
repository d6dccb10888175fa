//! One call of a tool, whatever its server speaks.

use std::sync::Arc;

use platform_core::{Object, without_nul};
use platform_runtime::ChildPool;

use crate::{
    apps::Connections,
    definition::ToolDefinition,
    failure::Failure,
    http::{Call, Called, ToolHttp},
    mcp::McpClients,
    model::ServerType,
    server::Server,
    tokens::Tokens,
};

/// What makes calls.
pub(crate) struct Calling {
    pub http: ToolHttp,
    pub tokens: Arc<Tokens>,
    pub mcp: McpClients,
    /// Who reads and runs what clients wrote.
    pub children: Arc<ChildPool>,
    /// Who lets calls into apps.
    pub connections: Arc<dyn Connections>,
}

impl Calling {
    /// Calls a tool, after its arguments were checked.
    pub async fn call(
        &self,
        server: &Arc<Server>,
        tool: &ToolDefinition,
        call: Call<'_>,
        arguments: &Object,
    ) -> Called {
        let (url, method) = (server.settings.url.clone().unwrap_or_default(), tool.method.as_str().to_owned());
        if let Err(failure) = server.check(&self.children, tool, arguments).await {
            return Called { url, method, status: None, result: Err(failure) };
        }
        let called = if server.kind == ServerType::Mcp {
            Called { url, method, status: None, result: self.mcp.call(server, tool, arguments, call).await }
        } else if server.kind == ServerType::Integration && server.settings.url.is_none() {
            self.http.free_request(&server.account, call, arguments).await
        } else {
            self.call_http(server, tool, call, arguments).await
        };
        Called { result: called.result.map(without_nul).map_err(Failure::fit), ..called }
    }
}
