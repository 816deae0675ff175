//! Portable images: one archive with an image's kernel, initramfs and disk.
//!
//! ```text
//! export: entries of the store, verified by their hashes --> cofferdam_archive::Writer --> stream
//! import: stream --document: sizes, hashes--> Reader::restore --> work.XXXX/ --all hashes match--> imported-KEY/
//! ```
//!
//! A key is derived from an image's sources, which an importer cannot verify. So an imported image is an entry of its
//! own kind: no build ever takes it for one of its own, and an existing image keeps its contents. The file is an
//! archive like that of a snapshot, with other parts; nothing in it names a file or chooses the image's name.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cofferdam_archive::{
    ArchiveError, Document, Key, Kind, Limits, Part, Progress as Step, ReadOptions, Reader, WriteOptions, Writer,
    Written,
};
use cofferdam_contract::ByteSize;
use cofferdam_util::sha256;
use serde::{Deserialize, Serialize};

use super::error::{ImageError, Result, io};
use super::kernel::MAX_KERNEL;
use super::names::{self, Named};
use super::store::Files;
use super::{INITRAMFS, Image, Images, KERNEL, Progress, ROOT, image};

/// Name of the document in the archive of an image.
pub const IMAGE_DOCUMENT: &str = "image";
/// Name of the document in the archive of a VM snapshot, which is no image.
pub const SNAPSHOT_DOCUMENT: &str = "machine";
/// The kind of imported entries.
pub(super) const IMPORTED: &str = "imported";
const FORMAT: u64 = 1;
/// The other parts in order, each with its file in the store.
const PARTS: [(&str, Kind, &str); 3] =
    [("kernel", Kind::State, KERNEL), ("initramfs", Kind::State, INITRAMFS), ("root", Kind::Disk, ROOT)];
const MAX_DOCUMENT: u64 = 16 << 10;
const MAX_INITRAMFS: u64 = 256 << 20;
/// Alignment of the size of a VM's disk.
const SECTOR: u64 = 512;
/// Maximum length of a text from a document.
const MAX_TEXT: usize = 400;
/// Prefix of descriptions of imported images.
const FROM_FILE: &str = "imported: ";
/// Digits of the key in the name of an image that was imported without a name.
const NAME_DIGITS: usize = 12;

/// Options for exporting an image.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExportOptions<'a> {
    /// Encryption key, if the file is to be encrypted.
    pub key: Option<&'a Key>,
    /// Compression level, from 1 (fast) to 19 (small); `None` is the archive's default.
    pub level: Option<i32>,
}

/// Options for importing an image.
#[derive(Debug, Clone, Copy)]
pub struct ImportOptions<'a> {
    /// Decryption key. With a key, only an encrypted file is accepted.
    pub key: Option<&'a Key>,
    /// Maximum size of the disk.
    pub max_size: ByteSize,
    /// Name for the image. `None` keeps a name that the same image has, or else derives one from its key.
    pub name: Option<&'a str>,
    /// Policy for another image of that name.
    pub taken: Taken,
}

/// The policy for another image that has the name of an imported one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It keeps the name, and the import fails.
    Refuse,
    /// It loses the name.
    Replace,
}

/// An exported image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The image.
    pub image: Image,
    /// Length and digest of the file.
    pub written: Written,
}

/// An imported image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The image.
    pub image: Image,
    /// Its name in this store.
    pub name: String,
}

/// The description of an image in its archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    format: u64,
    /// Key of the image, by which archives of snapshots refer to it.
    key: String,
    /// Output of `uname -r` in its VMs.
    release: String,
    /// Its source.
    about: String,
    /// Protocol version of its agent.
    protocol: u32,
    /// Sizes and hashes of its files, by their names in the store.
    files: Files,
}

/// The member that all versions of the document have.
#[derive(Deserialize)]
struct Format {
    format: u64,
}

/// An image of the store whose files were verified by their hashes.
struct Found {
    image: Image,
    named: Named,
    files: Files,
}

