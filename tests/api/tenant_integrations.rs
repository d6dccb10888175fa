//! `/v1/tenant-integrations`: accounts that end users connect for the tools of an assistant.

use platform_testing::{FakeToolServer, Reply, TestApp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    integrations::{app_with_crm, connected_by_oauth, decide},
    support::{eventually, say_to, text},
};

async fn assistant(app: &TestApp, name: &str, config: Value) {
    let access = json!({"externalAccess": true});
    let made =
        json!({"name": name, "identifier": name, "tenantIntegrationsConfig": config, "accessConfiguration": access});
    let made = app.post("/assistants", made).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
}

async fn session(app: &TestApp, tenant: &str, user: &str) -> String {
    let made = app.post("/tenant-sessions", json!({"tenantId": tenant, "subtenantId": user})).await;
    text(&made.body["token"])
}

async fn as_(app: &TestApp, token: &str, method: Method, path: &str, body: Option<Value>) -> Reply {
    let request = app.anonymous(method, &format!("/v1/tenant-integrations{path}")).bearer_auth(token);
    app.send(match body {
        Some(body) => request.json(&body),
        None => request,
    })
    .await
}

#[tokio::test]
async fn tools_are_called_with_the_account_of_whom_the_assistant_talks_to_and_nobody_elses() {
    let (app, crm, db, _) = app_with_crm("tenants", &[]).await;
    let apps = json!([{"app": "crm", "tools": ["note"], "triggers": ["item_added"]}, {"app": "none"}]);
    assistant(&app, "a", json!({"enabled": true, "apps": apps})).await;
    assistant(&app, "signed", json!({"enabled": true, "identityMode": "signed", "apps": apps})).await;
    assistant(&app, "off", json!({"apps": apps})).await;
    let of = |who: &str| format!("?assistantId=a&tenantId=acme&subtenantId={who}");
    let list = async |who: &str| app.get(&format!("/tenant-integrations{}", of(who))).await.body;
    let offered = list("u1").await;
    assert_eq!(offered.as_array().map(Vec::len), Some(1), "an app that is not there is not offered: {offered}");
    assert_eq!(
        (&offered[0]["app"], &offered[0]["connected"], &offered[0]["accounts"]),
        (&json!("crm"), &json!(false), &json!([]))
    );
    assert_eq!(offered[0]["availableTriggers"], json!(["item_added"]));
    for (path, code) in [
        ("?tenantId=acme", "VALIDATION_ERROR"),
        ("?assistantId=a", "TENANT_ID_REQUIRED"),
        ("?assistantId=none&tenantId=acme", "TENANT_INTEGRATIONS_UNAVAILABLE"),
        ("?assistantId=off&tenantId=acme", "TENANT_INTEGRATIONS_UNAVAILABLE"),
        ("?assistantId=signed&tenantId=acme", "FORBIDDEN"),
        ("/github/auth?assistantId=a&tenantId=acme", "TENANT_INTEGRATIONS_UNAVAILABLE"),
        ("/none/accounts?assistantId=a&tenantId=acme", "TENANT_INTEGRATIONS_UNAVAILABLE"),
    ] {
        assert_eq!(app.get(&format!("/tenant-integrations{path}")).await.error(), code, "{path}");
    }
    let of_acme = text(&app.post("/tenant-sessions", json!({"tenantId": "acme"})).await.body["token"]);
    let of_default = as_(&app, &of_acme, Method::GET, "?assistantId=default", None).await;
    assert_eq!(of_default.error(), "TENANT_INTEGRATIONS_UNAVAILABLE");
    let limited = json!({"tenantId": "acme", "subtenantId": "u1", "assistantIds": ["off"]});
    let limited = text(&app.post("/tenant-sessions", limited).await.body["token"]);
    assert_eq!(as_(&app, &limited, Method::GET, "?assistantId=a", None).await.error(), "FORBIDDEN");
    // Nobody has connected: the model is told so.
    let call = "/tool crm__note {\"text\": \"hi\"}\nDone";
    let result =
        async |who: &str| say_to(&app, "a", &json!({"message": call, "tenantId": "acme", "subtenantId": who})).await;
    assert!(result("u1").await.contains("NOT_CONNECTED"));
    let connect = async |who: &str, key: &str| {
        let path = format!("/tenant-integrations/crm/connect{}", of(who));
        app.post(&path, json!({"authScheme": "API_KEY", "accountFields": {"key": key}})).await
    };
    let missing =
        app.post(&format!("/tenant-integrations/crm/connect{}", of("u1")), json!({"authScheme": "API_KEY"})).await;
    assert_eq!((missing.error(), &missing.body["stage"]), ("INTEGRATION_SETUP_REQUIRED", &json!("account")));
    assert_eq!(connect("u1", "bad").await.error(), "CREDENTIALS_REJECTED");
    let first = connect("u1", "good-key").await;
    assert_eq!((first.status, &first.body["connected"]), (StatusCode::OK, &json!(true)), "{}", first.body);
    assert!(result("u1").await.contains("\"ok\":true"));
    assert!(result("u2").await.contains("NOT_CONNECTED"), "another end user's is not theirs");
    let without = json!({"message": call, "tenantId": "acme", "subtenantId": "u1", "disabledIntegrations": ["crm"]});
    assert!(say_to(&app, "a", &without).await.contains("TOOL_NOT_AVAILABLE"));
    let other =
        json!({"message": "/tool crm__get_customer {\"id\": \"1\"}\nDone", "tenantId": "acme", "subtenantId": "u1"});
    assert!(say_to(&app, "a", &other).await.contains("TOOL_NOT_AVAILABLE"), "a tool that is not offered");
    // One account of an app: another takes its place.
    let second = connect("u1", "good-key").await.body;
    let accounts = app.get(&format!("/tenant-integrations/crm/accounts{}", of("u1"))).await.body;
    assert_eq!((accounts.as_array().map(Vec::len), &accounts[0]["id"]), (Some(1), &second["accountId"]));
    assert_eq!((&accounts[0]["status"], &accounts[0]["needsReconnect"]), (&json!("active"), &json!(false)));
    assert_eq!(
        app.get("/integrations/crm/connection-status").await.body["connections"],
        json!([]),
        "they are not the account's"
    );
    let gone = format!("/integrations/connections/{}", text(&second["accountId"]));
    assert_eq!(app.delete(&gone).await.error(), "CONNECTION_NOT_FOUND");

    // Sessions see and change their own alone.
    let (own, strange) = (session(&app, "acme", "u1").await, session(&app, "acme", "u2").await);
    let signed = as_(&app, &own, Method::GET, "?assistantId=signed", None).await.body;
    assert_eq!(signed[0]["connected"], true, "{signed}");
    let account = format!("/accounts/{}?assistantId=a", text(&second["accountId"]));
    assert_eq!(as_(&app, &strange, Method::DELETE, &account, None).await.error(), "ACCOUNT_NOT_FOUND");
    let elsewhere = as_(&app, &own, Method::GET, "?assistantId=a&tenantId=other", None).await;
    assert_eq!(elsewhere.status, StatusCode::FORBIDDEN, "{}", elsewhere.body);
    let fields = json!({"authScheme": "OAUTH2", "appFields": {"clientId": "x", "clientSecret": "y"}});
    let refused = as_(&app, &own, Method::POST, "/crm/connect?assistantId=a", Some(fields)).await;
    assert_eq!(refused.error(), "VALIDATION_ERROR", "the operator's fields are not theirs to give");
    // The app refuses meanwhile: asked, it says so.
    let receiver = FakeToolServer::start();
    let told =
        json!({"url": format!("{}/echo/hook", receiver.url()), "events": ["connection.expired"], "tenantId": "acme"});
    app.post("/webhooks", told).await;
    crm.refuse_all();
    let refreshed = as_(&app, &own, Method::POST, "/refresh?assistantId=a", None).await.body;
    assert_eq!(
        (&refreshed[0]["connected"], &refreshed[0]["accounts"][0]["status"]),
        (&json!(false), &json!("needs_reauth"))
    );
    let told = eventually("its end is told", async || receiver.recorded().pop()).await.json()["data"].clone();
    assert_eq!((&told["connectionId"], &told["app"]), (&second["accountId"], &json!("crm")), "{told}");
    assert_eq!((&told["status"], &told["tenantId"]), (&json!("needs_reauth"), &json!("acme")), "{told}");
    crm.accept_all();
    connect("u1", "good-key").await;
    let accounts = app.get(&format!("/tenant-integrations/crm/accounts{}", of("u1"))).await.body;
    let account = format!("/accounts/{}?assistantId=a", text(&accounts[0]["id"]));
    assert_eq!(as_(&app, &own, Method::DELETE, &account, None).await.body, json!({"disconnected": true}));
    connect("u1", "good-key").await;
    app.delete("/tenants/acme").await;
    assert_eq!(db.number("SELECT count(*) AS n FROM connections").await, 0, "a tenant that goes takes its accounts");
}

