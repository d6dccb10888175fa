//! Machines that run, and what is done on them.

mod call;
mod exec;
mod keep;
mod left;
mod live;
mod model;
mod proxy;
pub(crate) mod repository;
mod service;
mod start;

pub(crate) use call::Call;
pub use exec::whole;
pub(crate) use keep::patiently;
pub(crate) use live::{Live, Machines};
pub use model::{
    CommandOutput, FileContent, FileListing, ListFiles, NewCommand, OutputMode, OutputPiece, ReadFile, SandboxSession,
    SandboxStatus, SessionFilter, SessionPage, StartSandbox, StartedSandbox, StopSandbox, StoppedSandbox, WhoseSandbox,
    WriteFile, WrittenFile,
};
pub use proxy::ProxiedAnswer;
pub(crate) use proxy::ProxyPlaces;
pub(crate) use service::encode;
pub use service::{SandboxService, Worker};
pub(crate) use start::{Starter, probe, random_id};
