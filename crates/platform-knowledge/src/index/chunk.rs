//! A text in pieces: by headings, then paragraphs.

use platform_core::sha256_hex;
use serde::Serialize;
use text_splitter::{ChunkConfig, ChunkSizer, TextSplitter};

use crate::document::tokens;

/// About so many tokens of a piece, of which so many are of the one before (contract 06 §4).
const SIZE: usize = 400;
const OVERLAP: usize = 60;
/// Pieces of a text; one with more headings than that is cut without regard to them.
const MOST: usize = 10_000;
/// Bytes that are cut into pieces at once.
const MAX_PART: usize = 64 << 10;
/// Bytes of space between two pieces, so that the second begins with the end of the first.
const MAX_BETWEEN: usize = 16;
/// Bytes of a heading in a path.
const MAX_HEADING: usize = 200;

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
pub(crate) fn chunks(markdown: &str) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (heading_path, text) in sections(markdown) {
        if chunks.len() > MOST {
            break;
        }
        chunks.extend(pieces(&heading_path, text));
    }
    if chunks.len() > MOST { pieces(&[], markdown) } else { chunks }
}

/// A text below its headings in pieces, each from the second on with the end of the one before.
fn pieces(heading_path: &[String], text: &str) -> Vec<Chunk> {
    let splitter = TextSplitter::new(ChunkConfig::new(SIZE - OVERLAP).with_sizer(Tokens));
    let mut chunks = Vec::new();
    let (mut part_begin, mut before) = (0, 0..0);
    for part in parts(text) {
        for (at, piece) in splitter.chunk_indices(part) {
            let piece = part_begin + at..part_begin + at + piece.len();
            let is_near = !before.is_empty() && piece.start - before.end <= MAX_BETWEEN;
            let begin = if is_near { before.start + overlap(&text[before.clone()]) } else { piece.start };
            let text = &text[begin..piece.end];
            chunks.push(Chunk {
                heading_path: heading_path.to_vec(),
                text: text.to_owned(),
                token_count: tokens(text),
            });
            before = piece;
        }
        part_begin += part.len();
    }
    chunks
}

/// Where the end of a piece begins that the next one repeats: with a paragraph, a line, a sentence or a word.
fn overlap(piece: &str) -> usize {
    let ends = piece.char_indices().rev().map(|(at, _)| at).take(4 * OVERLAP);
    let begin = ends.take_while(|at| tokens(&piece[*at..]) < OVERLAP).last().unwrap_or(piece.len());
    let tail = &piece[begin..];
    let after = |mark: &str| tail.find(mark).map(|at| at + mark.len()).filter(|at| *at <= tail.len() / 2);
    begin + ["\n\n", "\n", ". ", "\u{3002}", " "].into_iter().find_map(after).unwrap_or(0)
}

/// A text in parts that are cut in a moment: the time for one grows with the square of its longest paragraph.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let most = rest.floor_char_boundary(MAX_PART);
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
    let names = |path: &[(usize, String)]| path.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
    let (mut begin, mut at, mut fence) = (0, 0, None);
    // A paragraph that has one line so far, and where it begins.
    let mut paragraph: Option<(usize, &str)> = None;
    let mut is_new = true;
    // The heading that has nothing below it so far.
    let mut bare: Option<&str> = None;
    for line in markdown.split_inclusive('\n') {
        let was_fenced = fence.is_some();
        fence = fence_after(fence, line);
        let is_code = was_fenced || fence.is_some();
        let underlined = paragraph.and_then(|(from, name)| Some((from, (underline(line)?, name_of(name)))));
        let found = underlined.or_else(|| Some((at, heading(line)?))).filter(|_| !is_code);
        let is_blank = line.trim().is_empty();
        paragraph = Some((at, line)).filter(|_| is_new && !is_code && begins_paragraph(line));
        is_new = is_blank || found.is_some();
        if let Some((end, (level, name))) = found {
            let body = Some(markdown[begin..end].trim()).filter(|body| !body.is_empty());
            let is_below = path.last().is_some_and(|(above, _)| *above < level);
            if let Some(said) = body.or(bare.filter(|_| !is_below)) {
                sections.push((names(&path), said));
                // Nobody looks at them when there are more than may be pieces.
                if sections.len() > MOST {
                    return sections;
                }
            }
            path.retain(|(above, _)| *above < level);
            let after = at + line.len();
            // What is left out of its name is said below it.
            begin = if name.len() < MAX_HEADING - 3 { after } else { end };
            bare = Some(markdown[end..after].trim());
            path.push((level, name));
        }
        at += line.len();
    }
    let rest = markdown[begin..].trim();
    if let Some(said) = Some(rest).filter(|rest| !rest.is_empty()).or(bare) {
        sections.push((names(&path), said));
    }
    sections
}

