//! Building blocks of a backend's settings: values with a text form, and environment variables.
//!
//! A frontend owns the sources: it opens the configuration file and looks up variables. A backend owns the names and
//! the meaning of its settings.

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::{ByteSize, Cpus, Error, parse_duration};

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

/// Deserializes a value from text by its parser. Errors have the parser's words.
pub fn from_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// The environment variables that settings are read from. Empty variables count as unset.
#[derive(Clone, Copy)]
pub struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

impl<'a> Variables<'a> {
    /// Creates variables that are looked up by this function.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { lookup }
    }

    /// Returns the value of a variable as it is, such as a path.
    pub fn raw(&self, name: &str) -> Option<OsString> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    /// Returns the value of a variable as text, without the space around it.
    pub fn text(&self, name: &str) -> Option<String> {
        let text = (self.lookup)(name)?.to_string_lossy().trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Parses the value of a variable.
    ///
    /// # Errors
    ///
    /// Returns an error that names the variable if its value is invalid.
    pub fn parsed<T: FromStr<Err: Display>>(&self, name: &str) -> crate::Result<Option<T>> {
        let parse = |text: String| {
            text.parse().map_err(|error| {
                Error::invalid("read environment", format!("{name} is '{}': {error}", text.escape_debug()))
                    .with_remedy("correct or unset it; docs/configuration.md lists its values")
            })
        };
        self.text(name).map(parse).transpose()
    }
}

impl fmt::Debug for Variables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variables").finish_non_exhaustive()
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

    #[test]
    fn empty_variables_are_unset_and_invalid_ones_are_named() {
        let lookup = |name: &str| match name {
            "EMPTY" => Some(OsString::new()),
            "SPACE" => Some(" ".into()),
            "SIZE" => Some(" 1K ".into()),
            _ => None,
        };
        let variables = Variables::new(&lookup);
        assert_eq!((variables.raw("EMPTY"), variables.text("SPACE"), variables.text("UNSET")), (None, None, None));
        assert_eq!(variables.raw("SIZE"), Some(" 1K ".into()));
        assert_eq!(variables.parsed::<ByteSize>("SIZE").unwrap(), Some(ByteSize::from_bytes(1024)));
        let error = variables.parsed::<u32>("SIZE").unwrap_err();
        assert!(error.message().starts_with("SIZE is '1K'") && error.remedy().is_some(), "{error}");
    }
}
