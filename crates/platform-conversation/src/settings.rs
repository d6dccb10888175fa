use std::sync::Arc;

use async_trait::async_trait;
use platform_core::{AccountId, Checks, Code, Error, FieldLimits, Object, Result};
use platform_guardrails::{Guardrails, Screen};
use platform_runtime::{
    Catalog, ChildPool, ModelSpec, OutputSchema, Payer, StructuredOutput, TenantAppOffer, TurnScope, TurnSkill,
    check_schema,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::environments::{Environments, InheritedParts};
use crate::parts::{
    AccessConfiguration, ContextManagement, CoreMemory, FallbackModel, KnowledgeRecall, KnowledgeSkill,
    ReasoningEffort, TenantIntegrationsConfig, TenantMcpConfig,
};

const RESERVED: [&str; 2] = ["chats", "tags"];
const WIDGET_BYTES: usize = 16_384;
/// Documents, and folders, that one assistant has.
const MAX_ATTACHED: usize = 1000;
const MAX_SKILLS: usize = 100;
/// Tools, roles and others that it names.
const MAX_NAMED: usize = 1000;

/// Whether an assistant takes messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum AssistantState {
    #[default]
    Active,
    Inactive,
    ComingSoon,
}

/// What an assistant is, as a client sets it (contract 02 §1); an agent is specialised by the same fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AssistantSettings {
    /// Name in URLs, `^[a-z0-9][a-z0-9_-]{0,63}$`; unique, never changes. Made when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub identifier: Option<String>,
    /// Name, 1 to 200 characters.
    pub name: String,
    /// Description, at most 4000 characters.
    pub description: String,
    /// System prompt with `{{placeholders}}`, at most 256 KiB.
    pub presets: String,
    /// Whether it takes messages.
    pub state: AssistantState,
    /// Picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub img_url: Option<String>,
    /// Project it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Environment it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
    /// Model provider; absent = the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Model; absent = the provider's first.
    #[serde(skip_serializing_if = "Option::is_none", alias = "llm")]
    pub model: Option<String>,
    /// Models to ask when that one fails, at most 5.
    pub fallback_models: Vec<FallbackModel>,
    /// Sampling temperature, 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Longest answer in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// How long a model that reasons may do so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Tool servers and built-in groups.
    pub available_tools_groups_uids: Vec<String>,
    /// Tools of those groups it may use; `null` = all.
    pub enabled_tools: Option<Vec<String>>,
    /// Tools that need approval; `*` = all.
    pub approval_tools: Vec<String>,
    /// Agents it may hand off to.
    pub subagents_ids: Vec<String>,
    /// Documents it knows.
    pub knowledge_document_ids: Vec<String>,
    /// Folders it knows.
    pub knowledge_folder_ids: Vec<String>,
    /// Whether passages of them come with a turn from the start.
    pub knowledge_recall: KnowledgeRecall,
    /// Skills it has.
    pub knowledge_skills: Vec<KnowledgeSkill>,
    /// Kept and returned.
    pub available_skill_ids: Vec<String>,
    /// Kept and returned.
    pub code_snippet_ids: Vec<String>,
    /// The model gets at most so many latest messages; 0 = no limit.
    pub max_chat_messages: u32,
    /// Longest tool response for the model, in tokens.
    #[serde(default = "default_tool_response")]
    #[schema(default = default_tool_response)]
    pub max_tool_response_input_tokens: u32,
    /// Tool calls of one turn.
    #[serde(default = "default_tool_calls")]
    #[schema(default = default_tool_calls)]
    pub max_tool_calls: u32,
    /// Longest tool call, 1000 to 300000 ms.
    #[serde(default = "default_tool_timeout")]
    #[schema(default = default_tool_timeout)]
    pub tool_call_timeout_ms: u32,
    /// What of older turns the model gets.
    pub context_management: ContextManagement,
    /// Schema the final answer must satisfy.
    pub structured_output: Option<StructuredOutput>,
    /// Rules on what goes in and out.
    pub guardrails_configuration: Guardrails,
    /// Messages to a busy chat wait.
    #[serde(default = "yes")]
    #[schema(default = yes)]
    pub message_queue_enabled: bool,
    /// How many may wait, 1 to 100.
    #[serde(default = "default_queue")]
    #[schema(default = default_queue)]
    pub max_queued_messages: u32,
    /// Asynchronous messages are gathered for so long: 0 or 500 to 30000 ms.
    pub input_delay_ms: u32,
    /// Core memory.
    pub core_memory: CoreMemory,
    /// Apps that tenants connect.
    pub tenant_integrations_config: TenantIntegrationsConfig,
    /// MCP servers that tenants bring.
    pub tenant_mcp_config: TenantMcpConfig,
    /// Who may see it.
    pub access_configuration: AccessConfiguration,
    /// Kept for front ends, at most 16 KiB.
    #[schema(value_type = Object)]
    pub widget_configuration: Object,
    /// Tags.
    pub tags: Vec<String>,
}

