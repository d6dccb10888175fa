//! Records of the MCP gateway (contract 12 §4).

use std::{collections::HashSet, sync::Arc};

use platform_access::Kind;
use platform_conversation::{AGENT, ASSISTANT};
use platform_core::{Checks, Error, Result, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

/// Servers of a profile, its overrides, and its platform tools, at most.
const MAX_SERVERS: usize = 200;
const MAX_OVERRIDES: usize = 5000;
/// A profile as JSON, in bytes.
const MAX_PROFILE: usize = 256 * 1024;
const MAX_PLATFORM_TOOLS: usize = 100;
/// Names in a policy, at most.
pub(crate) const MAX_NAMES: usize = 500;
const MAX_NAME: usize = 128;
const MAX_SLUG: usize = 24;

/// What a client sets of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = McpProfileSettings)]
pub struct ProfileSettings {
    /// Its name in addresses, `^[a-z0-9-]{1,24}$`, unique; made of the name when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub slug: Option<String>,
    /// Name, 1 to 200 characters.
    pub name: String,
    /// Description, at most 4000 characters.
    pub description: String,
    /// Who sees it without a grant.
    pub visibility: Visibility,
    /// Tool servers whose tools it shows.
    pub servers: Vec<ProfileServer>,
    /// What is otherwise of single tools.
    pub tool_overrides: Vec<ToolOverride>,
    /// Assistants and agents that are tools.
    pub platform_tools: Vec<PlatformTool>,
    /// How tools are shown.
    pub expose_mode: ExposeMode,
    /// What becomes of tools that a server has newly or describes otherwise.
    pub new_tool_policy: NewToolPolicy,
    /// Arguments and results stand in the audit.
    pub audit_payloads: bool,
}

impl Default for ProfileSettings {
    fn default() -> Self {
        Self {
            slug: None,
            name: String::new(),
            description: String::new(),
            visibility: Visibility::Private,
            servers: Vec::new(),
            tool_overrides: Vec::new(),
            platform_tools: Vec::new(),
            expose_mode: ExposeMode::Direct,
            new_tool_policy: NewToolPolicy::Disabled,
            audit_payloads: false,
        }
    }
}

/// Who sees a profile without a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = McpProfileVisibility)]
pub enum Visibility {
    /// Nobody.
    Private,
    /// Every key and user of the account.
    Account,
    /// Every session of the account as well.
    Public,
}

/// Whether tools are listed or searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExposeMode {
    /// Each tool is listed.
    Direct,
    /// Three tools find, describe and call them.
    Search,
}

/// What becomes of tools that are new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NewToolPolicy {
    /// They are there at once.
    Enabled,
    /// An operator lets them in.
    Disabled,
}

/// Which tools are meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolPolicy {
    /// All tools.
    #[default]
    All,
    /// Those that are named.
    Allow,
    /// All but those.
    Deny,
}

impl ToolPolicy {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    pub(crate) fn of(text: &str) -> Self {
        match text {
            "allow" => Self::Allow,
            "deny" => Self::Deny,
            _ => Self::All,
        }
    }

    /// Whether a tool is meant that is named or not.
    pub(crate) fn admits(self, is_named: bool) -> bool {
        match self {
            Self::All => true,
            Self::Allow => is_named,
            Self::Deny => !is_named,
        }
    }
}

/// A tool server of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProfileServer {
    /// The tool server; it takes part while its `mcpExposed` is true.
    pub tool_server_id: String,
    /// What stands before the names of its tools, `^[a-z0-9-]{1,24}$`; the server's identifier when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub slug: Option<String>,
    /// It takes part.
    pub enabled: bool,
    /// Which of its tools.
    pub tool_policy: ToolPolicy,
    /// Their names at the server.
    pub tools: Vec<String>,
}

impl Default for ProfileServer {
    fn default() -> Self {
        let (tool_server_id, tools) = (String::new(), Vec::new());
        Self { tool_server_id, slug: None, enabled: true, tool_policy: ToolPolicy::All, tools }
    }
}

/// What is otherwise of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ToolOverride {
    /// Its exposed name, `<slug>__<tool>`.
    pub name: String,
    /// Its name instead, `^[A-Za-z0-9_.-]{1,64}$`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Its description instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// It is there, or it is not, whatever policies say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// An assistant or agent that is a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = McpPlatformTool)]
