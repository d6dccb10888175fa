//! PDF as Markdown: pages, and headings as far as they are set larger than the text.

use std::collections::BTreeMap;

use pdf_extract::{Document, Error as PdfError, MediaBox, OutputDev, OutputError, Transform, output_doc};

use crate::document::MOST_TEXT;

/// Pages of a PDF.
const MOST_PAGES: usize = 10_000;
/// A line is a heading from so many times the size of the text on, and up to so many letters.
const LARGER: f64 = 1.15;
const LONGEST_HEADING: usize = 150;
/// Sizes of headings that are told apart.
const MOST_LEVELS: usize = 4;
/// What stands before an item of a list.
const BULLETS: [char; 7] = ['\u{2022}', '\u{25e6}', '\u{25aa}', '\u{2023}', '\u{25cf}', '\u{25cb}', '\u{25a0}'];

/// A PDF as Markdown, or why it cannot be read.
pub(crate) fn pdf(bytes: &[u8]) -> Result<String, String> {
    let unreadable = |error| match error {
        PdfError::Decryption(_) => "it is locked with a password; take that off first".to_owned(),
        error => OutputError::PdfError(error).to_string(),
    };
    let mut document = Document::load_mem(bytes).map_err(unreadable)?;
    if document.is_encrypted() {
        document.decrypt("").map_err(unreadable)?;
    }
    if document.get_pages().len() > MOST_PAGES {
        return Err(format!("it has more than {MOST_PAGES} pages"));
    }
    let mut drawn = Drawn::default();
    // What comes before a page that cannot be read is text all the same.
    let read = output_doc(&document, &mut drawn);
    if drawn.pages.iter().flatten().all(|line| line.text.trim().is_empty()) {
        read.map_err(|error| error.to_string())?;
        return Err("it has no text; a scan must be read by a program for that first".to_owned());
    }
    let mut text = markdown(&drawn.pages);
    if read.is_err() {
        text.extend(["Page ", &drawn.pages.len().to_string(), " and what follows could not be read.\n"]);
    }
    Ok(text)
}

/// A line as it is drawn.
#[derive(Default)]
struct Line {
    text: String,
    /// Sizes of its letters in points, added up, and how many they are.
    sizes: f64,
    letters: u32,
}

impl Line {
    /// Size of its letters in half points.
    #[expect(clippy::cast_possible_truncation, reason = "sizes of letters are small")]
    fn half_points(&self) -> i64 {
        (self.sizes / f64::from(self.letters.max(1)) * 2.0).clamp(0.0, 10_000.0).round() as i64
    }
}

/// What is drawn on the pages, in lines.
#[derive(Default)]
struct Drawn {
    pages: Vec<Vec<Line>>,
    begins_word: bool,
    /// Where the last letter is, and where it ends.
    last_y: f64,
    last_end: f64,
}

