use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use chrono::{DateTime, FixedOffset};
use futures_util::{Stream, StreamExt, TryStreamExt};
use platform_core::{Clock, SystemClock};
use platform_runtime::{ModelSpec, Prompt};
use reqwest::{Request, Response, StatusCode, header};
use secrecy::ExposeSecret;
use serde_json::Value;
use sse_stream::SseStream;

use crate::{
    anthropic,
    broken::Broken,
    config::{CallLimits, Protocol, ProviderConfig},
    connection,
    draft::{Draft, On},
    gemini, openai,
};

/// Bytes of one answer, as they come over the wire.
const LARGEST_ANSWER: usize = 64 << 20;
/// The same of what must be read whole: one event, an answer that is not streamed, a list of models.
pub(crate) const LARGEST_PIECE: usize = 8 << 20;

/// Asks a provider once. What was read before a failure stays in `draft`.
pub(crate) async fn call(
    client: &reqwest::Client,
    provider: &ProviderConfig,
    limits: &CallLimits,
    prompt: &Prompt,
    model: &ModelSpec,
    draft: &mut Draft,
    on: &mut On<'_>,
) -> Result<(), Broken> {
    let request = request(client, provider, prompt, model).build().map_err(|_| Broken::unreachable("no address"))?;
    let response = if connection::is_plain(request.url()) {
        let response = tokio::time::timeout(limits.first_byte, connection::send(&request)).await;
        accepted(response.map_err(|_| Broken::timeout("no answer"))??).await?
    } else {
        send(client, request, limits).await?
    };
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.starts_with("text/event-stream"));
    if is_stream {
        read_stream(bounded(response, LARGEST_ANSWER), provider.protocol, limits, draft, on).await?;
    } else if provider.protocol == Protocol::OpenAi {
        openai::read(&String::from_utf8_lossy(&body(response, limits, LARGEST_PIECE).await?), draft, on)?;
        draft.complete = draft.stop.is_some();
    } else {
        return Err(Broken::protocol("the answer is not a stream"));
    }
    match (draft.complete || draft.stop.is_some(), draft.has_begun()) {
        (true, _) => Ok(()),
        (false, true) => Err(Broken::protocol("the stream broke off")),
        (false, false) => Err(Broken::unreachable("the stream ended before it began")),
    }
}

/// The body of the answer to a request that is no completion, of at most so many bytes.
pub(crate) async fn fetch(
    request: reqwest::RequestBuilder,
    limits: &CallLimits,
    most: usize,
) -> Result<Vec<u8>, Broken> {
    let (client, request) = request.build_split();
    let request = request.map_err(|_| Broken::unreachable("no address"))?;
    body(send(&client, request, limits).await?, limits, most).await
}

/// Sends a request; an answer other than 200 is a failure.
async fn send(client: &reqwest::Client, request: Request, limits: &CallLimits) -> Result<Response, Broken> {
    match tokio::time::timeout(limits.first_byte, client.execute(request)).await {
        Err(_) => Err(Broken::timeout("no answer")),
        Ok(Err(error)) if error.is_timeout() => Err(Broken::timeout("no connection")),
        Ok(Err(error)) if error.is_connect() => Err(Broken::unreachable("no connection")),
        Ok(Err(_)) => Err(Broken::unreachable("the connection broke")),
        Ok(Ok(response)) => accepted(response).await,
    }
}

async fn accepted(response: Response) -> Result<Response, Broken> {
    if response.status() == StatusCode::OK { Ok(response) } else { Err(refused(response).await) }
}

async fn body(response: Response, limits: &CallLimits, most: usize) -> Result<Vec<u8>, Broken> {
    let body = tokio::time::timeout(limits.first_byte, whole(response, most)).await;
    body.map_err(|_| Broken::timeout("no answer"))?.map_err(|_| Broken::unreachable("the connection broke"))
}

/// The body of an answer; one of more than so many bytes breaks off.
fn bounded(response: Response, most: usize) -> impl Stream<Item = std::io::Result<Bytes>> {
    let mut left = most;
    response.bytes_stream().map(move |chunk| {
        let chunk = chunk.map_err(std::io::Error::other)?;
        left = left.checked_sub(chunk.len()).ok_or_else(|| std::io::Error::other("the answer is too large"))?;
        Ok(chunk)
    })
}

/// The whole body of an answer that is not streamed.
async fn whole(response: Response, most: usize) -> std::io::Result<Vec<u8>> {
    Ok(bounded(response, most).try_collect::<Vec<Bytes>>().await?.concat())
}

