//! Many processes over one database: what one works is watched on all.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use platform_testing::{NatsServer, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::support::{Folded, Frames, PATIENCE, PROGRAM, agent, eventually, is_terminal, thread};

const WORDS: &str = "/delay 60ms\n/say one two three four five six seven eight nine ten eleven twelve thirteen";

/// A name nobody has used.
fn another() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("again-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// How a stream was seen to grow: frames in which text was added, and the last state.
async fn watched(frames: Frames) -> (usize, Folded) {
    watched_on(frames, Folded::default()).await
}

/// The same from a state on.
async fn watched_on(mut frames: Frames, mut folded: Folded) -> (usize, Folded) {
    let mut grown = 0;
    while let Some(frame) = frames.next().await {
        let before = folded.reply();
        folded.fold(&frame);
        let reply = folded.reply();
        assert!(reply.starts_with(&before), "text only grows: {before:?} {reply:?}");
        grown += usize::from(reply.len() > before.len());
    }
    (grown, folded)
}

/// Sends a message to one process and follows it there; how often its text grew.
async fn streamed(app: &TestApp, chat: &str) -> usize {
    let body = json!({"message": WORDS, "chatUid": chat, "skipSummarization": true});
    assert_eq!(app.post("/assistants/default/messages?async=true", body).await.status, StatusCode::OK);
    let (grown, folded) = watched(Frames::open(app, chat, true).await).await;
    assert!(is_terminal(&folded.0), "it ends with the last state: {:?}", folded.0);
    let stored = app.get(&format!("/assistants/default/chats/{chat}")).await.body;
    assert_eq!(stored["chatContent"][1]["content"]["message"], folded.reply());
    grown
}

#[tokio::test]
async fn what_a_worker_writes_streams_on_the_process_that_answers() {
    let Some(mut nats) = NatsServer::start() else { return };
    let (db, url) = (TestDb::new().await, nats.url());
    let log = std::env::temp_dir().join(format!("fleet-{}.log", std::process::id()));
    let settings = |role| [("PLATFORM_ROLE", role), ("PLATFORM_NATS_URL", url.as_str()), ("PLATFORM_LOG", "info")];
    let api = TestApp::start_logging(PROGRAM, &db, &settings("api"), &log);
    let all = TestApp::start(PROGRAM, &db, &[("PLATFORM_NATS_URL", url.as_str())]);
    // Only one of them works: the other one's streams come over the bus.
    let grown = streamed(&api, "first").await;
    assert!(grown > 5, "the reply was seen to grow: {grown}");
    // Some come in the middle, at both processes, and see the same.
    let body = json!({"message": WORDS, "chatUid": "second", "skipSummarization": true});
    api.post("/assistants/default/messages?async=true", body).await;
    let mut first = Frames::open(&api, "second", true).await;
    let mut begun = Folded::default();
    while begun.reply().is_empty() {
        begun.fold(&first.next().await.expect("a frame"));
    }
    let late = [Frames::open(&api, "second", false).await, Frames::open(&all, "second", true).await];
    let seen = join_all(late.map(watched)).await;
    assert!(seen.iter().all(|(grown, folded)| *grown > 3 && is_terminal(&folded.0)));
    let stored = all.get("/assistants/default/chats/second").await.body;
    assert!(seen.iter().all(|(_, folded)| stored["chatContent"][1]["content"]["message"] == folded.reply()));
    // A stop at one process ends the run at the other, and its stream with it.
    let body = json!({"message": format!("{WORDS} {WORDS}"), "chatUid": "third"});
    api.post("/assistants/default/messages?async=true", body).await;
    let mut frames = Frames::open(&api, "third", true).await;
    frames.next().await.expect("a frame");
    let asked = Instant::now();
    assert_eq!(api.post("/assistants/default/chats/third/stop", json!({})).await.status, StatusCode::OK);
    while frames.next().await.is_some() {}
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    // Threads, too.
    let agent = agent(&api, json!({})).await;
    let thread = thread(&api, &agent, WORDS).await;
    let mut frames = Frames::follow(&api, &format!("/agents/threads/{thread}/stream?partial=1")).await;
    let mut deltas = 0;
    while let Some(frame) = frames.next().await {
        deltas += usize::from(frame.event == "delta");
    }
    assert!(deltas > 3, "{deltas}");

    // Without the bus chats go on and streams follow the store; with it again they grow again.
    nats.down();
    let away = async || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("NATS is away")).then_some(());
    eventually("the log says so", away).await;
    let grown = timeout(PATIENCE, streamed(&api, "alone")).await.expect("it ends");
    assert!(grown <= 1, "it comes with the commit: {grown}");
    nats.up();
    let back = async |n: usize| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        (log.matches("NATS connects the processes").count() >= n).then_some(())
    };
    eventually("it is back", async || back(2).await).await;
    // The other process may need a moment longer to find its way back.
    let grows = async || (streamed(&api, &another()).await > 5).then_some(());
    eventually("streams grow again", grows).await;
    let _ = std::fs::remove_file(&log);
}

