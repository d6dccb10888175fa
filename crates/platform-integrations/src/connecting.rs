//! How an account is connected to an app: by what it gives, or by what its user decides in a browser.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Checks, Code, Error, Id, Owner, Result, millis, sha256_hex};
use platform_db::Conn;
use platform_egress::Url;
use platform_jobs::{When, enqueue_in};
use platform_vault::{Secret, SecretLocation, random_bytes};
use serde_json::json;

use crate::{
    catalog::{AppClient, Connector},
    code,
    connections::{Held, OpenConnection, field_texts, succeeded},
    mcp,
    model::{Connected, Connection, NewConnection},
    oauth,
    pack::{AuthMode, AuthScheme, Field},
    repository::{self, ACTIVE, AttemptRow, ConnectionRow, PENDING},
    revoke::{KIND as REVOKE, Revocation},
    service::{Connecting, PgIntegrations, not_found},
};
/// Connections that came to nothing and are kept: of an account to an app, and of an end user.
const MAX_VAIN: usize = 20;
const MAX_VAIN_OF_TENANT: usize = 3;

/// What is known of a user who decides in a browser.
pub(crate) struct Attempt {
    /// Of PKCE.
    verifier: Secret,
    /// By which scheme.
    pub mode: String,
    /// What the account gave, and what the operator of the app did.
    pub fields: BTreeMap<String, Secret>,
    app_fields: Option<BTreeMap<String, Secret>>,
}

/// What came of it.
pub(crate) enum Attempted {
    Connected,
    /// Why it came to nothing.
    Refused(String),
}

/// What is needed to connect by a scheme.
pub(crate) struct Prepared {
    pub connector: Arc<Connector>,
    pub scheme: AuthScheme,
    /// What the operator of the app gave just now.
    pub app_fields: Option<BTreeMap<String, Secret>>,
    /// What the account gave, now or before.
    pub fields: BTreeMap<String, Secret>,
    pub client: Option<oauth::Client>,
}

