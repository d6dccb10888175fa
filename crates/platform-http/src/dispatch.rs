//! One request, top to bottom: route → credential → body → handler → answer.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use actix_http::ConnectionType;
use actix_web::{
    HttpRequest, HttpResponse,
    http::{
        Method, StatusCode,
        header::{self, HeaderMap, HeaderName, HeaderValue},
    },
    web::{self, Payload, ServiceConfig},
};
use futures_util::{FutureExt, future::LocalBoxFuture};
use platform_auth::Identity;
use platform_core::{Code, Error, ErrorKind, FairPermit, Id, Result, joined, sha256_hex, spawn};
use platform_db::{Db, Idempotency, Stored, in_progress};
use platform_limits::Allowance;
use tracing::{Instrument, Span, error, info, warn};

use crate::{
    access,
    answer::{Answer, Body, Replay},
    bearer::Bearer,
    body::{self, Incoming},
    code,
    connection::Control,
    cors::Cors,
    error,
    gate::Whose,
    http::Http,
    multipart::{self, Received},
    openapi::API_VERSION,
    request::{Fields, Request, is_utf8, percent_decode},
    route::{OpenTo, Route, Upload},
    table::Resource,
    trace,
    unknown::ignored,
};

/// What a page may ask of a path that does not exist, to be told so.
const ALL_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// Answers every request by the table.
pub(crate) fn mount(config: &mut ServiceConfig, http: &Arc<Http>) {
    let http = Arc::clone(http);
    config.default_service(web::to(move |request: HttpRequest, payload: Payload| {
        serve(Arc::clone(&http), request, payload)
    }));
}

/// Answers a request, whatever happens, and writes its line to the log.
async fn serve(http: Arc<Http>, request: HttpRequest, payload: Payload) -> HttpResponse {
    let mut payload = Incoming::new(payload);
    let name = http.proxied.as_ref().and_then(|hosts| Some((hosts, hosts.name(&request)?)));
    let resource = http.table.find(&percent_decode(request.path())).filter(|_| name.is_none());
    let route = resource.and_then(|resource| resource.route(request.method()));
    let path = if name.is_some() { "(sandbox)" } else { route.map_or("(none)", |route| route.path) };
    let started = Instant::now();
    let serving = request.conn_data::<Rc<Control>>().map(|control| Rc::clone(control).serve());
    let request_id = request_id(request.headers());
    let span = trace::request_span(request.method().as_str(), path, &request_id, request.headers());
    let answering = async {
        match name {
            Some((hosts, name)) => {
                let answer = unpanicked(hosts.answer(&http, name, &request, &mut payload), &request_id).await;
                (answer.unwrap_or_else(|error| refusal(&error, &request_id)), None)
            }
            None => from_table(&http, resource, &request, &mut payload, &request_id).await,
        }
    };
    let (mut response, identity) = answering.instrument(span.clone()).await;
    let id = HeaderValue::from_str(&request_id).unwrap_or(HeaderValue::from_static("-"));
    response.headers_mut().insert(HeaderName::from_static("x-request-id"), id);
    let caller = identity.as_ref().map(|identity| identity.caller.user_uid.as_str());
    if let Some(observer) = &http.observer {
        observer.answered(request.method().as_str(), path, response.status().as_u16(), started.elapsed());
    }
    let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(0);
    let status = response.status().as_u16();
    trace::answered(&span, status);
    info!(request_id, status, micros, caller, "{} {path} was answered with {status}.", request.method());
    let Some(serving) = serving else { return response };
    if !body::is_whole(&mut payload).await {
        response.head_mut().set_connection_type(ConnectionType::Close);
        serving.close().await;
    }
    serving.through(response)
}

/// An error in place of what a sandbox would answer.
fn refusal(error: &Error, request_id: &str) -> HttpResponse {
    let mut response = error::answer(error, request_id);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// What comes of it; a panic is an error of ours.
async fn unpanicked<T>(work: impl Future<Output = Result<T>>, request_id: &str) -> Result<T> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        error!(request_id, "A handler panicked.");
        Err(Error::internal("a handler panicked"))
    })
}

