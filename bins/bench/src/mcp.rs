//! What the MCP gateway adds to a call.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};

use crate::{
    http::{Connection, asked, header, request},
    peers::{FOLDER, MAX_START, free_address, run},
    platform::{KEY, Platform},
    rows::{Bench, Row, count, median, millis, percentile},
};

const CLIENTS: usize = 64;
const SERVERS: usize = 20;
const TOOLS: usize = 25;
const LISTS: usize = 50;
const STREAMS: usize = 100;

impl Bench {
    /// Calls through the gateway beside calls of the server behind it, and a list of 500 tools.
    pub async fn mcp(&self) -> Vec<Row> {
        let (upstream, platform, mut connection) = self.behind_gateway().await;
        let (through, direct) =
            (request("POST", "/v1/mcp/calls", KEY, &call("up__echo")), request("POST", "/mcp", KEY, &call("echo")));
        let (mut rates, mut references, mut cpus) = (vec![], vec![], vec![]);
        for _ in 0..self.rounds {
            let before = platform.cpu_ms();
            let (rate, times) = self.load(&platform.address, CLIENTS, through.clone(), "hello").await;
            cpus.push((platform.cpu_ms() - before) / count(times.len() as u64));
            rates.push(rate);
            references.push(self.load(&upstream, CLIENTS, direct.clone(), "hello").await.0);
        }
        let streamed = |name: &str| {
            let params = json!({"name": name, "arguments": {"text": "hello"}, "_meta": {"progressToken": "p"}});
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
        };
        let (mut first, mut first_directly) = (vec![], vec![]);
        for _ in 0..STREAMS {
            first.push(first_event(&platform.address, "/v1/mcp/calls", &streamed("up__slow")).await);
            first_directly.push(first_event(&upstream, "/mcp", &streamed("slow")).await);
        }
        let mut servers = Vec::new();
        for n in 0..SERVERS {
            let tool = |t: usize| {
                json!({"type": "function", "endpoint": "/t", "function": {"name": format!("t{t}"),
                "description": "Finds what somebody looks for in some system", "parameters": {"type": "object",
                "properties": {"query": {"type": "string", "description": "What is looked for"}}}}})
            };
            let tools: Vec<Value> = (0..TOOLS).map(tool).collect();
            let server = json!({"name": format!("s{n}"), "url": format!("http://{upstream}"), "mcpExposed": true,
                "toolDefinitions": tools});
            servers.push(connection.call("POST", "/v1/tool-servers", &server).await);
        }
        profile(&mut connection, "lists", &servers.iter().collect::<Vec<_>>()).await;
        let mut times = Vec::new();
        for _ in 0..LISTS {
            let began = Instant::now();
            let (mut found, mut cursor) = (0, Value::Null);
            loop {
                let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
                let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params});
                let answer = connection.call("POST", "/v1/mcp/lists", &list).await;
                found += answer["result"]["tools"].as_array().map_or(0, Vec::len);
                cursor = answer["result"]["nextCursor"].clone();
                if cursor.is_null() {
                    break;
                }
            }
            times.push(millis(began.elapsed()));
            assert_eq!(found, SERVERS * TOOLS);
        }
        let what = format!("tool calls through the MCP gateway, 64 at once ({:.0}/s)", median(rates.clone()));
        let ratio = median(rates.iter().zip(&references).map(|(rate, reference)| rate / reference).collect());
        let reference = format!("the server itself {:.0}/s", median(references));
        let mut rows = Row::new(&what, format!("{ratio:.2} x"), reference, ">= 3 x a proxy (just bench peers)");
        let cpu = format!("{:.3} ms", median(cpus));
        rows.extend(Row::new("  CPU of the platform a call", cpu, String::new(), "<= 0.08 ms"));
        let added = format!("+{:.2} ms", percentile(&mut first, 0.5) - percentile(&mut first_directly, 0.5));
        rows.extend(Row::new("  first event of a streamed result, p50", added, String::new(), "<= +1 ms"));
        let list = format!("{:.1} ms p50", percentile(&mut times, 0.5));
        rows.extend(Row::new("  500 tools of 20 servers, listed in pages of 100", list, String::new(), "<= 5 ms"));
        rows
    }
}

