//! Live state between processes, over NATS: hints that may be lost, never the truth.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use platform_core::{Timestamp, spawn};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use crate::Key;

/// Words that wait to be sent; what is more is dropped, and whoever misses it asks again.
const OUTGOING: usize = 16_384;
/// A start waits so long for the server before it says that it is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the server is asked whether it is there; three questions without an answer, and it is away.
const PING: Duration = Duration::from_secs(1);
/// After the line was cut, others may find their way back later than this process: so long they may not be heard.
const DOUBT: Duration = Duration::from_secs(10);
/// Whoever runs something hears here that somebody watches.
const ASK: &str = "platform.ask";

/// What processes tell each other about one chat or thread.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "camelCase")]
pub(crate) enum Word {
    /// A run begins in the process `by`: whoever watches asks it.
    Begun { by: String },
    /// The store holds this revision.
    Stored { revision: i64 },
    /// A run has stored what it wrote.
    Committed { revision: i64 },
    /// What is written on top of a revision: more of its text, `from` bytes on.
    Written { revision: i64, sequence: i64, at: Timestamp, uid: String, from: usize, text: String, tool_calls: String },
    /// Nothing is written any more.
    Ended,
    /// It was deleted.
    Gone,
}

/// How the line is, and since when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    pub is_up: bool,
    since: Instant,
    /// It was never cut.
    is_first: bool,
}

impl Line {
    /// Nothing that others say is lost.
    pub fn is_trusted(&self) -> bool {
        self.is_up && (self.is_first || self.since.elapsed() > DOUBT)
    }
}

/// The line to the other processes.
pub struct Relay {
    client: Client,
    /// Name of this process on the line.
    pub(crate) process: String,
    outgoing: mpsc::Sender<(String, Vec<u8>)>,
    line: watch::Receiver<Line>,
}

impl Relay {
    /// Connects to servers such as `nats://user:password@host:4222`, separated by commas, and keeps trying while none
    /// answers; `process`: a name no other process has. An error: the addresses cannot be read.
    pub async fn connect(servers: &str, process: String) -> Result<Self, String> {
        let servers = servers.split(',').map(|server| server.trim().parse::<ServerAddr>());
        let servers = servers.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        let (told, mut line) = watch::channel(Line { is_up: false, since: Instant::now(), is_first: true });
        let told = Arc::new(told);
        let on_event = move |event: Event| {
            let told = Arc::clone(&told);
            async move {
                match event {
                    Event::Connected => {
                        info!("NATS connects the processes: what one writes is watched on all.");
                        told.send_modify(|line| *line = Line { is_up: true, since: Instant::now(), ..*line });
                    }
                    Event::Disconnected | Event::Closed => {
                        warn!(
                            "NATS is away: what other processes write is followed through the store until it is back."
                        );
                        told.send_replace(Line { is_up: false, since: Instant::now(), is_first: false });
                    }
                    other => debug!(event = %other, "NATS has something to say."),
                }
            }
        };
        let options = ConnectOptions::new().name("platform").no_echo().retry_on_initial_connect();
        let options = options.ping_interval(PING).connection_timeout(CONNECT_TIMEOUT).event_callback(on_event);
        let client = options.connect(servers).await.map_err(|error| error.to_string())?;
        if timeout(CONNECT_TIMEOUT, line.wait_for(|line| line.is_up)).await.is_err() {
            warn!("NATS does not answer: what other processes write is followed through the store until it does.");
        }
        let (outgoing, words) = mpsc::channel(OUTGOING);
        spawn("relay", send(client.clone(), words));
        Ok(Self { client, process, outgoing, line })
    }

    /// Whether the other processes can be heard now, and when that changes.
    pub(crate) fn line(&self) -> watch::Receiver<Line> {
        self.line.clone()
    }

    /// Says something to all who watch.
    pub(crate) fn say(&self, key: &Key, word: &Word) {
        self.put(subject(key), word);
    }

    /// Says to whoever runs it, or to the process `by`, that somebody watches.
    pub(crate) fn ask(&self, key: &Key, by: Option<&str>) {
        let subject = by.map_or_else(|| ASK.to_owned(), |by| format!("{ASK}.{by}"));
        self.put(subject, &(key.0.as_str(), &*key.1));
    }

    fn put(&self, subject: String, word: &impl Serialize) {
        // Whoever finds back asks for what is then.
        if !self.line.borrow().is_up {
            return;
        }
        if let Ok(json) = serde_json::to_vec(word) {
            let _ = self.outgoing.try_send((subject, json));
        }
    }

    /// What is said about one chat or thread.
    pub(crate) async fn listen(&self, key: &Key) -> Option<async_nats::Subscriber> {
        self.client.subscribe(subject(key)).await.ok()
    }

    /// Questions of all processes, and those that are for this one.
    pub(crate) async fn questions(&self) -> Option<[async_nats::Subscriber; 2]> {
        let own = format!("{ASK}.{}", self.process);
        Some([self.client.subscribe(ASK).await.ok()?, self.client.subscribe(own).await.ok()?])
    }
}

async fn send(client: Client, mut words: mpsc::Receiver<(String, Vec<u8>)>) {
    while let Some((subject, word)) = words.recv().await {
        if let Err(error) = client.publish(subject, word.into()).await {
            debug!(%error, "A word to the other processes was lost.");
        }
    }
}

/// Who may not find a chat must not learn its name from a subject.
fn subject(key: &Key) -> String {
    let name = format!("{}/{}", key.0.as_str(), key.1);
    format!("platform.live.{}", URL_SAFE_NO_PAD.encode(digest(&SHA256, name.as_bytes())))
}