/// Answers a request by the table; who asked.
async fn from_table(
    http: &Arc<Http>,
    resource: Option<&Resource>,
    request: &HttpRequest,
    payload: &mut Incoming,
    request_id: &str,
) -> (HttpResponse, Option<Arc<Identity>>) {
    let route = resource.and_then(|resource| resource.route(request.method()));
    let allow = resource.filter(|_| route.is_none()).map(|resource| resource.allow.as_str());
    let is_mounted = ["/v1/", "/api/v1/"].iter().any(|mount| request.path().starts_with(mount));
    let preflight =
        request.method() == Method::OPTIONS && (allow.is_some() || is_mounted) && Cors::is_preflight(request.headers());
    let (mut response, identity, allowance) = if preflight {
        (HttpResponse::NoContent().finish(), None, None)
    } else {
        let handled = unpanicked(async { Ok(handle(http, route, request, payload, allow).await) }, request_id).await;
        let Handled { outcome, identity, allowance } = handled.unwrap_or_else(Handled::refused);
        let response = outcome.map_or_else(
            |error| {
                let mut response = error::answer(&error, request_id);
                if let Some(challenge) = challenge(http, route, request, &error, response.status()) {
                    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                }
                response
            },
            Answer::into_response,
        );
        (response, identity, allowance)
    };
    let headers = response.headers_mut();
    let mut set = |name: &'static str, value: HeaderValue| {
        headers.insert(HeaderName::from_static(name), value);
    };
    set("x-api-version", HeaderValue::from_static(API_VERSION));
    set("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Some(allowance) = allowance {
        set("ratelimit-limit", allowance.limit.into());
        set("ratelimit-remaining", allowance.remaining.into());
        set("ratelimit-reset", allowance.reset.into());
    }
    if let Some(allow) = allow.filter(|_| !preflight).and_then(|allow| HeaderValue::from_str(allow).ok()) {
        set("allow", allow);
    }
    if preflight {
        Cors::preflight(request.headers(), allow.unwrap_or(ALL_METHODS), headers);
    } else {
        http.cors.answer(request.headers(), identity.as_deref(), headers);
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    (response, identity)
}

/// What a refusal says of the credential that it wants (contract 01 §1, 12 §1; RFC 6750, 9728).
fn challenge(
    http: &Http,
    route: Option<&Route>,
    request: &HttpRequest,
    error: &Error,
    status: StatusCode,
) -> Option<HeaderValue> {
    let was_sent = request.headers().contains_key(header::AUTHORIZATION);
    let is_short = error.code() == code::INSUFFICIENT_SCOPE;
    let challenge = match route.filter(|route| route.is_resource) {
        Some(route) if status == StatusCode::UNAUTHORIZED || is_short => {
            let scope = match route.open_to {
                OpenTo::Key { scope, .. } if is_short => format!(", error=\"insufficient_scope\", scope=\"{scope}\""),
                _ if was_sent => ", error=\"invalid_token\"".to_owned(),
                _ => String::new(),
            };
            let (base, path) = (&http.config.public_url, request.path());
            format!("Bearer resource_metadata=\"{base}/.well-known/oauth-protected-resource{path}\"{scope}")
        }
        _ if status == StatusCode::UNAUTHORIZED => Route::challenge(was_sent).to_owned(),
        _ => return None,
    };
    HeaderValue::from_str(&challenge).ok()
}

/// What came of a request, who asked, and how much more may be asked.
struct Handled {
    outcome: Result<Answer>,
    identity: Option<Arc<Identity>>,
    allowance: Option<Allowance>,
}

impl Handled {
    /// Before anybody was known.
    fn refused(error: Error) -> Self {
        Self { outcome: Err(error), identity: None, allowance: None }
    }
}

