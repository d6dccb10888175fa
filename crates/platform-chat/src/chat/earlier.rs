//! What was said in the chats of a memory's bucket.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use diesel::{
    QueryableByName,
    sql_types::{Array, BigInt, Integer, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use futures_util::future::try_join_all;
use moka::sync::Cache;
use platform_core::{AccountId, Error, Result, Timestamp, run_blocking};
use platform_db::{Db, JsonStatement, containing};
use platform_runtime::{EarlierTurn, EarlierTurns, MemoryBucket, Role, SaidOnce};
use serde::{Deserialize, Serialize};

use super::repository::LOOK_TIMEOUT;

/// Chats that are looked at: those in which something was said last, of those that were begun last.
const MAX_CHATS: i64 = 100;
const MAX_BEGUN: i64 = 1000;
/// Chats in which a word is looked for, and messages of each, the newest; and messages that are found.
const MAX_SEARCHED: i64 = 5000;
const MAX_SEARCHED_MESSAGES: i64 = 200;
const MAX_SAYING: usize = 200;
/// Bytes of a message in which it is looked for, as it is stored, and characters of it: what says the same again and again
/// takes few bytes.
const MAX_SEARCHED_BYTES: i32 = 16 * 1024;
const MAX_SEARCHED_CHARS: i32 = 16 * 1024;
/// Places between messages of a turn, where those between are not asked for: a call of a tool and its result.
const WITHIN_WINDOW: i32 = 2;
/// The same where all messages are asked for.
const WHOLE: i32 = i32::MAX;
/// Messages of each, the newest.
const MAX_MESSAGES: usize = 40;
/// Chats that are read at once at the least, however few turns are missing.
const FEWEST_AT_ONCE: usize = 20;
/// Characters of each.
const MAX_SAID: i32 = 1500;
/// Bytes of what is known of chats, and of a chat or a turn beside what it holds.
const MAX_KNOWN: u64 = 64 << 20;
const ROOM: usize = 100;
/// What nobody looked into for so long is forgotten.
const KNOWN: Duration = Duration::from_hours(24);
/// Bytes of a message that is read as it is stored: of a longer one PostgreSQL takes what counts, in three times as long.
const SHORT: i32 = 4096;

/// Messages of a chat, in one row: a row of each, and a row of all, are read in more time.
#[derive(QueryableByName)]
struct OfChat {
    #[diesel(sql_type = Text)]
    chat: String,
    /// As an array of JSON.
    #[diesel(sql_type = Text)]
    bodies: String,
    /// Where they stand, in the same order.
    #[diesel(sql_type = Array<Integer>)]
    positions: Vec<i32>,
}

/// A chat, and how far it is: messages are only ever added.
#[derive(Clone, PartialEq, Eq, Hash, QueryableByName)]
struct ChatState {
    #[diesel(sql_type = Text)]
    uid: String,
    #[diesel(sql_type = BigInt)]
    created_ms: i64,
    #[diesel(sql_type = Integer)]
    message_count: i32,
}

/// What counts of a message as it is stored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    role: Role,
    timestamp: Timestamp,
    content: Content,
    content_source: Option<String>,
    latency_ms: Option<u64>,
}

impl Body {
    /// It stands where a guardrail kept what the user said from the model.
    fn is_refusal(&self) -> bool {
        self.content_source.as_deref() == Some("guardrail") && self.latency_ms.is_none()
    }
}

#[derive(Deserialize)]
struct Content {
    message: Option<String>,
}

/// The newest chats of a bucket, as `near`. Those of assistants of this name that are of the one with this id: an earlier
/// one may have had the name.
///
/// `whose`: a condition on their end user. Open and archived ones are found each by an index in their order.
fn near(most: i64, whose: &str) -> String {
    format!(
        "WITH asked AS MATERIALIZED (SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, assistant text,
                tenant text, subtenant text, is_of_end_user bool, but text, most bigint, like_words text[])),
            own AS (SELECT identifier, created_ms FROM assistants
                WHERE account_id = (SELECT account FROM asked) AND id = (SELECT assistant FROM asked)),
            near AS (SELECT c.* FROM own, (VALUES (false), (true)) AS kind (archived) CROSS JOIN LATERAL (
                SELECT uid, created_ms, edited_ms, message_count FROM chats
                WHERE account_id = (SELECT account FROM asked) AND archived = kind.archived
                    AND tenant_id = (SELECT tenant FROM asked) AND assistant = own.identifier AND {whose}
                    AND created_ms >= own.created_ms AND uid <> (SELECT but FROM asked)
                ORDER BY created_ms DESC, uid DESC LIMIT {most}) c
                ORDER BY c.created_ms DESC LIMIT {most})"
    )
}

