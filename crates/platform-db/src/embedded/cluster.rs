//! The data of a server, and the server that runs on it.

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

use platform_core::sha256_hex;

use super::{
    EmbeddedError, Result,
    installation::{self, Installation},
};

const START_TIMEOUT: Duration = Duration::from_mins(1);
/// What a server says when another one has the data.
const HELD: [&str; 2] = ["lock file", "pre-existing shared memory block"];
/// How long that one is waited for before it is tried again.
const WAIT_FOR_OTHER: Duration = Duration::from_millis(100);
/// A Unix socket path must fit into `sockaddr_un`.
const MAX_SOCKET_DIR: usize = 80;
/// Where a cluster goes when its user cannot reach the data directory.
const SYSTEM_DIR: &str = "/var/lib/platform";

/// Durable, and sized for one process on one machine.
const DEFAULTS: [&str; 6] =
    ["max_connections=200", "shared_buffers=128MB", "max_wal_size=2GB", "jit=off", "wal_compression=on", "port=5432"];

pub(super) struct Cluster {
    data: PathBuf,
    socket_dir: PathBuf,
    server: Installation,
    user: Option<User>,
}

/// The unprivileged user the server runs as when we are root, since PostgreSQL refuses root.
#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl Cluster {
    /// Finds where the data lies, and a server that fits it.
    pub fn find(data_dir: &Path) -> Result<Self> {
        let user = unprivileged_user(data_dir)?;
        let home = home(data_dir, user)?;
        let data = home.join("postgres");
        let server = installation::find(&data, &home)?;
        let socket_dir = socket_dir(&home)?;
        own(&socket_dir, user)?;
        Ok(Self { data, socket_dir, server, user })
    }

    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// Makes the data of an empty server where there is none.
    pub fn init(&self) -> Result<()> {
        if self.data.join("PG_VERSION").exists() {
            return Ok(());
        }
        tracing::info!(cluster = %self.data.display(), version = self.server.major, "Making a new PostgreSQL cluster.");
        let unfinished = self.data.with_extension("new");
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
        fs::rename(&unfinished, &self.data)
            .map_err(|e| EmbeddedError::io("The cluster cannot be put in place,", &self.data, &e))
    }

    /// Starts the server and waits until it answers; `None` when one that is no child of ours is up already.
    pub fn run(&self, settings: &[&str]) -> Result<Option<Child>> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if self.answers() {
                tracing::info!("PostgreSQL of an earlier run is still up; going on with it.");
                return Ok(None);
            }
            let mut server = self.spawn(settings)?;
            while Instant::now() < deadline && matches!(server.try_wait(), Ok(None)) {
                if self.answers() {
                    return Ok(Some(server));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let (log, last) = (self.log(), self.last_words());
            // It knows itself whether another one holds the data; that one ends, or answers in the end.
            if Instant::now() > deadline || !HELD.iter().any(|words| last.contains(words)) {
                let message = format!("PostgreSQL did not start; its log ({}) ends with:\n{last}", log.display());
                return Err(EmbeddedError::new(message));
            }
            std::thread::sleep(WAIT_FOR_OTHER);
        }
    }

    fn spawn(&self, settings: &[&str]) -> Result<Child> {
        let path = self.log();
        let unusable = |error| EmbeddedError::io("The log of PostgreSQL,", &path, &error);
        let log = File::options().create(true).append(true).open(&path).map_err(unusable)?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.socket_dir).args(["-c", "listen_addresses="]);
        for setting in DEFAULTS.iter().chain(settings) {
            command.args(["-c", setting]);
        }
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(unusable)?)
            .stderr(log)
            .process_group(0) // Ctrl-C is for us: the server goes after the last write
            .spawn()
            .map_err(|e| EmbeddedError::io("PostgreSQL cannot start,", &self.server.bin, &e))
    }

    fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// Whether a server is there, even one that takes no more sessions.
    pub fn is_up(&self) -> bool {
        self.connect().is_ok()
    }

    fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.socket_dir.join(".s.PGSQL.5432"))
    }

    /// Whether the server accepts sessions: a start-up packet is answered by an authentication request.
    fn answers(&self) -> bool {
        use io::{Read, Write};
        let Ok(mut socket) = self.connect() else { return false };
        let _ = socket.set_read_timeout(Some(Duration::from_secs(2)));
        let parameters = b"\0\x03\0\0user\0platform\0database\0postgres\0\0";
        let length = u32::try_from(parameters.len() + 4).unwrap_or(u32::MAX);
        let mut first = [0_u8];
        socket.write_all(&[&length.to_be_bytes()[..], parameters].concat()).is_ok()
            && socket.read_exact(&mut first).is_ok()
            && first == *b"R"
    }

    /// Ends all connections and the server; whether it has ended.
    pub fn stop(&self) -> bool {
        let stopped = self.command("pg_ctl").arg("-D").arg(&self.data).args(["stop", "-m", "fast", "-s"]).status();
        stopped.is_ok_and(|status| status.success())
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
    let home = Path::new(SYSTEM_DIR).join(short_name(data_dir));
    fs::create_dir_all(&home).map_err(|e| EmbeddedError::io("The cluster's directory,", &home, &e))?;
    tracing::info!(
        cluster = %home.display(),
        "PostgreSQL runs as another user that cannot reach {}; its cluster is elsewhere.",
        data_dir.display()
    );
    Ok(home)
}

/// A name for what belongs to a directory.
fn short_name(of: &Path) -> String {
    sha256_hex(of.as_os_str().as_encoded_bytes())[..12].to_owned()
}

fn socket_dir(home: &Path) -> Result<PathBuf> {
    let near = home.join("socket");
    let dir = if near.as_os_str().len() <= MAX_SOCKET_DIR {
        near
    } else {
        std::env::temp_dir().join(format!("platform-{}", short_name(home)))
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
