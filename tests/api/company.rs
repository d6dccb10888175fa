//! Ten days of a company over three processes that die and are replaced: its books balance at the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use platform_testing::{FakeApp, FakeToolServer, NatsServer, TestApp, TestDb};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::{
    documents::{document, indexed},
    support::{PROGRAM, UNBOUNDED, agent, eventually, is_terminal, set_usage_clock, text, tool, tool_server},
    triggers::{server_of, trigger},
    uploads::own_dir,
};

const TENANTS: usize = 50;
const DAYS: usize = 10;
const ROTATIONS: [usize; 2] = [3, 7];
const DEPLOY: usize = 6;
/// Every so manieth tenant has a quota that does not last a day, and every so manieth has agents at work.
const SMALL: usize = 10;
const WITH_AGENTS: usize = 5;
/// A small tenant's tokens of a day, and what a message takes at least.
const QUOTA: usize = 500;
/// The first of January 2026, noon.
const FIRST_DAY: usize = 1_767_268_800_000;
const DAY: usize = 86_400_000;
/// A migration that a deploy brings.
const MIGRATION: &str = "2026-11-23-160000_chat_fewer_indexes";

struct Company {
    db: TestDb,
    settings: Vec<(String, String)>,
    fleet: Vec<RwLock<TestApp>>,
    key: RwLock<String>,
    key_id: String,
    /// The agent of those who have one, and what starts it from outside.
    clerk: String,
    hook: String,
    handbook: String,
    /// News, and the trigger that reads them.
    news: FakeApp,
    reader: String,
    /// A machine that each day is started, worked on and saved.
    machine: String,
}

/// What was spent, in tokens and nano-dollars.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Spent {
    input: i64,
    output: i64,
    nanos: i64,
}

impl Spent {
    fn of(messages: &Value, field: &str) -> Self {
        let of = |message: &Value| {
            let tokens = |of: &str| message["messageTokenUsage"][of].as_i64().unwrap_or(0);
            let nanos = nanos(&message["messageCost"]["totalCost"]);
            Self { input: tokens("inputTokens"), output: tokens("outputTokens"), nanos }
        };
        Self::all(&messages[field].as_array().expect("messages").iter().map(of).collect::<Vec<_>>())
    }

    fn sum(row: &Value) -> Self {
        let tokens = |of: &str| row[of].as_i64().unwrap_or_else(|| panic!("{row}"));
        Self { input: tokens("inputTokens"), output: tokens("outputTokens"), nanos: nanos(&row["totalCost"]) }
    }

    fn all(of: &[Self]) -> Self {
        let sum = |part: fn(&Self) -> i64| of.iter().map(part).sum();
        Self { input: sum(|of| of.input), output: sum(|of| of.output), nanos: sum(|of| of.nanos) }
    }

    fn without(self, before: Self) -> Self {
        Self { input: self.input - before.input, output: self.output - before.output, nanos: self.nanos - before.nanos }
    }

    fn tokens(self) -> i64 {
        self.input + self.output
    }
}

#[expect(clippy::cast_possible_truncation, reason = "nano-dollars of a small sum")]
fn nanos(dollars: &Value) -> i64 {
    (dollars.as_f64().unwrap_or(0.0) * 1e9).round() as i64
}

