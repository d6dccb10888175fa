use std::collections::{BTreeMap, BTreeSet};

use platform_conversation::KnowledgeSkill;
use platform_core::{Checks, Error, FieldLimits, Result, Timestamp};
use platform_vault::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Variables by name; their values are never shown.
pub(crate) type Variables = BTreeMap<String, Secret>;

const MAX_VALUE: usize = 32 << 10;
const MAX_NAME: usize = 128;
const MAX_TOGETHER: usize = 512 << 10;
const MAX_SCRIPT: usize = 64 << 10;
const MAX_HOSTS: usize = 100;
const MAX_ATTACHED: usize = 1000;
const RUNTIMES: [&str; 4] = ["default", "node24", "node22", "python3.13"];

/// Whom a machine reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkPolicy {
    /// Every public address.
    #[default]
    AllowAll,
    /// Nobody.
    DenyAll,
    /// Those that are listed.
    Allowlist,
}

/// The machine of an environment (contract 13 §1).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "they are the contract's")]
pub struct SandboxConfig {
    /// `default`, `node24`, `node22` or `python3.13`.
    pub runtime: String,
    /// Memory, 256 to 8192 MiB.
    pub memory_mib: u32,
    /// CPUs, 1 to 8.
    pub cpus: u32,
    /// Disk, 512 to 65536 MiB.
    pub disk_mib: u32,
    /// Runs once on a new machine, for at most ten minutes.
    pub init_script: String,
    /// Runs in the background after each start.
    pub start_command: Option<String>,
    /// Variables of its commands; masked.
    #[schema(value_type = Object)]
    pub env_vars: Variables,
    /// What is on the machine can be saved.
    pub snapshot_enabled: bool,
    /// The snapshot that the next machine starts from; read only.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "platform_core::read_only")]
    #[schema(read_only, nullable = false)]
    pub snapshot_id: Option<String>,
    /// It is saved when the machine stops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_snapshot_on_stop: Option<bool>,
    /// Each tenant has machine and snapshots of its own.
    pub per_tenant_snapshots: bool,
    /// A machine that a thread or chat started stays when that ends.
    pub persist_after_session_close: bool,
    /// A machine that is used when its time is over gets more.
    pub auto_extend: bool,
    /// A thread or chat whose machine has ended gets another.
    pub auto_restart: bool,
    /// Name under which everybody reaches what a program of the machine serves on its port 8080 (`PORT` among its
    /// variables), 3 to 40 of `a-z0-9-`; the server needs a domain for that.
    #[schema(pattern = "^[a-z0-9-]{3,40}$")]
    pub public_slug: Option<String>,
    /// The address of that; read only.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "platform_core::read_only")]
    #[schema(read_only, nullable = false)]
    pub public_url: Option<String>,
    /// Whom it reaches.
    pub network_policy: NetworkPolicy,
    /// Hosts of the list, each with a port or none: `pypi.org`, `*.example.com`, `10.0.0.5:8080`.
    pub allowed_hosts: Vec<String>,
    /// The backend that makes it; absent = the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            runtime: "default".to_owned(),
            memory_mib: 512,
            cpus: 1,
            disk_mib: 8192,
            init_script: String::new(),
            start_command: None,
            env_vars: Variables::new(),
            snapshot_id: None,
            snapshot_enabled: false,
            replace_snapshot_on_stop: None,
            per_tenant_snapshots: false,
            persist_after_session_close: false,
            auto_extend: false,
            auto_restart: true,
            public_slug: None,
            public_url: None,
            network_policy: NetworkPolicy::AllowAll,
            allowed_hosts: Vec::new(),
            provider: None,
        }
    }
}

/// An environment, as a client sets it (contract 13 §1).
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvironmentSettings {
    /// Name, 1 to 200 characters.
    pub name: String,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Project it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Variables of commands, at most 100 of 32 KiB; masked.
    #[schema(value_type = Object)]
    pub env_vars: Variables,
    /// The machine.
    pub sandbox_config: SandboxConfig,
    /// Tool servers and built-in groups that all who are connected have.
    pub available_tools_groups_uids: Vec<String>,
    /// Documents that they know.
    pub knowledge_document_ids: Vec<String>,
    /// Folders that they know.
    pub knowledge_folder_ids: Vec<String>,
    /// Skills that they have.
    pub knowledge_skills: Vec<KnowledgeSkill>,
    /// Tags.
    pub tags: Vec<String>,
}

