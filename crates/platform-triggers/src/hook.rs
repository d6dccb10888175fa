//! Requests of apps: whether they are theirs, which event they are, and that event stored.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use diesel_async::AsyncConnection;
use futures_util::FutureExt;
use platform_core::{
    AccountId, Error, Id, Object, Result, Timestamp, hex, millis, parse, run_sized, sha256_hex, without_nul,
};
use platform_db::{GroupWriter, Idempotency};
use platform_integrations::{EventKind, PackEventType, SignatureKind, SignatureRule, at_path};
use platform_jobs::{Run, traceparent};
use platform_vault::{Secret, are_equal, hmac_sha256};
use platform_webhooks::signature;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

use crate::{
    code,
    model::{Delivery, Trigger},
    process::KIND,
    repository::{self, Accepted, NewEvent},
    service::{OpenTrigger, PgTriggers, TriggerRules, not_found},
};

/// Over which bytes are counted.
pub(crate) const HOUR: Duration = Duration::from_hours(1);
/// A longer id is known by its hash.
const MAX_ID: usize = 256;
/// Bytes of the rows of an event, beside what it carries.
const ROW_BYTES: usize = 2048;

/// Headers of a request, as far as apps sign with them.
pub trait RequestHeaders {
    /// The value of a header, when it is text.
    fn get(&self, name: &str) -> Option<&str>;
}

/// What the sender is answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// The event is stored, which the app is told with this status.
    Accepted(u16),
    /// It was a question; this is the answer.
    Answer(Object),
}

impl NewEvent {
    pub(crate) fn of(
        rules: &TriggerRules,
        trigger: &OpenTrigger,
        event: String,
        payload: Value,
        received: Timestamp,
    ) -> Self {
        let event = if event.is_empty() || event.len() > MAX_ID { sha256_hex(&event) } else { event };
        Self {
            account: trigger.row.account_id.clone(),
            trigger: trigger.row.id.clone(),
            id: Id::<Delivery>::generate().into(),
            run: Id::<Run>::generate().into(),
            event: event.replace('\0', ""),
            received: received.0,
            payload: as_kept(payload),
            attempt: 1,
            depth: 0,
            is_test: false,
            window_ms: millis(rules.duplicate_window),
            kind: KIND,
            trace: traceparent(),
        }
    }

    /// As it is told before anything came of it.
    fn shown(&self) -> Delivery {
        Delivery {
            id: self.id.clone(),
            event_id: self.event.clone(),
            received_at: self.received,
            outcome: None,
            thread_id: None,
            chat_uid: None,
            duration_ms: None,
            error: None,
            attempt: self.attempt,
            payload: None,
        }
    }
}

/// A payload as PostgreSQL keeps it.
fn as_kept(payload: Value) -> Box<RawValue> {
    let json = to_raw_value(&payload).unwrap_or_default();
    if json.get().contains("\\u0000") { to_raw_value(&without_nul(payload)).unwrap_or_default() } else { json }
}

/// Stores events, many in one commit.
pub(crate) fn acceptor(db: &platform_db::Db) -> GroupWriter<NewEvent, Accepted> {
    GroupWriter::new(db, 64, |conn, events| repository::accept(conn, events).boxed()).in_turn()
}

impl PgTriggers {
    /// Stores an event, and has it carried out; `None` when its trigger is gone.
    async fn accept(&self, event: NewEvent) -> Result<Option<Accepted>> {
        let accepted = self.acceptor.write(event).await?;
        if accepted.outcome.is_none() && accepted.id.is_some() {
            self.jobs.announce();
        }
        Ok(Some(accepted).filter(|accepted| accepted.id.is_some()))
    }

    /// Stores an event that somebody has carried out, a test or once more, with the answer to whoever repeats that.
    pub(crate) async fn carry_out(
        &self,
        account: &AccountId,
        trigger: &Id<Trigger>,
        event: NewEvent,
        once: Option<&Idempotency>,
    ) -> Result<Delivery> {
        self.count_sent(account, 1, event.payload.get().len())?;
        let mut conn = self.db.fair_conn(account).await?;
        let accepting = conn.transaction::<_, Error, _>(async |conn| {
            let accepted = repository::accept_again(conn, &event).await?;
            let accepted = accepted.filter(|accepted| accepted.id.is_some()).ok_or_else(|| not_found(trigger))?;
            let shown = Delivery { outcome: accepted.outcome, ..event.shown() };
            Idempotency::store_if(once, conn, 202, &shown).await?;
            Ok(shown)
        });
        let shown = accepting.await?;
        drop(conn);
        self.jobs.announce();
        Ok(shown)
    }

