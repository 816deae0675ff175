//! Verification of a log, in one pass and bounded memory.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FlockOperation, flock, statat};
use rustix::io::Errno;

use crate::error::failed;
use crate::line::{self, Checked, VERSION};
use crate::report::{Report, Weight};
use crate::segment::{Lines, RawLine};
use crate::writer::unfinished_first;
use crate::{
    Artifact, Digest, Error, ExecutionId, Gap, Head, Key, Record, Removed, Result, SegmentStart, Timestamp, Torn,
};
use crate::{artifact, files, head, names};

/// The maximum number of executions without an end that are tracked by name.
const MAX_OPEN: usize = 1 << 16;
/// The maximum number of listed executions without an end.
const MAX_LISTED: usize = 100;
/// The maximum time to wait for a writer.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// The maximum number of attempts if retention removes files meanwhile.
const MAX_ATTEMPTS: usize = 16;

/// Expectations of a log, stored outside of it.
#[derive(Debug, Default)]
pub struct Expect {
    /// The hash of a line that was once the last. A log without it was cut off or rewritten.
    pub head: Option<Digest>,
    /// The key that signs the lines.
    pub key: Option<Key>,
    /// True to also compare artifacts with their hashes, and to report artifacts without a line.
    pub artifacts: bool,
}

/// Verifies the whole log. Writers may continue meanwhile; lines that they add later are not read.
///
/// # Errors Fails if a file cannot be read. A broken log is no error, but a verdict of the report.
pub fn verify(directory: &Path, expect: &Expect) -> Result<Report> {
    let directory = files::any_directory(directory)?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let snapshot = Snapshot::take(&directory, expect)?;
        match Walk::new(&directory, expect, &snapshot).all(&snapshot) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound && attempts < MAX_ATTEMPTS => {}
            other => return other,
        }
    }
}

/// The files of a log at one moment.
struct Snapshot {
    /// Segments in order, with their sizes.
    segments: Vec<(u32, u64)>,
    head: Option<Result<Head, ()>>,
    /// The first line of a log whose first segment does not have its final name yet.
    unfinished: Option<Head>,
    /// Names of artifacts, if they are to be checked. Their executions began before this list was read.
    artifacts: Vec<String>,
}

impl Snapshot {
    /// Lists the files under the lock, while no writer is in the middle of an operation.
    fn take(directory: &OwnedFd, expect: &Expect) -> Result<Self> {
        const SHOWN: &str = "the log's directory";
        // A separate descriptor, so that the lock ends with it.
        let lock = files::reopen(directory)?;
        let begun = Instant::now();
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockShared) {
            match error {
                Errno::INTR => {}
                Errno::WOULDBLOCK if begun.elapsed() < LOCK_WAIT => std::thread::sleep(Duration::from_micros(200)),
                Errno::WOULDBLOCK => return Err(Error::Busy { waited: begun.elapsed() }),
                other => return Err(failed("lock", SHOWN)(other)),
            }
        }
        let mut segments = Vec::new();
        for number in names::segments(&lock)? {
            let name = names::segment(number);
            let stat = statat(&lock, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("inspect", &name))?;
            segments.push((number, u64::try_from(stat.st_size).unwrap_or(0)));
        }
        let head = head::of(&lock)?;
        let unfinished = match segments.is_empty() {
            true => unfinished_first(&lock, expect.key.as_ref())?,
            false => None,
        };
        let artifacts = match files::subdirectory(&lock, names::ARTIFACTS)?.filter(|_| expect.artifacts) {
            Some(artifacts) => files::names(&artifacts)?,
            None => Vec::new(),
        };
        let artifacts = artifacts.into_iter().filter(|name| name.ends_with(artifact::EXTENSION)).collect();
        Ok(Self { segments, head, unfinished, artifacts })
    }

    /// Returns true if a writer was killed while it started the log: the head file names the first line, whose segment
    /// still has its temporary name.
    fn is_beginning(&self) -> bool {
        self.segments.is_empty() && self.unfinished.is_some() && self.head == self.unfinished.map(Ok)
    }
}

