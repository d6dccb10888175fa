use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use moka::sync::Cache;
use platform_core::Result;
use platform_db::Db;
use tokio::sync::Mutex;
use tracing::warn;

use crate::repository;

const MAX_BUCKETS: u64 = 100_000;
const IDLE: Duration = Duration::from_hours(1);
/// What a parcel holds is lost after this.
const PARCEL_LIFE: Duration = Duration::from_secs(10);
const MICROS: i64 = 1_000_000;
/// A microsecond is the shortest time between two.
const MAX_PER_MINUTE: u32 = 60_000_000;

/// So many in so many minutes, and so many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// In the time that follows; 0 = no bound.
    pub count: u32,
    /// That time.
    pub minutes: u32,
    /// At once.
    pub burst: u32,
}

impl Rate {
    /// Reads `6000:1000`; `0` is no bound.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "0" {
            return Some(Self { count: 0, minutes: 1, burst: 0 });
        }
        let (count, burst) = text.split_once(':')?;
        let (count, burst) = (count.parse().ok()?, burst.parse().ok()?);
        let good = count <= MAX_PER_MINUTE && (burst > 0 || count == 0);
        good.then_some(Self { count, minutes: 1, burst })
    }

    fn interval(self) -> i64 {
        60 * MICROS * i64::from(self.minutes) / i64::from(self.count)
    }

    fn capacity(self) -> i64 {
        self.interval() * i64::from(self.burst)
    }

    fn parcel(self) -> u32 {
        (self.burst / 100).max(1)
    }
}

/// What a bucket says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Whether this one passes.
    pub allowed: bool,
    /// A minute.
    pub limit: u32,
    /// How many more would pass now.
    pub remaining: u32,
    /// Seconds until the bucket is full again.
    pub reset: u64,
    /// Seconds until the next passes, when this one does not.
    pub retry_after: u64,
}

/// All buckets of this process.
pub struct RateLimits {
    /// Where buckets are shared; `None` when this process is alone.
    db: Option<Db>,
    buckets: Cache<String, Arc<Mutex<Bucket>>>,
    began: Instant,
}

#[derive(Default)]
struct Bucket {
    /// Until when it is used up, by the clock of whoever keeps it.
    used_until: i64,
    /// Taken from the database and not used yet.
    parcel: u32,
    /// When the database was asked last, by its clock and ours.
    asked: Option<(i64, Instant)>,
}

impl RateLimits {
    /// With `db` the buckets are shared by all processes on that database.
    pub fn new(db: Option<Db>) -> Self {
        let buckets = Cache::builder().max_capacity(MAX_BUCKETS).time_to_idle(IDLE).build();
        Self { db, buckets, began: Instant::now() }
    }

    /// Takes one from a bucket; `None` when its rate has no bound.
    pub async fn take(&self, name: &str, rate: Rate) -> Option<Allowance> {
        if rate.count == 0 {
            return None;
        }
        let bucket = self.buckets.get_with_by_ref(name, Arc::default);
        // One question at a time is what the lock is for.
        let mut bucket = bucket.lock().await;
        let Some(db) = &self.db else {
            let now = i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX);
            return Some(bucket.take(rate, now));
        };
        Some(bucket.take_shared(db, name, rate).await.unwrap_or_else(|error| {
            warn!(%error, "Rate limits cannot be read; the request passes unchecked.");
            Allowance { allowed: true, ..bucket.allowance(rate, bucket.used_until, bucket.used_until) }
        }))
    }

    /// Gives back one that was taken and is not to count after all.
    pub async fn give_back(&self, name: &str, rate: Rate) {
        if rate.count == 0 {
            return;
        }
        let bucket = self.buckets.get_with_by_ref(name, Arc::default);
        let mut bucket = bucket.lock().await;
        bucket.used_until -= rate.interval();
        if let Some(db) = &self.db
            && let Err(error) = repository::give_back(db, name, rate.interval()).await
        {
            warn!(%error, "A request that is not to count could not be taken off its rate limit; it counts.");
        }
    }
}

impl Bucket {
    fn take(&mut self, rate: Rate, now: i64) -> Allowance {
        let next = self.used_until.max(now) + rate.interval();
        let allowed = next - now <= rate.capacity();
        if allowed {
            self.used_until = next;
        }
        Allowance { allowed, ..self.allowance(rate, now, next) }
    }

    async fn take_shared(&mut self, db: &Db, name: &str, rate: Rate) -> Result<Allowance> {
        let here = |asked: (i64, Instant)| asked.0 + i64::try_from(asked.1.elapsed().as_micros()).unwrap_or(0);
        if let Some(asked) = self.asked {
            let now = here(asked);
            if asked.1.elapsed() > PARCEL_LIFE {
                self.parcel = 0;
            }
            let next = self.used_until.max(now) + rate.interval();
            if self.parcel > 0 {
                self.parcel -= 1;
                return Ok(Allowance { allowed: true, ..self.allowance(rate, now, next) });
            }
            // As far as we know it is used up; what others gave back nobody can.
            if next - now > rate.capacity() {
                return Ok(Allowance { allowed: false, ..self.allowance(rate, now, next) });
            }
        }
        for parcel in [rate.parcel(), 1] {
            let wanted = rate.interval() * i64::from(parcel);
            let (taken, used_until, now) = repository::take(db, name, wanted, rate.capacity()).await?;
            (self.used_until, self.asked) = (used_until, Some((now, Instant::now())));
            if taken {
                self.parcel = parcel - 1;
                return Ok(Allowance { allowed: true, ..self.allowance(rate, now, used_until) });
            }
        }
        let now = self.asked.map_or(0, |(now, _)| now);
        Ok(Allowance { allowed: false, ..self.allowance(rate, now, self.used_until + rate.interval()) })
    }

    /// `next`: until when it would be used up with one more.
    fn allowance(&self, rate: Rate, now: i64, next: i64) -> Allowance {
        let used = (self.used_until - now).max(0);
        let free = (rate.capacity() - used).max(0) / rate.interval();
        let seconds = |micros: i64| u64::try_from((micros + MICROS - 1) / MICROS).unwrap_or(0);
        Allowance {
            allowed: true,
            limit: rate.count,
            remaining: u32::try_from(free).unwrap_or(u32::MAX).saturating_add(self.parcel).min(rate.burst),
            reset: seconds(used),
            retry_after: seconds((next - now - rate.capacity()).max(0)).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lets_its_burst_through_and_then_its_rate() {
        let rate = Rate::parse("60:5").expect("a rate");
        let mut bucket = Bucket::default();
        let remaining: Vec<u32> = (0..5).map(|_| bucket.take(rate, 0).remaining).collect();
        assert_eq!(remaining, [4, 3, 2, 1, 0]);
        let refused = bucket.take(rate, 0);
        assert_eq!((refused.allowed, refused.remaining, refused.retry_after, refused.reset), (false, 0, 1, 5));
        assert!(!bucket.take(rate, 999_999).allowed);
        assert!(bucket.take(rate, MICROS).allowed && !bucket.take(rate, MICROS).allowed);
        assert_eq!(bucket.take(rate, 60 * MICROS).remaining, 4, "full again");
        bucket.used_until -= rate.interval();
        assert_eq!(bucket.take(rate, 60 * MICROS).remaining, 4, "given back");
        assert_eq!((Rate::parse("10"), Rate::parse("10:0"), Rate::parse("a:b")), (None, None, None));
        assert_eq!(Rate::parse("0").map(|rate| rate.count), Some(0));
    }
}
