//! `/v1/docs`, `/v1/openapi.json`, and the reference page at `/docs`

use std::sync::LazyLock;

use platform_core::{Code, Error, Result};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::{code, request::Request, respond::Answer};

static OPENAPI: LazyLock<String> = LazyLock::new(|| crate::openapi::document(&super::table()));

const HTML: &str = "text/html; charset=utf-8";
/// Only what this server sends itself may run on the reference page.
const REFERENCE_CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'";

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct FormatQuery {
    /// `html` (default) or `markdown`.
    format: Option<String>,
}

pub(crate) async fn openapi(_: Request) -> Result<Answer> {
    Ok(Answer::raw_json(200, OPENAPI.clone()))
}

pub(crate) async fn reference(_: Request) -> Result<Answer> {
    let page = include_str!("../../assets/reference.html").to_owned();
    Ok(Answer::text(200, HTML, page).header("content-security-policy", REFERENCE_CSP))
}

pub(crate) async fn asset(request: Request) -> Result<Answer> {
    let (kind, bytes): (_, &'static [u8]) = match request.path("file") {
        "reference.js" => ("text/javascript; charset=utf-8", include_bytes!("../../assets/reference.js")),
        "swagger-ui.js" => ("text/javascript; charset=utf-8", include_bytes!("../../assets/swagger-ui.js")),
        "swagger-ui.css" => ("text/css; charset=utf-8", include_bytes!("../../assets/swagger-ui.css")),
        other => return Err(Error::not_found(Code::NOT_FOUND, "file", other)),
    };
    Ok(Answer::file(kind, bytes).header("cache-control", "public, max-age=3600"))
}

pub(crate) async fn list(request: Request) -> Result<Answer> {
    Answer::ok(&request.services.docs.list())
}

pub(crate) async fn get(request: Request) -> Result<Answer> {
    let FormatQuery { format } = request.query()?;
    let (docs, filename) = (&request.services.docs, request.path("filename"));
    let accept = request.headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let takes = |kinds: &[&str]| kinds.iter().any(|kind| accept.contains(kind));
    let answer = match format.as_deref().map(str::to_lowercase).as_deref() {
        Some("markdown") => Answer::text(200, "text/markdown; charset=utf-8", docs.markdown(filename)?.to_owned()),
        Some("html") => Answer::text(200, HTML, docs.html(filename)?.to_owned()),
        Some(_) => return Err(Error::invalid("format", "enum", "format must be html or markdown")),
        None if takes(&["text/html"]) => Answer::text(200, HTML, docs.html(filename)?.to_owned()),
        None if takes(&["application/json"]) => Answer::ok(&docs.html(filename)?)?,
        None if takes(&["text/markdown"]) => {
            Answer::text(200, "text/markdown; charset=utf-8", docs.markdown(filename)?.to_owned())
        }
        None if takes(&["*/*", "text/*"]) => Answer::text(200, HTML, docs.html(filename)?.to_owned()),
        None => {
            let message = "This page comes as text/html, text/markdown or application/json; see Accept.";
            return Err(Error::new(code::NOT_ACCEPTABLE, message));
        }
    };
    Ok(answer.header("content-security-policy", "sandbox"))
}

pub(super) mod spec {
    use platform_docs::DocList;
    use serde_json::Value;

    use super::FormatQuery;
    use crate::openapi::Operation;

    pub fn list() -> Operation {
        Operation::new("List documentation pages").answers::<DocList>(200)
    }
    pub fn get() -> Operation {
        Operation::new("Read a documentation page").query::<FormatQuery>().answers_text("text/html")
    }
    pub fn openapi() -> Operation {
        Operation::new("This document").answers::<Value>(200)
    }
}
