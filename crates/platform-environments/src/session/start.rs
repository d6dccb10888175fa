//! A machine is started.

use std::{sync::Arc, time::Duration};

use diesel_async::AsyncConnection;
use platform_core::{AccountId, Checks, Error, Id, Result, run_detached, spawn, without_nul};
use platform_db::Conn;
use platform_events::{Event, publish_in};
use platform_sandbox::{Cli, Command, Disk, Machine, MachineSpec, Network, SandboxBackend, SandboxError, files};
use platform_vault::random_bytes;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::{
    exec::{Line, channel, run},
    live::{HOME, Live, MachineSlot, failed},
    model::{StartSandbox, StartedSandbox},
    proxy::PORT,
    repository::{self, SessionChange, SessionRow},
};
use crate::{
    code,
    environment::{
        EnvironmentSettings, NetworkPolicy, PgEnvironments, SandboxConfig, Variables, repository as environments,
    },
    snapshot,
};

/// Longest making of a machine.
const MAKING: Duration = Duration::from_mins(2);
/// Longest init script.
const INIT: Duration = Duration::from_mins(10);
/// Longest start that others wait for.
const MINUTE_MS: i64 = 60_000;
/// What of an init script's output is kept.
const MAX_INIT: usize = 64 << 10;
/// Characters of what a program says of its version.
const MAX_VERSION: usize = 200;
/// Programs that are looked for.
const PROGRAMS: &str = "bash sh git curl wget node npm npx python3 pip3 jq make gcc g++ tar gzip zip unzip rsync ssh \
    sqlite3 psql ffmpeg perl ruby php go cargo rustc java deno bun uv gh";
const FIND_PROGRAMS: &str = r#"for name in $1; do if command -v "$name" >/dev/null; then case $name in
    node|npm|python3|pip3|git|curl|jq|bash|deno|bun|uv) said=$("$name" --version 2>/dev/null </dev/null | head -n 1);; *) said=;; esac
    printf '%s\t%s\n' "$name" "$said"; fi; done"#;

enum SessionKind {}

/// Who starts a machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Starter<'a> {
    /// `api`, `agent` or `assistant`.
    pub kind: &'a str,
    /// Id of it, or of the key.
    pub id: &'a str,
    /// The chat or thread that it is for, and ends with.
    pub conversation: Option<&'a str>,
    /// Triggers that led to it, one through the other.
    pub depth: u8,
    /// It begins with nothing, whatever was saved.
    pub is_fresh: bool,
}

/// Why no other machine is started beside a live one.
fn active(live: &SessionRow) -> Error {
    let message = "The environment has a sandbox that runs; use it, stop it, or start with force, which loses what was not saved.";
    let error = Error::new(code::SESSION_ACTIVE, message).with("sandboxId", &live.sandbox_id);
    error.with("expiresAt", live.expires_ms)
}

