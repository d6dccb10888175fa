use platform_core::{Checks, FieldLimits, Object, Result, Timestamp};
use platform_egress::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    authentication::AuthenticationConfig,
    definition::{ToolDefinition, check_all, check_switches},
};

/// Everything a client sets of a tool server (contract 04 §1).
#[expect(clippy::struct_excessive_bools, reason = "the wire has these flags")]
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolServerSettings {
    /// Name, 1 to 200 characters.
    pub name: String,
    /// Description, at most 4000 characters.
    pub description: String,
    /// Address, `http(s)://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// `^[a-z0-9-]{1,24}$`, unique; stands before names that clash. Made of the name when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub identifier: Option<String>,
    /// Assistants and agents may use it.
    pub enabled: bool,
    /// Derived: `mcp` when `mcpType` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub r#type: Option<ServerType>,
    /// A remote MCP server over HTTP.
    pub mcp_type: bool,
    /// Picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    /// Project it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Its tools, at most 200; those of an MCP server come from there.
    pub tool_definitions: Vec<ToolDefinition>,
    /// How its calls authenticate themselves.
    pub authentication_config: AuthenticationConfig,
    /// Longest call, 1000 to 300000 ms.
    pub timeout_ms: u32,
    /// Takes part in the MCP gateway.
    pub mcp_exposed: bool,
    /// Whose credentials the MCP gateway uses.
    pub mcp_auth_mode: McpAuthMode,
    /// It is made from an app, which says where and with whose rights its tools call.
    #[serde(skip)]
    #[schema(ignore)]
    pub(crate) is_app: bool,
}

impl Default for ToolServerSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            url: None,
            identifier: None,
            enabled: true,
            r#type: None,
            mcp_type: false,
            image_url: None,
            project_id: None,
            tool_definitions: Vec::new(),
            authentication_config: AuthenticationConfig::default(),
            timeout_ms: 60_000,
            mcp_exposed: false,
            mcp_auth_mode: McpAuthMode::Shared,
            is_app: false,
        }
    }
}

/// What kind of server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServerType {
    /// HTTP requests that its tools describe.
    Http,
    /// The Model Context Protocol.
    Mcp,
    /// Made from a connected app.
    Integration,
}

impl ServerType {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Mcp => "mcp",
            Self::Integration => "integration",
        }
    }
}

/// Whose credentials calls through the MCP gateway carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum McpAuthMode {
    /// The server's own.
    Shared,
    /// A connection of each user.
    PerUser,
    /// What the request brings.
    Passthrough,
}

impl ToolServerSettings {
    /// Both fields are read, until they are checked.
    pub(crate) fn is_mcp(&self) -> bool {
        self.mcp_type || self.r#type == Some(ServerType::Mcp)
    }

    /// What kind of server it is.
    pub(crate) fn kind(&self) -> ServerType {
        match (self.is_app, self.mcp_type) {
            (true, _) => ServerType::Integration,
            (false, true) => ServerType::Mcp,
            (false, false) => ServerType::Http,
        }
    }

    /// The address, read.
    pub(crate) fn address(&self) -> Option<Url> {
        self.url.as_deref().and_then(|url| Url::parse(url).ok())
    }

    /// Every rule of contract 04 that needs no look outside. Takes a while: templates and schemas are compiled.
    pub(crate) fn check(&mut self, limits: &FieldLimits) -> Result<()> {
        let mut checks = Checks::default();
        match self.r#type.take() {
            Some(ServerType::Mcp) => self.mcp_type = true,
            Some(ServerType::Integration) if self.is_app => {}
            Some(ServerType::Integration) => {
                checks.issue("type", "conflict", "a server of type integration is made from a connected app");
            }
            Some(ServerType::Http) | None => {}
        }
        checks.name(&self.name);
        checks.length("description", &self.description, 0..=4000);
        checks.picture("imageUrl", self.image_url.as_deref());
        match &self.url {
            None if self.is_app => {}
            None => checks.issue("url", "required", "url is required: where the server is"),
            Some(url) => checks.bytes("url", url.len(), 2048),
        }
        if let Some(identifier) = &self.identifier
            && !is_identifier(identifier)
        {
            checks.issue("identifier", "format", "identifier must match ^[a-z0-9-]{1,24}$");
        }
        checks.range("timeoutMs", self.timeout_ms, &(1000..=300_000));
        if self.is_app && self.mcp_auth_mode != McpAuthMode::Shared {
            let message = "a server of an app is called with the rights of its connection: mcpAuthMode is shared";
            checks.issue("mcpAuthMode", "conflict", message);
        }
        self.authentication_config.check(&mut checks);
        checks.finish()?;
        if self.mcp_type || self.is_app {
            // What their server or app says of them is not the client's to mend.
            return check_switches(&self.tool_definitions);
        }
        let address = self.address();
        check_all(&mut self.tool_definitions, limits.tools_per_server, address.as_ref())
    }
}

