use std::{borrow::Cow, fmt};

use serde::Serialize;
use serde_json::Value;

use crate::{Issue, Object};

/// Result of everything that can fail towards a client.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The one error type: a stable code, a message for the client, details, and a cause for the log.
pub struct Error(Box<Inner>);

struct Inner {
    code: Code,
    message: String,
    details: Object,
    issues: Vec<Issue>,
    retry_after: Option<u64>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of failure a code is; the HTTP layer gives each kind its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// 400: the request breaks a rule.
    Invalid,
    /// 401: no good credential.
    Unauthenticated,
    /// 403: the credential does not open it.
    Forbidden,
    /// 404: there is no such thing for this caller.
    NotFound,
    /// 405: the path takes other methods.
    MethodNotAllowed,
    /// 406: no such form of an answer.
    NotAcceptable,
    /// 408: the request came too slowly.
    TooSlow,
    /// 409: what is there stands against it.
    Conflict,
    /// 412: it is at another version.
    PreconditionFailed,
    /// 413: the body is too large.
    TooLarge,
    /// 415: the body is of another media type.
    UnsupportedMedia,
    /// 422: the idempotency key was used for another request.
    Unprocessable,
    /// 429: too often, too many, or spent.
    TooMany,
    /// 500: a failure of ours.
    Internal,
    /// 502: whom we asked failed.
    Upstream,
    /// 503: a part that we need is away.
    Unavailable,
    /// 504: whom we asked did not answer in time.
    UpstreamTimeout,
}

/// A stable error code (contract 00 §7), a constant of the crate that raises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    name: &'static str,
    kind: ErrorKind,
    repeats_details: bool,
}

impl Code {
    /// A code by the name that clients see.
    pub const fn new(name: &'static str, kind: ErrorKind) -> Self {
        Self { name, kind, repeats_details: false }
    }

    /// The same, whose details stand at the top of the error object, too (contract 00 §7).
    #[must_use]
    pub const fn repeating_details(self) -> Self {
        Self { repeats_details: true, ..self }
    }

    /// Whether its details stand at the top of the error object, too.
    pub fn repeats_details(self) -> bool {
        self.repeats_details
    }

    /// The code as the client sees it.
    pub const fn as_str(self) -> &'static str {
        self.name
    }

    /// What kind of failure it is.
    pub fn kind(self) -> ErrorKind {
        self.kind
    }
}

/// The codes of more than one crate.
#[expect(missing_docs, reason = "each constant is the code it prints")]
impl Code {
    pub const BAD_REQUEST: Self = Self::new("BAD_REQUEST", ErrorKind::Invalid);
    pub const CONFLICT: Self = Self::new("CONFLICT", ErrorKind::Conflict);
    pub const DUPLICATE_TOOL_NAME: Self = Self::new("DUPLICATE_TOOL_NAME", ErrorKind::Invalid);
    pub const ENVIRONMENT_NOT_FOUND: Self = Self::new("ENVIRONMENT_NOT_FOUND", ErrorKind::NotFound);
    pub const FORBIDDEN: Self = Self::new("FORBIDDEN", ErrorKind::Forbidden);
    pub const IDENTIFIER_TAKEN: Self = Self::new("IDENTIFIER_TAKEN", ErrorKind::Conflict);
    pub const INTERNAL_ERROR: Self = Self::new("INTERNAL_ERROR", ErrorKind::Internal);
    pub const INVALID_PAGINATION: Self = Self::new("INVALID_PAGINATION", ErrorKind::Invalid);
    pub const INVALID_TIME_RANGE: Self = Self::new("INVALID_TIME_RANGE", ErrorKind::Invalid);
    pub const INVALID_TOOL_DEFINITION: Self = Self::new("INVALID_TOOL_DEFINITION", ErrorKind::Invalid);
    pub const MODEL_NOT_SUPPORTED: Self = Self::new("MODEL_NOT_SUPPORTED", ErrorKind::Invalid);
    pub const NOT_FOUND: Self = Self::new("NOT_FOUND", ErrorKind::NotFound);
    pub const PAYLOAD_TOO_LARGE: Self = Self::new("PAYLOAD_TOO_LARGE", ErrorKind::TooLarge);
    pub const PRECONDITION_FAILED: Self = Self::new("PRECONDITION_FAILED", ErrorKind::PreconditionFailed);
    pub const PROVIDER_NOT_CONFIGURED: Self = Self::new("PROVIDER_NOT_CONFIGURED", ErrorKind::Invalid);
    pub const SERVICE_UNAVAILABLE: Self = Self::new("SERVICE_UNAVAILABLE", ErrorKind::Unavailable);
    pub const TENANT_MISMATCH: Self = Self::new("TENANT_MISMATCH", ErrorKind::Forbidden);
    pub const UNSUPPORTED_MEDIA_TYPE: Self = Self::new("UNSUPPORTED_MEDIA_TYPE", ErrorKind::UnsupportedMedia);
    pub const TENANT_ID_REQUIRED: Self = Self::new("TENANT_ID_REQUIRED", ErrorKind::Invalid);
    pub const UPSTREAM_ERROR: Self = Self::new("UPSTREAM_ERROR", ErrorKind::Upstream);
    pub const UPSTREAM_TIMEOUT: Self = Self::new("UPSTREAM_TIMEOUT", ErrorKind::UpstreamTimeout);
    pub const VALIDATION_ERROR: Self = Self::new("VALIDATION_ERROR", ErrorKind::Invalid);
}

