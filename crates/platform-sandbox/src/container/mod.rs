//! Machines that a container engine makes (Docker, Podman), asked over its socket.

mod doors;
mod machine;

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use async_trait::async_trait;
use bollard::{
    API_DEFAULT_VERSION, Docker,
    errors::Error,
    models::{ContainerSummary, ImageInspect},
    query_parameters::{
        CreateImageOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptions, RemoveContainerOptionsBuilder,
    },
};
use futures_util::TryStreamExt;
use platform_core::{Clock, Id, SystemClock, spawn};
use platform_egress::Egress;
use tokio::sync::OnceCell;
use tracing::{debug, info, warn};

use crate::{
    backend::{Disk, Isolation, Machine, MachineSpec, SandboxBackend, SandboxError},
    lock,
};

/// The engine answers within this, in seconds; what it streams may take longer.
const ANSWERS: u64 = 120;
/// What tells our containers from others; it says whose they are.
const LABEL: &str = "platform.sandbox";
/// Ending of the files by which processes that have containers say that they live.
const OWNER: &str = "containers";
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
    /// Where each process says that it lives.
    dir: PathBuf,
    egress: Egress,
    engine: OnceCell<Docker>,
    owner: OnceLock<Owner>,
    /// The files of processes that are gone, whose machines this one saves.
    adopted: Mutex<HashMap<String, File>>,
}

/// A process that has containers. Its file is locked as long as it lives: others remove what it leaves behind.
struct Owner {
    name: String,
    _lock: File,
}

impl Owner {
    fn make(dir: &Path) -> io::Result<Self> {
        let name = String::from(Id::<Self>::generate());
        fs::create_dir_all(dir)?;
        let lock = lock::take(&Self::file(dir, &name))?;
        Ok(Self { name, _lock: lock })
    }

    fn file(dir: &Path, name: &str) -> PathBuf {
        dir.join(name).with_extension(OWNER)
    }

    /// Of one on another host nothing is known.
    fn is_gone(dir: &Path, name: &str) -> bool {
        lock::is_left(&Self::file(dir, name)).unwrap_or(false)
    }

    /// Removes the files of those that are gone, but for those `with` containers.
    fn sweep(dir: &Path, with: &HashSet<String>) {
        for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let is_owner = path.extension().is_some_and(|extension| extension == OWNER);
            if is_owner && !with.contains(&*name) && Self::is_gone(dir, &name) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

impl ContainerBackend {
    /// `argument` makes this program call [`crate::serve_machine`]; `dir`: where processes say that they live;
    /// `socket`: where the engine listens; `images`: the image of each runtime, `default` among them.
    pub fn new(argument: &str, dir: &Path, socket: &Path, images: Vec<(String, String)>, egress: Egress) -> Self {
        let (argument, dir, socket) = (argument.to_owned(), dir.to_owned(), socket.display().to_string());
        let images = images.into_iter().map(|(name, image)| (name, tagged(image))).collect();
        Self {
            socket,
            images,
            argument,
            dir,
            egress,
            engine: OnceCell::new(),
            owner: OnceLock::new(),
            adopted: Mutex::default(),
        }
    }

    /// The name of this process.
    fn owner(&self) -> Result<String, SandboxError> {
        if self.owner.get().is_none() {
            // Of two at the same moment one is not used.
            let _ = self.owner.set(Owner::make(&self.dir)?);
        }
        self.owner.get().map(|owner| owner.name.clone()).ok_or(SandboxError::Ended)
    }

    async fn engine(&self) -> Result<&Docker, SandboxError> {
        let connect =
            async || Docker::connect_with_socket(&self.socket, ANSWERS, API_DEFAULT_VERSION)?.negotiate_version().await;
        self.engine.get_or_try_init(connect).await.map_err(|error| self.unavailable(&error))
    }

    fn unavailable(&self, error: &Error) -> SandboxError {
        debug!(socket = self.socket, %error, "No container engine answers.");
        let reason = "No container engine answers. Start one, or say with PLATFORM_SANDBOX_SOCKET where it is.";
        SandboxError::Unavailable(reason.to_owned())
    }

    /// All containers that are ours, of whichever process.
    async fn list(&self) -> Result<Vec<ContainerSummary>, SandboxError> {
        let ours = [("label".to_owned(), vec![LABEL.to_owned()])].into();
        let options = ListContainersOptionsBuilder::default().all(true).filters(&ours).build();
        self.engine().await?.list_containers(Some(options)).await.map_err(|error| failed(&error))
    }

    /// Whether this process may do as it likes with what another one had, which is gone.
    fn takes_over(&self, owner: &str) -> bool {
        let mut adopted = self.adopted.lock().unwrap_or_else(PoisonError::into_inner);
        adopted.contains_key(owner)
            || lock::take_over(&Owner::file(&self.dir, owner)).is_ok_and(|file| {
                adopted.insert(owner.to_owned(), file);
                true
            })
    }

    /// Fetches an image that is not there yet.
    async fn fetch(&self, engine: &Docker, image: &str) -> Result<(), SandboxError> {
        match engine.inspect_image(image).await {
            Ok(found) => return check(image, &found),
            Err(error) if is_unknown(&error) => {}
            Err(error) => return Err(failed(&error)),
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
            })?;
            check(&image, &engine.inspect_image(&image).await.map_err(|error| failed(&error))?)
        });
        fetching.await.map_err(|error| SandboxError::Failed(error.to_string()))?
    }
}

