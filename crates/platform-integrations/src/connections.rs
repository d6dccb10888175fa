//! Connections: their credentials, kept fresh, and what becomes of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use diesel_async::AsyncConnection;
use futures_util::StreamExt;
use platform_core::{AccountId, Checks, Clock, Code, Error, Object, Result, millis, parse, spawn_finishing};
use platform_db::{Bus, Capacity, Conn, Db, InvalidatedCache};
use platform_egress::{
    Egress, EgressError, Fetched, Outgoing, Payload, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue},
    sensitive,
};
use platform_events::{Event, publish_in};
use platform_toolservers::{AppCredentials, Connections, TOOL_SERVER, set_connected_in};
use platform_vault::{MASK, Secret, SecretLocation, Vault};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::sleep};
use tracing::{info, warn};

use crate::{
    catalog::{Connector, Connectors},
    mcp,
    oauth::{self, Client, Tokens},
    pack::{AuthMode, AuthScheme, Field, PackRequest, at_path},
    repository::{self, ACTIVE, ConnectionRow, EXPIRED, NEEDS_REAUTH, PENDING},
    template,
};

const TOPIC: &str = "connections";
const MAX_KNOWN: u64 = 10_000;
/// A request of ours to an app.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How often a process looks whether another has asked for the token.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// So many 401 one after the other mean that a connection is no good.
const MAX_REFUSED: i16 = 3;
/// A longer answer of an app is no refusal.
const MAX_REFUSAL: usize = 4096;
/// Tokens that are asked for ahead of their end at once; after a failure again.
const REFRESHED_AT_ONCE: usize = 8;
const AGAIN_MS: i64 = 30_000;
/// How often what is due is looked for.
const EVERY: Duration = Duration::from_secs(5);

/// Whoever is told, in the transaction, that a connection broke or is good again.
#[async_trait]
pub trait ConnectionListener: Send + Sync {
    /// A connection is good, or no longer.
    async fn changed_in(&self, conn: &mut Conn, account: &AccountId, connection: &str, is_active: bool) -> Result<()>;
}

/// What a connection holds: sealed as one text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// What was given, by name of the field.
    pub fields: BTreeMap<String, Secret>,
    pub access: Option<Secret>,
    pub refresh: Option<Secret>,
}

impl Held {
    fn parse(text: &Secret) -> Result<Self> {
        type Stored = (BTreeMap<String, String>, Option<String>, Option<String>);
        let (fields, access, refresh): Stored = serde_json::from_str(text.expose()).map_err(Error::internal)?;
        let fields = fields.into_iter().map(|(name, value)| (name, value.into())).collect();
        Ok(Self { fields, access: access.map(Into::into), refresh: refresh.map(Into::into) })
    }

    fn to_text(&self) -> Secret {
        let fields: BTreeMap<&str, &str> =
            self.fields.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        let exposed = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.expose().to_owned());
        json!([fields, exposed(&self.access), exposed(&self.refresh)]).to_string().into()
    }
}

/// A connection, open.
pub(crate) struct OpenConnection {
    pub row: ConnectionRow,
    pub held: Held,
}

/// A connection that is to be used.
enum Usable {
    /// Its token is good.
    Connected(Arc<OpenConnection>),
    /// Why there is none.
    NotConnected(String),
}

impl Usable {
    fn connected(self) -> Result<Arc<OpenConnection>, String> {
        match self {
            Self::Connected(open) => Ok(open),
            Self::NotConnected(reason) => Err(reason),
        }
    }
}

/// What connections need of others.
pub struct ConnectionNeeds {
    /// Where they are kept.
    pub db: Db,
    /// Whom changes are told.
    pub bus: Bus,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Seals credentials.
    pub vault: Arc<Vault>,
    /// The way out.
    pub egress: Egress,
    /// Apps.
    pub apps: Arc<Connectors>,
    /// Who is told of connections that break or recover.
    pub listener: Arc<dyn ConnectionListener>,
    /// A user has so long to decide.
    pub connect_ttl: Duration,
    /// Tokens are asked for so long before they end.
    pub refresh_before: Duration,
}

