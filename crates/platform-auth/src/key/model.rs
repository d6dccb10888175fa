use platform_core::{Checks, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    rules::{KeyRules, split},
    secret::KeySecret,
};

const MAX_LISTED: usize = 100;
/// Bytes of a host with its port, and of the path of an endpoint.
const MAX_DOMAIN: usize = 260;
const MAX_PATH: usize = 512;
const METHODS: [&str; 6] = ["*", "GET", "POST", "PUT", "PATCH", "DELETE"];

/// Reach of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// Everything in the account.
    #[default]
    Full,
    /// What its lists permit.
    Restricted,
}

/// Whether the key speaks for itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum IdentityMode {
    /// The key speaks for itself, and for any tenant and end user.
    #[default]
    Open,
    /// It can only mint sessions, which then speak.
    Signed,
}

/// A prepared list of endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// What a session may reach, and whole tenant usage, memory, tenant integrations and tenant MCP.
    Ui,
}

/// Endpoints that a key may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Endpoint {
    /// `*`, or an HTTP method in upper case.
    pub method: String,
    /// Path without its mount prefix, such as `/assistants/*/messages`; `*` = one segment, a final `**` = the rest.
    pub path: String,
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
    pub allowed_endpoints: Vec<Endpoint>,
    /// Prepared list of endpoints.
    pub preset: Option<Preset>,
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
    pub identity_mode: IdentityMode,
    /// Works until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<Timestamp>,
    /// Switched off.
    pub disabled: bool,
    /// Hosts it may be used from, as `app.example.com`, `*.example.com` or `localhost:3000`; none = any.
    pub allowed_domains: Vec<String>,
    /// Endpoints it may reach; none = any.
    pub allowed_endpoints: Vec<Endpoint>,
    /// Prepared list of endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Private projects whose objects it may reach; `null` = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_ids: Option<Vec<String>>,
}

impl From<ApiKey> for NewApiKey {
    fn from(key: ApiKey) -> Self {
        Self {
            name: key.name,
            identity_mode: key.identity_mode,
            expires_at_ms: key.expires_at_ms,
            disabled: key.disabled,
            allowed_domains: key.allowed_domains,
            allowed_endpoints: key.allowed_endpoints,
            preset: key.preset,
            project_ids: key.project_ids,
        }
    }
}

impl NewApiKey {
    /// Refuses what cannot be; a signed key speaks for nobody, so it needs neither domains nor preset.
    pub fn settle(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        checks.name(&self.name);
        checks.count("allowedDomains", self.allowed_domains.len(), MAX_LISTED);
        for (i, domain) in self.allowed_domains.iter().enumerate() {
            if domain.len() > MAX_DOMAIN || split(domain).is_none() {
                let path = format!("allowedDomains[{i}]");
                let message =
                    format!("{path} must be a host or `*.host`, with `:port` or without, such as *.example.com");
                checks.issue(&path, "format", message);
            }
        }
        checks.count("allowedEndpoints", self.allowed_endpoints.len(), MAX_LISTED);
        for (i, endpoint) in self.allowed_endpoints.iter_mut().enumerate() {
            endpoint.method = endpoint.method.to_ascii_uppercase();
            if !METHODS.contains(&endpoint.method.as_str()) {
                let path = format!("allowedEndpoints[{i}].method");
                checks.issue(&path, "enum", format!("{path} must be one of {}", METHODS.join(", ")));
            }
            if endpoint.path.len() > MAX_PATH || !is_pattern(&endpoint.path) {
                let path = format!("allowedEndpoints[{i}].path");
                let message = format!(
                    "{path} must be a path without /v1, such as /assistants/*/messages; `**` stands only at the end"
                );
                checks.issue(&path, "format", message);
            }
        }
        checks.count("projectIds", self.project_ids.as_ref().map_or(0, Vec::len), MAX_LISTED);
        if self.identity_mode == IdentityMode::Signed {
            self.allowed_domains.clear();
            self.preset = None;
        }
        checks.finish()
    }

    /// What restricts it.
    pub fn rules(&self) -> KeyRules {
        KeyRules::new(self.identity_mode, &self.allowed_domains, &self.allowed_endpoints, self.preset)
    }

    /// It can do everything in the account.
    pub(crate) fn is_unbound(&self) -> bool {
        !self.rules().is_bound() && self.project_ids.is_none()
    }
}

fn is_pattern(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let segments: Vec<&str> = path.split('/').collect();
    let (last, before) = segments.split_last().unwrap_or((&"", &[]));
    let good = |segment: &str| !segment.is_empty() && (segment == "*" || !segment.contains('*'));
    before.iter().all(|segment| good(segment)) && (*last == "**" || good(last)) && !matches!(segments[0], "v1" | "api")
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
