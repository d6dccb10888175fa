//! A container, as a machine.
//!
//! Its first process reads from a connection of ours and ends when that does, so that what runs in it does not outlive
//! us; what is left of it, and whatever root in it kept from ending, the next process removes.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    path::Component,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bollard::{
    Docker, body_stream,
    container::LogOutput,
    errors::Error,
    exec::{CreateExecOptions, StartExecOptions, StartExecResults},
    models::{
        ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
        ResourcesUlimits,
    },
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder,
        InspectContainerOptionsBuilder, KillContainerOptionsBuilder, StartContainerOptions,
        UploadToContainerOptionsBuilder,
    },
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use platform_core::spawn;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt, DuplexStream, duplex},
    net::TcpStream,
    runtime::Handle,
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::io::{StreamReader, SyncIoBridge};
use tracing::warn;

use super::{ContainerBackend, LABEL, doors, failed, is_unknown, name, removal};
use crate::{
    backend::{Command, Disk, Machine, MachineSpec, Running, SandboxError, VARIABLES, connected},
    files::output_within,
    gate::Gate,
    process::{MAX_ENTRIES, MAX_FILES, MAX_PROCESSES, USER},
};

const MIB: u64 = 1 << 20;
/// Directories that are the disk of a machine.
const DIRS: [&str; 2] = ["workspace", "tmp"];
/// The first process: takes in whoever lost their parent, and ends with what it reads.
const FIRST: &str = "while read -r -t 3600 _ || [ $? -gt 128 ]; do :; done";
/// Makes a machine of a new container; `$1`: who answers questions for names, if anybody does. Engines differ in whose an unpacked file
/// is: all are the unprivileged user's.
const PREPARE: &str = "mkdir -p /workspace /tmp && chown -hR 1000:1000 /workspace /tmp || exit
    chmod 775 /workspace && chmod 1777 /tmp || exit
    grep -q ':1000:' /etc/passwd || echo 'sandbox:x:1000:1000::/workspace:/bin/bash' >> /etc/passwd
    echo ${1:+nameserver \"$1\"} > /etc/resolv.conf || [ -z \"$1\" ]";
/// Says under which number a command runs, before it does. Both users can change what the other made.
const WRAPPED: &str = "umask 002; echo $$ >&2; exec \"$@\"";
/// Kills a command and what it started in its process group.
const KILL: &str = "kill -KILL -- -$1 2>/dev/null; kill -KILL $1 2>/dev/null; true";
/// What the first user of a machine may do in it.
const RIGHTS: [&str; 6] = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"];
/// Processes of a user of all containers together: the engine counts those of a machine.
const MAX_OF_USER: u64 = 16_384;
/// Pieces of output, and of archives.
const PIECE: usize = 65_536;
/// How often it is looked whether a command has ended.
const LOOKS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// An engine takes its time to count: what it found holds for so long.
const COUNTED: Duration = Duration::from_secs(10);
/// A command that is to be killed says its number within this.
const NUMBERED: Duration = Duration::from_secs(5);
/// Longest making of a machine of a container: a disk of many files takes its time.
const MAKING: Duration = Duration::from_mins(2);
/// An engine that is told to end a container does so within this, or is given up.
const ENDING: Duration = Duration::from_secs(10);
/// The engine is told so within this.
const TELLING: Duration = Duration::from_secs(1);
/// When nothing more comes for so long after a command has ended, it has written all.
const QUIET: Duration = Duration::from_millis(100);
/// Processes that join its network at once, each for one connection.
const MAX_JOINING: usize = 4;
/// Waits before a container is removed again that could not be.
const RETRY_DELAYS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(10), Duration::from_mins(2)];
/// CPU time is given out in such pieces, in microseconds.
const CPU_PERIOD: i64 = 100_000;

/// A container that goes with whoever has it.
struct Container {
    engine: Docker,
    id: String,
}

impl Container {
    /// The number of its first process on the host; 0 where there is none.
    async fn first_process(&self) -> Result<i64, SandboxError> {
        let found = self.engine.inspect_container(&self.id, None).await.map_err(|error| failed(&error))?;
        Ok(found.state.and_then(|state| state.pid).unwrap_or_default())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Of a process that ends, the next one removes what is left.
        if Handle::try_current().is_err() {
            return;
        }
        let (engine, id) = (self.engine.clone(), std::mem::take(&mut self.id));
        spawn("remove sandbox", async move {
            let mut waits = RETRY_DELAYS.into_iter();
            while let Err(error) = engine.remove_container(&id, Some(removal())).await {
                if is_unknown(&error) {
                    return;
                }
                warn!(container = id, %error, "A sandbox could not be removed; trying again later.");
                let Some(wait) = waits.next() else { return };
                sleep(wait).await;
            }
        });
    }
}

