//! What was called, by whom, and what came of it: written beside the calls, many at once.

use std::time::Duration;

use platform_core::{AccountId, Id, Result, Timestamp, millis, spawn};
use platform_db::Db;
use platform_vault::MASK;
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
/// Fields whose values are not kept.
const SECRETS: [&str; 8] =
    ["password", "passwd", "secret", "token", "apikey", "authorization", "credential", "privatekey"];

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
        arguments: call.keeps_payloads.then(|| kept(call.arguments)),
        result: call.keeps_payloads.then(|| kept(call.result)),
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

/// A payload as it is kept.
fn kept(value: &Value) -> String {
    let mut text = masked(value).to_string().replace("\\u0000", " ");
    if text.len() > MOST_PAYLOAD {
        text.truncate(text.floor_char_boundary(MOST_PAYLOAD));
        text.push('…');
    }
    text
}

/// Without what stands in fields that are called like secrets.
fn masked(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let bare: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
                let is_secret = SECRETS.iter().any(|secret| bare.to_ascii_lowercase().ends_with(secret));
                let value = if is_secret && !value.is_object() { MASK.into() } else { masked(value) };
                (name.clone(), value)
            };
            fields.iter().map(field).collect()
        }
        Value::Array(items) => items.iter().map(masked).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_called_like_a_secret_is_not_kept() {
        let given = json!({"api_key": "canary", "q": "x", "auth": [{"accessToken": "canary", "token_count": 3}]});
        let text = kept(&given);
        assert!(
            !text.contains("canary") && text.contains("\"q\":\"x\"") && text.contains("\"token_count\":3"),
            "{text}"
        );
        assert!(kept(&Value::String("ä".repeat(70_000))).len() <= MOST_PAYLOAD + 4);
    }
}
