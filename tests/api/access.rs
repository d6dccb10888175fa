//! Which credential opens what (contract 01).

use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Frames, PROGRAM, agent, app, text, thread};

/// Makes an API key; its id and value.
pub async fn key(app: &TestApp, settings: Value) -> (String, String) {
    let mut all = json!({"name": "k"});
    settings.as_object().expect("an object").iter().for_each(|(name, value)| all[name] = value.clone());
    let made = app.post("/api-keys", all).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    (text(&made.body["_id"]), text(&made.body["key"]))
}

/// Mints a session with the first key; its token.
pub async fn session(app: &TestApp, body: Value) -> String {
    let minted = app.post("/tenant-sessions", body).await;
    assert_eq!(minted.status, StatusCode::CREATED, "{}", minted.body);
    text(&minted.body["token"])
}

/// A request with any credential.
pub async fn call(app: &TestApp, credential: &str, method: Method, path: &str, body: Option<Value>) -> Reply {
    let request = app.anonymous(method, &format!("/v1{path}")).bearer_auth(credential);
    app.send(match body {
        Some(body) => request.json(&body),
        None => request,
    })
    .await
}

pub async fn get(app: &TestApp, credential: &str, path: &str) -> Reply {
    call(app, credential, Method::GET, path, None).await
}

pub async fn post(app: &TestApp, credential: &str, path: &str, body: Value) -> Reply {
    call(app, credential, Method::POST, path, Some(body)).await
}

#[tokio::test]
async fn a_key_reaches_what_its_lists_permit_and_nothing_else() {
    let app = app().await;
    let endpoints = json!([{"method": "get", "path": "/assistants/*"}, {"method": "*", "path": "/tool-servers/**"},
        {"method": "GET", "path": "/api-keys"}, {"method": "GET", "path": "/documents/skills"}]);
    let (id, listed) = key(&app, json!({"allowedEndpoints": endpoints})).await;
    let read = app.get(&format!("/api-keys/{id}")).await.body;
    assert_eq!((&read["kind"], &read["allowedEndpoints"][0]["method"]), (&json!("restricted"), &json!("GET")));
    assert_eq!(get(&app, &listed, "/assistants/default").await.status, StatusCode::OK);
    assert_eq!(get(&app, &listed, "/tool-servers").await.status, StatusCode::OK);
    let aliased = app.anonymous(Method::GET, "/api/v1/assistants/default").bearer_auth(&listed);
    assert_eq!(app.send(aliased).await.status, StatusCode::OK, "lists know no mount");
    for path in ["/documents/skills", "/skills"] {
        assert_eq!(get(&app, &listed, path).await.status, StatusCode::OK, "{path}: both places of a route are one");
    }
    for path in ["/assistants", "/models", "/assistants/default/chats", "/skills/tags"] {
        let refused = get(&app, &listed, path).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "KEY_ENDPOINT_FORBIDDEN"), "{path}");
    }
    assert_eq!(get(&app, &listed, "/api-keys").await.error(), "FULL_KEY_REQUIRED", "whatever its lists say");
    let all = json!([{"method": "*", "path": "/documents/**"}]);
    let (_, documents) = key(&app, json!({"allowedEndpoints": all})).await;
    assert_eq!(get(&app, &documents, "/documents").await.status, StatusCode::OK);
    for path in ["/documents/skills", "/skills"] {
        assert_eq!(get(&app, &documents, path).await.error(), "KEY_ENDPOINT_FORBIDDEN", "{path} is no document");
    }
    assert_eq!(get(&app, &listed, "/nothing").await.error(), "NOT_FOUND", "the path comes first");

    let (_, ui) = key(&app, json!({"preset": "UI"})).await;
    assert_eq!(get(&app, &ui, "/assistants").await.status, StatusCode::OK);
    assert_eq!(get(&app, &ui, "/agents").await.error(), "KEY_ENDPOINT_FORBIDDEN");

    let (_, page) = key(&app, json!({"allowedDomains": ["*.example.com", "localhost:3000"]})).await;
    let from = async |header: &str, origin: &str| {
        let request = app.anonymous(Method::GET, "/v1/models").bearer_auth(&page).header(header, origin);
        app.send(request).await
    };
    let good = from("origin", "https://app.example.com").await;
    assert_eq!((good.status, good.header("access-control-allow-origin")), (StatusCode::OK, "https://app.example.com"));
    assert_eq!(good.header("access-control-allow-credentials"), "");
    assert_eq!(from("referer", "http://localhost:3000/page?x=1").await.status, StatusCode::OK);
    for origin in ["https://example.com", "https://example.com.evil.io", "null"] {
        let refused = from("origin", origin).await;
        assert_eq!((refused.error(), refused.header("access-control-allow-origin")), ("KEY_DOMAIN_FORBIDDEN", ""));
    }
    assert_eq!(get(&app, &page, "/models").await.error(), "KEY_DOMAIN_FORBIDDEN", "from nowhere");
    let admin = app.anonymous(Method::GET, "/v1/api-keys").bearer_auth(&page).header("origin", "https://a.example.com");
    assert_eq!(app.send(admin).await.error(), "FULL_KEY_REQUIRED");
    let full = app.request(Method::GET, "/models").header("origin", "https://a.example.com");
    assert_eq!(app.send(full).await.header("access-control-allow-origin"), "", "no browser should hold a full key");

    for (wrong, path) in [
        (json!({"allowedDomains": ["http://a.b"]}), "allowedDomains[0]"),
        (json!({"allowedEndpoints": [{"method": "FETCH", "path": "/a"}]}), "allowedEndpoints[0].method"),
        (json!({"allowedEndpoints": [{"method": "GET", "path": "/v1/agents"}]}), "allowedEndpoints[0].path"),
        (json!({"allowedEndpoints": [{"method": "GET", "path": "/a/**/b"}]}), "allowedEndpoints[0].path"),
        (json!({"preset": "everything"}), "preset"),
        (json!({"identityMode": "closed"}), "identityMode"),
    ] {
        let mut body = json!({"name": "k"});
        wrong.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        let refused = app.post("/api-keys", body).await;
        assert_eq!(
            (refused.status, &refused.body["details"]["issues"][0]["path"]),
            (StatusCode::BAD_REQUEST, &json!(path))
        );
    }
}