/// The state between two lines.
struct Walk<'a> {
    directory: &'a OwnedFd,
    expect: &'a Expect,
    report: Report,
    /// The current file and line.
    file: String,
    number: u64,
    segment: u32,
    /// Hash and number of the previous line, if it could be read.
    before: Option<Digest>,
    seq: Option<u64>,
    /// The hash before the first existing line.
    origin: Option<Digest>,
    /// The last line of each segment.
    ends: HashMap<u32, Digest>,
    removed: Option<Removed>,
    open: HashMap<ExecutionId, u64>,
    /// Artifacts without a line so far. The flag is true if their execution is running, or was when its writer was
    /// killed.
    artifacts: BTreeMap<String, bool>,
    /// True if lines are known to be missing.
    gaps: bool,
    head: Option<Head>,
    expected_found: bool,
    /// True if the lines of this segment have codes.
    signed: bool,
    /// The number of the first existing line.
    first: u64,
}

impl<'a> Walk<'a> {
    fn new(directory: &'a OwnedFd, expect: &'a Expect, snapshot: &Snapshot) -> Self {
        Self {
            directory,
            expect,
            report: Report::new(),
            file: String::new(),
            number: 0,
            segment: 0,
            before: None,
            seq: None,
            origin: None,
            ends: HashMap::new(),
            removed: None,
            open: HashMap::new(),
            artifacts: snapshot.artifacts.iter().map(|name| (name.clone(), false)).collect(),
            gaps: false,
            head: snapshot.head.and_then(Result::ok),
            expected_found: false,
            signed: false,
            first: u64::MAX,
        }
    }

    fn all(mut self, snapshot: &Snapshot) -> Result<Report> {
        self.report.key_checked = self.expect.key.is_some();
        for (index, (segment, size)) in snapshot.segments.iter().enumerate() {
            let last = index + 1 == snapshot.segments.len();
            let expected = if index == 0 { *segment } else { self.segment + 1 };
            if *segment != expected {
                let (from, to) = (names::segment(expected), names::segment(segment - 1));
                let which = if from == to { format!("{from} is") } else { format!("{from} to {to} are") };
                self.file = names::segment(*segment);
                self.number = 0;
                self.breach(format!("{which} missing before it"));
                (self.before, self.seq) = (None, None);
            }
            self.segment(*segment, *size, last)?;
        }
        self.finish(snapshot);
        self.unnamed_artifacts()?;
        Ok(self.report)
    }

    fn segment(&mut self, segment: u32, size: u64, last: bool) -> Result<()> {
        self.file = names::segment(segment);
        self.segment = segment;
        self.number = 0;
        self.report.segments += 1;
        let file = files::open_regular(self.directory, &self.file, &self.file)?;
        let name = self.file.clone();
        let mut lines = Lines::new(file.take(size), 0);
        while let Some(raw) = lines.next().map_err(failed("read", &name))? {
            self.number += 1;
            self.report.lines += 1;
            self.report.bytes += raw.length;
            self.raw(&raw, last)?;
        }
        if lines.offset() < size {
            self.number = 0;
            self.breach("it became shorter while it was read");
        }
        if self.number == 0 {
            self.breach("it has no lines");
        }
        if let Some(hash) = self.before {
            self.ends.insert(segment, hash);
        }
        Ok(())
    }

    fn raw(&mut self, raw: &RawLine<'_>, last: bool) -> Result<()> {
        if !raw.ended && last && self.number > 1 {
            let reason = format!("{} bytes are an unfinished line; the next writer sets them aside", raw.length);
            self.loss(reason);
            return Ok(());
        }
        let checked = if raw.is_too_long() {
            Err("it exceeds the maximum length of a line".to_owned())
        } else if !raw.ended {
            Err("it has no line break, and is not the last".to_owned())
        } else {
            line::check(raw.bytes, self.expect.key.as_ref()).map_err(|flaw| flaw.to_string())
        };
        match checked {
            Ok(checked) => {
                self.link(&checked);
                (self.before, self.seq) = (Some(checked.hash), Some(checked.line.seq));
                self.report.head = Some(Head { seq: checked.line.seq, segment: self.segment, hash: checked.hash });
                self.record(checked)
            }
            Err(reason) => {
                self.breach(reason);
                self.before = line::claimed(raw.bytes);
                self.seq = self.seq.map(|seq| seq + 1);
                Ok(())
            }
        }
    }