/// The text of a message that is written in about six seconds.
fn slow() -> String {
    format!("/delay 100ms\n/say {}", "word ".repeat(60))
}

#[tokio::test]
async fn a_stream_elsewhere_ends_with_its_turn_also_when_nats_is_away_or_silent() {
    let Some(mut nats) = NatsServer::start() else { return };
    let (db, url) = (TestDb::new().await, nats.url());
    let log = std::env::temp_dir().join(format!("fleet-silent-{}.log", std::process::id()));
    let settings = |role| [("PLATFORM_ROLE", role), ("PLATFORM_NATS_URL", url.as_str()), ("PLATFORM_LOG", "info")];
    let api = TestApp::start_logging(PROGRAM, &db, &settings("api"), &log);
    let _worker = TestApp::start(PROGRAM, &db, &[("PLATFORM_NATS_URL", url.as_str())]);
    let said = |what: &str| std::fs::read_to_string(&log).map_or(0, |log| log.matches(what).count());
    for (round, chat) in ["away", "back", "silent"].into_iter().enumerate() {
        let body = json!({"message": slow(), "chatUid": chat, "skipSummarization": true});
        assert_eq!(api.post("/assistants/default/messages?async=true", body).await.status, StatusCode::OK);
        let mut frames = Frames::open(&api, chat, true).await;
        let mut folded = Folded::default();
        while folded.reply().is_empty() {
            folded.fold(&frames.next().await.expect("a frame"));
        }
        match chat {
            "silent" => nats.signal("STOP"),
            _ => nats.down(),
        }
        let is_noticed = async || (said("NATS is away") > round).then_some(());
        timeout(Duration::from_secs(10), eventually("the log says so", is_noticed)).await.expect("within seconds");
        if chat == "back" {
            nats.up();
        }
        let ended = async {
            let path = format!("/assistants/default/chats/{chat}?omitContent=true");
            let is_over = async || is_terminal(&api.get(&path).await.body).then(Instant::now);
            eventually("the turn ends", is_over).await
        };
        let (ended, (closed, folded)) = tokio::join!(ended, async {
            let (_, folded) = watched_on(frames, folded).await;
            (Instant::now(), folded)
        });
        let late = closed.saturating_duration_since(ended);
        assert!(is_terminal(&folded.0) && late < Duration::from_secs(3), "{chat}: {late:?} {:?}", folded.0);
        match chat {
            "silent" => nats.signal("CONT"),
            "away" => nats.up(),
            _ => {}
        }
        let is_back = async || (said("NATS connects the processes") > round + 1).then_some(());
        eventually("it is back", is_back).await;
    }
    let grows = async || (streamed(&api, &another()).await > 5).then_some(());
    eventually("streams grow again", grows).await;
    let _ = std::fs::remove_file(&log);
}