#[tokio::test]
async fn a_signed_key_only_mints_and_no_key_makes_a_wider_one() {
    let app = app().await;
    let (id, signed) = key(&app, json!({"identityMode": "signed", "allowedDomains": ["a.b"], "preset": "ui"})).await;
    let read = app.get(&format!("/api-keys/{id}")).await.body;
    assert_eq!((&read["kind"], &read["allowedDomains"], &read["preset"]), (&json!("full"), &json!([]), &Value::Null));
    for path in ["/models", "/api-keys"] {
        assert_eq!(get(&app, &signed, path).await.error(), "KEY_REQUIRES_SESSION");
    }
    let minted = post(&app, &signed, "/tenant-sessions", json!({"tenantId": "acme"})).await;
    assert_eq!((minted.status, &minted.body["expiresIn"]), (StatusCode::CREATED, &json!(3600)));
    assert_eq!((&minted.body["subtenantId"], &minted.body["tokenType"]), (&Value::Null, &json!("tenant-session")));
    let token = text(&minted.body["token"]);
    assert_eq!(get(&app, &token, "/assistants").await.status, StatusCode::OK);
    assert_eq!(post(&app, &token, "/tenant-sessions", json!({"tenantId": "a"})).await.error(), "SESSION_CANNOT_MINT");
    let (_, page) = key(&app, json!({"allowedDomains": ["a.b"]})).await;
    assert_eq!(post(&app, &page, "/tenant-sessions", json!({"tenantId": "a"})).await.error(), "BROWSER_MINT_FORBIDDEN");
    let browser = app.request(Method::POST, "/tenant-sessions").header("origin", "https://a.b");
    assert_eq!(app.send(browser.json(&json!({"tenantId": "a"}))).await.error(), "BROWSER_MINT_FORBIDDEN");
    for (body, code) in [
        (json!({}), "TENANT_ID_REQUIRED"),
        (json!({"tenantId": "a", "ttlSeconds": "60"}), "INVALID_TTL"),
        (json!({"tenantId": "a/b"}), "VALIDATION_ERROR"),
        (json!({"tenantId": "tiers"}), "VALIDATION_ERROR"),
        (json!({"tenantId": "a", "assistantIds": ["nobody"]}), "ASSISTANT_NOT_FOUND"),
        (json!({"assistantIds": ["nobody"]}), "TENANT_ID_REQUIRED"),
        (json!({"tenantId": "a", "assistantIds": vec!["default"; 51]}), "VALIDATION_ERROR"),
        (json!({"tenantId": "a", "metadata": {"x": "y".repeat(100_000)}}), "VALIDATION_ERROR"),
    ] {
        assert_eq!(app.post("/tenant-sessions", body).await.error(), code);
    }
    let noted = json!({"tenantId": "a", "metadata": {"subtenantMetadata": {"id": "u7", "name": "Ann"}}});
    assert_eq!(app.post("/tenant-sessions", noted).await.body["subtenantId"], "u7");
    assert_eq!(app.get("/tenants/a/subtenants/u7").await.body["displayName"], "Ann");
    for (given, seconds) in [(1.0, 60), (90.9, 90), (1e9, 43_200)] {
        let minted = app.post("/tenant-sessions", json!({"tenantId": "a", "ttlSeconds": given})).await;
        assert_eq!(minted.body["expiresIn"], seconds);
    }

    let [p1, p2] = ["p1", "p2"].map(|name| app.post("/projects", json!({"name": name, "identifier": name})));
    let [p1, p2] = [text(&p1.await.body["_id"]), text(&p2.await.body["_id"])];
    for unknown in [json!(["nothing"]), json!([p1, "p2"])] {
        let refused = app.post("/api-keys", json!({"name": "x", "projectIds": unknown})).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::NOT_FOUND, "PROJECT_NOT_FOUND"));
        assert_eq!(
            app.patch(&format!("/api-keys/{id}"), json!({"projectIds": unknown})).await.error(),
            "PROJECT_NOT_FOUND"
        );
    }
    let (narrow_id, narrow) = key(&app, json!({"projectIds": [p1]})).await;
    let wider = post(&app, &narrow, "/api-keys", json!({"name": "x"})).await;
    assert_eq!((wider.status, wider.error()), (StatusCode::FORBIDDEN, "FORBIDDEN"));
    assert_eq!(
        post(&app, &narrow, "/api-keys", json!({"name": "x", "projectIds": [p1, p2]})).await.error(),
        "FORBIDDEN"
    );
    let own = post(&app, &narrow, "/api-keys", json!({"name": "x", "projectIds": [p1]})).await;
    assert_eq!(own.status, StatusCode::CREATED);
    let own = format!("/api-keys/{}", text(&own.body["_id"]));
    let widened = call(&app, &narrow, Method::PATCH, &own, Some(json!({"projectIds": null}))).await;
    assert_eq!(widened.error(), "FORBIDDEN");
    assert_eq!(post(&app, &narrow, &format!("/api-keys/{id}/rotate"), json!({})).await.error(), "FORBIDDEN");
    assert_eq!(call(&app, &narrow, Method::DELETE, &format!("/api-keys/{id}"), None).await.error(), "FORBIDDEN");
    let listed = get(&app, &narrow, "/api-keys").await.body;
    assert_eq!((&listed["total"], listed["items"][1]["_id"] == narrow_id), (&json!(2), true), "{listed}");
    assert_eq!(get(&app, &narrow, "/tenant-sessions").await.error(), "FULL_KEY_REQUIRED", "it stands for the account");

    // A key that is bound to something is no replacement for the last one that is not.
    let first =
        text(&app.get("/api-keys?limit=100").await.body["items"].as_array().expect("keys").last().expect("one")["_id"]);
    for narrowed in [
        json!({"preset": "ui"}),
        json!({"identityMode": "signed"}),
        json!({"projectIds": []}),
        json!({"disabled": true}),
        json!({"expiresAtMs": 1}),
    ] {
        assert_eq!(app.patch(&format!("/api-keys/{first}"), narrowed).await.error(), "CONFLICT");
    }
    assert_eq!(app.delete(&format!("/api-keys/{first}")).await.error(), "CONFLICT");
}

