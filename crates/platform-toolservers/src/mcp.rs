//! Remote MCP servers over streamable HTTP, by the official SDK: both protocol families, no processes.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use jsonschema::PatternOptions;
use moka::sync::Cache;
use platform_core::{AccountId, Object, json_length, run_blocking, sha256_hex, spawn, without_nul};
use platform_egress::{Egress, EgressError, EgressPlace, HttpError, Url, header::HeaderMap};
use platform_vault::{Redactor, Secret};
use rmcp::{
    ClientHandler, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotificationParam,
        ClientCapabilities, ClientConfig, ClientRequest, ElicitRequestParams, ElicitResult,
        ElicitationCreateRequestMethod, ErrorData, GetExtensions, Implementation, PaginatedRequestParams,
        ProtocolVersion, RequestId, RequestMetaObject, ServerResult, SubscriptionFilter,
    },
    service::{
        ClientCacheConfig, ClientInitializeError, ClientLifecycleMode, ClientServiceExt, NotificationContext, Peer,
        PeerRequestOptions, RequestContext, RequestHandle, RoleClient, RunningService,
    },
    transport::streamable_http_client::{
        AuthRequiredError, InsufficientScopeError, StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
        StreamableHttpError,
    },
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, OnceCell, mpsc},
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{
    apps::Connections,
    definition::{FunctionDefinition, HttpMethod, MAX_MEMORY, ToolDefinition},
    failure::Failure,
    gateway::McpOutcome,
    http::{Call, ForWhom},
    mcp_http::{MAX_LIST_BYTES, McpHttp},
    mcp_updates::{McpUpdate, UpdateListener, WithProgress},
    server::{Credentials, Server, UpstreamCredentials},
    tokens::Tokens,
};

const CONNECT: Duration = Duration::from_secs(20);
/// A list of tools: others wait for its place.
const MAX_LIST_TIME: Duration = Duration::from_secs(30);
/// A connection that nobody uses is closed after this.
const IDLE: Duration = Duration::from_mins(5);
const MAX_CONNECTIONS: u64 = 1000;
/// A server that ends a subscription is subscribed to again after the first of these; one that ends each of them, and
/// tells nothing, ever more seldom.
const BETWEEN_SUBSCRIPTIONS: (Duration, Duration) = (Duration::from_mins(1), Duration::from_mins(10));

/// What is longer is read and masked beside the threads that serve others, in bytes.
const SHORT: usize = 16 << 10;
/// A larger tool would fill every prompt, in bytes.
const MAX_TOOL: usize = 65_536;
/// Pages of a list of tools.
const MAX_PAGES: usize = 200;
/// Memory of a compiled pattern; bytes of one, and of all in a list: compiling takes much more than they are.
const MAX_PATTERN: usize = 256 << 10;
const MAX_PATTERN_BYTES: usize = 512;
const MAX_PATTERNS_BYTES: usize = 8 << 10;

/// The server whose tools may have changed.
pub(crate) type Changed = (AccountId, String);

/// What is to be done about a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Due {
    /// Its tools are to be read again: with its own credentials, or where they do not let in with this connection's.
    Reading(Option<String>),
    /// It did not answer, and may do so again.
    Recovering,
    /// It did not answer a call; why.
    Degrading(String),
}

/// Servers about which something is to be done; each once, however often that is said.
#[derive(Default)]
pub(crate) struct ChangedServers {
    due: Mutex<HashSet<(Changed, Due)>>,
    said: Notify,
}

impl ChangedServers {
    pub fn add(&self, server: Changed, due: Due) {
        self.due.lock().expect("lock").insert((server, due));
        self.said.notify_one();
    }

    /// Waits until there are some, and takes them.
    pub async fn take(&self) -> HashSet<(Changed, Due)> {
        loop {
            let due = std::mem::take(&mut *self.due.lock().expect("lock"));
            if !due.is_empty() {
                return due;
            }
            self.said.notified().await;
        }
    }
}

/// A client stands for one server and one credential.
type ClientKey = (Changed, String);

/// Clients of MCP servers, kept while they are used.
pub(crate) struct McpClients {
    egress: Egress,
    tokens: Arc<Tokens>,
    /// Who lets in whose server has no credentials of its own.
    apps: Arc<dyn Connections>,
    clients: Cache<ClientKey, Arc<ClientSlot>>,
    /// Who is told that a server says its tools have changed.
    changed: Arc<ChangedServers>,
}

