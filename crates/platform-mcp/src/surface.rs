//! What a caller is shown: the tools of a profile, as far as grants name them, without those it switched off
//! (contract 12 §2, §4).

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use platform_core::{Caller, Credential, heap_bytes, sha256_hex};
use platform_toolservers::{McpAuthMode, OfferedServer, ServerType, ToolDefinition};
use serde_json::{Value, json};

use crate::{
    model::{
        ExposeMode, Grant, NewToolPolicy, PlatformTool, ProfileSettings, ProfileTool, SubjectType, TargetType,
        ToolOverride, ToolPolicy, Visibility, fit,
    },
    repository::Seen,
};

/// The tool of a server whose tools nobody knows yet.
const LOG_IN: &str = "log_in";
/// Bytes of memory that a tool takes beside what is written into it.
const TOOL_BYTES: usize = 1024;

/// Who asks, as grants name them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    /// As the audit and switches name them.
    pub name: String,
    /// As grants may.
    pub names: Vec<(SubjectType, String)>,
    /// It sees profiles that are for every key and user.
    pub is_of_account: bool,
    /// It sees every profile.
    pub sees_all: bool,
}

impl Subject {
    pub fn of(caller: &Caller, claims: &[(String, String)]) -> Self {
        let of_account = |name: String, names, sees_all| Self { name, names, is_of_account: true, sees_all };
        match &caller.credential {
            Credential::FullKey(id) => Self::key(id, caller.is_admin()),
            Credential::RestrictedKey(id) => Self::key(id, false),
            Credential::Token { user, .. } => {
                let claims = claims.iter().map(|(name, value)| (SubjectType::Claim, format!("{name}={value}")));
                let names = std::iter::once((SubjectType::User, user.clone())).chain(claims).collect();
                of_account(format!("user:{user}"), names, false)
            }
            Credential::Session(session) => Self::tenant(&session.tenant_id, session.subtenant_id.as_deref()),
        }
    }

    pub fn key(id: &str, sees_all: bool) -> Self {
        let names = vec![(SubjectType::Key, id.to_owned())];
        Self { name: format!("key:{id}"), names, is_of_account: true, sees_all }
    }

    pub fn user(id: &str) -> Self {
        let names = vec![(SubjectType::User, id.to_owned())];
        Self { name: format!("user:{id}"), names, is_of_account: true, sees_all: false }
    }

    pub fn tenant(tenant: &str, subtenant: Option<&str>) -> Self {
        let mut names = vec![(SubjectType::Tenant, tenant.to_owned())];
        let mut name = format!("tenant:{tenant}");
        if let Some(subtenant) = subtenant {
            names.push((SubjectType::Subtenant, format!("{tenant}/{subtenant}")));
            name = format!("subtenant:{tenant}/{subtenant}");
        }
        Self { name, names, is_of_account: false, sees_all: false }
    }

    /// Those of the grants of a profile that name it.
    pub fn granted(&self, grants: &[Arc<Granted>]) -> Vec<Arc<Granted>> {
        let is_named = |grant: &&Arc<Granted>| {
            self.names.iter().any(|(kind, name)| *kind == grant.subject_type && *name == grant.subject)
        };
        grants.iter().filter(is_named).cloned().collect()
    }

    /// Whether it sees a profile without a grant.
    pub fn sees(&self, settings: &ProfileSettings) -> bool {
        match settings.visibility {
            _ if self.sees_all => true,
            Visibility::Public => true,
            Visibility::Account => self.is_of_account,
            Visibility::Private => false,
        }
    }
}

/// A grant, made ready once for all who are asked about.
pub(crate) struct Granted {
    subject_type: SubjectType,
    subject: String,
    policy: ToolPolicy,
    tools: HashSet<String>,
}

impl Granted {
    fn admits(&self, tool: &Tool) -> bool {
        match self.policy {
            // What is denied stays so under another name.
            ToolPolicy::Deny => !self.tools.contains(&tool.name) && !self.tools.contains(&tool.base_name),
            policy => policy.admits(self.tools.contains(&tool.name)),
        }
    }
}

impl From<Grant> for Granted {
    fn from(grant: Grant) -> Self {
        let Grant { subject_type, subject, tool_policy, tools, .. } = grant;
        Self { subject_type, subject, policy: tool_policy, tools: tools.into_iter().collect() }
    }
}

/// What a tool calls.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A tool of a server, by the name it has there.
    Server(String, String),
    /// An assistant or agent.
    Platform(TargetType, String),
    /// The log-in to a server whose tools are not known before somebody has.
    LogIn(String),
}

