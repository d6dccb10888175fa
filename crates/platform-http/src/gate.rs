//! How often and how much at once somebody may ask (contract 00 §8).

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use actix_web::HttpRequest;
use bytes::Bytes;
use ipnet::IpNet;
use platform_core::{
    AccountId, Caller, Credential, Error, FairMemory, FairPermit, FairSemaphore, Result, joined, sha256_hex,
};
use platform_limits::{Allowance, Rate, RateLimits};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::{
    code,
    http::{Http, HttpConfig},
};

/// Seconds after which a refused stream may be tried again.
const STREAM_RETRY: u64 = 5;
/// Bodies that are still coming, in all; each holds at most [`SMALL_BODY`].
const MAX_BODIES: usize = 1024;
/// A body above this takes one of the places for large ones.
pub(crate) const SMALL_BODY: usize = 64 * 1024;
/// Large bodies that are still coming, in all and of one account.
const LARGE_BODIES: (usize, usize) = (48, 12);
/// Memory that bodies take while they are answered, in all and of one account.
const BODY_MEMORY: (usize, usize) = (128 << 20, 64 << 20);
/// Uploads that are still coming, in all and of one account; each holds about half a megabyte of memory.
const UPLOADS: (usize, usize) = (64, 32);
/// So long a connection waits for its place.
const MAX_CONNECTION_WAIT: Duration = Duration::from_secs(2);
/// Wrong passwords from one address, and for one name: so many at once, then as many in a quarter of an hour.
const WRONG_FROM_ADDRESS: Rate = Rate { count: 30, minutes: 15, burst: 30 };
const WRONG_FOR_NAME: Rate = Rate { count: 10, minutes: 15, burst: 10 };
/// Applications that make themselves known from one address.
const REGISTRATIONS: Rate = Rate { count: 20, minutes: 60, burst: 20 };
/// The same from one address for a name that many try: whoever it belongs to can still log in from where they are.
const WRONG_FOR_NAME_FROM_ADDRESS: Rate = Rate { count: 3, minutes: 15, burst: 3 };
/// Bytes of answers that are not read yet, in all and of one account.
const ANSWERS: (usize, usize) = (128 << 20, 64 << 20);
/// Requests with an effect that go on although their client is gone, in all and of one account.
const UNATTENDED: (usize, usize) = (1024, 256);
/// Whether they have ended is looked at so often when a process ends.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The keys of an account are counted after so many new ones.
const KEYS_BETWEEN_COUNTS: usize = 1000;
/// So long a body waits for its place.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// How often who may ask.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Requests of a full key.
    pub full: Rate,
    /// Requests of a restricted key.
    pub restricted: Rate,
    /// Requests of the sessions of one end user.
    pub session: Rate,
    /// Requests of an application for one user.
    pub oauth: Rate,
    /// Messages of a full key.
    pub create_full: Rate,
    /// Messages of a restricted key.
    pub create_key: Rate,
    /// Messages of the sessions of one end user.
    pub create_session: Rate,
    /// Credentials that are no good, per client address.
    pub bad_credential: Rate,
}

/// Counts requests, streams, connections and bodies.
pub struct Gate {
    limits: RateLimits,
    rates: Rates,
    streams_per_key: usize,
    streams_per_session: usize,
    streams: Arc<Mutex<HashMap<String, usize>>>,
    trusted_proxies: Vec<IpNet>,
    connections: FairSemaphore<IpAddr>,
    /// Connections of trusted proxies: whose they are is said by each request.
    proxied: FairSemaphore<IpAddr>,
    /// Connections on which a good credential came, by account, and those of end users by user, too.
    known: FairSemaphore<AccountId>,
    end_users: FairSemaphore<String>,
    bodies: Places,
    large_bodies: Places,
    memory: FairMemory<String>,
    uploads: Places,
    /// Answers that are not read yet.
    answers: FairMemory<String>,
    answers_of_end_users: FairMemory<String>,
    /// Those to what changed something, counted without a bound: they are given in any case.
    answers_of_effects: FairMemory<String>,
    /// Requests with an `Idempotency-Key` that are under way.
    once: FairSemaphore<String>,
    unattended: Places,
    /// New `Idempotency-Key`s of each account since they were counted.
    new_keys: Mutex<HashMap<AccountId, usize>>,
}