/// An environment.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Environment {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// What was set.
    #[serde(flatten)]
    pub settings: EnvironmentSettings,
    /// `idle`, `active` or `saving`.
    pub state: &'static str,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// Version.
    #[serde(skip)]
    #[schema(ignore)]
    pub version: i64,
}

/// Which environments to list.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvironmentFilter {
    /// Only of this project.
    pub project_id: Option<String>,
    /// Beside those in no project, only those of these; `None` = all.
    #[serde(skip)]
    #[schema(ignore)]
    pub within: Option<Vec<String>>,
}

/// A page of environments.
#[derive(Debug, Serialize, ToSchema)]
pub struct EnvironmentList {
    /// The environments, newest first.
    pub environments: Vec<Environment>,
    /// How many there are.
    pub total: i64,
    /// Where the page begins.
    pub offset: i64,
    /// How many it may hold.
    pub limit: i64,
}

/// What is connected to environments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntityKind {
    /// An agent.
    Agent,
    /// An assistant.
    Assistant,
}

impl EntityKind {
    /// Of a path.
    pub fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "agent" => Some(Self::Agent),
            "assistant" => Some(Self::Assistant),
            _ => None,
        }
    }

    /// As in a path.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Assistant => "assistant",
        }
    }
}

/// Variables of a connection.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionVariables {
    /// They win over those of the environment; masked.
    #[schema(value_type = Object)]
    pub env_vars: Variables,
}

/// What is connected to an environment.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = EnvironmentConnection)]
pub struct Connection {
    /// `agent` or `assistant`.
    pub entity_type: &'static str,
    /// Its id.
    pub entity_id: String,
    /// The environment.
    pub environment_id: String,
    /// Since when.
    pub connected_at_ms: i64,
    /// Variables, masked.
    #[schema(value_type = Object)]
    pub env_vars: Variables,
}

/// Who is connected to an environment.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[schema(as = EnvironmentConnections)]
pub struct Connections {
    /// Agents.
    pub agents: Vec<ConnectedAgent>,
    /// Assistants.
    pub assistants: Vec<ConnectedAssistant>,
}

/// An agent that is connected.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectedAgent {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// Name.
    pub name: String,
    /// Since when.
    pub connected_at_ms: i64,
    /// Names of its variables.
    pub env_var_keys: Vec<String>,
}

/// An assistant that is connected.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectedAssistant {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// Identifier.
    pub identifier: String,
    /// Name.
    pub name: String,
    /// Since when.
    pub connected_at_ms: i64,
    /// Names of its variables.
    pub env_var_keys: Vec<String>,
}

/// What the server lets machines be.
#[derive(Debug, Clone, Default)]
pub struct SandboxSettings {
    /// Machines of this process at once.
    pub most: usize,
    /// What of a command's output is kept, in bytes a stream.
    pub output_bytes: usize,
    /// Runtimes that an environment may ask for, beside those of the contract.
    pub runtimes: Vec<String>,
    /// Below which machines are reached from outside; `None` = they are not.
    pub public: Option<PublicDomain>,
}

/// A domain whose hosts are what machines serve.
#[derive(Debug, Clone)]
pub struct PublicDomain {
    /// `http` or `https`.
    pub scheme: String,
    /// Its name.
    pub name: String,
    /// The port, when it is not the usual one.
    pub port: Option<u16>,
}

impl PublicDomain {
    pub(crate) fn url(&self, slug: &str) -> String {
        let Self { scheme, name, port } = self;
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{scheme}://{slug}.{name}{port}")
    }
}

impl SandboxSettings {
    pub(crate) fn knows(&self, runtime: &str) -> bool {
        RUNTIMES.contains(&runtime) || self.runtimes.iter().any(|known| known == runtime)
    }
}

