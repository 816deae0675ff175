//! Adding files, layers and images to the store.

use std::fs::{File, OpenOptions};
use std::io::{self as std_io, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cofferdam_util::hex;
use sha2::{Digest, Sha256};

use super::error::{Result, StoreError, io};
use super::files::{Begun, Files, Kind, Lock, Temporary};
use super::record::{ImageRecord, LayerRecord, NameRecord, seconds};
use super::reference::Reference;
use super::{ImageStore, Progress};
use crate::layer::stream::{Hashed, Sha, unpacked, wrong_digest};
use crate::layer::tree::{Tree, Whiteouts};
use crate::layer::{bad, io as layer_io};

/// Maximum size of a layer's uncompressed tar, as a multiple of the maximum size of its files: headers, and files that
/// a later entry replaces.
const TAR_SHARE: u64 = 2;
/// Maximum ratio of a layer's uncompressed and compressed size, above an allowance. gzip cannot exceed it.
const MAX_RATIO: u64 = 1100;
const ALLOWANCE: u64 = 256 << 20;
/// Bytes that are reserved at once for a file or layer of unknown size.
const STEP: u64 = 64 << 20;
/// File in the temporary directory of a layer whose length is the number of bytes that are reserved for the layer.
const RESERVED: &str = "reserved";

/// A process that adds images. Files that no image has yet are kept while it exists.
#[derive(Debug)]
pub(super) struct AddSession<'a> {
    store: &'a ImageStore,
    _writer: File,
}

/// A file that is being added.
#[derive(Debug)]
pub(super) struct BlobWriter<'a> {
    files: &'a Files,
    store: &'a ImageStore,
    temporary: Temporary,
    file: File,
    hasher: Sha256,
    written: u64,
    /// Bytes that the store has reserved for it: its length meanwhile.
    reserved: u64,
    /// The size that it must have.
    expected: Option<u64>,
    is_exceeded: bool,
}

impl ImageStore {
    /// Registers this process as one that adds images, of about `wanted` bytes if that is known. A store without room for
    /// them first loses the files that no image has, which an earlier download may have left.
    pub(super) fn session(&self, wanted: u64) -> Result<AddSession<'_>> {
        let lock = self.files.lock()?;
        let used = self.used()?;
        if used > self.options.max_bytes / 8 * 7 || used.saturating_add(wanted) > self.options.max_bytes {
            drop(self.collect(&lock)?);
        }
        drop(lock);
        Ok(AddSession { store: self, _writer: self.files.register()? })
    }

    /// Returns the size of everything in the store, except temporary files.
    pub(super) fn used(&self) -> Result<u64> {
        let mut used: u64 = 0;
        for path in self.files.list(super::files::BLOBS)? {
            // Another process may remove it meanwhile.
            used = used.saturating_add(std::fs::symlink_metadata(&path).map_or(0, |found| found.len()));
        }
        for path in self.files.list(super::files::LAYERS)? {
            let record: Option<LayerRecord> = super::files::read_record(&path.join(LAYER_RECORD)).ok().flatten();
            used = used.saturating_add(record.map_or(0, |record| record.bytes));
        }
        Ok(used)
    }

    /// Returns the bytes that are reserved for temporary files.
    fn reserved(&self) -> Result<u64> {
        let length = |path: &Path| {
            let found = std::fs::symlink_metadata(path).ok()?;
            let reserved = || std::fs::symlink_metadata(path.join(RESERVED)).map_or(0, |found| found.len());
            Some(if found.is_dir() { reserved() } else { found.len() })
        };
        let paths = self.files.list(super::files::WORK)?;
        // Another process may remove one meanwhile.
        Ok(paths.iter().filter_map(|path| length(path)).fold(0, u64::saturating_add))
    }

    /// Refuses more bytes than the limit allows.
    fn reserve(&self, _lock: &Lock, bytes: u64) -> Result<()> {
        let max = self.options.max_bytes;
        let needed = self.used()?.saturating_add(self.reserved()?).saturating_add(bytes);
        if needed > max { Err(StoreError::QuotaExceeded { bytes: needed, max }) } else { Ok(()) }
    }

    /// Reserves more bytes for a temporary file, as its length, and some more if there is space. Returns its length.
    fn grow(&self, file: &File, path: &Path, (from, to): (u64, u64), more: u64) -> Result<u64> {
        let lock = self.files.lock()?;
        let length = match self.reserve(&lock, to.saturating_sub(from).saturating_add(more)) {
            Ok(()) => to.saturating_add(more),
            Err(_) => {
                self.reserve(&lock, to.saturating_sub(from))?;
                to
            }
        };
        file.set_len(length).map_err(io("reserve space for", path))?;
        Ok(length)
    }
}

