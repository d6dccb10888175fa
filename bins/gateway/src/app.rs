//! The composition root: which implements which.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use platform_access::{Referrer, Referrers};
use platform_agents::{
    AgentReferrer, PgAgentService, PgEvaluationService, PgSubAgents, PgThreadAddresses, PgThreadService,
    PgThreadStates, ThreadConfig, task_tools,
};
use platform_auth::{AuthConfig, PgAuthService};
use platform_chat::{AssistantReferrer, ChatConfig, PgAssistantService, PgChatService, PgChatStates, PgEarlierTurns};
use platform_conversation::{FileFetcher, Ports};
use platform_core::{FairMemory, SystemClock};
use platform_db::{Bus, Db, Embedded};
use platform_docs::Docs;
use platform_egress::Egress;
use platform_environments::{EnvironmentNeeds, EnvironmentReferrer, PgEnvironments, sandbox_tools};
use platform_files::PgFileService;
use platform_http::{Group, Http, HttpConfig, Needs, Observer, Table};
use platform_integrations::{
    ConnectionCredentials, ConnectionNeeds, Connectors, PgConnections, PgIntegrations, TenantApps, TenantMcp,
};
use platform_jobs::{Jobs, Work};
use platform_knowledge::{DocumentLimits, KnowledgeNeeds, PgKnowledge, file_tools, knowledge_tools, skill_tools};
use platform_limits::RateLimits;
use platform_mail::Mailer;
use platform_mcp::{McpNeeds, McpReferrer, PgMcpGateway};
use platform_memory::{MemoryNeeds, PgMemory, memory_tools};
use platform_models::Models;
use platform_projects::PgProjectService;
use platform_realtime::Realtime;
use platform_runtime::{BuiltInTools, Model, Toolbox, finish_tools, time_tools};
use platform_speech::{PgSpeech, SpeechNeeds};
use platform_tenants::{PgTenantService, Quotas};
use platform_toolservers::{PgToolServerService, ToolServerNeeds, http_tools};
use platform_triggers::{PgTriggers, TriggerListener, TriggerNeeds, TriggerReferrer};
use platform_vault::Vault;
use platform_webhooks::{PgWebhooks, WebhookNeeds};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    base::{Base, bus, database, no_vault, stop},
    children::Pools,
    config::{Config, Role},
    groups::{
        agents, assistants, chats, console, docs, documents, environments, files, folders, health, integrations, keys,
        mcp, memory, models, oauth, projects, sessions, skills, speech, tenant_integrations, tenants, threads,
        tool_servers, triggers, usage, webhooks,
    },
    health::Health,
    leaving::Leaving,
    metrics::Metrics,
    module::Module,
    purge, sandboxes,
};

/// Memory of the files that models are shown, in all and of one account.
const ATTACHED: (usize, usize) = (256 << 20, 128 << 20);

/// The running platform.
pub struct App {
    pub(crate) http: Arc<Http>,
    pub(crate) auth: Arc<PgAuthService>,
    pub(crate) models: Arc<Models>,
    pub(crate) health: Arc<Health>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) db: Db,
    pub(crate) metrics: Option<Arc<Metrics>>,
    pub(crate) files: Arc<PgFileService>,
    environments: Arc<PgEnvironments>,
    mcp: Arc<PgMcpGateway>,
    closing: CancellationToken,
    /// Nothing goes on beside requests and runs any more.
    stopping: CancellationToken,
    works: Vec<Arc<dyn Work>>,
    embedded: Option<Embedded>,
    grace: Duration,
}

/// Everything, built and not begun.
struct Platform {
    auth: Arc<PgAuthService>,
    health: Arc<Health>,
    projects: Arc<PgProjectService>,
    files: Arc<PgFileService>,
    environments: Arc<PgEnvironments>,
    mcp: Arc<PgMcpGateway>,
    modules: Vec<Module>,
}