async fn handle(
    http: &Arc<Http>,
    route: Option<&Route>,
    request: &HttpRequest,
    payload: &mut Incoming,
    allow: Option<&str>,
) -> Handled {
    let Some(route) = route.filter(|_| is_plain(request.path())) else {
        let error = match allow.filter(|_| is_plain(request.path())) {
            Some(allow) => {
                let message = format!("This path does not take {}; it takes {allow}.", request.method());
                Error::new(code::METHOD_NOT_ALLOWED, message)
            }
            None => {
                let message = "There is nothing at this path; see /v1/openapi.json for what there is.";
                Error::new(Code::NOT_FOUND, message).with("resource", "path")
            }
        };
        return Handled::refused(error);
    };
    let (bearer, identity) = match route.open_to {
        OpenTo::Public => (None, None),
        _ => match admit(http, request).await {
            Ok((bearer, identity)) => {
                let control = request.conn_data::<Rc<Control>>();
                control.inspect(|control| control.vouch(&http.gate, &identity.caller));
                (Some(bearer), Some(identity))
            }
            Err(error) => return Handled::refused(error),
        },
    };
    let (allowance, passes) = match &identity {
        Some(identity) => {
            let path = route.main_path(&percent_decode(request.path()));
            let permitted = access::permit(identity, route, &path, request.headers());
            // What is refused counts, too.
            let (allowance, passes) = http.gate.request(&identity.caller, route.creates).await;
            (allowance, passes.and(permitted))
        }
        None => (None, Ok(())),
    };
    if let Err(error) = passes {
        return Handled { outcome: Err(error), identity, allowance };
    }
    let answer = async {
        if let Some(is_known) = &route.is_known
            && let Err(error) = is_known(parameter(route, request.path(), "token")).await
        {
            return Err(http.gate.bad_credential(http.gate.client(request), error).await);
        }
        let whose = whose(http, identity.as_deref(), request);
        let comes_as_files = |upload: &Upload| !(upload.or_json && body::is_json_or_none(request.headers()));
        let (Received { body, fields, parts }, room) = match route.upload.filter(comes_as_files) {
            Some(Upload { most_bytes, .. }) => {
                (multipart::receive(http, most_bytes, &whose, request.headers(), payload).await?, None)
            }
            None => {
                let (body, place) = body::read(http, route, &whose, request.headers(), payload).await?;
                let (fields, memory, _place) = Fields::checked(&body, route, place).await?;
                let room = http.gate.memory(&whose, memory).await?;
                (Received { body, fields, parts: Vec::new() }, room)
            }
        };
        let query = query(request.query_string())?;
        let ignored = ignored(route, &query, &fields)?;
        let given = |(name, _): &(&'static str, _)| (*name, parameter(route, request.path(), name));
        let path: BTreeMap<_, _> = route.named.iter().map(given).collect();
        let named = route.named.iter().filter_map(|(name, kind)| Some(((*kind)?, path[name].clone()))).collect();
        let mut request = Request {
            http: Arc::clone(http),
            bearer,
            identity: identity.clone(),
            whose: whose.clone(),
            path,
            named,
            asked: percent_decode(request.path()),
            query_names: names(request.query_string()),
            query,
            headers: request.headers().clone(),
            client: http.gate.client(request),
            body,
            fields: Arc::new(fields),
            parts,
            method: request.method().clone(),
            once: None,
            first: None,
            _room: room,
            page_sizes: route.page_sizes,
        };
        request.once = once(route, &request)?;
        access::impose(&mut request, route)?;
        if let Some(precondition) = route.precondition {
            precondition(&request)?;
        }
        access::resolve_project(&mut request).await?;
        access::reach(&request, route).await?;
        let told = |error: Error| error.with_some("ignoredFields", Some(&ignored).filter(|names| !names.is_empty()));
        if route.only_reads() {
            let answer = run(route, request).await.map_err(told)?.ignoring(ignored);
            return answer.bounded(|bytes| http.gate.answer(&whose, bytes));
        }
        http.gate.expects_effect(&whose)?;
        let answer = run(route, request).await.map_err(told)?.ignoring(ignored);
        answer.bounded(|bytes| Ok(http.gate.answer_of_effect(&whose, bytes)))
    };
    Handled { outcome: answer.await, identity, allowance }
}

/// Whose the credential of a request is. One that is no good counts.
async fn admit(http: &Arc<Http>, request: &HttpRequest) -> Result<(Bearer, Arc<Identity>)> {
    let bearer = match Bearer::of(request.headers()) {
        Ok(Some(bearer)) => bearer,
        Ok(None) => {
            let message = "Send a credential: `Authorization: Bearer <API_KEY>`.";
            return Err(Error::new(platform_auth::code::UNAUTHENTICATED, message));
        }
        Err(error) => return Err(refuse(http, request, error).await),
    };
    match bearer.identity(&http.auth).await {
        Ok(identity) => Ok((bearer, identity)),
        Err(error) => Err(refuse(http, request, error).await),
    }
}

async fn refuse(http: &Http, request: &HttpRequest, error: Error) -> Error {
    if error.code().kind() == ErrorKind::Unauthenticated {
        return http.gate.bad_credential(http.client(request), error).await;
    }
    error
}

/// Runs the handler, or repeats what it answered to the same idempotency key.
async fn run(route: &Route, mut request: Request) -> Result<Answer> {
    let (http, whose) = (Arc::clone(&request.http), request.whose.clone());
    let Some(once) = request.once.clone() else {
        let goes_on = !route.only_reads() && !route.is_cancellable;
        let work = (route.handler)(request);
        return if goes_on { Uncancelled::new(work, http, whose).await } else { work.await };
    };
    let account = request.account()?.clone();
    let replay = async || match once.find(&http.db).await? {
        None => Ok(None),
        Some(Stored::Answer { status, body }) => {
            Ok(Some(Answer::raw_json(status, body).header("idempotent-replayed", "true")))
        }
        Some(Stored::Run { reference, is_same }) => {
            let replay = route.replay.as_ref().ok_or_else(|| Error::internal("this route begins no run"))?;
            match replay(account.clone(), reference).await {
                // Only successes are kept: a turn that failed leaves the key free.
                Ok(None) => once.release(&http.db).await.map(|()| None),
                Ok(Some(_)) if !is_same => Err(Idempotency::reused()),
                Err(error) if !is_same && error.is_refusal() => Err(Idempotency::reused()),
                Ok(answer) => Ok(answer.map(|answer| answer.header("idempotent-replayed", "true"))),
                Err(error) => Err(error),
            }
        }
    };
    // One at a time in this process; of several processes the first to commit is the one that counts.
    let first = http.gate.first(&once.scope);
    if let Some(answer) = replay().await? {
        return Ok(answer);
    }
    let first = Arc::new(first.ok_or_else(in_progress)?);
    if route.claims_key {
        once.claim(&http.db).await?;
    }
    if http.gate.counts_keys(&account) {
        let (db, account) = (http.db.clone(), account.clone());
        spawn("trim idempotency keys", async move {
            if let Err(error) = Idempotency::trim(&db, &account).await {
                warn!(%error, "The oldest Idempotency-Keys of an account could not be forgotten; trying again later.");
            }
        });
    }
    request.first = Some(Arc::clone(&first));
    let ending = end((route.handler)(request), (once.clone(), route.claims_key), http.db.clone(), first);
    match Uncancelled::new(ending.boxed_local(), Arc::clone(&http), whose).await {
        // Somebody with the same key was faster, and has what is wanted here.
        Err(error) if error.code().kind() == ErrorKind::Conflict => replay().await?.ok_or(error),
        answered => answered,
    }
}

/// What a request begins that has an effect. It goes on to its end although its client is gone, in a task of its own: what is
/// committed has to be told to all processes, and kept under its key.
struct Uncancelled {
    work: Option<LocalBoxFuture<'static, Result<Answer>>>,
    http: Arc<Http>,
    whose: Whose,
    span: Span,
}

impl Uncancelled {
    fn new(work: LocalBoxFuture<'static, Result<Answer>>, http: Arc<Http>, whose: Whose) -> Self {
        Self { work: Some(work), http, whose, span: Span::current() }
    }
}

impl Future for Uncancelled {
    type Output = Result<Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let answer = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(answer)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let Some(work) = self.work.take().filter(|_| !std::thread::panicking()) else { return };
        if let Some(place) = self.http.gate.unattended(&self.whose) {
            let ending = async move {
                let _place = place;
                let _ = work.await;
            };
            actix_web::rt::spawn(ending.instrument(self.span.clone()));
        }
    }
}

