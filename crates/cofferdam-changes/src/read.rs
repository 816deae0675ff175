//! Reader of a change set, which accepts nothing but what the format allows.

use std::collections::btree_map::{BTreeMap, Entry};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self as std_io, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tar::EntryType;

use crate::blocks::{Blocks, Member};
use crate::bounds::{Bounds, MAX_NAMES};
use crate::change::{Change, Node};
use crate::error::{ChangesError, Result, malformed};
use crate::fingerprint::{Base, FileKind};
use crate::glob::Globs;
use crate::header::Header;
use crate::names;

/// A change set whose structure is checked. Contents of files stay in its file until they are needed.
#[derive(Debug)]
pub struct ChangeSet {
    header: Header,
    changes: Vec<Change>,
    cleared: Vec<PathBuf>,
    selected: Globs,
    file: File,
}

impl ChangeSet {
    /// Reads a change set from its file, which only this user can change.
    ///
    /// # Errors
    ///
    /// [`ChangesError::Malformed`] with the first entry that violates the format, [`ChangesError::TooLarge`], and those
    /// of the operating system.
    pub fn read(file: File, bounds: &Bounds) -> Result<Self> {
        let mut blocks = Blocks::new(&file)?;
        let header = blocks.global()?;
        let mut parser =
            Parser { bounds: *bounds, changes: BTreeMap::new(), cleared: BTreeMap::new(), bytes: 0, names: 0 };
        while let Some(member) = blocks.next()? {
            parser.add(member)?;
        }
        parser.check_parents()?;
        let changes = parser.changes.into_iter().map(|(path, (node, base))| Change::new(path, node, base)).collect();
        Ok(Self { header, changes, cleared: parser.cleared.into_keys().collect(), selected: Globs::default(), file })
    }

    /// Restricts reviews and applications to paths that match. All do, if there is no pattern.
    #[must_use]
    pub fn select(self, selected: Globs) -> Self {
        Self { selected, ..self }
    }

    /// Returns true if a path is a part of reviews and applications.
    pub(crate) fn is_selected(&self, path: &Path) -> bool {
        self.selected.is_empty() || self.selected.matches(path)
    }

    /// Returns the properties of the change set.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the changes in the order of paths. A directory precedes its contents.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Returns directories from which everything is deleted that the change set does not contain. Captures of this
    /// crate contain the deletions instead.
    #[must_use]
    pub fn cleared(&self) -> &[PathBuf] {
        &self.cleared
    }

    /// Returns the change of a path.
    #[must_use]
    pub fn get(&self, path: &Path) -> Option<&Change> {
        let at = self.changes.binary_search_by(|change| change.path.as_path().cmp(path)).ok()?;
        self.changes.get(at)
    }

    /// Returns true if the change set has a file at a path, or below it.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        let at = self.changes.partition_point(|change| change.path.as_path() < path);
        let below = self.changes[at..].iter().take_while(|change| change.path.starts_with(path));
        below.take(2).any(|change| change.node.is_some())
    }

    /// Returns the size of all contents, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.changes.iter().map(Change::size).fold(0, u64::saturating_add)
    }

    /// Returns a reader of the contents of a file. Other types have no contents.
    #[must_use]
    pub fn content(&self, node: &Node) -> Content<'_> {
        match *node {
            Node::File { size, offset, .. } => Content { file: &self.file, at: offset, left: size },
            _ => Content { file: &self.file, at: 0, left: 0 },
        }
    }
}

/// A reader of the contents of one file.
#[derive(Debug)]
pub struct Content<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std_io::Result<usize> {
        let max = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if max == 0 {
            return Ok(0);
        }
        let length = self.file.read_at(&mut buffer[..max], self.at)?;
        if length == 0 {
            return Err(std_io::ErrorKind::UnexpectedEof.into());
        }
        (self.at, self.left) = (self.at + length as u64, self.left - length as u64);
        Ok(length)
    }
}

struct Parser {
    bounds: Bounds,
    changes: BTreeMap<PathBuf, (Option<Node>, Option<Base>)>,
    cleared: BTreeMap<PathBuf, ()>,
    bytes: u64,
    /// Length of all names.
    names: usize,
}

