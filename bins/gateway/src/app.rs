//! The composition root: which implements which.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use platform_agents::{
    AgentService, EvaluationService, PgAgentService, PgEvaluationService, PgSubAgents, PgThreadService, ThreadConfig,
    ThreadService,
};
use platform_auth::{
    AuthConfig, AuthService, ClientService, KeyService, OAuthService, PgAuthService, SessionService, UserService,
};
use platform_chat::{AssistantService, ChatConfig, ChatService, PgAssistantService, PgChatService};
use platform_conversation::{FileFetcher, Ports};
use platform_core::{Clock, Id, SystemClock, spawn};
use platform_db::{Bus, Db, DbConfig, Embedded};
use platform_docs::Docs;
use platform_egress::Egress;
use platform_jobs::{Jobs, JobsConfig, Work};
use platform_limits::RateLimits;
use platform_mail::Mailer;
use platform_models::Models;
use platform_projects::{PgProjectService, ProjectService};
use platform_realtime::{Realtime, Relay};
use platform_runtime::{Catalog, Model, Toolbox};
use platform_tenants::{PgTenantService, Quotas, TenantService, UsageService};
use platform_toolservers::{PgToolServerService, ToolServerService};
use platform_vault::{MasterKey, Vault};
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    children,
    commands::write_private,
    config::{Config, Role},
    cors::Cors,
    gate::Gate,
    health::Health,
    metrics::Metrics,
    purge,
};

/// What handlers use.
pub(crate) struct Services {
    pub auth: Arc<dyn AuthService>,
    pub keys: Arc<dyn KeyService>,
    pub sessions: Arc<dyn SessionService>,
    pub users: Arc<dyn UserService>,
    pub clients: Arc<dyn ClientService>,
    pub oauth: Arc<dyn OAuthService>,
    pub agents: Arc<dyn AgentService>,
    pub threads: Arc<dyn ThreadService>,
    pub evaluations: Arc<dyn EvaluationService>,
    pub assistants: Arc<dyn AssistantService>,
    pub chat: Arc<dyn ChatService>,
    pub tool_servers: Arc<dyn ToolServerService>,
    pub projects: Arc<dyn ProjectService>,
    pub tenants: Arc<dyn TenantService>,
    pub usage: Arc<dyn UsageService>,
    pub models: Arc<Models>,
    pub docs: Docs,
    pub db: Db,
    pub health: Health,
    pub limits: HttpLimits,
    pub gate: Gate,
    pub cors: Cors,
    /// Counts what happens, when somebody wants to know.
    pub metrics: Option<Arc<Metrics>>,
    /// Cancelled when the process shuts down: streams say `reconnect`.
    pub closing: CancellationToken,
}

/// Bounds of the HTTP side.
pub(crate) struct HttpLimits {
    pub json_bytes: usize,
    pub stream_lifetime: Duration,
    pub stream_keepalive: Duration,
}

/// The running platform.
pub struct App {
    pub(crate) services: Arc<Services>,
    pub(crate) jobs: Arc<Jobs>,
    works: Vec<Arc<dyn Work>>,
    embedded: Option<Embedded>,
    grace: Duration,
}

