//! From events to deliveries.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Code, Error, Id, Object, Result, Timestamp, millis, sha256_hex};
use platform_db::Conn;
use platform_egress::Url;
use platform_events::{EventRow, claim_in, claim_one_in, oldest};
use serde_json::{Value, json};
use tracing::warn;

use crate::{
    model::Delivery,
    repository::{self, NewDelivery, WebhookRow},
    service::PgWebhooks,
};

/// Events that are taken at once.
const MAX_TAKEN: i64 = 200;
/// Deliveries, and bytes of them, that are stored at once.
const MAX_STORED: usize = 500;
const MAX_STORED_BYTES: usize = 8 << 20;
/// Of the hash of a host: 4,096 lanes.
const LANE_DIGITS: usize = 3;
/// Bytes of a message; what was said is left out of one that would be longer.
const MAX_BODY: usize = 256 << 10;

/// A thread, by account and id.
pub type ThreadKey = (AccountId, String);

/// Who else is told of what happens in a thread, and where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadAddress {
    /// `callbackUrl` of the thread.
    pub callback_url: Option<String>,
    /// `webhookUrl` of its agent.
    pub webhook_url: Option<String>,
    /// Project of its agent.
    pub project_id: Option<String>,
}

/// The addresses that threads and agents name themselves.
#[async_trait]
pub trait ThreadAddresses: Send + Sync {
    /// Those of some threads; one that is gone is left out.
    async fn of(&self, threads: &[ThreadKey]) -> Result<HashMap<ThreadKey, ThreadAddress>>;
}

impl PgWebhooks {
    /// Has events that wait become deliveries; how many waited. One that cannot become any is left out, so that it
    /// stands in nobody's way.
    pub(crate) async fn route(&self) -> Result<usize> {
        match self.take_and_deliver(None).await {
            Err(error) if error.code() != Code::SERVICE_UNAVAILABLE => {
                warn!(%error, "Deliveries could not be made of several events at once; trying the oldest alone.");
                self.route_oldest().await
            }
            outcome => outcome,
        }
    }

    async fn route_oldest(&self) -> Result<usize> {
        let Some(id) = oldest(&mut *self.db.conn().await?).await? else { return Ok(0) };
        for is_last in [false, true] {
            // It may be for a webhook that is gone.
            self.known.forget_all();
            match self.take_and_deliver(Some(&id)).await {
                Err(error) if error.code() != Code::SERVICE_UNAVAILABLE => {
                    if is_last {
                        tracing::error!(event = id, %error, "Deliveries could not be made of an event; it is left out.");
                        claim_one_in(&mut *self.db.conn().await?, &id).await?;
                    }
                }
                outcome => return outcome,
            }
        }
        Ok(1)
    }

    /// Takes the oldest events, or the one of this id, and stores their deliveries; how many were taken.
    async fn take_and_deliver(&self, one: Option<&str>) -> Result<usize> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let routing = conn.transaction::<_, Error, _>(async |conn| {
            let events = match one {
                None => claim_in(conn, MAX_TAKEN).await?,
                Some(id) => Vec::from_iter(claim_one_in(conn, id).await?),
            };
            if events.is_empty() {
                return Ok((0, false));
            }
            let is_some = self.deliver_in(conn, &events, now).await?;
            Ok((events.len(), is_some))
        });
        let (taken, is_some) = routing.await?;
        if is_some {
            self.waiting.notify_one();
        }
        Ok(taken)
    }

    /// Stores the deliveries of events, some at a time; whether there are any.
    async fn deliver_in(&self, conn: &mut Conn, events: &[EventRow], now: Timestamp) -> Result<bool> {
        let threads: HashSet<ThreadKey> =
            events.iter().filter_map(|event| Some((event.account().ok()?, event.thread_id.clone()?))).collect();
        let threads: Vec<ThreadKey> = threads.into_iter().collect();
        let addresses = if threads.is_empty() { HashMap::new() } else { self.threads.of(&threads).await? };
        let wait = self.rules.waits.first().copied().map_or(0, millis);
        let (mut deliveries, mut is_some) = (Vec::<NewDelivery>::new(), false);
        for event in events {
            let account = event.account()?;
            let nowhere = ThreadAddress::default();
            let thread = event.thread_id.clone().map(|thread| (account.clone(), thread));
            let address = thread.and_then(|thread| addresses.get(&thread)).unwrap_or(&nowhere);
            let listeners = self.listeners(&account).await?;
            for webhook in listeners.iter().filter(|webhook| listens(webhook, event, address)) {
                let mut delivery = delivery(event, message(event, webhook.include_content), now);
                delivery.next_ms += wait;
                delivery.lane.clone_from(&webhook.id);
                delivery.webhook_id = Some(webhook.id.clone());
                deliveries.push(delivery);
            }
            let is_of_thread = event.kind.starts_with("thread.");
            let named = [&address.callback_url, &address.webhook_url].into_iter().flatten();
            let mut urls: Vec<&String> = named.chain(event.urls.iter().flatten()).collect();
            urls.dedup();
            for url in urls.into_iter().filter(|_| is_of_thread) {
                self.make_default_secret(&account).await?;
                let mut delivery = delivery(event, message(event, true), now);
                delivery.next_ms += wait;
                delivery.lane = lane_of(&account, url);
                delivery.url = Some(url.clone());
                deliveries.push(delivery);
            }
            is_some |= !deliveries.is_empty();
            let bytes: usize = deliveries.iter().map(|delivery| delivery.body.len()).sum();
            if deliveries.len() >= MAX_STORED || bytes >= MAX_STORED_BYTES {
                repository::insert_deliveries(conn, std::mem::take(&mut deliveries)).await?;
            }
        }
        repository::insert_deliveries(conn, deliveries).await?;
        Ok(is_some)
    }
}

