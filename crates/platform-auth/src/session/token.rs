use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use platform_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::{
    oauth::part,
    signing::{Purpose, SigningKeys},
};

const TYPE: &str = "tenant-session";
pub(crate) const AUDIENCE: &str = "api";

/// What a session token says (contract 01 §4).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub iss: String,
    pub aud: String,
    pub typ: String,
    pub cid: String,
    pub tid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stid: Option<String>,
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aids: Option<Vec<String>>,
    /// Seconds since 1970.
    pub iat: i64,
    pub exp: i64,
    pub jti: String,
}

impl Claims {
    /// The type a session token has.
    pub fn typ() -> String {
        TYPE.to_owned()
    }
}

/// Whether a credential says that it is a session token; nothing of it is believed yet.
pub(crate) fn is_session_token(credential: &str) -> bool {
    part(credential, 1).is_some_and(|claims| claims.get("typ").is_some_and(|typ| typ == TYPE))
}

pub(crate) async fn sign(keys: &SigningKeys, claims: &Claims) -> Result<String> {
    let key = keys.current(Purpose::Session).await?;
    let header = Header { kid: Some(key.id.clone()), ..Header::new(Algorithm::HS256) };
    encode(&header, claims, &EncodingKey::from_secret(&key.secret)).map_err(Error::internal)
}

/// What a token says, if this server signed it for its own API; its time is not looked at.
pub(crate) async fn verify(keys: &SigningKeys, token: &str) -> Result<Option<Claims>> {
    let Some(header) = part(token, 0) else { return Ok(None) };
    let Some(kid) = header.get("kid").and_then(|kid| kid.as_str()) else { return Ok(None) };
    if header.get("alg").is_none_or(|alg| alg != "HS256") || header.contains_key("crit") {
        return Ok(None);
    }
    let Some(key) = keys.find(Purpose::Session, kid).await? else { return Ok(None) };
    let mut wanted = Validation::new(Algorithm::HS256);
    wanted.set_audience(&[AUDIENCE]);
    wanted.validate_exp = false;
    let decoded = decode::<Claims>(token, &DecodingKey::from_secret(&key.secret), &wanted).ok();
    Ok(decoded.map(|token| token.claims).filter(|claims| claims.typ == TYPE))
}
