//! How long Ogg is: its links together, where several recordings follow one another in it (RFC 3533 §4).

use std::{collections::HashMap, time::Duration};

/// How a page begins.
const PAGE: &[u8] = b"OggS";

/// A stream of the link that is being read.
struct Stream {
    /// Units in a second.
    hertz: u64,
    /// Units before it begins.
    skipped: u64,
}

/// The time at which its streams end; `None` when nobody speaks in them.
pub(crate) fn length(bytes: &[u8]) -> Option<Duration> {
    let (mut before, mut link) = (Duration::ZERO, Duration::ZERO);
    let (mut streams, mut begins) = (HashMap::new(), true);
    let mut at = 0;
    while let Some(next) = bytes.get(at..).and_then(|rest| rest.windows(PAGE.len()).position(|word| word == PAGE)) {
        at += next;
        let Some(page) = page(bytes, at) else {
            at += PAGE.len();
            continue;
        };
        if page.is_first && !begins {
            (before, link) = (before.saturating_add(link), Duration::ZERO);
            streams.clear();
        }
        begins = page.is_first;
        if page.is_first {
            streams.extend(stream(page.content).map(|stream| (page.serial, stream)));
        } else if let Some(Stream { hertz, skipped }) = streams.get(&page.serial)
            && let Some(units) = page.position.and_then(|position| position.checked_sub(*skipped))
        {
            link = link.max(Duration::from_secs(units / hertz) + Duration::from_millis(units % hertz * 1000 / hertz));
        }
        at = page.next;
    }
    Some(before.saturating_add(link)).filter(|length| !length.is_zero())
}

struct Page<'a> {
    /// A stream begins with it.
    is_first: bool,
    /// Where its stream is after it; `None` while nothing ends in it.
    position: Option<u64>,
    serial: u32,
    content: &'a [u8],
    next: usize,
}

fn page(bytes: &[u8], at: usize) -> Option<Page<'_>> {
    let head = bytes.get(at..at.checked_add(27)?).filter(|head| head.starts_with(PAGE))?;
    let position = i64::from_le_bytes(head[6..14].try_into().ok()?);
    let serial = u32::from_le_bytes(head[14..18].try_into().ok()?);
    let content = at + 27 + usize::from(head[26]);
    let length: usize = bytes.get(at + 27..content)?.iter().map(|segment| usize::from(*segment)).sum();
    let next = content + length;
    let content = bytes.get(content..next.min(bytes.len()))?;
    Some(Page { is_first: head[5] & 2 != 0, position: u64::try_from(position).ok(), serial, content, next })
}

/// What a stream of sound says of its units.
fn stream(head: &[u8]) -> Option<Stream> {
    let number = |at: usize| Some(u64::from(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?)));
    let (hertz, skipped) = if head.starts_with(b"OpusHead") {
        (48_000, number(10)? & 0xffff)
    } else if head.starts_with(b"\x01vorbis") {
        (number(12)?, 0)
    } else if head.starts_with(b"Speex   ") {
        (number(36)?, 0)
    } else if head.starts_with(b"\x7fFLAC") {
        // 20 bits of what it says of its samples.
        let rate = head.get(27..30)?;
        (u64::from(rate[0]) << 12 | u64::from(rate[1]) << 4 | u64::from(rate[2]) >> 4, 0)
    } else {
        return None;
    };
    (hertz > 0).then_some(Stream { hertz, skipped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_that_follow_one_another_are_as_long_as_all_of_them() {
        let page = |kind: u8, position: i64, serial: u32, content: &[u8]| {
            let mut page = [&b"OggS\0"[..], &[kind], &position.to_le_bytes(), &serial.to_le_bytes()].concat();
            page.extend([0; 8]);
            page.extend([1, u8::try_from(content.len()).expect("short")]);
            page.extend(content);
            page
        };
        let head = [&b"OpusHead\x01\x01"[..], &312_u16.to_le_bytes(), &[0; 7]].concat();
        let one =
            |serial| [page(2, 0, serial, &head), page(0, -1, serial, b"x"), page(4, 48_312, serial, b"x")].concat();
        assert_eq!(length(&one(1)), Some(Duration::from_secs(1)));
        assert_eq!(length(&[one(1), one(2), one(1)].concat()), Some(Duration::from_secs(3)));
        // Two that sound at once.
        let both = [page(2, 0, 1, &head), page(2, 0, 2, &head), page(4, 48_312, 1, b"x"), page(4, 24_312, 2, b"x")];
        assert_eq!(length(&both.concat()), Some(Duration::from_secs(1)));
        assert_eq!(length(&[one(1), b"between".to_vec(), one(2)].concat()), Some(Duration::from_secs(2)));
        let slow = [&b"\x01vorbis\0\0\0\0\x01"[..], &1_u32.to_le_bytes(), &[0; 14]].concat();
        let endless = |serial| [page(2, 0, serial, &slow), page(4, i64::MAX, serial, b"x")].concat();
        assert!(length(&[endless(1), endless(2), endless(3)].concat()).is_some(), "longer than can be said");
        let recording = one(1);
        for cut in 0..recording.len() {
            let _ = length(&recording[..cut]);
            let mut changed = recording.clone();
            changed[cut] ^= 0xff;
            let _ = length(&changed);
        }
    }
}
