use diesel::{
    QueryableByName,
    dsl::sql,
    expression::SqlLiteral,
    pg::Pg,
    prelude::*,
    sql_types::{BigInt, Integer, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Page, Result, Timestamp};
use platform_db::{Conn, JsonStatement};
use platform_jobs::ENQUEUE;
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use std::{slice, sync::LazyLock};

use crate::{
    model::{Delivery, DeliveryError, DeliveryFilter, DeliveryOutcome, NewThreadsState, TriggerFilter, TriggerPatch},
    schema::{trigger_counters, trigger_events, trigger_seen, triggers},
};

#[derive(Debug, Clone, Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(table_name = triggers, treat_none_as_null = true)]
pub(crate) struct TriggerRow {
    pub account_id: String,
    pub id: String,
    pub name: String,
    pub app: String,
    pub slug: String,
    pub tool_server_id: String,
    pub connection_id: String,
    pub target_type: String,
    pub target_id: String,
    pub state: String,
    pub new_threads_state: String,
    pub rate_limit: i32,
    pub message_template: String,
    pub chat_uid_template: String,
    pub config: Value,
    pub filter: Option<Value>,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub project_id: Option<String>,
    pub event_count: i64,
    pub last_event_ms: Option<i64>,
    pub auto_paused_ms: Option<i64>,
    pub auto_pause_reason: Option<String>,
    pub token_hash: Option<String>,
    /// Sealed.
    pub secrets: String,
    pub subscription_id: Option<String>,
    pub cursor: Option<Value>,
    pub last_error: Option<Value>,
    pub created_ms: i64,
    pub edited_ms: i64,
}

impl TriggerRow {
    pub fn account(&self) -> AccountId {
        AccountId::named(&self.account_id)
    }

    /// What a client can change.
    pub fn patchable(&self) -> TriggerPatch {
        TriggerPatch {
            name: Some(self.name.clone()),
            message_template: self.message_template.clone(),
            chat_uid_template: self.chat_uid_template.clone(),
            new_threads_state: if self.new_threads_state == "paused" {
                NewThreadsState::Paused
            } else {
                NewThreadsState::Queued
            },
            rate_limit_per_minute: self.rate_limit,
            enabled: self.state != "disabled",
            trigger_config: self.config.as_object().cloned().unwrap_or_default(),
            filter: self.filter.as_ref().and_then(Value::as_object).cloned(),
        }
    }

    /// Takes in what a client changed, but whether it is enabled.
    pub fn set(&mut self, patch: TriggerPatch, default_name: &str, now: Timestamp) {
        patch.name.as_deref().unwrap_or(default_name).trim().clone_into(&mut self.name);
        self.message_template = patch.message_template;
        self.chat_uid_template = patch.chat_uid_template;
        patch.new_threads_state.as_str().clone_into(&mut self.new_threads_state);
        self.rate_limit = patch.rate_limit_per_minute;
        self.config = Value::Object(patch.trigger_config);
        self.filter = patch.filter.map(Value::Object);
        self.edited_ms = now.0;
    }
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    triggers::table.filter(triggers::account_id.eq(account)).filter(triggers::id.eq(id))
}

pub(crate) async fn insert(conn: &mut Conn, row: &TriggerRow) -> Result<()> {
    diesel::insert_into(triggers::table).values(row).execute(conn).await?;
    diesel::insert_into(trigger_counters::table).values(trigger_counters::trigger_id.eq(&row.id)).execute(conn).await?;
    Ok(())
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<TriggerRow>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(TriggerRow::as_select()).first(&mut conn).await.optional()?)
}