impl PgEnvironments {
    /// Starts a machine, and returns when it takes commands; it is started to its end, whoever waits for it.
    pub(crate) async fn start_machine(
        self: &Arc<Self>,
        account: &AccountId,
        id: &str,
        request: StartSandbox,
        by: Starter<'_>,
    ) -> Result<(StartedSandbox, Arc<Live>)> {
        let mut checks = Checks::default();
        let minutes = request.timeout_minutes.unwrap_or(10);
        checks.range("timeoutMinutes", minutes, &(1..=30));
        checks.tenants(request.tenant_id.as_deref(), None);
        checks.finish()?;
        let row = self.require(account, id).await?;
        let settings = self.open(account, &row)?;
        let config = &settings.sandbox_config;
        self.check_backend(config).await?;
        self.check_room(account, id, &request, config).await?;
        let session_id = String::from(Id::<SessionKind>::generate());
        let tenant = request.tenant_id.clone().filter(|_| config.per_tenant_snapshots);
        let slot = match self.machines.reserve(account, &session_id) {
            Some(slot) => slot,
            None => {
                // The machine whose slot this one would take may have one here.
                self.vacate(account, id, tenant.as_deref().unwrap_or_default(), &request).await?;
                self.machines.reserve(account, &session_id).ok_or_else(|| self.full())?
            }
        };
        let now = self.clock.now();
        let session = SessionRow {
            account_id: account.as_str().to_owned(),
            id: session_id,
            sandbox_id: random_id("sbx_"),
            environment_id: id.to_owned(),
            lane: tenant.clone().unwrap_or_default(),
            scope: scope(&by, tenant.as_deref()).to_owned(),
            tenant_id: request.tenant_id.clone(),
            started_by_type: by.kind.to_owned(),
            started_by_id: by.id.to_owned(),
            conversation_id: by.conversation.map(str::to_owned),
            depth: by.depth.into(),
            status: "creating".to_owned(),
            runtime: config.runtime.clone(),
            memory_mib: i32::try_from(config.memory_mib).unwrap_or(i32::MAX),
            backend: self.backend.name().to_owned(),
            isolation: self.backend.isolation().as_str().to_owned(),
            from_snapshot_id: None,
            started_ms: now.0,
            finished_ms: None,
            expires_ms: now.0 + minutes * MINUTE_MS,
            auto_extend: config.auto_extend || by.conversation.is_some(),
            stopped_reason: None,
            saving: false,
            command_count: 0,
            init_script: None,
            error: None,
            owner: self.machines.owner.clone(),
        };
        let (environments, is_fresh) = (Arc::clone(self), by.is_fresh);
        let starting = async move {
            let session = environments.take_lane(session, &request, is_fresh).await?;
            if is_fresh {
                // Whoever notes that this machine is lost finds what was to be saved of it.
                let (account, snapshot) = (session.account(), &session.started_by_id);
                let mut conn = environments.db.conn().await?;
                snapshot::set_source(&mut conn, &account, snapshot, &session.sandbox_id).await?;
            }
            environments.make(session, settings, slot).await
        };
        run_detached("start a sandbox", starting).await
    }

    /// Whether machines of this kind are made here.
    pub(crate) async fn check_backend(&self, config: &SandboxConfig) -> Result<()> {
        let available = self.backend.runtimes().await.map_err(failed)?;
        if let Some(provider) = config.provider.as_deref().filter(|provider| *provider != self.backend.name()) {
            let message =
                format!("sandboxConfig.provider asks for `{provider}`; this server has `{}`.", self.backend.name());
            return Err(Error::new(code::SANDBOX_UNAVAILABLE, message));
        }
        if !available.contains(&config.runtime) {
            let available = available.into_iter().filter(|runtime| self.settings.knows(runtime)).collect();
            return Err(failed(SandboxError::NoRuntime { runtime: config.runtime.clone(), available }));
        }
        Ok(())
    }

    /// Whether the disk of all has room for one more; whoever has one is told of that, or gives it up first.
    async fn check_room(
        &self,
        account: &AccountId,
        environment: &str,
        request: &StartSandbox,
        config: &SandboxConfig,
    ) -> Result<()> {
        if self.backend.room().await.is_none_or(|room| room.free >= room.least) {
            return Ok(());
        }
        let lane = request.tenant_id.as_deref().filter(|_| config.per_tenant_snapshots).unwrap_or_default();
        match repository::live(&mut *self.db.conn().await?, account, environment, lane).await? {
            Some(live) if !request.force => Err(active(&live)),
            Some(_) => Ok(()),
            None => {
                let message = "There is hardly room on the disk of this server for another sandbox; try later.";
                Err(Error::new(code::SANDBOX_UNAVAILABLE, message))
            }
        }
    }

    fn full(&self) -> Error {
        let message = "No more sandboxes are started here: as many run as this server lets (PLATFORM_SANDBOX_MAX), or three quarters of that are yours; stop one, or try later.";
        Error::new(code::SANDBOX_UNAVAILABLE, message).with("max", self.settings.most)
    }

