//! Changing a thread: its row is locked first, its runs after it, whoever changes it.

use platform_core::{AccountId, Result};
use platform_db::{Conn, Idempotency, in_progress};
use platform_jobs::{Run, is_held_in};

use super::{
    Threads, not_found,
    record::{self, Record},
};

impl Threads {
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
        record::lock(conn, account, id).await?.ok_or_else(|| not_found(id))
    }
}

/// Locks the thread of a run whose lease is held; `None` when it is lost, or the thread is gone.
pub(crate) async fn hold_in(conn: &mut Conn, run: &Run) -> Result<Option<Record>> {
    let Some(record) = record::lock(conn, &run.account(), &run.subject).await? else { return Ok(None) };
    Ok(is_held_in(conn, run).await?.then_some(record))
}
