use diesel::{QueryableByName, sql_types::Text};
use diesel_async::{AsyncConnection, RunQueryDsl};
use futures_util::FutureExt;
use platform_core::{Error, Result};
use platform_db::{Conn, Db, GroupWriter, JsonStatement};
use platform_jobs::{FINISH, Run, is_held_in};
use serde::Serialize;

/// What a turn leaves behind, at a step or at its end.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
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
    pub now_ms: i64,
}

/// A message at its position.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MessageRow {
    pub position: i32,
    pub uid: String,
    pub role: &'static str,
    /// JSON text.
    pub body: String,
    /// JSON text.
    pub accounting: Option<String>,
    pub created_ms: i64,
}

#[derive(QueryableByName)]
struct Held {
    #[diesel(sql_type = Text)]
    run: String,
}

const ITEM: &str = "WITH item AS (
    SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(
        run text, fence bigint, account text, chat text, status text, stop_reason text, error text,
        provider text, llm text, context_window bigint, input_tokens bigint, output_tokens bigint, usage text,
        revision bigint, messages jsonb, message_count int, now_ms bigint)
), ";

const STORE: &str = "chat AS (
    UPDATE chats SET status = held.status, stop_reason = held.stop_reason, error = held.error::json,
        provider = coalesce(held.provider, chats.provider), llm = coalesce(held.llm, chats.llm),
        context_window = CASE WHEN held.llm IS NULL THEN chats.context_window ELSE held.context_window END,
        input_tokens = held.input_tokens, output_tokens = held.output_tokens, usage = held.usage::json,
        revision = held.revision, message_count = held.message_count, edited_ms = held.now_ms
    FROM held WHERE chats.account_id = held.account AND chats.uid = held.chat
    RETURNING chats.account_id, chats.uid
), stored AS (
    INSERT INTO messages (account_id, chat_uid, position, uid, role, body, accounting, created_ms)
    SELECT held.account, held.chat, m.position, m.uid, m.role, m.body::json, m.accounting::json, m.created_ms
    FROM held JOIN chat ON chat.account_id = held.account AND chat.uid = held.chat, jsonb_to_recordset(held.messages) AS m(
        position int, uid text, role text, body text, accounting text, created_ms bigint)
) SELECT run FROM held";

/// Ends turns in groups, each under its lease.
pub(crate) struct Finisher {
    db: Db,
    group: GroupWriter<Outcome, bool>,
}

impl Finisher {
    pub fn new(db: &Db) -> Self {
        Self { db: db.clone(), group: GroupWriter::new(db, 64, |conn, items| finish(conn, items).boxed()) }
    }

    /// Ends a run with its result; `false` when its lease was lost, and then nothing was written.
    pub async fn finish(&self, outcome: Outcome) -> Result<bool> {
        self.group.write(outcome).await
    }

    /// Stores a step of a run that goes on; `false` as above.
    pub async fn step(&self, run: &Run, outcome: &Outcome) -> Result<bool> {
        self.db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                if !is_held_in(conn, run).await? {
                    return Ok(false);
                }
                static SQL: std::sync::LazyLock<String> =
                    std::sync::LazyLock::new(|| format!("{ITEM} held AS (SELECT * FROM item), {STORE}"));
                let _: Vec<Held> = JsonStatement::new(&SQL, std::slice::from_ref(outcome))?.load(conn).await?;
                Ok(true)
            })
            .await
    }
}

async fn finish(conn: &mut Conn, items: &[Outcome]) -> Result<Vec<bool>> {
    static SQL: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        format!("{ITEM} run AS ({FINISH}), held AS (SELECT item.* FROM item JOIN run ON run.id = item.run), {STORE}")
    });
    let rows: Vec<Held> = JsonStatement::new(&SQL, items)?.load(conn).await?;
    let held: std::collections::HashSet<String> = rows.into_iter().map(|row| row.run).collect();
    Ok(items.iter().map(|item| held.contains(&item.run)).collect())
}
