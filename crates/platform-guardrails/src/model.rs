use platform_core::{Object, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub(crate) const BLOCK_MESSAGE: &str = "This request cannot be processed.";

/// The rules of an assistant or agent; what has its default is left out when it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Guardrails {
    /// Whether they hold.
    pub enabled: bool,
    /// What is said instead of what was blocked.
    #[serde(skip_serializing_if = "is_default_message")]
    pub block_message: String,
    /// Input rules see the results of tools, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub scan_tool_results: bool,
    /// Rules on user messages, at most 50.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input: Vec<Rule>,
    /// Rules on answers, at most 50.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<Rule>,
}

impl Default for Guardrails {
    fn default() -> Self {
        Self {
            enabled: false,
            block_message: BLOCK_MESSAGE.to_owned(),
            scan_tool_results: false,
            input: Vec::new(),
            output: Vec::new(),
        }
    }
}

impl Guardrails {
    /// Enumerations match in any case and are kept in lower case (contract 00 §2.8).
    pub fn name_in_lower_case(&mut self) {
        for rule in self.input.iter_mut().chain(&mut self.output) {
            (rule.kind, rule.action) = (rule.kind.to_lowercase(), rule.action.to_lowercase());
            if let (true, Some(Value::Array(types))) = (rule.kind == "pii", rule.config.get_mut("types")) {
                for kind in types.iter_mut().filter(|kind| kind.is_string()) {
                    *kind = kind.as_str().unwrap_or_default().to_lowercase().into();
                }
            }
        }
    }
}

fn is_default_message(message: &String) -> bool {
    message == BLOCK_MESSAGE
}

/// One rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = GuardrailRule)]
pub struct Rule {
    /// Name, 1 to 64 characters, unique within its stage.
    pub name: String,
    /// `regex`, `deny_list`, `pii`, `prompt_injection` or `model_judge`.
    pub kind: String,
    /// `block`, `redact` or `warn`.
    pub action: String,
    /// Whether it holds.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    #[schema(default = yes)]
    pub enabled: bool,
    /// What its kind needs.
    #[schema(value_type = Object)]
    pub config: Object,
}

fn yes() -> bool {
    true
}

/// A rule that failed, or what a judge said (an element of `guardrailResults.results`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Name of the rule.
    pub guardrail: String,
    /// Its kind.
    pub kind: String,
    /// `input` or `output`.
    pub stage: String,
    /// What it does.
    pub action: String,
    /// Nothing was wrong.
    pub passed: bool,
    /// How sure it is, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub score: Option<f64>,
    /// One sentence.
    pub message: String,
    /// The message it is about.
    pub message_uid: String,
    /// When it was found.
    pub timestamp_ms: Timestamp,
}
