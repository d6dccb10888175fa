//! What each kind of rule looks for.

use std::{ops::Range, sync::LazyLock, time::Duration};

use aho_corasick::AhoCorasick;
use platform_core::{Checks, Object};
use regex::Regex;
use regex_automata::{meta, util::syntax};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use unicode_normalization::char::is_combining_mark;

use crate::normal::Normal;

const MAX_PATTERNS: usize = 50;
const PATTERN_CHARACTERS: usize = 1000;
const MAX_WORDS: usize = 1000;
const WORD_CHARACTERS: usize = 200;
/// Compiled size of a pattern, and what it may remember while it runs, in bytes.
const PATTERN_BYTES: usize = 1 << 20;
const RUNNING_BYTES: usize = 1 << 16;
/// Compiled size of all patterns of a configuration, in bytes.
pub(crate) const ALL_BYTES: usize = 16 << 20;

pub(crate) enum Matcher {
    Patterns(Vec<meta::Regex>),
    Words {
        words: AhoCorasick,
        whole: bool,
    },
    Pii(Vec<Pii>),
    Injection {
        threshold: f64,
    },
    Judge(Judge),
    /// Patterns or words of a client, which a child process compiles and looks for.
    Written,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pii {
    Email,
    Phone,
    Card,
    Iban,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Judge {
    pub prompt: String,
    pub provider: Option<String>,
    #[serde(alias = "llm")]
    pub model: Option<String>,
    #[serde(default = "half")]
    pub threshold: f64,
    #[serde(rename = "timeoutMs", default = "ten_seconds")]
    timeout_ms: u64,
    #[serde(default)]
    pub fail_open: bool,
}

fn half() -> f64 {
    0.5
}
fn ten_seconds() -> u64 {
    10_000
}
fn yes() -> bool {
    true
}
fn seven_tenths() -> f64 {
    0.7
}

impl Judge {
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PatternConfig {
    patterns: Vec<String>,
    #[serde(default = "yes")]
    ignore_case: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WordConfig {
    words: Vec<String>,
    #[serde(default = "yes")]
    whole_word: bool,
}

#[derive(Deserialize)]
struct PiiConfig {
    types: Vec<Value>,
}

#[derive(Deserialize)]
struct InjectionConfig {
    #[serde(default = "seven_tenths")]
    threshold: f64,
}

impl Matcher {
    /// `None` after an issue was recorded. `left`: bytes that patterns of clients may still take; without it they are
    /// not compiled.
    pub fn compile(
        kind: &str,
        config: &Object,
        path: &str,
        left: Option<&mut usize>,
        checks: &mut Checks,
    ) -> Option<Self> {
        match (kind, left) {
            ("regex" | "deny_list", None) => Some(Self::Written),
            ("regex", Some(left)) => patterns(config, path, left, checks),
            ("deny_list", _) => words(config, path, checks),
            (kind, _) => Self::own(kind, config, path, checks),
        }
    }

    /// What a client chooses and does not write.
    fn own(kind: &str, config: &Object, path: &str, checks: &mut Checks) -> Option<Self> {
        match kind {
            "pii" => pii(config, path, checks),
            "prompt_injection" => {
                let InjectionConfig { threshold } = read(config, path, checks)?;
                checks.range(&format!("{path}.threshold"), threshold, &(0.0..=1.0));
                Some(Self::Injection { threshold })
            }
            "model_judge" => {
                let judge: Judge = read(config, path, checks)?;
                checks.length(&format!("{path}.prompt"), &judge.prompt, 1..=20_000);
                checks.range(&format!("{path}.threshold"), judge.threshold, &(0.0..=1.0));
                checks.range(&format!("{path}.timeoutMs"), judge.timeout_ms, &(100..=120_000));
                Some(Self::Judge(judge))
            }
            _ => None,
        }
    }

    /// Where a text breaks the rule; only for kinds that point at parts of it.
    pub fn spans(&self, text: &str) -> Vec<Range<usize>> {
        let mut spans: Vec<Range<usize>> = Vec::new();
        match self {
            Self::Patterns(patterns) => {
                for pattern in patterns {
                    spans.extend(pattern.find_iter(text).map(|found| found.range()));
                }
            }
            Self::Words { words, whole } => {
                let normal = Normal::of(text);
                let found = words.find_overlapping_iter(&normal.text).map(|found| found.range());
                let found = found.filter(|span| !whole || stands_alone(&normal.text, span));
                spans.extend(found.map(|span| normal.origin(span)));
            }
            Self::Pii(types) => {
                let normal = Normal::of(text);
                let found = types.iter().flat_map(|kind| kind.spans(&normal.text));
                spans.extend(found.map(|span| normal.origin(span)));
            }
            Self::Injection { .. } | Self::Judge(_) | Self::Written => {}
        }
        spans.retain(|span| !span.is_empty());
        spans.sort_by_key(|span| (span.start, span.end));
        // Parts that overlap are one.
        let mut merged: Vec<Range<usize>> = Vec::new();
        for span in spans {
            match merged.last_mut() {
                Some(last) if span.start < last.end => last.end = last.end.max(span.end),
                _ => merged.push(span),
            }
        }
        merged
    }
}

fn read<T: DeserializeOwned>(config: &Object, path: &str, checks: &mut Checks) -> Option<T> {
    match serde_json::from_value(Value::Object(config.clone())) {
        Ok(config) => Some(config),
        Err(error) => {
            let missing = error.to_string().starts_with("missing field");
            checks.issue(path, if missing { "required" } else { "type" }, format!("{path}: {error}"));
            None
        }
    }
}

fn patterns(config: &Object, path: &str, left: &mut usize, checks: &mut Checks) -> Option<Matcher> {
    let PatternConfig { patterns, ignore_case } = read(config, path, checks)?;
    some(&patterns, &format!("{path}.patterns"), MAX_PATTERNS, checks);
    let mut compiled = Vec::new();
    for (i, pattern) in patterns.iter().enumerate().take(MAX_PATTERNS) {
        let path = format!("{path}.patterns[{i}]");
        checks.length(&path, pattern, 1..=PATTERN_CHARACTERS);
        let bounds = meta::Config::new().nfa_size_limit(Some(PATTERN_BYTES)).hybrid_cache_capacity(RUNNING_BYTES);
        let syntax = syntax::Config::new().case_insensitive(ignore_case);
        match meta::Regex::builder().configure(bounds).syntax(syntax).build(pattern) {
            Ok(regex) if regex.memory_usage() <= *left => {
                *left -= regex.memory_usage();
                compiled.push(regex);
            }
            Ok(_) => {
                checks.issue(
                    &path,
                    "length",
                    format!("{path}: all patterns together take more than {ALL_BYTES} bytes"),
                );
            }
            Err(error) => {
                let reason = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
                checks.issue(&path, "format", format!("{path} is no regular expression we can run: {reason}"));
            }
        }
    }
    Some(Matcher::Patterns(compiled))
}

fn words(config: &Object, path: &str, checks: &mut Checks) -> Option<Matcher> {
    let WordConfig { words, whole_word } = read(config, path, checks)?;
    some(&words, &format!("{path}.words"), MAX_WORDS, checks);
    let normal: Vec<String> = words.iter().take(MAX_WORDS).map(|word| Normal::of(word.trim()).text).collect();
    for (i, word) in normal.iter().enumerate() {
        checks.length(&format!("{path}.words[{i}]"), word, 1..=WORD_CHARACTERS);
    }
    let words = AhoCorasick::new(normal.iter().filter(|word| !word.is_empty()));
    words.ok().map(|words| Matcher::Words { words, whole: whole_word })
}

/// Not a part of a longer word.
fn stands_alone(text: &str, span: &Range<usize>) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_' || is_combining_mark(c);
    let (first, last) = (text[span.clone()].chars().next(), text[span.clone()].chars().next_back());
    let before = text[..span.start].chars().next_back().filter(|_| first.is_some_and(in_word));
    let after = text[span.end..].chars().next().filter(|c| last.is_some_and(in_word) || is_combining_mark(*c));
    !before.is_some_and(in_word) && !after.is_some_and(in_word)
}

fn pii(config: &Object, path: &str, checks: &mut Checks) -> Option<Matcher> {
    let PiiConfig { types } = read(config, path, checks)?;
    some(&types, &format!("{path}.types"), 16, checks);
    let mut known = Vec::new();
    for (i, kind) in types.into_iter().enumerate() {
        let lower = kind.as_str().map(|kind| Value::String(kind.to_lowercase())).unwrap_or_default();
        match serde_json::from_value(lower) {
            Ok(kind) => known.push(kind),
            Err(_) => {
                let path = format!("{path}.types[{i}]");
                checks.issue(&path, "enum", format!("{path} must be one of email, phone, card, iban"));
            }
        }
    }
    Some(Matcher::Pii(known))
}

fn some<T>(items: &[T], path: &str, most: usize, checks: &mut Checks) {
    if items.is_empty() {
        checks.issue(path, "required", format!("{path} must have at least one element"));
    }
    checks.count(path, items.len(), most);
}

static EMAIL: LazyLock<Regex> =
    LazyLock::new(|| ours(r"[\p{L}0-9._%+\-]{1,64}@(?:[\p{L}0-9](?:[\p{L}0-9\-]{0,62})\.)+\p{L}{2,24}"));
static PHONE: LazyLock<Regex> = LazyLock::new(|| ours(r"\+?\(?[0-9](?:[ .\-/]?[()]?[ ]?[0-9]){6,}"));
static CARD: LazyLock<Regex> = LazyLock::new(|| ours(r"[0-9](?:[ \-]?[0-9]){12,}"));
static IBAN: LazyLock<Regex> = LazyLock::new(|| ours(r"\b[A-Za-z]{2}[0-9]{2}"));
static DATE: LazyLock<Regex> = LazyLock::new(|| ours(r"^[12][0-9]{3}[-/.][01][0-9][-/.][0-3][0-9]"));

fn ours(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is ours")
}

impl Pii {
    fn spans(self, text: &str) -> Vec<Range<usize>> {
        match self {
            Self::Email => EMAIL.find_iter(text).map(|found| found.range()).collect(),
            Self::Phone => alone(&PHONE, text).flat_map(|span| phones(text, span)).collect(),
            Self::Card => alone(&CARD, text).flat_map(|span| cards(text, span)).collect(),
            Self::Iban => IBAN.find_iter(text).filter_map(|found| iban(text, found.start())).collect(),
        }
    }
}

/// Matches that are not part of a longer word or number.
fn alone<'a>(pattern: &'static Regex, text: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    pattern.find_iter(text).map(|found| found.range()).filter(|span| {
        let before = text[..span.start].chars().next_back();
        let after = text[span.end..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

/// 8 to 15 digits, with a plus or separators; a date is none.
fn is_phone(text: &str) -> bool {
    let count = digits(text).len();
    let marked = text.starts_with('+') || text.chars().any(|c| !c.is_ascii_digit());
    (8..=15).contains(&count) && marked && !DATE.is_match(text)
}

/// The phone numbers in a run of digits: it is one, or several stand one space apart, in more than groups.
fn phones(text: &str, run: Range<usize>) -> Vec<Range<usize>> {
    if is_phone(&text[run.clone()]) {
        return vec![run];
    }
    let edges: Vec<usize> = text[run.clone()].match_indices(' ').map(|(at, _)| run.start + at).collect();
    let starts = std::iter::once(run.start).chain(edges.iter().map(|at| at + 1));
    let mut found: Vec<Range<usize>> = Vec::new();
    for start in starts {
        if found.last().is_some_and(|last| start < last.end) {
            continue;
        }
        let ends = edges.iter().copied().filter(|end| *end > start).chain([run.end]);
        let mut spans = ends.map(|end| start..end).take_while(|span| span.len() < 40);
        found.extend(spans.find(|span| {
            let number = &text[span.clone()];
            is_phone(number) && number.contains(['+', '-', '.', '/', '('])
        }));
    }
    found
}

/// 13 to 19 digits that pass the Luhn test.
fn is_card(text: &str) -> bool {
    let digits = digits(text);
    let doubled = |digit: u32| if digit > 4 { digit * 2 - 9 } else { digit * 2 };
    let sum: u32 =
        digits.iter().rev().enumerate().map(|(i, digit)| if i % 2 == 1 { doubled(*digit) } else { *digit }).sum();
    (13..=19).contains(&digits.len()) && sum.is_multiple_of(10)
}

/// The cards in a run of digits: each begins and ends at the edge of a group.
fn cards(text: &str, run: Range<usize>) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| run.contains(&at) && bytes[at].is_ascii_digit();
    let starts = run.clone().filter(|at| is_digit(*at) && (*at == run.start || !is_digit(at - 1)));
    let mut found: Vec<Range<usize>> = Vec::new();
    for start in starts {
        if found.last().is_some_and(|last| start < last.end) {
            continue;
        }
        let ends = (start..run.end).filter(|at| is_digit(*at) && !is_digit(at + 1)).take(19);
        let spans = ends.map(|last| start..last + 1).filter(|span| is_card(&text[span.clone()]));
        found.extend(spans.last());
    }
    found
}

/// An IBAN (ISO 13616) that begins at `start`: 15 to 34 letters and digits, in groups or not, mod 97 = 1.
fn iban(text: &str, start: usize) -> Option<Range<usize>> {
    let mut signs: Vec<(u32, usize)> = Vec::new();
    let mut gap = false;
    for (at, c) in text[start..].char_indices() {
        match c.to_digit(36) {
            Some(value) if c.is_ascii() && signs.len() < 34 => signs.push((value, start + at + 1)),
            None if c == ' ' && !gap => {}
            _ => break,
        }
        gap = c == ' ';
    }
    (15..=signs.len()).rev().find_map(|length| {
        let end = signs[length - 1].1;
        let ends = !text[end..].chars().next().is_some_and(char::is_alphanumeric);
        let turned = signs[4..length].iter().chain(&signs[..4]);
        let rest = turned.fold(0, |rest, (value, _)| (rest * if *value > 9 { 100 } else { 10 } + value) % 97);
        (ends && rest == 1).then_some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(kind: &str, config: Value, text: &str) -> Vec<String> {
        let Value::Object(config) = config else { panic!("an object") };
        let mut checks = Checks::default();
        let matcher = Matcher::compile(kind, &config, "config", Some(&mut ALL_BYTES.clone()), &mut checks);
        let matcher = matcher.expect("a rule");
        checks.finish().expect("a good rule");
        matcher.spans(text).into_iter().map(|span| text[span].to_owned()).collect()
    }

    #[test]
    fn personal_data_is_found_and_what_only_looks_like_it_is_not() {
        let cases = [
            ("email", "Write to ann.o'hara+x@mail.example.org, or call.", vec!["hara+x@mail.example.org"]),
            ("email", "an @mention and a@b are none", vec![]),
            ("phone", "Call +49 170 1234567 or (030) 1234-5678.", vec!["+49 170 1234567", "(030) 1234-5678"]),
            ("phone", "Order 1234567890 of 2026-11-20, version 1.2.3", vec![]),
            ("card", "4111 1111 1111 1111 and 4111-1111-1111-1112", vec!["4111 1111 1111 1111"]),
            ("card", "id 41111111111111111111111", vec![]),
            ("card", "4111 1111 1111 1111 12/26, code 123", vec!["4111 1111 1111 1111"]),
            ("card", "４１１１ 1111 11\u{200b}11 1111", vec!["４１１１ 1111 11\u{200b}11 1111"]),
            ("phone", "030 1234567 / 030 7654321", vec!["030 1234567", "030 7654321"]),
            ("phone", "555-123-4567 555-123-4568", vec!["555-123-4567", "555-123-4568"]),
            ("phone", "(555) 123-4567 (555) 987-6543", vec!["(555) 123-4567", "(555) 987-6543"]),
            ("phone", "555.123.4567 2026-11-26", vec!["555.123.4567"]),
            ("phone", "+1 (555) 123-4567 4111 1111 1111 1111", vec!["+1 (555) 123-4567"]),
            ("phone", "4111 1111 1111 1111 and 1.2.3.4.5.6.7.8.9.10.11.12.13", vec![]),
            (
                "iban",
                "To DE89 3704 0044 0532 0130 00 please, not DE88370400440532013000",
                vec!["DE89 3704 0044 0532 0130 00"],
            ),
            ("iban", "gb82west12345698765432", vec!["gb82west12345698765432"]),
        ];
        for (kind, text, expected) in cases {
            assert_eq!(found("pii", json!({"types": [kind]}), text), expected, "{text}");
        }
    }

    #[test]
    fn deny_lists_see_through_case_width_and_invisible_characters() {
        let words = json!({"words": ["Café", "c++", "foo", "foo bar"]});
        for (text, expected) in [
            ("a CAFÉ and a cafe\u{301}", vec!["CAFÉ", "cafe\u{301}"]),
            ("ｆｏｏ and f\u{200b}oo", vec!["ｆｏｏ", "f\u{200b}oo"]),
            ("I write C++.", vec!["C++"]),
            ("food, cafeteria, cafe", vec![]),
            ("f\u{200d}oo!", vec!["f\u{200d}oo"]),
            ("foo bar foo barn", vec!["foo bar", "foo"]),
        ] {
            assert_eq!(found("deny_list", words.clone(), text), expected, "{text}");
        }
        assert_eq!(found("deny_list", json!({"words": ["foo"], "wholeWord": false}), "food"), ["foo"]);
        let mut checks = Checks::default();
        let Value::Object(unseen) = json!({"words": ["\u{200b}"], "wholeWord": false}) else { panic!("an object") };
        let matcher = Matcher::compile("deny_list", &unseen, "config", Some(&mut 0), &mut checks);
        assert!(checks.finish().is_err() && matcher.is_some_and(|matcher| matcher.spans("text.").is_empty()));
    }
}