#[tokio::test]
async fn a_session_reaches_its_surface_and_what_is_of_its_tenant() {
    let app = app().await;
    let open = json!({"name": "Open", "identifier": "open", "accessConfiguration": {"externalAccess": true}});
    for assistant in [open, json!({"name": "Inner", "identifier": "inner"})] {
        assert_eq!(app.post("/assistants", assistant).await.status, StatusCode::CREATED);
    }
    let also = json!({"name": "Also", "identifier": "also", "accessConfiguration": {"externalAccess": true}});
    assert_eq!(app.post("/assistants", also).await.status, StatusCode::CREATED);
    let acme = session(&app, json!({"tenantId": "acme"})).await;
    let user = session(&app, json!({"tenantId": "acme", "subtenantId": "u1"})).await;
    let other = session(&app, json!({"tenantId": "other"})).await;
    let limited = session(&app, json!({"tenantId": "acme", "assistantIds": ["open"]})).await;

    for path in ["/agents", "/api-keys", "/models", "/tool-servers", "/tenant-sessions", "/agents/threads"] {
        let refused = get(&app, &acme, path).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "SESSION_ROUTE_FORBIDDEN"), "{path}");
    }
    let names = async |session: &str| {
        let listed = get(&app, session, "/assistants").await.body;
        listed.as_array().expect("a list").iter().map(|a| text(&a["identifier"])).collect::<Vec<_>>()
    };
    assert_eq!(names(&acme).await, ["also", "open"]);
    assert_eq!(names(&limited).await, ["open"]);
    assert_eq!(get(&app, &acme, "/assistants/inner").await.error(), "ASSISTANT_NOT_FOUND");
    assert_eq!(get(&app, &acme, "/assistants/default").await.error(), "ASSISTANT_NOT_FOUND");
    assert_eq!(get(&app, &limited, "/assistants/also").await.error(), "FORBIDDEN");
    for any in ["open", "default", "nobody"] {
        let asked = get(&app, &acme, &format!("/assistants/{any}?includePresets=true")).await;
        assert_eq!(asked.error(), "PRESETS_FORBIDDEN", "{any}: {}", asked.body);
    }

    let say = async |session: &str, assistant: &str, body: Value| {
        post(&app, session, &format!("/assistants/{assistant}/messages"), body).await
    };
    let said = say(&user, "open", json!({"message": "Hi", "chatUid": "c1", "tags": ["mine"]})).await;
    assert_eq!(said.status, StatusCode::OK, "{}", said.body);
    let chat = app.get("/assistants/open/chats/c1").await.body;
    assert_eq!(
        (&chat["tenantId"], &chat["subtenantId"], &chat["userUID"]),
        (&json!("acme"), &json!("u1"), &json!("tenant:acme:u1"))
    );
    assert_eq!(say(&other, "open", json!({"message": "Hi", "chatUid": "c2"})).await.status, StatusCode::OK);
    assert_eq!(
        app.post("/assistants/open/messages", json!({"message": "Hi", "chatUid": "c3"})).await.status,
        StatusCode::OK
    );
    for (session, body, code) in [
        (&other, json!({"message": "Hi", "tenantId": "acme"}), "TENANT_MISMATCH"),
        (&user, json!({"message": "Hi", "subtenantId": "u2"}), "TENANT_MISMATCH"),
        (&other, json!({"message": "Hi", "chatUid": "c1"}), "NOT_OWNER"),
        (&user, json!({"message": "Hi", "chatUid": "c3"}), "NOT_OWNER"),
    ] {
        let refused = say(session, "open", body).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, code));
    }
    assert_eq!(say(&limited, "also", json!({"message": "Hi"})).await.error(), "FORBIDDEN");
    assert_eq!(say(&acme, "inner", json!({"message": "Hi"})).await.error(), "ASSISTANT_NOT_FOUND");
    assert_eq!(
        say(&acme, "also", json!({"message": "Hi", "chatUid": "c4", "subtenantId": "u2"})).await.status,
        StatusCode::OK
    );

    for path in ["", "/realtime", "/stream", "/content", "/search?q=Hi", "/feedback"] {
        let of = |chat: &str| format!("/assistants/open/chats/{chat}{path}");
        assert_eq!(get(&app, &user, &of("c1")).await.status, StatusCode::OK, "{path}");
        assert_eq!(get(&app, &acme, &of("c1")).await.status, StatusCode::OK, "all of its tenant");
        for (session, chat) in [(&other, "c1"), (&user, "c2"), (&acme, "c3")] {
            assert_eq!(get(&app, session, &of(chat)).await.error(), "NOT_OWNER", "{path}");
        }
        assert!(
            ["CHAT_NOT_FOUND", "REALTIME_NOT_FOUND"].contains(&get(&app, &user, &of("c9")).await.error()),
            "{path}"
        );
    }
    for path in ["/stop", "/tool-response", "/feedback"] {
        let refused = post(&app, &other, &format!("/assistants/open/chats/c1{path}"), json!({})).await;
        assert_eq!(refused.error(), "NOT_OWNER", "{path}");
    }
    let chats = async |session: &str| {
        let listed = post(&app, session, "/assistants/chats", json!({})).await.body;
        listed["histories"].as_array().expect("chats").iter().map(|c| text(&c["chatUID"])).collect::<Vec<_>>()
    };
    assert_eq!(chats(&user).await, ["c1"]);
    assert_eq!(chats(&acme).await, ["c4", "c1"]);
    assert_eq!(chats(&limited).await, ["c1"]);
    assert_eq!(post(&app, &user, "/assistants/chats", json!({"tenantId": "other"})).await.error(), "TENANT_MISMATCH");
    assert_eq!(get(&app, &other, "/assistants/open/chats?tenantId=acme").await.error(), "TENANT_MISMATCH");
    assert_eq!(get(&app, &other, "/assistants/open/chats").await.body["total"], 1);
    assert_eq!(get(&app, &user, "/assistants/tags").await.body, json!(["mine"]));
    assert_eq!(get(&app, &other, "/assistants/tags").await.body, json!([]));
    let none = session(&app, json!({"tenantId": "acme", "assistantIds": ["also"]})).await;
    assert_eq!(get(&app, &none, "/assistants/tags").await.body, json!([]), "nor of assistants it is not for");
}

