//! `/v1/memory`: what assistants remember of those they talk to.

use std::sync::atomic::{AtomicU32, Ordering};

use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;
use platform_testing::{TestApp, TestDb};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    access::session,
    support::{PROGRAM, app, app_with, app_with_model, app_with_model_on, eventually, factor, finished_of, text},
};

/// An assistant that remembers; `memory` lays fields over its settings of memory.
pub async fn assistant(app: &TestApp, name: &str, memory: Value) -> String {
    let mut settings = json!({"enabled": true});
    settings.as_object_mut().expect("an object").extend(memory.as_object().expect("an object").clone());
    let made = json!({"name": name, "identifier": name, "coreMemory": settings,
        "accessConfiguration": {"externalAccess": true}});
    let made = app.post("/assistants", made).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    text(&made.body["_id"])
}

/// An id for a chat.
fn new_chat() -> String {
    static CHATS: AtomicU32 = AtomicU32::new(0);
    format!("chat-{}", CHATS.fetch_add(1, Ordering::Relaxed))
}

/// The chat that a message of somebody begins, once it is answered.
pub async fn tell(app: &TestApp, assistant: &str, who: &Value, message: &str) -> Value {
    let mut body = json!({"message": message, "skipSummarization": true, "chatUid": new_chat()});
    body.as_object_mut().expect("an object").extend(who.as_object().expect("an object").clone());
    let chat = text(&body["chatUid"]);
    let told = app.post(&format!("/assistants/{assistant}/messages"), body).await;
    assert_eq!(told.status, StatusCode::OK, "{}", told.body);
    app.get(&format!("/assistants/{assistant}/chats/{chat}")).await.body
}

fn contents(memory: &Value) -> Vec<&str> {
    memory["entries"].as_array().expect("entries").iter().map(|of| of["content"].as_str().expect("text")).collect()
}

#[tokio::test]
async fn entries_are_kept_in_order_superseded_put_aside_and_never_come_back_under_their_ids() {
    let app = app().await;
    let id = assistant(&app, "m", json!({})).await;
    let core = "/memory/assistants/m/core?tenantId=acme";
    let entry = |id: i64| format!("/memory/assistants/m/core/{id}?tenantId=acme");
    let empty = app.get(core).await.body;
    assert_eq!(empty["bucket"], json!({"tenantId": "acme", "entityId": id}));
    assert_eq!(empty["limits"], json!({"maxChars": 8000, "maxEntries": 100, "maxEntryChars": 1000}));
    assert_eq!((&empty["enabled"], &empty["entries"]), (&json!(true), &json!([])));

    for (body, section) in [
        (json!({"content": "  Likes tea "}), "facts"),
        (json!({"content": "Answers in French", "section": "instructions"}), "instructions"),
        (json!({"content": "Born in 1990", "section": "profile", "pinned": true}), "profile"),
    ] {
        let made = app.post(core, body).await;
        assert_eq!((made.status, &made.body["deduped"]), (StatusCode::CREATED, &json!(false)), "{}", made.body);
        let read = app.post(&format!("{core}&strict=true"), made.body["entry"].clone()).await;
        assert_eq!((read.status, &read.body["deduped"]), (StatusCode::OK, &json!(true)), "{}", read.body);
        let made = &made.body["entry"];
        assert_eq!(
            (&made["section"], &made["source"], &made["readOnly"]),
            (&json!(section), &json!("api"), &json!(false))
        );
    }
    let same = app.post(core, json!({"content": "LIKES   tea"})).await;
    assert_eq!(
        (same.status, &same.body["deduped"], &same.body["entry"]["id"]),
        (StatusCode::OK, &json!(true), &json!(1))
    );
    let kept = app.get(core).await.body;
    assert_eq!(contents(&kept), ["Born in 1990", "Likes tea", "Answers in French"]);
    assert_eq!(kept["revision"].as_str().expect("one").len(), 16);
    let back = app.patch(&entry(2), json!({"section": null})).await;
    assert_eq!((back.status, &back.body["section"]), (StatusCode::OK, &json!("facts")), "{}", back.body);
    assert_eq!(app.patch(&entry(2), json!({"section": "instructions"})).await.status, StatusCode::OK);
    for odd in ["01", "+2"] {
        let path = format!("/memory/assistants/m/core/{odd}?tenantId=acme");
        assert_eq!(app.delete(&path).await.error(), "ENTRY_NOT_FOUND", "{odd}");
    }

    let moved = app.patch(&entry(1), json!({"section": "decisions"})).await.body;
    assert_eq!((&moved["id"], &moved["supersedes"], &moved["section"]), (&json!(1), &json!(null), &json!("decisions")));
    let other = app.patch(&entry(1), json!({"content": "Likes coffee"})).await.body;
    assert_eq!((&other["id"], &other["supersedes"], &other["section"]), (&json!(4), &json!(1), &json!("decisions")));
    let same = app.patch(&entry(2), json!({"content": "likes  COFFEE"})).await;
    assert_eq!((same.error(), contents(&app.get(core).await.body).len()), ("CONFLICT", 3), "two would say the same");
    assert_eq!(app.patch(&entry(1), json!({"pinned": true})).await.error(), "ENTRY_NOT_FOUND", "it was put aside");
    assert_eq!(app.delete(&entry(1)).await.body, json!({"removed": false, "id": 1}));
    assert_eq!(app.delete(&entry(4)).await.body, json!({"removed": true, "id": 4}));
    assert_eq!(app.delete(&entry(9)).await.error(), "ENTRY_NOT_FOUND");
    let next = app.post(core, json!({"content": "Likes water"})).await.body;
    assert_eq!(next["entry"]["id"], 5);
    let all = app.get(&format!("{core}&includeArchived=true")).await.body;
    let archived = all["entries"].as_array().expect("entries").iter().filter(|of| of["archivedAt"].is_string());
    assert_eq!((archived.count(), contents(&all).len()), (2, 5));
    let exported = app.get("/memory/assistants/m/core/export?tenantId=acme").await.body;
    assert_eq!(contents(&exported).len(), 5);
    let page = app.get("/memory/assistants/m/core/export?tenantId=acme&format=markdown").await;
    assert!(page.header("content-type").starts_with("text/markdown"));
    let page = page.body.as_str().expect("text").to_owned();
    assert!(page.contains("## decisions") && page.contains("~~Likes coffee~~"), "{page}");

    for (body, code) in [
        (json!({}), "VALIDATION_ERROR"),
        (json!({"content": "   "}), "VALIDATION_ERROR"),
        (json!({"content": "x".repeat(1001)}), "VALIDATION_ERROR"),
        (json!({"content": "x", "section": "Not A Name"}), "VALIDATION_ERROR"),
    ] {
        assert_eq!(app.post(core, body.clone()).await.error(), code, "{body}");
    }
    for (path, code) in [
        ("/memory/assistants/m/core", "TENANT_ID_REQUIRED"),
        ("/memory/assistants/none/core?tenantId=acme", "ASSISTANT_NOT_FOUND"),
        ("/memory/assistants/m/core/export?tenantId=acme&format=xml", "VALIDATION_ERROR"),
    ] {
        assert_eq!(app.get(path).await.error(), code, "{path}");
    }
    app.patch("/assistants/m", json!({"coreMemory": {"enabled": false}})).await;
    let off = app.get(core).await.body;
    assert_eq!((&off["enabled"], &off["bucket"], &off["entries"]), (&json!(false), &json!({}), &json!([])));
    assert!(off.get("revision").is_none(), "{off}");
    assert_eq!(app.post(core, json!({"content": "x"})).await.error(), "CONFLICT");
    assert_eq!(app.patch(&entry(1), json!({"content": "x"})).await.error(), "CONFLICT");
    assert_eq!(app.delete(&entry(1)).await.error(), "CONFLICT");
}

