//! `/v1/projects`: what belongs together, who reaches it, and what was spent there (contract 05).

use futures_util::future::join_all;
use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    access::session,
    documents::document,
    support::{Frames, PROGRAM, app, eventually, text, thread, thread_until, tool, tool_server, user, user_with},
};

/// A request with any credential.
async fn call(app: &TestApp, credential: &str, method: Method, path: &str, body: Value) -> Reply {
    let request = app.anonymous(method.clone(), &format!("/v1{path}")).bearer_auth(credential);
    app.send(if method == Method::GET { request } else { request.json(&body) }).await
}

async fn get(app: &TestApp, credential: &str, path: &str) -> Reply {
    call(app, credential, Method::GET, path, Value::Null).await
}

/// Makes a project; its id.
async fn project(app: &TestApp, identifier: &str, visibility: &str) -> String {
    let body = json!({"name": identifier, "identifier": identifier, "visibility": visibility});
    id(&app.post("/projects", body).await)
}

/// Makes something; its id.
fn id(made: &Reply) -> String {
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    made.body["_id"].as_str().expect("an id").to_owned()
}

/// Gives a user a role.
pub async fn enlist(app: &TestApp, project: &str, user: &str, role: &str) -> Reply {
    app.post(&format!("/projects/{project}/members"), json!({"userUID": user, "role": role})).await
}

#[tokio::test]
async fn a_project_is_made_found_by_either_name_changed_and_archived() {
    let app = app().await;
    let body = json!({"name": "Shop", "identifier": "shop-1", "description": "d", "imageUrl": "https://a.b/c.png"});
    let made = app.post("/projects", body.clone()).await;
    assert_eq!((made.status, &made.body["visibility"]), (StatusCode::CREATED, &json!("private")), "{}", made.body);
    assert_eq!((&made.body["archived"], &made.body["identifier"]), (&json!(false), &json!("shop-1")));
    assert!(made.body["createdByUserUID"].as_str().is_some_and(|user| user.starts_with("apikey:")), "{}", made.body);
    let taken = app.post("/projects", body).await;
    assert_eq!((taken.status, taken.error()), (StatusCode::CONFLICT, "IDENTIFIER_TAKEN"));
    for (wrong, path) in [
        (json!({"identifier": "a"}), "name"),
        (json!({"name": "n"}), "identifier"),
        (json!({"name": "n", "identifier": "-a"}), "identifier"),
        (json!({"name": "n", "identifier": "A"}), "identifier"),
        (json!({"name": "n", "identifier": "a".repeat(64)}), "identifier"),
        (json!({"name": "n", "identifier": "a", "visibility": "secret"}), "visibility"),
    ] {
        let refused = app.post("/projects", wrong).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"), "{path}");
        assert_eq!(refused.body["details"]["issues"][0]["path"], path);
    }
    let shop = id(&made);
    let twin = project(&app, "twin", "PUBLIC").await;
    // Clients take only such values for ids, and read their order.
    let is_hex = |id: &String| id.len() == 24 && id.bytes().all(|b| b"0123456789abcdef".contains(&b));
    assert!(is_hex(&shop) && is_hex(&twin) && shop < twin, "{shop} {twin}");
    for name in [shop.as_str(), "shop-1"] {
        assert_eq!(app.get(&format!("/projects/{name}")).await.body["_id"], json!(shop));
    }
    assert_eq!(app.get("/projects/nothing").await.error(), "PROJECT_NOT_FOUND");
    let changed = app.patch("/projects/shop-1", json!({"name": "Store", "visibility": "public"})).await.body;
    assert_eq!((&changed["name"], &changed["description"]), (&json!("Store"), &json!("d")));
    let renamed = app.patch("/projects/shop-1", json!({"identifier": "other"})).await;
    assert_eq!(renamed.error(), "VALIDATION_ERROR", "it never changes");

    let gone = app.delete("/projects/shop-1").await;
    assert_eq!((gone.status, gone.body), (StatusCode::OK, json!({"success": true, "archived": true})));
    let listed = app.get("/projects").await.body;
    assert_eq!((&listed["total"], &listed["projects"][0]["_id"]), (&json!(1), &json!(twin)));
    let all = app.get("/projects?archived=true&limit=1&skip=1").await.body;
    assert_eq!((&all["total"], &all["projects"][0]["_id"], &all["offset"]), (&json!(2), &json!(shop), &json!(1)));

    // Nothing can be added to what is archived; what is there keeps working.
    app.patch("/projects/shop-1", json!({"archived": false})).await;
    let server = tool_server(&app, "https://a.example", &[tool("t", "/x", &json!({}))]).await;
    let joined = app.patch(&format!("/tool-servers/{server}"), json!({"projectId": shop})).await;
    assert_eq!((joined.status, &joined.body["projectId"]), (StatusCode::OK, &json!(shop)), "{}", joined.body);
    let mine = json!({"name": "A", "identifier": "a", "projectId": shop});
    assert_eq!(app.post("/assistants", mine).await.status, StatusCode::CREATED);
    // It may be named by its identifier wherever its id may stand.
    let skill = app.post("/documents/skills/scaffold", json!({"name": "s", "projectId": "shop-1"})).await.body;
    assert_eq!(skill["folder"]["projectId"], json!(shop), "{skill}");
    for (list, count) in [("/documents/skills?projectId=shop-1", 1), ("/documents/skills?projectId=twin", 0)] {
        assert_eq!(app.get(list).await.body["items"].as_array().map(Vec::len), Some(count), "{list}");
    }
    app.delete(&format!("/projects/{shop}")).await;
    for (path, body) in [
        ("/assistants", json!({"name": "n", "projectId": shop})),
        ("/agents", json!({"name": "n", "projectId": shop})),
        ("/tool-servers", json!({"name": "n", "url": "https://a.example", "projectId": shop})),
        ("/documents", json!({"name": "n", "markdownContent": "n", "projectId": shop})),
        ("/document-folders", json!({"name": "n", "projectId": shop})),
        ("/skills/scaffold", json!({"name": "n", "projectId": shop})),
    ] {
        let refused = app.post(path, body.clone()).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::CONFLICT, "PROJECT_ARCHIVED"), "{path}");
        let mut lost = body.clone();
        lost["projectId"] = "none".into();
        let lost = app.post(path, lost).await;
        assert_eq!((lost.status, lost.error()), (StatusCode::NOT_FOUND, "PROJECT_NOT_FOUND"), "{path}");
    }
    assert_eq!(app.post(&format!("/tool-servers/{server}/clone"), json!({})).await.error(), "PROJECT_ARCHIVED");
    assert_eq!(app.post("/assistants/a/messages", json!({"message": "Hi"})).await.status, StatusCode::OK);
    let same = app.patch("/assistants/a", json!({"name": "B", "projectId": shop})).await;
    assert_eq!(same.status, StatusCode::OK, "it is there already: {}", same.body);
    assert_eq!(app.patch("/assistants/a", json!({"projectId": null})).await.body.get("projectId"), None);
    assert_eq!(app.patch("/assistants/a", json!({"projectId": shop})).await.error(), "PROJECT_ARCHIVED");
}

