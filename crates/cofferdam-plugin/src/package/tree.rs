//! The directory of a plugin that is being packed.
//!
//! Another process may change the directory meanwhile. Nothing outside of it is ever read: the first pass follows no
//! links, and the second opens each file below the directory's descriptor and compares its digest.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use cofferdam_linux::named::Directory;
use cofferdam_linux::{beneath, walk};
use cofferdam_util::sha256;
use rustix::fs::{AtFlags, statat};
use tar::EntryType;
use zstd::Encoder;

use super::archive::{BLOCK, INDEX, SIGNATURE, Signature, WINDOW_LOG, header, plain_header};
use super::error::{PackageError, Result, io as io_error, printable};
use super::index::{Contents, Entry, Index, MAX_INDEX, ManifestFile, check_path, check_target, read_manifest};
use super::{EXTENSION, MANIFEST_NAMES, MAX_FILES, MAX_SIZE, PACKAGE_FORMAT, SigningKey};
use crate::{MAX_MANIFEST, Manifest};

/// The level of compression.
const LEVEL: i32 = 9;

/// The directory of a plugin, with the digest of each file.
#[derive(Debug)]
pub struct Tree {
    directory: Directory,
    index: Index,
    manifest: Manifest,
    bytes: Vec<u8>,
}

impl Tree {
    /// Reads a directory. Leaves out `.git`, `__pycache__`, `node_modules/.cache` and packages.
    ///
    /// # Errors
    /// [`PackageError::Manifest`] if there is no valid manifest, and [`PackageError::Unpackable`] for a file that no
    /// package can have: a device, a link that leads out of the directory, more than 20,000 files or 256 MiB.
    pub fn read(path: &Path) -> Result<Self> {
        let directory = Directory::open(path).map_err(io_error("open", path))?;
        let name = MANIFEST_NAMES.iter().find(|name| statat(&directory, **name, AtFlags::SYMLINK_NOFOLLOW).is_ok());
        let name = *name.ok_or_else(|| bad_manifest("the directory has no plugin.toml and no plugin.json"))?;
        let mut scan = Scan { name, text: Vec::new(), entries: Vec::new(), left: MAX_SIZE, failed: None };
        let walked = walk::walk(&directory, &mut |path, stat, entry| scan.visit(path, stat.st_mode, entry));
        if let Some(error) = scan.failed {
            return Err(error);
        }
        walked.map_err(io_error("read", path))?;
        let text = String::from_utf8(scan.text).map_err(|_| bad_manifest("it is not UTF-8"))?;
        let manifest = read_manifest(name, &text).map_err(|reason| PackageError::Manifest { reason })?;
        let manifest_file = ManifestFile { name: name.to_owned(), text };
        let index = Index { format: PACKAGE_FORMAT, manifest: manifest_file, entries: scan.entries };
        let bytes = serde_json::to_vec(&index).unwrap_or_default();
        if bytes.len() > MAX_INDEX {
            return Err(unpackable("", "the paths of its files are too long together"));
        }
        Ok(Self { directory, index, manifest, bytes })
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the digest of the package.
    pub fn digest(&self) -> String {
        sha256::of(&self.bytes)
    }

    /// Writes the package. The same files and key give the same bytes.
    pub fn write(&self, key: &SigningKey, to: impl Write) -> Result<()> {
        let signature = Signature { key: key.public().to_hex(), signature: key.sign(&self.digest()) };
        let signature = serde_json::to_vec(&signature).unwrap_or_default();
        self.compress(&signature, to)
    }

    fn compress(&self, signature: &[u8], to: impl Write) -> Result<()> {
        let failed = |error| io_error("write", "package")(error);
        let mut to = Encoder::new(to, LEVEL).map_err(failed)?;
        to.window_log(WINDOW_LOG).and_then(|()| to.include_checksum(true)).map_err(failed)?;
        for (name, bytes) in [(INDEX, &*self.bytes), (SIGNATURE, signature)] {
            let header = plain_header(name, EntryType::Regular, bytes.len() as u64, 0o644).map_err(failed)?;
            to.write_all(header.as_bytes()).and_then(|()| to.write_all(bytes)).map_err(failed)?;
            pad(&mut to, bytes.len() as u64).map_err(failed)?;
        }
        for entry in &self.index.entries {
            to.write_all(header(entry).map_err(failed)?.as_bytes()).map_err(failed)?;
            if let Contents::File { size, sha256, .. } = &entry.contents {
                self.copy(&entry.path, *size, sha256, &mut to)?;
                pad(&mut to, *size).map_err(failed)?;
            }
        }
        to.write_all(&[0; 2 * BLOCK]).and_then(|()| to.finish()).map_err(failed)?;
        Ok(())
    }

    /// Copies a file, which must still have its size and digest.
    fn copy(&self, path: &str, size: u64, digest: &str, to: &mut impl Write) -> Result<()> {
        let file = beneath::open_plain(self.directory.as_fd(), path.as_ref()).map_err(io_error("open", path))?;
        let changed = || unpackable(path, "it changed while it was packed");
        let file = File::from(file.map_err(|_| changed())?);
        let mut length = 0;
        let found = sha256::of_pieces(file.take(size + 1), |piece| {
            length += piece.len() as u64;
            to.write_all(piece)
        });
        match found.map_err(io_error("pack", path))? == digest && length == size {
            true => Ok(()),
            false => Err(changed()),
        }
    }
}

/// Completes the last block of a member.
fn pad(to: &mut impl Write, size: u64) -> io::Result<()> {
    to.write_all(&[0; BLOCK][..(BLOCK - size as usize % BLOCK) % BLOCK])
}

/// The state of the first pass.
struct Scan {
    /// The name of the manifest, and its text.
    name: &'static str,
    text: Vec<u8>,
    entries: Vec<Entry>,
    /// The bytes that the next files may have.
    left: u64,
    failed: Option<PackageError>,
}

impl Scan {
    fn visit(&mut self, path: &Path, mode: u32, entry: walk::Entry) -> io::Result<()> {
        if is_left_out(path) {
            return Ok(());
        }
        self.add(path, mode, entry).map_err(|error| {
            let text = error.to_string();
            self.failed = Some(error);
            io::Error::other(text)
        })
    }

