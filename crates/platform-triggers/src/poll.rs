//! Events that nobody sends: lists that grow, and times that come.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_agents::next_time;
use platform_core::{AccountId, Error, Result, Timestamp, json_length, parse, run_blocking};
use platform_integrations::{PackEventType, PackRequest, at_path, template};
use platform_jobs::{Run, When, Work, end, end_in, enqueue_in, is_held_in};
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
/// Elements of a list that become events at once; ids that are remembered, and elements of a list that are looked at.
const MAX_ITEMS: usize = 500;
const MAX_SEEN: usize = 2000;
/// Pages of a list that are asked for at once, and bytes of them after which no more is.
const MAX_PAGES: usize = 20;
const MAX_BYTES: usize = 8 << 20;

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

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let (triggers, account) = (&self.0, run.account());
        let Some(trigger) = triggers.open_of(&account, &run.subject).await? else {
            return end(&triggers.db, run).await;
        };
        let known = triggers.integrations.connector(&trigger.row.app).and_then(|connector| {
            connector.event_type(&trigger.row.slug)?;
            Ok(connector)
        });
        let connector = match known {
            Ok(connector) => connector,
            // Its pack may be back the next time.
            Err(gone) => return triggers.store_polled(run, &trigger, Err(gone), triggers.rules.poll_interval).await,
        };
        let event = connector.event_type(&trigger.row.slug)?;
        let is_active = trigger.row.state == "active";
        let polled = if is_active { triggers.poll(&account, &trigger.row, event, stop).await } else { Ok(None) };
        if let Err(error) = &polled {
            warn!(trigger = trigger.row.id, app = trigger.row.app, %error, "An app could not be polled.");
        }
        let wait = |seconds: u32| Duration::from_secs(seconds.max(30).into());
        let wait = event.interval_seconds.map_or(triggers.rules.poll_interval, wait);
        // The first says where the list stands, and brings no events.
        let polled = polled.and_then(|found| {
            let items = found.iter().filter(|_| trigger.row.cursor.is_some()).flat_map(|found| &found.items);
            let (events, bytes) = items.fold((0, 0_usize), |(events, bytes), (_, item)| {
                (events + 1, bytes.saturating_add(json_length(item, usize::MAX).unwrap_or(usize::MAX)))
            });
            triggers.count_sent(&account, events, bytes)?;
            Ok(found)
        });
        triggers.store_polled(run, &trigger, polled, wait).await
    }
}

impl PgTriggers {
    /// Asks an app once; `None` when the app has nothing to ask, or whoever asks is to stop.
    async fn poll(
        &self,
        account: &AccountId,
        row: &TriggerRow,
        event: &PackEventType,
        stop: &CancellationToken,
    ) -> Result<Option<Found>> {
        let Some(poll) = &event.poll else { return Ok(None) };
        let cursor = row.cursor.clone().unwrap_or_default();
        let values = |name: &str| match name {
            "cursor" => cursor["cursor"].as_str().map(Value::from),
            name => config_value(event, &row.config, name),
        };
        let mut request = poll.request();
        let names_cursor = |text: &str| text.contains("${cursor}");
        let body = request.body.as_ref().map(Value::to_string).unwrap_or_default();
        let names_none = !names_cursor(&request.endpoint) && !names_cursor(&body);
        if poll.cursor.is_some() && cursor["cursor"].is_string() && names_none {
            request.add_parameter("cursor", "${cursor}");
        }
        let path = |text: &str| template::text(text, &values);
        let reader = Arc::new(PageReader {
            is_feed: row.app == "rss",
            items: path(&poll.items),
            ids: poll.event_id.iter().map(|id| path(id)).collect(),
            cursor: poll.cursor.clone(),
            next: poll.next_page.as_ref().map(|next| next.from.clone()),
        });
        let (first, mut size) = self.page(account, row, &request, &values, &reader).await?;
        let (mut listed, mut next) = (first.items, first.next);
        let (seen, of_first_page) = (Seen::of(&cursor), listed.len());
        for _ in 1..MAX_PAGES {
            // Of what is newest first, the rest is older than what is known.
            let is_reached = poll.newest_first && listed.iter().any(|(id, _)| seen.knows(id));
            if is_reached || listed.len() >= MAX_SEEN || size >= MAX_BYTES {
                break;
            }
            let (Some(page), Some(asked)) = (next.take(), &poll.next_page) else { break };
            if stop.is_cancelled() {
                return Ok(None);
            }
            let values = |name: &str| if name == "page" { Some(Value::from(page.as_str())) } else { values(name) };
            let (more, bytes) = self.page(account, row, &poll.request_next(asked), &values, &reader).await?;
            listed.extend(more.items);
            (next, size) = (more.next, size + bytes);
        }
        listed.truncate(MAX_SEEN);
        let is_cut = next.is_some() || poll.next_page.is_none();
        let old_from = old_from(&cursor, &listed, &seen, poll.newest_first, of_first_page);
        let mut found = news(listed, &cursor, &seen, first.cursor, old_from);
        found.cursor["isCut"] = is_cut.into();
        Ok(Some(found))
    }

