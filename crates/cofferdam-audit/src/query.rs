//! Queries for lines of a log. Their position in the chain is checked by `verify`, not here.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fd::OwnedFd;
use serde_json::Value;

use crate::error::failed;
use crate::segment::Lines;
use crate::{Digest, Error, ExecutionId, Record, Result, Text, Timestamp, files, line, names};

/// The conditions of a query. A line must meet all of them. Lines that do not have
/// what a condition names, such as a tenant, do not meet it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The execution.
    pub id: Option<ExecutionId>,
    /// The tenant.
    pub tenant: Option<Text<128>>,
    /// The sandbox. The begin of an execution names none, its end does.
    pub sandbox: Option<Text<128>>,
    /// The kind, such as `end`: one of [`Record::KINDS`].
    pub kind: Option<String>,
    /// The earliest time. The time of an execution is its start.
    pub from: Option<Timestamp>,
    /// The end of the time range, exclusive.
    pub until: Option<Timestamp>,
    /// A part of one of its texts and numbers, as they are in the line, in upper or lower case.
    pub text: Option<String>,
}

impl Filter {
    /// Returns true if a line meets all conditions.
    pub fn matches(&self, record: &Record) -> bool {
        let id = self.id.as_ref().is_none_or(|id| record.id() == Some(id));
        let tenant = self.tenant.as_ref().is_none_or(|tenant| record.tenant() == Some(tenant.as_str()));
        let sandbox = self.sandbox.as_ref().is_none_or(|sandbox| record.sandbox() == Some(sandbox.as_str()));
        let kind = self.kind.as_ref().is_none_or(|kind| record.kind() == kind);
        let from = self.from.is_none_or(|from| record.time().is_some_and(|time| time >= from));
        let until = self.until.is_none_or(|until| record.time().is_some_and(|time| time < until));
        // The last condition, because it needs the whole record.
        id && tenant && sandbox && kind && from && until && self.text.as_ref().is_none_or(|text| shows(record, text))
    }
}

fn shows(record: &Record, text: &str) -> bool {
    serde_json::to_value(record).is_ok_and(|record| has(&record, &text.to_lowercase()))
}

/// Returns true if a text or number in a value contains a text of lower case.
fn has(value: &Value, text: &str) -> bool {
    match value {
        Value::Null | Value::Bool(_) => false,
        Value::Number(number) => number.to_string().contains(text),
        Value::String(string) => string.to_lowercase().contains(text),
        Value::Array(all) => all.iter().any(|value| has(value, text)),
        Value::Object(all) => all.values().any(|value| has(value, text)),
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

/// The segments that one page reads at most.
const MAX_SEGMENTS: usize = 4;

/// The part of a log that a page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The lines after the one with this number, the oldest first.
    After(u64),
    /// The lines before the one with this number, the newest first.
    Before(u64),
}

/// Some matching lines of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The lines.
    pub entries: Vec<Entry>,
    /// The part with the next lines, unless the log has no more.
    pub next: Option<Part>,
}

/// Returns at most `count` matching lines of a part of a log.
///
/// Reads at most four segments with lines of the part, so a page can have fewer lines, or none, although more follow.
///
/// # Errors Fails at a damaged line.
pub fn page(directory: &Path, filter: &Filter, part: Part, count: usize) -> Result<Page> {
    let directory = files::any_directory(directory)?;
    let mut segments = names::segments(&directory)?;
    match part {
        Part::After(after) => forward(&directory, &segments, filter, after, count),
        Part::Before(before) => {
            segments.reverse();
            backward(&directory, &segments, filter, before, count)
        }
    }
}

fn forward(directory: &OwnedFd, segments: &[u32], filter: &Filter, after: u64, count: usize) -> Result<Page> {
    let mut starts = Vec::new();
    for segment in segments {
        let first = Reader::open(directory, *segment)?.map(|mut reader| reader.read()).transpose()?.flatten();
        starts.push(first.map(|entry| entry.seq));
    }
    // The part begins in the last segment whose first line is not after its begin.
    let skipped = starts.iter().rposition(|first| first.is_some_and(|first| first <= after.saturating_add(1)));
    let (mut entries, mut last) = (Vec::new(), after);
    for (read, segment) in segments.iter().skip(skipped.unwrap_or(0)).enumerate() {
        if read == MAX_SEGMENTS {
            return Ok(Page { entries, next: Some(Part::After(last)) });
        }
        let Some(mut reader) = Reader::open(directory, *segment)? else { continue };
        while let Some(entry) = reader.read()? {
            if entry.seq <= after {
                continue;
            }
            if entries.len() == count {
                return Ok(Page { entries, next: Some(Part::After(last)) });
            }
            last = entry.seq;
            if filter.matches(&entry.record) {
                entries.push(entry);
            }
        }
    }
    Ok(Page { entries, next: None })
}

fn backward(directory: &OwnedFd, segments: &[u32], filter: &Filter, before: u64, count: usize) -> Result<Page> {
    let (mut entries, mut read, mut oldest) = (Vec::new(), 0, before);
    for segment in segments {
        if read == MAX_SEGMENTS || entries.len() == count {
            return Ok(Page { entries, next: Some(Part::Before(oldest)) });
        }
        let Some(mut reader) = Reader::open(directory, *segment)? else { continue };
        let (mut found, mut first, mut is_cut) = (VecDeque::new(), None, false);
        while let Some(entry) = reader.read()?.filter(|entry| entry.seq < before) {
            first.get_or_insert(entry.seq);
            if filter.matches(&entry.record) {
                found.push_back(entry);
                if found.len() > count - entries.len() {
                    found.pop_front();
                    is_cut = true;
                }
            }
        }
        let Some(first) = first else { continue };
        read += 1;
        oldest = if is_cut { found.front().map_or(first, |entry| entry.seq) } else { first };
        entries.extend(found.into_iter().rev());
        if is_cut {
            return Ok(Page { entries, next: Some(Part::Before(oldest)) });
        }
    }
    Ok(Page { entries, next: None })
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
            match Reader::open(&self.directory, segment) {
                Ok(reader) => self.reading = reader,
                Err(error) => {
                    self.segments.clear();
                    return Err(error);
                }
            }
        }
    }
}

impl Reader {
    /// Opens a segment, unless retention has removed it.
    fn open(directory: &OwnedFd, segment: u32) -> Result<Option<Self>> {
        let name = names::segment(segment);
        match files::open_regular(directory, &name, &name) {
            Ok(file) => Ok(Some(Self { segment, line: 0, lines: Lines::new(file, 0) })),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

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
