use aho_corasick::{AhoCorasick, MatchKind};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use platform_vault::{MASK, Secret};
use serde_json::Value;

/// A shorter secret would be found everywhere.
const SHORTEST: usize = 6;

/// Takes secrets out of what a tool answers: plain, in base64 (also inside of a longer text), percent-encoded,
/// in hex, and as JSON writes them.
#[derive(Clone)]
pub(crate) struct Redactor(Option<AhoCorasick>);

impl Redactor {
    pub fn new(secrets: &[Secret]) -> Self {
        let secrets = secrets.iter().map(Secret::expose).filter(|secret| secret.len() >= SHORTEST);
        let patterns: Vec<String> = secrets.flat_map(spellings).collect();
        if patterns.is_empty() {
            return Self(None);
        }
        Self(AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns).ok())
    }

    pub fn text(&self, text: &str) -> String {
        match &self.0 {
            Some(found) if found.is_match(text) => found.replace_all(text, &vec![MASK; found.patterns_len()]),
            _ => text.to_owned(),
        }
    }

    /// In all texts and names of a value.
    pub fn value(&self, value: Value) -> Value {
        if self.0.is_none() {
            return value;
        }
        match value {
            Value::String(text) => self.text(&text).into(),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                fields.into_iter().map(|(name, value)| (self.text(&name), self.value(value))).collect()
            }
            other => other,
        }
    }
}

fn spellings(secret: &str) -> Vec<String> {
    let upper = percent_encode(secret.as_bytes(), NON_ALPHANUMERIC).to_string();
    let unreserved = ["%2D", "%2E", "%5F", "%7E"].into_iter().zip(["-", ".", "_", "~"]);
    let percent = unreserved.fold(upper.clone(), |text, (code, plain)| text.replace(code, plain));
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or_default();
    let hex: String = secret.bytes().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
    let json = Value::from(secret).to_string();
    let json = json[1..json.len() - 1].to_owned();
    let mut all = vec![
        secret.to_owned(),
        lower_codes(&percent),
        lower_codes(&upper),
        percent.replace("%20", "+"),
        percent,
        upper,
        hex.to_uppercase(),
        hex,
        json.replace('/', "\\/"),
        json,
    ];
    for skipped in 0..3 {
        for base64 in
            [base64_within(&STANDARD_NO_PAD, secret, skipped), base64_within(&URL_SAFE_NO_PAD, secret, skipped)]
        {
            all.extend(base64);
        }
    }
    all.sort_unstable();
    all.dedup();
    all.retain(|spelling| spelling.len() >= SHORTEST);
    all
}

/// The base64 of a secret that stands after so many bytes of a group of three, without the characters that
/// its neighbours have a part in.
fn base64_within(engine: &impl Engine, secret: &str, skipped: usize) -> Option<String> {
    let text = engine.encode([&vec![0; skipped], secret.as_bytes()].concat());
    let start = [0, 2, 3][skipped];
    let shared_end = usize::from(!(skipped + secret.len()).is_multiple_of(3));
    let own = text.get(start..text.len() - shared_end)?;
    (own.len() >= SHORTEST + 2).then(|| own.to_owned())
}

/// Percent codes with small letters.
fn lower_codes(text: &str) -> String {
    let mut parts = text.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (code, rest) = part.split_at(part.floor_char_boundary(2));
        format!("{text}%{}{rest}", code.to_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_found_in_every_spelling() {
        let secret = "s3cr€t/+ \"key\"-of_A";
        let redactor = Redactor::new(&[Secret::from(secret.to_owned()), Secret::from("short".to_owned())]);
        let engine = base64::engine::general_purpose::STANDARD;
        let percent = percent_encode(secret.as_bytes(), NON_ALPHANUMERIC).to_string();
        let mut echoes = vec![
            secret.to_owned(),
            format!("Bearer {secret}!"),
            engine.encode(secret),
            URL_SAFE_NO_PAD.encode(secret),
            percent.clone(),
            lower_codes(&percent),
            json!({"inner": secret}).to_string(),
        ];
        echoes.extend((0..3).map(|n| engine.encode(format!("{}{secret}{}", "x".repeat(n), "y".repeat(n)))));
        for echo in echoes {
            let clean = redactor.value(json!({"echo": [echo], echo.as_str(): 1})).to_string();
            assert!(clean.contains(MASK) && !clean.contains("key"), "{echo} → {clean}");
            assert!(!clean.contains(&STANDARD_NO_PAD.encode(secret)[4..16]), "{echo} → {clean}");
        }
        assert_eq!(redactor.text("short and s3cr"), "short and s3cr");
    }
}
