use std::time::Duration;

use async_trait::async_trait;
use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{SHA256, digest},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, Id, Result, Timestamp, millis, sha256_hex};
use platform_db::Conn;
use platform_vault::SecretLocation;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;
use utoipa::ToSchema;

use super::{
    access::{self, API},
    clients::{ClientRow, by_client_id},
    error::{OAuthError, OAuthOutcome, refuse},
    grants::{self, GrantRow, RefreshRow},
    log_ins::{self, CONSOLE, SignIn},
    registration,
    scopes::{SCOPES, Scopes},
};
use crate::{PgAuthService, key::KeySecret, user::repository as users};

/// A code is good for so long.
const CODE_MS: i64 = 60_000;
/// A refresh token that is used again within this is a repetition, not theft.
const REPEAT_MS: i64 = 10_000;
/// First parts of codes and refresh tokens.
const CODE: &str = "ac";
const MCP_READ: &str = "mcp-gateway:read";
const REFRESH: &str = "rt";

/// What an application asks of a user (RFC 6749 §4.1.1, RFC 7636, RFC 8707).
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub struct AuthorizeRequest {
    pub response_type: Option<String>,
    pub client_id: Option<String>,
    pub redirect_uri: Option<String>,
    pub scope: Option<String>,
    pub state: Option<String>,
    pub code_challenge: Option<String>,
    pub code_challenge_method: Option<String>,
    pub resource: Option<String>,
}

/// A request that can be put to the user.
#[derive(Debug, Clone)]
pub struct Authorization {
    /// `None` = the user's, whichever it is.
    account: Option<AccountId>,
    client_id: String,
    /// Name of the application.
    pub client_name: String,
    /// Where the user is sent back to.
    pub redirect_uri: String,
    state: Option<String>,
    /// What the application asks for.
    pub scopes: Scopes,
    audience: String,
    challenge: String,
    /// The application as its document says, which is kept once a user lets it in.
    document: Option<Box<ClientRow>>,
}

/// What became of a log-in.
#[derive(Debug)]
pub struct Granted {
    /// Where the user is sent.
    pub redirect: String,
    /// What their browser holds from now on; only the console's.
    pub log_in: Option<SecretString>,
}

impl Authorization {
    /// The application made itself known: nobody vouches for its name.
    pub fn is_unverified(&self) -> bool {
        self.account.is_none() && !self.is_console()
    }

    /// The console of this server: whoever logs in there consents to nothing that is not theirs already.
    pub fn is_console(&self) -> bool {
        self.client_id == CONSOLE
    }

    /// Where the application is at home; `None` = in the account of whoever logs in.
    pub fn account(&self) -> Option<&AccountId> {
        self.account.as_ref()
    }
}

/// What a client asks the token endpoint.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub struct TokenRequest {
    pub grant_type: Option<String>,
    pub client_id: Option<String>,
    pub client_secret: Option<String>,
    pub redirect_uri: Option<String>,
    pub code: Option<String>,
    pub code_verifier: Option<String>,
    pub refresh_token: Option<String>,
    pub scope: Option<String>,
}

/// A pair of tokens (RFC 6749 §5.1).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// For requests.
    pub access_token: String,
    /// Always `Bearer`.
    pub token_type: String,
    /// Seconds the access token lasts.
    pub expires_in: u64,
    /// For the next pair; good once.
    pub refresh_token: String,
    /// What was granted.
    pub scope: String,
}

