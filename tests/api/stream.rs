//! `GET /v1/assistants/{identifier}/chats/{chatUid}/stream`

use std::time::{Duration, Instant};

use platform_testing::{Ending, Script};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::{
    Folded, Frame, Frames, PATIENCE, UNBOUNDED, app, app_with, app_with_model, eventually, factor, finished,
    is_terminal, say, start,
};

#[tokio::test]
async fn snapshots_come_without_partial_and_deltas_with_it() {
    let app = app().await;
    let chat = start(&app, "/delay 40ms\n/say one two three \"four\" fünf").await;
    let (whole, parts) = tokio::join!(Frames::open(&app, &chat, false), Frames::open(&app, &chat, true));
    let (whole, parts) = tokio::join!(whole.all(), parts.all());
    assert!(whole.iter().all(|frame| frame.event == "snapshot"));
    assert_eq!(parts[0].event, "snapshot", "the first frame is always whole");
    assert!(parts.iter().any(|frame| frame.event == "delta"));
    let is_whole = |frame: &&Frame| frame.event == "snapshot";
    assert!(
        parts[1..].iter().filter(is_whole).all(|frame| frame.data.get("streamingMessage").is_none()),
        "what only the reply changes is no snapshot: {parts:?}"
    );
    for frames in [whole, parts] {
        assert!(frames.windows(2).all(|pair| pair[0].id < pair[1].id), "ids rise");
        let mut folded = Folded::default();
        let mut before = String::new();
        for frame in &frames {
            folded.fold(frame);
            assert!(folded.reply().starts_with(&before), "text only grows");
            before = folded.reply();
        }
        assert_eq!(before, "one two three \"four\" fünf");
        let last = &frames.last().expect("frames").data;
        assert_eq!((&last["status"], last.get("streamingMessage")), (&json!("completed"), None));
        assert_eq!(last["queuedMessages"], 0);
        assert!(last["chatHistory"][1].get("messageCost").is_none());
    }
    let path = format!("/assistants/default/chats/{chat}/stream");
    for bad in ["?partial=0", "?partial=false", "?partial=yes"] {
        assert_eq!(app.get(&format!("{path}{bad}")).await.error(), "VALIDATION_ERROR");
    }
    let request = app.request(Method::GET, &path).header("last-event-id", "2");
    let text = app.send(request).await.body;
    assert!(text.as_str().is_some_and(|text| text.contains("event: snapshot")), "Last-Event-ID changes nothing");
}

#[tokio::test]
async fn what_a_client_folds_equals_the_stored_reply_however_often_it_drops() {
    let app = app_with(&UNBOUNDED).await;
    let mut runner = TestRunner::deterministic();
    let drops = prop::collection::vec(0_usize..6, 1..8);
    let mut clients = Vec::new();
    for _ in 0..12 * factor(84) {
        let drops = drops.new_tree(&mut runner).expect("generated").current();
        let chat = start(&app, "/delay 15ms\n/tokens 60").await;
        let app = &app;
        clients.push(async move {
            let mut folded = Folded::default();
            let mut drops = drops.into_iter();
            loop {
                let mut frames = Frames::open(app, &chat, true).await;
                let mut left = drops.next().unwrap_or(usize::MAX);
                while let Some(frame) = frames.next().await {
                    folded.fold(&frame);
                    if left == 0 {
                        break;
                    }
                    left -= 1;
                }
                if is_terminal(&folded.0) {
                    break;
                }
            }
            let stored = app.get(&format!("/assistants/default/chats/{chat}")).await.body;
            assert_eq!(stored["chatContent"][1]["content"]["message"], folded.reply());
            assert_eq!(stored["outputTokens"], 60);
        });
    }
    futures_util::future::join_all(clients).await;
}

