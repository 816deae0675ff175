//! Container images as files: an OCI image layout in a directory or a tar, or the output of `docker save`.
//!
//! Every file is found by its digest and verified against it before use; each layer is also verified against the digest
//! of its uncompressed contents. Images for other architectures are skipped.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use cofferdam_linux::{beneath, named};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::stream::{Sha, wrong_digest};
use super::{Result, bad, io as io_error};
use cofferdam_tree::members::Archive;

/// Maximum size of an index, manifest or configuration.
pub(crate) const MAX_TEXT: u64 = 4 << 20;
const MAX_LAYERS: usize = 256;
/// Maximum number of files in a tar with images: three for each layer, and a few more.
const MAX_FILES: usize = 4096;
/// Maximum depth of nested indexes.
const MAX_INDEX_DEPTH: usize = 3;
/// Maximum number of images in one file.
const MAX_IMAGES: usize = 256;
pub(crate) const LAYOUT: &str = "oci-layout";
pub(crate) const INDEX: &str = "index.json";
pub(crate) const SAVED: &str = "manifest.json";
/// Annotations of a descriptor with the image's name, the better one first.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// The files of a layout.
#[derive(Debug)]
pub(crate) enum Files {
    /// A directory.
    Directory(std::os::fd::OwnedFd),
    /// A tar.
    Tar(File, BTreeMap<PathBuf, Member>),
}

/// A member of a tar with images.
#[derive(Debug)]
pub(crate) enum Member {
    /// The offset of a file, and its length.
    File(u64, u64),
    /// A link to another member: `docker save` has each layer once.
    Link(PathBuf),
}

impl Files {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::of(named::read(path).map_err(io_error("open", path))?, path)
    }

    /// Opens the files of an open directory or tar; `path` is used in errors.
    pub(crate) fn of(file: File, path: &Path) -> Result<Self> {
        if file.metadata().map_err(io_error("inspect", path))?.is_dir() {
            return Ok(Self::Directory(file.into()));
        }
        let mut members = BTreeMap::new();
        let mut archive = Archive::new(&file);
        let wrong = |error: io::Error| bad(format!("{} is not a tar: {error}", path.display()));
        for entry in archive.members_with_seek().map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            if members.len() > MAX_FILES {
                break;
            }
            let Some(name) = plain(&entry.path().map_err(wrong)?) else { continue };
            // Of two entries with the same name, the later one is used.
            members.remove(&name);
            let kind = entry.header().entry_type();
            if kind.is_file() {
                members.insert(name, Member::File(entry.raw_file_position(), entry.size()));
            } else if let (true, Some(link)) = (kind.is_symlink(), entry.link_name().map_err(wrong)?)
                && let Some(target) = beside(&name, &link)
            {
                members.insert(name, Member::Link(target));
            }
        }
        Ok(Self::Tar(file, members))
    }

    /// Returns true if it has a file with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.reader(Path::new(name)).is_ok()
    }

    /// Returns a reader of a file from its beginning.
    pub(crate) fn reader(&self, path: &Path) -> Result<Box<dyn Read>> {
        let missing = || bad(format!("the image has no file {}", path.display().to_string().escape_debug()));
        let name = plain(path).ok_or_else(missing)?;
        match self {
            Self::Directory(directory) => match beneath::open_plain(directory.as_fd(), &name) {
                Ok(Ok(file)) => Ok(Box::new(File::from(file))),
                _ => Err(missing()),
            },
            Self::Tar(file, members) => {
                let (at, length) = match members.get(&name) {
                    Some(Member::File(at, length)) => (*at, *length),
                    Some(Member::Link(target)) => match members.get(target) {
                        Some(Member::File(at, length)) => (*at, *length),
                        _ => return Err(missing()),
                    },
                    None => return Err(missing()),
                };
                let mut file = file.try_clone().map_err(io_error("copy the descriptor of", path))?;
                // Cloned descriptors share their position: only one reader at a time is valid.
                file.seek(SeekFrom::Start(at)).map_err(io_error("read", path))?;
                Ok(Box::new(file.take(length)))
            }
        }
    }

    pub(crate) fn text(&self, path: &Path) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.reader(path)?.take(MAX_TEXT + 1).read_to_end(&mut text).map_err(io_error("read", path))?;
        if text.len() as u64 > MAX_TEXT {
            return Err(bad(format!("{} of the image is too long", path.display())));
        }
        Ok(text)
    }

    /// Reads the text with this digest, and verifies it.
    pub(crate) fn blob(&self, digest: &Sha) -> Result<Vec<u8>> {
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

/// Returns the target of a link in a tar, or `None` if it leads out.
fn beside(name: &Path, link: &Path) -> Option<PathBuf> {
    let mut found = name.parent()?.to_owned();
    for part in link.components() {
        match part {
            Component::Normal(part) => found.push(part),
            Component::CurDir => {}
            Component::ParentDir => found.pop().then_some(())?,
            _ => return None,
        }
    }
    Some(found)
}

fn parse<T: DeserializeOwned>(what: &str, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| bad(format!("cannot parse the image's {what}: {error}")))
}

