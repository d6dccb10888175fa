//! A machine, as the process that made it sees it.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Seek, Write},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt;
use platform_core::{run_blocking, spawn};
use rustix::{
    fs::{Gid, MemfdFlags, Uid, fchown, memfd_create},
    net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair, sockopt},
    process::geteuid,
};
use tokio::{
    io::{AsyncWriteExt, unix::AsyncFd},
    net::{TcpStream, unix::pipe},
    process::Child,
    sync::{oneshot, watch},
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    MAX_PROCESSES, ProcessBackend, USER,
    control_group::ControlGroup,
    disk::{self, MachineDir},
    packet::{Instruction, Program, Report, Setup, Watched, receive, send},
};
use crate::{
    backend::{Command, Disk, Machine, MachineSpec, Running, SandboxError, VARIABLES, connected},
    gate::Gate,
};

/// Longest making of a machine.
const MAKING: Duration = Duration::from_secs(30);
/// After which a machine that does not end by itself is killed.
const ENDING: Duration = Duration::from_secs(1);
/// Users of machines on the host begin here; each machine has so many of them.
const FIRST_USER: u32 = 0x4000_0000;
const USERS: u32 = 1024;
const MIB: u64 = 1 << 20;

/// A machine of namespaces.
pub(super) struct ProcessMachine {
    control: Arc<OwnedFd>,
    waiting: Arc<Waiting<i32>>,
    connecting: Arc<Waiting<OwnedFd>>,
    next: AtomicU64,
    ended: watch::Receiver<bool>,
    dir: MachineDir,
    /// Id of its first user on the host.
    first_user: Option<u32>,
    disk_bytes: u64,
    /// The namespace of its processes.
    process_namespace: Option<PathBuf>,
    gate: Option<Gate>,
}

/// Who waits for commands to end, or for connections.
struct Waiting<T>(Mutex<Waiters<T>>);

type Waiters<T> = HashMap<u64, oneshot::Sender<Result<T, SandboxError>>>;

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Waiting<T> {
    fn of(&self) -> MutexGuard<'_, Waiters<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, id: u64, result: Result<T, SandboxError>) {
        if let Some(waits) = self.of().remove(&id) {
            let _ = waits.send(result);
        }
    }
}

/// Makes a machine; when this returns it takes commands.
pub(super) async fn create(
    backend: &ProcessBackend,
    spec: MachineSpec,
    disk: Disk,
) -> Result<Arc<ProcessMachine>, SandboxError> {
    let first_user = geteuid().is_root().then(users);
    let dir = MachineDir(backend.home().await?.join(&spec.id));
    let path = dir.0.clone();
    let disk_bytes = u64::from(spec.disk_mib) * MIB;
    run_blocking(move || {
        disk::prepare(&path, first_user, disk, most_saved(disk_bytes)).map_err(platform_core::Error::internal)
    })
    .await
    .map_err(|error| SandboxError::Failed(error.cause().map_or_else(String::new, ToString::to_string)))?;
    let memory = u64::from(spec.memory_mib) * MIB;
    let group = ControlGroup::create(&spec.id, memory, spec.cpus, MAX_PROCESSES);
    let (rules, listen) = Gate::plan(&spec.network, &backend.egress);
    let setup = Setup {
        single_user: first_user.is_none(),
        listen,
        names: rules.as_ref().map(|_| Gate::NAMES),
        file_bytes: disk_bytes,
        processes: MAX_PROCESSES,
        watched: group.is_none().then(|| {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let first_cpu = NEXT.fetch_add(spec.cpus, Ordering::Relaxed);
            Watched { memory, cpus: spec.cpus, first_cpu }
        }),
    };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(io::Error::from)?;
    let mut command = tokio::process::Command::new(&backend.program);
    command.arg(&backend.argument).arg("outer").env_clear().current_dir(&dir.0).kill_on_drop(true);
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn()?;
    // The command holds the other end of the socket.
    drop(command);
    let process = child.id().ok_or(SandboxError::Ended)?;
    if let Some(group) = &group {
        group.add(process)?;
    }
    let making = run_blocking(move || {
        let doors = make(&ours, process, first_user, &setup).map_err(platform_core::Error::internal)?;
        Ok((ours, doors))
    });
    let (control, doors) = making
        .await
        .map_err(|error| SandboxError::Failed(error.cause().map_or_else(String::new, ToString::to_string)))?;
    let process_namespace = std::fs::read_link(format!("/proc/{process}/ns/pid_for_children")).ok();
    let gate = rules.map(|rules| rules.open(doors)).transpose()?;
    let (control, waiting, connecting) = (Arc::new(control), Arc::default(), Arc::default());
    rustix::io::ioctl_fionbio(&*control, true).map_err(io::Error::from)?;
    let (ends, ended) = watch::channel(false);
    #[expect(deprecated, reason = "what is shared stays the descriptor that it is")]
    let heard = AsyncFd::new(Arc::clone(&control))?;
    spawn("sandbox", hear(heard, child, (Arc::clone(&waiting), Arc::clone(&connecting)), ends, group));
    let next = AtomicU64::new(1);
    Ok(Arc::new(ProcessMachine {
        control,
        waiting,
        connecting,
        next,
        ended,
        dir,
        first_user,
        disk_bytes,
        process_namespace,
        gate,
    }))
}

