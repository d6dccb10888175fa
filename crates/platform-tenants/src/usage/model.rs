use platform_core::{Error, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value, json};
use utoipa::ToSchema;

use crate::{
    code,
    rule::{Effective, Metric, Rule, Scope, WindowUnit},
};

/// More is a mistake.
const MAX_ADDED: f64 = 1e15;
const MAX_REASON: usize = 1000;

/// How a rule stands now.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageEntry {
    /// The rule.
    pub rule_id: String,
    /// Whose use counts.
    pub scope: Scope,
    /// The end user whose use counts; `null` = the whole tenant.
    pub subtenant_id: Option<String>,
    /// What counts.
    pub metric: Metric,
    /// Unit of the window.
    pub window_unit: WindowUnit,
    /// So many units.
    pub window_every: i32,
    /// Tokens or US dollars.
    #[schema(value_type = f64)]
    pub limit: Number,
    /// What was taken, without what is reserved.
    #[schema(value_type = f64)]
    pub current: Value,
    /// Of the limit, at most 100.
    pub percent: f64,
    /// When the window ends.
    pub resets_at: Timestamp,
    /// `tier` or `adhoc`.
    pub origin: &'static str,
    /// The tier it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier_id: Option<String>,
    /// The part that was added from outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub external_consumption: Option<Value>,
}

impl UsageEntry {
    pub(crate) fn new(found: &Effective, consumed: i64, external: i64, resets_at: Timestamp) -> Self {
        let Effective { rule, tier, subtenant } = found;
        Self {
            rule_id: rule.rule_id.clone(),
            scope: rule.scope,
            subtenant_id: Some(subtenant.clone()).filter(|subtenant| !subtenant.is_empty()),
            metric: rule.metric,
            window_unit: rule.window_unit,
            window_every: rule.window_every,
            limit: rule.limit.clone(),
            current: rule.metric.shown(consumed),
            percent: percent(consumed, rule.most()).min(100.0),
            resets_at,
            origin: origin(tier.as_ref()),
            tier_id: tier.clone(),
            external_consumption: (external > 0).then(|| rule.metric.shown(external)),
        }
    }
}

pub(crate) fn origin(tier: Option<&String>) -> &'static str {
    if tier.is_some() { "tier" } else { "adhoc" }
}

/// With two decimals.
#[expect(clippy::cast_precision_loss, reason = "a percentage")]
pub(crate) fn percent(consumed: i64, most: i64) -> f64 {
    (10_000.0 * consumed as f64 / most.max(1) as f64).round() / 100.0
}

/// How the rules of a tenant or end user stand now.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TenantUsage)]
pub struct Usage {
    /// The tenant.
    pub tenant_id: String,
    /// The end user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// The tier that holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier_id: Option<String>,
    /// Each rule.
    pub usage: Vec<UsageEntry>,
}

/// Rules of a tenant.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Limits {
    /// Those of the tenant alone.
    pub rules: Vec<Rule>,
    /// All that hold, each with `origin` and `tierId`.
    #[schema(value_type = Vec<Object>)]
    pub effective: Vec<Value>,
}

/// Rules of a tenant alone.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewLimits {
    /// They replace those there are; required.
    #[schema(required = true)]
    pub rules: Option<Vec<Rule>>,
}

/// A rule that holds, with its origin.
pub(crate) fn shown(rule: &Rule, tier: Option<&String>) -> Result<Value> {
    let mut shown = serde_json::to_value(rule).map_err(Error::internal)?;
    shown["origin"] = origin(tier).into();
    if let Some(tier) = tier {
        shown["tierId"] = tier.clone().into();
    }
    Ok(shown)
}

/// Usage from outside (specification, add usage to a tenant).
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct NewUsage {
    /// Tokens, rounded to a whole number.
    #[schema(value_type = Option<f64>)]
    pub tokens: Option<Value>,
    /// US dollars.
    #[schema(value_type = Option<f64>)]
    pub cost: Option<Value>,
    /// Where it comes from, `^[a-z0-9_-]{1,40}$`; `external` when not given.
    #[schema(value_type = Option<String>)]
    pub source: Option<Value>,
    /// Why, at most 1000 characters; for the audit only.
    pub reason: Option<String>,
}

/// Usage that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Amounts {
    pub tokens: i64,
    pub cost: f64,
    pub source: String,
}

