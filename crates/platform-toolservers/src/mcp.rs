//! Remote MCP servers over streamable HTTP, by the official SDK: both protocol families, no processes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use moka::sync::Cache;
use platform_core::{AccountId, Object};
use platform_egress::{Egress, header::HeaderMap};
use rmcp::{
    ClientHandler, ServiceError,
    model::{CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, Implementation, ProtocolVersion},
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt, NotificationContext, RoleClient, RunningService,
    },
    transport::streamable_http_client::{StreamableHttpClientTransport, StreamableHttpClientTransportConfig},
};
use serde_json::Value;
use tokio::{sync::mpsc::UnboundedSender, time::timeout};

use crate::{
    definition::{FunctionDefinition, HttpMethod, ToolDefinition},
    failure::Failure,
    redact::Redactor,
    server::{Credentials, Server},
    tokens::Tokens,
};

const CONNECT: Duration = Duration::from_secs(20);
/// A connection that nobody uses is closed after this.
const IDLE: Duration = Duration::from_mins(5);
const MOST_CONNECTIONS: u64 = 1000;

/// The server whose tools may have changed.
pub(crate) type Changed = (AccountId, String);

/// Connections to MCP servers, kept while they are used.
pub(crate) struct McpClients {
    egress: Egress,
    connections: Cache<Changed, Arc<Connection>>,
    /// Who is told that a server says its tools have changed.
    changed: UnboundedSender<Changed>,
}

struct Connection {
    service: RunningService<RoleClient, Client>,
    /// What it was let in with, and where.
    headers: HeaderMap,
    url: String,
    secrets: Vec<platform_vault::Secret>,
}

struct Client {
    server: Changed,
    changed: UnboundedSender<Changed>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("platform", env!("CARGO_PKG_VERSION")))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        let _ = self.changed.send(self.server.clone());
    }
}

impl McpClients {
    pub fn new(egress: Egress, changed: UnboundedSender<Changed>) -> Self {
        let connections = Cache::builder().max_capacity(MOST_CONNECTIONS).time_to_idle(IDLE).build();
        Self { egress, connections, changed }
    }

    /// The tools a server offers now.
    pub async fn tools(&self, server: &Server, tokens: &Tokens) -> Result<Vec<ToolDefinition>, Failure> {
        let listed = async {
            for last in [false, true] {
                let connection = self.connection(server, tokens).await?;
                match connection.service.list_all_tools().await {
                    Ok(tools) => return Ok(tools.into_iter().map(definition).collect()),
                    Err(error) if last => return Err(failure(&error)),
                    Err(_) => self.forget(server),
                }
            }
            Err(Failure::new("UPSTREAM_ERROR", "The MCP server does not answer."))
        };
        within(Duration::from_millis(server.settings.timeout_ms.into()), listed).await
    }

    /// Calls a tool; a call that was sent is not sent again, unless that cannot do harm.
    pub async fn call(
        &self,
        server: &Server,
        tool: &ToolDefinition,
        arguments: &Object,
        tokens: &Tokens,
        longest: Duration,
    ) -> Result<Value, Failure> {
        let called = async {
            let mut connection = self.connection(server, tokens).await?;
            let params = CallToolRequestParams::new(tool.function.name.clone()).with_arguments(arguments.clone());
            let mut answer = connection.service.call_tool(params.clone()).await;
            if let Err(error) = &answer
                && !matches!(error, ServiceError::McpError(_))
            {
                self.forget(server);
                // Closed before it was used: nothing was sent.
                if tool.is_repeatable() || matches!(error, ServiceError::TransportClosed) {
                    connection = self.connection(server, tokens).await?;
                    answer = connection.service.call_tool(params).await;
                }
            }
            let redactor = Redactor::new(&connection.secrets);
            match answer {
                Ok(result) => {
                    let (failed, value) = read(result);
                    let value = redactor.value(value);
                    if self.egress.most_bytes() > 0 && value.to_string().len() > self.egress.most_bytes() {
                        return Err(Failure::new("RESPONSE_TOO_LARGE", "The answer of the MCP server is too long."));
                    }
                    if failed {
                        Err(Failure {
                            body: Some(value),
                            ..Failure::new("UPSTREAM_ERROR", "The tool says that it failed.")
                        })
                    } else {
                        Ok(value)
                    }
                }
                Err(error) => {
                    let failure = failure(&error);
                    Err(Failure { message: failure.message.map(|message| redactor.text(&message)), ..failure })
                }
            }
        };
        within(longest, called).await
    }

    /// A server that was changed is connected anew.
    pub fn forget(&self, server: &Server) {
        self.connections.invalidate(&(server.account.clone(), server.id.clone()));
    }

