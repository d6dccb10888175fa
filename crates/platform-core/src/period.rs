use std::ops::Range;

use chrono::{DateTime, Datelike, Days, Months, NaiveDate, NaiveTime};

use crate::{Code, Error, Result, Timestamp};

const MAX_DAYS: i64 = 366;
const MAX_MONTHS: i64 = 60;
const EARLIEST: i32 = 1970;

/// A range of days or months in UTC, as costs are asked for (contract 03 §9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// The first day.
    pub first: NaiveDate,
    /// The last day; of months, the last of the last one.
    pub last: NaiveDate,
    count: i64,
    by_month: bool,
}

/// A bound of a range: its name in the request, and what was given.
pub type Bound<'a> = (&'a str, Option<&'a str>);

impl Period {
    /// Months, or else days, between two bounds.
    pub fn of(by_month: bool, (start, end): (Bound<'_>, Bound<'_>), now: Timestamp) -> Result<Self> {
        if by_month { Self::months(start, end, now) } else { Self::days(start, end, now) }
    }

    /// Days as `YYYY-MM-DD`, at most 366; by default the last 30.
    pub fn days(start: Bound<'_>, end: Bound<'_>, now: Timestamp) -> Result<Self> {
        let today = day_of(now);
        let (first, given) = (day(start)?, day(end)?);
        let last = given.unwrap_or_else(|| first.map_or(today, |first| today.max(first)));
        let first = first.unwrap_or_else(|| last.checked_sub_days(Days::new(29)).unwrap_or(last));
        let count = (last - first).num_days() + 1;
        Self { first, last, count, by_month: false }.checked(start.0, end.0, MAX_DAYS, "days")
    }

    /// Months as `YYYY-MM`, at most 60; by default the last 12.
    pub fn months(start: Bound<'_>, end: Bound<'_>, now: Timestamp) -> Result<Self> {
        let this = day_of(now).with_day(1).unwrap_or_default();
        let (first, given) = (month(start)?, month(end)?);
        let last = given.unwrap_or_else(|| first.map_or(this, |first| this.max(first)));
        let first = first.unwrap_or_else(|| last.checked_sub_months(Months::new(11)).unwrap_or(last));
        let count = i64::from((last.year() - first.year()) * 12) + i64::from(last.month()) - i64::from(first.month());
        let last = last.checked_add_months(Months::new(1)).and_then(|next| next.pred_opt()).unwrap_or(last);
        Self { first, last, count: count + 1, by_month: true }.checked(start.0, end.0, MAX_MONTHS, "months")
    }

    fn checked(self, start: &str, end: &str, most: i64, unit: &str) -> Result<Self> {
        if self.first > self.last {
            return Err(bad(format!("{start} must not be after {end}.")));
        }
        if self.count > most {
            return Err(bad(format!("At most {most} {unit} can be read at once; these are {}.", self.count)));
        }
        Ok(self)
    }

    /// Its days, or the first days of its months.
    pub fn each(self) -> impl Iterator<Item = NaiveDate> {
        let at = move |n: u32| {
            if self.by_month {
                self.first.checked_add_months(Months::new(n))
            } else {
                self.first.checked_add_days(Days::new(n.into()))
            }
        };
        (0..u32::try_from(self.count).unwrap_or(0)).filter_map(at)
    }

    /// What SQL cuts dates to: `day` or `month`.
    pub fn unit(self) -> &'static str {
        if self.by_month { "month" } else { "day" }
    }

    /// The name of the day, or of the month, that begins so: the one it is asked by.
    pub fn names(self, begins: NaiveDate) -> (Option<String>, Option<String>) {
        let name = begins.format(if self.by_month { "%Y-%m" } else { "%Y-%m-%d" }).to_string();
        if self.by_month { (None, Some(name)) } else { (Some(name), None) }
    }

    /// SQL for the beginning of the day or month in which a column of epoch milliseconds lies.
    pub fn beginning(self, column: &str) -> String {
        format!("date_trunc('{}', to_timestamp({column} / 1000) AT TIME ZONE 'UTC')::date", self.unit())
    }

    /// Its moments.
    pub fn moments(self) -> Range<Timestamp> {
        let midnight = |day: NaiveDate| Timestamp(day.and_time(NaiveTime::MIN).and_utc().timestamp_millis());
        midnight(self.first)..midnight(self.last.succ_opt().unwrap_or(self.last))
    }
}

/// The day of a moment, in UTC.
pub fn day_of(at: Timestamp) -> NaiveDate {
    DateTime::from_timestamp_millis(at.0).unwrap_or_default().date_naive()
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::INVALID_TIME_RANGE, message)
}

fn day((name, given): Bound<'_>) -> Result<Option<NaiveDate>> {
    given.map(|text| parse(text).ok_or_else(|| bad(format!("{name} must be a day as YYYY-MM-DD.")))).transpose()
}

fn month((name, given): Bound<'_>) -> Result<Option<NaiveDate>> {
    let parse = |text: &str| parse(&format!("{text}-01"));
    given.map(|text| parse(text).ok_or_else(|| bad(format!("{name} must be a month as YYYY-MM.")))).transpose()
}

/// A day in the form that has all its digits.
fn parse(text: &str) -> Option<NaiveDate> {
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
    (text.len() == 10 && (EARLIEST..=9999).contains(&day.year())).then_some(day)
}