#[tokio::test]
async fn an_account_stays_until_another_that_its_user_decides_on_takes_its_place() {
    let (app, crm, db, _) = app_with_crm("tenant-oauth", &[]).await;
    let apps = json!([{"app": "crm", "tools": ["note"]}]);
    assistant(&app, "a", json!({"enabled": true, "apps": apps})).await;
    let own = session(&app, "acme", "u1").await;
    let connect_to = async |query: &str, body: Value, origin: &str| {
        let path = format!("/v1/tenant-integrations/crm/connect?assistantId=a{query}");
        let request = app.anonymous(Method::POST, &path);
        app.send(request.bearer_auth(&own).header("origin", origin).json(&body)).await
    };
    let connect = async |body: Value, origin: &str| connect_to("", body, origin).await;
    let active = async || -> Vec<Value> {
        let all = as_(&app, &own, Method::GET, "/crm/accounts?assistantId=a", None).await.body;
        let all = all.as_array().expect("accounts").iter();
        all.filter(|account| account["status"] == "active").map(|account| account["id"].clone()).collect()
    };
    let works = async || {
        let call = "/tool crm__note {\"text\": \"hi\"}\nDone";
        say_to(&app, "a", &json!({"message": call, "tenantId": "acme", "subtenantId": "u1"}))
            .await
            .contains("\"ok\":true")
    };
    // The app's own fields are the operator's to give, once.
    let early = connect(json!({"authScheme": "OAUTH2"}), app.url()).await;
    assert_eq!((early.error(), &early.body["stage"]), ("INTEGRATION_SETUP_REQUIRED", &json!("app")), "{}", early.body);
    connected_by_oauth(&app, json!({})).await;
    let by_key = json!({"authScheme": "API_KEY", "accountFields": {"key": "good-key"}});
    let first = text(&connect(by_key, app.url()).await.body["accountId"]);
    for answer in [("error", "access_denied"), ("code", "bad")] {
        let begun = connect(json!({"authScheme": "OAUTH2"}), app.url()).await.body;
        assert_eq!(begun["connected"], false, "{begun}");
        assert_eq!((active().await, works().await), (vec![json!(first)], true), "while it is open");
        assert_eq!(decide(&app, &begun, &[answer]).await.status, StatusCode::BAD_REQUEST);
        assert_eq!((active().await, works().await), (vec![json!(first)], true), "and when it fails");
    }
    let (there, page) = ("https://widget.example/back", "https://widget.example");
    for (return_to, origin) in [(there, app.url()), ("https://evil.example/", page), ("/back", page)] {
        let refused = connect(json!({"authScheme": "OAUTH2", "returnTo": return_to}), origin).await;
        assert_eq!(refused.error(), "INVALID_RETURN_TO", "{return_to} from {origin}");
        let query = format!("&returnTo={return_to}");
        let refused = connect_to(&query, json!({"authScheme": "OAUTH2"}), origin).await;
        assert_eq!(refused.error(), "INVALID_RETURN_TO", "{return_to} from {origin}, in the query");
    }
    let begun = connect_to(&format!("&returnTo={there}"), json!({"authScheme": "OAUTH2"}), page).await.body;
    let back = decide(&app, &begun, &[("code", "good")]).await;
    assert!(back.header("location").starts_with(there) && back.status == StatusCode::FOUND, "{:?}", back.headers);
    assert_eq!(active().await, [begun["accountId"].clone()], "one account of an app");
    assert!(works().await && begun["accountId"] != json!(first));
    let sent = crm.requests("/api/notes").pop().expect("a call");
    assert!(sent.header("authorization").starts_with("Bearer access-"), "{sent:?}");
    let kept = db.dump().await;
    for secret in ["good-key", "access-", "refresh-", "app-secret"] {
        assert!(!kept.contains(secret), "{secret} is kept as it is");
    }
    // Who is no end user has an account of the tenant.
    let tenant = text(&app.post("/tenant-sessions", json!({"tenantId": "acme"})).await.body["token"]);
    let of_tenant = as_(&app, &tenant, Method::GET, "/crm/accounts?assistantId=a", None).await.body;
    assert_eq!(of_tenant, json!([]), "an end user's is not theirs");
}
