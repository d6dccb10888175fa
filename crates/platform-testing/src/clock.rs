use std::sync::atomic::{AtomicI64, Ordering};

use platform_core::{Clock, Timestamp};

/// A clock that only moves when it is told to.
#[derive(Debug)]
pub struct TestClock(AtomicI64);

impl TestClock {
    /// Stands at this moment.
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.0))
    }

    /// Moves on.
    pub fn advance_ms(&self, by: i64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}
