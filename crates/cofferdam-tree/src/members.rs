//! A reader of tar members with bounded headers.
//!
//! Long names and extended headers precede a member as contents of their own, and the library reads them completely
//! into memory, however long they are. So while it looks for the next member, the reader provides only the rest of the
//! previous member and one mebibyte of headers. Whatever the bytes contain, no more of them are read.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

use tar::Entry;

/// Maximum size of the headers of one member: long names, extended attributes. Linux accepts names of 4 KiB, and
/// attributes of 64 KiB.
const MAX_HEADERS: u64 = 1 << 20;
const BLOCK: u64 = 512;

/// The position in an archive, and the limit up to which it may be read.
#[derive(Debug, Default)]
struct Gate {
    at: Cell<u64>,
    until: Cell<u64>,
    /// End of the last member, including the padding of its last block.
    end: Cell<u64>,
}

/// An archive's bytes up to the limit.
#[derive(Debug)]
pub struct Gated<R> {
    from: R,
    gate: Rc<Gate>,
}

impl<R: Read> Read for Gated<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.gate.until.get().saturating_sub(self.gate.at.get());
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::other(format!("the headers of a member are larger than {MAX_HEADERS} bytes")));
        }
        let max = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let length = self.from.read(&mut buffer[..max])?;
        self.gate.at.set(self.gate.at.get().saturating_add(length as u64));
        Ok(length)
    }
}

impl<R: Seek> Seek for Gated<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = self.from.seek(to)?;
        self.gate.at.set(at);
        Ok(at)
    }
}

/// An untrusted tar.
pub struct Archive<R: Read> {
    tar: tar::Archive<Gated<R>>,
    gate: Rc<Gate>,
}

impl<R: Read> Archive<R> {
    /// Creates a reader at the stream's current position. A stream that is used with seeking must be at its beginning.
    pub fn new(from: R) -> Self {
        let gate = Rc::new(Gate::default());
        Self { tar: tar::Archive::new(Gated { from, gate: gate.clone() }), gate }
    }

    /// Returns its members, each of which must be read before the next.
    pub fn members(&mut self) -> io::Result<Members<'_, R>> {
        Ok(Members { entries: self.tar.entries()?, gate: &self.gate })
    }

    /// Returns its members, and seeks over contents that are not read.
    pub fn members_with_seek(&mut self) -> io::Result<Members<'_, R>>
    where
        R: Seek,
    {
        Ok(Members { entries: self.tar.entries_with_seek()?, gate: &self.gate })
    }

    /// Checks the end of an archive whose members were all read: a marker, and nothing but padding after it. An archive
    /// that was cut off between two members has no marker.
    pub fn finish(self) -> io::Result<()> {
        /// Maximum length of the padding. Other programs fill up records of 10 KiB and more.
        const MAX_PADDING: u64 = 1 << 20;
        if self.gate.at.get() < self.gate.end.get().saturating_add(BLOCK) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before the end of the archive"));
        }
        self.gate.until.set(u64::MAX);
        let mut rest = self.tar.into_inner().take(MAX_PADDING + 1);
        let (mut buffer, mut total) = (vec![0; 64 << 10], 0);
        loop {
            match rest.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => total += length as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if total > MAX_PADDING || buffer.iter().any(|byte| *byte != 0) {
                return Err(io::Error::other("there is data after the end of the archive"));
            }
        }
    }
}

/// The members of an archive.
pub struct Members<'a, R: Read> {
    entries: tar::Entries<'a, Gated<R>>,
    gate: &'a Gate,
}

