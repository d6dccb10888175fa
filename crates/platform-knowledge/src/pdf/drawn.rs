//! What a PDF draws, in lines and the cells of lines.

use pdf_extract::{MediaBox, OutputDev, OutputError, Transform};

/// Words of a line that stand so many sizes of their letters apart are in cells of their own.
const BETWEEN_CELLS: f64 = 1.0;
/// Lines of a cell stand up to so many sizes of their letters below one another.
const BETWEEN_LINES: f64 = 1.5;
/// A cell begins at most so many sizes of its letters above the last line of the one before.
const TALLEST_CELL: f64 = 20.0;
/// Lines of a cell.
const MAX_LINES: usize = 64;
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

/// A line as it is drawn; where a cell of it has several, all of them.
#[derive(Default)]
pub(super) struct Line {
    pub text: String,
    /// Sizes of its letters in points, added up, and how many they are.
    pub sizes: f64,
    pub letters: u32,
    pub cells: Vec<Cell>,
}

/// Words of a line that stand apart: where they begin in its text, and where they are on the page.
pub(super) struct Cell {
    begin: usize,
    pub left: f64,
    pub right: f64,
    /// Where its last line stands, from above.
    bottom: f64,
}

impl Line {
    /// Draws a letter from `left` to `right` at `bottom`, that stands so far from the one before.
    pub fn draw(&mut self, letter: &str, size: f64, (left, right, bottom): (f64, f64, f64), gap: f64) {
        if gap > size * 0.1 && !self.text.ends_with('\n') {
            self.text.push(' ');
        }
        match self.cells.last_mut() {
            Some(cell) if gap <= size * BETWEEN_CELLS => cell.extend(left, right, bottom),
            last => {
                if let Some(last) = last {
                    last.right = last.right.min(left);
                }
                self.cells.push(Cell { begin: self.text.len(), left, right, bottom });
            }
        }
        let letters = LIGATURES.iter().find(|(drawn, _)| *drawn == letter).map_or(letter, |(_, letters)| letters);
        self.text.push_str(letters);
        self.sizes += size;
        self.letters = self.letters.saturating_add(1);
    }

    /// Whether a word there is in the next line of the last of its cells.
    fn goes_on(&self, (x, y): (f64, f64), size: f64) -> bool {
        let [.., before, last] = self.cells.as_slice() else { return false };
        self.is_above(last, y, size) && before.right <= x && x < last.right
    }

    /// Whether what is of that size at `y` may be the next line of a cell.
    fn is_above(&self, cell: &Cell, y: f64, size: f64) -> bool {
        self.is_set_in(size) && cell.bottom < y && y - cell.bottom <= size * BETWEEN_LINES
    }

    fn is_set_in(&self, size: f64) -> bool {
        (self.size() - size).abs() < size * 0.1
    }

    /// Whether the line after it is the next one of what is its only cell.
    fn is_cell_with(&self, next: &Self) -> bool {
        let ([cell], [below]) = (self.cells.as_slice(), next.cells.as_slice()) else { return false };
        self.is_above(cell, below.bottom, next.size()) && cell.left < below.right && below.left < cell.right
    }

    /// Takes the line after it into its only cell.
    fn append(&mut self, next: &Self) {
        self.text.extend(["\n", &next.text]);
        self.sizes += next.sizes;
        self.letters = self.letters.saturating_add(next.letters);
        if let ([cell], [below]) = (self.cells.as_mut_slice(), next.cells.as_slice()) {
            cell.extend(below.left, below.right, below.bottom);
        }
    }

    /// Its cells, each with its text.
    pub fn cells(&self) -> Vec<(&Cell, &str)> {
        let ends = self.cells.iter().skip(1).map(|cell| cell.begin).chain([self.text.len()]);
        let cells = self.cells.iter().zip(ends).map(|(cell, end)| (cell, self.text[cell.begin..end].trim()));
        cells.filter(|(_, text)| !text.is_empty()).collect()
    }

    /// Size of its letters in points.
    fn size(&self) -> f64 {
        self.sizes / f64::from(self.letters.max(1))
    }

    /// Size of its letters in half points.
    #[expect(clippy::cast_possible_truncation, reason = "sizes of letters are small")]
    pub fn half_points(&self) -> i64 {
        (self.size() * 2.0).clamp(0.0, 10_000.0).round() as i64
    }
}

