use std::{
    collections::{HashMap, HashSet},
    future::ready,
    io,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use diesel_async::{AsyncConnection, RunQueryDsl};
use futures_util::{StreamExt, TryStreamExt, stream};
use platform_core::{AccountId, Code, Error, Id, Result, Timestamp, spawn};
use platform_db::Conn;
use platform_events::{Event, publish_in};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};
use utoipa::ToSchema;

use super::{
    archive,
    repository::{self, SnapshotRow},
};
use crate::{
    code,
    environment::{Environment, PgEnvironments, repository as environments},
    session::{Live, StartSandbox, Starter, patiently, random_id, repository as sessions},
};

/// Pieces that nobody names are kept for so long: whoever saves them may not have named them yet.
const KEPT_MS: i64 = 60 * 60 * 1000;
/// Pieces that are looked for at once among those that snapshots name.
const LOOKED_AT: usize = 10_000;
/// The clocks of two processes differ by no more.
const CLOCKS_DIFFER_MS: i64 = 5 * 60 * 1000;
/// Removals at once.
const REMOVED_AT_ONCE: usize = 8;
/// So long the saving of an account waits for removals; the next sweep goes on.
const HELD_UP: Duration = Duration::from_secs(5);
/// A transaction that waits says so often that it is alive.
const AWAKE: Duration = Duration::from_secs(2);

/// What is kept of a machine (contract 13 §2).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxSnapshot)]
pub struct Snapshot {
    /// Id.
    pub snapshot_id: String,
    /// Its environment.
    pub environment_id: String,
    /// Its tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// `creating`, `ready`, `restoring` or `failed`.
    pub status: String,
    /// Of the whole disk.
    pub size_bytes: i64,
    /// What the machine ran.
    pub runtime: String,
    /// Memory of the machine.
    pub memory_mib: i32,
    /// The machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_sandbox_id: Option<String>,
    /// From 1, for the environment or the tenant.
    pub generation: i32,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Begun at.
    pub creation_timestamp_ms: Timestamp,
    /// Last changed at.
    pub last_edit_timestamp_ms: Timestamp,
}

impl From<SnapshotRow> for Snapshot {
    fn from(row: SnapshotRow) -> Self {
        Self {
            snapshot_id: row.id,
            environment_id: row.environment_id,
            tenant_id: row.tenant_id,
            status: row.status,
            size_bytes: row.size_bytes,
            runtime: row.runtime,
            memory_mib: row.memory_mib,
            source_sandbox_id: row.source_sandbox_id,
            generation: row.generation,
            error: row.error,
            creation_timestamp_ms: Timestamp(row.created_ms),
            last_edit_timestamp_ms: Timestamp(row.edited_ms),
        }
    }
}

/// A snapshot that is being made.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStarted {
    /// Id.
    pub snapshot_id: String,
    /// `creating`.
    pub status: String,
}

/// A snapshot that is being saved.
pub(crate) type NewSnapshot = SnapshotRow;

/// Snapshots of environments. `ENVIRONMENT_NOT_FOUND` comes from all.
#[async_trait]
pub trait SnapshotService: Send + Sync {
    /// Makes a new machine, runs its init script and saves it. `SNAPSHOTS_DISABLED`, `SESSION_ACTIVE`,
    /// `SNAPSHOT_SAVE_IN_PROGRESS`.
    async fn initialize(self: Arc<Self>, account: &AccountId, id: &Id<Environment>) -> Result<SnapshotStarted>;
    /// All, newest first.
    async fn snapshots(&self, account: &AccountId, id: &Id<Environment>) -> Result<Vec<Snapshot>>;
    /// Makes the former one current again. `SNAPSHOT_NOT_FOUND`.
    async fn rollback(&self, account: &AccountId, id: &Id<Environment>, tenant: Option<&str>) -> Result<Snapshot>;
    /// The latest of each tenant.
    async fn of_tenants(&self, account: &AccountId, id: &Id<Environment>) -> Result<Vec<Snapshot>>;
    /// Gives a tenant a copy of the environment's. `CONFLICT` when there is none.
    async fn initialize_tenant(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        tenant: &str,
    ) -> Result<SnapshotStarted>;
    /// Deletes those of a tenant. `SNAPSHOT_NOT_FOUND`.
    async fn delete_tenant(&self, account: &AccountId, id: &Id<Environment>, tenant: &str) -> Result<()>;
}

fn in_progress() -> Error {
    let message = "A snapshot is being saved already; wait until it is ready.";
    Error::new(code::SNAPSHOT_SAVE_IN_PROGRESS, message)
}

