//! Errors become answers here, and only here.

use actix_web::{
    HttpResponse,
    http::{StatusCode, header},
};
use platform_core::{Code, Error};
use serde_json::{Value, json};
use tracing::{error, warn};

const RETRY_AFTER_SECONDS: u64 = 1;

/// HTTP status of a code (contract 00 §7).
pub(crate) fn status(code: Code) -> StatusCode {
    match code {
        Code::BadRequest
        | Code::InvalidCron
        | Code::InvalidGuardrail
        | Code::InvalidJson
        | Code::InvalidPagination
        | Code::InvalidSchema
        | Code::InvalidSkills
        | Code::InvalidStateValue
        | Code::InvalidSubagentConfig
        | Code::InvalidSubagents
        | Code::InvalidTimeRange
        | Code::InvalidToolDefinition
        | Code::InvalidTtl
        | Code::InvalidUsageAmount
        | Code::InvalidUsageSource
        | Code::TenantIdRequired
        | Code::DuplicateToolName
        | Code::TemplateError
        | Code::ModelNotSupported
        | Code::ProviderNotConfigured
        | Code::UnknownField
        | Code::UrlNotAllowed
        | Code::ValidationError => StatusCode::BAD_REQUEST,
        Code::TokenExpired | Code::TokenRevoked | Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::BrowserMintForbidden
        | Code::Forbidden
        | Code::FullKeyRequired
        | Code::InsufficientScope
        | Code::KeyDomainForbidden
        | Code::KeyEndpointForbidden
        | Code::KeyRequiresSession
        | Code::NotOwner
        | Code::PresetsForbidden
        | Code::ProjectForbidden
        | Code::SessionCannotMint
        | Code::SessionRouteForbidden
        | Code::TenantMismatch => StatusCode::FORBIDDEN,
        Code::AgentNotFound
        | Code::AssistantNotFound
        | Code::ChatNotFound
        | Code::DocNotFound
        | Code::DocumentNotFound
        | Code::EnvironmentNotFound
        | Code::EvaluationNotFound
        | Code::FileNotFound
        | Code::FolderNotFound
        | Code::KeyNotFound
        | Code::MessageNotFound
        | Code::NotFound
        | Code::ProjectNotFound
        | Code::SessionNotFound
        | Code::TenantNotFound
        | Code::ThreadNotFound
        | Code::TierNotFound
        | Code::ToolNotFound
        | Code::ToolServerNotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
        Code::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        Code::AgentArchived
        | Code::AgentDisabled
        | Code::AssistantInactive
        | Code::ChatBusy
        | Code::ChatHandedOff
        | Code::ChatNotProcessing
        | Code::ChatNotWaiting
        | Code::Conflict
        | Code::IdempotencyInProgress
        | Code::IdentifierTaken
        | Code::NameTaken
        | Code::ProjectArchived
        | Code::QueueFull
        | Code::ThreadStateConflict
        | Code::TierInUse => StatusCode::CONFLICT,
        Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        Code::AgentBusy | Code::RateLimitExceeded | Code::TenantLimitExceeded | Code::TooManyStreams => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Code::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::IdempotencyKeyReused => StatusCode::UNPROCESSABLE_ENTITY,
        Code::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
        Code::UpstreamError => StatusCode::BAD_GATEWAY,
        Code::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// The error object, with the headers its status asks for. The cause goes to the log.
pub(crate) fn answer(error: &Error, request_id: &str) -> HttpResponse {
    let status = status(error.code());
    if let Some(cause) = error.cause() {
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            error!(request_id, code = error.code().as_str(), %cause, "A request failed on our side.");
        } else {
            warn!(request_id, code = error.code().as_str(), %cause, "A request could not be served.");
        }
    }
    let mut body = json!({
        "error": error.code().as_str(),
        "message": error.message(),
        "details": error.details(),
        "statusCode": status.as_u16(),
        "requestId": request_id,
    });
    let fields = body.as_object_mut().expect("an object");
    // Some codes repeat their details at the top (contract 00 §7).
    if error.code() == Code::InvalidSubagents {
        let repeated = error.details().iter().map(|(name, value)| (name.clone(), value.clone()));
        fields.extend(repeated.collect::<Vec<(String, Value)>>());
    }
    let mut response = HttpResponse::build(status);
    let retry_after = error.retries_after().or(match error.code() {
        Code::IdempotencyInProgress | Code::ServiceUnavailable => Some(RETRY_AFTER_SECONDS),
        _ => None,
    });
    if let Some(seconds) = retry_after {
        response.insert_header((header::RETRY_AFTER, seconds));
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            fields.insert("retryAfter".to_owned(), json!(seconds));
        }
    }
    if status == StatusCode::UNAUTHORIZED {
        let bare = error.details().get("sent") == Some(&Value::Bool(false));
        let challenge = if bare { "Bearer realm=\"api\"" } else { "Bearer realm=\"api\", error=\"invalid_token\"" };
        response.insert_header((header::WWW_AUTHENTICATE, challenge));
    }
    if status == StatusCode::REQUEST_TIMEOUT {
        response.force_close();
    }
    response.insert_header((header::CONTENT_TYPE, "application/json; charset=utf-8")).body(body.to_string())
}