/// Where a connection is, or is being made: once, however many need it.
struct ClientSlot {
    url: Url,
    /// What it is let in with.
    headers: HeaderMap,
    connection: OnceCell<Arc<Connection>>,
}

impl ClientSlot {
    /// Whether it is of no use to who goes there with these headers.
    fn is_over(&self, url: &Url, headers: &HeaderMap) -> bool {
        let is_closed = |connection: &Arc<Connection>| connection.service.peer().is_transport_closed();
        self.url != *url || self.headers != *headers || self.connection.get().is_some_and(is_closed)
    }
}

struct Connection {
    service: RunningService<RoleClient, Client>,
    url: Url,
    redactor: Redactor,
    token: Option<Secret>,
    /// Its tools were listed over it.
    listed: OnceCell<()>,
}

impl Connection {
    /// Its tools, at most so many (0 = all), as far as they have few enough bytes.
    async fn list(&self, most: usize) -> Result<Vec<rmcp::model::Tool>, ServiceError> {
        let (mut tools, mut bytes, mut cursor) = (Vec::new(), 0, None);
        for _ in 0..MAX_PAGES {
            let page = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let page = self.service.list_tools(Some(page)).await?;
            bytes += page.tools.iter().map(size).sum::<usize>();
            tools.extend(page.tools);
            let full = (most > 0 && tools.len() >= most) || bytes > MAX_LIST_BYTES;
            if full || page.next_cursor.is_none() || page.next_cursor == cursor {
                return Ok(tools);
            }
            cursor = page.next_cursor;
        }
        // A list without end is none, and what was known before stays.
        Err(ServiceError::UnexpectedResponse)
    }

    /// Before a tool is called: arguments that headers must repeat (SEP-2243) are sent by the SDK once it has listed it.
    async fn prepare(&self, repeats_arguments: bool) -> Result<(), ServiceError> {
        if repeats_arguments {
            self.listed.get_or_try_init(async || self.list(0).await.map(drop)).await?;
        }
        Ok(())
    }
}

/// Whether headers repeat arguments.
fn repeats_arguments(schema: &Value) -> bool {
    let mut properties = schema["properties"].as_object().into_iter().flatten();
    properties.any(|(_, property)| property.get("x-mcp-header").is_some() || repeats_arguments(property))
}

struct Client {
    server: Changed,
    /// With whose credentials it was let in.
    connection: Option<String>,
    changed: Arc<ChangedServers>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("platform", env!("CARGO_PKG_VERSION")))
    }

    /// Nobody is here to ask, which is not that somebody declined.
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(ErrorData::method_not_found::<ElicitationCreateRequestMethod>())
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.add(self.server.clone(), Due::Reading(self.connection.clone()));
    }
}

impl McpClients {
    pub fn new(egress: Egress, tokens: Arc<Tokens>, apps: Arc<dyn Connections>, changed: Arc<ChangedServers>) -> Self {
        let clients =
            Cache::builder().max_capacity(MAX_CONNECTIONS).time_to_idle(IDLE).support_invalidation_closures().build();
        Self { egress, tokens, apps, clients, changed }
    }

    /// The tools a server offers now, at most so many.
    pub async fn tools(
        &self,
        server: &Arc<Server>,
        with: &UpstreamCredentials,
        most: usize,
    ) -> Result<Vec<ToolDefinition>, Failure> {
        let listed =
            Box::pin(self.attempt(server, with, true, move |connection| async move { connection.list(most).await }));
        let longest = MAX_LIST_TIME.min(Duration::from_millis(server.settings.timeout_ms.into()));
        let ((tools, connection), _place) = self.placed(server, with, longest, ForWhom::default(), listed).await?;
        let count = if most > 0 { most } else { tools.len() };
        let mut bytes = 0;
        let fits = |tool: &rmcp::model::Tool| {
            bytes += size(tool);
            bytes <= MAX_LIST_BYTES
        };
        let mut names = HashSet::new();
        let mut can_be_called = |tool: &rmcp::model::Tool| {
            !tool.name.is_empty() && size(tool) <= MAX_TOOL && names.insert(tool.name.to_string())
        };
        let tools = tools.into_iter().filter(|tool| can_be_called(tool)).take(count).take_while(fits);
        let (tools, redactor): (Vec<_>, _) = (tools.collect(), connection.redactor.clone());
        let defined = run_blocking(move || {
            let (mut left, mut of_patterns) = (MAX_MEMORY, MAX_PATTERNS_BYTES);
            let fits = |tool: &ToolDefinition| left.checked_sub(tool.heap_bytes()).map(|rest| left = rest).is_some();
            Ok(tools.into_iter().map(|tool| definition(tool, &redactor, &mut of_patterns)).filter(fits).collect())
        });
        defined.await.map_err(|error| Failure::new("UPSTREAM_ERROR", error.message()))
    }

