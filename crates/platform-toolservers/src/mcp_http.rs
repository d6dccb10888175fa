//! HTTP to MCP servers as the SDK's own client speaks it, except that the memory which an answer takes is bounded before
//! it is read: the SDK bounds its bytes alone.

use std::{
    collections::HashMap,
    future::ready,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use platform_core::{memory_of, parse};
use platform_egress::{
    HttpClient, HttpError, HttpResponse,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};
use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientRequest, ErrorData, GetMeta, JsonRpcError, JsonRpcMessage, JsonRpcRequest,
        ProgressToken, RequestId, ServerJsonRpcMessage, ServerResult,
    },
    transport::{
        common::http_header::{EVENT_STREAM_MIME_TYPE, HEADER_SESSION_ID, JSON_MIME_TYPE},
        streamable_http_client::{
            AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpClient,
            StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};
use sse_stream_of_rmcp::{Sse, SseStream};

use crate::mcp_updates::UpdateListener;

type Error = StreamableHttpError<HttpError>;
type Headers = HashMap<HeaderName, HeaderValue>;
/// JSON as it is to be read; `None`: as it is.
type Mend = fn(&[u8]) -> Option<Vec<u8>>;

/// An answer or an event of a server that says nothing else.
const MAX_BYTES: usize = 10 << 20;
/// The events of one answer together.
const MAX_STREAMED: usize = 2 * MAX_BYTES;
/// Memory that the values of an answer or event may take.
const MAX_VALUES: usize = 32 << 20;
/// A longer answer takes long enough to read that others would wait for it, in bytes.
const SHORT: usize = 64 << 10;
/// All tools of a server together, in bytes.
pub(crate) const MAX_LIST_BYTES: usize = 1 << 20;
/// Kinds of the parts of a result (MCP, "Tool Result").
const KINDS_OF_PARTS: [&str; 5] = ["text", "image", "audio", "resource", "resource_link"];
/// What is read of an answer that refuses.
const MAX_REFUSAL: usize = 64 << 10;
/// Requests of a server, each of which is answered, in a stream; so many within that time.
const MAX_ASKED: (usize, Duration) = (16, Duration::from_secs(10));
/// A stream that ended is opened again after what its server says, within these milliseconds.
const REOPENS_AFTER_MS: (u64, u64) = (1000, 300_000);
/// How servers say with 400 that they know a session no longer, where the specification has 404.
const SESSION_IS_OVER: [&str; 10] = [
    "no valid session",
    "invalid session",
    "invalid or expired session",
    "session not found",
    "session id not found",
    "session expired",
    "session has expired",
    "session does not exist",
    "unknown session",
    "no such session",
];

/// A client of one MCP server.
#[derive(Clone)]
pub(crate) struct McpHttp(pub HttpClient);

impl StreamableHttpClient for McpHttp {
    type Error = HttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Error> {
        self.post_message_with_max_sse_event_size(uri, message, session, token, headers, MAX_BYTES).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        most: usize,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let mut sent: HeaderMap = headers.into_iter().collect();
        sent.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        if let Some(session) = session.as_ref().and_then(|session| HeaderValue::from_str(session).ok()) {
            sent.insert(HeaderName::from_static("mcp-session-id"), session);
        }
        let request = self.0.post(uri.as_ref()).headers(sent);
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let (asked, progress) = match &message {
            JsonRpcMessage::Request(sent) => (Some(sent.id.clone()), sent.request.get_meta().get_progress_token()),
            _ => (None, None),
        };
        let answer = request.json(&message).send().await.map_err(Error::Client)?;
        let status = answer.status().as_u16();
        let (discovers, mend) = reading(&message, session.is_some());
        match (status, text(&answer, WWW_AUTHENTICATE.as_str())) {
            (401, Some(challenge)) => return Err(Error::AuthRequired(AuthRequiredError::new(challenge))),
            (403, Some(challenge)) => {
                return Err(Error::InsufficientScope(InsufficientScopeError::new(challenge, None)));
            }
            (202 | 204, _) if discovers => return Ok(undiscovered(asked, "it was accepted")),
            (202 | 204, _) if asked.is_some() => return Err(unanswered(status)),
            (202 | 204, _) => return Ok(StreamableHttpPostResponse::Accepted),
            (404, _) if session.is_some() => return Err(Error::SessionExpired),
            (200..300, _) => {}
            _ => return refused(asked, (session.is_some(), discovers), answer).await,
        }
        let (kind, session) = (text(&answer, CONTENT_TYPE.as_str()), text(&answer, HEADER_SESSION_ID));
        let is = |expected| kind.as_ref().is_some_and(|kind| kind.to_ascii_lowercase().starts_with(expected));
        if is(EVENT_STREAM_MIME_TYPE) {
            let listener = UpdateListener::of(&message);
            let mut left = MAX_STREAMED;
            let bytes = bounded(answer.bytes_stream(), most).map(move |chunk| {
                let chunk = chunk?;
                left = left
                    .checked_sub(chunk.len())
                    .ok_or_else(|| io::Error::other(format!("an answer has more than {MAX_STREAMED} bytes")))?;
                Ok::<_, io::Error>(chunk)
            });
            let events = checked(SseStream::from_bytes_stream(bytes));
            let events =
                events.try_filter(move |event| ready(!is_of_another(event, asked.as_ref(), progress.as_ref())));
            let events = events.map_ok(move |event| {
                let whole = event.data.as_ref().and_then(|data| mend(data.as_bytes()));
                match whole.and_then(|whole| String::from_utf8(whole).ok()) {
                    Some(whole) => Sse { data: Some(whole), ..event },
                    None => event,
                }
            });
            let events = events.inspect_ok(move |event| {
                if let (Some(listener), Some(data)) = (&listener, &event.data) {
                    listener.heard(data);
                }
            });
            return Ok(StreamableHttpPostResponse::Sse(events.boxed(), session));
        }
        // What wants no answer may get one that says nothing.
        let is_question = matches!(message, JsonRpcMessage::Request(_));
        if !is(JSON_MIME_TYPE) && !is_question {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !is(JSON_MIME_TYPE) && discovers {
            return Ok(undiscovered(asked, "the answer is no JSON"));
        }
        if !is(JSON_MIME_TYPE) {
            return Err(Error::UnexpectedContentType(kind));
        }
        let body = whole(answer, most).await?;
        let is_short = body.len() < SHORT;
        let read = move || {
            check_values(&body).map_err(serde::de::Error::custom)?;
            parse(mend(&body).as_deref().unwrap_or(&body))
        };
        let read = if is_short { read() } else { tokio::task::spawn_blocking(read).await? };
        match read {
            Ok(JsonRpcMessage::Response(answer)) if Some(&answer.id) != asked.as_ref() => {
                Err(Error::UnexpectedServerResponse("an answer to another request".into()))
            }
            // Whatever it names, it is the answer to this.
            Ok(JsonRpcMessage::Error(error)) if is_question => {
                Ok(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error.error, asked), session))
            }
            Ok(JsonRpcMessage::Response(answer))
                if discovers && !matches!(answer.result, ServerResult::DiscoverResult(_)) =>
            {
                Ok(undiscovered(asked, "the answer is another"))
            }
            Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
            Err(error) if discovers => Ok(undiscovered(asked, &error.to_string())),
            Err(_) if !is_question => Ok(StreamableHttpPostResponse::Accepted),
            Err(error) => Err(Error::Deserialize(error)),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), Error> {
        self.0.delete_session(uri, session, token, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        self.get_stream_with_max_sse_event_size(uri, session, last_event, token, headers, MAX_BYTES).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
        most: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        let events = self.0.get_stream_with_max_sse_event_size(uri, session, last_event, token, headers, most).await?;
        Ok(checked(events).boxed())
    }
}

/// Whether the answer to a message tells what a server can do, and how it becomes one that the SDK takes.
fn reading(message: &ClientJsonRpcMessage, has_session: bool) -> (bool, Mend) {
    let JsonRpcMessage::Request(JsonRpcRequest { request, .. }) = message else { return (false, |_| None) };
    match request {
        ClientRequest::DiscoverRequest(_) => (!has_session, |_| None),
        ClientRequest::ListToolsRequest(_) => (false, with_described_tools),
        ClientRequest::CallToolRequest(_) => (false, with_known_parts),
        _ => (false, |_| None),
    }
}

/// A server that knows no discovery says so in its own way, and is asked as older ones are.
fn undiscovered(asked: Option<RequestId>, reason: &str) -> StreamableHttpPostResponse {
    let error = ErrorData::invalid_request(format!("server/discover came to nothing: {reason}"), None);
    StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, asked), None)
}