    async fn connection(&self, server: &Server, tokens: &Tokens) -> Result<Arc<Connection>, Failure> {
        let key = (server.account.clone(), server.id.clone());
        let url = server.settings.url.clone().unwrap_or_default();
        let credentials = server.credentials(None, tokens, None).await?;
        let same = |known: &Arc<Connection>| {
            known.headers == credentials.headers && known.url == url && !known.service.peer().is_transport_closed()
        };
        if let Some(known) = self.connections.get(&key).filter(same) {
            return Ok(known);
        }
        let connection = match self.connect(server, &url, credentials).await {
            // A token that is refused before its time: another one, once.
            Err((failure, Some(stale))) if failure.code == "AUTH_FAILED" => {
                let credentials = server.credentials(None, tokens, Some(&stale)).await?;
                self.connect(server, &url, credentials).await
            }
            outcome => outcome,
        };
        let connection = Arc::new(connection.map_err(|(failure, _)| failure)?);
        self.connections.insert(key, Arc::clone(&connection));
        Ok(connection)
    }

    async fn connect(
        &self,
        server: &Server,
        url: &str,
        credentials: Credentials,
    ) -> Result<Connection, (Failure, Option<platform_vault::Secret>)> {
        let Credentials { headers, secrets, token } = credentials;
        let client = match server.settings.address() {
            Some(address) => self.egress.client_for(&address).map_err(|error| (error.into(), None))?,
            None => return Err((Failure::new("URL_NOT_ALLOWED", "The server has no address that can be read."), None)),
        };
        let sent: HashMap<_, _> = headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let config = StreamableHttpClientTransportConfig::with_uri(url)
            .custom_headers(sent)
            .max_sse_event_size(if self.egress.most_bytes() == 0 { usize::MAX } else { self.egress.most_bytes() });
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let key = (server.account.clone(), server.id.clone());
        let handler = Client { server: key, changed: self.changed.clone() };
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        let redactor = Redactor::new(&secrets);
        match timeout(CONNECT, handler.serve_with_lifecycle(transport, lifecycle)).await {
            Ok(Ok(service)) => Ok(Connection { service, headers, url: url.to_owned(), secrets }),
            Ok(Err(error)) => {
                let mut failure = refused(&error);
                failure.message = failure.message.map(|message| redactor.text(&message));
                Err((failure, token))
            }
            Err(_) => Err((Failure::new("UPSTREAM_TIMEOUT", "The MCP server does not answer in time."), None)),
        }
    }
}

async fn within<T>(longest: Duration, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = || Failure::new("UPSTREAM_TIMEOUT", format!("The call takes more than {} ms.", longest.as_millis()));
    timeout(longest, work).await.unwrap_or_else(|_| Err(late()))
}

fn refused(error: &ClientInitializeError) -> Failure {
    let text = chain(error);
    if error.is_authorization_required() || text.contains("HTTP 401") || text.contains("HTTP 403") {
        return Failure::new("AUTH_FAILED", "The MCP server refuses the credentials.");
    }
    let code = if text.contains("not public") || text.contains("is not followed") {
        "URL_NOT_ALLOWED"
    } else {
        "UPSTREAM_ERROR"
    };
    Failure::new(code, format!("The MCP server cannot be used: {text}"))
}

fn failure(error: &ServiceError) -> Failure {
    match error {
        ServiceError::McpError(error) => Failure::new("UPSTREAM_ERROR", error.message.to_string()),
        other => Failure::new("UPSTREAM_ERROR", format!("The MCP server cannot be used: {}", chain(other))),
    }
}

/// An error with what is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

/// What a tool gave: the structured content, else its one text, else its parts; and whether it says it failed.
fn read(result: CallToolResult) -> (bool, Value) {
    let failed = result.is_error == Some(true);
    if let Some(structured) = result.structured_content.filter(|value| !value.is_null()) {
        return (failed, structured);
    }
    let parts: Vec<Value> = result.content.iter().filter_map(|part| serde_json::to_value(part).ok()).collect();
    let texts: Option<Vec<&str>> =
        parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "text")).collect();
    let value = texts.map_or_else(|| Value::Array(parts.clone()), |texts| Value::from(texts.join("\n")));
    (failed, value)
}

/// A tool of an MCP server as a definition.
fn definition(tool: rmcp::model::Tool) -> ToolDefinition {
    let annotations = tool.annotations.as_ref().and_then(|hints| serde_json::to_value(hints).ok());
    let annotations = annotations.and_then(|hints| hints.as_object().cloned());
    let hint = |name: &str| annotations.as_ref().is_some_and(|hints| hints.get(name) == Some(&Value::Bool(true)));
    let mut parameters = Value::Object(tool.input_schema.as_ref().clone());
    for (name, default) in [("properties", Value::Object(Object::new())), ("required", Value::Array(Vec::new()))] {
        if parameters.get(name).is_none() {
            parameters[name] = default;
        }
    }
    ToolDefinition {
        function: FunctionDefinition {
            name: tool.name.into_owned(),
            description: tool.description.map(std::borrow::Cow::into_owned).unwrap_or_default(),
            strict: false,
            parameters,
        },
        method: HttpMethod::Post,
        idempotent: hint("readOnlyHint") || hint("idempotentHint"),
        annotations,
        ..ToolDefinition::default()
    }
}
