//! Text of recordings, over the wire of OpenAI's transcriptions, which most other servers speak as well.

use std::time::Duration;

mod languages;

use platform_core::Money;
use platform_runtime::{Audio, Cost, ModelSpec, Segment, Transcription, Usage};
use reqwest::multipart::{Form, Part};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;

use crate::broken::Broken;

/// Where recordings become text.
#[derive(Debug, Clone)]
pub struct SpeechConfig {
    /// Address of the transcriptions, or the base that they are below.
    pub url: String,
    /// Credential, when it wants one.
    pub api_key: Option<SecretString>,
    /// Name of the model.
    pub model: String,
    /// Longest time from a recording to its text.
    pub longest: Duration,
}

/// The request for the text of a recording.
pub(crate) fn request(client: &reqwest::Client, config: &SpeechConfig, audio: &Audio) -> reqwest::RequestBuilder {
    let file = Part::stream(audio.bytes.clone()).file_name(audio.name.clone());
    // A part without a type is taken by its name.
    let file = file.mime_str(&audio.media_type).unwrap_or_else(|_| Part::stream(audio.bytes.clone()));
    let form = Form::new().part("file", file).text("model", config.model.clone());
    // The models after Whisper know of no segments, and refuse to be asked for them.
    let format = if config.model.starts_with("gpt-") { "json" } else { "verbose_json" };
    let form = form.text("response_format", format);
    let form = match &audio.language {
        Some(language) => form.text("language", language.clone()),
        None => form,
    };
    let request = client.post(address(&config.url)).multipart(form);
    match &config.api_key {
        Some(key) => request.bearer_auth(key.expose_secret()),
        None => request,
    }
}

/// Where recordings are sent: the address as it is, or below that of a whole API.
fn address(url: &str) -> String {
    let base = url.trim_end_matches('/');
    let has_path = base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if has_path && !base.ends_with("/v1") { base.to_owned() } else { format!("{base}/audio/transcriptions") }
}

#[derive(Deserialize)]
struct Answer {
    text: String,
    language: Option<String>,
    /// Seconds, as a number or, as OpenAI's own document has it, as text.
    #[serde(default)]
    duration: Value,
    /// Those that are as Whisper has them.
    #[serde(default)]
    segments: Value,
}

impl Answer {
    fn seconds(&self) -> Option<f64> {
        self.duration.as_f64().or_else(|| self.duration.as_str()?.parse().ok())
    }
}

#[derive(Deserialize)]
struct AnswerSegment {
    start: f64,
    end: f64,
    #[serde(default)]
    text: String,
    /// How likely nobody speaks, and how sure the engine is of the text.
    no_speech_prob: Option<f64>,
    avg_logprob: Option<f64>,
}

impl AnswerSegment {
    /// Whisper's own rule for what it made up of noise.
    fn is_silent(&self) -> bool {
        self.no_speech_prob.is_some_and(|likely| likely > 0.6) && self.avg_logprob.is_some_and(|sure| sure < -1.0)
    }
}

/// Whether a text says what there is to hear and no word: `[BLANK_AUDIO]`, `(silence)`, `*music*`.
fn is_wordless(text: &str) -> bool {
    let mut left = text;
    while let Some(at) = left.find(|c: char| c.is_alphanumeric() || "[(*".contains(c)) {
        let end = match left.as_bytes()[at] {
            b'[' => ']',
            b'(' => ')',
            b'*' => '*',
            _ => return false,
        };
        let Some(ends) = left[at + 1..].find(end) else { return false };
        left = &left[at + 1 + ends + 1..];
    }
    true
}

