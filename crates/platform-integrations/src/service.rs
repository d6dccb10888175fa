use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use diesel_async::AsyncConnection;
use platform_access::Kind;
use platform_core::{AccountId, Checks, Code, Error, Id, Object, Owner, Result, Timestamp, sha256_hex};
use platform_db::{Conn, Idempotency};
use platform_egress::Url;
use platform_jobs::{Jobs, When, enqueue_in};
use platform_toolservers::{
    AppFunction, AppLink, AppTool, AppTools, NewAppServer, PgToolServerService, TestResult, ToolDefinition, ToolServer,
    ToolServerService,
};
use platform_vault::{Secret, random_bytes};
use serde_json::{Value, json};

use crate::{
    catalog::{AppClient, Connector, next_cursor, offset_of},
    code,
    connections::{DECIDES_MS, Held, OpenConnection, PgConnections, field_texts, succeeded},
    model::{
        App, AppPage, Connected, ConnectedServer, Connection, ConnectionStatus, EventType, EventTypePage, ExposedTools,
        NewConnection, NewServer, Scheme, Schemes,
    },
    oauth,
    pack::{AuthMode, AuthScheme, Field},
    repository::{self, ACTIVE, AttemptRow, ConnectionRow, PENDING},
    revoke::{KIND as REVOKE, Revocation},
};

/// Apps.
pub const APP: Kind = Kind::of_account("app");
/// Connections to apps.
pub const CONNECTION: Kind = Kind::of_account("connection");

/// A part of a catalogue.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// Words that must occur.
    pub search: Option<String>,
    /// What apps are for.
    pub category: Option<String>,
    /// How many.
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

impl Listed {
    fn place(&self) -> Result<(usize, usize)> {
        Ok((self.limit, offset_of(self.cursor.as_deref())?))
    }
}

/// Who connects, and from where.
#[derive(Debug, Clone, Default)]
pub struct Connecting {
    /// `userUID` of the caller.
    pub by: String,
    /// Origins to which a browser may be sent back.
    pub origins: Vec<String>,
    /// The end user whose the account is; nobody in particular: the account's own.
    pub owner: Owner,
}

/// Where a user who has decided goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Decided {
    /// To this address.
    Back(Url),
    /// Nowhere: this is said.
    Said {
        /// HTTP status.
        status: u16,
        /// A sentence for the user.
        message: String,
    },
}

/// The query of a callback (RFC 6749 §4.1.2, RFC 9207).
#[derive(Debug, Clone, Default)]
pub struct Callback {
    /// What was given out.
    pub state: String,
    /// What becomes tokens.
    pub code: Option<String>,
    /// Why there is none.
    pub error: Option<String>,
    /// Who says so.
    pub iss: Option<String>,
}

/// Apps of an account: what there is, connections, tool servers. `APP_NOT_FOUND` comes from all that name one.
#[async_trait]
pub trait IntegrationService: Send + Sync {
    /// Apps, by name.
    fn apps(&self, listed: &Listed) -> Result<AppPage>;
    /// One app.
    fn app(&self, slug: &str) -> Result<App>;
    /// How accounts connect to an app.
    fn schemes(&self, slug: &str) -> Result<Schemes>;
    /// What an app tells of.
    fn event_types(&self, slug: &str, listed: &Listed) -> Result<EventTypePage>;
    /// One event type. `EVENT_TYPE_NOT_FOUND`.
    fn event_type(&self, slug: &str, event: &str) -> Result<EventType>;

    /// Connects an account, or begins to. `INTEGRATION_SETUP_REQUIRED`, `CREDENTIALS_REJECTED`, `INVALID_RETURN_TO`,
    /// `CONNECTION_NOT_FOUND`.
    async fn connect(
        &self,
        account: &AccountId,
        app: &str,
        new: NewConnection,
        connecting: &Connecting,
    ) -> Result<Connected>;
    /// How the account stands with an app.
    async fn status(&self, account: &AccountId, app: &str) -> Result<ConnectionStatus>;
    /// A user has decided.
    async fn decided(&self, callback: Callback) -> Result<Decided>;
    /// Takes a connection away, here and at the app. `CONNECTION_NOT_FOUND`.
    async fn disconnect(&self, account: &AccountId, connection: &str) -> Result<()>;

