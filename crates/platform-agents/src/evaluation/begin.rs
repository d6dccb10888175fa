//! Evaluations that begin: stored with the run that makes them.

use std::time::Duration;

use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::Conn;
use platform_jobs::{When, enqueue_in};

use super::{
    config::{Criterion, EvaluationConfig, all_criteria},
    model::{Evaluation, KIND, Task, begin},
    repository,
};
use crate::thread::Record;

/// Has a thread that has ended judged as its agent says.
pub(crate) async fn begin_evaluation_in(
    conn: &mut Conn,
    record: &Record,
    config: &EvaluationConfig,
    now: Timestamp,
) -> Result<()> {
    let evaluation = begin("auto", record, config, None, None, now);
    store_in(conn, &record.account, &evaluation, all_criteria(config, None), now).await
}

/// Stores an evaluation and the run that makes it.
pub(super) async fn store_in(
    conn: &mut Conn,
    account: &AccountId,
    evaluation: &Evaluation,
    criteria: Vec<Criterion>,
    now: Timestamp,
) -> Result<()> {
    repository::insert(conn, account, evaluation, now).await?;
    let model = Some(evaluation.evaluation_model.clone()).filter(|model| !model.is_empty());
    let task = Task { thread: evaluation.thread_id.clone(), criteria, model };
    let payload = serde_json::to_value(task).map_err(Error::internal)?;
    enqueue_in(conn, account, KIND, &evaluation.id, payload, When::After(Duration::ZERO)).await?;
    Ok(())
}
