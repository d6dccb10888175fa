//! Taking work in: threads that start, and messages to those that are there.

use std::{sync::Arc, time::Duration};

use diesel_async::AsyncConnection;
use platform_conversation::{
    ChatMessage, ConversationStore, MessageContent, TurnRequest, check_turn_tools, insert_messages, new_message_uid,
    screen_files,
};
use platform_core::{AccountId, Caller, Error, Owner, Result, run_detached};
use platform_db::{Conn, Idempotency};
use platform_guardrails::ScreenContext;
use platform_jobs::{Hold, full_in, traceparent};
use platform_runtime::{Payer, Role, Spender};
use platform_tenants::TenantInfo;

use crate::thread::{
    change::messages::{Arrived, appended},
    change::model::{AfterCommit, Change, OUT_OF_QUOTA, Start, ThreadSpec},
    change::request::{NewThread, ThreadMessage},
    change::state::{Cause, Source, ThreadState},
    facts::{Facts, Pause, Unfetched},
    model::{StartedThread, ThreadId, ThreadStart},
    record::{Actor, NewRecord, Record, key},
    repository,
    threads::{KIND, Threads},
};
use crate::{agent::ReadyAgent, code};

impl Threads {
    /// Starts a thread for a client.
    pub(crate) async fn start(
        self: &Arc<Self>,
        caller: &Caller,
        agent_id: &str,
        mut new: NewThread,
        api_source: Option<String>,
        reject_when_busy: bool,
        once: Option<&Idempotency>,
    ) -> Result<ThreadStart> {
        let begins_paused = new.check(&self.config.limits)?;
        let account = &caller.account;
        let agent = self.agents.live(account, agent_id).await?;
        if let Some(url) = &new.callback_url {
            self.files.egress().check(url).await.map_err(|error| error.into_error("callbackUrl"))?;
        }
        if agent.settings.archived {
            return Err(Error::new(code::AGENT_ARCHIVED, "This agent is archived; set archived to false first."));
        }
        if agent.settings.disabled {
            return Err(Error::new(code::AGENT_DISABLED, "This agent is disabled; set disabled to false first."));
        }
        // Events of triggers have waited already, and have a bound of their own.
        if new.trigger.is_none() {
            self.jobs.check_room(account, KIND, "threads").await?;
        }
        let mut metadata = new.metadata.unwrap_or_default();
        if let Some(params) = metadata.remove("propmptTemplateParams") {
            metadata.insert("promptTemplateParams".to_owned(), params);
        }
        let subtenant_id = TenantInfo::subtenant_of(new.subtenant_id, &metadata);
        let owner = Owner { tenant_id: new.tenant_id.clone(), subtenant_id: subtenant_id.clone() };
        self.files.check(account, &owner, &mut new.files).await?;
        if let Some(tenant) = &new.tenant_id {
            self.tenants.register(account, &TenantInfo::by(caller, tenant, subtenant_id.as_deref(), &metadata)).await?;
        }
        let order = ThreadSpec {
            files: new.files,
            name: new.name,
            tags: new.tags,
            metadata,
            tenant_id: new.tenant_id,
            subtenant_id,
            api_source,
            provider: new.provider,
            llm: new.llm,
            callback_url: new.callback_url,
            begins_paused,
            depth: new.trigger.as_ref().map_or(0, |trigger| trigger.depth),
            ..ThreadSpec::of(
                if new.trigger.is_some() { Source::Trigger } else { Source::Api },
                caller.user_uid.clone(),
                new.message.unwrap_or_default(),
            )
        };
        let order =
            ThreadSpec { trigger: new.trigger.map(|trigger| serde_json::Value::Object(trigger.source)), ..order };
        let mut start = self.prepare(account, &agent, order).await?;
        start.refusal = self.ports.budget.spent(&start.record.payer()).await?;
        let message = start.arrived.message.content.message.clone();
        let (threads, once, agent_id) = (Arc::clone(self), once.cloned(), agent_id.to_owned());
        // A task of its own: what was accepted is begun when the caller leaves in between.
        let started = run_detached("start thread", async move {
            let (refusal, record) = (start.refusal.clone(), &start.record);
            let started = |state| StartedThread {
                id: record.id().to_owned(),
                thread_id: record.id().to_owned(),
                agent_id: agent_id.clone(),
                state,
                message: message.clone(),
                created_at: record.created().to_iso(),
                creation_timestamp_ms: record.created(),
            };
            let (state, told) = if once.is_none() && !reject_when_busy {
                threads.starting.write(start.clone()).await?
            } else {
                let mut conn = threads.ports.db.conn().await?;
                conn.transaction::<_, Error, _>(async |conn| {
                    if let Some(once) = &once {
                        once.lock(conn).await?;
                    }
                    let account = &record.account;
                    if reject_when_busy {
                        // An agent comes before its lane, whoever takes both.
                        threads.agents.hold_all_in(conn, &[(account, &agent_id)]).await?;
                        if let Some((hold, wait)) = full_in(conn, account, &agent_id).await? {
                            return Err(busy(hold, wait));
                        }
                    }
                    let mut start = start.clone();
                    let told = threads.start_in(conn, &mut start).await?;
                    if let (Some(once), None) = (&once, &refusal) {
                        once.store(conn, 201, &started(start.record.state)).await?;
                    }
                    Ok((start.record.state, told))
                })
                .await?
            };
            threads.tell(&told).await?;
            Ok(match refusal {
                Some(refusal) => ThreadStart::Refused { thread_id: record.id().to_owned(), refusal },
                None => ThreadStart::Started(started(state)),
            })
        });
        started.await
    }

