use std::ops::Range;

use diesel::{
    dsl::{AsExprOf, array, exists, sql},
    expression::{SqlLiteral, UncheckedBind},
    prelude::*,
    sql_types::{BigInt, Bool, Jsonb, Nullable, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_core::{AccountId, Error, Object, Page, Result, Timestamp};
use platform_db::{Conn, Db};
use platform_guardrails::Finding;
use platform_runtime::{Answer, OpenCall, Operation};
use serde_json::Value;

pub(crate) use super::model::{Status, WAITING};
use super::{
    filter::{ChatFilter, escape_like},
    model::{Chat, ChatPatch, Feedback, GuardrailResults, NewFeedback},
};
use crate::{
    schema::{chat_feedback, chats, messages, queued_messages},
    turn::{Compaction, Heard, StoredJson, TokenUsage, TurnChat, secondary},
};

const MOST_TAGS: i64 = 1000;
/// A turn reads its messages in slices of this many, newest first, until its budget is full.
const SLICE: i64 = 200;

#[derive(Queryable, Selectable)]
#[diesel(table_name = chats)]
pub(crate) struct ChatRow {
    account_id: String,
    pub uid: String,
    pub assistant: String,
    name: String,
    archived: bool,
    pub status: String,
    pub stop_reason: Option<String>,
    pub error: Option<String>,
    user_uid: String,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    api_source: Option<String>,
    metadata: Value,
    tags: Vec<String>,
    provider: Option<String>,
    llm: Option<String>,
    context_window: i64,
    input_tokens: i64,
    output_tokens: i64,
    usage: Option<String>,
    pub revision: i64,
    pub message_count: i32,
    pub turn_start: i32,
    created_ms: i64,
    pub edited_ms: i64,
    named: bool,
    pub queued: i32,
    guardrails: Option<String>,
    compactions: Option<String>,
    secondary: Option<Value>,
    open_calls: Option<String>,
}

impl ChatRow {
    pub fn status(&self) -> Status {
        Status::of(&self.status)
    }

    fn token_usage(&self) -> StoredJson {
        let Some(secondary) = self.secondary.clone() else {
            return StoredJson::from_text(self.usage.clone().unwrap_or_else(no_usage));
        };
        let usage = self.usage.as_deref().and_then(|usage| serde_json::from_str::<TokenUsage>(usage).ok());
        let usage = usage.unwrap_or_default().with_secondary(&object(secondary));
        StoredJson::from_text(serde_json::to_string(&usage).unwrap_or_else(|_| no_usage()))
    }

    pub fn into_chat(self, content: Option<Vec<StoredJson>>) -> Result<Chat> {
        Ok(Chat {
            token_usage: self.token_usage(),
            guardrail_results: self.guardrails.as_deref().map(GuardrailResults::of),
            compactions: compactions(self.compactions.as_deref())?,
            uid: self.uid,
            client_uid: self.account_id,
            user_uid: self.user_uid,
            name: self.name,
            archived: self.archived,
            assistant_specialization_identifier: self.assistant,
            chat_content: content,
            creation_timestamp_ms: Timestamp(self.created_ms),
            last_edit_timestamp_ms: Timestamp(self.edited_ms),
            llm: self.llm,
            provider: self.provider,
            context_window: self.context_window,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            metadata: object(self.metadata),
            tags: self.tags,
            tenant_id: self.tenant_id,
            subtenant_id: self.subtenant_id,
            api_source: self.api_source,
            status: self.status,
            stop_reason: self.stop_reason,
            handed_off: false,
            recalled_memories: Vec::new(),
            core_memories: Vec::new(),
        })
    }

    pub fn patchable(&self) -> ChatPatch {
        ChatPatch {
            name: self.name.clone(),
            archived: self.archived,
            tags: self.tags.clone(),
            metadata: object(self.metadata.clone()),
        }
    }

    /// Calls of the newest answer that have no result yet.
    pub fn open_calls(&self) -> Result<Vec<OpenCall>> {
        open_calls(self.open_calls.as_deref())
    }

    pub fn into_turn_chat(self) -> Result<TurnChat> {
        let usage = self.usage.as_deref().map(serde_json::from_str).transpose().map_err(Error::internal)?;
        Ok(TurnChat {
            status: self.status(),
            open: self.open_calls()?,
            named: self.named,
            guardrails: self.guardrails,
            compactions: compactions(self.compactions.as_deref())?,
            uid: self.uid,
            assistant: self.assistant,
            revision: self.revision,
            message_count: self.message_count,
            turn_start: self.turn_start,
            usage: usage.unwrap_or_default(),
            metadata: object(self.metadata),
        })
    }
}

/// Guardrails keep what they found in so many turns.
pub(crate) const GUARDRAIL_TURNS: usize = 20;

/// What guardrails found, by turn.
pub(crate) fn guardrail_turns(stored: Option<&str>) -> Vec<Vec<Finding>> {
    stored.and_then(|stored| serde_json::from_str(stored).ok()).unwrap_or_default()
}

pub(crate) fn compactions(stored: Option<&str>) -> Result<Vec<Compaction>> {
    stored.map_or(Ok(Vec::new()), |stored| serde_json::from_str(stored).map_err(Error::internal))
}

fn open_calls(stored: Option<&str>) -> Result<Vec<OpenCall>> {
    stored.map_or(Ok(Vec::new()), |stored| serde_json::from_str(stored).map_err(Error::internal))
}

/// Open calls as they are stored; none when there is none.
pub(crate) fn open_text(open: &[OpenCall]) -> Result<Option<String>> {
    if open.is_empty() {
        return Ok(None);
    }
    serde_json::to_string(open).map(Some).map_err(Error::internal)
}

/// Text for a column of type json.
pub(crate) fn json(text: &str) -> SqlLiteral<Text, UncheckedBind<SqlLiteral<Text>, AsExprOf<&str, Text>>> {
    sql::<Text>("").bind::<Text, _>(text).sql("::json")
}

fn no_usage() -> String {
    serde_json::to_string(&TokenUsage::default()).expect("numbers are JSON")
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
pub(crate) fn by_uid<'a>(account: &'a str, uid: &'a str) -> _ {
    chats::table.filter(chats::account_id.eq(account)).filter(chats::uid.eq(uid))
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, uid: &str) -> Result<Option<ChatRow>> {
    let mut conn = conn;
    Ok(by_uid(account.as_str(), uid).select(ChatRow::as_select()).first(&mut conn).await.optional()?)
}

pub(crate) async fn turn_chat(conn: &Conn, account: &AccountId, uid: &str) -> Result<Option<TurnChat>> {
    find(conn, account, uid).await?.map(ChatRow::into_turn_chat).transpose()
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, uid: &str) -> Result<Option<ChatRow>> {
    let chat = by_uid(account.as_str(), uid).for_update().select(ChatRow::as_select());
    Ok(chat.first(conn).await.optional()?)
}

pub(crate) async fn revision(conn: &Conn, account: &AccountId, uid: &str) -> Result<Option<i64>> {
    let mut conn = conn;
    Ok(by_uid(account.as_str(), uid).select(chats::revision).first(&mut conn).await.optional()?)
}

pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    filter: &ChatFilter,
    page: Page,
) -> Result<(Vec<ChatRow>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let rows = chats::table
        .filter(filter.condition(account))
        .order((chats::created_ms.desc(), chats::uid.desc()))
        .limit(page.limit)
        .offset(page.offset)
        .select(ChatRow::as_select());
    let total = chats::table.filter(filter.condition(account)).count();
    let (rows, total) = futures_util::try_join!(rows.load(&mut first), total.get_result(&mut second))?;
    Ok((rows, total))
}

pub(crate) async fn update(
    conn: &mut Conn,
    account: &AccountId,
    uid: &str,
    patch: &ChatPatch,
    renames: bool,
    now: Timestamp,
) -> Result<ChatRow> {
    let chat = chats::table.filter(chats::account_id.eq(account.as_str()).and(chats::uid.eq(uid)));
    Ok(diesel::update(chat)
        .set((
            chats::name.eq(&patch.name),
            chats::named.eq(sql::<Bool>("named OR ").bind::<Bool, _>(renames)),
            chats::archived.eq(patch.archived),
            chats::tags.eq(&patch.tags),
            chats::metadata.eq(Value::Object(patch.metadata.clone())),
            chats::edited_ms.eq(now.0),
        ))
        .returning(ChatRow::as_returning())
        .get_result(conn)
        .await?)
}

pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, uid: &str) -> Result<()> {
    let content = messages::table.filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)));
    diesel::delete(content).execute(conn).await?;
    let chat = chats::table.filter(chats::account_id.eq(account.as_str()).and(chats::uid.eq(uid)));
    diesel::delete(chat).execute(conn).await?;
    Ok(())
}

