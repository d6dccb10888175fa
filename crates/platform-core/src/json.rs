use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Error, Result};

/// A JSON object whose keys the client chooses.
pub type Object = serde_json::Map<String, Value>;

/// Applies a PATCH (contract 00 §2.9): each given top-level field replaces the stored one,
/// `null` brings its default back. The result is read as strictly as a creation.
pub fn overlay<T: Serialize + DeserializeOwned>(current: &T, patch: Object) -> Result<T> {
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
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|e| {
        let path = e.path().to_string();
        Error::invalid(&path, "type", format!("{path}: {}", e.into_inner()))
    })
}