impl OutputDev for Drawn {
    fn begin_page(&mut self, _: u32, _: &MediaBox, _: Option<(f64, f64, f64, f64)>) -> Result<(), OutputError> {
        self.pages.push(vec![Line::default()]);
        (self.begins_word, self.last_y, self.last_end) = (false, 0.0, f64::MAX);
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn output_character(
        &mut self,
        at: &Transform,
        width: f64,
        _: f64,
        font_size: f64,
        letter: &str,
    ) -> Result<(), OutputError> {
        let Some(lines) = self.pages.last_mut() else { return Ok(()) };
        // The side of a square as large as the letter's.
        let size = (font_size * (at.m11 + at.m21) * font_size * (at.m12 + at.m22)).abs().sqrt();
        let (x, y) = (at.m31, -at.m32);
        if self.begins_word {
            let moved = (y - self.last_y).abs();
            if moved > size * 1.5 {
                lines.push(Line::default());
            }
            if x < self.last_end && moved > size * 0.5 {
                lines.push(Line::default());
            }
            if x > self.last_end + size * 0.1
                && let Some(line) = lines.last_mut()
            {
                line.text.push(' ');
            }
        }
        if let Some(line) = lines.last_mut() {
            line.text.push_str(letter);
            line.sizes += size;
            line.letters = line.letters.saturating_add(1);
        }
        (self.begins_word, self.last_y, self.last_end) = (false, y, x + width * size);
        Ok(())
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        self.begins_word = true;
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        Ok(())
    }
}

/// Sizes of headings, the largest first: those that are larger than most of the text.
fn heading_sizes(pages: &[Vec<Line>]) -> Vec<i64> {
    let mut letters: BTreeMap<i64, u64> = BTreeMap::new();
    for line in pages.iter().flatten() {
        *letters.entry(line.half_points()).or_default() += u64::from(line.letters);
    }
    let text = letters.iter().max_by_key(|(_, letters)| **letters).map_or(0, |(size, _)| *size);
    #[expect(clippy::cast_precision_loss, reason = "sizes of letters are small")]
    let is_larger = |size: i64| size as f64 >= text as f64 * LARGER && size > text;
    let mut sizes: Vec<i64> = pages
        .iter()
        .flatten()
        .filter(|line| is_heading(&line.text))
        .map(Line::half_points)
        .filter(|size| is_larger(*size))
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    sizes.truncate(MOST_LEVELS);
    sizes
}

fn is_heading(text: &str) -> bool {
    text.chars().any(char::is_alphabetic) && text.chars().count() <= LONGEST_HEADING
}

/// A passage is found with its page and the headings above it, also those of pages before.
fn markdown(pages: &[Vec<Line>]) -> String {
    let sizes = heading_sizes(pages);
    let top = if pages.len() == 1 { 1 } else { 2 };
    let level_of = |line: &Line| {
        let level = sizes.iter().position(|size| *size == line.half_points())?;
        is_heading(&line.text).then_some(top + level)
    };
    let (mut text, mut above) = (String::new(), BTreeMap::<usize, String>::new());
    for (number, lines) in (1..).zip(pages) {
        let (mut page, mut last) = (String::new(), None);
        for line in lines {
            let (level, words) = (level_of(line), line.text.trim());
            if let Some(level) = level.filter(|level| last != Some(*level)) {
                above.split_off(&level);
            }
            if page.is_empty() && !words.is_empty() {
                page.extend(above.iter().map(|(level, words)| format!("{} {words}\n\n", "#".repeat(*level))));
            }
            match level {
                // It goes on in the next line.
                Some(level) if last == Some(level) => match above.get_mut(&level) {
                    Some(heading) if heading.len() + words.len() <= LONGEST_HEADING => {
                        heading.extend([" ", words]);
                        page.truncate(page.trim_end().len());
                        page.extend([" ", words, "\n\n"]);
                    }
                    // So long is no heading.
                    _ => {
                        above.remove(&level);
                        page.extend([words, "\n"]);
                    }
                },
                Some(level) => {
                    above.insert(level, words.to_owned());
                    page = format!("{}\n\n{} {words}\n\n", page.trim_end(), "#".repeat(level));
                }
                None if words.is_empty() && page.ends_with("\n\n") => {}
                None => match words.strip_prefix(BULLETS) {
                    Some(item) => page.extend(["- ", item.trim_start(), "\n"]),
                    None => page.extend([words, "\n"]),
                },
            }
            last = level;
        }
        let page = whole_words(page.trim());
        let heading = if top == 1 || page.is_empty() { String::new() } else { format!("# Page {number}\n\n") };
        text.extend([heading.as_str(), &page, "\n\n"]);
        if text.len() > MOST_TEXT {
            break;
        }
    }
    text
}

/// Words that the end of a line cuts, in one piece.
fn whole_words(page: &str) -> String {
    let mut whole = String::with_capacity(page.len());
    let mut parts = page.split("-\n").peekable();
    while let Some(part) = parts.next() {
        whole.push_str(part);
        let is_cut = |next: &&str| part.ends_with(char::is_lowercase) && next.starts_with(char::is_lowercase);
        if parts.peek().is_some_and(|next| !is_cut(next)) {
            whole.push_str("-\n");
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(lines: &[(&str, f64)]) -> Vec<Line> {
        let line = |(text, size): &(&str, f64)| {
            let letters = u32::try_from(text.len()).expect("few");
            Line { text: (*text).to_owned(), sizes: size * f64::from(letters), letters }
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn what_is_larger_than_the_text_is_a_heading_also_on_the_pages_after_it() {
        let pages = [
            page(&[("The Hand", 24.0), ("book", 24.0), ("", 0.0), ("It says what to do, and for how long.", 10.0)]),
            page(&[("Keys", 16.0), ("A key is rotated every ninety days and re-", 10.0), ("placed.", 10.0)]),
            page(&[
                ("Whoever loses one reports it.", 10.0),
                ("\u{2022} to the desk", 10.0),
                ("Doors", 16.0),
                ("x", 10.0),
            ]),
        ];
        let expected = "# Page 1\n\n## The Hand book\n\nIt says what to do, and for how long.\n\n\
            # Page 2\n\n## The Hand book\n\n### Keys\n\nA key is rotated every ninety days and replaced.\n\n\
            # Page 3\n\n## The Hand book\n\n### Keys\n\nWhoever loses one reports it.\n- to the desk\n\n\
            ### Doors\n\nx\n\n";
        assert_eq!(markdown(&pages), expected);
        assert_eq!(markdown(&pages[..1]), "# The Hand book\n\nIt says what to do, and for how long.\n\n");
        assert_eq!(
            whole_words("an exam-\nple of XML-\nfiles, well-\n\nx -\ny"),
            "an example of XML-\nfiles, well-\n\nx -\ny"
        );
        let plain = [page(&[("One size", 10.0), ("for all", 10.0)])];
        assert_eq!(markdown(&plain), "One size\nfor all\n\n");
    }
}
