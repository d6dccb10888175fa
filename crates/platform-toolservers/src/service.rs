use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::{Place, Referrers, Resources, users_in};
use platform_core::{
    AccountId, Clock, Code, Error, FieldLimits, Id, MAX_LISTED, Object, Page, Precondition, Result, Timestamp,
    check_types, overlay, run_blocking, spawn,
};
use platform_db::{Bus, Capacity, Db, Idempotency, InvalidatedCache};
use platform_egress::Egress;
use platform_runtime::{ChildPool, fit_bytes};
use platform_vault::{SecretLocation, Vault};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    apps::Connections,
    calling::Calling,
    definition::{ToolDefinition, check_written, merge},
    http::{Call, ForWhom, ToolHttp},
    kinds::TOOL_SERVER,
    mcp::{ChangedServers, McpClients},
    model::{
        CloneRequest, ListedGroup, OpenApiImport, ServerType, TestResult, ToolList, ToolServer, ToolServerFilter,
        ToolServerList, ToolServerSettings,
    },
    openapi,
    refresh::refresh_asked,
    repository::{self, ServerRow},
    rules::{
        aliased, identifier_taken, laid_over, masked, no_tool, not_found, note_tools, numbered, of_definitions,
        own_tools_only, position, slug, switched,
    },
    secrets::KeptSecrets,
    server::{Server, UpstreamCredentials},
    source::{group_of, longest},
    tokens::Tokens,
};

/// Bytes of the servers that are remembered at once.
const MAX_REMEMBERED: u64 = 96 << 20;
/// Identifiers that are tried when the one made of the name is taken.
const TRIES: i64 = 60;
/// So many names are tried one after the other before it is asked which is free.
const FEW: i64 = 20;

