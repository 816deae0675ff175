//! Timestamps in the format of the log: RFC 3339, in UTC, with microseconds.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

/// The first microsecond of the year 10000, which needs a fifth digit.
const END: i64 = 253_402_300_800_000_000;
/// The length of a timestamp without the fraction of a second and the `Z`.
const SECONDS_LENGTH: usize = "2026-01-31T12:00:00".len();

/// Microseconds since 1970 in UTC, up to the end of the year 9999. Leap seconds are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Timestamp(i64);

impl Timestamp {
    /// Returns the current time of the system clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Converts microseconds since 1970. Times out of range become the nearest that is in range.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(0, END - 1))
    }

    /// Returns the microseconds since 1970.
    pub fn as_micros(self) -> i64 {
        self.0
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
        let time = DateTime::<Utc>::from_timestamp_micros(self.0).unwrap_or_default();
        f.write_str(&time.to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> Self {
        time.to_string()
    }
}

/// An error for a text that does not have the form `2026-01-31T12:00:00Z`, with up to six digits of a second's
/// fraction.
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
        let time = DateTime::parse_from_rfc3339(text).map_err(|_| NotATime)?;
        let time = Self::from_micros(time.timestamp_micros());
        // RFC 3339 also allows other offsets, leap seconds, more digits and lower-case letters.
        let digits = text.strip_suffix('Z').ok_or(NotATime)?;
        let canonical = digits.len() >= SECONDS_LENGTH && time.to_string().starts_with(digits);
        if canonical { Ok(time) } else { Err(NotATime) }
    }
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
            assert_eq!(Timestamp(seconds * 1_000_000).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(seconds * 1_000_000)));
        }
        assert_eq!("1970-01-01T00:00:01.5Z".parse(), Ok(Timestamp(1_500_000)));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(Timestamp(1_000_000)));
    }

    #[test]
    fn malformed_times_are_refused() {
        for text in [
            "",
            "2024-02-30T00:00:00Z",
            "2023-02-29T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:60Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:00+01:00",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00.1234567Z",
            "2024-01-01T00:00:00.1234560Z",
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
        fn every_time_round_trips(micros in 0..END) {
            prop_assert_eq!(Timestamp(micros).to_string().parse(), Ok(Timestamp(micros)));
        }
    }
}
