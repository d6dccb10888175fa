use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_access::{Place, References, Resources, references, users_in};
use platform_conversation::{
    AGENT, AssistantSettings, AssistantTemplates, Ports, Refers, SubAgents, check_environment, use_environments_in,
};
use platform_core::{
    AccountId, Caller, Checks, Error, ErrorKind, FieldLimits, Id, Object, Page, Precondition, Result, Timestamp,
    heap_bytes, overlay, run_blocking,
};
use platform_db::{Bus, Capacity, Conn, Idempotency, InvalidatedCache};
use platform_egress::Egress;
use platform_jobs::{Jobs, When, cancel_in, enqueue_in, set_lane_in};
use platform_knowledge::SkillRef;
use platform_toolservers::{hold_in, use_in};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    model::{Agent, AgentFilter, AgentId, AgentList, AgentSettings, MERGED, ReadyAgent},
    references::{AGENT_REFERENCES, not_found},
    repository, schedule,
};
use crate::{
    costs::{self, CostRow, CostSummary, DailyRange, MonthlyRange},
    evaluation::{EvaluationConfig, check_evaluation, default_judge},
};

/// What the bus calls agents that changed, by id.
pub const AGENT_TOPIC: &str = "agents";
/// Bytes of the agents that are remembered at once.
const MAX_REMEMBERED: u64 = 64 << 20;
/// Kind of the runs that end all threads of an agent that was deleted.
pub(crate) const END_ALL: &str = "thread-end-all";
/// Kind of the runs that take away what goes with an agent that was deleted; the subject is the agent.
pub const AGENT_DELETED: &str = "agent-deleted";
/// Kind of the runs that start agents by their schedules.
pub(crate) const SCHEDULE: &str = "agent-schedule";

/// Agents of an account.
#[async_trait]
pub trait AgentService: Send + Sync {
    /// Those the filter keeps, newest first.
    async fn list(&self, account: &AccountId, filter: &AgentFilter, page: Page) -> Result<AgentList>;
    /// Makes one.
    async fn create(&self, caller: &Caller, settings: AgentSettings, once: Option<&Idempotency>) -> Result<Agent>;
    /// One of them.
    async fn get(&self, account: &AccountId, id: &Id<Agent>) -> Result<Agent>;
    /// Changes the given fields of the version that is expected. Turns that run keep what they began with.
    async fn update(
        &self,
        account: &AccountId,
        id: &Id<Agent>,
        patch: Object,
        expected: &Precondition,
    ) -> Result<Agent>;
    /// Keeps one from being deleted before this transaction ends. `AGENT_NOT_FOUND`.
    async fn hold_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<()>;
    /// Takes it away and ends its threads, which stay readable.
    async fn delete(&self, caller: &Caller, id: &Id<Agent>, expected: &Precondition) -> Result<()>;
    /// Takes one that was deleted out of the agents and assistants that hand work to it, one after the other: none is
    /// locked while another is.
    async fn take_out(&self, account: &AccountId, id: &Id<Agent>) -> Result<()>;
    /// How its threads are judged.
    async fn evaluation_config(&self, account: &AccountId, id: &Id<Agent>) -> Result<EvaluationConfig>;
    /// Changes the given fields of that.
    async fn update_evaluation_config(
        &self,
        account: &AccountId,
        id: &Id<Agent>,
        patch: Object,
        expected: &Precondition,
    ) -> Result<EvaluationConfig>;
    /// What an agent that is or was there took by day.
    async fn daily_costs(&self, account: &AccountId, id: &Id<Agent>, range: DailyRange) -> Result<Vec<CostRow>>;
    /// What it took by month.
    async fn monthly_costs(&self, account: &AccountId, id: &Id<Agent>, range: MonthlyRange) -> Result<Vec<CostRow>>;
    /// What it took today and this month.
    async fn cost_summary(&self, account: &AccountId, id: &Id<Agent>) -> Result<CostSummary>;
}

