//! `/v1/docs`, `/v1/openapi.json`, and the reference page at `/docs`

use std::sync::Arc;

use platform_access::Kind;
use platform_core::{Code, Error, ErrorKind, Result};
use platform_docs::Docs;
use platform_http::{Answer, Group, OpenTo, Request, key};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::module::Module;

const NOT_ACCEPTABLE: Code = Code::new("NOT_ACCEPTABLE", ErrorKind::NotAcceptable);
/// Pages of the documentation, and files of the reference page.
const FILE: Kind = Kind::of_account("page of the documentation");

const HTML: &str = "text/html; charset=utf-8";
/// Only what this server sends itself may run on the reference page.
const REFERENCE_CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'";

/// The documentation.
pub(crate) fn module(docs: Docs) -> Module {
    Module { groups: vec![group(Arc::new(docs))], ..Module::default() }
}

fn group(docs: Arc<Docs>) -> Group {
    let mut group =
        Group::of("docs", "Documentation, and this document", docs).naming("file", FILE).naming("filename", FILE);
    group.get("/docs", OpenTo::Public, reference);
    group.get("/docs/{file}", OpenTo::Public, asset);
    group.get("/v1/docs", key("docs:read"), list).with(spec::list);
    group.get("/v1/docs/{filename}", key("docs:read"), get).with(spec::get);
    group.get("/v1/openapi.json", OpenTo::Public, openapi).with(spec::openapi);
    group.build()
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct FormatQuery {
    /// `html` (default) or `markdown`.
    format: Option<String>,
}

async fn openapi(_: Arc<Docs>, request: Request) -> Result<Answer> {
    Ok(Answer::raw_json(200, request.document()?.to_owned()))
}

async fn reference(_: Arc<Docs>, _: Request) -> Result<Answer> {
    let page = include_str!("../../assets/reference.html").to_owned();
    Ok(Answer::text(200, HTML, page).header("content-security-policy", REFERENCE_CSP))
}

async fn asset(_: Arc<Docs>, request: Request) -> Result<Answer> {
    let (kind, bytes): (_, &'static [u8]) = match request.path("file") {
        "reference.js" => ("text/javascript; charset=utf-8", include_bytes!("../../assets/reference.js")),
        "swagger-ui.js" => ("text/javascript; charset=utf-8", include_bytes!("../../assets/swagger-ui.js")),
        "swagger-ui.css" => ("text/css; charset=utf-8", include_bytes!("../../assets/swagger-ui.css")),
        other => return Err(Error::not_found(Code::NOT_FOUND, "file", other)),
    };
    Ok(Answer::file(kind, bytes).header("cache-control", "public, max-age=3600"))
}

async fn list(docs: Arc<Docs>, _: Request) -> Result<Answer> {
    Answer::ok(&docs.list())
}

async fn get(docs: Arc<Docs>, request: Request) -> Result<Answer> {
    let FormatQuery { format } = request.query()?;
    let filename = request.path("filename");
    let accept = request.headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let kind = match format.as_deref().map(str::to_lowercase).as_deref() {
        Some("markdown") => Some("text/markdown"),
        Some("html") => Some("text/html"),
        Some(_) => return Err(Error::invalid("format", "enum", "format must be html or markdown")),
        None => preferred(accept, &["text/html", "application/json", "text/markdown"]),
    };
    let answer = match kind {
        Some("text/html") => Answer::text(200, HTML, docs.html(filename)?.to_owned()),
        Some("application/json") => Answer::ok(&docs.html(filename)?)?,
        Some(_) => Answer::text(200, "text/markdown; charset=utf-8", docs.markdown(filename)?.to_owned()),
        None => {
            let message = "This page comes as text/html, text/markdown or application/json; see Accept.";
            return Err(Error::new(NOT_ACCEPTABLE, message));
        }
    };
    Ok(answer.header("content-security-policy", "sandbox"))
}

/// The kind that an `Accept` likes best, named kinds before wild cards, then in the order that is given (RFC 9110
/// §12.5.1).
fn preferred<'k>(accept: &str, kinds: &[&'k str]) -> Option<&'k str> {
    let ranges: Vec<(String, u32)> = accept
        .to_ascii_lowercase()
        .split(',')
        .map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_owned();
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
            (name, (quality.clamp(0.0, 1.0) * 1000.0) as u32)
        })
        .collect();
    let liking = |kind: &str| {
        let whole = format!("{}/*", kind.split('/').next().unwrap_or_default());
        [(kind, 2), (whole.as_str(), 1), ("*/*", 0)].into_iter().find_map(|(name, exactness)| {
            let (_, quality) = ranges.iter().find(|(range, _)| range == name)?;
            Some((*quality, exactness))
        })
    };
    let liked = kinds.iter().rev().filter_map(|kind| Some((liking(kind).filter(|(quality, _)| *quality > 0)?, *kind)));
    liked.max_by_key(|(liking, _)| *liking).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::preferred;

    #[test]
    fn a_page_comes_as_it_is_liked_best() {
        let kinds = ["text/html", "application/json", "text/markdown"];
        for (accept, kind) in [
            ("*/*", Some("text/html")),
            ("APPLICATION/JSON", Some("application/json")),
            ("application/json, text/plain, */*", Some("application/json")),
            ("application/json, text/html", Some("text/html")),
            ("application/json;q=0, */*", Some("text/html")),
            ("text/markdown, text/html;q=0.1", Some("text/markdown")),
            ("application/*", Some("application/json")),
            ("text/*", Some("text/html")),
            ("text/html;q=0", None),
            ("text/htmlx", None),
        ] {
            assert_eq!(preferred(accept, &kinds), kind, "{accept}");
        }
    }
}

mod spec {
    use platform_docs::DocList;
    use serde_json::Value;

    use super::FormatQuery;
    use platform_http::Operation;

    pub fn list() -> Operation {
        Operation::new("List documentation pages").answers::<DocList>(200)
    }
    pub fn get() -> Operation {
        let operation =
            Operation::new("Read a documentation page").query::<FormatQuery>().answers_text(200, "text/html");
        operation.answers_text(200, "text/markdown").answers::<String>(200)
    }
    pub fn openapi() -> Operation {
        Operation::new("This document").answers::<Value>(200)
    }
}