impl Platform {
    /// Builds everything, from the bottom up; `addr`: where it will listen.
    #[expect(clippy::too_many_lines, reason = "what implements what is one list, read from top to bottom")]
    fn build(config: &Config, addr: SocketAddr, base: &mut Base) -> Result<Self> {
        let relay = base.relay.take();
        let Base { db, bus, clock, vault, egress, models, jobs, store, metrics, .. } = base;
        let files = PgFileService::new(db, Arc::clone(clock), store.clone(), &config.url(addr));
        let files = Arc::new(files.keeping_of_end_users(config.limits.end_user_file_bytes));
        let auth = Arc::new(auth(config, addr, db, bus, Arc::clone(vault), Some(egress.clone()))?);
        let projects = Arc::new(PgProjectService::new(db, bus, Arc::clone(clock), auth.clone()));
        let model = Arc::clone(models) as Arc<dyn Model>;
        let model = metrics.as_ref().map_or_else(|| Arc::clone(&model), |metrics| metrics.observe(Arc::clone(&model)));
        let quotas = Arc::new(Quotas::new(db, bus, model));
        let tenants = Arc::new(PgTenantService::new(db, bus, Arc::clone(clock), Arc::clone(&quotas)));
        let referrers = Referrers::new([
            Arc::new(EnvironmentReferrer) as Arc<dyn Referrer>,
            Arc::new(AgentReferrer),
            Arc::new(AssistantReferrer),
            Arc::new(McpReferrer),
            Arc::new(TriggerReferrer),
        ]);
        let pools = Pools::new()?;
        let knowledge = Arc::new(PgKnowledge::new(KnowledgeNeeds {
            db: db.clone(),
            bus: bus.clone(),
            clock: Arc::clone(clock),
            jobs: Arc::clone(jobs),
            files: Arc::clone(&files),
            referrers: referrers.clone(),
            extraction: Arc::clone(&pools.files),
            catalog: Arc::clone(models) as _,
            budget: quotas.clone(),
            limits: DocumentLimits { bytes: config.max_document_bytes, versions: config.limits.document_versions },
        }));
        let memory = Arc::new(PgMemory::new(MemoryNeeds {
            db: db.clone(),
            bus: bus.clone(),
            clock: Arc::clone(clock),
            turns: Arc::new(PgEarlierTurns::new(db)),
            catalog: Arc::clone(models) as _,
            budget: quotas.clone(),
            limits: config.memory_limits,
        }));
        let speech = Arc::new(PgSpeech::new(SpeechNeeds {
            db: db.clone(),
            clock: Arc::clone(clock),
            files: Arc::clone(&files),
            egress: egress.reading(config.max_upload_bytes),
            children: Arc::clone(&pools.files),
            catalog: Arc::clone(models) as _,
            budget: quotas.clone(),
            timeout: config.speech_timeout,
        }));
        let connectors = Connectors::load(config.connectors_dir.as_deref(), |app| config.app_clients.get(app).cloned());
        for app in config.app_clients.keys().filter(|app| connectors.get(app).is_err()) {
            warn!(app, "There is a client for an app that there is not; look at the name in PLATFORM_APP_….");
        }
        let connections = PgConnections::new(ConnectionNeeds {
            db: db.clone(),
            bus: bus.clone(),
            clock: Arc::clone(clock),
            vault: Arc::clone(vault),
            egress: egress.clone(),
            apps: Arc::new(connectors),
            listener: Arc::new(TriggerListener(Arc::clone(clock))),
            connect_ttl: config.connect_ttl,
            refresh_before: config.connection_refresh_before,
        });
        let tool_servers = PgToolServerService::new(ToolServerNeeds {
            db: db.clone(),
            bus: bus.clone(),
            clock: Arc::clone(clock),
            vault: Arc::clone(vault),
            egress: egress.clone(),
            expressions: Arc::clone(&pools.quick),
            documents: pools.descriptions,
            referrers: referrers.clone(),
            limits: config.limits,
            connections: Arc::new(ConnectionCredentials(Arc::clone(&connections))),
        });
        let environments = PgEnvironments::new(EnvironmentNeeds {
            db: db.clone(),
            bus: bus.clone(),
            clock: Arc::clone(clock),
            vault: Arc::clone(vault),
            store: store.clone(),
            egress: egress.clone(),
            backend: sandboxes::backend(config, egress),
            threads: Arc::new(PgThreadStates::new(db)),
            chats: Arc::new(PgChatStates::new(db)),
            referrers,
            limits: config.limits,
            settings: sandboxes::settings(config),
        });
        let integrations = Arc::new(PgIntegrations::new(&connections, &tool_servers, jobs, &config.url(addr)));
        let built_in = vec![
            time_tools(Arc::clone(clock)),
            task_tools(db),
            http_tools(egress.clone(), Arc::clone(vault), config.limits.tool_response_bytes),
            file_tools(Arc::clone(&files), egress.reading(config.max_upload_bytes), pools.files),
            knowledge_tools(&knowledge),
            skill_tools(&knowledge),
            memory_tools(&memory),
            sandbox_tools(&environments),
            finish_tools(),
        ];
        let built_in = Arc::new(BuiltInTools::new(built_in, Arc::clone(&pools.quick)));
        let toolbox = Arc::new(Toolbox::new(vec![
            built_in,
            tool_servers.clone(),
            Arc::new(TenantApps::new(&integrations)),
            Arc::new(TenantMcp::new(&integrations)),
        ]));
        let webhooks = Arc::new(PgWebhooks::new(WebhookNeeds {
            db: db.clone(),
            bus: bus.clone(),
            clock: Arc::clone(clock),
            vault: Arc::clone(vault),
            egress: egress.clone(),
            threads: Arc::new(PgThreadAddresses::new(db)),
            rules: config.deliveries.clone(),
            most: config.limits.webhooks,
        }));
        let ports = Ports {
            db: db.clone(),
            clock: Arc::clone(clock),
            catalog: Arc::clone(models) as _,
            budget: quotas.clone(),
            recall: knowledge.clone(),
            memory: memory.clone(),
            dictations: speech.clone(),
            environments: environments.clone(),
            toolbox: Arc::clone(&toolbox),
            children: pools.quick,
            attached: FairMemory::new(ATTACHED.0, ATTACHED.1),
            realtime: Realtime::new(Arc::clone(clock), config.stream_coalesce, relay),
            audience: webhooks.clone(),
        };
        let sub_agents = Arc::new(PgSubAgents::new(db));
        let assistants =
            Arc::new(PgAssistantService::new(&ports, bus, sub_agents.clone(), Arc::clone(jobs), config.limits));
        let templates = assistants.clone();
        let agents =
            PgAgentService::new(&ports, bus, templates, sub_agents, egress.clone(), Arc::clone(jobs), config.limits);
        let fetcher = FileFetcher::new(egress, Arc::clone(&files), knowledge.clone(), config.max_upload_bytes);
        let mailer = Arc::new(Mailer::new(db, config.mail.as_ref()).map_err(anyhow::Error::msg)?);
        let threads = Arc::new(PgThreadService::new(
            ports.clone(),
            Arc::clone(jobs),
            Arc::clone(&agents),
            Arc::clone(&mailer),
            tenants.clone(),
            fetcher.clone(),
            thread_config(config, addr),
        ));
        let chat = Arc::new(PgChatService::new(
            ports,
            threads.hand_offs(),
            Arc::clone(jobs),
            assistants.clone(),
            tenants.clone(),
            fetcher,
            chat_config(config),
        ));
        let evaluations = Arc::new(PgEvaluationService::new(&threads));
        let triggers = Arc::new(PgTriggers::new(TriggerNeeds {
            db: db.clone(),
            bus: bus.clone(),
            clock: Arc::clone(clock),
            vault: Arc::clone(vault),
            jobs: Arc::clone(jobs),
            integrations: Arc::clone(&integrations),
            tool_servers: tool_servers.clone(),
            agents: agents.clone(),
            threads: threads.clone(),
            assistants: assistants.clone(),
            chat: chat.clone(),
            tenants: tenants.clone(),
            budget: quotas.clone(),
            limits: config.limits,
            public_url: config.url(addr),
            rules: config.triggers.clone(),
        }));
        let gateway = PgMcpGateway::new(McpNeeds {
            db: db.clone(),
            bus: bus.clone(),
            clock: Arc::clone(clock),
            vault: Arc::clone(vault),
            tool_servers: tool_servers.clone(),
            integrations: Arc::clone(&integrations),
            chat: chat.clone(),
            threads: threads.clone(),
            budget: quotas,
        });
        let leaving = Arc::new(Leaving {
            environments: environments.clone(),
            integrations: Arc::clone(&integrations),
            gateway: Arc::clone(&gateway),
        });
        let docs = Docs::load(config.docs_dir.as_deref()).context("PLATFORM_DOCS_DIR")?;
        let health = Arc::new(Health::new(db.clone(), Arc::clone(jobs)));
        let modules = vec![
            health::module(&health, models),
            console::module(),
            docs::module(docs),
            oauth::module(&auth, &projects, &leaving),
            keys::module(&auth, &leaving),
            sessions::module(&auth, &assistants, &tenants),
            models::module(models),
            projects::module(projects::Services {
                agents: agents.clone(),
                assistants: assistants.clone(),
                chat: chat.clone(),
                documents: knowledge.clone(),
                environments: environments.clone(),
                projects: projects.clone(),
                threads: threads.clone(),
                tool_servers: tool_servers.clone(),
                usage: tenants.clone(),
            }),
            tenants::module(tenants::Services {
                chat: chat.clone(),
                leaving: Arc::clone(&leaving),
                memory: memory.clone(),
                sessions: auth.clone(),
                tenants: tenants.clone(),
                threads: threads.clone(),
            }),
            usage::module(&tenants),
            documents::module(&knowledge, config.max_upload_bytes),
            folders::module(&knowledge),
            skills::module(&knowledge),
            files::module(&files, config.http.upload_dir.clone(), config.max_upload_bytes, config.sweep_interval),
            speech::module(&speech, config.max_upload_bytes),
            tool_servers::module(&tool_servers, &toolbox, &integrations),
            integrations::module(&integrations, &auth, tool_servers.clone()),
            tenant_integrations::module(&integrations, &assistants, &auth),
            assistants::module(&assistants, &memory, &triggers),
            chats::module(&chat, &assistants),
            memory::module(&memory, &assistants),
            agents::module(&agents, &threads, &triggers),
            threads::module(&threads, &evaluations),
            mcp::module(&gateway, &auth, config, addr),
            environments::module(&environments, config.sweep_interval),
            webhooks::module(&webhooks),
            triggers::module(&triggers),
            Module { works: vec![mailer], purges: purge::shared(config.event_keep), ..Module::default() },
        ];
        Ok(Self { auth, health, projects, files, environments, mcp: gateway, modules })
    }
}

