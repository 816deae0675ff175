//! The times of a timer, and the policy for those that were missed. Pure: the clock is a parameter.

use chrono::{DateTime, TimeDelta, Utc};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use serde::{Deserialize, Serialize};

use crate::CallError;

use super::super::zone;

/// The maximum number of runs that are made up for, and of missed runs that are counted.
pub(super) const MAX_RUNS: usize = 100;
/// A run that is later than this was missed.
const GRACE: TimeDelta = TimeDelta::seconds(60);
const MAX_CRON: usize = 128;

/// The times of a timer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Schedule {
    /// Once.
    At(DateTime<Utc>),
    /// Each time that a number of milliseconds has passed.
    Every(i64),
    /// At the times of a pattern in a time zone.
    Cron { pattern: String, timezone: String },
}

/// The policy for runs that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Missed {
    /// Missed runs do not run.
    Skip,
    /// Missed runs run once, together.
    #[default]
    Once,
    /// Each missed run runs, up to the last 100.
    All,
}

/// A run that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// The time for which it was planned.
    pub(super) scheduled: DateTime<Utc>,
    /// The number of runs before it that were left out, at most 100.
    pub(super) missed: usize,
}

impl Schedule {
    /// Returns the first time of a new timer. A timer without one is refused.
    pub(super) fn first(&self, now: DateTime<Utc>) -> Result<DateTime<Utc>, CallError> {
        match self {
            Self::At(at) if *at < now - GRACE => Err(CallError::invalid("at is in the past")),
            Self::At(at) => Ok(*at),
            _ => self.after(now, now)?.ok_or_else(|| CallError::invalid("the timer would never run")),
        }
    }

