//! Fuzz target for layers of images: tars with any members, packed in any way. What is accepted stays in its directory
//! and contains nothing but files, directories, links, and marks of overlayfs that come from whiteouts.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use cofferdam_image::store::{ImageConfig, ImageStore, LayerError, Options, PruneOptions, Reference, StoreError};
use fastrand::Rng;

use crate::cases::damaged;
use crate::drive::Outcome;
use crate::watch;

/// The size of a block of a tar.
const BLOCK: usize = 512;
const NAMES: &[&str] = &[
    "a",
    "d/",
    "d",
    "d/b",
    "d/c/e",
    "l",
    "l/x",
    "l/.wh.x",
    "../a",
    "/a",
    "d/../a",
    "d//a",
    ".",
    "./",
    "a\n",
    "\u{1b}[2J",
    ".wh.a",
    ".wh.d",
    "d/.wh.b",
    "d/.wh..wh..opq",
    ".wh..wh..opq",
    ".wh.",
    ".wh...",
    ".wh..wh.plnk",
    "d/.wh.c",
];
const TARGETS: &[&str] = &["a", "d", "d/b", "../a", "../../outside", "/etc/passwd", "..", "", "l", "l/x"];
const RECORDS: &[&str] = &[
    "SCHILY.xattr.user.overlay.opaque",
    "SCHILY.xattr.trusted.overlay.opaque",
    "SCHILY.xattr.security.capability",
    "GNU.sparse.major",
    "path",
    "linkpath",
    "size",
    "mtime",
    "uid",
];
const OPTIONS: Options = Options { max_bytes: 4 << 20, max_layer_bytes: 1 << 20 };
/// File systems in memory, where syncing costs nothing.
const MEMORY: &str = "/dev/shm";

/// A store of images that checks the properties of every case.
#[derive(Debug)]
pub struct Layers {
    directory: tempfile::TempDir,
    store: ImageStore,
    name: Reference,
}

impl Layers {
    /// Creates a target.
    ///
    /// # Errors
    ///
    /// Those of creating a store.
    pub fn new() -> Result<Self> {
        watch::keep_panics();
        let directory = match Path::new(MEMORY).is_dir() {
            true => tempfile::tempdir_in(MEMORY)?,
            false => tempfile::tempdir()?,
        };
        let store = ImageStore::open(&directory.path().join("images"), OPTIONS)?;
        fs::write(directory.path().join("outside"), "outside")?;
        Ok(Self { directory, store, name: "fuzz:1".parse()? })
    }

    /// Generates the case of a seed, and unpacks it.
    ///
    /// # Errors
    ///
    /// A violated property.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let mut rng = Rng::with_seed(seed);
        let mut layer = layer(&mut rng);
        for _ in 0..rng.usize(..3) {
            forge(&mut rng, &mut layer);
        }
        if rng.u8(..10) == 0 {
            layer = damaged(&mut rng, layer);
        }
        self.check(&layer)
    }

    /// Unpacks bytes from the fuzzer as a layer.
    ///
    /// # Errors
    ///
    /// A violated property.
    pub fn check(&mut self, bytes: &[u8]) -> Result<Outcome> {
        let outcome = match self.store.import_tar(bytes, &ImageConfig::default(), &self.name, &mut |_| ()) {
            Ok(_) => {
                let found = self.store.resolve("fuzz:1")?;
                for layer in &found.layers {
                    harmless(layer, 0)?;
                }
                Outcome::Ended
            }
            Err(
                error @ (StoreError::QuotaExceeded { .. }
                | StoreError::Layer(
                    LayerError::Invalid { .. } | LayerError::TooLarge { .. } | LayerError::Io { .. },
                )),
            ) => {
                ensure!(!error.to_string().contains(char::is_control), "the reason {error:?} cannot be printed");
                Outcome::Refused
            }
            Err(error) => return Err(error.into()),
        };
        self.store.prune(PruneOptions { unused_for: Some(std::time::Duration::ZERO) })?;
        ensure!(self.store.size()? == 0, "something is left in the store");
        let root = self.store.root();
        for name in ["work", "layers", "images", "names", "blobs/sha256"] {
            ensure!(fs::read_dir(root.join(name))?.next().is_none(), "something is left in {name}");
        }
        ensure!(fs::read_to_string(self.directory.path().join("outside"))? == "outside", "a file outside was changed");
        ensure!(fs::read_dir(self.directory.path())?.count() == 2, "a file is outside");
        Ok(outcome)
    }
}

