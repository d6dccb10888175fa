use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use platform_core::{Code, Error, Result};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    Realtime,
    frame::{Head, Streaming},
    live::{Channel, Key, State},
    relay::Line,
    room::Room,
};

/// How often the store is asked about a chat that another process runs.
const POLL: Duration = Duration::from_millis(500);
/// The same when the others say what they do: a word may have been lost.
const SELDOM: Duration = Duration::from_secs(5);
/// The same when they have fallen silent in the middle of a message.
const SILENT: Duration = Duration::from_secs(1);

/// Bytes of a frame after which the next may come as soon as it likes; one of twice as many is waited for twice as long.
const AT_ONCE: usize = 256 << 10;

/// Reads committed state from the store.
#[async_trait]
pub trait Source: Send + Sync {
    /// The revision that is committed now; `None` when it was deleted.
    async fn revision(&self) -> Result<Option<i64>>;
    /// The state that is committed now; `None` when there is none (any more).
    async fn head(&self) -> Result<Option<Head>>;
}

/// One connection's view of a chat: yields a frame whenever what it has shown is not the newest state.
pub struct Watcher {
    realtime: Arc<Realtime>,
    key: Key,
    channel: Arc<Channel>,
    state: Option<watch::Receiver<State>>,
    source: Arc<dyn Source>,
    line: Option<watch::Receiver<Line>>,
    partial: bool,
    room: Room,
    seen: Option<Seen>,
    /// The last frame was so large that the next waits.
    rests_until: Option<Instant>,
    ended: bool,
}

/// What this connection was last sent.
struct Seen {
    /// Of the state, which is not kept: it may be large, and who does not read keeps it for long.
    revision: i64,
    digest: u64,
    /// Message, bytes of its text, and of its tool calls.
    streaming: Option<(Arc<str>, usize, usize)>,
    /// The message had no room: the next frame holds all of it.
    lacks_message: bool,
}

impl Seen {
    /// Nothing but `lastUpdatedAt` differs, which is no news by itself (contract 02 §7).
    fn tells_the_same(&self, other: &Self) -> bool {
        self.streaming == other.streaming && (self.revision == other.revision || self.digest == other.digest)
    }
}

impl Watcher {
    pub(crate) fn new(
        realtime: Arc<Realtime>,
        key: Key,
        channel: Arc<Channel>,
        state: watch::Receiver<State>,
        source: Arc<dyn Source>,
        partial: bool,
    ) -> Self {
        let line = realtime.line();
        let room = realtime.room(&key.0);
        let (state, seen, rests_until, ended) = (Some(state), None, None, false);
        Self { realtime, key, channel, state, source, line, partial, room, seen, rests_until, ended }
    }

    /// Reads the state it begins with; `false` when there is none. The first frame needs no other read.
    pub async fn begin(&mut self) -> Result<bool> {
        let revision = self.state.as_ref().map_or(0, |state| state.borrow().revision);
        Ok(self.head(revision).await?.is_some())
    }

