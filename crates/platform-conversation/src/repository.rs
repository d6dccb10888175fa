use std::{collections::HashMap, ops::Range, sync::LazyLock};

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
use futures_util::{Stream, stream::try_unfold};
use platform_core::{AccountId, Error, MOST_LISTED, Page, Result, Timestamp, fitting};
use platform_db::{Conn, Db, JsonStatement, containing};
use platform_runtime::{OpenCall, Role, SecondaryCall};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    message::{MessageRow, StoredJson, restamped, secondary},
    schema::{message_feedback, message_files, messages, queued_messages},
    turn_store::Compaction,
};

/// A turn reads its messages in slices of this many, newest first, until its budget is full.
const SLICE: i64 = 200;

/// Text for a column of type json.
pub fn json(text: &str) -> SqlLiteral<Text, UncheckedBind<SqlLiteral<Text>, AsExprOf<&str, Text>>> {
    sql::<Text>("").bind::<Text, _>(text).sql("::json")
}

type Added = SqlLiteral<Nullable<Jsonb>, UncheckedBind<SqlLiteral<Nullable<Jsonb>>, AsExprOf<Value, Jsonb>>>;

/// What is in the column `secondary` together with more secondary calls.
pub fn add_secondary(asked: &[SecondaryCall]) -> Added {
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
    let Some(stored) = stored else { return Ok(Vec::new()) };
    let mut open: Vec<OpenCall> = serde_json::from_str(stored).map_err(Error::internal)?;
    // What was stored before each had its place stands in the order of the calls.
    if open.iter().all(|open| open.after == 0) {
        (0..).zip(open.iter_mut().rev()).for_each(|(after, open)| open.after = after);
    }
    Ok(open)
}

/// Positions of the results of these open calls: results stand in the order of the calls of their answer, whenever they
/// come, and `message_count` counts those that are there.
pub fn result_positions(message_count: i32, open: &[OpenCall]) -> impl Iterator<Item = i32> {
    let end = message_count + i32::try_from(open.len()).unwrap_or(i32::MAX);
    open.iter().map(move |open| end - 1 - open.after)
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

    /// The same, and nothing when they are more than a list holds.
    pub fn unless_large(self) -> UnlessLarge<'a> {
        UnlessLarge(self)
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

/// Texts of a conversation whose messages are no more than a list holds.
#[derive(Debug, Clone, Copy)]
pub struct UnlessLarge<'a>(Texts<'a>);

impl Expression for UnlessLarge<'_> {
    type SqlType = Nullable<Array<Nullable<Text>>>;
}

impl QueryFragment<Pg> for UnlessLarge<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("CASE WHEN (SELECT coalesce(sum(octet_length(body::text)), 0) FROM messages WHERE account_id = ");
        out.push_bind_param::<Text, _>(self.0.account)?;
        out.push_sql(" AND conversation = ");
        out.push_bind_param::<Text, _>(self.0.conversation)?;
        out.push_sql(&format!(") <= {MOST_LISTED} THEN "));
        self.0.walk_ast(out.reborrow())?;
        out.push_sql(" END");
        Ok(())
    }
}

macro_rules! selectable {
    ($($texts:ty),*) => {$(
        /// Prepared once per connection, by its text.
        impl QueryId for $texts {
            type QueryId = ();
            const HAS_STATIC_QUERY_ID: bool = false;
        }
        impl<S> SelectableExpression<S> for $texts {}
        impl<S> AppearsOnTable<S> for $texts {}
        impl ValidGrouping<()> for $texts {
            type IsAggregate = is_aggregate::Never;
        }
    )*};
}
selectable!(Texts<'_>, UnlessLarge<'_>);

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
    insert_messages(conn, &[(account, conversation, message)]).await
}

/// The piece of a statement that adds messages: those of its relation `written(account, conversation, position, uid,
/// role, body, accounting, created_ms)`.
pub const INSERT_MESSAGES: &str = "INSERT INTO messages
        (account_id, conversation, position, uid, role, body, accounting, created_ms)
    SELECT account, conversation, position, uid, role, body::json, accounting::json, created_ms FROM written";

