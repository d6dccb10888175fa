use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt;
use platform_core::{AccountId, Clock, FairMemory, Timestamp, spawn};
use tokio::{
    sync::{Notify, OnceCell, watch},
    task::AbortHandle,
    time::Instant,
};

use crate::{
    Relay, Source, Watcher,
    frame::{Calls, Frames, GrowingCall, Head, Streaming},
    relay::{Line, Word},
    room::Room,
};

/// Frames of other changes that may be shown while a commit is on its way.
const ROOM: i64 = 128;

/// Bytes of text, and of tool calls, in one word to other processes: NATS takes messages of up to 1 MiB.
const MAX_WORD: usize = 64 << 10;

/// Bytes of frames that some reader has yet to take, in all and of one account; more are sent without their history.
const UNREAD: (usize, usize) = (128 << 20, 64 << 20);

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

impl State {
    /// The store holds that revision: the next frame shows it, and what is being written on top of it.
    fn store(&mut self, revision: i64) {
        if revision <= self.revision {
            return;
        }
        (self.revision, self.sequence) = (revision, revision.max(self.sequence + 1));
        if let Some(streaming) = &mut self.streaming {
            (streaming.sequence, streaming.frames) = (self.sequence, Arc::default());
        }
    }

    fn is_written(&self, uid: &str) -> bool {
        self.streaming.as_ref().is_some_and(|streaming| *streaming.uid == *uid)
    }

    /// The message that was being written is not any more: the next frame is without it.
    fn withdraw(&mut self) {
        if self.streaming.take().is_some() {
            self.sequence += 1;
        }
    }
}

/// One chat that is being run or watched in this process.
#[derive(Debug)]
pub(crate) struct Channel {
    pub state: watch::Sender<State>,
    /// The committed state at or after a revision, read once for all watchers.
    pub head: Mutex<(i64, Arc<OnceCell<Arc<Head>>>)>,
    told: Mutex<Relayed>,
    /// What follows the runs of other processes.
    line: Mutex<Option<AbortHandle>>,
}

/// What the other processes were told of the message being written.
#[derive(Debug, Default)]
struct Relayed {
    /// Somebody there watches.
    wanted: bool,
    uid: Arc<str>,
    length: usize,
}

/// What another process was heard to write.
#[derive(Default)]
struct Received {
    /// What it has committed: what stands on an older state comes from a run that lost its lease.
    committed: i64,
    uid: Arc<str>,
    text: Arc<Mutex<String>>,
}

/// All chats and threads that are run or watched in this process.
pub struct Realtime {
    channels: Mutex<HashMap<Key, Arc<Channel>>>,
    clock: Arc<dyn Clock>,
    coalesce: Duration,
    relay: Option<Arc<Relay>>,
    unread: FairMemory,
    began: Instant,
}

impl Realtime {
    /// `coalesce`: the shortest time between two frames of growing text; `relay`: the line to other processes.
    pub fn new(clock: Arc<dyn Clock>, coalesce: Duration, relay: Option<Relay>) -> Arc<Self> {
        let relay = relay.map(Arc::new);
        let realtime = Arc::new(Self {
            channels: Mutex::default(),
            clock,
            coalesce,
            relay: relay.clone(),
            unread: FairMemory::new(UNREAD.0, UNREAD.1),
            began: Instant::now(),
        });
        if let Some(relay) = relay {
            spawn("questions", Arc::clone(&realtime).answer(relay));
        }
        realtime
    }

    /// A run begins to write message `uid` on top of `revision`. `earlier` counts the
    /// leases of the same turn before this one, which may have shown text: the sequence rises above theirs.
    pub fn open(self: &Arc<Self>, key: Key, revision: i64, uid: &str, earlier: i64) -> Arc<Live> {
        let channel = self.channel(&key, |channel| {
            // Whoever watches elsewhere asks anew.
            *channel.told.lock().expect("lock") = Relayed::default();
            channel.state.send_modify(|state| {
                state.withdraw();
                state.store(revision);
                state.sequence = state.sequence.max(revision + earlier * 100_000);
                (state.runs, state.gone) = (state.runs + 1, false);
            });
            Arc::clone(channel)
        });
        if let Some(relay) = &self.relay {
            relay.say(&key, &Word::Begun { by: relay.process.clone() });
        }
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
        self.stored(key, revision);
        self.say(key, &Word::Stored { revision });
    }

    /// The store is known to have changed.
    pub(crate) fn stored(&self, key: &Key, revision: i64) {
        self.modify(key, |state| state.store(revision));
    }

