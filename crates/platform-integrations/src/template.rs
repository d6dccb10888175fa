//! Placeholders of packs: `${name}`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// What stands in an address as it is (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What placeholders stand for.
pub type Values<'a> = dyn Fn(&str) -> Option<Value> + Sync + 'a;

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Pieces of a text: what stands there, and names.
fn pieces(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        match text.split_once("${").and_then(|(before, after)| Some((before, after.split_once('}')?))) {
            Some((before, (name, after))) => {
                rest = Some(after);
                Some((before, Some(name)))
            }
            None => Some((text, None)),
        }
    })
}

/// Names of the placeholders in a text.
pub(crate) fn names(text: &str) -> impl Iterator<Item = &str> {
    pieces(text).filter_map(|(_, name)| name)
}

/// A text with its placeholders filled in; what has no value is empty.
pub fn text(template: &str, values: &Values<'_>) -> String {
    let filled = pieces(template).map(|(before, name)| {
        let value = name.and_then(values).map(|value| plain(&value)).unwrap_or_default();
        format!("{before}{value}")
    });
    filled.collect()
}

/// The same for an address: each value is encoded, so that none changes its shape. An address that is one placeholder
/// is its value.
pub fn address(template: &str, values: &Values<'_>) -> String {
    if let Some(name) = template.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'))
        && !name.contains("${")
    {
        return values(name).map(|value| plain(&value)).unwrap_or_default();
    }
    let filled = pieces(template).map(|(before, name)| {
        let value = name.and_then(values).map(|value| plain(&value)).unwrap_or_default();
        format!("{before}{}", utf8_percent_encode(&value, ENCODED))
    });
    filled.collect()
}

/// A JSON value with the placeholders in its texts filled in. A text that is one placeholder becomes its value as it
/// is; a field whose placeholder has none is left out.
pub fn json(template: &Value, values: &Values<'_>) -> Option<Value> {
    Some(match template {
        Value::String(template) => {
            let alone = template.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
            match alone.filter(|name| !name.contains("${")) {
                Some(name) => return values(name).filter(|value| !value.is_null()),
                None => text(template, values).into(),
            }
        }
        Value::Array(items) => items.iter().filter_map(|item| json(item, values)).collect(),
        Value::Object(fields) => {
            fields.iter().filter_map(|(name, value)| Some((name.clone(), json(value, values)?))).collect()
        }
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_keep_their_kind_alone_are_text_within_text_and_change_no_address() {
        let values = |name: &str| match name {
            "config.owner" => Some(json!("a/b?c")),
            "config.all" => Some(json!(true)),
            "webhookUrl" => Some(json!("https://a.example/h")),
            _ => None,
        };
        assert_eq!(address("/repos/${config.owner}/hooks?x=${none}", &values), "/repos/a%2Fb%3Fc/hooks?x=");
        assert_eq!(address("${webhookUrl}", &values), "https://a.example/h");
        assert_eq!(text("sha ${config.all}${", &values), "sha true${");
        let body = json!({"url": "${webhookUrl}", "all": "${config.all}", "team": "${config.team}", "list": ["${none}", 1],
            "text": "to ${config.all}"});
        let filled = json!({"url": "https://a.example/h", "all": true, "list": [1], "text": "to true"});
        assert_eq!(super::json(&body, &values), Some(filled));
        assert_eq!(names("${a}/${b.c}").collect::<Vec<_>>(), ["a", "b.c"]);
    }
}
