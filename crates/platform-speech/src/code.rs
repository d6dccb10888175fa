//! The codes of speech (contract 15).

use platform_core::{Code, ErrorKind};

/// There is no recording, or there are two.
pub const AUDIO_MISSING: Code = Code::new("AUDIO_MISSING", ErrorKind::Invalid);
/// It is no recording that is read here.
pub const AUDIO_UNSUPPORTED_FORMAT: Code = Code::new("AUDIO_UNSUPPORTED_FORMAT", ErrorKind::Invalid);
/// Nobody speaks in it.
pub const NO_SPEECH_DETECTED: Code = Code::new("NO_SPEECH_DETECTED", ErrorKind::Invalid);
/// There is no engine.
pub const SPEECH_NOT_CONFIGURED: Code = Code::new("SPEECH_NOT_CONFIGURED", ErrorKind::Invalid);
pub use platform_runtime::code::TRANSCRIPT_NOT_FOUND;
