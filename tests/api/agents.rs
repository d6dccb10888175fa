//! `/v1/agents`, `/v1/agents/agents/{agentId}/…`

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    sync::mpsc,
};

use diesel_async::SimpleAsyncConnection;
use platform_testing::{Ending, Script, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    PATIENCE, PROGRAM, act, agent, app, app_with_model, app_with_tools, eventually, listen, said, thread, thread_in,
    tool, tool_server,
};

#[tokio::test]
async fn an_agent_is_made_changed_listed_and_deleted_and_its_turns_keep_what_they_began_with() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let tools = tool_server(&app, server.url(), &[tool("hold", "/hold", &json!({}))]).await;
    let body = json!({"name": "Reporter", "description": "Writes", "model": "demo-1", "tags": ["x"],
        "assistantSpecialization": {"presets": "one two three", "availableToolsGroupsUids": [tools],
            "unknown": 1, "contextManagement": {"fullContextTurnDepth": 2}},
        "agentNotificationConfig": {"enabled": true, "notifiedEmails": ["a@example.com"]}});
    let made = app.post("/agents", body).await;
    assert_eq!((made.status, made.header("etag")), (StatusCode::CREATED, "\"1\""));
    let id = made.body["_id"].as_str().expect("an id").to_owned();
    for (name, value) in [
        ("llm", json!("demo-1")),
        ("disabled", json!(false)),
        ("archived", json!(false)),
        ("maxExecutionInputTokens", json!(2_000_000)),
        ("maxExecutionToolCalls", json!(100)),
        ("executionFrequencyIntervalMs", json!(3_600_000)),
        ("concurrentExecutionLimit", json!(5)),
        ("evaluationConfig", json!({})),
        ("subAgentConfig", json!({"enabled": false})),
        ("periodicExecution", json!({"enabled": false, "timezone": "UTC"})),
        ("fallbackModels", json!([])),
        ("imgUrl", json!("")),
    ] {
        assert_eq!(made.body[name], value, "{name}");
    }
    assert!(made.body["assistantSpecialization"].get("unknown").is_none());
    let running = thread(&app, &id, "/tool hold\nx").await;
    server.called(1).await;
    let path = format!("/agents/{id}");
    let patch =
        json!({"assistantSpecialization": {"presets": "changed", "contextManagement": null}, "description": null});
    let changed = app.patch(&path, patch).await;
    assert_eq!(
        changed.body["assistantSpecialization"],
        json!({"presets": "changed", "availableToolsGroupsUids": [tools]})
    );
    assert_eq!((&changed.body["description"], changed.header("etag")), (&json!(""), "\"2\""));
    let management = |given: Value| json!({"assistantSpecialization": {"contextManagement": given}});
    app.patch(&path, management(json!({"fullContextTurnDepth": 2.0, "alwaysIncludeUserMessages": true}))).await;
    let merged = app.patch(&path, management(json!({"fullContextTurnDepth": 5}))).await.body;
    assert_eq!(
        merged["assistantSpecialization"]["contextManagement"],
        json!({"fullContextTurnDepth": 5, "alwaysIncludeUserMessages": true})
    );
    server.let_go();
    let ended = thread_in(&app, &running, "completed").await;
    let tokens = |thread: &Value| -> Vec<i64> {
        let content = thread["threadContent"].as_array().expect("content");
        content.iter().filter_map(|message| message["messageTokenUsage"]["inputTokens"].as_i64()).collect()
    };
    assert_eq!(tokens(&ended)[1] - tokens(&ended)[0], 1, "the prompt of three words stayed: {:?}", tokens(&ended));
    let stale = app.request(Method::PATCH, &path).header("if-match", "\"1\"").json(&json!({"name": "No"}));
    assert_eq!(app.send(stale).await.error(), "PRECONDITION_FAILED");

    let shape = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let typed = json!({"enabled": true, "inputFormat": "json", "inputStructure": {"type": "object"}});
    let other = agent(&app, json!({"name": "Other", "subAgentConfig": typed})).await;
    let merged = json!({"subAgentConfig": {"inputStructure": shape}, "evaluationConfig": {"autoEvaluate": true}});
    let merged = app.patch(&format!("/agents/{other}"), merged).await.body;
    assert_eq!(
        (&merged["subAgentConfig"]["inputStructure"], &merged["subAgentConfig"]["inputFormat"]),
        (&shape, &json!("json"))
    );
    assert_eq!(merged["evaluationConfig"], json!({"enabled": true}));
    app.patch(&format!("/agents/{other}"), json!({"archived": true, "disabled": true})).await;
    let listed = async |query: &str| app.get(&format!("/agents{query}")).await.body["total"].as_i64();
    assert_eq!((listed("").await, listed("?archived=true").await), (Some(1), Some(2)));
    assert_eq!((listed("?archived=true&disabled=true").await, listed("?search=WRIT").await), (Some(1), Some(0)));
    assert_eq!(listed("?search=report").await, Some(1));
    let forced = app.delete(&format!("/tool-servers/{tools}")).await;
    assert_eq!(forced.body["details"]["usedBy"]["agents"], json!([id]));
    assert_eq!(app.delete(&format!("/tool-servers/{tools}?force=true")).await.status, StatusCode::OK);
    let left = app.get(&path).await.body["assistantSpecialization"]["availableToolsGroupsUids"].clone();
    assert_eq!(left, json!([]));

    let waiting = thread(&app, &id, "/wait 60s\nx").await;
    thread_in(&app, &waiting, "processing").await;
    assert_eq!(app.delete(&path).await.body["deletedId"], id);
    let ended = app.get(&format!("/agents/threads/{waiting}")).await.body;
    assert_eq!((&ended["state"], &ended["finishReason"]), (&json!("terminated"), &json!("AGENT_DELETED")));
    assert_eq!(app.get(&path).await.error(), "AGENT_NOT_FOUND");
    assert_eq!(app.get(&format!("/agents/{id}/threads")).await.body["total"], 2, "its threads stay readable");
    assert_eq!(app.post(&format!("/agents/{id}/threads"), json!({"message": "x"})).await.error(), "AGENT_NOT_FOUND");
}

