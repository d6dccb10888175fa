//! `/v1/webhooks`: events, signed, to whoever wants to be told.

use std::collections::{BTreeMap, HashSet};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::future::join_all;
use platform_testing::{FakeToolServer, Script, TestApp, TestDb, ToolRequest};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    document_files,
    environments::environment,
    support::{
        PROGRAM, UNBOUNDED, agent, app, app_with_model, app_with_tools, eventually, factor, say, text, thread,
        thread_in,
    },
};

/// A webhook of some events; its path and its secret.
pub async fn webhook(app: &TestApp, url: &str, events: &[&str], more: Value) -> (String, String) {
    let mut body = json!({"url": url, "events": events});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let made = app.post("/webhooks", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    (format!("/webhooks/{}", text(&made.body["_id"])), text(&made.body["secret"]))
}

/// What a path of the server was sent, once something for which `is_enough` was.
pub async fn received(
    server: &FakeToolServer,
    path: &str,
    is_enough: impl Fn(&[ToolRequest]) -> bool,
) -> Vec<ToolRequest> {
    eventually(path, async || {
        let sent: Vec<_> = server.recorded().into_iter().filter(|request| request.path == path).collect();
        is_enough(&sent).then_some(sent)
    })
    .await
}

/// Whether a secret signed what was sent, as Standard Webhooks has it; which of the signatures it is.
pub fn signed(request: &ToolRequest, secret: &str) -> Option<usize> {
    use aws_lc_rs::hmac;
    let key = STANDARD.decode(secret.strip_prefix("whsec_").expect("the prefix")).expect("base64");
    let (id, timestamp) = (request.header("webhook-id"), request.header("webhook-timestamp"));
    let message = format!("{id}.{timestamp}.{}", request.body);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), message.as_bytes());
    let expected = format!("v1,{}", STANDARD.encode(tag.as_ref()));
    request.header("webhook-signature").split(' ').position(|given| given == expected)
}

async fn deliveries(app: &TestApp, webhook: &str) -> Vec<Value> {
    let listed = app.get(&format!("{webhook}/deliveries?limit=100")).await.body;
    listed["items"].as_array().expect("items").clone()
}

/// The deliveries of a webhook once all stand so.
async fn all_stand(app: &TestApp, webhook: &str, count: usize, status: &str) -> Vec<Value> {
    eventually(status, async || {
        let all = deliveries(app, webhook).await;
        (all.len() == count && all.iter().all(|of| of["status"] == status)).then_some(all)
    })
    .await
}

#[tokio::test]
async fn a_webhook_is_made_changed_listed_and_deleted_and_shows_its_secret_once() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]);
    let url = "http://127.0.0.1:9/hook";
    let made = app.post("/webhooks", json!({"url": url, "events": ["thread.finished", "*", "*"]})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let secret = text(&made.body["secret"]);
    assert_eq!(STANDARD.decode(secret.strip_prefix("whsec_").expect("the prefix")).expect("base64").len(), 32);
    assert_eq!(made.body["events"], json!(["*", "thread.finished"]));
    assert_eq!((&made.body["enabled"], &made.body["includeContent"]), (&json!(true), &json!(false)));
    let path = format!("/webhooks/{}", text(&made.body["_id"]));
    let read = app.get(&path).await.body;
    assert!(read.get("secret").is_none() && read.get("disabledReason").is_none(), "{read}");
    let changed = json!({"enabled": false, "description": "of ops", "tenantId": "acme", "events": ["chat.error"]});
    let changed = app.patch(&path, changed).await.body;
    assert_eq!((&changed["description"], &changed["tenantId"]), (&json!("of ops"), &json!("acme")));
    let listed = app.get("/webhooks?limit=1").await.body;
    assert_eq!((&listed["total"], &listed["limit"], &listed["items"][0]["_id"]), (&json!(1), &json!(1), &read["_id"]));
    let again = app.patch(&path, json!({"events": ["Chat.Error"], "description": "d".repeat(4000)})).await;
    assert_eq!((again.status, &again.body["events"]), (StatusCode::OK, &json!(["chat.error"])), "{}", again.body);
    let rotated = app.post(&format!("{path}/rotate-secret"), json!({})).await;
    assert!(rotated.status == StatusCode::OK && rotated.body["secret"] != secret.as_str(), "{}", rotated.body);

    let rotate = format!("{path}/rotate-secret");
    for (path, body) in [
        ("/webhooks", json!({"url": url, "events": ["*"]})),
        (rotate.as_str(), json!({})),
        ("/webhooks/default-secret/rotate", json!({})),
    ] {
        let once = async || {
            let request = app.request(Method::POST, path).header("idempotency-key", format!("once-{path}"));
            app.send(request.json(&body)).await.body
        };
        assert!(once().await["secret"].as_str().is_some_and(|secret| secret.starts_with("whsec_")), "{path}");
        assert_eq!(once().await["secret"], "••••••••", "a replay shows no secret: {path}");
    }
    assert_eq!(db.number("SELECT count(*) AS n FROM idempotency WHERE body LIKE '%whsec_%'").await, 0);

    for (body, code) in [
        (json!({"events": ["*"]}), "VALIDATION_ERROR"),
        (json!({"url": url}), "VALIDATION_ERROR"),
        (json!({"url": url, "events": []}), "VALIDATION_ERROR"),
        (json!({"url": url, "events": ["thread.started"]}), "VALIDATION_ERROR"),
        (json!({"url": url, "events": "*"}), "VALIDATION_ERROR"),
        (json!({"url": "http://10.0.0.1/", "events": ["*"]}), "URL_NOT_ALLOWED"),
        (json!({"url": "ftp://a.example/", "events": ["*"]}), "URL_NOT_ALLOWED"),
        (json!({"url": "http://u:p@a.example/", "events": ["*"]}), "URL_NOT_ALLOWED"),
    ] {
        assert_eq!(app.post("/webhooks", body.clone()).await.error(), code, "{body}");
    }
    assert_eq!(app.patch(&path, json!({"url": "http://169.254.169.254/"})).await.error(), "URL_NOT_ALLOWED");
    assert_eq!(app.post(&format!("{path}/test"), json!({"eventType": "nothing"})).await.error(), "VALIDATION_ERROR");
    let gone = format!("{path}/deliveries/none/redeliver");
    assert_eq!(app.post(&gone, json!({})).await.error(), "DELIVERY_NOT_FOUND");
    assert_eq!(app.delete(&path).await.status, StatusCode::OK);
    for missing in [app.get(&path).await, app.delete(&path).await, app.get(&format!("{path}/deliveries")).await] {
        assert_eq!(missing.error(), "WEBHOOK_NOT_FOUND");
    }
    let made = join_all((0..55).map(|_| app.post("/webhooks", json!({"url": url, "events": ["*"]})))).await;
    let count = |status| made.iter().filter(|reply| reply.status == status).count();
    assert_eq!((count(StatusCode::CREATED), count(StatusCode::CONFLICT)), (49, 6), "one is there");
}

