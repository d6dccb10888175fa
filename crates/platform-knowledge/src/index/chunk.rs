//! A text in pieces: by headings, then paragraphs.

use platform_core::{Result, sha256_hex};
use serde::Serialize;
use text_splitter::{ChunkConfig, ChunkSizer, TextSplitter};

use crate::document::tokens;

/// About so many tokens of a piece, of which so many are of the one before (contract 06 §4).
const SIZE: usize = 400;
const OVERLAP: usize = 60;
/// Pieces of a text; one with more headings than that is cut without regard to them.
const MOST: usize = 10_000;
/// Bytes that are cut into pieces at once.
const MOST_PART: usize = 64 << 10;
/// Bytes of a heading in a path.
const MOST_HEADING: usize = 200;

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Chunk {
    /// Headings above it, the outermost first.
    pub heading_path: Vec<String>,
    pub text: String,
    pub token_count: usize,
}

impl Chunk {
    /// What it says, below the headings above it: what its vector is made of.
    pub fn embedded(heading_path: &[String], text: &str) -> String {
        if heading_path.is_empty() { text.to_owned() } else { format!("{}\n\n{text}", heading_path.join(" > ")) }
    }

    /// The same as a name of its vector.
    pub fn text_hash(&self) -> String {
        sha256_hex(Self::embedded(&self.heading_path, &self.text))[..32].to_owned()
    }
}

struct Tokens;

impl ChunkSizer for Tokens {
    fn size(&self, chunk: &str) -> usize {
        tokens(chunk)
    }
}

/// All pieces of a text. It takes a while for a long one.
pub(crate) fn chunks(markdown: &str) -> Result<Vec<Chunk>> {
    let config = ChunkConfig::new(SIZE).with_overlap(OVERLAP).map_err(platform_core::Error::internal)?;
    let splitter = TextSplitter::new(config.with_sizer(Tokens));
    let mut chunks = Vec::new();
    for (heading_path, text) in sections(markdown) {
        if chunks.len() > MOST {
            break;
        }
        for piece in parts(text).flat_map(|part| splitter.chunks(part)) {
            chunks.push(Chunk {
                heading_path: heading_path.clone(),
                text: piece.to_owned(),
                token_count: tokens(piece),
            });
        }
    }
    if chunks.len() > MOST {
        let whole = |text: &str| Chunk { heading_path: Vec::new(), text: text.to_owned(), token_count: tokens(text) };
        return Ok(parts(markdown).flat_map(|part| splitter.chunks(part)).map(whole).collect());
    }
    Ok(chunks)
}

/// A text in parts that are cut in a moment: the time for one grows with the square of its longest paragraph.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let most = rest.floor_char_boundary(MOST_PART);
        let end = if most == rest.len() {
            most
        } else {
            let breaks = ["\n\n", "\n", " "].iter().find_map(|at| rest[..most].rfind(at).filter(|end| *end > 0));
            breaks.unwrap_or(most)
        };
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

/// What stands under each heading, and the headings above it, the outermost first.
fn sections(markdown: &str) -> Vec<(Vec<String>, &str)> {
    let mut sections = Vec::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    let (mut begin, mut at, mut fence) = (0, 0, None::<&str>);
    let names = |path: &[(usize, String)]| path.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
    for line in markdown.split_inclusive('\n') {
        let bare = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| bare.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => {}
        }
        if let Some((level, name)) = heading(line).filter(|_| fence.is_none()) {
            if !markdown[begin..at].trim().is_empty() {
                sections.push((names(&path), markdown[begin..at].trim()));
            }
            path.retain(|(above, _)| *above < level);
            path.push((level, name));
            begin = at + line.len();
        }
        at += line.len();
    }
    // A document of headings alone says what they say.
    let rest = markdown[begin..].trim();
    if !rest.is_empty() {
        sections.push((names(&path), rest));
    } else if sections.is_empty() && !markdown.trim().is_empty() {
        sections.push((Vec::new(), markdown.trim()));
    }
    sections
}

/// Level and name of an ATX heading (`CommonMark` §4.2).
fn heading(line: &str) -> Option<(usize, String)> {
    let bare = line.trim_end();
    let indent = bare.len() - bare.trim_start_matches(' ').len();
    let bare = bare.trim_start_matches(' ');
    let level = bare.len() - bare.trim_start_matches('#').len();
    let rest = &bare[level..];
    if indent > 3 || !(1..=6).contains(&level) || !(rest.is_empty() || rest.starts_with([' ', '\t'])) {
        return None;
    }
    let name = rest.trim().trim_end_matches('#').trim_end();
    let mut end = name.len().min(MOST_HEADING);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    Some((level, name[..end].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_its_headings_and_every_piece_knows_where_it_stands() {
        let text = "Before.\n\n# One\n\nFirst.\n\n```\n# no heading\n```\n\n## Two ##\nSecond.\n\n#tag\n\n### Deep\nThird.\n\n# Last\n";
        let chunks = chunks(text).expect("pieces");
        let found: Vec<(Vec<&str>, &str)> = chunks
            .iter()
            .map(|chunk| (chunk.heading_path.iter().map(String::as_str).collect(), chunk.text.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (vec![], "Before."),
                (vec!["One"], "First.\n\n```\n# no heading\n```"),
                (vec!["One", "Two"], "Second.\n\n#tag"),
                (vec!["One", "Two", "Deep"], "Third."),
            ]
        );
        assert_eq!(super::chunks("# Alone").expect("pieces").len(), 1);
        assert!(super::chunks(" \n").expect("pieces").is_empty());
    }

    #[test]
    fn a_line_without_end_is_cut_in_a_moment() {
        let line = "word ".repeat(400_000);
        let began = std::time::Instant::now();
        let pieces = chunks(&line).expect("pieces");
        assert!(pieces.len() > 1000 && pieces.iter().all(|piece| piece.token_count <= SIZE), "{}", pieces.len());
        // Without parts it takes minutes.
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn a_long_section_is_cut_into_pieces_that_overlap_and_lose_nothing() {
        let text: String = (0..400).fold("# Numbers\n\n".to_owned(), |text, n| {
            let end = if n % 5 == 4 { "\n\n" } else { " " };
            format!("{text}This is sentence number {n} of them.{end}")
        });
        let chunks = chunks(&text).expect("pieces");
        assert!(chunks.len() > 8, "{}", chunks.len());
        assert!(chunks.iter().all(|chunk| chunk.token_count <= SIZE && chunk.heading_path == ["Numbers"]));
        for n in 0..400 {
            let sentence = format!("sentence number {n} of");
            assert!(chunks.iter().any(|chunk| chunk.text.contains(&sentence)), "{sentence}");
        }
        let last = chunks[0].text.rsplit("\n\n").next().expect("a paragraph");
        assert!(chunks[1].text.starts_with(last), "{last} {}", chunks[1].text);
    }
}
