//! What was called, by whom, and what came of it: written beside the calls, many at once.

use std::time::Duration;

use platform_core::{AccountId, Id, Result, Timestamp, millis, parse, spawn};
use platform_db::Db;
use platform_vault::{MASK, spellings};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tracing::warn;

use crate::{
    model::Outcome,
    repository::{self, CallRow},
};

/// Rows that wait to be written; who would add to more waits.
const MOST_WAITING: usize = 10_000;
const AT_ONCE: usize = 500;
/// After so many tries it is looked which row is at fault.
const SEVERAL: u32 = 5;
const AGAIN: Duration = Duration::from_secs(1);
/// Who reads waits so long for what is being written.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of arguments and of a result so much is kept, in bytes.
const MOST_PAYLOAD: usize = 65_536;
/// Ends of names whose values are not kept.
const SECRETS: [&str; 11] = [
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "secret",
    "token",
];
/// What may name the `value` beside it, as in lists of headers.
const NAMES: [&str; 4] = ["name", "headerName", "key", "header"];
/// A shorter secret would be found everywhere.
const SHORTEST: usize = 6;
/// So many values of a call are looked for elsewhere in it.
const MOST_SECRETS: usize = 100;

/// A call that was made.
pub(crate) struct Call<'a> {
    pub account: &'a AccountId,
    pub subject: &'a str,
    pub profile: &'a str,
    pub server: Option<&'a str>,
    pub tool: &'a str,
    pub began: Timestamp,
    pub took: Duration,
    pub outcome: Outcome,
    pub code: Option<String>,
    pub arguments: &'a Value,
    pub result: &'a Value,
    pub keeps_payloads: bool,
}

/// What the writer is given.
enum Entry {
    Row(Box<CallRow>),
    /// Told when all before it is written.
    Mark(oneshot::Sender<()>),
}

/// Writes what was called.
pub(crate) struct Audit(mpsc::Sender<Entry>);

impl Audit {
    pub fn new(db: &Db) -> Self {
        enum AuditKind {}
        let (sender, mut entries) = mpsc::channel::<Entry>(MOST_WAITING);
        let db = db.clone();
        spawn("write audit", async move {
            let mut batch = Vec::with_capacity(AT_ONCE);
            while entries.recv_many(&mut batch, AT_ONCE).await > 0 {
                let (mut rows, mut marks) = (Vec::with_capacity(batch.len()), Vec::new());
                for entry in batch.drain(..) {
                    match entry {
                        Entry::Row(row) => rows.push(CallRow { id: Id::<AuditKind>::generate().into(), ..*row }),
                        Entry::Mark(mark) => marks.push(mark),
                    }
                }
                let mut tries = 0;
                while let Err(error) = write(&db, &rows).await {
                    warn!(%error, "Calls of the MCP gateway could not be noted; trying again shortly.");
                    sleep(AGAIN).await;
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
        Self(sender)
    }

    /// Has a call noted whose caller is gone.
    pub fn note_now(&self, call: &Call<'_>) {
        let _ = self.0.try_send(Entry::Row(Box::new(row_of(call))));
    }

    /// Has a call noted.
    pub async fn note(&self, call: &Call<'_>) {
        // Only a database that is away for long fills the queue.
        let _ = self.0.send(Entry::Row(Box::new(row_of(call)))).await;
    }

    /// Waits until all that was noted in this process is written, for a while.
    pub async fn written(&self) {
        let (mark, written) = oneshot::channel();
        let waiting = async {
            if self.0.send(Entry::Mark(mark)).await.is_ok() {
                let _ = written.await;
            }
        };
        let _ = timeout(PATIENCE, waiting).await;
    }
}

fn row_of(call: &Call<'_>) -> CallRow {
    let length = |value: &Value| i64::try_from(value.to_string().len()).unwrap_or(i64::MAX);
    let [arguments, result] =
        if call.keeps_payloads { kept([call.arguments, call.result]).map(Some) } else { [None, None] };
    CallRow {
        account_id: call.account.as_str().to_owned(),
        id: String::new(),
        timestamp_ms: call.began.0,
        subject: call.subject.to_owned(),
        profile_id: call.profile.to_owned(),
        tool_server_id: call.server.map(str::to_owned),
        tool_name: call.tool.chars().take(200).collect::<String>().replace('\0', " "),
        outcome: call.outcome.as_str().to_owned(),
        duration_ms: millis(call.took),
        request_bytes: length(call.arguments),
        response_bytes: length(call.result),
        error_code: call.code.clone(),
        arguments,
        result,
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
    let is_away = left.len() == count && db.conn().await.is_err();
    if is_away { left } else { Vec::new() }
}

async fn write(db: &Db, rows: &[CallRow]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    repository::insert_calls(&mut *db.conn().await?, rows).await
}

/// Payloads of a call as they are kept: without what stands under names of secrets, wherever it stands again.
fn kept(payloads: [&Value; 2]) -> [String; 2] {
    let mut secrets = Vec::new();
    let masked = payloads.map(|payload| masked(payload, false, &mut secrets).to_string());
    secrets.retain(|secret| secret.len() >= SHORTEST);
    secrets.truncate(MOST_SECRETS);
    masked.map(|mut text| {
        // A secret that is cut would not be found.
        text.truncate(text.floor_char_boundary(4 * MOST_PAYLOAD));
        for spelling in secrets.iter().flat_map(|secret| spellings(secret)) {
            if text.contains(&spelling) {
                text = text.replace(&spelling, MASK);
            }
        }
        text = text.replace("\\u0000", " ");
        if text.len() > MOST_PAYLOAD {
            text.truncate(text.floor_char_boundary(MOST_PAYLOAD));
            text.push('…');
        }
        text
    })
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
                (name.clone(), masked(value, is_secret, secrets))
            };
            fields.iter().map(field).collect()
        }
        Value::Array(items) => items.iter().map(|item| masked(item, is_secret, secrets)).collect(),
        Value::String(text) if is_secret => {
            secrets.push(text.clone());
            MASK.into()
        }
        Value::String(text) if text.starts_with(['{', '[']) && text.len() <= MOST_PAYLOAD => {
            let (known, inner) = (secrets.len(), parse::<Value>(text.as_bytes()));
            let inner = inner.map(|inner| masked(&inner, false, secrets).to_string());
            inner.ok().filter(|_| secrets.len() > known).unwrap_or_else(|| text.clone()).into()
        }
        Value::Number(_) if is_secret => MASK.into(),
        other => other.clone(),
    }
}

/// Whether a name is that of a secret, or of several; a number of tokens is none.
fn is_name_of_secret(name: &str, is_number: bool) -> bool {
    let bare: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let one = bare.strip_suffix('s').filter(|_| !is_number).unwrap_or(&bare);
    SECRETS.iter().any(|secret| bare.ends_with(secret) || one.ends_with(secret))
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
        let [arguments, result] = kept([&arguments, &result]);
        assert!(!arguments.contains("canary") && !arguments.contains("1234"), "{arguments}");
        for kept in ["\"q\":\"x\"", "\"token_count\":3", "\"maxTokens\":7", "\"value\":\"text\""] {
            assert!(arguments.contains(kept), "{arguments}");
        }
        assert!(
            !result.contains("canary") && !result.contains("Y2FuYXJ5") && result.contains("and [1, 2]"),
            "{result}"
        );
        assert!(kept([&Value::String("ä".repeat(70_000)), &Value::Null])[0].len() <= MOST_PAYLOAD + 4);
    }
}
