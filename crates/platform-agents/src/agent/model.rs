use std::sync::Arc;

use platform_conversation::{AssistantSettings, FallbackModel, Profile};
use platform_core::{AccountId, Checks, Error, FieldLimits, Id, Object, Result, Timestamp, overlay};
use platform_jobs::LaneLimits;
use platform_runtime::{Catalog, ChildPool, StructuredOutput, check_schemas};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

use super::schedule::{self, PeriodicExecution};
use crate::{
    code,
    evaluation::{EvaluationConfig, check_evaluation},
};

/// Kind of agent ids.
pub(crate) enum AgentKind {}
pub(crate) type AgentId = Id<AgentKind>;

const MAX_EMAILS: usize = 20;
/// Longest interval: 31 days.
const INTERVAL_MS: std::ops::RangeInclusive<i64> = 1000..=2_678_400_000;

/// Fields of an assistant that specialise an agent (contract 03 §1).
const SPECIALIZATION: &[&str] = &[
    "identifier",
    "name",
    "description",
    "presets",
    "model",
    "provider",
    "imgUrl",
    "availableToolsGroupsUids",
    "enabledTools",
    "codeSnippetIds",
    "availableSkillIds",
    "subagentsIds",
    "maxChatMessages",
    "maxToolResponseInputTokens",
    "contextManagement",
    "knowledgeDocumentIds",
    "knowledgeFolderIds",
    "knowledgeSkills",
    "knowledgeRecall",
    "approvalTools",
    "toolCallTimeoutMs",
    "temperature",
    "topP",
    "maxOutputTokens",
    "reasoningEffort",
    "structuredOutput",
    "guardrailsConfiguration",
];

/// Those of them in place of which the agent's own count.
const OVERRIDDEN: [&str; 4] = ["identifier", "name", "model", "provider"];

/// What an agent is, in the words of an assistant: the fields that were given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Specialization(#[serde(deserialize_with = "without_nulls")] pub Object);

/// The fields of an object that is kept as it was given; `null` is none (contract 00 §2).
fn without_nulls<'de, D: Deserializer<'de>>(given: D) -> std::result::Result<Object, D::Error> {
    let mut fields = Object::deserialize(given)?;
    fields.retain(|_, value| !value.is_null());
    Ok(fields)
}

impl PartialSchema for Specialization {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(mut object)) = AssistantSettings::schema() else {
            return AssistantSettings::schema();
        };
        object.properties.retain(|name, _| SPECIALIZATION.contains(&name.as_str()));
        object.required.clear();
        RefOr::T(Schema::Object(object))
    }
}

impl ToSchema for Specialization {
    fn name() -> std::borrow::Cow<'static, str> {
        "AssistantSpecialization".into()
    }
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        AssistantSettings::schemas(schemas);
    }
}

/// Everything a client sets of an agent (contract 03 §1).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentSettings {
    /// Name, 1 to 200 characters.
    pub name: String,
    /// Description, at most 4000 characters.
    pub description: String,
    /// Picture.
    pub img_url: String,
    /// Its threads wait in the queue.
    pub disabled: bool,
    /// Hidden from the list; its threads wait in the queue.
    pub archived: bool,
    /// Model provider; absent = as its specialization says, else the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Model; absent = the provider's first.
    #[serde(skip_serializing_if = "Option::is_none", alias = "model")]
    pub llm: Option<String>,
    /// Models to ask when that one fails, at most 5.
    pub fallback_models: Vec<FallbackModel>,
    /// What it is; `identifier` may name an assistant whose fields are the base. A PATCH merges it key by key.
    pub assistant_specialization: Specialization,
    /// Prompt tokens of one turn; 0 = no limit.
    #[serde(default = "default_input_tokens")]
    #[schema(default = default_input_tokens)]
    pub max_execution_input_tokens: u64,
    /// Tool calls of one turn; 0 = no limit.
    #[serde(default = "default_tool_calls")]
    #[schema(default = default_tool_calls)]
    pub max_execution_tool_calls: u64,
    /// Turns that begin in one interval; absent = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_execution_frequency: Option<i32>,
    /// Length of that interval, 1000 to 2678400000 ms; intervals are counted from the epoch.
    #[serde(default = "default_interval")]
    #[schema(default = default_interval)]
    pub execution_frequency_interval_ms: i64,
    /// Threads in processing at once, 1 to 1000.
    #[serde(default = "default_concurrency")]
    #[schema(default = default_concurrency)]
    pub concurrent_execution_limit: i32,
    /// Who gets mail.
    #[serde(deserialize_with = "without_nulls")]
    #[schema(value_type = NotificationConfig)]
    pub agent_notification_config: Object,
    /// How its threads are judged. A PATCH merges it key by key.
    #[serde(deserialize_with = "without_nulls")]
    #[schema(value_type = EvaluationConfig)]
    pub evaluation_config: Object,
    /// Project it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Environment it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Whether and how others hand work to it. A PATCH merges it key by key.
    pub sub_agent_config: SubAgentConfig,
    /// When it starts by itself.
    pub periodic_execution: PeriodicExecution,
    /// Gets the events of its threads, signed with the account's default secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
}

