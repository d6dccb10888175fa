//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const IDEMPOTENCY_IN_PROGRESS: Code = Code::new("IDEMPOTENCY_IN_PROGRESS", ErrorKind::Conflict);
pub const IDEMPOTENCY_KEY_REUSED: Code = Code::new("IDEMPOTENCY_KEY_REUSED", ErrorKind::Unprocessable);
