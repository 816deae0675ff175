//! Images of containers as files: an OCI image layout in a directory or a tar, or what `docker save` writes.
//!
//! Everything is found by its digest and compared with it before it is used, and each layer once more with what its
//! contents are to hash to. Of several images in one layout, the one for this kind of processor is taken; if that is not a
//! single one, none is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use cofferdam_linux::{beneath, named};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::ext4::Needs;
use super::headers::Archive;
use super::layers::Tree;
use super::store::{hash_of, is_key};
use crate::error::{Result, VmError, io as io_error};

/// The largest index, manifest or configuration that is read.
const MAX_TEXT: u64 = 4 << 20;
const MAX_LAYERS: usize = 256;
/// Files of a tar that has images in it: three for each layer, and few more.
const MAX_FILES: usize = 4096;
/// An index may name further ones.
const DEEPEST: usize = 3;
/// What all layers may come to, each of which is read twice, for each byte that the root file system may take.
const LAYERS_SHARE: u64 = 4;
const LAYOUT: &str = "oci-layout";
const INDEX: &str = "index.json";
const SAVED: &str = "manifest.json";

fn bad(what: impl Into<String>) -> VmError {
    VmError::BadSource { what: what.into() }
}

/// Whether a directory or a tar has a layout of images in it.
pub(crate) fn is_layout(file: File, path: &Path) -> bool {
    Files::of(file, path).is_ok_and(|files| files.has(LAYOUT) || (files.has(SAVED) && !files.has_root()))
}

/// The files of a layout.
#[derive(Debug)]
enum Files {
    Directory(std::os::fd::OwnedFd),
    /// Where each file begins in the tar, and its length.
    Tar(File, BTreeMap<PathBuf, (u64, u64)>),
}

impl Files {
    fn open(path: &Path) -> Result<Self> {
        Self::of(named::read(path).map_err(io_error("open", path))?, path)
    }

    /// Those of an open directory or tar, which errors call `path`.
    fn of(file: File, path: &Path) -> Result<Self> {
        if file.metadata().map_err(io_error("look at", path))?.is_dir() {
            return Ok(Self::Directory(file.into()));
        }
        let mut places = BTreeMap::new();
        let mut archive = Archive::new(&file);
        let wrong = |error: io::Error| bad(format!("{} is no tar: {error}", path.display()));
        for entry in archive.members_with_seek().map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            if places.len() > MAX_FILES {
                break;
            }
            let name = entry.path().map_err(wrong)?;
            // Of two with one name, the later is meant.
            if let (true, Some(name)) = (entry.header().entry_type().is_file(), plain(&name)) {
                places.insert(name, (entry.raw_file_position(), entry.size()));
            } else if let Some(name) = plain(&name) {
                places.remove(&name);
            }
        }
        Ok(Self::Tar(file, places))
    }

    fn has(&self, name: &str) -> bool {
        self.reader(Path::new(name)).is_ok()
    }

    /// Whether it looks like a root file system, which may have any file in it.
    fn has_root(&self) -> bool {
        match self {
            Self::Directory(directory) => {
                let etc =
                    beneath::open(directory.as_fd(), Path::new("etc"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
                etc.is_ok()
            }
            Self::Tar(_, places) => places.keys().any(|path| path.starts_with("etc") || path.starts_with("bin")),
        }
    }

    /// Its bytes from the beginning.
    fn reader(&self, path: &Path) -> Result<Box<dyn Read>> {
        let missing = || bad(format!("the image has no file {}", path.display().to_string().escape_debug()));
        let name = plain(path).ok_or_else(missing)?;
        match self {
            Self::Directory(directory) => match beneath::open_plain(directory.as_fd(), &name) {
                Ok(Ok(file)) => Ok(Box::new(File::from(file))),
                _ => Err(missing()),
            },
            Self::Tar(file, places) => {
                let (at, length) = *places.get(&name).ok_or_else(missing)?;
                let mut file = file.try_clone().map_err(io_error("copy the descriptor of", path))?;
                // Copies share their position: one reader at a time.
                file.seek(SeekFrom::Start(at)).map_err(io_error("read", path))?;
                Ok(Box::new(file.take(length)))
            }
        }
    }

    fn text(&self, path: &Path) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.reader(path)?.take(MAX_TEXT + 1).read_to_end(&mut text).map_err(io_error("read", path))?;
        if text.len() as u64 > MAX_TEXT {
            return Err(bad(format!("{} of the image is too long", path.display())));
        }
        Ok(text)
    }

    /// A text with this digest.
    fn blob(&self, digest: &Sha) -> Result<Vec<u8>> {
        let text = self.text(&digest.path())?;
        if Sha::of(&text) == *digest { Ok(text) } else { Err(wrong_digest(digest)) }
    }
}

