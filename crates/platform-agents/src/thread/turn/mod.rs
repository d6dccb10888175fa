//! The turns of a thread: what a worker does while it holds one.

pub(crate) mod awaited;
pub(crate) mod end;
pub(crate) mod files;
pub(crate) mod hand_off;
pub(crate) mod runner;
pub(crate) mod steps;
pub(crate) mod tasks;
pub(crate) mod turn_store;
