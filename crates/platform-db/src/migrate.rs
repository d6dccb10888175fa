use diesel_async::{AsyncMigrationHarness, AsyncPgConnection};
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};
use platform_core::{Error, Result};

use crate::Db;

/// All migrations of the workspace, compiled in.
const MIGRATIONS: EmbeddedMigrations = embed_migrations!("../../migrations");

/// Guards the schema while several processes start at once.
const MIGRATION_LOCK: &str = "SELECT pg_advisory_lock(7238411)";

impl Db {
    /// Brings the schema up to date; returns how many migrations ran. Safe to run from many processes.
    pub async fn migrate(&self) -> Result<usize> {
        let mut conn = self.dedicated().await?;
        diesel_async::SimpleAsyncConnection::batch_execute(&mut conn, MIGRATION_LOCK).await?;
        tokio::task::spawn_blocking(move || {
            AsyncMigrationHarness::<AsyncPgConnection>::new(conn)
                .run_pending_migrations(MIGRATIONS)
                .map(|versions| versions.len())
                .map_err(Error::internal)
        })
        .await
        .map_err(Error::internal)?
    }
}

/// Changes whenever a migration does: the name of the template database of the tests.
pub const MIGRATIONS_HASH: &str = env!("MIGRATIONS_HASH");