/// Tool servers of an account, their tools, and calls to try them.
#[async_trait]
pub trait ToolServerService: Send + Sync {
    /// Makes a server of the given fields; the tools of an MCP server are fetched.
    async fn create(&self, account: &AccountId, given: Object, once: Option<&Idempotency>) -> Result<ToolServer>;
    /// Makes a server of an OpenAPI description.
    async fn import(
        &self,
        account: &AccountId,
        import: OpenApiImport,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer>;
    /// Those that the filter keeps, newest first.
    async fn list(&self, account: &AccountId, filter: &ToolServerFilter, page: Page) -> Result<ToolServerList>;
    /// One with its tools.
    async fn get(&self, account: &AccountId, id: &Id<ToolServer>) -> Result<ToolServer>;
    /// Changes the given fields of the version that is expected.
    async fn update(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        patch: Object,
        expected: &Precondition,
    ) -> Result<ToolServer>;
    /// Changes name, description or tools; of a tool that is there, what is left out stays.
    async fn define(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        patch: Object,
        expected: &Precondition,
    ) -> Result<ToolServer>;
    /// Deletes one that nobody refers to; `force`: the references go, too. Who refers to it and keeps it (kind and id);
    /// nobody: it is gone.
    async fn delete(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        force: bool,
        expected: &Precondition,
    ) -> Result<Vec<(String, String)>>;
    /// A copy under another name, secrets included.
    async fn duplicate(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        request: CloneRequest,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer>;
    /// Fetches the tools of an MCP server anew.
    async fn refresh(&self, account: &AccountId, id: &Id<ToolServer>) -> Result<ToolServer>;

    /// The tools of a server.
    async fn tools(&self, account: &AccountId, id: &Id<ToolServer>, search: Option<&str>) -> Result<ToolList>;
    /// One tool, and the version of its server.
    async fn tool(&self, account: &AccountId, id: &Id<ToolServer>, name: &str) -> Result<(ToolDefinition, i64)>;
    /// Adds a tool.
    async fn add_tool(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        tool: Object,
        expected: &Precondition,
        once: Option<&Idempotency>,
    ) -> Result<(ToolDefinition, i64)>;
    /// Changes the given fields of a tool; another name renames it.
    async fn update_tool(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        name: &str,
        patch: Object,
        expected: &Precondition,
    ) -> Result<(ToolDefinition, i64)>;
    /// Takes a tool away.
    async fn delete_tool(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        name: &str,
        expected: &Precondition,
    ) -> Result<()>;
    /// Calls a tool for real; what goes wrong is part of the result.
    async fn test(&self, account: &AccountId, id: &Id<ToolServer>, name: &str, arguments: Object)
    -> Result<TestResult>;
    /// What assistants and agents can choose: the enabled servers that the filter keeps, as many as a list holds, and
    /// how many there are.
    async fn list_groups(&self, account: &AccountId, filter: &ToolServerFilter) -> Result<(Vec<ListedGroup>, usize)>;
}

/// What tool servers ask others for.
pub struct ToolServerNeeds {
    /// The database.
    pub db: Db,
    /// Says when to forget.
    pub bus: Bus,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Seals secrets.
    pub vault: Arc<Vault>,
    /// The way out.
    pub egress: Egress,
    /// Child processes for expressions, templates and schemas: quick.
    pub expressions: Arc<ChildPool>,
    /// Child processes for descriptions that become tool servers: may take seconds.
    pub documents: Arc<ChildPool>,
    /// Whoever refers to tool servers.
    pub referrers: Referrers,
    /// Bounds of what clients set.
    pub limits: FieldLimits,
    /// Who lets calls into apps.
    pub connections: Arc<dyn Connections>,
}

/// The service on PostgreSQL.
pub struct PgToolServerService {
    pub(crate) db: Db,
    bus: Bus,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) limits: FieldLimits,
    pub(crate) calling: Arc<Calling>,
    documents: Arc<ChildPool>,
    referrers: Referrers,
    pub(crate) known: Arc<InvalidatedCache<String, Server>>,
    pub(crate) changed: Arc<ChangedServers>,
}
impl PgToolServerService {
    /// Starts to keep the tools of MCP servers fresh.
    pub fn new(needs: ToolServerNeeds) -> Arc<Self> {
        let ToolServerNeeds { db, bus, clock, vault, egress, expressions, documents, referrers, limits, connections } =
            needs;
        let changed = Arc::new(ChangedServers::default());
        let tokens = Arc::new(Tokens::new(&db, Arc::clone(&vault), egress.unplaced(), Arc::clone(&clock)));
        let mcp = McpClients::new(egress.clone(), Arc::clone(&tokens), Arc::clone(&connections), Arc::clone(&changed));
        let service = Arc::new(Self {
            known: InvalidatedCache::by_id(&bus, TOOL_SERVER.name(), Capacity::Bytes(MAX_REMEMBERED, Server::bytes)),
            db,
            bus,
            clock,
            vault,
            limits,
            calling: Arc::new(Calling { http: ToolHttp::new(egress), tokens, mcp, children: expressions, connections }),
            documents,
            referrers,
            changed,
        });
        spawn("refresh tools", refresh_asked(Arc::clone(&service)));
        service
    }

    /// A server as calls need it.
    pub(crate) async fn find(&self, account: &AccountId, id: &str) -> Result<Option<Arc<Server>>> {
        let load = async {
            let conn = self.db.read().await?;
            let Some(row) = repository::find(conn.get(), account, id).await? else { return Ok(None) };
            self.open(account, &row).map(Some)
        };
        let found = self.known.get_or_load(&id.to_owned(), load).await?;
        Ok(found.filter(|server| server.account == *account))
    }

    fn open(&self, account: &AccountId, row: &ServerRow) -> Result<Server> {
        let mut settings = row.settings()?;
        self.secrets(account, row)?.fill(&mut settings);
        Ok(Server::new(account.clone(), settings, row.without_tools()))
    }

    /// Puts what is kept of secrets into a row.
    pub(crate) fn seal(&self, account: &AccountId, row: &mut ServerRow, kept: &KeptSecrets) {
        row.secrets = kept.to_text().map(|text| self.vault.seal(&place(account, &row.id), text.expose()));
    }

