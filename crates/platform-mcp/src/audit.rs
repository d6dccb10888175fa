//! What was called, by whom, and what came of it: written beside the calls, many at once.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_core::{FairSemaphore, Result, json_length, parse, run_blocking, spawn};
use platform_db::Db;
use platform_vault::{MASK, Redactor, Secret};
use regex::{Captures, Regex};
use serde_json::Value;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::{sleep, timeout},
};
use tracing::warn;

use crate::repository::{self, CallRow};

/// Rows that wait to be written, and KiB of what they keep; who would add to more waits.
const MAX_WAITING: usize = 10_000;
const MAX_KEPT: usize = 64 << 10;
const AT_ONCE: usize = 500;
/// After so many tries it is looked which row is at fault.
const SEVERAL: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Who reads waits so long for what is being written, and a call whose caller is gone for being noted.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Of arguments and of a result so much is kept, in bytes.
const MAX_PAYLOAD: usize = 65_536;
/// Ends of names whose values are not kept.
const SECRETS: [&str; 19] = [
    "accesskey",
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "encryptionkey",
    "jwt",
    "otp",
    "passphrase",
    "passwd",
    "password",
    "passwordhash",
    "privatekey",
    "privatekeypem",
    "pwd",
    "secret",
    "secretkey",
    "signingkey",
    "token",
];
/// What may name the `value` beside it, as in lists of headers.
const NAMES: [&str; 4] = ["name", "headerName", "key", "header"];
/// Secrets that stand in texts, of a call, that are looked for elsewhere in it.
const MAX_WRITTEN_OUT: usize = 1000;
static SCHEME: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)\b(bearer|basic)(:?\s+|%20)([A-Za-z0-9._~+/=-]{8,})"));
static PASSWORD: LazyLock<Regex> = LazyLock::new(|| pattern(r"(://[^/?#\s:@]*:)([^/?#\s@]+)@"));
static PARAMETER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"(^|[?&#;,\s"'{])([A-Za-z0-9_.\[\]-]+)=(["']?)([^?&#;,\s"'<>]+)"#));
static NAMED: LazyLock<Regex> = LazyLock::new(|| pattern(r#"([A-Za-z0-9_.-]+)["']?\s?:\s?["']?"#));
static PEM: LazyLock<Regex> = LazyLock::new(|| pattern(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]+"));
/// Keys that tell by their form what they are: ours, those of GitHub, Slack, OpenAI, Anthropic, Google, Groq, Hugging Face,
/// xAI, Stripe, GitLab and AWS, and JSON Web Tokens.
static KEY: LazyLock<Regex> = LazyLock::new(|| {
    let forms = [
        r"[a-z]{2,12}-[A-Za-z0-9]{43}",
        r"gh[a-z]_[A-Za-z0-9]{36,}",
        r"github_pat_[A-Za-z0-9_]{22,}",
        r"xox[a-z]-[A-Za-z0-9-]{10,}",
        r"sk-[A-Za-z0-9_-]{20,}",
        r"AIza[A-Za-z0-9_-]{35}",
        r"(?:gsk|hf)_[A-Za-z0-9]{20,}",
        r"xai-[A-Za-z0-9]{40,}",
        r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
        r"glpat-[A-Za-z0-9_-]{20,}",
        r"(?:AKIA|ASIA)[A-Z0-9]{16}",
        r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",
    ];
    pattern(&format!(r"(?-u:\b)(?:{})(?-u:\b)", forms.join("|")))
});
/// Of a call's secrets so many bytes are looked for elsewhere in it.
const MAX_SECRETS: usize = 8_192;
/// Payloads that are longer are read for secrets beside the threads that serve others, in bytes.
const SHORT: usize = 16 << 10;
/// So many of them at once, in all and of one account.
const READ_AT_ONCE: (usize, usize) = (4, 2);

/// What the writer is given.
enum Entry {
    Row(Box<CallRow>, OwnedSemaphorePermit),
    /// Told when all before it is written.
    Mark(oneshot::Sender<()>),
}

/// Writes what was called.
pub(crate) struct Audit {
    entries: mpsc::Sender<Entry>,
    places: FairSemaphore<String>,
    room: Arc<Semaphore>,
}

impl Audit {
    pub fn new(db: &Db) -> Self {
        let (sender, mut entries) = mpsc::channel::<Entry>(MAX_WAITING);
        let db = db.clone();
        spawn("write audit", async move {
            let mut batch = Vec::with_capacity(AT_ONCE);
            while entries.recv_many(&mut batch, AT_ONCE).await > 0 {
                let (mut rows, mut room, mut marks) = (Vec::with_capacity(batch.len()), Vec::new(), Vec::new());
                for entry in batch.drain(..) {
                    match entry {
                        Entry::Row(row, of_row) => {
                            rows.push(*row);
                            room.push(of_row);
                        }
                        Entry::Mark(mark) => marks.push(mark),
                    }
                }
                let mut tries = 0;
                while let Err(error) = write(&db, &rows).await {
                    warn!(%error, "Calls of the MCP gateway could not be noted; trying again shortly.");
                    sleep(RETRY_DELAY).await;
                    tries += 1;
                    if tries % SEVERAL == 0 {
                        rows = write_one_by_one(&db, rows).await;
                    }
                }
                for mark in marks {
                    let _ = mark.send(());
                }
            }
        });
        let (places, room) = (FairSemaphore::new(READ_AT_ONCE.0, READ_AT_ONCE.1), Arc::new(Semaphore::new(MAX_KEPT)));
        Self { entries: sender, places, room }
    }

    /// Has a call noted, with its arguments and its result if those are kept; `own`: what the caller was let in with.
    pub async fn note(&self, mut row: CallRow, payloads: Option<[Value; 2]>, own: Option<Secret>) {
        if let Some(payloads) = payloads {
            let is_short = json_length(&payloads, SHORT).is_some();
            let kept =
                if is_short { kept(&payloads, own) } else { self.kept_aside(&row.account_id, payloads, own).await };
            [row.arguments, row.result] = kept.map(Some);
        }
        let bytes = [&row.arguments, &row.result].map(|kept| kept.as_ref().map_or(0, String::len));
        let size = u32::try_from(bytes.iter().sum::<usize>() >> 10).unwrap_or(u32::MAX);
        // Only a database that is away for long fills the queue.
        if let Ok(room) = Arc::clone(&self.room).acquire_many_owned(size).await {
            let _ = self.entries.send(Entry::Row(Box::new(row), room)).await;
        }
    }

    /// The same for a caller that is gone; not at any price.
    pub async fn note_in_time(&self, row: CallRow, payloads: Option<[Value; 2]>, own: Option<Secret>) {
        let _ = timeout(MAX_WAIT, self.note(row, payloads, own)).await;
    }

    async fn kept_aside(&self, account: &str, payloads: [Value; 2], own: Option<Secret>) -> [String; 2] {
        let _place = self.places.acquire(&account.to_owned()).await;
        run_blocking(move || Ok(kept(&payloads, own))).await.unwrap_or_default()
    }

    /// Waits until all that was noted in this process is written, for a while.
    pub async fn written(&self) {
        let (mark, written) = oneshot::channel();
        let waiting = async {
            if self.entries.send(Entry::Mark(mark)).await.is_ok() {
                let _ = written.await;
            }
        };
        let _ = timeout(MAX_WAIT, waiting).await;
    }
}

/// A row that the database does not take must not hold up the others; what is left when it takes none.
async fn write_one_by_one(db: &Db, rows: Vec<CallRow>) -> Vec<CallRow> {
    let mut left = Vec::new();
    let count = rows.len();
    for row in rows {
        if write(db, std::slice::from_ref(&row)).await.is_err() {
            left.push(row);
        }
    }
    if left.len() < count || can_write(db).await { Vec::new() } else { left }
}

async fn can_write(db: &Db) -> bool {
    match db.conn().await {
        Ok(mut conn) => platform_db::can_write(&mut conn).await.is_ok(),
        Err(_) => false,
    }
}

async fn write(db: &Db, rows: &[CallRow]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    repository::insert_calls(&mut *db.conn().await?, rows).await
}

/// Payloads of a call as they are kept: without what stands under names of secrets, wherever it stands again.
fn kept(payloads: &[Value; 2], own: Option<Secret>) -> [String; 2] {
    // Of `Bearer …` that which is secret.
    let own = own.and_then(|own| own.expose().split(' ').next_back().map(str::to_owned));
    let mut secrets: Vec<String> = own.into_iter().collect();
    let masked = payloads.each_ref().map(|payload| masked(payload, false, &mut secrets).to_string());
    let mut left = MAX_SECRETS;
    secrets.retain(|secret| left.checked_sub(secret.len()).map(|rest| left = rest).is_some());
    let redactor = Redactor::new(secrets.iter().map(String::as_str));
    masked.map(|mut text| {
        // A secret that is cut would not be found.
        text.truncate(text.floor_char_boundary(4 * MAX_PAYLOAD));
        text = redactor.text(&text).replace("\\u0000", " ");
        if text.len() > MAX_PAYLOAD {
            text.truncate(text.floor_char_boundary(MAX_PAYLOAD));
            text.push('…');
        }
        text
    })
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("it is a pattern")
}

/// Without what stands under names of secrets, which is added to them.
fn masked(value: &Value, is_secret: bool, secrets: &mut Vec<String>) -> Value {
    match value {
        Value::Object(fields) => {
            let named = NAMES.iter().filter_map(|name| fields.get(*name)?.as_str());
            let names_secret = named.into_iter().any(|name| is_name_of_secret(name, false));
            let field = |(name, value): (&String, &Value)| {
                let is_secret = is_secret
                    || is_name_of_secret(name, value.is_number())
                    || names_secret && name.eq_ignore_ascii_case("value");
                (without_written_out(name, secrets), masked(value, is_secret, secrets))
            };
            fields.iter().map(field).collect()
        }
        Value::Array(items) => items.iter().map(|item| masked(item, is_secret, secrets)).collect(),
        Value::String(text) if is_secret => {
            secrets.push(text.clone());
            MASK.into()
        }
        Value::String(text) if text.starts_with(['{', '[']) && text.len() <= MAX_PAYLOAD => {
            let (known, inner) = (secrets.len(), parse::<Value>(text.as_bytes()));
            let inner = inner.map(|inner| masked(&inner, false, secrets).to_string());
            let has_secrets = secrets.len() > known;
            inner.ok().filter(|_| has_secrets).unwrap_or_else(|| without_written_out(text, secrets)).into()
        }
        Value::String(text) => without_written_out(text, secrets).into(),
        Value::Number(_) if is_secret => MASK.into(),
        other => other.clone(),
    }
}

/// A text without what it shows as a secret, which is added to the others: after `Bearer` or `Basic`, in an address as
/// password, as the value of a parameter or variable with the name of a secret, and what has the form of a key.
fn without_written_out(text: &str, secrets: &mut Vec<String>) -> String {
    let mut note = |secret: &str| {
        // So many are looked for elsewhere.
        if secrets.len() < MAX_WRITTEN_OUT {
            secrets.push(secret.to_owned());
        }
        MASK
    };
    let text = SCHEME.replace_all(text, |found: &Captures<'_>| {
        let decoded = STANDARD.decode(&found[3]).ok();
        let is_secret = !found[1].eq_ignore_ascii_case("basic") || decoded.is_some_and(|pair| pair.contains(&b':'));
        if is_secret { format!("{}{}{}", &found[1], &found[2], note(&found[3])) } else { found[0].to_owned() }
    });
    let text = PASSWORD.replace_all(&text, |found: &Captures<'_>| format!("{}{}@", &found[1], note(&found[2])));
    let text = PEM.replace_all(&text, |found: &Captures<'_>| note(&found[0]));
    let text = PARAMETER.replace_all(&text, |found: &Captures<'_>| {
        let is_number = found[4].bytes().all(|byte| byte.is_ascii_digit());
        if is_name_of_secret(&found[2], is_number) {
            format!("{}{}={}{}", &found[1], &found[2], &found[3], note(&found[4]))
        } else {
            found[0].to_owned()
        }
    });
    let text = without_named(&text);
    KEY.replace_all(&text, |found: &Captures<'_>| note(&found[0])).into_owned()
}

/// A text without what stands behind the name of a secret and a colon, as in YAML, headers and JSON. That may be any word
/// of a sentence: it is not looked for elsewhere.
fn without_named(text: &str) -> String {
    let (mut masked, mut from) = (String::with_capacity(text.len()), 0);
    for found in NAMED.captures_iter(text) {
        let end = found.get_match().end();
        let rest = &text[end..];
        let ends = |c: char| c.is_whitespace() || "?&#;,\"'<>{}[]:".contains(c);
        let value = &rest[..rest.find(ends).unwrap_or(rest.len())];
        let is_scheme = ["", "basic", "bearer", MASK].iter().any(|scheme| value.eq_ignore_ascii_case(scheme));
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
        if end >= from && !is_scheme && is_name_of_secret(&found[1], is_number) {
            masked.push_str(&text[from..end]);
            masked.push_str(MASK);
            from = end + value.len();
        }
    }
    masked + &text[from..]
}

/// Whether a name is that of a secret, or of several; a number of tokens is none.
fn is_name_of_secret(name: &str, is_number: bool) -> bool {
    let bare: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let bare = bare.trim_end_matches(|of: char| of.is_ascii_digit()).trim_end_matches("value");
    let one = bare.strip_suffix('s').filter(|_| !is_number).unwrap_or(bare);
    bare == "pass" || SECRETS.iter().any(|secret| bare.ends_with(secret) || one.ends_with(secret))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_called_like_a_secret_is_not_kept_wherever_it_stands_again() {
        let arguments = json!({"api_key": "canary-1", "q": "x", "auth": [{"accessToken": "canary-2", "token_count": 3}],
            "credentials": {"user": "canary-3"}, "maxTokens": 7, "password": 1234, "note": "{\"token\":\"canary-4\"}",
            "headers": [{"name": "Authorization", "value": "Bearer canary-5"}, {"name": "Accept", "value": "text"}]});
        let result = json!({"content": [{"type": "text", "text": "You sent canary-1 and Y2FuYXJ5LTI= and [1, 2]."}]});
        let [arguments, result] = kept(&[arguments, result], None);
        assert!(!arguments.contains("canary") && !arguments.contains("1234"), "{arguments}");
        for kept in ["\"q\":\"x\"", "\"token_count\":3", "\"maxTokens\":7", "\"value\":\"text\""] {
            assert!(arguments.contains(kept), "{arguments}");
        }
        assert!(
            !result.contains("canary") && !result.contains("Y2FuYXJ5") && result.contains("and [1, 2]"),
            "{result}"
        );
        let written =
            "curl -H 'Authorization: Bearer canary-6' \"https://me:canary-7@a.example/x?q=y&access_token=canary-8\"";
        let [written, echo] =
            kept(&[json!({"command": written}), json!("canary-6, canary-7, canary-8 of a basic kind")], None);
        assert!(!written.contains("canary") && written.contains("a.example/x?q=y"), "{written}");
        assert!(!echo.contains("canary") && echo.contains("of a basic kind"), "{echo}");
        let named = json!({"jwt": "canary-a", "privateKeyPem": "canary-b", "token2": "canary-c", "tokenValue": "canary-d",
            "sh": "API_TOKEN=canary-e; DB_PASSWORD='canary-f' API_KEY=\"canary-g\" n=1 max_tokens=100000",
            "db": "Server=db;User=sa;Password=canary-h", "to": "url=https://a/x?access_token=canary-i",
            "list": "a=1,token=canary-j", "braces": "token={canary-t} {a:{password:canary-u}}",
            "both": "Note: token=canary-v, a: password: canary-w", "bypass": "plain", "authorizationStatus": "active", "secretary": "Ann",
            "secretAccessKey": "canary-k", "signing_key": "canary-l", "otp": "canary-m", "passwordHash": "canary-n",
            "said": "Here: {\"password\":\"canary-o\", \"n\": 5}", "yaml": "password: canary-p\nuser: sa\nX-Api-Key: canary-q",
            "pem": "-----BEGIN RSA PRIVATE KEY-----\ncanary/r+\n-----END", "Bearer canary-s": 1});
        let key = format!("my key is ak-{}, theirs ghp_{} and so-on", "c4nary".repeat(7) + "7", "c4nary".repeat(6));
        let [named, key] = kept(&[named, json!(key)], None);
        assert!(!named.contains("canary"), "{named}");
        for kept in [
            "n=1 max_tokens=100000",
            "User=sa",
            "user: sa",
            "plain",
            "\\\"n\\\": 5",
            "url=https://a/x?",
            "active",
            "Ann",
        ] {
            assert!(named.contains(kept), "{named}");
        }
        assert!(!key.contains("c4nary") && key.contains("and so-on"), "{key}");
        let basic = json!("Authorization: Basic bWU6Y2FuYXJ5LTk= and basic information");
        let many = Value::from((0..20_000).map(|n| format!("Bearer canary-{n:06}")).collect::<Vec<_>>());
        let [basic, many] = kept(&[basic, many], None);
        assert!(!basic.contains("bWU6") && basic.contains("basic information"), "{basic}");
        assert!(!many.contains("canary"), "{}", &many[..200]);
        assert!(kept(&[Value::String("ä".repeat(70_000)), Value::Null], None)[0].len() <= MAX_PAYLOAD + 4);
    }
}
