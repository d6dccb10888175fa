//! Text as the rules compare it: compatibility forms taken apart, lower case, nothing invisible.

use std::ops::Range;

use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

/// A normal form that remembers where each of its bytes came from.
pub(crate) struct Normal {
    pub text: String,
    /// For each byte of `text`, the range of the original character.
    origins: Vec<Range<usize>>,
}

impl Normal {
    /// Keeps accents.
    pub fn of(text: &str) -> Self {
        let mut normal = Self { text: String::with_capacity(text.len()), origins: Vec::with_capacity(text.len()) };
        for (at, original) in text.char_indices().filter(|(_, c)| !is_passed_over(*c)) {
            let origin = at..at + original.len_utf8();
            for c in std::iter::once(original).nfkd().flat_map(char::to_lowercase) {
                normal.text.push(c);
                normal.origins.extend(std::iter::repeat_n(origin.clone(), c.len_utf8()));
            }
        }
        normal
    }

    /// The part of the original that a part of the normal form stands for.
    pub fn origin(&self, part: Range<usize>) -> Range<usize> {
        let (first, last) = (&self.origins[part.start], &self.origins[part.end - 1]);
        first.start..last.end
    }
}

/// Without accents, for phrases.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .filter(|c| !is_passed_over(*c))
        .nfkd()
        .filter(|c| !is_combining_mark(*c))
        .flat_map(char::to_lowercase)
        .collect()
}

/// What a comparison does not see: invisible characters, and the joiners of emoji and of Persian words.
fn is_passed_over(c: char) -> bool {
    is_invisible(c) || matches!(c, '\u{200c}' | '\u{200d}')
}

/// Zero-width, bidirectional and tag characters. The joiners of emoji and of Persian words are no sign of anything.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
        | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}