/// Chats of an assistant that have a turn under way, or messages that wait for one.
pub(crate) async fn at_work(conn: &mut Conn, account: &AccountId, assistant: &str) -> Result<Vec<String>> {
    Ok(chats::table
        .filter(chats::account_id.eq(account.as_str()).and(chats::assistant.eq(assistant)))
        .filter(chats::status.ne_all(["completed", "error", "limit_exceeded"]).or(chats::queued.gt(0)))
        .select(chats::uid)
        .load(conn)
        .await?)
}

pub(crate) async fn tags(conn: &Conn, account: &AccountId) -> Result<Vec<String>> {
    let mut conn = conn;
    Ok(chats::table
        .filter(chats::account_id.eq(account.as_str()).and(sql::<Bool>("tags <> '{}'")))
        .select(sql::<Text>("unnest(tags) AS tag"))
        .distinct()
        .order(sql::<Text>("tag"))
        .limit(MOST_TAGS)
        .load(&mut conn)
        .await?)
}

type Content = (String, Option<String>);

/// Messages of a chat from a position on, with what they took.
pub(crate) async fn content(conn: &Conn, account: &AccountId, uid: &str, page: Page) -> Result<Vec<StoredJson>> {
    let mut conn = conn;
    let rows: Vec<Content> = messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)))
        .order(messages::position)
        .limit(page.limit)
        .offset(page.offset)
        .select((messages::body, messages::accounting))
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().map(|(body, accounting)| StoredJson::message(body, accounting.as_deref())).collect())
}