#[tokio::test]
async fn an_entry_is_judged_by_its_characters_and_counts_while_it_lives() {
    let limits = [("PLATFORM_LIMIT_CORE_MEMORY_ENTRIES", "3"), ("PLATFORM_LIMIT_CORE_MEMORY_CHARS", "1010")];
    let app = app_with(&limits).await;
    assistant(&app, "m", json!({})).await;
    let core = "/memory/assistants/m/core?tenantId=acme";
    let entry = |id: &Value| format!("/memory/assistants/m/core/{id}?tenantId=acme");
    // The same at once is one entry.
    let same = join_all((0..8).map(|_| app.post(core, json!({"content": "\u{e4}".repeat(1000)})))).await;
    let made: Vec<_> = same.iter().map(|reply| (reply.status, reply.body["entry"]["id"].clone())).collect();
    assert_eq!(made.iter().filter(|(status, _)| *status == StatusCode::CREATED).count(), 1, "{made:?}");
    assert!(made.iter().all(|(status, id)| status.is_success() && *id == json!(1)), "{made:?}");
    let more = app.post(core, json!({"content": "x".repeat(11)})).await;
    assert_eq!((more.error(), &more.body["details"]["limits"]["maxChars"]), ("CORE_MEMORY_FULL", &json!(1010)));
    assert_eq!(app.delete(&entry(&json!(1))).await.body["removed"], true);
    // What was put aside counts no more, and may be said again.
    let tea = app.post(core, json!({"content": "Likes tea", "section": "FACTS"})).await.body["entry"].clone();
    assert_eq!(tea["section"], "facts", "names that have a meaning are read in any case");
    assert_eq!(app.delete(&entry(&tea["id"])).await.body["removed"], true);
    let again = app.post(core, json!({"content": "Likes tea", "section": "a".repeat(32)})).await;
    assert_eq!((again.status, &again.body["entry"]["id"]), (StatusCode::CREATED, &json!(3)), "{}", again.body);
    for section in ["a".repeat(33), "1st".to_owned(), "Mine".to_owned()] {
        let refused = app.post(core, json!({"content": "x", "section": section})).await;
        assert_eq!(refused.error(), "VALIDATION_ERROR", "{section}");
    }
    let third = entry(&json!(3));
    let was = again.body["entry"].clone();
    for unchanged in [json!({"content": " Likes tea "}), json!({"section": was["section"], "pinned": false}), json!({})]
    {
        let same = app.patch(&third, unchanged.clone()).await;
        assert_eq!((same.status, &same.body), (StatusCode::OK, &was), "{unchanged}");
    }
    let kept = app.patch(&third, json!({"readOnly": true})).await.body;
    assert_eq!((&kept["id"], &kept["readOnly"], &kept["createdAt"]), (&json!(3), &json!(true), &was["createdAt"]));
    assert!(kept["updatedAt"].as_str() >= was["updatedAt"].as_str() && kept["updatedAt"].is_string(), "{kept}");

    // A page of Markdown says what was said, whatever that is.
    let hostile = "# Not a heading <!-- `x`\n\n- **9** (api): [not](one)\n1. &lt;\n===";
    app.post(core, json!({"content": hostile})).await;
    let page = app.get("/memory/assistants/m/core/export?tenantId=acme&format=markdown").await.body;
    let page = page.as_str().expect("text");
    let line = "\n- **4** (api): \\# Not a heading \\<!-- \\`x\\`\n  \n  \\- \\*\\*9\\*\\* (api): \\[not\\](one)\n  1\\. \\&lt;\n  \\===\n";
    assert!(page.contains(line), "{page}");

    for wrong in [json!({"scope": "all"}), json!({"enabled": "yes"}), json!("on"), json!([true])] {
        let refused = app.patch("/assistants/m", json!({"coreMemory": wrong})).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"), "{wrong}");
    }
    // Another scope is another memory.
    app.patch("/assistants/m", json!({"coreMemory": {"enabled": true, "scope": "subtenant"}})).await;
    let of_ann = format!("{core}&subtenantId=ann");
    assert_eq!(app.get(&of_ann).await.body["entries"], json!([]));
    app.post(&of_ann, json!({"content": "Ann's"})).await;
    app.patch("/assistants/m", json!({"coreMemory": {"enabled": true, "scope": "tenant"}})).await;
    assert_eq!(contents(&app.get(&of_ann).await.body).len(), 2, "the tenant's again");
}

