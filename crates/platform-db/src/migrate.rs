use std::time::Duration;

use diesel_async::{AsyncMigrationHarness, AsyncPgConnection, SimpleAsyncConnection};
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};
use platform_core::{Error, Result};
use tracing::warn;

use crate::Db;

/// All migrations of the workspace, compiled in.
const MIGRATIONS: EmbeddedMigrations = embed_migrations!("../../migrations");

/// Guards the schema while several processes start at once.
const MIGRATION_LOCK: &str = "SELECT pg_advisory_lock(7238411)";

/// How PostgreSQL says that somebody uses a table that is to change.
const IN_USE: [&str; 2] = ["lock timeout", "deadlock detected"];
/// A change of the schema waits briefly for them, since everybody else waits behind it, and makes way; later it waits
/// longer, as an autovacuum makes way only for those who do.
const BRIEF_TRIES: usize = 20;
const TRIES: usize = 60;

impl Db {
    /// Brings the schema up to date; returns how many migrations ran. Safe to run from many processes, and beside those
    /// that work.
    pub async fn migrate(&self) -> Result<usize> {
        let mut conn = self.dedicated().await?;
        conn.batch_execute(MIGRATION_LOCK).await?;
        let (mut ran, mut tries) = (0, 0);
        loop {
            let patience = if tries < BRIEF_TRIES { "300ms" } else { "3s" };
            conn.batch_execute(&format!("SET lock_timeout = '{patience}'")).await?;
            let stepped = tokio::task::spawn_blocking(|| next(conn)).await.map_err(Error::internal)?;
            conn = stepped.0;
            match stepped.1 {
                Ok(false) => return Ok(ran),
                Ok(true) => (ran, tries) = (ran + 1, 0),
                Err(error) if tries < TRIES && IN_USE.iter().any(|said| error.to_string().contains(said)) => {
                    tries += 1;
                    warn!(%error, "A table is in use while the schema is to change; trying again.");
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                Err(error) => return Err(Error::internal(error)),
            }
        }
    }
}

type Stepped = std::result::Result<bool, Box<dyn std::error::Error + Send + Sync>>;

/// Runs the next migration, if there is one.
fn next(conn: AsyncPgConnection) -> (AsyncPgConnection, Stepped) {
    let mut harness = AsyncMigrationHarness::new(conn);
    let pending = harness.pending_migrations(MIGRATIONS);
    let ran = pending.and_then(|pending| pending.first().map(|next| harness.run_migration(next)).transpose());
    (harness.into_inner(), ran.map(|ran| ran.is_some()))
}

/// Changes whenever a migration does: the name of the template database of the tests.
pub const MIGRATIONS_HASH: &str = env!("MIGRATIONS_HASH");