    /// Looks at everything that can be looked at before the thread is stored.
    pub(crate) async fn prepare(&self, account: &AccountId, agent: &ReadyAgent, order: ThreadSpec) -> Result<Start> {
        let now = self.ports.clock.now();
        let id = String::from(ThreadId::generate());
        let settings = &agent.profile.settings;
        let spec = settings.choose(&*self.ports.catalog, order.provider.as_deref(), order.llm.as_deref())?;
        let request = TurnRequest {
            provider: order.provider,
            model: order.llm,
            user_uid: order.user_uid.clone(),
            depth: order.depth,
            ..TurnRequest::default()
        };
        let payer = Payer {
            account: account.clone(),
            tenant_id: order.tenant_id.clone(),
            subtenant_id: order.subtenant_id.clone(),
            project_id: settings.project_id.clone(),
            spender: Spender::Agent(agent.id.clone()),
        };
        check_turn_tools(&self.ports.toolbox, account, settings, &request, &payer, &spec).await?;
        let source = if order.source == Source::Api { "user" } else { order.source.as_str() };
        let source = if source == "cron" { "trigger" } else { source };
        let mut arrived = self.arrive(agent, &id, &order.message, source, request).await?;
        arrived.message.content.files.clone_from(&order.files);
        let unfetched =
            (!order.files.is_empty()).then(|| Unfetched { message: arrived.message.uid.clone(), files: order.files });
        let facts = Facts {
            parent: order.parent,
            trigger: order.trigger,
            callback_url: order.callback_url,
            unfetched: unfetched.into_iter().collect(),
            begins_paused: order.begins_paused,
            ..Facts::default()
        };
        let mut record = Record::new(NewRecord {
            account: account.clone(),
            id,
            agent_id: agent.id.clone(),
            project_id: agent.settings.project_id.clone(),
            environment_id: agent.settings.environment_id.clone(),
            name: order.name,
            user_uid: order.user_uid.clone(),
            tenant_id: order.tenant_id,
            subtenant_id: order.subtenant_id,
            api_source: order.api_source,
            metadata: order.metadata,
            tags: order.tags,
            facts,
            names_address: agent.settings.webhook_url.is_some(),
            now,
        });
        record.begin_turn(arrived.request.clone());
        let by = Actor { source: order.source, user_uid: Some(order.user_uid), reason: None };
        Ok(Start { record, arrived, begins_paused: order.begins_paused, by, refusal: None, trace: traceparent() })
    }

    /// Stores a thread that starts.
    pub(crate) async fn start_in(&self, conn: &mut Conn, start: &mut Start) -> Result<AfterCommit> {
        let mut told = self.start_all_in(conn, std::slice::from_mut(start)).await?;
        Ok(told.remove(0))
    }

    /// Stores threads that start together, each with the state it is in then.
    pub(crate) async fn store_starts(
        &self,
        conn: &mut Conn,
        starts: &[Start],
    ) -> Result<Vec<(ThreadState, AfterCommit)>> {
        conn.transaction::<_, Error, _>(async |conn| {
            let mut starts = starts.to_vec();
            let told = self.start_all_in(conn, &mut starts).await?;
            Ok(starts.iter().map(|start| start.record.state).zip(told).collect())
        })
        .await
    }

