//! Machines made of namespaces on this host.

mod control_group;
mod disk;
mod first;
mod launch;
mod left;
mod machine;
mod packet;
mod syscalls;

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use platform_egress::Egress;
use tokio::sync::OnceCell;
use tracing::debug;

use control_group::ControlGroup;
pub(crate) use disk::MAX_ENTRIES;
use disk::MachineDir;
pub(crate) use launch::MAX_FILES;
pub use launch::serve_machine;
use left::LeftMachine;
pub(crate) use packet::{Instruction, Report, receive, send};

use crate::{
    backend::{Command, Disk, Isolation, Machine, MachineSpec, Network, Room, SandboxBackend, SandboxError},
    files::output,
    lock,
};

/// The unprivileged user of a machine, and the group of both users.
pub(crate) const USER: u32 = 1000;
/// Processes of a machine at once.
pub(crate) const MAX_PROCESSES: u64 = 512;
const LOCK: &str = "lock";
/// What a machine for trying is made of.
const TRIAL: (u32, u32, u32) = (256, 1, 512);
/// Says which runtimes there are.
const FIND_RUNTIMES: &str = "node --version 2>/dev/null; python3 --version 2>/dev/null; true";

/// Makes machines of namespaces, each a process of this program.
pub struct ProcessBackend {
    program: PathBuf,
    argument: String,
    egress: Egress,
    /// Where the disks of machines are, of all processes that use it.
    dir: PathBuf,
    home: OnceCell<Home>,
    runtimes: OnceCell<Vec<String>>,
}

/// The directory of the machines of this process.
struct Home {
    dir: MachineDir,
    /// Held as long as the process lives: others remove what it leaves behind.
    _lock: fs::File,
}

impl ProcessBackend {
    /// `argument` makes this program call [`serve_machine`]; `dir`: where the disks of machines will be.
    pub fn new(argument: &str, dir: &Path, egress: Egress) -> Self {
        let program = PathBuf::from("/proc/self/exe");
        let (argument, dir) = (argument.to_owned(), dir.to_owned());
        Self { program, argument, egress, dir, home: OnceCell::new(), runtimes: OnceCell::new() }
    }

    async fn home(&self) -> io::Result<&Path> {
        let home = self.home.get_or_try_init(async || Home::make(&self.dir)).await?;
        Ok(&home.dir.0)
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

impl Home {
    fn make(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let own = dir.join(std::process::id().to_string());
        let lock = lock::take(&own.with_extension(LOCK))?;
        if own.exists() {
            // A process of this number was here before.
            disk::set_aside(&own)?;
        }
        fs::create_dir(&own)?;
        Ok(Self { dir: MachineDir(own), _lock: lock })
    }
}

/// The directories of processes that are gone: nobody holds their lock.
fn left(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let dirs = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    Ok(dirs.filter(|path| lock::is_left(&path.with_extension(LOCK)).unwrap_or(true)).collect())
}

/// Removes what processes that are gone left behind, but for the disks of `wanted`.
fn sweep(dir: &Path, wanted: &HashSet<String>) -> io::Result<()> {
    for path in left(dir)? {
        let machines = fs::read_dir(&path)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let machines: Vec<String> = machines.collect();
        if machines.iter().any(|machine| wanted.contains(machine)) {
            continue;
        }
        debug!(dir = %path.display(), "Removing the machines of a process that is gone.");
        let _ = fs::remove_file(path.with_extension(LOCK));
        for machine in &machines {
            ControlGroup::remove(machine);
        }
        drop(MachineDir(path));
    }
    Ok(())
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
        self.runtimes.get_or_try_init(|| self.find_runtimes()).await.cloned()
    }

    async fn room(&self) -> Option<Room> {
        let dir = self.dir.clone();
        tokio::task::spawn_blocking(move || disk::room(&dir)).await.ok()?
    }

    async fn clear(&self, wanted: &HashSet<String>) {
        let (dir, wanted) = (self.dir.clone(), wanted.clone());
        let _ = tokio::task::spawn_blocking(move || if dir.exists() { sweep(&dir, &wanted) } else { Ok(()) }).await;
    }

    async fn adopt(&self, id: &str) -> Option<Arc<dyn Machine>> {
        let (dir, own) = (self.dir.clone(), self.home().await.ok()?.join(id));
        let id = id.to_owned();
        let adopting = tokio::task::spawn_blocking(move || {
            // Whoever moves it first has it.
            let is_ours = |of: PathBuf| fs::rename(of.join(&id), &own).is_ok();
            left(&dir).ok()?.into_iter().any(is_ours).then(|| {
                ControlGroup::remove(&id);
                LeftMachine(MachineDir(own))
            })
        });
        Some(Arc::new(adopting.await.ok()??))
    }

    async fn create(&self, spec: MachineSpec, disk: Disk) -> Result<Arc<dyn Machine>, SandboxError> {
        let available = self.runtimes().await?;
        if !available.contains(&spec.runtime) {
            return Err(SandboxError::NoRuntime { runtime: spec.runtime, available });
        }
        Ok(machine::create(self, spec, disk).await?)
    }
}
