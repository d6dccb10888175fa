//! Users: people who log in, here or at a trusted issuer (contract 01 §5).

mod model;
mod password;
pub(crate) mod repository;
mod service;

pub use model::{NewUser, Role, User, UserPage};
pub use service::UserService;
pub(crate) use service::{external_user, sign_in};
