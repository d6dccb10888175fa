//! Deliveries: who is served next, each attempt, and what became of it.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    mem, slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use diesel_async::AsyncConnection;
use futures_util::future::OptionFuture;
use platform_core::{AccountId, Code, Error, Result, millis, spawn_finishing};
use platform_egress::{
    EgressError, Method, Outgoing, Payload, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use platform_vault::Secret;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::{error, warn};

use crate::{
    repository::{self, ClaimRoom, Claimed, Tried},
    service::PgWebhooks,
    signature,
};

/// An attempt (contract 17).
const TIMEOUT: Duration = Duration::from_secs(15);
/// A process that dies with a delivery loses it after this.
const LEASE: Duration = Duration::from_mins(1);
/// How often the table is looked at when nobody says that there is something in it.
const POLL: Duration = Duration::from_millis(250);
/// Deliveries that are in memory at once, and of one account, but for those whose receivers say nothing for long.
const MOST: usize = 256;
const MAX_OF_ACCOUNT: usize = 128;
/// Attempts under way, and those of one account.
const MAX_SENDING: usize = 2048;
const MAX_SENDING_OF_ACCOUNT: usize = 512;
/// Sent to one receiver at once.
const AT_ONCE: usize = 4;
/// Taken for a receiver that answers at once, so that it need not wait for the table.
const MAX_OF_LANE: usize = 64;
/// A receiver that answered nothing for so long takes no place from others, and is sent no more than one at once.
const STALLED: Duration = Duration::from_secs(1);
/// Attempts that are noted together.
const MAX_NOTED: usize = 256;

/// What waits for one receiver.
struct Lane {
    account: String,
    /// Attempts under way.
    sending: usize,
    /// Those of them that have a place.
    placed: usize,
    /// Its receiver answered nothing for a while, and has taken nothing since.
    is_slow: bool,
    /// Taken and not begun, with the moment by which it must begin and the end of its lease.
    waiting: Taken,
    /// Successes since the last failure.
    successes: usize,
    /// When the last attempt began or ended.
    moved: Instant,
}

impl Lane {
    fn new(account: &str) -> Self {
        Self {
            account: account.to_owned(),
            sending: 0,
            placed: 0,
            is_slow: false,
            waiting: VecDeque::new(),
            successes: 0,
            moved: Instant::now(),
        }
    }

    fn is_busy(&self) -> bool {
        self.sending > 0 || !self.waiting.is_empty()
    }

    /// How many attempts may be under way.
    fn at_once(&self) -> usize {
        if self.is_slow { 1 } else { AT_ONCE }
    }

    /// Gives up the places of attempts at a receiver that answers nothing; how many.
    fn give_up_places(&mut self) -> usize {
        if self.sending == 0 || self.moved.elapsed() < STALLED {
            return 0;
        }
        self.is_slow = true;
        mem::take(&mut self.placed)
    }

    /// What waits for a receiver that answers nothing, or has waited for too long: others need its place.
    fn stalled(&mut self) -> Taken {
        let is_stalled = self.sending >= self.at_once() && self.moved.elapsed() >= STALLED;
        let is_late = self.waiting.front().is_some_and(|(_, begins, _)| Instant::now() >= *begins);
        if !is_stalled && !is_late {
            return VecDeque::new();
        }
        self.successes = 0;
        mem::take(&mut self.waiting)
    }
}

/// An attempt that ended.
struct Ended {
    lane: String,
    succeeded: bool,
}

/// What a sender took, each with when others need its place and the end of its lease.
type Taken = VecDeque<(Claimed, Instant, i64)>;

/// The lanes of a sender; what it took and did not begin is due again when it ends.
struct Lanes {
    webhooks: Arc<PgWebhooks>,
    of: HashMap<String, Lane>,
    /// What is being taken.
    claiming: Option<oneshot::Receiver<Result<Taken>>>,
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let (webhooks, lanes) = (Arc::clone(&self.webhooks), mem::take(&mut self.of));
        let mut taken: Taken = lanes.into_values().flat_map(|lane| lane.waiting).collect();
        if let Some(mut claiming) = self.claiming.take() {
            // Whoever takes more from now on gives it back.
            claiming.close();
            taken.extend(claiming.try_recv().ok().and_then(Result::ok).into_iter().flatten());
        }
        if !taken.is_empty() {
            spawn_finishing("give deliveries back", async move { webhooks.give_back(taken).await });
        }
    }
}

