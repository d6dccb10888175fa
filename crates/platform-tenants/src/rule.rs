//! Tiers and their rules (contract 10 §2).

use platform_core::{Checks, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value, json};
use utoipa::ToSchema;

const MAX_RULES: usize = 50;
const MAX_WINDOW: i32 = 366;
/// More than that is no limit: it still fits into the counters.
const MOST: f64 = 9e18;

/// Whose use a rule counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum Scope {
    #[default]
    Tenant,
    Subtenant,
}

/// What a rule counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Prompt and answer tokens.
    #[default]
    Tokens,
    /// US dollars.
    Cost,
}

/// How long a window is, with `windowEvery`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum WindowUnit {
    #[default]
    Hour,
    Day,
    Week,
    Month,
}

impl Metric {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Cost => "cost",
        }
    }

    pub(crate) fn of(name: &str) -> Self {
        if name == "cost" { Self::Cost } else { Self::Tokens }
    }

    /// An amount as it is counted, tokens or nano-dollars, from the one on the wire.
    pub(crate) fn counted(self, amount: f64) -> i64 {
        let amount = if self == Self::Cost { amount * 1e9 } else { amount };
        #[expect(clippy::cast_possible_truncation, reason = "it was brought into range")]
        let counted = amount.round().clamp(0.0, MOST) as i64;
        counted
    }

    /// The amount on the wire.
    pub(crate) fn shown(self, counted: i64) -> Value {
        match self {
            Self::Tokens => json!(counted),
            Self::Cost => json!(platform_core::Money::from_nanos(counted)),
        }
    }
}

impl WindowUnit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

/// How much a tenant or each of its end users may take in a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Id of the rule; made when it is not given.
    #[serde(default)]
    pub rule_id: String,
    /// Whose use counts.
    pub scope: Scope,
    /// Instead of the rule for each end user, for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtenant_id: Option<String>,
    /// What counts.
    pub metric: Metric,
    /// Unit of the window.
    pub window_unit: WindowUnit,
    /// So many units, 1 to 366.
    #[serde(default = "one")]
    #[schema(default = one)]
    pub window_every: i32,
    /// Tokens or US dollars, above 0.
    #[schema(value_type = f64)]
    pub limit: Number,
    /// Switched on.
    #[serde(default = "yes")]
    #[schema(default = yes)]
    pub enabled: bool,
}

fn one() -> i32 {
    1
}

fn yes() -> bool {
    true
}

impl Rule {
    /// The limit as it is counted.
    pub(crate) fn most(&self) -> i64 {
        self.metric.counted(self.limit.as_f64().unwrap_or(0.0)).max(1)
    }

    /// They count the same, in the same windows.
    fn counts_as(&self, other: &Self) -> bool {
        let what = |rule: &Self| (rule.scope, rule.metric, rule.window_unit, rule.window_every);
        what(self) == what(other)
    }

    /// As a rule of the tenant alone, it counts instead of this one of a tier, for everybody whom that one is for.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        let whoever = self.subtenant_id.is_none() || self.subtenant_id == other.subtenant_id;
        self.enabled && whoever && self.counts_as(other)
    }
}

/// Rules that fit together, each with an id.
pub(crate) fn check_rules(checks: &mut Checks, rules: &mut [Rule]) {
    checks.count("rules", rules.len(), MAX_RULES);
    for i in 0..rules.len() {
        let path = |field: &str| format!("rules[{i}].{field}");
        let rule = &rules[i];
        checks.range(&path("windowEvery"), rule.window_every, &(1..=MAX_WINDOW));
        if !rule.limit.as_f64().is_some_and(|limit| limit > 0.0 && limit <= 1e15) {
            checks.issue(&path("limit"), "range", format!("{} must be above 0 and at most 1e15", path("limit")));
        }
        if rule.subtenant_id.is_some() && rule.scope == Scope::Tenant {
            let message = format!("{} goes with scope subtenant only", path("subtenantId"));
            checks.issue(&path("subtenantId"), "conflict", message);
        }
        checks.tenants(None, rule.subtenant_id.as_deref());
        checks.length(&path("ruleId"), &rule.rule_id, 0..=64);
        if let Some(twin) =
            rules[..i].iter().position(|other| other.counts_as(rule) && other.subtenant_id == rule.subtenant_id)
        {
            let message = format!("rules[{i}] counts the same as rules[{twin}]: change its scope, metric or window");
            checks.issue(&format!("rules[{i}]"), "unique", message);
        }
    }
    enum RuleKind {}
    for rule in rules.iter_mut().filter(|rule| rule.rule_id.is_empty()) {
        rule.rule_id = platform_core::Id::<RuleKind>::generate().into();
    }
}

