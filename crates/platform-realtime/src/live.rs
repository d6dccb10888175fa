use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use platform_core::{AccountId, Clock, Timestamp};
use tokio::{
    sync::{Notify, OnceCell, watch},
    time::Instant,
};

use crate::{
    Source, Watcher,
    frame::{Frames, Head, Streaming},
};

/// Frames of other changes that may be shown while a commit is on its way.
const ROOM: i64 = 128;

/// Account and name of what is watched; who may not find it must not know its name.
pub type Key = (AccountId, Arc<str>);

/// What watchers of one chat see change.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// The store holds at least this revision.
    pub revision: i64,
    /// Number of the last frame, which the next one and the next revision rise above.
    pub sequence: i64,
    /// The message being written on top of that revision.
    pub streaming: Option<Streaming>,
    /// Runs of this process that write here: the next may begin before the last has quite gone. Without
    /// any, the store is asked from time to time.
    pub runs: u32,
    /// Deleted.
    pub gone: bool,
}

/// One chat that is being run or watched in this process.
#[derive(Debug)]
pub(crate) struct Channel {
    pub state: watch::Sender<State>,
    /// The committed state at or after a revision, read once for all watchers.
    pub head: Mutex<(i64, Arc<OnceCell<Arc<Head>>>)>,
}

/// All chats and threads that are run or watched in this process.
pub struct Realtime {
    channels: Mutex<HashMap<Key, Arc<Channel>>>,
    clock: Arc<dyn Clock>,
    coalesce: Duration,
}

impl Realtime {
    /// `coalesce`: the shortest time between two frames of growing text.
    pub fn new(clock: Arc<dyn Clock>, coalesce: Duration) -> Arc<Self> {
        Arc::new(Self { channels: Mutex::default(), clock, coalesce })
    }

    /// A run begins to write message `uid` on top of `revision`. `earlier` counts the
    /// leases of the same turn before this one, which may have shown text: the sequence rises above theirs.
    pub fn open(self: &Arc<Self>, key: Key, revision: i64, uid: &str, earlier: i64) -> Arc<Live> {
        let channel = self.channel(&key, |channel| {
            channel.state.send_modify(|state| {
                let (revision, runs) = (state.revision.max(revision), state.runs + 1);
                let sequence = state.sequence.max(revision + earlier * 100_000);
                *state = State { revision, sequence, runs, ..State::default() };
            });
            Arc::clone(channel)
        });
        Arc::new(Live {
            realtime: Arc::clone(self),
            key,
            channel,
            ready: Notify::new(),
            draft: Mutex::new(Draft::new(uid)),
        })
    }

    /// The store changed, besides what a run of this process writes.
    pub fn changed(&self, key: &Key, revision: i64) {
        self.modify(key, |state| {
            if revision <= state.revision {
                return;
            }
            state.revision = revision;
            state.sequence = state.sequence.max(revision);
            // What is being written stands on another state now: its frames are new ones.
            if let Some(streaming) = &mut state.streaming {
                state.sequence += 1;
                (streaming.sequence, streaming.frames) = (state.sequence, Arc::default());
            }
        });
    }

    /// It was deleted: streams end.
    pub fn deleted(&self, key: &Key) {
        self.modify(key, |state| state.gone = true);
    }

    /// Follows a chat; `partial` allows frames that hold only what is new.
    pub fn watch(self: &Arc<Self>, key: Key, source: Arc<dyn Source>, partial: bool) -> Watcher {
        let (channel, state) = self.channel(&key, |channel| (Arc::clone(channel), channel.state.subscribe()));
        Watcher::new(Arc::clone(self), key, channel, state, source, partial)
    }

    /// The message being written in this process, as JSON, with the revision it is written on.
    pub fn streaming(&self, key: &Key) -> Option<(i64, Timestamp, String)> {
        let channel = self.channels.lock().expect("lock").get(key).cloned()?;
        let state = channel.state.borrow();
        let streaming = state.streaming.as_ref().filter(|streaming| !streaming.is_empty())?;
        Some((state.revision, streaming.at, streaming.json()))
    }

    fn modify(&self, key: &Key, change: impl FnOnce(&mut State)) {
        let channel = self.channels.lock().expect("lock").get(key).cloned();
        if let Some(channel) = channel {
            channel.state.send_modify(change);
        }
    }

