use std::sync::Arc;

use platform_access::Referrers;
use platform_core::{Clock, FairMemory};
use platform_db::Db;
use platform_events::Audience;
use platform_realtime::Realtime;
use platform_runtime::{Budget, Catalog, ChildPool, Memory, Recall, Toolbox};

use crate::{dictation::Dictations, environments::Environments};

/// What every turn works with.
#[derive(Clone)]
pub struct Ports {
    /// Where messages are kept.
    pub db: Db,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What models there are.
    pub catalog: Arc<dyn Catalog>,
    /// Who refers to what is deleted.
    pub referrers: Referrers,
    /// Who lets them be asked.
    pub budget: Arc<dyn Budget>,
    /// What is known of what is attached.
    pub recall: Arc<dyn Recall>,
    /// What assistants remember of those they talk to.
    pub memory: Arc<dyn Memory>,
    /// What was dictated.
    pub dictations: Arc<dyn Dictations>,
    /// What those who are connected to an environment have of it.
    pub environments: Arc<dyn Environments>,
    /// What may be called.
    pub toolbox: Arc<Toolbox>,
    /// Who reads what clients wrote.
    pub children: Arc<ChildPool>,
    /// Memory of the files that models are shown.
    pub attached: FairMemory,
    /// Where growth is shown.
    pub realtime: Arc<Realtime>,
    /// Who listens to what happens.
    pub audience: Arc<dyn Audience>,
}
