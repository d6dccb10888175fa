use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use platform_core::{Code, Error};
use reqwest::{
    dns::{Addrs, Name, Resolve, Resolving},
    header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION},
    redirect::Policy,
};
use url::Url;

use crate::{EgressRules, judge::shown};

const CONNECT: Duration = Duration::from_secs(10);
const MOST_REDIRECTS: usize = 3;

/// The guarded HTTP client; cheap to clone.
#[derive(Clone)]
pub struct Egress {
    rules: Arc<EgressRules>,
    client: reqwest::Client,
}

/// What an address gave.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// HTTP status.
    pub status: u16,
    /// Media type without parameters, lower case; empty when there is none.
    pub media_type: String,
    /// The body as it came.
    pub bytes: Bytes,
}

/// Why an address was not read.
#[derive(Debug)]
pub enum EgressError {
    /// The rules forbid it.
    NotAllowed(String),
    /// It cannot be reached, or answers what cannot be read.
    Failed(String),
}

impl fmt::Display for EgressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NotAllowed(reason) | Self::Failed(reason)) = self;
        f.write_str(reason)
    }
}

impl std::error::Error for EgressError {}

impl EgressError {
    /// As the error of a request whose field `path` held the address.
    pub fn into_error(self, path: &str) -> Error {
        match self {
            Self::NotAllowed(reason) => Error::new(Code::UrlNotAllowed, format!("{path}: {reason}")).with("path", path),
            Self::Failed(reason) => Error::invalid(path, "format", format!("{path}: {reason}")),
        }
    }
}

impl Egress {
    /// Builds the client.
    pub fn new(rules: EgressRules) -> Result<Self, EgressError> {
        let rules = Arc::new(rules);
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .redirect(Policy::none())
            .no_proxy()
            .dns_resolver(Judged(Arc::clone(&rules)))
            .user_agent(concat!("platform/", env!("CARGO_PKG_VERSION")));
        let client =
            builder.build().map_err(|e| EgressError::Failed(format!("The HTTP client cannot be built: {e}")))?;
        Ok(Self { rules, client })
    }

    /// Reads what stands at an address, over at most three redirects.
    pub async fn get(&self, url: &str) -> Result<Fetched, EgressError> {
        let mut url = self.parse(url)?;
        for _ in 0..=MOST_REDIRECTS {
            let response = self.client.get(url.clone()).send().await.map_err(|error| failed(&url, &error))?;
            let target = response.headers().get(LOCATION).filter(|_| response.status().is_redirection());
            let Some(target) = target else { return self.read(&url, response).await };
            let target = target.to_str().ok().and_then(|target| url.join(target).ok());
            let target = target.ok_or_else(|| EgressError::Failed(format!("`{}` redirects nowhere.", shown(&url))))?;
            self.rules.judge_url(&target)?;
            url = target;
        }
        Err(EgressError::Failed(format!("`{}` redirects more than {MOST_REDIRECTS} times.", shown(&url))))
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
        let status = response.status().as_u16();
        let mut bytes = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| failed(url, &error))? {
            if self.rules.most_bytes > 0 && bytes.len() + chunk.len() > self.rules.most_bytes {
                let most = self.rules.most_bytes;
                return Err(EgressError::Failed(format!("`{}` answers more than {most} bytes.", shown(url))));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Fetched { status, media_type, bytes: bytes.freeze() })
    }
}

/// What went wrong underneath: a refusal of the judge comes back as such.
fn failed(url: &Url, error: &reqwest::Error) -> EgressError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(EgressError::NotAllowed(reason)) = cause.downcast_ref() {
            return EgressError::NotAllowed(reason.clone());
        }
        source = cause.source();
    }
    let what = if error.is_timeout() { "does not answer in time" } else { "cannot be reached" };
    EgressError::Failed(format!("`{}` {what}.", shown(url)))
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
                rules.judge(host, address.ip())?;
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
