use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

/// The words of a text as a search looks for them, with one space between: in NFKC (UAX #15), without soft hyphens and
/// joiners; where `camelCase` goes on, another begins. In scripts that put no spaces between words (Chinese, Japanese,
/// Thai …) any two neighbours are a word.
pub fn search_words(text: &str) -> String {
    // What is normal already need not be made so.
    if text.is_ascii() {
        return split_ascii(text);
    }
    let mut words = String::with_capacity(text.len());
    let mut run = Vec::new();
    let mut before = ' ';
    for c in text.nfkc().filter(|c| !is_ignored(*c)).chain([' ']) {
        let kind = Kind::of(before);
        if kind != Kind::of(c) || is_seam(before, c) {
            add(&mut words, &run, kind);
            run.clear();
        }
        run.push(c);
        before = c;
    }
    words
}

/// The words that [`search_words`] splits, each whole: who looks for `GitHub` may write it in small letters.
pub fn unsplit_words(text: &str) -> impl Iterator<Item = String> {
    let normal: String = text.nfkc().filter(|c| !is_ignored(*c)).collect();
    let words = normal.split(|c| !matches!(Kind::of(c), Kind::Word)).map(str::to_owned).collect::<Vec<_>>();
    words.into_iter().filter(|word| word.chars().zip(word.chars().skip(1)).any(|(a, b)| is_seam(a, b)))
}

/// Whether another word begins within `camelCase`.
fn is_seam(before: char, c: char) -> bool {
    c.is_uppercase() && before.is_lowercase()
}

fn split_ascii(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    for word in ascii_words(text) {
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(word);
    }
    words
}

/// The same of a text in ASCII, where they stand in it.
pub fn ascii_words(text: &str) -> impl Iterator<Item = &str> {
    let (bytes, mut at) = (text.as_bytes(), 0);
    std::iter::from_fn(move || {
        at += bytes[at..].iter().take_while(|byte| !byte.is_ascii_alphanumeric()).count();
        let begin = at;
        let begins_another = |at: usize| bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase();
        while at < bytes.len() && bytes[at].is_ascii_alphanumeric() && (at == begin || !begins_another(at)) {
            at += 1;
        }
        text.get(begin..at).filter(|word| !word.is_empty())
    })
}

/// What a character is a part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    /// Words without spaces between.
    Unspaced,
    Nothing,
}

impl Kind {
    fn of(c: char) -> Self {
        match c {
            c if c.is_ascii_alphanumeric() => Self::Word,
            c if c.is_ascii() => Self::Nothing,
            '\u{e00}'..='\u{eff}'
            | '\u{1000}'..='\u{109f}'
            | '\u{1780}'..='\u{17ff}'
            | '\u{3040}'..='\u{30ff}'
            | '\u{3400}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7af}'
            | '\u{20000}'..='\u{3ffff}' => Self::Unspaced,
            c if c.is_alphanumeric() || is_combining_mark(c) => Self::Word,
            _ => Self::Nothing,
        }
    }
}

/// Soft hyphens, joiners, and the mark of byte order.
fn is_ignored(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200c}' | '\u{200d}' | '\u{2060}' | '\u{feff}')
}

fn add(words: &mut String, run: &[char], kind: Kind) {
    let most = match kind {
        Kind::Nothing => return,
        Kind::Word => run.len(),
        Kind::Unspaced => run.len().min(2),
    };
    for word in run.windows(most) {
        if !words.is_empty() {
            words.push(' ');
        }
        words.extend(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whatever_stands_around_them_and_however_they_are_written() {
        for (text, words) in [
            ("`/livez` knowledgeRecall, PLATFORM_DATA_DIR\u{e4}x", "livez knowledge Recall PLATFORM DATA DIR\u{e4}x"),
            ("Cafe\u{301} \u{fb01}x co\u{ad}operate \u{ff21}\u{ff11}", "Caf\u{e9} fix cooperate A1"),
            ("iPhone手机号码!", "i Phone 手机 机号 号码"),
            ("水", "水"),
            ("`/livez` knowledgeRecall, A1", "livez knowledge Recall A1"),
            (" -- ", ""),
        ] {
            assert_eq!(search_words(text), words, "{text}");
        }
        let whole = |text| unsplit_words(text).collect::<Vec<_>>();
        assert_eq!(whole("our GitHub, PLATFORM_DATA_DIR, iPhone手机号码"), ["GitHub", "iPhone"]);
    }
}
