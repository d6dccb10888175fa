use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use tracing::info;

use crate::backend::{Disk, Isolation, Machine, MachineSpec, Room, SandboxBackend, SandboxError};

/// The first of several backends that makes machines here. Another than the first is only made do with as long as those
/// before it fail.
pub struct FirstAvailable {
    backends: Vec<Arc<dyn SandboxBackend>>,
    found: Mutex<Option<Arc<dyn SandboxBackend>>>,
}

impl FirstAvailable {
    /// In the order in which they are tried.
    pub fn new(backends: Vec<Arc<dyn SandboxBackend>>) -> Self {
        Self { backends, found: Mutex::default() }
    }

    fn found(&self) -> Option<Arc<dyn SandboxBackend>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It, and the runtimes that it has.
    async fn find(&self) -> Result<(Arc<dyn SandboxBackend>, Vec<String>), SandboxError> {
        let mut reasons = Vec::new();
        for backend in &self.backends {
            match backend.runtimes().await {
                Ok(runtimes) => {
                    let former = self.found.lock().unwrap_or_else(PoisonError::into_inner).replace(Arc::clone(backend));
                    if former.is_none_or(|former| former.name() != backend.name()) {
                        info!(backend = backend.name(), "Sandboxes are made on this host.");
                    }
                    return Ok((Arc::clone(backend), runtimes));
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(SandboxError::Unavailable(reasons.join(" ")))
    }
}

#[async_trait]
impl SandboxBackend for FirstAvailable {
    fn name(&self) -> &'static str {
        self.found().map_or("auto", |backend| backend.name())
    }

    fn isolation(&self) -> Isolation {
        self.found().map_or(Isolation::None, |backend| backend.isolation())
    }

    async fn runtimes(&self) -> Result<Vec<String>, SandboxError> {
        Ok(self.find().await?.1)
    }

    async fn room(&self) -> Option<Room> {
        self.found()?.room().await
    }

    async fn clear(&self, wanted: &HashSet<String>) {
        for backend in &self.backends {
            backend.clear(wanted).await;
        }
    }

    async fn adopt(&self, id: &str) -> Option<Arc<dyn Machine>> {
        for backend in &self.backends {
            if let Some(machine) = backend.adopt(id).await {
                return Some(machine);
            }
        }
        None
    }

    async fn create(&self, spec: MachineSpec, disk: Disk) -> Result<Arc<dyn Machine>, SandboxError> {
        let backend = match self.found() {
            Some(backend) => backend,
            None => self.find().await?.0,
        };
        backend.create(spec, disk).await
    }
}
