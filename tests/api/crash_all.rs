//! Every kind of work under way at one moment, and the process killed in the middle of it.

use std::{collections::BTreeSet, time::Duration};

use platform_testing::{Embeddings, FakeToolServer, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::{
    documents::{document, indexed, names, search},
    support::{UNBOUNDED, agent, app_with_model_on, eventually, factor, finished, text, thread, thread_in},
    triggers::{hook, hooked, outcomes, server_of, trigger},
    uploads::own_dir,
};

/// What is under way, by a condition on the rows of the database.
const UNDER_WAY: [(&str, &str); 5] = [
    ("a turn", "FROM runs WHERE owner IS NOT NULL AND kind = 'chat'"),
    ("a thread", "FROM runs WHERE owner IS NOT NULL AND kind = 'thread'"),
    ("indexing", "FROM runs WHERE owner IS NOT NULL AND kind = 'index'"),
    ("a poll", "FROM runs WHERE owner IS NOT NULL AND kind = 'trigger-poll'"),
    ("a save", "FROM sandbox_snapshots WHERE status = 'creating'"),
];

/// What there is to work on.
struct Work {
    clerk: String,
    /// Triggers of a feed and of a hook, and the address of the latter.
    news: String,
    hooks: String,
    hook_path: String,
    handbook: String,
    webhook: String,
    sandbox_path: String,
}

/// So many news, the last of them first.
fn feed(news: usize) -> &'static [u8] {
    let items: Vec<String> =
        (0..=news).rev().map(|n| format!("<item><guid>news-{n}</guid><title>News {n}</title></item>")).collect();
    let items = items.concat();
    let feed =
        format!("<?xml version=\"1.0\"?><rss version=\"2.0\"><channel><title>News</title>{items}</channel></rss>");
    Box::leak(feed.into_bytes().into_boxed_slice())
}

/// Makes what there is to work on.
async fn found(app: &TestApp, db: &TestDb, server: &FakeToolServer) -> Work {
    server.serve("/held/feed", "application/rss+xml", feed(0));
    server.serve("/held/told", "text/plain", b"ok");
    server.let_go();
    let clerk = agent(app, json!({"concurrentExecutionLimit": 100})).await;
    let news = json!({"agentId": clerk, "triggerConfig": {"url": format!("{}/held/feed", server.url())}});
    let news = text(&trigger(app, &server_of(app, "rss").await, "new_item", news).await["id"]);
    let first = format!("SELECT count(*) AS n FROM triggers WHERE id = '{news}' AND cursor IS NOT NULL");
    eventually("the first news", async || (db.number(&first).await == 1).then_some(())).await;
    let (hooks, hook_path) = hooked(app, json!({"rateLimitPerMinute": 600})).await;
    let handbook = document(app, "Handbook", "# Day\n\nThe word is zero.", json!({})).await;
    indexed(app, &handbook).await;
    let told = json!({"url": format!("{}/held/told", server.url()), "events": ["sandbox.finished"]});
    let webhook = text(&app.post("/webhooks", told).await.body["_id"]);
    let machine = json!({"name": "Ledger", "sandboxConfig": {"snapshotEnabled": true}});
    let machine = text(&app.post("/environments", machine).await.body["_id"]);
    Work { clerk, news, hooks, hook_path, handbook, webhook, sandbox_path: format!("/environments/{machine}/sandbox") }
}

/// Waits until all that a round began has ended as it should.
async fn ended(app: &TestApp, db: &TestDb, work: &Work, round: usize, (chat, begun): (&str, &str)) {
    let chat = finished(app, chat).await;
    assert_eq!(chat["status"], "completed", "{}", chat["error"]);
    assert_eq!(chat["chatContent"].as_array().map(Vec::len), Some(2), "{}", chat["chatContent"]);
    thread_in(app, begun, "completed").await;
    eventually("its newest version answers", async || {
        let found = search(app, json!({"query": format!("word{round}x"), "mode": "keyword"})).await;
        (names(&found) == ["Handbook"]).then_some(())
    })
    .await;
    assert_eq!(indexed(app, &work.handbook).await["status"], "ready");
    let delivered = "SELECT count(*) AS n FROM webhook_deliveries WHERE status = 'succeeded'";
    eventually("the delivery", async || (db.number(delivered).await >= i64::try_from(round).ok()?).then_some(())).await;
    let told = outcomes(app, &work.hooks, round).await;
    assert!(told.iter().all(|event| event["outcome"] == "executed"), "{told:?}");
    let read = format!("SELECT count(*) AS n FROM trigger_events WHERE trigger_id = '{}'", work.news);
    eventually("the news, once", async || (usize::try_from(db.number(&read).await) == Ok(round)).then_some(())).await;
    for (what, open) in [
        ("the machine is over", "sandbox_sessions WHERE finished_ms IS NULL"),
        ("no save is half done", "sandbox_snapshots WHERE status NOT IN ('ready', 'failed')"),
    ] {
        let open = format!("SELECT count(*) AS n FROM {open}");
        eventually(what, async || (db.number(&open).await == 0).then_some(())).await;
    }
}