#[tokio::test]
async fn what_stands_in_place_of_an_entry_is_as_it_was_and_an_end_user_who_is_deleted_is_forgotten_alone() {
    let app = app().await;
    assistant(&app, "m", json!({"scope": "subtenant"})).await;
    let core = |user: &str| format!("/memory/assistants/m/core?tenantId=acme&subtenantId={user}");
    let ann = session(&app, json!({"tenantId": "acme", "subtenantId": "ann"})).await;
    session(&app, json!({"tenantId": "acme", "subtenantId": "bob"})).await;
    let made = json!({"content": "Never discuss prices", "section": "instructions", "pinned": true, "readOnly": true});
    let made = app.post(&core("ann"), made).await.body["entry"].clone();
    let path = |id: &Value| format!("/memory/assistants/m/core/{id}?tenantId=acme&subtenantId=ann");
    let newer = app.patch(&path(&made["id"]), json!({"content": "Never discuss costs"})).await.body;
    for field in ["section", "pinned", "readOnly", "source"] {
        assert_eq!(newer[field], made[field], "{field}: {newer}");
    }
    assert_eq!((&newer["supersedes"], &newer["content"]), (&made["id"], &json!("Never discuss costs")));
    let own = app.anonymous(Method::PATCH, &format!("/v1{}", path(&newer["id"]))).bearer_auth(&ann);
    assert_eq!(app.send(own.json(&json!({"content": "Discuss costs"}))).await.error(), "ENTRY_READ_ONLY");
    app.post(&core("bob"), json!({"content": "Likes tea"})).await;
    assert_eq!(app.delete("/tenants/acme/subtenants/ann").await.status, StatusCode::OK);
    assert_eq!(app.get(&core("ann")).await.body["entries"], json!([]));
    assert_eq!(contents(&app.get(&core("bob")).await.body), ["Likes tea"]);
}

