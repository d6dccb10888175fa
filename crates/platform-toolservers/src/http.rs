//! Calls of tools over HTTP (contract 04 §4).

use std::{sync::Arc, time::Duration};

use platform_core::{AccountId, Error, FairMemory, FairPermit, Id, Object, memory_of, run_blocking};
use platform_egress::{
    Egress, EgressError, EgressPlace, Fetched, Method, Outgoing, Payload, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use platform_vault::{Redactor, Secret};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    calling::Calling,
    definition::{HttpMethod, REFUSED_HEADERS, ToolDefinition},
    failure::Failure,
    request, script,
    server::{Credentials, Server, UpstreamCredentials},
};

/// A longer answer takes long enough to read that others would wait for it, in bytes.
const SHORT: usize = 65_536;
/// Waits before a call is made again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// Whether somebody may be answered at all: what they were answered before may not be read yet.
pub type HasRoom = dyn Fn() -> platform_core::Result<()> + Send + Sync;

/// For whom a call is made.
#[derive(Clone, Copy, Default)]
pub(crate) struct ForWhom<'a> {
    /// A name of the end user within the account.
    pub end_user: Option<&'a str>,
    /// Asked once the call has its place.
    pub has_room: Option<&'a HasRoom>,
}

impl ForWhom<'_> {
    /// A place for a call of a server, unless whoever makes it has no room for what it answers.
    pub async fn place(self, egress: &Egress, server: &str) -> Result<Option<EgressPlace>, Failure> {
        let place = egress.place_for(Some(server), self.end_user).await;
        self.has_room
            .map_or(Ok(()), |has_room| has_room())
            .map_err(|error| Failure::new(error.code().as_str(), error.message()))?;
        Ok(place)
    }
}

/// What a call needs beside its tool and arguments.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// The idempotency key.
    pub id: &'a str,
    /// Where a result may come that is not given at once.
    pub callback: Option<&'a str>,
    /// How many triggers led to it, signed (contract 09 §3).
    pub depth: Option<&'a str>,
    /// Longest wait.
    pub timeout: Duration,
    /// With whose rights.
    pub with: &'a UpstreamCredentials,
    /// For whom.
    pub who: ForWhom<'a>,
}

/// What came of a call, and as far as it got.
pub(crate) struct Called {
    pub url: String,
    pub method: String,
    pub status: Option<u16>,
    pub result: Result<Value, Failure>,
}

impl Calling {
    /// Calls a tool with arguments that fit its parameters.
    pub async fn call_http(
        &self,
        server: &Arc<Server>,
        tool: &ToolDefinition,
        call: Call<'_>,
        arguments: &Object,
    ) -> Called {
        let timeout = call.timeout;
        let method = tool.method.as_str().to_owned();
        let mut called = Called { url: String::new(), method, status: None, result: Ok(Value::Null) };
        let Some(base) = server.settings.address() else {
            called.result = Err(Failure::new("URL_NOT_ALLOWED", "The server has no address that can be read."));
            return called;
        };
        called.url = base.to_string();
        let until = Instant::now() + timeout;
        let made = async {
            let url = request::address(&base, tool, arguments)?;
            called.url = url.to_string();
            self.send(server, tool, call, arguments, url, until, &mut called.status).await
        };
        called.result = match timeout_at(until, made).await {
            Ok(result) => result,
            Err(_) => {
                Err(Failure::new("UPSTREAM_TIMEOUT", format!("The call takes more than {} ms.", timeout.as_millis())))
            }
        };
        called
    }

