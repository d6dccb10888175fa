//! Keys and time, through the trait, on a real PostgreSQL.

use std::{sync::Arc, time::Duration};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use platform_auth::{
    AuthConfig, AuthService, KeySecret, KeyService, NewApiKey, NewSession, PgAuthService, Rotation, SessionService,
    TokenAlgorithm,
};
use platform_core::{Caller, Clock, Code, Credential, Id, Origin, Timestamp};
use platform_db::Bus;
use platform_testing::{TestClock, TestDb};
use platform_vault::{MasterKey, Vault};
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

async fn service() -> (Arc<TestClock>, PgAuthService, Caller) {
    let db = TestDb::new().await.connect();
    let clock = Arc::new(TestClock::at(NOW));
    let vault = Arc::new(Vault::new(MasterKey::generate(), Vec::new()));
    let config = AuthConfig {
        key_prefix: "ak".into(),
        issuer: "https://api.example".into(),
        token_algorithm: TokenAlgorithm::EdDsa,
        access_ttl: Duration::from_mins(30),
        refresh_ttl: Duration::from_hours(720),
        trusted: None,
        registration: true,
        documents: None,
    };
    let auth =
        PgAuthService::new(&db, &Bus::local(), Arc::clone(&clock) as Arc<dyn Clock>, vault, config).expect("a service");
    let account = auth.create_account("acme").await.expect("an account").id;
    auth.ensure_key(&account, "first", &KeySecret::generate("ak").expect("random")).await.expect("a key");
    let (credential, user_uid) = (Credential::FullKey("test".into()), "test".into());
    let caller = Caller { account, credential, user_uid, projects: None, origin: Origin::default() };
    (clock, auth, caller)
}

#[tokio::test]
async fn a_key_works_until_its_time_and_an_old_value_until_its_grace() {
    let (clock, auth, caller) = service().await;
    let new = NewApiKey { name: "k".into(), expires_at_ms: Some(Timestamp(NOW.0 + 10_000)), ..NewApiKey::default() };
    let made = auth.create_key(&caller, new, None).await.expect("made");
    assert_eq!(
        auth.authenticate(&made.key).await.expect("known").caller.user_uid,
        format!("apikey:{}", made.record.id)
    );

    let rotated = auth.rotate_key(&caller, &Id::named(&made.record.id), Rotation { grace_seconds: 5 }, None).await;
    let rotated = rotated.expect("rotated");
    clock.advance_ms(4999);
    assert!(auth.authenticate(&made.key).await.is_ok(), "within its grace");
    clock.advance_ms(1);
    assert_eq!(auth.authenticate(&made.key).await.expect_err("over").code(), platform_auth::code::TOKEN_EXPIRED);
    assert!(auth.authenticate(&rotated.key).await.is_ok());
    clock.advance_ms(5000);
    assert_eq!(auth.authenticate(&rotated.key).await.expect_err("over").code(), platform_auth::code::TOKEN_EXPIRED);
    assert_eq!(
        auth.authenticate("ak-unknown").await.expect_err("unknown").code(),
        platform_auth::code::UNAUTHENTICATED
    );
    let wrong = auth.rotate_key(&caller, &Id::named(&made.record.id), Rotation { grace_seconds: 86_401 }, None).await;
    assert_eq!(wrong.expect_err("too long").code(), Code::VALIDATION_ERROR);
}

