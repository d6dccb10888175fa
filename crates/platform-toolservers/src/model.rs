use std::collections::{BTreeMap, HashSet};

use platform_core::{Checks, Error, FieldLimits, Object, Result, Timestamp, any_case};
use platform_egress::Url;
use platform_vault::Secret;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::definition::{
    CustomHeader, ToolDefinition, check_all, check_headers, check_secret, check_switches, is_plain,
};

/// Everything a client sets of a tool server (contract 04 §1).
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
    pub identifier: Option<String>,
    /// Assistants and agents may use it.
    pub enabled: bool,
    /// Derived: `mcp` when `mcpType` is true.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "any_case_opt")]
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
    #[serde(deserialize_with = "any_case")]
    pub mcp_auth_mode: McpAuthMode,
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
        }
    }
}

fn any_case_opt<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<ServerType>, D::Error> {
    any_case(deserializer).map(Some)
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

/// How calls authenticate themselves (contract 04 §3); only the fields of the method are kept.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthenticationConfig {
    /// The method.
    #[serde(deserialize_with = "method")]
    pub authentication_method: AuthenticationMethod,
    /// `jwt`: the bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// `basic`: user name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// `basic`: password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// `customHeader`: the headers.
    #[serde(alias = "custom_headers", skip_serializing_if = "Vec::is_empty")]
    pub custom_headers: Vec<CustomHeader>,
    /// `oauth2`: client id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// `oauth2`: client secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<Secret>,
    /// `oauth2`: where tokens are fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_token_endpoint: Option<String>,
    /// `oauth2`: `client_credentials` or `refresh_token`.
    #[serde(rename = "grant_type", alias = "grantType", skip_serializing_if = "Option::is_none")]
    pub grant_type: Option<String>,
    /// `oauth2`: refresh token, for that grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<Secret>,
    /// `oauth2`: scope that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// `oauth2`: `form` or `json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_format: Option<String>,
}

impl Default for AuthenticationConfig {
    fn default() -> Self {
        Self::of(AuthenticationMethod::None)
    }
}

/// Methods of authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum AuthenticationMethod {
    /// Nothing is added.
    None,
    /// A bearer token.
    Jwt,
    /// User name and password.
    Basic,
    /// Headers.
    CustomHeader,
    /// A token that is fetched.
    Oauth2,
}

/// In any case, and with or without what stands between the words.
fn method<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<AuthenticationMethod, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bare: String = text.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).collect();
    match bare.to_lowercase().as_str() {
        "none" => Ok(AuthenticationMethod::None),
        "jwt" => Ok(AuthenticationMethod::Jwt),
        "basic" => Ok(AuthenticationMethod::Basic),
        "customheader" | "customheaders" => Ok(AuthenticationMethod::CustomHeader),
        "oauth2" => Ok(AuthenticationMethod::Oauth2),
        _ => Err(serde::de::Error::unknown_variant(&text, &["none", "jwt", "basic", "customHeader", "oauth2"])),
    }
}

impl AuthenticationConfig {
    fn of(authentication_method: AuthenticationMethod) -> Self {
        Self {
            authentication_method,
            token: None,
            username: None,
            password: None,
            custom_headers: Vec::new(),
            client_id: None,
            client_secret: None,
            refresh_token_endpoint: None,
            grant_type: None,
            refresh_token: None,
            scope: None,
            request_format: None,
        }
    }

