//! Events that come in by hooks, and those that webhooks are told of.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use diesel_async::SimpleAsyncConnection;
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    http::{Connection, asked, request},
    platform::{KEY, Platform},
    rows::{Bench, MESSAGES, Row, count, median, message, millis, percentile},
};

/// Events of a round: an account has at most 10,000 that wait.
const EVENTS: usize = 9000;
/// Of them so many at first, until statements are prepared and connections are open.
const FIRST: usize = 1000;
const CLIENTS: usize = 16;
/// Events that start a thread, one after the other.
const STARTS: usize = 100;
const RECEIVERS: usize = 10;
/// Turns of which each webhook is told.
const TOLD: usize = 1000;

/// A trigger that starts an agent; the path of its address.
async fn trigger(connection: &mut Connection) -> String {
    let agent = connection.call("POST", "/v1/agents", &json!({"name": "a", "llm": "t1-d0"})).await;
    let server = connection.call("POST", "/v1/integrations/webhook/servers", &json!({})).await;
    let fields = json!({"toolServerId": server["_id"], "triggerSlug": "webhook", "agentId": agent["_id"],
        "messageTemplate": "{{data.text}}", "rateLimitPerMinute": 600});
    let made = connection.call("POST", "/v1/triggers", &fields).await;
    let url = made["webhookUrl"].as_str().expect("an address");
    url[url.find("/v1/hooks/").expect("a hook")..].to_owned()
}

impl Bench {
    /// Hooks that are accepted while nobody works, and events that start a thread.
    pub async fn hooks(&self) -> Vec<Row> {
        let api = Platform::start(&self.database, &self.providers, &[("PLATFORM_ROLE", "api")]);
        let mut connection = Connection::open(&api.address).await.expect("connected");
        let hook = trigger(&mut connection).await;
        let (mut rates, mut references, mut cpus, mut commits) = (vec![], vec![], vec![], vec![]);
        for round in 0..self.rounds {
            references.push(self.pgbench("hook.sql", CLIENTS).await);
            let send = async |events: usize, what: &str| {
                let mut tasks = JoinSet::new();
                for client in 0..CLIENTS {
                    let (address, hook, what) = (api.address.clone(), hook.clone(), what.to_owned());
                    tasks.spawn(async move {
                        let mut connection = Connection::open(&address).await.expect("connected");
                        for n in 0..events / CLIENTS {
                            let text = "a hundred letters or so of what somebody wrote somewhere, and who it was";
                            let event = format!("{{\"text\":\"{text}\",\"number\":\"{what}-{round}-{client}-{n}\"}}");
                            let sent = connection.exchange(&request("POST", &hook, KEY, &event)).await;
                            assert_eq!(sent.expect("an answer").0, 202);
                        }
                    });
                }
                tasks.join_all().await;
            };
            send(FIRST, "first").await;
            let next = self.next_transaction().await;
            let (before, began, events) = (api.cpu_ms(), Instant::now(), EVENTS - FIRST);
            send(events, "then").await;
            commits.push((self.next_transaction().await - next) / count(events as u64));
            rates.push(count(events as u64) / began.elapsed().as_secs_f64());
            cpus.push((api.cpu_ms() - before) / count(events as u64));
            let forget = "DELETE FROM runs; DELETE FROM trigger_events WHERE account_id <> 'bench'";
            self.db.conn().await.expect("a connection").batch_execute(forget).await.expect("forgotten");
        }
        drop(api);
        let platform = self.platform();
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let hook = trigger(&mut connection).await;
        let mut times = Vec::new();
        for n in 0..STARTS {
            let text = format!("n-hook-{n}");
            connection.call("POST", &hook, &json!({"text": text})).await;
            let accepted = Instant::now();
            let arrival = loop {
                if let Some(arrival) = self.arrivals.lock().expect("lock").remove(&text) {
                    break arrival;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            times.push(millis(arrival.saturating_duration_since(accepted)));
        }
        let ratio = median(rates.iter().zip(&references).map(|(rate, reference)| rate / reference).collect());
        let what = format!("events accepted by a hook, 16 at once ({:.0}/s)", median(rates));
        let reference = format!("bare insert {:.0}/s", median(references));
        let mut rows = Row::new(&what, format!("{ratio:.2} x"), reference, ">= 0.6 x");
        let cpu = format!("{:.3} ms", median(cpus));
        rows.extend(Row::new("  CPU of the platform an event", cpu, String::new(), ""));
        let commits = format!("{:.2}", median(commits));
        rows.extend(Row::new("  writing transactions an event, which share them", commits, String::new(), "<= 1"));
        let (half, tail) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));
        let start = format!("{half:.1} ms p50");
        rows.extend(Row::new("  event accepted to model called", start, format!("{tail:.1} ms p99"), "<= 25 ms"));
        rows
    }

    /// Turns of which ten webhooks are told; one of the receivers never answers.
    pub async fn deliveries(&self) -> Vec<Row> {
        let platform = Platform::start(&self.database, &self.providers, &[("PLATFORM_EGRESS_ALLOW", "127.0.0.1")]);
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let mut told = Vec::new();
        for n in 0..RECEIVERS {
            let (address, heard) = receiver(n == 0).await;
            let webhook = json!({"url": format!("http://{address}/"), "events": ["chat.completed"]});
            connection.call("POST", "/v1/webhooks", &webhook).await;
            told.extend((n > 0).then_some(heard));
        }
        let (before, began) = (platform.cpu_ms(), Instant::now());
        let mut tasks = JoinSet::new();
        for _ in 0..CLIENTS {
            let address = platform.address.clone();
            tasks.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                let turn = request("POST", MESSAGES, KEY, &message("t1-d0", "Hello"));
                for _ in 0..TOLD / CLIENTS {
                    let (status, body) = connection.exchange(&turn).await.expect("an answer");
                    assert_eq!(status, 200, "{body}");
                }
            });
        }
        tasks.join_all().await;
        let turns = began.elapsed();
        let wanted = (TOLD / CLIENTS * CLIENTS) as u64;
        while told.iter().any(|heard| heard.load(Ordering::Relaxed) < wanted) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (all, deliveries) = (began.elapsed(), count(wanted) * count(told.len() as u64));
        let cpu = (platform.cpu_ms() - before) / deliveries;
        let what = "deliveries to nine receivers while a tenth hangs";
        let rate = format!("{:.0}/s", deliveries / all.as_secs_f64());
        let mut rows = Row::new(what, rate, format!("{cpu:.2} ms CPU each, with their turns"), ">= 2,000/s");
        let lag = format!("{:.0} ms", millis(all.saturating_sub(turns)));
        rows.extend(Row::new("  the last, after the last turn", lag, String::new(), ""));
        rows
    }
}

/// A server that takes deliveries: its address, and how many it took.
async fn receiver(hangs: bool) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, heard) = (listener.local_addr().expect("an address").to_string(), Arc::new(AtomicU64::new(0)));
    let hears = Arc::clone(&heard);
    platform_core::spawn("receiver", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let hears = Arc::clone(&hears);
            platform_core::spawn("receiver connection", async move {
                let _ = take(stream, hangs, &hears).await;
            });
        }
    });
    (address, heard)
}

async fn take(mut stream: TcpStream, hangs: bool, heard: &AtomicU64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    while let Some((_, body)) = asked(&mut stream, &mut buffer).await? {
        let event: Value = serde_json::from_slice(&body)?;
        assert_eq!(event["type"], "chat.completed", "{event}");
        if hangs {
            std::future::pending::<()>().await;
        }
        heard.fetch_add(1, Ordering::Relaxed);
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?;
    }
    Ok(())
}
