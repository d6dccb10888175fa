mod config;
mod judge;
mod model;
mod repository;
mod service;

pub use config::{Criterion, EvaluationConfig};
pub(crate) use config::{all_criteria, check_evaluation};
pub(crate) use model::begin;
pub use model::{CriterionScore, Evaluation, EvaluationList, NewEvaluation};
pub(crate) use repository::insert_in;
pub use service::{EvaluationService, PgEvaluationService};
