//! Messages that wait: for the end of a turn, or for the end of a delay in which more may come.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{Array, Bool, Integer, Jsonb, Nullable, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_conversation::{
    ABANDON, AssistantSettings, ChatMessage, ConversationStore, MessageRow, Queued, StoredFile, StoredJson,
    TurnRequest, result_positions,
};
use platform_core::{AccountId, Checks, Code, Error, Result, Timestamp};
use platform_db::{Conn, Db, Idempotency};
use platform_jobs::{
    FoundRun, Run, When, call_again_in, cancel_in, delay_in, describe_in, enqueue_in, find_in, is_held_in, stop_in,
};
use platform_runtime::{Later, OpenCall};
use serde_json::{Value, json};

use super::{
    acceptance::Acceptance,
    message::Accepted,
    work::{KIND, TurnChat},
};
use crate::{
    chat::repository::{self, ChatRow, LIMIT_EXCEEDED, Status, by_uid, greatest},
    code,
    schema::chats,
};

/// A delay that starts anew with each message ends after so many of itself (contract 02 §6).
const MAX_DELAY: u32 = 3;
/// A stop that finds a chat at work without its run looks again so often; then it ends the chat as it is.
const MAX_STOPS: u32 = 5;
/// So many messages are gathered where there is no queue.
const MAX_BUFFERED: u32 = 100;

/// After the merged metadata of a chat: the end user it belongs to stays noted, whatever a message says.
const PINNED: &str =
    " || CASE WHEN subtenant_id IS NULL THEN '{}' ELSE jsonb_build_object('subtenantId', subtenant_id) END";

/// Where a message was put.
#[derive(Debug)]
pub(crate) enum Enqueued {
    /// In the queue, or in the buffer of a chat at this revision.
    Queued { accepted: Accepted, revision: i64, due: Option<Duration>, created: bool },
    /// Nowhere: no turn is under way, so it can begin one.
    ChatIsFree,
}

/// Puts a message into the queue of a busy chat, or into the buffer of one that waits for more.
pub(crate) async fn wait_in_line(
    db: &Db,
    account: &AccountId,
    item: &Acceptance,
    settings: &AssistantSettings,
    files: &[StoredFile],
    once: Option<&Idempotency>,
) -> Result<Enqueued> {
    let mut conn = db.conn().await?;
    conn.transaction::<_, Error, _>(async |conn| {
        // Whoever has the key first goes on; the other must not hold what that one needs.
        if let Some(once) = once {
            once.lock(conn).await?;
        }
        let delay = Duration::from_millis(settings.input_delay_ms.into());
        // The run before the chat, as whoever ends it does.
        let run = find_in(conn, account, KIND, &item.subject).await?.map(|run| run.id);
        let created = !delay.is_zero() && create(conn, item).await?;
        let Some(chat) = repository::lock(conn, account, &item.subject).await? else {
            return Ok(Enqueued::ChatIsFree);
        };
        refuse_stranger(&chat, item)?;
        refuse_growth(conn, item).await?;
        let conversation = ConversationStore::of(account, &item.subject);
        let status = chat.status();
        if created {
            enqueue_in(conn, account, KIND, &item.subject, json!({}), When::After(delay)).await?;
        } else if status.is_terminal() && chat.queued == 0 {
            if delay.is_zero() {
                return Ok(Enqueued::ChatIsFree);
            }
            enqueue_in(conn, account, KIND, &item.subject, json!({}), When::After(delay)).await?;
        } else {
            // A turn that began just now has a run that is not locked: from the start again.
            let Some(run) = run else { return Ok(Enqueued::ChatIsFree) };
            let takes_more = status == Status::Buffering || chat.status == LIMIT_EXCEEDED;
            if !settings.message_queue_enabled && !takes_more {
                return Err(busy(&chat));
            }
            let most = if settings.message_queue_enabled { settings.max_queued_messages } else { MAX_BUFFERED };
            let most = i32::try_from(most).unwrap_or(i32::MAX);
            if chat.queued >= most {
                let message = format!("{most} messages wait already; send again when a turn has ended.");
                return Err(Error::new(code::QUEUE_FULL, message).with("status", &chat.status).with("limit", most));
            }
            if chat.status == LIMIT_EXCEEDED {
                // There may be quota again: whoever waits is answered together with this one.
                delay_in(conn, account, &run, Duration::ZERO).await?;
            } else if status == Status::Buffering {
                let first = conversation.first_queued(conn).await?;
                let waited = Timestamp(item.now_ms).since(first);
                delay_in(conn, account, &run, delay.min((delay * MAX_DELAY).saturating_sub(waited))).await?;
            } else {
                call_again_in(conn, account, &run).await?;
            }
        }
        let buffers = created || status == Status::Buffering || (status.is_terminal() && chat.queued == 0);
        let message = Queued {
            uid: item.message_uid.clone(),
            body: item.message.clone(),
            request: Value::clone(&item.payload),
            created_ms: item.now_ms,
        };
        conversation.enqueue(conn, &message).await?;
        conversation.store_files(conn, &item.message_uid, files).await?;
        // What waited for quota is answered now, unless there still is none.
        let resumes = (chat.status == LIMIT_EXCEEDED).then_some("processing");
        let stands = if buffers { Some("buffering") } else { resumes };
        let revision = waits(conn, account, item, stands).await?;
        let will_process = if buffers { "after_delay" } else { status.queue_word() };
        let accepted = Accepted {
            chat_uid: item.subject.clone(),
            message_uid: item.message_uid.clone(),
            queued: true,
            queue_position: Some(chat.queued + 1),
            will_process: Some(will_process),
            ignored: Vec::new(),
        };
        Idempotency::store_if(once, conn, 200, &accepted).await?;
        Ok(Enqueued::Queued { accepted, revision, due: buffers.then_some(delay), created })
    })
    .await
}

