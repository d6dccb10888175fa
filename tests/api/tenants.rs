//! `/v1/tenants`, `/v1/tenant-usage`, `/v1/tenant-admin`: who may take how much, and what was taken.

use futures_util::future::join_all;
use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    support::{
        Frames, PROGRAM, UNBOUNDED, act, agent, app, app_with_model, eventually, factor, finished, set_usage_clock,
        states, text, thread_in, thread_until,
    },
    triggers::{server_of, trigger},
};

/// Makes a tier with these rules, the default one.
async fn tier(app: &TestApp, rules: Value) {
    let made =
        app.post("/tenant-admin/tiers", json!({"tierId": "pro", "name": "Pro", "rules": rules, "isDefault": true}));
    let made = made.await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
}

fn tokens(limit: u64) -> Value {
    json!([{"scope": "tenant", "metric": "tokens", "windowUnit": "month", "limit": limit}])
}

async fn say(app: &TestApp, tenant: &str, message: &str) -> Reply {
    app.post("/assistants/default/messages", json!({"message": message, "tenantId": tenant, "skipSummarization": true}))
        .await
}

/// What the first rule of a tenant has counted.
async fn counted(app: &TestApp, tenant: &str) -> Value {
    let usage = app.get(&format!("/tenant-usage/{tenant}")).await;
    assert_eq!(usage.status, StatusCode::OK, "{}", usage.body);
    usage.body["usage"][0]["current"].clone()
}

#[tokio::test]
async fn tenants_are_registered_by_use_and_keep_what_was_set_by_hand() {
    let app = app().await;
    let metadata = json!({"name": "top", "email": 7, "tenantMetadata": {"displayName": "Acme", "email": "it@acme.io"},
        "subtenantMetadata": {"id": "u1", "name": "Ann", "email": "ann@gmail.com"}});
    let body = json!({"message": "Hi", "tenantId": "acme", "metadata": metadata, "skipSummarization": true});
    assert_eq!(app.post("/assistants/default/messages", body).await.status, StatusCode::OK);
    let acme = app.get("/tenants/acme").await.body;
    for (field, value) in [
        ("displayName", json!("Acme")),
        ("email", json!("it@acme.io")),
        ("domain", json!("acme.io")),
        ("domainSource", json!("auto")),
        ("imageSource", json!("auto")),
        ("source", json!("auto")),
        ("subtenantsCount", json!(1)),
        ("blocked", json!(false)),
    ] {
        assert_eq!(acme[field], value, "{field}");
    }
    let ann = app.get("/tenants/acme/subtenants/u1").await.body;
    assert_eq!((&ann["displayName"], &ann["emailDomain"]), (&json!("Ann"), &json!("")), "anybody can be at gmail");
    let chats = app.post("/assistants/chats", json!({"subtenantId": "u1"})).await.body;
    assert_eq!(chats["histories"][0]["metadata"]["subtenantId"], "u1");

    // What is empty is filled, what is set by hand stays; an end user is refreshed.
    let pinned = app.patch("/tenants/acme", json!({"displayName": "ACME Inc", "metadata": {"plan": 1}})).await;
    assert_eq!((pinned.status, &pinned.body["metadata"]), (StatusCode::OK, &json!({"plan": 1})));
    let again = json!({"message": "Hi", "tenantId": "acme", "subtenantId": "u1", "skipSummarization": true, "metadata": {
        "tenantMetadata": {"name": "other", "logoUrl": "https://acme.io/x.png"}, "subtenantMetadata": {"name": "Anna"}}});
    assert_eq!(app.post("/assistants/default/messages", again).await.status, StatusCode::OK);
    let acme = app.get("/tenants/acme").await.body;
    assert_eq!((&acme["displayName"], &acme["imageUrl"]), (&json!("ACME Inc"), &json!("https://acme.io/x.png")));
    assert_eq!((&acme["imageSource"], &acme["email"]), (&json!("manual"), &json!("it@acme.io")));
    assert_eq!(app.get("/tenants/acme/subtenants/u1").await.body["displayName"], "Anna");

    let made = app.post("/tenants", json!({"tenantId": "beta", "displayName": "Beta", "domain": "beta.io"})).await;
    assert_eq!(
        (made.status, &made.body["source"], &made.body["domainSource"]),
        (StatusCode::CREATED, &json!("api"), &json!("manual"))
    );
    assert_eq!(app.post("/tenants", json!({"tenantId": "beta"})).await.error(), "IDENTIFIER_TAKEN");
    assert_eq!(app.post("/tenants", json!({"tenantId": "c", "tierId": "none"})).await.error(), "TIER_NOT_FOUND");
    assert_eq!(app.post("/tenants", json!({"tenantId": "tiers"})).await.error(), "VALIDATION_ERROR");
    assert_eq!(app.get("/tenants?search=BETA.io").await.body["items"][0]["tenantId"], "beta");
    assert_eq!(app.get("/tenants?search=%25").await.body["total"], 0, "a sign of patterns is a sign");
    let both = app.get("/tenants?limit=1&skip=1").await.body;
    assert_eq!((&both["total"], &both["items"][0]["tenantId"]), (&json!(2), &json!("acme")));
    let stats = app.get("/tenants/acme/stats").await.body;
    assert_eq!(stats["byAssistant"], json!([{"assistantIdentifier": "default", "chats": 2}]));
    let days = app.get("/tenants/acme/costs?subtenantId=u1").await.body;
    assert!(days[0]["outputTokens"].as_i64() > Some(0) && days[0]["date"].is_string(), "{days}");
    let whole = app.get("/tenants/acme/costs").await.body;
    assert_eq!(whole[0]["outputTokens"], stats["cost"]["outputTokens"], "a day and all there is");
    assert!(app.get("/tenants/acme/costs?granularity=monthly").await.body[0]["month"].is_string());
    assert_eq!(app.get("/tenants/acme/costs?from=2026-02-01&to=2026-01-01").await.error(), "INVALID_TIME_RANGE");
    assert_eq!(app.get("/tenants/nobody/costs").await.error(), "TENANT_NOT_FOUND");
    let gone = app.delete("/tenants/acme").await.body;
    assert_eq!((&gone["success"], &gone["deletedId"]), (&json!(true), &json!("acme")));
    assert_eq!(app.get("/tenants/acme").await.error(), "TENANT_NOT_FOUND");
    assert_eq!(app.get("/tenants/acme/subtenants/u1").await.error(), "TENANT_NOT_FOUND");
    assert_eq!(app.post("/assistants/chats", json!({"tenantId": "acme"})).await.body["total"], 2, "chats stay");
}