/// Sends a message to one process after the other until one takes it.
async fn sent(urls: &Mutex<Vec<String>>, key: &str, chat: &str, n: usize) {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().expect("a client");
    let patience = Instant::now() + Duration::from_mins(1);
    for turn in n.. {
        let url = {
            let urls = urls.lock().expect("lock");
            urls[turn % urls.len()].clone()
        };
        let body = json!({"message": format!("/delay 20ms\nmessage {n}"), "chatUid": chat, "skipSummarization": true});
        let request = client.post(format!("{url}/v1/assistants/default/messages?async=true")).bearer_auth(key);
        let answer = request.header("idempotency-key", format!("{chat}-{n}")).json(&body).send().await;
        match answer.map(|answer| answer.status()) {
            Ok(StatusCode::OK) => return,
            // It shuts down, or is gone: another one takes it.
            Ok(status) => assert!(status == StatusCode::CONFLICT || status.is_server_error(), "{status}"),
            Err(_) => {}
        }
        assert!(Instant::now() < patience, "nobody takes {chat}-{n}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn ten_processes_are_replaced_one_by_one_under_load_and_nothing_is_lost_or_answered_twice() {
    const CHATS: usize = 30;
    const EACH: usize = 6;
    const PROCESSES: usize = 10;
    let (db, nats) = (TestDb::new().await, NatsServer::start());
    let url = nats.as_ref().map(NatsServer::url).unwrap_or_default();
    let mut settings = vec![
        ("PLATFORM_DATABASE_POOL", "6"),
        ("PLATFORM_RUN_LEASE", "3s"),
        ("PLATFORM_RUN_HEARTBEAT", "1s"),
        ("PLATFORM_SHUTDOWN_GRACE", "3s"),
    ];
    if nats.is_some() {
        settings.push(("PLATFORM_NATS_URL", &url));
    }
    let start = || TestApp::start(PROGRAM, &db, &settings);
    let mut fleet: Vec<TestApp> = (0..PROCESSES).map(|_| start()).collect();
    let replaced = watch::Sender::new(0_usize);
    let key = fleet[0].key().to_owned();
    let urls = Mutex::new(fleet.iter().map(|app| app.url().to_owned()).collect::<Vec<_>>());
    let clients = join_all((0..CHATS).map(|chat| {
        let (urls, key, chat, mut replaced) = (&urls, &key, format!("chat-{chat}"), replaced.subscribe());
        async move {
            for n in 0..EACH {
                // Spread over the time in which processes come and go.
                replaced.wait_for(|replaced| replaced * EACH >= n * PROCESSES).await.expect("it goes on");
                sent(urls, key, &chat, n).await;
            }
        }
    }));
    let replacing = async {
        for (place, process) in fleet.iter_mut().enumerate() {
            let next = start();
            next.url().clone_into(&mut urls.lock().expect("lock")[place]);
            let last = std::mem::replace(process, next);
            // Every other one dies without a word.
            if place % 2 == 0 {
                last.signal("TERM");
                assert_eq!(last.ended().await, Some(0));
            } else {
                drop(last);
            }
            replaced.send_modify(|replaced| *replaced += 1);
        }
        fleet
    };
    let (_, fleet) = tokio::join!(clients, replacing);
    for chat in 0..CHATS {
        let path = format!("/assistants/default/chats/chat-{chat}");
        let app = &fleet[chat % fleet.len()];
        let settled = async || {
            let chat = app.get(&path).await.body;
            let is_over =
                chat["status"] == "completed" && chat["chatContent"].as_array().is_some_and(|all| all.len() > EACH);
            is_over.then_some(chat)
        };
        let chat = eventually("the chat is answered", settled).await;
        let said: Vec<&str> = chat["chatContent"]
            .as_array()
            .expect("messages")
            .iter()
            .filter(|message| message["role"] == "user")
            .map(|message| message["content"]["message"].as_str().expect("text"))
            .collect();
        let expected: Vec<String> = (0..EACH).map(|n| format!("/delay 20ms\nmessage {n}")).collect();
        assert_eq!(said, expected, "each once, in order");
        let last = chat["chatContent"].as_array().and_then(|all| all.last()).expect("a message");
        assert_eq!(last["role"], "assistant");
    }
    assert_eq!(db.number("SELECT count(*) AS n FROM runs WHERE kind = 'chat'").await, 0, "nothing is left to do");
}