/// A machine that is a container.
pub(super) struct ContainerMachine {
    container: Container,
    /// Makes this program one that joins its network, so many at once.
    argument: String,
    joining: Semaphore,
    /// What its first process reads.
    tether: Mutex<Option<Pin<Box<dyn AsyncWrite + Send>>>>,
    /// Has it ended without waiting for the engine to say so.
    ends: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    disk_bytes: u64,
    /// What was on its disk, and when that was counted.
    counted: Mutex<Option<(Instant, u64)>>,
    gate: Option<Gate>,
}

/// Makes a machine; when this returns it takes commands.
pub(super) async fn create(
    backend: &ContainerBackend,
    engine: &Docker,
    image: &str,
    spec: MachineSpec,
    disk: Disk,
) -> Result<Arc<ContainerMachine>, SandboxError> {
    let disk_bytes = u64::from(spec.disk_mib) * MIB;
    let (rules, listen) = Gate::plan(&spec.network, &backend.egress);
    let options = CreateContainerOptionsBuilder::default().name(&name(&spec.id)).build();
    let (body, making) = (body(image, &spec, &backend.owner()?, disk_bytes), engine.clone());
    // Whoever leaves meanwhile leaves nothing behind.
    let making = spawn("create sandbox", async move {
        let made = making.create_container(Some(options), body).await.map_err(|error| failed(&error))?;
        Ok::<_, SandboxError>(Container { engine: making, id: made.id })
    });
    let container = making.await.map_err(|error| SandboxError::Failed(error.to_string()))??;
    let options = AttachContainerOptionsBuilder::default().stdin(true).stdout(true).stderr(true).stream(true).build();
    let attached = engine.attach_container(&container.id, Some(options)).await.map_err(|error| failed(&error))?;
    let starting = engine.start_container(&container.id, None::<StartContainerOptions>);
    starting.await.map_err(|error| failed(&error))?;
    let ((ends, ending), (has_ended, ended)) = (watch::channel(false), watch::channel(false));
    spawn("sandbox", hear(attached.output, ending, engine.clone(), container.id.clone(), has_ended));
    if let Disk::Archive(archive) = disk {
        unpack(&container, archive).await?;
    }
    let (tether, counted) = (Mutex::new(Some(attached.input)), Mutex::default());
    let (argument, joining) = (backend.argument.clone(), Semaphore::new(MAX_JOINING));
    let mut machine =
        ContainerMachine { container, argument, joining, tether, ends, ended, disk_bytes, counted, gate: None };
    if let Some(rules) = rules {
        let process = machine.container.first_process().await?;
        let doors = doors::open(&backend.argument, &machine.container.id, process, listen, Gate::NAMES).await?;
        machine.gate = Some(rules.open(doors)?);
    }
    let names = if machine.gate.is_some() { Gate::NAMES.ip().to_string() } else { String::new() };
    let prepare = Command { is_root: true, ..Command::shell(PREPARE, [&names]) };
    let prepared = output_within(MAKING, &machine, prepare).await?;
    if prepared.code != 0 {
        let said = String::from_utf8_lossy(&prepared.stderr).trim().to_owned();
        return Err(SandboxError::Failed(format!("the image {image} makes no machine: {said}")));
    }
    Ok(Arc::new(machine))
}

/// What is left of a machine whose process is gone: it ends, if it has not.
pub(super) fn left(argument: &str, engine: &Docker, id: String) -> ContainerMachine {
    let container = Container { engine: engine.clone(), id };
    let ((ends, ending), (has_ended, ended)) = (watch::channel(true), watch::channel(false));
    spawn("sandbox", hear(stream::empty(), ending, engine.clone(), container.id.clone(), has_ended));
    let (tether, counted, disk_bytes) = (Mutex::default(), Mutex::default(), u64::MAX / 2);
    let (argument, joining) = (argument.to_owned(), Semaphore::new(MAX_JOINING));
    ContainerMachine { container, argument, joining, tether, ends, ended, disk_bytes, counted, gate: None }
}

