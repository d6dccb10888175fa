use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use actix_web::{
    HttpRequest, HttpResponse,
    dev::ServerHandle,
    web::{self, ServiceConfig},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    ToolRequest,
    server::{ClosedPort, serve, stop},
};

/// An MCP server over streamable HTTP at `/mcp`; with a log-in of its own, or sessions, when it is told to have them.
///
/// Its tools are those of [`FakeMcpServer::set_tools`]; what a call does goes by the end of the tool's name: `fail` says
/// that it failed, `slow` logs and tells of its progress forty times, `ask` wants to know a name first, `hang` never
/// answers, `wide` holds a million small values, `stranger` answers another request, `swapped` waits for a second call
/// and answers each in the other's stead, `broken` breaks off the first time, `endless` streams without an end, `long`
/// has 9 MiB and `huge` 11, `page` is a web page; anything else gives back `{name, arguments, authorization}`.
pub struct FakeMcpServer {
    url: String,
    state: Arc<State>,
    handle: ServerHandle,
}

struct State {
    recorded: Mutex<Vec<ToolRequest>>,
    tools: Mutex<Value>,
    log_in: Mutex<LogIn>,
    url: Mutex<String>,
    /// Counts how often its tools became others.
    changes: watch::Sender<u32>,
    /// It does not tell of them.
    is_quiet: AtomicBool,
    /// Ids of calls that wait for another.
    swapped: watch::Sender<Vec<Value>>,
    /// The session that it knows; 0 = it has none.
    session: AtomicU32,
    /// How it answers `server/discover`, when not as it should.
    discovery: Mutex<Option<(u16, &'static str, &'static str)>>,
}

#[derive(Default)]
struct LogIn {
    is_required: bool,
    registered: u32,
    issued: u32,
    /// Speaks the family of 2026-07-28.
    is_modern: bool,
    /// Does not answer well.
    is_away: bool,
}