    /// Calls a tool; a call that was sent is not sent again, unless that cannot do harm.
    pub async fn call(
        &self,
        server: &Arc<Server>,
        tool: &ToolDefinition,
        arguments: &Object,
        call: Call<'_>,
    ) -> Result<Value, Failure> {
        let params = CallToolRequestParams::new(tool.function.name.clone()).with_arguments(arguments.clone());
        let repeats = repeats_arguments(&tool.function.parameters);
        let with = &UpstreamCredentials::Own;
        let called = Box::pin(self.attempt(server, with, tool.idempotent, move |connection| {
            let params = params.clone();
            async move {
                connection.prepare(repeats).await?;
                connection.service.call_tool(params).await
            }
        }));
        let ((result, connection), _place) = self.placed(server, with, call.timeout, call.who, called).await?;
        let failed = result.is_error == Some(true);
        let value = self.handed_on(&connection, result, |result| Ok(read(result))).await?;
        if failed {
            let failure = Failure::new("UPSTREAM_ERROR", "The tool says that it failed.");
            return Err(Failure { body: Some(value), ..failure });
        }
        Ok(value)
    }

    /// Calls a tool once and hands on what comes of it: a result, or that the upstream asks for something first.
    pub async fn call_once(
        &self,
        server: &Arc<Server>,
        tool: &ToolDefinition,
        call: Call<'_>,
        params: CallToolRequestParams,
        meta: RequestMetaObject,
        updates: Option<mpsc::Sender<McpUpdate>>,
    ) -> Result<McpOutcome, Failure> {
        let repeats = repeats_arguments(&tool.function.parameters);
        let Call { with, timeout, who, .. } = call;
        let called = Box::pin(self.attempt(server, with, tool.idempotent, move |connection| {
            let mut request = ClientRequest::CallToolRequest(CallToolRequest::new(params.clone()));
            if let Some(updates) = updates.clone() {
                let redactor = connection.redactor.clone();
                request.extensions_mut().insert(UpdateListener::new(updates, redactor));
            }
            let options = PeerRequestOptions::no_options().with_meta(meta.clone());
            async move {
                connection.prepare(repeats).await?;
                let handle = connection.service.peer().send_cancellable_request(request, options).await?;
                let waiting = Waiting::of(&connection, &handle);
                let answer = handle.await_response().await;
                waiting.end();
                match answer {
                    Ok(ServerResult::CallToolResult(result)) => Ok(Ok(CallToolResponse::Complete(result))),
                    Ok(ServerResult::InputRequiredResult(asked)) => Ok(Ok(CallToolResponse::InputRequired(asked))),
                    Ok(_) => Err(ServiceError::UnexpectedResponse),
                    // What the upstream says is the caller's to read.
                    Err(error @ ServiceError::McpError(_)) => Ok(Err(error)),
                    Err(error) => Err(error),
                }
            }
        }));
        let ((answer, connection), _place) = self.placed(server, with, timeout, who, called).await?;
        match answer {
            Ok(CallToolResponse::Complete(result)) => {
                self.handed_on(&connection, result, as_json).await.map(McpOutcome::Result)
            }
            Ok(CallToolResponse::InputRequired(asked)) => {
                self.handed_on(&connection, asked, as_json).await.map(McpOutcome::Result)
            }
            Ok(_) => Err(Failure::new("UPSTREAM_ERROR", "The server answers in a way that is not known here.")),
            Err(ServiceError::McpError(error)) => {
                let told = json!({"message": error.message, "data": error.data});
                let mut told = self.handed_on(&connection, told, Ok).await?;
                let message = told["message"].as_str().unwrap_or_default().to_owned();
                let data = Some(told["data"].take()).filter(|data| !data.is_null());
                Ok(McpOutcome::Refused(error.code.0, message, data))
            }
            Err(error) => Err(failure_behind(&connection.url, &error)),
        }
    }

