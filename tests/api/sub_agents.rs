//! Agents and assistants that hand work to other agents (contract 03 §8).

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    Frames, act, agent, app, app_with_tools, eventually, finished_of, said, start_of, states, thread, thread_in, tool,
    tool_server,
};

pub fn hand_off(agent: &str, input: &Value) -> String {
    format!("/tool hand_off_subagent {}", json!({"agentId": agent, "input": input}))
}

#[tokio::test]
async fn work_is_handed_to_other_agents_and_comes_back_as_the_result_of_the_call() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let wait = tool_server(&app, server.url(), &[tool("wait", "/hold", &json!({}))]).await;
    let shape = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let waits = json!({"name": "Text", "subAgentConfig": {"enabled": true}, "assistantSpecialization": {"availableToolsGroupsUids": [wait]}});
    let text = agent(&app, waits).await;
    let typed = agent(
        &app,
        json!({"name": "Typed", "subAgentConfig": {"enabled": true, "inputFormat": "json",
        "inputStructure": shape, "outputFormat": "json", "outputStructure": shape}}),
    )
    .await;
    let closed = agent(&app, json!({"name": "Closed"})).await;
    let lead = agent(&app, json!({"assistantSpecialization": {"subagentsIds": [text, typed]}})).await;
    let calls = [
        hand_off(&text, &json!("/tool wait {}\nLook it up")),
        format!("/tool delegate_to_agent {}", json!({"agentId": typed, "input": {"n": 7}})),
        hand_off(&typed, &json!({"n": "seven"})),
        hand_off(&closed, &json!("x")),
    ];
    let body = json!({"message": format!("{}\nDone", calls.join("\n")), "tenantId": "acme", "subtenantId": "u1"});
    let started = app.post(&format!("/agents/{lead}/threads"), body).await.body;
    thread_in(&app, started["_id"].as_str().expect("an id"), "handed_off").await;
    server.let_go();
    let ended = thread_in(&app, started["_id"].as_str().expect("an id"), "completed").await;
    assert_eq!(states(&ended), ["queued", "processing", "handed_off", "queued", "processing", "completed"]);
    let ids = ended["handOffSubThreadIds"].as_array().expect("ids");
    assert_eq!((ids.len(), &ended["pendingHandOffSubThreadIds"]), (2, &json!([])));
    let by_call = |n: usize| {
        let call = &ended["threadContent"][1]["tool_calls"][n];
        let content = ended["threadContent"].as_array().expect("content");
        let result = content.iter().find(|message| message["tool_call_id"] == call["id"]).expect("a result");
        (call["function"]["name"].clone(), result["content"]["data"].clone())
    };
    let (_, first) = by_call(0);
    let said = "Demo reply: Look it up [tools: wait={\"held\":true}]";
    assert_eq!((&first["response"], &first["state"]), (&json!(said), &json!("completed")));
    let (name, second) = by_call(1);
    assert_eq!((name, &second["response"]), (json!("delegate_to_agent"), &json!({"n": 0})), "stored as it was called");
    assert_eq!(by_call(2).1["error"], "INVALID_ARGUMENTS");
    assert_eq!(by_call(3).1["error"], "INVALID_ARGUMENTS", "only those it is given");
    let sub = app.get(&format!("/agents/threads/{}", first["subthreadId"].as_str().expect("an id"))).await.body;
    for (name, value) in [
        ("isSubthread", json!(true)),
        ("parentThreadId", ended["_id"].clone()),
        ("parentAgentId", json!(lead)),
        ("subThreadToolCallId", ended["threadContent"][1]["tool_calls"][0]["id"].clone()),
        ("tenantId", json!("acme")),
        ("subtenantId", json!("u1")),
        ("userUID", json!(format!("agent:{lead}"))),
    ] {
        assert_eq!(sub[name], value, "{name}");
    }
    assert_eq!(sub["threadContent"][0]["contentSource"], "subagent");
    assert_eq!(sub["threadStatesChanges"][0]["source"], "subagent");
    let archived = agent(&app, json!({"archived": true, "subAgentConfig": {"enabled": true}})).await;
    for (id, reason) in
        [("nobody", "NOT_FOUND"), (&closed, "NOT_ENABLED"), (&lead, "NOT_ENABLED"), (&archived, "ARCHIVED")]
    {
        let patch = json!({"assistantSpecialization": {"subagentsIds": [id]}});
        let refused = app.patch(&format!("/agents/{lead}"), patch.clone()).await;
        assert_eq!(refused.error(), "INVALID_SUBAGENTS");
        assert_eq!(refused.body["details"]["invalidSubagents"][0]["reason"], reason);
    }
    // One that is deleted is taken out of whoever lists it.
    let gone = agent(&app, json!({"subAgentConfig": {"enabled": true}})).await;
    let parent = agent(&app, json!({"assistantSpecialization": {"subagentsIds": [gone]}})).await;
    let assistant = json!({"name": "p", "identifier": "p", "subagentsIds": [gone]});
    assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    app.delete(&format!("/agents/{gone}")).await;
    for (path, place) in [
        (format!("/agents/{parent}"), "/assistantSpecialization/subagentsIds"),
        ("/assistants/p".to_owned(), "/subagentsIds"),
    ] {
        let read = app.get(&path).await.body;
        assert_eq!(read.pointer(place), Some(&json!([])), "{path}: {read}");
        let changed = app.patch(&path, json!({"description": "Goes on"})).await;
        assert_eq!((changed.status, &changed.body["description"]), (StatusCode::OK, &json!("Goes on")), "{path}");
        let back = app.patch(&path, changed.body).await;
        assert_eq!(back.status, StatusCode::OK, "a record that was read may be sent back: {}", back.body);
    }
}

