//! Connectors: what they need not say, the one that the docs show, and those that are gone

use std::{
    fs::{read_to_string, remove_file, write},
    path::Path,
    process::Command,
};

use platform_testing::TestApp;
use reqwest::StatusCode;
use serde_json::json;

use crate::{
    integrations::{app_with_crm, decide, pack},
    support::{PROGRAM, UNBOUNDED, agent, text},
    triggers::trigger,
};

#[tokio::test]
async fn an_oauth_app_that_says_little_asks_for_its_client_and_one_that_is_gone_leaves_what_can_be_deleted() {
    let (app, crm, db, directory) = app_with_crm("little", &[]).await;
    drop(app);
    let whole = pack(crm.url());
    let (fields, rest) = whole
        .split_once("    appFields:\n")
        .map(|(_, fields)| fields)
        .and_then(|of| of.split_once("    guideUrl"))
        .expect("its fields");
    assert!(fields.contains("clientSecret") && rest.contains("refusals"));
    let little = whole.replace("    appFields:\n", "").replace(fields, "");
    let little = little.replace(&format!("    issuer: {}\n", crm.url()), "");
    write(directory.join("crm.yaml"), little).expect("a file");
    let path = directory.display().to_string();
    let settings = [("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8"), ("PLATFORM_CONNECTORS_DIR", path.as_str())];
    let app = TestApp::start(PROGRAM, &db, &[settings.as_slice(), UNBOUNDED.as_slice()].concat());
    let connect = async |body| app.post("/integrations/crm/connect", body).await;
    let asked = connect(json!({})).await;
    assert_eq!(asked.error(), "INTEGRATION_SETUP_REQUIRED");
    assert_eq!(asked.body["details"]["fields"][0]["name"], "clientId", "{}", asked.body);
    let given = json!({"appFields": {"clientId": "app-id", "clientSecret": "app-secret"}});
    let begun = connect(given.clone()).await.body;
    let evil = decide(&app, &begun, &[("code", "good"), ("iss", "https://evil.example")]).await;
    assert_eq!(evil.status, StatusCode::BAD_REQUEST, "it names nobody, but sends users elsewhere");
    let begun = connect(given).await.body;
    assert_eq!(decide(&app, &begun, &[("code", "good"), ("iss", crm.url())]).await.status, StatusCode::OK);
    let server = text(&app.post("/integrations/crm/servers", json!({})).await.body["_id"]);
    let given = json!({"agentId": agent(&app, json!({"name": "A"})).await, "triggerConfig": {"list": "a"}});
    let of_app = trigger(&app, &server, "item_added", given).await;
    let of_app = format!("/triggers/{}", text(&of_app["id"]));

    drop(app);
    remove_file(directory.join("crm.yaml")).expect("gone");
    let app = TestApp::start(PROGRAM, &db, &[settings.as_slice(), UNBOUNDED.as_slice()].concat());
    let tools = format!("/integrations/servers/{server}");
    assert_eq!(app.get(&format!("{tools}/tools")).await.error(), "APP_NOT_FOUND");
    let renamed = app.patch(&of_app, json!({"name": "Other", "enabled": false})).await;
    assert_eq!(renamed.error(), "APP_NOT_FOUND", "its settings cannot be judged");
    let off = app.patch(&of_app, json!({"enabled": false})).await;
    assert_eq!((off.status, &off.body["enabled"]), (StatusCode::OK, &json!(false)), "{}", off.body);
    assert_eq!(app.delete(&of_app).await.status, StatusCode::OK);
    assert_eq!(app.delete(&tools).await.status, StatusCode::OK);
}

#[test]
fn the_connector_that_the_docs_show_is_good_and_has_twenty_lines() {
    let page = read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/INTEGRATIONS.md")).expect("a page");
    let shown = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a connector");
    assert!(shown.lines().count() <= 20, "{shown}");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tickets.yaml");
    let check = |text: &str| {
        write(&file, text).expect("a file");
        let output = Command::new(PROGRAM).args(["connectors", "check"]).arg(&file).output().expect("it runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (is_good, said) = check(shown);
    assert!(is_good && said.contains("is good, with 1 tools and 1 event types"), "{said}");
    let (is_good, said) = check(&shown.replace("type: poll", &format!("type: {}", "p".repeat(100_000))));
    assert!(!is_good && said.contains("tickets.yaml:19: ") && said.len() < 2000, "{}", &said[..said.len().min(500)]);
    let (is_good, _) = check(&format!("{shown}# {}", "x".repeat(1 << 20)));
    assert!(!is_good, "more than a server reads");
}
