use platform_core::{Checks, Code, Error, Object, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::code;

const DEFAULT_TTL: f64 = 3600.0;
const MIN_TTL: f64 = 60.0;
const MAX_TTL: f64 = 43_200.0;
const MAX_ASSISTANTS: usize = 50;

/// A session to mint (contract 01 §4).
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewSession {
    /// Tenant of everything the session does.
    pub tenant_id: Option<String>,
    /// End user within the tenant; none = any.
    pub subtenant_id: Option<String>,
    /// Seconds it lasts, brought within 60 to 43200; 3600 when not given.
    #[schema(value_type = Option<f64>)]
    pub ttl_seconds: Option<Value>,
    /// Assistants it is limited to, by identifier or `_id`, at most 50.
    pub assistant_ids: Option<Vec<String>>,
    /// `tenantMetadata` and `subtenantMetadata`: what is noted of the tenant and its end user.
    pub metadata: Object,
}

impl NewSession {
    /// The tenant, once everything that is given was looked at.
    pub fn tenant(&self) -> Result<&str> {
        self.check().map(|(tenant, _)| tenant)
    }

    /// The tenant and the lifetime in seconds.
    pub fn check(&self) -> Result<(&str, i64)> {
        let tenant = self.tenant_id.as_deref().filter(|tenant| !tenant.is_empty());
        let tenant = tenant.ok_or_else(tenant_required)?;
        let ttl = match &self.ttl_seconds {
            None => DEFAULT_TTL,
            Some(given) => given
                .as_f64()
                .ok_or_else(|| Error::new(code::INVALID_TTL, "ttlSeconds must be a number of seconds, 60 to 43200."))?,
        };
        let mut checks = Checks::default();
        checks.tenants(Some(tenant), self.subtenant_id.as_deref());
        if let Some(assistants) = &self.assistant_ids {
            checks.count("assistantIds", assistants.len(), MAX_ASSISTANTS);
        }
        checks.metadata("metadata", &self.metadata);
        checks.finish()?;
        #[expect(clippy::cast_possible_truncation, reason = "it was brought within a small range")]
        Ok((tenant, ttl.clamp(MIN_TTL, MAX_TTL) as i64))
    }
}

/// The 400 of a request that must name a tenant.
pub(crate) fn tenant_required() -> Error {
    Error::new(Code::TENANT_ID_REQUIRED, "tenantId is required: say whose session it is.")
}

/// A session with its token, shown once.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MintedSession {
    /// The credential of the session.
    pub token: String,
    /// Always `tenant-session`.
    pub token_type: &'static str,
    /// Id of the session.
    pub session_id: String,
    /// Its tenant.
    pub tenant_id: String,
    /// Its end user; `null` = any.
    pub subtenant_id: Option<String>,
    /// Seconds until its end.
    pub expires_in: i64,
    /// Its end.
    pub expires_at: Timestamp,
}

/// A session as it is listed; never its token.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantSession {
    /// Id of the session.
    pub session_id: String,
    /// Its tenant.
    pub tenant_id: String,
    /// Its end user; `null` = any.
    pub subtenant_id: Option<String>,
    /// The key that minted it.
    pub api_key_id: String,
    /// Assistants it is limited to; `null` = none in particular.
    pub assistant_ids: Option<Vec<String>>,
    /// Minted at.
    pub creation_timestamp_ms: Timestamp,
    /// Its end.
    pub expires_at: Timestamp,
    /// Revoked at; `null` = not.
    pub revoked_timestamp_ms: Option<Timestamp>,
}

/// A page of sessions.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SessionPage {
    /// The sessions, newest first.
    pub items: Vec<TenantSession>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// Which sessions.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionFilter {
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// Of this end user.
    pub subtenant_id: Option<String>,
    /// Only those that work (the default), or with `false` all.
    pub active: Option<bool>,
}