    /// Tool servers that were made from apps; `within`: beside those in no project, only those of these.
    async fn connected(&self, account: &AccountId, within: Option<Vec<String>>) -> Result<Vec<ConnectedServer>>;
    /// Makes a tool server from an app. `TOOL_NOT_FOUND`, `CONFLICT` when nobody is connected.
    async fn create_server(
        &self,
        account: &AccountId,
        app: &str,
        new: NewServer,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer>;
    /// The tools that a server exposes, or all that it could. `NOT_AN_INTEGRATION`.
    async fn tools(&self, account: &AccountId, server: &str, available: bool, listed: &Listed) -> Result<AppTools>;
    /// Changes which tools a server exposes. `TOOL_NOT_FOUND`, `LAST_TOOL`, `NOT_AN_INTEGRATION`.
    async fn expose(&self, account: &AccountId, server: &str, change: ExposedTools) -> Result<AppTools>;
    /// Calls a tool for real. `TOOL_NOT_EXPOSED`, `TOOL_NOT_FOUND`, `NOT_AN_INTEGRATION`.
    async fn test(&self, account: &AccountId, server: &str, tool: &str, arguments: Object) -> Result<TestResult>;
}

/// Integrations on PostgreSQL.
pub struct PgIntegrations {
    pub(crate) connections: Arc<PgConnections>,
    pub(crate) tool_servers: Arc<PgToolServerService>,
    jobs: Arc<Jobs>,
    /// Where browsers come back to.
    redirect_uri: String,
    /// Origin of this server.
    origin: Option<String>,
}

enum ConnectionKind {}

/// Connections that came to nothing and are kept: of an account to an app, and of an end user.
const MOST_VAIN: usize = 20;
const MOST_VAIN_OF_TENANT: usize = 3;

/// What is known of a user who decides in a browser.
struct Attempt {
    /// Of PKCE.
    verifier: Secret,
    /// By which scheme.
    mode: String,
    /// What the account gave, and what the operator of the app did.
    fields: BTreeMap<String, Secret>,
    app_fields: Option<BTreeMap<String, Secret>>,
}

/// What is needed to connect by a scheme.
pub(crate) struct Prepared {
    pub connector: Arc<Connector>,
    pub scheme: AuthScheme,
    /// What the operator of the app gave just now.
    app_fields: Option<BTreeMap<String, Secret>>,
    /// What the account gave, now or before.
    fields: BTreeMap<String, Secret>,
    client: Option<oauth::Client>,
}

impl PgIntegrations {
    /// `public_url`: where this server is.
    pub fn new(
        connections: &Arc<PgConnections>,
        tool_servers: &Arc<PgToolServerService>,
        jobs: &Arc<Jobs>,
        public_url: &str,
    ) -> Self {
        Self {
            connections: Arc::clone(connections),
            tool_servers: Arc::clone(tool_servers),
            jobs: Arc::clone(jobs),
            redirect_uri: format!("{}/v1/integrations/callback", public_url.trim_end_matches('/')),
            origin: origin_of(public_url),
        }
    }

    fn connector(&self, slug: &str) -> Result<Arc<Connector>> {
        self.connections.apps.get(slug).cloned()
    }

    /// The connector of an app, for those who build on it.
    pub fn connector_of(&self, slug: &str) -> Result<Arc<Connector>> {
        self.connector(slug)
    }

    /// Requests with the rights of connections.
    pub fn connections(&self) -> &Arc<PgConnections> {
        &self.connections
    }

    /// Looks at everything that can be looked at before somebody connects; `before`: the connection that is made again.
    pub(crate) async fn prepare(
        &self,
        account: &AccountId,
        app: &str,
        new: &NewConnection,
        before: Option<&OpenConnection>,
        of_tenant: bool,
    ) -> Result<Prepared> {
        let connector = self.connector(app)?;
        let scheme = choose(&connector, new.auth_scheme.as_deref(), before)?;
        let mode = scheme.mode.as_str();
        let mut given = field_texts(&new.app_fields);
        check_fields("appFields", &scheme.app_fields, &given)?;
        if of_tenant && !given.is_empty() {
            return Err(Error::invalid("appFields", "unknown", "appFields are the operator's to give"));
        }
        let stored = self.connections.app_fields(account, app, mode).await?;
        let is_managed = scheme.mode == AuthMode::OAuth2 && connector.managed.is_some();
        let has_new = !given.is_empty();
        for (name, value) in &stored {
            given.entry(name.clone()).or_insert_with(|| value.clone());
        }
        if !is_managed || has_new {
            setup(&connector, &scheme, "app", &scheme.app_fields, &mut given)?;
        }
        let account_given = field_texts(&new.account_fields);
        check_fields("accountFields", &scheme.account_fields, &account_given)?;
        let mut fields = before.map(|open| open.held.fields.clone()).unwrap_or_default();
        fields.extend(account_given);
        setup(&connector, &scheme, "account", &scheme.account_fields, &mut fields)?;
        let client = match given.get("clientId") {
            Some(id) => {
                let secret = given.get("clientSecret").cloned();
                Some(oauth::Client { id: id.expose().to_owned(), secret })
            }
            None => connector
                .managed
                .as_ref()
                .map(|AppClient { id, secret, .. }| oauth::Client { id: id.clone(), secret: Some(secret.clone()) }),
        };
        Ok(Prepared { connector, scheme, app_fields: has_new.then_some(given), fields, client })
    }