/// The statements about one kind of buckets.
struct Statements {
    newest: String,
    saying: String,
}

/// Of all of a tenant, or of those of its chats that are of no end user.
static OF_TENANT: LazyLock<Statements> =
    LazyLock::new(|| statements("(NOT (SELECT is_of_end_user FROM asked) OR subtenant_id IS NULL)"));

/// Of one end user; the index has them by their metadata.
static OF_END_USER: LazyLock<Statements> = LazyLock::new(|| {
    statements(
        "subtenant_id = (SELECT subtenant FROM asked)
                    AND metadata ->> 'subtenantId' = (SELECT subtenant FROM asked)",
    )
});

fn statements(whose: &str) -> Statements {
    Statements { newest: newest(&near(MAX_BEGUN, whose)), saying: saying(&near(MAX_SEARCHED, whose)) }
}

fn statements_of(bucket: &MemoryBucket) -> &'static Statements {
    if bucket.is_of_end_user && bucket.subtenant_id.is_some() { &OF_END_USER } else { &OF_TENANT }
}

/// What counts of a message, as [`Body`].
fn cut(body: &str) -> String {
    format!(
        "json_build_object('role', {body} -> 'role', 'timestamp', {body} -> 'timestamp',
            'contentSource', {body} -> 'contentSource', 'latencyMs', {body} -> 'latencyMs',
            'content', json_build_object('message', left({body} #>> '{{content,message}}', {MAX_SAID})))::text"
    )
}

fn newest(near: &str) -> String {
    // What was said last may be in one that was begun long ago.
    format!("{near} SELECT uid, created_ms, message_count FROM near ORDER BY edited_ms DESC, uid LIMIT {MAX_CHATS}")
}

/// Messages `m` of a chat in one row.
fn together(body: &str) -> String {
    format!("'[' || string_agg({body}, ',') || ']' AS bodies, array_agg(m.position) AS positions")
}

/// The newest messages of chats.
static SAID: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT asked.uid AS chat, said.* FROM jsonb_to_recordset($1::jsonb) AS asked(account text, uid text, created bigint)
        CROSS JOIN LATERAL (SELECT 1 FROM chats
            WHERE account_id = asked.account AND uid = asked.uid AND created_ms = asked.created LIMIT 1) there
        CROSS JOIN LATERAL (SELECT {} FROM (
            SELECT position, CASE WHEN octet_length(text) <= {SHORT} THEN text ELSE {} END AS body FROM (
                SELECT position, body, body::text AS text FROM messages
                WHERE account_id = asked.account AND conversation = asked.uid AND role IN ('user', 'assistant')
                ORDER BY position DESC LIMIT {MAX_MESSAGES}) newest) m HAVING count(*) > 0) said",
        together("m.body"),
        cut("body"),
    )
});

/// Messages that say a word, those that say most of them first, each with the one before and after it.
fn saying(near: &str) -> String {
    format!(
        "{near},
            said AS (SELECT near.uid, m.position FROM near CROSS JOIN LATERAL (
                SELECT position, lower(left(body #>> '{{content,message}}', {MAX_SEARCHED_CHARS})) AS text FROM messages
                WHERE account_id = (SELECT account FROM asked) AND conversation = near.uid
                    AND role IN ('user', 'assistant') AND pg_column_size(body) <= {MAX_SEARCHED_BYTES}
                ORDER BY position DESC LIMIT {MAX_SEARCHED_MESSAGES}) m
                WHERE text LIKE ANY((SELECT like_words FROM asked)::text[])
                ORDER BY (SELECT count(*) FROM unnest((SELECT like_words FROM asked)) AS word WHERE text LIKE word) DESC,
                    near.created_ms DESC, m.position DESC LIMIT (SELECT most FROM asked))
        SELECT m.conversation AS chat, {} FROM (SELECT DISTINCT said.uid, said.position + beside AS position
                FROM said, generate_series(-1, 1) AS beside) said
            JOIN messages m ON m.account_id = (SELECT account FROM asked) AND m.conversation = said.uid
                AND m.position = said.position
            LEFT JOIN LATERAL (SELECT position FROM messages
                WHERE account_id = (SELECT account FROM asked) AND conversation = said.uid AND role <> 'user'
                    AND position > m.position AND m.role = 'user' ORDER BY position LIMIT 1) answer ON true
            LEFT JOIN messages refused ON refused.account_id = (SELECT account FROM asked)
                AND refused.conversation = said.uid AND refused.position = answer.position
                AND refused.body ->> 'contentSource' = 'guardrail' AND refused.body ->> 'latencyMs' IS NULL
        WHERE m.role IN ('user', 'assistant') AND pg_column_size(m.body) <= {MAX_SEARCHED_BYTES}
            AND refused.position IS NULL
        GROUP BY m.conversation",
        together(&cut("m.body")),
    )
}

/// What it is asked with.
#[derive(Serialize)]
struct Asked<'a> {
    account: &'a str,
    assistant: &'a str,
    tenant: &'a str,
    subtenant: Option<&'a str>,
    is_of_end_user: bool,
    but: &'a str,
    /// Messages that are found.
    most: usize,
    /// Patterns in lower case, of which a message is like one.
    like_words: Vec<String>,
}

/// A chat whose messages are asked for.
#[derive(Serialize)]
struct AskedChat<'a> {
    account: &'a str,
    uid: &'a str,
    /// One that was made anew under its id is another.
    created: i64,
}

