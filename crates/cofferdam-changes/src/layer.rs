//! Writer of a change set.

use std::ffi::OsStr;
use std::io::{self as std_io, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tar::EntryType;

use crate::error::{Result, io, malformed};
use crate::fingerprint::Base;
use crate::header::Header;
use crate::names;
use crate::pax;

const BLOCK: u64 = 512;
/// Length of the fields for names. Longer names precede an entry as contents of their own.
const FIELD: usize = 100;
const PIECE: usize = 128 << 10;
pub(crate) const KEY_BASE: &str = "COFFERDAM.base";
pub(crate) const KEY_TREE: &str = "COFFERDAM.tree";

/// A writer of a change set. Entries of a directory follow the directory's own entry.
#[derive(Debug)]
pub struct LayerWriter<W: Write> {
    out: BufWriter<W>,
}

impl<W: Write> LayerWriter<W> {
    /// Begins a change set.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn new(out: W, header: &Header) -> Result<Self> {
        // An entry that no reader accepts is not written.
        Header::parse(&header.encode())?;
        let mut writer = Self { out: BufWriter::new(out) };
        writer
            .extension(EntryType::XGlobalHeader, &header.encode())
            .map_err(io("write the change set to", Path::new("its file")))?;
        Ok(writer)
    }

    /// Adds a directory.
    ///
    /// # Errors
    ///
    /// A path that no change set may have, and errors of `out`.
    pub fn directory(&mut self, path: &Path, mode: u32, base: Option<&Base>) -> Result<()> {
        self.entry(EntryType::Directory, path, OsStr::new(""), mode, 0, base)
    }

    /// Adds a file with `size` bytes of `content`. Fills up with zeros if the content is shorter. Returns the number of
    /// bytes that were read.
    ///
    /// # Errors
    ///
    /// A path that no change set may have, and errors of `content` and `out`.
    pub fn file(&mut self, path: &Path, mode: u32, size: u64, content: impl Read, base: Option<&Base>) -> Result<u64> {
        self.entry(EntryType::Regular, path, OsStr::new(""), mode, size, base)?;
        let copy = || {
            let read = copy(content.take(size), &mut self.out)?;
            let rest = size.checked_next_multiple_of(BLOCK).unwrap_or(size).saturating_sub(read);
            std_io::copy(&mut std_io::repeat(0).take(rest), &mut self.out)?;
            Ok(read)
        };
        copy().map_err(io::<std_io::Error>("capture", path))
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    ///
    /// A path that no change set may have, and errors of `out`.
    pub fn symlink(&mut self, path: &Path, target: &OsStr, base: Option<&Base>) -> Result<()> {
        self.entry(EntryType::Symlink, path, target, 0o777, 0, base)
    }

    /// Adds the deletion of a file or of a directory with everything in it.
    ///
    /// # Errors
    ///
    /// A path that no change set may have, and errors of `out`.
    pub fn whiteout(&mut self, path: &Path, base: Option<&Base>) -> Result<()> {
        names::check(path)?;
        self.entry_unchecked(EntryType::Regular, &names::whiteout(path), OsStr::new(""), 0, 0, base)
    }

    /// Adds the deletion of everything in a directory that the change set does not contain itself. An empty path is the
    /// workspace.
    ///
    /// # Errors
    ///
    /// A path that no change set may have, and errors of `out`.
    pub fn opaque(&mut self, path: &Path) -> Result<()> {
        if !path.as_os_str().is_empty() {
            names::check(path)?;
        }
        let path = path.join(OsStr::from_bytes(names::OPAQUE));
        self.entry_unchecked(EntryType::Regular, &path, OsStr::new(""), 0, 0, None)
    }

    /// Returns the destination before the end of the change set, for members of another writer.
    #[cfg(feature = "sandbox")]
    pub(crate) fn into_inner(self) -> Result<W> {
        let out = self.out.into_inner().map_err(std_io::IntoInnerError::into_error);
        out.map_err(io("write the change set to", Path::new("its file")))
    }

    /// Ends the change set.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn finish(mut self) -> Result<W> {
        let end = [0; 2 * BLOCK as usize];
        let written = self.out.write_all(&end);
        let out = written.and_then(|()| self.out.into_inner().map_err(std_io::IntoInnerError::into_error));
        out.map_err(io("write the change set to", Path::new("its file")))
    }

    fn entry(
        &mut self,
        kind: EntryType,
        path: &Path,
        target: &OsStr,
        mode: u32,
        size: u64,
        base: Option<&Base>,
    ) -> Result<()> {
        names::check(path)?;
        if names::is_reserved(path) {
            return Err(malformed(
                path.as_os_str().as_bytes(),
                "names that begin with .wh. are reserved for deletions",
            ));
        }
        if kind == EntryType::Symlink {
            names::check_target(path, target)?;
        }
        self.entry_unchecked(kind, path, target, mode, size, base)
    }

    fn entry_unchecked(
        &mut self,
        kind: EntryType,
        path: &Path,
        target: &OsStr,
        mode: u32,
        size: u64,
        base: Option<&Base>,
    ) -> Result<()> {
        let mut records = Vec::new();
        if let Some(base) = base {
            pax::push(&mut records, KEY_BASE, base.fingerprint.encode().as_bytes());
            if let Some(tree) = &base.tree {
                pax::push(&mut records, KEY_TREE, tree.encode().as_bytes());
            }
        }
        let mut name = path.as_os_str().as_bytes().to_vec();
        if kind == EntryType::Directory {
            name.push(b'/');
        }
        let mut write = || {
            if !records.is_empty() {
                self.extension(EntryType::XHeader, &records)?;
            }
            self.long(EntryType::GNULongName, &name)?;
            self.long(EntryType::GNULongLink, target.as_bytes())?;
            let mut header = new_header(kind, &name, size);
            let target = target.as_bytes();
            let length = target.len().min(FIELD);
            header.as_old_mut().linkname[..length].copy_from_slice(&target[..length]);
            header.set_mode(mode & 0o7777);
            header.set_cksum();
            self.out.write_all(header.as_bytes())
        };
        write().map_err(io("capture", path))
    }

    fn long(&mut self, kind: EntryType, name: &[u8]) -> std_io::Result<()> {
        if name.len() <= FIELD {
            return Ok(());
        }
        let mut name = name.to_vec();
        name.push(0);
        self.extension(kind, &name)
    }

    fn extension(&mut self, kind: EntryType, bytes: &[u8]) -> std_io::Result<()> {
        let mut header = new_header(kind, b"././@Extension", bytes.len() as u64);
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(BLOCK as usize) - bytes.len();
        self.out.write_all(&[0; BLOCK as usize][..padding])
    }
}

fn new_header(kind: EntryType, name: &[u8], size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    let length = name.len().min(FIELD);
    header.as_old_mut().name[..length].copy_from_slice(&name[..length]);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

/// Copies everything, in large pieces.
pub(crate) fn copy(mut from: impl Read, into: &mut impl Write) -> std_io::Result<u64> {
    let mut piece = vec![0; PIECE];
    let mut copied = 0;
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(copied),
            Ok(length) => {
                into.write_all(&piece[..length])?;
                copied += length as u64;
            }
            Err(error) if error.kind() == std_io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
