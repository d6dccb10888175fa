use std::{collections::HashMap, ops::Range};

use diesel::{
    AppearsOnTable, QueryResult,
    dsl::{AsExprOf, sql},
    expression::{Expression, SelectableExpression, SqlLiteral, UncheckedBind, ValidGrouping, is_aggregate},
    pg::Pg,
    prelude::*,
    query_builder::{AstPass, QueryFragment, QueryId},
    sql_types::{Array, BigInt, Bool, Integer, Jsonb, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Page, Result, Timestamp};
use platform_db::{Conn, containing};
use platform_runtime::{Answer, OpenCall, Operation, Role};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    Compaction,
    feedback::{Given, NewFeedback},
    message::{MessageRow, StoredJson, restamped, secondary},
    schema::{message_feedback, message_files, messages, queued_messages},
};

/// A turn reads its messages in slices of this many, newest first, until its budget is full.
const SLICE: i64 = 200;

/// Text for a column of type json.
pub fn json(text: &str) -> SqlLiteral<Text, UncheckedBind<SqlLiteral<Text>, AsExprOf<&str, Text>>> {
    sql::<Text>("").bind::<Text, _>(text).sql("::json")
}

type Added = SqlLiteral<Nullable<Jsonb>, UncheckedBind<SqlLiteral<Nullable<Jsonb>>, AsExprOf<Value, Jsonb>>>;

/// What is in the column `secondary` together with more calls beside the turns.
pub fn add_secondary(asked: &[(Operation, &Answer)]) -> Added {
    sql::<Nullable<Jsonb>>("add_secondary(secondary, ").bind::<Jsonb, _>(Value::Object(secondary(asked))).sql(")")
}

type Known = SqlLiteral<Bool, UncheckedBind<SqlLiteral<Bool>, AsExprOf<i32, Integer>>>;
type Longer = SqlLiteral<Nullable<Text>, UncheckedBind<SqlLiteral<Nullable<Text>>, AsExprOf<String, Text>>>;

/// Whether the column `compactions` holds so many.
pub fn has_compactions(known: usize) -> Known {
    let known = i32::try_from(known).unwrap_or(i32::MAX);
    sql::<Bool>("coalesce(json_array_length(compactions), 0) = ").bind::<Integer, _>(known).sql("")
}

/// What is in the column `compactions` together with one more.
pub fn add_compaction(compaction: &Compaction) -> Result<Longer> {
    let compaction = serde_json::to_string(&[compaction]).map_err(Error::internal)?;
    Ok(sql::<Nullable<Text>>("(coalesce(compactions::jsonb, '[]') || ")
        .bind::<Text, _>(compaction)
        .sql("::jsonb)::json"))
}

/// Compactions from JSON text.
pub fn compactions(stored: Option<&str>) -> Result<Vec<Compaction>> {
    stored.map_or(Ok(Vec::new()), |stored| serde_json::from_str(stored).map_err(Error::internal))
}

/// Open calls from JSON text.
pub fn open_calls(stored: Option<&str>) -> Result<Vec<OpenCall>> {
    stored.map_or(Ok(Vec::new()), |stored| serde_json::from_str(stored).map_err(Error::internal))
}

/// Open calls as they are stored; none when there is none.
pub fn open_text(open: &[OpenCall]) -> Result<Option<String>> {
    if open.is_empty() {
        return Ok(None);
    }
    serde_json::to_string(open).map(Some).map_err(Error::internal)
}

/// Texts of a conversation as one expression in a statement of whoever owns it, so that both are of one moment.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    what: &'static str,
    order: &'static str,
    account: &'a str,
    conversation: &'a str,
}

impl<'a> Texts<'a> {
    /// All messages, oldest first.
    pub fn messages(account: &'a AccountId, conversation: &'a str) -> Self {
        Self::of("ARRAY(SELECT body::text FROM messages", " ORDER BY position)", account, conversation)
    }

    /// What they took, in the same order.
    pub fn accountings(account: &'a AccountId, conversation: &'a str) -> Self {
        Self::of("ARRAY(SELECT accounting::text FROM messages", " ORDER BY position)", account, conversation)
    }

    /// The messages that watchers see.
    pub fn shown(account: &'a AccountId, conversation: &'a str) -> Self {
        let order = " AND role IN ('user', 'assistant', 'tool') ORDER BY position)";
        Self::of("ARRAY(SELECT body::text FROM messages", order, account, conversation)
    }

    /// The messages that wait.
    pub fn queued(account: &'a AccountId, conversation: &'a str) -> Self {
        Self::of("ARRAY(SELECT body::text FROM queued_messages", " ORDER BY position)", account, conversation)
    }