impl<'a> Asked<'a> {
    fn of(account: &'a AccountId, bucket: &'a MemoryBucket, but: &'a str, most: usize) -> Self {
        Self {
            account: account.as_str(),
            assistant: &bucket.assistant_id,
            tenant: &bucket.tenant_id,
            subtenant: bucket.subtenant_id.as_deref(),
            is_of_end_user: bucket.is_of_end_user,
            but,
            most,
            like_words: Vec::new(),
        }
    }
}

/// Chats on PostgreSQL, as memory reads them.
pub struct PgEarlierTurns {
    db: Db,
    /// What was said in chats that were read before.
    known: Cache<(AccountId, ChatState), Arc<[Arc<EarlierTurn>]>>,
}

impl PgEarlierTurns {
    /// Reads from this database.
    pub fn new(db: &Db) -> Self {
        let weigh = |_: &(AccountId, ChatState), turns: &Arc<[Arc<EarlierTurn>]>| {
            u32::try_from(ROOM + turns.iter().map(|turn| ROOM + turn.size()).sum::<usize>()).unwrap_or(u32::MAX)
        };
        Self {
            db: db.clone(),
            known: Cache::builder().weigher(weigh).max_capacity(MAX_KNOWN).time_to_idle(KNOWN).build(),
        }
    }

    /// Reads what was said in chats, which is known from then on.
    async fn learn(&self, account: &AccountId, chats: Vec<ChatState>) -> Result<Vec<Arc<EarlierTurn>>> {
        let asked =
            chats.iter().map(|chat| AskedChat { account: account.as_str(), uid: &chat.uid, created: chat.created_ms });
        let statement = JsonStatement::new(&SAID, &asked.collect::<Vec<_>>())?;
        let mut conn = self.db.fair_conn(account).await?;
        let said: Vec<OfChat> = statement.load(&mut conn).await?;
        drop(conn);
        let by_chat = move || said.into_iter().map(|of| Ok((of.chat.clone(), turns_of(of, WHOLE)?))).collect();
        let mut by_chat: BTreeMap<String, Vec<Arc<EarlierTurn>>> = run_blocking(by_chat).await?;
        let mut turns = Vec::new();
        for chat in chats {
            let of = by_chat.remove(&chat.uid).unwrap_or_default();
            turns.extend_from_slice(&of);
            self.known.insert((account.clone(), chat), of.into());
        }
        Ok(turns)
    }
}

#[async_trait]
impl EarlierTurns for PgEarlierTurns {
    async fn newest(
        &self,
        account: &AccountId,
        of: &MemoryBucket,
        but: &str,
        most: usize,
    ) -> Result<Vec<Arc<EarlierTurn>>> {
        let asked = JsonStatement::new(&statements_of(of).newest, &[Asked::of(account, of, but, most)])?;
        let conn = self.db.read().await?;
        let mut chats: Vec<ChatState> = asked.load(&mut conn.get()).await?;
        let mut turns: Vec<Arc<EarlierTurn>> = Vec::new();
        while !chats.is_empty() && turns.len() < most {
            // As many as have so many turns if each is a question and its answer.
            let mut messages = 0;
            let has_enough = |chat: &ChatState| {
                messages += usize::try_from(chat.message_count).unwrap_or_default().min(MAX_MESSAGES);
                messages >= 2 * (most - turns.len())
            };
            let enough = chats.iter().position(has_enough).map_or(chats.len(), |last| last + 1);
            let older = chats.split_off(enough.max(FEWEST_AT_ONCE).min(chats.len()));
            let mut unknown = Vec::new();
            for chat in chats {
                let key = (account.clone(), chat);
                match self.known.get(&key) {
                    Some(known) => turns.extend_from_slice(&known),
                    None => unknown.push(key.1),
                }
            }
            // Two halves at once: most of the time goes to what PostgreSQL and we do with each message.
            let half = unknown.len().div_ceil(2).max(FEWEST_AT_ONCE);
            let halves = unknown.chunks(half).map(|chats| self.learn(account, chats.to_vec()));
            turns.extend(try_join_all(halves).await?.concat());
            chats = older;
        }
        newest_first(&mut turns);
        turns.truncate(most);
        Ok(turns)
    }