#[tokio::test]
async fn a_sub_agent_that_fails_or_is_ended_gives_an_error_and_one_that_nobody_waits_for_ends() {
    let (app, server, _db) = app_with_tools(&[("PLATFORM_MAX_SUBAGENT_DEPTH", "2")]).await;
    let tools = [tool("hold", "/hold", &json!({})), tool("pay", "/echo/pay", &json!({}))];
    let tools = tool_server(&app, server.url(), &tools).await;
    let enabled = json!({"enabled": true});
    let helper = agent(
        &app,
        json!({"subAgentConfig": enabled,
        "assistantSpecialization": {"availableToolsGroupsUids": [tools]}}),
    )
    .await;
    let middle =
        agent(&app, json!({"subAgentConfig": enabled, "assistantSpecialization": {"subagentsIds": [helper]}})).await;
    let lead = agent(
        &app,
        json!({"assistantSpecialization": {"subagentsIds": [helper, middle],
        "approvalTools": ["pay"]}}),
    )
    .await;
    let run = async |work: &str| {
        let id = thread(&app, &lead, &format!("{work}\nDone")).await;
        // What fails at once is handed off for a moment alone.
        let sub = eventually("work is handed off", async || {
            let parent = app.get(&format!("/agents/threads/{id}")).await.body;
            parent["handOffSubThreadIds"][0].as_str().map(str::to_owned)
        });
        let sub = sub.await;
        (id, sub)
    };
    let result = |thread: &Value| -> Value { serde_json::from_str(said(thread, "tool")[0]).unwrap_or_default() };
    let id = thread(&app, &lead, &hand_off(&helper, &json!("/fail 400"))).await;
    let failed = result(&thread_in(&app, &id, "completed").await);
    assert_eq!(failed["error"], "SUBAGENT_FAILED");
    assert!(failed["finishReason"].as_str().is_some_and(|reason| reason.starts_with("PROVIDER_ERROR")));

    let (id, sub) = run(&hand_off(&helper, &json!("/tool hold"))).await;
    act(&app, &sub, "complete", json!({"state": "terminated"})).await;
    assert_eq!(said(&thread_in(&app, &id, "completed").await, "tool"), ["Terminated by the user"]);
    let (id, sub) = run(&hand_off(&helper, &json!("/tool hold"))).await;
    act(&app, &id, "complete", json!({"state": "completed"})).await;
    assert_eq!(thread_in(&app, &sub, "terminated").await["finishReason"], "TERMINATED_BY_USER");
    // While its parent is paused its result is kept.
    let (id, sub) = run(&hand_off(&helper, &json!("/tool hold"))).await;
    thread_in(&app, &id, "handed_off").await;
    act(&app, &id, "pause", json!({})).await;
    assert_eq!(act(&app, &id, "resume", json!({})).await["state"], "handed_off");
    act(&app, &id, "pause", json!({})).await;
    server.let_go();
    thread_in(&app, &sub, "completed").await;
    act(&app, &id, "resume", json!({})).await;
    assert_eq!(result(&thread_in(&app, &id, "completed").await)["state"], "completed");

    // What needs approval above needs it below.
    let (id, sub) = run(&hand_off(&helper, &json!("/tool pay"))).await;
    thread_in(&app, &sub, "paused_for_approval").await;
    act(&app, &sub, "approval", json!({"action": "approved"})).await;
    thread_in(&app, &id, "completed").await;
    assert_eq!(server.calls("/echo/pay"), 1);
    let direct = thread(&app, &helper, "/tool pay\nx").await;
    thread_in(&app, &direct, "completed").await;

    // Two deep works, and no agent hands to one above it.
    let nested = hand_off(&helper, &json!("deep"));
    let (id, _) = run(&hand_off(&middle, &json!(nested))).await;
    assert_eq!(result(&thread_in(&app, &id, "completed").await)["state"], "completed");
    app.patch(&format!("/agents/{lead}"), json!({"subAgentConfig": {"enabled": true}})).await;
    let patch = json!({"assistantSpecialization": {"subagentsIds": [lead]}});
    assert_eq!(app.patch(&format!("/agents/{middle}"), patch).await.status, StatusCode::OK);
    let (id, sub) = run(&hand_off(&middle, &json!(hand_off(&lead, &json!("round"))))).await;
    thread_in(&app, &id, "completed").await;
    assert_eq!(result(&app.get(&format!("/agents/threads/{sub}")).await.body)["error"], "SUBAGENT_DEPTH");
}