/// A reader of a layer's tar that reserves space in the store as it goes. Its files are no larger than the tar.
struct Reserving<'a, R> {
    inner: R,
    store: &'a ImageStore,
    file: File,
    path: PathBuf,
    read: u64,
    reserved: u64,
    exceeded: &'a mut Option<StoreError>,
}

impl<R: Read> Read for Reserving<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> std_io::Result<usize> {
        let length = self.inner.read(into)?;
        self.read += length as u64;
        if self.read > self.reserved {
            match self.store.grow(&self.file, &self.path, (self.reserved, self.read), STEP) {
                Ok(reserved) => self.reserved = reserved,
                Err(error) => {
                    *self.exceeded = Some(error);
                    return Err(std_io::Error::other("the store is full"));
                }
            }
        }
        Ok(length)
    }
}

pub(super) const LAYER_RECORD: &str = "layer.json";
pub(super) const LAYER_FILES: &str = "fs";

impl<'a> AddSession<'a> {
    /// Returns the size of a file in the store.
    pub(super) fn size(&self, digest: &Sha) -> Result<u64> {
        let path = self.store.files.blob(digest);
        Ok(std::fs::symlink_metadata(&path).map_err(io("inspect", &path))?.len())
    }

    /// Begins to add a file of an expected digest and size. Returns `None` if the store has it.
    pub(super) fn blob(
        &self,
        expected: Option<(&Sha, Option<u64>)>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<BlobWriter<'a>>> {
        let store = self.store;
        let files = &store.files;
        let (temporary, size) = match expected {
            Some((digest, size)) => {
                let name = format!("blob-{}", digest.digits());
                match files.begin(&name, Kind::File, &files.blob(digest), &mut || progress(Progress::Waiting))? {
                    Begun::Exists => return Ok(None),
                    Begun::Mine(temporary) => (temporary, size),
                }
            }
            None => (files.temporary(Kind::File)?, None),
        };
        let file = OpenOptions::new().write(true).open(&temporary.path).map_err(io("open", &temporary.path))?;
        let reserved = store.grow(&file, &temporary.path, (0, size.unwrap_or(0)), 0)?;
        let (hasher, written) = (Sha256::new(), 0);
        let writer =
            BlobWriter { files, store, temporary, file, hasher, written, reserved, expected: size, is_exceeded: false };
        Ok(Some(writer))
    }

    /// Adds a small file.
    pub(super) fn document(&self, text: &[u8]) -> Result<Sha> {
        let digest = Sha::of(text);
        if let Some(mut writer) = self.blob(Some((&digest, Some(text.len() as u64))), &mut |_| ())? {
            writer.write_all(text).map_err(io("write", &writer.temporary.path))?;
            writer.finish(Some(&digest))?;
        }
        Ok(digest)
    }

    /// Unpacks a layer from its file in the store, unless it is unpacked.
    pub(super) fn layer(&self, blob: &Sha, contents: &Sha, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let files = &self.store.files;
        let done = files.layer(contents);
        let name = format!("layer-{}", contents.digits());
        let temporary = match files.begin(&name, Kind::Directory, &done, &mut || progress(Progress::Waiting))? {
            Begun::Exists => return self.verify(blob, contents),
            Begun::Mine(temporary) => temporary,
        };
        let path = files.blob(blob);
        let packed = super::files::open_nofollow(&path).map_err(io("open", &path))?;
        let record = self.unpack(&packed, contents, &temporary)?;
        // Its files and directories, before it gets its name.
        rustix::fs::syncfs(&packed).map_err(io("write", &temporary.path))?;
        let lock = files.lock()?;
        let reserved = temporary.path.join(RESERVED);
        std::fs::remove_file(&reserved).map_err(io("remove", &reserved))?;
        self.store.reserve(&lock, record.bytes)?;
        temporary.persist(&done)
    }

    /// Verifies that a file has the contents of a layer that is unpacked already, unless an image has both.
    fn verify(&self, blob: &Sha, contents: &Sha) -> Result<()> {
        let is_known =
            |record: &ImageRecord| record.layers.iter().any(|layer| layer.blob == *blob && layer.contents == *contents);
        if self.store.images()?.iter().any(|(_, record)| is_known(record)) {
            return Ok(());
        }
        let path = self.store.files.blob(blob);
        let packed = super::files::open_nofollow(&path).map_err(io("open", &path))?;
        let mut left = self.max_tar(&packed)?;
        let reader = unpacked(Box::new(&packed)).map_err(layer_io("read", &path))?;
        let found = Hashed::new(reader, &mut left).finish();
        let found = found.map_err(|error| bad(format!("cannot read a layer of the image: {error}")))?;
        if found == contents.digits() { Ok(()) } else { Err(wrong_digest(contents).into()) }
    }

