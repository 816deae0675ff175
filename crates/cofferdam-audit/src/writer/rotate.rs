//! Creation of segments.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::fs::{RenameFlags, renameat_with};

use super::{LogEnd, Writer, reserve};
use crate::error::failed;
use crate::line::{self, MAX_LINE};
use crate::segment::Lines;
use crate::{Digest, Error, Head, Key, Record, Result, SegmentStart, Sync, Timestamp, files, names};

impl Writer {
    /// Closes the segment and starts the next one, if it has reached its size. After an error the old segment is still
    /// open.
    pub fn rotate_if_due(&mut self) -> Result<()> {
        let end = self.end()?;
        if end.size < self.config.segment_bytes {
            return Ok(());
        }
        if self.config.sync != Sync::Never {
            self.group.note(end.file.sync_data()).map_err(failed("synchronise", &names::segment(end.segment)))?;
        }
        let (number, name) = (end.segment, names::segment(end.segment));
        let (file, size) = (end.file.clone(), end.size);
        self.begin_segment(number + 1, Some(name.clone()))?;
        // Frees the reserve, which the next segment now has.
        self.tolerate("trimming a closed segment", file.set_len(size).map_err(failed("trim", &name)));
        let removed = self.remove_old();
        self.tolerate("removing old segments", removed);
        // A failed synchronization is not tolerated.
        self.group.check()
    }

    /// Creates a segment with its first line under a temporary name, and renames it when it is complete.
    ///
    /// The head file of a new log names the first line before the segment has its final name. The next writer completes
    /// an interrupted start with [`Self::finish_beginning`]. In the other order, a crash would look like a log that was
    /// cut off after its first line.
    pub(super) fn begin_segment(&mut self, segment: u32, after: Option<String>) -> Result<()> {
        let (seq, prev) = self.end.as_ref().map_or((0, Digest::ZERO), |end| (end.seq, end.hash));
        let time = Timestamp::now();
        let start = SegmentStart { segment, time, after, key: self.key.as_ref().map(Key::id) };
        let sealed = line::seal(seq + 1, prev, Record::Segment(start), self.key.as_ref())?;
        let name = names::segment(segment);
        let unfinished = format!("{name}{}", names::NEW);
        files::remove(&*self.directory, &unfinished)?;
        let head = Head { seq: seq + 1, segment, hash: sealed.hash };
        let created = self.prepare(&unfinished, &sealed.bytes).and_then(|created| {
            // The old head file of a removed log is evidence of the removal until a line records it.
            if !self.head.is_named() && !self.unknown_end {
                self.head.write(&head)?;
                self.head.name(&*self.directory)?;
            }
            self.name_segment(&unfinished, &name)?;
            Ok(created)
        });
        let (file, allocated) = match created {
            Ok(created) => created,
            Err(error) => {
                // The next writer completes a segment that the head file names.
                if segment > 1 || !self.head.is_named() {
                    let _ = files::remove(&*self.directory, &unfinished);
                }
                return Err(error);
            }
        };
        if self.config.sync != Sync::Never {
            let synchronised = self.group.note(rustix::fs::fsync(&*self.directory));
            synchronised.map_err(failed("synchronize", "the log's directory"))?;
        }
        let stat = files::stat(&file, &name)?;
        let size = sealed.bytes.len() as u64;
        let (device, inode) = (stat.st_dev, stat.st_ino);
        let file = Arc::new(file);
        self.end = Some(LogEnd { segment, file, device, inode, size, seq: seq + 1, hash: sealed.hash, allocated });
        if self.expected.is_none() {
            let written = self.head.write(&head);
            self.tolerate("writing the head file", written);
        }
        Ok(())
    }

    /// Gives the first segment of a log its final name, if a writer was killed after it had named the head file.
    pub(super) fn finish_beginning(&self) -> Result<()> {
        let Some(expected) = self.expected.filter(|_| self.segments().is_ok_and(|found| found.is_empty())) else {
            return Ok(());
        };
        if unfinished_first(&*self.directory, self.key.as_ref())? == Some(expected) {
            let name = names::segment(1);
            self.name_segment(&format!("{name}{}", names::NEW), &name)?;
            if self.config.sync != Sync::Never {
                let synchronised = self.group.note(rustix::fs::fsync(&*self.directory));
                synchronised.map_err(failed("synchronize", "the log's directory"))?;
            }
        }
        Ok(())
    }

    fn name_segment(&self, unfinished: &str, name: &str) -> Result<()> {
        let (from, to) = (&*self.directory, &*self.directory);
        renameat_with(from, unfinished, to, name, RenameFlags::NOREPLACE).map_err(failed("rename", name))
    }

