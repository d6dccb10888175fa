//! OAuth access tokens of tool servers: fetched once for all who wait, shared by all processes.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use diesel::{
    dsl::sql,
    prelude::*,
    sql_types::{Bool, Nullable, Timestamptz},
};
use diesel_async::RunQueryDsl;
use moka::sync::Cache;
use platform_core::{AccountId, Clock, Error, Result, Timestamp, parse, spawn_finishing};
use platform_db::Db;
use platform_egress::{
    Egress, Method, Outgoing, Payload, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use platform_vault::{Secret, SecretLocation, Vault};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::sleep};

use crate::{authentication::AuthenticationConfig, failure::Failure, schema::tool_tokens, server::Server};

const TIMEOUT: Duration = Duration::from_secs(15);
/// A token is used until so long before its end (contract 04 §3).
const MARGIN_MS: i64 = 60_000;
/// What a token lives when its server does not say.
const DEFAULT_LIFE_MS: i64 = 600_000;
/// How often a process looks whether another one has fetched the token.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const MAX_KNOWN: u64 = 10_000;

/// Fetches tokens and keeps them.
pub(crate) struct Tokens {
    db: Db,
    vault: Arc<Vault>,
    egress: Egress,
    clock: Arc<dyn Clock>,
    known: Cache<(AccountId, String), Arc<Mutex<Option<Token>>>>,
}

#[derive(Clone)]
struct Token {
    /// Of the configuration it was fetched with.
    configuration: String,
    access: Secret,
    /// The refresh token that came with it, which replaces the configured one.
    refresh: Option<Secret>,
    until: Timestamp,
}

impl Tokens {
    pub fn new(db: &Db, vault: Arc<Vault>, egress: Egress, clock: Arc<dyn Clock>) -> Self {
        Self { db: db.clone(), vault, egress, clock, known: Cache::new(MAX_KNOWN) }
    }

    /// An access token for a server; `stale`: one that was refused, so that another is wanted.
    pub async fn get(self: &Arc<Self>, server: &Arc<Server>, stale: Option<&Secret>) -> Result<Secret, Failure> {
        // A task of its own: a caller that gives up must not lose a refresh token that was given out.
        let (tokens, server, stale) = (Arc::clone(self), Arc::clone(server), stale.cloned());
        let current = spawn_finishing("token", async move { tokens.current(&server, stale.as_ref()).await });
        current.await.unwrap_or_else(|error| Err(Failure::new("AUTH_FAILED", error.to_string())))
    }

    async fn current(&self, server: &Server, stale: Option<&Secret>) -> Result<Secret, Failure> {
        let configuration = fingerprint(&server.settings.authentication_config);
        let good = |token: &Token| {
            token.configuration == configuration
                && token.until > self.clock.now()
                && stale.is_none_or(|stale| stale.expose() != token.access.expose())
        };
        let key = (server.account.clone(), server.id.clone());
        let known = self.known.get_with(key, Arc::default);
        // One fetches while the others wait: that is what this lock is for.
        let mut known = known.lock().await;
        if let Some(token) = known.as_ref().filter(|token| good(token)) {
            return Ok(token.access.clone());
        }
        let token = self.fetch_or_wait(server, &configuration, &good).await?;
        let access = token.access.clone();
        *known = Some(token);
        Ok(access)
    }

