//! What a client can make the platform do, and how much of it: attackers of one account, and everybody else.

use std::{
    fs::File,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use platform_testing::{Ending, FakeMcpServer, FakeModelServer, FakeToolServer, Reply, Script, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::{
    mcp_gateway::{exposed, profile},
    support::{
        PROGRAM, UNBOUNDED, agent, app_with, app_with_tools, eventually, factor, other_account, peak_memory, say, text,
        thread, thread_until, tool, tool_server,
    },
    triggers::{hook, hooked, outcomes},
    uploads::upload,
};

/// Expressions that are stuck, or grow, most of them in native code that looks at no clock.
const EXPRESSIONS: &[&str] = &[
    "(() => { while (true) {} })()",
    "(() => { try { while (true) {} } catch { } finally { while (true) {} } })()",
    "(function f() { return f(); })()",
    "'x'.repeat(2 ** 28)",
    "Array(2 ** 28).fill('x')",
    "[...Array(1e9).keys()]",
    "/^(a+)+$/.test('a'.repeat(40) + '!')",
    "Array.prototype.indexOf.call({length: 2 ** 53 - 1}, 1)",
    "Array.prototype.includes.call({length: 2 ** 53 - 1}, 1)",
    "Array.prototype.join.call({length: 2 ** 32 - 2})",
    "Array.prototype.fill.call({length: 2 ** 53 - 1}, 1)",
    "Array.prototype.reverse.call({length: 2 ** 53 - 1})",
    "Array.prototype.lastIndexOf.call({length: 2 ** 53 - 1}, 1)",
    "Array.prototype.copyWithin.call({length: 2 ** 53 - 1}, 2 ** 30, 0)",
    "Array.prototype.findLast.call({length: 2 ** 53 - 1}, () => false)",
    "Array.prototype.flat.call({length: 2 ** 53 - 1})",
    "Array.prototype.splice.call({length: 2 ** 53 - 1}, 0, 1)",
    "Array.prototype.sort.call({length: 2 ** 32 - 2})",
    "Array.prototype.concat.call([], (() => { const a = []; a.length = 2 ** 32 - 1; return a; })())",
    "(() => { const a = []; a.length = 2 ** 32 - 1; return a.indexOf(1); })()",
    "(() => { const a = []; a.length = 2 ** 32 - 1; return a; })()",
    "JSON.stringify((() => { const a = []; a.length = 2 ** 32 - 1; return a; })())",
    "2n ** (2n ** 40n)",
    "(() => { let n = 3n; for (;;) n = n * n; })()",
    "(() => { let s = 'x'; for (;;) s += s; })()",
    "(() => { const a = []; for (;;) a.push({}); })()",
    "'a'.padEnd(2 ** 29, 'b')",
    "'a'.repeat(5e6).split('').map((x) => x + x).join('').length",
    "new Proxy({}, {ownKeys() { for (;;) {} }})",
    "(async () => { for (;;) {} })()",
    "new Int8Array(2 ** 30)",
    "String.fromCharCode.apply(null, {length: 2 ** 30})",
    "Math.max.apply(null, {length: 2 ** 32})",
    "Reflect.apply(Math.max, null, {length: 2 ** 53 - 1})",
    "Object.assign({}, 'x'.repeat(5e6))",
    "JSON.parse('['.repeat(1e6))",
    "new RegExp('('.repeat(1e5))",
    "'x'.repeat(1e6).replaceAll('x', 'y'.repeat(1e3))",
    "eval('for (;;) {}')",
    "Array.from({length: 2 ** 53 - 1})",
    "(() => { const a = Array(2e5).fill('x'); for (;;) a.indexOf('y'); })()",
    "(() => { const a = []; a.length = 2e5; for (;;) a.join(); })()",
    "(() => { const s = 'x'.repeat(4e6); for (;;) s.indexOf('y'); })()",
    "(() => { const s = 'x'.repeat(4e6); for (;;) (s + 'y')[7]; })()",
    "(() => { const o = {}; for (let i = 0; i < 1e5; i++) o['k' + i] = i; for (;;) Object.keys(o); })()",
    "(() => { const s = JSON.stringify(Array(1e5).fill(1)); for (;;) JSON.parse(s); })()",
    "(() => { const a = Array(2e5).fill(1); for (;;) a.slice().sort(); })()",
    "(() => { const a = Array(2e5).fill(1); for (;;) [...a]; })()",
    "(() => { const a = Array(2e5).fill(1); for (;;) `${a}`; })()",
    "(() => { const a = Array(2e5).fill(1); for (;;) a == 'x'; })()",
    "(() => { for (;;) /(x+x+)+y/.test('x'.repeat(30)); })()",
    "(() => {}).constructor('for (;;) {}')()",
    "[].constructor.constructor('return 1')()",
    "(() => { const s = new Set(Array(1e5).keys()); for (;;) new Set(s); })()",
    "'x'.repeat(4e6).normalize('NFKD')",
    "(() => { const o = {}; for (let i = 0; i < 1e5; i++) o['k' + i] = i; for (;;) ({...o}); })()",
    "(() => { const s = ' '.repeat(4e6) + '1'; for (;;) Number(s); })()",
    "(() => { const s = '1'.repeat(4e6); for (;;) parseInt(s); })()",
    "(() => { const s = 'ä'.repeat(1e6); for (;;) encodeURIComponent(s); })()",
    "(() => { const s = 'k'.repeat(4e6); for (;;) ({[s]: 1})[s]; })()",
];

/// Texts that close the brackets they are read in and go on with a statement of their own.
const BROKEN_OUT: [&str; 4] = [
    "1 ); }), (() => { for (;;) {} })(), (function () { return (1",
    "1 ]; }), (() => { for (;;) {} })(), (function () { return [1",
    "1 ); (() => { for (;;) {} })(); (1",
    "1; for (;;) {}",
];

/// A body that a tool computes with an expression.
fn computing(expression: &str) -> Value {
    tool("run", "/echo", &json!({"method": "POST", "bodyMode": "advanced", "bodyJsonTemplate": expression}))
}

/// How long the threads of a process, and the one that asks, have waited for a CPU that others had.
struct Waits(Vec<File>);

impl Waits {
    fn of(pid: u32) -> Self {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let own = PathBuf::from("/proc/thread-self/schedstat");
        let files = threads.map(|thread| thread.path().join("schedstat")).chain([own]);
        Self(files.filter_map(|file| File::open(file).ok()).collect())
    }

    /// Of each thread; the second number of `schedstat`, in nanoseconds.
    fn now(&self) -> Vec<u64> {
        let waited = |file: &File| {
            let mut text = [0; 128];
            let length = file.read_at(&mut text, 0).unwrap_or_default();
            let text = String::from_utf8_lossy(&text[..length]);
            text.split(' ').nth(1).and_then(|waited| waited.parse().ok()).unwrap_or_default()
        };
        self.0.iter().map(waited).collect()
    }

    /// The longest of a thread of the process, and of the one that asks.
    fn since(&self, before: &[u64]) -> Duration {
        let mut waited: Vec<u64> =
            self.now().iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect();
        let own = waited.pop().unwrap_or_default();
        Duration::from_nanos(own + waited.into_iter().max().unwrap_or_default())
    }
}

/// Sends a request from a thread of its own, which waits for nothing else, until it is dropped; how long each answer
/// took, without the time in which the machine was busy with something else.
pub struct Probe {
    over: Arc<AtomicBool>,
    asking: JoinHandle<Vec<Duration>>,
}

impl Probe {
    pub fn start(app: &TestApp, route: &str, key: &str, body: &Value) -> Self {
        let (address, body) = (app.url().trim_start_matches("http://").to_owned(), body.to_string());
        let request = format!(
            "{route} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: \
             close\r\n\r\n{body}",
            body.len()
        );
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let ask = move || {
            let began = Instant::now();
            let mut connection = TcpStream::connect(&address).expect("a connection");
            connection.write_all(request.as_bytes()).expect("sent");
            let mut answer = String::new();
            connection.read_to_string(&mut answer).expect("an answer");
            (answer, began.elapsed())
        };
        let pid = app.pid();
        let asking = std::thread::spawn(move || {
            let waits = Waits::of(pid);
            let ask = || {
                let before = waits.now();
                let (answer, took) = ask();
                let waited = waits.since(&before);
                // A machine that is busy for long with something else may have it refused for a moment.
                let is_refused = answer.starts_with("HTTP/1.1 503") && waited > Duration::from_secs(1);
                assert!(
                    answer.starts_with("HTTP/1.1 200") || is_refused,
                    "{answer} after {took:?}, {waited:?} of them idle"
                );
                took.saturating_sub(waited)
            };
            let mut took = vec![ask()];
            while !until.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                took.push(ask());
            }
            took
        });
        Self { over, asking }
    }

    /// The shortest first.
    pub fn end(self) -> Vec<Duration> {
        self.over.store(true, Ordering::Relaxed);
        let mut took = self.asking.join().expect("answers");
        took.sort_unstable();
        took
    }
}

/// Has health asked again and again while something is under way; the longest it took.
pub async fn longest_stall<T>(app: &TestApp, meanwhile: impl Future<Output = T>) -> (T, Duration) {
    let probe = Probe::start(app, "GET /v1/health", "none", &json!({}));
    let outcome = meanwhile.await;
    (outcome, probe.end().pop().unwrap_or_default())
}

/// Nobody waits so long for a look at health.
pub const STALL: Duration = Duration::from_secs(1);

/// Each of these tests takes all the processors it gets: of more than two at once none would be told apart from the others.
pub static TURNS: Semaphore = Semaphore::const_new(2);

#[tokio::test]
async fn an_expression_that_is_stuck_in_native_code_ends_and_stops_nobody() {
    let _turn = TURNS.acquire().await;
    let (app, server, _db) = app_with_tools(&UNBOUNDED).await;
    let tools: Vec<Value> = EXPRESSIONS
        .iter()
        .enumerate()
        .map(|(i, expression)| {
            let mut tool = computing(expression);
            tool["function"]["name"] = json!(format!("run_{i}"));
            tool
        })
        .collect();
    let id = tool_server(&app, server.url(), &tools).await;
    let run = async |i: usize| {
        let began = Instant::now();
        let ran = app.post(&format!("/tool-servers/{id}/tools/run_{i}/test"), json!({"parameters": {}})).await;
        (i, ran, began.elapsed())
    };
    let (all, stall) = longest_stall(&app, async {
        let mut all = Vec::new();
        for i in 0..EXPRESSIONS.len() {
            all.push(run(i).await);
        }
        all
    })
    .await;
    for (i, ran, took) in all {
        assert_eq!(ran.status, StatusCode::OK, "{}: {}", EXPRESSIONS[i], ran.body);
        assert!(took < Duration::from_secs(5), "{} took {took:?}: {}", EXPRESSIONS[i], ran.body);
        let said = ran.body["error"].as_str().unwrap_or_default();
        let good = ran.body["success"] == true || said.starts_with("TEMPLATE_ERROR");
        assert!(good, "{}: {}", EXPRESSIONS[i], ran.body);
    }
    assert!(stall < STALL, "health took {stall:?}");
    assert!(peak_memory(&app) < 300, "{} MiB", peak_memory(&app));
}

#[tokio::test]
async fn an_account_that_fills_its_places_for_expressions_delays_no_other() {
    let _turn = TURNS.acquire().await;
    let (app, server, db) = app_with_tools(&UNBOUNDED).await;
    let stuck =
        tool_server(&app, server.url(), &[computing("(() => { const s = '1'.repeat(4e6); for (;;) parseInt(s); })()")])
            .await;
    let other = other_account(&db).await;
    let theirs = json!({"name": "T", "url": server.url(), "toolDefinitions": [computing("{sum: 1 + 1}")]});
    let made = app.send(as_account(&app, &other, Method::POST, "/tool-servers").json(&theirs)).await;
    let path = format!("/tool-servers/{}/tools/run/test", text(&made.body["_id"]));
    let run = format!("/tool-servers/{stuck}/tools/run/test");
    let attack = join_all((0..40).map(|_| app.post(&run, json!({}))));
    let served = async {
        let mut longest = Duration::ZERO;
        for _ in 0..10 {
            let began = Instant::now();
            let ran = app.send(as_account(&app, &other, Method::POST, &path).json(&json!({}))).await;
            assert_eq!(ran.body["success"], true, "{}", ran.body);
            longest = longest.max(began.elapsed());
        }
        longest
    };
    tokio::pin!(attack);
    let longest = tokio::select! { longest = served => longest, _ = &mut attack => panic!("forty stuck expressions take longer") };
    assert!(longest < STALL, "{longest:?}");
}

#[tokio::test]
async fn a_template_is_read_when_it_is_saved_and_never_run() {
    let _turn = TURNS.acquire().await;
    let app = app_with(&UNBOUNDED).await;
    let id = tool_server(&app, "https://shop.example", &[]).await;
    let save = async |template: &str| {
        let began = Instant::now();
        let saved = app.post(&format!("/tool-servers/{id}/tools"), computing(template)).await;
        (saved, began.elapsed())
    };
    for template in BROKEN_OUT {
        let (saved, took) = save(template).await;
        assert_eq!(saved.error(), "TEMPLATE_ERROR", "{template}: {}", saved.body);
        assert!(took < Duration::from_secs(2), "{template} took {took:?}");
    }
    // Sixty of them at once hold no connection to the database that others wait for.
    let (all, stall) = longest_stall(&app, async {
        let attack = join_all((0..60).map(|i| save(BROKEN_OUT[i % BROKEN_OUT.len()])));
        let (all, said) = tokio::join!(attack, say(&app, "Hello"));
        assert_eq!(said.status, StatusCode::OK, "{}", said.body);
        all
    })
    .await;
    assert!(all.iter().all(|(saved, _)| saved.error() == "TEMPLATE_ERROR"));
    assert!(stall < STALL, "health took {stall:?}");
    assert_eq!(save("(() => { for (;;) {} })()").await.0.status, StatusCode::CREATED, "it is an expression");
    let patch = json!({"bodyJsonTemplate": BROKEN_OUT[0]});
    assert_eq!(app.patch(&format!("/tool-servers/{id}/tools/run"), patch).await.error(), "TEMPLATE_ERROR");
}

/// Descriptions that are small and stand for much.
fn descriptions() -> Vec<(&'static str, String)> {
    let level = |n: usize| format!("l{n}: &l{n} [*l{0}, *l{0}, *l{0}, *l{0}]\n", n - 1);
    let levels = (1..30).map(level).collect::<Vec<_>>().concat();
    let aliases = format!("l0: &l0 [x, x, x, x]\n{levels}openapi: 3.0.0\npaths: {{}}\n");
    let once = "x: &x {type: object}\nopenapi: 3.0.0\npaths: {}\nservers: [{url: 'https://a.example'}]\ny: *x\n";
    let wide: String = "*a, ".repeat(250_000);
    let wide = format!("a: &a [{}]\nopenapi: 3.0.0\nb: [{wide}]\n", "x, ".repeat(1000));
    let text = "x".repeat(20_000);
    let parameters: Vec<Value> = (0..10_000).map(|_| json!({"$ref": "#/components/parameters/p"})).collect();
    let operations: serde_json::Map<String, Value> =
        (0..40).map(|n| (format!("/p{n}"), json!({"$ref": "#/components/pathItems/all"}))).collect();
    let references = json!({"openapi": "3.1.0", "servers": [{"url": "https://a.example"}], "paths": operations,
    "components": {
        "pathItems": {"all": {"parameters": parameters, "get": {}, "post": {}, "put": {}}},
        "parameters": {"p": {"name": "p", "in": "query", "schema": {"$ref": "#/components/schemas/s"}}},
        "schemas": {
            "s": {"type": "object", "properties": (0..60).map(|n| (format!("f{n}"), json!({"$ref": "#/components/schemas/t"}))).collect::<serde_json::Map<_, _>>()},
            "t": {"type": "object", "description": text, "properties": (0..60).map(|n| (format!("f{n}"), json!({"$ref": "#/components/schemas/u"}))).collect::<serde_json::Map<_, _>>()},
            "u": {"type": "string", "description": text},
        },
    }});
    vec![
        ("aliases of aliases", aliases),
        ("one alias", once.to_owned()),
        ("many aliases", wide),
        ("references", references.to_string()),
    ]
}

#[tokio::test]
async fn a_description_that_stands_for_gigabytes_costs_a_child_process_and_nobody_else() {
    let _turn = TURNS.acquire().await;
    let app = app_with(&UNBOUNDED).await;
    for (what, spec) in descriptions() {
        let import = app.post("/tool-servers/import-openapi", json!({"spec": spec}));
        let (made, stall) = longest_stall(&app, import).await;
        if what == "references" {
            assert!(made.status == StatusCode::CREATED || made.error() == "VALIDATION_ERROR", "{what}: {}", made.body);
            assert!(made.body.to_string().len() < 40 << 20, "{what}");
        } else {
            assert_eq!(made.error(), "VALIDATION_ERROR", "{what}: {}", made.body);
            assert!(made.body["message"].as_str().is_some_and(|said| said.contains("alias")), "{what}: {}", made.body);
        }
        assert!(stall < STALL, "{what}: health took {stall:?}");
    }
    assert!(peak_memory(&app) < 300, "{} MiB", peak_memory(&app));
}

/// Schemas whose patterns or references take long to compile or to match.
fn schemas() -> [Value; 4] {
    let patterns = |count: usize, of: &dyn Fn(usize) -> String| {
        (0..count).map(|n| (of(n), json!({}))).collect::<serde_json::Map<_, _>>()
    };
    let both = json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]});
    [
        json!({"type": "object", "patternProperties": patterns(3000, &|n| format!("\\w{{{n}}}"))}),
        json!({"type": "object", "patternProperties": patterns(100, &|n| format!("(\\w{{1,{}}}x){{10}}", n % 50 + 1))}),
        json!({"type": "object", "properties": (0..3000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>()}),
        json!({"type": "object", "properties": {"a": both.clone(), "b": {"type": "integer"}}, "required": ["b"]}),
    ]
}

