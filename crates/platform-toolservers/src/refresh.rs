//! Tools of MCP servers, read again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, FairSemaphore, Id, Result, Timestamp, json_length, spawn};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{
    code,
    definition::{MAX_MEMORY, ToolDefinition},
    failure::Failure,
    mcp::{Changed, Due},
    mcp_http::MAX_LIST_BYTES,
    model::{ServerType, ToolServer},
    repository,
    rules::{not_found, note_tools, wants_callers},
    server::{Server, UpstreamCredentials},
    service::{PgToolServerService, ToolServerService},
};

/// Tools of an MCP server that were read longer ago are read again, beside the turn that uses them.
const STALE: Duration = Duration::from_mins(10);
/// A server that did not answer is asked again after this when it is used, then after twice as long, and so on.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_mins(5);
/// All tools that a server shows to any of its callers, in bytes as they are stored.
const MAX_KNOWN_BYTES: usize = 2 * MAX_LIST_BYTES;
const REFRESHES_AT_ONCE: usize = 8;
const BETWEEN_REFRESHES: Duration = Duration::from_mins(1);
/// One that was quiet is read so often in a row before that, so long apart at the least.
const IN_A_ROW: u8 = 4;
const APART: Duration = Duration::from_millis(250);
/// One that is down is looked at so soon after it was read well, whatever it says of itself.
const BEFORE_LOOK: Duration = Duration::from_secs(5);

impl PgToolServerService {
    /// Fetches the tools of an MCP server and keeps them; those it has stay when it does not answer.
    pub(crate) async fn fetch_tools(&self, account: &AccountId, id: &str) -> Result<(ToolServer, Option<Failure>)> {
        self.fetch_tools_with(account, id, None).await
    }

    /// The same with somebody's rights where a server wants each caller's own; it is not down because it wants ours.
    pub(crate) async fn fetch_tools_with(
        &self,
        account: &AccountId,
        id: &str,
        with: Option<&UpstreamCredentials>,
    ) -> Result<(ToolServer, Option<Failure>)> {
        let server = self.find(account, id).await?.ok_or_else(|| not_found(id))?;
        let fetch = |with| Box::pin(self.calling.mcp.tools(&server, with, self.limits.tools_per_server));
        let is_refused = |fetched: &Result<_, Failure>| {
            fetched.as_ref().is_err_and(|failure| wants_callers(&server.settings, failure))
        };
        let began = self.clock.now();
        let mut fetched = fetch(&UpstreamCredentials::Own).await;
        let callers = with.filter(|_| is_refused(&fetched));
        if let Some(with) = callers {
            fetched = fetch(with).await;
        }
        if is_refused(&fetched) {
            return Ok((self.get(account, &Id::named(id)).await?, None));
        }
        let mut failure = fetched.as_ref().err().cloned();
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let shown = conn.transaction::<_, Error, _>(async |conn| {
            let mut row = repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))?;
            // Whoever began later knows better, also when they were quicker; unless a clock was wrong, or they failed.
            let is_older = row.refreshed_ms.is_some_and(|last| last > began.0 && last <= now.0);
            if is_older && (failure.is_some() || row.health.as_deref() == Some("ok")) {
                return Ok((row.shown(), None));
            }
            let before = row.settings()?.tool_definitions;
            if callers.is_some() {
                fetched = fetched.map(|seen| with_known(&before, seen, self.limits.tools_per_server));
            }
            let health = row.health.clone();
            let changed = note_tools(&mut row, fetched, &before, if failure.is_some() { now } else { began })?;
            if changed {
                row.version += 1;
            }
            repository::update(conn, account, &row).await?;
            // Who was read well is not read again for a while: that too must be known.
            Ok((row.shown(), Some(changed || row.health != health || row.health.as_deref() == Some("ok"))))
        });
        let shown = shown.await?;
        drop(conn);
        let (shown, changed) = shown;
        match changed {
            Some(true) => self.known.changed(id).await?,
            Some(false) => {}
            None => failure = None,
        }
        Ok((shown, failure))
    }

    /// Whether the server answered, and whether it is well.
    async fn refresh(&self, account: &AccountId, id: &str, connection: Option<String>) -> (bool, bool) {
        let with = connection.map(UpstreamCredentials::Connection);
        match self.fetch_tools_with(account, id, with.as_ref()).await {
            Ok((server, failure)) => (failure.is_none(), server.health.as_deref() == Some("ok")),
            Err(error) if error.code() == code::TOOL_SERVER_NOT_FOUND => (true, false),
            Err(error) => {
                warn!(server = id, %error, "The tools of an MCP server could not be stored.");
                (true, false)
            }
        }
    }

    /// Notes that a server which was well did not answer a call.
    async fn degrade(&self, account: &AccountId, id: &str, why: &str) {
        let degrading = async {
            let is_new = repository::degrade(&mut *self.db.conn().await?, account, id, why).await?;
            if is_new { self.known.changed(id).await } else { Ok(()) }
        };
        if let Err(error) = degrading.await {
            warn!(server = id, %error, "That an MCP server did not answer could not be stored.");
        }
    }

    /// Has the tools of an MCP server read again when that was long ago; `with`: somebody's rights that were at hand.
    pub(crate) fn refresh_soon(&self, server: &Server, with: &UpstreamCredentials) {
        let connection = match with {
            UpstreamCredentials::Connection(id) => Some(id.clone()),
            UpstreamCredentials::Own | UpstreamCredentials::Header(_) => None,
        };
        let is_well = server.record.health.as_deref() == Some("ok");
        let (stale, due) = if is_well { (STALE, Due::Reading(connection)) } else { (FIRST_WAIT, Due::Recovering) };
        if server.kind == ServerType::Mcp && self.were_read_before(server, stale) {
            self.changed.add((server.account.clone(), server.id.clone()), due);
        }
    }

    fn were_read_before(&self, server: &Server, age: Duration) -> bool {
        let read = server.record.last_refresh_ms.map(|at| self.clock.now().since(Timestamp(at)));
        read.is_none_or(|read| read > age)
    }

    /// Whether tools that only whoever calls can read were not read, or long ago.
    pub(crate) fn wants_reading(&self, server: &Server) -> bool {
        let is_unread = server.settings.tool_definitions.is_empty();
        server.kind == ServerType::Mcp && (is_unread || self.were_read_before(server, STALE))
    }
}

