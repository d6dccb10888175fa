//! Values of variables, masked in whatever a machine says (contract 13 §4): as they are, in base64 and hexadecimal at
//! any offset, and as they stand in URLs and JSON.

use std::{
    num::NonZero,
    sync::{Arc, LazyLock},
    thread::available_parallelism,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_core::{AccountId, FairSemaphore, Result, run_blocking};
use platform_vault::spellings;

/// Shorter values are words that stand everywhere.
const SHORTEST: usize = 6;
/// What is held of a value may be shown as far as this.
const MAX_RELEASED: usize = 3;
/// From this length on lines of a value are masked by themselves, and forms are found though their lines are broken: what
/// is shorter is in lists of numbers, too.
const LONG_LINE: usize = 12;
/// Longer forms are found part by part.
const PART: usize = 64;
/// No part is longer.
const LONGEST: usize = 2 * PART;
/// Of values beyond so many bytes together fewer forms are known.
const MAX_BYTES: usize = 256 << 10;
/// Bytes of the next line that tell whether a value may go on there.
const GLANCE: usize = SHORTEST;
/// Bytes that are masked at once: of very many values that are much alike each byte takes a microsecond.
const FEW_BYTES: usize = 256;
/// More are masked at so many places, of which an account has half.
static PLACES: LazyLock<FairSemaphore> = LazyLock::new(|| {
    let all = available_parallelism().map_or(1, NonZero::get);
    FairSemaphore::new(all, all.div_ceil(2))
});

/// Masks so many bytes: few at once, more beside the threads that serve others.
pub(crate) async fn mask<T: Send + 'static>(
    account: &AccountId,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if bytes <= FEW_BYTES {
        return Ok(work());
    }
    let place = PLACES.acquire(account).await;
    run_blocking(move || {
        let _place = place;
        Ok(work())
    })
    .await
}

/// Every form of every value, in order, with what it is replaced by.
#[derive(Debug, Clone, Default)]
pub(crate) struct Redactor {
    forms: Arc<Forms>,
    /// Those that are found though their lines are broken.
    long: Arc<Forms>,
    names: Arc<Vec<String>>,
    longest: usize,
}

/// Forms in order.
#[derive(Debug, Default)]
struct Forms(Vec<Form>);

#[derive(Debug, Clone)]
struct Form {
    bytes: Vec<u8>,
    /// Number of the name of the value.
    name: usize,
    /// The longest other form that this one begins with.
    within: Option<usize>,
}

impl Forms {
    /// Of these, in order, each with the number of its name.
    fn of(all: impl Iterator<Item = (Vec<u8>, usize)>) -> Self {
        let mut forms: Vec<Form> = Vec::new();
        for (bytes, name) in all {
            // What it begins with is the form before it, or what that begins with.
            let mut within = forms.len().checked_sub(1);
            while let Some(other) = within.filter(|other| !bytes.starts_with(&forms[*other].bytes)) {
                within = forms[other].within;
            }
            forms.push(Form { bytes, name, within });
        }
        Self(forms)
    }

    fn after(&self, text: &[u8]) -> usize {
        self.0.partition_point(|form| form.bytes.as_slice() <= text)
    }

    /// The longest form that a text begins with: its length, and what it is replaced by.
    fn at(&self, text: &[u8]) -> Option<(usize, usize)> {
        // Whatever the text begins with, the last form that does not come after the text begins with it, too.
        let last = self.after(text).checked_sub(1)?;
        let common = self.0[last].bytes.iter().zip(text).take_while(|(one, other)| one == other).count();
        let mut form = &self.0[last];
        while form.bytes.len() > common {
            form = &self.0[form.within?];
        }
        Some((form.bytes.len(), form.name))
    }

    /// Whether a text may be the beginning of a form.
    fn may_begin(&self, text: &[u8]) -> bool {
        self.0.get(self.after(text)).is_some_and(|form| form.bytes.starts_with(text))
    }
}

