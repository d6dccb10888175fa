use async_trait::async_trait;
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::Db;
use platform_realtime::{Head, Source};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    model::StatusError,
    repository::{self, ChatRow},
};

/// A frame above this holds only the newest messages (contract 02 §7.9).
const FRAME_BYTES: usize = 8 * 1024 * 1024;
const TRUNCATED_MESSAGES: usize = 200;

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
    queued_messages: u32,
    pending_user_messages: [(); 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<StatusError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
}

/// Reads the committed state of one chat.
pub(crate) struct ChatSource {
    pub db: Db,
    pub account: AccountId,
    /// The chat is only found under this assistant.
    pub assistant: String,
    pub uid: String,
}

#[async_trait]
impl Source for ChatSource {
    async fn revision(&self) -> Result<Option<i64>> {
        let conn = self.db.read().await?;
        repository::revision(conn.get(), &self.account, &self.uid).await
    }

    async fn head(&self) -> Result<Option<Head>> {
        let conn = self.db.read().await?;
        // One after the other on one connection: the messages are not older than the chat, and those
        // below its count are exactly the ones it had.
        let (chat, messages) = futures_util::try_join!(
            repository::find(conn.get(), &self.account, &self.uid),
            repository::bodies(conn.get(), &self.account, &self.uid),
        )?;
        let Some(chat) = chat.filter(|chat| chat.assistant == self.assistant) else { return Ok(None) };
        let known = messages.into_iter().take_while(|(position, _)| *position < chat.message_count);
        head(&self.account, &chat, known.map(|(_, body)| body).collect()).map(Some)
    }
}

fn head(account: &AccountId, chat: &ChatRow, bodies: Vec<String>) -> Result<Head> {
    let size: usize = bodies.iter().map(String::len).sum();
    let mut kept = bodies.len();
    if size > FRAME_BYTES {
        let mut left = FRAME_BYTES;
        let fits = |body: &&String| {
            let fits = body.len() <= left;
            left = left.saturating_sub(body.len());
            fits
        };
        kept = bodies.iter().rev().take(TRUNCATED_MESSAGES).take_while(fits).count();
    }
    let truncated = (kept < bodies.len()).then_some(true);
    let first = bodies.len() - kept;
    let history: Vec<Box<RawValue>> =
        bodies.into_iter().skip(first).map(|body| RawValue::from_string(body).unwrap_or_default()).collect();
    let state = RealtimeChatHistory {
        chat_uid: &chat.uid,
        client_uid: account.as_str(),
        status: &chat.status,
        chat_history: &history,
        queued_messages: 0,
        pending_user_messages: [],
        stop_reason: chat.stop_reason.as_deref(),
        error: chat.error.as_deref().and_then(|error| serde_json::from_str(error).ok()),
        truncated,
    };
    let terminal = chat.status != "processing";
    Head::new(chat.revision, Timestamp(chat.edited_ms), terminal, &state).map_err(Error::internal)
}
