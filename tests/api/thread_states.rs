//! The states of a thread: what is allowed in each, and that no history shows another change.

use std::time::Duration;

use futures_util::future::join_all;
use platform_testing::TestApp;
use proptest::{
    prelude::{Strategy, prop},
    test_runner::{Config, TestRunner},
};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{act, agent, app_with_tools, states, thread, thread_in, tool, tool_server};

/// Contract 03 §10, with the states in which nothing more comes by itself in one line.
const ALLOWED: &[(&str, &[&str])] = &[
    ("under_construction", &["pause", "complete", "messages"]),
    ("queued", &["pause", "complete", "messages"]),
    ("handed_off", &["pause", "complete", "messages"]),
    ("paused_for_resume", &["pause", "complete", "messages", "resume"]),
    ("processing", &["pause", "complete", "messages"]),
    ("paused", &["resume", "complete", "messages", "pause"]),
    ("paused_for_approval", &["approval", "complete"]),
    ("waiting_for_response", &["pause", "complete", "messages", "tool-response"]),
    ("completed", ENDED),
    ("failed", ENDED),
    ("terminated", ENDED),
    ("approval_rejected", ENDED),
    ("guardrail_trigger", ENDED),
    ("limit_exceeded", ENDED),
];
const ENDED: &[&str] = &["messages", "evaluate", "delete"];

/// Contract 03 §4: which state may follow which; `""` = new.
const FOLLOWS: &[(&str, &[&str])] = &[
    ("", &["under_construction", "queued", "paused", "limit_exceeded"]),
    ("under_construction", &["queued", "paused", "failed", "limit_exceeded", "completed", "terminated"]),
    ("queued", &["processing", "paused", "paused_for_resume", "limit_exceeded", "completed", "failed", "terminated"]),
    (
        "processing",
        &[
            "queued",
            "paused",
            "paused_for_approval",
            "paused_for_resume",
            "waiting_for_response",
            "handed_off",
            "guardrail_trigger",
            "completed",
            "failed",
            "terminated",
        ],
    ),
    ("paused", &["queued", "handed_off", "waiting_for_response", "completed", "failed", "terminated"]),
    ("paused_for_resume", &["queued", "paused", "completed", "failed", "terminated"]),
    ("paused_for_approval", &["queued", "approval_rejected", "completed", "failed", "terminated"]),
    ("waiting_for_response", &["queued", "paused", "completed", "failed", "terminated"]),
    ("handed_off", &["queued", "paused", "completed", "failed", "terminated"]),
    ("completed", &["queued"]),
    ("failed", &["queued"]),
    ("terminated", &["queued"]),
    ("approval_rejected", &["queued"]),
    ("guardrail_trigger", &["queued"]),
    ("limit_exceeded", &["queued"]),
];

fn check_history(thread: &Value) {
    let mut before = "";
    for state in states(thread) {
        let (_, follows) = FOLLOWS.iter().find(|(from, _)| *from == before).expect("a state of the contract");
        assert!(follows.contains(&state), "{before} → {state} in {:?}", states(thread));
        before = state;
    }
    assert_eq!(before, thread["state"], "the history ends in the state");
    let times: Vec<_> = thread["threadStatesChanges"].as_array().expect("a history").iter().collect();
    assert!(times.is_sorted_by_key(|change| change["timestamp"].as_i64()), "time goes on");
}

