//! Threads that go on, or give up, when their time has come.

use std::sync::Arc;

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_core::{Error, Result};
use platform_jobs::{Run, Work, end};
use platform_runtime::Later;
use tokio_util::sync::CancellationToken;

use crate::thread::{
    change::act::hold_in,
    change::control::close,
    change::results::{error_value, take_arrived, wake},
    change::state::{Cause, ThreadState},
    record::Actor,
    threads::{TIMER, Threads},
};

/// Carries out what is due.
pub(crate) struct Timers(pub Arc<Threads>);

#[async_trait]
impl Work for Timers {
    fn kind(&self) -> &'static str {
        TIMER
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let threads = &self.0;
        let (by, now) = (Actor::worker(), threads.ports.clock.now());
        let mut conn = threads.ports.db.conn().await?;
        let moving = conn.transaction::<_, Error, _>(async |conn| {
            let Some(mut record) = hold_in(conn, run).await? else { return Ok(None) };
            match record.state {
                ThreadState::Paused | ThreadState::PausedForResume => {
                    take_arrived(&mut record);
                    wake(&mut record);
                    let back = match (record.state, record.waits_in()) {
                        // One that slept is woken, whatever else it waits for.
                        (
                            ThreadState::Paused,
                            Some((_, state @ (ThreadState::HandedOff | ThreadState::WaitingForResponse))),
                        ) => state,
                        _ => ThreadState::Queued,
                    };
                    record.enter(Cause::Resumed, back, &by, now)?;
                }
                ThreadState::PausedForApproval => {
                    take_arrived(&mut record);
                    close(conn, &mut record, "TIMEOUT", |_| true, now).await?;
                    record.finish_reason = Some("APPROVAL_EXPIRED".to_owned());
                    record.enter(Cause::Expired, ThreadState::ApprovalRejected, &by, now)?;
                }
                ThreadState::WaitingForResponse => {
                    record.answer(|open| {
                        matches!(open.awaits(), Some(Later::Callback(_))).then(|| error_value("TIMEOUT"))
                    });
                    record.enter(Cause::ResultsIn, ThreadState::Queued, &by, now)?;
                }
                // It was moved on before.
                _ => return Ok(None),
            }
            threads.commit_in(conn, &mut record, Some(run), 0, now).await.map(Some)
        });
        let moved = moving.await?;
        drop(conn);
        match moved {
            Some(told) => threads.tell(&told).await,
            None => end(&threads.ports.db, run).await,
        }
    }
}
