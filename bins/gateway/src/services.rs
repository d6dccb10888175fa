//! How each service is built of what it needs.

use std::{net::SocketAddr, sync::Arc};

use platform_access::Referrers;
use platform_agents::{PgAgentService, PgThreadAddresses, PgThreadService, PgThreadStates, ThreadConfig, task_tools};
use platform_auth::{AuthConfig, PgAuthService};
use platform_chat::{ChatConfig, PgAssistantService, PgChatService, PgChatStates, PgEarlierTurns};
use platform_conversation::{FileFetcher, Ports};
use platform_core::{Result, SystemClock};
use platform_db::{Bus, Db};
use platform_egress::Egress;
use platform_environments::{EnvironmentNeeds, PgEnvironments, sandbox_tools};
use platform_files::PgFileService;
use platform_integrations::{
    ConnectionCredentials, ConnectionNeeds, Connectors, PgConnections, PgIntegrations, TenantApps, TenantMcp,
};
use platform_knowledge::{DocumentLimits, KnowledgeNeeds, PgKnowledge, file_tools, knowledge_tools, skill_tools};
use platform_mail::Mailer;
use platform_memory::{MemoryNeeds, PgMemory, memory_tools};
use platform_runtime::{BuiltInTools, Model, Toolbox, finish_tools, time_tools};
use platform_speech::{PgSpeech, SpeechNeeds};
use platform_tenants::{PgTenantService, Quotas};
use platform_toolservers::{PgToolServerService, ToolServerNeeds, http_tools};
use platform_triggers::TriggerListener;
use platform_vault::Vault;
use platform_webhooks::{PgWebhooks, WebhookNeeds};
use tracing::warn;

use crate::{base::Base, children::Pools, config::Config, sandboxes};

/// Accounts, users, keys, sessions and OAuth; `documents`: the way out to those of applications.
pub(crate) fn auth(
    config: &Config,
    addr: SocketAddr,
    (db, bus): (&Db, &Bus),
    vault: Arc<Vault>,
    documents: Option<Egress>,
) -> Result<PgAuthService> {
    let config = AuthConfig {
        key_prefix: config.key_prefix.clone(),
        issuer: config.url(addr),
        token_algorithm: config.token_algorithm,
        access_ttl: config.access_ttl,
        refresh_ttl: config.refresh_ttl,
        trusted: config.trusted_issuer.clone(),
        registration: config.oauth_registration,
        documents,
    };
    PgAuthService::new(db, bus, Arc::new(SystemClock), vault, config)
}

/// What tenants may spend; their model calls are counted where somebody wants figures.
pub(crate) fn quotas(base: &Base) -> Arc<Quotas> {
    let model = Arc::clone(&base.models) as Arc<dyn Model>;
    let model = match &base.metrics {
        Some(metrics) => metrics.observe(model),
        None => model,
    };
    Arc::new(Quotas::new(&base.db, &base.bus, model))
}

pub(crate) fn files(base: &Base, config: &Config, addr: SocketAddr) -> Arc<PgFileService> {
    let files = PgFileService::new(&base.db, Arc::clone(&base.clock), base.store.clone(), &config.url(addr));
    Arc::new(files.keeping_of_end_users(config.limits.end_user_file_bytes))
}

/// Documents, folders and skills.
pub(crate) fn knowledge(
    base: &Base,
    config: &Config,
    files: &Arc<PgFileService>,
    referrers: &Referrers,
    pools: &Pools,
    quotas: &Arc<Quotas>,
) -> Arc<PgKnowledge> {
    Arc::new(PgKnowledge::new(KnowledgeNeeds {
        db: base.db.clone(),
        bus: base.bus.clone(),
        clock: Arc::clone(&base.clock),
        jobs: Arc::clone(&base.jobs),
        files: Arc::clone(files),
        referrers: referrers.clone(),
        extraction: pools.files.clone(),
        catalog: Arc::clone(&base.models) as _,
        budget: quotas.clone(),
        limits: DocumentLimits { bytes: config.max_document_bytes, versions: config.limits.document_versions },
    }))
}

pub(crate) fn memory(base: &Base, config: &Config, quotas: &Arc<Quotas>) -> Arc<PgMemory> {
    Arc::new(PgMemory::new(MemoryNeeds {
        db: base.db.clone(),
        bus: base.bus.clone(),
        clock: Arc::clone(&base.clock),
        turns: Arc::new(PgEarlierTurns::new(&base.db)),
        catalog: Arc::clone(&base.models) as _,
        budget: quotas.clone(),
        limits: config.memory_limits,
    }))
}

pub(crate) fn speech(
    base: &Base,
    config: &Config,
    files: &Arc<PgFileService>,
    pools: &Pools,
    quotas: &Arc<Quotas>,
) -> Arc<PgSpeech> {
    Arc::new(PgSpeech::new(SpeechNeeds {
        db: base.db.clone(),
        clock: Arc::clone(&base.clock),
        files: Arc::clone(files),
        egress: base.egress.reading(config.max_upload_bytes),
        children: Arc::clone(&pools.files.short),
        catalog: Arc::clone(&base.models) as _,
        budget: quotas.clone(),
        timeout: config.speech_timeout,
    }))
}

