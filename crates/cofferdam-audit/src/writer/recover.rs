//! Recovery after a crash within a write.
//!
//! Bytes without a line break at the end of a segment are copied to a file, then cut off, then recorded by a line. Then
//! their file gets its final name. After a crash at any step, the next writer continues there.

use std::io::{Read, Write};

use rustix::fs::renameat;

use super::{Notice, Writer};
use crate::error::failed;
use crate::head::Head;
use crate::line;
use crate::{Digest, Error, Record, Result, Sync, Timestamp, Torn, files, names};

/// The maximum number of bytes that are read from a set-aside file.
const MAX_SET_ASIDE: u64 = 4 << 20;

impl Writer {
    /// Sets aside the bytes after the last complete line. Returns the previous last line.
    pub(super) fn recover(&mut self, torn: &[u8]) -> Result<Head> {
        let end = self.end()?;
        let found = end.head();
        let (segment, offset) = (end.segment, end.size);
        // A line that lacks only its line break is completed.
        if let Ok(checked) = line::check(torn, self.key.as_ref())
            && checked.line.prev == end.hash
            && checked.line.seq == end.seq + 1
        {
            let name = names::segment(segment);
            (&*end.file).write_all(b"\n").map_err(failed("append to", &name))?;
            if let Some(end) = &mut self.end {
                end.size += torn.len() as u64 + 1;
                (end.seq, end.hash) = (checked.line.seq, checked.hash);
                self.group.wrote(&end.file);
            }
            return self.head();
        }
        let pending = pending_name(segment, offset);
        match self.put_aside(&pending, torn) {
            Err(Error::NoSpace { .. }) => {
                // The reserve is released for this file.
                let trimmed = self.end()?.file.set_len(offset + torn.len() as u64);
                trimmed.map_err(failed("trim", &names::segment(segment)))?;
                self.put_aside(&pending, torn)?;
            }
            other => other?,
        }
        let end = self.end()?;
        end.file.set_len(offset).map_err(failed("cut off the torn end of", &names::segment(segment)))?;
        self.restore_reserve();
        self.record_torn(segment, offset, torn)?;
        Ok(found)
    }

    /// Completes recoveries that were interrupted by another crash.
    pub(super) fn finish_recoveries(&mut self) -> Result<()> {
        for name in files::names(&*self.directory)? {
            let Some((segment, offset)) = pending_position(&name) else { continue };
            let mut bytes = Vec::new();
            let file = files::open_regular(&*self.directory, &name, &name)?;
            file.take(MAX_SET_ASIDE).read_to_end(&mut bytes).map_err(failed("read", &name))?;
            self.record_torn(segment, offset, &bytes)?;
        }
        Ok(())
    }

    /// Removes unfinished segments and artifacts.
    pub(super) fn sweep(&mut self) -> Result<()> {
        for name in files::names(&*self.directory)? {
            let segment = name.strip_suffix(names::NEW).and_then(names::segment_number);
            if segment.is_some() {
                files::remove(&*self.directory, &name)?;
            }
        }
        match &self.artifacts {
            Some(artifacts) => crate::artifact::sweep(artifacts),
            None => Ok(()),
        }
    }

    fn put_aside(&self, name: &str, bytes: &[u8]) -> Result<()> {
        files::remove(&*self.directory, name)?;
        let put = || -> Result<()> {
            let mut file = files::create(&*self.directory, name)?;
            file.write_all(bytes).map_err(failed("write", name))?;
            match self.config.sync {
                Sync::Never => Ok(()),
                _ => file.sync_all().map_err(failed("synchronise", name)),
            }
        };
        let done = put();
        if done.is_err() {
            let _ = files::remove(&*self.directory, name);
        }
        done
    }

    fn record_torn(&mut self, segment: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = names::torn(segment, offset);
        let (length, sha256) = (bytes.len() as u64, Digest::of(bytes));
        let torn = Torn { file: file.clone(), segment, offset, bytes: length, sha256, time: Timestamp::now() };
        self.append(Record::Torn(torn))?;
        let from = &*self.directory;
        renameat(from, pending_name(segment, offset), from, &file).map_err(failed("rename", &file))?;
        self.notice(Notice::Torn { file, bytes: length });
        Ok(())
    }
}

fn pending_name(segment: u32, offset: u64) -> String {
    names::torn(segment, offset).replace(".torn", names::PENDING)
}

fn pending_position(name: &str) -> Option<(u32, u64)> {
    names::torn_position(&format!("{}.torn", name.strip_suffix(names::PENDING)?))
}
