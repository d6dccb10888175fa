//! What holds for a tenant whatever becomes of its record, and who decides on it (contract 10).

use futures_util::future::join_all;
use platform_testing::{TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    access::{call, get, key, post, session},
    support::{PROGRAM, agent, app, eventually, set_usage_clock, text, thread_in, user},
};

async fn at(db: &TestDb, moment: &str) {
    set_usage_clock(db, &format!("'{moment}'::timestamptz")).await;
}

async fn tier(app: &TestApp, name: &str, limit: i64, is_default: bool) {
    let rules = json!([{"scope": "tenant", "metric": "tokens", "windowUnit": "month", "limit": limit},
        {"scope": "subtenant", "metric": "tokens", "windowUnit": "month", "limit": limit}]);
    let tier = json!({"tierId": name, "name": name, "isDefault": is_default, "rules": rules});
    let made = app.post("/tenant-admin/tiers", tier).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
}

/// What a message of the end user is answered.
async fn say(app: &TestApp) -> Value {
    let body = json!({"message": "Hi", "tenantId": "acme", "subtenantId": "u1"});
    app.post("/assistants/default/messages", body).await.body["error"].clone()
}

#[tokio::test]
async fn who_is_deleted_and_comes_back_has_the_same_rules_and_no_fresh_quota_until_the_windows_end() {
    let db = TestDb::new().await;
    at(&db, "2030-01-15T00:00:00Z").await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    for (name, limit, is_default) in [("big", 100_000, true), ("free", 1000, false), ("tiny", 500, false)] {
        tier(&app, name, limit, is_default).await;
    }
    let (_, narrow) = key(&app, json!({"allowedEndpoints": [{"method": "*", "path": "/tenants/**"}]})).await;
    app.post("/tenants", json!({"tenantId": "acme"})).await;
    assert_eq!(say(&app).await, Value::Null);
    let admin = "/tenant-admin/acme";
    let own = json!({"scope": "tenant", "metric": "cost", "windowUnit": "month", "limit": 3});
    for (path, body) in [
        (format!("{admin}/tier"), json!({"tierId": "free"})),
        (format!("{admin}/subtenants/u1/tier"), json!({"tierId": "tiny"})),
        (format!("{admin}/subtenants/u1/add-usage"), json!({"tokens": 2000})),
    ] {
        assert_eq!(app.post(&path, body).await.status, StatusCode::OK, "{path}");
    }
    let limits = app.request(Method::PUT, &format!("{admin}/usage-limits")).json(&json!({"rules": [own]}));
    let limits = app.send(limits).await.body;
    let spent = json!("TENANT_LIMIT_EXCEEDED");
    let stands = async |what: &str| {
        assert_eq!(say(&app).await, spent, "{what}");
        let now = app.get(&format!("{admin}/usage-limits")).await.body;
        assert_eq!(now, limits, "{what}");
        assert_eq!(app.get("/tenants/acme").await.body["tierId"], "free", "{what}");
        assert_eq!(app.get("/tenants/acme/subtenants/u1").await.body["tierId"], "tiny", "{what}");
    };
    stands("at first").await;
    let of_tenant = session(&app, json!({"tenantId": "acme"})).await;
    call(&app, &narrow, Method::DELETE, "/tenants/acme", None).await;
    assert_eq!(app.get("/tenants/acme").await.error(), "TENANT_NOT_FOUND");
    assert_eq!(get(&app, &of_tenant, "/assistants").await.error(), "TOKEN_REVOKED");
    stands("by a message").await;
    call(&app, &narrow, Method::DELETE, "/tenants/acme/subtenants/u1", None).await;
    stands("an end user").await;
    call(&app, &narrow, Method::DELETE, "/tenants/acme", None).await;
    let again = post(&app, &narrow, "/tenants", json!({"tenantId": "acme", "tierId": "big"})).await;
    assert_eq!((again.status, &again.body["tierId"]), (StatusCode::CREATED, &json!("free")), "{}", again.body);
    stands("by its record").await;
    // Who administrates decides.
    app.delete("/tenants/acme").await;
    assert_eq!(app.post("/tenants", json!({"tenantId": "acme", "tierId": "big"})).await.body["tierId"], "big");
    app.post(&format!("{admin}/subtenants/u1/usage-limits/reset"), json!({})).await;
    assert_eq!(say(&app).await, Value::Null);
    app.post(&format!("{admin}/tier"), json!({"tierId": "free"})).await;
    app.delete("/tenants/acme").await;
    at(&db, "2030-02-01T00:00:00Z").await;
    assert_eq!(say(&app).await, Value::Null);
    let fresh = app.get("/tenants/acme").await.body;
    assert_eq!(fresh.get("tierId"), None, "the windows have ended");
    assert_eq!(app.get(&format!("{admin}/usage-limits")).await.body["rules"], json!([]));
}

