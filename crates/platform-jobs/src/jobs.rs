use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use diesel::result::{
    DatabaseErrorKind::{ClosedConnection, UnableToSendCommand},
    Error::DatabaseError,
};
use diesel_async::{AsyncConnection, SimpleAsyncConnection};
use platform_core::{AccountId, Clock, Error, Result, Timestamp, millis, spawn};
use platform_db::{BY_KEY, Bus, Conn, Db, Notice};
use tokio::{
    runtime::Handle,
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, info, warn};

use crate::{
    code,
    repository::{self, PutOff, Queue, Run},
    trace::span,
};

const STOP: &str = "run-stop";
const WAITING: &str = "run-waiting";
/// How often the table is looked at when nobody says that there is something in it.
const POLL: Duration = Duration::from_millis(500);
/// Runs that are enqueued within this are told of together.
const BATCH_WINDOW: Duration = Duration::from_millis(5);
/// Runs of an account that may wait.
const MAX_WAITING: i64 = 10_000;
/// How many wait is counted again after this, of so many accounts.
const KNOWN_FOR: Duration = Duration::from_secs(1);
const MAX_KNOWN: u64 = 100_000;
const IDLE: Duration = Duration::from_mins(1);
/// A run that broke off is tried again after this.
const AFTER_BREAK: Duration = Duration::from_secs(1);

/// Carries out one kind of run.
#[async_trait]
pub trait Work: Send + Sync {
    /// Which kind.
    fn kind(&self) -> &'static str;

    /// Works until the run has ended, by [`crate::FINISH`] in the transaction of its result.
    /// When `stop` is cancelled it ends early, in good order. The future is dropped when the
    /// lease is lost or the process shuts down. An error leaves the run to the next attempt.
    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()>;

    /// Runs of this kind are about to be taken, in this transaction that holds their rows; those that it gives
    /// back are. It must not wait for anybody who may want those rows. `now`: what counts as their start. Not
    /// called for a run whose lease was taken as it was enqueued.
    async fn claimed_in(&self, _conn: &mut Conn, runs: Vec<Run>, _now: Timestamp) -> Result<Vec<Run>> {
        Ok(runs)
    }

    /// Runs of this kind are handed back unfinished, in this transaction.
    async fn handed_back_in(&self, _conn: &mut Conn, _runs: &[&Run]) -> Result<()> {
        Ok(())
    }
}

/// How leases are kept (contract 00 §14).
#[derive(Debug, Clone, Copy)]
pub struct JobsConfig {
    /// A run whose worker is silent for this long is taken over.
    pub lease: Duration,
    /// How often leases are renewed.
    pub heartbeat: Duration,
    /// Runs at once in this process.
    pub concurrency: usize,
}

/// A place for one run in this process; free again when dropped.
#[derive(Debug)]
pub struct Slot(#[expect(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

/// Runs that are taken from the table at once.
const MAX_CLAIMED: usize = 64;

/// Runs of an account and kind that wait, and when they were counted.
#[derive(Default)]
struct Room {
    waiting: AtomicI64,
    counted: tokio::sync::Mutex<Option<Instant>>,
}

/// The runs of this process: takes what is due, keeps leases alive, stops what is asked to stop.
pub struct Jobs {
    db: Db,
    bus: Bus,
    clock: Arc<dyn Clock>,
    config: JobsConfig,
    owner: String,
    slots: Arc<Semaphore>,
    active: Mutex<HashMap<String, Active>>,
    waiting: Notify,
    /// How many runs of an account and kind wait.
    rooms: moka::sync::Cache<(AccountId, &'static str), Arc<Room>>,
    /// The other processes are to look, too.
    announced: Notify,
    running: TaskTracker,
    closing: CancellationToken,
    /// The next odd place goes to a run of a lane.
    laned_first: AtomicBool,
    /// Where runs live that nobody waits for.
    runtime: Handle,
}

/// Runs with those who carry them out.
fn by_kind<'a>(works: &'a [Arc<dyn Work>], runs: &'a [Run]) -> impl Iterator<Item = (&'a Arc<dyn Work>, Vec<&'a Run>)> {
    let of = |work: &'a Arc<dyn Work>| (work, runs.iter().filter(|run| run.kind == work.kind()).collect::<Vec<_>>());
    works.iter().map(of).filter(|(_, runs)| !runs.is_empty())
}

/// A run in work: forgotten when its task ends, even by a panic, so that its lease ends, too.
struct Held {
    jobs: Arc<Jobs>,
    run: String,
    fence: i64,
    laned: bool,
    slot: Option<Slot>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A run that slept may be held again already.
        if let Ok(mut active) = self.jobs.active.lock()
            && active.get(&self.run).is_some_and(|active| active.fence == self.fence)
        {
            active.remove(&self.run);
        }
        drop(self.slot.take());
        // Another of its lane, or of an account that had its share, may have its turn now.
        if self.laned || self.jobs.slots.available_permits() * 3 <= self.jobs.config.concurrency {
            self.jobs.waiting.notify_one();
        }
    }
}

