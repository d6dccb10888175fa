//! PDF as Markdown: pages, headings as far as they are set larger than the text, and tables whose cells stand apart.

use std::collections::BTreeMap;

use pdf_extract::{Document, Error as PdfError, MediaBox, OutputDev, OutputError, Transform, output_doc};

use crate::{
    document::MOST_TEXT,
    html::{cell_of, table_of},
};

/// Pages of a PDF.
const MOST_PAGES: usize = 10_000;
/// A line is a heading from so many times the size of the text on, and up to so many letters.
const LARGER: f64 = 1.15;
const LONGEST_HEADING: usize = 150;
/// Sizes of headings that are told apart.
const MOST_LEVELS: usize = 4;
/// Words of a line that stand so many sizes of their letters apart are in cells of their own.
const BETWEEN_CELLS: f64 = 1.0;
/// Columns of a table.
const MOST_COLUMNS: usize = 64;
/// Letters that are drawn as one.
const LIGATURES: [(&str, &str); 7] = [
    ("\u{fb00}", "ff"),
    ("\u{fb01}", "fi"),
    ("\u{fb02}", "fl"),
    ("\u{fb03}", "ffi"),
    ("\u{fb04}", "ffl"),
    ("\u{fb05}", "st"),
    ("\u{fb06}", "st"),
];
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
    cells: Vec<Cell>,
}

/// Words of a line that stand apart: where they begin in its text, and where they are on the page.
struct Cell {
    begin: usize,
    left: f64,
    right: f64,
}

impl Line {
    /// Draws a letter that stands so far from the one before.
    fn draw(&mut self, letter: &str, size: f64, (left, right): (f64, f64), gap: f64) {
        if gap > size * 0.1 {
            self.text.push(' ');
        }
        match self.cells.last_mut() {
            Some(cell) if gap <= size * BETWEEN_CELLS => cell.right = cell.right.max(right),
            last => {
                if let Some(last) = last {
                    last.right = last.right.min(left);
                }
                self.cells.push(Cell { begin: self.text.len(), left, right });
            }
        }
        let letters = LIGATURES.iter().find(|(drawn, _)| *drawn == letter).map_or(letter, |(_, letters)| letters);
        self.text.push_str(letters);
        self.sizes += size;
        self.letters = self.letters.saturating_add(1);
    }

    /// Its cells, each with its text.
    fn cells(&self) -> Vec<(&Cell, &str)> {
        let ends = self.cells.iter().skip(1).map(|cell| cell.begin).chain([self.text.len()]);
        let cells = self.cells.iter().zip(ends).map(|(cell, end)| (cell, self.text[cell.begin..end].trim()));
        cells.filter(|(_, text)| !text.is_empty()).collect()
    }

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
    /// Letters since it began.
    letters: u32,
    /// Where the last letter is, where it ends, and its size.
    last_y: f64,
    last_left: f64,
    last_end: f64,
    last_size: f64,
}

