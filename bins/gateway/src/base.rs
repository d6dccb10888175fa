//! What everything else stands on: the database, keys, models, the run queue, the way out.

use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt, sync::Arc};

use anyhow::{Context, Result, anyhow, bail};
use platform_core::{Clock, Id, SystemClock};
use platform_db::{Bus, Db, DbConfig, Embedded};
use platform_egress::Egress;
use platform_files::Store;
use platform_jobs::{Jobs, JobsConfig};
use platform_models::{Models, ModelsConfig};
use platform_realtime::Relay;
use platform_vault::{MasterKey, Vault};
use secrecy::ExposeSecret;
use tracing::info;

use crate::{
    bootstrap::write_private,
    config::{Config, Role},
    metrics::Metrics,
};

/// What everything else stands on.
pub(crate) struct Base {
    pub db: Db,
    pub bus: Bus,
    pub clock: Arc<dyn Clock>,
    pub vault: Arc<Vault>,
    pub egress: Egress,
    pub models: Arc<Models>,
    pub jobs: Arc<Jobs>,
    /// Where the bytes of files are.
    pub store: Store,
    /// To the other processes; `None` = there are none.
    pub relay: Option<Relay>,
    /// Figures, when somebody wants them.
    pub metrics: Option<Arc<Metrics>>,
    /// The database of its own that this process started.
    pub embedded: Option<Embedded>,
}

impl Base {
    /// Starts it.
    pub async fn start(config: &Config) -> Result<Self> {
        // What is wrong with the settings is said before anything is begun.
        let models = Models::start(config.models.clone()).await?;
        let (embedded, db) = database(config, false).await?;
        // The database makes its data directory such that its own user reaches it.
        let store = store(config)?;
        models.warn_if_offline();
        let bus = bus(embedded.as_ref(), &db);
        let vault = Arc::new(vault(config)?);
        let jobs = jobs(config, &db, &bus);
        if embedded.is_some() {
            jobs.reclaim_all().await?;
        }
        let relay = relay(config, jobs.owner()).await?;
        let metrics = config.metrics_addr.map(|_| Arc::new(Metrics::new()));
        let egress = Egress::new(config.egress.clone())?;
        let clock = Arc::new(SystemClock);
        Ok(Self { db, bus, clock, vault, egress, models, jobs, store, relay, metrics, embedded })
    }

    /// The same without anything behind it: enough to say what would be served.
    pub async fn idle(config: &Config) -> Result<Self> {
        let db = Db::new(&DbConfig { url: "postgres://localhost".to_owned(), pool: 1 })?;
        let (bus, models) = (Bus::local(), Models::start(ModelsConfig::default()).await?);
        let (jobs, egress) = (jobs(config, &db, &bus), Egress::new(config.egress.clone())?);
        let (clock, vault, store) = (Arc::new(SystemClock), no_vault(), Store::in_memory());
        Ok(Self { db, bus, clock, vault, egress, models, jobs, store, relay: None, metrics: None, embedded: None })
    }
}

/// A database of its own is nobody else's.
pub(crate) fn bus(embedded: Option<&Embedded>, db: &Db) -> Bus {
    if embedded.is_some() { Bus::local() } else { Bus::shared(db) }
}

/// Opens the store of files, and makes the directory that uploads are in until they are whole.
fn store(config: &Config) -> Result<Store> {
    let uploads = &config.http.upload_dir;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(uploads);
    made.with_context(|| format!("PLATFORM_DATA_DIR: {} cannot be made", uploads.display()))?;
    Store::open(&config.store).map_err(|error| anyhow!("PLATFORM_OBJECT_STORE_URL: {error}."))
}

/// For what signs and seals nothing.
pub(crate) fn no_vault() -> Arc<Vault> {
    Arc::new(Vault::new(MasterKey::generate(), Vec::new()))
}

/// Connects, and brings the schema up to date; `as_guest`: beside a server that runs.
pub(crate) async fn database(config: &Config, as_guest: bool) -> Result<(Option<Embedded>, Db)> {
    let embedded = match config.database_url {
        Some(_) => None,
        None => {
            let data_dir = config.data_dir.clone();
            if as_guest && !data_dir.join("lock").exists() {
                let wanted = "set PLATFORM_DATA_DIR or DATABASE_URL as your server has it, or start one there first";
                bail!("There is no platform in {}; {wanted}.", data_dir.display());
            }
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
        Some(_) => "DATABASE_URL (postgres://user:password@host/database): the database cannot be used",
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

fn jobs(config: &Config, db: &Db, bus: &Bus) -> Arc<Jobs> {
    let concurrency = if config.role == Role::Api { 0 } else { config.worker_concurrency };
    let jobs = JobsConfig { lease: config.run_lease, heartbeat: config.run_heartbeat, concurrency };
    Jobs::new(db, bus, Arc::new(SystemClock), jobs, process_name())
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

/// Stops a database of its own, if there is one.
pub(crate) async fn stop(embedded: Option<Embedded>) {
    if let Some(embedded) = embedded {
        let _ = tokio::task::spawn_blocking(|| drop(embedded)).await;
    }
}

/// A name no other process has.
fn process_name() -> String {
    enum Process {}
    Id::<Process>::generate().into()
}
