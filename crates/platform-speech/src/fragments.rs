//! How long an MP4 is whose samples come in fragments, as browsers record: its head does not say (ISO 14496-12 §8.8).

use std::{collections::HashMap, time::Duration};

/// A track of it.
#[derive(Default)]
struct Track {
    /// Units in a second.
    scale: u64,
    /// Of a sample that says nothing else.
    sample: u64,
    /// Where its last fragment ends.
    end: u64,
}

/// The time at which its longest track ends; `None` when it has no fragments.
pub(crate) fn length(bytes: &[u8]) -> Option<Duration> {
    let mut tracks: HashMap<u32, Track> = HashMap::new();
    for (kind, content) in boxes(bytes) {
        match &kind {
            b"moov" => head(content, &mut tracks),
            b"moof" => boxes(content).filter(|(kind, _)| kind == b"traf").for_each(|(_, traf)| {
                fragment(traf, &mut tracks);
            }),
            _ => {}
        }
    }
    let ends = tracks.values().filter(|track| track.scale > 0 && track.end > 0);
    let millis = ends.map(|track| u128::from(track.end) * 1000 / u128::from(track.scale)).max()?;
    Some(Duration::from_millis(u64::try_from(millis).ok()?))
}

/// What the head says of the tracks: their units, and how long their samples are.
fn head(moov: &[u8], tracks: &mut HashMap<u32, Track>) {
    for (kind, content) in boxes(moov) {
        let (mut id, mut scale) = (None, None);
        match &kind {
            b"trak" => {
                for (kind, content) in boxes(content) {
                    match &kind {
                        b"tkhd" => id = u32_at(content, after_times(content)),
                        b"mdia" => {
                            let mdhd = boxes(content).find(|(kind, _)| kind == b"mdhd");
                            scale = mdhd.and_then(|(_, mdhd)| u32_at(mdhd, after_times(mdhd)));
                        }
                        _ => {}
                    }
                }
                if let (Some(id), Some(scale)) = (id, scale) {
                    tracks.entry(id).or_default().scale = scale.into();
                }
            }
            b"mvex" => {
                for (_, trex) in boxes(content).filter(|(kind, _)| kind == b"trex") {
                    if let (Some(id), Some(sample)) = (u32_at(trex, 4), u32_at(trex, 12)) {
                        tracks.entry(id).or_default().sample = sample.into();
                    }
                }
            }
            _ => {}
        }
    }
}

/// Where a header goes on after its two times, which have eight bytes since version 1.
fn after_times(header: &[u8]) -> usize {
    if header.first() == Some(&1) { 20 } else { 12 }
}

/// Adds the samples of a fragment to those of its track.
fn fragment(traf: &[u8], tracks: &mut HashMap<u32, Track>) -> Option<()> {
    let (_, tfhd) = boxes(traf).find(|(kind, _)| kind == b"tfhd")?;
    let (flags, id) = (u32_at(tfhd, 0)?, u32_at(tfhd, 4)?);
    let track = tracks.get_mut(&id)?;
    let at = 8 + if flags & 1 == 0 { 0 } else { 8 } + if flags & 2 == 0 { 0 } else { 4 };
    let sample = if flags & 8 == 0 { track.sample } else { u32_at(tfhd, at)?.into() };
    for (kind, content) in boxes(traf) {
        match &kind {
            b"tfdt" if content.first() == Some(&1) => {
                track.end = u64::from(u32_at(content, 4)?) << 32 | u64::from(u32_at(content, 8)?);
            }
            b"tfdt" => track.end = u32_at(content, 4)?.into(),
            b"trun" => {
                let (flags, count) = (u32_at(content, 0)?, u32_at(content, 4)?);
                let width = [0x100, 0x200, 0x400, 0x800].iter().filter(|flag| flags & **flag != 0).count() * 4;
                let at = 8 + if flags & 1 == 0 { 0 } else { 4 } + if flags & 4 == 0 { 0 } else { 4 };
                let added = if flags & 0x100 == 0 {
                    sample.saturating_mul(count.into())
                } else {
                    let samples = content.get(at..)?.chunks_exact(width).take(usize::try_from(count).ok()?);
                    samples.filter_map(|sample| u32_at(sample, 0)).map(u64::from).sum()
                };
                track.end = track.end.saturating_add(added);
            }
            _ => {}
        }
    }
    Some(())
}

/// The boxes that stand one after the other: their kinds, and what is in them.
fn boxes(mut rest: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let kind: [u8; 4] = rest.get(4..8)?.try_into().ok()?;
        let (head, size) = match u32_at(rest, 0)? {
            // To the end.
            0 => (8, rest.len()),
            1 => (16, usize::try_from(u64::from(u32_at(rest, 8)?) << 32 | u64::from(u32_at(rest, 12)?)).ok()?),
            size => (8, usize::try_from(size).ok()?),
        };
        // The last one may have been cut off.
        let content = rest.get(head..size.min(rest.len()))?;
        rest = &rest[size.min(rest.len())..];
        Some((kind, content))
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(kind: &[u8], content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(8 + content.len()).expect("small");
        [&size.to_be_bytes(), kind, content].concat()
    }

    fn numbers(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    #[test]
    fn a_recording_in_fragments_is_as_long_as_its_last_sample_says() {
        let track =
            [made(b"tkhd", &numbers(&[0, 0, 0, 7])), made(b"mdia", &made(b"mdhd", &numbers(&[0, 0, 0, 48_000])))];
        let trex = made(b"mvex", &made(b"trex", &numbers(&[0, 7, 1, 960, 0])));
        let moov = made(b"moov", &[made(b"trak", &track.concat()), trex].concat());
        let fragment = |begins: u32, flags: u32, run: &[u32]| {
            let run = numbers(&[&[flags], run].concat());
            let parts = [made(b"tfhd", &numbers(&[0, 7])), made(b"tfdt", &numbers(&[0, begins])), made(b"trun", &run)];
            made(b"moof", &made(b"traf", &parts.concat()))
        };
        let ftyp = made(b"ftyp", b"iso5\0\0\0\0");
        let (first, second) = (fragment(0, 0, &[50]), fragment(48_000, 0x300, &[2, 960, 11, 24_000, 12]));
        let recording = [ftyp.clone(), moov.clone(), first, made(b"mdat", &[0; 9]), second].concat();
        assert_eq!(length(&recording), Some(Duration::from_millis(1520)));
        assert_eq!(length(&[ftyp, moov].concat()), None, "without fragments its head says");
        for cut in 0..recording.len() {
            let _ = length(&recording[..cut]);
            let mut changed = recording.clone();
            changed[cut] ^= 0xff;
            let _ = length(&changed);
        }
    }
}