/// A plan: rules that many tenants share.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tier {
    /// Name in references.
    pub tier_id: String,
    /// Name for people.
    pub name: String,
    /// What it is.
    pub description: String,
    /// What it permits.
    pub rules: Vec<Rule>,
    /// Assistants whose use is not counted, by identifier or `_id`.
    pub excluded_assistants: Vec<String>,
    /// Agents whose use is not counted.
    pub excluded_agents: Vec<String>,
    /// It holds for every tenant without a tier.
    pub is_default: bool,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
    /// For `ETag`.
    #[serde(skip)]
    pub version: i64,
}

/// A tier to make, or what one becomes.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewTier {
    /// Name in references, `^[a-z0-9][a-z0-9_-]{0,63}$`.
    pub tier_id: String,
    /// Name for people, 1 to 200 characters.
    pub name: String,
    /// What it is.
    pub description: String,
    /// What it permits.
    pub rules: Vec<Rule>,
    /// Assistants whose use is not counted, by identifier or `_id`.
    pub excluded_assistants: Vec<String>,
    /// Agents whose use is not counted.
    pub excluded_agents: Vec<String>,
    /// It holds for every tenant without a tier; it takes the mark from another.
    pub is_default: bool,
}

impl NewTier {
    pub(crate) fn check(&mut self) -> Result<()> {
        let mut checks = Checks::default();
        let bytes = self.tier_id.as_bytes();
        let good = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if bytes.is_empty() {
            checks.issue("tierId", "required", "tierId is required");
        } else if bytes.len() > 64 || !good(&bytes[0]) || !bytes.iter().all(|b| good(b) || matches!(b, b'_' | b'-')) {
            checks.issue("tierId", "format", "tierId must be 1 to 64 of a-z, 0-9, _ and -, not beginning with _ or -");
        }
        checks.name(&self.name);
        checks.length("description", &self.description, 0..=4000);
        checks.names("excludedAssistants", &self.excluded_assistants, 1000);
        checks.names("excludedAgents", &self.excluded_agents, 1000);
        check_rules(&mut checks, &mut self.rules);
        checks.finish()
    }
}

/// A rule that holds for a call, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Effective {
    pub rule: Rule,
    /// The tier; `None` = a rule of the tenant alone.
    pub tier: Option<String>,
    /// End user whose use counts; empty = the whole tenant.
    pub subtenant: String,
}

impl Effective {
    /// The rule as it is named in a refusal.
    pub(crate) fn named(&self) -> Value {
        let rule = &self.rule;
        let mut named = json!({"scope": rule.scope, "metric": rule.metric, "windowUnit": rule.window_unit,
            "windowEvery": rule.window_every, "limit": rule.limit});
        if !self.subtenant.is_empty() {
            named["subtenantId"] = self.subtenant.clone().into();
        }
        named
    }
}