/// The service on PostgreSQL.
pub struct PgAgentService {
    ports: Ports,
    bus: Bus,
    templates: Arc<dyn AssistantTemplates>,
    sub_agents: Arc<dyn SubAgents>,
    egress: Egress,
    jobs: Arc<Jobs>,
    limits: FieldLimits,
    /// Account, agent and version → the agent, ready for turns.
    ready: Arc<InvalidatedCache<(AccountId, String, i64), ReadyAgent>>,
}

impl PgAgentService {
    /// Needs what turns work with, the assistants that agents are made from, and the bus that says when to forget.
    pub fn new(
        ports: &Ports,
        bus: &Bus,
        templates: Arc<dyn AssistantTemplates>,
        sub_agents: Arc<dyn SubAgents>,
        egress: Egress,
        jobs: Arc<Jobs>,
        limits: FieldLimits,
    ) -> Arc<Self> {
        let ready =
            InvalidatedCache::new(bus, AGENT_TOPIC, Capacity::Bytes(MAX_REMEMBERED, |ready: &ReadyAgent| ready.bytes));
        Arc::new(Self { ports: ports.clone(), bus: bus.clone(), templates, sub_agents, egress, jobs, limits, ready })
    }

    /// The assistant it is made from. What is in a project is the base of agents of that project alone, whoever
    /// put it there later.
    async fn base(&self, account: &AccountId, settings: &AgentSettings) -> Result<Option<AssistantSettings>> {
        let Some(identifier) = settings.base_identifier() else { return Ok(None) };
        let base = self.templates.base(account, identifier).await?;
        Ok(base.filter(|base| base.project_id.is_none() || base.project_id == settings.project_id))
    }

    /// The settings, after every rule on them was looked at but those that take long
    /// ([`AgentSettings::check_written`]); `former`: what they were, whose sub-agents may be gone since.
    async fn checked(
        &self,
        account: &AccountId,
        mut settings: AgentSettings,
        former: Option<&AgentSettings>,
    ) -> Result<AgentSettings> {
        unalias(&mut settings.evaluation_config);
        let base = self.base(account, &settings).await?;
        let (model, limits) = (Arc::clone(&self.ports.catalog), self.limits);
        let settings = run_blocking(move || settings.check(base.as_ref(), &*model, &limits).map(|()| settings)).await?;
        let known = former.map(|former| former.effective(None)).transpose()?.unwrap_or_default().subagents_ids;
        let mut ids = settings.effective(None)?.subagents_ids;
        ids.retain(|id| !known.contains(id));
        self.sub_agents.check(account, &ids).await?;
        check_environment(&*self.ports.environments, account, settings.environment_id.as_deref()).await?;
        Ok(settings)
    }

    /// Names are looked up on the network, so this comes before any lock.
    async fn check_webhook(&self, url: Option<&str>) -> Result<()> {
        let Some(url) = url else { return Ok(()) };
        let mut checks = Checks::default();
        checks.bytes("webhookUrl", url.len(), 2048);
        checks.finish()?;
        self.egress.check(url).await.map(drop).map_err(|error| error.into_error("webhookUrl"))
    }