#[tokio::test]
async fn what_was_set_of_a_tenant_by_hand_and_is_taken_back_is_filled_again() {
    let app = app().await;
    let named = async |name: &str| {
        let metadata = json!({"tenantMetadata": {"name": name, "email": "it@acme.io"}});
        let body = json!({"message": "Hi", "tenantId": "acme", "metadata": metadata, "skipSummarization": true});
        assert_eq!(app.post("/assistants/default/messages", body).await.status, StatusCode::OK);
        app.get("/tenants/acme").await.body["displayName"].clone()
    };
    assert_eq!(named("one").await, "one");
    let set = app.patch("/tenants/acme", json!({"displayName": "Mine", "domain": "mine.io"})).await;
    assert_eq!((set.status, named("two").await), (StatusCode::OK, json!("Mine")));
    let taken = app.patch("/tenants/acme", json!({"displayName": null, "domain": null})).await.body;
    assert_eq!((&taken["displayName"], &taken["domain"]), (&json!(""), &json!("acme.io")), "{taken}");
    assert_eq!(named("three").await, "three");
    // What is sent back as it was read says nothing.
    let read = app.get("/tenants/acme").await.body;
    let back = app.patch("/tenants/acme", read.clone()).await.body;
    assert_eq!((&back["imageSource"], &back["domainSource"]), (&json!("auto"), &json!("auto")), "{back}");
    assert_eq!(named("four").await, read["displayName"], "it has a name, which nobody takes back");
    for path in ["usage-limits/reset", "tier"] {
        let given = json!({"tierId": null, "reason": "x".repeat(1001)});
        let long = app.post(&format!("/tenant-admin/acme/{path}"), given).await;
        assert_eq!((long.status, long.error()), (StatusCode::BAD_REQUEST, "VALIDATION_ERROR"), "{path}: {}", long.body);
    }
}

