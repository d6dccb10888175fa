use std::{collections::HashSet, io, sync::Arc};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use futures_util::TryStreamExt;
use platform_core::{AccountId, Code, Error, Id, Result, Timestamp, spawn};
use platform_events::{Event, publish_in};
use serde::Serialize;
use serde_json::json;
use tracing::{info, warn};
use utoipa::ToSchema;

use super::{
    archive,
    repository::{self, SnapshotRow},
};
use crate::{
    code,
    environment::{Environment, PgEnvironments, repository as environments},
    session::{Live, StartSandbox, Starter, random_id, repository as sessions},
};

/// Pieces that nobody names are kept for so long: whoever saves them may not have named them yet.
const KEPT_MS: i64 = 60 * 60 * 1000;

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

impl PgEnvironments {
    /// Notes that a snapshot is being saved. `SNAPSHOT_SAVE_IN_PROGRESS`.
    async fn begin(&self, mut row: SnapshotRow) -> Result<NewSnapshot> {
        let account = AccountId::parse(&row.account_id).expect("only ids are stored");
        let mut conn = self.db.conn().await?;
        let beginning = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock_pieces(conn, &account).await?;
            let (environment, tenant) = (&row.environment_id, row.tenant_id.as_deref());
            row.generation = repository::next_generation(conn, &account, environment, tenant).await?;
            if repository::insert(conn, &row).await? { Ok(row) } else { Err(in_progress()) }
        });
        beginning.await
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

    /// Begins to save a machine.
    pub(crate) async fn begin_save(&self, live: &Live) -> Result<NewSnapshot> {
        let session = &live.session;
        let tenant = Some(session.lane.as_str()).filter(|lane| !lane.is_empty());
        let blank = self.blank(&live.account, &session.environment_id, tenant);
        let (runtime, sandbox) = (session.runtime.clone(), session.sandbox_id.clone());
        self.begin(SnapshotRow { runtime, memory_mib: session.memory_mib, source_sandbox_id: Some(sandbox), ..blank })
            .await
    }

    /// Saves a machine that has ended. What fails changes nothing but the snapshot itself.
    pub(crate) async fn save(&self, live: &Live, snapshot: NewSnapshot) -> Result<()> {
        let (account, now) = (&live.account, self.clock.now());
        let saved = async {
            let known = {
                let mut conn = self.db.conn().await?;
                repository::all_pieces(&mut conn, account, Some(&snapshot.environment_id)).await?
            };
            let known: HashSet<String> = known.iter().flat_map(|pieces| archive::hashes(pieces)).collect();
            let (size, pieces) = archive::save(&self.store, account, &live.machine, known).await?;
            self.finish(account, &snapshot, size, pieces).await?;
            info!(snapshot = snapshot.id, bytes = size, "Saved a sandbox.");
            Ok::<_, Error>(())
        };
        if let Err(error) = saved.await {
            warn!(snapshot = snapshot.id, %error, "A sandbox could not be saved.");
            let mut conn = self.db.conn().await?;
            repository::set_failed(&mut conn, &snapshot, error.message(), now).await?;
            return Err(error);
        }
        Ok(())
    }

    async fn finish(&self, account: &AccountId, snapshot: &SnapshotRow, size: i64, pieces: Vec<u8>) -> Result<()> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let finishing = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock_pieces(conn, account).await?;
            if !repository::set_ready(conn, account, &snapshot.id, size, pieces).await? {
                return Err(Error::new(Code::CONFLICT, "its environment was deleted meanwhile"));
            }
            repository::make_current(conn, snapshot, now).await?;
            let mut data = json!({"snapshotId": snapshot.id, "environmentId": snapshot.environment_id});
            if let Some(tenant) = &snapshot.tenant_id {
                data["tenantId"] = tenant.as_str().into();
            }
            let project = environments::project(conn, account, &snapshot.environment_id).await?;
            let (tenant, project) = (snapshot.tenant_id.as_deref(), project.as_deref());
            publish_in(conn, vec![Event { tenant, project, ..Event::new(account, "snapshot.ready", data) }], now).await
        });
        finishing.await
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
        let account = &AccountId::parse(&snapshot.account_id).expect("only ids are stored");
        let request = StartSandbox { timeout_minutes: Some(30), ..StartSandbox::default() };
        let by = Starter { kind: "api", id: &snapshot.id, conversation: None, depth: 0, is_fresh: true };
        let started = self.start_machine(account, &snapshot.environment_id, request, by).await;
        let live = match started {
            Ok((_, live)) => live,
            Err(error) => {
                let mut conn = self.db.conn().await?;
                repository::set_failed(&mut conn, &snapshot, error.message(), self.clock.now()).await?;
                return Err(error);
            }
        };
        self.end_saved(&live, snapshot).await;
        Ok(())
    }

    /// Removes pieces that no snapshot names.
    pub async fn sweep_pieces(&self) -> Result<()> {
        let before = Timestamp(self.clock.now().0 - KEPT_MS);
        let mut old: Vec<(AccountId, String, String)> = Vec::new();
        let mut found = self.store.older("snapshots/", before);
        while let Some(key) = found.try_next().await? {
            let mut parts = key.split('/').skip(1);
            let account = parts.next().and_then(|account| AccountId::parse(account).ok());
            if let Some((account, hash)) = account.zip(parts.nth(1).map(str::to_owned)) {
                old.push((account, hash, key));
            }
        }
        for of_account in old.chunk_by(|one, other| one.0 == other.0) {
            let account = &of_account[0].0;
            let mut conn = self.db.conn().await?;
            let sweeping = conn.transaction::<_, Error, _>(async |conn| {
                repository::lock_pieces(conn, account).await?;
                if repository::is_any_saving(conn, account).await? {
                    return Ok(());
                }
                let named = repository::all_pieces(conn, account, None).await?;
                let named: HashSet<String> = named.iter().flat_map(|pieces| archive::hashes(pieces)).collect();
                for (_, _, key) in of_account.iter().filter(|(_, hash, _)| !named.contains(hash)) {
                    self.store.delete(key).await?;
                }
                Ok(())
            });
            sweeping.await?;
        }
        Ok(())
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
        let mut conn = self.db.conn().await?;
        if let Some(live) = sessions::live(&mut conn, account, id, tenant).await? {
            let message = "This tenant has a sandbox that runs; stop it first.";
            return Err(Error::new(code::SESSION_ACTIVE, message)
                .with("sandboxId", live.sandbox_id)
                .with("expiresAt", live.expires_ms));
        }
        let base = repository::current(&mut conn, account, id, None).await?;
        drop(conn);
        let Some(base) = base else {
            let message = "There is no snapshot of the environment to copy; initialize it first.";
            return Err(Error::new(Code::CONFLICT, message));
        };
        let blank = self.blank(account, id, Some(tenant));
        let (runtime, memory_mib, source_sandbox_id) = (base.runtime, base.memory_mib, base.source_sandbox_id);
        let snapshot = self.begin(SnapshotRow { runtime, memory_mib, source_sandbox_id, ..blank }).await?;
        let pieces =
            repository::pieces(&mut *self.db.conn().await?, account, &base.id).await?.ok_or_else(none_found)?;
        self.finish(account, &snapshot, base.size_bytes, pieces).await?;
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
