//! File system operations, used by guests and by the file API.

use std::sync::Arc;

use super::contents::MAX_LENGTH;
use super::tree::{Body, FIRST_ORDER, Ino, Kind, Times, Tree};
use super::walk::{Base, LastLink, Resolved};
use super::{Contents, FsError, FsResult};

const MAX_TARGET: usize = 4096;

/// The metadata of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) ino: Ino,
    pub(crate) kind: Kind,
    pub(crate) links: u64,
    pub(crate) size: u64,
    pub(crate) times: Times,
    pub(crate) mode: u32,
}

/// The options of an open call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OpenHow {
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    pub(crate) directory: bool,
    /// True if the call can create or change files.
    pub(crate) writes: bool,
}

/// The new times of a node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SetTime {
    pub(crate) accessed: Option<u64>,
    pub(crate) modified: Option<u64>,
}

/// A directory entry, with the position of the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) name: Arc<str>,
    pub(crate) ino: Ino,
    pub(crate) kind: Kind,
    pub(crate) next: u64,
}

impl Tree {
    pub(crate) fn stat(&self, ino: Ino) -> FsResult<Stat> {
        let node = self.node(ino)?;
        let size = match &node.body {
            Body::File(contents) => contents.length(),
            Body::Directory(_) => 0,
            Body::Symlink(target) => target.len() as u64,
        };
        Ok(Stat { ino, kind: node.kind(), links: node.links, size, times: node.times, mode: node.mode })
    }

    pub(crate) fn lookup(&self, base: Base<'_>, path: &str, last: LastLink) -> FsResult<Ino> {
        self.find(base, path, last)
    }

    /// Opens the existing node, or creates a file. The node is not acquired yet.
    pub(crate) fn open(&mut self, base: Base<'_>, path: &str, last: LastLink, how: OpenHow, now: u64) -> FsResult<Ino> {
        // An exclusive create must not follow a link.
        let last = if how.create && how.exclusive { LastLink::Keep } else { last };
        let resolved = self.walk(base, path, last)?;
        let Some(ino) = resolved.ino else {
            if !how.create {
                return Err(FsError::NotFound);
            }
            if resolved.must_be_directory {
                return Err(FsError::IsADirectory);
            }
            let (parent, name) = resolved.entry()?;
            return self.make(parent, &name, Body::File(Contents::default()), now);
        };
        if how.create && how.exclusive {
            return Err(FsError::Exists);
        }
        match self.node(ino)?.kind() {
            Kind::Symlink => return Err(FsError::TooManyLinks),
            Kind::Directory if how.writes || how.create || how.truncate => return Err(FsError::IsADirectory),
            Kind::Directory => {}
            Kind::File if how.directory || resolved.must_be_directory => return Err(FsError::NotADirectory),
            Kind::File if how.truncate => self.set_length(ino, 0, now)?,
            Kind::File => {}
        }
        Ok(ino)
    }

    /// Creates a node with its first entry, or neither.
    fn make(&mut self, parent: Ino, name: &str, body: Body, now: u64) -> FsResult<Ino> {
        self.directory(parent)?;
        let ino = self.add(body, now)?;
        match self.link(parent, name, ino, now) {
            Ok(()) => Ok(ino),
            Err(error) => {
                self.drop_unused(ino);
                Err(error)
            }
        }
    }

    pub(crate) fn make_directory(&mut self, base: Base<'_>, path: &str, now: u64) -> FsResult<Ino> {
        let resolved = self.walk(base, path, LastLink::Keep)?;
        if resolved.ino.is_some() {
            return Err(FsError::Exists);
        }
        let (parent, name) = resolved.entry()?;
        let ino = self.new_directory(parent, now)?;
        match self.link(parent, &name, ino, now) {
            Ok(()) => Ok(ino),
            Err(error) => {
                self.drop_unused(ino);
                Err(error)
            }
        }
    }

