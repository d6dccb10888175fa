//! `/v1/environments`

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use platform_access::Kind;
use platform_conversation::{AGENT, ASSISTANT, ENVIRONMENT};
use platform_core::{Code, Error, Id, Result, spawn};
use platform_environments::{
    CommandOutput, ConnectionVariables, EntityKind, Environment, EnvironmentFilter, EnvironmentService,
    EnvironmentSettings, ListFiles, NewCommand, OutputMode, OutputPiece, PgEnvironments, ReadFile, SandboxService,
    SessionFilter, SnapshotService, StartSandbox, StopSandbox, WhoseSandbox, WriteFile, whole,
};
use platform_http::{Answer, Event, Group, KeptKey, Request, key};
use platform_knowledge::{DOCUMENT, FOLDER, SKILL};
use platform_toolservers::TOOL_SERVER;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::warn;
use utoipa::ToSchema;

use crate::module::{Keeper, Module, Purge};

const SESSION: Kind = Kind::of_account("sandbox session");
const ENTITY: Kind = Kind::of_account("connected agent or assistant");
const ENTITY_TYPE: Kind = Kind::of_account("type of what is connected");
const TENANT: Kind = Kind::of_account("tenant of a snapshot");

/// Environments, their machines and what is kept of these; pieces that no snapshot names are looked for so often.
pub(crate) fn module(environments: &Arc<PgEnvironments>, sweep_interval: Duration) -> Module {
    let (kept, swept) = (Arc::clone(environments), Arc::clone(environments));
    let sweeping = async move {
        loop {
            tokio::time::sleep(sweep_interval).await;
            if let Err(error) = swept.sweep_pieces().await {
                tracing::warn!(%error, "Pieces of snapshots could not be swept; trying again later.");
            }
        }
    };
    Module {
        groups: vec![group(Arc::clone(environments))],
        resources: vec![(ENVIRONMENT, environments.clone())],
        keepers: vec![Keeper::new("sandboxes", kept.keep()), Keeper::new("pieces of snapshots", sweeping)],
        purges: vec![Purge::new("sandbox sessions", |conn, now| Box::pin(PgEnvironments::purge(conn, now)))],
        ..Module::default()
    }
}

