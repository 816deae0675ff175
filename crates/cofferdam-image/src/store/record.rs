//! Documents of the store.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::layer::stream::Sha;
use crate::layer::{Dropped, Result, bad};

/// Settings of an image for the programs that run in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Environment variables, with their values.
    pub env: Vec<(String, String)>,
    /// User, as `NAME`, `UID`, `NAME:GROUP` or `UID:GID`; empty for the default.
    pub user: String,
    /// Working directory; empty for the default.
    pub working_dir: String,
    /// Program and arguments that precede those of the caller.
    pub entrypoint: Vec<String>,
    /// Arguments of the entrypoint, or the command, if the caller gives none.
    pub cmd: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// The part of an OCI configuration that is used.
#[derive(Debug, Default, Deserialize)]
struct Document {
    #[serde(default)]
    config: Option<Section>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Section {
    env: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
}

impl ImageConfig {
    /// Reads an OCI configuration.
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        let found: Document = serde_json::from_slice(text)
            .map_err(|error| bad(format!("cannot parse the image's configuration: {error}")))?;
        let found = found.config.unwrap_or_default();
        let env = found.env.unwrap_or_default();
        let pair = |text: String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Self {
            // Names without a value have no meaning.
            env: env.into_iter().filter_map(pair).filter(|(name, _)| !name.is_empty()).collect(),
            user: found.user.unwrap_or_default(),
            working_dir: found.working_dir.unwrap_or_default(),
            entrypoint: found.entrypoint.unwrap_or_default(),
            cmd: found.cmd.unwrap_or_default(),
            labels: found.labels.unwrap_or_default(),
        })
    }
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInfo {
    /// Digest of its file.
    pub blob: Sha,
    /// Size of its file in bytes.
    pub size: u64,
    /// Digest of its uncompressed contents, under which it is unpacked.
    pub contents: Sha,
}

/// An image: `images/MANIFEST`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    pub(super) manifest: Sha,
    pub(super) config: Sha,
    pub(super) settings: ImageConfig,
    pub(super) layers: Vec<LayerInfo>,
    /// Size of manifest and configuration.
    pub(super) documents: u64,
    /// Time at which it was stored, in seconds since the epoch.
    pub(super) stored: u64,
}

/// A name: `refs/HASH-OF-THE-NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NameRecord {
    pub(super) name: String,
    pub(super) manifest: Sha,
}

/// An unpacked layer: `layers/CONTENTS/layer.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerRecord {
    /// Space of its files.
    pub(super) bytes: u64,
    /// Number of its files.
    pub(super) entries: u64,
    /// Size of its uncompressed tar.
    pub(super) tar: u64,
    /// True if it hides all layers below, for which overlayfs has no mark.
    pub(super) opaque: bool,
    /// The properties of its files that were not kept. Records of earlier builds lack it.
    #[serde(default)]
    pub(super) dropped: Option<Dropped>,
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub(super) fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_docker_is_read_and_missing_parts_are_empty() {
        let text = br#"{"config":{"Env":["PATH=/bin","A=b=c","BARE","=x"],"User":"1000:1000","WorkingDir":"/srv",
            "Entrypoint":null,"Cmd":["python3"],"Labels":{"k":"v"}}}"#;
        let found = ImageConfig::parse(text).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(found.env, [pair("PATH", "/bin"), pair("A", "b=c")]);
        assert_eq!((found.user.as_str(), found.working_dir.as_str()), ("1000:1000", "/srv"));
        assert!(found.entrypoint.is_empty() && found.cmd == ["python3"] && found.labels["k"] == "v");
        for empty in [&b"{}"[..], br#"{"config":null}"#, br#"{"config":{}}"#] {
            assert_eq!(ImageConfig::parse(empty).unwrap(), ImageConfig::default());
        }
        assert!(ImageConfig::parse(b"[").is_err());
    }
}