fn none_found() -> Error {
    Error::new(code::SNAPSHOT_NOT_FOUND, "There is no such snapshot of this environment.")
}

async fn begin_in(conn: &mut Conn, mut row: SnapshotRow) -> Result<NewSnapshot> {
    let account = AccountId::named(&row.account_id);
    repository::lock_pieces(conn, &account).await?;
    let (environment, tenant) = (&row.environment_id, row.tenant_id.as_deref());
    row.generation = repository::next_generation(conn, &account, environment, tenant).await?;
    // The answer to a first try may have been lost.
    let is_begun = repository::insert(conn, &row).await? || repository::status(conn, &row).await?.is_some();
    if is_begun { Ok(row) } else { Err(in_progress()) }
}

async fn finish_in(
    conn: &mut Conn,
    account: &AccountId,
    snapshot: &SnapshotRow,
    size: i64,
    pieces: Vec<u8>,
    now: Timestamp,
) -> Result<()> {
    repository::lock_pieces(conn, account).await?;
    if !repository::set_ready(conn, account, &snapshot.id, size, pieces).await? {
        let is_ready = repository::status(conn, snapshot).await?.as_deref() == Some("ready");
        let gone = || Error::new(Code::CONFLICT, "its environment was deleted meanwhile");
        return if is_ready { Ok(()) } else { Err(gone()) };
    }
    repository::make_current(conn, snapshot, now).await?;
    let mut data = json!({"snapshotId": snapshot.id, "environmentId": snapshot.environment_id});
    if let Some(tenant) = &snapshot.tenant_id {
        data["tenantId"] = tenant.as_str().into();
    }
    let project = environments::project(conn, account, &snapshot.environment_id).await?;
    let (tenant, project) = (snapshot.tenant_id.as_deref(), project.as_deref());
    publish_in(conn, vec![Event { tenant, project, ..Event::new(account, "snapshot.ready", data) }], now).await
}

