//! Images that travel: one file for an image's kernel, initramfs and disk.
//!
//! ```text
//! export: entries of the store, compared with their hashes --> cofferdam_archive::Writer --> stream
//! import: stream --document: sizes, hashes--> Reader::restore --> work.XXXX/ --all hashes fit--> imported-KEY/
//! ```
//!
//! A key says what an image was made from, and an importer cannot check that. So what was imported is an entry of its own kind:
//! no build ever takes it for what it made itself, and an image that is already here keeps its contents. The file is an archive
//! as that of a snapshot is, with other parts; nothing in it names a file or chooses the image's name.

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
use serde::{Deserialize, Serialize};

use super::kernel::MAX_KERNEL;
use super::names::{self, Named};
use super::store::{Files, is_key};
use super::{INITRAMFS, Image, Images, KERNEL, Progress, ROOT, image};
use crate::archive::{IMAGE, MACHINE};
use crate::error::{Result, VmError, io};

/// The kind of entries that were imported.
pub(super) const IMPORTED: &str = "imported";
const FORMAT: u64 = 1;
/// The parts besides, in order, each with its file in the store.
const PARTS: [(&str, Kind, &str); 3] =
    [("kernel", Kind::State, KERNEL), ("initramfs", Kind::State, INITRAMFS), ("root", Kind::Disk, ROOT)];
const MAX_DOCUMENT: u64 = 16 << 10;
const MAX_INITRAMFS: u64 = 256 << 20;
/// What disks of virtual machines are multiples of.
const SECTOR: u64 = 512;
/// The longest text that is taken from a document.
const MAX_TEXT: usize = 400;
/// What descriptions of imported images begin with.
const FROM_FILE: &str = "imported: ";
/// Digits of the key in the name of an image that was imported without one.
const NAME_DIGITS: usize = 12;

/// How an image is written to a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExportOptions<'a> {
    /// The key that it is encrypted with, if it is.
    pub key: Option<&'a Key>,
    /// Level of compression, from 1 (fast) to 19 (small); `None` is the archive's default.
    pub level: Option<i32>,
}

/// How an image is read from a file.
#[derive(Debug, Clone, Copy)]
pub struct ImportOptions<'a> {
    /// The key that it was encrypted with. With a key, only an encrypted file is taken.
    pub key: Option<&'a Key>,
    /// The largest disk that is taken.
    pub most: ByteSize,
    /// The name that the image gets. `None` keeps a name that the same image has, else makes one of its key.
    pub name: Option<&'a str>,
    /// What becomes of another image of that name.
    pub taken: Taken,
}

/// What becomes of another image that has the name of a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It keeps the name, and the import is refused.
    Refuse,
    /// It loses the name.
    Replace,
}

/// An image that was written to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The image.
    pub image: Image,
    /// The length and the digest of the file.
    pub written: Written,
}

/// An image that was read from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The image.
    pub image: Image,
    /// Its name here.
    pub name: String,
}

/// What a file says of its image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    format: u64,
    /// The key of the image, by which archives of snapshots name it.
    key: String,
    /// What `uname -r` prints in its machines.
    release: String,
    /// What it was made from.
    about: String,
    /// The version of the protocol that its agent speaks.
    protocol: u32,
    /// Sizes and hashes of its files, by their names in the store.
    files: Files,
}

/// What every version of the document has.
#[derive(Deserialize)]
struct Format {
    format: u64,
}

/// An image of the store whose files were compared with their hashes.
struct Found {
    image: Image,
    named: Named,
    files: Files,
}

