//! The states of a thread and what leads from one to another (contract 03 §4).

use platform_core::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:tt),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
        #[expect(missing_docs, reason = "the names are the contract's")]
        pub enum $name { $(#[serde(rename = $text)] $variant),* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

names! {
    /// What a thread does.
    ThreadState {
        UnderConstruction = "under_construction",
        Queued = "queued",
        Processing = "processing",
        Paused = "paused",
        PausedForResume = "paused_for_resume",
        PausedForApproval = "paused_for_approval",
        WaitingForResponse = "waiting_for_response",
        HandedOff = "handed_off",
        Completed = "completed",
        Failed = "failed",
        Terminated = "terminated",
        ApprovalRejected = "approval_rejected",
        GuardrailTrigger = "guardrail_trigger",
        LimitExceeded = "limit_exceeded",
    }
}

names! {
    /// What a client may do with a thread.
    Action {
        Pause = "pause",
        Resume = "resume",
        Complete = "complete",
        Messages = "messages",
        Approval = "approval",
        ToolResponse = "tool-response",
        Evaluate = "evaluate",
        Delete = "delete",
    }
}

names! {
    /// What leads from one state to another.
    Cause {
        Accepted = "accepted",
        FilesAwaited = "files are being fetched",
        FilesReady = "files are there",
        FilesFailed = "a file cannot be fetched",
        QuotaSpent = "quota spent",
        Taken = "a worker takes it",
        LeaseLost = "its worker is lost",
        HandedBack = "its worker shuts down",
        Paused = "pause",
        Resumed = "resume, or its time",
        ApprovalNeeded = "a tool needs approval",
        Approved = "approved",
        Rejected = "rejected",
        RejectedWithRetry = "rejected with retry",
        Expired = "nobody decided",
        Sleeps = "it waits for a time",
        ResultAwaited = "a result is awaited",
        ResultsIn = "all results are in",
        WorkHandedOff = "sub-agents started",
        Blocked = "a guardrail blocks",
        Finished = "finished",
        Failed = "error or limit",
        Message = "a message",
        Closed = "complete",
    }
}

impl ThreadState {
    /// Nothing comes by itself.
    pub fn is_terminal(self) -> bool {
        use ThreadState::{ApprovalRejected, Completed, Failed, GuardrailTrigger, LimitExceeded, Terminated};
        matches!(self, Completed | Failed | Terminated | ApprovalRejected | GuardrailTrigger | LimitExceeded)
    }

    /// Reads a state, in any case, aliases too.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_lowercase();
        let alias = match text.as_str() {
            "cancelled" => Some(Self::Terminated),
            "pending" => Some(Self::Queued),
            "waiting_approval" => Some(Self::PausedForApproval),
            "running" => Some(Self::Processing),
            _ => None,
        };
        alias.or_else(|| Self::ALL.iter().copied().find(|state| state.as_str() == text))
    }

    /// What a client may do in this state (contract 03 §10).
    pub fn allowed(self) -> &'static [Action] {
        use Action::{Approval, Complete, Delete, Evaluate, Messages, Pause, Resume, ToolResponse};
        match self {
            Self::UnderConstruction | Self::Queued | Self::HandedOff | Self::Processing => &[Pause, Complete, Messages],
            Self::PausedForResume => &[Pause, Complete, Messages, Resume],
            Self::Paused => &[Resume, Complete, Messages, Pause],
            Self::PausedForApproval => &[Approval, Complete],
            Self::WaitingForResponse => &[Pause, Complete, Messages, ToolResponse],
            _ => &[Messages, Evaluate, Delete],
        }
    }
}

