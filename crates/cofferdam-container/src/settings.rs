//! Settings of the container backend as one source has them: the table `[containers]`, the environment, or options.

use std::path::PathBuf;
use std::str::FromStr;

use cofferdam_contract::configuration::{Variables, from_text};
use serde::{Deserialize, Deserializer};

use crate::config::{ContainerConfig, PullPolicy};

/// The settings that one source has; `None` leaves a setting to the next source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContainerSettings {
    /// The engine's address: `unix:///path`, an absolute path or `tcp://host:port`. Default: Docker's default sockets,
    /// then Podman's.
    pub host: Option<String>,
    /// The image of specs that name none.
    pub image: Option<String>,
    /// The policy for a missing image.
    pub pull: Option<PullPolicy>,
    /// The images that a spec may name, besides the default one. Default: all.
    pub images_allowed: Option<Vec<String>>,
    /// The caller's runtime directory, which contains the sockets of rootless engines. Not a key of the table.
    #[serde(skip)]
    pub runtime_dir: Option<PathBuf>,
    /// The engine's name of the OCI runtime. Not a key of the table: a backend's name has it, as in `docker:runsc`.
    #[serde(skip)]
    pub runtime: Option<String>,
}

impl ContainerSettings {
    /// Reads the settings in the environment, which other clients of engines use too: `DOCKER_HOST` and
    /// `XDG_RUNTIME_DIR`.
    ///
    /// # Errors
    ///
    /// Returns no error, because every text is valid here. The engine's address is checked when the backend is created.
    pub fn from_environment(variables: Variables<'_>) -> cofferdam_contract::Result<Self> {
        Ok(Self {
            host: variables.text("DOCKER_HOST"),
            runtime_dir: variables.raw("XDG_RUNTIME_DIR").map(PathBuf::from),
            ..Self::default()
        })
    }

    /// Returns these settings, and those of the next source where this one has none.
    pub fn or(self, next: Self) -> Self {
        Self {
            host: self.host.or(next.host),
            image: self.image.or(next.image),
            pull: self.pull.or(next.pull),
            images_allowed: self.images_allowed.or(next.images_allowed),
            runtime_dir: self.runtime_dir.or(next.runtime_dir),
            runtime: self.runtime.or(next.runtime),
        }
    }

    /// Returns the configuration of a backend, with defaults for all settings that no source has.
    pub fn config(&self) -> ContainerConfig {
        let Self { host, image, pull, images_allowed, runtime_dir, runtime } = self.clone();
        let base = ContainerConfig::default();
        ContainerConfig {
            host,
            runtime_dir,
            runtime,
            image: image.unwrap_or(base.image),
            pull: pull.unwrap_or(base.pull),
            images: images_allowed,
            engine: base.engine,
            deadlines: base.deadlines,
        }
    }
}

impl FromStr for PullPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "missing" => Ok(Self::Missing),
            _ => Err(format!("'{}' is not a pull policy; use never or missing", text.escape_debug())),
        }
    }
}

impl<'de> Deserialize<'de> for PullPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(value: serde_json::Value) -> Result<ContainerSettings, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn table_and_environment_have_their_own_settings() {
        let file =
            table(json!({"host": "/f.sock", "image": "own", "pull": "missing", "images_allowed": ["a"]})).unwrap();
        let lookup = |name: &str| (name == "DOCKER_HOST").then(|| "/e.sock".into());
        let config = ContainerSettings::from_environment(Variables::new(&lookup)).unwrap().or(file).config();
        assert_eq!((config.host.as_deref(), config.image.as_str()), (Some("/e.sock"), "own"));
        assert_eq!((config.pull, config.images), (PullPolicy::Missing, Some(vec!["a".to_owned()])));
        assert_eq!(ContainerSettings::default().config(), ContainerConfig::default());
        for (value, says) in [
            (json!({"runtime": "runsc"}), "unknown field `runtime`, expected one of `host`, `image`, `pull`"),
            (json!({"pull": "always"}), "'always' is not a pull policy; use never or missing"),
        ] {
            let error = table(value).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
