//! Keys and time, through the trait, on a real PostgreSQL.

use std::sync::Arc;

use platform_auth::{AuthService, KeySecret, NewApiKey, PgAuthService, Rotation};
use platform_core::{Caller, Clock, Code, Credential, Timestamp};
use platform_db::Bus;
use platform_testing::{TestClock, TestDb};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

async fn service() -> (Arc<TestClock>, PgAuthService, Caller) {
    let db = TestDb::new().await.connect();
    let clock = Arc::new(TestClock::at(NOW));
    let auth = PgAuthService::new(&db, &Bus::local(), Arc::clone(&clock) as Arc<dyn Clock>, "ak");
    let account = auth.create_account("acme").await.expect("an account").id;
    auth.ensure_key(&account, "first", &KeySecret::generate("ak").expect("random")).await.expect("a key");
    let caller = Caller { account, credential: Credential::FullKey("test".into()), user_uid: "test".into() };
    (clock, auth, caller)
}

#[tokio::test]
async fn a_key_works_until_its_time_and_an_old_value_until_its_grace() {
    let (clock, auth, caller) = service().await;
    let new = NewApiKey { name: "k".into(), expires_at_ms: Some(Timestamp(NOW.0 + 10_000)), ..NewApiKey::default() };
    let made = auth.create_key(&caller, new, None).await.expect("made");
    assert_eq!(auth.authenticate(&made.key).await.expect("known").user_uid, format!("apikey:{}", made.record.id));

    let rotated = auth.rotate_key(&caller.account, &made.record.id, Rotation { grace_seconds: 5 }, None).await;
    let rotated = rotated.expect("rotated");
    clock.advance_ms(4999);
    assert!(auth.authenticate(&made.key).await.is_ok(), "within its grace");
    clock.advance_ms(1);
    assert_eq!(auth.authenticate(&made.key).await.expect_err("over").code(), Code::TokenExpired);
    assert!(auth.authenticate(&rotated.key).await.is_ok());
    clock.advance_ms(5000);
    assert_eq!(auth.authenticate(&rotated.key).await.expect_err("over").code(), Code::TokenExpired);
    assert_eq!(auth.authenticate("ak-unknown").await.expect_err("unknown").code(), Code::Unauthenticated);
    let wrong = auth.rotate_key(&caller.account, &made.record.id, Rotation { grace_seconds: 86_401 }, None).await;
    assert_eq!(wrong.expect_err("too long").code(), Code::ValidationError);
}

#[tokio::test]
async fn another_accounts_key_is_not_found_and_names_of_accounts_are_unique() {
    let (_, auth, caller) = service().await;
    let other = auth.create_account("other").await.expect("an account").id;
    let made = auth.create_key(&caller, NewApiKey { name: "k".into(), ..NewApiKey::default() }, None).await;
    let id = made.expect("made").record.id;
    assert_eq!(auth.get_key(&other, &id).await.expect_err("foreign").code(), Code::KeyNotFound);
    assert_eq!(auth.delete_key(&other, &id).await.expect_err("foreign").code(), Code::KeyNotFound);
    assert_eq!(auth.create_account("other").await.expect_err("taken").code(), Code::Conflict);
    assert_eq!(auth.find_account("other").await.expect("a look"), Some(other));
}
