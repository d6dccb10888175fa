//! What a thread sets out to do: the tools of the group `builtin-tasks`.

use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, Id, Object, Result, run_detached};
use platform_db::{Conn, Db};
use platform_runtime::{Action, ToolResult, TurnTool};
use serde_json::{Value, json};

use super::{
    model::Task,
    repository::{lock, note_fact},
};

const MOST_TASKS: usize = 200;

/// Carries out a tool of the group for one thread.
#[derive(Clone)]
struct TaskAction {
    db: Db,
    account: AccountId,
    thread: String,
    completes: bool,
    /// Checks the arguments.
    checks: Arc<dyn Action>,
}

/// Gives the tools of the group their thread.
pub(crate) fn with_thread(tools: &mut [TurnTool], db: &Db, account: &AccountId, thread: &str) {
    for tool in tools {
        let completes = match tool.tool.name.as_str() {
            "set_tasks" => false,
            "complete_task" => true,
            _ => continue,
        };
        if let Some(checks) = tool.action.take() {
            let (db, account, thread) = (db.clone(), account.clone(), thread.to_owned());
            tool.action = Some(Arc::new(TaskAction { db, account, thread, completes, checks }));
        }
    }
}

#[async_trait]
impl Action for TaskAction {
    async fn call(&self, id: &str, arguments: Object) -> ToolResult {
        // The group's own answer to good arguments is that only agents have tasks.
        let checked = self.checks.call(id, arguments.clone()).await;
        if !checked.text.contains("TOOL_NOT_AVAILABLE") {
            return checked;
        }
        match self.change(arguments).await {
            Ok(result) => result,
            Err(error) => ToolResult::error("UPSTREAM_ERROR", error.message()),
        }
    }
}

impl TaskAction {
    /// A task of its own: the turn stores results of other calls meanwhile, and waits for the lock that this holds.
    async fn change(&self, arguments: Object) -> Result<ToolResult> {
        let of = self.clone();
        run_detached("change tasks", async move {
            let mut conn = of.db.conn().await?;
            conn.transaction::<_, Error, _>(async |conn| of.change_in(conn, &arguments).await).await
        })
        .await
    }

    async fn change_in(&self, conn: &mut Conn, arguments: &Object) -> Result<ToolResult> {
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
            let given = arguments.get("tasks").and_then(Value::as_array).into_iter().flatten().take(MOST_TASKS);
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
