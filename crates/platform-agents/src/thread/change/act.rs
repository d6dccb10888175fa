//! Changing a thread: its row is locked first, its runs after it, whoever changes it.

use diesel_async::AsyncConnection;
use platform_core::{AccountId, Error, Result, Timestamp};
use platform_db::{Conn, Idempotency, in_progress};
use platform_jobs::{Run, held_in};

use crate::thread::{
    change::messages::{Arrived, queue},
    change::request::NewApproval,
    change::state::{Source, ThreadState},
    facts::Pause,
    model::Thread,
    read::list::queue_places,
    record::{Actor, Record},
    repository,
    threads::{Threads, not_found},
};

/// What a client does to a thread, looked at and ready.
pub(crate) enum Act {
    Pause { immediate: bool, pause: Pause },
    Resume { says: Option<Arrived> },
    Complete { state: ThreadState },
    Decide { given: NewApproval, approves: bool },
    Say(Arrived),
}

impl Threads {
    /// Does it, and tells what came of it: the thread as that leaves it, and a repetition is told the same.
    pub(crate) async fn act(
        &self,
        account: &AccountId,
        id: &str,
        act: Act,
        by: Actor,
        once: Option<&Idempotency>,
    ) -> Result<Thread> {
        let now = self.ports.clock.now();
        let mut conn = self.ports.db.conn().await?;
        let acting = conn.transaction::<_, Error, _>(async |conn| {
            let mut record = self.lock_in(conn, account, id, once).await?;
            let changed = self.act_in(conn, &mut record, act, by, now).await?;
            let told = if changed { Some(self.commit_in(conn, &mut record, None, 0, now).await?) } else { None };
            let place = queue_places(conn, account, std::slice::from_ref(&record)).await?.remove(id);
            let sandbox_id = match record.environment_id() {
                Some(_) => self.ports.environments.sandboxes(account, &[id.to_owned()]).await?.remove(id),
                None => None,
            };
            let thread = Thread { sandbox_id, ..record.into_thread(None, place)? };
            if let Some(once) = once {
                once.store(conn, 200, &thread).await?;
            }
            Ok((thread, told))
        });
        let (thread, told) = acting.await?;
        drop(conn);
        if let Some(told) = told {
            self.tell(&told).await?;
        }
        Ok(thread)
    }

    /// Whether it changed anything.
    async fn act_in(&self, conn: &mut Conn, record: &mut Record, act: Act, by: Actor, now: Timestamp) -> Result<bool> {
        match act {
            Act::Pause { immediate, pause } => self.pause_in(conn, record, immediate, pause, &by, now).await,
            Act::Resume { says } => {
                let changed = Self::resume_in(record, &by, now)?;
                if let Some(says) = &says {
                    queue(conn, record, says).await?;
                }
                Ok(changed || says.is_some())
            }
            Act::Complete { state } => {
                let reason = match state {
                    ThreadState::Completed => "COMPLETED_BY_USER",
                    ThreadState::Failed => "FAILED_BY_USER",
                    _ => "TERMINATED_BY_USER",
                };
                self.complete_in(conn, record, (state, reason), &by, now).await
            }
            Act::Decide { given, approves } => {
                let by = Actor { source: Source::Approval, ..by };
                self.decide_in(conn, record, &given, approves, &by, now).await?;
                Ok(true)
            }
            Act::Say(arrived) => {
                self.message_in(conn, record, &arrived, &by, now).await?;
                Ok(true)
            }
        }
    }

    /// Locks a thread to change it; once for each idempotency key.
    pub async fn lock_in(
        &self,
        conn: &mut Conn,
        account: &AccountId,
        id: &str,
        once: Option<&Idempotency>,
    ) -> Result<Record> {
        if let Some(once) = once {
            once.lock(conn).await?;
            // Another request with this key was first: what it was told is told again.
            if once.find(&self.ports.db).await?.is_some() {
                return Err(in_progress());
            }
        }
        repository::lock(conn, account, id).await?.ok_or_else(|| not_found(id))
    }
}

/// Locks the thread of a run whose lease is held; `None` when it is lost, or the thread is gone.
pub(crate) async fn hold_in(conn: &mut Conn, run: &Run) -> Result<Option<Record>> {
    Ok(hold_all_in(conn, &[run], true).await?.remove(0))
}

/// The same for several; unless it `waits`, without those that somebody changes just now.
pub(crate) async fn hold_all_in(conn: &mut Conn, runs: &[&Run], waits: bool) -> Result<Vec<Option<Record>>> {
    let mut locked = repository::lock_all(conn, runs, waits).await?;
    let held = held_in(conn, runs).await?;
    let of = |run: &&Run| {
        let is_held = held.iter().any(|(id, fence)| *id == run.id && *fence == run.fence);
        let mut records = locked.extract_if(.., |record| record.id() == run.subject && record.account == run.account());
        records.next().filter(|_| is_held)
    };
    Ok(runs.iter().map(of).collect())
}
