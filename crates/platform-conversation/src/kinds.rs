//! Kinds of resources that several crates above this one name.

use platform_access::Kind;

/// Agents.
pub const AGENT: Kind = Kind::placed("agent");
/// Assistants.
pub const ASSISTANT: Kind = Kind::placed("assistant");
/// Environments.
pub const ENVIRONMENT: Kind = Kind::placed("environment");