/// Why a chat takes no message from this one at all.
pub(crate) fn refuse_stranger(chat: &ChatRow, item: &Acceptance) -> Result<()> {
    if chat.assistant != item.assistant {
        return Err(Error::not_found(code::CHAT_NOT_FOUND, "chat", &item.subject));
    }
    let other = |given: &Option<String>, stored: &Option<String>| given.is_some() && given != stored;
    if other(&item.tenant_id, &chat.tenant_id) || other(&item.subtenant_id, &chat.subtenant_id) {
        return Err(Error::new(Code::TENANT_MISMATCH, "This chat belongs to another tenant or subtenant."));
    }
    Ok(())
}

/// `VALIDATION_ERROR` when the tags or the metadata of the chat would be too large with those of the message
/// (contract 00 §8).
pub(crate) async fn refuse_growth(conn: &Conn, item: &Acceptance) -> Result<()> {
    if item.tags.is_empty() && item.metadata.is_empty() {
        return Ok(());
    }
    let (mut conn, metadata) = (conn, Value::Object(item.metadata.clone()));
    let tags_fit = sql::<Bool>("has_room(tags, ")
        .bind::<Array<Text>, _>(&item.tags)
        .sql(", ")
        .bind::<Integer, _>(item.most_tags)
        .sql(", '{}', '{}', 0)");
    let metadata_fits = sql::<Bool>("has_room('{}', '{}', 0, metadata, ")
        .bind::<Jsonb, _>(&metadata)
        .sql(", ")
        .bind::<Integer, _>(item.most_metadata)
        .sql(")");
    let chat = by_uid(&item.account, &item.subject).select((tags_fit, metadata_fits));
    let (tags_fit, metadata_fits) = chat.first::<(bool, bool)>(&mut conn).await.optional()?.unwrap_or((true, true));
    let mut checks = Checks::default();
    for (path, fits, most) in [
        ("tags", tags_fit, format!("{} tags", item.most_tags)),
        ("metadata", metadata_fits, format!("{} bytes of metadata", item.most_metadata)),
    ] {
        if !fits {
            let message = format!("{path}: the chat would have more than {most} with those of this message");
            checks.issue(path, "length", message);
        }
    }
    checks.finish()
}

