//! What is old goes.

use std::{sync::Arc, time::Duration};

use platform_core::{Clock, Result, Timestamp};
use platform_db::{Conn, Db, Idempotency};
use platform_limits::RateLimits;
use tracing::warn;

/// Purges once an hour; `event_keep`: how long events are kept.
pub(crate) async fn hourly(db: Db, clock: Arc<dyn Clock>, event_keep: Duration) {
    loop {
        let now = clock.now();
        let before = Timestamp(now.0 - i64::try_from(event_keep.as_millis()).unwrap_or(i64::MAX));
        purge(&db, "idempotency keys", async |conn| Idempotency::purge(conn).await.map(drop)).await;
        purge(&db, "events", async |conn| platform_events::purge(conn, before).await.map(drop)).await;
        purge(&db, "addresses for results", async |conn| platform_agents::purge_callbacks(conn, now).await).await;
        purge(&db, "sessions", async |conn| platform_auth::purge_sessions(conn, now).await.map(drop)).await;
        purge(&db, "old values", async |conn| platform_auth::purge_old_values(conn, now).await.map(drop)).await;
        purge(&db, "grants", async |conn| platform_auth::purge_grants(conn, now).await).await;
        purge(&db, "rates", async |conn| RateLimits::purge(conn).await).await;
        tokio::time::sleep(Duration::from_hours(1)).await;
    }
}

async fn purge(db: &Db, what: &str, purge: impl AsyncFnOnce(&mut Conn) -> Result<()>) {
    let purged = async { purge(&mut *db.conn().await?).await };
    if let Err(error) = purged.await {
        warn!(%error, "Old {what} could not be purged; trying again in an hour.");
    }
}
