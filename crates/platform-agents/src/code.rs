//! Error codes that this crate raises (contract 00 §7).
#![expect(missing_docs, reason = "each constant is the code it prints")]

use platform_core::{Code, ErrorKind};

pub const AGENT_ARCHIVED: Code = Code::new("AGENT_ARCHIVED", ErrorKind::Conflict);
pub const AGENT_BUSY: Code = Code::new("AGENT_BUSY", ErrorKind::TooMany);
pub const AGENT_DISABLED: Code = Code::new("AGENT_DISABLED", ErrorKind::Conflict);
pub const AGENT_NOT_FOUND: Code = Code::new("AGENT_NOT_FOUND", ErrorKind::NotFound);
pub const EVALUATION_NOT_FOUND: Code = Code::new("EVALUATION_NOT_FOUND", ErrorKind::NotFound);
pub const INVALID_CRON: Code = Code::new("INVALID_CRON", ErrorKind::Invalid);
pub const INVALID_STATE_VALUE: Code = Code::new("INVALID_STATE_VALUE", ErrorKind::Invalid);
pub const INVALID_SUBAGENT_CONFIG: Code = Code::new("INVALID_SUBAGENT_CONFIG", ErrorKind::Invalid);
pub const THREAD_NOT_FOUND: Code = Code::new("THREAD_NOT_FOUND", ErrorKind::NotFound);
pub const THREAD_STATE_CONFLICT: Code = Code::new("THREAD_STATE_CONFLICT", ErrorKind::Conflict);