#[tokio::test]
async fn a_value_works_for_its_grace_whatever_rotates_meanwhile_and_its_sessions_with_it() {
    let (clock, auth, caller) = service().await;
    let first = auth.create_key(&caller, NewApiKey { name: "k".into(), ..NewApiKey::default() }, None).await;
    let first = first.expect("made");
    let rotate = async |grace_seconds| {
        auth.rotate_key(&caller, &Id::named(&first.record.id), Rotation { grace_seconds }, None)
            .await
            .expect("rotated")
            .key
    };
    let mint = async |value: &str| {
        let minter = auth.authenticate(value).await.expect("it works");
        let new = NewSession { tenant_id: Some("acme".into()), ..NewSession::default() };
        auth.mint(&minter.caller, &new, None).await.expect("minted")
    };
    let refused = async |value: &str| auth.authenticate(value).await.err().map(|error| error.code());
    let before = mint(&first.key).await;
    let second = rotate(600).await;
    let (in_grace, of_second) = (mint(&first.key).await, mint(&second).await);
    assert_eq!((before.expires_in, in_grace.expires_in, of_second.expires_in), (3600, 600, 3600));
    let third = rotate(60).await;
    clock.advance_ms(60_000);
    assert_eq!(refused(&second).await, Some(platform_auth::code::TOKEN_EXPIRED), "the shorter grace is over");
    assert_eq!(refused(&of_second.token).await, Some(platform_auth::code::TOKEN_EXPIRED));
    for works in [&first.key, &before.token, &in_grace.token, &third] {
        assert_eq!(refused(works).await, None, "the longer one is not");
    }
    let of_third = mint(&third).await;
    rotate(0).await;
    assert_eq!(refused(&third).await, Some(platform_auth::code::UNAUTHENTICATED));
    assert_eq!(
        refused(&of_third.token).await,
        Some(platform_auth::code::TOKEN_REVOKED),
        "it ends with the value that minted it"
    );
    clock.advance_ms(540_000);
    for over in [&first.key, &before.token, &in_grace.token] {
        assert_eq!(refused(over).await, Some(platform_auth::code::TOKEN_EXPIRED));
    }
    for _ in 0..100 {
        rotate(60).await;
    }
    let one_more = auth.rotate_key(&caller, &Id::named(&first.record.id), Rotation { grace_seconds: 60 }, None).await;
    assert_eq!(one_more.expect_err("a hundred work already").code(), Code::CONFLICT);
}

#[tokio::test]
async fn another_accounts_key_is_not_found_and_names_of_accounts_are_unique() {
    let (_, auth, caller) = service().await;
    let other = auth.create_account("other").await.expect("an account").id;
    let stranger = Caller { account: other.clone(), ..caller.clone() };
    let made = auth.create_key(&caller, NewApiKey { name: "k".into(), ..NewApiKey::default() }, None).await;
    let id = made.expect("made").record.id;
    assert_eq!(
        auth.get_key(&stranger, &Id::named(&id)).await.expect_err("foreign").code(),
        platform_auth::code::KEY_NOT_FOUND
    );
    assert_eq!(
        auth.delete_key(&stranger, &Id::named(&id)).await.expect_err("foreign").code(),
        platform_auth::code::KEY_NOT_FOUND
    );
    assert_eq!(auth.create_account("other").await.expect_err("taken").code(), Code::CONFLICT);
    assert_eq!(auth.find_account("other").await.expect("a look"), Some(other));
}

/// A session token and what its payload says.
async fn minted(auth: &PgAuthService, caller: &Caller) -> (String, Value) {
    let key = auth.create_key(caller, NewApiKey { name: "backend".into(), ..NewApiKey::default() }, None).await;
    let key = auth.authenticate(&key.expect("made").key).await.expect("known");
    let new = NewSession { tenant_id: Some("acme".into()), ttl_seconds: Some(json!(90.9)), ..NewSession::default() };
    let session = auth.mint(&key.caller, &new, None).await.expect("minted");
    assert_eq!(session.expires_in, 90);
    let claims = jsonwebtoken::dangerous::insecure_decode::<Value>(&session.token).expect("a token").claims;
    (session.token, claims)
}