/// What is saved is as much above the size of a disk as a machine is given a moment for.
fn most_saved(disk_bytes: u64) -> u64 {
    disk_bytes + disk_bytes / 4
}

/// Users of the host that no other machine of it has.
fn users() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let slot = (std::process::id() & 0x3ff) << 10 | NEXT.fetch_add(1, Ordering::Relaxed) & 0x3ff;
    FIRST_USER + slot * USERS
}

/// Id on the host of the first user of the machine that this user is one of.
pub(super) fn first_user_of(user: u32) -> Option<u32> {
    Some(user.checked_sub(FIRST_USER)? / USERS * USERS + FIRST_USER)
}

/// Leads a process through becoming a machine; the sockets on which it listens for us.
fn make(control: &OwnedFd, process: u32, first_user: Option<u32>, setup: &Setup) -> io::Result<Vec<OwnedFd>> {
    sockopt::set_socket_timeout(control, sockopt::Timeout::Recv, Some(MAKING))?;
    send(control, &Instruction::Setup(setup.clone()), &[])?;
    report(control)?;
    let map = |file: &str, map: &str| fs::write(format!("/proc/{process}/{file}"), map);
    match first_user {
        Some(first) => {
            let both = format!("0 {first} {}", USER + 1);
            map("uid_map", &both)?;
            map("gid_map", &both)?;
        }
        None => {
            map("setgroups", "deny")?;
            map("uid_map", &format!("0 {} 1", geteuid().as_raw()))?;
            map("gid_map", &format!("0 {} 1", rustix::process::getegid().as_raw()))?;
        }
    }
    send(control, &Instruction::Mapped, &[])?;
    let doors = report(control)?;
    send(control, &Instruction::Setup(setup.clone()), &[])?;
    report(control)?;
    sockopt::set_socket_timeout(control, sockopt::Timeout::Recv, None)?;
    Ok(doors)
}

/// The next step is done.
fn report(control: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
    match receive(control)? {
        Some((Report::Failed(reason), _)) => Err(io::Error::other(reason)),
        Some((_, files)) => Ok(files),
        None => Err(io::Error::other("it ended before it was made")),
    }
}

