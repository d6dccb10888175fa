//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const INVALID_USAGE_AMOUNT: Code = Code::new("INVALID_USAGE_AMOUNT", ErrorKind::Invalid);
pub const INVALID_USAGE_SOURCE: Code = Code::new("INVALID_USAGE_SOURCE", ErrorKind::Invalid);
pub const TENANT_NOT_FOUND: Code = Code::new("TENANT_NOT_FOUND", ErrorKind::NotFound);
pub const TIER_IN_USE: Code = Code::new("TIER_IN_USE", ErrorKind::Conflict);
pub const TIER_NOT_FOUND: Code = Code::new("TIER_NOT_FOUND", ErrorKind::NotFound);