/// Whose a request is.
#[derive(Clone)]
pub(crate) struct Whose {
    /// The account; the network of an address where nobody is known.
    pub account: String,
    /// The end user whose session asks.
    pub end_user: Option<String>,
}

impl Whose {
    /// Somebody's at an address.
    pub(crate) fn unknown(http: &Http, request: &HttpRequest) -> Self {
        let network = http.gate.client(request).map(|address| network(address).to_string());
        Self { account: network.unwrap_or_default(), end_user: None }
    }
}

/// Room for an answer, of an end user and of the account.
pub(crate) type Room = [Option<FairPermit<String>>; 2];

/// An event that is not read yet.
struct Held {
    frame: String,
    _room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.frame.as_bytes()
    }
}

/// Places of accounts, of which one end user takes a quarter at most.
struct Places {
    of_accounts: FairSemaphore<String>,
    of_end_users: FairSemaphore<String>,
}

/// One of them, until it is dropped.
pub(crate) struct Place {
    _of_account: FairPermit<String>,
    _of_end_user: Option<FairPermit<String>>,
}

impl Places {
    /// `permits` in all, `share` of one account; 0 = no bound.
    fn new(permits: usize, share: usize) -> Self {
        Self { of_accounts: FairSemaphore::new(permits, share), of_end_users: FairSemaphore::new(0, share.div_ceil(4)) }
    }

    /// One, unless that takes too long.
    async fn take(&self, whose: &Whose) -> Result<Place> {
        let taking = async {
            let of_end_user = match &whose.end_user {
                Some(end_user) => Some(self.of_end_users.acquire(end_user).await),
                None => None,
            };
            Place { _of_account: self.of_accounts.acquire(&whose.account).await, _of_end_user: of_end_user }
        };
        timeout(MAX_WAIT, taking).await.map_err(|_| too_many_bodies())
    }

    /// One, if there is one at once.
    fn try_take(&self, whose: &Whose) -> Option<Place> {
        let of_end_user = match &whose.end_user {
            Some(end_user) => Some(self.of_end_users.try_acquire(end_user)?),
            None => None,
        };
        Some(Place { _of_account: self.of_accounts.try_acquire(&whose.account)?, _of_end_user: of_end_user })
    }
}

/// A connection of somebody who is known; it counts until it is dropped.
pub(crate) struct KnownPlace {
    _of_account: FairPermit,
    _of_user: Option<FairPermit<String>>,
}

/// An open stream; it counts until it is dropped.
pub struct StreamPlace {
    streams: Arc<Mutex<HashMap<String, usize>>>,
    credential: String,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut streams = self.streams.lock().expect("lock");
        if let Some(open) = streams.get_mut(&self.credential) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.credential);
            }
        }
    }
}

impl Gate {
    pub(crate) fn new(limits: RateLimits, config: &HttpConfig) -> Self {
        Self {
            limits,
            rates: config.rates,
            streams_per_key: config.streams_per_key,
            streams_per_session: config.streams_per_session,
            streams: Arc::default(),
            trusted_proxies: config.trusted_proxies.clone(),
            connections: FairSemaphore::new(0, config.connections_per_address),
            proxied: FairSemaphore::new(0, 0),
            known: FairSemaphore::new(config.connections, 0),
            end_users: FairSemaphore::new(0, config.connections_per_address),
            bodies: Places::new(MAX_BODIES, config.bodies_per_address),
            large_bodies: Places::new(LARGE_BODIES.0, LARGE_BODIES.1),
            memory: FairMemory::new(BODY_MEMORY.0, BODY_MEMORY.1),
            uploads: Places::new(UPLOADS.0, UPLOADS.1),
            answers: FairMemory::new(ANSWERS.0, ANSWERS.1),
            answers_of_end_users: FairMemory::new(0, ANSWERS.1 / 4),
            answers_of_effects: FairMemory::new(0, 0),
            once: FairSemaphore::new(0, 1),
            unattended: Places::new(UNATTENDED.0, UNATTENDED.1),
            new_keys: Mutex::default(),
        }
    }

