//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const BROWSER_MINT_FORBIDDEN: Code = Code::new("BROWSER_MINT_FORBIDDEN", ErrorKind::Forbidden);
pub const INSUFFICIENT_SCOPE: Code = Code::new("INSUFFICIENT_SCOPE", ErrorKind::Forbidden);
pub const INVALID_JSON: Code = Code::new("INVALID_JSON", ErrorKind::Invalid);
pub const KEY_DOMAIN_FORBIDDEN: Code = Code::new("KEY_DOMAIN_FORBIDDEN", ErrorKind::Forbidden);
pub const KEY_ENDPOINT_FORBIDDEN: Code = Code::new("KEY_ENDPOINT_FORBIDDEN", ErrorKind::Forbidden);
pub const KEY_REQUIRES_SESSION: Code = Code::new("KEY_REQUIRES_SESSION", ErrorKind::Forbidden);
pub const METHOD_NOT_ALLOWED: Code = Code::new("METHOD_NOT_ALLOWED", ErrorKind::MethodNotAllowed);
pub const RATE_LIMIT_EXCEEDED: Code = Code::new("RATE_LIMIT_EXCEEDED", ErrorKind::TooMany);
pub const REQUEST_TIMEOUT: Code = Code::new("REQUEST_TIMEOUT", ErrorKind::TooSlow);
pub const SESSION_CANNOT_MINT: Code = Code::new("SESSION_CANNOT_MINT", ErrorKind::Forbidden);
pub const SESSION_ROUTE_FORBIDDEN: Code = Code::new("SESSION_ROUTE_FORBIDDEN", ErrorKind::Forbidden);
pub const TOO_MANY_STREAMS: Code = Code::new("TOO_MANY_STREAMS", ErrorKind::TooMany);
pub const UNKNOWN_FIELD: Code = Code::new("UNKNOWN_FIELD", ErrorKind::Invalid);
