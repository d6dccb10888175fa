//! Environments: the machine that agents and assistants work on, and what it may reach (contract 13).
//!
//! **Owns** the tables `environments`, `environment_variables`, `sandbox_sessions`, `sandbox_commands`,
//! `sandbox_snapshots` and `sandbox_calls`, and the objects under `snapshots/`; the endpoints `/v1/environments`; the
//! tools of `builtin-sandbox`. **Needs** a [`SandboxBackend`](platform_sandbox::SandboxBackend) that makes machines, an
//! object store for what is kept of them, and a vault for variables. It answers the port
//! [`Environments`](platform_conversation::Environments).
//!
//! **Invariants**: one machine at a time for an environment, or for each of its tenants, over all processes; the
//! process that has it says so every few seconds, and a machine whose process is silent has failed; a snapshot becomes
//! the current one in the transaction that makes it ready, and a save that fails changes nothing; values of variables
//! leave a machine masked, whoever asks, unless a full key asks for what it wrote as it is.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_core::{Caller, Id, Result};
//! # use platform_environments::*;
//! # async fn example(needs: EnvironmentNeeds, caller: Caller, id: Id<Environment>) -> Result<()> {
//! let environments: Arc<dyn SandboxService> = PgEnvironments::new(needs);
//! let started = Arc::clone(&environments).start(&caller, &id, StartSandbox::default()).await?;
//! let (sandbox_id, command) = (started.sandbox_id.into(), "uname -a".to_owned());
//! let command = NewCommand { sandbox_id, command, ..NewCommand::default() };
//! let output = whole(environments.exec(&caller, &id, command, OutputMode::default()).await?).await?;
//! # Ok(()) }
//! ```

pub mod code;
mod environment;
mod redact;
mod schema;
mod session;
mod snapshot;
mod tools;

pub use environment::{
    Connection, ConnectionVariables, Connections, EntityKind, Environment, EnvironmentFilter, EnvironmentList,
    EnvironmentNeeds, EnvironmentReferrer, EnvironmentService, EnvironmentSettings, PgEnvironments, PublicDomain,
    SandboxConfig, SandboxSettings,
};
pub use session::{
    CommandOutput, FileContent, FileListing, ListFiles, NewCommand, OutputMode, OutputPiece, ProxiedAnswer, ReadFile,
    SandboxService, SandboxSession, SandboxStatus, SessionFilter, SessionPage, StartSandbox, StartedSandbox,
    StopSandbox, StoppedSandbox, WhoseSandbox, Worker, WriteFile, WrittenFile, whole,
};
pub use snapshot::{Snapshot, SnapshotService, SnapshotStarted};
pub use tools::sandbox_tools;
