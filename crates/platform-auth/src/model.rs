use platform_core::{AccountId, Checks, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::KeySecret;

/// An account (workspace); everything else belongs to one.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountRecord {
    /// Id of the account.
    #[serde(rename = "clientUID")]
    #[schema(value_type = String)]
    pub id: AccountId,
    /// Unique name.
    pub name: String,
}

/// Reach of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// Everything in the account.
    #[default]
    Full,
}

/// Whether the key speaks for itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum IdentityMode {
    /// It does.
    #[default]
    Open,
}

/// An API key as it is shown (contract 01 §3); never its value.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Id of the key.
    #[serde(rename = "_id")]
    pub id: String,
    /// Given name.
    pub name: String,
    /// Reach.
    pub kind: KeyKind,
    /// Whether the key speaks for itself.
    pub identity_mode: IdentityMode,
    /// First part of the value.
    pub prefix: String,
    /// Last characters of the value.
    pub last4: String,
    /// Hosts it may be used from; none = any.
    pub allowed_domains: Vec<String>,
    /// Endpoints it may reach; none = any.
    pub allowed_endpoints: Vec<String>,
    /// Prepared list of endpoints.
    pub preset: Option<String>,
    /// Projects it may see; `null` = all.
    pub project_ids: Option<Vec<String>>,
    /// Switched off.
    pub disabled: bool,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// Last used at, to the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_timestamp_ms: Option<Timestamp>,
    /// Works until then; `null` = for ever.
    pub expires_at_ms: Option<Timestamp>,
    /// Who made it.
    #[serde(rename = "createdByUserUID")]
    pub created_by: String,
}

/// A key with its value, shown once.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ApiKeyWithSecret {
    /// The key.
    #[serde(flatten)]
    pub record: ApiKey,
    /// Its value, `<prefix>-<43 base62>`.
    pub key: String,
}

impl ApiKeyWithSecret {
    pub(crate) fn new(record: ApiKey, secret: &KeySecret) -> Self {
        Self { record, key: secret.expose().to_owned() }
    }
}

/// A page of keys.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ApiKeyPage {
    /// The keys, newest first.
    pub items: Vec<ApiKey>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// What a client says of a key.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewApiKey {
    /// Name, 1 to 200 characters.
    pub name: String,
    /// Whether the key speaks for itself.
    #[serde(deserialize_with = "platform_core::any_case")]
    pub identity_mode: IdentityMode,
    /// Works until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<Timestamp>,
    /// Switched off.
    pub disabled: bool,
    /// Hosts it may be used from: not offered by this server yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_domains: Option<Vec<String>>,
    /// Endpoints it may reach: not offered by this server yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub allowed_endpoints: Option<Vec<serde_json::Value>>,
    /// Prepared list of endpoints: not offered by this server yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Projects it may see: not offered by this server yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_ids: Option<Vec<String>>,
}

impl NewApiKey {
    pub(crate) fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        if self.name.is_empty() {
            checks.issue("name", "required", "name is required: 1 to 200 characters");
        } else {
            checks.length("name", &self.name, 1..=200);
        }
        // A key must never be wider than it was asked to be.
        let narrower = [
            ("allowedDomains", self.allowed_domains.as_ref().is_some_and(|list| !list.is_empty())),
            ("allowedEndpoints", self.allowed_endpoints.as_ref().is_some_and(|list| !list.is_empty())),
            ("preset", self.preset.is_some()),
            ("projectIds", self.project_ids.is_some()),
        ];
        for (field, given) in narrower {
            if given {
                checks.issue(field, "unknown", format!("{field}: this server makes full keys only; leave it out"));
            }
        }
        checks.finish()
    }
}

/// How a key is rotated.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rotation {
    /// The old value works for so many seconds more, 0 to 86400.
    pub grace_seconds: i64,
}

impl Rotation {
    pub(crate) fn check(self) -> Result<()> {
        let mut checks = Checks::default();
        checks.range("graceSeconds", self.grace_seconds, &(0..=86_400));
        checks.finish()
    }
}
