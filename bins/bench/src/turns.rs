//! Durable turns: many at once, one at a time, with a reply of one word and with one that is streamed.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    http::{Connection, request},
    platform::{KEY, Platform},
    rows::{Bench, MESSAGES, Row, count, median, message, millis, percentile},
};

/// The turn's own write as one statement.
const TURN: &str = "turn.sql";

impl Bench {
    /// Transactions a second of a script of this directory.
    pub async fn pgbench(&self, script: &str, clients: usize) -> f64 {
        let (program, seconds, database) = (self.pgbench.clone(), self.seconds.to_string(), self.database.clone());
        let script = format!("{}/src/{script}", env!("CARGO_MANIFEST_DIR"));
        let run = move || {
            let clients = clients.to_string();
            Command::new(program)
                .args(["-n", "-M", "prepared", "-c", &clients, "-j", "2", "-T", &seconds, "-f", &script, &database])
                .output()
                .expect("pgbench runs")
        };
        let output = tokio::task::spawn_blocking(run).await.expect("joined");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("tps = "));
        let number = line.and_then(|line| line.split_whitespace().nth(2)).and_then(|tps| tps.parse().ok());
        number.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }

    pub async fn turns(&self) -> Vec<Row> {
        let platform = self.platform();
        let body = request("POST", MESSAGES, KEY, &message("t1-d0", "Hello"));
        let (mut ratios, mut rates, mut references, mut cpus) = (vec![], vec![], vec![], vec![]);
        for _ in 0..self.rounds {
            let reference = self.pgbench(TURN, 64).await;
            let before = platform.cpu_ms();
            let (rate, times) = self.load(&platform.address, 64, body.clone(), "\"word \"").await;
            cpus.push((platform.cpu_ms() - before) / count(times.len() as u64));
            ratios.push(rate / reference);
            rates.push(rate);
            references.push(reference);
        }
        let reference = format!("pgbench {:.0}/s", median(references));
        let what = format!("durable turns, 64 at once ({:.0}/s)", median(rates));
        let mut rows = Row::new(&what, format!("{:.2} x", median(ratios)), reference, ">= 0.8 x");
        let cpu = format!("{:.3} ms", median(cpus));
        rows.extend(Row::new("  CPU of the platform a turn", cpu, String::new(), "<= 0.25 ms"));
        drop(platform);
        for clients in [64, 16] {
            rows.extend(self.streamed(clients).await);
        }
        rows
    }

    /// Turns with a reply of 64 tokens against the same of the least that serves them.
    async fn streamed(&self, clients: usize) -> Vec<Row> {
        let body = request("POST", MESSAGES, KEY, &message("t64-d0", "Hello"));
        let servers = [self.platform(), Platform::probe(&self.database, &self.model)];
        let (mut rates, mut cpus, mut ratios) = ([vec![], vec![]], [vec![], vec![]], vec![]);
        for _ in 0..self.rounds {
            for (at, server) in servers.iter().enumerate() {
                let before = server.cpu_ms();
                let (rate, times) = self.load(&server.address, clients, body.clone(), "word word ").await;
                cpus[at].push((server.cpu_ms() - before) / count(times.len() as u64));
                rates[at].push(rate);
            }
            ratios.push(rates[0].last().copied().unwrap_or(0.0) / rates[1].last().copied().unwrap_or(1.0));
        }
        let ([rate, reference], [cpu, least]) = (rates.map(median), cpus.map(median));
        let what = format!("turns with a reply of 64 tokens, {clients} at once ({rate:.0}/s)");
        let mut rows =
            Row::new(&what, format!("{:.2} x", median(ratios)), format!("probe {reference:.0}/s"), ">= 0.6 x");
        let reference = format!("probe {least:.3} ms");
        rows.extend(Row::new("  CPU of the platform a turn", format!("{cpu:.3} ms"), reference, "<= 0.18 ms"));
        rows
    }

    pub async fn one_at_a_time(&self) -> Vec<Row> {
        let platform = self.platform();
        let turn = request("POST", MESSAGES, KEY, &message("t1-d0", "Hello"));
        let direct = request(
            "POST",
            "/v1/chat/completions",
            KEY,
            "{\"model\":\"t1-d0\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}",
        );
        let (mut added, mut commits) = (vec![], vec![]);
        for _ in 0..self.rounds {
            commits.push(1000.0 / self.pgbench(TURN, 1).await);
            let mut calls = self.direct(&direct).await;
            let (_, mut turns) = self.load(&platform.address, 1, turn.clone(), "\"word \"").await;
            added.push(percentile(&mut turns, 0.5) - percentile(&mut calls, 0.5));
        }
        let (added, commit) = (median(added), median(commits));
        let what = format!("one turn at a time, added to the model's own time ({added:.2} ms)");
        Row::new(&what, format!("{:+.2} ms", added - commit), format!("one commit {commit:.2} ms"), "<= +1 ms")
    }

    /// Times of whole model calls without the platform, in ms.
    async fn direct(&self, bytes: &[u8]) -> Vec<f64> {
        let mut connection = Connection::open(&self.model).await.expect("connected");
        let mut times = Vec::new();
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            let began = Instant::now();
            connection.begin(bytes).await.expect("an answer");
            while connection.piece().await.expect("a piece").is_some() {}
            times.push(millis(began.elapsed()));
        }
        times
    }
}