    pub(crate) fn secrets(&self, account: &AccountId, row: &ServerRow) -> Result<KeptSecrets> {
        let Some(sealed) = &row.secrets else { return Ok(KeptSecrets::default()) };
        KeptSecrets::parse(&self.vault.open(&place(account, &row.id), sealed)?)
    }

    /// Lays a patch over the settings of a row: what is stored of it, and what is shown.
    async fn put(&self, account: &AccountId, row: &mut ServerRow, patch: Object, now: Timestamp) -> Result<()> {
        let before = row.settings()?;
        let kept = self.secrets(account, row)?;
        let was_mcp = row.kind == "mcp";
        let mut patch = aliased(patch, was_mcp)?;
        if before.is_app {
            let method = patch.get("authenticationConfig").and_then(|config| config["authenticationMethod"].as_str());
            if method.is_some_and(|method| !method.eq_ignore_ascii_case("none")) {
                let message = "authenticationConfig: the tools of an app are called with the rights of its connection";
                return Err(Error::invalid("authenticationConfig", "conflict", message));
            }
            // Where it calls, and with whose rights, is the app's to say.
            patch.retain(|name, _| !matches!(name.as_str(), "url" | "mcpType" | "type" | "authenticationConfig"));
        }
        let is_app = before.is_app;
        let mut settings = overlay(&before, patch).map_err(of_definitions)?;
        settings.is_app = is_app;
        let limits = self.limits;
        if settings.is_mcp() || is_app {
            // They come from the server or the app alone.
            let stored = if was_mcp || is_app { before.tool_definitions.clone() } else { Vec::new() };
            settings.tool_definitions = switched(stored, &settings.tool_definitions);
        }
        let settings = run_blocking(move || settings.check(&limits).map(|()| settings)).await;
        let mut settings = settings.map_err(of_definitions)?;
        let kept = kept.of(&mut settings, &before.tool_definitions)?;
        row.set(&settings, now)?;
        self.seal(account, row, &kept);
        if let Some(identifier) = settings.identifier {
            row.identifier = identifier;
        }
        Ok(())
    }

