use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use chrono::NaiveDate;
use diesel_async::AsyncConnection;
use platform_access::{Kind, Place, References, Resources};
use platform_conversation::{
    Content, ContentPages, ConversationStore, Matches, NewFeedback, StoredJson, SubAgentLauncher, listed_contents,
};
use platform_core::{AccountId, Caller, Code, Error, Id, Object, Page, Period, Result, Session, Timestamp, overlay};
use platform_db::Idempotency;
use platform_jobs::Work;
use platform_realtime::Watcher;
use platform_toolservers::TOOL_SERVER;
use serde_json::Value;

use super::{
    addresses,
    change::act::Act,
    change::request::{
        AsyncResponses, NewApproval, NewCompletion, NewPause, NewResume, NewThread, PauseOrResume, ThreadMessage,
        ThreadPatch, unknown_state,
    },
    change::state::{Action, ThreadState},
    change::timer::Timers,
    facts::Pause,
    model::{Thread, ThreadFeedback, ThreadFilter, ThreadList, ThreadResponded, ThreadStart, ThreadView},
    read::list::{self, Conditions, queue_places},
    read::source::ThreadSource,
    record::{Actor, Record, key},
    repository,
    threads::{ThreadConfig, Threads, live_key, not_found},
    turn::awaited::{Abandons, EndAll, Returns},
    turn::files::Files,
    turn::hand_off::ThreadLauncher,
    turn::runner::ThreadTurns,
};
use crate::{
    agent::{Agent, PgAgentService},
    schedule::Schedules,
};

/// Threads of an account: starting, steering, reading, following. `THREAD_NOT_FOUND` comes from all that name one,
/// `THREAD_STATE_CONFLICT` from whatever its state does not allow.
#[async_trait]
pub trait ThreadService: Send + Sync {
    /// Starts a thread; `reject_when_busy`: only when the agent has room for it, else `AGENT_BUSY`. `AGENT_NOT_FOUND`,
    /// `AGENT_ARCHIVED`, `AGENT_DISABLED`, `RATE_LIMIT_EXCEEDED` when too many wait.
    async fn start(
        &self,
        caller: &Caller,
        agent: &Id<Agent>,
        new: NewThread,
        api_source: Option<String>,
        reject_when_busy: bool,
        once: Option<&Idempotency>,
    ) -> Result<ThreadStart>;
    /// Threads that the filter keeps; `names`: of the query, in the order they were given.
    async fn list(&self, account: &AccountId, filter: ThreadFilter, names: &[String], page: Page)
    -> Result<ThreadList>;
    /// One thread; of a large one its messages are read page by page.
    async fn get(
        &self,
        account: &AccountId,
        id: &Id<Thread>,
        view: ThreadView,
    ) -> Result<(Thread, Option<ContentPages>)>;
    /// Changes the given fields.
    async fn update(
        &self,
        account: &AccountId,
        id: &Id<Thread>,
        patch: Object,
    ) -> Result<(Thread, Option<ContentPages>)>;
    /// Takes a thread away that has ended.
    async fn delete(&self, account: &AccountId, id: &Id<Thread>) -> Result<()>;
    /// How many threads of each agent a tenant has; `within`: as in [`ThreadFilter`].
    async fn count_by_agent(
        &self,
        account: &AccountId,
        tenant: &str,
        within: Option<&[String]>,
    ) -> Result<Vec<(String, i64)>>;
    /// Whether a session's tenant has a thread of the agent.
    async fn is_known_to(&self, account: &AccountId, agent: &Id<Agent>, session: &Session) -> Result<bool>;
    /// How many threads were made in a project, by day or month; `tenant`: by that one alone.
    async fn count_in(
        &self,
        account: &AccountId,
        project: &str,
        tenant: Option<&str>,
        period: Period,
    ) -> Result<Vec<(NaiveDate, i64)>>;
    /// Follows a thread.
    async fn watch(&self, account: &AccountId, id: &Id<Thread>, partial: bool) -> Result<Watcher>;
    /// Pauses a thread: at once when it waits in the queue, else after the step that it is at.
    async fn pause(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: NewPause,
        once: Option<&Idempotency>,
    ) -> Result<Thread>;
    /// Resumes a paused thread, or takes the request for a pause back.
    async fn resume(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: NewResume,
        once: Option<&Idempotency>,
    ) -> Result<Thread>;
    /// Pauses a thread that runs, resumes one that is paused.
    async fn pause_or_resume(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: PauseOrResume,
        once: Option<&Idempotency>,
    ) -> Result<Thread>;
    /// Ends a thread as completed, failed or terminated; its sub-agents end with it.
    async fn complete(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: NewCompletion,
        once: Option<&Idempotency>,
    ) -> Result<Thread>;
    /// Decides about calls that wait for approval.
    async fn approve(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: NewApproval,
        once: Option<&Idempotency>,
    ) -> Result<Thread>;
    /// Sends a message to a thread; one that has ended goes on with it.
    async fn say(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: ThreadMessage,
        once: Option<&Idempotency>,
    ) -> Result<Thread>;
    /// Gives results of asynchronous calls.
    async fn respond(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: AsyncResponses,
        once: Option<&Idempotency>,
    ) -> Result<ThreadResponded>;
    /// Whether a result may come to this address; `NOT_FOUND` otherwise.
    async fn awaits_callback(&self, token: &str) -> Result<()>;
    /// Gives the result of an asynchronous call by its address.
    async fn callback(&self, token: &str, value: Value) -> Result<()>;
    /// Messages that hold a text.
    async fn search(&self, account: &AccountId, id: &Id<Thread>, text: &str, limit: i64) -> Result<Matches>;
    /// What it did and why it ended, in words.
    async fn explain(&self, account: &AccountId, id: &Id<Thread>) -> Result<String>;
    /// Feedback on its messages.
    async fn feedback(&self, account: &AccountId, id: &Id<Thread>) -> Result<Vec<ThreadFeedback>>;
    /// Gives feedback; `true` when it is the first on that message.
    async fn give_feedback(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        new: NewFeedback,
        once: Option<&Idempotency>,
    ) -> Result<(bool, ThreadFeedback)>;
    /// Tags in use, on the threads of one agent or of all; `within`: as in [`ThreadFilter`].
    async fn tags(
        &self,
        account: &AccountId,
        agent: Option<&Id<Agent>>,
        within: Option<&[String]>,
    ) -> Result<Vec<String>>;
    /// Ends all threads of an agent that was deleted.
    async fn end_all(&self, caller: &Caller, agent: &Id<Agent>) -> Result<()>;
    /// `AGENT_NOT_FOUND` unless the agent is or was there.
    async fn known_agent(&self, account: &AccountId, agent: &Id<Agent>) -> Result<()>;
}

