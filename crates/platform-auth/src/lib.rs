//! Accounts, API keys, tenant sessions, users and OAuth: who is calling, and with what rights.
//!
//! **Owns** the tables `accounts`, `api_keys`, `api_key_old_values`, `tenant_sessions`, `users`, `log_ins`, `oauth_*` and `signing_keys`;
//! the endpoints `/v1/api-keys`, `/v1/tenant-sessions`, `/v1/users`, `/v1/oauth-clients` and `/oauth`; the
//! commands `accounts`, `keys` and `users`. **Needs** `platform-db`, and a vault for what the server signs with.
//!
//! **Invariants**: the value of a key is shown once and stored only as SHA-256; a credential is
//! looked up through a bounded cache that every process empties at once when a key or session
//! changes; one that is unknown, disabled, revoked or past its time gets the precise 401 of
//! contract 01 §3; no credential makes a wider one; the last usable full key of an account cannot
//! be taken away or narrowed; a credential falls with what it follows from: a key with the user who made it, a session with
//! the value of its key or with its user's grant, tokens with their grant, user, client and password; a code and a refresh token
//! are good once, and a second use revokes everything that followed; what a browser holds after a log-in, and a link that
//! logs in once, open the console alone, and end with the password.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_auth::*;
//! # use platform_core::{Clock, Result};
//! # use platform_db::{Bus, Db};
//! # use platform_vault::Vault;
//! # async fn example(db: Db, bus: Bus, clock: Arc<dyn Clock>, vault: Arc<Vault>, config: AuthConfig) -> Result<()> {
//! let auth = PgAuthService::new(&db, &bus, clock, vault, config)?;
//! let account = auth.create_account("acme").await?;
//! let identity = auth.authenticate("ak-…").await?;
//! # Ok(()) }
//! ```

mod account;
pub mod code;
mod identity;
mod key;
mod oauth;
mod schema;
mod service;
mod session;
mod signing;
mod user;

pub use account::AccountRecord;
pub use identity::{Identity, Rights};
pub use key::{
    ApiKey, ApiKeyPage, ApiKeyWithSecret, Endpoint, IdentityMode, KeyKind, KeyRules, KeySecret, KeyService, NewApiKey,
    Preset, Rotation, purge_old_values,
};
pub use oauth::{
    Authorization, AuthorizeRequest, ClientPage, ClientService, ClientWithSecret, Granted, NewClient, OAuthClient,
    OAuthError, OAuthOutcome, OAuthService, SCOPES, Scopes, SignIn, TokenRequest, Tokens, TrustedIssuer, purge_grants,
    purge_log_ins, purge_unused_clients,
};
pub use service::{AuthConfig, AuthService, PgAuthService};
pub use session::{
    MintedSession, NewSession, SessionFilter, SessionPage, SessionService, TenantSession, purge_sessions,
    revoke_sessions_in,
};
pub use signing::TokenAlgorithm;
pub use user::{NewUser, Role, User, UserPage, UserService};