    /// What came over a connection, which may be long, without secrets.
    async fn handed_on<T: Serialize + Send + 'static>(
        &self,
        connection: &Connection,
        told: T,
        read: impl FnOnce(T) -> Result<Value, Failure> + Send + 'static,
    ) -> Result<Value, Failure> {
        let (redactor, most) = (connection.redactor.clone(), self.egress.most_bytes());
        let is_short = json_length(&told, SHORT).is_some();
        let hand_on = move || {
            let value = redactor.value(read(told)?);
            let fits = most == 0 || json_length(&value, most).is_some();
            if fits { Ok(value) } else { Err(too_long()) }
        };
        if is_short {
            return hand_on();
        }
        let handed_on = run_blocking(move || Ok(hand_on())).await;
        handed_on.unwrap_or_else(|error| Err(Failure::new("UPSTREAM_ERROR", error.message())))
    }

    /// Does something when the server's account has a place among the requests that are made at once, which it has until
    /// the answer was used; in so long, the wait for the place among it. A connection that was silent is not used again.
    async fn placed<T>(
        &self,
        server: &Server,
        with: &UpstreamCredentials,
        longest: Duration,
        who: ForWhom<'_>,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<(T, Option<EgressPlace>), Failure> {
        let until = Instant::now() + longest;
        let late = || Failure::new("UPSTREAM_TIMEOUT", format!("The call takes more than {} ms.", longest.as_millis()));
        let egress = self.egress.of(&server.account);
        let place = timeout_at(until, who.place(&egress, &server.id)).await.map_err(|_| late())??;
        let left = until.saturating_duration_since(Instant::now());
        if let Ok(done) = timeout_at(until, work).await {
            return Ok((done?, place));
        }
        // Who waited much shorter than the server may take says nothing of it.
        if left >= Duration::from_millis(server.settings.timeout_ms.into()).mul_f64(0.9) {
            self.clients.invalidate(&key(server, with));
            self.degrade(server, &late());
        }
        Err(late())
    }

    /// Does something over a connection: once more on another one when it may be done `again`, or when a token was
    /// refused before its time.
    async fn attempt<T, F>(
        &self,
        server: &Arc<Server>,
        with: &UpstreamCredentials,
        again: bool,
        work: impl Fn(Arc<Connection>) -> F + Send + Sync,
    ) -> Result<(T, Arc<Connection>), Failure>
    where
        F: Future<Output = Result<T, ServiceError>> + Send,
    {
        let mut stale = None;
        loop {
            let is_last = stale.is_some();
            let connection = self.connection(server, with, stale.flatten().as_ref()).await.inspect_err(|failure| {
                if matches!(failure.code.as_str(), "UPSTREAM_ERROR" | "UPSTREAM_TIMEOUT") {
                    self.degrade(server, failure);
                }
            })?;
            let error = match work(Arc::clone(&connection)).await {
                Ok(done) => {
                    self.note_answer(server, with, 200).await;
                    return Ok((done, connection));
                }
                Err(error) => error,
            };
            let answered = matches!(error, ServiceError::McpError(_));
            if !answered {
                self.clients.invalidate(&key(server, with));
            }
            let refused = is_refusal(&error).then(|| connection.token.clone()).flatten();
            if is_last || (refused.is_none() && (answered || !again)) {
                if is_refusal(&error) {
                    self.note_answer(server, with, 401).await;
                } else if answered {
                    self.note_answer(server, with, 200).await;
                }
                let failure = connection.redacted(failure(&connection.url, &error));
                if !answered && !is_refusal(&error) && !is_forbidden(&error) {
                    self.degrade(server, &failure);
                }
                return Err(failure);
            }
            stale = Some(refused);
        }
    }

    /// A server let in a connection of somebody, or did not.
    async fn note_answer(&self, server: &Server, with: &UpstreamCredentials, status: u16) {
        if let UpstreamCredentials::Connection(id) = with {
            self.apps.answered(&server.account, id, status, &[]).await;
        }
    }

    /// A server did not answer.
    fn degrade(&self, server: &Server, failure: &Failure) {
        self.changed.add((server.account.clone(), server.id.clone()), Due::Degrading(failure.clone().fit().to_line()));
    }

    /// A server that is gone is connected to no longer.
    pub fn forget(&self, server: &Changed) {
        let server = server.clone();
        // The cache knows predicates: see where it is built.
        let _ = self.clients.invalidate_entries_if(move |(of, _), _| *of == server);
    }

    /// A connection that is there, or a new one; `stale`: a token that was refused.
    async fn connection(
        &self,
        server: &Arc<Server>,
        with: &UpstreamCredentials,
        stale: Option<&Secret>,
    ) -> Result<Arc<Connection>, Failure> {
        let unreadable = || Failure::new("URL_NOT_ALLOWED", "The server has no address that can be read.");
        let url = server.settings.address().ok_or_else(unreadable)?;
        let key = key(server, with);
        let credentials = server.credentials(with, &self.tokens, &*self.apps, stale).await?;
        let (token, headers) = (credentials.token.clone(), credentials.headers.clone());
        let place = self.clients.entry(key.clone()).or_insert_with_if(
            || Arc::new(ClientSlot { url: url.clone(), headers: headers.clone(), connection: OnceCell::new() }),
            |known| known.is_over(&url, &headers),
        );
        let through = match with {
            UpstreamCredentials::Connection(id) => Some(id.clone()),
            UpstreamCredentials::Own | UpstreamCredentials::Header(_) => None,
        };
        let connecting = async || {
            let client = Client { server: key.0.clone(), connection: through, changed: Arc::clone(&self.changed) };
            let connection = Arc::new(self.connect(client, url.clone(), credentials).await?);
            Self::listen(&connection);
            Ok::<_, Failure>(connection)
        };
        match place.value().connection.get_or_try_init(connecting).await {
            Ok(connection) => Ok(Arc::clone(connection)),
            Err(failure) if failure.code == "AUTH_FAILED" && token.is_some() && stale.is_none() => {
                Box::pin(self.connection(server, with, token.as_ref())).await
            }
            Err(failure) => Err(failure),
        }
    }

    /// Hears of changes of the tools of a server without sessions, which tells of them only whoever subscribes.
    fn listen(connection: &Connection) {
        let (peer, client) = (connection.service.peer().clone(), connection.service.service());
        let (server, changed) = (client.server.clone(), Arc::clone(&client.changed));
        let reading = Due::Reading(client.connection.clone());
        let told = peer.peer_info().is_some_and(|info| {
            let tools = info.capabilities.tools.as_ref();
            info.protocol_version == ProtocolVersion::V_2026_07_28
                && tools.is_some_and(|of| of.list_changed == Some(true))
        });
        if !told {
            return;
        }
        spawn("listen to MCP server", async move {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            let (mut pause, mut is_again) = (BETWEEN_SUBSCRIPTIONS.0, false);
            loop {
                match peer.listen(filter.clone()).await {
                    Ok(mut subscription) => {
                        // What changed while nobody listened was told nobody.
                        if is_again {
                            changed.add(server.clone(), reading.clone());
                        }
                        while let Ok(Some(_)) = subscription.next().await {
                            changed.add(server.clone(), reading.clone());
                            pause = BETWEEN_SUBSCRIPTIONS.0;
                        }
                    }
                    Err(ServiceError::McpError(_)) => break,
                    Err(_) => {}
                }
                sleep(pause).await;
                if peer.is_transport_closed() {
                    break;
                }
                (pause, is_again) = ((pause * 2).min(BETWEEN_SUBSCRIPTIONS.1), true);
            }
        });
    }

    async fn connect(&self, handler: Client, url: Url, credentials: Credentials) -> Result<Connection, Failure> {
        let Credentials { headers, secrets, token, .. } = credentials;
        let client = self.egress.client_for(&url)?;
        let sent: HashMap<_, _> = headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let most = if self.egress.most_bytes() == 0 { usize::MAX } else { self.egress.most_bytes() };
        let config =
            StreamableHttpClientTransportConfig::with_uri(url.as_str()).custom_headers(sent).max_sse_event_size(most);
        let redactor = Redactor::new(secrets.iter().map(Secret::expose));
        let transport = StreamableHttpClientTransport::with_client(McpHttp(client), config);
        let transport = WithProgress::new(transport);
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        match timeout(CONNECT, handler.serve_with_lifecycle(transport, lifecycle)).await {
            Ok(Ok(service)) => {
                // What a server lets us keep for a day is not what it offers now.
                service.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
                Ok(Connection { service, url, redactor, token, listed: OnceCell::new() })
            }
            Ok(Err(error)) => {
                let failure = if error.is_authorization_required() || is_refusal(&error) || is_forbidden(&error) {
                    refused()
                } else {
                    failure_behind(&url, &error)
                };
                Err(redact(&redactor, failure))
            }
            Err(_) => Err(Failure::new("UPSTREAM_TIMEOUT", "The MCP server does not answer in time.")),
        }
    }
}

