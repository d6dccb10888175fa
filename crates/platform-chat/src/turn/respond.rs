//! What a client says of the calls that wait for it: results of its own tools, and approvals.

use diesel::{ExpressionMethods, NullableExpressionMethods};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_conversation::{
    ConversationStore, TurnRequest, check_client_schemas, check_client_tools, json, open_text,
};
use platform_core::{AccountId, Checks, Error, Result, Timestamp};
use platform_db::{Db, Idempotency, in_progress};
use platform_jobs::{find_in, wake_in};
use platform_runtime::{CallState, ChildPool, OpenCall};

use super::{
    message::{Responded, ToolResponses},
    work::KIND,
};
use crate::{
    chat::repository::{self, HANDED_OFF, Status, WAITING, by_uid, greatest, waiting_reason},
    code,
    schema::chats,
};

/// Longest result of a client's tool (contract 00 §8).
const MAX_CONTENT: usize = 1 << 20;
/// Answers that are given at once.
const MAX_RESPONSES: usize = 1000;

/// Takes answers in; when none is missing the turn goes on. The revision the chat has then. `denied`: why whoever answers
/// may not decide on approvals.
#[expect(clippy::too_many_arguments, reason = "each is one thing")]
pub(crate) async fn respond(
    db: &Db,
    account: &AccountId,
    assistant: &str,
    uid: &str,
    given: &ToolResponses,
    denied: Option<Error>,
    once: Option<&Idempotency>,
    now: Timestamp,
) -> Result<Option<(Responded, i64)>> {
    let mut conn = db.conn().await?;
    conn.transaction::<_, Error, _>(async |conn| {
        if let Some(once) = once {
            once.lock(conn).await?;
            // Another request with this key was first: what it was told is told again.
            if once.find(db).await?.is_some() {
                return Err(in_progress());
            }
        }
        let run = find_in(conn, account, KIND, uid).await?;
        let chat = repository::lock(conn, account, uid).await?.filter(|chat| chat.assistant == assistant);
        let Some(chat) = chat else { return Ok(None) };
        // A run that somebody works already has waited long enough.
        let waiting = run.filter(|run| run.idle && chat.status() == Status::Waiting);
        let Some(mut run) = waiting else {
            let message = "This chat does not wait for tool responses.";
            return Err(Error::new(code::CHAT_NOT_WAITING, message).with("status", &chat.status));
        };
        let mut open = chat.open_calls()?;
        let is_open = |id: &String| open.iter().any(|call| call.call.id == *id);
        let others: Vec<String> =
            given.responses.iter().map(|response| response.tool_call_id.clone()).filter(|id| !is_open(id)).collect();
        let settled = if others.is_empty() {
            Vec::new()
        } else {
            ConversationStore::of(account, uid).settled_calls(conn, chat.turn_start, &others).await?
        };
        take(&mut open, &settled, given, denied)?;
        let handed_off = open.iter().any(|call| call.awaits().is_some());
        let pending = open.iter().filter(|call| call.waits() && call.awaits().is_none()).count();
        if let Some(tools) = given.responses.iter().rev().find_map(|response| response.tools.clone()) {
            let request: TurnRequest = serde_json::from_value(run.payload).map_err(Error::internal)?;
            run.payload = serde_json::to_value(TurnRequest { tools, ..request }).map_err(Error::internal)?;
        }
        wake_in(conn, account, &run, pending == 0 && !handed_off).await?;
        let text = open_text(&open)?.unwrap_or_default();
        let status = match (pending, handed_off) {
            (0, true) => HANDED_OFF,
            (0, false) => "processing",
            _ => WAITING,
        };
        let answered = diesel::update(by_uid(account.as_str(), uid)).set((
            chats::open_calls.eq(json(&text).nullable()),
            chats::status.eq(status),
            chats::stop_reason.eq(waiting_reason(status)),
            chats::revision.eq(chats::revision + 1),
            chats::edited_ms.eq(greatest(chats::edited_ms, now.0)),
        ));
        let revision: i64 = answered.returning(chats::revision).get_result(conn).await?;
        let responded = Responded { chat_uid: uid.to_owned(), pending };
        Idempotency::store_if(once, conn, 200, &responded).await?;
        Ok(Some((responded, revision)))
    })
    .await
}

/// Every rule that needs no look at the chat.
pub(crate) async fn check(given: &ToolResponses, children: &ChildPool, account: &AccountId) -> Result<()> {
    let mut checks = Checks::default();
    if given.responses.is_empty() {
        checks.issue("responses", "required", "responses is required: an answer for each call");
    }
    checks.count("responses", given.responses.len(), MAX_RESPONSES);
    for (i, response) in given.responses.iter().enumerate().take(MAX_RESPONSES) {
        let path = format!("responses[{i}]");
        if response.role.as_ref().is_some_and(|role| !role.eq_ignore_ascii_case("tool")) {
            checks.issue(&format!("{path}.role"), "enum", "role must be tool");
        }
        checks.content_bytes(&format!("{path}.content"), &response.content, MAX_CONTENT);
    }
    checks.finish()?;
    let lists = given.responses.iter().enumerate();
    let lists: Vec<_> = lists
        .map(|(i, response)| (format!("responses[{i}].tools"), response.tools.as_deref().unwrap_or_default()))
        .collect();
    for (path, tools) in &lists {
        check_client_tools(path, tools)?;
    }
    check_client_schemas(children, account, &lists).await
}

/// `settled`: calls of the turn that have a result.
fn take(open: &mut [OpenCall], settled: &[String], given: &ToolResponses, denied: Option<Error>) -> Result<()> {
    let waits = |id: &String| open.iter().any(|call| call.call.id == *id && call.state == CallState::Approval);
    if let Some(denied) = denied.filter(|_| given.responses.iter().any(|response| waits(&response.tool_call_id))) {
        return Err(denied);
    }
    let mut checks = Checks::default();
    for (i, response) in given.responses.iter().enumerate() {
        let path = format!("responses[{i}]");
        if settled.contains(&response.tool_call_id) {
            continue;
        }
        let Some(call) = open.iter_mut().find(|call| call.call.id == response.tool_call_id) else {
            let message = format!("no call `{}` waits in this chat", response.tool_call_id);
            checks.issue(&format!("{path}.tool_call_id"), "unknown", message);
            continue;
        };
        match (&call.state, response.content.as_str()) {
            (CallState::Client, _) => call.state = CallState::Answered(response.content.clone()),
            (CallState::Approval, Some("approved")) => call.state = CallState::Approved,
            (CallState::Approval, Some("rejected")) => call.state = CallState::Rejected,
            (CallState::Approval, _) => {
                let message = "content must be approved or rejected: the call waits for approval";
                checks.issue(&format!("{path}.content"), "enum", message);
            }
            // The first answer counts.
            _ => {}
        }
    }
    checks.finish()
}