    pub(crate) fn make_symlink(&mut self, base: Base<'_>, path: &str, target: &str, now: u64) -> FsResult<()> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > MAX_TARGET {
            return Err(FsError::NameTooLong);
        }
        if target.contains('\0') {
            return Err(FsError::Invalid);
        }
        let resolved = self.walk(base, path, LastLink::Keep)?;
        if resolved.ino.is_some() {
            return Err(FsError::Exists);
        }
        if resolved.must_be_directory {
            return Err(FsError::NotFound);
        }
        let (parent, name) = resolved.entry()?;
        self.make(parent, &name, Body::Symlink(target.into()), now).map(drop)
    }

    /// Creates a symlink for a guest. An absolute target cannot be followed in a directory without an absolute name, and
    /// is refused there as by other WASI implementations.
    pub(crate) fn make_guest_symlink(&mut self, base: Base<'_>, path: &str, target: &str, now: u64) -> FsResult<()> {
        if target.starts_with('/') && base.name.is_none() {
            return Err(FsError::NotPermitted);
        }
        self.make_symlink(base, path, target, now)
    }

    pub(crate) fn read_link(&self, base: Base<'_>, path: &str) -> FsResult<Arc<str>> {
        match &self.node(self.find(base, path, LastLink::Keep)?)?.body {
            Body::Symlink(target) => Ok(Arc::clone(target)),
            _ => Err(FsError::Invalid),
        }
    }

    /// Adds another name for a file or symlink.
    pub(crate) fn hard_link(
        &mut self,
        from: (Base<'_>, &str),
        to: (Base<'_>, &str),
        last: LastLink,
        now: u64,
    ) -> FsResult<()> {
        let ino = self.find(from.0, from.1, last)?;
        if self.node(ino)?.kind() == Kind::Directory {
            return Err(FsError::NotPermitted);
        }
        let resolved = self.walk(to.0, to.1, LastLink::Keep)?;
        if resolved.ino.is_some() {
            return Err(FsError::Exists);
        }
        if resolved.must_be_directory {
            return Err(FsError::NotFound);
        }
        let (parent, name) = resolved.entry()?;
        self.link(parent, &name, ino, now)
    }

    pub(crate) fn unlink_file(&mut self, base: Base<'_>, path: &str, now: u64) -> FsResult<()> {
        let resolved = self.walk(base, path, LastLink::Keep)?;
        let ino = resolved.ino.ok_or(FsError::NotFound)?;
        match self.node(ino)?.kind() {
            Kind::Directory => return Err(FsError::IsADirectory),
            _ if resolved.must_be_directory => return Err(FsError::NotADirectory),
            _ => {}
        }
        self.remove_entry(&resolved, now)
    }

    pub(crate) fn remove_directory(&mut self, base: Base<'_>, path: &str, now: u64) -> FsResult<()> {
        let resolved = self.walk(base, path, LastLink::Keep)?;
        let ino = resolved.ino.ok_or(FsError::NotFound)?;
        if !self.directory(ino)?.entries.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.remove_entry(&resolved, now)
    }

    fn remove_entry(&mut self, resolved: &Resolved, now: u64) -> FsResult<()> {
        let (parent, name) = resolved.entry()?;
        let ino = self.unlink(parent, &name, now)?;
        self.drop_unused(ino);
        Ok(())
    }

    /// Moves an entry. An existing target is replaced if it is of the same kind; a directory must be empty.
    pub(crate) fn rename(&mut self, from: (Base<'_>, &str), to: (Base<'_>, &str), now: u64) -> FsResult<()> {
        let old = self.walk(from.0, from.1, LastLink::Keep)?;
        let ino = old.ino.ok_or(FsError::NotFound)?;
        let (old_parent, old_name) = old.entry()?;
        let new = self.walk(to.0, to.1, LastLink::Keep)?;
        let (new_parent, new_name) = new.entry()?;
        let is_directory = self.node(ino)?.kind() == Kind::Directory;
        if !is_directory && (old.must_be_directory || new.must_be_directory) {
            return Err(FsError::NotADirectory);
        }
        if self.node(new_parent)?.links == 0 {
            return Err(FsError::NotFound);
        }
        if is_directory && self.is_within(new_parent, ino)? {
            return Err(FsError::Invalid);
        }
        if let Some(replaced) = new.ino {
            if replaced == ino {
                return Ok(());
            }
            match (is_directory, &self.node(replaced)?.body) {
                (true, Body::Directory(directory)) if !directory.entries.is_empty() => return Err(FsError::NotEmpty),
                (true, Body::Directory(_)) => {}
                (true, _) => return Err(FsError::NotADirectory),
                (false, Body::Directory(_)) => return Err(FsError::IsADirectory),
                (false, _) => {}
            }
        }
        // The new name may cost more than the old one. Check that before anything is removed.
        let more = (new_name.len() as u64).saturating_sub(old_name.len() as u64);
        self.charge(more)?;
        self.refund(more);
        // Acquired, so that the node outlives the removal of its name.
        self.acquire(ino)?;
        let moved = self.unlink(old_parent, &old_name, now).and_then(|_| {
            if new.ino.is_some() {
                let replaced = self.unlink(new_parent, &new_name, now)?;
                self.drop_unused(replaced);
            }
            self.link(new_parent, &new_name, ino, now)
        });
        self.release(ino);
        moved
    }

    /// Returns true if `ino` is `above` or is below it.
    fn is_within(&self, mut ino: Ino, above: Ino) -> FsResult<bool> {
        loop {
            if ino == above {
                return Ok(true);
            }
            let next = self.directory(ino)?.above;
            if next == ino || !self.nodes.contains_key(&next) {
                return Ok(false);
            }
            ino = next;
        }
    }

    pub(crate) fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> FsResult<usize> {
        Ok(self.contents(ino)?.read(offset, buffer))
    }

    /// Writes all of `data`, or none of it.
    pub(crate) fn write(&mut self, ino: Ino, offset: u64, data: &[u8], now: u64) -> FsResult<()> {
        if data.is_empty() {
            return self.contents(ino).map(drop);
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_LENGTH);
        end.ok_or(FsError::TooLarge)?;
        let cost = self.contents(ino)?.cost_of_write(offset, data.len());
        self.charge(cost)?;
        self.contents_mut(ino)?.write(offset, data);
        self.touch(ino, now);
        Ok(())
    }

    pub(crate) fn set_length(&mut self, ino: Ino, length: u64, now: u64) -> FsResult<()> {
        if length > MAX_LENGTH {
            return Err(FsError::TooLarge);
        }
        let freed = self.contents_mut(ino)?.set_length(length);
        self.refund(freed);
        self.touch(ino, now);
        Ok(())
    }

    pub(crate) fn set_times(&mut self, ino: Ino, set: SetTime, now: u64) -> FsResult<()> {
        let times = &mut self.node_mut(ino)?.times;
        times.accessed = set.accessed.unwrap_or(times.accessed);
        times.modified = set.modified.unwrap_or(times.modified);
        times.changed = now;
        Ok(())
    }

    /// Returns at most `count` directory entries, starting at this position. Concurrent changes neither repeat nor hide
    /// other entries.
    pub(crate) fn list_from(&self, ino: Ino, from: u64, count: usize) -> FsResult<Vec<Listing>> {
        let directory = self.directory(ino)?;
        let dots = [(".", ino), ("..", directory.above)].into_iter().zip(0u64..);
        let dots = dots.filter(|(_, order)| *order >= from).map(|((name, ino), order)| Listing {
            name: name.into(),
            ino,
            kind: Kind::Directory,
            next: order + 1,
        });
        let entries = directory.by_order.range(from.max(FIRST_ORDER)..).filter_map(|(order, name)| {
            let ino = directory.entries.get(name)?.ino;
            let kind = self.nodes.get(&ino)?.kind();
            Some(Listing { name: Arc::clone(name), ino, kind, next: order + 1 })
        });
        Ok(dots.chain(entries).take(count).collect())
    }
}
