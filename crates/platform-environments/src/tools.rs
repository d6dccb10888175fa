//! The group `builtin-sandbox` (contract 04 §6, 13): agents and assistants work on the machine of their environment.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use platform_core::{Checks, Error, Result};
use platform_runtime::{BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, SANDBOX_TOOLS, ToolResult};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    code,
    environment::PgEnvironments,
    session::{
        Call, CommandOutput, NewCommand, OutputMode, StartSandbox, Starter, Worker, encode,
        repository::{self, SessionRow},
    },
};

/// What of each stream a model gets: so much of its beginning, and so much of its end.
const MAX_SHOWN: usize = 16_000;
/// Lines of a file that a model gets at once.
const MAX_LINES: usize = 2000;

/// The group.
pub fn sandbox_tools(environments: &Arc<PgEnvironments>) -> BuiltInGroup {
    let does: Arc<dyn BuiltInAction> = Arc::new(SandboxTools(Arc::clone(environments)));
    let path = json!({"type": "string", "minLength": 1, "maxLength": 4096, "description": "A path on the machine"});
    BuiltInGroup {
        uid: SANDBOX_TOOLS,
        name: "Sandbox",
        description: "Runs commands and works with files on the machine of the environment.",
        tools: vec![
            BuiltInTool::new(
                "run_command",
                "Runs a line of bash on your machine. The directory where it ends is where the next one begins.",
                &json!({
                    "command": {"type": "string", "minLength": 1, "description": "The line"},
                    "cwd": {"type": "string", "description": "Where it runs; the directory of the last command when absent"},
                    "timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 3600, "description": "Longest run"},
                }),
                &["command"],
                Arc::clone(&does),
            )
            .once(),
            BuiltInTool::new(
                "read_sandbox_file",
                "Reads a text file on your machine.",
                &json!({
                    "path": path,
                    "offset": {"type": "integer", "minimum": 0, "description": "First line, from 0"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LINES, "description": "Lines"},
                }),
                &["path"],
                Arc::clone(&does),
            ),
            BuiltInTool::new(
                "write_sandbox_file",
                "Writes a text file on your machine; what was there is replaced.",
                &json!({"path": path, "content": {"type": "string"}}),
                &["path", "content"],
                Arc::clone(&does),
            ),
            BuiltInTool::new(
                "list_sandbox_files",
                "Lists a directory on your machine.",
                &json!({"path": path}),
                &["path"],
                does,
            ),
        ],
    }
}

struct SandboxTools(Arc<PgEnvironments>);