impl Company {
    async fn found(server: &FakeToolServer, nats: Option<&NatsServer>) -> Self {
        // What is left in a data directory is of one database.
        let (dir, db) = (own_dir("company"), TestDb::new().await);
        let url = nats.map(NatsServer::url);
        let mut settings = vec![
            ("PLATFORM_DATA_DIR", dir.to_str().expect("a path")),
            ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
            // A run that is taken over alive makes its call twice, and both are counted.
            ("PLATFORM_RUN_LEASE", "20s"),
            ("PLATFORM_RUN_HEARTBEAT", "2s"),
            ("PLATFORM_RUN_MAX_ATTEMPTS", "50"),
            ("PLATFORM_DEMO_PRICE", "0.123457:9.876543"),
        ];
        settings.extend(UNBOUNDED);
        settings.extend(url.as_deref().map(|url| ("PLATFORM_NATS_URL", url)));
        let settings: Vec<(String, String)> =
            settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let app = process(&db, &settings);

        let tools = tool_server(&app, server.url(), &[tool("pay", "/slow/20", &json!({"method": "POST"}))]).await;
        let handbook = document(&app, "Handbook", "# Day one", json!({})).await;
        indexed(&app, &handbook).await;
        let specialization = json!({"availableToolsGroupsUids": [tools], "knowledgeDocumentIds": [handbook]});
        let clerk =
            agent(&app, json!({"concurrentExecutionLimit": 1000, "assistantSpecialization": specialization})).await;
        let daily = |limit: usize| {
            let rule =
                |metric, limit| json!({"scope": "tenant", "metric": metric, "windowUnit": "day", "limit": limit});
            json!([rule("tokens", limit), rule("cost", 1_000_000)])
        };
        for (tier, limit, is_default) in [("pro", 1_000_000, true), ("small", QUOTA, false)] {
            let tier = json!({"tierId": tier, "name": tier, "isDefault": is_default, "rules": daily(limit)});
            assert!(app.post("/tenant-admin/tiers", tier).await.status.is_success());
        }
        for tenant in (0..TENANTS).step_by(SMALL) {
            let made = app.post("/tenants", json!({"tenantId": named(tenant), "tierId": "small"})).await;
            assert!(made.status.is_success(), "{}", made.body);
        }
        let heard =
            json!({"url": format!("{}/echo/told", server.url()), "events": ["chat.completed", "thread.finished"]});
        assert_eq!(app.post("/webhooks", heard).await.status, StatusCode::CREATED);
        let more = json!({"agentId": clerk, "rateLimitPerMinute": 600});
        let hook = trigger(&app, &server_of(&app, "webhook").await, "webhook", more).await;
        let hook = text(&hook["webhookUrl"]).strip_prefix(app.url()).expect("ours").to_owned();
        let news = FakeApp::start();
        news.set_feed(&feed(0));
        let more = json!({"agentId": clerk, "triggerConfig": {"url": format!("{}/feed", news.url())}});
        let reader = trigger(&app, &server_of(&app, "rss").await, "new_item", more).await;
        let reader = text(&reader["id"]);
        let first = format!("SELECT count(*) AS n FROM triggers WHERE id = '{reader}' AND cursor IS NOT NULL");
        eventually("the first news", async || (db.number(&first).await == 1).then_some(())).await;
        let machine = json!({"name": "Ledger", "sandboxConfig": {"snapshotEnabled": true}});
        let machine = text(&app.post("/environments", machine).await.body["_id"]);
        let made = app.post("/api-keys", json!({"name": "of the company"})).await.body;
        let (key, key_id) = (RwLock::new(text(&made["key"])), text(&made["_id"]));
        let fleet = vec![RwLock::new(app), RwLock::new(process(&db, &settings)), RwLock::new(process(&db, &settings))];
        Self { db, settings, fleet, key, key_id, clerk, hook, handbook, news, reader, machine }
    }