    /// It was deleted: streams end.
    pub fn deleted(&self, key: &Key) {
        self.gone(key);
        self.say(key, &Word::Gone);
    }

    pub(crate) fn gone(&self, key: &Key) {
        self.modify(key, |state| state.gone = true);
    }

    /// Room for the frames of an account.
    pub(crate) fn room(&self, account: &AccountId) -> Room {
        Room::new(&self.unread, account)
    }

    /// Until when a watcher waits after a frame of so many times what may come at once. All that wait for as long wait for
    /// the same moment, so that they share the next frame.
    pub(crate) fn rest(&self, times: usize) -> Option<Instant> {
        let pause = self.coalesce * u32::try_from(times).unwrap_or(u32::MAX);
        if pause.is_zero() {
            return None;
        }
        let now = Instant::now();
        let passed = now.duration_since(self.began).as_nanos() % pause.as_nanos();
        Some(now + pause - Duration::from_nanos(u64::try_from(passed).unwrap_or(0)))
    }

    /// The line to other processes, if there is one.
    pub(crate) fn line(&self) -> Option<watch::Receiver<Line>> {
        self.relay.as_ref().map(|relay| relay.line())
    }

    /// What another process was heard to write is known to be stored.
    pub(crate) fn written(&self, key: &Key, uid: &str) {
        self.modify(key, |state| {
            if state.runs == 0 && state.is_written(uid) {
                state.withdraw();
            }
        });
    }

    /// Follows a chat; `partial` allows frames that hold only what is new.
    pub fn watch(self: &Arc<Self>, key: Key, source: Arc<dyn Source>, partial: bool) -> Watcher {
        let (channel, state) = self.channel(&key, |channel| (Arc::clone(channel), channel.state.subscribe()));
        if let Some(relay) = &self.relay {
            channel.line.lock().expect("lock").get_or_insert_with(|| {
                let following = Arc::clone(self).follow(Arc::clone(relay), key.clone(), Arc::clone(&channel));
                spawn("follow", following).abort_handle()
            });
        }
        Watcher::new(Arc::clone(self), key, channel, state, source, partial)
    }

    /// The message being written in this process, as JSON, with the revision it is written on.
    pub fn streaming(&self, key: &Key) -> Option<(i64, Timestamp, String)> {
        let channel = self.channels.lock().expect("lock").get(key).cloned()?;
        let state = channel.state.borrow();
        let streaming = state.streaming.as_ref().filter(|streaming| !streaming.is_empty())?;
        Some((state.revision, streaming.at, streaming.json()))
    }

    fn say(&self, key: &Key, word: &Word) {
        if let Some(relay) = &self.relay {
            relay.say(key, word);
        }
    }

    /// Tells the other processes what is written, when any of them watches; one that asks gets the `whole`.
    fn tell(&self, key: &Key, channel: &Channel, whole: bool) {
        let Some(relay) = &self.relay else { return };
        let mut told = channel.told.lock().expect("lock");
        if whole {
            *told = Relayed { wanted: true, ..Relayed::default() };
        }
        if !told.wanted {
            return;
        }
        let state = channel.state.borrow().clone();
        let Some(streaming) = state.streaming.filter(|streaming| !streaming.is_empty()) else {
            return relay.say(key, &Word::Committed { revision: state.revision });
        };
        let mut from = if told.uid == streaming.uid { told.length } else { 0 };
        let calls = if streaming.calls_size == 0 { String::new() } else { streaming.calls.json() };
        // What is too long for one word comes with the commit.
        let calls = if calls.len() > MAX_WORD { String::new() } else { calls };
        loop {
            let text = streaming.text_from(from, MAX_WORD);
            from += text.len();
            let is_last = from == streaming.length;
            relay.say(
                key,
                &Word::Written {
                    revision: state.revision,
                    sequence: streaming.sequence,
                    at: streaming.at,
                    uid: streaming.uid.to_string(),
                    from: from - text.len(),
                    text,
                    tool_calls: calls.clone(),
                },
            );
            if is_last {
                break;
            }
        }
        *told = Relayed { wanted: true, uid: streaming.uid, length: streaming.length };
    }