fn body(image: &str, spec: &MachineSpec, owner: &str, disk_bytes: u64) -> ContainerCreateBody {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let memory = Some(signed(u64::from(spec.memory_mib) * MIB));
    let limit = |name: &str, most: u64| {
        let most = Some(signed(most));
        ResourcesUlimits { name: Some(name.to_owned()), soft: most, hard: most }
    };
    let limits = [("core", 0), ("nofile", MAX_FILES), ("fsize", disk_bytes), ("nproc", MAX_OF_USER)];
    let limits = limits.map(|(name, most)| limit(name, most)).into();
    let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let host = HostConfig {
        memory,
        memory_swap: memory,
        // Unlike a number of CPUs, this may be more than the host has.
        cpu_period: Some(CPU_PERIOD),
        cpu_quota: Some(i64::from(spec.cpus) * CPU_PERIOD),
        pids_limit: Some(signed(MAX_PROCESSES)),
        ulimits: Some(limits),
        // What it reaches it reaches through the gate.
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        cap_drop: words(&["ALL"]),
        cap_add: words(&RIGHTS),
        security_opt: words(&["no-new-privileges"]),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(image.to_owned()),
        hostname: Some("sandbox".to_owned()),
        entrypoint: words(&["/bin/bash", "-c", FIRST]),
        cmd: Some(Vec::new()),
        user: Some("0:0".to_owned()),
        // The engine makes it.
        working_dir: Some("/workspace".to_owned()),
        attach_stdin: Some(true),
        open_stdin: Some(true),
        stdin_once: Some(true),
        // An image's own would run beside what is asked for.
        healthcheck: Some(HealthConfig { test: words(&["NONE"]), ..HealthConfig::default() }),
        labels: Some([(LABEL.to_owned(), owner.to_owned())].into()),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

/// Hears when a container has ended, or its connection to us, or is to end.
async fn hear(
    mut said: impl Stream<Item = Result<LogOutput, Error>> + Unpin,
    mut ending: watch::Receiver<bool>,
    engine: Docker,
    id: String,
    ended: watch::Sender<bool>,
) {
    tokio::select! {
        () = async { while said.next().await.is_some_and(|piece| piece.is_ok()) {} } => {}
        _ = ending.wait_for(|ending| *ending) => {}
    }
    let ending = async {
        while !has_ended(&engine, &id).await {
            let options = KillContainerOptionsBuilder::default().signal("SIGKILL").build();
            let _ = timeout(TELLING, engine.kill_container(&id, Some(options))).await;
            sleep(LOOKS.0).await;
        }
    };
    if timeout(ENDING, ending).await.is_err() {
        warn!(container = id, "A sandbox could not be ended; it is removed when its engine answers again.");
    }
    let _ = ended.send(true);
}

/// Whether the engine says so; one that does not answer says nothing.
async fn has_ended(engine: &Docker, id: &str) -> bool {
    match timeout(TELLING, engine.inspect_container(id, None)).await {
        Ok(Ok(found)) => !found.state.and_then(|state| state.running).unwrap_or(false),
        Ok(Err(error)) => is_unknown(&error),
        Err(_) => false,
    }
}

/// Puts an archive on the disk.
async fn unpack(container: &Container, mut archive: Box<dyn Read + Send>) -> Result<(), SandboxError> {
    let (sender, pieces) = mpsc::channel::<Bytes>(4);
    let reading = tokio::task::spawn_blocking(move || {
        loop {
            let mut piece = vec![0; PIECE];
            let length = archive.read(&mut piece)?;
            piece.truncate(length);
            if length == 0 || sender.blocking_send(piece.into()).is_err() {
                return Ok::<_, io::Error>(());
            }
        }
    });
    let pieces = stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces)));
    let options = UploadToContainerOptionsBuilder::default().path("/").build();
    let putting = container.engine.upload_to_container(&container.id, Some(options), body_stream(pieces));
    putting.await.map_err(|error| failed(&error))?;
    Ok(reading.await.map_err(|error| SandboxError::Failed(error.to_string()))??)
}

