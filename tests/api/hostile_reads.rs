//! Much that is read, or never read: long chats that grow, searches, passwords that are guessed.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use platform_testing::{TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::{
    hostile::{STALL, TURNS, longest_stall},
    support::{PROGRAM, UNBOUNDED, finished, other_account, peak_memory, say, user},
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