/// A value that an exponential schema looks at twice for each of its levels.
fn deep() -> Value {
    (0..50).fold(json!({"b": "x"}), |value, _| json!({"a": value, "b": 1}))
}

#[tokio::test]
async fn schemas_of_a_client_are_compiled_and_matched_where_they_stop_nobody() {
    let _turn = TURNS.acquire().await;
    let (app, server, _db) = app_with_tools(&UNBOUNDED).await;
    let client_tools = |schema: &Value| {
        let tool = |n| json!({"type": "function", "function": {"name": format!("t{n}"), "parameters": schema}});
        json!({"message": "Hello", "tools": (0..20).map(tool).collect::<Vec<_>>()})
    };
    let mut answers = Vec::new();
    for schema in &schemas() {
        let send = app.post("/assistants/default/messages", client_tools(schema));
        let (sent, stall) = longest_stall(&app, send).await;
        assert!(stall < STALL, "health took {stall:?}");
        assert!(sent.status == StatusCode::OK || sent.error() == "INVALID_TOOL_DEFINITION", "{}", sent.body);
        answers.push(sent.error().to_owned());
    }
    assert_eq!(answers[0], "INVALID_TOOL_DEFINITION", "each name of patternProperties counts as a pattern");
    assert_eq!(answers[2], "INVALID_TOOL_DEFINITION", "more nodes than a schema may have");

    let id =
        tool_server(&app, server.url(), &[tool("deep", "/echo", &json!({"function": {"parameters": schemas()[3]}}))])
            .await;
    let path = format!("/tool-servers/{id}/tools/deep/test");
    let calls = (0..4).map(|_| app.post(&path, json!({"parameters": deep()})));
    let (called, stall) = longest_stall(&app, join_all(calls)).await;
    assert!(
        called.iter().all(|called| called.body["error"].as_str().is_some_and(|said| said.contains("in time"))),
        "{:?}",
        called[0].body
    );
    assert!(stall < STALL, "health took {stall:?}");

    let output = json!({"name": "O", "identifier": "deep", "structuredOutput": {"schema": schemas()[1]}});
    let (_, stall) = longest_stall(&app, app.post("/assistants", output)).await;
    assert!(stall < STALL, "health took {stall:?}");
}

