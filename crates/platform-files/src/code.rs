//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const FILE_NOT_FOUND: Code = Code::new("FILE_NOT_FOUND", ErrorKind::NotFound);
