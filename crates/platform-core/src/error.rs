use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::Object;

/// Result of everything that can fail towards a client.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The one error type: a stable code, a message for the client, details, and a cause for the log.
pub struct Error(Box<Inner>);

struct Inner {
    code: Code,
    message: String,
    details: Object,
    retry_after: Option<u64>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

macro_rules! codes {
    ($($variant:ident = $text:literal),* $(,)?) => {
        /// Stable error codes (contract 00 §7); their HTTP status is the gateway's business.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is the code it prints")]
        pub enum Code { $($variant),* }

        impl Code {
            /// Every code there is.
            pub const ALL: &[Code] = &[$(Code::$variant),*];

            /// The code as the client sees it.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text),* }
            }
        }
    };
}

codes! {
    AgentArchived = "AGENT_ARCHIVED",
    AgentBusy = "AGENT_BUSY",
    AgentDisabled = "AGENT_DISABLED",
    AgentNotFound = "AGENT_NOT_FOUND",
    AssistantInactive = "ASSISTANT_INACTIVE",
    AssistantNotFound = "ASSISTANT_NOT_FOUND",
    BadRequest = "BAD_REQUEST",
    BrowserMintForbidden = "BROWSER_MINT_FORBIDDEN",
    ChatBusy = "CHAT_BUSY",
    ChatHandedOff = "CHAT_HANDED_OFF",
    ChatNotFound = "CHAT_NOT_FOUND",
    ChatNotProcessing = "CHAT_NOT_PROCESSING",
    ChatNotWaiting = "CHAT_NOT_WAITING",
    Conflict = "CONFLICT",
    DocNotFound = "DOC_NOT_FOUND",
    DocumentNotFound = "DOCUMENT_NOT_FOUND",
    DuplicateToolName = "DUPLICATE_TOOL_NAME",
    EnvironmentNotFound = "ENVIRONMENT_NOT_FOUND",
    EvaluationNotFound = "EVALUATION_NOT_FOUND",
    FileNotFound = "FILE_NOT_FOUND",
    FolderNotFound = "FOLDER_NOT_FOUND",
    Forbidden = "FORBIDDEN",
    FullKeyRequired = "FULL_KEY_REQUIRED",
    IdempotencyInProgress = "IDEMPOTENCY_IN_PROGRESS",
    IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED",
    IdentifierTaken = "IDENTIFIER_TAKEN",
    InsufficientScope = "INSUFFICIENT_SCOPE",
    InternalError = "INTERNAL_ERROR",
    InvalidCron = "INVALID_CRON",
    InvalidGuardrail = "INVALID_GUARDRAIL",
    InvalidJson = "INVALID_JSON",
    InvalidPagination = "INVALID_PAGINATION",
    InvalidSchema = "INVALID_SCHEMA",
    InvalidSkills = "INVALID_SKILLS",
    InvalidStateValue = "INVALID_STATE_VALUE",
    InvalidSubagentConfig = "INVALID_SUBAGENT_CONFIG",
    InvalidSubagents = "INVALID_SUBAGENTS",
    InvalidTimeRange = "INVALID_TIME_RANGE",
    InvalidToolDefinition = "INVALID_TOOL_DEFINITION",
    InvalidTtl = "INVALID_TTL",
    InvalidUsageAmount = "INVALID_USAGE_AMOUNT",
    InvalidUsageSource = "INVALID_USAGE_SOURCE",
    KeyDomainForbidden = "KEY_DOMAIN_FORBIDDEN",
    KeyEndpointForbidden = "KEY_ENDPOINT_FORBIDDEN",
    KeyNotFound = "KEY_NOT_FOUND",
    KeyRequiresSession = "KEY_REQUIRES_SESSION",
    MessageNotFound = "MESSAGE_NOT_FOUND",
    MethodNotAllowed = "METHOD_NOT_ALLOWED",
    ModelNotSupported = "MODEL_NOT_SUPPORTED",
    NameTaken = "NAME_TAKEN",
    NotAcceptable = "NOT_ACCEPTABLE",
    NotFound = "NOT_FOUND",
    NotOwner = "NOT_OWNER",
    PayloadTooLarge = "PAYLOAD_TOO_LARGE",
    PreconditionFailed = "PRECONDITION_FAILED",
    PresetsForbidden = "PRESETS_FORBIDDEN",
    ProjectArchived = "PROJECT_ARCHIVED",
    ProjectForbidden = "PROJECT_FORBIDDEN",
    ProjectNotFound = "PROJECT_NOT_FOUND",
    ProviderNotConfigured = "PROVIDER_NOT_CONFIGURED",
    QueueFull = "QUEUE_FULL",
    RateLimitExceeded = "RATE_LIMIT_EXCEEDED",
    RequestTimeout = "REQUEST_TIMEOUT",
    ServiceUnavailable = "SERVICE_UNAVAILABLE",
    SessionCannotMint = "SESSION_CANNOT_MINT",
    SessionNotFound = "SESSION_NOT_FOUND",
    SessionRouteForbidden = "SESSION_ROUTE_FORBIDDEN",
    TemplateError = "TEMPLATE_ERROR",
    TenantIdRequired = "TENANT_ID_REQUIRED",
    TenantLimitExceeded = "TENANT_LIMIT_EXCEEDED",
    TenantMismatch = "TENANT_MISMATCH",
    TenantNotFound = "TENANT_NOT_FOUND",
    ThreadNotFound = "THREAD_NOT_FOUND",
    ThreadStateConflict = "THREAD_STATE_CONFLICT",
    TierInUse = "TIER_IN_USE",
    TierNotFound = "TIER_NOT_FOUND",
    TokenExpired = "TOKEN_EXPIRED",
    TokenRevoked = "TOKEN_REVOKED",
    ToolNotFound = "TOOL_NOT_FOUND",
    ToolServerNotFound = "TOOL_SERVER_NOT_FOUND",
    TooManyStreams = "TOO_MANY_STREAMS",
    Unauthenticated = "UNAUTHENTICATED",
    UnknownField = "UNKNOWN_FIELD",
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE",
    UpstreamError = "UPSTREAM_ERROR",
    UpstreamTimeout = "UPSTREAM_TIMEOUT",
    UrlNotAllowed = "URL_NOT_ALLOWED",
    ValidationError = "VALIDATION_ERROR",
}

impl Error {
    /// An error with a message that tells the client what to do.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, message: message.into(), details: Object::new(), retry_after: None, cause: None }))
    }

    /// A failure that is ours; the cause goes to the log, never to the client.
    pub fn internal(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(Code::InternalError, "Something went wrong on our side; the request id finds it in the log.")
            .because(cause)
    }

    /// The database or another part we need is away for now.
    pub fn unavailable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(Code::ServiceUnavailable, "The service is not available at the moment; try again shortly.")
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

    /// Machine-readable particulars.
    pub fn details(&self) -> &Object {
        &self.0.details
    }

    /// Seconds after which to try again, when there is such a time.
    pub fn retries_after(&self) -> Option<u64> {
        self.0.retry_after
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

/// How PostgreSQL begins to say that it is going, coming, full, or a standby; Diesel passes no SQLSTATE on.
const PASSING: [&str; 10] = [
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
];
