//! Tool servers that are made from apps, and who lets their calls in (contract 08).

use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Code, Error, Id, Page, Precondition, Result, Timestamp, run_blocking};
use platform_db::{Conn, Idempotency};
use platform_egress::{Url, header::HeaderMap};
use platform_runtime::{SourceTool, ToolTurn};
use platform_vault::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    authentication::AuthenticationConfig,
    definition::{CustomHeader, ToolDefinition, check_all},
    model::{AppLink, ServerType, ToolServer, ToolServerSettings},
    repository::{self, ServerRow},
    rules::{not_found, switched},
    script,
    secrets::KeptSecrets,
    server::{Server, UpstreamCredentials},
    service::PgToolServerService,
};

/// What lets a request into an app.
#[derive(Debug, Clone, Default)]
pub struct AppCredentials {
    /// Headers, sensitive where they are secret.
    pub headers: HeaderMap,
    /// Fields of the query.
    pub query: Vec<(String, Secret)>,
    /// What must not come back in an answer.
    pub secrets: Vec<Secret>,
    /// The token among them that another may take the place of.
    pub token: Option<Secret>,
}

/// Connections to apps, as far as calls need them.
#[async_trait]
pub trait Connections: Send + Sync {
    /// What lets into the app now; `refused`: a token that did not. The reason when nothing does.
    async fn credentials(
        &self,
        account: &AccountId,
        connection: &str,
        refused: Option<&Secret>,
    ) -> Result<AppCredentials, String>;

    /// Whether an answer of the app says that the credentials are good no longer: its status does, or what its body says.
    async fn refuses(&self, account: &AccountId, connection: &str, status: u16, body: &[u8]) -> bool;

    /// What the app answered to what was newest: its status, and a body that may say that it refuses.
    async fn answered(&self, account: &AccountId, connection: &str, status: u16, body: &[u8]);
}

/// Nobody is connected.
#[async_trait]
impl Connections for () {
    async fn credentials(&self, _: &AccountId, _: &str, _: Option<&Secret>) -> Result<AppCredentials, String> {
        Err("There are no connections.".to_owned())
    }

    async fn refuses(&self, _: &AccountId, _: &str, status: u16, _: &[u8]) -> bool {
        status == 401
    }

    async fn answered(&self, _: &AccountId, _: &str, _: u16, _: &[u8]) {}
}

/// A tool server to make from an app.
#[derive(Debug, Clone)]
pub struct NewAppServer {
    /// Its name.
    pub name: String,
    /// What the app is.
    pub description: String,
    /// Picture of the app.
    pub image_url: Option<String>,
    /// Where its tools call; `None` = they say so themselves.
    pub url: Option<String>,
    /// The app, and which connection.
    pub link: AppLink,
    /// The tools that it exposes.
    pub tools: Vec<ToolDefinition>,
}

/// What a tool server has of its app.
#[derive(Debug, Clone)]
pub struct OfApp {
    /// Names of the tools that it exposes; `None` = all of the app.
    pub exposed: Option<Vec<String>>,
    /// Those tools.
    pub tools: Vec<ToolDefinition>,
    /// Where they call; `None` = they say so themselves.
    pub url: Option<String>,
    /// Digest of what they were made from.
    pub pack: String,
}

/// An app or an MCP server whose tools somebody calls who has no tool server of it: ready to be offered to turns.
#[derive(Clone)]
pub struct OfferedServer(pub(crate) Arc<Server>);

/// An MCP server that somebody brings.
#[derive(Debug, Clone)]
pub struct NewMcpServer {
    /// Its id.
    pub id: String,
    /// What stands before the names of its tools.
    pub identifier: String,
    /// Where it is.
    pub url: String,
    /// The tools that it had when it was last read.
    pub tools: Vec<ToolDefinition>,
    /// What lets in, when no connection does.
    pub headers: Vec<CustomHeader>,
    /// The connection with whose rights it is called.
    pub connection: Option<String>,
}

/// `INVALID_TOOL_DEFINITION`, `DUPLICATE_TOOL_NAME` unless tools can be those of a server at an address.
pub fn check_tools(tools: &mut [ToolDefinition], url: Option<&Url>) -> Result<()> {
    check_all(tools, 0, url)
}

