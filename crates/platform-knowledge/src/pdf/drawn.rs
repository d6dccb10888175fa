//! What a PDF draws, in lines and the cells of lines.

use pdf_extract::{MediaBox, OutputDev, OutputError, Transform};

/// Words of a line that stand so many sizes of their letters apart are in cells of their own.
const BETWEEN_CELLS: f64 = 1.0;
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

/// A line as it is drawn.
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
}

impl Line {
    /// Draws a letter that stands so far from the one before.
    pub fn draw(&mut self, letter: &str, size: f64, (left, right): (f64, f64), gap: f64) {
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
    pub fn cells(&self) -> Vec<(&Cell, &str)> {
        let ends = self.cells.iter().skip(1).map(|cell| cell.begin).chain([self.text.len()]);
        let cells = self.cells.iter().zip(ends).map(|(cell, end)| (cell, self.text[cell.begin..end].trim()));
        cells.filter(|(_, text)| !text.is_empty()).collect()
    }

    /// Size of its letters in half points.
    #[expect(clippy::cast_possible_truncation, reason = "sizes of letters are small")]
    pub fn half_points(&self) -> i64 {
        (self.sizes / f64::from(self.letters.max(1)) * 2.0).clamp(0.0, 10_000.0).round() as i64
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
            if moved > most || goes_back && moved > size * 0.5 {
                lines.push(Line::default());
            }
            if goes_back && moved > size * 1.5 {
                lines.push(Line::default());
            }
            self.word_letters = 0;
        }
        self.word_letters = self.word_letters.saturating_add(1);
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
