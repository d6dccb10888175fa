//! The codes of triggers (contract 09).

use platform_core::{Code, ErrorKind};

/// There is no such delivery.
pub const EVENT_NOT_FOUND: Code = Code::new("EVENT_NOT_FOUND", ErrorKind::NotFound);
/// The tool server is made from no app.
pub use platform_integrations::code::NOT_AN_INTEGRATION;
/// Too many events wait.
pub const TOO_MANY_EVENTS: Code = Code::new("TOO_MANY_EVENTS", ErrorKind::TooMany);
/// There is no such trigger.
pub const TRIGGER_NOT_FOUND: Code = Code::new("TRIGGER_NOT_FOUND", ErrorKind::NotFound);
/// The request is not the app's, or too old.
pub const UNAUTHENTICATED: Code = Code::new("UNAUTHENTICATED", ErrorKind::Unauthenticated);