#[tokio::test]
async fn limits_hold_whoever_writes_at_once_and_a_deleted_tenant_is_forgotten() {
    let limits = [
        ("PLATFORM_LIMIT_CORE_MEMORY_ENTRIES", "5"),
        ("PLATFORM_LIMIT_CORE_MEMORY_CHARS", "60"),
        ("PLATFORM_RATE_FULL", "0"),
    ];
    let app = app_with(&limits).await;
    assistant(&app, "m", json!({})).await;
    app.post("/tenants", json!({"tenantId": "acme"})).await;
    let core = "/memory/assistants/m/core?tenantId=acme";
    let writes = (0..12).map(|n| app.post(core, json!({"content": format!("fact {n}")})));
    let written = join_all(writes).await;
    let made = written.iter().filter(|reply| reply.status == StatusCode::CREATED).count();
    assert_eq!(made, 5);
    let full = written.iter().find(|reply| reply.status == StatusCode::CONFLICT).expect("one too many");
    assert_eq!((full.error(), &full.body["details"]["limits"]["maxEntries"]), ("CORE_MEMORY_FULL", &json!(5)));
    let memory = app.get(core).await.body;
    let id = memory["entries"][0]["id"].as_i64().expect("an id");
    let path = format!("/memory/assistants/m/core/{id}?tenantId=acme");
    assert_eq!(app.patch(&path, json!({"content": "x".repeat(50)})).await.error(), "CORE_MEMORY_FULL", "characters");
    assert_eq!(app.patch(&path, json!({"content": "shorter"})).await.status, StatusCode::OK, "in its own place");
    // A model is told so, and nothing is kept.
    for (content, refusal) in [("one more".to_owned(), "CORE_MEMORY_FULL"), ("x".repeat(1001), "VALIDATION_ERROR")] {
        let call = format!("/tool remember {{\"content\": \"{content}\"}}");
        let told = tell(&app, "m", &json!({"tenantId": "acme"}), &call).await["chatContent"].to_string();
        assert!(told.contains(refusal), "{told}");
    }
    assert_eq!(app.get(core).await.body["entries"].as_array().map(Vec::len), Some(5));
    let deleted = app.delete("/tenants/acme").await;
    assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.body);
    assert_eq!(app.get(core).await.body["entries"], json!([]));
    let again = app.post(core, json!({"content": "new"})).await.body;
    assert!(again["entry"]["id"].as_i64() > Some(5), "ids never come back: {again}");
}

