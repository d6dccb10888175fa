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
mod threads;
mod turn;

pub use addresses::PgThreadAddresses;
pub(crate) use change::model::ThreadSpec;
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
pub use threads::ThreadConfig;
pub(crate) use threads::Threads;
pub use turn::awaited::purge_callbacks;
pub use turn::tasks::task_tools;
pub(crate) use turn::turn_store::charge_in;
