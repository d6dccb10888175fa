//! Documents and folders of projects: nobody comes to what is not theirs, whichever way they go.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    document_files::upload,
    documents::{document, folder, indexed, names},
    support::{agent, app, text},
};

#[tokio::test]
async fn nobody_reads_documents_of_a_project_that_is_not_theirs_not_even_through_an_assistant() {
    let app = app().await;
    let project =
        async |name: &str| text(&app.post("/projects", json!({"name": name, "identifier": name})).await.body["_id"]);
    let (ours, theirs) = (project("ours").await, project("theirs").await);
    let made = app.post("/api-keys", json!({"name": "k", "projectIds": [ours]})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let key = text(&made.body["key"]);
    let secret = json!({"projectId": theirs, "isSkill": true});
    let secret = document(&app, "Secret", "the password is swordfish", secret).await;
    let vault = folder(&app, "Vault", json!({"projectId": theirs, "isSkill": true})).await;
    indexed(&app, &secret).await;
    let leak = upload(&app, "leak.md", "# top secret", &[("projectId", theirs.as_str())]).await;
    let leak = text(&leak.body["sourceFileId"]);
    assert_eq!(app.get("/files?search=leak").await.body["total"], 1, "whoever may see all does");
    let assistant = json!({"name": "S", "identifier": "s", "projectId": ours});
    assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    let ask = async |method: Method, path: &str, body: Value| {
        let request = app.anonymous(method, &format!("/v1{path}")).bearer_auth(&key);
        app.send(request.json(&body)).await
    };
    for (method, path, body) in [
        (Method::GET, format!("/documents/{secret}"), json!({})),
        (Method::GET, format!("/files/{leak}"), json!({})),
        (Method::DELETE, format!("/files/{leak}"), json!({})),
        (Method::GET, format!("/documents/{secret}/chunks"), json!({})),
        (Method::GET, format!("/documents/{secret}/versions/1"), json!({})),
        (Method::GET, format!("/documents/{secret}/usage"), json!({})),
        (Method::PATCH, format!("/documents/{secret}"), json!({"name": "x"})),
        (Method::POST, format!("/documents/{secret}/reindex"), json!({})),
        (Method::POST, format!("/documents/{secret}/attach"), json!({"targetType": "assistant", "targetId": "s"})),
        (Method::GET, format!("/document-folders/{vault}"), json!({})),
        (
            Method::POST,
            format!("/document-folders/{vault}/attach"),
            json!({"targetType": "assistant", "targetId": "s"}),
        ),
        (Method::GET, format!("/skills/{secret}/tree"), json!({})),
        (Method::GET, format!("/documents/skills/{secret}/archive"), json!({})),
        (Method::POST, format!("/documents/skills/{vault}/install"), json!({})),
        (Method::POST, "/documents".to_owned(), json!({"name": "a", "markdownContent": "", "folderId": vault})),
        (Method::POST, "/documents".to_owned(), json!({"name": "a", "markdownContent": "", "projectId": theirs})),
        (Method::POST, "/document-folders".to_owned(), json!({"name": "a", "parentFolderId": vault})),
        (Method::POST, "/skills/scaffold".to_owned(), json!({"name": "a", "parentFolderId": vault})),
        (Method::PATCH, "/assistants/s".to_owned(), json!({"knowledgeDocumentIds": [secret]})),
        (Method::PATCH, "/assistants/s".to_owned(), json!({"knowledgeFolderIds": [vault]})),
        (Method::PATCH, "/assistants/s".to_owned(), json!({"knowledgeSkills": [{"id": secret, "type": "document"}]})),
        (
            Method::POST,
            "/agents".to_owned(),
            json!({"name": "A", "projectId": ours,
                "assistantSpecialization": {"knowledgeSkills": [{"id": vault, "type": "folder"}]}}),
        ),
    ] {
        let refused = ask(method.clone(), &path, body.clone()).await;
        assert_eq!(
            (refused.status, refused.error()),
            (StatusCode::FORBIDDEN, "PROJECT_FORBIDDEN"),
            "{method} {path} {body}"
        );
    }
    let own =
        ask(Method::POST, "/documents", json!({"name": "Own", "markdownContent": "swordfish", "projectId": ours}))
            .await;
    assert_eq!(own.status, StatusCode::CREATED, "{}", own.body);
    indexed(&app, &text(&own.body["_id"])).await;
    let found = ask(Method::POST, "/documents/search", json!({"query": "swordfish", "folderIds": null})).await.body;
    assert_eq!(names(found["results"].as_array().expect("results")), ["Own"]);
    for path in ["/documents", "/documents/graph", "/skills", "/document-folders", "/files"] {
        assert!(!ask(Method::GET, path, json!({})).await.body.to_string().contains("leak"), "{path}");
        assert!(!ask(Method::GET, path, json!({})).await.body.to_string().contains(&theirs), "{path}");
        assert!(!ask(Method::GET, path, json!({})).await.body.to_string().contains("Secret"), "{path}");
    }
    let path = format!("/documents/{}/attach", text(&own.body["_id"]));
    let anyone = ask(Method::POST, &path, json!({"targetType": "assistant", "targetId": "default"}));
    assert_ne!(anyone.await.status, StatusCode::OK, "the default assistant is nobody's to change");
}

#[tokio::test]
async fn nothing_reaches_into_a_project_of_others_by_way_of_parts_folders_and_environments() {
    let app = app().await;
    let project =
        async |name: &str| text(&app.post("/projects", json!({"name": name, "identifier": name})).await.body["_id"]);
    let (ours, theirs) = (project("ours").await, project("theirs").await);
    let key = text(&app.post("/api-keys", json!({"name": "k", "projectIds": [ours]})).await.body["key"]);
    let ask = async |method: Method, path: &str, body: Value| {
        let request = app.anonymous(method, &format!("/v1{path}")).bearer_auth(&key);
        app.send(request.json(&body)).await
    };
    let shared = document(&app, "Shared", "for all", json!({})).await;
    let part = document(&app, "Hidden part", "x", json!({"parentDocumentId": shared, "projectId": theirs})).await;
    let own_folder = folder(&app, "Own", json!({"projectId": ours})).await;
    let own = document(&app, "Own", "y", json!({"folderId": own_folder})).await;
    let below = json!({"parentDocumentId": own, "projectId": theirs});
    document(&app, "Hidden, too", "z", below).await;
    let environment = json!({"name": "Theirs", "projectId": theirs});
    let environment = text(&app.post("/environments", environment).await.body["_id"]);
    let agent = agent(&app, json!({"name": "Their agent", "projectId": theirs})).await;
    let to_agent = json!({"targetType": "agent", "targetId": agent});
    assert_eq!(app.post(&format!("/documents/{shared}/attach"), to_agent).await.status, StatusCode::OK);

    // Who works in an environment is seen by whoever may see who it is.
    let common = text(&app.post("/environments", json!({"name": "Common"})).await.body["_id"]);
    app.patch(&format!("/agents/{agent}"), json!({"environmentId": common})).await;
    let connections = format!("/environments/{common}/connections");
    assert_eq!(app.get(&connections).await.body["agents"].as_array().map(Vec::len), Some(1));
    assert_eq!(ask(Method::GET, &connections, json!({})).await.body["agents"], json!([]));

    let to_environment = json!({"targetType": "environment", "targetId": environment});
    for (method, path, body) in [
        (Method::POST, format!("/documents/{own}/attach"), &to_environment),
        (Method::POST, format!("/documents/{own}/detach"), &to_environment),
        (Method::POST, format!("/document-folders/{own_folder}/attach"), &to_environment),
        (Method::DELETE, format!("/documents/{shared}"), &json!({})),
        (Method::DELETE, format!("/documents/{shared}?dryRun=true"), &json!({})),
        (Method::DELETE, format!("/document-folders/{own_folder}?deleteDocuments=true"), &json!({})),
    ] {
        let refused = ask(method.clone(), &path, body.clone()).await;
        assert_eq!((refused.status.as_u16(), refused.error()), (403, "PROJECT_FORBIDDEN"), "{method} {path}");
    }
    assert_eq!(app.get(&format!("/documents/{part}")).await.status, StatusCode::OK);
    for path in [format!("/documents/{shared}/subdocuments"), format!("/documents/{shared}/usage")] {
        let said = ask(Method::GET, &path, json!({})).await.body.to_string();
        assert!(!said.contains("Hidden") && !said.contains("Their agent"), "{path}: {said}");
        let whole = app.get(&path).await.body.to_string();
        assert!(whole.contains("Hidden part") || whole.contains("Their agent"), "whoever may see it does: {whole}");
    }
    for project in [theirs.as_str(), "0192f000-0000-7000-8000-000000000000"] {
        let found = ask(Method::POST, "/documents/search", json!({"query": "x", "projectId": project})).await;
        assert_eq!((found.status, &found.body["results"]), (StatusCode::OK, &json!([])), "{}", found.body);
    }
}
