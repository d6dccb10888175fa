//! Rates: how often somebody may ask (contract 00 §8).
//!
//! **Owns** the table `rate_buckets`. **Needs** `platform-db`, and that only where several processes
//! share one database.
//!
//! A bucket is GCRA: one moment until which it is used up. Alone, a process keeps it in memory. With
//! others it takes its share in small parcels from the database, whose clock counts, so that most
//! requests ask nobody.
//!
//! **Invariants**: what a parcel holds and nobody used is lost after ten seconds; all processes together
//! let through at most one parcel each (a hundredth of the burst) more than the rate; when the database
//! is away nobody is refused for that.
//!
//! ```
//! # use platform_limits::{Rate, RateLimits};
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let limits = RateLimits::new(None);
//! let rate = Rate::parse("2:2").unwrap();
//! for _ in 0..2 {
//!     assert!(limits.take("log-in ann", rate).await.unwrap().allowed);
//! }
//! assert!(!limits.take("log-in ann", rate).await.unwrap().allowed);
//! # });
//! ```

mod rate;
mod repository;

pub use rate::{Allowance, Rate, RateLimits};