#[tokio::test]
async fn what_is_known_stands_in_the_prompt_and_a_model_writes_only_what_is_its_own() {
    let (app, model) = app_with_model(&[]).await;
    assistant(&app, "m", json!({})).await;
    let core = "/memory/assistants/m/core?tenantId=acme";
    app.post(core, json!({"content": "Never discuss prices", "section": "instructions", "readOnly": true})).await;
    let body = json!({"message": "Hello", "tenantId": "acme", "skipSummarization": true});
    let ask = async |tenant: &str| {
        let mut body = body.clone();
        (body["tenantId"], body["chatUid"]) = (json!(tenant), json!(new_chat()));
        let chat = text(&body["chatUid"]);
        let told = app.post("/assistants/m/messages", body).await;
        assert_eq!(told.status, StatusCode::OK, "{}", told.body);
        let system = model.recorded().last().expect("a call").body["messages"][0]["content"].clone();
        (system, chat)
    };
    let (first, chat) = ask("acme").await;
    assert!(first.as_str().expect("text").contains("- [1] instructions: Never discuss prices"), "{first}");
    assert_eq!(ask("acme").await.0, first, "byte by byte");
    assert!(!ask("globex").await.0.to_string().contains("Never discuss prices"));
    let noted = app.get(&format!("/assistants/m/chats/{chat}")).await.body;
    let block = &noted["coreMemories"][0];
    assert_eq!(block["revision"], app.get(core).await.body["revision"]);
    let item = json!({"id": 1, "section": "instructions", "content": "Never discuss prices", "pinned": false,
        "source": "api"});
    assert_eq!((&block["entries"], &block["omitted"], &block["chars"]), (&json!(1), &json!(0), &json!(20)));
    assert_eq!(block["items"], json!([item]));
    // A chat notes what it was told once for each revision.
    let revisions = async || {
        let more = json!({"message": "And?", "tenantId": "acme", "chatUid": chat, "skipSummarization": true});
        assert_eq!(app.post("/assistants/m/messages", more).await.status, StatusCode::OK);
        let noted = app.get(&format!("/assistants/m/chats/{chat}")).await.body;
        let noted = noted["coreMemories"].as_array().expect("blocks").iter();
        noted.map(|block| block["revision"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(revisions().await, [block["revision"].clone()]);
    let tea = app.post(core, json!({"content": "Likes tea"})).await.body["entry"]["id"].clone();
    let both = revisions().await;
    assert!(both.len() == 2 && both[0] != both[1], "{both:?}");
    let gone = format!("/memory/assistants/m/core/{tea}?tenantId=acme");
    assert_eq!(app.delete(&gone).await.status, StatusCode::OK);
    assert_eq!(revisions().await, both, "the first again");

    // The demo model calls what it is told to.
    app.patch("/assistants/m", json!({"provider": "demo", "model": "demo-1"})).await;
    let acme = json!({"tenantId": "acme"});
    let told = tell(&app, "m", &acme, "/tool remember {\"content\": \"Has a dog\", \"section\": \"profile\"}").await;
    let answers = told["chatContent"].to_string();
    assert!(answers.contains("deduped"), "{answers}");
    let kept = app.get(core).await.body;
    assert_eq!(contents(&kept), ["Never discuss prices", "Has a dog"]);
    assert_eq!(kept["entries"][1]["source"], "assistant");
    for (call, result) in [
        ("/tool forget {\"id\": 1}", "ENTRY_READ_ONLY"),
        ("/tool forget {\"id\": 77}", "ENTRY_NOT_FOUND"),
        ("/tool remember {\"content\": \"has A dog\"}", "\\\\\\\"deduped\\\\\\\":true"),
        ("/tool remember {\"content\": \"x\", \"tenantId\": \"globex\"}", "INVALID_ARGUMENTS"),
        ("/tool remember {\"content\": \"\"}", "INVALID_ARGUMENTS"),
        ("/tool remember {\"content\": \"HAS a \\u0000 dog\"}", "\\\\\\\"deduped\\\\\\\":false"),
    ] {
        let told = serde_json::to_string(&tell(&app, "m", &acme, call).await["chatContent"].to_string()).expect("text");
        assert!(told.contains(result), "{call}: {told}");
    }
    assert_eq!(contents(&app.get(core).await.body), ["HAS a \u{fffd} dog", "Never discuss prices", "Has a dog"]);
    assert_eq!(app.get("/memory/assistants/m/core?tenantId=globex").await.body["entries"], json!([]));
    // Whoever belongs to no tenant has nothing that is remembered.
    let nobody = tell(&app, "m", &json!({}), "/tool remember {\"content\": \"x\"}").await["chatContent"].to_string();
    assert!(nobody.contains("TOOL_NOT_AVAILABLE"), "{nobody}");
}

#[tokio::test]
async fn a_prompt_says_what_is_remembered_now_in_every_process() {
    let db = TestDb::new().await;
    let processes = [app_with_model_on(&db, &[]), app_with_model_on(&db, &[])];
    let (one, _) = &processes[0];
    assistant(one, "m", json!({})).await;
    let core = "/memory/assistants/m/core?tenantId=acme";
    let is_told = async |known: Option<&str>| {
        for (app, model) in &processes {
            let says = async || {
                tell(app, "m", &json!({"tenantId": "acme"}), "Hello").await;
                let system = text(&model.recorded().last().expect("a call").body["messages"][0]["content"]);
                let lines: Vec<&str> =
                    system.lines().filter_map(|line| line.split_once("] facts: ")).map(|(_, of)| of).collect();
                (lines == known.as_slice()).then_some(())
            };
            eventually("the prompt says it", says).await;
        }
    };
    let id = one.post(core, json!({"content": "Likes tea"})).await.body["entry"]["id"].clone();
    is_told(Some("Likes tea")).await;
    let newer =
        one.patch(&format!("/memory/assistants/m/core/{id}?tenantId=acme"), json!({"content": "Likes coffee"})).await;
    is_told(Some("Likes coffee")).await;
    let (other, _) = &processes[1];
    other.delete(&format!("/memory/assistants/m/core/{}?tenantId=acme", newer.body["id"])).await;
    is_told(None).await;
    one.post(core, json!({"content": "Likes water"})).await;
    is_told(Some("Likes water")).await;
    assert_eq!(one.delete("/tenants/acme").await.status, StatusCode::OK);
    is_told(None).await;
}

#[tokio::test]
async fn a_turn_is_two_commits_also_where_it_is_told_what_is_remembered() {
    let db = TestDb::new().await;
    // No lease is renewed meanwhile.
    let leases = [("PLATFORM_RUN_LEASE", "10m"), ("PLATFORM_RUN_HEARTBEAT", "5m")];
    let app = TestApp::start(PROGRAM, &db, &leases);
    assistant(&app, "m", json!({})).await;
    let plain = json!({"name": "Plain", "identifier": "plain"});
    assert_eq!(app.post("/assistants", plain).await.status, StatusCode::CREATED);
    app.post("/memory/assistants/m/core?tenantId=acme", json!({"content": "Likes tea"})).await;
    db.run(
        "CREATE TABLE writes (transaction xid8, written text, PRIMARY KEY (transaction, written)); \
        CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
            INSERT INTO writes VALUES (pg_current_xact_id(), TG_TABLE_NAME) ON CONFLICT DO NOTHING; RETURN NULL; END $$; \
        DO $$ DECLARE t text; BEGIN FOR t IN SELECT oid::regclass FROM pg_class WHERE relnamespace = 'public'::regnamespace \
            AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'writes' LOOP \
            EXECUTE format('CREATE TRIGGER noting AFTER INSERT OR UPDATE OR DELETE ON %s \
                FOR EACH ROW EXECUTE FUNCTION note_write()', t); END LOOP; END $$",
    )
    .await;
    for assistant in ["plain", "m"] {
        let chat = json!({"tenantId": "acme", "chatUid": format!("of-{assistant}")});
        for turn in ["first", "next"] {
            db.run("TRUNCATE writes").await;
            let noted = tell(&app, assistant, &chat, "Hello").await;
            assert_eq!(noted["coreMemories"].as_array().map(Vec::len), Some(usize::from(assistant == "m")), "{noted}");
            let commits = "SELECT count(DISTINCT transaction) AS n FROM writes \
                WHERE written IN ('chats', 'messages', 'runs', 'memory_buckets', 'memory_entries')";
            assert_eq!(db.number(commits).await, 2, "the {turn} turn of {assistant}");
        }
    }
}

#[tokio::test]
async fn sessions_reach_their_own_memory_and_leave_alone_what_is_read_only() {
    let app = app().await;
    assistant(&app, "m", json!({"scope": "subtenant"})).await;
    let session = async |tenant: &str, user: &str| {
        let made = app.post("/tenant-sessions", json!({"tenantId": tenant, "subtenantId": user})).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
        text(&made.body["token"])
    };
    let (ann, bob) = (session("acme", "ann").await, session("acme", "bob").await);
    let ask = async |token: &str, method: Method, path: &str, body: Value| {
        let request = app.anonymous(method, &format!("/v1/memory/assistants/m/core{path}")).bearer_auth(token);
        app.send(request.json(&body)).await
    };
    let made = ask(&ann, Method::POST, "", json!({"content": "canary of ann"})).await;
    assert_eq!((made.status, &made.body["entry"]["source"]), (StatusCode::CREATED, &json!("user")), "{}", made.body);
    assert_eq!(ask(&bob, Method::GET, "", json!({})).await.body["entries"], json!([]));
    assert_eq!(
        contents(&app.get("/memory/assistants/m/core?tenantId=acme&subtenantId=ann").await.body),
        ["canary of ann"]
    );
    assert_eq!(
        app.get("/memory/assistants/m/core?tenantId=acme").await.body["entries"],
        json!([]),
        "of whoever is none"
    );
    assert_eq!(ask(&bob, Method::DELETE, "/1", json!({})).await.error(), "ENTRY_NOT_FOUND");
    for path in ["?tenantId=globex", "?subtenantId=ann"] {
        assert_eq!(ask(&bob, Method::GET, path, json!({})).await.error(), "TENANT_MISMATCH", "{path}");
    }
    let same = ask(&ann, Method::PATCH, "/1", json!({"pinned": true, "readOnly": false})).await;
    assert_eq!((same.status, &same.body["pinned"]), (StatusCode::OK, &json!(true)), "{}", same.body);
    for (method, path) in [(Method::PATCH, "/9"), (Method::POST, "")] {
        let refused = ask(&ann, method.clone(), path, json!({"content": " "})).await;
        assert_eq!(refused.error(), "VALIDATION_ERROR", "fields come before what they would change: {method}");
    }
    let of_ann = "/memory/assistants/m/core?tenantId=acme&subtenantId=ann";
    app.post(of_ann, json!({"content": "fixed", "readOnly": true})).await;
    for (method, path, body, code) in [
        (Method::PATCH, "/2", json!({"content": "other"}), "ENTRY_READ_ONLY"),
        (Method::DELETE, "/2", json!({}), "ENTRY_READ_ONLY"),
        (Method::POST, "", json!({"content": "mine", "readOnly": true}), "FORBIDDEN"),
        (Method::PATCH, "/1", json!({"readOnly": true}), "FORBIDDEN"),
        (Method::GET, "/export", json!({}), "SESSION_ROUTE_FORBIDDEN"),
    ] {
        let refused = ask(&ann, method.clone(), path, body).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, code), "{method} {path}");
    }
    assert_eq!(ask(&ann, Method::DELETE, "/1", json!({})).await.body["removed"], true);
    // Nor does a model in their chats reach further.
    let say = async |token: &str, message: &str| {
        let request = app.anonymous(Method::POST, "/v1/assistants/m/messages").bearer_auth(token);
        let said = app.send(request.json(&json!({"message": message, "skipSummarization": true}))).await;
        assert_eq!(said.status, StatusCode::OK, "{}", said.body);
        said.body.to_string()
    };
    say(&bob, "/tool remember {\"content\": \"canary of bob\"}").await;
    assert!(say(&bob, "/tool forget {\"id\": 2}").await.contains("ENTRY_NOT_FOUND"), "ann's");
    assert_eq!(contents(&app.get(of_ann).await.body), ["fixed"]);
    assert!(!say(&ann, "/tool search_memory {\"query\": \"canary\"}").await.contains("of bob"));
}

#[tokio::test]
async fn end_users_of_a_tenant_share_what_is_remembered_where_its_scope_is_the_tenant() {
    let app = app().await;
    assistant(&app, "m", json!({"scope": "tenant", "recall": true})).await;
    let who = |tenant: &str, user: &str| json!({"tenantId": tenant, "subtenantId": user});
    tell(&app, "m", &who("acme", "ann"), "/tool remember {\"content\": \"The office closes at six\"}").await;
    tell(&app, "m", &who("acme", "ann"), "The cafeteria serves pancakes on Tuesdays").await;
    for (tenant, user, shares) in [("acme", "bob", true), ("globex", "ann", false)] {
        let told = tell(&app, "m", &who(tenant, user), "When are there pancakes?").await;
        let (known, recalled) = (told["coreMemories"].to_string(), told["recalledMemories"].to_string());
        let seen = (known.contains("closes at six"), recalled.contains("on Tuesdays"));
        assert_eq!(seen, (shares, shares), "{user} of {tenant}: {told}");
    }
}

#[tokio::test]
async fn old_entries_are_trimmed_and_their_ids_stay_taken() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    assistant(&app, "m", json!({})).await;
    let core = "/memory/assistants/m/core?tenantId=acme";
    let first = app.post(core, json!({"content": "one"})).await.body["entry"]["id"].clone();
    let change = |id: &Value| format!("/memory/assistants/m/core/{id}?tenantId=acme");
    let second = app.patch(&change(&first), json!({"content": "two"})).await.body["id"].clone();
    let archived = "SELECT count(*) AS n FROM memory_entries WHERE archived_ms IS NOT NULL";
    assert_eq!(db.number(archived).await, 1);
    db.run(
        "INSERT INTO memory_entries SELECT (jsonb_populate_record(e, jsonb_build_object('id', n, 'archived_ms', n))).* \
        FROM memory_entries e, generate_series(3, 1003) n WHERE archived_ms IS NOT NULL; \
        UPDATE memory_buckets SET last_id = 1003",
    )
    .await;
    let third = app.patch(&change(&second), json!({"content": "three"})).await.body["id"].clone();
    assert_eq!((db.number(archived).await, third.as_i64()), (1000, Some(1004)));
    // A chat notes the newest twenty of what its turns were told.
    let acme = json!({"tenantId": "acme"});
    tell(&app, "m", &acme, "My parrot is called Quorra").await;
    let (chat, mut id) = (json!({"tenantId": "acme", "chatUid": "long"}), third);
    let mut noted = json!(null);
    for n in 0..22 {
        id = app.patch(&change(&id), json!({"content": format!("number {n}")})).await.body["id"].clone();
        noted = tell(&app, "m", &chat, "/tool search_memory {\"query\": \"Quorra\"}").await;
    }
    let told = ["coreMemories", "recalledMemories"].map(|field| noted[field].as_array().expect("a list"));
    assert_eq!(told.map(Vec::len), [20, 20], "{noted}");
    assert_eq!(told[0][0]["items"][0]["content"], "number 2");
    assert_eq!(told[0][19]["revision"], app.get(core).await.body["revision"]);
}

