use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use platform_core::{AccountId, Caller, Checks, Code, Credential, Error, Id, Page, Result, run_detached, spawn};
use platform_sandbox::files::{self, FileError};
use tokio::sync::mpsc;
use tracing::warn;

use super::{
    call::Call,
    exec::{Line, channel, run},
    live::{Live, failed, gone},
    model::{
        CommandOutput, FileContent, FileListing, ListFiles, NewCommand, OutputMode, OutputPiece, ReadFile,
        SandboxSession, SandboxStatus, SessionFilter, SessionPage, StartSandbox, StartedSandbox, StopSandbox,
        StoppedSandbox, WriteFile, WrittenFile,
    },
    repository::{self, SessionRow},
    start::Starter,
};
use crate::{
    code,
    environment::{Environment, PgEnvironments},
    redact::mask,
    snapshot,
};

/// Of what the kernel takes as one argument, a little less.
const MAX_LINE: usize = 120 << 10;
const MAX_PATH: usize = 4096;
/// Characters of why a file is not read or written, as the machine says it.
const MAX_REASON: usize = 1000;
/// What of a command's output is remembered with its session, in bytes a stream.
const MAX_LOGGED: usize = 16 << 10;

/// Who works on a machine: an agent or assistant, whose connection has variables of its own.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Worker {
    /// `agent` or `assistant`.
    pub kind: String,
    /// Its id.
    pub id: String,
}

/// Machines of environments. `ENVIRONMENT_NOT_FOUND` comes from all, `SANDBOX_NOT_FOUND` from those that name one.
#[async_trait]
pub trait SandboxService: Send + Sync {
    /// Starts the machine of an environment. `SESSION_ACTIVE`, `SNAPSHOT_SAVE_IN_PROGRESS`, `SANDBOX_UNAVAILABLE`.
    async fn start(
        self: Arc<Self>,
        caller: &Caller,
        id: &Id<Environment>,
        request: StartSandbox,
    ) -> Result<StartedSandbox>;
    /// Whether a machine runs.
    async fn status(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        tenant: Option<&str>,
    ) -> Result<SandboxStatus>;
    /// Runs a command; the last piece says how it ended. `FULL_KEY_REQUIRED` when it is to be said as it is.
    async fn exec(
        self: Arc<Self>,
        caller: &Caller,
        id: &Id<Environment>,
        command: NewCommand,
        mode: OutputMode,
    ) -> Result<mpsc::Receiver<OutputPiece>>;
    /// Stops a machine. `SNAPSHOT_CHANGED`, `SNAPSHOTS_DISABLED`.
    async fn stop(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        request: StopSandbox,
    ) -> Result<StoppedSandbox>;
    /// Lists a directory. `FILE_NOT_FOUND`.
    async fn list_files(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        request: ListFiles,
    ) -> Result<FileListing>;
    /// Reads a file. `FILE_NOT_FOUND`, `FILE_NOT_TEXT`, `PAYLOAD_TOO_LARGE`.
    async fn read_file(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        request: ReadFile,
    ) -> Result<FileContent>;
    /// Writes a file. `URL_NOT_ALLOWED`.
    async fn write_file(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        request: WriteFile,
    ) -> Result<WrittenFile>;
    /// Sessions, newest first.
    async fn sessions(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        filter: &SessionFilter,
        page: Page,
    ) -> Result<SessionPage>;
    /// One session, or the last. `SESSION_NOT_FOUND`.
    async fn session(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        session: Option<&Id<SandboxSession>>,
    ) -> Result<SandboxSession>;
}

impl PgEnvironments {
    /// A session whose machine runs. `SANDBOX_NOT_FOUND`.
    async fn running(&self, account: &AccountId, id: &str, sandbox: &str) -> Result<SessionRow> {
        self.require(account, id).await?;
        let found = repository::by_sandbox(&mut *self.db.conn().await?, account, id, sandbox).await?;
        found.filter(|row| row.status == "running").ok_or_else(|| gone().with("sandboxId", sandbox))
    }

