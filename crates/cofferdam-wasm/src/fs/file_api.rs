//! Operations of the file API alone: missing parent directories, whole files, recursive removal, sorted lists.

use super::tree::{Body, Ino, Kind, Tree};
use super::walk::{Base, LastLink};
use super::{Contents, FsError, FsResult};

impl Tree {
    /// Returns the entries of a directory, sorted by name; `None` if there are more than `max`.
    pub(crate) fn list(&self, ino: Ino, max: usize) -> FsResult<Option<Vec<(String, Kind, u64)>>> {
        let directory = self.directory(ino)?;
        if directory.entries.len() > max {
            return Ok(None);
        }
        let entry = |(name, ino): (&str, Ino)| {
            let stat = self.stat(ino)?;
            let size = if stat.kind == Kind::File { stat.size } else { 0 };
            Ok((name.to_owned(), stat.kind, size))
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
