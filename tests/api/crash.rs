//! What was accepted is answered exactly once, whoever dies (`docs/RELIABILITY.md`).

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use platform_testing::TestApp;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::support::{
    Frames, PATIENCE, UNBOUNDED, agent, app_with, app_with_tools, factor, finished, finished_of, listen, tool,
    tool_server,
};

const MESSAGES_OF_A_CHAT: usize = 10;
const CHATS: usize = 20;
const KILLS: usize = 10;
const LEASE: Duration = Duration::from_secs(1);

/// Sends a message to an assistant until it is accepted, with one idempotency key over all tries.
async fn send(app: &RwLock<TestApp>, assistant: &str, chat: usize, number: usize, text: &str) -> String {
    let body = json!({"chatUid": format!("chat-{chat}"), "message": text});
    let path = format!("/assistants/{assistant}/messages?async=true");
    let patience = Instant::now() + Duration::from_mins(2);
    loop {
        assert!(Instant::now() < patience, "message {number} of chat {chat} was never accepted");
        let request = {
            let app = app.read().await;
            let request = app.request(Method::POST, &path);
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

/// Kills the platform so often, at random moments.
pub async fn kill(app: &RwLock<TestApp>, times: usize) {
    let mut runner = TestRunner::deterministic();
    for _ in 0..times {
        let pause = (50_u64..600).new_tree(&mut runner).expect("generated").current();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        app.write().await.crash();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_messages_and_ten_kills_lose_nothing_double_nothing_and_leave_nothing_stuck() {
    let (chats, kills) = (CHATS * factor(10), KILLS * factor(5));
    let settings =
        [("PLATFORM_RUN_LEASE", "1s"), ("PLATFORM_RUN_HEARTBEAT", "300ms"), ("PLATFORM_RUN_MAX_ATTEMPTS", "50")];
    let app = Arc::new(RwLock::new(app_with(&[&settings[..], &UNBOUNDED].concat()).await));
    let senders: Vec<_> = (0..chats)
        .map(|chat| {
            let app = Arc::clone(&app);
            #[expect(clippy::disallowed_methods, reason = "a client of the test, not a task of the platform")]
            tokio::spawn(async move {
                let mut accepted = Vec::new();
                for number in 0..MESSAGES_OF_A_CHAT {
                    // The first is answered late, so that others wait for it.
                    let slow = if number == 0 { "/wait 3s\n" } else { "" };
                    let text = format!("{slow}/delay 5ms\n/say reply {number} to {chat} done");
                    accepted.push(send(&app, "default", chat, number, &text).await);
                }
                accepted
            })
        })
        .collect();
    kill(&app, kills).await;
    let mut accepted = HashMap::new();
    for (chat, sender) in senders.into_iter().enumerate() {
        accepted.insert(chat, sender.await.expect("every message was accepted"));
    }
    let app = app.read().await;
    let ends = (0..chats).map(|chat| {
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
    assert!(
        turns < chats * MESSAGES_OF_A_CHAT,
        "some messages waited for a turn and shared it, or the queue was not tried"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_may_not_be_repeated_is_called_at_most_once_whenever_the_process_dies() {
    let chats = CHATS * factor(3);
    let settings =
        [("PLATFORM_RUN_LEASE", "1s"), ("PLATFORM_RUN_HEARTBEAT", "300ms"), ("PLATFORM_RUN_MAX_ATTEMPTS", "50")];
    let (app, server, _db) = app_with_tools(&[&settings[..], &UNBOUNDED].concat()).await;
    let tools = [
        tool("pay", "/slow/30", &json!({"method": "POST"})),
        tool("read", "/slow/31", &json!({})),
        tool("mail", "/slow/32", &json!({"method": "POST", "requiresApproval": true})),
    ];
    let id = tool_server(&app, server.url(), &tools).await;
    let helper = json!({"name": "h", "identifier": "helper", "availableToolsGroupsUids": [id]});
    assert_eq!(app.post("/assistants", helper).await.status, StatusCode::CREATED);
    let app = Arc::new(RwLock::new(app));
    let senders: Vec<_> = (0..chats)
        .map(|chat| {
            let app = Arc::clone(&app);
            #[expect(clippy::disallowed_methods, reason = "a client of the test, not a task of the platform")]
            tokio::spawn(async move {
                for number in 0..4 {
                    send(&app, "helper", chat, number, "/tool pay\n/tool read\n/tool pay\n/tool read\nDone").await;
                }
                send(&app, "helper", chat, 4, "/tool mail\nDone").await;
            })
        })
        .collect();
    kill(&app, KILLS * factor(5)).await;
    for sender in senders {
        sender.await.expect("every message was accepted");
    }
    let approvals = (0..chats).map(|chat| approve(&app, chat));
    let approved = tokio::time::timeout(PATIENCE, futures_util::future::join_all(approvals)).await;
    approved.expect("every chat waits for approval");
    kill(&app, 3 * factor(3)).await;
    let app = app.read().await;
    let mut calls: HashMap<String, usize> = HashMap::new();
    let (mut paid, mut unknown) = (0, 0);
    for chat in 0..chats {
        let name = format!("chat-{chat}");
        let ended = tokio::time::timeout(LEASE + Duration::from_secs(20), finished_of(&app, "helper", &name));
        let messages = ended.await.expect("no chat is stuck")["chatContent"].clone();
        let messages = messages.as_array().expect("messages");
        let asked = messages.iter().flat_map(|message| message["tool_calls"].as_array().into_iter().flatten());
        let asked: Vec<(&str, &str)> =
            asked.filter_map(|call| Some((call["id"].as_str()?, call["function"]["name"].as_str()?))).collect();
        let answered = messages.iter().filter(|message| message["role"] == "tool");
        let answered: Vec<(&str, &Value)> = answered
            .filter_map(|message| Some((message["tool_call_id"].as_str()?, &message["content"]["data"])))
            .collect();
        assert_eq!(
            asked.iter().map(|call| call.0).collect::<Vec<_>>(),
            answered.iter().map(|call| call.0).collect::<Vec<_>>(),
            "one result for each call, in order"
        );
        for ((id, name), (_, result)) in asked.into_iter().zip(answered) {
            assert!(
                result["slept"].is_string() || (name != "read" && result["error"] == "RESULT_UNKNOWN"),
                "{name}: {result}"
            );
            if name != "read" {
                calls.insert(id.to_owned(), 0);
                paid += usize::from(result["slept"].is_string());
                unknown += usize::from(result["error"].is_string());
            }
        }
    }
    for request in server.recorded().iter().filter(|request| request.method == "POST") {
        *calls.entry(request.header("idempotency-key").to_owned()).or_insert(100) += 1;
    }
    assert!(calls.values().all(|count| *count <= 1), "never twice, and nothing that no answer asked for: {calls:?}");
    assert!(unknown > 0 && paid > 10, "kills came between call and result: {paid} paid, {unknown} unknown");
}

/// Approves what a chat waits for, once it does.
async fn approve(app: &RwLock<TestApp>, chat: usize) {
    let (app, chat) = (app.read().await, format!("chat-{chat}"));
    let call = loop {
        let mut frames = Frames::open_of(&app, "helper", &chat, false).await;
        let mut next = frames.next().await;
        while next.as_ref().is_some_and(|frame| frame.data["pendingToolCalls"].is_null()) {
            next = frames.next().await;
        }
        if let Some(call) = next.and_then(|frame| frame.data["pendingToolCalls"][0]["id"].as_str().map(str::to_owned)) {
            break call;
        }
    };
    let answer = json!({"responses": [{"tool_call_id": call, "content": "approved"}]});
    let path = format!("/assistants/helper/chats/{chat}/tool-response");
    assert_eq!(app.post(&path, answer).await.status, StatusCode::OK);
}

const THREADS: usize = 32;
const AT_ONCE: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn threads_with_tools_approvals_and_sub_agents_end_whenever_the_process_dies() {
    let threads = THREADS * factor(4);
    let settings =
        [("PLATFORM_RUN_LEASE", "1s"), ("PLATFORM_RUN_HEARTBEAT", "300ms"), ("PLATFORM_RUN_MAX_ATTEMPTS", "50")];
    let (app, server, db) = app_with_tools(&[&settings[..], &UNBOUNDED].concat()).await;
    let tools = [
        tool("pay", "/slow/30", &json!({"method": "POST"})),
        tool("read", "/slow/31", &json!({})),
        tool("mail", "/slow/32", &json!({"method": "POST", "requiresApproval": true})),
    ];
    let tools = tool_server(&app, server.url(), &tools).await;
    let specialization = json!({"availableToolsGroupsUids": [tools]});
    let helper = agent(
        &app,
        json!({"subAgentConfig": {"enabled": true}, "concurrentExecutionLimit": 1000,
        "assistantSpecialization": specialization}),
    )
    .await;
    listen(&app).await;
    let lead = json!({"availableToolsGroupsUids": [tools], "subagentsIds": [helper]});
    let lead = agent(&app, json!({"concurrentExecutionLimit": AT_ONCE, "assistantSpecialization": lead})).await;
    let hand_off = json!({"agentId": helper, "input": "/tool pay\n/tool read\nDone"});
    let text = format!("/tool pay\n/tool read\n/tool mail\n/say x\n/tool hand_off_subagent {hand_off}\nDone");
    let app = Arc::new(RwLock::new(app));
    let path = format!("/agents/{lead}/threads");
    let clients: Vec<_> = (0..threads)
        .map(|number| {
            let (app, path, text) = (Arc::clone(&app), path.clone(), text.clone());
            #[expect(clippy::disallowed_methods, reason = "a client of the test, not a task of the platform")]
            tokio::spawn(async move { see_through(&app, &path, number, &text).await })
        })
        .collect();
    kill(&app, KILLS * factor(4)).await;
    let mut work: Vec<(i64, i64)> = Vec::new();
    let (mut calls, mut unknown): (HashMap<String, usize>, usize) = (HashMap::new(), 0);
    let mut ids = std::collections::HashSet::new();
    for client in clients {
        let thread = tokio::time::timeout(Duration::from_mins(2), client).await.expect("no thread is stuck");
        let thread = thread.expect("every thread completes");
        ids.insert(thread["_id"].as_str().expect("an id").to_owned());
        let asked: Vec<&Value> =
            messages(&thread).flat_map(|m| m["tool_calls"].as_array().into_iter().flatten()).collect();
        let answered: Vec<&Value> = messages(&thread).filter(|m| m["role"] == "tool").collect();
        assert_eq!((asked.len(), answered.len()), (4, 4), "one result for each call");
        for (call, answer) in asked.iter().zip(&answered) {
            assert_eq!(call["id"], answer["tool_call_id"], "in order");
            let result = &answer["content"]["data"];
            unknown += usize::from(result["error"] == "RESULT_UNKNOWN");
            calls.insert(call["id"].as_str().expect("an id").to_owned(), 0);
            let name = call["function"]["name"].as_str().expect("a name");
            let good = result["slept"].is_string() || result["state"] == "completed";
            assert!(
                good || (matches!(name, "pay" | "mail") && result["error"] == "RESULT_UNKNOWN"),
                "{name}: {result}"
            );
        }
        let changes = thread["threadStatesChanges"].as_array().expect("a history");
        for pair in changes.windows(2).filter(|pair| pair[0]["state"] == "processing") {
            let at = |change: &Value| change["timestamp"].as_i64().expect("a time");
            work.push((at(&pair[0]), at(&pair[1])));
        }
    }
    assert_eq!(ids.len(), threads, "one thread for each key");
    let most = work.iter().map(|(at, _)| work.iter().filter(|(from, to)| from <= at && at < to).count()).max();
    assert!(most <= Some(AT_ONCE), "{most:?} threads were in processing at once");
    let mut posts: HashMap<String, usize> = HashMap::new();
    for request in server.recorded().iter().filter(|request| request.method == "POST") {
        *posts.entry(request.header("idempotency-key").to_owned()).or_default() += 1;
    }
    assert!(posts.values().all(|count| *count == 1), "never twice: {posts:?}");
    assert!(unknown > 0, "no kill came between a call and its result");
    let threads = i64::try_from(2 * threads).expect("a small number");
    assert_eq!(db.number("SELECT count(*) AS n FROM threads").await, threads, "one sub-thread for each call");
    let torn = "SELECT count(*) AS n FROM (SELECT data ->> 'previousState' AS told,
        lag(data ->> 'state') OVER (PARTITION BY thread_id ORDER BY id) AS was FROM events
        WHERE kind = 'thread.state_changed') e WHERE told IS DISTINCT FROM was";
    assert_eq!(db.number(torn).await, 0, "each change is an event, and follows the one before");
    let (changes, events) = (
        "SELECT sum(jsonb_array_length(changes))::bigint AS n FROM threads",
        "SELECT count(*) AS n FROM events WHERE kind = 'thread.state_changed'",
    );
    assert_eq!(db.number(changes).await, db.number(events).await);
}

/// Starts a thread and approves what it waits for, until it is completed.
async fn see_through(app: &RwLock<TestApp>, path: &str, number: usize, text: &str) -> Value {
    // Whoever gets no answer asks again with the same key.
    let id = loop {
        let app = app.read().await;
        let body = json!({"message": text, "tags": [format!("n{number}")]});
        let request = app.request(Method::POST, path).header("idempotency-key", format!("start-{number}"));
        if let Ok(answer) = request.json(&body).send().await
            && answer.status() == StatusCode::CREATED
            && let Ok(started) = answer.json::<Value>().await
        {
            break started["_id"].as_str().expect("an id").to_owned();
        }
    };
    loop {
        let now = {
            let app = app.read().await;
            let request = app.request(Method::GET, &format!("/agents/threads/{id}")).send().await;
            let Ok(answer) = request else { continue };
            answer.json::<Value>().await.unwrap_or_default()
        };
        match now["state"].as_str() {
            Some("completed") => return now,
            Some("paused_for_approval") => {
                let app = app.read().await;
                let approval = app.request(Method::POST, &format!("/agents/threads/{id}/approval"));
                let _ = approval.json(&json!({"action": "approved"})).send().await;
            }
            Some("failed" | "terminated") => panic!("it failed: {now:#}"),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn messages(thread: &Value) -> impl Iterator<Item = &Value> {
    thread["threadContent"].as_array().into_iter().flatten()
}
