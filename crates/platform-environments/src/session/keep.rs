//! Machines are watched, and end.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use diesel_async::AsyncConnection;
use futures_util::FutureExt;
use platform_core::{AccountId, Code, Error, Result, Timestamp, spawn};
use platform_db::Notice;
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use super::{
    call::{Call, TOPIC},
    live::Live,
    model::{StopSandbox, StoppedSandbox},
    repository::{self, SessionChange, SessionRow},
    service::check_unchanged,
};
use crate::{
    code,
    environment::PgEnvironments,
    snapshot::{self, NewSnapshot},
};

/// How often machines are looked at.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// How often this process says that it has them, in looks.
pub(super) const KEEP: u32 = 5;
/// How often disks are measured, in looks.
const MEASURE: u32 = 2;
/// How often it is looked whether there is room for all of them.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(250);
/// Longest life of a machine.
const MAX_MS: i64 = 2 * 60 * 60 * 1000;
/// A machine that is used so shortly before its end gets more time.
const LAST_MS: i64 = 30_000;
/// So long the end of a machine waits for what it needs to be saved and noted.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// A disk that is too full for so long ends the machine.
const OVER_MS: i64 = 60_000;
/// A chat whose last turn ended so long ago is done with its machine.
const CHAT_MS: i64 = 10 * 60 * 1000;

/// How a machine ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub status: &'static str,
    pub reason: &'static str,
    /// What is on it is saved first.
    pub saves: bool,
    /// Why it failed.
    pub error: Option<&'static str>,
}

impl End {
    /// What its session says until then.
    fn stopping(self) -> SessionChange {
        SessionChange {
            status: Some("stopping"),
            stopped_reason: Some(self.reason),
            saving: Some(self.saves),
            ..SessionChange::default()
        }
    }
}

pub(super) const STOPPED: End = End { status: "stopped", reason: "api", saves: false, error: None };
const ENDED: &str = "The machine ended by itself.";
const ENDED_UNSAVED: &str = "The machine ended by itself; what was not saved is lost.";
const TOO_FULL: &str = "There was far too much on the disk for it to be saved; what was not saved is lost.";
const NO_ROOM: &str = "The disk of the server was nearly full, and most of it was this sandbox's.";
const NO_ROOM_UNSAVED: &str =
    "The disk of the server was nearly full, and most of it was this sandbox's; what was not saved is lost.";
const SHUT_DOWN: &str = "The server process that had the machine was shut down; what was not saved is lost.";

/// Whether what is on a machine is saved when it ends.
fn saves(live: &Live) -> bool {
    live.config.snapshot_enabled && live.config.replace_snapshot_on_stop == Some(true)
}

