//! What the database holds of a conversation.

use std::{ops::Range, sync::LazyLock};

use diesel::{dsl::sql, prelude::*, sql_types::Text};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result};
use platform_db::{Conn, JsonStatement};
use serde::Serialize;

use crate::{
    message::{MessageRow, StoredJson},
    schema::{message_feedback, message_files, messages},
};

/// A turn reads its messages in slices of this many, newest first, until its budget is full.
pub(crate) const SLICE: i64 = 200;

/// From which end messages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Newest,
    Oldest,
}

/// One conversation in the database, by its account and name: its messages, those that wait, their files and the
/// feedback on them. The caller brings the connection, and with it the transaction.
#[derive(Debug, Clone, Copy)]
pub struct ConversationStore<'a> {
    pub(crate) account: &'a AccountId,
    pub(crate) name: &'a str,
}

impl<'a> ConversationStore<'a> {
    /// That of an account, by the name its owner chose.
    pub fn of(account: &'a AccountId, name: &'a str) -> Self {
        Self { account, name }
    }

    /// Whose it is.
    pub fn account(self) -> &'a AccountId {
        self.account
    }

    /// By which name.
    pub fn name(self) -> &'a str {
        self.name
    }

    /// Adds a message at its position.
    pub async fn insert(self, conn: &mut Conn, message: &MessageRow) -> Result<()> {
        insert_messages(conn, &[(self, message)]).await
    }

    /// Messages at these positions, in their order, without what they took.
    pub async fn messages_at(self, conn: &Conn, positions: &[i32]) -> Result<Vec<StoredJson>> {
        let mut conn = conn;
        let bodies = of(self.account.as_str(), self.name)
            .filter(messages::position.eq_any(positions))
            .order(messages::position)
            .select(sql::<Text>("body::text"));
        let bodies: Vec<String> = bodies.load(&mut conn).await?;
        Ok(bodies.into_iter().map(|body| StoredJson::message(body, None)).collect())
    }

    /// Messages from a position on, as they are stored, oldest first.
    pub async fn bodies_from(self, conn: &Conn, from: i32) -> Result<Vec<String>> {
        let mut conn = conn;
        Ok(of(self.account.as_str(), self.name)
            .filter(messages::position.ge(from))
            .order(messages::position)
            .select(messages::body)
            .load(&mut conn)
            .await?)
    }

    /// Of these calls those that have a result at or after a position.
    pub async fn settled_calls(self, conn: &mut Conn, from: i32, ids: &[String]) -> Result<Vec<String>> {
        let call = || sql::<Text>("(body ->> 'tool_call_id')");
        Ok(of(self.account.as_str(), self.name)
            .filter(messages::position.ge(from).and(messages::role.eq("tool")))
            .filter(call().eq_any(ids))
            .select(call())
            .load(conn)
            .await?)
    }

    /// Positions and messages of a range, from one end of it on, as many as one slice holds.
    pub(crate) async fn slice(self, conn: &Conn, range: Range<i32>, start: Start) -> Result<Vec<(i32, String)>> {
        let mut conn = conn;
        let of = of(self.account.as_str(), self.name)
            .filter(messages::position.ge(range.start).and(messages::position.lt(range.end)))
            .limit(SLICE)
            .select((messages::position, messages::body));
        Ok(match start {
            Start::Newest => of.order(messages::position.desc()).load(&mut conn).await?,
            Start::Oldest => of.order(messages::position).load(&mut conn).await?,
        })
    }

    /// A turn from one of its messages on, up to the next user message: its position, its messages, and
    /// whether a model answered. `None` when there is no such message.
    pub async fn turn_of(self, conn: &Conn, message: &str) -> Result<Option<(i32, Vec<StoredJson>, bool)>> {
        let mut conn = conn;
        let first = of(self.account.as_str(), self.name).filter(messages::uid.eq(message)).select(messages::position);
        let first: Option<i32> = first.first(&mut conn).await.optional()?;
        let Some(first) = first else { return Ok(None) };
        let rows: Vec<(String, String, Option<String>)> = of(self.account.as_str(), self.name)
            .filter(messages::position.ge(first))
            .order(messages::position)
            .limit(1000)
            .select((messages::role, messages::body, messages::accounting))
            .load(&mut conn)
            .await?;
        let turn = rows.into_iter().enumerate().take_while(|(at, (role, ..))| *at == 0 || role != "user");
        let (mut said, mut answered) = (Vec::new(), false);
        for (_, (role, body, accounting)) in turn {
            answered |= role == "assistant";
            said.push(StoredJson::message(body, accounting.as_deref()));
        }
        Ok(Some((first, said, answered)))
    }

    /// Puts a summary to a message, by position and id: another may have taken its place.
    pub async fn summarise(self, conn: &mut Conn, (position, uid): (i32, &str), summary: &str) -> Result<()> {
        let summary = serde_json::to_string(summary).map_err(Error::internal)?;
        let body =
            sql::<Text>("(left(body::text, -1) || ',\"summary\":' || ").bind::<Text, _>(summary).sql(" || '}')::json");
        let message =
            of(self.account.as_str(), self.name).filter(messages::position.eq(position).and(messages::uid.eq(uid)));
        diesel::update(message).set(messages::body.eq(body)).execute(conn).await?;
        Ok(())
    }

    /// Whether there is such a message.
    pub async fn has_message(self, conn: &mut Conn, message: &str) -> Result<bool> {
        let found = of(self.account.as_str(), self.name).filter(messages::uid.eq(message)).select(messages::position);
        Ok(found.first::<i32>(conn).await.optional()?.is_some())
    }

    /// Takes away everything that was said, together with the record that owns the conversation.
    pub async fn delete(self, conn: &mut Conn) -> Result<()> {
        diesel::delete(of(self.account.as_str(), self.name)).execute(conn).await?;
        self.empty_queue(conn).await?;
        let files = message_files::table.filter(message_files::account_id.eq(self.account.as_str()));
        diesel::delete(files.filter(message_files::conversation.eq(self.name))).execute(conn).await?;
        let feedback = message_feedback::table.filter(message_feedback::account_id.eq(self.account.as_str()));
        diesel::delete(feedback.filter(message_feedback::conversation.eq(self.name))).execute(conn).await?;
        Ok(())
    }
}

