//! The composition root: which implements which, and what each part brings.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use platform_access::{Referrer, Referrers};
use platform_agents::{AgentReferrer, PgAgentService, PgEvaluationService, PgSubAgents};
use platform_auth::PgAuthService;
use platform_chat::{AssistantReferrer, PgAssistantService};
use platform_conversation::{FileFetcher, Ports};
use platform_core::FairMemory;
use platform_docs::Docs;
use platform_environments::{EnvironmentReferrer, PgEnvironments};
use platform_files::PgFileService;
use platform_integrations::PgIntegrations;
use platform_mail::Mailer;
use platform_mcp::{McpNeeds, McpReferrer, PgMcpGateway};
use platform_projects::PgProjectService;
use platform_realtime::Realtime;
use platform_tenants::PgTenantService;
use platform_triggers::{PgTriggers, TriggerNeeds, TriggerReferrer};

use crate::{
    base::Base,
    children::Pools,
    config::Config,
    groups::{
        agents, assistants, chats, console, docs, documents, environments, files, folders, health, integrations, keys,
        mcp, memory, models, oauth, projects, sessions, skills, speech, tenant_integrations, tenants, threads,
        tool_servers, triggers, usage, webhooks,
    },
    health::Health,
    leaving::Leaving,
    module::Module,
    purge, services,
};

/// Memory of the files that models are shown, in all and of one account.
const ATTACHED: (usize, usize) = (256 << 20, 128 << 20);

/// Everything, built and not begun.
pub(crate) struct App {
    pub auth: Arc<PgAuthService>,
    pub health: Arc<Health>,
    pub projects: Arc<PgProjectService>,
    pub files: Arc<PgFileService>,
    pub environments: Arc<PgEnvironments>,
    pub tenants: Arc<PgTenantService>,
    pub mcp: Arc<PgMcpGateway>,
    pub modules: Vec<Module>,
}

impl App {
    /// Builds everything, from the bottom up; `addr`: where it will listen.
    #[expect(clippy::too_many_lines, reason = "what implements what is one list, read from top to bottom")]
    pub fn build(config: &Config, addr: SocketAddr, base: &mut Base) -> Result<Self> {
        let relay = base.relay.take();
        let base = &*base;
        let Base { db, bus, clock, vault, egress, models, jobs, .. } = base;
        let pools = Pools::new()?;
        let referrers = Referrers::new([
            Arc::new(EnvironmentReferrer) as Arc<dyn Referrer>,
            Arc::new(AgentReferrer),
            Arc::new(AssistantReferrer),
            Arc::new(McpReferrer),
            Arc::new(TriggerReferrer),
        ]);
        let auth = services::auth(config, addr, (db, bus), Arc::clone(vault), Some(egress.clone()))?;
        let auth = Arc::new(auth);
        let projects = Arc::new(PgProjectService::new(db, bus, Arc::clone(clock), auth.clone()));
        let quotas = services::quotas(base);
        let tenants = Arc::new(PgTenantService::new(db, bus, Arc::clone(clock), Arc::clone(&quotas)));
        let files = services::files(base, config, addr);
        let knowledge = services::knowledge(base, config, &files, &referrers, &pools, &quotas);
        let memory = services::memory(base, config, &quotas);
        let speech = services::speech(base, config, &files, &pools, &quotas);
        let connections = services::connections(base, config);
        let tool_servers = services::tool_servers(base, config, &pools, &referrers, &connections);
        let environments = services::environments(base, config, addr, &referrers);
        let integrations = Arc::new(PgIntegrations::new(&connections, &tool_servers, jobs, &config.url(addr)));
        let toolbox = services::toolbox(
            base,
            config,
            &pools,
            &files,
            (&knowledge, &memory),
            &environments,
            (&tool_servers, &integrations),
        );
        let webhooks = services::webhooks(base, config);
        let ports = Ports {
            db: db.clone(),
            clock: Arc::clone(clock),
            catalog: Arc::clone(models) as _,
            referrers,
            budget: quotas.clone(),
            recall: knowledge.clone(),
            memory: memory.clone(),
            dictations: speech.clone(),
            environments: environments.clone(),
            toolbox: Arc::clone(&toolbox),
            children: Arc::clone(&pools.quick),
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
        let threads = services::threads(base, config, addr, &ports, &agents, (&mailer, &tenants), &fetcher);
        let chat = services::chat(base, config, ports, &threads, &assistants, &tenants, fetcher);
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
            assistants: assistants.clone(),
            chat: chat.clone(),
            agents: agents.clone(),
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
            usage::module(&tenants, config.run_lease),
            documents::module(&knowledge, config.max_upload_bytes),
            folders::module(&knowledge),
            skills::module(&knowledge),
            files::module(&files, config.http.upload_dir.clone(), config.max_upload_bytes, config.sweep_interval),
            speech::module(&speech, config.max_upload_bytes),
            tool_servers::module(&tool_servers, &toolbox, &integrations),
            integrations::module(&integrations, &auth, tool_servers.clone()),
            tenant_integrations::module(&integrations, &assistants, &auth),
            assistants::module(&assistants, &memory, &triggers, db),
            chats::module(&chat, &assistants),
            memory::module(&memory, &assistants),
            agents::module(&agents, &threads, &triggers, db),
            threads::module(&threads, &evaluations),
            mcp::module(&gateway, &auth, config, addr),
            environments::module(&environments, config.sweep_interval),
            webhooks::module(&webhooks),
            triggers::module(&triggers),
            Module { works: vec![mailer], purges: purge::shared(config.event_keep), ..Module::default() },
        ];
        Ok(Self { auth, health, projects, files, environments, tenants, mcp: gateway, modules })
    }
}