/// Whether a webhook is told of an event.
fn listens(webhook: &WebhookRow, event: &EventRow, address: &ThreadAddress) -> bool {
    let project = event.project_id.as_ref().or(address.project_id.as_ref());
    let is_of = |wanted: &Option<String>, found: Option<&String>| wanted.is_none() || wanted.as_ref() == found;
    webhook.hears(&event.kind)
        && is_of(&webhook.tenant_id, event.tenant_id.as_ref())
        && is_of(&webhook.project_id, project)
}

/// Addresses of one host take turns with each other; those of an account have no more lanes than can be looked through.
fn lane_of(account: &AccountId, url: &str) -> String {
    let url = Url::parse(url).ok();
    let host = url.as_ref().and_then(|url| url.host_str()).unwrap_or_default();
    let port = url.as_ref().and_then(Url::port_or_known_default).unwrap_or_default();
    format!("{}/{}", account.as_str(), &sha256_hex(format!("{host}:{port}"))[..LANE_DIGITS])
}

/// What is sent of an event: the same text in every attempt.
fn message(event: &EventRow, with_content: bool) -> String {
    let of =
        |data: &Value| json!({"type": event.kind, "timestamp": Timestamp(event.created_ms).to_iso(), "data": data});
    let Some(Value::Object(content)) = event.content.as_ref().filter(|_| with_content) else {
        return of(&event.data).to_string();
    };
    let mut data: Object = event.data.as_object().cloned().unwrap_or_default();
    let plain = data.clone();
    data.extend(content.clone());
    let whole = of(&Value::Object(data)).to_string();
    if whole.len() <= MAX_BODY {
        return whole;
    }
    let mut plain = plain;
    plain.insert("contentOmitted".to_owned(), true.into());
    of(&Value::Object(plain)).to_string()
}

/// A delivery that still lacks to whom.
fn delivery(event: &EventRow, body: String, now: Timestamp) -> NewDelivery {
    NewDelivery {
        account_id: event.account_id.clone(),
        id: Id::<Delivery>::generate().into(),
        webhook_id: None,
        url: None,
        lane: String::new(),
        event_id: event.id.clone(),
        event_type: event.kind.clone(),
        body,
        depth: event.depth,
        status: "pending",
        next_ms: now.0,
        forced: false,
        created_ms: now.0,
    }
}

/// A delivery of an event that did not happen, to try a webhook.
pub(crate) fn made_up(account: &AccountId, webhook: &str, kind: &str, data: Value, now: Timestamp) -> NewDelivery {
    let event = EventRow {
        id: platform_events::new_event_id(),
        account_id: account.as_str().to_owned(),
        kind: kind.to_owned(),
        data,
        content: None,
        agent_id: None,
        thread_id: None,
        tenant_id: None,
        project_id: None,
        depth: 0,
        created_ms: now.0,
        urls: None,
    };
    let mut delivery = delivery(&event, message(&event, false), now);
    webhook.clone_into(&mut delivery.lane);
    delivery.webhook_id = Some(webhook.to_owned());
    delivery.forced = true;
    delivery
}