    /// Makes the session the live one of its lane. `SESSION_ACTIVE`, `SNAPSHOT_SAVE_IN_PROGRESS`.
    async fn take_lane(&self, mut session: SessionRow, request: &StartSandbox, is_fresh: bool) -> Result<SessionRow> {
        let (account, environment) = (session.account(), session.environment_id.clone());
        loop {
            let mut conn = self.db.conn().await?;
            let tenant = Some(session.lane.as_str()).filter(|lane| !lane.is_empty());
            if !is_fresh {
                self.check_saved(&mut conn, &account, &environment, &session.lane, request).await?;
            }
            let current = snapshot::current(&mut conn, &account, &environment, tenant).await?;
            session.from_snapshot_id = current.filter(|_| !is_fresh).map(|snapshot| snapshot.id);
            if repository::insert(&mut conn, &session).await? {
                return Ok(session);
            }
            let Some(live) = repository::live(&mut conn, &account, &environment, &session.lane).await? else {
                continue;
            };
            drop(conn);
            if !request.force {
                return Err(active(&live));
            }
            self.take_over(&live).await?;
        }
    }

    /// Ends the live session of a lane by `force`, when its machine is one of this process: its slot is free then.
    /// `SESSION_ACTIVE` without, `SNAPSHOT_SAVE_IN_PROGRESS`.
    async fn vacate(&self, account: &AccountId, environment: &str, lane: &str, request: &StartSandbox) -> Result<()> {
        let mut conn = self.db.conn().await?;
        let Some(live) = repository::live(&mut conn, account, environment, lane).await? else { return Ok(()) };
        if !request.force {
            return Err(active(&live));
        }
        self.check_saved(&mut conn, account, environment, lane, request).await?;
        drop(conn);
        if self.machines.get(&live.sandbox_id).is_some() {
            self.take_over(&live).await?;
        }
        Ok(())
    }

    /// `SNAPSHOT_SAVE_IN_PROGRESS` while what is on the last machine of a lane is being saved, unless it may be lost.
    async fn check_saved(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        environment: &str,
        lane: &str,
        request: &StartSandbox,
    ) -> Result<()> {
        let tenant = Some(lane).filter(|lane| !lane.is_empty());
        if request.force_unsaved_snapshot || !snapshot::is_saving(conn, account, environment, tenant).await? {
            return Ok(());
        }
        let message = "What is on the machine is being saved; wait, or start with forceUnsavedSnapshot from what was saved before.";
        Err(Error::new(code::SNAPSHOT_SAVE_IN_PROGRESS, message))
    }

    async fn make(
        self: Arc<Self>,
        session: SessionRow,
        settings: EnvironmentSettings,
        slot: MachineSlot,
    ) -> Result<(StartedSandbox, Arc<Live>)> {
        let account = session.account();
        let making = async {
            // What is on its disk may hold values of whoever used it before.
            let known = self.all_connection_variables(&account, &session.environment_id).await?;
            Ok((self.machine_of(&session, &settings.sandbox_config).await?, known))
        };
        let made = match timeout(MAKING, making).await {
            Ok(made) => made,
            Err(_) => Err(failed(SandboxError::Failed("it takes longer than two minutes to be made".to_owned()))),
        };
        let (machine, known) = match made {
            Ok(made) => made,
            Err(error) => return Err(self.not_made(&session, error).await?),
        };
        let mut variables = Variables::new();
        if settings.sandbox_config.public_slug.is_some() {
            variables.insert("PORT".to_owned(), PORT.to_string().into());
        }
        variables.extend(settings.sandbox_config.env_vars.clone());
        variables.extend(settings.env_vars.clone());
        let config = settings.sandbox_config;
        let live = Live::new(account.clone(), session, config, machine, variables, slot);
        if let Err(error) = live.learn(known.iter().flatten()).await {
            return Err(self.not_made(&live.session, error).await?);
        }
        // From now on it is looked after: init scripts fill disks, too.
        self.machines.insert(&live);
        let init_script = self.prepare(&live).await;
        // Its time begins when it can be used.
        let expires = live.begin_term(self.clock.now());
        let change = SessionChange {
            status: Some("running"),
            init_script: init_script.clone(),
            expires_ms: Some(expires.0),
            ..SessionChange::default()
        };
        let mut conn = self.db.conn().await?;
        if !repository::change(&mut conn, &account, &live.session.id, &change).await? {
            // Somebody took its place meanwhile.
            self.machines.remove(&live.session.sandbox_id);
            live.machine.end().await;
            let (environment, lane) = (&live.session.environment_id, &live.session.lane);
            if let Some(other) = repository::live(&mut conn, &account, environment, lane).await? {
                return Err(active(&other));
            }
            let message = "A stop ended this one meanwhile.";
            return Err(Error::new(code::SESSION_ACTIVE, message));
        }
        drop(conn);
        // What a new machine of this kind has is known; this one may have more.
        if init_script.is_some() || live.session.from_snapshot_id.is_some() {
            let (environments, looked) = (Arc::clone(&self), Arc::clone(&live));
            spawn("sandbox programs", async move { environments.note_programs(&looked).await });
        }
        info!(sandbox = live.session.sandbox_id, environment = live.session.environment_id, "Started a sandbox.");
        let started = StartedSandbox {
            sandbox_id: live.session.sandbox_id.clone(),
            session_id: live.session.id.clone(),
            runtime: live.session.runtime.clone(),
            expires_at: expires.0,
            init_script,
        };
        Ok((started, live))
    }