/// Two projects with one of everything in each, and one of everything beside them; ids of agent, assistant, server and
/// thread, by project.
async fn furnished(app: &TestApp) -> [(Option<String>, [String; 4]); 3] {
    let projects = [Some(project(app, "private", "private").await), Some(project(app, "public", "public").await), None];
    let furnish = projects.map(async |project| {
        let within = |body: Value| {
            let mut body = body;
            if let Some(project) = &project {
                body["projectId"] = json!(project);
            }
            body
        };
        let name = project.clone().unwrap_or_else(|| "none".to_owned());
        let agent = id(&app.post("/agents", within(json!({"name": name, "subAgentConfig": {"enabled": true}}))).await);
        let assistant = json!({"name": name, "identifier": format!("of-{name}"), "tags": [name]});
        let assistant = app.post("/assistants", within(assistant)).await.body["identifier"].clone();
        let assistant = assistant.as_str().expect("an identifier").to_owned();
        let body = within(json!({"name": name, "url": "https://a.example"}));
        let server = id(&app.post("/tool-servers", body).await);
        let thread = thread(app, &agent, "Hi").await;
        app.patch(&format!("/agents/threads/{thread}"), json!({"tags": [name]})).await;
        let chat = json!({"message": "Hi", "chatUid": format!("chat-{name}"), "tags": [name]});
        let sent = app.post(&format!("/assistants/{assistant}/messages"), chat).await;
        assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
        (project, [agent, assistant, server, thread])
    });
    join_all(furnish).await.try_into().expect("three")
}

