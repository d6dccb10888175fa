//! A thread as a transaction holds it: locked, changed, and written with everything that follows from the change.

use diesel::{
    dsl::{AsExprOf, sql},
    expression::{SqlLiteral, UncheckedBind},
    prelude::*,
    sql_types::{Bool, Jsonb, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_conversation::{
    Conversation, StoredJson, TokenUsage, compactions, guardrail_turns, json, open_calls, open_text,
};
use platform_core::{AccountId, Code, Error, Object, Result, Timestamp};
use platform_db::Conn;
use platform_jobs::Place;
use platform_runtime::{CallState, Later, OpenCall, Payer, Spender};
use serde_json::{Value, json};

use super::{
    model::{Facts, PendingAsyncToolCall, Thread},
    state::{Action, Cause, Source, StateChange, ThreadState, may_follow},
};
use crate::schema::threads;

#[derive(Queryable, Selectable, Clone)]
#[diesel(table_name = threads)]
pub(crate) struct ThreadRow {
    account_id: String,
    pub id: String,
    pub agent_id: String,
    #[diesel(select_expression = sql::<Nullable<Text>>(PROJECT))]
    #[diesel(select_expression_type = SqlLiteral<Nullable<Text>>)]
    project_id: Option<String>,
    state: String,
    finish_reason: Option<String>,
    stop_reason: Option<String>,
    name: Option<String>,
    user_uid: String,
    tenant_id: Option<String>,
    subtenant_id: Option<String>,
    api_source: Option<String>,
    metadata: Value,
    tags: Vec<String>,
    provider: Option<String>,
    llm: Option<String>,
    usage: Option<String>,
    secondary: Option<Value>,
    total_tokens: i64,
    open_calls: Option<String>,
    guardrails: Option<String>,
    compactions: Option<String>,
    revision: i64,
    message_count: i32,
    turn_start: i32,
    changes: Value,
    facts: Value,
    started_ms: Option<i64>,
    finished_ms: Option<i64>,
    duration_ms: i64,
    created_ms: i64,
    edited_ms: i64,
}

/// The project of the thread's agent.
pub(crate) const PROJECT: &str = "(SELECT project_id FROM agents
    WHERE agents.account_id = threads.account_id AND agents.id = threads.agent_id)";
/// What a sub-thread was handed over by, as its index has it: a thread, or `chat:` and a chat; and by which call.
const ABOVE: &str = "coalesce(facts #>> '{parent,parentThreadId}', 'chat:' || (facts #>> '{parent,parentChatUID}'))";
const FOR_CALL: &str = "facts #>> '{parent,subThreadToolCallId}'";

/// Who brings a change about.
#[derive(Debug, Clone)]
pub(crate) struct By {
    pub source: Source,
    pub user_uid: Option<String>,
    pub reason: Option<String>,
}

impl By {
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
    row: ThreadRow,
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
    duration_ms: i64,
}

/// What a new thread begins with.
pub(crate) struct NewRecord {
    pub account: AccountId,
    pub id: String,
    pub agent_id: String,
    pub project_id: Option<String>,
    pub name: Option<String>,
    pub user_uid: String,
    pub tenant_id: Option<String>,
    pub subtenant_id: Option<String>,
    pub api_source: Option<String>,
    pub metadata: Object,
    pub tags: Vec<String>,
    pub facts: Facts,
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
            project_id: new.project_id,
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

    pub fn read(row: ThreadRow) -> Result<Self> {
        let state = ThreadState::parse(&row.state).ok_or_else(|| Error::internal("an unknown state was stored"))?;
        let changes: Vec<StateChange> = serde_json::from_value(row.changes.clone()).map_err(Error::internal)?;
        let usage = row.usage.as_deref().map(serde_json::from_str).transpose().map_err(Error::internal)?;
        let usage: TokenUsage = usage.unwrap_or_default();
        Ok(Self {
            account: AccountId::parse(&row.account_id).expect("only ids are stored"),
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

    pub fn id(&self) -> &str {
        &self.row.id
    }

    pub fn agent_id(&self) -> &str {
        &self.row.agent_id
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
    pub fn enter(&mut self, cause: Cause, to: ThreadState, by: &By, now: Timestamp) -> Result<()> {
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
        let By { source, user_uid, reason } = by.clone();
        let change = StateChange { state: to, timestamp: now, user_uid, source, reason };
        self.changes.push(change);
        Ok(())
    }

    /// A new turn begins with what is stored next: what was of the last one is forgotten.
    pub fn begin_turn(&mut self, request: platform_conversation::TurnRequest) {
        self.facts.arrived.clear();
        self.turn_start = self.message_count;
        self.facts.turn = super::model::TurnFacts {
            request,
            input_before: self.usage.tokens.input_tokens,
            ..super::model::TurnFacts::default()
        };
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
        let allowed: Vec<&str> = self.state.allowed().iter().map(|action| action.as_str()).collect();
        Error::new(Code::ThreadStateConflict, message).with("state", self.state).with("allowed", allowed)
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

    /// Sub-threads at work for calls that are not open any more.
    pub async fn abandoned_in(&self, conn: &mut Conn) -> Result<Vec<String>> {
        let terminal = ThreadState::ALL.iter().filter(|state| state.is_terminal()).map(|state| state.as_str());
        let at_work: Vec<(String, String)> = threads::table
            .filter(threads::account_id.eq(self.account.as_str()))
            .filter(sql::<Text>(ABOVE).eq(self.id()).and(sql::<Text>(FOR_CALL).is_not_null()))
            .filter(threads::state.ne_all(terminal))
            .select((threads::id, sql::<Text>(FOR_CALL)))
            .load(conn)
            .await?;
        let is_open = |call: &String| self.open.iter().any(|open| open.call.id == *call);
        Ok(at_work.into_iter().filter(|(_, call)| !is_open(call)).map(|(id, _)| id).collect())
    }

    /// Calls whose results come to an address.
    pub fn pending_callbacks(&self) -> Vec<PendingAsyncToolCall> {
        self.open
            .iter()
            .filter_map(|open| match open.awaits() {
                Some(Later::Callback(url)) => Some(PendingAsyncToolCall {
                    tool_call_id: open.call.id.clone(),
                    tool_name: open.call.function.name.clone(),
                    callback_url: url.clone(),
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
            revision: self.revision,
            message_count: self.message_count,
            turn_start: self.turn_start,
            usage: self.usage.clone(),
            metadata: object(self.row.metadata.clone()),
            guardrails: self.guardrails.clone(),
            compactions: compactions(self.row.compactions.as_deref())?,
            payer: self.payer(),
        })
    }

    /// Who pays for its model calls.
    pub fn payer(&self) -> Payer {
        Payer {
            account: self.account.clone(),
            tenant_id: self.row.tenant_id.clone(),
            subtenant_id: self.row.subtenant_id.clone(),
            project_id: self.row.project_id.clone(),
            spender: Spender::Agent(self.agent_id().to_owned()),
        }
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
            project_id: self.row.project_id.clone(),
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
            paused_reason: pause.reason.clone().filter(|_| is_paused || pause.requested),
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

    /// Stores a new thread.
    pub async fn insert_in(&mut self, conn: &mut Conn) -> Result<bool> {
        self.revision = 1;
        let row = &self.row;
        let inserted = diesel::insert_into(threads::table)
            .values((
                (
                    threads::account_id.eq(&row.account_id),
                    threads::id.eq(&row.id),
                    threads::agent_id.eq(&row.agent_id),
                    threads::name.eq(&row.name),
                    threads::user_uid.eq(&row.user_uid),
                    threads::tenant_id.eq(&row.tenant_id),
                    threads::subtenant_id.eq(&row.subtenant_id),
                    threads::api_source.eq(&row.api_source),
                    threads::metadata.eq(&row.metadata),
                    threads::tags.eq(&row.tags),
                ),
                threads::state.eq(self.state.as_str()),
                threads::finish_reason.eq(&self.finish_reason),
                threads::revision.eq(self.revision),
                threads::message_count.eq(self.message_count),
                threads::turn_start.eq(self.turn_start),
                threads::changes.eq(serde_json::to_value(&self.changes).map_err(Error::internal)?),
                threads::facts.eq(serde_json::to_value(&self.facts).map_err(Error::internal)?),
                threads::finished_ms.eq(self.finished.map(|at| at.0)),
                threads::created_ms.eq(row.created_ms),
                threads::edited_ms.eq(row.edited_ms),
            ))
            .on_conflict_do_nothing()
            .execute(conn)
            .await?;
        Ok(inserted == 1)
    }

    /// Stores a locked thread as it is now; its revision is at least `revision`, and above the one before.
    pub async fn update_in(&mut self, conn: &mut Conn, revision: i64, now: Timestamp) -> Result<()> {
        self.revision = revision.max(self.revision + 1);
        let tokens = &self.usage.tokens;
        let total = i64::try_from(tokens.input_tokens + tokens.output_tokens).unwrap_or(i64::MAX);
        let usage = serde_json::to_string(&self.usage).map_err(Error::internal)?;
        let open = open_text(&self.open)?;
        let nullable =
            |text: &Option<String>| sql::<Nullable<Text>>("").bind::<Nullable<Text>, _>(text.clone()).sql("::json");
        diesel::update(by_id(self.account.as_str(), &self.row.id))
            .set((
                threads::state.eq(self.state.as_str()),
                threads::finish_reason.eq(&self.finish_reason),
                threads::stop_reason.eq(&self.stop_reason),
                threads::provider.eq(&self.provider),
                threads::llm.eq(&self.llm),
                threads::usage.eq(json(&usage).nullable()),
                threads::total_tokens.eq(total),
                threads::open_calls.eq(nullable(&open)),
                threads::guardrails.eq(nullable(&self.guardrails)),
                threads::revision.eq(self.revision),
                threads::message_count.eq(self.message_count),
                threads::turn_start.eq(self.turn_start),
                threads::changes.eq(serde_json::to_value(&self.changes).map_err(Error::internal)?),
                threads::facts.eq(serde_json::to_value(&self.facts).map_err(Error::internal)?),
                threads::started_ms.eq(self.started.map(|at| at.0)),
                threads::finished_ms.eq(self.finished.map(|at| at.0)),
                threads::duration_ms.eq(self.duration_ms),
                threads::edited_ms.eq(now.0),
            ))
            .execute(conn)
            .await?;
        self.row.edited_ms = now.0;
        self.row.total_tokens = total;
        Ok(())
    }
}

/// Why a queued thread waits, as it is shown.
pub(crate) fn queued_reason(place: Place, archived: bool) -> &'static str {
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

#[diesel::dsl::auto_type(no_type_alias)]
pub(crate) fn by_id<'a>(account: &'a str, id: &'a str) -> _ {
    threads::table.filter(threads::account_id.eq(account)).filter(threads::id.eq(id))
}

pub(crate) async fn find(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<Record>> {
    let mut conn = conn;
    let row = by_id(account.as_str(), id).select(ThreadRow::as_select()).first(&mut conn).await.optional()?;
    row.map(Record::read).transpose()
}

/// The thread that a call has handed its work to; `above`: the thread, or `chat:` and the chat, of the call.
pub(crate) async fn handed_to(conn: &Conn, account: &AccountId, above: &str, call: &str) -> Result<Option<String>> {
    let mut conn = conn;
    let thread = threads::table
        .filter(threads::account_id.eq(account.as_str()))
        .filter(sql::<Text>(ABOVE).eq(above).and(sql::<Text>(FOR_CALL).eq(call)));
    Ok(thread.select(threads::id).first(&mut conn).await.optional()?)
}

/// `CONFLICT` unless a worker has the thread; it stays so until this transaction ends.
pub(crate) async fn hold_processing(conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
    let processing = by_id(account.as_str(), id).filter(threads::state.eq(ThreadState::Processing.as_str()));
    let held: Option<String> = processing.for_share().select(threads::id).first(conn).await.optional()?;
    held.map(drop).ok_or_else(|| Error::new(Code::Conflict, "The thread that hands the work over has ended."))
}

pub(crate) async fn lock(conn: &mut Conn, account: &AccountId, id: &str) -> Result<Option<Record>> {
    let row = by_id(account.as_str(), id).for_update().select(ThreadRow::as_select()).first(conn).await.optional()?;
    row.map(Record::read).transpose()
}

pub(crate) async fn revision(conn: &Conn, account: &AccountId, id: &str) -> Result<Option<i64>> {
    let mut conn = conn;
    Ok(by_id(account.as_str(), id).select(threads::revision).first(&mut conn).await.optional()?)
}

/// Threads are taken by workers: what was queued is processed, and what a lost worker held was queued in between.
pub(crate) async fn take(conn: &mut Conn, taken: &[(AccountId, &str, i32)], now: Timestamp) -> Result<Vec<Moved>> {
    const SQL: &str = "WITH item AS (
            SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, thread text, attempt int, now_ms bigint)
        ), held AS (
            -- One that somebody changes just now is left to the next.
            SELECT t.account_id, t.id, t.state FROM threads t JOIN item i ON t.account_id = i.account AND t.id = i.thread
            WHERE t.state IN ('queued', 'processing') FOR UPDATE OF t SKIP LOCKED
        )
        UPDATE threads SET state = 'processing', revision = revision + 1, edited_ms = item.now_ms,
            started_ms = coalesce(started_ms, item.now_ms),
            duration_ms = duration_ms + CASE WHEN held.state = 'processing'
                THEN greatest(item.now_ms - (changes -> -1 ->> 'timestamp')::bigint, 0) ELSE 0 END,
            facts = jsonb_set(facts, '{turn,attempt}', to_jsonb(item.attempt)),
            changes = changes || CASE WHEN held.state = 'processing'
                THEN jsonb_build_array(jsonb_build_object('state', 'queued', 'timestamp', greatest(item.now_ms, (changes -> -1 ->> 'timestamp')::bigint), 'source', 'worker'))
                ELSE '[]' END
                || jsonb_build_array(jsonb_build_object('state', 'processing', 'timestamp', greatest(item.now_ms, (changes -> -1 ->> 'timestamp')::bigint), 'source', 'worker'))
        FROM item, held WHERE threads.account_id = item.account AND threads.id = item.thread
            AND held.account_id = threads.account_id AND held.id = threads.id
        RETURNING threads.account_id, threads.id, threads.agent_id, threads.tenant_id, threads.subtenant_id,
            held.state = 'processing' AS was_lost";
    let items: Vec<Value> = taken
        .iter()
        .map(|(account, thread, attempt)| {
            json!({"account": account, "thread": thread, "attempt": attempt, "now_ms": now.0})
        })
        .collect();
    Ok(platform_db::JsonStatement::new(SQL, &items)?.load(conn).await?)
}

/// A thread whose state was changed among others.
#[derive(diesel::QueryableByName)]
pub(crate) struct Moved {
    #[diesel(sql_type = Text)]
    account_id: String,
    #[diesel(sql_type = Text)]
    pub id: String,
    #[diesel(sql_type = Text)]
    pub agent_id: String,
    #[diesel(sql_type = Nullable<Text>)]
    pub tenant_id: Option<String>,
    #[diesel(sql_type = Nullable<Text>)]
    pub subtenant_id: Option<String>,
    /// Its worker was lost: it was queued in between.
    #[diesel(sql_type = Bool)]
    pub was_lost: bool,
}

impl Moved {
    pub fn account(&self) -> AccountId {
        AccountId::parse(&self.account_id).expect("only ids are stored")
    }
}

/// Threads are handed back by a worker that shuts down.
pub(crate) async fn hand_back(conn: &mut Conn, handed: &[(AccountId, &str)], now: Timestamp) -> Result<Vec<Moved>> {
    const SQL: &str = "WITH item AS (
            SELECT * FROM jsonb_to_recordset($1::jsonb) AS x(account text, thread text, now_ms bigint)
        )
        UPDATE threads SET state = 'queued', revision = revision + 1, edited_ms = item.now_ms,
            duration_ms = duration_ms + greatest(item.now_ms - (changes -> -1 ->> 'timestamp')::bigint, 0),
            changes = changes || jsonb_build_array(
                jsonb_build_object('state', 'queued', 'timestamp', greatest(item.now_ms, (changes -> -1 ->> 'timestamp')::bigint), 'source', 'worker'))
        FROM item WHERE threads.account_id = item.account AND threads.id = item.thread
            AND threads.state = 'processing'
            AND (threads.account_id, threads.id) IN (SELECT t.account_id, t.id FROM threads t JOIN item i
                ON t.account_id = i.account AND t.id = i.thread FOR UPDATE OF t SKIP LOCKED)
        RETURNING threads.account_id, threads.id, threads.agent_id, threads.tenant_id, threads.subtenant_id,
            false AS was_lost";
    let items: Vec<Value> =
        handed.iter().map(|(account, thread)| json!({"account": account, "thread": thread, "now_ms": now.0})).collect();
    Ok(platform_db::JsonStatement::new(SQL, &items)?.load(conn).await?)
}

/// Adds a JSON value to the facts of a thread, beside everything else that happens to it; watchers see it.
pub(crate) async fn note_fact(conn: &mut Conn, account: &AccountId, id: &str, name: &str, value: &Value) -> Result<()> {
    diesel::update(by_id(account.as_str(), id))
        .set((threads::facts.eq(with_fact(name, value)), threads::revision.eq(threads::revision + 1)))
        .execute(conn)
        .await?;
    Ok(())
}

/// The same for what is no part of the thread as it is shown.
pub(crate) async fn note_quietly(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    name: &str,
    value: &Value,
) -> Result<()> {
    let noted = threads::facts.eq(with_fact(name, value));
    diesel::update(by_id(account.as_str(), id)).set(noted).execute(conn).await?;
    Ok(())
}

type WithFact<'a> = UncheckedBind<
    SqlLiteral<Jsonb, UncheckedBind<SqlLiteral<Jsonb>, AsExprOf<&'a str, Text>>>,
    AsExprOf<&'a Value, Jsonb>,
>;

fn with_fact<'a>(name: &'a str, value: &'a Value) -> SqlLiteral<Jsonb, WithFact<'a>> {
    sql::<Jsonb>("facts || jsonb_build_object(").bind::<Text, _>(name).sql("::text, ").bind::<Jsonb, _>(value).sql(")")
}
