//! What was accepted is answered exactly once, whoever dies (`docs/RELIABILITY.md`).

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use platform_testing::{TestApp, TestDb};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::support::{PROGRAM, finished};

const MESSAGES: usize = 200;
const CHATS: usize = 20;
const KILLS: usize = 10;
const LEASE: Duration = Duration::from_secs(1);

/// Sends a message until it is accepted, with one idempotency key over all tries.
async fn send(app: &RwLock<TestApp>, chat: usize, number: usize) -> String {
    let body = json!({"chatUid": format!("chat-{chat}"), "message": format!("/delay 5ms\n/say reply {number} to {chat} done")});
    let patience = Instant::now() + Duration::from_mins(2);
    loop {
        assert!(Instant::now() < patience, "message {number} of chat {chat} was never accepted");
        let request = {
            let app = app.read().await;
            let request = app.request(Method::POST, "/assistants/default/messages?async=true");
            request.header("idempotency-key", format!("{chat}-{number}")).json(&body).timeout(Duration::from_secs(5))
        };
        if let Ok(answer) = request.send().await
            && answer.status() == StatusCode::OK
            && let Ok(accepted) = answer.json::<Value>().await
        {
            return accepted["messageUid"].as_str().expect("a uid").to_owned();
        }
        // The queue is full, in progress, or killed just now: again.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_messages_and_ten_kills_lose_nothing_double_nothing_and_leave_nothing_stuck() {
    let settings =
        [("PLATFORM_RUN_LEASE", "1s"), ("PLATFORM_RUN_HEARTBEAT", "300ms"), ("PLATFORM_RUN_MAX_ATTEMPTS", "50")];
    let app = Arc::new(RwLock::new(TestApp::start(PROGRAM, &TestDb::new().await, &settings)));
    let senders: Vec<_> = (0..CHATS)
        .map(|chat| {
            let app = Arc::clone(&app);
            #[expect(clippy::disallowed_methods, reason = "a client of the test, not a task of the platform")]
            tokio::spawn(async move {
                let mut accepted = Vec::new();
                for number in 0..MESSAGES / CHATS {
                    accepted.push(send(&app, chat, number).await);
                }
                accepted
            })
        })
        .collect();
    let mut runner = TestRunner::deterministic();
    for _ in 0..KILLS {
        let pause = (50_u64..600).new_tree(&mut runner).expect("generated").current();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        app.write().await.crash();
    }
    let mut accepted = HashMap::new();
    for (chat, sender) in senders.into_iter().enumerate() {
        accepted.insert(chat, sender.await.expect("every message was accepted"));
    }
    let app = app.read().await;
    let ends = (0..CHATS).map(|chat| {
        let app = &app;
        async move { finished(app, &format!("chat-{chat}")).await }
    });
    let ended = tokio::time::timeout(LEASE + Duration::from_secs(5), futures_util::future::join_all(ends)).await;
    let states = ended.expect("no chat is stuck");
    let mut turns = 0;
    for (chat, uids) in accepted {
        let messages = states[chat]["chatContent"].as_array().expect("messages");
        let asked: Vec<&str> =
            messages.iter().filter(|m| m["role"] == "user").filter_map(|m| m["uid"].as_str()).collect();
        assert_eq!(asked, uids, "chat {chat}: nothing lost, nothing doubled, in order");
        // Messages that waited are answered together: one reply follows each group of them, to its last.
        let mut last = None;
        for message in messages {
            let text = message["content"]["message"].as_str().expect("text");
            if message["role"] == "user" {
                last = Some(uids.iter().position(|uid| message["uid"] == *uid).expect("a uid that was told"));
            } else {
                let number = last.take().expect("no reply without a question");
                assert_eq!(text, format!("reply {number} to {chat} done"));
                turns += 1;
            }
        }
        assert_eq!(last, None, "chat {chat}: every message is answered");
    }
    assert!(turns < MESSAGES, "some messages waited for a turn and shared it, or the queue was not tried");
}