/// A proxy of MCP servers in Rust, from crates.io, as it comes.
const PROXY: &str = "mcp-proxy";
const PROXY_VERSION: &str = "0.6.0";

impl Bench {
    /// A server, the platform with a profile `calls` over it, and a connection to that.
    async fn behind_gateway(&self) -> (String, Platform, Connection) {
        let upstream = upstream().await;
        let platform = Platform::start(&self.database, &self.providers, &[("PLATFORM_EGRESS_ALLOW", "127.0.0.1")]);
        let mut connection = Connection::open(&platform.address).await.expect("connected");
        let server =
            json!({"name": "up", "url": format!("http://{upstream}/mcp"), "mcpType": true, "mcpExposed": true});
        let server = connection.call("POST", "/v1/tool-servers", &server).await;
        profile(&mut connection, "calls", &[&server]).await;
        (upstream, platform, connection)
    }

    /// The same calls of the same server through another proxy, interleaved; prints a table.
    pub async fn compare_mcp(&self) {
        let (upstream, platform, _) = self.behind_gateway().await;
        let ours = request("POST", "/v1/mcp/calls", KEY, &call("up__echo"));
        let (proxy, theirs) = match other_proxy(&upstream).await {
            Ok(proxy) => proxy,
            Err(reason) => return println!("{PROXY}: {reason}"),
        };
        let (mut rates, mut cpus) = ([vec![], vec![]], [vec![], vec![]]);
        for _ in 0..self.rounds {
            for (i, (of, bytes)) in [(&platform, &ours), (&proxy, &theirs)].into_iter().enumerate() {
                let before = of.cpu_ms();
                let (rate, times) = self.load(&of.address, CLIENTS, bytes.clone(), "hello").await;
                cpus[i].push((of.cpu_ms() - before) / count(times.len() as u64));
                rates[i].push(rate);
            }
        }
        println!("| MCP proxy | calls/s, {CLIENTS} at once | CPU a call | memory |\n| --- | --- | --- | --- |");
        for (name, of, rates, cpus) in [
            ("this platform", &platform, &rates[0], &cpus[0]),
            (&*format!("{PROXY} {PROXY_VERSION}"), &proxy, &rates[1], &cpus[1]),
        ] {
            let (rate, cpu, memory) = (median(rates.clone()), median(cpus.clone()), count(of.memory_kib()) / 1024.0);
            println!("| {name} | {rate:.0} | {cpu:.3} ms | {memory:.0} MiB |");
        }
    }
}