/// Reads the text of a recording; `price`: of a minute of it.
pub(crate) fn read(body: &[u8], audio: &Audio, price: Money) -> Result<Transcription, Broken> {
    let answer: Answer = serde_json::from_slice(body).map_err(|_| Broken::protocol("the answer holds no text"))?;
    let segments = answer.segments.as_array().into_iter().flatten();
    let segments: Vec<AnswerSegment> = segments.filter_map(|segment| Deserialize::deserialize(segment).ok()).collect();
    let is_silent = is_wordless(&answer.text) || !segments.is_empty() && segments.iter().all(AnswerSegment::is_silent);
    let text = if is_silent { String::new() } else { answer.text.trim().to_owned() };
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds.clamp(0.0, 1e6)).unwrap_or_default();
    let duration = answer.seconds().map(time).filter(|duration| !duration.is_zero()).or(audio.duration);
    let segments = segments.into_iter().map(|segment| Segment {
        start: time(segment.start),
        end: time(segment.end),
        text: segment.text.trim().to_owned(),
    });
    Ok(Transcription {
        text,
        language: answer.language.and_then(|language| languages::code_of(&language)),
        duration,
        segments: segments.collect(),
        usage: Usage::default(),
        cost: cost(duration.unwrap_or_default(), price),
    })
}

/// What so much of a recording costs, at the price of a minute.
pub(crate) fn cost(duration: Duration, price: Money) -> Cost {
    let millis = i128::try_from(duration.as_millis()).unwrap_or(i128::MAX);
    let nanos = i128::from(price.nanos()).saturating_mul(millis) / 60_000;
    let total = Money::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX));
    Cost { input_cost: total, total_cost: total, ..Cost::default() }
}

/// The answer of the demo engine.
pub(crate) fn demo(audio: &Audio) -> Transcription {
    Transcription {
        text: format!("demo transcript of {} bytes", audio.bytes.len()),
        language: None,
        duration: audio.duration,
        segments: Vec::new(),
        usage: Usage::default(),
        cost: Cost::default(),
    }
}

/// Its engine and model.
pub(crate) fn spec(provider: &str, model: &str) -> ModelSpec {
    crate::catalog::unknown(&provider.into(), model)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_minute_and_a_half_costs_one_and_a_half_times_the_price_of_a_minute() {
        let audio = Audio {
            name: "a.wav".to_owned(),
            media_type: "audio/wav".to_owned(),
            bytes: Bytes::from_static(b"x"),
            duration: Some(Duration::from_secs(1)),
            language: None,
        };
        let body = r#"{"text": " Hello. ", "language": "english", "duration": 90.0,
            "segments": [{"id": 0, "start": 0.5, "end": 2, "text": " Hello."}]}"#;
        let read_at = |price| read(body.as_bytes(), &audio, Money::from_nanos(price)).expect("a text");
        let heard = read_at(6_000_000);
        assert_eq!((heard.text.as_str(), heard.language.as_deref()), ("Hello.", Some("en")));
        assert_eq!(heard.cost.total_cost.nanos(), 9_000_000);
        assert_eq!(heard.segments[0].start, Duration::from_millis(500));
        let short = read(br#"{"text": "x"}"#, &audio, Money::from_nanos(6_000_000)).expect("a text");
        assert_eq!((short.duration, short.cost.total_cost.nanos()), (audio.duration, 100_000));
        let odd =
            br#"{"text": "x", "duration": "8.5", "segments": [{"start": null, "end": 1}, {"start": 0, "end": 1}]}"#;
        let odd = read(odd, &audio, Money::ZERO).expect("a text");
        assert_eq!((odd.duration, odd.segments.len()), (Some(Duration::from_millis(8500)), 1));
        assert!(read(br#"{"text": "x", "segments": null}"#, &audio, Money::ZERO).is_ok());
        assert!(read(b"[]", &audio, Money::ZERO).is_err());
        let said = |body: &str| read(body.as_bytes(), &audio, Money::ZERO).expect("a text").text;
        for silent in ["", " [BLANK_AUDIO] ", "(silence) [ Music ]", "*sighs* ..."] {
            assert_eq!(said(&format!("{{\"text\": \"{silent}\"}}")), "", "{silent}");
        }
        for words in ["(laughs) Yes [sic]", "* first", "é (sic)"] {
            assert_eq!(said(&format!("{{\"text\": \"{words}\"}}")), words);
        }
        let doubtful = |sure: f64| {
            said(&format!(
                r#"{{"text": "Thank you.", "segments": [{{"start": 0, "end": 1, "text": "Thank you.",
                "no_speech_prob": 0.9, "avg_logprob": {sure}}}]}}"#
            ))
        };
        assert_eq!((doubtful(-1.3).as_str(), doubtful(-0.2).as_str()), ("", "Thank you."));
    }
}
