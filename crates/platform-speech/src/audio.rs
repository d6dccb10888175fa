//! What a recording is, and how long.

use std::{io::Cursor, time::Duration};

use lofty::{file::AudioFile, probe::Probe};
use platform_child::Work;
use platform_files::media_type;
use serde_json::json;

use crate::{fragments, ogg};

/// The formats that are read, as errors name them.
pub(crate) const SUPPORTED: [&str; 9] = ["mp3", "mp4", "m4a", "mpeg", "mpga", "wav", "webm", "ogg", "flac"];
/// How a program stream of MPEG begins (ISO 13818-1 §2.5.3.4).
const MPEG_PACK: [u8; 4] = [0, 0, 1, 0xba];
/// CPU time and memory of one container.
const CPU: Duration = Duration::from_secs(5);
const MEMORY: u64 = 256 << 20;

/// What the child processes of this crate do: the milliseconds of a recording, or `null`.
pub const AUDIO_WORKS: [Work; 1] = [Work {
    name: "audio",
    run: |bytes| {
        json!(length(bytes).and_then(|length| u64::try_from(length.as_millis()).ok())).to_string().into_bytes()
    },
    cpu: CPU,
    memory: MEMORY,
}];

/// Media type and extension of a recording, by its first bytes; `None` for what is none.
pub(crate) fn format(head: &[u8]) -> Option<(&'static str, &'static str)> {
    if begins_as_mpeg(head) {
        return Some(("audio/mpeg", "mp3"));
    }
    // A recording of a moment is too short for what else tells it from its kin.
    if head.starts_with(&[0x1a, 0x45, 0xdf, 0xa3]) && head.windows(4).take(64).any(|word| word == b"webm") {
        return Some(("audio/webm", "webm"));
    }
    if head.starts_with(&MPEG_PACK) {
        return Some(("video/mpeg", "mpeg"));
    }
    Some(match media_type("", "", head).as_str() {
        "audio/mpeg" => ("audio/mpeg", "mp3"),
        "video/mp4" => ("audio/mp4", "mp4"),
        "audio/mp4" => ("audio/mp4", "m4a"),
        "audio/wav" => ("audio/wav", "wav"),
        "audio/webm" | "video/webm" | "video/x-matroska" => ("audio/webm", "webm"),
        "audio/ogg" | "video/ogg" | "application/ogg" => ("audio/ogg", "ogg"),
        "audio/flac" => ("audio/flac", "flac"),
        // The pictures of Canon's cameras are in the same container.
        kind if head.get(4..8) == Some(b"ftyp") && head.get(8..11) != Some(b"crx") && !kind.starts_with("image/") => {
            ("audio/mp4", "mp4")
        }
        _ => return None,
    })
}

/// Whether a recording begins with a frame of MPEG audio that another one follows, as far as it goes.
fn begins_as_mpeg(head: &[u8]) -> bool {
    let Some(Frame { length, .. }) = mpeg_frame(head) else { return false };
    let next = head.get(length..).filter(|next| length > 0 && next.len() >= 3);
    next.is_none_or(|next| mpeg_frame(next).is_some())
}

/// A frame of MPEG audio.
struct Frame {
    /// Bytes; 0 where it does not say.
    length: usize,
    samples: u64,
    hertz: u64,
}

/// The frame of MPEG audio (ISO 11172-3 §2.4.2.3) that begins here, of the second or third layer, with checksums or not.
/// Nobody records in the first layer, and text of 16 bits may look like it.
fn mpeg_frame(head: &[u8]) -> Option<Frame> {
    const SECOND: [usize; 15] = [0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384];
    const THIRD: [usize; 15] = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
    const LOWER: [usize; 15] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
    const HERTZ: [usize; 3] = [44_100, 48_000, 32_000];
    let [0xff, second, third, ..] = *head else { return None };
    let (version, layer) = (second >> 3 & 3, second >> 1 & 3);
    if second & 0xe0 != 0xe0 || version == 1 || !matches!(layer, 1 | 2) {
        return None;
    }
    let (kilobits, slots, slower) = match (version, layer) {
        (3, 2) => (SECOND, 144, 1),
        (3, _) => (THIRD, 144, 1),
        (of, 2) => (LOWER, 144, if of == 2 { 2 } else { 4 }),
        (of, _) => (LOWER, 72, if of == 2 { 2 } else { 4 }),
    };
    let bits = kilobits.get(usize::from(third >> 4))? * 1000;
    let hertz = HERTZ.get(usize::from(third >> 2 & 3))? / slower;
    let length = if bits == 0 { 0 } else { slots * bits / hertz + usize::from(third >> 1 & 1) };
    Some(Frame { length, samples: 8 * slots as u64, hertz: hertz as u64 })
}

