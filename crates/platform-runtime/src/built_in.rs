//! Groups of tools that are part of the platform (contract 04 §6).

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use chrono::Datelike;
use platform_core::{AccountId, Clock, Code, Object, Result, Timestamp};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    Approval, ChildPool, NamePrefix, Schema, SourceTool, Tool, ToolSource, ToolTurn, TurnScope,
    tools::{Action, Callbacks, FINISH_TOOL, Finish, GroupTool, Later, ToolGroup, ToolResult},
};

/// A group that needs no record: whoever owns the data that its tools touch declares it.
#[derive(Clone)]
pub struct BuiltInGroup {
    /// Id to choose it by, `builtin-…`.
    pub uid: &'static str,
    /// Name.
    pub name: &'static str,
    /// What it is for.
    pub description: &'static str,
    /// Its tools.
    pub tools: Vec<BuiltInTool>,
}

/// A tool of such a group.
#[derive(Clone)]
pub struct BuiltInTool {
    tool: Tool,
    /// Of its parameters; compiled when it is first called, since a validator takes megabytes.
    schema: Arc<OnceLock<Schema>>,
    approval: Approval,
    is_repeatable: bool,
    does: Arc<dyn BuiltInAction>,
}

/// A call of a built-in tool, whose arguments fit its parameters.
pub struct BuiltInCall<'a> {
    /// Id of the call.
    pub id: &'a str,
    /// Who pays for it.
    pub account: &'a AccountId,
    /// For whom the turn runs, and what it sees.
    pub scope: &'a TurnScope,
    /// Name of the tool.
    pub tool: &'a str,
    /// What it is called with.
    pub arguments: &'a Object,
    /// Longest call.
    pub timeout: Duration,
    /// It is given up then.
    pub until: Instant,
    /// Where its result may come later; `None` = the turn is a chat's, which cannot wait.
    pub callbacks: Option<&'a dyn Callbacks>,
}

/// Does what built-in tools do.
#[async_trait]
pub trait BuiltInAction: Send + Sync {
    /// Makes the call. What goes wrong is a result, too ([`ToolResult::error`]).
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult;
}

impl BuiltInTool {
    /// A tool that may be called again and needs no approval; `properties` and `required` are of the JSON Schema of its
    /// parameters.
    pub fn new(
        name: &str,
        description: &str,
        properties: &Value,
        required: &[&str],
        does: Arc<dyn BuiltInAction>,
    ) -> Self {
        let parameters = json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false});
        let (name, description) = (name.to_owned(), description.to_owned());
        let tool = Tool { name, description, parameters: Arc::new(parameters) };
        Self { tool, schema: Arc::default(), approval: Approval::No, is_repeatable: true, does }
    }

    /// The same: its calls are not made again when their result was lost.
    #[must_use]
    pub fn once(self) -> Self {
        Self { is_repeatable: false, ..self }
    }

    /// The same: its calls wait for approval unless the assistant names others that do, and are not made again.
    #[must_use]
    pub fn delicate(self) -> Self {
        Self { approval: Approval::UnlessOthers, is_repeatable: false, ..self }
    }
}

/// The source of the groups that are part of the platform.
pub struct BuiltInTools {
    groups: Vec<BuiltInGroup>,
    children: Arc<ChildPool>,
}

impl BuiltInTools {
    /// `children` check arguments that take longer.
    pub fn new(groups: Vec<BuiltInGroup>, children: Arc<ChildPool>) -> Self {
        Self { groups, children }
    }

    fn find(&self, uid: &str) -> Option<&BuiltInGroup> {
        self.groups.iter().find(|group| group.uid == uid)
    }
}

