use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use platform_core::AccountId;

const FAILURES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(30);
/// Entries above this many are looked through for those that nobody needs.
const MAX_KNOWN: usize = 10_000;

/// Whose calls of which model fail: what one account asks, or one model does not answer, is no trouble of any other.
type Key = (AccountId, Arc<str>);

/// Leaves a model alone for a while after ten failures in a row (contract 18 §3.5).
#[derive(Debug, Default)]
pub(crate) struct Breaker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failing: HashMap<Key, Failing>,
    /// When somebody had an answer last.
    answered: Option<Instant>,
}

#[derive(Debug)]
struct Failing {
    failures: u32,
    last: Instant,
    closed_until: Option<Instant>,
}

impl Breaker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call may be made now. After the pause one probe may, the others wait for its outcome.
    pub fn admits(&self, key: &Key) -> bool {
        match self.state().failing.get_mut(key).and_then(|failing| failing.closed_until.as_mut()) {
            Some(until) if Instant::now() < *until => false,
            Some(until) => {
                *until = Instant::now() + PAUSE;
                true
            }
            None => true,
        }
    }

    /// Whether calls are left out now, or tried again, and nobody has had an answer since they failed.
    pub fn is_open(&self) -> bool {
        let state = self.state();
        let is_silent = |failing: &Failing| state.answered.is_none_or(|answered| answered < failing.last);
        state.failing.values().any(|failing| failing.closed_until.is_some() && is_silent(failing))
    }

    /// It answered, be it that the request was no good.
    pub fn answered(&self, key: &Key) {
        let mut state = self.state();
        state.failing.remove(key);
        state.answered = Some(Instant::now());
    }

    pub fn failed(&self, key: Key) {
        let (mut state, now) = (self.state(), Instant::now());
        if state.failing.len() >= MAX_KNOWN {
            state.failing.retain(|_, failing| failing.last + PAUSE > now);
            if state.failing.len() >= MAX_KNOWN {
                state.failing.clear();
            }
        }
        let failing = state.failing.entry(key).or_insert(Failing { failures: 0, last: now, closed_until: None });
        (failing.failures, failing.last) = (failing.failures + 1, now);
        if failing.failures >= FAILURES {
            failing.closed_until = Some(now + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_failures_in_a_row_close_the_door_for_one_account_and_model_and_an_answer_opens_it() {
        let breaker = Breaker::default();
        let key = |account, model: &str| (AccountId::named(account), Arc::from(model));
        let (bad, good, other) = (key("a", "bad"), key("a", "good"), key("b", "bad"));
        (0..9).for_each(|_| breaker.failed(bad.clone()));
        assert!(breaker.admits(&bad));
        breaker.failed(bad.clone());
        assert!(!breaker.admits(&bad) && breaker.is_open());
        assert!(breaker.admits(&good) && breaker.admits(&other));
        breaker.answered(&good);
        assert!(!breaker.admits(&bad) && !breaker.is_open(), "others have answers");
        breaker.answered(&bad);
        assert!(breaker.admits(&bad));
    }
}
