//! Much that is read, or never read: long chats that grow, searches, passwords that are guessed.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use platform_testing::{TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::{
    hostile::{STALL, TURNS, longest_stall},
    support::{
        PROGRAM, UNBOUNDED, app_with_tools, eventually, finished, other_account, peak_memory, say, tool, tool_server,
        user,
    },
};

/// A chat of so many messages, each of which says a text so many times.
async fn long_chat(app: &TestApp, db: &TestDb, messages: usize, text: &str, times: usize) -> String {
    let chat = say(app, "Hello").await.header("x-chat-uid").to_owned();
    db.run(&format!(
        "INSERT INTO messages (account_id, conversation, position, uid, role, body, created_ms)
         SELECT account_id, conversation, n, 'm-' || n, role,
            jsonb_set(body::jsonb, '{{content,message}}', to_jsonb(repeat('{text}', {times})))::json, created_ms
         FROM messages, generate_series(2, {messages} + 1) n WHERE conversation = '{chat}' AND position = 0;
         UPDATE chats SET message_count = {messages} + 2, turn_start = {messages} WHERE uid = '{chat}'"
    ))
    .await;
    chat
}

#[tokio::test]
async fn readers_of_a_long_chat_that_do_not_read_take_what_their_account_may_take() {
    let _turn = TURNS.acquire().await;
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    let chat = long_chat(&app, &db, 30, "word ", 50_000).await;
    let before = peak_memory(&app);
    let grows = json!({"message": "/delay 20ms\n/tokens 400", "chatUid": chat, "skipSummarization": true});
    let sent = app.post("/assistants/default/messages?async=true", grows).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
    let address = app.url().trim_start_matches("http://").parse().expect("an address");
    let mut idle = Vec::new();
    for _ in 0..60 {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        let mut socket = socket.connect(address).await.expect("connected");
        let path = format!("/v1/assistants/default/chats/{chat}/stream");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", app.key());
        socket.write_all(request.as_bytes()).await.expect("written");
        idle.push(socket);
        // Each begins with another state of the chat.
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    // Sixty states of 7.5 MB would take 450.
    let took = peak_memory(&app).saturating_sub(before);
    assert!(took < 250, "{took} MiB for readers that do not read");
    let ended = tokio::time::timeout(Duration::from_mins(1), finished(&app, &chat)).await.expect("nobody waits");
    assert_eq!(ended["status"], "completed", "{}", ended["error"]);
    drop(idle);
}

#[tokio::test]
async fn a_search_through_long_messages_stops_nobody() {
    let _turn = TURNS.acquire().await;
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    let chat = long_chat(&app, &db, 100, "\u{c4}", 120_000).await;
    let search = |q: &'static str| {
        let path = format!("/assistants/default/chats/{chat}/search?limit=100&q={q}");
        let app = &app;
        async move { app.get(&path).await.body }
    };
    let searches = ["none"].into_iter().chain(["%C3%A4%C3%84%C3%A4"; 8]).map(search);
    let (found, stall) = longest_stall(&app, join_all(searches)).await;
    // Half a second where whole texts are looked through on the thread that serves.
    assert!(stall < STALL / 4, "health took {stall:?}");
    assert_eq!((&found[0]["total"], &found[8]["total"]), (&json!(0), &json!(100)));
    let snippet = found[8]["matches"][99]["snippet"].as_str().expect("text");
    assert_eq!(snippet, "\u{c4}".repeat(80 + 3));
}

#[tokio::test]
async fn passwords_that_are_guessed_or_made_take_little_memory_and_leave_turns_to_others() {
    let _turn = TURNS.acquire().await;
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    let other = other_account(&db).await;
    user(&app, "ann", "member").await;
    let before = peak_memory(&app);
    let make = |key: String, name: String| {
        let body = json!({"email": format!("{name}@example.com"), "password": "correct horse battery"});
        let request = app.anonymous(Method::POST, "/v1/users").bearer_auth(key).json(&body);
        async { app.send(request).await.status }
    };
    let flood = join_all((0..60).map(|n| make(app.key().to_owned(), format!("u{n}"))));
    let waits = async {
        let began = Instant::now();
        (make(other, "bob".to_owned()).await, began.elapsed())
    };
    let began = Instant::now();
    let (made, (status, waited)) = tokio::join!(flood, waits);
    let all = began.elapsed();
    assert!(made.iter().all(|status| *status == StatusCode::CREATED || *status == 503), "{made:?}");
    assert_eq!(status, StatusCode::CREATED);
    assert!(waited < all / 2, "another account waited {waited:?} of {all:?}");
    // Four at once take 19 MiB each.
    let took = peak_memory(&app).saturating_sub(before);
    assert!(took < 120, "{took} MiB");
}

