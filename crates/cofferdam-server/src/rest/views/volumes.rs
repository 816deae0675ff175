//! The documents of volumes.

use std::time::UNIX_EPOCH;

use cofferdam_contract::{Access, ByteSize, MountTarget};
use cofferdam_volume::Volume;
use cofferdam_volume::sandbox::VolumeMount;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A new volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// The name, unique for the tenant: letters, digits, `.`, `_` and `-`, at most 64.
    pub name: String,
    /// The most bytes that it stores, in bytes or as text such as `2G`. Default: 1 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// True for a directory without a size limit, for the server's own user over the private socket.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
}

/// A volume at a path of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountVolume {
    /// The name of the volume.
    pub volume: String,
    /// The absolute path inside the sandbox.
    pub path: MountTarget,
    /// True refuses all writes. A volume has one writer or any number of readers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// A volume.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct VolumeView {
    /// The name.
    pub name: String,
    /// The most bytes that it stores. `null` for no limit.
    pub size: Option<u64>,
    /// The bytes that it takes on the host. `null` if that is not known.
    pub used: Option<u64>,
    /// The time of creation, in seconds since 1970.
    pub created: u64,
    /// True while a sandbox uses it.
    pub in_use: bool,
}

/// A page of volumes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct VolumeList {
    /// The volumes, in the order of names.
    pub volumes: Vec<VolumeView>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}

impl MountVolume {
    /// Returns the document of a mount.
    pub fn of(mount: &VolumeMount) -> Self {
        let VolumeMount { name, target, access } = mount;
        Self { volume: name.to_string(), path: target.clone(), read_only: *access == Access::ReadOnly }
    }

    /// Returns the mount.
    ///
    /// # Errors
    /// - `InvalidInput` for a malformed name.
    pub(crate) fn into_mount(self) -> cofferdam_contract::Result<VolumeMount> {
        let Self { volume, path, read_only } = self;
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        Ok(VolumeMount { name: volume.parse().map_err(crate::volumes::refused)?, target: path, access })
    }
}

impl VolumeView {
    pub(in crate::rest) fn of(volume: &Volume) -> Self {
        Self {
            name: volume.name.to_string(),
            size: volume.size,
            used: volume.used,
            created: volume.created.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            in_use: !volume.holders.is_empty(),
        }
    }
}
