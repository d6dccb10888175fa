//! Frames as a stream of server-sent events.

use std::{pin::Pin, sync::Arc, time::Duration};

use actix_web::http::{Method, header::HeaderMap};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use platform_access::Reference;
use platform_auth::Identity;
use platform_core::Result;
use platform_realtime::Watcher;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::warn;

use crate::{
    access,
    bearer::Bearer,
    gate::{StreamPlace, Whose},
    http::Http,
};

const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");
const SERVER_ERROR: Bytes = Bytes::from_static(b"event: reconnect\ndata: {\"code\":\"SERVER_ERROR\"}\n\n");
const SHUTDOWN: Bytes = Bytes::from_static(b"event: reconnect\ndata: {\"code\":\"SHUTDOWN\"}\n\n");
/// A credential that ends, ends the stream after this at the latest; a record that is out of reach after that.
const RIGHTS: Duration = Duration::from_secs(1);
const REACH: Duration = Duration::from_secs(3);
/// What ends by itself is not waited for longer than that.
const LONGEST: Duration = Duration::from_hours(1);
/// A frame of more bytes is handed on in pieces: what was handed on is copied for each reader.
const PIECE: usize = 4 * 1024;

type Frames = Pin<Box<dyn Stream<Item = Result<Bytes>>>>;

/// One event of a stream.
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// What a reader that comes back says it heard last.
    pub id: Option<String>,
    /// JSON, or nothing.
    pub data: String,
}

impl Event {
    /// One that has no id.
    pub fn new(name: &'static str, data: &Value) -> Self {
        Self { name, id: None, data: data.to_string() }
    }

    fn frame(&self) -> String {
        let Self { name, id, data } = self;
        let id = id.as_ref().map(|id| format!("id: {id}\n")).unwrap_or_default();
        format!("event: {name}\n{id}data: {data}\n\n")
    }
}

/// What the reader of a stream is told when it ends.
enum Last {
    /// Why, when it is not over.
    Reason,
    /// This.
    Frame(Bytes),
    Nothing,
}

struct Connection {
    frames: Frames,
    last: Last,
    /// What is left of the newest frame.
    rest: Bytes,
    /// What ends by itself has none, and its reader could not come back to it.
    place: Option<StreamPlace>,
    of: Follower,
    ends: Instant,
    spoke: Instant,
    judged: Instant,
    over: bool,
}

/// Frames of a watcher as they come, until the state is terminal or time is over.
pub(crate) fn events(watcher: Watcher, place: StreamPlace, of: Follower) -> impl Stream<Item = std::io::Result<Bytes>> {
    let frames =
        stream::unfold(
            watcher,
            |mut watcher| async move { watcher.next().await.transpose().map(|frame| (frame, watcher)) },
        );
    let lifetime = of.http.config.stream_lifetime;
    connect(Box::pin(frames), Last::Reason, (Some(place), lifetime), of)
}

/// Events as they come, as long as whoever asked has the right to them, and the last one.
pub(crate) fn named(
    events: Pin<Box<dyn Stream<Item = Event>>>,
    last: Option<Event>,
    place: Option<StreamPlace>,
    of: Follower,
) -> impl Stream<Item = std::io::Result<Bytes>> {
    let (http, whose) = (Arc::clone(&of.http), of.whose.clone());
    let frames = events.map(move |event| Ok(http.gate.unread_event(&whose, event.frame())));
    let last = last.map_or(Last::Nothing, |event| Last::Frame(event.frame().into()));
    // Whoever listens to events does not come back by itself, as those do who follow a state.
    connect(Box::pin(frames), last, (place, LONGEST), of)
}

/// Who follows a stream, and what gives them the right.
pub struct Follower {
    pub(crate) http: Arc<Http>,
    pub(crate) bearer: Option<Bearer>,
    pub(crate) whose: Whose,
    /// What the credential stood for when that was last judged.
    pub(crate) identity: watch::Sender<Option<Arc<Identity>>>,
    pub(crate) named: Vec<Reference>,
    /// What was asked for, and from where.
    pub(crate) method: Method,
    pub(crate) asked: String,
    pub(crate) origin: HeaderMap,
    /// When it was last looked at what it reaches.
    pub(crate) looked: Instant,
}

