//! What follows from a change of a thread, in the transaction that stores it: runs, events, costs, mail.

use std::time::Duration;

use platform_conversation::{ABANDON, CHAT_RETURN, Returned};
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::Conn;
use platform_events::{Event, publish_in};
use platform_jobs::{NewRun, Run, When, cancel_in, end_all_in, end_in, enqueue_all_in, enqueue_in, traceparent};
use platform_mail::Mail;
use serde_json::{Value, json};

use crate::thread::{
    change::model::{AfterCommit, Change},
    change::state::ThreadState,
    record::Record,
    repository::{self, Moved},
    threads::{FILES, KIND, RETURN, TIMER, Threads, live_key},
};
use crate::{agent::ReadyAgent, code, costs, evaluation::begin_evaluation_in};

impl Threads {
    /// Stores a change of a thread and everything that follows from it; `held`: the run whose lease the caller
    /// holds; `revision`: what the thread's is at least.
    pub async fn commit_in(
        &self,
        conn: &mut Conn,
        record: &mut Record,
        held: Option<&Run>,
        revision: i64,
        now: Timestamp,
    ) -> Result<AfterCommit> {
        let change = Change { record, held, revision, agent: None, trace: traceparent() };
        let mut told = self.commit_all_in(conn, &mut [change], now).await?;
        Ok(told.remove(0))
    }

    /// The same for changes of several threads, in few statements.
    pub async fn commit_all_in(
        &self,
        conn: &mut Conn,
        changes: &mut [Change<'_>],
        now: Timestamp,
    ) -> Result<Vec<AfterCommit>> {
        let records = changes.iter_mut().map(|change| (&mut *change.record, change.revision)).collect();
        repository::store(conn, records, now).await?;
        self.publish_in(conn, changes, now).await?;
        let (mut all_told, mut runs) = (Vec::with_capacity(changes.len()), Runs::default());
        for change in &*changes {
            let record = &*change.record;
            let key = live_key(&record.account, record.id());
            let mut told = AfterCommit { key, revision: record.revision, stopped: None, announces: false };
            if record.new_changes().next().is_some() {
                self.runs_in(conn, change, &mut runs, &mut told, now).await?;
                told.announces |= self.notify_in(conn, record, change.agent, now).await?;
            }
            all_told.push(told);
        }
        end_all_in(conn, &runs.ended).await?;
        enqueue_all_in(conn, runs.begun).await?;
        for (Change { record, .. }, told) in changes.iter_mut().zip(&mut all_told) {
            let abandons = std::mem::take(&mut record.abandons);
            let abandoned = if abandons { repository::abandoned(conn, record).await? } else { Vec::new() };
            for thread in abandoned {
                let (account, after) = (&record.account, When::After(Duration::ZERO));
                cancel_in(conn, account, ABANDON, &thread).await?;
                enqueue_in(conn, account, ABANDON, &thread, Value::Null, after).await?;
                told.announces = true;
            }
        }
        // The row of an agent's day, which all its threads add to, is held for as short as can be.
        costs::add_in(conn, changes.iter().map(|change| &*change.record), now).await?;
        Ok(all_told)
    }

    /// The runs of a thread follow from its state.
    async fn runs_in<'c>(
        &self,
        conn: &mut Conn,
        change: &'c Change<'_>,
        runs: &mut Runs<'c>,
        told: &mut AfterCommit,
        now: Timestamp,
    ) -> Result<()> {
        let record = &*change.record;
        let (account, id) = (&record.account, record.id());
        if record.state == ThreadState::Processing {
            return Ok(());
        }
        match (change.held, record.state_before) {
            (Some(run), _) if run.kind == KIND => runs.ended.push(run),
            // One of its kind may follow at once.
            (Some(run), _) => end_in(conn, run).await?,
            (None, Some(ThreadState::Queued | ThreadState::Processing)) => {
                told.stopped = cancel_in(conn, account, KIND, id).await?;
            }
            // While it is paused its files are fetched all the same.
            (None, Some(ThreadState::UnderConstruction)) if record.state == ThreadState::Paused => {}
            (None, Some(ThreadState::UnderConstruction)) => {
                cancel_in(conn, account, FILES, id).await?;
            }
            (None, Some(_)) => {
                cancel_in(conn, account, TIMER, id).await?;
            }
            (None, None) => {}
        }
        let mut begin = |kind, payload, when| {
            runs.begun.push(NewRun { account, kind, subject: id, payload, when, trace: change.trace.clone() });
        };
        let at_once = When::After(Duration::ZERO);
        let pause = record.facts.pause.as_ref();
        let due = match record.state {
            ThreadState::Queued => {
                let lane = When::InLane { lane: record.agent_id(), opens: record.started.is_none() };
                begin(KIND, Value::Null, lane);
                told.announces = true;
                None
            }
            ThreadState::UnderConstruction => {
                begin(FILES, Value::Null, at_once);
                told.announces = true;
                None
            }
            ThreadState::Paused | ThreadState::PausedForResume => pause.and_then(|pause| pause.until),
            ThreadState::PausedForApproval => record.facts.approval.as_ref().map(|approval| approval.expires_at_ms),
            ThreadState::WaitingForResponse => Some(now.after(self.config.async_tool_timeout)),
            _ => None,
        };
        if let Some(due) = due {
            let delay = due.since(now);
            begin(TIMER, Value::Null, When::After(delay));
            self.jobs.announce_after(delay.min(Duration::from_mins(10)));
        }
        if record.state.is_terminal()
            && let Some(parent) = &record.facts.parent
        {
            let (kind, waiting) = match (&parent.link.thread, &parent.link.chat) {
                (Some(thread), _) => (RETURN, thread),
                (None, Some(chat)) => (CHAT_RETURN, chat),
                (None, None) => return Ok(()),
            };
            let returned =
                Returned { waiting: waiting.clone(), thread: id.to_owned(), value: returned(record), tries: 0 };
            let payload = serde_json::to_value(returned).map_err(Error::internal)?;
            // A sub-thread that went on may end once more.
            cancel_in(conn, account, kind, id).await?;
            begin(kind, payload, at_once);
            told.announces = true;
        }
        Ok(())
    }