fn default_tool_response() -> u32 {
    20_000
}
fn default_tool_calls() -> u32 {
    100
}
fn default_tool_timeout() -> u32 {
    60_000
}
fn default_queue() -> u32 {
    20
}
fn yes() -> bool {
    true
}

impl AssistantSettings {
    /// All settings at their defaults.
    pub fn named(name: &str) -> Self {
        serde_json::from_value(json!({"name": name})).expect("a name is all that is required")
    }

    /// Every rule of contract 02 §1 that this server can check.
    pub fn check(&mut self, catalog: &dyn Catalog, limits: &FieldLimits) -> Result<()> {
        let mut checks = Checks::within(limits);
        if let Some(identifier) = &self.identifier {
            check_identifier(&mut checks, identifier);
        }
        checks.name(&self.name);
        checks.length("description", &self.description, 0..=4000);
        checks.bytes("presets", self.presets.len(), limits.presets_bytes);
        checks.count("fallbackModels", self.fallback_models.len(), 5);
        checks.range("temperature", self.temperature.unwrap_or(0.0), &(0.0..=2.0));
        checks.range("topP", self.top_p.unwrap_or(0.0), &(0.0..=1.0));
        checks.range("maxOutputTokens", self.max_output_tokens.unwrap_or(1), &(1..=10_000_000));
        checks.range("knowledgeRecall.limit", self.knowledge_recall.limit, &(1..=20));
        checks.range("knowledgeRecall.maxTokens", self.knowledge_recall.max_tokens, &(100..=16_000));
        checks.range("toolCallTimeoutMs", self.tool_call_timeout_ms, &(1000..=300_000));
        checks.range("maxQueuedMessages", self.max_queued_messages, &(1..=100));
        if self.input_delay_ms != 0 {
            checks.range("inputDelayMs", self.input_delay_ms, &(500..=30_000));
        }
        self.tenant_integrations_config.check(&mut checks);
        self.tenant_mcp_config.check(&mut checks);
        self.guardrails_configuration.name_in_lower_case();
        let widget = serde_json::to_string(&self.widget_configuration).map_or(0, |json| json.len());
        checks.bytes("widgetConfiguration", widget, WIDGET_BYTES);
        checks.tags("tags", &mut self.tags);
        let mut seen = std::collections::HashSet::new();
        self.available_tools_groups_uids.retain(|uid| seen.insert(uid.clone()));
        checks.count("knowledgeDocumentIds", self.knowledge_document_ids.len(), MAX_ATTACHED);
        checks.count("knowledgeSkills", self.knowledge_skills.len(), MAX_SKILLS);
        checks.count("knowledgeFolderIds", self.knowledge_folder_ids.len(), MAX_ATTACHED);
        checks.count("availableToolsGroupsUids", self.available_tools_groups_uids.len(), 200);
        checks.picture("imgUrl", self.img_url.as_deref());
        let shown_to = &self.access_configuration.visibility_by_role;
        for (path, names) in [
            ("enabledTools", self.enabled_tools.as_deref().unwrap_or_default()),
            ("approvalTools", &self.approval_tools),
            ("availableSkillIds", &self.available_skill_ids),
            ("codeSnippetIds", &self.code_snippet_ids),
            ("accessConfiguration.visibilityByRole", shown_to),
        ] {
            checks.names(path, names, MAX_NAMED);
        }
        checks.finish()?;
        if let Some(output) = &self.structured_output {
            output.check()?;
        }
        self.guardrails_configuration.check(catalog)?;
        let chosen = self.choose(catalog, None, None)?;
        let check_tools = |model: &ModelSpec| {
            let fits = self.available_tools_groups_uids.is_empty() || model.capabilities.tools;
            if fits { Ok(()) } else { Err(takes_no_tools(model)) }
        };
        check_tools(&chosen)?;
        for fallback in &self.fallback_models {
            check_tools(&catalog.choose(Some(&fallback.provider), Some(&fallback.model))?)?;
        }
        Ok(())
    }

