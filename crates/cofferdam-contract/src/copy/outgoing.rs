//! Copies out of a workspace.
//!
//! The guest may change everything meanwhile. A path that becomes a symlink leads to another file of the workspace at
//! most, since the file API follows links inside only. Depth, counts and sizes are bounded.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::pattern::Positions;
use super::{CopyOut, CopyReport, CopySkipped};
use crate::archive::{TarEntry, TarKind, TarWriter};
use crate::{COPIED_MODE, DirEntry, EntryKind, Error, ErrorKind, FileReader, Result, Sandbox, SandboxPath};

const OPERATION: &str = "copy_out";
/// The maximum depth of directories.
const MAX_DEPTH: usize = 128;
/// The maximum number of entries of all listed directories.
const MAX_VISITED: usize = 1_000_000;
/// The beginning of names that mean deletions in layers of images.
const RESERVED: &str = ".wh.";
const SET_ID: u32 = 0o6000;
const PIECE: usize = 128 * 1024;

/// Writes the selected files of a workspace as an archive.
pub(crate) async fn copy_out<S: Sandbox + ?Sized>(
    sandbox: &S,
    wanted: &CopyOut,
    into: &mut (dyn AsyncWrite + Send + Unpin),
) -> Result<CopyReport> {
    let mut out = Outgoing {
        sandbox,
        wanted,
        tar: TarWriter::new(into, OPERATION),
        report: CopyReport::default(),
        visited: 0,
        is_matched: vec![false; wanted.patterns.len()],
    };
    out.walk().await?;
    let Outgoing { tar, mut report, is_matched, .. } = out;
    tar.finish().await?;
    let unmatched = wanted.patterns.iter().zip(is_matched).filter(|(_, is_matched)| !is_matched);
    report.unmatched = unmatched.map(|(pattern, _)| pattern.to_string()).collect();
    Ok(report)
}

/// A directory during the walk.
struct Level {
    /// The path relative to the top of the copy.
    path: String,
    /// The directory's own entry, until it is written: above its first selected entry.
    own: Option<TarEntry>,
    /// The remaining entries in reverse order.
    left: Vec<DirEntry>,
    selected: Selected,
}

/// The selection of a directory.
enum Selected {
    /// Everything in it.
    Whole,
    /// The matches of the patterns from these positions on.
    Partly(Vec<Positions>),
}

struct Outgoing<'a, S: ?Sized> {
    sandbox: &'a S,
    wanted: &'a CopyOut,
    tar: TarWriter<&'a mut (dyn AsyncWrite + Send + Unpin)>,
    report: CopyReport,
    visited: usize,
    is_matched: Vec<bool>,
}