#[tokio::test]
async fn who_is_no_member_does_not_see_what_is_in_a_private_project_and_only_editors_change_it() {
    let rates = ["RESTRICTED", "OAUTH", "CREATE_KEY"].map(|rate| format!("PLATFORM_RATE_{rate}"));
    let settings: Vec<(&str, &str)> = rates.iter().map(|rate| (rate.as_str(), "0")).collect();
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let rooms = furnished(&app).await;
    let [(Some(private), hidden), (Some(public), open), (None, free)] = &rooms else { panic!("{rooms:?}") };
    let (ann, token) = user(&app, "ann", "member").await;
    let (_, admin) = user(&app, "root", "admin").await;
    let key = |body: Value| async { app.post("/api-keys", body).await.body["key"].as_str().expect("a key").to_owned() };
    let bound = key(json!({"name": "b", "projectIds": [private]})).await;
    let other = key(json!({"name": "o", "projectIds": []})).await;
    let restricted = key(json!({"name": "r", "allowedEndpoints": [{"method": "*", "path": "/**"}]})).await;

    // Lists leave out what is not theirs.
    let lists = [
        ("GET", "/agents", 0),
        ("GET", "/assistants", 1),
        ("GET", "/tool-servers", 2),
        ("GET", "/tool-groups", 2),
        ("GET", "/agents/threads?limit=100", 3),
    ];
    let sees = async |who: &str, room: &[String; 4]| {
        let mut seen = Vec::new();
        for (_, path, at) in lists {
            seen.push(get(&app, who, path).await.body.to_string().contains(&room[at]));
        }
        let chats = call(&app, who, Method::POST, "/assistants/chats", json!({})).await.body.to_string();
        seen.push(chats.contains(&room[1]));
        assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
        seen[0]
    };
    for (who, expected) in [
        (app.key(), [true, true, true]),
        (&admin, [true, true, true]),
        (&restricted, [true, true, true]),
        (&bound, [true, true, true]),
        (&other, [false, true, true]),
        (&token, [false, true, true]),
    ] {
        assert_eq!([sees(who, hidden).await, sees(who, open).await, sees(who, free).await], expected);
    }
    for path in ["/agents/threads/tags", "/assistants/tags"] {
        assert_eq!(get(&app, &token, path).await.body.as_array().map(Vec::len), Some(2), "{path}");
        assert_eq!(get(&app, &bound, path).await.body.as_array().map(Vec::len), Some(3), "{path}");
    }
    let listed = get(&app, &token, "/projects").await.body;
    assert_eq!((&listed["total"], &listed["projects"][0]["_id"]), (&json!(1), &json!(public)));

    // Direct access is refused; in a public project reading and using is open, changing is not.
    let doors = |room: &[String; 4]| {
        let [agent, assistant, server, thread] = room;
        let chat = format!("/assistants/{assistant}/chats/chat-{}", assistant.strip_prefix("of-").expect("a name"));
        [
            (Method::GET, format!("/agents/{agent}"), json!({})),
            (Method::GET, format!("/agents/{agent}/threads"), json!({})),
            (Method::GET, format!("/agents/agents/{agent}/costs/summary"), json!({})),
            (Method::POST, format!("/agents/{agent}/threads"), json!({"message": "Hi"})),
            (Method::GET, format!("/agents/threads/{thread}"), json!({})),
            (Method::GET, format!("/assistants/{assistant}"), json!({})),
            (Method::POST, format!("/assistants/{assistant}/messages"), json!({"message": "Hi"})),
            (Method::GET, chat.clone(), json!({})),
            (Method::GET, format!("/tool-servers/{server}"), json!({})),
            (Method::GET, format!("/tool-servers/{server}/tools"), json!({})),
            (Method::PATCH, format!("/agents/{agent}"), json!({"description": "d"})),
            (Method::PUT, format!("/agents/agents/{agent}/evaluation-config"), json!({})),
            (Method::PATCH, format!("/agents/threads/{thread}"), json!({"name": "n"})),
            (Method::POST, format!("/agents/threads/{thread}/messages"), json!({"message": "Of somebody else"})),
            (Method::PATCH, format!("/assistants/{assistant}"), json!({"description": "d"})),
            (Method::PATCH, chat, json!({"name": "n"})),
            (Method::PATCH, format!("/tool-servers/{server}"), json!({"description": "d"})),
            (Method::POST, format!("/tool-servers/{server}/tools"), tool("more", "/y", &json!({}))),
            (Method::POST, format!("/tool-servers/{server}/clone"), json!({})),
        ]
    };
    const READING: usize = 10;
    let knock = async |who: &str, room: &[String; 4], at: usize| {
        let (method, path, body) = doors(room)[at].clone();
        let reply = call(&app, who, method, &path, body).await;
        // Somebody may have added the tool before.
        let passed = reply.status.is_success() || reply.error() == "DUPLICATE_TOOL_NAME";
        assert!(passed || reply.status == StatusCode::FORBIDDEN, "{path}: {} {}", reply.status, reply.body);
        if passed { "ok".to_owned() } else { reply.error().to_owned() }
    };
    let all = doors(free).len();
    for at in 0..all {
        let reads = at < READING;
        for who in [&token, &other] {
            assert_eq!(knock(who, hidden, at).await, "PROJECT_FORBIDDEN", "{at}");
            assert_eq!(knock(who, open, at).await, if reads { "ok" } else { "FORBIDDEN" }, "{at}");
            assert_eq!(knock(who, free, at).await, "ok", "{at}");
        }
        for who in [&admin, &restricted, &bound] {
            assert_eq!(knock(who, hidden, at).await, "ok", "{at}");
        }
    }

    // What a body names is looked at as well, and so is the project that something is put into.
    let [agent, assistant, server, _] = hidden;
    for (path, body) in [
        ("/assistants", json!({"name": "n", "availableToolsGroupsUids": [server]})),
        ("/assistants", json!({"name": "n", "subagentsIds": [agent]})),
        ("/agents", json!({"name": "n", "assistantSpecialization": {"identifier": assistant}})),
        ("/agents", json!({"name": "n", "assistantSpecialization": {"availableToolsGroupsUids": [server]}})),
        ("/agents", json!({"name": "n", "projectId": private})),
        ("/tool-servers", json!({"name": "n", "url": "https://a.example", "projectId": private})),
    ] {
        let refused = call(&app, &token, Method::POST, path, body.clone()).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "PROJECT_FORBIDDEN"), "{path}");
        let message = refused.body["message"].as_str().unwrap_or_default();
        let names = [agent, assistant, server].iter().any(|id| message.contains(id.as_str()));
        assert!(names || body.get("projectId").is_some(), "{path}: what it is about: {message}");
    }
    // Who sends a record back as it was changes nothing.
    let [free_agent, free_assistant, ..] = free;
    let specialized = json!({"availableToolsGroupsUids": [server]});
    for (path, held, more) in [
        (format!("/assistants/{free_assistant}"), specialized.clone(), json!({"subagentsIds": [agent]})),
        (
            format!("/agents/{free_agent}"),
            json!({"assistantSpecialization": specialized}),
            json!({"assistantSpecialization": {"availableToolsGroupsUids": [server], "identifier": assistant}}),
        ),
    ] {
        let status = async |who: &str, body: &Value| call(&app, who, Method::PATCH, &path, body.clone()).await.status;
        assert_eq!(status(&token, &held).await, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(status(app.key(), &held).await, StatusCode::OK, "{path}");
        assert_eq!(status(&token, &held).await, StatusCode::OK, "{path}");
        assert_eq!(status(&token, &more).await, StatusCode::FORBIDDEN, "{path}");
    }
    let into = call(&app, &token, Method::POST, "/agents", json!({"name": "n", "projectId": public})).await;
    assert_eq!((into.status, into.error()), (StatusCode::FORBIDDEN, "FORBIDDEN"), "reading is not adding");
    let theirs = document(&app, "Theirs", "x", json!({"projectId": public})).await;
    let own = document(&app, "Own", "x", json!({})).await;
    let below = json!({"name": "n", "markdownContent": "x", "parentDocumentId": theirs});
    for (method, path) in [(Method::POST, "/documents".to_owned()), (Method::PATCH, format!("/documents/{own}"))] {
        let put = call(&app, &token, method, &path, below.clone()).await;
        assert_eq!((put.status, put.error()), (StatusCode::FORBIDDEN, "FORBIDDEN"), "nothing is put below theirs");
    }
    app.patch(&format!("/documents/{own}"), json!({"parentDocumentId": theirs})).await;
    let kept = call(&app, &token, Method::PATCH, &format!("/documents/{own}"), below).await;
    assert_eq!(kept.status, StatusCode::OK, "what stands there is sent back: {}", kept.body);

    // Each role opens what it says, at once, and closes it again.
    let at = 10;
    let said = format!("/assistants/{assistant}/messages");
    app.post(&said, json!({"message": "Hi", "chatUid": "theirs"})).await;
    for (role, change, manage) in
        [("viewer", "FORBIDDEN", "FORBIDDEN"), ("editor", "ok", "FORBIDDEN"), ("owner", "ok", "ok")]
    {
        enlist(&app, private, &ann, role).await;
        assert_eq!(knock(&token, hidden, 0).await, "ok", "{role}");
        assert_eq!(knock(&token, hidden, at).await, change, "{role}");
        assert_eq!(knock(&token, hidden, at + 3).await, change, "{role}: a thread of somebody else");
        let own = format!("/agents/{agent}/threads");
        let own = call(&app, &token, Method::POST, &own, json!({"message": "Hi"})).await;
        let own = format!("/agents/threads/{}", text(&own.body["threadId"]));
        for path in [format!("{own}/messages"), format!("{own}/feedback")] {
            let body = json!({"message": "Hi", "messageId": "m", "feedback": true});
            let refused = call(&app, &token, Method::POST, &path, body).await;
            assert_ne!(refused.status, StatusCode::FORBIDDEN, "{role}: a thread of their own");
        }
        call(&app, &token, Method::POST, &said, json!({"message": "Hi", "chatUid": role})).await;
        for (chat, expected) in [("theirs", change), (role, "ok")] {
            let stop = format!("/assistants/{assistant}/chats/{chat}/stop");
            let stopped = call(&app, &token, Method::POST, &stop, json!({})).await;
            let is_refused = stopped.status == StatusCode::FORBIDDEN;
            assert_eq!(if is_refused { stopped.error() } else { "ok" }, expected, "{role}: the chat {chat}");
        }
        let renamed = call(&app, &token, Method::PATCH, "/projects/private", json!({"description": role})).await;
        assert_eq!(if renamed.status.is_success() { "ok" } else { renamed.error() }, manage, "{role}");
        assert!(sees(&token, hidden).await, "{role}");
    }
    let of_key = call(&app, &bound, Method::PATCH, "/projects/private", json!({"description": "d"})).await;
    assert_eq!(of_key.error(), "FORBIDDEN", "a key that is bound to projects is an editor there");
}