/// An index of images.
#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    #[serde(default)]
    #[cfg_attr(not(feature = "registry"), expect(dead_code, reason = "a file shows its size"))]
    size: u64,
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
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// A layer: its path, the digest of its file if known, and the digest of its uncompressed contents.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) path: PathBuf,
    pub(crate) packed: Option<Sha>,
    pub(crate) contents: Sha,
}

/// An image whose description was read and verified; its layers were not read yet.
#[derive(Debug)]
pub(crate) struct Description {
    /// Its names, as the file has them.
    pub(crate) names: Vec<String>,
    /// Its manifest, unless it comes from `docker save`.
    pub(crate) manifest: Option<Vec<u8>>,
    /// Its configuration.
    pub(crate) config: Vec<u8>,
    pub(crate) layers: Vec<Layer>,
}

/// Returns the OCI name of this architecture.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Reads the descriptions of all images for this architecture.
pub(crate) fn read_all(files: &Files) -> Result<Vec<Description>> {
    let mut images = Vec::new();
    if files.has(LAYOUT) || files.has(INDEX) {
        let index: Index = parse("index", &files.text(Path::new(INDEX))?)?;
        let mut named = BTreeMap::<Sha, Vec<String>>::new();
        find_manifests(files, &index, &[], 0, &mut named)?;
        for (digest, names) in named {
            images.push(of_manifest(files, files.blob(&digest)?, names)?);
        }
    } else {
        let saved: Vec<Saved> = parse("manifest", &files.text(Path::new(SAVED))?)?;
        if saved.len() > MAX_IMAGES {
            return Err(bad(format!("the file has more than {MAX_IMAGES} images")));
        }
        for image in saved {
            images.push(of_saved(files, image)?);
        }
    }
    Ok(images)
}

/// Finds the manifests for this architecture, each with the names of the descriptors that lead to it.
fn find_manifests(
    files: &Files,
    index: &Index,
    above: &[String],
    depth: usize,
    found: &mut BTreeMap<Sha, Vec<String>>,
) -> Result<()> {
    for descriptor in index.manifests.iter().filter(|descriptor| descriptor.is_ours()) {
        let digest = Sha::parse(&descriptor.digest)?;
        let mut names = above.to_vec();
        names.extend(NAMES.iter().find_map(|name| descriptor.annotations.get(*name)).cloned());
        match descriptor.is_index() {
            false => {
                let known = found.entry(digest).or_default();
                names.retain(|name| !known.contains(name));
                known.extend(names);
            }
            true if depth < MAX_INDEX_DEPTH => {
                let index = parse("index", &files.blob(&digest)?)?;
                find_manifests(files, &index, &names, depth + 1, found)?;
            }
            true => return Err(bad("the layout's indexes are nested without an end")),
        }
        if found.len() > MAX_IMAGES {
            return Err(bad(format!("the layout has more than {MAX_IMAGES} images")));
        }
    }
    Ok(())
}

impl Descriptor {
    fn is_ours(&self) -> bool {
        let is_attestation = self.annotations.contains_key("vnd.docker.reference.type");
        !is_attestation && self.platform.as_ref().is_none_or(|it| it.os == "linux" && it.architecture == architecture())
    }