/// The rules that hold for a tenant, or for one of its end users: those of the tier, in which the end user's own tier
/// replaces those for end users, and the tenant's own rules instead of those that count the same.
pub(crate) fn effective(
    tier: Option<&(String, Vec<Rule>)>,
    own_tier: Option<&(String, Vec<Rule>)>,
    own: &[Rule],
    subtenant: Option<&str>,
) -> Vec<Effective> {
    let of_tenant = tier.into_iter().flat_map(|(id, rules)| {
        let counted = rules.iter().filter(|rule| rule.scope == Scope::Tenant || own_tier.is_none());
        counted.map(move |rule| (rule, Some(id)))
    });
    let of_own_tier = own_tier.into_iter().flat_map(|(id, rules)| {
        rules.iter().filter(|rule| rule.scope == Scope::Subtenant).map(move |rule| (rule, Some(id)))
    });
    let from_tiers: Vec<_> = precise(of_tenant.chain(of_own_tier), subtenant);
    let from_tenant = precise(own.iter().map(|rule| (rule, None)), subtenant);
    let replaced = |rule: &Rule| from_tenant.iter().any(|(own, _)| own.counts_as(rule));
    let kept = from_tiers.into_iter().filter(|(rule, _)| !replaced(rule)).collect::<Vec<_>>();
    let all = kept.into_iter().chain(from_tenant.clone());
    let counted_for = |rule: &Rule| match rule.scope {
        Scope::Tenant => String::new(),
        Scope::Subtenant => subtenant.unwrap_or_default().to_owned(),
    };
    all.map(|(rule, tier)| Effective { rule: rule.clone(), tier: tier.cloned(), subtenant: counted_for(rule) })
        .collect()
}

/// Of the rules that are on, those for this end user; one that names them counts instead of the one for each.
fn precise<'a>(
    rules: impl Iterator<Item = (&'a Rule, Option<&'a String>)>,
    subtenant: Option<&str>,
) -> Vec<(&'a Rule, Option<&'a String>)> {
    let applies = |rule: &Rule| match (rule.scope, &rule.subtenant_id) {
        (Scope::Tenant, _) => true,
        (Scope::Subtenant, None) => subtenant.is_some(),
        (Scope::Subtenant, Some(named)) => subtenant == Some(named),
    };
    let rules: Vec<_> = rules.filter(|(rule, _)| rule.enabled && applies(rule)).collect();
    let outdone = |rule: &Rule| {
        rule.subtenant_id.is_none()
            && rules.iter().any(|(other, _)| other.subtenant_id.is_some() && other.counts_as(rule))
    };
    rules.iter().filter(|(rule, _)| !outdone(rule)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(given: Value) -> Vec<Rule> {
        serde_json::from_value(given).expect("rules")
    }

    #[test]
    fn the_most_particular_rule_counts() {
        let tier = (
            "pro".to_owned(),
            rules(json!([
                {"scope": "tenant", "metric": "tokens", "windowUnit": "month", "limit": 1000},
                {"scope": "subtenant", "metric": "tokens", "windowUnit": "day", "limit": 10},
                {"scope": "subtenant", "subtenantId": "vip", "metric": "tokens", "windowUnit": "day", "limit": 99},
                {"scope": "tenant", "metric": "cost", "windowUnit": "day", "limit": 0.5, "enabled": false},
            ])),
        );
        let limits = |own_tier: Option<&(String, Vec<Rule>)>, own: &[Rule], subtenant: Option<&str>| {
            effective(Some(&tier), own_tier, own, subtenant)
                .into_iter()
                .map(|found| (found.rule.most(), found.tier, found.subtenant))
                .collect::<Vec<_>>()
        };
        let pro = || Some("pro".to_owned());
        assert_eq!(limits(None, &[], None), [(1000, pro(), String::new())]);
        assert_eq!(limits(None, &[], Some("u"))[1], (10, pro(), "u".to_owned()));
        assert_eq!(limits(None, &[], Some("vip"))[1], (99, pro(), "vip".to_owned()));
        assert_eq!(limits(None, &[], Some("vip")).len(), 2);
        let gold = (
            "gold".to_owned(),
            rules(json!([
                {"scope": "subtenant", "metric": "tokens", "windowUnit": "hour", "limit": 7},
                {"scope": "tenant", "metric": "tokens", "windowUnit": "hour", "limit": 8},
            ])),
        );
        let of_gold = limits(Some(&gold), &[], Some("u"));
        assert_eq!(of_gold, [(1000, pro(), String::new()), (7, Some("gold".to_owned()), "u".to_owned())]);
        let own = rules(json!([{"scope": "tenant", "metric": "tokens", "windowUnit": "month", "limit": 5}]));
        assert_eq!(limits(None, &own, None), [(5, None, String::new())]);
        let tiny = rules(json!([{"scope": "tenant", "metric": "cost", "windowUnit": "day", "limit": 0.5}]));
        assert_eq!(limits(None, &tiny, None)[1].0, 500_000_000, "in nano-dollars");
    }
}