    /// Keeps the fields of the method, with their defaults, and checks them.
    fn check(&mut self, checks: &mut Checks) {
        let given = std::mem::replace(self, Self::of(self.authentication_method));
        let at = |field: &str| format!("authenticationConfig.{field}");
        let mut missing = |field: &str, is_there: bool| {
            if !is_there {
                checks.issue(&at(field), "required", format!("{field} is required"));
            }
        };
        let text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let secret = |secret: &Option<Secret>| secret.as_ref().is_some_and(|secret| !secret.expose().is_empty());
        match self.authentication_method {
            AuthenticationMethod::None => {}
            AuthenticationMethod::Jwt => {
                missing("token", secret(&given.token));
                self.token = given.token;
            }
            AuthenticationMethod::Basic => {
                missing("username", text(&given.username));
                missing("password", secret(&given.password));
                (self.username, self.password) = (given.username, given.password);
                if self.username.as_ref().is_some_and(|name| name.contains(':')) {
                    checks.issue(&at("username"), "format", "username must not contain a colon");
                }
            }
            AuthenticationMethod::CustomHeader => {
                missing("customHeaders", !given.custom_headers.is_empty());
                self.custom_headers = given.custom_headers;
            }
            AuthenticationMethod::Oauth2 => {
                missing("clientId", text(&given.client_id));
                missing("clientSecret", secret(&given.client_secret));
                missing("refreshTokenEndpoint", text(&given.refresh_token_endpoint));
                let grant = given.grant_type.as_deref().unwrap_or("client_credentials").to_lowercase();
                if grant == "refresh_token" {
                    missing("refreshToken", secret(&given.refresh_token));
                    self.refresh_token = given.refresh_token;
                }
                let format = given.request_format.as_deref().unwrap_or("form").to_lowercase();
                for (field, value, allowed) in [
                    ("grant_type", &grant, ["client_credentials", "refresh_token"]),
                    ("requestFormat", &format, ["form", "json"]),
                ] {
                    if !allowed.contains(&value.as_str()) {
                        let message = format!("{field} must be {} or {}", allowed[0], allowed[1]);
                        checks.issue(&at(field), "enum", message);
                    }
                }
                (self.grant_type, self.request_format) = (Some(grant), Some(format));
                (self.client_id, self.client_secret) = (given.client_id, given.client_secret);
                (self.refresh_token_endpoint, self.scope) = (given.refresh_token_endpoint, given.scope);
            }
        }
        check_headers(checks, "authenticationConfig.customHeaders", &self.custom_headers);
        for (field, secret) in [
            ("token", &self.token),
            ("password", &self.password),
            ("clientSecret", &self.client_secret),
            ("refreshToken", &self.refresh_token),
        ] {
            if let Some(secret) = secret {
                check_secret(checks, &at(field), secret);
            }
        }
    }
}

impl ToolServerSettings {
    /// Both fields are read, until they are checked.
    pub(crate) fn is_mcp(&self) -> bool {
        self.mcp_type || self.r#type == Some(ServerType::Mcp)
    }

    /// What kind of server it is.
    pub(crate) fn kind(&self) -> ServerType {
        if self.mcp_type { ServerType::Mcp } else { ServerType::Http }
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
            Some(ServerType::Integration) => {
                checks.issue("type", "conflict", "a server of type integration is made from a connected app");
            }
            Some(ServerType::Http) | None => {}
        }
        if self.name.trim().is_empty() {
            checks.issue("name", "required", "name is required: 1 to 200 characters");
        } else {
            checks.length("name", &self.name, 1..=200);
        }
        checks.length("description", &self.description, 0..=4000);
        match &self.url {
            None => checks.issue("url", "required", "url is required: where the server is"),
            Some(url) => checks.bytes("url", url.len(), 2048),
        }
        if let Some(identifier) = &self.identifier
            && !is_identifier(identifier)
        {
            checks.issue("identifier", "format", "identifier must match ^[a-z0-9-]{1,24}$");
        }
        checks.range("timeoutMs", self.timeout_ms, &(1000..=300_000));
        self.authentication_config.check(&mut checks);
        checks.finish()?;
        if let Some(id) = &self.project_id {
            return Err(Error::not_found(platform_core::Code::ProjectNotFound, "project", id));
        }
        if self.mcp_type {
            // What their server says of them is not the client's to mend.
            return check_switches(&self.tool_definitions);
        }
        let address = self.address();
        check_all(&mut self.tool_definitions, limits.tools_per_server, address.as_ref())
    }

    /// Each secret with the name it is kept under and the origins it may be sent to.
    pub(crate) fn secrets(&mut self) -> Vec<(String, &mut Secret, Vec<String>)> {
        let origin = |url: Option<&str>| {
            url.and_then(|url| Url::parse(url).ok()).map(|url| url.origin().ascii_serialization()).unwrap_or_default()
        };
        let server = vec![origin(self.url.as_deref())];
        let auth = &mut self.authentication_config;
        let token_server = vec![server[0].clone(), origin(auth.refresh_token_endpoint.as_deref())];
        let mut secrets = Vec::new();
        for (name, secret, origins) in [
            ("auth.token", &mut auth.token, &server),
            ("auth.password", &mut auth.password, &server),
            ("auth.clientSecret", &mut auth.client_secret, &token_server),
            ("auth.refreshToken", &mut auth.refresh_token, &token_server),
        ] {
            if let Some(secret) = secret {
                secrets.push((name.to_owned(), secret, origins.clone()));
            }
        }
        // What is no secret goes anywhere.
        let origins = |header: &str| if is_plain(header) { Vec::new() } else { server.clone() };
        for header in &mut auth.custom_headers {
            let name = format!("auth.header.{}", header.header_name.to_ascii_lowercase());
            secrets.push((name, &mut header.value, origins(&header.header_name)));
        }
        for tool in &mut self.tool_definitions {
            for header in &mut tool.custom_headers {
                let name = header_secret(&tool.function.name, &header.header_name);
                secrets.push((name, &mut header.value, origins(&header.header_name)));
            }
        }
        secrets
    }
}