/// Installs and starts the other proxy before a server; with the bytes of a call in a session of its own.
async fn other_proxy(upstream: &str) -> Result<(Platform, Vec<u8>), String> {
    let home = std::path::absolute(FOLDER).map_err(|error| error.to_string())?.join(PROXY);
    let program = home.join("bin").join(PROXY);
    let (root, installed) = (home.to_string_lossy().into_owned(), program.exists());
    let installing = tokio::task::spawn_blocking(move || {
        if !installed {
            run(Path::new("cargo"), &["install", PROXY, "--version", PROXY_VERSION, "--locked", "--root", &root])?;
        }
        Ok::<_, String>(())
    });
    installing.await.map_err(|error| error.to_string())??;
    let address = free_address()?;
    let (host, port) = address.split_once(':').unwrap_or_default();
    let settings = format!(
        "[proxy]\nname = \"bench\"\n[proxy.listen]\nhost = \"{host}\"\nport = {port}\n[observability]\nlog_level = \"warn\"\n\
         [[backends]]\nname = \"up\"\ntransport = \"http\"\nurl = \"http://{upstream}/mcp\"\n"
    );
    let config = home.join("proxy.toml");
    std::fs::write(&config, settings).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg("-c").arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut proxy = Platform::other(&mut command, &address).map_err(|error| error.to_string())?;
    let until = Instant::now() + MAX_START;
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}});
    let begin = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
    let mut connection = loop {
        if let Ok(connection) = Connection::open(&address).await {
            break connection;
        }
        if proxy.has_ended() || Instant::now() > until {
            return Err("it did not answer".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let head = connection.begin(&in_session(&begin, "")).await.map_err(|error| error.to_string())?;
    let session = header(&head, "mcp-session-id").ok_or("it began no session")?;
    let session = format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n");
    let mut connection = Connection::open(&address).await.map_err(|error| error.to_string())?;
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    connection.exchange(&in_session(&ready, &session)).await.map_err(|error| error.to_string())?;
    Ok((proxy, in_session(&call("up/echo"), &session)))
}

/// A message to an MCP server that has sessions; `headers`: those of the session.
fn in_session(message: &str, headers: &str) -> Vec<u8> {
    let accept = format!("accept: application/json, text/event-stream\r\n{headers}content-type: ");
    let asked = String::from_utf8(request("POST", "/", KEY, message)).expect("text");
    asked.replacen("content-type: ", &accept, 1).into_bytes()
}

/// A call of a tool.
fn call(name: &str) -> String {
    let params = json!({"name": name, "arguments": {"text": "hello"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
}

async fn profile(connection: &mut Connection, slug: &str, servers: &[&Value]) {
    let servers: Vec<Value> = servers.iter().map(|server| json!({"toolServerId": server["_id"]})).collect();
    let profile = json!({"name": slug, "slug": slug, "visibility": "account", "newToolPolicy": "enabled",
        "servers": servers});
    connection.call("POST", "/v1/mcp-gateway/profiles", &profile).await;
}

/// Until the first event of a call's answer, in milliseconds.
async fn first_event(address: &str, path: &str, call: &str) -> f64 {
    let streams = "accept: application/json, text/event-stream\r\ncontent-type: ";
    let asked =
        String::from_utf8(request("POST", path, KEY, call)).expect("text").replacen("content-type: ", streams, 1);
    let mut connection = Connection::open(address).await.expect("connected");
    let began = Instant::now();
    connection.begin(asked.as_bytes()).await.expect("an answer");
    let mut first = None;
    while let Some(piece) = connection.piece().await.expect("a piece") {
        if piece.contains("notifications/progress") {
            first.get_or_insert_with(|| millis(began.elapsed()));
        }
    }
    first.expect("progress")
}

/// An MCP server with two tools: one says what it is told, the other tells of its progress before.
async fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    platform_core::spawn("MCP server", async move {
        while let Ok((stream, _)) = listener.accept().await {
            platform_core::spawn("MCP connection", async move {
                let _ = serve(stream).await;
            });
        }
    });
    address
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    while let Some((_, body)) = asked(&mut stream, &mut buffer).await? {
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, answer) = answer(&body);
        if body["params"]["name"] == "slow" {
            let params = json!({"progressToken": body["params"]["_meta"]["progressToken"], "progress": 1});
            let told = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).to_string();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                .await?;
            stream.write_all(event(&told).as_bytes()).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all((event(&answer) + "0\r\n\r\n").as_bytes()).await?;
            continue;
        }
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all((head + &answer).as_bytes()).await?;
    }
    Ok(())
}

/// An event as a chunk of a body.
fn event(data: &str) -> String {
    let event = format!("event: message\ndata: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len())
}

fn answer(asked: &Value) -> (&'static str, String) {
    let result = match asked["method"].as_str() {
        Some("initialize") => json!({"protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "bench", "version": "1"}}),
        Some("tools/list") => {
            let tool = |name: &str| {
                json!({"name": name, "description": "Says what it is told",
                    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}})
            };
            json!({"tools": [tool("echo"), tool("slow")]})
        }
        Some("tools/call") => json!({"content": [{"type": "text", "text": asked["params"]["arguments"]["text"]}]}),
        Some(_) if asked["id"].is_null() => return ("202 Accepted", String::new()),
        Some(_) => {
            let error = json!({"code": -32601, "message": "no such method"});
            return ("200 OK", json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}).to_string());
        }
        None => return ("405 Method Not Allowed", String::new()),
    };
    ("200 OK", json!({"jsonrpc": "2.0", "id": asked["id"], "result": result}).to_string())
}
