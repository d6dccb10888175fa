//! How the threads of an agent are judged (contract 03 §7).

use platform_conversation::AssistantSettings;
use platform_core::{Checks, Code, Error, Result};
use platform_runtime::{Catalog, ModelSpec, Operation};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const MAX_CRITERIA: usize = 20;

/// What threads are judged by, unless their agent says otherwise.
const DEFAULT: [(&str, &str); 5] = [
    ("instructionFollowing", "The agent did what it was asked to do, within its instructions."),
    ("taskPlanning", "It planned its work sensibly, in steps that lead to the goal."),
    ("taskExecution", "It carried the steps out correctly and completely."),
    ("toolUsageEffectiveness", "It called the right tools with the right arguments, and no more than needed."),
    ("executionFinalization", "It ended properly, with a result that can be used."),
];

/// How threads are judged (contract 03 §7).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EvaluationConfig {
    /// The judge, `provider:model` or a model; absent = the server's.
    #[serde(alias = "evaluationModel", skip_serializing_if = "Option::is_none")]
    pub evaluator_model: Option<String>,
    /// Threads are judged by themselves when they have completed or failed.
    #[serde(alias = "autoEvaluate")]
    pub enabled: bool,
    /// Overall score from which a thread passes, 0 to 10.
    pub threshold: f64,
    /// Criteria of your own, at most 20.
    pub custom_criteria: Vec<Criterion>,
    /// Judge by those alone.
    pub disable_default_evaluation: bool,
}

impl Default for EvaluationConfig {
    fn default() -> Self {
        Self {
            evaluator_model: None,
            enabled: false,
            threshold: 7.0,
            custom_criteria: Vec::new(),
            disable_default_evaluation: false,
        }
    }
}

/// What a thread is judged by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Criterion {
    /// Name.
    pub name: String,
    /// What it means.
    pub description: String,
    /// How much it counts.
    #[serde(default = "one")]
    #[schema(default = one)]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

/// Every rule on how threads are judged.
pub(crate) fn check_evaluation(config: &EvaluationConfig, catalog: &dyn Catalog) -> Result<()> {
    let mut checks = Checks::default();
    checks.range("threshold", config.threshold, &(0.0..=10.0));
    check_criteria(&mut checks, "customCriteria", &config.custom_criteria);
    checks.finish()?;
    if let Some(name) = &config.evaluator_model {
        judge_model(catalog, name)?;
    }
    Ok(())
}

pub(super) fn check_criteria(checks: &mut Checks, path: &str, criteria: &[Criterion]) {
    checks.count(path, criteria.len(), MAX_CRITERIA);
    let mut names = std::collections::HashSet::new();
    for (i, criterion) in criteria.iter().enumerate() {
        checks.length(&format!("{path}[{i}].name"), &criterion.name, 1..=64);
        checks.length(&format!("{path}[{i}].description"), &criterion.description, 1..=4000);
        if !(criterion.weight.is_finite() && criterion.weight > 0.0 && criterion.weight <= 1e6) {
            checks.issue(&format!("{path}[{i}].weight"), "range", "weight must be a number above 0");
        }
        if !names.insert(&criterion.name) {
            checks.issue(&format!("{path}[{i}].name"), "unique", "two criteria have this name");
        }
    }
}

/// The model of a judge, `provider:model` or a model alone; `MODEL_NOT_SUPPORTED` when there is none such.
pub(super) fn judge_model(catalog: &dyn Catalog, name: &str) -> Result<ModelSpec> {
    let alone = catalog.choose(None, Some(name));
    let spec = match name.split_once(':') {
        Some((provider, llm)) => alone.or_else(|_| catalog.choose(Some(provider), Some(llm))),
        None => alone,
    };
    spec.map_err(|error| {
        let message = format!("There is no model `{name}` to judge with; give `provider:model` or a model.");
        let missing = Error::new(Code::MODEL_NOT_SUPPORTED, message).with("model", name);
        let missing = missing.with_some("provider", error.details().get("provider"));
        missing.with_some("available", error.details().get("available"))
    })
}

/// The judge where nobody names one: that of the server, else the agent's own model.
pub(crate) fn default_judge(settings: &AssistantSettings, catalog: &dyn Catalog) -> Result<ModelSpec> {
    let own = settings.choose(catalog, None, None)?;
    Ok(catalog.helper(Operation::Evaluation, &own))
}

/// The default criteria and the custom ones.
pub(super) fn all_criteria(config: &EvaluationConfig, instead: Option<&[Criterion]>) -> Vec<Criterion> {
    let default = DEFAULT.iter().map(|(name, description)| Criterion {
        name: (*name).to_owned(),
        description: (*description).to_owned(),
        weight: 1.0,
    });
    let custom = instead.unwrap_or(&config.custom_criteria);
    let mut all: Vec<Criterion> = default
        .filter(|of| !config.disable_default_evaluation && custom.iter().all(|own| own.name != of.name))
        .collect();
    all.extend(custom.iter().cloned());
    all
}
