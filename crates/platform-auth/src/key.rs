//! API keys (contract 01 §3).

mod model;
pub(crate) mod repository;
mod rules;
mod secret;
mod service;

pub use model::{ApiKey, ApiKeyPage, ApiKeyWithSecret, Endpoint, IdentityMode, KeyKind, NewApiKey, Preset, Rotation};
pub use repository::purge as purge_old_values;
pub use rules::KeyRules;
pub use secret::KeySecret;
pub use service::KeyService;
