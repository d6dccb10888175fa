use async_trait::async_trait;
use diesel::prelude::*;
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_core::{AccountId, Checks, Code, Error, Id, Object, Page, Result, Timestamp, overlay, sha256_hex};
use platform_db::{Conn, Idempotency};
use platform_vault::MASK;
use serde::{Deserialize, Serialize};
use url::Url;
use utoipa::ToSchema;

use super::{grants, scopes::Scopes};
use crate::{PgAuthService, key::KeySecret, schema::oauth_clients};

/// First part of client secrets.
pub(crate) const SECRET_PREFIX: &str = "cs";
const MAX_REDIRECTS: usize = 20;
/// Schemes that run or read instead of going somewhere.
const NO_REDIRECTS: [&str; 6] = ["javascript", "data", "file", "vbscript", "blob", "about"];

/// An application that users may let act for them.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OAuthClient {
    /// Id of the record.
    #[serde(rename = "_id")]
    pub id: String,
    /// Name in the protocol.
    pub client_id: String,
    /// Name for people, shown when they are asked.
    pub name: String,
    /// Where users are sent back to; of loopback addresses any port.
    pub redirect_uris: Vec<String>,
    /// It has a secret.
    pub confidential: bool,
    /// What it may ask for.
    pub scopes: Vec<String>,
    /// Made at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
}

/// A client with its secret, shown once.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientWithSecret {
    /// The client.
    #[serde(flatten)]
    pub record: OAuthClient,
    /// Its secret, if it is confidential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
}

/// A page of clients.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ClientPage {
    /// The clients, newest first.
    pub items: Vec<OAuthClient>,
    /// How many there are in all.
    pub total: i64,
    /// Skipped.
    pub offset: i64,
    /// At most this many.
    pub limit: i64,
}

/// A client to make, or what one becomes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewClient {
    /// Name in the protocol, `^[A-Za-z0-9._-]{3,64}$`, unique, never changes; made when it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub client_id: Option<String>,
    /// Name for people, 1 to 200 characters.
    pub name: String,
    /// Where users are sent back to, compared as they are; of loopback addresses any port.
    pub redirect_uris: Vec<String>,
    /// It can keep a secret; only when it is made.
    pub confidential: bool,
    /// What it may ask for.
    pub scopes: Vec<String>,
}

impl Default for NewClient {
    fn default() -> Self {
        let scopes = vec!["platform:read".to_owned(), "platform:write".to_owned()];
        Self { client_id: None, name: String::new(), redirect_uris: Vec::new(), confidential: false, scopes }
    }
}

impl NewClient {
    fn check(&self) -> Result<()> {
        let mut checks = Checks::default();
        if self.client_id.as_ref().is_some_and(|id| !is_client_id(id)) {
            checks.issue("clientId", "format", "clientId must match ^[A-Za-z0-9._-]{3,64}$");
        }
        checks.name(&self.name);
        if self.redirect_uris.is_empty() {
            checks.issue("redirectUris", "required", "redirectUris is required: at least one address");
        }
        checks.count("redirectUris", self.redirect_uris.len(), MAX_REDIRECTS);
        for (i, uri) in self.redirect_uris.iter().enumerate() {
            if !is_redirect(uri) {
                let path = format!("redirectUris[{i}]");
                let message =
                    format!("{path} must be https, http on a loopback address, or of an application's own scheme");
                checks.issue(&path, "format", message);
            }
        }
        if self.scopes.is_empty() {
            checks.issue("scopes", "required", "scopes must name at least one scope");
        }
        for (i, scope) in self.scopes.iter().enumerate() {
            if !Scopes::of(vec![scope.clone()]).are_known() {
                let path = format!("scopes[{i}]");
                let shown: String = scope.chars().take(64).collect();
                let message = format!("`{shown}` is no scope; see /.well-known/oauth-authorization-server");
                checks.issue(&path, "enum", message);
            }
        }
        checks.finish()
    }
}