fn group(environments: Arc<PgEnvironments>) -> Group {
    let mut group = Group::of("environments", "The machines that agents work on", environments)
        .naming("environmentId", ENVIRONMENT)
        .naming("sessionId", SESSION)
        .naming("entityType", ENTITY_TYPE)
        .naming("entityId", ENTITY)
        .naming("tenantId", TENANT)
        .referring(&[
            ("availableToolsGroupsUids", TOOL_SERVER),
            ("knowledgeDocumentIds", DOCUMENT),
            ("knowledgeFolderIds", FOLDER),
            ("knowledgeSkills/id", SKILL),
        ]);
    let (read, write) = (key("environments:read"), key("environments:write"));
    group.get("/v1/environments", read, list).with(spec::list);
    group.post("/v1/environments", write, create).with(spec::create);
    group.get("/v1/environments/{environmentId}", read, get).with(spec::get);
    group.patch("/v1/environments/{environmentId}", write, update).with(spec::update);
    group.put("/v1/environments/{environmentId}", write, update).with(spec::update);
    group.delete("/v1/environments/{environmentId}", write, delete).with(spec::delete);
    group.get("/v1/environments/{environmentId}/clis", read, clis).with(spec::clis);
    group.get("/v1/environments/{environmentId}/connections", read, connections).with(spec::connections);
    let connection = "/v1/environments/{environmentId}/connections/{entityType}/{entityId}";
    group.put(connection, write, connect).with(spec::connect);
    group.delete(connection, write, disconnect).with(spec::disconnect);
    let (read, write) = (key("sandbox:read"), key("sandbox:write"));
    group
        .post("/v1/environments/{environmentId}/sandbox/start", write, start)
        .with(spec::start)
        .changing()
        .claiming_key();
    group.get("/v1/environments/{environmentId}/sandbox/status", read, status).with(spec::status);
    group
        .post("/v1/environments/{environmentId}/sandbox/exec", write, exec)
        .with(spec::exec)
        .changing()
        .cancellable()
        .claiming_key();
    group.post("/v1/environments/{environmentId}/sandbox/stop", write, stop).with(spec::stop).changing().claiming_key();
    group
        .post("/v1/environments/{environmentId}/sandbox/files/list", write, list_files)
        .with(spec::list_files)
        .changing();
    group
        .post("/v1/environments/{environmentId}/sandbox/files/read", write, read_file)
        .with(spec::read_file)
        .changing();
    group
        .post("/v1/environments/{environmentId}/sandbox/files/write", write, write_file)
        .with(spec::write_file)
        .changing();
    group.get("/v1/environments/{environmentId}/sessions", read, sessions).with(spec::sessions);
    group.get("/v1/environments/{environmentId}/sessions/last", read, last_session).with(spec::session);
    group.get("/v1/environments/{environmentId}/sessions/{sessionId}", read, session).with(spec::session);
    group
        .post("/v1/environments/{environmentId}/snapshot/initialize", write, initialize)
        .with(spec::initialize)
        .changing()
        .claiming_key();
    group
        .post("/v1/environments/{environmentId}/snapshot/rollback", write, rollback)
        .with(spec::rollback)
        .changing()
        .claiming_key();
    group.get("/v1/environments/{environmentId}/snapshots", read, snapshots).with(spec::snapshots);
    group.get("/v1/environments/{environmentId}/tenant-snapshots", read, of_tenants).with(spec::of_tenants);
    let of_tenant = "/v1/environments/{environmentId}/tenant-snapshots/{tenantId}";
    group.delete(of_tenant, write, delete_tenant).with(spec::delete_tenant);
    group
        .post("/v1/environments/{environmentId}/tenant-snapshots/{tenantId}/initialize", write, initialize_tenant)
        .with(spec::initialize_tenant)
        .changing()
        .claiming_key();
    group.build()
}

/// How a patch is taken.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
struct Merges {
    /// Variables and machine key by key; `null` deletes.
    merge: Option<bool>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
struct Forces {
    /// Also while its machine runs, which stops unsaved.
    force: Option<bool>,
}

/// How a command says what it says.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
struct Says {
    /// As it is; with a full key.
    raw: Option<bool>,
    /// As it comes: server-sent events `stdout`, `stderr` and `exit`.
    stream: Option<bool>,
}

fn environment(request: &Request) -> Id<Environment> {
    request.id("environmentId")
}

/// Who is connected: it works in the environment from then on, so that a caller must be able to change it, too.
async fn entity<'r>(environments: &PgEnvironments, request: &'r Request) -> Result<(EntityKind, &'r str)> {
    let id = request.path("entityId");
    let Some(kind) = EntityKind::parse(request.path("entityType")) else {
        environments.get(request.account()?, &environment(request)).await?;
        return Err(Error::new(Code::NOT_FOUND, "entityType is agent or assistant."));
    };
    request.check_change(if kind == EntityKind::Agent { AGENT } else { ASSISTANT }, id).await?;
    Ok((kind, id))
}

async fn list(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let (filter, page): (EnvironmentFilter, _) = (request.query()?, request.page()?);
    let filter = EnvironmentFilter { within: request.within().await?, ..filter };
    Answer::ok(&EnvironmentService::list(&*environments, request.account()?, &filter, page).await?)
}

async fn create(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let settings: EnvironmentSettings = request.body().await?;
    let made = environments.create(request.account()?, settings, request.once.as_ref()).await?;
    Ok(Answer::created(&made)?.etag(made.version))
}

async fn get(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let found = environments.get(request.account()?, &environment(&request)).await?;
    Ok(Answer::ok(&found)?.etag(found.version))
}