    /// Stores a connection that was prepared: as good when its credentials are proven, else until a user has decided.
    pub(crate) async fn establish(
        &self,
        account: &AccountId,
        prepared: Prepared,
        new: NewConnection,
        before: Option<Arc<OpenConnection>>,
        connecting: &Connecting,
    ) -> Result<Connected> {
        let Prepared { connector, scheme, app_fields, fields, client } = prepared;
        let return_to = self.check_return_to(new.return_to.as_deref(), connecting)?;
        let app = connector.pack.slug.clone();
        let now = self.connections.clock.now();
        let label = new.label.filter(|label| !label.trim().is_empty());
        let mut row = before.as_ref().map_or_else(
            || ConnectionRow {
                account_id: account.as_str().to_owned(),
                id: Id::<ConnectionKind>::generate().into(),
                app: app.clone(),
                scheme: scheme.mode.as_str().to_owned(),
                label: connector.pack.name.clone(),
                status: PENDING.to_owned(),
                status_reason: None,
                tenant_id: connecting.owner.tenant_id.clone(),
                subtenant_id: connecting.owner.subtenant_id.clone(),
                secrets: String::new(),
                expires_ms: None,
                refresh_ms: None,
                refused: 0,
                connected_ms: None,
                created_ms: now.0,
                updated_ms: now.0,
            },
            |open| open.row.clone(),
        );
        if let Some(label) = label {
            row.label = label;
        }
        let id = row.id.clone();
        if scheme.mode == AuthMode::OAuth2 {
            let client = client.ok_or_else(|| Error::internal("a client is asked for before"))?;
            let (state, verifier) = (token(), Secret::from(token()));
            let url = oauth::authorization_url(&scheme, &client, &self.redirect_uri, &state, &verifier);
            let url = url.ok_or_else(|| Error::internal("a pack was checked"))?;
            let attempt = AttemptRow {
                state_hash: sha256_hex(&state),
                account_id: account.as_str().to_owned(),
                connection_id: id.clone(),
                sealed: self.seal_attempt(
                    account,
                    &state,
                    &Attempt { verifier, mode: scheme.mode.as_str().to_owned(), fields, app_fields },
                ),
                return_to,
                made_by: connecting.by.clone(),
                expires_ms: now.0 + DECIDES_MS,
            };
            row.secrets = match &before {
                Some(open) => open.row.secrets.clone(),
                None => self.connections.seal(account, &id, &Held::default()),
            };
            let mut conn = self.connections.db.conn().await?;
            let beginning = conn.transaction::<_, Error, _>(async |conn| {
                if before.is_none() {
                    repository::insert(conn, &row).await?;
                    let most = if connecting.owner.tenant_id.is_some() { MOST_VAIN_OF_TENANT } else { MOST_VAIN };
                    repository::trim(conn, account, &app, &connecting.owner, most).await?;
                }
                repository::begin(conn, &attempt).await
            });
            beginning.await?;
            return Ok(Connected { connected: false, connection_id: id, authorization_url: Some(url.into()) });
        }
        scheme.mode.as_str().clone_into(&mut row.scheme);
        let held = Held { fields, ..Held::default() };
        // What the operator gives is part of what is proven, and kept with it or not at all.
        let mut shown = held.clone();
        shown.fields.extend(app_fields.clone().unwrap_or_default());
        self.prove(account, &row, &shown, &scheme).await?;
        let app_secrets = app_fields.map(|fields| self.connections.seal_app(account, &app, fields));
        row.secrets = self.connections.seal(account, &id, &held);
        row.connected_ms = row.connected_ms.or(Some(now.0));
        row.refused = 0;
        (row.expires_ms, row.refresh_ms) = (None, None);
        let mut conn = self.connections.db.conn().await?;
        let connecting_to = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock_owner(conn, account, &app, &connecting.owner).await?;
            if let Some(sealed) = &app_secrets {
                repository::set_app_secrets(conn, account, &app, scheme.mode.as_str(), sealed).await?;
            }
            if before.is_none() {
                PENDING.clone_into(&mut row.status);
                repository::insert(conn, &row).await?;
            } else if let Some(current) = repository::lock(conn, account, &id).await? {
                row.status = current.status;
            } else {
                return Err(not_found(&id));
            }
            self.connections.settle_in(conn, account, &mut row, (ACTIVE, None)).await?;
            self.retire_in(conn, account, &row).await
        });
        let retired = connecting_to.await?;
        drop(conn);
        self.settled(&id, &retired).await?;
        Ok(Connected { connected: true, connection_id: id, authorization_url: None })
    }

    /// Proves credentials with the request that the pack names.
    async fn prove(&self, account: &AccountId, row: &ConnectionRow, held: &Held, scheme: &AuthScheme) -> Result<()> {
        let Some(test) = &scheme.test else { return Ok(()) };
        let open = OpenConnection { row: row.clone(), held: held.clone() };
        let answer = self.connections.send(account, &open, test, &|_| None).await?;
        if succeeded(test, &answer) {
            return Ok(());
        }
        if answer.status >= 500 || answer.status == 429 {
            let message = format!("{} answers {}; try again later.", row.label, answer.status);
            return Err(Error::new(Code::UPSTREAM_ERROR, message).with("status", answer.status));
        }
        let message = format!("{} refuses these credentials (it answers {}).", row.label, answer.status);
        Err(Error::new(code::CREDENTIALS_REJECTED, message).with("status", answer.status))
    }

    /// An end user has one account of an app: the former ones go.
    async fn retire_in(&self, conn: &mut Conn, account: &AccountId, row: &ConnectionRow) -> Result<Vec<String>> {
        if row.tenant_id.is_none() {
            return Ok(Vec::new());
        }
        let owner = Owner { tenant_id: row.tenant_id.clone(), subtenant_id: row.subtenant_id.clone() };
        let all = repository::list(conn, account, Some(&row.app), &owner).await?;
        let mut retired = Vec::new();
        for former in all.into_iter().filter(|other| other.id != row.id) {
            // Somebody may be deciding on one; that is not ours to end.
            if former.status == PENDING && former.created_ms > row.created_ms {
                continue;
            }
            self.delete_in(conn, account, &former.id).await?;
            retired.push(former.id);
        }
        Ok(retired)
    }

    /// What is known of connections that changed is forgotten, and what waits for a worker is told.
    pub(crate) async fn settled(&self, id: &str, retired: &[String]) -> Result<()> {
        self.connections.changed(id).await?;
        if !retired.is_empty() {
            self.jobs.announce().await;
        }
        Ok(())
    }

    /// Takes a connection away; it is revoked at the app afterwards.
    pub(crate) async fn delete_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<bool> {
        let Some(row) = repository::delete(conn, account, id).await? else { return Ok(false) };
        if row.is_active() {
            platform_toolservers::set_connected_in(conn, account, id, false).await?;
            self.connections.listener_in(conn, account, id).await?;
        }
        let open = self.connections.open(account, row)?;
        if let Ok((connector, scheme)) = self.connections.scheme(&open.row)
            && scheme.revocation_url.is_some()
            && open.held.access.is_some()
        {
            let revocation = Revocation::of(&connector.pack.slug, &open, self.connections.clock.now());
            let payload = revocation.seal(&self.connections.vault, account, id);
            enqueue_in(conn, account, REVOKE, id, payload, When::After(std::time::Duration::ZERO)).await?;
        }
        Ok(true)
    }

    /// Where a browser may be sent back to.
    fn check_return_to(&self, return_to: Option<&str>, connecting: &Connecting) -> Result<Option<String>> {
        let Some(given) = return_to.filter(|given| !given.is_empty()) else { return Ok(None) };
        let wrong = || {
            let message = "returnTo must be an address of the page that asks, of this server, or of an OAuth client.";
            Error::new(code::INVALID_RETURN_TO, message)
        };
        // What browsers read in another way than this server is refused.
        if given.len() > 2048 || given.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
            return Err(wrong());
        }
        let url = Url::parse(given).map_err(|_| wrong())?;
        let is_plain =
            matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
        let origin = url.origin().ascii_serialization();
        // An end user goes back to the page that asked, and to no other.
        let own = self.origin.as_ref().filter(|_| connecting.owner.tenant_id.is_none());
        let is_known = own == Some(&origin) || connecting.origins.contains(&origin);
        if is_plain && is_known { Ok(Some(url.into())) } else { Err(wrong()) }
    }

    fn seal_attempt(&self, account: &AccountId, state: &str, attempt: &Attempt) -> String {
        let texts = |fields: &BTreeMap<String, Secret>| -> BTreeMap<String, String> {
            fields.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect()
        };
        let Attempt { verifier, mode, fields, app_fields } = attempt;
        let text = json!([verifier.expose(), mode, texts(fields), app_fields.as_ref().map(texts)]).to_string();
        self.connections.vault.seal(&attempt_place(account, &sha256_hex(state)), &text)
    }

    fn open_attempt(&self, account: &AccountId, row: &AttemptRow) -> Result<Attempt> {
        type Texts = BTreeMap<String, String>;
        let opened = self.connections.vault.open(&attempt_place(account, &row.state_hash), &row.sealed)?;
        let (verifier, mode, fields, app_fields): (String, String, Texts, Option<Texts>) =
            serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        let secrets = |texts: Texts| texts.into_iter().map(|(name, value)| (name, value.into())).collect();
        Ok(Attempt { verifier: verifier.into(), mode, fields: secrets(fields), app_fields: app_fields.map(secrets) })
    }

    /// Tokens for the code of an attempt that was taken.
    async fn complete(
        &self,
        account: &AccountId,
        row: &ConnectionRow,
        attempt: Attempt,
        code: &str,
    ) -> Result<std::result::Result<(), String>> {
        let Attempt { verifier, mode, fields, app_fields } = attempt;
        let mut row = row.clone();
        row.scheme.clone_from(&mode);
        let (connector, scheme) = self.connections.scheme(&row)?;
        let given = app_fields.as_ref().and_then(|fields| {
            let id = fields.get("clientId")?.expose().to_owned();
            Some(oauth::Client { id, secret: fields.get("clientSecret").cloned() })
        });
        let client = match given {
            Some(client) => Some(client),
            None => self.connections.client(account, &connector, &scheme).await?,
        };
        let asked = (code, self.redirect_uri.as_str(), &verifier);
        let tokens = match oauth::exchange(&self.connections.egress.of(account), &scheme, client.as_ref(), asked).await
        {
            Ok(tokens) => tokens,
            Err(refusal) => return Ok(Err(refusal.reason())),
        };
        let app_secrets = app_fields.map(|fields| self.connections.seal_app(account, &row.app, fields));
        let mut held = Held { fields, ..Held::default() };
        let now = self.connections.clock.now();
        let owner = Owner { tenant_id: row.tenant_id.clone(), subtenant_id: row.subtenant_id.clone() };
        let (id, app) = (row.id, row.app);
        let mut conn = self.connections.db.conn().await?;
        let storing = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock_owner(conn, account, &app, &owner).await?;
            let Some(mut row) = repository::lock(conn, account, &id).await? else { return Ok(None) };
            if let Some(sealed) = &app_secrets {
                repository::set_app_secrets(conn, account, &app, &mode, sealed).await?;
            }
            self.connections.take(&mut row, &mut held, tokens);
            row.scheme.clone_from(&mode);
            row.secrets = self.connections.seal(account, &id, &held);
            row.connected_ms = row.connected_ms.or(Some(now.0));
            self.connections.settle_in(conn, account, &mut row, (ACTIVE, None)).await?;
            self.retire_in(conn, account, &row).await.map(Some)
        });
        let retired = storing.await?;
        drop(conn);
        let Some(retired) = retired else { return Ok(Err("the connection was deleted".to_owned())) };
        self.settled(&id, &retired).await?;
        Ok(Ok(()))
    }

    /// The link of a server that is made from an app.
    async fn link(&self, account: &AccountId, server: &str) -> Result<(AppLink, Arc<Connector>)> {
        let link = self.tool_servers.app_link(account, server).await?;
        let link =
            link.ok_or_else(|| Error::new(code::NOT_AN_INTEGRATION, "This tool server is not made from an app."))?;
        let connector = self.connector(&link.app)?;
        Ok((link, connector))
    }

    /// The connection that a new server calls with.
    async fn connection_for(
        &self,
        account: &AccountId,
        connector: &Connector,
        wanted: Option<&str>,
    ) -> Result<ConnectionRow> {
        let app = connector.pack.slug.as_str();
        let conn = self.connections.db.read().await?;
        let all = repository::list(conn.get(), account, Some(app), &Owner::default()).await?;
        drop(conn);
        let found = match wanted {
            Some(id) => Some(all.into_iter().find(|row| row.id == id).ok_or_else(|| not_found(id))?),
            None => all.into_iter().find(ConnectionRow::is_active),
        };
        let conflict = || {
            let message = format!("No account is connected to {}; connect one first.", connector.pack.name);
            Error::new(Code::CONFLICT, message)
        };
        found.filter(ConnectionRow::is_active).ok_or_else(conflict)
    }
}