#[tokio::test]
async fn no_detour_leads_into_a_private_project() {
    let app = app().await;
    let rooms = furnished(&app).await;
    let [(Some(private), hidden), (Some(_), open), (None, _)] = &rooms else { panic!("{rooms:?}") };
    let (_, token) = user(&app, "ann", "member").await;
    let post = async |path: &str, body: Value| call(&app, &token, Method::POST, path, body).await;
    let refused = |reply: &Reply, code: &str| assert_eq!((reply.status, reply.error()), (StatusCode::FORBIDDEN, code));

    // A name that is the id of something else stands for itself alone.
    let twin = post("/projects", json!({"name": "twin", "identifier": private, "visibility": "public"})).await;
    assert_eq!(twin.status, StatusCode::CREATED, "{}", twin.body);
    assert_eq!(app.patch("/projects/private", json!({"description": "ours"})).await.body["visibility"], "private");
    assert_eq!(app.get(&format!("/projects/{private}")).await.body["identifier"], "private");
    refused(&get(&app, &token, &format!("/projects/{private}")).await, "PROJECT_FORBIDDEN");
    let id_of_theirs = app.get(&format!("/assistants/{}", hidden[1])).await.body["_id"].clone();
    let mine = post("/assistants", json!({"name": "mine", "identifier": id_of_theirs})).await;
    assert_eq!(mine.status, StatusCode::CREATED, "{}", mine.body);
    let theirs = format!("/assistants/{}", id_of_theirs.as_str().expect("an id"));
    refused(&get(&app, &token, &theirs).await, "PROJECT_FORBIDDEN");
    assert_eq!(app.delete(&theirs).await.status, StatusCode::OK);
    let left = app.get("/assistants").await.body.to_string();
    assert!(left.contains("\"mine\"") && !left.contains(&format!("\"{}\"", hidden[1])), "only the one that was named");

    // What a user makes reaches no further than they do.
    let session = post("/tenant-sessions", json!({"tenantId": "t"})).await.body["token"].clone();
    let session = session.as_str().expect("a token");
    let external = json!({"accessConfiguration": {"externalAccess": true}});
    for (at, (name, room)) in [("inside", hidden), ("outside", open)].into_iter().enumerate() {
        let made = json!({"name": "n", "identifier": name, "projectId": rooms[at].0});
        app.post("/assistants", made).await;
        app.patch(&format!("/assistants/{name}"), external.clone()).await;
        let body = json!({"message": "Hi", "tenantId": "t", "chatUid": format!("t{at}")});
        assert_eq!(app.post(&format!("/assistants/{name}/messages"), body).await.status, StatusCode::OK);
        app.post(&format!("/agents/{}/threads", room[0]), json!({"message": "Hi", "tenantId": "t"})).await;
    }
    refused(&get(&app, session, "/assistants/inside/chats/t0").await, "PROJECT_FORBIDDEN");
    assert_eq!(get(&app, session, "/assistants/outside/chats/t1").await.status, StatusCode::OK);
    refused(&post("/tenant-sessions", json!({"tenantId": "t", "assistantIds": ["inside"]})).await, "PROJECT_FORBIDDEN");
    let scopes = json!(["platform:read", "platform:write", "keys:write"]);
    let writer = user_with(&app, "bob", "member", Some(scopes)).await.1;
    let endpoints = json!([{"method": "*", "path": "/**"}]);
    let key = json!({"name": "k", "allowedEndpoints": endpoints});
    refused(&call(&app, &writer, Method::POST, "/api-keys", key.clone()).await, "FORBIDDEN");
    let into = json!({"name": "k", "allowedEndpoints": endpoints, "projectIds": [private]});
    refused(&call(&app, &writer, Method::POST, "/api-keys", into).await, "FORBIDDEN");
    let none = json!({"name": "k", "allowedEndpoints": endpoints, "projectIds": []});
    assert_eq!(call(&app, &writer, Method::POST, "/api-keys", none).await.status, StatusCode::CREATED);
    let wide = app.post("/api-keys", key).await.body["_id"].clone();
    let rotate = format!("/api-keys/{}/rotate", wide.as_str().expect("an id"));
    refused(&call(&app, &writer, Method::POST, &rotate, json!({})).await, "FORBIDDEN");

    // An assistant that comes into a project later is no base for what is not in it.
    let made = post("/agents", json!({"name": "n", "assistantSpecialization": {"identifier": "payroll"}})).await;
    let payroll = json!({"name": "p", "identifier": "payroll", "projectId": private, "model": "demo-1",
        "presets": "/say The secret is canary"});
    assert_eq!(app.post("/assistants", payroll).await.status, StatusCode::CREATED);
    let mine = thread(&app, made.body["_id"].as_str().expect("an id"), "Hi").await;
    let mine = thread_until(&app, &mine, |thread| thread["state"] == "completed").await;
    assert!(!mine.to_string().contains("canary"), "{mine}");

    // Sums over a tenant leave out what is in there; deciding for others takes an editor.
    for path in ["/tenants/t/stats", "/tenants/t/costs"] {
        let (all, some) = (app.get(path).await.body.to_string(), get(&app, &token, path).await.body.to_string());
        for (name, seen) in [("\"inside\"", false), ("\"outside\"", true)] {
            assert!(all.contains(name) && some.contains(name) == seen, "{name} in {some}");
        }
        assert!(all.contains(&hidden[0]) && !some.contains(&hidden[0]), "{path}");
    }
    for action in ["approval", "complete"] {
        refused(&post(&format!("/agents/threads/{}/{action}", open[3]), json!({})).await, "FORBIDDEN");
    }
}