impl PgEnvironments {
    /// Notes that a snapshot is being saved, once. `SNAPSHOT_SAVE_IN_PROGRESS`.
    pub(crate) async fn begin(&self, row: SnapshotRow) -> Result<NewSnapshot> {
        let mut conn = self.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| begin_in(conn, row).await).await
    }

    fn blank(&self, account: &AccountId, environment: &str, tenant: Option<&str>) -> SnapshotRow {
        let now = self.clock.now();
        SnapshotRow {
            account_id: account.as_str().to_owned(),
            id: random_id("snap_"),
            environment_id: environment.to_owned(),
            tenant_id: tenant.map(str::to_owned),
            status: "creating".to_owned(),
            is_current: false,
            size_bytes: 0,
            runtime: "default".to_owned(),
            memory_mib: 0,
            source_sandbox_id: None,
            generation: 0,
            error: None,
            owner: self.machines.owner.clone(),
            created_ms: now.0,
            edited_ms: now.0,
        }
    }

    /// What a machine is to be saved as.
    pub(crate) fn snapshot_of(&self, live: &Live) -> NewSnapshot {
        let session = &live.session;
        let tenant = Some(session.lane.as_str()).filter(|lane| !lane.is_empty());
        let blank = self.blank(&live.account, &session.environment_id, tenant);
        let (runtime, sandbox) = (session.runtime.clone(), session.sandbox_id.clone());
        SnapshotRow { runtime, memory_mib: session.memory_mib, source_sandbox_id: Some(sandbox), ..blank }
    }

    /// Saves a machine that has ended. What fails changes nothing but the snapshot itself.
    pub(crate) async fn save(&self, live: &Live, snapshot: NewSnapshot) -> Result<()> {
        if let Err(error) = patiently(|| self.pack(live, &snapshot)).await {
            warn!(snapshot = snapshot.id, %error, "A sandbox could not be saved.");
            patiently(|| self.fail(&snapshot, &error)).await?;
            return Err(error);
        }
        Ok(())
    }

    async fn pack(&self, live: &Live, snapshot: &NewSnapshot) -> Result<()> {
        let account = &live.account;
        let known = repository::pieces_near(&mut *self.db.conn().await?, snapshot).await?;
        let known: HashSet<String> = known.iter().flat_map(|pieces| archive::hashes(pieces)).collect();
        let (size, pieces) = archive::save(&self.store, account, &live.machine, known).await?;
        let mut conn = self.db.conn().await?;
        let now = self.clock.now();
        let finishing =
            conn.transaction::<_, Error, _>(async |conn| finish_in(conn, account, snapshot, size, pieces, now).await);
        finishing.await?;
        info!(snapshot = snapshot.id, bytes = size, "Saved a sandbox.");
        Ok(())
    }

    async fn fail(&self, snapshot: &NewSnapshot, error: &Error) -> Result<()> {
        repository::set_failed(&mut *self.db.conn().await?, snapshot, error.message(), self.clock.now()).await
    }

    /// What was on a machine, as an archive.
    pub(crate) async fn archive(&self, account: &AccountId, id: &str) -> Result<Box<dyn io::Read + Send>> {
        let pieces = repository::pieces(&mut *self.db.conn().await?, account, id).await?;
        Ok(archive::read(&self.store, account, &pieces.ok_or_else(none_found)?))
    }

    /// Makes a machine, and saves it, in the background.
    pub(crate) fn make_later(self: &Arc<Self>, snapshot: NewSnapshot) {
        let environments = Arc::clone(self);
        spawn("make a snapshot", async move {
            if let Err(error) = environments.make_first(snapshot).await {
                warn!(%error, "A snapshot could not be made.");
            }
        });
    }

    async fn make_first(self: &Arc<Self>, snapshot: NewSnapshot) -> Result<()> {
        let account = &AccountId::named(&snapshot.account_id);
        let request = StartSandbox { timeout_minutes: Some(30), ..StartSandbox::default() };
        let by = Starter { kind: "api", id: &snapshot.id, conversation: None, depth: 0, is_fresh: true };
        let started = self.start_machine(account, &snapshot.environment_id, request, by).await;
        let (machine, live) = match started {
            Ok(started) => started,
            Err(error) => {
                patiently(|| self.fail(&snapshot, &error)).await?;
                return Err(error);
            }
        };
        let exit_code = machine.init_script.as_ref().and_then(|ran| ran["exitCode"].as_i64());
        if let Some(code) = exit_code.filter(|code| *code != 0) {
            let error = Error::new(Code::BAD_REQUEST, format!("The init script ended with {code}."));
            patiently(|| self.fail(&snapshot, &error)).await?;
            self.end_unsaved(&live, "The init script failed; nothing was saved.").await;
            return Ok(());
        }
        self.end_saved(&live, snapshot).await;
        Ok(())
    }

    /// Removes pieces that no snapshot names.
    pub async fn sweep_pieces(&self) -> Result<()> {
        let before = Timestamp(self.clock.now().0 - KEPT_MS);
        self.store.remove_unfinished("snapshots", before).await?;
        let mut found = self.store.older("snapshots/", before);
        let mut old: Option<(AccountId, HashMap<String, String>)> = None;
        while let Some(key) = found.try_next().await? {
            let mut parts = key.split('/').skip(1);
            let account = parts.next().and_then(|account| AccountId::parse(account).ok());
            let Some((account, hash)) = account.zip(parts.nth(1).map(str::to_owned)) else { continue };
            if let Some((of, pieces)) = old.take_if(|(of, pieces)| *of != account || pieces.len() >= LOOKED_AT) {
                self.remove_unnamed(&of, pieces).await?;
            }
            old.get_or_insert_with(|| (account, HashMap::new())).1.insert(hash, key);
        }
        match old {
            Some((account, pieces)) => self.remove_unnamed(&account, pieces).await,
            None => Ok(()),
        }
    }

    /// Removes those of some pieces, key by hash, that no snapshot of their account names, as far as that takes a moment:
    /// nothing of the account is saved meanwhile.
    async fn remove_unnamed(&self, account: &AccountId, mut pieces: HashMap<String, String>) -> Result<()> {
        let since = Timestamp(self.clock.now().0 - CLOCKS_DIFFER_MS);
        repository::without_named(&mut *self.db.conn().await?, account, Timestamp(0), &mut pieces).await?;
        if pieces.is_empty() {
            return Ok(());
        }
        let mut conn = self.db.conn().await?;
        let removing = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock_pieces(conn, account).await?;
            if repository::is_any_saving(conn, account).await? {
                return Ok(());
            }
            repository::without_named(conn, account, since, &mut pieces).await?;
            let until = Instant::now() + HELD_UP;
            let keys = stream::iter(pieces.values()).take_while(|_| ready(Instant::now() < until));
            let removed = keys.map(Ok).try_for_each_concurrent(REMOVED_AT_ONCE, |key| self.store.delete(key));
            let mut removed = pin!(removed);
            loop {
                match timeout(AWAKE, &mut removed).await {
                    Ok(removed) => return removed,
                    // A transaction that stands still is ended, and its lock with it.
                    Err(_) => drop(diesel::sql_query("SELECT").execute(conn).await?),
                }
            }
        });
        removing.await
    }
}