/// A path without anything that climbs.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => found.push(part),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(found)
}

/// A digest: SHA-256, in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sha(String);

impl Sha {
    fn parse(text: &str) -> Result<Self> {
        let found = text.strip_prefix("sha256:").filter(|hex| is_key(hex));
        let odd = || bad(format!("'{}' is no digest that is understood: sha256 is", text.escape_debug()));
        found.map(|hex| Self(hex.to_owned())).ok_or_else(odd)
    }

    fn of(bytes: &[u8]) -> Self {
        // Reading from memory cannot fail.
        Self(hash_of(bytes).unwrap_or_default())
    }

    fn path(&self) -> PathBuf {
        Path::new("blobs/sha256").join(&self.0)
    }
}

fn wrong_digest(digest: &Sha) -> VmError {
    bad(format!("what the image has as sha256:{} hashes to something else", digest.0))
}

fn parse<T: DeserializeOwned>(what: &str, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| bad(format!("the image's {what} cannot be understood: {error}")))
}

#[derive(Debug, Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    #[serde(default)]
    media_type: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Configuration {
    #[serde(default)]
    architecture: String,
    rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// What `docker save` says of each image.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

/// One layer: where it is, what its file hashes to where that is known, and its contents.
#[derive(Debug)]
struct Layer {
    path: PathBuf,
    packed: Option<Sha>,
    contents: Sha,
}

/// An image whose description was read and compared with its digests; its layers were not yet.
#[derive(Debug)]
pub(crate) struct Layout {
    files: Files,
    layers: Vec<Layer>,
}

/// What images call this kind of processor.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Reads the description of the image.
pub(crate) fn read(path: &Path) -> Result<Layout> {
    let files = Files::open(path)?;
    let layers = if files.has(LAYOUT) || files.has(INDEX) {
        let index: Index = parse("index", &files.text(Path::new(INDEX))?)?;
        let manifest = chosen(&files, index, 0)?;
        of_manifest(&files, &parse("manifest", &files.blob(&manifest)?)?)?
    } else {
        of_saved(&files)?
    };
    if layers.is_empty() || layers.len() > MAX_LAYERS {
        return Err(bad(format!("the image has {} layers: from 1 to {MAX_LAYERS} are taken", layers.len())));
    }
    Ok(Layout { files, layers })
}

/// The one manifest for this kind of processor.
fn chosen(files: &Files, index: Index, depth: usize) -> Result<Sha> {
    let fits = |found: &&Descriptor| {
        let attests = found.annotations.contains_key("vnd.docker.reference.type");
        let ours = found.platform.as_ref().is_none_or(|it| it.os == "linux" && it.architecture == architecture());
        ours && !attests
    };
    let mut digests: Vec<&Descriptor> = index.manifests.iter().filter(fits).collect();
    // One image may have several names.
    digests.dedup_by(|one, other| one.digest == other.digest);
    let [found] = &digests[..] else {
        let what = format!("the layout has {} images for linux/{}, and one is needed", digests.len(), architecture());
        return Err(bad(what));
    };
    let digest = Sha::parse(&found.digest)?;
    let is_index = found.media_type.contains("index") || found.media_type.contains("manifest.list");
    match is_index {
        false => Ok(digest),
        true if depth < DEEPEST => chosen(files, parse("index", &files.blob(&digest)?)?, depth + 1),
        true => Err(bad("the layout's indexes name further ones without an end")),
    }
}

fn of_manifest(files: &Files, manifest: &Manifest) -> Result<Vec<Layer>> {
    let contents = contents(&files.blob(&Sha::parse(&manifest.config.digest)?)?)?;
    if contents.len() != manifest.layers.len() {
        return Err(bad("the image's configuration has other layers than its manifest"));
    }
    let layers = manifest.layers.iter().zip(contents).map(|(layer, contents)| {
        let packed = Sha::parse(&layer.digest)?;
        Ok(Layer { path: packed.path(), packed: Some(packed), contents })
    });
    layers.collect()
}

fn of_saved(files: &Files) -> Result<Vec<Layer>> {
    let saved: Vec<Saved> = parse("manifest", &files.text(Path::new(SAVED))?)?;
    let [saved] = &saved[..] else {
        return Err(bad(format!("the file has {} images, and one is needed: save one alone", saved.len())));
    };
    let text = files.text(Path::new(&saved.config))?;
    // Its name is its digest.
    let named = Path::new(&saved.config).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digest = Sha::parse(&format!("sha256:{}", named.trim_end_matches(".json")))?;
    if Sha::of(&text) != digest {
        return Err(wrong_digest(&digest));
    }
    let contents = contents(&text)?;
    if contents.len() != saved.layers.len() {
        return Err(bad("the image's configuration has other layers than its manifest"));
    }
    let layers = saved.layers.iter().zip(contents);
    Ok(layers.map(|(path, contents)| Layer { path: path.into(), packed: None, contents }).collect())
}

/// What the contents of each layer hash to.
fn contents(configuration: &[u8]) -> Result<Vec<Sha>> {
    let found: Configuration = parse("configuration", configuration)?;
    if !found.architecture.is_empty() && found.architecture != architecture() {
        let what = format!("the image is for {}, and this is {}", found.architecture.escape_debug(), architecture());
        return Err(bad(what));
    }
    found.rootfs.diff_ids.iter().map(|text| Sha::parse(text)).collect()
}

/// Hashes what is read of it, as long as there is something left of a bound.
pub(crate) struct Hashed<'a, R> {
    from: R,
    hasher: Sha256,
    left: &'a mut u64,
}

