//! Files of a machine, read and written by commands: a path means what it means there.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::timeout,
};
use utoipa::ToSchema;

use crate::backend::{Command, Machine, SandboxError};

/// Longest of these commands.
const LONGEST: Duration = Duration::from_secs(30);
/// After a command has ended, what it started may hold its output open.
const LINGER: Duration = Duration::from_millis(200);
/// Entries of a directory that are listed.
pub const MAX_ENTRIES: usize = 1000;
/// Largest file that is read, in bytes.
pub const MAX_BYTES: u64 = 1_000_000;
/// What a command writes at most.
const MAX_OUTPUT: u64 = 8 << 20;
/// How these commands say that there is no such file, and that it is too large.
const MISSING: i32 = 44;
const TOO_LARGE: i32 = 45;

/// Why a file is not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is none.
    #[error("there is no such file")]
    NotFound,
    /// It is larger than [`MAX_BYTES`].
    #[error("it is larger than {MAX_BYTES} bytes")]
    TooLarge,
    /// The machine says why.
    #[error("{0}")]
    Refused(String),
    /// The machine is the reason.
    #[error(transparent)]
    Machine(#[from] SandboxError),
}

/// What something in a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SandboxFileType)]
pub enum EntryKind {
    /// A file, or what else is no directory and no link.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
}

/// What is in a directory.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxFile)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its path.
    pub path: String,
    /// What it is.
    pub r#type: EntryKind,
    /// In bytes.
    pub size: u64,
}

/// What a command wrote, and how it ended.
pub(crate) struct Output {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Runs a command to its end.
pub(crate) async fn output(machine: &dyn Machine, command: Command) -> Result<Output, SandboxError> {
    output_within(LONGEST, machine, command).await
}

/// The same, with its own longest time.
pub(crate) async fn output_within(
    longest: Duration,
    machine: &dyn Machine,
    command: Command,
) -> Result<Output, SandboxError> {
    let mut running = machine.start(command).await?;
    let run = async {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let reading = async {
            tokio::join!(read(&mut running.stdout, &mut stdout), read(&mut running.stderr, &mut stderr));
        };
        let code = {
            let mut reading = std::pin::pin!(reading);
            tokio::select! {
                code = &mut running.exit => {
                    let _ = timeout(LINGER, reading).await;
                    code?
                }
                () = &mut reading => running.exit.await?,
            }
        };
        Ok(Output { code, stdout, stderr })
    };
    let ran = timeout(longest, run).await;
    ran.unwrap_or_else(|_| {
        (running.kill)();
        Err(SandboxError::Failed("the machine takes too long".to_owned()))
    })
}

async fn read(from: &mut (dyn AsyncRead + Send + Unpin), to: &mut Vec<u8>) {
    let _ = from.take(MAX_OUTPUT).read_to_end(to).await;
}

async fn checked(machine: &dyn Machine, command: Command) -> Result<Vec<u8>, FileError> {
    let output = output(machine, command).await?;
    match output.code {
        0 => Ok(output.stdout),
        MISSING => Err(FileError::NotFound),
        TOO_LARGE => Err(FileError::TooLarge),
        _ => Err(FileError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// What a command writes, when it succeeds.
pub async fn said(machine: &dyn Machine, command: Command) -> Result<String, SandboxError> {
    let output = output(machine, command).await?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A file's bytes.
pub async fn read_file(machine: &dyn Machine, path: &str) -> Result<Vec<u8>, FileError> {
    let line =
        "PATH=/usr/bin:/bin:$PATH; [ -e \"$1\" ] || exit 44; [ -f \"$1\" ] || { echo \"$1 is no file\" >&2; exit 1; }
        [ \"$(stat -Lc %s -- \"$1\")\" -le \"$2\" ] || exit 45; exec head -c \"$2\" -- \"$1\"";
    let bytes = checked(machine, Command::shell(line, [path, &MAX_BYTES.to_string()])).await?;
    if bytes.len() as u64 > MAX_BYTES { Err(FileError::TooLarge) } else { Ok(bytes) }
}

/// Writes a file, and the directories that lead to it.
pub async fn write_file(machine: &dyn Machine, path: &str, content: Bytes) -> Result<(), FileError> {
    let line = "PATH=/usr/bin:/bin:$PATH; [ ! -e \"$1\" ] || [ -f \"$1\" ] || { echo \"$1 is no file\" >&2; exit 1; }
        mkdir -p -- \"$(dirname -- \"$1\")\" && cat > \"$1\"";
    let command = Command { input: content, ..Command::shell(line, [path]) };
    checked(machine, command).await.map(drop)
}

/// What is in a directory, by name; at most [`MAX_ENTRIES`].
pub async fn list(machine: &dyn Machine, path: &str) -> Result<Vec<Entry>, FileError> {
    let line = "PATH=/usr/bin:/bin:$PATH; [ -e \"$1\" ] || exit 44; [ -d \"$1\" ] || { echo \"$1 is no directory\" >&2; exit 1; }
        cd -- \"$1\" && find . -mindepth 1 -maxdepth 1 -printf '%y %s %f\\0' | head -z -n 20000 | sort -z -k3 | head -z -n \"$2\"";
    let text = checked(machine, Command::shell(line, [path, &MAX_ENTRIES.to_string()])).await?;
    let text = String::from_utf8_lossy(&text);
    let entries = text.split('\0').filter_map(|line| {
        let mut parts = line.splitn(3, ' ');
        let (kind, size, name) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.to_owned());
        let r#type = match kind {
            "d" => EntryKind::Dir,
            "l" => EntryKind::Link,
            _ => EntryKind::File,
        };
        let path = format!("{}/{name}", path.trim_end_matches('/'));
        Some(Entry { name, path, r#type, size })
    });
    Ok(entries.collect())
}
