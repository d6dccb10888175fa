//! The codes of runs.

use platform_core::{Code, ErrorKind};

/// As many runs of an account wait as may (contract 00 §8).
pub const RATE_LIMIT_EXCEEDED: Code = Code::new("RATE_LIMIT_EXCEEDED", ErrorKind::TooMany);