/// The end of what was begun under a key, whose answer is kept; until then the key is in use.
async fn end(
    handling: impl Future<Output = Result<Answer>>,
    (once, is_claimed): (Idempotency, bool),
    db: Db,
    _first: Arc<FairPermit<String>>,
) -> Result<Answer> {
    let answer = if is_claimed { once.renewed(&db, handling).await } else { handling.await };
    if is_claimed
        && !answer.as_ref().is_ok_and(|answer| (200..300).contains(&answer.status))
        && let Err(error) = once.release_claim(&db).await
    {
        warn!(%error, "An Idempotency-Key could not be freed; it is within a minute.");
    }
    let answer = answer?;
    let kept = match (&answer.replay, &answer.body) {
        (Replay::Same, Body::Json(body)) | (Replay::Other(body), _) => Some(body),
        _ => None,
    };
    if let Some(body) = kept.filter(|_| (200..300).contains(&answer.status)) {
        once.keep(&db, answer.status, body).await?;
    }
    Ok(answer)
}

/// The request's own id when it has the right form, else a new one (contract 00 §1.6).
fn request_id(headers: &HeaderMap) -> String {
    enum RequestKind {}
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let id = given.and_then(|id| Id::<RequestKind>::parse(id).ok()).unwrap_or_else(Id::generate);
    id.into()
}