/// A call that is under way: who gives it up takes it back.
struct Waiting {
    peer: Peer<RoleClient>,
    id: Option<RequestId>,
}

impl Waiting {
    fn of(connection: &Connection, handle: &RequestHandle<RoleClient>) -> Self {
        Self { peer: connection.service.peer().clone(), id: Some(handle.id.clone()) }
    }

    /// The upstream has answered.
    fn end(mut self) {
        self.id = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let (peer, reason) = (self.peer.clone(), "the caller is gone".to_owned());
        spawn("cancel call", async move {
            let cancelled = CancelledNotificationParam::new(Some(id), Some(reason));
            let _ = peer.notify_cancelled(cancelled).await;
        });
    }
}

/// Which client a server and a credential have.
fn key(server: &Server, with: &UpstreamCredentials) -> ClientKey {
    let credential = match with {
        UpstreamCredentials::Own => server.connection(with).unwrap_or_default().to_owned(),
        UpstreamCredentials::Connection(id) => id.clone(),
        UpstreamCredentials::Header(value) => sha256_hex(value.expose()),
    };
    ((server.account.clone(), server.id.clone()), credential)
}

impl Connection {
    fn redacted(&self, failure: Failure) -> Failure {
        redact(&self.redactor, failure)
    }
}

fn redact(redactor: &Redactor, failure: Failure) -> Failure {
    Failure { message: failure.message.map(|message| redactor.text(&message)), ..failure }
}

