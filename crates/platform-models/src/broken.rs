use std::time::Duration;

use platform_runtime::{Fault, FaultCode, ModelSpec};
use serde_json::Value;

/// One attempt that came to nothing, and what may be done about it.
#[derive(Debug)]
pub(crate) struct Broken {
    pub code: FaultCode,
    pub message: String,
    pub status: Option<u16>,
    /// The same model may be asked again.
    pub retry: bool,
    /// The provider said when.
    pub retry_after: Option<Duration>,
    /// Another model may be asked.
    pub fall_back: bool,
    /// The provider is in trouble, as opposed to the request.
    pub counts: bool,
}

impl Broken {
    pub fn new(code: FaultCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message, status: None, retry: false, retry_after: None, fall_back: false, counts: false }
    }

    pub fn passing(code: FaultCode, message: impl Into<String>) -> Self {
        Self { retry: true, fall_back: true, counts: true, ..Self::new(code, message) }
    }

    /// The provider says something we cannot read.
    pub fn protocol(what: &str) -> Self {
        Self::new(FaultCode::Protocol, format!("The provider does not speak its protocol: {what}."))
    }

    pub fn timeout(what: &str) -> Self {
        Self::passing(FaultCode::Timeout, format!("The provider took too long: {what}."))
    }

    /// All that may be read at once is being read.
    pub fn no_room() -> Self {
        let message = "Too much is being written at the moment; the answer breaks off.";
        Self { fall_back: true, ..Self::new(FaultCode::Unavailable, message) }
    }

    /// All places among the calls to the provider are taken.
    pub fn crowded() -> Self {
        Self { counts: false, retry: false, ..Self::timeout("it has too many calls at the moment") }
    }

    /// It is in trouble and not asked.
    pub fn left_alone() -> Self {
        let alone = Self::unreachable("it failed ten times in a row and is left alone for a while");
        Self { counts: false, retry: false, ..alone }
    }

    pub fn unreachable(what: &str) -> Self {
        Self::passing(FaultCode::Unavailable, format!("The provider could not be reached: {what}."))
    }

    /// An HTTP status other than 200 (contract 18 §3.1, §3.7).
    pub fn status(status: u16, body: &str, retry_after: Option<Duration>) -> Self {
        let text = body.to_ascii_lowercase();
        let told = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let too_long =
            told(&["context_length", "context length", "prompt is too long", "maximum context", "too many tokens"])
                || (text.contains("token count") && text.contains("exceeds"));
        let code = match status {
            401 | 403 => FaultCode::Auth,
            429 => FaultCode::RateLimited,
            408 | 504 => FaultCode::Timeout,
            500 | 502 | 503 | 529 => FaultCode::Unavailable,
            400 | 413 | 422 if too_long => FaultCode::ContextTooLong,
            400 if told(&["content_filter", "content_policy"]) => FaultCode::ContentFilter,
            400 | 404 | 413 | 422 => FaultCode::BadRequest,
            _ => FaultCode::Protocol,
        };
        let retry = matches!(status, 408 | 429 | 500 | 502 | 503 | 504 | 529);
        Self {
            status: Some(status),
            retry,
            retry_after,
            fall_back: retry || matches!(status, 401 | 403 | 404),
            counts: status >= 500,
            ..Self::new(code, format!("The provider answered with status {status}."))
        }
    }

    /// An error object in the middle of a stream, by its type or status.
    pub fn reported(error: &Value) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = format!("{} {} {}", text("type"), text("code"), text("status"));
        let number = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let status = number.unwrap_or(match kind.to_ascii_lowercase() {
            kind if kind.contains("rate_limit") || kind.contains("resource_exhausted") => 429,
            kind if kind.contains("overloaded") => 529,
            kind if kind.contains("unavailable") => 503,
            kind if kind.contains("invalid_request") || kind.contains("invalid_argument") => 400,
            kind if kind.contains("authentication") || kind.contains("permission") => 401,
            _ => 500,
        });
        Self::status(status, &error.to_string(), None)
    }

    pub fn into_fault(self, model: &ModelSpec) -> Fault {
        let fault = Fault::of(self.code, self.message, &model.provider);
        Fault { status: self.status, retry_after: self.retry_after, ..fault }
    }
}
