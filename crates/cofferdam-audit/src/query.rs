//! Queries for lines of a log. Their position in the chain is checked by `verify`, not here.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fd::OwnedFd;

use crate::error::failed;
use crate::segment::Lines;
use crate::{Digest, Error, ExecutionId, Record, Result, Text, Timestamp, files, line, names};

/// The conditions of a query. A line must meet all of them. Lines without an execution match only a filter without id
/// and tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The execution.
    pub id: Option<ExecutionId>,
    /// The tenant.
    pub tenant: Option<Text<128>>,
    /// The earliest time. The time of an execution is its start.
    pub from: Option<Timestamp>,
    /// The end of the time range, exclusive.
    pub until: Option<Timestamp>,
}

impl Filter {
    /// Returns true if a line meets all conditions.
    pub fn matches(&self, record: &Record) -> bool {
        let id = self.id.as_ref().is_none_or(|id| record.id() == Some(id));
        let tenant = self.tenant.as_ref().is_none_or(|tenant| record.tenant() == Some(tenant.as_str()));
        let from = self.from.is_none_or(|from| record.time().is_some_and(|time| time >= from));
        let until = self.until.is_none_or(|until| record.time().is_some_and(|time| time < until));
        id && tenant && from && until
    }
}

/// A line and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The number of the segment.
    pub segment: u32,
    /// The number of the line in the segment, from 1.
    pub line: u64,
    /// The number of the line in the log.
    pub seq: u64,
    /// The hash of the line.
    pub hash: Digest,
    /// The content of the line.
    pub record: Record,
}

/// Queries the segments that a log has now, and returns matching lines.
pub fn query(directory: &Path, filter: Filter) -> Result<Query> {
    let directory = files::any_directory(directory)?;
    let mut segments = names::segments(&directory)?;
    segments.reverse();
    Ok(Query { directory, filter, segments, reading: None })
}

/// An iterator over matching lines, in the order in which they were written.
///
/// A damaged line is an error, and the iterator continues with the next line. Any other error is the last item.
pub struct Query {
    directory: OwnedFd,
    filter: Filter,
    /// The remaining segments, the last one first.
    segments: Vec<u32>,
    reading: Option<Reader>,
}

struct Reader {
    segment: u32,
    line: u64,
    lines: Lines<File>,
}

impl Query {
    /// Returns the last `count` matching lines.
    pub fn tail(self, count: usize) -> Result<Vec<Entry>> {
        let mut last = VecDeque::new();
        for entry in self {
            last.push_back(entry?);
            if last.len() > count {
                last.pop_front();
            }
        }
        Ok(last.into())
    }

    fn advance(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(reader) = &mut self.reading {
                match reader.read()? {
                    Some(entry) if self.filter.matches(&entry.record) => return Ok(Some(entry)),
                    Some(_) => continue,
                    None => self.reading = None,
                }
            }
            let Some(segment) = self.segments.pop() else { return Ok(None) };
            let name = names::segment(segment);
            match files::open_regular(&self.directory, &name, &name) {
                Ok(file) => self.reading = Some(Reader { segment, line: 0, lines: Lines::new(file, 0) }),
                // Retention removed it.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    self.segments.clear();
                    return Err(error);
                }
            }
        }
    }
}

impl Reader {
    fn read(&mut self) -> Result<Option<Entry>> {
        let file = names::segment(self.segment);
        let raw = self.lines.next().map_err(failed("read", &file))?;
        // A writer has not completed the last line, or was killed while it wrote it.
        let Some(raw) = raw.filter(|raw| raw.ended) else { return Ok(None) };
        self.line += 1;
        let checked = match raw.is_too_long() {
            true => Err("a line exceeds the maximum length".to_owned()),
            false => line::check(raw.bytes, None).map_err(|flaw| flaw.to_string()),
        };
        let checked = checked.map_err(|reason| Error::Damaged { file, offset: raw.offset, reason })?;
        let line::Line { seq, record, .. } = checked.line;
        Ok(Some(Entry { segment: self.segment, line: self.line, seq, hash: checked.hash, record }))
    }
}

impl Iterator for Query {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        let found = self.advance();
        if matches!(&found, Err(error) if !matches!(error, Error::Damaged { .. })) {
            self.segments.clear();
            self.reading = None;
        }
        found.transpose()
    }
}