    fn add(&mut self, path: &Path, mode: u32, entry: walk::Entry) -> Result<()> {
        let shown = path.to_string_lossy();
        let fail = |reason: &str| unpackable(&shown, reason);
        if self.entries.len() == MAX_FILES {
            return Err(fail("the directory has more than 20,000 files"));
        }
        let path = path.to_str().ok_or_else(|| fail("its path is not UTF-8"))?;
        check_path(path).map_err(|reason| fail(&format!("it {reason}")))?;
        let contents = match entry {
            walk::Entry::Directory => Contents::Directory,
            walk::Entry::File(file, size) => self.file(path, file, size, mode)?,
            walk::Entry::Link(target) => {
                let target = target.to_str().ok_or_else(|| fail("its target is not UTF-8"))?.to_owned();
                check_target(path, &target).map_err(|reason| fail(&format!("the link {reason}")))?;
                Contents::Link { target }
            }
            walk::Entry::Unreadable(error) => return Err(fail(&error.to_string())),
            walk::Entry::Other => return Err(fail("it is neither a file nor a directory nor a link")),
        };
        self.entries.push(Entry { path: path.to_owned(), contents });
        Ok(())
    }

    fn file(&mut self, path: &str, file: File, size: u64, mode: u32) -> Result<Contents> {
        let too_large = || unpackable(path, "the directory has more than 256 MiB");
        self.left = self.left.checked_sub(size).ok_or_else(too_large)?;
        if path == self.name && size > MAX_MANIFEST as u64 {
            return Err(bad_manifest("it is larger than 1 MiB"));
        }
        let (mut length, mut is_key) = (0, false);
        let sha256 = sha256::of_pieces(file.take(size), |piece| {
            is_key |= length == 0 && is_private_key(piece);
            length += piece.len() as u64;
            if path == self.name {
                self.text.extend_from_slice(piece);
            }
            Ok(())
        });
        let sha256 = sha256.map_err(io_error("read", path))?;
        if is_key {
            return Err(unpackable(path, "it is a private key, which no package may contain"));
        }
        Ok(Contents::File { size: length, sha256, executable: mode & 0o100 != 0 })
    }
}

/// Returns true for files that no plugin needs: those of Git, caches, and packages.
fn is_left_out(path: &Path) -> bool {
    let names: Vec<_> = path.iter().collect();
    names.iter().any(|name| *name == ".git" || *name == "__pycache__")
        || names.windows(2).any(|pair| pair[0] == "node_modules" && pair[1] == ".cache")
        || path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// Returns true for the beginning of a private key in PEM. A key that signs packages is easily created in the wrong
/// directory.
fn is_private_key(text: &[u8]) -> bool {
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    first.starts_with(b"-----BEGIN") && first.windows(11).any(|part| part == b"PRIVATE KEY")
}

fn unpackable(path: &str, reason: &str) -> PackageError {
    PackageError::Unpackable { path: printable(path), reason: reason.to_owned() }
}

fn bad_manifest(reason: &str) -> PackageError {
    PackageError::Manifest { reason: reason.to_owned() }
}
