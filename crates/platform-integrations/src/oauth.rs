//! OAuth 2 with apps: where users decide, codes, refresh tokens, revocation (RFC 6749, 7636, 7009, 9207).

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use platform_egress::{
    Egress, EgressError, Fetched, Method, Outgoing, Payload, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
    sensitive,
};
use platform_vault::Secret;
use serde_json::Value;

use crate::pack::AuthScheme;

const TIMEOUT: Duration = Duration::from_secs(15);

/// Who this server is at an app.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub id: String,
    /// A public client has none.
    pub secret: Option<Secret>,
}

/// What a token server gave.
#[derive(Clone)]
pub(crate) struct Tokens {
    pub access: Secret,
    pub refresh: Option<Secret>,
    /// How long the access token is good, in milliseconds; `None` = for ever.
    pub life_ms: Option<i64>,
}

/// Why a token server gave nothing.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It will not.
    Final(String),
    /// It may later.
    Passing(String),
}

impl Refusal {
    pub fn reason(self) -> String {
        let (Self::Final(reason) | Self::Passing(reason)) = self;
        reason
    }
}

/// Where a user is to decide.
pub(crate) fn authorization_url(
    scheme: &AuthScheme,
    client: &Client,
    redirect_uri: &str,
    state: &str,
    verifier: &Secret,
) -> Option<Url> {
    let mut url = Url::parse(scheme.authorization_url.as_deref()?).ok()?;
    let scope = scheme.scopes.join(" ");
    {
        let mut query = url.query_pairs_mut();
        query.append_pair("response_type", "code");
        query.append_pair("client_id", &client.id);
        query.append_pair("redirect_uri", redirect_uri);
        query.append_pair("state", state);
        if !scope.is_empty() {
            query.append_pair("scope", &scope);
        }
        if let Some(resource) = &scheme.resource {
            query.append_pair("resource", resource);
        }
        if scheme.pkce {
            let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.expose().as_bytes()));
            query.append_pair("code_challenge", &challenge);
            query.append_pair("code_challenge_method", "S256");
        }
    }
    Some(url)
}

/// Tokens for a code.
pub(crate) async fn exchange(
    egress: &Egress,
    scheme: &AuthScheme,
    client: Option<&Client>,
    (code, redirect_uri, verifier): (&str, &str, &Secret),
) -> Result<Tokens, Refusal> {
    let mut form = vec![
        ("grant_type", "authorization_code".to_owned()),
        ("code", code.to_owned()),
        ("redirect_uri", redirect_uri.to_owned()),
    ];
    if scheme.pkce {
        form.push(("code_verifier", verifier.expose().to_owned()));
    }
    ask(egress, scheme, client, form).await
}

/// Tokens for a refresh token.
pub(crate) async fn refresh(
    egress: &Egress,
    scheme: &AuthScheme,
    client: Option<&Client>,
    token: &Secret,
) -> Result<Tokens, Refusal> {
    let form = vec![("grant_type", "refresh_token".to_owned()), ("refresh_token", token.expose().to_owned())];
    ask(egress, scheme, client, form).await
}

/// Has a token be good no longer; whether the app knows.
pub(crate) async fn revoke(egress: &Egress, scheme: &AuthScheme, client: Option<&Client>, token: &Secret) -> bool {
    let Some(url) = scheme.revocation_url.as_deref().and_then(|url| Url::parse(url).ok()) else { return true };
    let form = vec![("token", token.expose().to_owned())];
    for basic in [false, true] {
        match post(egress, scheme, &url, client, form.clone(), basic).await {
            Ok(answer) if answer.status < 400 => return true,
            // It may do so later (RFC 9110 §15.5.9, RFC 8470 §5.2, RFC 6585 §4).
            Ok(answer) if matches!(answer.status, 408 | 425 | 429) => return false,
            // It does not know the token, or no longer.
            Ok(answer) if answer.status < 500 && basic => return true,
            Ok(answer) if answer.status < 500 => {}
            Ok(_) | Err(_) => return false,
        }
    }
    true
}

/// What a token server says that could not answer now (RFC 6749 §4.1.2.1, RFC 8628 §3.5), and what Slack says in answers
/// of 200.
const PASSING: [&str; 10] = [
    "temporarily_unavailable",
    "server_error",
    "slow_down",
    "internal_error",
    "fatal_error",
    "service_unavailable",
    "request_timeout",
    "ratelimited",
    "rate_limited",
    "team_added_to_org",
];

