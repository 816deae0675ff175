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
use crate::{Config, Digest, Error, Gap, Key, Record, Result, Sync, Timestamp, files, names, segment};

/// An irregularity that a writer found. All except failures are also recorded in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// An unfinished line that a crash had left.
    #[error("an unfinished line of {bytes} bytes was set aside as {file}")]
    Torn {
        /// The file that it was moved to.
        file: String,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A log that had been longer.
    #[error(
        "lines after number {found} are missing: number {written} had been written; lost in a power cut, or cut off"
    )]
    Gap {
        /// The number of the last line that had been written.
        written: u64,
        /// The number of the last line that was found.
        found: u64,
    },
    /// A missing or unreadable head file, so that the length of the log was unknown.
    #[error("the head file was missing or unreadable: lines after number {found} may be missing")]
    UnknownEnd {
        /// The number of the last line that was found.
        found: u64,
    },
    /// A failure that does not affect the lines.
    #[error("{doing} failed: {reason}")]
    Failed {
        /// The failed operation.
        doing: &'static str,
        /// The reason.
        reason: String,
    },
}

/// The maximum number of stored notices.
const MAX_NOTICES: usize = 64;

/// The end of the log as this writer last saw it.
struct LogEnd {
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

impl LogEnd {
    fn head(&self) -> Head {
        Head { seq: self.seq, segment: self.segment, hash: self.hash }
    }
}

/// The state of a writer. All operations need the lock of the directory.
pub(crate) struct Writer {
    pub(crate) config: Config,
    pub(crate) key: Option<Key>,
    directory: Arc<OwnedFd>,
    pub(crate) artifacts: Option<Arc<OwnedFd>>,
    head: HeadFile,
    end: Option<LogEnd>,
    /// The last line that is known to have been written.
    expected: Option<Head>,
    /// True if a log existed without a readable head file.
    unknown_end: bool,
    notices: Vec<Notice>,
    group: Arc<Group>,
    /// Is called with the tenant and the bytes of each line that has a tenant.
    pub(crate) meter: Option<Meter>,
}

/// A function that counts lines by tenant.
pub(crate) type Meter = Box<dyn Fn(&str, usize) + Send>;

impl Writer {
    /// Opens a log, or starts one in an empty directory.
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
            end: None,
            expected,
            unknown_end: false,
            notices: Vec::new(),
            group,
            meter: None,
        };
        // A writer that was killed before it named the head file has not started a log.
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
            self.record_unknown_end(found)?;
        }
        self.finish_recoveries()?;
        self.head.write(&self.head()?)?;
        // This happens only after the log records that there was none.
        self.head.name(&*self.directory)?;
        self.unknown_end = false;
        Ok(())
    }

    /// Returns the position of the last line.
    pub fn head(&self) -> Result<Head> {
        Ok(self.end()?.head())
    }

    /// Returns the notices since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Finds the end of the log again if another writer moved it.
    pub fn refresh(&mut self) -> Result<()> {
        let Some(known) = self.end.take() else { return self.find() };
        if self.stat(&names::segment(known.segment + 1))?.is_none()
            && let Some(stat) = self.stat(&names::segment(known.segment))?
            && (stat.st_dev, stat.st_ino) == (known.device, known.inode)
        {
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            if size == known.size {
                self.end = Some(known);
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

    /// Appends a line. Without a previous [`Self::reserve_space`], the line may use the reserve.
    pub fn append(&mut self, record: Record) -> Result<Head> {
        let end = self.end()?;
        let tenant = self.meter.as_ref().and_then(|_| record.tenant().map(str::to_owned));
        let sealed = line::seal(end.seq + 1, end.hash, record, self.key.as_ref())?;
        let head = self.write(&sealed)?;
        if let (Some(meter), Some(tenant)) = (&self.meter, tenant) {
            meter(&tenant, sealed.bytes.len());
        }
        Ok(head)
    }

    /// Returns the last written line, if the policy is to synchronize it.
    pub fn unsynchronised(&self) -> Option<Written> {
        if self.config.sync == Sync::Never { None } else { self.group.latest() }
    }

    /// Forgets the end of the log, so that the next operation finds it again.
    pub fn forget(&mut self) {
        self.expected = self.end.take().map(|end| end.head()).or(self.expected);
    }

    fn end(&self) -> Result<&LogEnd> {
        let lost = "its end is unknown; try again";
        self.end.as_ref().ok_or(Error::Invalid { what: "the log", reason: lost })
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() < MAX_NOTICES {
            self.notices.push(notice);
        }
    }

    /// Turns an error that does not affect the lines into a notice.
    fn tolerate(&mut self, doing: &'static str, result: Result<()>) {
        if let Err(error) = result {
            self.notice(Notice::Failed { doing, reason: error.to_string() });
        }
    }

    fn stat(&self, name: &str) -> Result<Option<rustix::fs::Stat>> {
        match statat(&*self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("inspect", name)(error)),
        }
    }

    /// Returns the numbers of the segments, sorted.
    fn segments(&self) -> Result<Vec<u32>> {
        names::segments(&*self.directory)
    }

    /// Finds the end of the log, and starts a log if there is no segment.
    fn find(&mut self) -> Result<()> {
        match self.segments()?.last() {
            Some(last) => {
                let file = files::open_own(&*self.directory, &names::segment(*last))?;
                self.load(*last, Arc::new(file))
            }
            None => {
                self.begin_segment(1, None)?;
                let found = self.head()?;
                self.record_gap(found)
            }
        }
    }

    /// Takes the end of a segment as the end of the log, and repairs it.
    fn load(&mut self, segment: u32, file: Arc<File>) -> Result<()> {
        let name = names::segment(segment);
        let stat = files::stat(&*file, &name)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.check_start(segment, &file)?;
        let found = segment::read_end(&file, size, &name, self.key.as_ref())?;
        let (seq, hash) = (found.last.line.seq, found.last.hash);
        let (device, inode) = (stat.st_dev, stat.st_ino);
        self.end = Some(LogEnd { segment, file, device, inode, size: found.offset, seq, hash, allocated: 0 });
        // The line that records torn bytes is new.
        let found = if found.torn.is_empty() { self.head()? } else { self.recover(&found.torn)? };
        self.record_gap(found)
    }

    /// Records that the length of the log is unknown.
    fn record_unknown_end(&mut self, found: Head) -> Result<()> {
        let found = found.seq;
        let gap = Gap { written: found, written_hash: Digest::ZERO, found, time: Timestamp::now() };
        self.append(Record::Gap(gap))?;
        self.notice(Notice::UnknownEnd { found });
        Ok(())
    }

    /// Records lines that are missing, if the last line found is not the last one written.
    fn record_gap(&mut self, found: Head) -> Result<()> {
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

    /// Writes a line completely or not at all.
    fn write(&mut self, sealed: &Sealed) -> Result<Head> {
        reserve::within_file_limit(self.end()?.size + sealed.bytes.len() as u64)?;
        let Some(end) = &mut self.end else { return self.head() };
        let name = names::segment(end.segment);
        if let Err(error) = (&*end.file).write_all(&sealed.bytes) {
            // A partial line must not stay. If it cannot be removed, the next writer finds it torn.
            match end.file.set_len(end.size) {
                Ok(()) => self.restore_reserve(),
                Err(_) => self.forget(),
            }
            return Err(failed("append to", &name)(error));
        }
        end.size += sealed.bytes.len() as u64;
        end.seq += 1;
        end.hash = sealed.hash;
        self.group.wrote(&end.file);
        let head = end.head();
        let written = self.head.write(&head);
        self.tolerate("writing the head file", written);
        Ok(head)
    }
}
