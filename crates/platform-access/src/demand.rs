use std::collections::BTreeSet;

use serde_json::Value;

use crate::kind::Kind;

/// A record of some kind, by its id.
pub type Reference = (Kind, String);
/// Records, each once.
pub type References = BTreeSet<Reference>;

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

/// A field of a record, or one within it after a `/`, that holds an id of a kind or a list of them.
pub type ReferenceField = (&'static str, Kind);

/// The records that such fields refer to; `field` gives a field of the top level, `null` where there is none.
pub fn references(fields: &[ReferenceField], field: impl Fn(&str) -> Value) -> References {
    let mut found = References::new();
    for (path, kind) in fields {
        let (name, within) = path.split_once('/').unwrap_or((path, ""));
        let value = field(name);
        let value = if within.is_empty() { &value } else { &value[within] };
        let ids = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        found.extend(ids.iter().filter_map(|id| Some((*kind, id.as_str()?.to_owned()))));
    }
    found
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
    /// It goes on, so that who reaches all now may reach less later: the project is said in any case.
    pub lasts: bool,
}
