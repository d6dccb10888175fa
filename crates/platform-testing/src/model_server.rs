use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_web::{
    HttpRequest, HttpResponse,
    body::BodyStream,
    web::{self, ServiceConfig},
};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use crate::server::serve;

/// A model server that speaks the wire of OpenAI, Anthropic and Gemini, does what it is told,
/// records what it was sent and refuses what breaks their protocols.
pub struct FakeModelServer {
    url: String,
    state: Arc<State>,
}

struct State {
    script: Mutex<VecDeque<Script>>,
    recorded: Mutex<Vec<Recorded>>,
    calls: watch::Sender<usize>,
    open: Arc<watch::Sender<usize>>,
    /// Calls that may be answered.
    gate: Semaphore,
    embeddings: watch::Sender<Embeddings>,
}

/// What calls for vectors get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embeddings {
    /// Vectors.
    Given,
    /// This status.
    Refused(u16),
    /// Nothing, until they get something else.
    Held,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Path and query.
    pub path: String,
    /// The header that carries the credential.
    pub credential: String,
    /// JSON body.
    pub body: Value,
}

/// What one call gets.
#[derive(Debug, Clone)]
pub struct Script {
    /// HTTP status; other than 200 an error without a stream.
    pub status: u16,
    /// Body of such an error.
    pub body: Option<Value>,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<String>,
    /// Data of the events, in the wire of the path that is called.
    pub events: Vec<String>,
    /// Pause before each event.
    pub pause: Duration,
    /// How the stream ends.
    pub ending: Ending,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// In good order.
    Close,
    /// The connection breaks.
    Break,
    /// Nothing more comes.
    Hang,
    /// Never: the events come again and again.
    Never,
}

impl Script {
    /// Events, one after the other.
    pub fn events(events: &[Value]) -> Self {
        let events = events.iter().map(|event| event.as_str().map_or_else(|| event.to_string(), str::to_owned));
        Self {
            status: 200,
            body: None,
            retry_after: None,
            events: events.collect(),
            pause: Duration::ZERO,
            ending: Ending::Close,
        }
    }

    /// A refusal.
    pub fn refusal(status: u16) -> Self {
        Self { status, ..Self::events(&[]) }
    }