    /// A request came to an address that we gave out. `TRIGGER_NOT_FOUND`, `UNAUTHENTICATED`.
    pub async fn receive(&self, token: &str, headers: &dyn RequestHeaders, body: &Bytes) -> Result<Received> {
        let trigger = self.by_token(token).await?;
        let account = trigger.row.account();
        // A sender that hears that there is nothing sends nothing again; the pack may be back soon.
        let connector = self.integrations.connector(&trigger.row.app).map_err(Error::unavailable)?;
        let event = connector.event_type(&trigger.row.slug).map_err(Error::unavailable)?;
        if event.r#type != EventKind::Webhook {
            return Err(crate::service::no_address());
        }
        self.check_room(&account).await?;
        let now = self.clock.now();
        if let Some(rule) = &event.signature {
            self.verify(&account, &trigger, rule, headers, body, now).await?;
        }
        self.count_sent(&account, 1, body.len())?;
        let bytes = body.clone();
        let read = move || Ok(parse(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into()));
        let payload: Value = run_sized(body.len(), read).await?;
        if let Some(handshake) = &event.handshake {
            let says = |(path, wanted): (&String, &Value)| at_path(&payload, path) == Some(wanted);
            if !handshake.when.is_empty() && handshake.when.iter().all(says) {
                let answer = at_path(&payload, &handshake.answer).cloned().unwrap_or_default();
                return Ok(Received::Answer(Object::from_iter([(handshake.answer.clone(), answer)])));
            }
        }
        let id = event_id(event, &trigger, headers, &payload).unwrap_or_else(|| sha256_hex(body));
        let depth = headers.get("x-trigger-depth").map_or(0, |header| self.vault.depth_of(&account, header));
        let new = NewEvent { depth, ..NewEvent::of(&self.rules, &trigger, id, payload, now) };
        match self.accept(new).await? {
            Some(_) => Ok(Received::Accepted(event.accepted_status)),
            None => Err(crate::service::no_address()),
        }
    }

    /// Refuses more than an account has carried out in good time.
    async fn check_room(&self, account: &AccountId) -> Result<()> {
        if self.jobs.has_room(account, KIND).await? {
            return Ok(());
        }
        let message = "As many events wait as may; send this one again later.";
        Err(Error::new(code::TOO_MANY_EVENTS, message).retry_after(30))
    }

    /// Refuses more than an account keeps in good time, whatever becomes of it: what events carry, and their rows.
    pub(crate) fn count_sent(&self, account: &AccountId, events: usize, bytes: usize) -> Result<()> {
        let (most, bytes) = (self.rules.bytes_an_hour, bytes.saturating_add(events * ROW_BYTES));
        let sent = self.sent.get_with_by_ref(account, Arc::default);
        if most == 0 || sent.fetch_add(bytes, Ordering::Relaxed) + bytes <= most {
            return Ok(());
        }
        sent.fetch_sub(bytes, Ordering::Relaxed);
        let message = format!("The events of an hour have at most {most} bytes; send this one again later.");
        Err(Error::new(code::TOO_MANY_EVENTS, message).retry_after(600))
    }

    async fn verify(
        &self,
        account: &AccountId,
        trigger: &Arc<OpenTrigger>,
        rule: &SignatureRule,
        headers: &dyn RequestHeaders,
        body: &[u8],
        now: Timestamp,
    ) -> Result<()> {
        let secret = match rule.secret.as_str() {
            "${subscription.secret}" => Some(trigger.secret.clone()),
            "${config.secret}" => trigger.row.config["secret"].as_str().map(|secret| Secret::from(secret.to_owned())),
            _ => {
                let connections = self.integrations.connections();
                connections.signing_secret(account, &trigger.row.connection_id).await?
            }
        };
        let Some(secret) = secret else {
            // Whoever gave no secret takes what comes; an app's own way of signing is never left out.
            return if rule.kind == SignatureKind::Webhook {
                Ok(())
            } else {
                Err(refused("There is no signing secret; give the app's to the connection."))
            };
        };
        if is_signed(rule, &secret, headers, body, now.0 / 1000) { Ok(()) } else { Err(refused(WRONG)) }
    }
}

const WRONG: &str = "The signature is missing or wrong, or the request is too old.";

fn refused(message: &str) -> Error {
    Error::new(code::UNAUTHENTICATED, message)
}