    /// Whether a session that runs, as far as was noted, has lost its machine, which was here; then that is noted.
    async fn is_over(self: &Arc<Self>, session: &SessionRow) -> Result<bool> {
        if session.status != "running" || session.owner != self.machines.owner {
            return Ok(false);
        }
        match self.machines.get(&session.sandbox_id) {
            Some(live) => Ok(self.has_ended(&live).await),
            None => {
                self.close(session, "failed", "error", Some("The machine was lost.".to_owned())).await?;
                Ok(true)
            }
        }
    }

    /// Runs a command on a machine that is here, and notes it.
    pub(crate) async fn exec_here(
        self: &Arc<Self>,
        live: &Arc<Live>,
        command: NewCommand,
        worker: Option<&Worker>,
        raw: bool,
    ) -> Result<mpsc::Receiver<OutputPiece>> {
        let variables = match worker {
            Some(worker) => {
                let (account, environment) = (&live.account, &live.session.environment_id);
                self.connection_variables(account, environment, (&worker.kind, &worker.id)).await?
            }
            None => crate::environment::Variables::new(),
        };
        let text = std::iter::once(command.command.as_str()).chain(command.args.iter().map(String::as_str));
        let text = text.collect::<Vec<_>>().join(" ");
        let timeout = match command.timeout_seconds.unwrap_or(300) {
            0 => None,
            seconds => Some(Duration::from_secs(seconds.unsigned_abs())),
        };
        let line = Line {
            line: text.clone(),
            cwd: command.cwd,
            is_root: command.sudo,
            variables,
            timeout,
            // A turn that is stopped wants nothing of it any more.
            ends_with_reader: worker.is_some(),
            is_raw: raw,
            most_bytes: self.settings.output_bytes,
        };
        let redactor = live.learn(&line.variables).await?;
        let from = line.cwd.clone().unwrap_or_else(|| live.state().cwd.clone());
        let (began, (says, said)) = (self.clock.now(), channel());
        let (environments, live) = (Arc::clone(self), Arc::clone(live));
        // Whoever asked over HTTP may go; the command runs to its end, and is noted.
        spawn("sandbox command", async move {
            let ran = run(&live, line, &says, &*environments.clock).await;
            if let Ok(output) = &ran {
                let log = if raw { raw_output(output) } else { logged(output) };
                let noted = async {
                    let masked = move |text: &str| redactor.text(text).replace('\0', "\u{fffd}");
                    let bytes = text.len() + from.len();
                    let (text, from) = mask(&live.account, bytes, move || (masked(&text), masked(&from))).await?;
                    let command = (&*text, &*from, began);
                    let mut conn = environments.db.conn().await?;
                    repository::log(&mut conn, &live.account, &live.session.id, command, &log).await
                };
                if let Err(error) = noted.await {
                    warn!(%error, "A command of a sandbox could not be noted.");
                }
            }
            let _ = says.send(ran.map_or_else(OutputPiece::Failed, OutputPiece::Exit)).await;
        });
        Ok(said)
    }

    pub(crate) async fn list_here(&self, live: &Arc<Live>, path: &str) -> Result<FileListing> {
        let _using = live.using(self.clock.now());
        let mut entries =
            files::list(&*live.machine, path).await.map_err(|error| file_error(live, ("path", path), error))?;
        let redactor = live.state().redactor.clone();
        let bytes = entries.iter().map(|entry| entry.name.len() + entry.path.len()).sum();
        let entries = mask(&live.account, bytes, move || {
            for entry in &mut entries {
                (entry.name, entry.path) = (redactor.text(&entry.name), redactor.text(&entry.path));
            }
            entries
        });
        Ok(FileListing { path: path.to_owned(), entries: entries.await? })
    }

    /// The bytes of a file, masked.
    pub(crate) async fn read_here(&self, live: &Arc<Live>, path: &str) -> Result<Vec<u8>> {
        let _using = live.using(self.clock.now());
        let bytes =
            files::read_file(&*live.machine, path).await.map_err(|error| file_error(live, ("path", path), error))?;
        let redactor = live.state().redactor.clone();
        mask(&live.account, bytes.len(), move || redactor.whole(&bytes)).await
    }

