//! Removal of a directory with everything below it, in steps and with two descriptors at any depth. Nested directories
//! are moved up until none is nested.

use super::sys::{self, Fd, Res};
use super::walk::{ELOOP, Name};
use super::watch;

const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EISDIR: i32 = 21;
const ENOTEMPTY: i32 = 39;
/// The size of the buffer for the entries of one step.
const ENTRIES: usize = 4096;
/// The highest number of steps for one directory, in case a guest keeps filling it.
const MAX_STEPS: u32 = 1_000_000;
const OPEN: usize = sys::O_DIRECTORY | sys::O_NOFOLLOW;

/// A removal in progress.
pub struct Removal {
    parent: Fd,
    name: Name,
    top: Fd,
    moved: u64,
    steps: u32,
}

impl Removal {
    /// Removes the entry of this name. Returns a removal if it takes several steps.
    pub fn begin(parent: Fd, name: Name) -> Res<Option<Self>> {
        match sys::unlink(parent.number(), name.bytes()) {
            Err(EISDIR) => {
                let top = sys::open_at(parent.number(), name.bytes(), OPEN, 0)?;
                Ok(Some(Self { parent, name, top, moved: 0, steps: 0 }))
            }
            other => other.map(|()| None),
        }
    }

    /// Advances by one step. Returns true when the removal is complete.
    pub fn step(&mut self) -> Res<bool> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(EBUSY);
        }
        // Opened again, to read it from its beginning.
        let reader = sys::open_at(self.top.number(), b".\0", OPEN, 0)?;
        let mut failed = None;
        let mut left = false;
        let mut buffer = [0; ENTRIES];
        let entries = sys::entries(&reader, &mut buffer)?;
        watch::each_entry(entries, |entry| {
            if entry.name == b"." || entry.name == b".." || failed.is_some() {
                return;
            }
            left = true;
            failed = Name::new(entry.name).and_then(|name| self.clear(&name)).err();
        });
        if let Some(errno) = failed {
            return Err(errno);
        }
        if left {
            return Ok(false);
        }
        match sys::remove_directory(self.parent.number(), self.name.bytes()) {
            Err(ENOTEMPTY | EEXIST) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Removes one entry of the directory, or a part of it.
    fn clear(&mut self, name: &Name) -> Res<()> {
        let top = self.top.number();
        match sys::unlink(top, name.bytes()) {
            Err(EISDIR) => {}
            Ok(()) | Err(ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let inner = match sys::open_at(top, name.bytes(), OPEN, 0) {
            Err(ENOENT | sys::ENOTDIR | ELOOP) => return Ok(()),
            other => other?,
        };
        let mut buffer = [0; ENTRIES];
        let entries = sys::entries(&inner, &mut buffer)?;
        let mut failed = None;
        watch::each_entry(entries, |entry| {
            if entry.name != b"." && entry.name != b".." && failed.is_none() {
                failed = Name::new(entry.name).and_then(|name| self.lift(&inner, &name)).err();
            }
        });
        if let Some(errno) = failed {
            return Err(errno);
        }
        match sys::remove_directory(top, name.bytes()) {
            // The next step removes entries that are left or were added meanwhile.
            Ok(()) | Err(ENOENT | ENOTEMPTY | EEXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes an entry of an inner directory, or moves it up if it is one itself.
    fn lift(&mut self, inner: &Fd, name: &Name) -> Res<()> {
        match sys::unlink(inner.number(), name.bytes()) {
            Err(EISDIR) => {}
            Ok(()) | Err(ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        self.moved += 1;
        let aside = aside(b".cofferdam-removed-", self.moved)?;
        match sys::rename(inner.number(), name.bytes(), self.top.number(), aside.bytes()) {
            Ok(()) | Err(ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Creates a reserved name: the prefix and a number in hexadecimal.
pub fn aside(prefix: &[u8], number: u64) -> Res<Name> {
    let mut text = [0; 64];
    let mut length = 0;
    let digits = (0..16).rev().map(|digit| b"0123456789abcdef"[(number >> (4 * digit) & 15) as usize]);
    for byte in prefix.iter().copied().chain(digits) {
        *text.get_mut(length).ok_or(sys::EINVAL)? = byte;
        length += 1;
    }
    Name::new(text.get(..length).unwrap_or_default())
}