    /// An agent at a version, or as it is now; deleted ones too.
    pub(crate) async fn ready(&self, account: &AccountId, id: &str, version: Option<i64>) -> Result<Arc<ReadyAgent>> {
        let version = match version {
            Some(version) => version,
            None => {
                let conn = self.ports.db.read().await?;
                repository::find(conn.get(), account, id).await?.ok_or_else(|| not_found(id))?.version
            }
        };
        let load = async {
            let conn = self.ports.db.read().await?;
            let Some(settings) = repository::version(conn.get(), account, id, version).await? else { return Ok(None) };
            let (id, children, account) = (id.to_owned(), Arc::clone(&self.ports.children), account.clone());
            let load = move || {
                // As it is set, as turns use it, and twice in what answers are held against.
                let bytes = 4 * heap_bytes(&serde_json::to_value(&settings).map_err(Error::internal)?);
                let profile = Arc::new(settings.profile(None, &children, &account)?);
                Ok(ReadyAgent { id, version, settings, profile, bytes })
            };
            Ok(Some(run_blocking(load).await?))
        };
        let ready = self.ready.get_or_load(&(account.clone(), id.to_owned(), version), load).await?;
        let ready = ready.ok_or_else(|| not_found(id))?;
        // What stands on an assistant follows that assistant.
        let Some(base) = self.base(account, &ready.settings).await? else { return Ok(ready) };
        let settings = ready.settings.clone();
        let (children, account) = (Arc::clone(&self.ports.children), account.clone());
        let profile = run_blocking(move || settings.profile(Some(&base), &children, &account)).await?;
        let (id, settings) = (ready.id.clone(), ready.settings.clone());
        Ok(Arc::new(ReadyAgent { id, settings, profile: Arc::new(profile), ..*ready }))
    }

    /// An agent as it is now, unless it was deleted.
    pub(crate) async fn live(&self, account: &AccountId, id: &str) -> Result<Arc<ReadyAgent>> {
        let conn = self.ports.db.read().await?;
        let row = repository::find(conn.get(), account, id).await?.filter(|row| !row.deleted);
        let version = row.ok_or_else(|| not_found(id))?.version;
        self.ready(account, id, Some(version)).await
    }

    /// Keeps agents from being deleted before this transaction ends; `AGENT_NOT_FOUND` when one was.
    pub(crate) async fn hold_all_in(&self, conn: &mut Conn, agents: &[(&AccountId, &str)]) -> Result<()> {
        let held = repository::share(conn, agents).await?;
        let gone = agents.iter().find(|(_, id)| !held.iter().any(|held| held == id));
        gone.map_or(Ok(()), |(_, id)| Err(not_found(id)))
    }

    /// Locks what an agent refers to and is to refer to before it is locked itself, as whoever deletes that does.
    async fn hold_references_in(&self, conn: &mut Conn, account: &AccountId, id: &str, patch: &Object) -> Result<()> {
        let current = repository::find(conn, account, id).await?;
        let current = current.map(|row| row.settings()?.effective(None)).transpose()?;
        let mut all = current.map(|settings| Refers::of(&settings)).unwrap_or_default();
        let given = patch.get("assistantSpecialization").and_then(Value::as_object).and_then(Refers::of_patch);
        all = all.and(&given.unwrap_or_default());
        all.environments.extend(patch.get("environmentId").and_then(Value::as_str).map(str::to_owned));
        hold_in(conn, account, &all.tools).await?;
        let [documents, folders] = all.knowledge();
        platform_knowledge::hold_in(conn, account, &documents, &folders).await?;
        self.ports.environments.hold_in(conn, account, &all.environments).await.map(drop)
    }