fn is_client_id(id: &str) -> bool {
    (3..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

pub(crate) fn is_redirect(uri: &str) -> bool {
    let Ok(url) = Url::parse(uri) else { return false };
    if uri.len() > 2000 || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return false;
    }
    match url.scheme() {
        "https" => url.host().is_some(),
        "http" => is_loopback(&url),
        scheme => !NO_REDIRECTS.contains(&scheme),
    }
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[derive(Debug, Queryable, Selectable, Insertable, Clone)]
#[diesel(table_name = oauth_clients)]
pub(crate) struct ClientRow {
    pub id: String,
    /// `None` = of whichever account its users are.
    pub account_id: Option<String>,
    pub client_id: String,
    pub name: String,
    pub redirect_uris: Vec<String>,
    pub secret_digest: Option<String>,
    pub scopes: Vec<String>,
    pub created_ms: i64,
    pub edited_ms: i64,
    pub used_ms: Option<i64>,
}

impl ClientRow {
    /// Whether it may send users back there: exactly, of a loopback address on any port (RFC 8252 §7.3).
    pub fn may_redirect_to(&self, uri: &str) -> bool {
        let without_port = |uri: &str| {
            let mut url = Url::parse(uri).ok().filter(|url| url.scheme() == "http" && is_loopback(url))?;
            // As it is written, but for a slash that may be left out: there are many ways to write one address.
            if url.as_str().trim_end_matches('/') != uri.trim_end_matches('/') {
                return None;
            }
            url.set_port(None).ok()?;
            Some(url)
        };
        self.redirect_uris.iter().any(|known| {
            known == uri || without_port(known).is_some_and(|known| without_port(uri).as_ref() == Some(&known))
        })
    }

    /// Whether this is its secret; a public client has none.
    pub fn is_secret(&self, given: Option<&str>) -> bool {
        match (&self.secret_digest, given) {
            (None, _) => true,
            (Some(digest), Some(given)) => *digest == sha256_hex(given),
            (Some(_), None) => false,
        }
    }

    pub fn scopes(&self) -> Scopes {
        Scopes::of(self.scopes.clone())
    }
}

impl From<ClientRow> for OAuthClient {
    fn from(row: ClientRow) -> Self {
        Self {
            id: row.id,
            client_id: row.client_id,
            name: row.name,
            redirect_uris: row.redirect_uris,
            confidential: row.secret_digest.is_some(),
            scopes: row.scopes,
            creation_timestamp_ms: Timestamp(row.created_ms),
            last_edit_timestamp_ms: Timestamp(row.edited_ms),
        }
    }
}

/// A client by its name in the protocol: the query that finds the account.
pub(crate) async fn by_client_id(conn: &Conn, client_id: &str) -> Result<Option<ClientRow>> {
    let mut conn = conn;
    let client = oauth_clients::table.filter(oauth_clients::client_id.eq(client_id));
    Ok(client.select(ClientRow::as_select()).first(&mut conn).await.optional()?)
}

/// Clients of an account.
#[async_trait]
pub trait ClientService: Send + Sync {
    /// Makes a client. With `once`, the answer is stored for repetitions, its secret masked.
    async fn create_client(
        &self,
        account: &AccountId,
        new: NewClient,
        once: Option<&Idempotency>,
    ) -> Result<ClientWithSecret>;
    /// Clients, newest first.
    async fn list_clients(&self, account: &AccountId, page: Page) -> Result<ClientPage>;
    /// Where the clients of an account have browsers sent back.
    async fn redirect_uris(&self, account: &AccountId) -> Result<Vec<String>>;
    /// One client.
    async fn get_client(&self, account: &AccountId, id: &Id<OAuthClient>) -> Result<OAuthClient>;
    /// Changes the given fields.
    async fn update_client(&self, account: &AccountId, id: &Id<OAuthClient>, patch: Object) -> Result<OAuthClient>;
    /// Takes a client away, with everything users granted it.
    async fn delete_client(&self, account: &AccountId, id: &Id<OAuthClient>) -> Result<()>;
}

#[diesel::dsl::auto_type(no_type_alias)]
fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    oauth_clients::table.filter(oauth_clients::account_id.eq(account).and(oauth_clients::id.eq(id)))
}

#[async_trait]
impl ClientService for PgAuthService {
    async fn create_client(
        &self,
        account: &AccountId,
        new: NewClient,
        once: Option<&Idempotency>,
    ) -> Result<ClientWithSecret> {
        new.check()?;
        let secret = new.confidential.then(|| KeySecret::generate(SECRET_PREFIX)).transpose()?;
        let now = self.clock.now();
        let row = ClientRow {
            id: Id::<OAuthClient>::generate().into(),
            account_id: Some(account.as_str().to_owned()),
            client_id: new.client_id.unwrap_or_else(|| Id::<ClientRow>::generate().into()),
            name: new.name,
            redirect_uris: new.redirect_uris,
            secret_digest: secret.as_ref().map(|secret| sha256_hex(secret.expose())),
            scopes: new.scopes,
            created_ms: now.0,
            edited_ms: now.0,
            used_ms: None,
        };
        let client_secret = secret.map(|secret| secret.expose().to_owned());
        let made = ClientWithSecret { record: row.clone().into(), client_secret };
        let mut conn = self.db.conn().await?;
        let creating = conn.transaction::<_, Error, _>(async |conn| {
            let new = diesel::insert_into(oauth_clients::table).values(&row);
            if new.on_conflict(oauth_clients::client_id).do_nothing().execute(conn).await? == 0 {
                let message = format!("There is a client `{}` already; choose another clientId.", row.client_id);
                return Err(Error::new(Code::IDENTIFIER_TAKEN, message));
            }
            if let Some(once) = once {
                let client_secret = made.client_secret.as_ref().map(|_| MASK.to_owned());
                once.store(conn, 201, &ClientWithSecret { client_secret, ..made.clone() }).await?;
            }
            Ok(())
        });
        creating.await?;
        Ok(made)
    }

    async fn redirect_uris(&self, account: &AccountId) -> Result<Vec<String>> {
        let conn = self.db.read().await?;
        let of = oauth_clients::table.filter(oauth_clients::account_id.eq(account.as_str()));
        let of_each: Vec<Vec<String>> = of.select(oauth_clients::redirect_uris).load(&mut conn.get()).await?;
        Ok(of_each.into_iter().flatten().collect())
    }

    async fn list_clients(&self, account: &AccountId, page: Page) -> Result<ClientPage> {
        let conn = self.db.read().await?;
        let mut conn = conn.get();
        let of = || oauth_clients::table.filter(oauth_clients::account_id.eq(account.as_str()));
        let total = of().count().get_result(&mut conn).await?;
        let rows: Vec<ClientRow> = of()
            .order((oauth_clients::created_ms.desc(), oauth_clients::id.desc()))
            .limit(page.limit)
            .offset(page.offset)
            .select(ClientRow::as_select())
            .load(&mut conn)
            .await?;
        let items = rows.into_iter().map(OAuthClient::from).collect();
        Ok(ClientPage { items, total, offset: page.offset, limit: page.limit })
    }

    async fn get_client(&self, account: &AccountId, id: &Id<OAuthClient>) -> Result<OAuthClient> {
        let conn = self.db.read().await?;
        let client = by_id(account.as_str(), id).select(ClientRow::as_select());
        let row: Option<ClientRow> = client.first(&mut conn.get()).await.optional()?;
        Ok(row.ok_or_else(|| not_found(id))?.into())
    }

    async fn update_client(&self, account: &AccountId, id: &Id<OAuthClient>, patch: Object) -> Result<OAuthClient> {
        // Fields are judged before it matters what they are applied to.
        let known = NewClient {
            name: "named".to_owned(),
            redirect_uris: vec!["https://named".to_owned()],
            ..NewClient::default()
        };
        overlay(&known, patch.clone())?.check()?;
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let updating = conn.transaction::<_, Error, _>(async |conn| {
            let client = by_id(account.as_str(), id).for_no_key_update().select(ClientRow::as_select());
            let row: Option<ClientRow> = client.first(conn).await.optional()?;
            let row = row.ok_or_else(|| not_found(id))?;
            let confidential = row.secret_digest.is_some();
            let current = NewClient {
                client_id: Some(row.client_id.clone()),
                name: row.name.clone(),
                redirect_uris: row.redirect_uris.clone(),
                confidential,
                scopes: row.scopes.clone(),
            };
            let changed: NewClient = overlay(&current, patch)?;
            changed.check()?;
            if changed.client_id.is_some_and(|id| id != row.client_id) {
                return Err(Error::invalid("clientId", "conflict", "clientId never changes; leave it out"));
            }
            if changed.confidential != confidential {
                return Err(Error::invalid(
                    "confidential",
                    "conflict",
                    "confidential is decided when a client is made",
                ));
            }
            let changed = diesel::update(by_id(account.as_str(), id)).set((
                oauth_clients::name.eq(changed.name),
                oauth_clients::redirect_uris.eq(changed.redirect_uris),
                oauth_clients::scopes.eq(changed.scopes),
                oauth_clients::edited_ms.eq(now.0),
            ));
            Ok(changed.returning(ClientRow::as_returning()).get_result::<ClientRow>(conn).await?)
        });
        let row = updating.await?;
        drop(conn);
        self.known.changed(id).await?;
        Ok(row.into())
    }

    async fn delete_client(&self, account: &AccountId, id: &Id<OAuthClient>) -> Result<()> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            let client = by_id(account.as_str(), id).for_no_key_update().select(oauth_clients::client_id);
            let client: Option<String> = client.first(conn).await.optional()?;
            grants::revoke_of_client(conn, &client.ok_or_else(|| not_found(id))?, now).await?;
            diesel::delete(by_id(account.as_str(), id)).execute(conn).await?;
            Ok(())
        });
        deleting.await?;
        drop(conn);
        self.known.changed(id).await
    }
}

fn not_found(id: &str) -> Error {
    Error::not_found(Code::NOT_FOUND, "OAuth client", id)
}
