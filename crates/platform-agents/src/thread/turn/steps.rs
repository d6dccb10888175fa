//! What the steps of a turn note in its thread.

use platform_conversation::TokenUsage;
use platform_core::{Result, Timestamp};
use platform_runtime::{CallState, Later};

use crate::thread::{
    change::results::take_arrived,
    change::state::{Cause, ThreadState},
    facts::Pause,
    record::{Actor, Record},
};

/// What a step and an end have in common: so many messages, and what it all took.
pub(crate) fn note_step(record: &mut Record, messages: usize, usage: &TokenUsage, version: i64) {
    record.message_count += i32::try_from(messages).unwrap_or(i32::MAX);
    record.usage = usage.clone();
    record.facts.turn.version = Some(version);
}

/// Notes to which threads work was handed.
pub(crate) fn hand_offs(record: &mut Record) {
    for thread in record.pending_hand_offs() {
        if !record.facts.hand_offs.contains(&thread) {
            record.facts.hand_offs.push(thread);
        }
    }
}

/// A pause that was asked for holds now: calls that are not begun wait for the thread to go on.
pub(crate) fn pause_now(record: &mut Record, now: Timestamp) -> Result<()> {
    take_arrived(record);
    for open in record.open.iter_mut().filter(|open| open.state == CallState::Started) {
        open.state = CallState::Approved;
    }
    let pause = record.facts.pause.clone().unwrap_or_default();
    let by = Actor { user_uid: pause.by.clone(), ..Actor::worker() };
    record.enter(Cause::Paused, ThreadState::Paused, &by, now)?;
    record.facts.pause = Some(Pause { requested: false, at: Some(now), ..pause });
    Ok(())
}

/// Whether a call waits for time to pass, and until when.
pub(crate) fn sleeps_until(record: &Record) -> Option<Timestamp> {
    record
        .open
        .iter()
        .filter_map(|open| match open.awaits() {
            Some(Later::At(at)) => Some(*at),
            _ => None,
        })
        .min()
}
