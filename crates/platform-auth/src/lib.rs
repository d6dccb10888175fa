//! Accounts and API keys: who is calling.
//!
//! **Owns** the tables `accounts` and `api_keys`; the endpoints `/v1/api-keys`; the commands
//! `accounts` and `keys`. **Needs** `platform-db`.
//!
//! **Invariants**: the value of a key is shown once and stored only as SHA-256; a key is looked
//! up through a bounded cache that every process forgets at once when the key changes; a key
//! that is unknown, disabled or past its time gets the precise 401 of contract 01 §3; the last
//! usable full key of an account cannot be taken away.

mod model;
mod repository;
mod schema;
mod secret;
mod service;

pub use model::{AccountRecord, ApiKey, ApiKeyPage, ApiKeyWithSecret, IdentityMode, KeyKind, NewApiKey, Rotation};
pub use secret::KeySecret;
pub use service::{AuthService, PgAuthService};
