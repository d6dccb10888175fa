//! Durable runs: work that was accepted is carried on until it has ended, whoever dies.
//!
//! **Owns** the tables `runs`, in which a row is a run that is not done, and `lanes`, of runs that share limits. **Needs** `platform-db` and,
//! for each kind of run, a [`Work`] that carries it out.
//!
//! A run is enqueued in the transaction of whatever asked for it ([`ENQUEUE`] is a piece of
//! SQL for the caller's statement) and ends in the transaction that stores its result
//! ([`FINISH`]); what it does on the way is stored under its lease ([`STEP`]). In between one process holds that lease, renewed by a heartbeat on a
//! connection of its own and judged by the database's clock.
//!
//! **Invariants**: one run per subject at a time; every write for a run names its fence, so
//! a worker that lost its lease changes nothing; a run whose lease ended is taken over, with
//! its attempt counted; a drained process hands its leases back without counting; a run for
//! whose subject more work came does not end unnoticed; of a lane no more runs are worked, and no more begun in a
//! window, than it allows, whoever takes them, and lanes are served in turn.
//!
//! `examples/takeover.rs` shows a run whose worker is lost, with nothing but this crate and `platform-db`.
//!
//! ```no_run
//! # use std::{sync::Arc, time::Duration};
//! # use platform_core::{AccountId, Result};
//! # use platform_db::Conn;
//! # use platform_jobs::*;
//! # use serde_json::json;
//! # async fn example(jobs: Arc<Jobs>, counting: Arc<dyn Work>, conn: &mut Conn, account: AccountId) -> Result<()> {
//! jobs.start(vec![counting]);
//! // In the transaction of whatever asks for it:
//! enqueue_in(conn, &account, "counting", "sheep", json!({}), When::After(Duration::ZERO)).await?;
//! // After its commit:
//! jobs.announce();
//! # Ok(()) }
//! ```

pub mod code;
mod jobs;
mod lanes;
mod repository;
mod schema;
mod trace;

pub use jobs::{Jobs, JobsConfig, Slot, Work};
pub use lanes::{Hold, LaneLimits, QueuePosition, drop_lane_in, full_in, places, set_lane_in};
pub use repository::{
    ENQUEUE, FINISH, FoundRun, NewRun, Queue, Run, STEP, When, call_again_in, cancel_in, delay_in, describe_in, end,
    end_all_in, end_in, enqueue_all_in, enqueue_in, enqueue_or_wake_in, find_in, held_in, is_held_in, step_in, stop_in,
    wake_in,
};
pub use trace::traceparent;
