//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const TEMPLATE_ERROR: Code = Code::new("TEMPLATE_ERROR", ErrorKind::Invalid);
pub const TOOL_NOT_FOUND: Code = Code::new("TOOL_NOT_FOUND", ErrorKind::NotFound);
pub const TOOL_SERVER_NOT_FOUND: Code = Code::new("TOOL_SERVER_NOT_FOUND", ErrorKind::NotFound);