#[tokio::test]
async fn a_spent_tenant_spends_nothing_more_by_any_door() {
    let (app, model) = app_with_model(&[("PLATFORM_SECONDARY_MODEL", "")]).await;
    let judged = agent(&app, json!({})).await;
    let started = app.post(&format!("/agents/{judged}/threads"), json!({"message": "Hi", "tenantId": "acme"})).await;
    let thread = started.body["threadId"].as_str().expect("a thread").to_owned();
    thread_in(&app, &thread, "completed").await;
    assert_eq!(say(&app, "acme", "before").await.status, StatusCode::OK);
    tier(&app, tokens(50)).await;
    assert_eq!(counted(&app, "acme").await, 0, "what was before a rule does not count");
    let first = say(&app, "acme", "a call that is admitted whole, and then the window is spent").await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.body);
    app.post("/tenant-admin/acme/add-usage", json!({"tokens": 100})).await;
    let used = counted(&app, "acme").await;
    assert!(used.as_i64() >= Some(50), "{used}");
    assert_eq!(app.get("/tenants/acme").await.body["blocked"], true);
    app.post("/tenants", json!({"tenantId": "other"})).await;
    let listed = app.get("/tenants").await.body;
    let blocked = |at: usize| (&listed["items"][at]["tenantId"], &listed["items"][at]["blocked"]);
    assert_eq!((blocked(0), blocked(1)), ((&json!("other"), &json!(false)), (&json!("acme"), &json!(true))));
    let calls = model.recorded().len();

    let sync = say(&app, "acme", "no").await;
    assert_eq!((sync.status, sync.error()), (StatusCode::TOO_MANY_REQUESTS, "TENANT_LIMIT_EXCEEDED"));
    let rule = json!({"scope": "tenant", "metric": "tokens", "windowUnit": "month", "windowEvery": 1, "limit": 50});
    assert_eq!(sync.body["details"]["blockingRule"], rule);
    assert_eq!((&sync.body["details"]["current"], &sync.body["details"]["limit"]), (&used, &json!(50)));
    let wait = sync.body["retryAfter"].as_i64().expect("seconds");
    assert_eq!(sync.header("retry-after"), wait.to_string());
    assert!(wait > 0 && wait <= 31 * 86_400);
    let said = sync.body["message"].as_str().expect("text");
    assert!(said.starts_with("Usage limit reached: ") && said.ends_with(" / 50 tokens per month"), "{said}");
    let chats = app.post("/assistants/chats", json!({"tenantId": "acme"})).await.body["total"].clone();
    assert_eq!(chats, 2, "a refused message makes no chat");

    let asked = json!({"message": "no", "tenantId": "acme"});
    let chat = app.post("/assistants/default/messages?async=true", asked.clone()).await;
    assert_eq!(chat.status, StatusCode::OK);
    let chat = chat.body["chatUid"].as_str().expect("a chat").to_owned();
    let ended = finished(&app, &chat).await;
    assert_eq!((&ended["status"], &ended["stopReason"]), (&json!("limit_exceeded"), &json!("limit_exceeded")));
    assert_eq!(ended["chatContent"].as_array().map(Vec::len), Some(1), "the message is kept");
    let shown = app.get(&format!("/assistants/default/chats/{chat}/realtime")).await.body;
    assert_eq!((&shown["limitExceeded"]["limit"], shown.get("error")), (&json!(50), None), "{shown}");
    let server = server_of(&app, "webhook").await;
    let told = trigger(&app, &server, "webhook", json!({"assistantId": "default", "tenantId": "acme"})).await;
    let hook = text(&told["webhookUrl"]);
    let hook = hook.strip_prefix(app.url()).expect("ours");
    assert_eq!(app.send(app.anonymous(Method::POST, hook).body("{}")).await.status, StatusCode::ACCEPTED);
    let events = format!("/triggers/{}/events", text(&told["id"]));
    let ended = eventually("an outcome", async || {
        let event = app.get(&events).await.body["items"][0].clone();
        event["outcome"].is_string().then_some(event)
    });
    assert_eq!(ended.await["error"]["code"], "TENANT_LIMIT_EXCEEDED");
    let refused = app.post(&format!("/agents/{judged}/threads"), asked).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "TENANT_LIMIT_EXCEEDED"));
    let kept = app
        .get(&format!("/agents/threads/{}", refused.body["details"]["threadId"].as_str().expect("an id")))
        .await
        .body;
    assert_eq!((&kept["state"], &kept["finishReason"]), (&json!("limit_exceeded"), &json!("TENANT_LIMIT_EXCEEDED")));
    let first_chat =
        app.post("/assistants/chats", json!({"tenantId": "acme"})).await.body["histories"][2]["chatUID"].clone();
    let first_chat = first_chat.as_str().expect("a chat");
    let more = json!({"message": "more", "tenantId": "acme", "chatUid": first_chat});
    assert_eq!(app.post("/assistants/default/messages", more).await.error(), "TENANT_LIMIT_EXCEEDED");
    for (path, body) in [
        (format!("/agents/threads/{thread}/evaluate"), json!({})),
        ("/tenant-admin/acme/add-usage".to_owned(), json!({"tokens": 1})),
    ] {
        assert_eq!(app.post(&path, body).await.error(), "TENANT_LIMIT_EXCEEDED", "{path}");
    }
    assert_eq!(app.get(&format!("/agents/threads/{thread}/explain")).await.error(), "TENANT_LIMIT_EXCEEDED");
    act(&app, &thread, "messages", json!({"message": "go on"})).await;
    let ended = thread_in(&app, &thread, "limit_exceeded").await;
    let went_on = states(&ended).into_iter().skip_while(|state| *state != "completed").nth(1);
    assert_eq!(went_on, Some("queued"));
    assert_eq!(ended["finishReason"], "TENANT_LIMIT_EXCEEDED");
    assert_eq!(model.recorded().len(), calls, "nobody was asked anything");
    assert_eq!(counted(&app, "acme").await, used);
    assert_eq!(say(&app, "other", "another tenant").await.status, StatusCode::OK);

    // With more room both go on with what they had.
    let reset = app.post("/tenant-admin/acme/usage-limits/reset", json!({"metric": "tokens"})).await;
    assert_eq!(
        (reset.status, &reset.body["cleared"], &reset.body["usage"][0]["current"]),
        (StatusCode::OK, &json!(1), &json!(0))
    );
    let now = json!({"message": "now", "chatUid": chat, "skipSummarization": true});
    let resumed = app.post("/assistants/default/messages", now).await;
    assert_eq!(resumed.status, StatusCode::OK, "{}", resumed.body);
    let prompt = model.recorded().last().expect("a call").body.clone();
    let texts: Vec<&str> =
        prompt["messages"].as_array().expect("messages").iter().filter_map(|m| m["content"].as_str()).collect();
    assert_eq!(texts, ["no", "now"], "what was refused is answered with it");
}