/// Connections on PostgreSQL.
pub struct PgConnections {
    pub(crate) db: Db,
    bus: Bus,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) egress: Egress,
    pub(crate) apps: Arc<Connectors>,
    listener: Arc<dyn ConnectionListener>,
    pub(crate) connect_ttl: Duration,
    refresh_before: Duration,
    known: Arc<InvalidatedCache<(AccountId, String), OpenConnection>>,
    /// One asks while the others of this process wait.
    asking: moka::sync::Cache<(AccountId, String), Arc<Mutex<()>>>,
}

/// Connections as calls of tools need them.
pub struct ConnectionCredentials(pub Arc<PgConnections>);

impl PgConnections {
    /// Connections to the apps of its needs.
    pub fn new(needs: ConnectionNeeds) -> Arc<Self> {
        let ConnectionNeeds { db, bus, clock, vault, egress, apps, listener, connect_ttl, refresh_before } = needs;
        Arc::new(Self {
            known: InvalidatedCache::new(&bus, TOPIC, Capacity::Entries(MAX_KNOWN)),
            asking: moka::sync::Cache::new(MAX_KNOWN),
            db,
            bus,
            clock,
            vault,
            egress,
            apps,
            listener,
            connect_ttl,
            refresh_before,
        })
    }

    pub(crate) fn seal(&self, account: &AccountId, id: &str, held: &Held) -> String {
        self.vault.seal(&place(account, id), held.to_text().expose())
    }

    pub(crate) fn open(&self, account: &AccountId, row: ConnectionRow) -> Result<OpenConnection> {
        let held = Held::parse(&self.vault.open(&place(account, &row.id), &row.secrets)?)?;
        Ok(OpenConnection { row, held })
    }

    pub(crate) async fn find(&self, account: &AccountId, id: &str) -> Result<Option<Arc<OpenConnection>>> {
        let load = async {
            let row = repository::find(self.db.read().await?.get(), account, id).await?;
            row.map(|row| self.open(account, row)).transpose()
        };
        self.known.get_or_load(&(account.clone(), id.to_owned()), load).await
    }

    /// Says, after the commit, that a connection changed, and with it the tool servers that call by it.
    pub(crate) async fn changed(&self, id: &str) -> Result<()> {
        self.known.changed(id).await?;
        // Which they are is not known here.
        self.bus.tell(TOOL_SERVER.name(), "").await
    }

    /// The scheme of a connection, when its app still has it.
    pub(crate) fn scheme(&self, open: &OpenConnection) -> Result<(Arc<Connector>, AuthScheme)> {
        let row = &open.row;
        let app = match mcp::connector(&row.app, &open.held.fields)? {
            Some(server) => Arc::new(server),
            None => Arc::clone(self.apps.get(&row.app)?),
        };
        let scheme = app.pack.schemes().into_iter().find(|scheme| scheme.mode.as_str() == row.scheme);
        let gone = || Error::new(Code::CONFLICT, format!("{} is no longer connected by {}.", row.app, row.scheme));
        Ok((app, scheme.ok_or_else(gone)?))
    }

    /// What the operator of an app gave for a scheme.
    pub(crate) async fn app_fields(
        &self,
        account: &AccountId,
        app: &str,
        scheme: &str,
    ) -> Result<BTreeMap<String, Secret>> {
        let conn = self.db.read().await?;
        let Some(sealed) = repository::app_secrets(conn.get(), account, app, scheme).await? else {
            return Ok(BTreeMap::new());
        };
        Ok(Held::parse(&self.vault.open(&app_place(account, app), &sealed)?)?.fields)
    }

    pub(crate) fn seal_app(&self, account: &AccountId, app: &str, fields: BTreeMap<String, Secret>) -> String {
        let held = Held { fields, ..Held::default() };
        self.vault.seal(&app_place(account, app), held.to_text().expose())
    }