/// The trigger of an address: who calls it has no account of its own.
pub(crate) async fn by_token(conn: &Conn, token_hash: &str) -> Result<Option<TriggerRow>> {
    let mut conn = conn;
    let row = triggers::table.filter(triggers::token_hash.eq(token_hash)).select(TriggerRow::as_select());
    Ok(row.first(&mut conn).await.optional()?)
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<TriggerRow>> {
    let row = by_id(account.as_str(), id).for_update().select(TriggerRow::as_select());
    Ok(row.first(conn).await.optional()?)
}

pub(crate) async fn update(conn: &mut Conn, account: &AccountId, row: &TriggerRow) -> Result<()> {
    diesel::update(by_id(account.as_str(), &row.id)).set(row).execute(conn).await?;
    Ok(())
}

/// Where the next poll begins.
pub(crate) async fn set_cursor(conn: &mut Conn, account: &AccountId, id: &str, cursor: Value) -> Result<()> {
    let changes = (triggers::cursor.eq(cursor), triggers::last_error.eq(None::<Value>));
    diesel::update(by_id(account.as_str(), id)).set(changes).execute(conn).await?;
    Ok(())
}

pub(crate) async fn set_last_error(conn: &mut Conn, account: &AccountId, id: &str, error: Value) -> Result<()> {
    diesel::update(by_id(account.as_str(), id)).set(triggers::last_error.eq(error)).execute(conn).await?;
    Ok(())
}

/// Deletes a trigger with all that came to it.
pub(crate) async fn delete(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    diesel::delete(by_id(account.as_str(), id)).execute(conn).await?;
    diesel::delete(trigger_counters::table.find(id)).execute(conn).await?;
    diesel::delete(trigger_seen::table.filter(trigger_seen::trigger_id.eq(id))).execute(conn).await?;
    let events = trigger_events::table.filter(trigger_events::account_id.eq(account.as_str()));
    diesel::delete(events.filter(trigger_events::trigger_id.eq(id))).execute(conn).await?;
    Ok(())
}

type Triggers<'a> = triggers::BoxedQuery<'a, Pg>;

fn listed<'a>(account: &'a AccountId, filter: &'a TriggerFilter) -> Triggers<'a> {
    let mut rows = triggers::table.filter(triggers::account_id.eq(account.as_str())).into_boxed();
    if let Some(server) = &filter.tool_server_id {
        rows = rows.filter(triggers::tool_server_id.eq(server));
    }
    let targets = [("agent", &filter.agent_id), ("assistant", &filter.assistant_id)];
    if targets.iter().any(|(_, id)| id.is_some()) {
        let of = |(kind, id): (&'a str, &'a Option<String>)| {
            let id = id.as_deref().unwrap_or_default();
            triggers::target_type.eq(kind).and(triggers::target_id.eq(id))
        };
        rows = rows.filter(of(targets[0]).or(of(targets[1])));
    }
    if let Some(within) = &filter.within {
        rows = rows.filter(triggers::project_id.is_null().or(triggers::project_id.eq_any(within)));
    }
    rows
}

pub(crate) async fn list(
    conn: &Conn,
    account: &AccountId,
    filter: &TriggerFilter,
    page: Page,
) -> Result<(Vec<TriggerRow>, i64)> {
    let (mut first, mut second) = (conn, conn);
    let newest = (triggers::created_ms.desc(), triggers::id.desc());
    let rows = listed(account, filter).order(newest).limit(page.limit).offset(page.offset);
    let rows = rows.select(TriggerRow::as_select());
    let total = listed(account, filter).count();
    Ok(futures_util::try_join!(rows.load(&mut first), total.get_result(&mut second))?)
}

/// Ids of the triggers of a target.
pub(crate) async fn of_target(conn: &Conn, account: &AccountId, kind: &str, id: &str) -> Result<Vec<String>> {
    let mut conn = conn;
    let of = triggers::table.filter(triggers::account_id.eq(account.as_str()));
    let of = of.filter(triggers::target_type.eq(kind).and(triggers::target_id.eq(id)));
    Ok(of.select(triggers::id).load(&mut conn).await?)
}

/// What is told of a trigger that paused by itself.
#[derive(Queryable, Selectable)]
#[diesel(table_name = triggers)]
pub(crate) struct Paused {
    pub id: String,
    pub name: String,
    pub tenant_id: Option<String>,
    pub project_id: Option<String>,
}

/// Pauses what a connection feeds, or has it go on that paused for it; what changed.
pub(crate) async fn follow_connection(
    conn: &mut Conn,
    account: &AccountId,
    connection: &str,
    is_active: bool,
    now: Timestamp,
) -> Result<Vec<Paused>> {
    let of = triggers::table.filter(triggers::account_id.eq(account.as_str()));
    let of = of.filter(triggers::connection_id.eq(connection));
    let changed = Paused::as_returning();
    Ok(if is_active {
        let paused = of.filter(triggers::state.eq("auto_paused").and(triggers::auto_pause_reason.eq("CONNECTION")));
        let on = (
            triggers::state.eq("active"),
            triggers::auto_paused_ms.eq(None::<i64>),
            triggers::auto_pause_reason.eq(None::<String>),
        );
        diesel::update(paused).set(on).returning(changed).get_results(conn).await?
    } else {
        let paused = (
            triggers::state.eq("auto_paused"),
            triggers::auto_paused_ms.eq(Some(now.0)),
            triggers::auto_pause_reason.eq(Some("CONNECTION")),
        );
        diesel::update(of.filter(triggers::state.eq("active"))).set(paused).returning(changed).get_results(conn).await?
    })
}

/// An event that came in.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct NewEvent {
    pub account: String,
    pub trigger: String,
    /// Id of the delivery, and of its run.
    pub id: String,
    pub run: String,
    pub event: String,
    pub received: i64,
    /// What it carries, as JSON: whoever waits for its place in a commit holds text alone.
    pub payload: Box<RawValue>,
    pub attempt: i32,
    pub depth: u8,
    pub is_test: bool,
    /// Its id is unique for so long.
    pub window_ms: i64,
    pub kind: &'static str,
    pub trace: Option<String>,
}