    pub(crate) async fn write_here(&self, live: &Arc<Live>, path: &str, content: Bytes) -> Result<WrittenFile> {
        let _using = live.using(self.clock.now());
        let size = content.len() as u64;
        let field = "destinationPath";
        files::write_file(&*live.machine, path, content)
            .await
            .map_err(|error| file_error(live, (field, path), error))?;
        Ok(WrittenFile { success: true, path: path.to_owned(), size })
    }

    /// What is to be written: what was sent, or what stands at an address.
    async fn content_of(&self, account: &AccountId, request: &WriteFile) -> Result<Bytes> {
        match (&request.content, &request.source_url) {
            (Some(content), None) => decode(content, request.encoding.as_deref()),
            (None, Some(url)) => {
                let egress = self.egress.of(account);
                let fetched = egress.get(url).await.map_err(|error| error.into_error("sourceUrl"))?;
                if !(200..300).contains(&fetched.status) {
                    let message = format!("sourceUrl answers {}.", fetched.status);
                    return Err(Error::invalid("sourceUrl", "format", message));
                }
                Ok(fetched.bytes)
            }
            _ => Err(Error::invalid("content", "required", "give exactly one of content and sourceUrl")),
        }
    }
}

/// A text that came as `utf8` or `base64`.
fn decode(content: &str, encoding: Option<&str>) -> Result<Bytes> {
    match encoding.unwrap_or("utf8").to_ascii_lowercase().as_str() {
        "utf8" => Ok(Bytes::copy_from_slice(content.as_bytes())),
        "base64" => {
            let decoded = STANDARD.decode(content.trim());
            Ok(decoded.map_err(|_| Error::invalid("content", "format", "content is no base64"))?.into())
        }
        _ => Err(Error::invalid("encoding", "enum", "encoding must be utf8 or base64")),
    }
}

/// A file, of which we have the bytes in base64, as it was asked for.
pub(crate) fn encode(path: String, content: &str, encoding: Option<&str>) -> Result<FileContent> {
    let bytes = STANDARD.decode(content).map_err(Error::internal)?;
    let size = bytes.len() as u64;
    if encoding.is_some_and(|encoding| encoding.eq_ignore_ascii_case("base64")) {
        return Ok(FileContent { path, content: content.to_owned(), size });
    }
    match String::from_utf8(bytes) {
        Ok(content) => Ok(FileContent { path, content, size }),
        Err(_) => Err(Error::new(code::FILE_NOT_TEXT, format!("{path} is no text; read it with encoding base64."))),
    }
}

fn check_encoding(encoding: Option<&str>) -> Result<()> {
    match encoding {
        None => Ok(()),
        Some(encoding) if ["utf8", "base64"].iter().any(|known| encoding.eq_ignore_ascii_case(known)) => Ok(()),
        Some(_) => Err(Error::invalid("encoding", "enum", "encoding must be utf8 or base64")),
    }
}

/// `field`: of the request, in which the path stands.
fn file_error(live: &Live, (field, path): (&str, &str), error: FileError) -> Error {
    match error {
        FileError::NotFound => {
            Error::new(platform_files::code::FILE_NOT_FOUND, format!("There is no {path} in the sandbox."))
                .with("path", path)
        }
        FileError::TooLarge => {
            let message = format!("{path} is larger than {} bytes; read it in parts with a command.", files::MAX_BYTES);
            Error::new(Code::PAYLOAD_TOO_LARGE, message).with("limitBytes", files::MAX_BYTES)
        }
        FileError::Refused(reason) => {
            // It is what a program of the machine says.
            let reason = live.state().redactor.text(&reason);
            let reason: String = reason.chars().take(MAX_REASON).collect();
            // Which line of ours it was is nothing to anybody.
            let reason = reason.rsplit_once(&format!("{path}: ")).map_or(reason.as_str(), |(_, reason)| reason);
            Error::invalid(field, "format", format!("{field}: {path}: {reason}"))
        }
        FileError::Machine(error) => failed(error),
    }
}

fn logged(output: &CommandOutput) -> CommandOutput {
    let tail = |text: &str| {
        let from = text.ceil_char_boundary(text.len().saturating_sub(MAX_LOGGED));
        text[from..].replace('\0', "\u{fffd}")
    };
    let (stdout, stderr) = (tail(&output.stdout), tail(&output.stderr));
    let truncated = output.truncated || output.stdout.len().max(output.stderr.len()) > MAX_LOGGED;
    CommandOutput { stdout, stderr, truncated, ..output.clone() }
}