async fn update(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let merges = request.query::<Merges>()?.merge.unwrap_or(false);
    let (account, id, patch) = (request.account()?, &environment(&request), request.patch().await?);
    let changed = environments.update(account, id, patch, merges, &request.if_match()?).await?;
    Ok(Answer::ok(&changed)?.etag(changed.version))
}

async fn delete(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let force = request.query::<Forces>()?.force.unwrap_or(false);
    let id = &environment(&request);
    environments.delete(request.account()?, id, force, &request.if_match()?).await?;
    Answer::deleted("environment", id)
}

async fn clis(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    Answer::ok(&environments.clis(request.account()?, &environment(&request)).await?)
}

async fn connections(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let mut connected = environments.connections(request.account()?, &environment(&request)).await?;
    let mut hidden = Vec::new();
    let agents = connected.agents.iter().map(|of| (AGENT, &of.id));
    for (kind, id) in agents.chain(connected.assistants.iter().map(|of| (ASSISTANT, &of.id))) {
        if !request.may_use(kind, id).await? {
            hidden.push(id.clone());
        }
    }
    connected.agents.retain(|of| !hidden.contains(&of.id));
    connected.assistants.retain(|of| !hidden.contains(&of.id));
    Answer::ok(&connected)
}

async fn connect(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let variables: ConnectionVariables = request.body().await?;
    let entity = entity(&environments, &request).await?;
    Answer::ok(&environments.connect(request.account()?, &environment(&request), entity, variables).await?)
}

async fn disconnect(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let entity = entity(&environments, &request).await?;
    environments.disconnect(request.account()?, &environment(&request), entity).await?;
    Answer::ok(&json!({"success": true}))
}

async fn start(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let start: StartSandbox = request.body().await?;
    Answer::created(&environments.start(request.caller()?, &environment(&request), start).await?)
}

async fn status(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let WhoseSandbox { tenant_id } = request.query()?;
    let account = request.account()?;
    Answer::ok(&environments.status(account, &environment(&request), tenant_id.as_deref()).await?)
}

async fn exec(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let (command, says): (NewCommand, Says) = (request.body().await?, request.query()?);
    let mode = OutputMode { raw: says.raw.unwrap_or(false), streams: says.stream.unwrap_or(false) };
    let said = environments.exec(request.caller()?, &environment(&request), command, mode).await?;
    if mode.streams {
        let said = match request.kept_key() {
            Some(key) => kept(said, key),
            None => said,
        };
        // It lasts as long as the command, of which a machine has few.
        return Ok(Answer::events(pieces(said), None, None, request.follower()));
    }
    let said = whole(said).await?;
    let answer = Answer::ok(&said)?;
    if !mode.raw {
        return Ok(answer);
    }
    // What is told once more is told without the values of variables.
    let masked = || platform_vault::MASK.to_owned();
    answer.kept_as(&CommandOutput { stdout: masked(), stderr: masked(), ..said })
}

/// What a command says; whoever asks again under the same idempotency key is told how it ended, also when nobody
/// listened to its end.
fn kept(mut said: mpsc::Receiver<OutputPiece>, key: KeptKey) -> mpsc::Receiver<OutputPiece> {
    let (says, heard) = mpsc::channel(1);
    spawn("keep how a command ended", async move {
        let telling = async {
            while let Some(piece) = said.recv().await {
                let kept = match event(&piece) {
                    ("exit", end) => key.keep(&end).await,
                    ("error", _) => key.release().await,
                    _ => Ok(()),
                };
                if let Err(error) = kept {
                    warn!(%error, "How a command ended could not be kept under its Idempotency-Key.");
                }
                let _ = says.send(piece).await;
            }
        };
        key.renewed(Box::pin(telling)).await;
    });
    heard
}

/// What a command says, as events.
fn pieces(said: mpsc::Receiver<OutputPiece>) -> Pin<Box<dyn Stream<Item = Event>>> {
    let pieces = stream::unfold(said, |mut said| async move { Some((said.recv().await?, said)) });
    Box::pin(pieces.map(|piece| {
        let (name, data) = event(&piece);
        Event::new(name, &data)
    }))
}