impl OutputDev for Drawn {
    fn begin_page(&mut self, _: u32, _: &MediaBox, _: Option<(f64, f64, f64, f64)>) -> Result<(), OutputError> {
        self.pages.push(vec![Line::default()]);
        (self.begins_word, self.last_y, self.last_end, self.last_size) = (false, 0.0, f64::MAX, 0.0);
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
        let mut gap = 0.0;
        if self.begins_word {
            gap = x - self.last_end;
            // Of several letters of which one is not as wide as it is said the last is overlapped by what comes next.
            if self.letters > 1 && gap < size * -0.2 && x > f64::midpoint(self.last_left, self.last_end) {
                gap = f64::INFINITY;
            }
            let (moved, goes_back) = ((y - self.last_y).abs(), x < self.last_end - size * 0.1);
            let is_upright = at.m12.abs() <= at.m11.abs();
            // What is raised or lowered goes on where its line is.
            let most = if is_upright { size.max(self.last_size) * 0.5 } else { size * 1.5 };
            if moved > most || goes_back && moved > size * 0.5 {
                lines.push(Line::default());
            }
            if goes_back && moved > size * 1.5 {
                lines.push(Line::default());
            }
            self.letters = 0;
        }
        self.letters = self.letters.saturating_add(1);
        let end = x + width * size;
        if let Some(line) = lines.last_mut() {
            line.draw(letter, size, (x, end), gap);
        }
        (self.begins_word, self.last_size) = (false, size);
        (self.last_y, self.last_left, self.last_end) = (y, x, end);
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

/// A column of a table: where its cells are on the page, and what they say, each with the number of its row.
struct Column {
    left: f64,
    right: f64,
    cells: Vec<(usize, String)>,
}

/// The rows of the table that the first of these lines are, cells of a column below one another, and how many lines
/// they take.
fn table<'l>(lines: impl Iterator<Item = &'l Line>) -> (Vec<Vec<String>>, usize) {
    let (mut columns, mut rows, mut end) = (Vec::<Column>::new(), 0, 0);
    for (at, line) in lines.enumerate().filter(|(_, line)| !line.text.trim().is_empty()) {
        let cells = line.cells();
        let Some(places) = places(&columns, &cells) else { break };
        end = at + 1;
        for ((cell, text), place) in cells.into_iter().zip(places) {
            let text = cell_of(text);
            match place {
                Some(at) => {
                    let column = &mut columns[at];
                    (column.left, column.right) = (column.left.min(cell.left), column.right.max(cell.right));
                    column.cells.push((rows, text));
                }
                None => columns.push(Column { left: cell.left, right: cell.right, cells: vec![(rows, text)] }),
            }
        }
        columns.sort_by(|a, b| a.left.total_cmp(&b.left));
        rows += 1;
    }
    if rows < 2 {
        return (vec![], 0);
    }
    let mut table = vec![vec![String::new(); columns.len()]; rows];
    for (at, column) in columns.into_iter().enumerate() {
        for (row, text) in column.cells {
            table[row][at] = text;
        }
    }
    (table, end)
}

/// The column below which each cell of a row stands, none for a new one; or the row is not of this table: two of its
/// cells stand below one column or one below two, or fewer than two below any.
fn places(columns: &[Column], cells: &[(&Cell, &str)]) -> Option<Vec<Option<usize>>> {
    let stands_below = |cell: &Cell, column: &Column| column.left < cell.right && cell.left < column.right;
    // As many cells as columns are one of each, wherever in its column each stands.
    if cells.len() > 2 && cells.len() == columns.len() {
        let is_of_other = |(at, (cell, _)): (usize, &(&Cell, &str))| {
            columns.iter().enumerate().any(|(of, column)| of != at && stands_below(cell, column))
        };
        if !cells.iter().enumerate().any(is_of_other) {
            return Some((0..cells.len()).map(Some).collect());
        }
    }
    let mut places = Vec::with_capacity(cells.len());
    for (cell, _) in cells {
        let mut below = (0..columns.len()).filter(|at| stands_below(cell, &columns[*at]));
        let place = below.next();
        if below.next().is_some() || place.is_some() && places.contains(&place) {
            return None;
        }
        places.push(place);
    }
    let (old, new) = (places.iter().flatten().count(), places.iter().filter(|place| place.is_none()).count());
    let is_row = if columns.is_empty() { new > 1 } else { old > 1 };
    (is_row && columns.len() + new <= MOST_COLUMNS).then_some(places)
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
        let mut lines = lines.as_slice();
        while let [line, ..] = lines {
            let (level, words) = (level_of(line), line.text.trim());
            let is_row = |line: &&Line| level_of(line).is_none() && !line.text.trim_start().starts_with(BULLETS);
            let begins_table = line.cells.len() > 1 && !words.is_empty();
            let (rows, taken) = if begins_table { table(lines.iter().take_while(is_row)) } else { (vec![], 0) };
            lines = &lines[taken.max(1)..];
            if let Some(level) = level.filter(|level| last != Some(*level)) {
                above.split_off(&level);
            }
            if page.is_empty() && !words.is_empty() {
                page.extend(above.iter().map(|(level, words)| format!("{} {words}\n\n", "#".repeat(*level))));
            }
            if !rows.is_empty() {
                page.truncate(page.trim_end().len());
                page.extend(["\n\n", &table_of(&rows), "\n"]);
                last = None;
                continue;
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
                    page.truncate(page.trim_end().len());
                    page.extend(["\n\n", &"#".repeat(level), " ", words, "\n\n"]);
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
            Line { text: (*text).to_owned(), sizes: size * f64::from(letters), letters, cells: vec![] }
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

    /// A line of words of letters of ten points, each with where it begins.
    fn drawn(words: &[(f64, &str)]) -> Line {
        let (mut line, mut end) = (Line::default(), f64::MAX);
        for (left, word) in words {
            for (at, letter) in (0_u32..).zip(word.split_inclusive(|_: char| true)) {
                let left = left + f64::from(at) * 5.0;
                line.draw(letter, 10.0, (left, left + 5.0), left - end);
                end = left + 5.0;
            }
        }
        line
    }

    #[test]
    fn cells_that_stand_below_one_another_are_a_table() {
        let lines = vec![
            drawn(&[(0.0, "Rooms"), (28.0, "and"), (46.0, "prices")]),
            drawn(&[(0.0, "Room"), (60.0, "Beds"), (100.0, "Price")]),
            // Right under its head, nothing in the middle.
            drawn(&[(0.0, "Blue"), (23.0, "room"), (115.0, "90")]),
            drawn(&[(0.0, "Red"), (70.0, "2"), (110.0, "1|0")]),
            // As many cells as columns, none of them below the others.
            drawn(&[(24.0, "\u{fb01}n"), (82.0, "-"), (140.0, "0")]),
            drawn(&[(0.0, "A line"), (45.0, "that goes on below two")]),
            drawn(&[(0.0, "left"), (300.0, "right")]),
            drawn(&[(100.0, "neither"), (200.0, "nor")]),
        ];
        let expected = "Rooms and prices\n\n\
            | Room | Beds | Price |\n| --- | --- | --- |\n| Blue room |  | 90 |\n| Red | 2 | 1\\|0 |\n| fin | - | 0 |\n\n\
            A line that goes on below two\nleft right\nneither nor\n\n";
        assert_eq!(markdown(&[lines]), expected);
    }

    /// Writes a word of letters so wide, as parts of their size.
    fn write(drawn: &mut Drawn, (x, y): (f64, f64), size: f64, width: f64, word: &str) {
        drawn.begin_word().expect("begun");
        for (at, letter) in (0_u32..).zip(word.split_inclusive(|_: char| true)) {
            let at = Transform::row_major(1.0, 0.0, 0.0, 1.0, x + f64::from(at) * width * size, y);
            drawn.output_character(&at, width, 0.0, size, letter).expect("drawn");
        }
    }

    #[test]
    fn letters_are_one_line_as_far_as_they_are_set_as_one() {
        let mut drawn = Drawn { pages: vec![vec![Line::default()]], last_end: f64::MAX, ..Drawn::default() };
        for (at, size, width, word) in [
            ((0.0, 700.0), 36.0, 0.5, "Title"),
            ((0.0, 682.0), 12.0, 0.5, "right below it"),
            ((0.0, 650.0), 12.0, 0.5, "mc"),
            ((12.0, 654.0), 7.0, 0.5, "2"),
            ((18.0, 650.0), 12.0, 0.5, "raised"),
            ((0.0, 630.0), 12.0, 0.5, "\u{2022}"),
            ((20.0, 630.0), 12.0, 0.5, "One"),
            ((0.0, 615.0), 12.0, 0.5, "\u{2022}"),
            ((20.0, 615.0), 12.0, 0.5, "Two"),
            // An accent, and the letter below it.
            ((0.0, 590.0), 12.0, 0.5, "caf"),
            ((19.0, 590.0), 12.0, 0.4, "\u{b4}"),
            ((18.0, 590.0), 12.0, 0.5, "e"),
            // Wider than they are.
            ((60.0, 590.0), 12.0, 0.7, "Kingdom"),
            ((116.0, 590.0), 12.0, 0.7, "20"),
        ] {
            write(&mut drawn, at, size, width, word);
        }
        let expected = "# Title\n\nright below it\n\nmc2 raised\n\n- One\n- Two\n\ncaf\u{b4}e Kingdom 20\n\n";
        assert_eq!(markdown(&drawn.pages), expected);
    }

    #[test]
    fn a_table_ends_at_a_heading_and_a_list_is_none() {
        let mut heading = drawn(&[(0.0, "2"), (60.0, "Methods")]);
        heading.sizes = 16.0 * f64::from(heading.letters);
        let lines = vec![
            drawn(&[(0.0, "Room"), (60.0, "Beds"), (100.0, "Price, in the currency of the country")]),
            Line::default(),
            drawn(&[(0.0, "Blue room"), (60.0, "2"), (115.0, "90")]),
            heading,
            drawn(&[(0.0, "\u{2022}"), (20.0, "One")]),
            drawn(&[(0.0, "\u{2022}"), (20.0, "Two")]),
        ];
        let expected = "| Room | Beds | Price, in the currency of the country |\n| --- | --- | --- |\n\
            | Blue room | 2 | 90 |\n\n# 2 Methods\n\n- One\n- Two\n\n";
        assert_eq!(markdown(&[lines]), expected);
    }
}