/// Patterns that a linear engine can only follow step by step, at the bound of their compiled size.
fn patterns() -> Value {
    let patterns: Vec<String> = (0..20).map(|n| format!("(?:[a-z]{{1,60}}[a-y]){{1,{}}}\\d", 20 + n)).collect();
    json!([{"name": "slow", "kind": "regex", "action": "block", "config": {"patterns": patterns}}])
}

#[tokio::test]
async fn patterns_that_are_slow_over_a_message_block_it_and_stop_nobody() {
    let _turn = TURNS.acquire().await;
    let app = app_with(&UNBOUNDED).await;
    let rules = json!({"enabled": true, "input": patterns(), "blockMessage": "No."});
    let assistant = json!({"name": "G", "identifier": "slow", "guardrailsConfiguration": rules});
    let (made, stall) = longest_stall(&app, app.post("/assistants", assistant)).await;
    assert!(stall < STALL, "health took {stall:?}");
    if made.status != StatusCode::CREATED {
        assert_eq!(made.error(), "INVALID_GUARDRAIL", "{}", made.body);
    }
    let message = json!({"message": "abcdefghij".repeat(400)});
    let sends = (0..4).map(|_| app.post("/assistants/slow/messages", message.clone()));
    let (sent, stall) = longest_stall(&app, join_all(sends)).await;
    for sent in &sent {
        // On a busy machine some wait too long for a process that follows patterns, and are told so.
        let expected = match made.status {
            StatusCode::CREATED => [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE],
            _ => [StatusCode::NOT_FOUND; 2],
        };
        assert!(expected.contains(&sent.status), "{}: {}", sent.status, sent.body);
    }
    assert!(stall < STALL, "health took {stall:?}");
    let agent = agent(&app, json!({"assistantSpecialization": {"guardrailsConfiguration": {"enabled": true,
        "input": [{"name": "r", "kind": "regex", "action": "block", "config": {"patterns": ["(a|aa)+$", "secret"]}}]}}})).await;
    let started = thread(&app, &agent, "tell the secret").await;
    thread_until(&app, &started, |thread| thread["state"] == "guardrail_trigger").await;
}