fn too_long() -> Failure {
    Failure::new("RESPONSE_TOO_LARGE", "The answer of the MCP server is too long.")
}

fn refused() -> Failure {
    Failure::new("AUTH_FAILED", "The MCP server refuses the credentials.")
}

fn failure(url: &Url, error: &ServiceError) -> Failure {
    match error {
        ServiceError::McpError(error) => Failure::new("UPSTREAM_ERROR", error.message.to_string()),
        _ if is_refusal(error) => refused(),
        other => failure_behind(url, other),
    }
}

/// What is behind an error, without the address, which may hold what is secret.
fn failure_behind(url: &Url, error: &(dyn std::error::Error + 'static)) -> Failure {
    let (mut innermost, mut next) = (error, Some(error));
    while let Some(error) = next {
        if let Some(error) = EgressError::behind(url, error) {
            return error.into();
        }
        if let Some(StreamableHttpError::<HttpError>::ResponseBodyTooLarge { .. }) = error.downcast_ref() {
            return too_long();
        }
        (innermost, next) = (error, beneath(error));
    }
    Failure::new("UPSTREAM_ERROR", format!("The MCP server cannot be used: {innermost}."))
}

/// What an error is about; some of the library do not name their parts as their source.
fn beneath<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a (dyn std::error::Error + 'static)> {
    if let Some(ClientInitializeError::TransportError { error, .. }) = error.downcast_ref() {
        return Some(error);
    }
    if let Some(ServiceError::TransportSend(error)) = error.downcast_ref() {
        return Some(error);
    }
    if let Some(StreamableHttpError::<HttpError>::Client(error)) = error.downcast_ref() {
        return Some(error);
    }
    error.source()
}

/// Whether the server wants other credentials.
fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<AuthRequiredError>() || error.is::<InsufficientScopeError>() {
            return true;
        }
        // A refusal without a challenge has no type of its own.
        if error.to_string().contains("unexpected server response: HTTP 401") {
            return true;
        }
        next = error.source();
    }
    false
}

/// Whether the server says that this is not for whoever asks, and not why.
fn is_forbidden(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .any(|error| error.to_string().contains("unexpected server response: HTTP 403"))
}

/// Bytes of a tool as it is told.
fn size(tool: &rmcp::model::Tool) -> usize {
    serde_json::to_string(tool).map_or(0, |json| json.len())
}

/// What a tool gave: the structured content, else its one text, else its parts.
fn read(result: CallToolResult) -> Value {
    if let Some(structured) = result.structured_content.filter(|value| !value.is_null()) {
        return structured;
    }
    let parts: Vec<Value> = result.content.iter().filter_map(|part| serde_json::to_value(part).ok()).collect();
    let texts: Option<Vec<&str>> =
        parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "text")).collect();
    texts.map_or_else(|| Value::Array(parts.clone()), |texts| Value::from(texts.join("\n")))
}