    /// Words in the wire of Chat Completions, with usage at the end.
    pub fn words(words: &[&str]) -> Self {
        let piece = |word: &str| json!({"choices": [{"index": 0, "delta": {"content": word}}]});
        let mut events: Vec<Value> = words.iter().map(|word| piece(word)).collect();
        events.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
        events.push(json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": words.len()}}));
        events.push(json!("[DONE]"));
        Self::events(&events)
    }

    /// A call of a tool in the wire of Chat Completions.
    pub fn tool_call(tool: &str, arguments: &Value) -> Self {
        let function = json!({"name": tool, "arguments": arguments.to_string()});
        let call = json!({"index": 0, "id": "c1", "type": "function", "function": function});
        Self::events(&[
            json!({"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]}),
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        ])
    }

    /// With a pause before each event.
    #[must_use]
    pub fn paced(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// With another ending; what says that it is over is left out.
    #[must_use]
    pub fn ending(mut self, ending: Ending, events: usize) -> Self {
        self.events.truncate(events);
        Self { ending, ..self }
    }
}

impl FakeModelServer {
    /// Starts one on a port of its own.
    pub fn start() -> Self {
        let state = Arc::new(State {
            script: Mutex::default(),
            recorded: Mutex::default(),
            calls: watch::Sender::new(0),
            open: Arc::new(watch::Sender::new(0)),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
            embeddings: watch::Sender::new(Embeddings::Given),
        });
        let shared = Arc::clone(&state);
        let configure = move |service: &mut ServiceConfig| {
            service.app_data(web::Data::from(Arc::clone(&shared))).default_service(web::to(call));
        };
        let (url, _) = serve("fake model server", configure);
        Self { url, state }
    }

    /// Address; OpenAI's base is `/v1` below it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the next calls get, in order; then `Hello from the model.` again and again.
    pub fn script(&self, scripts: impl IntoIterator<Item = Script>) {
        self.state.script.lock().expect("lock").extend(scripts);
    }

    /// From now on calls wait until they are let go.
    pub fn hold(&self) {
        self.state.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Lets so many calls go, those that wait for longest first.
    pub fn let_go(&self, calls: usize) {
        self.state.gate.add_permits(calls);
    }

    /// What calls for vectors get from now on.
    pub fn embeddings(&self, get: Embeddings) {
        self.state.embeddings.send_replace(get);
    }

    /// The texts of each call for vectors.
    pub fn embedded(&self) -> Vec<Vec<String>> {
        let texts = |body: &Value| match &body["input"] {
            Value::Array(texts) => texts.iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect(),
            _ => Vec::new(),
        };
        let recorded = self.recorded();
        recorded.iter().filter(|call| call.path.ends_with("/embeddings")).map(|call| texts(&call.body)).collect()
    }

    /// What it was sent.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.state.recorded.lock().expect("lock").clone()
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        *self.state.calls.borrow()
    }

    /// Waits until it was called so often.
    pub async fn called(&self, times: usize) {
        let mut calls = self.state.calls.subscribe();
        calls.wait_for(|calls| *calls >= times).await.expect("the server lives");
    }

    /// Waits until no stream is open any more.
    pub async fn all_closed(&self) {
        self.state.open.subscribe().wait_for(|open| *open == 0).await.expect("the server lives");
    }
}

async fn call(state: web::Data<State>, request: HttpRequest, body: Bytes) -> HttpResponse {
    if request.method() == actix_web::http::Method::GET {
        return HttpResponse::Ok().json(json!({"data": [{"id": "listed-model"}]}));
    }
    let path = request.uri().to_string();
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let credential = header("authorization")
        .or_else(|| header("x-api-key"))
        .or_else(|| header("x-goog-api-key"))
        .unwrap_or_default();
    if path.ends_with("/transcriptions") {
        return transcription(&state, path, credential, &body).await;
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let violation = violation(&path, &body);
    let input = path.ends_with("/embeddings").then(|| body["input"].clone());
    state.recorded.lock().expect("lock").push(Recorded { path: path.clone(), credential, body });
    state.calls.send_modify(|calls| *calls += 1);
    if let Some(input) = input {
        return embeddings(&state, &input).await;
    }
    if let Some(violation) = violation {
        return HttpResponse::BadRequest().json(json!({"error": {"message": violation}}));
    }
    state.gate.acquire().await.expect("it is never closed").forget();
    let script = state.script.lock().expect("lock").pop_front().unwrap_or_else(|| default(&path));
    if script.status != 200 {
        let status = actix_web::http::StatusCode::from_u16(script.status).expect("a status");
        let mut response = HttpResponse::build(status);
        if let Some(retry_after) = script.retry_after {
            response.insert_header(("retry-after", retry_after));
        }
        return response.json(script.body.unwrap_or_else(|| json!({"error": {"message": "scripted"}})));
    }
    let open = Open::new(&state.open);
    let events = futures_util::stream::unfold((script, 0, open), |(script, at, open)| async move {
        let at = if script.ending == Ending::Never { at % script.events.len() } else { at };
        if let Some(event) = script.events.get(at) {
            if !script.pause.is_zero() {
                tokio::time::sleep(script.pause).await;
            }
            let frame = Bytes::from(format!("data: {event}\n\n"));
            return Some((Ok(frame), (script, at + 1, open)));
        }
        match script.ending {
            Ending::Close | Ending::Never => None,
            Ending::Hang => std::future::pending().await,
            Ending::Break if at > script.events.len() => None,
            Ending::Break => {
                tokio::time::sleep(script.pause).await; // what was said is on its way by then
                let broken = std::io::Error::other("scripted");
                Some((Err(broken), (script, at + 1, open)))
            }
        }
    });
    HttpResponse::Ok().content_type("text/event-stream").body(BodyStream::new(events))
}

/// The file of a form: its name, type and SHA-256; `None` where there is none.
fn file_of(body: &[u8]) -> Option<Value> {
    let find =
        |what: &[u8], from: usize| body[from..].windows(what.len()).position(|at| at == what).map(|at| from + at);
    let head = find(b"name=\"file\"; filename=\"", 0)?;
    let begins = find(b"\r\n\r\n", head)? + 4;
    let boundary = body.split(|byte| *byte == b'\r').next()?;
    let ends = find(&[b"\r\n", boundary].concat(), begins)?;
    let head = String::from_utf8_lossy(&body[head..begins]).into_owned();
    let name = head.split('"').nth(3)?;
    let media_type = head.to_ascii_lowercase().split_once("content-type: ")?.1.split("\r\n").next()?.to_owned();
    let bytes = &body[begins..ends];
    (!bytes.is_empty()).then(|| json!({"name": name, "type": media_type, "sha256": platform_core::sha256_hex(bytes)}))
}

/// What is said in a recording: nothing, when its name says so.
async fn transcription(state: &State, path: String, credential: String, body: &[u8]) -> HttpResponse {
    let Some(file) = file_of(body) else {
        return HttpResponse::BadRequest().json(json!({"error": {"message": "the form has no file"}}));
    };
    let text = String::from_utf8_lossy(body);
    let fields = ["model", "response_format", "language"].iter().filter_map(|name| {
        let begins = format!("name=\"{name}\"\r\n\r\n");
        let value = text.split_once(&begins)?.1.split("\r\n").next()?;
        Some(((*name).to_owned(), Value::from(value)))
    });
    let mut fields: serde_json::Map<String, Value> = fields.collect();
    fields.insert("file".to_owned(), file);
    state.recorded.lock().expect("lock").push(Recorded { path, credential, body: fields.into() });
    state.calls.send_modify(|calls| *calls += 1);
    state.gate.acquire().await.expect("it is never closed").forget();
    let script = state.script.lock().expect("lock").pop_front();
    match script {
        Some(script) if script.status != 200 => {
            let status = actix_web::http::StatusCode::from_u16(script.status).expect("a status");
            HttpResponse::build(status).json(json!({"error": {"message": "scripted"}}))
        }
        // An empty answer hears nothing.
        Some(_) => HttpResponse::Ok().json(json!({"text": " ", "language": "english", "duration": 1.0})),
        None => HttpResponse::Ok().json(json!({"text": " Hello there.", "language": "english", "duration": 1.5,
            "segments": [{"id": 0, "start": 0.0, "end": 0.7, "text": " Hello"},
                {"id": 1, "start": 0.7, "end": 1.5, "text": " there."}]})),
    }
}

/// Vectors in which each word has a direction, and words that mean the same have one.
async fn embeddings(state: &State, input: &Value) -> HttpResponse {
    let mut get = state.embeddings.subscribe();
    let get = *get.wait_for(|get| *get != Embeddings::Held).await.expect("the server lives");
    if let Embeddings::Refused(status) = get {
        let status = actix_web::http::StatusCode::from_u16(status).expect("a status");
        return HttpResponse::build(status).json(json!({"error": {"message": "told to refuse"}}));
    }
    let texts: Vec<&str> = input.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let data = texts.iter().enumerate().map(|(index, text)| json!({"index": index, "embedding": meaning(text)}));
    let tokens: usize = texts.iter().map(|text| text.split_whitespace().count()).sum();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    HttpResponse::Ok().json(json!({"data": data.collect::<Vec<_>>(), "usage": usage}))
}

/// The vector of a text.
fn meaning(text: &str) -> Vec<f32> {
    const DIMENSIONS: usize = 64;
    let mut vector = vec![0.0; DIMENSIONS];
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 3) {
        let word = match word.to_lowercase().as_str() {
            "vacation" => "holidays".to_owned(),
            other => other.to_owned(),
        };
        let place = word.bytes().fold(7_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
        vector[place % DIMENSIONS] += 1.0;
    }
    vector
}

/// Counts a stream while it is open.
struct Open(Arc<watch::Sender<usize>>);

impl Open {
    fn new(open: &Arc<watch::Sender<usize>>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(Arc::clone(open))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

fn default(path: &str) -> Script {
    let text = "Hello from the model.";
    if path.ends_with("/chat/completions") {
        Script::words(&["Hello ", "from ", "the ", "model."])
    } else if path.ends_with("/messages") {
        Script::events(&[
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 7}}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}}),
            json!({"type": "message_stop"}),
        ])
    } else {
        Script::events(&[json!({
            "candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 4},
        })])
    }
}

/// What the real server would refuse.
fn violation(path: &str, body: &Value) -> Option<&'static str> {
    let list =
        if path.contains("generateContent") || path.contains("GenerateContent") { "contents" } else { "messages" };
    let messages = body[list].as_array().filter(|messages| !messages.is_empty());
    let Some(messages) = messages else { return Some("no messages") };
    if list == "messages" && !body["model"].is_string() {
        return Some("no model");
    }
    if path.ends_with("/v1/messages") && !body["max_tokens"].is_u64() {
        return Some("no max_tokens");
    }
    if !path.ends_with("/chat/completions") {
        let roles: Vec<&str> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
        if roles.first() != Some(&"user") || roles.windows(2).any(|pair| pair[0] == pair[1]) {
            return Some("roles must alternate and begin with user");
        }
        return None;
    }
    let mut asked: Vec<&str> = Vec::new();
    for message in messages {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            asked.extend(call["id"].as_str());
        }
        if let Some(answered) = message["tool_call_id"].as_str() {
            let Some(at) = asked.iter().position(|id| *id == answered) else { return Some("a result without a call") };
            asked.remove(at);
        }
    }
    (!asked.is_empty()).then_some("a call without a result")
}