    /// Asks for a page of a list; also its bytes.
    async fn page(
        &self,
        account: &AccountId,
        row: &TriggerRow,
        request: &PackRequest,
        values: &template::Values<'_>,
        reader: &Arc<PageReader>,
    ) -> Result<(ListPage, usize)> {
        let connections = self.integrations.connections();
        let answer = connections.request(account, &row.connection_id, request, values).await?;
        if !(200..300).contains(&answer.status) {
            let message = format!("{} answers {}.", row.app, answer.status);
            return Err(Error::new(platform_core::Code::UPSTREAM_ERROR, message));
        }
        let (reader, size) = (Arc::clone(reader), answer.bytes.len());
        Ok((run_blocking(move || reader.read(&answer.bytes)).await?, size))
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

/// How the pages of a list are read.
struct PageReader {
    is_feed: bool,
    /// Where a page has its elements, and an element its id.
    items: String,
    ids: Vec<String>,
    /// Where it says where the next poll begins, and where the next page.
    cursor: Option<String>,
    next: Option<String>,
}

/// A page of a list.
struct ListPage {
    /// Its elements with their ids, in their order.
    items: Vec<(String, Value)>,
    cursor: Option<String>,
    next: Option<String>,
}

impl PageReader {
    fn read(&self, bytes: &[u8]) -> Result<ListPage> {
        let body = if self.is_feed { feed::read(bytes) } else { parse(bytes).ok() };
        let body = body
            .ok_or_else(|| Error::new(platform_core::Code::UPSTREAM_ERROR, "The answer is neither JSON nor a feed."))?;
        Ok(self.page(&body))
    }

    fn page(&self, body: &Value) -> ListPage {
        let part = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let id_of = |item: &Value| {
            let mut parts: Vec<String> = self.ids.iter().filter_map(|path| at_path(item, path)).map(part).collect();
            // The last may hold colons; those of the others are told from what joins them.
            let (_, others) = parts.split_last_mut()?;
            for part in others {
                *part = part.replace('\\', r"\\").replace(':', r"\:");
            }
            Some(parts.join(":")).filter(|id| !id.is_empty() && parts.len() == self.ids.len())
        };
        let list = at_path(body, &self.items).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let items = list.iter().take(MAX_SEEN).filter_map(|item| Some((id_of(item)?, item.clone()))).collect();
        let place = |path: &Option<String>| {
            let value = at_path(body, path.as_deref()?).map(part)?;
            Some(value).filter(|place| !place.is_empty())
        };
        ListPage { items, cursor: place(&self.cursor), next: place(&self.next) }
    }
}

/// Ids that earlier polls found, the newest first.
struct Seen {
    ids: Vec<String>,
    known: HashSet<String>,
}

impl Seen {
    fn of(cursor: &Value) -> Self {
        let ids = cursor["seen"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        let ids: Vec<String> = ids.collect();
        Self { known: ids.iter().cloned().collect(), ids }
    }

    fn knows(&self, id: &str) -> bool {
        self.known.contains(id)
    }
}

/// Where elements of a list are that are no news although nobody saw them.
fn old_from(
    cursor: &Value,
    listed: &[(String, Value)],
    seen: &Seen,
    newest_first: bool,
    of_first_page: usize,
) -> usize {
    match cursor["isCut"].as_bool() {
        // Earlier versions looked at a first page alone.
        None if !cursor.is_null() => of_first_page,
        // There were more: what is behind all that is known only moved up.
        Some(true) if newest_first => {
            listed.iter().rposition(|(id, _)| seen.knows(id)).map_or(listed.len(), |last| last + 1)
        }
        _ => listed.len(),
    }
}

/// What of a list is new, and where the next poll begins; `old_from`: where elements are that are no news.
fn news(mut listed: Vec<(String, Value)>, cursor: &Value, seen: &Seen, next: Option<String>, old_from: usize) -> Found {
    let old: HashSet<String> = listed[old_from.min(listed.len())..].iter().map(|(id, _)| id.clone()).collect();
    let is_new = |id: &str| !seen.knows(id) && !old.contains(id);
    // Lists begin with what is newest; what is too much for one poll is left for the next.
    let new = listed.iter().filter(|(id, _)| is_new(id)).count();
    let mut left = if cursor.is_null() { 0 } else { new.saturating_sub(MAX_ITEMS) };
    let is_all = left == 0;
    listed.retain(|(id, _)| {
        let is_left = left > 0 && is_new(id);
        left -= usize::from(is_left);
        !is_left
    });
    let current: HashSet<&str> = listed.iter().map(|(id, _)| id.as_str()).collect();
    let gone = seen.ids.iter().map(String::as_str).filter(|id| !current.contains(id));
    let seen: Vec<&str> = listed.iter().map(|(id, _)| id.as_str()).chain(gone).take(MAX_SEEN).collect();
    let next = next.filter(|_| is_all).map_or_else(|| cursor["cursor"].clone(), Value::from);
    let cursor = json!({"cursor": next, "seen": seen});
    let items = listed.into_iter().rev().filter(|(id, _)| is_new(id)).collect();
    Found { items, cursor }
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
            return end(&triggers.db, run).await;
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

    fn found(page: &Value, cursor: &Value, next: Option<&str>, old_from: usize) -> Found {
        let reader = PageReader {
            is_feed: false,
            items: "items".to_owned(),
            ids: vec!["id".to_owned()],
            cursor: next.map(str::to_owned),
            next: None,
        };
        let page = reader.page(page);
        news(page.items, cursor, &Seen::of(cursor), page.cursor, old_from)
    }

    fn list(ids: impl IntoIterator<Item = i64>) -> Value {
        json!({"items": ids.into_iter().map(|id| json!({"id": id})).collect::<Vec<_>>()})
    }

    fn ids(found: &Found) -> Vec<i64> {
        found.items.iter().filter_map(|(_, item)| item["id"].as_i64()).collect()
    }

    #[test]
    fn ids_of_several_parts_are_told_apart_wherever_their_colons_stand() {
        let ids = ["id".to_owned(), "at".to_owned()].to_vec();
        let reader = PageReader { is_feed: false, items: "items".to_owned(), ids, cursor: None, next: None };
        let page = json!({"items": [{"id": "a:b", "at": "c"}, {"id": "a", "at": "b:c"}, {"id": r"a\", "at": "b:c"},
            {"id": "a", "at": "2030-01-01T00:00:00Z"}]});
        let found: Vec<String> = reader.page(&page).items.into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, [r"a\:b:c", "a:b:c", r"a\\:b:c", "a:2030-01-01T00:00:00Z"]);
    }

    #[test]
    fn what_is_too_much_for_one_poll_comes_with_the_next_ones_and_nothing_comes_twice() {
        let poll = |newest: i64, cursor: &Value| found(&list((1..=newest).rev()), cursor, None, usize::MAX);
        let first = poll(100, &Value::Null);
        let mut cursor = first.cursor;
        let mut told: Vec<i64> = Vec::new();
        for newest in [1300, 1301, 1301, 1301] {
            let found = poll(newest, &cursor);
            assert!(found.items.len() <= MAX_ITEMS);
            told.extend(ids(&found));
            cursor = found.cursor;
        }
        assert_eq!(told, (101..=1301).collect::<Vec<_>>());
    }

    #[test]
    fn what_moves_up_to_the_end_of_a_list_is_old_where_there_were_more_and_the_newest_come_first() {
        let listed: Vec<_> = ["4", "3", "1"].map(|id| (id.to_owned(), Value::Null)).into();
        for (cursor, newest_first, expected) in [
            (json!({"seen": ["3", "2"], "isCut": true}), true, 2),
            (json!({"seen": ["3", "2"], "isCut": true}), false, 3),
            (json!({"seen": ["3", "2"], "isCut": false}), true, 3),
            (json!({"seen": ["9"], "isCut": true}), true, 3),
            (json!({"seen": ["3", "2"]}), true, 1),
            (Value::Null, true, 3),
        ] {
            let seen = Seen::of(&cursor);
            assert_eq!(old_from(&cursor, &listed, &seen, newest_first, 1), expected, "{cursor} {newest_first}");
        }
    }

    #[test]
    fn what_is_old_is_no_news_and_is_known_from_then_on() {
        let first = found(&list([3, 2]), &Value::Null, None, usize::MAX);
        let second = found(&list([4, 3, 1]), &first.cursor, None, 2);
        let third = found(&list([4, 3, 1, 0]), &second.cursor, None, usize::MAX);
        assert_eq!((ids(&second), ids(&third)), (vec![4], vec![0]));
    }

    #[test]
    fn the_place_in_a_list_stays_until_all_of_a_page_is_told() {
        let page = json!({"items": (0..600).map(|id| json!({"id": id})).collect::<Vec<_>>(), "next": "b"});
        let before = json!({"cursor": "a", "seen": ["0"]});
        let first = found(&page, &before, Some("next"), usize::MAX);
        assert_eq!((first.items.len(), &first.cursor["cursor"]), (500, &json!("a")));
        let second = found(&page, &first.cursor, Some("next"), usize::MAX);
        assert_eq!((second.items.len(), &second.cursor["cursor"]), (99, &json!("b")));
    }
}
