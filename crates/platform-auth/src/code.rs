//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const FULL_KEY_REQUIRED: Code = Code::new("FULL_KEY_REQUIRED", ErrorKind::Forbidden);
pub const INVALID_TTL: Code = Code::new("INVALID_TTL", ErrorKind::Invalid);
pub const KEY_NOT_FOUND: Code = Code::new("KEY_NOT_FOUND", ErrorKind::NotFound);
pub const NAME_TAKEN: Code = Code::new("NAME_TAKEN", ErrorKind::Conflict);
pub const SESSION_NOT_FOUND: Code = Code::new("SESSION_NOT_FOUND", ErrorKind::NotFound);
pub const TOKEN_EXPIRED: Code = Code::new("TOKEN_EXPIRED", ErrorKind::Unauthenticated);
pub const TOKEN_REVOKED: Code = Code::new("TOKEN_REVOKED", ErrorKind::Unauthenticated);
pub const UNAUTHENTICATED: Code = Code::new("UNAUTHENTICATED", ErrorKind::Unauthenticated);