    /// Room for an answer of so many bytes, until it is read.
    pub(crate) fn answer(&self, whose: &Whose, bytes: usize) -> Result<Room> {
        let of_end_user = match &whose.end_user {
            Some(end_user) => self.answers_of_end_users.try_hold(end_user, bytes).map_err(|_| unread())?,
            None => None,
        };
        Ok([of_end_user, self.answers.try_hold(&whose.account, bytes).map_err(|_| unread())?])
    }

    /// An event, which counts as the answer of an effect until its reader has it.
    pub(crate) fn unread_event(&self, whose: &Whose, frame: String) -> Bytes {
        let room = self.answer_of_effect(whose, frame.len());
        if room.iter().all(Option::is_none) { frame.into() } else { Bytes::from_owner(Held { frame, _room: room }) }
    }

    /// Counts the answer of an effect, which is told in any case, until it is read.
    pub(crate) fn answer_of_effect(&self, whose: &Whose, bytes: usize) -> Room {
        let hold = |whose: &String, bytes| self.answers_of_effects.try_hold(whose, bytes).ok().flatten();
        let Some(end_user) = &whose.end_user else { return [None, hold(&whose.account, bytes)] };
        // What one of them leaves unread above their share takes nothing from the others of the account.
        let of_end_user = hold(end_user, bytes);
        let before = self.answers_of_effects.held(end_user).saturating_sub(bytes);
        [of_end_user, hold(&whose.account, bytes.min((ANSWERS.1 / 4).saturating_sub(before)))]
    }

    /// Refuses an effect to whoever has not read what many earlier ones answered.
    pub(crate) fn expects_effect(&self, whose: &Whose) -> Result<()> {
        let held = |whose: &String| self.answers_of_effects.held(whose);
        let has_room = held(&whose.account) < ANSWERS.1
            && whose.end_user.as_ref().is_none_or(|end_user| held(end_user) < ANSWERS.1 / 4);
        if has_room { Ok(()) } else { Err(unread()) }
    }

    /// The right to be the one that has the effect of an `Idempotency-Key`; `None` while somebody else has it.
    pub(crate) fn first(&self, scope: &String) -> Option<FairPermit<String>> {
        self.once.try_acquire(scope)
    }

    /// A place for a request that goes on to its end although its client is gone; `None` where somebody has too many.
    pub(crate) fn unattended(&self, whose: &Whose) -> Option<Place> {
        self.unattended.try_take(whose)
    }

