//! Which origins browsers may call from (contract 01 §8).

use actix_web::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use platform_auth::{Identity, Rights};
use platform_core::Credential;

const MAX_AGE_SECONDS: &str = "600";
const REQUEST_HEADERS: &str = "Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID, X-Request-Id, \
    X-Api-Source, MCP-Protocol-Version, Mcp-Method, Mcp-Name";
const EXPOSED: &str = "X-Request-Id, Retry-After, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, ETag, \
    X-Ignored-Fields, X-Total-Count, X-Chat-Uid, Idempotent-Replayed";

pub(crate) struct Cors {
    origins: Vec<String>,
}

impl Cors {
    pub fn new(origins: Vec<String>) -> Self {
        Self { origins }
    }

    /// Whether a request asks what it may ask.
    pub fn is_preflight(headers: &HeaderMap) -> bool {
        headers.contains_key(ORIGIN) && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Answers a preflight; `methods` are those of the path. It names no caller, so that each origin may ask: who
    /// may read is decided by the answer itself.
    pub fn preflight(asked: &HeaderMap, methods: &str, answer: &mut HeaderMap) {
        let wanted =
            asked.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| value.to_str().ok()).unwrap_or_default();
        // Sources under other names, and arguments of MCP tools that their schemas name.
        let named_by_clients = wanted.split(',').map(str::trim).filter(|name| {
            let name = name.to_ascii_lowercase();
            let is_source = name.ends_with("-api-source") && name != "x-api-source";
            (is_source || name.starts_with("mcp-param-")) && name.bytes().all(|b| b.is_ascii_graphic())
        });
        let names: Vec<&str> = std::iter::once(REQUEST_HEADERS).chain(named_by_clients).collect();
        let text = |text: &str| HeaderValue::from_str(text).ok();
        for (name, value) in [
            (ACCESS_CONTROL_ALLOW_ORIGIN, asked.get(ORIGIN).cloned()),
            (VARY, text("Origin")),
            (ACCESS_CONTROL_ALLOW_METHODS, text(methods)),
            (ACCESS_CONTROL_ALLOW_HEADERS, text(&names.join(", "))),
            (ACCESS_CONTROL_MAX_AGE, text(MAX_AGE_SECONDS)),
        ] {
            if let Some(value) = value {
                answer.insert(name, value);
            }
        }
    }

    /// Lets a browser read an answer; not one to a full key, which no browser should hold.
    pub fn answer(&self, asked: &HeaderMap, identity: Option<&Identity>, answer: &mut HeaderMap) {
        let Some(origin) = asked.get(ORIGIN) else { return };
        let allowed = match identity {
            Some(Identity { caller, .. }) if matches!(caller.credential, Credential::FullKey(_)) => false,
            Some(Identity { rights: Rights::Key(rules), .. }) if !rules.domains.is_empty() => {
                answer.append(VARY, HeaderValue::from_static("Origin"));
                let allowed = rules.allows_origin(origin.to_str().ok());
                if allowed {
                    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
                }
                allowed
            }
            _ => self.allow(asked, answer),
        };
        if allowed {
            answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }

    fn allow(&self, asked: &HeaderMap, answer: &mut HeaderMap) -> bool {
        if self.origins.iter().any(|origin| origin == "*") {
            answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
            return true;
        }
        answer.append(VARY, HeaderValue::from_static("Origin"));
        let listed =
            asked.get(ORIGIN).filter(|given| self.origins.iter().any(|origin| given.as_bytes() == origin.as_bytes()));
        if let Some(origin) = listed {
            answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
        listed.is_some()
    }
}
