//! Comparison of a workspace with the state of the host directory that was copied into it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Bound;
use std::path::Path;

use cofferdam_contract::{
    ByteSize, COPIED_MODE, DirEntry, EntryKind, Error, ErrorKind, FileReader, Result, Sandbox, SandboxPath,
};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

use super::by_copy::{Base, BaseContent, BaseFile};
use super::to_error;
use crate::bounds::{Bounds, MAX_DEPTH, MAX_VISITED};
use crate::capture::{SkipReason, Summary};
use crate::error::ChangesError;
use crate::fingerprint::{self, Subtree};
use crate::layer::LayerWriter;
use crate::names;

const OPERATION: &str = "changes";
const PIECE: usize = 128 << 10;

/// A comparison that is under way.
pub(super) struct Comparison<'a> {
    base: &'a Base,
    sandbox: &'a dyn Sandbox,
    runtime: &'a Handle,
    bounds: Bounds,
    out: LayerWriter<File>,
    visited: usize,
    summary: Summary,
}

impl<'a> Comparison<'a> {
    /// Writes the changes to a file without a name. Must not be called on a thread of the async runtime.
    pub fn run(
        base: &'a Base,
        sandbox: &'a dyn Sandbox,
        disk: Option<ByteSize>,
        runtime: &'a Handle,
    ) -> Result<(File, Summary)> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Io, OPERATION, "cannot store the changes of the workspace").with_source(error)
        };
        let file = tempfile::tempfile().map_err(failed)?;
        let out = LayerWriter::new(file, &base.header).map_err(|error| to_error(OPERATION, &error))?;
        // Sparse files may be larger than what the disk limit lets a guest store.
        let disk = disk.map_or(u64::MAX, ByteSize::as_bytes);
        let bounds = Bounds { max_bytes: disk.min(Bounds::default().max_bytes), ..Bounds::default() };
        let mut all = Self { base, sandbox, runtime, bounds, out, visited: 0, summary: Summary::default() };
        let top = all.list(&SandboxPath::default())?;
        all.directory(Path::new(""), top, 1)?;
        let mut file = all.out.finish().map_err(|error| to_error(OPERATION, &error))?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok((file, all.summary))
    }

    fn list(&mut self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let listed = self.runtime.block_on(self.sandbox.list_dir(path))?;
        self.visited += listed.len();
        if self.visited > MAX_VISITED {
            return Err(too_large("visited files", MAX_VISITED as u64));
        }
        Ok(listed)
    }

    fn directory(&mut self, path: &Path, listed: Vec<DirEntry>, depth: usize) -> Result<()> {
        self.missing(path, &listed)?;
        for entry in listed {
            let path = path.join(&entry.name);
            let guest_path = path.to_str().and_then(|text| SandboxPath::default().join(text).ok());
            match guest_path {
                _ if entry.name.contains('/') || matches!(entry.name.as_str(), "" | "." | "..") => {
                    // Only a guest's own agent could report such a name.
                    self.summary.skip(path, SkipReason::Unreadable);
                }
                _ if names::is_reserved(Path::new(&entry.name)) => self.summary.skip(path, SkipReason::ReservedName),
                Some(guest_path) if depth <= MAX_DEPTH => self.entry(&path, &guest_path, &entry, depth)?,
                _ => self.summary.skip(path, SkipReason::TooDeep),
            }
        }
        Ok(())
    }

    /// Deletes files of the directory that the workspace does not have any more.
    fn missing(&mut self, path: &Path, listed: &[DirEntry]) -> Result<()> {
        let present: BTreeSet<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
        let below = (Bound::Excluded(path.to_owned()), Bound::Unbounded);
        let below = self.base.files.range(below).map(|(below, _)| below).take_while(|below| below.starts_with(path));
        let children = below.filter(|below| below.parent() == Some(path));
        let is_gone = |child: &&std::path::PathBuf| {
            let name = child.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| !present.contains(name) && !names::is_reserved(Path::new(name)))
        };
        let gone: Vec<_> = children.filter(is_gone).collect();
        for child in gone {
            let base = self.base_of(child, None);
            self.count(0)?;
            self.out.whiteout(child, base.as_ref()).map_err(|error| to_error(OPERATION, &error))?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, guest_path: &SandboxPath, entry: &DirEntry, depth: usize) -> Result<()> {
        let base = self.base.files.get(path);
        let mode = entry.mode & COPIED_MODE;
        let same_mode = base.is_some_and(|base| base.fingerprint.mode & COPIED_MODE == mode);
        let content = base.map(|base| &base.content);
        match entry.kind {
            EntryKind::Directory => {
                let below = match self.list(guest_path) {
                    Ok(below) => below,
                    Err(error) => return self.unreadable(path, error),
                };
                if content != Some(&BaseContent::Directory) || !same_mode {
                    let base = self.base_of(path, Some(EntryKind::Directory));
                    self.count(0)?;
                    self.out.directory(path, mode, base.as_ref()).map_err(|error| to_error(OPERATION, &error))?;
                }
                self.directory(path, below, depth + 1)
            }
            EntryKind::File => match self.file(path, guest_path, entry, base.filter(|_| same_mode)) {
                Err(error) => self.unreadable(path, error),
                done => done,
            },
            EntryKind::Symlink => {
                let target = entry.target.as_deref().unwrap_or_default();
                if matches!(content, Some(BaseContent::Link(known)) if known == target) {
                    return Ok(());
                }
                if format!("{}{target}", entry.name).contains(char::REPLACEMENT_CHARACTER) {
                    self.summary.skip(path.to_owned(), SkipReason::Unreadable);
                    return Ok(());
                }
                let base = self.base_of(path, Some(EntryKind::Symlink));
                self.count(0)?;
                let written = self.out.symlink(path, target.as_ref(), base.as_ref());
                written.map_err(|error| to_error(OPERATION, &error))
            }
            EntryKind::Other => {
                self.summary.skip(path.to_owned(), SkipReason::NotAFile);
                Ok(())
            }
        }
    }

    /// Captures a file unless it equals `same`.
    fn file(&mut self, path: &Path, guest_path: &SandboxPath, entry: &DirEntry, same: Option<&BaseFile>) -> Result<()> {
        if let Some(BaseFile { fingerprint, content: BaseContent::File(digest) }) = same
            && fingerprint.size == entry.size
            && self.digest(guest_path)? == *digest
        {
            return Ok(());
        }
        let mut reader = self.open(guest_path)?;
        let base = self.base_of(path, Some(EntryKind::File));
        self.count(entry.size)?;
        let written = self.out.file(path, entry.mode & COPIED_MODE, entry.size, &mut reader, base.as_ref());
        let written = written.map_err(|error| to_error(OPERATION, &error))?;
        let is_whole = written == entry.size && reader.read(&mut [0]).is_ok_and(|count| count == 0);
        if !is_whole {
            self.summary.skip(path.to_owned(), SkipReason::ChangedMeanwhile);
        }
        Ok(())
    }

    fn open(&self, guest_path: &SandboxPath) -> Result<SyncIoBridge<FileReader>> {
        let reader = self.runtime.block_on(self.sandbox.read_file(guest_path))?;
        Ok(SyncIoBridge::new_with_handle(reader, self.runtime.clone()))
    }

    fn digest(&self, guest_path: &SandboxPath) -> Result<[u8; 32]> {
        let mut reader = self.open(guest_path)?;
        let mut hash = Sha256::new();
        let mut piece = vec![0; PIECE];
        loop {
            let count = reader.read(&mut piece).map_err(|error| {
                Error::new(ErrorKind::Io, OPERATION, "cannot read a file of the workspace").with_source(error)
            })?;
            if count == 0 {
                return Ok(hash.finalize().into());
            }
            hash.update(&piece[..count]);
        }
    }

    /// Describes the file of the host that a file of kind `to` replaces.
    fn base_of(&self, path: &Path, to: Option<EntryKind>) -> Option<fingerprint::Base> {
        let file = self.base.files.get(path)?;
        let replaces_tree = file.content == BaseContent::Directory && to != Some(EntryKind::Directory);
        let tree = replaces_tree.then(|| {
            let below = (Bound::Excluded(path.to_owned()), Bound::Unbounded);
            let below = self.base.files.range(below).take_while(|(below, _)| below.starts_with(path));
            let relative = below.filter_map(|(below, file)| Some((below.strip_prefix(path).ok()?.to_owned(), file)));
            Subtree { files: relative.map(|(path, file)| (path, file.fingerprint)).collect() }.digest()
        });
        Some(fingerprint::Base { fingerprint: file.fingerprint, tree })
    }

    fn count(&mut self, size: u64) -> Result<()> {
        let Bounds { max_entries, max_bytes } = self.bounds;
        if self.summary.entries >= max_entries {
            return Err(too_large("entries", max_entries as u64));
        }
        self.summary.bytes = self.summary.bytes.saturating_add(size);
        if self.summary.bytes > max_bytes {
            return Err(too_large("bytes", max_bytes));
        }
        self.summary.entries += 1;
        Ok(())
    }

    /// Skips a file that cannot be read because of what the guest made of it. Other errors end the comparison.
    fn unreadable(&mut self, path: &Path, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::PathEscape | ErrorKind::Denied => {
                self.summary.skip(path.to_owned(), SkipReason::Unreadable);
                Ok(())
            }
            _ => Err(error),
        }
    }
}

fn too_large(what: &'static str, max: u64) -> Error {
    to_error(OPERATION, &ChangesError::TooLarge { what, max })
}