    /// What takes long to judge in tools as they were given; those of an MCP server come from it alone.
    async fn check_written(&self, account: &AccountId, id: Option<&str>, given: &Object) -> Result<()> {
        check_types::<ToolServerSettings>(&aliased(given.clone(), false)?).map_err(of_definitions)?;
        let tools = given.get("toolDefinitions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let most = self.limits.tools_per_server;
        // A list that is too long is refused for that.
        if tools.is_empty() || (most > 0 && tools.len() > most) {
            return Ok(());
        }
        let is_mcp = match id {
            Some(id) => self.find(account, id).await?.is_some_and(|server| server.kind != ServerType::Http),
            None => given.get("mcpType") == Some(&Value::Bool(true)),
        };
        if is_mcp {
            return Ok(());
        }
        let tools: Vec<_> =
            tools.iter().enumerate().map(|(i, tool)| (format!("toolDefinitions[{i}]."), tool)).collect();
        check_written(&self.calling.children, account, &tools).await
    }

    /// The same for one tool.
    async fn checked_tool(&self, account: &AccountId, id: &str, tool: Object) -> Result<Object> {
        let mut given = Object::from_iter([("toolDefinitions".to_owned(), Value::Array(vec![tool.into()]))]);
        self.check_written(account, Some(id), &given).await?;
        match given["toolDefinitions"][0].take() {
            Value::Object(tool) => Ok(tool),
            _ => Err(Error::internal("an object was put there")),
        }
    }

    /// Addresses that a record names must be ones we may call.
    async fn check_addresses(&self, given: &Object) -> Result<()> {
        let token = given.get("authenticationConfig").and_then(|config| config.get("refreshTokenEndpoint"));
        for (path, url) in [("url", given.get("url")), ("authenticationConfig.refreshTokenEndpoint", token)] {
            if let Some(url) = url.and_then(Value::as_str) {
                self.calling.http.egress.check(url).await.map_err(|error| error.into_error(path))?;
            }
        }
        Ok(())
    }

    /// Makes a server of the given fields.
    async fn make(
        &self,
        account: &AccountId,
        given: Object,
        skipped: Option<Vec<Value>>,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer> {
        let now = self.clock.now();
        let id = String::from(Id::<ToolServer>::generate());
        let mut row = ServerRow::blank(account, &id, now)?;
        let addresses = given.clone();
        self.put(account, &mut row, given, now).await?;
        self.check_addresses(&addresses).await?;
        self.insert(account, row, skipped, once).await
    }

    /// Stores a new server under its identifier, or one made of its name.
    pub(crate) async fn insert(
        &self,
        account: &AccountId,
        mut row: ServerRow,
        skipped: Option<Vec<Value>>,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer> {
        if row.kind == "mcp" {
            let server = Arc::new(self.open(account, &row)?);
            let tools =
                Box::pin(self.calling.mcp.tools(&server, &UpstreamCredentials::Own, self.limits.tools_per_server))
                    .await;
            note_tools(&mut row, tools, &[], self.clock.now())?;
        }
        let given = (!row.identifier.is_empty()).then(|| row.identifier.clone());
        let base = slug(&row.shown().settings["name"].as_str().unwrap_or_default().to_lowercase());
        let server = self
            .db
            .conn()
            .await?
            .transaction::<_, Error, _>(async |conn| {
                let (mut inserted, mut n) = (false, 0);
                for at in 1..=TRIES {
                    // A name that many have goes on where its numbers end.
                    n = if at == FEW { repository::next_number(conn, account, &base).await?.max(at) } else { n + 1 };
                    row.identifier = given.clone().unwrap_or_else(|| numbered(&base, n));
                    inserted = repository::insert(conn, &row).await?;
                    if inserted || given.is_some() {
                        break;
                    }
                }
                if !inserted {
                    return Err(identifier_taken(&row.identifier));
                }
                let server = ToolServer { skipped, ..row.shown() };
                Idempotency::store_if(once, conn, 201, &server).await?;
                Ok(server)
            })
            .await?;
        self.known.changed(&server.id).await?;
        Ok(server)
    }

    /// Changes a server: `change` makes a patch of what is stored.
    async fn change(
        &self,
        account: &AccountId,
        id: &str,
        expected: &Precondition,
        once: Option<&Idempotency>,
        change: impl FnOnce(&ServerRow, &ToolServerSettings) -> Result<Object> + Send,
    ) -> Result<ToolServer> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let changed = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            // What is there, first: a tool that is not is told before a version that is another.
            let patch = change(&row, &row.settings()?)?;
            expected.check(row.version)?;
            let fetches = ["url", "authenticationConfig", "mcpType", "type"].iter().any(|key| patch.contains_key(*key));
            self.put(account, &mut row, patch, now).await?;
            if row.kind != "mcp" {
                (row.health, row.last_error, row.refreshed_ms, row.down_since_ms) = (None, None, None, None);
            }
            if !repository::update(conn, account, &row).await? {
                return Err(identifier_taken(&row.identifier));
            }
            if let Some(once) = once {
                let tool = row.shown().settings["toolDefinitions"].as_array().and_then(|tools| tools.last()).cloned();
                once.store(conn, 201, &tool).await?;
            }
            Ok((row.shown(), fetches && row.kind == "mcp"))
        });
        let (server, fetches) = changed.await?;
        drop(conn);
        self.known.changed(id).await?;
        // The record is changed whether its server answers or not.
        if fetches { self.fetch_tools(account, id).await.map(|(server, _)| server) } else { Ok(server) }
    }
}

#[async_trait]
impl Resources for PgToolServerService {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        let server = self.find(account, id).await?;
        Ok(server.map(|server| Place { project: server.settings.project_id.clone(), ..Place::default() }))
    }
}