/// Who gets mail when a thread ends or needs approval.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NotificationConfig {
    /// Whether anybody does.
    pub enabled: bool,
    /// Whether mail is sent.
    pub enable_email_notification: bool,
    /// Told when a thread ends, at most 20.
    pub notified_emails: Vec<String>,
    /// Told when a thread needs approval, at most 20.
    pub approval_emails: Vec<String>,
}

/// Whether and how work is handed to an agent (contract 03 §8).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubAgentConfig {
    /// Others may.
    pub enabled: bool,
    /// `text` or `json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_format: Option<String>,
    /// Schema of the work, with `json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input_structure: Option<Value>,
    /// `text` or `json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_format: Option<String>,
    /// Schema of the result, with `json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output_structure: Option<Value>,
}

fn default_input_tokens() -> u64 {
    2_000_000
}
fn default_tool_calls() -> u64 {
    100
}
fn default_interval() -> i64 {
    3_600_000
}
fn default_concurrency() -> i32 {
    5
}

/// Objects that a PATCH merges key by key.
pub(crate) const MERGED: [&str; 3] = ["assistantSpecialization", "evaluationConfig", "subAgentConfig"];

impl AgentSettings {
    /// Whether work can be handed to it now.
    pub(crate) fn takes_work(&self) -> bool {
        self.sub_agent_config.enabled && !self.archived && !self.disabled
    }

    /// Every rule of contract 03 §1 that needs no look at other records; `base`: the assistant it is made from.
    pub(crate) fn check(
        &mut self,
        base: Option<&AssistantSettings>,
        catalog: &dyn Catalog,
        limits: &FieldLimits,
    ) -> Result<()> {
        self.check_fields(limits)?;
        check_evaluation(&self.evaluation()?, catalog).map_err(|error| error.within("evaluationConfig"))?;
        self.sub_agent_config.check()?;
        schedule::check(&mut self.periodic_execution, limits)?;
        self.assistant_specialization.0.retain(|name, _| SPECIALIZATION.contains(&name.as_str()));
        self.check_parts()?;
        let mut effective = self.effective(base)?;
        effective.check(catalog, limits).map_err(|error| error.within("assistantSpecialization"))?;
        self.keep_as_read(&effective)
    }

    /// What needs a look at nothing else.
    pub(crate) fn check_fields(&mut self, limits: &FieldLimits) -> Result<()> {
        let mut checks = Checks::within(limits);
        checks.name(&self.name);
        checks.length("description", &self.description, 0..=4000);
        checks.length("imgUrl", &self.img_url, 0..=4000);
        checks.bytes("assistantSpecialization.identifier", self.base_identifier().map_or(0, str::len), 256);
        checks.count("fallbackModels", self.fallback_models.len(), 5);
        checks.range("maxExecutionInputTokens", self.max_execution_input_tokens, &(0..=(1 << 53) - 1));
        checks.range("maxExecutionToolCalls", self.max_execution_tool_calls, &(0..=1_000_000));
        checks.range("maxExecutionFrequency", self.max_execution_frequency.unwrap_or(1), &(1..=1_000_000_000));
        checks.range("executionFrequencyIntervalMs", self.execution_frequency_interval_ms, &INTERVAL_MS);
        checks.range("concurrentExecutionLimit", self.concurrent_execution_limit, &(1..=1000));
        checks.tags("tags", &mut self.tags);
        check_emails(&mut checks, &self.notifications()?);
        checks.finish()
    }