async fn request(app: &TestApp, thread: &str, action: &str) -> platform_testing::Reply {
    let path = format!("/agents/threads/{thread}/{action}");
    match action {
        "delete" => app.delete(&format!("/agents/threads/{thread}")).await,
        "complete" => app.post(&path, json!({"state": "terminated"})).await,
        "approval" => app.post(&path, json!({"action": "approved"})).await,
        "messages" => app.post(&path, json!({"message": "more"})).await,
        "tool-response" => app.post(&path, json!({"responses": [{"tool_call_id": "c", "content": 1}]})).await,
        "evaluate" => app.post(&format!("{path}?async=true"), json!({})).await,
        _ => app.post(&path, json!({})).await,
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story over all states")]
async fn every_action_that_a_state_forbids_is_refused_and_says_what_is_allowed() {
    let (app, server, db) = app_with_tools(&[]).await;
    let tools = [
        tool("hold", "/hold", &json!({})),
        tool("pay", "/echo", &json!({"requiresApproval": true})),
        tool("later", "/status/202", &json!({"asyncCallback": true})),
    ];
    let tools = tool_server(&app, server.url(), &tools).await;
    let groups = json!([tools, "builtin-time"]);
    let guard = json!({"enabled": true, "input": [
        {"name": "g", "kind": "deny_list", "action": "block", "config": {"words": ["forbidden"]}}]});
    let helper = agent(
        &app,
        json!({"subAgentConfig": {"enabled": true},
        "assistantSpecialization": {"availableToolsGroupsUids": groups}}),
    )
    .await;
    let worker = agent(
        &app,
        json!({"concurrentExecutionLimit": 2, "assistantSpecialization": {
        "availableToolsGroupsUids": groups, "subagentsIds": [helper], "guardrailsConfiguration": guard}}),
    )
    .await;
    let into = async |message: &str, state: &str| {
        let id = thread(&app, &worker, message).await;
        thread_in(&app, &id, state).await;
        id
    };
    let file = json!({"message": "x", "files": [{"name": "f", "url": format!("{}/hold", server.url())}]});
    let held =
        app.post(&format!("/agents/{worker}/threads"), file).await.body["_id"].as_str().expect("an id").to_owned();
    let hand_off = format!("/tool hand_off_subagent {{\"agentId\": \"{helper}\", \"input\": \"/tool hold\"}}");
    let mut in_state = vec![
        ("under_construction", held),
        ("completed", into("Hello", "completed").await),
        ("failed", into("/fail 400", "failed").await),
        ("guardrail_trigger", into("forbidden", "guardrail_trigger").await),
        ("paused_for_resume", into("/tool wait_until {\"seconds\": 3000}", "paused_for_resume").await),
        ("paused_for_approval", into("/tool pay", "paused_for_approval").await),
        ("waiting_for_response", into("/tool later", "waiting_for_response").await),
        ("handed_off", into(&hand_off, "handed_off").await),
    ];
    let rejected = into("/tool pay", "paused_for_approval").await;
    act(&app, &rejected, "approval", json!({"action": "rejected"})).await;
    in_state.push(("approval_rejected", rejected));
    let terminated = into("/tool pay", "paused_for_approval").await;
    act(&app, &terminated, "complete", json!({"state": "CANCELLED"})).await;
    in_state.push(("terminated", terminated));
    let exceeded = into("Hello", "completed").await;
    db.run(&format!("UPDATE threads SET state = 'limit_exceeded' WHERE id = '{exceeded}'")).await;
    in_state.push(("limit_exceeded", exceeded));
    let paused = into("/tool wait_until {\"seconds\": 3000}", "paused_for_resume").await;
    act(&app, &paused, "pause", json!({})).await;
    in_state.push(("paused", paused));
    let held = into("/tool hold", "processing").await;
    into("/tool hold", "processing").await;
    in_state.push(("queued", thread(&app, &worker, "waits").await));
    in_state.push(("processing", held));
    assert_eq!(in_state.len(), ALLOWED.len(), "every state");

    let actions = ["pause", "resume", "complete", "approval", "messages", "tool-response", "evaluate", "delete"];
    for (state, allowed) in ALLOWED {
        let (_, id) = in_state.iter().find(|(of, _)| of == state).expect("a thread");
        for action in actions {
            // What holds already is no conflict.
            let holds = matches!((*state, action), ("queued" | "processing", "resume") | ("terminated", "complete"));
            if allowed.contains(&action) {
                continue;
            }
            let answer = request(&app, id, action).await;
            if holds {
                assert_eq!((answer.status, &answer.body["state"]), (StatusCode::OK, &json!(state)), "{state} {action}");
                continue;
            }
            assert_eq!(
                (answer.status, answer.error()),
                (StatusCode::CONFLICT, "THREAD_STATE_CONFLICT"),
                "{state} {action}"
            );
            assert_eq!(answer.body["details"]["state"], *state);
            assert_eq!(answer.body["details"]["allowed"], json!(allowed), "{state}");
            assert_eq!(
                app.get(&format!("/agents/threads/{id}")).await.body["state"],
                *state,
                "{action} changed nothing"
            );
        }
    }
    // What is allowed works, in an order that each state permits.
    for (state, id) in &in_state {
        if ALLOWED.iter().any(|(of, allowed)| of == state && allowed.contains(&"complete")) {
            assert_eq!(act(&app, id, "complete", json!({"state": "failed"})).await["finishReason"], "FAILED_BY_USER");
        }
        if *state != "limit_exceeded" {
            check_history(&app.get(&format!("/agents/threads/{id}")).await.body);
        }
        let again = act(&app, id, "messages", json!({"message": "Hello again"})).await;
        assert!(
            matches!(again["state"].as_str(), Some("queued" | "processing" | "completed")),
            "{state}: {}",
            again["state"]
        );
    }
    server.let_go();
    for (state, id) in &in_state {
        let ended = thread_in(&app, id, "completed").await;
        assert_eq!(ended["finishReason"], "COMPLETED", "{state}");
    }
}

#[derive(Debug, Clone)]
enum Fired {
    Pause(bool),
    Resume,
    Complete(&'static str),
    Say(&'static str),
    Decide(bool, bool),
    Respond,
    Rest(u64),
}

fn fired() -> impl Strategy<Value = Fired> {
    prop::sample::select(vec![
        Fired::Pause(true),
        Fired::Pause(false),
        Fired::Resume,
        Fired::Resume,
        Fired::Complete("completed"),
        Fired::Complete("failed"),
        Fired::Say("/tool echo\nmore"),
        Fired::Say("/tool pay\nmore"),
        Fired::Say("/tool later\nmore"),
        Fired::Say("/wait 30ms\nmore"),
        Fired::Say("/tool wait_until {\"seconds\": 0.05}\nmore"),
        Fired::Decide(true, false),
        Fired::Decide(false, true),
        Fired::Decide(false, false),
        Fired::Respond,
        Fired::Rest(5),
        Fired::Rest(40),
    ])
}

async fn fire(app: &TestApp, thread: &str, fired: &Fired) {
    let (action, body) = match fired {
        Fired::Pause(graceful) => ("pause", json!({"mode": if *graceful { "graceful" } else { "immediate" }})),
        Fired::Resume => ("resume", json!({})),
        Fired::Complete(state) => ("complete", json!({"state": state})),
        Fired::Say(text) => ("messages", json!({"message": text})),
        Fired::Decide(approved, retry) => ("approval", json!({"approved": approved, "retry": retry})),
        Fired::Respond => {
            let now = app.get(&format!("/agents/threads/{thread}?omitContent=true")).await.body;
            let Some(call) = now["pendingAsyncToolCalls"][0]["toolCallId"].as_str() else { return };
            ("tool-response", json!({"responses": [{"tool_call_id": call, "content": "r"}]}))
        }
        Fired::Rest(ms) => return tokio::time::sleep(Duration::from_millis(*ms)).await,
    };
    let answer = app.post(&format!("/agents/threads/{thread}/{action}"), body).await;
    let unknown_call = action == "tool-response" && answer.status == StatusCode::BAD_REQUEST;
    assert!(
        matches!(answer.status, StatusCode::OK | StatusCode::CONFLICT) || unknown_call,
        "{action}: {:?}",
        answer.body
    );
}

/// Every call has one result, and a result follows its call.
fn check_messages(thread: &Value) {
    let content = thread["threadContent"].as_array().expect("content");
    let mut open: Vec<&str> = Vec::new();
    for message in content {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            open.push(call["id"].as_str().expect("an id"));
        }
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().expect("an id");
            let at = open.iter().position(|open| *open == id);
            open.remove(at.unwrap_or_else(|| panic!("a result without its call, or twice: {id}")));
        }
    }
    assert!(open.is_empty(), "calls without a result: {open:?}");
}

#[test]
fn whatever_four_clients_do_at_once_the_history_is_one_that_the_contract_allows() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (app, worker, _server, db) = runtime.block_on(async {
        let (app, server, db) = app_with_tools(&[]).await;
        let tools = [
            tool("echo", "/echo", &json!({})),
            tool("pay", "/echo", &json!({"requiresApproval": true})),
            tool("later", "/status/202", &json!({"asyncCallback": true})),
        ];
        let tools = tool_server(&app, server.url(), &tools).await;
        let settings = json!({"assistantSpecialization": {"availableToolsGroupsUids": [tools, "builtin-time"]}});
        let worker = agent(&app, settings).await;
        (app, worker, server, db)
    });
    let clients = prop::collection::vec(prop::collection::vec(fired(), 10), 4);
    let config = Config { cases: 24, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&clients, |clients| {
            runtime.block_on(async {
                let id = thread(&app, &worker, "/tool echo\n/tool later\nBegin").await;
                join_all(clients.iter().map(async |actions| {
                    for action in actions {
                        fire(&app, &id, action).await;
                    }
                }))
                .await;
                let ended = app.post(&format!("/agents/threads/{id}/complete"), json!({"state": "terminated"})).await;
                assert!(matches!(ended.status, StatusCode::OK | StatusCode::CONFLICT), "{:?}", ended.body);
                let read = app.get(&format!("/agents/threads/{id}")).await.body;
                check_history(&read);
                check_messages(&read);
            });
            Ok(())
        })
        .expect("every history is allowed");
    runtime.block_on(async {
        let left = db.number("SELECT count(*) AS n FROM runs WHERE lane IS NOT NULL").await;
        assert_eq!(left, 0, "no thread left a run behind");
    });
}
