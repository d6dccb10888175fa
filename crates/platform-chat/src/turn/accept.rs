use std::sync::LazyLock;

use diesel::{
    QueryableByName,
    sql_types::{BigInt, Bool, Integer, Jsonb, Nullable, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use futures_util::FutureExt;
use platform_conversation::{ConversationStore, INSERT_MESSAGES, StoredFile, TurnRequest};
use platform_core::{Error, Object, Result, Timestamp};
use platform_db::{Conn, Db, GroupWriter, Idempotency, JsonStatement};
use platform_jobs::ENQUEUE;
use platform_runtime::Refusal;
use platform_tenants::{RESERVE, refusals};
use serde_json::Value;

use super::{acceptance::Acceptance, message::Accepted, queue::resume, work::KIND};
use crate::chat::repository::note_trigger;

/// What became of a message that was to be accepted.
#[derive(Debug, Clone)]
pub(crate) enum AcceptOutcome<T> {
    Accepted(T),
    /// The chat cannot take it now.
    ChatIsBusy,
    /// Its payer is out of quota.
    Refused(Box<Refusal>),
}

/// The chat as it is after the acceptance.
#[derive(Debug, Clone)]
pub(crate) struct AcceptedChat {
    pub created: bool,
    pub revision: i64,
    pub message_count: i32,
    pub turn_start: i32,
    pub usage: Option<String>,
    pub metadata: Object,
    pub named: bool,
    pub guardrails: Option<String>,
    pub compactions: Option<String>,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    /// The time of its newest message: that of a message of the past, when the clock has gone back.
    pub newest: Timestamp,
}

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Integer)]
    n: i32,
    #[diesel(sql_type = Nullable<Bool>)]
    created: Option<bool>,
    #[diesel(sql_type = Nullable<BigInt>)]
    revision: Option<i64>,
    #[diesel(sql_type = Nullable<Integer>)]
    message_count: Option<i32>,
    #[diesel(sql_type = Nullable<Integer>)]
    turn_start: Option<i32>,
    #[diesel(sql_type = Nullable<Text>)]
    usage: Option<String>,
    #[diesel(sql_type = Nullable<Jsonb>)]
    metadata: Option<Value>,
    #[diesel(sql_type = Nullable<Bool>)]
    named: Option<bool>,
    #[diesel(sql_type = Nullable<Text>)]
    guardrails: Option<String>,
    #[diesel(sql_type = Nullable<Text>)]
    compactions: Option<String>,
    #[diesel(sql_type = Nullable<Text>)]
    tenant: Option<String>,
    #[diesel(sql_type = Nullable<Text>)]
    subtenant: Option<String>,
    #[diesel(sql_type = Nullable<BigInt>)]
    edited: Option<i64>,
}