/// The authorization server.
#[async_trait]
pub trait OAuthService: Send + Sync {
    /// Judges what an application asks before the user is shown anything.
    async fn authorization(&self, request: &AuthorizeRequest) -> Result<OAuthOutcome<Authorization>>;
    /// Grants it for who signs in so; `None` when they are nobody, such as when address or password is wrong.
    async fn grant(&self, asked: &Authorization, way: SignIn) -> Result<Option<Granted>>;
    /// Where to send a user when nothing is granted, for this reason (RFC 6749 §4.1.2.1, `OpenID` Connect Core §3.1.2.6).
    fn refused(&self, asked: &Authorization, error: &'static str) -> String;
    /// Address under which the server is known.
    fn issuer(&self) -> &str;
    /// Whether the console of this server is at this address.
    fn is_console_at(&self, uri: &str) -> bool;
    /// Ends what a browser holds since its user logged in.
    async fn log_out(&self, log_in: &SecretString) -> Result<()>;
    /// Takes an application in that asks to be, by the metadata of RFC 7591.
    async fn register(&self, metadata: &[u8]) -> Result<OAuthOutcome<Value>>;
    /// Exchanges a code or refresh token.
    async fn token(&self, request: &TokenRequest) -> Result<OAuthOutcome<Tokens>>;
    /// Ends what a token follows from, if it is one.
    async fn revoke(&self, token: &str, client: Option<&str>) -> Result<()>;
    /// What a token of the account is good for (RFC 7662).
    async fn introspect(&self, account: &AccountId, token: &str) -> Result<Value>;
    /// Keys that verify access tokens.
    async fn jwks(&self) -> Result<Value>;
    /// What the server can do (RFC 8414).
    fn metadata(&self) -> Value;
    /// Who grants access to a resource of this server (RFC 9728); `path`: below its address.
    fn resource_metadata(&self, path: &str) -> Value;
}

#[async_trait]
impl OAuthService for PgAuthService {
    async fn authorization(&self, request: &AuthorizeRequest) -> Result<OAuthOutcome<Authorization>> {
        let shown = |description: &str| Ok(refuse("invalid_request", description));
        let Some(client_id) = &request.client_id else { return shown("client_id is missing.") };
        let Some(client) = self.find_client(client_id).await? else {
            return shown("This application is not known here.");
        };
        let Some(redirect_uri) = &request.redirect_uri else { return shown("redirect_uri is missing.") };
        // The console is at this server's port alone: what listens on another one is not it.
        let is_console = client.client_id == CONSOLE;
        if !(if is_console { self.is_console_at(redirect_uri) } else { client.may_redirect_to(redirect_uri) }) {
            return shown("The redirect_uri is not one of this application's.");
        }
        Ok(match self.check_request(request, &client, redirect_uri) {
            Ok(authorization) => OAuthOutcome::Granted(authorization),
            Err(error) => {
                let given = [("error", error.error), ("error_description", &error.description)];
                let redirect = self.back(redirect_uri, &given, request.state.as_deref());
                OAuthOutcome::Refused(OAuthError { redirect: Some(redirect), ..error })
            }
        })
    }

    async fn grant(&self, asked: &Authorization, way: SignIn) -> Result<Option<Granted>> {
        let Some(user) = self.signed_in(asked.is_console(), asked.account.as_ref(), &way).await? else {
            return Ok(None);
        };
        let account = crate::service::stored_account(&user.account_id)?;
        let lasts = asked.is_console() && !matches!(way, SignIn::Browser(_));
        let log_in = lasts.then(|| log_ins::new(&user, false, self.clock.now())).transpose()?;
        let (user, password) = (user.id, user.password);
        let code = KeySecret::generate(CODE)?;
        let now = self.clock.now();
        let grant = GrantRow {
            id: Id::<GrantRow>::generate().into(),
            account_id: account.as_str().to_owned(),
            client_id: asked.client_id.clone(),
            user_id: user,
            scope: asked.scopes.to_string(),
            audience: asked.audience.clone(),
            code_digest: sha256_hex(code.expose()),
            code_expires_ms: now.0 + CODE_MS,
            code_used_ms: None,
            redirect_uri: asked.redirect_uri.clone(),
            challenge: asked.challenge.clone(),
            created_ms: now.0,
            revoked_ms: None,
        };
        let mut conn = self.db.conn().await?;
        let granting = conn.transaction::<_, Error, _>(async |conn| {
            // Whoever changes the password meanwhile ends what the old one granted.
            let now = users::lock(conn, &account, &grant.user_id).await?;
            if now.is_none_or(|user| user.disabled || user.password != password) {
                return Ok(false);
            }
            let is_good = match &way {
                SignIn::Password { .. } => true,
                SignIn::Link(link) => log_ins::end(conn, link).await?,
                SignIn::Browser(log_in) => log_ins::is_held(conn, log_in).await?,
            };
            if !is_good {
                return Ok(false);
            }
            if let Some((row, _)) = &log_in {
                log_ins::insert(conn, row).await?;
            }
            if let Some(client) = &asked.document {
                registration::keep_document(conn, client).await?;
            }
            grants::insert(conn, &grant).await.map(|()| true)
        });
        if !granting.await? {
            return Ok(None);
        }
        let redirect = self.back(&asked.redirect_uri, &[("code", code.expose())], asked.state.as_deref());
        Ok(Some(Granted { redirect, log_in: log_in.map(|(_, value)| value) }))
    }