#[derive(Clone)]
struct Active {
    account: String,
    fence: i64,
    stop: CancellationToken,
    lost: CancellationToken,
}

impl Jobs {
    /// `owner` names this process; no other may have the same.
    pub fn new(db: &Db, bus: &Bus, clock: Arc<dyn Clock>, config: JobsConfig, owner: String) -> Arc<Self> {
        Arc::new(Self {
            db: db.clone(),
            bus: bus.clone(),
            clock,
            config,
            owner,
            slots: Arc::new(Semaphore::new(config.concurrency)),
            active: Mutex::default(),
            waiting: Notify::new(),
            rooms: moka::sync::Cache::builder().max_capacity(MAX_KNOWN).time_to_idle(IDLE).build(),
            announced: Notify::new(),
            running: TaskTracker::new(),
            closing: CancellationToken::new(),
            laned_first: AtomicBool::new(true),
            runtime: Handle::current(),
        })
    }

    /// Starts the heartbeat and, given `works`, takes due runs from the table.
    pub fn start(self: &Arc<Self>, works: Vec<Arc<dyn Work>>) {
        spawn("heartbeat", Arc::clone(self).heartbeat());
        spawn("run notices", Arc::clone(self).listen());
        spawn("tell of runs", Arc::clone(self).tell());
        if !works.is_empty() {
            spawn("take runs", Arc::clone(self).take(works));
        }
    }

    /// Who this process is, as [`crate::ENQUEUE`] wants it for a lease taken at once.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Length of a lease in milliseconds.
    pub fn lease_ms(&self) -> i64 {
        millis(self.config.lease)
    }

    /// A free place for a run of an account, if there is one and the account has not its share already.
    pub fn slot_of(&self, account: &AccountId) -> Option<Slot> {
        if self.full(0).iter().any(|full| full == account.as_str()) { None } else { self.slot() }
    }

    /// Refuses one more run of a kind than may wait for an account: `RATE_LIMIT_EXCEEDED`; `called`: what clients know
    /// them as.
    pub async fn check_room(&self, account: &AccountId, kind: &'static str, called: &str) -> Result<()> {
        let room = self.room(account, kind, PutOff::IsLeftOut).await?;
        if room.waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITING {
            return Ok(());
        }
        let message = format!("{MAX_WAITING} {called} wait already; send more when some of them are done.");
        Err(Error::new(code::RATE_LIMIT_EXCEEDED, message).retry_after(30))
    }

    /// Whether an account has fewer runs of a kind than may wait, with those that were put off.
    pub async fn has_room(&self, account: &AccountId, kind: &'static str) -> Result<bool> {
        let room = self.room(account, kind, PutOff::Counts).await?;
        Ok(room.waiting.load(Ordering::Relaxed) < MAX_WAITING)
    }

