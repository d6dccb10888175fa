use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

use crate::{MASK, spellings};

/// A shorter secret would be found everywhere.
const SHORTEST: usize = 6;

/// Takes secrets out of texts, in all their [`spellings`], in one pass. Those of less than six bytes are left.
#[derive(Clone)]
pub struct Redactor(Option<AhoCorasick>);

impl Redactor {
    /// For these secrets.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let secrets = secrets.into_iter().filter(|secret| secret.len() >= SHORTEST);
        let patterns: Vec<String> = secrets.flat_map(spellings).collect();
        if patterns.is_empty() {
            return Self(None);
        }
        Self(AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns).ok())
    }

    /// A text with the mask in their places.
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

#[cfg(test)]
mod tests {
    use base64::{
        Engine,
        engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
    };
    use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_found_in_every_spelling() {
        let secret = "s3cr€t/+ \"key\"-of_A";
        let redactor = Redactor::new([secret, "short"]);
        let percent = percent_encode(secret.as_bytes(), NON_ALPHANUMERIC).to_string();
        let mut echoes = vec![
            secret.to_owned(),
            format!("Bearer {secret}!"),
            STANDARD.encode(secret),
            URL_SAFE_NO_PAD.encode(secret),
            percent,
            json!({"inner": secret}).to_string(),
        ];
        echoes.extend((0..3).map(|n| STANDARD.encode(format!("{}{secret}{}", "x".repeat(n), "y".repeat(n)))));
        for echo in echoes {
            let clean = redactor.value(json!({"echo": [echo], echo.as_str(): 1})).to_string();
            assert!(clean.contains(MASK) && !clean.contains("key"), "{echo} → {clean}");
            assert!(!clean.contains(&STANDARD_NO_PAD.encode(secret)[4..16]), "{echo} → {clean}");
        }
        assert_eq!(redactor.text("short and s3cr"), "short and s3cr");
    }
}