pub struct PlatformTool {
    /// What it is.
    pub target_type: TargetType,
    /// Id of the agent, identifier of the assistant.
    pub target_id: String,
    /// Name of the tool; `run_agent_<id>` or `ask_<identifier>` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the tool does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// What a platform tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = McpTargetType)]
pub enum TargetType {
    /// An agent: the call waits for its end.
    Agent,
    /// An assistant: the call waits for its reply.
    Assistant,
}

impl TargetType {
    /// Its records, as far as access is concerned.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Agent => AGENT,
            Self::Assistant => ASSISTANT,
        }
    }
}

impl PlatformTool {
    /// The name of its tool.
    pub(crate) fn exposed_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| match self.target_type {
            TargetType::Agent => fit(&format!("run_agent_{}", self.target_id)),
            TargetType::Assistant => fit(&format!("ask_{}", self.target_id)),
        })
    }
}

/// A name that every client takes, of at most 64 characters: another is made one, and ends in 8 characters that tell it
/// from others.
pub(crate) fn fit(name: &str) -> String {
    if is_tool_name(name) {
        return name.to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
    let kept: String = name.chars().take(55).map(plain).collect();
    format!("{kept}_{}", &platform_core::sha256_hex(name)[..8])
}

pub(crate) fn is_slug(text: &str) -> bool {
    let is_good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_SLUG).contains(&text.len()) && text.bytes().all(is_good)
}

fn is_tool_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

impl ProfileSettings {
    pub(crate) fn check(&self) -> platform_core::Result<()> {
        let mut checks = Checks::default();
        checks.name(&self.name);
        checks.length("description", &self.description, 0..=4000);
        if self.slug.as_deref().is_some_and(|slug| !is_slug(slug)) {
            checks.issue("slug", "format", "slug must match ^[a-z0-9-]{1,24}$");
        }
        checks.count("servers", self.servers.len(), MAX_SERVERS);
        let (mut ids, mut slugs) = (HashSet::new(), HashSet::new());
        for (i, server) in self.servers.iter().enumerate() {
            let at = |field: &str| format!("servers[{i}].{field}");
            if server.tool_server_id.is_empty() {
                checks.issue(&at("toolServerId"), "required", "toolServerId is required: the id of a tool server");
            } else if !ids.insert(&server.tool_server_id) {
                checks.issue(&at("toolServerId"), "unique", "this server stands in the profile twice");
            }
            if let Some(slug) = &server.slug {
                if !is_slug(slug) {
                    checks.issue(&at("slug"), "format", "slug must match ^[a-z0-9-]{1,24}$");
                } else if !slugs.insert(slug) {
                    checks.issue(&at("slug"), "unique", "another server of the profile has this slug");
                }
            }
            check_names(&mut checks, &at("tools"), &server.tools);
        }
        checks.count("toolOverrides", self.tool_overrides.len(), MAX_OVERRIDES);
        let (mut named, mut aliases) = (HashSet::new(), HashSet::new());
        for (i, of) in self.tool_overrides.iter().enumerate() {
            let at = |field: &str| format!("toolOverrides[{i}].{field}");
            checks.length(&at("name"), &of.name, 1..=MAX_NAME);
            checks.length(&at("description"), of.description.as_deref().unwrap_or_default(), 0..=4000);
            if !named.insert(&of.name) {
                checks.issue(&at("name"), "unique", "this tool stands in toolOverrides twice");
            }
            if let Some(alias) = &of.alias {
                if !is_tool_name(alias) {
                    checks.issue(&at("alias"), "format", "alias must match ^[A-Za-z0-9_.-]{1,64}$");
                } else if !aliases.insert(alias) {
                    checks.issue(&at("alias"), "unique", "another tool has this alias");
                }
            }
        }
        checks.count("platformTools", self.platform_tools.len(), MAX_PLATFORM_TOOLS);
        let mut own = HashSet::new();
        for (i, tool) in self.platform_tools.iter().enumerate() {
            let at = |field: &str| format!("platformTools[{i}].{field}");
            checks.length(&at("targetId"), &tool.target_id, 1..=200);
            checks.length(&at("description"), tool.description.as_deref().unwrap_or_default(), 0..=4000);
            if tool.name.as_deref().is_some_and(|name| !is_tool_name(name)) {
                checks.issue(&at("name"), "format", "name must match ^[A-Za-z0-9_.-]{1,64}$");
            }
            if !own.insert(tool.exposed_name()) {
                checks.issue(&at("name"), "unique", "another tool has this name");
            }
        }
        checks.finish()?;
        let bytes = serde_json::to_string(self).map_or(0, |json| json.len());
        if bytes > MAX_PROFILE {
            let message = format!("a profile has at most {MAX_PROFILE} bytes; this one has {bytes}");
            return Err(platform_core::Error::invalid("toolOverrides", "length", message));
        }
        Ok(())
    }
}