#[async_trait]
impl IntegrationService for PgIntegrations {
    fn apps(&self, listed: &Listed) -> Result<AppPage> {
        Ok(self.connections.apps.list(listed.search.as_deref(), listed.category.as_deref(), listed.place()?))
    }

    fn app(&self, slug: &str) -> Result<App> {
        Ok(self.connector(slug)?.shown())
    }

    fn schemes(&self, slug: &str) -> Result<Schemes> {
        Ok(shown_schemes(&*self.connector(slug)?, false))
    }

    fn event_types(&self, slug: &str, listed: &Listed) -> Result<EventTypePage> {
        Ok(self.connector(slug)?.event_types(listed.search.as_deref(), listed.place()?))
    }

    fn event_type(&self, slug: &str, event: &str) -> Result<EventType> {
        let connector = self.connector(slug)?;
        Ok(connector.shown_event(connector.event_type(event)?))
    }

    async fn connect(
        &self,
        account: &AccountId,
        app: &str,
        new: NewConnection,
        connecting: &Connecting,
    ) -> Result<Connected> {
        let mut checks = Checks::default();
        checks.length("label", new.label.as_deref().unwrap_or_default(), 0..=100);
        checks.finish()?;
        self.connector(app)?;
        let before = match &new.connection_id {
            None => None,
            Some(id) => {
                let open = self.connections.find(account, id).await?;
                let is_own = |open: &Arc<OpenConnection>| open.row.app == app && open.row.tenant_id.is_none();
                Some(open.filter(is_own).ok_or_else(|| not_found(id))?)
            }
        };
        let prepared = self.prepare(account, app, &new, before.as_deref(), false).await?;
        self.establish(account, prepared, new, before, connecting).await
    }

