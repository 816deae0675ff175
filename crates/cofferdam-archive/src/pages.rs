//! Memories and disks, page by page: zero pages, duplicates and pages of the base are left out on save and put back on
//! restore.
//!
//! The hash of such a part covers its records, in which the SHA-256 of each data page represents the page. So each page
//! is hashed once, for this and for deduplication, and holes cost nothing.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use sha2::{Digest as _, Sha256};

use crate::base::Base;
use crate::block::{BLOCK, BlockReader, BlockWriter};
use crate::dedup::Table;
use crate::digest::Digest;
use crate::error::{ArchiveError, Result, io};
use crate::part::Part;
use crate::progress::Meter;
use crate::record::{PAGE, RECORD, Record};
use crate::sparse::{is_zero, next_data, write_pages};

/// Number of pages that are processed together.
const GROUP: u64 = (BLOCK / PAGE) as u64;
const PAGE_BYTES: u64 = PAGE as u64;

/// Writes a file's pages and returns their hash.
pub(crate) fn save<W: Write>(
    part: &Part,
    file: &File,
    base: Option<&Base>,
    mut table: Table,
    blocks: &mut BlockWriter<'_, W>,
    meter: &mut Meter<'_>,
) -> Result<Digest> {
    let name = part.name.as_str();
    let pages = part.size.div_ceil(PAGE_BYTES);
    let mut encoder = Encoder { blocks, transcript: Sha256::new(), pending: None, data: 0..0, digests: Vec::new() };
    let (mut chunk, mut under) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut at = 0;
    while at < pages {
        let start = next_group(file, base, at, part).map_err(io("find the holes of", name))?;
        if start > at {
            encoder.same(start - at)?;
            meter.advance(bytes_between(at, start, part.size), encoder.blocks.written())?;
        }
        let end = ((start / GROUP + 1) * GROUP).min(pages);
        if start < end {
            let length = bytes_between(start, end, part.size);
            let (chunk, under) = (&mut chunk[..length as usize], &mut under[..length as usize]);
            file.read_exact_at(chunk, start * PAGE_BYTES).map_err(|error| unread(error, name))?;
            match base {
                Some(base) => base.read_at(under, start * PAGE_BYTES).map_err(io("read the base of", name))?,
                None => under.fill(0),
            }
            encoder.group(start, chunk, under, base.is_some(), &mut table)?;
            meter.advance(length, encoder.blocks.written())?;
        }
        at = end;
    }
    encoder.flush(&[])?;
    let transcript = encoder.transcript;
    if file.metadata().map_err(io("inspect", name))?.len() != part.size {
        return Err(ArchiveError::SourceChanged { part: name.to_owned() });
    }
    Ok(Digest::finish(transcript))
}

/// Converts a read error. A file that ends early has changed.
pub(crate) fn unread(error: std::io::Error, part: &str) -> ArchiveError {
    match error.kind() {
        ErrorKind::UnexpectedEof => ArchiveError::SourceChanged { part: part.to_owned() },
        _ => io("read", part)(error),
    }
}

/// Returns the first page from `at` on that may differ from the base.
fn next_group(file: &File, base: Option<&Base>, at: u64, part: &Part) -> std::io::Result<u64> {
    let from = at * PAGE_BYTES;
    let mut next = next_data(file, from, part.size)?;
    if let Some(base) = base
        && from < base.size()
    {
        let data = next_data(base.file(), from, base.size())?;
        next = next.min(if data == base.size() { part.size } else { data });
    }
    let last = part.size.div_ceil(PAGE_BYTES);
    Ok(if next >= part.size { last } else { next / PAGE_BYTES })
}

/// Returns the number of bytes in pages `from..to`, of which the last may be shorter.
fn bytes_between(from: u64, to: u64, size: u64) -> u64 {
    (to * PAGE_BYTES).min(size) - (from * PAGE_BYTES).min(size)
}

