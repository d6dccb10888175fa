mod cluster;
mod installation;

use std::{
    fs::{self, File},
    io,
    path::Path,
    process::Child,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::Duration,
};

use cluster::Cluster;

/// How often it is looked whether the server still runs.
const LOOK: Duration = Duration::from_secs(1);
/// A server that could not be started again is tried again after this.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// Why the embedded server could not start; each sentence says what to do.
#[derive(Debug)]
pub struct EmbeddedError(String);

impl std::fmt::Display for EmbeddedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EmbeddedError {}

impl EmbeddedError {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        Self(format!("{what} {}: {error}", path.display()))
    }
}

type Result<T> = std::result::Result<T, EmbeddedError>;

/// A PostgreSQL of our own under the data directory, reached over a Unix socket only.
///
/// One process owns it at a time, held by a file lock that dies with the process. A server that ends by
/// itself (killed, or out of disk) is started again. It stops when this is dropped; after a crash of ours it
/// lives on and is taken over.
pub struct Embedded {
    cluster: Arc<Cluster>,
    /// `None` when another process owns the server and we are its guest.
    guard: Option<ServerGuard>,
}

/// What an owner holds.
struct ServerGuard {
    _lock: File,
    /// Dropped to end the thread.
    _stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Embedded {
    /// Finds or fetches a server, makes the cluster on first use, starts it and waits until it answers.
    /// `settings` are extra `name=value` pairs. Blocks; call it from a blocking thread.
    pub fn start(data_dir: &Path, settings: &[&str]) -> Result<Self> {
        Self::open(data_dir, settings, false)
    }

    /// The same for a command beside a running server: goes to that server as a guest.
    pub fn join(data_dir: &Path, settings: &[&str]) -> Result<Self> {
        Self::open(data_dir, settings, true)
    }

    fn open(data_dir: &Path, settings: &[&str], as_guest: bool) -> Result<Self> {
        fs::create_dir_all(data_dir)
            .map_err(|e| EmbeddedError::io("PLATFORM_DATA_DIR: the data directory cannot be made,", data_dir, &e))?;
        let data_dir =
            fs::canonicalize(data_dir).map_err(|e| EmbeddedError::io("The data directory,", data_dir, &e))?;
        let lock = match lock(&data_dir) {
            Err(_) if as_guest => None,
            lock => Some(lock?),
        };
        let cluster = Arc::new(Cluster::find(&data_dir)?);
        let Some(lock) = lock else { return Ok(Self { cluster, guard: None }) };
        cluster.init()?;
        let server = cluster.run(settings)?;
        let (stop, stopped) = mpsc::channel();
        let (kept, settings) =
            (Arc::clone(&cluster), settings.iter().map(|&setting| setting.to_owned()).collect::<Vec<_>>());
        let thread = std::thread::spawn(move || keep(&kept, &settings, server, &stopped));
        Ok(Self { cluster, guard: Some(ServerGuard { _lock: lock, _stop: stop, thread }) })
    }

    /// Connection string for [`crate::DbConfig`].
    pub fn url(&self) -> String {
        format!("host={} user=platform dbname=postgres", self.cluster.socket_dir().display())
    }
}

/// Starts the server again whenever it has ended. `server`: its process, when it is a child of ours.
fn keep(cluster: &Cluster, settings: &[String], mut server: Option<Child>, stopped: &mpsc::Receiver<()>) {
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let mut pause = LOOK;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        pause = LOOK;
        let runs = match &mut server {
            Some(server) => matches!(server.try_wait(), Ok(None)),
            None => cluster.is_up(),
        };
        if runs {
            continue;
        }
        tracing::warn!("PostgreSQL has ended by itself; starting it again.");
        match cluster.run(&settings) {
            Ok(started) => {
                tracing::info!("PostgreSQL is up again.");
                server = started;
            }
            Err(error) => {
                tracing::error!(%error, "PostgreSQL does not start; trying again in {} seconds.", AFTER_FAILURE.as_secs());
                (server, pause) = (None, AFTER_FAILURE);
            }
        }
    }
}

/// Ends all connections and stops the server in good order.
impl Drop for Embedded {
    fn drop(&mut self) {
        let Some(ServerGuard { _lock, _stop: stop, thread }) = self.guard.take() else { return };
        drop(stop);
        let _ = thread.join();
        if !self.cluster.stop() {
            tracing::warn!("The embedded PostgreSQL did not stop; the next start takes it over.");
        }
    }
}

fn lock(data_dir: &Path) -> Result<File> {
    let path = data_dir.join("lock");
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
    let mut file = file.map_err(|e| EmbeddedError::io("The data directory cannot be written,", &path, &e))?;
    if file.try_lock().is_err() {
        let holder = fs::read_to_string(&path).unwrap_or_default();
        return Err(EmbeddedError::new(format!(
            "The data directory {} is in use by process {}; stop that one, or set PLATFORM_DATA_DIR to another directory.",
            data_dir.display(),
            holder.trim()
        )));
    }
    let _ = file.set_len(0);
    let _ = io::Write::write_all(&mut file, std::process::id().to_string().as_bytes());
    Ok(file)
}