#[tokio::test]
async fn a_chat_hands_work_to_an_agent_and_goes_on_with_its_result() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let tools = tool_server(&app, server.url(), &[tool("hold", "/hold", &json!({}))]).await;
    let settings = json!({"subAgentConfig": {"enabled": true},
        "assistantSpecialization": {"availableToolsGroupsUids": [tools]}});
    let helper = agent(&app, settings).await;
    let assistant = json!({"identifier": "lead", "name": "Lead", "subagentsIds": [helper]});
    assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    for name in ["hand_off_subagent", "delegate_to_agent"] {
        let tools = json!([{"type": "function", "function": {"name": name}}]);
        let twice = app.post("/assistants/lead/messages", json!({"message": "x", "tools": tools})).await;
        assert_eq!(twice.error(), "DUPLICATE_TOOL_NAME", "{name}");
    }
    let work = format!("{}\nDone", hand_off(&helper, &json!("/tool hold\nDeep")));
    let chat = start_of(&app, "lead", &work).await;
    let mut frames = Frames::open_of(&app, "lead", &chat, false).await;
    let shown = loop {
        let frame = frames.next().await.expect("it is handed off");
        if frame.data["status"] == "handed_off" {
            break frame.data;
        }
        assert_eq!(frame.data.get("handedOffSubThreadId"), None);
    };
    let path = format!("/assistants/lead/chats/{chat}");
    let handed = app.get(&path).await.body;
    let now = app.get(&format!("{path}/realtime")).await.body;
    for whoever_follows in [&shown, &now] {
        assert_eq!(whoever_follows["handedOffSubThreadId"], handed["handedOffSubThreadId"], "{whoever_follows}");
    }
    assert_eq!((&handed["handedOff"], &handed["status"]), (&json!(true), &json!("handed_off")));
    assert_eq!(handed["stopReason"], "handed_off");
    let sub = handed["handedOffSubThreadId"].as_str().expect("an id").to_owned();
    assert!(handed["handedOffToolCallId"].is_string());
    let busy = app.post("/assistants/lead/messages", json!({"chatUid": chat, "message": "x"})).await;
    assert_eq!(busy.error(), "CHAT_HANDED_OFF");
    let waits = app.post("/assistants/lead/messages?async=true", json!({"chatUid": chat, "message": "And this"})).await;
    assert_eq!(waits.body["willProcess"], "on_resume");
    let of = app.get(&format!("/agents/threads/{sub}")).await.body;
    assert_eq!((&of["parentChatUID"], &of["isSubthread"]), (&json!(chat), &json!(true)));
    server.let_go();
    let ended = finished_of(&app, "lead", &chat).await;
    let content = ended["chatContent"].as_array().expect("content");
    let result = &content.iter().find(|message| message["role"] == "tool").expect("a result")["content"]["data"];
    assert_eq!(result["state"], "completed");
    assert!(result["response"].as_str().is_some_and(|text| text.starts_with("Demo reply: Deep")));
    assert_eq!(content.iter().filter(|message| message["role"] == "user").count(), 2, "what waited was answered");
    assert_eq!(ended["handedOff"], false);
    assert_eq!(app.get(&format!("{path}/realtime")).await.body.get("handedOffSubThreadId"), None);
    // Whoever waits for the answer gets it after the sub-agent has ended.
    let waited = app
        .post("/assistants/lead/messages", json!({"message": format!("{}\nx", hand_off(&helper, &json!("y")))}))
        .await;
    assert_eq!(waited.status, StatusCode::OK, "{:?}", waited.body);
    assert!(waited.body.as_array().is_some_and(|messages| messages.len() == 4), "{:?}", waited.body);
}

