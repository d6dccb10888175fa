//! What must hold for frames whatever is written: for the fuzzer, and for generated cases in the tests.

use std::sync::{Arc, Mutex};

use platform_core::{AccountId, FairMemory, Timestamp};
use serde_json::{Value, json};

use crate::{
    frame::{Calls, Head, Streaming},
    room::Room,
};

/// Shows a text that grows by a piece of up to `step` characters at a time: a reader of the events (WHATWG HTML §9.2)
/// that folds them holds at each moment what was written until then.
pub fn frames(text: &str, step: usize) {
    let shared = Arc::new(Mutex::new(String::new()));
    let head = Head::new(1, Timestamp(5), false, &json!({"name": text})).expect("JSON");
    let room = Room::new(&FairMemory::new(0, 0), &AccountId::generate());
    let (mut folded, mut from) = (String::new(), 0);
    let characters: Vec<char> = text.chars().collect();
    for (moment, piece) in characters.chunks(step.max(1)).enumerate() {
        let length = {
            let mut shared = shared.lock().expect("lock");
            shared.extend(piece);
            shared.len()
        };
        let sequence = i64::try_from(moment).unwrap_or(i64::MAX);
        let now = Streaming {
            uid: text.into(),
            text: Arc::clone(&shared),
            length,
            calls: Calls::Received("".into()),
            calls_size: 0,
            sequence,
            at: Timestamp(7),
            frames: Arc::default(),
        };
        let (name, delta) = read(&now.delta(from, &room).expect("room"), sequence);
        assert_eq!(name, "delta");
        folded.push_str(delta["append"].as_str().expect("text"));
        from = length;
        assert!(text.starts_with(&folded) && folded.len() == length);
        for (frame, expected) in [(now.snapshot(&head, &room).0, "snapshot"), (now.partial(&head, &room).0, "partial")]
        {
            let (name, data) = read(&frame, sequence);
            assert_eq!((name.as_str(), &data["streamingMessage"]["content"]["message"]), (expected, &json!(folded)));
            assert_eq!(data["streamingMessage"]["uid"], text);
        }
        assert_eq!(read(&now.snapshot(&head, &room).0, sequence).1["name"], text);
    }
}

/// Reads one event as a browser does.
fn read(frame: &[u8], sequence: i64) -> (String, Value) {
    let text = std::str::from_utf8(frame).expect("UTF-8");
    let (mut name, mut data, mut ends) = (String::new(), Vec::new(), 0);
    let lines = text.replace("\r\n", "\n");
    for line in lines.split(['\r', '\n']) {
        match line.split_once(": ") {
            Some(("id", id)) => assert_eq!(id, sequence.to_string()),
            Some(("event", event)) => event.clone_into(&mut name),
            Some(("data", line)) => data.push(line),
            _ => ends += usize::from(line.is_empty()),
        }
    }
    assert_eq!((data.len(), ends), (1, 2), "one event, in one line: {text:?}");
    (name, serde_json::from_str(data[0]).expect("JSON"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_reader_that_folds_frames_holds_what_was_written(text in "\\PC{0,40}|[\r\n\u{2028}\"\\\\: ä🦀\0]{0,40}", step in 1..9_usize) {
            super::frames(&text, step);
        }
    }
}
