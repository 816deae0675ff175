//! Recurrence rules of iCalendar (RFC 5545), and local times of a time zone.
//!
//! The library computes with local times, as if they were UTC. They become instants here, so that changes of the clock
//! have one treatment. Rules come from plugins, and are bounded before the library sees them.

use std::collections::HashSet;

use chrono::{DateTime, LocalResult, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use rrule::{Frequency, RRule, RRuleSet, Unvalidated};

use crate::CallError;

const MAX_RULE: usize = 512;
/// The maximum number of occurrences on a day: the library collects those of an interval, of up to a year, in memory.
const MAX_DAILY: usize = 24;

/// Returns the occurrences of a rule without those of `except`, in order.
pub(super) fn occurrences(
    rule: &str,
    start: DateTime<Tz>,
    except: &[DateTime<Utc>],
) -> Result<impl Iterator<Item = DateTime<Tz>> + use<>, CallError> {
    let zone = start.timezone();
    let local = start.naive_local().and_utc().with_timezone(&rrule::Tz::UTC);
    let except: HashSet<i64> = except.iter().map(DateTime::timestamp).collect();
    // The limit ends a search that finds nothing in 100 000 steps.
    let set = RRuleSet::new(local).rrule(parse(rule, local, zone)?).limit();
    let mut last = None;
    let times = set.into_iter().map(move |time| instant(time.naive_utc(), zone));
    Ok(times.filter(move |time| last.replace(*time) != Some(*time) && !except.contains(&time.timestamp())))
}

/// Checks a rule: its syntax, its bounds, and that it has an occurrence.
pub(super) fn check(rule: &str, start: DateTime<Tz>) -> Result<(), CallError> {
    match occurrences(rule, start, &[])?.next() {
        Some(_) => Ok(()),
        None => Err(CallError::invalid("the rrule has no occurrence")),
    }
}

/// Returns the instant of a local time. A time that clocks skip counts from before the change, and one that they repeat
/// is the first.
pub(super) fn instant(local: NaiveDateTime, zone: Tz) -> DateTime<Tz> {
    match zone.from_local_datetime(&local) {
        LocalResult::Single(time) | LocalResult::Ambiguous(time, _) => time,
        LocalResult::None => {
            // No time zone has two changes within a day.
            let before = local - TimeDelta::days(1);
            let offset = zone
                .from_local_datetime(&before)
                .earliest()
                .map_or_else(TimeDelta::zero, |time| time.naive_local() - time.naive_utc());
            zone.from_utc_datetime(&(local - offset))
        }
    }
}

fn parse(rule: &str, local: DateTime<rrule::Tz>, zone: Tz) -> Result<RRule, CallError> {
    let invalid = |reason: String| CallError::invalid(format!("the rrule is invalid: {reason}"));
    if rule.len() > MAX_RULE || !rule.bytes().all(|byte| byte.is_ascii_alphanumeric() || b";=,+-".contains(&byte)) {
        return Err(invalid(format!("it has up to {MAX_RULE} letters, digits and ;=,+-")));
    }
    let rule = local_until(&rule.to_ascii_uppercase(), zone).ok_or_else(|| invalid("UNTIL is no time".to_owned()))?;
    let parsed: RRule<Unvalidated> = rule.parse().map_err(|error: rrule::RRuleError| invalid(error.to_string()))?;
    if matches!(parsed.get_freq(), Frequency::Secondly | Frequency::Minutely) {
        return Err(invalid("it repeats more often than hourly".to_owned()));
    }
    let lists = [parsed.get_by_hour(), parsed.get_by_minute(), parsed.get_by_second()];
    if lists.iter().map(|list| list.len().max(1)).product::<usize>() > MAX_DAILY {
        return Err(invalid(format!("BYHOUR, BYMINUTE and BYSECOND make more than {MAX_DAILY} times a day")));
    }
    parsed.validate(local).map_err(|error| invalid(error.to_string()))
}

/// Rewrites UNTIL, which is in UTC, local or a date, to the local time with the Z that the library expects.
fn local_until(rule: &str, zone: Tz) -> Option<String> {
    let parts = rule.split(';').filter(|part| !part.is_empty()).map(|part| match part.strip_prefix("UNTIL=") {
        Some(until) => {
            let local = match until.strip_suffix('Z') {
                Some(utc) => zone.from_utc_datetime(&local_time(utc)?).naive_local(),
                None if until.len() == 8 => date(until)?.and_hms_opt(23, 59, 59)?,
                None => local_time(until)?,
            };
            Some(format!("UNTIL={}Z", local.format("%Y%m%dT%H%M%S")))
        }
        None => Some(part.to_owned()),
    });
    Some(parts.collect::<Option<Vec<String>>>()?.join(";"))
}

/// Reads a date such as `20260131`.
pub(super) fn date(text: &str) -> Option<NaiveDate> {
    NaiveDate::parse_from_str(text, "%Y%m%d").ok().filter(|_| text.len() == 8)
}

/// Reads a local time such as `20260131T090000`.
pub(super) fn local_time(text: &str) -> Option<NaiveDateTime> {
    NaiveDateTime::parse_from_str(text, "%Y%m%dT%H%M%S").ok().filter(|_| text.len() == 15)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn start(zone: &str, text: &str) -> DateTime<Tz> {
        instant(local_time(text).unwrap(), zone.parse().unwrap())
    }

    fn first(zone: &str, text: &str, rule: &str, count: usize) -> Vec<String> {
        let times = occurrences(rule, start(zone, text), &[]).unwrap();
        times.take(count).map(|time| time.to_rfc3339()).collect()
    }

    #[test]
    fn local_times_stay_the_same_across_changes_of_the_clock() {
        let spring = first("Europe/Berlin", "20260328T090000", "FREQ=DAILY", 3);
        assert_eq!(spring, ["2026-03-28T09:00:00+01:00", "2026-03-29T09:00:00+02:00", "2026-03-30T09:00:00+02:00"]);
        let skipped = first("Europe/Berlin", "20260328T023000", "FREQ=DAILY", 3);
        assert_eq!(skipped, ["2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"]);
        let repeated = first("America/Havana", "20261031T003000", "FREQ=DAILY", 3);
        assert_eq!(repeated, ["2026-10-31T00:30:00-04:00", "2026-11-01T00:30:00-04:00", "2026-11-02T00:30:00-05:00"]);
    }

    #[test]
    fn until_is_a_date_a_local_time_or_utc() {
        for until in ["20260103", "20260103T090000", "20260103T140000Z"] {
            let times = first("America/New_York", "20260101T090000", &format!("FREQ=DAILY;UNTIL={until}"), 9);
            assert_eq!(times.len(), 3, "{until}");
        }
        let times = first("America/New_York", "20260101T090000", "FREQ=DAILY;UNTIL=20260103T135959Z", 9);
        assert_eq!(times.len(), 2);
    }

    #[test]
    fn rules_that_are_hostile_or_empty_are_refused() {
        let seconds: String = (0..60).map(|second| format!("{second},")).collect();
        for rule in [
            "",
            "FREQ=SECONDLY;UNTIL=30260101T000000Z",
            "FREQ=MINUTELY",
            "FREQ=NEVER",
            "FREQ=DAILY;INTERVAL=0",
            "FREQ=DAILY;UNTIL=tomorrow",
            "FREQ=DAILY\nRRULE:FREQ=SECONDLY",
            "FREQ=DAILY;UNTIL=20200101",
            "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
            "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
            &format!("FREQ=YEARLY;BYSECOND={}", seconds.trim_end_matches(',')),
            &format!("FREQ=DAILY;COUNT={}", "1".repeat(MAX_RULE)),
        ] {
            assert!(check(rule, start("UTC", "20260101T000000")).is_err(), "{rule}");
        }
    }

    fn rules() -> impl Strategy<Value = String> {
        let key = prop::sample::select(vec![
            "INTERVAL",
            "COUNT",
            "BYSECOND",
            "BYMINUTE",
            "BYHOUR",
            "BYDAY",
            "BYMONTHDAY",
            "BYYEARDAY",
            "BYWEEKNO",
            "BYMONTH",
            "BYSETPOS",
            "WKST",
            "UNTIL",
        ]);
        let value = prop_oneof!["-?[0-9]{1,3}(,-?[0-9]{1,3}){0,3}", "[0-9]{0,10}", "-?[1-5]?(MO|TU|SU)", "20[0-9]{6}"];
        let parts = proptest::collection::vec((key, value).prop_map(|(key, value)| format!(";{key}={value}")), 0..4);
        let frequency = prop::sample::select(vec!["HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY"]);
        (frequency, parts).prop_map(|(frequency, parts)| format!("FREQ={frequency}{}", parts.concat()))
    }

    proptest! {
        /// No rule makes the library panic, and what it accepts is in order.
        #[test]
        fn accepted_rules_are_in_order(rule in rules()) {
            let start = start("Europe/Berlin", "20260301T023000");
            if let Ok(times) = occurrences(&rule, start, &[]) {
                let times: Vec<_> = times.take(20).collect();
                prop_assert!(times.is_sorted() && times.iter().all(|time| *time >= start), "{rule} {times:?}");
            }
        }

        #[test]
        fn any_text_is_answered(rule in "[ -~]{0,60}") {
            let _ = check(&rule, start("UTC", "20260101T000000"));
        }
    }
}