    /// How many runs of a kind wait for an account, as it was within the last second.
    async fn room(&self, account: &AccountId, kind: &'static str, put_off: PutOff) -> Result<Arc<Room>> {
        let room = self.rooms.get_with((account.clone(), kind), Arc::default);
        // One counts again while the others go on with what they know.
        if let Ok(mut counted) = room.counted.try_lock()
            && counted.is_none_or(|at| at.elapsed() > KNOWN_FOR)
        {
            let conn = self.db.read().await?;
            let waiting = repository::waiting(conn.get(), account, kind, put_off, MAX_WAITING).await?;
            room.waiting.store(waiting, Ordering::Relaxed);
            *counted = Some(Instant::now());
        }
        Ok(room)
    }

    /// Accounts that hold three times the places that are free, so that others find one; `taken`: free places that
    /// are about to be given.
    fn full(&self, taken: usize) -> Vec<String> {
        let free = self.slots.available_permits() + taken;
        if free * 4 > self.config.concurrency {
            return Vec::new();
        }
        let mut held: HashMap<&str, usize> = HashMap::new();
        let active = self.active.lock().expect("lock");
        active.values().for_each(|run| *held.entry(&run.account).or_default() += 1);
        held.into_iter().filter(|(_, held)| *held >= free * 3).map(|(account, _)| account.to_owned()).collect()
    }

    /// A free place for a run, if there is one.
    fn slot(&self) -> Option<Slot> {
        if self.closing.is_cancelled() {
            return None;
        }
        Arc::clone(&self.slots).try_acquire_owned().ok().map(|permit| Slot(Some(permit)))
    }

    /// A place for a run that somebody waits for, beyond the bound when all are taken.
    pub fn slot_at_once(&self) -> Slot {
        self.slot().unwrap_or(Slot(None))
    }

    /// Works a run whose lease this process holds. It goes on when the caller leaves.
    pub fn begin(self: &Arc<Self>, work: Arc<dyn Work>, run: Run, slot: Slot) {
        let _home = self.runtime.enter();
        self.begin_here(work, run, slot);
    }

    /// The same on the runtime of the caller, who waits for it: nothing crosses a thread.
    pub fn begin_here(self: &Arc<Self>, work: Arc<dyn Work>, run: Run, slot: Slot) {
        let span = span(&run);
        let (stop, lost) = (CancellationToken::new(), self.closing.child_token());
        let active = Active { account: run.account().into(), fence: run.fence, stop, lost };
        if run.stop {
            active.stop.cancel();
        }
        self.active.lock().expect("lock").insert(run.id.clone(), active.clone());
        let held = Held {
            jobs: Arc::clone(self),
            run: run.id.clone(),
            fence: run.fence,
            laned: run.lane.is_some(),
            slot: Some(slot),
        };
        let worked = self.running.track_future(async move {
            let result = tokio::select! {
                result = work.work(&run, &active.stop) => result,
                () = active.lost.cancelled() => Ok(()),
            };
            let jobs = Arc::clone(&held.jobs);
            drop(held);
            if let Err(error) = result {
                warn!(run = run.id, attempt = run.attempt, %error, "A run broke off; it is tried again shortly.");
                tokio::select! {
                    // Where the database cut the line no worker is lost.
                    () = jobs.give_up(&run, !is_cut(&error)) => {}
                    () = jobs.closing.cancelled() => {}
                }
            }
        });
        spawn("run", worked.instrument(span));
    }

    /// Says that a run was enqueued without a lease.
    pub fn announce(&self) {
        self.waiting.notify_one();
        self.announced.notify_one();
    }

    /// Says that a run was enqueued that is due after `delay`.
    pub fn announce_after(self: &Arc<Self>, delay: Duration) {
        let jobs = Arc::clone(self);
        spawn("announce", async move {
            tokio::select! {
                () = tokio::time::sleep(delay) => jobs.announce(),
                () = jobs.closing.cancelled() => {}
            }
        });
    }

