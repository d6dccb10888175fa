use diesel::{
    dsl::{AsExprOf, sql},
    expression::{SqlLiteral, UncheckedBind},
    prelude::*,
    sql_types::{BigInt, Bool, Jsonb, Nullable, SmallInt, Text},
};
use diesel_async::RunQueryDsl;
use platform_conversation::{ConversationStore, open_text};
use platform_core::{AccountId, Code, Error, Result, Timestamp};
use platform_db::{Conn, JsonStatement};
use platform_jobs::Run;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    change::request::ThreadPatch,
    change::state::{StateChange, ThreadState},
    facts::Facts,
    record::{Record, key},
    row::{ThreadRow, by_id, names_address},
};
use crate::schema::threads;

/// What a sub-thread was handed over by, as its index has it: a thread, or `chat:` and a chat; and by which call.
const ABOVE: &str = "coalesce(facts #>> '{parent,parentThreadId}', 'chat:' || (facts #>> '{parent,parentChatUID}'))";
const FOR_CALL: &str = "facts #>> '{parent,subThreadToolCallId}'";

/// A thread as a statement takes it.
#[derive(Serialize)]
struct Stored<'a> {
    account: &'a str,
    id: &'a str,
    agent: &'a str,
    name: Option<&'a str>,
    user_uid: &'a str,
    tenant: Option<&'a str>,
    subtenant: Option<&'a str>,
    api_source: Option<&'a str>,
    metadata: &'a Value,
    tags: &'a [String],
    state: &'static str,
    finish_reason: Option<&'a str>,
    stop_reason: Option<&'a str>,
    provider: Option<&'a str>,
    llm: Option<&'a str>,
    /// JSON text.
    usage: String,
    total_tokens: i64,
    /// JSON text.
    open_calls: Option<String>,
    /// JSON text.
    guardrails: Option<&'a str>,
    revision: i64,
    message_count: i32,
    turn_start: i32,
    changes: &'a [StateChange],
    facts: &'a Facts,
    started_ms: Option<i64>,
    finished_ms: Option<i64>,
    duration_ms: i64,
    created_ms: i64,
    edited_ms: i64,
}

impl<'a> Stored<'a> {
    fn of(record: &'a Record) -> Result<Self> {
        let row = &record.row;
        Ok(Self {
            account: &row.account_id,
            id: &row.id,
            agent: &row.agent_id,
            name: row.name.as_deref(),
            user_uid: &row.user_uid,
            tenant: row.tenant_id.as_deref(),
            subtenant: row.subtenant_id.as_deref(),
            api_source: row.api_source.as_deref(),
            metadata: &row.metadata,
            tags: &row.tags,
            state: record.state.as_str(),
            finish_reason: record.finish_reason.as_deref(),
            stop_reason: record.stop_reason.as_deref(),
            provider: record.provider.as_deref(),
            llm: record.llm.as_deref(),
            usage: serde_json::to_string(&record.usage).map_err(Error::internal)?,
            total_tokens: row.total_tokens,
            open_calls: open_text(&record.open)?,
            guardrails: record.guardrails.as_deref(),
            revision: record.revision,
            message_count: record.message_count,
            turn_start: record.turn_start,
            changes: &record.changes,
            facts: &record.facts,
            started_ms: record.started.map(|at| at.0),
            finished_ms: record.finished.map(|at| at.0),
            duration_ms: record.duration_ms,
            created_ms: row.created_ms,
            edited_ms: row.edited_ms,
        })
    }

    fn all<'r>(records: impl Iterator<Item = &'r Record>) -> Result<Vec<Stored<'r>>> {
        records.map(Stored::of).collect()
    }
}

/// The same in SQL.
macro_rules! stored {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " FROM jsonb_to_recordset($1::jsonb) AS x(account text, id text, agent text, name text, user_uid text,
                tenant text, subtenant text, api_source text, metadata jsonb, tags text[], state text,
                finish_reason text, stop_reason text, provider text, llm text, usage text, total_tokens bigint,
                open_calls text, guardrails text, revision bigint, message_count int, turn_start int, changes jsonb,
                facts jsonb, started_ms bigint, finished_ms bigint, duration_ms bigint, created_ms bigint,
                edited_ms bigint)",
            $after
        )
    };
}

