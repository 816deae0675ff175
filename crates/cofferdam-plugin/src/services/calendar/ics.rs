//! iCalendar (RFC 5545): the entries of a text, and the text of entries.
//!
//! The parser reads line by line and only counts nested components, so that no input makes it recurse. It refuses what
//! would change occurrences and that it does not know (RDATE, EXRULE, time zones of their own), and ignores the rest.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use cofferdam_util::sha256;

use crate::CallError;

use super::super::zone;
use super::check_time;
use super::entry::{DAY, Entry};
use super::recurrence::{date, instant, local_time};

/// The maximum length of a line in an exported text, in bytes.
const MAX_LINE: usize = 75;
const MAX_ID: usize = 128;

/// A line of the text: name, parameters and value.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    name: String,
    params: Vec<(String, String)>,
    value: String,
}

/// A time with its time zone, and true if it is a date.
type Time = (DateTime<Tz>, bool);

/// The properties of a VEVENT.
#[derive(Default)]
struct Event {
    uid: Option<String>,
    summary: Option<String>,
    description: Option<String>,
    location: Option<String>,
    start: Option<Time>,
    end: Option<Time>,
    duration: Option<TimeDelta>,
    rrule: Option<String>,
    exceptions: Vec<DateTime<Utc>>,
    replaces: Option<DateTime<Utc>>,
}

/// Reads the entries of a text. An entry that replaces an occurrence of another becomes an entry of its own, and is left
/// out of the other.
pub(super) fn parse(text: &str, max: usize, deadline: Instant) -> Result<Vec<Entry>, CallError> {
    let events = events(text, max)?;
    let mut replaced: HashMap<&str, Vec<DateTime<Utc>>> = HashMap::new();
    for event in &events {
        if let (Some(uid), Some(time)) = (&event.uid, event.replaces) {
            replaced.entry(uid).or_default().push(time);
        }
    }
    let entry = |event: &Event| {
        check_time(deadline)?;
        let more = event.uid.as_deref().filter(|_| event.replaces.is_none()).and_then(|uid| replaced.get(uid));
        event.entry(more.map_or(&[], Vec::as_slice))
    };
    events.iter().map(entry).collect()
}

fn events(text: &str, max: usize) -> Result<Vec<Event>, CallError> {
    let (mut events, mut event, mut depth) = (Vec::new(), None, 0_usize);
    for (number, text) in unfold(text) {
        let at = |reason: &str| CallError::invalid(format!("ics line {number}: {reason}"));
        let line = Line::parse(&text).ok_or_else(|| at("it has no name and value"))?;
        match (line.name.as_str(), &mut event) {
            ("BEGIN", _) => {
                depth += 1;
                let is_event = line.value.eq_ignore_ascii_case("VEVENT");
                match depth {
                    1 if !line.value.eq_ignore_ascii_case("VCALENDAR") => return Err(at("it begins no VCALENDAR")),
                    2 if is_event && events.len() >= max => {
                        return Err(at(&format!("there are more than {max} events")));
                    }
                    2 if is_event => event = Some(Event::default()),
                    _ => {}
                }
            }
            ("END", _) => {
                depth = depth.checked_sub(1).ok_or_else(|| at("it ends what did not begin"))?;
                if depth == 1 {
                    events.extend(event.take());
                }
            }
            (_, Some(event)) if depth == 2 => event.take(line).map_err(|reason| at(&reason))?,
            _ => {}
        }
    }
    match depth {
        0 => Ok(events),
        _ => Err(CallError::invalid("ics ends within a component")),
    }
}