/// The chat is at work, and this message cannot wait.
pub(crate) fn busy(chat: &ChatRow) -> Error {
    let (code, message) = match chat.status() {
        Status::HandedOff => {
            (code::CHAT_HANDED_OFF, "This chat waits for a sub-agent; send again when that has ended.")
        }
        _ => (code::CHAT_BUSY, "This chat is still answering; send again when its turn has ended."),
    };
    Error::new(code, message).with("status", &chat.status)
}

/// Makes the chat of a buffered message; `false` when it is there already.
async fn create(conn: &mut Conn, item: &Acceptance) -> Result<bool> {
    let count = i32::try_from(item.previous.len()).unwrap_or(i32::MAX);
    let made = diesel::insert_into(chats::table)
        .values((
            chats::account_id.eq(&item.account),
            chats::uid.eq(&item.subject),
            chats::assistant.eq(&item.assistant),
            chats::name.eq(&item.name),
            chats::named.eq(item.named),
            chats::status.eq("buffering"),
            chats::user_uid.eq(&item.user_uid),
            chats::tenant_id.eq(&item.tenant_id),
            chats::subtenant_id.eq(&item.subtenant_id),
            chats::api_source.eq(&item.api_source),
            chats::metadata.eq(Value::Object(item.metadata.clone())),
            chats::tags.eq(&item.tags),
            chats::revision.eq(0),
            chats::message_count.eq(count),
            chats::turn_start.eq(count),
            chats::created_ms.eq(item.now_ms),
            chats::edited_ms.eq(item.now_ms),
        ))
        .on_conflict_do_nothing()
        .execute(conn)
        .await?;
    if made == 0 {
        return Ok(false);
    }
    if let Some(trigger) = &item.trigger {
        repository::note_trigger(conn, &item.account(), &item.subject, trigger).await?;
    }
    for past in &item.previous {
        let message = MessageRow {
            position: i32::try_from(past.position).unwrap_or(i32::MAX),
            uid: past.uid.clone(),
            role: past.role,
            body: past.body.clone(),
            accounting: None,
            created_ms: item.now_ms,
        };
        ConversationStore::of(&item.account(), &item.subject).insert(conn, &message).await?;
    }
    Ok(true)
}

/// One more waits; what it says of the chat holds at once. `stands`: how the chat stands now, if otherwise than before.
async fn waits(conn: &mut Conn, account: &AccountId, item: &Acceptance, stands: Option<&str>) -> Result<i64> {
    let metadata = sql::<Jsonb>("metadata || ").bind::<Jsonb, _>(Value::Object(item.metadata.clone())).sql(PINNED);
    let tags = sql::<Array<Text>>("tags || ARRAY(SELECT t FROM unnest(")
        .bind::<Array<Text>, _>(&item.tags)
        .sql(") t WHERE t <> ALL (tags))");
    let otherwise = |now, stays| if stands.is_some() { now } else { stays };
    let waiting = diesel::update(by_uid(account.as_str(), &item.subject)).set((
        chats::queued.eq(chats::queued + 1),
        chats::revision.eq(chats::revision + 1),
        chats::archived.eq(false),
        chats::metadata.eq(metadata),
        chats::tags.eq(tags),
        chats::edited_ms.eq(greatest(chats::edited_ms, item.now_ms)),
        stands.map(|status| chats::status.eq(status)),
        chats::stop_reason.eq(sql::<Nullable<Text>>(otherwise("NULL", "stop_reason"))),
        chats::error.eq(sql::<Nullable<Text>>(otherwise("NULL", "error"))),
        chats::turn_start.eq(sql::<Integer>(otherwise("message_count", "turn_start"))),
    ));
    Ok(waiting.returning(chats::revision).get_result(conn).await?)
}

