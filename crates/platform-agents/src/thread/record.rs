//! A thread as a transaction holds it: read, and changed in memory.

use platform_conversation::{Conversation, StoredJson, TokenUsage, compactions, guardrail_turns, open_calls};
use platform_core::{AccountId, Error, Object, Owner, Result, Timestamp};
use platform_jobs::QueuePosition;
use platform_runtime::{CallState, Later, OpenCall, Payer, Spender};
use serde_json::{Value, json};

use super::{
    change::state::{Action, Cause, Source, StateChange, ThreadState, may_follow},
    facts::{Facts, TurnFacts},
    model::{PendingAsyncToolCall, Thread},
    row::{OfAgent, ThreadRow},
};

use crate::code;

/// Who brings a change about.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    pub source: Source,
    pub user_uid: Option<String>,
    pub reason: Option<String>,
}

impl Actor {
    /// A client, by the API.
    pub fn client(user_uid: &str) -> Self {
        Self { source: Source::Api, user_uid: Some(user_uid.to_owned()), reason: None }
    }

    /// The platform.
    pub fn worker() -> Self {
        Self { source: Source::Worker, user_uid: None, reason: None }
    }
}

/// A thread with its parts read.
#[derive(Clone)]
pub(crate) struct Record {
    pub(super) row: ThreadRow,
    pub account: AccountId,
    pub state: ThreadState,
    pub facts: Facts,
    pub changes: Vec<StateChange>,
    pub open: Vec<OpenCall>,
    pub usage: TokenUsage,
    /// As it was read: what is more than that has been taken since.
    pub usage_before: TokenUsage,
    /// The state as it was read; `None` when the thread is new.
    pub state_before: Option<ThreadState>,
    changes_before: usize,
    pub finish_reason: Option<String>,
    pub stop_reason: Option<String>,
    pub provider: Option<String>,
    pub llm: Option<String>,
    pub guardrails: Option<String>,
    pub message_count: i32,
    pub turn_start: i32,
    pub revision: i64,
    pub started: Option<Timestamp>,
    pub finished: Option<Timestamp>,
    /// Calls were closed: sub-threads that nobody waits for any more are to end.
    pub abandons: bool,
    pub(super) duration_ms: i64,
}

/// What a new thread begins with.
pub(crate) struct NewRecord {
    pub account: AccountId,
    pub id: String,
    pub agent_id: String,
    pub project_id: Option<String>,
    pub environment_id: Option<String>,
    pub name: Option<String>,
    pub user_uid: String,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub api_source: Option<String>,
    pub metadata: Object,
    pub tags: Vec<String>,
    pub facts: Facts,
    /// Its agent names an address that events go to.
    pub names_address: bool,
    pub now: Timestamp,
}

/// Under which the messages of a thread are kept.
pub(crate) fn key(id: &str) -> String {
    format!("thread:{id}")
}

impl Record {
    /// A thread that is not stored yet; it stands in no state until it enters one.
    pub fn new(new: NewRecord) -> Self {
        let row = ThreadRow {
            account_id: new.account.as_str().to_owned(),
            id: new.id,
            agent_id: new.agent_id,
            of_agent: OfAgent {
                project_id: new.project_id,
                environment_id: new.environment_id,
                names_address: new.names_address || new.facts.callback_url.is_some(),
            },
            state: String::new(),
            finish_reason: None,
            stop_reason: None,
            name: new.name,
            user_uid: new.user_uid,
            tenant_id: new.tenant_id,
            subtenant_id: new.subtenant_id,
            api_source: new.api_source,
            metadata: Value::Object(new.metadata),
            tags: new.tags,
            provider: None,
            llm: None,
            usage: None,
            secondary: None,
            total_tokens: 0,
            open_calls: None,
            guardrails: None,
            compactions: None,
            revision: 0,
            message_count: 0,
            turn_start: 0,
            changes: Value::Null,
            facts: Value::Null,
            started_ms: None,
            finished_ms: None,
            duration_ms: 0,
            created_ms: new.now.0,
            edited_ms: new.now.0,
        };
        Self {
            row,
            account: new.account,
            state: ThreadState::Queued,
            facts: new.facts,
            changes: Vec::new(),
            open: Vec::new(),
            usage: TokenUsage::default(),
            usage_before: TokenUsage::default(),
            state_before: None,
            changes_before: 0,
            finish_reason: None,
            stop_reason: None,
            provider: None,
            llm: None,
            guardrails: None,
            message_count: 0,
            turn_start: 0,
            revision: 0,
            started: None,
            finished: None,
            abandons: false,
            duration_ms: 0,
        }
    }

