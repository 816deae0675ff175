//! Finds lines of a log, and follows it as it grows. Whether the lines are in their places is for `verify` to say.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::path::Path;

use rustix::fd::OwnedFd;

use crate::error::failed;
use crate::lines::Lines;
use crate::{Digest, Error, ExecutionId, Record, Result, Text, Timestamp, files, line, names};

/// Which lines are wanted: those that fit everything that is given. Lines that are of no execution fit only a filter
/// without id and tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this execution.
    pub id: Option<ExecutionId>,
    /// Of this tenant.
    pub tenant: Option<Text<128>>,
    /// Not before; an execution counts by its start.
    pub from: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
}

impl Filter {
    /// Whether a line is wanted.
    pub fn fits(&self, record: &Record) -> bool {
        let id = self.id.as_ref().is_none_or(|id| record.id() == Some(id));
        let tenant = self.tenant.as_ref().is_none_or(|tenant| record.tenant() == Some(tenant.as_str()));
        let from = self.from.is_none_or(|from| record.time().is_some_and(|time| time >= from));
        let until = self.until.is_none_or(|until| record.time().is_some_and(|time| time < until));
        id && tenant && from && until
    }
}

/// A line and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The segment.
    pub segment: u32,
    /// The line in the segment, from 1.
    pub line: u64,
    /// The line's number in the log.
    pub seq: u64,
    /// Its hash.
    pub hash: Digest,
    /// What it says.
    pub record: Record,
}

/// Reads a log from its first line on and gives the lines that fit.
pub fn query(directory: &Path, filter: Filter) -> Result<Query> {
    Ok(Query { directory: files::any_directory(directory)?, filter, at: None, ended: false })
}

/// Lines that fit, in the order in which they were written.
///
/// `None` means that there is no more at present: asked again later, it goes on with what was added. A line that is not
/// as it was written is an error, after which it goes on with the next one. After any other error there is nothing more:
/// a segment that cannot be read now would be the same error for ever.
pub struct Query {
    directory: OwnedFd,
    filter: Filter,
    at: Option<Place>,
    /// After an error that is not one of a line's.
    ended: bool,
}

struct Place {
    segment: u32,
    line: u64,
    lines: Lines<File>,
}

impl Query {
    /// The last so many that fit.
    pub fn tail(mut self, count: usize) -> Result<Vec<Entry>> {
        let mut last = VecDeque::new();
        while let Some(entry) = self.advance()? {
            if last.len() == count {
                last.pop_front();
            }
            if count > 0 {
                last.push_back(entry);
            }
        }
        Ok(last.into())
    }

    fn advance(&mut self) -> Result<Option<Entry>> {
        loop {
            let Some(at) = &mut self.at else {
                match self.first_after(0)? {
                    Some(first) => self.at = Some(self.open(first)?),
                    None => return Ok(None),
                }
                continue;
            };
            let name = names::segment(at.segment);
            match at.read(&name)? {
                Some(entry) if self.filter.fits(&entry.record) => return Ok(Some(entry)),
                Some(_) => continue,
                None => {}
            }
            // It was closed before the next one was begun, and what was added before that may not be read yet.
            let segment = at.segment;
            let Some(next) = self.first_after(segment)? else { return Ok(None) };
            if let Some(at) = &mut self.at
                && let Some(entry) = at.read(&name)?
            {
                if self.filter.fits(&entry.record) {
                    return Ok(Some(entry));
                }
                continue;
            }
            self.at = Some(self.open(next)?);
        }
    }

    fn first_after(&self, segment: u32) -> Result<Option<u32>> {
        let names = files::names(&self.directory)?;
        Ok(names.iter().filter_map(|name| names::segment_number(name)).filter(|number| *number > segment).min())
    }

    fn open(&self, segment: u32) -> Result<Place> {
        let name = names::segment(segment);
        let file = files::open_regular(&self.directory, &name, &name)?;
        Ok(Place { segment, line: 0, lines: Lines::new(file, 0) })
    }
}

impl Place {
    fn read(&mut self, name: &str) -> Result<Option<Entry>> {
        let Some(raw) = self.lines.next().map_err(failed("read", name))? else { return Ok(None) };
        if !raw.ended {
            // It is being written, or a crash left it. Read it again later, from its beginning.
            let offset = raw.offset;
            return self.lines.go_to(offset).map(|()| None).map_err(failed("read", name));
        }
        self.line += 1;
        let (segment, line) = (self.segment, self.line);
        let damaged = |reason: String| Error::Damaged { file: name.to_owned(), offset: raw.offset, reason };
        if raw.is_too_long() {
            return Err(damaged("a line is longer than a line can be".to_owned()));
        }
        let checked = line::check(raw.bytes, None).map_err(|flaw| damaged(flaw.to_string()))?;
        Ok(Some(Entry { segment, line, seq: checked.line.seq, hash: checked.hash, record: checked.line.record }))
    }
}

impl Lines<File> {
    fn go_to(&mut self, offset: u64) -> std::io::Result<()> {
        let mut file = self.file().try_clone()?;
        file.seek(SeekFrom::Start(offset))?;
        *self = Self::new(file, offset);
        Ok(())
    }
}

impl Iterator for Query {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.ended {
            return None;
        }
        let found = match self.advance() {
            // Retention removed the segment that was to come: go on with what is there now.
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => self.advance(),
            other => other,
        };
        // Lines alone are told to be damaged, and such a line is behind.
        self.ended = matches!(&found, Err(error) if !matches!(error, Error::Damaged { .. }));
        found.transpose()
    }
}
