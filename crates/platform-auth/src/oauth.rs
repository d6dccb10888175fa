//! The authorization server (contract 01 §5; OAuth 2.1, RFC 7591, 7636, 7009, 7662, 8414, 8707, 9207).

mod access;
mod clients;
mod error;
mod external;
pub(crate) mod grants;
mod log_ins;
mod registration;
mod scopes;
mod server;

pub(crate) use access::{authenticate, part};
pub(crate) use clients::ClientRow;
pub use clients::{ClientPage, ClientService, ClientWithSecret, NewClient, OAuthClient};
pub use error::{OAuthError, OAuthOutcome};
pub(crate) use external::External;
pub use external::TrustedIssuer;
pub(crate) use grants::find as find_grant;
pub use grants::purge as purge_grants;
pub(crate) use grants::revoke_of_user;
pub(crate) use log_ins::{CONSOLE, end_of_user as end_log_ins, insert as insert_log_in, new as new_log_in};
pub use log_ins::{SignIn, purge as purge_log_ins};
pub(crate) use registration::DOCUMENT;
pub use registration::purge as purge_unused_clients;
pub use scopes::{SCOPES, Scopes};
pub use server::{Authorization, AuthorizeRequest, Granted, OAuthService, TokenRequest, Tokens};
