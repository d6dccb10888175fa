//! Tools of MCP servers, read again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, FairSemaphore, Id, Result, Timestamp, spawn};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{
    code,
    failure::Failure,
    mcp::Changed,
    model::{ServerType, ToolServer},
    repository,
    rules::{not_found, note_tools, wants_callers},
    server::{Server, UpstreamCredentials},
    service::{PgToolServerService, ToolServerService},
};

/// Tools of an MCP server that were read longer ago are read again, beside the turn that uses them.
const STALE: Duration = Duration::from_mins(10);
/// The same for a server that did not answer.
const STALE_WHEN_DOWN: Duration = Duration::from_secs(30);
const REFRESHES_AT_ONCE: usize = 8;
const BETWEEN_REFRESHES: Duration = Duration::from_mins(1);

impl PgToolServerService {
    /// Fetches the tools of an MCP server and keeps them; those it has stay when it does not answer.
    pub(crate) async fn fetch_tools(&self, account: &AccountId, id: &str) -> Result<(ToolServer, Option<Failure>)> {
        self.fetch_tools_with(account, id, &UpstreamCredentials::Own).await
    }

    /// The same with somebody's rights. A server that wants each caller's own is not down because it wants ours.
    pub(crate) async fn fetch_tools_with(
        &self,
        account: &AccountId,
        id: &str,
        with: &UpstreamCredentials,
    ) -> Result<(ToolServer, Option<Failure>)> {
        let server = self.find(account, id).await?.ok_or_else(|| not_found(id))?;
        let fetched = Box::pin(self.calling.mcp.tools(&server, with, self.limits.tools_per_server)).await;
        let failure = fetched.as_ref().err().cloned();
        if failure.as_ref().is_some_and(|failure| wants_callers(&server.settings, failure)) {
            return Ok((self.get(account, &Id::named(id)).await?, None));
        }
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let shown = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            let before = row.settings()?.tool_definitions;
            let health = row.health.clone();
            let changed = note_tools(&mut row, fetched, &before, now)?;
            if changed {
                row.version += 1;
            }
            repository::update(conn, account, &row).await?;
            // Who was read well is not read again for a while: that too must be known.
            Ok((row.shown(), changed || row.health != health || row.health.as_deref() == Some("ok")))
        });
        let shown = shown.await?;
        drop(conn);
        let (shown, changed) = shown;
        if changed {
            self.known.changed(id).await?;
        }
        Ok((shown, failure))
    }

    async fn refresh(&self, account: &AccountId, id: &str) {
        if let Err(error) = self.fetch_tools(account, id).await
            && error.code() != code::TOOL_SERVER_NOT_FOUND
        {
            warn!(server = id, %error, "The tools of an MCP server could not be stored.");
        }
    }

    /// Has the tools of an MCP server read again when that was long ago.
    pub(crate) fn refresh_soon(&self, server: &Server) {
        let shown = &server.record;
        let stale = if shown.health.as_deref() == Some("ok") { STALE } else { STALE_WHEN_DOWN };
        let age = shown.last_refresh_ms.map(|at| self.clock.now().since(Timestamp(at)));
        if server.kind == ServerType::Mcp && age.is_none_or(|age| age > stale) {
            self.changed.add((server.account.clone(), server.id.clone()));
        }
    }
}

/// When servers were last read, so that one that says so all the time is read once a minute.
#[derive(Default)]
struct Pace(HashMap<Changed, Instant>);

impl Pace {
    /// When a server that says now that it has changed is read: at once, or a minute after it was read before.
    fn due(&mut self, server: &Changed, now: Instant) -> Instant {
        self.0.retain(|_, read| *read + BETWEEN_REFRESHES > now);
        let due = self.0.get(server).map_or(now, |read| *read + BETWEEN_REFRESHES);
        self.0.insert(server.clone(), due);
        due
    }
}

/// Reads tools again that somebody says are old or changed, a few at once and fairly over accounts.
pub(crate) async fn refresh_asked(service: Arc<PgToolServerService>) {
    let places = FairSemaphore::new(REFRESHES_AT_ONCE, REFRESHES_AT_ONCE);
    let waiting = Arc::new(Mutex::new(HashSet::new()));
    let mut pace = Pace::default();
    loop {
        for server in service.changed.take().await {
            if waiting.lock().expect("lock").insert(server.clone()) {
                let due = pace.due(&server, Instant::now());
                let (service, places, waiting) = (Arc::clone(&service), places.clone(), Arc::clone(&waiting));
                spawn("refresh tools", async move {
                    sleep_until(due).await;
                    let _place = places.acquire(&server.0).await;
                    // Who changes from here on is read once more.
                    waiting.lock().expect("lock").remove(&server);
                    service.refresh(&server.0, &server.1).await;
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_says_all_the_time_that_it_has_changed_is_read_once_a_minute() {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let [nagging, other] = ["a", "b"].map(|id| (AccountId::generate(), id.to_owned()));
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert_eq!([0, 1, 60, 121].map(|now| pace.due(&nagging, at(now))), [at(0), at(60), at(120), at(180)]);
        assert_eq!(pace.due(&other, at(121)), at(121));
        assert_eq!(pace.due(&nagging, at(300)), at(300), "a quiet one is read at once");
        assert_eq!(pace.0.len(), 1, "who is quiet is forgotten");
    }
}
