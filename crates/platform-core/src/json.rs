use std::{fmt::Display, io};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;
use serde_path_to_error::Segment;

use crate::{Error, Strict};

/// A JSON object whose keys the client chooses.
pub type Object = serde_json::Map<String, Value>;

/// Memory that JSON from outside may take when it is read, in bytes: up to a hundred times its text.
const MAX_MEMORY: usize = 64 << 20;

/// A node of a map, which has room for so many values.
const MAP_NODE_BYTES: usize = 640;
const MAP_NODE_FIELDS: usize = 11;

/// Fields of one body in which a `null` that does not fit is taken for absent; each takes another reading.
pub const MAX_NULLS: usize = 32;

/// Reads JSON that came from outside, unless it holds so many values that reading it takes 64 MiB.
pub fn parse<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    check_size(json).map_err(serde::de::Error::custom)?;
    serde_json::from_slice(json)
}

/// Refuses JSON whose values would take more than 64 MiB of memory beside their text, before any is read.
pub fn check_size(json: &[u8]) -> Result<(), &'static str> {
    if memory_of(json) > MAX_MEMORY { Err("it holds too many values; send fewer at once") } else { Ok(()) }
}

/// Bytes of memory that the values of JSON take beside their text when they are read, at most.
pub fn memory_of(json: &[u8]) -> usize {
    let (mut is_text, mut is_escaped, mut memory) = (false, false, 0);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b'{' if !is_text => memory += MAP_NODE_BYTES,
            b'[' | b',' if !is_text => memory += 128,
            _ => {}
        }
    }
    memory
}

/// Bytes of a value as JSON; `None` when there are more than so many, beyond which nothing is looked at.
pub fn json_length(value: &impl Serialize, most: usize) -> Option<usize> {
    struct Counted {
        left: usize,
    }
    impl io::Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted { left: most };
    serde_json::to_writer(&mut counted, value).ok().map(|()| most - counted.left)
}

/// Bytes of memory that a value takes, about.
pub fn heap_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.capacity(),
        Value::Array(items) => items.capacity() * size_of::<Value>() + items.iter().map(heap_bytes).sum::<usize>(),
        Value::Object(fields) => {
            let values = fields.iter().map(|(name, value)| name.capacity() + heap_bytes(value)).sum::<usize>();
            fields.len().div_ceil(MAP_NODE_FIELDS) * MAP_NODE_BYTES + values
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The value with U+FFFD in place of each U+0000, which PostgreSQL keeps in no JSON.
pub fn without_nul(value: Value) -> Value {
    match value {
        Value::String(text) if text.contains('\0') => text.replace('\0', "\u{fffd}").into(),
        Value::Array(items) => items.into_iter().map(without_nul).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name.replace('\0', "\u{fffd}"), without_nul(value))).collect()
        }
        other => other,
    }
}

/// Applies a PATCH (contract 00 §2.9): each given top-level field replaces the stored one,
/// `null` brings its default back. The result is read as strictly as a creation.
pub fn overlay<T: Serialize + DeserializeOwned>(current: &T, patch: Object) -> crate::Result<T> {
    let Value::Object(mut fields) = serde_json::to_value(current).map_err(Error::internal)? else {
        return Err(Error::internal("only objects can be patched"));
    };
    for (name, value) in patch {
        if value.is_null() {
            fields.remove(&name);
        } else {
            fields.insert(name, value);
        }
    }
    let (mut fields, mut nulls) = (Value::Object(fields), 0..MAX_NULLS);
    loop {
        let error = match serde_path_to_error::deserialize(Strict(&fields)) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if nulls.next().is_none() || !drop_null(&mut fields, &error) {
            return Err(misfit(&error.path().to_string(), error.inner()));
        }
    }
}

/// Takes a `null` out that does not fit where it stands, and at the same place of other items of a list: it counts as
/// absent (contract 00 §2.9). Whether there was one.
pub fn drop_null(value: &mut Value, error: &serde_path_to_error::Error<serde_json::Error>) -> bool {
    fn drop_at(value: &mut Value, path: &[&Segment]) -> bool {
        match (path, value) {
            ([Segment::Map { key }], Value::Object(fields)) => {
                fields.get(key).is_some_and(Value::is_null) && fields.remove(key).is_some()
            }
            ([Segment::Map { key }, rest @ ..], Value::Object(fields)) => {
                fields.get_mut(key).is_some_and(|value| drop_at(value, rest))
            }
            ([Segment::Seq { .. }, rest @ ..], Value::Array(items)) => {
                items.iter_mut().map(|item| drop_at(item, rest)).filter(|dropped| *dropped).count() > 0
            }
            _ => false,
        }
    }
    error.inner().to_string().starts_with("invalid type: null")
        && drop_at(value, &error.path().iter().collect::<Vec<_>>())
}

/// Refuses a PATCH of which a field is not of its type, before it matters what it is applied to.
pub fn check_types<T: Serialize + DeserializeOwned + Default>(patch: &Object) -> crate::Result<()> {
    overlay(&T::default(), patch.clone()).map(drop)
}

/// A value that did not fit its type, as the contract names it (contract 00 §7): what serde found, at `path`.
pub fn misfit(path: &str, error: &impl Display) -> Error {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or(&text);
    let missing = reason.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    let (path, code) = match missing {
        Some(field) if path.is_empty() || path == "." => (field.to_owned(), "required"),
        Some(field) => (format!("{path}.{field}"), "required"),
        None if reason.starts_with("unknown variant") => (path.to_owned(), "enum"),
        None if reason.starts_with("unknown field") => (path.to_owned(), "unknown"),
        None if reason.starts_with("invalid value: integer") => (path.to_owned(), "range"),
        None => (path.to_owned(), "type"),
    };
    let message = match missing {
        Some(_) => format!("{path} is required"),
        None => {
            let subject = if path.is_empty() || path == "." { "The body" } else { path.as_str() };
            in_words(reason).map_or_else(|| format!("{subject}: {reason}"), |words| format!("{subject} {words}"))
        }
    };
    Error::invalid(&path, code, message)
}