    /// Stores what an agent refers to; an error when that is not there.
    async fn refer_in(&self, conn: &mut Conn, account: &AccountId, id: &str, to: &Refers) -> Result<()> {
        use_in(conn, account, (AGENT, id), &self.ports.toolbox.records(&to.tools)).await?;
        let skill = |(id, r#type): &(String, String)| SkillRef { id: id.clone(), r#type: r#type.clone() };
        let skills: Vec<SkillRef> = to.skills.iter().map(skill).collect();
        platform_knowledge::use_in(conn, account, (AGENT, id), &to.documents, &to.folders, &skills).await?;
        platform_access::use_in(conn, account, (AGENT, id), AGENT, &to.agents).await?;
        use_environments_in(&*self.ports.environments, conn, account, (AGENT, id), &to.environments).await
    }

    /// Stores what follows from the settings of an agent: its lane, its schedule, the servers it uses.
    async fn apply_settings_in(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        id: &str,
        before: Option<&AgentSettings>,
        now: &AgentSettings,
    ) -> Result<()> {
        set_lane_in(conn, account, id, now.lane()).await?;
        self.refer_in(conn, account, id, &Refers::of(&now.effective(None)?)).await?;
        if before.is_none_or(|before| before.periodic_execution != now.periodic_execution) {
            cancel_in(conn, account, SCHEDULE, id).await?;
            let clock = self.ports.clock.now();
            let next = now.periodic_execution.enabled.then(|| schedule::next(&now.periodic_execution, clock)).flatten();
            if let Some(next) = next {
                let payload = json!({"at": next});
                enqueue_in(conn, account, SCHEDULE, id, payload, When::ByClock(next.since(clock))).await?;
            }
        }
        Ok(())
    }

    async fn change(&self, account: &AccountId, id: &str, patch: Object, expected: &Precondition) -> Result<Agent> {
        let now = self.ports.clock.now();
        let (row, opened) = loop {
            if let Some(changed) = self.try_change(account, id, &patch, expected, now).await? {
                break changed;
            }
        };
        self.ready.changed(id).await?;
        if opened {
            self.jobs.announce();
        }
        row.into_agent(now)
    }

    /// The agent as it is then, and whether its lane is another; `None` when somebody changed it meanwhile. The settings
    /// are judged before anything is locked.
    async fn try_change(
        &self,
        account: &AccountId,
        id: &str,
        patch: &Object,
        expected: &Precondition,
        now: Timestamp,
    ) -> Result<Option<(repository::AgentRow, bool)>> {
        let found = repository::find(self.ports.db.read().await?.get(), account, id).await?;
        let found = found.filter(|row| !row.deleted).ok_or_else(|| not_found(id))?;
        expected.check(found.version)?;
        let current = found.settings()?;
        let settings =
            self.checked(account, overlay(&current, merged(&current, patch.clone())?)?, Some(&current)).await?;
        let mut conn = self.ports.db.conn().await?;
        conn.transaction(async |conn| {
            self.hold_references_in(conn, account, id, patch).await?;
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            if row.version != found.version {
                return Ok(None);
            }
            let row = repository::update(conn, account, id, &settings, now).await?;
            self.apply_settings_in(conn, account, id, Some(&current), &settings).await?;
            Ok(Some((row, settings.lane() != current.lane())))
        })
        .await
    }
}

#[async_trait]
impl Resources for PgAgentService {
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>> {
        repository::place(self.ports.db.read().await?.get(), account, id).await
    }

    async fn references(&self, account: &AccountId, id: &str) -> Result<References> {
        let record = serde_json::to_value(self.get(account, &Id::named(id)).await?).map_err(Error::internal)?;
        Ok(references(&AGENT_REFERENCES, |field| record[field].clone()))
    }
}

#[async_trait]
impl AgentService for PgAgentService {
    async fn list(&self, account: &AccountId, filter: &AgentFilter, page: Page) -> Result<AgentList> {
        let conn = self.ports.db.fair_conn(account).await?;
        let (rows, total, page) = repository::list(&conn, account, filter, page).await?;
        drop(conn);
        let now = self.ports.clock.now();
        let agents: Vec<Agent> = rows.into_iter().map(|row| row.into_agent(now)).collect::<Result<_>>()?;
        let shown = page.offset + i64::try_from(agents.len()).unwrap_or(0);
        Ok(AgentList { agents, total, offset: page.offset, limit: page.limit, has_more: shown < total })
    }