#[tokio::test]
async fn a_session_works_until_its_end_and_ends_with_its_key() {
    let (clock, auth, caller) = service().await;
    let (token, claims) = minted(&auth, &caller).await;
    let identity = auth.authenticate(&token).await.expect("a session");
    assert_eq!(identity.caller.user_uid, "tenant:acme");
    clock.advance_ms(94_999);
    assert!(auth.authenticate(&token).await.is_ok(), "a clock may be five seconds behind");
    clock.advance_ms(1);
    assert_eq!(auth.authenticate(&token).await.expect_err("over").code(), platform_auth::code::TOKEN_EXPIRED);

    let (token, _) = minted(&auth, &caller).await;
    assert!(auth.authenticate(&token).await.is_ok());
    let key = claims["key"].as_str().expect("a key").to_owned();
    auth.delete_key(&caller, &Id::named(&key)).await.expect("deleted");
    assert!(auth.authenticate(&token).await.is_ok(), "another key minted it");
    let newest = minted(&auth, &caller).await;
    auth.delete_key(&caller, &Id::named(newest.1["key"].as_str().expect("a key"))).await.expect("deleted");
    assert_eq!(auth.authenticate(&newest.0).await.expect_err("ended").code(), platform_auth::code::TOKEN_REVOKED);
    // The next month signs with another secret; what the old one signed is still read.
    clock.advance_ms(30 * 86_400_000 - 200_000);
    let (old, _) = minted(&auth, &caller).await;
    clock.advance_ms(80_000);
    let (new, _) = minted(&auth, &caller).await;
    let kid = |token: &str| jsonwebtoken::decode_header(token).expect("a header").kid;
    assert_eq!(kid(&old), kid(&new));
    clock.advance_ms(90_000);
    let (new, _) = minted(&auth, &caller).await;
    assert_ne!(kid(&old), kid(&new));
    assert_eq!(auth.authenticate(&old).await.expect_err("its time is over").code(), platform_auth::code::TOKEN_EXPIRED);
    assert!(auth.authenticate(&new).await.is_ok());
}

#[tokio::test]
async fn a_forged_session_token_is_no_credential() {
    let (_, auth, caller) = service().await;
    let (token, claims) = minted(&auth, &caller).await;
    let header = jsonwebtoken::decode_header(&token).expect("a header");
    let parts: Vec<&str> = token.split('.').collect();
    let part = |json: &Value| base64(&json.to_string());
    let signed = |header: &Header, claims: &Value, secret: &[u8]| {
        encode(header, claims, &EncodingKey::from_secret(secret)).expect("a token")
    };
    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        claims
    };
    let mut forged = vec![
        signed(&header, &claims, b"guessed"),
        signed(&header, &claims, b""),
        signed(&Header { kid: None, ..header.clone() }, &claims, b"guessed"),
        signed(&Header { kid: Some("other".into()), ..header.clone() }, &claims, b"guessed"),
        signed(&Header { alg: Algorithm::HS512, ..header.clone() }, &claims, b"guessed"),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{token}."),
        format!("{token}.{}", parts[2]),
        format!(" {token}"),
        format!("{token}x"),
        format!("{}.{}.{}", parts[0], part(&with("tid", json!("other"))), parts[2]),
        format!("{}.{}.{}", parts[0], part(&with("exp", json!(9_999_999_999_i64))), parts[2]),
    ];
    for alg in ["none", "None", "NONE", "nOnE", "HS384", "HS512", "RS256", "ES256", "EdDSA", "hs256", ""] {
        let header = part(&json!({"alg": alg, "kid": header.kid, "typ": "JWT"}));
        forged.push(format!("{header}.{}.", parts[1]));
        forged.push(format!("{header}.{}.{}", parts[1], parts[2]));
    }
    for field in ["jku", "x5u", "jwk", "crit"] {
        let header = part(&json!({"alg": "HS256", "kid": header.kid, field: ["https://evil.example/keys"]}));
        forged.push(format!("{header}.{}.{}", parts[1], parts[2]));
    }
    // Every claim as something else, under the old signature and under none that counts.
    let others = [json!(null), json!(""), json!(0), json!(-1), json!(9_999_999_999_i64), json!([]), json!({})];
    for name in claims.as_object().expect("claims").keys() {
        for other in others.iter().filter(|other| claims[name] != **other) {
            let changed = with(name, other.clone());
            forged.push(format!("{}.{}.{}", parts[0], part(&changed), parts[2]));
            forged.push(signed(&header, &changed, b"guessed"));
        }
    }
    for kid in ["", "/dev/null", "../../key", "x' OR '1'='1", "\0"] {
        forged.push(signed(&Header { kid: Some(kid.to_owned()), ..header.clone() }, &claims, b""));
    }
    forged.extend((0..parts[2].len()).step_by(6).map(|end| format!("{}.{}.{}", parts[0], parts[1], &parts[2][..end])));
    assert!(forged.len() >= 122, "{} tokens", forged.len());
    for token in forged {
        assert_eq!(
            auth.authenticate(&token).await.expect_err(&token).code(),
            platform_auth::code::UNAUTHENTICATED,
            "{token}"
        );
    }
    assert!(auth.authenticate(&token).await.is_ok(), "the real one");
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text)
}