async fn ask(
    egress: &Egress,
    scheme: &AuthScheme,
    client: Option<&Client>,
    mut form: Vec<(&str, String)>,
) -> Result<Tokens, Refusal> {
    form.extend(scheme.resource.clone().map(|resource| ("resource", resource)));
    let url = scheme.token_url.as_deref().and_then(|url| Url::parse(url).ok());
    let url = url.ok_or_else(|| Refusal::Final("the app has no token server".to_owned()))?;
    let mut basic = false;
    loop {
        let answer = post(egress, scheme, &url, client, form.clone(), basic).await.map_err(|error| match error {
            EgressError::NotAllowed(reason) => Refusal::Final(reason),
            other => Refusal::Passing(other.to_string()),
        })?;
        let body = read(&answer);
        // RFC 6749 §5.2: a code out of a fixed alphabet, so no secret of ours.
        let known = |code: &&str| code.len() <= 64 && code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let code = body["error"].as_str().filter(known);
        // Some take the secret in a header alone (RFC 6749 §2.3.1).
        if !basic && (answer.status == 401 || code == Some("invalid_client")) {
            basic = true;
            continue;
        }
        let access = body["access_token"].as_str().or_else(|| body["authed_user"]["access_token"].as_str());
        let Some(access) = access.filter(|_| (200..300).contains(&answer.status)) else {
            let said = code.unwrap_or("no access_token in its answer");
            let reason = format!("the token server answers {}: {said}", answer.status);
            let is_passing = answer.status >= 500
                || matches!(answer.status, 408 | 425 | 429)
                || code.is_some_and(|code| PASSING.contains(&code));
            // Only who says why has decided; a page of a proxy has not.
            let is_told = (200..300).contains(&answer.status) && answer.media_type.ends_with("json");
            let is_final = !is_passing && (code.is_some() || is_told);
            return Err(if is_final { Refusal::Final(reason) } else { Refusal::Passing(reason) });
        };
        let life = &body["expires_in"];
        let seconds = life.as_i64().or_else(|| life.as_str()?.parse().ok()).filter(|seconds| *seconds > 0);
        return Ok(Tokens {
            access: access.to_owned().into(),
            refresh: body["refresh_token"].as_str().map(|token| token.to_owned().into()),
            life_ms: seconds.map(|seconds| seconds.min(315_360_000) * 1000),
        });
    }
}

/// The answer as JSON; some answer as a form.
fn read(answer: &Fetched) -> Value {
    if let Ok(value) = platform_core::parse(&answer.bytes) {
        return value;
    }
    let text = String::from_utf8_lossy(&answer.bytes);
    let Ok(url) = Url::parse(&format!("form:?{text}")) else { return Value::Null };
    url.query_pairs().map(|(name, value)| (name.into_owned(), Value::from(value.into_owned()))).collect()
}

async fn post(
    egress: &Egress,
    scheme: &AuthScheme,
    url: &Url,
    client: Option<&Client>,
    mut form: Vec<(&str, String)>,
    basic: bool,
) -> Result<Fetched, EgressError> {
    let mut headers = HeaderMap::new();
    // What every request of the app carries, such as a version.
    for header in scheme.headers.iter().filter(|header| !header.value.contains("${")) {
        let name = HeaderName::from_bytes(header.header_name.as_bytes()).ok();
        headers.extend(name.zip(HeaderValue::from_str(&header.value).ok()));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(client) = client {
        let secret = client.secret.as_ref().map(Secret::expose);
        match secret.filter(|_| basic) {
            Some(secret) => {
                let pair = STANDARD.encode(format!("{}:{}", form_encoded(&client.id), form_encoded(secret)));
                headers.extend(sensitive(&format!("Basic {pair}")).map(|value| (AUTHORIZATION, value)));
            }
            None => {
                form.push(("client_id", client.id.clone()));
                form.extend(secret.map(|secret| ("client_secret", secret.to_owned())));
            }
        }
    }
    let mut encoded = Url::parse("form:").expect("a URL");
    encoded.query_pairs_mut().extend_pairs(form);
    let body = Payload::Bytes(encoded.query().unwrap_or_default().to_owned().into());
    let request = Outgoing { method: Method::POST, url: url.clone(), headers, body, follows: false, timeout: TIMEOUT };
    egress.send(request).await
}

fn form_encoded(text: &str) -> String {
    let mut encoded = Url::parse("form:").expect("a URL");
    encoded.query_pairs_mut().append_key_only(text);
    encoded.query().unwrap_or_default().to_owned()
}
