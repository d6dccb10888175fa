use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

const FAILURES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(30);

/// Leaves a provider alone for a while after ten failures in a row (contract 18 §3.5).
#[derive(Debug, Default)]
pub(crate) struct Breaker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    closed_until: Option<Instant>,
}

impl Breaker {
    /// Whether a call may be made now. After the pause one probe may, the others wait for its outcome.
    pub fn admits(&self) -> bool {
        let mut state = self.0.lock().expect("lock");
        match state.closed_until {
            Some(until) if Instant::now() < until => false,
            Some(_) => {
                state.closed_until = Some(Instant::now() + PAUSE);
                true
            }
            None => true,
        }
    }

    /// Whether the one it guards is left alone now, or is being tried again.
    pub fn is_open(&self) -> bool {
        self.0.lock().expect("lock").closed_until.is_some()
    }

    pub fn succeeded(&self) {
        *self.0.lock().expect("lock") = State::default();
    }

    pub fn failed(&self) {
        let mut state = self.0.lock().expect("lock");
        state.failures += 1;
        if state.failures >= FAILURES {
            state.closed_until = Some(Instant::now() + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_failures_in_a_row_close_the_door_and_a_success_opens_it() {
        let breaker = Breaker::default();
        (0..9).for_each(|_| breaker.failed());
        assert!(breaker.admits());
        breaker.failed();
        assert!(!breaker.admits() && breaker.is_open());
        breaker.succeeded();
        assert!(breaker.admits() && !breaker.is_open());
    }
}