impl Cell {
    fn extend(&mut self, left: f64, right: f64, bottom: f64) {
        (self.left, self.right, self.bottom) = (self.left.min(left), self.right.max(right), bottom);
    }
}

/// What is drawn on the pages, in lines.
#[derive(Default)]
pub(super) struct Drawn {
    pub pages: Vec<Vec<Line>>,
    begins_word: bool,
    /// Letters of the word until now.
    word_letters: u32,
    /// Where the last letter is, where it ends, and its size.
    last_y: f64,
    last_left: f64,
    last_end: f64,
    last_size: f64,
}

impl Drawn {
    /// Begins a page.
    pub fn begin(&mut self) {
        self.pages.push(vec![Line::default()]);
        (self.begins_word, self.last_y, self.last_end, self.last_size) = (false, 0.0, f64::MAX, 0.0);
    }
}

/// Where a word that is set elsewhere than after the last one goes: into the line that is its row of cells, else into a
/// new one, after an empty one where a paragraph begins. Gives how far it stands from what is before it there.
fn place(lines: &mut Vec<Line>, at: (f64, f64), size: f64, gap: f64, is_paragraph: bool) -> f64 {
    let goes_on = lines.last().is_some_and(|line| line.goes_on(at, size));
    if !goes_on && !ends_cell(lines, at, size) {
        lines.extend(is_paragraph.then(Line::default));
        lines.push(Line::default());
        return gap;
    }
    if let Some(line) = lines.last_mut() {
        line.text.push('\n');
    }
    if goes_on { 0.0 } else { f64::INFINITY }
}

/// Whether what is set above and right of the last lines ends them as a cell: they are one line then.
fn ends_cell(lines: &mut Vec<Line>, (x, y): (f64, f64), size: f64) -> bool {
    let Some(up) = lines.last().and_then(|line| line.cells.last()).map(|cell| cell.bottom - y) else { return false };
    if up <= 0.0 || up > size * TALLEST_CELL {
        return false;
    }
    let last = lines.len() - 1;
    let mut first = last;
    // A cell rises no further above the middle of its row than it falls below.
    let reaches = |line: &Line| line.cells.iter().all(|cell| y - cell.bottom <= up + size * 0.1);
    while first > last.saturating_sub(MAX_LINES)
        && lines[first - 1].is_cell_with(&lines[first])
        && reaches(&lines[first - 1])
    {
        first -= 1;
    }
    let (before, cell) = lines.split_at(first);
    let is_below = before.iter().flat_map(|line| &line.cells).next_back().is_none_or(|cell| cell.bottom < y);
    // What has several lines or cells is no word before one that is raised.
    let is_word = matches!(cell, [line] if line.cells.len() == 1);
    let between = if is_word { size * BETWEEN_CELLS } else { 0.0 };
    let is_right = cell.iter().flat_map(|line| &line.cells).all(|cell| cell.right + between < x);
    let is_cell = is_below && is_right && cell.iter().all(|line| line.is_set_in(size));
    if is_cell {
        for next in lines.split_off(first + 1) {
            lines[first].append(&next);
        }
    }
    is_cell
}

impl OutputDev for Drawn {
    fn begin_page(&mut self, _: u32, _: &MediaBox, _: Option<(f64, f64, f64, f64)>) -> Result<(), OutputError> {
        self.begin();
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
            // A width that is stated too large moves the rest of its word on: what comes next lies over the last letter.
            if self.word_letters > 1 && gap < size * -0.2 && x > f64::midpoint(self.last_left, self.last_end) {
                gap = f64::INFINITY;
            }
            let (moved, goes_back) = ((y - self.last_y).abs(), x < self.last_end - size * 0.1);
            let is_upright = at.m12.abs() <= at.m11.abs();
            // What is raised or lowered goes on where its line is.
            let most = if is_upright { size.max(self.last_size) * 0.5 } else { size * 1.5 };
            self.word_letters = 0;
            if moved > most || goes_back && moved > size * 0.5 {
                gap = place(lines, (x, y), size, gap, goes_back && moved > size * 1.5);
            }
        }
        let Some(line) = lines.last_mut() else { return Ok(()) };
        self.word_letters = self.word_letters.saturating_add(1);
        let end = x + width * size;
        line.draw(letter, size, (x, end, y), gap);
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
