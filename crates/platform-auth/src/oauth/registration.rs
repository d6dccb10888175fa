//! Applications that make themselves known: by registration (RFC 7591), or by a document at their own address (client
//! id metadata documents). They belong to no account: their users say which.

use std::time::Duration;

use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{Id, Result, Timestamp, parse, sha256_hex};
use platform_db::Conn;
use platform_egress::{Method, Outgoing, Payload, header::HeaderMap};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::{
    clients::{ClientRow, SECRET_PREFIX, by_client_id, is_redirect},
    error::{OAuthError, OAuthOutcome, refuse},
    scopes::Scopes,
};
use crate::{PgAuthService, key::KeySecret, schema::oauth_clients};

/// All that such an application may ask for.
const OPEN: [&str; 2] = ["mcp-gateway:read", "mcp-gateway:write"];
const MAX_REDIRECTS: usize = 20;
/// A document of an application, in bytes.
const MAX_DOCUMENT: usize = 16_384;
pub(crate) const DOCUMENT: Duration = Duration::from_hours(1);
const DOCUMENT_MS: i64 = 3_600_000;
/// Longest look at one.
const LOOK: Duration = Duration::from_secs(5);
/// One that nobody uses for so long is forgotten.
const UNUSED_MS: i64 = 90 * 86_400_000;
/// How exactly it is known when one was used.
const USED_MS: i64 = 86_400_000;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    client_id: Option<String>,
    client_name: Option<String>,
    redirect_uris: Vec<String>,
    grant_types: Option<Vec<String>>,
    response_types: Option<Vec<String>>,
    token_endpoint_auth_method: Option<String>,
    scope: Option<String>,
}

impl Metadata {
    fn check(&self) -> std::result::Result<(), OAuthError> {
        let wrong = |description: &str| Err(OAuthError::new("invalid_client_metadata", description));
        let is_web = |uri: &String| {
            let url = Url::parse(uri).ok();
            is_redirect(uri)
                && !uri.contains(char::is_control)
                && url.is_some_and(|url| matches!(url.scheme(), "https" | "http"))
        };
        if self.redirect_uris.is_empty()
            || self.redirect_uris.len() > MAX_REDIRECTS
            || !self.redirect_uris.iter().all(is_web)
        {
            let description = "redirect_uris must be 1 to 20 addresses: https, or http on a loopback address.";
            return Err(OAuthError::new("invalid_redirect_uri", description));
        }
        if self.client_name.as_ref().is_some_and(|name| name.chars().count() > 200) {
            return wrong("client_name must have at most 200 characters.");
        }
        let known = ["authorization_code", "refresh_token"];
        if self.grant_types.iter().flatten().any(|of| !known.contains(&of.as_str())) {
            return wrong("grant_types may be authorization_code and refresh_token.");
        }
        if self.response_types.iter().flatten().any(|of| of != "code") {
            return wrong("response_types may be code alone.");
        }
        Ok(())
    }

    /// What it asks for as far as it may; all of that when it asks for nothing else.
    fn scopes(&self) -> Vec<String> {
        let asked = self.scope.as_deref().map(Scopes::parse).unwrap_or_default();
        let given: Vec<String> = OPEN.iter().filter(|scope| asked.open(scope)).map(|&scope| scope.to_owned()).collect();
        if given.is_empty() { OPEN.map(str::to_owned).to_vec() } else { given }
    }

    fn name(&self) -> String {
        let host = || Url::parse(self.redirect_uris.as_slice().first()?).ok()?.host_str().map(str::to_owned);
        let plain =
            |name: &String| name.chars().filter(|c| c.is_alphanumeric() || c.is_ascii_graphic() || *c == ' ').collect();
        let given = self.client_name.as_ref().map(plain).filter(|name: &String| !name.trim().is_empty());
        given.or_else(host).unwrap_or_else(|| "An application".to_owned())
    }
}

