//! Machines made of namespaces on this host.

mod control_group;
mod disk;
mod first;
mod launch;
mod machine;
mod packet;
mod syscalls;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use platform_egress::Egress;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::OnceCell;
use tracing::debug;

use disk::MachineDir;
pub use launch::serve_machine;

use crate::{
    backend::{Command, Disk, Isolation, Machine, MachineSpec, Network, SandboxBackend, SandboxError},
    files::output,
};

/// What a machine for trying is made of.
const TRIAL: (u32, u32, u32) = (256, 1, 512);
/// Says which runtimes there are.
const FIND_RUNTIMES: &str = "node --version 2>/dev/null; python3 --version 2>/dev/null; true";

/// Makes machines of namespaces, each a process of this program.
pub struct ProcessBackend {
    program: PathBuf,
    argument: String,
    egress: Egress,
    dir: MachineDir,
    /// Held as long as the process lives: others remove what it leaves behind.
    _lock: fs::File,
    runtimes: OnceCell<Result<Vec<String>, SandboxError>>,
}

impl ProcessBackend {
    /// `argument` makes this program call [`serve_machine`]; `dir`: where the disks of machines are, of all processes
    /// that use it.
    pub fn new(argument: &str, dir: &Path, egress: Egress) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let own = dir.join(std::process::id().to_string());
        let lock = sweep(dir, &own)?;
        let program = PathBuf::from("/proc/self/exe");
        let (argument, dir) = (argument.to_owned(), MachineDir(own));
        Ok(Self { program, argument, egress, dir, _lock: lock, runtimes: OnceCell::new() })
    }

    /// Whether machines can be made here, and with what: one is made to see.
    async fn find_runtimes(&self) -> Result<Vec<String>, SandboxError> {
        let (memory_mib, cpus, disk_mib) = TRIAL;
        let (id, runtime) = (format!("trial-{}", std::process::id()), "default".to_owned());
        let spec = MachineSpec { id, runtime, memory_mib, cpus, disk_mib, network: Network::Public };
        let machine = machine::create(self, spec, Disk::Empty).await.map_err(|error| {
            SandboxError::Unavailable(format!(
                "This host does not let us isolate processes ({error}). Run the platform where unprivileged user \
                 namespaces are allowed, or as root."
            ))
        })?;
        let found = output(&*machine, Command::shell(FIND_RUNTIMES, [])).await;
        machine.end().await;
        let found = found?;
        let version = |line: &str| {
            if let Some(version) = line.strip_prefix('v') {
                return Some(format!("node{}", version.split('.').next()?));
            }
            let mut parts = line.strip_prefix("Python ")?.split('.');
            Some(format!("python{}.{}", parts.next()?, parts.next()?))
        };
        let text = String::from_utf8_lossy(&found.stdout).into_owned();
        Ok(std::iter::once("default".to_owned()).chain(text.lines().filter_map(version)).collect())
    }
}

/// Makes a directory of this process, and removes those of processes that are gone.
fn sweep(dir: &Path, own: &Path) -> io::Result<fs::File> {
    for entry in fs::read_dir(dir)?.flatten() {
        let lock = fs::File::open(entry.path().join("lock"));
        let is_free = lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        if is_free {
            debug!(dir = %entry.path().display(), "Removing the machines of a process that is gone.");
            drop(MachineDir(entry.path()));
        }
    }
    if own.exists() {
        // A process of this number was here before; it is being removed.
        fs::rename(own, own.with_extension("old"))?;
        drop(MachineDir(own.with_extension("old")));
    }
    fs::create_dir(own)?;
    let lock = fs::File::create(own.join("lock"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

#[async_trait]
impl SandboxBackend for ProcessBackend {
    fn name(&self) -> &'static str {
        "process"
    }

    fn isolation(&self) -> Isolation {
        Isolation::Container
    }

    async fn runtimes(&self) -> Result<Vec<String>, SandboxError> {
        self.runtimes.get_or_init(|| self.find_runtimes()).await.clone()
    }

    async fn create(&self, spec: MachineSpec, disk: Disk) -> Result<Arc<dyn Machine>, SandboxError> {
        let available = self.runtimes().await?;
        if !available.contains(&spec.runtime) {
            return Err(SandboxError::NoRuntime { runtime: spec.runtime, available });
        }
        Ok(machine::create(self, spec, disk).await?)
    }
}