impl BuiltInGroup {
    fn group(&self) -> ToolGroup {
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

#[async_trait]
impl ToolSource for BuiltInTools {
    fn built_in(&self) -> Vec<ToolGroup> {
        self.groups.iter().map(BuiltInGroup::group).collect()
    }

    async fn group(&self, _: &AccountId, uid: &str) -> Result<Option<ToolGroup>> {
        Ok(self.find(uid).map(BuiltInGroup::group))
    }

    async fn tools(&self, account: &AccountId, uid: &str, turn: &ToolTurn<'_>) -> Result<Option<Vec<SourceTool>>> {
        let Some(group) = self.find(uid) else { return Ok(None) };
        let offered = group.tools.iter().map(|of| SourceTool {
            tool: of.tool.clone(),
            prefix: NamePrefix::Never,
            approval: of.approval,
            is_repeatable: of.is_repeatable,
            action: Arc::new(Checked {
                of: of.clone(),
                account: account.clone(),
                scope: Arc::clone(turn.scope),
                children: Arc::clone(&self.children),
                timeout: turn.timeout,
                callbacks: turn.callbacks.cloned(),
            }),
        });
        Ok(Some(offered.collect()))
    }
}

/// A built-in tool of a turn: its arguments are checked before it is called.
struct Checked {
    of: BuiltInTool,
    account: AccountId,
    scope: Arc<TurnScope>,
    children: Arc<ChildPool>,
    timeout: Duration,
    callbacks: Option<Arc<dyn Callbacks>>,
}

#[async_trait]
impl Action for Checked {
    async fn call(&self, id: &str, arguments: Object) -> ToolResult {
        timeout(self.timeout, self.check_and_call(id, arguments)).await.unwrap_or_else(|_| {
            let message = format!("The call takes more than {} ms.", self.timeout.as_millis());
            ToolResult::error(Code::UPSTREAM_TIMEOUT.as_str(), message)
        })
    }
}

impl Checked {
    async fn check_and_call(&self, id: &str, arguments: Object) -> ToolResult {
        let given = Value::Object(arguments.clone());
        let schema = self.of.schema.get_or_init(|| Schema::new(Arc::clone(&self.of.tool.parameters)));
        let issues = schema.problems(&self.children, &self.account, &given, 10).await;
        if !issues.is_empty() {
            return ToolResult::invalid_arguments(&issues);
        }
        let call = BuiltInCall {
            id,
            account: &self.account,
            scope: &self.scope,
            tool: &self.of.tool.name,
            arguments: &arguments,
            timeout: self.timeout,
            until: Instant::now() + self.timeout,
            callbacks: self.callbacks.as_deref(),
        };
        self.of.does.call(call).await
    }
}

/// The group `builtin-time`: tells the time, and has agents wait.
pub fn time_tools(clock: Arc<dyn Clock>) -> BuiltInGroup {
    let does: Arc<dyn BuiltInAction> = Arc::new(Time(clock));
    BuiltInGroup {
        uid: "builtin-time",
        name: "Time",
        description: "Tells the time, and has agents wait.",
        tools: vec![
            BuiltInTool::new("current_time", "The current date and time in UTC.", &json!({}), &[], Arc::clone(&does)),
            BuiltInTool::new(
                "wait_until",
                "Pauses the work until a moment, or for a number of seconds.",
                &json!({
                    "timestampMs": {"type": "integer", "description": "Moment in milliseconds since 1970"},
                    "seconds": {"type": "number", "minimum": 0, "description": "Seconds from now"},
                }),
                &[],
                does,
            ),
        ],
    }
}

struct Time(Arc<dyn Clock>);

#[async_trait]
impl BuiltInAction for Time {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        match (call.tool, call.callbacks) {
            ("current_time", _) => ToolResult::of(&current_time(self.0.now())),
            (_, Some(_)) => wait_until(self.0.now(), call.arguments),
            (_, None) => ToolResult::error("TOOL_NOT_AVAILABLE", "A chat cannot wait; only agents can."),
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

/// The group `builtin-finish`: ends the work with a final message.
pub fn finish_tools() -> BuiltInGroup {
    BuiltInGroup {
        uid: "builtin-finish",
        name: "Finish",
        description: "Ends the work with a final message.",
        tools: vec![BuiltInTool::new(
            FINISH_TOOL,
            "Ends the work: the message is the final answer.",
            &json!({"message": {"type": "string"}, "data": {"type": "object"}}),
            &["message"],
            Arc::new(FinishExecution),
        )],
    }
}

struct FinishExecution;

#[async_trait]
impl BuiltInAction for FinishExecution {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        let message = call.arguments.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        let data = call.arguments.get("data").and_then(Value::as_object).cloned();
        ToolResult { finish: Some(Finish { message, data }), ..ToolResult::of(&json!({"finished": true})) }
    }
}
