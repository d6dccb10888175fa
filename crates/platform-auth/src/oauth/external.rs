//! Access tokens of an issuer that the operator trusts (contract 01 §5).

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use jsonwebtoken::{
    Algorithm, DecodingKey, Validation, decode,
    errors::ErrorKind,
    jwk::{Jwk, JwkSet},
};
use platform_core::{AccountId, Error, Object, Result, Timestamp, millis, parse};
use platform_egress::{Egress, EgressRules};
use serde_json::Value;

use super::{
    access::{caller, part},
    scopes::Scopes,
};
use crate::{
    PgAuthService, account, code,
    identity::{Identity, Rights},
    service::Known,
    user::{Role, external_user, repository},
};

/// Keys are read anew after so long, and for a name that is not known at most so often.
const FRESH_MS: i64 = 600_000;
const RELOAD_MS: i64 = 60_000;
/// An issuer that could not be asked is left alone for so long.
const LEFT_ALONE_MS: i64 = 5000;
const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
const LEEWAY_MS: i64 = 5000;

/// An issuer whose access tokens are taken, by settings.
#[derive(Debug, Clone)]
pub struct TrustedIssuer {
    /// Its address, as in `iss`.
    pub issuer: String,
    /// What `aud` must contain.
    pub audience: String,
    /// A clientUID or the name of an account, or `claim:<name>`: the claim that holds a clientUID.
    pub account: String,
    /// The claim that holds scopes, as a list or text.
    pub scope_claim: String,
    /// `name=value`: users with that claim are administrators.
    pub admin_claim: Option<(String, String)>,
}

/// The trusted issuer and its keys.
pub(crate) struct External {
    trusted: TrustedIssuer,
    egress: Egress,
    keys: Mutex<Arc<Keys>>,
    loading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Keys {
    loaded: Timestamp,
    /// When the issuer could not be asked.
    failed: Timestamp,
    all: Vec<Jwk>,
}

/// The user a token is of: text of 1 to 255 characters (`OpenID` Connect Core §2) that can be stored.
fn subject(claims: &Object) -> Option<&str> {
    let subject = claims.get("sub")?.as_str()?;
    let good = (1..=255).contains(&subject.len()) && !subject.contains(char::is_control);
    good.then_some(subject)
}

impl External {
    pub fn new(trusted: TrustedIssuer) -> Result<Self> {
        // The operator named the address: it may be an inner one.
        let rules = EgressRules { allow_private: true, ..EgressRules::default() };
        let egress = Egress::new(rules).map_err(|error| Error::internal(error.to_string()))?;
        Ok(Self { trusted, egress, keys: Mutex::default(), loading: tokio::sync::Mutex::default() })
    }

    pub fn is_issuer(&self, issuer: &str) -> bool {
        self.trusted.issuer == issuer
    }

    /// Whom a token of the issuer stands for; `None` when it is not good.
    pub async fn authenticate(&self, auth: &PgAuthService, token: &str) -> Result<Option<Known>> {
        let now = auth.clock.now();
        let Some(claims) = self.verify(token, now).await? else { return Ok(None) };
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let (Some(subject), Some(expires)) = (subject(&claims), claims.get("exp").and_then(Value::as_f64)) else {
            return Ok(None);
        };
        let Some(account) = self.account(auth, &claims).await? else { return Ok(None) };
        let mut user = external_user(auth, &account, &self.trusted.issuer, subject).await?;
        if let Some((name, value)) = &self.trusted.admin_claim {
            let holds = |claim: &Value| match claim {
                Value::Array(items) => items.iter().any(|item| item == value),
                other => other == value || other.as_bool().is_some_and(|bool| bool.to_string() == *value),
            };
            let role = if claims.get(name).is_some_and(holds) { Role::Admin } else { Role::Member };
            if user.role() != role {
                role.as_str().clone_into(&mut user.role);
                repository::update(&mut *auth.db.conn().await?, &account, &user).await?;
                auth.known.changed(&user.id).await?;
            }
        }
        let scopes = match claims.get(&self.trusted.scope_claim) {
            Some(Value::String(list)) => Scopes::parse(list),
            Some(Value::Array(list)) => Scopes::of(list.iter().filter_map(Value::as_str).map(str::to_owned)),
            _ => Scopes::default(),
        };
        let client = text("client_id").or_else(|| text("azp")).unwrap_or_default();
        #[expect(clippy::cast_possible_truncation, reason = "a time in seconds")]
        let expires = (expires as i64).saturating_mul(1000).saturating_add(LEEWAY_MS);
        let texts = |value: &Value| match value {
            Value::Array(items) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            value => value.as_str().map(str::to_owned).into_iter().collect::<Vec<_>>(),
        };
        let named = |(name, value): (&String, &Value)| {
            texts(value).into_iter().map(|text| (name.clone(), text)).collect::<Vec<_>>()
        };
        let known = claims.iter().flat_map(named).collect();
        let caller = caller(account, &user, client, None);
        Ok(Some(Known {
            identity: Arc::new(Identity { caller, rights: Rights::Token { scopes, resource: None, claims: known } }),
            is_revoked: user.disabled,
            expires: Some(Timestamp(expires)),
            touched: None,
        }))
    }