/// Name of a tool and of its field, and why what the field holds is no expression; for tools of whoever runs the
/// platform, since they are read in this process.
pub fn wrong_templates(tools: &[ToolDefinition]) -> Vec<(String, &'static str, String)> {
    let templates = tools.iter().flat_map(|tool| {
        let fields = [
            ("bodyJsonTemplate", &tool.body_json_template),
            ("responsePostProcessingTemplate", &tool.response_post_processing_template),
        ];
        fields.map(|(field, text)| (&tool.function.name, field, text))
    });
    let written = templates.filter(|(.., text)| !text.trim().is_empty());
    written.filter_map(|(name, field, text)| Some((name.clone(), field, script::parse(text).err()?))).collect()
}

impl OfferedServer {
    /// An app, its address, the tools that may be called, and the connection with whose rights; `None` = nobody is
    /// connected, which calls are told.
    pub fn app(
        account: &AccountId,
        (app, url): (&str, Option<String>),
        tools: Vec<ToolDefinition>,
        connection: Option<String>,
    ) -> Result<Self> {
        let settings = ToolServerSettings {
            name: app.to_owned(),
            url,
            tool_definitions: tools,
            is_app: true,
            ..ToolServerSettings::default()
        };
        let link = AppLink { app: app.to_owned(), connection_id: connection, connected: true, ..AppLink::default() };
        Self::of(account, (app, app), settings, Some(&link))
    }

    /// An MCP server.
    pub fn mcp(account: &AccountId, new: NewMcpServer) -> Result<Self> {
        let NewMcpServer { id, identifier, url, tools, headers, connection } = new;
        let link = connection.map(|connection| AppLink {
            connection_id: Some(connection),
            connected: true,
            ..AppLink::default()
        });
        let settings = ToolServerSettings {
            name: identifier.clone(),
            url: Some(url),
            mcp_type: true,
            tool_definitions: tools,
            authentication_config: AuthenticationConfig::of_headers(headers),
            ..ToolServerSettings::default()
        };
        Self::of(account, (&id, &identifier), settings, link.as_ref())
    }

    fn of(
        account: &AccountId,
        (id, identifier): (&str, &str),
        settings: ToolServerSettings,
        link: Option<&AppLink>,
    ) -> Result<Self> {
        let mut row = ServerRow::blank(account, id, Timestamp(0))?;
        identifier.clone_into(&mut row.identifier);
        settings.kind().as_str().clone_into(&mut row.kind);
        if let Some(link) = link {
            row.set_link(link);
        }
        Ok(Self(Arc::new(Server::new(account.clone(), settings, row.without_tools()))))
    }
}

impl PgToolServerService {
    /// The tools of a server, for a turn.
    pub fn offer_all(&self, server: &OfferedServer, turn: &ToolTurn<'_>) -> Vec<SourceTool> {
        let count = server.0.settings.tool_definitions.len();
        (0..count).map(|index| self.offer(&server.0, index, turn)).collect()
    }

    /// The tools that an MCP server has now, at most so many. `UPSTREAM_ERROR` with the cause in `details.code`.
    pub async fn read_tools(&self, server: &OfferedServer, most: usize) -> Result<Vec<ToolDefinition>> {
        let read = Box::pin(self.calling.mcp.tools(&server.0, &UpstreamCredentials::Own, most)).await;
        read.map_err(|failure| Error::new(Code::UPSTREAM_ERROR, failure.to_line()).with("code", failure.code))
    }

    /// Makes a tool server from an app.
    pub async fn create_app(
        &self,
        account: &AccountId,
        new: NewAppServer,
        once: Option<&Idempotency>,
    ) -> Result<ToolServer> {
        let now = self.clock.now();
        let id = String::from(Id::<ToolServer>::generate());
        let NewAppServer { name, description, image_url, url, link, tools } = new;
        let mut settings = ToolServerSettings {
            name,
            description,
            image_url,
            url,
            tool_definitions: tools,
            is_app: true,
            ..ToolServerSettings::default()
        };
        let limits = self.limits;
        let mut settings = run_blocking(move || settings.check(&limits).map(|()| settings)).await?;
        let mut row = ServerRow::blank(account, &id, now)?;
        let kept = KeptSecrets::default().of(&mut settings, &[])?;
        row.set(&settings, now)?;
        self.seal(account, &mut row, &kept);
        row.set_link(&link);
        self.insert(account, row, None, once).await
    }