fn unanswered(status: u16) -> Error {
    Error::UnexpectedServerResponse(format!("HTTP {status} to a request, which says nothing").into())
}

/// A list of tools as the SDK takes it; `None` where it is. Some servers leave out the schema of a tool without arguments,
/// or describe one in a way that nobody reads: without that it is a tool, and the others of its list are.
fn with_described_tools(json: &[u8]) -> Option<Vec<u8>> {
    if json.len() > MAX_LIST_BYTES {
        return None;
    }
    let mut answer: Value = parse(json).ok()?;
    let mut is_other = false;
    for tool in answer.pointer_mut("/result/tools")?.as_array_mut()?.iter_mut().filter_map(Value::as_object_mut) {
        if !tool.get("inputSchema").is_some_and(Value::is_object) {
            tool.insert("inputSchema".to_owned(), json!({"type": "object"}));
            is_other = true;
        }
        let count = tool.len();
        tool.retain(|field, value| match field.as_str() {
            "description" | "title" => value.is_string(),
            "outputSchema" | "annotations" => value.is_object(),
            _ => true,
        });
        is_other |= tool.len() < count;
        if let Some(hints) = tool.get_mut("annotations").and_then(Value::as_object_mut) {
            let count = hints.len();
            hints.retain(|hint, value| match hint.as_str() {
                "title" => value.is_string(),
                hint => !hint.ends_with("Hint") || value.is_boolean(),
            });
            is_other |= hints.len() < count;
        }
    }
    is_other.then(|| answer.to_string().into_bytes())
}

