use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use platform_core::{Object, Result, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{Catalog, ModelSpec, SecondaryCall, Tool, ToolCall};

/// A tool server or built-in group, as assistants and agents choose it (contract 04 §5).
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ToolGroup {
    /// Id to choose it by.
    pub uid: String,
    /// Name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Its tools.
    pub tools: Vec<GroupTool>,
}

/// A tool of a group.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct GroupTool {
    /// Function name.
    pub name: String,
    /// What it does.
    pub description: String,
}

/// Gives the addresses at which results of calls come in later.
#[async_trait]
pub trait Callbacks: Send + Sync {
    /// The thread that waits for them.
    fn thread(&self) -> &str;

    /// The address for the result of one call, good for one result.
    async fn open(&self, call: &str) -> Result<String>;
}

/// The tool that ends a turn with its message.
pub const FINISH_TOOL: &str = "finish_execution";

/// A tool of a turn.
#[derive(Clone)]
pub struct TurnTool {
    /// What the model is told.
    pub tool: Tool,
    /// The model is not told of it; a call by this name is carried out all the same.
    pub is_alias: bool,
    /// Calls wait for approval.
    pub needs_approval: bool,
    /// A call may be made again when its result was lost.
    pub is_repeatable: bool,
    /// Who carries it out; `None` = the client.
    pub action: Option<Arc<dyn Action>>,
}

/// Carries out calls of one tool.
#[async_trait]
pub trait Action: Send + Sync {
    /// Checks the arguments and makes the call. What goes wrong is a result, too ([`ToolResult::error`]).
    async fn call(&self, id: &str, arguments: Object) -> ToolResult;
}

/// What a tool gave.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// The result as the model gets it: text, or JSON text.
    pub text: String,
    /// The turn ends with this.
    pub finish: Option<Finish>,
    /// There is no result yet.
    pub later: Option<Later>,
    /// What of earlier chats it holds, to be noted with the chat.
    pub recalled: Option<Object>,
    /// Secondary calls that were made for it.
    pub asked: Vec<SecondaryCall>,
}

/// Who gives a result that a call did not give at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Later {
    /// Whoever was given this address.
    Callback(String),
    /// The thread of a sub-agent, by its id.
    Thread(String),
    /// Nobody; the turn goes on at this moment.
    At(Timestamp),
}

/// What a tool ends a turn with.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The last message.
    pub message: String,
    /// Its data.
    pub data: Option<Object>,
}

impl ToolResult {
    /// A value: a string as it is, everything else as JSON text.
    pub fn of(value: &Value) -> Self {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Self { text, finish: None, later: None, recalled: None, asked: Vec::new() }
    }

    /// No result yet.
    pub fn later(later: Later) -> Self {
        Self { later: Some(later), ..Self::of(&Value::String(String::new())) }
    }

    /// Arguments that break the schema of a tool.
    pub fn invalid_arguments(issues: &[String]) -> Self {
        let message = "The arguments do not fit the parameters of the tool.";
        Self::of(&json!({"error": "INVALID_ARGUMENTS", "message": message, "issues": issues}))
    }

    /// A tool that did not succeed (contract 04 §7).
    pub fn error(code: &str, message: impl Into<String>) -> Self {
        Self::of(&json!({"error": code, "message": message.into()}))
    }
}

/// A call that has no stored result yet; stored with its chat or thread before it is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenCall {
    /// The call.
    #[serde(flatten)]
    pub call: ToolCall,
    /// How far it is.
    pub state: CallState,
    /// How many calls of the same answer come after it.
    #[serde(default)]
    pub after: i32,
}

/// How far a call is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// Being made: after a crash nobody knows whether it was.
    Started,
    /// Not made: the turn has no calls left.
    Refused,
    /// The client runs it.
    Client,
    /// It waits for approval.
    Approval,
    /// May be made, and is not begun: it was approved, or the turn was halted before it.
    Approved,
    /// Not approved.
    Rejected,
    /// Made; its result comes later.
    Awaits(Later),
    /// Its result, which came from elsewhere.
    Answered(Value),
}

impl OpenCall {
    /// Nothing can be done until somebody answers.
    pub fn waits(&self) -> bool {
        matches!(self.state, CallState::Client | CallState::Approval | CallState::Awaits(_))
    }

    /// Its result comes later.
    pub fn awaits(&self) -> Option<&Later> {
        match &self.state {
            CallState::Awaits(later) => Some(later),
            _ => None,
        }
    }
}

/// A result of a call, as it is stored and shown.
#[derive(Debug, Clone)]
pub struct CallResult {
    /// The call it answers.
    pub call: ToolCall,
    /// What it gave.
    pub result: ToolResult,
    /// How long it took.
    pub latency: Duration,
}

/// Whether a text is the name of a function, `^[A-Za-z0-9_-]{1,64}$`.
pub fn is_function_name(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(good)
}

/// The result as it fits into so many tokens: a longer one is cut (contract 00 §8).
pub fn fit(catalog: &dyn Catalog, spec: &ModelSpec, text: &str, most: u64) -> String {
    let tokens = catalog.count(spec, text);
    if tokens <= most {
        return text.to_owned();
    }
    // What was cut before is cut further, not wrapped once more.
    let beginning = serde_json::from_str::<Cut>(text).ok();
    let text = beginning.as_ref().map_or(text, |cut| cut.content.as_str());
    let tokens = catalog.count(spec, text);
    let share = |most: u64, tokens: u64| (text.len() as u128 * u128::from(most) / u128::from(tokens.max(1))) as usize;
    let mut end = text.floor_char_boundary(share(most, tokens));
    while end > 0 && catalog.count(spec, &text[..end]) > most {
        end = text.floor_char_boundary(end * 9 / 10);
    }
    cut(&text[..end])
}

/// The result as it fits into so many bytes; 0 = no bound.
pub fn fit_bytes(text: String, most: usize) -> String {
    if most == 0 || text.len() <= most {
        return text;
    }
    cut(&text[..text.floor_char_boundary(most)])
}

fn cut(beginning: &str) -> String {
    json!({"truncated": true, "content": beginning}).to_string()
}

/// A result that was cut.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cut {
    #[expect(dead_code, reason = "it says that this is one")]
    truncated: bool,
    content: String,
}
