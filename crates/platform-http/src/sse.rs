//! A watcher as a stream of server-sent events.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use platform_access::ProjectRole;
use platform_core::Result;
use platform_realtime::Watcher;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{bearer::Bearer, gate::StreamPlace, http::Http, request::Request};

const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");
const SERVER_ERROR: Bytes = Bytes::from_static(b"event: reconnect\ndata: {\"code\":\"SERVER_ERROR\"}\n\n");
const SHUTDOWN: Bytes = Bytes::from_static(b"event: reconnect\ndata: {\"code\":\"SHUTDOWN\"}\n\n");
/// A right that was taken away ends the stream after this at the latest.
const RIGHTS: Duration = Duration::from_secs(3);
/// A frame of more bytes is handed on in pieces: what was handed on is copied for each reader.
const PIECE: usize = 16 * 1024;

struct Connection {
    watcher: Watcher,
    /// What is left of the newest frame.
    rest: Bytes,
    _place: StreamPlace,
    http: Arc<Http>,
    bearer: Option<Bearer>,
    project: Option<String>,
    ends: Instant,
    spoke: Instant,
    judged: Instant,
    over: bool,
}

/// Frames as they come, keep-alives in between, until the state is terminal or time is over.
pub(crate) fn events(
    watcher: Watcher,
    place: StreamPlace,
    request: Request,
) -> impl Stream<Item = std::io::Result<Bytes>> {
    let Request { http, bearer, project, .. } = request;
    let now = Instant::now();
    let ends = now + http.config.stream_lifetime;
    let rest = Bytes::new();
    let (spoke, judged, over) = (now, now, false);
    let connection = Connection { watcher, rest, _place: place, http, bearer, project, ends, spoke, judged, over };
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
            let keep_alive = self.spoke + self.http.config.stream_keepalive;
            let wake = self.ends.min(keep_alive).min(self.judged + RIGHTS);
            // A reader that is always behind must not outrun the clock.
            if Instant::now() < self.ends.min(self.judged + RIGHTS) {
                tokio::select! {
                    biased;
                    () = self.http.closing.cancelled() => return Some(self.last(SHUTDOWN)),
                    frame = self.watcher.next() => match frame {
                        Ok(frame) => return frame,
                        Err(error) => {
                            warn!(%error, "A stream broke off.");
                            return Some(self.last(SERVER_ERROR));
                        }
                    },
                    () = sleep_until(wake) => {}
                }
            }
            let now = Instant::now();
            if now >= self.ends {
                return None;
            }
            if now >= keep_alive {
                return Some(KEEP_ALIVE);
            }
            self.judged = now;
            if let Err(error) = self.check_access().await
                && error.cause().is_none()
            {
                return None;
            }
        }
        None
    }

    /// Whether its caller still has the right to follow it.
    async fn check_access(&self) -> Result<()> {
        let Some(bearer) = &self.bearer else { return Ok(()) };
        let identity = bearer.identity(&self.http.auth).await?;
        match &self.project {
            Some(project) => self.http.access.reach(&identity.caller).await?.check(project, ProjectRole::Viewer),
            None => Ok(()),
        }
    }

    fn last(&mut self, frame: Bytes) -> Bytes {
        self.over = true;
        frame
    }
}
