//! Text form of limits in options and configuration: a number with a unit, or `none`.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use cofferdam::{ByteSize, Cpus, parse_duration};
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A bound, or an explicit request for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound<T> {
    /// No bound.
    None,
    /// This bound.
    Of(T),
}

impl<T> Bound<T> {
    /// Returns the bound, if there is one.
    pub fn into_option(self) -> Option<T> {
        match self {
            Self::None => None,
            Self::Of(value) => Some(value),
        }
    }
}

/// A value with a text form for people.
pub trait HumanValue: Sized {
    /// Parses the text.
    fn parse(text: &str) -> Result<Self, String>;
}

impl HumanValue for ByteSize {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl HumanValue for Cpus {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl HumanValue for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        parse_duration(text)
    }
}

impl HumanValue for u32 {
    fn parse(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| format!("'{text}' is not a whole number such as 10"))
    }
}

impl HumanValue for NonZeroU64 {
    fn parse(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| format!("'{text}' is not a whole number above 0"))
    }
}

/// A seed: any text, or a whole number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed(pub String);

impl HumanValue for Seed {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a seed is a text or a whole number".to_owned()) } else { Ok(Self(text.to_owned())) }
    }
}

/// Parses a value, `none` or `unlimited`.
pub fn parse_bound<T: HumanValue>(text: &str) -> Result<Bound<T>, String> {
    match text.trim() {
        "none" | "unlimited" => Ok(Bound::None),
        _ => T::parse(text).map(Bound::Of),
    }
}

impl<T: HumanValue> FromStr for Bound<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_bound(text)
    }
}

impl<'de, T: HumanValue> Deserialize<'de> for Bound<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber(parse_bound::<T>, PhantomData))
    }
}

/// A configuration value that cannot be `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Human<T>(pub T);

impl<'de, T: HumanValue> Deserialize<'de> for Human<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber(|text: &str| T::parse(text).map(Human), PhantomData))
    }
}

/// A visitor that parses text and numbers with one text parser.
struct TextOrNumber<F, T>(F, PhantomData<T>);

impl<T, F: Fn(&str) -> Result<T, String>> Visitor<'_> for TextOrNumber<F, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or text such as \"512M\" or \"60s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        self.visit_str(&value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_value_or_none() {
        assert_eq!(parse_bound::<ByteSize>("64M"), Ok(Bound::Of(ByteSize::from_mebibytes(64))));
        assert_eq!(parse_bound::<Duration>("1.5"), Ok(Bound::Of(Duration::from_millis(1500))));
        assert_eq!(parse_bound::<u32>("10"), Ok(Bound::Of(10)));
        assert_eq!(parse_bound::<Cpus>("1.5"), Ok(Bound::Of(Cpus::from_millis(1500))));
        for text in ["none", "unlimited"] {
            assert_eq!(parse_bound::<u32>(text), Ok(Bound::None));
        }
        for text in ["", "-1", "1.5", "many", "99999999999"] {
            assert!(parse_bound::<u32>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn configuration_takes_text_and_numbers() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Sample {
            a: Bound<ByteSize>,
            b: Bound<Duration>,
            c: Bound<u32>,
            d: Human<Duration>,
        }
        let sample: Sample = toml::from_str("a = \"1K\"\nb = 1.5\nc = \"none\"\nd = 3\n").unwrap();
        let expected = Sample {
            a: Bound::Of(ByteSize::from_bytes(1024)),
            b: Bound::Of(Duration::from_millis(1500)),
            c: Bound::None,
            d: Human(Duration::from_secs(3)),
        };
        assert_eq!(sample, expected);
        for text in ["a = -1", "a = true", "a = [1]"] {
            assert!(toml::from_str::<Sample>(text).is_err(), "{text}");
        }
    }
}