/// Returns the lines with their numbers. A line that begins with a blank continues the one before.
fn unfold(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        match (line.strip_prefix([' ', '\t']), lines.last_mut()) {
            (Some(rest), Some((_, last))) => last.push_str(rest),
            _ if line.is_empty() => {}
            _ => lines.push((number, line.to_owned())),
        }
    }
    lines
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut is_quoted = false;
        let mut parts = vec![String::new()];
        for (at, char) in text.char_indices() {
            match char {
                '"' => is_quoted = !is_quoted,
                ';' if !is_quoted => parts.push(String::new()),
                ':' if !is_quoted => return Self::of(parts, &text[at + 1..]),
                char => parts.last_mut()?.push(char),
            }
        }
        None
    }

    fn of(parts: Vec<String>, value: &str) -> Option<Self> {
        let mut parts = parts.into_iter();
        let name = parts.next().filter(|name| !name.is_empty())?.to_ascii_uppercase();
        let param =
            |part: String| part.split_once('=').map(|(key, value)| (key.to_ascii_uppercase(), value.to_owned()));
        Some(Self { name, params: parts.map(param).collect::<Option<_>>()?, value: value.to_owned() })
    }

    fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Reads the times of the value. Times without a zone are in UTC.
    fn times(&self) -> Result<Vec<Time>, String> {
        let zone = match self.param("TZID") {
            Some(name) => zone(name.trim_start_matches('/'))
                .map_err(|_| "TZID is no name of IANA's time zones, such as Europe/Berlin".to_owned())?,
            None => Tz::UTC,
        };
        let read = |text: &str| match (text.strip_suffix('Z'), date(text)) {
            (_, Some(date)) => Some((date.and_hms_opt(0, 0, 0)?.and_utc().with_timezone(&Tz::UTC), true)),
            (Some(utc), None) => Some((local_time(utc)?.and_utc().with_timezone(&Tz::UTC), false)),
            (None, None) => Some((instant(local_time(text)?, zone), false)),
        };
        self.value.split(',').map(|text| read(text).ok_or_else(|| format!("{} is no time", self.name))).collect()
    }

    fn time(&self) -> Result<Time, String> {
        self.times()?.pop().ok_or_else(|| format!("{} is no time", self.name))
    }
}

impl Event {
    fn take(&mut self, line: Line) -> Result<(), String> {
        match line.name.as_str() {
            "UID" => self.uid = Some(line.value),
            "SUMMARY" => self.summary = Some(unescape(&line.value)),
            "DESCRIPTION" => self.description = Some(unescape(&line.value)),
            "LOCATION" => self.location = Some(unescape(&line.value)),
            "DTSTART" => self.start = Some(line.time()?),
            "DTEND" => self.end = Some(line.time()?),
            "DURATION" => self.duration = Some(duration(&line.value).ok_or("DURATION is no duration")?),
            "RRULE" if self.rrule.is_some() => return Err("an event has one RRULE".to_owned()),
            "RRULE" => self.rrule = Some(line.value),
            "EXDATE" => self.exceptions.extend(line.times()?.iter().map(|(time, _)| time.to_utc())),
            "RECURRENCE-ID" => self.replaces = Some(line.time()?.0.to_utc()),
            "RDATE" | "EXRULE" => return Err(format!("{} is not supported", line.name)),
            _ => {}
        }
        Ok(())
    }

    fn entry(&self, more_exceptions: &[DateTime<Utc>]) -> Result<Entry, CallError> {
        let uid = self.uid.as_deref().filter(|uid| !uid.is_empty());
        let (Some(uid), Some((start, all_day))) = (uid, self.start) else {
            return Err(CallError::invalid("an event of ics has no UID or DTSTART"));
        };
        let end = match (self.end, self.duration) {
            (Some((end, _)), _) => end.to_utc(),
            (None, Some(duration)) => start.to_utc().checked_add_signed(duration).unwrap_or_default(),
            (None, None) if all_day => start.to_utc() + DAY,
            (None, None) => start.to_utc(),
        };
        let entry = Entry {
            id: id_of(uid, self.replaces),
            summary: self.summary.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "(untitled)".to_owned()),
            start: start.to_utc(),
            end,
            timezone: start.timezone().name().to_owned(),
            all_day,
            rrule: self.rrule.clone(),
            exceptions: [&self.exceptions, more_exceptions].concat(),
            description: self.description.clone(),
            location: self.location.clone(),
        };
        entry.check()?;
        Ok(entry)
    }
}

