//! What everything about threads works with.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use platform_conversation::{FileFetcher, Ports};
use platform_core::{AccountId, Error, FieldLimits, Result};
use platform_db::GroupWriter;
use platform_jobs::Jobs;
use platform_mail::Mailer;
use platform_realtime::Key;

use crate::{
    agent::PgAgentService,
    code,
    thread::{
        change::model::{AfterCommit, Start},
        change::state::ThreadState,
        record::Record,
        repository::find,
        turn::end::{EndedTurn, Next},
    },
};

/// Kind of the runs that are turns of threads.
pub(crate) const KIND: &str = "thread";
/// Kind of the runs that move a thread on when its time has come.
pub(crate) const TIMER: &str = "thread-timer";
/// Kind of the runs that fetch the files of threads.
pub(crate) const FILES: &str = "thread-files";
/// Kind of the runs that give the result of a sub-thread to the thread that waits for it.
pub(crate) const RETURN: &str = "thread-return";

/// Settings of threads.
#[derive(Debug, Clone)]
pub struct ThreadConfig {
    /// A turn whose worker was lost so often fails.
    pub max_attempts: i32,
    /// How long an approval may take.
    pub approval_timeout: Duration,
    /// How long the result of an asynchronous tool may take.
    pub async_tool_timeout: Duration,
    /// How deep work is handed on.
    pub max_depth: usize,
    /// Largest frame of a stream, in bytes; 0 = no bound.
    pub frame_bytes: usize,
    /// Sizes of fields.
    pub limits: FieldLimits,
    /// Base of the addresses that are given to others.
    pub public_url: String,
}

/// What everything about threads works with.
pub(crate) struct Threads {
    pub ports: Ports,
    pub jobs: Arc<Jobs>,
    pub agents: Arc<PgAgentService>,
    pub mailer: Arc<Mailer>,
    pub tenants: Arc<dyn platform_tenants::TenantService>,
    pub files: FileFetcher,
    pub config: ThreadConfig,
    /// Threads that start at the same moment share their statements, and so do turns that end.
    pub starting: GroupWriter<Start, (ThreadState, AfterCommit)>,
    pub ending: GroupWriter<Arc<EndedTurn>, Option<(Next, AfterCommit)>>,
}

/// Writes of a group; as many share their statements.
const BATCH: usize = 64;

impl Threads {
    /// Needs what [`PgThreadService::new`] needs.
    pub fn new(
        ports: Ports,
        jobs: Arc<Jobs>,
        agents: Arc<PgAgentService>,
        mailer: Arc<Mailer>,
        tenants: Arc<dyn platform_tenants::TenantService>,
        files: FileFetcher,
        config: ThreadConfig,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            let gone = || Error::unavailable("the process ends");
            let of = own.clone();
            let starting = GroupWriter::new(&ports.db, BATCH, move |conn, starts| {
                let threads = of.upgrade().ok_or_else(gone);
                async move { threads?.store_starts(conn, starts).await }.boxed()
            });
            let of = own.clone();
            let ending = GroupWriter::new(&ports.db, BATCH, move |conn, ended| {
                let threads = of.upgrade().ok_or_else(gone);
                async move { threads?.store_ends(conn, ended, false).await }.boxed()
            });
            Self { ports, jobs, agents, mailer, tenants, files, config, starting, ending }
        })
    }

    /// `THREAD_NOT_FOUND` when it is not there.
    pub async fn find(&self, account: &AccountId, id: &str) -> Result<Record> {
        let conn = self.ports.db.read().await?;
        find(conn.get(), account, id).await?.ok_or_else(|| not_found(id))
    }
}

/// Under which a thread is shown.
pub(crate) fn live_key(account: &AccountId, id: &str) -> Key {
    (account.clone(), format!("thread/{id}").into())
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found(code::THREAD_NOT_FOUND, "thread", id)
}