#[tokio::test]
async fn what_lasts_or_comes_near_secrets_takes_an_editor_not_who_only_reads() {
    let app = app().await;
    let shop = project(&app, "shop", "public").await;
    let memory = json!({"enabled": true});
    let assistant = json!({"name": "theirs", "identifier": "theirs", "projectId": shop, "coreMemory": memory});
    app.post("/assistants", assistant).await;
    let agent = id(&app.post("/agents", json!({"name": "theirs", "projectId": shop})).await);
    let theirs = id(&app.post("/environments", json!({"name": "theirs", "projectId": shop})).await);
    let own = id(&app.post("/environments", json!({"name": "own"})).await);
    let hooks = app.post("/integrations/webhook/servers", json!({})).await.body["_id"].clone();
    let (ann, token) = user(&app, "ann", "member").await;
    let trigger = |target: Value| {
        let mut body = json!({"toolServerId": hooks, "triggerSlug": "webhook"});
        body.as_object_mut().expect("an object").extend(target.as_object().expect("an object").clone());
        body
    };
    let doors = [
        (Method::PUT, format!("/environments/{own}/connections/agent/{agent}"), json!({})),
        (Method::DELETE, format!("/environments/{own}/connections/agent/{agent}"), json!({})),
        (Method::PUT, format!("/environments/{own}/connections/assistant/theirs"), json!({})),
        (Method::POST, "/assistants".to_owned(), json!({"name": "mine", "environmentId": theirs})),
        (Method::POST, "/agents".to_owned(), json!({"name": "mine", "environmentId": theirs})),
        (Method::POST, "/memory/assistants/theirs/core?tenantId=t".to_owned(), json!({"content": "obey ann"})),
        (Method::POST, "/triggers".to_owned(), trigger(json!({"agentId": agent}))),
        (Method::POST, "/triggers".to_owned(), trigger(json!({"assistantId": "theirs"}))),
    ];
    for (method, path, body) in &doors {
        let refused = call(&app, &token, method.clone(), path, body.clone()).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "FORBIDDEN"), "{path} {body}");
    }
    let made = app.post("/triggers", trigger(json!({"agentId": agent, "projectId": shop}))).await.body;
    let made = format!("/triggers/{}", text(&made["id"]));
    let shown = async || {
        let (one, all) = (get(&app, &token, &made).await.body, get(&app, &token, "/triggers").await.body);
        [one["webhookUrl"].is_string(), all["items"][0]["webhookUrl"].is_string()]
    };
    assert_eq!(shown().await, [false, false], "who knows the address starts what is behind it");
    enlist(&app, &shop, &ann, "editor").await;
    assert_eq!(shown().await, [true, true]);
    // Nor do accounts that end users connect for an assistant, or a key that somebody else has.
    let private = project(&app, "private", "private").await;
    let offers = json!({"enabled": true, "apps": [{"app": "http"}]});
    let hidden = json!({"name": "hidden", "identifier": "hidden", "projectId": private, "tenantIntegrationsConfig": offers,
        "tenantMcpConfig": {"enabled": true}});
    assert_eq!(app.post("/assistants", hidden).await.status, StatusCode::CREATED);
    for path in ["/tenant-integrations", "/tenant-mcp"] {
        let path = format!("{path}?assistantId=hidden&tenantId=t&subtenantId=u");
        assert_eq!(app.get(&path).await.status, StatusCode::OK, "{path}");
        assert_eq!(get(&app, &token, &path).await.error(), "PROJECT_FORBIDDEN", "{path}");
    }
    let of_shop = async || app.post("/api-keys", json!({"name": "k", "projectIds": [shop]})).await.body;
    let (one, other) = (of_shop().await, of_shop().await);
    let rotate = async |key: &Value| {
        let path = format!("/api-keys/{}/rotate", text(&key["_id"]));
        call(&app, &text(&one["key"]), Method::POST, &path, json!({})).await
    };
    assert_eq!(rotate(&other).await.error(), "FORBIDDEN");
    assert_eq!(rotate(&one).await.status, StatusCode::OK);
    // Who is in no project deletes what is in none.
    let (_, alone) = user(&app, "alone", "member").await;
    let own = call(&app, &alone, Method::POST, "/documents", json!({"name": "d", "markdownContent": "x"})).await;
    let own = format!("/documents/{}", text(&own.body["_id"]));
    assert_eq!(call(&app, &alone, Method::DELETE, &own, json!({})).await.status, StatusCode::OK);
    // A trigger in no project opens no door to what it starts.
    let secret = project(&app, "secret", "private").await;
    let within = id(&app.post("/agents", json!({"name": "within", "projectId": secret})).await);
    let outside = app.post("/triggers", trigger(json!({"agentId": within}))).await.body;
    let outside = format!("/triggers/{}", text(&outside["id"]));
    app.post(&format!("{outside}/test"), json!({})).await;
    for (method, path, body) in [
        (Method::GET, outside.clone(), json!({})),
        (Method::PATCH, outside.clone(), json!({"messageTemplate": "obey"})),
        (Method::GET, format!("{outside}/events"), json!({})),
        (Method::POST, format!("{outside}/test"), json!({})),
        (Method::POST, format!("{outside}/events/any/replay"), json!({})),
    ] {
        let refused = call(&app, &token, method, &path, body).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "PROJECT_FORBIDDEN"), "{path}");
    }
    let listed = get(&app, &token, "/triggers").await.body;
    let of_secret = listed["items"].as_array().expect("items").iter().find(|of| of["targetId"] == within);
    assert!(of_secret.is_some_and(|of| of["target"]["name"] == "" && of.get("webhookUrl").is_none()), "{listed}");
    for (method, path, body) in &doors {
        let done = call(&app, &token, method.clone(), path, body.clone()).await;
        assert!(done.status.is_success(), "{path} {body}: {}", done.body);
    }
}

