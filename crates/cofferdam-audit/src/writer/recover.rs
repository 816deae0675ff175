//! What a crash in the middle of a write leaves, and how the log goes on behind it.
//!
//! Bytes without a line break at the end of a segment are put into a file of their own first, then cut off, then a line
//! tells of them, then their file gets its final name. Whatever step a crash comes after, the next writer goes on there.

use std::io::{Read, Write};

use rustix::fs::renameat;

use super::{Notice, Writer};
use crate::error::failed;
use crate::head::Head;
use crate::line;
use crate::{Digest, Error, Record, Result, Sync, Timestamp, Torn, files, names};

/// The most of a set-aside file that is read again.
const MOST: u64 = 4 << 20;

impl Writer {
    /// Sets aside what stands behind the last whole line of the tail. Gives the last line that was there before.
    pub(super) fn recover(&mut self, torn: &[u8]) -> Result<Head> {
        let tail = self.tail()?;
        let found = tail.head();
        let (segment, offset) = (tail.segment, tail.size);
        // A line that lacks nothing but its line break gets that.
        if let Ok(checked) = line::check(torn, self.key.as_ref())
            && checked.line.prev == tail.hash
            && checked.line.seq == tail.seq + 1
        {
            let name = names::segment(segment);
            (&*tail.file).write_all(b"\n").map_err(failed("append to", &name))?;
            if let Some(tail) = &mut self.tail {
                tail.size += torn.len() as u64 + 1;
                (tail.seq, tail.hash) = (checked.line.seq, checked.hash);
                self.group.wrote(&tail.file);
            }
            return self.head();
        }
        let pending = pending_name(segment, offset);
        match self.put_aside(&pending, torn) {
            Err(Error::NoSpace { .. }) => {
                // The reserve gives way to the file.
                let trimmed = self.tail()?.file.set_len(offset + torn.len() as u64);
                trimmed.map_err(failed("trim", &names::segment(segment)))?;
                self.put_aside(&pending, torn)?;
            }
            other => other?,
        }
        let tail = self.tail()?;
        tail.file.set_len(offset).map_err(failed("cut off the torn end of", &names::segment(segment)))?;
        self.restore_reserve();
        self.tell_of_torn(segment, offset, torn)?;
        Ok(found)
    }

    /// Goes on where a writer ended while it set something aside, and removes what others left half made.
    pub(super) fn finish_recoveries(&mut self) -> Result<()> {
        for name in files::names(&*self.directory)? {
            let Some((segment, offset)) = pending_place(&name) else { continue };
            let mut bytes = Vec::new();
            let file = files::open_regular(&*self.directory, &name, &name)?;
            file.take(MOST).read_to_end(&mut bytes).map_err(failed("read", &name))?;
            self.tell_of_torn(segment, offset, &bytes)?;
        }
        Ok(())
    }

    /// Removes segments and artifacts that were never finished.
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

    fn tell_of_torn(&mut self, segment: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = names::torn(segment, offset);
        let (length, sha256) = (bytes.len() as u64, Digest::of(bytes));
        let torn = Torn { file: file.clone(), segment, offset, bytes: length, sha256, time: Timestamp::now() };
        self.append(Record::Torn(torn))?;
        let from = &*self.directory;
        renameat(from, pending_name(segment, offset), from, &file).map_err(failed("give its name to", &file))?;
        self.notice(Notice::Torn { file, bytes: length });
        Ok(())
    }
}

fn pending_name(segment: u32, offset: u64) -> String {
    names::torn(segment, offset).replace(".torn", names::PENDING)
}

fn pending_place(name: &str) -> Option<(u32, u64)> {
    names::torn_place(&format!("{}.torn", name.strip_suffix(names::PENDING)?))
}