/// A result of a tool as the SDK takes it; `None` where it is. A part of a kind that it does not know becomes text, since the
/// whole result would be none to it.
fn with_known_parts(json: &[u8]) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Answer {
        result: Parts,
    }
    #[derive(Deserialize)]
    struct Parts {
        content: Vec<Part>,
    }
    #[derive(Deserialize)]
    struct Part {
        r#type: Option<String>,
    }
    let is_known = |kind: Option<&str>| kind.is_some_and(|kind| KINDS_OF_PARTS.contains(&kind));
    let answer: Answer = parse(json).ok()?;
    answer.result.content.iter().find(|part| !is_known(part.r#type.as_deref()))?;
    let mut answer: Value = parse(json).ok()?;
    for part in answer.pointer_mut("/result/content")?.as_array_mut()? {
        if !is_known(part["type"].as_str()) {
            *part = json!({"type": "text", "text": part.to_string()});
        }
    }
    Some(answer.to_string().into_bytes())
}

/// An answer that is no success, as the SDK tells them apart.
async fn refused(
    asked: Option<RequestId>,
    (had_session, discovers): (bool, bool),
    answer: HttpResponse,
) -> Result<StreamableHttpPostResponse, Error> {
    let (status, retry_after) = (answer.status(), text(&answer, RETRY_AFTER.as_str()));
    let is_json = text(&answer, CONTENT_TYPE.as_str()).is_some_and(|kind| kind.starts_with(JSON_MIME_TYPE));
    let is_for_credentials = matches!(status.as_u16(), 401 | 403);
    let body = whole(answer, MAX_REFUSAL).await.unwrap_or_default();
    let shown = String::from_utf8_lossy(&body);
    let told = match parse::<ServerJsonRpcMessage>(&body) {
        Ok(JsonRpcMessage::Error(error)) => Some(error),
        Ok(_) | Err(_) => None,
    };
    if discovers && !is_for_credentials {
        return Ok(match told {
            Some(told) => StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(told.error, asked), None),
            None => undiscovered(asked, &format!("HTTP {status}: {shown}")),
        });
    }
    let is_of_session = |error: &JsonRpcError| {
        let message = error.error.message.to_ascii_lowercase();
        let said = message.strip_prefix("bad request: ").unwrap_or(&message);
        SESSION_IS_OVER.iter().any(|known| said.starts_with(known))
    };
    if had_session && status.as_u16() == 400 && told.as_ref().is_some_and(is_of_session) {
        return Err(Error::SessionExpired);
    }
    match told {
        Some(error) if is_json && !is_for_credentials && status.as_u16() != 429 => {
            let error = ServerJsonRpcMessage::error(error.error, asked.or(error.id));
            Ok(StreamableHttpPostResponse::Json(error, None))
        }
        _ if status.as_u16() == 429 || status.is_server_error() => {
            Err(HttpStatusError::new(status.as_u16(), retry_after).into())
        }
        _ => Err(Error::UnexpectedServerResponse(format!("HTTP {status}: {shown}").into())),
    }
}

