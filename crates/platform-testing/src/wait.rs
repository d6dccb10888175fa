use std::time::{Duration, Instant};

/// Far longer than anything takes that is waited for, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Asks again until there is an answer: for what no stream shows.
pub async fn eventually<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let patience = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(patience.elapsed() < PATIENCE, "{what} never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
