use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::Error;

/// A JSON object whose keys the client chooses.
pub type Object = serde_json::Map<String, Value>;

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
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let path = error.path().to_string();
        misfit(&path, &error.into_inner())
    })
}

/// A value that did not fit its type, as the contract names it (contract 00 §7): what serde found, at `path`.
pub fn misfit(path: &str, error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or(&text);
    let missing = reason.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    let (path, code) = match missing {
        Some(field) if path.is_empty() || path == "." => (field.to_owned(), "required"),
        Some(field) => (format!("{path}.{field}"), "required"),
        None if reason.starts_with("unknown variant") => (path.to_owned(), "enum"),
        None => (path.to_owned(), "type"),
    };
        None if reason.starts_with("unknown field") => (path.to_owned(), "unknown"),
        None if reason.starts_with("invalid value: integer") => (path.to_owned(), "range"),
    let message = match missing {
        Some(_) => format!("{path} is required"),
        None => format!("{path}: {reason}"),
    };
    Error::invalid(&path, code, message)
}

/// Enumerations in requests match in any case (contract 00 §2.8): `#[serde(deserialize_with)]`.
pub fn any_case<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: DeserializeOwned,
{
    let text = String::deserialize(deserializer)?;
    serde_json::from_value(Value::String(text.to_lowercase())).map_err(serde::de::Error::custom)
}