/// The tools of a server that shows each caller their own: what one of them does not see others may.
fn with_known(known: &[ToolDefinition], seen: Vec<ToolDefinition>, most: usize) -> Vec<ToolDefinition> {
    let of = |tools: &[ToolDefinition], name: &str| tools.iter().find(|tool| tool.function.name == name).cloned();
    let again = |tool: &ToolDefinition| of(&seen, &tool.function.name).unwrap_or_else(|| tool.clone());
    let mut tools: Vec<ToolDefinition> = known.iter().map(again).collect();
    tools.extend(seen.into_iter().filter(|tool| of(known, &tool.function.name).is_none()));
    if most > 0 {
        tools.truncate(most);
    }
    let mut left = (MAX_MEMORY, MAX_KNOWN_BYTES);
    tools.retain(|tool| {
        let of_bytes = json_length(tool, left.1).and_then(|bytes| left.1.checked_sub(bytes));
        let rest = left.0.checked_sub(tool.heap_bytes()).zip(of_bytes);
        rest.map(|rest| left = rest).is_some()
    });
    tools
}

/// When servers are read next at the earliest: one that says all the time that it has changed is read a few times and then once a
/// minute, one that does not answer ever more seldom.
#[derive(Default)]
struct Pace(HashMap<Changed, Paced>);

struct Paced {
    next: Instant,
    /// From when on it is looked at again, once, when it is down since it was read well.
    looks_from: Option<Instant>,
    /// How long it is waited for a server that does not answer.
    wait: Duration,
    /// Readings that may follow soon.
    left: u8,
}

impl Pace {
    /// When a server is read that is to be read now; one that answered last and is down since is looked at without delay.
    fn due(&mut self, server: &Changed, is_down: bool, now: Instant) -> Instant {
        // Who is quiet is forgotten.
        self.0.retain(|_, paced| paced.next + MAX_WAIT > now);
        let Some(paced) = self.0.get_mut(server) else { return now };
        let looks_from = paced.looks_from.take_if(|_| is_down);
        looks_from.unwrap_or(paced.next).max(now)
    }

    /// Notes that a server is being read: what it says from now on is heard once more.
    fn begin(&mut self, server: &Changed, now: Instant) {
        let quiet = Paced { next: now, looks_from: None, wait: Duration::ZERO, left: IN_A_ROW };
        let paced = self.0.entry(server.clone()).or_insert(quiet);
        paced.left = paced.left.saturating_sub(1);
        (paced.next, paced.looks_from) = (now + between(paced.left), None);
    }

    /// Notes that a server was read: whether it answered, and whether it is well.
    fn read(&mut self, server: &Changed, (answered, is_well): (bool, bool), now: Instant) {
        let (before, left) = self.0.get(server).map_or((None, 0), |paced| (Some(paced.wait), paced.left));
        let paced = if answered {
            let looks_from = is_well.then_some(now + BEFORE_LOOK);
            Paced { next: now + between(left), looks_from, wait: Duration::ZERO, left }
        } else {
            let wait = before.map_or(FIRST_WAIT, |wait| (2 * wait).clamp(FIRST_WAIT, MAX_WAIT));
            Paced { next: now + wait, looks_from: None, wait, left }
        };
        self.0.insert(server.clone(), paced);
    }
}

/// How long until a server may be read again of which so many readings are left in a row.
fn between(left: u8) -> Duration {
    if left > 0 { APART } else { BETWEEN_REFRESHES }
}

