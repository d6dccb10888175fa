//! What a thread sets out to do: the tools of the group `builtin-tasks`.

use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, Id, Object, Result, run_detached};
use platform_db::{Conn, Db};
use platform_runtime::{BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, ToolResult};
use serde_json::{Value, json};

use crate::thread::{
    model::Task,
    repository::{lock, note_fact},
};

const MAX_TASKS: usize = 200;

/// The group `builtin-tasks` (contract 04 §6).
pub fn task_tools(db: &Db) -> BuiltInGroup {
    let does: Arc<dyn BuiltInAction> = Arc::new(Tasks(db.clone()));
    let set = BuiltInTool::new(
        "set_tasks",
        "Sets the list of tasks that the work consists of, in place of the one there is.",
        &json!({"tasks": {"type": "array", "maxItems": MAX_TASKS, "items": {"type": "object", "properties": {
            "title": {"type": "string"},
            "description": {"type": "string"},
            "completed": {"type": "boolean"},
        }, "required": ["title"]}}}),
        &["tasks"],
        Arc::clone(&does),
    );
    let complete = BuiltInTool::new(
        "complete_task",
        "Marks a task as done, by its id.",
        &json!({"id": {"type": "string", "description": "Id of the task, as set_tasks gave it"}}),
        &["id"],
        does,
    );
    BuiltInGroup {
        uid: "builtin-tasks",
        name: "Tasks",
        description: "Has agents plan their work in tasks that can be watched.",
        tools: vec![set, complete],
    }
}

struct Tasks(Db);

#[async_trait]
impl BuiltInAction for Tasks {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        let Some(callbacks) = call.callbacks else {
            return ToolResult::error("TOOL_NOT_AVAILABLE", "A chat has no tasks; only agents have.");
        };
        let change = Change {
            account: call.account.clone(),
            thread: callbacks.thread().to_owned(),
            completes: call.tool == "complete_task",
            arguments: call.arguments.clone(),
        };
        let db = self.0.clone();
        // A task of its own: the turn stores results of other calls meanwhile, and waits for the lock that this holds.
        let changed = run_detached("change tasks", async move {
            let mut conn = db.conn().await?;
            conn.transaction::<_, Error, _>(async |conn| change.apply_in(conn).await).await
        });
        changed.await.unwrap_or_else(|error| ToolResult::error("UPSTREAM_ERROR", error.message()))
    }
}

/// A change of the tasks of a thread.
struct Change {
    account: AccountId,
    thread: String,
    completes: bool,
    arguments: Object,
}

impl Change {
    async fn apply_in(&self, conn: &mut Conn) -> Result<ToolResult> {
        let arguments = &self.arguments;
        let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        // Calls of one answer change the list one after the other.
        let thread = lock(conn, &self.account, &self.thread).await?;
        let tasks = if self.completes {
            let mut tasks = thread.map(|thread| thread.facts.tasks).unwrap_or_default();
            let id = arguments.get("id").and_then(Value::as_str).unwrap_or_default();
            let Some(task) = tasks.iter_mut().find(|task| task.id == id) else {
                return Ok(ToolResult::error("INVALID_ARGUMENTS", format!("There is no task `{id}`.")));
            };
            task.completed = true;
            tasks
        } else {
            enum TaskKind {}
            let given = arguments.get("tasks").and_then(Value::as_array).into_iter().flatten().take(MAX_TASKS);
            let task = |of: &Value| Task {
                id: Id::<TaskKind>::generate().into(),
                title: of.as_str().map_or_else(|| text(of, "title"), str::to_owned),
                description: text(of, "description"),
                completed: of.get("completed").and_then(Value::as_bool).unwrap_or(false),
            };
            given.map(task).collect()
        };
        let value = serde_json::to_value(&tasks).map_err(Error::internal)?;
        note_fact(conn, &self.account, &self.thread, "tasks", &value).await?;
        Ok(ToolResult::of(&json!({"tasks": tasks})))
    }
}