/// Whether a request is signed as a rule says; `now` in seconds.
fn is_signed(rule: &SignatureRule, secret: &Secret, headers: &dyn RequestHeaders, body: &[u8], now: i64) -> bool {
    let given = headers.get(&rule.header.to_ascii_lowercase()).unwrap_or_default();
    let is_recent = |at: i64| now.saturating_sub(at).saturating_abs() <= rule.tolerance_seconds;
    let is_recent_text = |seconds: &str| seconds.parse().is_ok_and(is_recent);
    match rule.kind {
        SignatureKind::StandardWebhooks => is_standard(secret, headers, body, &is_recent_text),
        SignatureKind::Webhook => {
            let own = headers.get("x-webhook-signature").and_then(|given| given.strip_prefix("sha256="));
            let is_own = |given: &str| is_hex(given, &hmac_sha256(secret.expose().as_bytes(), body));
            own.map_or_else(|| is_standard(secret, headers, body, &is_recent_text), is_own)
        }
        SignatureKind::HmacSha256Hex | SignatureKind::HmacSha256Base64 => {
            let Some(given) = given.strip_prefix(rule.prefix.as_str()) else { return false };
            let seconds = rule.timestamp_header.as_str();
            if !seconds.is_empty() && !headers.get(&seconds.to_ascii_lowercase()).is_some_and(is_recent_text) {
                return false;
            }
            let tag = hmac_sha256(secret.expose().as_bytes(), body);
            let is_theirs = if rule.kind == SignatureKind::HmacSha256Hex {
                is_hex(given, &tag)
            } else {
                are_equal(given.as_bytes(), STANDARD.encode(tag).as_bytes())
            };
            is_theirs && (rule.timestamp_path.is_empty() || signed_at(&rule.timestamp_path, body).is_none_or(is_recent))
        }
        SignatureKind::SlackV0 => {
            let at = headers.get(&rule.timestamp_header.to_ascii_lowercase()).unwrap_or_default();
            let Some(given) = given.strip_prefix("v0=") else { return false };
            let signed = [b"v0:", at.as_bytes(), b":", body].concat();
            is_recent_text(at) && is_hex(given, &hmac_sha256(secret.expose().as_bytes(), &signed))
        }
        SignatureKind::StripeV1 => {
            let parts = || given.split(',').filter_map(|part| part.trim().split_once('='));
            let at = parts().find_map(|(name, at)| (name == "t").then_some(at)).unwrap_or_default();
            let tag = hmac_sha256(secret.expose().as_bytes(), &[at.as_bytes(), b".", body].concat());
            is_recent_text(at) && parts().any(|(name, given)| name == "v1" && is_hex(given, &tag))
        }
    }
}

/// The time that a payload has at a path, in seconds.
fn signed_at(path: &str, body: &[u8]) -> Option<i64> {
    /// Later seconds are milliseconds.
    const YEAR_5138: i64 = 100_000_000_000;
    let at = at_path(&parse(body).ok()?, path)?.as_i64()?;
    Some(if at < YEAR_5138 { at } else { at / 1000 })
}

fn is_hex(given: &str, tag: &[u8]) -> bool {
    are_equal(given.to_ascii_lowercase().as_bytes(), hex(tag).as_bytes())
}

/// As Standard Webhooks has it: any of the signatures is right.
fn is_standard(secret: &Secret, headers: &dyn RequestHeaders, body: &[u8], is_recent: &dyn Fn(&str) -> bool) -> bool {
    let of = |name: &str| headers.get(name).unwrap_or_default();
    let (id, at) = (of("webhook-id"), of("webhook-timestamp"));
    let (Ok(seconds), Ok(text)) = (at.parse::<i64>(), std::str::from_utf8(body)) else { return false };
    if id.is_empty() || !is_recent(at) {
        return false;
    }
    // Libraries take base64 with and without what stands before it.
    let of_library = Secret::from(format!("whsec_{}", secret.expose()));
    let expected = [secret, &of_library].map(|secret| signature(secret, id, seconds, text));
    let is_one = |given: &str| expected.iter().any(|expected| are_equal(given.as_bytes(), expected.as_bytes()));
    of("webhook-signature").split(' ').any(is_one)
}