/// What an upstream answered, as JSON.
fn as_json(answer: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(|error| Failure::new("UPSTREAM_ERROR", error.to_string()))
}

/// Whether clients can hold results against it: one list with any other makes many of them refuse all of it.
/// `of_patterns`: bytes that its patterns may have.
fn is_output_schema(schema: &Value, of_patterns: &mut usize) -> bool {
    let is_known = |draft: &Value| draft.as_str().is_some_and(|draft| draft.contains("json-schema.org/"));
    let mut plain = schema.clone();
    let draft = plain.as_object_mut().and_then(|fields| fields.remove("$schema"));
    schema["type"] == "object"
        && draft.as_ref().is_none_or(is_known)
        && jsonschema::draft202012::meta::is_valid(&plain)
        && is_whole(schema, schema, of_patterns)
}

fn is_pattern(text: &str, of_patterns: &mut usize) -> bool {
    let Some(rest) = of_patterns.checked_sub(text.len()).filter(|_| text.len() <= MAX_PATTERN_BYTES) else {
        return false;
    };
    *of_patterns = rest;
    let patterns = PatternOptions::fancy_regex().size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN);
    jsonschema::options().with_pattern_options(patterns).build(&json!({"pattern": text})).is_ok()
}

/// Whether all that a schema refers to is a part of it, by where it stands, and its patterns are some.
fn is_whole(part: &Value, whole: &Value, of_patterns: &mut usize) -> bool {
    match part {
        Value::Object(fields) => fields.iter().all(|(name, value)| match (name.as_str(), value) {
            ("$ref", Value::String(reference)) => {
                reference.strip_prefix('#').is_some_and(|pointer| whole.pointer(pointer).is_some())
            }
            ("pattern", Value::String(pattern)) => is_pattern(pattern, of_patterns),
            _ => is_whole(value, whole, of_patterns),
        }),
        Value::Array(parts) => parts.iter().all(|part| is_whole(part, whole, of_patterns)),
        _ => true,
    }
}

/// A tool of an MCP server as a definition, without secrets that it echoes.
fn definition(tool: rmcp::model::Tool, redactor: &Redactor, of_patterns: &mut usize) -> ToolDefinition {
    let annotations = tool.annotations.as_ref().and_then(|hints| serde_json::to_value(hints).ok());
    let annotations = annotations.map(|hints| without_nul(redactor.value(hints)));
    let annotations = annotations.and_then(|hints| hints.as_object().cloned());
    let output_schema = tool.output_schema.map(|schema| without_nul(redactor.value(Value::Object((*schema).clone()))));
    let output_schema = output_schema.filter(|schema| is_output_schema(schema, of_patterns));
    let output_schema = output_schema.and_then(|schema| schema.as_object().cloned());
    let hint = |name: &str| annotations.as_ref().is_some_and(|hints| hints.get(name) == Some(&Value::Bool(true)));
    let mut parameters = without_nul(redactor.value(Value::Object(tool.input_schema.as_ref().clone())));
    if parameters["type"] != "object" {
        parameters["type"] = "object".into();
    }
    let properties = parameters["properties"].as_object_mut().map(std::mem::take).unwrap_or_default();
    // `true` and `false` are schemas, too, though not to most clients.
    let spelled = properties.into_iter().map(|(name, schema)| match schema {
        Value::Object(_) => (name, schema),
        Value::Bool(false) => (name, json!({"not": {}})),
        _ => (name, json!({})),
    });
    parameters["properties"] = Value::Object(spelled.collect());
    let required = parameters["required"].as_array_mut().map(std::mem::take).unwrap_or_default();
    parameters["required"] = required.into_iter().filter(Value::is_string).collect();
    ToolDefinition {
        function: FunctionDefinition {
            name: redactor.text(&tool.name).replace('\0', " "),
            description: redactor.text(&tool.description.unwrap_or_default()).replace('\0', " "),
            strict: false,
            parameters: Arc::new(parameters),
        },
        method: HttpMethod::Post,
        idempotent: hint("readOnlyHint") || hint("idempotentHint"),
        annotations,
        title: tool.title.map(|title| redactor.text(&title).replace('\0', " ")),
        output_schema,
        ..ToolDefinition::default()
    }
}