fn event(piece: &OutputPiece) -> (&'static str, Value) {
    match piece {
        OutputPiece::Stdout(text) => ("stdout", json!({"text": text})),
        OutputPiece::Stderr(text) => ("stderr", json!({"text": text})),
        OutputPiece::Exit(CommandOutput { exit_code, duration_ms, cwd, truncated, .. }) => {
            ("exit", json!({"exitCode": exit_code, "durationMs": duration_ms, "cwd": cwd, "truncated": truncated}))
        }
        OutputPiece::Failed(error) => {
            ("error", json!({"error": {"code": error.code().as_str(), "message": error.message()}}))
        }
    }
}

async fn stop(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let stop: StopSandbox = request.body().await?;
    Answer::ok(&environments.stop(request.account()?, &environment(&request), stop).await?)
}

async fn list_files(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let list: ListFiles = request.body().await?;
    Answer::ok(&environments.list_files(request.account()?, &environment(&request), list).await?)
}

async fn read_file(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let read: ReadFile = request.body().await?;
    Answer::ok(&environments.read_file(request.account()?, &environment(&request), read).await?)
}

async fn write_file(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let write: WriteFile = request.body().await?;
    Answer::ok(&environments.write_file(request.account()?, &environment(&request), write).await?)
}

async fn sessions(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let (filter, page): (SessionFilter, _) = (request.query()?, request.page()?);
    Answer::ok(&environments.sessions(request.account()?, &environment(&request), &filter, page).await?)
}

async fn last_session(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    Answer::ok(&environments.session(request.account()?, &environment(&request), None).await?)
}

async fn session(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let session = Some(&request.id("sessionId"));
    Answer::ok(&environments.session(request.account()?, &environment(&request), session).await?)
}

async fn initialize(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    Answer::json(202, &environments.initialize(request.account()?, &environment(&request)).await?)
}

async fn rollback(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let WhoseSandbox { tenant_id } = request.body().await?;
    let account = request.account()?;
    Answer::ok(&environments.rollback(account, &environment(&request), tenant_id.as_deref()).await?)
}

async fn snapshots(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    Answer::ok(&environments.snapshots(request.account()?, &environment(&request)).await?)
}

async fn of_tenants(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    Answer::ok(&environments.of_tenants(request.account()?, &environment(&request)).await?)
}

async fn initialize_tenant(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let (account, tenant) = (request.account()?, request.path("tenantId"));
    Answer::json(202, &environments.initialize_tenant(account, &environment(&request), tenant).await?)
}

async fn delete_tenant(environments: Arc<PgEnvironments>, request: Request) -> Result<Answer> {
    let (account, tenant) = (request.account()?, request.path("tenantId"));
    environments.delete_tenant(account, &environment(&request), tenant).await?;
    Answer::deleted("snapshot", tenant)
}

mod spec {
    use platform_environments::{
        CommandOutput, Connection, ConnectionVariables, Connections, Environment, EnvironmentFilter, EnvironmentList,
        EnvironmentSettings, FileContent, FileListing, ListFiles, NewCommand, ReadFile, SandboxSession, SandboxStatus,
        SessionFilter, SessionPage, Snapshot, SnapshotStarted, StartSandbox, StartedSandbox, StopSandbox,
        StoppedSandbox, WhoseSandbox, WriteFile, WrittenFile,
    };
    use platform_http::{Deleted, Operation};
    use platform_sandbox::Cli;

    use super::{Forces, Merges, Says};

