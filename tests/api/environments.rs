//! `/v1/environments`: the machines that agents work on, as records.

use futures_util::future::join3;
use platform_testing::{Reply, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{agent, app, text, tool, tool_server};

const MASK: &str = "••••••••";

/// Makes an environment; its path.
pub async fn environment(app: &TestApp, settings: Value) -> (String, String) {
    let mut all = json!({"name": "box"});
    all.as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
    let made = app.post("/environments", all).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let id = text(&made.body["_id"]);
    (format!("/environments/{id}"), id)
}

async fn put(app: &TestApp, path: &str, body: Value) -> Reply {
    app.send(app.request(Method::PUT, path).json(&body)).await
}

#[tokio::test]
async fn an_environment_is_made_changed_and_merged_and_its_variables_are_never_shown() {
    let app = app().await;
    let (path, id) = environment(
        &app,
        json!({"envVars": {"A": "canary-a", "B": "canary-b"}, "tags": ["x"],
        "sandboxConfig": {"memoryMib": 1024, "envVars": {"C": "canary-c"}}}),
    )
    .await;
    let made = app.get(&path).await;
    assert_eq!(made.header("etag"), "\"1\"");
    assert_eq!(
        (&made.body["_id"], &made.body["envVars"], &made.body["sandboxConfig"]["envVars"], &made.body["state"]),
        (&json!(id), &json!({"A": MASK, "B": MASK}), &json!({"C": MASK}), &json!("idle"))
    );
    let config = &made.body["sandboxConfig"];
    for (field, value) in [
        ("memoryMib", json!(1024)),
        ("cpus", json!(1)),
        ("diskMib", json!(8192)),
        ("runtime", json!("default")),
        ("networkPolicy", json!("allow-all")),
        ("autoRestart", json!(true)),
        ("snapshotEnabled", json!(false)),
    ] {
        assert_eq!(config[field], value, "{field}");
    }

    // As a whole: what is not named is gone, a mask keeps, one of nothing does not.
    let changed = app.patch(&path, json!({"envVars": {"A": MASK, "D": "new"}, "sandboxConfig": {"cpus": 2}})).await;
    assert_eq!(changed.header("etag"), "\"2\"");
    assert_eq!(changed.body["envVars"], json!({"A": MASK, "D": MASK}));
    assert_eq!(
        (&changed.body["sandboxConfig"]["memoryMib"], &changed.body["sandboxConfig"]["cpus"]),
        (&json!(512), &json!(2))
    );
    assert_eq!(app.patch(&path, json!({"envVars": {"Z": MASK}})).await.error(), "VALIDATION_ERROR");
    let merge = json!({"envVars": {"A": null, "E": "e"}, "sandboxConfig": {"memoryMib": 768, "cpus": null}});
    let merged = app.patch(&format!("{path}?merge=true"), merge).await.body;
    assert_eq!(merged["envVars"], json!({"D": MASK, "E": MASK}));
    assert_eq!((&merged["sandboxConfig"]["memoryMib"], &merged["sandboxConfig"]["cpus"]), (&json!(768), &json!(1)));
    let stale =
        app.send(app.request(Method::PATCH, &path).header("if-match", "\"1\"").json(&json!({"name": "n"}))).await;
    assert_eq!((stale.error(), &stale.body["details"]["current"]), ("PRECONDITION_FAILED", &json!(3)));

    for (bad, field) in [
        (json!({"name": ""}), "name"),
        (json!({"envVars": {"1A": "x"}}), "envVars"),
        (json!({"envVars": {"A": "x".repeat(32 * 1024 + 1)}}), "envVars.A"),
        (json!({"envVars": 7}), "envVars"),
        (
            json!({"envVars": (0..17).map(|n| (format!("A{n}"), json!("x".repeat(32_000)))).collect::<serde_json::Map<_, _>>()}),
            "envVars",
        ),
        (json!({"sandboxConfig": {"memoryMib": 255}}), "sandboxConfig.memoryMib"),
        (json!({"sandboxConfig": {"diskMib": 65_537}}), "sandboxConfig.diskMib"),
        (json!({"sandboxConfig": {"runtime": "perl"}}), "sandboxConfig.runtime"),
        (json!({"sandboxConfig": {"networkPolicy": "some"}}), "sandboxConfig.networkPolicy"),
        (json!({"sandboxConfig": {"allowedHosts": ["http://a"]}}), "sandboxConfig.allowedHosts"),
        (json!({"sandboxConfig": {"publicSlug": "abc"}}), "sandboxConfig.publicSlug"),
    ] {
        let refused = app.patch(&path, bad.clone()).await;
        assert_eq!(refused.error(), "VALIDATION_ERROR", "{bad}: {}", refused.body);
        assert!(refused.body["details"].to_string().contains(field), "{field}: {}", refused.body);
    }
    let many: serde_json::Map<String, Value> = (0..101).map(|n| (format!("V{n}"), json!("x"))).collect();
    assert_eq!(app.patch(&path, json!({"envVars": many})).await.error(), "VALIDATION_ERROR");
    for (field, code) in [
        ("knowledgeDocumentIds", "DOCUMENT_NOT_FOUND"),
        ("knowledgeFolderIds", "FOLDER_NOT_FOUND"),
        ("availableToolsGroupsUids", "TOOL_SERVER_NOT_FOUND"),
    ] {
        let refused = app.patch(&path, json!({field: ["nope", "neither"]})).await;
        assert_eq!(refused.error(), code, "{field}");
        assert!(text(&refused.body["message"]).ends_with("`nope`, `neither`."), "{}", refused.body);
    }
    assert_eq!(app.post("/environments", json!({"name": "n", "projectId": "nope"})).await.error(), "PROJECT_NOT_FOUND");

    let (other, _) = environment(&app, json!({"name": "other"})).await;
    let listed = app.get("/environments?limit=1").await.body;
    assert_eq!((&listed["total"], &listed["limit"], &listed["offset"]), (&json!(2), &json!(1), &json!(0)));
    assert_eq!(listed["environments"][0]["name"], "other", "newest first");
    assert_eq!(app.delete(&other).await.body["deletedId"], other.rsplit('/').next().expect("an id"));
    assert_eq!(app.get(&other).await.error(), "ENVIRONMENT_NOT_FOUND");
}

#[tokio::test]
async fn agents_and_assistants_are_in_one_environment_at_a_time_and_have_what_it_has() {
    let app = app().await;
    let server = tool_server(&app, "https://a.example", &[tool("ping", "/x", &json!({}))]).await;
    let document = app.post("/documents", json!({"name": "d", "markdownContent": "# D\n\ncanary"})).await.body;
    let document = text(&document["_id"]);
    let parts = json!({"availableToolsGroupsUids": [server, "builtin-time"], "knowledgeDocumentIds": [document]});
    let (path, id) = environment(&app, parts).await;
    let (second, second_id) = environment(&app, json!({"name": "second"})).await;
    let agent = agent(&app, json!({"name": "worker", "environmentId": id})).await;
    let made = app.post("/assistants", json!({"name": "helper", "identifier": "helper"})).await.body;
    let assistant = text(&made["_id"]);
    let missing = app.post("/assistants", json!({"name": "x", "environmentId": "nope"})).await;
    assert_eq!(missing.error(), "ENVIRONMENT_NOT_FOUND");
    assert_eq!(
        app.post("/agents", json!({"name": "x", "environmentId": "nope"})).await.error(),
        "ENVIRONMENT_NOT_FOUND"
    );

    let connection = format!("{path}/connections/assistant/helper");
    let connected = put(&app, &connection, json!({"envVars": {"KEY": "canary"}})).await;
    assert_eq!(connected.status, StatusCode::OK, "{}", connected.body);
    assert_eq!(
        (&connected.body["entityType"], &connected.body["entityId"], &connected.body["environmentId"]),
        (&json!("assistant"), &json!(assistant), &json!(id))
    );
    assert_eq!(connected.body["envVars"], json!({"KEY": MASK}));
    let all = app.get(&format!("{path}/connections")).await.body;
    assert_eq!((&all["agents"][0]["_id"], &all["agents"][0]["name"]), (&json!(agent), &json!("worker")));
    assert_eq!(
        (&all["assistants"][0]["identifier"], &all["assistants"][0]["envVarKeys"]),
        (&json!("helper"), &json!(["KEY"]))
    );
    assert!(all["agents"][0]["connectedAtMs"].as_i64() > Some(1_700_000_000_000), "{all}");
    assert_eq!(app.get("/assistants/helper").await.body["environmentId"], json!(id));

    // What the environment has, its assistant has.
    let said = app.post("/assistants/helper/messages", json!({"message": "/tool current_time"})).await;
    assert!(said.body.to_string().contains("timestampMs"), "{}", said.body);
    let used = app.get(&format!("/documents/{document}/usage")).await.body;
    assert_eq!(used["environments"][0]["_id"], json!(id));
    let attached = json!({"targetType": "environment", "targetId": second_id});
    assert_eq!(app.post(&format!("/documents/{document}/attach"), attached).await.status, StatusCode::OK);
    assert_eq!(app.get(&second).await.body["knowledgeDocumentIds"], json!([document]));
    let kept = app.delete(&format!("/tool-servers/{server}")).await;
    assert_eq!(kept.body["details"]["usedBy"]["environments"], json!([id]), "{}", kept.body);

    // Moving leaves the former environment, and its variables there.
    let moved = put(&app, &format!("{second}/connections/assistant/{assistant}"), json!({})).await;
    assert_eq!(moved.status, StatusCode::OK, "{}", moved.body);
    assert_eq!(app.get(&format!("{path}/connections")).await.body["assistants"], json!([]));
    assert_eq!(app.get("/assistants/helper").await.body["environmentId"], json!(second_id));
    let back = put(&app, &connection, json!({"envVars": {"KEY": MASK}})).await;
    assert_eq!(back.error(), "VALIDATION_ERROR", "nothing is behind that mask any more: {}", back.body);
    assert_eq!(put(&app, &format!("{path}/connections/agent/nope"), json!({})).await.error(), "AGENT_NOT_FOUND");
    assert_eq!(put(&app, &format!("{path}/connections/robot/{agent}"), json!({})).await.status, StatusCode::NOT_FOUND);
    assert_eq!(app.delete(&format!("{path}/connections/agent/{agent}")).await.body, json!({"success": true}));
    assert_eq!(app.get(&format!("/agents/{agent}")).await.body.get("environmentId"), None);

    // One that is deleted leaves nobody behind in it.
    assert_eq!(app.delete(&second).await.status, StatusCode::OK);
    assert_eq!(app.get("/assistants/helper").await.body.get("environmentId"), None);
}

#[tokio::test]
async fn nothing_works_in_an_environment_that_is_deleted_at_that_moment() {
    let app = app().await;
    for n in 0..12 {
        for kind in ["agents", "assistants"] {
            let (path, id) = environment(&app, json!({})).await;
            let settings = json!({"name": format!("a{n}"), "environmentId": id});
            let before = app.post(&format!("/{kind}"), json!({"name": format!("b{n}")})).await.body;
            let changed = format!("/{kind}/{}", text(before.get("identifier").unwrap_or(&before["_id"])));
            let (made, patched, gone) = join3(
                app.post(&format!("/{kind}"), settings),
                app.patch(&changed, json!({"environmentId": id})),
                app.delete(&path),
            )
            .await;
            assert_eq!(gone.status, StatusCode::OK, "{}", gone.body);
            for answer in [made, patched] {
                if !answer.status.is_success() {
                    assert_eq!(answer.error(), "ENVIRONMENT_NOT_FOUND", "{}", answer.body);
                    continue;
                }
                let name = text(answer.body.get("identifier").unwrap_or(&answer.body["_id"]));
                let now = app.get(&format!("/{kind}/{name}")).await.body;
                assert_eq!(now.get("environmentId"), None, "{kind}: {now}");
            }
        }
    }
}