#[tokio::test]
async fn what_is_stored_and_not_noted_when_its_process_is_killed_is_stored_once() {
    let db = TestDb::new().await;
    let leases = [("PLATFORM_RUN_LEASE", "1s"), ("PLATFORM_RUN_HEARTBEAT", "300ms")];
    let mut app = TestApp::start(PROGRAM, &db, &leases);
    assistant(&app, "m", json!({})).await;
    let core = "/memory/assistants/m/core?tenantId=acme";
    app.post(core, json!({"content": "first"})).await;
    let locks = db.connect();
    let lock = async |table: &str| {
        let mut conn = locks.conn().await.expect("a connection");
        let hold = "SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT FROM";
        conn.batch_execute(&format!("{hold} {table} FOR UPDATE")).await.expect("locked");
        conn
    };
    let waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waits = async |what: &str| {
        let sql = format!("SELECT count(*) AS n {waiting}");
        eventually(what, async || (db.number(&sql).await > 0).then_some(())).await;
    };
    let mut bucket = lock("memory_buckets").await;
    let body = json!({"message": "/tool remember {\"content\": \"second\"}", "tenantId": "acme", "chatUid": "c",
        "skipSummarization": true});
    assert!(app.post("/assistants/m/messages?async=true", body).await.status.is_success());
    waits("the fact").await;
    let mut chat = lock("chats").await;
    bucket.batch_execute("COMMIT").await.expect("unlocked");
    let is_kept = async || (contents(&app.get(core).await.body).len() == 2).then_some(());
    eventually("it is stored", is_kept).await;
    waits("its note").await;
    app.crash();
    // Nor does the database note it for the dead.
    db.run(&format!("SELECT pg_terminate_backend(pid) {waiting}")).await;
    chat.batch_execute("ROLLBACK").await.expect("unlocked");
    let ended = finished_of(&app, "m", "c").await;
    assert!(ended["status"] == "completed" && ended["chatContent"].to_string().contains("deduped\\\":true"), "{ended}");
    assert_eq!(contents(&app.get(core).await.body), ["first", "second"]);
}