    /// Who this server is at an app: as its operator says, else as the platform's.
    pub(crate) async fn client(
        &self,
        account: &AccountId,
        connector: &Connector,
        scheme: &AuthScheme,
    ) -> Result<Option<Client>> {
        let given = self.app_fields(account, &connector.pack.slug, scheme.mode.as_str()).await?;
        if let Some(id) = given.get("clientId") {
            let secret = given.get("clientSecret").cloned();
            return Ok(Some(Client { id: id.expose().to_owned(), secret }));
        }
        let managed = connector.managed.as_ref();
        Ok(managed.map(|client| Client { id: client.id.clone(), secret: client.secret.clone() }))
    }

    /// The same as whom a connection was made: the account may have connected another app of its own since.
    pub(crate) async fn client_of(
        &self,
        account: &AccountId,
        connector: &Connector,
        scheme: &AuthScheme,
        held: &BTreeMap<String, Secret>,
    ) -> Result<Option<Client>> {
        let now = self.client(account, connector, scheme).await?;
        let Some(id) = held.get("clientId") else { return Ok(now) };
        // A secret that was replaced since is the better one.
        if now.as_ref().is_some_and(|now| now.id == id.expose()) {
            return Ok(now);
        }
        Ok(Some(Client { id: id.expose().to_owned(), secret: held.get("clientSecret").cloned() }))
    }

    /// The secret with which an app signs what it sends to an account.
    pub async fn signing_secret(&self, account: &AccountId, connection: &str) -> Result<Option<Secret>> {
        let Some(open) = self.find(account, connection).await? else { return Ok(None) };
        let (connector, scheme) = self.scheme(&open)?;
        let given = self.app_fields(account, &open.row.app, scheme.mode.as_str()).await?;
        let held = &open.held.fields;
        let id = |fields: &BTreeMap<String, Secret>| fields.get("clientId").map(|id| id.expose().to_owned());
        // It was made with this app, whichever came since.
        let is_of = |other: Option<&str>| id(held).is_none_or(|of| Some(of.as_str()) == other);
        let of_account = given.get("signingSecret").filter(|_| is_of(id(&given).as_deref()));
        if let Some(secret) = of_account.or_else(|| held.get("signingSecret")) {
            return Ok(Some(secret.clone()));
        }
        let managed = connector.managed.as_ref().filter(|client| is_of(Some(&client.id)));
        Ok(managed.and_then(|client| client.signing_secret.clone()))
    }

    /// Changes how a connection stands, with all that follows, in the transaction that locked it.
    pub(crate) async fn set_status_in(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        row: &mut ConnectionRow,
        (status, reason): (&str, Option<String>),
    ) -> Result<()> {
        let before = std::mem::replace(&mut row.status, status.to_owned());
        (row.status_reason, row.updated_ms) = (reason, self.clock.now().0);
        repository::update(conn, account, row).await?;
        let (was_active, is_active) = (before == ACTIVE, status == ACTIVE);
        if was_active != is_active {
            set_connected_in(conn, account, &row.id, is_active).await?;
            self.listener.changed_in(conn, account, &row.id, is_active).await?;
        }
        let kind = match (before.as_str(), status) {
            (ACTIVE, NEEDS_REAUTH) | (PENDING, EXPIRED) => "connection.expired",
            (NEEDS_REAUTH | EXPIRED, ACTIVE) => "connection.recovered",
            _ => return Ok(()),
        };
        let mut data = json!({"connectionId": row.id, "app": row.app, "label": row.label, "status": status});
        if let Some(tenant) = &row.tenant_id {
            data["tenantId"] = tenant.as_str().into();
        }
        let event = Event { tenant: row.tenant_id.as_deref(), ..Event::new(account, kind, data) };
        publish_in(conn, vec![event], self.clock.now()).await
    }

