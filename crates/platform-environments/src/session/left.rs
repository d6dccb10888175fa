//! What processes that are gone left behind.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use diesel_async::AsyncConnection;
use platform_core::{Error, Result, spawn};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    keep::{End, KEEP, LOOK, STOPPED},
    live::Live,
    repository::{self, SessionRow},
};
use crate::{
    environment::{PgEnvironments, Variables},
    snapshot,
};

/// How often machines are removed that processes left behind.
const CLEAR: Duration = Duration::from_hours(1);

impl PgEnvironments {
    /// Goes on with what lost processes had begun. A backend may take long to answer: nothing else waits for this.
    pub(super) async fn look_after_left(self: &Arc<Self>) {
        let mut cleared: Option<Instant> = None;
        while !self.machines.closing.load(Ordering::Acquire) {
            // By then whatever ran on a machine whose process was killed is dead.
            tokio::time::sleep(LOOK * KEEP).await;
            let looked = async {
                self.resume_saves().await?;
                self.make_again().await?;
                if cleared.is_none_or(|at| at.elapsed() >= CLEAR) {
                    let saving = repository::saving(&mut *self.db.conn().await?).await?;
                    self.backend.clear(&saving.into_iter().collect::<HashSet<_>>()).await;
                    cleared = Some(Instant::now());
                }
                Ok::<_, Error>(())
            };
            if let Err(error) = looked.await {
                warn!(%error, "What lost processes left of sandboxes could not be looked after; trying again.");
            }
        }
    }

    /// Saves what was to be saved of machines whose process is gone, where their disks lie here.
    async fn resume_saves(self: &Arc<Self>) -> Result<()> {
        let left = repository::left_saving(&mut *self.db.conn().await?, &self.machines.owner).await?;
        for session in left {
            let account = session.account();
            let Ok(environment) = self.require(&account, &session.environment_id).await else { continue };
            let config = environment.settings()?.sandbox_config;
            let Some(machine) = self.backend.adopt(&session.sandbox_id).await else { continue };
            let slot = self.machines.slot(&account, &session.id);
            let mut conn = self.db.conn().await?;
            if !repository::take_over(&mut conn, &account, &session.id, &self.machines.owner).await? {
                continue;
            }
            let snapshot = snapshot::of_sandbox(&mut conn, &account, &session.sandbox_id).await?;
            drop(conn);
            info!(sandbox = session.sandbox_id, "Saving a sandbox whose process is gone.");
            let end = End { saves: snapshot.as_ref().is_none_or(|of| of.status == "creating"), ..end_of(&session) };
            let live = Live::new(account, session, config, machine, Variables::new(), slot);
            live.begin_end();
            self.machines.insert(&live);
            let environments = Arc::clone(self);
            spawn("save a sandbox", async move { environments.end(&live, end, snapshot).await });
        }
        Ok(())
    }

    /// What a machine of this process was to become is made anew by another.
    pub(super) async fn leave_unmade(&self, live: &Live) -> Result<()> {
        let (id, now) = (&live.session.started_by_id, self.clock.now());
        snapshot::leave_unmade(&mut *self.db.conn().await?, &live.account, id, now).await
    }

    /// Makes snapshots anew that lost processes were making of new machines.
    async fn make_again(self: &Arc<Self>) -> Result<()> {
        let now = self.clock.now();
        let unmade = snapshot::take_unmade(&mut *self.db.conn().await?, &self.machines.owner, now).await?;
        for snapshot in unmade {
            info!(snapshot = snapshot.id, "Making a snapshot anew whose process is gone.");
            self.make_later(snapshot);
        }
        Ok(())
    }

    /// Notes that machines have failed whose process is silent.
    pub(super) async fn fail_lost(&self) -> Result<()> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            for session in repository::lost(conn).await? {
                warn!(sandbox = session.sandbox_id, "The process that had a sandbox is gone, and the sandbox with it.");
                snapshot::leave_unmade(conn, &session.account(), &session.started_by_id, now).await?;
                let error = "The server process that had the machine ended; what was not saved is lost.".to_owned();
                self.close_in(conn, &session, "failed", "error", Some(error)).await?;
            }
            snapshot::fail_forgotten(conn, now).await
        })
        .await
    }

    /// What no process has any more; called where this process is the only one.
    pub async fn reclaim_all(&self) -> Result<()> {
        repository::disown_all(&mut *self.db.conn().await?).await?;
        self.fail_lost().await
    }
}

/// How a machine was ending that was being saved.
fn end_of(session: &SessionRow) -> End {
    match session.stopped_reason.as_deref() {
        Some("expired") => End { status: "expired", reason: "expired", ..STOPPED },
        Some("disk-limit") => End { reason: "disk-limit", ..STOPPED },
        _ => STOPPED,
    }
}