impl PgIntegrations {
    /// What is connected again when nothing is said of an account: the one connection of an app, when it is good no
    /// longer and its user decides in a browser.
    pub(crate) async fn lost(
        &self,
        account: &AccountId,
        app: &str,
        new: &NewConnection,
    ) -> Result<Option<Arc<OpenConnection>>> {
        let conn = self.connections.db.read().await?;
        let mut rows = repository::list(conn.get(), account, Some(app), &Owner::default()).await?;
        drop(conn);
        rows.retain(|row| row.connected_ms.is_some());
        let [row] = rows.as_slice() else { return Ok(None) };
        let says_nothing = new.label.is_none() && new.account_fields.is_empty();
        let is_same = new.auth_scheme.as_ref().is_none_or(|scheme| scheme.eq_ignore_ascii_case(&row.scheme));
        if row.shown().needs_reconnect && says_nothing && is_same && row.scheme == AuthMode::OAuth2.as_str() {
            return self.connections.find(account, &row.id).await;
        }
        Ok(None)
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
        if of_tenant && !new.app_fields.is_empty() {
            return Err(Error::invalid("appFields", "unknown", "appFields are the operator's to give"));
        }
        let stored = self.connections.app_fields(account, app, mode).await?;
        let mut given = field_texts("appFields", &scheme.app_fields, &new.app_fields, &stored)?;
        check_fields("appFields", &scheme.app_fields, &given)?;
        let is_managed = scheme.mode == AuthMode::OAuth2 && connector.managed.is_some();
        let has_new = !given.is_empty();
        for (name, value) in &stored {
            given.entry(name.clone()).or_insert_with(|| value.clone());
        }
        if !is_managed || has_new {
            setup(&connector, &scheme, "app", &scheme.app_fields, &mut given)?;
        }
        let mut fields = before.map(|open| open.held.fields.clone()).unwrap_or_default();
        fields.retain(|name, _| scheme.account_fields.iter().any(|field| field.name == *name));
        let account_given = field_texts("accountFields", &scheme.account_fields, &new.account_fields, &fields)?;
        check_fields("accountFields", &scheme.account_fields, &account_given)?;
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
                .map(|AppClient { id, secret, .. }| oauth::Client { id: id.clone(), secret: secret.clone() }),
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
                id: Id::<Connection>::generate().into(),
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
                expires_ms: now.0 + millis(self.connections.connect_ttl),
            };
            row.secrets = match &before {
                Some(open) => open.row.secrets.clone(),
                None => self.connections.seal(account, &id, &Held::default()),
            };
            let mut conn = self.connections.db.conn().await?;
            let beginning = conn.transaction::<_, Error, _>(async |conn| {
                if before.is_none() {
                    repository::insert(conn, &row).await?;
                    let most = if connecting.owner.tenant_id.is_some() { MAX_VAIN_OF_TENANT } else { MAX_VAIN };
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
            self.connections.set_status_in(conn, account, &mut row, (ACTIVE, None)).await?;
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
            let error = Error::new(Code::UPSTREAM_ERROR, message).with("provider", &row.app);
            return Err(error.with("status", answer.status).with("code", "HTTP_ERROR"));
        }
        let message = format!("{} refuses these credentials (it answers {}).", row.label, answer.status);
        Err(Error::new(code::CREDENTIALS_REJECTED, message).with("status", answer.status))
    }

    /// An end user has one account of an app, and everybody one of an MCP server: the former ones go.
    async fn retire_in(&self, conn: &mut Conn, account: &AccountId, row: &ConnectionRow) -> Result<Vec<String>> {
        if row.tenant_id.is_none() && !mcp::is_server(&row.app) {
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
            self.jobs.announce();
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
        if let Ok((connector, scheme)) = self.connections.scheme(&open)
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
        let Some(given) = return_to else { return Ok(None) };
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

    pub(crate) fn open_attempt(&self, account: &AccountId, row: &AttemptRow) -> Result<Attempt> {
        type Texts = BTreeMap<String, String>;
        let opened = self.connections.vault.open(&attempt_place(account, &row.state_hash), &row.sealed)?;
        let (verifier, mode, fields, app_fields): (String, String, Texts, Option<Texts>) =
            serde_json::from_str(opened.expose()).map_err(Error::internal)?;
        let secrets = |texts: Texts| texts.into_iter().map(|(name, value)| (name, value.into())).collect();
        Ok(Attempt { verifier: verifier.into(), mode, fields: secrets(fields), app_fields: app_fields.map(secrets) })
    }

    /// Tokens for the code of an attempt that was taken.
    pub(crate) async fn complete(
        &self,
        account: &AccountId,
        row: &ConnectionRow,
        attempt: Attempt,
        code: &str,
    ) -> Result<Attempted> {
        let Attempt { verifier, mode, fields, app_fields } = attempt;
        let row = ConnectionRow { scheme: mode.clone(), ..row.clone() };
        let of_attempt = OpenConnection { row, held: Held { fields, ..Held::default() } };
        let (connector, scheme) = self.connections.scheme(&of_attempt)?;
        let OpenConnection { row, mut held } = of_attempt;
        let given = app_fields.as_ref().and_then(|fields| {
            let id = fields.get("clientId")?.expose().to_owned();
            Some(oauth::Client { id, secret: fields.get("clientSecret").cloned() })
        });
        let of_app = match &app_fields {
            Some(fields) => fields.clone(),
            None => self.connections.app_fields(account, &row.app, &mode).await?,
        };
        let client = match given {
            Some(client) => Some(client),
            None => self.connections.client(account, &connector, &scheme).await?,
        };
        let asked = (code, self.redirect_uri.as_str(), &verifier);
        let tokens = match oauth::exchange(&self.connections.egress.of(account), &scheme, client.as_ref(), asked).await
        {
            Ok(tokens) => tokens,
            Err(refusal) => return Ok(Attempted::Refused(refusal.reason())),
        };
        if let Some(client) = client {
            held.fields.insert("clientId".to_owned(), client.id.into());
            let secrets = [("clientSecret", client.secret), ("signingSecret", of_app.get("signingSecret").cloned())];
            for (name, secret) in secrets {
                held.fields.remove(name);
                held.fields.extend(secret.map(|secret| (name.to_owned(), secret)));
            }
        }
        let app_secrets = app_fields.map(|fields| self.connections.seal_app(account, &row.app, fields));
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
            row.refused = 0;
            self.connections.set_status_in(conn, account, &mut row, (ACTIVE, None)).await?;
            self.retire_in(conn, account, &row).await.map(Some)
        });
        let retired = storing.await?;
        drop(conn);
        let Some(retired) = retired else { return Ok(Attempted::Refused("the connection was deleted".to_owned())) };
        self.settled(&id, &retired).await?;
        Ok(Attempted::Connected)
    }
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
        .with_some("guideUrl", scheme.guide_url.as_ref())
        .with("code", "INTEGRATION_SETUP_REQUIRED"))
}

/// 32 bytes that nobody can guess.
fn token() -> String {
    URL_SAFE_NO_PAD.encode(random_bytes().as_slice())
}

fn attempt_place<'a>(account: &'a AccountId, state_hash: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "connection_attempts", column: "sealed", row: state_hash }
}
