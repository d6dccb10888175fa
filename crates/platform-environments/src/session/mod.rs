//! Machines that run, and what is done on them.

mod call;
mod exec;
mod keep;
mod live;
mod model;
pub(crate) mod repository;
mod service;
mod start;

pub(crate) use call::{Call, of_remote::listing as listing_of_remote};
pub(crate) use live::{Live, Machines};
pub use model::{
    CommandOutput, FileContent, FileListing, ListFiles, NewCommand, OutputPiece, ReadFile, SandboxSession,
    SandboxStatus, SessionFilter, SessionPage, StartSandbox, StartedSandbox, StopSandbox, StoppedSandbox, WhoseSandbox,
    WriteFile, WrittenFile,
};
pub use service::{SandboxService, Worker};
pub(crate) use service::{encode, whole};
pub(crate) use start::{Starter, probe, random_id};