#[async_trait]
impl ToolServerService for PgToolServerService {
    async fn create(&self, account: &AccountId, given: Object, once: Option<&Idempotency>) -> Result<ToolServer> {
        self.check_written(account, None, &given).await?;
        self.make(account, given, None, once).await
    }

    async fn import(
        &self,
        account: &AccountId,
        import: OpenApiImport,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer> {
        let (spec, source) = match (import.spec, import.url) {
            (Some(spec), url) => (spec, url),
            (None, Some(url)) => {
                let address = self.calling.http.egress.check(&url).await.map_err(|error| error.into_error("url"))?;
                let fetched =
                    self.calling.http.egress.of(account).get(&url).await.map_err(|error| error.into_error("url"))?;
                if !(200..300).contains(&fetched.status) {
                    return Err(openapi::unreadable(fetched.status));
                }
                (String::from_utf8_lossy(&fetched.bytes).into_owned().into(), Some(address.into()))
            }
            (None, None) => return Err(openapi::nothing_given()),
        };
        let given = openapi::Import {
            spec,
            source,
            base: import.base_url,
            include: import.include,
            most: self.limits.tools_per_server,
        };
        let imported = openapi::import(&self.documents, account, &given).await?;
        let title = if imported.title.trim().is_empty() { "Imported API".to_owned() } else { imported.title };
        let given = json!({
            "name": import.name.unwrap_or(title),
            "description": imported.description,
            "url": imported.address,
            "toolDefinitions": imported.tools,
        });
        let Value::Object(given) = given else { return Err(Error::internal("an object was written")) };
        self.make(account, given, Some(imported.skipped), once).await
    }

    async fn list(&self, account: &AccountId, filter: &ToolServerFilter, page: Page) -> Result<ToolServerList> {
        let conn = self.db.fair_conn(account).await?;
        let (rows, total, page) = repository::list(&conn, account, filter, page).await?;
        drop(conn);
        let tool_servers: Vec<ToolServer> = rows.iter().map(|row| row.shown().brief()).collect();
        let has_more = page.offset.saturating_add(i64::try_from(tool_servers.len()).unwrap_or(0)) < total;
        Ok(ToolServerList { tool_servers, total, offset: page.offset, limit: page.limit, has_more })
    }

    async fn get(&self, account: &AccountId, id: &Id<ToolServer>) -> Result<ToolServer> {
        let row = repository::find(self.db.read().await?.get(), account, id).await?;
        Ok(row.ok_or_else(|| not_found(id))?.shown())
    }

    async fn update(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        patch: Object,
        expected: &Precondition,
    ) -> Result<ToolServer> {
        self.check_written(account, Some(id), &patch).await?;
        self.check_addresses(&patch).await?;
        self.change(account, id, expected, None, |_, _| Ok(patch)).await
    }

    async fn define(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        mut patch: Object,
        expected: &Precondition,
    ) -> Result<ToolServer> {
        if patch.remove("_id").is_some_and(|given| !given.is_null() && given != **id) {
            let message = "_id must be the id of the server or of its definition, or be left out";
            return Err(Error::invalid("_id", "conflict", message));
        }
        patch.retain(|name, _| matches!(name.as_str(), "name" | "description" | "toolDefinitions"));
        self.check_written(account, Some(id), &patch).await?;
        let change = move |_: &ServerRow, stored: &ToolServerSettings| {
            if let Some(Value::Array(tools)) = patch.get_mut("toolDefinitions") {
                for tool in tools {
                    if let Value::Object(given) = tool {
                        *tool = laid_over(stored, std::mem::take(given))?;
                    }
                }
            }
            Ok(patch)
        };
        self.change(account, id, expected, None, change).await
    }

    async fn delete(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        force: bool,
        expected: &Precondition,
    ) -> Result<Vec<(String, String)>> {
        let mut conn = self.db.conn().await?;
        let users = conn.transaction::<_, Error, _>(async |conn| {
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            expected.check(row.version)?;
            let users = if force {
                self.referrers.forget_in(conn, account, &[TOOL_SERVER], &[id.to_string()]).await?
            } else {
                users_in(conn, account, (TOOL_SERVER, id)).await?
            };
            if force || users.is_empty() {
                repository::delete(conn, account, id).await?;
            }
            Ok(users)
        });
        let users = users.await?;
        drop(conn);
        if !force && !users.is_empty() {
            return Ok(users);
        }
        self.calling.mcp.forget(&(account.clone(), id.to_string()));
        self.known.changed(id).await?;
        // Who referred to it is read anew.
        for (kind, user) in users {
            self.bus.tell(&format!("{kind}s"), &user).await?;
        }
        Ok(Vec::new())
    }

    async fn duplicate(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        request: CloneRequest,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer> {
        let conn = self.db.read().await?;
        let source = repository::find(conn.get(), account, id).await?.ok_or_else(|| not_found(id))?;
        drop(conn);
        if source.link()?.is_some() {
            let message = "A server that is made from an app cannot be copied; make another from its connection.";
            return Err(Error::new(Code::CONFLICT, message));
        }
        let now = self.clock.now();
        let mut settings = source.settings()?;
        settings.name = request.name.unwrap_or_else(|| {
            let name: String = settings.name.chars().take(193).collect();
            format!("{name} (Copy)")
        });
        settings.identifier = None;
        let limits = self.limits;
        let settings = run_blocking(move || settings.check(&limits).map(|()| settings)).await?;
        let copy = String::from(Id::<ToolServer>::generate());
        let mut row = ServerRow::blank(account, &copy, now)?;
        row.set(&settings, now)?;
        let secrets = self.secrets(account, &source)?;
        row.secrets = secrets.to_text().map(|text| self.vault.seal(&place(account, &copy), text.expose()));
        self.insert(account, row, None, once).await
    }

    async fn refresh(&self, account: &AccountId, id: &Id<ToolServer>) -> Result<ToolServer> {
        let server = self.find(account, id).await?.ok_or_else(|| not_found(id))?;
        if server.kind != ServerType::Mcp {
            return Err(Error::new(Code::CONFLICT, "Only MCP servers have tools to fetch."));
        }
        match self.fetch_tools(account, id).await? {
            (server, None) => Ok(server),
            (_, Some(failure)) => Err(Error::new(Code::UPSTREAM_ERROR, failure.to_line()).with("code", failure.code)),
        }
    }

    async fn tools(&self, account: &AccountId, id: &Id<ToolServer>, search: Option<&str>) -> Result<ToolList> {
        let server = self.find(account, id).await?.ok_or_else(|| not_found(id))?;
        let tools = server.settings.tool_definitions.iter();
        let tools: Vec<_> = tools.filter(|tool| tool.function.says(search.unwrap_or_default())).cloned().collect();
        Ok(ToolList { total: tools.len(), tools })
    }

    async fn tool(&self, account: &AccountId, id: &Id<ToolServer>, name: &str) -> Result<(ToolDefinition, i64)> {
        let server = self.find(account, id).await?.ok_or_else(|| not_found(id))?;
        let tool = server.tool(name).cloned().ok_or_else(|| no_tool(name))?;
        Ok((tool, server.record.version))
    }

    async fn add_tool(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        tool: Object,
        expected: &Precondition,
        once: Option<&Idempotency>,
    ) -> Result<(ToolDefinition, i64)> {
        let tool = self.checked_tool(account, id, tool).await?;
        let change = move |row: &ServerRow, stored: &ToolServerSettings| {
            own_tools_only(row)?;
            let mut tools = masked(&stored.tool_definitions)?;
            tools.push(merge(&ToolDefinition::default(), tool)?);
            Ok(Object::from_iter([("toolDefinitions".to_owned(), tools.into())]))
        };
        let server = self.change(account, id, expected, once, change).await?;
        let added = server.settings["toolDefinitions"].as_array().and_then(|tools| tools.last()).cloned();
        let added = serde_json::from_value(added.unwrap_or_default()).map_err(Error::internal)?;
        Ok((added, server.version))
    }

    async fn update_tool(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        name: &str,
        patch: Object,
        expected: &Precondition,
    ) -> Result<(ToolDefinition, i64)> {
        let patch = self.checked_tool(account, id, patch).await?;
        let mut at = 0;
        let place = &mut at;
        let change = |row: &ServerRow, stored: &ToolServerSettings| {
            *place = position(stored, name)?;
            let renames = patch.get("function").and_then(|function| function.get("name"));
            if renames.is_some_and(|new| new != name) {
                own_tools_only(row)?;
            }
            let mut tools = masked(&stored.tool_definitions)?;
            tools[*place] = merge(&stored.tool_definitions[*place], patch)?;
            Ok(Object::from_iter([("toolDefinitions".to_owned(), tools.into())]))
        };
        let server = self.change(account, id, expected, None, change).await?;
        let tool = server.settings["toolDefinitions"].get(at).cloned().unwrap_or_default();
        Ok((serde_json::from_value(tool).map_err(Error::internal)?, server.version))
    }

    async fn delete_tool(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        name: &str,
        expected: &Precondition,
    ) -> Result<()> {
        let change = |row: &ServerRow, stored: &ToolServerSettings| {
            own_tools_only(row)?;
            let mut tools = masked(&stored.tool_definitions)?;
            tools.remove(position(stored, name)?);
            Ok(Object::from_iter([("toolDefinitions".to_owned(), tools.into())]))
        };
        self.change(account, id, expected, None, change).await.map(|_| ())
    }

    async fn test(
        &self,
        account: &AccountId,
        id: &Id<ToolServer>,
        name: &str,
        arguments: Object,
    ) -> Result<TestResult> {
        let server = self.find(account, id).await?.ok_or_else(|| not_found(id))?;
        let tool = server.tool(name).ok_or_else(|| no_tool(name))?;
        let call = platform_runtime::ToolCall::new_id();
        let began = Instant::now();
        let call = Call {
            id: &call,
            callback: None,
            depth: None,
            timeout: longest(&server, tool),
            with: &UpstreamCredentials::Own,
            who: ForWhom::default(),
        };
        let called = self.calling.call(&server, tool, call, &arguments).await;
        let took = began.elapsed();
        let (data, error) = match called.result {
            Ok(value) => (Some(value), None),
            Err(failure) => (failure.body.clone(), Some(failure.to_line())),
        };
        Ok(TestResult {
            success: error.is_none(),
            data: data.filter(|value| !value.is_null()).map(|value| self.wrapped(value)),
            error,
            execution_time_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            request_url: called.url,
            request_method: called.method,
            status_code: called.status,
        })
    }

    async fn list_groups(&self, account: &AccountId, filter: &ToolServerFilter) -> Result<(Vec<ListedGroup>, usize)> {
        let mut groups = Vec::new();
        let conn = self.db.read().await?;
        let ids = repository::enabled(conn.get(), account, filter).await?;
        drop(conn);
        let total = ids.len();
        let mut bytes = 0;
        for id in ids {
            let Some(server) = self.find(account, &id).await? else { continue };
            let group = group_of(&server);
            bytes += serde_json::to_string(&group).map_or(0, |json| json.len());
            if bytes > MAX_LISTED {
                return Ok((groups, total));
            }
            groups.push(ListedGroup { group, builtin: false });
        }
        let total = groups.len();
        Ok((groups, total))
    }
}

impl PgToolServerService {
    /// An object as it is, another value under `result`; what is too long is cut.
    fn wrapped(&self, value: Value) -> Value {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if self.limits.tool_response_bytes > 0 && text.len() > self.limits.tool_response_bytes {
            let cut = fit_bytes(text, self.limits.tool_response_bytes);
            return serde_json::from_str(&cut).unwrap_or_default();
        }
        if value.is_object() { value } else { json!({"result": value}) }
    }
}

fn place<'a>(account: &'a AccountId, id: &'a str) -> SecretLocation<'a> {
    SecretLocation { account, table: "tool_servers", column: "secrets", row: id }
}