/// The piece of a statement that adds messages: those of its relation `written(account, conversation, position, uid,
/// role, body, accounting, created_ms)`.
pub const INSERT_MESSAGES: &str = "INSERT INTO messages
        (account_id, conversation, position, uid, role, body, accounting, created_ms)
    SELECT account, conversation, position, uid, role, body::json, accounting::json, created_ms FROM written";

/// Adds messages of any conversations at their positions.
pub async fn insert_messages(conn: &mut Conn, messages: &[(ConversationStore<'_>, &MessageRow)]) -> Result<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "WITH written AS (
                SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, conversation text, position int, uid text,
                    role text, body text, accounting text, created_ms bigint)
            ) {INSERT_MESSAGES}"
        )
    });
    #[derive(Serialize)]
    struct Item<'a> {
        account: &'a str,
        conversation: &'a str,
        #[serde(flatten)]
        message: &'a MessageRow,
    }
    let items: Vec<Item<'_>> = messages
        .iter()
        .map(|(of, message)| Item { account: of.account.as_str(), conversation: of.name, message })
        .collect();
    if !items.is_empty() {
        JsonStatement::new(&SQL, &items)?.execute(conn).await?;
    }
    Ok(())
}

#[diesel::dsl::auto_type(no_type_alias)]
pub(crate) fn of<'a>(account: &'a str, conversation: &'a str) -> _ {
    messages::table.filter(messages::account_id.eq(account)).filter(messages::conversation.eq(conversation))
}