#[tokio::test]
async fn a_session_sees_of_agents_what_they_do_for_its_tenant() {
    let app = app().await;
    let acme = session(&app, json!({"tenantId": "acme"})).await;
    let user = session(&app, json!({"tenantId": "acme", "subtenantId": "u1"})).await;
    let other = session(&app, json!({"tenantId": "other"})).await;
    let agent_id = agent(&app, json!({"assistantSpecialization": {"presets": "secret"}})).await;
    let started = app.post(&format!("/agents/{agent_id}/threads"), json!({"message": "Hi", "tenantId": "acme"})).await;
    let of_acme = text(&started.body["threadId"]);
    let of_none = thread(&app, &agent_id, "Hi").await;
    let known = get(&app, &acme, &format!("/agents/{agent_id}")).await.body;
    let fields: Vec<&String> = known.as_object().expect("an agent").keys().collect();
    assert_eq!(fields, ["_id", "archived", "description", "disabled", "imgUrl", "name"]);
    assert_eq!(get(&app, &other, &format!("/agents/{agent_id}")).await.error(), "AGENT_NOT_FOUND");
    assert_eq!(get(&app, &user, &format!("/agents/{agent_id}")).await.body, known, "its tenant has a thread of it");
    for path in ["", "/search?q=Hi", "/stream", "/explain", "/feedback"] {
        let of = |thread: &str| format!("/agents/threads/{thread}{path}");
        assert_eq!(get(&app, &acme, &of(&of_acme)).await.status, StatusCode::OK, "{path}");
        for (session, thread) in [(&other, &of_acme), (&user, &of_acme), (&acme, &of_none)] {
            assert_eq!(get(&app, session, &of(thread)).await.error(), "NOT_OWNER", "{path}");
        }
        assert_eq!(get(&app, &acme, &of("nothing")).await.error(), "THREAD_NOT_FOUND");
    }
    assert_eq!(post(&app, &other, &format!("/agents/threads/{of_acme}/pause"), json!({})).await.error(), "NOT_OWNER");
}

