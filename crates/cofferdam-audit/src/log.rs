//! The writing side of the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::failed;
use crate::synchronise::{Group, Written};
use crate::writer::{Notice, Writer};
use crate::{
    ArtifactWriter, Cancelled, Config, End, Error, Head, Key, Mandatory, Outcome, Record, Redactor, Result, Subject,
    Text, Timestamp, files,
};

/// The maximum pause between two attempts to lock the log.
const MAX_PAUSE: Duration = Duration::from_millis(2);

/// A log that is open for writing. Clones are the same writer; threads and processes may write at once.
///
/// Calls wait for the disk and for other writers (at most [`Config::lock_wait`]), so asynchronous code calls them on a
/// thread where it may wait.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    writer: Mutex<Writer>,
    directory: Arc<OwnedFd>,
    group: Arc<Group>,
    process: u32,
    wait: Duration,
    mandatory: Mandatory,
}

impl Log {
    /// Opens a log, and begins it if its directory is missing or empty.
    ///
    /// Repairs what a crash left, and reports it by [`Log::notices`] and in the log. Fails if the directory or a file
    /// belongs to another user or others can write to it, if the log has another key, or if its end is damaged in a way
    /// that no crash of a writer explains.
    pub fn open(config: Config) -> Result<Self> {
        let key = config.key.as_deref().map(Key::read).transpose()?;
        let directory = Arc::new(files::own_directory(&config.directory)?);
        let (wait, mandatory) = (config.lock_wait, config.mandatory);
        let group = Arc::new(Group::default());
        let lock = Lock::take(&directory, wait)?;
        let writer = Writer::open(config, key, directory.clone(), group.clone())?;
        drop(lock);
        let begun = writer.unsynchronised();
        let process = std::process::id();
        let log = Self(Arc::new(Shared { writer: Mutex::new(writer), directory, group, process, wait, mandatory }));
        log.0.synchronise(begun)?;
        Ok(log)
    }

    /// Records that an execution is about to begin, and makes sure that the reserve for its outcome is free.
    ///
    /// # Behavior
    /// - The begin record is in the log when this returns, and on the disk with [`crate::Sync::Each`].
    /// - A full disk or quota, a read-only file system and an I/O error are errors, after which nothing may be started.
    ///   With [`Mandatory::No`], [`Reservation::problem`] returns them instead.
    pub fn reserve(&self, subject: Subject) -> Result<Reservation> {
        let reserved = self.0.locked(|writer| {
            self.0.group.check()?;
            writer.rotate_if_due()?;
            writer.reserve_space()?;
            let begun = writer.append(Record::Begin(Box::new(subject.clone())))?;
            Ok((begun.seq, writer.unsynchronised()))
        });
        let begun = reserved.and_then(|(begin, written)| self.0.synchronise(written).map(|()| begin));
        let (begin, problem) = match (begun, self.0.mandatory) {
            (Ok(begin), _) => (Some(begin), None),
            (Err(error), Mandatory::Yes) => return Err(error),
            (Err(error), Mandatory::No) => (None, Some(error)),
        };
        Ok(Reservation { log: self.clone(), subject, begin, problem, open: true })
    }

    /// Returns the last line. Stored out of reach of the log's user, it proves later that the log was not cut off before it.
    pub fn head(&self) -> Result<Head> {
        self.0.locked(|writer| writer.head())
    }

    /// Returns irregularities that were found since the last call, at most 64.
    pub fn notices(&self) -> Vec<Notice> {
        self.0.lock().take_notices()
    }
}

/// An execution that began. `verify` reports it as open if it is dropped without a record of its end.
pub struct Reservation {
    log: Log,
    subject: Subject,
    /// The number of the begin record, if it could be written.
    begin: Option<u64>,
    problem: Option<Error>,
    open: bool,
}

impl Reservation {
    /// Why the execution could not be logged so far; only where logging is not mandatory.
    pub fn problem(&self) -> Option<&Error> {
        self.problem.as_ref()
    }

    /// Begins to store code and result. `None` if the log keeps none.
    ///
    /// An error here is [`crate::Artifact::Lost`] in the record; so is an execution that has no begin line, because an
    /// artifact that no line explains is taken for one whose lines are gone.
    pub fn artifact(&self, redactor: &Redactor) -> Result<Option<ArtifactWriter>> {
        self.log.0.locked(|writer| {
            let (Some(directory), Some(most)) = (&writer.artifacts, writer.config.artifact_bytes) else {
                return Ok(None);
            };
            if self.begin.is_none() {
                let reason = "the log could not say that its execution began; mend the log first";
                return Err(Error::Invalid { what: "an artifact", reason });
            }
            let synchronise = writer.config.sync != crate::Sync::Never;
            ArtifactWriter::create(directory.clone(), &self.subject.id, most, redactor, synchronise).map(Some)
        })
    }

    /// Records the outcome.
    ///
    /// # Behavior
    /// - On a full disk the line uses the reserve, which holds 64 lines of the maximum length over all executions.
    /// - Can be retried after an error, unless the line was written and only its synchronisation failed.
    pub fn commit(&mut self, outcome: Outcome) -> Result<Head> {
        let end = End { begin: self.begin, subject: self.subject.clone(), outcome };
        self.finish(Record::End(Box::new(end)))
    }

    /// Records that the execution was never started.
    pub fn cancel(mut self, reason: &str) -> Result<()> {
        let Some(begin) = self.begin else { return Ok(()) };
        let (id, tenant) = (self.subject.id.clone(), self.subject.tenant.clone());
        let (time, reason) = (Timestamp::now(), Text::new(reason));
        self.finish(Record::Cancelled(Cancelled { begin, id, tenant, time, reason })).map(drop)
    }

    fn finish(&mut self, record: Record) -> Result<Head> {
        if !self.open {
            return Err(Error::Invalid { what: "a second end record", reason: "an execution ends once" });
        }
        let (head, written) = self.log.0.locked(|writer| {
            // The reserve is for executions that the log allowed to begin.
            if self.begin.is_none() {
                writer.reserve_space()?;
            }
            Ok((writer.append(record)?, writer.unsynchronised()))
        })?;
        self.open = false;
        self.log.0.synchronise(written)?;
        Ok(head)
    }
}

impl Shared {
    /// Locks the writer, also after another thread panicked with it.
    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            self.writer.clear_poison();
            let mut writer = poisoned.into_inner();
            writer.forget();
            writer
        })
    }

    /// Synchronises a line outside of the lock, so that threads share one call.
    fn synchronise(&self, written: Option<Written>) -> Result<()> {
        written.map_or(Ok(()), |written| self.group.synchronise(&written))
    }

    /// Runs an operation under the lock of the log, with the end of the log known.
    fn locked<T>(&self, work: impl FnOnce(&mut Writer) -> Result<T>) -> Result<T> {
        if std::process::id() != self.process {
            return Err(Error::Forked);
        }
        let mut writer = self.lock();
        let _lock = Lock::take(&self.directory, self.wait)?;
        writer.refresh()?;
        work(&mut writer)
    }
}

/// The lock of a log, on its directory.
struct Lock(Arc<OwnedFd>);

impl Lock {
    fn take(directory: &Arc<OwnedFd>, wait: Duration) -> Result<Self> {
        let begun = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            match flock(directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(directory.clone())),
                Err(Errno::WOULDBLOCK) if begun.elapsed() < wait => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(MAX_PAUSE);
                }
                Err(Errno::WOULDBLOCK) => return Err(Error::Busy { waited: begun.elapsed() }),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed("lock", "the log's directory")(error)),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