impl<'a, R: Read> Iterator for Members<'a, R> {
    type Item = io::Result<Entry<'a, Gated<R>>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.gate.until.set(self.gate.end.get().saturating_add(MAX_HEADERS));
        let entry = match self.entries.next()? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error)),
        };
        // The size of a sparse file includes its holes, so it does not determine the end of its contents.
        if entry.header().entry_type().is_gnu_sparse() {
            self.gate.end.set(0);
            return Some(Err(io::Error::other("it has a sparse file; pack it without --sparse")));
        }
        // The library finds the next header in the same way.
        let end = entry.raw_file_position().saturating_add(entry.size()).saturating_add(BLOCK - 1) / BLOCK * BLOCK;
        self.gate.end.set(end);
        self.gate.until.set(u64::MAX);
        Some(Ok(entry))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tar::{EntryType, Header};

    use super::*;

    fn header(kind: EntryType, name: &str, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(size);
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        header
    }

    /// Returns a member whose contents are zeros.
    fn zeros(kind: EntryType, name: &str, size: u64) -> impl Read {
        let padded = size.next_multiple_of(BLOCK);
        io::Cursor::new(header(kind, name, size).as_bytes().to_vec()).chain(io::repeat(0).take(padded))
    }

    /// Returns names and sizes of the members, or the error.
    fn all<R: Read>(from: R) -> io::Result<Vec<(String, u64)>> {
        let mut archive = Archive::new(from);
        let members = archive.members()?;
        members
            .map(|member| {
                let mut member = member?;
                let name = member.path()?.display().to_string();
                Ok((name, io::copy(&mut member, &mut io::sink())?))
            })
            .collect()
    }

    #[test]
    fn oversized_headers_are_refused_without_reading() {
        // More than any host has memory for.
        let huge = 1 << 50;
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            let begun = Instant::now();
            let error = all(zeros(kind, "x", huge).chain(zeros(EntryType::Regular, "f", 1))).unwrap_err();
            assert!(error.to_string().contains("headers of a member"), "{kind:?} {error}");
            // After a member that was read, and after one that was not.
            for size in [0, 1, BLOCK, 3_000_000] {
                let from = || zeros(EntryType::Regular, "f", size).chain(zeros(kind, "x", huge));
                assert!(all(from()).unwrap_err().to_string().contains("headers of a member"), "{kind:?} {size}");
                let mut archive = Archive::new(from());
                let error = archive.members().unwrap().nth(1).unwrap().err().unwrap();
                assert!(error.to_string().contains("headers of a member"), "{kind:?} {size}");
            }
            assert!(begun.elapsed() < Duration::from_secs(10));
        }
    }

    #[test]
    fn headers_without_end_are_refused() {
        // Each extended header of a sparse file claims that another one follows.
        let mut sparse = header(EntryType::GNUSparse, "s", 0);
        sparse.as_gnu_mut().unwrap().set_is_extended(true);
        sparse.set_cksum();
        let mut more = vec![0; 512];
        more[504] = 1;
        let endless = more.repeat(8192);
        let error = all(io::Cursor::new(sparse.as_bytes().to_vec()).chain(&*endless)).unwrap_err();
        assert!(error.to_string().contains("headers of a member"), "{error}");
        // Without the check, a sparse file would be skipped silently.
        let mut sparse = header(EntryType::GNUSparse, "s", 0);
        sparse.as_gnu_mut().unwrap().realsize = *b"00000000000\0";
        sparse.set_cksum();
        assert!(all(&sparse.as_bytes()[..]).unwrap_err().to_string().contains("sparse"));
    }

    #[test]
    fn usual_tar_members_are_read() {
        let mut tar = tar::Builder::new(Vec::new());
        let long = format!("{}f", "d/".repeat(500));
        let large = vec![7; 3 << 20];
        tar.append_data(&mut header(EntryType::Regular, "", large.len() as u64), "first", &*large).unwrap();
        tar.append_data(&mut header(EntryType::Regular, "", 5), &long, &b"hello"[..]).unwrap();
        let attribute = vec![b'a'; 64 << 10];
        // The size in the extended header takes precedence.
        tar.append_pax_extensions([("SCHILY.xattr.user.x", &*attribute), ("size", &b"1000"[..])]).unwrap();
        tar.append(&header(EntryType::Regular, "attributed", 0), io::empty()).unwrap();
        let mut bytes = tar.into_inner().unwrap();
        bytes.truncate(bytes.len() - 1024);
        bytes.extend([1; 1024]);
        // A size in base 256.
        let mut wide = header(EntryType::Regular, "wide", 0);
        wide.as_gnu_mut().unwrap().size = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0];
        wide.set_cksum();
        bytes.extend(wide.as_bytes());
        bytes.extend(vec![0; 2 << 20]);
        bytes.extend(header(EntryType::Regular, "last", 0).as_bytes());
        bytes.extend([0; 1024]);
        let expected = [("first", 3 << 20), (&long, 5), ("attributed", 1000), ("wide", 2 << 20), ("last", 0)];
        let expected = expected.map(|(name, size)| (name.to_owned(), size));
        assert_eq!(all(&*bytes).unwrap(), expected);
        let mut archive = Archive::new(io::Cursor::new(bytes));
        let members = archive.members_with_seek().unwrap().map(|member| member.unwrap());
        let found: Vec<_> =
            members.map(|member| (member.path().unwrap().display().to_string(), member.size())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_archive_that_is_cut_off_has_no_end() {
        let mut tar = tar::Builder::new(Vec::new());
        for name in ["a", "b"] {
            tar.append_data(&mut header(EntryType::Regular, "", 1000), name, &[0; 1000][..]).unwrap();
        }
        let bytes = tar.into_inner().unwrap();
        let finish = |bytes: &[u8]| {
            let mut archive = Archive::new(bytes);
            for member in archive.members().unwrap() {
                io::copy(&mut member?, &mut io::sink())?;
            }
            archive.finish()
        };
        finish(&bytes).unwrap();
        finish(&[&bytes[..], &[0; 10_000]].concat()).unwrap();
        finish(&bytes[..bytes.len() - 512]).unwrap();
        for length in [0, 1536, 3072] {
            assert_eq!(finish(&bytes[..length]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
        assert!(finish(&[&bytes[..], &[0; 512], &[1]].concat()).is_err());
        assert!(finish(&[&bytes[..], &[0; 2 << 20]].concat()).is_err());
    }
}