    /// Writes the first line of a new file, with space for one execution and the reserve. Also returns the offset of
    /// the end of the allocated blocks.
    fn prepare(&self, name: &str, first: &[u8]) -> Result<(File, u64)> {
        let file = files::create(&*self.directory, name)?;
        let bytes = (first.len() + MAX_LINE) as u64 + reserve::RESERVE;
        let allocated = reserve::allocate(&file, 0, bytes, name)?;
        (&file).write_all(first).map_err(failed("write", name))?;
        if self.config.sync != Sync::Never {
            file.sync_all().map_err(failed("synchronise", name))?;
        }
        Ok((file, allocated))
    }

    /// Checks the first line of a segment: its number, and that it has the writer's key.
    pub(super) fn check_start(&self, segment: u32, file: &File) -> Result<()> {
        let name = names::segment(segment);
        let start = first_line(file, &name, self.key.as_ref())?.0;
        let own = self.key.as_ref().map(Key::id);
        let reason = match (start.key, own) {
            (stored, own) if stored == own => None,
            (None, Some(_)) => Some("the log has none; start a log with a key in a new directory"),
            (Some(_), None) => Some("the log has one, and none was given"),
            _ => Some("it is not the log's key; use that key, or start a log in a new directory"),
        };
        match reason {
            Some(reason) => Err(Error::Key { reason }),
            None if start.segment == segment => Ok(()),
            None => {
                let reason = format!("its first line has segment number {}", start.segment);
                Err(Error::Damaged { file: name, offset: 0, reason })
            }
        }
    }
}

/// Returns the first line of a log whose first segment has its temporary name, if the line is complete.
pub(crate) fn unfinished_first(directory: impl AsFd, key: Option<&Key>) -> Result<Option<Head>> {
    let name = format!("{}{}", names::segment(1), names::NEW);
    let file = match files::open_regular(directory, &name, &name) {
        Ok(file) => file,
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut lines = Lines::new(crate::segment::ReadAt::new(&file, 0), 0);
    let Some(line) = lines.next().map_err(failed("read", &name))?.filter(|line| line.ended && !line.is_too_long())
    else {
        return Ok(None);
    };
    let Ok(checked) = line::check(line.bytes, key) else { return Ok(None) };
    let begins = matches!(&checked.line.record, Record::Segment(start) if start.segment == 1);
    let first = begins && checked.line.seq == 1 && checked.line.prev == Digest::ZERO;
    Ok(first.then_some(Head { seq: 1, segment: 1, hash: checked.hash }))
}

/// Returns the first record of a segment, and the hash of the line before it.
pub(super) fn first_line(file: &File, name: &str, key: Option<&Key>) -> Result<(SegmentStart, Digest)> {
    let damaged = |reason: String| Error::Damaged { file: name.to_owned(), offset: 0, reason };
    let mut lines = Lines::new(crate::segment::ReadAt::new(file, 0), 0);
    let line = lines.next().map_err(failed("read", name))?.filter(|line| line.ended && !line.is_too_long());
    let line = line.ok_or_else(|| damaged("it has no first line".to_owned()))?;
    // A different key must not be reported as a forged line.
    let checked = line::check(line.bytes, None).map_err(|flaw| damaged(flaw.to_string()))?;
    let Record::Segment(start) = checked.line.record else {
        return Err(damaged("its first line does not begin a segment".to_owned()));
    };
    if key.is_some_and(|key| start.key == Some(key.id())) {
        line::check(line.bytes, key).map_err(|flaw| damaged(flaw.to_string()))?;
    }
    Ok((start, checked.line.prev))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::Config;
    use crate::synchronise::Group;

    /// Creates a writer with two segments, whose file cannot be synchronized from now on.
    fn writer(temp: &std::path::Path) -> (Writer, std::io::PipeReader) {
        let path = temp.join("audit");
        let directory = Arc::new(files::own_directory(&path).unwrap());
        let config = Config { sync: Sync::Each, segment_bytes: 0, ..Config::new(&path) };
        let mut writer = Writer::open(config, None, directory, Arc::new(Group::default())).unwrap();
        writer.rotate_if_due().unwrap();
        // A pipe accepts writes, and cannot be synchronized.
        let (reader, end) = std::io::pipe().unwrap();
        writer.end.as_mut().unwrap().file = Arc::new(File::from(OwnedFd::from(end)));
        writer.group.check().unwrap();
        (writer, reader)
    }

    #[test]
    fn a_closed_segment_that_is_not_on_the_disk_is_final() {
        let temp = tempfile::tempdir().unwrap();
        let (mut writer, _reader) = writer(temp.path());
        assert!(writer.rotate_if_due().is_err());
        assert_eq!(writer.end().unwrap().segment, 2);
        assert!(writer.group.check().is_err());
    }

    #[test]
    fn a_line_about_removal_that_is_not_on_the_disk_is_final() {
        let temp = tempfile::tempdir().unwrap();
        let (mut writer, _reader) = writer(temp.path());
        writer.config.keep_segments = Some(0);
        assert!(writer.remove_old().is_err());
        assert_eq!(writer.segments().unwrap(), [1, 2]);
        assert!(writer.group.check().is_err());
    }
}