impl Images {
    /// Writes the image with this name or key to a stream. If it fails, the output is not a valid image.
    ///
    /// `watch` receives the progress, and cancels with `Break`.
    ///
    /// # Errors
    ///
    /// [`ImageError::UnknownName`] if it does not exist or is damaged, and the errors of the archive.
    pub fn export(
        &self,
        which: &str,
        out: impl Write,
        options: ExportOptions<'_>,
        watch: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Exported> {
        self.store.tidy();
        let Found { image, named, files } = self.find_exported(which)?;
        let about = About {
            format: FORMAT,
            key: image.key.clone(),
            release: image.release.clone(),
            about: named.about.strip_prefix(FROM_FILE).unwrap_or(&named.about).to_owned(),
            protocol: named.protocol,
            files,
        };
        let invalid = |error: serde_json::Error| ImageError::InvalidSource { what: error.to_string() };
        let document = serde_json::to_vec(&about).map_err(invalid)?;
        let open = |path: &Path| File::open(path).map_err(io("open", path));
        let (kernel, initramfs, root) = (open(&image.kernel)?, open(&image.initramfs)?, open(&image.root)?);
        let default = WriteOptions::default();
        let level = options.level.unwrap_or(default.level);
        let mut writer = Writer::new(WriteOptions { level, key: options.key, ..default })?;
        writer.json(IMAGE_DOCUMENT, &document)?;
        let [(kernel_name, ..), (initramfs_name, ..), (root_name, ..)] = PARTS;
        writer.state(kernel_name, &kernel)?.state(initramfs_name, &initramfs)?.disk(root_name, &root, None)?;
        let written = writer.write(out, watch)?;
        Ok(Exported { image, written })
    }

    /// Reads an image from a stream, and names it. An existing image with the same key and contents is reused.
    ///
    /// `watch` receives the progress, and cancels with `Break`.
    ///
    /// # Behavior
    /// - The document is checked first; if it is invalid, nothing else is read.
    /// - The store and its names do not change before all of it was read and every hash was verified.
    ///
    /// # Errors
    ///
    /// Those of the archive; [`ImageError::InvalidSource`] if it is not an image, [`ImageError::ContentsMismatch`] if
    /// another image has its key, [`ImageError::NameTaken`] if another image has its name.
    pub fn import(
        &self,
        input: impl Read,
        options: ImportOptions<'_>,
        progress: &mut dyn FnMut(Progress),
        watch: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Imported> {
        if let Some(name) = options.name.filter(|name| !names::is_name(name)) {
            return Err(ImageError::InvalidSource { what: format!("{name:?} is not a valid image name") });
        }
        let reader = Reader::open(input, &ReadOptions { key: options.key, limits: limits(options.max_size) })?;
        let about = About::read(reader.documents())?;
        about.check_parts(reader.parts())?;
        let lock = self.store.lock(progress)?;
        progress(Progress::Checking);
        let here = self.with_key(&about.key)?;
        if let Some(found) = here.as_ref().filter(|found| found.files != about.files) {
            return Err(ImageError::ContentsMismatch { key: found.image.key.clone() });
        }
        let name = match (options.name, here.as_ref().and_then(|found| self.name_of(&found.image.key))) {
            (Some(name), _) => name.to_owned(),
            (None, Some(name)) => name,
            (None, None) => format!("{IMPORTED}-{}", &about.key[..NAME_DIGITS]),
        };
        let shown = about.shown();
        let other = names::read(&self.store, &name).ok().filter(|named| named.key() != about.key);
        if let Some(other) = other.filter(|_| options.taken == Taken::Refuse) {
            return Err(ImageError::NameTaken { name, about: other.about, requested: shown });
        }
        let (image, named) = match here {
            Some(found) => {
                let protocol = Some(found.named.protocol).filter(|known| *known > 0).unwrap_or(about.protocol);
                (found.image, Named { about: shown, protocol, ..found.named })
            }
            None => {
                let scratch = lock.scratch()?;
                let prepared = scratch.path().join("made");
                fs::create_dir(&prepared).map_err(io("create", &prepared))?;
                reader.restore(&[], &mut |part| create_file(&prepared, part), watch)?;
                let damaged = ArchiveError::Damaged { what: "the contents of an image's file" };
                let check = |found: &Files| if *found == about.files { Ok(()) } else { Err(damaged.into()) };
                let entry = lock.keep_if(IMPORTED, &about.key, &prepared, &text(&about.release), check)?;
                let named = Named::imported(&about.key, &shown, about.protocol);
                (Image { key: about.key.clone(), ..image(&entry, &entry) }, named)
            }
        };
        if names::read(&self.store, &name).map_or(true, |named| named.key() != about.key) {
            names::write(&self.store, &lock, &name, &named)?;
        }
        Ok(Imported { image, name })
    }

    /// Returns the image that was imported with this key, verified by its hashes.
    pub(super) fn imported(&self, key: &str) -> Result<Option<Image>> {
        let entry = if sha256::is_digest(key) { self.store.open(IMPORTED, key)? } else { None };
        Ok(entry.map(|entry| Image { key: entry.key.clone(), ..image(&entry, &entry) }))
    }

    /// Returns the image with this name, or else the one with this key.
    fn find_exported(&self, which: &str) -> Result<Found> {
        let none = || ImageError::UnknownName { name: which.to_owned() };
        match names::read(&self.store, which) {
            Ok(named) => self.find_named(named)?.ok_or_else(none),
            Err(_) => self.with_key(which)?.ok_or_else(none),
        }
    }

    /// Returns the image with this key, with the description of one of its names.
    fn with_key(&self, key: &str) -> Result<Option<Found>> {
        if !sha256::is_digest(key) {
            return Ok(None);
        }
        let named = names::all(&self.store).into_iter().map(|(_, named)| named).find(|named| named.key() == key);
        let found = named.map_or(Ok(None), |named| self.find_named(named))?;
        if found.is_some() {
            return Ok(found);
        }
        let nameless = |(kernel, root)| Named { kernel, root, ..Named::imported(key, "", 0) };
        let pairs = self.pairs().into_iter().map(|pair| Named { imported: false, ..nameless(pair) });
        let all = pairs.filter(|named| named.key() == key).chain([Named::imported(key, "", 0)]);
        for named in all {
            if let Some(found) = self.find_named(named)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find_named(&self, named: Named) -> Result<Option<Found>> {
        let image = match self.opened("", &named) {
            Ok(image) => image,
            Err(ImageError::UnknownName { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let kinds = if named.imported { [IMPORTED; 2] } else { ["kernel", "root"] };
        let files = kinds.into_iter().zip([&named.kernel, &named.root]);
        let files: Files = files.filter_map(|(kind, key)| self.store.files(kind, key)).flatten().collect();
        Ok(Some(Found { image, named, files }))
    }

    fn name_of(&self, key: &str) -> Option<String> {
        names::all(&self.store).into_iter().find(|(_, named)| named.key() == key).map(|(name, _)| name)
    }
}

/// Returns the maximum sizes of a file with an image.
fn limits(max: ByteSize) -> Limits {
    let disk = max.as_bytes();
    let total = disk.saturating_add(MAX_DOCUMENT + MAX_KERNEL + MAX_INITRAMFS);
    Limits { parts: 4, json: MAX_DOCUMENT, state: MAX_INITRAMFS, memory: 0, disk, total }
}

/// Creates the file of the store that a part is restored to.
fn create_file(prepared: &Path, part: &Part) -> std::io::Result<File> {
    let found = PARTS.into_iter().find(|(name, ..)| *name == part.name.as_str());
    let (.., file) = found.ok_or(std::io::ErrorKind::InvalidInput)?;
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(prepared.join(file))
}

/// Returns text of a document in a printable form.
fn text(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

impl About {
    /// Parses the document of an image's archive.
    fn read(documents: &[Document]) -> Result<Self> {
        let bad = |what: &str| ImageError::InvalidSource { what: format!("the file cannot be imported: {what}") };
        let document = match documents {
            [document] if document.part.name.as_str() == IMAGE_DOCUMENT => document,
            [document] if document.part.name.as_str() == SNAPSHOT_DOCUMENT => {
                return Err(bad("it holds a VM snapshot; restore it with `cofferdam snapshot restore`"));
            }
            _ => return Err(bad("it holds no image; use a file that `vm export-image` wrote")),
        };
        let invalid = |error: serde_json::Error| bad(&format!("cannot parse the description of its image: {error}"));
        let Format { format } = serde_json::from_slice(&document.bytes).map_err(invalid)?;
        if format != FORMAT {
            return Err(bad(&format!("its image has format {format}, and this program reads {FORMAT}")));
        }
        let about: Self = serde_json::from_slice(&document.bytes).map_err(invalid)?;
        let has = |(.., file): &(&str, Kind, &str)| {
            about.files.get(*file).is_some_and(|(size, hash)| *size > 0 && sha256::is_digest(hash))
        };
        if !sha256::is_digest(&about.key) || about.files.len() != PARTS.len() || !PARTS.iter().all(has) {
            return Err(bad("its key is invalid, or its files are not those of an image"));
        }
        Ok(about)
    }

    /// Refuses parts that are not those of this image.
    fn check_parts(&self, parts: &[Part]) -> Result<()> {
        let wanted = [(IMAGE_DOCUMENT, Kind::Json, None)].into_iter();
        let wanted = wanted.chain(PARTS.map(|(name, kind, file)| (name, kind, self.files.get(file))));
        let matches = parts.len() == PARTS.len() + 1
            && parts.iter().zip(wanted).all(|(part, (name, kind, file))| {
                let has_size = file.is_none_or(|(size, _)| *size == part.size);
                part.name.as_str() == name && part.kind == kind && part.base.is_none() && has_size
            })
            && parts[1].size <= MAX_KERNEL
            && parts[3].size.is_multiple_of(SECTOR);
        if matches {
            return Ok(());
        }
        Err(ImageError::InvalidSource {
            what: "the file cannot be imported: its parts are not those of its image".to_owned(),
        })
    }

    /// Returns the description of the image in this store.
    fn shown(&self) -> String {
        format!("{FROM_FILE}{}", text(&self.about))
    }
}