/// Stores threads as they are now: new ones, and those that are locked. The revision of each is at least what stands
/// beside it, and above the one before.
pub(super) async fn store(conn: &mut Conn, mut records: Vec<(&mut Record, i64)>, now: Timestamp) -> Result<()> {
    const INSERT: &str = stored!(
        "INSERT INTO threads (account_id, id, agent_id, name, user_uid, tenant_id, subtenant_id, api_source, metadata,
            tags, state, finish_reason, stop_reason, revision, message_count, turn_start, changes, facts, finished_ms,
            created_ms, edited_ms)
        SELECT account, id, agent, name, user_uid, tenant, subtenant, api_source, metadata, tags, state, finish_reason,
            stop_reason, revision, message_count, turn_start, changes, facts, finished_ms, created_ms, edited_ms",
        " ON CONFLICT DO NOTHING"
    );
    const UPDATE: &str = stored!(
        "UPDATE threads SET state = x.state, finish_reason = x.finish_reason, stop_reason = x.stop_reason,
            provider = x.provider, llm = x.llm, usage = x.usage::json, total_tokens = x.total_tokens,
            open_calls = x.open_calls::json, guardrails = x.guardrails::json, revision = x.revision,
            message_count = x.message_count, turn_start = x.turn_start, changes = x.changes, facts = x.facts,
            started_ms = x.started_ms, finished_ms = x.finished_ms, duration_ms = x.duration_ms,
            edited_ms = x.edited_ms",
        " WHERE threads.account_id = x.account AND threads.id = x.id"
    );
    for (record, revision) in &mut records {
        record.revision = (*revision).max(record.revision + 1);
        let tokens = &record.usage.tokens;
        record.row.total_tokens = i64::try_from(tokens.input_tokens + tokens.output_tokens).unwrap_or(i64::MAX);
        record.row.edited_ms = now.0.max(record.row.edited_ms);
    }
    let of = |is_new| records.iter().map(|(record, _)| &**record).filter(move |record| record.is_new() == is_new);
    let (new, known) = (Stored::all(of(true))?, Stored::all(of(false))?);
    if !new.is_empty() && JsonStatement::new(INSERT, &new)?.execute(conn).await? < new.len() {
        return Err(diesel::result::Error::RollbackTransaction.into());
    }
    if !known.is_empty() {
        JsonStatement::new(UPDATE, &known)?.execute(conn).await?;
    }
    Ok(())
}

