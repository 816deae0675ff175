//! The descriptors of one exec.

use serde::{Deserialize, Serialize};

use super::abi::Errno;
use crate::fs::Ino;

/// The most descriptors of one exec.
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
    /// What a directory that was there from the start calls itself.
    pub(crate) preopen: Option<String>,
    /// Its absolute name, for links.
    pub(crate) name: Option<String>,
    /// Whether anything in it may be changed.
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
    /// What a plain name in it is called from the top, where that is known.
    pub(crate) fn absolute_of(&self, name: &str) -> Option<String> {
        self.name.as_ref().map(|above| format!("{above}/{name}"))
    }
}

impl Descriptor {
    /// The node that it holds.
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
    /// The three streams.
    pub(crate) fn new() -> Self {
        Self(vec![Some(Descriptor::Input), Some(Descriptor::Output), Some(Descriptor::Errors)])
    }

    /// None.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    /// All of them by number.
    pub(crate) fn all(&self) -> &[Option<Descriptor>] {
        &self.0
    }

    /// These and no others; nothing if they are too many.
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

    /// Takes the lowest free number.
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

    /// Moves one over another; gives the one that went.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> Result<Option<Descriptor>, Errno> {
        self.get(from)?;
        self.get(to)?;
        if from == to {
            return Ok(None);
        }
        let moved = self.remove(from)?;
        Ok(self.0.get_mut(to as usize).and_then(|place| place.replace(moved)))
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Descriptor> {
        std::mem::take(&mut self.0).into_iter().flatten()
    }
}