/// Stores events with the runs that carry them out. What is disabled, or was seen before, ends here.
static ACCEPT: LazyLock<String> = LazyLock::new(|| {
    storing(
        "INSERT INTO trigger_seen AS s (trigger_id, event_id, delivery_id, seen_ms)
            SELECT DISTINCT ON (\"trigger\", event) \"trigger\", event, id, received FROM known ORDER BY \"trigger\", event, n
            ON CONFLICT (trigger_id, event_id) DO UPDATE SET delivery_id = excluded.delivery_id, seen_ms = excluded.seen_ms
            WHERE s.seen_ms < excluded.seen_ms - (SELECT max(window_ms) FROM item)
            RETURNING s.delivery_id",
        "WHEN state <> 'active' THEN 'disabled'
            WHEN NOT EXISTS (SELECT 1 FROM seen WHERE seen.delivery_id = known.id) THEN 'duplicate'",
    )
});

/// The same of tests, which are carried out whatever stands against them, and of what came before and is to be carried
/// out again.
static ACCEPT_AGAIN: LazyLock<String> = LazyLock::new(|| {
    storing(
        "INSERT INTO trigger_seen AS s (trigger_id, event_id, delivery_id, seen_ms)
            SELECT DISTINCT ON (\"trigger\", event) \"trigger\", event, id, received FROM known
            WHERE NOT is_test ORDER BY \"trigger\", event, n DESC
            ON CONFLICT (trigger_id, event_id) DO UPDATE SET delivery_id = excluded.delivery_id, seen_ms = excluded.seen_ms",
        "WHEN NOT is_test AND state <> 'active' THEN 'disabled'",
    )
});

/// `seen`: what is noted of their ids; `ends`: how those end that are not carried out.
fn storing(seen: &str, ends: &str) -> String {
    format!(
        "WITH item AS (
            SELECT row_number() OVER () - 1 AS n, x.* FROM jsonb_to_recordset($1::jsonb) AS x(
                account text, \"trigger\" text, id text, run text, event text, received bigint, payload jsonb,
                attempt int, depth smallint, is_test bool, window_ms bigint, kind text, trace text)
        ), known AS (
            SELECT item.*, t.state FROM item JOIN triggers t ON t.account_id = item.account AND t.id = item.\"trigger\"
        ), seen AS ({seen}
        ), judged AS (
            SELECT known.*, CASE {ends} END AS outcome FROM known
        ), stored AS (
            INSERT INTO trigger_events (account_id, trigger_id, id, event_id, received_ms, outcome, duration_ms, attempt,
                payload, depth, is_test)
            SELECT account, \"trigger\", id, event, received, outcome, CASE WHEN outcome IS NULL THEN NULL ELSE 0 END,
                attempt, CASE WHEN outcome IS DISTINCT FROM 'duplicate' THEN coalesce(payload, 'null') ELSE 'null' END, depth, is_test
            FROM judged
        ), accepted AS (
            SELECT run, account, kind, id AS subject, 'null'::jsonb AS payload, NULL::text AS owner,
                NULL::bigint AS lease_ms, trace
            FROM judged WHERE outcome IS NULL
        ), queued AS ({ENQUEUE})
        SELECT item.n::int AS n, judged.outcome, judged.id FROM item LEFT JOIN judged USING (n) ORDER BY item.n"
    )
}

#[derive(QueryableByName)]
pub(crate) struct Accepted {
    #[diesel(sql_type = Integer)]
    #[expect(dead_code, reason = "the order of the rows")]
    n: i32,
    #[diesel(sql_type = Nullable<Text>)]
    pub outcome: Option<String>,
    /// Absent when the trigger is gone.
    #[diesel(sql_type = Nullable<Text>)]
    pub id: Option<String>,
}

pub(crate) async fn accept(conn: &mut Conn, events: &[NewEvent]) -> Result<Vec<Accepted>> {
    Ok(JsonStatement::new(&ACCEPT, events)?.load(conn).await?)
}

/// An event that is a test, or came before.
pub(crate) async fn accept_again(conn: &mut Conn, event: &NewEvent) -> Result<Option<Accepted>> {
    Ok(JsonStatement::new(&ACCEPT_AGAIN, slice::from_ref(event))?.load(conn).await?.pop())
}

#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = trigger_events)]
pub(crate) struct EventRow {
    pub trigger_id: String,
    pub id: String,
    pub event_id: String,
    pub received_ms: i64,
    pub outcome: Option<String>,
    pub thread_id: Option<String>,
    pub chat_uid: Option<String>,
    pub duration_ms: Option<i64>,
    pub error: Option<Value>,
    pub attempt: i32,
    pub depth: i16,
    pub is_test: bool,
    pub admitted: bool,
    pub tries: i16,
}

impl EventRow {
    pub fn shown(self, payload: Option<String>) -> Delivery {
        Delivery {
            id: self.id,
            event_id: self.event_id,
            received_at: self.received_ms,
            outcome: self.outcome,
            thread_id: self.thread_id,
            chat_uid: self.chat_uid,
            duration_ms: self.duration_ms,
            error: self.error,
            attempt: self.attempt,
            payload: payload.and_then(|json| RawValue::from_string(json).ok()),
        }
    }
}

/// What events carry, as JSON.
fn payload() -> SqlLiteral<Text> {
    sql("payload::text")
}

/// An event with what it carries.
pub(crate) async fn event(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<(EventRow, String)>> {
    let mut conn = conn;
    let row = trigger_events::table.filter(trigger_events::account_id.eq(account.as_str()));
    let row = row.filter(trigger_events::id.eq(id)).select((EventRow::as_select(), payload()));
    Ok(row.first(&mut conn).await.optional()?)
}

/// The newest delivery of an event with its payload, which duplicates do not keep: by the id of one, or of the event.
pub(crate) async fn newest_of(
    conn: &Conn,
    account: &AccountId,
    trigger: &str,
    name: &str,
) -> Result<Option<(EventRow, String)>> {
    let mut conn = conn;
    let of = || {
        trigger_events::table
            .filter(trigger_events::account_id.eq(account.as_str()))
            .filter(trigger_events::trigger_id.eq(trigger))
    };
    let by_id = of().filter(trigger_events::id.eq(name)).select(trigger_events::event_id);
    let event_id = by_id.first::<String>(&mut conn).await.optional()?.unwrap_or_else(|| name.to_owned());
    let newest = of()
        .filter(trigger_events::event_id.eq(event_id))
        .filter(trigger_events::outcome.is_distinct_from("duplicate"))
        .order((trigger_events::attempt.desc(), trigger_events::received_ms.desc()))
        .select((EventRow::as_select(), payload()));
    Ok(newest.first(&mut conn).await.optional()?)
}

type Events<'a> = trigger_events::BoxedQuery<'a, Pg>;

fn of_trigger<'a>(account: &'a AccountId, trigger: &'a str, filter: DeliveryFilter) -> Events<'a> {
    let mut rows = trigger_events::table
        .filter(trigger_events::account_id.eq(account.as_str()))
        .filter(trigger_events::trigger_id.eq(trigger))
        .into_boxed();
    if let Some(outcome) = filter.outcome {
        rows = rows.filter(trigger_events::outcome.eq(outcome.as_str()));
    }
    if let Some(since) = filter.since {
        rows = rows.filter(trigger_events::received_ms.ge(since));
    }
    rows
}

pub(crate) async fn list_events(
    conn: &Conn,
    account: &AccountId,
    trigger: &str,
    filter: DeliveryFilter,
    page: Page,
) -> Result<(Vec<Delivery>, i64, Page)> {
    let (mut first, mut second) = (conn, conn);
    let newest = (trigger_events::received_ms.desc(), trigger_events::id.desc());
    let rows = |page: Page| of_trigger(account, trigger, filter).order(newest).limit(page.limit).offset(page.offset);
    let sizes = rows(page).select(sql::<BigInt>("octet_length(payload::text)::bigint"));
    let total = of_trigger(account, trigger, filter).count();
    let (sizes, total) = futures_util::try_join!(sizes.load::<i64>(&mut first), total.get_result(&mut second))?;
    let with_payload = filter.include_payload == Some(true);
    let page = if with_payload { page.fitting(&sizes) } else { page };
    // Of a duplicate it is not kept.
    let kept =
        if with_payload { "CASE WHEN outcome IS DISTINCT FROM 'duplicate' THEN payload::text END" } else { "NULL" };
    let rows = rows(page).select((EventRow::as_select(), sql::<Nullable<Text>>(kept)));
    let rows: Vec<(EventRow, Option<String>)> = rows.load(&mut first).await?;
    Ok((rows.into_iter().map(|(row, payload)| row.shown(payload)).collect(), total, page))
}

/// Whether there is room for a start in its minute.
pub(crate) enum Admission {
    Admitted,
    /// So many minutes one after the other had too many.
    Limited(i32),
}

/// Counts a start in its minute.
pub(crate) async fn admit(conn: &mut Conn, trigger: &str, event: &str, minute: i64, most: i32) -> Result<Admission> {
    let row: Option<(i64, i32, i64, i32)> = trigger_counters::table
        .find(trigger)
        .select((
            trigger_counters::minute,
            trigger_counters::starts,
            trigger_counters::limited_minute,
            trigger_counters::limited_minutes,
        ))
        .for_update()
        .first(conn)
        .await
        .optional()?;
    let Some((current, starts, limited_minute, limited_minutes)) = row else { return Ok(Admission::Admitted) };
    // What waited counts in the newest minute.
    let minute = minute.max(current);
    let starts = if current == minute { starts } else { 0 };
    if starts < most {
        let counted = (trigger_counters::minute.eq(minute), trigger_counters::starts.eq(starts + 1));
        diesel::update(trigger_counters::table.find(trigger)).set(counted).execute(conn).await?;
        diesel::update(trigger_events::table.find(event)).set(trigger_events::admitted.eq(true)).execute(conn).await?;
        return Ok(Admission::Admitted);
    }
    let minutes = match minute - limited_minute {
        ..=0 => limited_minutes,
        1 => limited_minutes + 1,
        _ => 1,
    };
    let limited = (trigger_counters::limited_minute.eq(minute), trigger_counters::limited_minutes.eq(minutes));
    diesel::update(trigger_counters::table.find(trigger)).set(limited).execute(conn).await?;
    Ok(Admission::Limited(minutes))
}

/// Counts an error more, or forgets those that were; how many came one after the other.
pub(crate) async fn count_error(conn: &mut Conn, trigger: &str, failed: bool) -> Result<i32> {
    let errors = if failed { sql::<Integer>("errors + 1") } else { sql("0") };
    let counted = diesel::update(trigger_counters::table.find(trigger)).set(trigger_counters::errors.eq(errors));
    Ok(counted.returning(trigger_counters::errors).get_result(conn).await.optional()?.unwrap_or(0))
}

/// Forgets what was counted.
pub(crate) async fn clear_counters(conn: &mut Conn, trigger: &str) -> Result<()> {
    let cleared = (trigger_counters::limited_minutes.eq(0), trigger_counters::errors.eq(0));
    diesel::update(trigger_counters::table.find(trigger)).set(cleared).execute(conn).await?;
    Ok(())
}

/// Notes one more try that failed.
pub(crate) async fn note_try(conn: &mut Conn, event: &str) -> Result<()> {
    let tries = trigger_events::tries.eq(trigger_events::tries + 1);
    diesel::update(trigger_events::table.find(event)).set(tries).execute(conn).await?;
    Ok(())
}

/// What became of an event.
pub(crate) struct Ended {
    pub outcome: DeliveryOutcome,
    pub thread: Option<String>,
    pub chat: Option<String>,
    pub error: Option<DeliveryError>,
}

/// Notes what became of an event; one that came to an error may come again.
pub(crate) async fn end_event(conn: &mut Conn, event: &EventRow, ended: &Ended, now: Timestamp) -> Result<()> {
    if ended.outcome == DeliveryOutcome::Error {
        let seen = trigger_seen::table.find((&event.trigger_id, &event.event_id));
        diesel::delete(seen.filter(trigger_seen::delivery_id.eq(&event.id))).execute(conn).await?;
    }
    diesel::update(trigger_events::table.find(&event.id))
        .set((
            trigger_events::outcome.eq(ended.outcome.as_str()),
            trigger_events::thread_id.eq(&ended.thread),
            trigger_events::chat_uid.eq(&ended.chat),
            trigger_events::duration_ms.eq(Some(now.0 - event.received_ms)),
            trigger_events::error.eq(ended.error.as_ref().map(|error| serde_json::json!(error))),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// Counts an event that started something.
pub(crate) async fn count_event(conn: &mut Conn, account: &AccountId, event: &EventRow) -> Result<()> {
    let counted = (
        triggers::event_count.eq(triggers::event_count + 1),
        triggers::last_event_ms.eq(sql::<Nullable<BigInt>>("greatest(coalesce(last_event_ms, 0), ")
            .bind::<BigInt, _>(event.received_ms)
            .sql(")")),
    );
    diesel::update(by_id(account.as_str(), &event.trigger_id)).set(counted).execute(conn).await?;
    Ok(())
}

/// Pauses a trigger that is active; its name when it was.
pub(crate) async fn pause(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    reason: &str,
    now: Timestamp,
) -> Result<Option<Paused>> {
    let paused = (
        triggers::state.eq("auto_paused"),
        triggers::auto_paused_ms.eq(Some(now.0)),
        triggers::auto_pause_reason.eq(Some(reason)),
    );
    let of = by_id(account.as_str(), id).filter(triggers::state.eq("active"));
    Ok(diesel::update(of).set(paused).returning(Paused::as_returning()).get_result(conn).await.optional()?)
}

/// Forgets what came before a moment, or before the newest 5000 of a trigger, and what was seen before another; what
/// somebody has locked is forgotten the next time.
pub(crate) async fn purge(conn: &mut Conn, received: Timestamp, seen: Timestamp) -> Result<()> {
    for (old, before) in [
        (
            "DELETE FROM trigger_seen WHERE (trigger_id, event_id) IN (
                SELECT trigger_id, event_id FROM trigger_seen WHERE seen_ms < $1 FOR UPDATE SKIP LOCKED)",
            seen,
        ),
        (
            "DELETE FROM trigger_events WHERE id IN (
                SELECT id FROM trigger_events WHERE received_ms < $1 FOR UPDATE SKIP LOCKED)",
            received,
        ),
    ] {
        diesel::sql_query(old).bind::<BigInt, _>(before.0).execute(conn).await?;
    }
    diesel::sql_query(
        "DELETE FROM trigger_events WHERE id IN (
            SELECT e.id FROM trigger_events e JOIN (
                SELECT t.id, (SELECT k.received_ms FROM trigger_events k WHERE k.trigger_id = t.id
                    ORDER BY k.received_ms DESC, k.id DESC OFFSET 4999 LIMIT 1) AS oldest_ms FROM triggers t
            ) kept ON e.trigger_id = kept.id AND e.received_ms < kept.oldest_ms
            WHERE e.outcome IS NOT NULL FOR UPDATE OF e SKIP LOCKED)",
    )
    .execute(conn)
    .await?;
    Ok(())
}
