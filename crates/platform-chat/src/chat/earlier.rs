//! What was said in the chats of a memory's bucket.

use std::{
    cmp::Reverse,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use diesel::{
    QueryableByName,
    sql_types::{BigInt, Integer, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use futures_util::TryStreamExt;
use moka::sync::Cache;
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::{Conn, Db, JsonStatement, containing};
use platform_runtime::{EarlierTurn, EarlierTurns, MemoryBucket, Role, SaidOnce};
use serde::{Deserialize, Serialize};
use tokio::task::consume_budget;

/// Chats that are looked at, the newest.
const MOST_CHATS: i64 = 100;
/// Chats in which a word is looked for, and messages of each, the newest; and messages that are found.
const MOST_SEARCHED: i64 = 5000;
const MOST_SEARCHED_MESSAGES: i64 = 200;
const MOST_SAYING: i64 = 200;
/// Bytes of a message in which it is looked for, as it is stored.
const LONGEST_SEARCHED: i32 = 16 * 1024;
/// Looking for words ends after this.
const PATIENCE: &str = "SET LOCAL statement_timeout = '3s'";
/// Places between messages of a turn, where those between are not asked for: a call of a tool and its result.
const WITHIN_WINDOW: i32 = 2;
/// Messages of each, the newest.
const MOST_MESSAGES: i64 = 40;
/// Characters of each.
const MOST_SAID: i32 = 1500;
/// Bytes of what is known of chats, and of a message or a chat beside its text.
const MOST_KNOWN: u64 = 64 << 20;
const ROOM: usize = 100;
/// What nobody looked into for so long is forgotten.
const KNOWN: Duration = Duration::from_mins(10);
/// Chats that are looked into at once: the newest have as many turns as are asked for more often than not.
const AT_ONCE: usize = 40;
/// Bytes of a message that is read as it is stored: of a longer one PostgreSQL takes what counts, in three times as long.
const SHORT: i32 = 4096;

#[derive(QueryableByName)]
struct Said {
    #[diesel(sql_type = Text)]
    chat: String,
    #[diesel(sql_type = Text)]
    role: String,
    #[diesel(sql_type = Text)]
    body: String,
    #[diesel(sql_type = BigInt)]
    created_ms: i64,
    #[diesel(sql_type = Integer)]
    position: i32,
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
struct Body {
    content: Content,
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
                SELECT uid, created_ms, message_count FROM chats
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
    Statements { newest: newest(&near(MOST_CHATS, whose)), saying: saying(&near(MOST_SEARCHED, whose)) }
}

fn statements_of(bucket: &MemoryBucket) -> &'static Statements {
    if bucket.is_of_end_user && bucket.subtenant_id.is_some() { &OF_END_USER } else { &OF_TENANT }
}

/// What counts of a message, as [`Body`].
fn cut() -> String {
    format!(
        "json_build_object('content', json_build_object('message', left(body #>> '{{content,message}}', {MOST_SAID})))::text"
    )
}

fn newest(near: &str) -> String {
    format!("{near} SELECT uid, created_ms, message_count FROM near ORDER BY created_ms DESC, uid")
}

/// The newest messages of chats.
static SAID: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT m.conversation AS chat, m.role, m.body, m.created_ms, m.position
        FROM jsonb_to_recordset($1::jsonb) AS asked(account text, uid text, created bigint)
        JOIN chats ON account_id = asked.account AND chats.uid = asked.uid AND created_ms = asked.created
        CROSS JOIN LATERAL (
            SELECT conversation, position, role, created_ms, CASE WHEN octet_length(body::text) <= {SHORT}
                THEN body::text ELSE {} END AS body FROM messages
            WHERE account_id = asked.account AND conversation = asked.uid AND role IN ('user', 'assistant')
            ORDER BY position DESC LIMIT {MOST_MESSAGES}) m
        ORDER BY m.conversation, m.position",
        cut(),
    )
});

