//! Tenants and their quotas through the traits, on a real PostgreSQL.

use std::sync::Arc;

use platform_core::{AccountId, Caller, Code, Id, SystemClock};
use platform_db::{Bus, Db};
use platform_models::{Models, ModelsConfig};
use platform_runtime::{Budget, FaultCode, Message, Model, Payer, Prompt, Spender, UsageLedger};
use platform_tenants::{
    NewTenant, NewTier, NewUsage, PgTenantService, Quotas, Reset, TenantService, UsageService, settle_in,
};
use platform_testing::{TestDb, eventually, full_caller};
use serde_json::{from_value, json};

struct Fixture {
    tenants: PgTenantService,
    quotas: Arc<Quotas>,
    caller: Caller,
}

/// A tenant of the account may take 1,000 tokens in a window that ends in no test.
async fn fixture(db: &Db) -> Fixture {
    let bus = Bus::local();
    let models = Models::start(ModelsConfig::default()).await.expect("models");
    let quotas = Arc::new(Quotas::new(db, &bus, models as Arc<dyn Model>));
    let tenants = PgTenantService::new(db, &bus, Arc::new(SystemClock), Arc::clone(&quotas));
    let caller = full_caller();
    let rule = json!({"scope": "tenant", "metric": "tokens", "windowUnit": "day", "windowEvery": 366, "limit": 1000});
    let rules = vec![from_value(rule).expect("a rule")];
    let tier = NewTier { tier_id: "usual".into(), name: "Usual".into(), rules, is_default: true, ..NewTier::default() };
    tenants.create_tier(&caller.account, tier, None).await.expect("made");
    Fixture { tenants, quotas, caller }
}

fn tokens(number: i32) -> NewUsage {
    NewUsage { tokens: Some(number.into()), ..NewUsage::default() }
}