impl<'a, R: Read> Hashed<'a, R> {
    pub(crate) fn new(from: R, left: &'a mut u64) -> Self {
        Self { from, hasher: Sha256::new(), left }
    }

    /// Reads what is left, and returns the hash of all.
    pub(crate) fn finish(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        let left = self.left.checked_sub(length as u64);
        *self.left = left.ok_or_else(|| io::Error::other("it is larger than allowed"))?;
        self.hasher.update(&buffer[..length]);
        Ok(length)
    }
}

impl Layout {
    /// Names all that the image's root file system is made from.
    pub(crate) fn identity(&self) -> String {
        self.layers.iter().map(|layer| format!("{}\n", layer.contents.0)).collect()
    }

    /// Unpacks all layers into an empty directory, and counts what it needs.
    pub(crate) fn unpack(&self, into: &Path, most: u64) -> Result<Needs> {
        let mut tree = Tree::new(into, most)?;
        let mut left = most.saturating_mul(LAYERS_SHARE);
        for layer in &self.layers {
            if let Some(packed) = &layer.packed {
                let found = hash_of(self.files.reader(&layer.path)?).map_err(io_error("read", &layer.path))?;
                if found != packed.0 {
                    return Err(wrong_digest(packed));
                }
            }
            self.through(layer, &mut left, |tar| tree.remove(tar))?;
            self.through(layer, &mut left, |tar| tree.extract(tar))?;
        }
        tree.finish()
    }

    /// Has a layer's contents read, and compares what they hash to.
    fn through(&self, layer: &Layer, left: &mut u64, read: impl FnOnce(&mut dyn Read) -> Result<()>) -> Result<()> {
        let unpacked = unpacked(self.files.reader(&layer.path)?).map_err(io_error("read", &layer.path))?;
        let mut hashed = Hashed::new(unpacked, left);
        read(&mut hashed)?;
        // What follows the end of the tar is part of it.
        let found = hashed.finish().map_err(|error| bad(format!("a layer of the image cannot be read: {error}")))?;
        if found == layer.contents.0 { Ok(()) } else { Err(wrong_digest(&layer.contents)) }
    }
}

/// A layer without its compression, which its first bytes tell.
fn unpacked(mut from: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut first = Vec::new();
    from.by_ref().take(4).read_to_end(&mut first)?;
    let whole = BufReader::with_capacity(1 << 17, io::Cursor::new(first.clone()).chain(from));
    Ok(match first[..] {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
        // Frames that need more than 128 MiB to be read are refused by the decoder.
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?),
        _ => Box::new(whole),
    })
}

#[cfg(test)]
#[path = "oci_tests.rs"]
mod tests;
