//! The writing side of the log.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::failed;
use crate::synchronise::{Group, Written};
use crate::writer::{Notice, Writer};
use crate::{
    ArtifactWriter, Cancelled, Config, End, Error, Expect, Filter, Head, Key, Mandatory, Outcome, Page, Part,
    PartReport, Record, Redactor, Report, Result, SandboxRecord, Subject, Text, Timestamp, Verdict, files, page, query,
    verify,
};

/// The maximum pause between two attempts to lock the log.
const MAX_PAUSE: Duration = Duration::from_millis(2);

/// A log that is open for writing. Clones are the same writer. Threads and processes may write concurrently.
///
/// Calls block on the disk and on other writers (at most [`Config::lock_wait`]). Asynchronous code must call them on a
/// blocking thread.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    writer: Mutex<Writer>,
    path: PathBuf,
    key: Option<PathBuf>,
    directory: Arc<OwnedFd>,
    group: Arc<Group>,
    process: u32,
    wait: Duration,
    mandatory: Mandatory,
}

impl Log {
    /// Opens a log. Starts a new one if its directory is missing or empty.
    ///
    /// Repairs the traces of a crash, and reports them through [`Log::notices`] and in the log.
    ///
    /// # Errors Fails if the directory or a file belongs to another user or is writable by others, if the log has a
    /// different key, or if its end is damaged in a way that no crash of a writer explains.
    pub fn open(config: Config) -> Result<Self> {
        let (path, key_file) = (config.directory.clone(), config.key.clone());
        let key = key_file.as_deref().map(Key::read).transpose()?;
        let directory = Arc::new(files::own_directory(&config.directory)?);
        let (wait, mandatory) = (config.lock_wait, config.mandatory);
        let group = Arc::new(Group::default());
        let lock = Lock::take(&directory, wait)?;
        let writer = Writer::open(config, key, directory.clone(), group.clone())?;
        drop(lock);
        let begun = writer.unsynchronised();
        let process = std::process::id();
        let log = Self(Arc::new(Shared {
            writer: Mutex::new(writer),
            path,
            key: key_file,
            directory,
            group,
            process,
            wait,
            mandatory,
        }));
        log.0.synchronise(begun)?;
        Ok(log)
    }

    /// Records that an execution is about to begin, and makes sure that the reserve for its outcome is free.
    ///
    /// # Behavior
    /// - When this returns, the begin record is in the log, and on the disk with [`crate::Sync::Each`].
    /// - A full disk or quota, a read-only file system and an I/O error are errors. Nothing may be started after them.
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

    /// Records what belongs to a sandbox rather than to one execution: its connections and requests, and denied requests
    /// of plugins. All lines are
    /// synchronized by one call. On a full disk, none of them uses the reserve for outcomes.
    pub fn record_network(&self, records: Vec<SandboxRecord>) -> Result<()> {
        let written = self.0.locked(|writer| {
            self.0.group.check()?;
            writer.rotate_if_due()?;
            for record in records {
                writer.reserve_space()?;
                writer.append(record.into())?;
            }
            Ok(writer.unsynchronised())
        })?;
        self.0.synchronise(written)
    }

    /// Returns the position of the last line. Stored out of reach of the log's user, it proves later that the log was
    /// not cut off before it.
    pub fn head(&self) -> Result<Head> {
        self.0.locked(|writer| writer.head())
    }

    /// Returns at most `count` matching lines of a part of the log, like [`page`].
    pub fn page(&self, filter: &Filter, part: Part, count: usize) -> Result<Page> {
        page(&self.0.path, filter, part, count)
    }

    /// Verifies the log, with its key if it has one, like [`verify`].
    pub fn verify(&self) -> Result<Report> {
        let key = self.0.key.as_deref().map(Key::read).transpose()?;
        verify(&self.0.path, &Expect { key, ..Expect::default() })
    }

    /// Verifies the log, and describes the part of a tenant without anything of other tenants.
    pub fn verify_part(&self, tenant: &Text<128>) -> Result<PartReport> {
        let is_whole = self.verify()?.verdict != Verdict::Broken;
        let mut part = PartReport { is_whole, records: 0, first: None, last: None, network_lost: 0 };
        let filter = Filter { tenant: Some(tenant.clone()), ..Filter::default() };
        for entry in query(&self.0.path, filter)? {
            let entry = match entry {
                Ok(entry) => entry,
                // The verdict has it.
                Err(Error::Damaged { .. }) => continue,
                Err(error) => return Err(error),
            };
            part.records += 1;
            part.first.get_or_insert(entry.hash);
            part.last = Some(entry.hash);
            if let Record::NetworkLost(lost) = entry.record {
                part.network_lost = part.network_lost.saturating_add(lost.count);
            }
        }
        Ok(part)
    }

    /// Calls a function with the tenant and the bytes of each further line that has a tenant. The function must not use the
    /// log.
    pub fn set_meter(&self, meter: impl Fn(&str, usize) + Send + 'static) {
        self.0.lock().meter = Some(Box::new(meter));
    }

    /// Returns true if nothing may happen without a record.
    pub fn is_mandatory(&self) -> bool {
        self.0.mandatory == Mandatory::Yes
    }

    /// Returns irregularities found since the last call, at most 64.
    pub fn notices(&self) -> Vec<Notice> {
        self.0.lock().take_notices()
    }
}

/// An execution that has begun. If it is dropped without an end record, `verify` reports it as open.
pub struct Reservation {
    log: Log,
    subject: Subject,
    /// The number of the begin record, if it could be written.
    begin: Option<u64>,
    problem: Option<Error>,
    open: bool,
}

impl Reservation {
    /// Returns the error that prevented a record so far. Only possible if logging is not mandatory.
    pub fn problem(&self) -> Option<&Error> {
        self.problem.as_ref()
    }

    /// Starts the artifact with code and result. Returns `None` if the log stores none.
    ///
    /// An error must be recorded as [`crate::Artifact::Lost`]. An execution without a begin record is also an error: an
    /// artifact that no line explains would look like one whose lines were removed.
    pub fn artifact(&self, redactor: &Redactor) -> Result<Option<ArtifactWriter>> {
        self.log.0.locked(|writer| {
            let (Some(directory), Some(max_bytes)) = (&writer.artifacts, writer.config.artifact_bytes) else {
                return Ok(None);
            };
            if self.begin.is_none() {
                let reason = "the log has no begin record of its execution; repair the log first";
                return Err(Error::Invalid { what: "an artifact", reason });
            }
            let synchronise = writer.config.sync != crate::Sync::Never;
            ArtifactWriter::create(directory.clone(), &self.subject.id, max_bytes, redactor, synchronise).map(Some)
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
            return Err(Error::Invalid { what: "a second end record", reason: "an execution can end only once" });
        }
        let (head, written) = self.log.0.locked(|writer| {
            // The reserve is only for executions whose begin was recorded.
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
    /// Locks the writer, even if another thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            self.writer.clear_poison();
            let mut writer = poisoned.into_inner();
            writer.forget();
            writer
        })
    }

    /// Synchronizes a line outside of the lock, so that threads share one call.
    fn synchronise(&self, written: Option<Written>) -> Result<()> {
        written.map_or(Ok(()), |written| self.group.synchronise(&written))
    }

    /// Runs an operation under the lock of the log, after refreshing the known end of the log.
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
