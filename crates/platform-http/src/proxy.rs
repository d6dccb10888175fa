//! Hosts below a domain: what is asked of them is for programs that accounts run, and not for the table.

use std::sync::Arc;

use actix_web::{
    HttpRequest, HttpResponse,
    body::{BodyStream, SizedStream},
    http::{Method, StatusCode, header as old},
};
use bytes::Bytes;
use futures_util::{
    future::BoxFuture,
    stream::{BoxStream, empty},
};
use http::{HeaderName, HeaderValue, Request, Response, header};
use platform_core::{Code, Error, Result};

use crate::{
    body::{self, Incoming},
    gate::Whose,
    http::Http,
};

/// An answer whose body comes as it is said.
pub type ProxiedAnswer = Response<BoxStream<'static, std::io::Result<Bytes>>>;

/// Hands requests on to programs that accounts run.
pub trait ReverseProxy: Send + Sync {
    /// Hands one on to whatever is called `name`; `network`: whence it comes, for a share of what is under way.
    fn forward(self: Arc<Self>, name: String, network: String, request: Request<Bytes>) -> Forwarding;
}

/// A request that was handed on.
pub type Forwarding = BoxFuture<'static, Result<ProxiedAnswer>>;

/// The hosts below a domain, and what answers there.
pub struct ProxiedHosts {
    /// The domain, in lower case.
    pub domain: String,
    /// What answers.
    pub proxy: Arc<dyn ReverseProxy>,
}

impl ProxiedHosts {
    /// What stands before the domain in the host of a request; `None` = it is for the table.
    pub(crate) fn name(&self, request: &HttpRequest) -> Option<String> {
        let host = request.uri().host().or_else(|| request.headers().get(old::HOST)?.to_str().ok())?;
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_end_matches('.').to_ascii_lowercase();
        Some(host.strip_suffix(&self.domain)?.strip_suffix('.')?.to_owned())
    }

    /// Hands a request on, and its answer back.
    pub(crate) async fn answer(
        &self,
        http: &Http,
        name: String,
        request: &HttpRequest,
        payload: &mut Incoming,
    ) -> Result<HttpResponse> {
        let whose = Whose::unknown(http, request);
        let limit = http.config.max_json_bytes;
        let (body, _place) = body::whole(http, Some(limit), &whose, request.headers(), payload).await?;
        let _room = http.gate.memory(&whose, body.len()).await?;
        let forwarded = forwarded(http, request, body)?;
        let answer = Arc::clone(&self.proxy).forward(name, whose.account, forwarded).await?;
        Ok(response(answer, request.method()))
    }
}

/// A request as the program gets it, with who asked (`X-Forwarded-…`).
fn forwarded(http: &Http, request: &HttpRequest, body: Bytes) -> Result<Request<Bytes>> {
    let wrong = || Error::new(Code::BAD_REQUEST, "This is no request that can be handed on.");
    if *request.method() == Method::CONNECT {
        return Err(wrong());
    }
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let mut forwarded = Request::builder().method(request.method().as_str()).uri(target);
    for (name, value) in request.headers() {
        // How long it is and who sent it is said anew.
        if *name != old::CONTENT_LENGTH && !name.as_str().starts_with("x-forwarded-") {
            forwarded = forwarded.header(name.as_str(), value.as_bytes());
        }
    }
    let mut forwarded = forwarded.body(body).map_err(|_| wrong())?;
    let headers = forwarded.headers_mut();
    let scheme = http.config.public_url.split(':').next().unwrap_or_default();
    let client = http.client(request).map(|client| client.to_string());
    let said = [("x-forwarded-proto", scheme), ("x-forwarded-for", client.as_deref().unwrap_or_default())];
    for (name, value) in said {
        let value = HeaderValue::from_str(value).unwrap_or(HeaderValue::from_static(""));
        headers.insert(HeaderName::from_static(name), value);
    }
    // A target with a host counts more than the header (RFC 9112 §3.2.2).
    if let Some(authority) = request.uri().authority().and_then(|of| HeaderValue::from_str(of.as_str()).ok()) {
        headers.insert(header::HOST, authority);
    }
    if let Some(host) = headers.get(header::HOST).cloned() {
        headers.insert(HeaderName::from_static("x-forwarded-host"), host);
    }
    Ok(forwarded)
}

fn response(answer: ProxiedAnswer, method: &Method) -> HttpResponse {
    let (head, body) = answer.into_parts();
    let status = StatusCode::from_u16(head.status.as_u16()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = HttpResponse::build(status);
    for (name, value) in head.headers.iter().filter(|(name, _)| **name != header::CONTENT_LENGTH) {
        response.append_header((name.as_str(), value.as_bytes()));
    }
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return response.finish();
    }
    match length {
        Some(length) if *method == Method::HEAD => {
            response.body(SizedStream::new(length, empty::<std::io::Result<_>>()))
        }
        Some(length) => response.body(SizedStream::new(length, body)),
        None => response.body(BodyStream::new(body)),
    }
}
