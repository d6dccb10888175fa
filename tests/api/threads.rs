//! `/v1/agents/{agentId}/threads`, `/v1/agents/threads/…`, `/v1/tool-callbacks/{token}`

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use platform_testing::{FakeModelServer, FakeToolServer, Script, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    access::{get, key},
    support::{
        Folded, Frames, PROGRAM, act, agent, app, app_with_tools, said, states, thread, thread_in, thread_until, tool,
        tool_server, user_with,
    },
};

/// An agent with the tools of a server.
async fn with_tools(app: &TestApp, server: &FakeToolServer, tools: &[Value], settings: Value) -> String {
    let id = tool_server(app, server.url(), tools).await;
    let mut specialization = json!({"availableToolsGroupsUids": [id, "builtin-time", "builtin-tasks"]});
    let mut all = json!({});
    for (name, value) in settings.as_object().expect("an object") {
        if name == "approvalTools" { specialization[name] = value.clone() } else { all[name] = value.clone() }
    }
    all["assistantSpecialization"] = specialization;
    agent(app, all).await
}

#[tokio::test]
async fn a_thread_runs_in_the_background_and_tells_what_it_did() {
    let app = app().await;
    let settings = json!({"assistantSpecialization": {"presets": "It is {{day}}.",
        "availableToolsGroupsUids": ["builtin-tasks"]}});
    let agent = agent(&app, settings).await;
    let body = json!({"message": "/tool set_tasks {\"tasks\":[{\"title\":\"Look\"}]}\nRun the report", "name": "Nightly",
        "tags": ["nightly", "nightly"], "tenantId": "acme", "metadata": {"promptTemplateParams": {"day": "Monday"}}});
    let path = format!("/agents/{agent}/threads");
    let request = || app.request(Method::POST, &path).header("idempotency-key", "7f3a").header("x-api-source", "cli");
    let started = app.send(request().json(&body)).await;
    assert_eq!(started.status, StatusCode::CREATED);
    let keys: Vec<&String> = started.body.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["_id", "agentId", "createdAt", "creationTimestampMs", "message", "state", "threadId"]);
    let id = started.body["_id"].as_str().expect("an id");
    let again = app.send(request().json(&body)).await;
    assert_eq!((&again.body, again.header("idempotent-replayed")), (&started.body, "true"));

    let ended = thread_in(&app, id, "completed").await;
    assert_eq!(states(&ended), ["queued", "processing", "completed"]);
    for (name, value) in [
        ("finishReason", json!("COMPLETED")),
        ("stopReason", json!("end_turn")),
        ("name", json!("Nightly")),
        ("tags", json!(["nightly"])),
        ("tenantId", json!("acme")),
        ("apiSource", json!("cli")),
        ("attempt", json!(1)),
        ("isSubthread", json!(false)),
        ("pauseRequested", json!(false)),
    ] {
        assert_eq!(ended[name], value, "{name}");
    }
    assert_eq!(ended["tasks"][0]["title"], "Look");
    assert!(ended["result"]["message"].as_str().expect("a result").starts_with("Demo reply: Run the report"));
    assert_eq!(ended["totalTokens"], ended["tokenUsage"]["totalTokens"]);
    let at = |name: &str| ended[name].as_i64().expect("a number");
    let (start, finish) = (at("startTimestampMs"), at("finishTimestampMs"));
    assert!(start <= finish && at("duration") <= finish - start);
    assert!(ended["threadContent"].as_array().expect("content").iter().all(|message| message["chatUid"] == id));

    let slice = app.get(&format!("/agents/threads/{id}?messageOffset=1&messageLimit=2")).await.body;
    assert_eq!(slice["threadContent"].as_array().map(Vec::len), Some(2));
    assert!(app.get(&format!("/agents/threads/{id}?omitContent=true")).await.body.get("threadContent").is_none());
    let found = app.get(&format!("/agents/threads/{id}/search?q=REPORT")).await.body;
    assert_eq!((found["total"].as_i64(), &found["matches"][0]["position"]), (Some(2), &json!(0)));
    assert_eq!(app.get("/agents/threads/tags").await.body, json!(["nightly"]));
    assert_eq!(app.get(&format!("/agents/agents/{agent}/threads/tags")).await.body, json!(["nightly"]));
    let told = app.get(&format!("/agents/threads/{id}/explain")).await;
    assert!(told.body.as_str().is_some_and(|text| text.starts_with("User: /tool set_tasks")), "{:?}", told.body);
    let charged = app.get(&format!("/agents/threads/{id}")).await.body["tokenUsage"]["secondaryByOperation"].clone();
    assert_eq!(charged["summary"]["calls"], 1);
    app.get(&format!("/agents/threads/{id}/explain")).await;
    let cached = app.get(&format!("/agents/threads/{id}")).await.body["tokenUsage"]["secondaryByOperation"].clone();
    assert_eq!(cached, charged, "what was explained is not asked again");

    let message = ended["threadContent"][0]["uid"].as_str().expect("an id");
    let path = format!("/agents/threads/{id}/feedback");
    let given = app.post(&path, json!({"messageId": message, "feedback": true})).await;
    assert_eq!((given.status, &given.body["agentId"]), (StatusCode::CREATED, &json!(agent)));
    let changed = app.post(&path, json!({"messageId": message, "feedback": false, "feedbackComment": "no"})).await;
    assert_eq!((changed.status, &changed.body["_id"]), (StatusCode::OK, &given.body["_id"]));
    assert_eq!(app.get(&path).await.body[0]["feedbackComment"], "no");
    assert_eq!(app.post(&path, json!({"messageId": "nobody", "feedback": true})).await.error(), "MESSAGE_NOT_FOUND");

    let patch = json!({"name": "Renamed", "tags": ["a"], "metadata": {"k": 1}});
    let changed = app.patch(&format!("/agents/threads/{id}"), patch).await.body;
    assert_eq!((&changed["name"], &changed["metadata"]), (&json!("Renamed"), &json!({"k": 1})));
    assert_eq!(app.delete(&format!("/agents/threads/{id}")).await.body["deletedId"], id);
    assert_eq!(app.get(&format!("/agents/threads/{id}")).await.error(), "THREAD_NOT_FOUND");
}