    /// Notes why a machine could not be made.
    async fn not_made(&self, session: &SessionRow, error: Error) -> Result<Error> {
        warn!(sandbox = session.sandbox_id, %error, "A sandbox could not be made.");
        self.close(session, "failed", "error", Some(error.message().to_owned())).await?;
        Ok(error)
    }

    async fn note_programs(&self, live: &Live) {
        let noted = async {
            let mut clis = programs(&*live.machine).await?;
            let redactor = live.state().redactor.clone();
            // A program says of itself whatever it likes.
            for version in clis.iter_mut().filter_map(|cli| cli.version.as_mut()) {
                *version = redactor.text(version).chars().take(MAX_VERSION).collect();
            }
            let mut conn = self.db.conn().await?;
            environments::set_clis(&mut conn, &live.account, &live.session.environment_id, &clis).await
        };
        if let Err(error) = noted.await {
            debug!(%error, "The programs of a sandbox are not known.");
        }
    }

    async fn machine_of(&self, session: &SessionRow, config: &SandboxConfig) -> Result<Arc<dyn Machine>> {
        let disk = match &session.from_snapshot_id {
            Some(id) => Disk::Archive(self.archive(&session.account(), id).await?),
            None => Disk::Empty,
        };
        let network = match config.network_policy {
            NetworkPolicy::AllowAll => Network::Public,
            NetworkPolicy::DenyAll => Network::Nobody,
            NetworkPolicy::Allowlist => Network::Only(config.allowed_hosts.clone()),
        };
        let spec = MachineSpec {
            id: session.sandbox_id.clone(),
            runtime: config.runtime.clone(),
            memory_mib: config.memory_mib,
            cpus: config.cpus,
            disk_mib: config.disk_mib,
            network,
        };
        self.backend.create(spec, disk).await.map_err(failed)
    }

    /// Runs what is to run on a new machine; what the init script said, if there is one.
    async fn prepare(&self, live: &Arc<Live>) -> Option<Value> {
        let line = |line: &str, timeout| Line {
            line: line.to_owned(),
            cwd: Some(HOME.to_owned()),
            is_root: false,
            variables: Variables::new(),
            timeout,
            ends_with_reader: false,
            is_raw: false,
            most_bytes: MAX_INIT,
        };
        let (nobody, _) = channel();
        let is_new = live.session.from_snapshot_id.is_none();
        let mut said = None;
        if is_new && !live.config.init_script.trim().is_empty() {
            let ran = run(live, line(&live.config.init_script, Some(INIT)), &nobody, &*self.clock).await;
            said = Some(match ran {
                Ok(output) => {
                    without_nul(json!({"exitCode": output.exit_code, "stdout": output.stdout, "stderr": output.stderr}))
                }
                Err(error) => json!({"exitCode": 1, "stdout": "", "stderr": error.message()}),
            });
            HOME.clone_into(&mut live.state().cwd);
        }
        if let Some(command) = live.config.start_command.as_deref().filter(|command| !command.trim().is_empty()) {
            // It goes on while the machine does, and is no use of it.
            let in_background = format!("( {command}\n) >/dev/null 2>&1 </dev/null &");
            let _ = run(live, line(&in_background, Some(MAKING)), &nobody, &*self.clock).await;
            HOME.clone_into(&mut live.state().cwd);
        }
        said
    }