#[tokio::test]
async fn tiers_take_a_full_key_and_what_is_set_is_said_whole() {
    let app = app().await;
    tier(&app, "big", 100_000, true).await;
    tier(&app, "gold", 1000, false).await;
    let (_, narrow) = key(&app, json!({"allowedEndpoints": [{"method": "*", "path": "/tenants/**"}]})).await;
    let (_, bound) = key(&app, json!({"projectIds": []})).await;
    let (_, admin) = user(&app, "root", "admin").await;
    for (n, credential) in [narrow, bound, admin].iter().enumerate() {
        let make = async |tier: &str| {
            post(&app, credential, "/tenants", json!({"tenantId": format!("t{n}"), "tierId": tier})).await
        };
        for tier in ["gold", "nothing"] {
            let refused = make(tier).await;
            assert_eq!((refused.status, refused.error()), (StatusCode::FORBIDDEN, "FULL_KEY_REQUIRED"), "{n} {tier}");
        }
        assert_eq!(make("big").await.status, StatusCode::CREATED);
    }
    assert_eq!(app.post("/tenants", json!({"tenantId": "t", "tierId": "gold"})).await.status, StatusCode::CREATED);
    for id in [".", ".."] {
        for (path, body) in [
            ("/tenants", json!({"tenantId": id})),
            ("/tenant-sessions", json!({"tenantId": id})),
            ("/tenant-sessions", json!({"tenantId": "a", "subtenantId": id})),
            ("/assistants/default/messages", json!({"message": "Hi", "tenantId": "a", "subtenantId": id})),
        ] {
            assert_eq!(app.post(path, body).await.error(), "VALIDATION_ERROR", "{path} {id}");
        }
    }
    for body in [json!({}), json!({"rules": null})] {
        let put = app.request(Method::PUT, "/tenant-admin/t/usage-limits").json(&body);
        let refused = app.send(put).await;
        assert_eq!(
            (refused.error(), &refused.body["details"]["issues"][0]["path"]),
            ("VALIDATION_ERROR", &json!("rules"))
        );
    }
}

#[tokio::test]
async fn one_tier_is_the_default_whoever_makes_one_at_the_same_moment() {
    let db = TestDb::new().await;
    let apps = [TestApp::start(PROGRAM, &db, &[]), TestApp::start(PROGRAM, &db, &[])];
    let tier = |n: usize| json!({"tierId": format!("t{n}"), "name": "t", "isDefault": true, "rules": []});
    let made = join_all((0..16).map(|n| apps[n % 2].post("/tenant-admin/tiers", tier(n)))).await;
    assert!(made.iter().all(|made| made.status == StatusCode::CREATED), "{made:?}");
    let replace = |n: usize| {
        let app = &apps[n % 2];
        let request = app.request(Method::PUT, &format!("/tenant-admin/tiers/t{}", n % 4)).json(&tier(n % 4));
        app.send(request)
    };
    let replaced = join_all((0..16).map(replace)).await;
    assert!(replaced.iter().all(|replaced| replaced.status == StatusCode::OK), "{replaced:?}");
    assert_eq!(db.number("SELECT count(*) AS n FROM tiers WHERE is_default").await, 1);
}

#[tokio::test]
async fn sums_of_a_tenant_agree_wherever_they_stand_and_secondary_calls_stand_apart() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let project = text(&app.post("/projects", json!({"name": "P", "identifier": "p"})).await.body["_id"]);
    app.post("/assistants", json!({"name": "A", "identifier": "a", "projectId": project})).await;
    let body = json!({"message": "Hi", "tenantId": "acme", "skipSummarization": true});
    assert_eq!(app.post("/assistants/a/messages", body).await.status, StatusCode::OK);
    db.run("UPDATE costs SET cost = 3000000000, secondary_cost = 1000000000").await;
    app.post("/tenant-admin/acme/add-usage", json!({"cost": 0.5, "tokens": 7})).await;
    let stats = app.get("/tenants/acme/stats").await.body["cost"].clone();
    let costs = app.get("/tenants/acme/costs").await.body[0].clone();
    let within = app.get("/projects/p/costs/daily").await.body[0].clone();
    let project = app.get("/projects/p/stats").await.body;
    assert_eq!((&stats["totalCost"], &stats["secondaryCost"]), (&json!(3.5), &json!(1)));
    for (whole, days) in [(&stats, &costs), (&project["totals"], &within), (&project["last30Days"], &within)] {
        for field in ["totalCost", "secondaryCost", "inputTokens", "outputTokens"] {
            assert_eq!(whole[field], days[field], "{field}");
        }
    }
}