/// What a run finds that is to begin a turn with what is queued.
pub(crate) enum Dequeued {
    /// The lease was lost.
    Lost,
    /// Nothing is queued any more.
    Nothing,
    /// The chat with the messages of the turn in it, and what the last of them wants.
    Turn(Box<(TurnChat, TurnRequest)>),
}

/// Makes what is queued the messages of the turn that begins: buffered ones become one message,
/// others stay apart. The lease is checked.
pub(crate) async fn dequeue(db: &Db, run: &Run, now: Timestamp) -> Result<Dequeued> {
    let (account, uid) = (run.account(), run.subject.as_str());
    let conversation = ConversationStore::of(&account, uid);
    let mut conn = db.conn().await?;
    conn.transaction::<_, Error, _>(async |conn| {
        if !is_held_in(conn, run).await? {
            return Ok(Dequeued::Lost);
        }
        let Some(chat) = repository::lock(conn, &account, uid).await? else { return Ok(Dequeued::Lost) };
        let rows = conversation.queued(conn).await?;
        let Some(request) = joined_request(&rows)? else { return Ok(Dequeued::Nothing) };
        let rows = if chat.status() == Status::Buffering { joined(conn, conversation, rows).await? } else { rows };
        let count = i32::try_from(rows.len()).unwrap_or(i32::MAX);
        for (position, row) in (chat.message_count..).zip(rows) {
            conversation.insert(conn, &row.into_message(position, Timestamp(chat.edited_ms))?).await?;
        }
        conversation.empty_queue(conn).await?;
        describe_in(conn, run, serde_json::to_value(&request).map_err(Error::internal)?).await?;
        let count = chat.message_count + count;
        let row = diesel::update(by_uid(account.as_str(), uid))
            .set((
                chats::status.eq("processing"),
                chats::stop_reason.eq(None::<String>),
                chats::error.eq(sql::<Nullable<Text>>("NULL")),
                chats::queued.eq(0),
                chats::turn_start.eq(chats::message_count),
                chats::message_count.eq(count),
                chats::revision.eq(chats::revision + 1),
                chats::edited_ms.eq(greatest(chats::edited_ms, now.0)),
            ))
            .returning(ChatRow::as_returning())
            .get_result::<ChatRow>(conn)
            .await?;
        Ok(Dequeued::Turn(Box::new((row.into_turn_chat()?, request))))
    })
    .await
}

/// Makes what waits for quota the messages of the turn that `item` is to begin, and `request` what all of them want;
/// `false` when nothing waits so, or somebody begins with it already.
pub(crate) async fn resume(conn: &mut Conn, item: &mut Acceptance, request: &mut TurnRequest) -> Result<bool> {
    let (account, uid) = (item.account(), item.subject.as_str());
    let conversation = ConversationStore::of(&account, uid);
    let run = find_in(conn, &account, KIND, uid).await?;
    let Some(chat) = repository::lock(conn, &account, uid).await? else { return Ok(false) };
    if !chat.awaits_quota() || run.is_some_and(|run| !run.idle) {
        return Ok(false);
    }
    refuse_stranger(&chat, item)?;
    cancel_in(conn, &account, KIND, uid).await?;
    let rows = conversation.queued(conn).await?;
    if let Some(earlier) = joined_request(&rows)? {
        *request = TurnRequest::joined(vec![earlier, std::mem::take(request)]).unwrap_or_default();
        item.payload = Arc::new(serde_json::to_value(&*request).map_err(Error::internal)?);
    }
    let mut count = chat.message_count;
    for row in rows {
        conversation.insert(conn, &row.into_message(count, Timestamp(chat.edited_ms))?).await?;
        count += 1;
    }
    conversation.empty_queue(conn).await?;
    let taken = (chats::queued.eq(0), chats::turn_start.eq(chats::message_count), chats::message_count.eq(count));
    diesel::update(by_uid(account.as_str(), uid)).set(taken).execute(conn).await?;
    Ok(true)
}