#[tokio::test]
async fn braces_that_nothing_ends_and_arguments_that_an_address_repeats_stop_nobody() {
    let _turn = TURNS.acquire().await;
    let (app, server, _db) = app_with_tools(&UNBOUNDED).await;
    let open = json!({"name": "Open", "identifier": "open", "presets": "{{".repeat(100_000)});
    assert_eq!(app.post("/assistants", open).await.status, StatusCode::CREATED);
    let in_path = tool("in_path", &format!("/{}", "${a}".repeat(500)), &json!({"pathParametersKeys": ["a"]}));
    let in_query = tool("in_query", "/", &json!({"queryParametersKeys": vec!["a"; 200]}));
    let tools = [in_path, in_query].map(|mut tool: Value| {
        tool["method"] = "GET".into();
        tool["function"]["parameters"] = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        tool
    });
    let id = tool_server(&app, server.url(), &tools).await;
    let (answers, stall) = longest_stall(&app, async {
        let said = app.post("/assistants/open/messages", json!({"message": "Hi", "skipSummarization": true})).await;
        let mut tried = Vec::new();
        for name in ["in_path", "in_query"] {
            let given = json!({"parameters": {"a": "\u{e9}".repeat(50_000)}});
            tried.push(app.post(&format!("/tool-servers/{id}/tools/{name}/test"), given).await);
        }
        (said, tried)
    })
    .await;
    let (said, tried) = answers;
    assert_eq!(said.status, StatusCode::OK, "{}", said.body);
    for tried in tried {
        let error = tried.body["error"].as_str().unwrap_or_default();
        assert!(error.starts_with("INVALID_ARGUMENTS"), "{}", tried.body);
    }
    assert!(server.recorded().is_empty(), "nothing of it was sent");
    // Twenty-eight seconds where each brace was looked for to the end of the text.
    assert!(stall < STALL, "health took {stall:?}");
    assert!(peak_memory(&app) < 400, "{} MiB", peak_memory(&app));
}

#[tokio::test]
async fn a_filter_by_lists_ends_in_time_however_long_those_are_that_it_is_held_against() {
    let _turn = TURNS.acquire().await;
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    say(&app, "Hello").await;
    let elements = |count: usize| (0..count).map(|n| json!({"x": n})).collect::<Vec<_>>();
    let list = json!({"a": elements(5000)});
    db.run(&format!(
        "CREATE TEMPORARY TABLE one ON COMMIT PRESERVE ROWS AS SELECT * FROM chats LIMIT 1;
         UPDATE one SET metadata = '{list}', uid = 'long';
         INSERT INTO chats SELECT * FROM one"
    ))
    .await;
    let chats = async |elements: Vec<Value>| app.post("/assistants/chats", json!({"metadata": {"a": elements}})).await;
    let few = chats(vec![json!({"x": 4999})]).await;
    assert_eq!(few.body["total"], 1);
    db.run(
        "CREATE TEMPORARY TABLE one ON COMMIT PRESERVE ROWS AS SELECT * FROM chats WHERE uid = 'long';
         DO $$ BEGIN FOR n IN 1..600 LOOP
            UPDATE one SET uid = 'long-' || n; INSERT INTO chats SELECT * FROM one;
         END LOOP; END $$",
    )
    .await;
    let many = chats(elements(101)).await;
    assert_eq!((many.status, many.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"), "{}", many.body);
    let last: Vec<Value> = elements(5000).split_off(4900);
    let long = chats(last).await;
    assert_eq!((long.status, long.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"));
    assert!(long.body["message"].as_str().is_some_and(|told| told.contains("ask for less")), "{}", long.body);
}

#[tokio::test]
async fn lists_of_one_account_that_take_long_hold_up_no_reads() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    let chat = say(&app, "Hello").await.header("x-chat-uid").to_owned();
    let made = app.post("/tenants", json!({"tenantId": "acme"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let read = async || app.get(&format!("/assistants/default/chats/{chat}")).await.status;
    assert_eq!(read().await, StatusCode::OK);
    for (table, list) in [
        ("tenants", "/tenants?search=a"),
        ("subtenants", "/tenants/acme/subtenants"),
        ("subtenants", "/tenants/acme"),
        ("costs", "/tenants/acme/costs"),
        ("files", "/files"),
        ("triggers", "/triggers"),
    ] {
        let held = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(600)");
        let locked = format!(
            "SELECT count(*) AS n FROM pg_locks WHERE relation = '{table}'::regclass AND granted \
             AND mode = 'AccessExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        );
        let blocked = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() \
            AND wait_event_type = 'Lock'";
        let reads = async {
            eventually("the lock", async || (db.number(&locked).await > 0).then_some(())).await;
            let lists = join_all((0..16).map(|_| app.get(list)));
            let read = async {
                eventually("a list that waits", async || (db.number(blocked).await > 0).then_some(())).await;
                // Of all threads that serve.
                for _ in 0..8 {
                    let read = tokio::time::timeout(Duration::from_secs(30), read()).await;
                    assert_eq!(read.ok(), Some(StatusCode::OK), "{list} holds up reads");
                }
            };
            tokio::select! {
                _ = lists => panic!("{list} does not look into {table}"),
                () = read => {}
            }
        };
        tokio::select! {
            () = db.run(&held) => panic!("the lock ended"),
            () = reads => {}
        }
        db.run(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() \
             AND query LIKE '%pg_sleep(600)' AND pid <> pg_backend_pid()",
        )
        .await;
    }
}
