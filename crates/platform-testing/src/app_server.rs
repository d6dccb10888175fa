use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use actix_web::{
    HttpRequest, HttpResponse,
    dev::ServerHandle,
    web::{self, ServiceConfig},
};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    ToolRequest,
    server::{ClosedPort, serve, stop},
};

/// An app that accounts connect to: an OAuth server whose refresh tokens are good once, an API, and webhooks.
///
/// `/token` gives tokens for the code `good`, `/revoke` takes them; `/api/…` answers with the request to whom shows a
/// token or key that is good, else 401; `/hooks` makes subscriptions, `/hooks/<id>` ends them; `/list` is what was put
/// there by [`FakeApp::set_list`]; `/feed` likewise as text.
pub struct FakeApp {
    url: String,
    state: Arc<State>,
    handle: ServerHandle,
}

/// How the token server answers.
#[derive(Clone, Copy, Default, PartialEq)]
enum Answers {
    #[default]
    Well,
    Refusing,
    Away,
    /// It says so in an answer of 200.
    Busy,
}

#[derive(Default)]
struct Tokens {
    issued: u32,
    /// Good access tokens.
    good: Vec<String>,
    refresh: Option<String>,
    answers: Answers,
    /// Seconds that a token lives; 0 = it is not said.
    life: u32,
    /// The client shows itself in a header alone.
    basic: bool,
    /// Keys and tokens are good no longer.
    refuses: bool,
    /// The status of answers that refuse a token.
    refused_with: u16,
    /// So many times from now on nothing is revoked.
    refuses_revocations: u32,
    refuses_hooks: bool,
}

struct State {
    recorded: Mutex<Vec<ToolRequest>>,
    count: watch::Sender<usize>,
    tokens: Mutex<Tokens>,
    subscriptions: AtomicU32,
    list: Mutex<Value>,
    feed: Mutex<String>,
    /// Whoever asks for a token waits.
    holds: watch::Sender<bool>,
}