/// Hears how commands end, what is connected, and when the machine ends.
async fn hear(
    control: AsyncFd<Arc<OwnedFd>>,
    mut child: Child,
    (waiting, connecting): (Arc<Waiting<i32>>, Arc<Waiting<OwnedFd>>),
    ends: watch::Sender<bool>,
    group: Option<ControlGroup>,
) {
    let hearing = async {
        loop {
            match control.async_io(tokio::io::Interest::READABLE, |control| receive::<Report>(control)).await {
                Ok(Some((Report::Ended { id, code }, _))) => waiting.tell(id, Ok(code)),
                Ok(Some((Report::NotStarted { id, reason }, _))) => {
                    waiting.tell(id, Err(SandboxError::Failed(reason)));
                }
                Ok(Some((Report::Connected(id), files))) => {
                    connecting.tell(id, files.into_iter().next().ok_or(SandboxError::Ended));
                }
                Ok(Some((Report::NotConnected { id, reason }, _))) => {
                    connecting.tell(id, Err(SandboxError::Failed(reason)));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    };
    hearing.await;
    if timeout(ENDING, child.wait()).await.is_err() {
        // Its first process dies with it, and everything else with that.
        if let Err(error) = child.kill().await {
            warn!(%error, "A sandbox could not be ended.");
        }
    }
    debug!(pid = child.id(), "A sandbox has ended.");
    drop(group);
    waiting.of().clear();
    connecting.of().clear();
    let _ = ends.send(true);
}

#[async_trait]
impl Machine for ProcessMachine {
    fn variables(&self) -> Vec<(String, String)> {
        let proxies: &[(&str, &str)] = if self.gate.is_some() { &Gate::VARIABLES } else { &[] };
        VARIABLES.iter().chain(proxies).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    async fn start(&self, command: Command) -> Result<Running, SandboxError> {
        if *self.ended.borrow() {
            return Err(SandboxError::Ended);
        }
        let Command { argv, variables: own, is_root, input } = command;
        let mut variables = self.variables();
        variables.extend(own);
        if is_root && self.first_user.is_none() {
            let reason = "sudo needs a platform that runs as root: this one gives a sandbox one user alone".to_owned();
            return Err(SandboxError::Failed(reason));
        }
        let mut program = File::from(memfd_create("program", MemfdFlags::CLOEXEC).map_err(io::Error::from)?);
        serde_json::to_writer(&mut program, &Program { argv, variables, is_root }).map_err(io::Error::from)?;
        program.rewind()?;
        let ((stdout, out), (stderr, err)) = (io::pipe()?, io::pipe()?);
        let stdin: OwnedFd = if input.is_empty() {
            File::open("/dev/null")?.into()
        } else {
            let (read, write) = io::pipe()?;
            let mut write = pipe::Sender::from_owned_fd(write.into())?;
            spawn("sandbox input", async move { write.write_all(&input).await });
            read.into()
        };
        if let Some(first) = self.first_user {
            // Whoever opens `/dev/stdout` opens what is its own.
            let user = first + if is_root { 0 } else { USER };
            for file in [&out, &err] {
                fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(user))).map_err(io::Error::from)?;
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (ends, exit) = oneshot::channel();
        self.waiting.of().insert(id, ends);
        let files = [program.as_fd(), stdin.as_fd(), out.as_fd(), err.as_fd()];
        if send(&*self.control, &Instruction::Start(id), &files).is_err() {
            self.waiting.of().remove(&id);
            return Err(SandboxError::Ended);
        }
        let control = Arc::clone(&self.control);
        Ok(Running {
            stdout: Box::new(pipe::Receiver::from_owned_fd(stdout.into())?),
            stderr: Box::new(pipe::Receiver::from_owned_fd(stderr.into())?),
            exit: async move { exit.await.unwrap_or(Err(SandboxError::Ended)) }.boxed(),
            kill: Arc::new(move || {
                let _ = send(&*control, &Instruction::Kill(id), &[]);
            }),
        })
    }

    async fn connect(&self, port: u16) -> Result<TcpStream, SandboxError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (made, connection) = oneshot::channel();
        self.connecting.of().insert(id, made);
        if *self.ended.borrow() || send(&*self.control, &Instruction::Connect { id, port }, &[]).is_err() {
            self.connecting.of().remove(&id);
            return Err(SandboxError::Ended);
        }
        match connection.await {
            Ok(Ok(connection)) => connected(connection, port).await,
            Ok(Err(_)) => Err(SandboxError::NobodyListens(port)),
            Err(_) => Err(SandboxError::Ended),
        }
    }

    async fn disk_bytes(&self) -> Result<u64, SandboxError> {
        let namespace = self.process_namespace.clone();
        self.dir.blocking(move |dir| Ok(disk::used(dir).saturating_add(disk::held(dir, namespace.as_deref())))).await
    }

    async fn end(&self) {
        let _ = shutdown(&*self.control, Shutdown::Both);
        self.ended().await;
    }

    async fn ended(&self) {
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    async fn save(&self, to: Box<dyn Write + Send>) -> Result<(), SandboxError> {
        self.ended().await;
        let (first_user, most) = (self.first_user, most_saved(self.disk_bytes));
        self.dir.blocking(move |dir| disk::save(to, dir, first_user, most)).await
    }
}

impl Drop for ProcessMachine {
    fn drop(&mut self) {
        let _ = shutdown(&*self.control, Shutdown::Both);
    }
}
