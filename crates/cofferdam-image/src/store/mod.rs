//! The store of container images: pulled, loaded, imported and built images, for every isolation level.
//!
//! ```text
//! blobs/sha256/DIGEST     manifests, configurations and layers as they were received, verified by their digest
//! layers/CONTENTS/fs/     an unpacked layer, as a lower directory of overlayfs; shared by all images that have it
//! layers/CONTENTS/layer.json
//! images/MANIFEST         an image of which everything is there; locked by the sandboxes that use it
//! names/HASH              a name, and the digest of its image's manifest
//! work/                   temporary files, each locked by the process that writes it
//! lock                    held while names and images change
//! writers                 locked (shared) by processes that add an image
//! ```
//!
//! Everything is written under a temporary name, synced, and then renamed. After `kill -9` at any point the store has an
//! image completely or not at all; the next process that opens the store removes the temporary files.
//!
//! # Unpacked layers
//!
//! A directory in `layers` is usable as a lower directory of overlayfs with the option `userxattr`, by root and by an
//! ordinary user: whiteouts are character devices 0/0, directories that hide the ones below have the attribute
//! `user.overlay.opaque`. All files belong to the owner of the store, whatever the layer says, as with
//! `ignore_chown_errors` of Podman. Every file is readable by that owner. Set-user-ID and set-group-ID bits, extended
//! attributes, devices, FIFOs and sockets are left out. A layer is unpacked without the layers below, as Docker does: a
//! path in it never follows a link of a lower layer.
//!
//! # Where to look
//!
//! - Names: `reference.rs`. Documents in the store: `record.rs`.
//! - Directories, locks, temporary files: `files.rs`.
//! - Adding files and layers: `add.rs`; from archives: `load.rs`; from root file systems: `import.rs`; from registries,
//!   with the feature `registry`: `registry/mod.rs`.
//! - Use by a sandbox: `resolve.rs`. Lists and removal: `manage.rs`. Archives for container engines: `save.rs`.

mod add;
mod error;
mod files;
mod import;
mod load;
mod manage;
mod record;
mod reference;
#[cfg(feature = "registry")]
mod registry;
mod resolve;
mod save;

use std::path::{Path, PathBuf};

pub use crate::layer::stream::Sha;
pub use crate::layer::{Dropped, LayerError};
pub use error::StoreError;
pub use manage::{Inspected, Listed, PruneOptions, Removed};
pub use record::{ImageConfig, LayerInfo};
pub use reference::Reference;
#[cfg(feature = "registry")]
pub use registry::RegistryOptions;
pub use resolve::{Lease, Resolved};

use error::Result;
use files::Files;

/// Default for the maximum size of a store.
pub const MAX_STORE_BYTES: u64 = 64 << 30;
/// Default for the maximum size of one layer's files.
pub const MAX_LAYER_BYTES: u64 = 16 << 30;

/// Limits of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Maximum size of all files of the store, in bytes.
    pub max_bytes: u64,
    /// Maximum size of the files of one layer, in bytes.
    pub max_layer_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_bytes: MAX_STORE_BYTES, max_layer_bytes: MAX_LAYER_BYTES }
    }
}

/// A step of adding an image.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Another process adds the same file.
    Waiting,
    /// Files of the image are read or downloaded.
    Reading {
        /// Bytes read so far.
        done: u64,
        /// Bytes in all, if known.
        total: Option<u64>,
    },
    /// A layer is unpacked.
    Unpacking {
        /// Number of the layer, from 1.
        layer: usize,
        /// Number of layers.
        layers: usize,
    },
}

/// An image that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// Digest of its manifest.
    pub manifest: Sha,
    /// Its names.
    pub names: Vec<Reference>,
    /// Counts of what was not kept of its files. `None` if an earlier build unpacked a layer and did not count.
    pub dropped: Option<Dropped>,
}

/// A store of images that several processes may use.
#[derive(Debug, Clone)]
pub struct ImageStore {
    files: Files,
    options: Options,
}

impl ImageStore {
    /// Opens a store, creates missing directories, and removes temporary files of killed processes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exposed`] if other users can change the directory, and those of the operating system.
    pub fn open(root: &Path, options: Options) -> Result<Self> {
        Ok(Self { files: Files::open(root)?, options })
    }

    /// Returns the directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.files.root
    }

    /// Returns the limits.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// Returns the default directory of a user's store: `$XDG_STATE_HOME/cofferdam/images`, for root else
    /// `/var/lib/cofferdam/images`, for other users else `~/.local/state/cofferdam/images`. Returns `None` for a user
    /// without a home.
    pub fn default_root(variable: impl Fn(&str) -> Option<std::ffi::OsString>, is_root: bool) -> Option<PathBuf> {
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_STATE_HOME").or_else(|| match is_root {
            true => Some(PathBuf::from("/var/lib")),
            false => absolute("HOME").map(|home| home.join(".local/state")),
        })?;
        Some(base.join("cofferdam/images"))
    }
}
