//! Other systems at such work, with the same model server and load: `just bench peers`.
//!
//! Each is installed from its registry into a folder under `target/`, and starts with the settings that it comes with.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use crate::{
    http::{Connection, request},
    platform::{KEY, Platform},
    rows::{Bench, MESSAGES, count, message, percentile},
};

/// A reply of 64 tokens, which the model streams.
const MODEL: &str = "t64-d0";
const CLIENTS: [usize; 3] = [1, 16, 64];
pub const FOLDER: &str = "target/peers";
/// Where a peer runs, within its own.
const SERVER: &str = "server";
/// For the first start of a peer, which may build its tables.
pub const MAX_START: Duration = Duration::from_mins(2);

struct Peer {
    /// What it is called in its registry.
    package: &'static str,
    /// What is installed beside it.
    with: &'static [&'static str],
    /// The program of it, and its arguments; `PORT` stands for the port.
    start: &'static [&'static str],
    path: &'static str,
    media_type: &'static str,
    body: &'static str,
    /// In each answer.
    expected: &'static str,
    /// Where a turn is kept.
    keeps: &'static str,
}

const PEERS: [Peer; 3] = [
    Peer {
        package: "agno",
        with: &["openai", "fastapi", "uvicorn", "sqlalchemy[asyncio]", "psycopg[binary]", "python-multipart"],
        start: &["uvicorn", "agno_server:app", "--port", "PORT", "--log-level", "warning"],
        path: "/agents/agent/runs",
        media_type: "application/x-www-form-urlencoded",
        body: "message=Hello&stream=true",
        expected: "word word ",
        keeps: "in PostgreSQL",
    },
    Peer {
        package: "litellm",
        with: &["litellm[proxy]"],
        start: &["litellm", "--config", "litellm.yaml", "--port", "PORT"],
        path: "/v1/chat/completions",
        media_type: "application/json",
        body: "{\"model\":\"t64-d0\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}",
        expected: "[DONE]",
        keeps: "nowhere",
    },
    Peer {
        package: "langgraph",
        with: &["langgraph-cli[inmem]", "langchain-openai"],
        start: &["langgraph", "dev", "--no-browser", "--no-reload", "--port", "PORT"],
        path: "/runs/wait",
        media_type: "application/json",
        body: "{\"assistant_id\":\"agent\",\"input\":{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}}",
        expected: "word word ",
        keeps: "in memory",
    },
];

/// What came of a system.
struct Measured {
    name: String,
    keeps: &'static str,
    /// A second, by the clients.
    rates: [f64; 3],
    /// Of one client, in ms.
    alone: f64,
    cpu_ms: f64,
    memory_mib: f64,
}

/// Installs, starts and loads them one after the other; prints a table.
pub async fn compare(bench: &Bench) {
    let bytes = request("POST", MESSAGES, KEY, &message(MODEL, "Hello"));
    let ours = measure(bench, &bench.platform(), &bytes, "word word ").await;
    let mut all = vec![Measured { name: "this platform".to_owned(), keeps: "in PostgreSQL", ..ours }];
    for peer in &PEERS {
        match begin(bench, peer).await {
            Ok((name, server)) => {
                let measured = measure(bench, &server, &peer.request(), peer.expected).await;
                all.push(Measured { name, keeps: peer.keeps, ..measured });
            }
            Err(reason) => println!("{}: {reason}", peer.package),
        }
    }
    println!("| system | where a turn is kept | turns/s, 1, 16 and 64 at once | one at a time | CPU a turn | memory |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for Measured { name, keeps, rates: [one, some, many], alone, cpu_ms, memory_mib } in all {
        println!(
            "| {name} | {keeps} | {one:.0}, {some:.0}, {many:.0} | {alone:.1} ms | {cpu_ms:.2} ms | {memory_mib:.0} MiB |"
        );
    }
}

async fn measure(bench: &Bench, server: &Platform, bytes: &[u8], expected: &'static str) -> Measured {
    let (mut rates, mut alone, mut turns) = ([0.0; 3], 0.0, 0);
    let before = server.cpu_ms();
    for (rate, clients) in rates.iter_mut().zip(CLIENTS) {
        let (of_clients, mut times) = bench.load(&server.address, clients, bytes.to_vec(), expected).await;
        *rate = of_clients;
        turns += times.len() as u64;
        if clients == 1 {
            alone = percentile(&mut times, 0.5);
        }
    }
    let cpu_ms = (server.cpu_ms() - before) / count(turns);
    let memory_mib = count(server.memory_kib()) / 1024.0;
    Measured { name: String::new(), keeps: "", rates, alone, cpu_ms, memory_mib }
}