    /// A connection is about to be gone.
    pub(crate) async fn listener_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
        self.listener.changed_in(conn, account, id, false).await
    }

    /// A connection that was good is no longer.
    pub(crate) async fn breaks(&self, account: &AccountId, id: &str, reason: &str) -> Result<()> {
        self.breaks_with(account, id, reason, None).await
    }

    /// The same for what was found out with a refresh token: when another took its place meanwhile, nothing was.
    async fn breaks_with(&self, account: &AccountId, id: &str, reason: &str, refresh: Option<&Secret>) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let breaking = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut row) = repository::lock(conn, account, id).await? else { return Ok(()) };
            if !row.is_active() || !self.holds(account, &row, refresh)? {
                return Ok(());
            }
            info!(connection = id, app = row.app, reason, "A connection is to be made again: its app refuses it.");
            self.set_status_in(conn, account, &mut row, (NEEDS_REAUTH, Some(reason.to_owned()))).await
        });
        breaking.await?;
        drop(conn);
        self.changed(id).await
    }

    /// The connection with a token that is good.
    async fn fresh(self: &Arc<Self>, account: &AccountId, id: &str, refused: Option<&Secret>) -> Result<Usable> {
        let broken = |reason: Option<&str>| {
            let reason = reason.unwrap_or("the connection is not active");
            Usable::NotConnected(format!("This account is not connected: {reason}. Connect it again."))
        };
        let Some(open) = self.find(account, id).await? else { return Ok(broken(Some("there is no such connection"))) };
        if !open.row.is_active() {
            return Ok(broken(open.row.status_reason.as_deref()));
        }
        if self.is_good(&open, refused) {
            return Ok(Usable::Connected(open));
        }
        // A task of its own: a caller that gives up, or a process that ends, must not lose a refresh token that was given out.
        let (all, account, id, refused) = (Arc::clone(self), account.clone(), id.to_owned(), refused.cloned());
        let asked =
            spawn_finishing("refresh connection", async move { all.ask(&account, &id, refused.as_ref()).await });
        match asked.await.map_err(Error::internal)?? {
            Some(open) if open.row.is_active() => Ok(Usable::Connected(open)),
            Some(open) => Ok(broken(open.row.status_reason.as_deref())),
            None => Ok(broken(None)),
        }
    }

    /// A token that need not be replaced.
    fn is_good(&self, open: &OpenConnection, refused: Option<&Secret>) -> bool {
        let Some(access) = &open.held.access else { return true };
        let is_refused = refused.is_some_and(|refused| refused.expose() == access.expose());
        if open.held.refresh.is_none() {
            return !is_refused && open.row.expires_ms.is_none_or(|at| at > self.clock.now().0);
        }
        !is_refused && open.row.refresh_ms.is_none_or(|at| at > self.clock.now().0)
    }

    /// Asks for another token, or waits until somebody has; one at a time over all processes.
    async fn ask(
        &self,
        account: &AccountId,
        id: &str,
        refused: Option<&Secret>,
    ) -> Result<Option<Arc<OpenConnection>>> {
        let asking = self.asking.get_with((account.clone(), id.to_owned()), Arc::default);
        let _one = asking.lock().await;
        loop {
            let row = repository::find(self.db.read().await?.get(), account, id).await?;
            let Some(open) = row.map(|row| self.open(account, row)).transpose()? else { return Ok(None) };
            if !open.row.is_active() || self.is_good(&open, refused) {
                self.changed(id).await?;
                return Ok(Some(Arc::new(open)));
            }
            if open.held.refresh.is_none() {
                self.breaks(account, id, "its token has expired, and the app gave none to refresh it with").await?;
                continue;
            }
            if repository::claim(&mut *self.db.conn().await?, account, id).await? {
                if let Some(usable) = self.refresh(account, open).await? {
                    return Ok(Some(usable));
                }
                continue;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether a connection that is locked still holds a refresh token; any, when none is asked for.
    fn holds(&self, account: &AccountId, row: &ConnectionRow, refresh: Option<&Secret>) -> Result<bool> {
        let Some(refresh) = refresh else { return Ok(true) };
        let held = Held::parse(&self.vault.open(&place(account, &row.id), &row.secrets)?)?;
        Ok(held.refresh.is_some_and(|held| held.expose() == refresh.expose()))
    }

    /// Asks the app for another token with the right to do so; the new refresh token is stored before anybody uses what
    /// came with it. What is still usable when the app does not answer; `None` = look again.
    async fn refresh(&self, account: &AccountId, open: OpenConnection) -> Result<Option<Arc<OpenConnection>>> {
        let id = open.row.id.clone();
        let sent = open.held.refresh.clone();
        let fetched = match self.scheme(&open) {
            Ok((connector, scheme)) => {
                let refresh = open.held.refresh.clone().unwrap_or_else(|| String::new().into());
                match self.client_of(account, &connector, &scheme, &open.held.fields).await {
                    // Calls that have a place may wait for it.
                    Ok(client) => oauth::refresh(&self.egress.unplaced(), &scheme, client.as_ref(), &refresh).await,
                    Err(error) => Err(oauth::Refusal::Passing(error.message().to_owned())),
                }
            }
            Err(error) => Err(oauth::Refusal::Final(error.message().to_owned())),
        };
        match fetched {
            Ok(tokens) => {
                // The token before is worth nothing any more: a database that is away is waited for.
                while let Err(error) = self.keep_tokens(account, &id, sent.as_ref(), tokens.clone()).await {
                    if error.code() != Code::SERVICE_UNAVAILABLE {
                        return Err(error);
                    }
                    warn!(connection = id, %error, "A token that was refreshed could not be stored; trying again.");
                    sleep(LOOK_AGAIN).await;
                }
                self.changed(&id).await?;
                Ok(None)
            }
            Err(oauth::Refusal::Final(reason)) => {
                self.breaks_with(account, &id, &reason, sent.as_ref()).await?;
                repository::release(&mut *self.db.conn().await?, account, &id).await?;
                Ok(None)
            }
            Err(oauth::Refusal::Passing(reason)) => {
                warn!(connection = id, reason, "A token could not be refreshed; trying again shortly.");
                let mut conn = self.db.conn().await?;
                repository::release(&mut conn, account, &id).await?;
                let now = self.clock.now().0;
                if open.row.expires_ms.is_some_and(|at| at <= now) {
                    return Err(Error::new(Code::UPSTREAM_ERROR, reason));
                }
                // Calls do not wait for it one after the other meanwhile.
                let later = (now + AGAIN_MS).min(open.row.expires_ms.unwrap_or(i64::MAX));
                repository::put_off(&mut conn, account, &id, later).await?;
                drop(conn);
                self.changed(&id).await?;
                Ok(Some(Arc::new(open)))
            }
        }
    }

    /// Stores what a refresh gave, unless somebody connected again meanwhile: theirs counts.
    async fn keep_tokens(&self, account: &AccountId, id: &str, sent: Option<&Secret>, tokens: Tokens) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let storing = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut row) = repository::lock(conn, account, id).await? else { return Ok(()) };
            if !self.holds(account, &row, sent)? {
                return Ok(());
            }
            let mut held = Held::parse(&self.vault.open(&place(account, id), &row.secrets)?)?;
            self.take(&mut row, &mut held, tokens);
            row.secrets = self.seal(account, id, &held);
            row.updated_ms = self.clock.now().0;
            // Another process may have asked with the token before, which is worth nothing any more.
            if row.status == NEEDS_REAUTH {
                self.set_status_in(conn, account, &mut row, (ACTIVE, None)).await?;
            }
            repository::update(conn, account, &row).await?;
            repository::release(conn, account, id).await
        });
        storing.await
    }

    /// Takes in tokens, and when to ask for others: some time before their end, or half-way.
    pub(crate) fn take(&self, row: &mut ConnectionRow, held: &mut Held, tokens: Tokens) {
        let now = self.clock.now().0;
        let Tokens { access, refresh, life_ms } = tokens;
        held.access = Some(access);
        held.refresh = refresh.or(held.refresh.take());
        row.expires_ms = life_ms.map(|life| now + life);
        row.refresh_ms = life_ms
            .filter(|_| held.refresh.is_some())
            .map(|life| now + life - millis(self.refresh_before).min(life / 2));
    }

    /// Whether there is such a connection, whatever its state.
    pub async fn exists(&self, account: &AccountId, connection: &str) -> Result<bool> {
        Ok(self.find(account, connection).await?.is_some())
    }

    /// Sends a request of a pack with the rights of a connection; a token that is refused is replaced once.
    pub async fn request(
        self: &Arc<Self>,
        account: &AccountId,
        connection: &str,
        request: &PackRequest,
        values: &template::Values<'_>,
    ) -> Result<Fetched> {
        let not_connected = |reason: String| Error::new(Code::CONFLICT, reason);
        let open = self.fresh(account, connection, None).await?.connected().map_err(not_connected)?;
        let mut answer = self.send(account, &open, request, values).await?;
        if open.held.refresh.is_some() && self.is_refusal(&open, answer.status, &answer.bytes) {
            let again = self.fresh(account, connection, open.held.access.as_ref()).await?;
            let again = again.connected().map_err(not_connected)?;
            answer = self.send(account, &again, request, values).await?;
        }
        self.note_answer(account, connection, answer.status, &answer.bytes).await?;
        Ok(answer)
    }

    /// Whether an answer of an app says that the credentials are good no longer.
    fn is_refusal(&self, open: &OpenConnection, status: u16, body: &[u8]) -> bool {
        status == 401 || self.scheme(open).is_ok_and(|(_, scheme)| refuses(&scheme, body))
    }

    /// Counts answers of an app: three refusals one after the other break a connection.
    pub(crate) async fn note_answer(
        &self,
        account: &AccountId,
        connection: &str,
        status: u16,
        body: &[u8],
    ) -> Result<()> {
        let Some(open) = self.find(account, connection).await? else { return Ok(()) };
        // Where nobody is let in by credentials, a refusal is anybody's: it says nothing of the connection.
        if open.row.scheme == AuthMode::None.as_str() {
            return Ok(());
        }
        let is_refused = self.is_refusal(&open, status, body);
        if !is_refused && open.row.refused == 0 {
            return Ok(());
        }
        let mut conn = self.db.conn().await?;
        let refused = repository::count_refusal(&mut conn, account, connection, is_refused).await?;
        drop(conn);
        self.changed(connection).await?;
        if refused >= MAX_REFUSED {
            self.breaks(account, connection, "the app refuses every request").await?;
        }
        Ok(())
    }

    /// Sends a request of a pack once.
    pub(crate) async fn send(
        &self,
        account: &AccountId,
        open: &OpenConnection,
        request: &PackRequest,
        values: &template::Values<'_>,
    ) -> Result<Fetched> {
        let (connector, scheme) = self.scheme(open)?;
        let credentials = credentials(&scheme, &self.all_fields(account, open, &scheme).await?, &open.held);
        let endpoint = template::address(&request.endpoint, values);
        let url = resolve(&connector, &scheme, &request.endpoint, &endpoint)?;
        let mut url = url;
        for (name, value) in &credentials.query {
            url.query_pairs_mut().append_pair(name, value.expose());
        }
        let mut headers = credentials.headers;
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*;q=0.8"));
        let body = match request.body.as_ref().and_then(|body| template::json(body, values)) {
            Some(body) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Payload::Bytes(body.to_string().into())
            }
            None => Payload::Empty,
        };
        // A body may hold what is meant for the app alone.
        let follows = request.body.is_none();
        let outgoing = Outgoing { method: request.method(), url, headers, body, follows, timeout: TIMEOUT };
        self.egress.of(account).send(outgoing).await.map_err(EgressError::into_upstream_error)
    }

    /// Fields of a connection together with those of the app.
    async fn all_fields(
        &self,
        account: &AccountId,
        open: &OpenConnection,
        scheme: &AuthScheme,
    ) -> Result<BTreeMap<String, Secret>> {
        let mut fields = if scheme.app_fields.is_empty() {
            BTreeMap::new()
        } else {
            self.app_fields(account, &open.row.app, scheme.mode.as_str()).await?
        };
        fields.extend(open.held.fields.clone());
        Ok(fields)
    }

    /// Keeps tokens fresh and ends what nobody decided on, as long as the process runs.
    pub async fn keep(self: Arc<Self>) {
        loop {
            if let Err(error) = self.keep_once().await {
                warn!(%error, "Connections could not be looked after; trying again shortly.");
            }
            sleep(EVERY).await;
        }
    }

    async fn keep_once(self: &Arc<Self>) -> Result<()> {
        let now = self.clock.now();
        let before = platform_core::Timestamp(now.0 - millis(self.connect_ttl));
        let (refresh, undecided) = repository::due(self.db.read().await?.get(), now, before).await?;
        for (account, id) in undecided {
            let Ok(account) = AccountId::parse(&account) else { continue };
            self.expire(&account, &id, "nobody decided in time").await?;
        }
        let asked = refresh.into_iter().map(|(account, id)| async move {
            let Ok(account) = AccountId::parse(&account) else { return };
            if let Err(error) = self.fresh(&account, &id, None).await {
                warn!(connection = id, %error, "A token could not be refreshed ahead of its end.");
                // Others have their turn before it is asked for again.
                let later = self.clock.now().0 + AGAIN_MS;
                if let Ok(mut conn) = self.db.conn().await {
                    let _ = repository::put_off(&mut conn, &account, &id, later).await;
                }
            }
        });
        futures_util::stream::iter(asked).buffer_unordered(REFRESHED_AT_ONCE).collect::<Vec<()>>().await;
        Ok(())
    }

    /// A connection that was begun came to nothing.
    pub(crate) async fn expire(&self, account: &AccountId, id: &str, reason: &str) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let expiring = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut row) = repository::lock(conn, account, id).await? else { return Ok(()) };
            if row.status != PENDING {
                return Ok(());
            }
            self.set_status_in(conn, account, &mut row, (EXPIRED, Some(reason.to_owned()))).await
        });
        expiring.await?;
        drop(conn);
        self.changed(id).await
    }
}

