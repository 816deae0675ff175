//! The images of the host that sandboxes can have as their root file system. The program has them: the server knows no
//! image store.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An image of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostImage {
    /// The names, each of which `image` of a request can be.
    pub names: Vec<String>,
    /// The digest, such as `sha256:…`.
    pub digest: String,
    /// The bytes that it takes on the host.
    pub size: u64,
    /// The time at which it was added, in seconds since 1970.
    pub stored: u64,
    /// The time of its last use, in seconds since 1970. For callers with the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// True if a sandbox uses it. For callers with the scope `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<bool>,
}

impl HostImage {
    /// Removes what shows the activity of other tenants.
    pub(crate) fn without_use(self) -> Self {
        Self { used: None, in_use: None, ..self }
    }
}

/// All images of the host, and the space that they take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostImageList {
    /// The images.
    pub images: Vec<HostImage>,
    /// The bytes that all take together.
    pub size: u64,
    /// The most bytes that they can take.
    pub max_size: u64,
}

/// An image of the host in detail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostImageDetails {
    /// The image.
    #[serde(flatten)]
    pub image: HostImage,
    /// The digest of its configuration, which is the id that container engines show.
    pub config_digest: String,
    /// Its settings.
    pub config: HostImageConfig,
    /// Its layers, the lowest first.
    pub layers: Vec<HostImageLayer>,
    /// The counts of what was not kept of its files, if they are known.
    pub dropped: Option<DroppedMetadata>,
}

/// The settings of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostImageConfig {
    /// Variables as `NAME=VALUE`.
    pub env: Vec<String>,
    /// The user of its programs.
    pub user: String,
    /// The working directory.
    pub working_dir: String,
    /// The start of each command.
    pub entrypoint: Vec<String>,
    /// The default command.
    pub cmd: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostImageLayer {
    /// The digest of its file.
    pub digest: String,
    /// The digest of its uncompressed contents.
    pub contents: String,
    /// The bytes of its file.
    pub size: u64,
}

/// The counts of what is not kept of the files of an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DroppedMetadata {
    /// Files of other owners or groups than root.
    pub owners: u64,
    /// Files with set-user-ID or set-group-ID bits.
    pub set_id: u64,
    /// Files with extended attributes.
    pub attributes: u64,
    /// Devices and FIFOs.
    pub special: u64,
}

/// An image that was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddedImage {
    /// The names that it got.
    pub names: Vec<String>,
    /// The digest.
    pub digest: String,
    /// The counts of what was not kept of its files, if they are known.
    pub dropped: Option<DroppedMetadata>,
}

/// The images that were added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddedImages {
    /// The images.
    pub images: Vec<AddedImage>,
}

/// The result of a removal of images.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedImages {
    /// The names that were removed.
    pub names: Vec<String>,
    /// The digests of the images that were removed.
    pub images: Vec<String>,
    /// The bytes that were freed.
    pub freed: u64,
    /// True if files that no image has remain until the next removal, because an image is added now.
    pub deferred: bool,
}

/// The images of the host. Errors go to clients: their messages name no files of the host, their sources may.
#[async_trait]
pub trait HostImages: Send + Sync + std::fmt::Debug + 'static {
    /// Returns all images.
    ///
    /// # Errors
    /// - Those of the image store.
    async fn images(&self) -> Result<HostImageList>;

    /// Returns details of the image with a name or digest.
    ///
    /// # Errors
    /// - `NotFound` if there is none, `InvalidInput` for a text that is no name.
    async fn inspect(&self, name: &str) -> Result<HostImageDetails>;

    /// Pulls an image from its registry.
    ///
    /// # Errors
    /// - `NotFound`, `Denied` and `Unavailable` of the registry, `InvalidInput` for a text that is no name.
    /// - `ResourceExhausted` if the store has no room for it.
    async fn pull(&self, name: &str) -> Result<AddedImages>;

    /// Creates a file without a name, for an archive.
    ///
    /// # Errors
    /// - Those of the image store.
    async fn spool(&self) -> Result<File>;

    /// Adds the images in an archive of `docker save` or of an OCI image layout.
    ///
    /// # Errors
    /// - `InvalidInput` for a damaged archive and for one without a name, `ResourceExhausted` as in [`Self::pull`].
    async fn load(&self, archive: File, name: Option<&str>) -> Result<AddedImages>;

    /// Removes images without a name, and those that no sandbox used for a time.
    ///
    /// # Errors
    /// - Those of the image store.
    async fn prune(&self, unused_for: Option<Duration>) -> Result<RemovedImages>;

    /// Removes a name, and its image unless it has others.
    ///
    /// # Errors
    /// - `NotFound` if there is none, `Conflict` while a sandbox uses the image.
    async fn remove(&self, name: &str) -> Result<RemovedImages>;
}
