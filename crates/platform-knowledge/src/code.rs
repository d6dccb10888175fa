//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const DOCUMENT_NOT_FOUND: Code = Code::new("DOCUMENT_NOT_FOUND", ErrorKind::NotFound);
pub const FOLDER_NOT_FOUND: Code = Code::new("FOLDER_NOT_FOUND", ErrorKind::NotFound);
pub const INVALID_SKILLS: Code = Code::new("INVALID_SKILLS", ErrorKind::Invalid);
pub const SKILL_NOT_FOUND: Code = Code::new("SKILL_NOT_FOUND", ErrorKind::NotFound);
pub const VERSION_NOT_FOUND: Code = Code::new("VERSION_NOT_FOUND", ErrorKind::NotFound);