#[tokio::test]
async fn what_a_run_reserved_whose_process_died_stands_in_nobodys_way_and_what_is_held_is_waited_for_shortly() {
    let db = TestDb::new().await;
    let short = [("PLATFORM_RUN_LEASE", "2s"), ("PLATFORM_RUN_HEARTBEAT", "500ms")];
    let mut app = TestApp::start(PROGRAM, &db, &short);
    let rule = json!({"scope": "tenant", "metric": "tokens", "windowUnit": "month", "limit": 1500});
    let limits = app.request(Method::PUT, "/tenant-admin/acme/usage-limits").json(&json!({"rules": [rule]}));
    assert_eq!(app.send(limits).await.status, StatusCode::OK);
    let accepted = json!({"message": "/wait 10s\n/say hello", "tenantId": "acme", "chatUid": "c"});
    let sent = app.post("/assistants/default/messages?async=true&skipSummarization=true", accepted).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.body);
    eventually("the call is under way", async || {
        (db.number("SELECT count(*) AS n FROM usage_reservations").await == 1).then_some(())
    })
    .await;
    let held = app.post("/assistants/default/messages", json!({"message": "Hi", "tenantId": "acme"})).await;
    assert_eq!((held.error(), &held.body["details"]["current"]), ("TENANT_LIMIT_EXCEEDED", &json!(0)));
    assert_eq!(held.body["retryAfter"], 15, "it is held, not spent: {}", held.body);

    app.crash();
    let app = TestApp::start(PROGRAM, &db, &short);
    let said = eventually("it is answered by whoever takes it over", async || {
        let chat = app.get("/assistants/default/chats/c").await.body;
        (chat["status"] == "completed").then_some(chat["chatContent"].clone())
    })
    .await;
    assert_eq!(said.as_array().and_then(|all| all.last()).expect("a message")["content"]["message"], "hello");
    assert_eq!(db.number("SELECT coalesce(sum(reserved), 0)::bigint AS n FROM usage_counters").await, 0);
}

#[tokio::test]
async fn what_a_tier_excludes_is_neither_blocked_nor_counted_and_stands_apart_in_the_history() {
    let db = TestDb::new().await;
    at(&db, "2030-01-15T00:00:00Z").await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let free = json!({"name": "Free", "identifier": "free"});
    assert_eq!(app.post("/assistants", free).await.status, StatusCode::CREATED);
    let by_id = app.post("/assistants", json!({"name": "By id", "identifier": "by-id"})).await.body;
    let (worker, counted) = (agent(&app, json!({})).await, agent(&app, json!({})).await);
    let tier = json!({"tierId": "pro", "name": "Pro", "isDefault": true,
        "rules": [{"scope": "tenant", "metric": "tokens", "windowUnit": "day", "limit": 1000}],
        "excludedAssistants": ["free", by_id["_id"]], "excludedAgents": [worker]});
    assert_eq!(app.post("/tenant-admin/tiers", tier).await.status, StatusCode::CREATED);
    let said = async |assistant: &str| {
        let message = json!({"message": "/tokens 20", "tenantId": "acme", "skipSummarization": true});
        app.post(&format!("/assistants/{assistant}/messages"), message).await.body["error"].clone()
    };
    let work = async |agent: &str| {
        let started = json!({"message": "/tokens 20", "tenantId": "acme"});
        app.post(&format!("/agents/{agent}/threads"), started).await
    };
    let ended = async |agent: &str| {
        let thread = text(&work(agent).await.body["threadId"]);
        thread_in(&app, &thread, "completed").await;
    };
    let taken = async || app.get("/tenant-usage/acme").await.body["usage"][0]["current"].as_i64().unwrap_or(0);
    for _ in 0..2 {
        for assistant in ["free", "by-id"] {
            assert_eq!(said(assistant).await, Value::Null, "{assistant}");
        }
        ended(&worker).await;
    }
    assert_eq!(taken().await, 0);
    assert_eq!(said("default").await, Value::Null);
    let own = taken().await;
    assert!(own > 0);
    app.post("/tenant-admin/acme/add-usage", json!({"tokens": 1000})).await;
    assert_eq!(said("default").await, "TENANT_LIMIT_EXCEEDED");
    assert_eq!(work(&counted).await.error(), "TENANT_LIMIT_EXCEEDED");
    assert_eq!((said("free").await, said("by-id").await), (Value::Null, Value::Null));
    ended(&worker).await;
    at(&db, "2030-01-16T00:00:00Z").await;
    let row = eventually("the day that is over", async || {
        app.get("/tenant-usage/acme/history").await.body.as_array()?.first().cloned()
    });
    let row = row.await;
    assert_eq!((&row["consumption"], &row["externalConsumption"]), (&json!(own + 1000), &json!(1000)), "{row}");
    // Nine answers of twenty words and what they were asked with.
    assert!(row["exemptConsumption"].as_i64().is_some_and(|exempt| exempt >= 9 * 20), "{row}");
}
