//! Codes of errors of this crate.

use platform_core::{Code, ErrorKind};

/// There is no such session.
pub const SESSION_NOT_FOUND: Code = Code::new("SESSION_NOT_FOUND", ErrorKind::NotFound);
/// There is no such machine, or it has ended.
pub const SANDBOX_NOT_FOUND: Code = Code::new("SANDBOX_NOT_FOUND", ErrorKind::NotFound);
/// There is no such snapshot.
pub const SNAPSHOT_NOT_FOUND: Code = Code::new("SNAPSHOT_NOT_FOUND", ErrorKind::NotFound);
/// The environment has a machine that runs.
pub const SESSION_ACTIVE: Code = Code::new("SESSION_ACTIVE", ErrorKind::Conflict);
/// What is on the machine is being saved.
pub const SNAPSHOT_SAVE_IN_PROGRESS: Code = Code::new("SNAPSHOT_SAVE_IN_PROGRESS", ErrorKind::Conflict);
/// Somebody else saved since the machine was started.
pub const SNAPSHOT_CHANGED: Code = Code::new("SNAPSHOT_CHANGED", ErrorKind::Conflict);
/// This server makes no such machine now.
pub const SANDBOX_UNAVAILABLE: Code = Code::new("SANDBOX_UNAVAILABLE", ErrorKind::Conflict);
/// The environment keeps nothing of its machines.
pub const SNAPSHOTS_DISABLED: Code = Code::new("SNAPSHOTS_DISABLED", ErrorKind::Invalid);
/// The file is no text.
pub const FILE_NOT_TEXT: Code = Code::new("FILE_NOT_TEXT", ErrorKind::Invalid);
