//! `/v1/assistants/{identifier}/chats` and `POST /v1/assistants/chats`

use futures_util::future::join_all;
use platform_testing::{TestApp, TestDb};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{PROGRAM, UNBOUNDED, agent, app, app_with, eventually, peak_memory, say, thread, thread_until};

async fn names(app: &TestApp, filter: Value) -> Vec<String> {
    let reply = app.post("/assistants/chats?omitContent=true&limit=100", filter.clone()).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{filter}: {:?}", reply.body);
    let histories = reply.body["histories"].as_array().expect("a list");
    assert_eq!(reply.body["total"], histories.len(), "{filter}");
    histories.iter().map(|chat| chat["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn every_filter_keeps_what_it_says_and_all_of_them_hold_at_once() {
    let app = app().await;
    app.post("/assistants", json!({"name": "B", "identifier": "b"})).await;
    let chats = [
        (
            "default",
            json!({"message": "alpha", "tags": ["red", "x"], "tenantId": "t1", "subtenantId": "s1",
            "metadata": {"order": {"id": 7, "lines": ["a", "b"]}, "open": true}}),
        ),
        ("default", json!({"message": "Alphabet_1%", "tags": ["blue"], "tenantId": "t1"})),
        ("b", json!({"message": "gamma", "tags": ["red", "blue"], "metadata": {"order": {"id": 8}}})),
        ("b", json!({"message": "/usage {\"inputTokens\":500,\"outputTokens\":90}"})),
    ];
    let mut times = Vec::new();
    for (assistant, message) in chats {
        let reply = app.post(&format!("/assistants/{assistant}/messages"), message).await;
        times.push((reply.body[0]["timestamp"].as_i64().expect("a time"), reply.header("x-chat-uid").to_owned()));
    }
    let usage = "/usage {\"inputTokens\":500,\"outputTokens\":90}";
    app.patch(&format!("/assistants/b/chats/{}", times[2].1), json!({"archived": true})).await;
    let cases = [
        (json!({}), vec![usage, "Alphabet_1%", "alpha"]),
        (json!({"archived": true}), vec!["gamma"]),
        (json!({"assistantSpecializationIdentifier": "b"}), vec![usage]),
        (json!({"assistantIdentifier": "nobody"}), vec![]),
        (json!({"name": "alpha"}), vec!["alpha"]),
        (json!({"search": "ALPHA"}), vec!["Alphabet_1%", "alpha"]),
        (json!({"search": "_1%"}), vec!["Alphabet_1%"]),
        (json!({"llm": "demo-1"}), vec![usage, "Alphabet_1%", "alpha"]),
        (json!({"llm": "other"}), vec![]),
        (json!({"createdAfter": times[3].0}), vec![usage]),
        (json!({"createdBefore": times[0].0}), vec!["alpha"]),
        (json!({"startDate": "2020-01-01T00:00:00Z", "endDate": times[1].0}), vec!["Alphabet_1%", "alpha"]),
        (json!({"minInputTokens": 500}), vec![usage]),
        (json!({"minOutputTokens": 91}), vec![]),
        (json!({"tenantId": "t1"}), vec!["Alphabet_1%", "alpha"]),
        (json!({"subtenantId": "s1"}), vec!["alpha"]),
        (json!({"metadata": {"order": {"id": 7}}}), vec!["alpha"]),
        (json!({"metadata": {"order": {"lines": ["b"]}, "open": true}}), vec!["alpha"]),
        (json!({"metadata": {"order": {"id": "7"}}}), vec![]),
        (json!({"tags": ["red", "blue"]}), vec!["Alphabet_1%", "alpha"]),
        (json!({"tags": ["red"], "tenantId": "t1", "metadata": {"open": true}, "search": "alp"}), vec!["alpha"]),
        (json!({"tags": ["blue"], "metadata": {"open": true}}), vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(names(&app, filter.clone()).await, expected, "{filter}");
    }
    let page = app.post("/assistants/chats?limit=1000&skip=1", json!({})).await;
    assert_eq!((&page.body["limit"], &page.body["offset"], &page.body["total"]), (&json!(100), &json!(1), &json!(3)));
    assert_eq!(page.body["histories"][0]["chatContent"].as_array().map(Vec::len), Some(2));
    let wrong = app.post("/assistants/chats", json!({"createdAfter": 2, "createdBefore": 1})).await;
    assert_eq!(wrong.error(), "INVALID_TIME_RANGE");
    let listed = app.get("/assistants/default/chats?tags=red,none&search=alp&tenantId=t1&omitContent=true").await;
    assert_eq!((&listed.body["total"], listed.body["histories"][0].get("chatContent")), (&json!(1), None));
    assert_eq!(app.get("/assistants/tags").await.body, json!(["blue", "red", "x"]));
}

#[tokio::test]
async fn a_chat_is_read_searched_changed_and_deleted() {
    let app = app().await;
    let uid = say(&app, "The needle in the hay").await.header("x-chat-uid").to_owned();
    let path = format!("/assistants/default/chats/{uid}");
    app.post("/assistants/default/messages", json!({"chatUid": uid, "message": "straw"})).await;

    let content = app.get(&format!("{path}/content?limit=2&offset=1")).await.body;
    assert_eq!(content.as_array().map(Vec::len), Some(2));
    assert_eq!(content[1]["content"]["message"], "straw");
    let found = app.get(&format!("{path}/search?q=NEEDLE")).await.body;
    assert_eq!((&found["total"], &found["matches"][1]["position"]), (&json!(2), &json!(1)));
    assert!(found["matches"][0]["snippet"].as_str().is_some_and(|snippet| snippet.contains("needle")));
    assert_eq!(app.get(&format!("{path}/search")).await.error(), "VALIDATION_ERROR");

    let changed = app.patch(&path, json!({"name": "Renamed", "tags": ["t"], "metadata": {"a": 1}})).await;
    assert_eq!(
        (&changed.body["name"], &changed.body["tags"], &changed.body["metadata"]),
        (&json!("Renamed"), &json!(["t"]), &json!({"a": 1}))
    );
    let unnamed = app.patch(&path, json!({"name": null})).await;
    assert_eq!(
        unnamed.body["details"]["issues"][0],
        json!({"path": "name", "code": "required", "message": "name is required"})
    );
    let cleared = app.patch(&path, json!({"tags": null, "archived": true})).await;
    assert_eq!(
        (&cleared.body["tags"], &cleared.body["archived"], &cleared.body["name"]),
        (&json!([]), &json!(true), &json!("Renamed"))
    );
    app.post("/assistants/default/messages", json!({"chatUid": uid, "message": "back"})).await;
    assert_eq!(app.get(&path).await.body["archived"], false, "a message brings it back");

    let message = content[0]["uid"].as_str().expect("a uid");
    let good = app.post(&format!("{path}/feedback"), json!({"messageId": message, "feedback": true})).await;
    assert_eq!((good.status, &good.body["requestId"]), (StatusCode::CREATED, &json!(message)));
    let bad = json!({"messageId": message, "feedback": false, "feedbackComment": "no", "feedbackData": {"a": 1}});
    let bad = app.post(&format!("{path}/feedback"), bad).await;
    assert_eq!((bad.status, &bad.body["_id"]), (StatusCode::OK, &good.body["_id"]));
    let all = app.get(&format!("{path}/feedback")).await.body;
    assert_eq!((all.as_array().map(Vec::len), &all[0]["feedbackComment"]), (Some(1), &json!("no")));
    let unknown = app.post(&format!("{path}/feedback"), json!({"messageId": "m", "feedback": true})).await;
    assert_eq!(unknown.error(), "MESSAGE_NOT_FOUND");
    let missing = app.post(&format!("{path}/feedback"), json!({"messageId": message})).await;
    assert_eq!(
        (missing.error(), &missing.body["details"]["issues"][0]["code"]),
        ("VALIDATION_ERROR", &json!("required"))
    );

    app.post("/assistants", json!({"name": "B", "identifier": "b"})).await;
    for foreign in ["", "/realtime", "/stream", "/content"] {
        let path = format!("/assistants/b/chats/{uid}{foreign}");
        assert_eq!(app.get(&path).await.error(), "CHAT_NOT_FOUND", "{path}");
    }
    let stolen = app.post("/assistants/b/messages", json!({"chatUid": uid, "message": "x"})).await;
    assert_eq!((stolen.status, stolen.error()), (StatusCode::NOT_FOUND, "CHAT_NOT_FOUND"));
    assert_eq!(app.delete(&path).await.body["deletedId"], json!(uid));
    for gone in [path.clone(), format!("{path}/realtime"), format!("{path}/stream"), format!("{path}/content")] {
        assert_eq!(app.get(&gone).await.error(), "CHAT_NOT_FOUND", "{gone}");
    }
}

#[tokio::test]
async fn a_chat_that_is_deleted_under_a_waiting_sender_says_so() {
    let app = app_with(&UNBOUNDED).await;
    let messages = "/assistants/default/messages";
    join_all((0..16).map(async |n| {
        let path = format!("/assistants/default/chats/gone-{n}");
        let sent = app.post(messages, json!({"message": "/wait 30s\nHello", "chatUid": format!("gone-{n}")}));
        let delete = async {
            let is_there = async || (app.get(&path).await.status == StatusCode::OK).then_some(());
            eventually("the turn begins", is_there).await;
            assert_eq!(app.delete(&path).await.status, StatusCode::OK);
            // Another of its name is there at once, or none.
            if n > 0 {
                let again = json!({"message": "Hello", "chatUid": format!("gone-{n}")});
                assert_eq!(app.post(&format!("{messages}?async=true"), again).await.status, StatusCode::OK);
            }
        };
        let (told, ()) = tokio::join!(sent, delete);
        assert_eq!((told.status, told.error()), (StatusCode::NOT_FOUND, "CHAT_NOT_FOUND"), "{}", told.body);
        assert!(told.body["message"].as_str().is_some_and(|text| text.contains("was deleted")), "{}", told.body);
    }))
    .await;
}

#[tokio::test]
async fn a_chat_larger_than_a_list_is_read_page_by_page_and_listed_without_its_messages() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let text = "x".repeat(100_000);
    for uid in ["large", "small"] {
        app.post("/assistants/default/messages", json!({"chatUid": uid, "message": text})).await;
    }
    let agent = agent(&app, json!({})).await;
    let id = thread(&app, &agent, &text).await;
    thread_until(&app, &id, |thread| thread["state"] == "completed").await;
    // As if much more had been said.
    db.run(&format!(
        "INSERT INTO messages SELECT account_id, conversation, position + 2 * n, uid || n, role, body, accounting, created_ms \
         FROM messages, generate_series(1, 199) n WHERE conversation IN ('large', 'thread:{id}')"
    ))
    .await;
    let before = peak_memory(&app);
    for (path, field) in [
        ("/assistants/default/chats/large".to_owned(), "chatContent"),
        (format!("/agents/threads/{id}"), "threadContent"),
    ] {
        let read = app.get(&path).await;
        let messages = read.body[field].as_array().expect("messages");
        assert_eq!((read.status, messages.len()), (StatusCode::OK, 400), "{path}");
        assert!(messages.iter().all(|message| message["content"]["message"].as_str().map(str::len) >= Some(100_000)));
        let changed = app.patch(&path, json!({"name": "Large"})).await;
        let content = changed.body[field].as_array().map(Vec::len);
        assert_eq!((changed.status, &changed.body["name"], content), (StatusCode::OK, &json!("Large"), Some(400)));
    }
    let page = app.get("/assistants/default/chats/large/content?limit=1000").await;
    let shown = page.body.as_array().expect("messages").len();
    assert!((30..80).contains(&shown), "{shown}");
    let rest = app.get(&format!("/assistants/default/chats/large/content?offset={shown}")).await;
    assert_ne!(rest.body[0]["uid"], page.body[0]["uid"]);
    let histories = app.post("/assistants/chats", json!({})).await.body["histories"].clone();
    let listed = |uid: &str| {
        let of = histories.as_array().expect("chats").iter().find(|chat| chat["chatUID"] == uid).expect("it is listed");
        of.get("chatContent").and_then(Value::as_array).map(Vec::len)
    };
    assert_eq!((listed("large"), listed("small")), (None, Some(2)));
    assert_eq!(app.get("/agents/threads").await.body["threads"][0].get("threadContent"), None);
    let grown = peak_memory(&app) - before;
    assert!(grown < 64, "four answers of 40 MB took {grown} MiB");
}
