//! Tokens that give way to others: as whom they are asked for, and what a process that ends keeps of them.

use platform_testing::TestApp;
use serde_json::json;

use super::{app_with_crm, connected_by_oauth, status};
use crate::support::{PROGRAM, eventually};

#[tokio::test]
async fn a_token_that_is_being_asked_for_when_a_process_ends_is_kept() {
    let (app, crm, db, directory) = app_with_crm("drain", &[]).await;
    let id = connected_by_oauth(&app, json!({})).await;
    let asked = crm.requests("/token").len();
    crm.hold_tokens(true);
    db.run("UPDATE connections SET refresh_ms = 0").await;
    eventually("it is asked for", async || (crm.requests("/token").len() > asked).then_some(())).await;
    app.signal("TERM");
    let ready = format!("{}/readyz", app.url());
    eventually("nobody is served any more", async || reqwest::get(&ready).await.is_err().then_some(())).await;
    crm.hold_tokens(false);
    assert_eq!(app.ended().await, Some(0));
    let path = directory.display().to_string();
    let settings = [("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_CONNECTORS_DIR", path.as_str())];
    let next = TestApp::start(PROGRAM, &db, &settings);
    db.run("UPDATE connections SET refresh_ms = 0").await;
    eventually("its successor is asked for", async || (crm.requests("/token").len() > asked + 1).then_some(())).await;
    let refreshed = eventually("it is there", async || {
        (db.number("SELECT count(*) AS n FROM connections WHERE refresh_ms > 0").await == 1).then_some(())
    });
    refreshed.await;
    assert_eq!(status(&next, &id).await["status"], "active");
}

#[tokio::test]
async fn a_connection_is_refreshed_as_the_app_that_it_was_made_with() {
    let (app, crm, db, _) = app_with_crm("apps", &[]).await;
    for name in ["one", "two"] {
        let fields = json!({"clientId": format!("app-id-{name}"), "clientSecret": format!("app-secret-{name}")});
        connected_by_oauth(&app, json!({"appFields": fields})).await;
    }
    let asked = crm.requests("/token").len();
    crm.hold_tokens(true);
    db.run("UPDATE connections SET refresh_ms = 0").await;
    let refreshed = eventually("both are asked for", async || {
        let all = crm.requests("/token").split_off(asked);
        (all.len() >= 2).then_some(all)
    });
    let sent: Vec<String> = refreshed.await.into_iter().map(|request| request.body).collect();
    for name in ["one", "two"] {
        let is_of = |body: &String| {
            let [id, secret] = ["client_id=app-id", "client_secret=app-secret"].map(|field| format!("{field}-{name}"));
            body.contains(&id) && body.contains(&secret)
        };
        assert!(sent.iter().any(is_of), "{name}: {sent:?}");
    }
}