impl PgAuthService {
    /// Takes an application in that asks to be.
    pub(crate) async fn register_client(&self, body: &[u8]) -> Result<OAuthOutcome<Value>> {
        let wrong = |description: String| Ok(refuse("invalid_client_metadata", description));
        let metadata: Metadata = match parse(body) {
            Ok(metadata) => metadata,
            Err(error) => return wrong(format!("The body is not the JSON of RFC 7591: {error}.")),
        };
        if let Err(error) = metadata.check() {
            return Ok(OAuthOutcome::Refused(error));
        }
        let has_secret = match metadata.token_endpoint_auth_method.as_deref() {
            Some("none") => false,
            None | Some("client_secret_basic") => true,
            Some(_) => return wrong("token_endpoint_auth_method must be none or client_secret_basic.".to_owned()),
        };
        let secret = has_secret.then(|| KeySecret::generate(SECRET_PREFIX)).transpose()?;
        let now = self.clock.now();
        let row = ClientRow {
            secret_digest: secret.as_ref().map(|secret| sha256_hex(secret.expose())),
            ..of_nobody(Id::<ClientRow>::generate().into(), &metadata, now)
        };
        diesel::insert_into(oauth_clients::table).values(&row).execute(&mut *self.db.conn().await?).await?;
        let mut answer = json!({
            "client_id": row.client_id, "client_id_issued_at": now.0 / 1000, "client_name": row.name,
            "redirect_uris": row.redirect_uris, "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"], "scope": row.scopes.join(" "),
            "token_endpoint_auth_method": if has_secret { "client_secret_basic" } else { "none" },
        });
        if let Some(secret) = secret {
            answer["client_secret"] = secret.expose().into();
            answer["client_secret_expires_at"] = 0.into();
        }
        Ok(OAuthOutcome::Granted(answer))
    }

    /// An application by its name; one whose name is an address is what the document there says.
    pub(crate) async fn find_client(&self, client_id: &str) -> Result<Option<ClientRow>> {
        let known = by_client_id(self.db.read().await?.get(), client_id).await?;
        let now = self.clock.now();
        let is_fresh = |row: &ClientRow| row.account_id.is_some() || now.0 - row.edited_ms < DOCUMENT_MS;
        let address = Url::parse(client_id).ok().filter(|url| is_document(url) && client_id.len() <= 2000);
        let (Some(address), Some(egress)) = (address, &self.config.documents) else { return Ok(known) };
        if known.as_ref().is_some_and(is_fresh) {
            return Ok(known);
        }
        if let Some(row) = self.documents.get(client_id) {
            return Ok(Some(row));
        }
        let asked = Outgoing {
            method: Method::GET,
            url: address,
            headers: HeaderMap::new(),
            body: Payload::Empty,
            follows: false,
            timeout: LOOK,
        };
        let fetched = egress.reading(MAX_DOCUMENT).send(asked).await.ok();
        let read = fetched.filter(|answer| answer.status == 200);
        let metadata = read.and_then(|answer| parse::<Metadata>(&answer.bytes).ok());
        let good = |metadata: &Metadata| metadata.client_id.as_deref() == Some(client_id) && metadata.check().is_ok();
        // Who cannot be read now is nobody now.
        let row = metadata.filter(good).map(|metadata| of_nobody(client_id.to_owned(), &metadata, now));
        if let Some(row) = &row {
            self.documents.insert(client_id.to_owned(), row.clone());
        }
        Ok(row)
    }
}

/// Keeps an application that a user lets in, as its document says it is.
pub(crate) async fn keep_document(conn: &mut Conn, row: &ClientRow) -> Result<()> {
    diesel::insert_into(oauth_clients::table)
        .values(row)
        .on_conflict(oauth_clients::client_id)
        .do_update()
        .set((
            oauth_clients::name.eq(&row.name),
            oauth_clients::redirect_uris.eq(&row.redirect_uris),
            oauth_clients::scopes.eq(&row.scopes),
            oauth_clients::edited_ms.eq(row.edited_ms),
        ))
        .execute(conn)
        .await?;
    Ok(())
}

/// An https address with a path.
fn is_document(url: &Url) -> bool {
    url.scheme() == "https" && url.path().len() > 1 && url.fragment().is_none() && url.username().is_empty()
}

fn of_nobody(client_id: String, metadata: &Metadata, now: Timestamp) -> ClientRow {
    ClientRow {
        id: Id::<ClientRow>::generate().into(),
        account_id: None,
        client_id,
        name: metadata.name(),
        redirect_uris: metadata.redirect_uris.clone(),
        secret_digest: None,
        scopes: metadata.scopes(),
        created_ms: now.0,
        edited_ms: now.0,
        used_ms: Some(now.0),
    }
}

/// Notes that an application that made itself known is in use.
pub(crate) async fn note_use(conn: &mut Conn, client_id: &str, now: Timestamp) -> Result<()> {
    let unused = oauth_clients::table
        .filter(oauth_clients::client_id.eq(client_id).and(oauth_clients::account_id.is_null()))
        .filter(oauth_clients::used_ms.lt(now.0 - USED_MS));
    diesel::update(unused).set(oauth_clients::used_ms.eq(now.0)).execute(conn).await?;
    Ok(())
}

/// Forgets applications that made themselves known and that nobody uses.
pub async fn purge(conn: &mut Conn, now: Timestamp) -> Result<()> {
    let unused = oauth_clients::account_id.is_null().and(oauth_clients::used_ms.lt(now.0 - UNUSED_MS));
    diesel::delete(oauth_clients::table.filter(unused)).execute(conn).await?;
    Ok(())
}
