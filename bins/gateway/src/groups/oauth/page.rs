//! The page on which users log in and decide. It needs no script, and allows none.

use std::{collections::BTreeMap, fmt::Write};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::STANDARD};
use platform_auth::Authorization;

use super::origin_of;
use platform_http::Answer;

const STYLE: &str = "\
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}\
body{margin:0;min-height:100vh;display:grid;place-items:center;background:Canvas;color:CanvasText}\
main{width:min(26rem,90vw);padding:2rem;border:1px solid GrayText;border-radius:.75rem}\
h1{margin:0 0 1rem;font-size:1.4rem}\
label{display:block;margin:1rem 0 .25rem;font-weight:600}\
input{box-sizing:border-box;width:100%;padding:.6rem;font:inherit;border:1px solid GrayText;border-radius:.4rem}\
button{margin:1.5rem .5rem 0 0;padding:.6rem 1.4rem;font:inherit;border-radius:.4rem;border:1px solid;cursor:pointer}\
button.allow{background:#0b57d0;color:#fff;border-color:#0b57d0}\
:focus-visible{outline:3px solid #0b57d0;outline-offset:2px}\
.wrong{padding:.6rem;border-left:4px solid #b3261e}\
ul{padding-left:1.2rem}";

/// Fields that the form carries along.
const CARRIED: [&str; 8] = [
    "response_type",
    "client_id",
    "redirect_uri",
    "scope",
    "state",
    "code_challenge",
    "code_challenge_method",
    "resource",
];

/// Who asks for what, and where to log in.
pub(super) fn form(
    status: u16,
    asked: &Authorization,
    given: &BTreeMap<String, String>,
    wrong: Option<&str>,
) -> Answer {
    let title = if asked.is_console() {
        "Log in to the console".to_owned()
    } else {
        format!("{} wants to act for you", asked.client_name)
    };
    let mut html = format!("<h1>{}</h1>", escaped(&title));
    if let Some(wrong) = wrong {
        let _ = write!(html, "<p class=\"wrong\" role=\"alert\">{}</p>", escaped(wrong));
    }
    if asked.is_unverified() {
        html.push_str(
            "<p class=\"wrong\">Nobody vouches for this application or its name: it registered itself. \
            Allow it only if you have just started to connect it.</p>",
        );
    }
    if !asked.is_console() {
        html.push_str("<p>If you allow it, it may use these parts of the API in your name:</p><ul>");
        for scope in asked.scopes.names() {
            let _ = write!(html, "<li>{}</li>", escaped(&described(scope)));
        }
        html.push_str("</ul>");
    }
    html.push_str("<form method=\"post\" action=\"/oauth/authorize\">");
    for name in CARRIED {
        if let Some(value) = given.get(name) {
            let _ = write!(html, "<input type=\"hidden\" name=\"{name}\" value=\"{}\">", escaped(value));
        }
    }
    let email = escaped(given.get("email").map(String::as_str).unwrap_or_default());
    let _ = write!(
        html,
        "<label for=\"email\">E-mail address</label>\
        <input id=\"email\" name=\"email\" type=\"email\" autocomplete=\"username\" required value=\"{email}\" autofocus>\
        <label for=\"password\">Password</label>\
        <input id=\"password\" name=\"password\" type=\"password\" autocomplete=\"current-password\" required>\
        <button class=\"allow\" name=\"decision\" value=\"allow\">{}</button>\
        <button name=\"decision\" value=\"deny\" formnovalidate>{}</button></form>\
        <p>You will be sent back to <strong>{}</strong>.</p>",
        if asked.is_console() { "Log in" } else { "Log in and allow" },
        if asked.is_console() { "Go back" } else { "Do not allow" },
        escaped(&origin_of(asked))
    );
    answer(status, &title, &html, &origin_of(asked))
}

/// What is wrong with a request that cannot be sent back to anybody.
pub(super) fn error(description: &str) -> Answer {
    let html = format!(
        "<h1>This cannot be done</h1><p class=\"wrong\" role=\"alert\">{}</p><p>Go back to the application and try \
        again, or tell whoever runs it.</p>",
        escaped(description)
    );
    answer(400, "This cannot be done", &html, "")
}

/// What became of something that a user decided elsewhere.
pub(crate) fn notice(status: u16, message: &str) -> Answer {
    let (title, class) = if status < 400 { ("Connected", "") } else { ("Not connected", " class=\"wrong\"") };
    let html = format!("<h1>{title}</h1><p{class} role=\"status\">{}</p>", escaped(message));
    answer(status, title, &html, "")
}

/// Browsers check where a form leads over its redirects, too: so the application's origin is allowed.
fn answer(status: u16, title: &str, html: &str, origin: &str) -> Answer {
    let style = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; form-action 'self' {origin}; frame-ancestors 'none'; base-uri 'none'"
    );
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
        <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
        <title>{}</title><style>{STYLE}</style></head><body><main>{html}</main></body></html>",
        escaped(title)
    );
    Answer::text(status, "text/html; charset=utf-8", page)
        .header("content-security-policy", policy)
        .header("x-frame-options", "DENY")
        .header("referrer-policy", "same-origin")
}

/// A scope in words.
fn described(scope: &str) -> String {
    match scope.split_once(':') {
        Some(("platform", "read")) => "read everything you can see".to_owned(),
        Some(("platform", "write")) => "change everything you can change".to_owned(),
        Some((group, "read")) => format!("read {}", group.replace('-', " ")),
        Some((group, _)) => format!("read and change {}", group.replace('-', " ")),
        None => scope.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut html, c| {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
        html
    })
}