    pub(super) fn read(row: ThreadRow) -> Result<Self> {
        let state = ThreadState::parse(&row.state).ok_or_else(|| Error::internal("an unknown state was stored"))?;
        let changes: Vec<StateChange> = serde_json::from_value(row.changes.clone()).map_err(Error::internal)?;
        let usage = row.usage.as_deref().map(serde_json::from_str).transpose().map_err(Error::internal)?;
        let usage: TokenUsage = usage.unwrap_or_default();
        Ok(Self {
            account: AccountId::named(&row.account_id),
            state,
            facts: serde_json::from_value(row.facts.clone()).map_err(Error::internal)?,
            changes_before: changes.len(),
            changes,
            open: open_calls(row.open_calls.as_deref())?,
            usage_before: usage.clone(),
            usage,
            state_before: Some(state),
            finish_reason: row.finish_reason.clone(),
            stop_reason: row.stop_reason.clone(),
            provider: row.provider.clone(),
            llm: row.llm.clone(),
            guardrails: row.guardrails.clone(),
            message_count: row.message_count,
            turn_start: row.turn_start,
            revision: row.revision,
            started: row.started_ms.map(Timestamp),
            finished: row.finished_ms.map(Timestamp),
            abandons: false,
            duration_ms: row.duration_ms,
            row,
        })
    }

    /// It is not stored yet.
    pub fn is_new(&self) -> bool {
        self.state_before.is_none()
    }

    pub fn id(&self) -> &str {
        &self.row.id
    }

    pub fn agent_id(&self) -> &str {
        &self.row.agent_id
    }

    /// Its events go to an address that it or its agent names.
    pub fn names_address(&self) -> bool {
        self.row.of_agent.names_address
    }

    /// Whose it is.
    pub fn owner(&self) -> Owner {
        Owner { tenant_id: self.row.tenant_id.clone(), subtenant_id: self.row.subtenant_id.clone() }
    }

    /// The environment that its agent works in.
    pub fn environment_id(&self) -> Option<&str> {
        self.row.of_agent.environment_id.as_deref()
    }

    pub fn project_id(&self) -> Option<&str> {
        self.row.of_agent.project_id.as_deref()
    }

    pub fn tenant_id(&self) -> Option<&str> {
        self.row.tenant_id.as_deref()
    }

    pub fn subtenant_id(&self) -> Option<&str> {
        self.row.subtenant_id.as_deref()
    }

    pub fn name(&self) -> Option<&str> {
        self.row.name.as_deref()
    }

    pub fn user_uid(&self) -> &str {
        &self.row.user_uid
    }

    pub fn created(&self) -> Timestamp {
        Timestamp(self.row.created_ms)
    }

    pub fn edited(&self) -> Timestamp {
        Timestamp(self.row.edited_ms)
    }

    pub fn duration_ms(&self) -> i64 {
        self.duration_ms
    }