impl App {
    /// Builds everything and begins to work; `addr`: where it will listen.
    pub async fn start(config: &Config, addr: SocketAddr) -> Result<Self> {
        let mut base = Base::start(config).await?;
        let Platform { auth, health, projects, files, environments, mcp, modules } =
            Platform::build(config, addr, &mut base)?;
        if base.embedded.is_some() {
            environments.reclaim_all().await?;
        }
        let Base { db, clock, models, jobs, metrics, embedded, .. } = base;
        let (mut groups, mut resources, mut works) = (Vec::new(), Vec::new(), Vec::new());
        let (mut keepers, mut purges) = (Vec::new(), Vec::new());
        for module in modules {
            groups.extend(module.groups);
            resources.extend(module.resources);
            works.extend(module.works);
            keepers.extend(module.keepers);
            purges.extend(module.purges);
        }
        if config.role == Role::Worker {
            groups = vec![health::probes(&health)];
        }
        let closing = CancellationToken::new();
        let needs = Needs {
            auth: auth.clone(),
            projects,
            resources,
            db: db.clone(),
            // Alone on a database of its own a process need not ask anybody.
            rates: RateLimits::new(embedded.is_none().then(|| db.clone())),
            observer: metrics.clone().map(|metrics| metrics as Arc<dyn Observer>),
            closing: closing.clone(),
        };
        let http =
            Arc::new(Http::new(HttpConfig { public_url: config.url(addr), ..config.http.clone() }, needs, groups)?);
        jobs.start(if config.role == Role::Api { Vec::new() } else { works.clone() });
        keepers.push(purge::hourly(db.clone(), clock, purges));
        let stopping = CancellationToken::new();
        for keeper in keepers {
            keeper.start(stopping.clone());
        }
        let grace = config.shutdown_grace;
        Ok(Self {
            http,
            auth,
            models,
            health,
            jobs,
            db,
            metrics,
            files,
            environments,
            mcp,
            closing,
            stopping,
            works,
            embedded,
            grace,
        })
    }