/// The service on PostgreSQL.
pub struct PgThreadService {
    threads: Arc<Threads>,
}

impl PgThreadService {
    /// Needs what turns work with, durable runs, the agents, mail, the tenants and what fetches files.
    pub fn new(
        ports: platform_conversation::Ports,
        jobs: Arc<platform_jobs::Jobs>,
        agents: Arc<PgAgentService>,
        mailer: Arc<platform_mail::Mailer>,
        tenants: Arc<dyn platform_tenants::TenantService>,
        files: platform_conversation::FileFetcher,
        config: ThreadConfig,
    ) -> Self {
        Self { threads: Threads::new(ports, jobs, agents, mailer, tenants, files, config) }
    }

    /// What carries out the runs that this process takes from the table.
    pub fn works(&self) -> Vec<Arc<dyn Work>> {
        let threads = || Arc::clone(&self.threads);
        vec![
            Arc::new(ThreadTurns(threads())),
            Arc::new(Timers(threads())),
            Arc::new(Files(threads())),
            Arc::new(Returns(threads())),
            Arc::new(Abandons(threads())),
            Arc::new(EndAll(threads())),
            Arc::new(Schedules(threads())),
        ]
    }

    /// To whom chats hand work.
    pub fn hand_offs(&self) -> Arc<dyn SubAgentLauncher> {
        Arc::new(ThreadLauncher(Arc::clone(&self.threads)))
    }

    pub(crate) fn threads(&self) -> Arc<Threads> {
        Arc::clone(&self.threads)
    }

