//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const INVALID_SUBAGENTS: Code = Code::new("INVALID_SUBAGENTS", ErrorKind::Invalid).repeating_details();
pub const MESSAGE_NOT_FOUND: Code = Code::new("MESSAGE_NOT_FOUND", ErrorKind::NotFound);
