use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use tracing::info;

use crate::backend::{Disk, Isolation, Machine, MachineSpec, SandboxBackend, SandboxError};

/// The first of several backends that makes machines here. It is sought when it is first needed, and stays.
pub struct FirstAvailable {
    backends: Vec<Arc<dyn SandboxBackend>>,
    found: OnceCell<Arc<dyn SandboxBackend>>,
}

impl FirstAvailable {
    /// In the order in which they are tried.
    pub fn new(backends: Vec<Arc<dyn SandboxBackend>>) -> Self {
        Self { backends, found: OnceCell::new() }
    }

    async fn find(&self) -> Result<&Arc<dyn SandboxBackend>, SandboxError> {
        let search = async || {
            let mut reasons = Vec::new();
            for backend in &self.backends {
                match backend.runtimes().await {
                    Ok(_) => {
                        info!(backend = backend.name(), "Sandboxes are made on this host.");
                        return Ok(Arc::clone(backend));
                    }
                    Err(error) => reasons.push(error.to_string()),
                }
            }
            Err(SandboxError::Unavailable(reasons.join(" ")))
        };
        self.found.get_or_try_init(search).await
    }
}

#[async_trait]
impl SandboxBackend for FirstAvailable {
    fn name(&self) -> &'static str {
        self.found.get().map_or("auto", |backend| backend.name())
    }

    fn isolation(&self) -> Isolation {
        self.found.get().map_or(Isolation::None, |backend| backend.isolation())
    }

    async fn runtimes(&self) -> Result<Vec<String>, SandboxError> {
        self.find().await?.runtimes().await
    }

    async fn clear(&self) {
        for backend in &self.backends {
            backend.clear().await;
        }
    }

    async fn create(&self, spec: MachineSpec, disk: Disk) -> Result<Arc<dyn Machine>, SandboxError> {
        self.find().await?.create(spec, disk).await
    }
}