#[tokio::test]
async fn a_refused_message_changes_nothing_also_when_it_does_not_say_whose_the_chat_is() {
    let app = app().await;
    tier(&app, tokens(50)).await;
    let first = json!({"message": "Hi", "tenantId": "acme", "subtenantId": "u1", "chatUid": "c",
        "skipSummarization": true});
    assert_eq!(app.post("/assistants/default/messages", first).await.status, StatusCode::OK);
    let more = async |more: Value| {
        let mut body = json!({"message": "more", "chatUid": "c", "skipSummarization": true});
        more.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        app.post("/assistants/default/messages", body).await
    };
    assert_eq!(more(json!({})).await.status, StatusCode::OK, "it need not say whose it is");
    app.post("/tenant-admin/acme/add-usage", json!({"tokens": 100})).await;
    let before = app.get("/assistants/default/chats/c").await.body;
    assert_eq!((&before["tenantId"], before["chatContent"].as_array().map(Vec::len)), (&json!("acme"), Some(4)));
    for named in [json!({}), json!({}), json!({"tenantId": "acme"}), json!({"tags": ["t"], "metadata": {"x": 1}})] {
        let refused = more(named).await;
        assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "TENANT_LIMIT_EXCEEDED"));
    }
    assert_eq!(app.get("/assistants/default/chats/c").await.body, before);
    assert_eq!(more(json!({"tenantId": "other"})).await.error(), "TENANT_MISMATCH");
    // What waits of an asynchronous one is kept, as it is with a chat that says whose it is.
    let kept = app.post("/assistants/default/messages?async=true", json!({"message": "later", "chatUid": "c"})).await;
    assert_eq!(kept.status, StatusCode::OK, "{}", kept.body);
    assert_eq!(finished(&app, "c").await["status"], "limit_exceeded");
    // It is answered together with the next one that there is quota for.
    app.post("/tenant-admin/acme/tier", json!({"tierId": null, "resetUsage": true})).await;
    let answered = more(json!({})).await;
    let reply = answered.body.as_array().and_then(|turn| turn.last()).expect("a turn");
    assert_eq!(reply["content"]["message"], "Demo reply: later more", "{}", answered.body);
}