#[tokio::test]
async fn what_was_revoked_ends_on_every_process_at_once_and_closes_its_streams() {
    let db = TestDb::new().await;
    let settings = [("PLATFORM_STREAMS_PER_SESSION", "2")];
    let (a, b) = (TestApp::start(PROGRAM, &db, &settings), TestApp::start(PROGRAM, &db, &settings));
    let open = json!({"name": "Open", "identifier": "open", "accessConfiguration": {"externalAccess": true}});
    assert_eq!(a.post("/assistants", open).await.status, StatusCode::CREATED);
    let (id, backend) = key(&a, json!({})).await;
    let mint = async |tenant: &str| {
        let minted = post(&a, &backend, "/tenant-sessions", json!({"tenantId": tenant, "subtenantId": "u"})).await;
        (text(&minted.body["sessionId"]), text(&minted.body["token"]))
    };
    let gone = async |credential: &str, code: &str| {
        let revoked = std::time::Instant::now();
        loop {
            let reply = get(&b, credential, "/assistants").await;
            if reply.status == StatusCode::UNAUTHORIZED {
                assert_eq!(reply.error(), code);
                break;
            }
            assert!(revoked.elapsed().as_secs_f64() < 1.0, "it still works elsewhere");
        }
    };
    let ((first, one), (_, two), (_, three)) = (mint("acme").await, mint("acme").await, mint("other").await);
    for token in [&one, &two, &three] {
        assert_eq!(get(&b, token, "/assistants").await.status, StatusCode::OK, "any process reads what one signed");
    }
    let slow = json!({"message": "/delay 50ms\n/tokens 200", "chatUid": "c1"});
    let said = post(&b, &one, "/assistants/open/messages?async=true", slow).await;
    assert_eq!(said.status, StatusCode::OK, "{}", said.body);
    let path = "/v1/assistants/open/chats/c1/stream";
    let mut streams = Vec::new();
    for _ in 0..2 {
        streams.push(b.anonymous(Method::GET, path).bearer_auth(&one).send().await.expect("a stream"));
    }
    assert_eq!(get(&b, &one, "/assistants/open/chats/c1/stream").await.error(), "TOO_MANY_STREAMS");

    let listed = a.get("/tenant-sessions?tenantId=acme").await.body;
    assert_eq!((&listed["total"], &listed["items"][1]["sessionId"]), (&json!(2), &json!(first)));
    assert_eq!(listed["items"][0]["apiKeyId"], json!(id));
    assert_eq!(a.delete(&format!("/tenant-sessions/{first}")).await.body["deletedId"], json!(first));
    let revoked = std::time::Instant::now();
    gone(&one, "TOKEN_REVOKED").await;
    for stream in streams {
        stream.text().await.expect("it ends");
    }
    assert!(revoked.elapsed().as_secs_f64() < 5.0, "streams end");
    assert_eq!(a.get("/tenant-sessions?tenantId=acme").await.body["total"], 1);
    let all = a.get("/tenant-sessions?tenantId=acme&active=false").await.body;
    assert!(all["items"][1]["revokedTimestampMs"].is_i64(), "{all}");
    assert_eq!(a.delete("/tenant-sessions/nothing").await.error(), "SESSION_NOT_FOUND");
    assert_eq!(a.delete("/tenant-sessions").await.error(), "TENANT_ID_REQUIRED");
    assert_eq!(a.delete("/tenant-sessions?tenantId=acme").await.body, json!({"success": true, "revoked": 1}));
    gone(&two, "TOKEN_REVOKED").await;
    assert_eq!(get(&b, &three, "/assistants").await.status, StatusCode::OK, "another tenant's");
    a.delete(&format!("/api-keys/{id}")).await;
    gone(&three, "TOKEN_REVOKED").await;
    gone(&backend, "UNAUTHENTICATED").await;
    let frames = Frames::open_of(&a, "open", "c1", true);
    assert!(frames.await.next().await.is_some(), "the turn itself goes on");
}

#[tokio::test]
async fn a_stream_ends_when_its_key_opens_it_no_longer() {
    let app = app().await;
    let lists = json!({"allowedEndpoints": [{"method": "*", "path": "/assistants/**"}]});
    let (id, restricted) = key(&app, lists).await;
    let slow = json!({"message": "/delay 100ms\n/tokens 600", "chatUid": "c1"});
    let said = post(&app, &restricted, "/assistants/default/messages?async=true", slow).await;
    assert_eq!(said.status, StatusCode::OK, "{}", said.body);
    let stream = app.anonymous(Method::GET, "/v1/assistants/default/chats/c1/stream").bearer_auth(&restricted);
    let stream = stream.send().await.expect("a stream");
    let narrowed = json!({"allowedEndpoints": [{"method": "GET", "path": "/models"}]});
    assert_eq!(app.patch(&format!("/api-keys/{id}"), narrowed).await.status, StatusCode::OK);
    let since = std::time::Instant::now();
    stream.text().await.expect("it ends");
    assert!(since.elapsed().as_secs_f64() < 20.0, "long before the reply does");
    assert_eq!(app.get("/assistants/default/chats/c1/realtime").await.body["status"], "processing");
}