    /// Answers whoever asks for what runs here; says it to all when the line is there again.
    async fn answer(self: Arc<Self>, relay: Arc<Relay>) {
        let Some(questions) = relay.questions().await else { return };
        let mut questions = futures_util::stream::select_all(questions);
        let mut line = relay.line();
        loop {
            tokio::select! {
                question = questions.next() => match question {
                    Some(question) => self.tell_who_asks(&question.payload),
                    None => return,
                },
                changed = line.changed() => match changed {
                    Ok(()) if line.borrow_and_update().is_up => self.begin_again(&relay),
                    Ok(()) => {}
                    Err(_) => return,
                },
            }
        }
    }

    fn tell_who_asks(&self, question: &[u8]) {
        let Ok((account, name)) = serde_json::from_slice::<(String, String)>(question) else { return };
        let Ok(account) = AccountId::parse(&account) else { return };
        let key = (account, name.into());
        let channel = self.channels.lock().expect("lock").get(&key).cloned();
        if let Some(channel) = channel.filter(|channel| channel.state.borrow().runs > 0) {
            self.tell(&key, &channel, true);
        }
    }

    /// Whoever did not hear that a run has begun asks now.
    fn begin_again(&self, relay: &Relay) {
        let channels = self.channels.lock().expect("lock");
        for (key, _) in channels.iter().filter(|(_, channel)| channel.state.borrow().runs > 0) {
            relay.say(key, &Word::Begun { by: relay.process.clone() });
        }
    }

    /// Takes in what other processes say, for as long as somebody here watches.
    async fn follow(self: Arc<Self>, relay: Arc<Relay>, key: Key, channel: Arc<Channel>) {
        let Some(mut words) = relay.listen(&key).await else { return };
        let (mut line, mut received) = (relay.line(), Received::default());
        relay.ask(&key, None);
        loop {
            tokio::select! {
                word = words.next() => match word {
                    Some(word) => {
                        if let Ok(word) = serde_json::from_slice(&word.payload) {
                            self.hear(&relay, &key, &channel, &mut received, word);
                        }
                    }
                    None => return,
                },
                changed = line.changed() => match changed {
                    // Whatever was said meanwhile is lost.
                    Ok(()) if line.borrow_and_update().is_up => relay.ask(&key, None),
                    Ok(()) => {}
                    Err(_) => return,
                },
            }
        }
    }

    fn hear(&self, relay: &Relay, key: &Key, channel: &Channel, received: &mut Received, word: Word) {
        match word {
            Word::Begun { by } => relay.ask(key, Some(&by)),
            Word::Stored { revision } => self.stored(key, revision),
            Word::Committed { revision } => {
                received.committed = received.committed.max(revision);
                channel.state.send_modify(|state| {
                    if state.runs == 0 {
                        state.withdraw();
                    }
                    state.store(revision);
                });
            }
            Word::Ended => channel.state.send_modify(|state| {
                if state.runs == 0 {
                    state.withdraw();
                }
            }),
            Word::Gone => self.gone(key),
            Word::Written { revision, sequence, at, uid, from, text, tool_calls } => {
                if channel.state.borrow().runs > 0 || revision < received.committed {
                    return;
                }
                let Some(length) = received.append(&uid, from, &text) else {
                    // Something was lost on the way.
                    relay.ask(key, None);
                    return;
                };
                channel.state.send_modify(|state| {
                    state.revision = state.revision.max(revision);
                    state.sequence = sequence.max(state.sequence + 1);
                    state.streaming = Some(Streaming {
                        uid: Arc::clone(&received.uid),
                        text: Arc::clone(&received.text),
                        length,
                        calls_size: tool_calls.len(),
                        calls: Calls::Received(tool_calls.into()),
                        sequence: state.sequence,
                        at,
                        frames: Arc::default(),
                    });
                });
            }
        }
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
        let new = || {
            let (head, told, line) = (Mutex::default(), Mutex::default(), Mutex::default());
            Arc::new(Channel { state: watch::Sender::default(), head, told, line })
        };
        then(channels.entry(key.clone()).or_insert_with(new))
    }

    /// Forgets a channel that nobody runs or watches. Called with the caller's own share still held.
    pub(crate) fn release(&self, key: &Key, channel: &Arc<Channel>) {
        let mut channels = self.channels.lock().expect("lock");
        let idle = channel.state.borrow().runs == 0 && channel.state.receiver_count() == 0;
        if idle && channels.get(key).is_some_and(|held| Arc::ptr_eq(held, channel)) {
            channels.remove(key);
            if let Some(line) = channel.line.lock().expect("lock").take() {
                line.abort();
            }
        }
    }
}