    /// Threads as they are sent, with where they wait.
    async fn placed(
        &self,
        account: &AccountId,
        records: Vec<Record>,
        mut contents: HashMap<String, Vec<StoredJson>>,
    ) -> Result<Vec<Thread>> {
        let mut waits = HashMap::new();
        if records.iter().any(|record| record.state == ThreadState::Queued) {
            waits = queue_places(self.threads.ports.db.read().await?.get(), account, &records).await?;
        }
        let in_one = records.iter().filter(|record| record.environment_id().is_some());
        let in_one: Vec<String> = in_one.map(|record| record.id().to_owned()).collect();
        let mut sandboxes = self.threads.ports.environments.sandboxes(account, &in_one).await?;
        let thread = |record: Record| {
            let sandbox_id = sandboxes.remove(record.id());
            let place = waits.remove(record.id());
            let content = contents.remove(&key(record.id()));
            Ok(Thread { sandbox_id, ..record.into_thread(content, place)? })
        };
        records.into_iter().map(thread).collect()
    }

    /// Does something to a thread: the thread as that leaves it, without content.
    async fn act(
        &self,
        caller: &Caller,
        id: &str,
        act: Act,
        reason: Option<String>,
        once: Option<&Idempotency>,
    ) -> Result<Thread> {
        let account = &caller.account;
        let by = Actor { reason, ..Actor::client(&caller.user_uid) };
        Box::pin(self.threads.act(account, id, act, by, once)).await
    }

    fn source(&self, account: &AccountId, id: &str) -> ThreadSource {
        let (db, frame_bytes) = (self.threads.ports.db.clone(), self.threads.config.frame_bytes);
        ThreadSource { db, account: account.clone(), id: id.to_owned(), frame_bytes }
    }

    fn now(&self) -> Timestamp {
        self.threads.ports.clock.now()
    }
}

/// Threads.
pub const THREAD: Kind = Kind::placed("thread");

#[async_trait]
impl Resources for PgThreadService {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        list::place(self.threads.ports.db.read().await?.get(), account, id).await
    }

    async fn tools(&self, account: &AccountId, id: &str) -> Result<References> {
        let agent = list::agent(self.threads.ports.db.read().await?.get(), account, id).await?;
        let Some(agent) = agent else { return Ok(References::new()) };
        let agent = self.threads.agents.ready(account, &agent, None).await?;
        let groups = &agent.profile.settings.available_tools_groups_uids;
        Ok(groups.iter().map(|group| (TOOL_SERVER, group.clone())).collect())
    }
}

#[async_trait]
impl ThreadService for PgThreadService {
    async fn start(
        &self,
        caller: &Caller,
        agent: &Id<Agent>,
        new: NewThread,
        api_source: Option<String>,
        reject_when_busy: bool,
        once: Option<&Idempotency>,
    ) -> Result<ThreadStart> {
        self.threads.start(caller, agent, new, api_source, reject_when_busy, once).await
    }

    async fn list(
        &self,
        account: &AccountId,
        filter: ThreadFilter,
        names: &[String],
        page: Page,
    ) -> Result<ThreadList> {
        let omit = filter.omit_content == Some(true);
        let conditions = Conditions::of(filter, names)?;
        let conn = self.threads.ports.db.fair_conn(account).await?;
        let (mut records, total) = list::list(&conn, account, &conditions, page).await?;
        let mut limit = page.limit;
        let mut contents = HashMap::new();
        if !omit {
            let keys: Vec<String> = records.iter().map(|record| key(record.id())).collect();
            let (fits, shown) = listed_contents(&conn, account, &keys).await?;
            // The page is shorter then, and says so; who goes on by its limit misses nothing.
            if fits < records.len() {
                limit = i64::try_from(fits).unwrap_or(limit);
                records.truncate(fits);
            }
            contents = shown;
        }
        drop(conn);
        let threads = self.placed(account, records, contents).await?;
        let shown = page.offset + i64::try_from(threads.len()).unwrap_or(0);
        Ok(ThreadList { threads, total, offset: page.offset, limit, has_more: shown < total })
    }

    async fn get(
        &self,
        account: &AccountId,
        id: &Id<Thread>,
        view: ThreadView,
    ) -> Result<(Thread, Option<ContentPages>)> {
        let record = self.threads.find(account, id).await?;
        let tasks = (view.with_tasks == Some(true)).then(|| record.facts.tasks.clone());
        let omit = view.omit_content == Some(true);
        let (content, pages) = match (&view.message_offset, &view.message_limit) {
            _ if omit => (None, None),
            (None, None) => Content::read(&self.threads.ports.db, account, &key(id)).await?.apart(),
            (offset, limit) => {
                let number = |given: &Option<String>, least: i64, otherwise: i64| match given {
                    Some(given) => given.trim().parse().ok().filter(|number| *number >= least),
                    None => Some(otherwise),
                };
                let (Some(limit), Some(offset)) = (number(limit, 1, 1000), number(offset, 0, 0)) else {
                    let message = "messageLimit is a whole number from 1 on, messageOffset one from 0 on.";
                    return Err(Error::new(Code::INVALID_PAGINATION, message));
                };
                let page = Page { limit: limit.min(1000), offset };
                let conn = self.threads.ports.db.read().await?;
                (Some(ConversationStore::of(account, &key(id)).content(conn.get(), page).await?), None)
            }
        };
        let contents = content.map(|content| (key(id), content)).into_iter().collect();
        let thread = self.placed(account, vec![record], contents).await?.into_iter().next();
        Ok((Thread { tasks, ..thread.ok_or_else(|| not_found(id))? }, pages))
    }