/// What comes after a tag of `ID3v2`, where there is one: its size has seven bits a byte.
fn after_tag(bytes: &[u8]) -> &[u8] {
    let size = bytes.get(6..10).filter(|_| bytes.starts_with(b"ID3"));
    let size = size.map(|size| size.iter().fold(0, |size, byte| size << 7 | usize::from(byte & 0x7f)) + 10);
    bytes.get(size.unwrap_or(0)..).unwrap_or_default()
}

/// How long MPEG audio is, by its frames: what its first one says of all may be untrue.
fn mpeg(bytes: &[u8]) -> Option<Duration> {
    let (mut at, mut micros, mut follows) = (0, 0, false);
    while at + 4 <= bytes.len() {
        // What is between may look like a frame; none follows it.
        let frame = mpeg_frame(&bytes[at..]).filter(|frame| frame.length > 0);
        match frame.filter(|_| follows || begins_as_mpeg(&bytes[at..])) {
            Some(frame) => {
                micros += frame.samples * 1_000_000 / frame.hertz;
                at += frame.length;
                follows = true;
            }
            None => (at, follows) = (at + 1, false),
        }
    }
    Some(Duration::from_micros(micros)).filter(|length| !length.is_zero())
}

/// How long a recording is, by its container.
fn length(bytes: &[u8]) -> Option<Duration> {
    if bytes.starts_with(&[0x1a, 0x45, 0xdf, 0xa3]) {
        return webm(bytes);
    }
    if bytes.starts_with(b"RIFF") {
        return wav(bytes);
    }
    if bytes.starts_with(b"OggS") {
        return ogg::length(bytes);
    }
    if format(bytes).is_some_and(|(_, extension)| extension == "mp3") {
        return mpeg(after_tag(bytes));
    }
    if bytes.get(4..8) == Some(b"ftyp")
        && let Some(length) = fragments::length(bytes)
    {
        return Some(length);
    }
    let file = Probe::new(Cursor::new(bytes)).guess_file_type().ok()?.read().ok()?;
    Some(file.properties().duration()).filter(|length| !length.is_zero())
}

/// The same of WAV, by the bytes that it has: one that was written as it was recorded says no size, or any.
fn wav(bytes: &[u8]) -> Option<Duration> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (mut at, mut a_second) = (12, None);
    while let Some(size) = number(at + 4) {
        let content = at + 8;
        match &bytes[at..at + 4] {
            b"fmt " => a_second = number(content + 8).filter(|rate| *rate > 0),
            b"data" => {
                let left = bytes.len() - content;
                let there = usize::try_from(size).ok().filter(|size| (1..left).contains(size)).unwrap_or(left);
                let (there, a_second) = (u64::try_from(there).ok()?, u64::from(a_second?));
                let millis = (there * 1000 + a_second / 2) / a_second;
                return Some(Duration::from_millis(millis)).filter(|length| !length.is_zero());
            }
            _ => {}
        }
        // Each begins at an even place.
        at = content.checked_add(usize::try_from(size).ok()?)?.checked_next_multiple_of(2)?;
    }
    None
}

