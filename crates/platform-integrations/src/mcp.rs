//! Connections to MCP servers: their authorization server is found, and this one registers there by itself (the MCP
//! specification's authorization; RFC 9728, 8414, 7591, 8707).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use platform_core::{AccountId, Code, Error, Owner, Result, check_size};
use platform_egress::{
    Egress, EgressError, Method, Outgoing, Payload, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE},
};
use platform_vault::Secret;
use rmcp::transport::auth::{
    AuthorizationManager, OAuthHttpClient, OAuthHttpClientFuture, OAuthHttpRedirectPolicy, OAuthHttpRequest,
};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    catalog::{AppClient, Connector},
    connecting::Prepared,
    model::{Connected, NewConnection},
    oauth::Client,
    pack::{AuthMode, AuthScheme, Pack},
    repository::{self, ConnectionRow},
    service::{Connecting, PgIntegrations},
};

/// What stands before the id of a server where others name their app.
const PREFIX: &str = "mcp:";
/// Longest search for an authorization server, registration included.
const SEARCH: Duration = Duration::from_secs(20);
const CLIENT_NAME: &str = "Agent platform";

/// An MCP server to which somebody connects.
#[derive(Debug, Clone)]
pub struct McpTarget<'a> {
    /// Its id.
    pub server: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Where it is.
    pub url: &'a str,
    /// Who connects, where an account has several who do.
    pub subject: Option<&'a str>,
}

impl McpTarget<'_> {
    fn app(&self) -> String {
        let subject = self.subject.map(|subject| format!(":{subject}")).unwrap_or_default();
        format!("{PREFIX}{}{subject}", self.server)
    }
}

/// Whether connections under this name are to MCP servers.
pub(crate) fn is_server(app: &str) -> bool {
    app.starts_with(PREFIX)
}

/// The MCP server of a connection, by what was found out when it began.
pub(crate) fn connector(app: &str, fields: &BTreeMap<String, Secret>) -> Result<Option<Connector>> {
    if !is_server(app) {
        return Ok(None);
    }
    let text = |name: &str| fields.get(name).map(|value| value.expose().to_owned());
    let scheme = AuthScheme {
        mode: AuthMode::OAuth2,
        authorization_url: text("authorizationUrl"),
        token_url: text("tokenUrl"),
        revocation_url: text("revocationUrl"),
        issuer: text("issuer"),
        resource: text("resource"),
        scopes: text("scopes").map(|scopes| scopes.split(' ').map(str::to_owned).collect()).unwrap_or_default(),
        pkce: true,
        ..AuthScheme::default()
    };
    let client =
        text("clientId").map(|id| AppClient { id, secret: fields.get("clientSecret").cloned(), signing_secret: None });
    let pack = Pack {
        slug: app.to_owned(),
        name: text("name").unwrap_or_default(),
        description: String::new(),
        logo: String::new(),
        categories: Vec::new(),
        base_url: None,
        auth: vec![scheme],
        tools: Vec::new(),
        event_types: Vec::new(),
    };
    Connector::new(pack, "mcp", client).map(Some).map_err(Error::internal)
}

impl PgIntegrations {
    /// Begins to connect to an MCP server. `UPSTREAM_ERROR` when it names nobody who could let in.
    pub async fn connect_mcp(
        &self,
        account: &AccountId,
        target: &McpTarget<'_>,
        new: NewConnection,
        connecting: &Connecting,
    ) -> Result<Connected> {
        let app = target.app();
        let found = timeout(SEARCH, self.find_authorization(account, target)).await;
        let fields = found.map_err(|_| unavailable("nobody answered in time"))??;
        let connector = connector(&app, &fields)?.ok_or_else(|| Error::internal("the name is that of a server"))?;
        let scheme = connector.pack.schemes().swap_remove(0);
        let client = connector.managed.as_ref().map(|of| Client { id: of.id.clone(), secret: of.secret.clone() });
        let prepared = Prepared { connector: Arc::new(connector), scheme, app_fields: None, fields, client };
        self.establish(account, prepared, new, None, connecting).await
    }

    /// The connection to an MCP server that is good, for this address of it.
    pub async fn mcp_connection(
        &self,
        account: &AccountId,
        target: &McpTarget<'_>,
        owner: &Owner,
    ) -> Result<Option<String>> {
        let conn = self.connections.db.read().await?;
        let rows = repository::list(conn.get(), account, Some(&target.app()), owner).await?;
        drop(conn);
        let Some(row) = rows.into_iter().find(ConnectionRow::is_active) else { return Ok(None) };
        let open = self.connections.find(account, &row.id).await?;
        // A token for one server is not sent to another that took its place.
        let same = open.is_some_and(|open| open.held.fields.get("url").is_some_and(|url| url.expose() == target.url));
        Ok(same.then_some(row.id))
    }

