//! Images of machines that travel as files.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

use cofferdam_contract::{ByteSize, Error, ErrorKind, Result};
use cofferdam_vm::image::{ExportOptions, Exported, ImportOptions, Taken};
use serde::Serialize;

use super::archives::{PIECE, open};
use super::made::{blocking, shown};
use super::{ArchiveKey, Existing, Images, MachineImage, SavedArchive, Watch};

const IMPORT: &str = "import image";
/// The largest disk of an image that is imported unless told otherwise.
pub const LARGEST_IMAGE: ByteSize = ByteSize::from_mebibytes(8192);

/// An image that was written to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportedImage {
    /// The key of the image: what an archive of a snapshot names.
    pub key: String,
    /// What `uname -r` prints in its machines; empty where that is not known.
    pub kernel: String,
    /// The file.
    pub archive: SavedArchive,
}

impl Images {
    /// Writes the image of this name, or with this key, to a file, from the file's beginning. After an error, what is in the
    /// file is no image.
    ///
    /// # Errors
    ///
    /// `NotFound` where there is no such image, or it is damaged; `ResourceExhausted` where there is no room.
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
            store.export(&which, out, options, &mut |step| watch.tell("writing the image", step))
        };
        let Exported { image, written } = blocking("export image", write).await?;
        let archive = SavedArchive { bytes: written.bytes, sha256: written.digest.to_string(), encrypted };
        Ok(ExportedImage { key: image.key, kernel: image.release, archive })
    }

    /// Reads an image from a file, and gives it `name`; without one, it keeps a name that the same image has, else it gets one
    /// of its key. With [`Existing::Keep`], an import that would take the name of another image is refused.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for what is no image, is damaged or is larger than `most`; `Conflict` where another image has the name, or
    /// the same key with other contents. What was there stays then.
    pub async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        existing: Existing,
        most: ByteSize,
        key: Option<&ArchiveKey>,
        watch: Watch,
    ) -> Result<MachineImage> {
        let input = BufReader::with_capacity(PIECE, open(IMPORT, path)?);
        let (store, name, key) = (self.store.clone(), name.map(str::to_owned), key.cloned());
        let taken = match existing {
            Existing::Keep => Taken::Refuse,
            Existing::Replace => Taken::Replace,
        };
        let read = move || {
            let key = key.as_ref().map(ArchiveKey::get);
            let options = ImportOptions { key, most, name: name.as_deref(), taken };
            let mut progress = |step| (watch.progress)(shown(&step));
            store.import(input, options, &mut progress, &mut |step| watch.tell("reading the image", step))
        };
        let imported = blocking(IMPORT, read).await?;
        let found = self.list().images.into_iter().find(|image| image.name == imported.name);
        found.ok_or_else(|| Error::new(ErrorKind::Internal, IMPORT, "the image was imported, and is not there"))
    }
}
