//! The codes of memory (contract 00 §7).

use platform_core::{Code, ErrorKind};

/// There is no room for another entry.
pub const CORE_MEMORY_FULL: Code = Code::new("CORE_MEMORY_FULL", ErrorKind::Conflict);
/// There is no such entry, or no longer.
pub const ENTRY_NOT_FOUND: Code = Code::new("ENTRY_NOT_FOUND", ErrorKind::NotFound);
/// The entry is not this caller's to change.
pub const ENTRY_READ_ONLY: Code = Code::new("ENTRY_READ_ONLY", ErrorKind::Forbidden);