#[async_trait]
impl BuiltInAction for SandboxTools {
    async fn call(&self, call: BuiltInCall<'_>) -> ToolResult {
        let Some(environment) = call.scope.environment.clone() else {
            let message = "No environment is connected, so there is no machine to work on.";
            return ToolResult::error("TOOL_NOT_AVAILABLE", message);
        };
        let text = |name: &str| call.arguments.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number =
            |name: &str| call.arguments.get(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let result = match call.tool {
            "run_command" => {
                let timeout_seconds = call.arguments.get("timeoutSeconds").and_then(Value::as_i64);
                let cwd = Some(text("cwd")).filter(|cwd| !cwd.is_empty());
                self.run(
                    &call,
                    &environment,
                    NewCommand { command: text("command"), cwd, timeout_seconds, ..NewCommand::default() },
                )
                .await
            }
            "read_sandbox_file" => {
                let (offset, limit) = (number("offset").unwrap_or(0), number("limit").unwrap_or(MAX_LINES));
                self.read(&call, &environment, text("path"), offset, limit).await
            }
            "write_sandbox_file" => {
                let write = Call::Write { path: text("path"), content: STANDARD.encode(text("content")) };
                self.on_machine(&call, &environment, write).await
            }
            _ => self.on_machine(&call, &environment, Call::List(text("path"))).await,
        };
        // What a model reads and we store holds no zero bytes.
        match result {
            Ok(value) => ToolResult::of(&platform_core::without_nul(value)),
            Err(error) => ToolResult::error(error.code().as_str(), error.message()),
        }
    }
}

impl SandboxTools {
    /// The machine of a turn: the one that runs, else a new one.
    async fn session(&self, call: &BuiltInCall<'_>, environment: &str) -> Result<SessionRow> {
        let environments = &self.0;
        let row = environments.require(call.account, environment).await?;
        let config = row.settings()?.sandbox_config;
        let tenant = call.scope.owner().tenant_id;
        let lane = tenant.clone().filter(|_| config.per_tenant_snapshots).unwrap_or_default();
        let (worker, id) = call.scope.worker.clone().unwrap_or(("api", String::new()));
        for _ in 0..5 {
            let mut conn = environments.db.conn().await?;
            let live = repository::live(&mut conn, call.account, environment, &lane).await?;
            let known = !config.auto_restart
                && repository::had(&mut conn, call.account, environment, &id, &call.scope.conversation).await?;
            drop(conn);
            if let Some(live) = live {
                if live.status == "running" {
                    return Ok(live);
                }
                // Somebody else starts or stops it.
                environments.wait_for(&live).await?;
                continue;
            }
            if known {
                let message = "The machine has ended, and this environment does not start another (autoRestart).";
                return Err(Error::new(code::SANDBOX_NOT_FOUND, message));
            }
            let request =
                StartSandbox { timeout_minutes: Some(30), tenant_id: tenant.clone(), ..StartSandbox::default() };
            let by = Starter {
                kind: worker,
                id: &id,
                conversation: Some(&call.scope.conversation),
                depth: call.scope.depth,
                is_fresh: false,
            };
            match environments.start_machine(call.account, environment, request, by).await {
                Ok((_, live)) => return Ok(live.session.clone()),
                Err(error) if error.code() == code::SESSION_ACTIVE => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(code::SANDBOX_UNAVAILABLE, "The machine is being started or stopped; try again in a moment."))
    }

    /// Does something on the machine of a turn.
    async fn on_machine<T: DeserializeOwned>(
        &self,
        call: &BuiltInCall<'_>,
        environment: &str,
        what: Call,
    ) -> Result<T> {
        let session = self.session(call, environment).await?;
        self.0.on_machine(&session, Some(&call.scope.conversation), what).await
    }

    async fn run(&self, call: &BuiltInCall<'_>, environment: &str, mut command: NewCommand) -> Result<Value> {
        let mut checks = Checks::default();
        command.check(&mut checks);
        checks.finish()?;
        let session = self.session(call, environment).await?;
        // A command must end before its call is given up.
        let left = call.until.saturating_duration_since(Instant::now()).as_secs();
        let longest = i64::try_from(left.saturating_sub(1).max(1)).unwrap_or(i64::MAX);
        command.timeout_seconds = Some(command.timeout_seconds.unwrap_or(longest).min(longest));
        let worker = call.scope.worker.as_ref().map(|(kind, id)| Worker { kind: (*kind).to_owned(), id: id.clone() });
        let what = Call::Exec { command, worker, mode: OutputMode::default() };
        let output: CommandOutput = self.0.on_machine(&session, Some(&call.scope.conversation), what).await?;
        let (stdout, cut_out) = cut(&output.stdout);
        let (stderr, cut_err) = cut(&output.stderr);
        Ok(json!({"exitCode": output.exit_code, "stdout": stdout, "stderr": stderr, "cwd": output.cwd,
            "truncated": output.truncated || cut_out || cut_err}))
    }

    async fn read(
        &self,
        call: &BuiltInCall<'_>,
        environment: &str,
        path: String,
        offset: usize,
        limit: usize,
    ) -> Result<Value> {
        let content: String = self.on_machine(call, environment, Call::Read(path.clone())).await?;
        let content = encode(path, &content, None).map_err(|error| match error.code() {
            code::FILE_NOT_TEXT => {
                let message = "The file is no text; look at it with run_command (file, xxd, strings).";
                Error::new(code::FILE_NOT_TEXT, message)
            }
            _ => error,
        })?;
        let lines: Vec<&str> = content.content.lines().collect();
        let shown = lines.iter().skip(offset).take(limit).copied().collect::<Vec<_>>().join("\n");
        let (text, was_cut) = cut(&shown);
        let truncated = was_cut || offset.saturating_add(limit) < lines.len();
        Ok(json!({"path": content.path, "content": text, "totalLines": lines.len(), "truncated": truncated}))
    }
}

/// A long text loses its middle, and says so.
fn cut(text: &str) -> (String, bool) {
    if text.len() <= 2 * MAX_SHOWN {
        return (text.to_owned(), false);
    }
    let (begin, end) = (text.floor_char_boundary(MAX_SHOWN), text.ceil_char_boundary(text.len() - MAX_SHOWN));
    let left_out = end - begin;
    (format!("{}\n[… {left_out} bytes are left out here …]\n{}", &text[..begin], &text[end..]), true)
}
