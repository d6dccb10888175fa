//! Templates of messages: `{{data.a.b}}`, `{{trigger.name}}`, `{{event.id}}`, `{{event.receivedAt}}` (contract 09 §3).

use platform_core::Timestamp;
use platform_integrations::at_path;
use serde_json::Value;

/// Of a template, in bytes.
pub(crate) const MAX_TEMPLATE: usize = 65_536;
/// Of a filled one, in bytes, where nothing else bounds it.
const MAX_FILLED: usize = 16 << 20;
/// Of the id of a chat, in characters.
const MAX_CHAT_UID: usize = 64;

/// What placeholders stand for.
pub(crate) struct Values<'a> {
    pub data: &'a Value,
    pub trigger: &'a str,
    pub event: &'a str,
    pub received: Timestamp,
}

/// Pieces of a template: what stands there, and what is within braces after it.
fn pieces(template: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut rest = Some(template);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        match text.split_once("{{").and_then(|(before, after)| Some((before, after.split_once("}}")?))) {
            Some((before, (name, after))) => {
                rest = Some(after);
                Some((before, Some(name.trim())))
            }
            None => Some((text, None)),
        }
    })
}

/// A placeholder of a template that stands for nothing.
pub(crate) fn unknown(template: &str) -> Option<&str> {
    let is_known = |name: &&str| {
        matches!(*name, "data" | "trigger.name" | "event.id" | "event.receivedAt")
            || name.strip_prefix("data.").is_some_and(|path| !path.is_empty())
    };
    pieces(template).filter_map(|(_, name)| name).find(|name| !is_known(name))
}

/// The template with its values, at most so many bytes (0 = 16 MiB); the beginning of it when it is longer.
pub(crate) fn fill(template: &str, values: &Values<'_>, most: usize) -> Result<String, String> {
    let (mut text, most) = (String::new(), if most == 0 { MAX_FILLED } else { most });
    for (before, name) in pieces(template) {
        text.push_str(before);
        match name {
            Some("trigger.name") => text.push_str(values.trigger),
            Some("event.id") => text.push_str(values.event),
            Some("event.receivedAt") => text.push_str(&values.received.to_iso()),
            Some(name) => {
                let path = name.strip_prefix("data").unwrap_or_default().trim_start_matches('.');
                match at_path(values.data, path) {
                    None | Some(Value::Null) => {}
                    Some(Value::String(value)) => text.push_str(value),
                    Some(value) => text.push_str(&value.to_string()),
                }
            }
            None => {}
        }
        if text.len() > most {
            return Err(text);
        }
    }
    Ok(text)
}

/// The id of a chat by its template: other characters become `_`.
pub(crate) fn chat_uid(template: &str, values: &Values<'_>) -> String {
    let good = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let text = fill(template, values, MAX_CHAT_UID * size_of::<char>()).unwrap_or_else(|beginning| beginning);
    text.chars().take(MAX_CHAT_UID).map(good).collect()
}

/// Whether every leaf of a filter is in a payload.
pub(crate) fn keeps(filter: &Value, payload: &Value) -> bool {
    match filter {
        Value::Object(fields) => {
            fields.iter().all(|(name, wanted)| keeps(wanted, payload.get(name).unwrap_or(&Value::Null)))
        }
        Value::Array(items) => {
            let found = payload.as_array().map(Vec::as_slice).unwrap_or_default();
            items.len() <= found.len() && items.iter().zip(found).all(|(wanted, found)| keeps(wanted, found))
        }
        // Whole numbers are compared as such: many large ones are the same as fractions.
        Value::Number(wanted) if wanted.is_f64() || payload.is_f64() => wanted.as_f64() == payload.as_f64(),
        wanted => wanted == payload,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_are_filled_within_a_budget_and_a_filter_keeps_what_has_its_leaves() {
        let data = json!({"a": {"b": "x", "n": 3}, "list": [{"id": 7}], "large": 9_007_199_254_740_993_u64});
        let values = Values { data: &data, trigger: "T", event: "e/1", received: Timestamp(0) };
        let filled = |template: &str| fill(template, &values, 100);
        let is = |text: &str| Ok(text.to_owned());
        assert_eq!(filled("{{data.a.b}}-{{ data.a.n }}-{{data.list.0.id}}{{data.none}}"), is("x-3-7"));
        assert_eq!(filled("{{trigger.name}} {{event.id}} {{event.receivedAt}}"), is("T e/1 1970-01-01T00:00:00.000Z"));
        assert_eq!(filled("{{data.a}} {{"), is("{\"b\":\"x\",\"n\":3} {{"));
        let beginning = filled(&"{{data}}".repeat(8000)).expect_err("too long");
        assert!(beginning.len() < 200, "it stops as soon as it is");
        assert_eq!((unknown("{{data.x}} {{event.id}}"), unknown("{{ dat.x }}")), (None, Some("dat.x")));
        assert_eq!(chat_uid("crm/ä {{data.a.n}}", &values), "crm___3");
        assert_eq!(chat_uid(&"{{data}}".repeat(8000), &values).len(), 64);
        for (filter, is_kept) in [
            (json!({}), true),
            (json!({"a": {"b": "x"}}), true),
            (json!({"a": {"n": 3.0}}), true),
            (json!({"large": 9_007_199_254_740_993_u64}), true),
            (json!({"large": 9_007_199_254_740_992_u64}), false),
            (json!({"a": {"b": "y"}}), false),
            (json!({"list": [{"id": 7}]}), true),
            (json!({"none": null}), true),
            (json!({"a": "x"}), false),
        ] {
            assert_eq!(keeps(&filter, &data), is_kept, "{filter}");
        }
    }
}
