//! Pausing, going on, ending, and talking to a thread.

use platform_conversation::{ConversationStore, MessageRow, result_positions};
use platform_core::{Result, Timestamp};
use platform_db::Conn;
use platform_runtime::CallState;

use crate::thread::{
    change::messages::{Arrived, append, append_queued, queue},
    change::results::{take_arrived, wake},
    change::state::{Action, Cause, ThreadState},
    facts::Pause,
    record::{Actor, Record, key},
    threads::Threads,
};

impl Threads {
    /// Pauses at once, or after the running step; `false` when that holds already.
    pub(crate) async fn pause_in(
        &self,
        conn: &mut Conn,
        record: &mut Record,
        immediate: bool,
        pause: Pause,
        by: &Actor,
        now: Timestamp,
    ) -> Result<bool> {
        if record.state == ThreadState::Paused {
            return Ok(false);
        }
        record.allow(Action::Pause)?;
        let pause = Pause { by: by.user_uid.clone(), ..pause };
        if record.state == ThreadState::Processing && !immediate {
            if record.facts.pause.as_ref().is_some_and(|pause| pause.requested) {
                return Ok(false);
            }
            record.facts.pause = Some(Pause { requested: true, at: None, ..pause });
            return Ok(true);
        }
        take_arrived(record);
        if record.state == ThreadState::Processing {
            close(conn, record, "INTERRUPTED", |open| !open.waits(), now).await?;
        }
        record.enter(Cause::Paused, ThreadState::Paused, by, now)?;
        record.facts.pause = Some(Pause { requested: false, at: Some(now), ..pause });
        Ok(true)
    }

    /// Goes on, or takes a pause back that was asked for; `false` when it does already.
    pub(crate) fn resume_in(record: &mut Record, by: &Actor, now: Timestamp) -> Result<bool> {
        match record.state {
            ThreadState::Queued | ThreadState::Processing => {
                if record.facts.pause.take().is_some() {
                    return Ok(true);
                }
                Ok(false)
            }
            _ => {
                record.allow(Action::Resume)?;
                take_arrived(record);
                wake(record);
                let back = match record.waits_in() {
                    Some((_, state @ (ThreadState::HandedOff | ThreadState::WaitingForResponse))) => state,
                    _ => ThreadState::Queued,
                };
                record.enter(Cause::Resumed, back, by, now)?;
                Ok(true)
            }
        }
    }

    /// Ends a thread for good; `false` when it has ended so.
    pub(crate) async fn complete_in(
        &self,
        conn: &mut Conn,
        record: &mut Record,
        (state, reason): (ThreadState, &str),
        by: &Actor,
        now: Timestamp,
    ) -> Result<bool> {
        if record.state == state {
            return Ok(false);
        }
        record.allow(Action::Complete)?;
        take_arrived(record);
        close(conn, record, "INTERRUPTED", |_| true, now).await?;
        record.finish_reason = Some(reason.to_owned());
        record.enter(Cause::Closed, state, by, now)?;
        Ok(true)
    }

    /// Takes a message: a new turn, or the next step of the one that runs.
    pub(crate) async fn message_in(
        &self,
        conn: &mut Conn,
        record: &mut Record,
        arrived: &Arrived,
        by: &Actor,
        now: Timestamp,
    ) -> Result<()> {
        record.allow(Action::Messages)?;
        match record.state {
            ThreadState::UnderConstruction
            | ThreadState::Queued
            | ThreadState::Processing
            | ThreadState::HandedOff
            | ThreadState::PausedForResume => {
                queue(conn, record, arrived).await?;
            }
            _ => {
                take_arrived(record);
                close(conn, record, "SUPERSEDED", |_| true, now).await?;
                self.agents.hold_all_in(conn, &[(&record.account, record.agent_id())]).await?;
                if record.is_unheard() {
                    append_queued(conn, record).await?;
                    record.go_on_with(&arrived.request);
                } else {
                    record.begin_turn(arrived.request.clone());
                    append_queued(conn, record).await?;
                }
                append(conn, record, arrived).await?;
                record.enter(Cause::Message, ThreadState::Queued, by, now)?;
            }
        }
        Ok(())
    }
}

/// Stores results of calls that nothing more is done about.
pub(crate) async fn close(
    conn: &mut Conn,
    record: &mut Record,
    code: &str,
    which: impl Fn(&platform_runtime::OpenCall) -> bool,
    now: Timestamp,
) -> Result<()> {
    let now = now.max(record.edited());
    let user = record.facts.turn.request.user_uid.clone();
    let (id, account) = (record.id().to_owned(), record.account.clone());
    let places: Vec<i32> = result_positions(record.message_count, &record.open).collect();
    for (open, position) in std::mem::take(&mut record.open).into_iter().zip(places) {
        if !which(&open) {
            record.open.push(open);
            continue;
        }
        record.abandons = true;
        let row = match &open.state {
            // What came in meanwhile is kept.
            CallState::Answered(value) => MessageRow::result(&user, &id, &open.call, value, position, now)?,
            _ => MessageRow::closed(&user, &id, &open.call, code, position, now)?,
        };
        ConversationStore::of(&account, &key(&id)).insert(conn, &row).await?;
        record.message_count += 1;
    }
    Ok(())
}