/// What was said as it is, is not remembered.
fn raw_output(output: &CommandOutput) -> CommandOutput {
    let said = !output.stdout.is_empty() || !output.stderr.is_empty();
    let truncated = output.truncated || said;
    CommandOutput { stdout: String::new(), stderr: String::new(), truncated, ..output.clone() }
}

fn check_path(checks: &mut Checks, field: &str, path: &str) {
    if path.is_empty() || path.contains('\0') {
        checks.issue(field, "required", format!("{field} is required: a path on the machine"));
    } else {
        checks.bytes(field, path.len(), MAX_PATH);
    }
}

fn check_sandbox(checks: &mut Checks, sandbox: &str) {
    if sandbox.is_empty() {
        checks.issue("sandboxId", "required", "sandboxId is required: the one that start answered with");
    }
}

impl NewCommand {
    pub(crate) fn check(&self, checks: &mut Checks) {
        let bytes = self.command.len() + self.args.iter().map(|arg| arg.len() + 1).sum::<usize>();
        if self.command.trim().is_empty() {
            checks.issue("command", "required", "command is required: a line of the shell");
        }
        checks.bytes("command", bytes, MAX_LINE);
        let mut texts = std::iter::once(&self.command).chain(&self.args).chain(&self.cwd);
        if texts.any(|text| text.contains('\0')) {
            checks.issue("command", "format", "command, args and cwd cannot contain zero bytes");
        }
        checks.bytes("cwd", self.cwd.as_ref().map_or(0, String::len), MAX_PATH);
        checks.range("timeoutSeconds", self.timeout_seconds.unwrap_or(300), &(0..=3600));
    }
}

#[async_trait]
impl SandboxService for PgEnvironments {
    async fn start(
        self: Arc<Self>,
        caller: &Caller,
        id: &Id<Environment>,
        request: StartSandbox,
    ) -> Result<StartedSandbox> {
        let starter = match &caller.credential {
            Credential::FullKey(key) | Credential::RestrictedKey(key) => key.as_str(),
            Credential::Token { user, .. } => user.as_str(),
            Credential::Session(session) => session.id.as_str(),
        };
        let by = Starter { kind: "api", id: starter, conversation: None, depth: 0, is_fresh: false };
        Ok(self.start_machine(&caller.account, id, request, by).await?.0)
    }

    async fn status(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        tenant: Option<&str>,
    ) -> Result<SandboxStatus> {
        let row = self.require(account, id).await?;
        let lane = tenant.filter(|_| row.settings().is_ok_and(|settings| settings.sandbox_config.per_tenant_snapshots));
        let find = async || repository::live(&mut *self.db.conn().await?, account, id, lane.unwrap_or_default()).await;
        let mut live = find().await?;
        let is_over = match &live {
            Some(session) => self.is_over(session).await?,
            None => false,
        };
        if is_over {
            live = find().await?;
        }
        Ok(live.map_or_else(SandboxStatus::default, |live| SandboxStatus {
            // Whoever notes its end may not have yet.
            online: live.status == "running" && !is_over,
            sandbox_id: Some(live.sandbox_id),
            session_id: Some(live.id),
            status: Some(live.status),
            scope: Some(live.scope),
            expires_at: Some(live.expires_ms),
        }))
    }

    async fn exec(
        self: Arc<Self>,
        caller: &Caller,
        id: &Id<Environment>,
        command: NewCommand,
        mode: OutputMode,
    ) -> Result<mpsc::Receiver<OutputPiece>> {
        if mode.raw && !matches!(caller.credential, Credential::FullKey(_)) {
            let message = "Only a full API key gets what a command said as it is.";
            return Err(Error::new(platform_auth::code::FULL_KEY_REQUIRED, message));
        }
        let mut checks = Checks::default();
        check_sandbox(&mut checks, &command.sandbox_id);
        command.check(&mut checks);
        checks.finish()?;
        let session = self.running(&caller.account, id, &command.sandbox_id).await?;
        match self.machines.get(&command.sandbox_id) {
            Some(live) => self.exec_here(&live, command, None, mode.raw).await,
            None if session.owner == self.machines.owner => Err(gone()),
            None => Ok(self.exec_there(session, command, mode)),
        }
    }

