//! Messages to a busy chat, and what a chat does (contract 02 §3 and §6).

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use platform_testing::{Ending, Script, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Frames, PATIENCE, PROGRAM, app, app_with_model, finished};

async fn assistant(app: &TestApp, identifier: &str, mut settings: Value) {
    settings["name"] = json!(identifier);
    settings["identifier"] = json!(identifier);
    let made = app.post("/assistants", settings).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
}

async fn send(app: &TestApp, assistant: &str, chat: &str, message: &str) -> Value {
    let body = json!({"chatUid": chat, "message": message});
    let reply = app.post(&format!("/assistants/{assistant}/messages?async=true"), body).await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    reply.body
}

async fn realtime(app: &TestApp, assistant: &str, chat: &str) -> Value {
    app.get(&format!("/assistants/{assistant}/chats/{chat}/realtime")).await.body
}

/// Follows a chat until its state is what is waited for.
async fn until(app: &TestApp, assistant: &str, chat: &str, is: impl Fn(&Value) -> bool) -> Value {
    let seen = async {
        loop {
            let mut frames = Frames::open_of(app, assistant, chat, false).await;
            while let Some(frame) = frames.next().await {
                if is(&frame.data) {
                    return frame.data;
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.expect("the state that is waited for")
}

fn texts(chat: &Value) -> Vec<(&str, &str)> {
    let messages = chat["chatContent"].as_array().or(chat["chatHistory"].as_array()).expect("messages");
    let text = |message| -> Option<(&str, &str)> {
        let message: &Value = message;
        Some((message["role"].as_str()?, message["content"]["message"].as_str()?))
    };
    messages.iter().filter_map(text).collect()
}

#[tokio::test]
async fn messages_to_a_busy_chat_wait_and_are_answered_together_in_the_next_turn() {
    let (app, model) = app_with_model(&[]).await;
    model.hold();
    assert!(send(&app, "default", "c", "first").await.get("queued").is_none());
    let mut frames = Frames::open(&app, "c", true).await;
    let second = send(&app, "default", "c", "second").await;
    let expected = json!({"chatUid": "c", "messageUid": second["messageUid"], "queued": true, "queuePosition": 1,
        "willProcess": "next_turn"});
    assert_eq!(second, expected);
    let third = json!({"chatUid": "c", "message": "third", "metadata": {"seen": 3}, "tags": ["late"]});
    let third = app.post("/assistants/default/messages?async=true", third).await.body;
    assert_eq!(third["queuePosition"], 2);

    let state = realtime(&app, "default", "c").await;
    assert_eq!((&state["status"], &state["queuedMessages"]), (&json!("processing"), &json!(2)));
    let waiting = &state["pendingUserMessages"][0];
    assert_eq!(
        (&waiting["uid"], &waiting["role"], &waiting["content"]["message"], &waiting["willProcess"]),
        (&second["messageUid"], &json!("user"), &json!("second"), &json!("next_turn"))
    );
    assert_eq!(texts(&state), [("user", "first")], "what waits is not part of the history");
    model.let_go(2);

    // The stream shows what waits, goes on over the end of the turn, and closes when nothing waits.
    let mut seen = Vec::new();
    let mut last = 0;
    while let Some(frame) = frames.next().await {
        assert!(frame.id > last, "ids rise");
        last = frame.id;
        if frame.event == "snapshot" {
            seen.push((frame.data["status"].clone(), frame.data["queuedMessages"].clone()));
        }
    }
    assert!(seen.contains(&(json!("processing"), json!(2))), "{seen:?}");
    assert_eq!(seen.last(), Some(&(json!("completed"), json!(0))));
    let chat = app.get("/assistants/default/chats/c").await.body;
    let expected = [
        ("user", "first"),
        ("assistant", "Hello from the model."),
        ("user", "second"),
        ("user", "third"),
        ("assistant", "Hello from the model."),
    ];
    assert_eq!(texts(&chat), expected);
    assert_eq!((&chat["metadata"]["seen"], &chat["tags"]), (&json!(3), &json!(["late"])));
    assert_eq!(chat["chatContent"][3]["uid"], third["messageUid"]);
}

#[tokio::test]
async fn the_queue_has_an_end_and_can_be_switched_off_and_who_waits_for_an_answer_is_told_at_once() {
    let app = app().await;
    assistant(&app, "short", json!({"maxQueuedMessages": 1})).await;
    send(&app, "short", "s", "/wait 60s").await;
    send(&app, "short", "s", "one waits").await;
    let full = app.post("/assistants/short/messages?async=true", json!({"chatUid": "s", "message": "x"})).await;
    assert_eq!((full.status, full.error()), (StatusCode::CONFLICT, "QUEUE_FULL"));
    assert_eq!(full.body["details"]["status"], "processing");
    let sync = app.post("/assistants/short/messages", json!({"chatUid": "s", "message": "x"})).await;
    assert_eq!((sync.status, sync.error()), (StatusCode::CONFLICT, "CHAT_BUSY"));

    assistant(&app, "off", json!({"messageQueueEnabled": false})).await;
    send(&app, "off", "o", "/wait 60s").await;
    let busy = app.post("/assistants/off/messages?async=true", json!({"chatUid": "o", "message": "x"})).await;
    assert_eq!((busy.status, busy.error()), (StatusCode::CONFLICT, "CHAT_BUSY"));
    // What does not belong here does not wait here.
    let other = json!({"chatUid": "s", "message": "x", "tenantId": "t"});
    assert_eq!(app.post("/assistants/short/messages?async=true", other).await.error(), "TENANT_MISMATCH");
    let foreign = app.post("/assistants/off/messages?async=true", json!({"chatUid": "s", "message": "x"})).await;
    assert_eq!(foreign.error(), "CHAT_NOT_FOUND");
    for (chat, of) in [("s", "short"), ("o", "off")] {
        app.post(&format!("/assistants/{of}/chats/{chat}/stop"), json!({})).await;
    }
}

#[tokio::test]
async fn a_failed_turn_leaves_its_queue_and_the_next_begins_at_once() {
    let app = app().await;
    send(&app, "default", "f", "/wait 300ms\n/fail 400").await;
    send(&app, "default", "f", "and now?").await;
    let chat = finished(&app, "f").await;
    let expected = [("user", "/wait 300ms\n/fail 400"), ("user", "and now?"), ("assistant", "Demo reply: and now?")];
    assert_eq!(texts(&chat), expected);
    assert_eq!((&chat["status"], &chat["stopReason"]), (&json!("completed"), &json!("end_turn")));
}

#[tokio::test]
async fn a_turn_that_answers_what_waited_ends_as_any_other() {
    // One worker: the next turn of the chat waits for a place, and takes in what comes until then.
    let (app, model) = app_with_model(&[("PLATFORM_WORKER_CONCURRENCY", "1")]).await;
    model.hold();
    send(&app, "default", "c", "first").await;
    send(&app, "default", "c", "second").await;
    model.called(1).await;
    send(&app, "default", "other", "takes the place").await;
    model.let_go(1);
    let ended = |state: &Value| state["chatHistory"].as_array().map(Vec::len) == Some(2);
    let between = until(&app, "default", "c", ended).await;
    assert_eq!((&between["status"], &between["queuedMessages"]), (&json!("processing"), &json!(1)));
    assert_eq!(send(&app, "default", "c", "third").await["queuePosition"], 2);
    model.let_go(2);
    let chat = finished(&app, "c").await;
    let asked = model.recorded();
    let asked = asked.last().expect("calls").body["messages"].as_array().expect("messages");
    let asked: Vec<_> = asked.iter().rev().take(2).map(|message| &message["content"]).collect();
    assert_eq!(asked, ["third", "second"]);
    assert_eq!(texts(&chat).last(), Some(&("assistant", "Hello from the model.")));
    assert_eq!((&chat["status"], &chat["stopReason"]), (&json!("completed"), &json!("end_turn")));

    // A failure is seen while what waits has no place yet; a stop then ends the chat, and the next message counts.
    model.script([Script::refusal(400)]);
    send(&app, "default", "f", "fails").await;
    send(&app, "default", "f", "waits").await;
    model.called(4).await;
    send(&app, "default", "other", "takes the place").await;
    model.let_go(1);
    let failed = until(&app, "default", "f", |state| state["status"] == "error").await;
    assert_eq!((&failed["error"]["code"], &failed["queuedMessages"]), (&json!("PROVIDER_ERROR"), &json!(1)));
    let sync = app.post("/assistants/default/messages", json!({"chatUid": "f", "message": "x"})).await;
    assert_eq!(sync.error(), "CHAT_BUSY");
    let stopped = app.post("/assistants/default/chats/f/stop", json!({})).await;
    assert_eq!(stopped.body["discardedMessages"].as_array().map(Vec::len), Some(1), "{:?}", stopped.body);
    send(&app, "default", "f", "after the stop").await;
    model.let_go(2);
    let chat = finished(&app, "f").await;
    let expected = [("user", "fails"), ("user", "after the stop"), ("assistant", "Hello from the model.")];
    assert_eq!(texts(&chat), expected);
}

#[tokio::test]
async fn a_stop_discards_what_waits_and_tells_it() {
    let app = app().await;
    send(&app, "default", "c", "/delay 50ms\n/tokens 500").await;
    let waiting = send(&app, "default", "c", "never answered").await;
    until(&app, "default", "c", |state| state["streamingMessage"].is_object()).await;
    let stopped = app.post("/assistants/default/chats/c/stop", json!({})).await;
    assert_eq!(stopped.status, StatusCode::OK);
    let discarded = &stopped.body["discardedMessages"];
    assert_eq!((discarded.as_array().map(Vec::len), &discarded[0]["uid"]), (Some(1), &waiting["messageUid"]));
    let state = realtime(&app, "default", "c").await;
    assert_eq!(
        (&state["status"], &state["stopReason"], &state["queuedMessages"]),
        (&json!("completed"), &json!("stopped_by_user"), &json!(0))
    );
    assert_eq!(texts(&state).len(), 2, "the message and what was written of its reply");
    let again = app.post("/assistants/default/chats/c/stop", json!({})).await;
    assert_eq!((again.status, again.error()), (StatusCode::CONFLICT, "CHAT_NOT_PROCESSING"));
    // Afterwards the chat is as any other.
    let reply = app.post("/assistants/default/messages", json!({"chatUid": "c", "message": "on"})).await;
    assert_eq!(reply.body[1]["content"]["message"], "Demo reply: on");
}

#[tokio::test]
async fn a_delay_gathers_messages_into_one() {
    let app = app().await;
    assistant(&app, "slow", json!({"inputDelayMs": 1500})).await;
    let began = tokio::time::Instant::now();
    let first = send(&app, "slow", "b", "one").await;
    assert_eq!(
        (&first["queued"], &first["queuePosition"], &first["willProcess"]),
        (&json!(true), &json!(1), &json!("after_delay"))
    );
    let state = realtime(&app, "slow", "b").await;
    assert_eq!((&state["status"], &state["queuedMessages"]), (&json!("buffering"), &json!(1)));
    assert_eq!(state["pendingUserMessages"][0]["willProcess"], "after_delay");
    assert_eq!(state["chatHistory"], json!([]));
    let sync = app.post("/assistants/slow/messages", json!({"chatUid": "b", "message": "x"})).await;
    assert_eq!((sync.error(), &sync.body["details"]["status"]), ("CHAT_BUSY", &json!("buffering")));
    tokio::time::sleep_until(began + Duration::from_millis(400)).await;
    assert_eq!(send(&app, "slow", "b", "two").await["queuePosition"], 2);
    let done = until(&app, "slow", "b", |state| state["status"] == "completed").await;
    assert!(began.elapsed() >= Duration::from_millis(1900), "the second message started the delay anew");
    assert_eq!(texts(&done), [("user", "one\ntwo"), ("assistant", "Demo reply: one two")]);
    assert_eq!(done["chatHistory"][0]["uid"], first["messageUid"]);

    // Whoever goes on writing is answered after three times the delay.
    let began = Instant::now();
    let mut sent = 0;
    let mut keystrokes = tokio::time::interval(Duration::from_millis(400));
    while began.elapsed() < Duration::from_secs(40) {
        keystrokes.tick().await;
        let status = &realtime(&app, "slow", "w").await["status"];
        if sent > 0 && *status != "buffering" || send(&app, "slow", "w", "more").await["willProcess"] != "after_delay" {
            break;
        }
        sent += 1;
    }
    let written = began.elapsed().as_secs();
    assert!((4..40).contains(&written), "{sent} in {written} s");

    // A stop while it gathers gives everything back; a message sent and waited for is answered at once.
    until(&app, "slow", "w", |state| state["status"] == "completed").await;
    send(&app, "slow", "x", "forget this").await;
    send(&app, "slow", "x", "and this").await;
    let stopped = app.post("/assistants/slow/chats/x/stop", json!({})).await.body;
    let discarded = stopped["discardedMessages"].as_array().expect("messages");
    assert_eq!(discarded.len(), 1, "what was gathered is one message");
    assert_eq!(discarded[0]["content"]["message"], "forget this\nand this");
    let state = realtime(&app, "slow", "x").await;
    assert_eq!((&state["status"], &state["stopReason"]), (&json!("completed"), &json!("stopped_by_user")));
    let at_once = app.post("/assistants/slow/messages", json!({"chatUid": "x", "message": "now"})).await;
    assert_eq!(at_once.body[1]["content"]["message"], "Demo reply: now");
}

#[tokio::test]
async fn what_waits_survives_a_kill_and_a_lost_worker_is_given_up_at_its_last_attempt() {
    let settings =
        [("PLATFORM_RUN_LEASE", "1s"), ("PLATFORM_RUN_HEARTBEAT", "300ms"), ("PLATFORM_RUN_MAX_ATTEMPTS", "2")];
    let (mut app, model) = app_with_model(&settings).await;
    let hangs = || Script::words(&["a"]).ending(Ending::Hang, 0);
    model.script([hangs(), hangs()]);
    assistant(&app, "slow", json!({"inputDelayMs": 6000, "provider": "demo"})).await;
    let first = send(&app, "slow", "buffer", "one").await;
    send(&app, "default", "queue", "never answered").await;
    send(&app, "default", "queue", "waits").await;
    model.called(1).await;
    app.crash();
    send(&app, "slow", "buffer", "two").await;
    let done = until(&app, "slow", "buffer", |state| state["status"] == "completed").await;
    assert_eq!(texts(&done), [("user", "one\ntwo"), ("assistant", "Demo reply: one two")]);
    assert_eq!(done["chatHistory"][0]["uid"], first["messageUid"]);

    // Two attempts of a turn that never ends; then it is given up, and what waits is answered.
    model.called(2).await;
    app.crash();
    let chat = finished(&app, "queue").await;
    let reply = ("assistant", "Hello from the model.");
    assert_eq!(texts(&chat), [("user", "never answered"), ("user", "waits"), reply]);

    model.script([hangs(), hangs()]);
    let before = model.calls();
    send(&app, "default", "lost", "never answered").await;
    for attempt in 1..=2 {
        model.called(before + attempt).await;
        app.crash();
    }
    let lost = until(&app, "default", "lost", |state| state["status"] == "error").await;
    assert_eq!((&lost["error"]["code"], &lost["stopReason"]), (&json!("WORKER_LOST"), &json!("error")));
}

#[tokio::test]
async fn a_chat_that_is_deleted_takes_what_waits_with_it_and_a_deleted_assistant_stops_its_turns() {
    let app = app().await;
    assistant(&app, "gone", json!({"inputDelayMs": 30000})).await;
    send(&app, "gone", "buffering", "one").await;
    send(&app, "gone", "deleted", "one").await;
    let deleted = app.delete("/assistants/gone/chats/deleted").await;
    assert_eq!(deleted.status, StatusCode::OK, "{:?}", deleted.body);
    assert_eq!(realtime(&app, "gone", "deleted").await["error"], "CHAT_NOT_FOUND");
    app.delete("/assistants/gone").await;
    let state = until(&app, "gone", "buffering", |state| state["status"] == "completed").await;
    assert_eq!((&state["stopReason"], &state["queuedMessages"]), (&json!("stopped_by_user"), &json!(0)));
}

#[tokio::test]
async fn one_key_queues_one_message_and_the_last_of_the_queue_chooses_the_model() {
    let (app, model) = app_with_model(&[]).await;
    let pause = Duration::from_millis(100);
    model.script([Script::words(&["a ", "b ", "c ", "d ", "e ", "f "]).paced(pause)]);
    send(&app, "default", "c", "first").await;
    let body = json!({"chatUid": "c", "message": "second", "applicationState": {"old": 1}});
    let keyed =
        || app.request(reqwest::Method::POST, "/assistants/default/messages?async=true").header("idempotency-key", "k");
    let first = app.send(keyed().json(&body)).await;
    let again = app.send(keyed().json(&body)).await;
    assert_eq!((first.body["queuePosition"].as_i64(), again.header("idempotent-replayed")), (Some(1), "true"));
    assert_eq!(first.body, again.body);
    let last = json!({"chatUid": "c", "message": "third", "provider": "openai", "model": "gpt-4.1", "applicationState": {"new": 2}});
    app.post("/assistants/default/messages?async=true", last).await;
    let chat = finished(&app, "c").await;
    assert_eq!(
        texts(&chat).iter().map(|(role, _)| *role).collect::<Vec<_>>(),
        ["user", "assistant", "user", "user", "assistant"]
    );
    let sent = &model.recorded()[1].body;
    assert_eq!(sent["model"], "gpt-4.1");
    let contents: Vec<&str> =
        sent["messages"].as_array().expect("messages").iter().filter_map(|m| m["content"].as_str()).collect();
    assert_eq!(contents, ["first", "a b c d e f ", "State of the application: {\"new\":2}", "second", "third"]);
}

#[tokio::test]
async fn messages_a_stop_and_a_deletion_that_meet_in_one_chat_wait_for_each_other_in_no_circle() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_RATE_FULL", "0")]);
    assistant(&app, "meets", json!({})).await;
    let deadlocks = "SELECT deadlocks AS n FROM pg_stat_database WHERE datname = current_database()";
    let round = async |n: usize| {
        let chat = format!("meets-{n}");
        send(&app, "meets", &chat, "/wait 50ms").await;
        let (messages, one) = ("/assistants/meets/messages", format!("/assistants/meets/chats/{chat}"));
        let message = json!({"chatUid": chat, "message": "Hi"});
        let queued = format!("{messages}?async=true");
        let stop = format!("{one}/stop");
        let replies = tokio::join!(
            app.post(&queued, message.clone()),
            app.delete(&one),
            app.post(messages, message),
            app.post(&stop, json!({})),
        );
        for reply in [replies.0, replies.1, replies.2, replies.3] {
            assert!(reply.status.as_u16() < 500, "{}: {}", reply.status, reply.body);
        }
    };
    for some in (0..60).collect::<Vec<_>>().chunks(6) {
        join_all(some.iter().map(|n| round(*n))).await;
    }
    assert_eq!(db.number(deadlocks).await, 0);
}
