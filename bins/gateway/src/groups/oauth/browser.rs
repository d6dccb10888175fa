//! What a browser holds since its user logged in to the console, and whether it is the console that asks.

use actix_web::http::header::COOKIE;
use platform_auth::OAuthService;
use platform_http::{Answer, Request};
use secrecy::SecretString;

/// Whether a page of another address sent this. Browsers say so, of secure addresses by `Sec-Fetch-Site`.
pub(super) fn is_elsewhere(oauth: &dyn OAuthService, request: &Request) -> bool {
    let said = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    match (said("sec-fetch-site"), said("origin")) {
        (Some(site), _) => !matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => !oauth.is_console_at(&format!("{origin}/")),
        (None, None) => false,
    }
}

/// What the browser holds since its user logged in to the console.
pub(super) fn log_in(oauth: &dyn OAuthService, request: &Request) -> Option<SecretString> {
    let cookies = request.headers.get(COOKIE)?.to_str().ok()?;
    let name = cookie_name(oauth);
    let named = |cookie: &str| Some(cookie.trim().strip_prefix(&name)?.strip_prefix('=')?.to_owned());
    cookies.split(';').find_map(named).map(SecretString::from)
}

/// Ports of a host share its cookies, not their names.
fn cookie_name(oauth: &dyn OAuthService) -> String {
    let port = url::Url::parse(oauth.issuer()).ok().and_then(|url| url.port_or_known_default()).unwrap_or_default();
    format!("platform-log-in-{port}")
}

/// Has the browser hold a log-in, which no script can read and no other site sends; "" = none any more.
pub(super) fn holding(answer: Answer, oauth: &dyn OAuthService, log_in: &str) -> Answer {
    let secure = if oauth.issuer().starts_with("https:") { "; Secure" } else { "" };
    let (name, age) = (cookie_name(oauth), if log_in.is_empty() { "; Max-Age=0" } else { "" });
    answer.header("set-cookie", format!("{name}={log_in}; Path=/oauth; HttpOnly; SameSite=Strict{secure}{age}"))
}