    /// Goes into another state. A change that the table does not know is ours to mend.
    pub fn enter(&mut self, cause: Cause, to: ThreadState, by: &Actor, now: Timestamp) -> Result<()> {
        let from = (!self.changes.is_empty()).then_some(self.state);
        // Whoever waited for the lock looked at the clock before; time does not go back in a history.
        let now = self.changes.last().map_or(now, |last| last.timestamp.max(now));
        if !may_follow(from, cause, to) {
            let from = from.map_or("new", ThreadState::as_str);
            return Err(Error::internal(format!(
                "no thread goes from {from} to {} by {}",
                to.as_str(),
                cause.as_str()
            )));
        }
        if from == Some(ThreadState::Processing)
            && let Some(since) = self.changes.last()
        {
            self.duration_ms += i64::try_from(now.since(since.timestamp).as_millis()).unwrap_or(0);
        }
        if to.is_terminal() {
            self.finished = Some(now);
            self.facts.unfetched.clear();
            self.facts.arrived.clear();
        }
        if from == Some(ThreadState::PausedForApproval) {
            self.facts.approval = None;
        }
        if !matches!(to, ThreadState::Paused | ThreadState::PausedForResume | ThreadState::Processing) {
            self.facts.pause = None;
        }
        self.state = to;
        let Actor { source, user_uid, reason } = by.clone();
        let change = StateChange { state: to, timestamp: now, user_uid, source, reason };
        self.changes.push(change);
        Ok(())
    }

    /// A new turn begins with what is stored next: what was of the last one is forgotten.
    pub fn begin_turn(&mut self, request: platform_conversation::TurnRequest) {
        self.facts.arrived.clear();
        self.turn_start = self.message_count;
        self.facts.turn = TurnFacts { request, input_before: self.usage.tokens.input_tokens, ..TurnFacts::default() };
        (self.finish_reason, self.stop_reason, self.started, self.finished) = (None, None, None, None);
    }

    /// Whether what was said last never got to a model, nor to who judges it.
    pub fn is_unheard(&self) -> bool {
        let is_blocked = self.facts.turn.request.blocked && self.state != ThreadState::GuardrailTrigger;
        self.started.is_none() || is_blocked
    }

    /// More is said in the turn that there is; what was found in it belongs to the turn.
    pub fn go_on_with(&mut self, request: &platform_conversation::TurnRequest) {
        self.facts.turn.request.note_found(request.findings.clone(), request.blocked);
        (self.finish_reason, self.stop_reason, self.started, self.finished) = (None, None, None, None);
    }

    /// `THREAD_STATE_CONFLICT` unless an action is allowed in this state.
    pub fn allow(&self, action: Action) -> Result<()> {
        if self.state.allowed().contains(&action) {
            return Ok(());
        }
        Err(self.conflict(action))
    }

    pub fn conflict(&self, action: Action) -> Error {
        let needs: Vec<&str> =
            ThreadState::ALL.iter().filter(|s| s.allowed().contains(&action)).map(|s| s.as_str()).collect();
        let message = format!("Thread is {}; {} needs {}.", self.state.as_str(), action.as_str(), needs.join(", "));
        self.conflict_as(message)
    }

    /// The same, told otherwise.
    pub fn conflict_as(&self, message: String) -> Error {
        let allowed: Vec<&str> = self.state.allowed().iter().map(|action| action.as_str()).collect();
        Error::new(code::THREAD_STATE_CONFLICT, message).with("state", self.state).with("allowed", allowed)
    }

    /// Sub-threads that are not done.
    pub fn pending_hand_offs(&self) -> Vec<String> {
        self.open
            .iter()
            .filter_map(|open| match open.awaits() {
                Some(Later::Thread(thread)) => Some(thread.clone()),
                _ => None,
            })
            .collect()
    }

    /// Whether a call has no result yet.
    pub fn is_open(&self, call: &str) -> bool {
        self.open.iter().any(|open| open.call.id == call && !matches!(open.state, CallState::Answered(_)))
    }

    /// Whether a call of the turn has its result.
    pub fn is_answered(&self, call: &str) -> bool {
        self.open.iter().any(|open| open.call.id == call && matches!(open.state, CallState::Answered(_)))
    }