/// The code fence that is open after a line: its character and its length (`CommonMark` §4.5).
fn fence_after(open: Option<(char, usize)>, line: &str) -> Option<(char, usize)> {
    let bare = line.trim();
    let Some(mark) = bare.chars().next().filter(|mark| matches!(mark, '`' | '~')) else { return open };
    let info = bare.trim_start_matches(mark);
    let length = bare.len() - info.len();
    match open {
        Some((of, least)) if of == mark && length >= least && info.is_empty() => None,
        None if length >= 3 && !(mark == '`' && info.contains('`')) => Some((mark, length)),
        open => open,
    }
}

/// Whether a line can be a heading that the next one underlines: no list, quote, table or mark of metadata.
fn begins_paragraph(line: &str) -> bool {
    let is_indented = line.starts_with("    ") || line.starts_with('\t');
    !is_indented && line.trim_start().starts_with(|c: char| c.is_alphanumeric() || matches!(c, '"' | '(' | '`' | '['))
}

/// Level of the heading that a line underlines (`CommonMark` §4.3).
fn underline(line: &str) -> Option<usize> {
    let bare = line.trim_end();
    let marks = bare.trim_start_matches(' ');
    let level = match marks.chars().next()? {
        '=' => 1,
        '-' => 2,
        _ => return None,
    };
    let is_one = marks.len() > 1 && marks.bytes().all(|mark| mark == marks.as_bytes()[0]);
    (is_one && bare.len() - marks.len() <= 3).then_some(level)
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
    Some((level, name_of(rest.trim().trim_end_matches('#'))))
}

/// As much of a heading as is kept.
fn name_of(heading: &str) -> String {
    let name = heading.trim();
    name[..name.floor_char_boundary(MAX_HEADING)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_its_headings_and_every_piece_knows_where_it_stands() {
        let text = "Before.\n\n# One\n\nFirst.\n\n```\n# no heading\n```\n\n## Two ##\nSecond.\n\n#tag\n\n### Deep\nThird.\n\n# Last\n";
        let chunks = chunks(text);
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
                (vec!["Last"], "# Last"),
            ]
        );
        assert_eq!(super::chunks("# Alone").len(), 1);
        let bare = super::chunks("# Phones\n\n## Fire 112\n\n## Other\n\nNone.\n\n## Last\n---\n");
        let bare: Vec<(&str, &str)> = bare
            .iter()
            .map(|piece| (piece.heading_path.last().map_or("", String::as_str), piece.text.as_str()))
            .collect();
        assert_eq!(bare, [("Fire 112", "## Fire 112"), ("Other", "None."), ("Last", "---")]);
        let long = format!("# {} end\n\nText.", "word ".repeat(60));
        assert!(super::chunks(&long)[0].text.contains("end"), "what is too long for a heading is not lost");
        assert!(super::chunks(" \n").is_empty());
        let text = "---\nname: x\n---\n\nTitle\n=====\nA.\n\n````\n```\n# no\n````\n`` ```x``` ``\n\nPart\n---\nB.\n\nlast\nline\n---\n";
        let found: Vec<String> = super::chunks(text).into_iter().map(|chunk| chunk.heading_path.join("/")).collect();
        assert_eq!(found, ["", "Title", "Title/Part"]);
    }

    #[test]
    fn of_more_headings_than_pieces_no_more_is_kept_than_is_looked_at() {
        let above =
            (1..=5).fold(String::new(), |text, level| text + &"#".repeat(level) + " " + &"h".repeat(200) + "\n");
        let text = above + &"###### x\ny\n".repeat(400_000);
        assert!(sections(&text).len() <= MOST + 1);
        let pieces = chunks(&text);
        assert!(pieces.len() > 1000 && pieces.iter().all(|piece| piece.heading_path.is_empty()), "{}", pieces.len());
    }

    #[test]
    fn a_line_without_end_is_cut_in_a_moment() {
        let line = "word ".repeat(400_000);
        let began = std::time::Instant::now();
        let pieces = chunks(&line);
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
        let chunks = chunks(&text);
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
