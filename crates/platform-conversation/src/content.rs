//! All that was said in a conversation, whole or page by page.

use std::collections::HashMap;

use diesel::{
    prelude::*,
    sql_types::{Array, BigInt, Integer, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use futures_util::{Stream, stream::try_unfold};
use platform_core::{AccountId, MAX_LISTED, Page, Result, fitting};
use platform_db::{Conn, Db};

use crate::{
    message::StoredJson,
    schema::messages,
    store::{ConversationStore, SLICE},
};

#[derive(QueryableByName)]
struct Shown {
    #[diesel(sql_type = Integer)]
    position: i32,
    #[diesel(sql_type = Text)]
    body: String,
    #[diesel(sql_type = Nullable<Text>)]
    accounting: Option<String>,
}

impl ConversationStore<'_> {
    /// A page of messages with what they took; shorter than its limit where they are more than a list holds.
    pub async fn content(self, conn: &Conn, page: Page) -> Result<Vec<StoredJson>> {
        let shown = self.shown(conn, 0, page).await?;
        Ok(shown.into_iter().map(|row| StoredJson::message(row.body, row.accounting.as_deref())).collect())
    }

    /// Messages from a position on, less `page.offset` of them, with what they took: as many as `page.limit`, or as a list
    /// holds.
    async fn shown(self, conn: &Conn, from: i32, page: Page) -> Result<Vec<Shown>> {
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
            .bind::<Text, _>(self.account.as_str())
            .bind::<Text, _>(self.name)
            .bind::<Integer, _>(from)
            .bind::<BigInt, _>(page.limit)
            .bind::<BigInt, _>(page.offset)
            .bind::<BigInt, _>(i64::try_from(MAX_LISTED).unwrap_or(i64::MAX));
        Ok(shown.load(&mut conn).await?)
    }
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
        if bytes.values().any(|bytes| *bytes > MAX_LISTED) {
            return Ok(Self::Paged(ContentPages::new(db, account, conversation)));
        }
        let all = Page { limit: i64::MAX, offset: 0 };
        ConversationStore::of(account, conversation).content(conn.get(), all).await.map(Self::Whole)
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
        let of = ConversationStore::of(&self.account, &self.conversation);
        let shown = of.shown(conn.get(), self.next, page).await?;
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
    let is_shown = |conversation: &&String| size(conversation) <= MAX_LISTED;
    let fits = fitting(conversations.iter().map(|of| Some(of).filter(is_shown).map_or(0, size)), MAX_LISTED);
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
