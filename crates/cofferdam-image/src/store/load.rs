//! Images from files: an OCI image layout in a directory or a tar, or the output of `docker save`.

use std::fs::File;
use std::io::{self as std_io, Read, Seek, Write};
use std::path::Path;

use serde_json::json;

use super::add::{AddSession, now};
use super::error::{Result, StoreError, io};
use super::files::Kind;
use super::record::{ImageConfig, ImageRecord, LayerInfo};
use super::reference::Reference;
use super::{Added, ImageStore, Progress};
use crate::layer::layout::{self, Description, Files, Layer};
use crate::layer::stream::{Compression, Sha};

pub(super) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
const PIECE: usize = 256 << 10;

impl ImageStore {
    /// Adds the images in a file or directory: an OCI image layout, or the output of `docker save`. With `name`, the
    /// file must have one image, which gets this name instead of its own.
    ///
    /// # Errors
    ///
    /// [`StoreError::NameRequired`], [`StoreError::QuotaExceeded`], and those of damaged or hostile images. After an
    /// error, no image of the file is added, except those before the damaged one.
    pub fn load(
        &self,
        path: &Path,
        name: Option<&Reference>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Added>> {
        self.load_files(&Files::open(path)?, path, name, progress)
    }

    /// Adds the images in an open archive like [`Self::load`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::load`].
    pub fn load_archive(
        &self,
        mut archive: File,
        name: Option<&Reference>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Added>> {
        let path = Path::new("the archive");
        archive.rewind().map_err(io("read", path))?;
        self.load_files(&Files::of(archive, path)?, path, name, progress)
    }

    /// Creates a file without a name, for an archive that arrives piece by piece.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn spool(&self) -> Result<File> {
        // Its name is removed here.
        let temporary = self.files.temporary(Kind::File)?;
        let opened = File::options().read(true).write(true).open(&temporary.path);
        opened.map_err(io("open", &temporary.path))
    }

    fn load_files(
        &self,
        files: &Files,
        path: &Path,
        name: Option<&Reference>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Added>> {
        let images = layout::read_all(files)?;
        if images.is_empty() {
            let what = format!("{} has no image for linux/{}", path.display(), layout::architecture());
            return Err(StoreError::NameRequired { what });
        }
        if let (Some(_), 2..) = (name, images.len()) {
            let what = format!("the file has {} images, which cannot all have one name", images.len());
            return Err(StoreError::NameRequired { what });
        }
        let named = images.iter().map(|image| match name {
            Some(name) => Ok(vec![name.clone().without_digest()?]),
            None => names_of(image),
        });
        let named = named.collect::<Result<Vec<_>>>()?;
        let session = self.session(0)?;
        let mut added = Vec::new();
        for (image, names) in images.iter().zip(named) {
            let record = add(&session, files, image, &names, progress)?;
            added.push(Added { dropped: self.dropped(&record.layers), manifest: record.manifest, names });
        }
        Ok(added)
    }
}

fn names_of(image: &Description) -> Result<Vec<Reference>> {
    let mut names = Vec::new();
    for name in &image.names {
        // A tag alone, as some programs write it, is no name.
        if name.contains(['/', ':']) {
            names.push(name.parse::<Reference>()?.without_digest()?);
        }
    }
    if names.is_empty() {
        return Err(StoreError::NameRequired { what: "the image in the file has no name".to_owned() });
    }
    Ok(names)
}

fn add(
    session: &AddSession<'_>,
    files: &Files,
    image: &Description,
    names: &[Reference],
    progress: &mut dyn FnMut(Progress),
) -> Result<ImageRecord> {
    let settings = ImageConfig::parse(&image.config)?;
    let mut layers = Vec::new();
    let mut types = Vec::new();
    for layer in &image.layers {
        let (info, compression) = add_blob(session, files, layer, progress)?;
        layers.push(info);
        types.push(compression);
    }
    let config = session.document(&image.config)?;
    let text = match &image.manifest {
        Some(text) => text.clone(),
        None => manifest(&config, image.config.len(), &layers, &types),
    };
    let manifest = session.document(&text)?;
    unpack(session, &layers, progress)?;
    let documents = (text.len() + image.config.len()) as u64;
    let record = ImageRecord { manifest, config, settings, layers, documents, stored: now() };
    session.commit(&record, names)?;
    Ok(record)
}

/// Unpacks all layers of an image whose files are in the store.
pub(super) fn unpack(session: &AddSession<'_>, layers: &[LayerInfo], progress: &mut dyn FnMut(Progress)) -> Result<()> {
    for (at, layer) in layers.iter().enumerate() {
        progress(Progress::Unpacking { layer: at + 1, layers: layers.len() });
        session.layer(&layer.blob, &layer.contents, progress)?;
    }
    Ok(())
}

fn add_blob(
    session: &AddSession<'_>,
    files: &Files,
    layer: &Layer,
    progress: &mut dyn FnMut(Progress),
) -> Result<(LayerInfo, Compression)> {
    let mut reader = files.reader(&layer.path)?;
    let mut first = Vec::new();
    reader.by_ref().take(4).read_to_end(&mut first).map_err(io("read", &layer.path))?;
    let compression = Compression::of(&first);
    // The digest of an uncompressed layer is that of its contents.
    let expected = match (&layer.packed, compression) {
        (Some(digest), _) => Some(digest),
        (None, Compression::None) => Some(&layer.contents),
        (None, _) => None,
    };
    let found = match session.blob(expected.map(|digest| (digest, None)), progress)? {
        None => None,
        Some(mut writer) => {
            let whole = std_io::Cursor::new(first).chain(reader);
            copy(whole, &mut writer, progress).map_err(io("read", &layer.path)).map_err(|error| writer.cause(error))?;
            Some(writer.finish(expected)?)
        }
    };
    let (blob, size) = match (found, expected) {
        (Some(found), _) => found,
        (None, Some(digest)) => (digest.clone(), session.size(digest)?),
        (None, None) => unreachable!("a file without an expected digest is written"),
    };
    Ok((LayerInfo { blob, size, contents: layer.contents.clone() }, compression))
}

pub(super) fn copy(
    mut from: impl Read,
    into: &mut (impl Write + ?Sized),
    progress: &mut dyn FnMut(Progress),
) -> std_io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut done = 0;
    loop {
        let length = match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == std_io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        into.write_all(&piece[..length])?;
        done += length as u64;
        progress(Progress::Reading { done, total: None });
    }
}

/// Returns the manifest of an image that had none.
pub(super) fn manifest(config: &Sha, size: usize, layers: &[LayerInfo], types: &[Compression]) -> Vec<u8> {
    let layers: Vec<_> = layers
        .iter()
        .zip(types)
        .map(|(layer, compression)| {
            let suffix = match compression {
                Compression::None => "",
                Compression::Gzip => "+gzip",
                Compression::Zstandard => "+zstd",
            };
            json!({
                "mediaType": format!("{LAYER_TYPE}{suffix}"), "digest": layer.blob.to_string(), "size": layer.size,
            })
        })
        .collect();
    let document = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": config.to_string(), "size": size},
        "layers": layers,
    });
    document.to_string().into_bytes()
}
