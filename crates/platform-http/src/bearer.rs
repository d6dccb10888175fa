//! A credential becomes a caller.

use std::sync::Arc;

use actix_web::http::header::{self, HeaderMap};
use platform_auth::{AuthService, Identity};
use platform_core::{Code, Error, Result};
use secrecy::{ExposeSecret, SecretString};

/// The value after `Bearer`, which cannot be printed.
#[derive(Clone)]
pub(crate) struct Bearer(SecretString);

impl Bearer {
    /// The one `Authorization: Bearer` header (contract 01 §1); `None` = there is none.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>> {
        let mut given = headers.get_all(header::AUTHORIZATION);
        let Some(value) = given.next() else { return Ok(None) };
        if given.next().is_some() {
            return Err(Error::new(Code::BAD_REQUEST, "Send one Authorization header, not two."));
        }
        let token = value.to_str().ok().and_then(|value| value.split_once(' '));
        match token {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => {
                Ok(Some(Self(token.trim().to_owned().into())))
            }
            _ => Err(Error::new(
                platform_auth::code::UNAUTHENTICATED,
                "The Authorization header must be `Bearer <credential>`.",
            )),
        }
    }

    /// Whom it stands for now.
    pub async fn identity(&self, auth: &Arc<dyn AuthService>) -> Result<Arc<Identity>> {
        auth.authenticate(self.0.expose_secret()).await
    }
}
