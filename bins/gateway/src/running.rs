//! The running platform: begun, drained, stopped; and what commands do without it.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::Result;
use platform_auth::PgAuthService;
use platform_db::{Db, Embedded};
use platform_environments::PgEnvironments;
use platform_files::PgFileService;
use platform_http::{Group, Http, HttpConfig, Needs, Observer, Table};
use platform_jobs::{Jobs, Work};
use platform_limits::RateLimits;
use platform_mcp::PgMcpGateway;
use platform_models::Models;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    app::App,
    base::{Base, bus, database, no_vault, stop},
    config::{Config, Role},
    groups::health,
    health::Health,
    metrics::Metrics,
    purge, sandboxes, services,
};

/// The running platform.
pub struct Running {
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

impl Running {
    /// Builds everything and begins to work; `addr`: where it will listen.
    pub async fn start(config: &Config, addr: SocketAddr) -> Result<Self> {
        let mut base = Base::start(config).await?;
        let App { auth, health, projects, files, environments, tenants, mcp, modules } =
            App::build(config, addr, &mut base)?;
        let is_alone = base.embedded.is_some();
        if is_alone {
            environments.reclaim_all().await?;
        }
        // Before runs are taken over that the last process left behind.
        tenants.release_reservations(if is_alone { Duration::ZERO } else { config.run_lease / 4 }).await?;
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
            proxied: sandboxes::hosts(config, &environments),
            closing: closing.clone(),
        };
        let http =
            Arc::new(Http::new(HttpConfig { public_url: config.url(addr), ..config.http.clone() }, needs, groups)?);
        jobs.start(if config.role == Role::Api { Vec::new() } else { works.clone() });
        keepers.push(purge::hourly(db.clone(), clock, purges));
        let stopping = CancellationToken::new();
        for keeper in keepers {
            keeper.start(&closing, &stopping);
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
        let modules = App::build(config, config.addr, &mut base)?.modules;
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
        let auth = services::auth(config, config.addr, (&db, &bus), no_vault(), None)?;
        let outcome = command(Arc::new(auth)).await;
        stop(embedded).await;
        outcome
    }

    /// From now on not ready; streams end; runs get the rest of the grace, then go back. When that is over.
    pub(crate) async fn drain(&self) -> Instant {
        let until = Instant::now() + self.grace;
        self.health.ready.store(false, Ordering::Relaxed);
        self.closing.cancel();
        if let Err(error) = self.jobs.drain(&self.works, self.grace * 4 / 5).await {
            warn!(%error, "Runs could not be handed back; their leases end by themselves.");
        }
        self.environments.drain(self.grace / 5).await;
        until
    }

    /// The last thing: what was sent is noted, until then at the latest, and the embedded database stops.
    pub(crate) async fn stop(self, until: Instant) {
        self.mcp.drain().await;
        self.stopping.cancel();
        let _ = timeout_at(until, platform_core::finished()).await;
        stop(self.embedded).await;
    }
}
