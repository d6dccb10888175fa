//! Parts of what an assistant is (contract 02 §1).

use platform_core::Checks;
use platform_runtime::{MemoryBucket, Payer, Spender, TenantAppOffer, TurnMemory};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const MAX_APPS: usize = 100;
const MAX_NAMES: usize = 200;
const MAX_SERVERS: u32 = 1000;

/// A model to fall back to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FallbackModel {
    /// Provider.
    pub provider: String,
    /// Model.
    #[serde(alias = "llm")]
    pub model: String,
}

/// What of older turns the model gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContextManagement {
    /// Turns given in full; 0 = all.
    pub full_context_turn_depth: u32,
    /// User messages of older turns are kept whole.
    pub always_include_user_messages: bool,
}

/// How long a model that reasons may do so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum ReasoningEffort {
    Low,
    Medium,
    High,
}

impl ReasoningEffort {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Whether passages of what is attached come with a turn before its model is asked (contract 06 §4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KnowledgeRecall {
    /// They do.
    pub enabled: bool,
    /// Passages, 1 to 20.
    pub limit: u32,
    /// Tokens of them together, 100 to 16,000.
    pub max_tokens: u32,
}

impl Default for KnowledgeRecall {
    fn default() -> Self {
        Self { enabled: false, limit: 5, max_tokens: 2000 }
    }
}

/// A skill of the assistant (contract 14).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct KnowledgeSkill {
    /// Id of the document or folder.
    pub id: String,
    /// `document` or `folder`.
    #[serde(default, deserialize_with = "platform_core::lower_case")]
    pub r#type: String,
    /// Whether the assistant has it.
    #[serde(default = "yes")]
    #[schema(default = yes)]
    pub enabled: bool,
    /// It is in the prompt from the start.
    #[serde(default)]
    pub preload_content: bool,
}

fn yes() -> bool {
    true
}

/// Whether and for whom the assistant keeps core memory (contract 11).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CoreMemory {
    /// Whether the assistant has a memory.
    pub enabled: bool,
    /// Who shares one memory: an end user or a tenant.
    pub scope: MemoryScope,
    /// What was said in earlier chats is looked up when a chat begins.
    pub recall: bool,
}

impl CoreMemory {
    /// What is remembered of a tenant or one of its end users.
    pub fn bucket(&self, assistant: &str, tenant: &str, subtenant: Option<&str>) -> MemoryBucket {
        MemoryBucket {
            assistant_id: assistant.to_owned(),
            tenant_id: tenant.to_owned(),
            subtenant_id: subtenant.filter(|_| self.scope == MemoryScope::Subtenant).map(str::to_owned),
            is_of_end_user: self.scope == MemoryScope::Subtenant,
        }
    }

    /// The memory of a turn: of assistants, whose chats belong to a tenant.
    pub fn of(&self, payer: &Payer) -> Option<TurnMemory> {
        let (Spender::Assistant { id, .. }, Some(tenant)) = (&payer.spender, &payer.tenant_id) else { return None };
        let bucket = self.bucket(id, tenant, payer.subtenant_id.as_deref());
        self.enabled.then_some(TurnMemory { bucket, recall: self.recall })
    }
}

/// Whose core memory it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemoryScope {
    /// Each tenant's.
    #[default]
    Tenant,
    /// Each end user's.
    Subtenant,
}

/// Apps that tenants connect (contract 10 §6).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantIntegrationsConfig {
    /// Whether they may.
    pub enabled: bool,
    /// Who may connect.
    pub identity_mode: ConnectionMode,
    /// Which apps, at most 100.
    pub apps: Vec<TenantApp>,
}

/// Who connects apps of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionMode {
    /// Keys and sessions.
    #[default]
    Open,
    /// Sessions alone.
    Signed,
}

/// An app that tenants may connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantApp {
    /// Its slug.
    pub app: String,
    /// Tools of it; none = all.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Events of it that may start something.
    #[serde(default)]
    pub triggers: Vec<String>,
}

impl TenantIntegrationsConfig {
    /// The apps, as turns offer them.
    pub fn offers(&self) -> impl Iterator<Item = TenantAppOffer> {
        self.apps.iter().map(|of| TenantAppOffer { app: of.app.clone(), tools: of.tools.clone() })
    }

    pub(crate) fn check(&self, checks: &mut Checks) {
        let path = "tenantIntegrationsConfig.apps";
        checks.count(path, self.apps.len(), MAX_APPS);
        for (i, app) in self.apps.iter().enumerate() {
            let at = |field: &str| format!("{path}[{i}].{field}");
            checks.length(&at("app"), &app.app, 1..=200);
            for (field, names) in [("tools", &app.tools), ("triggers", &app.triggers)] {
                checks.count(&at(field), names.len(), MAX_NAMES);
                for name in names {
                    checks.length(&at(field), name, 1..=200);
                }
            }
        }
    }
}

/// MCP servers that tenants bring (contract 10 §7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantMcpConfig {
    /// Whether they may.
    pub enabled: bool,
    /// Servers of a tenant, at most 1000.
    pub max_servers: u32,
    /// Tools of each, at most 1000.
    pub max_tools_per_server: u32,
}

impl Default for TenantMcpConfig {
    fn default() -> Self {
        Self { enabled: false, max_servers: 10, max_tools_per_server: 64 }
    }
}

impl TenantMcpConfig {
    pub(crate) fn check(&self, checks: &mut Checks) {
        for (field, most) in [("maxServers", self.max_servers), ("maxToolsPerServer", self.max_tools_per_server)] {
            checks.range(&format!("tenantMcpConfig.{field}"), most, &(0..=MAX_SERVERS));
        }
    }
}

/// Who may see an assistant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessConfiguration {
    /// Visible to tenant sessions.
    pub external_access: bool,
    /// Hidden from OAuth users of other roles, when not empty.
    pub visibility_by_role: Vec<String>,
}