/// A tool of a profile.
#[expect(clippy::struct_excessive_bools, reason = "what is said of a tool is said one by one")]
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    /// `<slug>__<tool>`.
    pub base_name: String,
    /// What clients call it.
    pub name: String,
    pub alias: Option<String>,
    pub description: String,
    pub target: Target,
    pub enabled: bool,
    pub is_new: bool,
    pub stale: bool,
    pub requires_approval: bool,
    /// As MCP lists it.
    pub listed: Value,
}

/// Whether nobody sees what a server has before somebody has called it as themselves.
pub(crate) fn is_unseen_before(server: &OfferedServer) -> bool {
    server.kind() == ServerType::Mcp && server.auth_mode() != McpAuthMode::Shared
}

/// The tools of a profile, for whoever sees it.
pub(crate) struct Surface {
    pub tools: Vec<Tool>,
    by_name: HashMap<String, usize>,
}

impl Surface {
    /// The tools of a profile, with its servers as they are now; `stale`: servers that do not answer.
    pub fn new(settings: &ProfileSettings, seen: &Seen, servers: &[OfferedServer], stale: &HashSet<String>) -> Self {
        let overrides: HashMap<&str, &ToolOverride> =
            settings.tool_overrides.iter().map(|of| (of.name.as_str(), of)).collect();
        let mut tools = Vec::new();
        for entry in settings.servers.iter().filter(|entry| entry.enabled) {
            let found = servers.iter().find(|server| server.id() == entry.tool_server_id);
            let Some(server) = found.filter(|server| server.is_exposed()) else { continue };
            let slug = entry.slug.as_deref().unwrap_or(server.identifier());
            let named: HashSet<&str> = entry.tools.iter().map(String::as_str).collect();
            // What nobody could see when the server was put in was put in unseen.
            let known = seen.get(server.id()).filter(|known| !known.is_empty() || !is_unseen_before(server));
            let is_stale = stale.contains(server.id());
            if server.tools().is_empty() && server.auth_mode() == McpAuthMode::PerUser && is_unseen_before(server) {
                let base_name = fit(&format!("{slug}__{LOG_IN}"));
                let of = overrides.get(base_name.as_str()).copied();
                let told = format!("Logs in to {}; its tools are there afterwards.", server.name());
                let target = Target::LogIn(server.id().to_owned());
                let described = Described { parameters: &json!({}), annotations: None };
                tools.push(tool_of(base_name, of, &told, target, true, &described));
            }
            for tool in server.tools() {
                let name = &tool.function.name;
                let base_name = fit(&format!("{slug}__{name}"));
                let of = overrides.get(base_name.as_str()).copied();
                let is_new = known.and_then(|known| known.get(name)).is_none_or(|known| *known != digest(tool))
                    && known.is_some();
                let by_policy = entry.tool_policy.admits(named.contains(name.as_str()));
                let chosen = of.and_then(|of| of.enabled).unwrap_or(by_policy);
                let enabled = chosen && (!is_new || settings.new_tool_policy == NewToolPolicy::Enabled);
                let described =
                    Described { parameters: &tool.function.parameters, annotations: tool.annotations.as_ref() };
                let target = Target::Server(server.id().to_owned(), name.clone());
                let mut made = tool_of(base_name, of, &tool.function.description, target, enabled, &described);
                (made.is_new, made.stale, made.requires_approval) = (is_new, is_stale, tool.requires_approval);
                if is_stale {
                    made.listed["_meta"] = json!({"stale": true});
                }
                tools.push(made);
            }
        }
        for tool in &settings.platform_tools {
            let base_name = tool.exposed_name();
            let of = overrides.get(base_name.as_str()).copied();
            let enabled = of.and_then(|of| of.enabled).unwrap_or(true);
            let target = Target::Platform(tool.target_type, tool.target_id.clone());
            let parameters = platform_parameters(tool.target_type);
            let described = Described { parameters: &parameters, annotations: None };
            tools.push(tool_of(base_name, of, &description_of(tool), target, enabled, &described));
        }
        // Of two tools with one name the one with this alias is meant, else the first.
        let mut by_name = HashMap::new();
        let (aliased, plain): (Vec<_>, Vec<_>) =
            tools.iter().enumerate().filter(|(_, tool)| tool.enabled).partition(|(_, tool)| tool.alias.is_some());
        for (at, tool) in aliased.into_iter().chain(plain) {
            by_name.entry(tool.name.clone()).or_insert(at);
        }
        Self { tools, by_name }
    }

    /// Of memory.
    pub fn bytes(&self) -> usize {
        self.tools.iter().map(|tool| TOOL_BYTES + tool.description.len() + heap_bytes(&tool.listed)).sum()
    }