    async fn status(&self, account: &AccountId, app: &str) -> Result<ConnectionStatus> {
        self.connector(app)?;
        let conn = self.connections.db.read().await?;
        let rows = repository::list(conn.get(), account, Some(app), &Owner::default()).await?;
        let connections: Vec<Connection> = rows.iter().map(ConnectionRow::shown).collect();
        Ok(ConnectionStatus { connected: rows.iter().any(ConnectionRow::is_active), connections })
    }

    async fn decided(&self, callback: Callback) -> Result<Decided> {
        let said = |status, message: &str| Ok(Decided::Said { status, message: message.to_owned() });
        let attempt =
            repository::take_attempt(&mut *self.connections.db.conn().await?, &sha256_hex(&callback.state)).await?;
        let now = self.connections.clock.now();
        let Some(attempt) = attempt.filter(|attempt| attempt.expires_ms > now.0) else {
            return said(400, "This link was used before, or is too old. Connect again.");
        };
        let account =
            AccountId::parse(&attempt.account_id).map_err(|_| Error::internal("an attempt has no account"))?;
        let row = repository::find(self.connections.db.read().await?.get(), &account, &attempt.connection_id).await?;
        let Some(row) = row else { return said(400, "This connection was deleted. Connect again.") };
        let begun = self.open_attempt(&account, &attempt)?;
        let of_attempt = ConnectionRow { scheme: begun.mode.clone(), ..row.clone() };
        let issuer = self.connections.scheme(&of_attempt).ok().and_then(|(_, scheme)| scheme.issuer);
        let is_strange = callback.iss.is_some() && issuer.is_some() && callback.iss != issuer;
        let outcome = match (&callback.code, &callback.error) {
            _ if is_strange => Err("somebody else than the app answered".to_owned()),
            (Some(code), None) => self.complete(&account, &row, begun, code).await?,
            (_, error) => {
                let known =
                    |error: &&String| error.len() <= 64 && error.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
                let reason = error.as_ref().filter(known).map_or("no code came", String::as_str);
                Err(format!("the app refused: {reason}"))
            }
        };
        if let Err(reason) = &outcome {
            self.connections.expire(&account, &attempt.connection_id, reason).await?;
        }
        if let Some(return_to) = attempt.return_to.as_deref().and_then(|url| Url::parse(url).ok()) {
            let mut url = return_to;
            let conn = self.connections.db.read().await?;
            let row = repository::find(conn.get(), &account, &attempt.connection_id).await?;
            let status = row.map_or_else(|| "deleted".to_owned(), |row| row.status);
            let status = if outcome.is_err() && status == ACTIVE { "error".to_owned() } else { status };
            url.query_pairs_mut().append_pair("connectionId", &attempt.connection_id).append_pair("status", &status);
            return Ok(Decided::Back(url));
        }
        match outcome {
            Ok(()) => said(200, &format!("{} is connected. You can close this window.", row.label)),
            Err(reason) if is_strange => said(400, &format!("{} was not connected: {reason}.", row.label)),
            Err(reason) => said(400, &format!("{} was not connected: {reason}. Connect again.", row.label)),
        }
    }