#[tokio::test]
async fn messages_that_wait_when_the_quota_runs_out_stay_queued_until_there_is_quota_or_another_message() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &UNBOUNDED);
    tier(&app, tokens(5)).await;
    let send = async |chat: &str, message: &str| {
        let body = json!({"message": message, "chatUid": chat, "tenantId": "acme", "skipSummarization": true});
        let sent = app.post("/assistants/default/messages?async=true", body).await;
        assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
        sent.body
    };
    let answered = async |chat: &str, reply: &str| {
        eventually(reply, async || {
            let chat = app.get(&format!("/assistants/default/chats/{chat}")).await.body;
            let last = chat["chatContent"].as_array().and_then(|all| all.last()).expect("a message");
            (last["content"]["message"] == reply && chat["status"] == "completed").then_some(())
        })
        .await;
    };
    for chat in ["next", "sync", "reset"] {
        send(chat, "/wait 3s\n/usage {\"inputTokens\": 100}\nDone").await;
        for one in ["one", "two"] {
            assert_eq!(send(chat, one).await["queued"], true);
        }
        let state = eventually("the quota is spent", async || {
            let state = app.get(&format!("/assistants/default/chats/{chat}/realtime")).await.body;
            (state["status"] == "limit_exceeded").then_some(state)
        })
        .await;
        assert_eq!((&state["queuedMessages"], &state["stopReason"]), (&json!(2), &json!("limit_exceeded")), "{state}");
        assert!(state["limitExceeded"]["resetsAt"].is_i64(), "{state}");
        let due = "SELECT (extract(epoch FROM due) * 1000)::bigint AS n FROM runs WHERE subject = '{}'";
        let due_at = db.number(&due.replace("{}", chat)).await;
        let resets = state["limitExceeded"]["resetsAt"].as_i64().expect("a time");
        assert!((due_at - resets).abs() < 60_000, "it goes on when there is quota again: {due_at} {resets}");
        let wait_for = json!({"message": "three", "chatUid": chat, "tenantId": "acme", "skipSummarization": true});
        if chat == "sync" {
            let refused = app.post("/assistants/default/messages", wait_for.clone()).await;
            assert_eq!(refused.error(), "TENANT_LIMIT_EXCEEDED", "{}", refused.body);
            let still = app.get(&format!("/assistants/default/chats/{chat}/realtime")).await.body;
            assert_eq!((&still["queuedMessages"], &still["chatHistory"]), (&json!(2), &state["chatHistory"]));
            assert_eq!(db.number(&due.replace("{}", chat)).await, due_at, "it is due as before");
        }
        let stop = app.post(&format!("/assistants/default/chats/{chat}/stop"), json!({})).await;
        assert_eq!(stop.error(), "CHAT_NOT_PROCESSING", "what waits is not thrown away");
        let mut watched = Frames::open(&app, chat, false).await;
        let first = watched.next().await.expect("a frame");
        assert_eq!((&first.data["status"], &first.data["queuedMessages"]), (&json!("limit_exceeded"), &json!(2)));
        app.post("/tenant-admin/acme/tier", json!({"tierId": null, "resetUsage": true})).await;
        if chat == "sync" {
            let said = app.post("/assistants/default/messages", wait_for).await;
            let reply = (said.status, &said.body[1]["content"]["message"]);
            assert_eq!(reply, (StatusCode::OK, &json!("Demo reply: one two three")), "{}", said.body);
            let state = app.get(&format!("/assistants/default/chats/{chat}/realtime")).await.body;
            assert_eq!((&state["status"], &state["queuedMessages"]), (&json!("completed"), &json!(0)), "{state}");
            assert_eq!(db.number("SELECT count(*) AS n FROM runs WHERE subject = 'sync'").await, 0);
            app.post("/tenant-admin/acme/tier", json!({"tierId": null, "resetUsage": true})).await;
        } else if chat == "next" {
            send(chat, "three").await;
            let state = app.get(&format!("/assistants/default/chats/{chat}/realtime")).await.body;
            assert_ne!(state["status"], "limit_exceeded", "{state}");
            answered(chat, "Demo reply: one two three").await;
            app.post("/tenant-admin/acme/tier", json!({"tierId": null, "resetUsage": true})).await;
        } else {
            db.run("UPDATE runs SET due = now() WHERE subject = 'reset'").await;
            answered(chat, "Demo reply: one two").await;
        }
        let last = watched.all().await.pop().expect("whoever watches while messages wait sees them answered");
        assert_eq!((&last.data["status"], &last.data["queuedMessages"]), (&json!("completed"), &json!(0)));
    }
}