    /// The tools, as their operator sees them.
    pub fn shown(&self) -> Vec<ProfileTool> {
        let shown = |tool: &Tool| {
            let (tool_server_id, name) = match &tool.target {
                Target::Server(server, name) => (Some(server.clone()), name.clone()),
                Target::Platform(_, id) => (None, id.clone()),
                Target::LogIn(server) => (Some(server.clone()), LOG_IN.to_owned()),
            };
            ProfileTool {
                name: tool.base_name.clone(),
                tool_server_id,
                tool: name,
                description: tool.description.clone(),
                enabled: tool.enabled,
                alias: tool.alias.clone(),
                is_new: tool.is_new,
                stale: tool.stale,
            }
        };
        self.tools.iter().map(shown).collect()
    }

    /// Every tool that can be shown, in order.
    pub fn enabled(&self) -> impl Iterator<Item = &Tool> {
        let is_meant = |(at, tool): &(usize, &Tool)| tool.enabled && self.by_name.get(&tool.name) == Some(at);
        self.tools.iter().enumerate().filter(is_meant).map(|(_, tool)| tool)
    }

    fn find(&self, name: &str) -> Option<&Tool> {
        self.by_name.get(name).map(|at| &self.tools[*at])
    }
}

/// What one caller sees of a profile: exactly this is listed, called and searched.
pub(crate) struct View {
    pub profile_id: String,
    pub mode: ExposeMode,
    pub audits_payloads: bool,
    pub servers: Vec<OfferedServer>,
    surface: Arc<Surface>,
    /// Empty = all.
    grants: Vec<Arc<Granted>>,
    disabled: HashSet<String>,
}

impl View {
    pub fn new(
        (profile_id, settings): (&str, &ProfileSettings),
        surface: Arc<Surface>,
        servers: Vec<OfferedServer>,
        grants: Vec<Arc<Granted>>,
        disabled: &[String],
    ) -> Self {
        Self {
            profile_id: profile_id.to_owned(),
            mode: settings.expose_mode,
            audits_payloads: settings.audit_payloads,
            servers,
            surface,
            grants,
            disabled: disabled.iter().cloned().collect(),
        }
    }

    fn is_granted(&self, tool: &Tool) -> bool {
        self.grants.is_empty() || self.grants.iter().any(|grant| grant.admits(tool))
    }

    fn is_on(&self, tool: &Tool) -> bool {
        !self.disabled.contains(&tool.name) && !self.disabled.contains(&tool.base_name)
    }

    /// All that it may use, whether or not it is switched off.
    pub fn available(&self) -> impl Iterator<Item = &Tool> {
        self.surface.enabled().filter(|tool| self.is_granted(tool))
    }

    /// All that it uses.
    pub fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.available().filter(|tool| self.is_on(tool))
    }

    /// One that it uses.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.surface.find(name).filter(|tool| self.is_granted(tool) && self.is_on(tool))
    }

    /// What tells one list from another.
    pub fn digest(&self) -> String {
        let tools = self.tools().map(|tool| tool.listed.to_string());
        sha256_hex(tools.collect::<Vec<_>>().join("\n"))
    }
}

struct Described<'a> {
    parameters: &'a Value,
    annotations: Option<&'a platform_core::Object>,
}

fn tool_of(
    base_name: String,
    of: Option<&ToolOverride>,
    description: &str,
    target: Target,
    enabled: bool,
    described: &Described<'_>,
) -> Tool {
    let alias = of.and_then(|of| of.alias.clone());
    let description = of.and_then(|of| of.description.clone()).unwrap_or_else(|| description.to_owned());
    let name = alias.clone().unwrap_or_else(|| base_name.clone());
    let mut schema = described.parameters.clone();
    if !schema.is_object() {
        schema = json!({});
    }
    // Clients refuse a list in which one is anything else.
    schema["type"] = "object".into();
    let mut listed = json!({"name": name, "description": description, "inputSchema": schema});
    if let Some(annotations) = described.annotations {
        listed["annotations"] = Value::Object(annotations.clone());
    }
    let (is_new, stale, requires_approval) = (false, false, false);
    Tool { base_name, name, alias, description, target, enabled, is_new, stale, requires_approval, listed }
}

/// What tells a tool from the same one as it was: what a model is told of it.
pub(crate) fn digest(tool: &ToolDefinition) -> String {
    let told = json!([tool.function.description, tool.function.parameters, tool.annotations]);
    sha256_hex(told.to_string())[..16].to_owned()
}

fn description_of(tool: &PlatformTool) -> String {
    tool.description.clone().unwrap_or_else(|| match tool.target_type {
        TargetType::Agent => "Gives an agent a task and waits for its end.".to_owned(),
        TargetType::Assistant => "Asks an assistant and waits for its reply.".to_owned(),
    })
}

fn platform_parameters(target: TargetType) -> Value {
    let mut properties = json!({"message": {"type": "string", "description": "What is said"}});
    if target == TargetType::Assistant {
        properties["chatUid"] =
            json!({"type": "string", "description": "The chat to go on with, as an earlier call answered it"});
    }
    json!({"type": "object", "properties": properties, "required": ["message"]})
}