    /// The next frame; `None` when the stream has ended: terminal state, or deleted.
    /// May be dropped and called again without losing anything.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.ended {
            return Ok(None);
        }
        if let Some(until) = self.rests_until {
            sleep_until(until).await;
            self.rests_until = None;
        }
        loop {
            let state = match &mut self.state {
                Some(receiver) => receiver.borrow_and_update().clone(),
                None => return Ok(None),
            };
            if state.gone {
                return Ok(None);
            }
            let Some(head) = self.head(state.revision).await? else { return Ok(None) };
            if head.revision > state.revision {
                // Something was committed, and nobody here was told yet: what is shown next counts from there.
                self.realtime.stored(&self.key, head.revision);
                continue;
            }
            let is_stored = state.streaming.as_ref().is_some_and(|streaming| head.holds(&streaming.uid));
            if let Some(streaming) = &state.streaming
                && state.runs == 0
                && (is_stored || head.terminal)
            {
                // Whoever wrote it was not heard to say so.
                self.realtime.written(&self.key, &streaming.uid);
                continue;
            }
            let streaming = state.streaming.as_ref().filter(|streaming| !streaming.is_empty() && !is_stored);
            if let Some(frame) = self.frame(&head, streaming, state.sequence) {
                self.ended = head.terminal && streaming.is_none();
                self.rests_until = self.realtime.rest(frame.len() / AT_ONCE);
                return Ok(Some(frame));
            }
            let is_written = streaming.is_some();
            self.changed(state.runs > 0, is_written, head.revision).await?;
        }
    }

    fn frame(&mut self, head: &Head, streaming: Option<&Streaming>, sequence: i64) -> Option<Bytes> {
        let mut now = Seen {
            revision: head.revision,
            digest: head.digest,
            streaming: streaming.map(|s| (Arc::clone(&s.uid), s.length, s.calls_size)),
            lacks_message: false,
        };
        let before = self.seen.take();
        let frame = match streaming {
            _ if before.as_ref().is_some_and(|before| before.tells_the_same(&now)) => {
                now.lacks_message = before.is_some_and(|before| before.lacks_message);
                None
            }
            None => Some(head.frame(&self.room, sequence)),
            Some(streaming) => {
                let (frame, has_message) = self.growth(head, streaming, before.as_ref());
                now.lacks_message = !has_message;
                Some(frame)
            }
        };
        self.seen = Some(now);
        frame
    }

    /// What is new of a message on top of what was sent, and whether all of it is in the frame.
    fn growth(&self, head: &Head, streaming: &Streaming, before: Option<&Seen>) -> (Bytes, bool) {
        let before = before.filter(|before| before.revision == head.revision);
        let Some(before) = before.filter(|_| self.partial) else { return streaming.snapshot(head, &self.room) };
        match &before.streaming {
            Some((uid, from, calls))
                if *uid == streaming.uid && *calls == streaming.calls_size && !before.lacks_message =>
            {
                // Whoever was away for long is shown the whole.
                let delta = streaming.delta(*from, &self.room).filter(|delta| head.admits(delta));
                delta.map_or_else(|| streaming.snapshot(head, &self.room), |delta| (delta, true))
            }
            _ => streaming.partial(head, &self.room),
        }
    }

    async fn head(&self, revision: i64) -> Result<Option<Arc<Head>>> {
        let cell = {
            let mut slot = self.channel.head.lock().expect("lock");
            if slot.0 < revision {
                *slot = (revision, Arc::default());
            }
            Arc::clone(&slot.1)
        };
        let read = cell.get_or_try_init(|| async {
            match self.source.head().await {
                Ok(Some(head)) => Ok(Arc::new(head)),
                Ok(None) => Err(Error::new(Code::NOT_FOUND, "There is no such state any more.")),
                Err(error) => Err(error),
            }
        });
        match read.await {
            Ok(head) => {
                let mut slot = self.channel.head.lock().expect("lock");
                if Arc::ptr_eq(&slot.1, &cell) {
                    slot.0 = slot.0.max(head.revision);
                }
                Ok(Some(Arc::clone(head)))
            }
            Err(error) if error.code() == Code::NOT_FOUND => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the state may have changed; `is_written`: somebody elsewhere is in the middle of a message.
    async fn changed(&mut self, local: bool, is_written: bool, shown: i64) -> Result<()> {
        let Some(receiver) = &mut self.state else { return Ok(()) };
        if local {
            let _ = receiver.changed().await;
            return Ok(());
        }
        let is_trusted = self.line.as_ref().is_some_and(|line| line.borrow().is_trusted());
        let pause = match (is_trusted, is_written) {
            (true, false) => SELDOM,
            (true, true) => SILENT,
            (false, _) => POLL,
        };
        tokio::select! {
            _ = receiver.changed() => return Ok(()),
            () = moved(&mut self.line) => {}
            () = tokio::time::sleep(pause) => {}
        }
        match self.source.revision().await? {
            Some(revision) if revision != shown => self.realtime.stored(&self.key, revision),
            Some(_) => {}
            None => self.realtime.gone(&self.key),
        }
        Ok(())
    }
}

/// The line to other processes was cut, or is there again.
async fn moved(line: &mut Option<watch::Receiver<Line>>) {
    let has_moved = match line {
        Some(line) => line.changed().await.is_ok(),
        None => false,
    };
    if !has_moved {
        std::future::pending::<()>().await;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.state = None;
        self.realtime.release(&self.key, &self.channel);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Mutex};

    use futures_util::FutureExt;
    use platform_core::{AccountId, SystemClock, Timestamp};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::Live;

    /// A chat as the database holds it.
    struct Stored {
        revision: i64,
        messages: Vec<String>,
        /// What a client wrote, with the uid of a message in it.
        queued: Value,
    }

    struct Chat(Mutex<Stored>);

    #[async_trait]
    impl Source for Chat {
        async fn revision(&self) -> Result<Option<i64>> {
            Ok(Some(self.0.lock().expect("lock").revision))
        }

        async fn head(&self) -> Result<Option<Head>> {
            let stored = self.0.lock().expect("lock");
            let history: Vec<_> = stored.messages.iter().map(|uid| json!({"uid": uid})).collect();
            let fields = json!({"chatHistory": history, "pendingUserMessages": stored.queued});
            Ok(Some(Head::new(stored.revision, Timestamp(1), false, &fields).expect("JSON")))
        }
    }

    /// What one connection was sent.
    #[derive(Default)]
    struct Reader {
        last: i64,
        history: BTreeSet<String>,
        written: Option<String>,
    }

    impl Reader {
        fn read(&mut self, frame: &[u8]) {
            let text = std::str::from_utf8(frame).expect("UTF-8");
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            let id: i64 = field("id: ").parse().expect("a number");
            assert!(id > self.last, "ids rise: {id} after {}", self.last);
            self.last = id;
            let data: Value = serde_json::from_str(field("data: ")).expect("JSON");
            if let Some(history) = data["chatHistory"].as_array() {
                self.history =
                    history.iter().filter_map(|message| message["uid"].as_str()).map(str::to_owned).collect();
                self.written = None;
            }
            if let Some(uid) = data["streamingMessage"]["uid"].as_str() {
                assert!(!self.history.contains(uid), "{uid} is stored and still written");
                self.written = Some(uid.to_owned());
            }
        }
    }

    /// A run, and what it has stored and not yet said.
    struct Writing {
        live: Arc<Live>,
        stored: Option<i64>,
    }

    #[tokio::test]
    async fn a_message_is_shown_growing_though_a_client_has_written_its_uid_elsewhere() {
        let queued = json!([{"uid": "q", "content": {"message": "m-1"}, "metadata": {"uid": "m-1"}}]);
        let chat = Arc::new(Chat(Mutex::new(Stored { revision: 1, messages: Vec::new(), queued })));
        let realtime = Realtime::new(Arc::new(SystemClock), Duration::ZERO, None);
        let key = (AccountId::generate(), "c".into());
        let mut watcher = realtime.watch(key.clone(), chat.clone(), false);
        let live = realtime.open(key, 1, "m-1", 0);
        live.append("it grows");
        let mut reader = Reader::default();
        while let Some(frame) = watcher.next().now_or_never() {
            reader.read(&frame.expect("a state").expect("a frame"));
        }
        assert_eq!(reader.written.as_deref(), Some("m-1"));
    }

    proptest! {
        #[test]
        fn ids_rise_and_a_message_is_shown_once_whoever_stores_and_tells_in_whatever_order(
            steps in prop::collection::vec((0..8_u8, 0..2_usize), 1..60),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.expect("a runtime").block_on(async {
                let stored = Stored { revision: 1, messages: Vec::new(), queued: Value::Null };
                let chat = Arc::new(Chat(Mutex::new(stored)));
                let realtime = Realtime::new(Arc::new(SystemClock), Duration::ZERO, None);
                let key = (AccountId::generate(), "c".into());
                let mut connections = [false, true].map(|partial| {
                    (realtime.watch(key.clone(), chat.clone(), partial), Reader::default())
                });
                let (mut runs, mut named) = ([None, None], 0);
                let mut uid = || { named += 1; format!("m-{named}") };
                for (step, of) in steps {
                    let mut stored = chat.0.lock().expect("lock");
                    match (step, &mut runs[of]) {
                        (0, _) => stored.revision += 1,
                        (1, _) => realtime.changed(&key, stored.revision),
                        (2, run @ None) => {
                            let live = realtime.open(key.clone(), stored.revision, &uid(), 0);
                            *run = Some(Writing { live, stored: None });
                        }
                        (3 | 4, Some(Writing { live, stored: None })) => live.append("more "),
                        (5, Some(Writing { live, stored: by @ None })) => {
                            stored.revision = live.next_revision().max(stored.revision + 1);
                            stored.messages.push(live.uid());
                            *by = Some(stored.revision);
                        }
                        (6, Some(Writing { live, stored: by @ Some(_) })) => {
                            live.committed(by.take().expect("a revision"), &uid());
                        }
                        (7, run) => *run = None,
                        _ => {}
                    }
                    drop(stored);
                    for (watcher, reader) in &mut connections {
                        while let Some(frame) = watcher.next().now_or_never() {
                            reader.read(&frame.expect("a state").expect("a frame"));
                        }
                    }
                }
            });
        }
    }
}