impl SandboxConfig {
    fn check(&mut self, checks: &mut Checks, sandboxes: &SandboxSettings) {
        self.runtime.make_ascii_lowercase();
        if !sandboxes.knows(&self.runtime) {
            let own = sandboxes.runtimes.iter().map(String::as_str).filter(|name| !RUNTIMES.contains(name));
            let known = RUNTIMES.into_iter().chain(own).collect::<Vec<_>>().join(", ");
            checks.issue("sandboxConfig.runtime", "enum", format!("sandboxConfig.runtime must be one of {known}"));
        }
        checks.range("sandboxConfig.memoryMib", self.memory_mib, &(256..=8192));
        checks.range("sandboxConfig.cpus", self.cpus, &(1..=8));
        checks.range("sandboxConfig.diskMib", self.disk_mib, &(512..=65_536));
        checks.bytes("sandboxConfig.provider", self.provider.as_ref().map_or(0, String::len), 64);
        checks.bytes("sandboxConfig.initScript", self.init_script.len(), MAX_SCRIPT);
        checks.bytes("sandboxConfig.startCommand", self.start_command.as_ref().map_or(0, String::len), MAX_SCRIPT);
        check_variables(checks, "sandboxConfig.envVars", &self.env_vars);
        checks.count("sandboxConfig.allowedHosts", self.allowed_hosts.len(), MAX_HOSTS);
        if let Some(host) = self.allowed_hosts.iter().find(|host| !is_host(host)) {
            let message = format!(
                "sandboxConfig.allowedHosts: `{host}` is no host, such as pypi.org, *.example.com or db.example:5432"
            );
            checks.issue("sandboxConfig.allowedHosts", "format", message);
        }
        if let Some(slug) = &self.public_slug {
            let is_good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            // It is a label of a host (RFC 5891 §4.2.3.1), and looks like no other.
            let is_label = !slug.starts_with('-') && !slug.ends_with('-') && !slug.starts_with("xn--");
            if !(3..=40).contains(&slug.len()) || !slug.bytes().all(is_good) || !is_label {
                let message =
                    "sandboxConfig.publicSlug must be 3 to 40 of a-z, 0-9 and -, and begin and end with none of -";
                checks.issue("sandboxConfig.publicSlug", "format", message);
            } else if sandboxes.public.is_none() {
                let message = "sandboxConfig.publicSlug: no machine of this server is reached from outside; leave it out, \
                    or have the operator set PLATFORM_SANDBOX_PUBLIC_DOMAIN";
                checks.issue("sandboxConfig.publicSlug", "conflict", message);
            }
        }
    }
}

impl EnvironmentSettings {
    /// Every rule of contract 13 §1 that needs no look at other records.
    pub(crate) fn check(&mut self, limits: &FieldLimits, sandboxes: &SandboxSettings) -> Result<()> {
        let mut checks = Checks::within(limits);
        checks.name(&self.name);
        checks.length("description", self.description.as_deref().unwrap_or_default(), 0..=4000);
        check_variables(&mut checks, "envVars", &self.env_vars);
        self.sandbox_config.check(&mut checks, sandboxes);
        let mut seen = BTreeSet::new();
        self.available_tools_groups_uids.retain(|uid| seen.insert(uid.clone()));
        checks.count("availableToolsGroupsUids", self.available_tools_groups_uids.len(), 200);
        checks.count("knowledgeDocumentIds", self.knowledge_document_ids.len(), MAX_ATTACHED);
        checks.count("knowledgeFolderIds", self.knowledge_folder_ids.len(), MAX_ATTACHED);
        checks.count("knowledgeSkills", self.knowledge_skills.len(), 100);
        checks.tags("tags", &mut self.tags);
        checks.finish()
    }
}

/// Every rule on the variables at a path.
pub(crate) fn check_variables(checks: &mut Checks, path: &str, variables: &Variables) {
    checks.variables(path, variables.len());
    for (name, value) in variables {
        let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if !begins || name.len() > MAX_NAME || !name.bytes().all(good) {
            let shown: String = name.chars().take(64).collect();
            let message = format!("{path}: `{shown}` is no name of a variable: ^[A-Za-z_][A-Za-z0-9_]{{0,127}}$");
            checks.issue(path, "format", message);
        }
        checks.bytes(&format!("{path}.{name}"), value.expose().len(), MAX_VALUE);
    }
    // A program begins with those of three layers, for which Linux has 2 MiB.
    let together = variables.iter().map(|(name, value)| name.len() + value.expose().len()).sum();
    checks.bytes(path, together, MAX_TOGETHER);
}

/// Puts the values in the place of masks that came back. A mask of nothing is an error.
pub(crate) fn reveal(path: &str, given: &mut Variables, known: &Variables) -> Result<()> {
    for (name, value) in given.iter_mut().filter(|(_, value)| value.is_mask()) {
        let Some(known) = known.get(name) else {
            let message = format!("{path}.{name} is a mask, and there is no value behind it yet: send the value");
            return Err(Error::invalid(&format!("{path}.{name}"), "format", message));
        };
        *value = known.clone();
    }
    Ok(())
}

fn is_host(text: &str) -> bool {
    let host = match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => host,
        Some(_) => return false,
        None => text,
    };
    let name = host.strip_prefix("*.").unwrap_or(host);
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    !name.is_empty() && name.len() <= 253 && !name.starts_with('.') && name.bytes().all(good)
}