impl NewUsage {
    pub(crate) fn check(&self) -> Result<Amounts> {
        let bad = |message: &str| Error::new(code::INVALID_USAGE_AMOUNT, message);
        let amount = |name: &str, given: &Option<Value>| match given {
            None | Some(Value::Null) => Ok(0.0),
            Some(value) => value
                .as_f64()
                .filter(|amount| (0.0..=MAX_ADDED).contains(amount))
                .ok_or_else(|| bad(&format!("{name} must be a number of 0 to 1e15."))),
        };
        // As both are stored: whole tokens, and nano-dollars (contract 00 §2.5).
        let tokens = (amount("tokens", &self.tokens)? + 0.5).floor();
        let cost = (amount("cost", &self.cost)? * 1e9).round_ties_even() / 1e9;
        if tokens <= 0.0 && cost <= 0.0 {
            return Err(bad("At least one of tokens and cost must be above 0."));
        }
        let good = |text: &str| {
            let named = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
            (1..=40).contains(&text.len()) && text.bytes().all(named)
        };
        let source = match &self.source {
            None | Some(Value::Null) => "external",
            Some(Value::String(text)) if good(text) => text,
            Some(_) => {
                let message = "source must be 1 to 40 of a-z, 0-9, _ and -.";
                return Err(Error::new(code::INVALID_USAGE_SOURCE, message));
            }
        };
        check_reason(self.reason.as_deref())?;
        Ok(Amounts { tokens: Metric::Tokens.counted(tokens), cost, source: source.to_owned() })
    }
}

/// Refuses a reason that is a text of its own.
pub(crate) fn check_reason(reason: Option<&str>) -> Result<()> {
    let mut checks = platform_core::Checks::default();
    checks.length("reason", reason.unwrap_or_default(), 0..=MAX_REASON);
    checks.finish()
}

/// What was added.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddedUsage {
    /// The tenant.
    pub tenant_id: String,
    /// The end user, when it was added to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// Where it comes from.
    pub source: String,
    /// `{tokens, cost, countedTowardLimits}`.
    #[schema(value_type = Object)]
    pub applied: Value,
    /// How the rules stand now.
    pub usage: Vec<UsageEntry>,
}

impl Amounts {
    pub(crate) fn applied(&self, counted: bool) -> Value {
        // A whole number is shown as one.
        let cost = if self.cost.fract() == 0.0 { json!(Metric::Tokens.counted(self.cost)) } else { json!(self.cost) };
        json!({"tokens": self.tokens, "cost": cost, "countedTowardLimits": counted})
    }
}

/// Which counters begin anew.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reset {
    /// Only these; absent = both.
    pub metric: Option<Metric>,
    /// Only windows of this unit; absent = all.
    pub window_unit: Option<WindowUnit>,
    /// Why; for the audit only.
    pub reason: Option<String>,
}

/// What began anew.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResetDone {
    /// Always `true`.
    pub success: bool,
    /// Counters that held something.
    pub cleared: usize,
    /// How the rules stand now.
    pub usage: Vec<UsageEntry>,
}

/// Another tier.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TierChange {
    /// The tier; `null` = none.
    pub tier_id: Option<String>,
    /// Why; for the audit only.
    pub reason: Option<String>,
    /// The windows of now begin anew.
    pub reset_usage: bool,
}

/// The tier as it is now.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TierChanged {
    /// The tenant.
    pub tenant_id: String,
    /// The end user, when it is their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// The tier; `null` = none.
    pub tier_id: Option<String>,
    /// The one before.
    pub previous_tier_id: Option<String>,
    /// How the rules stand now.
    pub usage: Vec<UsageEntry>,
}

/// Which windows of the past.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HistoryFilter {
    /// Only this metric.
    pub metric: Option<Metric>,
    /// Only windows of this unit.
    pub window_unit: Option<WindowUnit>,
    /// Only rows of the tenant, or of its end users.
    pub scope: Option<Scope>,
    /// Only this end user.
    pub subtenant_id: Option<String>,
    /// Windows that end at or after, epoch milliseconds.
    pub from: Option<i64>,
    /// Windows that begin at or before.
    pub to: Option<i64>,
}

/// A window that has ended (specification, tenant usage history row).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryRow {
    /// The tenant.
    pub tenant_id: String,
    /// The end user; empty on rows of the tenant.
    pub subtenant_id: String,
    /// Whose use counted.
    pub scope: Scope,
    /// What counted.
    pub metric: String,
    /// Unit of the window.
    pub window_unit: String,
    /// So many units.
    pub window_every: i32,
    /// Its first moment.
    pub window_start: Timestamp,
    /// The first moment after it.
    pub window_end: Timestamp,
    /// What counted toward the limit.
    #[schema(value_type = f64)]
    pub consumption: Value,
    /// What exempt assistants and agents took.
    #[schema(value_type = f64)]
    pub exempt_consumption: Value,
    /// The part that was added from outside.
    #[schema(value_type = f64)]
    pub external_consumption: Value,
    /// The limit at the end.
    #[schema(value_type = f64)]
    pub limit: Value,
    /// Of the limit; may be above 100.
    pub percent: f64,
    /// The tier the rule came from; empty when it came from none.
    pub tier_id: String,
    /// `tier` or `adhoc`.
    pub origin: &'static str,
    /// The account.
    #[serde(rename = "clientUID")]
    pub client_uid: String,
    /// Number of the window since 1970.
    pub window_key: String,
    /// When it was written down.
    pub captured_at: Timestamp,
}
