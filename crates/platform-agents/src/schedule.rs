//! Threads that start by themselves (contract 03 §2, periodic execution).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{Error, Result, Timestamp};
use platform_jobs::{Run, When, Work, end, end_in, enqueue_in, is_held_in};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    agent::{SCHEDULE, hold_agent, note_run, schedule},
    code,
    thread::{Source, ThreadSpec, Threads},
};

/// Starts threads at their times; a time that was missed is made up for once.
pub(crate) struct Schedules(pub Arc<Threads>);

#[async_trait]
impl Work for Schedules {
    fn kind(&self) -> &'static str {
        SCHEDULE
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let threads = &self.0;
        let account = run.account();
        let agent = match threads.agents.live(&account, &run.subject).await {
            Ok(agent) => agent,
            Err(error) if error.code() == code::AGENT_NOT_FOUND => {
                return end(&threads.ports.db, run).await;
            }
            Err(error) => return Err(error),
        };
        let periodic = &agent.settings.periodic_execution;
        let now = threads.ports.clock.now();
        let order = ThreadSpec {
            trigger: Some(json!({"type": "cron"})),
            ..ThreadSpec::of(Source::Cron, format!("cron:{}", agent.id), periodic.message.clone().unwrap_or_default())
        };
        // A thread that cannot even be made must not keep those after it.
        let start = match threads.prepare(&account, &agent, order).await {
            Ok(start) => Some(start),
            Err(error) => {
                tracing::warn!(agent = agent.id, %error, "A scheduled thread could not be started.");
                None
            }
        };
        // Clocks of processes differ: a time that was served is never the next.
        let at = run.payload.get("at").and_then(serde_json::Value::as_i64).map_or(now, |at| now.max(Timestamp(at)));
        let next = schedule::next(periodic, at).filter(|_| periodic.enabled);
        let mut start = start;
        let mut conn = threads.ports.db.conn().await?;
        let told = conn
            .transaction::<_, Error, _>(async |conn| {
                // An agent comes before its runs, whoever takes both.
                if !hold_agent(conn, &account, &agent.id).await? {
                    return end_in(conn, run).await.map(|()| None);
                }
                // Who holds the lease starts it; the end of this run and the start of the thread are one.
                if !is_held_in(conn, run).await? {
                    return Ok(None);
                }
                end_in(conn, run).await?;
                if let Some(next) = next {
                    let when = When::ByClock(next.since(now));
                    enqueue_in(conn, &account, SCHEDULE, &agent.id, json!({"at": next}), when).await?;
                }
                note_run(conn, &account, &agent.id, now).await?;
                match &mut start {
                    Some(start) if periodic.enabled => threads.start_in(conn, start).await.map(Some),
                    _ => Ok(None),
                }
            })
            .await?;
        drop(conn);
        if let Some(told) = told {
            threads.tell(&told).await?;
        }
        if let Some(delay) = next.map(|next: Timestamp| next.since(now)).filter(|delay| *delay < Duration::from_mins(2))
        {
            threads.jobs.announce_after(delay);
        }
        Ok(())
    }
}