/// A chat with all its messages, in one statement.
pub(crate) async fn find_with_content(
    conn: &Conn,
    account: &AccountId,
    uid: &str,
) -> Result<Option<(ChatRow, Vec<StoredJson>)>> {
    let mut conn = conn;
    let content = messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)))
        .order(messages::position);
    let row: Option<(ChatRow, Vec<String>, Vec<Option<String>>)> = by_uid(account.as_str(), uid)
        .select((
            ChatRow::as_select(),
            array(content.select(messages::body)),
            array(content.select(messages::accounting)),
        ))
        .first(&mut conn)
        .await
        .optional()?;
    Ok(row.map(|(chat, bodies, accountings)| {
        let messages = bodies.into_iter().zip(accountings);
        (chat, messages.map(|(body, accounting)| StoredJson::message(body, accounting.as_deref())).collect())
    }))
}

/// All messages of a chat.
pub(crate) async fn all_content(conn: &Conn, account: &AccountId, uid: &str) -> Result<Vec<StoredJson>> {
    content(conn, account, uid, Page { limit: i64::MAX, offset: 0 }).await
}

/// Messages of several chats, each with its chat.
pub(crate) async fn contents(conn: &Conn, account: &AccountId, uids: &[String]) -> Result<Vec<(String, StoredJson)>> {
    let mut conn = conn;
    let rows: Vec<(String, String, Option<String>)> = messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq_any(uids)))
        .order((messages::chat_uid, messages::position))
        .select((messages::chat_uid, messages::body, messages::accounting))
        .load(&mut conn)
        .await?;
    let message = |(uid, body, accounting): (String, String, Option<String>)| {
        (uid, StoredJson::message(body, accounting.as_deref()))
    };
    Ok(rows.into_iter().map(message).collect())
}

