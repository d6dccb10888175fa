//! How soon a thread begins, and how many do.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::{
    http::{Connection, request},
    model::Arrivals,
    platform::{KEY, Platform},
    rows::{Bench, Row, count, millis, percentile},
};

const AGENTS: usize = 100;
/// Threads of each agent, one after the other.
const EACH: usize = 10;
/// Threads that wait at once.
const WAITING: u64 = 10_000;

/// Makes an agent; its id.
pub async fn agent(connection: &mut Connection, model: &str, at_once: usize) -> String {
    let body = format!("{{\"name\":\"a\",\"llm\":\"{model}\",\"concurrentExecutionLimit\":{at_once}}}");
    let (status, body) = connection.exchange(&request("POST", "/v1/agents", KEY, &body)).await.expect("an answer");
    assert_eq!(status, 201, "{body}");
    body.split('"').nth(3).expect("an id").to_owned()
}

/// Starts a thread.
async fn start(connection: &mut Connection, agent: &str, text: &str) {
    let body = format!("{{\"message\":\"{text}\"}}");
    let path = format!("/v1/agents/{agent}/threads");
    let (status, body) = connection.exchange(&request("POST", &path, KEY, &body)).await.expect("an answer");
    assert_eq!(status, 201, "{body}");
}

/// Starts a thread; from its acceptance to the call of the model, in ms.
async fn called(connection: &mut Connection, agent: &str, text: &str, arrivals: &Arrivals) -> f64 {
    start(connection, agent, text).await;
    let accepted = Instant::now();
    loop {
        if let Some(arrival) = arrivals.lock().expect("lock").remove(text) {
            return millis(arrival.saturating_duration_since(accepted));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl Bench {
    /// Starts a thread; from its acceptance to the call of the model, in ms.
    pub async fn thread_called(&self, connection: &mut Connection, agent: &str, text: &str) -> f64 {
        called(connection, agent, text, &self.arrivals).await
    }

    pub async fn threads(&self) -> Vec<Row> {
        let platform = Platform::start(&self.database, &self.providers, &[("PLATFORM_WORKER_CONCURRENCY", "256")]);
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let mut tasks = JoinSet::new();
        for of in 0..AGENTS {
            // Each thread works for half a second, so that all agents are at work all the time.
            let agent = agent(&mut connection, "t50-d10", 1).await;
            let (address, arrivals) = (platform.address.clone(), std::sync::Arc::clone(&self.arrivals));
            tasks.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                let mut times = Vec::new();
                for n in 0..EACH {
                    times.push(called(&mut connection, &agent, &format!("n-{of}-{n}"), &arrivals).await);
                    // The limit of one is free again when the model has ended.
                    tokio::time::sleep(Duration::from_millis(700)).await;
                }
                times
            });
        }
        let mut times: Vec<f64> = tasks.join_all().await.into_iter().flatten().collect();
        let (half, tail) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));

        let mut agents = Vec::new();
        for _ in 0..AGENTS {
            agents.push(agent(&mut connection, "t1-d0", 1000).await);
        }
        self.arrivals.lock().expect("lock").clear();
        let before = platform.cpu_ms();
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for lane in 0..50_u64 {
            let (address, agents) = (platform.address.clone(), agents.clone());
            tasks.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                for n in 0..WAITING / 50 {
                    let agent = &agents[usize::try_from(lane + n).unwrap_or(0) % agents.len()];
                    start(&mut connection, agent, &format!("n-q-{lane}-{n}")).await;
                }
            });
        }
        tasks.join_all().await;
        let arrived = || self.arrivals.lock().expect("lock").keys().filter(|t| t.starts_with("n-q-")).count() as u64;
        while arrived() < WAITING {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let rate = count(WAITING) / began.elapsed().as_secs_f64();
        let cpu = (platform.cpu_ms() - before) / count(WAITING);
        let what = "thread accepted to model called, 100 agents at work, p50";
        let mut rows = Row::new(what, format!("{half:.2} ms"), String::new(), "<= 25 ms");
        rows.extend(Row::new("  p99", format!("{tail:.2} ms"), String::new(), "<= 250 ms"));
        let what = "  10,000 threads of 100 agents started and drained";
        rows.extend(Row::new(what, format!("{rate:.0}/s"), format!("{cpu:.2} ms CPU each"), ""));
        rows
    }
}
