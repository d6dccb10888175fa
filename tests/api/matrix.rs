//! Every route with every kind of credential, and with ids of somebody else: made from the route table itself.

use std::collections::BTreeSet;

use platform_testing::{FakeMcpServer, TestApp, TestDb};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    integrations::app_with_crm,
    projects::enlist,
    support::{
        MISSING, PROGRAM, agent, app, one_of_each, one_of_each_in, other_account, text, thread_in, user, user_with,
    },
    uploads::upload,
};

/// Who may call what; each line `METHOD path | keys | session | scope`.
const TABLE: &str = include_str!("access_table.txt");

struct Route {
    method: Method,
    path: String,
    keys: String,
    session: bool,
    scope: Option<String>,
}

async fn routes(app: &TestApp) -> Vec<Route> {
    let document = app.get("/openapi.json").await.body;
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let access = &operation["x-access"];
            routes.push(Route {
                method: Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method"),
                path: path.clone(),
                keys: access["keys"].as_str().expect("keys").to_owned(),
                session: access["session"] == true,
                scope: access["scope"].as_str().map(str::to_owned),
            });
        }
    }
    routes
}

#[tokio::test]
async fn the_route_table_is_the_one_that_was_agreed() {
    let app = app().await;
    let line = |route: &Route| {
        let (session, scope) = (if route.session { "yes" } else { "-" }, route.scope.as_deref().unwrap_or("-"));
        format!("{} {} | {} | {session} | {scope}", route.method, route.path, route.keys)
    };
    let there: BTreeSet<String> = routes(&app).await.iter().map(line).collect();
    let agreed: BTreeSet<String> = TABLE.lines().map(str::to_owned).collect();
    let (more, less): (Vec<_>, Vec<_>) = (there.difference(&agreed).collect(), agreed.difference(&there).collect());
    assert!(more.is_empty() && less.is_empty(), "not agreed: {more:#?}\nnot there: {less:#?}");
}

/// What comes of a request to a route, its placeholders filled in; its path may have a query.
async fn call(app: &TestApp, credential: &str, route: &Route, fill: impl Fn(&str) -> String) -> (StatusCode, String) {
    let (path, query) = route.path.split_once('?').unwrap_or((&route.path, ""));
    let path: Vec<String> = path
        .split('/')
        .map(|segment| match segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) => fill(name),
            None => segment.to_owned(),
        })
        .collect();
    let request = app.anonymous(route.method.clone(), &format!("{}?{query}", path.join("/")));
    let request = if credential.is_empty() { request } else { request.bearer_auth(credential) };
    let reply = app
        .send(if [Method::GET, Method::HEAD].contains(&route.method) { request } else { request.json(&json!({})) })
        .await;
    (reply.status, reply.error().to_owned())
}