    async fn create(&self, caller: &Caller, settings: AgentSettings, once: Option<&Idempotency>) -> Result<Agent> {
        let account = &caller.account;
        self.check_webhook(settings.webhook_url.as_deref()).await?;
        let settings = self.checked(account, settings, None).await?;
        settings.check_written(&self.ports.children, account).await?;
        let id = String::from(AgentId::generate());
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let agent = conn
            .transaction::<_, Error, _>(async |conn| {
                let row = repository::insert(conn, account, &id, &caller.user_uid, &settings, now).await?;
                self.apply_settings_in(conn, account, &id, None, &settings).await?;
                let agent = row.into_agent(now)?;
                Idempotency::store_if(once, conn, 201, &agent).await?;
                Ok(agent)
            })
            .await?;
        self.announce_schedule(&agent);
        Ok(agent)
    }

    async fn get(&self, account: &AccountId, id: &Id<Agent>) -> Result<Agent> {
        let conn = self.ports.db.read().await?;
        let row = repository::find(conn.get(), account, id).await?.filter(|row| !row.deleted);
        row.ok_or_else(|| not_found(id))?.into_agent(self.ports.clock.now())
    }

    async fn update(
        &self,
        account: &AccountId,
        id: &Id<Agent>,
        patch: Object,
        expected: &Precondition,
    ) -> Result<Agent> {
        let mut patch = patch;
        // The alias counts as the field it stands for.
        if let Some(model) = patch.remove("model") {
            patch.entry("llm").or_insert(model);
        }
        self.check_webhook(patch.get("webhookUrl").and_then(Value::as_str)).await?;
        // What is wrong in any case is said before the agent is looked for.
        let named = AgentSettings::deserialize(json!({"name": "named"})).map_err(Error::internal)?;
        let mut tried: AgentSettings = overlay(&named, patch.clone())?;
        unalias(&mut tried.evaluation_config);
        tried.check_fields(&self.limits)?;
        tried.check_parts()?;
        tried.check_written(&self.ports.children, account).await?;
        let agent = self.change(account, id, patch, expected).await?;
        self.announce_schedule(&agent);
        Ok(agent)
    }

    async fn hold_in(&self, conn: &mut Conn, account: &AccountId, id: &str) -> Result<()> {
        self.hold_all_in(conn, &[(account, id)]).await
    }

