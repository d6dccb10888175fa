//! The platform under measurement, as a process of its own.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

pub const KEY: &str = "ak-0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
/// What `/proc/<pid>/stat` counts in, on every Linux there is.
const TICKS_PER_SECOND: f64 = 100.0;

pub struct Platform {
    child: Child,
    /// Whether processes that it begins count as it.
    is_group: bool,
    pub address: String,
    /// From the start of the process to its first line.
    pub start_up: Duration,
}

impl Platform {
    /// Starts the release binary that lies beside this one.
    pub fn start(database: &str, providers: &Path, settings: &[(&str, &str)]) -> Self {
        let log = fs::File::create(PathBuf::from("target/bench-gateway.log")).expect("a log");
        let own = std::env::current_exe().expect("a program");
        let program = own.with_file_name("platform-gateway");
        assert!(program.exists(), "build it first: cargo build --release");
        let mut command = Command::new(program);
        command
            .env("DATABASE_URL", database)
            .env("PLATFORM_SECRET_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
            .env("PLATFORM_BOOTSTRAP_KEY", KEY)
            .env("PLATFORM_ADDR", "127.0.0.1:0")
            .env("PLATFORM_PROVIDERS_FILE", providers)
            .env("PLATFORM_MODEL_CONCURRENCY", "0")
            .env("PLATFORM_EGRESS_CONCURRENCY", "0")
            .env("PLATFORM_EGRESS_PER_ACCOUNT", "0")
            .env("PLATFORM_RATE_FULL", "0")
            .env("PLATFORM_STREAMS_PER_KEY", "0")
            .env("PLATFORM_CONNECTIONS_PER_ADDRESS", "0")
            .env("PLATFORM_BODIES_PER_ADDRESS", "0")
            .env("PLATFORM_WORKER_CONCURRENCY", "20000")
            .envs(settings.iter().copied())
            .stderr(log);
        Self::run(&mut command)
    }

    /// Starts the least that serves a durable turn.
    pub fn probe(database: &str, model: &str) -> Self {
        Self::run(Command::new(std::env::current_exe().expect("a program")).args(["probe", database, model]))
    }

    fn run(command: &mut Command) -> Self {
        let began = Instant::now();
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next().expect("a line").expect("text");
        let start_up = began.elapsed();
        std::thread::spawn(move || lines.for_each(drop));
        let url = line.split_whitespace().find(|word| word.starts_with("http")).expect("an address");
        Self { child, is_group: false, address: url.trim_start_matches("http://").to_owned(), start_up }
    }

    /// Starts another system, with all processes that it begins.
    pub fn other(command: &mut Command, address: &str) -> std::io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        Ok(Self { child, is_group: true, address: address.to_owned(), start_up: Duration::ZERO })
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// CPU time so far, user and system, in milliseconds.
    pub fn cpu_ms(&self) -> f64 {
        let ticks = |pid: &u32| {
            let fields = stat(*pid).unwrap_or_default();
            fields.iter().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>()
        };
        self.processes().iter().map(ticks).sum::<f64>() / TICKS_PER_SECOND * 1000.0
    }

    /// Resident memory in KiB.
    pub fn memory_kib(&self) -> u64 {
        let resident = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        self.processes().iter().filter_map(resident).sum()
    }

    fn processes(&self) -> Vec<u32> {
        let own = self.child.id();
        if !self.is_group {
            return vec![own];
        }
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| stat(*pid).is_some_and(|fields| fields[2] == own.to_string())).collect()
    }
}

/// What stands in `/proc/<pid>/stat` behind the name.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

impl Drop for Platform {
    fn drop(&mut self) {
        if self.is_group {
            let _ = Command::new("kill").args(["-9", "--", &format!("-{}", self.child.id())]).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
