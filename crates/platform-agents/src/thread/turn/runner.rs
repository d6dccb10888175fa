//! The course of a thread's turn under one lease.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_conversation::{
    AGENT, AssistantSettings, Bounds, ConversationStore, HandOff, LeaseLost, Profile, SubAgentLauncher, ToolUser, Turn,
    awaited, insert_messages, turn_tools,
};
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::Conn;
use platform_jobs::{Run, Work, end, traceparent};
use platform_runtime::{Callbacks, Ending, FINISH_TOOL, ToolChoice, TurnTool, UsageLedger};
use platform_tenants::settle_in;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::agent::ReadyAgent;
use crate::thread::{
    change::act::{hold_all_in, hold_in},
    change::control::close,
    change::messages::append_queued,
    change::model::{AfterCommit, Change},
    change::results::take_arrived,
    change::state::{Cause, ThreadState},
    facts::Pause,
    record::{Actor, Record, key},
    repository,
    threads::{KIND, Threads, live_key},
    turn::awaited::ThreadCallbacks,
    turn::end::{EMPTY_RETRIES, EndedTurn, Next},
    turn::hand_off::ThreadLauncher,
    turn::steps::{hand_offs, note_step, pause_now, sleeps_until},
    turn::turn_store::ThreadTurnStore,
};

/// Carries out turns of threads.
pub(crate) struct ThreadTurns(pub Arc<Threads>);

#[async_trait]
impl Work for ThreadTurns {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn claimed_in(&self, conn: &mut Conn, mut runs: Vec<Run>, now: Timestamp) -> Result<Vec<Run>> {
        let wanted: Vec<_> = runs
            .iter()
            .map(|run| (run.account(), run.subject.as_str(), run.attempt.min(self.0.config.max_attempts)))
            .collect();
        let moved = repository::take(conn, &wanted, now).await?;
        self.0.publish_moved_in(conn, &moved, (ThreadState::Queued, ThreadState::Processing), now).await?;
        runs.retain(|run| moved.iter().any(|moved| moved.id == run.subject));
        Ok(runs)
    }

