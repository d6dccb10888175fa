//! What a connection may take: heads, bodies, and what comes after an early answer (contract 00 §1.8).

use std::time::{Duration, Instant};

use platform_testing::{FakeToolServer, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::{
    access::session,
    support::{PROGRAM, UNBOUNDED, app, app_with, app_with_tools, eventually, tool, tool_server},
};

async fn connect_from(app: &TestApp, source: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{source}:0").parse().expect("an address")).expect("bound");
    let to = app.url().trim_start_matches("http://").parse().expect("an address");
    socket.connect(to).await.expect("connected")
}

async fn connect(app: &TestApp) -> TcpStream {
    connect_from(app, "127.0.0.1").await
}

/// What is answered until `end` stands in it, or the connection closes.
async fn until(stream: &mut TcpStream, end: &str) -> String {
    let (mut answer, mut chunk) = (String::new(), [0; 4096]);
    while !answer.contains(end) {
        match tokio::time::timeout(Duration::from_mins(1), stream.read(&mut chunk)).await.expect("no silence") {
            Ok(read) if read > 0 => answer.push_str(&String::from_utf8_lossy(&chunk[..read])),
            _ => break,
        }
    }
    answer
}

/// Asks for its health over a connection that stays open; whether it answered.
async fn asks(stream: &mut TcpStream) -> bool {
    let sent = stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
    sent.is_ok() && until(stream, "\r\n\r\nok").await.starts_with("HTTP/1.1 200")
}

const CHUNKED: &str = "host: x\r\ntransfer-encoding: chunked\r\ncontent-type: application/json\r\n";

const FORM: &str = "host: x\r\ntransfer-encoding: chunked\r\ncontent-type: multipart/form-data; boundary=b\r\n";

#[tokio::test]
async fn after_an_early_answer_little_is_read_and_the_connection_closes() {
    let app = app_with(&[("PLATFORM_MAX_UPLOAD_BYTES", "1000")]).await;
    let key = format!("authorization: Bearer {}\r\n", app.key());
    let file = "content-disposition: form-data; name=\"file\"; filename=\"a.txt\"";
    let part = format!("--b\r\n{file}\r\n\r\n{}", "x".repeat(4000));
    let early = [
        (format!("POST /v1/assistants HTTP/1.1\r\n{CHUNKED}\r\n1\r\n{{\r\n"), "401"),
        (format!("POST /v1/nothing HTTP/1.1\r\n{CHUNKED}\r\n1\r\n{{\r\n"), "404"),
        (format!("PUT /v1/models HTTP/1.1\r\n{CHUNKED}{key}\r\n1\r\n{{\r\n"), "405"),
        (format!("POST /v1/assistants HTTP/1.1\r\n{CHUNKED}{key}content-encoding: gzip\r\n\r\n1\r\n{{\r\n"), "415"),
        (format!("POST /v1/assistants HTTP/1.1\r\nhost: x\r\n{key}content-length: 3000000\r\n\r\n{{"), "415"),
        (format!("POST /v1/files/upload HTTP/1.1\r\n{FORM}{key}\r\n{:x}\r\n{part}\r\n", part.len()), "413"),
        (format!("OPTIONS /v1/x HTTP/1.1\r\n{CHUNKED}origin: x\r\naccess-control-request-method: GET\r\n\r\n"), "204"),
    ];
    let trickled = early.iter().map(async |(request, status)| {
        let mut stream = connect(&app).await;
        stream.write_all(request.as_bytes()).await.expect("written");
        let answer = until(&mut stream, "\r\n\r\n").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains("connection: close"), "{answer}");
        let (mut reading, mut writing) = stream.into_split();
        let trickle = async {
            while writing.write_all(b"1\r\n1\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let mut rest = Vec::new();
        tokio::select! { () = trickle => {}, _ = reading.read_to_end(&mut rest) => {} }
    });
    let began = Instant::now();
    tokio::time::timeout(Duration::from_secs(15), futures_util::future::join_all(trickled)).await.expect("closed");
    assert!(began.elapsed() > Duration::from_millis(500), "time for the answer to be read");

    // At full speed no more is taken than a rest and what lies in buffers of the system.
    let mut stream = connect(&app).await;
    stream.write_all(early[0].0.as_bytes()).await.expect("written");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let mut taken = 0;
    while stream.write_all(chunk.as_bytes()).await.is_ok() {
        taken += chunk.len();
        assert!(taken < 64 << 20, "it swallows without end");
    }

    // A small body that is there already is read, and the connection is used again.
    let mut stream = connect(&app).await;
    for _ in 0..3 {
        let refused = "POST /v1/assistants HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(refused.as_bytes()).await.expect("written");
        assert!(until(&mut stream, "}").await.starts_with("HTTP/1.1 401"));
    }
    assert!(asks(&mut stream).await);
}

#[tokio::test]
async fn who_leaves_after_an_early_answer_holds_no_place() {
    let app = app_with(&[("PLATFORM_CONNECTIONS_PER_ADDRESS", "3")]).await;
    let body = "x".repeat(300_000);
    let refused =
        format!("POST /v1/tool-callbacks/nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n{body}");
    let began = Instant::now();
    for _ in 0..30 {
        let mut stream = connect(&app).await;
        stream.write_all(refused.as_bytes()).await.expect("written");
        assert!(until(&mut stream, "}").await.starts_with("HTTP/1.1 4"));
    }
    assert!(asks(&mut connect(&app).await).await);
    // Two seconds each, three at once, would be twenty.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_slow_head_is_cut_off_on_a_used_connection_too() {
    let app = app().await;
    let mut stream = connect(&app).await;
    assert!(asks(&mut stream).await);
    let (mut reading, mut writing) = stream.into_split();
    let mut rest = Vec::new();
    let trickle = async {
        writing.write_all(b"GET /livez HTTP/1.1\r\nx: ").await.expect("written");
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let cut = async {
        tokio::select! { () = trickle => {}, _ = reading.read_to_end(&mut rest) => {} }
    };
    tokio::time::timeout(Duration::from_secs(30), cut).await.expect("cut off");
}

#[tokio::test]
async fn an_address_has_so_many_connections_and_a_proxy_has_more() {
    let bound = [("PLATFORM_CONNECTIONS_PER_ADDRESS", "3")];
    let app = app_with(&bound).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = connect_from(&app, "127.0.0.2").await;
        assert!(asks(&mut stream).await);
        held.push(stream);
    }
    assert!(!asks(&mut connect_from(&app, "127.0.0.2").await).await, "one too many");
    assert!(asks(&mut connect_from(&app, "127.0.0.3").await).await, "somebody else");
    assert!(asks(&mut held[0]).await, "the others stay");
    held.pop();
    let again = async || asks(&mut connect_from(&app, "127.0.0.2").await).await.then_some(());
    eventually("the place that was given back", again).await;

    // Whose key is known has many, each of which had a place for a moment; an end user has as many as an address, and
    // what is more counts for where they are.
    let known = format!("GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", app.key());
    for _ in 0..8 {
        let mut stream = connect_from(&app, "127.0.0.4").await;
        stream.write_all(known.as_bytes()).await.expect("written");
        assert!(until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        held.push(stream);
    }
    let token = session(&app, json!({"tenantId": "t"})).await;
    let known = format!("GET /v1/assistants HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    for _ in 0..6 {
        let mut stream = connect_from(&app, "127.0.0.5").await;
        stream.write_all(known.as_bytes()).await.expect("written");
        assert!(until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        held.push(stream);
    }
    assert!(!asks(&mut connect_from(&app, "127.0.0.5").await).await, "twice as many is too many");

    let proxied = app_with(&[bound[0], ("PLATFORM_TRUSTED_PROXIES", "127.0.0.2")]).await;
    let mut many = Vec::new();
    for _ in 0..6 {
        many.push(connect_from(&proxied, "127.0.0.2").await);
        assert!(asks(many.last_mut().expect("one")).await);
    }
}

#[tokio::test]
async fn unfinished_bodies_are_few_and_those_of_public_routes_small() {
    let app = app_with(&[("PLATFORM_BODIES_PER_ADDRESS", "2"), ("PLATFORM_TRUSTED_PROXIES", "127.0.0.0/8")]).await;
    let open = async |from: &str| {
        let mut stream = connect(&app).await;
        let head = format!("POST /oauth/token HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {from}\r\ncontent-length: 60000");
        stream.write_all(format!("{head}\r\n\r\n{}", "x".repeat(1000)).as_bytes()).await.expect("written");
        stream
    };
    // Whichever two of them came first have the places.
    let ends = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(async |from| until(&mut open(from).await, "}").await);
    let refused = async {
        let ends = futures_util::future::join_all(ends).await;
        ends.into_iter().filter(|end| end.starts_with("HTTP/1.1 429")).collect::<Vec<_>>()
    };
    let served = async {
        let token = app.anonymous(Method::POST, "/oauth/token").header("x-forwarded-for", "2001:db8::4");
        app.send(token.json(&json!({}))).await.status
    };
    let (refused, served) = tokio::join!(refused, served);
    assert!(refused.len() == 1 && refused[0].contains("RATE_LIMIT_EXCEEDED"), "{refused:?}");
    assert_eq!(served, StatusCode::BAD_REQUEST, "what comes at once needs no place");

    for path in ["/oauth/token", "/oauth/revoke", "/oauth/authorize"] {
        let large = app.send(app.anonymous(Method::POST, path).body("x".repeat(70_000))).await;
        assert_eq!(
            (large.error(), &large.body["details"]["limitBytes"]),
            ("PAYLOAD_TOO_LARGE", &json!(65_536)),
            "{path}"
        );
    }
    let mut stream = connect(&app).await;
    let unknown = "POST /v1/tool-callbacks/none HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n";
    stream.write_all(unknown.as_bytes()).await.expect("written");
    assert!(until(&mut stream, "}").await.starts_with("HTTP/1.1 404"), "before anything of its body");
}

#[tokio::test]
async fn as_many_files_may_be_open_as_the_system_allows() {
    let script = std::env::temp_dir().join(format!("platform-few-files-{}", std::process::id()));
    std::fs::write(&script, format!("#!/bin/sh\nulimit -S -n 300\nexec {PROGRAM} \"$@\"\n")).expect("written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).expect("made executable");
    let app = TestApp::start(script.to_str().expect("a path"), &TestDb::new().await, &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", app.pid())).expect("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{files}");
    std::fs::remove_file(&script).expect("removed");
}

#[tokio::test]
async fn a_list_has_so_many_bytes_and_answers_that_nobody_reads_hold_little() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    for at in 0..40 {
        let sent = json!({"message": "x", "chatUid": format!("c{at}")});
        assert_eq!(app.post("/assistants/default/messages", sent).await.status, StatusCode::OK);
    }
    let long = "jsonb_build_object('long', repeat('x', 600000))";
    db.run(&format!("UPDATE messages SET body = (body::jsonb || {long})::json WHERE role = 'user'")).await;
    let (mut seen, mut offset) = (std::collections::BTreeSet::new(), 0);
    while offset < 40 {
        let page = app.get(&format!("/assistants/default/chats?limit=100&offset={offset}")).await.body;
        assert!(page.to_string().len() <= 8 << 20, "{}", page.to_string().len());
        let chats = page["histories"].as_array().expect("chats");
        assert!(!chats.is_empty() && page["total"] == 40, "{}", page["total"]);
        assert!(page["limit"] == chats.len() || page["limit"] == 100, "{}", page["limit"]);
        seen.extend(chats.iter().map(|chat| chat["chatUID"].as_str().expect("an id").to_owned()));
        offset += page["limit"].as_u64().expect("a number");
    }
    assert_eq!(seen.len(), 40, "who goes on by the limit misses nothing");
    let held_before = resident(&app);
    let mut unread = Vec::new();
    for _ in 0..40 {
        let mut stream = connect(&app).await;
        let head = format!(
            "GET /v1/assistants/default/chats?limit=100 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}",
            app.key()
        );
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await.expect("written");
        unread.push(stream);
    }
    for stream in &mut unread {
        stream.readable().await.expect("an answer");
    }
    let grown = resident(&app).saturating_sub(held_before) >> 20;
    assert!(grown < 250, "{grown} MiB");
    assert!(asks(&mut connect(&app).await).await);
}

#[tokio::test]
async fn who_leaves_the_answers_of_effects_unread_has_no_more_effects_until_they_are_read() {
    let (app, server, _db) = app_with_tools(&UNBOUNDED).await;
    let id = tool_server(&app, server.url(), &[tool("big", "/big/900000", &json!({}))]).await;
    let path = format!("/tool-servers/{id}/tools/big/test");
    let length = app.post(&path, json!({})).await.body.to_string().len();
    let fill = (64 << 20) / length;
    let head = format!("host: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json", app.key());
    let request = format!("POST /v1{path} HTTP/1.1\r\n{head}\r\ncontent-length: 2\r\n\r\n{{}}");
    let address = app.url().trim_start_matches("http://").parse().expect("an address");
    let mut unread = Vec::new();
    for _ in 0..fill + 20 {
        let socket = TcpSocket::new_v4().expect("a socket");
        // What is not read fills the platform's side, not the kernel's: buffers follow the size of segments.
        socket2::SockRef::from(&socket).set_tcp_mss(536).expect("small segments");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        let mut stream = socket.connect(address).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("written");
        unread.push(stream);
    }
    for stream in &mut unread {
        stream.readable().await.expect("an answer");
    }
    let refused = app.post(&path, json!({})).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMIT_EXCEEDED"));
    assert_eq!(app.get("/assistants").await.status, StatusCode::OK, "what only reads has room of its own");
    drop(unread);
    eventually("there is room again", async || {
        (app.post(&path, json!({})).await.status == StatusCode::OK).then_some(())
    })
    .await;
}

/// Bytes of memory that the process holds.
fn resident(app: &TestApp) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", app.pid())).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") * 1024
}

#[tokio::test]
async fn one_end_user_leaves_room_for_the_others_of_its_account() {
    let server = FakeToolServer::start();
    let app = app_with(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_RATE_FULL", "0")]).await;
    let open = json!({"name": "O", "identifier": "open", "accessConfiguration": {"externalAccess": true}});
    app.post("/assistants", open).await;
    let token = session(&app, json!({"tenantId": "acme", "subtenantId": "mallory"})).await;
    let post = "POST /v1/assistants/chats HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let begun = format!("{post}authorization: Bearer {token}\r\ncontent-length: 100000\r\n\r\n{}", " ".repeat(70_000));
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut stream = connect(&app).await;
        stream.write_all(begun.as_bytes()).await.expect("written");
        slow.push(stream);
    }
    let files: Vec<Value> =
        (0..20).map(|n| json!({"name": "a.txt", "url": format!("{}/hold/0?{n}", server.url())})).collect();
    let sent = json!({"message": "x", "files": files});
    let send = || app.anonymous(Method::POST, "/v1/assistants/open/messages?async=true").bearer_auth(&token);
    let sending = futures_util::future::select_all((0..8).map(|_| Box::pin(send().json(&sent).send())));
    let of_others = async {
        // Its files are asked for, as far as they may be.
        server.called(4).await;
        let own = json!({"message": "x".repeat(200_000), "files": [{"name": "b.txt", "url": format!("{}/text", server.url())}]});
        let answered = app.post("/assistants/open/messages?async=true", own).await;
        assert_eq!(answered.status, StatusCode::OK, "{}", answered.body);
    };
    tokio::select! {
        (answer, ..) = sending => panic!("nobody gave it its files: {answer:?}"),
        () = of_others => {}
    }
    server.let_go();
}
