//! When agents start by themselves: cron expressions in time zones.

use std::str::FromStr;

use chrono::DateTime;
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds};
use platform_core::{Error, FieldLimits, Result, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::code;

/// Bytes of a cron expression.
const MAX_EXPRESSION: usize = 256;

/// When an agent starts by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeriodicExecution {
    /// Whether it does.
    pub enabled: bool,
    /// Five fields: minute, hour, day, month, weekday.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron_expression: Option<String>,
    /// IANA name of the time zone.
    pub timezone: String,
    /// What it is told each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Read only: the next time.
    #[serde(deserialize_with = "platform_core::read_only", skip_serializing_if = "Option::is_none")]
    #[schema(read_only, nullable = false)]
    pub next_run_ms: Option<Timestamp>,
    /// Read only: the last time.
    #[serde(deserialize_with = "platform_core::read_only", skip_serializing_if = "Option::is_none")]
    #[schema(read_only, nullable = false)]
    pub last_run_ms: Option<Timestamp>,
}

impl Default for PeriodicExecution {
    fn default() -> Self {
        Self {
            enabled: false,
            cron_expression: None,
            timezone: "UTC".to_owned(),
            message: None,
            next_run_ms: None,
            last_run_ms: None,
        }
    }
}

/// `INVALID_CRON` unless it says when, where and what.
pub(crate) fn check(periodic: &mut PeriodicExecution, limits: &FieldLimits) -> Result<()> {
    let invalid = |path: &str, message: String| {
        Error::new(code::INVALID_CRON, message).with("field", format!("periodicExecution.{path}"))
    };
    let text = periodic.message.as_deref().unwrap_or_default();
    if text.len() > limits.message_bytes && limits.message_bytes > 0 {
        let message = format!("message must have at most {} bytes", limits.message_bytes);
        return Err(Error::invalid("periodicExecution.message", "length", message));
    }
    if Tz::from_str(&periodic.timezone).is_err() {
        return Err(invalid("timezone", no_zone(&periodic.timezone)));
    }
    if let Some(expression) = &periodic.cron_expression {
        parse(expression).map_err(|reason| invalid("cronExpression", reason))?;
    }
    if periodic.enabled {
        if periodic.cron_expression.is_none() {
            let message = "cronExpression is required: minute, hour, day, month, weekday.".to_owned();
            return Err(invalid("cronExpression", message));
        }
        if text.trim().is_empty() {
            let message = "message is required: what the agent is told each time";
            return Err(Error::invalid("periodicExecution.message", "required", message));
        }
        if next(periodic, Timestamp(0)).is_none() {
            return Err(invalid("cronExpression", "This expression names a time that never comes.".to_owned()));
        }
    }
    Ok(())
}

fn no_zone(name: &str) -> String {
    format!("`{name}` is no time zone of the IANA list, such as Europe/Berlin.")
}

fn parse(expression: &str) -> Result<croner::Cron, String> {
    // It is read again whenever it is shown.
    if expression.len() > MAX_EXPRESSION {
        return Err(format!(
            "A cron expression has at most {MAX_EXPRESSION} bytes, this one has {}.",
            expression.len()
        ));
    }
    if expression.split_whitespace().count() != 5 {
        return Err(format!("`{expression}` must have five fields: minute, hour, day, month, weekday."));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).build();
    parser.parse(expression).map_err(|error| format!("`{expression}` is no cron expression: {error}."))
}

/// The first time after `after`, when there is one.
pub(crate) fn next(periodic: &PeriodicExecution, after: Timestamp) -> Option<Timestamp> {
    next_time(periodic.cron_expression.as_deref()?, &periodic.timezone, after)
}

/// Why an expression names no times in a zone, and the field that is to blame; `None` when it does.
pub fn time_problem(expression: &str, timezone: &str) -> Option<(&'static str, String)> {
    if Tz::from_str(timezone).is_err() {
        return Some(("timezone", no_zone(timezone)));
    }
    if let Err(reason) = parse(expression) {
        return Some(("cronExpression", reason));
    }
    let never = || ("cronExpression", "This expression names a time that never comes.".to_owned());
    next_time(expression, timezone, Timestamp(0)).is_none().then(never)
}

/// The first time after `after` that a cron expression names in a time zone, when there is one.
pub fn next_time(expression: &str, timezone: &str, after: Timestamp) -> Option<Timestamp> {
    let cron = parse(expression).ok()?;
    let zone = Tz::from_str(timezone).ok()?;
    let after = DateTime::from_timestamp_millis(after.0)?.with_timezone(&zone);
    let next = cron.find_next_occurrence(&after, false).ok()?;
    Some(Timestamp(next.timestamp_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(expression: &str, timezone: &str, after: &str) -> Option<String> {
        let periodic = PeriodicExecution {
            cron_expression: Some(expression.to_owned()),
            timezone: timezone.to_owned(),
            ..PeriodicExecution::default()
        };
        next(&periodic, Timestamp::from_iso(after).expect("a time")).map(Timestamp::to_iso)
    }

    #[test]
    fn times_come_in_their_zone_and_skip_or_take_once_what_a_change_of_clocks_does() {
        let berlin = "Europe/Berlin";
        assert_eq!(at("0 8 * * 1-5", "UTC", "2026-11-20T08:00:00Z").as_deref(), Some("2026-11-23T08:00:00.000Z"));
        assert_eq!(at("0 8 * * *", berlin, "2026-07-01T07:00:00Z").as_deref(), Some("2026-07-02T06:00:00.000Z"));
        assert_eq!(at("0 8 * * *", berlin, "2026-12-01T06:59:00Z").as_deref(), Some("2026-12-01T07:00:00.000Z"));
        // 02:30 does not exist on the night of 29 March 2026, and exists twice on that of 25 October.
        let spring = at("30 2 * * *", berlin, "2026-03-28T12:00:00Z").expect("a time");
        assert!(spring.starts_with("2026-03-29T01") || spring.starts_with("2026-03-30T00"), "{spring}");
        let first = at("30 2 * * *", berlin, "2026-10-24T12:00:00Z").expect("a time");
        assert_eq!(first, "2026-10-25T00:30:00.000Z");
        assert_eq!(at("30 2 * * *", berlin, &first).as_deref(), Some("2026-10-26T01:30:00.000Z"));
        assert_eq!(at("0 0 30 2 *", "UTC", "2026-01-01T00:00:00Z"), None);
        assert_eq!(at("0 0 0 1 1 *", "UTC", "2026-01-01T00:00:00Z"), None, "six fields");
    }
}