/// Adds messages, each of an account and a conversation, at their positions.
pub async fn insert_messages(conn: &mut Conn, messages: &[(&AccountId, &str, &MessageRow)]) -> Result<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "WITH written AS (
                SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, conversation text, position int, uid text,
                    role text, body text, accounting text, created_ms bigint)
            ) {INSERT_MESSAGES}"
        )
    });
    #[derive(Serialize)]
    struct Item<'a> {
        account: &'a str,
        conversation: &'a str,
        #[serde(flatten)]
        message: &'a MessageRow,
    }
    let items: Vec<Item<'_>> = messages
        .iter()
        .map(|(account, conversation, message)| Item { account: account.as_str(), conversation, message })
        .collect();
    if !items.is_empty() {
        JsonStatement::new(&SQL, &items)?.execute(conn).await?;
    }
    Ok(())
}

#[derive(QueryableByName)]
struct Shown {
    #[diesel(sql_type = Integer)]
    position: i32,
    #[diesel(sql_type = Text)]
    body: String,
    #[diesel(sql_type = Nullable<Text>)]
    accounting: Option<String>,
}

/// Messages from a position on, less `page.offset` of them, with what they took: as many as `page.limit`, or as a list
/// holds.
async fn shown(conn: &Conn, account: &AccountId, conversation: &str, from: i32, page: Page) -> Result<Vec<Shown>> {
    let mut conn = conn;
    let shown = "SELECT position, body, accounting FROM ( \
            SELECT position, body, accounting, row_number() OVER (ORDER BY position) AS place, \
                sum(octet_length(body)) OVER (ORDER BY position) AS bytes \
            FROM ( \
                SELECT position, body::text, accounting::text FROM messages \
                WHERE account_id = $1 AND conversation = $2 AND position >= $3 \
                ORDER BY position LIMIT $4 OFFSET $5 \
            ) AS page \
        ) AS counted WHERE place = 1 OR bytes <= $6 ORDER BY position";
    let shown = diesel::sql_query(shown)
        .bind::<Text, _>(account.as_str())
        .bind::<Text, _>(conversation)
        .bind::<Integer, _>(from)
        .bind::<BigInt, _>(page.limit)
        .bind::<BigInt, _>(page.offset)
        .bind::<BigInt, _>(i64::try_from(MOST_LISTED).unwrap_or(i64::MAX));
    Ok(shown.load(&mut conn).await?)
}

/// A page of messages with what they took; shorter than its limit where they are more than a list holds.
pub async fn content(conn: &Conn, account: &AccountId, conversation: &str, page: Page) -> Result<Vec<StoredJson>> {
    let shown = shown(conn, account, conversation, 0, page).await?;
    Ok(shown.into_iter().map(|row| StoredJson::message(row.body, row.accounting.as_deref())).collect())
}

/// Messages at these positions, in their order, without what they took.
pub async fn messages_at(
    conn: &Conn,
    account: &AccountId,
    conversation: &str,
    positions: &[i32],
) -> Result<Vec<StoredJson>> {
    let mut conn = conn;
    let of = messages::account_id.eq(account.as_str()).and(messages::conversation.eq(conversation));
    let bodies = messages::table
        .filter(of.and(messages::position.eq_any(positions)))
        .order(messages::position)
        .select(sql::<Text>("body::text"));
    let bodies: Vec<String> = bodies.load(&mut conn).await?;
    Ok(bodies.into_iter().map(|body| StoredJson::message(body, None)).collect())
}

/// All messages of a conversation with what they took.
pub enum Content {
    /// In memory.
    Whole(Vec<StoredJson>),
    /// Page by page: they are more than a list holds.
    Paged(ContentPages),
}

/// Reads the messages of a conversation page by page.
pub struct ContentPages {
    db: Db,
    account: AccountId,
    conversation: String,
    next: i32,
}

