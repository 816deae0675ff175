//! Operations of the file API alone: missing parent directories, whole files, permissions, recursive removal, sorted
//! lists.

use cofferdam_contract::{COPIED_MODE, DirEntry, EntryKind};

use super::operations::{SetTime, Stat};
use super::tree::{Body, Ino, Kind, Tree};
use super::walk::{Base, LastLink};
use super::{Contents, FsError, FsResult};

/// Nanoseconds in a second.
const NANOS: u64 = 1_000_000_000;

impl Tree {
    /// Returns the entries of a directory, sorted by name; `None` if there are more than `max`.
    pub(crate) fn list(&self, ino: Ino, max: usize) -> FsResult<Option<Vec<DirEntry>>> {
        let directory = self.directory(ino)?;
        if directory.entries.len() > max {
            return Ok(None);
        }
        let entry = |(name, ino): (&str, Ino)| {
            let Stat { kind, size, times, mode, .. } = self.stat(ino)?;
            let (kind, size) = match kind {
                Kind::File => (EntryKind::File, size),
                Kind::Directory => (EntryKind::Directory, 0),
                Kind::Symlink => (EntryKind::Symlink, 0),
            };
            let target = match &self.node(ino)?.body {
                Body::Symlink(target) => Some(target.to_string()),
                _ => None,
            };
            let modified = i64::try_from(times.modified / NANOS).unwrap_or(i64::MAX);
            Ok(DirEntry { name: name.to_owned(), kind, size, mode, modified, target })
        };
        directory.entries.iter().map(|(name, found)| entry((name, found.ino))).collect::<FsResult<_>>().map(Some)
    }

    /// Returns the content of a regular file. The copy shares its bytes.
    pub(crate) fn file(&self, base: Base<'_>, path: &str) -> FsResult<Contents> {
        self.contents(self.find(base, path, LastLink::Follow)?).cloned()
    }

    /// Creates a file without a name and acquires it once. The caller fills it, then links or releases it.
    pub(crate) fn nameless_file(&mut self, now: u64) -> FsResult<Ino> {
        let ino = self.add(Body::File(Contents::default()), now)?;
        self.acquire(ino)?;
        Ok(ino)
    }

    /// Links a nameless file, and creates missing parent directories. A regular file of that name is replaced.
    pub(crate) fn link_file(&mut self, base: Base<'_>, path: &str, file: Ino, now: u64) -> FsResult<()> {
        let resolved = loop {
            match self.walk(base, path, LastLink::Follow) {
                Err(FsError::NotFound) => self.create_missing_parent(base, path, now)?,
                walked => break walked?,
            }
        };
        let (parent, name) = resolved.entry().map_err(|_| FsError::IsADirectory)?;
        if let Some(old) = resolved.ino {
            // Returns an error if it is not a regular file.
            self.contents(old)?;
            self.unlink(parent, &name, now)?;
            self.drop_unused(old);
        }
        self.link(parent, &name, file, now)
    }

    /// Creates the first missing directory above `path`.
    fn create_missing_parent(&mut self, base: Base<'_>, path: &str, now: u64) -> FsResult<()> {
        let ends = path.char_indices().filter(|(_, letter)| *letter == '/').map(|(at, _)| at);
        for end in ends {
            match self.find(base, &path[..end], LastLink::Follow) {
                Err(FsError::NotFound) => {
                    // A dangling link is not replaced by a directory.
                    let resolved = self.walk(base, &path[..end], LastLink::Keep)?;
                    if resolved.ino.is_some() {
                        return Err(FsError::NotFound);
                    }
                    return self.make_directory(base, &path[..end], now).map(drop);
                }
                found => drop(found?),
            }
        }
        Err(FsError::NotFound)
    }

    /// Puts a nameless file at a path below a directory, with its permissions and the time of its last change in
    /// seconds. No link is followed; a file or link at the path is replaced.
    pub(crate) fn put_file(
        &mut self,
        top: Ino,
        path: &str,
        file: Ino,
        (mode, modified): (u32, i64),
        now: u64,
    ) -> FsResult<()> {
        let (parent, name) = self.strict_parent(top, path, now)?;
        self.replace(parent, name, now)?;
        self.link(parent, name, file, now)?;
        self.node_mut(file)?.mode = mode & COPIED_MODE;
        let modified = u64::try_from(modified).unwrap_or(0).saturating_mul(NANOS);
        self.set_times(file, SetTime { accessed: None, modified: Some(modified) }, now)
    }

    /// Creates a directory at a path below another one, or changes the permissions of an existing one. No link is
    /// followed.
    pub(crate) fn put_directory(&mut self, top: Ino, path: &str, mode: u32, now: u64) -> FsResult<()> {
        let (parent, name) = self.strict_parent(top, path, now)?;
        let ino = self.enter(parent, name, now).map_err(|error| match error {
            FsError::Escape => FsError::Exists,
            other => other,
        })?;
        self.node_mut(ino)?.mode = mode & COPIED_MODE;
        Ok(())
    }

    /// Creates a symlink at a path below a directory. No link is followed; a file or link at the path is replaced.
    pub(crate) fn put_symlink(&mut self, top: Ino, path: &str, target: &str, now: u64) -> FsResult<()> {
        let (parent, name) = self.strict_parent(top, path, now)?;
        self.replace(parent, name, now)?;
        self.make_symlink(Base { ino: parent, name: None }, name, target, now)
    }

    /// Returns the directory above a path, and the last name. Creates missing directories and follows no link.
    fn strict_parent<'a>(&mut self, top: Ino, path: &'a str, now: u64) -> FsResult<(Ino, &'a str)> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut ino = top;
        for part in above.split('/').filter(|part| !part.is_empty()) {
            ino = self.enter(ino, part, now)?;
        }
        if name.is_empty() { Err(FsError::IsADirectory) } else { Ok((ino, name)) }
    }

    /// Returns a directory in another one, and creates it if it is missing. A link is an escape.
    fn enter(&mut self, parent: Ino, name: &str, now: u64) -> FsResult<Ino> {
        let Some(ino) = self.directory(parent)?.entries.get(name).map(|entry| entry.ino) else {
            return self.make_directory(Base { ino: parent, name: None }, name, now);
        };
        match self.node(ino)?.kind() {
            Kind::Directory => Ok(ino),
            Kind::Symlink => Err(FsError::Escape),
            Kind::File => Err(FsError::NotADirectory),
        }
    }

    /// Removes a file or link, if there is one.
    fn replace(&mut self, parent: Ino, name: &str, now: u64) -> FsResult<()> {
        let Some(ino) = self.directory(parent)?.entries.get(name).map(|entry| entry.ino) else { return Ok(()) };
        if self.is_directory(ino) {
            return Err(FsError::IsADirectory);
        }
        self.unlink(parent, name, now)?;
        self.drop_unused(ino);
        Ok(())
    }

    /// Removes an entry with everything below it.
    pub(crate) fn remove_all(&mut self, base: Base<'_>, path: &str, now: u64) -> FsResult<()> {
        let resolved = self.walk(base, path, LastLink::Keep)?;
        let top = resolved.ino.ok_or(FsError::NotFound)?;
        let (parent, name) = resolved.entry()?;
        self.unlink(parent, &name, now)?;
        let mut doomed = vec![top];
        while let Some(ino) = doomed.pop() {
            if let Ok(directory) = self.directory(ino) {
                let names: Vec<_> = directory.entries.keys().cloned().collect();
                for name in names {
                    doomed.push(self.unlink(ino, &name, now)?);
                }
            }
            self.drop_unused(ino);
        }
        Ok(())
    }
}
