//! What is kept of machines.

mod archive;
mod repository;
mod service;

pub(crate) use repository::{
    current, currents, fail_forgotten, fail_of, forget_tenant, is_saving, leave_unmade, lock_pieces, of_sandbox,
    set_source, take_unmade,
};
pub(crate) use service::NewSnapshot;
pub use service::{Snapshot, SnapshotService, SnapshotStarted};