    /// The `OpenAPI` document of what these settings would serve; nothing listens, and no database is asked.
    pub(crate) async fn document(config: &Config) -> Result<String> {
        let mut base = Base::idle(config).await?;
        let modules = Platform::build(config, config.addr, &mut base)?.modules;
        let groups: Vec<Group> = modules.into_iter().flat_map(|module| module.groups).collect();
        Ok(Table::new(groups)?.document()?.to_owned())
    }

    /// Brings the schema up to date and stops.
    pub(crate) async fn migrate(config: &Config) -> Result<()> {
        let (embedded, _) = database(config, false).await?;
        stop(embedded).await;
        println!("The schema is up to date.");
        Ok(())
    }

    /// Runs a command on accounts or keys, beside a running server or alone.
    pub(crate) async fn with_auth(
        config: &Config,
        command: impl AsyncFnOnce(Arc<PgAuthService>) -> Result<()>,
    ) -> Result<()> {
        let (embedded, db) = database(config, true).await?;
        let bus = bus(embedded.as_ref(), &db);
        // A command signs and seals nothing.
        let auth = auth(config, config.addr, &db, &bus, no_vault(), None)?;
        let outcome = command(Arc::new(auth)).await;
        stop(embedded).await;
        outcome
    }

    /// From now on not ready; streams end; runs get the rest of the grace, then go back.
    pub(crate) async fn drain(&self) {
        self.health.ready.store(false, Ordering::Relaxed);
        self.closing.cancel();
        if let Err(error) = self.jobs.drain(&self.works, self.grace * 4 / 5).await {
            warn!(%error, "Runs could not be handed back; their leases end by themselves.");
        }
        self.environments.drain(self.grace / 5).await;
    }

