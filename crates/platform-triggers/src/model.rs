use platform_core::{Checks, Error, Object, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use crate::template::{MAX_TEMPLATE, unknown};

/// Of a filter or a config, in bytes.
const MAX_JSON: usize = 16_384;

/// A trigger to make.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewTrigger {
    /// A tool server that was made from an app.
    pub tool_server_id: Option<String>,
    /// Which of its events.
    pub trigger_slug: Option<String>,
    /// The agent that is started: its id.
    pub agent_id: Option<String>,
    /// The assistant that is written to: its identifier or id. One of both.
    pub assistant_id: Option<String>,
    /// Name, 1 to 200 characters; that of the event type when absent.
    pub name: Option<String>,
    /// What is said, with `{{data.a.b}}` and the like; empty = the event as JSON.
    pub message_template: String,
    /// The chat of an assistant, likewise; empty = a new one for each event.
    pub chat_uid_template: String,
    /// `queued` or `paused`: how threads of agents begin.
    pub new_threads_state: NewThreadsState,
    /// Starts in a minute, 1 to 600.
    pub rate_limit_per_minute: i32,
    /// Events start something.
    pub enabled: bool,
    /// What the event type wants to be told.
    #[schema(value_type = Object)]
    pub trigger_config: Object,
    /// Every leaf must be in the payload.
    #[schema(value_type = Option<Object>)]
    pub filter: Option<Object>,
    /// Whose what is started is.
    pub tenant_id: Option<String>,
    /// End user within the tenant.
    pub subtenant_id: Option<String>,
    /// Project it belongs to.
    pub project_id: Option<String>,
}

impl Default for NewTrigger {
    fn default() -> Self {
        let TriggerPatch {
            name,
            message_template,
            chat_uid_template,
            new_threads_state,
            rate_limit_per_minute,
            enabled,
            trigger_config,
            filter,
        } = TriggerPatch::default();
        Self {
            tool_server_id: None,
            trigger_slug: None,
            agent_id: None,
            assistant_id: None,
            name,
            message_template,
            chat_uid_template,
            new_threads_state,
            rate_limit_per_minute,
            enabled,
            trigger_config,
            filter,
            tenant_id: None,
            subtenant_id: None,
            project_id: None,
        }
    }
}

/// What can be changed of a trigger.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TriggerPatch {
    /// Name, 1 to 200 characters; that of the event type when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
    /// What is said, with `{{data.a.b}}` and the like; empty = the event as JSON.
    pub message_template: String,
    /// The chat of an assistant, likewise; empty = a new one for each event.
    pub chat_uid_template: String,
    /// `queued` or `paused`: how threads of agents begin.
    pub new_threads_state: NewThreadsState,
    /// Starts in a minute, 1 to 600.
    pub rate_limit_per_minute: i32,
    /// Events start something.
    pub enabled: bool,
    /// What the event type wants to be told.
    #[schema(value_type = Object)]
    pub trigger_config: Object,
    /// Every leaf must be in the payload.
    #[schema(value_type = Option<Object>)]
    pub filter: Option<Object>,
}

impl Default for TriggerPatch {
    fn default() -> Self {
        Self {
            name: None,
            message_template: String::new(),
            chat_uid_template: String::new(),
            new_threads_state: NewThreadsState::Queued,
            rate_limit_per_minute: 60,
            enabled: true,
            trigger_config: Object::new(),
            filter: None,
        }
    }
}

/// How threads of a trigger begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NewThreadsState {
    /// They are worked.
    Queued,
    /// They wait for somebody.
    Paused,
}

impl NewThreadsState {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Paused => "paused",
        }
    }
}

impl TriggerPatch {
    /// Every rule that needs no look at the app.
    pub(crate) fn check(&self, checks: &mut Checks) {
        if let Some(name) = &self.name {
            checks.length("name", name.trim(), 1..=200);
        }
        checks.range("rateLimitPerMinute", self.rate_limit_per_minute, &(1..=600));
        for (path, template) in
            [("messageTemplate", &self.message_template), ("chatUidTemplate", &self.chat_uid_template)]
        {
            checks.bytes(path, template.len(), MAX_TEMPLATE);
            if let Some(name) = unknown(template) {
                let shown: String = name.chars().take(64).collect();
                let message = format!(
                    "{path}: `{{{{{shown}}}}}` stands for nothing; there are data.…, trigger.name, event.id, event.receivedAt"
                );
                checks.issue(path, "format", message);
            }
        }
        let size = |object: &Object| serde_json::to_string(object).map_or(0, |text| text.len());
        checks.bytes("triggerConfig", size(&self.trigger_config), MAX_JSON);
        checks.bytes("filter", self.filter.as_ref().map_or(0, size), MAX_JSON);
    }
}

/// How a trigger stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriggerState {
    /// Events start something.
    Active,
    /// Somebody switched it off.
    Disabled,
    /// It paused by itself.
    AutoPaused,
}

impl TriggerState {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Disabled => "disabled",
            Self::AutoPaused => "auto_paused",
        }
    }

    pub(crate) fn of(text: &str) -> Self {
        match text {
            "active" => Self::Active,
            "auto_paused" => Self::AutoPaused,
            _ => Self::Disabled,
        }
    }
}

/// What a trigger starts.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = TriggerTarget)]
pub struct Target {
    /// Id of the agent or assistant.
    pub id: String,
    /// Its name; empty when it is gone.
    pub name: String,
}

