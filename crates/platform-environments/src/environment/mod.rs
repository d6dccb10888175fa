//! Environments, and who is connected to them.

mod model;
mod references;
pub(crate) mod repository;
mod service;

pub use model::{
    Connection, ConnectionVariables, Connections, EntityKind, Environment, EnvironmentFilter, EnvironmentList,
    EnvironmentSettings, PublicDomain, SandboxConfig, SandboxSettings,
};
pub(crate) use model::{NetworkPolicy, Variables};
pub use references::EnvironmentReferrer;
pub use service::{EnvironmentNeeds, EnvironmentService, PgEnvironments};
