//! Groups of tools that are part of the platform (contract 04 §6).

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use chrono::Datelike;
use platform_core::{AccountId, Clock, Object, Timestamp, without_nul};
use platform_egress::Egress;
use platform_runtime::{
    Action, ChildPool, FINISH_TOOL, Finish, GroupTool, Later, Schema, Tool, ToolGroup, ToolResult, fit_bytes,
};
use serde_json::{Value, json};

use crate::{failure::Failure, http::free_request};

/// A group that needs no tool server.
pub(crate) struct BuiltInGroup {
    pub uid: &'static str,
    name: &'static str,
    description: &'static str,
    pub tools: Vec<BuiltInTool>,
}

/// A tool of such a group.
#[derive(Clone)]
pub(crate) struct BuiltInTool {
    pub tool: Tool,
    pub does: Does,
    schema: Arc<Schema>,
}

/// What a built-in tool does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    CurrentTime,
    WaitUntil,
    HttpRequest,
    FinishExecution,
    Tasks,
}

impl Does {
    /// Calls wait for approval, unless the assistant says of others that they do.
    pub fn is_delicate(self) -> bool {
        self == Self::HttpRequest
    }

    /// A call may be made again.
    pub fn is_repeatable(self) -> bool {
        self != Self::HttpRequest
    }
}

impl BuiltInGroup {
    pub fn group(&self) -> ToolGroup {
        let tool =
            |of: &BuiltInTool| GroupTool { name: of.tool.name.clone(), description: of.tool.description.clone() };
        ToolGroup {
            uid: self.uid.to_owned(),
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            tools: self.tools.iter().map(tool).collect(),
        }
    }
}

/// All of them.
pub(crate) static GROUPS: LazyLock<Vec<BuiltInGroup>> = LazyLock::new(|| {
    let tool = |name: &str, does, description: &str, properties: Value, required: &[&str]| {
        let parameters = json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false});
        let schema = Arc::new(Schema::new(parameters.clone()));
        BuiltInTool {
            tool: Tool { name: name.to_owned(), description: description.to_owned(), parameters },
            does,
            schema,
        }
    };
    vec![
        BuiltInGroup {
            uid: "builtin-time",
            name: "Time",
            description: "Tells the time, and has agents wait.",
            tools: vec![
                tool("current_time", Does::CurrentTime, "The current date and time in UTC.", json!({}), &[]),
                tool(
                    "wait_until",
                    Does::WaitUntil,
                    "Pauses the work until a moment, or for a number of seconds.",
                    json!({
                        "timestampMs": {"type": "integer", "description": "Moment in milliseconds since 1970"},
                        "seconds": {"type": "number", "minimum": 0, "description": "Seconds from now"},
                    }),
                    &[],
                ),
            ],
        },
        BuiltInGroup {
            uid: "builtin-tasks",
            name: "Tasks",
            description: "Has agents plan their work in tasks that can be watched.",
            tools: vec![
                tool(
                    "set_tasks",
                    Does::Tasks,
                    "Sets the list of tasks that the work consists of, in place of the one there is.",
                    json!({"tasks": {"type": "array", "maxItems": 200, "items": {"type": "object", "properties": {
                        "title": {"type": "string"},
                        "description": {"type": "string"},
                        "completed": {"type": "boolean"},
                    }, "required": ["title"]}}}),
                    &["tasks"],
                ),
                tool(
                    "complete_task",
                    Does::Tasks,
                    "Marks a task as done, by its id.",
                    json!({"id": {"type": "string", "description": "Id of the task, as set_tasks gave it"}}),
                    &["id"],
                ),
            ],
        },
        BuiltInGroup {
            uid: "builtin-http",
            name: "HTTP",
            description: "Calls any public address.",
            tools: vec![tool(
                "http_request",
                Does::HttpRequest,
                "Sends an HTTP request to a public address and returns status and body.",
                json!({
                    "method": {"type": "string", "enum": ["GET", "POST", "PUT", "PATCH", "DELETE"]},
                    "url": {"type": "string", "description": "Absolute http or https address"},
                    "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                    "body": {"description": "Text, or a value that is sent as JSON"},
                }),
                &["method", "url"],
            )],
        },
        BuiltInGroup {
            uid: "builtin-finish",
            name: "Finish",
            description: "Ends the work with a final message.",
            tools: vec![tool(
                FINISH_TOOL,
                Does::FinishExecution,
                "Ends the work: the message is the final answer.",
                json!({"message": {"type": "string"}, "data": {"type": "object"}}),
                &["message"],
            )],
        },
    ]
});

/// Carries out a built-in tool.
pub(crate) struct BuiltInAction {
    pub of: BuiltInTool,
    pub account: AccountId,
    pub children: Arc<ChildPool>,
    pub clock: Arc<dyn Clock>,
    pub egress: Egress,
    /// The turn can wait for a time to pass.
    pub may_wait: bool,
    pub timeout: Duration,
    /// Longest result in bytes.
    pub most_bytes: usize,
}

#[async_trait]
impl Action for BuiltInAction {
    async fn call(&self, id: &str, arguments: Object) -> ToolResult {
        let given = Value::Object(arguments.clone());
        let issues = self.of.schema.problems(&self.children, &self.account, &given, 10).await;
        if !issues.is_empty() {
            return Failure::arguments(issues).into_result();
        }
        match self.of.does {
            Does::CurrentTime => ToolResult::of(&current_time(self.clock.now())),
            Does::WaitUntil if self.may_wait => wait_until(self.clock.now(), &arguments),
            Does::WaitUntil => ToolResult::error("TOOL_NOT_AVAILABLE", "A chat cannot wait; only agents can."),
            // Agents put their own action in the place of this one.
            Does::Tasks => ToolResult::error("TOOL_NOT_AVAILABLE", "A chat has no tasks; only agents have."),
            Does::HttpRequest => match free_request(&self.egress, id, &arguments, self.timeout).await {
                Ok(value) => {
                    let text = fit_bytes(without_nul(value).to_string(), self.most_bytes);
                    ToolResult::of(&Value::String(text))
                }
                Err(failure) => failure.fit().into_result(),
            },
            Does::FinishExecution => {
                let message = arguments.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
                let data = arguments.get("data").and_then(Value::as_object).cloned();
                ToolResult { finish: Some(Finish { message, data }), ..ToolResult::of(&json!({"finished": true})) }
            }
        }
    }
}

/// Waits until a moment; one that has passed is there already.
fn wait_until(now: Timestamp, arguments: &Object) -> ToolResult {
    let moment = arguments.get("timestampMs").and_then(Value::as_i64).map(Timestamp);
    let seconds = arguments.get("seconds").and_then(Value::as_f64).filter(|seconds| seconds.is_finite());
    #[expect(clippy::cast_possible_truncation, reason = "a number of milliseconds that is too large is the largest")]
    let after = seconds.map(|seconds| Timestamp(now.0.saturating_add((seconds.clamp(0.0, 1e12) * 1000.0) as i64)));
    match moment.or(after) {
        None => ToolResult::error("INVALID_ARGUMENTS", "Give timestampMs or seconds."),
        Some(moment) if moment <= now => ToolResult::of(&json!({"waitedUntilMs": now})),
        Some(moment) => ToolResult::later(Later::At(moment)),
    }
}

fn current_time(now: Timestamp) -> Value {
    let day = chrono::DateTime::from_timestamp_millis(now.0).map(|time| time.weekday().to_string());
    json!({"iso": now.to_iso(), "timestampMs": now.0, "dayOfWeek": day})
}