#[tokio::test]
async fn events_of_threads_chats_documents_and_tenants_arrive_signed_and_hold_what_was_said_only_where_it_is_wanted() {
    let (app, server, _) = app_with_tools(&UNBOUNDED).await;
    let (plain, secret) = webhook(&app, &format!("{}/echo/plain", server.url()), &["*"], json!({})).await;
    let some = ["thread.finished", "chat.completed"];
    let (content, _) =
        webhook(&app, &format!("{}/echo/content", server.url()), &some, json!({"includeContent": true})).await;
    let own = json!({"tenantId": "acme"});
    webhook(&app, &format!("{}/echo/acme", server.url()), &["chat.completed"], own).await;
    let project = text(&app.post("/projects", json!({"name": "P", "identifier": "p"})).await.body["_id"]);
    let of_project = json!({"projectId": project});
    webhook(&app, &format!("{}/echo/project", server.url()), &["*"], of_project).await;
    let of = agent(&app, json!({"name": "A"})).await;
    let thread = thread(&app, &of, "Work").await;
    thread_in(&app, &thread, "completed").await;
    let chat = json!({"message": "canary", "chatUid": "c1", "tenantId": "acme", "skipSummarization": true});
    app.post("/assistants/default/messages", chat).await;
    say(&app, "Hello").await;
    app.post("/documents", json!({"name": "Handbook", "markdownContent": "# Words"})).await;
    let rule = json!({"scope": "tenant", "metric": "tokens", "windowUnit": "day", "limit": 100});
    app.post("/tenant-admin/tiers", json!({"tierId": "t", "name": "T", "rules": [rule]})).await;
    app.post("/tenants", json!({"tenantId": "small", "tierId": "t"})).await;
    app.post("/tenant-admin/small/add-usage", json!({"tokens": 85})).await;

    let kinds = |sent: &[ToolRequest]| -> Vec<String> {
        let mut kinds: Vec<_> = sent.iter().map(|request| text(&request.json()["type"])).collect();
        kinds.sort();
        kinds
    };
    let expected = [
        "chat.completed",
        "chat.completed",
        "document.indexed",
        "tenant.limit_warning",
        "thread.finished",
        "thread.state_changed",
        "thread.state_changed",
        "thread.state_changed",
    ];
    let sent = received(&server, "/echo/plain", |sent| sent.len() >= expected.len()).await;
    assert_eq!(kinds(&sent), expected);
    for request in &sent {
        assert_eq!(signed(request, &secret), Some(0), "{request:?}");
        assert_eq!((request.method.as_str(), request.header("content-type")), ("POST", "application/json"));
        assert!(request.header("user-agent").starts_with("platform/"), "{request:?}");
        let at = request.json()["timestamp"].as_str().expect("a time").to_owned();
        assert!(at.ends_with('Z') && at.contains('T'), "{at}");
        assert!(!request.body.contains("canary"), "{request:?}");
    }
    let ids: HashSet<&str> = sent.iter().map(|request| request.header("webhook-id")).collect();
    assert_eq!(ids.len(), sent.len());
    let data = |kind: &str| {
        let all = sent.iter().map(ToolRequest::json);
        all.filter(|body| body["type"] == kind).map(|body| body["data"].clone()).collect::<Vec<_>>()
    };
    let nulls =
        sent.iter().filter(|request| request.json()["data"].as_object().expect("data").values().any(Value::is_null));
    assert_eq!(nulls.count(), 0, "what there is not is not said");
    let finished = &data("thread.finished")[0];
    assert_eq!((&finished["threadId"], &finished["agentId"]), (&json!(thread), &json!(of)));
    assert_eq!((&finished["state"], &finished["previousState"]), (&json!("completed"), &json!("processing")));
    assert!(finished["tokenUsage"].is_object() && finished["duration"].is_number() && finished.get("result").is_none());
    let warned = &data("tenant.limit_warning")[0];
    assert_eq!((&warned["tenantId"], &warned["rule"]["percent"]), (&json!("small"), &json!(85.0)));
    assert!(warned["rule"]["ruleId"].as_str().is_some_and(|id| !id.is_empty()), "{warned}");
    assert_eq!(data("document.indexed")[0]["status"], "ready");
    let of_chat = data("chat.completed").into_iter().find(|of| of["chatUID"] == "c1").expect("one");
    assert_eq!(
        (&of_chat["assistantSpecializationIdentifier"], &of_chat["tenantId"]),
        (&json!("default"), &json!("acme"))
    );
    assert_eq!((&of_chat["status"], &of_chat["stopReason"]), (&json!("completed"), &json!("end_turn")));
    assert!(of_chat["tokenUsage"]["totalTokens"].as_u64().is_some_and(|tokens| tokens > 0), "{of_chat}");

    let whole = received(&server, "/echo/content", |sent| sent.len() == 3).await;
    let whole: BTreeMap<String, Value> =
        whole.iter().map(|request| (request.header("webhook-id").to_owned(), request.json())).collect();
    assert!(whole.keys().all(|id| ids.contains(id.as_str())), "one event has one id for all who are told");
    assert!(whole.values().any(|body| body["data"]["result"]["message"].is_string()), "{whole:?}");
    let said = whole.values().find(|body| body["data"]["chatUID"] == "c1").expect("the chat");
    let said = said["data"]["messages"].as_array().expect("messages");
    assert_eq!((&said[0]["content"]["message"], &said[1]["role"]), (&json!("canary"), &json!("assistant")));
    let kept = app.get("/assistants/default/chats/c1").await.body["chatContent"][0].clone();
    assert_eq!(said[0], kept, "whole, as everywhere else");
    let only = received(&server, "/echo/acme", |sent| !sent.is_empty()).await;
    assert_eq!((only.len(), &only[0].json()["data"]["chatUID"]), (1, &json!("c1")));
    let all = all_stand(&app, &plain, expected.len(), "succeeded").await;
    assert!(all.iter().all(|of| of["attempts"].as_array().is_some_and(|attempts| attempts.len() == 1)), "{all:?}");
    assert_eq!(all[0]["attempts"][0]["statusCode"], 200);
    let failed = app.get(&format!("{content}/deliveries?status=FAILED")).await.body;
    assert_eq!((&failed["total"], &failed["items"]), (&json!(0), &json!([])));
    // One of a project is told of what is in it alone.
    let inside = agent(&app, json!({"name": "B", "projectId": project})).await;
    let inside = crate::support::thread(&app, &inside, "Work").await;
    let document = json!({"name": "Inside", "markdownContent": "# Words", "projectId": project});
    let document = app.post("/documents", document).await.body["_id"].clone();
    let told = received(&server, "/echo/project", |sent| sent.len() >= 5).await;
    assert_eq!(kinds(&told)[..2], ["document.indexed", "thread.finished"]);
    let data = |request: &ToolRequest| request.json()["data"].clone();
    let is_inside = |data: Value| data["threadId"] == json!(inside) || data["documentId"] == document;
    assert!(told.len() == 5 && told.iter().map(data).all(is_inside), "{told:?}");
}