impl FakeMcpServer {
    /// Starts one with the tool `echo` on a port of its own.
    pub fn start() -> Self {
        let state = Arc::new(State {
            recorded: Mutex::default(),
            tools: Mutex::new(json!([])),
            log_in: Mutex::default(),
            url: Mutex::default(),
            changes: watch::Sender::default(),
            is_quiet: AtomicBool::default(),
            swapped: watch::Sender::default(),
            session: AtomicU32::default(),
            discovery: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        let (url, handle) = serve("fake MCP server", move |config: &mut ServiceConfig| {
            config.app_data(web::Data::from(Arc::clone(&shared))).default_service(web::to(answer));
        });
        state.url.lock().expect("lock").clone_from(&url);
        let server = Self { url: format!("{url}/mcp"), state, handle };
        server.set_tools(&["echo"]);
        server
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it is without a path.
    pub fn origin(&self) -> String {
        self.url.trim_end_matches("/mcp").to_owned()
    }

    /// Its tools, by name.
    pub fn set_tools(&self, names: &[&str]) {
        let tool = |name: &&str| json!({"name": name, "description": format!("Does {name}"), "inputSchema": {"type": "object"}});
        self.describe(names.iter().map(tool).collect());
    }

    /// How many are told of changes of its tools.
    pub fn listeners(&self) -> usize {
        self.state.changes.receiver_count()
    }

    /// Its tools, as they are listed.
    pub fn describe(&self, tools: Value) {
        *self.state.tools.lock().expect("lock") = tools;
        if !self.state.is_quiet.load(Ordering::Relaxed) {
            self.state.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Only who has logged in is let in.
    pub fn require_log_in(&self) {
        self.state.log_in.lock().expect("lock").is_required = true;
    }

    /// It tells nobody of changes of its tools.
    pub fn be_quiet(&self) {
        self.state.is_quiet.store(true, Ordering::Relaxed);
    }

    /// It speaks the family of 2026-07-28.
    pub fn be_modern(&self) {
        self.state.log_in.lock().expect("lock").is_modern = true;
    }

    /// It knows no session that there was: another has to begin.
    pub fn forget_session(&self) {
        self.state.session.fetch_add(1, Ordering::Relaxed);
    }

    /// It answers `server/discover` so: with this status, content type and body.
    pub fn answer_discovery(&self, status: u16, kind: &'static str, body: &'static str) {
        *self.state.discovery.lock().expect("lock") = Some((status, kind, body));
    }

    /// It answers 503, or well again.
    pub fn be_away(&self, away: bool) {
        self.state.log_in.lock().expect("lock").is_away = away;
    }

    /// Requests of a JSON-RPC method.
    pub fn requests(&self, method: &str) -> Vec<ToolRequest> {
        let recorded = self.state.recorded.lock().expect("lock");
        recorded.iter().filter(|request| request.json()["method"] == method).cloned().collect()
    }

    /// All requests as text, headers included.
    pub fn everything(&self) -> String {
        format!("{:?}", self.state.recorded.lock().expect("lock"))
    }

    /// Ends it.
    #[must_use = "its port is refused as long as this is there"]
    pub async fn stop(self) -> ClosedPort {
        stop(&self.handle, &self.url).await
    }
}

async fn answer(state: web::Data<State>, request: HttpRequest, body: Bytes) -> HttpResponse {
    let recorded = ToolRequest::of(&request, &body);
    state.recorded.lock().expect("lock").push(recorded.clone());
    let origin = state.url.lock().expect("lock").clone();
    if state.log_in.lock().expect("lock").is_away {
        return HttpResponse::ServiceUnavailable().finish();
    }
    match request.path() {
        "/.well-known/oauth-protected-resource/mcp" => HttpResponse::Ok().json(json!({
            "resource": format!("{origin}/mcp"), "authorization_servers": [origin], "scopes_supported": ["tools"],
        })),
        "/.well-known/oauth-authorization-server" => HttpResponse::Ok().json(json!({
            "issuer": origin, "authorization_endpoint": format!("{origin}/authorize"),
            "token_endpoint": format!("{origin}/token"), "registration_endpoint": format!("{origin}/register"),
            "revocation_endpoint": format!("{origin}/revoke"),
            "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
        })),
        "/register" => {
            state.log_in.lock().expect("lock").registered += 1;
            HttpResponse::Created().json(json!({"client_id": "registered", "redirect_uris": []}))
        }
        "/token" => token(&state, &recorded, &origin),
        "/revoke" => HttpResponse::Ok().finish(),
        "/mcp" if recorded.method == "POST" => rpc(&state, &recorded, &origin).await,
        "/mcp" => HttpResponse::MethodNotAllowed().finish(),
        _ => HttpResponse::NotFound().finish(),
    }
}

fn token(state: &State, request: &ToolRequest, origin: &str) -> HttpResponse {
    let has = |field: &str| request.body.contains(field);
    let resource =
        percent_encoding::utf8_percent_encode(&format!("{origin}/mcp"), percent_encoding::NON_ALPHANUMERIC).to_string();
    let resource = resource.replace("%2E", ".");
    if !has("client_id=registered") || !has(&format!("resource={resource}")) {
        return HttpResponse::BadRequest().json(json!({"error": "invalid_target"}));
    }
    let mut log_in = state.log_in.lock().expect("lock");
    log_in.issued += 1;
    // Whose token it is stands in it, so that nobody else's can be taken for it.
    let who = request.body.split("code=good-").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or("someone");
    HttpResponse::Ok().json(json!({
        "access_token": format!("token-of-{who}-{}", log_in.issued), "token_type": "Bearer",
        "refresh_token": format!("refresh-of-{who}"), "expires_in": 3600,
    }))
}

async fn rpc(state: &State, request: &ToolRequest, origin: &str) -> HttpResponse {
    let (is_required, is_modern) = {
        let log_in = state.log_in.lock().expect("lock");
        (log_in.is_required, log_in.is_modern)
    };
    if is_required && !request.header("authorization").starts_with("Bearer token-of-") {
        let metadata = format!("{origin}/.well-known/oauth-protected-resource/mcp");
        let challenge = format!("Bearer resource_metadata=\"{metadata}\"");
        return HttpResponse::Unauthorized().insert_header(("WWW-Authenticate", challenge)).finish();
    }
    let body = request.json();
    let session = state.session.load(Ordering::Relaxed);
    let is_first = body["method"] == "initialize";
    if session > 0 && !is_first && request.header("mcp-session-id") != session.to_string() {
        let error = json!({"code": -32000, "message": "Bad Request: No valid session ID provided"});
        return HttpResponse::BadRequest().json(json!({"jsonrpc": "2.0", "error": error, "id": null}));
    }
    if body["id"].is_null() {
        return HttpResponse::Accepted().finish();
    }
    let capabilities = json!({"tools": {"listChanged": true}});
    let info = json!({"name": "fake", "version": "1"});
    if body["method"] == "server/discover"
        && let Some((status, kind, text)) = *state.discovery.lock().expect("lock")
    {
        let status = actix_web::http::StatusCode::from_u16(status).expect("a status");
        let text = text.replace("$ID", &body["id"].to_string());
        return HttpResponse::build(status).content_type(kind).body(text);
    }
    let result = match body["method"].as_str().unwrap_or_default() {
        "initialize" => json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}),
        "server/discover" if is_modern => json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
            "ttlMs": 0, "cacheScope": "private", "_meta": {"io.modelcontextprotocol/serverInfo": info},
        }),
        "ping" => json!({}),
        "tools/list" => {
            let mut listed = json!({"tools": *state.tools.lock().expect("lock")});
            if is_modern {
                listed["resultType"] = "complete".into();
                listed["ttlMs"] = 0.into();
                listed["cacheScope"] = "private".into();
            }
            listed
        }
        "subscriptions/listen" if is_modern => return subscribed(state, &body["id"]),
        "tools/call" => return call(state, request, &body, is_modern).await,
        _ => {
            let error = json!({"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "no"}});
            return HttpResponse::Ok().json(error);
        }
    };
    let mut answer = HttpResponse::Ok();
    if session > 0 && is_first {
        answer.insert_header(("mcp-session-id", session.to_string()));
    }
    answer.json(json!({"jsonrpc": "2.0", "id": body["id"], "result": result}))
}

/// The id of another call that is under way.
async fn swapped(state: &State, id: &Value) -> Value {
    state.swapped.send_modify(|waiting| waiting.push(id.clone()));
    let mut waiting = state.swapped.subscribe();
    let waiting = waiting.wait_for(|waiting| waiting.len() > 1).await.expect("the server lives");
    waiting.iter().find(|other| *other != id).expect("another").clone()
}

/// Tells of changes of the tools.
fn subscribed(state: &State, id: &Value) -> HttpResponse {
    let message = |method: &str, mut params: Value| {
        params["_meta"] = json!({"io.modelcontextprotocol/subscriptionId": id});
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        Ok::<_, actix_web::Error>(Bytes::from(format!("data: {message}\n\n")))
    };
    let heard = json!({"notifications": {"toolsListChanged": true}});
    let first = message("notifications/subscriptions/acknowledged", heard);
    let changed = message("notifications/tools/list_changed", json!({})).expect("a message");
    let changes = stream::unfold(state.changes.subscribe(), move |mut changes| {
        let changed = changed.clone();
        async move {
            changes.changed().await.ok()?;
            Some((Ok(changed), changes))
        }
    });
    HttpResponse::Ok().content_type("text/event-stream").streaming(stream::iter([first]).chain(changes))
}

async fn call(state: &State, request: &ToolRequest, body: &Value, is_modern: bool) -> HttpResponse {
    let name = body["params"]["name"].as_str().unwrap_or_default();
    let mut result = json!({"content": [{"type": "text", "text": json!({
        "name": name, "arguments": body["params"]["arguments"], "authorization": request.header("authorization"),
    }).to_string()}]});
    if is_modern {
        result["resultType"] = "complete".into();
    }
    if name.ends_with("fail") {
        result["isError"] = true.into();
    }
    if name.ends_with("hang") {
        tokio::time::sleep(Duration::from_mins(10)).await;
    }
    if name.ends_with("ask") && body["params"]["inputResponses"].is_null() {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let asked = json!({"method": "elicitation/create",
            "params": {"mode": "form", "message": "What is your name?", "requestedSchema": schema}});
        result = json!({"resultType": "input_required", "inputRequests": {"name": asked}, "requestState": "asked"});
    }
    if name.ends_with("demand")
        && body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["elicitation"].is_null()
    {
        let error = json!({"code": -32021, "message": "Client did not declare elicitation"});
        return HttpResponse::Ok().json(json!({"jsonrpc": "2.0", "id": body["id"], "error": error}));
    }
    if name.ends_with("wide") {
        let values: Vec<Value> = (0..1_000_000).map(|_| json!({"a": 0})).collect();
        result["structuredContent"] = json!({"values": values});
    }
    if name.ends_with("answered") {
        result["structuredContent"] = json!({"responses": body["params"]["inputResponses"]});
    }
    if name.contains("novel") {
        result["content"].as_array_mut().expect("parts").push(json!({"type": "novelty", "data": 1}));
    }
    if let Some((_, mib)) = [("long", 9), ("huge", 11)].into_iter().find(|(end, _)| name.ends_with(end)) {
        result["content"][0]["text"] = "x".repeat(mib << 20).into();
    }
    if name.ends_with("page") {
        return HttpResponse::Ok().content_type("text/html").body("<h1>Welcome</h1>");
    }
    if name.ends_with("endless") {
        let ping = Bytes::from_static(b"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/nothing\"}\n\n");
        let pings = stream::unfold((), move |()| {
            let ping = ping.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Some((Ok::<_, actix_web::Error>(ping), ()))
            }
        });
        return HttpResponse::Ok().content_type("text/event-stream").streaming(pings);
    }
    if name.ends_with("held") {
        let began = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {
            "progressToken": body["params"]["_meta"]["progressToken"], "progress": 1}});
        let whole = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
        let mut changes = state.changes.subscribe();
        let end = stream::once(async move {
            let _ = changes.changed().await;
            whole
        });
        let event = |event: Value| Ok::<_, actix_web::Error>(Bytes::from(format!("data: {event}\n\n")));
        let events = stream::iter([began]).chain(end).map(event);
        return HttpResponse::Ok().content_type("text/event-stream").streaming(Box::pin(events));
    }
    if name.ends_with("broken") {
        let calls = state.recorded.lock().expect("lock");
        let calls = calls.iter().filter(|call| call.json()["params"]["name"] == name).count();
        if calls == 1 {
            let cut = stream::iter([Ok(Bytes::from_static(b"{")), Err(actix_web::error::ErrorBadGateway("cut"))]);
            return HttpResponse::Ok().content_type("application/json").streaming(cut);
        }
    }
    let id = match name {
        _ if name.ends_with("stranger") => json!("another"),
        _ if name.ends_with("swapped") => swapped(state, &body["id"]).await,
        _ => body["id"].clone(),
    };
    let whole = json!({"jsonrpc": "2.0", "id": id, "result": result});
    if !name.ends_with("slow") {
        return HttpResponse::Ok().json(whole);
    }
    let progress = |n: u32| {
        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {
            "progressToken": body["params"]["_meta"]["progressToken"], "progress": n, "total": 40, "message": "working",
        }})
    };
    let logged = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {
        "level": "warning", "logger": "fake", "data": {"authorization": body["params"]["arguments"]["echo"]},
    }});
    let detail =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "debug", "data": "detail"}});
    let events = [detail, logged]
        .into_iter()
        .chain((1..=40).map(progress))
        .chain([whole])
        .map(|event| format!("data: {event}\n\n"));
    HttpResponse::Ok().content_type("text/event-stream").body(events.collect::<String>())
}