/// A chat as watchers see it, at one moment: its messages without what they took, and what is queued.
pub(crate) async fn find_with_queue(
    conn: &Conn,
    account: &AccountId,
    uid: &str,
) -> Result<Option<(ChatRow, Vec<String>, Vec<String>)>> {
    let mut conn = conn;
    let content = messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)))
        .filter(messages::role.eq_any(["user", "assistant", "tool"]))
        .order(messages::position);
    let queue = queued_messages::table
        .filter(queued_messages::account_id.eq(account.as_str()).and(queued_messages::chat_uid.eq(uid)))
        .order(queued_messages::position);
    Ok(by_uid(account.as_str(), uid)
        .select((
            ChatRow::as_select(),
            array(content.select(messages::body)),
            array(queue.select(queued_messages::body)),
        ))
        .first(&mut conn)
        .await
        .optional()?)
}

/// Messages of a turn that are stored already, oldest first.
pub(crate) async fn turn_bodies(conn: &Conn, account: &AccountId, chat: &TurnChat) -> Result<Vec<String>> {
    let mut conn = conn;
    Ok(messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(&chat.uid)))
        .filter(messages::position.ge(chat.turn_start))
        .order(messages::position)
        .select(messages::body)
        .load(&mut conn)
        .await?)
}

/// Of these calls those that have a result in the turn.
pub(crate) async fn settled_calls(
    conn: &mut Conn,
    account: &AccountId,
    uid: &str,
    turn_start: i32,
    ids: &[String],
) -> Result<Vec<String>> {
    let call = || sql::<Text>("(body ->> 'tool_call_id')");
    Ok(messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)))
        .filter(messages::position.ge(turn_start).and(messages::role.eq("tool")))
        .filter(call().eq_any(ids))
        .select(call())
        .load(conn)
        .await?)
}

/// From which end messages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Newest,
    Oldest,
}

/// Positions and messages of a range, from one end of it on, as many as one slice holds.
pub(crate) async fn slice(
    conn: &Conn,
    account: &AccountId,
    uid: &str,
    range: Range<i32>,
    start: Start,
) -> Result<Vec<(i32, String)>> {
    let mut conn = conn;
    let of = messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)))
        .filter(messages::position.ge(range.start).and(messages::position.lt(range.end)))
        .limit(SLICE)
        .select((messages::position, messages::body));
    Ok(match start {
        Start::Newest => of.order(messages::position.desc()).load(&mut conn).await?,
        Start::Oldest => of.order(messages::position).load(&mut conn).await?,
    })
}

/// Adds calls beside the turns to what the chat took.
pub(crate) async fn charge(db: &Db, account: &AccountId, uid: &str, asked: &[(Operation, &Answer)]) -> Result<()> {
    if asked.is_empty() {
        return Ok(());
    }
    let chat = by_uid(account.as_str(), uid);
    let charged = diesel::update(chat).set(chats::secondary.eq(add_secondary(asked)));
    charged.execute(&mut *db.conn().await?).await?;
    Ok(())
}

type Added = SqlLiteral<Nullable<Jsonb>, UncheckedBind<SqlLiteral<Nullable<Jsonb>>, AsExprOf<Value, Jsonb>>>;

fn add_secondary(asked: &[(Operation, &Answer)]) -> Added {
    sql::<Nullable<Jsonb>>("add_secondary(secondary, ").bind::<Jsonb, _>(Value::Object(secondary(asked))).sql(")")
}

