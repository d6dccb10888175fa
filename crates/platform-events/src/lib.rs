//! What happened, written in the transaction of its cause, for whoever is to be told (contract 17).
//!
//! **Owns** the table `events`; no endpoint. **Needs** `platform-db`. Outgoing webhooks read from it.
//!
//! **Invariants**: an event is there exactly when its cause is; it waits until it was taken once; events older than
//! their keep are purged.
//!
//! ```no_run
//! # use platform_core::{AccountId, Result, Timestamp};
//! # use platform_db::Conn;
//! # use platform_events::*;
//! # use serde_json::json;
//! # async fn example(conn: &mut Conn, account: &AccountId, now: Timestamp) -> Result<()> {
//! // In the transaction of the cause:
//! let finished = Event { thread: Some("t1"), ..Event::new(account, "thread.finished", json!({"threadId": "t1"})) };
//! publish_in(conn, vec![finished], now).await?;
//! // Whoever tells of them, in another:
//! let events = claim_in(conn, 100).await?;
//! # Ok(()) }
//! ```

use async_trait::async_trait;
use diesel::{dsl::sql, prelude::*, sql_types::Bool};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Id, Result, Timestamp};
use platform_db::Conn;
use serde::Serialize;
use serde_json::Value;

mod schema {
    diesel::table! {
        events (id) {
            id -> Text,
            account_id -> Text,
            kind -> Text,
            data -> Jsonb,
            content -> Nullable<Jsonb>,
            agent_id -> Nullable<Text>,
            thread_id -> Nullable<Text>,
            tenant_id -> Nullable<Text>,
            project_id -> Nullable<Text>,
            depth -> Int2,
            routed -> Bool,
            created_ms -> Int8,
            urls -> Nullable<Array<Text>>,
        }
    }
}

use schema::events;

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Event<'a> {
    /// Whose it is.
    pub account: &'a AccountId,
    /// What, such as `thread.finished`.
    pub kind: &'static str,
    /// Particulars, as they are sent.
    pub data: Value,
    /// What was said, an object whose fields join those of `data` for who is told that, too.
    pub content: Option<Value>,
    /// The agent it is about.
    pub agent: Option<&'a str>,
    /// The thread it is about.
    pub thread: Option<&'a str>,
    /// The tenant it is about.
    pub tenant: Option<&'a str>,
    /// The project it is in; of an event of an agent its agent says it.
    pub project: Option<&'a str>,
    /// How many triggers led to it, one after the other (contract 09 §3).
    pub depth: u8,
}

impl<'a> Event<'a> {
    /// An event about nothing in particular.
    pub fn new(account: &'a AccountId, kind: &'static str, data: Value) -> Self {
        Self { account, kind, data, content: None, agent: None, thread: None, tenant: None, project: None, depth: 0 }
    }

    /// The event as [`PUBLISH`] wants it.
    pub fn into_row(self, now: Timestamp) -> EventRow {
        EventRow {
            id: new_event_id(),
            account_id: self.account.as_str().to_owned(),
            kind: self.kind.to_owned(),
            data: self.data,
            content: self.content,
            agent_id: self.agent.map(str::to_owned),
            thread_id: self.thread.map(str::to_owned),
            tenant_id: self.tenant.map(str::to_owned),
            project_id: self.project.map(str::to_owned),
            depth: self.depth.into(),
            created_ms: now.0,
            urls: None,
        }
    }
}

/// An event as it is stored.
#[derive(Debug, Clone, Serialize, Queryable, Insertable, Selectable)]
#[diesel(table_name = events)]
#[expect(missing_docs, reason = "those of an event")]
pub struct EventRow {
    pub id: String,
    pub account_id: String,
    pub kind: String,
    pub data: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
    pub agent_id: Option<String>,
    pub thread_id: Option<String>,
    pub tenant_id: Option<String>,
    pub project_id: Option<String>,
    pub depth: i16,
    pub created_ms: i64,
    /// Whom it is told to, of a thread that is gone ([`keep_addresses_in`]).
    #[serde(skip)]
    pub urls: Option<Vec<String>>,
}

