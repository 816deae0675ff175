//! Removal of the oldest segments, with their artifacts and set-aside bytes.
//!
//! A line first records the number and the last hash of the removed segments. It distinguishes retention from theft.

use std::fs::File;

use super::Writer;
use super::rotate::first_line;
use crate::error::failed;
use crate::segment::Lines;
use crate::{Artifact, Digest, ExecutionId, Record, Removed, Result, Sync, Timestamp, artifact, files, line, names};

impl Writer {
    /// Removes the segments in excess of [`crate::Config::keep_segments`].
    pub(super) fn remove_old(&mut self) -> Result<()> {
        let Some((through, last_hash)) = self.through()? else { return Ok(()) };
        self.append(Record::Removed(Removed { through, last_hash, time: Timestamp::now() }))?;
        if self.config.sync != Sync::Never {
            let end = self.end()?;
            self.group.note(end.file.sync_data()).map_err(failed("synchronise", &names::segment(end.segment)))?;
        }
        for segment in self.segments()?.into_iter().filter(|segment| *segment <= through) {
            self.remove_segment(segment)?;
        }
        for name in files::names(&*self.directory)? {
            if names::torn_position(&name).is_some_and(|(segment, _)| segment <= through) {
                files::remove(&*self.directory, &name)?;
            }
        }
        let oldest = self.start(through + 1)?.0;
        self.artifacts.as_ref().map_or(Ok(()), |artifacts| artifact::remove_strays(artifacts, oldest))
    }

    /// Returns the last segment to remove, and the hash of its last line.
    fn through(&self) -> Result<Option<(u32, Digest)>> {
        let Some(keep) = self.config.keep_segments else { return Ok(None) };
        let segments = self.segments()?;
        // The last segment is still open, and is never removed.
        let removable = segments.len().saturating_sub(1);
        let Some(index) = removable.saturating_sub(keep as usize).checked_sub(1) else { return Ok(None) };
        let segment = segments[index];
        Ok(Some((segment, self.start(segment + 1)?.1)))
    }

    /// Returns the start of a segment, and the hash of the line before it.
    fn start(&self, segment: u32) -> Result<(Timestamp, Digest)> {
        let name = names::segment(segment);
        let file = files::open_regular(&*self.directory, &name, &name)?;
        let (start, prev) = first_line(&file, &name, self.key.as_ref())?;
        Ok((start.time, prev))
    }

    /// Removes a segment, then its artifacts. In the other order, a line without its artifact would look like theft. A
    /// reader that misses an artifact checks if its segment still has its name.
    fn remove_segment(&self, segment: u32) -> Result<()> {
        let name = names::segment(segment);
        let file = files::open_regular(&*self.directory, &name, &name)?;
        files::remove(&*self.directory, &name)?;
        let Some(artifacts) = &self.artifacts else { return Ok(()) };
        for file in stored(&file, &name)? {
            files::remove(artifacts, &file)?;
        }
        Ok(())
    }
}

/// Returns the artifacts that a segment names. Names that this crate does not assign are ignored.
fn stored(file: &File, name: &str) -> Result<Vec<String>> {
    let mut lines = Lines::new(crate::segment::ReadAt::new(file, 0), 0);
    let mut found = Vec::new();
    while let Some(raw) = lines.next().map_err(failed("read", name))? {
        let Ok(checked) = line::check(raw.bytes, None) else { continue };
        let Record::End(end) = checked.line.record else { continue };
        if let Some(Artifact::Stored { file, .. }) = end.outcome.artifact
            && file.strip_suffix(artifact::EXTENSION).is_some_and(|id| ExecutionId::new(id).is_ok())
        {
            found.push(file);
        }
    }
    Ok(found)
}