    async fn stop(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        request: StopSandbox,
    ) -> Result<StoppedSandbox> {
        let mut checks = Checks::default();
        check_sandbox(&mut checks, &request.sandbox_id);
        checks.finish()?;
        let session = self.running(account, id, &request.sandbox_id).await?;
        let stopping = async move { self.on_machine(&session, None, Call::Stop(request)).await };
        run_detached("stop a sandbox", stopping).await
    }

    async fn list_files(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        request: ListFiles,
    ) -> Result<FileListing> {
        let mut checks = Checks::default();
        check_sandbox(&mut checks, &request.sandbox_id);
        check_path(&mut checks, "path", &request.path);
        checks.finish()?;
        let session = self.running(account, id, &request.sandbox_id).await?;
        self.on_machine(&session, None, Call::List(request.path)).await
    }

    async fn read_file(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        request: ReadFile,
    ) -> Result<FileContent> {
        let mut checks = Checks::default();
        check_sandbox(&mut checks, &request.sandbox_id);
        check_path(&mut checks, "path", &request.path);
        checks.finish()?;
        check_encoding(request.encoding.as_deref())?;
        let session = self.running(account, id, &request.sandbox_id).await?;
        let content: String = self.on_machine(&session, None, Call::Read(request.path.clone())).await?;
        encode(request.path, &content, request.encoding.as_deref())
    }

    async fn write_file(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        request: WriteFile,
    ) -> Result<WrittenFile> {
        let mut checks = Checks::default();
        check_sandbox(&mut checks, &request.sandbox_id);
        check_path(&mut checks, "destinationPath", &request.destination_path);
        checks.finish()?;
        check_encoding(request.encoding.as_deref())?;
        let session = self.running(account, id, &request.sandbox_id).await?;
        let content = STANDARD.encode(self.content_of(account, &request).await?);
        let path = request.destination_path;
        self.on_machine(&session, None, Call::Write { path, content }).await
    }

    async fn sessions(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        filter: &SessionFilter,
        page: Page,
    ) -> Result<SessionPage> {
        filter.check()?;
        self.require(account, id).await?;
        let (rows, total) = repository::list(&*self.db.fair_conn(account).await?, account, id, filter, page).await?;
        let sessions = rows.into_iter().map(|row| row.shown(None)).collect();
        Ok(SessionPage { sessions, total, offset: page.offset, limit: page.limit })
    }

    async fn session(
        self: Arc<Self>,
        account: &AccountId,
        id: &Id<Environment>,
        session: Option<&Id<SandboxSession>>,
    ) -> Result<SandboxSession> {
        self.require(account, id).await?;
        let session = session.map(Id::as_str);
        let find = async || repository::find(&mut *self.db.conn().await?, account, id, session).await;
        let mut row = find()
            .await?
            .ok_or_else(|| Error::not_found(code::SESSION_NOT_FOUND, "sandbox session", session.unwrap_or("last")))?;
        // What the machine says counts more than what was noted of it.
        if self.is_over(&row).await? {
            row = find().await?.unwrap_or(row);
        }
        let commands = repository::commands(&mut *self.db.conn().await?, account, &row.id).await?;
        Ok(row.shown(Some(commands)))
    }
}

/// The current snapshot is another than the one that a machine began with.
pub(crate) async fn check_unchanged(environments: &PgEnvironments, live: &Live) -> Result<()> {
    let tenant = Some(live.session.lane.as_str()).filter(|lane| !lane.is_empty());
    let mut conn = environments.db.conn().await?;
    let current = snapshot::current(&mut conn, &live.account, &live.session.environment_id, tenant).await?;
    if current.map(|snapshot| snapshot.id) == live.session.from_snapshot_id {
        return Ok(());
    }
    let message =
        "Somebody saved a snapshot since this sandbox was started; stop with force to put this one in its place.";
    Err(Error::new(code::SNAPSHOT_CHANGED, message))
}