    async fn start_all_in(&self, conn: &mut Conn, starts: &mut [Start]) -> Result<Vec<AfterCommit>> {
        let agents: Vec<_> = starts.iter().map(|start| (&start.record.account, start.record.agent_id())).collect();
        self.agents.hold_all_in(conn, &agents).await?;
        let mut messages = Vec::with_capacity(starts.len());
        for start in &mut *starts {
            let now = start.record.created();
            let record = &mut start.record;
            if let Some(above) = record.facts.parent.as_ref().and_then(|parent| parent.link.thread.as_deref()) {
                repository::hold_processing(conn, &record.account, above).await?;
            }
            let (cause, state) = match (record.facts.unfetched.is_empty(), start.begins_paused) {
                _ if start.refusal.is_some() => (Cause::QuotaSpent, ThreadState::LimitExceeded),
                (false, _) => (Cause::FilesAwaited, ThreadState::UnderConstruction),
                (true, false) => (Cause::Accepted, ThreadState::Queued),
                (true, true) => (Cause::Paused, ThreadState::Paused),
            };
            if let Some(refusal) = &start.refusal {
                start.by.reason = Some(refusal.message.clone());
                record.stop_reason = Some("limit_exceeded".to_owned());
                record.finish_reason = Some(OUT_OF_QUOTA.to_owned());
            }
            record.enter(cause, state, &start.by, now)?;
            if state == ThreadState::Paused {
                record.facts.pause = Some(Pause { at: Some(now), ..Pause::default() });
            }
            messages.push((record.account.clone(), key(record.id()), appended(record, &start.arrived)?));
        }
        let rows: Vec<_> =
            messages.iter().map(|(account, key, row)| (ConversationStore::of(account, key), row)).collect();
        insert_messages(conn, &rows).await?;
        for start in &*starts {
            let Start { record, arrived, .. } = start;
            ConversationStore::of(&record.account, &key(record.id()))
                .store_files(conn, &arrived.message.uid, &arrived.files)
                .await?;
        }
        let now = starts.iter().map(|start| start.record.created()).max().unwrap_or_else(|| self.ports.clock.now());
        let changes = starts.iter_mut().map(|Start { record, trace, .. }| Change {
            record,
            held: None,
            revision: 0,
            agent: None,
            trace: trace.clone(),
        });
        let mut changes: Vec<Change<'_>> = changes.collect();
        self.commit_all_in(conn, &mut changes, now).await
    }

    /// A message as it will be stored: what is redacted here is stored nowhere.
    pub(crate) async fn arrive(
        &self,
        agent: &ReadyAgent,
        thread: &str,
        text: &str,
        source: &str,
        mut request: TurnRequest,
    ) -> Result<Arrived> {
        let (now, uid) = (self.ports.clock.now(), new_message_uid());
        let mut text = text.to_owned();
        if let Some(screen) = &agent.profile.screen {
            let screening = screen.arriving(text, ScreenContext { message_uid: uid.clone(), now }).await?;
            (text, request.findings, request.blocked) = (screening.text, screening.findings, screening.blocked);
        }
        let message = ChatMessage {
            role: Role::User,
            content: MessageContent { message: text, ..MessageContent::default() },
            content_source: Some(source.to_owned()),
            ..ChatMessage::new(uid, thread, &request.user_uid, now)
        };
        Ok(Arrived { message, request, files: Vec::new() })
    }

    /// A client's message to a thread that is there, with its files.
    pub(crate) async fn arrive_at(&self, record: &Record, mut given: ThreadMessage, user_uid: &str) -> Result<Arrived> {
        given.check(&self.config.limits)?;
        let agent = self.agents.ready(&record.account, record.agent_id(), None).await?;
        let request = TurnRequest { user_uid: user_uid.to_owned(), ..TurnRequest::default() };
        let text = given.message.unwrap_or_default();
        let mut arrived = self.arrive(&agent, record.id(), &text, "user", request).await?;
        if !given.files.is_empty() {
            arrived.files = self.files.fetch(&record.account, &record.owner(), &mut given.files).await?;
            if let Some(screen) = &agent.profile.screen {
                let (uid, now) = (arrived.message.uid.clone(), self.ports.clock.now());
                screen_files(screen, &mut arrived.files, &uid, now, &mut arrived.request).await?;
            }
            arrived.message.content.files = given.files;
        }
        Ok(arrived)
    }
}

/// The agent takes no thread now, and wants none to wait.
fn busy(hold: Hold, wait: Duration) -> Error {
    let message = match hold {
        Hold::Starts => "This agent has begun as many threads as it may in this interval; try again in the next.",
        _ => "This agent has as many threads as it may have; try again when one has ended.",
    };
    Error::new(code::AGENT_BUSY, message).retry_after(wait.as_secs() + 1)
}
