//! What only the file API does: directories on the way, whole files at once, whole trees away, sorted lists.

use super::tree::{Body, Ino, Kind, Tree};
use super::walk::{Base, LastLink};
use super::{Contents, FsError, FsResult};

impl Tree {
    /// The entries of a directory, sorted by name; `None` if there are more than `most`.
    pub(crate) fn list(&self, ino: Ino, most: usize) -> FsResult<Option<Vec<(String, Kind, u64)>>> {
        let directory = self.directory(ino)?;
        if directory.entries.len() > most {
            return Ok(None);
        }
        let entry = |(name, ino): (&str, Ino)| {
            let stat = self.stat(ino)?;
            let size = if stat.kind == Kind::File { stat.size } else { 0 };
            Ok((name.to_owned(), stat.kind, size))
        };
        directory.entries.iter().map(|(name, found)| entry((name, found.ino))).collect::<FsResult<_>>().map(Some)
    }

    /// A plain file for reading; the copy shares its bytes.
    pub(crate) fn file(&self, base: Base<'_>, path: &str) -> FsResult<Contents> {
        self.contents(self.find(base, path, LastLink::Follow)?).cloned()
    }

    /// A file without a name, to be filled and then put in place, or let go. It is held once.
    pub(crate) fn nameless_file(&mut self, now: u64) -> FsResult<Ino> {
        let ino = self.add(Body::File(Contents::default()), now)?;
        self.hold(ino)?;
        Ok(ino)
    }

    /// Gives a nameless file its name, with the directories above it; a plain file of that name is replaced.
    pub(crate) fn put_in_place(&mut self, base: Base<'_>, path: &str, file: Ino, now: u64) -> FsResult<()> {
        let place = loop {
            match self.walk(base, path, LastLink::Follow) {
                Err(FsError::NotFound) => self.make_one_above(base, path, now)?,
                walked => break walked?,
            }
        };
        let (parent, name) = place.entry().map_err(|_| FsError::IsADirectory)?;
        if let Some(old) = place.ino {
            // Not a plain file: the answer says what it is.
            self.contents(old)?;
            self.unlink(parent, &name, now)?;
            self.drop_unused(old);
        }
        self.link(parent, &name, file, now)
    }

    /// Makes the first directory above `path` that is missing.
    fn make_one_above(&mut self, base: Base<'_>, path: &str, now: u64) -> FsResult<()> {
        let ends = path.char_indices().filter(|(_, letter)| *letter == '/').map(|(at, _)| at);
        for end in ends {
            match self.find(base, &path[..end], LastLink::Follow) {
                Err(FsError::NotFound) => {
                    // A link that leads to nothing is not made into something.
                    let place = self.walk(base, &path[..end], LastLink::Keep)?;
                    if place.ino.is_some() {
                        return Err(FsError::NotFound);
                    }
                    return self.make_directory(base, &path[..end], now).map(drop);
                }
                found => drop(found?),
            }
        }
        Err(FsError::NotFound)
    }

    /// Takes away an entry with everything below it.
    pub(crate) fn remove_all(&mut self, base: Base<'_>, path: &str, now: u64) -> FsResult<()> {
        let place = self.walk(base, path, LastLink::Keep)?;
        let top = place.ino.ok_or(FsError::NotFound)?;
        let (parent, name) = place.entry()?;
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