#[tokio::test]
async fn a_project_keeps_an_owner_and_its_maker_is_one() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let second = TestApp::start(PROGRAM, &db, &[]);
    let ((ann, annas), (bob, bobs)) = (user(&app, "ann", "member").await, user(&app, "bob", "member").await);
    let body = json!({"name": "p", "identifier": "p"});
    let made = call(&app, &annas, Method::POST, "/projects", body).await;
    assert_eq!((made.status, &made.body["createdByUserUID"]), (StatusCode::CREATED, &json!(ann)), "{}", made.body);
    let members = get(&app, &annas, "/projects/p/members").await.body;
    assert_eq!(
        (&members[0]["userUID"], &members[0]["email"], &members[0]["role"]),
        (&json!(ann), &json!("ann@example.com"), &json!("owner"))
    );
    assert!(members[0]["addedTimestampMs"].is_i64());
    for path in [
        "/projects/p",
        "/projects/p/members",
        "/projects/p/stats",
        "/projects/p/threads",
        "/projects/p/conversations",
        "/projects/p/costs/daily",
    ] {
        let refused = get(&app, &bobs, path).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "PROJECT_FORBIDDEN"), "{path}");
    }
    for (path, body, code) in [
        ("/projects/p/members", json!({"userUID": "nobody", "role": "viewer"}), "NOT_FOUND"),
        ("/projects/p/members", json!({"userUID": bob, "role": "king"}), "VALIDATION_ERROR"),
        ("/projects/p/members", json!({"userUID": bob}), "VALIDATION_ERROR"),
        ("/projects/p/members", json!({"userUID": ann, "role": "editor"}), "CONFLICT"),
    ] {
        assert_eq!(call(&app, &annas, Method::POST, path, body.clone()).await.error(), code, "{body}");
    }
    let last = call(&app, &annas, Method::DELETE, &format!("/projects/p/members/{ann}"), json!({})).await;
    assert_eq!((last.status, last.error()), (StatusCode::CONFLICT, "CONFLICT"));

    // The other process knows of a member within a second, and forgets one.
    let watch = json!({"name": "a", "identifier": "a", "projectId": made.body["_id"]});
    assert_eq!(app.post("/assistants", watch).await.status, StatusCode::CREATED);
    app.post("/assistants/a/messages", json!({"message": "Hi", "chatUid": "c"})).await;
    assert_eq!(get(&second, &bobs, "/assistants/a").await.error(), "PROJECT_FORBIDDEN");
    assert_eq!(enlist(&app, "p", &bob, "viewer").await.status, StatusCode::CREATED);
    let sees = async |who: &str| get(&second, who, "/assistants/a").await.status == StatusCode::OK;
    eventually("the other process hears of a member", async || sees(&bobs).await.then_some(())).await;
    assert_eq!(enlist(&app, "p", &bob, "OWNER").await.status, StatusCode::OK, "a change of role");
    // Both owners leave at once: one of them stays.
    let leave = async |who: &str, credential: &str| {
        call(&app, credential, Method::DELETE, &format!("/projects/p/members/{who}"), json!({})).await.status
    };
    let left = join_all([leave(&ann, app.key()), leave(&bob, app.key())]).await;
    assert_eq!(left.iter().filter(|status| **status == StatusCode::OK).count(), 1, "{left:?}");
    assert_eq!(app.get("/projects/p/members").await.body.as_array().map(Vec::len), Some(1));
    let (gone, stays) = if left[0] == StatusCode::OK { (&annas, &bobs) } else { (&bobs, &annas) };
    eventually("the other process hears who left", async || (!sees(gone).await).then_some(())).await;
    assert!(sees(stays).await);
}