    fn refused(&self, asked: &Authorization, error: &'static str) -> String {
        self.back(&asked.redirect_uri, &[("error", error)], asked.state.as_deref())
    }

    fn issuer(&self) -> &str {
        &self.config.issuer
    }

    fn is_console_at(&self, uri: &str) -> bool {
        log_ins::redirects(&self.config.issuer).iter().any(|own| own == uri)
    }

    async fn log_out(&self, log_in: &SecretString) -> Result<()> {
        log_ins::end(&mut *self.db.conn().await?, log_in).await.map(drop)
    }

    async fn register(&self, metadata: &[u8]) -> Result<OAuthOutcome<Value>> {
        self.register_client(metadata).await
    }

    async fn token(&self, request: &TokenRequest) -> Result<OAuthOutcome<Tokens>> {
        let Some(client_id) = &request.client_id else {
            return Ok(refuse("invalid_request", "client_id is missing."));
        };
        let conn = self.db.read().await?;
        let client = by_client_id(conn.get(), client_id).await?;
        drop(conn);
        let Some(client) = client.filter(|client| client.is_secret(request.client_secret.as_deref())) else {
            return Ok(refuse("invalid_client", "The client is not known, or its secret is wrong."));
        };
        match request.grant_type.as_deref() {
            Some("authorization_code") => self.exchange_code(&client, request).await,
            Some("refresh_token") => self.exchange_refresh(&client, request).await,
            _ => {
                let description = "grant_type must be authorization_code or refresh_token.";
                Ok(refuse("unsupported_grant_type", description))
            }
        }
    }

    async fn revoke(&self, token: &str, client: Option<&str>) -> Result<()> {
        let conn = self.db.read().await?;
        let (grant, ends) = match grants::find_refresh(conn.get(), &sha256_hex(token)).await? {
            Some(refresh) => (refresh.grant_id, refresh.expires_ms),
            None => match access::verify(&self.signing, token).await? {
                Some(claims) => (claims.sid, claims.exp.saturating_mul(1000)),
                None => return Ok(()),
            },
        };
        // What is over is no token any more: whoever finds one in a log ends nothing with it (RFC 7009 §2.2).
        if ends <= self.clock.now().0 {
            return Ok(());
        }
        let found = grants::find(conn.get(), &grant).await?;
        drop(conn);
        let of_client = |(grant, ..): &(GrantRow, _, _)| client.is_none_or(|client| client == grant.client_id);
        if found.as_ref().is_some_and(of_client) {
            self.revoke_grant(&grant).await?;
        }
        Ok(())
    }