#[tokio::test]
async fn a_stream_shows_a_thread_under_the_rules_of_frames() {
    let app = app().await;
    let agent = agent(&app, json!({})).await;
    let id = thread(&app, &agent, "/delay 20ms\n/tokens 40").await;
    let mut frames = Frames::follow(&app, &format!("/agents/threads/{id}/stream?partial=1")).await;
    let (mut folded, mut last, mut deltas) = (Folded::default(), 0, 0);
    while let Some(frame) = frames.next().await {
        assert!(frame.id > last, "ids rise");
        last = frame.id;
        deltas += usize::from(frame.event == "delta");
        folded.fold(&frame);
    }
    assert!(deltas > 3, "it grew before our eyes");
    assert_eq!((&folded.0["state"], &folded.0["threadId"]), (&json!("completed"), &json!(id)));
    assert!(folded.reply().ends_with("word40"));
    assert!(folded.0["chatHistory"].as_array().expect("history").iter().all(|m| m.get("messageCost").is_none()));
    assert_eq!(app.get(&format!("/agents/threads/{id}/stream?partial=0")).await.error(), "VALIDATION_ERROR");
    assert_eq!(app.get("/agents/threads/nobody/stream").await.error(), "THREAD_NOT_FOUND");
}

#[tokio::test]
async fn what_is_said_to_a_running_thread_is_heard_at_its_next_step_and_a_new_turn_follows_an_ended_one() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let agent = with_tools(&app, &server, &[tool("hold", "/hold", &json!({}))], json!({})).await;
    let id = thread(&app, &agent, "/tool hold\nFirst").await;
    server.called(1).await;
    let told = act(&app, &id, "messages", json!({"message": "Second"})).await;
    assert_eq!((&told["state"], told.get("threadContent")), (&json!("processing"), None));
    server.let_go();
    let ended = thread_in(&app, &id, "completed").await;
    assert_eq!(said(&ended, "user"), ["/tool hold\nFirst", "Second"]);
    assert!(said(&ended, "assistant")[1].starts_with("Demo reply: First Second"), "{:?}", said(&ended, "assistant"));
    assert_eq!(states(&ended), ["queued", "processing", "completed"], "one turn");

    act(&app, &id, "messages", json!({"message": "Third"})).await;
    let ended = thread_until(&app, &id, |t| t["chatHistory"].as_array().map_or(0, Vec::len) == 7).await;
    assert_eq!(said(&ended, "assistant").last(), Some(&"Demo reply: Third"));
    assert_eq!(states(&ended).len(), 6);

    // One that came just as the model ended its answer is answered in the same turn.
    let id = thread(&app, &agent, "/wait 400ms\nSlow").await;
    thread_in(&app, &id, "processing").await;
    act(&app, &id, "messages", json!({"message": "Quick"})).await;
    let ended = thread_in(&app, &id, "completed").await;
    assert_eq!(said(&ended, "assistant").len(), 2, "{:?}", said(&ended, "assistant"));
}

