//! Messages that come to a thread: at its end, or for its next step.

use platform_conversation::{
    ChatMessage, ConversationStore, MessageContent, MessageRow, Queued, StoredFile, TurnRequest, new_message_uid,
};
use platform_core::{Error, Result, Timestamp};
use platform_db::Conn;
use platform_runtime::Role;

use crate::thread::record::{Record, key};

/// A message that was taken in, screened, and is to be stored with its files.
#[derive(Clone)]
pub(crate) struct Arrived {
    pub message: ChatMessage,
    pub request: TurnRequest,
    pub files: Vec<StoredFile>,
}

/// Adds a message at the end.
pub(crate) async fn append(conn: &mut Conn, record: &mut Record, arrived: &Arrived) -> Result<()> {
    let (row, key) = (appended(record, arrived)?, key(record.id()));
    let conversation = ConversationStore::of(&record.account, &key);
    conversation.insert(conn, &row).await?;
    conversation.store_files(conn, &arrived.message.uid, &arrived.files).await
}

/// A message at the end, no earlier than what is there, as it is stored.
pub(crate) fn appended(record: &mut Record, arrived: &Arrived) -> Result<MessageRow> {
    let timestamp = arrived.message.timestamp.max(record.edited());
    let message = ChatMessage { timestamp, ..arrived.message.clone() };
    let row = MessageRow::new(record.message_count, &message, None)?;
    record.message_count += 1;
    Ok(row)
}

/// Has a message wait for the next step.
pub(crate) async fn queue(conn: &mut Conn, record: &Record, arrived: &Arrived) -> Result<()> {
    let queued = Queued {
        uid: arrived.message.uid.clone(),
        body: serde_json::to_string(&arrived.message).map_err(Error::internal)?,
        request: serde_json::to_value(&arrived.request).map_err(Error::internal)?,
        created_ms: arrived.message.timestamp.0,
    };
    let key = key(record.id());
    let conversation = ConversationStore::of(&record.account, &key);
    conversation.enqueue(conn, &queued).await?;
    conversation.store_files(conn, &arrived.message.uid, &arrived.files).await
}

/// What the platform tells the model of a client's decision.
pub(crate) fn developer_message(record: &Record, text: &str, user_uid: &str, now: Timestamp) -> Arrived {
    let message = ChatMessage {
        role: Role::Developer,
        content: MessageContent { message: text.to_owned(), ..MessageContent::default() },
        content_source: Some("user".to_owned()),
        ..ChatMessage::new(new_message_uid(), record.id(), user_uid, now)
    };
    Arrived { message, request: record.facts.turn.request.clone(), files: Vec::new() }
}

/// Makes what waits messages of the thread; what was found in them belongs to the turn. Whether there was any.
pub(crate) async fn append_queued(conn: &mut Conn, record: &mut Record) -> Result<bool> {
    let key = key(record.id());
    let waiting = ConversationStore::of(&record.account, &key).queued(conn).await?;
    if waiting.is_empty() {
        return Ok(false);
    }
    for message in waiting {
        let request: TurnRequest = serde_json::from_value(message.request.clone()).map_err(Error::internal)?;
        record.facts.turn.request.note_found(request.findings, request.blocked);
        ConversationStore::of(&record.account, &key)
            .insert(conn, &message.into_message(record.message_count, record.edited())?)
            .await?;
        record.message_count += 1;
    }
    ConversationStore::of(&record.account, &key).empty_queue(conn).await?;
    Ok(true)
}
