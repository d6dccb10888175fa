//! `/` and `/console`: the console, a page that speaks the public API alone

use std::{io::Read, sync::Arc};

use actix_web::http::header::{ACCEPT, ACCEPT_ENCODING, IF_NONE_MATCH};
use flate2::read::GzDecoder;
use platform_access::Kind;
use platform_core::{Code, Error, Result, sha256_hex};
use platform_http::{Answer, Group, OpenTo, Request};

use crate::module::Module;

/// Files of the console.
const FILE: Kind = Kind::of_account("file of the console");
/// Only what this server sends runs; no text ever becomes markup; nothing of elsewhere is loaded.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// A file as `bins/gateway/console/build.mjs` made it, compressed.
struct File {
    kind: &'static str,
    packed: &'static [u8],
    etag: String,
}

/// Files of the console, made ready once.
struct Files {
    page: File,
    script: File,
    style: File,
}

impl File {
    fn new(kind: &'static str, packed: &'static [u8]) -> Self {
        Self { kind, packed, etag: format!("W/\"{}\"", &sha256_hex(packed)[..32]) }
    }

    /// The file, unless the browser has it already.
    fn answer(&self, request: &Request) -> Result<Answer> {
        let has = |name, text: &str| {
            request.headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains(text))
        };
        let answer = if has(IF_NONE_MATCH, &self.etag) {
            Answer::empty(304)
        } else if has(ACCEPT_ENCODING, "gzip") {
            Answer::file(self.kind, self.packed).header("content-encoding", "gzip")
        } else {
            let mut text = String::new();
            GzDecoder::new(self.packed).read_to_string(&mut text).map_err(Error::internal)?;
            Answer::text(200, self.kind, text)
        };
        let answer = answer.header("etag", self.etag.clone()).header("cache-control", "no-cache");
        Ok(answer.header("vary", "accept, accept-encoding"))
    }
}

/// The console.
pub(crate) fn module() -> Module {
    Module { groups: vec![group()], ..Module::default() }
}

fn group() -> Group {
    let files = Arc::new(Files {
        page: File::new("text/html; charset=utf-8", include_bytes!("../../console/dist/console.html.gz")),
        script: File::new("text/javascript; charset=utf-8", include_bytes!("../../console/dist/console.js.gz")),
        style: File::new("text/css; charset=utf-8", include_bytes!("../../console/dist/console.css.gz")),
    });
    let mut group = Group::of("console", "The console, in a browser", files).naming("file", FILE);
    group.get("/", OpenTo::Public, page);
    group.get("/console/{file}", OpenTo::Public, file);
    group.build()
}

/// The page for a browser; whoever does not ask for HTML is told that nothing is here.
async fn page(files: Arc<Files>, request: Request) -> Result<Answer> {
    let accepts = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !accepts_html(accepts) {
        let message = "The API is at /v1, its reference at /docs; in a browser, the console is here.";
        return Err(Error::new(Code::NOT_FOUND, message));
    }
    let answer = files.page.answer(&request)?;
    Ok(answer.header("content-security-policy", POLICY).header("referrer-policy", "same-origin"))
}

/// Whether HTML is among what is accepted (RFC 9110 §12.5.1).
fn accepts_html(accepts: &str) -> bool {
    accepts.split(',').any(|of| {
        let mut parts = of.split(';').map(str::trim);
        let is_html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f32>);
        is_html && weight.is_ok_and(|weight| weight > 0.0)
    })
}

async fn file(files: Arc<Files>, request: Request) -> Result<Answer> {
    match request.path("file") {
        "console.js" => files.script.answer(&request),
        "console.css" => files.style.answer(&request),
        other => Err(Error::not_found(Code::NOT_FOUND, "file", other)),
    }
}
