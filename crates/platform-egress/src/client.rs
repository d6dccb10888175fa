use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use platform_core::{AccountId, Code, Error, FairPermit, FairSemaphore, joined};
use reqwest::{
    Method,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{
        ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
        LOCATION, USER_AGENT,
    },
    multipart::{Form, Part},
    redirect::{Attempt, Policy},
};
use tokio::net::TcpStream;
use url::{Host, Url};

use crate::{EgressRules, code, judge::shown};

const CONNECT: Duration = Duration::from_secs(10);
/// Many servers close a connection that was idle for 5 s; what is sent on it at that moment is lost.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// Longest reading of an address, waiting for a place included.
const MAX_READ: Duration = Duration::from_secs(30);
const LOOKUP: Duration = Duration::from_secs(1);
const MAX_REDIRECTS: usize = 3;
/// Of an answer of which the status matters, in bytes, and for so long.
const MAX_UNREAD_BYTES: usize = 65_536;
const MAX_UNREAD_TIME: Duration = Duration::from_secs(1);
/// So many requests at once are no bound.
const UNBOUNDED: usize = 1 << 30;
/// What a request carries that is no secret, and may follow a redirect to another origin.
const HARMLESS: [HeaderName; 3] = [ACCEPT, CONTENT_TYPE, USER_AGENT];

/// Requests that are made at once: of those of an account a server gets three quarters at most, and an end user half, so
/// that one that hangs, or one who waits for it, stops no other.
#[derive(Clone)]
struct Places {
    of_accounts: FairSemaphore,
    of_servers: FairSemaphore<String>,
    of_end_users: FairSemaphore<String>,
}

impl Places {
    /// `most` in all, `share` of an account.
    fn new(most: usize, share: usize) -> Self {
        let of_account = share.min(most);
        Self {
            of_accounts: FairSemaphore::new(most, share),
            of_servers: FairSemaphore::new(0, (of_account * 3 / 4).max(1)),
            of_end_users: FairSemaphore::new(0, (of_account / 2).max(1)),
        }
    }
}

/// A place among the requests that are made at once, until it is dropped.
pub struct EgressPlace {
    _of_account: FairPermit,
    _of_server: Option<FairPermit<String>>,
    _of_end_user: Option<FairPermit<String>>,
}

/// The guarded HTTP client; cheap to clone.
#[derive(Clone)]
pub struct Egress {
    rules: Arc<EgressRules>,
    /// Requests at once; `None` = no bound.
    places: Option<Places>,
    /// For whom it asks.
    account: AccountId,
    /// Made when first needed, as it holds the trust anchors of the machine.
    plain: Arc<OnceLock<reqwest::Client>>,
    /// The same for the one that follows redirects within the origin.
    within_origin: Arc<OnceLock<reqwest::Client>>,
}

/// A request to send.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Method.
    pub method: Method,
    /// Address.
    pub url: Url,
    /// Headers; to another origin none follow but what says how to read.
    pub headers: HeaderMap,
    /// Body.
    pub body: Payload,
    /// Whether redirects are followed; else they are the answer.
    pub follows: bool,
    /// Longest time to the last byte.
    pub timeout: Duration,
}

/// The body of a request.
#[derive(Debug, Clone)]
pub enum Payload {
    /// None.
    Empty,
    /// As it is.
    Bytes(Bytes),
    /// `multipart/form-data`.
    Form(Vec<FormPart>),
}

/// A part of a form.
#[derive(Debug, Clone)]
pub struct FormPart {
    /// Field name.
    pub name: String,
    /// File name and media type, when it is a file.
    pub file: Option<(String, String)>,
    /// Content.
    pub bytes: Bytes,
}

/// What an address gave.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// HTTP status.
    pub status: u16,
    /// Media type without parameters, lower case; empty when there is none.
    pub media_type: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub bytes: Bytes,
}

/// Why an address was not read.
#[derive(Debug)]
pub enum EgressError {
    /// The rules forbid it.
    NotAllowed(String),
    /// No connection: nothing was sent.
    Unreachable(String),
    /// Its time was over.
    Timeout(String),
    /// The answer is longer than the bound.
    TooLarge(String),
    /// It answers what cannot be read.
    Failed(String),
}

impl fmt::Display for EgressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotAllowed(reason)
        | Self::Unreachable(reason)
        | Self::Timeout(reason)
        | Self::TooLarge(reason)
        | Self::Failed(reason)) = self;
        f.write_str(reason)
    }
}

impl std::error::Error for EgressError {}

