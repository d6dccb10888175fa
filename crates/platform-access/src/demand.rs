use serde_json::Value;

use crate::kind::{Kind, Reference, References};

/// What is taken in the project of what is named (contract 05).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Right {
    /// To read and use it: a viewer.
    #[default]
    Use,
    /// To change it: an editor.
    Change,
    /// To decide that a tool is called, or to try one: an editor of the tool's project, too.
    Approve,
}

impl Right {
    /// As the `OpenAPI` document names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Change => "change",
            Self::Approve => "approve",
        }
    }
}

/// A field of a record that holds an id of a kind or a list of them; after a `/` a field of the object, or of each
/// object of the list, that it holds.
pub type ReferenceField = (&'static str, Kind);

/// The records that such fields refer to; `field` gives a field of the top level, `null` where there is none.
pub fn references(fields: &[ReferenceField], field: impl Fn(&str) -> Value) -> References {
    let mut found = References::new();
    for (path, kind) in fields {
        let mut path = path.split('/');
        let mut values = vec![field(path.next().unwrap_or_default())];
        for name in path {
            values = values
                .into_iter()
                .flat_map(elements)
                .map(|value| value.get(name).cloned().unwrap_or_default())
                .collect();
        }
        let ids = values.into_iter().flat_map(elements);
        found.extend(ids.filter_map(|id| Some((*kind, id.as_str()?.to_owned()))));
    }
    found
}

/// The values of a list, or the one value that is none; only objects have fields.
fn elements(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values.into_iter().filter(|value| value.is_object() || value.is_string()).collect(),
        value => vec![value],
    }
}

/// What somebody wants.
#[derive(Debug, Default)]
pub struct Demand<'a> {
    /// The records that it is about, the outermost first.
    pub named: &'a [Reference],
    /// The records that it refers to.
    pub references: References,
    /// The project that something is put into.
    pub joins: Option<String>,
    /// What it takes.
    pub right: Right,
    /// It changes nothing.
    pub reads: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_record_refers_to_is_found_in_fields_lists_and_lists_of_objects() {
        const LABEL: Kind = Kind::placed("label");
        let record = json!({"one": "a", "some": ["b", 7, null], "within": {"some": ["c"], "each": [{"id": "d"}, "x", {}]},
            "each": [{"id": "e"}, {"id": ["f"]}, 7]});
        let fields = ["one", "some", "within/some", "within/each/id", "each/id", "nothing", "one/id", "nothing/id"];
        let fields = fields.map(|field| (field, LABEL));
        let found = references(&fields, |field| record[field].clone());
        let ids: Vec<&str> = found.iter().map(|(_, id)| id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c", "d", "e", "f"]);
    }
}