impl App {
    /// Builds everything, from the bottom up; `addr`: where it will listen.
    pub async fn build(config: &Config, addr: SocketAddr) -> Result<Self> {
        // What is wrong with the settings is said before anything is begun.
        let models = Models::start(config.models.clone()).await?;
        let (embedded, db) = database(config, false).await?;
        models.warn_if_offline();
        let bus = if embedded.is_some() { Bus::local() } else { Bus::shared(&db) };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let vault = Arc::new(vault(config)?);
        let auth = Arc::new(auth(config, addr, &db, &bus, Arc::clone(&vault))?);
        let projects = Arc::new(PgProjectService::new(&db, &bus, Arc::clone(&clock), auth.clone()));
        let metrics = config.metrics_addr.map(|_| Arc::new(Metrics::new()));
        let model: Arc<dyn Model> = Arc::clone(&models) as Arc<dyn Model>;
        let model = metrics.as_ref().map_or_else(|| Arc::clone(&model), |metrics| metrics.observe(Arc::clone(&model)));
        let quotas = Arc::new(Quotas::new(&db, &bus, model));
        let tenants = Arc::new(PgTenantService::new(&db, &bus, Arc::clone(&clock), Arc::clone(&quotas)));
        let jobs = Jobs::new(&db, &bus, Arc::clone(&clock), jobs_config(config), process_name());
        if embedded.is_some() {
            jobs.reclaim_all().await?;
        }
        let egress = Egress::new(config.egress.clone())?;
        let (children, for_tools) = children::pools()?;
        let tool_servers =
            PgToolServerService::new(&db, &bus, Arc::clone(&clock), vault, egress.clone(), for_tools, config.limits);
        let toolbox: Arc<dyn Toolbox> = Arc::clone(&tool_servers) as Arc<dyn Toolbox>;
        let relay = relay(config, jobs.owner()).await?;
        let realtime = Realtime::new(Arc::clone(&clock), config.stream_coalesce, relay);
        let catalog: Arc<dyn Catalog> = Arc::clone(&models) as Arc<dyn Catalog>;
        let ports = Ports { db: db.clone(), clock, catalog, budget: quotas, toolbox, children, realtime };
        let sub_agents = Arc::new(PgSubAgents::new(&db));
        let assistants =
            Arc::new(PgAssistantService::new(&ports, &bus, sub_agents.clone(), Arc::clone(&jobs), config.limits));
        let templates = assistants.clone();
        let agents =
            PgAgentService::new(&ports, &bus, templates, sub_agents, egress.clone(), Arc::clone(&jobs), config.limits);
        let files = FileFetcher::new(egress);
        let mailer = Arc::new(Mailer::new(&db, config.mail.as_ref()).map_err(anyhow::Error::msg)?);
        let threads = Arc::new(PgThreadService::new(
            ports.clone(),
            Arc::clone(&jobs),
            Arc::clone(&agents),
            Arc::clone(&mailer),
            tenants.clone(),
            files.clone(),
            thread_config(config, addr),
        ));
        let chat = Arc::new(PgChatService::new(
            ports.clone(),
            threads.hand_offs(),
            Arc::clone(&jobs),
            assistants.clone(),
            tenants.clone(),
            files,
            chat_config(config),
        ));
        let mut works = chat.works();
        let evaluations = Arc::new(PgEvaluationService::new(&threads));
        works.extend(threads.works());
        works.push(Arc::clone(&evaluations) as Arc<dyn Work>);
        works.push(mailer);
        jobs.start(if config.role == Role::Api { Vec::new() } else { works.clone() });
        spawn("usage windows", Arc::clone(&tenants).keep());
        spawn("purge", purge::hourly(db.clone(), ports.clock, config.event_keep));
        let docs = Docs::load(config.docs_dir.as_deref()).context("PLATFORM_DOCS_DIR")?;
        let limits = http_limits(config);
        // Alone on a database of its own a process need not ask anybody.
        let rates = RateLimits::new(embedded.is_none().then(|| db.clone()));
        let gate = Gate::new(rates, config);
        let cors = Cors::new(config.cors_origins.clone());
        let health = Health::new(db.clone(), Arc::clone(&jobs));
        let closing = CancellationToken::new();
        let services = Services {
            keys: auth.clone(),
            sessions: auth.clone(),
            users: auth.clone(),
            clients: auth.clone(),
            oauth: auth.clone(),
            auth,
            agents,
            threads,
            evaluations,
            assistants,
            chat,
            tool_servers,
            projects,
            usage: tenants.clone(),
            tenants,
            models,
            docs,
            db,
            health,
            limits,
            gate,
            cors,
            metrics,
            closing,
        };
        Ok(Self { services: Arc::new(services), jobs, works, embedded, grace: config.shutdown_grace })
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
        let bus = if embedded.is_some() { Bus::local() } else { Bus::shared(&db) };
        // A command signs and seals nothing.
        let vault = Arc::new(Vault::new(MasterKey::generate(), Vec::new()));
        let auth = auth(config, config.addr, &db, &bus, vault)?;
        let outcome = command(Arc::new(auth)).await;
        stop(embedded).await;
        outcome
    }