    /// Says that a run was stopped or cancelled by [`crate::stop_in`] or [`crate::cancel_in`]: whoever
    /// works it stops.
    pub async fn stopped(&self, run: &str) -> Result<()> {
        self.stop_here(run);
        self.bus.tell(STOP, run).await
    }

    /// Runs that this process works now.
    pub fn active(&self) -> usize {
        self.active.lock().expect("lock").len()
    }

    /// How much there is to do, by kind of run, over all processes.
    pub async fn queues(&self) -> Result<Vec<Queue>> {
        repository::queues(self.db.read().await?.get()).await
    }

    /// Makes all runs due that a process before us left behind. Only for a database of our own.
    pub async fn reclaim_all(&self) -> Result<()> {
        let reclaimed = repository::reclaim_all(&mut *self.db.conn().await?).await?;
        if reclaimed > 0 {
            info!(runs = reclaimed, "Going on with the runs that the last process left behind.");
        }
        Ok(())
    }

    /// Takes nothing new, lets runs end for `grace`, then hands the rest back.
    pub async fn drain(&self, works: &[Arc<dyn Work>], grace: Duration) -> Result<()> {
        self.slots.close();
        self.running.close();
        let _ = tokio::time::timeout(grace, self.running.wait()).await;
        self.closing.cancel();
        self.running.wait().await;
        let mut conn = self.db.conn().await?;
        let handed = conn.transaction::<_, Error, _>(async |conn| {
            let handed = repository::hand_back(conn, &self.owner).await?;
            for (work, runs) in by_kind(works, &handed) {
                work.handed_back_in(conn, &runs).await?;
            }
            Ok(handed.len())
        });
        let handed = handed.await?;
        if handed > 0 {
            info!(runs = handed, "Handed unfinished runs back; another process or the next start goes on with them.");
            let _ = self.bus.tell(WAITING, "").await;
        }
        Ok(())
    }

    /// Ends the lease of a run that broke off, as soon as the database takes it, or else when it ends by itself; `counts`:
    /// the attempt does.
    async fn give_up(self: &Arc<Self>, run: &Run, counts: bool) {
        let ends = Instant::now() + self.config.lease;
        while Instant::now() < ends {
            if let Ok(mut conn) = self.db.conn().await
                && repository::give_up(&mut conn, run, counts).await.is_ok()
            {
                return self.announce_after(AFTER_BREAK);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn take(self: Arc<Self>, works: Vec<Arc<dyn Work>>) {
        let kinds: Vec<&str> = works.iter().map(|work| work.kind()).collect();
        loop {
            let Ok(first) = Arc::clone(&self.slots).acquire_owned().await else { return };
            let full = self.full(1);
            let mut slots = vec![Slot(Some(first))];
            // So few at once that one account cannot take all that is left.
            while slots.len() < MAX_CLAIMED.min(self.slots.available_permits() / 2)
                && let Some(slot) = self.slot()
            {
                slots.push(slot);
            }
            let claimed = self.claim(&works, &kinds, &full, slots.len()).await.unwrap_or_else(|error| {
                warn!(%error, "Due runs could not be taken; trying again.");
                Vec::new()
            });
            let all = claimed.len() == slots.len();
            for (run, slot) in claimed.into_iter().zip(slots) {
                if let Some(work) = works.iter().find(|work| work.kind() == run.kind) {
                    self.begin(Arc::clone(work), run, slot);
                }
            }
            if !all {
                tokio::select! {
                    () = self.waiting.notified() => {}
                    () = tokio::time::sleep(POLL) => {}
                    () = self.closing.cancelled() => return,
                }
            }
        }
    }

    async fn claim(&self, works: &[Arc<dyn Work>], kinds: &[&str], full: &[String], most: usize) -> Result<Vec<Run>> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let laned_first = self.laned_first.fetch_not(Ordering::Relaxed);
        self.db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                conn.batch_execute(BY_KEY).await?;
                let repository::Due { runs, laned, now } =
                    repository::due(conn, kinds, full, most, laned_first).await?;
                let now = now.unwrap_or_else(|| self.clock.now());
                let mut taken = Vec::with_capacity(runs.len());
                for work in works {
                    let of: Vec<Run> = runs.iter().filter(|run| run.kind == work.kind()).cloned().collect();
                    if !of.is_empty() {
                        taken.extend(work.claimed_in(conn, of, now).await?);
                    }
                }
                repository::claim(conn, &self.owner, &taken, &laned, self.lease_ms()).await?;
                Ok(taken)
            })
            .await
    }

