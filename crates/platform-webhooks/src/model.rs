use platform_core::{Checks, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::catalog::{ALL, EVENTS};

/// What a client sets of a webhook (contract 17).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookSettings {
    /// Where events go, `http(s)://`.
    pub url: String,
    /// Names of events, or `*` for all; at least one.
    pub events: Vec<String>,
    /// Events are sent.
    pub enabled: bool,
    /// Description, at most 1000 characters.
    pub description: String,
    /// Only events of this project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Only events of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// With what was said.
    pub include_content: bool,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self {
            url: String::new(),
            events: Vec::new(),
            enabled: true,
            description: String::new(),
            project_id: None,
            tenant_id: None,
            include_content: false,
        }
    }
}

/// Names of events of one webhook.
const MAX_EVENTS: usize = 100;

impl WebhookSettings {
    /// Every rule but those of the address; each event is named once.
    pub(crate) fn check(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        if self.url.trim().is_empty() {
            checks.issue("url", "required", "url is required: where events are sent");
        }
        checks.bytes("url", self.url.len(), 2048);
        if self.events.is_empty() {
            checks.issue("events", "required", "events is required: names of events, or `*` for all");
        }
        checks.count("events", self.events.len(), MAX_EVENTS);
        for (i, event) in self.events.iter_mut().enumerate().take(MAX_EVENTS) {
            event.make_ascii_lowercase();
            if event != ALL && !EVENTS.contains(&event.as_str()) {
                let shown: String = event.chars().take(64).collect();
                let message = format!("`{shown}` is no event; there are {} and *", EVENTS.join(", "));
                checks.issue(&format!("events[{i}]"), "enum", message);
            }
        }
        checks.length("description", &self.description, 0..=4000);
        checks.tenants(self.tenant_id.as_deref(), None);
        checks.finish()?;
        self.events.sort();
        self.events.dedup();
        Ok(())
    }
}

/// A webhook (contract 17).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Id.
    #[serde(rename = "_id")]
    pub id: String,
    /// What the client set.
    #[serde(flatten)]
    pub settings: WebhookSettings,
    /// Why it was disabled, when it was not the client who did so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
}

/// A webhook with its secret, which is shown this once.
#[derive(Clone, Serialize, ToSchema)]
pub struct WebhookWithSecret {
    /// The webhook.
    #[serde(flatten)]
    pub webhook: Webhook,
    /// `whsec_` and 32 bytes in base64.
    pub secret: String,
}

/// A page of webhooks.
#[derive(Debug, Serialize, ToSchema)]
pub struct WebhookPage {
    /// The webhooks, newest first.
    pub items: Vec<Webhook>,
    /// How many there are.
    pub total: i64,
    /// Where the page begins.
    pub offset: i64,
    /// How many it may hold.
    pub limit: i64,
}

/// How a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryStatus {
    /// It is tried, or will be.
    Pending,
    /// It was taken.
    Succeeded,
    /// Its attempts are over.
    Failed,
}

impl DeliveryStatus {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// An event on its way to a webhook.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WebhookDelivery)]
pub struct Delivery {
    /// Id.
    pub id: String,
    /// The event, sent as `webhook-id`: the same in all attempts.
    pub event_id: String,
    /// Its name.
    pub event_type: String,
    /// How it stands.
    pub status: DeliveryStatus,
    /// What became of each attempt, oldest first.
    pub attempts: Vec<DeliveryAttempt>,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_ms: Option<i64>,
}

/// One attempt of a delivery.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryAttempt {
    /// When it was made.
    pub timestamp_ms: Timestamp,
    /// HTTP status of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// How long it took, in milliseconds.
    pub duration_ms: i64,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A page of deliveries.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WebhookDeliveryPage)]
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

/// Which deliveries to list.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = WebhookDeliveryFilter)]
pub struct DeliveryFilter {
    /// Only those that stand so.
    pub status: Option<DeliveryStatus>,
}

/// A test of a webhook.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TestDelivery {
    /// The event that is made up; `webhook.test` when absent.
    pub event_type: Option<String>,
}

/// Whether there is a secret for events of single threads and agents.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DefaultSecret {
    /// It was made.
    pub configured: bool,
    /// Its last four characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last4: Option<String>,
}

/// A new secret for events of single threads and agents, shown this once.
#[derive(Serialize, ToSchema)]
pub struct NewDefaultSecret {
    /// `whsec_` and 32 bytes in base64.
    pub secret: String,
}
