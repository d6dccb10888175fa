//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const NOT_OWNER: Code = Code::new("NOT_OWNER", ErrorKind::Forbidden);
pub const PROJECT_ARCHIVED: Code = Code::new("PROJECT_ARCHIVED", ErrorKind::Conflict);
pub const PROJECT_FORBIDDEN: Code = Code::new("PROJECT_FORBIDDEN", ErrorKind::Forbidden);
pub const PROJECT_NOT_FOUND: Code = Code::new("PROJECT_NOT_FOUND", ErrorKind::NotFound);
