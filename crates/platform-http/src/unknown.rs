//! Names that nothing reads (contract 00 §2.10, §2.11).

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use platform_core::{Error, Result};
use serde_json::Value;
use strsim::levenshtein;

use crate::{code, request::Fields, route::Route};

const MAX_IGNORED: usize = 20;
/// Bytes of a name that are shown, and looked at.
const MAX_SHOWN: usize = 128;
/// What a list of names in a header cannot hold as it is.
const NOT_IN_LIST: &AsciiSet = &CONTROLS.add(b' ').add(b',').add(b'%');

/// Names in the request that nothing reads, the first of them; refused with `strict=true` (contract 00 §2.11).
pub(crate) fn ignored(route: &Route, query: &BTreeMap<String, String>, fields: &Fields) -> Result<Vec<String>> {
    let strict = match query.get("strict").map(String::as_str) {
        Some("true" | "1") => true,
        None | Some("false" | "0") => false,
        Some(_) => return Err(Error::invalid("strict", "type", "strict: expected true, 1, false or 0")),
    };
    let mut unknown: Vec<(String, &[String])> = Vec::new();
    if let Some(known) = &route.body_fields {
        let is_known = |name: &String| known.contains(name) || route.record_fields.contains(name);
        let names = fields.names().filter(|name| !is_known(name)).take(MAX_IGNORED);
        unknown.extend(names.map(|name| (shown(name).to_owned(), known.as_slice())));
    }
    let names = query.keys().filter(|name| *name != "strict" && !route.query_fields.contains(name));
    let names = names.take(MAX_IGNORED - unknown.len());
    unknown.extend(names.map(|name| (format!("?{}", shown(name)), route.query_fields.as_slice())));
    if strict && !unknown.is_empty() {
        let fields: Vec<Value> = unknown
            .iter()
            .map(|(name, accepted)| match suggestion(name.trim_start_matches('?'), accepted) {
                Some(suggestion) => serde_json::json!({"name": name, "suggestion": suggestion}),
                None => serde_json::json!({"name": name}),
            })
            .collect();
        let names: Vec<&str> = unknown.iter().map(|(name, _)| name.as_str()).collect();
        let message = format!("These fields are not known here: {}.", names.join(", "));
        return Err(Error::new(code::UNKNOWN_FIELD, message).with("fields", fields));
    }
    Ok(unknown.iter().map(|(name, _)| utf8_percent_encode(name, NOT_IN_LIST).to_string()).collect())
}

fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_SHOWN)]
}

fn suggestion<'a>(name: &str, accepted: &'a [String]) -> Option<&'a str> {
    let close = accepted.iter().map(|known| (levenshtein(name, known), known.as_str())).min()?;
    (close.0 <= 2).then_some(close.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_given_the_name_it_meant() {
        let accepted = ["name".to_owned(), "description".to_owned()];
        assert_eq!(suggestion("nmae", &accepted), Some("name"));
        assert_eq!(suggestion("descriptoin", &accepted), Some("description"));
        assert_eq!(suggestion("colour", &accepted), None);
    }
}
