//! Answers of handlers.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use actix_web::{
    HttpResponse,
    body::{BodySize, BodyStream, MessageBody, SizedStream},
    http::{
        StatusCode,
        header::{self, HeaderName, HeaderValue},
    },
};
use bytes::Bytes;
use futures_util::{
    Stream, StreamExt,
    future::ready,
    stream::{once, try_unfold},
};
use platform_core::{Error, MAX_LISTED, Result};
use platform_realtime::Watcher;
use serde::Serialize;
use serde_json::json;
use tracing::warn;

use crate::{
    bounded::bounded,
    gate::{Room, StreamPlace},
    sse::{self, Event, Follower},
};

/// An answer is handed on in pieces of this many bytes.
const PIECE: usize = 16 * 1024;

/// A list without pages that is made item by item.
pub struct List {
    json: String,
    items: usize,
    total: usize,
}

impl List {
    /// So many items there are in all.
    pub fn of(total: usize) -> Self {
        Self { json: String::new(), items: 0, total }
    }

    /// One item more; `false` when the list is full without it.
    pub fn push(&mut self, item: &impl Serialize) -> Result<bool> {
        let item = serde_json::to_string(item).map_err(Error::internal)?;
        if self.items > 0 && self.json.len() + item.len() > MAX_LISTED {
            return Ok(false);
        }
        self.json.push(if self.items == 0 { '[' } else { ',' });
        self.json.push_str(&item);
        self.items += 1;
        Ok(true)
    }

    /// 200; where items are left out it says how many there are.
    pub fn into_answer(mut self) -> Answer {
        self.json.push_str(if self.items == 0 { "[]" } else { "]" });
        let answer = Answer::raw_json(200, self.json);
        if self.items < self.total { answer.header("x-total-count", self.total.to_string()) } else { answer }
    }
}

/// What a handler answers.
pub struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Body,
    /// Where a large answer is counted until it is read.
    room: Room,
    /// A list of it is no page of a longer one.
    is_whole: bool,
    ignored: Vec<String>,
    headers: Vec<(&'static str, String)>,
    /// What whoever repeats the request under its idempotency key is told.
    pub(crate) replay: Replay,
}

/// What is told to whoever repeats a request.
pub(crate) enum Replay {
    /// The answer.
    Same,
    /// Nothing: it is done again.
    Nothing,
    /// This JSON.
    Other(String),
}

pub(crate) enum Body {
    Json(String),
    Text {
        kind: &'static str,
        text: String,
    },
    Bytes {
        kind: &'static str,
        bytes: &'static [u8],
    },
    /// Of known length, made as its reader takes it; the media type is among the headers.
    Content {
        length: u64,
        bytes: Pin<Box<dyn Stream<Item = std::io::Result<Bytes>>>>,
    },
    /// JSON that is made as its reader takes it.
    Paged(Pin<Box<dyn Stream<Item = std::result::Result<Bytes, std::io::Error>>>>),
    Events(Pin<Box<dyn Stream<Item = std::result::Result<Bytes, std::io::Error>>>>),
}

impl Body {
    pub fn empty() -> Self {
        Self::Text { kind: "text/plain; charset=utf-8", text: String::new() }
    }
}

/// An answer that is handed on as its reader takes it: what is handed on is copied.
struct Pieces {
    rest: Bytes,
    _room: Room,
}

impl MessageBody for Pieces {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.rest.len() as u64)
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Bytes, Infallible>>> {
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        Poll::Ready((length > 0).then_some(Ok(piece)))
    }
}

/// A record in JSON with a list as its last field.
fn paged<T: AsRef<str> + 'static>(
    record: &str,
    field: &str,
    pages: impl Stream<Item = Result<Vec<T>>> + 'static,
) -> impl Stream<Item = std::result::Result<Bytes, std::io::Error>> + 'static {
    let record = record.strip_suffix('}').unwrap_or(record);
    let begins = Bytes::from(format!("{record},\"{field}\":["));
    let items = try_unfold((Box::pin(pages), ""), |(mut pages, mut between)| async move {
        let items = pages.next().await.transpose().map_err(|error| {
            warn!(%error, "A large record could not be read to its end; its answer was cut off.");
            std::io::Error::other("cut off")
        })?;
        let mut text = String::new();
        for item in items.iter().flatten() {
            text.push_str(between);
            text.push_str(item.as_ref());
            between = ",";
        }
        Ok(items.map(|_| (Bytes::from(text), (pages, between))))
    });
    once(ready(Ok(begins))).chain(items).chain(once(ready(Ok(Bytes::from_static(b"]}")))))
}

impl Answer {
    /// 200 with a record.
    pub fn ok(record: &impl Serialize) -> Result<Self> {
        Self::json(200, record)
    }

    /// 201 with a record.
    pub fn created(record: &impl Serialize) -> Result<Self> {
        Self::json(201, record)
    }