/// What serde found, in the words of JSON: `must be a whole number, not a string`.
fn in_words(reason: &str) -> Option<String> {
    let kind = |text: &str| match text {
        "map" | "a map" => "an object".to_owned(),
        "sequence" | "a sequence" => "a list".to_owned(),
        "unit value" | "Option value" => "null".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        text if text.starts_with("struct ") => "an object".to_owned(),
        // It may be secret, or long.
        text if text.starts_with("string ") => "a string".to_owned(),
        text => {
            let number = ["integer ", "floating point ", "boolean "].iter().find_map(|kind| text.strip_prefix(kind));
            number.unwrap_or(text).replace('`', "")
        }
    };
    let misfit = reason.strip_prefix("invalid type: ").or_else(|| reason.strip_prefix("invalid value: "));
    if let Some((given, expected)) = misfit.and_then(|rest| rest.rsplit_once(", expected ")) {
        return Some(format!("must be {}, not {}", kind(expected), kind(given)));
    }
    let (given, known) = reason.strip_prefix("unknown variant ")?.split_once(", expected ")?;
    let known = known.strip_prefix("one of ").unwrap_or(known);
    Some(format!("must be {}, not {}", known.replace('`', ""), given.replace('`', "")))
}

/// Text that names one of several things and is judged elsewhere, in lower case: `#[serde(deserialize_with)]`.
pub fn lower_case<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|text| text.to_lowercase())
}

/// Reads a field that the server alone sets: what a client sends back of it says nothing.
pub fn read_only<'de, D: Deserializer<'de>, T: Default>(given: D) -> Result<T, D::Error> {
    IgnoredAny::deserialize(given)?;
    Ok(T::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_from_outside_may_take_a_bounded_memory_whatever_its_text_holds() {
        let list = |item: &str, count: usize| format!("[{}0]", format!("{item},").repeat(count));
        let is_read = |text: String| parse::<Value>(text.as_bytes()).is_ok();
        assert!(is_read(list("0", 500_000)) && !is_read(list("0", 550_000)));
        assert!(is_read(list(r#"{"a":0}"#, 80_000)) && !is_read(list(r#"{"a":0}"#, 90_000)));
        let text = format!(r#""\"{}""#, ",[{".repeat(1 << 20));
        assert_eq!(parse::<String>(text.as_bytes()).expect("text").len(), 3 * (1 << 20) + 1);
    }

    #[test]
    fn a_null_that_does_not_fit_counts_as_absent_wherever_a_field_may_be_absent() {
        #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        struct Settings {
            count: u32,
            tags: Vec<String>,
            parts: Vec<Settings>,
            any: Value,
        }
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Record {
            name: String,
            settings: Settings,
        }
        let record = || Record { name: "A".into(), settings: Settings::default() };
        let patched = |settings: Value| {
            let Value::Object(patch) = serde_json::json!({"settings": settings}) else { unreachable!("an object") };
            overlay(&record(), patch)
        };
        let parts = serde_json::json!([{"count": 1, "tags": null}, {"count": null, "tags": null}, {"parts": null}]);
        let settings =
            patched(serde_json::json!({"count": null, "parts": parts, "any": {"kept": null}})).expect("it fits");
        let counts: Vec<_> = settings.settings.parts.iter().map(|part| part.count).collect();
        assert_eq!((counts, settings.settings.any), (vec![1, 0, 0], serde_json::json!({"kept": null})));
        let refused = patched(serde_json::json!({"tags": [null]})).expect_err("no text");
        assert_eq!(refused.message(), "settings.tags[0] must be a string, not null");
    }

    #[test]
    fn what_does_not_fit_is_said_in_the_words_of_json() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "it is never read")]
        struct Settings {
            count: u32,
            name: String,
            tags: Vec<String>,
            on: bool,
            part: Option<Box<Settings>>,
            mode: Mode,
        }
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Mode {
            Fast,
            Slow,
        }
        for (body, message) in [
            (r#"{"count": "x"}"#, "count must be a whole number of 0 or more, not a string"),
            (r#"{"count": -1}"#, "count must be a whole number of 0 or more, not -1"),
            (r#"{"count": 1.5}"#, "count must be a whole number of 0 or more, not 1.5"),
            (r#"{"name": {}}"#, "name must be a string, not an object"),
            (r#"{"tags": "x"}"#, "tags must be a list, not a string"),
            (r#"{"tags": [1]}"#, "tags[0] must be a string, not 1"),
            (r#"{"on": null}"#, "on must be true or false, not null"),
            (r#"{"part": 5}"#, "part must be an object, not 5"),
            (r#"{"mode": "idle"}"#, "mode must be fast or slow, not idle"),
            (r#"{"count": 1}"#, "name is required"),
            ("5", "The body must be an object, not 5"),
        ] {
            let mut reader = serde_json::Deserializer::from_str(body);
            let error = serde_path_to_error::deserialize::<_, Settings>(Strict(&mut reader)).expect_err(body);
            let path = error.path().to_string();
            assert_eq!(misfit(&path, &error.into_inner()).message(), message, "{body}");
        }
    }
}
