//! Events that are asked for: lists and feeds that grow, and times.

use std::collections::HashSet;

use platform_testing::FakeApp;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{events, hook, hooked, outcomes, server_of, trigger};
use crate::{
    integrations::{app_with_crm, connected_by_key},
    support::{agent, app_with, eventually, text},
};

#[tokio::test]
async fn lists_and_feeds_are_polled_for_what_is_new_and_times_come_once() {
    let (app, crm, db, _) = app_with_crm("polls", &[]).await;
    connected_by_key(&app).await;
    let of = agent(&app, json!({"name": "A"})).await;
    let soon = async || db.run("UPDATE runs SET due = now() WHERE kind IN ('trigger-poll', 'trigger-schedule')").await;
    let begun = async |id: &Value| {
        let sql = format!("SELECT count(*) AS n FROM triggers WHERE id = '{}' AND cursor IS NOT NULL", text(id));
        eventually("the first poll", async || (db.number(&sql).await == 1).then_some(())).await;
    };
    crm.set_list(json!({"items": [{"id": 2}, {"id": 1}], "next": "c1"}));
    let server = text(&app.post("/integrations/crm/servers", json!({})).await.body["_id"]);
    let list = trigger(&app, &server, "item_added", json!({"agentId": of, "triggerConfig": {"list": "b c"}})).await;
    let path = format!("/triggers/{}", text(&list["id"]));
    begun(&list["id"]).await;
    assert_eq!(crm.requests("/list")[0].path, "/list?list=b%20c&after=");
    crm.set_list(json!({"items": [{"id": 4}, {"id": 3}, {"id": 2}], "next": "c2"}));
    soon().await;
    let all = outcomes(&app, &path, 2).await;
    let ids: HashSet<_> = all.iter().map(|of| text(&of["eventId"])).collect();
    assert_eq!(ids, HashSet::from(["3".to_owned(), "4".to_owned()]), "the first poll only marks where the list stands");
    assert!(crm.requests("/list")[1].path.ends_with("after=c1"));
    crm.set_list(json!({"items": []}));
    soon().await;
    eventually("a third", async || (crm.requests("/list").len() >= 3).then_some(())).await;
    app.delete(&path).await;

    let feed = |items: &str| {
        format!(
            "<?xml version=\"1.0\"?><rss version=\"2.0\"><channel><title>F</title><link>https://a.example</link><description>d</description>{items}</channel></rss>"
        )
    };
    let item = |n: u32| {
        format!(
            "<item><guid>g{n}</guid><title>Title {n}</title><link>https://a.example/{n}</link><pubDate>Mon, 05 Jan 2026 10:00:00 GMT</pubDate></item>"
        )
    };
    crm.set_feed(&feed(&item(1)));
    let rss = server_of(&app, "rss").await;
    let url = format!("{}/feed", crm.url());
    let news = json!({"agentId": of, "triggerConfig": {"url": url}, "messageTemplate": "{{data.title}}"});
    let news = trigger(&app, &rss, "new_item", news).await;
    let path = format!("/triggers/{}", text(&news["id"]));
    begun(&news["id"]).await;
    crm.set_feed(&feed(&format!("{}{}", item(2), item(1))));
    soon().await;
    let all = outcomes(&app, &path, 1).await;
    assert_eq!(all[0]["eventId"], "g2");
    let payload = &events(&app, &path, "&includePayload=true").await[0]["payload"];
    assert_eq!((&payload["title"], &payload["publishedAt"]), (&json!("Title 2"), &json!("2026-01-05T10:00:00.000Z")));
    let last_error = async |is_there: bool| {
        eventually("what the last poll came to", async || {
            soon().await;
            let trigger = app.get(&path).await.body;
            (trigger.get("lastError").is_some() == is_there).then(|| trigger["lastError"].clone())
        })
        .await
    };
    crm.set_feed("<html>Back soon</html>");
    let said = last_error(true).await;
    assert!(said["code"] == "UPSTREAM_ERROR" && said["at"].is_number(), "{said}");
    assert_eq!(said["message"], "The answer is neither JSON nor a feed.");
    crm.set_feed(&feed(&item(2)));
    last_error(false).await;

    for address in ["http://10.0.0.1/feed", "no address"] {
        let config = json!({"url": address});
        let inner = json!({"toolServerId": rss, "triggerSlug": "new_item", "agentId": of, "triggerConfig": config});
        let refused = app.post("/triggers", inner).await;
        assert!(["URL_NOT_ALLOWED", "VALIDATION_ERROR"].contains(&refused.error()), "{}", refused.body);
        let changed = app.patch(&path, json!({"triggerConfig": config})).await;
        assert_eq!(changed.error(), refused.error(), "{}", changed.body);
    }

    let clock = server_of(&app, "schedule").await;
    for config in [
        json!({}),
        json!({"cronExpression": "x"}),
        json!({"cronExpression": "0 0 30 2 *"}),
        json!({"cronExpression": "* * * * *", "timezone": "Mars/Olympus"}),
    ] {
        let body = json!({"toolServerId": clock, "triggerSlug": "schedule", "agentId": of, "triggerConfig": config});
        let refused = app.post("/triggers", body).await;
        let field = ["cronExpression", "timezone"][usize::from(config.get("timezone").is_some())];
        let blamed = format!("triggerConfig.{field}");
        let is_bad_time = refused.error() == "INVALID_CRON" && refused.body["details"]["field"] == blamed;
        assert!(is_bad_time || config == json!({}) && refused.error() == "VALIDATION_ERROR", "{}", refused.body);
    }
    let daily = json!({"agentId": of, "triggerConfig": {"cronExpression": "0 8 * * *", "timezone": "Europe/Berlin"}});
    let daily = trigger(&app, &clock, "schedule", daily).await;
    let path = format!("/triggers/{}", text(&daily["id"]));
    soon().await;
    let all = outcomes(&app, &path, 1).await;
    let due = text(&all[0]["eventId"]);
    assert!(due.ends_with(":00:00.000Z") && all[0]["outcome"] == "executed", "{all:?}");
    let waiting = "SELECT count(*) AS n FROM runs WHERE kind = 'trigger-schedule' AND due > now()";
    assert_eq!(db.number(waiting).await, 1, "and the next waits");
    // Nobody was there for three days.
    db.run(
        "UPDATE runs SET due = now(), payload = jsonb_build_object('at', (payload ->> 'at')::bigint - 3 * 86400000) \
        WHERE kind = 'trigger-schedule'",
    )
    .await;
    let all = outcomes(&app, &path, 2).await;
    assert!(all.iter().all(|event| event["outcome"] == "executed"), "{all:?}");
    assert_eq!(db.number(waiting).await, 1, "times that were missed are made up for once");
}