#[tokio::test]
async fn all_that_is_under_way_when_the_process_is_killed_comes_to_its_end_once_it_is_back() {
    let (db, server, dir) = (TestDb::new().await, FakeToolServer::start(), own_dir("crash-all"));
    let settings = [
        &UNBOUNDED[..],
        &[
            ("PLATFORM_DATA_DIR", dir.to_str().expect("a path")),
            ("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"),
            ("PLATFORM_EMBEDDING_MODEL", "openai:text-embedding-3-small"),
            ("PLATFORM_RUN_LEASE", "2s"),
            ("PLATFORM_RUN_HEARTBEAT", "500ms"),
            ("PLATFORM_RUN_MAX_ATTEMPTS", "50"),
        ],
    ];
    let (mut app, model) = app_with_model_on(&db, &settings.concat());
    let work = found(&app, &db, &server).await;

    let rounds = 2 * factor(5);
    let mut seen = BTreeSet::new();
    for round in 1..=rounds {
        let machine =
            app.post(&format!("{}/start", work.sandbox_path), json!({"force": true})).await.body["sandboxId"].clone();
        let noise = json!({"sandboxId": machine, "command": "head -c 40000000 /dev/urandom > noise"});
        assert_eq!(app.post(&format!("{}/exec", work.sandbox_path), noise).await.status, StatusCode::OK);
        server.hold();
        model.hold();
        model.embeddings(Embeddings::Held);
        let chat = format!("chat-{round}");
        let said = json!({"message": "Hello", "chatUid": chat, "skipSummarization": true});
        assert_eq!(app.post("/assistants/default/messages?async=true", said).await.status, StatusCode::OK);
        let begun = thread(&app, &work.clerk, "Work").await;
        let words = json!({"markdownContent": format!("# Day\n\nThe word is word{round}x.")});
        assert_eq!(app.patch(&format!("/documents/{}", work.handbook), words).await.status, StatusCode::OK);
        let told = server.calls("/held/told");
        let tested = app.post(&format!("/webhooks/{}/test", work.webhook), json!({})).await;
        assert!(tested.status.is_success(), "{}", tested.body);
        eventually("a delivery is under way", async || (server.calls("/held/told") > told).then_some(())).await;
        server.serve("/held/feed", "application/rss+xml", feed(round));
        db.run("UPDATE runs SET due = now() WHERE kind = 'trigger-poll' AND owner IS NULL").await;
        eventually("all but what is short", async || {
            for (_, rows) in &UNDER_WAY[..4] {
                if db.number(&format!("SELECT count(*) AS n {rows}")).await == 0 {
                    return None;
                }
            }
            Some(())
        })
        .await;
        seen.extend(UNDER_WAY[..4].iter().map(|(what, _)| *what));
        // A save waits for nobody: an event comes as soon as one is seen, and the process is killed.
        let save = app.request(Method::POST, &format!("{}/stop", work.sandbox_path));
        let save = save.json(&json!({"sandboxId": machine, "saveChanges": true})).send();
        #[expect(clippy::disallowed_methods, reason = "a client of the test, not a task of the platform")]
        let saving = tokio::spawn(save);
        let (what, rows) = UNDER_WAY[4];
        let is_seen = async || (db.number(&format!("SELECT count(*) AS n {rows}")).await > 0).then_some(());
        // One that was too short to be seen is seen in another round.
        if tokio::time::timeout(Duration::from_secs(5), eventually(what, is_seen)).await.is_ok() {
            seen.insert(what);
        }
        let event = hook(&app, &work.hook_path, &[("webhook-id", &format!("event-{round}"))], "{}").await;
        assert_eq!(event.status, StatusCode::ACCEPTED, "{}", event.body);
        app.crash();
        let _ = saving.await;
        server.let_go();
        model.let_go(1000);
        model.embeddings(Embeddings::Given);

        ended(&app, &db, &work, round, (&chat, &begun)).await;
    }
    let kinds: BTreeSet<&str> = UNDER_WAY.iter().map(|(what, _)| *what).collect();
    let missing: Vec<_> = kinds.difference(&seen).collect();
    assert!(missing.is_empty(), "never under way at a kill: {missing:?}");
    let threads = "SELECT count(*) AS n FROM threads WHERE state <> 'completed'";
    eventually("all threads end", async || (db.number(threads).await == 0).then_some(())).await;
    // One for each round by hand, by the hook and by the news.
    assert_eq!(db.number("SELECT count(*) AS n FROM threads").await, i64::try_from(3 * rounds).expect("few"));
}