/// Installs and starts a peer; its name with its version.
async fn begin(bench: &Bench, peer: &'static Peer) -> Result<(String, Platform), String> {
    let home = std::path::absolute(FOLDER).map_err(|error| error.to_string())?.join(peer.package);
    let installing = {
        let home = home.clone();
        move || install(peer, &home)
    };
    let version = tokio::task::spawn_blocking(installing).await.map_err(|error| error.to_string())??;
    let address = free_address()?;
    let mut server = peer.run(&home, &address, bench).map_err(|error| error.to_string())?;
    let until = Instant::now() + MAX_START;
    while !peer.answers(&server.address).await {
        if server.has_ended() || Instant::now() > until {
            return Err(format!("it did not answer; see {}", log_of(&home).display()));
        }
        sleep(Duration::from_millis(500)).await;
    }
    Ok((format!("{} {version}", peer.package), server))
}

fn log_of(home: &Path) -> PathBuf {
    home.join("server.log")
}

/// What a program prints, or what it complains of.
pub fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| error.to_string())?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
}

/// An address where nobody listens.
pub fn free_address() -> Result<String, String> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    free.map(|address| address.to_string()).map_err(|error| error.to_string())
}

/// Installs it, beside what the servers of all peers are made of; the version that is there afterwards.
fn install(peer: &Peer, home: &Path) -> Result<String, String> {
    let python = home.join("bin/python");
    if !python.exists() {
        run(Path::new("python3"), &["-m", "venv", &home.to_string_lossy()])?;
        let installed = run(&python, &[&["-m", "pip", "install", "-q", peer.package], peer.with].concat());
        if installed.is_err() {
            // Half of it would be taken for all of it the next time.
            let _ = fs::remove_dir_all(home);
        }
        installed?;
    }
    fs::create_dir_all(home.join(SERVER)).map_err(|error| error.to_string())?;
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")).map_err(|error| error.to_string())?;
    for file in files.flatten() {
        fs::copy(file.path(), home.join(SERVER).join(file.file_name())).map_err(|error| error.to_string())?;
    }
    let version = format!("import importlib.metadata as m; print(m.version('{}'))", peer.package);
    Ok(run(&python, &["-c", &version])?.trim().to_owned())
}

impl Peer {
    fn request(&self) -> Vec<u8> {
        let Self { path, media_type, body, .. } = self;
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\ncontent-type: {media_type}\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    async fn answers(&self, address: &str) -> bool {
        let Ok(mut connection) = Connection::open(address).await else { return false };
        let answer = timeout(Duration::from_secs(10), connection.exchange(&self.request())).await;
        matches!(answer, Ok(Ok((200, body))) if body.contains(self.expected))
    }

    fn run(&self, home: &Path, address: &str, bench: &Bench) -> std::io::Result<Platform> {
        let port = address.rsplit(':').next().unwrap_or_default();
        let arguments = self.start[1..].iter().map(|argument| if *argument == "PORT" { port } else { argument });
        let log = fs::File::create(log_of(home))?;
        let mut command = Command::new(home.join("bin").join(self.start[0]));
        command
            .args(arguments)
            .current_dir(home.join(SERVER))
            .env("MODEL", MODEL)
            .env("MODEL_URL", format!("http://{}/v1", bench.model))
            .env("DATABASE", address_of(&bench.database))
            .env("KEY", KEY)
            .env("OPENAI_API_KEY", "none")
            .env("LANGSMITH_TRACING", "false")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null());
        Platform::other(&mut command, address)
    }
}

/// A database as `SQLAlchemy` has it.
fn address_of(database: &str) -> String {
    let of = |name: &str| database.split_whitespace().find_map(|part| part.strip_prefix(name)).unwrap_or_default();
    format!("postgresql+psycopg://{}@/{}?host={}", of("user="), of("dbname="), of("host="))
}
