//! Messages that wait until a turn ends.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{Error, Result, Timestamp};
use platform_db::Conn;
use platform_runtime::Role;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    columns::json,
    message::{MessageRow, restamped},
    schema::queued_messages,
    store::ConversationStore,
};

/// A message that waits.
#[derive(Debug, Queryable)]
pub struct Queued {
    /// Its id.
    pub uid: String,
    /// The message as it will be stored.
    pub body: String,
    /// What its turn must know beyond the conversation.
    pub request: Value,
    /// When it came.
    pub created_ms: i64,
}

impl Queued {
    /// The message that it becomes, after one of `newest`.
    pub fn into_message(self, position: i32, newest: Timestamp) -> Result<MessageRow> {
        #[derive(Deserialize)]
        struct Spoken {
            role: Role,
        }
        let Self { uid, body, created_ms, .. } = self;
        let Spoken { role } = serde_json::from_str(&body).map_err(Error::internal)?;
        let body = if newest.0 > created_ms { restamped(&body, newest)? } else { body };
        Ok(MessageRow {
            position,
            uid,
            role: role.as_str(),
            body,
            accounting: None,
            created_ms: created_ms.max(newest.0),
        })
    }
}

impl ConversationStore<'_> {
    /// Has a message wait.
    pub async fn enqueue(self, conn: &mut Conn, message: &Queued) -> Result<()> {
        diesel::insert_into(queued_messages::table)
            .values((
                queued_messages::account_id.eq(self.account.as_str()),
                queued_messages::conversation.eq(self.name),
                queued_messages::uid.eq(&message.uid),
                queued_messages::body.eq(json(&message.body)),
                queued_messages::request.eq(&message.request),
                queued_messages::created_ms.eq(message.created_ms),
            ))
            .execute(conn)
            .await?;
        Ok(())
    }

    /// What waits, in the order it came.
    pub async fn queued(self, conn: &mut Conn) -> Result<Vec<Queued>> {
        Ok(queued_messages::table
            .filter(queued_messages::account_id.eq(self.account.as_str()))
            .filter(queued_messages::conversation.eq(self.name))
            .order(queued_messages::position)
            .select((
                queued_messages::uid,
                queued_messages::body,
                queued_messages::request,
                queued_messages::created_ms,
            ))
            .load(conn)
            .await?)
    }

    /// When the first of what waits came; the end of time when nothing does.
    pub async fn first_queued(self, conn: &mut Conn) -> Result<Timestamp> {
        let first: Option<i64> = queued_messages::table
            .filter(queued_messages::account_id.eq(self.account.as_str()))
            .filter(queued_messages::conversation.eq(self.name))
            .order(queued_messages::position)
            .select(queued_messages::created_ms)
            .first(conn)
            .await
            .optional()?;
        Ok(Timestamp(first.unwrap_or(i64::MAX)))
    }

    /// Nothing waits any more.
    pub async fn empty_queue(self, conn: &mut Conn) -> Result<()> {
        let queue = queued_messages::table.filter(queued_messages::account_id.eq(self.account.as_str()));
        diesel::delete(queue.filter(queued_messages::conversation.eq(self.name))).execute(conn).await?;
        Ok(())
    }
}

/// Account and name of those conversations for which a message waits.
pub async fn awaited(conn: &Conn, conversations: &[ConversationStore<'_>]) -> Result<Vec<(String, String)>> {
    let (accounts, names): (Vec<&str>, Vec<&str>) =
        conversations.iter().map(|of| (of.account.as_str(), of.name)).unzip();
    let mut conn = conn;
    Ok(queued_messages::table
        .filter(queued_messages::account_id.eq_any(accounts))
        .filter(queued_messages::conversation.eq_any(names))
        .select((queued_messages::account_id, queued_messages::conversation))
        .distinct()
        .load(&mut conn)
        .await?)
}
