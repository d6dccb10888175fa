use platform_access::Kind;

/// Tool servers.
pub const TOOL_SERVER: Kind = Kind::placed("tool-server");
