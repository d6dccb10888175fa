#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::{collections::HashSet, io, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncRead, net::TcpStream};
use utoipa::ToSchema;

/// Why there is no machine, or why it does not do what it is asked to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SandboxError {
    /// This host makes no such machines; a sentence says why and what can be done.
    #[error("{0}")]
    Unavailable(String),
    /// It does not have this runtime.
    #[error("{runtime} is not on this machine; there are {}", available.join(", "))]
    NoRuntime {
        /// What was asked for.
        runtime: String,
        /// What there is.
        available: Vec<String>,
    },
    /// Nobody listens where it was to be connected to.
    #[error("nobody listens on port {0} of the machine")]
    NobodyListens(u16),
    /// The machine has ended.
    #[error("the machine has ended")]
    Ended,
    /// Something else went wrong.
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for SandboxError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What keeps a machine apart from its host (contract 13 §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Nothing.
    None,
    /// Namespaces of the host's kernel.
    Container,
    /// A kernel of its own.
    Microvm,
}

/// The end of a connection within a machine, once it is made.
#[cfg(target_os = "linux")]
pub(crate) async fn connected(connection: OwnedFd, port: u16) -> Result<TcpStream, SandboxError> {
    let connection = std::net::TcpStream::from(connection);
    connection.set_nonblocking(true)?;
    let connection = TcpStream::from_std(connection)?;
    connection.writable().await?;
    match connection.take_error()? {
        None => Ok(connection),
        Some(_) => Err(SandboxError::NobodyListens(port)),
    }
}

impl Isolation {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Container => "container",
            Self::Microvm => "microvm",
        }
    }
}

/// Whom a machine reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Nobody.
    Nobody,
    /// Public addresses.
    Public,
    /// Hosts by name or address, each with a port or all of the usual ones: `example.com`, `*.example.com`,
    /// `example.com:8443`.
    Only(Vec<String>),
}

/// A machine to make.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// Its name among those of this backend.
    pub id: String,
    /// `default`, or what the backend calls another.
    pub runtime: String,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// CPUs.
    pub cpus: u32,
    /// Disk in MiB.
    pub disk_mib: u32,
    /// Whom it reaches.
    pub network: Network,
}

/// A program that a runtime may have.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Cli {
    /// Its name.
    pub name: String,
    /// What it says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether it is there.
    pub installed: bool,
}

/// What programs need to know, and where they put what they install.
pub(crate) const VARIABLES: [(&str, &str); 10] = [
    ("PATH", "/workspace/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/workspace"),
    ("USER", "sandbox"),
    ("SHELL", "/bin/bash"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
    ("TMPDIR", "/tmp"),
    ("NPM_CONFIG_PREFIX", "/workspace/.local"),
    ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
    ("PYTHONUNBUFFERED", "1"),
];

/// Makes machines of one kind.
#[async_trait]
pub trait SandboxBackend: Send + Sync {
    /// Its name in settings and records.
    fn name(&self) -> &'static str;

    /// What keeps its machines apart.
    fn isolation(&self) -> Isolation;

    /// The runtimes there are, `default` among them; an error when it makes no machines here.
    async fn runtimes(&self) -> Result<Vec<String>, SandboxError>;

    /// What is left where the disks of machines are; `None` where the platform does not see it.
    async fn room(&self) -> Option<Room> {
        None
    }

    /// Removes what machines left behind whose process is gone, but for the disks of `wanted`.
    async fn clear(&self, _wanted: &HashSet<String>) {}

    /// The machine of a process that is gone, if its disk lies here: it has ended, and is this process's from now on.
    async fn adopt(&self, _id: &str) -> Option<Arc<dyn Machine>> {
        None
    }

    /// Makes a machine with this on its disk.
    async fn create(&self, spec: MachineSpec, disk: Disk) -> Result<Arc<dyn Machine>, SandboxError>;
}

/// Room where the disks of machines are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that are free; 0 also when there is no room for more files.
    pub free: u64,
    /// Bytes that stay free for everything else that is there.
    pub least: u64,
}

/// What a new machine has on its disk.
pub enum Disk {
    /// Nothing.
    Empty,
    /// A tar archive that [`Machine::save`] wrote.
    Archive(Box<dyn io::Read + Send>),
}

/// A machine. Whoever drops it ends it.
#[async_trait]
pub trait Machine: Send + Sync {
    /// What every command finds among its variables, whoever starts it.
    fn variables(&self) -> Vec<(String, String)>;

    /// Starts a command.
    async fn start(&self, command: Command) -> Result<Running, SandboxError>;

    /// Connects to what listens on this port of its loopback address.
    async fn connect(&self, port: u16) -> Result<TcpStream, SandboxError>;

    /// Bytes on its disk.
    async fn disk_bytes(&self) -> Result<u64, SandboxError>;

    /// Ends whatever it started; its disk stays.
    async fn end(&self);

    /// Returns when it has ended, by whatever cause.
    async fn ended(&self);

    /// Writes its disk as a tar archive, after it has ended; the same disk gives the same bytes.
    async fn save(&self, to: Box<dyn io::Write + Send>) -> Result<(), SandboxError>;
}

/// Something to run on a machine.
#[derive(Debug, Default)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its variables beside [`Machine::variables`], over which they win.
    pub variables: Vec<(String, String)>,
    /// As the first user of the machine instead of an unprivileged one.
    pub is_root: bool,
    /// What it reads.
    pub input: Bytes,
}

impl Command {
    /// A line of the shell, with what it knows as `$1`, `$2` and so on.
    pub fn shell<const N: usize>(line: &str, arguments: [&str; N]) -> Self {
        let argv = ["bash", "-c", line, "bash"].into_iter().chain(arguments).map(str::to_owned).collect();
        Self { argv, ..Self::default() }
    }
}

/// A command that runs.
pub struct Running {
    /// What it writes to standard output.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// What it writes to standard error.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Its exit code; 128 and the number of the signal that ended it.
    pub exit: BoxFuture<'static, Result<i32, SandboxError>>,
    /// Kills it and what it started in its process group.
    pub kill: Arc<dyn Fn() + Send + Sync>,
}

/// There are no machines, for this reason.
pub struct NoBackend(pub String);

#[async_trait]
impl SandboxBackend for NoBackend {
    fn name(&self) -> &'static str {
        "none"
    }

    fn isolation(&self) -> Isolation {
        Isolation::None
    }

    async fn runtimes(&self) -> Result<Vec<String>, SandboxError> {
        Err(SandboxError::Unavailable(self.0.clone()))
    }

    async fn create(&self, _: MachineSpec, _: Disk) -> Result<Arc<dyn Machine>, SandboxError> {
        Err(SandboxError::Unavailable(self.0.clone()))
    }
}