pub(crate) fn check_names(checks: &mut Checks, path: &str, names: &[String]) {
    checks.count(path, names.len(), MAX_NAMES);
    for name in names.iter().take(MAX_NAMES) {
        checks.length(path, name, 1..=MAX_NAME);
    }
}

/// What an MCP client is shown of the tool servers of an account.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = McpProfile)]
pub struct Profile {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// What was set.
    #[serde(flatten)]
    pub settings: ProfileSettings,
    /// When it was made.
    pub creation_timestamp_ms: Timestamp,
    /// When it was last changed.
    pub last_edit_timestamp_ms: Timestamp,
}

/// Who a grant is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = McpSubjectType)]
pub enum SubjectType {
    /// A user, by `userUID`.
    User,
    /// An API key, by id.
    Key,
    /// A tenant.
    Tenant,
    /// An end user: `<tenantId>/<subtenantId>`.
    Subtenant,
    /// Whoever's OAuth token says so: `name=value`.
    Claim,
}

impl SubjectType {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Key => "key",
            Self::Tenant => "tenant",
            Self::Subtenant => "subtenant",
            Self::Claim => "claim",
        }
    }

    pub(crate) fn of(text: &str) -> Self {
        match text {
            "user" => Self::User,
            "key" => Self::Key,
            "tenant" => Self::Tenant,
            "subtenant" => Self::Subtenant,
            _ => Self::Claim,
        }
    }
}

/// A grant to make.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewMcpGrant)]
pub struct NewGrant {
    /// The profile.
    pub profile_id: String,
    /// Who it is for.
    pub subject_type: SubjectType,
    /// Which one.
    pub subject: String,
    /// Which tools.
    #[serde(default)]
    pub tool_policy: ToolPolicy,
    /// Their exposed names; of one with an alias that.
    #[serde(default)]
    pub tools: Vec<String>,
}

/// A profile that somebody sees, and which of its tools.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = McpGrant)]
pub struct Grant {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// The profile.
    pub profile_id: String,
    /// Who it is for.
    pub subject_type: SubjectType,
    /// Which one.
    pub subject: String,
    /// Which tools.
    pub tool_policy: ToolPolicy,
    /// Their exposed names.
    pub tools: Vec<String>,
    /// When it was made.
    pub creation_timestamp_ms: Timestamp,
}

/// Which grants are listed.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = McpGrantFilter)]
pub struct GrantFilter {
    /// Of this profile.
    pub profile_id: Option<String>,
    /// For this kind of subject.
    pub subject_type: Option<SubjectType>,
    /// For this one.
    pub subject: Option<String>,
}

/// A tool of a profile, as its operator sees it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileTool {
    /// Its exposed name, without the alias.
    pub name: String,
    /// Its server; a platform tool has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tool_server_id: Option<String>,
    /// Its name there.
    pub tool: String,
    /// What clients are told that it does.
    pub description: String,
    /// Clients see it.
    pub enabled: bool,
    /// Its name instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// It came, or changed, after an operator last looked.
    pub is_new: bool,
    /// Its server does not answer: it is as it was.
    pub stale: bool,
}

/// Switches of tools of a profile.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct ToolSwitches {
    /// Those that change.
    #[schema(value_type = Vec<ToolOverride>)]
    pub tools: Vec<ToolSwitch>,
}

/// What is to be otherwise of a tool; `null` takes it back.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolSwitch {
    /// Its exposed name, or its alias.
    pub name: String,
    /// Its name instead.
    #[serde(deserialize_with = "given")]
    pub alias: Option<Option<String>>,
    /// Its description instead.
    #[serde(deserialize_with = "given")]
    pub description: Option<Option<String>>,
    /// It is there, or it is not.
    #[serde(deserialize_with = "given")]
    pub enabled: Option<Option<bool>>,
}

/// What is given, also `null`.
#[expect(clippy::option_option, reason = "absent, null and a value are three things")]
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A tool server, as the gateway stands with it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = McpGatewayServer)]
pub struct GatewayServer {
    /// Id.
    pub tool_server_id: String,
    /// Name.
    pub name: String,
    /// `http`, `mcp` or `integration`.
    pub r#type: String,
    /// Whose credentials its calls carry.
    pub mcp_auth_mode: String,
    /// `ok`, `degraded` or `down`.
    pub health: String,
    /// How many tools it has.
    pub tool_count: usize,
    /// When its tools were last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refresh_ms: Option<i64>,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = McpCallOutcome)]
pub enum CallOutcome {
    /// With a result.
    Ok,
    /// With an error of the tool.
    ToolError,
    /// It was not made.
    Denied,
    /// The server failed.
    UpstreamError,
    /// The server took too long.
    Timeout,
}

impl CallOutcome {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ToolError => "tool_error",
            Self::Denied => "denied",
            Self::UpstreamError => "upstream_error",
            Self::Timeout => "timeout",
        }
    }
}