#[tokio::test]
async fn an_assistant_can_be_the_base_of_an_agent() {
    let app = app().await;
    let base = json!({"identifier": "base", "name": "Base", "presets": "one two three four", "maxOutputTokens": 2});
    assert_eq!(app.post("/assistants", base).await.status, StatusCode::CREATED);
    let own = agent(&app, json!({"assistantSpecialization": {"identifier": "base", "maxOutputTokens": 3}})).await;
    let ended = thread_in(&app, &thread(&app, &own, "/tokens 9").await, "completed").await;
    assert_eq!(said(&ended, "assistant"), ["word1 word2 word3"]);
    assert_eq!(ended["tokenUsage"]["inputTokens"], 6, "the assistant's prompt counts");
    assert_eq!(ended["stopReason"], "max_tokens");
}

#[tokio::test]
async fn what_an_agent_cannot_be_is_refused_with_its_code() {
    let app = app().await;
    let cron = |expression: &str, timezone: &str| json!({"periodicExecution": {"enabled": true, "cronExpression": expression, "timezone": timezone, "message": "x"}});
    let id = agent(&app, json!({})).await;
    for (settings, code) in [
        (json!({"name": ""}), "VALIDATION_ERROR"),
        (json!({"name": 7}), "VALIDATION_ERROR"),
        (json!({"concurrentExecutionLimit": 0}), "VALIDATION_ERROR"),
        (json!({"executionFrequencyIntervalMs": 10}), "VALIDATION_ERROR"),
        (json!({"maxExecutionFrequency": 0}), "VALIDATION_ERROR"),
        (json!({"agentNotificationConfig": {"notifiedEmails": ["nobody"]}}), "VALIDATION_ERROR"),
        (json!({"evaluationConfig": {"threshold": 11}}), "VALIDATION_ERROR"),
        (json!({"evaluationConfig": {"evaluatorModel": "none"}}), "MODEL_NOT_SUPPORTED"),
        (json!({"provider": "none"}), "PROVIDER_NOT_CONFIGURED"),
        (json!({"llm": "none"}), "MODEL_NOT_SUPPORTED"),
        (json!({"projectId": "p"}), "PROJECT_NOT_FOUND"),
        (json!({"environmentId": "e"}), "ENVIRONMENT_NOT_FOUND"),
        (json!({"webhookUrl": "http://127.0.0.1/"}), "URL_NOT_ALLOWED"),
        (json!({"subAgentConfig": {"inputFormat": "json"}}), "INVALID_SUBAGENT_CONFIG"),
        (json!({"subAgentConfig": {"outputStructure": {"type": "object"}}}), "INVALID_SUBAGENT_CONFIG"),
        (json!({"subAgentConfig": {"inputFormat": "xml"}}), "VALIDATION_ERROR"),
        (json!({"subAgentConfig": {"outputFormat": "json", "outputStructure": {"type": "array"}}}), "INVALID_SCHEMA"),
        (json!({"assistantSpecialization": {"subagentsIds": ["nobody"]}}), "INVALID_SUBAGENTS"),
        (json!({"assistantSpecialization": {"knowledgeSkills": [{"id": "s"}]}}), "INVALID_SKILLS"),
        (json!({"assistantSpecialization": {"structuredOutput": {"schema": {"type": 7}}}}), "INVALID_SCHEMA"),
        (json!({"assistantSpecialization": {"availableToolsGroupsUids": ["nobody"]}}), "TOOL_SERVER_NOT_FOUND"),
        (
            json!({"assistantSpecialization": {"guardrailsConfiguration": {"enabled": true,
            "input": [{"name": "x", "kind": "none", "action": "block", "config": {}}]}}}),
            "INVALID_GUARDRAIL",
        ),
        (cron("* * *", "UTC"), "INVALID_CRON"),
        (cron(&format!("{} * * * *", vec!["0-59/1"; 200].join(",")), "UTC"), "INVALID_CRON"),
        (cron("0 0 30 2 *", "UTC"), "INVALID_CRON"),
        (cron("0 0 * * *", "Mars/Olympus"), "INVALID_CRON"),
        (json!({"periodicExecution": {"enabled": true, "cronExpression": "0 0 * * *"}}), "VALIDATION_ERROR"),
    ] {
        let mut whole = json!({"name": "x"});
        settings.as_object().expect("an object").iter().for_each(|(name, value)| whole[name] = value.clone());
        assert_eq!(app.post("/agents", whole).await.error(), code, "{settings}");
        assert_eq!(app.patch(&format!("/agents/{id}"), settings.clone()).await.error(), code, "PATCH {settings}");
    }
    let wrong = app.post("/agents", json!({"name": "x", "assistantSpecialization": {"presets": 7}})).await;
    assert_eq!(wrong.body["details"]["issues"][0]["path"], "assistantSpecialization.presets");
    assert_eq!(app.get("/agents?archived=true").await.body["total"], 1, "nothing was made");
    let path = format!("/agents/agents/{id}/evaluation-config");
    for (config, code) in [
        (json!({"threshold": -1}), "VALIDATION_ERROR"),
        (json!({"evaluationModel": "none"}), "MODEL_NOT_SUPPORTED"),
        (json!({"customCriteria": [{"name": "x"}]}), "VALIDATION_ERROR"),
    ] {
        let put = app.request(Method::PUT, &path).json(&config);
        let refused = app.send(put).await;
        assert_eq!(refused.error(), code, "{config}");
        let named = refused.body["details"]["issues"][0]["path"].as_str().unwrap_or_default();
        assert!(config.as_object().expect("an object").keys().any(|name| named.starts_with(name)) || named.is_empty());
    }
    let stale = app.request(Method::PUT, &path).header("if-match", "\"77\"").json(&json!({"enabled": true}));
    assert_eq!(app.send(stale).await.error(), "PRECONDITION_FAILED", "it is a part of the agent");
    app.delete(&format!("/agents/{id}")).await;
    assert_eq!(app.get(&path).await.error(), "AGENT_NOT_FOUND");
}