impl Images {
    /// Writes the image of this name, or with this key, to a stream. What was written is no image if this fails.
    ///
    /// `watch` receives the progress, and ends the export by `Break`.
    ///
    /// # Errors
    ///
    /// [`VmError::NoSuchImage`] where there is none, or it is damaged, and those of the archive.
    pub fn export(
        &self,
        which: &str,
        out: impl Write,
        options: ExportOptions<'_>,
        watch: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Exported> {
        self.store.tidy();
        let Found { image, named, files } = self.wanted(which)?;
        let about = About {
            format: FORMAT,
            key: image.key.clone(),
            release: image.release.clone(),
            about: named.about.strip_prefix(FROM_FILE).unwrap_or(&named.about).to_owned(),
            protocol: named.protocol,
            files,
        };
        let odd = |error: serde_json::Error| VmError::BadSource { what: error.to_string() };
        let document = serde_json::to_vec(&about).map_err(odd)?;
        let open = |path: &Path| File::open(path).map_err(io("open", path));
        let (kernel, initramfs, root) = (open(&image.kernel)?, open(&image.initramfs)?, open(&image.root)?);
        let usual = WriteOptions::default();
        let level = options.level.unwrap_or(usual.level);
        let mut writer = Writer::new(WriteOptions { level, key: options.key, ..usual })?;
        writer.json(IMAGE, &document)?;
        let [(kernel_name, ..), (initramfs_name, ..), (root_name, ..)] = PARTS;
        writer.state(kernel_name, &kernel)?.state(initramfs_name, &initramfs)?.disk(root_name, &root, None)?;
        let written = writer.write(out, watch)?;
        Ok(Exported { image, written })
    }

    /// Reads an image from a stream, and gives it a name. An image with the same key and contents that is here is used as it is.
    ///
    /// `watch` receives the progress, and ends the import by `Break`.
    ///
    /// # Behavior
    /// - The document is checked first, and nothing else is read where it does not fit.
    /// - Nothing is in the store, and no name is changed, before all of it was read and every hash was compared.
    ///
    /// # Errors
    ///
    /// Those of the archive; [`VmError::BadSource`] for what is no image, [`VmError::OtherContents`] where another image has its
    /// key, [`VmError::NameTaken`] where another image has its name.
    pub fn import(
        &self,
        input: impl Read,
        options: ImportOptions<'_>,
        progress: &mut dyn FnMut(Progress),
        watch: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Imported> {
        if let Some(name) = options.name.filter(|name| !names::is_name(name)) {
            return Err(VmError::BadSource { what: format!("{name:?} is no name of an image") });
        }
        let reader = Reader::open(input, &ReadOptions { key: options.key, limits: limits(options.most) })?;
        let about = About::read(reader.documents())?;
        about.check_parts(reader.parts())?;
        let lock = self.store.lock(progress)?;
        progress(Progress::Checking);
        let here = self.with_key(&about.key)?;
        if let Some(found) = here.as_ref().filter(|found| found.files != about.files) {
            return Err(VmError::OtherContents { key: found.image.key.clone() });
        }
        let name = match (options.name, here.as_ref().and_then(|found| self.name_of(&found.image.key))) {
            (Some(name), _) => name.to_owned(),
            (None, Some(name)) => name,
            (None, None) => format!("{IMPORTED}-{}", &about.key[..NAME_DIGITS]),
        };
        let shown = about.shown();
        let other = names::read(&self.store, &name).ok().filter(|named| named.key() != about.key);
        if let Some(other) = other.filter(|_| options.taken == Taken::Refuse) {
            return Err(VmError::NameTaken { name, about: other.about, asked: shown });
        }
        let (image, named) = match here {
            Some(found) => {
                let protocol = Some(found.named.protocol).filter(|known| *known > 0).unwrap_or(about.protocol);
                (found.image, Named { about: shown, protocol, ..found.named })
            }
            None => {
                let scratch = lock.scratch()?;
                let made = scratch.path().join("made");
                fs::create_dir(&made).map_err(io("make", &made))?;
                reader.restore(&[], &mut |part| place(&made, part), watch)?;
                let damaged = ArchiveError::Damaged { what: "the contents of an image's file" };
                let check = |found: &Files| if *found == about.files { Ok(()) } else { Err(damaged.into()) };
                let entry = lock.keep_if(IMPORTED, &about.key, &made, &text(&about.release), check)?;
                let named = Named::imported(&about.key, &shown, about.protocol);
                (Image { key: about.key.clone(), ..image(&entry, &entry) }, named)
            }
        };
        if names::read(&self.store, &name).map_or(true, |there| there.key() != about.key) {
            names::write(&self.store, &lock, &name, &named)?;
        }
        Ok(Imported { image, name })
    }

    /// Returns the image that was imported with this key, compared with its hashes.
    pub(super) fn imported(&self, key: &str) -> Result<Option<Image>> {
        let entry = if is_key(key) { self.store.open(IMPORTED, key)? } else { None };
        Ok(entry.map(|entry| Image { key: entry.key.clone(), ..image(&entry, &entry) }))
    }

    /// The image of a name, else the one with a key.
    fn wanted(&self, which: &str) -> Result<Found> {
        let none = || VmError::NoSuchImage { name: which.to_owned() };
        match names::read(&self.store, which) {
            Ok(named) => self.found(named)?.ok_or_else(none),
            Err(_) => self.with_key(which)?.ok_or_else(none),
        }
    }

    /// The image with this key, with the description that one of its names has.
    fn with_key(&self, key: &str) -> Result<Option<Found>> {
        if !is_key(key) {
            return Ok(None);
        }
        let named = names::all(&self.store).into_iter().map(|(_, named)| named).find(|named| named.key() == key);
        let found = named.map_or(Ok(None), |named| self.found(named))?;
        if found.is_some() {
            return Ok(found);
        }
        let nameless = |(kernel, root)| Named { kernel, root, ..Named::imported(key, "", 0) };
        let pairs = self.pairs().into_iter().map(|pair| Named { imported: false, ..nameless(pair) });
        let all = pairs.filter(|named| named.key() == key).chain([Named::imported(key, "", 0)]);
        for named in all {
            if let Some(found) = self.found(named)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn found(&self, named: Named) -> Result<Option<Found>> {
        let image = match self.opened("", &named) {
            Ok(image) => image,
            Err(VmError::NoSuchImage { .. }) => return Ok(None),
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

/// The most that a file with an image may come to.
fn limits(most: ByteSize) -> Limits {
    let disk = most.as_bytes();
    let total = disk.saturating_add(MAX_DOCUMENT + MAX_KERNEL + MAX_INITRAMFS);
    Limits { parts: 4, json: MAX_DOCUMENT, state: MAX_INITRAMFS, memory: 0, disk, total }
}

/// Creates the file of the store that a part is restored to.
fn place(made: &Path, part: &Part) -> std::io::Result<File> {
    let found = PARTS.into_iter().find(|(name, ..)| *name == part.name.as_str());
    let (.., file) = found.ok_or(std::io::ErrorKind::InvalidInput)?;
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(made.join(file))
}

/// Text of a document, as far as it can be shown.
fn text(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

impl About {
    /// The document of an image's archive.
    fn read(documents: &[Document]) -> Result<Self> {
        let bad = |what: &str| VmError::BadSource { what: format!("the file cannot be imported: {what}") };
        let document = match documents {
            [document] if document.part.name.as_str() == IMAGE => document,
            [document] if document.part.name.as_str() == MACHINE => {
                return Err(bad("it holds a snapshot of a machine; `cofferdam snapshot restore` takes that"));
            }
            _ => return Err(bad("it holds no image; give the file that `vm export-image` wrote")),
        };
        let odd = |error: serde_json::Error| bad(&format!("what it says of its image is not understood: {error}"));
        let Format { format } = serde_json::from_slice(&document.bytes).map_err(odd)?;
        if format != FORMAT {
            return Err(bad(&format!("its image has format {format}, and this program reads {FORMAT}")));
        }
        let about: Self = serde_json::from_slice(&document.bytes).map_err(odd)?;
        let has = |(.., file): &(&str, Kind, &str)| {
            about.files.get(*file).is_some_and(|(size, hash)| *size > 0 && is_key(hash))
        };
        if !is_key(&about.key) || about.files.len() != PARTS.len() || !PARTS.iter().all(has) {
            return Err(bad("its key is none, or its files are not those of an image"));
        }
        Ok(about)
    }

    /// Refuses parts that are not those of this image.
    fn check_parts(&self, parts: &[Part]) -> Result<()> {
        let wanted = [(IMAGE, Kind::Json, None)].into_iter();
        let wanted = wanted.chain(PARTS.map(|(name, kind, file)| (name, kind, self.files.get(file))));
        let fits = parts.len() == PARTS.len() + 1
            && parts.iter().zip(wanted).all(|(part, (name, kind, file))| {
                let as_said = file.is_none_or(|(size, _)| *size == part.size);
                part.name.as_str() == name && part.kind == kind && part.base.is_none() && as_said
            })
            && parts[1].size <= MAX_KERNEL
            && parts[3].size.is_multiple_of(SECTOR);
        if fits {
            return Ok(());
        }
        Err(VmError::BadSource { what: "the file cannot be imported: its parts are not those of its image".to_owned() })
    }

    /// The description that the image has here.
    fn shown(&self) -> String {
        format!("{FROM_FILE}{}", text(&self.about))
    }
}