    #[expect(clippy::too_many_arguments, reason = "one call, told whole")]
    async fn send(
        &self,
        server: &Arc<Server>,
        tool: &ToolDefinition,
        call: Call<'_>,
        arguments: &Object,
        url: Url,
        until: Instant,
        status: &mut Option<u16>,
    ) -> Result<Value, Failure> {
        let (body, media_type) = request::body(self, &server.account, tool, arguments).await?;
        let mut credentials = self.credentials(server, tool, call.with, None).await?;
        let mut outgoing = Outgoing {
            method: Method::from_bytes(tool.method.as_str().as_bytes()).unwrap_or_default(),
            url: credentials.address(&url),
            headers: headers(&credentials, call, media_type),
            body,
            follows: true,
            timeout: until - Instant::now(),
        };
        let (mut answer, mut place) = self.http.send_again(server, tool, call.who, &outgoing).await?;
        // A token that is refused before its time: another one, once.
        let is_refused = match &answer {
            Ok(answer) if credentials.token.is_some() => self.refuses(server, call.with, answer).await,
            _ => false,
        };
        if let Some(stale) = credentials.token.take().filter(|_| is_refused) {
            drop(place.take());
            credentials = self.credentials(server, tool, call.with, Some(&stale)).await?;
            outgoing.url = credentials.address(&url);
            outgoing.headers = headers(&credentials, call, media_type);
            let who = ForWhom { has_room: None, ..call.who };
            (answer, place) = self.http.send_again(server, tool, who, &outgoing).await?;
            credentials.secrets.push(stale);
        }
        if let (Some(connection), Ok(answer)) = (server.connection(call.with), &answer) {
            self.connections.answered(&server.account, connection, answer.status, &answer.bytes).await;
        }
        let redactor = Redactor::new(credentials.secrets.iter().map(Secret::expose));
        let answer = answer.map_err(|error| {
            let failure = Failure::from(error);
            Failure { message: failure.message.as_deref().map(|message| redactor.text(message)), ..failure }
        })?;
        *status = Some(answer.status);
        let (mut value, _room) = self.http.read(&server.account, redactor, &answer).await?;
        if tool.response_post_processing_enabled {
            let of_answer = [("body".to_owned(), value), ("status".to_owned(), answer.status.into())];
            let response = Value::Object(of_answer.into_iter().collect());
            let template = &tool.response_post_processing_template;
            let processed = script::evaluate(&self.children, &server.account, template, "response", &response).await;
            drop(response);
            value = processed.map_err(|reason| {
                Failure::new("TEMPLATE_ERROR", format!("responsePostProcessingTemplate: {reason}."))
            })?;
        }
        drop(place);
        if (200..300).contains(&answer.status) { Ok(value) } else { Err(Failure::status(answer.status, value)) }
    }

    async fn refuses(&self, server: &Server, with: &UpstreamCredentials, answer: &Fetched) -> bool {
        match server.connection(with) {
            Some(of) => self.connections.refuses(&server.account, of, answer.status, &answer.bytes).await,
            None => answer.status == 401,
        }
    }

    async fn credentials(
        &self,
        server: &Arc<Server>,
        tool: &ToolDefinition,
        with: &UpstreamCredentials,
        refused: Option<&Secret>,
    ) -> Result<Credentials, Failure> {
        server.credentials(with, &self.tokens, &*self.connections, refused).await?.for_tool(tool)
    }
}

/// An answer, and the place that its call has until it is used.
type Sent = (Result<Fetched, EgressError>, Option<EgressPlace>);

/// What stands for the server of requests that a model describes itself.
const ANYWHERE: &str = "builtin-http";

/// What answers take while they are read and used, in all and of one account.
const ANSWERS: (usize, usize) = (128 << 20, 64 << 20);

/// HTTP for calls: each has a place until its answer was used, and room for what that takes.
pub(crate) struct ToolHttp {
    pub egress: Egress,
    memory: FairMemory,
}

impl ToolHttp {
    pub fn new(egress: Egress) -> Self {
        Self { egress, memory: FairMemory::new(ANSWERS.0, ANSWERS.1) }
    }

    /// Sends, and again where that cannot do harm; with the place that the call has until its answer is read.
    async fn send_again(
        &self,
        server: &Server,
        tool: &ToolDefinition,
        who: ForWhom<'_>,
        outgoing: &Outgoing,
    ) -> Result<Sent, Failure> {
        let (mut waits, mut who) = (RETRY_DELAYS.into_iter(), who);
        loop {
            let (answer, place) = self.send((&server.account, &server.id), who, outgoing.clone()).await?;
            // What was sent once is answered.
            who.has_room = None;
            let again = match &answer {
                Err(EgressError::Unreachable(_)) => true,
                Ok(Fetched { status: 502..=504, .. }) => tool.is_repeatable(),
                _ => false,
            };
            let Some(wait) = waits.next().filter(|_| again) else { return Ok((answer, place)) };
            drop(place);
            sleep(wait).await;
        }
    }

    /// Sends to a server of an account.
    async fn send(
        &self,
        (account, server): (&AccountId, &str),
        who: ForWhom<'_>,
        outgoing: Outgoing,
    ) -> Result<Sent, Failure> {
        let place = who.place(&self.egress.of(account), server).await?;
        Ok((self.egress.unplaced().send(outgoing).await, place))
    }

    /// The answer as a value without secrets; a long one beside the threads that serve others, when its account has
    /// room for it.
    async fn read(
        &self,
        account: &AccountId,
        redactor: Redactor,
        answer: &Fetched,
    ) -> Result<(Value, Option<FairPermit>), Failure> {
        let (media_type, bytes) = (answer.media_type.clone(), answer.bytes.clone());
        if bytes.len() < SHORT {
            return Ok((redactor.value(request::read(&media_type, &bytes)), None));
        }
        let lost = |error: Error| Failure::new("UPSTREAM_ERROR", error.message());
        let measured = bytes.clone();
        let memory = run_blocking(move || Ok(measured.len() + memory_of(&measured))).await.map_err(lost)?;
        let room = self.memory.hold(account, memory).await;
        run_blocking(move || Ok((redactor.value(request::read(&media_type, &bytes)), room))).await.map_err(lost)
    }