#[tokio::test]
async fn a_judge_scores_threads_by_request_and_by_itself() {
    let settings = [("PLATFORM_DEMO_PRICE", "1:10")];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let id = agent(&app, json!({})).await;
    let path = format!("/agents/agents/{id}/evaluation-config");
    let defaults = json!({"evaluatorModel": "demo:demo-1", "enabled": false, "threshold": 7.0, "customCriteria": [],
        "disableDefaultEvaluation": false});
    assert_eq!(app.get(&path).await.body, defaults);
    let done = thread(&app, &id, "Work").await;
    thread_in(&app, &done, "completed").await;
    let of = |thread: &str, rest: &str| format!("/agents/threads/{thread}/{rest}");
    assert_eq!(app.get(&of(&done, "evaluation")).await.error(), "EVALUATION_NOT_FOUND");
    let judged = app.post(&of(&done, "evaluate"), json!({})).await;
    assert_eq!(judged.status, StatusCode::OK, "{:?}", judged.body);
    let evaluation = &judged.body["evaluation"];
    for (name, value) in [
        ("status", json!("completed")),
        ("source", json!("manual")),
        ("overallScore", json!(8.0)),
        ("passed", json!(true)),
        ("threshold", json!(7.0)),
        ("evaluationModel", json!("demo:demo-1")),
        ("_id", evaluation["evaluationId"].clone()),
    ] {
        assert_eq!(evaluation[name], value, "{name}");
    }
    let names: Vec<&String> = evaluation["criteria"].as_object().expect("criteria").keys().collect();
    assert_eq!(
        names,
        ["executionFinalization", "instructionFollowing", "taskExecution", "taskPlanning", "toolUsageEffectiveness"]
    );
    let read = app.get(&of(&done, "")[..of(&done, "").len() - 1]).await.body;
    assert_eq!(read["lastEvaluation"]["overallScore"], 8.0);
    let charged = &read["tokenUsage"]["secondaryByOperation"]["evaluation"];
    assert_eq!((&charged["calls"], &charged["cost"]), (&json!(1), &evaluation["cost"]["totalCost"]));
    let summary = app.get(&format!("/agents/agents/{id}/costs/summary")).await.body;
    assert_eq!(summary["today"]["secondaryCost"], charged["cost"]);

    let put = json!({"autoEvaluate": true, "threshold": 9, "disableDefaultEvaluation": true,
        "customCriteria": [{"name": "tone", "description": "Friendly", "weight": 3}]});
    let stored = app.send(app.request(Method::PUT, &path).json(&put)).await.body;
    assert_eq!((&stored["enabled"], &stored["threshold"]), (&json!(true), &json!(9.0)));
    let again = app.send(app.request(Method::PUT, &path).json(&json!({"threshold": 8.5}))).await.body;
    assert_eq!((&again["enabled"], &again["threshold"]), (&json!(true), &json!(8.5)), "what is not given stays");
    let failing = thread(&app, &id, "/fail 400").await;
    thread_in(&app, &failing, "failed").await;
    let completed = async |path: &str| {
        eventually(path, async || Some(app.get(path).await.body).filter(|of| of["status"] == "completed")).await
    };
    let newest = completed(&of(&failing, "evaluation")).await;
    assert_eq!(
        (&newest["source"], &newest["overallScore"], &newest["passed"]),
        (&json!("auto"), &json!(3.0), &json!(false))
    );
    assert_eq!(newest["criteria"]["tone"]["weight"], 3.0);
    let asked =
        json!({"criteria": [{"name": "a", "description": "x"}, {"name": "b", "description": "y", "weight": 2}]});
    let later = app.post(&of(&done, "evaluate?async=true"), asked).await;
    assert_eq!((later.status, &later.body["evaluation"]["status"]), (StatusCode::ACCEPTED, &json!("running")));
    let one = of(&done, &format!("evaluations/{}", later.body["evaluation"]["_id"].as_str().expect("an id")));
    completed(&one).await;
    let page = app.get(&of(&done, "evaluations?limit=1")).await.body;
    assert_eq!((&page["total"], &page["evaluations"][0]["criteria"]["b"]["weight"]), (&json!(2), &json!(2.0)));
}

