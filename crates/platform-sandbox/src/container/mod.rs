//! Machines that a container engine makes (Docker, Podman), asked over its socket.

mod doors;
mod machine;

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use bollard::{
    API_DEFAULT_VERSION, Docker,
    errors::Error,
    query_parameters::{
        CreateImageOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptions, RemoveContainerOptionsBuilder,
    },
};
use futures_util::TryStreamExt;
use platform_core::{Clock, SystemClock, spawn};
use platform_egress::Egress;
use tokio::sync::OnceCell;
use tracing::{debug, info, warn};

use crate::backend::{Disk, Isolation, Machine, MachineSpec, SandboxBackend, SandboxError};

/// The engine answers within this, in seconds; what it streams may take longer.
const ANSWERS: u64 = 120;
/// What tells our containers from others.
const LABEL: &str = "platform.sandbox";
/// No machine is as old as this, in seconds, not even one that is being saved.
const OLDEST: i64 = 3 * 3600;
/// An engine that does not know something.
const UNKNOWN: u16 = 404;

/// Makes machines of containers.
pub struct ContainerBackend {
    socket: String,
    /// Name of a runtime, and its image.
    images: Vec<(String, String)>,
    /// Becomes whoever listens in the network of a container.
    argument: String,
    egress: Egress,
    engine: OnceCell<Docker>,
}

impl ContainerBackend {
    /// `argument` makes this program call [`crate::serve_machine`]; `socket`: where the engine listens; `images`: the
    /// image of each runtime, `default` among them.
    pub fn new(argument: &str, socket: &Path, images: Vec<(String, String)>, egress: Egress) -> Self {
        let (argument, socket) = (argument.to_owned(), socket.display().to_string());
        Self { socket, images, argument, egress, engine: OnceCell::new() }
    }

    async fn engine(&self) -> Result<&Docker, SandboxError> {
        let connect =
            async || Docker::connect_with_socket(&self.socket, ANSWERS, API_DEFAULT_VERSION)?.negotiate_version().await;
        self.engine.get_or_try_init(connect).await.map_err(|error| self.unavailable(&error))
    }

    fn unavailable(&self, error: &Error) -> SandboxError {
        let socket = &self.socket;
        SandboxError::Unavailable(format!(
            "No container engine answers at {socket} ({error}). Start one, or say with PLATFORM_SANDBOX_SOCKET where it is."
        ))
    }

    /// Fetches an image that is not there yet.
    async fn fetch(&self, engine: &Docker, image: &str) -> Result<(), SandboxError> {
        match engine.inspect_image(image).await {
            Ok(_) => return Ok(()),
            Err(Error::DockerResponseServerError { status_code: UNKNOWN, .. }) => {}
            Err(error) => return Err(failed(error)),
        }
        info!(image, "Fetching the image of a sandbox; the first one takes a while.");
        let (engine, image) = (engine.clone(), image.to_owned());
        // It comes to its end for whoever asks next, also when this one gives up.
        let fetching = spawn("fetch image", async move {
            let options = CreateImageOptionsBuilder::default().from_image(&image).build();
            let fetched = engine.create_image(Some(options), None, None).try_for_each(|_| async { Ok(()) }).await;
            fetched.map_err(|error| {
                SandboxError::Unavailable(format!(
                    "The image {image} cannot be fetched ({error}). Load it into the engine, or name another with \
                     PLATFORM_SANDBOX_IMAGES."
                ))
            })
        });
        fetching.await.map_err(|error| SandboxError::Failed(error.to_string()))?
    }
}

/// What the engine said, to whoever wanted something of it.
fn failed(error: Error) -> SandboxError {
    match error {
        Error::DockerResponseServerError { message, .. } => SandboxError::Failed(message),
        other => SandboxError::Failed(other.to_string()),
    }
}

/// How a container is removed: whatever it does, with all that is its own.
fn removal() -> RemoveContainerOptions {
    RemoveContainerOptionsBuilder::default().force(true).v(true).build()
}

#[async_trait]
impl SandboxBackend for ContainerBackend {
    fn name(&self) -> &'static str {
        "container"
    }

    fn isolation(&self) -> Isolation {
        Isolation::Container
    }

    async fn runtimes(&self) -> Result<Vec<String>, SandboxError> {
        self.engine().await?.ping().await.map_err(|error| self.unavailable(&error))?;
        Ok(self.images.iter().map(|(name, _)| name.clone()).collect())
    }

    async fn clear(&self) {
        let Ok(engine) = self.engine().await else { return };
        let ours = [("label".to_owned(), vec![LABEL.to_owned()])].into();
        let options = ListContainersOptionsBuilder::default().all(true).filters(&ours).build();
        let found = engine.list_containers(Some(options)).await.unwrap_or_else(|error| {
            warn!(%error, "Sandboxes that were left behind could not be looked for.");
            Vec::new()
        });
        let now = SystemClock.now().0 / 1000;
        for container in found.into_iter().filter(|of| of.created.is_some_and(|created| created + OLDEST < now)) {
            let id = container.id.unwrap_or_default();
            debug!(container = id, "Removing a sandbox whose process is gone.");
            let _ = engine.remove_container(&id, Some(removal())).await;
        }
    }

    async fn create(&self, spec: MachineSpec, disk: Disk) -> Result<Arc<dyn Machine>, SandboxError> {
        let Some((_, image)) = self.images.iter().find(|(name, _)| *name == spec.runtime) else {
            let available = self.images.iter().map(|(name, _)| name.clone()).collect();
            return Err(SandboxError::NoRuntime { runtime: spec.runtime, available });
        };
        let engine = self.engine().await?;
        self.fetch(engine, image).await?;
        Ok(machine::create(self, engine, image, spec, disk).await?)
    }
}