#[async_trait]
impl Connections for ConnectionCredentials {
    async fn credentials(
        &self,
        account: &AccountId,
        connection: &str,
        refused: Option<&Secret>,
    ) -> Result<AppCredentials, String> {
        let away = |error: Error| {
            warn!(connection, %error, "Credentials of a connection could not be read or refreshed.");
            "The credentials cannot be had at the moment.".to_owned()
        };
        let open = self.0.fresh(account, connection, refused).await.map_err(away)?.connected()?;
        let (_, scheme) = self.0.scheme(&open).map_err(away)?;
        let fields = self.0.all_fields(account, &open, &scheme).await.map_err(away)?;
        Ok(credentials(&scheme, &fields, &open.held))
    }

    async fn refuses(&self, account: &AccountId, connection: &str, status: u16, body: &[u8]) -> bool {
        let open = self.0.find(account, connection).await.ok().flatten();
        open.map_or(status == 401, |open| self.0.is_refusal(&open, status, body))
    }

    async fn answered(&self, account: &AccountId, connection: &str, status: u16, body: &[u8]) {
        let counting = self.0.note_answer(account, connection, status, body);
        if let Err(error) = counting.await {
            warn!(connection, %error, "An answer of an app could not be counted.");
        }
    }
}

/// What lets requests in, by a scheme and what was given.
fn credentials(scheme: &AuthScheme, fields: &BTreeMap<String, Secret>, held: &Held) -> AppCredentials {
    let mut all =
        AppCredentials { token: held.access.clone().filter(|_| held.refresh.is_some()), ..AppCredentials::default() };
    let value = |name: &str| fields.get(name).map(|value| Value::from(value.expose()));
    let mut headers = Vec::new();
    match (scheme.mode, &held.access) {
        (AuthMode::OAuth2, Some(access)) => headers.push(("authorization", format!("Bearer {}", access.expose()))),
        (AuthMode::Basic, _) => {
            let text = |name: &str| fields.get(name).map(Secret::expose).unwrap_or_default();
            let pair = STANDARD.encode(format!("{}:{}", text("username"), text("password")));
            headers.push(("authorization", format!("Basic {pair}")));
            all.secrets.push(pair.into());
        }
        _ => {}
    }
    headers.extend(scheme.headers.iter().map(|of| (of.header_name.as_str(), template::text(&of.value, &value))));
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok();
        all.headers.extend(name.zip(sensitive(&value)));
    }
    all.query = scheme.query.iter().map(|of| (of.name.clone(), template::text(&of.value, &value).into())).collect();
    let is_secret = |name: &str| {
        scheme.app_fields.iter().chain(&scheme.account_fields).any(|field| field.name == name && field.secret)
    };
    all.secrets.extend(fields.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value.clone()));
    all.secrets.extend(held.access.iter().chain(&held.refresh).cloned());
    all
}