fn header_secret(tool: &str, header: &str) -> String {
    format!("tool.{tool}.header.{}", header.to_ascii_lowercase())
}

pub(crate) fn is_identifier(text: &str) -> bool {
    (1..=24).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// A secret as it is kept: where it may be sent is part of it.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub value: Secret,
    /// Scheme, host and port of those who may get it.
    pub origins: Vec<String>,
}

/// The secrets of a server by name; sealed as one text.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeptSecrets(BTreeMap<String, Kept>);

impl KeptSecrets {
    /// Reads what [`KeptSecrets::to_text`] wrote.
    pub fn parse(text: &Secret) -> Result<Self> {
        let stored: BTreeMap<String, (String, Vec<String>)> =
            serde_json::from_str(text.expose()).map_err(Error::internal)?;
        let kept =
            |(name, (value, origins)): (String, (String, Vec<String>))| (name, Kept { value: value.into(), origins });
        Ok(Self(stored.into_iter().map(kept).collect()))
    }

    /// All of it, to be sealed; `None` when there is nothing to seal.
    pub fn to_text(&self) -> Option<Secret> {
        let stored: BTreeMap<&str, (&str, &[String])> =
            self.0.iter().map(|(name, kept)| (name.as_str(), (kept.value.expose(), &kept.origins[..]))).collect();
        let text = serde_json::to_string(&stored).ok().filter(|_| !self.0.is_empty())?;
        Some(text.into())
    }

    /// Puts the values where they may be sent; what was given for another address stays masked.
    pub fn fill(&self, settings: &mut ToolServerSettings) {
        for (name, secret, origins) in settings.secrets() {
            if let Some(kept) = self.0.get(&name).filter(|kept| kept.origins == origins) {
                *secret = kept.value.clone();
            }
        }
    }

    /// What is kept of changed settings: what is given, and where the mask came back what was there. `before`:
    /// the tools as they were, of which a renamed one keeps its headers.
    pub fn of(&self, settings: &mut ToolServerSettings, before: &[ToolDefinition]) -> Result<Self> {
        let renamed = renamed(&settings.tool_definitions, before);
        let mut kept = BTreeMap::new();
        let mut checks = Checks::default();
        for (name, secret, origins) in settings.secrets() {
            if !secret.is_mask() {
                kept.insert(name, Kept { value: secret.clone(), origins });
                continue;
            }
            let stored = self.0.get(&name).or_else(|| self.0.get(renamed.get(&name)?));
            match stored {
                Some(stored) => {
                    kept.insert(name, stored.clone());
                }
                None => {
                    let path = path_of(&name);
                    let message = format!("{path} is masked, and nothing is stored for it; give the value");
                    checks.issue(&path, "required", message);
                }
            }
        }
        checks.finish()?;
        Ok(Self(kept))
    }
}

/// Where a secret stands in a request.
fn path_of(name: &str) -> String {
    match name.strip_prefix("auth.") {
        Some(header) if header.starts_with("header.") => "authenticationConfig.customHeaders".to_owned(),
        Some(field) => format!("authenticationConfig.{field}"),
        None => "toolDefinitions.customHeaders".to_owned(),
    }
}

/// Names of header secrets of renamed tools, with the names they had: a new name at the place of a stored
/// tool whose name is gone.
fn renamed(now: &[ToolDefinition], before: &[ToolDefinition]) -> BTreeMap<String, String> {
    let names = |tools: &[ToolDefinition]| tools.iter().map(|tool| tool.function.name.clone()).collect::<HashSet<_>>();
    let (known, left) = (names(before), names(now));
    let pairs = now
        .iter()
        .zip(before)
        .filter(|(now, before)| !known.contains(&now.function.name) && !left.contains(&before.function.name));
    let headers = pairs.flat_map(|(now, before)| {
        now.custom_headers.iter().map(|header| {
            let of = |tool: &ToolDefinition| header_secret(&tool.function.name, &header.header_name);
            (of(now), of(before))
        })
    });
    headers.collect()
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
    /// `ok`, `degraded` or `down`; only of MCP servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// When its tools were last read; only of MCP servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refresh_ms: Option<i64>,
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

/// Which tool servers to list.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolServerFilter {
    /// Only those of a project.
    pub project_id: Option<String>,
    /// Only of this kind.
    #[serde(deserialize_with = "any_case_opt")]
    pub r#type: Option<ServerType>,
    /// Part of name or description.
    pub search: Option<String>,
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