    /// Compares a line with the previous one, and with other knowledge about it.
    fn link(&mut self, checked: &Checked) {
        let (seq, prev) = (checked.line.seq, checked.line.prev);
        self.first = self.first.min(seq);
        let first = self.report.lines == 1;
        if first && self.segment > 1 {
            self.origin = Some(prev);
        }
        let expected = if first && self.segment == 1 { Some((Digest::ZERO, 0)) } else { self.before.zip(self.seq) };
        if let Some((before, number)) = expected {
            let follows = seq.checked_sub(1) == Some(number);
            match (prev == before, follows) {
                (true, true) => {}
                (true, false) => self.breach(format!("it has number {seq} and follows number {number}")),
                (false, true) => self.breach("the previous line is not the one that it was written after"),
                (false, false) if seq > number => {
                    self.breach(format!("{} lines are missing before it, by its number {seq}", seq - number - 1));
                }
                (false, false) => self.breach(format!("it has number {seq} and stands after number {number}")),
            }
        }
        if self.head.is_some_and(|head| head.seq == seq && head.hash != checked.hash) {
            self.breach("it differs from the line with this number in the head file");
        }
        if self.number > 1 && checked.has_code != self.signed {
            self.breach("it is signed, and its segment is not, or the other way round");
        }
        self.expected_found |= self.expect.head == Some(checked.hash);
        if checked.line.v > VERSION {
            self.note(format!("it has format version {}, of which only the chain is checked", checked.line.v));
        }
    }

    fn record(&mut self, checked: Checked) -> Result<()> {
        let seq = checked.line.seq;
        let starts = matches!(checked.line.record, Record::Segment(_));
        if starts != (self.number == 1) {
            self.breach(if starts {
                "a segment begins within another"
            } else {
                "it is not the first line of a segment"
            });
        }
        match checked.line.record {
            Record::Segment(start) => self.start(&start),
            Record::Begin(subject) => {
                self.report.executions.begun += 1;
                self.own_artifact(&subject.id, true);
                if self.open.len() < MAX_OPEN {
                    self.open.insert(subject.id, seq);
                } else {
                    self.report.executions.open += 1;
                }
            }
            Record::End(end) => {
                self.report.executions.ended += 1;
                self.close(&end.subject.id, end.begin);
                match &end.outcome.artifact {
                    Some(Artifact::Stored { file, .. }) => drop(self.artifacts.remove(&**file)),
                    // The file may have got its final name before it was lost.
                    Some(Artifact::Lost { .. }) => drop(self.artifacts.remove(&artifact_name(&end.subject.id))),
                    None => self.own_artifact(&end.subject.id, false),
                }
                if let (Some(artifact), true) = (end.outcome.artifact, self.expect.artifacts) {
                    self.artifact(&artifact)?;
                }
            }
            Record::Cancelled(cancelled) => {
                self.report.executions.cancelled += 1;
                self.own_artifact(&cancelled.id, false);
                self.close(&cancelled.id, Some(cancelled.begin));
            }
            Record::Torn(torn) => self.torn(&torn)?,
            Record::Gap(Gap { written, found, .. }) if written == found => {
                self.gaps = true;
                self.loss(format!("the length of the log was unknown; it went to number {found} at least"));
            }
            Record::Gap(gap) => {
                self.gaps = true;
                let reason =
                    format!("lines after number {} were lost; number {} had been written", gap.found, gap.written);
                self.loss(reason);
            }
            Record::Removed(removed) => self.removed = Some(removed),
            Record::Network(_) | Record::PluginDenied(_) | Record::Call(_) | Record::Action(_) => {}
            Record::NetworkLost(lost) => {
                self.loss(format!("{} connections and requests of a sandbox have no line of their own", lost.count));
            }
            Record::Unknown => self.note("it has a record kind that this version does not know"),
        }
        Ok(())
    }

    fn start(&mut self, start: &SegmentStart) {
        self.signed = start.key.is_some();
        if self.report.lines == 1 {
            self.report.since = Some(start.time);
            self.report.keyed = start.key.is_some();
        }
        let after = (self.segment > 1).then(|| names::segment(self.segment - 1));
        if start.segment != self.segment || start.after != after {
            self.breach(format!("its first line has segment number {}", start.segment));
        }
        if let Some(key) = &self.expect.key
            && start.key != Some(key.id())
        {
            self.breach("it was written with a different key, or with none");
        }
    }