/// Changes what a client may change at any time.
pub(super) async fn edit(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    patch: &ThreadPatch,
    now: Timestamp,
) -> Result<()> {
    diesel::update(by_id(account.as_str(), id))
        .set((
            threads::name.eq(&patch.name),
            threads::tags.eq(&patch.tags),
            threads::metadata.eq(Value::Object(patch.metadata.clone())),
            threads::revision.eq(threads::revision + 1),
            threads::edited_ms.eq(sql::<BigInt>("greatest(edited_ms, ").bind::<BigInt, _>(now.0).sql(")")),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

pub(super) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    ConversationStore::of(account, &key(id)).delete(conn).await?;
    diesel::delete(by_id(account.as_str(), id)).execute(conn).await?;
    Ok(())
}

/// Sub-threads at work for calls that are not open any more.
pub(super) async fn abandoned(conn: &mut Conn, record: &Record) -> Result<Vec<String>> {
    let terminal = ThreadState::ALL.iter().filter(|state| state.is_terminal()).map(|state| state.as_str());
    let at_work: Vec<(String, String)> = threads::table
        .filter(threads::account_id.eq(record.account.as_str()))
        .filter(sql::<Text>(ABOVE).eq(record.id()).and(sql::<Text>(FOR_CALL).is_not_null()))
        .filter(threads::state.ne_all(terminal))
        .select((threads::id, sql::<Text>(FOR_CALL)))
        .load(conn)
        .await?;
    let is_open = |call: &String| record.open.iter().any(|open| open.call.id == *call);
    Ok(at_work.into_iter().filter(|(_, call)| !is_open(call)).map(|(id, _)| id).collect())
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<Record>> {
    let mut conn = conn;
    let row = by_id(account.as_str(), id).select(ThreadRow::as_select()).first(&mut conn).await.optional()?;
    row.map(Record::read).transpose()
}

/// The thread that a call has handed its work to; `above`: the thread, or `chat:` and the chat, of the call.
pub(super) async fn handed_to(conn: &Conn, account: &AccountId, above: &str, call: &str) -> Result<Option<String>> {
    let mut conn = conn;
    let thread = threads::table
        .filter(threads::account_id.eq(account.as_str()))
        .filter(sql::<Text>(ABOVE).eq(above).and(sql::<Text>(FOR_CALL).eq(call)));
    Ok(thread.select(threads::id).first(&mut conn).await.optional()?)
}

/// `CONFLICT` unless a worker has the thread; it stays so until this transaction ends.
pub(super) async fn hold_processing(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    let processing = by_id(account.as_str(), id).filter(threads::state.eq(ThreadState::Processing.as_str()));
    let held: Option<String> = processing.for_share().select(threads::id).first(conn).await.optional()?;
    held.map(drop).ok_or_else(|| Error::new(Code::CONFLICT, "The thread that hands the work over has ended."))
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<Record>> {
    let row = by_id(account.as_str(), id).for_update().select(ThreadRow::as_select()).first(conn).await.optional()?;
    row.map(Record::read).transpose()
}

/// Locks the threads of some runs, before anything else of theirs is locked; unless it `waits`, without those that
/// somebody changes just now.
pub(crate) async fn lock_all(conn: &mut Conn, runs: &[&Run], waits: bool) -> Result<Vec<Record>> {
    let accounts: Vec<String> = runs.iter().map(|run| run.account().into()).collect();
    let ids: Vec<&str> = runs.iter().map(|run| run.subject.as_str()).collect();
    let locked = threads::table
        .filter(threads::account_id.eq_any(&accounts).and(threads::id.eq_any(&ids)))
        .order((threads::account_id, threads::id))
        .for_update()
        .select(ThreadRow::as_select());
    let rows: Vec<ThreadRow> = if waits { locked.load(conn).await? } else { locked.skip_locked().load(conn).await? };
    rows.into_iter().map(Record::read).collect()
}

pub(super) async fn revision(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<i64>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(threads::revision).first(&mut conn).await.optional()?)
}

/// Threads are taken by workers: what was queued is processed, and what a lost worker held was queued in between.
pub(super) async fn take(conn: &mut Conn, taken: &[(AccountId, &str, i32)], now: Timestamp) -> Result<Vec<Moved>> {
    const SQL: &str = concat!("WITH item AS (
            SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, thread text, attempt int, now_ms bigint)
        ), held AS (
            -- One that somebody changes just now is left to the next.
            SELECT t.account_id, t.id, t.state FROM threads t JOIN item i ON t.account_id = i.account AND t.id = i.thread
            WHERE t.state IN ('queued', 'processing') FOR UPDATE OF t SKIP LOCKED
        )
        UPDATE threads SET state = 'processing', revision = revision + 1, edited_ms = greatest(edited_ms, item.now_ms),
            started_ms = coalesce(started_ms, item.now_ms),
            duration_ms = duration_ms + CASE WHEN held.state = 'processing'
                THEN greatest(item.now_ms - (changes -> -1 ->> 'timestamp')::bigint, 0) ELSE 0 END,
            facts = jsonb_set(facts, '{turn,attempt}', to_jsonb(item.attempt)),
            changes = changes || CASE WHEN held.state = 'processing'
                THEN jsonb_build_array(jsonb_build_object('state', 'queued', 'timestamp', greatest(item.now_ms, (changes -> -1 ->> 'timestamp')::bigint), 'source', 'worker'))
                ELSE '[]' END
                || jsonb_build_array(jsonb_build_object('state', 'processing', 'timestamp', greatest(item.now_ms, (changes -> -1 ->> 'timestamp')::bigint), 'source', 'worker'))
        FROM item, held WHERE threads.account_id = item.account AND threads.id = item.thread
            AND held.account_id = threads.account_id AND held.id = threads.id
        RETURNING threads.account_id, threads.id, threads.agent_id, threads.tenant_id, threads.subtenant_id,
            held.state = 'processing' AS was_lost, coalesce((facts #>> '{turn,request,depth}')::smallint, 0::smallint) AS depth,
            ", names_address!(), " AS names_address");
    let items: Vec<Value> = taken
        .iter()
        .map(|(account, thread, attempt)| {
            json!({"account": account, "thread": thread, "attempt": attempt, "now_ms": now.0})
        })
        .collect();
    Ok(JsonStatement::new(SQL, &items)?.load(conn).await?)
}

/// A thread whose state was changed among others.
#[derive(diesel::QueryableByName)]
pub(crate) struct Moved {
    #[diesel(sql_type = Text)]
    account_id: String,
    #[diesel(sql_type = Text)]
    pub id: String,
    #[diesel(sql_type = Text)]
    pub agent_id: String,
    #[diesel(sql_type = Nullable<Text>)]
    pub tenant_id: Option<String>,
    #[diesel(sql_type = Nullable<Text>)]
    pub subtenant_id: Option<String>,
    /// Its worker was lost: it was queued in between.
    #[diesel(sql_type = Bool)]
    pub was_lost: bool,
    /// How many triggers led to it.
    #[diesel(sql_type = SmallInt)]
    depth: i16,
    /// Its events go to an address that it or its agent names.
    #[diesel(sql_type = Bool)]
    pub names_address: bool,
}

impl Moved {
    pub fn depth(&self) -> u8 {
        u8::try_from(self.depth).unwrap_or(u8::MAX)
    }

    pub fn account(&self) -> AccountId {
        AccountId::named(&self.account_id)
    }
}

/// Threads are handed back by a worker that shuts down.
pub(super) async fn hand_back(conn: &mut Conn, handed: &[(AccountId, &str)], now: Timestamp) -> Result<Vec<Moved>> {
    const SQL: &str = concat!("WITH item AS (
            SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, thread text, now_ms bigint)
        )
        UPDATE threads SET state = 'queued', revision = revision + 1, edited_ms = greatest(edited_ms, item.now_ms),
            duration_ms = duration_ms + greatest(item.now_ms - (changes -> -1 ->> 'timestamp')::bigint, 0),
            changes = changes || jsonb_build_array(
                jsonb_build_object('state', 'queued', 'timestamp', greatest(item.now_ms, (changes -> -1 ->> 'timestamp')::bigint), 'source', 'worker'))
        FROM item WHERE threads.account_id = item.account AND threads.id = item.thread
            AND threads.state = 'processing'
            AND (threads.account_id, threads.id) IN (SELECT t.account_id, t.id FROM threads t JOIN item i
                ON t.account_id = i.account AND t.id = i.thread FOR UPDATE OF t SKIP LOCKED)
        RETURNING threads.account_id, threads.id, threads.agent_id, threads.tenant_id, threads.subtenant_id,
            false AS was_lost, coalesce((facts #>> '{turn,request,depth}')::smallint, 0::smallint) AS depth,
            ", names_address!(), " AS names_address");
    let items: Vec<Value> =
        handed.iter().map(|(account, thread)| json!({"account": account, "thread": thread, "now_ms": now.0})).collect();
    Ok(JsonStatement::new(SQL, &items)?.load(conn).await?)
}

/// Adds a JSON value to the facts of a thread, beside everything else that happens to it; watchers see it.
pub(crate) async fn note_fact(conn: &mut Conn, account: &AccountId, id: &str, name: &str, value: &Value) -> Result<()> {
    diesel::update(by_id(account.as_str(), id))
        .set((threads::facts.eq(with_fact(name, value)), threads::revision.eq(threads::revision + 1)))
        .execute(conn)
        .await?;
    Ok(())
}

/// The same for what is no part of the thread as it is shown.
pub(super) async fn note_quietly(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    name: &str,
    value: &Value,
) -> Result<()> {
    let noted = threads::facts.eq(with_fact(name, value));
    diesel::update(by_id(account.as_str(), id)).set(noted).execute(conn).await?;
    Ok(())
}

type WithFact<'a> = UncheckedBind<
    SqlLiteral<Jsonb, UncheckedBind<SqlLiteral<Jsonb>, AsExprOf<&'a str, Text>>>,
    AsExprOf<&'a Value, Jsonb>,
>;

fn with_fact<'a>(name: &'a str, value: &'a Value) -> SqlLiteral<Jsonb, WithFact<'a>> {
    sql::<Jsonb>("facts || jsonb_build_object(").bind::<Text, _>(name).sql("::text, ").bind::<Jsonb, _>(value).sql(")")
}