    /// Tells the other processes of runs that wait, once for those that come together.
    async fn tell(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.announced.notified() => {}
                () = self.closing.cancelled() => return,
            }
            let _ = self.bus.tell(WAITING, "").await;
            tokio::time::sleep(BATCH_WINDOW).await;
        }
    }

    async fn listen(self: Arc<Self>) {
        let mut notices = self.bus.subscribe();
        loop {
            match notices.recv().await {
                Ok(Notice::Changed { topic, id }) if topic == STOP => self.stop_here(&id),
                Ok(Notice::Changed { topic, .. }) if topic == WAITING => self.waiting.notify_one(),
                Ok(Notice::Changed { .. }) => {}
                Ok(Notice::Missed) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {
                    self.waiting.notify_one();
                }
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    fn stop_here(&self, run: &str) {
        if let Some(active) = self.active.lock().expect("lock").get(run) {
            active.stop.cancel();
        }
    }

    async fn heartbeat(self: Arc<Self>) {
        let mut conn = None;
        let mut missed = HashSet::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.config.heartbeat) => {}
                () = self.closing.cancelled() => return,
            }
            let held: Vec<String> = self.active.lock().expect("lock").keys().cloned().collect();
            if held.is_empty() {
                continue;
            }
            match self.beat(&mut conn, &held).await {
                Ok(renewed) => missed = self.lost_leases(&held, &renewed, &missed),
                Err(error) => {
                    warn!(%error, runs = held.len(), "Leases could not be renewed; trying again.");
                    conn = None;
                }
            }
        }
    }

    async fn beat(&self, conn: &mut Option<Conn>, held: &[String]) -> Result<HashMap<String, bool>> {
        let conn = match conn {
            Some(conn) => conn,
            None => conn.insert(self.db.dedicated().await?),
        };
        let renewal = repository::renew(conn, &self.owner, held, self.lease_ms());
        let renewed = tokio::time::timeout(self.config.heartbeat, renewal).await.map_err(Error::unavailable)??;
        Ok(renewed.into_iter().collect())
    }

    /// Stops what is asked to stop and gives up what two beats in a row could not renew: once may
    /// be a run that has just ended. Returns what was missed now.
    fn lost_leases(
        &self,
        held: &[String],
        renewed: &HashMap<String, bool>,
        missed: &HashSet<String>,
    ) -> HashSet<String> {
        let active = self.active.lock().expect("lock");
        let mut missing = HashSet::new();
        for id in held {
            let Some(run) = active.get(id) else { continue };
            match renewed.get(id) {
                Some(true) => run.stop.cancel(),
                Some(false) => {}
                None if missed.contains(id) => {
                    info!(run = id, "The lease of a run was lost; another worker has it.");
                    run.lost.cancel();
                }
                None => {
                    missing.insert(id.clone());
                }
            }
        }
        missing
    }
}

/// Whether the database cut the line, or is about to go or come.
fn is_cut(error: &Error) -> bool {
    let cause = error.cause().and_then(|cause| cause.downcast_ref::<diesel::result::Error>());
    match cause {
        Some(DatabaseError(ClosedConnection | UnableToSendCommand, _)) => true,
        Some(DatabaseError(_, told)) => {
            ["terminating connection", "the database system is"].iter().any(|begin| told.message().starts_with(begin))
        }
        _ => false,
    }
}
