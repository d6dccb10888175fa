//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const PROVIDER_NOT_CONFIGURED: Code = Code::new("PROVIDER_NOT_CONFIGURED", ErrorKind::Invalid);
