//! Settings of the E2B backend as one source has them: the table `[e2b]`, the environment, or the backend's name.

use std::time::Duration;

use cofferdam_contract::configuration::{Human, Variables};
use cofferdam_contract::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::config::{E2bConfig, Key};

/// The environment variable with the key.
const KEY: &str = "E2B_API_KEY";

/// The settings that one source has; `None` leaves a setting to the next source. The key is not a setting: it
/// comes from the environment only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct E2bSettings {
    /// The domain of the API and the sandboxes.
    pub domain: Option<String>,
    /// The address of the API.
    pub api_url: Option<String>,
    /// One address for all sandboxes.
    pub sandbox_url: Option<String>,
    /// The template of sandboxes.
    pub template: Option<String>,
    /// The time after which E2B ends a sandbox whose owner is gone.
    pub lifetime: Option<Human<Duration>>,
}

impl E2bSettings {
    /// Reads the settings in the environment, which E2B's own clients use too: `E2B_DOMAIN`, `E2B_API_URL` and
    /// `E2B_SANDBOX_URL`.
    ///
    /// # Errors
    ///
    /// Returns no error, because every text is valid here. The values are checked when the backend is created.
    pub fn from_environment(variables: Variables<'_>) -> Result<Self> {
        Ok(Self {
            domain: variables.text("E2B_DOMAIN"),
            api_url: variables.text("E2B_API_URL"),
            sandbox_url: variables.text("E2B_SANDBOX_URL"),
            ..Self::default()
        })
    }

    /// Returns these settings, and those of the next source where this one has none.
    pub fn or(self, next: Self) -> Self {
        Self {
            domain: self.domain.or(next.domain),
            api_url: self.api_url.or(next.api_url),
            sandbox_url: self.sandbox_url.or(next.sandbox_url),
            template: self.template.or(next.template),
            lifetime: self.lifetime.or(next.lifetime),
        }
    }

    /// Returns the configuration of a backend, with the key in the environment: `E2B_API_KEY`.
    ///
    /// # Errors
    /// - `Denied` without a key, `InvalidInput` for a key that cannot be valid. The other values are checked when the
    ///   backend is created.
    pub fn config(&self, variables: Variables<'_>) -> Result<E2bConfig> {
        let key = variables.text(KEY).ok_or_else(|| {
            Error::new(ErrorKind::Denied, "select backend", format!("{KEY} is not set"))
                .with_remedy("set it to a key of the E2B dashboard")
        })?;
        let base = E2bConfig::new(Key::new(key)?);
        let Self { domain, api_url, sandbox_url, template, lifetime } = self.clone();
        Ok(E2bConfig {
            domain: domain.unwrap_or(base.domain),
            api_url,
            sandbox_url,
            template: template.unwrap_or(base.template),
            lifetime: lifetime.map_or(base.lifetime, |Human(lifetime)| lifetime),
            key: base.key,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{DEFAULT_DOMAIN, DEFAULT_LIFETIME, DEFAULT_TEMPLATE};

    fn from(set: &[(&str, &str)], table: E2bSettings) -> Result<E2bConfig> {
        let lookup = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let variables = Variables::new(&lookup);
        E2bSettings::from_environment(variables)?.or(table).config(variables)
    }

    #[test]
    fn the_environment_has_the_key_and_the_addresses() {
        let found = from(&[("E2B_API_KEY", "e2b_1")], E2bSettings::default()).unwrap();
        assert_eq!((found.key.reveal(), found.domain.as_str()), ("e2b_1", DEFAULT_DOMAIN));
        assert_eq!((found.api_url, found.sandbox_url), (None, None));
        assert_eq!((found.template.as_str(), found.lifetime), (DEFAULT_TEMPLATE, DEFAULT_LIFETIME));
        let all = [
            ("E2B_API_KEY", "e2b_1"),
            ("E2B_DOMAIN", "own.example"),
            ("E2B_API_URL", "https://a"),
            ("E2B_SANDBOX_URL", "https://s"),
        ];
        let found = from(&all, E2bSettings::default()).unwrap();
        assert_eq!(found.domain, "own.example");
        assert_eq!((found.api_url.as_deref(), found.sandbox_url.as_deref()), (Some("https://a"), Some("https://s")));
        for (set, kind) in [
            (&[] as &[_], ErrorKind::Denied),
            (&[("E2B_API_KEY", "")], ErrorKind::Denied),
            (&[("E2B_API_KEY", "a b")], ErrorKind::InvalidInput),
        ] {
            let error = from(set, E2bSettings::default()).unwrap_err();
            assert!(error.kind() == kind && error.remedy().is_some(), "{error}");
        }
    }

    #[test]
    fn the_table_completes_the_environment_except_for_the_key() {
        let table = json!({ "domain": "t.example", "api_url": "https://t", "template": "mine", "lifetime": "10m" });
        let table: E2bSettings = serde_json::from_value(table).unwrap();
        let found = from(&[("E2B_API_KEY", "e2b_1"), ("E2B_DOMAIN", "own.example")], table.clone()).unwrap();
        assert_eq!((found.domain.as_str(), found.api_url.as_deref()), ("own.example", Some("https://t")));
        assert_eq!((found.template.as_str(), found.lifetime), ("mine", Duration::from_secs(600)));
        assert_eq!(from(&[], table).unwrap_err().kind(), ErrorKind::Denied);
        assert!(serde_json::from_value::<E2bSettings>(json!({ "key": "e2b_1" })).is_err());
    }
}