    /// A request that a model describes itself (built-in group `builtin-http`).
    pub async fn free_request(&self, account: &AccountId, call: Call<'_>, arguments: &Object) -> Called {
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        let (url, method) =
            (text("url").unwrap_or_default().to_owned(), text("method").unwrap_or("GET").to_uppercase());
        let mut status = None;
        let sent = self.send_free(account, call, (&method, &url), arguments, &mut status);
        let late = |_| {
            Err(Failure::new("UPSTREAM_TIMEOUT", format!("The call takes more than {} ms.", call.timeout.as_millis())))
        };
        let result = tokio::time::timeout(call.timeout, sent).await.unwrap_or_else(late);
        Called { url, method, status, result }
    }

    async fn send_free(
        &self,
        account: &AccountId,
        call: Call<'_>,
        (method, url): (&str, &str),
        arguments: &Object,
        status: &mut Option<u16>,
    ) -> Result<Value, Failure> {
        let method = [HttpMethod::Get, HttpMethod::Post, HttpMethod::Put, HttpMethod::Patch, HttpMethod::Delete]
            .into_iter()
            .find(|known| known.as_str() == method)
            .ok_or_else(|| Failure::arguments(vec![format!("`{method}` is no method that can be used.")]))?;
        let url = Url::parse(url)
            .map_err(|error| Failure::new("URL_NOT_ALLOWED", format!("This is no address we can call: {error}.")))?;
        let mut headers = HeaderMap::new();
        let given = arguments.get("headers").and_then(Value::as_object);
        for (name, value) in given.into_iter().flatten() {
            if REFUSED_HEADERS.iter().any(|refused| name.eq_ignore_ascii_case(refused)) {
                return Err(Failure::arguments(vec![format!("The header {name} cannot be set.")]));
            }
            let name = HeaderName::from_bytes(name.as_bytes()).ok();
            let value = HeaderValue::from_str(value.as_str().unwrap_or(&value.to_string())).ok();
            let header =
                name.zip(value).ok_or_else(|| Failure::arguments(vec!["A header cannot be sent.".to_owned()]))?;
            headers.insert(header.0, header.1);
        }
        let request_id = Id::<RequestKind>::generate();
        let own = [("x-request-id", Some(request_id.as_str())), ("idempotency-key", Some(call.id))];
        for (name, value) in own.into_iter().chain([("x-trigger-depth", call.depth)]) {
            let value = value.and_then(|value| HeaderValue::from_str(value).ok());
            headers.extend(value.map(|value| (HeaderName::from_static(name), value)));
        }
        let body = match arguments.get("body").filter(|body| !body.is_null() && method != HttpMethod::Get) {
            None => Payload::Empty,
            Some(Value::String(text)) => Payload::Bytes(text.clone().into()),
            Some(value) => {
                headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
                Payload::Bytes(value.to_string().into())
            }
        };
        let method = Method::from_bytes(method.as_str().as_bytes()).unwrap_or_default();
        let outgoing = Outgoing { method, url, headers, body, follows: true, timeout: call.timeout };
        let (answer, _place) = self.send((account, ANYWHERE), call.who, outgoing).await?;
        let answer = answer?;
        *status = Some(answer.status);
        let (value, _room) = self.read(account, Redactor::new([]), &answer).await?;
        if (200..300).contains(&answer.status) {
            return Ok(json!({"status": answer.status, "body": value}));
        }
        Err(Failure::status(answer.status, value))
    }
}

enum RequestKind {}

fn headers(credentials: &Credentials, call: Call<'_>, media_type: Option<&'static str>) -> HeaderMap {
    let request_id = Id::<RequestKind>::generate();
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*;q=0.8"));
    headers.extend(media_type.map(|media_type| (CONTENT_TYPE, HeaderValue::from_static(media_type))));
    let callback = call.callback.map(|url| ("x-callback-url", url)).into_iter();
    let callback = callback.chain(call.depth.map(|depth| ("x-trigger-depth", depth)));
    let own = [("x-request-id", request_id.as_str()), ("idempotency-key", call.id)];
    for (name, value) in own.into_iter().chain(callback) {
        headers.extend(HeaderValue::from_str(value).ok().map(|value| (HeaderName::from_static(name), value)));
    }
    for (name, value) in &credentials.headers {
        headers.insert(name, value.clone());
    }
    headers
}
