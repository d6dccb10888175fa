//! Accounts, API keys and tenant sessions: who is calling, and with what rights.
//!
//! **Owns** the tables `accounts`, `api_keys`, `tenant_sessions` and `signing_keys`; the endpoints
//! `/v1/api-keys` and `/v1/tenant-sessions`; the commands `accounts` and `keys`. **Needs**
//! `platform-db` and a vault for what the server signs with.
//!
//! **Invariants**: the value of a key is shown once and stored only as SHA-256; a credential is
//! looked up through a bounded cache that every process empties at once when a key or session
//! changes; one that is unknown, disabled, revoked or past its time gets the precise 401 of
//! contract 01 §3; no credential makes a wider one; the last usable full key of an account cannot
//! be taken away or narrowed; a session ends with the key that minted it.

mod account;
mod identity;
mod key;
mod schema;
mod service;
mod session;
mod signing;

pub use account::AccountRecord;
pub use identity::{Identity, Rights};
pub use key::{
    ApiKey, ApiKeyPage, ApiKeyWithSecret, Endpoint, IdentityMode, KeyKind, KeyRules, KeySecret, KeyService, NewApiKey,
    Preset, Rotation,
};
pub use service::{AuthConfig, AuthService, PgAuthService};
pub use session::{
    MintedSession, NewSession, SessionFilter, SessionPage, SessionService, TenantSession, purge_sessions,
};
