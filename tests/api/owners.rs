//! What belongs to whom, and what that takes: owners of chats, hidden assistants, approvals (contract 01, 02, 05).

use platform_testing::{Reply, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    access::{call, get, post, session},
    support::{agent, app, app_with_tools, eventually, text, thread, thread_in, tool, tool_server, user, user_with},
};

/// Makes something that must be made.
async fn make(app: &TestApp, path: &str, body: Value) -> Value {
    let made = app.post(path, body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{path}: {}", made.body);
    made.body
}

fn forbidden(reply: &Reply) {
    assert_eq!((reply.status, reply.error()), (StatusCode::FORBIDDEN, "FORBIDDEN"), "{}", reply.body);
}

/// The call that a chat waits for.
async fn pending(app: &TestApp, chat: &str) -> String {
    text(&app.get(&format!("{chat}/realtime")).await.body["pendingToolCalls"][0]["id"])
}

#[tokio::test]
async fn trying_a_tool_and_approving_its_call_take_an_editor_of_the_project_of_the_tool() {
    let (app, server, _db) = app_with_tools(&[]).await;
    let project =
        text(&make(&app, "/projects", json!({"name": "P", "identifier": "p", "visibility": "public"})).await["_id"]);
    let pay = tool("pay", "/echo", &json!({"method": "POST", "requiresApproval": true}));
    let tools = tool_server(&app, server.url(), &[pay]).await;
    let uses = json!({"availableToolsGroupsUids": [tools]});
    make(
        &app,
        "/assistants",
        json!({"name": "C", "identifier": "clerk", "projectId": project,
        "availableToolsGroupsUids": [tools]}),
    )
    .await;
    assert_eq!(app.patch(&format!("/tool-servers/{tools}"), json!({"projectId": project})).await.status, 200);
    let (ann, token) = user(&app, "ann", "member").await;
    // What anybody may use they may refer to.
    let own = json!({"name": "O", "identifier": "own", "availableToolsGroupsUids": [tools]});
    assert_eq!(post(&app, &token, "/assistants", own).await.status, StatusCode::CREATED);
    let agent = post(&app, &token, "/agents", json!({"name": "A", "assistantSpecialization": uses})).await;
    let agent = text(&agent.body["_id"]);

    let test = format!("/tool-servers/{tools}/tools/pay/test");
    forbidden(&post(&app, &token, &test, json!({"arguments": {}})).await);
    let mut chats = Vec::new();
    for assistant in ["clerk", "own"] {
        let said = post(
            &app,
            &token,
            &format!("/assistants/{assistant}/messages"),
            json!({"message": "/tool pay\nDone", "chatUid": assistant}),
        )
        .await;
        assert_eq!(said.status, StatusCode::OK, "{}", said.body);
        let chat = format!("/assistants/{assistant}/chats/{assistant}");
        let call = pending(&app, &chat).await;
        for decision in ["approved", "rejected"] {
            let given = json!({"responses": [{"tool_call_id": call, "content": decision}]});
            forbidden(&post(&app, &token, &format!("{chat}/tool-response"), given).await);
        }
        chats.push((chat, call));
    }
    let started = post(&app, &token, &format!("/agents/{agent}/threads"), json!({"message": "/tool pay\nDone"})).await;
    let waiting = text(&started.body["threadId"]);
    thread_in(&app, &waiting, "paused_for_approval").await;
    let approval = format!("/agents/threads/{waiting}/approval");
    forbidden(&post(&app, &token, &approval, json!({"action": "approved"})).await);
    assert_eq!(server.recorded().len(), 0, "nothing was called");
    // Results of the client's own tools are no decision.
    let own = json!({"message": "/tool mine\nDone", "chatUid": "c", "tools": [{"function": {"name": "mine"}}]});
    assert_eq!(post(&app, &token, "/assistants/clerk/messages", own).await.status, StatusCode::OK);
    let call = pending(&app, "/assistants/clerk/chats/c").await;
    let given = json!({"responses": [{"tool_call_id": call, "content": "x"}]});
    let answered = post(&app, &token, "/assistants/clerk/chats/c/tool-response", given).await;
    assert_eq!(answered.status, StatusCode::OK, "{}", answered.body);

    let editor = json!({"userUID": ann, "role": "editor"});
    make(&app, &format!("/projects/{project}/members"), editor).await;
    assert_eq!(post(&app, &token, &test, json!({"arguments": {}})).await.status, StatusCode::OK);
    for (chat, call) in chats {
        let given = json!({"responses": [{"tool_call_id": call, "content": "approved"}]});
        let decided = post(&app, &token, &format!("{chat}/tool-response"), given).await;
        assert_eq!(decided.status, StatusCode::OK, "{}", decided.body);
    }
    assert_eq!(post(&app, &token, &approval, json!({"action": "approved"})).await.status, StatusCode::OK);
    thread_in(&app, &waiting, "completed").await;
}

#[tokio::test]
async fn what_a_message_says_moves_no_chat_to_somebody_else_and_renames_no_tenant() {
    let app = app().await;
    let open = json!({"name": "O", "identifier": "open", "accessConfiguration": {"externalAccess": true}});
    make(&app, "/assistants", open).await;
    app.post("/tenants", json!({"tenantId": "acme"})).await;
    let mine = session(&app, json!({"tenantId": "acme", "subtenantId": "u1"})).await;
    let theirs = session(&app, json!({"tenantId": "acme", "subtenantId": "u2"})).await;
    let whole = session(&app, json!({"tenantId": "acme"})).await;
    let lies = json!({"subtenantId": "u2", "tenantMetadata": {"name": "Evil", "email": "a@evil.example"},
        "name": "Evil", "email": "b@evil.example", "imageUrl": "https://evil.example/x.png"});
    let say = async |session: &str, chat: &str, query: &str, metadata: &Value| {
        // A title that comes between two reads would tell them apart.
        let body = json!({"message": "Hi", "chatUid": chat, "metadata": metadata, "skipSummarization": true});
        let said = post(&app, session, &format!("/assistants/open/messages{query}"), body).await;
        assert_eq!(said.status, StatusCode::OK, "{}", said.body);
    };
    let listed = async |session: &str| {
        // A turn that ends between two reads would tell them apart.
        let chats = eventually("both lists alike", async || {
            let chats = post(&app, session, "/assistants/chats", json!({})).await.body;
            let of_assistant = get(&app, session, "/assistants/open/chats").await.body;
            (chats["histories"] == of_assistant["histories"]).then_some(chats)
        })
        .await;
        chats["histories"].as_array().expect("chats").iter().map(|chat| text(&chat["chatUID"])).collect::<Vec<_>>()
    };
    say(&mine, "new", "", &lies).await;
    say(&mine, "new", "", &lies).await;
    let patched = app.patch("/assistants/open/chats/new", json!({"metadata": {"subtenantId": "u2", "x": 1}})).await;
    assert_eq!(patched.body["metadata"], json!({"subtenantId": "u1", "x": 1}));
    // A chat that gathers or queues messages is the same.
    app.patch("/assistants/open", json!({"inputDelayMs": 500})).await;
    say(&mine, "new", "?async=true", &lies).await;
    say(&mine, "gathered", "?async=true", &lies).await;
    say(&mine, "gathered", "?async=true", &lies).await;
    app.patch("/assistants/open", json!({"inputDelayMs": 0})).await;
    // One of the tenant without an end user is nobody's in particular.
    say(&whole, "shared", "", &lies).await;
    assert_eq!(listed(&theirs).await, Vec::<String>::new());
    assert_eq!(listed(&mine).await, ["gathered", "new"]);
    assert_eq!(listed(&whole).await, ["shared", "gathered", "new"]);
    for (subtenant, total) in [("u1", 2), ("u2", 0)] {
        let found = app.post("/assistants/chats", json!({"tenantId": "acme", "subtenantId": subtenant})).await.body;
        assert_eq!(found["total"], total, "{subtenant}");
    }
    let noted = app.get("/assistants/open/chats/new").await.body;
    assert_eq!((&noted["subtenantId"], &noted["metadata"]["subtenantId"]), (&json!("u1"), &json!("u1")));
    let tenant = app.get("/tenants/acme").await.body;
    for field in ["displayName", "email", "imageUrl", "domain"] {
        assert_eq!(tenant[field], "", "an end user says nothing of the tenant: {field}");
    }
    // What belongs to nobody is found by what was noted.
    let free = json!({"message": "Hi", "metadata": {"subtenantId": "u9"}});
    app.post("/assistants/open/messages", free).await;
    assert_eq!(app.post("/assistants/chats", json!({"subtenantId": "u9"})).await.body["total"], 1);
}

#[tokio::test]
async fn a_hidden_assistant_is_in_no_list_and_the_base_of_nothing() {
    let app = app().await;
    let within = |of: &str| json!({"name": of, "identifier": of, "tags": [of]});
    let project = text(&make(&app, "/projects", json!({"name": "P", "identifier": "p"})).await["_id"]);
    let mut assistants = vec![within("shown"), within("hidden"), within("gone"), within("inner")];
    for assistant in &mut assistants {
        assistant["projectId"] = json!(project);
        assistant["accessConfiguration"] = json!({"externalAccess": assistant["name"] != "inner",
            "visibilityByRole": match assistant["name"].as_str() { Some("hidden" | "gone") => json!(["admin"]), _ => json!([]) }});
        make(&app, "/assistants", assistant.clone()).await;
        let name = text(&assistant["name"]);
        let said = json!({"message": "Hi", "chatUid": name, "tenantId": "acme", "tags": [name]});
        assert_eq!(app.post(&format!("/assistants/{name}/messages"), said).await.status, StatusCode::OK);
    }
    app.delete("/assistants/gone").await;
    let scopes = json!(["platform:write", "tenant-sessions:write"]);
    let (ann, member) = user_with(&app, "ann", "member", Some(scopes)).await;
    let (_, admin) = user(&app, "root", "admin").await;
    make(&app, &format!("/projects/{project}/members"), json!({"userUID": ann, "role": "editor"})).await;
    let token = post(&app, &member, "/tenant-sessions", json!({"tenantId": "acme"})).await;
    let of_member = text(&token.body["token"]);
    let of_backend = session(&app, json!({"tenantId": "acme"})).await;
    let names = async |who: &str| {
        let chats = post(&app, who, "/assistants/chats", json!({})).await.body;
        let mut names: Vec<String> =
            chats["histories"].as_array().expect("chats").iter().map(|chat| text(&chat["chatUID"])).collect();
        names.sort();
        assert_eq!(chats["total"], names.len());
        let tags = get(&app, who, "/assistants/tags").await.body;
        assert_eq!(tags, json!(names), "tags follow");
        names
    };
    assert_eq!(names(&member).await, ["inner", "shown"]);
    assert_eq!(names(&admin).await, ["gone", "hidden", "inner", "shown"]);
    assert_eq!(names(&of_member).await, ["shown"], "a session knows what its member knows, and what is open");
    assert_eq!(names(&of_backend).await, ["gone", "hidden", "shown"]);
    assert_eq!(names(app.key()).await, ["gone", "hidden", "inner", "shown"]);
    let conversations = get(&app, &member, "/projects/p/conversations").await.body;
    assert_eq!(conversations["total"], 2);
    let stats = get(&app, &member, "/tenants/acme/stats").await.body;
    assert_eq!((stats["byAssistant"].as_array().map(Vec::len), &stats["totals"]["chats"]), (Some(2), &json!(2)));

    for (who, expected) in [(&member, vec!["inner", "shown"]), (&admin, vec!["gone", "hidden", "inner", "shown"])] {
        for path in ["/tenants/acme/costs", "/projects/p/costs/daily"] {
            let costs = get(&app, who, path).await.body;
            let by_assistant = costs[0]["byAssistant"].as_array().expect("costs").iter();
            let mut named: Vec<String> = by_assistant.map(|cost| text(&cost["assistantIdentifier"])).collect();
            named.sort();
            assert_eq!(named, expected, "{path}");
        }
    }

    let base = json!({"name": "a", "projectId": project, "assistantSpecialization": {"identifier": "hidden"}});
    let refused = post(&app, &member, "/agents", base.clone()).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::NOT_FOUND, "ASSISTANT_NOT_FOUND"));
    let own = agent(&app, json!({"projectId": project})).await;
    let patch = json!({"assistantSpecialization": {"identifier": "hidden"}});
    let of_agent = format!("/agents/{own}");
    let patched = call(&app, &member, Method::PATCH, &of_agent, Some(patch.clone())).await;
    assert_eq!(patched.error(), "ASSISTANT_NOT_FOUND");
    assert_eq!(app.patch(&of_agent, patch.clone()).await.status, StatusCode::OK);
    let same = call(&app, &member, Method::PATCH, &of_agent, Some(patch)).await;
    assert_eq!(same.status, StatusCode::OK, "it was there: {}", same.body);
    let minted = json!({"tenantId": "acme", "assistantIds": ["hidden"]});
    assert_eq!(post(&app, &member, "/tenant-sessions", minted).await.error(), "ASSISTANT_NOT_FOUND");
    assert_eq!(post(&app, &admin, "/agents", base).await.status, StatusCode::CREATED);
    let _ = thread(&app, &own, "Hi").await;
}