impl FakeApp {
    /// Starts one on a port of its own.
    pub fn start() -> Self {
        let state = Arc::new(State {
            recorded: Mutex::default(),
            count: watch::Sender::new(0),
            tokens: Mutex::new(Tokens { life: 3600, refused_with: 401, ..Tokens::default() }),
            subscriptions: AtomicU32::new(0),
            list: Mutex::new(json!([])),
            feed: Mutex::default(),
            holds: watch::Sender::new(false),
        });
        let shared = Arc::clone(&state);
        let (url, handle) = serve("fake app", move |config: &mut ServiceConfig| {
            config.app_data(web::Data::from(Arc::clone(&shared))).default_service(web::to(call));
        });
        Self { url, state, handle }
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Requests to a path, whatever its query.
    pub fn requests(&self, path: &str) -> Vec<ToolRequest> {
        let recorded = self.state.recorded.lock().expect("lock");
        let is_at = |request: &&ToolRequest| request.path.split('?').next() == Some(path);
        recorded.iter().filter(is_at).cloned().collect()
    }

    /// How many tokens were given out.
    pub fn issued(&self) -> u32 {
        self.state.tokens.lock().expect("lock").issued
    }

    /// Seconds that tokens live from now on.
    pub fn tokens_live(&self, seconds: u32) {
        self.state.tokens.lock().expect("lock").life = seconds;
    }

    /// Access tokens that were given out are good no longer.
    pub fn forget_tokens(&self) {
        self.state.tokens.lock().expect("lock").good.clear();
    }

    /// No token is given for any refresh token, or again.
    pub fn refuse(&self, refuses: bool) {
        self.state.tokens.lock().expect("lock").answers = if refuses { Answers::Refusing } else { Answers::Well };
    }

    /// The token server does not answer well, or again.
    pub fn be_away(&self, away: bool) {
        self.state.tokens.lock().expect("lock").answers = if away { Answers::Away } else { Answers::Well };
    }

    /// The token server says in an answer of 200 that it cannot answer now, or again.
    pub fn be_busy(&self, busy: bool) {
        self.state.tokens.lock().expect("lock").answers = if busy { Answers::Busy } else { Answers::Well };
    }

    /// Tokens that are refused are refused in an answer of 200, or no longer.
    pub fn refuse_in_ok(&self, in_ok: bool) {
        self.state.tokens.lock().expect("lock").refused_with = if in_ok { 200 } else { 401 };
    }

    /// Whoever asks for a token waits, or no longer.
    pub fn hold_tokens(&self, holds: bool) {
        self.state.holds.send_replace(holds);
    }

    /// The client is known by a header alone.
    pub fn wants_basic(&self) {
        self.state.tokens.lock().expect("lock").basic = true;
    }

    /// Keys and tokens are good no longer.
    pub fn refuse_all(&self) {
        self.state.tokens.lock().expect("lock").refuses = true;
    }

    /// Keys and tokens are good again.
    pub fn accept_all(&self) {
        self.state.tokens.lock().expect("lock").refuses = false;
    }

    /// So many times from now on `/revoke` answers 429.
    pub fn refuse_revocations(&self, times: u32) {
        self.state.tokens.lock().expect("lock").refuses_revocations = times;
    }

    /// `/hooks` makes no subscriptions, or again.
    pub fn refuse_hooks(&self, refuses: bool) {
        self.state.tokens.lock().expect("lock").refuses_hooks = refuses;
    }

    /// What `/list` answers; with `{"pages": [[…], …]}` a page at a time, by `?page=`.
    pub fn set_list(&self, list: Value) {
        *self.state.list.lock().expect("lock") = list;
    }

    /// What `/feed` answers.
    pub fn set_feed(&self, feed: &str) {
        feed.clone_into(&mut self.state.feed.lock().expect("lock"));
    }

    /// Waits until it was called so often.
    pub async fn called(&self, times: usize) {
        let _ = self.state.count.subscribe().wait_for(|count| *count >= times).await;
    }

    /// Ends it.
    #[must_use = "its port is refused as long as this is there"]
    pub async fn stop(self) -> ClosedPort {
        stop(&self.handle, &self.url).await
    }
}

async fn call(state: web::Data<State>, request: HttpRequest, body: Bytes) -> HttpResponse {
    let recorded = ToolRequest::of(&request, &body);
    state.recorded.lock().expect("lock").push(recorded.clone());
    state.count.send_modify(|count| *count += 1);
    let path = request.path().to_owned();
    match path.split('/').nth(1).unwrap_or_default() {
        "token" => {
            // As long as a real one takes.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = state.holds.subscribe().wait_for(|holds| !holds).await;
            token(&state, &recorded)
        }
        "revoke" => {
            let mut tokens = state.tokens.lock().expect("lock");
            if tokens.refuses_revocations == 0 {
                return HttpResponse::Ok().finish();
            }
            tokens.refuses_revocations -= 1;
            HttpResponse::TooManyRequests().finish()
        }
        "hooks" if state.tokens.lock().expect("lock").refuses_hooks => HttpResponse::Forbidden().finish(),
        "hooks" if recorded.method == "POST" => {
            let id = state.subscriptions.fetch_add(1, Ordering::Relaxed) + 1;
            if recorded.json()["url"].as_str().is_none() {
                return HttpResponse::UnprocessableEntity().json(json!({"message": "no url"}));
            }
            // Some have one subscription for each address.
            let is_same = recorded.json()["team"] == "same";
            HttpResponse::Created().json(json!({"id": if is_same { json!("same") } else { json!(id) }}))
        }
        "hooks" => HttpResponse::NoContent().finish(),
        "list" => HttpResponse::Ok().json(page(&state.list.lock().expect("lock"), request.query_string())),
        "feed" => HttpResponse::Ok().content_type("application/rss+xml").body(state.feed.lock().expect("lock").clone()),
        "api" => api(&state, &recorded),
        _ => HttpResponse::NotFound().finish(),
    }
}

/// What a list says; the page that is asked for where it has `pages`.
fn page(list: &Value, query: &str) -> Value {
    let Some(pages) = list["pages"].as_array() else { return list.clone() };
    let asked = query.split('&').find_map(|field| field.strip_prefix("page="));
    let page: usize = asked.map_or(0, |page| page.parse().expect("a number"));
    json!({"items": pages[page], "more": (page + 1 < pages.len()).then_some(page + 1)})
}

fn api(state: &State, request: &ToolRequest) -> HttpResponse {
    let tokens = state.tokens.lock().expect("lock");
    let shown = request.header("authorization").strip_prefix("Bearer ").unwrap_or_default();
    let has_key =
        request.header("x-key") == "good-key" || request.header("authorization") == "Basic dXNlcjpnb29kLXBhc3N3b3Jk";
    let is_good = !tokens.refuses && (has_key || tokens.good.iter().any(|good| good == shown));
    if !is_good && tokens.refused_with == 200 {
        return HttpResponse::Ok().json(json!({"ok": false, "error": "token_expired"}));
    }
    if !is_good {
        return HttpResponse::Unauthorized().json(json!({"error": "bad credentials"}));
    }
    HttpResponse::Ok().json(json!({
        "ok": true, "method": request.method, "path": request.path, "body": request.json(),
        "authorization": request.header("authorization"), "depth": request.header("x-trigger-depth"),
    }))
}

fn token(state: &State, request: &ToolRequest) -> HttpResponse {
    let mut tokens = state.tokens.lock().expect("lock");
    if tokens.answers == Answers::Away {
        return HttpResponse::ServiceUnavailable().finish();
    }
    if tokens.answers == Answers::Busy {
        return HttpResponse::Ok().json(json!({"ok": false, "error": "internal_error"}));
    }
    let decoded = |text: &str| {
        let plus = text.replace('+', " ");
        percent_encoding::percent_decode_str(&plus).decode_utf8_lossy().into_owned()
    };
    let pairs = request.body.split('&').filter_map(|pair| pair.split_once('='));
    let fields: HashMap<String, String> = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
    let of = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let is_client = if tokens.basic {
        request.header("authorization") == "Basic YXBwLWlkOmFwcC1zZWNyZXQ="
    } else {
        // One app, or `app-id-x` with `app-secret-x`.
        let which = of("client_id").strip_prefix("app-id");
        which.is_some() && which == of("client_secret").strip_prefix("app-secret")
    };
    if !is_client {
        return HttpResponse::Unauthorized().json(json!({"error": "invalid_client"}));
    }
    let is_good = match of("grant_type") {
        "authorization_code" => of("code") == "good" && of("code_verifier").len() >= 43,
        "refresh_token" => tokens.answers == Answers::Well && tokens.refresh.as_deref() == Some(of("refresh_token")),
        _ => false,
    };
    if !is_good {
        return HttpResponse::BadRequest().json(json!({"error": "invalid_grant"}));
    }
    tokens.issued += 1;
    let n = tokens.issued;
    tokens.good = vec![format!("access-{n}")];
    tokens.refresh = Some(format!("refresh-{n}"));
    let mut answer = json!({"access_token": format!("access-{n}"), "refresh_token": format!("refresh-{n}"),
        "token_type": "Bearer"});
    if tokens.life > 0 {
        answer["expires_in"] = tokens.life.into();
    }
    HttpResponse::Ok().json(answer)
}