    /// Does something with a channel that cannot be released meanwhile.
    fn channel<T>(&self, key: &Key, then: impl FnOnce(&Arc<Channel>) -> T) -> T {
        let mut channels = self.channels.lock().expect("lock");
        let new = || Arc::new(Channel { state: watch::Sender::default(), head: Mutex::default() });
        then(channels.entry(key.clone()).or_insert_with(new))
    }

    /// Forgets a channel that nobody runs or watches. Called with the caller's own share still held.
    pub(crate) fn release(&self, key: &Key, channel: &Arc<Channel>) {
        let mut channels = self.channels.lock().expect("lock");
        let idle = channel.state.borrow().runs == 0 && channel.state.receiver_count() == 0;
        if idle && channels.get(key).is_some_and(|held| Arc::ptr_eq(held, channel)) {
            channels.remove(key);
        }
    }
}

/// The message a run is writing. Shared by the run's model call and its flush timer.
pub struct Live {
    realtime: Arc<Realtime>,
    key: Key,
    channel: Arc<Channel>,
    ready: Notify,
    draft: Mutex<Draft>,
}

struct Draft {
    uid: Arc<str>,
    text: Arc<Mutex<String>>,
    tool_calls: Arc<str>,
    shown: Option<Instant>,
    pending: bool,
}

impl Draft {
    fn new(uid: &str) -> Self {
        Self { uid: uid.into(), text: Arc::default(), tool_calls: "".into(), shown: None, pending: false }
    }
}

impl Live {
    /// More text: the first is shown at once, later growth at most once per coalescing time.
    pub fn append(&self, more: &str) {
        let mut draft = self.draft.lock().expect("lock");
        draft.text.lock().expect("lock").push_str(more);
        let soon = draft.shown.is_some_and(|shown| shown.elapsed() < self.realtime.coalesce);
        if soon {
            draft.pending = true;
            self.ready.notify_one();
        } else {
            self.show(&mut draft);
        }
    }

    /// The tool calls as they are now, as a JSON array; never delayed.
    pub fn tool_calls(&self, json: &str) {
        let mut draft = self.draft.lock().expect("lock");
        draft.tool_calls = json.into();
        self.show(&mut draft);
    }

    /// Shows held-back growth when its time has come. Runs beside the model call, never returns.
    pub async fn flush(&self) -> std::convert::Infallible {
        loop {
            self.ready.notified().await;
            let shown = self.draft.lock().expect("lock").shown;
            if let Some(shown) = shown {
                tokio::time::sleep_until(shown + self.realtime.coalesce).await;
            }
            let mut draft = self.draft.lock().expect("lock");
            if draft.pending {
                self.show(&mut draft);
            }
        }
    }

    /// The text so far.
    pub fn text(&self) -> String {
        self.draft.lock().expect("lock").text.lock().expect("lock").clone()
    }

    /// Uid of the message being written.
    pub fn uid(&self) -> String {
        self.draft.lock().expect("lock").uid.to_string()
    }

    /// The revision the next commit must write at least, above every sequence number shown so far, with room
    /// for what is shown while it commits.
    pub fn next_revision(&self) -> i64 {
        self.channel.state.borrow().sequence + ROOM
    }

    /// What was written is committed as `revision`; the next message is `uid`.
    pub fn committed(&self, revision: i64, uid: &str) {
        let mut draft = self.draft.lock().expect("lock");
        *draft = Draft::new(uid);
        self.channel.state.send_modify(|state| {
            state.revision = state.revision.max(revision);
            state.sequence = state.sequence.max(revision);
            state.streaming = None;
        });
    }

    fn show(&self, draft: &mut Draft) {
        draft.pending = false;
        draft.shown = Some(Instant::now());
        let length = draft.text.lock().expect("lock").len();
        self.channel.state.send_modify(|state| {
            state.sequence += 1;
            state.streaming = Some(Streaming {
                uid: Arc::clone(&draft.uid),
                text: Arc::clone(&draft.text),
                length,
                tool_calls: Arc::clone(&draft.tool_calls),
                sequence: state.sequence,
                at: self.realtime.clock.now(),
                frames: Arc::new(Frames::default()),
            });
        });
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.channel.state.send_modify(|state| {
            state.runs -= 1;
            if state.runs == 0 {
                state.streaming = None;
            }
        });
        self.realtime.release(&self.key, &self.channel);
    }
}