#[async_trait]
impl SnapshotService for PgEnvironments {
    async fn initialize(self: Arc<Self>, account: &AccountId, id: &Id<Environment>) -> Result<SnapshotStarted> {
        let row = self.require(account, id).await?;
        let config = row.settings()?.sandbox_config;
        if !config.snapshot_enabled {
            let message = "This environment keeps no snapshots; switch sandboxConfig.snapshotEnabled on first.";
            return Err(Error::new(code::SNAPSHOTS_DISABLED, message));
        }
        if let Some(live) = sessions::live(&mut *self.db.conn().await?, account, id, "").await? {
            let message = "The environment has a sandbox that runs; stop it first.";
            return Err(Error::new(code::SESSION_ACTIVE, message)
                .with("sandboxId", live.sandbox_id)
                .with("expiresAt", live.expires_ms));
        }
        let memory_mib = i32::try_from(config.memory_mib).unwrap_or(i32::MAX);
        let blank = self.blank(account, id, None);
        let snapshot = self.begin(SnapshotRow { runtime: config.runtime, memory_mib, ..blank }).await?;
        let started = SnapshotStarted { snapshot_id: snapshot.id.clone(), status: "creating".to_owned() };
        self.make_later(snapshot);
        Ok(started)
    }

    async fn snapshots(&self, account: &AccountId, id: &Id<Environment>) -> Result<Vec<Snapshot>> {
        self.require(account, id).await?;
        let rows = repository::list(&mut *self.db.conn().await?, account, id).await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    async fn rollback(&self, account: &AccountId, id: &Id<Environment>, tenant: Option<&str>) -> Result<Snapshot> {
        self.require(account, id).await?;
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let rolling = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock_pieces(conn, account).await?;
            let former = repository::former(conn, account, id, tenant).await?.ok_or_else(none_found)?;
            repository::make_current(conn, &former, now).await?;
            Ok(Snapshot { last_edit_timestamp_ms: now, ..former.into() })
        });
        rolling.await
    }

    async fn of_tenants(&self, account: &AccountId, id: &Id<Environment>) -> Result<Vec<Snapshot>> {
        let mut seen = HashSet::new();
        let all = self.snapshots(account, id).await?;
        Ok(all
            .into_iter()
            .filter(|snapshot| snapshot.tenant_id.clone().is_some_and(|tenant| seen.insert(tenant)))
            .collect())
    }

    async fn initialize_tenant(
        &self,
        account: &AccountId,
        id: &Id<Environment>,
        tenant: &str,
    ) -> Result<SnapshotStarted> {
        let mut checks = platform_core::Checks::default();
        checks.tenants(Some(tenant), None);
        checks.finish()?;
        let row = self.require(account, id).await?;
        if !row.settings()?.sandbox_config.snapshot_enabled {
            let message = "This environment keeps no snapshots; switch sandboxConfig.snapshotEnabled on first.";
            return Err(Error::new(code::SNAPSHOTS_DISABLED, message));
        }
        let (blank, now) = (self.blank(account, id, Some(tenant)), self.clock.now());
        let mut conn = self.db.conn().await?;
        let copying = conn.transaction::<_, Error, _>(async |conn| {
            if let Some(live) = sessions::live(conn, account, id, tenant).await? {
                let message = "This tenant has a sandbox that runs; stop it first.";
                return Err(Error::new(code::SESSION_ACTIVE, message)
                    .with("sandboxId", live.sandbox_id)
                    .with("expiresAt", live.expires_ms));
            }
            let base = repository::current(conn, account, id, None).await?.ok_or_else(|| {
                let message = "There is no snapshot of the environment to copy; initialize it first.";
                Error::new(Code::CONFLICT, message)
            })?;
            let SnapshotRow { runtime, memory_mib, source_sandbox_id, .. } = base;
            let snapshot = begin_in(conn, SnapshotRow { runtime, memory_mib, source_sandbox_id, ..blank }).await?;
            let pieces = repository::pieces(conn, account, &base.id).await?.ok_or_else(none_found)?;
            finish_in(conn, account, &snapshot, base.size_bytes, pieces, now).await?;
            Ok(snapshot)
        });
        let snapshot = copying.await?;
        Ok(SnapshotStarted { snapshot_id: snapshot.id, status: "creating".to_owned() })
    }

    async fn delete_tenant(&self, account: &AccountId, id: &Id<Environment>, tenant: &str) -> Result<()> {
        self.require(account, id).await?;
        let mut conn = self.db.conn().await?;
        let deleting = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock_pieces(conn, account).await?;
            match repository::delete_of_tenant(conn, account, id, tenant).await? {
                0 => Err(none_found()),
                _ => Ok(()),
            }
        });
        deleting.await
    }
}
