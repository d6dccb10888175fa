use std::collections::BTreeMap;

use platform_core::{Id, Money, Timestamp};
use platform_runtime::Usage;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::config::{Criterion, EvaluationConfig, all_criteria};
use crate::thread::Record;

/// Kind of the runs that judge threads.
pub(super) const KIND: &str = "thread-evaluation";

/// What a run must know to judge.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub thread: String,
    pub criteria: Vec<Criterion>,
    pub model: Option<String>,
}

/// What a thread is to be judged by.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewEvaluation {
    /// The judge, `provider:model` or a model.
    pub evaluator_model: Option<String>,
    /// Criteria instead of the agent's own ones, at most 20.
    pub criteria: Option<Vec<Criterion>>,
}

/// A judgement of a thread.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Evaluation {
    /// Id of the evaluation.
    #[serde(rename = "_id")]
    pub id: String,
    /// Id, as `_id`.
    pub evaluation_id: String,
    /// The thread.
    pub thread_id: String,
    /// Its agent.
    pub agent_id: String,
    /// `pending`, `running`, `completed` or `failed`.
    pub status: String,
    /// `manual` or `auto`.
    pub source: String,
    /// Weighted mean of the criteria, 0 to 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overall_score: Option<f64>,
    /// Score from which a thread passes.
    pub threshold: f64,
    /// Whether it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed: Option<bool>,
    /// Asked for at.
    pub evaluation_timestamp_ms: Timestamp,
    /// The judge.
    pub evaluation_model: String,
    /// What the judge says of the whole.
    pub general_feedback: String,
    /// What it says of each criterion.
    pub criteria: BTreeMap<String, CriterionScore>,
    /// Why there is no judgement.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// What the judge took.
    #[schema(value_type = Object)]
    pub token_usage: Value,
    /// What that cost.
    #[schema(value_type = Object)]
    pub cost: Value,
}

impl Evaluation {
    /// The judge has spoken, or cannot.
    pub fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed")
    }
}

/// The score of one criterion.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CriterionScore {
    /// 0 to 10.
    pub score: f64,
    /// Why the judge gave this score.
    pub reasoning: String,
    /// What was seen.
    pub observations: Vec<String>,
    /// How much it counts.
    pub weight: f64,
}

/// A page of evaluations.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EvaluationList {
    /// The evaluations, newest first.
    pub evaluations: Vec<Evaluation>,
    /// How many there are.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// An evaluation that is to be made.
pub(super) fn begin(
    source: &str,
    record: &Record,
    config: &EvaluationConfig,
    model: Option<&str>,
    criteria: Option<&[Criterion]>,
    now: Timestamp,
) -> Evaluation {
    let id = String::from(Id::<Evaluation>::generate());
    let empty = |criterion: Criterion| {
        (criterion.name, CriterionScore { weight: criterion.weight, ..CriterionScore::default() })
    };
    Evaluation {
        evaluation_id: id.clone(),
        id,
        thread_id: record.id().to_owned(),
        agent_id: record.agent_id().to_owned(),
        status: "pending".to_owned(),
        source: source.to_owned(),
        threshold: config.threshold,
        evaluation_timestamp_ms: now,
        evaluation_model: model.or(config.evaluator_model.as_deref()).unwrap_or_default().to_owned(),
        criteria: all_criteria(config, criteria).into_iter().map(empty).collect(),
        token_usage: usage(&Usage::default(), 0),
        cost: json!({"totalCost": Money::default(), "currency": "USD"}),
        ..Evaluation::default()
    }
}

pub(super) fn usage(usage: &Usage, calls: usize) -> Value {
    let mut value = serde_json::to_value(usage).unwrap_or_default();
    value["calls"] = calls.into();
    value
}