impl EgressError {
    /// As the error of a request whose field `path` held the address.
    pub fn into_error(self, path: &str) -> Error {
        match self {
            Self::NotAllowed(reason) => {
                Error::new(code::URL_NOT_ALLOWED, format!("{path}: {reason}")).with("path", path)
            }
            other => Error::invalid(path, "format", format!("{path}: {other}")),
        }
    }

    /// As the error of a call that was made for somebody.
    pub fn into_upstream_error(self) -> Error {
        match self {
            Self::NotAllowed(reason) => Error::new(code::URL_NOT_ALLOWED, reason),
            Self::Timeout(reason) => Error::new(Code::UPSTREAM_TIMEOUT, reason),
            other => Error::new(Code::UPSTREAM_ERROR, other.to_string()),
        }
    }
}

impl Egress {
    /// Builds the client.
    pub fn new(rules: EgressRules) -> Result<Self, EgressError> {
        let bound = |most: usize| if most == 0 { UNBOUNDED } else { most };
        let (most, share) = (bound(rules.at_once), bound(rules.at_once_an_account));
        let places = (most.min(share) < UNBOUNDED).then(|| Places::new(most, share));
        let (rules, account) = (Arc::new(rules), AccountId::generate());
        Ok(Self { rules, places, account, plain: Arc::default(), within_origin: Arc::default() })
    }

    /// The same for requests of one account, which have their share of those that are made at once.
    #[must_use]
    pub fn of(&self, account: &AccountId) -> Self {
        Self { account: account.clone(), ..self.clone() }
    }

    /// The same for requests that others wait for who have a place already.
    #[must_use]
    pub fn unplaced(&self) -> Self {
        Self { places: None, ..self.clone() }
    }

    /// The same for answers of another length; 0 = no bound.
    #[must_use]
    pub fn reading(&self, most_bytes: usize) -> Self {
        Self { rules: Arc::new(EgressRules { most_bytes, ..(*self.rules).clone() }), ..self.clone() }
    }

    /// The same for machines of clients: inner addresses are called where they are listed one by one, if at all.
    #[must_use]
    pub fn for_machines(&self, with_listed: bool) -> Self {
        let allow = if with_listed { self.rules.allow.clone() } else { Vec::new() };
        let rules = EgressRules { allow_private: false, allow, ..(*self.rules).clone() };
        Self { rules: Arc::new(rules), places: None, ..self.clone() }
    }