/// What was gathered becomes one message that waits, when no turn begins with it yet. The lease is checked.
pub(crate) async fn gather(db: &Db, run: &Run) -> Result<()> {
    let (account, uid) = (run.account(), run.subject.as_str());
    let conversation = ConversationStore::of(&account, uid);
    let mut conn = db.conn().await?;
    conn.transaction::<_, Error, _>(async |conn| {
        if !is_held_in(conn, run).await? || repository::lock(conn, &account, uid).await?.is_none() {
            return Ok(());
        }
        let rows = conversation.queued(conn).await?;
        let Some(request) = joined_request(&rows)? else { return Ok(()) };
        conversation.empty_queue(conn).await?;
        for row in joined(conn, conversation, rows).await? {
            let request = serde_json::to_value(&request).map_err(Error::internal)?;
            conversation.enqueue(conn, &Queued { request, ..row }).await?;
        }
        diesel::update(by_uid(account.as_str(), uid)).set(chats::queued.eq(1)).execute(conn).await?;
        Ok(())
    })
    .await
}

/// What the last of some messages wants; `None` when there are none.
fn joined_request(rows: &[Queued]) -> Result<Option<TurnRequest>> {
    let requests = rows.iter().map(|row| serde_json::from_value::<TurnRequest>(row.request.clone()));
    Ok(TurnRequest::joined(requests.collect::<Result<Vec<_>, _>>().map_err(Error::internal)?))
}

/// One message of many: their texts in lines, the id of the first, all files.
async fn joined(conn: &mut Conn, conversation: ConversationStore<'_>, rows: Vec<Queued>) -> Result<Vec<Queued>> {
    let mut whole: Option<(Queued, ChatMessage)> = None;
    for row in rows {
        let message: ChatMessage = serde_json::from_str(&row.body).map_err(Error::internal)?;
        let Some((_, first)) = &mut whole else {
            whole = Some((row, message));
            continue;
        };
        conversation.hand_over_files(conn, &row.uid, &first.uid, first.content.files.len()).await?;
        let text = &mut first.content.message;
        if !text.is_empty() && !message.content.message.is_empty() {
            text.push('\n');
        }
        text.push_str(&message.content.message);
        first.content.files.extend(message.content.files);
    }
    let one = |(row, message): (Queued, ChatMessage)| {
        let body = serde_json::to_string(&message).map_err(Error::internal)?;
        Ok(Queued { body, ..row })
    };
    whole.map(one).into_iter().collect()
}

/// What a stop did.
#[derive(Debug)]
pub(crate) struct StopOutcome {
    /// The run to be told, when one is worked.
    pub run: Option<String>,
    /// The chat stands at this revision.
    pub revision: i64,
    /// Messages that were queued.
    pub discarded: Vec<StoredJson>,
    /// Nothing more will come: the chat has ended.
    pub ended: bool,
}

/// Stops the turn of a chat and discards what is queued; `None` when there is no such chat.
pub(crate) async fn stop(db: &Db, account: &AccountId, uid: &str, now: Timestamp) -> Result<Option<StopOutcome>> {
    let mut tries = 0..MAX_STOPS;
    loop {
        let is_last = tries.next().is_none();
        let mut conn = db.conn().await?;
        let stopping = conn.transaction::<_, Error, _>(async |conn| {
            // The run first, as a turn that ends does: neither waits for the other.
            let run = stop_in(conn, account, KIND, uid).await?;
            let Some(chat) = repository::lock(conn, account, uid).await? else { return Ok(ControlFlow::Break(None)) };
            // A message was accepted in between: its run must stop, too.
            if run.is_none() && !chat.status().is_terminal() && !is_last {
                return Ok(ControlFlow::Continue(()));
            }
            let outcome = stop_turn_in(conn, ConversationStore::of(account, uid), run, &chat, now).await?;
            Ok(ControlFlow::Break(Some(outcome)))
        });
        if let ControlFlow::Break(outcome) = stopping.await? {
            return Ok(outcome);
        }
    }
}