/// Accepts turns; a chat that is busy, another assistant's, or not whose the message says it is, or that has no room for
/// the message's tags and metadata, gives no row. What a spent quota left unanswered, up to as many as a queue holds, is
/// answered with the new message (contract 02 §6).
const ACCEPT: [&str; 5] = [
    "WITH item AS (
        SELECT row_number() OVER () - 1 AS n, x.* FROM jsonb_to_recordset($1::jsonb) AS x(
            account text, subject text, kind text, run text, owner text, lease_ms bigint, payload jsonb, trace text,
            assistant text, llm text, name text, named bool, user_uid text, tenant_id text, subtenant_id text, api_source text,
            metadata jsonb, tags text[], most_tags int, most_metadata int, previous jsonb, message_uid text, message text, now_ms bigint, charge jsonb)
    ), chat AS (
        INSERT INTO chats AS c (account_id, uid, assistant, llm, name, named, status, user_uid, tenant_id, subtenant_id,
            api_source, metadata, tags, revision, message_count, turn_start, created_ms, edited_ms)
        SELECT account, subject, assistant, llm, name, named, 'processing', user_uid, tenant_id, subtenant_id,
            api_source, metadata, tags, 1, jsonb_array_length(previous) + 1, jsonb_array_length(previous),
            now_ms, now_ms
        FROM item ORDER BY account, subject
        ON CONFLICT (account_id, uid) DO UPDATE SET
            status = 'processing', stop_reason = NULL, error = NULL, archived = false,
            metadata = c.metadata || excluded.metadata || CASE WHEN c.subtenant_id IS NULL THEN '{}'
                ELSE jsonb_build_object('subtenantId', c.subtenant_id) END,
            tags = c.tags || ARRAY(SELECT t FROM unnest(excluded.tags) t WHERE t <> ALL (c.tags)),
            revision = c.revision + 1, turn_start = CASE WHEN c.status = 'limit_exceeded' AND c.message_count - c.turn_start < 100 AND NOT EXISTS (
                SELECT FROM messages m WHERE m.account_id = c.account_id AND m.conversation = c.uid
                    AND m.position >= c.turn_start AND m.role <> 'user')
                THEN c.turn_start ELSE c.message_count END, message_count = c.message_count + 1,
            edited_ms = greatest(c.edited_ms, excluded.edited_ms)
        WHERE c.status IN ('completed', 'error', 'limit_exceeded') AND c.queued = 0
            AND c.assistant = excluded.assistant
            AND excluded.tenant_id IS NOT DISTINCT FROM c.tenant_id
            AND excluded.subtenant_id IS NOT DISTINCT FROM c.subtenant_id
            AND (excluded.tags = '{}' AND excluded.metadata = '{}' OR has_room(c.tags, excluded.tags,
                (SELECT max(most_tags) FROM item), c.metadata, excluded.metadata, (SELECT max(most_metadata) FROM item)))
        RETURNING c.account_id, c.uid, c.xmax = 0 AS created, c.revision, c.message_count, c.turn_start,
            c.usage::text AS usage, c.metadata AS stored_metadata, c.named AS stored_named, c.guardrails::text AS guardrails,
            c.compactions::text AS compactions, c.tenant_id AS tenant, c.subtenant_id AS subtenant,
            c.edited_ms AS edited
    ), accepted AS (
        SELECT * FROM item JOIN chat ON chat.account_id = item.account AND chat.uid = item.subject
    ), written AS (
        SELECT account, subject AS conversation, past.position, past.uid, past.role, past.body, NULL AS accounting,
            now_ms AS created_ms
        FROM accepted, jsonb_to_recordset(previous) AS past(position int, uid text, role text, body text)
        WHERE created
        UNION ALL
        SELECT account, subject, message_count - 1, message_uid, 'user', CASE WHEN edited > now_ms
            THEN jsonb_set(message::jsonb, '{timestamp}', to_jsonb(edited))::text ELSE message END, NULL, edited
        FROM accepted
    ), stored AS (",
    INSERT_MESSAGES,
    "), queued AS (",
    ENQUEUE,
    ")",
];

const SELECT: &str = "
    SELECT item.n::int, accepted.created, accepted.revision, accepted.message_count, accepted.turn_start,
        accepted.usage, accepted.stored_metadata AS metadata, accepted.stored_named AS named, accepted.guardrails, accepted.compactions,
        accepted.tenant, accepted.subtenant, accepted.edited
    FROM item LEFT JOIN accepted USING (n)";

/// The same with what is reserved for those that were accepted: it fails when anybody has no room.
static METERED: LazyLock<String> = LazyLock::new(|| {
    let charges =
        "(SELECT jsonb_agg(charge || jsonb_build_object('n', n)) FROM accepted WHERE jsonb_typeof(charge) = 'object')";
    let quota = format!(", quota AS MATERIALIZED (SELECT {}{charges}{} AS refused)", RESERVE.0, RESERVE.1);
    [&ACCEPT.concat(), &quota, SELECT, " CROSS JOIN quota ORDER BY item.n"].concat()
});
static PLAIN: LazyLock<String> = LazyLock::new(|| [&ACCEPT.concat(), SELECT, " ORDER BY item.n"].concat());

/// Accepts turns in groups.
pub(crate) struct Acceptor {
    db: Db,
    group: GroupWriter<Acceptance, AcceptOutcome<AcceptedChat>>,
}

impl Acceptor {
    pub fn new(db: &Db) -> Self {
        Self { db: db.clone(), group: GroupWriter::new(db, 64, |conn, items| accept(conn, items).boxed()) }
    }

    /// Accepts a message; the chat as it is now.
    pub async fn accept(&self, item: Acceptance) -> Result<AcceptOutcome<AcceptedChat>> {
        self.group.write(item).await
    }

