//! Buckets that processes share, on a real PostgreSQL.

use platform_limits::{Rate, RateLimits};
use platform_testing::TestDb;

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_bucket_and_let_through_no_more_than_its_burst() {
    let test = TestDb::new().await;
    let rate = Rate { count: 1, minutes: 1, burst: 100 };
    let processes: Vec<RateLimits> = (0..3).map(|_| RateLimits::new(Some(test.connect()))).collect();
    let takes = (0..300).map(|n| processes[n % 3].take("key", rate));
    let taken = futures_util::future::join_all(takes).await;
    let allowed = taken.iter().flatten().filter(|allowance| allowance.allowed).count();
    // What a process has in its parcel when the others are refused is its own.
    assert!((95..=100).contains(&allowed), "{allowed} passed");
    let refused = taken.iter().flatten().rfind(|allowance| !allowance.allowed).expect("one was refused");
    assert!(refused.retry_after > 50 && refused.reset > 5000, "{refused:?}");
    assert!(processes[0].take("other", rate).await.is_some_and(|allowance| allowance.allowed), "buckets stand alone");
    assert_eq!(processes[0].take("key", Rate { count: 0, minutes: 1, burst: 0 }).await, None, "no bound");
}
