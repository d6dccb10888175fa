//! Bodies of requests: how they are read, and what they may cost while they come.

use std::time::Duration;

use actix_web::{
    error::PayloadError,
    http::{
        Method,
        header::{self, HeaderMap, HeaderName, HeaderValue},
    },
    web::Payload,
};
use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt, StreamExt};
use platform_core::{Code, Error, Result};
use tokio::task::yield_now;

use crate::{
    code,
    gate::{Place, SMALL_BODY, Whose},
    http::Http,
    route::Route,
};

/// A body is whole so long after its head (contract 00 §1.8).
const TIMEOUT: Duration = Duration::from_secs(30);

/// A body that comes in.
pub(crate) struct Incoming {
    payload: Payload,
    /// What came is no body of HTTP.
    is_broken: bool,
}

impl Incoming {
    pub fn new(payload: Payload) -> Self {
        Self { payload, is_broken: false }
    }

    pub async fn next(&mut self) -> Option<Result<Bytes, PayloadError>> {
        let chunk = self.payload.next().await;
        self.is_broken |= matches!(chunk, Some(Err(_)));
        chunk
    }
}

/// Whether a body comes as JSON, or none at all.
pub(crate) fn is_json_or_none(headers: &HeaderMap) -> bool {
    match text(headers, header::CONTENT_TYPE) {
        Some(kind) => is_json(&kind),
        None => {
            let length = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0");
            length && !headers.contains_key(header::TRANSFER_ENCODING)
        }
    }
}

pub(crate) fn wrong_kind() -> Error {
    Error::new(Code::UNSUPPORTED_MEDIA_TYPE, "Send the body as JSON, with `Content-Type: application/json`.")
}

/// Reads a body as its route takes it; `whose`: who holds its place meanwhile, and that of a large one until it is checked.
pub(crate) async fn read(
    http: &Http,
    route: &Route,
    whose: &Whose,
    headers: &HeaderMap,
    payload: &mut Incoming,
) -> Result<(Bytes, Option<Place>)> {
    refuse_encoding(headers)?;
    // What comes with a GET says nothing.
    let is_ignored = matches!(route.method, Method::GET);
    let limit = if is_ignored { SMALL_BODY } else { route.most_bytes.unwrap_or(http.config.max_json_bytes) };
    let is_read = is_ignored || route.is_raw || text(headers, header::CONTENT_TYPE).as_deref().is_some_and(is_json);
    let (body, place) = whole(http, is_read.then_some(limit), whose, headers, payload).await?;
    Ok((if is_ignored { Bytes::new() } else { body }, place))
}

/// Reads a body of at most so many bytes; `None` = it is of the wrong kind, unless there is none.
pub(crate) async fn whole(
    http: &Http,
    limit: Option<usize>,
    whose: &Whose,
    headers: &HeaderMap,
    payload: &mut Incoming,
) -> Result<(Bytes, Option<Place>)> {
    let declared = text(headers, header::CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
    let too_large = |actual| limit.map_or_else(wrong_kind, |limit| too_large(limit, actual));
    let limit = limit.unwrap_or(0);
    if declared.is_some_and(|length| length > limit) {
        return Err(too_large(declared));
    }
    // What asks for another protocol, of which there is none here, has no end but the one that it says.
    let is_endless = headers.contains_key(header::UPGRADE) && !headers.contains_key(header::TRANSFER_ENCODING);
    let most = if is_endless { declared.unwrap_or(0) } else { usize::MAX };
    let reading = async {
        let (mut body, mut places) = (BytesMut::new(), Unfinished::default());
        while body.len() < most
            && let Some(chunk) = places.next(http, whose, payload).await?
        {
            let length = body.len() + chunk.len();
            if length > limit {
                return Err(too_large(None));
            }
            if length > SMALL_BODY && places.large.is_none() {
                places.large = Some(http.gate.large_body(whose).await?);
            }
            body.extend_from_slice(&chunk);
        }
        body.truncate(most);
        Ok((body.freeze(), places.large))
    };
    let slow = |_| Error::new(code::REQUEST_TIMEOUT, "The body came too slowly.");
    tokio::time::timeout(TIMEOUT, reading).await.map_err(slow)?
}

/// Whether nothing more of a body comes; what of it is there already is read and thrown away.
pub(crate) async fn is_whole(payload: &mut Incoming) -> bool {
    // Its connection closes as soon as its answer is there.
    if payload.is_broken {
        return false;
    }
    let mut left = SMALL_BODY;
    for _ in 0..2 {
        while let Some(chunk) = payload.next().now_or_never() {
            let Some(chunk) = chunk else { return true };
            match chunk.ok().and_then(|chunk| left.checked_sub(chunk.len())) {
                Some(rest) => left = rest,
                None => return false,
            }
        }
        // What came together with the head is handed on meanwhile.
        yield_now().await;
    }
    false
}

/// The places of a body that is not there at once.
#[derive(Default)]
struct Unfinished {
    has_waited: bool,
    any: Option<Place>,
    large: Option<Place>,
}

impl Unfinished {
    async fn next(&mut self, http: &Http, whose: &Whose, payload: &mut Incoming) -> Result<Option<Bytes>> {
        let broken = |error| Error::new(Code::BAD_REQUEST, format!("The body broke off: {error}."));
        if self.any.is_none() {
            if let Some(chunk) = payload.next().now_or_never() {
                return chunk.transpose().map_err(broken);
            }
            // What came together with the head is handed on meanwhile.
            if !std::mem::replace(&mut self.has_waited, true) {
                yield_now().await;
                if let Some(chunk) = payload.next().now_or_never() {
                    return chunk.transpose().map_err(broken);
                }
            }
            self.any = Some(http.gate.body(whose).await?);
        }
        payload.next().await.transpose().map_err(broken)
    }
}

/// A body that is packed is never unpacked.
pub(crate) fn refuse_encoding(headers: &HeaderMap) -> Result<()> {
    let is_plain =
        |encoding: &HeaderValue| encoding.is_empty() || encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(header::CONTENT_ENCODING).all(is_plain) && headers.get_all(header::CONTENT_TYPE).count() <= 1 {
        return Ok(());
    }
    let message = "Send the body as it is, without Content-Encoding, and with one Content-Type.";
    Err(Error::new(Code::UNSUPPORTED_MEDIA_TYPE, message))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?").trim().to_lowercase())
}

fn is_json(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let is_json = parts.next() == Some("application/json");
    let charset = parts.find_map(|parameter| parameter.strip_prefix("charset="));
    is_json && charset.is_none_or(|charset| charset.trim_matches('"') == "utf-8")
}

pub(crate) fn too_large(limit: usize, actual: Option<usize>) -> Error {
    Error::new(Code::PAYLOAD_TOO_LARGE, format!("The body is larger than {limit} bytes."))
        .with("limitBytes", limit)
        .with_some("actualBytes", actual)
}
