//! Results that come to the calls of a thread.

use platform_core::{Result, Timestamp};
use platform_runtime::{CallState, Later, OpenCall};
use serde_json::{Value, json};

use crate::thread::{
    change::state::{Cause, ThreadState},
    record::{Actor, Record},
};

/// Gives the call that waits for `from` (its own id, or a thread) its result. While a turn runs, or when it is not
/// stored yet that the call waits, the result is kept until it is.
pub(crate) fn take(record: &mut Record, from: &str, value: &Value) {
    let runs = record.state == ThreadState::Processing;
    let is_given = !runs && record.answer(|open| waits_for(open, from).then(|| value.clone())) > 0;
    if !is_given && !record.state.is_terminal() {
        record.facts.arrived.entry(from.to_owned()).or_insert_with(|| value.clone());
    }
}

/// Whether a call waits for a result from there.
fn waits_for(open: &OpenCall, from: &str) -> bool {
    match open.awaits() {
        Some(Later::Callback(_)) => open.call.id == from,
        Some(Later::Thread(thread)) => thread == from,
        // Its result was there before it was stored that it waits.
        None => open.state == CallState::Started && open.call.id == from,
        Some(Later::At(_)) => false,
    }
}

/// Gives calls the results that came before it was stored that they wait.
pub(crate) fn take_arrived(record: &mut Record) {
    for (from, value) in std::mem::take(&mut record.facts.arrived) {
        if record.answer(|open| waits_for(open, &from).then(|| value.clone())) == 0 {
            record.facts.arrived.insert(from, value);
        }
    }
}

/// A thread that waits for nothing more is queued.
pub(crate) fn go_on(record: &mut Record, by: &Actor, now: Timestamp) -> Result<()> {
    let done = match record.state {
        ThreadState::WaitingForResponse => record.pending_callbacks().is_empty(),
        ThreadState::HandedOff => record.pending_hand_offs().is_empty(),
        _ => false,
    };
    if done { record.enter(Cause::ResultsIn, ThreadState::Queued, by, now) } else { Ok(()) }
}

/// Gives results to the calls that only waited for time to pass.
pub(crate) fn wake(record: &mut Record) {
    record.answer(|open| match open.awaits() {
        Some(Later::At(at)) => Some(json!({"waitedUntilMs": at})),
        _ => None,
    });
}

/// A value as it is given to a model in place of a result.
pub(crate) fn error_value(code: &str) -> Value {
    json!({"error": code})
}