    /// Which app a server was made from; `None` when it is of another type. `TOOL_SERVER_NOT_FOUND`.
    pub async fn app_link(&self, account: &AccountId, id: &str) -> Result<Option<AppLink>> {
        let server = self.find(account, id).await?.ok_or_else(|| not_found(id))?;
        Ok(server.record.integration.clone())
    }

    /// Servers whose tools were made from another pack than these (apps and digests), some of them behind this one.
    pub async fn outdated(
        &self,
        packs: &[(String, String)],
        after: &(AccountId, String),
    ) -> Result<Vec<(AccountId, String)>> {
        let (apps, digests): (Vec<&str>, Vec<&str>) =
            packs.iter().map(|(app, digest)| (app.as_str(), digest.as_str())).unzip();
        let found =
            repository::made_otherwise(&mut *self.db.conn().await?, (&apps, &digests), (&after.0, &after.1)).await?;
        Ok(found.into_iter().filter_map(|(account, id)| Some((AccountId::parse(&account).ok()?, id))).collect())
    }

    /// Gives a server other tools of its app: `choose` is given which it exposes now.
    pub async fn expose(
        &self,
        account: &AccountId,
        id: &str,
        expected: &Precondition,
        choose: impl FnOnce(&AppLink) -> Result<OfApp> + Send,
    ) -> Result<ToolServer> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let changing = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            let Some(mut link) = row.link()? else { return Err(not_found(id)) };
            expected.check(row.version)?;
            let mut settings = row.settings()?;
            let OfApp { exposed, tools, url, pack } = choose(&link)?;
            let before = std::mem::take(&mut settings.tool_definitions);
            settings.tool_definitions = switched(tools.clone(), &before);
            if pack != link.pack {
                // A newer pack may ask for more care than before, never for less.
                for (tool, of_pack) in settings.tool_definitions.iter_mut().zip(&tools) {
                    tool.requires_approval |= of_pack.requires_approval;
                }
            }
            settings.url = url;
            (link.exposed, link.pack) = (exposed, pack);
            let kept = self.secrets(account, &row)?.of(&mut settings, &before)?;
            row.set(&settings, now)?;
            self.seal(account, &mut row, &kept);
            row.set_link(&link);
            repository::update(conn, account, &row).await?;
            Ok(row.shown())
        });
        let server = changing.await?;
        drop(conn);
        self.known.changed(id).await?;
        Ok(server)
    }

    /// All servers that were made from apps, newest first.
    pub async fn app_servers(&self, account: &AccountId, within: Option<Vec<String>>) -> Result<Vec<ToolServer>> {
        let filter = crate::ToolServerFilter { r#type: Some(ServerType::Integration), within, ..Default::default() };
        let page = Page { limit: 1000, offset: 0 };
        let conn = self.db.read().await?;
        let (rows, _, _) = repository::list(conn.get(), account, &filter, page).await?;
        Ok(rows.iter().map(|row| row.shown().brief()).collect())
    }
}

/// Notes with the servers of a connection whether it is good, in the transaction that changes it.
pub async fn set_connected_in(conn: &mut Conn, account: &AccountId, connection: &str, connected: bool) -> Result<()> {
    repository::set_connected(conn, account, connection, connected).await
}

/// The tools that a server of an app exposes, or all that it could (contract 08 §2).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppTools {
    /// The tools.
    pub tools: Vec<AppTool>,
    /// How many there are.
    pub total: usize,
    /// Where the next page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A tool of an app.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AppTool {
    /// What a model is told.
    pub function: AppFunction,
    /// The server exposes it.
    pub enabled: bool,
}

/// What a model is told of a tool of an app.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AppFunction {
    /// Name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of the arguments.
    #[schema(value_type = Object)]
    pub parameters: Arc<serde_json::Value>,
}