    async fn handed_back_in(&self, conn: &mut Conn, runs: &[&Run]) -> Result<()> {
        let now = self.0.ports.clock.now();
        let handed: Vec<_> = runs.iter().map(|run| (run.account(), run.subject.as_str())).collect();
        let moved = repository::hand_back(conn, &handed, now).await?;
        self.0.publish_moved_in(conn, &moved, (ThreadState::Processing, ThreadState::Queued), now).await
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        loop {
            let worked = Box::pin(self.0.work(run, stop)).await;
            match worked {
                Ok(Next::Again) => {}
                Ok(Next::Done) => return Ok(()),
                // The lease was lost: somebody else goes on, or a client ended it.
                Err(error) if LeaseLost::is_in(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Threads {
    /// Works a thread until its turn ends, waits, or has something new to take in.
    async fn work(self: &Arc<Self>, run: &Run, stop: &CancellationToken) -> Result<Next> {
        let account = run.account();
        let conn = self.ports.db.read().await?;
        let key = key(&run.subject);
        let asked = [ConversationStore::of(&account, &key)];
        // What comes after this is answered at the end of the turn.
        let (found, waiting) =
            tokio::try_join!(repository::find(conn.get(), &account, &run.subject), awaited(conn.get(), &asked))?;
        let is_awaited = !waiting.is_empty();
        drop(conn);
        let Some(found) = found.filter(|found| found.state == ThreadState::Processing) else {
            end(&self.ports.db, run).await?;
            return Ok(Next::Done);
        };
        if run.attempt > self.config.max_attempts {
            let reason = format!("WORKER_LOST: {} attempts", self.config.max_attempts);
            return self.fail(run, reason, "RESULT_UNKNOWN").await;
        }
        let agent = self.agents.ready(&account, found.agent_id(), found.facts.turn.version).await?;
        if !found.facts.unfetched.is_empty() {
            return self.fetch_late(run, &found).await;
        }
        let mut found = found;
        if !found.open.is_empty() {
            take_arrived(&mut found);
        } else if is_awaited {
            match self.append_arrived(run).await? {
                None => return Ok(Next::Done),
                Some(record) => found = record,
            }
        }
        Box::pin(self.turn(run, found, &agent, stop)).await
    }

    /// Takes in what was said before the turn goes on; `None` when the lease is lost.
    async fn append_arrived(&self, run: &Run) -> Result<Option<Record>> {
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let taking = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut record) = hold_in(conn, run).await? else { return Ok(None) };
            if !append_queued(conn, &mut record).await? {
                return Ok(Some((record, None)));
            }
            let told = self.commit_in(conn, &mut record, Some(run), 0, now).await?;
            Ok(Some((record, Some(told))))
        });
        let Some((record, told)) = taking.await? else { return Ok(None) };
        drop(conn);
        if let Some(told) = told {
            self.tell(&told).await?;
        }
        Ok(Some(record))
    }

    async fn turn(
        self: &Arc<Self>,
        run: &Run,
        found: Record,
        agent: &Arc<ReadyAgent>,
        stop: &CancellationToken,
    ) -> Result<Next> {
        let account = run.account();
        let profile = agent.profile.in_environment(&*self.ports.environments, &account).await?;
        let mut tools = self.tools(&account, &found, &agent.id, &profile).await?;
        if let Some(parent) = &found.facts.parent {
            restrict(&mut tools, &parent.approval_tools);
        }
        let turn_store = ThreadTurnStore {
            threads: Arc::clone(self),
            run: run.clone(),
            version: agent.version,
            agent_id: agent.id.clone(),
        };
        let limit = |most: u64| if most == 0 { u64::MAX } else { most };
        let settings = &agent.settings;
        let used = found.usage.tokens.input_tokens.saturating_sub(found.facts.turn.input_before);
        let empty = found.facts.turn.empty.map_or(0, |empty| empty.attempts);
        let bounds = Bounds {
            tool_calls: limit(settings.max_execution_tool_calls),
            input_tokens: limit(settings.max_execution_input_tokens).saturating_sub(used),
            empty_answers: Some(EMPTY_RETRIES.saturating_sub(empty)),
        };
        let request = found.facts.turn.request.clone();
        let live = live_key(&account, &run.subject);
        let earlier = run.fence - 1;
        let mut turn =
            Turn::new(&self.ports, &turn_store, found.conversation()?, &request, live, earlier, Arc::default());
        match turn.run(&profile, &tools, bounds, None, stop).await {
            None => {
                // Whoever stopped it has stored the end; what was taken until then counts all the same.
                if let Some(answer) = turn.cut_short() {
                    self.count_cut_short(&account, &run.subject, &answer).await?;
                }
                Ok(Next::Done)
            }
            Some(Err(error)) => Err(error),
            Some(Ok(ending)) if ending.is_halted => Ok(Next::Again),
            Some(Ok(ending)) if !ending.waiting.is_empty() => self.wait(run, &turn_store, &turn, &ending).await,
            Some(Ok(ending)) => self.end(run, &turn_store, turn, ending, agent).await,
        }
    }

    /// The tools of a turn, as they are at its start.
    async fn tools(
        self: &Arc<Self>,
        account: &AccountId,
        found: &Record,
        agent: &str,
        profile: &Profile,
    ) -> Result<Vec<TurnTool>> {
        let settings = &profile.settings;
        let callbacks: Arc<dyn Callbacks> = Arc::new(ThreadCallbacks {
            db: self.ports.db.clone(),
            clock: Arc::clone(&self.ports.clock),
            account: account.clone(),
            thread: found.id().to_owned(),
            timeout: self.config.async_tool_timeout,
            base: self.config.public_url.clone(),
        });
        let request = &found.facts.turn.request;
        let toolbox = &self.ports.toolbox;
        let (worker, payer) = (Some((AGENT.name(), agent)), found.payer());
        let user = ToolUser { worker, payer: Some(&payer), conversation: found.id(), callbacks: Some(&callbacks) };
        let mut tools = turn_tools(toolbox, account, settings, request, user).await?;
        let spec = settings.choose(&*self.ports.catalog, request.provider.as_deref(), request.model.as_deref());
        if spec.is_ok_and(|spec| spec.capabilities.tools) {
            // An agent can always say that it is done.
            let groups = ["builtin-finish".to_owned()];
            let choice = ToolChoice { groups: &groups, timeout: Duration::from_mins(1), ..ToolChoice::default() };
            let finish = toolbox.tools(account, &choice).await?;
            tools.extend(
                finish
                    .into_iter()
                    .filter(|new| tools.iter().all(|old| old.tool.name != new.tool.name))
                    .collect::<Vec<_>>(),
            );
        }
        if !settings.subagents_ids.is_empty() {
            let hand_off = HandOff {
                account: account.clone(),
                chat: None,
                thread: Some(found.id().to_owned()),
                user_uid: found.user_uid().to_owned(),
                tenant_id: found.tenant_id().map(str::to_owned),
                subtenant_id: found.subtenant_id().map(str::to_owned),
                approval_tools: approvals_above(found, settings),
                own_approvals: settings.approval_tools.clone(),
                depth: request.depth,
            };
            tools.extend(ThreadLauncher(Arc::clone(self)).tools(&settings.subagents_ids, &hand_off).await?);
        }
        Ok(tools)
    }

    /// Files that were not there when the thread went on.
    async fn fetch_late(&self, run: &Run, found: &Record) -> Result<Next> {
        let fetched = self.fetch(&run.account(), &found.owner(), &found.facts.unfetched).await;
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let keeping = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut record) = hold_in(conn, run).await? else { return Ok(None) };
            match fetched {
                Ok(files) if !record.facts.unfetched.is_empty() => {
                    self.keep_files_in(conn, &mut record, files).await?;
                }
                Err(name) if !record.facts.unfetched.is_empty() => {
                    record.finish_reason = Some(format!("FILE_ERROR: {name}"));
                    record.enter(Cause::Failed, ThreadState::Failed, &Actor::worker(), now)?;
                }
                _ => {}
            }
            let next = if record.state.is_terminal() { Next::Done } else { Next::Again };
            Ok(Some((next, self.commit_in(conn, &mut record, Some(run), 0, now).await?)))
        });
        let kept = keeping.await?;
        drop(conn);
        self.told(kept).await
    }

    async fn told(&self, stored: Option<(Next, AfterCommit)>) -> Result<Next> {
        let Some((next, told)) = stored else { return Ok(Next::Done) };
        self.tell(&told).await?;
        Ok(next)
    }

    /// Ends a thread whose turn cannot go on.
    async fn fail(&self, run: &Run, reason: String, code: &str) -> Result<Next> {
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let failing = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut record) = hold_in(conn, run).await? else { return Ok(None) };
            take_arrived(&mut record);
            close(conn, &mut record, code, |_| true, now).await?;
            record.finish_reason = Some(reason);
            record.stop_reason = Some("error".to_owned());
            record.enter(Cause::Failed, ThreadState::Failed, &Actor::worker(), now)?;
            Ok(Some((Next::Done, self.commit_in(conn, &mut record, Some(run), 0, now).await?)))
        });
        let failed = failing.await?;
        drop(conn);
        self.told(failed).await
    }

    /// Gives the run up until what the thread waits for is there.
    async fn wait(&self, run: &Run, turn_store: &ThreadTurnStore, turn: &Turn<'_>, ending: &Ending) -> Result<Next> {
        let revision = turn.live.next_revision();
        let (now, took) = (self.ports.clock.now(), turn.ledger.take());
        let mut conn = self.ports.db.conn().await?;
        let storing = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut record) = hold_in(conn, run).await? else { return Ok(None) };
            note_step(&mut record, 0, &turn.conversation.usage, turn_store.version);
            record.open.clone_from(&ending.waiting);
            record.guardrails = turn.guardrails().or(record.guardrails.take());
            hand_offs(&mut record);
            take_arrived(&mut record);
            let next = self.sleep(&mut record, now)?;
            let told = self.commit_in(conn, &mut record, Some(run), revision, now).await?;
            settle_in(conn, &took).await?;
            Ok(Some((next, told)))
        });
        let stored = storing.await;
        drop(conn);
        self.told(kept_or_owed(stored, &turn.ledger, took)?).await
    }

    /// Puts a thread into the state that fits what it waits for.
    fn sleep(&self, record: &mut Record, now: Timestamp) -> Result<Next> {
        // Everything came while this was stored.
        let Some((cause, state)) = record.waits_in() else { return Ok(Next::Again) };
        let pauses = record.facts.pause.as_ref().is_some_and(|pause| pause.requested);
        if pauses {
            pause_now(record, now)?;
        } else if state == ThreadState::PausedForApproval {
            let approval = self.approval_of(record, now);
            record.enter(cause, state, &Actor::worker(), now)?;
            record.facts.approval = Some(approval);
        } else {
            record.enter(cause, state, &Actor::worker(), now)?;
            if state == ThreadState::PausedForResume {
                let (until, reason) = (sleeps_until(record), Some("WAIT_UNTIL".to_owned()));
                record.facts.pause = Some(Pause { until, reason, at: Some(now), ..Pause::default() });
            }
        }
        Ok(Next::Done)
    }

    /// Ends the turn with what its last step left.
    async fn end(
        &self,
        run: &Run,
        turn_store: &ThreadTurnStore,
        mut turn: Turn<'_>,
        ending: Ending,
        agent: &Arc<ReadyAgent>,
    ) -> Result<Next> {
        let rows = turn.last_words(&ending)?;
        let took = turn.ledger.take();
        let ended = EndedTurn {
            run: run.clone(),
            rows,
            usage: turn.conversation.usage.clone(),
            guardrails: turn.guardrails(),
            findings: std::mem::take(&mut turn.findings),
            empty_answers: turn.empty_answers,
            ending,
            agent: Arc::clone(agent),
            version: turn_store.version,
            revision: turn.live.next_revision(),
            took: took.clone(),
            trace: traceparent(),
        };
        let stored = kept_or_owed(self.store_end(ended).await, &turn.ledger, took)?;
        if let Some((_, told)) = &stored {
            turn.live.committed(told.revision, "");
        }
        self.told(stored).await
    }

    /// Stores the end of a turn together with others; `None` when its lease is lost.
    async fn store_end(&self, ended: EndedTurn) -> Result<Option<(Next, AfterCommit)>> {
        let ended = Arc::new(ended);
        if let Some(stored) = self.ending.write(Arc::clone(&ended)).await? {
            return Ok(Some(stored));
        }
        // Whoever changes it just now is waited for by nobody else.
        let mut conn = self.ports.db.conn().await?;
        Ok(self.store_ends(&mut conn, &[ended], true).await?.remove(0))
    }

    /// Stores the ends of turns whose lease is held; `None` for the others, and unless it `waits` for those whose thread
    /// somebody changes just now.
    pub(crate) async fn store_ends(
        &self,
        conn: &mut Conn,
        ended: &[Arc<EndedTurn>],
        waits: bool,
    ) -> Result<Vec<Option<(Next, AfterCommit)>>> {
        conn.transaction::<_, Error, _>(async |conn| {
            let now = self.ports.clock.now();
            let runs: Vec<&Run> = ended.iter().map(|ended| &ended.run).collect();
            let records = hold_all_in(conn, &runs, waits).await?;
            let mut held: Vec<(&EndedTurn, String, Record)> = ended
                .iter()
                .zip(records)
                .filter_map(|(ended, record)| Some((&**ended, key(&ended.run.subject), record?)))
                .collect();
            let mut rows = Vec::with_capacity(held.len());
            for (ended, key, record) in &held {
                rows.extend(ended.rows.iter().map(|row| (ConversationStore::of(&record.account, key), row)));
            }
            insert_messages(conn, &rows).await?;
            let of: Vec<_> = held.iter().map(|(_, key, record)| ConversationStore::of(&record.account, key)).collect();
            let awaited: HashSet<(String, String)> = awaited(conn, &of).await?.into_iter().collect();
            let mut nexts = Vec::with_capacity(held.len());
            for (ended, key, record) in &mut held {
                let is_awaited = awaited.contains(&(record.account.to_string(), key.clone()));
                nexts.push((ended.run.id.as_str(), ended.conclude(conn, record, is_awaited, now).await?));
            }
            let mut changes: Vec<Change<'_>> = Vec::with_capacity(held.len());
            for (ended, _, record) in &mut held {
                changes.push(ended.change(record));
            }
            let told = self.commit_all_in(conn, &mut changes, now).await?;
            drop(changes);
            let took: Vec<_> = held.iter().flat_map(|(ended, ..)| ended.took.iter().cloned()).collect();
            settle_in(conn, &took).await?;
            let mut stored: HashMap<&str, _> =
                nexts.into_iter().zip(told).map(|((run, next), told)| (run, (next, told))).collect();
            Ok(ended.iter().map(|ended| stored.remove(ended.run.id.as_str())).collect())
        })
        .await
    }

    /// A step that was broken off by a client has taken tokens, too.
    async fn count_cut_short(&self, account: &AccountId, id: &str, answer: &platform_runtime::Answer) -> Result<()> {
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let counting = conn.transaction::<_, Error, _>(async |conn| {
            // One that is deleted takes nothing any more.
            let Some(mut record) = repository::lock(conn, account, id).await? else { return Ok(()) };
            record.usage.add(answer, now);
            self.commit_in(conn, &mut record, None, 0, now).await.map(drop)
        });
        counting.await
    }
}

/// What was not stored of quotas is owed all the same.
fn kept_or_owed<T>(stored: Result<Option<T>>, ledger: &UsageLedger, took: Vec<Arc<RawValue>>) -> Result<Option<T>> {
    if !matches!(stored, Ok(Some(_))) {
        ledger.put_back(took);
    }
    stored
}

/// What needs approval here or above needs it below.
fn approvals_above(found: &Record, settings: &AssistantSettings) -> Vec<String> {
    let above = found.facts.parent.iter().flat_map(|parent| parent.approval_tools.clone());
    let mut all: Vec<String> = settings.approval_tools.iter().cloned().chain(above).collect();
    all.sort();
    all.dedup();
    all
}

/// Tools that need approval for whoever handed the work over need it here, too.
fn restrict(tools: &mut [TurnTool], approval: &[String]) {
    for tool in tools {
        let named = approval.iter().any(|name| name == "*" || *name == tool.tool.name);
        let ends = tool.tool.name == FINISH_TOOL;
        tool.needs_approval |= named && !ends;
    }
}