#[tokio::test]
async fn an_evaluation_that_fails_says_why_with_the_codes_of_providers() {
    let settings =
        [("PLATFORM_MODEL_ATTEMPTS", "1"), ("PLATFORM_MODEL_FIRST_BYTE", "500ms"), ("PLATFORM_MODEL_IDLE", "500ms")];
    let (app, model) = app_with_model(&settings).await;
    let agent = agent(&app, json!({})).await;
    let done = thread(&app, &agent, "Work").await;
    thread_in(&app, &done, "completed").await;
    let path = format!("/agents/threads/{done}");
    for (script, status, code) in [
        (vec![Script::refusal(401)], 502, "AUTH"),
        (vec![Script::refusal(400)], 502, "BAD_REQUEST"),
        (vec![Script::refusal(429)], 502, "RATE_LIMITED"),
        (vec![Script::refusal(503)], 502, "UNAVAILABLE"),
        (vec![Script::words(&["Hm."]), Script::words(&["Well."])], 502, "PROTOCOL"),
        (vec![Script::words(&[]).ending(Ending::Hang, 0)], 504, "UPSTREAM_TIMEOUT"),
    ] {
        model.script(script);
        let told = app.post(&format!("{path}/evaluate"), json!({})).await;
        assert_eq!(told.status.as_u16(), status, "{code}: {}", told.body);
        let details = &told.body["details"];
        assert_eq!((&details["code"], &details["provider"]), (&json!(code), &json!("openai")), "{}", told.body);
        let kept = app.get(&format!("{path}/evaluation")).await.body;
        assert_eq!((&kept["status"], &kept["error"]["code"]), (&json!("failed"), &json!(code)), "{kept}");
    }
}

