use platform_core::{Error, Result, Timestamp};
use platform_sandbox::files::Entry;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A machine to start.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StartSandbox {
    /// How long it stays, 1 to 30 minutes; 10 when absent.
    pub timeout_minutes: Option<i64>,
    /// Whose it is, where each tenant has one.
    pub tenant_id: Option<String>,
    /// Ends the one that runs; what was not saved is lost.
    pub force: bool,
    /// Begins with the last snapshot even while another is being saved.
    pub force_unsaved_snapshot: bool,
}

/// A machine that was started.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartedSandbox {
    /// Id of the machine.
    pub sandbox_id: String,
    /// Id of its session.
    pub session_id: String,
    /// What it runs.
    pub runtime: String,
    /// When it stops, in milliseconds.
    pub expires_at: i64,
    /// What the init script said, if it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub init_script: Option<Value>,
}

/// Whose machine is meant.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WhoseSandbox {
    /// The tenant, where each has one.
    pub tenant_id: Option<String>,
}

/// Whether a machine runs.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// It takes commands.
    pub online: bool,
    /// Id of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Id of its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// `pending`, `creating`, `running` or `stopping`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// `environment`, `tenant` or `thread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// When it stops, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

/// A command to run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NewCommand {
    /// Id of the machine.
    pub sandbox_id: String,
    /// A line of the shell.
    pub command: String,
    /// Joined to it by spaces.
    pub args: Vec<String>,
    /// Where it runs; the directory where the last one ended when absent.
    pub cwd: Option<String>,
    /// As user 0 of the machine.
    pub sudo: bool,
    /// Longest run, 0 to 3600 seconds; 300 when absent, 0 = as long as the machine stays.
    pub timeout_seconds: Option<i64>,
}

/// What a command said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandOutput {
    /// Its exit code; 124 = it took too long.
    pub exit_code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it ran.
    pub duration_ms: i64,
    /// Where it ended.
    pub cwd: String,
    /// The beginning is not there.
    pub truncated: bool,
}

/// How what a command says is heard.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct OutputMode {
    /// As it was said, with values of variables.
    pub raw: bool,
    /// In pieces, while it runs.
    pub streams: bool,
}

/// A piece of what a command says while it runs.
#[derive(Debug, Serialize, Deserialize)]
pub enum OutputPiece {
    /// Of standard output.
    Stdout(String),
    /// Of standard error.
    Stderr(String),
    /// It has ended, and this came of it.
    #[serde(skip)]
    Exit(CommandOutput),
    /// It could not be run.
    #[serde(skip)]
    Failed(Error),
}

/// How to stop a machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StopSandbox {
    /// Id of the machine.
    pub sandbox_id: String,
    /// What is on it is saved; as the environment says when absent.
    pub save_changes: Option<bool>,
    /// Also when somebody else saved meanwhile.
    pub force: bool,
}

/// A machine that stops.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoppedSandbox {
    /// For people.
    pub message: String,
    /// What is on it is being saved.
    pub saving: bool,
    /// As this snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
}

/// A directory to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ListFiles {
    /// Id of the machine.
    pub sandbox_id: String,
    /// The directory.
    pub path: String,
}

/// What is in a directory.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileListing {
    /// The directory.
    pub path: String,
    /// At most 1000.
    pub entries: Vec<Entry>,
}

/// A file to read.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadFile {
    /// Id of the machine.
    pub sandbox_id: String,
    /// The file.
    pub path: String,
    /// `utf8` or `base64`.
    pub encoding: Option<String>,
}

/// What is in a file.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileContent {
    /// The file.
    pub path: String,
    /// Its content, encoded as asked for.
    pub content: String,
    /// In bytes.
    pub size: u64,
}

/// A file to write.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WriteFile {
    /// Id of the machine.
    pub sandbox_id: String,
    /// The file.
    pub destination_path: String,
    /// What to write.
    pub content: Option<String>,
    /// Where it is fetched from instead.
    pub source_url: Option<String>,
    /// `utf8` or `base64`.
    pub encoding: Option<String>,
}

/// A file that was written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WrittenFile {
    /// Always true.
    pub success: bool,
    /// The file.
    pub path: String,
    /// In bytes.
    pub size: u64,
}

/// A command that ran, as a session remembers it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoggedCommand {
    /// From 0.
    pub index: i32,
    /// The line.
    pub command: String,
    /// Where it ran.
    pub cwd: String,
    /// Its exit code.
    pub exit_code: i32,
    /// How long it ran.
    pub duration_ms: i64,
    /// When it began.
    pub timestamp_ms: i64,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Not all of it is there.
    pub truncated: bool,
}

/// Who started a machine.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct StartedBy {
    /// `api`, `agent` or `assistant`.
    pub r#type: String,
    /// Id of the key, agent or assistant.
    pub id: String,
}

/// A session of a machine (contract 13 §3).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSession {
    /// Id.
    pub session_id: String,
    /// Id, as `sessionId`.
    #[serde(rename = "_id")]
    pub same_id: String,
    /// Id of the machine.
    pub sandbox_id: String,
    /// Its environment.
    pub environment_id: String,
    /// Its tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// `environment`, `tenant` or `thread`.
    pub scope: String,
    /// Who started it.
    pub started_by: StartedBy,
    /// `pending`, `creating`, `running`, `stopping`, `stopped`, `expired` or `failed`.
    pub status: String,
    /// It takes commands.
    pub online: bool,
    /// What it runs.
    pub runtime: String,
    /// Memory in MiB.
    pub memory_mib: i32,
    /// Who made it.
    pub backend: String,
    /// What keeps it apart: `none`, `container` or `microvm`.
    pub isolation: String,
    /// What it began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_snapshot_id: Option<String>,
    /// When it was started.
    pub started_timestamp_ms: Timestamp,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_timestamp_ms: Option<Timestamp>,
    /// When it stops.
    pub expires_at: Timestamp,
    /// Whether it gets more time when it is used.
    pub auto_extend: bool,
    /// `api`, `expired`, `disk-limit`, `taken-over` or `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_reason: Option<String>,
    /// What is on it is being saved.
    pub saving: bool,
    /// Commands that ran.
    pub command_count: i32,
    /// What the init script said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub init_script: Option<Value>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The last 500, oldest first; of a single session alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Vec<LoggedCommand>>,
}

/// Which sessions to list.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = SandboxSessionFilter)]
pub struct SessionFilter {
    /// Only of this tenant.
    pub tenant_id: Option<String>,
    /// Only of this status.
    pub status: Option<String>,
}

impl SessionFilter {
    /// `VALIDATION_ERROR` for a status that there is not.
    pub(crate) fn check(&self) -> Result<()> {
        const ALL: [&str; 7] = ["pending", "creating", "running", "stopping", "stopped", "expired", "failed"];
        match &self.status {
            Some(status) if !ALL.iter().any(|known| status.eq_ignore_ascii_case(known)) => {
                Err(Error::invalid("status", "enum", format!("status must be one of {}", ALL.join(", "))))
            }
            _ => Ok(()),
        }
    }
}

/// A page of sessions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxSessionPage)]
pub struct SessionPage {
    /// The sessions, newest first, without commands.
    pub sessions: Vec<SandboxSession>,
    /// How many there are.
    pub total: i64,
    /// Where the page begins.
    pub offset: i64,
    /// How many it may hold.
    pub limit: i64,
}