#[tokio::test]
async fn what_is_written_while_its_client_or_its_tenant_goes_is_known_or_forgotten_everywhere() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    assistant(&app, "m", json!({})).await;
    let core = "/memory/assistants/m/core?tenantId=acme";
    app.post(core, json!({"content": "first"})).await;
    tell(&app, "m", &json!({"tenantId": "acme"}), "/say hello").await;
    let mut held = db.connect().conn().await.expect("a connection");
    let waits = async |table: &str| {
        let waiting = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        (db.number(&format!("{waiting} AND query LIKE '%{table}%'")).await > 0).then_some(())
    };
    held.batch_execute("BEGIN; SELECT 1 FROM memory_buckets FOR UPDATE").await.expect("held");
    tokio::select! {
        reply = app.post(core, json!({"content": "second"})) => panic!("it was answered: {}", reply.body),
        () = eventually("it is being written", async || waits("memory_buckets").await) => {}
    }
    // Its client is gone, which the platform sees before it answers others.
    for _ in 0..20 {
        assert_eq!(app.get("/health").await.status, StatusCode::OK);
    }
    held.batch_execute("ROLLBACK").await.expect("let go");
    let is_kept = async || (contents(&app.get(core).await.body).len() == 2).then_some(());
    eventually("it is written", is_kept).await;
    let told = tell(&app, "m", &json!({"tenantId": "acme"}), "/say hello").await;
    assert!(told["coreMemories"].to_string().contains("second"), "{told}");
    // What is written while a tenant is being deleted goes with it.
    held.batch_execute("BEGIN; SELECT 1 FROM tenants FOR UPDATE").await.expect("held");
    let deleting = app.delete("/tenants/acme");
    let writing = async {
        eventually("it is being deleted", async || waits("tenants").await).await;
        db.run("INSERT INTO memory_entries SELECT * FROM memory_entries_kept").await;
        held.batch_execute("ROLLBACK").await.expect("let go");
    };
    db.run("CREATE TABLE memory_entries_kept AS SELECT * FROM memory_entries").await;
    let (deleted, ()) = tokio::join!(deleting, writing);
    assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.body);
    assert_eq!(db.number("SELECT count(*) AS n FROM memory_entries").await, 0);
}