    async fn disconnect(&self, account: &AccountId, connection: &str) -> Result<()> {
        let mut conn = self.connections.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock(conn, account, connection).await?;
            if row.is_none_or(|row| row.tenant_id.is_some()) {
                return Err(not_found(connection));
            }
            self.delete_in(conn, account, connection).await
        });
        deleting.await?;
        drop(conn);
        self.settled(connection, &[connection.to_owned()]).await
    }

    async fn connected(&self, account: &AccountId, within: Option<Vec<String>>) -> Result<Vec<ConnectedServer>> {
        let servers = self.tool_servers.app_servers(account, within).await?;
        let conn = self.connections.db.read().await?;
        let rows = repository::list(conn.get(), account, None, &Owner::default()).await?;
        drop(conn);
        let shown = servers.into_iter().filter_map(|server| {
            let link = server.integration?;
            let status = rows.iter().find(|row| Some(&row.id) == link.connection_id.as_ref());
            Some(ConnectedServer {
                id: server.id,
                name: server.settings["name"].as_str().unwrap_or_default().to_owned(),
                connected: status.is_some_and(ConnectionRow::is_active),
                exposed_tool_count: link.exposed.as_ref().map(Vec::len),
                status: status.map_or_else(|| "deleted".to_owned(), |row| row.status.clone()),
                connection_id: link.connection_id,
                app: link.app,
            })
        });
        Ok(shown.collect())
    }

    async fn create_server(
        &self,
        account: &AccountId,
        app: &str,
        new: NewServer,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer> {
        let connector = self.connector(app)?;
        let pack = &connector.pack;
        let exposed = new.tools.map(|names| {
            for name in &names {
                pack.tool(name).ok_or_else(|| no_tool(name))?;
            }
            if names.is_empty() && !pack.tools.is_empty() {
                return Err(Error::new(
                    code::LAST_TOOL,
                    "A server exposes at least one tool; leave tools out for all.",
                ));
            }
            let in_order = pack.tools.iter().map(|tool| &tool.function.name).filter(|name| names.contains(name));
            Ok(in_order.cloned().collect::<Vec<_>>())
        });
        let exposed = exposed.transpose()?;
        let connection = match self.connection_for(account, &connector, new.connection_id.as_deref()).await {
            Err(error) if error.code() == Code::CONFLICT && pack.no_auth() && new.connection_id.is_none() => {
                // There is nothing to decide or to prove.
                let none = NewConnection::default();
                self.connect(account, app, none, &Connecting::default()).await?;
                self.connection_for(account, &connector, None).await?
            }
            found => found?,
        };
        let tools = tools_of(&connector, exposed.as_deref());
        let new = NewAppServer {
            name: new.name.filter(|name| !name.trim().is_empty()).unwrap_or_else(|| pack.name.clone()),
            description: pack.description.clone(),
            image_url: Some(pack.logo.clone()).filter(|logo| !logo.is_empty()),
            url: pack.base_url.clone(),
            link: AppLink { app: app.to_owned(), connection_id: Some(connection.id), connected: true, exposed },
            tools,
        };
        self.tool_servers.create_app(account, new, once).await
    }

    async fn tools(&self, account: &AccountId, server: &str, available: bool, listed: &Listed) -> Result<AppTools> {
        let (link, connector) = self.link(account, server).await?;
        let (limit, offset) = listed.place()?;
        let is_exposed = |name: &str| link.exposed.as_ref().is_none_or(|exposed| exposed.iter().any(|of| of == name));
        let words = listed.search.as_deref().unwrap_or_default().to_lowercase();
        let is_found = |tool: &&ToolDefinition| {
            let text = format!("{} {}", tool.function.name, tool.function.description).to_lowercase();
            words.split_whitespace().all(|word| text.contains(word))
        };
        let tools = connector.pack.tools.iter().filter(|tool| available || is_exposed(&tool.function.name));
        let found: Vec<&ToolDefinition> = tools.filter(is_found).collect();
        let shown = found.iter().skip(offset).take(limit).map(|tool| AppTool {
            function: AppFunction {
                name: tool.function.name.clone(),
                description: tool.function.description.clone(),
                parameters: tool.function.parameters.clone(),
            },
            enabled: is_exposed(&tool.function.name),
        });
        let next_cursor = next_cursor(found.len(), limit, offset);
        Ok(AppTools { tools: shown.collect(), total: found.len(), next_cursor })
    }

    async fn expose(&self, account: &AccountId, server: &str, change: ExposedTools) -> Result<AppTools> {
        let (_, connector) = self.link(account, server).await?;
        let ExposedTools { enable, disable, all } = change;
        let given = usize::from(enable.is_some() || disable.is_some()) + usize::from(all == Some(true));
        if given > 1 {
            return Err(Error::invalid("all", "conflict", "send either all, or enable and disable"));
        }
        let named = enable.iter().chain(&disable).flatten();
        for name in named {
            connector.pack.tool(name).ok_or_else(|| no_tool(name))?;
        }
        let (enable, disable) = (enable.unwrap_or_default(), disable.unwrap_or_default());
        let app = Arc::clone(&connector);
        let choose = move |link: &AppLink, _: &[ToolDefinition]| {
            let exposed = if all == Some(true) {
                None
            } else if enable.is_empty() && disable.is_empty() {
                link.exposed.clone()
            } else {
                let names = app.pack.tools.iter().map(|tool| tool.function.name.clone());
                let was = |name: &String| link.exposed.as_ref().is_none_or(|exposed| exposed.contains(name));
                let kept = names.filter(|name| (was(name) || enable.contains(name)) && !disable.contains(name));
                let kept: Vec<String> = kept.collect();
                if kept.is_empty() {
                    let message = "This would leave no tool; delete the server, or keep one.";
                    return Err(Error::new(code::LAST_TOOL, message));
                }
                (kept.len() < app.pack.tools.len() || link.exposed.is_some()).then_some(kept)
            };
            let tools = tools_of(&app, exposed.as_deref());
            Ok((exposed, tools))
        };
        self.tool_servers.expose(account, server, choose).await?;
        let listed = Listed { limit: 100, ..Listed::default() };
        self.tools(account, server, false, &listed).await
    }

    async fn test(&self, account: &AccountId, server: &str, tool: &str, arguments: Object) -> Result<TestResult> {
        let (link, connector) = self.link(account, server).await?;
        connector.pack.tool(tool).ok_or_else(|| no_tool(tool))?;
        if link.exposed.is_some_and(|exposed| !exposed.iter().any(|name| name == tool)) {
            let message = format!("The server does not expose `{tool}`; enable it first.");
            return Err(Error::new(code::TOOL_NOT_EXPOSED, message));
        }
        ToolServerService::test(&*self.tool_servers, account, server, tool, arguments).await
    }
}