/// Messages that say a word, those that say most of them first, each with the one before and after it.
fn saying(near: &str) -> String {
    format!(
        "{near},
            said AS (SELECT near.uid, m.position FROM near CROSS JOIN LATERAL (
                SELECT position, body FROM messages
                WHERE account_id = (SELECT account FROM asked) AND conversation = near.uid
                    AND role IN ('user', 'assistant') AND pg_column_size(body) <= {LONGEST_SEARCHED}
                ORDER BY position DESC LIMIT {MOST_SEARCHED_MESSAGES}) m
                WHERE body::text ILIKE ANY((SELECT like_words FROM asked)::text[])
                    AND body #>> '{{content,message}}' ILIKE ANY((SELECT like_words FROM asked)::text[])
                ORDER BY (SELECT count(*) FROM unnest((SELECT like_words FROM asked)) AS word
                        WHERE body #>> '{{content,message}}' ILIKE word) DESC,
                    near.created_ms DESC, m.position DESC LIMIT (SELECT most FROM asked))
        SELECT DISTINCT m.conversation AS chat, m.role, m.created_ms, m.position, {} AS body
        FROM said JOIN messages m ON m.account_id = (SELECT account FROM asked) AND m.conversation = said.uid
            AND m.position BETWEEN said.position - 1 AND said.position + 1
        WHERE m.role IN ('user', 'assistant') AND pg_column_size(m.body) <= {LONGEST_SEARCHED}
        ORDER BY m.conversation, m.position",
        cut(),
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
    most: i64,
    /// Patterns, of which a message is like one.
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
    fn of(account: &'a AccountId, bucket: &'a MemoryBucket, but: &'a str, most: i64) -> Self {
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
    known: Cache<(AccountId, ChatState), Arc<[EarlierTurn]>>,
}

impl PgEarlierTurns {
    /// Reads from this database.
    pub fn new(db: &Db) -> Self {
        let said = |turn: &EarlierTurn| turn.said.iter().map(|said| said.content.len() + ROOM).sum::<usize>();
        let weigh = move |_: &(AccountId, ChatState), turns: &Arc<[EarlierTurn]>| {
            u32::try_from(ROOM + turns.iter().map(said).sum::<usize>()).unwrap_or(u32::MAX)
        };
        Self {
            db: db.clone(),
            known: Cache::builder().weigher(weigh).max_capacity(MOST_KNOWN).time_to_idle(KNOWN).build(),
        }
    }

    /// Reads what was said in chats, which is known from then on.
    async fn learn(&self, account: &AccountId, chats: Vec<ChatState>) -> Result<Vec<EarlierTurn>> {
        let asked =
            chats.iter().map(|chat| AskedChat { account: account.as_str(), uid: &chat.uid, created: chat.created_ms });
        let asked: Vec<_> = asked.collect();
        let mut conn = self.db.fair_conn(account).await?;
        let turns = read(&mut conn, JsonStatement::new(&SAID, &asked)?, i32::MAX).await?;
        drop(conn);
        for chat in chats {
            let of: Arc<[EarlierTurn]> = turns.iter().filter(|turn| turn.chat == chat.uid).cloned().collect();
            self.known.insert((account.clone(), chat), of);
        }
        Ok(turns)
    }
}

#[async_trait]
impl EarlierTurns for PgEarlierTurns {
    async fn newest(&self, account: &AccountId, of: &MemoryBucket, but: &str, most: i64) -> Result<Vec<EarlierTurn>> {
        let most_turns = usize::try_from(most).unwrap_or(usize::MAX);
        let asked = JsonStatement::new(&statements_of(of).newest, &[Asked::of(account, of, but, most)])?;
        let conn = self.db.read().await?;
        let newest: Vec<ChatState> = asked.load(&mut conn.get()).await?;
        let mut turns = Vec::new();
        for chats in newest.chunks(AT_ONCE) {
            let mut unknown = Vec::new();
            for chat in chats {
                match self.known.get(&(account.clone(), chat.clone())) {
                    Some(known) => turns.extend_from_slice(&known),
                    None => unknown.push(chat.clone()),
                }
            }
            if !unknown.is_empty() {
                turns.extend(self.learn(account, unknown).await?);
            }
            if turns.len() >= most_turns {
                break;
            }
        }
        turns.sort_by_key(|turn| Reverse(turn.at));
        turns.truncate(most_turns);
        Ok(turns)
    }

    async fn saying(
        &self,
        account: &AccountId,
        of: &MemoryBucket,
        but: &str,
        words: &[String],
    ) -> Result<Vec<EarlierTurn>> {
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let like_words = words.iter().map(|word| containing(word)).collect();
        let asked = Asked { like_words, ..Asked::of(account, of, but, MOST_SAYING) };
        let mut conn = self.db.fair_conn(account).await?;
        let looking = conn.transaction::<_, Error, _>(async |conn| {
            diesel::sql_query(PATIENCE).execute(conn).await?;
            read(conn, JsonStatement::new(&statements_of(of).saying, &[asked])?, WITHIN_WINDOW).await
        });
        let mut turns = looking.await?;
        turns.sort_by_key(|turn| Reverse(turn.at));
        Ok(turns)
    }
}

/// Messages as turns, each from what a user said up to what they say next, or up to a gap. They are
/// read one by one as they come, while PostgreSQL finds the next.
async fn read(conn: &mut Conn, statement: JsonStatement, most_between: i32) -> Result<Vec<EarlierTurn>> {
    let mut rows = statement.load_stream::<Said>(conn).await?;
    let (mut turns, mut last): (Vec<EarlierTurn>, i32) = (Vec::new(), 0);
    while let Some(Said { chat, role, body, created_ms, position }) = rows.try_next().await? {
        consume_budget().await;
        let body: Body = serde_json::from_str(&body).map_err(Error::internal)?;
        let Some(content) = body.content.message.filter(|message| !message.is_empty()) else { continue };
        let role = if role == "user" { Role::User } else { Role::Assistant };
        let goes_on = |turn: &EarlierTurn| {
            let answered = turn.said.last().is_some_and(|last| last.role == Role::Assistant);
            turn.chat == chat && position - last <= most_between && !(role == Role::User && answered)
        };
        match turns.last_mut().filter(|turn| goes_on(turn)) {
            Some(turn) => turn.said.push(SaidOnce { role, content }),
            None => turns.push(EarlierTurn { chat, at: Timestamp(created_ms), said: vec![SaidOnce { role, content }] }),
        }
        last = position;
    }
    Ok(turns)
}