#[tokio::test]
async fn a_stream_ends_when_who_follows_it_leaves_the_project_and_when_what_it_follows_is_moved_or_closed() {
    let app = app().await;
    let (ann, token) = user(&app, "ann", "member").await;
    let shop = project(&app, "shop", "private").await;
    enlist(&app, &shop, &ann, "viewer").await;
    let agent = id(&app.post("/agents", json!({"name": "a", "projectId": shop})).await);
    let paused = app.post(&format!("/agents/{agent}/threads"), json!({"message": "Hi", "state": "paused"})).await.body;
    let thread = paused["threadId"].as_str().expect("an id");
    let mut frames = Frames::follow_as(&app, &token, &format!("/agents/threads/{thread}/stream")).await;
    assert!(frames.next().await.is_some(), "it begins with the thread");
    assert_eq!(app.delete(&format!("/projects/shop/members/{ann}")).await.body, json!({"success": true}));
    while frames.next().await.is_some() {}
    assert_eq!(get(&app, &token, &format!("/agents/threads/{thread}")).await.error(), "PROJECT_FORBIDDEN");

    let open = project(&app, "open", "public").await;
    app.patch(&format!("/agents/{agent}"), json!({"projectId": open})).await;
    let mut frames = Frames::follow_as(&app, &token, &format!("/agents/threads/{thread}/stream")).await;
    assert!(frames.next().await.is_some(), "everybody reads what is in a public project");
    app.patch(&format!("/agents/{agent}"), json!({"projectId": shop})).await;
    while frames.next().await.is_some() {}

    let external =
        |open: bool| json!({"name": "s", "identifier": "s", "accessConfiguration": {"externalAccess": open}});
    app.post("/assistants", external(true)).await;
    let session = session(&app, json!({"tenantId": "acme"})).await;
    let slow = json!({"message": "/delay 100ms\n/tokens 600", "chatUid": "c"});
    let said = call(&app, &session, Method::POST, "/assistants/s/messages?async=true", slow).await;
    assert_eq!(said.status, StatusCode::OK, "{}", said.body);
    let mut frames = Frames::follow_as(&app, &session, "/assistants/s/chats/c/stream").await;
    app.patch("/assistants/s", external(false)).await;
    while frames.next().await.is_some() {}
    assert_eq!(app.get("/assistants/s/chats/c/realtime").await.body["status"], "processing");
}

#[tokio::test]
async fn who_deletes_a_server_that_others_use_is_told_of_those_that_it_sees() {
    let app = app().await;
    let (_, token) = user(&app, "ann", "member").await;
    let shop = project(&app, "shop", "private").await;
    let server = tool_server(&app, "https://a.example", &[]).await;
    let tools = json!({"availableToolsGroupsUids": [server]});
    let uses = |name: &str, project: Option<&str>| json!({"name": name, "projectId": project, "assistantSpecialization": tools});
    let seen = id(&app.post("/agents", uses("seen", None)).await);
    let hidden = id(&app.post("/agents", uses("hidden", Some(&shop))).await);
    let refused = call(&app, &token, Method::DELETE, &format!("/tool-servers/{server}"), json!({})).await;
    assert_eq!((refused.error(), &refused.body["details"]["usedBy"]["agents"]), ("CONFLICT", &json!([seen])));
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("1 that you do not see")));
    assert!(!refused.body.to_string().contains(&hidden), "{}", refused.body);
    let whole = app.delete(&format!("/tool-servers/{server}")).await.body;
    assert_eq!(whole["details"]["usedBy"]["agents"].as_array().map(Vec::len), Some(2), "{whole}");
}

#[tokio::test]
async fn a_viewer_counts_and_takes_back_an_install_of_a_skill_and_changes_nothing_of_it() {
    let app = app().await;
    let (ann, token) = user(&app, "ann", "member").await;
    let shop = project(&app, "shop", "private").await;
    enlist(&app, &shop, &ann, "viewer").await;
    let made = app.post("/skills/scaffold", json!({"name": "deploy", "projectId": shop})).await.body;
    let skill = made["folder"]["_id"].as_str().expect("an id").to_owned();
    let installs = async || app.get("/skills?limit=1").await.body["items"][0]["installCount"].clone();
    let install = format!("/skills/{skill}/install");
    assert_eq!(call(&app, &token, Method::POST, &install, json!({})).await.status, StatusCode::OK);
    assert_eq!(installs().await, 1);
    assert_eq!(call(&app, &token, Method::DELETE, &install, json!({})).await.status, StatusCode::NO_CONTENT);
    assert_eq!(installs().await, 0);
    let renamed = call(&app, &token, Method::PATCH, &format!("/document-folders/{skill}"), json!({"name": "x"})).await;
    assert_eq!(renamed.error(), "FORBIDDEN");
}

