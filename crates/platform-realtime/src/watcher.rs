use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use platform_core::{Code, Error, Result};
use tokio::sync::watch;

use crate::{
    Realtime,
    frame::{Head, Streaming},
    live::{Channel, Key, State},
    relay::Line,
};

/// How often the store is asked about a chat that another process runs.
const POLL: Duration = Duration::from_millis(500);
/// The same when the others say what they do: a word may have been lost.
const SELDOM: Duration = Duration::from_secs(5);
/// The same when they have fallen silent in the middle of a message.
const SILENT: Duration = Duration::from_secs(1);

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
    seen: Option<Seen>,
    /// The revision that was looked through for a message of another process, and that message.
    searched: Option<(i64, Arc<str>)>,
    ended: bool,
}

/// What this connection was last sent.
struct Seen {
    head: Arc<Head>,
    /// Message, bytes of its text, and of its tool calls.
    streaming: Option<(Arc<str>, usize, usize)>,
}

impl Seen {
    /// Nothing but `lastUpdatedAt` differs, which is no news by itself (contract 02 §7).
    fn tells_the_same(&self, other: &Self) -> bool {
        let (head, before) = (&self.head, &other.head);
        self.streaming == other.streaming
            && (head.revision == before.revision || head.open_object == before.open_object)
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
        let (state, seen, searched, ended) = (Some(state), None, None, false);
        Self { realtime, key, channel, state, source, line, partial, seen, searched, ended }
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
        loop {
            let state = match &mut self.state {
                Some(receiver) => receiver.borrow_and_update().clone(),
                None => return Ok(None),
            };
            if state.gone {
                return Ok(None);
            }
            let Some(head) = self.head(state.revision).await? else { return Ok(None) };
            let newer = head.revision > state.revision;
            if newer && state.streaming.as_ref().is_some_and(|streaming| !head.holds(&streaming.uid)) {
                // Something else was committed, and nobody here was told yet.
                self.realtime.stored(&self.key, head.revision);
                continue;
            }
            if state.runs == 0
                && let Some(streaming) = &state.streaming
                && self.is_stored(&head, streaming)
            {
                // Whoever wrote it was not heard to say so.
                self.realtime.written(&self.key, &streaming.uid);
                continue;
            }
            // A newer commit already holds what is being written.
            let streaming = state.streaming.as_ref().filter(|streaming| !streaming.is_empty() && !newer);
            if let Some(frame) = self.frame(&head, streaming) {
                self.ended = head.terminal && streaming.is_none();
                return Ok(Some(frame));
            }
            let is_written = streaming.is_some();
            self.changed(state.runs > 0, is_written, head.revision).await?;
        }
    }

    /// Whether the store holds the message that another process was heard to write.
    fn is_stored(&mut self, head: &Head, streaming: &Streaming) -> bool {
        if head.terminal {
            return true;
        }
        let is_new = self.searched.as_ref().is_none_or(|(of, uid)| *of != head.revision || *uid != streaming.uid);
        if is_new {
            self.searched = Some((head.revision, Arc::clone(&streaming.uid)));
        }
        is_new && head.holds(&streaming.uid)
    }

    fn frame(&mut self, head: &Arc<Head>, streaming: Option<&Streaming>) -> Option<Bytes> {
        let now =
            Seen { head: Arc::clone(head), streaming: streaming.map(|s| (Arc::clone(&s.uid), s.length, s.calls_size)) };
        let is_known = self.seen.as_ref().is_some_and(|before| before.tells_the_same(&now));
        let before = self.seen.replace(now);
        if is_known {
            return None;
        }
        let before = before.as_ref();
        let Some(streaming) = streaming else { return Some(head.frame()) };
        let same_head = before.is_some_and(|before| before.head.revision == head.revision);
        if !self.partial || !same_head {
            return Some(streaming.snapshot(head));
        }
        match before.and_then(|before| before.streaming.as_ref()) {
            Some((uid, from, calls)) if *uid == streaming.uid && *calls == streaming.calls_size => {
                // Whoever was away for long is shown the whole.
                let delta = streaming.delta(*from);
                Some(if head.admits(&delta) { delta } else { streaming.snapshot(head) })
            }
            Some(_) => Some(streaming.partial(head)),
            None => Some(streaming.snapshot(head)),
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
