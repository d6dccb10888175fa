//! Stores the steps of a turn with its thread.

use std::sync::Arc;

use async_trait::async_trait;
use diesel::prelude::*;
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_conversation::{
    Compaction, Conversation, ConversationStore, Step, StepResult, TurnStore, add_compaction, add_secondary,
    has_compactions, insert_messages,
};
use platform_core::{Error, Result};
use platform_db::Conn;
use platform_jobs::{Run, step_in};
use platform_runtime::{Flow, SecondaryCall};
use platform_tenants::settle_in;

use crate::thread::{
    change::act::hold_in,
    record::{Record, key},
    row::by_id,
    threads::Threads,
    turn::steps::{hand_offs, note_step, pause_now},
};
use crate::{costs, schema::threads};

pub(crate) struct ThreadTurnStore {
    pub threads: Arc<Threads>,
    pub run: Run,
    /// Version of the agent that the turn works with.
    pub version: i64,
    pub agent_id: String,
}

impl ThreadTurnStore {
    /// Whether the turn goes on after a step: not when it is to be paused, or when more was said meanwhile.
    async fn flow_in(&self, conn: &mut Conn, record: &mut Record, step: &Step) -> Result<Flow> {
        let asked = step.model.is_some();
        if !(asked || step.is_settled) {
            return Ok(Flow::GoOn);
        }
        let pauses = record.facts.pause.as_ref().is_some_and(|pause| pause.requested);
        if pauses && (asked || record.open.is_empty()) {
            pause_now(record, self.threads.ports.clock.now())?;
            return Ok(Flow::Halt);
        }
        let more = record.open.is_empty()
            && !ConversationStore::of(&record.account, &key(record.id())).queued(conn).await?.is_empty();
        Ok(if more { Flow::Halt } else { Flow::GoOn })
    }
}

#[async_trait]
impl TurnStore for ThreadTurnStore {
    async fn step(&self, conversation: &Conversation, step: Step) -> Result<StepResult> {
        let threads = &self.threads;
        let now = threads.ports.clock.now();
        let mut conn = threads.ports.db.conn().await?;
        let storing = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut record) = hold_in(conn, &self.run).await? else { return Ok(None) };
            let key = key(record.id());
            let of = ConversationStore::of(&conversation.account, &key);
            let rows: Vec<_> = step.messages.iter().map(|row| (of, row)).collect();
            insert_messages(conn, &rows).await?;
            note_step(&mut record, rows.len(), &conversation.usage, self.version);
            record.open.clone_from(&step.open);
            hand_offs(&mut record);
            if let Some(model) = &step.model {
                record.provider = Some(model.provider.to_string());
                record.llm = Some(model.llm.to_string());
            }
            record.facts.turn.attempt = 1;
            step_in(conn, &self.run).await?;
            let flow = self.flow_in(conn, &mut record, &step).await?;
            let told = threads.commit_in(conn, &mut record, Some(&self.run), step.revision, now).await?;
            settle_in(conn, &step.took).await?;
            Ok(Some((flow, told)))
        });
        let Some((flow, told)) = storing.await? else { return Ok(StepResult::Lost) };
        drop(conn);
        let revision = told.revision;
        if flow == Flow::Halt {
            threads.tell(&told).await?;
        }
        Ok(StepResult::At(revision, flow))
    }

    async fn charge(&self, asked: &[SecondaryCall]) -> Result<()> {
        self.threads.charge(&self.run.account(), &self.agent_id, &self.run.subject, asked).await
    }

    async fn compacted(&self, known: usize, compaction: &Compaction) -> Result<bool> {
        let account = self.run.account();
        let thread = by_id(account.as_str(), &self.run.subject).filter(has_compactions(known));
        let kept = diesel::update(thread).set(threads::compactions.eq(add_compaction(compaction)?));
        Ok(kept.execute(&mut *self.threads.ports.db.conn().await?).await? == 1)
    }
}

impl Threads {
    /// Adds secondary calls to what a thread and its agent took.
    pub async fn charge(
        &self,
        account: &platform_core::AccountId,
        agent: &str,
        thread: &str,
        asked: &[SecondaryCall],
    ) -> Result<()> {
        if asked.is_empty() {
            return Ok(());
        }
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| charge_in(conn, account, agent, thread, asked, now).await).await
    }
}

/// Adds secondary calls in the transaction that stores what they gave.
pub(crate) async fn charge_in(
    conn: &mut Conn,
    account: &platform_core::AccountId,
    agent: &str,
    thread: &str,
    asked: &[SecondaryCall],
    now: platform_core::Timestamp,
) -> Result<()> {
    let cost = asked.iter().map(|call| call.cost.total_cost.nanos()).sum();
    let thread = by_id(account.as_str(), thread);
    diesel::update(thread).set(threads::secondary.eq(add_secondary(asked))).execute(conn).await?;
    costs::add_secondary_in(conn, account, agent, cost, now).await
}
