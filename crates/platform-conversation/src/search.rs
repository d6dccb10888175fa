//! Finding a text in what was said.

use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{Bool, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{Result, Timestamp};
use platform_db::{Conn, containing};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    schema::messages,
    store::{ConversationStore, of},
};

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
    /// When it was said.
    pub timestamp: Timestamp,
    /// The text around the first occurrence.
    pub snippet: String,
    /// Place of the message in the conversation, from 0.
    pub position: i32,
}

impl ConversationStore<'_> {
    /// Messages that hold a text, in any case; the oldest first.
    pub async fn search(self, conn: &Conn, text: &str, limit: i64) -> Result<Matches> {
        let (mut first, mut second) = (conn, conn);
        let pattern = containing(text);
        let hits = || {
            of(self.account.as_str(), self.name)
                .filter(sql::<Bool>("body -> 'content' ->> 'message' ILIKE ").bind::<Text, _>(pattern.clone()))
        };
        let page = hits().order(messages::position).limit(limit).select((
            messages::uid,
            messages::role,
            messages::created_ms,
            messages::position,
            // Cut where it lies: a hundred messages may be a hundred megabytes.
            sql::<Text>("substr(body -> 'content' ->> 'message', greatest(strpos(lower(body -> 'content' ->> 'message'), lower(")
                .bind::<Text, _>(text)
                .sql(&format!(")) - {}, 1), {SNIPPET_CHARACTERS} + char_length(", SNIPPET_CHARACTERS / 2))
                .bind::<Text, _>(text)
                .sql("))"),
        ));
        let (rows, total) = futures_util::try_join!(page.load(&mut first), hits().count().get_result(&mut second))?;
        let rows: Vec<(String, String, i64, i32, String)> = rows;
        let found = |(message_uid, role, created_ms, position, snippet): (String, String, i64, i32, String)| Match {
            message_uid,
            role,
            timestamp: Timestamp(created_ms),
            snippet,
            position,
        };
        Ok(Matches { matches: rows.into_iter().map(found).collect(), total })
    }
}
