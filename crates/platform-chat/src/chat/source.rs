use std::collections::HashSet;

use async_trait::async_trait;
use platform_conversation::{Stored, kept_history};
use platform_core::{AccountId, Error, Object, Result, Timestamp};
use platform_db::Db;
use platform_realtime::{Head, Source};
use platform_runtime::{CallState, OpenCall, Role, ToolCall};
use serde::Serialize;
use serde_json::{Value, value::RawValue};

use super::{
    model::StatusError,
    repository::{self, ChatRow, LIMIT_EXCEEDED, Status},
};
use crate::turn::pending;

/// The realtime object without what is being written (contract 02 §6).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RealtimeChatHistory<'a> {
    #[serde(rename = "chatUID")]
    chat_uid: &'a str,
    #[serde(rename = "clientUID")]
    client_uid: &'a str,
    status: &'a str,
    chat_history: &'a [Box<RawValue>],
    queued_messages: i32,
    pending_user_messages: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pending_tool_calls: Vec<PendingToolCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handed_off_sub_thread_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<StatusError>,
    /// The quota that is spent: `{message, blockingRule, current, limit, resetsAt}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_exceeded: Option<Value>,
    /// What was recalled in the last turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    recalled_memories: Vec<Object>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
}

/// A call that waits for the client.
#[derive(Serialize)]
struct PendingToolCall<'a> {
    #[serde(flatten)]
    call: &'a ToolCall,
    /// `client`: it runs it; `approval`: it decides whether the server does.
    kind: &'static str,
}

impl<'a> PendingToolCall<'a> {
    fn of(open: &'a OpenCall) -> Option<Self> {
        let kind = match open.state {
            CallState::Client => "client",
            CallState::Approval => "approval",
            _ => return None,
        };
        Some(Self { call: &open.call, kind })
    }
}

/// Those records of memory that the messages of the last turn brought; it begins with what the user said last.
fn of_turn(mut recalled: Vec<Object>, bodies: &[String]) -> Result<Vec<Object>> {
    if recalled.is_empty() {
        return Ok(recalled);
    }
    let (mut uids, mut has_begun) = (HashSet::new(), false);
    for body in bodies.iter().rev() {
        let said = Stored::read(body)?;
        if has_begun && said.role() != Role::User {
            break;
        }
        has_begun |= said.role() == Role::User;
        uids.insert(said.uid().to_owned());
    }
    recalled.retain(|record| record["messageUid"].as_str().is_some_and(|uid| uids.contains(uid)));
    Ok(recalled)
}

/// Reads the committed state of one chat.
pub(crate) struct ChatSource {
    pub db: Db,
    pub account: AccountId,
    /// The chat is only found under this assistant.
    pub assistant: String,
    pub uid: String,
    /// Largest frame; 0 = no bound.
    pub frame_bytes: usize,
}

#[async_trait]
impl Source for ChatSource {
    async fn revision(&self) -> Result<Option<i64>> {
        let conn = self.db.read().await?;
        repository::revision(conn.get(), &self.account, &self.uid).await
    }

    async fn head(&self) -> Result<Option<Head>> {
        let conn = self.db.read().await?;
        let found = repository::find_with_queue(conn.get(), &self.account, &self.uid).await?;
        let Some((chat, messages, queue)) = found.filter(|(chat, ..)| chat.assistant == self.assistant) else {
            return Ok(None);
        };
        self.read(&chat, messages, &queue).map(Some)
    }
}

impl ChatSource {
    fn read(&self, chat: &ChatRow, bodies: Vec<String>, queue: &[String]) -> Result<Head> {
        let status = chat.status();
        // What waits has half of the frame at the most; the first come first.
        let mut left = if self.frame_bytes == 0 { usize::MAX } else { self.frame_bytes / 2 };
        let fits = |body: &&String| {
            let fits = body.len() <= left;
            left = left.saturating_sub(body.len());
            fits
        };
        let waiting: Vec<&String> = queue.iter().take_while(fits).collect();
        let is_cut = waiting.len() < queue.len();
        let waiting = waiting.into_iter().map(|body| pending(body, status.queue_word())).collect::<Result<_>>()?;
        let open = if status == Status::Waiting { chat.open_calls()? } else { Vec::new() };
        let is_limited = chat.status == LIMIT_EXCEEDED;
        let mut state = RealtimeChatHistory {
            chat_uid: &chat.uid,
            client_uid: self.account.as_str(),
            status: &chat.status,
            chat_history: &[],
            queued_messages: chat.queued,
            pending_user_messages: waiting,
            pending_tool_calls: open.iter().filter_map(PendingToolCall::of).collect(),
            handed_off_sub_thread_id: chat.handed_off()?.map(|(thread, _)| thread),
            stop_reason: chat.stop_reason.as_deref(),
            error: chat.error.as_deref().filter(|_| !is_limited).and_then(|error| serde_json::from_str(error).ok()),
            limit_exceeded: chat.error.as_deref().filter(|_| is_limited).and_then(|of| serde_json::from_str(of).ok()),
            recalled_memories: of_turn(chat.recalled(), &bodies)?,
            truncated: Some(true),
        };
        let brief = Head::new(0, Timestamp(0), false, &state).map_err(Error::internal)?;
        let (history, truncated) = kept_history(bodies, self.frame_bytes, brief.open_object.len());
        (state.chat_history, state.truncated) = (&history, (truncated || is_cut).then_some(true));
        let terminal = status.is_terminal() && chat.queued == 0;
        let head = Head::new(chat.revision, Timestamp(chat.edited_ms), terminal, &state).map_err(Error::internal)?;
        Ok(head.bounded(self.frame_bytes, brief.open_object))
    }
}
