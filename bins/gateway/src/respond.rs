//! Answers of handlers.

use std::pin::Pin;

use actix_web::{
    HttpResponse,
    body::{BodyStream, SizedStream},
    http::{
        StatusCode,
        header::{self, HeaderName, HeaderValue},
    },
};
use bytes::Bytes;
use futures_util::Stream;
use platform_core::{Error, Result};
use serde::Serialize;
use serde_json::json;

/// What a handler answers.
pub(crate) struct Answer {
    pub status: u16,
    pub body: Body,
    ignored: Vec<String>,
    headers: Vec<(&'static str, String)>,
}

pub(crate) enum Body {
    Json(String),
    Text { kind: &'static str, text: String },
    Bytes { kind: &'static str, bytes: &'static [u8] },
    Events(Pin<Box<dyn Stream<Item = std::result::Result<Bytes, std::io::Error>>>>),
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

    /// The delete body.
    pub fn deleted(what: &str, id: &str) -> Result<Self> {
        Self::ok(&json!({"success": true, "message": format!("The {what} was deleted."), "deletedId": id}))
    }

    pub fn json(status: u16, record: &impl Serialize) -> Result<Self> {
        Ok(Self::raw_json(status, serde_json::to_string(record).map_err(Error::internal)?))
    }

    /// JSON that is text already.
    pub fn raw_json(status: u16, json: String) -> Self {
        Self { status, body: Body::Json(json), ignored: Vec::new(), headers: Vec::new() }
    }

    pub fn text(status: u16, kind: &'static str, text: String) -> Self {
        Self { status, body: Body::Text { kind, text }, ignored: Vec::new(), headers: Vec::new() }
    }

    pub fn file(kind: &'static str, bytes: &'static [u8]) -> Self {
        Self { status: 200, body: Body::Bytes { kind, bytes }, ignored: Vec::new(), headers: Vec::new() }
    }

    pub fn events(events: impl Stream<Item = std::result::Result<Bytes, std::io::Error>> + 'static) -> Self {
        Self { status: 200, body: Body::Events(Box::pin(events)), ignored: Vec::new(), headers: Vec::new() }
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Says which names of the request had no effect.
    #[must_use]
    pub fn ignoring(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.ignored.extend(names.into_iter().map(Into::into));
        self
    }

    pub fn into_response(mut self) -> HttpResponse {
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
                response.insert_header((header::CONTENT_TYPE, "application/json; charset=utf-8")).body(json)
            }
            Body::Text { kind, text } => response.insert_header((header::CONTENT_TYPE, kind)).body(text),
            Body::Bytes { kind, bytes } => response.insert_header((header::CONTENT_TYPE, kind)).body(SizedStream::new(
                bytes.len() as u64,
                futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(bytes))]),
            )),
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
