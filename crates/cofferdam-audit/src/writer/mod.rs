//! The operations of a writer that holds the lock of the log.
//!
//! ```text
//! lock -> refresh: is the end unchanged? -- no --> find it again -> set torn bytes aside, record a gap
//!                           | yes                        |
//!                           v                            v
//!           begin only: reserve space -> append -> head file -> unlock -> synchronise
//! ```

mod recover;
mod reserve;
mod retention;
mod rotate;

pub(crate) use rotate::unfinished_first;

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use crate::error::failed;
use crate::head::{Head, HeadFile, Opened};
use crate::line::{self, Sealed};
use crate::synchronise::{Group, Written};
use crate::{Config, Digest, Error, Gap, Key, Record, Result, Sync, Timestamp, files, names, tail};

/// An irregularity that a writer found. All but the failures are recorded in the log as well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// A crash had left an unfinished line.
    #[error("an unfinished line of {bytes} bytes was set aside as {file}")]
    Torn {
        /// The file that holds it now.
        file: String,
        /// Its length.
        bytes: u64,
    },
    /// The log had been longer.
    #[error(
        "lines after number {found} are missing: number {written} had been written; lost in a power cut, or cut off"
    )]
    Gap {
        /// The last line that had been written.
        written: u64,
        /// The last line that was there.
        found: u64,
    },
    /// The file that says how long the log had been said nothing.
    #[error(
        "the log's head was missing or could not be read: whether lines after number {found} are missing, nobody knows"
    )]
    UnknownEnd {
        /// The last line that was there.
        found: u64,
    },
    /// Something besides the lines themselves did not work.
    #[error("{doing} failed: {reason}")]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// What was wrong.
        reason: String,
    },
}

/// More notices than anybody reads.
const MOST_NOTICES: usize = 64;

/// The end of the log, as this writer saw it last.
struct Tail {
    segment: u32,
    file: Arc<File>,
    device: u64,
    inode: u64,
    size: u64,
    seq: u64,
    hash: Digest,
    /// The offset up to which blocks are allocated, or 0 if that is unknown.
    allocated: u64,
}

impl Tail {
    fn head(&self) -> Head {
        Head { seq: self.seq, segment: self.segment, hash: self.hash }
    }
}

/// A writer's state. Everything but the opening is done under the lock of the directory.
pub(crate) struct Writer {
    pub(crate) config: Config,
    pub(crate) key: Option<Key>,
    directory: Arc<OwnedFd>,
    pub(crate) artifacts: Option<Arc<OwnedFd>>,
    head: HeadFile,
    tail: Option<Tail>,
    /// The last line that is known to have been written.
    expected: Option<Head>,
    /// Whether there was a log, of which nothing says how long it had been.
    unknown_end: bool,
    notices: Vec<Notice>,
    group: Arc<Group>,
}

impl Writer {
    /// Under the lock of the directory.
    pub fn open(config: Config, key: Option<Key>, directory: Arc<OwnedFd>, group: Arc<Group>) -> Result<Self> {
        let artifacts = match config.artifact_bytes {
            Some(_) => Some(Arc::new(files::own_subdirectory(&directory, names::ARTIFACTS)?)),
            None => None,
        };
        let Opened { file: head, head: expected, was_there } = HeadFile::open(&*directory)?;
        let mut writer = Self {
            config,
            key,
            directory,
            artifacts,
            head,
            tail: None,
            expected,
            unknown_end: false,
            notices: Vec::new(),
            group,
        };
        // A writer that was killed before it gave the head its name has not begun a log, either.
        writer.unknown_end = expected.is_none() && (was_there || !writer.segments()?.is_empty());
        writer.begin()?;
        Ok(writer)
    }

    fn begin(&mut self) -> Result<()> {
        self.finish_beginning()?;
        self.sweep()?;
        self.refresh()?;
        if self.unknown_end {
            let found = self.head()?;
            self.tell_of_unknown_end(found)?;
        }
        self.finish_recoveries()?;
        self.head.write(&self.head()?)?;
        // Not before it is told that there was none.
        self.head.name(&*self.directory)?;
        self.unknown_end = false;
        Ok(())
    }

    /// The last line.
    pub fn head(&self) -> Result<Head> {
        Ok(self.tail()?.head())
    }

    /// What was met since the last time that somebody asked.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Makes sure that the tail is the end of the log.
    pub fn refresh(&mut self) -> Result<()> {
        let Some(known) = self.tail.take() else { return self.find() };
        if self.stat(&names::segment(known.segment + 1))?.is_none()
            && let Some(stat) = self.stat(&names::segment(known.segment))?
            && (stat.st_dev, stat.st_ino) == (known.device, known.inode)
        {
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            if size == known.size {
                self.tail = Some(known);
                return Ok(());
            }
            if size > known.size {
                self.expected = Some(known.head());
                return self.load(known.segment, known.file);
            }
        }
        self.expected = Some(known.head());
        self.find()
    }