#[tokio::test]
async fn every_credential_opens_what_its_row_says_and_nothing_else() {
    let settings = [
        ("PLATFORM_RATE_BAD_CREDENTIAL", "0"),
        ("PLATFORM_RATE_CREATE_SESSION", "0"),
        ("PLATFORM_RATE_CREATE_KEY", "0"),
        ("PLATFORM_RATE_SESSION", "0"),
        ("PLATFORM_RATE_RESTRICTED", "0"),
        ("PLATFORM_RATE_OAUTH", "0"),
    ];
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let key = async |body: Value| app.post("/api-keys", body).await.body["key"].as_str().expect("a key").to_owned();
    let listed = key(json!({"name": "l", "allowedEndpoints": [{"method": "*", "path": "/**"}]})).await;
    let unlisted = key(json!({"name": "u", "allowedEndpoints": [{"method": "GET", "path": "/nothing"}]})).await;
    let page = key(json!({"name": "p", "allowedDomains": ["a.b"]})).await;
    let signed = key(json!({"name": "s", "identityMode": "signed"})).await;
    let bound = key(json!({"name": "b", "projectIds": []})).await;
    let session = app.post("/tenant-sessions", json!({"tenantId": "acme"})).await.body["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let (_, token) = user(&app, "ann", "member").await;
    let (_, models) = user_with(&app, "bob", "admin", Some(json!(["models:read"]))).await;
    let mut tried = 0;
    for route in routes(&app).await {
        let named = format!("{} {}", route.method, route.path);
        let public = route.keys == "public";
        let full = route.keys == "full";
        let account_wide = full && !["/v1/api-keys", "/oauth/"].iter().any(|own| route.path.starts_with(own));
        let mints = route.keys == "key, signed";
        let policy = |refused: bool, code: &'static str| (!public && refused).then_some(code);
        // What the catch-alls of a token do not open.
        let apart = |scope: &String| scope.starts_with("tenant-admin:") || scope == "keys:write";
        let out_of = |opens: &dyn Fn(&String) -> bool| match &route.scope {
            None => policy(true, "FULL_KEY_REQUIRED"),
            Some(scope) => policy(!opens(scope), "INSUFFICIENT_SCOPE"),
        };
        for (who, credential, refusal) in [
            ("nobody", "", policy(true, "UNAUTHENTICATED")),
            ("a guess", "ak-0000000000000000000000000000000000000000000", policy(true, "UNAUTHENTICATED")),
            ("no token", "a.b.c", policy(true, "UNAUTHENTICATED")),
            ("a full key", app.key(), None),
            ("a listed key", listed.as_str(), policy(full, "FULL_KEY_REQUIRED")),
            ("an unlisted key", unlisted.as_str(), policy(true, "KEY_ENDPOINT_FORBIDDEN")),
            (
                "a page's key",
                page.as_str(),
                policy(true, if mints { "BROWSER_MINT_FORBIDDEN" } else { "KEY_DOMAIN_FORBIDDEN" }),
            ),
            ("a signed key", signed.as_str(), policy(!mints, "KEY_REQUIRES_SESSION")),
            ("a user's token", token.as_str(), out_of(&|scope| !apart(scope))),
            ("a token for models", models.as_str(), out_of(&|scope| scope == "models:read")),
            ("a project's key", bound.as_str(), policy(account_wide, "FULL_KEY_REQUIRED")),
            (
                "a session",
                session.as_str(),
                policy(!route.session, if mints { "SESSION_CANNOT_MINT" } else { "SESSION_ROUTE_FORBIDDEN" }),
            ),
        ] {
            let fill = |name: &str| {
                if who == "a session" && name == "tenantId" { "acme".to_owned() } else { MISSING.to_owned() }
            };
            let (status, code) = call(&app, credential, &route, fill).await;
            tried += 1;
            match refusal {
                Some(expected) => assert_eq!(code, expected, "{who}: {named}"),
                None => {
                    let policy =
                        ["UNAUTHENTICATED", "FULL_KEY_REQUIRED", "KEY_", "SESSION_ROUTE", "INSUFFICIENT_SCOPE"];
                    assert!(
                        !policy.iter().any(|of| code.starts_with(of)) || code == "KEY_NOT_FOUND",
                        "{who}: {named}: {code}"
                    );
                    assert!(status.as_u16() < 500, "{who}: {named}: {status} {code}");
                }
            }
        }
    }
    assert!(tried > 800, "{tried}");
}

#[tokio::test]
async fn what_belongs_to_another_account_looks_as_if_it_were_not_there() {
    let db = TestDb::new().await;
    let app = TestApp::start(PROGRAM, &db, &[("PLATFORM_RATE_FULL", "0")]);
    let theirs = one_of_each(&app, "their").await;
    let (server, agent_id, project) = (theirs("", "toolServerId"), theirs("", "agentId"), theirs("/projects", "id"));
    let other = other_account(&db).await;
    for route in routes(&app).await {
        if !route.path.contains('{') || route.keys == "public" || route.path.starts_with("/v1/docs") {
            continue;
        }
        let foreign = call(&app, &other, &route, |name| theirs(&route.path, name)).await;
        let missing = call(&app, &other, &route, |_| MISSING.to_owned()).await;
        assert_eq!(foreign, missing, "{} {}", route.method, route.path);
    }
    // Ids in bodies are no way in, either.
    let post = async |path: &str, body: Value| {
        let request = app.anonymous(Method::POST, &format!("/v1{path}")).bearer_auth(&other);
        app.send(request.json(&body)).await
    };
    for (path, body) in [
        ("/assistants", json!({"name": "n", "availableToolsGroupsUids": ["ID"]})),
        ("/agents", json!({"name": "n", "assistantSpecialization": {"availableToolsGroupsUids": ["ID"]}})),
    ] {
        let with = |id: &str| serde_json::from_str::<Value>(&body.to_string().replace("ID", id)).expect("JSON");
        let (foreign, missing) = (post(path, with(&server)).await, post(path, with(MISSING)).await);
        assert!(foreign.status.is_client_error(), "{path}: {}", foreign.body);
        assert_eq!((foreign.status, foreign.error()), (missing.status, missing.error()), "{path}");
    }
    for (path, body) in [
        ("/agents", json!({"name": "n", "assistantSpecialization": {"subagentsIds": [agent_id]}})),
        ("/assistants", json!({"name": "n", "subagentsIds": [agent_id]})),
        ("/tenant-sessions", json!({"tenantId": "t", "assistantIds": [theirs("", "identifier")]})),
        ("/tenants", json!({"tenantId": "t2", "tierId": theirs("", "tierId")})),
        ("/agents", json!({"name": "n", "projectId": project})),
    ] {
        let refused = post(path, body).await;
        assert!(refused.status.is_client_error(), "{path}: {}", refused.body);
    }
    let everything = async |path: &str| {
        let request = app.anonymous(Method::GET, &format!("/v1{path}")).bearer_auth(&other);
        app.send(request).await.body.to_string()
    };
    for path in [
        "/agents",
        "/agents/threads",
        "/assistants",
        "/tool-servers",
        "/tenants",
        "/tenant-usage/tiers",
        "/users",
        "/oauth-clients",
        "/projects?archived=true",
        "/api-keys",
        "/tenant-sessions?active=false",
        "/assistants/tags",
    ] {
        assert!(!everything(path).await.contains("canary"), "{path}");
    }
}

#[tokio::test]
async fn nothing_of_a_private_project_opens_to_who_is_no_member_of_it() {
    // What belongs to the account or a tenant, never to a project.
    const OF_NO_PROJECT: [&str; 13] = [
        "/oauth-clients/",
        "/api-keys/",
        "/docs/",
        "/files/",
        "/integrations/connections/",
        "/integrations/{app}",
        "/mcp-gateway/",
        "/mcp/",
        "/speech-to-text/",
        "/whisper/",
        "/tenant",
        "/users/",
        "/webhooks/",
    ];
    let rates = ["FULL", "RESTRICTED", "OAUTH", "CREATE_KEY"].map(|rate| format!("PLATFORM_RATE_{rate}"));
    let settings: Vec<(&str, &str)> = rates.iter().map(|rate| (rate.as_str(), "0")).collect();
    let app = TestApp::start(PROGRAM, &TestDb::new().await, &settings);
    let project = text(&app.post("/projects", json!({"name": "private", "identifier": "private"})).await.body["_id"]);
    let ours = one_of_each_in(&app, "our", Some(&project)).await;
    let within = |path: &str, name: &str| {
        if path.starts_with("/v1/projects/") && name == "id" { project.clone() } else { ours(path, name) }
    };
    let (ann, token) = user(&app, "ann", "member").await;
    let elsewhere = app.post("/api-keys", json!({"name": "elsewhere", "projectIds": []})).await;
    let elsewhere = text(&elsewhere.body["key"]);
    let routes = routes(&app).await;
    let (mut refused, mut opened) = (0, 0);
    let within_projects = routes.iter().filter(|route| {
        let path = route.path.trim_start_matches("/v1");
        path.contains('{') && route.keys != "public" && !OF_NO_PROJECT.iter().any(|of| path.starts_with(of))
    });
    let within_projects: Vec<&Route> = within_projects.collect();
    for route in &within_projects {
        for (who, credential) in [("a user", &token), ("a key of other projects", &elsewhere)] {
            let (_, code) = call(&app, credential, route, |name| within(&route.path, name)).await;
            // What is wrong with the body alone may be said first.
            assert!(
                ["PROJECT_FORBIDDEN", "VALIDATION_ERROR"].contains(&code.as_str()),
                "{who}: {} {}: {code}",
                route.method,
                route.path
            );
            refused += usize::from(code == "PROJECT_FORBIDDEN");
        }
    }
    enlist(&app, &project, &ann, "viewer").await;
    for route in within_projects.iter().filter(|route| [Method::GET, Method::HEAD].contains(&route.method)) {
        let (status, code) = call(&app, &token, route, |name| within(&route.path, name)).await;
        assert_ne!(code, "PROJECT_FORBIDDEN", "{} {}", route.method, route.path);
        opened += usize::from(status.is_success());
    }
    assert!(refused > 250 && opened > 50, "{refused} refused, {opened} opened");
}

/// The routes of sessions that name what is somebody's own, with what they must be asked.
async fn owned_routes(app: &TestApp) -> Vec<Route> {
    // Placeholders that name what is somebody's own.
    const OWNED: [&str; 8] =
        ["chatUid", "threadId", "transcriptId", "entryId", "accountId", "tenantId", "subtenantId", "id"];
    let is_owned =
        |route: &Route| route.session && OWNED.iter().any(|name| route.path.contains(&format!("{{{name}}}")));
    let mut owned: Vec<Route> = routes(app).await.into_iter().filter(is_owned).collect();
    for route in &mut owned {
        if ["/v1/tenant-integrations", "/v1/tenant-mcp"].iter().any(|of| route.path.starts_with(of)) {
            route.path.push_str("?assistantId=shop");
        } else if route.path.ends_with("/search") {
            route.path.push_str("?q=canary");
        }
    }
    owned
}

#[tokio::test]
async fn what_is_of_one_end_user_opens_to_no_other() {
    let rates = ["SESSION", "CREATE_SESSION"].map(|rate| format!("PLATFORM_RATE_{rate}"));
    let rates = [(rates[0].as_str(), "0"), (rates[1].as_str(), "0")];
    let (app, _, db, _) = app_with_crm("end-users", &rates).await;
    let make = async |path: &str, body: Value| {
        let made = app.post(path, body).await;
        assert!(made.status.is_success(), "{path}: {}", made.body);
        made.body
    };
    let shop = json!({"name": "Shop", "identifier": "shop", "accessConfiguration": {"externalAccess": true},
        "coreMemory": {"enabled": true, "scope": "subtenant"},
        "tenantIntegrationsConfig": {"enabled": true, "apps": [{"app": "crm", "tools": ["note"]}]},
        "tenantMcpConfig": {"enabled": true, "maxServers": 2, "maxToolsPerServer": 2}});
    make("/assistants", shop).await;
    let mcp = FakeMcpServer::start();
    mcp.set_tools(&["echo"]);
    let ann = "tenantId=acme&subtenantId=ann";
    let of_ann = |body: Value| {
        let mut body = body;
        (body["tenantId"], body["subtenantId"]) = (json!("acme"), json!("ann"));
        body
    };
    make("/assistants/shop/messages", of_ann(json!({"message": "canary", "chatUid": "hers"}))).await;
    let agent = agent(&app, json!({})).await;
    let thread = make(&format!("/agents/{agent}/threads"), of_ann(json!({"message": "canary"}))).await;
    let thread = text(&thread["threadId"]);
    thread_in(&app, &thread, "completed").await;
    let recording = upload(&app, "canary.wav", include_bytes!("speech/hello.wav").as_slice()).await;
    let transcript = make("/speech-to-text", of_ann(json!({"audioUrl": recording["downloadUrl"]}))).await;
    let entry = make(&format!("/memory/assistants/shop/core?{ann}"), json!({"content": "canary"})).await;
    let of_shop = format!("assistantId=shop&{ann}");
    let account = json!({"authScheme": "API_KEY", "accountFields": {"key": "good-key"}});
    make(&format!("/tenant-integrations/crm/connect?{of_shop}"), account).await;
    let accounts = app.get(&format!("/tenant-integrations/crm/accounts?{of_shop}")).await.body;
    let account =
        text(&accounts.as_array().unwrap_or_else(|| accounts["accounts"].as_array().expect("a list"))[0]["id"]);
    let brought = make(&format!("/tenant-mcp?{of_shop}"), json!({"url": mcp.url(), "name": "hers"})).await;
    let fill = |name: &str| match name {
        "identifier" => "shop".to_owned(),
        "chatUid" => "hers".to_owned(),
        "threadId" => thread.clone(),
        "transcriptId" => text(&transcript["transcriptId"]),
        "entryId" => entry["entry"]["id"].to_string(),
        "accountId" => account.clone(),
        "tenantId" => "acme".to_owned(),
        "subtenantId" => "ann".to_owned(),
        "id" => text(&brought["server"]["id"]),
        other => panic!("make one to stand for {other}"),
    };
    let mint = async |who: Value| text(&make("/tenant-sessions", who).await["token"]);
    let own = mint(json!({"tenantId": "acme", "subtenantId": "ann"})).await;
    let others = [
        ("another end user", mint(json!({"tenantId": "acme", "subtenantId": "bob"})).await),
        ("who has her name elsewhere", mint(json!({"tenantId": "globex", "subtenantId": "ann"})).await),
        ("another tenant", mint(json!({"tenantId": "globex"})).await),
    ];
    let state = async || {
        let mut all = Vec::new();
        for path in [
            "/assistants/shop/chats/hers".to_owned(),
            format!("/agents/threads/{thread}"),
            format!("/memory/assistants/shop/core?{ann}"),
            format!("/tenant-integrations/crm/accounts?{of_shop}"),
            format!("/tenant-mcp?{of_shop}"),
            "/tenant-usage/acme/subtenants/ann".to_owned(),
        ] {
            all.push(app.get(&path).await.body);
        }
        all
    };
    let mut owned = owned_routes(&app).await;
    let (before, mut refused, mut opened) = (state().await, 0, 0);
    for route in &owned {
        // What a tenant has spent is seen by all of its end users.
        let is_of_tenant = ["{tenantId}", "{tenantId}/history"].iter().any(|end| route.path.ends_with(end));
        for (who, credential) in others.iter().filter(|(who, _)| !(is_of_tenant && *who == "another end user")) {
            let (status, code) = call(&app, credential, route, fill).await;
            let named = format!("{} {}", route.method, route.path);
            assert!([403, 404].contains(&status.as_u16()), "{who}: {named}: {status} {code}");
            refused += 1;
        }
    }
    let stranger = other_account(&db).await;
    for route in owned.iter_mut().filter(|route| route.path.ends_with("?assistantId=shop")) {
        route.path = format!("{}&{ann}", route.path);
        let (status, code) = call(&app, &stranger, route, fill).await;
        assert_eq!(
            code, "TENANT_INTEGRATIONS_UNAVAILABLE",
            "another account: {} {}: {status}",
            route.method, route.path
        );
    }
    assert_eq!(state().await, before, "nobody changed anything of hers");
    // She reads it, and takes it away.
    for method in [Method::GET, Method::DELETE] {
        for route in owned.iter().filter(|route| route.method == method) {
            let (status, code) = call(&app, &own, route, fill).await;
            assert!(status.is_success() || code == "REALTIME_NOT_FOUND", "herself: {}: {status} {code}", route.path);
            opened += 1;
        }
    }
    assert!(refused > 90 && opened > 18, "{refused} refused, {opened} opened");
}
