//! The codes of the MCP gateway (contract 12).

use platform_core::{Code, ErrorKind};

/// There is no such profile, or none that the caller may see.
pub const PROFILE_NOT_FOUND: Code = Code::new("PROFILE_NOT_FOUND", ErrorKind::NotFound);
pub use platform_toolservers::code::{TOOL_NOT_FOUND, TOOL_SERVER_NOT_FOUND};
