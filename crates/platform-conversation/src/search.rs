//! Finding a text in what was said.

use platform_core::{AccountId, Result, Timestamp};
use platform_db::Conn;
use serde::Serialize;
use utoipa::ToSchema;

use crate::repository;

const SNIPPET_CHARACTERS: usize = 80;

/// Messages that hold the searched text.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Matches {
    /// The first of them.
    pub matches: Vec<Match>,
    /// How many there are.
    pub total: i64,
}

/// A message that holds the searched text.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Its id.
    pub message_uid: String,
    /// Who said it.
    pub role: String,
    /// When.
    pub timestamp: Timestamp,
    /// The text around the first occurrence.
    pub snippet: String,
    /// Place of the message in the conversation, from 0.
    pub position: i32,
}

/// Messages of a conversation that hold a text, in any case; the oldest first.
pub async fn search(conn: &Conn, account: &AccountId, conversation: &str, text: &str, limit: i64) -> Result<Matches> {
    let (hits, total) = repository::search(conn, account, conversation, text, limit).await?;
    let found = |hit: repository::Hit| Match {
        message_uid: hit.uid,
        role: hit.role,
        timestamp: Timestamp(hit.created_ms),
        snippet: snippet(&hit.text, text),
        position: hit.position,
    };
    Ok(Matches { matches: hits.into_iter().map(found).collect(), total })
}

/// The text around the first occurrence of what was searched.
fn snippet(text: &str, searched: &str) -> String {
    let lower = text.to_lowercase();
    let at = lower.find(&searched.to_lowercase()).map_or(0, |at| lower[..at].chars().count());
    let from = at.saturating_sub(SNIPPET_CHARACTERS / 2);
    text.chars().skip(from).take(SNIPPET_CHARACTERS + searched.chars().count()).collect()
}
