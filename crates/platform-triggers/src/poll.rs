//! Events that nobody sends: lists that grow, and times that come.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_agents::next_time;
use platform_core::{AccountId, Error, Result, Timestamp, json_length, parse, run_blocking};
use platform_integrations::{PackEventType, at_path, template};
use platform_jobs::{Run, When, Work, end_in, enqueue_in, is_held_in};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    feed,
    repository::{self, NewEvent, TriggerRow},
    service::{OpenTrigger, PgTriggers},
    subscribe::config_value,
};

/// Kind of the runs that ask apps; the subject is the trigger.
pub(crate) const POLL: &str = "trigger-poll";
/// Kind of the runs that wait for times; the subject is the trigger.
pub(crate) const SCHEDULE: &str = "trigger-schedule";
/// Elements of a list that become events at once; ids that are remembered.
const MOST_ITEMS: usize = 500;
const MOST_SEEN: usize = 2000;

/// Asks apps what is new.
pub struct PollWork(pub Arc<PgTriggers>);

/// What a poll found.
struct Found {
    /// What is new, oldest first, each with its id.
    items: Vec<(String, Value)>,
    cursor: Value,
}

#[async_trait]
impl Work for PollWork {
    fn kind(&self) -> &'static str {
        POLL
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let (triggers, account) = (&self.0, run.account());
        let Some(trigger) = triggers.open_of(&account, &run.subject).await? else {
            return end_in(&mut *triggers.db.conn().await?, run).await;
        };
        let connector = triggers.integrations.connector(&trigger.row.app)?;
        let event = connector.event_type(&trigger.row.slug)?;
        let is_active = trigger.row.state == "active";
        let polled = if is_active { triggers.poll(&account, &trigger.row, event).await } else { Ok(None) };
        if let Err(error) = &polled {
            warn!(trigger = trigger.row.id, app = trigger.row.app, %error, "An app could not be polled.");
        }
        let wait = |seconds: u32| Duration::from_secs(seconds.max(30).into());
        let wait = event.interval_seconds.map_or(triggers.rules.poll_interval, wait);
        // The first says where the list stands, and brings no events.
        let polled = polled.and_then(|found| {
            let items = found.iter().filter(|_| trigger.row.cursor.is_some()).flat_map(|found| &found.items);
            triggers.count_sent(
                &account,
                items.map(|(_, item)| json_length(item, usize::MAX).unwrap_or(usize::MAX)).sum(),
            )?;
            Ok(found)
        });
        triggers.store_polled(run, &trigger, polled, wait).await
    }
}

impl PgTriggers {
    /// Asks an app once; `None` when the app has nothing to ask.
    async fn poll(&self, account: &AccountId, row: &TriggerRow, event: &PackEventType) -> Result<Option<Found>> {
        let Some(poll) = &event.poll else { return Ok(None) };
        let cursor = row.cursor.clone().unwrap_or_default();
        let values = |name: &str| match name {
            "cursor" => cursor["cursor"].as_str().map(Value::from),
            name => config_value(event, &row.config, name),
        };
        let mut request = poll.request();
        let names_cursor = |text: &str| text.contains("${cursor}");
        let body = request.body.as_ref().map(Value::to_string).unwrap_or_default();
        if poll.cursor.is_some()
            && cursor["cursor"].is_string()
            && !names_cursor(&request.endpoint)
            && !names_cursor(&body)
        {
            let mark = if request.endpoint.contains('?') { '&' } else { '?' };
            request.endpoint = format!("{}{mark}cursor=${{cursor}}", request.endpoint);
        }
        let connections = self.integrations.connections();
        let answer = connections.request(account, &row.connection_id, &request, &values).await?;
        if !(200..300).contains(&answer.status) {
            let message = format!("{} answers {}.", row.app, answer.status);
            return Err(Error::new(platform_core::Code::UPSTREAM_ERROR, message));
        }
        let path = |text: &str| template::text(text, &values);
        let (items, ids) = (path(&poll.items), poll.event_id.iter().map(|id| path(id)).collect::<Vec<_>>());
        let next = poll.cursor.clone();
        let is_feed = row.app == "rss";
        run_blocking(move || {
            let body = if is_feed { feed::read(&answer.bytes) } else { parse(&answer.bytes).ok() };
            let body = body.ok_or_else(|| {
                Error::new(platform_core::Code::UPSTREAM_ERROR, "The answer is neither JSON nor a feed.")
            })?;
            Ok(Some(news(&body, &cursor, &items, &ids, next.as_deref())))
        })
        .await
    }