    /// What was given of the specialization, in the form that it was understood in.
    fn keep_as_read(&mut self, effective: &AssistantSettings) -> Result<()> {
        let read = serde_json::to_value(effective).map_err(Error::internal)?;
        for (name, value) in &mut self.assistant_specialization.0 {
            if !OVERRIDDEN.contains(&name.as_str())
                && let Some(read) = read.get(name)
            {
                value.clone_from(read);
            }
        }
        Ok(())
    }

    /// Whether its schemas and rules can be used, which child processes find out: to be asked before a transaction
    /// begins.
    pub(crate) async fn check_written(&self, children: &ChildPool, account: &AccountId) -> Result<()> {
        let effective = self.effective(None)?;
        let specialized = effective.check_written(children, account).await;
        specialized.map_err(|error| error.within("assistantSpecialization"))?;
        let SubAgentConfig { input_structure, output_structure, .. } = &self.sub_agent_config;
        let schema = |(name, schema): (&str, &'_ Option<Value>)| Some((name.to_owned(), schema.clone()?));
        let named =
            [("subAgentConfig.inputStructure", input_structure), ("subAgentConfig.outputStructure", output_structure)];
        let schemas: Vec<(String, Value)> = named.into_iter().filter_map(schema).collect();
        let given: Vec<_> = schemas.iter().map(|(path, schema)| (path.clone(), schema)).collect();
        let mut checks = Checks::default();
        for (path, reason) in check_schemas(children, account, &given).await? {
            checks.issue(&path, "format", format!("{path} {reason}"));
        }
        checks.finish_as(platform_runtime::code::INVALID_SCHEMA)
    }

    /// What its turns work with.
    pub(crate) fn effective(&self, base: Option<&AssistantSettings>) -> Result<AssistantSettings> {
        let base = base.cloned().unwrap_or_else(|| AssistantSettings::named(&self.name));
        let mut given = self.assistant_specialization.0.clone();
        given.remove("identifier");
        let mut settings = overlay(&base, given).map_err(|error| error.within("assistantSpecialization"))?;
        if self.provider.is_some() || self.llm.is_some() {
            settings.provider.clone_from(&self.provider);
            settings.model.clone_from(&self.llm);
        }
        if !self.fallback_models.is_empty() {
            settings.fallback_models.clone_from(&self.fallback_models);
        }
        if settings.name.is_empty() {
            settings.name.clone_from(&self.name);
        }
        settings.identifier = None;
        settings.environment_id.clone_from(&self.environment_id);
        Ok(settings)
    }

    /// The assistant it is made from, when it names one.
    pub(crate) fn base_identifier(&self) -> Option<&str> {
        self.assistant_specialization.0.get("identifier").and_then(Value::as_str)
    }

    /// Ready for turns.
    pub(crate) fn profile(
        &self,
        base: Option<&AssistantSettings>,
        children: &Arc<ChildPool>,
        account: &AccountId,
    ) -> Result<Profile> {
        let mut settings = self.effective(base)?;
        if let (Some("json"), Some(schema)) =
            (self.sub_agent_config.output_format.as_deref(), &self.sub_agent_config.output_structure)
            && settings.structured_output.is_none()
        {
            let output = json!({"enabled": true, "name": "result", "schema": schema});
            settings.structured_output = serde_json::from_value::<StructuredOutput>(output).ok();
        }
        Ok(Profile::ready(settings, children, account))
    }

    /// The types of what is kept as it was given.
    pub(crate) fn check_parts(&self) -> Result<()> {
        self.notifications()?;
        self.evaluation()?;
        if self.assistant_specialization.0.get("identifier").is_some_and(|identifier| !identifier.is_string()) {
            let path = "assistantSpecialization.identifier";
            return Err(Error::invalid(path, "type", format!("{path} must be the identifier of an assistant")));
        }
        Ok(())
    }

    pub(crate) fn notifications(&self) -> Result<NotificationConfig> {
        typed("agentNotificationConfig", &self.agent_notification_config)
    }

    pub(crate) fn evaluation(&self) -> Result<EvaluationConfig> {
        typed("evaluationConfig", &self.evaluation_config)
    }

    /// What its threads may do together.
    pub(crate) fn lane(&self) -> LaneLimits {
        LaneLimits {
            most_running: self.concurrent_execution_limit,
            most_starts: self.max_execution_frequency,
            interval_ms: self.execution_frequency_interval_ms,
            closed: self.disabled || self.archived,
        }
    }
}

/// A part of the settings that is kept as it was given.
fn typed<T: Default + Serialize + serde::de::DeserializeOwned>(path: &str, given: &Object) -> Result<T> {
    overlay(&T::default(), given.clone()).map_err(|error| error.within(path))
}

fn check_emails(checks: &mut Checks, config: &NotificationConfig) {
    for (name, emails) in [("notifiedEmails", &config.notified_emails), ("approvalEmails", &config.approval_emails)] {
        let path = format!("agentNotificationConfig.{name}");
        checks.count(&path, emails.len(), MAX_EMAILS);
        for (i, email) in emails.iter().enumerate() {
            if !platform_mail::is_address(email) {
                checks.issue(&format!("{path}[{i}]"), "format", format!("{path}[{i}] must be an e-mail address"));
            }
        }
    }
}

impl SubAgentConfig {
    fn check(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        for (format, name) in [(&mut self.input_format, "input"), (&mut self.output_format, "output")] {
            let Some(format) = format else { continue };
            *format = format.to_lowercase();
            if !["text", "json"].contains(&format.as_str()) {
                checks.issue(&format!("subAgentConfig.{name}Format"), "enum", "the format must be text or json");
            }
        }
        checks.finish()?;
        let mut checks = Checks::default();
        for (format, structure, name) in [
            (&self.input_format, &self.input_structure, "input"),
            (&self.output_format, &self.output_structure, "output"),
        ] {
            let path = |part: &str| format!("subAgentConfig.{name}{part}");
            match (format.as_deref(), structure) {
                (None | Some("text"), None) | (Some("json"), Some(Value::Object(_))) => {}
                (Some("json"), None) => {
                    checks.issue(&path("Structure"), "required", "a schema is needed for the format json");
                }
                (Some("json"), Some(_)) => checks.issue(&path("Structure"), "type", "the structure must be a schema"),
                (None | Some("text"), Some(_)) => {
                    checks.issue(&path("Format"), "conflict", "a structure goes with the format json alone");
                }
                // Said above.
                _ => {}
            }
        }
        checks.finish_as(code::INVALID_SUBAGENT_CONFIG)
    }
}

/// An agent as it is sent.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Id of the agent.
    #[serde(rename = "_id")]
    pub id: String,
    /// Its account.
    #[serde(rename = "clientUID")]
    pub client_uid: String,
    /// Who made it.
    #[serde(rename = "createdByUserUID")]
    pub created_by: String,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// What the client set.
    #[serde(flatten)]
    pub settings: AgentSettings,
    /// For `ETag`.
    #[serde(skip)]
    pub version: i64,
}

/// An agent at one of its versions, ready for turns.
#[derive(Debug)]
pub(crate) struct ReadyAgent {
    pub id: String,
    pub version: i64,
    pub settings: AgentSettings,
    pub profile: Arc<Profile>,
    /// Of memory that it takes.
    pub bytes: usize,
}

/// Which agents to list.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentFilter {
    /// Archived ones, too.
    pub archived: Option<bool>,
    /// Only those that are disabled, or that are not.
    pub disabled: Option<bool>,
    /// Only those of a project.
    pub project_id: Option<String>,
    /// Part of name or description.
    pub search: Option<String>,
    /// Beside those in no project, only those of these; `None` = all.
    #[serde(skip)]
    #[schema(ignore)]
    pub within: Option<Vec<String>>,
}

/// A page of agents.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentList {
    /// The agents, newest first.
    pub agents: Vec<Agent>,
    /// How many match in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
    /// There are more.
    pub has_more: bool,
}