    async fn introspect(&self, account: &AccountId, token: &str) -> Result<Value> {
        let (now, inactive) = (self.clock.now(), json!({"active": false}));
        let conn = self.db.read().await?;
        let (grant, scope, expires) = match grants::find_refresh(conn.get(), &sha256_hex(token)).await? {
            Some(refresh) if refresh.used_ms.is_some() => return Ok(inactive),
            Some(refresh) => (refresh.grant_id, None, Timestamp(refresh.expires_ms)),
            None => match access::verify(&self.signing, token).await? {
                Some(claims) => (claims.sid, Some(claims.scope), Timestamp(claims.exp.saturating_mul(1000))),
                None => return Ok(inactive),
            },
        };
        let Some((grant, user, client)) = grants::find(conn.get(), &grant).await? else { return Ok(inactive) };
        let is_over = grant.revoked_ms.is_some() || user.disabled || expires <= now;
        if is_over || grant.account_id != account.as_str() {
            return Ok(inactive);
        }
        // What the client may no longer ask for its tokens do not open.
        let scope = Scopes::parse(&scope.unwrap_or(grant.scope)).narrowed_to(&client.scopes()).to_string();
        Ok(json!({"active": true, "scope": scope, "client_id": grant.client_id,
            "sub": grant.user_id, "exp": expires.0 / 1000}))
    }

    async fn jwks(&self) -> Result<Value> {
        access::jwks(self).await
    }

    fn metadata(&self) -> Value {
        let issuer = &self.config.issuer;
        let mut metadata = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/oauth/authorize"),
            "token_endpoint": format!("{issuer}/oauth/token"),
            "revocation_endpoint": format!("{issuer}/oauth/revoke"),
            "introspection_endpoint": format!("{issuer}/oauth/introspect"),
            "jwks_uri": format!("{issuer}/.well-known/jwks.json"),
            "scopes_supported": *SCOPES,
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
            "revocation_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
            "authorization_response_iss_parameter_supported": true,
            "client_id_metadata_document_supported": self.config.documents.is_some(),
            "service_documentation": format!("{issuer}/docs"),
        });
        if self.config.registration {
            metadata["registration_endpoint"] = format!("{issuer}/oauth/register").into();
        }
        metadata
    }

    fn resource_metadata(&self, path: &str) -> Value {
        let issuer = &self.config.issuer;
        json!({
            "resource": format!("{issuer}{path}"),
            "authorization_servers": [issuer],
            // Stock clients ask for all that is named.
            "scopes_supported": if path.is_empty() { SCOPES.clone() } else { vec!["mcp-gateway:read".to_owned()] },
            "bearer_methods_supported": ["header"],
        })
    }
}

