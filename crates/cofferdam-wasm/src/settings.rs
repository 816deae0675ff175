//! Settings of sandboxes at level wasm as one source has them: the table `[wasm]`, the environment, or options.

use std::num::NonZeroU64;

use cofferdam_contract::Result;
use cofferdam_contract::configuration::{Bound, Human, HumanValue, Variables};
use serde::Deserialize;
use serde_json::Value;

use crate::NAME;

/// The settings that one source has; `None` leaves a setting to the next source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WasmSettings {
    /// Seed of deterministic clocks and random bytes.
    pub deterministic: Option<Human<Seed>>,
    /// Maximum number of steps of each exec.
    pub fuel: Option<Bound<NonZeroU64>>,
}

impl WasmSettings {
    /// Reads the settings in the environment: `COFFERDAM_WASM_DETERMINISTIC` and `COFFERDAM_WASM_FUEL`.
    ///
    /// # Errors
    ///
    /// Returns an error that names a variable with an invalid value.
    pub fn from_environment(variables: Variables<'_>) -> Result<Self> {
        Ok(Self {
            deterministic: variables.text("COFFERDAM_WASM_DETERMINISTIC").map(|seed| Human(Seed(seed))),
            fuel: variables.parsed("COFFERDAM_WASM_FUEL")?,
        })
    }

    /// Returns these settings, and those of the next source where this one has none.
    pub fn or(self, next: Self) -> Self {
        Self { deterministic: self.deterministic.or(next.deterministic), fuel: self.fuel.or(next.fuel) }
    }

    /// Returns the attributes of a spec with these settings.
    pub fn attributes(&self) -> impl Iterator<Item = (String, Value)> {
        let Self { deterministic, fuel } = self.clone();
        let seed = deterministic.map(|Human(Seed(seed))| (format!("{NAME}.deterministic"), seed.into()));
        let fuel = fuel.and_then(Bound::into_option).map(|fuel| (format!("{NAME}.fuel"), fuel.get().into()));
        seed.into_iter().chain(fuel)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::Policy;

    #[test]
    fn settings_are_attributes_that_the_backend_reads() {
        let settings: WasmSettings = serde_json::from_value(json!({"deterministic": 7, "fuel": 30})).unwrap();
        let mut builder = cofferdam_contract::Spec::builder();
        for (name, value) in settings.attributes() {
            builder = builder.attribute(name, value);
        }
        let policy = Policy::of(&builder.build().unwrap()).unwrap();
        assert_eq!(policy, Policy { seed: Some(7), fuel: Some(30) });
        let lifted: WasmSettings = serde_json::from_value(json!({"fuel": "none"})).unwrap();
        assert_eq!(lifted.or(settings).attributes().map(|(name, _)| name).collect::<Vec<_>>(), ["wasm.deterministic"]);
        assert!(serde_json::from_value::<WasmSettings>(json!({"fuel": 0})).is_err());
        assert!(serde_json::from_value::<WasmSettings>(json!({"seed": 0})).is_err());
    }
}