/// What stands in a path for a placeholder of its route, decoded once. Both mounts end alike.
fn parameter(route: &Route, path: &str, name: &str) -> String {
    let given = route.path.rsplit('/').zip(path.rsplit('/'));
    let is_named = |segment: &str| segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) == Some(name);
    given.into_iter().find(|(segment, _)| is_named(segment)).map(|(_, given)| percent_decode(given)).unwrap_or_default()
}

/// No empty, `.` or `..` segment (but the root itself), no encoded slash or NUL, no bad percent code, nothing but UTF-8
/// (contract 00 §1.2).
fn is_plain(path: &str) -> bool {
    let good_segment = |segment: &str| {
        let lower = segment.to_ascii_lowercase();
        let decoded = lower.replace("%2e", ".");
        !segment.is_empty()
            && decoded != "."
            && decoded != ".."
            && !["%2f", "%00"].iter().any(|code| lower.contains(code))
    };
    let bytes = path.as_bytes();
    let good_code = |at: usize| {
        bytes.get(at + 1..at + 3).is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit)) || bytes[at] != b'%'
    };
    let segments = path.strip_prefix('/');
    segments.is_some_and(|segments| segments.is_empty() || segments.split('/').all(good_segment))
        && (0..bytes.len()).all(good_code)
        && is_utf8(path)
}

/// Name → value; a name given twice counts as last given.
fn query(text: &str) -> Result<BTreeMap<String, String>> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let decode = |text: &str| percent_decode(&text.replace('+', " "));
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query: BTreeMap<String, String> = pairs.map(|(name, value)| (decode(name), decode(value))).collect();
    match query.iter().find(|(name, value)| name.contains('\0') || value.contains('\0')) {
        Some((name, _)) => Err(Error::invalid(name, "format", "Text must not contain the character NUL.")),
        None => Ok(query),
    }
}

/// Names in the order they were given.
fn names(text: &str) -> Vec<String> {
    text.split('&').filter_map(|pair| Some(percent_decode(pair.split('=').next()?))).collect()
}

/// Whose a body is that is still coming: an account's, or somebody's at an address.
fn whose(http: &Http, identity: Option<&Identity>, request: &HttpRequest) -> Whose {
    let Some(Identity { caller, .. }) = identity else { return Whose::unknown(http, request) };
    let account = caller.account.as_str();
    let end_user = caller.session().map(|_| joined([account, &caller.principal()]));
    Whose { account: account.to_owned(), end_user }
}

/// The idempotency key of a POST, with all it covers.
fn once(route: &Route, request: &Request) -> Result<Option<Idempotency>> {
    let mut given = request.headers.get_all("idempotency-key");
    let Some(key) = given.next().filter(|_| route.method == Method::POST) else { return Ok(None) };
    let Some(identity) = &request.identity else { return Ok(None) };
    let key =
        key.to_str().ok().filter(|key| (1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()));
    let (Some(key), None) = (key, given.next()) else {
        return Err(Error::new(Code::BAD_REQUEST, "Send one Idempotency-Key of 1 to 255 visible ASCII characters."));
    };
    // What is only read has no effect to repeat.
    if route.only_reads() {
        return Ok(None);
    }
    let path = request.path.values().map(String::as_str);
    let (account, credential) = (identity.caller.account.as_str(), identity.caller.principal());
    let parts = [account, &credential, route.path].into_iter().chain(path).chain([key]);
    let scope = sha256_hex(joined(parts).as_bytes());
    let mut asked = request.body.to_vec();
    let query = request.query.iter().flat_map(|(name, value)| [name.as_str(), value]);
    asked.extend_from_slice(joined(query).as_bytes());
    for value in route.acts_by.unwrap_or_default().iter().filter_map(|name| request.headers.get(*name)) {
        asked.extend_from_slice(value.as_bytes());
    }
    let body_hash = sha256_hex(&asked);
    Ok(Some(Idempotency { account: identity.caller.account.clone(), scope, body_hash }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_are_routed() {
        for good in ["/v1/assistants", "/v1/assistants/a-b_c", "/v1/assistants/%C3%A4%5C%25%2B"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in [
            "/v1//assistants",
            "/v1/assistants/",
            "/v1/./x",
            "/v1/../x",
            "/v1/%2e%2E/x",
            "/v1/a%2Fb",
            "/v1/%zz",
            "/v1/%a",
        ] {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