    fn is_index(&self) -> bool {
        self.media_type.contains("index") || self.media_type.contains("manifest.list")
    }
}

/// Reads the manifest with this digest, from files in the form of a layout.
#[cfg(feature = "disk")]
pub(crate) fn of_digest(files: &Files, digest: &Sha) -> Result<Description> {
    of_manifest(files, files.blob(digest)?, Vec::new())
}

fn of_manifest(files: &Files, text: Vec<u8>, names: Vec<String>) -> Result<Description> {
    let manifest: Manifest = parse("manifest", &text)?;
    let config = files.blob(&Sha::parse(&manifest.config.digest)?)?;
    let contents = contents(&config)?;
    check_layers(manifest.layers.len(), contents.len())?;
    let layers = manifest.layers.iter().zip(contents).map(|(layer, contents)| {
        let packed = Sha::parse(&layer.digest)?;
        Ok(Layer { path: packed.path(), packed: Some(packed), contents })
    });
    let layers = layers.collect::<Result<_>>()?;
    Ok(Description { names, manifest: Some(text), config, layers })
}

fn of_saved(files: &Files, saved: Saved) -> Result<Description> {
    let config = files.text(Path::new(&saved.config))?;
    // The file name is the digest.
    let named = Path::new(&saved.config).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digest = Sha::parse(&format!("sha256:{}", named.trim_end_matches(".json")))?;
    if Sha::of(&config) != digest {
        return Err(wrong_digest(&digest));
    }
    let contents = contents(&config)?;
    check_layers(saved.layers.len(), contents.len())?;
    let layers = saved.layers.iter().zip(contents);
    let layers = layers.map(|(path, contents)| Layer { path: path.into(), packed: None, contents }).collect();
    Ok(Description { names: saved.repo_tags.unwrap_or_default(), manifest: None, config, layers })
}

fn check_layers(files: usize, contents: usize) -> Result<()> {
    if files != contents {
        return Err(bad("the image's configuration has other layers than its manifest"));
    }
    if files == 0 || files > MAX_LAYERS {
        return Err(bad(format!("the image has {files} layers, from 1 to {MAX_LAYERS} are supported")));
    }
    Ok(())
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

#[cfg(feature = "registry")]
pub(crate) use remote::{RemoteLayer, choose, config_digest, parse_index, remote_layers};

/// Descriptions of images in a registry.
#[cfg(feature = "registry")]
mod remote {
    use super::{Index, Manifest, Result, Sha, architecture, bad, check_layers, contents, parse};

    /// A layer in a registry.
    #[derive(Debug)]
    pub(crate) struct RemoteLayer {
        pub(crate) blob: Sha,
        pub(crate) size: u64,
        pub(crate) contents: Sha,
    }

    /// Parses a document as an index. Returns `None` for a manifest.
    pub(crate) fn parse_index(text: &[u8]) -> Result<Option<Index>> {
        let document: serde_json::Value = parse("manifest", text)?;
        match document.get("manifests") {
            Some(_) => parse("index", text).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the digest of the manifest for this architecture.
    pub(crate) fn choose(index: &Index) -> Result<Sha> {
        let found = index.manifests.iter().find(|descriptor| descriptor.is_ours());
        let missing = || bad(format!("the registry has no image of this name for linux/{}", architecture()));
        Sha::parse(&found.ok_or_else(missing)?.digest)
    }

    /// Returns the digest of a manifest's configuration.
    pub(crate) fn config_digest(manifest: &[u8]) -> Result<Sha> {
        Sha::parse(&parse::<Manifest>("manifest", manifest)?.config.digest)
    }

    /// Returns the layers of an image.
    pub(crate) fn remote_layers(manifest: &[u8], config: &[u8]) -> Result<Vec<RemoteLayer>> {
        let manifest: Manifest = parse("manifest", manifest)?;
        let contents = contents(config)?;
        check_layers(manifest.layers.len(), contents.len())?;
        let layers =
            manifest.layers.iter().zip(contents).map(|(layer, contents)| {
                Ok(RemoteLayer { blob: Sha::parse(&layer.digest)?, size: layer.size, contents })
            });
        layers.collect()
    }
}