/// Whether an event answers another request than the one whose answer it is in, or tells of the progress of another: that
/// one's caller gets its own.
fn is_of_another(event: &Sse, asked: Option<&RequestId>, progress: Option<&ProgressToken>) -> bool {
    #[derive(Deserialize)]
    struct Told {
        id: Option<RequestId>,
        method: Option<String>,
    }
    #[derive(Deserialize)]
    struct Progress {
        params: OfCall,
    }
    #[derive(Deserialize)]
    struct OfCall {
        #[serde(rename = "progressToken")]
        token: ProgressToken,
    }
    let data = event.data.as_deref().unwrap_or_default().as_bytes();
    parse::<Told>(data).is_ok_and(|told| match (told.id, told.method.as_deref()) {
        (Some(id), None) => Some(&id) != asked,
        (_, Some("notifications/progress")) => {
            parse::<Progress>(data).is_ok_and(|told| Some(&told.params.token) != progress)
        }
        _ => false,
    })
}

fn text(answer: &HttpResponse, name: &str) -> Option<String> {
    answer.headers().get(name)?.to_str().ok().map(str::to_owned)
}

async fn whole(answer: HttpResponse, most: usize) -> Result<Bytes, Error> {
    let (mut body, mut chunks) = (BytesMut::new(), answer.bytes_stream());
    while let Some(chunk) = chunks.try_next().await.map_err(Error::Client)? {
        if body.len() + chunk.len() > most {
            return Err(Error::ResponseBodyTooLarge { max_size: most });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Bytes of which so many may come without the blank line that ends an event.
fn bounded(
    bytes: impl Stream<Item = Result<Bytes, HttpError>> + Send + 'static,
    most: usize,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let mut length = 0;
    bytes.map(move |chunk| {
        let chunk = chunk.map_err(io::Error::other)?;
        let ends = |at: usize| matches!(chunk[at..], [b'\n', b'\n', ..] | [b'\n', b'\r', b'\n', ..]);
        length = match (0..chunk.len()).rfind(|at| ends(*at)) {
            Some(at) => chunk.len() - at,
            None => length + chunk.len(),
        };
        if length > most { Err(io::Error::other(format!("an event has more than {most} bytes"))) } else { Ok(chunk) }
    })
}

/// Events that take bounded memory, and bounded work: a server asks us so often, and says within bounds when it wants to
/// be asked again.
fn checked(
    events: impl Stream<Item = Result<Sse, SseError>> + Send + 'static,
) -> impl Stream<Item = Result<Sse, SseError>> + Send {
    let (mut asked, mut since) = (0, Instant::now());
    let events = events.map(|event| {
        let event = event?;
        match check_values(event.data.as_deref().unwrap_or_default().as_bytes()) {
            Ok(()) => Ok(event),
            Err(reason) => Err(SseError::Body(reason.into())),
        }
    });
    let events = events.try_filter(move |event| {
        if !is_request(event) {
            return ready(true);
        }
        if since.elapsed() > MAX_ASKED.1 {
            (asked, since) = (0, Instant::now());
        }
        asked += 1;
        ready(asked <= MAX_ASKED.0)
    });
    let (shortest, longest) = REOPENS_AFTER_MS;
    events.map_ok(move |event| Sse { retry: event.retry.map(|retry| retry.clamp(shortest, longest)), ..event })
}

/// Whether an event wants an answer of us.
fn is_request(event: &Sse) -> bool {
    #[derive(Deserialize)]
    struct Asked {
        #[expect(dead_code, reason = "that it is there says enough")]
        id: RequestId,
        #[expect(dead_code, reason = "that it is there says enough")]
        method: IgnoredAny,
    }
    event.data.as_deref().is_some_and(|data| parse::<Asked>(data.as_bytes()).is_ok())
}

fn check_values(json: &[u8]) -> Result<(), &'static str> {
    if memory_of(json) > MAX_VALUES { Err("it holds too many values") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_tells_of_the_call_whose_answer_it_is_in_alone() {
        let event = |data: Value| Sse { data: Some(data.to_string()), ..Sse::default() };
        let of = |token: i64| json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token}});
        let (asked, token) = (RequestId::Number(7), ProgressToken(RequestId::Number(3)));
        let is_of_another = |told: Value| is_of_another(&event(told), Some(&asked), Some(&token));
        for own in [of(3), json!({"id": 7, "result": {}}), json!({"id": 9, "method": "ping"}), json!({"method": "x"})] {
            assert!(!is_of_another(own.clone()), "{own}");
        }
        for other in [
            of(4),
            json!({"id": 8, "result": {}}),
            json!({"id": "7", "error": {}}),
            json!({"id": 8, "result": {}, "params": 5}),
        ] {
            assert!(is_of_another(other.clone()), "{other}");
        }
    }
}