/// Writes a directory of the disk as the engine gives it.
fn pack(
    archive: &mut tar::Builder<impl Write>,
    (dir, given): (&str, impl Read),
    (bytes, entries): (&mut u64, &mut u64),
    most: u64,
) -> io::Result<()> {
    let mut given = tar::Archive::new(given);
    for entry in given.entries()? {
        let entry = entry?;
        let (path, kind) = (entry.path()?.into_owned(), entry.header().entry_type());
        let is_beneath = path.starts_with(dir) && path.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_beneath || (path.components().count() == 1 && !kind.is_dir()) {
            return Err(io::Error::other(format!("/{dir} is no directory any more")));
        }
        (*bytes, *entries) = (bytes.saturating_add(entry.size()), *entries + 1);
        if *bytes > most || *entries > MAX_ENTRIES {
            return Err(io::Error::other("there is more on the disk than it may hold"));
        }
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(entry.header().mode()? & 0o7777);
        header.set_mtime(entry.header().mtime()?);
        header.set_uid(USER.into());
        header.set_gid(USER.into());
        header.set_size(0);
        let target = entry.link_name()?.map(std::borrow::Cow::into_owned);
        match target {
            Some(target) if kind.is_symlink() || kind.is_hard_link() => {
                archive.append_link(&mut header, path, target)?;
            }
            _ if kind.is_dir() => archive.append_data(&mut header, path, io::empty())?,
            _ if kind.is_file() => {
                header.set_size(entry.size());
                archive.append_data(&mut header, path, entry)?;
            }
            // Sockets and pipes are not kept.
            _ => {}
        }
    }
    Ok(())
}

/// Hands on what a command writes; its first line is its number. `moved` tells of each piece.
async fn pump(
    mut said: impl Stream<Item = Result<LogOutput, Error>> + Unpin,
    (mut stdout, mut stderr): (DuplexStream, DuplexStream),
    number: watch::Sender<Option<u32>>,
    moved: watch::Sender<()>,
) {
    let mut head = Vec::new();
    while let Some(Ok(piece)) = said.next().await {
        moved.send_replace(());
        // Whoever does not read any more misses it.
        let _ = match piece {
            LogOutput::StdErr { message } if number.borrow().is_none() => {
                head.extend_from_slice(&message);
                let Some(end) = head.iter().position(|byte| *byte == b'\n') else { continue };
                let told = std::str::from_utf8(&head[..end]).ok().and_then(|text| text.trim().parse().ok());
                number.send_replace(Some(told.unwrap_or_default()));
                stderr.write_all(&head[end + 1..]).await
            }
            LogOutput::StdErr { message } => stderr.write_all(&message).await,
            other => stdout.write_all(&other.into_bytes()).await,
        };
    }
}

/// Waits until a command has ended, and what it wrote has come; its exit code.
async fn exit(
    engine: Docker,
    exec: String,
    mut moved: watch::Receiver<()>,
    mut ended: watch::Receiver<bool>,
) -> Result<i32, SandboxError> {
    let mut wait = LOOKS.0;
    let code = loop {
        match engine.inspect_exec(&exec).await {
            Ok(found) => {
                if let (Some(false), Some(code)) = (found.running, found.exit_code) {
                    break i32::try_from(code).unwrap_or(i32::MAX);
                }
            }
            Err(error) if is_unknown(&error) => return Err(SandboxError::Ended),
            // An engine that does not answer may do so again.
            Err(_) => {}
        }
        tokio::select! {
            () = sleep(wait) => wait = (wait * 2).min(LOOKS.1),
            _ = ended.wait_for(|ended| *ended) => return Err(SandboxError::Ended),
        }
    };
    while let Ok(Ok(())) = timeout(QUIET, moved.changed()).await {}
    Ok(code)
}

async fn kill(engine: Docker, container: String, mut number: watch::Receiver<Option<u32>>) {
    let Ok(Ok(number)) = timeout(NUMBERED, number.wait_for(Option::is_some)).await.map(|told| told.map(|told| *told))
    else {
        return;
    };
    let Some(number) = number.filter(|number| *number > 1).map(|number| number.to_string()) else { return };
    let options = CreateExecOptions {
        cmd: Some(vec!["/bin/bash", "-c", KILL, "bash", &number]),
        user: Some("0:0"),
        ..CreateExecOptions::default()
    };
    if let Ok(exec) = engine.create_exec(&container, options).await {
        let _ =
            engine.start_exec(&exec.id, Some(StartExecOptions { detach: true, ..StartExecOptions::default() })).await;
    }
}

