//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const ASSISTANT_INACTIVE: Code = Code::new("ASSISTANT_INACTIVE", ErrorKind::Conflict);
pub const ASSISTANT_NOT_FOUND: Code = Code::new("ASSISTANT_NOT_FOUND", ErrorKind::NotFound);
pub const CHAT_BUSY: Code = Code::new("CHAT_BUSY", ErrorKind::Conflict);
pub const CHAT_HANDED_OFF: Code = Code::new("CHAT_HANDED_OFF", ErrorKind::Conflict);
pub const CHAT_NOT_FOUND: Code = Code::new("CHAT_NOT_FOUND", ErrorKind::NotFound);
pub const CHAT_NOT_PROCESSING: Code = Code::new("CHAT_NOT_PROCESSING", ErrorKind::Conflict);
pub const CHAT_NOT_WAITING: Code = Code::new("CHAT_NOT_WAITING", ErrorKind::Conflict);
pub const PRESETS_FORBIDDEN: Code = Code::new("PRESETS_FORBIDDEN", ErrorKind::Forbidden);
pub const QUEUE_FULL: Code = Code::new("QUEUE_FULL", ErrorKind::Conflict);
