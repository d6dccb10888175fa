//! What was said in the chats of a memory's bucket.

use async_trait::async_trait;
use diesel::{
    QueryableByName,
    sql_types::{BigInt, Bool, Integer, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Result, Timestamp};
use platform_db::Db;
use platform_runtime::{EarlierTurn, EarlierTurns, MemoryBucket, Role, SaidOnce};

/// Chats that are looked at, the newest.
const MOST_CHATS: i64 = 100;
/// Messages of each, the newest.
const MOST_MESSAGES: i64 = 40;
/// Characters of each.
const MOST_SAID: i32 = 1500;

#[derive(QueryableByName)]
struct Said {
    #[diesel(sql_type = Text)]
    chat: String,
    #[diesel(sql_type = Text)]
    role: String,
    #[diesel(sql_type = Text)]
    content: String,
    #[diesel(sql_type = BigInt)]
    created_ms: i64,
}

/// The chats of assistants of this name that are of the one with this id: an earlier one may have had the name.
const NEWEST: &str = "WITH own AS (SELECT identifier, created_ms FROM assistants WHERE account_id = $1 AND id = $2), \
    near AS (SELECT c.uid, c.created_ms FROM chats c, own WHERE c.account_id = $1 AND c.archived = ANY('{false,true}') \
        AND c.tenant_id = $3 AND (NOT $5 OR c.subtenant_id IS NOT DISTINCT FROM $4) AND c.assistant = own.identifier \
        AND c.created_ms >= own.created_ms AND c.uid <> $6 ORDER BY c.created_ms DESC LIMIT $7) \
    SELECT near.uid AS chat, m.role, m.content, m.created_ms FROM near CROSS JOIN LATERAL (\
        SELECT position, role, left(body #>> '{content,message}', $9) AS content, created_ms FROM messages \
        WHERE account_id = $1 AND conversation = near.uid AND role IN ('user', 'assistant') \
        ORDER BY position DESC LIMIT $8) m \
    WHERE m.content <> '' ORDER BY near.created_ms DESC, near.uid, m.position LIMIT $10";

/// Chats on PostgreSQL, as memory reads them.
pub struct PgEarlierTurns(Db);

impl PgEarlierTurns {
    /// Reads from this database.
    pub fn new(db: &Db) -> Self {
        Self(db.clone())
    }
}

#[async_trait]
impl EarlierTurns for PgEarlierTurns {
    async fn newest(&self, account: &AccountId, of: &MemoryBucket, but: &str, most: i64) -> Result<Vec<EarlierTurn>> {
        let said = diesel::sql_query(NEWEST)
            .bind::<Text, _>(account.as_str())
            .bind::<Text, _>(&of.assistant_id)
            .bind::<Text, _>(&of.tenant_id)
            .bind::<Nullable<Text>, _>(&of.subtenant_id)
            .bind::<Bool, _>(of.is_of_end_user)
            .bind::<Text, _>(but)
            .bind::<BigInt, _>(MOST_CHATS)
            .bind::<BigInt, _>(MOST_MESSAGES)
            .bind::<Integer, _>(MOST_SAID)
            .bind::<BigInt, _>(most.saturating_mul(4));
        let conn = self.0.read().await?;
        let said: Vec<Said> = said.load(&mut conn.get()).await?;
        let mut turns: Vec<EarlierTurn> = Vec::new();
        for Said { chat, role, content, created_ms } in said {
            let role = if role == "user" { Role::User } else { Role::Assistant };
            let goes_on = |turn: &EarlierTurn| {
                let answered = turn.said.last().is_some_and(|last| last.role == Role::Assistant);
                turn.chat == chat && !(role == Role::User && answered)
            };
            match turns.last_mut().filter(|turn| goes_on(turn)) {
                Some(turn) => turn.said.push(SaidOnce { role, content }),
                None => {
                    turns.push(EarlierTurn { chat, at: Timestamp(created_ms), said: vec![SaidOnce { role, content }] });
                }
            }
        }
        turns.sort_by_key(|turn| std::cmp::Reverse(turn.at));
        turns.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(turns)
    }
}