#[tokio::test]
async fn costs_add_up_to_the_nano_dollar() {
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &[("PLATFORM_DEMO_PRICE", "0.123457:9.876543")]);
    let id = agent(&app, json!({"assistantSpecialization": {"availableToolsGroupsUids": ["builtin-time"]}})).await;
    let (mut cost, mut input, mut output) = (0_i64, 0, 0);
    for n in 1..=7 {
        let text = format!(
            "/usage {{\"inputTokens\": {}, \"outputTokens\": {}, \"inputCachedTokens\": 3}}\n/tool current_time\n\
             /usage {{\"inputTokens\": {}, \"outputTokens\": 1}}\n/say done",
            1_000 + n,
            50 + n,
            17 * n
        );
        let ended = thread_in(&app, &thread(&app, &id, &text).await, "completed").await;
        for message in ended["threadContent"].as_array().expect("content") {
            let dollars = message["messageCost"]["totalCost"].as_f64().unwrap_or(0.0);
            #[expect(clippy::cast_possible_truncation, reason = "nano-dollars of a small sum")]
            let nanos = (dollars * 1e9).round() as i64;
            cost += nanos;
            input += message["messageTokenUsage"]["inputTokens"].as_i64().unwrap_or(0);
            output += message["messageTokenUsage"]["outputTokens"].as_i64().unwrap_or(0);
        }
    }
    let path = format!("/agents/agents/{id}/costs");
    let summary = app.get(&format!("{path}/summary")).await.body;
    let days = app.get(&format!("{path}/daily")).await.body;
    let months = app.get(&format!("{path}/monthly?fill=true")).await.body;
    let day = days[0]["date"].as_str().expect("a day").to_owned();
    assert_eq!((days.as_array().map(Vec::len), months.as_array().map(Vec::len)), (Some(1), Some(12)));
    assert_eq!(months[11]["month"], day[..7]);
    for row in [&summary["today"], &summary["currentMonth"], &days[0], &months[11]] {
        let nanos = (row["totalCost"].as_f64().expect("a cost") * 1e9).round();
        #[expect(clippy::cast_precision_loss, reason = "a small sum")]
        let expected = cost as f64;
        assert!((nanos - expected).abs() < 0.5, "{nanos} and {expected}");
        assert_eq!((row["inputTokens"].as_i64(), row["outputTokens"].as_i64()), (Some(input), Some(output)));
        assert_eq!(
            (&row["threadCount"], &row["inputCachedTokens"], &row["currency"]),
            (&json!(7), &json!(21), &json!("USD"))
        );
    }
    assert_eq!(months[0]["totalCost"], 0);
    let filled = app.get(&format!("{path}/daily?startDate=2026-01-01&endDate=2026-01-03&fill=true")).await.body;
    assert_eq!(filled.as_array().map(Vec::len), Some(3));
    assert_eq!(app.get(&format!("{path}/daily?startDate=2026-01-01&endDate=2026-01-03")).await.body, json!([]));
    for query in [
        "daily?startDate=2026-02-30",
        "daily?startDate=2026-03-01&endDate=2026-02-01",
        "daily?startDate=2024-01-01&endDate=2026-01-01",
        "daily?startDate=01.02.2026",
        "monthly?startMonth=2026-13",
        "monthly?startMonth=2010-01&endMonth=2026-01",
    ] {
        assert_eq!(app.get(&format!("{path}/{query}")).await.error(), "INVALID_TIME_RANGE", "{query}");
    }
    assert_eq!(app.get("/agents/agents/nobody/costs/daily").await.error(), "AGENT_NOT_FOUND");
}

