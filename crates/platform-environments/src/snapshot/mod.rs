//! What is kept of machines.

mod archive;
mod repository;
mod service;

pub(crate) use repository::{current, currents, fail_forgotten, fail_of, is_saving, set_source};
pub(crate) use service::NewSnapshot;
pub use service::{Snapshot, SnapshotService, SnapshotStarted};