#[tokio::test]
async fn judgements_machines_and_what_goes_wrong_are_told_of() {
    let server = FakeToolServer::start();
    let (app, model) = app_with_model(
        &[&UNBOUNDED[..], &[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_MODEL_ATTEMPTS", "1")]].concat(),
    )
    .await;
    let events = [
        "chat.error",
        "evaluation.completed",
        "document.failed",
        "snapshot.ready",
        "sandbox.finished",
        "thread.approval_required",
        "tenant.limit_reached",
    ];
    let (_, secret) = webhook(&app, &format!("{}/echo/all", server.url()), &events, json!({})).await;
    model.script([Script::refusal(400)]);
    let failed = say(&app, "Hello").await;
    let of = agent(&app, json!({"provider": "demo", "llm": "demo-1"})).await;
    let done = thread(&app, &of, "Work").await;
    thread_in(&app, &done, "completed").await;
    let judge = json!({"evaluatorModel": "demo:demo-1"});
    app.patch(&format!("/agents/agents/{of}/evaluation-config"), judge).await;
    let judged = app.post(&format!("/agents/threads/{done}/evaluate"), json!({})).await.body;
    let document = document_files::upload(&app, "broken.pdf", "%PDF-1.7\nnothing", &[]).await.body;
    let (path, environment) = environment(&app, json!({"sandboxConfig": {"snapshotEnabled": true}})).await;
    let snapshot = app.post(&format!("{path}/snapshot/initialize"), json!({})).await.body;
    let careful = json!({"provider": "demo", "llm": "demo-1", "assistantSpecialization": {"approvalTools": ["current_time"], "availableToolsGroupsUids": ["builtin-time"]}});
    let careful = agent(&app, careful).await;
    let asks = thread(&app, &careful, "/tool current_time {}").await;
    let waiting = thread_in(&app, &asks, "paused_for_approval").await;
    let rule = json!({"scope": "tenant", "metric": "tokens", "windowUnit": "day", "limit": 100});
    app.post("/tenant-admin/tiers", json!({"tierId": "t", "name": "T", "rules": [rule]})).await;
    app.post("/tenants", json!({"tenantId": "small", "tierId": "t"})).await;
    app.post("/tenant-admin/small/add-usage", json!({"tokens": 120})).await;

    let sent = received(&server, "/echo/all", |sent| sent.len() >= events.len()).await;
    assert!(sent.iter().all(|request| signed(request, &secret) == Some(0)));
    let told: BTreeMap<String, Value> =
        sent.iter().map(|request| (text(&request.json()["type"]), request.json()["data"].clone())).collect();
    let of_chat = &told["chat.error"];
    assert_eq!(of_chat["chatUID"], failed.body["details"]["chatUid"]);
    assert_eq!(
        (&of_chat["status"], &of_chat["error"]["code"]),
        (&json!("error"), &json!("PROVIDER_ERROR")),
        "{of_chat}"
    );
    let evaluation = &told["evaluation.completed"];
    assert_eq!((&evaluation["threadId"], &evaluation["agentId"]), (&json!(done), &json!(of)), "{evaluation}");
    for field in ["evaluationId", "overallScore", "passed", "status"] {
        assert_eq!(evaluation[field], judged["evaluation"][field], "{field}");
    }
    let of_document = &told["document.failed"];
    assert_eq!(of_document["documentId"], document["_id"], "{of_document}");
    assert_eq!((&of_document["status"], &of_document["name"]), (&json!("failed"), &document["name"]));
    assert_eq!(of_document["error"]["code"], "EXTRACTION_FAILED", "{of_document}");
    let saved = &told["snapshot.ready"];
    assert_eq!((&saved["snapshotId"], &saved["environmentId"]), (&snapshot["snapshotId"], &json!(environment)));
    let asked = &told["thread.approval_required"];
    assert_eq!((&asked["threadId"], &asked["agentId"]), (&json!(asks), &json!(careful)), "{asked}");
    assert_eq!(asked["pendingApproval"]["toolNames"], json!(["current_time"]), "{asked}");
    assert_eq!(asked["pendingApproval"]["uid"], waiting["pendingApproval"]["uid"], "{waiting}");
    assert!(asked["pendingApproval"]["expiresAtMs"].is_number(), "{asked}");
    let reached = &told["tenant.limit_reached"];
    assert_eq!((&reached["tenantId"], &reached["rule"]["current"]), (&json!("small"), &json!(120)), "{reached}");
    let session = app.get(&format!("{path}/sessions/last")).await.body;
    let ended = &told["sandbox.finished"];
    for field in ["sessionId", "environmentId", "status", "stoppedReason"] {
        assert_eq!(ended[field], session[field], "{field}");
    }
}

#[tokio::test]
async fn a_thread_tells_its_own_addresses_signed_with_the_default_secret() {
    let (app, server, _) = app_with_tools(&[]).await;
    assert_eq!(app.get("/webhooks/default-secret").await.body, json!({"configured": false}));
    let of = agent(&app, json!({"name": "A", "webhookUrl": format!("{}/echo/agent", server.url())})).await;
    let task = json!({"message": "Work", "callbackUrl": format!("{}/echo/thread", server.url())});
    let started = app.post(&format!("/agents/{of}/threads"), task).await;
    assert_eq!(started.status, StatusCode::CREATED, "{}", started.body);
    let of_thread = received(&server, "/echo/thread", |sent| sent.len() == 4).await;
    let of_agent = received(&server, "/echo/agent", |sent| sent.len() == 4).await;
    let known = app.get("/webhooks/default-secret").await.body;
    assert_eq!(known["configured"], true);
    let made = app.post("/webhooks/default-secret/rotate", json!({})).await.body;
    let secret = text(&made["secret"]);
    let first = of_thread[0].header("webhook-signature");
    let tag = first.strip_prefix("v1,").and_then(|tag| STANDARD.decode(tag).ok());
    assert!(tag.is_some_and(|tag| tag.len() == 32), "it is signed from the first one on: {first}");
    assert!(signed(&of_thread[0], &secret).is_none(), "it was signed with the one before");
    let finished = of_thread.iter().map(ToolRequest::json).find(|body| body["type"] == "thread.finished");
    assert!(finished.expect("the end")["data"]["result"]["message"].is_string());
    let ids = |sent: &[ToolRequest]| sent.iter().map(|of| of.header("webhook-id").to_owned()).collect::<HashSet<_>>();
    assert_eq!(ids(&of_thread), ids(&of_agent));
    let again = app.post(&format!("/agents/{of}/threads"), json!({"message": "More"})).await;
    assert_eq!(again.status, StatusCode::CREATED);
    let of_agent = received(&server, "/echo/agent", |sent| sent.len() == 8).await;
    assert_eq!(signed(&of_agent[7], &secret), Some(0));
    assert_eq!(of_agent[7].header("webhook-signature").split(' ').count(), 2, "and with the one before, for a day");
    assert_eq!(app.get("/webhooks/default-secret").await.body["last4"], secret[secret.len() - 4..]);
    let newer = text(&app.post("/webhooks/default-secret/rotate", json!({})).await.body["secret"]);
    app.post(&format!("/agents/{of}/threads"), json!({"message": "Still more"})).await;
    let of_agent = received(&server, "/echo/agent", |sent| sent.len() == 12).await;
    assert_eq!((signed(&of_agent[11], &newer), signed(&of_agent[11], &secret)), (Some(0), Some(1)));
    assert_eq!(of_agent[11].header("webhook-signature").split(' ').count(), 3, "each signs for a day");
}

#[tokio::test]
async fn what_a_thread_came_to_is_told_though_it_is_deleted_at_once() {
    let (app, server, _) = app_with_tools(&UNBOUNDED).await;
    let of = agent(&app, json!({"name": "A", "webhookUrl": format!("{}/echo/agent", server.url())})).await;
    let task = json!({"message": "Work", "callbackUrl": format!("{}/echo/thread", server.url())});
    for _ in 0..10 {
        let started = app.post(&format!("/agents/{of}/threads"), task.clone()).await.body;
        let thread = text(&started["threadId"]);
        thread_in(&app, &thread, "completed").await;
        assert_eq!(app.delete(&format!("/agents/threads/{thread}")).await.status, StatusCode::OK);
    }
    for path in ["/echo/thread", "/echo/agent"] {
        let ends = |sent: &[ToolRequest]| sent.iter().filter(|of| of.json()["type"] == "thread.finished").count();
        received(&server, path, |sent| ends(sent) == 10).await;
    }
}

#[tokio::test]
async fn what_fails_is_tried_again_until_it_succeeds_and_what_is_gone_is_left_in_peace() {
    let (app, server, db) = app_with_tools(&[]).await;
    let test = async |webhook: &str, body: Value| {
        let sent = app.post(&format!("{webhook}/test"), body).await;
        assert_eq!((sent.status, &sent.body["status"]), (StatusCode::ACCEPTED, &json!("pending")), "{}", sent.body);
        sent.body
    };
    let (flaky, secret) = webhook(&app, &format!("{}/flaky/1", server.url()), &["*"], json!({})).await;
    let sent = test(&flaky, json!({})).await;
    assert_eq!(sent["eventType"], "webhook.test");
    let again = all_stand(&app, &flaky, 1, "succeeded").await;
    let attempts = again[0]["attempts"].as_array().expect("attempts");
    let codes: Vec<_> = attempts.iter().map(|of| of["statusCode"].as_i64()).collect();
    assert_eq!(codes, [Some(503), Some(200)]);
    assert!(attempts[0]["error"].as_str().is_some_and(|error| error.contains("503")), "{attempts:?}");
    let waited = attempts[1]["timestampMs"].as_i64().expect("ms") - attempts[0]["timestampMs"].as_i64().expect("ms");
    assert!((4400..9000).contains(&waited), "{waited} ms");
    let tries = received(&server, "/flaky/1", |sent| sent.len() == 2).await;
    assert_eq!((tries[0].header("webhook-id"), &tries[0].body), (tries[1].header("webhook-id"), &tries[1].body));
    assert!(signed(&tries[1], &secret).is_some() && signed(&tries[0], &secret).is_some());

    // A redelivery has the same id; after rotations it is signed with all secrets of a day, after that with the new one.
    let between = text(&app.post(&format!("{flaky}/rotate-secret"), json!({})).await.body["secret"]);
    let new = text(&app.post(&format!("{flaky}/rotate-secret"), json!({})).await.body["secret"]);
    let kept = db.dump().await;
    assert!(!kept.contains(&new[6..]) && !kept.contains(&secret[6..]), "they are sealed");
    let redeliver = format!("{flaky}/deliveries/{}/redeliver", text(&again[0]["id"]));
    let redelivered = app.post(&redeliver, json!({})).await;
    assert_eq!((redelivered.status, &redelivered.body["eventId"]), (StatusCode::ACCEPTED, &sent["eventId"]));
    let tries = received(&server, "/flaky/1", |sent| sent.len() == 3).await;
    assert_eq!(tries[2].header("webhook-id"), tries[0].header("webhook-id"));
    let by = |secret: &str| signed(&tries[2], secret);
    assert_eq!((by(&new), by(&between), by(&secret)), (Some(0), Some(1), Some(2)));
    let a_day_ago = "UPDATE webhooks SET rotated_ms = rotated_ms - 86400000,
        older_secrets = (SELECT jsonb_agg(jsonb_set(old, '{replacedMs}', to_jsonb((old ->> 'replacedMs')::bigint - 86400000)))
            FROM jsonb_array_elements(older_secrets) AS old)";
    db.run(a_day_ago).await;
    app.patch(&flaky, json!({"description": "read anew"})).await;
    eventually("only the new secret", async || {
        let sent = server.recorded().len();
        app.post(&redeliver, json!({})).await;
        let tries = received(&server, "/flaky/1", |tries| tries.len() >= sent).await;
        let last = tries.last().expect("one").clone();
        (signed(&last, &new) == Some(0) && signed(&last, &secret).is_none()).then_some(())
    })
    .await;

    let (gone, _) = webhook(&app, &format!("{}/status/410", server.url()), &["*"], json!({})).await;
    test(&gone, json!({"eventType": "thread.finished"})).await;
    let failed = all_stand(&app, &gone, 1, "failed").await;
    assert!(failed[0].get("nextAttemptMs").is_none(), "{failed:?}");
    let disabled = eventually("disabled", async || {
        let webhook = app.get(&gone).await.body;
        (webhook["enabled"] == false).then_some(webhook)
    })
    .await;
    assert!(disabled["disabledReason"].as_str().is_some_and(|reason| reason.contains("410")), "{disabled}");
    let enabled = app.patch(&gone, json!({"enabled": true})).await.body;
    assert!(enabled["enabled"] == true && enabled.get("disabledReason").is_none(), "{enabled}");

    // Redirects are no success and lead nowhere.
    let (redirected, _) =
        webhook(&app, &format!("{}/to?{}/echo/inner", server.url(), server.url()), &["*"], json!({})).await;
    test(&redirected, json!({})).await;
    let pending = eventually("an attempt", async || {
        let all = deliveries(&app, &redirected).await;
        all[0]["attempts"].as_array().is_some_and(|attempts| !attempts.is_empty()).then_some(all)
    })
    .await;
    assert_eq!((&pending[0]["attempts"][0]["statusCode"], &pending[0]["status"]), (&json!(302), &json!("pending")));
    assert_eq!(server.calls("/echo/inner"), 0);
    // Nothing but failures for five days, whatever else is changed meanwhile.
    app.patch(&redirected, json!({"description": "Another"})).await;
    db.run("UPDATE webhooks SET failing_since_ms = failing_since_ms - 432000000").await;
    test(&redirected, json!({})).await;
    let disabled = eventually("disabled", async || {
        let webhook = app.get(&redirected).await.body;
        (webhook["enabled"] == false).then_some(webhook)
    })
    .await;
    assert!(disabled["disabledReason"].as_str().is_some_and(|reason| reason.contains("5 days")), "{disabled}");
    // The waits of the contract, a tenth more or less, and eight tries in all.
    app.patch(&redirected, json!({"enabled": true})).await;
    for (n, wait) in [5, 300, 1_800, 7_200, 18_000, 36_000, 36_000].into_iter().enumerate() {
        db.run("DELETE FROM webhook_deliveries WHERE status = 'pending'").await;
        let sent = test(&redirected, json!({})).await;
        let again =
            format!("UPDATE webhook_deliveries SET tries = {n}, next_ms = 0 WHERE id = '{}'", text(&sent["id"]));
        db.run(&again).await;
        let (tried, next) = eventually("an attempt that is followed by another", async || {
            let tries = format!("SELECT tries::bigint AS n FROM webhook_deliveries WHERE id = '{}'", text(&sent["id"]));
            let is_noted = db.number(&tries).await == i64::try_from(n).expect("few") + 1;
            let all = deliveries(&app, &redirected).await;
            let of = all.iter().find(|of| of["id"] == sent["id"])?;
            let last = of["attempts"].as_array()?.last()?["timestampMs"].as_i64()?;
            is_noted.then_some((last, of["nextAttemptMs"].as_i64()?))
        })
        .await;
        let waits = next - tried;
        assert!((wait * 900..wait * 1_100 + 5_000).contains(&waits), "{waits} ms after try {n}");
    }
    db.run("DELETE FROM webhook_deliveries WHERE status = 'pending'").await;
    for _ in 0..2 {
        test(&redirected, json!({})).await;
    }
    db.run("UPDATE webhook_deliveries SET tries = 7, next_ms = 0 WHERE status = 'pending'").await;
    let all = all_stand(&app, &redirected, 2, "failed").await;
    assert!(all.iter().all(|of| of.get("nextAttemptMs").is_none()), "{all:?}");
}

#[tokio::test]
async fn a_webhook_that_another_process_deleted_takes_no_event_from_the_others() {
    let (app, server, db) = app_with_tools(&[]).await;
    let (gone, _) = webhook(&app, &format!("{}/status/200", server.url()), &["*"], json!({})).await;
    // What it says after its status does not matter.
    let (kept, _) = webhook(&app, &format!("{}/endless", server.url()), &["*"], json!({})).await;
    say(&app, "Both are known").await;
    for known in [&kept, &gone] {
        all_stand(&app, known, 1, "succeeded").await;
    }
    // That process died before it could tell.
    db.run(&format!("DELETE FROM webhooks WHERE id = '{}'", gone.trim_start_matches("/webhooks/"))).await;
    for said in ["One", "Two"] {
        say(&app, said).await;
    }
    all_stand(&app, &kept, 3, "succeeded").await;
    assert_eq!(server.calls("/status/200"), 1);
}

#[tokio::test]
async fn a_receiver_that_hangs_delays_nobody_else() {
    let (app, server, _) = app_with_tools(&UNBOUNDED).await;
    let (slow, _) = webhook(&app, &format!("{}/hold", server.url()), &["*"], json!({})).await;
    let (fast, _) = webhook(&app, &format!("{}/echo/fast", server.url()), &["*"], json!({})).await;
    for webhook in [&slow, &fast] {
        let test = format!("{webhook}/test");
        join_all((0..40).map(|_| app.post(&test, json!({})))).await;
    }
    all_stand(&app, &fast, 40, "succeeded").await;
    assert_eq!(server.calls("/hold"), 4, "so many at once");
    assert_eq!(app.get(&format!("{slow}/deliveries?status=pending")).await.body["total"], 40);
    server.let_go();
    all_stand(&app, &slow, 40, "succeeded").await;
}

#[tokio::test]
async fn many_receivers_that_hang_delay_nobody_else() {
    let (db, server) = (TestDb::new().await, FakeToolServer::start());
    let settings = [&UNBOUNDED[..], &[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]].concat();
    let app = TestApp::start(PROGRAM, &db, &settings);
    let hold = format!("{}/hold", server.url());
    let slow: Vec<_> = join_all((0..40).map(|_| webhook(&app, &hold, &["*"], json!({})))).await;
    let tests: Vec<String> = slow.iter().map(|(path, _)| format!("{path}/test")).collect();
    join_all(tests.iter().flat_map(|test| (0..4).map(|_| app.post(test, json!({}))))).await;
    server.called(128).await;
    let (fast, _) = webhook(&app, &format!("{}/echo/fast", server.url()), &["*"], json!({})).await;
    for _ in 0..3 {
        app.post(&format!("{fast}/test"), json!({})).await;
    }
    all_stand(&app, &fast, 3, "succeeded").await;
    let late = db.number("SELECT count(*) AS n FROM webhook_deliveries WHERE status = 'pending' AND tries > 0").await;
    let waits = "SELECT max((attempts -> 0 ->> 'timestampMs')::bigint - created_ms) AS n FROM webhook_deliveries
        WHERE status = 'succeeded'";
    let waited = db.number(waits).await;
    assert!(late == 0 || waited < 5000, "none has waited until what hangs timed out: {waited} ms");
    server.let_go();
}

#[tokio::test]
async fn what_is_being_delivered_when_a_process_ends_is_noted_and_what_waits_is_due_at_once() {
    let (db, server) = (TestDb::new().await, FakeToolServer::start());
    let settings = [&UNBOUNDED[..], &[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]].concat();
    let app = TestApp::start(PROGRAM, &db, &settings);
    // A receiver that has answered so often is sent to without asking the table for each.
    let (path, _) = webhook(&app, &format!("{}/hold/20", server.url()), &["*"], json!({})).await;
    let test = format!("{path}/test");
    join_all((0..40).map(|_| app.post(&test, json!({})))).await;
    server.called(24).await;
    app.signal("TERM");
    let ready = format!("{}/readyz", app.url());
    eventually("nobody is served any more", async || reqwest::get(&ready).await.is_err().then_some(())).await;
    server.let_go();
    assert_eq!(app.ended().await, Some(0));
    let noted =
        db.number("SELECT count(*) AS n FROM webhook_deliveries WHERE status = 'succeeded' AND tries = 1").await;
    assert_eq!((noted, server.calls("/hold/20")), (24, 24));
    let sql = "SELECT count(*) AS n FROM webhook_deliveries
        WHERE status = 'pending' AND tries = 0 AND next_ms <= extract(epoch FROM now()) * 1000";
    assert_eq!(db.number(sql).await, 16);
}

#[tokio::test]
async fn a_receiver_that_has_not_answered_in_fifteen_seconds_is_asked_again() {
    let (app, server, _) = app_with_tools(&[]).await;
    let (slow, _) = webhook(&app, &format!("{}/hold", server.url()), &["*"], json!({})).await;
    app.post(&format!("{slow}/test"), json!({})).await;
    let first = eventually("the first attempt ends", async || {
        deliveries(&app, &slow).await[0]["attempts"].as_array()?.first().cloned()
    })
    .await;
    let took = first["durationMs"].as_i64().expect("ms");
    assert!((15_000..30_000).contains(&took) && first["statusCode"].is_null(), "{first}");
    assert!(first["error"].is_string(), "{first}");
    server.let_go();
    let all = all_stand(&app, &slow, 1, "succeeded").await;
    assert_eq!(all[0]["attempts"].as_array().map(Vec::len), Some(2), "{all:?}");
}

#[tokio::test]
async fn receivers_that_hang_after_hundreds_of_successes_delay_no_other_of_their_account() {
    let (db, server) = (TestDb::new().await, FakeToolServer::start());
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_RATE_FULL", "0")]);
    let (first, _) = webhook(&app, &format!("{}/hold/150", server.url()), &["*"], json!({})).await;
    let (second, _) = webhook(&app, &format!("{}/hold/151", server.url()), &["*"], json!({})).await;
    let tests = [format!("{first}/test"), format!("{second}/test")];
    join_all((0..600).map(|n| app.post(&tests[n % 2], json!({})))).await;
    server.called(150 + 151 + 8).await;
    let (fast, _) = webhook(&app, &format!("{}/echo/fast", server.url()), &["*"], json!({})).await;
    let test = format!("{fast}/test");
    join_all((0..40).map(|_| app.post(&test, json!({})))).await;
    all_stand(&app, &fast, 40, "succeeded").await;
    let late = db.number("SELECT count(*) AS n FROM webhook_deliveries WHERE status = 'pending' AND tries > 0").await;
    assert_eq!(late, 0, "none has waited until what hangs timed out");
    server.let_go();
    for webhook in [&first, &second] {
        eventually("they are delivered", async || {
            let left = app.get(&format!("{webhook}/deliveries?status=pending")).await.body["total"].clone();
            (left == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn each_event_is_delivered_at_least_once_under_one_id_however_often_the_process_is_killed() {
    let (db, server) = (TestDb::new().await, FakeToolServer::start());
    let settings = [("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_RATE_FULL", "0")];
    let mut app = TestApp::start(PROGRAM, &db, &settings);
    let (path, _) = webhook(&app, &format!("{}/echo/hook", server.url()), &["chat.completed"], json!({})).await;
    let rounds = 3 * factor(10);
    for round in 0..rounds {
        let said = join_all((0..20).map(|n| say(&app, if n % 2 == 0 { "Hi" } else { "Ho" }))).await;
        assert!(said.iter().all(|reply| reply.status == StatusCode::OK), "round {round}");
        app.crash();
        db.run("UPDATE webhook_deliveries SET next_ms = 0 WHERE status = 'pending'").await;
    }
    let events = 20 * rounds;
    let ids = |sent: &[ToolRequest]| sent.iter().map(|of| of.header("webhook-id").to_owned()).collect::<HashSet<_>>();
    let sent = received(&server, "/echo/hook", |sent| ids(sent).len() >= events).await;
    assert_eq!(ids(&sent).len(), events);
    let mut chats = BTreeMap::<String, HashSet<String>>::new();
    for request in &sent {
        let chat = text(&request.json()["data"]["chatUID"]);
        chats.entry(chat).or_default().insert(request.header("webhook-id").to_owned());
    }
    assert!(chats.len() == events && chats.values().all(|ids| ids.len() == 1), "one id for each event");
    eventually("all are noted", async || {
        let noted = app.get(&format!("{path}/deliveries?status=succeeded")).await.body["total"].clone();
        (noted == json!(events)).then_some(())
    })
    .await;
    println!("{events} events, {rounds} kills: {} deliveries, {} of them once more", sent.len(), sent.len() - events);
}

#[tokio::test]
async fn webhooks_are_for_full_keys_of_the_whole_account() {
    let app = app().await;
    let project = text(&app.post("/projects", json!({"name": "P", "identifier": "p"})).await.body["_id"]);
    let bound = app.post("/api-keys", json!({"name": "bound", "projectIds": [project]})).await.body;
    let request = app.anonymous(Method::GET, "/v1/webhooks").bearer_auth(text(&bound["key"]));
    assert_eq!(app.send(request).await.error(), "FULL_KEY_REQUIRED");
}

#[tokio::test]
async fn attempts_limits_and_the_end_of_patience_are_as_the_settings_say() {
    let settings = [
        ("PLATFORM_WEBHOOK_RETRIES", "0s,50ms,50ms"),
        ("PLATFORM_WEBHOOK_DISABLE_AFTER", "1ms"),
        ("PLATFORM_LIMIT_WEBHOOKS", "1"),
    ];
    let (app, server, _) = app_with_tools(&settings).await;
    let (path, _) = webhook(&app, &format!("{}/status/500", server.url()), &["*"], json!({})).await;
    let another = json!({"url": server.url(), "events": ["*"]});
    assert_eq!(app.post("/webhooks", another).await.error(), "CONFLICT");
    app.post(&format!("{path}/test"), json!({"eventType": "thread.finished"})).await;
    let disabled = eventually("disabled", async || {
        let webhook = app.get(&path).await.body;
        (webhook["enabled"] == false).then_some(webhook)
    })
    .await;
    assert!(text(&disabled["disabledReason"]).starts_with("Nothing but failures"), "{disabled}");
    assert_eq!(server.calls("/status/500"), 2, "the second failure was one too many");
    app.patch(&path, json!({"enabled": true})).await;
    let failed = all_stand(&app, &path, 1, "failed").await;
    assert_eq!(failed[0]["attempts"].as_array().map(Vec::len), Some(3));
}