/// The same of `WebM`: what it says, or the time of its last block where that is later, since browsers write it as they
/// record.
fn webm(bytes: &[u8]) -> Option<Duration> {
    const SEGMENT: u32 = 0x1853_8067;
    const INFO: u32 = 0x1549_a966;
    const SCALE: u32 = 0x002a_d7b1;
    const DURATION: u32 = 0x4489;
    const CLUSTER: u32 = 0x1f43_b675;
    const GROUP: u32 = 0xa0;
    const TIME: u32 = 0xe7;
    const BLOCKS: [u32; 2] = [0xa3, 0xa1];
    let (mut scale, mut said, mut cluster, mut last) = (1_000_000_u64, None, 0_u64, None);
    let mut at = 0;
    while let Some((id, content, next)) = element(bytes, at) {
        let value = bytes.get(content..next.min(bytes.len())).unwrap_or_default();
        match id {
            SCALE => scale = number(value)?,
            DURATION => {
                said = match value.len() {
                    4 => Some(f64::from(f32::from_be_bytes(value.try_into().ok()?))),
                    8 => Some(f64::from_be_bytes(value.try_into().ok()?)),
                    _ => None,
                }
            }
            TIME => cluster = number(value)?,
            id if BLOCKS.contains(&id) => {
                // After the number of its track: when, counted from its cluster.
                let track = usize::try_from(value.first()?.leading_zeros()).ok()? + 1;
                let within = i16::from_be_bytes(value.get(track..track + 2)?.try_into().ok()?);
                last = Some(cluster.saturating_add_signed(within.into()));
            }
            _ => {}
        }
        // What holds others is gone into.
        at = if [SEGMENT, INFO, CLUSTER, GROUP].contains(&id) { content } else { next };
    }
    #[expect(clippy::cast_precision_loss, reason = "a time, not a sum")]
    let last = last.map(|last| last as f64);
    let ticks = said.filter(|ticks| *ticks > 0.0).into_iter().chain(last).reduce(f64::max)?;
    #[expect(clippy::cast_precision_loss, reason = "a time, not a sum")]
    Duration::try_from_secs_f64(ticks * scale as f64 / 1e9).ok().filter(|length| !length.is_zero())
}

/// The element of EBML at a place: its id, where its content begins, and where the next one does.
fn element(bytes: &[u8], at: usize) -> Option<(u32, usize, usize)> {
    let first = *bytes.get(at)?;
    let width = usize::try_from(first.leading_zeros()).ok()? + 1;
    let id = bytes.get(at..at + width).filter(|_| width <= 4)?;
    let id = id.iter().fold(0_u32, |id, byte| id << 8 | u32::from(*byte));
    let at = at + width;
    let first = *bytes.get(at)?;
    let width = usize::try_from(first.leading_zeros()).ok()? + 1;
    let size = bytes.get(at..at + width).filter(|_| width <= 8)?;
    let all_ones = size.iter().enumerate().all(|(i, byte)| *byte == if i == 0 { 0xff >> (width - 1) } else { 0xff });
    let size = size.iter().enumerate().fold(0_u64, |size, (i, byte)| {
        let byte = if i == 0 { u64::from(*byte) & (0x7f >> (width - 1)) } else { u64::from(*byte) };
        size << 8 | byte
    });
    let content = at + width;
    // Of unknown size: to the end.
    let size = if all_ones { bytes.len() } else { usize::try_from(size).ok()? };
    Some((id, content, content.checked_add(size)?))
}

