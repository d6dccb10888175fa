use platform_core::without_nul;
use platform_egress::EgressError;
use platform_runtime::ToolResult;
use serde_json::{Map, Value};

/// Of an answer that is no success so much is shown, in bytes (contract 04 §7).
const MAX_BODY: usize = 4096;
const MAX_MESSAGE: usize = 2048;

/// Why a call gave no result, in the terms of contract 04 §7.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    pub code: String,
    pub message: Option<String>,
    pub issues: Vec<String>,
    pub body: Option<Value>,
}

impl Failure {
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: Some(message.into()), issues: Vec::new(), body: None }
    }

    /// An answer with a status that is no success.
    pub fn status(status: u16, body: Value) -> Self {
        Self { code: format!("HTTP_{status}"), message: None, issues: Vec::new(), body: Some(body) }
    }

    /// Arguments that break the schema.
    pub fn arguments(issues: Vec<String>) -> Self {
        Self { issues, ..Self::new("INVALID_ARGUMENTS", "The arguments do not fit the parameters of the tool.") }
    }

    /// With texts that can be stored, and are not too long.
    pub fn fit(self) -> Self {
        let text = |text: String| {
            let text = text.replace('\0', "\u{fffd}");
            text[..text.floor_char_boundary(MAX_MESSAGE)].to_owned()
        };
        Self {
            message: self.message.map(text),
            issues: self.issues.into_iter().map(text).collect(),
            body: self.body.map(|body| short(without_nul(body))),
            ..self
        }
    }

    /// What the model gets.
    pub fn into_result(self) -> ToolResult {
        let mut fields = Map::new();
        fields.insert("error".to_owned(), self.code.into());
        fields.extend(self.message.map(|message| ("message".to_owned(), message.into())));
        if !self.issues.is_empty() {
            fields.insert("issues".to_owned(), self.issues.into());
        }
        fields.extend(self.body.map(|body| ("body".to_owned(), body)));
        ToolResult::of(&Value::Object(fields))
    }

    /// What a test result says.
    pub fn to_line(&self) -> String {
        let reasons = self.message.iter().chain(&self.issues).map(String::as_str).collect::<Vec<_>>();
        if reasons.is_empty() { self.code.clone() } else { format!("{}: {}", self.code, reasons.join("; ")) }
    }
}

impl From<EgressError> for Failure {
    fn from(error: EgressError) -> Self {
        let code = match &error {
            EgressError::NotAllowed(_) => "URL_NOT_ALLOWED",
            EgressError::Timeout(_) => "UPSTREAM_TIMEOUT",
            EgressError::TooLarge(_) => "RESPONSE_TOO_LARGE",
            EgressError::Unreachable(_) | EgressError::Failed(_) => "UPSTREAM_ERROR",
        };
        Self::new(code, error.to_string())
    }
}

fn short(body: Value) -> Value {
    let text = match &body {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.len() <= MAX_BODY {
        return body;
    }
    text[..text.floor_char_boundary(MAX_BODY)].into()
}