/// The tools of an app that are exposed, as a server has them.
pub(crate) fn tools_of(connector: &Connector, exposed: Option<&[String]>) -> Vec<ToolDefinition> {
    let is_exposed = |name: &String| exposed.is_none_or(|exposed| exposed.contains(name));
    connector.pack.tools.iter().filter(|tool| is_exposed(&tool.function.name)).cloned().collect()
}

/// How accounts connect, as it is shown; an end user does not give what a managed app has.
pub(crate) fn shown_schemes(connector: &Connector, to_tenant: bool) -> Schemes {
    let shown = |scheme: AuthScheme| {
        let redirect = scheme.mode == AuthMode::OAuth2;
        let managed = redirect && connector.managed.is_some();
        Scheme {
            mode: scheme.mode.as_str().to_owned(),
            managed,
            redirect,
            app_fields: if managed && to_tenant { Vec::new() } else { scheme.app_fields },
            account_fields: scheme.account_fields,
            guide_url: scheme.guide_url,
        }
    };
    Schemes { schemes: connector.pack.schemes().into_iter().map(shown).collect() }
}

/// The scheme that is asked for; else that of the connection before; else the first that needs nothing of the
/// operator, else the first.
fn choose(connector: &Connector, wanted: Option<&str>, before: Option<&OpenConnection>) -> Result<AuthScheme> {
    let mut schemes = connector.pack.schemes();
    let wanted = wanted.or(before.map(|open| open.row.scheme.as_str()));
    let at = match wanted {
        Some(wanted) => {
            let known: Vec<&str> = schemes.iter().map(|scheme| scheme.mode.as_str()).collect();
            let at = known.iter().position(|mode| mode.eq_ignore_ascii_case(wanted));
            let message = || format!("authScheme must be one of {}", known.join(", "));
            at.ok_or_else(|| Error::invalid("authScheme", "enum", message()))?
        }
        None => {
            let is_managed = |scheme: &AuthScheme| scheme.mode == AuthMode::OAuth2 && connector.managed.is_some();
            schemes.iter().position(is_managed).unwrap_or(0)
        }
    };
    Ok(schemes.swap_remove(at))
}

