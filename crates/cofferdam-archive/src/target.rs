//! Target files of a restore, which stay empty unless the whole archive is verified.

use std::fs::File;

use crate::base::regular_size;
use crate::error::{ArchiveError, Result, io};
use crate::part::Part;

/// A file that is being filled. It is emptied if dropped before it is [kept](Target::keep).
pub(crate) struct Target {
    part: Part,
    file: Option<File>,
}

impl Target {
    /// Takes an empty file and extends it to the part's size as one hole.
    pub(crate) fn new(part: &Part, file: File) -> Result<Self> {
        if regular_size(&file, part.name.as_str())? != 0 {
            let reason = "it is not empty: pass a new file";
            return Err(ArchiveError::UnfitFile { part: part.name.to_string(), reason });
        }
        file.set_len(part.size).map_err(io("set the file size", &part.name))?;
        Ok(Self { part: part.clone(), file: Some(file) })
    }

    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Keeps the contents, once everything is verified.
    pub(crate) fn keep(mut self) -> Option<(Part, File)> {
        self.file.take().map(|file| (self.part.clone(), file))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // An unnamed file disappears with its last descriptor. This is for files that have a name.
            let _ = file.set_len(0);
        }
    }
}
