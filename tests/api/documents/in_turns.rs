//! Documents in turns: what is attached is found, and nothing else.

use futures_util::future::join_all;
use platform_testing::{FakeApp, FakeModelServer, Script, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{HANDBOOK, document, folder, indexed};
use crate::{
    document_files::pdf,
    environments::environment,
    support::{UNBOUNDED, agent, app_with_model, text, thread, thread_in},
};

/// A turn in which the model calls a tool; what the tool answered.
pub async fn called(app: &TestApp, model: &FakeModelServer, assistant: &str, tool: &str, arguments: Value) -> Value {
    called_by(app, app.key(), model, assistant, tool, arguments).await
}

/// The same for whoever has a token.
async fn called_by(
    app: &TestApp,
    token: &str,
    model: &FakeModelServer,
    assistant: &str,
    tool: &str,
    arguments: Value,
) -> Value {
    model.script([Script::tool_call(tool, &arguments), Script::words(&["done"])]);
    let body = json!({"message": "Look.", "skipSummarization": true});
    let request = app.anonymous(Method::POST, &format!("/v1/assistants/{assistant}/messages")).bearer_auth(token);
    let reply = app.send(request.json(&body)).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let messages = reply.body.as_array().expect("messages");
    let result = messages.iter().find(|message| message["role"] == "tool").expect("a result");
    serde_json::from_str(result["content"]["message"].as_str().expect("text")).expect("JSON")
}

#[tokio::test]
async fn a_turn_reads_files_under_the_rule_of_their_owner_and_makes_some_for_him() {
    let (app, model) = app_with_model(&[]).await;
    let settings = json!({"name": "F", "identifier": "f", "availableToolsGroupsUids": ["builtin-files"]});
    assert_eq!(app.post("/assistants", settings).await.status, StatusCode::CREATED);
    let made = called(&app, &model, "f", "create_file", json!({"name": "a/notes.md", "content": "# Notes"})).await;
    assert_eq!((&made["name"], &made["fileType"]), (&json!("notes.md"), &json!("document")));
    let read = called(&app, &model, "f", "read_file", json!({"downloadUrl": made["downloadUrl"]})).await;
    assert_eq!(read, json!({"name": "notes.md", "fileType": "document", "text": "# Notes", "truncated": false}));
    let report = crate::uploads::upload(&app, "r.pdf", pdf("Figures rose")).await;
    let read = called(&app, &model, "f", "read_file", json!({"downloadUrl": report["downloadUrl"]})).await;
    assert!(read["text"].as_str().expect("text").contains("Figures rose"), "{read}");
    for (url, code) in [
        (format!("{}/f/{}/x", app.url(), "0".repeat(43)), "FILE_NOT_FOUND"),
        ("http://127.0.0.1:9/secret".to_owned(), "URL_NOT_ALLOWED"),
    ] {
        let refused = called(&app, &model, "f", "read_file", json!({"downloadUrl": url})).await;
        assert_eq!(refused["error"], code, "{refused}");
        let files = json!([{"name": "r.pdf", "downloadUrl": report["downloadUrl"]}, {"name": "x", "downloadUrl": url}]);
        let refused = app.post("/assistants/f/messages", json!({"message": "Read", "files": files})).await;
        assert_eq!(refused.error(), code);
        assert!(
            refused.body["message"].as_str().is_some_and(|sentence| sentence.starts_with("files[1].downloadUrl: "))
        );
    }
}

#[tokio::test]
async fn a_turn_reads_a_file_at_an_address_of_others() {
    let (app, model) = app_with_model(&[("PLATFORM_EGRESS_ALLOW", "127.0.0.0/8")]).await;
    let theirs = FakeApp::start();
    theirs.set_feed("Words of others");
    let settings = json!({"name": "F", "identifier": "f", "availableToolsGroupsUids": ["builtin-files"]});
    assert_eq!(app.post("/assistants", settings).await.status, StatusCode::CREATED);
    let url = format!("{}/feed", theirs.url());
    let read = called(&app, &model, "f", "read_file", json!({"downloadUrl": url})).await;
    assert_eq!((&read["text"], &read["truncated"]), (&json!("Words of others"), &json!(false)), "{read}");
    assert_eq!(theirs.requests("/feed").len(), 1);
}

#[tokio::test]
async fn a_turn_finds_what_is_attached_to_its_assistant_and_nothing_else() {
    let (app, model) = app_with_model(&UNBOUNDED).await;
    let top = folder(&app, "Top", json!({})).await;
    let secret = document(&app, "Secret", "# Salaries\n\nThe password of the safe is swordfish.", json!({})).await;
    let handbook = document(&app, "Handbook", HANDBOOK, json!({})).await;
    // A folder that is attached brings all that lies below it.
    let below = folder(&app, "Below", json!({"parentFolderId": top})).await;
    let long = format!("# Safe\n\nThe safe is opened on Mondays. {}", "And so on. ".repeat(60));
    let plan = document(&app, "Plan", &long, json!({"folderId": below})).await;
    for id in [&secret, &handbook, &plan] {
        indexed(&app, id).await;
    }
    let settings =
        json!({"name": "S", "identifier": "s", "knowledgeDocumentIds": [handbook], "knowledgeFolderIds": [top]});
    assert_eq!(app.post("/assistants", settings).await.status, StatusCode::CREATED);
    let found = called(&app, &model, "s", "search_knowledge", json!({"query": "password of the safe swordfish"})).await;
    let ids: Vec<_> =
        found["results"].as_array().expect("results").iter().map(|result| result["documentId"].clone()).collect();
    assert_eq!(ids, [json!(plan)], "{found}");
    let first = &found["results"][0];
    assert_eq!((&first["headingPath"], &first["version"]), (&json!(["Safe"]), &json!(1)));
    assert!(first["chunkId"].as_str().is_some_and(|id| !id.is_empty()), "{found}");
    let asked = model.recorded().last().expect("a request").body.to_string();
    assert!(asked.contains("search_knowledge") && asked.contains("Documents are attached to you"), "{asked}");
    let read = called(&app, &model, "s", "read_document", json!({"id": handbook})).await;
    assert_eq!((&read["markdownContent"], &read["truncated"]), (&json!(HANDBOOK), &json!(false)));
    let refused = called(&app, &model, "s", "read_document", json!({"id": secret})).await;
    assert_eq!(refused["error"], "DOCUMENT_NOT_FOUND");
    let listed = called(&app, &model, "s", "list_documents", json!({})).await;
    assert_eq!(listed["documents"].as_array().map(Vec::len), Some(2), "{listed}");
    let told = listed["documents"].as_array().expect("documents").iter().find(|of| of["documentId"] == json!(handbook));
    let told = told.and_then(Value::as_object).expect("the handbook");
    assert_eq!(told.keys().collect::<Vec<_>>(), ["documentId", "name", "summary", "tags"]);

    // What is nearest comes by itself where the assistant wants that.
    let recall = json!({"knowledgeRecall": {"enabled": true, "limit": 2, "maxTokens": 500}});
    assert_eq!(app.patch("/assistants/s", recall).await.status, StatusCode::OK);
    model.script([Script::words(&["ok"])]);
    app.post("/assistants/s/messages", json!({"message": "When do keys rotate?", "skipSummarization": true})).await;
    let asked = model.recorded().last().expect("a request").body.clone();
    let messages = asked["messages"].as_array().expect("messages");
    let at =
        messages.iter().position(|message| text_of(message).contains("When do keys rotate?")).expect("the message");
    let before = text_of(&messages[at - 1]);
    assert!(before.contains("[Handbook, version 1, Handbook > Keys]") && before.contains("ninety days"), "{before}");
    assert!(!before.contains("swordfish"));
    assert_eq!(messages[at - 1]["role"], "system", "as that provider knows a developer's");
    model.script([Script::words(&["ok"])]);
    app.post("/assistants/s/messages", json!({"message": "Xylophone", "skipSummarization": true})).await;
    let asked = model.recorded().last().expect("a request").body.to_string();
    assert!(!asked.contains(", version 1, "), "what is not found adds nothing: {asked}");
    // No more passages than it wants, and none that does not fit.
    for (limit, most, passages) in [(20, 500, 3), (2, 500, 2), (1, 500, 1), (20, 100, 2)] {
        let recall = json!({"knowledgeRecall": {"enabled": true, "limit": limit, "maxTokens": most}});
        app.patch("/assistants/s", recall).await;
        model.script([Script::words(&["ok"])]);
        let question = "When do keys rotate, and on which day is the safe opened?";
        app.post("/assistants/s/messages", json!({"message": question, "skipSummarization": true})).await;
        let asked = model.recorded().last().expect("a request").body.to_string();
        assert_eq!(asked.matches(", version 1, ").count(), passages, "{limit} {most}: {asked}");
    }
    for wrong in [json!({"limit": 21}), json!({"maxTokens": 99})] {
        assert_eq!(app.patch("/assistants/s", json!({"knowledgeRecall": wrong})).await.error(), "VALIDATION_ERROR");
    }
    // An agent has the same.
    let knows = json!({"knowledgeDocumentIds": [handbook], "knowledgeRecall": {"enabled": true, "limit": 2}});
    let of = agent(&app, json!({"name": "A", "assistantSpecialization": knows})).await;
    let settings = app.get(&format!("/agents/{of}")).await.body["assistantSpecialization"].clone();
    assert_eq!(settings["knowledgeRecall"], json!({"enabled": true, "limit": 2, "maxTokens": 2000}));
    model.script([Script::words(&["ok"])]);
    let work = thread(&app, &of, "When do keys rotate?").await;
    thread_in(&app, &work, "completed").await;
    let asked = model.recorded().last().expect("a request").body.to_string();
    assert!(asked.contains("[Handbook, version 1, Handbook > Keys]"), "{asked}");
    model.script([
        Script::tool_call("list_documents", &json!({})),
        Script::tool_call("read_document", &json!({"id": secret})),
        Script::tool_call("search_knowledge", &json!({"query": "rotated keys"})),
        Script::words(&["done"]),
    ]);
    let work = thread(&app, &of, "Look around.").await;
    let done = thread_in(&app, &work, "completed").await["threadContent"].to_string();
    assert!(done.contains("DOCUMENT_NOT_FOUND") && done.contains("ninety days"), "{done}");
    assert!(done.contains("Handbook") && !done.contains("Plan") && !done.contains("swordfish"), "{done}");
    // A list that is cut says so.
    let names: Vec<String> = (0..200).map(|n| format!("Part {n}")).collect();
    join_all(names.iter().map(|name| document(&app, name, "Words", json!({"folderId": below})))).await;
    let listed = called(&app, &model, "s", "list_documents", json!({})).await;
    assert_eq!((&listed["truncated"], &listed["total"]), (&json!(true), &json!(202)));
    let wrong = json!({"name": "B", "assistantSpecialization": {"knowledgeRecall": {"limit": 21}}});
    assert_eq!(app.post("/agents", wrong).await.error(), "VALIDATION_ERROR");

    // Who has nothing attached is told nothing of it.
    model.script([Script::words(&["ok"])]);
    app.post("/assistants/default/messages", json!({"message": "Hi", "skipSummarization": true})).await;
    let asked = model.recorded().last().expect("a request").body.to_string();
    assert!(!asked.contains("search_knowledge") && !asked.contains("attached"), "{asked}");
}

#[tokio::test]
async fn an_end_user_and_who_is_connected_to_an_environment_find_what_is_attached_there_and_no_more() {
    let (app, model) = app_with_model(&[]).await;
    let secret = document(&app, "Secret", "# Safe\n\nThe password of the safe is swordfish.", json!({})).await;
    let plan = document(&app, "Plan", "# Safe\n\nThe safe is opened on Mondays.", json!({})).await;
    for id in [&secret, &plan] {
        indexed(&app, id).await;
    }
    let open = json!({"name": "S", "identifier": "s", "knowledgeDocumentIds": [plan],
        "availableToolsGroupsUids": ["builtin-files"], "accessConfiguration": {"externalAccess": true}});
    assert_eq!(app.post("/assistants", open).await.status, StatusCode::CREATED);
    let of_other = app.post("/tenant-sessions", json!({"tenantId": "globex"})).await.body["token"].clone();
    let other = crate::uploads::upload_by(&app, &text(&of_other), "other.md", b"# Canary").await;
    let own = text(&app.post("/tenant-sessions", json!({"tenantId": "acme"})).await.body["token"]);
    let call = async |tool: &str, arguments: Value| called_by(&app, &own, &model, "s", tool, arguments).await;
    let found = call("search_knowledge", json!({"query": "password of the safe swordfish"})).await;
    assert_eq!(found["results"].as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(found["results"][0]["documentId"], json!(plan));
    assert_eq!(call("read_document", json!({"id": secret})).await["error"], "DOCUMENT_NOT_FOUND");
    let listed = call("list_documents", json!({})).await;
    assert!(listed.to_string().contains("Plan") && !listed.to_string().contains("Secret"), "{listed}");
    let read = call("read_file", json!({"downloadUrl": other["downloadUrl"]})).await;
    assert!(read["error"].is_string() && !read.to_string().contains("Canary"), "another tenant's: {read}");
    let made = call("create_file", json!({"name": "mine.md", "content": "# Mine"})).await;
    assert_eq!(made["fileType"], "document", "{made}");
    let kept = app.get("/files?search=mine").await.body;
    assert_eq!((&kept["total"], &kept["items"][0]["tenantId"]), (&json!(1), &json!("acme")), "{kept}");

    // What an environment has, whoever is connected to it has.
    let (path, environment) = environment(&app, json!({"knowledgeDocumentIds": [secret]})).await;
    app.post("/assistants", json!({"name": "E", "identifier": "e", "environmentId": environment})).await;
    let query = json!({"query": "password of the safe swordfish"});
    let found = called(&app, &model, "e", "search_knowledge", query.clone()).await;
    assert_eq!(found["results"][0]["documentId"], json!(secret), "{found}");
    let connected = agent(&app, json!({"name": "A", "environmentId": environment})).await;
    model.script([Script::tool_call("search_knowledge", &query), Script::words(&["done"])]);
    let work = thread(&app, &connected, "Look.").await;
    let done = thread_in(&app, &work, "completed").await;
    assert!(done["threadContent"].to_string().contains("swordfish"), "{done}");
    let moved = app.patch(&path, json!({"knowledgeDocumentIds": [plan]})).await;
    assert_eq!(moved.status, StatusCode::OK, "{}", moved.body);
    let found = called(&app, &model, "e", "search_knowledge", query).await;
    assert!(!found.to_string().contains("swordfish") && found.to_string().contains("Mondays"), "{found}");
    let skill = json!({"isSkill": true});
    let skill = document(&app, "Opening safes", "Turn it left three times.", skill).await;
    let wrong = json!({"knowledgeSkills": [{"id": skill, "type": "folder"}]});
    assert_eq!(app.patch(&path, wrong).await.error(), "INVALID_SKILLS");
    app.patch(&path, json!({"knowledgeSkills": [{"id": skill, "type": "document"}]})).await;
    let loaded = called(&app, &model, "e", "load_skill", json!({"id": skill})).await;
    assert_eq!(loaded["content"], "Turn it left three times.", "{loaded}");
}

fn text_of(message: &Value) -> String {
    message["content"].as_str().map_or_else(|| message["content"].to_string(), str::to_owned)
}
