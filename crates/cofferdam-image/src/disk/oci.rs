//! Root file systems of VMs from container images: all layers are applied to one directory.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use cofferdam_linux::beneath;
use cofferdam_util::sha256;
use rustix::fs::{Mode, OFlags};

use super::error::Result;
use super::root;
use crate::layer::layout::{Files, LAYOUT, Layer, SAVED, architecture, of_digest, read_all};
use crate::layer::stream::{Hashed, unpacked, wrong_digest};
use crate::layer::tree::{Needs, Tree, Whiteouts};
use crate::layer::{self, bad, io as io_error};
use crate::store::{ImageStore, Lease, Options};

/// Maximum total size of all layers, as a multiple of the root file system's maximum. Each layer is read twice.
const LAYERS_SHARE: u64 = 4;

/// The files of an image, and its layers.
#[derive(Debug)]
pub(crate) struct Layout {
    files: Files,
    layers: Vec<Layer>,
    /// Keeps an image of a store.
    _lease: Option<Lease>,
}

/// Returns true if a directory or a tar contains an image layout.
pub(crate) fn is_layout(file: File, path: &Path) -> bool {
    Files::of(file, path).is_ok_and(|files| files.has(LAYOUT) || (files.has(SAVED) && !has_root(&files)))
}

/// Returns true if files look like a root file system, which may contain any file.
fn has_root(files: &Files) -> bool {
    match files {
        Files::Directory(directory) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            beneath::open(directory.as_fd(), Path::new("etc"), flags, Mode::empty()).is_ok()
        }
        Files::Tar(_, members) => members.keys().any(|path| path.starts_with("etc") || path.starts_with("bin")),
    }
}

/// Reads the description of the only image for this architecture.
pub(crate) fn read(path: &Path) -> Result<Layout> {
    let files = Files::open(path)?;
    let mut images = read_all(&files)?;
    match (images.pop(), images.len()) {
        (Some(image), 0) => Ok(Layout { files, layers: image.layers, _lease: None }),
        (found, more) => {
            let count = if found.is_some() { more + 1 } else { 0 };
            Err(bad(format!("the layout has {count} images for linux/{}, and one is needed", architecture())).into())
        }
    }
}

/// Reads the description of an image in a store of container images.
pub(crate) fn stored(root: &Path, image: &str) -> Result<Layout> {
    let found = ImageStore::open(root, Options::default())?.resolve(image)?;
    let files = Files::open(root)?;
    let description = of_digest(&files, &found.digest)?;
    Ok(Layout { files, layers: description.layers, _lease: Some(found.lease) })
}

impl Layout {
    /// Returns a text that identifies the contents of the image's root file system.
    pub(crate) fn identity(&self) -> String {
        self.layers.iter().map(|layer| format!("{}\n", layer.contents.digits())).collect()
    }

    /// Unpacks all layers into an empty directory, and counts its entries.
    pub(crate) fn unpack(&self, into: &Path, max: u64) -> Result<Needs> {
        // A layer may replace files of lower layers: temporarily, both take space.
        let mut tree = Tree::new(into, max.saturating_mul(2), Whiteouts::Applied)?;
        let mut left = max.saturating_mul(LAYERS_SHARE);
        for layer in &self.layers {
            if let Some(packed) = &layer.packed {
                let found =
                    sha256::of_reader(self.files.reader(&layer.path)?).map_err(io_error("read", &layer.path))?;
                if found != packed.0 {
                    return Err(wrong_digest(packed).into());
                }
            }
            self.read_verified(layer, &mut left, |tar| tree.remove(tar))?;
            self.read_verified(layer, &mut left, |tar| tree.extract(tar))?;
        }
        root::finish(tree)
    }

    /// Reads a layer's uncompressed contents, and verifies their digest.
    fn read_verified(
        &self,
        layer: &Layer,
        left: &mut u64,
        read: impl FnOnce(&mut dyn Read) -> layer::Result<()>,
    ) -> layer::Result<()> {
        let unpacked = unpacked(self.files.reader(&layer.path)?).map_err(io_error("read", &layer.path))?;
        let mut hashed = Hashed::new(unpacked, left);
        read(&mut hashed)?;
        // Data after the end of the tar is part of the contents.
        let found = hashed.finish().map_err(|error| bad(format!("cannot read a layer of the image: {error}")))?;
        if found == layer.contents.0 { Ok(()) } else { Err(wrong_digest(&layer.contents)) }
    }
}

#[cfg(test)]
#[path = "oci_tests.rs"]
mod tests;
