//! A file that a part is restored to, which stays empty unless everything turns out well.

use std::fs::File;

use crate::base::regular_size;
use crate::error::{ArchiveError, Result, io};
use crate::part::Part;

/// A file that is being filled. Dropped before it is [kept](Place::keep), it is emptied.
pub(crate) struct Place {
    part: Part,
    file: Option<File>,
}

impl Place {
    /// Takes an empty file, and gives it the part's size, all hole.
    pub(crate) fn new(part: &Part, file: File) -> Result<Self> {
        if regular_size(&file, part.name.as_str())? != 0 {
            let reason = "it is not empty: give a new one";
            return Err(ArchiveError::UnfitFile { part: part.name.to_string(), reason });
        }
        file.set_len(part.size).map_err(io("make room", &part.name))?;
        Ok(Self { part: part.clone(), file: Some(file) })
    }

    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Everything was verified.
    pub(crate) fn keep(mut self) -> Option<(Part, File)> {
        self.file.take().map(|file| (self.part.clone(), file))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // Without a name it is gone with its last descriptor anyway; this is for those that have one.
            let _ = file.set_len(0);
        }
    }
}
