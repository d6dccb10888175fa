use std::collections::BTreeSet;

/// Groups that have scopes of their own (contract 01 §5).
const GROUPS: [&str; 23] = [
    "agents",
    "assistants",
    "tool-servers",
    "projects",
    "documents",
    "files",
    "integrations",
    "triggers",
    "tenants",
    "tenant-usage",
    "tenant-admin",
    "tenant-sessions",
    "tenant-integrations",
    "memory",
    "mcp-gateway",
    "environments",
    "sandbox",
    "skills",
    "speech",
    "webhooks",
    "models",
    "keys",
    "docs",
];

/// Every scope there is.
pub static SCOPES: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(|| {
    let groups = GROUPS.iter().chain(&["platform"]);
    groups.flat_map(|group| [format!("{group}:read"), format!("{group}:write")]).collect()
});

/// What a token was granted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scopes(BTreeSet<String>);

impl Scopes {
    /// Names separated by spaces.
    pub fn parse(text: &str) -> Self {
        Self(text.split(' ').filter(|scope| !scope.is_empty()).map(str::to_owned).collect())
    }

    pub(crate) fn of(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().collect())
    }

    /// Whether each of its names is a scope.
    pub(crate) fn are_known(&self) -> bool {
        self.0.iter().all(|scope| SCOPES.contains(scope))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// They open nothing that others do not.
    pub(crate) fn is_within(&self, others: &Self) -> bool {
        self.are_known() && self.0.iter().all(|scope| others.open(scope))
    }

    /// Those of them that open nothing which others do not.
    pub(crate) fn narrowed_to(&self, others: &Self) -> Self {
        Self(self.0.iter().filter(|scope| others.open(scope)).cloned().collect())
    }

    /// Each scope by its name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether they open what needs a scope: writing includes reading, the catch-alls open all but what they never do.
    pub fn open(&self, needed: &str) -> bool {
        let Some((group, right)) = needed.split_once(':') else { return false };
        let has = |group: &str, right: &str| self.0.contains(&format!("{group}:{right}"));
        let caught = group != "tenant-admin" && needed != "keys:write";
        has(group, right) || has(group, "write") || (caught && (has("platform", right) || has("platform", "write")))
    }
}

impl std::fmt::Display for Scopes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.iter().map(String::as_str).collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_includes_reading_and_the_catch_alls_stop_at_administration() {
        let open = |granted: &str, needed: &str| Scopes::parse(granted).open(needed);
        assert!(open("agents:read", "agents:read") && !open("agents:read", "agents:write"));
        assert!(open("agents:write", "agents:read") && !open("agents:write", "assistants:read"));
        assert!(open("platform:read", "models:read") && !open("platform:read", "agents:write"));
        assert!(open("platform:write", "agents:write") && open("platform:write", "keys:read"));
        for closed in ["keys:write", "tenant-admin:read", "tenant-admin:write"] {
            assert!(!open("platform:read platform:write", closed) && open(closed, closed), "{closed}");
        }
        let within = |asked: &str, granted: &str| Scopes::parse(asked).is_within(&Scopes::parse(granted));
        assert!(within("agents:read models:read", "platform:read") && !within("agents:write", "platform:read"));
        assert!(!within("nonsense:read", "platform:read") && !within("keys:write", "platform:write"));
        assert!(!open("", "agents:read") && !open("agents", "agents:read") && !open("*:read", "agents:read"));
    }
}
