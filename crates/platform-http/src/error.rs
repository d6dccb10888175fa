//! Errors become answers here, and only here.

use actix_web::{
    HttpResponse,
    http::{StatusCode, header},
};
use platform_core::{Code, Error, ErrorKind};
use serde_json::json;
use tracing::{error, warn};

const RETRY_AFTER_SECONDS: u64 = 1;

/// HTTP status of a kind of failure (contract 00 §7).
fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorKind::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
        ErrorKind::TooSlow => StatusCode::REQUEST_TIMEOUT,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::UnsupportedMedia => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorKind::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorKind::Upstream => StatusCode::BAD_GATEWAY,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// The error object, with the headers its status asks for. The cause goes to the log.
pub(crate) fn answer(error: &Error, request_id: &str) -> HttpResponse {
    let status = status(error.code().kind());
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
    if error.code().repeats_details() {
        fields.extend(error.details().into_owned());
    }
    let mut response = HttpResponse::build(status);
    let retry_after = error.retries_after().or(match error.code() {
        platform_db::code::IDEMPOTENCY_IN_PROGRESS | Code::SERVICE_UNAVAILABLE => Some(RETRY_AFTER_SECONDS),
        _ => None,
    });
    if let Some(seconds) = retry_after {
        response.insert_header((header::RETRY_AFTER, seconds));
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            fields.insert("retryAfter".to_owned(), json!(seconds));
        }
    }
    if status == StatusCode::REQUEST_TIMEOUT {
        response.force_close();
    }
    response.insert_header((header::CONTENT_TYPE, "application/json; charset=utf-8")).body(body.to_string())
}
