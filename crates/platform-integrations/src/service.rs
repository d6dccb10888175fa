use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::Kind;
use platform_core::{AccountId, Checks, Code, Error, Id, Object, Owner, Precondition, Result, Timestamp, sha256_hex};
use platform_db::{Conn, Idempotency};
use platform_egress::Url;
use platform_jobs::Jobs;
use platform_toolservers::{
    AppFunction, AppLink, AppTool, AppTools, NewAppServer, OfApp, PgToolServerService, TestResult, ToolDefinition,
    ToolServer, ToolServerService,
};
use serde_json::{Value, json};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::{
    catalog::Connector,
    code,
    connecting::Attempted,
    connections::{Held, OpenConnection, PgConnections},
    model::{
        App, AppPage, Connected, ConnectedServer, Connection, ConnectionStatus, EventType, EventTypePage, ExposedTools,
        NewConnection, NewServer, Scheme, Schemes,
    },
    pack::{AuthMode, AuthScheme},
    page::Listing,
    repository::{self, ACTIVE, ConnectionRow},
};

/// After a failure it is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// Servers of apps are looked at again after this.
const RENEWAL: Duration = Duration::from_hours(1);

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
    fn place(&self) -> (usize, Option<&str>) {
        (self.limit, self.cursor.as_deref())
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
pub enum LoginOutcome {
    /// To this address.
    Redirect(Url),
    /// Nowhere: this is said.
    Message {
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
    fn apps(&self, account: &AccountId, listed: &Listed) -> Result<AppPage>;
    /// One app.
    fn app(&self, slug: &str) -> Result<App>;
    /// How accounts connect to an app.
    fn schemes(&self, slug: &str) -> Result<Schemes>;
    /// What an app tells of.
    fn event_types(&self, account: &AccountId, slug: &str, listed: &Listed) -> Result<EventTypePage>;
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
    async fn finish_login(&self, callback: Callback) -> Result<LoginOutcome>;
    /// Takes a connection away, here and at the app. `CONNECTION_NOT_FOUND`.
    async fn disconnect(&self, account: &AccountId, connection: &Id<Connection>) -> Result<()>;

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
    async fn tools(
        &self,
        account: &AccountId,
        server: &Id<ToolServer>,
        available: bool,
        listed: &Listed,
    ) -> Result<AppTools>;
    /// Refuses what was not made from an app, whether the app is still there or not: `NOT_AN_INTEGRATION`.
    async fn check_server(&self, account: &AccountId, server: &Id<ToolServer>) -> Result<()>;
    /// Changes which tools a server exposes. `TOOL_NOT_FOUND`, `LAST_TOOL`, `NOT_AN_INTEGRATION`.
    async fn expose(
        &self,
        account: &AccountId,
        server: &Id<ToolServer>,
        change: ExposedTools,
        expected: &Precondition,
    ) -> Result<AppTools>;
    /// Calls a tool for real. `TOOL_NOT_EXPOSED`, `TOOL_NOT_FOUND`, `NOT_AN_INTEGRATION`.
    async fn test(
        &self,
        account: &AccountId,
        server: &Id<ToolServer>,
        tool: &str,
        arguments: Object,
    ) -> Result<TestResult>;
}

/// Integrations on PostgreSQL.
pub struct PgIntegrations {
    pub(crate) connections: Arc<PgConnections>,
    pub(crate) tool_servers: Arc<PgToolServerService>,
    pub(crate) jobs: Arc<Jobs>,
    /// Where browsers come back to.
    pub(crate) redirect_uri: String,
    /// Origin of this server.
    pub(crate) origin: Option<String>,
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

    /// The connector of an app, for those who build on it. `APP_NOT_FOUND`.
    pub fn connector(&self, slug: &str) -> Result<Arc<Connector>> {
        self.connections.apps.get(slug).cloned()
    }

    /// Gives servers what the connectors of their apps say here; what they expose they go on to. Once an hour, since
    /// processes of another version may do the same.
    pub async fn renew_servers(self: Arc<Self>) {
        loop {
            let wait = match self.renew_all().await {
                Ok(count) => {
                    if count > 0 {
                        info!(count, "Tool servers have the tools of their connectors as these are now.");
                    }
                    RENEWAL
                }
                Err(error) => {
                    warn!(%error, "Tool servers could not be given the tools of newer connectors; trying again shortly.");
                    RETRY_DELAY
                }
            };
            sleep(wait).await;
        }
    }

    /// How many servers were renewed; one that cannot be is left as it is.
    async fn renew_all(&self) -> Result<usize> {
        let packs: Vec<(String, String)> =
            self.connections.apps.all().map(|of| (of.pack.slug.clone(), of.digest.clone())).collect();
        let (mut renewed, mut last) = (0, (AccountId::named(""), String::new()));
        loop {
            let some = self.tool_servers.outdated(&packs, &last).await?;
            let Some(end) = some.last().cloned() else { return Ok(renewed) };
            renewed += self.renew(&some).await;
            last = end;
        }
    }

    async fn renew(&self, servers: &[(AccountId, String)]) -> usize {
        let mut renewed = 0;
        for (account, server) in servers {
            let renew = |link: &AppLink| {
                let connector = self.connector(&link.app)?;
                let exposed = link.exposed.clone().map(|names| {
                    names.into_iter().filter(|name| connector.pack.tool(name).is_some()).collect::<Vec<_>>()
                });
                Ok(of_app(&connector, exposed))
            };
            match self.tool_servers.expose(account, server, &Precondition::None, renew).await {
                Ok(_) => renewed += 1,
                Err(error) => warn!(server, %error, "A tool server could not be given the tools of a newer connector."),
            }
        }
        renewed
    }

    /// Requests with the rights of connections.
    pub fn connections(&self) -> &Arc<PgConnections> {
        &self.connections
    }

    /// Whether requests may go to an address, which stands at `path`. `URL_NOT_ALLOWED`.
    pub async fn check_address(&self, path: &str, url: &str) -> Result<()> {
        self.connections.egress.check(url).await.map(drop).map_err(|error| error.into_error(path))
    }

    /// The link of a server that is made from an app.
    async fn link(&self, account: &AccountId, server: &str) -> Result<AppLink> {
        self.tool_servers.app_link(account, server).await?.ok_or_else(|| {
            Error::new(code::NOT_AN_INTEGRATION, format!("The tool server `{server}` is not made from an app."))
        })
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
    fn apps(&self, account: &AccountId, listed: &Listed) -> Result<AppPage> {
        let Listed { search, category, .. } = listed;
        let found = self.connections.apps.list(search.as_deref(), category.as_deref());
        let listing = Listing::of(&self.connections.vault, account, &json!(["apps", search, category]));
        let total_items = found.len();
        let (page, next_cursor) = listing.page(found, |of| &of.pack.slug, listed.place())?;
        Ok(AppPage { items: page.iter().map(|of| of.shown()).collect(), total_items, next_cursor })
    }

    fn app(&self, slug: &str) -> Result<App> {
        Ok(self.connector(slug)?.shown())
    }

    fn schemes(&self, slug: &str) -> Result<Schemes> {
        Ok(shown_schemes(&*self.connector(slug)?, false))
    }

    fn event_types(&self, account: &AccountId, slug: &str, listed: &Listed) -> Result<EventTypePage> {
        let connector = self.connector(slug)?;
        let found = connector.event_types(listed.search.as_deref());
        let listing = Listing::of(&self.connections.vault, account, &json!(["event types", slug, listed.search]));
        let total_items = found.len();
        let (page, next_cursor) = listing.page(found, |of| &of.slug, listed.place())?;
        let items = page.into_iter().map(|event| connector.shown_event(event)).collect();
        Ok(EventTypePage { items, total_items, next_cursor })
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
            None => self.lost(account, app, &new).await?,
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

    async fn finish_login(&self, callback: Callback) -> Result<LoginOutcome> {
        let said = |status, message: &str| Ok(LoginOutcome::Message { status, message: message.to_owned() });
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
        let of_attempt = OpenConnection {
            row: ConnectionRow { scheme: begun.mode.clone(), ..row.clone() },
            held: Held { fields: begun.fields.clone(), ..Held::default() },
        };
        let scheme = self.connections.scheme(&of_attempt).ok().map(|(_, scheme)| scheme);
        let is_strange = scheme.zip(callback.iss).is_some_and(|(scheme, iss)| !scheme.is_of_issuer(&iss));
        let outcome = match (&callback.code, &callback.error) {
            _ if is_strange => Attempted::Refused("somebody else than the app answered".to_owned()),
            (Some(code), None) => self.complete(&account, &row, begun, code).await?,
            (_, error) => {
                let known =
                    |error: &&String| error.len() <= 64 && error.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
                let reason = error.as_ref().filter(known).map_or("no code came", String::as_str);
                Attempted::Refused(format!("the app refused: {reason}"))
            }
        };
        match &outcome {
            Attempted::Connected => self.brought_connected(&account, &row).await?,
            Attempted::Refused(reason) => self.connections.expire(&account, &attempt.connection_id, reason).await?,
        }
        if let Some(return_to) = attempt.return_to.as_deref().and_then(|url| Url::parse(url).ok()) {
            let mut url = return_to;
            let conn = self.connections.db.read().await?;
            let row = repository::find(conn.get(), &account, &attempt.connection_id).await?;
            let status = row.map_or_else(|| "deleted".to_owned(), |row| row.status);
            let status =
                if matches!(outcome, Attempted::Refused(_)) && status == ACTIVE { "error".to_owned() } else { status };
            url.query_pairs_mut().append_pair("connectionId", &attempt.connection_id).append_pair("status", &status);
            return Ok(LoginOutcome::Redirect(url));
        }
        match outcome {
            Attempted::Connected => said(200, &format!("{} is connected. You can close this window.", row.label)),
            Attempted::Refused(reason) if is_strange => {
                said(400, &format!("{} was not connected: {reason}.", row.label))
            }
            Attempted::Refused(reason) => {
                said(400, &format!("{} was not connected: {reason}. Connect again.", row.label))
            }
        }
    }

    async fn disconnect(&self, account: &AccountId, connection: &Id<Connection>) -> Result<()> {
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
        self.settled(connection, &[connection.to_string()]).await
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
        let mut checks = Checks::default();
        if let Some(name) = &new.name {
            checks.length("name", name.trim(), 1..=200);
        }
        checks.finish()?;
        let connector = self.connector(app)?;
        let pack = &connector.pack;
        let exposed = new.tools.map(|names| {
            check_tools(&connector, names.iter())?;
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
            name: new.name.unwrap_or_else(|| pack.name.clone()),
            description: pack.description.clone(),
            image_url: Some(pack.logo.clone()).filter(|logo| !logo.is_empty()),
            url: pack.base_url.clone(),
            link: AppLink {
                app: app.to_owned(),
                connection_id: Some(connection.id),
                connected: true,
                exposed,
                pack: connector.digest.clone(),
            },
            tools,
        };
        self.tool_servers.create_app(account, new, once).await
    }

    async fn tools(
        &self,
        account: &AccountId,
        server: &Id<ToolServer>,
        available: bool,
        listed: &Listed,
    ) -> Result<AppTools> {
        let link = self.link(account, server).await?;
        let connector = self.connector(&link.app)?;
        let is_exposed = |name: &str| link.exposed.as_ref().is_none_or(|exposed| exposed.iter().any(|of| of == name));
        let words = listed.search.as_deref().unwrap_or_default();
        let tools = connector.pack.tools.iter().filter(|tool| available || is_exposed(&tool.function.name));
        let found: Vec<&ToolDefinition> = tools.filter(|tool| tool.function.says(words)).collect();
        let filters = json!(["tools", server, available, listed.search]);
        let total = found.len();
        let (page, next_cursor) = Listing::of(&self.connections.vault, account, &filters).page(
            found,
            |tool| &tool.function.name,
            listed.place(),
        )?;
        let shown = page.into_iter().map(|tool| AppTool {
            function: AppFunction {
                name: tool.function.name.clone(),
                description: tool.function.description.clone(),
                parameters: tool.function.parameters.clone(),
            },
            enabled: is_exposed(&tool.function.name),
        });
        Ok(AppTools { tools: shown.collect(), total, next_cursor })
    }

    async fn check_server(&self, account: &AccountId, server: &Id<ToolServer>) -> Result<()> {
        self.link(account, server).await.map(drop)
    }

    async fn expose(
        &self,
        account: &AccountId,
        server: &Id<ToolServer>,
        change: ExposedTools,
        expected: &Precondition,
    ) -> Result<AppTools> {
        let connector = self.connector(&self.link(account, server).await?.app)?;
        let ExposedTools { enable, disable, all } = change;
        let given = usize::from(enable.is_some() || disable.is_some()) + usize::from(all == Some(true));
        if given > 1 {
            return Err(Error::invalid("all", "conflict", "send either all, or enable and disable"));
        }
        check_tools(&connector, enable.iter().chain(&disable).flatten())?;
        let (enable, disable) = (enable.unwrap_or_default(), disable.unwrap_or_default());
        let app = Arc::clone(&connector);
        let choose = move |link: &AppLink| {
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
            Ok(of_app(&app, exposed))
        };
        self.tool_servers.expose(account, server, expected, choose).await?;
        let listed = Listed { limit: 100, ..Listed::default() };
        self.tools(account, server, false, &listed).await
    }

    async fn test(
        &self,
        account: &AccountId,
        server: &Id<ToolServer>,
        tool: &str,
        arguments: Object,
    ) -> Result<TestResult> {
        let link = self.link(account, server).await?;
        let connector = self.connector(&link.app)?;
        connector.pack.tool(tool).ok_or_else(|| no_tool(tool))?;
        if link.exposed.is_some_and(|exposed| !exposed.iter().any(|name| name == tool)) {
            let message = format!("The server does not expose `{tool}`; enable it first.");
            return Err(Error::new(code::TOOL_NOT_EXPOSED, message));
        }
        ToolServerService::test(&*self.tool_servers, account, server, tool, arguments).await
    }
}

/// What a server has of an app that exposes these tools.
fn of_app(connector: &Connector, exposed: Option<Vec<String>>) -> OfApp {
    let tools = tools_of(connector, exposed.as_deref());
    OfApp { exposed, tools, url: connector.pack.base_url.clone(), pack: connector.digest.clone() }
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

/// `TOOL_NOT_FOUND` unless an app has all of these tools.
fn check_tools<'a>(connector: &Connector, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let missing = names.filter(|name| connector.pack.tool(name).is_none());
    Error::check_none_missing(code::TOOL_NOT_FOUND, "tool", missing)
}

fn no_tool(name: &str) -> Error {
    Error::not_found(code::TOOL_NOT_FOUND, "tool", name)
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found(code::CONNECTION_NOT_FOUND, "connection", id)
}

/// Scheme, host and port of an address.
pub fn origin_of(url: &str) -> Option<String> {
    Url::parse(url).ok().map(|url| url.origin().ascii_serialization())
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
