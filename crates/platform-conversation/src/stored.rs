use platform_core::{Error, Result};
use platform_runtime::{Role, ToolCall};
use serde::Deserialize;

use crate::message::File;

/// A stored message, read as far as a model needs it.
#[derive(Debug, Deserialize)]
pub struct Stored {
    pub(crate) uid: String,
    pub(crate) role: Role,
    pub(crate) content: Content,
    pub(crate) summary: Option<String>,
    #[serde(default)]
    pub(crate) tool_calls: Vec<ToolCall>,
    pub(crate) tool_call_id: Option<String>,
    #[serde(rename = "contentSource")]
    pub(crate) content_source: Option<String>,
    /// Absent when no model was asked.
    #[serde(rename = "latencyMs")]
    pub(crate) latency_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Content {
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) files: Vec<File>,
}

impl Stored {
    /// Id of the message.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Who says it.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Reads a stored message.
    pub fn read(body: &str) -> Result<Self> {
        serde_json::from_str(body).map_err(Error::internal)
    }

    /// What it says.
    pub fn text(&self) -> &str {
        &self.content.message
    }
}