#[tokio::test]
async fn json_of_very_many_values_takes_a_bounded_memory_whoever_sends_it() {
    let _turn = TURNS.acquire().await;
    let tool = tool("list", "/list/1200000", &json!({}));
    let (app, server, _db) = app_with_tools(&UNBOUNDED).await;
    let id = tool_server(&app, server.url(), &[tool]).await;
    let document = app.post("/documents", json!({"name": "d", "markdownContent": "# D"})).await.body;
    let document = format!("/documents/{}", text(&document["_id"]));
    for (method, path, values) in [
        (Method::PATCH, document.as_str(), 1_000_000),
        (Method::POST, "/assistants/default/messages", 200_000),
        (Method::POST, "/memory/assistants/default/core?tenantId=t", 200_000),
        (Method::POST, "/tenant-admin/t/add-usage", 200_000),
    ] {
        let wide = format!(r#"{{"name": "d", "message": "Hi", "junk": [{}0]}}"#, r#"{"a":0},"#.repeat(values));
        let sent = app.request(method, path).header("content-type", "application/json").body(wide);
        let sent = app.send(sent).await;
        assert_eq!((sent.status, sent.error()), (StatusCode::BAD_REQUEST, "INVALID_JSON"), "{path}: {}", sent.body);
        assert!(sent.body["message"].as_str().is_some_and(|said| said.contains("too many values")), "{}", sent.body);
    }
    // What a tool answers is then text, of which a model is shown a part.
    let ran = app.post(&format!("/tool-servers/{id}/tools/list/test"), json!({})).await;
    assert_eq!((&ran.body["success"], &ran.body["data"]["truncated"]), (&json!(true), &json!(true)));
    let mcp = FakeMcpServer::start();
    mcp.set_tools(&["echo", "wide"]);
    let id = exposed(&app, "wide", &mcp, json!({})).await;
    let call = async |tool: &str| {
        app.post(&format!("/tool-servers/{id}/tools/{tool}/test"), json!({"parameters": {}})).await.body
    };
    assert_eq!(call("echo").await["success"], true);
    let refused = call("wide").await;
    assert!(text(&refused["error"]).contains("too many values"), "{refused}");
    // The server may have given up the connection meanwhile.
    eventually("it is used again", async || (call("echo").await["success"] == true).then_some(())).await;
    assert!(peak_memory(&app) < 300, "{} MiB", peak_memory(&app));
}

#[tokio::test]
async fn what_is_remembered_of_large_records_has_a_bound_in_bytes() {
    let _turn = TURNS.acquire().await;
    let app = app_with(&UNBOUNDED).await;
    let properties = |count: usize| {
        (0..count).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>()
    };
    let parameters = json!({"function": {"parameters": {"type": "object", "properties": properties(60)}}});
    let tools: Vec<Value> = (0..200).map(|n| tool(&format!("t{n}"), "/x", &parameters)).collect();
    for n in 0..30 {
        let server = json!({"name": format!("s{n}"), "url": "https://a.example", "toolDefinitions": tools});
        assert_eq!(app.post("/tool-servers", server).await.status, StatusCode::CREATED);
    }
    for _ in 0..2 {
        assert_eq!(app.get("/tool-groups").await.status, StatusCode::OK);
    }
    let schema = json!({"type": "object", "properties": properties(1900)});
    let output = json!({"enabled": true, "schema": schema});
    for n in 0..30 {
        let name = format!("a{n}");
        let made = json!({"name": name, "identifier": name, "structuredOutput": output});
        assert_eq!(app.post("/assistants", made).await.status, StatusCode::CREATED);
        app.post(&format!("/assistants/{name}/messages"), json!({"message": "Hi"})).await;
        let id = agent(&app, json!({"assistantSpecialization": {"structuredOutput": output}})).await;
        thread(&app, &id, "Hi").await;
    }
    assert!(peak_memory(&app) < 450, "{} MiB", peak_memory(&app));
}

#[tokio::test]
async fn tools_of_mcp_servers_take_a_bounded_memory_however_many_ask_for_them() {
    let _turn = TURNS.acquire().await;
    let (app, _, _db) = app_with_tools(&UNBOUNDED).await;
    let mcp = FakeMcpServer::start();
    let filled = |name: String, description: String, count: usize| {
        let default: Vec<Value> = (0..count).map(|_| json!({"": 0})).collect();
        json!({"name": name, "description": description, "inputSchema": {"type": "object", "default": default}})
    };
    let heavy = (0..4).map(|n| filled(format!("heavy{n}"), String::new(), 8_000));
    let long = (0..8).map(|n| filled(format!("long{n}"), "x".repeat(60_000), 0));
    mcp.describe(heavy.chain(long).chain([filled("wide".to_owned(), String::new(), 1_500)]).collect());
    let mut servers = Vec::new();
    for n in 0..6 {
        servers.push(json!({"toolServerId": exposed(&app, &format!("s{n}"), &mcp, json!({})).await}));
    }
    profile(&app, json!({"name": "P", "slug": "p", "servers": servers})).await;
    let list = async |cursor: Option<&str>| {
        let asked = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": cursor}});
        let answer = app.post("/mcp/p", asked).await;
        assert!(answer.body.to_string().len() < 1_100_000, "a page has its bytes");
        answer.body["result"].clone()
    };
    let (mut names, mut cursor) = (Vec::new(), None);
    loop {
        let page = list(cursor.as_deref()).await;
        names.extend(page["tools"].as_array().expect("tools").iter().map(|tool| text(&tool["name"])));
        cursor = page["nextCursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    let of_one = ["heavy0".to_owned()].into_iter().chain((0..8).map(|n| format!("long{n}"))).chain(["wide".to_owned()]);
    let expected: Vec<String> =
        (0..6).flat_map(|server| of_one.clone().map(move |tool| format!("s{server}__{tool}"))).collect();
    assert_eq!(names, expected, "what has no room is left out");
    // Everybody who watches is told of one change, and asks again.
    let watchers =
        join_all((0..40).map(|_| app.send(app.request(Method::GET, "/mcp/p").header("accept", "text/event-stream"))));
    let told = async {
        mcp.set_tools(&["echo"]);
        let id = text(&servers[0]["toolServerId"]);
        assert_eq!(app.post(&format!("/mcp-gateway/servers/{id}/refresh"), json!({})).await.status, StatusCode::OK);
    };
    tokio::select! { _ = watchers => {} () = told => {} }
    join_all((0..24).map(|_| list(None))).await;
    assert!(peak_memory(&app) < 300, "{} MiB", peak_memory(&app));
}

#[tokio::test]
async fn events_and_bodies_of_very_many_values_are_taken_a_few_at_a_time() {
    let _turn = TURNS.acquire().await;
    let (app, _, _db) = app_with_tools(&UNBOUNDED).await;
    let (path, url) = hooked(&app, json!({"messageTemplate": "{{data.n}}"})).await;
    let (key, nothing) = (app.key().to_owned(), json!({}));
    let health = Probe::start(&app, "GET /v1/health", &key, &nothing);
    let sent = (0..48).map(|n| {
        let body = format!(r#"{{"n": {n}, "t": [{}0]}}"#, r#"{"":0},"#.repeat(40_000));
        app.send(app.anonymous(Method::POST, &url).body(body))
    });
    let replies = join_all(sent).await;
    assert!(replies.iter().all(|reply| reply.status == StatusCode::ACCEPTED), "each is taken in its turn");
    let carried_out = outcomes(&app, &path, 48).await;
    assert!(carried_out.iter().all(|event| event["outcome"] == "executed"), "{carried_out:?}");
    let stall = health.end().into_iter().max().expect("answers");
    assert!(stall < STALL, "health took {stall:?}");
    assert!(peak_memory(&app) < 400, "{} MiB", peak_memory(&app));
}

#[tokio::test]
async fn files_answers_and_bodies_that_are_held_at_once_have_a_bound_in_bytes() {
    let _turn = TURNS.acquire().await;
    let (app, server, _db) = app_with_tools(&UNBOUNDED).await;
    let computed =
        json!({"responsePostProcessingEnabled": true, "responsePostProcessingTemplate": "response.body.length"});
    let tools = [tool("list", "/list/20000", &computed), tool("hold", "/hold", &json!({"timeoutMs": 60_000}))];
    let id = tool_server(&app, server.url(), &tools).await;

    // A message whose files are one, twenty times.
    let large = upload(&app, "large.txt", vec![b'x'; 24 << 20]).await;
    let file = json!({"name": "large.txt", "downloadUrl": large["downloadUrl"], "fileType": "document"});
    let message = json!({"message": "Read", "files": vec![file; 20]});
    let sent = join_all((0..12).map(|_| app.post("/assistants/default/messages?async=true", message.clone()))).await;
    for sent in sent {
        assert_eq!((sent.status, sent.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"), "{}", sent.body);
    }
    let of_files = peak_memory(&app);

    // Answers of many values, each of which waits for the place of its account's expressions.
    let path = format!("/tool-servers/{id}/tools/list/test");
    let ran = join_all((0..60).map(|_| app.post(&path, json!({})))).await;
    assert!(ran.iter().any(|ran| ran.body["data"]["result"] == 20_001), "{}", ran[0].body);
    let of_answers = peak_memory(&app);

    // Bodies with fields that mean nothing, while what they ask for goes on.
    let body: &str = format!(r#"{{"parameters": {{}}, "x": "{}"}}"#, "x".repeat(1_900_000)).leak();
    let path = format!("/tool-servers/{id}/tools/hold/test");
    let held = (0..100).map(|_| {
        let request = app.request(Method::POST, &path).header("content-type", "application/json");
        app.send(request.body(body))
    });
    let mut held: FuturesUnordered<_> = held.collect();
    for _ in 0..40 {
        let refused = held.next().await.expect("more are sent");
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{}", refused.body);
    }
    server.let_go();
    let rest: Vec<Reply> = held.collect().await;
    assert!(rest.iter().any(|reply| reply.body["success"] == true), "those that have room go on");
    println!("files {of_files} MiB, answers {of_answers} MiB, bodies {} MiB", peak_memory(&app));
    assert!(peak_memory(&app) < 500, "{of_files}, {of_answers}, {} MiB", peak_memory(&app));
}

#[tokio::test]
async fn an_account_for_which_ten_thousand_runs_wait_is_told_to_come_back_and_no_other() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    let agent = agent(&app, json!({"name": "A"})).await;
    let threads = format!("/agents/{agent}/threads");
    let (_, address) = hooked(&app, json!({})).await;
    let event = async |id: &str| hook(&app, &address, &[("webhook-id", id)], "{}").await;
    let other = other_account(&db).await;
    // Nobody takes what stands in a lane that is not there.
    db.run(
        "INSERT INTO runs (id, account_id, kind, subject, payload, lane) \
         SELECT kind || n, a.id, kind, 'w' || n, '{}', 'none' FROM (SELECT account_id AS id FROM agents LIMIT 1) a, \
             unnest('{thread,trigger-event}'::text[]) kind, generate_series(1, 10000) n",
    )
    .await;
    let refused = eventually("it is refused", async || {
        let started = app.post(&threads, json!({"message": "Hi"})).await;
        (started.status == StatusCode::TOO_MANY_REQUESTS).then_some(started)
    })
    .await;
    assert_eq!((refused.error(), &refused.body["retryAfter"]), ("RATE_LIMIT_EXCEEDED", &json!(30)), "{}", refused.body);
    let refused = event("1").await;
    assert_eq!((refused.error(), &refused.body["retryAfter"]), ("TOO_MANY_EVENTS", &json!(30)), "{}", refused.body);
    // Somebody waits for this one, and it waits for nobody.
    assert_eq!(app.post("/assistants/default/messages", json!({"message": "Hi"})).await.status, StatusCode::OK);
    let theirs = app.anonymous(Method::POST, "/v1/assistants/default/messages?async=true").bearer_auth(&other);
    assert_eq!(app.send(theirs.json(&json!({"message": "Hi"}))).await.status, StatusCode::OK);
    db.run("DELETE FROM runs WHERE lane = 'none'").await;
    eventually("it is taken", async || {
        (app.post(&threads, json!({"message": "Hi"})).await.status == StatusCode::CREATED).then_some(())
    })
    .await;
    eventually("so are events", async || (event("2").await.status == StatusCode::ACCEPTED).then_some(())).await;
}

/// Eleven ways to take more than a share, each tried again and again; the twelfth is a model that writes without end.
async fn attack(app: &TestApp, server: &str, way: usize) {
    // An attacker may be told to wait.
    let try_tool = async |made: Reply, tool: &str, body: Value| {
        if let Some(id) = made.body["_id"].as_str() {
            app.post(&format!("/tool-servers/{id}/tools/{tool}/test"), body).await;
        }
    };
    match way {
        0 | 1 => {
            let (_, spec) = descriptions().swap_remove(way * 3);
            app.post("/tool-servers/import-openapi", json!({"spec": spec})).await;
        }
        2 => {
            let tool = json!({"type": "function", "function": {"name": "t", "parameters": schemas()[1]}});
            app.post("/assistants/default/messages", json!({"message": "Hello", "tools": [tool]})).await;
        }
        3 => {
            let deep_tool = tool("deep", "/echo", &json!({"function": {"parameters": schemas()[3]}}));
            let made =
                app.post("/tool-servers", json!({"name": "D", "url": server, "toolDefinitions": [deep_tool]})).await;
            try_tool(made, "deep", json!({"parameters": deep()})).await;
        }
        4 => {
            app.post("/assistants/slow/messages", json!({"message": "abcdefghij".repeat(400)})).await;
        }
        5 => {
            let tools = [computing(BROKEN_OUT[0])];
            app.post("/tool-servers", json!({"name": "B", "url": server, "toolDefinitions": tools})).await;
        }
        6 => {
            let tools = [computing(EXPRESSIONS[EXPRESSIONS.len() - 1])];
            let made = app.post("/tool-servers", json!({"name": "S", "url": server, "toolDefinitions": tools})).await;
            try_tool(made, "run", json!({})).await;
        }
        7 => {
            static FRESH: AtomicU64 = AtomicU64::new(0);
            let key = format!("k{}", FRESH.fetch_add(1, Ordering::Relaxed));
            let list = app.request(Method::POST, "/v1/assistants/chats").header("idempotency-key", key);
            app.send(list.json(&json!({"limit": 100}))).await;
        }
        8 => {
            let code = json!({"grantType": "authorization_code", "clientId": "none", "code": "nonsense", "redirectUri": "https://a.example", "codeVerifier": "x"});
            app.send(app.anonymous(Method::POST, "/oauth/token").json(&code)).await;
        }
        9 => {
            app.send(app.anonymous(Method::POST, "/v1/tool-callbacks/nothing").body("x".repeat(500_000))).await;
        }
        _ => {
            let schema = json!({"name": "O", "structuredOutput": {"schema": schemas()[way % 4]}});
            app.post("/assistants", schema).await;
        }
    }
}

#[tokio::test]
async fn twelve_attackers_of_one_account_take_only_its_share() {
    let _turn = TURNS.acquire().await;
    let model = FakeModelServer::start();
    let (db, base) = (TestDb::new().await, format!("{}/v1", model.url()));
    let settings = [
        UNBOUNDED[0],
        UNBOUNDED[1],
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
        ("OPENAI_BASE_URL", base.as_str()),
        ("OPENAI_API_KEY", "sk-test"),
    ];
    let app = TestApp::start(PROGRAM, &db, &settings);
    let server = FakeToolServer::start();
    let other = other_account(&db).await;
    let rules = json!({"enabled": true, "input": patterns(), "blockMessage": "No."});
    app.post("/assistants", json!({"name": "G", "identifier": "slow", "guardrailsConfiguration": rules})).await;
    let demo = json!({"message": "Hello", "provider": "demo", "model": "demo-1"});
    let ask = || Probe::start(&app, "POST /v1/assistants/default/messages", &other, &demo);
    let usual = ask();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let usual = usual.end();
    let over = Instant::now() + Duration::from_secs(5) * u32::try_from(factor(12)).expect("a number");
    let again = async |way: usize| {
        while Instant::now() < over {
            attack(&app, server.url(), way).await;
        }
    };
    let endless = async {
        while Instant::now() < over {
            model.script([Script::words(&["word "]).ending(Ending::Never, 1)]);
            let message =
                json!({"message": "Hello", "provider": "openai", "model": "gpt-4o", "skipSummarization": true});
            app.post("/assistants/default/messages", message).await;
        }
    };
    let theirs = ask();
    let attackers = Box::pin(async { tokio::join!(join_all((0..11).map(again)), endless) });
    let (_, stall) = longest_stall(&app, attackers).await;
    let took = theirs.end();
    let (median, before, memory) = (took[took.len() / 2], usual[usual.len() / 2], peak_memory(&app));
    println!(
        "{} messages of another account: {median:?} each (alone {before:?}); health {stall:?}; {memory} MiB",
        took.len()
    );
    assert!(stall < STALL && took[took.len() - 1] < Duration::from_secs(5), "{stall:?}, {:?}", took.last());
    assert!(memory < 300, "{memory} MiB");
}

fn as_account(app: &TestApp, key: &str, method: Method, path: &str) -> reqwest::RequestBuilder {
    app.anonymous(method, &format!("/v1{path}")).bearer_auth(key)
}
