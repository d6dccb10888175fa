use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use diesel::{
    QueryableByName,
    sql_types::{BigInt, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use futures_util::FutureExt;
use platform_conversation::{Conversation, INSERT_MESSAGES, MessageRow};
use platform_core::{Error, Result, Timestamp};
use platform_db::{Conn, Db, GroupWriter, JsonStatement};
use platform_events::{EventRow, PUBLISH};
use platform_jobs::{FINISH, Run, STEP, When, end_in, enqueue_in, is_held_in};
use platform_runtime::{ModelSpec, ToldMemories};
use platform_tenants::SETTLE;
use serde::Serialize;
use serde_json::{json, value::RawValue};

use super::work::KIND;
use crate::chat::repository::LIMIT_EXCEEDED;

/// What a turn leaves behind, at a step or at its end.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TurnCommit {
    pub run: String,
    pub fence: i64,
    pub account: String,
    pub chat: String,
    pub status: &'static str,
    pub stop_reason: Option<&'static str>,
    /// JSON text.
    pub error: Option<String>,
    pub provider: Option<String>,
    pub llm: Option<String>,
    pub context_window: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// JSON text of the chat's token usage.
    pub usage: String,
    pub revision: i64,
    pub messages: Vec<MessageRow>,
    pub message_count: i32,
    /// Where the next turn begins, when one follows at once.
    pub turn_start: Option<i32>,
    /// JSON text of what guardrails found in the last turns.
    pub guardrails: Option<String>,
    /// What the turn was told from memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memories: Option<ToldMemories>,
    /// JSON text of the calls that have no result.
    pub open_calls: Option<String>,
    /// The run waits for so long at the most, for whoever answers.
    pub sleep_ms: Option<i64>,
    pub now_ms: i64,
    /// What its model calls took of quotas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub took: Vec<Arc<RawValue>>,
    /// What is told of the end, when anybody listens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventRow>,
    /// When there may be quota again, if there was none.
    #[serde(skip)]
    pub retry_ms: Option<i64>,
}

impl TurnCommit {
    /// A step or an end, as far as both are alike.
    pub fn of(run: &Run, chat: &Conversation, revision: i64, messages: Vec<MessageRow>, now: Timestamp) -> Self {
        let count = i32::try_from(messages.len()).unwrap_or(0);
        let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            run: run.id.clone(),
            fence: run.fence,
            account: chat.account.as_str().to_owned(),
            chat: chat.uid.clone(),
            status: "processing",
            stop_reason: None,
            error: None,
            provider: None,
            llm: None,
            context_window: 0,
            input_tokens: tokens(chat.usage.tokens.input_tokens),
            output_tokens: tokens(chat.usage.tokens.output_tokens),
            usage: serde_json::to_string(&chat.usage).unwrap_or_default(),
            revision,
            messages,
            message_count: chat.message_count + count,
            turn_start: None,
            guardrails: None,
            memories: None,
            open_calls: None,
            sleep_ms: None,
            now_ms: now.0,
            took: Vec::new(),
            events: Vec::new(),
            retry_ms: None,
        }
    }

    /// Notes whose answer it holds.
    pub fn answered_by(&mut self, model: &ModelSpec) {
        self.provider = Some(model.provider.to_string());
        self.llm = Some(model.llm.to_string());
        self.context_window = i64::try_from(model.context_window).unwrap_or(i64::MAX);
    }
}

/// What became of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The lease was lost: nothing was written.
    Lost,
    /// The chat stands at this revision.
    At(i64),
    /// The same, and a run waits that answers what was queued.
    GoesOn(i64),
}

#[derive(QueryableByName)]
struct Held {
    #[diesel(sql_type = Text)]
    run: String,
    #[diesel(sql_type = BigInt)]
    revision: i64,
}

const ITEM: &str = "WITH item AS (
    SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(
        run text, fence bigint, account text, chat text, status text, stop_reason text, error text,
        provider text, llm text, context_window bigint, input_tokens bigint, output_tokens bigint, usage text,
        revision bigint, messages jsonb, message_count int, turn_start int, guardrails text, memories jsonb,
        open_calls text, sleep_ms bigint, now_ms bigint, took jsonb, events jsonb)
), ";

const STORE: &str = "chat AS (
    UPDATE chats SET status = held.status, stop_reason = held.stop_reason, error = held.error::json,
        provider = coalesce(held.provider, chats.provider),
        llm = coalesce(held.llm, CASE WHEN chats.provider IS NOT NULL OR held.status = 'processing' THEN chats.llm END),
        context_window = CASE WHEN held.llm IS NULL THEN chats.context_window ELSE held.context_window END,
        input_tokens = held.input_tokens, output_tokens = held.output_tokens, usage = held.usage::json,
        revision = greatest(held.revision, chats.revision + 1), message_count = held.message_count,
        turn_start = coalesce(held.turn_start, chats.turn_start),
        guardrails = coalesce(held.guardrails::json, chats.guardrails), open_calls = held.open_calls::json,
        noted = CASE WHEN held.memories IS NULL THEN chats.noted ELSE add_memories(chats.noted, held.memories) END,
        edited_ms = greatest(chats.edited_ms, held.now_ms)
    FROM held WHERE chats.account_id = held.account AND chats.uid = held.chat
    RETURNING chats.account_id, chats.uid, chats.revision
), written AS (
    SELECT held.account, held.chat AS conversation, m.*
    FROM held JOIN chat ON chat.account_id = held.account AND chat.uid = held.chat, jsonb_to_recordset(held.messages) AS m(
        position int, uid text, role text, body text, accounting text, created_ms bigint)
)";