    /// Calls whose results come to an address.
    pub fn pending_callbacks(&self) -> Vec<PendingAsyncToolCall> {
        self.open
            .iter()
            .filter_map(|open| match open.awaits() {
                Some(Later::Callback(url)) => Some(PendingAsyncToolCall {
                    tool_call_id: open.call.id.clone(),
                    tool_name: open.call.function.name.clone(),
                    callback_url: None,
                    address: url.clone(),
                }),
                _ => None,
            })
            .collect()
    }

    /// Gives open calls a result, if they have none yet; how many it gave.
    pub fn answer(&mut self, gives: impl Fn(&OpenCall) -> Option<Value>) -> usize {
        let mut given = 0;
        for open in &mut self.open {
            if let Some(value) = gives(open) {
                open.state = CallState::Answered(value);
                given += 1;
            }
        }
        given
    }

    /// The state that a thread waits in, given what it waits for; `None` = nothing.
    pub fn waits_in(&self) -> Option<(Cause, ThreadState)> {
        let any = |of: fn(&OpenCall) -> bool| self.open.iter().any(of);
        if any(|open| open.state == CallState::Approval) {
            Some((Cause::ApprovalNeeded, ThreadState::PausedForApproval))
        } else if any(|open| matches!(open.awaits(), Some(Later::Thread(_)))) {
            Some((Cause::WorkHandedOff, ThreadState::HandedOff))
        } else if any(|open| matches!(open.awaits(), Some(Later::Callback(_)))) {
            Some((Cause::ResultAwaited, ThreadState::WaitingForResponse))
        } else if any(|open| matches!(open.awaits(), Some(Later::At(_)))) {
            Some((Cause::Sleeps, ThreadState::PausedForResume))
        } else {
            None
        }
    }

    /// The thread as its turn finds it.
    pub fn conversation(&self) -> Result<Conversation> {
        let answered =
            |open: &OpenCall| matches!(open.state, CallState::Approved | CallState::Rejected | CallState::Answered(_));
        Ok(Conversation {
            account: self.account.clone(),
            key: key(self.id()),
            uid: self.id().to_owned(),
            open: self.open.clone(),
            is_late: false,
            has_waited: self.open.iter().any(answered),
            newest: self.edited(),
            revision: self.revision,
            message_count: self.message_count,
            turn_start: self.turn_start,
            usage: self.usage.clone(),
            metadata: object(self.row.metadata.clone()),
            guardrails: self.guardrails.clone(),
            compactions: compactions(self.row.compactions.as_deref())?,
            memory_prompt: None,
            payer: self.payer(),
        })
    }

    /// Who pays for its model calls.
    pub fn payer(&self) -> Payer {
        Payer {
            account: self.account.clone(),
            tenant_id: self.row.tenant_id.clone(),
            subtenant_id: self.row.subtenant_id.clone(),
            project_id: self.row.of_agent.project_id.clone(),
            spender: Spender::Agent(self.agent_id().to_owned()),
        }
    }

    /// Why it is paused, or will be: what it waits to have approved, or what whoever paused it said.
    pub fn paused_reason(&self) -> Option<String> {
        if let (ThreadState::PausedForApproval, Some(approval)) = (self.state, &self.facts.approval) {
            return Some(approval.question());
        }
        let is_paused = matches!(self.state, ThreadState::Paused | ThreadState::PausedForResume);
        let pause = self.facts.pause.as_ref().filter(|pause| is_paused || pause.requested)?;
        pause.reason.clone()
    }