    async fn delete(&self, caller: &Caller, id: &Id<Agent>, expected: &Precondition) -> Result<()> {
        let account = &caller.account;
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            self.hold_references_in(conn, account, id, &Object::new()).await?;
            let row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            expected.check(row.version)?;
            let lane = row.settings()?.lane();
            repository::delete(conn, account, id, now).await?;
            self.refer_in(conn, account, id, &Refers::default()).await?;
            cancel_in(conn, account, SCHEDULE, id).await?;
            // Nothing begins any more while its threads are ended, whoever does that.
            set_lane_in(conn, account, id, platform_jobs::LaneLimits { closed: true, ..lane }).await?;
            let payload = json!({"userUID": caller.user_uid});
            enqueue_in(conn, account, END_ALL, id, payload, When::After(Duration::ZERO)).await?;
            enqueue_in(conn, account, AGENT_DELETED, id, Value::Null, When::After(Duration::ZERO)).await?;
            Ok(())
        })
        .await?;
        drop(conn);
        self.ready.changed(id).await?;
        self.jobs.announce();
        Ok(())
    }

    async fn take_out(&self, account: &AccountId, id: &Id<Agent>) -> Result<()> {
        let mut conn = self.ports.db.conn().await?;
        for (kind, user) in users_in(&mut conn, account, (AGENT, id)).await? {
            let taking = conn.transaction::<_, Error, _>(async |conn| {
                self.ports.referrers.set_in(conn, account, (&kind, &user), (AGENT, id), false).await
            });
            match taking.await {
                Err(error) if error.code().kind() != ErrorKind::NotFound => return Err(error),
                _ => self.bus.tell(&format!("{kind}s"), &user).await?,
            }
        }
        Ok(())
    }

    async fn evaluation_config(&self, account: &AccountId, id: &Id<Agent>) -> Result<EvaluationConfig> {
        // Of one that was deleted its threads still know the settings; it has none any more.
        self.get(account, id).await?;
        let agent = self.ready(account, id, None).await?;
        let mut config = agent.settings.evaluation()?;
        config.evaluator_model = config.evaluator_model.or_else(|| {
            let judge = default_judge(&agent.profile.settings, &*self.ports.catalog).ok()?;
            Some(format!("{}:{}", judge.provider, judge.llm))
        });
        Ok(config)
    }

    async fn update_evaluation_config(
        &self,
        account: &AccountId,
        id: &Id<Agent>,
        mut patch: Object,
        expected: &Precondition,
    ) -> Result<EvaluationConfig> {
        unalias(&mut patch);
        let tried: EvaluationConfig = overlay(&EvaluationConfig::default(), patch.clone())?;
        check_evaluation(&tried, &*self.ports.catalog)?;
        let patch = Object::from_iter([("evaluationConfig".to_owned(), Value::Object(patch))]);
        self.change(account, id, patch, expected).await?;
        self.evaluation_config(account, id).await
    }

    async fn daily_costs(&self, account: &AccountId, id: &Id<Agent>, range: DailyRange) -> Result<Vec<CostRow>> {
        // The range is judged before it matters whose it is.
        let conn = self.ports.db.read().await?;
        let costs = costs::daily(conn.get(), account, id, &range, self.ports.clock.now()).await?;
        self.ready(account, id, None).await.map(|_| costs)
    }

    async fn monthly_costs(&self, account: &AccountId, id: &Id<Agent>, range: MonthlyRange) -> Result<Vec<CostRow>> {
        let conn = self.ports.db.read().await?;
        let costs = costs::monthly(conn.get(), account, id, &range, self.ports.clock.now()).await?;
        self.ready(account, id, None).await.map(|_| costs)
    }

    async fn cost_summary(&self, account: &AccountId, id: &Id<Agent>) -> Result<CostSummary> {
        self.ready(account, id, None).await?;
        let conn = self.ports.db.read().await?;
        costs::summary(conn.get(), account, id, self.ports.clock.now()).await
    }
}

impl PgAgentService {
    /// The run of a schedule is looked for when it is due.
    fn announce_schedule(&self, agent: &Agent) {
        if let Some(next) = agent.settings.periodic_execution.next_run_ms {
            let delay = next.since(self.ports.clock.now());
            // The table is looked at often enough; this is for what is due soon.
            if delay < Duration::from_mins(1) {
                self.jobs.announce_after(delay);
            }
        }
    }
}

/// Aliases of the configuration of judges count as the fields they stand for (contract 03 §7).
fn unalias(config: &mut Object) {
    for (alias, name) in [("evaluationModel", "evaluatorModel"), ("autoEvaluate", "enabled")] {
        if let Some(value) = config.remove(alias) {
            config.entry(name).or_insert(value);
        }
    }
}

/// Fields that the contract marks as merged keep what the patch does not name; `null` takes a key away.
fn merged(current: &AgentSettings, mut patch: Object) -> Result<Object> {
    let Value::Object(stored) = serde_json::to_value(current).map_err(Error::internal)? else { return Ok(patch) };
    for field in MERGED {
        let Some(given) = patch.get_mut(field) else { continue };
        let Value::Object(given) = given else { continue };
        if field == "evaluationConfig" {
            unalias(given);
        }
        let mut whole = stored.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
        merge(&mut whole, std::mem::take(given));
        *given = whole;
    }
    Ok(patch)
}

/// Puts the given keys in; those of `contextManagement` are merged, too (contract 02 §1).
fn merge(whole: &mut Object, given: Object) {
    for (name, value) in given {
        match (value, whole.get_mut(&name)) {
            (Value::Null, _) => {
                whole.remove(&name);
            }
            (Value::Object(given), Some(Value::Object(stored))) if name == "contextManagement" => merge(stored, given),
            (value, _) => {
                whole.insert(name, value);
            }
        }
    }
}