    fn close(&mut self, id: &ExecutionId, begin: Option<u64>) {
        match self.open.get(id) {
            Some(begun) if begin == Some(*begun) => drop(self.open.remove(id)),
            // The execution was not tracked, because there were too many. If its begin was removed, it was never
            // counted.
            _ if begin.is_some_and(|begin| begin >= self.first) => {
                self.report.executions.open = self.report.executions.open.saturating_sub(1)
            }
            _ => {}
        }
    }

    fn torn(&mut self, torn: &Torn) -> Result<()> {
        let what = format!(
            "an unfinished line of {} bytes was set aside as {}",
            torn.bytes,
            names::torn(torn.segment, torn.offset)
        );
        self.loss(what);
        // Only names that this crate assigns are checked.
        match self.hash_of(self.directory, &names::torn(torn.segment, torn.offset))? {
            Some(hash) if hash != torn.sha256 => self.breach("the set-aside bytes were changed"),
            None => {
                self.retained()?;
                self.note("the set-aside bytes are gone");
            }
            _ => {}
        }
        Ok(())
    }

    fn artifact(&mut self, artifact: &Artifact) -> Result<()> {
        let Artifact::Stored { file, sha256, .. } = artifact else { return Ok(()) };
        let named = file.strip_suffix(crate::artifact::EXTENSION).is_some_and(|id| ExecutionId::new(id).is_ok());
        let found = if named { self.hash_of_artifact(file)? } else { None };
        match found {
            Some(hash) if hash == *sha256 => {}
            Some(_) => self.breach("its artifact was changed"),
            None => {
                self.retained()?;
                self.breach("its artifact is gone");
            }
        }
        Ok(())
    }

    /// Fails with `NotFound` if the current segment was removed. Retention removes a segment before the files that it
    /// names, while its lines can still be read. Missing files then mean nothing, and the caller starts again.
    fn retained(&self) -> Result<()> {
        let segment = names::segment(self.segment);
        statat(self.directory, &segment, AtFlags::SYMLINK_NOFOLLOW).map(drop).map_err(failed("inspect", &segment))
    }

    /// Records if the execution of an artifact is running, and so may have stored it without a line.
    fn own_artifact(&mut self, id: &ExecutionId, running: bool) {
        if !self.artifacts.is_empty()
            && let Some(own) = self.artifacts.get_mut(&artifact_name(id))
        {
            *own = running;
        }
    }

    /// Reports artifacts that no line names.
    fn unnamed_artifacts(&mut self) -> Result<()> {
        let Some(directory) = files::subdirectory(self.directory, names::ARTIFACTS)? else { return Ok(()) };
        for name in std::mem::take(&mut self.artifacts).into_iter().filter(|(_, own)| !own).map(|(name, _)| name) {
            let Ok(stat) = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let modified = stat.st_mtime.saturating_mul(1_000_000);
            let older = self.report.since.is_some_and(|since: Timestamp| modified < since.as_micros());
            self.file = format!("{}/{}", names::ARTIFACTS, crate::Text::<256>::new(&name));
            match (&self.removed, self.gaps) {
                // A writer that was killed while it removed segments leaves some for the next writer.
                (Some(_), _) if older => self.note("no line names it; by its age, retention removed its lines"),
                (Some(_), _) | (_, true) => self.loss("no line names it; its line may be among the missing ones"),
                (None, false) => {
                    self.breach("no line names it: the lines of its execution were removed, or it is forged")
                }
            }
        }
        Ok(())
    }

    fn hash_of_artifact(&self, file: &str) -> Result<Option<Digest>> {
        match files::subdirectory(self.directory, names::ARTIFACTS)? {
            Some(artifacts) => self.hash_of(&artifacts, file),
            None => Ok(None),
        }
    }

    fn hash_of(&self, directory: &OwnedFd, name: &str) -> Result<Option<Digest>> {
        match files::open_regular(directory, name, name) {
            Ok(file) => Digest::of_reader(file).map(Some).map_err(failed("read", name)),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(Error::Untrusted { .. }) => Ok(Some(Digest::ZERO)),
            Err(error) => Err(error),
        }
    }

