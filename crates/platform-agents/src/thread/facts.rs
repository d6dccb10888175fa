//! What a thread keeps beside its columns.

use std::collections::BTreeMap;

use platform_conversation::{File, TurnRequest};
use platform_core::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::model::{EmptyContentRetries, ParentLink, PendingApproval, Task, ThreadResult};

/// What a thread keeps beside what is looked for: everything that no query filters by.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Facts {
    pub turn: TurnFacts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<PendingApproval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hand_offs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Task>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ThreadResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Value>,
    /// Gets the events of this thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
    /// Messages whose files are not fetched yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unfetched: Vec<Unfetched>,
    /// Results that came while a turn still stored that they come later, by call or thread.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub arrived: BTreeMap<String, Value>,
    /// What it did in words, and the revision that is true of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<(i64, String)>,
    /// It is to be paused when its files are there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub begins_paused: bool,
}

/// Files of a message that are to be fetched.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Unfetched {
    pub message: String,
    pub files: Vec<File>,
}

/// What belongs to the newest turn.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TurnFacts {
    pub request: TurnRequest,
    /// Version of the agent that it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Prompt tokens of the thread before it.
    pub input_before: u64,
    pub attempt: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<EmptyContentRetries>,
}

/// A pause that was asked for, or that holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Pause {
    /// It is to come after the running step.
    pub requested: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Who handed work over, and with which rights.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Parent {
    #[serde(flatten)]
    pub link: ParentLink,
    /// Agents above this one, the nearest last.
    pub ancestors: Vec<String>,
    /// Tools that need approval there need it here.
    pub approval_tools: Vec<String>,
}
