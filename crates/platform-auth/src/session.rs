//! Tenant sessions (contract 01 §4).

mod model;
mod repository;
mod service;
mod token;

pub use model::{MintedSession, NewSession, SessionFilter, SessionPage, TenantSession};
pub(crate) use repository::{end_of_value, revoke_of_key, revoke_of_user};
pub use repository::{purge as purge_sessions, revoke_all as revoke_sessions_in};
pub use service::SessionService;
pub(crate) use service::authenticate;
pub(crate) use token::is_session_token;
