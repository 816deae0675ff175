//! Export and import of VM images.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

use cofferdam_contract::{ByteSize, Error, ErrorKind, Result};
use cofferdam_image::{ExportOptions, Exported, ImportOptions, Taken};
use serde::Serialize;

use super::archives::{PIECE, open};
use super::create::{blocking, shown};
use super::{ArchiveKey, Existing, Images, SavedArchive, VmImage, Watch};

const IMPORT: &str = "import image";
/// Default maximum disk size of an imported image.
pub const LARGEST_IMAGE: ByteSize = ByteSize::from_mebibytes(8192);

/// An image that was written to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportedImage {
    /// The key of the image, which archives of snapshots name.
    pub key: String,
    /// The output of `uname -r` in its VMs; empty if unknown.
    pub kernel: String,
    /// The file.
    pub archive: SavedArchive,
}

impl Images {
    /// Exports the image with this name or key to a file, from the file's beginning. After an error, the file contains
    /// no valid image.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the image does not exist or is damaged, and `ResourceExhausted` if there is no space.
    pub async fn export(
        &self,
        which: &str,
        file: File,
        key: Option<&ArchiveKey>,
        level: Option<i32>,
        watch: Watch,
    ) -> Result<ExportedImage> {
        let (store, which, key) = (self.store.clone(), which.to_owned(), key.cloned());
        let encrypted = key.is_some();
        let write = move || {
            let options = ExportOptions { key: key.as_ref().map(ArchiveKey::get), level };
            let out = BufWriter::with_capacity(PIECE, file);
            store.export(&which, out, options, &mut |step| watch.report("writing the image", step))
        };
        let Exported { image, written } = blocking("export image", write).await?;
        let archive = SavedArchive { bytes: written.bytes, sha256: written.digest.to_string(), encrypted };
        Ok(ExportedImage { key: image.key, kernel: image.release, archive })
    }

    /// Imports an image from a file under `name`. Without a name, keeps a name that the same image has, else derives
    /// one from its key. With [`Existing::Keep`], refuses to take the name of another image.
    ///
    /// # Errors
    ///
    /// Returns `InvalidInput` for a file that is not an image, is damaged or is larger than `max_size`, and `Conflict` if
    /// another image has the name, or the same key with other contents. Existing images are then unchanged.
    pub async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        existing: Existing,
        max_size: ByteSize,
        key: Option<&ArchiveKey>,
        watch: Watch,
    ) -> Result<VmImage> {
        let input = BufReader::with_capacity(PIECE, open(IMPORT, path)?);
        let (store, name, key) = (self.store.clone(), name.map(str::to_owned), key.cloned());
        let taken = match existing {
            Existing::Keep => Taken::Refuse,
            Existing::Replace => Taken::Replace,
        };
        let read = move || {
            let key = key.as_ref().map(ArchiveKey::get);
            let options = ImportOptions { key, max_size, name: name.as_deref(), taken };
            let mut progress = |step| (watch.progress)(shown(&step));
            store.import(input, options, &mut progress, &mut |step| watch.report("reading the image", step))
        };
        let imported = blocking(IMPORT, read).await?;
        let found = self.list().images.into_iter().find(|image| image.name == imported.name);
        found.ok_or_else(|| Error::new(ErrorKind::Internal, IMPORT, "the imported image is missing in the store"))
    }
}
