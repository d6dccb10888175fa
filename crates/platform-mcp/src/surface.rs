//! What a caller is shown: the tools of a profile, as far as grants name them, without those it switched off
//! (contract 12 §2, §4).

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use platform_core::{Error, Result, sha256_hex};
use platform_toolservers::{McpAuthMode, OfferedServer, ServerType, ToolDefinition};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use crate::{
    model::{
        ExposeMode, Grant, NewToolPolicy, PlatformTool, ProfileServer, ProfileSettings, ProfileTool, SubjectType,
        TargetType, ToolOverride, ToolPolicy, fit,
    },
    protocol::{Repeated, repeated_in_headers},
    repository::Seen,
};

/// The tool of a server whose tools nobody knows yet.
const LOG_IN: &str = "log_in";
/// Bytes of memory that a tool takes beside what is written into it.
const TOOL_BYTES: usize = 1024;
/// The tools of a profile as they are listed, in bytes; those of servers that come later are not shown.
const MAX_SHOWN: usize = 8 << 20;

/// A grant, made ready once for all who are asked about.
pub(crate) struct Granted {
    subject_type: SubjectType,
    subject: String,
    policy: ToolPolicy,
    tools: HashSet<String>,
}

impl Granted {
    /// Whether it names somebody by one of these.
    pub fn is_of(&self, names: &[(SubjectType, String)]) -> bool {
        names.iter().any(|(kind, name)| *kind == self.subject_type && *name == self.subject)
    }

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

impl Target {
    /// The server, by its id, and what the tool is called there.
    pub fn names(&self) -> (Option<&str>, &str) {
        match self {
            Self::Server(server, name) => (Some(server), name),
            Self::Platform(_, id) => (None, id),
            Self::LogIn(server) => (Some(server), LOG_IN),
        }
    }
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
    pub listed: Arc<RawValue>,
    /// What tells it from another.
    digest: String,
    /// What tells its definition from another, of a tool of a server.
    pub definition: Option<String>,
    /// Its results are held against a schema by whoever calls it.
    pub has_output_schema: bool,
    /// Arguments that headers repeat.
    pub repeated: Vec<Repeated>,
}

/// Whether nobody sees what a server has before somebody has called it as themselves.
pub(crate) fn is_unseen_before(server: &OfferedServer) -> bool {
    server.kind() == ServerType::Mcp && server.auth_mode() != McpAuthMode::Shared
}

/// The tools of a profile, for whoever sees it.
#[derive(Default)]
pub(crate) struct Surface {
    pub tools: Vec<Tool>,
    /// Ids of the servers that they are of.
    pub servers: Vec<String>,
    by_name: HashMap<String, usize>,
    /// Of memory.
    bytes: usize,
}

/// The tools that a profile has of a server as it is now; `is_stale`: it does not answer.
pub(crate) fn tools_of(
    settings: &ProfileSettings,
    seen: &Seen,
    entry: &ProfileServer,
    server: &OfferedServer,
    is_stale: bool,
) -> Result<Vec<Tool>> {
    let overrides = overrides(settings);
    let mut tools = Vec::new();
    let slug = entry.slug.as_deref().unwrap_or(server.identifier());
    let named: HashSet<&str> = entry.tools.iter().map(String::as_str).collect();
    // What nobody could see when the server was put in was put in unseen.
    let known = seen.get(server.id()).filter(|known| !known.is_empty() || !is_unseen_before(server));
    if server.tools().is_empty() && server.auth_mode() == McpAuthMode::PerUser && is_unseen_before(server) {
        let base_name = fit(&format!("{slug}__{LOG_IN}"));
        let of = overrides.get(base_name.as_str()).copied();
        let told = format!("Logs in to {}; its tools are there afterwards.", server.name());
        let target = Target::LogIn(server.id().to_owned());
        tools.push(Tool::new(base_name, of, &told, target, true, &Described::default())?);
    }
    for tool in server.tools() {
        let name = &tool.function.name;
        let base_name = fit(&format!("{slug}__{name}"));
        let of = overrides.get(base_name.as_str()).copied();
        let definition = digest(tool);
        let is_new = known.is_some_and(|known| known.get(name) != Some(&definition));
        let by_policy = entry.tool_policy.admits(named.contains(name.as_str()));
        let chosen = of.and_then(|of| of.enabled).unwrap_or(by_policy);
        let enabled = chosen && (!is_new || settings.new_tool_policy == NewToolPolicy::Enabled);
        let described = Described {
            parameters: Some(&tool.function.parameters),
            annotations: tool.annotations.as_ref(),
            title: tool.title.as_deref(),
            output_schema: tool.output_schema.as_ref(),
            is_stale,
        };
        let target = Target::Server(server.id().to_owned(), name.clone());
        let made = Tool::new(base_name, of, &tool.function.description, target, enabled, &described)?;
        let requires_approval = tool.requires_approval;
        tools.push(Tool { is_new, requires_approval, definition: Some(definition), ..made });
    }
    Ok(tools)
}

/// Assistants and agents that are tools of a profile.
pub(crate) fn platform_tools(settings: &ProfileSettings) -> Result<Vec<Tool>> {
    let overrides = overrides(settings);
    let made = settings.platform_tools.iter().map(|tool| {
        let base_name = tool.exposed_name();
        let of = overrides.get(base_name.as_str()).copied();
        let enabled = of.and_then(|of| of.enabled).unwrap_or(true);
        let target = Target::Platform(tool.target_type, tool.target_id.clone());
        let parameters = platform_parameters(tool.target_type);
        let described = Described { parameters: Some(&parameters), ..Described::default() };
        Tool::new(base_name, of, &description_of(tool), target, enabled, &described)
    });
    made.collect()
}

fn overrides(settings: &ProfileSettings) -> HashMap<&str, &ToolOverride> {
    settings.tool_overrides.iter().map(|of| (of.name.as_str(), of)).collect()
}

impl Surface {
    /// Adds tools, as far as there is room.
    pub fn add(&mut self, tools: Vec<Tool>) {
        for tool in tools {
            let bytes = TOOL_BYTES + tool.description.len() + tool.listed.get().len();
            if self.bytes + bytes <= MAX_SHOWN {
                self.bytes += bytes;
                self.tools.push(tool);
            }
        }
    }