#[tokio::test]
async fn stopping_a_chat_ends_the_thread_it_waits_for() {
    let app = app().await;
    let helper = agent(&app, json!({"subAgentConfig": {"enabled": true}})).await;
    let assistant = json!({"identifier": "lead", "name": "Lead", "subagentsIds": [helper]});
    assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    let chat = start_of(&app, "lead", &hand_off(&helper, &json!("/wait 60s"))).await;
    let mut frames = Frames::open_of(&app, "lead", &chat, false).await;
    while frames.next().await.expect("it is handed off").data["status"] != "handed_off" {}
    let path = format!("/assistants/lead/chats/{chat}");
    let sub = app.get(&path).await.body["handedOffSubThreadId"].as_str().expect("an id").to_owned();
    assert_eq!(app.post(&format!("{path}/stop"), json!({})).await.status, StatusCode::OK);
    thread_in(&app, &sub, "terminated").await;
    assert_eq!(app.get(&path).await.body["stopReason"], "stopped_by_user");
}

#[tokio::test]
async fn a_result_that_comes_while_the_thread_still_works_is_kept_until_it_is_asked_for() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let tools = [
        tool("hold", "/hold", &json!({})),
        tool("later", "/status/202", &json!({"asyncCallback": true})),
        tool("note", "/echo/note", &json!({})),
    ];
    let tools = tool_server(&app, server.url(), &tools).await;
    let helper = agent(
        &app,
        json!({"subAgentConfig": {"enabled": true},
        "assistantSpecialization": {"availableToolsGroupsUids": [tools]}}),
    )
    .await;
    let lead = agent(
        &app,
        json!({"assistantSpecialization": {"subagentsIds": [helper], "availableToolsGroupsUids": [tools]}}),
    )
    .await;
    let calls = [hand_off(&helper, &json!("/tool note\nQuick")), "/tool later".to_owned(), "/tool hold".to_owned()];
    let ask = format!("{}\nDone", calls.join("\n"));
    let result = |thread: &Value, n: usize| {
        let id = thread["threadContent"][1]["tool_calls"][n]["id"].clone();
        let content = thread["threadContent"].as_array().expect("content").clone();
        content.into_iter().find(|m| m["tool_call_id"] == id).map(|m| m["content"]["data"].clone())
    };

    let quick = |thread: &Value| {
        let given = result(thread, 0).expect("a result");
        given["response"].as_str().is_some_and(|text| text.starts_with("Demo reply: Quick"))
            && given["state"] == "completed"
    };

    // Both come while the slow call is under way, and the thread ends with them.
    let early = async |id: &str, calls: usize| {
        server.called(calls).await;
        let subs = app.get(&format!("/agents/{helper}/threads")).await.body;
        let sub = subs["threads"].as_array().expect("threads").iter().find(|sub| sub["parentThreadId"] == id);
        thread_in(&app, sub.expect("its sub-thread")["_id"].as_str().expect("an id"), "completed").await;
        let asked = server.recorded().into_iter().rev().find(|request| !request.header("x-callback-url").is_empty());
        let url = asked.expect("the call").header("x-callback-url").to_owned();
        let path = url.find("/v1/").map(|at| url[at..].to_owned()).expect("an address");
        let posted = app.send(app.anonymous(Method::POST, &path).json(&json!({"late": true}))).await;
        assert_eq!(posted.status, StatusCode::ACCEPTED);
    };
    let paused = thread(&app, &lead, &ask).await;
    early(&paused, 3).await;
    act(&app, &paused, "pause", json!({"mode": "immediate"})).await;
    act(&app, &paused, "resume", json!({})).await;
    let resumed = thread_in(&app, &paused, "completed").await;
    assert!(quick(&resumed), "{resumed:#}");
    assert_eq!(result(&resumed, 1), Some(json!({"late": true})));
    assert_eq!(result(&resumed, 2), Some(json!({"error": "INTERRUPTED"})));
    let kept = thread(&app, &lead, &ask).await;
    early(&kept, 6).await;
    server.let_go();
    let ended = thread_in(&app, &kept, "completed").await;
    assert!(quick(&ended), "{ended:#}");
    assert_eq!(result(&ended, 1), Some(json!({"late": true})));
}