#[tokio::test]
async fn a_list_that_grows_at_its_end_is_read_to_its_end() {
    let (app, crm, db, _) = app_with_crm("poll-pages", &[]).await;
    connected_by_key(&app).await;
    let of = agent(&app, json!({"name": "A"})).await;
    let server = text(&app.post("/integrations/crm/servers", json!({})).await.body["_id"]);
    crm.set_list(json!({"pages": [[{"id": 1}, {"id": 2}], [{"id": 3}]]}));
    let pages = trigger(&app, &server, "page_added", json!({"agentId": of})).await;
    let path = format!("/triggers/{}", text(&pages["id"]));
    let begun = "SELECT count(*) AS n FROM triggers WHERE cursor IS NOT NULL";
    eventually("the first poll", async || (db.number(begun).await == 1).then_some(())).await;
    crm.set_list(json!({"pages": [[{"id": 1}, {"id": 2}], [{"id": 3}, {"id": 5}], [{"id": 4}]]}));
    db.run("UPDATE runs SET due = now() WHERE kind = 'trigger-poll'").await;
    let all = outcomes(&app, &path, 2).await;
    assert_eq!(all.iter().map(|of| text(&of["eventId"])).collect::<HashSet<_>>(), ["4", "5"].map(str::to_owned).into());
    assert!(crm.requests("/list").iter().any(|of| of.path == "/list?page=2"));
}

#[tokio::test]
async fn an_id_is_good_again_and_an_app_is_asked_again_when_the_settings_say() {
    let news = FakeApp::start();
    let feed = |n: u32| {
        let item = format!("<item><guid>g{n}</guid><title>T</title></item>");
        format!("<?xml version=\"1.0\"?><rss version=\"2.0\"><channel><title>F</title>{item}</channel></rss>")
    };
    news.set_feed(&feed(1));
    let app = app_with(&[
        ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
        ("PLATFORM_TRIGGER_DUPLICATE_WINDOW", "1ms"),
        ("PLATFORM_TRIGGER_POLL_INTERVAL", "100ms"),
    ])
    .await;
    let (path, url) = hooked(&app, json!({})).await;
    for _ in 0..2 {
        assert_eq!(hook(&app, &url, &[("webhook-id", "same")], "{}").await.status, StatusCode::ACCEPTED);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await; // longer than the window
    }
    let all = outcomes(&app, &path, 2).await;
    assert!(all.iter().all(|of| of["outcome"] == "executed"), "{all:?}");
    let of = agent(&app, json!({"name": "B"})).await;
    let config = json!({"agentId": of, "triggerConfig": {"url": format!("{}/feed", news.url())}});
    let polled = trigger(&app, &server_of(&app, "rss").await, "new_item", config).await;
    news.called(2).await;
    news.set_feed(&feed(2));
    outcomes(&app, &format!("/triggers/{}", text(&polled["id"])), 1).await;
}
