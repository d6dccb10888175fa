use async_trait::async_trait;
use platform_conversation::{Texts, kept_history};
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::Db;
use platform_realtime::{Head, Source};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::thread::{
    change::state::ThreadState,
    model::{PendingApproval, Task},
    record::{Record, key},
    repository::revision,
    row::{ThreadRow, by_id},
};

/// What watchers of a thread see, without what is being written (contract 03 §6).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RealtimeThread<'a> {
    thread_id: &'a str,
    #[serde(rename = "_id")]
    id: &'a str,
    agent_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    state: ThreadState,
    chat_history: Vec<Box<RawValue>>,
    tasks: &'a [Task],
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_approval: Option<&'a PendingApproval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
}

/// Reads the committed state of one thread.
pub(crate) struct ThreadSource {
    pub db: Db,
    pub account: AccountId,
    pub id: String,
    /// Largest frame; 0 = no bound.
    pub frame_bytes: usize,
}

#[async_trait]
impl Source for ThreadSource {
    async fn revision(&self) -> Result<Option<i64>> {
        let conn = self.db.read().await?;
        revision(conn.get(), &self.account, &self.id).await
    }

    async fn head(&self) -> Result<Option<Head>> {
        use diesel::{OptionalExtension, QueryDsl, SelectableHelper};
        use diesel_async::RunQueryDsl;
        let conn = self.db.read().await?;
        let key = key(&self.id);
        let content = Texts::shown(&self.account, &key);
        let found: Option<(ThreadRow, Vec<Option<String>>)> = by_id(self.account.as_str(), &self.id)
            .select((ThreadRow::as_select(), content))
            .first(&mut conn.get())
            .await
            .optional()?;
        let Some((row, bodies)) = found else { return Ok(None) };
        let record = Record::read(row)?;
        let pause = record.facts.pause.clone().unwrap_or_default();
        let mut state = RealtimeThread {
            thread_id: &self.id,
            id: &self.id,
            agent_id: record.agent_id(),
            name: record.name(),
            state: record.state,
            chat_history: Vec::new(),
            tasks: &record.facts.tasks,
            pending_approval: record.facts.approval.as_ref(),
            finish_reason: record.finish_reason.as_deref(),
            paused_reason: record.paused_reason(),
            paused_until: pause.until,
            pause_until: pause.until,
            truncated: Some(true),
        };
        let brief = Head::new(0, Timestamp(0), false, &state).map_err(Error::internal)?;
        let bodies = bodies.into_iter().flatten().collect();
        let (history, truncated) = kept_history(bodies, self.frame_bytes, brief.open_object.len());
        (state.chat_history, state.truncated) = (history, truncated.then_some(true));
        let terminal = record.state.is_terminal();
        let head = Head::new(record.revision, record.edited(), terminal, &state).map_err(Error::internal)?;
        Ok(Some(head.bounded(self.frame_bytes, brief.open_object)))
    }
}