/// Keeps a compaction on top of the `known` ones; `false` when another was faster.
pub(crate) async fn add_compaction(
    db: &Db,
    account: &AccountId,
    uid: &str,
    known: usize,
    compaction: &Compaction,
) -> Result<bool> {
    let compaction = serde_json::to_string(&[compaction]).map_err(Error::internal)?;
    let chat = by_uid(account.as_str(), uid);
    let known = i32::try_from(known).unwrap_or(i32::MAX);
    let expected =
        sql::<Bool>("coalesce(json_array_length(compactions), 0) = ").bind::<diesel::sql_types::Integer, _>(known);
    let more = sql::<Nullable<Text>>("(coalesce(compactions::jsonb, '[]') || ")
        .bind::<Text, _>(compaction)
        .sql("::jsonb)::json");
    let kept = diesel::update(chat.filter(expected)).set(chats::compactions.eq(more));
    Ok(kept.execute(&mut *db.conn().await?).await? == 1)
}

/// Keeps the title and the summaries of messages that were made beside a turn, and what they took.
pub(crate) async fn note(
    db: &Db,
    account: &AccountId,
    uid: &str,
    title: Option<(&Heard, &str)>,
    summaries: &[(&Heard, &str)],
    asked: &[(Operation, &Answer)],
) -> Result<()> {
    let mut conn = db.conn().await?;
    conn.transaction::<_, Error, _>(async |conn| {
        let chat = || by_uid(account.as_str(), uid);
        // By its id as well: another chat may have taken the name of one that was deleted.
        let message = |heard: &Heard| {
            messages::table
                .filter(messages::account_id.eq(account.as_str().to_owned()).and(messages::chat_uid.eq(uid.to_owned())))
                .filter(messages::position.eq(heard.position).and(messages::uid.eq(heard.uid.clone())))
        };
        if let Some((first, title)) = title {
            let untitled = chat().filter(chats::named.eq(false)).filter(exists(message(first)));
            diesel::update(untitled).set((chats::name.eq(title), chats::named.eq(true))).execute(conn).await?;
        }
        if !asked.is_empty() {
            diesel::update(chat()).set(chats::secondary.eq(add_secondary(asked))).execute(conn).await?;
        }
        for (heard, summary) in summaries {
            let summary = serde_json::to_string(summary).map_err(Error::internal)?;
            let body = sql::<Text>("(left(body::text, -1) || ',\"summary\":' || ")
                .bind::<Text, _>(summary)
                .sql(" || '}')::json");
            diesel::update(message(heard)).set(messages::body.eq(body)).execute(conn).await?;
        }
        Ok(())
    })
    .await
}

/// A turn from one of its messages on, up to the next user message: its position, its messages, and
/// whether a model answered. Position -1 when there is no such message.
pub(crate) async fn turn_of(
    conn: &Conn,
    account: &AccountId,
    uid: &str,
    message: &str,
) -> Result<(i32, Vec<StoredJson>, bool)> {
    let mut conn = conn;
    let chat = messages::table.filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)));
    let first: Option<i32> =
        chat.filter(messages::uid.eq(message)).select(messages::position).first(&mut conn).await.optional()?;
    let Some(first) = first else { return Ok((-1, Vec::new(), false)) };
    let rows: Vec<(String, String, Option<String>)> = chat
        .filter(messages::position.ge(first))
        .order(messages::position)
        .limit(1000)
        .select((messages::role, messages::body, messages::accounting))
        .load(&mut conn)
        .await?;
    let turn = rows.into_iter().enumerate().take_while(|(at, (role, ..))| *at == 0 || role != "user");
    let (mut said, mut answered) = (Vec::new(), false);
    for (_, (role, body, accounting)) in turn {
        answered |= role == "assistant";
        said.push(StoredJson::message(body, accounting.as_deref()));
    }
    Ok((first, said, answered))
}

/// Text, role, time and position of the messages that hold `text`, and how many there are.
#[derive(QueryableByName, Queryable)]
pub(crate) struct Hit {
    #[diesel(sql_type = Text)]
    pub uid: String,
    #[diesel(sql_type = Text)]
    pub role: String,
    #[diesel(sql_type = BigInt)]
    pub created_ms: i64,
    #[diesel(sql_type = diesel::sql_types::Integer)]
    pub position: i32,
    #[diesel(sql_type = Text)]
    pub text: String,
}