    /// Whether schema and rules can be used, which child processes find out: to be asked before a transaction begins.
    pub async fn check_written(&self, children: &ChildPool, account: &AccountId) -> Result<()> {
        if let Some(output) = &self.structured_output {
            let schema = Value::Object(output.schema.clone());
            check_schema(children, account, "structuredOutput.schema", &schema).await?;
        }
        self.guardrails_configuration.check_written(children, account).await
    }

    /// Whether anything is attached that can be searched.
    pub fn has_knowledge(&self) -> bool {
        !self.knowledge_document_ids.is_empty() || !self.knowledge_folder_ids.is_empty()
    }

    /// For whom a turn runs, and what it sees.
    pub fn scope(&self, payer: Option<&Payer>, conversation: &str) -> TurnScope {
        TurnScope {
            payer: payer.cloned(),
            conversation: conversation.to_owned(),
            memory: payer.and_then(|payer| self.core_memory.of(payer)),
            documents: self.knowledge_document_ids.clone(),
            folders: self.knowledge_folder_ids.clone(),
            skills: self.turn_skills(),
            tenant_apps: self.tenant_apps(payer),
            tenant_mcp: self.tenant_mcp(payer),
            environment: self.environment_id.clone(),
            worker: None,
            depth: 0,
        }
    }

    /// Apps that whom it talks to may connect; none where it talks to nobody's tenant.
    fn tenant_apps(&self, payer: Option<&Payer>) -> Vec<TenantAppOffer> {
        let config = &self.tenant_integrations_config;
        if !config.enabled || payer.is_none_or(|payer| payer.tenant_id.is_none()) {
            return Vec::new();
        }
        config.offers().collect()
    }

    /// MCP servers that whom it talks to brings, and tools of each; `None` = they bring none.
    fn tenant_mcp(&self, payer: Option<&Payer>) -> Option<(usize, usize)> {
        let config = &self.tenant_mcp_config;
        let is_offered = config.enabled && payer.is_some_and(|payer| payer.tenant_id.is_some());
        is_offered.then_some((config.max_servers as usize, config.max_tools_per_server as usize))
    }

    /// Whether it has a skill that is enabled.
    pub fn has_skills(&self) -> bool {
        self.knowledge_skills.iter().any(|skill| skill.enabled)
    }

    fn turn_skills(&self) -> Vec<TurnSkill> {
        let enabled = self.knowledge_skills.iter().filter(|skill| skill.enabled);
        enabled.map(|skill| TurnSkill { id: skill.id.clone(), preload: skill.preload_content }).collect()
    }