    /// The same together with files and an idempotency key, in a transaction of its own. `resumed`: what the message
    /// wants, when what waits for quota is to be answered with it.
    pub async fn accept_with(
        &self,
        item: &mut Acceptance,
        resumed: Option<&mut TurnRequest>,
        files: &[StoredFile],
        once: Option<&Idempotency>,
        answer: Option<&Accepted>,
    ) -> Result<AcceptOutcome<AcceptedChat>> {
        let mut conn = self.db.conn().await?;
        let accepted = conn
            .transaction::<_, Error, _>(async |conn| {
                if let Some(once) = once {
                    once.lock(conn).await?;
                }
                if let Some(request) = resumed
                    && !resume(conn, item, request).await?
                {
                    return Err(diesel::result::Error::RollbackTransaction.into());
                }
                match (once, answer) {
                    (Some(once), Some(answer)) => once.store(conn, 200, answer).await?,
                    (Some(once), None) => {
                        once.store_run(conn, &format!("{}/{}", item.subject, item.message_uid)).await?;
                    }
                    (None, _) => {}
                }
                match write(conn, std::slice::from_ref(&*item)).await?.pop().flatten() {
                    Some(chat) => {
                        if let Some(trigger) = item.trigger.as_ref().filter(|_| chat.created) {
                            note_trigger(conn, &item.account(), &item.subject, trigger).await?;
                        }
                        ConversationStore::of(&item.account(), &item.subject)
                            .store_files(conn, &item.message_uid, files)
                            .await?;
                        Ok(AcceptOutcome::Accepted(chat))
                    }
                    // The key stays free.
                    None => Err(diesel::result::Error::RollbackTransaction.into()),
                }
            })
            .await;
        accepted.or_else(|error| match refusal_of(item, &error) {
            Some(refusal) => Ok(AcceptOutcome::Refused(Box::new(refusal))),
            None if is_rollback(&error) => Ok(AcceptOutcome::ChatIsBusy),
            None => Err(error),
        })
    }
}

fn is_rollback(error: &Error) -> bool {
    error.cause().is_some_and(|cause| matches!(cause.downcast_ref(), Some(diesel::result::Error::RollbackTransaction)))
}

fn refusal_of(item: &Acceptance, error: &Error) -> Option<Refusal> {
    refused(std::slice::from_ref(item), error)?.pop().map(|(_, refusal)| refusal)
}

/// Which of the items were refused, when that is why the statement failed.
fn refused(items: &[Acceptance], error: &Error) -> Option<Vec<(usize, Refusal)>> {
    refusals(&items.iter().map(|item| item.charge.as_ref()).collect::<Vec<_>>(), error)
}

/// Writes a group. Those that are refused leave it, and the others are tried once more.
async fn accept(conn: &mut Conn, items: &[Acceptance]) -> Result<Vec<AcceptOutcome<AcceptedChat>>> {
    let refused = match write(conn, items).await {
        Ok(chats) => {
            let outcome = |chat: Option<_>| chat.map_or(AcceptOutcome::ChatIsBusy, AcceptOutcome::Accepted);
            return Ok(chats.into_iter().map(outcome).collect());
        }
        Err(error) => refused(items, &error).ok_or(error)?,
    };
    let mut outcomes: Vec<Option<AcceptOutcome<_>>> = items.iter().map(|_| None).collect();
    for (n, refusal) in refused {
        outcomes[n] = Some(AcceptOutcome::Refused(Box::new(refusal)));
    }
    let left: Vec<usize> = (0..items.len()).filter(|n| outcomes[*n].is_none()).collect();
    if !left.is_empty() {
        let again: Vec<Acceptance> = left.iter().map(|n| items[*n].clone()).collect();
        for (n, outcome) in left.into_iter().zip(Box::pin(accept(conn, &again)).await?) {
            outcomes[n] = Some(outcome);
        }
    }
    Ok(outcomes.into_iter().flatten().collect())
}

async fn write(conn: &mut Conn, items: &[Acceptance]) -> Result<Vec<Option<AcceptedChat>>> {
    debug_assert!(items.iter().all(|item| item.kind == KIND));
    let reserves = |item: &Acceptance| item.charge.as_ref().is_some_and(|charge| charge.reserve.is_some());
    let sql = if items.iter().any(reserves) { &METERED } else { &PLAIN };
    let rows: Vec<Row> = JsonStatement::new(sql, items)?.load(conn).await?;
    Ok(rows
        .into_iter()
        .enumerate()
        .map(|(at, row)| {
            debug_assert_eq!(usize::try_from(row.n).ok(), Some(at));
            Some(AcceptedChat {
                created: row.created?,
                revision: row.revision?,
                message_count: row.message_count?,
                turn_start: row.turn_start?,
                usage: row.usage,
                metadata: match row.metadata? {
                    Value::Object(metadata) => metadata,
                    _ => Object::new(),
                },
                named: row.named?,
                guardrails: row.guardrails,
                compactions: row.compactions,
                tenant_id: row.tenant,
                subtenant_id: row.subtenant,
                newest: Timestamp(row.edited?),
            })
        })
        .collect())
}
