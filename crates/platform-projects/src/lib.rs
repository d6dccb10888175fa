//! Projects: which agents, assistants and tool servers belong together, and who reaches them (contract 05).
//!
//! **Owns** the tables `projects` and `project_members`; the endpoints `/v1/projects`. **Needs** `platform-db`, and
//! the users of `platform-auth`, who are its members. It answers the port [`Projects`](platform_access::Projects).
//!
//! What belongs to a project says so itself, by its `projectId`; this crate knows nothing of it. Whoever lets a
//! request in asks [`Reach`](platform_access::Reach): may this caller put something into that project, may it see or
//! change what is there.
//!
//! **Invariants**: an identifier never changes; a project that has an owner keeps one, unless that user is deleted; what a caller reaches is
//! answered from memory, which every process empties at once when a project or its members change.
//!
//! ```no_run
//! # use platform_core::{Caller, Page, Result};
//! # use platform_projects::*;
//! # async fn example(projects: &dyn ProjectService, caller: Caller, new: NewProject) -> Result<()> {
//! let project = projects.create(&caller, new, None).await?;
//! let all = projects.list(&caller, &ProjectFilter::default(), Page { limit: 10, offset: 0 }).await?;
//! # Ok(()) }
//! ```

mod model;
mod repository;
mod schema;
mod service;

pub use model::{Member, NewMember, NewProject, Project, ProjectFilter, ProjectPage, ProjectPatch};
pub use service::{PgProjectService, ProjectService};