    /// Asks one process after the other until there is an answer; `once` has it take effect once.
    async fn ask(&self, method: Method, path: &str, once: &str, body: &Value) -> (StatusCode, Value) {
        let patience = Instant::now() + Duration::from_mins(2);
        let mut said = (StatusCode::REQUEST_TIMEOUT, Value::Null);
        for process in (once.len() + path.len()..).map(|turn| &self.fleet[turn % self.fleet.len()]) {
            assert!(Instant::now() < patience, "{method} {path}: {said:?}");
            // One that is being started anew is not waited for.
            let Ok(process) = process.try_read() else { continue };
            let request = process.anonymous(method.clone(), path).timeout(Duration::from_secs(5));
            drop(process);
            let request = request.bearer_auth(self.key.read().await.as_str());
            let request = if once.is_empty() { request } else { request.header("idempotency-key", once) };
            let request = if method == Method::GET { request } else { request.header("webhook-id", once).json(body) };
            if let Ok(answer) = request.send().await {
                let status = answer.status();
                if let Ok(body) = answer.json().await {
                    said = (status, body);
                    // In progress, rotated just now, or away: again.
                    let again = [StatusCode::CONFLICT, StatusCode::UNAUTHORIZED].contains(&status);
                    if !status.is_server_error() && !again {
                        return said;
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        unreachable!("there is always another process")
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(Method::GET, &format!("/v1{path}"), "", &Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    /// A message of a tenant, answered or refused; whether it was answered.
    async fn say(&self, tenant: usize, day: usize, number: usize) -> bool {
        let (input, output) = (100 + tenant + 7 * day, 10 + number);
        let message =
            format!("/usage {{\"inputTokens\": {input}, \"outputTokens\": {output}}}\n/delay 5ms\n/say a b c");
        let (whose, chat) = (named(tenant), format!("{}-{number}", named(tenant)));
        let body = json!({"message": message, "chatUid": chat, "tenantId": whose, "skipSummarization": true});
        let once = format!("m-{tenant}-{day}-{number}");
        let sent = self.ask(Method::POST, "/v1/assistants/default/messages?async=true", &once, &body).await;
        assert_eq!(sent.0, StatusCode::OK, "{}", sent.1);
        let chat = self.ended(&format!("/assistants/default/chats/{chat}"), is_terminal).await;
        chat["status"] == "completed"
    }

    /// A thread of a tenant's, worked or refused; whether it was worked.
    async fn work(&self, tenant: usize, day: usize) -> bool {
        let usage = json!({"inputTokens": 50 + day, "outputTokens": 5});
        let search = json!({"query": "day"});
        let message = format!("/usage {usage}\n/tool pay\n/tool pay\n/tool search_knowledge {search}\nDone");
        let body = json!({"message": message, "tenantId": named(tenant)});
        let path = format!("/v1/agents/{}/threads", self.clerk);
        let begun = self.ask(Method::POST, &path, &format!("w-{tenant}-{day}"), &body).await;
        if begun.0 == StatusCode::TOO_MANY_REQUESTS {
            return false;
        }
        assert_eq!(begun.0, StatusCode::CREATED, "{}", begun.1);
        let path = format!("/agents/threads/{}", text(&begun.1["threadId"]));
        let is_ended = |thread: &Value| thread["state"] == "completed" || thread["state"] == "limit_exceeded";
        let ended = self.ended(&path, is_ended).await;
        assert!(ended["state"] == "completed" || tenant.is_multiple_of(SMALL), "{ended:#}");
        let is_worked = ended["state"] == "completed";
        assert!(!is_worked || ended["threadContent"].to_string().contains("Handbook"), "{ended:#}");
        is_worked
    }

    async fn ended(&self, path: &str, is_at_its_end: impl Fn(&Value) -> bool) -> Value {
        let patience = Instant::now() + Duration::from_mins(2);
        loop {
            let now = self.get(path).await;
            if is_at_its_end(&now) {
                return now;
            }
            assert!(Instant::now() < patience, "{path} never ended: {now:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What a tenant does on a day; how many messages were answered, and threads worked.
    async fn day_of(&self, tenant: usize, day: usize) -> (usize, usize) {
        let mut answered = 0;
        let messages = if tenant.is_multiple_of(SMALL) { 6 } else { 1 };
        for number in 0..messages {
            answered += usize::from(self.say(tenant, day, number).await);
        }
        if tenant.is_multiple_of(SMALL) {
            // One whose process dies holds what it reserved for a while.
            assert!(answered < messages, "{} has a day's quota, not more", named(tenant));
        } else {
            assert_eq!(answered, messages);
        }
        (answered, usize::from(tenant.is_multiple_of(WITH_AGENTS) && self.work(tenant, day).await))
    }

    /// What comes from outside on a day: an event, told three times, and one of the news, which start a thread each,
    /// and another handbook.
    async fn outside(&self, day: usize) -> (usize, usize) {
        self.news.set_feed(&feed(day + 1));
        for _ in 0..3 {
            let event = self.ask(Method::POST, &self.hook, &format!("day-{day}"), &json!({"day": day})).await;
            assert_eq!(event.0, StatusCode::ACCEPTED, "{}", event.1);
        }
        let words = json!({"markdownContent": format!("# Day {day}\n\nThe word is word{day}x.")});
        let path = format!("/v1/documents/{}", self.handbook);
        assert_eq!(self.ask(Method::PATCH, &path, &format!("h-{day}"), &words).await.0, StatusCode::OK);
        (0, 2)
    }

    /// Writes the day into the ledger on the machine and saves it; whether it is told that this is saved.
    async fn enter(&self, day: usize) -> bool {
        let path = format!("/v1/environments/{}/sandbox", self.machine);
        let begun = self.ask(Method::POST, &format!("{path}/start"), "", &json!({"force": true})).await;
        assert_eq!(begun.0, StatusCode::CREATED, "{}", begun.1);
        let sandbox = &begun.1["sandboxId"];
        // Whoever asks again may have done it already.
        let line = format!("grep -qx {day} ledger || echo {day} >> ledger; head -c 4000000 /dev/urandom > noise; sync");
        let line = json!({"sandboxId": sandbox, "command": line});
        let written = self.ask(Method::POST, &format!("{path}/exec"), "", &line).await;
        let save = json!({"sandboxId": sandbox, "saveChanges": true});
        let saved = self.ask(Method::POST, &format!("{path}/stop"), "", &save).await;
        // A start that nobody waited for may have taken its place.
        let patience = Instant::now() + Duration::from_mins(2);
        loop {
            let all = self.get(&format!("/environments/{}/sessions", self.machine)).await;
            let mut open = all["sessions"].as_array().expect("sessions").iter();
            let Some(open) = open.find(|of| !of["finishedTimestampMs"].is_i64()) else { break };
            assert!(Instant::now() < patience, "{open}");
            if open["status"] == "running" {
                let stop = json!({"sandboxId": open["sandboxId"], "saveChanges": false});
                self.ask(Method::POST, &format!("{path}/stop"), "", &stop).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let ready = self.get(&format!("/environments/{}/snapshots", self.machine)).await;
        let mut ready = ready.as_array().expect("snapshots").iter().filter(|of| of["status"] == "ready");
        written.0 == StatusCode::OK
            && saved.0 == StatusCode::OK
            && ready.any(|of| of["snapshotId"] == saved.1["snapshotId"])
    }

    /// Who is killed on a day, and when; how many runs were under way then.
    async fn misfortune(&self, day: usize, runner: &mut TestRunner) -> i64 {
        let mut cut = 0;
        for kill in 0..2 {
            let pause = (50_u64..500).new_tree(runner).expect("generated").current();
            tokio::time::sleep(Duration::from_millis(pause)).await;
            cut += self.db.number("SELECT count(*) AS n FROM runs WHERE owner IS NOT NULL").await;
            self.fleet[(day + kill) % self.fleet.len()].write().await.crash();
        }
        cut
    }

    /// Everybody uses another key, and the old one is dead.
    async fn rotate(&self) {
        let mut key = self.key.write().await;
        let rotated = self.fleet[0].read().await.post(&format!("/api-keys/{}/rotate", self.key_id), json!({})).await;
        assert!(rotated.status.is_success(), "{}", rotated.body);
        let old = std::mem::replace(&mut *key, text(&rotated.body["key"]));
        drop(key);
        for process in &self.fleet {
            eventually("the old key's end", async || {
                let process = process.read().await;
                let answer = process.send(process.anonymous(Method::GET, "/v1/agents").bearer_auth(&old)).await;
                (answer.status == StatusCode::UNAUTHORIZED).then_some(())
            })
            .await;
        }
    }

    /// One process after the other is replaced by one that finds the database of an older version.
    async fn deploy(&self) {
        let down = format!("{}/../migrations/{MIGRATION}/down.sql", env!("CARGO_MANIFEST_DIR"));
        for statement in std::fs::read_to_string(down).expect("a way back").split_inclusive(';') {
            self.db.run(statement).await;
        }
        let version: String = MIGRATION.split('_').next().expect("a version").split('-').collect();
        self.db.run(&format!("DELETE FROM __diesel_schema_migrations WHERE version = '{version}'")).await;
        for place in &self.fleet {
            let next = process(&self.db, &self.settings);
            let old = std::mem::replace(&mut *place.write().await, next);
            old.signal("TERM");
            assert_eq!(old.ended().await, Some(0));
        }
    }

    /// What a tenant's chats and threads say that was spent.
    async fn spent(&self, tenant: usize) -> Spent {
        let whose = named(tenant);
        let mut spent = Vec::new();
        for number in 0..if tenant.is_multiple_of(SMALL) { 6 } else { 1 } {
            let chat = self.get(&format!("/assistants/default/chats/{whose}-{number}")).await;
            spent.push(Spent::of(&chat, "chatContent"));
        }
        let threads = self.get(&format!("/agents/{}/threads?tenantId={whose}&limit=100", self.clerk)).await;
        for thread in threads["threads"].as_array().expect("threads") {
            let thread = self.get(&format!("/agents/threads/{}", text(&thread["_id"]))).await;
            spent.push(Spent::of(&thread, "threadContent"));
        }
        Spent::all(&spent)
    }

    /// The day begins, for quotas.
    async fn set_clock(&self, day: usize) {
        set_usage_clock(&self.db, &format!("to_timestamp({} / 1000)", FIRST_DAY + day * DAY)).await;
    }
}

fn process(db: &TestDb, settings: &[(String, String)]) -> TestApp {
    let settings: Vec<_> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    TestApp::start(PROGRAM, db, &settings)
}

/// So many news, the last of them first.
fn feed(news: usize) -> String {
    let items = (0..=news).rev().map(|n| format!("<item><guid>news-{n}</guid><title>News {n}</title></item>"));
    let items: String = items.collect();
    format!("<?xml version=\"1.0\"?><rss version=\"2.0\"><channel><title>News</title>{items}</channel></rss>")
}

fn named(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

/// What each tenant spent on each day.
type Days = Vec<Vec<Spent>>;

/// What came of all days.
struct Life {
    spent: Days,
    /// Messages that were answered, and threads that were worked.
    answered: usize,
    worked: usize,
    /// Days that are in the ledger.
    entered: Vec<usize>,
}

/// Lives through all days.
async fn live(company: &Arc<Company>) -> Life {
    let (mut spent, mut books) = (vec![Vec::new(); TENANTS], [Spent::default(); TENANTS]);
    let (mut runner, mut cut, mut entered) = (TestRunner::deterministic(), 0, Vec::new());
    let (mut answered, mut worked) = (0, 0);
    for day in 0..DAYS {
        company.set_clock(day).await;
        // They go on while a process is killed and started, which blocks this task.
        let tenants: Vec<_> = (0..=TENANTS)
            .map(|tenant| {
                let company = Arc::clone(company);
                #[expect(clippy::disallowed_methods, reason = "a client of the test, not a task of the platform")]
                tokio::spawn(async move {
                    if tenant < TENANTS { company.day_of(tenant, day).await } else { company.outside(day).await }
                })
            })
            .collect();
        let ledger = Arc::clone(company);
        #[expect(clippy::disallowed_methods, reason = "a client of the test, not a task of the platform")]
        let ledger = tokio::spawn(async move { ledger.enter(day).await });
        match day {
            _ if ROTATIONS.contains(&day) => company.rotate().await,
            DEPLOY => company.deploy().await,
            _ if day.is_multiple_of(2) => cut += company.misfortune(day, &mut runner).await,
            _ => {}
        }
        for of in join_all(tenants).await {
            let of = of.expect("a good day");
            (answered, worked) = (answered + of.0, worked + of.1);
        }
        entered.extend(ledger.await.expect("a good day").then_some(day));
        let read = format!("SELECT count(*) AS n FROM trigger_events WHERE trigger_id = '{}'", company.reader);
        eventually("the news", async || {
            company.db.run("UPDATE runs SET due = now() WHERE kind = 'trigger-poll' AND owner IS NULL").await;
            (usize::try_from(company.db.number(&read).await) == Ok(day + 1)).then_some(())
        })
        .await;
        let open = "SELECT (SELECT count(*) FROM trigger_events WHERE outcome IS NULL)
            + (SELECT count(*) FROM threads WHERE state NOT IN ('completed', 'limit_exceeded')) AS n";
        eventually("the end of the day", async || (company.db.number(open).await == 0).then_some(())).await;
        for (tenant, (days, whole)) in spent.iter_mut().zip(&mut books).enumerate() {
            let now = company.spent(tenant).await;
            days.push(now.without(*whole));
            *whole = now;
        }
    }
    assert!(cut > 0, "no kill met work");
    company.set_clock(DAYS).await;
    Life { spent, answered, worked, entered }
}

/// What is said of a tenant is what its chats and threads took, on each day.
async fn balances(company: &Company, tenant: usize, days: &[Spent]) {
    let whose = named(tenant);
    let served: Vec<_> = days.iter().enumerate().filter(|(_, spent)| spent.tokens() > 0).collect();
    let stats = company.get(&format!("/tenants/{whose}/stats")).await;
    assert_eq!(Spent::sum(&stats["cost"]), Spent::all(days), "{whose}: its sum");
    let costs = company.get(&format!("/tenants/{whose}/costs?from=2026-01-01&to=2026-01-31")).await;
    let costs = costs.as_array().expect("days").iter().map(Spent::sum).filter(|day| day.tokens() > 0);
    assert_eq!(costs.collect::<Vec<_>>(), served.iter().map(|(_, spent)| **spent).collect::<Vec<_>>(), "{whose}");
    let history = async |metric: &str| {
        let path = format!("/tenant-usage/{whose}/history?metric={metric}&windowUnit=day&limit=1000");
        eventually("the history", async || {
            let rows = company.get(&path).await.as_array().expect("rows").clone();
            (rows.len() == served.len()).then_some(rows)
        })
        .await
    };
    let (tokens, money) = (history("tokens").await, history("cost").await);
    for ((row, paid), (day, spent)) in tokens.iter().zip(&money).zip(served.iter().rev()) {
        let window = json!((FIRST_DAY + day * DAY) / DAY * DAY);
        assert_eq!((&row["windowStart"], &paid["windowStart"]), (&window, &window), "{whose}: {day}");
        let consumed = (&row["consumption"], nanos(&paid["consumption"]));
        assert_eq!(consumed, (&json!(spent.tokens()), spent.nanos), "{whose}: {day}");
    }
}

/// All threads, each with whether it completed and what it took.
async fn threads(company: &Company) -> BTreeMap<String, (bool, Spent)> {
    let mut threads = BTreeMap::new();
    for skip in (0..).step_by(100) {
        let page = company.get(&format!("/agents/{}/threads?limit=100&skip={skip}", company.clerk)).await;
        let page = page["threads"].as_array().expect("threads");
        for thread in page {
            let thread = company.get(&format!("/agents/threads/{}", text(&thread["_id"]))).await;
            let of = (thread["state"] == "completed", Spent::of(&thread, "threadContent"));
            threads.insert(text(&thread["_id"]), of);
        }
        if page.len() < 100 {
            break;
        }
    }
    threads
}

/// Whoever listens is told of every answer and every thread, under one id each.
async fn told(company: &Company, server: &FakeToolServer, answers: usize, threads: usize) -> BTreeMap<String, Value> {
    company.db.run("UPDATE webhook_deliveries SET next_ms = 0 WHERE status = 'pending'").await;
    eventually("all that is told", async || {
        let mut told = BTreeMap::<String, Value>::new();
        for request in server.recorded().iter().filter(|request| request.path == "/echo/told") {
            told.insert(request.header("webhook-id").to_owned(), request.json());
        }
        let chats = told.values().filter(|event| event["type"] == "chat.completed").count();
        (chats == answers && told.len() - chats == threads).then_some(told)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_books_of_a_company_balance_after_ten_days_of_kills_a_rotated_key_and_a_deploy() {
    let (server, nats) = (FakeToolServer::start(), NatsServer::start());
    let company = Arc::new(Company::found(&server, nats.as_ref()).await);
    let Life { spent, answered, worked, entered } = live(&company).await;
    for (tenant, days) in spent.iter().enumerate() {
        balances(&company, tenant, days).await;
    }
    let most = spent.iter().step_by(SMALL).flatten().map(|spent| spent.tokens()).max();
    assert!(most.is_some_and(|most| most > 500), "quotas were spent: {most:?}");
    for days in spent.iter().step_by(SMALL) {
        // What a process held that died may be a day's quota.
        let served = days.iter().filter(|day| day.tokens() > 0).count();
        assert!(served > DAYS / 2, "quotas begin anew each day: {days:?}");
    }

    let threads = threads(&company).await;
    assert_eq!(threads.values().filter(|(completed, _)| *completed).count(), worked, "one for each that was begun");
    let months = company.get(&format!("/agents/agents/{}/costs/monthly", company.clerk)).await;
    let months: Vec<_> = months.as_array().expect("months").iter().map(Spent::sum).collect();
    let taken: Vec<_> = threads.values().map(|(_, spent)| *spent).collect();
    assert_eq!(Spent::all(&months), Spent::all(&taken), "what the agent took");

    let told = told(&company, &server, answered, threads.len()).await;
    let mut chats = BTreeMap::<String, [i64; 2]>::new();
    for data in told.values().filter(|event| event["type"] == "chat.completed").map(|event| &event["data"]) {
        let so_far = ["inputTokens", "outputTokens"].map(|of| data["tokenUsage"][of].as_i64().expect("tokens"));
        let known = chats.entry(text(&data["chatUID"])).or_default();
        *known = [known[0].max(so_far[0]), known[1].max(so_far[1])];
    }
    for (chat, told) in &chats {
        let chat = company.get(&format!("/assistants/default/chats/{chat}")).await;
        let spent = Spent::of(&chat, "chatContent");
        assert_eq!(*told, [spent.input, spent.output], "what was told of a chat: {}", chat["tokenUsage"]);
    }
    let finished = told.values().filter(|event| event["type"] == "thread.finished").map(|event| &event["data"]);
    let finished = finished.map(|data| (text(&data["threadId"]), &data["tokenUsage"]));
    let finished: BTreeMap<_, _> = finished.collect();
    for (thread, (_, spent)) in &threads {
        let usage = finished[thread];
        assert_eq!((&usage["inputTokens"], &usage["outputTokens"]), (&json!(spent.input), &json!(spent.output)));
    }
    let payments: Vec<_> = server.recorded().into_iter().filter(|request| request.path == "/slow/20").collect();
    let keys: BTreeSet<_> = payments.iter().map(|request| request.header("idempotency-key").to_owned()).collect();
    assert_eq!(keys.len(), payments.len(), "nothing is paid twice");
    let query = json!({"query": format!("word{}x", DAYS - 1)});
    let found = eventually("the last handbook", async || {
        let found = company.ask(Method::POST, "/v1/documents/search", "", &query).await.1;
        found["results"].as_array().filter(|found| !found.is_empty()).cloned()
    })
    .await;
    assert_eq!(found[0]["documentId"], json!(company.handbook));

    let path = format!("/v1/environments/{}/sandbox", company.machine);
    let sandbox = company.ask(Method::POST, &format!("{path}/start"), "", &json!({})).await.1["sandboxId"].clone();
    let ledger = json!({"sandboxId": sandbox, "command": "cat ledger"});
    let ledger = company.ask(Method::POST, &format!("{path}/exec"), "", &ledger).await.1;
    let days: Vec<usize> = text(&ledger["stdout"]).lines().map(|day| day.parse().expect("a day")).collect();
    assert!(entered.len() >= DAYS / 2, "{entered:?}");
    assert!(entered.iter().all(|day| days.contains(day)) && days.is_sorted_by(|a, b| a < b), "{entered:?}: {days:?}");
}