pub(crate) fn is_identifier(text: &str) -> bool {
    (1..=24).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// A tool server as it is sent (contract 04 §1).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolServer {
    /// Id, also the uid of its tool group.
    #[serde(rename = "_id")]
    pub id: String,
    /// Stands before names that clash.
    pub identifier: String,
    /// Kind of server.
    pub r#type: ServerType,
    /// How many tools it has.
    pub tool_count: i32,
    /// The app that it was made from; only of servers of type integration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Integration>)]
    pub integration: Option<AppLink>,
    /// `ok`, `degraded` or `down`; only of MCP servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// When its tools were last read; only of MCP servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refresh_ms: Option<i64>,
    /// Since when it does not answer.
    #[serde(skip)]
    pub down_since_ms: Option<i64>,
    /// Why its tools could not be read the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Id of the definition: that of the server.
    pub tool_server_definition_id: String,
    /// The tools once more; left out in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub tool_server_definition: Option<Value>,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// What the client set; secrets are masked, `toolDefinitions` are left out in lists.
    #[serde(flatten)]
    #[schema(value_type = ToolServerSettings)]
    pub settings: Value,
    /// Operations of an import that became no tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub skipped: Option<Vec<Value>>,
    /// For `ETag`.
    #[serde(skip)]
    pub version: i64,
}

impl ToolServer {
    /// The tools of it alone.
    pub fn definition(&self) -> Value {
        let of = |name: &str| self.settings.get(name).cloned().unwrap_or_default();
        json!({"_id": self.id, "name": of("name"), "description": of("description"), "toolDefinitions": of("toolDefinitions")})
    }

    /// Without its tools, for lists.
    #[must_use]
    pub(crate) fn brief(mut self) -> Self {
        if let Some(fields) = self.settings.as_object_mut() {
            fields.remove("toolDefinitions");
        }
        Self { tool_server_definition: None, ..self }
    }
}

/// The app that a tool server was made from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppLink {
    /// Slug of the app.
    pub app: String,
    /// The connection with whose rights its tools call.
    pub connection_id: Option<String>,
    /// That connection is good.
    pub connected: bool,
    /// Names of the tools that it exposes; `None` = all of the app.
    pub exposed: Option<Vec<String>>,
    /// Digest of what the app's tools were made from.
    #[serde(default)]
    pub pack: String,
}

impl AppLink {
    /// As it is stored.
    pub(crate) fn stored(&self) -> Value {
        json!({"app": self.app, "connectionId": self.connection_id, "connected": self.connected,
            "exposed": self.exposed, "pack": self.pack})
    }

    /// As it is sent (contract 04 §1).
    pub fn shown(&self) -> Integration {
        Integration {
            app: self.app.clone(),
            apps: vec![self.app.clone()],
            connected: self.connected,
            connection_id: self.connection_id.clone(),
            enabled_tool_count: self.exposed.as_ref().map(Vec::len),
        }
    }
}

impl Serialize for AppLink {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.shown().serialize(serializer)
    }
}

/// The app that a tool server was made from, as it is sent.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Integration {
    /// Slug of the app.
    pub app: String,
    /// The same as a list.
    pub apps: Vec<String>,
    /// Its connection is good.
    pub connected: bool,
    /// The connection with whose rights its tools call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_id: Option<String>,
    /// How many of the app's tools it exposes; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_tool_count: Option<usize>,
}

/// Which tool servers to list.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolServerFilter {
    /// Only those of a project.
    pub project_id: Option<String>,
    /// Only of this kind.
    pub r#type: Option<ServerType>,
    /// Part of name or description.
    pub search: Option<String>,
    /// Beside those in no project, only those of these; `None` = all.
    #[serde(skip)]
    #[schema(ignore)]
    pub within: Option<Vec<String>>,
}

/// A page of tool servers.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolServerList {
    /// The servers, newest first, without their tools.
    pub tool_servers: Vec<ToolServer>,
    /// How many there are.
    pub total: i64,
    /// Where the page begins.
    pub offset: i64,
    /// How many it may hold.
    pub limit: i64,
    /// There are more behind it.
    pub has_more: bool,
}

/// The tools of a server.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ToolList {
    /// The tools.
    pub tools: Vec<ToolDefinition>,
    /// How many there are.
    pub total: usize,
}

/// A change of the tools of a server (contract 04 §5).
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct DefinitionPatch {
    /// Id of the server or its definition, when given.
    #[schema(rename = "_id")]
    pub id: Option<String>,
    /// Name of the server.
    pub name: Option<String>,
    /// Description of the server.
    pub description: Option<String>,
    /// All tools it is to have; of those that are there, what is left out stays.
    pub tool_definitions: Option<Vec<ToolDefinition>>,
}

/// A copy of a server.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct CloneRequest {
    /// Name; `<name> (Copy)` when absent.
    pub name: Option<String>,
}

/// A call to try a tool.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct TestRequest {
    /// The arguments.
    #[schema(value_type = Object)]
    pub parameters: Object,
}

/// How a tried call went (specification, test result).
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestResult {
    /// The tool succeeded.
    pub success: bool,
    /// What it gave; a value that is no object stands under `result`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<Value>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took, in milliseconds.
    pub execution_time_ms: u64,
    /// The address that was called, as far as it could be built.
    pub request_url: String,
    /// Its method.
    pub request_method: String,
    /// HTTP status, when there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
}

/// An import of an OpenAPI description (contract 04 §5).
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OpenApiImport {
    /// Where the description is.
    pub url: Option<String>,
    /// The description itself: an object, or JSON or YAML text.
    #[schema(value_type = Option<Object>)]
    pub spec: Option<Value>,
    /// Name of the server; the description's title when absent.
    pub name: Option<String>,
    /// Only these operations, by `operationId`.
    pub include: Option<Vec<String>>,
    /// Where the server is; the first of the description's servers when absent.
    pub base_url: Option<String>,
}

/// A group of tools with whether it is built in (contract 04 §5).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ListedGroup {
    /// The group.
    #[serde(flatten)]
    pub group: platform_runtime::ToolGroup,
    /// Part of the platform.
    pub builtin: bool,
}