    async fn fetch_or_wait(
        &self,
        server: &Server,
        configuration: &str,
        good: &(impl Fn(&Token) -> bool + Sync),
    ) -> Result<Token, Failure> {
        let away = |error: Error| {
            tracing::warn!(server = server.id, %error, "A token could not be read or stored.");
            Failure::new("AUTH_FAILED", "No token could be fetched: the database is not available.")
        };
        loop {
            let stored = self.stored(server).await.map_err(away)?;
            if let Some(token) = stored.as_ref().filter(|token| good(token)) {
                return Ok(token.clone());
            }
            if self.claim(server).await.map_err(away)? {
                let refresh =
                    stored.filter(|token| token.configuration == configuration).and_then(|token| token.refresh);
                let fetched = self.fetch(&server.settings.authentication_config, refresh.as_ref()).await;
                let fetched = fetched.map(|(access, rotated, until)| Token {
                    configuration: configuration.to_owned(),
                    access,
                    refresh: rotated.or(refresh),
                    until,
                });
                // A refresh token that was given out counts only once it is stored.
                self.store(server, fetched.as_ref().ok()).await.map_err(away)?;
                return fetched;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether this process is the one that fetches; whoever claimed it before and died has lost it by then.
    async fn claim(&self, server: &Server) -> Result<bool> {
        use diesel::query_dsl::methods::FilterDsl;
        let until = || sql::<Nullable<Timestamptz>>("now() + interval '30 seconds'");
        let claimed = diesel::insert_into(tool_tokens::table)
            .values((
                tool_tokens::account_id.eq(server.account.as_str()),
                tool_tokens::server_id.eq(&server.id),
                tool_tokens::claimed_until.eq(until()),
            ))
            .on_conflict((tool_tokens::account_id, tool_tokens::server_id))
            .do_update()
            .set(tool_tokens::claimed_until.eq(until()))
            .filter(sql::<Bool>("tool_tokens.claimed_until IS NULL OR tool_tokens.claimed_until < now()"))
            .execute(&mut *self.db.conn().await?)
            .await?;
        Ok(claimed == 1)
    }

    async fn stored(&self, server: &Server) -> Result<Option<Token>> {
        let conn = self.db.read().await?;
        let row = tool_tokens::table
            .find((server.account.as_str(), &server.id))
            .select(tool_tokens::sealed)
            .first::<Option<String>>(&mut conn.get())
            .await
            .optional()?;
        let Some(sealed) = row.flatten() else { return Ok(None) };
        let opened = self.vault.open(&place(server), &sealed)?;
        let (configuration, access, refresh, until): (String, String, Option<String>, i64) =
            serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        let token =
            Token { configuration, access: access.into(), refresh: refresh.map(Into::into), until: Timestamp(until) };
        Ok(Some(token))
    }

    /// Stores a token, and lets the others go on in any case.
    async fn store(&self, server: &Server, token: Option<&Token>) -> Result<()> {
        let of = tool_tokens::table.find((server.account.as_str(), &server.id));
        let free = tool_tokens::claimed_until.eq(sql::<Nullable<Timestamptz>>("NULL"));
        let mut conn = self.db.conn().await?;
        let Some(token) = token else {
            diesel::update(of).set(free).execute(&mut *conn).await?;
            return Ok(());
        };
        let refresh = token.refresh.as_ref().map(Secret::expose);
        let text = json!([token.configuration, token.access.expose(), refresh, token.until.0]).to_string();
        let sealed = self.vault.seal(&place(server), &text);
        diesel::update(of).set((tool_tokens::sealed.eq(sealed), free)).execute(&mut *conn).await?;
        Ok(())
    }

    /// Asks the token server; access token, rotated refresh token and when to ask again.
    async fn fetch(
        &self,
        config: &AuthenticationConfig,
        rotated: Option<&Secret>,
    ) -> Result<(Secret, Option<Secret>, Timestamp), Failure> {
        let failed = |reason: &str| Failure::new("AUTH_FAILED", format!("No token could be fetched: {reason}"));
        let endpoint = config.refresh_token_endpoint.as_deref().unwrap_or_default();
        let url = Url::parse(endpoint).map_err(|_| failed("the token endpoint is no address."))?;
        let (body, media_type) = token_request(config, rotated)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let body = Payload::Bytes(body.into());
        let request = Outgoing { method: Method::POST, url, headers, body, follows: false, timeout: TIMEOUT };
        let answer = self.egress.send(request).await.map_err(|error| failed(&error.to_string()))?;
        let body: Value = parse(&answer.bytes).unwrap_or_default();
        let Some(access) = body["access_token"].as_str().filter(|_| (200..300).contains(&answer.status)) else {
            // RFC 6749 §5.2: a code out of a fixed alphabet, so no secret of ours.
            let known = |code: &&str| code.len() <= 64 && code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            let code = body["error"].as_str().filter(known).unwrap_or("no access_token in the answer");
            return Err(failed(&format!("the token server answers {}: {code}.", answer.status)));
        };
        let life = &body["expires_in"];
        let seconds = life.as_i64().or_else(|| life.as_str()?.parse().ok());
        let life = seconds.map_or(DEFAULT_LIFE_MS, |seconds| seconds.clamp(0, 31_536_000) * 1000);
        let until = Timestamp(self.clock.now().0 + life - MARGIN_MS.min(life / 2));
        Ok((access.to_owned().into(), body["refresh_token"].as_str().map(|token| token.to_owned().into()), until))
    }
}

/// The body of a token request (RFC 6749 §4.4, §6), with the client's id and secret in it.
fn token_request(config: &AuthenticationConfig, rotated: Option<&Secret>) -> Result<(Vec<u8>, &'static str), Failure> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut fields = vec![
        ("grant_type", text(&config.grant_type)),
        ("client_id", text(&config.client_id)),
        ("client_secret", usable(config.client_secret.as_ref())?),
    ];
    if let Some(configured) = &config.refresh_token {
        fields.push(("refresh_token", usable(Some(rotated.unwrap_or(configured)))?));
    }
    fields.extend(config.scope.clone().map(|scope| ("scope", scope)));
    if config.request_format.as_deref() == Some("json") {
        let fields: serde_json::Map<String, Value> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        return Ok((Value::Object(fields).to_string().into_bytes(), "application/json"));
    }
    let mut form = Url::parse("form:").expect("a URL");
    form.query_pairs_mut().extend_pairs(fields);
    Ok((form.query().unwrap_or_default().into(), "application/x-www-form-urlencoded"))
}

/// A secret that may be sent where it is to go.
pub(crate) fn usable(secret: Option<&Secret>) -> Result<String, Failure> {
    match secret {
        Some(secret) if !secret.is_mask() => Ok(secret.expose().to_owned()),
        _ => Err(Failure::new(
            "AUTH_FAILED",
            "The credentials were given for another scheme, host or port; give them again for this one.",
        )),
    }
}

/// Names a configuration without telling it.
fn fingerprint(config: &AuthenticationConfig) -> String {
    let exposed = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.expose().to_owned());
    let text = json!([config, exposed(&config.client_secret), exposed(&config.refresh_token)]).to_string();
    URL_SAFE_NO_PAD.encode(&digest(&SHA256, text.as_bytes()).as_ref()[..12])
}

fn place(server: &Server) -> SecretLocation<'_> {
    SecretLocation { account: &server.account, table: "tool_tokens", column: "sealed", row: &server.id }
}