/// Tries again, for a while, what the database or the object store was not there for, or a save that is under way.
pub(crate) async fn patiently<T, F: Future<Output = Result<T>>>(mut attempt: impl FnMut() -> F) -> Result<T> {
    let mut until = None;
    loop {
        let outcome = attempt().await;
        let code = outcome.as_ref().err().map(Error::code);
        let passes = [Code::SERVICE_UNAVAILABLE, code::SNAPSHOT_SAVE_IN_PROGRESS].map(Some).contains(&code);
        // From the first failure: what failed may have taken long until then.
        if !passes || Instant::now() > *until.get_or_insert_with(|| Instant::now() + MAX_WAIT) {
            return outcome;
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl PgEnvironments {
    /// Watches the machines of this process as long as it runs, and answers what others ask of them.
    pub async fn keep(self: Arc<Self>) {
        tokio::join!(self.watch(), self.keep_room(), self.listen(), self.look_after_left());
    }

    async fn watch(self: &Arc<Self>) {
        let mut looks = 0_u32;
        let mut kept = Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            looks = looks.wrapping_add(1);
            let asks = looks.is_multiple_of(KEEP);
            let looked = async {
                if asks {
                    self.keep_sessions().await?;
                    kept = Instant::now();
                    self.fail_lost().await?;
                }
                for live in self.machines.all() {
                    self.look(&live, asks, looks.is_multiple_of(MEASURE)).await?;
                }
                Ok::<_, Error>(())
            };
            if let Err(error) = looked.await {
                warn!(%error, "Sandboxes could not be looked after; trying again.");
            }
            // Others believe by now that they are gone, and may have started their own.
            if kept.elapsed() > repository::OWNED_FOR {
                for live in self.machines.all().into_iter().filter(|live| live.begin_end()) {
                    warn!(sandbox = live.session.sandbox_id, "A sandbox ends: nobody could be told that it is there.");
                    self.drop_machine(&live).await;
                }
            }
        }
    }

    /// Ends what takes most when the disk that all share is nearly full: the platform writes to it, too.
    async fn keep_room(self: &Arc<Self>) {
        let mut ended: Vec<Arc<Live>> = Vec::new();
        loop {
            tokio::time::sleep(LOOK_FOR_ROOM).await;
            ended.retain(|live| self.machines.get(&live.session.sandbox_id).is_some());
            let machines: Vec<_> =
                self.machines.all().into_iter().filter(|live| !live.ending.load(Ordering::Acquire)).collect();
            if machines.is_empty() {
                continue;
            }
            let Some(room) = self.backend.room().await else { continue };
            let bytes = |live: &Arc<Live>| live.disk_bytes.load(Ordering::Relaxed);
            let soon = ended.iter().map(bytes).fold(room.free, u64::saturating_add);
            let lacking = room.least.saturating_sub(soon);
            if lacking == 0 {
                continue;
            }
            let measuring = machines.iter().filter_map(|live| self.measure_later(live));
            let _ = timeout(LOOK, futures_util::future::join_all(measuring)).await;
            // Where others filled it, their end would help nobody.
            let largest = machines.into_iter().max_by_key(bytes).filter(|live| bytes(live) >= lacking / 8);
            let Some(live) = largest.filter(|live| live.begin_end()) else { continue };
            warn!(
                sandbox = live.session.sandbox_id,
                free = room.free,
                "A sandbox ends: the disk of all is nearly full."
            );
            // To be saved, too, it takes as much again where objects are on the same disk.
            let saves = saves(&live) && bytes(&live) <= room.free / 2;
            let error = Some(if saves { NO_ROOM } else { NO_ROOM_UNSAVED });
            let end = End { reason: "disk-limit", saves, error, ..STOPPED };
            let (environments, ends) = (Arc::clone(self), Arc::clone(&live));
            spawn("end a sandbox", async move {
                // It writes nothing more, whether or not that can be noted.
                ends.machine.end().await;
                environments.end(&ends, end, None).await;
            });
            ended.push(live);
        }
    }

    async fn listen(self: &Arc<Self>) {
        let mut told = self.bus.subscribe();
        loop {
            let heard = async {
                loop {
                    match told.recv().await {
                        Ok(Notice::Changed { topic, id }) if topic == TOPIC && id == self.machines.owner => break,
                        Ok(Notice::Changed { .. }) => {}
                        _ => break,
                    }
                }
            };
            let _ = timeout(LOOK * KEEP, heard).await;
            if let Err(error) = self.take_calls().await {
                debug!(%error, "What other processes ask of sandboxes could not be read; trying again.");
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Says that this process has its machines; those that are another's by now, or nobody's, end.
    async fn keep_sessions(self: &Arc<Self>) -> Result<()> {
        let (machines, sessions) = (self.machines.all(), self.machines.sessions());
        if sessions.is_empty() {
            return Ok(());
        }
        let kept = repository::keep(&mut *self.db.conn().await?, &self.machines.owner, &sessions).await?;
        for live in machines {
            if !kept.contains(&live.session.id) && live.begin_end() {
                info!(sandbox = live.session.sandbox_id, "A sandbox ends: its session is over.");
                self.drop_machine(&live).await;
            }
        }
        Ok(())
    }

    /// Ends what has to end, and gives more time to what is used; `asks` whether others are done with it, `measures` its
    /// disk.
    async fn look(self: &Arc<Self>, live: &Arc<Live>, asks: bool, measures: bool) -> Result<()> {
        let now = self.clock.now();
        let saves = saves(live);
        if self.has_ended(live).await {
            return Ok(());
        }
        let (expires, is_used) = {
            let state = live.state();
            (state.expires, state.running > 0 || state.used.0 >= state.expires.0 - LAST_MS)
        };
        if live.session.auto_extend && is_used && expires.0 - now.0 < LAST_MS {
            let most = live.session.started_ms + MAX_MS;
            let next = (expires.0 + live.term_ms).min(most);
            if next > expires.0 {
                live.state().expires = Timestamp(next);
                let change = SessionChange { expires_ms: Some(next), ..SessionChange::default() };
                repository::change(&mut *self.db.conn().await?, &live.account, &live.session.id, &change).await?;
                return Ok(());
            }
        }
        if now >= expires {
            self.end_later(live, End { status: "expired", reason: "expired", saves, ..STOPPED });
        } else if asks && self.is_left(live, now).await? {
            self.end_later(live, End { saves, ..STOPPED });
        } else if measures {
            self.measure_later(live);
        }
        Ok(())
    }

    /// Measures a disk, unless it is being measured.
    fn measure_later(self: &Arc<Self>, live: &Arc<Live>) -> Option<JoinHandle<()>> {
        let is_measured = live.measuring.swap(true, Ordering::AcqRel);
        let (environments, live) = (Arc::clone(self), Arc::clone(live));
        (!is_measured).then(|| {
            spawn("sandbox disk", async move {
                environments.measure(&live).await;
                live.measuring.store(false, Ordering::Release);
            })
        })
    }

    /// Whether a machine has ended by itself; its session says so from then on.
    pub(super) async fn has_ended(self: &Arc<Self>, live: &Arc<Live>) -> bool {
        if live.machine.ended().now_or_never().is_none() {
            return false;
        }
        if live.begin_end() {
            // Its disk is still there.
            let saves = saves(live);
            let error = Some(if saves { ENDED } else { ENDED_UNSAVED });
            let end = End { status: "failed", reason: "error", error, saves };
            let (environments, live) = (Arc::clone(self), Arc::clone(live));
            let (tells, told) = oneshot::channel();
            spawn("end a sandbox", async move {
                let _ = tells.send(environments.note(&live, end.stopping()).await);
                environments.end(&live, end, None).await;
            });
            let _ = told.await;
        }
        true
    }

    /// Whether all chats and threads that it was started for are done with it.
    async fn is_left(&self, live: &Arc<Live>, now: Timestamp) -> Result<bool> {
        if live.session.scope != "thread" || live.config.persist_after_session_close {
            return Ok(false);
        }
        let (users, used) = {
            let state = live.state();
            if state.running > 0 {
                return Ok(false);
            }
            (state.users.clone(), state.used)
        };
        let ids: Vec<String> = users.keys().cloned().collect();
        let threads = self.threads.are_over(&live.account, &ids).await?;
        let chats: Vec<String> = ids.into_iter().filter(|id| !threads.contains_key(id)).collect();
        let busy = if chats.is_empty() { Vec::new() } else { self.chats.busy(&live.account, &chats).await? };
        if !busy.is_empty() {
            live.state().users.extend(busy.into_iter().map(|id| (id, now)));
            return Ok(false);
        }
        let is_done = |id: &String, used: Timestamp| match threads.get(id) {
            Some(is_over) => *is_over,
            None => now.0 - used.0 > CHAT_MS,
        };
        // Whoever started it is a user of it in a moment.
        Ok(users.iter().all(|(id, used)| is_done(id, *used)) && (!users.is_empty() || now.0 - used.0 > CHAT_MS))
    }

    async fn measure(self: &Arc<Self>, live: &Arc<Live>) {
        let Ok(bytes) = live.machine.disk_bytes().await else { return };
        live.disk_bytes.store(bytes, Ordering::Relaxed);
        let saves = saves(live);
        let most = u64::from(live.config.disk_mib) << 20;
        let now = self.clock.now();
        let since = {
            let mut state = live.state();
            state.over_since = (bytes > most).then(|| state.over_since.unwrap_or(now));
            state.over_since
        };
        // What is far too much does not get a minute.
        let is_far = bytes > most.saturating_add(most / 4);
        if since.is_some_and(|since| is_far || now.0 - since.0 >= OVER_MS) {
            let error = (saves && is_far).then_some(TOO_FULL);
            self.end_later(live, End { reason: "disk-limit", saves: saves && !is_far, error, ..STOPPED });
        }
    }

    fn end_later(self: &Arc<Self>, live: &Arc<Live>, end: End) {
        if live.begin_end() {
            let (environments, live) = (Arc::clone(self), Arc::clone(live));
            spawn("end a sandbox", async move { environments.end(&live, end, None).await });
        }
    }

    /// Ends a machine: what it started first, then what is on it is saved, then it is gone.
    pub(super) async fn end(self: &Arc<Self>, live: &Arc<Live>, end: End, snapshot: Option<NewSnapshot>) {
        let ended = async {
            patiently(|| self.note(live, end.stopping())).await?;
            live.machine.end().await;
            let saved = if end.saves { self.save_ended(live, snapshot).await } else { Ok(()) };
            let error = saved.err().map(|error| format!("It could not be saved: {}", error.message()));
            let error = error.or_else(|| end.error.map(str::to_owned));
            patiently(|| self.close(&live.session, end.status, end.reason, error.clone())).await
        };
        if let Err(error) = ended.await {
            warn!(sandbox = live.session.sandbox_id, %error, "The end of a sandbox could not be noted.");
        }
        self.drop_machine(live).await;
        info!(sandbox = live.session.sandbox_id, reason = end.reason, "A sandbox has ended.");
    }

    async fn note(&self, live: &Live, change: SessionChange) -> Result<()> {
        let mut conn = self.db.conn().await?;
        repository::change(&mut conn, &live.account, &live.session.id, &change).await.map(drop)
    }

    /// Saves what is on a machine that has ended; whoever comes meanwhile gets another one.
    async fn save_ended(&self, live: &Arc<Live>, snapshot: Option<NewSnapshot>) -> Result<()> {
        let snapshot = match snapshot {
            Some(snapshot) => snapshot,
            None => {
                let snapshot = self.snapshot_of(live);
                let snapshot = patiently(|| self.begin(snapshot.clone())).await?;
                patiently(|| self.leave_lane(live)).await?;
                snapshot
            }
        };
        self.save(live, snapshot).await
    }

    async fn leave_lane(&self, live: &Live) -> Result<()> {
        repository::leave_lane(&mut *self.db.conn().await?, &live.account, &live.session.id).await
    }

    /// Ends a machine that was made to be saved.
    pub(crate) async fn end_saved(self: &Arc<Self>, live: &Arc<Live>, snapshot: NewSnapshot) {
        if live.begin_end() {
            self.end(live, End { saves: true, ..STOPPED }, Some(snapshot)).await;
        }
    }

    /// Ends a machine that was made to be saved, and is not as it should be.
    pub(crate) async fn end_unsaved(self: &Arc<Self>, live: &Arc<Live>, error: &'static str) {
        if live.begin_end() {
            self.end(live, End { status: "failed", reason: "error", error: Some(error), ..STOPPED }, None).await;
        }
    }

    /// The machine goes; its session is somebody else's to note.
    pub(crate) async fn drop_machine(&self, live: &Arc<Live>) {
        live.begin_end();
        self.machines.remove(&live.session.sandbox_id);
        live.machine.end().await;
    }

    /// Stops a machine that is here; what is on it is saved in the background.
    pub(crate) async fn stop_here(self: &Arc<Self>, live: &Arc<Live>, request: &StopSandbox) -> Result<StoppedSandbox> {
        let config = &live.config;
        if request.save_changes == Some(true) && !config.snapshot_enabled {
            let message = "This environment keeps no snapshots; switch sandboxConfig.snapshotEnabled on first.";
            return Err(Error::new(code::SNAPSHOTS_DISABLED, message));
        }
        let saves = request.save_changes.unwrap_or(saves(live));
        if saves && !request.force {
            check_unchanged(self, live).await?;
        }
        if !live.begin_end() {
            // Somebody else stopped it.
            let mut conn = self.db.conn().await?;
            let saved = snapshot::of_sandbox(&mut conn, &live.account, &live.session.sandbox_id).await?;
            let snapshot_id = saved.filter(|snapshot| snapshot.status == "creating").map(|snapshot| snapshot.id);
            let message = "The sandbox is stopping.".to_owned();
            return Ok(StoppedSandbox { message, saving: snapshot_id.is_some(), snapshot_id });
        }
        if !saves {
            self.end(live, STOPPED, None).await;
            return Ok(StoppedSandbox {
                message: "The sandbox has stopped.".to_owned(),
                saving: false,
                snapshot_id: None,
            });
        }
        let snapshot = match self.begin(self.snapshot_of(live)).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                live.ending.store(false, Ordering::Release);
                return Err(error);
            }
        };
        let snapshot_id = Some(snapshot.id.clone());
        let end = End { saves: true, ..STOPPED };
        let leaving = async {
            self.note(live, end.stopping()).await?;
            self.leave_lane(live).await
        };
        // It ends all the same, and notes that then.
        if let Err(error) = leaving.await {
            warn!(sandbox = live.session.sandbox_id, %error, "That a sandbox is being saved could not be noted.");
        }
        let (environments, live) = (Arc::clone(self), Arc::clone(live));
        spawn("save a sandbox", async move { environments.end(&live, end, Some(snapshot)).await });
        let message = "The sandbox is stopping; what is on it is being saved.".to_owned();
        Ok(StoppedSandbox { message, saving: true, snapshot_id })
    }

    /// Waits, for a while, until a machine is made or gone.
    pub(crate) async fn wait_for(&self, session: &SessionRow) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            let mut conn = self.db.conn().await?;
            let now = repository::live(&mut conn, &session.account(), &session.environment_id, &session.lane).await?;
            if now.is_none_or(|now| now.id != session.id || now.status == "running") {
                return Ok(());
            }
            drop(conn);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Ends a live session at once, whoever has its machine; what was not saved is lost.
    pub(crate) async fn take_over(&self, session: &SessionRow) -> Result<()> {
        self.close(session, "stopped", "taken-over", None).await?;
        self.forget_machine(session).await
    }

    async fn forget_machine(&self, session: &SessionRow) -> Result<()> {
        if let Some(live) = self.machines.get(&session.sandbox_id) {
            self.drop_machine(&live).await;
        } else if session.owner != self.machines.owner {
            // A process that does not answer finds out when it says that it has the machine.
            let _ = self.ask(session, None, Call::TakenOver).await;
        }
        Ok(())
    }

    /// Ends all machines of an environment, unsaved.
    pub(crate) async fn stop_all(&self, account: &AccountId, environment: &str) -> Result<()> {
        let live = repository::live_of(&mut *self.db.conn().await?, account, environment).await?;
        self.stop_unsaved(live).await
    }

    /// Ends the machines of a tenant who is gone, and forgets what was saved of them.
    pub async fn forget_tenant(&self, account: &AccountId, tenant: &str) -> Result<()> {
        let live = repository::live_for(&mut *self.db.conn().await?, account, tenant).await?;
        self.stop_unsaved(live).await?;
        let mut conn = self.db.conn().await?;
        let forgetting = conn.transaction::<_, Error, _>(async |conn| {
            snapshot::lock_pieces(conn, account).await?;
            snapshot::forget_tenant(conn, account, tenant).await
        });
        forgetting.await
    }

    async fn stop_unsaved(&self, live: Vec<SessionRow>) -> Result<()> {
        for session in live {
            self.close(&session, "stopped", "api", None).await?;
            self.forget_machine(&session).await?;
        }
        Ok(())
    }

    /// Ends the machines of this process before it ends itself; what is to be saved is, here or by the next process that
    /// finds the disk.
    pub async fn drain(self: &Arc<Self>, longest: Duration) {
        self.machines.closing.store(true, Ordering::Release);
        let ending = self.machines.all().into_iter().filter(|live| live.begin_end()).map(|live| async move {
            if let Err(error) = self.leave_unmade(&live).await {
                warn!(%error, "That a snapshot is to be made anew could not be noted.");
            }
            let saves = saves(&live);
            let (status, error) = if saves { ("stopped", None) } else { ("failed", Some(SHUT_DOWN)) };
            self.end(&live, End { status, reason: "error", saves, error }, None).await;
        });
        let ended = async {
            futures_util::future::join_all(ending).await;
            // Some were being saved already.
            while !self.machines.all().is_empty() {
                tokio::time::sleep(LOOK / 20).await;
            }
        };
        if timeout(longest, ended).await.is_err() {
            warn!("Sandboxes are still being saved; the next process that finds their disks goes on.");
            // Whoever drops a machine removes its disk.
            for live in self.machines.all() {
                std::mem::forget(live);
            }
        }
    }

    /// Forgets what is old.
    pub async fn purge(conn: &mut platform_db::Conn, now: Timestamp) -> Result<()> {
        const KEPT_MS: i64 = 90 * 24 * 60 * 60 * 1000;
        repository::purge(conn, Timestamp(now.0 - KEPT_MS)).await
    }
}