/// An encoder of records, which it merges as far as possible.
struct Encoder<'e, 'b, W> {
    blocks: &'e mut BlockWriter<'b, W>,
    transcript: Sha256,
    pending: Option<Record>,
    /// The range in the group that a pending data record covers.
    data: Range<usize>,
    /// The digests of these pages.
    digests: Vec<u8>,
}

impl<W: Write> Encoder<'_, '_, W> {
    /// Records that the next pages are as in the base.
    fn same(&mut self, pages: u64) -> Result<()> {
        // A part has fewer pages than that.
        if let Ok(pages @ 1..) = u32::try_from(pages) {
            self.push(Record::Same(pages), &[])?;
        }
        Ok(())
    }

    /// Encodes the pages of a group, compared with the same pages of the base.
    fn group(&mut self, first: u64, chunk: &[u8], under: &[u8], based: bool, table: &mut Table) -> Result<()> {
        let pages = chunk.chunks(PAGE).zip(under.chunks(PAGE));
        for (number, (page, under)) in (first..).zip(pages) {
            if page == under {
                self.push(Record::Same(1), chunk)?;
            } else if based && is_zero(page) {
                self.push(Record::Zero(1), chunk)?;
            } else {
                self.page(number, page, (number - first) as usize * PAGE, chunk, table)?;
            }
        }
        // A pending data record points into the group's buffer, which is reused. So data records end with their group,
        // regardless of holes.
        if matches!(self.pending, Some(Record::Data(_))) {
            self.flush(chunk)?;
        }
        Ok(())
    }

    fn page(&mut self, number: u64, page: &[u8], index: usize, chunk: &[u8], table: &mut Table) -> Result<()> {
        let digest = Digest::of(page);
        if page.len() == PAGE
            && let Some(from) = table.seen(digest, number)
        {
            return self.push(Record::Copy(1, from), chunk);
        }
        self.push(Record::Data(1), chunk)?;
        if self.digests.is_empty() {
            self.data = index..index;
        }
        self.data.end += page.len();
        self.digests.extend(digest.as_bytes());
        Ok(())
    }

    fn push(&mut self, record: Record, chunk: &[u8]) -> Result<()> {
        let joined = self.pending.and_then(|pending| pending.joined(record));
        if joined.is_none() {
            self.flush(chunk)?;
        }
        self.pending = joined.or(Some(record));
        Ok(())
    }

    fn flush(&mut self, chunk: &[u8]) -> Result<()> {
        let Some(record) = self.pending.take() else { return Ok(()) };
        let bytes = record.encode();
        self.transcript.update(bytes);
        self.blocks.write(&bytes)?;
        if matches!(record, Record::Data(_)) {
            self.transcript.update(&self.digests);
            self.digests.clear();
            self.blocks.write(&chunk[self.data.clone()])?;
        }
        Ok(())
    }
}

/// Reads pages, into a file if there is one, and returns their hash.
pub(crate) fn load<R: Read>(
    part: &Part,
    file: Option<&File>,
    base: Option<&Base>,
    blocks: &mut BlockReader<'_, R>,
    meter: &mut Meter<'_>,
) -> Result<Digest> {
    let pages = part.size.div_ceil(PAGE_BYTES);
    let chunk = vec![0; BLOCK];
    let mut decoder =
        Decoder { part, file, base, transcript: Sha256::new(), chunk, meter, reported: 0, read: blocks.read() };
    let mut at = 0;
    while at < pages {
        at = decoder.record(at, blocks)?;
        decoder.report(at)?;
    }
    Ok(Digest::finish(decoder.transcript))
}

/// A decoder that applies records.
struct Decoder<'a, 'm> {
    part: &'a Part,
    file: Option<&'a File>,
    base: Option<&'a Base>,
    transcript: Sha256,
    chunk: Vec<u8>,
    meter: &'a mut Meter<'m>,
    /// Number of pages that the meter has counted.
    reported: u64,
    /// Number of bytes read from the archive so far.
    read: u64,
}