    /// The model of a turn: what the message asks for, else what the assistant says, else the default.
    pub fn choose(&self, catalog: &dyn Catalog, provider: Option<&str>, llm: Option<&str>) -> Result<ModelSpec> {
        match (provider, llm) {
            (None, None) => catalog.choose(self.provider.as_deref(), self.model.as_deref()),
            asked => catalog.choose(asked.0, asked.1),
        }
    }
}

/// The port to assistants that agents are made from (contract 03 §1, `assistantSpecialization.identifier`).
#[async_trait]
pub trait AssistantTemplates: Send + Sync {
    /// Settings of the assistant of that identifier; `None` when there is none.
    async fn base(&self, account: &AccountId, identifier: &str) -> Result<Option<AssistantSettings>>;
}

/// Settings ready for turns.
#[derive(Clone, Default)]
pub struct Profile {
    /// What was set.
    pub settings: AssistantSettings,
    /// The guardrails, when they are enabled.
    pub screen: Option<Arc<Screen>>,
    /// What a final answer must satisfy.
    pub output: Option<Arc<OutputSchema>>,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Profile {
    /// Settings that no turn uses yet.
    pub fn new(settings: AssistantSettings) -> Self {
        Self { settings, screen: None, output: None }
    }

    /// Makes rules and schema ready for an account.
    pub fn ready(settings: AssistantSettings, children: &Arc<ChildPool>, account: &AccountId) -> Self {
        let output = settings.structured_output.as_ref().filter(|output| output.enabled);
        let output = output.map(|output| output.ready(children, account));
        let screen = settings.guardrails_configuration.ready(children, account).map(Arc::new);
        Self { settings, screen, output }
    }

    /// The same with what its environment gives to all who are connected to it (contract 13 §1).
    pub async fn in_environment(
        self: &Arc<Self>,
        environments: &dyn Environments,
        account: &AccountId,
    ) -> Result<Arc<Self>> {
        let Some(id) = &self.settings.environment_id else { return Ok(Arc::clone(self)) };
        let Some(parts) = environments.inherited(account, id).await? else { return Ok(Arc::clone(self)) };
        if *parts == InheritedParts::default() {
            return Ok(Arc::clone(self));
        }
        let mut whole = (**self).clone();
        let settings = &mut whole.settings;
        add(&mut settings.available_tools_groups_uids, &parts.groups);
        add(&mut settings.knowledge_document_ids, &parts.documents);
        add(&mut settings.knowledge_folder_ids, &parts.folders);
        for skill in &parts.skills {
            if settings.knowledge_skills.iter().all(|own| own.id != skill.id) {
                let (id, preload_content) = (skill.id.clone(), skill.preload);
                settings.knowledge_skills.push(KnowledgeSkill {
                    id,
                    r#type: String::new(),
                    enabled: true,
                    preload_content,
                });
            }
        }
        Ok(Arc::new(whole))
    }

    /// Whether watchers see the reply grow (contract 02 §7.11).
    pub fn shows_growth(&self) -> bool {
        self.screen.is_none() && self.output.is_none()
    }
}

/// Tools for a model that cannot call any.
pub fn takes_no_tools(model: &ModelSpec) -> Error {
    Error::new(Code::MODEL_NOT_SUPPORTED, format!("The model {} takes no tools; choose another.", model.llm))
        .with("provider", &*model.provider)
        .with("model", &*model.llm)
        .with("capability", "tools")
}

fn check_identifier(checks: &mut Checks, identifier: &str) {
    let good = (1..=64).contains(&identifier.len())
        && !identifier.starts_with(['_', '-'])
        && identifier.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
    if !good {
        checks.issue("identifier", "format", "identifier must match ^[a-z0-9][a-z0-9_-]{0,63}$");
    } else if RESERVED.contains(&identifier) {
        checks.issue("identifier", "conflict", format!("identifier `{identifier}` is reserved; choose another"));
    }
}

fn add(own: &mut Vec<String>, more: &[String]) {
    let new: Vec<String> = more.iter().filter(|id| !own.contains(id)).cloned().collect();
    own.extend(new);
}
