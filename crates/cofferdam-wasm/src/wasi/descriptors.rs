//! The descriptors of one exec.

use serde::{Deserialize, Serialize};

use super::abi::Errno;
use crate::fs::Ino;

/// The maximum number of descriptors of one exec.
pub(crate) const MAX_DESCRIPTORS: usize = 1024;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    pub(crate) position: u64,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) flags: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenDirectory {
    pub(crate) ino: Ino,
    /// The guest's name of a preopened directory.
    pub(crate) preopen: Option<String>,
    /// Its absolute name, for links.
    pub(crate) name: Option<String>,
    /// True if its content can be changed.
    pub(crate) writable: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Descriptor {
    Input,
    Output,
    Errors,
    File(OpenFile),
    Directory(OpenDirectory),
}

impl OpenDirectory {
    /// Returns the absolute name of an entry, if the directory's own is known.
    pub(crate) fn absolute_of(&self, name: &str) -> Option<String> {
        self.name.as_ref().map(|above| format!("{above}/{name}"))
    }
}

impl Descriptor {
    /// Returns the node that it references.
    pub(crate) fn ino(&self) -> Option<Ino> {
        match self {
            Self::Input | Self::Output | Self::Errors => None,
            Self::File(OpenFile { ino, .. }) | Self::Directory(OpenDirectory { ino, .. }) => Some(*ino),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Descriptors(Vec<Option<Descriptor>>);

impl Descriptors {
    /// Creates a table with the three streams.
    pub(crate) fn new() -> Self {
        Self(vec![Some(Descriptor::Input), Some(Descriptor::Output), Some(Descriptor::Errors)])
    }

    /// Creates an empty table.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    /// Returns all descriptors by number.
    pub(crate) fn all(&self) -> &[Option<Descriptor>] {
        &self.0
    }

    /// Creates a table of these descriptors; `None` if there are too many.
    pub(crate) fn of(all: Vec<Option<Descriptor>>) -> Option<Self> {
        (all.len() <= MAX_DESCRIPTORS).then_some(Self(all))
    }

    pub(crate) fn get(&self, number: u32) -> Result<&Descriptor, Errno> {
        self.0.get(number as usize).and_then(Option::as_ref).ok_or(Errno::Badf)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Result<&mut Descriptor, Errno> {
        self.0.get_mut(number as usize).and_then(Option::as_mut).ok_or(Errno::Badf)
    }

    pub(crate) fn file(&self, number: u32) -> Result<&OpenFile, Errno> {
        match self.get(number)? {
            Descriptor::File(file) => Ok(file),
            Descriptor::Directory(_) => Err(Errno::Isdir),
            _ => Err(Errno::Spipe),
        }
    }

    pub(crate) fn file_mut(&mut self, number: u32) -> Result<&mut OpenFile, Errno> {
        match self.get_mut(number)? {
            Descriptor::File(file) => Ok(file),
            Descriptor::Directory(_) => Err(Errno::Isdir),
            _ => Err(Errno::Spipe),
        }
    }

    pub(crate) fn directory(&self, number: u32) -> Result<&OpenDirectory, Errno> {
        match self.get(number)? {
            Descriptor::Directory(directory) => Ok(directory),
            _ => Err(Errno::Notdir),
        }
    }

    pub(crate) fn has_room(&self) -> Result<(), Errno> {
        let free = self.0.len() < MAX_DESCRIPTORS || self.0.iter().any(Option::is_none);
        if free { Ok(()) } else { Err(Errno::Mfile) }
    }

    /// Adds a descriptor under the lowest free number.
    pub(crate) fn add(&mut self, descriptor: Descriptor) -> Result<u32, Errno> {
        self.has_room()?;
        let number = match self.0.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.0.push(None);
                self.0.len() - 1
            }
        };
        self.0[number] = Some(descriptor);
        Ok(number as u32)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Result<Descriptor, Errno> {
        self.0.get_mut(number as usize).and_then(Option::take).ok_or(Errno::Badf)
    }

    /// Moves a descriptor to another number, and returns the one that it replaced.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> Result<Option<Descriptor>, Errno> {
        self.get(from)?;
        self.get(to)?;
        if from == to {
            return Ok(None);
        }
        let moved = self.remove(from)?;
        Ok(self.0.get_mut(to as usize).and_then(|slot| slot.replace(moved)))
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Descriptor> {
        std::mem::take(&mut self.0).into_iter().flatten()
    }
}