impl Redactor {
    /// Masks these values, each by its name.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut forms, mut names) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        let mut secrets: Vec<_> = secrets.into_iter().filter(|(_, value)| value.len() >= SHORTEST).collect();
        // What is short is what is secret; texts of many bytes know fewer forms.
        secrets.sort_by_key(|(_, value)| value.len());
        for (name, value) in secrets {
            bytes += value.len();
            let found = forms_of(value, bytes <= MAX_BYTES);
            forms.extend(found.iter().flat_map(|form| parts(form)).map(|part| (part.to_vec(), names.len())));
            names.push(format!("[REDACTED:{name}]"));
        }
        forms.sort();
        forms.dedup_by(|one, other| one.0 == other.0);
        let longest = forms.iter().map(|(form, _)| form.len()).max().unwrap_or(0);
        let long = Forms::of(forms.iter().filter(|(form, _)| form.len() >= LONG_LINE).cloned());
        Self { forms: Arc::new(Forms::of(forms.into_iter())), long: Arc::new(long), names: Arc::new(names), longest }
    }

    /// Whether there is anything to mask.
    pub fn is_empty(&self) -> bool {
        self.longest == 0
    }

    /// A text that is all there.
    pub fn whole(&self, text: &[u8]) -> Vec<u8> {
        let mut masked = self.stream();
        let mut out = masked.push(text);
        out.extend(masked.finish());
        out
    }

    /// The same of text.
    pub fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.whole(text.as_bytes())).into_owned()
    }

    /// A text that comes in pieces.
    pub fn stream(&self) -> RedactedStream {
        RedactedStream { redactor: self.clone(), held: Vec::new(), ahead: 0, last: None }
    }
}

/// Masks a text as it comes; a value that is cut into pieces is masked, too.
#[derive(Debug, Default)]
pub(crate) struct RedactedStream {
    redactor: Redactor,
    /// What may be the beginning of a value.
    held: Vec<u8>,
    /// How much of it was shown all the same.
    ahead: usize,
    /// The value that was masked just before.
    last: Option<usize>,
}

impl RedactedStream {
    /// Whether it shows all that it is given.
    pub fn is_open(&self) -> bool {
        self.redactor.is_empty()
    }

    /// What can be shown now.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        self.mask(false)
    }

    /// What is shown when nothing more comes for a while: so little of what is held that it is no value yet. Should it
    /// become one, the rest is masked.
    pub fn release(&mut self) -> Vec<u8> {
        let upto = self.held.len().min(MAX_RELEASED);
        let shown = self.held[self.ahead.min(upto)..upto].to_vec();
        self.ahead = self.ahead.max(upto);
        shown
    }

    /// Whether there is something to release.
    pub fn holds(&self) -> bool {
        self.ahead < self.held.len().min(MAX_RELEASED)
    }

    /// The rest.
    pub fn finish(&mut self) -> Vec<u8> {
        self.mask(true)
    }

    fn mask(&mut self, is_last: bool) -> Vec<u8> {
        let Redactor { forms, long, names, longest } = &self.redactor;
        let mut shown = Vec::with_capacity(self.held.len());
        let ahead = self.ahead;
        let show = |shown: &mut Vec<u8>, at: usize, byte: u8| {
            if at >= ahead {
                shown.push(byte);
            }
        };
        let (mut at, mut feed) = (0, 0);
        while at < self.held.len() {
            let rest = &self.held[at..];
            if !forms.may_begin(&rest[..1]) {
                show(&mut shown, at, rest[0]);
                self.last = None;
                at += 1;
                continue;
            }
            if feed <= at {
                feed = at + 1 + rest[1..].iter().position(|byte| is_feed(*byte)).unwrap_or(rest.len() - 1);
            }
            // Only what begins a value before its line ends may go on in the next one.
            let is_wrapped = feed < self.held.len() && feed - at < *longest && long.may_begin(&rest[..feed - at]);
            let goes_on = || {
                let glance = Unwrapped::of(rest, feed - at + GLANCE);
                long.may_begin(glance.bytes()) || long.at(glance.bytes()).is_some()
            };
            let line = (is_wrapped && goes_on()).then(|| Unwrapped::of(rest, *longest));
            let line = line.as_ref();
            // A longer form may yet come of what is a shorter one already.
            let may_go_on = (rest.len() < *longest && forms.may_begin(rest))
                || line.is_some_and(|line| line.length < *longest && long.may_begin(line.bytes()));
            if !is_last && may_go_on {
                break;
            }
            let in_line = || line.and_then(|line| line.found(long.at(line.bytes())?));
            match forms.at(rest).or_else(in_line) {
                Some((length, name)) => {
                    if self.last != Some(name) {
                        shown.extend_from_slice(names[name].as_bytes());
                    }
                    self.last = Some(name);
                    at += length;
                }
                None => {
                    show(&mut shown, at, rest[0]);
                    self.last = None;
                    at += 1;
                }
            }
        }
        self.held.drain(..at);
        self.ahead = ahead.saturating_sub(at);
        shown
    }
}