impl Follower {
    /// Who follows, whenever the credential stands for something else than before; without end.
    pub fn identities(&self) -> impl Stream<Item = Arc<Identity>> + use<> {
        stream::unfold(self.identity.subscribe(), |mut identity| async move {
            identity.changed().await.ok()?;
            let now = identity.borrow_and_update().clone()?;
            Some((now, identity))
        })
    }

    /// Whether its caller still has the right to follow it: the credential, that it opens the route, and that it reaches
    /// what the path names.
    async fn check_access(&mut self) -> Result<()> {
        let Some(bearer) = &self.bearer else { return Ok(()) };
        let identity = bearer.identity(&self.http.auth).await?;
        let is_other = self.identity.send_if_modified(|before| {
            let is_other = before.as_deref() != Some(&*identity);
            *before = Some(Arc::clone(&identity));
            is_other
        });
        let resource = self.http.table.find(&self.asked);
        if let Some(route) = resource.and_then(|resource| resource.route(&self.method)) {
            access::permit(&identity, route, &route.main_path(&self.asked), &self.origin)?;
        }
        if !is_other && self.looked.elapsed() < REACH {
            return Ok(());
        }
        self.http.access.check_still(&identity.caller, &self.named).await?;
        self.looked = Instant::now();
        Ok(())
    }
}

/// Frames, keep-alives in between.
fn connect(
    frames: Frames,
    last: Last,
    (place, lifetime): (Option<StreamPlace>, Duration),
    of: Follower,
) -> impl Stream<Item = std::io::Result<Bytes>> {
    let now = Instant::now();
    let ends = now + lifetime;
    let rest = Bytes::new();
    let (spoke, judged, over) = (now, now, false);
    let connection = Connection { frames, last, rest, place, of, ends, spoke, judged, over };
    stream::unfold(connection, |mut connection| async move {
        let mut piece = std::mem::take(&mut connection.rest);
        if piece.is_empty() {
            piece = connection.next().await?;
        }
        connection.rest = piece.split_off(piece.len().min(PIECE));
        connection.spoke = Instant::now();
        Some((Ok(piece), connection))
    })
}

impl Connection {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.over {
            let keep_alive = self.spoke + self.of.http.config.stream_keepalive;
            let wake = self.ends.min(keep_alive).min(self.judged + RIGHTS);
            // A reader that is always behind must not outrun the clock.
            if Instant::now() < self.ends.min(self.judged + RIGHTS) {
                tokio::select! {
                    biased;
                    () = self.of.http.closing.cancelled(), if self.place.is_some() => return self.end(Some(SHUTDOWN)),
                    frame = self.frames.next() => match frame {
                        Some(Ok(frame)) => return Some(frame),
                        None => return self.end(None),
                        Some(Err(error)) => {
                            warn!(%error, "A stream broke off.");
                            return self.end(Some(SERVER_ERROR));
                        }
                    },
                    () = sleep_until(wake) => {}
                }
            }
            let now = Instant::now();
            if now >= self.ends {
                return self.end(None);
            }
            if now >= keep_alive {
                return Some(KEEP_ALIVE);
            }
            self.judged = now;
            if let Err(error) = self.of.check_access().await
                && error.is_refusal()
            {
                return self.end(None);
            }
        }
        None
    }

    /// The last frame; `reason`: why it ends that is not over.
    fn end(&mut self, reason: Option<Bytes>) -> Option<Bytes> {
        self.over = true;
        match std::mem::replace(&mut self.last, Last::Nothing) {
            Last::Reason => reason,
            Last::Frame(frame) => Some(frame),
            Last::Nothing => None,
        }
    }
}