#[tokio::test]
async fn racing_calls_take_at_most_one_more_than_the_limit_on_however_many_processes() {
    let db = TestDb::new().await;
    let apps = [TestApp::start(PROGRAM, &db, &UNBOUNDED), TestApp::start(PROGRAM, &db, &UNBOUNDED)];
    tier(&apps[0], tokens(1000)).await;
    for round in 0..factor(25) {
        let tenant = format!("acme{round}");
        let path = format!("/tenant-admin/{tenant}/add-usage");
        let add = |n: usize| apps[n % 2].post(&path, json!({"tokens": 30}));
        let replies = join_all((0..64).map(add)).await;
        let (accepted, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == StatusCode::OK);
        assert_eq!(accepted.len(), 34, "round {round}");
        assert!(refused.iter().all(|reply| reply.error() == "TENANT_LIMIT_EXCEEDED"));
        assert_eq!(counted(&apps[1], &tenant).await, 1020);
    }
    // Calls reserve what they may take: of many at once no more are admitted than there is room for.
    for round in 0..20 * factor(5) {
        let tenant = format!("t{round}");
        let send = |n: usize| {
            let body = json!({"message": "/wait 50ms\n/usage {\"inputTokens\": 700, \"outputTokens\": 50}\nx", "tenantId": tenant,
                "skipSummarization": true});
            apps[n % 2].post("/assistants/default/messages", body)
        };
        let replies = join_all((0..8).map(send)).await;
        let accepted = replies.iter().filter(|reply| reply.status == StatusCode::OK).count();
        assert!(accepted >= 1, "{tenant}");
        let used = counted(&apps[0], &tenant).await.as_i64().expect("a number");
        assert!(
            (750..1750).contains(&used) && used == 750 * i64::try_from(accepted).expect("few"),
            "{tenant}: {used} by {accepted}"
        );
    }
    assert_eq!(db.number("SELECT count(*) AS n FROM usage_reservations").await, 0);
    assert_eq!(db.number("SELECT sum(reserved)::bigint AS n FROM usage_counters").await, 0);
}

#[tokio::test]
async fn a_turn_whose_quota_ends_between_its_calls_stands_still_with_what_it_has() {
    let app = app().await;
    tier(&app, json!([{"scope": "subtenant", "metric": "cost", "windowUnit": "day", "windowEvery": 2, "limit": 0.5}]))
        .await;
    let rule = |subtenant: &str| json!({"message": "Hi", "tenantId": "acme", "subtenantId": subtenant});
    assert_eq!(
        app.post("/assistants/default/messages", rule("u1")).await.status,
        StatusCode::OK,
        "the demo model costs nothing"
    );
    // Calls of the demo model are made to cost something from outside, while a tool sleeps.
    let id = agent(&app, json!({"assistantSpecialization": {"availableToolsGroupsUids": ["builtin-time"]}})).await;
    let started = app
        .post(
            &format!("/agents/{id}/threads"),
            json!({"message": "/tool wait_until {\"seconds\": 1}\nDone", "tenantId": "acme", "subtenantId": "u1"}),
        )
        .await;
    let thread = started.body["threadId"].as_str().expect("a thread").to_owned();
    thread_in(&app, &thread, "paused_for_resume").await;
    let nothing = app.post("/tenant-admin/acme/subtenants/u1/add-usage", json!({"cost": 1e-12})).await;
    assert_eq!(nothing.error(), "INVALID_USAGE_AMOUNT", "less than a nano-dollar");
    let large = app.post("/tenant-admin/acme/add-usage", json!({"tokens": 10_000_000_000_000_000_i64})).await;
    assert_eq!(large.error(), "INVALID_USAGE_AMOUNT", "more than any client can hold");
    let added =
        app.post("/tenant-admin/acme/subtenants/u1/add-usage", json!({"cost": 0.600_000_000_4, "source": "crm"})).await;
    assert_eq!(added.body["applied"]["cost"], 0.6, "as it is counted");
    assert_eq!(added.body["usage"][0]["percent"], 100.0, "{}", added.body);
    let waiting = |thread: &Value| thread["pausedReason"] == "TENANT_LIMIT_EXCEEDED";
    let stands = thread_until(&app, &thread, waiting).await;
    assert_eq!(stands["pausedUntil"], added.body["usage"][0]["resetsAt"]);
    assert_eq!(stands["state"], "paused_for_resume");
    let refused = app.post("/assistants/default/messages", rule("u1")).await;
    assert_eq!(
        (refused.error(), &refused.body["details"]["blockingRule"]["subtenantId"]),
        ("TENANT_LIMIT_EXCEEDED", &json!("u1"))
    );
    assert_eq!(
        app.post("/assistants/default/messages", rule("u2")).await.status,
        StatusCode::OK,
        "each end user for themselves"
    );
    app.post("/tenant-admin/acme/usage-limits/reset?subtenantId=u1", json!({})).await;
    act(&app, &thread, "resume", json!({})).await;
    thread_in(&app, &thread, "completed").await;

    // A chat: the second call of the turn is not made, and whoever waits is told so.
    let mut off = json!({"scope": "subtenant", "metric": "cost", "windowUnit": "day", "windowEvery": 2, "limit": 9});
    off["enabled"] = false.into();
    let hour = json!({"scope": "tenant", "metric": "tokens", "windowUnit": "hour", "limit": 1000});
    let set = app.request(reqwest::Method::PUT, "/tenant-admin/beta/usage-limits").json(&json!({"rules": [hour, off]}));
    let limits = app.send(set).await.body;
    let origins: Vec<&Value> = limits["effective"].as_array().expect("rules").iter().map(|of| &of["origin"]).collect();
    assert_eq!(origins, ["tier", "adhoc"], "what is switched off replaces nothing");
    let helper = json!({"name": "h", "identifier": "h", "availableToolsGroupsUids": ["builtin-time"]});
    assert_eq!(app.post("/assistants", helper).await.status, StatusCode::CREATED);
    let message = "/usage {\"inputTokens\": 1200}\n/tool current_time\nDone";
    let body = json!({"message": message, "chatUid": "c1", "tenantId": "beta"});
    let refused = app.post("/assistants/h/messages", body).await;
    assert_eq!((refused.status, refused.error()), (StatusCode::TOO_MANY_REQUESTS, "TENANT_LIMIT_EXCEEDED"));
    assert_eq!(refused.body["details"]["chatUid"], "c1");
    let chat = app.get("/assistants/h/chats/c1").await.body;
    assert_eq!((&chat["status"], chat["chatContent"].as_array().map(Vec::len)), (&json!("limit_exceeded"), Some(3)));
    assert_eq!(
        (&chat["pausedReason"], &chat["pausedUntil"]),
        (&json!("TENANT_LIMIT_EXCEEDED"), &refused.body["details"]["resetsAt"])
    );
}