impl<S: Sandbox + ?Sized> Outgoing<'_, S> {
    async fn walk(&mut self) -> Result<()> {
        let patterns = &self.wanted.patterns;
        let selected = match patterns.is_empty() {
            true => Selected::Whole,
            false => Selected::Partly(patterns.iter().map(|pattern| pattern.start()).collect()),
        };
        let left = self.list(&self.wanted.from).await?;
        let mut levels = vec![Level { path: String::new(), own: None, left, selected }];
        while let Some(level) = levels.last_mut() {
            let Some(entry) = level.left.pop() else {
                levels.pop();
                continue;
            };
            let Some(selected) = self.select(&level.selected, &entry.name) else { continue };
            let path =
                if level.path.is_empty() { entry.name.clone() } else { format!("{}/{}", level.path, entry.name) };
            let is_directory = entry.kind == EntryKind::Directory;
            // A file on the way to a match is none itself.
            if !is_directory && matches!(selected, Selected::Partly(_)) {
                continue;
            }
            let Some(sandbox_path) = self.sandbox_path(&path, &entry, levels.len()) else { continue };
            if let Selected::Whole = selected {
                self.open(&mut levels).await?;
            }
            match entry.kind {
                EntryKind::Directory => {
                    let own = tar_entry(&path, &entry, TarKind::Directory);
                    self.note_set_id(&path, &entry);
                    let own = match selected {
                        Selected::Whole => self.add(&own, 0).await.map(|()| None)?,
                        Selected::Partly(_) => Some(own),
                    };
                    match self.list(&sandbox_path).await {
                        Ok(left) => levels.push(Level { path, own, left, selected }),
                        Err(error) => self.unreadable(&path, error)?,
                    }
                }
                EntryKind::File => self.file(&path, &sandbox_path, &entry).await?,
                EntryKind::Symlink => self.symlink(&path, &entry).await?,
                EntryKind::Other => self.report.skip(&path, CopySkipped::NotAFile),
            }
        }
        Ok(())
    }

    /// Returns the selection of an entry, or `None` if neither it nor anything below is selected.
    fn select(&mut self, above: &Selected, name: &str) -> Option<Selected> {
        let Selected::Partly(positions) = above else { return Some(Selected::Whole) };
        let patterns = &self.wanted.patterns;
        let next: Vec<_> = patterns.iter().zip(positions).map(|(pattern, at)| pattern.step(*at, name)).collect();
        let mut whole = false;
        for ((pattern, at), is_matched) in patterns.iter().zip(&next).zip(&mut self.is_matched) {
            if pattern.is_match(*at) {
                (whole, *is_matched) = (true, true);
            }
        }
        match whole {
            true => Some(Selected::Whole),
            false if next.iter().all(|at| at.is_none()) => None,
            false => Some(Selected::Partly(next)),
        }
    }

    /// Returns the path of an entry in the workspace, unless it has to be skipped.
    fn sandbox_path(&mut self, path: &str, entry: &DirEntry, depth: usize) -> Option<SandboxPath> {
        let reason = if entry.name.starts_with(RESERVED) {
            CopySkipped::Reserved
        } else if entry.name.contains('/') || matches!(entry.name.as_str(), "" | "." | "..") {
            // Only a guest's own agent could report such a name.
            CopySkipped::Unreadable
        } else if entry.name.contains(char::REPLACEMENT_CHARACTER) {
            CopySkipped::NotText
        } else if depth > MAX_DEPTH {
            CopySkipped::TooDeep
        } else {
            match self.wanted.from.join(path) {
                Ok(sandbox_path) => return Some(sandbox_path),
                Err(_) => CopySkipped::TooDeep,
            }
        };
        self.report.skip(path, reason);
        None
    }

    async fn list(&mut self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let mut listed = self.sandbox.list_dir(path).await?;
        self.visited += listed.len();
        if self.visited > MAX_VISITED {
            return Err(too_large(format!("more than {MAX_VISITED} files would have to be searched")));
        }
        listed.reverse();
        Ok(listed)
    }

    /// Writes the entries of the directories above a selected file.
    async fn open(&mut self, levels: &mut [Level]) -> Result<()> {
        for level in levels {
            if let Some(own) = level.own.take() {
                self.add(&own, 0).await?;
            }
        }
        Ok(())
    }

    /// Writes an entry, within the bounds.
    async fn add(&mut self, entry: &TarEntry, size: u64) -> Result<()> {
        let CopyOut { max_entries, max_bytes, .. } = self.wanted;
        if self.report.entries >= *max_entries {
            return Err(too_large(format!("more than {max_entries} files are selected")));
        }
        let bytes = self.report.bytes.checked_add(size).filter(|bytes| *bytes <= max_bytes.as_bytes());
        self.report.bytes =
            bytes.ok_or_else(|| too_large(format!("the selected files are larger than {max_bytes}")))?;
        self.report.entries += 1;
        self.tar.entry(entry).await
    }

    async fn file(&mut self, path: &str, sandbox_path: &SandboxPath, entry: &DirEntry) -> Result<()> {
        let reader = match self.sandbox.read_file(sandbox_path).await {
            Ok(reader) => reader,
            Err(error) => return self.unreadable(path, error),
        };
        self.note_set_id(path, entry);
        self.add(&tar_entry(path, entry, TarKind::File(entry.size)), entry.size).await?;
        if !self.contents(reader, entry.size).await? {
            self.report.skip(path, CopySkipped::ChangedMeanwhile);
        }
        self.tar.pad(entry.size).await
    }

    /// Copies the contents of a file. Returns false if its size has changed: it is then cut or filled with zeros.
    async fn contents(&mut self, mut reader: FileReader, size: u64) -> Result<bool> {
        let mut piece = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE)).max(1)];
        let mut left = size;
        while left > 0 {
            let max = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = read(&mut reader, &mut piece[..max]).await?;
            if count == 0 {
                break;
            }
            self.tar.contents(&piece[..count]).await?;
            left -= count as u64;
        }
        let is_whole = left == 0 && read(&mut reader, &mut [0]).await? == 0;
        piece.fill(0);
        while left > 0 {
            let count = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.tar.contents(&piece[..count]).await?;
            left -= count as u64;
        }
        Ok(is_whole)
    }

    async fn symlink(&mut self, path: &str, entry: &DirEntry) -> Result<()> {
        match entry.target.as_deref() {
            Some("") | None => self.report.skip(path, CopySkipped::Unreadable),
            Some(target) if target.contains(char::REPLACEMENT_CHARACTER) => {
                self.report.skip(path, CopySkipped::NotText);
            }
            Some(target) => {
                let kind = TarKind::Symlink(target.as_bytes().to_vec());
                self.add(&tar_entry(path, entry, kind), 0).await?;
            }
        }
        Ok(())
    }

    fn note_set_id(&mut self, path: &str, entry: &DirEntry) {
        if entry.mode & SET_ID != 0 {
            self.report.skip(path, CopySkipped::SetId);
        }
    }

    /// Skips a file that cannot be read because of what the guest made of it. Other errors end the copy.
    fn unreadable(&mut self, path: &str, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::PathEscape | ErrorKind::Denied => {
                self.report.skip(path, CopySkipped::Unreadable);
                Ok(())
            }
            _ => Err(error.with_context("path", path.escape_debug().to_string())),
        }
    }
}

fn tar_entry(path: &str, entry: &DirEntry, kind: TarKind) -> TarEntry {
    TarEntry { kind, path: path.as_bytes().to_vec(), mode: entry.mode & COPIED_MODE, modified: entry.modified }
}

async fn read(reader: &mut (impl AsyncRead + Unpin), into: &mut [u8]) -> Result<usize> {
    reader.read(into).await.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).cloned();
        inner.unwrap_or_else(|| Error::new(ErrorKind::Io, OPERATION, "cannot read a file").with_source(error))
    })
}

fn too_large(what: String) -> Error {
    Error::new(ErrorKind::ResourceExhausted, OPERATION, format!("the copy is too large: {what}"))
        .with_remedy("select fewer files, or raise the limit of the copy")
}
