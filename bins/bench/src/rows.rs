//! The rows of the table of figures.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use diesel_async::SimpleAsyncConnection;
use platform_db::Db;
use tokio::task::JoinSet;

use crate::{
    http::{Connection, header, request, status},
    model::Arrivals,
    platform::{KEY, Platform},
};

pub struct Row {
    pub what: String,
    pub measured: String,
    pub reference: String,
    pub goal: &'static str,
}

impl Row {
    pub fn new(what: &str, measured: String, reference: String, goal: &'static str) -> Vec<Self> {
        vec![Self { what: what.to_owned(), measured, reference, goal }]
    }
}

/// What open streams took.
pub struct Open {
    /// Memory of each.
    pub kib_each: f64,
    /// CPU time of the platform while they were watched.
    pub cpu_ms: f64,
    /// Events that came meanwhile.
    pub events: u64,
}

pub struct Bench {
    pub database: String,
    pub db: Db,
    pub model: String,
    pub arrivals: Arrivals,
    pub providers: PathBuf,
    pub pgbench: PathBuf,
    pub rounds: usize,
    pub seconds: u64,
    pub chats: usize,
    /// Pieces that are searched by words.
    pub pieces: usize,
    pub streams: usize,
}

pub const MESSAGES: &str = "/v1/assistants/default/messages";

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn percentile(values: &mut [f64], p: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
    let at = ((values.len() as f64 - 1.0) * p).round() as usize;
    values[at]
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
pub fn count(number: u64) -> f64 {
    number as f64
}

/// A message whose turn is one model call: titles and summaries are others.
pub fn message(model: &str, text: &str) -> String {
    format!("{{\"message\":\"{text}\",\"model\":\"{model}\",\"skipSummarization\":true}}")
}

impl Bench {
    pub async fn row(&self, number: u32) -> Vec<Row> {
        match number {
            1 => self.turns().await,
            2 => self.one_at_a_time().await,
            3 => self.first_token().await,
            4 => self.cpu_per_token().await,
            5 => self.many_streams().await,
            6 => self.open_streams().await,
            7 => self.reads().await,
            8 => self.lists().await,
            9 => self.start_up(),
            10 => self.dispatch().await,
            11 => self.mcp().await,
            12 => self.tools().await,
            13 => self.threads().await,
            14 => self.tenants().await,
            15 => self.files().await,
            16 => self.search().await,
            17 => self.indexing().await,
            18 => self.hooks().await,
            19 => self.deliveries().await,
            20 => self.sandboxes().await,
            21 => self.snapshots().await,
            _ => self.memory().await,
        }
    }

    pub fn platform(&self) -> Platform {
        Platform::start(&self.database, &self.providers, &[])
    }

    /// `clients` connections send `request` again and again; answers a second, and their times in ms.
    pub async fn load(&self, address: &str, clients: usize, bytes: Vec<u8>, expected: &'static str) -> (f64, Vec<f64>) {
        let (bytes, stop) = (Arc::new(bytes), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (bytes, stop, address) = (Arc::clone(&bytes), Arc::clone(&stop), address.to_owned());
            tasks.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let (status, body) = connection.exchange(&bytes).await.expect("an answer");
                    assert!(status < 300 && body.contains(expected), "{status}: {body}");
                    times.push(millis(began.elapsed()));
                }
                times
            });
        }
        let began = Instant::now();
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        stop.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        while let Some(done) = tasks.join_next().await {
            times.extend(done.expect("no panic"));
        }
        (count(times.len() as u64) / began.elapsed().as_secs_f64(), times)
    }

    async fn first_token(&self) -> Vec<Row> {
        let platform = self.platform();
        let (mut halves, mut tails, mut waits, mut longest) = (vec![], vec![], vec![], vec![]);
        for _ in 0..self.rounds {
            let mut direct = self.together(100, &self.model, |_| None).await;
            let mut through = self.together(100, &platform.address, |n| Some(format!("first {n}"))).await;
            halves.push(percentile(&mut through, 0.5) - percentile(&mut direct, 0.5));
            tails.push(percentile(&mut through, 0.99) - percentile(&mut direct, 0.99));
            let mut shown = self.shown(100, &platform.address).await;
            waits.push(percentile(&mut shown, 0.5));
            longest.push(percentile(&mut shown, 0.99));
        }
        let what = "first token of 100 paced streams, from the model to its watcher, p50";
        let mut rows = Row::new(what, format!("{:+.2} ms", median(waits)), "the model's own clock".into(), "<= 1 ms");
        rows.extend(Row::new("  p99", format!("{:+.2} ms", median(longest)), String::new(), "<= 5 ms"));
        let what = "  the same with sending, one commit and opening the stream, p50";
        rows.extend(Row::new(what, format!("{:+.2} ms", median(halves)), "direct call".into(), ""));
        rows.extend(Row::new("  p99", format!("{:+.2} ms", median(tails)), "direct call".into(), ""));
        rows
    }

    /// Times from a model's first token to the frame of a watcher that waits for it, in ms.
    async fn shown(&self, streams: usize, address: &str) -> Vec<f64> {
        let mut tasks = JoinSet::new();
        for n in 0..streams {
            let (address, arrivals) = (address.to_owned(), Arc::clone(&self.arrivals));
            tasks.spawn(async move {
                tokio::time::sleep(Duration::from_millis(10 * n as u64)).await;
                let mut first = Connection::open(&address).await.expect("connected");
                let mut second = Connection::open(&address).await.expect("connected");
                let text = format!("n-shown-{n}");
                let chat = start(&mut first, "t100-d10-w300", &text).await;
                second.begin(&stream(&chat)).await.expect("a stream");
                while !second.piece().await.expect("a piece").expect("not over").contains("word ") {}
                let shown = Instant::now();
                let begun = arrivals.lock().expect("lock").remove(&text).expect("it was asked");
                millis(shown.saturating_duration_since(begun))
            });
        }
        tasks.join_all().await
    }

    /// Times to the first word of `streams` streams that start within one second, in ms.
    async fn together(&self, streams: usize, address: &str, text: impl Fn(usize) -> Option<String>) -> Vec<f64> {
        let mut tasks = JoinSet::new();
        for n in 0..streams {
            let (address, text) = (address.to_owned(), text(n));
            tasks.spawn(async move {
                tokio::time::sleep(Duration::from_millis(10 * n as u64)).await;
                let mut first = Connection::open(&address).await.expect("connected");
                let mut second = Connection::open(&address).await.expect("connected");
                let began = Instant::now();
                let word = match text {
                    None => {
                        let body = "{\"model\":\"t100-d10\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
                        first.begin(&request("POST", "/v1/chat/completions", KEY, body)).await.expect("a head");
                        first.piece().await.expect("a piece");
                        began.elapsed()
                    }
                    Some(text) => {
                        let chat = start(&mut first, "t100-d10", &text).await;
                        second.begin(&stream(&chat)).await.expect("a stream");
                        loop {
                            let frame = second.piece().await.expect("a piece").expect("not over");
                            if frame.contains("word ") {
                                break began.elapsed();
                            }
                        }
                    }
                };
                millis(word)
            });
        }
        tasks.join_all().await
    }

    async fn cpu_per_token(&self) -> Vec<Row> {
        let platform = self.platform();
        let mut rows = Vec::new();
        for (what, model, streams, tokens, goal) in [
            ("CPU per 1,000 streamed tokens, unpaced", "t500-d0", 200, 500, "<= 8 ms"),
            ("CPU per 1,000 streamed tokens, paced", "t500-d10", 100, 500, "<= 28 ms"),
        ] {
            let mut figures = Vec::new();
            for _ in 0..self.rounds {
                let before = platform.cpu_ms();
                self.follow(&platform, streams, model, tokens, if model.ends_with("d0") { 8 } else { streams }).await;
                figures.push((platform.cpu_ms() - before) / count((streams * tokens) as u64) * 1000.0);
            }
            rows.extend(Row::new(what, format!("{:.1} ms", median(figures)), String::new(), goal));
        }
        rows
    }

    /// Sends `streams` messages and follows each to its end, `at_once` at a time; checks every reply.
    async fn follow(&self, platform: &Platform, streams: usize, model: &'static str, tokens: usize, at_once: usize) {
        let mut tasks = JoinSet::new();
        for lane in 0..at_once {
            let address = platform.address.clone();
            tasks.spawn(async move {
                let mut first = Connection::open(&address).await.expect("connected");
                for n in (lane..streams).step_by(at_once) {
                    let chat = start(&mut first, model, &format!("follow {n}")).await;
                    let mut words = 0;
                    // A stream lives for a minute at most: open it again until the end.
                    loop {
                        let mut second = Connection::open(&address).await.expect("connected");
                        let head = second.begin(&stream(&chat)).await.expect("a stream");
                        assert_eq!(status(&head), 200, "{head}");
                        let mut over = false;
                        while let Some(frame) = second.piece().await.expect("a piece") {
                            if frame.contains("event: snapshot") {
                                words = frame.matches("word ").count();
                            } else {
                                words += frame.matches("word ").count();
                            }
                            over |= frame.contains("\"status\":\"completed\"");
                        }
                        if over {
                            break;
                        }
                    }
                    assert_eq!(words, tokens, "a stream lost text");
                }
            });
        }
        tasks.join_all().await;
    }

    async fn many_streams(&self) -> Vec<Row> {
        let platform = self.platform();
        let mut rates = Vec::new();
        for _ in 0..self.rounds.min(3) {
            let began = Instant::now();
            self.follow(&platform, 1000, "t1000-d10", 1000, 1000).await;
            rates.push(1_000_000.0 / began.elapsed().as_secs_f64());
        }
        Row::new(
            "1,000 paced streams, persisted, every reply checked",
            format!("{:.0}/s", median(rates)),
            "100,000 tokens/s offered".into(),
            ">= 80,000/s",
        )
    }

    async fn open_streams(&self) -> Vec<Row> {
        let seconds = 10;
        let Open { kib_each, cpu_ms, events } = self.open(self.streams, Duration::from_secs(seconds)).await;
        let what = format!("{} open streams over 100 chats, memory each", self.streams);
        let mut rows = Row::new(&what, format!("{kib_each:.1} KiB"), String::new(), "<= 28 KiB");
        let what = format!("  CPU an event ({:.0} events/s)", count(events) / count(seconds));
        let cpu = cpu_ms * 1000.0 / count(events.max(1));
        rows.extend(Row::new(&what, format!("{cpu:.1} us"), String::new(), "<= 20 us"));
        rows
    }

    /// Opens so many streams over 100 chats in which something happens once a second, and watches them.
    pub async fn open(&self, streams: usize, watched: Duration) -> Open {
        let platform = self.platform();
        let mut first = Connection::open(&platform.address).await.expect("connected");
        let mut chats = Vec::new();
        for n in 0..100 {
            chats.push(start(&mut first, "t60-d1000", &format!("open {n}")).await);
        }
        let (empty, events) = (platform.memory_kib(), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for n in 0..streams {
            let mut connection = Connection::open(&platform.address).await.expect("connected");
            let head = connection.begin(&stream(&chats[n % chats.len()])).await.expect("a stream");
            assert_eq!(status(&head), 200, "{head}");
            let events = Arc::clone(&events);
            tasks.spawn(async move {
                while let Ok(Some(_)) = connection.piece().await {
                    events.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let kib_each = count(platform.memory_kib().saturating_sub(empty)) / count(streams as u64);
        let (before, seen) = (platform.cpu_ms(), events.load(Ordering::Relaxed));
        tokio::time::sleep(watched).await;
        let events = events.load(Ordering::Relaxed) - seen;
        tasks.abort_all();
        Open { kib_each, cpu_ms: platform.cpu_ms() - before, events }
    }

    async fn reads(&self) -> Vec<Row> {
        let platform = self.platform();
        let mut first = Connection::open(&platform.address).await.expect("connected");
        let turn = request("POST", MESSAGES, KEY, &message("t1-d0", "Hello"));
        let head = first.begin(&turn).await.expect("an answer");
        let chat = header(&head, "x-chat-uid").expect("a chat").to_owned();
        let read = request("GET", &format!("/v1/assistants/default/chats/{chat}"), KEY, "");
        let hello = request("GET", "/livez", KEY, "");
        let (mut ratios, mut rates, mut references) = (vec![], vec![], vec![]);
        for _ in 0..self.rounds {
            let (reference, _) = self.load(&platform.address, 64, hello.clone(), "ok").await;
            let (rate, _) = self.load(&platform.address, 64, read.clone(), "chatContent").await;
            ratios.push(rate / reference);
            rates.push(rate);
            references.push(reference);
        }
        let what = format!("one chat read by key ({:.0}/s)", median(rates));
        Row::new(
            &what,
            format!("{:.2} x", median(ratios)),
            format!("hello world {:.0}/s", median(references)),
            ">= 0.25 x",
        )
    }

    async fn lists(&self) -> Vec<Row> {
        let platform = self.platform();
        self.fill(self.chats).await;
        let account = {
            let mut connection = Connection::open(&platform.address).await.expect("connected");
            let (_, body) =
                connection.exchange(&request("POST", "/v1/assistants/chats?limit=1", KEY, "{}")).await.expect("a list");
            let at = body.find("\"clientUID\":\"").expect("an account") + 13;
            body[at..].split('"').next().unwrap_or_default().to_owned()
        };
        let filters = [
            ("no filter", "{}", "TRUE"),
            ("assistant", "{\"assistantIdentifier\":\"a7\"}", "assistant = 'a7'"),
            ("title", "{\"name\":\"chat 4711\"}", "name = 'chat 4711'"),
            ("part of the title", "{\"search\":\"CHAT 4711\"}", "name ILIKE '%CHAT 4711%'"),
            ("model", "{\"llm\":\"m3\"}", "llm = 'm3'"),
            ("created", "{\"createdAfter\":1700000900000}", "created_ms >= 1700000900000"),
            ("prompt tokens", "{\"minInputTokens\":9990}", "input_tokens >= 9990"),
            ("answer tokens", "{\"minOutputTokens\":995}", "output_tokens >= 995"),
            ("tenant", "{\"tenantId\":\"t42\"}", "tenant_id = 't42'"),
            ("subtenant", "{\"subtenantId\":\"s4711\"}", "metadata ->> 'subtenantId' = 's4711'"),
            (
                "metadata",
                "{\"metadata\":{\"order\":{\"id\":4711}}}",
                "metadata <> '{}' AND metadata @> '{\"order\":{\"id\":4711}}'",
            ),
            ("tags", "{\"tags\":[\"g11\",\"g12\"]}", "tags <> '{}' AND tags && '{g11,g12}'"),
        ];
        let mut rows = Vec::new();
        let mut conn = self.db.conn().await.expect("a connection");
        for (name, body, condition) in filters {
            let bytes = request("POST", "/v1/assistants/chats?limit=10&omitContent=true", KEY, body);
            let mut connection = Connection::open(&platform.address).await.expect("connected");
            let from = format!("FROM chats WHERE account_id = '{account}' AND archived = false AND {condition}");
            let raw = format!("SELECT * {from} ORDER BY created_ms DESC, uid DESC LIMIT 10; SELECT count(*) {from}");
            let (mut ratios, mut times, mut references) = (vec![], vec![], vec![]);
            for _ in 0..self.rounds.max(5) {
                let began = Instant::now();
                conn.batch_execute(&raw).await.expect("raw SQL");
                let reference = millis(began.elapsed());
                let began = Instant::now();
                let (status, answer) = connection.exchange(&bytes).await.expect("a list");
                assert_eq!(status, 201, "{answer}");
                let time = millis(began.elapsed());
                ratios.push(time / reference);
                times.push(time);
                references.push(reference);
            }
            let what = format!("list of {} chats by {name} ({:.1} ms)", self.chats, median(times));
            rows.extend(Row::new(
                &what,
                format!("{:.2} x", median(ratios)),
                format!("raw SQL {:.1} ms", median(references)),
                "<= 1.3 x",
            ));
        }
        rows
    }

    /// Runs statements that make what is measured, one by one: `VACUUM` wants to be alone.
    pub async fn run(&self, sql: &str) {
        let mut conn = self.db.conn().await.expect("a connection");
        for statement in sql.split(';') {
            conn.batch_execute(statement).await.expect("filled");
        }
    }

    /// Makes so many rows like one, with `fields` of their own: names and values as `jsonb_build_object` takes them, where
    /// `of` is that row and `n` the number of the copy.
    pub async fn copy(&self, table: &str, which: &str, fields: &str, copies: usize) {
        self.run(&format!(
            "INSERT INTO {table} SELECT (jsonb_populate_record(of, jsonb_build_object({fields}))).*
             FROM {table} of, generate_series(1, {copies}) n WHERE {which} ON CONFLICT DO NOTHING;
             VACUUM ANALYZE {table}"
        ))
        .await;
    }

    /// Fills the first account with chats, once.
    pub async fn fill(&self, chats: usize) {
        let fill = format!(
            "INSERT INTO chats (account_id, uid, assistant, name, status, user_uid, tenant_id, metadata, tags, llm, provider,
                input_tokens, output_tokens, revision, message_count, turn_start, created_ms, edited_ms)
             SELECT (SELECT id FROM accounts ORDER BY created_ms LIMIT 1), 'bench-' || n, 'a' || n % 50, 'chat ' || n, 'completed', 'u',
                't' || n % 1000, jsonb_build_object('subtenantId', 's' || n % 100000, 'order', jsonb_build_object('id', n)),
                ARRAY['g' || n % 1000, 'h' || n % 7], 'm' || n % 20, 'p', n % 10000, n % 1000, 1, 0, 0, 1700000000000 + n, 1700000000000 + n
             FROM generate_series(1, {chats}) n ON CONFLICT DO NOTHING"
        );
        self.run(&format!("VACUUM chats; {fill}; VACUUM ANALYZE chats")).await;
    }

    fn start_up(&self) -> Vec<Row> {
        let mut times = Vec::new();
        let mut memory = Vec::new();
        for _ in 0..self.rounds {
            let platform = self.platform();
            times.push(platform.start_up.as_secs_f64());
            std::thread::sleep(Duration::from_secs(1));
            memory.push(count(platform.memory_kib()) / 1024.0);
        }
        let mut rows =
            Row::new("start-up, schema in place", format!("{:.2} s", median(times)), String::new(), "<= 0.3 s");
        rows.extend(Row::new("  idle memory", format!("{:.1} MiB", median(memory)), String::new(), "<= 40 MiB"));
        rows
    }

    async fn dispatch(&self) -> Vec<Row> {
        let platform = self.platform();
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let mut times = Vec::new();
        for n in 0..500 {
            let text = format!("n-{n}-{}", std::process::id());
            let body = request("POST", &format!("{MESSAGES}?async=true"), KEY, &message("t1-d0", &text));
            let (status, _) = connection.exchange(&body).await.expect("an answer");
            let accepted = Instant::now();
            assert_eq!(status, 200);
            let arrival = loop {
                if let Some(arrival) = self.arrivals.lock().expect("lock").remove(&text) {
                    break arrival;
                }
                tokio::time::sleep(Duration::from_micros(200)).await;
            };
            times.push(millis(arrival.saturating_duration_since(accepted)));
        }
        let half = percentile(&mut times, 0.5);
        let tail = percentile(&mut times, 0.99);
        drop(platform);

        // A worker that may take 256 at once finds 10,000 waiting.
        let platform = Platform::start(&self.database, &self.providers, &[("PLATFORM_WORKER_CONCURRENCY", "256")]);
        self.arrivals.lock().expect("lock").clear();
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for lane in 0..50 {
            let address = platform.address.clone();
            tasks.spawn(async move {
                let mut connection = Connection::open(&address).await.expect("connected");
                for n in 0..200 {
                    start(&mut connection, "t1-d0", &format!("n-q-{lane}-{n}")).await;
                }
            });
        }
        tasks.join_all().await;
        while self.arrivals.lock().expect("lock").keys().filter(|text| text.starts_with("n-q-")).count() < 10_000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let rate = 10_000.0 / began.elapsed().as_secs_f64();
        let mut rows =
            Row::new("accepted message to model called, p50", format!("{half:.2} ms"), String::new(), "<= 20 ms");
        rows.extend(Row::new("  p99", format!("{tail:.2} ms"), String::new(), "<= 100 ms"));
        rows.extend(Row::new(
            "  10,000 runs sent and drained, instant model",
            format!("{rate:.0}/s"),
            String::new(),
            ">= 1,000/s",
        ));
        rows
    }
}

/// Sends a message without waiting; the chat's id.
async fn start(connection: &mut Connection, model: &str, text: &str) -> String {
    let body = request("POST", &format!("{MESSAGES}?async=true"), KEY, &message(model, text));
    let (status, body) = connection.exchange(&body).await.expect("an answer");
    assert_eq!(status, 200, "{body}");
    body.split('"').nth(3).expect("a chat").to_owned()
}

fn stream(chat: &str) -> Vec<u8> {
    request("GET", &format!("/v1/assistants/default/chats/{chat}/stream?partial=1"), KEY, "")
}
