//! Points in time as the log writes them: RFC 3339, in UTC, with microseconds.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400;
/// The first microsecond of the year 10000, which four digits cannot write.
const END: i64 = 253_402_300_800 * SECOND;

/// Microseconds since 1970 in UTC, from then to the end of the year 9999. Leap seconds are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Timestamp(i64);

impl Timestamp {
    /// The time by the system's clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// From microseconds since 1970; times that cannot be written become the nearest that can.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(0, END - 1))
    }

    /// Microseconds since 1970.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is before.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let micros = time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(END));
        Self::from_micros(micros)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / SECOND, self.0 % SECOND);
        let (year, month, day) = date(seconds / DAY);
        let (hour, minute, second) = (seconds % DAY / 3600, seconds % 3600 / 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> Self {
        time.to_string()
    }
}

/// The text is not a point in time of the form `2026-01-31T12:00:00Z`, with up to six digits of a second's fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a time in UTC; write it as 2026-01-31T12:00:00Z")]
pub struct NotATime;

impl TryFrom<String> for Timestamp {
    type Error = NotATime;

    fn try_from(text: String) -> Result<Self, NotATime> {
        text.parse()
    }
}

impl FromStr for Timestamp {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        parse(text).ok_or(NotATime)
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix('Z')?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let bytes = whole.as_bytes();
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if bytes.len() != 19 || marks.iter().any(|(at, mark)| bytes[*at] != *mark) {
        return None;
    }
    let number = |from: usize, to: usize| digits(whole.get(from..to)?);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days(year, month, day);
    if date(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 || !(1..=6).contains(&fraction.len())
    {
        return None;
    }
    let micros = digits(&format!("{fraction:0<6}"))?;
    let micros = (days * DAY + hour * 3600 + minute * 60 + second) * SECOND + micros;
    (0..END).contains(&micros).then_some(Timestamp(micros))
}

fn digits(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Days since 1970 of a date in the Gregorian calendar. Years are counted from March, so that the leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// The date of a day, the inverse of [`days`].
fn date(days: i64) -> (i64, i64, i64) {
    // 400 years have 146097 days.
    let since = days + 719_468;
    let (era, day) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    (year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_times_are_written_and_read() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_210_096, "2024-02-29T12:34:56.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000000Z"),
        ] {
            assert_eq!(Timestamp(seconds * SECOND).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(seconds * SECOND)));
        }
        assert_eq!("1970-01-01T00:00:01.5Z".parse(), Ok(Timestamp(1_500_000)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2024-02-30T00:00:00Z",
            "2023-02-29T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00+01:00",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00.1234567Z",
            "2024-00-01T00:00:00Z",
            "2024-01-0éT00:00:00Z",
            "1969-12-31T23:59:59Z",
            "+024-01-01T00:00:00Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(NotATime), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_time_comes_back(micros in 0..END) {
            prop_assert_eq!(Timestamp(micros).to_string().parse(), Ok(Timestamp(micros)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Timestamp>();
        }
    }
}
