//! The codes of webhooks (contract 17).

use platform_core::{Code, ErrorKind};

/// There is no such webhook.
pub const WEBHOOK_NOT_FOUND: Code = Code::new("WEBHOOK_NOT_FOUND", ErrorKind::NotFound);
/// There is no such delivery.
pub const DELIVERY_NOT_FOUND: Code = Code::new("DELIVERY_NOT_FOUND", ErrorKind::NotFound);
