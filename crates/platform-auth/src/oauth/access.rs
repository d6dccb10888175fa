//! Access tokens: signed by this server, good for as long as what they follow from.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode,
    jwk::{Jwk, PublicKeyUse},
};
use platform_core::{AccountId, Caller, Credential, Error, Id, Object, Origin, OriginUser, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    grants::{self, GrantRow},
    scopes::Scopes,
};
use crate::{
    PgAuthService,
    identity::{Identity, Rights},
    service::Known,
    signing::{Purpose, SigningKey, SigningKeys, TokenAlgorithm},
    user::{Role, repository::UserRow},
};

/// Who may take a token that names no resource.
pub(crate) const API: &str = "api";

/// What an access token says (contract 01 §5); `sid` names the grant it follows from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub iss: String,
    pub aud: String,
    pub sub: String,
    pub cid: String,
    pub client_id: String,
    pub scope: String,
    pub role: String,
    /// Seconds since 1970.
    pub iat: i64,
    pub exp: i64,
    pub jti: String,
    pub sid: String,
}

/// A part of a JWT of three parts, as JSON.
pub(crate) fn part(token: &str, at: usize) -> Option<Object> {
    let parts: Vec<&str> = token.split('.').collect();
    let json = (parts.len() == 3).then(|| URL_SAFE_NO_PAD.decode(parts[at]).ok()).flatten()?;
    serde_json::from_slice(&json).ok()
}

impl TokenAlgorithm {
    const ALL: [Self; 2] = [Self::EdDsa, Self::Rs256];

    fn name(self) -> Algorithm {
        match self {
            Self::EdDsa => Algorithm::EdDSA,
            Self::Rs256 => Algorithm::RS256,
        }
    }

    fn encoding(self, key: &SigningKey) -> EncodingKey {
        match self {
            Self::EdDsa => EncodingKey::from_ed_der(&key.secret),
            Self::Rs256 => EncodingKey::from_rsa_der(&key.secret),
        }
    }

    /// The public half of a key.
    fn public(self, key: &SigningKey) -> Result<Jwk> {
        let mut jwk = Jwk::from_encoding_key(&self.encoding(key), self.name()).map_err(Error::internal)?;
        (jwk.common.key_id, jwk.common.public_key_use) = (Some(key.id.clone()), Some(PublicKeyUse::Signature));
        Ok(jwk)
    }
}

/// Keys that verify access tokens (RFC 7517): those of the algorithm in use, and of one that was in use before.
pub(crate) async fn jwks(auth: &PgAuthService) -> Result<Value> {
    auth.signing.current(Purpose::Access(auth.config.token_algorithm)).await?;
    let of = |algorithm: TokenAlgorithm| {
        let keys = auth.signing.all(Purpose::Access(algorithm));
        keys.into_iter().map(move |key| algorithm.public(&key))
    };
    Ok(json!({"keys": TokenAlgorithm::ALL.into_iter().flat_map(of).collect::<Result<Vec<_>>>()?}))
}

/// A token for what was granted.
pub(crate) async fn issue(
    auth: &PgAuthService,
    grant: &GrantRow,
    user: &UserRow,
    scope: &Scopes,
    life: Duration,
) -> Result<String> {
    let now = auth.clock.now().0 / 1000;
    let claims = Claims {
        iss: auth.config.issuer.clone(),
        aud: grant.audience.clone(),
        sub: grant.user_id.clone(),
        cid: grant.account_id.clone(),
        client_id: grant.client_id.clone(),
        scope: scope.to_string(),
        role: user.role().as_str().to_owned(),
        iat: now,
        exp: now + i64::try_from(life.as_secs()).unwrap_or(i64::MAX - now),
        jti: Id::<Claims>::generate().into(),
        sid: grant.id.clone(),
    };
    let algorithm = auth.config.token_algorithm;
    let key = auth.signing.current(Purpose::Access(algorithm)).await?;
    let mut header = Header::new(algorithm.name());
    (header.kid, header.typ) = (Some(key.id.clone()), Some("at+jwt".to_owned()));
    encode(&header, &claims, &algorithm.encoding(&key)).map_err(Error::internal)
}

/// What a token says, if this server signed it; its time is not looked at.
pub(crate) async fn verify(keys: &SigningKeys, token: &str) -> Result<Option<Claims>> {
    let Some(header) = part(token, 0) else { return Ok(None) };
    let Some(kid) = header.get("kid").and_then(Value::as_str) else { return Ok(None) };
    let algorithm = match header.get("alg").and_then(Value::as_str) {
        Some("EdDSA") => TokenAlgorithm::EdDsa,
        Some("RS256") => TokenAlgorithm::Rs256,
        _ => return Ok(None),
    };
    if header.contains_key("crit") {
        return Ok(None);
    }
    // A key is good for its own algorithm alone.
    let Some(key) = keys.find(Purpose::Access(algorithm), kid).await? else { return Ok(None) };
    let Ok(verifier) = DecodingKey::from_jwk(&algorithm.public(&key)?) else { return Ok(None) };
    let mut wanted = Validation::new(algorithm.name());
    wanted.validate_exp = false;
    wanted.validate_aud = false;
    Ok(decode::<Claims>(token, &verifier, &wanted).ok().map(|token| token.claims))
}

/// Whom an access token stands for; `None` when it is not one of ours.
pub(crate) async fn authenticate(auth: &PgAuthService, token: &str) -> Result<Option<Known>> {
    let issuer = part(token, 1).and_then(|claims| Some(claims.get("iss")?.as_str()?.to_owned()));
    if let (Some(external), Some(issuer)) = (&auth.external, &issuer)
        && external.is_issuer(issuer)
    {
        return external.authenticate(auth, token).await;
    }
    let Some(claims) = verify(&auth.signing, token).await? else { return Ok(None) };
    let conn = auth.db.read().await?;
    let Some((grant, user, client)) = grants::find(conn.get(), &claims.sid).await? else { return Ok(None) };
    let Ok(account) = AccountId::parse(&claims.cid) else { return Ok(None) };
    if grant.account_id != claims.cid || grant.user_id != claims.sub {
        return Ok(None);
    }
    // What a client may no longer ask for its tokens no longer open.
    let narrowed = Scopes::parse(&claims.scope).narrowed_to(&client.scopes());
    let said = [
        ("iss", claims.iss.as_str()),
        ("aud", &claims.aud),
        ("sub", &claims.sub),
        ("cid", &claims.cid),
        ("client_id", &grant.client_id),
        ("scope", &claims.scope),
        // That of the user now.
        ("role", user.role().as_str()),
    ];
    let said = said.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let caller = caller(account, &user, &grant.client_id, Some(grant.id));
    let resource = (claims.aud != API).then_some(claims.aud);
    Ok(Some(Known {
        identity: Arc::new(Identity { caller, rights: Rights::Token { scopes: narrowed, resource, claims: said } }),
        is_revoked: grant.revoked_ms.is_some() || user.disabled,
        expires: Some(Timestamp(claims.exp.saturating_mul(1000))),
        touched: None,
    }))
}

/// The caller behind a user's token; `grant`: ours that it follows from.
pub(crate) fn caller(account: AccountId, user: &UserRow, client: &str, grant: Option<String>) -> Caller {
    let credential = Credential::Token { user: user.id.clone(), client: client.to_owned() };
    let behind = OriginUser { id: user.id.clone(), is_admin: user.role() == Role::Admin };
    let origin = Origin { user: Some(behind), grant, ..Origin::default() };
    Caller { account, credential, user_uid: user.id.clone(), projects: None, origin }
}