/// Checks that a layer contains nothing but what overlayfs may show.
fn harmless(directory: &Path, depth: usize) -> Result<()> {
    ensure!(depth <= 256, "{directory:?} is too deep");
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(directory, &mut names)?;
    ensure!(
        names[..length].split(|byte| *byte == 0).all(|name| name.is_empty() || name == b"user.overlay.opaque"),
        "{directory:?} has attributes"
    );
    let entries: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| entry.map(|it| it.path())).collect::<std::io::Result<_>>()?;
    for path in entries {
        let found = fs::symlink_metadata(&path)?;
        let kind = found.file_type();
        let is_whiteout = kind.is_char_device() && found.rdev() == 0;
        ensure!(kind.is_file() || kind.is_dir() || kind.is_symlink() || is_whiteout, "{path:?} is a special file");
        ensure!(kind.is_symlink() || found.permissions().mode() & 0o6000 == 0, "{path:?} has set-id bits");
        ensure!(!kind.is_file() || found.permissions().mode() & 0o400 != 0, "{path:?} cannot be read");
        ensure!(
            !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".wh.")),
            "{path:?} is a whiteout"
        );
        if kind.is_dir() {
            harmless(&path, depth + 1)?;
        } else if kind.is_file() {
            let length = rustix::fs::llistxattr(&path, &mut names)?;
            ensure!(length == 0, "{path:?} has attributes");
        }
    }
    Ok(())
}

/// Generates a layer. Members that the library refuses are left out.
fn layer(rng: &mut Rng) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for _ in 0..rng.usize(..12) {
        if rng.u8(..6) == 0 {
            let key = rng.choice(RECORDS).copied().unwrap_or_default();
            let value = rng.choice(NAMES).copied().unwrap_or_default();
            let _ = tar.append_pax_extensions([(key, value.as_bytes())]);
        }
        let contents = vec![rng.u8(..); if rng.bool() { 0 } else { rng.usize(..1500) }];
        let mut header = tar::Header::new_gnu();
        let kind = rng.choice(b"0000555212120134567SgD").copied().unwrap_or_default();
        let name = rng.choice(NAMES).copied().unwrap_or_default();
        let target = rng.choice(TARGETS).copied().unwrap_or_default();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(rng.u32(..0o10000));
        header.set_mtime(rng.u64(..) >> 31);
        header.set_size(if kind == b'0' || rng.u8(..8) == 0 { contents.len() as u64 } else { 0 });
        if let Some(fields) = header.as_gnu_mut() {
            fields.name[..name.len()].copy_from_slice(name.as_bytes());
            fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
        }
        header.set_cksum();
        let _ = tar.append(&header, if kind == b'0' { &contents[..] } else { &[] });
    }
    let bytes = tar.into_inner().unwrap_or_default();
    match rng.u8(..8) {
        0 => zipped(&bytes),
        _ => bytes,
    }
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    // Writing to memory cannot fail.
    let _ = out.write_all(bytes);
    out.finish().unwrap_or_default()
}

/// Changes a field of a header, and corrects its checksum.
fn forge(rng: &mut Rng, layer: &mut [u8]) {
    let count = layer.len() / BLOCK;
    if count == 0 {
        return;
    }
    let at = rng.usize(..count) * BLOCK;
    let Some(header) = layer.get_mut(at..at + BLOCK) else { return };
    match rng.u8(..6) {
        0 => header[156] = rng.choice(b"0123456757xgLKSDVM\0").copied().unwrap_or_default(),
        1 => header[100..107].copy_from_slice(format!("{:07o}", rng.u32(..0o10000)).as_bytes()),
        2 => header[124..135].copy_from_slice(format!("{:011o}", rng.u64(..) >> rng.u32(31..64)).as_bytes()),
        3 => header[124] = 0x80,
        4 => header[136..147].copy_from_slice(format!("{:011o}", rng.u64(..) >> 31).as_bytes()),
        _ => header[rng.usize(..BLOCK)] = rng.u8(..),
    }
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unharmed_layer_is_unpacked_and_a_trap_would_be_found() {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        tar.append_data(&mut header, "a", &b"x"[..]).unwrap();
        let bytes = tar.into_inner().unwrap();
        assert_eq!(Layers::new().unwrap().check(&zipped(&bytes)).unwrap(), Outcome::Ended);
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(".wh.x"), "").unwrap();
        assert!(harmless(directory.path(), 0).is_err());
    }
}
