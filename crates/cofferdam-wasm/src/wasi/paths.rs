//! Calls on paths. Each path starts at a directory descriptor and never leads above it.

use super::abi::{Answer, Errno, SYMLINK_FOLLOW, fdflags, oflags, rights};
use super::descriptors::{Descriptor, OpenDirectory, OpenFile};
use super::files::{filestat, times};
use super::host::Call;
use crate::fs::{FsResult, Kind, LastLink, OpenHow, Tree};
use cofferdam_wasm_runtimes::{REQUEST_DESCRIPTOR, REQUEST_PATH};

fn last(flags: u32) -> LastLink {
    if flags & SYMLINK_FOLLOW != 0 { LastLink::Follow } else { LastLink::Keep }
}

impl Call<'_> {
    /// Returns a directory and a path relative to it.
    fn resolve_args(&self, fd: u32, path: u32, length: u32) -> Answer<(OpenDirectory, String)> {
        let directory = self.host.descriptors.directory(fd)?.clone();
        Ok((directory, self.memory.text(path, length)?))
    }

    /// Returns a directory and a path, or an error if the directory is read-only.
    fn writable(&self, fd: u32, path: u32, length: u32) -> Answer<(OpenDirectory, String)> {
        let resolved = self.resolve_args(fd, path, length)?;
        if resolved.0.writable { Ok(resolved) } else { Err(Errno::Rofs.into()) }
    }

    /// Changes the file system, and records a limit that was reached.
    fn change<T>(&mut self, change: impl FnOnce(&mut Tree, u64) -> FsResult<T>) -> Answer<T> {
        let now = self.host.clock.stamp();
        let result = change(&mut self.host.tree(), now);
        Ok(self.host.note(result)?)
    }

    pub(super) fn path_create_directory(&mut self, fd: u32, path: u32, length: u32) -> Answer {
        let (directory, path) = self.writable(fd, path, length)?;
        self.change(|tree, now| tree.make_directory(directory.base(), &path, now)).map(drop)
    }

    pub(super) fn path_filestat_get(&mut self, fd: u32, flags: u32, path: u32, length: u32, result: u32) -> Answer {
        let (directory, path) = self.resolve_args(fd, path, length)?;
        let stat = {
            let tree = self.host.tree();
            tree.stat(tree.lookup(directory.base(), &path, last(flags))?)?
        };
        Ok(self.memory.put(result, &filestat(&stat))?)
    }

    #[expect(clippy::too_many_arguments, reason = "the interface has so many")]
    pub(super) fn path_filestat_set_times(
        &mut self,
        fd: u32,
        flags: u32,
        path: u32,
        length: u32,
        accessed: u64,
        modified: u64,
        which: u32,
    ) -> Answer {
        let (directory, path) = self.writable(fd, path, length)?;
        let set = times(accessed, modified, which, self.host.clock.stamp())?;
        self.change(|tree, now| {
            let ino = tree.lookup(directory.base(), &path, last(flags))?;
            tree.set_times(ino, set, now)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the interface has so many")]
    pub(super) fn path_link(
        &mut self,
        old_fd: u32,
        old_flags: u32,
        old_path: u32,
        old_length: u32,
        new_fd: u32,
        new_path: u32,
        new_length: u32,
    ) -> Answer {
        // A second name in a writable directory would make a file of a read-only one writable.
        let (old, old_path) = self.writable(old_fd, old_path, old_length)?;
        let (new, new_path) = self.writable(new_fd, new_path, new_length)?;
        self.change(|tree, now| tree.hard_link((old.base(), &old_path), (new.base(), &new_path), last(old_flags), now))
    }

    #[expect(clippy::too_many_arguments, reason = "the interface has so many")]
    pub(super) fn path_open(
        &mut self,
        fd: u32,
        flags: u32,
        path: u32,
        length: u32,
        how: u32,
        base_rights: u64,
        _inheriting: u64,
        fd_flags: u32,
        result: u32,
    ) -> Answer {
        let (directory, path) = self.resolve_args(fd, path, length)?;
        if self.host.preparing && directory.absolute_of(&path).as_deref() == Some(REQUEST_PATH) {
            return Ok(self.memory.put_u32(result, REQUEST_DESCRIPTOR)?);
        }
        if how & !oflags::ALL != 0 || fd_flags & !fdflags::ALL != 0 {
            return Err(Errno::Inval.into());
        }
        let as_directory = how & oflags::DIRECTORY != 0;
        if as_directory && how & (oflags::CREAT | oflags::EXCL | oflags::TRUNC) != 0 {
            return Err(Errno::Inval.into());
        }
        let writes = base_rights & rights::FD_WRITE != 0;
        let open = OpenHow {
            create: how & oflags::CREAT != 0,
            exclusive: how & oflags::EXCL != 0,
            truncate: how & oflags::TRUNC != 0,
            directory: as_directory,
            writes,
        };
        self.memory.slice(result, 4)?;
        self.host.descriptors.has_room()?;
        if !directory.writable && (writes || open.truncate) {
            return Err(Errno::Rofs.into());
        }
        // A call that would create a file may open an existing one.
        let exists = {
            let tree = self.host.tree();
            tree.lookup(directory.base(), &path, last(flags)).is_ok()
        };
        if open.create && !exists && !directory.writable {
            return Err(Errno::Rofs.into());
        }
        let (ino, kind) = self.change(|tree, now| {
            let ino = tree.open(directory.base(), &path, last(flags), open, now)?;
            tree.acquire(ino)?;
            Ok((ino, tree.stat(ino)?.kind))
        })?;
        let descriptor = match kind {
            Kind::Directory => {
                Descriptor::Directory(OpenDirectory { ino, preopen: None, name: None, writable: directory.writable })
            }
            _ => Descriptor::File(OpenFile {
                ino,
                position: 0,
                reads: base_rights & rights::FD_READ != 0,
                writes,
                flags: fd_flags,
            }),
        };
        let number = self.host.descriptors.add(descriptor)?;
        Ok(self.memory.put_u32(result, number)?)
    }

    pub(super) fn path_readlink(
        &mut self,
        fd: u32,
        path: u32,
        length: u32,
        buffer: u32,
        room: u32,
        result: u32,
    ) -> Answer {
        let (directory, path) = self.resolve_args(fd, path, length)?;
        let target = self.host.tree().read_link(directory.base(), &path)?;
        let bytes = &target.as_bytes()[..target.len().min(room as usize)];
        self.memory.put(buffer, bytes)?;
        Ok(self.memory.put_u32(result, bytes.len() as u32)?)
    }

    pub(super) fn path_remove_directory(&mut self, fd: u32, path: u32, length: u32) -> Answer {
        let (directory, path) = self.writable(fd, path, length)?;
        self.change(|tree, now| tree.remove_directory(directory.base(), &path, now))
    }

    pub(super) fn path_rename(
        &mut self,
        old_fd: u32,
        old_path: u32,
        old_length: u32,
        new_fd: u32,
        new_path: u32,
        new_length: u32,
    ) -> Answer {
        let (old, old_path) = self.writable(old_fd, old_path, old_length)?;
        let (new, new_path) = self.writable(new_fd, new_path, new_length)?;
        self.change(|tree, now| tree.rename((old.base(), &old_path), (new.base(), &new_path), now))
    }

    pub(super) fn path_symlink(&mut self, target: u32, target_length: u32, fd: u32, path: u32, length: u32) -> Answer {
        let target = self.memory.text(target, target_length)?;
        let (directory, path) = self.writable(fd, path, length)?;
        self.change(|tree, now| tree.make_guest_symlink(directory.base(), &path, &target, now))
    }

    pub(super) fn path_unlink_file(&mut self, fd: u32, path: u32, length: u32) -> Answer {
        let (directory, path) = self.writable(fd, path, length)?;
        self.change(|tree, now| tree.unlink_file(directory.base(), &path, now))
    }
}