    fn of(what: &'static str, order: &'static str, account: &'a AccountId, conversation: &'a str) -> Self {
        Self { what, order, account: account.as_str(), conversation }
    }
}

/// What such an expression gives.
pub type TextsRead = Vec<Option<String>>;

impl Expression for Texts<'_> {
    type SqlType = Array<Nullable<Text>>;
}

impl QueryFragment<Pg> for Texts<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(self.what);
        out.push_sql(" WHERE account_id = ");
        out.push_bind_param::<Text, _>(self.account)?;
        out.push_sql(" AND conversation = ");
        out.push_bind_param::<Text, _>(self.conversation)?;
        out.push_sql(self.order);
        Ok(())
    }
}

/// Prepared once per connection, by its text.
impl QueryId for Texts<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<S> SelectableExpression<S> for Texts<'_> {}
impl<S> AppearsOnTable<S> for Texts<'_> {}
impl ValidGrouping<()> for Texts<'_> {
    type IsAggregate = is_aggregate::Never;
}

#[diesel::dsl::auto_type(no_type_alias)]
fn of<'a>(account: &'a str, conversation: &'a str) -> _ {
    messages::table.filter(messages::account_id.eq(account)).filter(messages::conversation.eq(conversation))
}

/// Adds a message at its position.
pub async fn insert_message(
    conn: &mut Conn,
    account: &AccountId,
    conversation: &str,
    message: &MessageRow,
) -> Result<()> {
    diesel::insert_into(messages::table)
        .values((
            messages::account_id.eq(account.as_str()),
            messages::conversation.eq(conversation),
            messages::position.eq(message.position),
            messages::uid.eq(&message.uid),
            messages::role.eq(message.role),
            messages::body.eq(json(&message.body)),
            messages::accounting
                .eq(sql::<Nullable<Text>>("").bind::<Nullable<Text>, _>(&message.accounting).sql("::json")),
            messages::created_ms.eq(message.created_ms),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Messages from a position on, with what they took.
pub async fn content(conn: &Conn, account: &AccountId, conversation: &str, page: Page) -> Result<Vec<StoredJson>> {
    let mut conn = conn;
    let rows: Vec<(String, Option<String>)> = of(account.as_str(), conversation)
        .order(messages::position)
        .limit(page.limit)
        .offset(page.offset)
        .select((messages::body, messages::accounting))
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().map(|(body, accounting)| StoredJson::message(body, accounting.as_deref())).collect())
}

/// All messages.
pub async fn all_content(conn: &Conn, account: &AccountId, conversation: &str) -> Result<Vec<StoredJson>> {
    content(conn, account, conversation, Page { limit: i64::MAX, offset: 0 }).await
}

/// Messages of several conversations, each with its conversation.
pub async fn contents(conn: &Conn, account: &AccountId, conversations: &[String]) -> Result<Vec<(String, StoredJson)>> {
    let mut conn = conn;
    let rows: Vec<(String, String, Option<String>)> = messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::conversation.eq_any(conversations)))
        .order((messages::conversation, messages::position))
        .select((messages::conversation, messages::body, messages::accounting))
        .load(&mut conn)
        .await?;
    let message = |(uid, body, accounting): (String, String, Option<String>)| {
        (uid, StoredJson::message(body, accounting.as_deref()))
    };
    Ok(rows.into_iter().map(message).collect())
}

#[derive(QueryableByName)]
struct Size {
    #[diesel(sql_type = Text)]
    conversation: String,
    #[diesel(sql_type = BigInt)]
    bytes: i64,
}

/// How many bytes the messages of several conversations have; those without any are left out.
pub async fn content_bytes(
    conn: &Conn,
    account: &AccountId,
    conversations: &[String],
) -> Result<HashMap<String, usize>> {
    let mut conn = conn;
    let sizes = "SELECT conversation, sum(octet_length(body::text) + coalesce(octet_length(accounting::text), 0))::bigint \
        AS bytes FROM messages WHERE account_id = $1 AND conversation = ANY($2) GROUP BY conversation";
    let sizes = diesel::sql_query(sizes).bind::<Text, _>(account.as_str()).bind::<Array<Text>, _>(conversations);
    let sizes: Vec<Size> = sizes.load(&mut conn).await?;
    Ok(sizes.into_iter().map(|size| (size.conversation, usize::try_from(size.bytes).unwrap_or(usize::MAX))).collect())
}

/// Messages from a position on, as they are stored, oldest first.
pub async fn bodies_from(conn: &Conn, account: &AccountId, conversation: &str, from: i32) -> Result<Vec<String>> {
    let mut conn = conn;
    Ok(of(account.as_str(), conversation)
        .filter(messages::position.ge(from))
        .order(messages::position)
        .select(messages::body)
        .load(&mut conn)
        .await?)
}

