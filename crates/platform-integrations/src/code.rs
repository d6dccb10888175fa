//! The codes of integrations (contract 08, 10 §6, §7).

use platform_core::{Code, ErrorKind};

/// There is no such app.
pub const APP_NOT_FOUND: Code = Code::new("APP_NOT_FOUND", ErrorKind::NotFound);
/// There is no such account of an end user.
pub const ACCOUNT_NOT_FOUND: Code = Code::new("ACCOUNT_NOT_FOUND", ErrorKind::NotFound);
/// There is no such connection.
pub const CONNECTION_NOT_FOUND: Code = Code::new("CONNECTION_NOT_FOUND", ErrorKind::NotFound);
/// The app refuses the credentials.
pub const CREDENTIALS_REJECTED: Code = Code::new("CREDENTIALS_REJECTED", ErrorKind::Invalid);
/// There is no such event type.
pub const EVENT_TYPE_NOT_FOUND: Code = Code::new("EVENT_TYPE_NOT_FOUND", ErrorKind::NotFound);
/// Fields are missing that connecting takes.
pub const INTEGRATION_SETUP_REQUIRED: Code =
    Code::new("INTEGRATION_SETUP_REQUIRED", ErrorKind::Invalid).repeating_details();
/// A cursor is of another list, or none.
pub const INVALID_CURSOR: Code = Code::new("INVALID_CURSOR", ErrorKind::Invalid);
/// The browser cannot be sent there.
pub const INVALID_RETURN_TO: Code = Code::new("INVALID_RETURN_TO", ErrorKind::Invalid);
/// It would leave no tool.
pub const LAST_TOOL: Code = Code::new("LAST_TOOL", ErrorKind::Invalid);
/// The tool server is made from no app.
pub const NOT_AN_INTEGRATION: Code = Code::new("NOT_AN_INTEGRATION", ErrorKind::Invalid);
/// There is no such MCP server of an end user.
pub const SERVER_NOT_FOUND: Code = Code::new("SERVER_NOT_FOUND", ErrorKind::NotFound);
/// The assistant offers none.
pub const TENANT_INTEGRATIONS_UNAVAILABLE: Code = Code::new("TENANT_INTEGRATIONS_UNAVAILABLE", ErrorKind::NotFound);
/// The server does not expose the tool.
pub const TOOL_NOT_EXPOSED: Code = Code::new("TOOL_NOT_EXPOSED", ErrorKind::Invalid);
pub use platform_toolservers::code::TOOL_NOT_FOUND;
