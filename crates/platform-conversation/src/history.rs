use serde_json::value::RawValue;

/// A frame above its bound holds so many of the newest messages (contract 02 §7.9).
const TRUNCATED_MESSAGES: usize = 200;

/// What stands around the state in a frame: number, name, the time of the last change.
const AROUND: usize = 128;

/// The messages of a frame of at most so many bytes (0 = no bound), of which `rest` are taken by other things, and
/// whether older ones are left out.
pub fn kept_history(bodies: Vec<String>, most_bytes: usize, rest: usize) -> (Vec<Box<RawValue>>, bool) {
    let size: usize = bodies.iter().map(|body| body.len() + 1).sum();
    let mut kept = bodies.len();
    let mut left = most_bytes.saturating_sub(rest + AROUND);
    if most_bytes > 0 && size > left {
        let fits = |body: &&String| {
            let fits = body.len() < left;
            left = left.saturating_sub(body.len() + 1);
            fits
        };
        kept = bodies.iter().rev().take(TRUNCATED_MESSAGES).take_while(fits).count();
    }
    let first = bodies.len() - kept;
    let history = bodies.into_iter().skip(first).map(|body| RawValue::from_string(body).unwrap_or_default());
    (history.collect(), first > 0)
}
