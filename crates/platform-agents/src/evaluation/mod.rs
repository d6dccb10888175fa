//! Judging threads with a model (contract 03 §7).

mod begin;
mod config;
mod judge;
mod model;
mod repository;
mod service;

pub(crate) use begin::begin_evaluation_in;
pub use config::{Criterion, EvaluationConfig};
pub(crate) use config::{check_evaluation, default_judge};
pub use model::{CriterionScore, Evaluation, EvaluationList, NewEvaluation};
pub use service::{EvaluationService, PgEvaluationService};