    /// The addresses of a host, all of which were judged.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, EgressError> {
        let host = host.trim_end_matches('.');
        let found = tokio::time::timeout(CONNECT, tokio::net::lookup_host((host, port))).await;
        let nowhere = || EgressError::Unreachable(format!("`{host}` leads nowhere."));
        let found: Vec<SocketAddr> = found.map_err(|_| nowhere())?.map_err(|_| nowhere())?.collect();
        found.iter().try_for_each(|address| self.rules.check_address(host, address.ip()))?;
        if found.is_empty() { Err(nowhere()) } else { Ok(found) }
    }

    /// A connection to one of those addresses, for protocols that are not HTTP.
    pub async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, EgressError> {
        let addresses = self.resolve(host, port).await?;
        let unreachable = || EgressError::Unreachable(format!("`{host}:{port}` cannot be reached."));
        let connected = tokio::time::timeout(CONNECT, TcpStream::connect(addresses.as_slice())).await;
        connected.map_err(|_| unreachable())?.map_err(|_| unreachable())
    }

    /// A place among the requests that are made at once.
    async fn place(&self) -> Option<EgressPlace> {
        self.place_for(None, None).await
    }

    /// The same for whoever sends them with [`Egress::client_for`], or [`Egress::unplaced`]; `server`: what is called, and
    /// `end_user`: for whom, by names within the account.
    pub async fn place_for(&self, server: Option<&str>, end_user: Option<&str>) -> Option<EgressPlace> {
        let Places { of_accounts, of_servers, of_end_users } = self.places.as_ref()?;
        let name = |of: &str| joined([self.account.as_str(), of]);
        // Who waits for a share of theirs holds nobody else's.
        let of_end_user = match end_user {
            Some(end_user) => Some(of_end_users.acquire(&name(end_user)).await),
            None => None,
        };
        let of_server = match server {
            Some(server) => Some(of_servers.acquire(&name(server)).await),
            None => None,
        };
        let of_account = of_accounts.acquire(&self.account).await;
        Some(EgressPlace { _of_account: of_account, _of_server: of_server, _of_end_user: of_end_user })
    }

    /// Reads an address and judges it, as far as that can be done before it is called: names that lead
    /// nowhere may lead somewhere later.
    pub async fn check(&self, url: &str) -> Result<Url, EgressError> {
        let url = self.parse(url)?;
        if let Some(Host::Domain(host)) = url.host() {
            let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host, 0))).await;
            for address in found.into_iter().flatten().flatten() {
                self.rules.check_address(host.trim_end_matches('.'), address.ip())?;
            }
        }
        Ok(url)
    }

    /// Reads what stands at an address within 30 s, over at most three redirects.
    pub async fn get(&self, url: &str) -> Result<Fetched, EgressError> {
        let request = Outgoing {
            method: Method::GET,
            url: self.parse(url)?,
            headers: HeaderMap::new(),
            body: Payload::Empty,
            follows: true,
            timeout: MAX_READ,
        };
        self.send(request).await
    }

    /// Sends a request and reads the answer, over at most three redirects; waiting for a place is part of its time.
    pub async fn send(&self, request: Outgoing) -> Result<Fetched, EgressError> {
        let (timeout, shown) = (request.timeout, shown(&request.url));
        let late = || EgressError::Timeout(format!("`{shown}` does not answer in time."));
        let sent = async {
            let _place = self.place().await;
            self.follow(request).await
        };
        tokio::time::timeout(timeout, sent).await.unwrap_or_else(|_| Err(late()))
    }

    /// Sends a request that nobody redirects, and gives the status of the answer; a long answer is not read to its end.
    pub async fn send_for_status(&self, request: Outgoing) -> Result<u16, EgressError> {
        let (timeout, shown) = (request.timeout, shown(&request.url));
        let late = || EgressError::Timeout(format!("`{shown}` does not answer in time."));
        let sent = async {
            let place = self.place().await;
            self.rules.judge_url(&request.url)?;
            Ok((self.once(&request).await?, place))
        };
        let (mut response, _place) = tokio::time::timeout(timeout, sent).await.unwrap_or_else(|_| Err(late()))?;
        // A connection whose answer was read can be used again; what it says changes nothing.
        let drained = async {
            let mut read = 0;
            while read < MAX_UNREAD_BYTES
                && let Ok(Some(chunk)) = response.chunk().await
            {
                read += chunk.len();
            }
        };
        let _ = tokio::time::timeout(MAX_UNREAD_TIME, drained).await;
        Ok(response.status().as_u16())
    }

    /// A client for a protocol that sends its own requests, to this address alone: it follows redirects
    /// within the origin only.
    pub fn client_for(&self, url: &Url) -> Result<reqwest::Client, EgressError> {
        self.rules.judge_url(url)?;
        self.made(&self.within_origin, || Policy::custom(stay))
    }

    fn made(
        &self,
        place: &OnceLock<reqwest::Client>,
        redirects: impl FnOnce() -> Policy,
    ) -> Result<reqwest::Client, EgressError> {
        if let Some(client) = place.get() {
            return Ok(client.clone());
        }
        let client = build(&self.rules, redirects())?;
        Ok(place.get_or_init(|| client).clone())
    }

    /// Longest answer in bytes; 0 = no bound.
    pub fn most_bytes(&self) -> usize {
        self.rules.most_bytes
    }

    async fn follow(&self, mut request: Outgoing) -> Result<Fetched, EgressError> {
        self.rules.judge_url(&request.url)?;
        for hop in 0..=MAX_REDIRECTS {
            let response = self.once(&request).await.map_err(|error| match error {
                // The first address was reached: something was sent.
                EgressError::Unreachable(reason) if hop > 0 => EgressError::Failed(reason),
                other => other,
            })?;
            let target = response.headers().get(LOCATION).filter(|_| request.follows);
            let Some(target) = target.filter(|_| response.status().is_redirection()) else {
                return self.read(&request.url, response).await;
            };
            let target = target.to_str().ok().and_then(|target| request.url.join(target).ok());
            let target =
                target.ok_or_else(|| EgressError::Failed(format!("`{}` redirects nowhere.", shown(&request.url))))?;
            self.rules.judge_url(&target)?;
            if target.origin() != request.url.origin() {
                let headers = std::mem::take(&mut request.headers);
                request.headers.extend(
                    headers.into_iter().filter(|(name, _)| name.as_ref().is_some_and(|name| HARMLESS.contains(name))),
                );
            }
            // As browsers do (RFC 9110 §15.4): what was posted is not posted again, unless the answer says so.
            if matches!(response.status().as_u16(), 301..=303) && request.method != Method::GET {
                request.method = Method::GET;
                request.body = Payload::Empty;
                request.headers.remove(CONTENT_TYPE);
                request.headers.remove(CONTENT_LENGTH);
            }
            request.url = target;
        }
        let reason = format!("`{}` redirects more than {MAX_REDIRECTS} times.", shown(&request.url));
        Err(EgressError::NotAllowed(reason))
    }

    async fn once(&self, request: &Outgoing) -> Result<reqwest::Response, EgressError> {
        let client = self.made(&self.plain, Policy::none)?;
        let mut headers = request.headers.clone();
        // What is not said to be unwanted may come compressed (RFC 9110 §12.5.3).
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let builder = client.request(request.method.clone(), request.url.clone()).headers(headers);
        let builder = match &request.body {
            Payload::Empty => builder,
            Payload::Bytes(bytes) => builder.body(bytes.clone()),
            Payload::Form(parts) => {
                let form =
                    parts.iter().try_fold(Form::new(), |form, part| Ok(form.part(one_line(&part.name), part.build()?)));
                builder.multipart(form?)
            }
        };
        builder.send().await.map_err(|error| failed(&request.url, &error))
    }

    fn parse(&self, url: &str) -> Result<Url, EgressError> {
        let url =
            Url::parse(url).map_err(|e| EgressError::NotAllowed(format!("This is no address we can call: {e}.")))?;
        self.rules.judge_url(&url)?;
        Ok(url)
    }

    async fn read(&self, url: &Url, mut response: reqwest::Response) -> Result<Fetched, EgressError> {
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !matches!(header(CONTENT_ENCODING), "" | "identity") {
            return Err(EgressError::Failed(format!("`{}` answers compressed, unasked.", shown(url))));
        }
        let media_type = header(CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut bytes = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| failed(url, &error))? {
            if self.rules.most_bytes > 0 && bytes.len() + chunk.len() > self.rules.most_bytes {
                let most = self.rules.most_bytes;
                return Err(EgressError::TooLarge(format!("`{}` answers more than {most} bytes.", shown(url))));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Fetched { status, media_type, headers, bytes: bytes.freeze() })
    }
}