impl Parser {
    fn add(&mut self, member: Member) -> Result<()> {
        self.count(&member)?;
        let wrong = |reason: &str| malformed(&member.path, reason);
        let Some(path) = stripped(&member.path, member.kind) else { return Ok(()) };
        let path = match path {
            // The whiteout of everything in the workspace itself.
            names::OPAQUE => return self.clear(PathBuf::new(), &member),
            _ => names::parse(path)?,
        };
        if names::is_reserved(path.parent().unwrap_or(Path::new(""))) {
            return Err(wrong("an entry is below a whiteout"));
        }
        let name = path.file_name().unwrap_or_default().as_bytes();
        if name == names::OPAQUE {
            return self.clear(path.parent().unwrap_or(Path::new("")).to_owned(), &member);
        }
        let (path, node) = match name.strip_prefix(names::WHITEOUT) {
            Some(deleted) => (path.with_file_name(deleted_name(deleted, &member)?), None),
            None => (path, Some(node(&member)?)),
        };
        if member.tree.is_some() && member.base.is_none_or(|base| base.kind != FileKind::Directory) {
            return Err(wrong("the digest of a tree belongs to no directory"));
        }
        let base = member.base.map(|fingerprint| Base { fingerprint, tree: member.tree.clone() });
        match self.changes.entry(path) {
            Entry::Occupied(_) => Err(wrong("the path occurs twice")),
            Entry::Vacant(entry) => {
                entry.insert((node, base));
                Ok(())
            }
        }
    }

    fn count(&mut self, member: &Member) -> Result<()> {
        let too_large = |what, max| Err(ChangesError::TooLarge { what, max });
        self.names = self.names.saturating_add(member.path.len()).saturating_add(member.target.len());
        self.bytes = self.bytes.saturating_add(member.size);
        if self.changes.len() + self.cleared.len() >= self.bounds.max_entries {
            return too_large("entries", self.bounds.max_entries as u64);
        }
        if self.names > MAX_NAMES {
            return too_large("bytes in names", MAX_NAMES as u64);
        }
        if self.bytes > self.bounds.max_bytes {
            return too_large("bytes", self.bounds.max_bytes);
        }
        Ok(())
    }

    fn clear(&mut self, path: PathBuf, member: &Member) -> Result<()> {
        check_whiteout(member)?;
        match self.cleared.insert(path, ()) {
            None => Ok(()),
            Some(()) => Err(malformed(&member.path, "the path occurs twice")),
        }
    }

    /// Checks that nothing is below a file, a link or a deleted path.
    fn check_parents(&self) -> Result<()> {
        let is_directory =
            |path: &Path| self.changes.get(path).is_none_or(|(node, _)| matches!(node, Some(Node::Directory { .. })));
        let below =
            |path: &Path| malformed(path.as_os_str().as_bytes(), "the entry is below a path that is not a directory");
        // In this order, the paths below a path follow it directly.
        let mut closed: Option<&Path> = None;
        for path in self.changes.keys() {
            if closed.is_some_and(|closed| path.starts_with(closed)) {
                return Err(below(path));
            }
            closed = (!is_directory(path)).then_some(path);
        }
        let outside = self.cleared.keys().find(|path| path.ancestors().any(|path| !is_directory(path)));
        outside.map_or(Ok(()), |path| Err(below(path)))
    }
}

/// Removes what other writers put around a path. Returns `None` for the workspace itself, whose permissions stay.
fn stripped(path: &[u8], kind: EntryType) -> Option<&[u8]> {
    let directory = kind == EntryType::Directory;
    if directory && matches!(path, b"." | b"./") {
        return None;
    }
    let path = path.strip_prefix(b"./").unwrap_or(path);
    Some(path.strip_suffix(b"/").filter(|_| directory).unwrap_or(path))
}

fn check_whiteout(member: &Member) -> Result<()> {
    let plain = member.kind == EntryType::Regular && member.size == 0 && member.target.is_empty();
    if plain { Ok(()) } else { Err(malformed(&member.path, "a whiteout is not an empty file")) }
}

fn deleted_name(name: &[u8], member: &Member) -> Result<OsString> {
    check_whiteout(member)?;
    match name {
        b"" | b"." | b".." => Err(malformed(&member.path, "a whiteout has no name")),
        _ if name.starts_with(names::WHITEOUT) => Err(malformed(&member.path, "the kind of whiteout is unknown")),
        _ => Ok(OsStr::from_bytes(name).to_owned()),
    }
}

fn node(member: &Member) -> Result<Node> {
    let wrong = |reason: &str| Err(malformed(&member.path, reason));
    let Member { size, mode, offset, .. } = *member;
    match member.kind {
        EntryType::Regular if !member.target.is_empty() => wrong("a file has the target of a link"),
        EntryType::Regular => Ok(Node::File { size, mode, offset }),
        _ if size != 0 => wrong("only a file has contents"),
        EntryType::Directory => Ok(Node::Directory { mode }),
        EntryType::Symlink => {
            let target = OsString::from_vec(member.target.clone());
            names::check_target(Path::new(OsStr::from_bytes(&member.path)), &target)?;
            Ok(Node::Symlink { target })
        }
        EntryType::Link => wrong("hard links are not allowed"),
        EntryType::Block | EntryType::Char | EntryType::Fifo => wrong("devices and fifos are not allowed"),
        _ => wrong("the type of the entry is not allowed"),
    }
}
