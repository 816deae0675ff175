//! Removes segments that are too many or too old, with their artifacts and what was set aside from them.
//!
//! A line tells of it first, with the number and the last hash of what goes, so that a log without its beginning can be
//! told from one whose beginning somebody took away. Whatever goes is the oldest.

use std::fs::File;

use super::rotate::first_line;
use super::{Room, Writer};
use crate::error::failed;
use crate::lines::Lines;
use crate::{Artifact, Digest, ExecutionId, Record, Removed, Result, Sync, Timestamp, artifact, line, names, place};

impl Writer {
    /// Removes what the settings say.
    pub(super) fn remove_old(&mut self) -> Result<()> {
        let Some((through, last_hash)) = self.through()? else { return Ok(()) };
        self.append(Record::Removed(Removed { through, last_hash, time: Timestamp::now() }), Room::Needed)?;
        if self.config.sync != Sync::Never {
            let tail = self.tail()?;
            self.group.note(tail.file.sync_data()).map_err(failed("synchronise", &names::segment(tail.segment)))?;
        }
        for segment in self.segments()?.into_iter().filter(|segment| *segment <= through) {
            self.remove_segment(segment)?;
        }
        for name in place::names(&*self.directory)? {
            if names::torn_place(&name).is_some_and(|(segment, _)| segment <= through) {
                place::remove(&*self.directory, &name)?;
            }
        }
        let oldest = self.start(through + 1)?.0;
        self.artifacts.as_ref().map_or(Ok(()), |artifacts| artifact::remove_strays(artifacts, oldest))
    }

    /// The last segment to remove, and the hash of its last line.
    fn through(&self) -> Result<Option<(u32, Digest)>> {
        let mut segments = self.segments()?;
        // The one that is written to always stays.
        segments.pop();
        let keep = self.config.keep_segments.map_or(segments.len(), |keep| keep as usize);
        let too_many = segments.len().saturating_sub(keep);
        let mut found = None;
        for (index, segment) in segments.into_iter().enumerate() {
            // It was closed when the next one was begun.
            let (closed, hash) = self.start(segment + 1)?;
            let too_old = self.config.keep_age.is_some_and(|keep| Timestamp::now().since(closed) >= keep);
            if index >= too_many && !too_old {
                break;
            }
            found = Some((segment, hash));
        }
        Ok(found)
    }

    /// When a segment was begun, and the hash of the line before it.
    fn start(&self, segment: u32) -> Result<(Timestamp, Digest)> {
        let name = names::segment(segment);
        let file = place::open_regular(&*self.directory, &name, &name)?;
        let (start, prev) = first_line(&file, &name, self.key.as_ref())?;
        Ok((start.time, prev))
    }

    /// The segment goes first: an artifact without a line is a stray, a line without its artifact would look like theft. Who
    /// reads the segment meanwhile knows by its name whether what is missing was removed with it.
    fn remove_segment(&self, segment: u32) -> Result<()> {
        let name = names::segment(segment);
        let file = place::open_regular(&*self.directory, &name, &name)?;
        place::remove(&*self.directory, &name)?;
        let Some(artifacts) = &self.artifacts else { return Ok(()) };
        for file in stored(&file, &name)? {
            place::remove(artifacts, &file)?;
        }
        Ok(())
    }
}

/// Names of the artifacts that a segment names; none but those that this crate gives.
fn stored(file: &File, name: &str) -> Result<Vec<String>> {
    let mut lines = Lines::new(crate::at::ReadAt::new(file, 0), 0);
    let mut found = Vec::new();
    while let Some(raw) = lines.next().map_err(failed("read", name))? {
        let Ok(checked) = line::check(raw.bytes, None) else { continue };
        let Record::End(end) = checked.line.record else { continue };
        if let Some(Artifact::Stored { file, .. }) = end.outcome.artifact
            && file.strip_suffix(artifact::ENDING).is_some_and(|id| ExecutionId::new(id).is_ok())
        {
            found.push(file);
        }
    }
    Ok(found)
}