    /// Takes all connections to an MCP server away, here and there.
    pub async fn forget_mcp(&self, account: &AccountId, server: &str) -> Result<()> {
        let conn = self.connections.db.read().await?;
        let ids = repository::ids_of_app(conn.get(), account, &format!("{PREFIX}{server}")).await?;
        drop(conn);
        self.delete_all(account, &ids).await
    }

    /// Takes all connections of somebody to MCP servers away, here and there.
    pub async fn forget_subject(&self, account: &AccountId, subject: &str) -> Result<()> {
        let conn = self.connections.db.read().await?;
        let ids = repository::ids_of_subject(conn.get(), account, PREFIX, subject).await?;
        drop(conn);
        self.delete_all(account, &ids).await
    }

    /// Finds who lets in to a server, and registers there.
    async fn find_authorization(
        &self,
        account: &AccountId,
        target: &McpTarget<'_>,
    ) -> Result<BTreeMap<String, Secret>> {
        let egress = self.connections.egress.of(account);
        let url = egress.check(target.url).await.map_err(|error| error.into_error("url"))?;
        let challenge = challenge(&egress, &url).await?;
        let client = Arc::new(OAuthEgress(egress));
        let manager = AuthorizationManager::new_with_oauth_http_client(url.as_str(), client).await;
        let mut manager = manager.map_err(|error| unavailable(&error.to_string()))?;
        let resolved = manager.resolve_metadata_from_challenge(challenge.as_deref()).await;
        let metadata = resolved.map_err(|error| unavailable(&error.to_string()))?.metadata;
        let is_web = |url: &String| Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "https" | "http"));
        if !is_web(&metadata.authorization_endpoint) || !is_web(&metadata.token_endpoint) {
            return Err(unavailable("its addresses are not of the web"));
        }
        manager.set_metadata(metadata.clone());
        let scopes = manager.select_initial_scopes(&[]).await;
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let registered = manager.register_client(CLIENT_NAME, &self.redirect_uri, &scopes).await;
        let registered = registered.map_err(|error| unavailable(&error.to_string()))?;
        // The library knows what the server calls itself.
        let asked = manager.get_authorization_url(&scopes).await.map_err(|error| unavailable(&error.to_string()))?;
        let asked = Url::parse(&asked).map_err(Error::internal)?;
        let resource = asked.query_pairs().find(|(name, _)| name == "resource").map(|(_, value)| value.into_owned());
        let revocation = metadata.additional_fields.get("revocation_endpoint").and_then(|url| url.as_str());
        let fields = [
            ("url", Some(target.url.to_owned())),
            ("name", Some(target.name.to_owned())),
            ("authorizationUrl", Some(metadata.authorization_endpoint)),
            ("tokenUrl", Some(metadata.token_endpoint)),
            ("revocationUrl", revocation.map(str::to_owned)),
            ("issuer", metadata.issuer),
            ("resource", resource),
            ("scopes", Some(scopes.join(" ")).filter(|scopes| !scopes.is_empty())),
            ("clientId", Some(registered.client_id)),
            ("clientSecret", registered.client_secret),
        ];
        Ok(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))).collect())
    }
}

fn unavailable(reason: &str) -> Error {
    let reason: String = reason.chars().take(500).collect();
    Error::new(Code::UPSTREAM_ERROR, format!("The MCP server's log-in cannot be used: {reason}."))
}

/// What a server says to those without a token.
async fn challenge(egress: &Egress, url: &Url) -> Result<Option<String>> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let asked = Outgoing {
        method: Method::POST,
        url: url.clone(),
        headers,
        body: Payload::Bytes(ping.into()),
        follows: false,
        timeout: SEARCH,
    };
    let answer = egress.send(asked).await.map_err(EgressError::into_upstream_error)?;
    let challenge = answer.headers.get(WWW_AUTHENTICATE).filter(|_| answer.status == 401);
    Ok(challenge.and_then(|value| value.to_str().ok()).map(str::to_owned))
}

/// The way out, as the library takes it.
struct OAuthEgress(Egress);

impl OAuthHttpClient for OAuthEgress {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let follows = request.redirect_policy == OAuthHttpRedirectPolicy::Follow;
            let (parts, body) = request.request.into_parts();
            let outgoing = Outgoing {
                method: parts.method,
                url: Url::parse(&parts.uri.to_string())?,
                headers: parts.headers,
                body: if body.is_empty() { Payload::Empty } else { Payload::Bytes(body.into()) },
                follows,
                timeout: request.timeout.unwrap_or(SEARCH).min(SEARCH),
            };
            let answer = self.0.send(outgoing).await.map_err(|error| error.to_string())?;
            check_size(&answer.bytes)?;
            let mut response = http::Response::new(answer.bytes.to_vec());
            *response.status_mut() = http::StatusCode::from_u16(answer.status)?;
            *response.headers_mut() = answer.headers;
            Ok(response)
        })
    }
}
