//! Servers as the MCP gateway needs them: their tools, and calls whose answers are handed on as they are (contract 12).

use std::{sync::Arc, time::Duration};

use platform_core::{AccountId, Code, Error, Object, Result};
use rmcp::model::{CallToolRequestParams, RequestMetaObject};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    ToolDefinition, ToolServer,
    apps::OfferedServer,
    failure::Failure,
    http::{Call, ForWhom, HasRoom},
    mcp_updates::McpUpdate,
    model::{McpAuthMode, ServerType, ToolServerFilter},
    repository,
    server::UpstreamCredentials,
    service::PgToolServerService,
    source::longest,
};

/// Where a request says from which level on its caller wants the log; it outlives the SDK's own accessor.
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// A call of a tool through the gateway.
pub struct McpCall {
    /// The idempotency key.
    pub id: String,
    /// Arguments.
    pub arguments: Object,
    /// With whose rights.
    pub with: UpstreamCredentials,
    /// What the caller can do, as MCP says it: what an upstream may ask of it.
    pub capabilities: Value,
    /// Answers to what the upstream asked before.
    pub input_responses: Option<Value>,
    /// What the upstream wants back with them.
    pub request_state: Option<String>,
    /// From which level on the caller wants its log, as MCP names them.
    pub log_level: Option<String>,
    /// Who hears of it while it is under way.
    pub updates: Option<mpsc::Sender<McpUpdate>>,
    /// The end user who makes it, by a name within the account.
    pub end_user: Option<String>,
    /// Asked once the call has its place among others.
    pub has_room: Arc<HasRoom>,
}

/// What came of a call.
#[derive(Debug)]
pub enum McpOutcome {
    /// A `CallToolResult` or an `InputRequiredResult`.
    Result(Value),
    /// An error of the protocol, by the upstream: code, message, data.
    Refused(i32, String, Option<Value>),
    /// No result: the code, and what is said of it beside: `message`, `issues`, `body` (contract 04 §7).
    Failed(String, Object),
}

impl OfferedServer {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// What stands before the names of its tools.
    pub fn identifier(&self) -> &str {
        &self.0.identifier
    }

    /// Its record, without its tools.
    pub fn record(&self) -> &ToolServer {
        &self.0.record
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.settings.name
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        self.0.settings.url.as_deref().unwrap_or_default()
    }

    /// What it speaks.
    pub fn kind(&self) -> ServerType {
        self.0.kind
    }

    /// Whose credentials it wants.
    pub fn auth_mode(&self) -> McpAuthMode {
        self.0.settings.mcp_auth_mode
    }

    /// It takes part in the gateway.
    pub fn is_exposed(&self) -> bool {
        self.0.settings.enabled && self.0.settings.mcp_exposed
    }

    /// Its tools.
    pub fn tools(&self) -> &[ToolDefinition] {
        &self.0.settings.tool_definitions
    }
}

impl PgToolServerService {
    /// A server, whether or not it takes part in the gateway.
    pub async fn offered(&self, account: &AccountId, id: &str) -> Result<Option<OfferedServer>> {
        let Some(server) = self.find(account, id).await? else { return Ok(None) };
        self.refresh_soon(&server, &UpstreamCredentials::Own);
        Ok(Some(OfferedServer(server)))
    }

    /// Ids of the servers that take part in the gateway.
    pub async fn exposed(&self, account: &AccountId) -> Result<Vec<String>> {
        let conn = self.db.read().await?;
        repository::enabled(conn.get(), account, &ToolServerFilter::default()).await
    }

    /// Reads the tools of an MCP server anew. `UPSTREAM_ERROR`.
    pub async fn reread(&self, account: &AccountId, id: &str) -> Result<()> {
        match self.fetch_tools(account, id).await? {
            (_, None) => Ok(()),
            (_, Some(failure)) => Err(Error::new(Code::UPSTREAM_ERROR, failure.to_line()).with("code", failure.code)),
        }
    }

    /// Reads the tools of an MCP server with the rights of somebody else than itself; how many there are.
    pub async fn read_with(&self, server: &OfferedServer, with: &UpstreamCredentials) -> Result<usize> {
        match self.fetch_tools_with(&server.0.account, &server.0.id, Some(with)).await? {
            (server, None) => Ok(usize::try_from(server.tool_count).unwrap_or(0)),
            (_, Some(failure)) => Err(Error::new(Code::UPSTREAM_ERROR, failure.to_line()).with("code", failure.code)),
        }
    }

    /// The same where they were not read, or long ago; whether they were.
    pub async fn read_if_old(&self, server: &OfferedServer, with: &UpstreamCredentials) -> bool {
        self.wants_reading(&server.0) && self.read_with(server, with).await.is_ok()
    }

    /// Calls a tool and hands on what comes of it.
    pub async fn call_through(&self, server: &OfferedServer, tool: &str, call: McpCall) -> McpOutcome {
        let Some(definition) = server.0.tool(tool) else {
            return failed(Failure::new("TOOL_NOT_FOUND", format!("There is no tool `{tool}`.")));
        };
        let timeout = longest(&server.0, definition);
        if server.0.kind == ServerType::Mcp {
            return self.call_upstream(server, definition, call, timeout).await;
        }
        let who = ForWhom { end_user: call.end_user.as_deref(), has_room: Some(&*call.has_room) };
        let of_call = Call { id: &call.id, callback: None, depth: None, timeout, with: &call.with, who };
        let called = self.calling.call(&server.0, definition, of_call, &call.arguments).await;
        match called.result {
            Ok(value) => McpOutcome::Result(as_result(value)),
            Err(failure) => failed(failure),
        }
    }

    async fn call_upstream(
        &self,
        server: &OfferedServer,
        tool: &ToolDefinition,
        call: McpCall,
        timeout: Duration,
    ) -> McpOutcome {
        let McpCall { id, arguments, with, capabilities, input_responses, request_state, log_level, updates, .. } =
            call;
        let who = ForWhom { end_user: call.end_user.as_deref(), has_room: Some(&*call.has_room) };
        let of_call = Call { id: &id, callback: None, depth: None, timeout, with: &with, who };
        let mut params = CallToolRequestParams::new(tool.function.name.clone()).with_arguments(arguments);
        if let Some(responses) = input_responses.and_then(|given| serde_json::from_value(given).ok()) {
            params = params.with_input_responses(responses);
        }
        if let Some(state) = request_state {
            params = params.with_request_state(state);
        }
        let mut meta = RequestMetaObject::default();
        if let Ok(capabilities) = serde_json::from_value(capabilities) {
            meta.set_client_capabilities(capabilities);
        }
        if let Some(level) = log_level {
            meta.insert(LOG_LEVEL.to_owned(), level.into());
        }
        let called = self.calling.mcp.call_once(&server.0, tool, of_call, params, meta, updates);
        let outcome = called.await.unwrap_or_else(failed);
        if matches!(outcome, McpOutcome::Result(_)) {
            self.refresh_soon(&server.0, &with);
        }
        outcome
    }
}

fn failed(failure: Failure) -> McpOutcome {
    let line = failure.to_line();
    let Failure { code, issues, body, .. } = failure;
    let mut said = Object::from_iter([("message".to_owned(), line.into())]);
    if !issues.is_empty() {
        said.insert("issues".to_owned(), issues.into());
    }
    said.extend(body.map(|body| ("body".to_owned(), body)));
    McpOutcome::Failed(code, said)
}

/// A value as the result of a tool.
fn as_result(value: Value) -> Value {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut result = json!({"content": [{"type": "text", "text": text}]});
    if value.is_object() {
        result["structuredContent"] = value;
    }
    result
}
