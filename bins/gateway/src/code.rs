//! Error codes that this crate raises (contract 00 §7).

use platform_core::{Code, ErrorKind};

pub(crate) const BROWSER_MINT_FORBIDDEN: Code = Code::new("BROWSER_MINT_FORBIDDEN", ErrorKind::Forbidden);
pub(crate) const INSUFFICIENT_SCOPE: Code = Code::new("INSUFFICIENT_SCOPE", ErrorKind::Forbidden);
pub(crate) const INVALID_JSON: Code = Code::new("INVALID_JSON", ErrorKind::Invalid);
pub(crate) const KEY_DOMAIN_FORBIDDEN: Code = Code::new("KEY_DOMAIN_FORBIDDEN", ErrorKind::Forbidden);
pub(crate) const KEY_ENDPOINT_FORBIDDEN: Code = Code::new("KEY_ENDPOINT_FORBIDDEN", ErrorKind::Forbidden);
pub(crate) const KEY_REQUIRES_SESSION: Code = Code::new("KEY_REQUIRES_SESSION", ErrorKind::Forbidden);
pub(crate) const METHOD_NOT_ALLOWED: Code = Code::new("METHOD_NOT_ALLOWED", ErrorKind::MethodNotAllowed);
pub(crate) const NOT_ACCEPTABLE: Code = Code::new("NOT_ACCEPTABLE", ErrorKind::NotAcceptable);
pub(crate) const NOT_OWNER: Code = Code::new("NOT_OWNER", ErrorKind::Forbidden);
pub(crate) const PAYLOAD_TOO_LARGE: Code = Code::new("PAYLOAD_TOO_LARGE", ErrorKind::TooLarge);
pub(crate) const PRESETS_FORBIDDEN: Code = Code::new("PRESETS_FORBIDDEN", ErrorKind::Forbidden);
pub(crate) const RATE_LIMIT_EXCEEDED: Code = Code::new("RATE_LIMIT_EXCEEDED", ErrorKind::TooMany);
pub(crate) const REQUEST_TIMEOUT: Code = Code::new("REQUEST_TIMEOUT", ErrorKind::TooSlow);
pub(crate) const SESSION_CANNOT_MINT: Code = Code::new("SESSION_CANNOT_MINT", ErrorKind::Forbidden);
pub(crate) const SESSION_ROUTE_FORBIDDEN: Code = Code::new("SESSION_ROUTE_FORBIDDEN", ErrorKind::Forbidden);
pub(crate) const TOO_MANY_STREAMS: Code = Code::new("TOO_MANY_STREAMS", ErrorKind::TooMany);
pub(crate) const UNKNOWN_FIELD: Code = Code::new("UNKNOWN_FIELD", ErrorKind::Invalid);
pub(crate) const UNSUPPORTED_MEDIA_TYPE: Code = Code::new("UNSUPPORTED_MEDIA_TYPE", ErrorKind::UnsupportedMedia);