/// A trigger (contract 09 §1).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    /// Id.
    pub id: String,
    /// Id, as `id`.
    #[serde(rename = "_id")]
    pub same_id: String,
    /// Name.
    pub name: String,
    /// Slug of the app.
    pub app: String,
    /// Slug of the event type.
    pub trigger_slug: String,
    /// The tool server that was made from the app.
    pub tool_server_id: String,
    /// `agent` or `assistant`.
    pub target_type: String,
    /// What it starts.
    pub target: Target,
    /// Its id.
    pub target_id: String,
    /// Nobody switched it off.
    pub enabled: bool,
    /// How it stands.
    pub state: TriggerState,
    /// How threads of agents begin.
    pub new_threads_state: String,
    /// Starts in a minute.
    pub rate_limit_per_minute: i32,
    /// What is said.
    pub message_template: String,
    /// The chat of an assistant.
    pub chat_uid_template: String,
    /// What the event type was told.
    #[schema(value_type = Object)]
    pub trigger_config: Value,
    /// Every leaf must be in the payload.
    #[schema(value_type = Option<Object>)]
    pub filter: Option<Value>,
    /// Tenant of what it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// End user of what it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// Project it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Events that started something.
    pub event_count: i64,
    /// When the last of them came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event_at: Option<i64>,
    /// When it paused by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_paused_at: Option<i64>,
    /// Why: `RATE_LIMIT`, `ERRORS` or `CONNECTION`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_pause_reason: Option<String>,
    /// Of an app that is polled: why the last poll failed, `{code, message, at}`; absent when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub last_error: Option<Value>,
    /// Where the app is to call, when it is told by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
}

/// Which triggers to list.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TriggerFilter {
    /// Only of this tool server.
    pub tool_server_id: Option<String>,
    /// Only those that start this agent; with an assistant, those of either.
    pub agent_id: Option<String>,
    /// Only those that write to this assistant: its identifier or id.
    pub assistant_id: Option<String>,
    /// Beside those in no project, only those of these; `None` = all.
    #[serde(skip)]
    #[schema(ignore)]
    pub within: Option<Vec<String>>,
}

/// A page of triggers.
#[derive(Debug, Serialize, ToSchema)]
pub struct TriggerPage {
    /// The triggers, newest first.
    pub items: Vec<Trigger>,
    /// How many there are.
    pub total: i64,
    /// Where the page begins.
    pub offset: i64,
    /// How many it may hold.
    pub limit: i64,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum DeliveryOutcome {
    Executed,
    Duplicate,
    RateLimited,
    Disabled,
    Filtered,
    Error,
}

impl DeliveryOutcome {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Duplicate => "duplicate",
            Self::RateLimited => "rate_limited",
            Self::Disabled => "disabled",
            Self::Filtered => "filtered",
            Self::Error => "error",
        }
    }
}

/// Why an event started nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TriggerDeliveryError)]
pub struct DeliveryError {
    /// A stable code.
    pub code: String,
    /// What to do about it.
    pub message: String,
}

impl DeliveryError {
    pub(crate) fn of(error: &Error) -> Self {
        Self { code: error.code().as_str().to_owned(), message: error.message().to_owned() }
    }
}

/// An event that came to a trigger.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TriggerDelivery)]
pub struct Delivery {
    /// Id of the delivery.
    pub id: String,
    /// The app's id of the event, or the hash of its payload.
    pub event_id: String,
    /// When it came.
    pub received_at: i64,
    /// What became of it; absent while it is carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The thread that it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// The chat that it wrote to.
    #[serde(rename = "chatUID", skip_serializing_if = "Option::is_none")]
    pub chat_uid: Option<String>,
    /// From its arrival to its outcome, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// Why it started nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeliveryError>)]
    pub error: Option<Value>,
    /// From 1; a replay is one more.
    pub attempt: i32,
    /// What it carried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub payload: Option<Box<RawValue>>,
}

/// Which deliveries to list.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = TriggerDeliveryFilter)]
pub struct DeliveryFilter {
    /// Only those of which this became.
    pub outcome: Option<DeliveryOutcome>,
    /// Only those that came then or later, in milliseconds.
    pub since: Option<i64>,
    /// With what they carried.
    pub include_payload: Option<bool>,
}

/// A page of deliveries.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TriggerDeliveryPage)]
pub struct DeliveryPage {
    /// The deliveries, newest first.
    pub items: Vec<Delivery>,
    /// How many there are.
    pub total: i64,
    /// Where the page begins.
    pub offset: i64,
    /// How many it may hold.
    pub limit: i64,
}

/// A test of a trigger.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewTest {
    /// What the event carries; made up when absent.
    pub payload: Option<Value>,
}

impl NewTrigger {
    /// What can be changed of it later.
    pub(crate) fn patch(&self) -> TriggerPatch {
        TriggerPatch {
            name: self.name.clone(),
            message_template: self.message_template.clone(),
            chat_uid_template: self.chat_uid_template.clone(),
            new_threads_state: self.new_threads_state,
            rate_limit_per_minute: self.rate_limit_per_minute,
            enabled: self.enabled,
            trigger_config: self.trigger_config.clone(),
            filter: self.filter.clone(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        for (path, value, what) in [
            ("toolServerId", &self.tool_server_id, "a tool server that was made from an app"),
            ("triggerSlug", &self.trigger_slug, "an event type of its app"),
        ] {
            if value.as_deref().is_none_or(str::is_empty) {
                checks.issue(path, "required", format!("{path} is required: {what}"));
            }
        }
        match (&self.agent_id, &self.assistant_id) {
            (None, None) => checks.issue("agentId", "required", "agentId or assistantId is required: what is started"),
            (Some(_), Some(_)) => checks.issue("agentId", "conflict", "give agentId or assistantId, not both"),
            _ => {}
        }
        self.patch().check(&mut checks);
        checks.tenants(self.tenant_id.as_deref(), self.subtenant_id.as_deref());
        if self.subtenant_id.is_some() && self.tenant_id.is_none() {
            checks.issue("tenantId", "required", "tenantId is required with subtenantId");
        }
        checks.finish()
    }
}