#[tokio::test]
async fn silence_is_kept_alive_and_a_stream_ends_after_its_lifetime() {
    let settings = [("PLATFORM_STREAM_LIFETIME", "1500ms"), ("PLATFORM_STREAM_KEEPALIVE", "400ms")];
    let (app, model) = app_with_model(&settings).await;
    model.script([Script::words(&["a"]).ending(Ending::Hang, 0)]);
    let chat = start(&app, "Hello").await;
    let began = Instant::now();
    let mut frames = Frames::open(&app, &chat, true).await;
    let first = frames.next().await.expect("the state at once");
    assert_eq!((first.event.as_str(), &first.data["status"]), ("snapshot", &json!("processing")));
    assert!(first.data.get("streamingMessage").is_none(), "nothing is written yet");
    assert!(frames.next().await.is_none(), "it closes without a frame");
    assert!(began.elapsed() >= Duration::from_millis(1400) && frames.comments >= 2, "{} comments", frames.comments);
    app.post(&format!("/assistants/default/chats/{chat}/stop"), json!({})).await;
    assert_eq!(model.calls(), 1, "opening a stream never asks the model");
}

#[tokio::test]
async fn a_deleted_chat_and_a_revoked_key_end_the_stream_without_a_frame() {
    let (app, model) = app_with_model(&[]).await;
    model.script([Script::words(&["a"]).ending(Ending::Hang, 0), Script::words(&["a"]).ending(Ending::Hang, 0)]);
    let chat = start(&app, "Hello").await;
    let mut frames = Frames::open(&app, &chat, true).await;
    frames.next().await.expect("the state at once");
    app.delete(&format!("/assistants/default/chats/{chat}")).await;
    assert!(frames.next().await.is_none());

    let made = app.post("/api-keys", json!({"name": "short"})).await.body;
    let chat = start(&app, "Hello").await;
    let path = format!("/v1/assistants/default/chats/{chat}/stream");
    let request = app.anonymous(Method::GET, &path).bearer_auth(made["key"].as_str().expect("a key"));
    let mut response = request.send().await.expect("a stream");
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.chunk().await.expect("a chunk").is_some());
    app.delete(&format!("/api-keys/{}", made["_id"].as_str().expect("an id"))).await;
    let ended = tokio::time::timeout(Duration::from_secs(5), async {
        while response.chunk().await.expect("no break").is_some() {}
    });
    ended.await.expect("closed within five seconds");
}

#[tokio::test]
async fn readers_that_do_not_read_slow_nobody_and_cost_little() {
    let app = app_with(&UNBOUNDED).await;
    let memory_kib = || {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", app.pid())).expect("a process");
        let resident = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).expect("resident memory");
        resident.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number")
    };
    let address = app.url().trim_start_matches("http://").parse().expect("an address");
    let mut idle = Vec::new();
    // What the first of them take in any case is not counted.
    let mut before = 0;
    let readers = 400 * factor(5);
    for count in [100, readers] {
        before = memory_kib();
        let chat = start(&app, "/delay 1ms\n/tokens 3000").await;
        for _ in 0..count {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            // What is not read fills the platform's side, not the kernel's.
            socket.set_recv_buffer_size(4096).expect("a small buffer");
            let mut socket = socket.connect(address).await.expect("connected");
            let request = format!(
                "GET /v1/assistants/default/chats/{chat}/stream HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
                app.key()
            );
            socket.write_all(request.as_bytes()).await.expect("written");
            idle.push(socket);
        }
        let finished =
            tokio::time::timeout(Duration::from_secs(30), finished(&app, &chat)).await.expect("nobody waits");
        assert_eq!(finished["outputTokens"], 3000);
        assert_eq!(say(&app, "quick").await.status, StatusCode::OK);
    }
    // What the process took meanwhile for whatever else it does it gives back.
    let took = eventually("64 KiB for each reader", async || {
        let took = memory_kib().saturating_sub(before);
        (took < 64 * readers).then_some(took)
    });
    println!("{} KiB for {readers} readers that do not read", took.await);
}

#[tokio::test]
async fn the_connection_of_a_stream_closes_after_its_last_frame() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let app = app().await;
    let chat = start(&app, "Hello").await;
    let address = app.url().trim_start_matches("http://");
    let mut connection = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let request = format!(
        "GET /v1/assistants/default/chats/{chat}/stream HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\r\n",
        app.key()
    );
    connection.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, connection.read_to_string(&mut answer)).await;
    read.expect("it closes").expect("all is read");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
    assert!(answer.contains("connection: close") && answer.contains("\"status\":\"completed\""), "{answer}");
}