impl PgAuthService {
    fn check_request(
        &self,
        request: &AuthorizeRequest,
        client: &ClientRow,
        redirect_uri: &str,
    ) -> std::result::Result<Authorization, OAuthError> {
        if request.response_type.as_deref() != Some("code") {
            return Err(OAuthError::new("unsupported_response_type", "response_type must be code."));
        }
        let is_challenge = |text: &&String| {
            text.len() == 43 && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        let challenge = request.code_challenge.as_ref().filter(is_challenge);
        let (Some(challenge), Some("S256")) = (challenge, request.code_challenge_method.as_deref()) else {
            let description = "code_challenge with code_challenge_method S256 is required.";
            return Err(OAuthError::new("invalid_request", description));
        };
        let is_self_made = client.account_id.is_none() && client.client_id != CONSOLE;
        let scopes = match request.scope.as_deref().map(Scopes::parse).filter(|scopes| !scopes.is_empty()) {
            Some(asked) if !asked.is_within(&client.scopes()) => {
                return Err(OAuthError::new("invalid_scope", "The application may not ask for this scope."));
            }
            Some(asked) => asked,
            // Who made itself known manages nothing unasked.
            None if is_self_made && client.scopes().open(MCP_READ) => Scopes::parse(MCP_READ),
            None => client.scopes(),
        };
        let audience = match &request.resource {
            None => API.to_owned(),
            Some(resource) if self.is_own(resource) => resource.clone(),
            Some(_) => {
                return Err(OAuthError::new("invalid_target", "The resource is not one of this server's."));
            }
        };
        Ok(Authorization {
            account: client
                .account_id
                .as_deref()
                .map(crate::service::stored_account)
                .transpose()
                .map_err(|_| OAuthError::new("server_error", "The application is stored wrongly."))?,
            client_id: client.client_id.clone(),
            client_name: client.name.clone(),
            redirect_uri: redirect_uri.to_owned(),
            state: request.state.clone(),
            scopes,
            audience,
            challenge: challenge.clone(),
            document: is_self_made.then(|| Box::new(client.clone())),
        })
    }

    /// A resource at this server's address.
    fn is_own(&self, resource: &str) -> bool {
        let (Ok(resource), Ok(own)) = (Url::parse(resource), Url::parse(&self.config.issuer)) else { return false };
        resource.fragment().is_none() && resource.origin() == own.origin() && resource.path().starts_with(own.path())
    }

    /// The redirect URI with more parameters, and who sends the user there (RFC 9207).
    fn back(&self, redirect_uri: &str, parameters: &[(&str, &str)], state: Option<&str>) -> String {
        let Ok(mut url) = Url::parse(redirect_uri) else { return redirect_uri.to_owned() };
        let state = state.map(|state| ("state", state));
        url.query_pairs_mut()
            .extend_pairs(parameters.iter().copied().chain(state))
            .append_pair("iss", &self.config.issuer);
        url.into()
    }

    async fn exchange_code(&self, client: &ClientRow, request: &TokenRequest) -> Result<OAuthOutcome<Tokens>> {
        let invalid = |description: &str| Ok(refuse("invalid_grant", description));
        let (Some(code), Some(verifier)) = (&request.code, &request.code_verifier) else {
            return Ok(refuse("invalid_request", "code and code_verifier are required."));
        };
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let mut stolen = None;
        let exchanging = conn.transaction::<_, Error, _>(async |conn| {
            let Some(grant) = grants::lock_by_code(conn, &sha256_hex(code)).await? else {
                return invalid("The code is not known.");
            };
            if grant.client_id != client.client_id {
                return invalid("The code was given to another client.");
            }
            if grant.code_used_ms.is_some() {
                stolen = grants::revoke(conn, &grant.id, now).await?.then_some(grant.id);
                return invalid("The code was used before; everything that followed from it is revoked.");
            }
            grants::use_code(conn, &grant.id, now).await?;
            if grant.code_expires_ms <= now.0 || grant.revoked_ms.is_some() {
                return invalid("The code is past its time.");
            }
            if request.redirect_uri.as_ref().is_some_and(|uri| *uri != grant.redirect_uri) {
                return invalid("redirect_uri is not the one the code was asked with.");
            }
            let length = (43..=128).contains(&verifier.len());
            let hash = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
            if !length || verify_slices_are_equal(hash.as_bytes(), grant.challenge.as_bytes()).is_err() {
                return invalid("code_verifier does not fit the code_challenge.");
            }
            self.tokens_in(conn, &grant, Scopes::parse(&grant.scope), now).await
        });
        let outcome = exchanging.await?;
        drop(conn);
        if let Some(grant) = stolen {
            self.known.changed(&grant).await?;
        }
        Ok(outcome)
    }

    async fn exchange_refresh(&self, client: &ClientRow, request: &TokenRequest) -> Result<OAuthOutcome<Tokens>> {
        let invalid = |description: &str| Ok(refuse("invalid_grant", description));
        let Some(token) = &request.refresh_token else {
            return Ok(refuse("invalid_request", "refresh_token is required."));
        };
        let (digest, now) = (sha256_hex(token), self.clock.now());
        let mut conn = self.db.conn().await?;
        let mut stolen = None;
        let exchanging = conn.transaction::<_, Error, _>(async |conn| {
            let Some(known) = grants::find_refresh(conn, &digest).await? else {
                return invalid("The refresh token is not known.");
            };
            // A grant before its tokens, as whoever deletes it.
            grants::hold(conn, &known.grant_id).await?;
            let Some(refresh) = grants::lock_refresh(conn, &digest).await? else {
                return invalid("The refresh token is not known.");
            };
            let Some((grant, ..)) = grants::find(conn, &refresh.grant_id).await? else {
                return invalid("What the token follows from is gone.");
            };
            let account = crate::service::stored_account(&grant.account_id)?;
            if grant.client_id != client.client_id {
                return invalid("The refresh token was given to another client.");
            }
            if grant.revoked_ms.is_some() {
                return invalid("What the token follows from was revoked.");
            }
            if let (Some(used), Some(answer)) = (refresh.used_ms, &refresh.sealed_answer) {
                if now.0 - used < REPEAT_MS {
                    let opened = self.vault.open(&place(&account, &digest), answer)?;
                    let tokens = serde_json::from_str(opened.expose()).map_err(Error::internal)?;
                    return Ok(OAuthOutcome::Granted(tokens));
                }
                grants::revoke(conn, &grant.id, now).await?;
                stolen = Some(grant.id);
                return invalid("The refresh token was used before; everything that followed is revoked.");
            }
            if refresh.expires_ms <= now.0 {
                return invalid("The refresh token is past its time.");
            }
            // The client may ask for less by now.
            let granted = Scopes::parse(&grant.scope).narrowed_to(&client.scopes());
            let scopes = match request.scope.as_deref().map(Scopes::parse).filter(|scopes| !scopes.is_empty()) {
                Some(asked) if !asked.is_within(&granted) => {
                    return Ok(refuse("invalid_scope", "This was not granted."));
                }
                Some(asked) => asked,
                None => granted,
            };
            let outcome = self.tokens_in(conn, &grant, scopes, now).await?;
            if let OAuthOutcome::Granted(tokens) = &outcome {
                let answer = serde_json::to_string(tokens).map_err(Error::internal)?;
                let sealed = self.vault.seal(&place(&account, &digest), &answer);
                grants::use_refresh(conn, &digest, &sealed, now).await?;
            }
            Ok(outcome)
        });
        let outcome = exchanging.await?;
        drop(conn);
        if let Some(grant) = stolen {
            self.known.changed(&grant).await?;
        }
        Ok(outcome)
    }

    /// The next pair of a family.
    async fn tokens_in(
        &self,
        conn: &mut Conn,
        grant: &GrantRow,
        scopes: Scopes,
        now: Timestamp,
    ) -> Result<OAuthOutcome<Tokens>> {
        let account = crate::service::stored_account(&grant.account_id)?;
        let user = users::find(conn, &account, &grant.user_id).await?.filter(|user| !user.disabled);
        let Some(user) = user else {
            return Ok(refuse("invalid_grant", "The user is no longer there."));
        };
        let secret = KeySecret::generate(REFRESH)?;
        let life = millis(self.config.refresh_ttl);
        let refresh = RefreshRow {
            digest: sha256_hex(secret.expose()),
            grant_id: grant.id.clone(),
            expires_ms: now.0.saturating_add(life),
            used_ms: None,
            sealed_answer: None,
        };
        grants::insert_refresh(conn, &refresh).await?;
        registration::note_use(conn, &grant.client_id, now).await?;
        let access_token = access::issue(self, grant, &user, &scopes, self.config.access_ttl).await?;
        Ok(OAuthOutcome::Granted(Tokens {
            access_token,
            token_type: "Bearer".to_owned(),
            expires_in: Duration::as_secs(&self.config.access_ttl),
            refresh_token: secret.expose().to_owned(),
            scope: scopes.to_string(),
        }))
    }

    async fn revoke_grant(&self, id: &str) -> Result<()> {
        let (now, mut conn) = (self.clock.now(), self.db.conn().await?);
        let revoking = conn.transaction::<_, Error, _>(async |conn| grants::revoke(conn, id, now).await);
        let revoked = revoking.await?;
        drop(conn);
        if revoked { self.known.changed(id).await } else { Ok(()) }
    }
}

fn place<'a>(account: &'a AccountId, row: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "oauth_refresh_tokens", column: "sealed_answer", row }
}