/// Refuses fields that a scheme does not have.
fn check_fields(path: &str, known: &[Field], given: &BTreeMap<String, Secret>) -> Result<()> {
    let mut checks = Checks::default();
    for (name, value) in given {
        if !known.iter().any(|field| field.name == *name) {
            let names: Vec<&str> = known.iter().map(|field| field.name.as_str()).collect();
            checks.issue(
                &format!("{path}.{name}"),
                "unknown",
                format!("there is no such field; there are: {}", names.join(", ")),
            );
        }
        checks.bytes(&format!("{path}.{name}"), value.expose().len(), 16_384);
    }
    checks.finish()
}

/// `INTEGRATION_SETUP_REQUIRED` while a field is missing; defaults are filled in.
fn setup(
    connector: &Connector,
    scheme: &AuthScheme,
    stage: &str,
    fields: &[Field],
    given: &mut BTreeMap<String, Secret>,
) -> Result<()> {
    for field in fields {
        if let Some(default) = field.default.as_ref().filter(|_| !given.contains_key(&field.name)) {
            let text = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
            given.insert(field.name.clone(), text.into());
        }
    }
    let is_missing =
        |field: &&Field| field.required && given.get(&field.name).is_none_or(|value| value.expose().is_empty());
    let missing: Vec<&Field> = fields.iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|field| field.name.as_str()).collect();
    let name = if stage == "app" { "appFields" } else { "accountFields" };
    let message = format!("{} needs {} in {name}.", connector.pack.name, names.join(", "));
    Err(Error::new(code::INTEGRATION_SETUP_REQUIRED, message)
        .with("toolkit", &connector.pack.slug)
        .with("authScheme", scheme.mode.as_str())
        .with("stage", stage)
        .with("fields", fields)
        .with("guideUrl", &scheme.guide_url)
        .with("code", "INTEGRATION_SETUP_REQUIRED"))
}

fn no_tool(name: &str) -> Error {
    Error::not_found(code::TOOL_NOT_FOUND, "tool", name)
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found(code::CONNECTION_NOT_FOUND, "connection", id)
}

/// 32 bytes that nobody can guess.
fn token() -> String {
    URL_SAFE_NO_PAD.encode(random_bytes().as_slice())
}

/// Scheme, host and port of an address.
pub fn origin_of(url: &str) -> Option<String> {
    Url::parse(url).ok().map(|url| url.origin().ascii_serialization())
}

fn attempt_place<'a>(account: &'a AccountId, state_hash: &'a str) -> platform_vault::SecretLocation<'a> {
    platform_vault::SecretLocation { account, table: "connection_attempts", column: "sealed", row: state_hash }
}

/// Forgets attempts that nobody can use any more.
pub async fn purge_attempts(conn: &mut Conn, now: Timestamp) -> Result<()> {
    repository::purge_attempts(conn, now).await
}

/// An event as it would be tried: what the schema of its payload shows.
pub fn sample_of(schema: &Value) -> Value {
    if let Some(sample) = schema["examples"].as_array().and_then(|samples| samples.first()) {
        return sample.clone();
    }
    for name in ["const", "default"] {
        if !schema[name].is_null() {
            return schema[name].clone();
        }
    }
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") => "sample".into(),
        Some("integer") => schema["minimum"].as_i64().unwrap_or(1).into(),
        Some("number") => schema["minimum"].as_f64().unwrap_or(1.0).into(),
        Some("boolean") => true.into(),
        Some("array") => match &schema["items"] {
            Value::Object(_) => json!([sample_of(&schema["items"])]),
            _ => json!([]),
        },
        _ => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            properties.map(|(name, schema)| (name.clone(), sample_of(schema))).collect()
        }
    }
}