/// The id that the app gives an event.
fn event_id(
    event: &PackEventType,
    trigger: &OpenTrigger,
    headers: &dyn RequestHeaders,
    payload: &Value,
) -> Option<String> {
    let header = |name: &str| headers.get(&name.to_ascii_lowercase()).map(str::to_owned);
    let given = match &event.event_id {
        Some(rule) => match (&rule.header, &rule.path) {
            (Some(name), _) => header(name),
            (None, Some(path)) => at_path(payload, path).and_then(|value| match value {
                Value::String(id) => Some(id.clone()),
                Value::Number(id) => Some(id.to_string()),
                _ => None,
            }),
            (None, None) => None,
        },
        None => {
            let named = || trigger.row.config["eventIdHeader"].as_str().and_then(header);
            header("webhook-id").or_else(named)
        }
    };
    given.filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    struct Headers(HashMap<&'static str, String>);

    impl RequestHeaders for Headers {
        fn get(&self, name: &str) -> Option<&str> {
            self.0.get(name).map(String::as_str)
        }
    }

    fn check(rule: Value, secret: &str, headers: &[(&'static str, &str)], body: &str, now: i64) -> bool {
        let rule: SignatureRule = serde_json::from_value(rule).expect("a rule");
        let headers = Headers(headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect());
        is_signed(&rule, &Secret::from(secret.to_owned()), &headers, body.as_bytes(), now)
    }

    /// GitHub's, Slack's and those of Standard Webhooks are as their documentation has them; Linear and Stripe publish
    /// none, so that theirs are made as it says.
    #[test]
    fn examples_of_github_linear_slack_stripe_and_standard_webhooks_are_good_and_nothing_near_them() {
        let github = json!({"kind": "hmac-sha256-hex", "header": "X-Hub-Signature-256", "prefix": "sha256=",
            "secret": "${subscription.secret}"});
        let tag = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let is_good = |secret: &str, tag: &str, body: &str| {
            check(github.clone(), secret, &[("x-hub-signature-256", tag)], body, 0)
        };
        assert!(is_good("It's a Secret to Everybody", tag, "Hello, World!"));
        assert!(
            !is_good("It's a Secret to Everybody", tag, "Hello, World") && !is_good("another", tag, "Hello, World!")
        );
        assert!(!is_good("It's a Secret to Everybody", &tag[7..], "Hello, World!"));

        let linear = json!({"kind": "hmac-sha256-hex", "header": "Linear-Signature", "secret": "${subscription.secret}",
            "timestampPath": "webhookTimestamp"});
        let body = r#"{"action":"create","webhookTimestamp":1676056940508}"#;
        let tag = "1f9f94b743a69cec1f3a396453f28739069eb3c2cd7eec4c32f7be4e663f2062";
        let is_good = |tag: &str, now: i64| check(linear.clone(), "secret", &[("linear-signature", tag)], body, now);
        assert!(is_good(tag, 1_676_057_240) && !is_good(tag, 1_676_057_241) && !is_good(tag, 1_676_056_639));
        assert!(!is_good(&format!("sha256={tag}"), 1_676_057_240));

        let slack = json!({"kind": "slack-v0", "header": "X-Slack-Signature", "timestampHeader": "X-Slack-Request-Timestamp",
            "secret": "${app.signingSecret}"});
        let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
            channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&\
            response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&\
            trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        let tag = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
        let is_good = |at: &str, now: i64| {
            let headers = [("x-slack-signature", tag), ("x-slack-request-timestamp", at)];
            check(slack.clone(), "8f742231b10e8888abcd99yyyzzz85a5", &headers, body, now)
        };
        assert!(is_good("1531420618", 1_531_420_618 + 300));
        assert!(!is_good("1531420618", 1_531_420_618 + 301) && !is_good("1531420619", 1_531_420_619));

        let stripe = json!({"kind": "stripe-v1", "header": "Stripe-Signature", "secret": "${app.signingSecret}"});
        let body = r#"{"id":"evt_test_webhook","object":"event"}"#;
        let tag = "88a022085c6bdb887b02cb26ff76dd681234d9675c0f22844059f55552a8883a";
        let is_good = |header: &str, now: i64| {
            check(stripe.clone(), "whsec_test_secret", &[("stripe-signature", header)], body, now)
        };
        let (old, at) = ("6".repeat(64), 1_492_774_577);
        assert!(is_good(&format!("t={at},v1={old},v1={tag},v0={old}"), at + 300), "any signature of the scheme");
        for wrong in [
            format!("t={at},v0={tag}"),
            format!("t={},v1={tag}", at + 1),
            format!("v1={tag}"),
            format!("t={at},v1={old}"),
            tag.to_owned(),
        ] {
            assert!(!is_good(&wrong, at), "{wrong}");
        }
        assert!(!is_good(&format!("t={at},v1={tag}"), at + 301));

        let standard = json!({"kind": "standard-webhooks", "secret": "${subscription.secret}"});
        let headers = |id: &'static str| {
            [
                ("webhook-id", id),
                ("webhook-timestamp", "1614265330"),
                ("webhook-signature", "v1,wrong v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
            ]
        };
        let is_good_with = |secret: &str, id: &'static str, now: i64| {
            check(standard.clone(), secret, &headers(id), r#"{"test": 2432232314}"#, now)
        };
        let is_good = |id, now| is_good_with("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", id, now);
        assert!(is_good("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330 - 299));
        assert!(is_good_with("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330));
        assert!(!is_good_with("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330));
        assert!(!is_good("msg_other", 1_614_265_330) && !is_good("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_266_000));
    }
}