#[tokio::test]
async fn a_pause_comes_after_the_running_step_or_at_once_and_ends_by_itself_when_it_says_so() {
    let model = FakeModelServer::start();
    let base = format!("{}/v1", model.url());
    let settings = [("OPENAI_BASE_URL", &*base), ("OPENAI_API_KEY", "sk-test"), ("PLATFORM_DEFAULT_PROVIDER", "demo")];
    let (app, server, _db) = app_with_tools(&settings).await;
    let tools = [tool("hold", "/hold", &json!({})), tool("echo", "/echo", &json!({}))];
    let agent = with_tools(&app, &server, &tools, json!({})).await;
    let held_agent = with_tools(&app, &server, &tools, json!({"provider": "openai", "llm": "gpt-4o"})).await;
    // Graceful, during a tool: its result is kept, the model is not asked again.
    let id = thread(&app, &agent, "/tool hold\n/tool echo\nAll").await;
    server.called(2).await;
    let paused = act(&app, &id, "pause", json!({"reason": "maintenance"})).await;
    assert_eq!((&paused["state"], &paused["pauseRequested"]), (&json!("processing"), &json!(true)));
    server.let_go();
    let paused = thread_in(&app, &id, "paused").await;
    assert_eq!(said(&paused, "tool").len(), 2);
    assert_eq!(paused["pausedReason"], "maintenance");
    assert!(paused["pausedAt"].as_str().is_some_and(|at| at.ends_with('Z')));
    assert_eq!(act(&app, &id, "pause", json!({})).await["threadStatesChanges"], paused["threadStatesChanges"]);
    act(&app, &id, "resume", json!({})).await;
    let ended = thread_in(&app, &id, "completed").await;
    assert_eq!(states(&ended), ["queued", "processing", "paused", "queued", "processing", "completed"]);
    assert_eq!(server.calls("/hold") + server.calls("/echo"), 2, "nothing was done twice");

    // Graceful, during a model call that asks for tools: they run when the thread goes on.
    model.hold();
    model.script([Script::tool_call("echo", &json!({}))]);
    let id = thread(&app, &held_agent, "Later").await;
    model.called(1).await;
    act(&app, &id, "pause", json!({})).await;
    model.let_go(2);
    thread_in(&app, &id, "paused").await;
    assert_eq!(server.calls("/echo"), 1, "the tool waits");
    act(&app, &id, "pause-resume", json!({"action": "queued"})).await;
    thread_in(&app, &id, "completed").await;
    assert_eq!(server.calls("/echo"), 2);

    // One that meets the last step changes nothing; one that is taken back neither.
    let id = thread(&app, &held_agent, "Last").await;
    model.called(3).await;
    act(&app, &id, "pause", json!({})).await;
    assert_eq!(act(&app, &id, "resume", json!({})).await["pauseRequested"], false);
    act(&app, &id, "pause", json!({})).await;
    model.let_go(1);
    assert_eq!(states(&thread_in(&app, &id, "completed").await), ["queued", "processing", "completed"]);

    // At once: the step is broken off, its calls are told so, and the model hears it.
    let id = thread(&app, &agent, "/delay 1s\n/tokens 20").await;
    thread_until(&app, &id, |thread| thread["streamingMessage"].is_object()).await;
    let begun = std::time::Instant::now();
    assert_eq!(act(&app, &id, "pause", json!({"mode": "immediate"})).await["state"], "paused");
    assert!(begun.elapsed() < Duration::from_secs(2));
    let until = act(&app, &id, "complete", json!({"state": "terminated"})).await;
    assert_eq!((&until["state"], &until["finishReason"]), (&json!("terminated"), &json!("TERMINATED_BY_USER")));

    let body = json!({"message": "Later", "state": "paused"});
    let waiting = app.post(&format!("/agents/{agent}/threads"), body).await.body;
    assert_eq!(waiting["state"], "paused");
    let id = waiting["_id"].as_str().expect("an id");
    act(&app, id, "resume", json!({"message": "and more"})).await;
    let ended = thread_in(&app, id, "completed").await;
    assert_eq!(said(&ended, "assistant"), ["Demo reply: Later and more"]);
    let id = thread(&app, &held_agent, "x").await;
    model.called(4).await;
    let soon = chrono::Utc::now().timestamp_millis() + 1500;
    act(&app, &id, "pause", json!({"mode": "immediate", "until": soon})).await;
    model.let_go(2);
    let ended = thread_in(&app, &id, "completed").await;
    assert!(ended["finishTimestampMs"].as_i64() > Some(soon), "it went on by itself, and not before its time");
}