impl Received {
    /// Adds a piece of text; its length then, or `None` when there is a gap before the piece.
    fn append(&mut self, uid: &str, from: usize, text: &str) -> Option<usize> {
        if *self.uid != *uid {
            if from > 0 {
                return None;
            }
            (self.uid, self.text) = (uid.into(), Arc::default());
        }
        let mut known = self.text.lock().expect("lock");
        let seen = known.len().checked_sub(from)?;
        known.push_str(text.get(seen..).unwrap_or_default());
        Some(known.len())
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
    calls: Arc<Mutex<Vec<GrowingCall>>>,
    calls_size: usize,
    shown: Option<Instant>,
    pending: bool,
}

impl Draft {
    fn new(uid: &str) -> Self {
        let (text, calls) = Default::default();
        Self { uid: uid.into(), text, calls, calls_size: 0, shown: None, pending: false }
    }
}

impl Live {
    /// More text: the first is shown at once, later growth at most once per coalescing time.
    pub fn append(&self, more: &str) {
        let mut draft = self.draft.lock().expect("lock");
        draft.text.lock().expect("lock").push_str(more);
        self.grown(&mut draft);
    }

    /// More of the tool call at `index`, whose id is told with its first piece. A new call is shown at once, its
    /// growth as that of text.
    pub fn tool_call(&self, index: usize, id: &str, name: &str, arguments: &str) {
        let mut draft = self.draft.lock().expect("lock");
        let is_new = {
            let mut calls = draft.calls.lock().expect("lock");
            let is_new = calls.len() <= index;
            if is_new {
                calls.resize_with(index + 1, GrowingCall::default);
            }
            let call = &mut calls[index];
            if !id.is_empty() {
                id.clone_into(&mut call.id);
            }
            call.function.name.push_str(name);
            call.function.arguments.push_str(arguments);
            is_new
        };
        draft.calls_size += usize::from(is_new) + name.len() + arguments.len();
        if is_new { self.show(&mut draft) } else { self.grown(&mut draft) }
    }

    /// Shows growth, or has it wait until its time has come.
    fn grown(&self, draft: &mut Draft) {
        let soon = draft.shown.is_some_and(|shown| shown.elapsed() < self.realtime.coalesce);
        if soon {
            draft.pending = true;
            self.ready.notify_one();
        } else {
            self.show(draft);
        }
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
        let stored = std::mem::replace(&mut *draft, Draft::new(uid));
        self.channel.state.send_modify(|state| {
            // The next run may be writing already.
            if state.is_written(&stored.uid) {
                state.withdraw();
            }
            state.store(revision);
        });
        self.realtime.say(&self.key, &Word::Committed { revision });
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
                calls: Calls::Growing(Arc::clone(&draft.calls)),
                calls_size: draft.calls_size,
                sequence: state.sequence,
                at: self.realtime.clock.now(),
                frames: Arc::new(Frames::default()),
            });
        });
        self.realtime.tell(&self.key, &self.channel, false);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.channel.state.send_modify(|state| {
            state.runs -= 1;
            if state.runs == 0 {
                state.withdraw();
            }
        });
        if self.channel.told.lock().expect("lock").wanted {
            self.realtime.say(&self.key, &Word::Ended);
        }
        self.realtime.release(&self.key, &self.channel);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_is_lost_or_said_twice_what_is_heard_is_the_beginning_of_what_was_written(
            pieces in prop::collection::vec("[a-zäß漢🦀]{0,5}", 1..12),
            arrives in prop::collection::vec(0..4_u8, 12),
        ) {
            let whole: String = pieces.concat();
            let (mut received, mut from) = (Received::default(), 0);
            for (piece, fate) in pieces.iter().zip(arrives) {
                let known = received.text.lock().expect("lock").len();
                let end = from + piece.len();
                match fate {
                    0 => {}
                    // Whoever sees a gap asks, and is told the whole.
                    1 => prop_assert_eq!(received.append("m", 0, &whole[..end]), Some(end.max(known))),
                    times => {
                        for _ in 1..times {
                            let length = received.append("m", from, piece);
                            let is_gap = known < from || (known == 0 && from > 0);
                            prop_assert_eq!(length, (!is_gap).then_some(end.max(known)));
                        }
                    }
                }
                from = end;
                let text = received.text.lock().expect("lock").clone();
                prop_assert!(whole.starts_with(&text), "{} {}", whole, text);
            }
            prop_assert_eq!(received.append("next", 3, "x"), None, "another message begins at its beginning");
            prop_assert_eq!(received.append("next", 0, "x"), Some(1));
        }
    }
}