fn is_feed(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// The next bytes of a text without line feeds: what encodes may break its lines anywhere.
struct Unwrapped {
    bytes: [u8; LONGEST],
    /// Where each byte ends in the text.
    ends: [usize; LONGEST],
    length: usize,
}

impl Unwrapped {
    fn of(text: &[u8], most: usize) -> Self {
        let mut line = Self { bytes: [0; LONGEST], ends: [0; LONGEST], length: 0 };
        for (at, byte) in text.iter().enumerate() {
            if line.length == most.min(LONGEST) {
                break;
            }
            if line.length > 0 && is_feed(*byte) {
                continue;
            }
            (line.bytes[line.length], line.ends[line.length]) = (*byte, at + 1);
            line.length += 1;
        }
        line
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// What was found in the line, by its length in the text.
    fn found(&self, (length, name): (usize, usize)) -> Option<(usize, usize)> {
        Some((*self.ends.get(length.checked_sub(1)?)?, name))
    }
}

/// A form in parts; the last is the longest.
fn parts(form: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (begin, last) = form.split_at((form.len() / PART).saturating_sub(1) * PART);
    begin.chunks(PART).chain([last])
}

/// The ways in which a value is written.
fn forms_of(value: &str, all: bool) -> Vec<Vec<u8>> {
    if !all {
        return vec![value.as_bytes().to_vec(), STANDARD.encode(value).into_bytes()];
    }
    // Lines of a key may come one by one; what all keys begin and end with is no secret.
    let lines = value.lines().map(str::trim).filter(|line| line.len() >= LONG_LINE && !line.starts_with("-----"));
    let lines = lines.filter(|line| *line != value).map(str::to_owned);
    spellings(value).into_iter().chain([escaped(value)]).chain(lines).map(String::into_bytes).collect()
}

/// A value as a shell writes it that is to read it again.
fn escaped(value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    value.chars().flat_map(|c| Some('\\').filter(|_| !is_plain(c)).into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD_NO_PAD as STANDARD_NO_PAD;

    use super::*;

    const SECRET: &str = "s3cr3t/+ \"värde\"\n!";

    fn redactor() -> Redactor {
        Redactor::new([("TOKEN", SECRET), ("SHORT", "abc"), ("LONGER", "s3cr3t/+ and more")])
    }

    #[test]
    fn a_value_is_masked_as_other_programs_write_it_in_urls() {
        let redactor = Redactor::new([("ONE", "p@ss!Word(1)*x"), ("TWO", "s3cr3t/+tok~en and more")]);
        for text in [
            "p%40ss!Word(1)*x",
            "p%40ss%21Word%281%29*x",
            "p%40ss%21Word%281%29%2ax",
            "s3cr3t/%2Btok~en%20and%20more",
            "s3cr3t%2F%2Btok%7Een+and+more",
            "p@ss\\!Word\\(1\\)\\*x",
        ] {
            let masked = String::from_utf8(redactor.whole(text.as_bytes())).expect("text");
            assert!(masked.starts_with("[REDACTED:"), "{text}: {masked}");
        }
    }

    #[test]
    fn the_lines_of_a_value_are_masked_one_by_one_and_what_all_keys_begin_with_is_not() {
        let key =
            "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSjAgEAAo\n-----END PRIVATE KEY-----";
        let redactor = Redactor::new([("KEY", key)]);
        let said = format!("> {}", key.replace('\n', "\n> "));
        let masked = String::from_utf8(redactor.whole(said.as_bytes())).expect("text");
        assert!(!masked.contains("MIIEv") && !masked.contains("BAQEF") && masked.contains("-----BEGIN"), "{masked}");
    }

    #[test]
    fn a_value_is_masked_in_every_form_and_wherever_it_is_cut() {
        let redactor = redactor();
        let around = |left: &str, right: &str| STANDARD_NO_PAD.encode(format!("{left}{SECRET}{right}"));
        let texts = [
            SECRET.to_owned(),
            serde_json::to_string(SECRET).expect("a string"),
            platform_core::hex(SECRET.as_bytes()),
            around("", ""),
            around("u:", ""),
            around("a", "b"),
            around("user", ":x"),
        ];
        for text in texts {
            let said = format!("before {text} after");
            let whole = String::from_utf8(redactor.whole(said.as_bytes())).expect("text");
            assert!(whole.contains("[REDACTED:TOKEN]"), "{text} → {whole}");
            assert!(whole.starts_with("before ") && whole.ends_with(" after"), "{whole}");
            for size in [1, 2, 3, 7] {
                let mut stream = redactor.stream();
                let mut pieces: Vec<u8> = said.as_bytes().chunks(size).flat_map(|piece| stream.push(piece)).collect();
                pieces.extend(stream.finish());
                assert_eq!(String::from_utf8(pieces).expect("text"), whole, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_value_in_base64_is_masked_however_its_lines_are_broken() {
        let long = "-----canary----- of a key that is longer than a line of base64 has characters, twice over, indeed";
        for secret in [SECRET, long] {
            let redactor = Redactor::new([("TOKEN", secret)]);
            for (width, feed) in [(76, "\n"), (64, "\r\n"), (10, "\n"), (3, "\n")] {
                let encoded = STANDARD.encode(format!("ab{secret}"));
                let lines: Vec<&str> =
                    encoded.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).expect("text")).collect();
                let said = format!("before\n{}\nafter\n", lines.join(feed));
                let mut stream = redactor.stream();
                let mut pieces: Vec<u8> = said.as_bytes().chunks(7).flat_map(|piece| stream.push(piece)).collect();
                pieces.extend(stream.finish());
                let whole = String::from_utf8(pieces).expect("text");
                assert!(whole.contains("[REDACTED:TOKEN]") && whole.len() < 60, "{width}: {whole}");
                assert!(whole.starts_with("before\n") && whole.ends_with("\nafter\n"), "{width}: {whole}");
            }
        }
    }

    #[test]
    fn the_longer_of_two_values_wins_and_what_is_none_stays() {
        let redactor = redactor();
        let masked = |text: &str| String::from_utf8(redactor.whole(text.as_bytes())).expect("text");
        assert_eq!(masked("x s3cr3t/+ and more y"), "x [REDACTED:LONGER] y");
        assert_eq!(masked("s3cr3t/+ and les abc"), "s3cr3t/+ and les abc");
        assert_eq!(masked(&"s3cr3t".repeat(1000)).len(), 6000);
    }

    #[test]
    fn a_long_value_is_masked_once_and_a_part_of_it_too() {
        let long: String = (0..200).map(|n| platform_core::sha256_hex([n])[..25].to_owned()).collect();
        let redactor = Redactor::new([("LONG", long.as_str())]);
        let masked = |text: &str| String::from_utf8(redactor.whole(text.as_bytes())).expect("text");
        assert_eq!(masked(&format!("<{long}>")), "<[REDACTED:LONG]>");
        assert_eq!(masked(&format!("<{}>", STANDARD.encode(&long))), "<[REDACTED:LONG]>");
        assert!(masked(&long[..200]).starts_with("[REDACTED:LONG]"), "the beginning");
    }

    #[test]
    fn lists_of_numbers_are_no_short_value_in_broken_lines() {
        let redactor = Redactor::new([("PIN", "123456"), ("PASSWORD", "secret")]);
        for text in ["1\n2\n3\n4\n5\n6\n7\n", "123\n456\n", "s\ne\nc\nr\ne\nt\n"] {
            assert_eq!(redactor.text(text), text);
        }
        assert_eq!(redactor.text("pin 123456"), "pin [REDACTED:PIN]");
    }

    #[test]
    fn what_is_held_for_long_is_shown_as_far_as_it_is_no_value_and_the_rest_of_one_is_masked() {
        let mut stream = redactor().stream();
        assert_eq!((stream.push(b"hello s"), stream.holds()), (b"hello ".to_vec(), true));
        assert_eq!((stream.release(), stream.holds()), (b"s".to_vec(), false));
        assert_eq!((stream.push(b"3cr3t/"), stream.release()), (Vec::new(), b"3c".to_vec()));
        assert_eq!(stream.push("+ \"värde\"\n!.".as_bytes()), b"[REDACTED:TOKEN].");
        assert_eq!(
            (stream.push(b"s3c"), stream.release(), stream.push(b"! s")),
            (vec![], b"s3c".to_vec(), b"! ".to_vec())
        );
        assert_eq!(stream.finish(), b"s");
    }

    #[test]
    fn nothing_is_held_back_that_begins_no_value() {
        let mut stream = redactor().stream();
        assert_eq!(stream.push(b"hello s3c"), b"hello ");
        assert_eq!(stream.push(b"!"), b"s3c!");
    }
}
