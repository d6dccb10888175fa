use serde_json::value::RawValue;

/// A frame above its bound holds so many of the newest messages (contract 02 §7.9).
const TRUNCATED_MESSAGES: usize = 200;

/// The messages of a frame of at most so many bytes (0 = no bound), and whether older ones are left out.
pub fn kept_history(bodies: Vec<String>, most_bytes: usize) -> (Vec<Box<RawValue>>, bool) {
    let size: usize = bodies.iter().map(String::len).sum();
    let mut kept = bodies.len();
    if most_bytes > 0 && size > most_bytes {
        let mut left = most_bytes;
        let fits = |body: &&String| {
            let fits = body.len() <= left;
            left = left.saturating_sub(body.len());
            fits
        };
        kept = bodies.iter().rev().take(TRUNCATED_MESSAGES).take_while(fits).count();
    }
    let first = bodies.len() - kept;
    let history = bodies.into_iter().skip(first).map(|body| RawValue::from_string(body).unwrap_or_default());
    (history.collect(), first > 0)
}