impl Error {
    /// An error with a message that tells the client what to do.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let (message, details, issues) = (message.into(), Object::new(), Vec::new());
        Self(Box::new(Inner { code, message, details, issues, retry_after: None, cause: None }))
    }

    /// A failure that is ours; the cause goes to the log, never to the client.
    pub fn internal(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(Code::INTERNAL_ERROR, "Something went wrong on our side; the request id finds it in the log.")
            .because(cause)
    }

    /// The database or another part we need is away for now.
    pub fn unavailable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(Code::SERVICE_UNAVAILABLE, "The service is not available at the moment; try again shortly.")
            .because(cause)
    }

    /// One field broke its rule.
    pub fn invalid(path: &str, code: &'static str, message: impl Into<String>) -> Self {
        let mut checks = crate::Checks::default();
        checks.issue(path, code, message);
        checks.finish().expect_err("an issue was recorded")
    }

    /// A record that does not exist for this caller.
    pub fn not_found(code: Code, what: &str, id: &str) -> Self {
        let shown: String = id.chars().take(128).collect();
        Self::new(code, format!("There is no {what} `{shown}`.")).with("resource", what)
    }

    /// Refuses to go on when something that was named is not there; the message names all of it, at most twenty.
    pub fn check_none_missing<'a>(code: Code, what: &str, missing: impl Iterator<Item = &'a String>) -> Result<()> {
        let shown = |id: &String| id.chars().take(128).collect::<String>();
        let ids: Vec<String> = missing.take(20).map(shown).collect();
        if ids.is_empty() {
            return Ok(());
        }
        Err(Self::new(code, format!("There is no {what} `{}`.", ids.join("`, `"))).with("resource", what))
    }

    /// Adds a key to `details`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        self.0.details.insert(key.to_owned(), value);
        self
    }

    /// Adds a key to `details`, when there is a value.
    #[must_use]
    pub fn with_some(self, key: &str, value: Option<impl Serialize>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Says which fields broke which rules.
    #[must_use]
    pub fn with_issues(mut self, issues: Vec<Issue>) -> Self {
        self.0.issues = issues;
        self
    }

    /// An error about a part of the request, as one about the whole.
    #[must_use]
    pub fn within(mut self, path: &str) -> Self {
        for issue in &mut self.0.issues {
            issue.path = format!("{path}.{}", issue.path);
        }
        if self.0.issues.is_empty() { self } else { self.at(path) }
    }

    /// Says something else of the same failure.
    #[must_use]
    pub fn saying(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }

    /// The same under a more precise code.
    #[must_use]
    pub fn coded(mut self, code: Code) -> Self {
        self.0.code = code;
        self
    }

    /// Says which part of the request it is about: some clients show the message alone.
    #[must_use]
    pub fn at(mut self, path: &str) -> Self {
        self.0.message = format!("{path}: {}", self.0.message);
        self
    }

    /// Says in how many seconds to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.0.retry_after = Some(seconds);
        self
    }

    /// Keeps the cause for the log.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The sentence for the client.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Machine-readable particulars; the fields that broke rules as `issues`.
    pub fn details(&self) -> Cow<'_, Object> {
        if self.0.issues.is_empty() {
            return Cow::Borrowed(&self.0.details);
        }
        let mut details = self.0.details.clone();
        details.insert("issues".to_owned(), serde_json::to_value(&self.0.issues).unwrap_or_default());
        Cow::Owned(details)
    }

    /// Fields that broke rules.
    pub fn issues(&self) -> &[Issue] {
        &self.0.issues
    }

    /// Seconds after which to try again, when there is such a time.
    pub fn retries_after(&self) -> Option<u64> {
        self.0.retry_after
    }

    /// Whether the database undid it because it waited for somebody who waited for it: tried again it may well succeed.
    pub fn is_deadlock(&self) -> bool {
        self.cause().is_some_and(|cause| cause.to_string().starts_with(DEADLOCK))
    }

    /// Whether the request was refused, where nothing has failed.
    pub fn is_refusal(&self) -> bool {
        use ErrorKind::{Internal, Unavailable, Upstream, UpstreamTimeout};
        !matches!(self.code().kind(), Internal | Unavailable | Upstream | UpstreamTimeout)
    }

    /// What happened underneath, for the log.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code.as_str(), self.0.message)?;
        match &self.0.cause {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

/// So that `?` works inside transactions: what the database refuses is ours, what it cannot do now is 503.
impl From<diesel::result::Error> for Error {
    fn from(error: diesel::result::Error) -> Self {
        use diesel::result::{DatabaseErrorKind as Kind, Error as Db};
        match &error {
            Db::DatabaseError(Kind::ClosedConnection | Kind::UnableToSendCommand | Kind::SerializationFailure, _)
            | Db::BrokenTransactionManager => Self::unavailable(error),
            Db::DatabaseError(_, told) if PASSING.iter().any(|begin| told.message().starts_with(begin)) => {
                Self::unavailable(error)
            }
            _ => Self::internal(error),
        }
    }
}

/// How PostgreSQL begins to say that it is going, coming, full, a standby, or that two wait for each other; Diesel passes
/// no SQLSTATE on.
const PASSING: [&str; 11] = [
    "terminating connection",
    "the database system is",
    "sorry, too many clients",
    "remaining connection slots",
    "could not extend file",
    "could not write to file",
    "could not resize shared memory",
    "out of memory",
    "canceling statement due to",
    "cannot execute",
    DEADLOCK,
];

const DEADLOCK: &str = "deadlock detected";