fn number(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= 8).then(|| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(seconds: u32) -> Vec<u8> {
        let data = vec![0_u8; 8000 * seconds as usize];
        let length = |bytes: usize| u32::try_from(bytes).expect("small").to_le_bytes();
        let mut wav = [b"RIFF".as_slice(), &length(36 + data.len()), b"WAVEfmt ", &length(16)].concat();
        wav.extend([1, 0, 1, 0]);
        wav.extend(8000_u32.to_le_bytes());
        wav.extend(8000_u32.to_le_bytes());
        wav.extend([1, 0, 8, 0]);
        wav.extend(b"data");
        wav.extend(length(data.len()));
        wav.extend(data);
        wav
    }

    #[test]
    fn a_container_says_what_it_is_and_how_long() {
        let wav = wav(2);
        assert_eq!(format(&wav), Some(("audio/wav", "wav")));
        assert_eq!(length(&wav), Some(Duration::from_secs(2)));
        let streamed = |size: u32| [&wav[..40], &size.to_le_bytes(), &wav[44..]].concat();
        for size in [0, u32::MAX, 0x7fff_f000] {
            assert_eq!(length(&streamed(size)), Some(Duration::from_secs(2)), "it says that it has {size} bytes");
        }
        assert_eq!(length(&streamed(8000)), Some(Duration::from_secs(1)), "what comes after it is not heard");
        let frames = [[0xff, 0xfa, 0x90, 0], [0xff, 0xe3, 0x18, 0], [0xff, 0xfd, 0x80, 0], [0xff, 0xfc, 0x80, 0]];
        for (frame, bytes) in frames.into_iter().zip([417, 72, 417, 417]) {
            let frame = [&frame[..], &vec![0; bytes - 4]].concat();
            assert_eq!(format(&frame), Some(("audio/mpeg", "mp3")), "{:x?}", &frame[..4]);
            assert_eq!(format(&frame.repeat(2)), Some(("audio/mpeg", "mp3")), "{:x?}", &frame[..4]);
            assert_eq!(format(&[&frame[..], &[0; 9]].concat()), None, "nothing of the kind follows");
        }
        // A hundred frames that say of themselves that they are one.
        let frame = [&[0xff, 0xfb, 0x90, 0][..], &[0; 32], b"Xing\0\0\0\x01\0\0\0\x01", &[0; 369]].concat();
        let tag = [&b"ID3\x04\0\0\0\0\x02\0"[..], &[0xff; 256]].concat();
        let lies = [tag, frame.repeat(50), b"between".to_vec(), frame.repeat(50)].concat();
        assert_eq!(
            (format(&lies), length(&lies)),
            (Some(("audio/mpeg", "mp3")), Some(Duration::from_micros(2_612_200)))
        );
        let text: Vec<u8> = "\u{feff}Hello".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!((format(&text), format(b"\0\0\0\x18ftypcrx \0\0\0\x01crx isom")), (None, None));
        // Raw AAC begins alike; it has no layer.
        assert_ne!(format(&[0xff, 0xf1, 0x50, 0x80]), Some(("audio/mpeg", "mp3")));
        let short = [b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\x82\x84webm".as_slice(), &[0; 40]].concat();
        assert_eq!(format(&short), Some(("audio/webm", "webm")));
        for (head, kind) in [(&b"\0\0\x01\xba\x44\0\x04"[..], "mpeg"), (b"\0\0\0\x18ftypiso8\0\0\0\0", "mp4")] {
            assert_eq!(format(head).map(|(_, extension)| extension), Some(kind), "{head:x?}");
        }
        assert_eq!(format(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"), None);
        for none in [b"%PDF-1.4".as_slice(), b"hello", b""] {
            assert_eq!((format(none), length(none)), (None, None));
        }
    }

    #[test]
    fn a_recording_of_a_browser_is_as_long_as_its_last_block_says() {
        let ebml = [0x1a, 0x45, 0xdf, 0xa3, 0x84, 0x42, 0x82, 0x81, b'w'];
        let segment = [0x18, 0x53, 0x80, 0x67, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let info = [0x15, 0x49, 0xa9, 0x66, 0x87, 0x2a, 0xd7, 0xb1, 0x83, 0x0f, 0x42, 0x40];
        let cluster = [0x1f, 0x43, 0xb6, 0x75, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xe7, 0x82, 0x07, 0xd0];
        let block = [0xa3, 0x85, 0x81, 0x01, 0xf4, 0x80, 0x00];
        let recording = [ebml.as_slice(), &segment, &info, &cluster, &block].concat();
        assert_eq!(length(&recording), Some(Duration::from_millis(2500)));
        // One that says less than it holds is as long as what it holds.
        let less = [0x15, 0x49, 0xa9, 0x66, 0x87, 0x44, 0x89, 0x84, 0x3f, 0x80, 0, 0];
        assert_eq!(length(&[&ebml[..], &segment, &less, &cluster, &block].concat()), Some(Duration::from_millis(2500)));
        // Whatever is cut off or changed gives some time or none, and ends.
        for cut in 0..recording.len() {
            let _ = length(&recording[..cut]);
            let mut changed = recording.clone();
            changed[cut] ^= 0xff;
            let _ = length(&changed);
        }
    }
}