/// Returns the identifier of an event: its UID, or the digest of one that is long or that replaces an occurrence.
fn id_of(uid: &str, replaces: Option<DateTime<Utc>>) -> String {
    match replaces {
        None if uid.len() <= MAX_ID && uid.bytes().all(|byte| byte.is_ascii_graphic()) => uid.to_owned(),
        _ => sha256::of(format!("{uid} {replaces:?}"))[..32].to_owned(),
    }
}

/// Reads a duration such as `P1DT2H` or `PT30M`.
fn duration(text: &str) -> Option<TimeDelta> {
    let (mut total, mut number) = (0_i64, String::new());
    for char in text.strip_prefix('+').unwrap_or(text).strip_prefix('P')?.chars() {
        let factor = match char {
            '0'..='9' if number.len() < 9 => {
                number.push(char);
                continue;
            }
            'T' if number.is_empty() => continue,
            'W' => 604_800,
            'D' => 86_400,
            'H' => 3600,
            'M' => 60,
            'S' => 1,
            _ => return None,
        };
        total += number.parse::<i64>().ok()? * factor;
        number.clear();
    }
    TimeDelta::try_seconds(total).filter(|_| number.is_empty())
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some('n' | 'N') => plain.push('\n'),
                Some(char) => plain.push(char),
                None => {}
            },
            char => plain.push(char),
        }
    }
    plain
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' => escaped.push_str("\\n"),
            '\\' | ';' | ',' => escaped.extend(['\\', char]),
            // Other control characters have no form in iCalendar.
            char if char.is_control() => {}
            char => escaped.push(char),
        }
    }
    escaped
}

/// Returns the text of entries.
pub(super) fn print<'e>(entries: impl Iterator<Item = &'e Entry>, now: DateTime<Utc>) -> String {
    let mut text = String::new();
    for line in ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Cofferdam//Plugin calendar//EN"] {
        push_folded(&mut text, line);
    }
    for entry in entries {
        for line in lines_of(entry, now) {
            push_folded(&mut text, &line);
        }
    }
    push_folded(&mut text, "END:VCALENDAR");
    text
}

fn lines_of(entry: &Entry, now: DateTime<Utc>) -> Vec<String> {
    let mut lines = vec![
        "BEGIN:VEVENT".to_owned(),
        format!("UID:{}", entry.id),
        format!("DTSTAMP:{}Z", now.format("%Y%m%dT%H%M%S")),
        format!("SUMMARY:{}", escape(&entry.summary)),
        property("DTSTART", entry, &[entry.start]),
        property("DTEND", entry, &[entry.end]),
    ];
    lines.extend(entry.rrule.as_ref().map(|rule| format!("RRULE:{rule}")));
    if !entry.exceptions.is_empty() {
        lines.push(property("EXDATE", entry, &entry.exceptions));
    }
    lines.extend(entry.description.as_ref().map(|text| format!("DESCRIPTION:{}", escape(text))));
    lines.extend(entry.location.as_ref().map(|text| format!("LOCATION:{}", escape(text))));
    lines.push("END:VEVENT".to_owned());
    lines
}

/// Returns a property with times, in the form that the entry has.
fn property(name: &str, entry: &Entry, times: &[DateTime<Utc>]) -> String {
    let zone = zone(&entry.timezone).unwrap_or(Tz::UTC);
    let (head, format) = match (entry.all_day, zone) {
        (true, _) => (format!("{name};VALUE=DATE:"), "%Y%m%d"),
        (false, Tz::UTC) => (format!("{name}:"), "%Y%m%dT%H%M%SZ"),
        (false, zone) => (format!("{name};TZID={}:", zone.name()), "%Y%m%dT%H%M%S"),
    };
    let mut text = head;
    for (at, time) in times.iter().enumerate() {
        let separator = if at == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{}", time.with_timezone(&zone).format(format));
    }
    text
}

/// Adds a line. A long one is folded into several, the further ones with a blank before them.
fn push_folded(text: &mut String, mut line: &str) {
    let mut space = MAX_LINE;
    while line.len() > space {
        let (now, later) = line.split_at(line.floor_char_boundary(space));
        text.push_str(now);
        text.push_str("\r\n ");
        (line, space) = (later, MAX_LINE - 1);
    }
    text.push_str(line);
    text.push_str("\r\n");
}
