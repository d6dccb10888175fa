//! The way to PostgreSQL: connections, migrations, an embedded server, and the few
//! patterns every domain crate writes with.
//!
//! **Owns** the table `idempotency` and the only code that opens a database connection.
//! **Needs** a PostgreSQL 15 or newer, or permission to start one ([`Embedded`]).
//!
//! **Patterns**: [`Db::read`] lends a shared connection on which independent reads are
//! pipelined; [`Db::conn`] lends one of its own for a transaction; a [`GroupWriter`] lets
//! writes that wait at the same moment share one statement and one commit;
//! [`Idempotency`] is stored with the effect it guards; [`InvalidatedCache`] is a cache that every
//! process empties at once when a [`Bus`] says so.
//!
//! **Invariants**: no lock is held across a network wait; a database that is away gives
//! `SERVICE_UNAVAILABLE` within two seconds.
//!
//! ```no_run
//! # use diesel_async::{AsyncConnection, RunQueryDsl};
//! # use platform_core::{Error, Result};
//! # use platform_db::*;
//! # async fn example() -> Result<()> {
//! let db = Db::new(&DbConfig { url: "postgres://localhost/platform".to_owned(), pool: 8 })?;
//! db.migrate().await?;
//! let mut conn = db.conn().await?;
//! let purged = conn
//!     .transaction::<_, Error, _>(async |conn| {
//!         Ok(diesel::sql_query("DELETE FROM idempotency WHERE expires_at < now()").execute(conn).await?)
//!     })
//!     .await?;
//! # Ok(()) }
//! ```

mod bus;
mod cache;
pub mod code;
mod db;
mod embedded;
mod group;
mod idempotency;
mod migrate;
mod schema;
mod statement;

pub use bus::{Bus, Notice};
pub use cache::{Capacity, InvalidatedCache};
pub use db::{BY_KEY, Conn, Db, DbConfig, FairConn, PoolUse, PooledConn, ReadConn, can_write};
pub use embedded::{Embedded, EmbeddedError};
pub use group::GroupWriter;
pub use idempotency::{Idempotency, Stored, in_progress};
pub use migrate::MIGRATIONS_HASH;
pub use statement::{JsonStatement, containing};
