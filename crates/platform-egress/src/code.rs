//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const URL_NOT_ALLOWED: Code = Code::new("URL_NOT_ALLOWED", ErrorKind::Invalid);
