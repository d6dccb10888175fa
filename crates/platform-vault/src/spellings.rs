use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use platform_core::hex;

/// Shorter texts are words that stand everywhere.
const SHORTEST: usize = 6;
/// What stands in URLs as it is (RFC 3986 §2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same as programs write it: everything, `encodeURIComponent`, paths, forms.
const WRITTEN: [&AsciiSet; 5] = [
    UNRESERVED,
    NON_ALPHANUMERIC,
    &UNRESERVED.remove(b'!').remove(b'\'').remove(b'(').remove(b')').remove(b'*'),
    &UNRESERVED.remove(b'/'),
    &UNRESERVED.add(b'~').remove(b'*'),
];

/// All ways in which a secret may stand in a text, each once, as far as they have six bytes: as it is, as JSON writes it,
/// in hexadecimal, in URLs, and in base64, also in the middle of what is encoded.
pub fn spellings(secret: &str) -> Vec<String> {
    let bytes = secret.as_bytes();
    let json = serde_json::Value::from(secret).to_string();
    let json = &json[1..json.len() - 1];
    let hex = hex(bytes);
    let ascii = in_ascii(json);
    let mut all = vec![secret.to_owned(), json.replace('/', "\\/"), json.to_owned(), hex.to_ascii_uppercase(), hex];
    all.extend([ascii.replace('/', "\\/"), ascii]);
    for set in WRITTEN {
        let url = utf8_percent_encode(secret, set).to_string();
        for url in [in_small_letters(&url), url] {
            all.extend([url.replace("%20", "+"), url]);
        }
    }
    all.extend([
        STANDARD.encode(bytes),
        URL_SAFE.encode(bytes),
        STANDARD_NO_PAD.encode(bytes),
        URL_SAFE_NO_PAD.encode(bytes),
    ]);
    // Three bytes become four characters; those at the edges depend on what stands beside the secret.
    for before in 0..3_usize {
        let padded = [&b"\0\0"[..before], bytes].concat();
        let first = [0, 2, 3][before];
        let last = padded.len() * 4 / 3;
        for text in [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)] {
            all.extend(text.get(first..last).map(str::to_owned));
        }
    }
    all.sort_unstable();
    all.dedup();
    all.retain(|spelling| spelling.len() >= SHORTEST);
    all
}

/// JSON as programs write it that escape whatever is not ASCII.
fn in_ascii(json: &str) -> String {
    let mut units = [0; 2];
    let escaped = |c: char| match c {
        c if c.is_ascii() => c.to_string(),
        c => c.encode_utf16(&mut units).iter().fold(String::new(), |text, unit| text + &format!("\\u{unit:04x}")),
    };
    json.chars().map(escaped).collect()
}

/// What is percent-encoded, with small letters in its escapes alone.
fn in_small_letters(url: &str) -> String {
    let mut parts = url.split('%');
    let mut small = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (escape, rest) = part.split_at(part.len().min(2));
        small.push('%');
        small.push_str(&escape.to_ascii_lowercase());
        small.push_str(rest);
    }
    small
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_spelt_as_programs_write_it() {
        let all = spellings("p@ss/Word(1) *");
        for spelling in [
            "p@ss/Word(1) *",
            "p@ss\\/Word(1) *",
            "p%40ss%2FWord(1)%20*",
            "p%40ss%2fWord%281%29%20%2a",
            "p%40ss/Word%281%29%20%2A",
            "p%40ss%2FWord%281%29+*",
            "704073732f576f7264283129202a",
            "cEBzcy9Xb3JkKDEpICo=",
            "BAc3MvV29yZCgxKSAq",
        ] {
            assert!(all.iter().any(|known| known == spelling), "{spelling}: {all:#?}");
        }
        assert!(spellings("clé🔑s").contains(&"cl\\u00e9\\ud83d\\udd11s".to_owned()));
        assert!(spellings("short").iter().all(|spelling| spelling.len() > 5));
    }
}