#[async_trait]
impl Machine for ContainerMachine {
    fn variables(&self) -> Vec<(String, String)> {
        // An engine may have a proxy of its own, which is not for machines.
        let proxy =
            |(name, value): &(&'static str, &'static str)| (*name, if self.gate.is_some() { *value } else { "" });
        let all = VARIABLES.into_iter().chain(Gate::VARIABLES.iter().map(proxy));
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    async fn start(&self, command: Command) -> Result<Running, SandboxError> {
        if *self.ended.borrow() {
            return Err(SandboxError::Ended);
        }
        let Command { argv, variables: own, is_root, input } = command;
        let variables: BTreeMap<String, String> = self.variables().into_iter().chain(own).collect();
        let wrapper = ["/bin/sh", "-c", WRAPPED, "sh"].map(str::to_owned);
        let (engine, container) = (&self.container.engine, &self.container.id);
        let options = CreateExecOptions {
            attach_stdin: Some(!input.is_empty()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            env: Some(variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
            cmd: Some(wrapper.into_iter().chain(argv).collect()),
            user: Some(format!("{}:{USER}", if is_root { 0 } else { USER })),
            working_dir: Some("/workspace".to_owned()),
            ..CreateExecOptions::default()
        };
        let exec = engine.create_exec(container, options).await.map_err(|error| failed(&error))?.id;
        let attached = StartExecOptions { output_capacity: Some(PIECE), ..StartExecOptions::default() };
        let started = engine.start_exec(&exec, Some(attached)).await.map_err(|error| failed(&error))?;
        let StartExecResults::Attached { output, input: mut stdin } = started else {
            return Err(SandboxError::Failed("the engine gives no output".to_owned()));
        };
        if !input.is_empty() {
            spawn("sandbox input", async move {
                if stdin.write_all(&input).await.is_ok() {
                    let _ = stdin.shutdown().await;
                }
            });
        }
        let ((out, stdout), (err, stderr)) = (duplex(PIECE), duplex(PIECE));
        let ((number, numbered), (moves, moved)) = (watch::channel(None), watch::channel(()));
        spawn("sandbox output", pump(output, (out, err), number, moves));
        let killing = (engine.clone(), container.clone(), numbered);
        Ok(Running {
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            exit: exit(engine.clone(), exec, moved, self.ended.clone()).boxed(),
            kill: Arc::new(move || {
                let (engine, container, number) = killing.clone();
                spawn("kill command", kill(engine, container, number));
            }),
        })
    }

    async fn connect(&self, port: u16) -> Result<TcpStream, SandboxError> {
        let _place = self.joining.acquire().await;
        let process = self.container.first_process().await?;
        let connection = doors::connect(&self.argument, &self.container.id, process, port).await?;
        connected(connection, port).await
    }

    async fn disk_bytes(&self) -> Result<u64, SandboxError> {
        let counted = *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = counted.filter(|(at, _)| at.elapsed() < COUNTED) {
            return Ok(bytes);
        }
        let options = InspectContainerOptionsBuilder::default().size(true).build();
        let found = self
            .container
            .engine
            .inspect_container(&self.container.id, Some(options))
            .await
            .map_err(|error| failed(&error))?;
        let bytes = found.size_rw.and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| SandboxError::Failed("the engine does not count the disk".to_owned()))?;
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), bytes));
        Ok(bytes)
    }

    async fn end(&self) {
        self.ends.send_replace(true);
        let tether = self.tether.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut tether) = tether {
            let _ = timeout(TELLING, tether.shutdown()).await;
        }
        self.ended().await;
    }

    async fn ended(&self) {
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    async fn save(&self, to: Box<dyn Write + Send>) -> Result<(), SandboxError> {
        self.ended().await;
        // As much above its size as a machine is given a moment for.
        let most = self.disk_bytes + self.disk_bytes / 4;
        let given = DIRS.map(|dir| {
            let options = DownloadFromContainerOptionsBuilder::default().path(&format!("/{dir}")).build();
            let given = self.container.engine.download_from_container(&self.container.id, Some(options));
            StreamReader::new(Box::pin(given.map_err(io::Error::other)))
        });
        let given = given.map(SyncIoBridge::new);
        let packing = tokio::task::spawn_blocking(move || {
            let mut archive = tar::Builder::new(to);
            let (mut bytes, mut entries) = (0, 0);
            for (dir, given) in DIRS.into_iter().zip(given) {
                pack(&mut archive, (dir, given), (&mut bytes, &mut entries), most)?;
            }
            archive.into_inner()?.flush()
        });
        Ok(packing.await.map_err(|error| SandboxError::Failed(error.to_string()))??)
    }
}
