//! What is old goes.

use std::{sync::Arc, time::Duration};

use platform_core::{Clock, Timestamp, millis};
use platform_db::{Db, Idempotency};
use platform_limits::RateLimits;

use crate::module::{Keeper, Purge};

/// What is of no group; `event_keep`: how long events are kept.
pub(crate) fn shared(event_keep: Duration) -> Vec<Purge> {
    let event_keep = millis(event_keep);
    vec![
        Purge::new("idempotency keys", |conn, _| Box::pin(async move { Idempotency::purge(conn).await.map(drop) })),
        Purge::new("events", move |conn, now| {
            let before = Timestamp(now.0.saturating_sub(event_keep));
            Box::pin(async move { platform_events::purge(conn, before).await.map(drop) })
        }),
        Purge::new("rates", |conn, _| Box::pin(RateLimits::purge(conn))),
    ]
}

/// Purges once an hour.
pub(crate) fn hourly(db: Db, clock: Arc<dyn Clock>, purges: Vec<Purge>) -> Keeper {
    Keeper::new("purge", async move {
        loop {
            for purge in &purges {
                purge.run(&db, clock.now()).await;
            }
            tokio::time::sleep(Duration::from_hours(1)).await;
        }
    })
}