/// Of these calls those that have a result at or after a position.
pub async fn settled_calls(
    conn: &mut Conn,
    account: &AccountId,
    conversation: &str,
    from: i32,
    ids: &[String],
) -> Result<Vec<String>> {
    let call = || sql::<Text>("(body ->> 'tool_call_id')");
    Ok(of(account.as_str(), conversation)
        .filter(messages::position.ge(from).and(messages::role.eq("tool")))
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
    conversation: &str,
    range: Range<i32>,
    start: Start,
) -> Result<Vec<(i32, String)>> {
    let mut conn = conn;
    let of = of(account.as_str(), conversation)
        .filter(messages::position.ge(range.start).and(messages::position.lt(range.end)))
        .limit(SLICE)
        .select((messages::position, messages::body));
    Ok(match start {
        Start::Newest => of.order(messages::position.desc()).load(&mut conn).await?,
        Start::Oldest => of.order(messages::position).load(&mut conn).await?,
    })
}

/// A turn from one of its messages on, up to the next user message: its position, its messages, and
/// whether a model answered. Position -1 when there is no such message.
pub async fn turn_of(
    conn: &Conn,
    account: &AccountId,
    conversation: &str,
    message: &str,
) -> Result<(i32, Vec<StoredJson>, bool)> {
    let mut conn = conn;
    let first = of(account.as_str(), conversation).filter(messages::uid.eq(message)).select(messages::position);
    let first: Option<i32> = first.first(&mut conn).await.optional()?;
    let Some(first) = first else { return Ok((-1, Vec::new(), false)) };
    let rows: Vec<(String, String, Option<String>)> = of(account.as_str(), conversation)
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

/// Puts a summary to a message, by position and id: another may have taken its place.
pub async fn summarise(
    conn: &mut Conn,
    account: &AccountId,
    conversation: &str,
    (position, uid): (i32, &str),
    summary: &str,
) -> Result<()> {
    let summary = serde_json::to_string(summary).map_err(Error::internal)?;
    let body =
        sql::<Text>("(left(body::text, -1) || ',\"summary\":' || ").bind::<Text, _>(summary).sql(" || '}')::json");
    let message = of(account.as_str(), conversation).filter(messages::position.eq(position).and(messages::uid.eq(uid)));
    diesel::update(message).set(messages::body.eq(body)).execute(conn).await?;
    Ok(())
}

/// A message that holds the searched text.
#[derive(Queryable)]
pub(crate) struct Hit {
    pub uid: String,
    pub role: String,
    pub created_ms: i64,
    pub position: i32,
    pub text: String,
}

pub(crate) async fn search(
    conn: &Conn,
    account: &AccountId,
    conversation: &str,
    text: &str,
    limit: i64,
) -> Result<(Vec<Hit>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let pattern = containing(text);
    let hits = || {
        of(account.as_str(), conversation)
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

/// Whether there is such a message.
pub async fn has_message(conn: &mut Conn, account: &AccountId, conversation: &str, message: &str) -> Result<bool> {
    let found = of(account.as_str(), conversation).filter(messages::uid.eq(message)).select(messages::position);
    Ok(found.first::<i32>(conn).await.optional()?.is_some())
}

/// Takes away everything that was said, together with the record that owns the conversation.
pub async fn delete(conn: &mut Conn, account: &AccountId, conversation: &str) -> Result<()> {
    diesel::delete(of(account.as_str(), conversation)).execute(conn).await?;
    empty(conn, account, conversation).await?;
    let files = message_files::table.filter(message_files::account_id.eq(account.as_str()));
    diesel::delete(files.filter(message_files::conversation.eq(conversation))).execute(conn).await?;
    let feedback = message_feedback::table.filter(message_feedback::account_id.eq(account.as_str()));
    diesel::delete(feedback.filter(message_feedback::conversation.eq(conversation))).execute(conn).await?;
    Ok(())
}

/// A message that waits.
#[derive(Debug, Queryable)]
pub struct Queued {
    /// Its id.
    pub uid: String,
    /// The message as it will be stored.
    pub body: String,
    /// What its turn must know beyond the conversation.
    pub request: Value,
    /// When it came.
    pub created_ms: i64,
}

impl Queued {
    /// The message that it becomes, after one of `newest`.
    pub fn into_message(self, position: i32, newest: Timestamp) -> Result<MessageRow> {
        #[derive(Deserialize)]
        struct Spoken {
            role: Role,
        }
        let Self { uid, body, created_ms, .. } = self;
        let Spoken { role } = serde_json::from_str(&body).map_err(Error::internal)?;
        let body = if newest.0 > created_ms { restamped(&body, newest)? } else { body };
        Ok(MessageRow {
            position,
            uid,
            role: role.as_str(),
            body,
            accounting: None,
            created_ms: created_ms.max(newest.0),
        })
    }
}

/// Has a message wait.
pub async fn enqueue(conn: &mut Conn, account: &AccountId, conversation: &str, message: &Queued) -> Result<()> {
    diesel::insert_into(queued_messages::table)
        .values((
            queued_messages::account_id.eq(account.as_str()),
            queued_messages::conversation.eq(conversation),
            queued_messages::uid.eq(&message.uid),
            queued_messages::body.eq(json(&message.body)),
            queued_messages::request.eq(&message.request),
            queued_messages::created_ms.eq(message.created_ms),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// What waits, in the order it came.
pub async fn queued(conn: &mut Conn, account: &AccountId, conversation: &str) -> Result<Vec<Queued>> {
    Ok(queued_messages::table
        .filter(queued_messages::account_id.eq(account.as_str()))
        .filter(queued_messages::conversation.eq(conversation))
        .order(queued_messages::position)
        .select((queued_messages::uid, queued_messages::body, queued_messages::request, queued_messages::created_ms))
        .load(conn)
        .await?)
}

/// When the first of what waits came; the end of time when nothing does.
pub async fn first_queued(conn: &mut Conn, account: &AccountId, conversation: &str) -> Result<Timestamp> {
    let first: Option<i64> = queued_messages::table
        .filter(queued_messages::account_id.eq(account.as_str()))
        .filter(queued_messages::conversation.eq(conversation))
        .order(queued_messages::position)
        .select(queued_messages::created_ms)
        .first(conn)
        .await
        .optional()?;
    Ok(Timestamp(first.unwrap_or(i64::MAX)))
}

/// Nothing waits any more.
pub async fn empty(conn: &mut Conn, account: &AccountId, conversation: &str) -> Result<()> {
    let queue = queued_messages::table.filter(queued_messages::account_id.eq(account.as_str()));
    diesel::delete(queue.filter(queued_messages::conversation.eq(conversation))).execute(conn).await?;
    Ok(())
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = message_feedback)]
struct FeedbackRow {
    id: String,
    message_uid: String,
    user_uid: String,
    feedback: bool,
    comment: Option<String>,
    data: Option<Value>,
    created_ms: i64,
    edited_ms: i64,
}

impl From<FeedbackRow> for Given {
    fn from(row: FeedbackRow) -> Self {
        Self {
            id: row.id,
            request_id: row.message_uid,
            creation_timestamp: Timestamp(row.created_ms).to_iso(),
            feedback: row.feedback,
            feedback_comment: row.comment,
            feedback_data: row.data.and_then(|data| data.as_object().cloned()),
            last_edit_timestamp: Timestamp(row.edited_ms).to_iso(),
            user_uid: row.user_uid,
        }
    }
}

/// Stores feedback on a message, in place of what was said before. `true` when it is the first.
pub(crate) async fn upsert_feedback(
    conn: &mut Conn,
    account: &AccountId,
    conversation: &str,
    id: &str,
    user_uid: &str,
    new: &NewFeedback,
    now: Timestamp,
) -> Result<(bool, Given)> {
    use message_feedback as table;
    let row: FeedbackRow = diesel::insert_into(table::table)
        .values((
            table::account_id.eq(account.as_str()),
            table::conversation.eq(conversation),
            table::id.eq(id),
            table::message_uid.eq(&new.message_id),
            table::user_uid.eq(user_uid),
            table::feedback.eq(new.feedback),
            table::comment.eq(&new.feedback_comment),
            table::data.eq(new.feedback_data.clone().map(Value::Object)),
            table::created_ms.eq(now.0),
            table::edited_ms.eq(now.0),
        ))
        .on_conflict((table::account_id, table::conversation, table::message_uid))
        .do_update()
        .set((
            table::user_uid.eq(user_uid),
            table::feedback.eq(new.feedback),
            table::comment.eq(&new.feedback_comment),
            table::data.eq(new.feedback_data.clone().map(Value::Object)),
            table::edited_ms.eq(now.0),
        ))
        .returning(FeedbackRow::as_returning())
        .get_result(conn)
        .await?;
    Ok((row.id == id, row.into()))
}

/// Feedback on the messages of a conversation, newest first.
pub async fn feedback(conn: &Conn, account: &AccountId, conversation: &str) -> Result<Vec<Given>> {
    use message_feedback as table;
    let mut conn = conn;
    let rows: Vec<FeedbackRow> = table::table
        .filter(table::account_id.eq(account.as_str()).and(table::conversation.eq(conversation)))
        .order(table::created_ms.desc())
        .limit(1000)
        .select(FeedbackRow::as_select())
        .load(&mut conn)
        .await?;
    Ok(rows.into_iter().map(Given::from).collect())
}