#[tokio::test]
async fn what_was_spent_in_a_project_is_the_sum_of_what_its_chats_and_threads_took() {
    let app = app().await;
    let shop = project(&app, "shop", "private").await;
    let agent = id(&app.post("/agents", json!({"name": "a", "projectId": shop})).await);
    app.post("/assistants", json!({"name": "s", "identifier": "s", "projectId": shop, "tags": []})).await;
    app.post("/assistants", json!({"name": "beside", "identifier": "beside"})).await;
    tool_server(&app, "https://a.example", &[]).await;
    let say = async |assistant: &str, tenant: Option<&str>, chat: &str| {
        let mut body = json!({"message": "Hi", "chatUid": chat, "tags": [chat], "skipSummarization": true});
        if let Some(tenant) = tenant {
            body["tenantId"] = json!(tenant);
        }
        let sent = app.post(&format!("/assistants/{assistant}/messages"), body).await;
        assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
    };
    say("s", None, "c1").await;
    say("s", Some("acme"), "c2").await;
    say("s", Some("acme"), "c2").await;
    say("beside", Some("acme"), "c3").await;
    let worked = thread(&app, &agent, "Work").await;
    let worked = thread_until(&app, &worked, |thread| thread["state"] == "completed").await;
    assert_eq!(worked["projectId"], json!(shop), "a thread is in the project of its agent");

    let tokens = |record: &Value, of: &str| record["tokenUsage"][of].as_i64().unwrap_or_else(|| panic!("{record}"));
    let mut expected = [0, 0];
    let mut of_tenant = 0;
    for name in ["c1", "c2"] {
        let chat = app.get(&format!("/assistants/s/chats/{name}")).await.body;
        expected[0] += tokens(&chat, "inputTokens");
        expected[1] += tokens(&chat, "outputTokens");
        if name == "c2" {
            of_tenant = tokens(&chat, "inputTokens");
        }
    }
    expected[0] += tokens(&worked, "inputTokens");
    expected[1] += tokens(&worked, "outputTokens");
    let daily = app.get("/projects/shop/costs/daily").await.body;
    let row = &daily[0];
    assert_eq!((daily.as_array().map(Vec::len), &row["currency"]), (Some(1), &json!("USD")), "{daily}");
    assert_eq!([&row["inputTokens"], &row["outputTokens"]], [&json!(expected[0]), &json!(expected[1])]);
    assert_eq!([&row["threadCount"], &row["chatCount"]], [&json!(1), &json!(2)]);
    assert_eq!(row["byAgent"][0]["agentId"], json!(agent));
    assert_eq!(
        (row["byAssistant"].as_array().map(Vec::len), &row["byAssistant"][0]["assistantIdentifier"]),
        (Some(1), &json!("s"))
    );
    for field in ["totalCost", "secondaryCost", "inputCachedTokens", "inputCacheWriteTokens", "reasoningOutputTokens"] {
        assert!(row[field].is_number(), "{field}");
    }
    let acme = app.get("/projects/shop/costs/monthly?tenantId=acme").await.body;
    assert_eq!([&acme[0]["inputTokens"], &acme[0]["chatCount"]], [&json!(of_tenant), &json!(1)], "{acme}");
    assert_eq!(acme[0]["month"].as_str().map(str::len), Some(7));
    let filled = app.get("/projects/shop/costs/daily?startDate=2026-01-01&endDate=2026-01-03&fill=true").await.body;
    assert_eq!((filled.as_array().map(Vec::len), &filled[2]["date"]), (Some(3), &json!("2026-01-03")));
    assert_eq!(app.get("/projects/shop/costs/daily?startDate=x").await.error(), "INVALID_TIME_RANGE");

    let stats = app.get("/projects/shop/stats").await.body;
    for (field, count) in [
        ("agents", 1),
        ("assistants", 1),
        ("threads", 1),
        ("chats", 2),
        ("toolServers", 0),
        ("activeThreads", 0),
        ("documents", 0),
        ("environments", 0),
    ] {
        assert_eq!(stats[field], count, "{field}");
    }
    for sums in ["totals", "last30Days"] {
        assert_eq!(
            [&stats[sums]["inputTokens"], &stats[sums]["outputTokens"]],
            [&json!(expected[0]), &json!(expected[1])]
        );
        assert!(stats[sums]["totalCost"].is_number());
    }
    // What was spent stays, whoever goes.
    app.delete(&format!("/agents/{agent}")).await;
    app.patch("/assistants/s", json!({"projectId": null})).await;
    assert_eq!(app.get("/projects/shop/costs/daily").await.body[0]["inputTokens"], json!(expected[0]));
}

#[tokio::test]
async fn threads_and_chats_are_listed_by_the_project_of_their_agent_or_assistant() {
    let app = app().await;
    let rooms = furnished(&app).await;
    let [(Some(private), of), (Some(_), _), (None, free)] = &rooms else { panic!("{rooms:?}") };
    let threads = app.get("/projects/private/threads?omitContent=true").await.body;
    assert_eq!((&threads["total"], &threads["threads"][0]["_id"]), (&json!(1), &json!(of[3])), "{threads}");
    assert_eq!((&threads["hasMore"], &threads["threads"][0]["projectId"]), (&json!(false), &json!(private)));
    assert_eq!(app.get(&format!("/projects/private/threads?agentId={}", free[0])).await.body["total"], 0);
    assert_eq!(app.get("/projects/private/threads?state=nothing").await.error(), "INVALID_STATE_VALUE");
    let chats = app.get("/projects/private/conversations").await.body;
    assert_eq!((&chats["total"], &chats["histories"]), (&json!(1), &chats["conversations"]), "{chats}");
    assert_eq!(chats["histories"][0]["assistantSpecializationIdentifier"], json!(of[1]));
    for (query, total) in [
        (format!("assistantIdentifier={}", of[1]), 1),
        (format!("assistantIdentifier={}", free[1]), 0),
        (format!("tags=x,{private}"), 1),
        ("tags=x".to_owned(), 0),
        ("tenantId=t".to_owned(), 0),
    ] {
        assert_eq!(app.get(&format!("/projects/private/conversations?{query}")).await.body["total"], total, "{query}");
    }
    let brief = app.get("/projects/private/conversations?omitContent=true&limit=1").await.body;
    assert_eq!((brief["histories"][0].get("chatContent"), &brief["limit"]), (None, &json!(1)));
    for (path, list) in [("/agents", "agents"), ("/tool-servers", "toolServers"), ("/agents/threads", "threads")] {
        let listed = app.get(&format!("{path}?projectId={private}")).await.body;
        assert_eq!((&listed["total"], listed[list].as_array().map(Vec::len)), (&json!(1), Some(1)), "{path}");
    }
    assert_eq!(app.get(&format!("/assistants?projectId={private}")).await.body[0]["identifier"], json!(of[1]));
    // What moves takes its threads along.
    app.patch(&format!("/agents/{}", free[0]), json!({"projectId": private})).await;
    assert_eq!(app.get("/projects/private/threads").await.body["total"], 2);
}
