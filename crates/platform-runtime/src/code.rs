//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const INVALID_SCHEMA: Code = Code::new("INVALID_SCHEMA", ErrorKind::Invalid);
pub const TENANT_LIMIT_EXCEEDED: Code = Code::new("TENANT_LIMIT_EXCEEDED", ErrorKind::TooMany);
pub const TRANSCRIPT_NOT_FOUND: Code = Code::new("TRANSCRIPT_NOT_FOUND", ErrorKind::NotFound);
