//! Triggers whose app is told where to send: handshakes, subscriptions and their end.

use platform_testing::{FakeApp, TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{hex, hook, outcomes, tag, trigger};
use crate::{
    integrations::{app_with_crm, connected_by_key, connectors},
    support::{PROGRAM, UNBOUNDED, agent, eventually, text},
};

#[tokio::test]
async fn slack_is_answered_when_it_asks_and_heard_when_it_signs() {
    let (crm, db) = (FakeApp::start(), TestDb::new().await);
    let pack = include_str!("../../../crates/platform-integrations/packs/slack.yaml")
        .replace("https://slack.com/api", &format!("{}/api", crm.url()))
        .replace(r#"headerName: Authorization, value: "Bearer ${token}""#, r#"headerName: X-Key, value: "${token}""#);
    let directory = connectors("slack", &pack).display().to_string();
    let settings = [
        &[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_CONNECTORS_DIR", directory.as_str())],
        UNBOUNDED.as_slice(),
    ];
    let app = TestApp::start(PROGRAM, &db, &settings.concat());
    let connect = async |app_fields: Value| {
        let fields = json!({"authScheme": "API_KEY", "accountFields": {"token": "good-key"}, "appFields": app_fields});
        let connected = app.post("/integrations/slack/connect", fields).await;
        assert_eq!(connected.body["connected"], true, "{}", connected.body);
        let server = json!({"connectionId": connected.body["connectionId"]});
        let server = text(&app.post("/integrations/slack/servers", server).await.body["_id"]);
        let of = agent(&app, json!({"name": "A"})).await;
        let made = trigger(&app, &server, "message_posted", json!({"agentId": of, "newThreadsState": "paused"})).await;
        let url = text(&made["webhookUrl"]);
        (made, url.strip_prefix(app.url()).expect("ours").to_owned())
    };
    let send_to = async |url: &str, at: u64, secret: &str, body: &Value| {
        let (at, body) = (at.to_string(), body.to_string());
        let signed = format!("v0={}", hex(&tag(secret, &format!("v0:{at}:{body}"))));
        hook(&app, url, &[("x-slack-signature", &signed), ("x-slack-request-timestamp", &at)], &body).await
    };
    // As long as the app's secret is not known nobody is let in.
    let (made, url) = connect(json!({})).await;
    let now = made["creationTimestampMs"].as_u64().expect("a time") / 1000;
    let hello = json!({"challenge": "word", "type": "url_verification"});
    assert_eq!(send_to(&url, now, "", &hello).await.status, StatusCode::UNAUTHORIZED);
    let (made, url) = connect(json!({"signingSecret": "s3cr3t-of-slack"})).await;
    let send = async |at: u64, secret: &str, body: &Value| send_to(&url, at, secret, body).await;
    let secret = "s3cr3t-of-slack";
    let asks = json!({"token": "Jhj5dZrVaK7ZwHHjRyZWjbDl", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P",
        "type": "url_verification"});
    let answered = send(now, secret, &asks).await;
    assert_eq!((answered.status, answered.body), (StatusCode::OK, json!({"challenge": asks["challenge"]})));
    let event = |channel_type: &str, id: &str| {
        json!({"token": "XXYYZZ", "team_id": "T123ABC456", "api_app_id": "A123ABC456", "event": {"type": "message",
            "channel": "C024BE91L", "user": "U2147483697", "text": "Live long and prospect.",
            "ts": "1355517523.000005", "event_ts": "1355517523.000005", "channel_type": channel_type},
            "type": "event_callback", "event_id": id, "event_time": 1_355_517_523})
    };
    for (at, secret) in [(now - 301, secret), (now, "another-secret")] {
        for body in [&asks, &event("channel", "Ev1")] {
            let refused = send(at, secret, body).await;
            assert_eq!((refused.status, refused.error()), (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"));
        }
    }
    for (kind, id) in [("channel", "Ev1"), ("channel", "Ev1"), ("im", "Ev2")] {
        assert_eq!(send(now, secret, &event(kind, id)).await.status, StatusCode::ACCEPTED);
    }
    let all = outcomes(&app, &format!("/triggers/{}", text(&made["id"])), 3).await;
    let of: Vec<_> = all.iter().map(|of| (of["eventId"].clone(), of["outcome"].clone())).collect();
    let expected = [("Ev1", "executed"), ("Ev1", "duplicate"), ("Ev2", "filtered")];
    assert_eq!(of, expected.map(|(id, outcome)| (json!(id), json!(outcome))));
}

#[tokio::test]
async fn a_subscription_is_made_at_the_app_signed_asked_and_ended_with_the_trigger() {
    let (app, crm, db, _) = app_with_crm("triggers", &[]).await;
    let connection = connected_by_key(&app).await;
    let server = text(&app.post("/integrations/crm/servers", json!({})).await.body["_id"]);
    app.post("/assistants", json!({"name": "Helper", "identifier": "helper"})).await;
    let of = json!({"toolServerId": server, "triggerSlug": "customer_made", "assistantId": "helper"});
    let with = |more: Value| {
        let mut body = of.clone();
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    for (body, code) in [
        (json!({}), "VALIDATION_ERROR"),
        (with(json!({"triggerConfig": {}})), "VALIDATION_ERROR"),
        (with(json!({"triggerConfig": {"team": "t", "colour": "red"}})), "VALIDATION_ERROR"),
        (with(json!({"agentId": "a"})), "VALIDATION_ERROR"),
        (with(json!({"rateLimitPerMinute": 0})), "VALIDATION_ERROR"),
        (with(json!({"newThreadsState": "running"})), "VALIDATION_ERROR"),
        (with(json!({"messageTemplate": "{{nothing}}"})), "VALIDATION_ERROR"),
        (with(json!({"subtenantId": "u"})), "VALIDATION_ERROR"),
        (with(json!({"triggerSlug": "none"})), "EVENT_TYPE_NOT_FOUND"),
        (with(json!({"toolServerId": "none"})), "TOOL_SERVER_NOT_FOUND"),
        (with(json!({"assistantId": "none"})), "ASSISTANT_NOT_FOUND"),
        (json!({"toolServerId": server, "triggerSlug": "customer_made", "agentId": "none"}), "AGENT_NOT_FOUND"),
    ] {
        assert_eq!(app.post("/triggers", body.clone()).await.error(), code, "{body}");
    }
    let plain = text(&app.post("/tool-servers", json!({"name": "H", "url": "https://a.example"})).await.body["_id"]);
    assert_eq!(app.post("/triggers", with(json!({"toolServerId": plain}))).await.error(), "NOT_AN_INTEGRATION");
    assert_eq!(crm.requests("/hooks").len(), 0);

    let chat = json!({"assistantId": "helper", "triggerConfig": {"team": "sales"},
        "chatUidTemplate": "customer/{{data.data.id}}"});
    let made = trigger(&app, &server, "customer_made", chat).await;
    assert!(made.get("webhookUrl").is_none(), "the app was told: {made}");
    let path = format!("/triggers/{}", text(&made["id"]));
    let told = crm.requests("/hooks")[0].json();
    assert!(told["team"] == "sales" && told.get("all").is_none(), "{told}");
    let url = told["url"].as_str().expect("an address").strip_prefix(app.url()).expect("ours").to_owned();
    let secret = text(&told["secret"]);
    assert!(!db.dump().await.contains(&secret), "it is sealed");
    let send = async |id: &str, body: &Value| {
        let body = body.to_string();
        let signed = format!("sha256={}", hex(&tag(&secret, &body)));
        hook(&app, &url, &[("x-crm-signature", &signed), ("x-crm-event", id)], &body).await
    };
    let asked = send("q", &json!({"type": "hello", "word": "canary"})).await;
    assert_eq!((asked.status, asked.body), (StatusCode::OK, json!({"word": "canary"})));
    assert_eq!(hook(&app, &url, &[], "{}").await.status, StatusCode::UNAUTHORIZED);
    let customer = |id: &str| json!({"kind": "customer", "data": {"id": id}});
    send("1", &customer("c 1")).await;
    send("2", &json!({"kind": "ping"})).await;
    let all = outcomes(&app, &path, 2).await;
    assert_eq!((&all[0]["outcome"], &all[1]["outcome"]), (&json!("executed"), &json!("filtered")));
    assert_eq!(all[0]["chatUID"], "customer_c_1");
    send("3", &customer("c 1")).await;
    assert_eq!(outcomes(&app, &path, 3).await[2]["chatUID"], "customer_c_1", "the chat goes on");
    let chat = eventually("both", async || {
        let chat = app.get("/assistants/helper/chats/customer_c_1").await.body;
        (chat["chatContent"].as_array().is_some_and(|all| all.len() == 4) && chat["status"] == "completed")
            .then_some(chat)
    })
    .await;
    assert_eq!(chat["triggerSource"]["eventId"], "1");
    let first = &chat["chatContent"][0];
    assert_eq!(
        (&first["contentSource"], &first["content"]["message"]),
        (&json!("trigger"), &json!(customer("c 1").to_string()))
    );

    // Another config is another subscription; the old one ends.
    let moved = app.patch(&path, json!({"triggerConfig": {"team": "ops", "all": true}})).await;
    assert_eq!((moved.status, &moved.body["triggerConfig"]["team"]), (StatusCode::OK, &json!("ops")));
    assert_eq!(crm.requests("/hooks")[1].json()["all"], true);
    eventually("the old one", async || (crm.requests("/hooks/1").len() == 1).then_some(())).await;
    // A connection that breaks pauses the trigger, and has it go on.
    let reconnect = json!({"authScheme": "API_KEY", "connectionId": connection});
    let broken = breaks(&app, &crm, &db, &server, &path).await;
    assert_eq!((&broken["autoPauseReason"], &broken["enabled"]), (&json!("CONNECTION"), &json!(true)));
    assert!(broken["autoPausedAt"].is_number(), "{broken}");
    send("4", &customer("c 2")).await;
    assert_eq!(outcomes(&app, &path, 4).await[3]["outcome"], "disabled");
    assert_eq!(app.post("/triggers", with(json!({"triggerConfig": {"team": "t"}}))).await.error(), "CONFLICT");
    crm.accept_all();
    assert_eq!(app.post("/integrations/crm/connect", reconnect).await.body["connected"], true);
    let going = app.get(&path).await.body;
    assert_eq!((&going["state"], going.get("autoPauseReason")), (&json!("active"), None));

    let gone = app.delete(&format!("/tool-servers/{server}")).await;
    assert_eq!((gone.error(), &gone.body["details"]["usedBy"]["triggers"]), ("CONFLICT", &json!([made["id"]])));
    let deleted = app.delete(&path).await;
    assert_eq!(deleted.body["deletedId"], made["id"]);
    eventually("ended", async || (crm.requests("/hooks/2").len() == 1).then_some(())).await;
    assert_eq!(app.get(&path).await.error(), "TRIGGER_NOT_FOUND");
    assert_eq!(send("5", &customer("c 3")).await.error(), "TRIGGER_NOT_FOUND");
    assert_eq!(app.delete(&format!("/tool-servers/{server}")).await.status, StatusCode::OK);
}

/// Has the app refuse the connection of a tool server until the trigger that it feeds is paused; the trigger then.
async fn breaks(app: &TestApp, crm: &FakeApp, db: &TestDb, server: &str, trigger: &str) -> Value {
    db.run("UPDATE connections SET refused = 2").await;
    app.patch(&format!("/tool-servers/{server}"), json!({"description": "x"})).await;
    crm.refuse_all();
    eventually("paused", async || {
        let test = format!("/integrations/servers/{server}/tools/note/test");
        app.post(&test, json!({"parameters": {"text": "x"}})).await;
        let trigger = app.get(trigger).await.body;
        (trigger["state"] == "auto_paused").then_some(trigger)
    })
    .await
}

#[tokio::test]
async fn a_subscription_that_cannot_be_ended_while_its_connection_is_broken_is_ended_when_it_is_good_again() {
    let (app, crm, db, _) = app_with_crm("unsubscribe", &[]).await;
    let connection = connected_by_key(&app).await;
    let server = text(&app.post("/integrations/crm/servers", json!({})).await.body["_id"]);
    let to = json!({"assistantId": "default", "triggerConfig": {"team": "sales"}});
    let made = trigger(&app, &server, "customer_made", to).await;
    let path = format!("/triggers/{}", text(&made["id"]));
    breaks(&app, &crm, &db, &server, &path).await;
    assert_eq!(app.delete(&path).await.status, StatusCode::OK);
    let tried = "SELECT count(*) AS n FROM runs WHERE kind = 'trigger-unsubscribe' AND payload ->> 'tries' = '1'";
    eventually("a first try", async || (db.number(tried).await == 1).then_some(())).await;
    assert_eq!(crm.requests("/hooks/1").len(), 0);
    crm.accept_all();
    let reconnect = json!({"authScheme": "API_KEY", "connectionId": connection});
    assert_eq!(app.post("/integrations/crm/connect", reconnect).await.body["connected"], true);
    db.run("UPDATE runs SET due = now() WHERE kind = 'trigger-unsubscribe'").await;
    eventually("ended", async || (crm.requests("/hooks/1").len() == 1).then_some(())).await;
}

#[tokio::test]
async fn an_app_that_says_the_id_of_a_subscription_again_still_has_it() {
    let (app, crm, _, _) = app_with_crm("again", &[]).await;
    let connection = connected_by_key(&app).await;
    let server = app.post("/integrations/crm/servers", json!({"connectionId": connection})).await.body["_id"].clone();
    let same = json!({"assistantId": "default", "triggerConfig": {"team": "same"}});
    crm.refuse_hooks(true);
    let mut refused = same.clone();
    (refused["toolServerId"], refused["triggerSlug"]) = (server.clone(), json!("customer_made"));
    let refused = app.post("/triggers", refused).await;
    assert_eq!(refused.status, StatusCode::BAD_GATEWAY, "{}", refused.body);
    assert_eq!(app.get("/triggers").await.body["total"], 0, "nothing is kept");
    crm.refuse_hooks(false);
    let made = trigger(&app, server.as_str().expect("an id"), "customer_made", same).await;
    let path = format!("/triggers/{}", text(&made["id"]));
    let set = async |config: Value| {
        let moved = app.patch(&path, json!({"triggerConfig": config})).await;
        assert_eq!(moved.status, StatusCode::OK, "{}", moved.body);
    };
    for all in [true, false] {
        set(json!({"team": "same", "all": all})).await;
    }
    assert_eq!(crm.requests("/hooks/same").len(), 0);
    let ended = async |count: usize| {
        eventually("told to stop", async || (crm.requests("/hooks/same").len() == count).then_some(())).await;
    };
    set(json!({"team": "ops"})).await;
    ended(1).await;
    set(json!({"team": "same"})).await;
    assert_eq!(app.delete(&path).await.status, StatusCode::OK);
    ended(2).await;
}
