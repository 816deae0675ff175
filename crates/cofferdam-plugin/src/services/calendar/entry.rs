//! An entry of a calendar.

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::CallError;

use super::super::{check_text, rfc3339, time, zone};
use super::recurrence;

const MAX_SUMMARY: usize = 1024;
const MAX_TEXT: usize = 16 << 10;
/// The maximum number of left-out occurrences.
pub(super) const MAX_EXCEPTIONS: usize = 1000;
/// The years of a start or end.
const YEARS: std::ops::RangeInclusive<i32> = 1900..=2200;

/// A range of time: start and end.
pub(super) type Range<T> = (DateTime<T>, DateTime<T>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateParams {
    summary: String,
    start: String,
    end: Option<String>,
    timezone: Option<String>,
    rrule: Option<String>,
    description: Option<String>,
    location: Option<String>,
}

/// An entry as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) id: String,
    pub(super) summary: String,
    pub(super) start: DateTime<Utc>,
    pub(super) end: DateTime<Utc>,
    /// The name of the time zone in which the entry recurs.
    pub(super) timezone: String,
    /// True for an entry of whole days, from midnight to midnight in UTC.
    pub(super) all_day: bool,
    pub(super) rrule: Option<String>,
    /// Starts of occurrences that are left out.
    pub(super) exceptions: Vec<DateTime<Utc>>,
    pub(super) description: Option<String>,
    pub(super) location: Option<String>,
}

impl Entry {
    pub(super) fn new(id: String, params: CreateParams) -> Result<Self, CallError> {
        let CreateParams { summary, start, end, timezone, rrule, description, location } = params;
        let start = time("start", &start)?.to_utc();
        let end = end.map(|end| time("end", &end)).transpose()?.map_or(start, |end| end.to_utc());
        let timezone = timezone.unwrap_or_else(|| "UTC".to_owned());
        let exceptions = Vec::new();
        let entry =
            Self { id, summary, start, end, timezone, all_day: false, rrule, exceptions, description, location };
        entry.check()?;
        Ok(entry)
    }

    /// Checks the bounds of all parts.
    pub(super) fn check(&self) -> Result<(), CallError> {
        check_text("summary", &self.summary, MAX_SUMMARY)?;
        for text in [&self.description, &self.location].into_iter().flatten() {
            if text.len() > MAX_TEXT {
                return Err(CallError::invalid(format!("description and location have at most {MAX_TEXT} bytes")));
            }
        }
        if self.end < self.start || !YEARS.contains(&self.start.year()) || !YEARS.contains(&self.end.year()) {
            return Err(CallError::invalid("an entry ends after its start, both from 1900 to 2200"));
        }
        if self.exceptions.len() > MAX_EXCEPTIONS {
            return Err(CallError::invalid(format!("an entry has at most {MAX_EXCEPTIONS} left-out occurrences")));
        }
        let start = self.start.with_timezone(&zone(&self.timezone)?);
        self.rrule.as_deref().map_or(Ok(()), |rule| recurrence::check(rule, start))
    }

    /// Returns the occurrences in order, from the first of all up to the end of a range and beyond.
    pub(super) fn occurrences(&self, range: Range<Utc>) -> Result<Box<dyn Iterator<Item = Range<Tz>>>, CallError> {
        let zone = zone(&self.timezone)?;
        let (start, duration) = (self.start.with_timezone(&zone), self.end - self.start);
        let with_end = move |start: DateTime<Tz>| (start, start + duration);
        if start >= range.1 {
            return Ok(Box::new(std::iter::empty()));
        }
        match &self.rrule {
            Some(rule) => Ok(Box::new(recurrence::occurrences(rule, start, &self.exceptions)?.map(with_end))),
            None => Ok(Box::new(std::iter::once(with_end(start)))),
        }
    }

    pub(super) fn shown(&self) -> Value {
        let zone = zone(&self.timezone).unwrap_or(Tz::UTC);
        let local = |time: &DateTime<Utc>| rfc3339(&time.with_timezone(&zone));
        json!({
            "id": self.id, "summary": self.summary, "start": local(&self.start), "end": local(&self.end),
            "timezone": self.timezone, "allDay": self.all_day, "rrule": self.rrule,
            "exceptions": self.exceptions.iter().map(local).collect::<Vec<_>>(),
            "description": self.description, "location": self.location,
        })
    }
}

/// Returns true if an occurrence overlaps a range. One without a duration counts as its instant.
pub(super) fn overlaps((start, end): Range<Tz>, range: Range<Utc>) -> bool {
    start < range.1 && (end > range.0 || start >= range.0)
}

/// The duration of an entry of whole days without an end.
pub(super) const DAY: TimeDelta = TimeDelta::days(1);
