//! Machines on which agents run commands (contract 13 §5): a machine has a disk, users, and a network of its own.
//!
//! **Owns** no table and no endpoint; directories under the one it is given. **Needs** `platform-egress`, through which
//! alone a machine reaches anything, and a program whose arguments make it call [`serve_machine`]: the platform's own
//! binary.
//!
//! [`SandboxBackend`] makes machines and restores them; [`Machine`] runs commands on one; files are read and written
//! by commands, so that a path means what it means on the machine. [`ProcessBackend`] makes machines of namespaces on
//! this host, [`ContainerBackend`] has a container engine make them, [`FirstAvailable`] takes what there is. Another kind
//! of machine (a service of micro-VMs) is one file with another implementation of both traits.
//!
//! **Invariants**: a machine sees nothing of the host but its programs, read-only; what it started is dead when
//! [`Machine::end`] returns, and two seconds after the process that made it is; it dials nobody: connections are made
//! for it by its gate, to addresses that were judged; variables reach a command through memory alone.
//!
//! ```no_run
//! # use platform_sandbox::*;
//! # async fn example(backend: &dyn SandboxBackend, spec: MachineSpec) -> Result<(), SandboxError> {
//! let machine = backend.create(spec, Disk::Empty).await?;
//! let argv = ["bash", "-c", "uname -a"].map(str::to_owned).to_vec();
//! let running = machine.start(Command { argv, ..Command::default() }).await?;
//! machine.end().await;
//! machine.save(Box::new(std::io::sink())).await?;
//! # Ok(()) }
//! ```

mod backend;
#[cfg(target_os = "linux")]
mod container;
pub mod files;
mod first_available;
mod gate;
#[cfg(target_os = "linux")]
mod lock;
#[cfg(target_os = "linux")]
mod process;

pub use backend::{
    Cli, Command, Disk, Isolation, Machine, MachineSpec, Network, NoBackend, Room, Running, SandboxBackend,
    SandboxError,
};
#[cfg(target_os = "linux")]
pub use container::ContainerBackend;
pub use first_available::FirstAvailable;
#[cfg(target_os = "linux")]
pub use process::{ProcessBackend, serve_machine};
