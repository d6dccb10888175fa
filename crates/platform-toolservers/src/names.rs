use std::collections::HashMap;

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use platform_runtime::is_function_name;

const LONGEST: usize = 64;
const HASH: usize = 8;

/// A tool before it has the name that a model calls it by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'a> {
    pub bare: &'a str,
    /// Of its server; built-in tools have none.
    pub identifier: Option<&'a str>,
    /// The identifier always stands before it.
    pub prefixed: bool,
}

/// Names by which a model calls tools (contract 04 §6): bare where nothing clashes.
pub(crate) fn exposed(tools: &[Named<'_>]) -> Vec<String> {
    let mut bare: HashMap<&str, usize> = HashMap::new();
    for tool in tools.iter().filter(|tool| !tool.prefixed) {
        *bare.entry(tool.bare).or_default() += 1;
    }
    let name = |tool: &Named<'_>| match tool.identifier {
        Some(identifier) if tool.prefixed || bare[tool.bare] > 1 => fit(&format!("{identifier}__{}", tool.bare)),
        _ => fit(tool.bare),
    };
    tools.iter().map(name).collect()
}

/// A name that providers take: what does not fit is cut and told apart by a hash.
fn fit(name: &str) -> String {
    if is_function_name(name) {
        return name.to_owned();
    }
    let good = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let start: String = name.chars().map(good).take(LONGEST - HASH - 1).collect();
    let hash = URL_SAFE_NO_PAD.encode(&digest(&SHA256, name.as_bytes()).as_ref()[..HASH * 3 / 4]);
    format!("{start}_{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_clash_get_a_prefix_and_long_ones_a_hash() {
        let http = |identifier, bare| Named { bare, identifier: Some(identifier), prefixed: false };
        let mcp = |identifier, bare| Named { bare, identifier: Some(identifier), prefixed: true };
        let built_in = Named { bare: "current_time", identifier: None, prefixed: false };
        let long = "x".repeat(64);
        let tools = [
            built_in,
            http("a", "get"),
            http("b", "get"),
            http("a", "list"),
            http("a", "current_time"),
            mcp("m", "get"),
            mcp("m", "dotted.name"),
            mcp("m", &long),
        ];
        let names = exposed(&tools);
        assert_eq!(names[..6], ["current_time", "a__get", "b__get", "list", "a__current_time", "m__get"]);
        assert!(names[6].starts_with("m__dotted_name_") && names[7].len() == 64, "{names:?}");
        assert!(names.iter().all(|name| is_function_name(name)));
        assert_ne!(fit(&format!("{long}a")), fit(&format!("{long}b")));
    }
}
