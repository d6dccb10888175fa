//! Tool servers through the trait, on a real PostgreSQL.

use std::sync::Arc;

use platform_access::Referrers;
use platform_child::Children;
use platform_core::{AccountId, Clock, Error, FieldLimits, Id, Object, Page, Precondition, SystemClock};
use platform_db::{Bus, Db};
use platform_egress::{Egress, EgressRules};
use platform_runtime::ChildPool;
use platform_testing::{FakeToolServer, TestDb};
use platform_toolservers::{PgToolServerService, ToolServerFilter, ToolServerNeeds, ToolServerService};
use platform_vault::{MASK, MasterKey, Vault};
use serde_json::{Value, json};

fn service(db: &Db) -> Arc<PgToolServerService> {
    service_with(db, EgressRules::default())
}

fn service_with(db: &Db, rules: EgressRules) -> Arc<PgToolServerService> {
    // Nothing here is written by clients.
    let children = Arc::new(ChildPool::new(Children::new("/nowhere", ""), 1));
    PgToolServerService::new(ToolServerNeeds {
        db: db.clone(),
        bus: Bus::local(),
        clock: Arc::new(SystemClock) as Arc<dyn Clock>,
        vault: Arc::new(Vault::new(MasterKey::generate(), Vec::new())),
        egress: Egress::new(rules).expect("a client"),
        connections: Arc::new(()),
        expressions: Arc::clone(&children),
        documents: children,
        referrers: Referrers::new([]),
        limits: FieldLimits::default(),
    })
}

fn fields(value: Value) -> Object {
    serde_json::from_value(value).expect("an object")
}

fn shop() -> Object {
    let tool = |name: &str| json!({"function": {"name": name}, "endpoint": format!("/{name}")});
    fields(json!({"name": "Shop", "url": "https://shop.example",
        "authenticationConfig": {"authenticationMethod": "jwt", "token": "hunter2hunter2"},
        "toolDefinitions": [tool("orders"), tool("refund")]}))
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    outcome.expect_err("refused").code().as_str().to_owned()
}

#[tokio::test]
async fn a_server_is_its_accounts_alone_and_shows_no_secret() {
    let db = TestDb::new().await.connect();
    let (service, account) = (service(&db), AccountId::generate());
    let made = service.create(&account, shop(), None).await.expect("made");
    let shown = json!(service.get(&account, &Id::named(&made.id)).await.expect("there"));
    assert!(shown.to_string().contains(MASK) && !shown.to_string().contains("hunter2"), "{shown}");
    assert_eq!(shown["toolCount"], 2);
    let stranger = AccountId::generate();
    assert_eq!(code(service.get(&stranger, &Id::named(&made.id)).await), "TOOL_SERVER_NOT_FOUND");
    let theirs = service.list(&stranger, &ToolServerFilter::default(), Page { limit: 10, offset: 0 }).await;
    assert_eq!(theirs.expect("a page").total, 0);
}

#[tokio::test]
async fn of_two_who_change_the_same_version_one_is_told_so_and_what_is_wrong_changes_nothing() {
    let db = TestDb::new().await.connect();
    let (service, account) = (service(&db), AccountId::generate());
    let id = service.create(&account, shop(), None).await.expect("made").id;
    let first = Precondition::parse("\"1\"").expect("a version");
    let change = |name: &str| fields(json!({"name": name}));
    service.update(&account, &Id::named(&id), change("Store"), &first).await.expect("changed");
    assert_eq!(code(service.update(&account, &Id::named(&id), change("Stall"), &first).await), "PRECONDITION_FAILED");
    let orders = json!({"function": {"name": "orders"}, "endpoint": "/again"});
    let twice = service.add_tool(&account, &Id::named(&id), fields(orders), &Precondition::None, None).await;
    assert_eq!(code(twice), "DUPLICATE_TOOL_NAME");
    let inner =
        service.update(&account, &Id::named(&id), fields(json!({"url": "http://10.0.0.1"})), &Precondition::None).await;
    assert_eq!(code(inner), "URL_NOT_ALLOWED");
    let now = json!(service.get(&account, &Id::named(&id)).await.expect("there"));
    assert_eq!(
        (&now["name"], &now["url"], &now["toolCount"]),
        (&json!("Store"), &json!("https://shop.example"), &json!(2))
    );
    service.delete(&account, &Id::named(&id), false, &Precondition::None).await.expect("deleted");
    assert_eq!(code(service.tools(&account, &Id::named(&id), None).await), "TOOL_SERVER_NOT_FOUND");
}

#[tokio::test]
async fn a_secret_is_sealed_in_the_table_and_sent_to_the_address_alone_that_it_was_given_for() {
    let test = TestDb::new().await;
    let service = service_with(&test.connect(), EgressRules { allow_private: true, ..EgressRules::default() });
    let (account, shop, thief) = (AccountId::generate(), FakeToolServer::start(), FakeToolServer::start());
    let given = json!({"name": "Shop", "url": shop.url(),
        "authenticationConfig": {"authenticationMethod": "jwt", "token": "hunter2hunter2"},
        "toolDefinitions": [{"function": {"name": "orders"}, "endpoint": "/echo/orders", "httpMethod": "GET"}]});
    let id = service.create(&account, fields(given), None).await.expect("made").id;
    assert!(!test.dump().await.contains("hunter2"));
    let call = async || service.test(&account, &Id::named(&id), "orders", Object::new()).await.expect("called");
    let result = call().await;
    assert!(result.success && shop.last().header("authorization").ends_with("hunter2hunter2"), "{result:?}");
    assert!(!json!(result).to_string().contains("hunter2"), "what the server echoes of it: {result:?}");

    let moved_to = async |url: &str| {
        let patch = fields(json!({"url": url}));
        service.update(&account, &Id::named(&id), patch, &Precondition::None).await.expect("changed");
    };
    moved_to(thief.url()).await;
    let result = call().await;
    assert_eq!(thief.recorded().len(), 0, "{result:?}");
    assert!(result.error.is_some_and(|error| error.starts_with("AUTH_FAILED")), "it is given anew first");
    moved_to(shop.url()).await;
    assert!(call().await.success && shop.last().header("authorization").ends_with("hunter2hunter2"));
}