    /// Waits until no such request is left.
    pub(crate) async fn attended(&self) {
        while self.unattended.of_accounts.free() < UNATTENDED.0 {
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Notes one more `Idempotency-Key` of an account; whether it is time to count them.
    pub(crate) fn counts_keys(&self, account: &AccountId) -> bool {
        let mut new_keys = self.new_keys.lock().expect("lock");
        let new = new_keys.entry(account.clone()).or_default();
        *new += 1;
        let is_time = *new >= KEYS_BETWEEN_COUNTS;
        if is_time {
            new_keys.remove(account);
        }
        is_time
    }

    /// A place for one more connection of a peer; one above its share waits shortly for another to be vouched for or
    /// to end.
    pub(crate) async fn connection(&self, peer: IpAddr) -> Option<FairPermit<IpAddr>> {
        static SAID: Once = Once::new();
        let network = network(peer);
        let places = if self.is_trusted(peer) { &self.proxied } else { &self.connections };
        let place = timeout(MAX_CONNECTION_WAIT, places.acquire(&network)).await.ok();
        if place.is_none() {
            SAID.call_once(|| {
                warn!(
                    %network,
                    "An address has as many connections without a good credential as it may have; more of them are \
                     closed. If it is a proxy, name it in PLATFORM_TRUSTED_PROXIES. This is said once."
                );
            });
        }
        place
    }

    /// A place for a connection on which a good credential came: none of an account that has three quarters of all, or
    /// of an end user who has as many as an address may have.
    pub(crate) fn known_connection(&self, caller: &Caller) -> Option<KnownPlace> {
        let of_user = match caller.session() {
            Some(_) => {
                let user = joined([caller.account.as_str(), &caller.principal()]);
                Some(self.end_users.try_acquire(&user)?)
            }
            None => None,
        };
        Some(KnownPlace { _of_account: self.known.try_acquire(&caller.account)?, _of_user: of_user })
    }

    /// A place for a body that is still coming.
    pub(crate) async fn body(&self, whose: &Whose) -> Result<Place> {
        self.bodies.take(whose).await
    }

    /// The same when it turns out to be large.
    pub(crate) async fn large_body(&self, whose: &Whose) -> Result<Place> {
        self.large_bodies.take(whose).await
    }

    /// Room for a body that takes so many bytes of memory while it is answered.
    pub(crate) async fn memory(&self, whose: &Whose, bytes: usize) -> Result<Option<FairPermit<String>>> {
        timeout(MAX_WAIT, self.memory.hold(&whose.account, bytes)).await.map_err(|_| too_many_bodies())
    }

    /// A place for files that are still coming.
    pub(crate) async fn upload(&self, whose: &Whose) -> Result<Place> {
        self.uploads.take(whose).await
    }

    /// Counts a request; the tightest bucket it fell into, or why it is refused.
    pub(crate) async fn request(&self, caller: &Caller, creates: bool) -> (Option<Allowance>, Result<()>) {
        let (all, created) = self.rates_of(caller);
        let (account, principal) = (caller.account.as_str(), caller.principal());
        let mut tightest = self.limits.take(&joined(["key", account, &principal]), all).await;
        if creates && tightest.is_none_or(|allowance| allowance.allowed) {
            let created = self.limits.take(&joined(["create", account, &principal]), created).await;
            let tighter =
                |a: Allowance, b: Allowance| if (b.allowed, b.remaining) < (a.allowed, a.remaining) { b } else { a };
            tightest = tightest.zip(created).map(|(a, b)| tighter(a, b)).or(tightest).or(created);
        }
        match tightest {
            Some(refused) if !refused.allowed => {
                let message = format!("Too many requests: {} a minute; slow down.", refused.limit);
                (tightest, Err(Error::new(code::RATE_LIMIT_EXCEEDED, message).retry_after(refused.retry_after)))
            }
            _ => (tightest, Ok(())),
        }
    }

    /// How often somebody of this kind may ask, and make messages and threads.
    fn rates_of(&self, caller: &Caller) -> (Rate, Rate) {
        match caller.credential {
            Credential::FullKey(_) => (self.rates.full, self.rates.create_full),
            Credential::RestrictedKey(_) => (self.rates.restricted, self.rates.create_key),
            Credential::Session(_) => (self.rates.session, self.rates.create_session),
            Credential::Token { .. } => (self.rates.oauth, self.rates.create_key),
        }
    }

    /// Counts in a bucket; `message`: what is said when it is empty.
    async fn count(&self, bucket: &str, rate: Rate, message: &str) -> Result<()> {
        match self.limits.take(bucket, rate).await {
            Some(refused) if !refused.allowed => {
                Err(Error::new(code::RATE_LIMIT_EXCEEDED, message).retry_after(refused.retry_after))
            }
            _ => Ok(()),
        }
    }

    /// Counts a message or thread that is made.
    pub(crate) async fn creation(&self, caller: &Caller) -> Result<()> {
        let (_, created) = self.rates_of(caller);
        let bucket = joined(["create", caller.account.as_str(), &caller.principal()]);
        let message = format!("Too many messages and threads: {} a minute; slow down.", created.count);
        self.count(&bucket, created, &message).await
    }

    /// Counts a credential that is no good; the answer it gets.
    pub async fn bad_credential(&self, client: Option<IpAddr>, error: Error) -> Error {
        let message = "Too many credentials that are no good came from this address.";
        let counted = self.count(&joined(["bad", &at(client)]), self.rates.bad_credential, message).await;
        counted.err().unwrap_or(error)
    }

    /// Counts an application that makes itself known.
    pub async fn registration(&self, client: Option<IpAddr>) -> Result<()> {
        let message = "Too many applications were registered from this address; wait a while.";
        self.count(&joined(["register", &at(client)]), REGISTRATIONS, message).await
    }

    /// Counts an application that is looked up at its own address.
    pub async fn document(&self, client: Option<IpAddr>) -> Result<()> {
        let message = "Too many applications were looked up from this address; wait a while.";
        self.count(&joined(["document", &at(client)]), self.rates.bad_credential, message).await
    }

    /// Counts a try to log in under a name of an account as if the password were wrong; why it is refused.
    pub async fn log_in(&self, client: Option<IpAddr>, account: &str, name: &str) -> Result<LogIn> {
        let (address, name) = (at(client), sha256_hex(joined([account, &name.to_lowercase()]).as_bytes()));
        let mut tried = LogIn(Vec::new());
        self.try_log_in(&mut tried, joined(["login", &address]), self.rates.bad_credential).await?;
        self.try_log_in(&mut tried, joined(["wrong", &address]), WRONG_FROM_ADDRESS).await?;
        if self.try_log_in(&mut tried, joined(["name", &name]), WRONG_FOR_NAME).await.is_err() {
            self.try_log_in(&mut tried, joined(["name", &name, &address]), WRONG_FOR_NAME_FROM_ADDRESS).await?;
        }
        Ok(tried)
    }

    async fn try_log_in(&self, tried: &mut LogIn, bucket: String, rate: Rate) -> Result<()> {
        self.count(&bucket, rate, "Too many tries to log in failed; wait a while.").await?;
        tried.0.push((bucket, rate));
        Ok(())
    }

    /// The password was right after all.
    pub async fn logged_in(&self, tried: LogIn) {
        // How often somebody tries from an address counts in any case.
        for (bucket, rate) in tried.0.into_iter().skip(1) {
            self.limits.give_back(&bucket, rate).await;
        }
    }

    /// A place for one more stream.
    pub(crate) fn stream(&self, caller: &Caller) -> Result<StreamPlace> {
        let (credential, most) = match &caller.credential {
            Credential::Session(session) => (session.id.clone(), self.streams_per_session),
            _ => (caller.principal().into_owned(), self.streams_per_key),
        };
        let mut streams = self.streams.lock().expect("lock");
        let open = streams.entry(credential.clone()).or_default();
        if most > 0 && *open >= most {
            let message = format!("This credential has {open} open streams already; close one first.");
            return Err(Error::new(code::TOO_MANY_STREAMS, message).with("limit", *open).retry_after(STREAM_RETRY));
        }
        *open += 1;
        Ok(StreamPlace { streams: Arc::clone(&self.streams), credential })
    }

    /// Streams that are open in this process.
    pub fn open_streams(&self) -> usize {
        self.streams.lock().expect("lock").values().sum()
    }

    /// Who is at the other end: the peer, or behind a trusted proxy the last that it names (contract 00 §1.3).
    pub(crate) fn client(&self, request: &HttpRequest) -> Option<IpAddr> {
        let peer = request.peer_addr()?.ip();
        if !self.is_trusted(peer) {
            return Some(peer);
        }
        let forwarded = request.headers().get_all("x-forwarded-for").last().and_then(|value| value.to_str().ok());
        let last = forwarded.and_then(|list| list.rsplit(',').next()?.trim().parse().ok());
        Some(last.unwrap_or(peer))
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(&peer))
    }
}

/// A try to log in: where it was counted.
pub struct LogIn(Vec<(String, Rate)>);

/// A client address as it is counted.
fn at(client: Option<IpAddr>) -> String {
    client.map_or_else(String::new, |address| network(address).to_string())
}

/// What counts as one address: of IPv6 a /64, since whoever has one has all of it.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address @ IpAddr::V4(_) => address,
    }
}

fn unread() -> Error {
    let message = "Too many large answers of yours are not read yet; read them first.";
    Error::new(code::RATE_LIMIT_EXCEEDED, message).retry_after(1)
}

fn too_many_bodies() -> Error {
    let message = "Too many requests of yours are unfinished; send fewer bodies at once.";
    Error::new(code::RATE_LIMIT_EXCEEDED, message).retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_one_client_holds() {
        let of = |address: &str| network(address.parse().expect("an address")).to_string();
        assert_eq!((of("2001:db8:1:2:3:4:5:6"), of("::ffff:10.0.0.1")), ("2001:db8:1:2::".into(), "10.0.0.1".into()));
        assert_ne!(of("2001:db8:1:3::1"), of("2001:db8:1:2::1"));
    }
}
