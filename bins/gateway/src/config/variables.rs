//! The variables that are read, and how.

use std::{path::PathBuf, time::Duration};

use platform_limits::Rate;
use platform_models::ConfigError;
use strsim::levenshtein;

use super::settings::{all, default_of};

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

/// What the environment says, unless it is empty.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What is set under names that begin so, by the rest of the name.
pub(super) fn beginning(prefix: &str) -> impl Iterator<Item = (String, String)> {
    std::env::vars().filter_map(move |(name, value)| {
        Some((name.strip_prefix(prefix)?.to_owned(), value)).filter(|(_, value)| !value.is_empty())
    })
}

/// Variables that are set and read by nobody, each with the name that it may be meant to have.
pub(super) fn unknown() -> Vec<(String, Option<&'static str>)> {
    let known = || all().map(|(name, ..)| *name);
    let set = beginning("PLATFORM_").map(|(rest, _)| format!("PLATFORM_{rest}"));
    set.filter(|name| !name.starts_with("PLATFORM_APP_") && known().all(|known| known != name))
        .map(|name| {
            let near = known().map(|known| (levenshtein(known, &name), known)).filter(|(far, _)| *far <= 2);
            let meant = near.min().map(|(_, known)| known);
            (name, meant)
        })
        .collect()
}

/// The value of a setting, its default when it is not set, `None` when it has none.
pub(super) fn text(name: &str) -> Option<String> {
    let default = default_of(name);
    variable(name).or_else(|| (!default.is_empty()).then(|| default.to_owned()))
}

/// One of a few words, in any case.
pub(super) fn one_of<T: Copy>(name: &str, words: &[(&str, T)]) -> Result<T> {
    let named: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let find = |text: &str| words.iter().find(|(word, _)| text.eq_ignore_ascii_case(word)).map(|(_, of)| *of);
    read(name, &named.join(" or "), find)
}

/// A setting as `what` it is to be.
pub(super) fn read<T>(name: &str, what: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
    let value = text(name).unwrap_or_default();
    parse(value.trim()).ok_or_else(|| ConfigError(format!("{name}: `{value}` is not {what}.")))
}

/// Whether somebody collects traces; the library reads where.
pub(super) fn collects_traces() -> Result<bool> {
    let mut collects = false;
    for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
        let Some(endpoint) = text(name) else { continue };
        if !url::Url::parse(&endpoint).is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
            return Err(ConfigError(format!("{name}: it must be such as http://localhost:4318.")));
        }
        collects = true;
    }
    Ok(collects)
}

/// A whole number of `least` or more.
pub(super) fn number(name: &str, least: usize) -> Result<usize> {
    let what = if least == 0 { "a whole number" } else { "a whole number of 1 or more" };
    read(name, what, |text| text.parse().ok().filter(|number| *number >= least))
}

/// A number that may be reached; 0 = no bound.
pub(super) fn limit(name: &str) -> Result<usize> {
    Ok(match number(name, 0)? {
        0 => usize::MAX,
        limit => limit,
    })
}

/// Requests a minute and burst.
pub(super) fn rate(name: &str) -> Result<Rate> {
    read(name, "a rate such as 6000:1000 (per minute:burst), or 0", Rate::parse)
}

/// Elements separated by commas.
pub(super) fn list<T>(name: &str, what: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    read(name, what, |text| {
        text.split(',').map(str::trim).filter(|element| !element.is_empty()).map(&parse).collect::<Option<Vec<T>>>()
    })
}

/// `provider:model`.
pub(super) fn choice(name: &str) -> Result<Option<(String, String)>> {
    let Some(text) = text(name) else { return Ok(None) };
    match text.split_once(':') {
        Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
            Ok(Some((provider.to_owned(), model.to_owned())))
        }
        _ => Err(ConfigError(format!("{name}: `{text}` is not provider:model."))),
    }
}

/// A directory that can be read.
pub(super) fn directory(name: &str) -> Result<Option<PathBuf>> {
    let Some(path) = text(name).map(PathBuf::from) else { return Ok(None) };
    match std::fs::read_dir(&path) {
        Ok(_) => Ok(Some(path)),
        Err(error) => Err(ConfigError(format!("{name}: {} cannot be read: {error}.", path.display()))),
    }
}

/// A number with its unit; never 0, which would be no time at all.
pub(super) fn duration(name: &str) -> Result<Duration> {
    let what = "a duration above 0 such as 250ms, 30s, 10m or 15d";
    read(name, what, |text| wait(text).filter(|duration| !duration.is_zero()))
}

/// A number of days; 0 = for ever.
pub(super) fn days(name: &str) -> Result<Duration> {
    Ok(match number(name, 0)? {
        0 => Duration::MAX,
        days => Duration::from_hours(24).saturating_mul(u32::try_from(days).unwrap_or(u32::MAX)),
    })
}

/// A number with its unit.
pub(super) fn wait(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3600).map(Duration::from_secs),
        "d" => number.checked_mul(86_400).map(Duration::from_secs),
        _ => None,
    }
}