    pub fn list() -> Operation {
        Operation::new("List environments, newest first")
            .query::<EnvironmentFilter>()
            .paged(10, 100)
            .answers::<EnvironmentList>(200)
    }
    pub fn create() -> Operation {
        Operation::new("Make an environment")
            .body::<EnvironmentSettings>()
            .requires(&["name"])
            .answers::<Environment>(201)
    }
    pub fn get() -> Operation {
        Operation::new("Read an environment; its variables are masked").answers::<Environment>(200)
    }
    pub fn update() -> Operation {
        Operation::new("Change the given fields of an environment; machines that run keep their settings")
            .query::<Merges>()
            .body::<EnvironmentSettings>()
            .answers::<Environment>(200)
    }
    pub fn delete() -> Operation {
        Operation::new("Delete an environment with what is kept of its machines")
            .query::<Forces>()
            .answers::<Deleted>(200)
    }
    pub fn clis() -> Operation {
        Operation::new("List the programs of an environment's machine").answers::<Vec<Cli>>(200)
    }
    pub fn connections() -> Operation {
        Operation::new("List the agents and assistants of an environment").answers::<Connections>(200)
    }
    pub fn connect() -> Operation {
        Operation::new("Connect an agent or assistant, which leaves its former environment")
            .body::<ConnectionVariables>()
            .answers::<Connection>(200)
    }
    pub fn disconnect() -> Operation {
        Operation::new("Disconnect an agent or assistant").answers_object(200)
    }
    pub fn start() -> Operation {
        Operation::new("Start the machine of an environment").body::<StartSandbox>().answers::<StartedSandbox>(201)
    }
    pub fn status() -> Operation {
        Operation::new("Say whether a machine runs").query::<WhoseSandbox>().answers::<SandboxStatus>(200)
    }
    pub fn exec() -> Operation {
        Operation::new("Run a line of the shell; with stream=true what it says comes as server-sent events")
            .query::<Says>()
            .body::<NewCommand>()
            .requires(&["sandboxId", "command"])
            .answers::<CommandOutput>(200)
            .answers_text(200, "text/event-stream")
    }
    pub fn stop() -> Operation {
        Operation::new("Stop a machine; what is on it is saved in the background")
            .body::<StopSandbox>()
            .requires(&["sandboxId"])
            .answers::<StoppedSandbox>(200)
    }
    pub fn list_files() -> Operation {
        Operation::new("List a directory of a machine")
            .body::<ListFiles>()
            .requires(&["sandboxId", "path"])
            .answers::<FileListing>(200)
    }
    pub fn read_file() -> Operation {
        Operation::new("Read a file of a machine")
            .body::<ReadFile>()
            .requires(&["sandboxId", "path"])
            .answers::<FileContent>(200)
    }
    pub fn write_file() -> Operation {
        Operation::new("Write a file of a machine")
            .body::<WriteFile>()
            .requires(&["sandboxId", "destinationPath"])
            .answers::<WrittenFile>(200)
    }
    pub fn sessions() -> Operation {
        Operation::new("List the sessions of an environment's machines")
            .query::<SessionFilter>()
            .paged(20, 100)
            .answers::<SessionPage>(200)
    }
    pub fn session() -> Operation {
        Operation::new("Read a session with its last 500 commands").answers::<SandboxSession>(200)
    }
    pub fn initialize() -> Operation {
        Operation::new("Make a machine, run its init script, and save it").answers::<SnapshotStarted>(202)
    }
    pub fn rollback() -> Operation {
        Operation::new("Make the snapshot before the current one current again")
            .body::<WhoseSandbox>()
            .answers::<Snapshot>(200)
    }
    pub fn snapshots() -> Operation {
        Operation::new("List snapshots, newest first").answers::<Vec<Snapshot>>(200)
    }
    pub fn of_tenants() -> Operation {
        Operation::new("List the latest snapshot of each tenant").answers::<Vec<Snapshot>>(200)
    }
    pub fn initialize_tenant() -> Operation {
        Operation::new("Give a tenant a copy of the environment's snapshot").answers::<SnapshotStarted>(202)
    }
    pub fn delete_tenant() -> Operation {
        Operation::new("Delete the snapshots of a tenant").answers::<Deleted>(200)
    }
}