#[tokio::test]
async fn windows_are_those_of_the_clock_of_the_database_and_end_up_in_the_history() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let units =
        [("hour", 1), ("hour", 5), ("day", 1), ("day", 3), ("week", 1), ("week", 2), ("month", 1), ("month", 5)];
    let rules: Vec<Value> = units
        .iter()
        .flat_map(|(unit, every)| {
            [("tenant", "tokens", 100_000), ("subtenant", "cost", 1000)].map(|(scope, metric, limit)| {
            json!({"scope": scope, "metric": metric, "windowUnit": unit, "windowEvery": every, "limit": limit})
        })
        })
        .collect();
    tier(&app, json!(rules)).await;
    // (tenant or end user, metric, unit, every, window) → what was taken in it
    let mut model: std::collections::BTreeMap<(&str, &str, &str, i64, i64), f64> = std::collections::BTreeMap::new();
    let mut now: i64 = 1_767_225_599_000;
    for step in 0..40_i64 {
        now += [1000, 3_599_000, 7_200_000, 86_400_000, 5 * 86_400_000, 17 * 86_400_000]
            [usize::try_from(step % 6).expect("small")];
        set_usage_clock(&db, &format!("to_timestamp({now}::numeric / 1000)")).await;
        let (tokens, cost) = (step + 1, f64::from(u32::try_from(step).expect("small")) / 4.0 + 0.25);
        let added =
            app.post("/tenant-admin/acme/subtenants/u1/add-usage", json!({"tokens": tokens, "cost": cost})).await;
        assert_eq!(added.status, StatusCode::OK, "{}", added.body);
        for (unit, every) in units {
            let key = window(unit, every, now).0;
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let tokens = tokens as f64;
            *model.entry(("", "tokens", unit, every, key)).or_default() += tokens;
            *model.entry(("u1", "cost", unit, every, key)).or_default() += cost;
        }
        for entry in added.body["usage"].as_array().expect("entries") {
            let (unit, every) =
                (entry["windowUnit"].as_str().expect("a unit"), entry["windowEvery"].as_i64().expect("a number"));
            let (unit, _) = units.iter().find(|known| **known == (unit, every)).expect("a rule");
            let metric = if entry["metric"] == "tokens" { "tokens" } else { "cost" };
            let (key, end) = window(unit, every, now);
            let whose = entry["subtenantId"].as_str().map_or("", |_| "u1");
            assert_eq!(entry["resetsAt"], end, "{unit} {every} at {now}");
            assert_eq!(entry["current"].as_f64(), Some(model[&(whose, metric, *unit, every, key)]), "{entry} at {now}");
        }
    }
    // Every window that has ended is in the history, once.
    let ended: Vec<_> =
        model.iter().filter(|((_, _, unit, every, key), _)| window(unit, *every, now).0 > *key).collect();
    let rows = eventually("the history", async || {
        let history = app.get("/tenant-usage/acme/history?limit=1000").await;
        let rows = history.body.as_array().expect("rows").clone();
        assert_eq!(history.header("x-total-count"), rows.len().to_string());
        (rows.len() == ended.len()).then_some(rows)
    })
    .await;
    for ((whose, metric, unit, every, key), amount) in ended {
        let of = |row: &&Value| {
            row["subtenantId"] == **whose
                && row["metric"] == *metric
                && row["windowUnit"] == *unit
                && row["windowEvery"] == *every
                && row["windowKey"] == json!(key.to_string())
        };
        let row = rows.iter().find(of).unwrap_or_else(|| panic!("{whose} {metric} {unit} {every} {key}"));
        assert_eq!(row["consumption"].as_f64(), Some(*amount), "{row}");
        assert_eq!(row["externalConsumption"], row["consumption"]);
        assert_eq!(row["windowEnd"], window(unit, *every, row["windowStart"].as_i64().expect("ms")).1);
        assert_eq!((&row["origin"], &row["tierId"]), (&json!("tier"), &json!("pro")));
    }
    let unscoped = app.get("/tenant-usage/acme/subtenants/u1/history?scope=tenant&subtenantId=none").await;
    assert_eq!(unscoped.header("x-ignored-fields"), "?scope,?subtenantId");
    assert!(unscoped.body.as_array().is_some_and(|rows| !rows.is_empty() && rows[0]["subtenantId"] == "u1"));
    let some = app.get("/tenant-usage/acme/subtenants/u1/history?metric=COST&windowUnit=week&limit=2&skip=1").await;
    let some = some.body.as_array().expect("rows").clone();
    assert!(some.len() == 2 && some.iter().all(|row| row["scope"] == "subtenant" && row["windowUnit"] == "week"));
    assert!(some[0]["windowEnd"].as_i64() >= some[1]["windowEnd"].as_i64(), "newest first");
    let (from, to) = (some[1]["windowStart"].as_i64().expect("ms"), some[1]["windowEnd"].as_i64().expect("ms"));
    let within =
        app.get(&format!("/tenant-usage/acme/history?from={from}&to={to}&windowUnit=week&scope=tenant")).await.body;
    let within = within.as_array().expect("rows");
    let is_within = |row: &Value| row["windowEnd"].as_i64() >= Some(from) && row["windowStart"].as_i64() <= Some(to);
    assert!(!within.is_empty() && within.iter().all(|row| row["subtenantId"] == "" && is_within(row)), "{within:?}");
    assert_eq!(app.get("/tenant-usage/acme/history?from=2&to=1").await.error(), "INVALID_TIME_RANGE");
    for tokens in [79_000, 2000, 15_000, 4000] {
        app.post("/tenant-admin/big/add-usage", json!({"tokens": tokens})).await;
    }
    let told = async |kind: &str, percent: &str| {
        let of = format!(
            "SELECT count(*) AS n FROM events WHERE kind = '{kind}' AND (data -> 'rule' ->> 'percent')::float8 {percent}"
        );
        db.number(&of).await
    };
    eventually("the events", async || (told("tenant.limit_reached", "= 100").await == 8).then_some(())).await;
    assert_eq!(told("tenant.limit_warning", "= 81").await, 8, "once for each window");
}

/// Thirty lines of arithmetic: the number of a window since 1970, and its end (contract 10 §3).
fn window(unit: &str, every: i64, ms: i64) -> (i64, i64) {
    use chrono::{DateTime, Datelike, NaiveDate};
    let (hours, days) = (ms.div_euclid(3_600_000), ms.div_euclid(86_400_000));
    let key = match unit {
        "hour" => hours / every,
        "day" => days / every,
        "week" => (days + 3) / 7 / every,
        _ => {
            let at = DateTime::from_timestamp_millis(ms).expect("a time");
            (i64::from(at.year() - 1970) * 12 + i64::from(at.month0())) / every
        }
    };
    let end = match unit {
        "hour" => (key + 1) * every * 3_600_000,
        "day" => (key + 1) * every * 86_400_000,
        "week" => ((key + 1) * every * 7 - 3) * 86_400_000,
        _ => {
            let months = (key + 1) * every;
            let year = i32::try_from(1970 + months / 12).expect("a year");
            let month = u32::try_from(months % 12 + 1).expect("a month");
            let first = NaiveDate::from_ymd_opt(year, month, 1).expect("a day");
            first.and_hms_opt(0, 0, 0).expect("midnight").and_utc().timestamp_millis()
        }
    };
    (key, end)
}