fn build(rules: &Arc<EgressRules>, redirects: Policy) -> Result<reqwest::Client, EgressError> {
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .pool_idle_timeout(MAX_IDLE)
        .redirect(redirects)
        .no_proxy()
        .dns_resolver(Judged(Arc::clone(rules)))
        .user_agent(concat!("platform/", env!("CARGO_PKG_VERSION")));
    builder.build().map_err(|e| EgressError::Failed(format!("The HTTP client cannot be built: {e}")))
}

impl FormPart {
    fn build(&self) -> Result<Part, EgressError> {
        let part = Part::stream(self.bytes.clone());
        let Some((name, media_type)) = &self.file else { return Ok(part) };
        let part = part.file_name(one_line(name)).mime_str(media_type);
        part.map_err(|_| EgressError::Failed(format!("`{media_type}` is no media type.")))
    }
}

/// A name for the header of a part, which ends at a line feed: what is no text becomes `_`.
fn one_line(name: &str) -> String {
    name.replace(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'), "_")
}

/// A value that must not be printed.
pub fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Redirects within the origin only: headers may hold secrets.
fn stay(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let from = attempt.previous().last().map(Url::origin);
    if attempt.previous().len() > MAX_REDIRECTS || from != Some(attempt.url().origin()) {
        let reason = format!("The server redirects to `{}`, which is not followed.", shown(attempt.url()));
        return attempt.error(EgressError::NotAllowed(reason));
    }
    attempt.follow()
}

impl EgressError {
    /// What a client of [`Egress::client_for`] came upon at an address, without what may be secret of it; `None` when
    /// the network was not the reason.
    pub fn behind(url: &Url, error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(Self::NotAllowed(reason)) = error.downcast_ref() {
                return Some(Self::NotAllowed(reason.clone()));
            }
            if let Some(error) = error.downcast_ref() {
                return Some(failed(url, error));
            }
            next = error.source();
        }
        None
    }
}

/// What went wrong underneath: a refusal of the judge comes back as such.
fn failed(url: &Url, error: &reqwest::Error) -> EgressError {
    if let Some(refused) = std::error::Error::source(error).and_then(|source| EgressError::behind(url, source)) {
        return refused;
    }
    let say = |what: &str| format!("`{}` {what}.", shown(url));
    if error.is_connect() {
        return EgressError::Unreachable(say("cannot be reached"));
    }
    if error.is_timeout() {
        EgressError::Timeout(say("does not answer in time"))
    } else {
        EgressError::Failed(say("broke off"))
    }
}

/// Resolves names; all addresses of a name must be allowed, and those are the ones that are dialled.
struct Judged(Arc<EgressRules>);

impl Resolve for Judged {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.0);
        Box::pin(async move {
            let host = name.as_str().trim_end_matches('.');
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            for address in &found {
                rules.check_address(host, address.ip())?;
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