    async fn account(&self, auth: &PgAuthService, claims: &Object) -> Result<Option<AccountId>> {
        let (name, by_claim) = match self.trusted.account.strip_prefix("claim:") {
            Some(claim) => (claims.get(claim).and_then(Value::as_str), true),
            None => (Some(self.trusted.account.as_str()), false),
        };
        let Some(name) = name else { return Ok(None) };
        let found = account::find(&mut *auth.db.conn().await?, name).await?;
        // A claim names an account by its id alone.
        Ok(found.filter(|id| !by_claim || id == name).and_then(|id| AccountId::parse(&id).ok()))
    }

    async fn verify(&self, token: &str, now: Timestamp) -> Result<Option<Object>> {
        let Some(header) = part(token, 0) else { return Ok(None) };
        let algorithm = header.get("alg").and_then(Value::as_str);
        let Some(algorithm) = ALGORITHMS.into_iter().find(|known| Some(format!("{known:?}").as_str()) == algorithm)
        else {
            return Ok(None);
        };
        if header.contains_key("crit") {
            return Ok(None);
        }
        let kid = header.get("kid").and_then(Value::as_str);
        let mut wanted = Validation::new(algorithm);
        wanted.set_audience(&[&self.trusted.audience]);
        wanted.set_issuer(&[&self.trusted.issuer]);
        wanted.set_required_spec_claims(&["exp", "aud", "iss"]);
        wanted.validate_nbf = true;
        wanted.leeway = 5;
        for jwk in self.keys(kid, now).await? {
            let Ok(key) = DecodingKey::from_jwk(&jwk) else { continue };
            match decode::<Object>(token, &key, &wanted) {
                Ok(decoded) => return Ok(Some(decoded.claims)),
                // Only what was signed is judged.
                Err(error) if matches!(error.kind(), ErrorKind::ExpiredSignature) => {
                    let message = "This access token is past its time; get a new one.";
                    return Err(Error::new(code::TOKEN_EXPIRED, message));
                }
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// The keys of a name, or all of them for a token that names none.
    async fn keys(&self, kid: Option<&str>, now: Timestamp) -> Result<Vec<Jwk>> {
        let of = |keys: &Keys| -> Vec<Jwk> {
            let named = |jwk: &&Jwk| kid.is_none_or(|kid| jwk.common.key_id.as_deref() == Some(kid));
            keys.all.iter().filter(named).cloned().collect()
        };
        let answer = |keys: &Keys| {
            let (found, age) = (of(keys), now.0 - keys.loaded.0);
            let is_alone = now.0 - keys.failed.0 < LEFT_ALONE_MS;
            match found.is_empty() {
                // Those there were are good for as long as no others can be had.
                false => (age < FRESH_MS || is_alone).then_some(Ok(found)),
                true if age < RELOAD_MS => Some(Ok(found)),
                true => is_alone.then(|| Err(Error::unavailable("the trusted issuer did not answer a moment ago"))),
            }
        };
        let known = || Arc::clone(&self.keys.lock().expect("lock"));
        if let Some(answer) = answer(&known()) {
            return answer;
        }
        let _one = self.loading.lock().await;
        if let Some(answer) = answer(&known()) {
            return answer;
        }
        let began = Instant::now();
        let loaded = self.load().await;
        let failed = Timestamp(now.0 + millis(began.elapsed()));
        let keys = match &loaded {
            Ok(all) => Keys { loaded: now, failed: Timestamp::default(), all: all.clone() },
            Err(_) => Keys { failed, loaded: known().loaded, all: known().all.clone() },
        };
        let found = of(&keys);
        *self.keys.lock().expect("lock") = Arc::new(keys);
        if found.is_empty() { loaded.map(|_| found) } else { Ok(found) }
    }

    async fn load(&self) -> Result<Vec<Jwk>> {
        let issuer = self.trusted.issuer.trim_end_matches('/');
        let mut reason = String::new();
        for path in ["/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"] {
            let metadata = match self.read(&format!("{issuer}{path}")).await {
                Ok(metadata) => metadata,
                Err(error) => {
                    reason = error;
                    continue;
                }
            };
            let Some(address) = metadata["jwks_uri"].as_str() else { continue };
            let keys = self.read(address).await.map_err(Error::unavailable)?;
            let set: JwkSet = serde_json::from_value(keys).map_err(Error::unavailable)?;
            return Ok(set.keys);
        }
        Err(Error::unavailable(format!("the keys of the trusted issuer cannot be read: {reason}")))
    }

    async fn read(&self, url: &str) -> std::result::Result<Value, String> {
        let read = tokio::time::timeout(Duration::from_secs(5), self.egress.get(url));
        let fetched = read.await.map_err(|_| "it does not answer".to_owned())?.map_err(|error| error.to_string())?;
        if fetched.status != 200 {
            return Err(format!("{url} answers with {}", fetched.status));
        }
        parse(&fetched.bytes).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_of_a_user_who_can_be_named() {
        let of = |sub: Value| subject(&Object::from_iter([("sub".to_owned(), sub)])).map(str::to_owned);
        for good in ["ann", "auth0|6f2", "ä", &"x".repeat(255)] {
            assert_eq!(of(json!(good)).as_deref(), Some(good));
        }
        for bad in
            [json!(""), json!(null), json!(7), json!(["ann"]), json!("a\u{0}b"), json!("a\nb"), json!("x".repeat(256))]
        {
            assert_eq!(of(bad.clone()), None, "{bad}");
        }
        assert_eq!(subject(&Object::new()), None);
    }
}