    /// Returns the maximum size of the uncompressed tar in a file.
    fn max_tar(&self, packed: &File) -> Result<u64> {
        let size = packed.metadata().map_err(io("inspect", "a layer"))?.len();
        let max = self.store.options.max_layer_bytes.saturating_mul(TAR_SHARE);
        Ok(max.min(size.saturating_mul(MAX_RATIO).saturating_add(ALLOWANCE)))
    }

    fn unpack(&self, packed: &File, contents: &Sha, temporary: &Temporary) -> Result<LayerRecord> {
        let max = self.store.options.max_layer_bytes;
        let into = temporary.path.join(LAYER_FILES);
        std::fs::create_dir(&into).map_err(io("create", &into))?;
        let max_tar = self.max_tar(packed)?;
        let mut left = max_tar;
        let reader = unpacked(Box::new(packed)).map_err(layer_io("read", &temporary.path))?;
        let path = temporary.path.join(RESERVED);
        let file = File::create_new(&path).map_err(io("create", &path))?;
        let (store, mut exceeded) = (self.store, None);
        let reader = Reserving { inner: reader, store, file, path, read: 0, reserved: 0, exceeded: &mut exceeded };
        let mut hashed = Hashed::new(reader, &mut left);
        let mut tree = Tree::new(&into, max, Whiteouts::Marked)?;
        let extracted = tree.extract(&mut hashed);
        // Data after the end of the tar is part of the contents.
        let found = match extracted {
            Ok(()) => hashed.finish().map_err(|error| bad(format!("cannot read a layer of the image: {error}"))),
            Err(error) => Err(error),
        };
        if let Some(exceeded) = exceeded {
            return Err(exceeded);
        }
        let found = found?;
        if found != contents.digits() {
            return Err(wrong_digest(contents).into());
        }
        let (opaque, dropped) = (tree.is_opaque(), Some(tree.dropped()));
        let needs = tree.finish(Default::default())?;
        let record = LayerRecord {
            bytes: needs.block_bytes(),
            entries: needs.inodes,
            tar: max_tar.saturating_sub(left),
            opaque,
            dropped,
        };
        let path = temporary.path.join(LAYER_RECORD);
        let text = serde_json::to_vec(&record).map_err(std_io::Error::from).map_err(io("write", &path))?;
        std::fs::write(&path, text).map_err(io("write", &path))?;
        Ok(record)
    }

    /// Adds an image whose files and layers are all in the store, and gives it names.
    pub(super) fn commit(&self, record: &ImageRecord, names: &[Reference]) -> Result<()> {
        let files = &self.store.files;
        let lock = files.lock()?;
        let path = files.image(&record.manifest);
        if super::files::read_record::<ImageRecord>(&path).ok().flatten().is_none() {
            files.write_record(&lock, &path, record)?;
        }
        super::manage::mark_used(&path);
        for name in names {
            let name = name.canonical();
            let record = NameRecord { name: name.clone(), manifest: record.manifest.clone() };
            files.write_record(&lock, &files.name(&name), &record)?;
        }
        Ok(())
    }
}

impl Write for BlobWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std_io::Result<usize> {
        let end = self.written.saturating_add(bytes.len() as u64);
        if self.expected.is_some_and(|size| end > size) {
            return Err(std_io::Error::other("it is larger than its description says"));
        }
        if end > self.reserved {
            match self.store.grow(&self.file, &self.temporary.path, (self.reserved, end), STEP) {
                Ok(reserved) => self.reserved = reserved,
                Err(_) => {
                    self.is_exceeded = true;
                    return Err(std_io::Error::other("the store is full"));
                }
            }
        }
        let length = self.file.write(bytes)?;
        self.hasher.update(&bytes[..length]);
        self.written += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> std_io::Result<()> {
        Ok(())
    }
}

impl BlobWriter<'_> {
    /// Returns the error for a file that is larger than the store, instead of the one that writing it returned.
    pub(super) fn cause(&self, error: StoreError) -> StoreError {
        let max = self.store.options.max_bytes;
        match self.is_exceeded {
            true => StoreError::QuotaExceeded { bytes: max.saturating_add(1), max },
            false => error,
        }
    }

    /// Verifies the file, and puts it into the store. Returns its digest and its size.
    pub(super) fn finish(self, expected: Option<&Sha>) -> Result<(Sha, u64)> {
        let digest = Sha(hex::encode(self.hasher.finalize()));
        if let Some(expected) = expected
            && *expected != digest
        {
            return Err(wrong_digest(expected).into());
        }
        let finished = self.file.set_len(self.written).and_then(|()| self.file.sync_all());
        finished.map_err(io("write", &self.temporary.path))?;
        let _lock = self.files.lock()?;
        let path = self.files.blob(&digest);
        if std::fs::symlink_metadata(&path).is_err() {
            self.temporary.persist(&path)?;
        }
        Ok((digest, self.written))
    }
}

/// Returns the record of an image that is stored now.
pub(super) fn now() -> u64 {
    seconds(SystemTime::now())
}