/// Where an endpoint of a pack leads: below the app's address; anywhere only for apps that let in everybody.
fn resolve(connector: &Connector, scheme: &AuthScheme, template: &str, endpoint: &str) -> Result<Url> {
    let wrong = |reason: &str| Error::new(platform_egress::code::URL_NOT_ALLOWED, format!("`{endpoint}`: {reason}"));
    let is_whole = template.starts_with("${") && template.find('}') == Some(template.len() - 1);
    let base = connector.pack.address();
    if is_whole && scheme.mode == AuthMode::None {
        return Url::parse(endpoint).map_err(|error| wrong(&error.to_string()));
    }
    let base = base.ok_or_else(|| wrong("the app has no address"))?;
    let url = if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("{}/{}", base.as_str().trim_end_matches('/'), endpoint.trim_start_matches('/'))
    };
    let url = Url::parse(&url).map_err(|error| wrong(&error.to_string()))?;
    if url.origin() == base.origin() { Ok(url) } else { Err(wrong("it leaves the origin of the app")) }
}

/// Whether an answer says that it refuses the credentials: one that does is short.
pub(crate) fn refuses(scheme: &AuthScheme, body: &[u8]) -> bool {
    if scheme.refusals.is_empty() || body.len() > MAX_REFUSAL {
        return false;
    }
    let value: Value = parse(body).unwrap_or_default();
    let says = |(path, any): (&String, &Vec<Value>)| at_path(&value, path).is_some_and(|said| any.contains(said));
    scheme.refusals.iter().any(says)
}