    /// The last thing: the embedded database stops.
    pub(crate) async fn stop(self) {
        self.mcp.drain().await;
        self.stopping.cancel();
        stop(self.embedded).await;
    }
}

fn thread_config(config: &Config, addr: SocketAddr) -> ThreadConfig {
    ThreadConfig {
        max_attempts: config.run_max_attempts,
        approval_timeout: config.approval_timeout,
        async_tool_timeout: config.async_tool_timeout,
        max_depth: config.max_subagent_depth,
        frame_bytes: config.stream_frame_bytes,
        limits: config.limits,
        public_url: config.url(addr),
    }
}

fn chat_config(config: &Config) -> ChatConfig {
    ChatConfig {
        max_attempts: config.run_max_attempts,
        client_tool_timeout: config.client_tool_timeout,
        sync_timeout: config.sync_timeout,
        frame_bytes: config.stream_frame_bytes,
        limits: config.limits,
    }
}

fn auth(
    config: &Config,
    addr: SocketAddr,
    db: &Db,
    bus: &Bus,
    vault: Arc<Vault>,
    documents: Option<Egress>,
) -> Result<PgAuthService> {
    let of_server = AuthConfig {
        key_prefix: config.key_prefix.clone(),
        issuer: config.url(addr),
        token_algorithm: config.token_algorithm,
        access_ttl: config.access_ttl,
        refresh_ttl: config.refresh_ttl,
        trusted: config.trusted_issuer.clone(),
        registration: config.oauth_registration,
        documents,
    };
    Ok(PgAuthService::new(db, bus, Arc::new(SystemClock), vault, of_server)?)
}
