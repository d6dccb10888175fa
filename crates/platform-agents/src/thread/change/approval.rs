//! Calls that wait for approval: only a client decides, never a text.

use platform_core::{Checks, Error, Result, Timestamp};
use platform_db::Conn;
use platform_runtime::CallState;

use crate::thread::{
    change::control::close,
    change::messages::{append, developer_message, queue},
    change::request::NewApproval,
    change::results::take_arrived,
    change::state::{Action, Cause, ThreadState},
    model::PendingApproval,
    record::{Actor, Record},
    threads::Threads,
};

impl Threads {
    /// What a thread asks approval for.
    pub(crate) fn approval_of(&self, record: &Record, now: Timestamp) -> PendingApproval {
        enum ApprovalKind {}
        let waiting = record.open.iter().filter(|open| open.state == CallState::Approval);
        let tool_calls: Vec<_> = waiting.map(|open| open.call.clone()).collect();
        let names: Vec<&str> = tool_calls.iter().map(|call| call.function.name.as_str()).collect();
        PendingApproval {
            uid: platform_core::Id::<ApprovalKind>::generate().into(),
            reason: format!("These tools need approval: {}.", names.join(", ")),
            tool_calls,
            requested_at_ms: now,
            expires_at_ms: now.after(self.config.approval_timeout),
        }
    }

    /// Carries out what a client decides.
    pub(crate) async fn decide_in(
        &self,
        conn: &mut Conn,
        record: &mut Record,
        given: &NewApproval,
        approves: bool,
        by: &Actor,
        now: Timestamp,
    ) -> Result<()> {
        record.allow(Action::Approval)?;
        let pending = record.facts.approval.clone().ok_or_else(|| Error::internal("nothing waits for approval"))?;
        if given.uid.as_ref().is_some_and(|uid| *uid != pending.uid) {
            let message = format!("Another approval is pending: `{}`; read the thread and decide again.", pending.uid);
            return Err(record.conflict_as(message).with("pendingApproval", &pending.uid));
        }
        if let Some(ids) = &given.tool_call_ids {
            let mut checks = Checks::default();
            for (i, id) in ids.iter().enumerate() {
                if !pending.tool_calls.iter().any(|call| call.id == *id) {
                    let path = format!("toolCallIds[{i}]");
                    checks.issue(&path, "unknown", format!("no call `{id}` waits for approval"));
                }
            }
            checks.finish()?;
        }
        let listed = |id: &String| given.tool_call_ids.as_ref().is_none_or(|ids| ids.contains(id));
        for open in record.open.iter_mut().filter(|open| open.state == CallState::Approval) {
            // Of a rejection, too, the list names what it is about; all others are rejected with it.
            let approved = approves && listed(&open.call.id);
            open.state = if approved { CallState::Approved } else { CallState::Rejected };
        }
        let user = by.user_uid.clone().unwrap_or_default();
        let message = given.message.as_deref().filter(|message| !message.is_empty());
        if approves || given.retry {
            if let Some(message) = message {
                queue(conn, record, &developer_message(record, message, &user, now)).await?;
            }
            let cause = if approves { Cause::Approved } else { Cause::RejectedWithRetry };
            record.enter(cause, ThreadState::Queued, by, now)?;
        } else {
            take_arrived(record);
            close(conn, record, "REJECTED", |_| true, now).await?;
            if let Some(message) = message {
                append(conn, record, &developer_message(record, message, &user, now)).await?;
            }
            record.finish_reason = Some("APPROVAL_REJECTED".to_owned());
            record.enter(Cause::Rejected, ThreadState::ApprovalRejected, by, now)?;
        }
        Ok(())
    }
}