pub(crate) async fn search(
    conn: &Conn,
    account: &AccountId,
    uid: &str,
    text: &str,
    limit: i64,
) -> Result<(Vec<Hit>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let pattern = format!("%{}%", escape_like(text));
    let hits = || {
        messages::table
            .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)))
            .filter(sql::<Bool>("body -> 'content' ->> 'message' ILIKE ").bind::<Text, _>(pattern.clone()))
    };
    let page = hits().order(messages::position).limit(limit).select((
        messages::uid,
        messages::role,
        messages::created_ms,
        messages::position,
        sql::<Text>("body -> 'content' ->> 'message'"),
    ));
    let (hits, total) = futures_util::try_join!(page.load(&mut first), hits().count().get_result(&mut second))?;
    Ok((hits, total))
}

pub(crate) async fn has_message(conn: &mut Conn, account: &AccountId, uid: &str, message: &str) -> Result<bool> {
    let found = messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::chat_uid.eq(uid)))
        .filter(messages::uid.eq(message))
        .select(messages::position)
        .first::<i32>(conn)
        .await
        .optional()?;
    Ok(found.is_some())
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = chat_feedback)]
pub(crate) struct FeedbackRow {
    id: String,
    chat_uid: String,
    message_uid: String,
    user_uid: String,
    feedback: bool,
    comment: Option<String>,
    data: Option<Value>,
    created_ms: i64,
    edited_ms: i64,
}

impl From<FeedbackRow> for Feedback {
    fn from(row: FeedbackRow) -> Self {
        Self {
            id: row.id,
            request_id: row.message_uid,
            creation_timestamp: Timestamp(row.created_ms).to_iso(),
            chat_uid: row.chat_uid,
            feedback: row.feedback,
            feedback_comment: row.comment,
            feedback_data: row.data.map(object),
            last_edit_timestamp: Timestamp(row.edited_ms).to_iso(),
            user_uid: row.user_uid,
        }
    }
}

/// Stores feedback on a message, in place of what was said before. `true` when it is the first.
pub(crate) async fn upsert_feedback(
    conn: &mut Conn,
    account: &AccountId,
    uid: &str,
    id: &str,
    user_uid: &str,
    new: &NewFeedback,
    now: Timestamp,
) -> Result<(bool, FeedbackRow)> {
    let row: FeedbackRow = diesel::insert_into(chat_feedback::table)
        .values((
            chat_feedback::account_id.eq(account.as_str()),
            chat_feedback::chat_uid.eq(uid),
            chat_feedback::id.eq(id),
            chat_feedback::message_uid.eq(&new.message_id),
            chat_feedback::user_uid.eq(user_uid),
            chat_feedback::feedback.eq(new.feedback),
            chat_feedback::comment.eq(&new.feedback_comment),
            chat_feedback::data.eq(new.feedback_data.clone().map(Value::Object)),
            chat_feedback::created_ms.eq(now.0),
            chat_feedback::edited_ms.eq(now.0),
        ))
        .on_conflict((chat_feedback::account_id, chat_feedback::chat_uid, chat_feedback::message_uid))
        .do_update()
        .set((
            chat_feedback::user_uid.eq(user_uid),
            chat_feedback::feedback.eq(new.feedback),
            chat_feedback::comment.eq(&new.feedback_comment),
            chat_feedback::data.eq(new.feedback_data.clone().map(Value::Object)),
            chat_feedback::edited_ms.eq(now.0),
        ))
        .returning(FeedbackRow::as_returning())
        .get_result(conn)
        .await?;
    Ok((row.id == id, row))
}

pub(crate) async fn feedback(conn: &Conn, account: &AccountId, uid: &str) -> Result<Vec<FeedbackRow>> {
    let mut conn = conn;
    Ok(chat_feedback::table
        .filter(chat_feedback::account_id.eq(account.as_str()).and(chat_feedback::chat_uid.eq(uid)))
        .order(chat_feedback::created_ms.desc())
        .limit(1000)
        .select(FeedbackRow::as_select())
        .load(&mut conn)
        .await?)
}