    /// 200 with a record; of a large one what `pages` has stands in `field`, as JSON texts, and is read as its reader
    /// takes it.
    pub fn with_pages<T: AsRef<str> + 'static>(
        record: &impl Serialize,
        field: &'static str,
        pages: Option<impl Stream<Item = Result<Vec<T>>> + 'static>,
    ) -> Result<Self> {
        let mut answer = Self::ok(record)?;
        if let (Some(pages), Body::Json(json)) = (pages, &answer.body) {
            answer.body = Body::Paged(Box::pin(paged(json, field, pages)));
        }
        Ok(answer)
    }

    /// The delete body.
    pub fn deleted(what: &str, id: &str) -> Result<Self> {
        Self::ok(&json!({"success": true, "message": format!("The {what} was deleted."), "deletedId": id}))
    }

    /// A record with a status.
    pub fn json(status: u16, record: &impl Serialize) -> Result<Self> {
        Ok(Self::raw_json(status, serde_json::to_string(record).map_err(Error::internal)?))
    }

    /// JSON that is text already.
    pub fn raw_json(status: u16, json: String) -> Self {
        Self::new(status, Body::Json(json))
    }

    /// Text of a media type.
    pub fn text(status: u16, kind: &'static str, text: String) -> Self {
        Self::new(status, Body::Text { kind, text })
    }

    /// No more than a status.
    pub fn empty(status: u16) -> Self {
        Self::new(status, Body::empty())
    }

    /// A file that is part of the program.
    pub fn file(kind: &'static str, bytes: &'static [u8]) -> Self {
        Self::new(200, Body::Bytes { kind, bytes })
    }

    /// 200 with bytes that are saved under a name.
    pub fn download(kind: &'static str, name: &str, bytes: Bytes) -> Self {
        let plain: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_. ".contains(c) { c } else { '_' }).collect();
        let body = Body::Content { length: bytes.len() as u64, bytes: Box::pin(once(ready(Ok(bytes)))) };
        let answer = Self::new(200, body).header("content-type", kind);
        answer.header("content-disposition", format!("attachment; filename=\"{plain}\""))
    }

    /// What a watcher sees, as server-sent events, until it is over or its reader has lost the right to it.
    pub fn watched(watcher: Watcher, place: StreamPlace, follower: Follower) -> Self {
        Self::new(200, Body::Events(Box::pin(sse::events(watcher, place, follower))))
    }

    /// Server-sent events as they come, until they end or their reader has lost the right to them, and a last one.
    pub fn events(
        events: Pin<Box<dyn Stream<Item = Event>>>,
        last: Option<Event>,
        place: Option<StreamPlace>,
        follower: Follower,
    ) -> Self {
        Self::new(200, Body::Events(Box::pin(sse::named(events, last, place, follower))))
    }

    pub(crate) fn new(status: u16, body: Body) -> Self {
        Self {
            status,
            body,
            room: Room::default(),
            is_whole: false,
            ignored: Vec::new(),
            headers: Vec::new(),
            replay: Replay::Same,
        }
    }

    /// Whoever repeats the request has it done again.
    #[must_use]
    pub fn not_kept(mut self) -> Self {
        self.replay = Replay::Nothing;
        self
    }

    /// Whoever repeats the request is told this: what secrets the answer shows is shown once.
    pub fn kept_as(mut self, record: &impl Serialize) -> Result<Self> {
        self.replay = Replay::Other(serde_json::to_string(record).map_err(Error::internal)?);
        Ok(self)
    }

    /// A header more.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Says which version of its record it is (contract 00 §6).
    #[must_use]
    pub fn etag(self, version: i64) -> Self {
        self.header("etag", format!("\"{version}\""))
    }

    /// Says which names of the request had no effect.
    #[must_use]
    pub fn ignoring(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.ignored.extend(names.into_iter().map(Into::into));
        self
    }

    /// All of a list, however long: it is no page of a longer one.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// A list within its bound; the answer has the room that `hold` gives for so many bytes, if any.
    pub(crate) fn bounded(mut self, hold: impl FnOnce(usize) -> Result<Room>) -> Result<Self> {
        if matches!(self.body, Body::Paged(_)) {
            return Ok(Self { room: hold(MAX_LISTED)?, ..self });
        }
        let Body::Json(json) = self.body else { return Ok(self) };
        let (json, total) = if self.is_whole { (json, None) } else { bounded(json)? };
        if let Some(total) = total {
            self.headers.push(("x-total-count", total.to_string()));
        }
        Ok(Self { room: hold(json.len())?, body: Body::Json(json), ..self })
    }

    pub(crate) fn into_response(mut self) -> HttpResponse {
        let mut response = HttpResponse::build(StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK));
        if !self.ignored.is_empty() {
            self.headers.push(("x-ignored-fields", self.ignored.join(",")));
        }
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.insert_header((HeaderName::from_static(name), value));
            }
        }
        match self.body {
            Body::Json(json) => {
                response.insert_header((header::CONTENT_TYPE, "application/json; charset=utf-8"));
                if json.len() <= PIECE {
                    return response.body(json);
                }
                response.body(Pieces { rest: json.into(), _room: self.room })
            }
            Body::Text { kind, text } => response.insert_header((header::CONTENT_TYPE, kind)).body(text),
            Body::Bytes { kind, bytes } => response.insert_header((header::CONTENT_TYPE, kind)).body(SizedStream::new(
                bytes.len() as u64,
                futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(bytes))]),
            )),
            Body::Content { length, bytes } => response.body(SizedStream::new(length, bytes)),
            Body::Paged(pages) => {
                let room = self.room;
                let pages = pages.inspect(move |_| {
                    let _held = &room;
                });
                response
                    .insert_header((header::CONTENT_TYPE, "application/json; charset=utf-8"))
                    .body(BodyStream::new(pages))
            }
            // Whoever reads to the end must not wait for a connection that nothing more comes on.
            Body::Events(events) => response
                .force_close()
                .insert_header((header::CONTENT_TYPE, "text/event-stream; charset=utf-8"))
                .insert_header((header::CACHE_CONTROL, "no-cache, no-transform"))
                .insert_header(("x-accel-buffering", "no"))
                .body(BodyStream::new(events)),
        }
    }
}