/// What the engine says may name files of its host: it is for whoever runs the platform.
fn failed(error: &Error) -> SandboxError {
    warn!(%error, "A container engine does not do what a sandbox needs.");
    SandboxError::Failed("the container engine refuses; the log of the platform says why".to_owned())
}

fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: UNKNOWN, .. })
}

/// An image as all engines understand it: without a tag some fetch every one of them.
fn tagged(image: String) -> String {
    let last = image.rsplit('/').next().unwrap_or_default();
    if last.contains(':') || image.contains('@') { image } else { image + ":latest" }
}

/// What is in a volume is on no disk that is counted.
fn check(image: &str, found: &ImageInspect) -> Result<(), SandboxError> {
    let volumes = found.config.as_ref().and_then(|config| config.volumes.as_ref());
    if volumes.is_some_and(|volumes| !volumes.is_empty()) {
        let reason = format!("The image {image} has volumes; name one without with PLATFORM_SANDBOX_IMAGES.");
        return Err(SandboxError::Unavailable(reason));
    }
    Ok(())
}

/// How the container of a machine is called.
fn name(id: &str) -> String {
    format!("platform-{id}")
}

fn is_of(container: &ContainerSummary, id: &str) -> bool {
    let name = name(id);
    container.names.iter().flatten().any(|of| of.strip_prefix('/').unwrap_or(of) == name)
}

/// Whose a container is.
fn owner_of(container: &ContainerSummary) -> String {
    container.labels.as_ref().and_then(|labels| labels.get(LABEL)).cloned().unwrap_or_default()
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

    async fn clear(&self, wanted: &HashSet<String>) {
        let (Ok(engine), Ok(found)) = (self.engine().await, self.list().await) else { return };
        let now = SystemClock.now().0 / 1000;
        let mut with = HashSet::new();
        for container in found {
            let is_wanted = wanted.iter().any(|id| is_of(&container, id));
            let is_old = container.created.is_some_and(|at| at + OLDEST < now);
            let owner = owner_of(&container);
            if !is_old && (is_wanted || !self.takes_over(&owner)) {
                with.insert(owner);
                continue;
            }
            let id = container.id.unwrap_or_default();
            debug!(container = id, "Removing a sandbox whose process is gone.");
            if engine.remove_container(&id, Some(removal())).await.is_err() {
                with.insert(owner);
            }
        }
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner).retain(|owner, _| with.contains(owner));
        Owner::sweep(&self.dir, &with);
    }

    async fn adopt(&self, id: &str) -> Option<Arc<dyn Machine>> {
        let found = self.list().await.ok()?.into_iter().find(|container| is_of(container, id))?;
        if !self.takes_over(&owner_of(&found)) {
            return None;
        }
        Some(Arc::new(machine::left(&self.argument, self.engine().await.ok()?, found.id?)))
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