fn payer(account: &AccountId, tenant: &str) -> Payer {
    let spender = Spender::Agent("a".into());
    Payer { account: account.clone(), tenant_id: Some(tenant.into()), subtenant_id: None, project_id: None, spender }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_that_races_is_taken_up_to_the_limit_and_begins_anew_after_a_reset() {
    let db = TestDb::new().await.connect();
    let fixture = Arc::new(fixture(&db).await);
    let new = NewTenant { tenant_id: "acme".into(), ..NewTenant::default() };
    fixture.tenants.create(&fixture.caller, new, None).await.expect("made");
    let adding = (0..64).map(|_| {
        let fixture = Arc::clone(&fixture);
        async move {
            loop {
                match fixture.tenants.add_usage(&fixture.caller, &Id::named("acme"), None, tokens(30), None).await {
                    // A machine that is busy with something else has no connection free in time, and asks for another try.
                    Err(error) if error.code() == Code::SERVICE_UNAVAILABLE => {}
                    other => return other,
                }
            }
        }
    });
    let added = futures_util::future::join_all(adding).await;
    let refused: Vec<_> = added.iter().filter_map(|added| added.as_ref().err()).collect();
    assert_eq!(added.len() - refused.len(), 34, "the one that fills the window is whole");
    assert!(refused.iter().all(|error| error.code().as_str() == "TENANT_LIMIT_EXCEEDED"));
    let account = &fixture.caller.account;
    let usage = fixture.tenants.usage(account, &Id::named("acme"), None, false).await.expect("usage");
    assert_eq!(json!(usage)["usage"][0]["current"], 1020);

    // The model is not called for one that has spent what it may, and for others it is.
    let spent = fixture.quotas.spent(&payer(account, "acme")).await.expect("known").expect("a refusal");
    assert_eq!(spent.current, json!(1020));
    assert!(fixture.quotas.spent(&payer(account, "other")).await.expect("known").is_none());
    fixture.tenants.reset(&fixture.caller, &Id::named("acme"), None, Reset::default(), None).await.expect("reset");
    assert!(fixture.quotas.spent(&payer(account, "acme")).await.expect("known").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn model_calls_that_race_are_made_as_far_as_they_fit_and_those_that_fail_take_nothing() {
    let db = TestDb::new().await.connect();
    let fixture = fixture(&db).await;
    let new = NewTenant { tenant_id: "acme".into(), ..NewTenant::default() };
    fixture.tenants.create(&fixture.caller, new, None).await.expect("made");
    let account = &fixture.caller.account;
    let model = fixture.quotas.model(&payer(account, "acme"), None);
    let call = async |text: &str| {
        let spec = model.catalog().choose(None, None).expect("the demo model");
        let prompt = Prompt { messages: vec![Message::user(text)], ..Prompt::new(spec) };
        model.answer(&prompt, &mut |_| {}).await
    };
    let current = async || {
        let usage = fixture.tenants.usage(account, &Id::named("acme"), None, false).await.expect("usage");
        json!(usage)["usage"][0]["current"].clone()
    };
    // What is reserved for a first call is more than the limit: it must not stay so.
    assert_eq!(call("/fail 400").await.expect_err("it fails").code, FaultCode::BadRequest);
    assert_eq!(current().await, 0);
    const HUNDRED: &str = "/usage {\"inputTokens\": 90, \"outputTokens\": 10}\n/say yes";
    call(HUNDRED).await.expect("answered");
    assert_eq!(current().await, 100);

    // From here on a call is expected to take what it takes.
    let calls = futures_util::future::join_all((0..40).map(|_| call(HUNDRED))).await;
    let refused: Vec<_> = calls.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert_eq!((calls.len() - refused.len(), current().await), (9, json!(1000)));
    assert!(refused.iter().all(|fault| fault.code == FaultCode::LimitExceeded && fault.refusal.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_took_is_counted_once_also_when_it_is_settled_again_or_the_database_was_away() {
    const HUNDRED: &str = "/usage {\"inputTokens\": 90, \"outputTokens\": 10}\n/say yes";
    let test = TestDb::new().await;
    let db = test.connect();
    let fixture = fixture(&db).await;
    let new = NewTenant { tenant_id: "acme".into(), ..NewTenant::default() };
    fixture.tenants.create(&fixture.caller, new, None).await.expect("made");
    let account = &fixture.caller.account;
    let call = async |ledger: Option<Arc<UsageLedger>>| {
        let model = fixture.quotas.model(&payer(account, "acme"), ledger);
        let spec = model.catalog().choose(None, None).expect("the demo model");
        let prompt = Prompt { messages: vec![Message::user(HUNDRED)], ..Prompt::new(spec) };
        model.answer(&prompt, &mut |_| {}).await.expect("answered");
        model
    };
    let current = async || {
        let usage = fixture.tenants.usage(account, &Id::named("acme"), None, false).await.expect("usage");
        json!(usage)["usage"][0]["current"].as_i64().expect("a number")
    };
    // Of the first commit only the answer is lost.
    let ledger = Arc::new(UsageLedger::default());
    let _model = call(Some(Arc::clone(&ledger))).await;
    let took = ledger.take();
    for _ in 0..2 {
        settle_in(&mut db.conn().await.expect("a connection"), &took).await.expect("settled");
        assert_eq!(current().await, 100);
    }

    test.run("ALTER FUNCTION settle_usage(jsonb) RENAME TO away").await;
    drop(call(None).await);
    assert_eq!(current().await, 100, "nothing can be counted now");
    test.run("ALTER FUNCTION away(jsonb) RENAME TO settle_usage").await;
    let counted = async || Some(current().await).filter(|now| *now != 100);
    assert_eq!(eventually("it is counted as soon as it can be", counted).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_its_accounts_alone_and_is_given_no_fresh_quota_by_being_deleted() {
    let db = TestDb::new().await.connect();
    let (fixture, other) = (fixture(&db).await, fixture(&db).await);
    let new = || NewTenant { tenant_id: "acme".into(), ..NewTenant::default() };
    let account = &fixture.caller.account;
    fixture.tenants.create(&fixture.caller, new(), None).await.expect("made");
    let again = fixture.tenants.create(&fixture.caller, new(), None).await.expect_err("taken");
    assert_eq!(again.code().as_str(), "IDENTIFIER_TAKEN");
    fixture.tenants.add_usage(&fixture.caller, &Id::named("acme"), None, tokens(1000), None).await.expect("added");
    let strange = other.tenants.get(&other.caller.account, &Id::named("acme")).await.expect_err("another account's");
    assert_eq!(strange.code().as_str(), "TENANT_NOT_FOUND");
    assert!(other.quotas.spent(&payer(&other.caller.account, "acme")).await.expect("known").is_none());

    fixture.tenants.delete(account, &Id::named("acme")).await.expect("deleted");
    fixture.tenants.create(&fixture.caller, new(), None).await.expect("made again");
    assert!(fixture.quotas.spent(&payer(account, "acme")).await.expect("known").is_some());
}
