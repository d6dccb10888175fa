//! `/v1/triggers`, `/v1/hooks`: events of apps that start agents and assistants.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, HashSet},
    iter,
    sync::atomic::{AtomicUsize, Ordering},
};

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::{
    StreamExt,
    future::{join, join_all},
    stream,
};
use platform_testing::{FakeToolServer, Reply, TestApp, TestDb, ToolRequest};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{RwLock, watch};

use crate::{
    sub_agents::hand_off,
    support::{PROGRAM, UNBOUNDED, agent, app_with, app_with_model, eventually, text, thread_in},
};

mod polled;
mod subscribed;

/// The platform, which may call this machine.
async fn local() -> (TestApp, TestDb) {
    let db = TestDb::new().await;
    let settings = [&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")], UNBOUNDED.as_slice()].concat();
    (TestApp::start(PROGRAM, &db, &settings), db)
}

/// A tool server of an app that needs no credentials.
pub async fn server_of(app: &TestApp, slug: &str) -> String {
    let made = app.post(&format!("/integrations/{slug}/servers"), json!({})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    text(&made.body["_id"])
}

/// A trigger; `more` lays fields over it.
pub async fn trigger(app: &TestApp, server: &str, slug: &str, more: Value) -> Value {
    let mut body = json!({"toolServerId": server, "triggerSlug": slug});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let made = app.post("/triggers", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    made.body
}

/// A trigger of the app `webhook` that starts an agent: its path and its address, below the server's.
pub async fn hooked(app: &TestApp, more: Value) -> (String, String) {
    let of = agent(app, json!({"name": "A"})).await;
    let mut fields = json!({"agentId": of});
    fields.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let made = trigger(app, &server_of(app, "webhook").await, "webhook", fields).await;
    let url = made["webhookUrl"].as_str().expect("an address");
    (format!("/triggers/{}", text(&made["id"])), url.strip_prefix(app.url()).expect("ours").to_owned())
}

pub async fn hook(app: &TestApp, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let request = app.anonymous(Method::POST, path).body(body.to_owned());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    app.send(request).await
}

async fn events(app: &TestApp, trigger: &str, query: &str) -> Vec<Value> {
    let listed = app.get(&format!("{trigger}/events?limit=100{query}")).await.body;
    listed["items"].as_array().unwrap_or_else(|| panic!("{listed}")).clone()
}

/// The deliveries of a trigger, oldest first, once there are so many and all have an outcome.
pub async fn outcomes(app: &TestApp, trigger: &str, count: usize) -> Vec<Value> {
    eventually("outcomes", async || {
        let mut all = events(app, trigger, "").await;
        all.reverse();
        (all.len() == count && all.iter().all(|of| of["outcome"].is_string())).then_some(all)
    })
    .await
}

pub fn tag(secret: &str, body: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hmac::sign(&key, body.as_bytes()).as_ref().to_vec()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[tokio::test]
async fn an_event_starts_a_thread_with_what_the_template_says_once_for_each_id() {
    let (app, _) = local().await;
    let template = "{{trigger.name}}: {{data.user.name}} said {{data.text}} ({{data.tags}}) at {{event.receivedAt}}";
    let more = json!({"messageTemplate": template, "name": "Mail", "tenantId": "acme", "subtenantId": "u1",
        "filter": {"kind": "mail"}});
    let (path, url) = hooked(&app, more).await;
    let event = json!({"kind": "mail", "user": {"name": "Ada"}, "text": "hi", "tags": ["a"]}).to_string();
    let first = hook(&app, &url, &[("webhook-id", "e1")], &event).await;
    assert_eq!((first.status, first.body), (StatusCode::ACCEPTED, json!({"accepted": true})));
    for _ in 0..3 {
        assert_eq!(hook(&app, &url, &[("webhook-id", "e1")], &event).await.status, StatusCode::ACCEPTED);
    }
    hook(&app, &url, &[("webhook-id", "e2")], &json!({"kind": "call"}).to_string()).await;
    let all = outcomes(&app, &path, 5).await;
    let outcomes_of: Vec<_> = all.iter().map(|of| of["outcome"].clone()).collect();
    assert_eq!(
        outcomes_of,
        [json!("executed"), json!("duplicate"), json!("duplicate"), json!("duplicate"), json!("filtered")]
    );
    assert_eq!((&all[0]["eventId"], &all[0]["attempt"]), (&json!("e1"), &json!(1)));
    assert!(all[0]["durationMs"].is_number() && all[0].get("payload").is_none(), "{}", all[0]);
    let thread = thread_in(&app, all[0]["threadId"].as_str().expect("a thread"), "completed").await;
    let id = path.strip_prefix("/triggers/").expect("an id");
    let source = json!({"triggerId": id, "triggerSlug": "webhook", "app": "webhook", "eventId": "e1"});
    assert_eq!(thread["triggerSource"], source);
    assert_eq!((&thread["tenantId"], &thread["subtenantId"]), (&json!("acme"), &json!("u1")));
    assert_eq!(thread["userUID"], format!("trigger:{id}"));
    let message = &thread["threadContent"][0];
    let said = message["content"]["message"].as_str().expect("text");
    assert!(said.starts_with("Mail: Ada said hi ([\"a\"]) at 20"), "{said}");
    assert_eq!(message["contentSource"], "trigger");
    let shown = app.get(&path).await.body;
    assert_eq!((&shown["eventCount"], &shown["state"]), (&json!(1), &json!("active")));
    assert_eq!(shown["lastEventAt"], all[0]["receivedAt"]);
    assert_eq!((&shown["target"]["name"], &shown["targetType"]), (&json!("A"), &json!("agent")));
    assert_eq!(events(&app, &path, "&outcome=FILTERED").await.len(), 1);
    let with = events(&app, &path, "&outcome=filtered&includePayload=true").await;
    assert_eq!(with[0]["payload"], json!({"kind": "call"}));
    let twice = events(&app, &path, "&outcome=duplicate&includePayload=true").await;
    assert!(twice[0].get("payload").is_none(), "{}", twice[0]);
    assert_eq!(events(&app, &path, "&since=99999999999999").await.len(), 0);
    let beyond = app.get(&format!("{path}/events?since=9007199254740993")).await;
    assert_eq!(beyond.error(), "VALIDATION_ERROR", "no client holds such a number: {}", beyond.body);
    assert_eq!(hook(&app, "/v1/hooks/nobody", &[], "{}").await.error(), "TRIGGER_NOT_FOUND");
    let other = app.post("/tenants", json!({"tenantId": "acme"})).await;
    assert_eq!(other.error(), "IDENTIFIER_TAKEN", "the tenant is known since the trigger was made");
}

#[tokio::test]
async fn requests_are_signed_as_the_trigger_says_or_refused() {
    let (app, db) = local().await;
    let secret = "a-good-long-secret";
    let (path, url) = hooked(&app, json!({"triggerConfig": {"secret": secret, "eventIdHeader": "X-Id"}})).await;
    let body = json!({"n": 1}).to_string();
    let own = format!("sha256={}", hex(&tag(secret, &body)));
    assert_eq!(
        hook(&app, &url, &[("x-webhook-signature", &own), ("x-id", "own")], &body).await.status,
        StatusCode::ACCEPTED
    );
    let shown = app.get(&path).await.body;
    assert_eq!(shown["triggerConfig"], json!({"secret": "••••••••", "eventIdHeader": "X-Id"}));
    let kept = db.number("SELECT count(*) AS n FROM triggers WHERE config::text LIKE '%a-good%'").await;
    assert_eq!(kept, 0, "it is sealed");
    let refused = app.patch(&path, json!({"triggerConfig": {"secret": "hunter2"}})).await;
    assert!(refused.error() == "VALIDATION_ERROR" && !refused.body.to_string().contains("hunter2"), "{}", refused.body);
    // A mask that comes back keeps the secret.
    let same = app.patch(&path, json!({"triggerConfig": shown["triggerConfig"], "name": "Signed"})).await;
    assert_eq!(same.body["triggerConfig"]["secret"], "••••••••", "{}", same.body);
    let now = shown["creationTimestampMs"].as_u64().expect("a time") / 1000;
    let standard = |at: u64, body: &str| format!("v1,{}", STANDARD.encode(tag(secret, &format!("std.{at}.{body}"))));
    for (headers, good) in [
        (
            vec![
                ("webhook-id", "std".to_owned()),
                ("webhook-timestamp", now.to_string()),
                ("webhook-signature", standard(now, &body)),
            ],
            true,
        ),
        (
            vec![
                ("webhook-id", "std".to_owned()),
                ("webhook-timestamp", (now - 301).to_string()),
                ("webhook-signature", standard(now - 301, &body)),
            ],
            false,
        ),
        (
            vec![
                ("webhook-id", "other".to_owned()),
                ("webhook-timestamp", now.to_string()),
                ("webhook-signature", standard(now, &body)),
            ],
            false,
        ),
        (vec![("x-webhook-signature", own.replace("sha256=", ""))], false),
        (vec![("x-webhook-signature", format!("sha256={}", hex(&tag("another secret", &body))))], false),
        (vec![], false),
    ] {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let reply = hook(&app, &url, &headers, &body).await;
        if good {
            assert_eq!(reply.status, StatusCode::ACCEPTED, "{headers:?}");
        } else {
            assert_eq!((reply.status, reply.error()), (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"), "{headers:?}");
        }
    }
    assert_eq!(hook(&app, &url, &[("x-webhook-signature", &own)], "{\"n\":2}").await.status, StatusCode::UNAUTHORIZED);
    let all = outcomes(&app, &path, 2).await;
    assert_eq!((&all[0]["eventId"], &all[1]["eventId"]), (&json!("own"), &json!("std")));
    let large = "x".repeat((1 << 20) + 1);
    let large = app.anonymous(Method::POST, &url).body(large).send().await.expect("an answer");
    assert_eq!(large.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn tests_and_replays_are_carried_out_switches_and_limits_hold_and_errors_pause() {
    let (app, db) = local().await;
    let receiver = FakeToolServer::start();
    let kinds = ["trigger.auto_paused", "trigger.delivery_failed"];
    // It hears of one tenant alone.
    let hears = json!({"url": format!("{}/echo/hook", receiver.url()), "events": kinds, "tenantId": "acme"});
    app.post("/webhooks", hears).await;
    let (path, url) =
        hooked(&app, json!({"enabled": false, "newThreadsState": "paused", "rateLimitPerMinute": 2})).await;
    let made = app.get(&path).await.body;
    assert_eq!((&made["state"], &made["enabled"]), (&json!("disabled"), &json!(false)));
    hook(&app, &url, &[("webhook-id", "off")], "{}").await;
    let tested = app.post(&format!("{path}/test"), json!({"payload": {"x": 1}})).await;
    assert_eq!((tested.status, tested.body.get("outcome")), (StatusCode::ACCEPTED, None), "{}", tested.body);
    let all = outcomes(&app, &path, 2).await;
    assert_eq!((&all[0]["outcome"], &all[1]["outcome"]), (&json!("disabled"), &json!("executed")));
    thread_in(&app, all[1]["threadId"].as_str().expect("a thread"), "paused").await;
    assert_eq!(app.post(&format!("{path}/events/none/replay"), json!({})).await.error(), "EVENT_NOT_FOUND");
    app.patch(&path, json!({"enabled": true})).await;
    // It was seen; carried out again it is all the same, twice, by either id.
    hook(&app, &url, &[("webhook-id", "off")], "{}").await;
    for (name, attempt) in [("off".to_owned(), 2), (text(&all[0]["id"]), 3)] {
        let again = app.post(&format!("{path}/events/{name}/replay"), json!({})).await;
        assert_eq!((again.status, &again.body["attempt"]), (StatusCode::ACCEPTED, &json!(attempt)), "{}", again.body);
        assert_eq!(again.body["eventId"], "off");
    }
    let all = outcomes(&app, &path, 5).await;
    let of: Vec<_> = all[2..].iter().map(|of| of["outcome"].clone()).collect();
    assert_eq!(of, [json!("duplicate"), json!("executed"), json!("executed")]);

    // What a filter leaves out is seen, too, and takes nothing of what may start in a minute.
    let starts = db.number("SELECT max(starts)::bigint AS n FROM trigger_counters").await;
    app.patch(&path, json!({"filter": {"kind": "mail"}})).await;
    for _ in 0..2 {
        hook(&app, &url, &[("webhook-id", "out")], "{}").await;
    }
    let filtered = outcomes(&app, &path, 7).await;
    assert_eq!((&filtered[5]["outcome"], &filtered[6]["outcome"]), (&json!("filtered"), &json!("duplicate")));
    assert_eq!(db.number("SELECT max(starts)::bigint AS n FROM trigger_counters").await, starts);
    app.patch(&path, json!({"filter": null})).await;

    // No more than two a minute, and those two are spent unless a minute began meanwhile.
    join_all((0..6).map(|n| {
        let (app, url, id) = (&app, &url, format!("many-{n}"));
        async move { hook(app, url, &[("webhook-id", &id)], "{}").await }
    }))
    .await;
    let all = outcomes(&app, &path, 13).await;
    let limited = all[7..].iter().filter(|of| of["outcome"] == "rate_limited").count();
    assert!((2..=6).contains(&limited), "{all:?}");

    // Three minutes in a row with too many; whoever switches it on again begins anew.
    let sent = AtomicUsize::new(13);
    let paused = eventually("its pause", async || {
        db.run("UPDATE trigger_counters SET limited_minutes = 2, limited_minute = minute - 1, starts = 2").await;
        hook(&app, &url, &[("webhook-id", &format!("more-{sent:?}"))], "{}").await;
        outcomes(&app, &path, sent.fetch_add(1, Ordering::Relaxed) + 1).await;
        Some(app.get(&path).await.body).filter(|of| of["state"] == "auto_paused")
    })
    .await;
    assert_eq!((&paused["autoPauseReason"], &paused["enabled"]), (&json!("RATE_LIMIT"), &json!(true)));
    let again = app.patch(&path, json!({"enabled": true})).await.body;
    assert_eq!(
        (&again["state"], again.get("autoPauseReason"), again.get("autoPausedAt")),
        (&json!("active"), None, None)
    );
    assert_eq!(db.number("SELECT max(limited_minutes)::bigint AS n FROM trigger_counters").await, 0);

    // Twenty errors in a row.
    let of = app.post("/agents", json!({"name": "Gone", "disabled": true})).await.body["_id"].clone();
    let server = server_of(&app, "webhook").await;
    let of_tenant = json!({"agentId": of, "rateLimitPerMinute": 600, "tenantId": "acme"});
    let failing = trigger(&app, &server, "webhook", of_tenant).await;
    let failing_path = format!("/triggers/{}", text(&failing["id"]));
    let url = failing["webhookUrl"].as_str().expect("one").strip_prefix(app.url()).expect("ours").to_owned();
    for n in 0..20 {
        hook(&app, &url, &[("webhook-id", &format!("e{n}"))], "{}").await;
    }
    let all = outcomes(&app, &failing_path, 20).await;
    assert_eq!((&all[0]["outcome"], &all[0]["error"]["code"]), (&json!("error"), &json!("AGENT_DISABLED")));
    let paused = async || Some(app.get(&failing_path).await.body).filter(|of| of["state"] == "auto_paused");
    assert_eq!(eventually("its pause", paused).await["autoPauseReason"], "ERRORS");
    // What came to an error may come again.
    app.patch(&failing_path, json!({"enabled": true})).await;
    app.patch(&format!("/agents/{}", text(&of)), json!({"disabled": false})).await;
    hook(&app, &url, &[("webhook-id", "e0")], "{}").await;
    assert_eq!(outcomes(&app, &failing_path, 21).await[20]["outcome"], "executed");
    let told = eventually("events", async || {
        let told: Vec<Value> = receiver.recorded().iter().map(ToolRequest::json).collect();
        (told.iter().filter(|of| of["type"] == kinds[1]).count() == 20 && told.iter().any(|of| of["type"] == kinds[0]))
            .then_some(told)
    })
    .await;
    let paused = told.iter().find(|of| of["type"] == kinds[0]).expect("one");
    assert_eq!(paused["data"], json!({"triggerId": failing["id"], "name": failing["name"], "reason": "ERRORS"}));
    let failed: HashMap<String, Value> = told
        .iter()
        .filter(|of| of["type"] == kinds[1])
        .map(|of| (text(&of["data"]["eventId"]), of["data"].clone()))
        .collect();
    for n in 0..20 {
        let data = &failed[&format!("e{n}")];
        assert_eq!((&data["triggerId"], &data["error"]["code"]), (&failing["id"], &json!("AGENT_DISABLED")), "{data}");
    }
    // What is started goes, and its triggers with it.
    assert_eq!(app.delete(&format!("/agents/{}", text(&of))).await.status, StatusCode::OK);
    assert_eq!(app.get(&failing_path).await.error(), "TRIGGER_NOT_FOUND");
    let listed = app.get(&format!("/triggers?toolServerId={server}")).await.body;
    assert_eq!((&listed["total"], &listed["items"]), (&json!(0), &json!([])));
    let all = app.get("/triggers?limit=1").await.body;
    assert_eq!((&all["total"], &all["limit"], &all["items"][0]["id"]), (&json!(1), &json!(1), &made["id"]));
}

#[tokio::test]
async fn an_account_is_sent_so_many_bytes_of_events_an_hour_whatever_becomes_of_them() {
    let app = app_with(&[("PLATFORM_TRIGGER_BYTES_AN_HOUR", "1000000")]).await;
    let (path, url) = hooked(&app, json!({"enabled": false})).await;
    let event = json!({"text": "x".repeat(300_000)}).to_string();
    for id in ["1", "2", "3"] {
        assert_eq!(hook(&app, &url, &[("webhook-id", id)], &event).await.status, StatusCode::ACCEPTED);
    }
    let refused = hook(&app, &url, &[("webhook-id", "4")], &event).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_EVENTS"));
    let all = outcomes(&app, &path, 3).await;
    assert!(all.iter().all(|of| of["outcome"] == "disabled"), "{all:?}");
    // What carries nothing is kept, too.
    let mut taken = 0;
    for n in 0..60 {
        let small = hook(&app, &url, &[("webhook-id", &format!("small-{n}"))], "").await;
        taken += usize::from(small.status == StatusCode::ACCEPTED);
    }
    assert!((20..50).contains(&taken), "{taken}");
}

#[tokio::test]
async fn a_trigger_that_answers_to_itself_ends_after_five_runs() {
    let (app, _) = local().await;
    // The agent's tool sends each event on to the trigger that started it.
    let of = agent(&app, json!({"name": "Loop", "approvalTools": ["nothing"]})).await;
    let server = server_of(&app, "webhook").await;
    let made = trigger(&app, &server, "webhook", json!({"agentId": of, "rateLimitPerMinute": 600})).await;
    let path = format!("/triggers/{}", text(&made["id"]));
    let url = text(&made["webhookUrl"]);
    let tool = json!({"function": {"name": "again", "parameters": {"type": "object", "properties": {"n": {"type": "string"}}}},
        "endpoint": "", "method": "POST"});
    let tools = json!({"name": "Self", "url": url, "toolDefinitions": [tool]});
    let tools = text(&app.post("/tool-servers", tools).await.body["_id"]);
    app.patch(&format!("/agents/{of}"), json!({"assistantSpecialization": {"availableToolsGroupsUids": [tools]}}))
        .await;
    app.patch(&path, json!({"messageTemplate": "/tool again {\"n\": \"{{event.id}}\"}\nDone"})).await;
    hook(&app, url.strip_prefix(app.url()).expect("ours"), &[("x-trigger-depth", "4.forged")], "{}").await;
    let all = outcomes(&app, &path, 6).await;
    let of: Vec<_> = all.iter().map(|of| of["outcome"].clone()).collect();
    assert_eq!(of[..5], vec![json!("executed"); 5]);
    assert_eq!((&of[5], &all[5]["error"]["code"]), (&json!("error"), &json!("LOOP")));

    // Also in a chat.
    let helper = json!({"name": "C", "identifier": "chatty", "availableToolsGroupsUids": [tools]});
    app.post("/assistants", helper).await;
    app.patch(&path, json!({"enabled": false})).await;
    let chat = json!({"assistantId": "chatty", "chatUidTemplate": "loop", "rateLimitPerMinute": 600,
        "messageTemplate": "/tool again {\"n\": \"{{event.id}}\"}\nDone"});
    let chat = trigger(&app, &server, "webhook", chat).await;
    app.patch(&format!("/tool-servers/{tools}"), json!({"url": chat["webhookUrl"]})).await;
    let hooks = text(&chat["webhookUrl"]);
    hook(&app, hooks.strip_prefix(app.url()).expect("ours"), &[], "{}").await;
    let all = outcomes(&app, &format!("/triggers/{}", text(&chat["id"])), 6).await;
    assert_eq!((&all[5]["outcome"], &all[5]["error"]["code"]), (&json!("error"), &json!("LOOP")), "{all:?}");
    app.delete(&format!("/triggers/{}", text(&chat["id"]))).await;

    // Also by the hand of a sub-agent, and of one below it.
    let helper = agent(
        &app,
        json!({"name": "Helper", "subAgentConfig": {"enabled": true},
        "assistantSpecialization": {"availableToolsGroupsUids": [tools]}}),
    )
    .await;
    let lead = agent(&app, json!({"name": "Lead", "assistantSpecialization": {"subagentsIds": [helper]}})).await;
    app.patch(&path, json!({"enabled": false})).await;
    let handed = trigger(&app, &server, "webhook", json!({"agentId": lead, "rateLimitPerMinute": 600,
        "messageTemplate": format!("{}\nDone", hand_off(&helper, &json!("/tool again {\"n\": \"{{event.id}}\"}\nDone")))}))
    .await;
    app.patch(&format!("/tool-servers/{tools}"), json!({"url": handed["webhookUrl"]})).await;
    let url = text(&handed["webhookUrl"]);
    hook(&app, url.strip_prefix(app.url()).expect("ours"), &[], "{}").await;
    let all = outcomes(&app, &format!("/triggers/{}", text(&handed["id"])), 6).await;
    let of: Vec<_> = all.iter().map(|of| of["outcome"].clone()).collect();
    assert_eq!((&of[..5], &all[5]["error"]["code"]), (&vec![json!("executed"); 5][..], &json!("LOOP")), "{all:?}");

    // What is told of such a run says so, too, whatever it is.
    let receiver = FakeToolServer::start();
    let of_machines = json!({"url": format!("{}/echo/machine", receiver.url()), "events": ["sandbox.finished"]});
    assert_eq!(app.post("/webhooks", of_machines).await.status, StatusCode::CREATED);
    let machine = json!({"name": "m", "availableToolsGroupsUids": ["builtin-sandbox"]});
    let machine = text(&app.post("/environments", machine).await.body["_id"]);
    let heard = json!({"name": "Heard", "webhookUrl": format!("{}/echo/thread", receiver.url()),
        "environmentId": machine});
    let heard = agent(&app, heard).await;
    let server = server_of(&app, "webhook").await;
    let runs = json!({"agentId": heard, "messageTemplate": "/tool run_command {\"command\": \"true\"}\nDone"});
    let made = trigger(&app, &server, "webhook", runs).await;
    let url = text(&made["webhookUrl"]);
    hook(&app, url.strip_prefix(app.url()).expect("ours"), &[], "{}").await;
    let told = eventually("its end is told", async || {
        let told = receiver.recorded();
        let is_told = |kind: &str| told.iter().any(|of| of.json()["type"] == kind);
        (is_told("thread.finished") && is_told("sandbox.finished")).then_some(told)
    })
    .await;
    assert!(told.iter().any(|of| of.json()["data"]["state"] == "processing"), "{told:?}");
    assert!(told.iter().all(|of| of.header("x-trigger-depth").starts_with("1.")), "{told:?}");
}

#[tokio::test]
async fn a_trigger_is_deleted_also_while_its_list_is_asked_and_its_events_end() {
    let (app, _) = local().await;
    let feeds = FakeToolServer::start();
    let of = agent(&app, json!({"name": "A"})).await;
    let (hooks, lists) = (server_of(&app, "webhook").await, server_of(&app, "rss").await);
    let config = json!({"url": format!("{}/echo/feed", feeds.url())});
    let both = |n: usize| {
        let (app, of, hooks, lists, config) = (&app, &of, &hooks, &lists, &config);
        async move {
            let asked = trigger(app, lists, "new_item", json!({"agentId": of, "triggerConfig": config})).await;
            let hooked = trigger(app, hooks, "webhook", json!({"agentId": of})).await;
            let url = hooked["webhookUrl"].as_str().expect("one").strip_prefix(app.url()).expect("ours");
            for event in 0..n % 4 {
                hook(app, url, &[("webhook-id", &event.to_string())], "{}").await;
            }
            for made in [asked, hooked] {
                let deleted = app.delete(&format!("/triggers/{}", text(&made["id"]))).await;
                assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.body);
            }
        }
    };
    for _ in 0..6 {
        join_all((0..16).map(both)).await;
    }
}

#[tokio::test]
async fn triggers_are_listed_by_what_they_start_a_test_takes_a_sample_and_the_newest_events_are_kept() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let of = agent(&app, json!({"name": "A"})).await;
    let assistant = text(&app.post("/assistants", json!({"name": "S", "identifier": "s"})).await.body["_id"]);
    let (hooks, times) = (server_of(&app, "webhook").await, server_of(&app, "schedule").await);
    let by_agent = trigger(&app, &hooks, "webhook", json!({"agentId": of})).await;
    let config = json!({"cronExpression": "0 0 1 1 *"});
    let by_time = json!({"assistantId": assistant, "triggerConfig": config});
    let by_time = trigger(&app, &times, "schedule", by_time).await;
    for (query, made) in [
        (format!("agentId={of}"), Some(&by_agent)),
        (format!("assistantId={assistant}"), Some(&by_time)),
        (format!("toolServerId={hooks}"), Some(&by_agent)),
        (format!("toolServerId={times}&assistantId={assistant}"), Some(&by_time)),
        (format!("toolServerId={times}&agentId={of}"), None),
        ("agentId=nobody".to_owned(), None),
    ] {
        let listed = app.get(&format!("/triggers?{query}")).await.body;
        let ids: Vec<_> = listed["items"].as_array().expect("items").iter().map(|of| &of["id"]).collect();
        assert_eq!(ids, made.map(|made| &made["id"]).into_iter().collect::<Vec<_>>(), "{query}");
        assert_eq!(listed["total"], ids.len(), "{query}");
    }
    // Who gives no event has one made of the schema of the event type.
    let path = format!("/triggers/{}", text(&by_time["id"]));
    assert_eq!(app.post(&format!("{path}/test"), json!({})).await.status, StatusCode::ACCEPTED);
    let tested = outcomes(&app, &path, 1).await[0].clone();
    assert_eq!(tested["outcome"], "executed", "{tested}");
    let payload = events(&app, &path, "&includePayload=true").await[0]["payload"].clone();
    assert!(payload.as_object().is_some_and(|of| !of.is_empty()), "{payload}");

    // Of a trigger the newest 5000 are kept, of others all.
    let copies = "INSERT INTO trigger_events SELECT (jsonb_populate_record(e, jsonb_build_object('id', e.id || n, \
        'received_ms', e.received_ms - n))).* FROM trigger_events e, generate_series(1, 5003) n";
    db.run(copies).await;
    let url = text(&by_agent["webhookUrl"]);
    hook(&app, url.strip_prefix(app.url()).expect("ours"), &[("webhook-id", "1")], "{}").await;
    drop(app);
    let app = TestApp::start(PROGRAM, &db, &[]);
    let left = async || db.number("SELECT count(*) AS n FROM trigger_events WHERE outcome IS NOT NULL").await;
    eventually("the newest", async || (left().await == 5001).then_some(())).await;
    let kept = app.get(&format!("{path}/events?limit=1")).await.body;
    assert_eq!((&kept["total"], &kept["items"][0]["id"]), (&json!(5000), &tested["id"]), "{kept}");
}

/// Signed events over five triggers, a quarter of them sent twice, while the process is killed.
#[tokio::test]
async fn each_event_starts_one_run_however_often_it_comes_and_the_process_is_killed() {
    let factor = crate::support::factor(10);
    let (each, kills) = (30 * factor, 2 * factor);
    let (db, receiver) = (TestDb::new().await, FakeToolServer::start());
    let settings = [&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")], UNBOUNDED.as_slice()].concat();
    let fleet = [(); 2].map(|()| TestApp::start(PROGRAM, &db, &settings));
    let app = &fleet[0];
    let listening = json!({"url": format!("{}/echo/hook", receiver.url()), "events": ["thread.finished"]});
    app.post("/webhooks", listening).await;
    let of = agent(app, json!({"name": "A"})).await;
    let server = server_of(app, "webhook").await;
    let secret = "a-good-long-secret";
    let mut hooks = Vec::new();
    for _ in 0..5 {
        let more = json!({"agentId": of, "rateLimitPerMinute": 600, "triggerConfig": {"secret": secret, "eventIdHeader": "x-id"}});
        let made = trigger(app, &server, "webhook", more).await;
        let url = made["webhookUrl"].as_str().expect("one").strip_prefix(app.url()).expect("ours");
        hooks.push(url.to_owned());
    }
    // Every third twice, at the same time and to both processes.
    let events = (0..5).flat_map(|hook| (0..each).map(move |n| (hook, n)));
    let sent: Vec<(usize, usize)> =
        events.flat_map(|event| iter::repeat_n(event, 1 + usize::from(event.1 % 3 == 0))).collect();
    let fleet = fleet.map(RwLock::new);
    let (accepted, cut) = (watch::Sender::new(0), Cell::new(0));
    let send = async |(at, (hook, n)): (usize, &(usize, usize))| {
        let body = json!({"n": n}).to_string();
        let signed = format!("sha256={}", hex(&tag(secret, &body)));
        // What was not accepted is sent again, as a sender does.
        loop {
            let request = fleet[at % 2].read().await.anonymous(Method::POST, &hooks[*hook]).body(body.clone());
            match request.header("x-webhook-signature", &signed).header("x-id", format!("e{n}")).send().await {
                Ok(answer) if answer.status() == StatusCode::ACCEPTED => break,
                Ok(_) => {}
                Err(_) => cut.set(cut.get() + 1),
            }
        }
        accepted.send_modify(|count| *count += 1);
    };
    let sending = stream::iter(sent.iter().enumerate()).map(send).buffer_unordered(20).collect::<Vec<()>>();
    let killing = async {
        let mut progress = accepted.subscribe();
        for kill in 1..=kills {
            let step = sent.len() / (kills + 1);
            progress.wait_for(|count| *count >= kill * step).await.expect("it goes on");
            fleet[kill % 2].write().await.crash();
        }
    };
    tokio::join!(sending, killing);
    db.run("UPDATE webhook_deliveries SET next_ms = 0 WHERE status = 'pending'").await;
    let count = i64::try_from(5 * each).expect("few");
    let threads = async || db.number("SELECT count(*) AS n FROM threads WHERE state = 'completed'").await;
    eventually("all threads", async || (threads().await == count).then_some(())).await;
    eventually("all outcomes", async || {
        (db.number("SELECT count(*) AS n FROM trigger_events WHERE outcome IS NULL").await == 0).then_some(())
    })
    .await;
    assert_eq!(db.number("SELECT count(*) AS n FROM threads").await, count, "one run for each event");
    let executed = "SELECT count(DISTINCT thread_id) AS n FROM trigger_events WHERE outcome = 'executed'";
    assert_eq!(db.number(executed).await, count);
    let told = eventually("every end", async || {
        let mut told = BTreeMap::<String, HashSet<String>>::new();
        for request in receiver.recorded() {
            let thread = request.json()["data"]["threadId"].clone();
            told.entry(text(&thread)).or_default().insert(request.header("webhook-id").to_owned());
        }
        (told.len() == 5 * each).then_some(told)
    })
    .await;
    assert!(told.values().all(|ids| ids.len() == 1), "under one webhook-id");
    let (sent, cut, told, again) = (sent.len(), cut.get(), told.len(), receiver.recorded().len() - told.len());
    println!("{sent} events, {kills} kills, {cut} requests cut off; {told} runs told of, {again} of them once more");
}

#[tokio::test]
async fn what_passes_is_tried_again_and_what_stays_is_an_error_after_the_last_try() {
    let retries = ("PLATFORM_TRIGGER_RETRIES", "0s,100ms,100ms");
    let (app, model) = app_with_model(&[retries, ("PLATFORM_RATE_FULL", "0")]).await;
    let made =
        app.post("/assistants", json!({"name": "Busy", "identifier": "busy", "messageQueueEnabled": false})).await.body;
    let server = server_of(&app, "webhook").await;
    let given = json!({"assistantId": made["_id"], "chatUidTemplate": "one", "messageTemplate": "Hello"});
    let made = trigger(&app, &server, "webhook", given).await;
    let path = format!("/triggers/{}", text(&made["id"]));
    let url = text(&made["webhookUrl"]);
    let url = url.strip_prefix(app.url()).expect("ours");
    // As long as its chat is answered there is no room for another message.
    model.hold();
    for id in ["1", "2"] {
        hook(&app, url, &[("webhook-id", id)], "{}").await;
        outcomes(&app, &path, id.parse().expect("a number")).await;
    }
    let all = outcomes(&app, &path, 2).await;
    assert_eq!((&all[0]["outcome"], &all[1]["outcome"]), (&json!("executed"), &json!("error")), "{all:?}");
    assert_eq!(all[1]["error"]["code"], "CHAT_BUSY", "{all:?}");
    assert!(all[1]["durationMs"].as_i64().is_some_and(|took| took >= 200), "it was tried three times: {all:?}");
    hook(&app, url, &[("webhook-id", "3")], "{}").await;
    model.let_go(100);
    let all = outcomes(&app, &path, 3).await;
    assert_eq!(all[2]["outcome"], "executed", "{all:?}");
}

#[tokio::test]
async fn no_trigger_is_left_of_an_agent_or_assistant_that_is_deleted_at_that_moment() {
    let (app, _db) = local().await;
    let server = server_of(&app, "webhook").await;
    for n in 0..20 {
        for (kind, field) in [("agents", "agentId"), ("assistants", "assistantId")] {
            let target = app.post(&format!("/{kind}"), json!({"name": format!("t{n}")})).await.body;
            let id = text(&target["_id"]);
            let path = format!("/{kind}/{}", text(target.get("identifier").unwrap_or(&target["_id"])));
            let new = json!({"toolServerId": server, "triggerSlug": "webhook", field: id});
            let (made, gone) = join(app.post("/triggers", new), app.delete(&path)).await;
            assert_eq!(gone.status, StatusCode::OK, "{}", gone.body);
            let is_refused = made.status == StatusCode::NOT_FOUND;
            assert!(is_refused || made.status == StatusCode::CREATED, "{}", made.body);
        }
    }
    eventually("no trigger is there", async || (app.get("/triggers").await.body["total"] == 0).then_some(())).await;
}
