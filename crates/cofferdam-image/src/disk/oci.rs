//! Container images as files: an OCI image layout in a directory or a tar, or the output of `docker save`.
//!
//! Every file is found by its digest and verified against it before use; each layer is also verified against the digest
//! of its uncompressed contents. If a layout has several images, the one for this architecture is used; if there is not
//! exactly one, the layout is refused.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use cofferdam_linux::{beneath, named};
use cofferdam_util::{hex, sha256};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::error::{ImageError, Result, io as io_error};
use super::ext4::Needs;
use super::headers::Archive;
use super::layers::Tree;

/// Maximum size of an index, manifest or configuration.
const MAX_TEXT: u64 = 4 << 20;
const MAX_LAYERS: usize = 256;
/// Maximum number of files in a tar with images: three for each layer, and a few more.
const MAX_FILES: usize = 4096;
/// Maximum depth of nested indexes.
const MAX_INDEX_DEPTH: usize = 3;
/// Maximum total size of all layers, as a multiple of the root file system's maximum. Each layer is read twice.
const LAYERS_SHARE: u64 = 4;
const LAYOUT: &str = "oci-layout";
const INDEX: &str = "index.json";
const SAVED: &str = "manifest.json";

fn bad(what: impl Into<String>) -> ImageError {
    ImageError::InvalidSource { what: what.into() }
}

/// Returns true if a directory or a tar contains an image layout.
pub(crate) fn is_layout(file: File, path: &Path) -> bool {
    Files::of(file, path).is_ok_and(|files| files.has(LAYOUT) || (files.has(SAVED) && !files.has_root()))
}

/// The files of a layout.
#[derive(Debug)]
enum Files {
    Directory(std::os::fd::OwnedFd),
    /// The offset of each file in the tar, and its length.
    Tar(File, BTreeMap<PathBuf, (u64, u64)>),
}

impl Files {
    fn open(path: &Path) -> Result<Self> {
        Self::of(named::read(path).map_err(io_error("open", path))?, path)
    }