#[tokio::test]
async fn a_schedule_starts_one_thread_each_time_however_many_processes_there_are() {
    let db = TestDb::new().await;
    let (app, _other) = (TestApp::start(PROGRAM, &db, &[]), TestApp::start(PROGRAM, &db, &[]));
    let periodic =
        json!({"enabled": true, "cronExpression": "0 4 1 1 *", "timezone": "Europe/Berlin", "message": "Tick"});
    let id = agent(&app, json!({"periodicExecution": periodic})).await;
    let shown = app.get(&format!("/agents/{id}")).await.body["periodicExecution"].clone();
    assert_eq!(shown["nextRunMs"].as_i64().expect("a time") % 86_400_000, 3 * 3_600_000, "04:00 in winter");
    assert!(shown.get("lastRunMs").is_none());
    for times in 1..=3 {
        db.run("UPDATE runs SET due = now() WHERE kind = 'agent-schedule'").await;
        let path = format!("/agents/{id}/threads?state=completed");
        let is_there = |threads: &Value| !threads["threads"][times - 1].is_null() && threads["total"] == times;
        let begun = async || Some(app.get(&path).await.body).filter(is_there);
        let threads = eventually("the thread of its time", begun).await;
        let newest = &threads["threads"][0];
        assert_eq!(
            (&newest["triggerSource"], &newest["userUID"]),
            (&json!({"type": "cron"}), &json!(format!("cron:{id}")))
        );
        assert_eq!(said(newest, "assistant"), ["Demo reply: Tick"]);
        assert_eq!(newest["threadStatesChanges"][0]["source"], "cron");
    }
    assert_eq!(db.number("SELECT count(*) AS n FROM runs WHERE kind = 'agent-schedule'").await, 1);
    assert!(app.get(&format!("/agents/{id}")).await.body["periodicExecution"]["lastRunMs"].is_i64());
    app.patch(&format!("/agents/{id}"), json!({"periodicExecution": {"enabled": false}})).await;
    assert_eq!(db.number("SELECT count(*) AS n FROM runs WHERE kind = 'agent-schedule'").await, 0);
}