    /// The thread as it is sent.
    pub fn into_thread(self, content: Option<Vec<StoredJson>>, place: Option<(&'static str, i64)>) -> Result<Thread> {
        let usage = self.usage.clone();
        let usage = match &self.row.secondary {
            Some(secondary) => usage.with_secondary(&object(secondary.clone())),
            None => usage,
        };
        let pause = self.facts.pause.clone().unwrap_or_default();
        let is_paused = matches!(self.state, ThreadState::Paused | ThreadState::PausedForResume);
        let until = pause.until.filter(|_| is_paused || pause.requested);
        let findings: Vec<_> = guardrail_turns(self.guardrails.as_deref()).into_iter().flatten().collect();
        let guardrail_results = self
            .guardrails
            .is_some()
            .then(|| json!({"triggered": findings.iter().any(|of| !of.passed), "results": findings}));
        Ok(Thread {
            thread_id: self.row.id.clone(),
            agent_id: self.row.agent_id.clone(),
            client_uid: self.row.account_id.clone(),
            user_uid: self.row.user_uid.clone(),
            project_id: self.row.of_agent.project_id.clone(),
            environment_id: self.row.of_agent.environment_id.clone(),
            sandbox_id: None,
            name: self.row.name.clone(),
            api_source: self.row.api_source.clone(),
            tenant_id: self.row.tenant_id.clone(),
            subtenant_id: self.row.subtenant_id.clone(),
            state: self.state,
            thread_content: content,
            tasks: None,
            tags: self.row.tags.clone(),
            metadata: object(self.row.metadata.clone()),
            creation_timestamp_ms: self.created(),
            last_edit_timestamp_ms: self.edited(),
            start_timestamp_ms: self.started,
            finish_timestamp_ms: self.finished,
            duration: self.started.map(|_| self.duration_ms),
            finish_reason: self.finish_reason.clone(),
            paused_reason: self.paused_reason(),
            paused_until: until,
            pause_until: until,
            paused_timestamp_ms: pause.at,
            paused_at: pause.at.filter(|_| is_paused).map(Timestamp::to_iso),
            pause_requested: pause.requested,
            queued_reason: place.map(|(reason, _)| reason),
            queue_position: place.map(|(_, position)| position),
            attempt: self.facts.turn.attempt,
            thread_states_changes: self.changes.clone(),
            provider: self.provider.clone(),
            llm: self.llm.clone(),
            stop_reason: self.stop_reason.clone(),
            token_usage: StoredJson::from_text(serde_json::to_string(&usage).map_err(Error::internal)?),
            total_tokens: self.row.total_tokens,
            is_subthread: self.facts.parent.is_some(),
            parent: self.facts.parent.clone().unwrap_or_default().link,
            hand_off_sub_thread_ids: self.facts.hand_offs.clone(),
            pending_hand_off_sub_thread_ids: self.pending_hand_offs(),
            pending_approval: self.facts.approval.clone(),
            pending_async_tool_calls: self.pending_callbacks(),
            guardrail_results,
            compactions: compactions(self.row.compactions.as_deref())?,
            empty_content_retries: self.facts.turn.empty,
            trigger_source: self.facts.trigger.clone(),
            result: self.facts.result.clone(),
            last_evaluation: self.facts.evaluation.clone(),
            id: self.row.id,
        })
    }

    /// Changes of state since it was read, each with the state before it.
    pub fn new_changes(&self) -> impl Iterator<Item = (Option<ThreadState>, &StateChange)> {
        let from = self.changes_before;
        let before = |i: usize| i.checked_sub(1).map(|i| self.changes[i].state);
        self.changes.iter().enumerate().skip(from).map(move |(i, change)| (before(i), change))
    }
}

/// Why a queued thread waits, as it is shown.
pub(crate) fn queued_reason(place: QueuePosition, archived: bool) -> &'static str {
    match place.hold {
        platform_jobs::Hold::Closed if archived => "AGENT_ARCHIVED",
        platform_jobs::Hold::Closed => "AGENT_DISABLED",
        platform_jobs::Hold::Running => "CONCURRENCY_LIMIT",
        platform_jobs::Hold::Starts => "FREQUENCY_LIMIT",
        platform_jobs::Hold::Workers => "CAPACITY",
    }
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}
