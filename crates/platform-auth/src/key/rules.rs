use url::{Host, Url};

use super::model::{Endpoint, IdentityMode, Preset};

/// What restricts a key (contract 01 §3).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRules {
    /// It can only mint sessions.
    pub is_signed: bool,
    /// Hosts it may be used from; none = any.
    pub domains: Vec<String>,
    /// Endpoints it may reach; none = any, unless there is a preset.
    pub endpoints: Vec<Endpoint>,
    /// Endpoints it may reach beside those.
    pub preset: Option<Preset>,
}

impl KeyRules {
    pub(crate) fn new(mode: IdentityMode, domains: &[String], endpoints: &[Endpoint], preset: Option<Preset>) -> Self {
        let is_signed = mode == IdentityMode::Signed;
        Self { is_signed, domains: domains.to_vec(), endpoints: endpoints.to_vec(), preset }
    }

    /// Any list binds it.
    pub fn is_restricted(&self) -> bool {
        !self.domains.is_empty() || !self.endpoints.is_empty() || self.preset.is_some()
    }

    /// It is no full key that speaks for itself.
    pub fn is_bound(&self) -> bool {
        self.is_signed || self.is_restricted()
    }

    /// Whether a page of this origin may use it; `origin`: the header `Origin`, else `Referer`.
    pub fn allows_origin(&self, origin: Option<&str>) -> bool {
        if self.domains.is_empty() {
            return true;
        }
        let Some(origin) = origin.and_then(|origin| Url::parse(origin).ok()) else { return false };
        let Some(host) = origin.host() else { return false };
        let (host, port) = (host.to_string(), origin.port_or_known_default());
        self.domains.iter().filter_map(|pattern| split(pattern)).any(|(wanted, wanted_port)| {
            let named = match wanted.strip_prefix("*.") {
                Some(parent) => host.strip_suffix(parent).is_some_and(|below| below.len() > 1 && below.ends_with('.')),
                None => host == wanted,
            };
            named && wanted_port.is_none_or(|wanted| port == Some(wanted))
        })
    }

    /// Whether the lists name this request; `path` is that of its main place, without its mount prefix. `alias`: the
    /// beginnings of its main and its other place, which an entry may name as well.
    pub fn lists(&self, method: &str, path: &str, alias: Option<(&str, &str)>) -> bool {
        let method = if method == "HEAD" { "GET" } else { method };
        self.listed(method, alias, |pattern| matches(pattern, path, |wanted, given| wanted == given))
    }

    /// Whether the lists name some request to a route; its placeholders are anything.
    pub fn may_list(&self, method: &str, path: &str, alias: Option<(&str, &str)>) -> bool {
        let fits = |wanted: &str, given: &str| wanted == given || given.starts_with('{');
        self.listed(method, alias, |pattern| matches(pattern, path, fits))
    }

    fn listed(&self, method: &str, alias: Option<(&str, &str)>, fits: impl Fn(&str) -> bool) -> bool {
        let named = |pattern: &str| {
            let of_alias = |(main, alias)| {
                let rest = pattern.strip_prefix(alias).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
                Some(format!("{main}{rest}"))
            };
            fits(alias.and_then(of_alias).as_deref().unwrap_or(pattern))
        };
        let mut endpoints = self.endpoints.iter();
        endpoints.any(|endpoint| (endpoint.method == "*" || endpoint.method == method) && named(&endpoint.path))
    }
}

/// Host and port of a domain pattern in lower case; `None` when it is none.
pub(super) fn split(pattern: &str) -> Option<(String, Option<u16>)> {
    let (star, name) = match pattern.strip_prefix("*.") {
        Some(name) => ("*.", name),
        None => ("", pattern),
    };
    let has_port = name.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let (host, port) = match has_port {
        Some((host, port)) => (host, Some(port.parse().ok().filter(|port| *port > 0)?)),
        None => (name, None),
    };
    let parsed = Host::parse(host).ok().filter(|_| !host.contains('*'))?;
    if !star.is_empty() && !matches!(parsed, Host::Domain(_)) {
        return None;
    }
    Some((format!("{star}{parsed}"), port))
}

/// `*` stands for one segment, a final `**` for the rest.
fn matches(pattern: &str, path: &str, is_same: impl Fn(&str, &str) -> bool) -> bool {
    let mut wanted = pattern.split('/');
    let mut given = path.split('/');
    loop {
        match (wanted.next(), given.next()) {
            (Some("**"), _) | (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == "*" || is_same(wanted, given) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_name_hosts_and_what_is_below_them() {
        let rules = |domains: &[&str]| KeyRules {
            domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
            ..KeyRules::default()
        };
        let allows = |domain: &str, origin: &str| rules(&[domain]).allows_origin(Some(origin));
        assert!(allows("app.example.com", "https://app.example.com"));
        assert!(allows("app.example.com", "http://app.example.com:8080/page"));
        assert!(allows("App.example.com", "https://APP.example.com"));
        assert!(!allows("app.example.com", "https://app.example.com.evil.io"));
        assert!(allows("*.example.com", "https://a.b.example.com"));
        for origin in ["https://example.com", "https://badexample.com", "https://.example.com", "null", ""] {
            assert!(!allows("*.example.com", origin), "{origin}");
        }
        assert!(allows("localhost:3000", "http://localhost:3000") && !allows("localhost:3000", "http://localhost"));
        assert!(allows("example.com:443", "https://example.com") && !allows("example.com:443", "http://example.com"));
        assert!(allows("[::1]:80", "http://[::1]"));
        assert!(!rules(&["example.com"]).allows_origin(None) && rules(&[]).allows_origin(None));
        for bad in ["", "*", "*.", "a b", "http://a", "a/b", "a:0", "a:99999", "*.*.a", "*.127.0.0.1"] {
            assert!(split(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn endpoints_are_listed_by_method_and_pattern() {
        let listed = |method: &str, path: &str| {
            let endpoint = |method: &str, path: &str| Endpoint { method: method.into(), path: path.into() };
            let endpoints = vec![endpoint("POST", "/assistants/*/messages"), endpoint("GET", "/agents/**")];
            KeyRules { endpoints, ..KeyRules::default() }.lists(method, path, None)
        };
        assert!(listed("POST", "/assistants/support/messages"));
        assert!(!listed("GET", "/assistants/support/messages") && !listed("POST", "/assistants/a/b/messages"));
        assert!(!listed("POST", "/assistants/support/messages/x") && !listed("POST", "/assistants/messages"));
        assert!(listed("GET", "/agents") && listed("GET", "/agents/a/threads") && listed("HEAD", "/agents/a"));
        assert!(!listed("GET", "/agentsx") && !listed("DELETE", "/agents/a"));
    }
}