#[tokio::test]
async fn calls_wait_for_approval_and_run_exactly_as_they_were_shown() {
    let settings = [("PLATFORM_APPROVAL_TIMEOUT", "3s")];
    let (app, server, _db) = app_with_tools(&settings).await;
    let tools = [
        tool(
            "pay",
            "/echo/pay",
            &json!({"requiresApproval": true, "method": "POST",
            "function": {"parameters": {"type": "object", "properties": {"sum": {"type": "number"}}}}}),
        ),
        tool("look", "/echo/look", &json!({})),
    ];
    let agent = with_tools(&app, &server, &tools, json!({})).await;
    let text = "/tool pay {\"sum\": 1}\n/tool look\n/tool pay {\"sum\": 2}\nDone";
    let id = thread(&app, &agent, text).await;
    let asked = thread_in(&app, &id, "paused_for_approval").await;
    let pending = &asked["pendingApproval"];
    let calls: Vec<(&str, &str)> = pending["toolCalls"].as_array().expect("calls").iter().map(call).collect();
    assert_eq!(calls.iter().map(|(_, arguments)| *arguments).collect::<Vec<_>>(), ["{\"sum\": 1}", "{\"sum\": 2}"]);
    assert_eq!(server.calls("/echo"), 1, "what needs no approval has run");
    // Whoever decides may see nothing else: each call with its arguments, however long one of them is.
    let reason = json!("Approval is needed for: pay {\"sum\": 1}, pay {\"sum\": 2}.");
    let followed =
        Frames::follow(&app, &format!("/agents/threads/{id}/stream")).await.next().await.expect("a frame").data;
    assert_eq!((&asked["pausedReason"], &followed["pausedReason"]), (&reason, &reason));
    let long = format!("/tool pay {{\"sum\": 1, \"note\": \"{}\"}}\n/tool pay {{\"sum\": 2}}\nx", "long ".repeat(600));
    let long = thread_in(&app, &thread(&app, &agent, &long).await, "paused_for_approval").await;
    let reason = long["pausedReason"].as_str().expect("a reason");
    assert!(
        reason.len() <= 1000
            && reason.contains("pay {\"sum\": 1, \"note\": \"long ")
            && reason.ends_with("pay {\"sum\": 2}."),
        "{reason}"
    );
    let wrong = app.post(&format!("/agents/threads/{id}/approval"), json!({})).await;
    assert_eq!(wrong.error(), "VALIDATION_ERROR");
    let other = json!({"action": "approved", "uid": "another"});
    assert_eq!(app.post(&format!("/agents/threads/{id}/approval"), other).await.error(), "THREAD_STATE_CONFLICT");
    let unknown = json!({"approved": true, "toolCallIds": ["nobody"]});
    assert_eq!(app.post(&format!("/agents/threads/{id}/approval"), unknown).await.error(), "VALIDATION_ERROR");
    // One of them; the other is told that it was rejected.
    let some = json!({"action": "APPROVED", "toolCallIds": [calls[1].0], "uid": pending["uid"]});
    act(&app, &id, "approval", some).await;
    let ended = thread_in(&app, &id, "completed").await;
    assert_eq!(said(&ended, "tool")[0], r#"{"error":"REJECTED"}"#);
    assert_eq!((server.calls("/echo/pay"), server.last().json()), (1, json!({"sum": 2})));
    assert_eq!(server.last().header("idempotency-key"), calls[1].0);

    let id = thread(&app, &agent, "/tool pay\nAgain").await;
    thread_in(&app, &id, "paused_for_approval").await;
    let retry = json!({"action": "rejected", "retry": true, "message": "Try something else"});
    act(&app, &id, "approval", retry).await;
    let ended = thread_in(&app, &id, "completed").await;
    assert_eq!(said(&ended, "developer"), ["Try something else"]);
    let id = thread(&app, &agent, "/tool pay\nNo").await;
    thread_in(&app, &id, "paused_for_approval").await;
    let rejected = act(&app, &id, "approval", json!({"approved": false})).await;
    assert_eq!(
        (&rejected["state"], &rejected["finishReason"]),
        (&json!("approval_rejected"), &json!("APPROVAL_REJECTED"))
    );
    assert!(rejected.get("pendingApproval").is_none());
    let id = thread(&app, &agent, "/tool pay\nNever").await;
    let expired = thread_in(&app, &id, "approval_rejected").await;
    assert_eq!(expired["finishReason"], "APPROVAL_EXPIRED");
    assert_eq!(server.calls("/echo/pay"), 1, "nothing ran without approval");
}

fn call(call: &Value) -> (&str, &str) {
    (call["id"].as_str().expect("an id"), call["function"]["arguments"].as_str().expect("arguments"))
}

#[tokio::test]
async fn results_of_asynchronous_tools_come_once_to_their_address_or_by_the_api() {
    let (app, server, db) = app_with_tools(&[("PLATFORM_ASYNC_TOOL_TIMEOUT", "60s")]).await;
    let tools = [
        tool("slow", "/status/202", &json!({"asyncCallback": true})),
        tool("quick", "/echo/quick", &json!({"asyncCallback": true})),
    ];
    let agent = with_tools(&app, &server, &tools, json!({})).await;
    let id = thread(&app, &agent, "/tool slow\n/tool quick\n/tool slow\nDone").await;
    let waiting = thread_in(&app, &id, "waiting_for_response").await;
    let pending = waiting["pendingAsyncToolCalls"].as_array().expect("calls").clone();
    assert_eq!(pending.len(), 2, "one answered at once");
    let url = pending[0]["callbackUrl"].as_str().expect("an address").to_owned();
    // Whoever may only read is not shown where a result is taken from anybody.
    let (_, reads) = key(&app, json!({"allowedEndpoints": [{"method": "GET", "path": "/agents/**"}]})).await;
    let (_, scoped) = user_with(&app, "reads", "member", Some(json!(["agents:read"]))).await;
    for reader in [&reads, &scoped] {
        for path in [format!("/agents/threads/{id}"), format!("/agents/{agent}/threads")] {
            let shown = get(&app, reader, &path).await;
            let calls = shown.body.pointer("/threads/0").unwrap_or(&shown.body)["pendingAsyncToolCalls"].clone();
            assert_eq!(calls[0]["toolCallId"], pending[0]["toolCallId"], "{}", shown.body);
            assert!(!shown.body.to_string().contains(&url), "{path}: {}", shown.body);
        }
    }
    let token = url.rsplit('/').next().expect("a token");
    assert!(url.starts_with(app.url()) && token.len() == 43, "{url}");
    assert!(server.recorded().iter().any(|request| request.header("x-callback-url") == url));
    let send = |body: &'static str| app.anonymous(Method::POST, &format!("/v1/tool-callbacks/{token}")).body(body);
    let first = app.send(send("plain text")).await;
    assert_eq!((first.status, first.body), (StatusCode::ACCEPTED, json!({"accepted": true})));
    assert_eq!(app.send(send("{}")).await.status, StatusCode::NOT_FOUND, "an address is good for one result");
    let unknown = json!({"responses": [{"tool_call_id": "nobody", "content": 1}]});
    let path = format!("/agents/threads/{id}/tool-response");
    assert_eq!(app.post(&path, unknown).await.error(), "VALIDATION_ERROR");
    let rest = json!({"responses": [{"tool_call_id": pending[1]["toolCallId"], "content": {"n": 1}}]});
    assert_eq!(act(&app, &id, "tool-response", rest.clone()).await, json!({"threadId": id, "pending": 0}));
    let ended = thread_in(&app, &id, "completed").await;
    let results = said(&ended, "tool");
    assert!(results.contains(&"plain text") && results.contains(&r#"{"n":1}"#), "{results:?}");
    assert_eq!(states(&ended)[2..], ["waiting_for_response", "queued", "processing", "completed"]);

    // A new message comes first; a pause keeps what comes in; time runs out.
    let id = thread(&app, &agent, "/tool slow\nOne").await;
    thread_in(&app, &id, "waiting_for_response").await;
    act(&app, &id, "messages", json!({"message": "Two"})).await;
    let ended = thread_in(&app, &id, "completed").await;
    assert_eq!(said(&ended, "tool"), [r#"{"error":"SUPERSEDED"}"#]);
    let id = thread(&app, &agent, "/tool slow\nThree").await;
    let waiting = thread_in(&app, &id, "waiting_for_response").await;
    act(&app, &id, "pause", json!({})).await;
    assert_eq!(act(&app, &id, "resume", json!({})).await["state"], "waiting_for_response");
    // It ends by itself, too, and the result is waited for again.
    let soon = std::time::UNIX_EPOCH.elapsed().expect("a clock") + Duration::from_millis(1500);
    assert_eq!(
        act(&app, &id, "pause", json!({"until": u64::try_from(soon.as_millis()).expect("a time")})).await["state"],
        "paused"
    );
    thread_in(&app, &id, "waiting_for_response").await;
    act(&app, &id, "pause", json!({})).await;
    let url = waiting["pendingAsyncToolCalls"][0]["callbackUrl"].as_str().expect("an address");
    let path = url.strip_prefix(app.url()).expect("ours");
    assert_eq!(app.send(app.anonymous(Method::POST, path).body("7")).await.status, StatusCode::ACCEPTED);
    act(&app, &id, "resume", json!({})).await;
    assert_eq!(said(&thread_in(&app, &id, "completed").await, "tool"), ["7"]);
    let id = thread(&app, &agent, "/tool slow\nFour").await;
    thread_in(&app, &id, "waiting_for_response").await;
    db.run(&format!("UPDATE runs SET due = now() WHERE kind = 'thread-timer' AND subject = '{id}'")).await;
    assert_eq!(said(&thread_in(&app, &id, "completed").await, "tool"), [r#"{"error":"TIMEOUT"}"#]);
}

#[tokio::test]
async fn a_thread_sleeps_until_its_time_and_goes_on_with_what_it_knows() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let agent = with_tools(&app, &server, &[tool("echo", "/echo", &json!({}))], json!({})).await;
    let id = thread(&app, &agent, "/tool wait_until {\"seconds\": 1.5}\n/tool echo\nGood morning").await;
    let asleep = thread_in(&app, &id, "paused_for_resume").await;
    assert_eq!((&asleep["pausedReason"], &asleep["pausedUntil"]), (&json!("WAIT_UNTIL"), &asleep["pauseUntil"]));
    assert_eq!(server.calls("/echo"), 1, "what was asked for beside it has run");
    let ended = thread_in(&app, &id, "completed").await;
    assert!(ended["finishTimestampMs"].as_i64() >= asleep["pausedUntil"].as_i64());
    let id = thread(&app, &agent, "/tool wait_until {\"seconds\": 3000}\nEarly").await;
    thread_in(&app, &id, "paused_for_resume").await;
    act(&app, &id, "resume", json!({})).await;
    thread_in(&app, &id, "completed").await;
}

#[tokio::test]
async fn an_agent_has_no_more_threads_at_work_and_begins_no_more_than_it_may() {
    let (app, server, db) = app_with_tools(&[]).await;
    let _other = TestApp::start(PROGRAM, &db, &[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]);
    let hold = [tool("hold", "/hold", &json!({}))];
    let two = with_tools(&app, &server, &hold, json!({"concurrentExecutionLimit": 2})).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(thread(&app, &two, "/tool hold\nx").await);
    }
    server.called(2).await;
    let third = app.get(&format!("/agents/threads/{}", ids[2])).await.body;
    let place =
        |thread: &Value| (thread["state"].clone(), thread["queuedReason"].clone(), thread["queuePosition"].clone());
    assert_eq!(place(&third), (json!("queued"), json!("CONCURRENCY_LIMIT"), json!(1)));
    let path = format!("/agents/{two}/threads");
    let busy = app.post(&format!("{path}?rejectWhenBusy=true"), json!({"message": "x"})).await;
    assert_eq!((busy.status, busy.error()), (StatusCode::TOO_MANY_REQUESTS, "AGENT_BUSY"));
    let seldom = json!({"maxExecutionFrequency": 1, "executionFrequencyIntervalMs": 86_400_000_i64});
    let seldom = format!("/agents/{}/threads?rejectWhenBusy=true", agent(&app, seldom).await);
    assert_eq!(app.post(&seldom, json!({"message": "x"})).await.status, StatusCode::CREATED);
    let later = app.post(&seldom, json!({"message": "x"})).await;
    assert_eq!(later.error(), "AGENT_BUSY");
    assert!(later.body["message"].as_str().is_some_and(|sentence| sentence.contains("interval")), "{}", later.body);
    let counted = |state: &str| format!("{path}?state={state}&omitContent=true");
    assert_eq!(app.get(&counted("processing")).await.body["total"], 2);
    assert_eq!(app.get(&counted("queued,PROCESSING")).await.body["total"], 5, "nothing was stored for the refused one");
    // A limit that is raised lets others begin at once.
    app.patch(&format!("/agents/{two}"), json!({"concurrentExecutionLimit": 3})).await;
    server.called(3).await;
    app.patch(&format!("/agents/{two}"), json!({"disabled": true})).await;
    server.let_go();
    for id in &ids[..3] {
        thread_in(&app, id, "completed").await;
    }
    let fourth = app.get(&format!("/agents/threads/{}", ids[3])).await.body;
    assert_eq!(place(&fourth), (json!("queued"), json!("AGENT_DISABLED"), json!(1)));
    assert_eq!(app.post(&path, json!({"message": "x"})).await.error(), "AGENT_DISABLED");
    app.patch(&format!("/agents/{two}"), json!({"disabled": false})).await;
    for id in &ids {
        thread_in(&app, id, "completed").await;
    }
    app.patch(&format!("/agents/{two}"), json!({"archived": true})).await;
    assert_eq!(app.post(&path, json!({"message": "x"})).await.error(), "AGENT_ARCHIVED");

    let settings = json!({"maxExecutionFrequency": 3, "executionFrequencyIntervalMs": 1500});
    let often = agent(&app, settings).await;
    let ids = join_all((0..10).map(async |_| thread(&app, &often, "quick").await)).await;
    let mut by_window: HashMap<i64, usize> = HashMap::new();
    for id in &ids {
        let ended = thread_in(&app, id, "completed").await;
        *by_window.entry(ended["startTimestampMs"].as_i64().expect("a start") / 1500).or_default() += 1;
    }
    assert!(by_window.values().all(|count| *count <= 3), "{by_window:?}");
    assert!(by_window.len() >= 4);
}

#[tokio::test]
async fn agents_are_served_in_turn_however_many_threads_one_of_them_has() {
    let (app, server, _db) = app_with_tools(&[("PLATFORM_WORKER_CONCURRENCY", "4")]).await;
    let hold = [tool("hold", "/hold", &json!({}))];
    let greedy = with_tools(&app, &server, &hold, json!({"concurrentExecutionLimit": 1000})).await;
    let modest = agent(&app, json!({})).await;
    // Of four places an account has three.
    let block = join_all((0..3).map(async |_| thread(&app, &greedy, "/tool hold\nx").await)).await;
    server.called(3).await;
    let many = join_all((0..30).map(async |_| thread(&app, &greedy, "/wait 20ms\nx").await)).await;
    let one = thread(&app, &modest, "Me, too").await;
    server.let_go();
    thread_in(&app, &one, "completed").await;
    let path = format!("/agents/{greedy}/threads?state=queued&omitContent=true");
    let waiting = app.get(&path).await.body["total"].as_i64().expect("a number");
    assert!(waiting > 15, "the modest one had its turn before {waiting} others");
    for id in many.iter().chain(&block) {
        thread_in(&app, id, "completed").await;
    }
}

#[tokio::test]
async fn a_turn_ends_at_its_limits_with_everything_kept() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let echo = [tool("echo", "/echo", &json!({}))];
    let two = with_tools(&app, &server, &echo, json!({"maxExecutionToolCalls": 2})).await;
    let id = thread(&app, &two, "/tool echo\n/tool echo\n/tool echo\nx").await;
    let failed = thread_in(&app, &id, "failed").await;
    assert_eq!(failed["finishReason"], "MAX_TOOL_CALLS_REACHED: 2 tool calls");
    assert_eq!((failed["stopReason"].as_str(), server.calls("/echo")), (Some("max_tool_calls"), 2));
    let enough = thread(&app, &two, "/tool echo\n/tool echo\nx").await;
    thread_in(&app, &enough, "completed").await;
    let few = with_tools(&app, &server, &echo, json!({"maxExecutionInputTokens": 1000})).await;
    let text = "/usage {\"inputTokens\": 600}\n/tool echo\n/usage {\"inputTokens\": 600}\n/tool echo\nx";
    let failed = thread_in(&app, &thread(&app, &few, text).await, "failed").await;
    assert_eq!(failed["finishReason"], "MAX_INPUT_TOKENS_REACHED: 1200 input tokens");
    assert_eq!(failed["stopReason"], "max_input_tokens");
    let plain = agent(&app, json!({})).await;
    let failed = thread_in(&app, &thread(&app, &plain, "/empty").await, "failed").await;
    assert_eq!(failed["finishReason"], "EMPTY_CONTENT_RETRIES_EXHAUSTED");
    assert_eq!(failed["emptyContentRetries"], json!({"attempts": 2, "exhausted": true}));
    let failed =
        thread_in(&app, &thread(&app, &plain, "/fail stream\n/say one two three four five six").await, "failed").await;
    assert!(failed["finishReason"].as_str().is_some_and(|reason| reason.starts_with("PROVIDER_ERROR: ")));
    assert_eq!(said(&failed, "assistant"), ["one two three four five "]);
    let rules = json!({"assistantSpecialization": {"guardrailsConfiguration": {"enabled": true, "blockMessage": "No.",
        "input": [{"name": "secret", "kind": "deny_list", "action": "block", "config": {"words": ["password"]}}]}}});
    let guarded = agent(&app, rules).await;
    let blocked = thread_in(&app, &thread(&app, &guarded, "the password is x").await, "guardrail_trigger").await;
    assert_eq!((&blocked["finishReason"], said(&blocked, "assistant")), (&json!("GUARDRAIL: secret"), vec!["No."]));
    assert_eq!(blocked["guardrailResults"]["triggered"], true);
    let schema = json!({"assistantSpecialization": {"structuredOutput": {"schema": {"type": "object",
        "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "maxRepairs": 0}}});
    let shaped = agent(&app, schema).await;
    let done = thread_in(&app, &thread(&app, &shaped, "/json {\"n\": 7}").await, "completed").await;
    assert_eq!(done["result"]["data"], json!({"n": 7}));
    let failed = thread_in(&app, &thread(&app, &shaped, "/say nonsense").await, "failed").await;
    assert!(failed["finishReason"].as_str().is_some_and(|reason| reason.starts_with("STRUCTURED_OUTPUT_INVALID: ")));
    let done = thread(&app, &plain, "/tool finish_execution {\"message\": \"Bye\", \"data\": {\"k\": 1}}").await;
    let done = thread_in(&app, &done, "completed").await;
    assert_eq!(done["result"], json!({"message": "Bye", "data": {"k": 1}}));
    let last = done["threadContent"].as_array().and_then(|content| content.last()).expect("a message");
    assert_eq!(last["contentSource"], "finish_tool");
}

#[tokio::test]
async fn files_are_fetched_before_a_thread_begins_and_one_that_is_not_there_fails_it() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let agent = agent(&app, json!({})).await;
    let path = format!("/agents/{agent}/threads");
    let file = |address: &str| json!({"message": "Read it", "files": [{"name": "a.txt", "url": address}]});
    let started = app.post(&path, file(&format!("{}/text", server.url()))).await;
    assert_eq!((started.status, &started.body["state"]), (StatusCode::CREATED, &json!("under_construction")));
    let ended = thread_in(&app, started.body["_id"].as_str().expect("an id"), "completed").await;
    assert_eq!(states(&ended), ["under_construction", "queued", "processing", "completed"]);
    assert_eq!(ended["threadContent"][0]["content"]["files"][0]["name"], "a.txt");
    let missing = app.post(&path, file(&format!("{}/status/404", server.url()))).await.body;
    let failed = thread_in(&app, missing["_id"].as_str().expect("an id"), "failed").await;
    assert_eq!(failed["finishReason"], "FILE_ERROR: a.txt");
    assert_eq!(server.calls("/status/404"), 3);
    assert_eq!(app.post(&path, file("http://169.254.169.254/x")).await.error(), "URL_NOT_ALLOWED");
}

#[tokio::test]
async fn lists_keep_what_is_asked_for_in_the_order_that_is_asked_for() {
    let app = app().await;
    let (one, two) = (agent(&app, json!({})).await, agent(&app, json!({"name": "Other"})).await);
    let mut ids = Vec::new();
    for (agent, tokens, wait, tag) in [(&one, 30, 0, "a"), (&one, 10, 400, "b"), (&two, 20, 200, "a")] {
        let message = format!("/wait {wait}ms\n/tokens {tokens}");
        let body = json!({"message": message, "tags": [tag], "tenantId": tag});
        let id =
            app.post(&format!("/agents/{agent}/threads"), body).await.body["_id"].as_str().expect("an id").to_owned();
        thread_in(&app, &id, "completed").await;
        ids.push(id);
    }
    let listed = async |query: &str| {
        let page = app.get(&format!("/agents/threads?omitContent=true&{query}")).await;
        let threads = page.body["threads"].as_array().expect("threads");
        threads.iter().map(|thread| ids.iter().position(|id| thread["_id"] == **id).expect("ours")).collect::<Vec<_>>()
    };
    assert_eq!(listed("").await, [2, 1, 0]);
    assert_eq!(listed("dateOrder=asc").await, [0, 1, 2]);
    assert_eq!(listed("tokensOrder=desc&dateOrder=asc").await, [0, 2, 1]);
    assert_eq!(listed("dateOrder=desc&tokensOrder=asc").await, [2, 1, 0], "the first order counts");
    let mut by_duration = Vec::new();
    for (at, id) in ids.iter().enumerate() {
        let thread = app.get(&format!("/agents/threads/{id}")).await.body;
        by_duration.push((thread["duration"].as_i64().expect("ms"), at));
    }
    by_duration.sort_unstable();
    let mut by_duration: Vec<usize> = by_duration.into_iter().map(|(_, at)| at).collect();
    assert_eq!(listed("durationOrder=asc").await, by_duration);
    by_duration.reverse();
    assert_eq!(listed("durationOrder=desc&dateOrder=asc").await, by_duration);
    assert_eq!(listed("tags=a,c").await, [2, 0]);
    assert_eq!(listed("tenantId=b").await, [1]);
    assert_eq!(listed(&format!("agentId={one}&limit=1&offset=1")).await, [0]);
    assert_eq!(listed("state=failed").await, Vec::<usize>::new());
    let page = app.get(&format!("/agents/{one}/threads?limit=1")).await.body;
    assert_eq!((&page["total"], &page["hasMore"], &page["limit"]), (&json!(2), &json!(true), &json!(1)));
    assert!(page["threads"][0]["threadContent"].is_array());
    for (query, code) in [
        ("state=done", "INVALID_STATE_VALUE"),
        ("startDate=2026-02-01&endDate=2026-01-01", "INVALID_TIME_RANGE"),
        ("startDate=yesterday", "INVALID_TIME_RANGE"),
        ("dateOrder=up", "VALIDATION_ERROR"),
        ("limit=0", "INVALID_PAGINATION"),
    ] {
        assert_eq!(app.get(&format!("/agents/threads?{query}")).await.error(), code, "{query}");
    }
    assert_eq!(app.get("/agents/nobody/threads").await.error(), "AGENT_NOT_FOUND");
    let path = format!("/agents/{one}/threads");
    for (body, code) in [
        (json!({}), "VALIDATION_ERROR"),
        (json!({"message": "x", "state": "done"}), "INVALID_STATE_VALUE"),
        (json!({"message": "x", "state": "failed"}), "VALIDATION_ERROR"),
        (json!({"message": "x", "tenantId": "tiers"}), "VALIDATION_ERROR"),
        (json!({"message": "x", "llm": "none"}), "MODEL_NOT_SUPPORTED"),
        (json!({"message": "x", "callbackUrl": "http://10.0.0.1/"}), "URL_NOT_ALLOWED"),
        (json!({"message": 1}), "VALIDATION_ERROR"),
    ] {
        assert_eq!(app.post(&path, body.clone()).await.error(), code, "{body}");
    }
}

#[tokio::test]
async fn what_was_never_heard_is_still_judged_and_the_threads_of_a_deleted_agent_begin_nothing() {
    let app = app().await;
    let guard = json!({"enabled": true, "input": [
        {"name": "g", "kind": "deny_list", "action": "block", "config": {"words": ["forbidden"]}}]});
    let id = agent(&app, json!({"assistantSpecialization": {"guardrailsConfiguration": guard}})).await;
    let start = async |body: Value| app.post(&format!("/agents/{id}/threads"), body).await.body;
    let of = |started: Value| started["_id"].as_str().expect("an id").to_owned();
    let paused = of(start(json!({"message": "a forbidden thing", "state": "paused"})).await);
    act(&app, &paused, "messages", json!({"message": "Hello"})).await;
    assert_eq!(thread_in(&app, &paused, "guardrail_trigger").await["finishReason"], "GUARDRAIL: g");
    // What was said after it begins anew.
    act(&app, &paused, "messages", json!({"message": "Hello"})).await;
    thread_in(&app, &paused, "completed").await;
    let guard = json!({"enabled": true, "output": [
        {"name": "o", "kind": "deny_list", "action": "block", "config": {"words": ["hush"]}}]});
    let quiet = agent(&app, json!({"assistantSpecialization": {"guardrailsConfiguration": guard}})).await;
    let told = thread(&app, &quiet, "/tool finish_execution {\"message\": \"hush\"}").await;
    let told = thread_in(&app, &told, "guardrail_trigger").await;
    let content = told["threadContent"].as_array().expect("content");
    assert!(!content[1..].iter().any(|message| message.to_string().contains("hush")), "{content:?}");
    for none in ["messageLimit=-1", "messageLimit=x", "messageOffset=1.5"] {
        let none = app.get(&format!("/agents/threads/{paused}?{none}")).await;
        assert_eq!(none.error(), "INVALID_PAGINATION", "{}", none.body);
    }
    app.delete(&format!("/agents/{id}")).await;
    let late = app.post(&format!("/agents/threads/{paused}/messages"), json!({"message": "Hello"})).await;
    assert_eq!(late.error(), "AGENT_NOT_FOUND");
    assert_eq!(app.get(&format!("/agents/threads/{paused}")).await.body["state"], "completed");
}

#[tokio::test]
async fn an_action_has_one_effect_however_often_it_is_sent_under_one_key() {
    let app = app().await;
    let id = agent(&app, json!({})).await;
    let body = json!({"message": "first", "state": "paused"});
    let paused = app.post(&format!("/agents/{id}/threads"), body).await.body["_id"].clone();
    let path = format!("/agents/threads/{}/resume", paused.as_str().expect("an id"));
    let resume = async || {
        let request = app.request(Method::POST, &path).header("idempotency-key", "resume-1");
        app.send(request.json(&json!({"message": "second"}))).await
    };
    let mut told = Vec::new();
    for answer in join_all((0..16).map(|_| resume())).await {
        let in_progress = (answer.status, answer.error()) == (StatusCode::CONFLICT, "IDEMPOTENCY_IN_PROGRESS");
        assert!(in_progress || answer.status == StatusCode::OK, "{}", answer.body);
        told.extend((!in_progress).then_some(answer.body));
    }
    let ended = thread_in(&app, paused.as_str().expect("an id"), "completed").await;
    assert_eq!(said(&ended, "user"), ["first", "second"]);
    let again = resume().await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (StatusCode::OK, "true"));
    assert_eq!((&again.body["state"], &again.body), (&json!("queued"), &told[0]), "what the first was told");
}