/// A call that was made through the gateway.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditRow {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// When it was made.
    pub timestamp_ms: i64,
    /// `key:<id>`, `user:<uid>`, `tenant:<id>` or `subtenant:<tenant>/<id>`.
    pub subject: String,
    /// The profile.
    pub profile_id: String,
    /// The tool server; a platform tool has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tool_server_id: Option<String>,
    /// The exposed name of the tool.
    pub tool_name: String,
    /// How it ended.
    #[schema(value_type = CallOutcome)]
    pub outcome: String,
    /// How long it took, in milliseconds.
    pub duration_ms: i64,
    /// Bytes of the arguments.
    pub request_bytes: i64,
    /// Bytes of the result.
    pub response_bytes: i64,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// What was given, where the profile has it kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// What came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

/// Which calls are listed.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = McpAuditFilter)]
pub struct AuditFilter {
    /// Through this profile.
    pub profile_id: Option<String>,
    /// To this server.
    pub tool_server_id: Option<String>,
    /// By this caller.
    pub subject: Option<String>,
    /// That ended so.
    pub outcome: Option<CallOutcome>,
    /// From then on, in ms.
    pub from: Option<i64>,
    /// Before then, in ms.
    pub to: Option<i64>,
}

/// Whose view is asked for.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = McpPreviewOf)]
pub struct PreviewOf {
    /// Slug of the profile.
    pub profile: Option<String>,
    /// A user.
    #[serde(rename = "userUID")]
    pub user_uid: Option<String>,
    /// What else the user's token says, `name=value`, several joined by commas.
    pub claims: Option<String>,
    /// An API key, by id.
    pub key_id: Option<String>,
    /// A tenant.
    pub tenant_id: Option<String>,
    /// Its end user.
    pub subtenant_id: Option<String>,
}

impl PreviewOf {
    /// Names and values of what else a token says.
    pub fn claims(&self) -> Result<Vec<(String, String)>> {
        let pair = |claim: &str| claim.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let pairs = self.claims.iter().flat_map(|claims| claims.split(',')).filter(|claim| !claim.is_empty()).map(pair);
        let wrong = || Error::invalid("claims", "format", "claims: name=value, several joined by commas");
        pairs.collect::<Option<_>>().ok_or_else(wrong)
    }

    /// The slug of the profile; refuses who names nobody, or more than one.
    pub fn check(&self) -> Result<&str> {
        let Some(profile) = self.profile.as_deref().filter(|slug| !slug.is_empty()) else {
            return Err(Error::invalid("profile", "required", "profile is required: the slug of a profile"));
        };
        let mut checks = Checks::default();
        checks.tenants(self.tenant_id.as_deref(), self.subtenant_id.as_deref());
        if [&self.user_uid, &self.key_id, &self.tenant_id].into_iter().flatten().count() != 1 {
            checks.issue("userUID", "conflict", "name one: userUID, keyId, or tenantId");
        }
        checks.finish().map(|()| profile)
    }
}

/// What a caller would be shown.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = McpPreview)]
pub struct Preview {
    /// Slug of the profile.
    pub profile: String,
    /// The tools, as MCP lists them.
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Arc<RawValue>>,
}

/// Tools that a caller does without, and has.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = McpSwitches)]
pub struct Switches {
    /// Exposed names of those they switched off.
    pub disabled: Vec<String>,
    /// Exposed names of all they may use.
    pub available: Vec<String>,
}

/// Tools to do without.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = McpSwitchesPut)]
pub struct SwitchesPut {
    /// Exposed names.
    pub disabled: Vec<String>,
}

/// A page of profiles.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = McpProfilePage)]
pub struct ProfilePage {
    /// The profiles.
    pub items: Vec<Profile>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// A page of grants.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = McpGrantPage)]
pub struct GrantPage {
    /// The grants.
    pub items: Vec<Grant>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// A page of calls.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = McpAuditPage)]
pub struct AuditPage {
    /// The calls.
    pub items: Vec<AuditRow>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// A page of servers.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = McpGatewayServerPage)]
pub struct GatewayServerPage {
    /// The servers.
    pub items: Vec<GatewayServer>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}
