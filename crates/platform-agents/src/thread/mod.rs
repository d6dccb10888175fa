mod addresses;
mod change;
mod facts;
mod model;
mod read;
mod record;
mod repository;
mod row;
mod service;
mod states;
mod turn;

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

use crate::{agent::PgAgentService, code};

pub use addresses::PgThreadAddresses;
use change::commit::AfterCommit;
use change::intake::Start;
pub(crate) use change::intake::ThreadSpec;
pub use change::request::{
    AsyncResponse, AsyncResponses, NewApproval, NewCompletion, NewPause, NewResume, NewThread, PauseOrResume,
    ThreadMessage, ThreadPatch,
};
pub use change::state::{Action, CHANGES, Cause, Source, StateChange, ThreadState};
pub use model::{
    EmptyContentRetries, ParentLink, PendingApproval, PendingAsyncToolCall, StartedThread, Task, Thread,
    ThreadFeedback, ThreadFilter, ThreadList, ThreadResponded, ThreadResult, ThreadStart, ThreadView,
};
pub use read::picture::picture;
pub(crate) use record::Record;
pub(crate) use repository::{find, lock, note_fact};
pub use service::{PgThreadService, THREAD, ThreadService};
pub use states::PgThreadStates;
pub use turn::awaited::purge_callbacks;
use turn::runner::{EndedTurn, Next};
pub use turn::tasks::task_tools;
pub(crate) use turn::turn_store::charge_in;

/// Kind of the runs that are turns of threads.
pub(crate) const KIND: &str = "thread";
/// Kind of the runs that move a thread on when its time has come.
const TIMER: &str = "thread-timer";
/// Kind of the runs that fetch the files of threads.
const FILES: &str = "thread-files";
/// Kind of the runs that give the result of a sub-thread to the thread that waits for it.
const RETURN: &str = "thread-return";

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
    starting: GroupWriter<Start, (ThreadState, AfterCommit)>,
    ending: GroupWriter<Arc<EndedTurn>, Option<(Next, AfterCommit)>>,
}

/// Writes of a group; as many share their statements.
const BATCH: usize = 64;

impl Threads {
    /// Needs what [`PgThreadService::new`] needs.
    fn new(
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

fn not_found(id: &str) -> Error {
    Error::not_found(code::THREAD_NOT_FOUND, "thread", id)
}