/// A mail server that takes everything; what it was sent.
fn mail_server() -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (sent, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), sent) = (stream, sent.clone()) else { return };
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut lines = BufReader::new(stream.try_clone()?).lines();
                stream.write_all(b"220 test\r\n")?;
                while let Some(Ok(line)) = lines.next() {
                    let answer: &[u8] = match line.get(..4).unwrap_or_default() {
                        "EHLO" => b"250 test\r\n",
                        "DATA" => {
                            stream.write_all(b"354 go\r\n")?;
                            let mut mail = String::new();
                            while let Some(Ok(line)) = lines.next().filter(|line| line.as_ref().is_ok_and(|l| l != "."))
                            {
                                mail.push_str(&line);
                                mail.push('\n');
                            }
                            let _ = sent.send(mail);
                            b"250 taken\r\n"
                        }
                        "QUIT" => b"221 bye\r\n",
                        _ => b"250 ok\r\n",
                    };
                    stream.write_all(answer)?;
                }
                Ok(())
            });
        }
    });
    (port, received)
}

/// Settings of a platform that sends mail.
fn mailing(url: &str) -> [(&str, &str); 3] {
    [
        ("PLATFORM_SMTP_URL", url),
        ("PLATFORM_MAIL_FROM", "Platform <p@example.com>"),
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
    ]
}

#[tokio::test]
async fn people_get_mail_and_every_change_is_an_event() {
    let (port, mail) = mail_server();
    let url = format!("smtp://127.0.0.1:{port}");
    let settings = mailing(&url);
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &settings);
    let server = platform_testing::FakeToolServer::start();
    let tools = tool_server(&app, server.url(), &[tool("pay", "/echo", &json!({"requiresApproval": true}))]).await;
    let id = agent(
        &app,
        json!({"name": "Payer\r\nBcc: evil@example.com", "assistantSpecialization": {"availableToolsGroupsUids": [tools]},
        "agentNotificationConfig": {"enabled": true, "enableEmailNotification": true,
            "notifiedEmails": ["done@example.com"], "approvalEmails": ["boss@example.com"]}}),
    )
    .await;
    let count = async |filter: &str| db.number(&format!("SELECT count(*) AS n FROM events WHERE {filter}")).await;
    let unheard = self::thread(&app, &agent(&app, json!({})).await, "Hello").await;
    thread_in(&app, &unheard, "completed").await;
    assert_eq!(count("TRUE").await, 0, "what nobody listens to is not written");
    listen(&app).await;
    let thread = thread(&app, &id, "/tool pay {\"secret\": \"canary\"}\nDone").await;
    thread_in(&app, &thread, "paused_for_approval").await;
    let next = || mail.recv_timeout(PATIENCE).expect("mail");
    let asked = next();
    let head = asked.split_once("\n\n").expect("a head and a body").0;
    assert!(head.lines().all(|line| !line.starts_with("Bcc")), "a name adds no header: {head}");
    assert!(asked.contains("To: boss@example.com") && asked.contains("pay") && asked.contains(&thread), "{asked}");
    assert!(!asked.contains("canary") && !asked.contains("http"), "no arguments, and no link that acts: {asked}");
    act(&app, &thread, "approval", json!({"action": "approved"})).await;
    thread_in(&app, &thread, "completed").await;
    let done = next();
    assert!(done.contains("To: done@example.com") && done.contains("completed"), "{done}");
    for state in ["queued", "processing", "paused_for_approval", "completed"] {
        assert!(count(&format!("data ->> 'state' = '{state}'")).await >= 1, "{state}");
    }
    assert_eq!(count("kind = 'thread.state_changed'").await, 6);
    assert_eq!(count("kind = 'thread.approval_required'").await, 1);
    assert_eq!(count("kind = 'thread.finished'").await, 1);
}