impl Decoder<'_, '_> {
    /// Reads the record of the pages from `at` on. Returns the page where it ends.
    fn record<R: Read>(&mut self, at: u64, blocks: &mut BlockReader<'_, R>) -> Result<u64> {
        let mut bytes = [0; RECORD];
        blocks.read_exact(&mut bytes)?;
        self.read = blocks.read();
        let bad = |reason| ArchiveError::BadExtent { part: self.part.name.to_string(), reason };
        let record = Record::decode(&bytes).ok_or_else(|| bad("an invalid record"))?;
        if let Some(reason) = record.fault(at, self.part.size, self.part.base.is_some()) {
            return Err(bad(reason));
        }
        self.transcript.update(bytes);
        let end = at + u64::from(record.pages());
        match record {
            Record::Same(_) => self.same(at, end)?,
            Record::Zero(_) => {}
            Record::Data(_) => self.groups(at, end, |decoder, length, _| decoder.data(length, blocks))?,
            Record::Copy(_, from) if self.file.is_some() => {
                self.groups(at, end, |decoder, length, group| decoder.copy(length, from + (group - at)))?;
            }
            Record::Copy(..) => {}
        }
        Ok(end)
    }

    /// Reports to the meter that all pages before this one are done, after each MiB and at the end. A single record can
    /// cover a whole part, so this is called within records too.
    fn report(&mut self, page: u64) -> Result<()> {
        let done = bytes_between(self.reported, page, self.part.size);
        if done >= BLOCK as u64 || (done > 0 && page == self.part.size.div_ceil(PAGE_BYTES)) {
            self.meter.advance(done, self.read)?;
            self.reported = page;
        }
        Ok(())
    }

    /// Calls `fill` for each group of pages and writes the result.
    fn groups(&mut self, at: u64, end: u64, mut fill: impl FnMut(&mut Self, usize, u64) -> Result<()>) -> Result<()> {
        let mut group = at;
        while group < end {
            let next = (group + GROUP).min(end);
            let length = bytes_between(group, next, self.part.size) as usize;
            fill(self, length, group)?;
            self.write(length, group)?;
            self.report(next)?;
            group = next;
        }
        Ok(())
    }

    fn write(&self, length: usize, page: u64) -> Result<()> {
        let Some(file) = self.file else { return Ok(()) };
        write_pages(file, &self.chunk[..length], page * PAGE_BYTES).map_err(io("write", &self.part.name))
    }

    fn data<R: Read>(&mut self, length: usize, blocks: &mut BlockReader<'_, R>) -> Result<()> {
        let chunk = &mut self.chunk[..length];
        blocks.read_exact(chunk)?;
        self.read = blocks.read();
        chunk.chunks(PAGE).for_each(|page| self.transcript.update(Digest::of(page).as_bytes()));
        Ok(())
    }

    fn copy(&mut self, length: usize, from: u64) -> Result<()> {
        let Some(file) = self.file else { return Ok(()) };
        file.read_exact_at(&mut self.chunk[..length], from * PAGE_BYTES).map_err(io("read back", &self.part.name))
    }

    /// Copies pages from the base, without its holes.
    fn same(&mut self, at: u64, end: u64) -> Result<()> {
        let (Some(base), Some(_)) = (self.base, self.file) else { return Ok(()) };
        let name = &self.part.name;
        let mut page = at;
        while page < end && page * PAGE_BYTES < base.size() {
            let data = next_data(base.file(), page * PAGE_BYTES, base.size()).map_err(io("find the holes of", name))?;
            if data == base.size() {
                break;
            }
            page = data / PAGE_BYTES;
            let next = (page + GROUP).min(end);
            if page < next {
                let length = bytes_between(page, next, self.part.size) as usize;
                base.read_at(&mut self.chunk[..length], page * PAGE_BYTES).map_err(io("read the base of", name))?;
                self.write(length, page)?;
                self.report(next)?;
            }
            page = page.max(next);
        }
        Ok(())
    }
}