    async fn saying(
        &self,
        account: &AccountId,
        of: &MemoryBucket,
        but: &str,
        words: &[String],
    ) -> Result<Vec<Arc<EarlierTurn>>> {
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let like_words = words.iter().map(|word| containing(word)).collect();
        let asked = Asked { like_words, ..Asked::of(account, of, but, MAX_SAYING) };
        let mut conn = self.db.fair_conn(account).await?;
        let looking = conn.transaction::<Vec<OfChat>, Error, _>(async |conn| {
            diesel::sql_query(LOOK_TIMEOUT).execute(conn).await?;
            Ok(JsonStatement::new(&statements_of(of).saying, &[asked])?.load(conn).await?)
        });
        let said = looking.await?;
        drop(conn);
        let of_each = move || said.into_iter().map(|of| turns_of(of, WITHIN_WINDOW)).collect::<Result<Vec<_>>>();
        let mut turns = run_blocking(of_each).await?.concat();
        newest_first(&mut turns);
        Ok(turns)
    }
}

fn newest_first(turns: &mut [Arc<EarlierTurn>]) {
    turns.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.chat.cmp(&b.chat)));
}

/// The messages of a chat as turns, each from what a user said up to what they say next, or up to a gap.
fn turns_of(said: OfChat, most_between: i32) -> Result<Vec<Arc<EarlierTurn>>> {
    let OfChat { chat, bodies, positions } = said;
    let bodies: Vec<Body> = serde_json::from_str(&bodies).map_err(Error::internal)?;
    let mut messages: Vec<(i32, Body)> = positions.into_iter().zip(bodies).collect();
    messages.sort_unstable_by_key(|(position, _)| *position);
    let (mut turns, mut open) = (Vec::new(), None::<OpenTurn>);
    for (position, body) in messages {
        if body.is_refusal() {
            // What the model was not to read then, it is not to read now.
            if let Some(turn) = open.as_mut().filter(|turn| position - turn.last <= most_between) {
                let kept = turn.said.iter().rposition(|said| said.role != Role::User).map_or(0, |last| last + 1);
                turn.said.truncate(kept);
            }
            turns.extend(open.take().filter(|turn| !turn.said.is_empty()).map(|turn| turn.end(most_between)));
            continue;
        }
        let Some(content) = body.content.message.filter(|message| !message.is_empty()) else { continue };
        let goes_on = |turn: &OpenTurn| {
            let answered = turn.said.last().is_some_and(|last| last.role == Role::Assistant);
            position - turn.last <= most_between && !(body.role == Role::User && answered)
        };
        let said = SaidOnce { role: body.role, content };
        if let Some(turn) = open.as_mut().filter(|turn| goes_on(turn)) {
            turn.said.push(said);
            turn.last = position;
        } else {
            let (chat, at) = (chat.clone(), body.timestamp);
            let next = OpenTurn { chat, at, said: vec![said], first: position, last: position };
            turns.extend(open.replace(next).map(|turn| turn.end(most_between)));
        }
    }
    turns.extend(open.map(|turn| turn.end(most_between)));
    Ok(turns)
}

/// A turn that is being read; where its first and its last message stand.
struct OpenTurn {
    chat: String,
    at: Timestamp,
    said: Vec<SaidOnce>,
    first: i32,
    last: i32,
}

impl OpenTurn {
    fn end(self, most_between: i32) -> Arc<EarlierTurn> {
        let turn = if most_between == WHOLE { EarlierTurn::whole } else { EarlierTurn::new };
        Arc::new(turn(self.chat, self.first..=self.last, self.at, self.said))
    }
}