#[tokio::test]
async fn a_thread_whose_agent_cannot_be_read_does_not_end_without_its_mail_and_its_judge() {
    let (port, mail) = mail_server();
    let url = format!("smtp://127.0.0.1:{port}");
    let settings = mailing(&url);
    let db = TestDb::new().await;
    let mut app = TestApp::start(PROGRAM, &db, &settings);
    let server = platform_testing::FakeToolServer::start();
    let tools = tool_server(&app, server.url(), &[tool("pay", "/echo", &json!({"requiresApproval": true}))]).await;
    let body = json!({"assistantSpecialization": {"availableToolsGroupsUids": [tools]},
        "evaluationConfig": {"enabled": true}, "agentNotificationConfig": {"enabled": true,
            "enableEmailNotification": true, "notifiedEmails": ["done@example.com"]}});
    let thread = thread(&app, &agent(&app, body).await, "/tool pay {}").await;
    thread_in(&app, &thread, "paused_for_approval").await;
    // A process that has read nothing of the agent yet.
    drop(app);
    app = TestApp::start(PROGRAM, &db, &settings);
    db.run("ALTER TABLE agent_versions RENAME TO out_of_reach").await;
    let complete = json!({"state": "completed"});
    let failed = app.post(&format!("/agents/threads/{thread}/complete"), complete.clone()).await;
    assert!(failed.status.is_server_error(), "{}", failed.body);
    assert_eq!(app.get(&format!("/agents/threads/{thread}")).await.body["state"], "paused_for_approval");
    db.run("ALTER TABLE out_of_reach RENAME TO agent_versions").await;
    act(&app, &thread, "complete", complete).await;
    let told = mail.recv_timeout(PATIENCE).expect("mail");
    assert!(told.contains("To: done@example.com") && told.contains(&thread), "{told}");
    assert_eq!(db.number("SELECT count(*) AS n FROM evaluations").await, 1);
}

#[tokio::test]
async fn wrong_settings_are_refused_while_somebody_holds_the_rows() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let id = agent(&app, json!({})).await;
    let made = app.post("/assistants", json!({"name": "S", "identifier": "s"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let holder = db.connect();
    let mut conn = holder.conn().await.expect("a connection");
    let hold = "SET idle_in_transaction_session_timeout = 0; BEGIN; \
        SELECT FROM agents FOR UPDATE; SELECT FROM assistants FOR UPDATE";
    conn.batch_execute(hold).await.expect("held");
    for (path, body, code) in [
        (format!("/agents/{id}"), json!({"concurrentExecutionLimit": -1}), "VALIDATION_ERROR"),
        (format!("/agents/{id}"), json!({"model": "none"}), "MODEL_NOT_SUPPORTED"),
        (format!("/agents/agents/{id}/evaluation-config"), json!({"threshold": 11}), "VALIDATION_ERROR"),
        ("/assistants/s".to_owned(), json!({"temperature": 7}), "VALIDATION_ERROR"),
        ("/assistants/s".to_owned(), json!({"model": "none"}), "MODEL_NOT_SUPPORTED"),
    ] {
        let refused = if path.ends_with("-config") {
            app.send(app.request(Method::PUT, &path).json(&body)).await
        } else {
            app.patch(&path, body).await
        };
        assert_eq!(refused.error(), code, "{path}: {}", refused.body);
    }
    conn.batch_execute("ROLLBACK").await.expect("let go");
}
