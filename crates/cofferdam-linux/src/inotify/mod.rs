//! Watches of a directory tree that hostile code may change, by inotify.
//!
//! [`Tree`] is pure: it maps the kernel's watches to paths and decides which directories to watch. [`Inotify`] carries
//! that out beneath a directory of this host. A guest agent does the same inside a container or VM, so that its host
//! uses the same [`Tree`].
//!
//! ```text
//! kernel --bytes--> Queue --RawEvent--> Tree --Event--> caller
//!                                   | ^
//!                              Step v | result: a watch and a list, or a failure
//!                              Inotify, or a guest agent
//! ```

mod queue;
mod tree;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::beneath;

pub use queue::{Queue, RawEvent};
pub use tree::{Entry, Event, Failure, List, Marked, Step, Tree};

/// The kinds of events of every watch: changes, but no opens and reads.
pub const MASK: u32 = queue::MODIFY
    | queue::ATTRIB
    | queue::MOVED_FROM
    | queue::MOVED_TO
    | queue::CREATE
    | queue::DELETE
    | queue::DELETE_SELF
    | queue::MOVE_SELF
    | ONLY_DIRECTORIES
    | EXCEPT_UNLINKED;
const ONLY_DIRECTORIES: u32 = 0x0100_0000;
const EXCEPT_UNLINKED: u32 = 0x0400_0000;
/// The maximum number of entries of one directory that are listed.
pub const MAX_LISTED: usize = 16_384;

/// An inotify instance for directories beneath one directory.
#[derive(Debug)]
pub struct Inotify {
    instance: OwnedFd,
    root: OwnedFd,
}

impl Inotify {
    /// Creates an instance for directories beneath `root`. Fails with `EMFILE` beyond the user's limit of instances.
    pub fn new(root: OwnedFd) -> io::Result<Self> {
        Ok(Self { instance: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?, root })
    }

    /// Adds the kernel's events to a queue. Returns false if there are none.
    pub fn read(&self, queue: &mut Queue) -> io::Result<bool> {
        let mut buffer = [0; 32 * 1024];
        match rustix::io::read(&self.instance, &mut buffer) {
            Ok(length) => {
                queue.push(&buffer[..length]);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Carries out a step and passes the result to the tree.
    pub fn run(&self, step: Step, tree: &mut Tree) {
        match step {
            Step::Mark { node, path, list } => {
                let marked = self.mark(&path, list);
                tree.marked(node, marked.map_err(|error| Failure::of(error.raw_os_error().unwrap_or(0))));
            }
            // The kernel removes watches of deleted directories by itself.
            Step::Unmark { wd } => {
                let _ = inotify::remove_watch(&self.instance, wd);
            }
        }
    }

    /// Watches the directory at a path, and lists it after that. No link is followed.
    pub fn mark(&self, path: &[u8], list: List) -> io::Result<Marked> {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let directory = beneath::open_directory(self.root.as_fd(), path)?;
        let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let wd = inotify::add_watch(&self.instance, name, WatchFlags::from_bits_retain(MASK))?;
        let mut marked = Marked { wd, entries: Vec::new(), complete: true };
        if list != List::Nothing {
            self.list(&directory, list, &mut marked)?;
        }
        Ok(marked)
    }

    fn list(&self, directory: &OwnedFd, list: List, marked: &mut Marked) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let directory = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()),
                kind => kind.is_dir(),
            };
            if !directory && list == List::Directories {
                continue;
            }
            if marked.entries.len() == MAX_LISTED {
                marked.complete = false;
                break;
            }
            marked.entries.push(Entry { name: name.to_bytes().to_vec(), directory });
        }
        Ok(())
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.instance.as_fd()
    }
}

impl AsRawFd for Inotify {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.instance.as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