    /// Returns the first time after `now` of a timer that is planned for `planned`.
    pub(super) fn after(&self, planned: DateTime<Utc>, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, CallError> {
        match self {
            Self::At(_) => Ok(None),
            Self::Every(period) => {
                let passed = (now - planned).num_milliseconds().max(0) / period;
                Ok(planned.checked_add_signed(TimeDelta::milliseconds((passed + 1).saturating_mul(*period))))
            }
            Self::Cron { pattern, timezone } => {
                let (cron, now) = (cron(pattern)?, now.with_timezone(&zone(timezone)?));
                Ok(cron.find_next_occurrence(&now, false).ok().map(|next| next.to_utc()))
            }
        }
    }

    /// Returns the times from `planned` to `now`, of which the last 100, oldest first.
    fn due(&self, planned: DateTime<Utc>, now: DateTime<Utc>) -> Result<Vec<DateTime<Utc>>, CallError> {
        let mut times = match self {
            Self::At(_) => vec![planned],
            Self::Every(period) => {
                let last = (now - planned).num_milliseconds().max(0) / period;
                let times = (0..=last).rev().take(MAX_RUNS);
                times.map(|count| planned + TimeDelta::milliseconds(count * period)).collect()
            }
            Self::Cron { pattern, timezone } => {
                let (cron, mut at) = (cron(pattern)?, now.with_timezone(&zone(timezone)?));
                let mut times = Vec::new();
                while times.len() < MAX_RUNS {
                    match cron.find_previous_occurrence(&at, times.is_empty()) {
                        Ok(earlier) if earlier >= planned && earlier <= at => at = earlier,
                        _ => break,
                    }
                    times.push(at.to_utc());
                }
                times
            }
        };
        times.reverse();
        Ok(times)
    }

    /// Returns the runs to make at `now` for a timer that is planned for `planned`.
    pub(super) fn runs(
        &self,
        planned: DateTime<Utc>,
        now: DateTime<Utc>,
        policy: Missed,
    ) -> Result<Vec<Run>, CallError> {
        let due = self.due(planned, now)?;
        let Some((last, missed)) = due.split_last() else { return Ok(Vec::new()) };
        let run = |scheduled: &DateTime<Utc>, missed| Run { scheduled: *scheduled, missed };
        Ok(match policy {
            Missed::Skip if *last < now - GRACE => Vec::new(),
            Missed::Skip | Missed::Once => vec![run(last, missed.len())],
            Missed::All => due.iter().map(|time| run(time, 0)).collect(),
        })
    }
}

/// Reads a pattern of cron: five fields, without seconds.
pub(super) fn cron(pattern: &str) -> Result<Cron, CallError> {
    if pattern.len() > MAX_CRON {
        return Err(CallError::invalid(format!("cron has at most {MAX_CRON} bytes")));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(pattern).map_err(|error| CallError::invalid(format!("cron is no pattern: {error}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    fn daily(pattern: &str, timezone: &str) -> Schedule {
        Schedule::Cron { pattern: pattern.to_owned(), timezone: timezone.to_owned() }
    }

    fn times(schedule: &Schedule, from: &str, count: usize) -> Vec<String> {
        let mut now = at(from);
        let next = |now: &mut DateTime<Utc>| *now = schedule.after(*now, *now).unwrap().unwrap();
        (0..count)
            .map(|_| {
                next(&mut now);
                now.to_rfc3339()
            })
            .collect()
    }

    #[test]
    fn cron_follows_the_clock_of_its_time_zone() {
        // Clocks in Berlin go from 02:00 to 03:00 on 2026-03-29, and from 03:00 to 02:00 on 2026-10-25.
        let nine = daily("0 9 * * *", "Europe/Berlin");
        assert_eq!(times(&nine, "2026-03-28T00:00:00Z", 2), ["2026-03-28T08:00:00+00:00", "2026-03-29T07:00:00+00:00"]);
        let in_gap = daily("30 2 * * *", "Europe/Berlin");
        assert_eq!(times(&in_gap, "2026-03-28T12:00:00Z", 2).len(), 2);
        let in_overlap = times(&in_gap, "2026-10-24T12:00:00Z", 2);
        assert_eq!(in_overlap, ["2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00"]);
        let sunday = daily("0 0 * * 0", "UTC");
        assert_eq!(times(&sunday, "2026-01-01T00:00:00Z", 1), ["2026-01-04T00:00:00+00:00"]);
    }

    #[test]
    fn invalid_and_impossible_patterns_are_refused() {
        let now = at("2026-01-01T00:00:00Z");
        for pattern in ["", "* * * *", "* * * * * *", "61 * * * *", "0 0 30 2 *", &"1,".repeat(99), "\u{0}"] {
            let schedule = daily(pattern, "UTC");
            assert!(schedule.first(now).is_err(), "{pattern:?}");
        }
        assert!(daily("* * * * *", "Mars/Olympus").first(now).is_err());
        assert!(Schedule::At(at("2025-12-31T23:00:00Z")).first(now).is_err());
    }

    #[test]
    fn missed_runs_follow_the_policy() {
        let (planned, now) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T03:30:00Z"));
        for schedule in [Schedule::Every(3_600_000), daily("0 * * * *", "Asia/Tokyo")] {
            let runs = |policy| schedule.runs(planned, now, policy).unwrap();
            assert_eq!(runs(Missed::Skip), []);
            assert_eq!(runs(Missed::Once), [Run { scheduled: at("2026-01-01T03:00:00Z"), missed: 3 }]);
            let all: Vec<_> = runs(Missed::All).iter().map(|run| run.scheduled.timestamp()).collect();
            assert_eq!(all, [0, 1, 2, 3].map(|hour| planned.timestamp() + hour * 3600));
            assert_eq!(schedule.after(planned, now).unwrap(), Some(at("2026-01-01T04:00:00Z")));
            // A run in time is not a missed one.
            let in_time = schedule.runs(planned, at("2026-01-01T00:00:05Z"), Missed::Skip).unwrap();
            assert_eq!(in_time, [Run { scheduled: planned, missed: 0 }]);
        }
        let once = Schedule::At(planned);
        assert_eq!(once.runs(planned, now, Missed::Once).unwrap(), [Run { scheduled: planned, missed: 0 }]);
        assert_eq!(once.runs(planned, now, Missed::Skip).unwrap(), []);
    }

    fn schedules() -> impl Strategy<Value = Schedule> {
        prop_oneof![
            (1000..100_000_000_i64).prop_map(Schedule::Every),
            prop::sample::select(vec!["* * * * *", "30 2 * * *", "*/7 1-3 * * SUN", "0 0 29 2 *", "59 23 L * *"])
                .prop_flat_map(|pattern| {
                    let zones =
                        vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"];
                    prop::sample::select(zones).prop_map(move |zone| daily(pattern, zone))
                }),
        ]
    }

    proptest! {
        /// After any pause, runs are bounded, in order, between the plan and now, and the next time is after now.
        #[test]
        fn runs_are_bounded_and_in_order(
            schedule in schedules(), start in 1_600_000_000..2_000_000_000_i64, pause in 0..50_000_000_i64
        ) {
            let start = DateTime::from_timestamp(start, 0).unwrap();
            let planned = schedule.first(start).unwrap();
            prop_assert!(planned > start);
            let now = planned + TimeDelta::seconds(pause);
            for policy in [Missed::Skip, Missed::Once, Missed::All] {
                let runs = schedule.runs(planned, now, policy).unwrap();
                let max = if policy == Missed::All { MAX_RUNS } else { 1 };
                prop_assert!(runs.len() <= max);
                prop_assert!(policy == Missed::Skip || !runs.is_empty());
                prop_assert!(runs.is_sorted_by(|a, b| a.scheduled < b.scheduled));
                prop_assert!(runs.iter().all(|run| run.scheduled >= planned && run.scheduled <= now));
            }
            prop_assert!(schedule.after(planned, now).unwrap().unwrap() > now);
        }

        #[test]
        fn any_pattern_is_answered(pattern in "[0-9*/,LW# A-Z?@-]{0,24}") {
            let _ = daily(&pattern, "Europe/Berlin").first(at("2026-01-01T00:00:00Z"));
        }
    }
}
