use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_web::{
    HttpRequest, HttpResponse,
    http::StatusCode,
    web::{self, ServiceConfig},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::server::serve;

/// A server for tools to call: it records what it was sent, and does what the path says.
///
/// `/echo/…` answers with the request, `/status/<n>` with a status, `/slow/<ms>` after a while, `/hold` once it
/// is let go, `/held/…` with a file of that name then, `/hold/<n>` the first n times at once, `/flaky/<n>` with 503 for the first n times, `/big/<bytes>`, `/text`, `/to?<address>` redirects,
/// `/told/…` answers as [`FakeToolServer::tell`] said, `/token` is an OAuth token endpoint, `/guarded` wants the newest
/// token of it.
pub struct FakeToolServer {
    url: String,
    state: Arc<State>,
}

struct State {
    recorded: Mutex<Vec<ToolRequest>>,
    count: watch::Sender<usize>,
    open: watch::Sender<bool>,
    calls: Mutex<HashMap<String, u64>>,
    told: Mutex<(u16, Value)>,
    files: Mutex<HashMap<String, (String, Bytes)>>,
    tokens: Mutex<Tokens>,
}

#[derive(Default)]
struct Tokens {
    issued: u32,
    revoked: bool,
    /// Seconds that a token is said to live.
    life: u32,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct ToolRequest {
    /// Method.
    pub method: String,
    /// Path and query, as sent.
    pub path: String,
    /// Headers by their names in small letters.
    pub headers: HashMap<String, String>,
    /// Body as text.
    pub body: String,
}

impl ToolRequest {
    pub(crate) fn of(request: &HttpRequest, body: &[u8]) -> Self {
        let headers = request.headers().iter();
        let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()));
        Self {
            method: request.method().to_string(),
            path: request.uri().to_string(),
            headers: headers.collect(),
            body: String::from_utf8_lossy(body).into_owned(),
        }
    }

    /// The body as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// A header, empty when there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

impl FakeToolServer {
    /// Starts one on a port of its own.
    pub fn start() -> Self {
        let state = Arc::new(State {
            recorded: Mutex::default(),
            count: watch::Sender::new(0),
            open: watch::Sender::new(false),
            calls: Mutex::default(),
            files: Mutex::default(),
            told: Mutex::new((200, json!({}))),
            tokens: Mutex::new(Tokens { issued: 0, revoked: false, life: 3600 }),
        });
        let shared = Arc::clone(&state);
        let configure = move |service: &mut ServiceConfig| {
            service.app_data(web::Data::from(Arc::clone(&shared))).default_service(web::to(call));
        };
        let (url, _) = serve("fake tool server", configure);
        Self { url, state }
    }

    /// Address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What it was sent.
    pub fn recorded(&self) -> Vec<ToolRequest> {
        self.state.recorded.lock().expect("lock").clone()
    }

    /// The newest request.
    pub fn last(&self) -> ToolRequest {
        self.recorded().pop().expect("it was called")
    }

    /// How often a path was called.
    pub fn calls(&self, path: &str) -> usize {
        self.recorded().iter().filter(|request| request.path.starts_with(path)).count()
    }

    /// Waits until it was called so often in all.
    pub async fn called(&self, times: usize) {
        self.state.count.subscribe().wait_for(|count| *count >= times).await.expect("the server lives");
    }

    /// From now on those wait that ask at `/hold` and `/held`.
    pub fn hold(&self) {
        self.state.open.send_replace(false);
    }

    /// Lets those go that wait there.
    pub fn let_go(&self) {
        self.state.open.send_replace(true);
    }

    /// What `/told/…` answers from now on.
    pub fn tell(&self, status: u16, answer: Value) {
        *self.state.told.lock().expect("lock") = (status, answer);
    }

    /// A file under a path, with the content type that is said of it.
    pub fn serve(&self, path: &str, content_type: &str, bytes: &'static [u8]) {
        let file = (content_type.to_owned(), Bytes::from_static(bytes));
        self.state.files.lock().expect("lock").insert(path.to_owned(), file);
    }

    /// How long the tokens of `/token` live, in seconds.
    pub fn tokens_live(&self, seconds: u32) {
        self.state.tokens.lock().expect("lock").life = seconds;
    }

    /// The access tokens that were given out count no longer.
    pub fn revoke_tokens(&self) {
        self.state.tokens.lock().expect("lock").revoked = true;
    }
}

async fn call(state: web::Data<State>, request: HttpRequest, body: Bytes) -> HttpResponse {
    let recorded = ToolRequest::of(&request, &body);
    state.recorded.lock().expect("lock").push(recorded.clone());
    state.count.send_modify(|count| *count += 1);
    let path = request.path().to_owned();
    let (_, rest) = path.split_once('/').unwrap_or_default();
    let (what, argument) = rest.split_once('/').unwrap_or((rest, ""));
    let number = || argument.parse::<u64>().unwrap_or(0);
    let is_among_first = |most| {
        let mut calls = state.calls.lock().expect("lock");
        let count = calls.entry(path.clone()).or_default();
        *count += 1;
        *count <= most
    };
    if what == "held" {
        let _ = state.open.subscribe().wait_for(|open| *open).await;
    }
    if let Some((content_type, bytes)) = state.files.lock().expect("lock").get(&path).cloned() {
        return HttpResponse::Ok().content_type(content_type).body(bytes);
    }
    match what {
        "echo" => HttpResponse::Ok().json(json!({
            "method": recorded.method, "path": recorded.path, "headers": recorded.headers, "body": recorded.body,
        })),
        "status" => {
            let status = StatusCode::from_u16(argument.parse().unwrap_or(500)).unwrap_or(StatusCode::IM_A_TEAPOT);
            HttpResponse::build(status).json(json!({"status": argument}))
        }
        "slow" => {
            tokio::time::sleep(Duration::from_millis(number())).await;
            HttpResponse::Ok().json(json!({"slept": argument}))
        }
        "hold" if is_among_first(number()) => HttpResponse::Ok().json(json!({"held": false})),
        "hold" => {
            let _ = state.open.subscribe().wait_for(|open| *open).await;
            HttpResponse::Ok().json(json!({"held": true}))
        }
        "flaky" => {
            if is_among_first(number()) {
                return HttpResponse::ServiceUnavailable().json(json!({"again": true}));
            }
            HttpResponse::Ok().json(json!({"again": false}))
        }
        "big" => {
            let size = usize::try_from(number()).unwrap_or(0);
            HttpResponse::Ok().content_type("text/plain").body("x".repeat(size))
        }
        "list" => {
            let items = r#"{"a":0},"#.repeat(usize::try_from(number()).unwrap_or(0));
            HttpResponse::Ok().content_type("application/json").body(format!("[{items}0]"))
        }
        "told" => {
            let (status, answer) = &*state.told.lock().expect("lock");
            HttpResponse::build(StatusCode::from_u16(*status).expect("a status")).json(answer)
        }
        "endless" => {
            let first = stream::iter([Ok::<_, actix_web::Error>(Bytes::from_static(b"so"))]);
            HttpResponse::Ok().streaming(first.chain(stream::pending()))
        }
        "text" => HttpResponse::Ok().content_type("text/plain").body("just text"),
        "to" => HttpResponse::Found().insert_header(("location", request.query_string())).finish(),
        "token" => token(&state, &recorded),
        "guarded" => {
            let tokens = state.tokens.lock().expect("lock");
            if recorded.header("authorization") == format!("Bearer access-{}", tokens.issued) && !tokens.revoked {
                HttpResponse::Ok().json(json!({"in": true}))
            } else {
                HttpResponse::Unauthorized().json(json!({"error": "expired"}))
            }
        }
        _ => HttpResponse::NotFound().body("no such order"),
    }
}

/// RFC 6749: only the newest refresh token counts.
fn token(state: &State, request: &ToolRequest) -> HttpResponse {
    let mut tokens = state.tokens.lock().expect("lock");
    let form = || -> HashMap<String, String> {
        let pairs = request.body.split('&').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let fields: HashMap<String, String> = serde_json::from_str(&request.body).unwrap_or_else(|_| form());
    let of = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    if of("client_secret") != "client-canary" {
        return HttpResponse::Unauthorized().json(json!({"error": "invalid_client"}));
    }
    let expected = if tokens.issued == 0 { "refresh-first".to_owned() } else { format!("refresh-{}", tokens.issued) };
    if of("grant_type") == "refresh_token" && of("refresh_token") != expected {
        return HttpResponse::BadRequest().json(json!({"error": "invalid_grant"}));
    }
    tokens.issued += 1;
    tokens.revoked = false;
    let (issued, life) = (tokens.issued, tokens.life);
    HttpResponse::Ok().json(json!({
        "access_token": format!("access-{issued}"), "refresh_token": format!("refresh-{issued}"),
        "token_type": "Bearer", "expires_in": life,
    }))
}