    /// Publishes changes, as far as anybody listens.
    async fn publish_in(&self, conn: &mut Conn, changes: &[Change<'_>], now: Timestamp) -> Result<()> {
        let mut events = Vec::new();
        for Change { record, .. } in changes {
            let changes = record.new_changes().next().is_some();
            if changes && (record.names_address() || self.is_heard(&record.account).await?) {
                Self::publish(record, &mut events)?;
            }
        }
        publish_in(conn, events, now).await
    }

    /// Whether anybody in an account listens to threads.
    async fn is_heard(&self, account: &AccountId) -> Result<bool> {
        for kind in EVENTS {
            if self.ports.audience.hears(account, kind).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn publish<'r>(record: &'r Record, events: &mut Vec<Event<'r>>) -> Result<()> {
        let data = about(record.id(), record.agent_id(), record.tenant_id(), record.subtenant_id());
        let event = |kind, data| Event {
            agent: Some(record.agent_id()),
            thread: Some(record.id()),
            tenant: record.tenant_id(),
            project: record.project_id(),
            depth: record.facts.turn.request.depth,
            ..Event::new(&record.account, kind, data)
        };
        for (before, change) in record.new_changes() {
            let mut changed = data.clone();
            changed["state"] = change.state.as_str().into();
            if let Some(before) = before {
                changed["previousState"] = before.as_str().into();
            }
            events.push(event("thread.state_changed", changed.clone()));
            if change.state.is_terminal() {
                if let Some(reason) = &record.finish_reason {
                    changed["finishReason"] = json!(reason);
                }
                changed["duration"] = record.duration_ms().into();
                changed["tokenUsage"] = serde_json::to_value(&record.usage).map_err(Error::internal)?;
                let content = record.facts.result.as_ref().map(|result| json!({"result": result}));
                events.push(Event { content, ..event("thread.finished", changed) });
            }
            if let (ThreadState::PausedForApproval, Some(approval)) = (change.state, &record.facts.approval) {
                let names: Vec<&str> = approval.tool_calls.iter().map(|call| call.function.name.as_str()).collect();
                let mut asked = data.clone();
                asked["pendingApproval"] =
                    json!({"uid": approval.uid, "expiresAtMs": approval.expires_at_ms, "toolNames": names});
                events.push(event("thread.approval_required", asked));
            }
        }
        Ok(())
    }

    /// Mail to people, and the judge; whether there is something to do for a worker.
    async fn notify_in(
        &self,
        conn: &mut Conn,
        record: &Record,
        agent: Option<&ReadyAgent>,
        now: Timestamp,
    ) -> Result<bool> {
        let asks = record.state == ThreadState::PausedForApproval;
        if !record.state.is_terminal() && !asks {
            return Ok(false);
        }
        let (account, id) = (&record.account, record.id());
        let found;
        let agent = match agent {
            Some(agent) => agent,
            None => match self.agents.ready(account, record.agent_id(), record.facts.turn.version).await {
                Ok(agent) => {
                    found = agent;
                    &*found
                }
                Err(error) if error.code() == code::AGENT_NOT_FOUND => return Ok(false),
                // Whoever is to be told is told when the change is made again.
                Err(error) => return Err(error),
            },
        };
        let config = agent.settings.notifications()?;
        let mut has_work = false;
        let (name, state) = (&agent.settings.name, record.state.as_str());
        if config.enabled && config.enable_email_notification {
            let mail = if let (true, Some(approval)) = (asks, &record.facts.approval) {
                let names: Vec<&str> = approval.tool_calls.iter().map(|call| call.function.name.as_str()).collect();
                Mail {
                    to: config.approval_emails,
                    subject: format!("{name}: approval needed"),
                    text: format!(
                        "Agent: {name} ({})\nThread: {id}\nTools: {}\n\nThe calls wait until {}.\n",
                        agent.id,
                        names.join(", "),
                        approval.expires_at_ms.to_iso(),
                    ),
                }
            } else {
                let reason = record.finish_reason.as_deref().unwrap_or("none given");
                Mail {
                    to: config.notified_emails,
                    subject: format!("{name}: {state}"),
                    text: format!("Agent: {name} ({})\nThread: {id}\nState: {state}\nReason: {reason}\n", agent.id),
                }
            };
            self.mailer.send_in(conn, account, mail).await?;
            has_work = true;
        }
        let judged = agent.settings.evaluation()?;
        if judged.enabled && matches!(record.state, ThreadState::Completed | ThreadState::Failed) {
            begin_evaluation_in(conn, record, &judged, now).await?;
            has_work = true;
        }
        Ok(has_work)
    }

    /// Says what a committed change means to others.
    pub async fn tell(&self, told: &AfterCommit) -> Result<()> {
        self.ports.realtime.changed(&told.key, told.revision);
        if let Some(run) = &told.stopped {
            self.jobs.stopped(run).await?;
        }
        // A run that was taken away leaves room for another.
        if told.announces || told.stopped.is_some() {
            self.jobs.announce();
        }
        Ok(())
    }

    /// Publishes changes that many threads went through at once.
    pub(crate) async fn publish_moved_in(
        &self,
        conn: &mut Conn,
        moved: &[Moved],
        (before, after): (ThreadState, ThreadState),
        now: Timestamp,
    ) -> Result<()> {
        let owners: Vec<_> = moved.iter().map(Moved::account).collect();
        let mut events = Vec::new();
        for (of, account) in moved.iter().zip(&owners) {
            if !of.names_address && !self.is_heard(account).await? {
                continue;
            }
            let mut publish = |before: ThreadState, after: ThreadState| {
                let mut data = about(&of.id, &of.agent_id, of.tenant_id.as_deref(), of.subtenant_id.as_deref());
                data["state"] = after.as_str().into();
                data["previousState"] = before.as_str().into();
                let (agent, thread) = (Some(of.agent_id.as_str()), Some(of.id.as_str()));
                let (kind, tenant) = ("thread.state_changed", of.tenant_id.as_deref());
                let depth = of.depth();
                events.push(Event { agent, thread, tenant, depth, ..Event::new(account, kind, data) });
            };
            if of.was_lost {
                publish(after, before);
            }
            publish(before, after);
        }
        publish_in(conn, events, now).await
    }
}

/// Runs that end and begin with changes of threads.
#[derive(Default)]
struct Runs<'a> {
    ended: Vec<&'a Run>,
    begun: Vec<NewRun<'a>>,
}

/// What is told of threads (contract 17).
const EVENTS: [&str; 3] = ["thread.state_changed", "thread.finished", "thread.approval_required"];

/// What every event of a thread says.
fn about(thread: &str, agent: &str, tenant: Option<&str>, subtenant: Option<&str>) -> Value {
    let mut data = json!({"threadId": thread, "agentId": agent});
    for (name, value) in [("tenantId", tenant), ("subtenantId", subtenant)] {
        if let Some(value) = value {
            data[name] = value.into();
        }
    }
    data
}

/// What a sub-thread gives to whoever waits for it (contract 03 §8).
fn returned(record: &Record) -> Value {
    let by_client = record.finish_reason.as_deref().is_some_and(|reason| reason.ends_with("_BY_USER"));
    match (record.state, &record.facts.result) {
        _ if by_client => "Terminated by the user".into(),
        (ThreadState::Completed, Some(result)) => {
            let response = result.data.clone().map_or_else(|| json!(result.message), Value::Object);
            json!({"response": response, "subthreadId": record.id(), "state": record.state})
        }
        _ => json!({"error": "SUBAGENT_FAILED", "finishReason": record.finish_reason, "subthreadId": record.id(),
            "state": record.state}),
    }
}