    /// Opens the files of an open directory or tar; `path` is used in errors.
    fn of(file: File, path: &Path) -> Result<Self> {
        if file.metadata().map_err(io_error("inspect", path))?.is_dir() {
            return Ok(Self::Directory(file.into()));
        }
        let mut offsets = BTreeMap::new();
        let mut archive = Archive::new(&file);
        let wrong = |error: io::Error| bad(format!("{} is not a tar: {error}", path.display()));
        for entry in archive.members_with_seek().map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            if offsets.len() > MAX_FILES {
                break;
            }
            let name = entry.path().map_err(wrong)?;
            // Of two entries with the same name, the later one is used.
            if let (true, Some(name)) = (entry.header().entry_type().is_file(), plain(&name)) {
                offsets.insert(name, (entry.raw_file_position(), entry.size()));
            } else if let Some(name) = plain(&name) {
                offsets.remove(&name);
            }
        }
        Ok(Self::Tar(file, offsets))
    }

    fn has(&self, name: &str) -> bool {
        self.reader(Path::new(name)).is_ok()
    }

    /// Returns true if it looks like a root file system, which may contain any file.
    fn has_root(&self) -> bool {
        match self {
            Self::Directory(directory) => {
                let etc =
                    beneath::open(directory.as_fd(), Path::new("etc"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
                etc.is_ok()
            }
            Self::Tar(_, offsets) => offsets.keys().any(|path| path.starts_with("etc") || path.starts_with("bin")),
        }
    }

    /// Returns a reader of a file from its beginning.
    fn reader(&self, path: &Path) -> Result<Box<dyn Read>> {
        let missing = || bad(format!("the image has no file {}", path.display().to_string().escape_debug()));
        let name = plain(path).ok_or_else(missing)?;
        match self {
            Self::Directory(directory) => match beneath::open_plain(directory.as_fd(), &name) {
                Ok(Ok(file)) => Ok(Box::new(File::from(file))),
                _ => Err(missing()),
            },
            Self::Tar(file, offsets) => {
                let (at, length) = *offsets.get(&name).ok_or_else(missing)?;
                let mut file = file.try_clone().map_err(io_error("copy the descriptor of", path))?;
                // Cloned descriptors share their position: only one reader at a time is valid.
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

    /// Reads the text with this digest, and verifies it.
    fn blob(&self, digest: &Sha) -> Result<Vec<u8>> {
        let text = self.text(&digest.path())?;
        if Sha::of(&text) == *digest { Ok(text) } else { Err(wrong_digest(digest)) }
    }
}

/// Returns a relative path without `..`, or `None`.
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

/// A SHA-256 digest in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sha(String);

impl Sha {
    fn parse(text: &str) -> Result<Self> {
        let found = text.strip_prefix("sha256:").filter(|digits| sha256::is_digest(digits));
        let invalid = || bad(format!("'{}' is not a supported digest: only sha256 is supported", text.escape_debug()));
        found.map(|digits| Self(digits.to_owned())).ok_or_else(invalid)
    }

    fn of(bytes: &[u8]) -> Self {
        Self(sha256::of(bytes))
    }

    fn path(&self) -> PathBuf {
        Path::new("blobs/sha256").join(&self.0)
    }
}

fn wrong_digest(digest: &Sha) -> ImageError {
    bad(format!("the image's file sha256:{} hashes to something else", digest.0))
}

fn parse<T: DeserializeOwned>(what: &str, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| bad(format!("cannot parse the image's {what}: {error}")))
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

/// An entry in the manifest of `docker save`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

/// A layer: its path, the digest of its file if known, and the digest of its uncompressed contents.
#[derive(Debug)]
struct Layer {
    path: PathBuf,
    packed: Option<Sha>,
    contents: Sha,
}

/// An image whose description was read and verified; its layers were not read yet.
#[derive(Debug)]
pub(crate) struct Layout {
    files: Files,
    layers: Vec<Layer>,
}

/// Returns the OCI name of this architecture.
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
        let manifest = find_manifest(&files, index, 0)?;
        of_manifest(&files, &parse("manifest", &files.blob(&manifest)?)?)?
    } else {
        of_saved(&files)?
    };
    if layers.is_empty() || layers.len() > MAX_LAYERS {
        return Err(bad(format!("the image has {} layers, from 1 to {MAX_LAYERS} are supported", layers.len())));
    }
    Ok(Layout { files, layers })
}

/// Returns the digest of the only manifest for this architecture.
fn find_manifest(files: &Files, index: Index, depth: usize) -> Result<Sha> {
    let matches = |found: &&Descriptor| {
        let is_attestation = found.annotations.contains_key("vnd.docker.reference.type");
        let is_ours = found.platform.as_ref().is_none_or(|it| it.os == "linux" && it.architecture == architecture());
        is_ours && !is_attestation
    };
    let mut digests: Vec<&Descriptor> = index.manifests.iter().filter(matches).collect();
    // An image may have several names.
    digests.dedup_by(|one, other| one.digest == other.digest);
    let [found] = &digests[..] else {
        let what = format!("the layout has {} images for linux/{}, and one is needed", digests.len(), architecture());
        return Err(bad(what));
    };
    let digest = Sha::parse(&found.digest)?;
    let is_index = found.media_type.contains("index") || found.media_type.contains("manifest.list");
    match is_index {
        false => Ok(digest),
        true if depth < MAX_INDEX_DEPTH => find_manifest(files, parse("index", &files.blob(&digest)?)?, depth + 1),
        true => Err(bad("the layout's indexes are nested without an end")),
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
        return Err(bad(format!("the file has {} images, and one is needed: save a single image", saved.len())));
    };
    let text = files.text(Path::new(&saved.config))?;
    // The file name is the digest.
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

/// Returns the digests of the layers' uncompressed contents.
fn contents(configuration: &[u8]) -> Result<Vec<Sha>> {
    let found: Configuration = parse("configuration", configuration)?;
    if !found.architecture.is_empty() && found.architecture != architecture() {
        let what =
            format!("the image is for {}, and this host is {}", found.architecture.escape_debug(), architecture());
        return Err(bad(what));
    }
    found.rootfs.diff_ids.iter().map(|text| Sha::parse(text)).collect()
}

/// A reader that hashes its data, and fails above a limit.
pub(crate) struct Hashed<'a, R> {
    from: R,
    hasher: Sha256,
    left: &'a mut u64,
}

impl<'a, R: Read> Hashed<'a, R> {
    pub(crate) fn new(from: R, left: &'a mut u64) -> Self {
        Self { from, hasher: Sha256::new(), left }
    }

    /// Reads the rest, and returns the hash of everything.
    pub(crate) fn finish(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hex::encode(self.hasher.finalize()))
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
    /// Returns a text that identifies the contents of the image's root file system.
    pub(crate) fn identity(&self) -> String {
        self.layers.iter().map(|layer| format!("{}\n", layer.contents.0)).collect()
    }

    /// Unpacks all layers into an empty directory, and counts its entries.
    pub(crate) fn unpack(&self, into: &Path, max: u64) -> Result<Needs> {
        let mut tree = Tree::new(into, max)?;
        let mut left = max.saturating_mul(LAYERS_SHARE);
        for layer in &self.layers {
            if let Some(packed) = &layer.packed {
                let found =
                    sha256::of_reader(self.files.reader(&layer.path)?).map_err(io_error("read", &layer.path))?;
                if found != packed.0 {
                    return Err(wrong_digest(packed));
                }
            }
            self.read_verified(layer, &mut left, |tar| tree.remove(tar))?;
            self.read_verified(layer, &mut left, |tar| tree.extract(tar))?;
        }
        tree.finish()
    }

    /// Reads a layer's uncompressed contents, and verifies their digest.
    fn read_verified(
        &self,
        layer: &Layer,
        left: &mut u64,
        read: impl FnOnce(&mut dyn Read) -> Result<()>,
    ) -> Result<()> {
        let unpacked = unpacked(self.files.reader(&layer.path)?).map_err(io_error("read", &layer.path))?;
        let mut hashed = Hashed::new(unpacked, left);
        read(&mut hashed)?;
        // Data after the end of the tar is part of the contents.
        let found = hashed.finish().map_err(|error| bad(format!("cannot read a layer of the image: {error}")))?;
        if found == layer.contents.0 { Ok(()) } else { Err(wrong_digest(&layer.contents)) }
    }
}

/// Decompresses a layer in the format that its first bytes indicate.
fn unpacked(mut from: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut first = Vec::new();
    from.by_ref().take(4).read_to_end(&mut first)?;
    let whole = BufReader::with_capacity(1 << 17, io::Cursor::new(first.clone()).chain(from));
    Ok(match first[..] {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
        // The decoder refuses frames that need more than 128 MiB of memory.
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?),
        _ => Box::new(whole),
    })
}

#[cfg(test)]
#[path = "oci_tests.rs"]
mod tests;