    fn finish(&mut self, snapshot: &Snapshot) {
        self.number = 0;
        self.file = names::segment(snapshot.segments.first().map_or(1, |(first, _)| *first));
        if snapshot.is_beginning() {
            self.loss("a writer was killed while it started the log; the next writer completes it");
        } else if snapshot.segments.is_empty() {
            self.breach("there is no segment in the directory");
        }
        self.beginning(snapshot);
        self.file = names::HEAD.to_owned();
        let last = self.report.head.map_or(0, |head| head.seq);
        match snapshot.head {
            Some(Ok(_)) if snapshot.is_beginning() => {}
            Some(Ok(head)) if head.seq > last => {
                let reason =
                    format!("it names line {}, but the log ends with line {last}: its end was cut off", head.seq);
                self.breach(reason);
            }
            Some(Err(())) => {
                self.breach("it cannot be read, which no crash explains: the log's end may have been cut off");
            }
            None => self.breach("it is missing, which no crash explains: the log's end may have been cut off"),
            Some(Ok(_)) => {}
        }
        if self.expect.head.is_some() && !self.expected_found {
            self.breach("no line has the expected hash: the log was cut off before it, or rewritten");
        }
        if self.report.keyed && !self.report.key_checked {
            self.note("lines are signed, but no key was given, so a rewritten log would not be detected");
        }
        self.report.executions.open += self.open.len() as u64;
        let mut open: Vec<_> = self.open.iter().map(|(id, seq)| (*seq, id.as_str().to_owned())).collect();
        open.sort_unstable();
        self.report.open = open.into_iter().take(MAX_LISTED).map(|(_, id)| id).collect();
    }

    /// Checks that a log which does not begin with segment 1 records the removal of earlier segments by retention.
    fn beginning(&mut self, snapshot: &Snapshot) {
        let Some((first, _)) = snapshot.segments.first().copied() else { return };
        let Some(removed) = self.removed.clone() else {
            if first > 1 {
                self.breach("segments before it are missing, and no line records that retention removed them");
            }
            return;
        };
        // A writer that was killed between the line and the removal leaves some segments.
        let last_removed = match removed.through.checked_add(1) {
            Some(next) if next == first => self.origin,
            Some(next) if next > first => {
                self.note(format!("retention started to remove segments up to {} and did not finish", removed.through));
                self.ends.get(&removed.through).copied()
            }
            _ => None,
        };
        if last_removed != Some(removed.last_hash) {
            self.breach(format!(
                "what is missing before it is not what retention removed, up to segment {}",
                removed.through
            ));
        }
    }

    fn breach(&mut self, reason: impl Into<String>) {
        self.report.add(Weight::Breach, &self.file, self.number, reason);
    }

    fn loss(&mut self, reason: impl Into<String>) {
        self.report.add(Weight::Loss, &self.file, self.number, reason);
    }

    fn note(&mut self, reason: impl Into<String>) {
        self.report.add(Weight::Note, &self.file, self.number, reason);
    }
}

fn artifact_name(id: &ExecutionId) -> String {
    format!("{}{}", id.as_str(), artifact::EXTENSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes files as retention does while the segment is read.
    ///
    /// Promise (Static analysis and audit log): A missing artifact is a breach only while its segment exists.
    #[test]
    fn missing_artifact_is_a_breach_only_while_its_segment_exists() {
        let temp = tempfile::tempdir().unwrap();
        let directory = files::any_directory(temp.path()).unwrap();
        std::fs::write(temp.path().join(names::segment(3)), "").unwrap();
        let expect = Expect { artifacts: true, ..Expect::default() };
        let snapshot = Snapshot::take(&directory, &expect).unwrap();
        let artifact = Artifact::Stored {
            file: "a.jsonl".to_owned(),
            sha256: Digest::ZERO,
            bytes: 1,
            redacted: 0,
            truncated: false,
        };
        let torn = Torn {
            file: names::torn(3, 7),
            segment: 3,
            offset: 7,
            bytes: 1,
            sha256: Digest::ZERO,
            time: Timestamp::now(),
        };
        let mut walk = Walk::new(&directory, &expect, &snapshot);
        walk.segment = 3;
        walk.artifact(&artifact).unwrap();
        walk.torn(&torn).unwrap();
        assert_eq!((walk.report.breaches, walk.report.notes), (1, 1), "{}", walk.report);
        std::fs::remove_file(temp.path().join(names::segment(3))).unwrap();
        for gone in [walk.artifact(&artifact), walk.torn(&torn)] {
            assert!(matches!(gone, Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound));
        }
        assert_eq!((walk.report.breaches, walk.report.notes), (1, 1), "{}", walk.report);
    }
}