pub(crate) async fn read_stream(
    bytes: impl Stream<Item = std::io::Result<Bytes>>,
    protocol: Protocol,
    limits: &CallLimits,
    draft: &mut Draft,
    on: &mut On<'_>,
) -> Result<(), Broken> {
    // Bytes since the last event: a line without end is held by nobody.
    let unread = AtomicUsize::new(0);
    let bytes = bytes.map(|chunk| {
        let chunk = chunk?;
        match unread.fetch_add(chunk.len(), Ordering::Relaxed) {
            ..=LARGEST_PIECE => Ok(chunk),
            _ => Err(std::io::Error::other("the event is too large")),
        }
    });
    let mut events = pin!(SseStream::from_bytes_stream(bytes));
    let mut anthropic = anthropic::Reader::default();
    let mut patience = limits.first_byte;
    loop {
        let event = match tokio::time::timeout(patience, events.next()).await {
            Err(_) => return Err(Broken::timeout("silence")),
            Ok(None) => return Ok(()),
            Ok(Some(Err(_))) if draft.has_begun() => return Err(Broken::protocol("the stream broke off")),
            Ok(Some(Err(_))) => return Err(Broken::unreachable("the connection broke")),
            Ok(Some(Ok(event))) => event,
        };
        patience = limits.idle;
        unread.store(0, Ordering::Relaxed);
        let Some(data) = event.data else { continue };
        match protocol {
            Protocol::Anthropic => anthropic.read(&data, draft, on)?,
            Protocol::Gemini => gemini::read(&data, draft, on)?,
            Protocol::OpenAi | Protocol::Demo => openai::read(&data, draft, on)?,
        }
        // Gemini reports the usage with or after the last part; it ends by closing.
        if draft.cut.is_some() || (draft.complete && protocol != Protocol::Gemini) {
            return Ok(());
        }
    }
}

fn request(
    client: &reqwest::Client,
    provider: &ProviderConfig,
    prompt: &Prompt,
    model: &ModelSpec,
) -> reqwest::RequestBuilder {
    let base = &provider.base_url;
    let key = provider.api_key.as_ref().map(ExposeSecret::expose_secret);
    let mut request = match provider.protocol {
        Protocol::Anthropic => client
            .post(format!("{base}/v1/messages"))
            .header("anthropic-version", anthropic::VERSION)
            .header("x-api-key", key.unwrap_or_default())
            .json(&anthropic::body(prompt, model)),
        Protocol::Gemini => client
            .post(format!("{base}/v1beta/models/{}:streamGenerateContent?alt=sse", model.llm))
            .header("x-goog-api-key", key.unwrap_or_default())
            .json(&gemini::body(prompt, model)),
        Protocol::OpenAi | Protocol::Demo => {
            let request = client.post(format!("{base}/chat/completions")).json(&openai::body(prompt, model));
            match key {
                Some(key) => request.bearer_auth(key),
                None => request,
            }
        }
    };
    for (name, value) in &provider.headers {
        request = request.header(name, value);
    }
    request
}

/// Seconds to wait, said as such or as the time until when (RFC 9110 §10.2.3).
fn seconds(text: &str) -> Option<f64> {
    let until = |date: DateTime<FixedOffset>| (date.timestamp() - SystemClock.now().0 / 1000).max(0);
    #[expect(clippy::cast_precision_loss, reason = "a wait of seconds")]
    let of_date = || DateTime::parse_from_rfc2822(text).ok().map(|date| until(date) as f64);
    text.parse().ok().or_else(of_date)
}

async fn refused(mut response: Response) -> Broken {
    let status = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| seconds(value.trim()))
        .filter(|seconds| (0.0..1e6).contains(seconds))
        .map(Duration::from_secs_f64);
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() > 16 * 1024 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), read).await;
    let text = String::from_utf8_lossy(&body);
    // Some providers say the key that they refuse.
    let reason = if matches!(status, 401 | 403) { String::new() } else { reason_of(&text) };
    tracing::warn!(status, reason, "A model provider refused a call.");
    Broken::status(status, &text, retry_after)
}

/// The provider's own words for the log, cut short.
fn reason_of(body: &str) -> String {
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let message = json.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
    message.chars().take(200).collect()
}

/// Names of the models a provider lists, over its own wire.
pub(crate) async fn list_models(client: &reqwest::Client, provider: &ProviderConfig) -> Option<Vec<String>> {
    let base = &provider.base_url;
    let key = provider.api_key.as_ref().map(ExposeSecret::expose_secret);
    let request = match provider.protocol {
        Protocol::Demo => return None,
        Protocol::OpenAi => {
            let request = client.get(format!("{base}/models"));
            key.map_or(request, |key| client.get(format!("{base}/models")).bearer_auth(key))
        }
        Protocol::Anthropic => client
            .get(format!("{base}/v1/models?limit=1000"))
            .header("anthropic-version", anthropic::VERSION)
            .header("x-api-key", key.unwrap_or_default()),
        Protocol::Gemini => {
            client.get(format!("{base}/v1beta/models?pageSize=1000")).header("x-goog-api-key", key.unwrap_or_default())
        }
    };
    let response = request.send().await.ok()?.error_for_status().ok()?;
    let answer: Value = serde_json::from_slice(&whole(response, LARGEST_PIECE).await.ok()?).ok()?;
    let models = answer.get("data").or_else(|| answer.get("models"))?.as_array()?;
    let name = |model: &Value| {
        let name = model.get("id").or_else(|| model.get("name"))?.as_str()?;
        Some(name.trim_start_matches("models/").to_owned())
    };
    Some(models.iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_said_in_seconds_or_as_a_date() {
        assert_eq!((seconds("2"), seconds("0.5"), seconds("soon")), (Some(2.0), Some(0.5), None));
        assert_eq!(seconds("Wed, 21 Oct 2015 07:28:00 GMT"), Some(0.0), "it is over");
        let long = seconds("Fri, 01 Jan 2100 00:00:00 GMT").expect("a date");
        assert!(long > 86_400.0, "{long}");
    }
}