impl Content {
    /// Reads those of a conversation.
    pub async fn read(db: &Db, account: &AccountId, conversation: &str) -> Result<Self> {
        let conn = db.read().await?;
        let bytes = content_bytes(conn.get(), account, &[conversation.to_owned()]).await?;
        if bytes.values().any(|bytes| *bytes > MOST_LISTED) {
            return Ok(Self::Paged(ContentPages::new(db, account, conversation)));
        }
        let all = Page { limit: i64::MAX, offset: 0 };
        content(conn.get(), account, conversation, all).await.map(Self::Whole)
    }

    /// What is in memory, and what is read page by page.
    pub fn apart(self) -> (Option<Vec<StoredJson>>, Option<ContentPages>) {
        match self {
            Self::Whole(messages) => (Some(messages), None),
            Self::Paged(pages) => (None, Some(pages)),
        }
    }
}

impl ContentPages {
    /// Those of a conversation, from the first message on.
    pub fn new(db: &Db, account: &AccountId, conversation: &str) -> Self {
        Self { db: db.clone(), account: account.clone(), conversation: conversation.to_owned(), next: 0 }
    }

    /// All of them, some at a time.
    pub fn into_stream(self) -> impl Stream<Item = Result<Vec<StoredJson>>> {
        try_unfold(self, |mut pages| async move {
            let messages = pages.next().await?;
            Ok((!messages.is_empty()).then_some((messages, pages)))
        })
    }

    /// The next messages; none when there are no more.
    async fn next(&mut self) -> Result<Vec<StoredJson>> {
        let conn = self.db.read().await?;
        let page = Page { limit: SLICE, offset: 0 };
        let shown = shown(conn.get(), &self.account, &self.conversation, self.next, page).await?;
        self.next = shown.last().map_or(self.next, |row| row.position + 1);
        Ok(shown.into_iter().map(|row| StoredJson::message(row.body, row.accounting.as_deref())).collect())
    }
}

/// Messages of several conversations as a list shows them, and how many of the first conversations it shows: as many as
/// it holds. One that is larger than a list is shown without its messages.
pub async fn listed_contents(
    conn: &Conn,
    account: &AccountId,
    conversations: &[String],
) -> Result<(usize, HashMap<String, Vec<StoredJson>>)> {
    let sizes = content_bytes(conn, account, conversations).await?;
    let size = |conversation: &String| sizes.get(conversation).copied().unwrap_or_default();
    let is_shown = |conversation: &&String| size(conversation) <= MOST_LISTED;
    let fits = fitting(conversations.iter().map(|of| Some(of).filter(is_shown).map_or(0, size)), MOST_LISTED);
    let shown = conversations.iter().take(fits).filter(is_shown);
    let mut contents: HashMap<String, Vec<StoredJson>> = shown.map(|of| (of.clone(), Vec::new())).collect();
    let mut conn = conn;
    let rows: Vec<(String, String, Option<String>)> = messages::table
        .filter(messages::account_id.eq(account.as_str()).and(messages::conversation.eq_any(contents.keys())))
        .order((messages::conversation, messages::position))
        .select((messages::conversation, messages::body, messages::accounting))
        .load(&mut conn)
        .await?;
    for (of, body, accounting) in rows {
        contents.entry(of).or_default().push(StoredJson::message(body, accounting.as_deref()));
    }
    Ok((fits, contents))
}

#[derive(QueryableByName)]
struct Size {
    #[diesel(sql_type = Text)]
    conversation: String,
    #[diesel(sql_type = BigInt)]
    bytes: i64,
}

/// How many bytes the messages of several conversations have; those without any are left out.
async fn content_bytes(conn: &Conn, account: &AccountId, conversations: &[String]) -> Result<HashMap<String, usize>> {
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

/// Those of some conversations, each with its account, for which a message waits.
pub async fn awaited(conn: &Conn, conversations: &[(&AccountId, &str)]) -> Result<Vec<(String, String)>> {
    let (accounts, names): (Vec<&str>, Vec<&str>) =
        conversations.iter().map(|(account, conversation)| (account.as_str(), *conversation)).unzip();
    let mut conn = conn;
    Ok(queued_messages::table
        .filter(queued_messages::account_id.eq_any(accounts))
        .filter(queued_messages::conversation.eq_any(names))
        .select((queued_messages::account_id, queued_messages::conversation))
        .distinct()
        .load(&mut conn)
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
