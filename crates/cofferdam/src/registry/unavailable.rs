//! Settings of backends that this build lacks.

use std::collections::BTreeMap;
#[cfg(not(all(feature = "container", feature = "vm")))]
use std::str::FromStr;

use cofferdam_contract::Result;
use cofferdam_contract::configuration::Variables;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// The settings of a backend that this build lacks. They have no effect, so they are not checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnavailableSettings;

impl UnavailableSettings {
    /// Ignores the environment.
    pub fn from_environment(_: Variables<'_>) -> Result<Self> {
        Ok(Self)
    }

    /// Returns these settings.
    pub fn or(self, _: Self) -> Self {
        self
    }
}

/// Ignores the values of options.
#[cfg(not(all(feature = "container", feature = "vm", feature = "wasm")))]
pub(super) fn ignored<T>(_: T) -> UnavailableSettings {
    UnavailableSettings
}

impl<'de> Deserialize<'de> for UnavailableSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, IgnoredAny>::deserialize(deserializer).map(|_| Self)
    }
}

/// The value of an option of a backend that this build lacks. There is none.
#[cfg(not(all(feature = "container", feature = "vm")))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnavailableValue {}

#[cfg(not(all(feature = "container", feature = "vm")))]
impl FromStr for UnavailableValue {
    type Err = String;

    fn from_str(_: &str) -> Result<Self, String> {
        Err("this build lacks the backend of this option; `cofferdam backends` lists those that it has".to_owned())
    }
}