    /// Stores what a poll found and when the next one is, with the run's end.
    async fn store_polled(
        &self,
        run: &Run,
        trigger: &OpenTrigger,
        polled: Result<Option<Found>>,
        wait: Duration,
    ) -> Result<()> {
        let (account, now) = (run.account(), self.clock.now());
        let is_first = trigger.row.cursor.is_none();
        let mut conn = self.db.conn().await?;
        let storing = conn.transaction::<_, Error, _>(async |conn| {
            // A trigger comes before its runs, whoever takes both.
            repository::lock(conn, &account, &trigger.row.id).await?;
            if !is_held_in(conn, run).await? {
                return Ok(false);
            }
            end_in(conn, run).await?;
            enqueue_in(conn, &account, POLL, &run.subject, Value::Null, When::ByClock(wait)).await?;
            let id = &trigger.row.id;
            let found = match polled {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(false),
                Err(error) => {
                    let said = json!({"code": error.code().as_str(), "message": error.message(), "at": now});
                    repository::set_last_error(conn, &account, id, said).await?;
                    return Ok(false);
                }
            };
            repository::set_cursor(conn, &account, id, found.cursor).await?;
            // The first poll says where the list stands.
            if is_first || found.items.is_empty() {
                return Ok(false);
            }
            let events: Vec<NewEvent> =
                found.items.into_iter().map(|(id, item)| NewEvent::of(&self.rules, trigger, id, item, now)).collect();
            repository::accept(conn, &events).await?;
            Ok(true)
        });
        let has_events = storing.await?;
        drop(conn);
        if has_events {
            self.jobs.announce();
        }
        self.jobs.announce_after(wait);
        Ok(())
    }
}