    /// From now on not ready; streams end; runs get the rest of the grace, then go back.
    pub(crate) async fn drain(&self) {
        self.services.health.ready.store(false, Ordering::Relaxed);
        self.services.closing.cancel();
        if let Err(error) = self.jobs.drain(&self.works, self.grace * 4 / 5).await {
            warn!(%error, "Runs could not be handed back; their leases end by themselves.");
        }
    }

    /// The last thing: the embedded database stops.
    pub(crate) async fn stop(self) {
        stop(self.embedded).await;
    }
}

async fn database(config: &Config, as_guest: bool) -> Result<(Option<Embedded>, Db)> {
    let embedded = match config.database_url {
        Some(_) => None,
        None => {
            let data_dir = config.data_dir.clone();
            let start = move || if as_guest { Embedded::join(&data_dir, &[]) } else { Embedded::start(&data_dir, &[]) };
            Some(tokio::task::spawn_blocking(start).await??)
        }
    };
    let url = match (&config.database_url, &embedded) {
        (Some(url), _) => url.clone(),
        (None, embedded) => embedded.as_ref().map(Embedded::url).unwrap_or_default(),
    };
    let db = Db::new(&DbConfig { url, pool: config.database_pool })?;
    let migrated = db.migrate().await.context(match config.database_url {
        Some(_) => "DATABASE_URL: the database cannot be used",
        None => "The embedded database cannot be used",
    });
    match migrated {
        Ok(0) => Ok((embedded, db)),
        Ok(count) => {
            info!(migrations = count, "Brought the schema up to date.");
            Ok((embedded, db))
        }
        Err(error) => {
            stop(embedded).await;
            Err(error)
        }
    }
}

async fn relay(config: &Config, process: &str) -> Result<Option<Relay>> {
    let Some(url) = &config.nats_url else { return Ok(None) };
    let relay = Relay::connect(url.expose_secret(), process.to_owned()).await.map_err(anyhow::Error::msg);
    relay.map(Some).context("PLATFORM_NATS_URL: it must be such as nats://host:4222")
}

fn jobs_config(config: &Config) -> JobsConfig {
    JobsConfig {
        lease: config.run_lease,
        heartbeat: config.run_heartbeat,
        concurrency: if config.role == Role::Api { 0 } else { config.worker_concurrency },
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

fn http_limits(config: &Config) -> HttpLimits {
    HttpLimits {
        json_bytes: config.max_json_bytes,
        stream_lifetime: config.stream_lifetime,
        stream_keepalive: config.stream_keepalive,
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
) -> platform_core::Result<PgAuthService> {
    let of_server = AuthConfig {
        key_prefix: config.key_prefix.clone(),
        issuer: config.url(addr),
        token_algorithm: config.token_algorithm,
        access_ttl: config.access_ttl,
        refresh_ttl: config.refresh_ttl,
        trusted: config.trusted_issuer.clone(),
    };
    PgAuthService::new(db, bus, Arc::new(SystemClock), vault, of_server)
}

/// The master keys: those of the settings, else one that is made in the data directory.
fn vault(config: &Config) -> Result<Vault> {
    let read = |text: &str| {
        let wrong = "The file secret-key in the data directory is damaged; put the key back, or remove the file \
            together with the secrets it sealed.";
        MasterKey::parse(text).context(wrong)
    };
    let current = match &config.secret_key {
        Some(key) => read(key.expose_secret())?,
        None if config.database_url.is_some() => {
            let missing = "PLATFORM_SECRET_KEY: with DATABASE_URL it is required, the same for all processes: 32 bytes in \
                base64, as `openssl rand -base64 32` prints.";
            bail!(missing);
        }
        None => {
            let path = config.data_dir.join("secret-key");
            if !path.exists() {
                write_private(&path, &MasterKey::generate_text())?;
            }
            read(&std::fs::read_to_string(path)?)?
        }
    };
    let previous = config.secret_key_previous.iter().map(|key| read(key.expose_secret())).collect::<Result<_, _>>()?;
    Ok(Vault::new(current, previous))
}

async fn stop(embedded: Option<Embedded>) {
    if let Some(embedded) = embedded {
        let _ = tokio::task::spawn_blocking(|| drop(embedded)).await;
    }
}

/// A name no other process has.
fn process_name() -> String {
    enum Process {}
    Id::<Process>::generate().into()
}