/// Stops the turn of a chat that is locked together with its run.
async fn stop_turn_in(
    conn: &mut Conn,
    conversation: ConversationStore<'_>,
    run: Option<FoundRun>,
    chat: &ChatRow,
    now: Timestamp,
) -> Result<StopOutcome> {
    let (account, uid) = (conversation.account(), conversation.name());
    let status = chat.status();
    // What is queued behind a quota is answered once there is room.
    if status.is_terminal() && (chat.queued == 0 || chat.status == LIMIT_EXCEEDED) {
        let message = "This chat has no turn to stop.";
        return Err(Error::new(code::CHAT_NOT_PROCESSING, message).with("status", &chat.status));
    }
    let rows = conversation.queued(conn).await?;
    let uids: Vec<String> = rows.iter().map(|row| row.uid.clone()).collect();
    let rows = if status == Status::Buffering { joined(conn, conversation, rows).await? } else { rows };
    conversation.empty_queue(conn).await?;
    conversation.discard_files(conn, &uids).await?;
    // A turn that nobody works ends here, and so does one whose messages all wait.
    let ended = chat.turn_start == chat.message_count || run.as_ref().is_none_or(|run| run.idle);
    let mut count = chat.message_count;
    let now = now.max(Timestamp(chat.edited_ms));
    if ended {
        cancel_in(conn, account, KIND, uid).await?;
        let payload = run.as_ref().map(|run| run.payload.clone()).unwrap_or_default();
        let request: TurnRequest = serde_json::from_value(payload).unwrap_or_default();
        let open = chat.open_calls()?;
        let places: Vec<i32> = result_positions(count, &open).collect();
        for (open, position) in open.into_iter().zip(places) {
            abandon_in(conn, account, &open).await?;
            let row = MessageRow::closed(&request.user_uid, uid, &open.call, "INTERRUPTED", position, now)?;
            conversation.insert(conn, &row).await?;
            count += 1;
        }
    }
    let otherwise = |ends, stays| if ended { ends } else { stays };
    let stopped = diesel::update(by_uid(account.as_str(), uid)).set((
        chats::queued.eq(0),
        chats::message_count.eq(count),
        chats::open_calls.eq(sql::<Nullable<Text>>(otherwise("NULL", "open_calls"))),
        chats::revision.eq(chats::revision + 1),
        chats::edited_ms.eq(greatest(chats::edited_ms, now.0)),
        chats::status.eq(sql::<Text>(otherwise("'completed'", "status"))),
        chats::stop_reason.eq(sql::<Nullable<Text>>(otherwise("'stopped_by_user'", "stop_reason"))),
        chats::error.eq(sql::<Nullable<Text>>(otherwise("NULL", "error"))),
        // The model that was asked, unless it has answered.
        chats::llm.eq(sql::<Nullable<Text>>(otherwise("CASE WHEN provider IS NOT NULL THEN llm END", "llm"))),
    ));
    let revision: i64 = stopped.returning(chats::revision).get_result(conn).await?;
    let discarded = rows.into_iter().map(|row| StoredJson::from_text(row.body)).collect();
    Ok(StopOutcome { run: run.map(|run| run.id), revision, discarded, ended })
}

/// Ends the thread that a call waits for.
pub(crate) async fn abandon_in(conn: &mut Conn, account: &AccountId, open: &OpenCall) -> Result<()> {
    if let Some(Later::Thread(thread)) = open.awaits() {
        cancel_in(conn, account, ABANDON, thread).await?;
        enqueue_in(conn, account, ABANDON, thread, Value::Null, When::After(Duration::ZERO)).await?;
    }
    Ok(())
}

/// Queued messages as watchers see them, with what they wait for.
pub(crate) fn pending(body: &str, will_process: &str) -> Result<Value> {
    let message: Value = serde_json::from_str(body).map_err(Error::internal)?;
    let of = |name: &str| message.get(name).cloned().unwrap_or_default();
    Ok(json!({"uid": of("uid"), "role": "user", "content": of("content"), "timestamp": of("timestamp"),
        "willProcess": will_process}))
}