/// Reads tools again that somebody says are old or changed, a few at once and fairly over accounts.
pub(crate) async fn refresh_asked(service: Arc<PgToolServerService>) {
    let places = FairSemaphore::new(REFRESHES_AT_ONCE, REFRESHES_AT_ONCE / 2);
    let waiting = Arc::new(Mutex::new(HashMap::<Changed, Option<String>>::new()));
    let pace = Arc::new(Mutex::new(Pace::default()));
    loop {
        for (server, due) in service.changed.take().await {
            let (service, places, waiting) = (Arc::clone(&service), places.clone(), Arc::clone(&waiting));
            let is_down = due == Due::Recovering;
            let connection = match due {
                Due::Degrading(why) => {
                    spawn("degrade server", async move { service.degrade(&server.0, &server.1, &why).await });
                    continue;
                }
                Due::Reading(connection) => connection,
                Due::Recovering => None,
            };
            if let Some(known) = waiting.lock().expect("lock").get_mut(&server) {
                *known = known.take().or(connection);
                continue;
            }
            waiting.lock().expect("lock").insert(server.clone(), connection);
            let pace = Arc::clone(&pace);
            let due = pace.lock().expect("lock").due(&server, is_down, Instant::now());
            spawn("refresh tools", async move {
                sleep_until(due).await;
                let _place = places.acquire(&server.0).await;
                // Who changes from here on is read once more.
                pace.lock().expect("lock").begin(&server, Instant::now());
                let connection = waiting.lock().expect("lock").remove(&server).flatten();
                let answered = service.refresh(&server.0, &server.1, connection).await;
                pace.lock().expect("lock").read(&server, answered, Instant::now());
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_caller_does_not_see_of_a_server_stays_for_the_others() {
        let tool = |name: &str, description: &str| {
            let mut tool = ToolDefinition::default();
            (tool.function.name, tool.function.description) = (name.to_owned(), description.to_owned());
            tool
        };
        let known = [tool("echo", "Old"), tool("admin", "Of few")];
        let seen = |of: Vec<ToolDefinition>, most| {
            let of = with_known(&known, of, most).into_iter().map(|tool| tool.function);
            of.map(|function| format!("{}: {}", function.name, function.description)).collect::<Vec<_>>()
        };
        assert_eq!(seen(Vec::new(), 0).len(), 2, "without a bound");
        let large = |n: usize| tool(&n.to_string(), &"x".repeat(MAX_KNOWN_BYTES / 4));
        let kept = seen((0..9).map(large).collect(), 0).len();
        assert_eq!(kept, 5, "two that are known and three that are large");
        assert_eq!(seen(Vec::new(), 9), ["echo: Old", "admin: Of few"]);
        assert_eq!(seen(vec![tool("echo", "New"), tool("other", "")], 9), ["echo: New", "admin: Of few", "other: "]);
        assert_eq!(seen(vec![tool("other", "")], 2), ["echo: Old", "admin: Of few"], "nobody crowds out what is known");
    }

    #[test]
    fn a_server_that_nags_is_read_a_few_times_then_once_a_minute_and_one_that_does_not_answer_ever_more_seldom() {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let [nagging, away] = ["a", "b"].map(|id| (AccountId::generate(), id.to_owned()));
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert_eq!(pace.due(&nagging, false, at(0)), at(0), "a quiet one is read at once");
        pace.begin(&nagging, at(0));
        for _ in 1..IN_A_ROW {
            assert_eq!(pace.due(&nagging, false, at(0)), at(0) + APART, "a few times in a row, also while it is read");
            pace.read(&nagging, (true, true), at(0));
            assert_eq!(pace.due(&nagging, false, at(0)), at(0) + APART);
            pace.begin(&nagging, at(0));
        }
        assert_eq!(pace.due(&nagging, false, at(0)), at(60));
        pace.read(&nagging, (true, true), at(0));
        assert_eq!([pace.due(&nagging, false, at(1)), pace.due(&nagging, false, at(61))], [at(60), at(61)]);
        let mut now = at(0);
        let waits: Vec<u64> = (0..11)
            .map(|_| {
                pace.read(&away, (false, false), now);
                let due = pace.due(&away, false, now);
                let wait = due - now;
                now = due;
                wait.as_secs()
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        pace.read(&away, (true, true), now);
        assert_eq!(
            pace.due(&away, true, now),
            now + BEFORE_LOOK,
            "one that was well is looked at soon after it is down"
        );
        assert_eq!(pace.due(&away, true, now), now + BETWEEN_REFRESHES, "once");
        pace.read(&away, (false, false), now);
        assert_eq!(pace.due(&away, false, now), now + FIRST_WAIT, "whoever was well begins anew");
        pace.due(&away, false, now + MAX_WAIT + Duration::from_mins(2));
        assert!(pace.0.is_empty(), "who is quiet is forgotten");
    }
}