/// What a sender shares with its attempts.
struct Attempts {
    webhooks: Arc<PgWebhooks>,
    noted: mpsc::Sender<Tried>,
    jitter: AtomicU64,
}

impl PgWebhooks {
    /// Has events become deliveries and sends them, until it is dropped.
    pub async fn keep(self: Arc<Self>) {
        let (noted, to_note) = mpsc::channel(4 * MOST);
        let attempts = Attempts { webhooks: Arc::clone(&self), noted, jitter: AtomicU64::new(0) };
        // Attempts that are under way when the process ends are noted.
        spawn_finishing("note attempts", Arc::clone(&self).keep_noting(to_note));
        tokio::join!(self.keep_routing(), self.send_all(Arc::new(attempts)));
    }

    async fn keep_routing(&self) {
        loop {
            match self.route().await {
                // There may be more.
                Ok(taken) if taken > 0 => {}
                Ok(_) => tokio::time::sleep(POLL).await,
                Err(error) => {
                    warn!(%error, "Deliveries could not be made of events; trying again.");
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }

    /// Serves all receivers, each apart from the others.
    async fn send_all(&self, attempts: Arc<Attempts>) {
        let mut lanes = Lanes { webhooks: Arc::clone(&attempts.webhooks), of: HashMap::new(), claiming: None };
        let Lanes { of: lanes, claiming, .. } = &mut lanes;
        let mut held: HashMap<String, usize> = HashMap::new();
        let (end, mut ended) = mpsc::unbounded_channel::<Ended>();
        let mut looks = true;
        loop {
            if looks
                && claiming.is_none()
                && let Some(room) = self.room(lanes, &held)
            {
                looks = false;
                *claiming = Some(Arc::clone(&attempts.webhooks).claim(room));
            }
            for (name, lane) in lanes.iter_mut() {
                for _ in 0..lane.give_up_places() {
                    release(&mut held, &lane.account);
                    looks = true;
                }
                let stalled = lane.stalled();
                if !stalled.is_empty() {
                    for (claimed, ..) in &stalled {
                        release(&mut held, &claimed.account_id);
                    }
                    let webhooks = Arc::clone(&attempts.webhooks);
                    spawn_finishing("give deliveries back", async move { webhooks.give_back(stalled).await });
                    looks = true;
                }
                while lane.sending < lane.at_once()
                    && let Some((claimed, _, lease)) = lane.waiting.pop_front()
                {
                    (lane.sending, lane.placed) = (lane.sending + 1, lane.placed + 1);
                    lane.moved = Instant::now();
                    let (attempts, end, lane) = (Arc::clone(&attempts), end.clone(), name.clone());
                    spawn_finishing("deliver", async move {
                        let succeeded = attempts.attempt(claimed, lease).await;
                        let _ = end.send(Ended { lane, succeeded });
                    });
                }
            }
            lanes.retain(|_, lane| lane.is_busy() || lane.successes > 0 || lane.is_slow);
            tokio::select! {
                // Whoever is served is served on meanwhile.
                Some(claimed) = OptionFuture::from(claiming.as_mut()) => {
                    *claiming = None;
                    match claimed.unwrap_or_else(|ended| Err(Error::internal(ended))) {
                        Ok(claimed) => {
                            let is_some = !claimed.is_empty();
                            for one in claimed {
                                let Claimed { account_id, lane, .. } = &one.0;
                                *held.entry(account_id.clone()).or_default() += 1;
                                lanes.entry(lane.clone()).or_insert_with(|| Lane::new(account_id)).waiting.push_back(one);
                            }
                            // Where there was something there may be more.
                            looks |= is_some && held.values().sum::<usize>() < MOST / 2;
                        }
                        Err(error) => warn!(%error, "Deliveries could not be taken; trying again."),
                    }
                }
                Some(first) = ended.recv() => {
                    let mut next = Some(first);
                    while let Some(Ended { lane, succeeded }) = next {
                        if let Entry::Occupied(mut entry) = lanes.entry(lane) {
                            let lane = entry.get_mut();
                            lane.sending -= 1;
                            if lane.placed > lane.sending {
                                lane.placed -= 1;
                                release(&mut held, &lane.account);
                            }
                            lane.is_slow &= !succeeded;
                            lane.moved = Instant::now();
                            lane.successes = if succeeded { lane.successes + 1 } else { 0 };
                            looks |= lane.waiting.len() < AT_ONCE;
                        }
                        next = ended.try_recv().ok();
                    }
                }
                () = self.waiting.notified() => looks = true,
                () = tokio::time::sleep(POLL) => {
                    looks = true;
                    // Who has nothing waiting is known no longer, who was slow for a while.
                    lanes.retain(|_, lane| lane.is_busy() || lane.is_slow && lane.moved.elapsed() < LEASE);
                }
            }
        }
    }

    /// What more can be taken.
    fn room(&self, lanes: &HashMap<String, Lane>, held: &HashMap<String, usize>) -> Option<ClaimRoom> {
        let sending: usize = lanes.values().map(|lane| lane.sending + lane.waiting.len()).sum();
        let most = MOST.saturating_sub(held.values().sum()).min(MAX_SENDING.saturating_sub(sending));
        if most == 0 {
            return None;
        }
        let room = |lane: &Lane| {
            let share = if lane.is_slow { lane.at_once() } else { lane.successes.clamp(AT_ONCE, MAX_OF_LANE) };
            share.saturating_sub(lane.sending + lane.waiting.len())
        };
        let rooms: HashMap<&String, usize> = lanes.iter().map(|(name, lane)| (name, room(lane))).collect();
        // Half of what is left, so that there is some for the next account.
        let share_of_account = MAX_OF_ACCOUNT.min(most.div_ceil(2));
        let mut sending_of: HashMap<&String, usize> = HashMap::new();
        for lane in lanes.values() {
            *sending_of.entry(&lane.account).or_default() += lane.sending + lane.waiting.len();
        }
        let left = |(account, sending): (&String, usize)| {
            let held = held.get(account).copied().unwrap_or_default();
            let left = MAX_OF_ACCOUNT.saturating_sub(held).min(MAX_SENDING_OF_ACCOUNT.saturating_sub(sending));
            left.min(share_of_account)
        };
        let accounts: HashMap<&String, usize> = sending_of.into_iter().map(|of| (of.0, left(of))).collect();
        let now = self.clock.now().0;
        Some(ClaimRoom {
            now,
            until: now + millis(LEASE),
            most,
            share: AT_ONCE,
            lanes: json!(rooms),
            share_of_account,
            accounts: json!(accounts),
        })
    }

    /// Takes what is due; it is due again where nobody waits for it any more.
    fn claim(self: Arc<Self>, room: ClaimRoom) -> oneshot::Receiver<Result<Taken>> {
        let (taking, taken) = oneshot::channel();
        spawn_finishing("take deliveries", async move {
            let claiming = async { repository::claim(&mut *self.db.conn().await?, &room).await };
            let claimed = claiming.await.map(|claimed| {
                let begins = Instant::now() + LEASE.saturating_sub(TIMEOUT * 2);
                claimed.into_iter().map(|one| (one, begins, room.until)).collect()
            });
            if let Err(Ok(claimed)) = taking.send(claimed) {
                self.give_back(claimed).await;
            }
        });
        taken
    }

    /// What was taken and not begun is due again, in its order.
    async fn give_back(&self, taken: Taken) {
        let (ids, leases): (Vec<String>, Vec<i64>) = taken.into_iter().map(|(one, _, lease)| (one.id, lease)).unzip();
        let given = async { repository::give_back(&mut *self.db.conn().await?, &ids, &leases, self.clock.now()).await };
        if let Err(error) = given.await {
            warn!(%error, "Deliveries could not be given back; they are due at the end of their lease.");
        }
    }

    /// Notes what attempts came to, many at once.
    async fn keep_noting(self: Arc<Self>, mut ended: mpsc::Receiver<Tried>) {
        let mut tried = Vec::with_capacity(MAX_NOTED);
        while ended.recv_many(&mut tried, MAX_NOTED).await > 0 {
            // Whoever locks several locks them in this order.
            tried.sort_by(|one, other| one.id.cmp(&other.id));
            if let Err(error) = self.note_surely(&tried).await {
                warn!(%error, deliveries = tried.len(), "Attempts could not be noted together; they are one by one.");
                for one in &tried {
                    if let Err(error) = self.note_surely(slice::from_ref(one)).await {
                        error!(delivery = one.id, %error, "An attempt could not be noted; it is made again.");
                    }
                }
            }
            tried.clear();
        }
    }

    /// Waits for a database that is away.
    async fn note_surely(&self, tried: &[Tried]) -> Result<()> {
        loop {
            match self.note(tried).await {
                Err(error) if error.code() == Code::SERVICE_UNAVAILABLE => {
                    warn!(%error, deliveries = tried.len(), "Attempts could not be noted; trying again.");
                    tokio::time::sleep(POLL).await;
                }
                noted => return noted,
            }
        }
    }

    async fn note(&self, tried: &[Tried]) -> Result<()> {
        let judged = repository::note(&mut *self.db.conn().await?, tried).await?;
        let accounts: HashSet<&str> =
            judged.iter().filter(|webhook| !webhook.enabled).map(|webhook| webhook.account_id.as_str()).collect();
        for webhook in judged.iter().filter(|webhook| !webhook.enabled) {
            if let Ok(account) = AccountId::parse(&webhook.account_id) {
                self.hold(&account, &webhook.id).await?;
            }
            warn!(webhook = webhook.id, "A webhook was disabled: its receiver is gone, or has failed for long.");
        }
        for account in accounts {
            self.known.changed(account).await?;
        }
        Ok(())
    }

    /// What waits for a webhook that was disabled waits on; whether there is one that is enabled.
    async fn hold(&self, account: &AccountId, id: &str) -> Result<bool> {
        let mut conn = self.db.conn().await?;
        let holding = conn.transaction::<_, Error, _>(async |conn| match repository::lock(conn, account, id).await? {
            Some(row) if !row.enabled => repository::hold(conn, account, id, None).await.map(|()| false),
            found => Ok(found.is_some()),
        });
        holding.await
    }
}

fn release(held: &mut HashMap<String, usize>, account: &str) {
    if let Some(count) = held.get_mut(account) {
        *count -= 1;
        if *count == 0 {
            held.remove(account);
        }
    }
}

impl Attempts {
    /// Makes one attempt; whether it succeeded.
    async fn attempt(&self, claimed: Claimed, lease: i64) -> bool {
        let webhooks = &self.webhooks;
        match self.is_wanted(&claimed).await {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => warn!(delivery = claimed.id, %error, "It is not known whether a delivery is still wanted."),
        }
        let (at, began) = (webhooks.clock.now(), Instant::now());
        let outcome = self.send(&claimed).await;
        let duration_ms = millis(began.elapsed());
        let (status_code, error) = match &outcome {
            Ok(status) if (200..300).contains(status) => (Some(*status), None),
            Ok(status) => (Some(*status), Some(format!("The receiver answered {status}."))),
            Err(reason) => (None, Some(reason.clone())),
        };
        let succeeded = error.is_none();
        let attempt = crate::model::DeliveryAttempt { timestamp_ms: at, status_code, duration_ms, error };
        let is_gone = status_code == Some(410) && claimed.webhook_id.is_some();
        let waits = webhooks.rules.waits.get(1..).unwrap_or_default();
        let wait = waits.get(usize::try_from(claimed.tries).unwrap_or(usize::MAX));
        let now = webhooks.clock.now().0;
        let next_ms =
            wait.filter(|_| !succeeded && status_code != Some(410)).map(|wait| now + self.spread(millis(*wait)));
        let status = match next_ms {
            Some(_) => "pending",
            None if succeeded => "succeeded",
            None => "failed",
        };
        let tried = Tried {
            id: claimed.id,
            account: claimed.account_id,
            webhook: claimed.webhook_id,
            lease,
            attempt: json!(attempt),
            status,
            next_ms,
            patience_ms: millis(webhooks.rules.disable_after),
            disables: is_gone.then_some("The receiver answered 410: it wants no more events."),
            now,
        };
        let _ = self.noted.send(tried).await;
        succeeded
    }

    /// Whether there still is the webhook, enabled; what was taken for one that is disabled waits until it is enabled.
    async fn is_wanted(&self, claimed: &Claimed) -> Result<bool> {
        let Some(webhook) = claimed.webhook_id.as_deref().filter(|_| !claimed.forced) else { return Ok(true) };
        let account = account_of(claimed)?;
        if self.webhooks.listeners(&account).await?.iter().any(|known| known.id == webhook) {
            return Ok(true);
        }
        let is_enabled = self.webhooks.hold(&account, webhook).await?;
        if is_enabled {
            // Others have made it or enabled it since.
            self.webhooks.known.forget_all();
        }
        Ok(is_enabled)
    }

    /// A wait, a tenth longer or shorter, so that those who failed together do not come back together.
    fn spread(&self, wait: i64) -> i64 {
        let step = self.jitter.fetch_add(7, Ordering::Relaxed) % 201;
        wait + wait * (i64::try_from(step).unwrap_or(0) - 100) / 1000
    }

    async fn send(&self, claimed: &Claimed) -> Result<u16, String> {
        let url = Url::parse(&claimed.url).map_err(|error| format!("This is no address: {error}."))?;
        let secrets = self.secrets(claimed).await.map_err(|error| {
            warn!(delivery = claimed.id, %error, "A delivery could not be signed.");
            "The message could not be signed.".to_owned()
        })?;
        if secrets.is_empty() {
            return Err("The webhook is gone, and its secret with it.".to_owned());
        }
        let timestamp = self.webhooks.clock.now().0 / 1000;
        let signed = signature::header(&secrets, &claimed.event_id, timestamp, &claimed.body);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let depth = (claimed.depth > 0).then(|| {
            let account = AccountId::parse(&claimed.account_id).ok()?;
            Some(self.webhooks.vault.depth_header(&account, u8::try_from(claimed.depth).ok()?))
        });
        let named = [
            ("webhook-id", Some(claimed.event_id.clone())),
            ("webhook-timestamp", Some(timestamp.to_string())),
            ("webhook-signature", Some(signed)),
            ("x-trigger-depth", depth.flatten()),
        ];
        for (name, value) in named {
            let value = value.and_then(|value| HeaderValue::from_str(&value).ok());
            headers.extend(value.map(|value| (HeaderName::from_static(name), value)));
        }
        let body = Payload::Bytes(claimed.body.clone().into());
        let request = Outgoing { method: Method::POST, url, headers, body, follows: false, timeout: TIMEOUT };
        let sent = self.webhooks.egress.send_for_status(request).await;
        sent.map_err(|error: EgressError| error.to_string())
    }

    async fn secrets(&self, claimed: &Claimed) -> Result<Vec<Secret>> {
        self.webhooks.secrets(&account_of(claimed)?, claimed.webhook_id.as_deref()).await
    }
}

fn account_of(claimed: &Claimed) -> Result<AccountId> {
    AccountId::parse(&claimed.account_id).map_err(|_| Error::internal("a delivery has no account"))
}
