//! `/v1/assistants`

use platform_testing::{TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::json;

use crate::support::{PROGRAM, app};

#[tokio::test]
async fn an_assistant_is_made_read_changed_field_by_field_and_deleted() {
    let app = app().await;
    let made = app
        .post(
            "/assistants",
            json!({"name": "Helper", "identifier": "helper", "presets": "Be kind.", "llm": "demo-1",
            "STATE": 1, "state": "ACTIVE", "tags": ["a", "a"], "contextManagement": {"fullContextTurnDepth": 3}}),
        )
        .await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    assert_eq!(
        (&made.body["model"], &made.body["tags"], &made.body["state"]),
        (&json!("demo-1"), &json!(["a"]), &json!("active"))
    );
    assert!(made.body.get("presets").is_none(), "the prompt is shown only when asked for");
    assert_eq!(made.header("etag"), "\"1\"");
    let read = app.get("/assistants/helper?includePresets=true").await;
    assert_eq!((&read.body["presets"], &read.body["isCustom"]), (&json!("Be kind."), &json!(true)));
    assert_eq!(read.body["createdAt"].as_str().map(str::len), Some(24));

    let changed = app
        .patch(
            "/assistants/helper",
            json!({"name": "Guide", "model": null, "temperature": 0.5,
            "contextManagement": {"alwaysIncludeUserMessages": true}}),
        )
        .await;
    assert_eq!(changed.status, StatusCode::OK, "{:?}", changed.body);
    assert_eq!(
        (&changed.body["name"], changed.body.get("model"), &changed.body["temperature"]),
        (&json!("Guide"), None, &json!(0.5))
    );
    let merged = json!({"fullContextTurnDepth": 3, "alwaysIncludeUserMessages": true});
    assert_eq!(changed.body["contextManagement"], merged);
    assert_eq!(changed.header("etag"), "\"2\"");
    assert_eq!(app.get("/assistants/helper?includePresets=1").await.body["presets"], json!("Be kind."));

    let by_id = format!("/assistants/{}", made.body["_id"].as_str().expect("an id"));
    assert_eq!(app.get(&by_id).await.body["identifier"], json!("helper"));
    let listed = app.get("/assistants?search=GUID").await;
    assert_eq!(listed.body.as_array().map(Vec::len), Some(1));
    assert_eq!(app.get("/assistants").await.body.as_array().map(Vec::len), Some(2), "with the built-in one");

    let chat = app.post("/assistants/helper/messages", json!({"message": "hi"})).await;
    let uid = chat.header("x-chat-uid").to_owned();
    assert_eq!(app.delete("/assistants/helper").await.status, StatusCode::OK);
    assert_eq!(app.get("/assistants/helper").await.error(), "ASSISTANT_NOT_FOUND");
    assert_eq!(app.post("/assistants/helper/messages", json!({"message": "hi"})).await.error(), "ASSISTANT_NOT_FOUND");
    assert_eq!(app.get(&format!("/assistants/helper/chats/{uid}")).await.status, StatusCode::OK, "chats stay");
    let taken = app.post("/assistants", json!({"name": "Helper", "identifier": "helper"})).await;
    assert_eq!((taken.status, taken.error()), (StatusCode::CONFLICT, "IDENTIFIER_TAKEN"));
}

#[tokio::test]
async fn what_breaks_a_rule_is_refused_by_name_and_nothing_is_stored() {
    let app = app().await;
    let cases = [
        (json!({}), "VALIDATION_ERROR", "name"),
        (json!({"name": "x".repeat(201)}), "VALIDATION_ERROR", "name"),
        (json!({"name": "a", "presets": 5}), "VALIDATION_ERROR", "presets"),
        (json!({"name": "a", "identifier": "Not Good"}), "VALIDATION_ERROR", "identifier"),
        (json!({"name": "a", "identifier": "chats"}), "VALIDATION_ERROR", "identifier"),
        (json!({"name": "a", "state": "asleep"}), "VALIDATION_ERROR", "state"),
        (json!({"name": "a", "inputDelayMs": 100}), "VALIDATION_ERROR", "inputDelayMs"),
        (json!({"name": "a", "toolCallTimeoutMs": 1}), "VALIDATION_ERROR", "toolCallTimeoutMs"),
        (json!({"name": "a", "reasoningEffort": "much"}), "VALIDATION_ERROR", "reasoningEffort"),
        (json!({"name": "a", "temperature": 3}), "VALIDATION_ERROR", "temperature"),
        (json!({"name": "a", "identifier": "default"}), "IDENTIFIER_TAKEN", ""),
        (json!({"name": "a", "provider": "nobody"}), "PROVIDER_NOT_CONFIGURED", ""),
        (json!({"name": "a", "model": "nothing"}), "MODEL_NOT_SUPPORTED", ""),
        (json!({"name": "a", "fallbackModels": [{"provider": "demo", "model": "x"}]}), "MODEL_NOT_SUPPORTED", ""),
        (json!({"name": "a", "projectId": "p"}), "PROJECT_NOT_FOUND", ""),
        (json!({"name": "a", "availableToolsGroupsUids": ["t"]}), "TOOL_SERVER_NOT_FOUND", ""),
        (json!({"name": "a", "subagentsIds": ["s"]}), "INVALID_SUBAGENTS", ""),
    ];
    for (body, code, path) in cases {
        let reply = app.post("/assistants", body.clone()).await;
        assert_eq!(reply.error(), code, "{body}: {:?}", reply.body);
        if !path.is_empty() {
            assert_eq!(reply.body["details"]["issues"][0]["path"], path, "{body}");
        }
    }
    let reply = app.post("/assistants", json!({"name": "", "topP": 2, "maxQueuedMessages": 0})).await;
    assert_eq!(reply.body["details"]["issues"].as_array().map(Vec::len), Some(3), "all issues at once");
    assert_eq!(app.get("/assistants").await.body.as_array().map(Vec::len), Some(1));
    assert_eq!(app.patch("/assistants/default", json!({"name": "Mine"})).await.error(), "FORBIDDEN");
    assert_eq!(app.delete("/assistants/default").await.error(), "FORBIDDEN");
    assert_eq!(
        app.post("/assistants", json!({"name": "Closed", "identifier": "c", "state": "inactive"})).await.status,
        StatusCode::CREATED
    );
    assert_eq!(app.post("/assistants/c/messages", json!({"message": "hi"})).await.error(), "ASSISTANT_INACTIVE");
}

#[tokio::test]
async fn a_list_of_large_assistants_is_cut_and_says_how_many_there_are() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    // Long prompts are not in lists, and cut none.
    for n in 0..3 {
        let made = json!({"name": format!("A{n}"), "identifier": format!("a{n}"), "presets": "p".repeat(200_000)});
        assert_eq!(app.post("/assistants", made).await.status, StatusCode::CREATED);
    }
    db.run(
        "INSERT INTO assistants (account_id, id, identifier, settings, created_ms, edited_ms) \
         SELECT account_id, id || '-' || n, identifier || '-' || n, settings, created_ms + n, edited_ms \
         FROM assistants, generate_series(1, 49) n",
    )
    .await;
    let all = app.get("/assistants").await;
    assert_eq!((all.body.as_array().map(Vec::len), all.header("x-total-count")), (Some(151), ""));
    db.run(
        "UPDATE assistants SET settings = settings || jsonb_build_object('description', repeat('d', 200000)) \
         WHERE identifier NOT LIKE 'a0%'",
    )
    .await;
    let cut = app.get("/assistants").await;
    let shown = cut.body.as_array().expect("assistants").len();
    assert!(
        (30..60).contains(&shown) && cut.header("x-total-count") == "151",
        "{shown} of {}",
        cut.header("x-total-count")
    );
    let found = app.get("/assistants?search=a0").await;
    assert_eq!(
        (found.body.as_array().map(Vec::len), found.header("x-total-count")),
        (Some(50), ""),
        "wherever they stand"
    );
}