const SELECT: &str =
    " SELECT held.run, chat.revision FROM held JOIN chat ON chat.account_id = held.account AND chat.uid = held.chat";

/// Stores what turns do and, in groups, how they end, each under its lease.
pub(crate) struct Finisher {
    db: Db,
    group: GroupWriter<Arc<TurnCommit>, Option<i64>>,
}

impl Finisher {
    pub fn new(db: &Db) -> Self {
        let group = GroupWriter::new(db, 64, |conn, items: &[Arc<TurnCommit>]| {
            async move { store(conn, items.iter().map(Arc::as_ref).collect(), &ENDS).await }.boxed()
        });
        Self { db: db.clone(), group }
    }

    /// Ends a run with its result. When messages were queued meanwhile, the chat goes on with another run.
    pub async fn finish(&self, run: &Run, outcome: TurnCommit) -> Result<Stored> {
        let outcome = Arc::new(outcome);
        if let Some(revision) = self.group.write(Arc::clone(&outcome)).await? {
            return Ok(Stored::At(revision));
        }
        // A failure stays to be seen until the next turn begins.
        let failed = outcome.status == "error" || outcome.status == LIMIT_EXCEEDED;
        let next = TurnCommit {
            status: if failed { outcome.status } else { "processing" },
            stop_reason: outcome.stop_reason.filter(|_| failed),
            turn_start: Some(outcome.message_count),
            ..Arc::unwrap_or_clone(outcome)
        };
        self.replace(run, &next).await
    }

    /// Stores what a run has done that goes on, or sleeps.
    pub async fn step(&self, outcome: &TurnCommit) -> Result<Stored> {
        let stored = store(&mut *self.db.conn().await?, vec![outcome], &KEEPS).await?;
        Ok(stored.into_iter().next().flatten().map_or(Stored::Lost, Stored::At))
    }

    /// Ends a run and has another take its place.
    async fn replace(&self, run: &Run, outcome: &TurnCommit) -> Result<Stored> {
        self.db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                if !is_held_in(conn, run).await? {
                    return Ok(Stored::Lost);
                }
                let stored = store(conn, vec![outcome], &KEEPS).await?;
                end_in(conn, run).await?;
                // What is queued waits until there is quota again.
                let wait = outcome.retry_ms.map_or(0, |retry| retry - outcome.now_ms).max(0);
                let after = When::After(Duration::from_millis(wait.unsigned_abs()));
                enqueue_in(conn, &run.account(), KIND, &run.subject, json!({}), after).await?;
                Ok(stored.into_iter().next().flatten().map_or(Stored::Lost, Stored::GoesOn))
            })
            .await
    }
}

/// A statement, and the same with what is settled of quotas.
struct Statements {
    plain: String,
    metered: String,
    /// Both with what is told of the ends.
    told: (String, String),
}

static ENDS: LazyLock<Statements> = LazyLock::new(|| Statements::over(FINISH));
static KEEPS: LazyLock<Statements> = LazyLock::new(|| Statements::over(STEP));

impl Statements {
    /// Writes each outcome whose lease is held, as `runs` finds, a piece of SQL of the crate that owns them.
    fn over(runs: &str) -> Self {
        let write = format!(
            "{ITEM} run AS ({runs}), held AS (
            SELECT item.* FROM item JOIN run ON run.id = item.run ORDER BY item.account, item.chat), {STORE},
            stored AS ({INSERT_MESSAGES})"
        );
        let took = "(SELECT jsonb_agg(took.one) FROM held JOIN chat ON chat.account_id = held.account
            AND chat.uid = held.chat, jsonb_array_elements(held.took) AS took(one))";
        let told = format!("{write}, told AS ({}(SELECT jsonb_agg(told.one) FROM held JOIN chat ON
            chat.account_id = held.account AND chat.uid = held.chat, jsonb_array_elements(held.events) AS told(one)){})",
            PUBLISH.0, PUBLISH.1);
        let settled = format!(", quota AS MATERIALIZED (SELECT {}{took}{} AS settled)", SETTLE.0, SETTLE.1);
        Self {
            plain: format!("{write}{SELECT}"),
            metered: format!("{write}{settled}{SELECT} CROSS JOIN quota"),
            told: (format!("{told}{SELECT}"), format!("{told}{settled}{SELECT} CROSS JOIN quota")),
        }
    }
}

async fn store(conn: &mut Conn, items: Vec<&TurnCommit>, sql: &'static Statements) -> Result<Vec<Option<i64>>> {
    let is_metered = items.iter().any(|item| !item.took.is_empty());
    let is_told = items.iter().any(|item| !item.events.is_empty());
    let sql = match (is_metered, is_told) {
        (false, false) => &sql.plain,
        (true, false) => &sql.metered,
        (false, true) => &sql.told.0,
        (true, true) => &sql.told.1,
    };
    // Whoever locks several runs locks them in this order.
    let mut ordered = items.clone();
    ordered.sort_unstable_by_key(|item| &item.run);
    let rows: Vec<Held> = JsonStatement::new(sql, &ordered)?.load(conn).await?;
    let held: std::collections::HashMap<String, i64> = rows.into_iter().map(|row| (row.run, row.revision)).collect();
    Ok(items.iter().map(|item| held.get(&item.run).copied()).collect())
}