/// Who listens to events, so that those that come often are written for somebody.
#[async_trait]
pub trait Audience: Send + Sync {
    /// Whether anybody of an account is told of events of a kind.
    async fn hears(&self, account: &AccountId, kind: &str) -> Result<bool>;
    /// Whether anybody of them is told what was said, too.
    async fn hears_content(&self, account: &AccountId, kind: &str) -> Result<bool>;
}

/// Nobody listens.
#[async_trait]
impl Audience for () {
    async fn hears(&self, _: &AccountId, _: &str) -> Result<bool> {
        Ok(false)
    }

    async fn hears_content(&self, _: &AccountId, _: &str) -> Result<bool> {
        Ok(false)
    }
}

enum EventKind {}

/// An id for an event: all who are told of it are told this.
pub fn new_event_id() -> String {
    Id::<EventKind>::generate().into()
}

/// Writes events as part of another statement; a JSON array of [`EventRow`]s, an expression of SQL, goes between.
pub const PUBLISH: (&str, &str) = (
    "INSERT INTO events (id, account_id, kind, data, content, agent_id, thread_id, tenant_id, project_id, depth, created_ms)
    SELECT e.* FROM jsonb_to_recordset(",
    ") AS e(id text, account_id text, kind text, data jsonb, content jsonb, agent_id text, thread_id text,
        tenant_id text, project_id text, depth smallint, created_ms bigint)",
);

/// Writes events, in the transaction of their cause.
pub async fn publish_in(conn: &mut Conn, happened: Vec<Event<'_>>, now: Timestamp) -> Result<()> {
    let rows: Vec<EventRow> = happened.into_iter().map(|event| event.into_row(now)).collect();
    if !rows.is_empty() {
        diesel::insert_into(events::table).values(rows).execute(conn).await?;
    }
    Ok(())
}

/// Has the events of a thread that nobody took yet told to these addresses, in the transaction that deletes it.
pub async fn keep_addresses_in(conn: &mut Conn, account: &AccountId, thread: &str, urls: &[String]) -> Result<()> {
    let waiting = events::table
        .filter(events::account_id.eq(account.as_str()).and(events::thread_id.eq(thread)))
        .filter(events::routed.eq(false));
    diesel::update(waiting).set(events::urls.eq(Some(urls))).execute(conn).await?;
    Ok(())
}

/// Takes the oldest events that nobody took yet, at most `most`, in the transaction that sees to them.
pub async fn claim_in(conn: &mut Conn, most: i64) -> Result<Vec<EventRow>> {
    let waiting = sql::<Bool>("id IN (SELECT id FROM events WHERE NOT routed ORDER BY id LIMIT ")
        .bind::<diesel::sql_types::BigInt, _>(most)
        .sql(" FOR UPDATE SKIP LOCKED)");
    let mut taken: Vec<EventRow> = diesel::update(events::table.filter(waiting))
        .set(events::routed.eq(true))
        .returning(EventRow::as_returning())
        .get_results(conn)
        .await?;
    taken.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(taken)
}

/// The oldest event that nobody took yet.
pub async fn oldest(conn: &mut Conn) -> Result<Option<String>> {
    let waiting = events::table.filter(events::routed.eq(false)).order(events::id).select(events::id);
    Ok(waiting.first(conn).await.optional()?)
}

/// Takes one event, in the transaction that sees to it; `None` when somebody took it.
pub async fn claim_one_in(conn: &mut Conn, id: &str) -> Result<Option<EventRow>> {
    let waiting = events::table.filter(events::id.eq(id)).filter(events::routed.eq(false));
    let taken = diesel::update(waiting).set(events::routed.eq(true)).returning(EventRow::as_returning());
    Ok(taken.get_result(conn).await.optional()?)
}

/// Forgets events from before a moment that were taken.
pub async fn purge(conn: &mut Conn, before: Timestamp) -> Result<usize> {
    let old = events::table.filter(events::routed).filter(events::created_ms.lt(before.0));
    Ok(diesel::delete(old).execute(conn).await?)
}

impl EventRow {
    /// Whose it is.
    pub fn account(&self) -> Result<AccountId> {
        AccountId::parse(&self.account_id).map_err(|_| Error::internal("an event has no account"))
    }
}