    /// Ends a session of which there is no machine here.
    pub(crate) async fn close(
        &self,
        session: &SessionRow,
        status: &'static str,
        reason: &'static str,
        error: Option<String>,
    ) -> Result<bool> {
        let mut conn = self.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| self.close_in(conn, session, status, reason, error).await).await
    }

    /// Whether it was live; whoever is told of the end is told in the transaction that notes it.
    pub(crate) async fn close_in(
        &self,
        conn: &mut Conn,
        session: &SessionRow,
        status: &'static str,
        reason: &'static str,
        error: Option<String>,
    ) -> Result<bool> {
        let (account, now) = (session.account(), self.clock.now());
        let change = SessionChange {
            status: Some(status),
            finished_ms: Some(now.0),
            stopped_reason: Some(reason),
            saving: Some(false),
            error: error.clone(),
            ..SessionChange::default()
        };
        let closed = repository::change(conn, &account, &session.id, &change).await?;
        if closed {
            snapshot::fail_of(conn, &session.sandbox_id, now).await?;
            let mut data = json!({"sessionId": session.id, "environmentId": session.environment_id, "status": status,
                "stoppedReason": reason});
            if let Some(error) = error {
                data["error"] = error.into();
            }
            let project = environments::project(conn, &account, &session.environment_id).await?;
            let event = Event {
                tenant: session.tenant_id.as_deref(),
                project: project.as_deref(),
                depth: u8::try_from(session.depth).unwrap_or(u8::MAX),
                ..Event::new(&account, "sandbox.finished", data)
            };
            publish_in(conn, vec![event], now).await?;
        }
        Ok(closed)
    }
}

fn scope(by: &Starter<'_>, tenant: Option<&str>) -> &'static str {
    match (by.conversation.is_some(), tenant) {
        (true, _) => "thread",
        (false, Some(_)) => "tenant",
        (false, None) => "environment",
    }
}

/// An id of 26 characters of base32 (contract 00 §1).
pub(crate) fn random_id(prefix: &str) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let random = random_bytes();
    let digits = random.iter().take(26).map(|byte| char::from(DIGITS[usize::from(byte & 31)]));
    prefix.chars().chain(digits).collect()
}

/// The programs of a runtime: a machine is made to look.
pub(crate) async fn probe(backend: &Arc<dyn SandboxBackend>, runtime: &str) -> Result<Vec<Cli>> {
    let id = random_id("look_");
    let (runtime, network) = (runtime.to_owned(), Network::Nobody);
    let spec = MachineSpec { id, runtime, memory_mib: 256, cpus: 1, disk_mib: 512, network };
    let machine = backend.create(spec, Disk::Empty).await.map_err(failed)?;
    let found = programs(&*machine).await;
    machine.end().await;
    found
}

async fn programs(machine: &dyn Machine) -> Result<Vec<Cli>> {
    let found = files::said(machine, Command::shell(FIND_PROGRAMS, [PROGRAMS])).await.map_err(failed)?;
    let versions: std::collections::HashMap<&str, &str> =
        found.lines().filter_map(|line| line.split_once('\t')).collect();
    let cli = |name: &str| {
        let version = versions.get(name).filter(|version| !version.is_empty()).map(|version| (*version).to_owned());
        Cli { name: name.to_owned(), version, installed: versions.contains_key(name) }
    };
    Ok(PROGRAMS.split_whitespace().map(cli).collect())
}
