//! Byte sizes, CPU shares and durations with a text form, validated when they are parsed.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes. Text form: `4096`, `64K`, `512M`, `1G`, `1T`. Units are powers of 1024; `KiB` and `KB` mean the
/// same as `K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Creates a size of `bytes` bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Creates a size of `mebibytes` MiB (1,048,576 bytes each).
    pub const fn from_mebibytes(mebibytes: u64) -> Self {
        Self(mebibytes * 1024 * 1024)
    }

    /// Returns the size in bytes.
    pub const fn as_bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (unit, name) in UNITS {
            if self.0 >= unit && self.0.is_multiple_of(unit) && self.0 / unit < 10 * 1024 {
                return write!(f, "{} {name}", self.0 / unit);
            }
        }
        for (unit, name) in UNITS {
            if self.0 >= unit {
                return write!(f, "{:.1} {name}", self.0 as f64 / unit as f64);
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("'{text}' is not a size; use a number of bytes, or a number with K, M, G or T, such as 512M");
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let number: u64 = trimmed[..split].parse().map_err(|_| bad())?;
        let shift = match trimmed[split..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(bad()),
        };
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("'{text}' is too large; the maximum is 16 EiB"))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer).map(Self);
        }
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Integer(bytes) => Ok(Self(bytes)),
            NumberOrText::Float(_) => {
                Err(de::Error::custom("a size must be an integer number of bytes or a text such as 512M"))
            }
            NumberOrText::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes, or text with K, M, G or T (powers of 1024), such as \"512M\".",
            "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+ ?([KMGTkmgt]([iI]?[bB])?|[bB])?$"}]
        })
    }
}

/// A CPU share in processors, such as 1.5, stored in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus(u32);

impl Cpus {
    /// Creates a share of `millis` thousandths of a processor.
    pub const fn from_millis(millis: u32) -> Self {
        Self(millis)
    }

    /// Returns the share in thousandths of a processor.
    pub const fn as_millis(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value: f64 =
            text.trim().parse().map_err(|_| format!("'{text}' is not a number of CPUs; use a number such as 1.5"))?;
        cpus_from_f64(value)
    }
}

fn cpus_from_f64(value: f64) -> Result<Cpus, String> {
    if !(0.01..=10_000.0).contains(&value) {
        return Err(format!("{value} CPUs is out of range; use a number from 0.01 to 10000"));
    }
    Ok(Cpus((value * 1000.0).round() as u32))
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return cpus_from_f64(f64::deserialize(deserializer)?).map_err(de::Error::custom);
        }
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Integer(whole) => cpus_from_f64(whole as f64),
            NumberOrText::Float(value) => cpus_from_f64(value),
            NumberOrText::Text(text) => text.parse(),
        }
        .map_err(de::Error::custom)
    }
}

impl JsonSchema for Cpus {
    fn schema_name() -> Cow<'static, str> {
        "Cpus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "CPU share in processors, such as 1.5.", "type": "number", "minimum": 0.01, "maximum": 10000})
    }
}

/// Parses a duration: `250ms`, `60s`, `5m`, `1h`, or a number of seconds such as `1.5`. Returns a message as the error.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a duration; use seconds, or a number with ms, s, m or h, such as 60s");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let number: f64 = trimmed[..split].parse().map_err(|_| bad())?;
    let factor = match trimmed[split..].trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    duration_from_seconds(number * factor).ok_or_else(bad)
}

fn duration_from_seconds(seconds: f64) -> Option<Duration> {
    // About a century is the maximum, so that deadlines never overflow.
    (0.0..=3.2e9).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Integer(u64),
    Float(f64),
    Text(String),
}

/// Serde support for [`Duration`]: serialized as a number of seconds, deserialized from a number or a text such as
/// `"60s"`.
pub mod serde_duration {
    use super::*;

    /// Serializes a duration as seconds.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.as_secs_f64())
    }

    /// Deserializes a duration from seconds or text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = if deserializer.is_human_readable() {
            match NumberOrText::deserialize(deserializer)? {
                NumberOrText::Integer(whole) => whole as f64,
                NumberOrText::Float(value) => value,
                NumberOrText::Text(text) => return parse_duration(&text).map_err(de::Error::custom),
            }
        } else {
            f64::deserialize(deserializer)?
        };
        duration_from_seconds(seconds).ok_or_else(|| de::Error::custom("a duration must be from 0 to 3.2e9 seconds"))
    }
}

/// Serde support for `Option<Duration>`, in the form of [`serde_duration`].
pub mod serde_optional_duration {
    use super::*;

    /// Serializes a duration as seconds, or null.
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(|duration| duration.as_secs_f64()).serialize(serializer)
    }

    /// Deserializes a duration from seconds, text or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Wrapper(#[serde(with = "serde_duration")] Duration);
        Ok(Option::<Wrapper>::deserialize(deserializer)?.map(|wrapper| wrapper.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64K", 65536), ("512M", 512 << 20), ("1G", 1 << 30), ("2 GiB", 2 << 30)]
        {
            assert_eq!(text.parse::<ByteSize>().map(ByteSize::as_bytes), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "1X", "99999999999999999999", "99999999T"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations_parse_as_people_write_them() {
        for (text, millis) in [("60s", 60_000), ("250ms", 250), ("1.5", 1500), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1s", "1d", "1e99", "99999999999h", "NaN", "inf"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpus_have_bounds() {
        assert_eq!("1.5".parse::<Cpus>(), Ok(Cpus::from_millis(1500)));
        for text in ["0", "-1", "NaN", "1e9", "x"] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
    }
}
