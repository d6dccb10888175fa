//! What happened, written in the transaction of its cause, for whoever is to be told (contract 17).
//!
//! **Owns** the table `events`; no endpoint. **Needs** `platform-db`. Outgoing webhooks read from it.
//!
//! **Invariants**: an event is there exactly when its cause is; events older than their keep are purged.

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Id, Result, Timestamp};
use platform_db::Conn;
use serde::Serialize;

mod schema {
    diesel::table! {
        events (id) {
            id -> Text,
            account_id -> Text,
            kind -> Text,
            data -> Jsonb,
            agent_id -> Nullable<Text>,
            thread_id -> Nullable<Text>,
            tenant_id -> Nullable<Text>,
            created_ms -> Int8,
        }
    }
}

use schema::events;

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Event<'a, T> {
    /// Whose it is.
    pub account: &'a AccountId,
    /// What, such as `thread.finished`.
    pub kind: &'static str,
    /// Particulars, as they are sent.
    pub data: T,
    /// The agent it is about.
    pub agent: Option<&'a str>,
    /// The thread it is about.
    pub thread: Option<&'a str>,
    /// The tenant it is about.
    pub tenant: Option<&'a str>,
}

enum EventKind {}

/// Writes events, in the transaction of their cause.
pub async fn publish_in<T: Serialize>(conn: &mut Conn, happened: &[Event<'_, T>], now: Timestamp) -> Result<()> {
    let row = |event: &Event<'_, T>| {
        let data = serde_json::to_value(&event.data).map_err(Error::internal)?;
        Ok((
            events::id.eq(String::from(Id::<EventKind>::generate())),
            events::account_id.eq(event.account.as_str().to_owned()),
            events::kind.eq(event.kind),
            events::data.eq(data),
            events::agent_id.eq(event.agent.map(str::to_owned)),
            events::thread_id.eq(event.thread.map(str::to_owned)),
            events::tenant_id.eq(event.tenant.map(str::to_owned)),
            events::created_ms.eq(now.0),
        ))
    };
    let rows: Vec<_> = happened.iter().map(row).collect::<Result<_>>()?;
    if !rows.is_empty() {
        diesel::insert_into(events::table).values(rows).execute(conn).await?;
    }
    Ok(())
}

/// Forgets events from before a moment.
pub async fn purge(conn: &mut Conn, before: Timestamp) -> Result<usize> {
    Ok(diesel::delete(events::table.filter(events::created_ms.lt(before.0))).execute(conn).await?)
}