/// Every change of state there is: from (`None` = a new thread), why, to.
pub const CHANGES: &[(Option<ThreadState>, Cause, ThreadState)] = {
    use Cause as C;
    use ThreadState as S;
    &[
        (None, C::FilesAwaited, S::UnderConstruction),
        (None, C::Accepted, S::Queued),
        (None, C::Paused, S::Paused),
        (None, C::QuotaSpent, S::LimitExceeded),
        (Some(S::UnderConstruction), C::FilesReady, S::Queued),
        (Some(S::UnderConstruction), C::FilesFailed, S::Failed),
        (Some(S::UnderConstruction), C::QuotaSpent, S::LimitExceeded),
        (Some(S::UnderConstruction), C::Paused, S::Paused),
        (Some(S::Queued), C::Taken, S::Processing),
        (Some(S::Queued), C::QuotaSpent, S::LimitExceeded),
        (Some(S::Queued), C::Sleeps, S::PausedForResume),
        (Some(S::Queued), C::Paused, S::Paused),
        (Some(S::WaitingForResponse), C::Paused, S::Paused),
        (Some(S::HandedOff), C::Paused, S::Paused),
        (Some(S::PausedForResume), C::Paused, S::Paused),
        (Some(S::Processing), C::Paused, S::Paused),
        (Some(S::Processing), C::LeaseLost, S::Queued),
        (Some(S::Processing), C::HandedBack, S::Queued),
        (Some(S::Processing), C::ApprovalNeeded, S::PausedForApproval),
        (Some(S::Processing), C::Sleeps, S::PausedForResume),
        (Some(S::Processing), C::ResultAwaited, S::WaitingForResponse),
        (Some(S::Processing), C::WorkHandedOff, S::HandedOff),
        (Some(S::Processing), C::Blocked, S::GuardrailTrigger),
        (Some(S::Processing), C::Finished, S::Completed),
        (Some(S::Processing), C::Failed, S::Failed),
        (Some(S::Paused), C::Resumed, S::Queued),
        (Some(S::Paused), C::Resumed, S::HandedOff),
        (Some(S::Paused), C::Resumed, S::WaitingForResponse),
        (Some(S::PausedForResume), C::Resumed, S::Queued),
        (Some(S::PausedForApproval), C::Approved, S::Queued),
        (Some(S::PausedForApproval), C::RejectedWithRetry, S::Queued),
        (Some(S::PausedForApproval), C::Rejected, S::ApprovalRejected),
        (Some(S::PausedForApproval), C::Expired, S::ApprovalRejected),
        (Some(S::WaitingForResponse), C::ResultsIn, S::Queued),
        (Some(S::HandedOff), C::ResultsIn, S::Queued),
        (Some(S::Completed), C::Message, S::Queued),
        (Some(S::Failed), C::Message, S::Queued),
        (Some(S::Terminated), C::Message, S::Queued),
        (Some(S::ApprovalRejected), C::Message, S::Queued),
        (Some(S::GuardrailTrigger), C::Message, S::Queued),
        (Some(S::LimitExceeded), C::Message, S::Queued),
        (Some(S::WaitingForResponse), C::Message, S::Queued),
        (Some(S::Paused), C::Message, S::Queued),
        (Some(S::UnderConstruction), C::Closed, S::Completed),
        (Some(S::UnderConstruction), C::Closed, S::Failed),
        (Some(S::UnderConstruction), C::Closed, S::Terminated),
        (Some(S::Queued), C::Closed, S::Completed),
        (Some(S::Queued), C::Closed, S::Failed),
        (Some(S::Queued), C::Closed, S::Terminated),
        (Some(S::Processing), C::Closed, S::Completed),
        (Some(S::Processing), C::Closed, S::Failed),
        (Some(S::Processing), C::Closed, S::Terminated),
        (Some(S::Paused), C::Closed, S::Completed),
        (Some(S::Paused), C::Closed, S::Failed),
        (Some(S::Paused), C::Closed, S::Terminated),
        (Some(S::PausedForResume), C::Closed, S::Completed),
        (Some(S::PausedForResume), C::Closed, S::Failed),
        (Some(S::PausedForResume), C::Closed, S::Terminated),
        (Some(S::PausedForApproval), C::Closed, S::Completed),
        (Some(S::PausedForApproval), C::Closed, S::Failed),
        (Some(S::PausedForApproval), C::Closed, S::Terminated),
        (Some(S::WaitingForResponse), C::Closed, S::Completed),
        (Some(S::WaitingForResponse), C::Closed, S::Failed),
        (Some(S::WaitingForResponse), C::Closed, S::Terminated),
        (Some(S::HandedOff), C::Closed, S::Completed),
        (Some(S::HandedOff), C::Closed, S::Failed),
        (Some(S::HandedOff), C::Closed, S::Terminated),
    ]
};

/// Whether one state may follow another for this reason.
pub fn may_follow(from: Option<ThreadState>, cause: Cause, to: ThreadState) -> bool {
    CHANGES.contains(&(from, cause, to))
}

names! {
    /// Who brought a change about.
    Source {
        Api = "api",
        Worker = "worker",
        Trigger = "trigger",
        Cron = "cron",
        Approval = "approval",
        SubAgent = "subagent",
    }
}

/// A change of state, as it is kept and shown (contract 03 §3, `threadStatesChanges`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateChange {
    /// The state from then on.
    pub state: ThreadState,
    /// When the state began.
    pub timestamp: Timestamp,
    /// Who, when it was somebody.
    #[serde(rename = "userUID", default, skip_serializing_if = "Option::is_none")]
    pub user_uid: Option<String>,
    /// Which part.
    pub source: Source,
    /// Why, when somebody said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_states_are_left_by_a_message_alone_and_every_state_can_be_reached() {
        for state in ThreadState::ALL {
            let leaves: Vec<_> = CHANGES.iter().filter(|(from, ..)| *from == Some(*state)).collect();
            let by_message = leaves.iter().all(|(_, cause, to)| (*cause, *to) == (Cause::Message, ThreadState::Queued));
            assert_eq!(by_message, state.is_terminal(), "{state:?}");
            assert!(CHANGES.iter().any(|(_, _, to)| to == state), "{state:?} is never reached");
            let closable = leaves.iter().filter(|(_, cause, _)| *cause == Cause::Closed).count();
            assert_eq!(closable, if state.is_terminal() { 0 } else { 3 }, "{state:?}");
            assert_eq!(state.allowed().contains(&Action::Complete), !state.is_terminal(), "{state:?}");
        }
    }

    #[test]
    fn states_are_read_in_any_case_and_under_their_other_names() {
        for state in ThreadState::ALL {
            assert_eq!(ThreadState::parse(&state.as_str().to_uppercase()), Some(*state));
        }
        assert_eq!(ThreadState::parse("Cancelled"), Some(ThreadState::Terminated));
        assert_eq!(ThreadState::parse("waiting_approval"), Some(ThreadState::PausedForApproval));
        assert_eq!(ThreadState::parse("done"), None);
    }
}