    /// Appends a line. Without [`Self::reserve_space`] before it, the line may use the reserve.
    pub fn append(&mut self, record: Record) -> Result<Head> {
        let tail = self.tail()?;
        let sealed = line::seal(tail.seq + 1, tail.hash, record, self.key.as_ref())?;
        self.write(&sealed)
    }

    /// Returns the last line that was written, if the policy is to synchronise it.
    pub fn unsynchronised(&self) -> Option<Written> {
        if self.config.sync == Sync::Never { None } else { self.group.latest() }
    }

    /// Forgets the end of the log, so that the next operation finds it again.
    pub fn forget(&mut self) {
        self.expected = self.tail.take().map(|tail| tail.head()).or(self.expected);
    }

    fn tail(&self) -> Result<&Tail> {
        let lost = "its end is not known any more; try again";
        self.tail.as_ref().ok_or(Error::Invalid { what: "the log", reason: lost })
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() < MOST_NOTICES {
            self.notices.push(notice);
        }
    }

    /// Tells of something that failed and does not keep a line from being written.
    fn bear(&mut self, doing: &'static str, result: Result<()>) {
        if let Err(error) = result {
            self.notice(Notice::Failed { doing, reason: error.to_string() });
        }
    }

    fn stat(&self, name: &str) -> Result<Option<rustix::fs::Stat>> {
        match statat(&*self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("look at", name)(error)),
        }
    }

    /// Numbers of the segments that are there, from the first to the last.
    fn segments(&self) -> Result<Vec<u32>> {
        let names = files::names(&*self.directory)?;
        let mut segments: Vec<u32> = names.iter().filter_map(|name| names::segment_number(name)).collect();
        segments.sort_unstable();
        Ok(segments)
    }

    /// Looks for the end of the log, and begins one if there is none.
    fn find(&mut self) -> Result<()> {
        match self.segments()?.last() {
            Some(last) => {
                let file = files::open_own(&*self.directory, &names::segment(*last))?;
                self.load(*last, Arc::new(file))
            }
            None => {
                self.begin_segment(1, None)?;
                let found = self.head()?;
                self.tell_of_gap(found)
            }
        }
    }

    /// Takes a segment's end as the log's, and puts it in order.
    fn load(&mut self, segment: u32, file: Arc<File>) -> Result<()> {
        let name = names::segment(segment);
        let stat = files::stat(&*file, &name)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.check_start(segment, &file)?;
        let ending = tail::read(&file, size, &name, self.key.as_ref())?;
        let (seq, hash) = (ending.last.line.seq, ending.last.hash);
        let (device, inode) = (stat.st_dev, stat.st_ino);
        self.tail = Some(Tail { segment, file, device, inode, size: ending.end, seq, hash, allocated: 0 });
        // A line that tells of torn bytes is not one that was there.
        let found = if ending.torn.is_empty() { self.head()? } else { self.recover(&ending.torn)? };
        self.tell_of_gap(found)
    }

    /// Tells that nothing says how long the log had been.
    fn tell_of_unknown_end(&mut self, found: Head) -> Result<()> {
        let found = found.seq;
        let gap = Gap { written: found, written_hash: Digest::ZERO, found, time: Timestamp::now() };
        self.append(Record::Gap(gap))?;
        self.notice(Notice::UnknownEnd { found });
        Ok(())
    }

    /// Tells of lines that are missing, if the last one that was there is not the last that had been written.
    fn tell_of_gap(&mut self, found: Head) -> Result<()> {
        let Some(expected) = self.expected else { return Ok(()) };
        let other = found.seq == expected.seq && found.hash != expected.hash;
        if found.seq < expected.seq || other {
            let (written, found) = (expected.seq, found.seq);
            let gap = Gap { written, written_hash: expected.hash, found, time: Timestamp::now() };
            self.append(Record::Gap(gap))?;
            self.notice(Notice::Gap { written, found });
        }
        self.expected = None;
        Ok(())
    }

    /// Writes a line whole or not at all.
    fn write(&mut self, sealed: &Sealed) -> Result<Head> {
        reserve::within_file_limit(self.tail()?.size + sealed.bytes.len() as u64)?;
        let Some(tail) = &mut self.tail else { return self.head() };
        let name = names::segment(tail.segment);
        if let Err(error) = (&*tail.file).write_all(&sealed.bytes) {
            // Half a line must not stay. If it cannot be taken back, the next writer finds it torn.
            match tail.file.set_len(tail.size) {
                Ok(()) => self.restore_reserve(),
                Err(_) => self.forget(),
            }
            return Err(failed("append to", &name)(error));
        }
        tail.size += sealed.bytes.len() as u64;
        tail.seq += 1;
        tail.hash = sealed.hash;
        self.group.wrote(&tail.file);
        let head = tail.head();
        let written = self.head.write(&head);
        self.bear("writing the head file", written);
        Ok(head)
    }
}
