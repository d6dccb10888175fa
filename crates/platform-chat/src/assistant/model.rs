use std::sync::Arc;

use platform_conversation::{AssistantSettings, Profile};
use platform_core::{AccountId, Caller, Error, Result, Timestamp};
use platform_runtime::{ChildPool, ToolGroup};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Identifier of the built-in assistant, which every account has.
pub const DEFAULT_ASSISTANT: &str = "default";

/// An assistant as it is sent (contract 02 §1).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Assistant {
    /// Name in URLs.
    pub identifier: String,
    /// Id of the record.
    #[serde(rename = "_id")]
    pub id: String,
    /// Made at, ISO 8601.
    pub created_at: String,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// `false` only for the built-in one.
    pub is_custom: bool,
    /// Tools of its groups.
    pub available_tools_groups: Vec<ToolGroup>,
    /// Documents it knows, by name.
    #[schema(value_type = Vec<Object>)]
    pub memory_documents: Vec<Value>,
    /// How many integrations tenants have.
    #[schema(value_type = Object)]
    pub tenant_integrations: Value,
    /// How many MCP servers tenants have.
    #[schema(value_type = Object)]
    pub tenant_mcp_servers: Value,
    /// What the client set; `presets` only when asked for.
    #[serde(flatten)]
    #[schema(value_type = AssistantSettings)]
    pub settings: Value,
    /// For `ETag`.
    #[serde(skip)]
    pub version: i64,
    #[serde(skip)]
    pub(crate) profile: Arc<Profile>,
}

impl Assistant {
    pub(crate) fn new(
        id: String,
        identifier: String,
        typed: AssistantSettings,
        version: i64,
        created: Timestamp,
        edited: Timestamp,
    ) -> Result<Self> {
        let mut settings = serde_json::to_value(&typed).map_err(Error::internal)?;
        if let Value::Object(fields) = &mut settings {
            fields.remove("identifier");
            fields.remove("presets");
        }
        let enabled = |enabled: bool| json!({"enabled": enabled, "count": 0});
        Ok(Self {
            identifier,
            id,
            created_at: created.to_iso(),
            creation_timestamp_ms: created,
            last_edit_timestamp_ms: edited,
            is_custom: true,
            available_tools_groups: Vec::new(),
            memory_documents: Vec::new(),
            tenant_integrations: enabled(typed.tenant_integrations_config.enabled),
            tenant_mcp_servers: enabled(typed.tenant_mcp_config.enabled),
            settings,
            version,
            profile: Arc::new(Profile::new(typed)),
        })
    }

    /// Ready for turns.
    pub(crate) fn ready(self, children: &Arc<ChildPool>, account: &AccountId) -> Self {
        let profile = Arc::new(Profile::ready(self.profile.settings.clone(), children, account));
        Self { profile, ..self }
    }

    /// The assistant every account has.
    pub(crate) fn built_in() -> Self {
        let mut settings = AssistantSettings::named("Default assistant");
        "Answers with the server's default model.".clone_into(&mut settings.description);
        let released = Timestamp(1_767_225_600_000);
        let assistant = Self::new(DEFAULT_ASSISTANT.into(), DEFAULT_ASSISTANT.into(), settings, 1, released, released);
        Self { is_custom: false, ..assistant.expect("the defaults serialise") }
    }

    /// With its system prompt, for who may see it.
    #[must_use]
    pub fn with_presets(mut self) -> Self {
        let presets = self.settings().presets.clone();
        if let (true, Value::Object(fields)) = (self.is_custom, &mut self.settings) {
            fields.insert("presets".to_owned(), Value::String(presets));
        }
        self
    }

    /// Whether it exists for a caller: sessions know what is open to them, users, and what follows from them, what is of their
    /// role.
    pub fn is_known_to(&self, caller: &Caller) -> bool {
        let access = &self.settings().access_configuration;
        let is_shown = |role| access.visibility_by_role.iter().any(|of| of == role);
        (access.external_access || caller.session().is_none())
            && (access.visibility_by_role.is_empty() || caller.role().is_none_or(is_shown))
    }

    /// Whether a caller who knows it may use it: sessions may be limited to some.
    pub fn is_open_to(&self, caller: &Caller) -> bool {
        let is_this = |name: &String| *name == self.id || *name == self.identifier;
        let listed = caller.session().and_then(|session| session.assistants.as_ref());
        listed.is_none_or(|listed| listed.iter().any(is_this))
    }

    /// What the client set.
    pub fn settings(&self) -> &AssistantSettings {
        &self.profile.settings
    }
}

/// Which assistants to list.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AssistantFilter {
    /// Only those visible to tenant sessions.
    pub external: Option<bool>,
    /// Only those of a project.
    pub project_id: Option<String>,
    /// Part of name, description or identifier.
    pub search: Option<String>,
    /// Beside those in no project, only those of these; `None` = all.
    #[serde(skip)]
    #[schema(ignore)]
    pub within: Option<Vec<String>>,
}

impl AssistantFilter {
    pub(crate) fn keeps(&self, assistant: &Assistant) -> bool {
        let settings = assistant.settings();
        let external = self.external != Some(true) || settings.access_configuration.external_access;
        let project = self.project_id.is_none() || self.project_id == settings.project_id;
        let within = settings.project_id.as_ref().zip(self.within.as_ref());
        let is_within = within.is_none_or(|(project, within)| within.contains(project));
        let found = self.search.as_ref().is_none_or(|search| {
            let search = search.to_lowercase();
            [&settings.name, &settings.description, &assistant.identifier]
                .iter()
                .any(|text| text.to_lowercase().contains(&search))
        });
        external && project && is_within && found
    }
}