    /// Made ready to be asked.
    pub fn finish(mut self) -> Self {
        // Of two tools with one name the one with this alias is meant, else the first.
        let mut by_name = HashMap::new();
        let (aliased, plain): (Vec<_>, Vec<_>) =
            self.tools.iter().enumerate().filter(|(_, tool)| tool.enabled).partition(|(_, tool)| tool.alias.is_some());
        for (at, tool) in aliased.into_iter().chain(plain) {
            by_name.entry(tool.name.clone()).or_insert(at);
        }
        self.by_name = by_name;
        self
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The tools, as their operator sees them.
    pub fn shown(&self) -> Vec<ProfileTool> {
        let shown = |tool: &Tool| {
            let (server, name) = tool.target.names();
            ProfileTool {
                name: tool.base_name.clone(),
                tool_server_id: server.map(str::to_owned),
                tool: name.to_owned(),
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
    surface: Arc<Surface>,
    /// Empty = all.
    grants: Vec<Arc<Granted>>,
    /// Assistants and agents that it may not use, by the name of the tool.
    hidden: HashSet<String>,
    disabled: HashSet<String>,
}

impl View {
    pub fn new(
        (profile_id, settings): (&str, &ProfileSettings),
        surface: Arc<Surface>,
        grants: Vec<Arc<Granted>>,
        disabled: &[String],
    ) -> Self {
        Self {
            profile_id: profile_id.to_owned(),
            mode: settings.expose_mode,
            audits_payloads: settings.audit_payloads,
            surface,
            grants,
            hidden: HashSet::new(),
            disabled: disabled.iter().cloned().collect(),
        }
    }

    fn is_granted(&self, tool: &Tool) -> bool {
        self.grants.is_empty() || self.grants.iter().any(|grant| grant.admits(tool))
    }

    fn granted(&self) -> impl Iterator<Item = &Tool> {
        self.surface.enabled().filter(|tool| self.is_granted(tool))
    }

    fn is_on(&self, tool: &Tool) -> bool {
        !self.disabled.contains(&tool.name) && !self.disabled.contains(&tool.base_name)
    }

    /// Servers whose tools it may be shown, by id.
    pub fn servers(&self) -> &[String] {
        &self.surface.servers
    }

    /// Those of them of which it may use something, as far as is known what they have.
    pub fn usable_servers(&self) -> impl Iterator<Item = &String> {
        let (mut known, mut usable) = (HashSet::new(), HashSet::new());
        for tool in &self.surface.tools {
            if let (Some(server), _) = tool.target.names() {
                known.insert(server);
                if tool.enabled && self.is_granted(tool) {
                    usable.insert(server);
                }
            }
        }
        self.servers().iter().filter(move |id| usable.contains(id.as_str()) || !known.contains(id.as_str()))
    }

    /// The same without some assistants and agents, by the names of their tools.
    pub fn without(self, hidden: HashSet<String>) -> Self {
        Self { hidden, ..self }
    }

    /// Assistants and agents that are tools of it, also those that it is without: the tool, the type and the id.
    pub fn targets(&self) -> impl Iterator<Item = (&str, TargetType, &str)> {
        self.granted().filter_map(|tool| match &tool.target {
            Target::Platform(target, id) => Some((tool.base_name.as_str(), *target, id.as_str())),
            _ => None,
        })
    }

    /// All that it may use, whether or not it is switched off.
    pub fn available(&self) -> impl Iterator<Item = &Tool> {
        self.granted().filter(|tool| !self.hidden.contains(&tool.base_name))
    }

    /// All that it uses.
    pub fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.available().filter(|tool| self.is_on(tool))
    }

    /// One that it uses.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        let tool = self.surface.find(name).filter(|tool| self.is_granted(tool) && self.is_on(tool));
        tool.filter(|tool| !self.hidden.contains(&tool.base_name))
    }

    /// What tells one list from another.
    pub fn digest(&self) -> String {
        sha256_hex(self.tools().map(|tool| tool.digest.as_str()).collect::<String>())
    }
}

/// What is told of a tool beside its description.
#[derive(Default)]
struct Described<'a> {
    parameters: Option<&'a Value>,
    annotations: Option<&'a platform_core::Object>,
    title: Option<&'a str>,
    output_schema: Option<&'a platform_core::Object>,
    is_stale: bool,
}

impl Tool {
    fn new(
        base_name: String,
        of: Option<&ToolOverride>,
        description: &str,
        target: Target,
        enabled: bool,
        described: &Described<'_>,
    ) -> Result<Self> {
        let alias = of.and_then(|of| of.alias.clone());
        let description = of.and_then(|of| of.description.clone()).unwrap_or_else(|| description.to_owned());
        let name = alias.clone().unwrap_or_else(|| base_name.clone());
        let mut schema = described.parameters.filter(|schema| schema.is_object()).cloned().unwrap_or_else(|| json!({}));
        // Clients refuse a list in which one is anything else.
        schema["type"] = "object".into();
        let repeated = repeated_in_headers(&schema);
        let mut listed = json!({"name": name, "description": description, "inputSchema": schema});
        if let Some(annotations) = described.annotations {
            listed["annotations"] = Value::Object(annotations.clone());
        }
        if let Some(title) = described.title {
            listed["title"] = title.into();
        }
        if let Some(schema) = described.output_schema {
            listed["outputSchema"] = Value::Object(schema.clone());
        }
        if described.is_stale {
            listed["_meta"] = json!({"stale": true});
        }
        let listed: Arc<RawValue> = to_raw_value(&listed).map_err(Error::internal)?.into();
        Ok(Self {
            base_name,
            name,
            alias,
            description,
            target,
            enabled,
            is_new: false,
            stale: described.is_stale,
            requires_approval: false,
            digest: sha256_hex(listed.get()),
            definition: None,
            has_output_schema: described.output_schema.is_some(),
            listed,
            repeated,
        })
    }
}

/// What tells a tool from the same one as it was: all that a model or a person is told of it.
pub(crate) fn digest(tool: &ToolDefinition) -> String {
    let ToolDefinition { function, annotations, title, output_schema, .. } = tool;
    let told = json!([function.description, function.parameters, annotations, title, output_schema]);
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
