//! Who may do what is changed as a whole or not at all, whoever dies (`docs/RELIABILITY.md`).

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use platform_testing::{Reply, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::{
    access::post,
    crash::kill,
    mcp_gateway::profile,
    support::{Granted, PROGRAM, UNBOUNDED, factor, granted, text, user},
    triggers::hooked,
};

const KILLS: usize = 8;
const MASK: &str = "••••••••";

/// The platform that dies now and then, and whether it is over.
struct Fixture {
    app: RwLock<TestApp>,
    over: AtomicBool,
    writes: AtomicUsize,
}

impl Fixture {
    /// Asks with a credential until there is an answer that says what came of it.
    async fn ask(&self, credential: &str, method: &Method, path: &str, once: &str, body: &Value) -> Reply {
        let patience = Instant::now() + Duration::from_mins(2);
        loop {
            assert!(Instant::now() < patience, "{method} {path} was never answered");
            let request = {
                let app = self.app.read().await;
                let request = app.anonymous(method.clone(), &format!("/v1{path}")).bearer_auth(credential);
                let request = if method == Method::POST { request.header("idempotency-key", once) } else { request };
                if body.is_null() { request } else { request.json(body) }
            };
            if let Ok(answer) = request.timeout(Duration::from_secs(5)).send().await {
                let (status, headers) = (answer.status(), answer.headers().clone());
                if let Ok(body) = answer.json::<Value>().await
                    && !status.is_server_error()
                    && body["error"] != "IDEMPOTENCY_IN_PROGRESS"
                {
                    return Reply { status, headers, body };
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A write that comes to be, however often it is asked for.
    async fn write(&self, method: Method, path: &str, once: &str, body: Value) -> Value {
        let key = self.app.read().await.key().to_owned();
        let done = self.ask(&key, &method, path, once, &body).await;
        // What was deleted by a request that got no answer is not there any more.
        let was_done = method == Method::DELETE && done.status == StatusCode::NOT_FOUND;
        assert!(done.status.is_success() || was_done, "{method} {path}: {} {}", done.status, done.body);
        self.writes.fetch_add(1, Ordering::Relaxed);
        done.body
    }

    async fn post(&self, path: &str, once: &str, body: Value) -> Value {
        self.write(Method::POST, path, once, body).await
    }

    async fn read(&self, path: &str) -> Value {
        let key = self.app.read().await.key().to_owned();
        self.ask(&key, &Method::GET, path, "", &Value::Null).await.body
    }

    /// A credential that must be good for nothing now; one that was masked is nobody's.
    async fn is_dead(&self, what: &str, credential: &Value) {
        let credential = text(credential);
        if credential != MASK {
            let refused = self.ask(&credential, &Method::GET, "/assistants", "", &Value::Null).await;
            assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{what}: {}", refused.body);
        }
    }

    /// Mints with a credential, if it was not masked.
    async fn mint(&self, minter: &Value, tenant: &str, once: &str) -> Value {
        let minter = text(minter);
        if minter == MASK {
            return json!(MASK);
        }
        let minted = self.ask(&minter, &Method::POST, "/tenant-sessions", once, &json!({"tenantId": tenant})).await;
        assert_eq!(minted.status, StatusCode::CREATED, "{}", minted.body);
        minted.body["token"].clone()
    }

    /// Rounds of work until the last kill.
    async fn rounds(&self, name: &str, round: impl AsyncFn(&str, usize)) {
        let mut n = 0;
        while n < 3 || !self.over.load(Ordering::Relaxed) {
            round(&format!("{name}-{n}"), n).await;
            n += 1;
        }
    }

    async fn keys(&self, name: &str) {
        self.rounds(name, async |once, n| {
            let made = self.post("/api-keys", once, json!({"name": once})).await;
            let path = format!("/api-keys/{}", text(&made["_id"]));
            let of_first = self.mint(&made["key"], name, once).await;
            let rotated = self.post(&format!("{path}/rotate"), once, json!({})).await;
            self.is_dead("the old value", &made["key"]).await;
            self.is_dead("what it minted", &of_first).await;
            let of_second = self.mint(&rotated["key"], name, &format!("{once}-2")).await;
            if n % 2 == 0 {
                self.write(Method::PATCH, &path, "", json!({"disabled": true})).await;
            } else {
                self.write(Method::DELETE, &path, "", Value::Null).await;
            }
            self.is_dead("a key that is off", &rotated["key"]).await;
            self.is_dead("what a key minted that is off", &of_second).await;
        })
        .await;
    }

    async fn tenants(&self, name: &str) {
        let key = json!(self.app.read().await.key());
        self.rounds(name, async |once, _| {
            let token = self.mint(&key, name, once).await;
            self.write(Method::DELETE, &format!("/tenants/{name}"), "", Value::Null).await;
            self.is_dead("a session of a tenant that is gone", &token).await;
        })
        .await;
    }

    async fn members(&self, name: &str, users: &[String]) {
        let project = json!({"name": name, "identifier": name});
        let members = format!("/projects/{}/members", text(&self.post("/projects", name, project).await["_id"]));
        self.rounds(name, async |once, n| {
            let [owner, other] = [n % 2, (n + 1) % 2].map(|at| &users[at]);
            for (user, role) in [(owner, "owner"), (other, "viewer")] {
                self.post(&members, &format!("{once}-{role}"), json!({"userUID": user, "role": role})).await;
            }
            let roles = self.read(&members).await;
            let mut roles: Vec<(String, String)> =
                roles.as_array().expect("members").iter().map(|m| (text(&m["userUID"]), text(&m["role"]))).collect();
            roles.sort();
            let mut expected = vec![(owner.clone(), "owner".to_owned()), (other.clone(), "viewer".to_owned())];
            expected.sort();
            assert_eq!(roles, expected);
            self.write(Method::DELETE, &format!("{members}/{other}"), "", Value::Null).await;
        })
        .await;
    }

    async fn tiers(&self, name: &str) {
        self.rounds(name, async |once, n| {
            let mut tier = json!({"tierId": once, "name": "t", "isDefault": true, "rules": []});
            let made = self.post("/tenant-admin/tiers", once, tier.clone()).await;
            assert_eq!(made["tierId"], once);
            tier["isDefault"] = json!(n % 3 == 0);
            self.write(Method::PUT, &format!("/tenant-admin/tiers/{once}"), "", tier).await;
            let tiers = self.read("/tenant-usage/tiers").await;
            let defaults = tiers.as_array().expect("tiers").iter().filter(|tier| tier["isDefault"] == true).count();
            assert!(defaults <= 1, "{tiers}");
        })
        .await;
    }

    async fn quotas(&self, name: &str) {
        let admin = format!("/tenant-admin/{name}");
        let rule = json!({"scope": "tenant", "metric": "tokens", "windowUnit": "month", "windowEvery": 366,
            "limit": 1_000_000});
        self.write(Method::PUT, &format!("{admin}/usage-limits"), "", json!({"rules": [rule]})).await;
        self.rounds(name, async |once, _| {
            for (n, current) in [(0, 7), (1, 14)] {
                let body = json!({"tokens": 7});
                let added = self.post(&format!("{admin}/add-usage"), &format!("{once}-{n}"), body).await;
                assert_eq!(added["usage"][0]["current"], current, "{added}");
            }
            let reset = self.post(&format!("{admin}/usage-limits/reset"), once, json!({"reason": once})).await;
            assert_eq!((&reset["cleared"], &reset["usage"][0]["current"]), (&json!(1), &json!(0)), "{reset}");
        })
        .await;
    }

    /// A user changes their password, and goes.
    async fn users(&self, name: &str, of: &Granted, key: &Value, session: &Value) {
        let path = format!("/users/{}", of.user);
        self.write(Method::PATCH, &path, "", json!({"password": format!("a long password of {name}")})).await;
        self.is_dead("a token of before", &json!(of.access)).await;
        self.is_dead("a session of before", session).await;
        self.write(Method::DELETE, &path, "", Value::Null).await;
        self.is_dead("a key of somebody who is gone", key).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_sessions_members_tiers_and_quotas_are_changed_wholly_or_not_at_all_whenever_the_process_dies() {
    let db = TestDb::new().await;
    let settings = [&UNBOUNDED[..], &[("PLATFORM_RATE_BAD_CREDENTIAL", "0")]].concat();
    let app = TestApp::start(PROGRAM, &db, &settings);
    let mut leaving = Vec::new();
    for n in 0..4 {
        let of = granted(&app, &format!("user{n}"), "admin", Some(json!(["platform:write", "keys:write"]))).await;
        let key = post(&app, &of.access, "/api-keys", json!({"name": "k"})).await.body["key"].clone();
        let minted = post(&app, &of.access, "/tenant-sessions", json!({"tenantId": format!("of-user{n}")})).await;
        leaving.push((of, key, minted.body["token"].clone()));
    }
    let mut staying = Vec::new();
    for n in 0..2 {
        let user = json!({"email": format!("stays{n}@example.com"), "password": "correct horse battery"});
        staying.push(text(&app.post("/users", user).await.body["userUID"]));
    }
    let fixture = Fixture { app: RwLock::new(app), over: AtomicBool::new(false), writes: AtomicUsize::new(0) };
    let (fixture, staying) = (&fixture, &staying);
    let killing = async {
        kill(&fixture.app, KILLS * factor(5)).await;
        fixture.over.store(true, Ordering::Relaxed);
    };
    let users = join_all(leaving.iter().enumerate().map(async |(n, (of, key, session))| {
        tokio::time::sleep(Duration::from_millis(300 * u64::try_from(n).expect("small"))).await;
        fixture.users(&format!("user{n}"), of, key, session).await;
    }));
    let each = |name: &'static str| (0..3).map(move |n| format!("{name}-{n}"));
    let keys = join_all(each("key").map(async |name| fixture.keys(&name).await));
    let tenants = join_all(each("tenant").map(async |name| fixture.tenants(&name).await));
    let members = join_all(each("project").map(async |name| fixture.members(&name, staying).await));
    let tiers = join_all(each("tier").map(async |name| fixture.tiers(&name).await));
    let quotas = join_all(each("quota").map(async |name| fixture.quotas(&name).await));
    tokio::join!(killing, users, keys, tenants, members, tiers, quotas);
    let writes = fixture.writes.load(Ordering::Relaxed);
    assert!(writes > 100, "{writes} writes");
    for (what, torn) in [
        (
            "a session outlives its key",
            "SELECT count(*) AS n FROM tenant_sessions s WHERE revoked_ms IS NULL AND user_id IS NULL AND NOT EXISTS
                (SELECT FROM api_keys k WHERE k.id = s.api_key_id AND NOT k.disabled)",
        ),
        (
            "a session outlives its tenant",
            "SELECT count(*) AS n FROM tenant_sessions s WHERE revoked_ms IS NULL AND NOT EXISTS
                (SELECT FROM tenants t WHERE t.tenant_id = s.tenant_id)",
        ),
        (
            "a key outlives its user",
            "SELECT count(*) AS n FROM api_keys k WHERE user_id IS NOT NULL AND NOT disabled AND NOT EXISTS
                (SELECT FROM users u WHERE u.id = k.user_id)",
        ),
        (
            "a quota is changed and not noted, or noted and not changed",
            "SELECT abs(7 * (SELECT count(*) FROM tenant_audit WHERE action = 'add_usage')
                - (SELECT sum(input_tokens) FROM costs WHERE kind = 'external'))::bigint AS n",
        ),
        (
            "a reset is noted twice",
            "SELECT count(*) - count(DISTINCT body ->> 'reason') AS n FROM tenant_audit WHERE action = 'reset'",
        ),
        ("there are two default tiers", "SELECT count(*) / 2 AS n FROM tiers WHERE is_default"),
        (
            "a project lost its owners",
            "SELECT count(*) AS n FROM projects p WHERE NOT EXISTS
                (SELECT FROM project_members m WHERE m.project_id = p.id AND m.role = 'owner')",
        ),
    ] {
        assert_eq!(db.number(torn).await, 0, "{what}");
    }
}

#[tokio::test]
async fn what_is_kept_of_agents_and_users_who_are_gone_goes_when_they_are_deleted_again() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[]);
    let (trigger, _) = hooked(&app, json!({})).await;
    let agent = text(&app.get(&trigger).await.body["target"]["id"]);
    let (ann, _) = user(&app, "ann", "member").await;
    let open = profile(&app, json!({"name": "Open"})).await;
    let grant = json!({"profileId": open["_id"], "subjectType": "user", "subject": ann});
    assert_eq!(app.post("/mcp-gateway/grants", grant).await.status, StatusCode::CREATED);
    // Whoever deleted them was cut off before what goes with them.
    db.run(&format!("UPDATE agents SET deleted = true WHERE id = '{agent}'")).await;
    db.run(&format!("DELETE FROM users WHERE id = '{ann}'")).await;
    for (path, kept) in [(format!("/agents/{agent}"), "/triggers"), (format!("/users/{ann}"), "/mcp-gateway/grants")] {
        assert_eq!(app.get(kept).await.body["total"], 1, "{kept}");
        assert_eq!(app.delete(&path).await.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(app.get(kept).await.body["total"], 0, "{kept}");
    }
}