#[tokio::test]
async fn what_a_model_remembers_is_stored_once_or_not_at_all_whenever_it_is_killed() {
    let db = TestDb::new().await;
    let leases = [("PLATFORM_RUN_LEASE", "1s"), ("PLATFORM_RUN_HEARTBEAT", "300ms")];
    let mut app = TestApp::start(PROGRAM, &db, &leases);
    assistant(&app, "m", json!({})).await;
    let (mut runner, mut stored) = (TestRunner::deterministic(), 0);
    for round in 0..4 * factor(10) {
        let message = format!("/tool remember {{\"content\": \"fact {round}\"}}\n/wait 200ms");
        let body = json!({"message": message, "tenantId": "acme", "skipSummarization": true});
        let sent = app.post("/assistants/m/messages?async=true", body).await;
        assert!(sent.status.is_success(), "{}", sent.body);
        let chat = text(&sent.body["chatUid"]);
        let pause = (0_u64..60).new_tree(&mut runner).expect("generated").current();
        tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
        app.crash();
        let ended = finished_of(&app, "m", &chat).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        // What was stored before the kill, and of which nothing was noted, is found again.
        stored += usize::from(ended["chatContent"].to_string().contains("deduped\\\":true"));
        let kept = app.get("/memory/assistants/m/core?tenantId=acme").await.body;
        let fact = format!("fact {round}");
        assert_eq!(contents(&kept).iter().filter(|content| **content == fact).count(), 1, "{kept}");
    }
    println!("{} kills, {stored} of them between what is stored and what is noted", 4 * factor(10));
}

#[tokio::test]
async fn what_is_remembered_for_an_assistant_goes_with_it_although_whoever_deletes_it_is_killed() {
    let db = TestDb::new().await;
    let mut app = TestApp::start(PROGRAM, &db, &[]);
    assistant(&app, "m", json!({})).await;
    let made = app.post("/memory/assistants/m/core?tenantId=acme", json!({"content": "A fact"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    // Whoever deletes it waits for a bucket that somebody else holds, and is killed.
    let mut conn = db.connect().conn().await.expect("a connection");
    conn.batch_execute("BEGIN; SELECT 1 FROM memory_buckets FOR UPDATE").await.expect("held");
    let deleting = app.delete("/assistants/m");
    let is_deleted = eventually("the assistant is deleted", async || {
        (app.get("/assistants/m").await.status == StatusCode::NOT_FOUND).then_some(())
    });
    tokio::select! {
        reply = deleting => panic!("it was answered: {}", reply.body),
        () = is_deleted => {}
    }
    app.crash();
    // What a process asked last is done although it is gone.
    let waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    db.run(&format!("SELECT pg_terminate_backend(pid) {waiting}")).await;
    eventually("nobody waits", async || {
        (db.number(&format!("SELECT count(*) AS n {waiting}")).await == 0).then_some(())
    })
    .await;
    conn.batch_execute("ROLLBACK").await.expect("let go");
    assert_eq!(db.number("SELECT count(*) AS n FROM memory_entries").await, 1);
    db.run("UPDATE runs SET due = now() WHERE kind = 'assistant-deleted'").await;
    eventually("nothing is remembered", async || {
        (db.number("SELECT count(*) AS n FROM memory_entries").await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_tools_of_memory_are_offered_where_there_is_memory_alone() {
    let (app, model) = app_with_model(&[]).await;
    assistant(&app, "m", json!({})).await;
    let groups = json!(["builtin-memory"]);
    let made =
        app.post("/assistants", json!({"name": "n", "identifier": "n", "availableToolsGroupsUids": groups})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let offered = async |assistant: &str, who: Value| {
        tell(&app, assistant, &who, "Hello").await;
        let asked = model.recorded().pop().expect("a call").body;
        let tools = asked["tools"].as_array().cloned().unwrap_or_default();
        tools.iter().map(|tool| text(&tool["function"]["name"])).collect::<Vec<_>>()
    };
    let mut all = offered("m", json!({"tenantId": "acme"})).await;
    all.sort();
    assert_eq!(all, ["forget", "remember", "search_memory"]);
    assert_eq!(offered("n", json!({"tenantId": "acme"})).await, [""; 0], "it remembers nothing");
    assert_eq!(offered("m", json!({})).await, [""; 0], "of nobody it remembers nothing");
}
