use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Checks, Code, Error, Id, Page, Result};
use platform_db::Idempotency;
use serde_json::json;
use tokio::sync::broadcast;

use super::{
    begin::store_in,
    config::{all_criteria, check_criteria, judge_model},
    model::{Evaluation, EvaluationList, KIND, NewEvaluation, begin},
    repository,
};
use crate::{
    code,
    thread::{Action, PgThreadService, Thread, Threads},
};

/// So long a client waits at the most for the judge.
const MAX_WAIT: Duration = Duration::from_secs(55);

/// Evaluations of threads.
#[async_trait]
pub trait EvaluationService: Send + Sync {
    /// Judges a thread; waits for the judge unless told not to.
    async fn create(
        &self,
        account: &AccountId,
        thread: &Id<Thread>,
        given: NewEvaluation,
        waits: bool,
        once: Option<&Idempotency>,
    ) -> Result<Evaluation>;
    /// Those of a thread, newest first.
    async fn list(&self, account: &AccountId, thread: &Id<Thread>, page: Page) -> Result<EvaluationList>;
    /// One of them, or the newest.
    async fn get(&self, account: &AccountId, thread: &Id<Thread>, id: Option<&Id<Evaluation>>) -> Result<Evaluation>;
}

/// The service on PostgreSQL; it also carries out the runs that judge.
pub struct PgEvaluationService {
    pub(super) threads: Arc<Threads>,
    /// Ids of those that are made.
    pub(super) made: broadcast::Sender<String>,
}

impl PgEvaluationService {
    /// Needs the threads it judges.
    pub fn new(threads: &PgThreadService) -> Self {
        Self { threads: threads.threads(), made: broadcast::channel(1024).0 }
    }
}

#[async_trait]
impl EvaluationService for PgEvaluationService {
    async fn create(
        &self,
        account: &AccountId,
        thread: &Id<Thread>,
        given: NewEvaluation,
        waits: bool,
        once: Option<&Idempotency>,
    ) -> Result<Evaluation> {
        let threads = &self.threads;
        let mut checks = Checks::default();
        check_criteria(&mut checks, "criteria", given.criteria.as_deref().unwrap_or_default());
        checks.finish()?;
        if let Some(model) = &given.evaluator_model {
            judge_model(&*threads.ports.catalog, model)?;
        }
        let record = self.threads.find(account, thread).await?;
        record.allow(Action::Evaluate)?;
        let agent = threads.agents.ready(account, record.agent_id(), None).await?;
        let config = agent.settings.evaluation()?;
        let now = threads.ports.clock.now();
        let (model, criteria) = (given.evaluator_model.as_deref(), given.criteria.as_deref());
        let evaluation = begin("manual", &record, &config, model, criteria, now);
        if evaluation.criteria.is_empty() {
            let message = "There is nothing to judge by: the default criteria are off and there are no others";
            return Err(Error::invalid("criteria", "required", message));
        }
        let payer = record.payer();
        if let Some(refusal) = threads.ports.budget.spent(&payer).await? {
            return Err(Error::from(&refusal));
        }
        threads.jobs.check_room(account, KIND, "evaluations").await?;
        let mut made = self.made.subscribe();
        let mut conn = threads.ports.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            store_in(conn, account, &evaluation, all_criteria(&config, criteria), now).await?;
            let told = Evaluation { status: "running".to_owned(), ..evaluation.clone() };
            match once {
                Some(once) if !waits => once.store(conn, 202, &json!({"evaluation": told})).await,
                _ => Ok(()),
            }
        })
        .await?;
        drop(conn);
        threads.jobs.announce();
        let running = Evaluation { status: "running".to_owned(), ..evaluation };
        if !waits {
            return Ok(running);
        }
        let ended = async {
            loop {
                // Another process may make it: look from time to time.
                let _ = tokio::time::timeout(Duration::from_millis(500), made.recv()).await;
                let conn = threads.ports.db.read().await?;
                let now = repository::find(conn.get(), account, thread, Some(&running.id)).await?;
                let now = now.ok_or_else(|| not_found(Some(&running.id)))?;
                if now.is_over() {
                    return Ok::<_, Error>(now);
                }
            }
        };
        let Ok(ended) = tokio::time::timeout(MAX_WAIT, ended).await else { return Ok(running) };
        let evaluation = ended?;
        let Some(error) = &evaluation.error else { return Ok(evaluation) };
        let message = error["message"].as_str().unwrap_or("The judge gave no answer.");
        let code = match error["code"].as_str() {
            Some("UPSTREAM_TIMEOUT") => Code::UPSTREAM_TIMEOUT,
            Some("TENANT_LIMIT_EXCEEDED") => {
                if let Some(refusal) = threads.ports.budget.spent(&payer).await? {
                    return Err(Error::from(&refusal));
                }
                Code::UPSTREAM_ERROR
            }
            _ => Code::UPSTREAM_ERROR,
        };
        let failed = Error::new(code, message).with("code", &error["code"]).with("evaluationId", &evaluation.id);
        Err(failed.with_some("provider", error.get("provider")).with_some("status", error.get("status")))
    }

    async fn list(&self, account: &AccountId, thread: &Id<Thread>, page: Page) -> Result<EvaluationList> {
        self.threads.find(account, thread).await?;
        let conn = self.threads.ports.db.fair_conn(account).await?;
        repository::list(&conn, account, thread, page).await
    }

    async fn get(&self, account: &AccountId, thread: &Id<Thread>, id: Option<&Id<Evaluation>>) -> Result<Evaluation> {
        self.threads.find(account, thread).await?;
        let conn = self.threads.ports.db.read().await?;
        let id = id.map(Id::as_str);
        repository::find(conn.get(), account, thread, id).await?.ok_or_else(|| not_found(id))
    }
}

fn not_found(id: Option<&str>) -> Error {
    Error::not_found(code::EVALUATION_NOT_FOUND, "evaluation", id.unwrap_or("newest"))
}
