//! How soon a sandbox is there, and what it takes to keep one.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    http::Connection,
    platform::Platform,
    rows::{Bench, Row, count, median, millis, percentile},
};

const STARTS: usize = 20;
const COMMANDS: usize = 100;
const AT_ONCE: usize = 50;
const MIB: u64 = 1 << 20;

/// A sandbox of an environment of its own.
struct Sandbox {
    path: String,
    id: String,
}

/// Makes an environment; its path.
async fn environment(connection: &mut Connection, keeps: bool) -> String {
    let body = json!({"name": "e", "sandboxConfig": {"memoryMib": 512, "snapshotEnabled": keeps}});
    let made = connection.call("POST", "/v1/environments", &body).await;
    format!("/v1/environments/{}", made["_id"].as_str().expect("an id"))
}

impl Sandbox {
    async fn start(connection: &mut Connection, path: &str) -> Self {
        let started = connection.call("POST", &format!("{path}/sandbox/start"), &json!({})).await;
        Self { path: path.to_owned(), id: started["sandboxId"].as_str().expect("an id").to_owned() }
    }

    async fn run(&self, connection: &mut Connection, command: &str) {
        let body = json!({"sandboxId": self.id, "command": command});
        let said = connection.call("POST", &format!("{}/sandbox/exec", self.path), &body).await;
        assert_eq!(said["exitCode"], 0, "{said}");
    }

    async fn stop(self, connection: &mut Connection, saves: bool) {
        let body = json!({"sandboxId": self.id, "saveChanges": saves});
        connection.call("POST", &format!("{}/sandbox/stop", self.path), &body).await;
    }

    /// Stops it, and waits until it is saved; the time that took, in ms.
    async fn save(self, connection: &mut Connection) -> f64 {
        let (path, began) = (self.path.clone(), Instant::now());
        self.stop(connection, true).await;
        loop {
            let all = connection.call("GET", &format!("{path}/snapshots"), &Value::Null).await;
            assert_ne!(all[0]["status"], "failed", "{all}");
            if all[0]["status"] == "ready" {
                return millis(began.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Bench {
    fn with_sandboxes(&self, data: &Path) -> Platform {
        let _ = std::fs::remove_dir_all(data);
        let settings = [("PLATFORM_DATA_DIR", data.to_str().expect("text")), ("PLATFORM_SANDBOX_MAX", "0")];
        Platform::start(&self.database, &self.providers, &settings)
    }

    /// From the request to the end of the first command, and what a command takes.
    pub async fn sandboxes(&self) -> Vec<Row> {
        let data = std::path::absolute("target/bench-sandboxes").expect("a path");
        let platform = self.with_sandboxes(&data);
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let path = environment(&mut connection, false).await;
        let (mut starts, mut commands, mut by_hand) = (vec![], vec![], vec![]);
        for _ in 0..STARTS {
            let began = Instant::now();
            let sandbox = Sandbox::start(&mut connection, &path).await;
            sandbox.run(&mut connection, "true").await;
            starts.push(millis(began.elapsed()));
            sandbox.stop(&mut connection, false).await;
        }
        let sandbox = Sandbox::start(&mut connection, &path).await;
        for _ in 0..COMMANDS {
            let began = Instant::now();
            sandbox.run(&mut connection, "true").await;
            commands.push(millis(began.elapsed()));
            let began = Instant::now();
            let status = tokio::process::Command::new("bash").args(["-c", "true"]).status().await;
            assert!(status.expect("bash").success());
            by_hand.push(millis(began.elapsed()));
        }
        let mut tasks = JoinSet::new();
        let began = Instant::now();
        for _ in 0..AT_ONCE {
            let address = platform.address.clone();
            tasks.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                let path = environment(&mut connection, false).await;
                let sandbox = Sandbox::start(&mut connection, &path).await;
                sandbox.run(&mut connection, "true").await;
            });
        }
        tasks.join_all().await;
        let all = millis(began.elapsed());
        drop(platform);
        let _ = std::fs::remove_dir_all(&data);
        let start = format!("{:.0} ms p50", percentile(&mut starts, 0.5));
        let mut rows = Row::new("start of a sandbox to the end of its first command", start, String::new(), "<= 60 ms");
        let (command, by_hand) = (median(commands), median(by_hand));
        let reference = format!("{by_hand:.1} ms by hand");
        rows.extend(Row::new("  `true` on it", format!("{:+.1} ms", command - by_hand), reference, "<= +8 ms"));
        rows.extend(Row::new("  50 at once, until all have run `true`", format!("{all:.0} ms"), String::new(), ""));
        rows
    }

    /// A disk of 100 MiB of chance.
    pub async fn snapshots(&self) -> Vec<Row> {
        let data = std::path::absolute("target/bench-sandboxes").expect("a path");
        let platform = self.with_sandboxes(&data);
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let (mut saves, mut restores, mut changes, mut packings) = (vec![], vec![], vec![], vec![]);
        for _ in 0..self.rounds {
            let path = environment(&mut connection, true).await;
            let sandbox = Sandbox::start(&mut connection, &path).await;
            sandbox.run(&mut connection, "head -c 104857600 /dev/urandom > noise").await;
            saves.push(sandbox.save(&mut connection).await);
            let before = bytes_below(&data.join("objects"));
            let began = Instant::now();
            let sandbox = Sandbox::start(&mut connection, &path).await;
            sandbox.run(&mut connection, "true").await;
            restores.push(millis(began.elapsed()));
            let change = "head -c 1048576 /dev/urandom | dd of=noise bs=1M seek=50 conv=notrunc 2>/dev/null";
            sandbox.run(&mut connection, change).await;
            sandbox.save(&mut connection).await;
            changes.push(count(bytes_below(&data.join("objects")) - before) / count(MIB));
            packings.push(packed(&data).await);
        }
        drop(platform);
        let _ = std::fs::remove_dir_all(&data);
        let reference = format!("tar and zstd {:.0} ms", median(packings));
        let mut rows = Row::new("save of 100 MiB", format!("{:.0} ms", median(saves)), reference, "<= 1,500 ms");
        let restore = format!("{:.0} ms", median(restores));
        rows.extend(Row::new("  restore to the end of the first command", restore, String::new(), "<= 1,500 ms"));
        let change = format!("{:.1} MiB", median(changes));
        rows.extend(Row::new("  stored for one changed MiB", change, String::new(), "about 1 MiB"));
        rows
    }
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(
            |entry| {
                if entry.path().is_dir() {
                    bytes_below(&entry.path())
                } else {
                    entry.metadata().map_or(0, |of| of.len())
                }
            },
        )
        .sum()
}

/// What programs made for it take to pack as much, in ms.
async fn packed(dir: &Path) -> f64 {
    let pack =
        "head -c 104857600 /dev/urandom > noise; s=$(date +%s%N); tar -c noise | zstd -q -1 > packed; sync packed
        echo $(( ($(date +%s%N) - s) / 1000 )); rm noise packed";
    let dir: PathBuf = dir.to_owned();
    let run = move || Command::new("bash").args(["-c", pack]).current_dir(dir).output().expect("bash");
    let output = tokio::task::spawn_blocking(run).await.expect("joined");
    let micros = String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().expect("a number");
    count(micros) / 1000.0
}