    async fn count_by_agent(
        &self,
        account: &AccountId,
        tenant: &str,
        within: Option<&[String]>,
    ) -> Result<Vec<(String, i64)>> {
        list::count_by_agent(&*self.threads.ports.db.fair_conn(account).await?, account, tenant, within).await
    }

    async fn is_known_to(&self, account: &AccountId, agent: &Id<Agent>, session: &Session) -> Result<bool> {
        list::is_known_to(self.threads.ports.db.read().await?.get(), account, agent, &session.tenant_id).await
    }

    async fn count_in(
        &self,
        account: &AccountId,
        project: &str,
        tenant: Option<&str>,
        period: Period,
    ) -> Result<Vec<(NaiveDate, i64)>> {
        list::count_in(&*self.threads.ports.db.fair_conn(account).await?, account, project, tenant, period).await
    }

    async fn update(
        &self,
        account: &AccountId,
        id: &Id<Thread>,
        patch: Object,
    ) -> Result<(Thread, Option<ContentPages>)> {
        let limits = &self.threads.config.limits;
        let blank = ThreadPatch { name: None, tags: Vec::new(), metadata: Object::new() };
        overlay(&blank, patch.clone())?.check(limits)?;
        let now = self.now();
        let mut conn = self.threads.ports.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            let record = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            let thread = record.into_thread(None, None)?;
            let current = ThreadPatch { name: thread.name, tags: thread.tags, metadata: thread.metadata };
            let mut changed = overlay(&current, patch)?;
            changed.check(limits)?;
            repository::edit(conn, account, id, &changed, now).await
        })
        .await?;
        drop(conn);
        self.get(account, id, ThreadView::default()).await
    }

    async fn delete(&self, account: &AccountId, id: &Id<Thread>) -> Result<()> {
        let mut conn = self.threads.ports.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            let record = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            record.allow(Action::Delete)?;
            if record.names_address() {
                addresses::keep_in(conn, account, id.as_str()).await?;
            }
            repository::delete(conn, account, id).await
        })
        .await?;
        self.threads.ports.realtime.deleted(&live_key(account, id));
        Ok(())
    }

    async fn watch(&self, account: &AccountId, id: &Id<Thread>, partial: bool) -> Result<Watcher> {
        let source = Arc::new(self.source(account, id));
        let mut watcher = self.threads.ports.realtime.watch(live_key(account, id), source, partial);
        if watcher.begin().await? { Ok(watcher) } else { Err(not_found(id)) }
    }

    async fn pause(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: NewPause,
        once: Option<&Idempotency>,
    ) -> Result<Thread> {
        let immediate = given.check()?;
        let pause = Pause { until: given.until.map(Timestamp), reason: given.reason.clone(), ..Pause::default() };
        self.act(caller, id, Act::Pause { immediate, pause }, given.reason, once).await
    }

    async fn resume(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: NewResume,
        once: Option<&Idempotency>,
    ) -> Result<Thread> {
        let found = self.threads.find(&caller.account, id).await?;
        let says = match given.message.filter(|message| !message.is_empty()) {
            None => None,
            Some(message) => {
                let message = ThreadMessage { message: Some(message), files: Vec::new() };
                Some(self.threads.arrive_at(&found, message, &caller.user_uid).await?)
            }
        };
        self.act(caller, id, Act::Resume { says }, None, once).await
    }

    async fn pause_or_resume(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: PauseOrResume,
        once: Option<&Idempotency>,
    ) -> Result<Thread> {
        let PauseOrResume { action, mode, until, reason, message } = given;
        let Some(action) = action else {
            return Err(Error::invalid("action", "required", "action is required: paused or queued"));
        };
        match ThreadState::parse(&action).ok_or_else(|| unknown_state(&action))? {
            ThreadState::Paused => self.pause(caller, id, NewPause { mode, until, reason }, once).await,
            ThreadState::Queued => self.resume(caller, id, NewResume { message }, once).await,
            _ => Err(Error::invalid("action", "enum", "action must be paused or queued")),
        }
    }

    async fn complete(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: NewCompletion,
        once: Option<&Idempotency>,
    ) -> Result<Thread> {
        let state = given.check()?;
        self.act(caller, id, Act::Complete { state }, given.reason, once).await
    }

    async fn approve(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: NewApproval,
        once: Option<&Idempotency>,
    ) -> Result<Thread> {
        let approves = given.check(&self.threads.config.limits)?;
        self.act(caller, id, Act::Decide { given, approves }, None, once).await
    }

    async fn say(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: ThreadMessage,
        once: Option<&Idempotency>,
    ) -> Result<Thread> {
        given.check(&self.threads.config.limits)?;
        let found = self.threads.find(&caller.account, id).await?;
        // Nothing is fetched for a thread that cannot take it.
        found.allow(Action::Messages)?;
        let arrived = self.threads.arrive_at(&found, given, &caller.user_uid).await?;
        self.act(caller, id, Act::Say(arrived), None, once).await
    }

    async fn respond(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        given: AsyncResponses,
        once: Option<&Idempotency>,
    ) -> Result<ThreadResponded> {
        self.threads.respond(&caller.account, id, &given, &Actor::client(&caller.user_uid), once).await
    }

    async fn awaits_callback(&self, token: &str) -> Result<()> {
        self.threads.awaiting(token).await.map(drop)
    }

    async fn callback(&self, token: &str, value: Value) -> Result<()> {
        self.threads.callback(token, &value).await
    }

    async fn search(&self, account: &AccountId, id: &Id<Thread>, text: &str, limit: i64) -> Result<Matches> {
        self.threads.find(account, id).await?;
        ConversationStore::of(account, &key(id))
            .search(&*self.threads.ports.db.fair_conn(account).await?, text, limit)
            .await
    }

    async fn explain(&self, account: &AccountId, id: &Id<Thread>) -> Result<String> {
        self.threads.explain(self.threads.find(account, id).await?).await
    }

    async fn feedback(&self, account: &AccountId, id: &Id<Thread>) -> Result<Vec<ThreadFeedback>> {
        let record = self.threads.find(account, id).await?;
        let conn = self.threads.ports.db.read().await?;
        let given = ConversationStore::of(account, &key(id)).feedback(conn.get()).await?;
        let of = |given| ThreadFeedback { given, thread_id: id.to_string(), agent_id: record.agent_id().to_owned() };
        Ok(given.into_iter().map(of).collect())
    }

    async fn give_feedback(
        &self,
        caller: &Caller,
        id: &Id<Thread>,
        new: NewFeedback,
        once: Option<&Idempotency>,
    ) -> Result<(bool, ThreadFeedback)> {
        new.check()?;
        let agent_id = self.threads.find(&caller.account, id).await?.agent_id().to_owned();
        let now = self.now();
        let mut conn = self.threads.ports.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            let (first, given) = ConversationStore::of(&caller.account, &key(id))
                .give_feedback(conn, &caller.user_uid, &new, now)
                .await?;
            let feedback = ThreadFeedback { given, thread_id: id.to_string(), agent_id: agent_id.clone() };
            if let Some(once) = once {
                once.store(conn, if first { 201 } else { 200 }, &feedback).await?;
            }
            Ok((first, feedback))
        })
        .await
    }

    async fn tags(
        &self,
        account: &AccountId,
        agent: Option<&Id<Agent>>,
        within: Option<&[String]>,
    ) -> Result<Vec<String>> {
        if let Some(agent) = agent {
            self.known_agent(account, agent).await?;
        }
        list::tags(&*self.threads.ports.db.fair_conn(account).await?, account, agent.map(Id::as_str), within).await
    }

    async fn end_all(&self, caller: &Caller, agent: &Id<Agent>) -> Result<()> {
        self.threads.end_all(&caller.account, agent, &caller.user_uid).await
    }

    async fn known_agent(&self, account: &AccountId, agent: &Id<Agent>) -> Result<()> {
        self.threads.agents.ready(account, agent, None).await.map(drop)
    }
}