/// Connections to apps.
pub(crate) fn connections(base: &Base, config: &Config) -> Arc<PgConnections> {
    let apps = Connectors::load(config.connectors_dir.as_deref(), |app| config.app_clients.get(app).cloned());
    for app in config.app_clients.keys().filter(|app| apps.get(app).is_err()) {
        warn!(app, "A setting PLATFORM_APP_… names an app that no connector describes; look at its name.");
    }
    PgConnections::new(ConnectionNeeds {
        db: base.db.clone(),
        bus: base.bus.clone(),
        clock: Arc::clone(&base.clock),
        vault: Arc::clone(&base.vault),
        egress: base.egress.clone(),
        apps: Arc::new(apps),
        listener: Arc::new(TriggerListener(Arc::clone(&base.clock))),
        connect_ttl: config.connect_ttl,
        refresh_before: config.connection_refresh_before,
    })
}

pub(crate) fn tool_servers(
    base: &Base,
    config: &Config,
    pools: &Pools,
    referrers: &Referrers,
    connections: &Arc<PgConnections>,
) -> Arc<PgToolServerService> {
    PgToolServerService::new(ToolServerNeeds {
        db: base.db.clone(),
        bus: base.bus.clone(),
        clock: Arc::clone(&base.clock),
        vault: Arc::clone(&base.vault),
        egress: base.egress.clone(),
        expressions: Arc::clone(&pools.quick),
        documents: Arc::clone(&pools.descriptions),
        referrers: referrers.clone(),
        limits: config.limits,
        connections: Arc::new(ConnectionCredentials(Arc::clone(connections))),
    })
}

/// Environments and their machines.
pub(crate) fn environments(
    base: &Base,
    config: &Config,
    addr: SocketAddr,
    referrers: &Referrers,
) -> Arc<PgEnvironments> {
    PgEnvironments::new(EnvironmentNeeds {
        db: base.db.clone(),
        bus: base.bus.clone(),
        clock: Arc::clone(&base.clock),
        vault: Arc::clone(&base.vault),
        store: base.store.clone(),
        egress: base.egress.clone(),
        backend: sandboxes::backend(config, &base.egress),
        threads: Arc::new(PgThreadStates::new(&base.db)),
        chats: Arc::new(PgChatStates::new(&base.db)),
        referrers: referrers.clone(),
        limits: config.limits,
        settings: sandboxes::settings(config, addr),
    })
}

pub(crate) fn webhooks(base: &Base, config: &Config) -> Arc<PgWebhooks> {
    Arc::new(PgWebhooks::new(WebhookNeeds {
        db: base.db.clone(),
        bus: base.bus.clone(),
        clock: Arc::clone(&base.clock),
        vault: Arc::clone(&base.vault),
        egress: base.egress.clone(),
        threads: Arc::new(PgThreadAddresses::new(&base.db)),
        rules: config.deliveries.clone(),
        most: config.limits.webhooks,
    }))
}

/// The tools that an agent or assistant may have, from wherever they are.
pub(crate) fn toolbox(
    base: &Base,
    config: &Config,
    pools: &Pools,
    files: &Arc<PgFileService>,
    (knowledge, memory): (&Arc<PgKnowledge>, &Arc<PgMemory>),
    environments: &Arc<PgEnvironments>,
    (tool_servers, integrations): (&Arc<PgToolServerService>, &Arc<PgIntegrations>),
) -> Arc<Toolbox> {
    let built_in = vec![
        time_tools(Arc::clone(&base.clock)),
        task_tools(&base.db),
        http_tools(base.egress.clone(), Arc::clone(&base.vault), config.limits.tool_response_bytes),
        file_tools(Arc::clone(files), base.egress.reading(config.max_upload_bytes), pools.files.clone()),
        knowledge_tools(knowledge),
        skill_tools(knowledge),
        memory_tools(memory),
        sandbox_tools(environments),
        finish_tools(),
    ];
    Arc::new(Toolbox::new(vec![
        Arc::new(BuiltInTools::new(built_in, Arc::clone(&pools.quick))),
        tool_servers.clone(),
        Arc::new(TenantApps::new(integrations)),
        Arc::new(TenantMcp::new(integrations)),
    ]))
}

/// Threads of agents.
pub(crate) fn threads(
    base: &Base,
    config: &Config,
    addr: SocketAddr,
    ports: &Ports,
    agents: &Arc<PgAgentService>,
    (mailer, tenants): (&Arc<Mailer>, &Arc<PgTenantService>),
    fetcher: &FileFetcher,
) -> Arc<PgThreadService> {
    let config = ThreadConfig {
        max_attempts: config.run_max_attempts,
        approval_timeout: config.approval_timeout,
        async_tool_timeout: config.async_tool_timeout,
        max_depth: config.max_subagent_depth,
        frame_bytes: config.stream_frame_bytes,
        limits: config.limits,
        public_url: config.url(addr),
    };
    Arc::new(PgThreadService::new(
        ports.clone(),
        Arc::clone(&base.jobs),
        Arc::clone(agents),
        Arc::clone(mailer),
        tenants.clone(),
        fetcher.clone(),
        config,
    ))
}

/// Chats with assistants.
pub(crate) fn chat(
    base: &Base,
    config: &Config,
    ports: Ports,
    threads: &Arc<PgThreadService>,
    assistants: &Arc<PgAssistantService>,
    tenants: &Arc<PgTenantService>,
    fetcher: FileFetcher,
) -> Arc<PgChatService> {
    let config = ChatConfig {
        max_attempts: config.run_max_attempts,
        client_tool_timeout: config.client_tool_timeout,
        sync_timeout: config.sync_timeout,
        frame_bytes: config.stream_frame_bytes,
        limits: config.limits,
    };
    let (jobs, assistants, tenants) = (Arc::clone(&base.jobs), assistants.clone(), tenants.clone());
    Arc::new(PgChatService::new(ports, threads.hand_offs(), jobs, assistants, tenants, fetcher, config))
}