/// Whether an answer is a success, and says what it must.
pub(crate) fn succeeded(request: &PackRequest, answer: &Fetched) -> bool {
    let value: Value = parse(&answer.bytes).unwrap_or_default();
    let says = |(path, wanted): (&String, &Value)| at_path(&value, path) == Some(wanted);
    (200..300).contains(&answer.status) && request.expect.iter().all(says)
}

fn place<'a>(account: &'a AccountId, id: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "connections", column: "secrets", row: id }
}

fn app_place<'a>(account: &'a AccountId, app: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "app_credentials", column: "sealed", row: app }
}

/// Fields as text, each of which must be of its type; what is `null` is not given, and the mask of one that is stored
/// leaves it as it is.
pub(crate) fn field_texts(
    path: &str,
    known: &[Field],
    given: &Object,
    stored: &BTreeMap<String, Secret>,
) -> Result<BTreeMap<String, Secret>> {
    let mut checks = Checks::default();
    let mut texts = BTreeMap::new();
    for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let kind = known.iter().find(|field| field.name == *name).map_or("string", |field| &field.r#type);
        match (kind, value) {
            (_, Value::String(text)) if text == MASK && stored.contains_key(name) => {}
            (_, Value::String(text)) if text == MASK => {
                let message = format!("{path}.{name} is the mask of a value, and none is stored");
                checks.issue(&format!("{path}.{name}"), "format", message);
            }
            (_, Value::String(text)) => drop(texts.insert(name.clone(), text.clone().into())),
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => {
                texts.insert(name.clone(), value.to_string().into());
            }
            _ => checks.issue(&format!("{path}.{name}"), "type", format!("{path}.{name} must be a {kind}")),
        }
    }
    checks.finish()?;
    Ok(texts)
}