/// What of an answer is new, and where the next poll begins.
fn news(body: &Value, cursor: &Value, items: &str, ids: &[String], next: Option<&str>) -> Found {
    let list = at_path(body, items).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let part = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let id_of = |item: &Value| {
        let parts: Vec<String> = ids.iter().filter_map(|path| at_path(item, path)).map(part).collect();
        Some(parts.join(":")).filter(|id| !id.is_empty() && parts.len() == ids.len())
    };
    let seen: Vec<&str> = cursor["seen"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let known: HashSet<&str> = seen.iter().copied().collect();
    let mut listed: Vec<(String, &Value)> =
        list.iter().take(MOST_SEEN).filter_map(|item| Some((id_of(item)?, item))).collect();
    // Lists begin with what is newest; what is too much for one poll is left for the next.
    let new = listed.iter().filter(|(id, _)| !known.contains(id.as_str())).count();
    let mut left = if cursor.is_null() { 0 } else { new.saturating_sub(MOST_ITEMS) };
    let is_all = left == 0;
    listed.retain(|(id, _)| {
        let is_left = left > 0 && !known.contains(id.as_str());
        left -= usize::from(is_left);
        !is_left
    });
    let mut items: Vec<(String, Value)> = listed
        .iter()
        .filter(|(id, _)| !known.contains(id.as_str()))
        .map(|(id, item)| (id.clone(), (*item).clone()))
        .collect();
    items.reverse();
    let current: HashSet<&str> = listed.iter().map(|(id, _)| id.as_str()).collect();
    let older = seen.iter().copied().filter(|id| !current.contains(id));
    let seen: Vec<&str> = listed.iter().map(|(id, _)| id.as_str()).chain(older).take(MOST_SEEN).collect();
    let next = next.filter(|_| is_all).and_then(|path| at_path(body, path)).filter(|value| !value.is_null()).map(part);
    let cursor = next.map_or_else(|| cursor["cursor"].clone(), Value::from);
    Found { items, cursor: json!({"cursor": cursor, "seen": seen}) }
}

/// Waits for times.
pub struct ScheduleWork(pub Arc<PgTriggers>);

/// The first time after a moment that a trigger's config names.
pub(crate) fn next(config: &Value, after: Timestamp) -> Option<Timestamp> {
    next_time(config["cronExpression"].as_str()?, timezone(config), after)
}

pub(crate) fn timezone(config: &Value) -> &str {
    config["timezone"].as_str().unwrap_or("UTC")
}

#[async_trait]
impl Work for ScheduleWork {
    fn kind(&self) -> &'static str {
        SCHEDULE
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let (triggers, account) = (&self.0, run.account());
        let Some(trigger) = triggers.open_of(&account, &run.subject).await? else {
            return end_in(&mut *triggers.db.conn().await?, run).await;
        };
        let now = triggers.clock.now();
        let due = run.payload["at"].as_i64().map_or(now, Timestamp);
        // Clocks of processes differ: a time that was served is never the next; times that were missed are made up for once.
        let next = next(&trigger.row.config, now.max(due));
        let payload = json!({"dueAt": due.to_iso(), "timezone": timezone(&trigger.row.config)});
        let event = NewEvent::of(&self.0.rules, &trigger, due.to_iso(), payload, now);
        let mut conn = triggers.db.conn().await?;
        let storing = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock(conn, &account, &trigger.row.id).await?;
            if !is_held_in(conn, run).await? {
                return Ok(());
            }
            end_in(conn, run).await?;
            if let Some(next) = next {
                let when = When::ByClock(next.since(now));
                enqueue_in(conn, &account, SCHEDULE, &run.subject, json!({"at": next}), when).await?;
            }
            repository::accept(conn, std::slice::from_ref(&event)).await.map(drop)
        });
        storing.await?;
        drop(conn);
        triggers.jobs.announce();
        if let Some(wait) = next.map(|next| next.since(now)).filter(|wait| *wait < Duration::from_mins(2)) {
            triggers.jobs.announce_after(wait);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_for_one_poll_comes_with_the_next_ones_and_nothing_comes_twice() {
        let list = |newest: i64| json!({"items": (1..=newest).rev().map(|id| json!({"id": id})).collect::<Vec<_>>()});
        let poll = |newest: i64, cursor: &Value| news(&list(newest), cursor, "items", &["id".to_owned()], None);
        let first = poll(100, &Value::Null);
        let mut cursor = first.cursor;
        let mut told: Vec<i64> = Vec::new();
        for newest in [1300, 1301, 1301, 1301] {
            let found = poll(newest, &cursor);
            assert!(found.items.len() <= MOST_ITEMS);
            told.extend(found.items.iter().filter_map(|(_, item)| item["id"].as_i64()));
            cursor = found.cursor;
        }
        assert_eq!(told, (101..=1301).collect::<Vec<_>>());
    }

    #[test]
    fn the_place_in_a_list_stays_until_all_of_a_page_is_told() {
        let page = json!({"items": (0..600).map(|id| json!({"id": id})).collect::<Vec<_>>(), "next": "b"});
        let before = json!({"cursor": "a", "seen": ["0"]});
        let found = news(&page, &before, "items", &["id".to_owned()], Some("next"));
        assert_eq!((found.items.len(), &found.cursor["cursor"]), (500, &json!("a")));
        let found = news(&page, &found.cursor, "items", &["id".to_owned()], Some("next"));
        assert_eq!((found.items.len(), &found.cursor["cursor"]), (99, &json!("b")));
    }
}
