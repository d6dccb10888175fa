//! Agents and threads over what they need, with a worker; one tool of agents waits for the test.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use platform_agents::{
    Agent, AgentService, NewThread, PgAgentService, PgSubAgents, PgThreadService, Thread, ThreadConfig, ThreadService,
    ThreadStart, ThreadState, ThreadView,
};
use platform_child::Children;
use platform_conversation::{AssistantSettings, AssistantTemplates, FileFetcher, Ports};
use platform_core::{AccountId, Caller, Clock, FairMemory, FieldLimits, Id, Precondition, Result, Timestamp};
use platform_db::{Bus, Db};
use platform_egress::{Egress, EgressRules};
use platform_files::{PgFileService, Store};
use platform_jobs::{Jobs, JobsConfig};
use platform_mail::Mailer;
use platform_models::{Models, ModelsConfig};
use platform_realtime::Realtime;
use platform_runtime::{
    BuiltInAction, BuiltInCall, BuiltInGroup, BuiltInTool, BuiltInTools, ChildPool, Model, ToolResult, Toolbox,
};
use platform_tenants::{PgTenantService, Quotas};
use platform_testing::{TestClock, full_caller};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);

/// A tool whose calls wait until the test lets them go.
pub struct Gate {
    pub calls: watch::Sender<usize>,
    pub is_open: watch::Sender<bool>,
}

impl Gate {
    /// Waits for its first call.
    pub async fn called(&self) {
        let mut calls = self.calls.subscribe();
        tokio::time::timeout(PATIENCE, calls.wait_for(|calls| *calls > 0)).await.expect("in time").expect("a call");
    }
}

#[async_trait]
impl BuiltInAction for Gate {
    async fn call(&self, _call: BuiltInCall<'_>) -> ToolResult {
        self.calls.send_modify(|calls| *calls += 1);
        let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        ToolResult::of(&json!("through"))
    }
}

struct NoTemplates;

#[async_trait]
impl AssistantTemplates for NoTemplates {
    async fn base(&self, _account: &AccountId, _identifier: &str) -> Result<Option<AssistantSettings>> {
        Ok(None)
    }
}

pub struct House {
    pub agents: Arc<PgAgentService>,
    pub threads: PgThreadService,
    pub gate: Arc<Gate>,
    pub caller: Caller,
}

pub async fn house(db: &Db) -> House {
    let (bus, limits) = (Bus::local(), FieldLimits::default());
    // It stands still: no day ends in a test.
    let clock: Arc<dyn Clock> = Arc::new(TestClock::at(Timestamp(1_800_000_000_000)));
    let models = Models::start(ModelsConfig::default()).await.expect("models");
    let config = JobsConfig { lease: Duration::from_mins(1), heartbeat: Duration::from_secs(10), concurrency: 4 };
    let jobs = Jobs::new(db, &bus, Arc::clone(&clock), config, AccountId::generate().into());
    let egress = Egress::new(EgressRules::default()).expect("a client");
    let gate = Arc::new(Gate { calls: watch::Sender::new(0), is_open: watch::Sender::new(false) });
    let does = Arc::clone(&gate) as Arc<dyn BuiltInAction>;
    let tools = vec![BuiltInTool::new("pass_gate", "Waits at the gate.", &json!({}), &[], does).once()];
    let group = BuiltInGroup { uid: "builtin-test", name: "Test", description: "", tools };
    // Nothing here is written by clients.
    let children = Arc::new(ChildPool::new(Children::new("/nowhere", ""), 1));
    let toolbox = Arc::new(Toolbox::new(vec![Arc::new(BuiltInTools::new(vec![group], Arc::clone(&children)))]));
    let quotas = Arc::new(Quotas::new(db, &bus, Arc::clone(&models) as Arc<dyn Model>));
    let tenants = Arc::new(PgTenantService::new(db, &bus, Arc::clone(&clock), Arc::clone(&quotas)));
    let ports = Ports {
        db: db.clone(),
        clock: Arc::clone(&clock),
        catalog: models,
        budget: quotas,
        recall: Arc::new(()),
        memory: Arc::new(()),
        dictations: Arc::new(()),
        environments: Arc::new(()),
        audience: Arc::new(()),
        toolbox,
        children,
        attached: FairMemory::new(0, 0),
        realtime: Realtime::new(Arc::clone(&clock), Duration::from_millis(25), None),
    };
    let (templates, sub_agents) = (Arc::new(NoTemplates), Arc::new(PgSubAgents::new(db)));
    let agents = PgAgentService::new(&ports, &bus, templates, sub_agents, egress.clone(), Arc::clone(&jobs), limits);
    let files = PgFileService::new(db, clock, Store::in_memory(), "http://localhost");
    let files = FileFetcher::new(&egress, Arc::new(files), Arc::new(()), 1 << 20);
    let config = ThreadConfig {
        max_attempts: 3,
        approval_timeout: Duration::from_hours(1),
        async_tool_timeout: Duration::from_hours(1),
        max_depth: 3,
        frame_bytes: 8 << 20,
        limits,
        public_url: "http://localhost".into(),
    };
    let mailer = Arc::new(Mailer::new(db, None).expect("no mail"));
    let threads = PgThreadService::new(ports, Arc::clone(&jobs), Arc::clone(&agents), mailer, tenants, files, config);
    jobs.start(threads.works());
    House { agents, threads, gate, caller: full_caller() }
}

impl House {
    pub async fn agent(&self, settings: Value) -> Agent {
        let settings = serde_json::from_value(settings).expect("settings");
        self.agents.create(&self.caller, settings, None).await.expect("made")
    }

    pub async fn change(&self, agent: &Agent, patch: Value, expected: &Precondition) -> Result<Agent> {
        let patch = serde_json::from_value(patch).expect("an object");
        self.agents.update(&self.caller.account, &Id::named(&agent.id), patch, expected).await
    }

    pub async fn start(&self, agent: &Agent, new: NewThread) -> Result<String> {
        let started = self.threads.start(&self.caller, &Id::named(&agent.id), new, None, false, None).await;
        started.and_then(ThreadStart::accepted).map(|started| started.id)
    }

    pub async fn thread(&self, id: &str) -> Thread {
        self.threads.get(&self.caller.account, &Id::named(id), ThreadView::default()).await.expect("a thread").0
    }

    /// The thread once it is in that state.
    pub async fn reach(&self, id: &str, state: ThreadState) -> Thread {
        let mut watcher = self.threads.watch(&self.caller.account, &Id::named(id), true).await.expect("a thread");
        let reached = async {
            loop {
                let has_more = watcher.next().await.expect("a frame").is_some();
                let thread = self.thread(id).await;
                if thread.state == state {
                    return thread;
                }
                assert!(has_more, "it ended as {:?}", thread.state);
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("it gets there")
    }
}
