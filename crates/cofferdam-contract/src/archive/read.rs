//! A reader of an archive.

use std::io;

use tar::{EntryType, Header};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{BLOCK, MAX_TAR_ENTRIES, MAX_TAR_PATH, TarEntry, TarKind, pax};
use crate::{Error, ErrorKind, Result};

/// The maximum length of an extended header.
const MAX_RECORDS: u64 = 256 * 1024;

/// A reader of an archive, entry by entry. The archive is untrusted.
#[derive(Debug)]
pub struct TarReader<R> {
    input: R,
    operation: &'static str,
    entries: u64,
}

/// The meaning of a header.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The length of an extended header for the next entry.
    Records(u64),
    /// The length of an extended header for all entries, which is ignored.
    Ignored(u64),
    /// The length of a path, or of a link's target, for the next entry.
    Long(u64, Long),
    Entry(TarEntry),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Long {
    Path,
    Target,
}

impl<R: AsyncRead + Unpin> TarReader<R> {
    /// Creates a reader. Errors name `operation`.
    pub fn new(input: R, operation: &'static str) -> Self {
        Self { input, operation, entries: 0 }
    }

    /// Returns the stream, from which the contents of a file are read: exactly as many bytes as its entry has, before
    /// [`Self::skip_padding`].
    pub fn input(&mut self) -> &mut R {
        &mut self.input
    }

    /// Returns the stream.
    pub fn into_inner(self) -> R {
        self.input
    }

    /// Returns the number of entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Reads the next entry. Returns `None` at the end of the archive. The contents of a file follow in [`Self::input`].
    ///
    /// # Errors
    /// - `InvalidInput` for an archive that is truncated or malformed, or that leads out of its top directory.
    /// - `ResourceExhausted` for more than [`MAX_TAR_ENTRIES`] entries.
    pub async fn next(&mut self) -> Result<Option<TarEntry>> {
        let mut records = pax::Records::default();
        while let Some(header) = self.header().await? {
            match verify(&header, &records).map_err(|what| self.invalid(what))? {
                Step::Records(length) => {
                    let found = self.small(length).await?;
                    let found = pax::read(&found).ok_or_else(|| self.invalid("an extended header is malformed"))?;
                    records = found;
                }
                Step::Ignored(length) => drop(self.small(length).await?),
                Step::Long(length, what) => {
                    let mut text = self.small(length).await?;
                    text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
                    match what {
                        Long::Path => records.path = Some(text),
                        Long::Target => records.target = Some(text),
                    }
                }
                Step::Entry(entry) => {
                    self.entries += 1;
                    if self.entries > MAX_TAR_ENTRIES {
                        let message = "the archive has too many entries";
                        return Err(Error::new(ErrorKind::ResourceExhausted, self.operation, message));
                    }
                    return Ok(Some(entry));
                }
            }
        }
        if records != pax::Records::default() {
            return Err(self.invalid("it ends with an extended header without an entry"));
        }
        Ok(None)
    }

    /// Skips the padding after the contents of a file of `size` bytes.
    pub async fn skip_padding(&mut self, size: u64) -> Result<()> {
        let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        let read = self.input.read_exact(&mut [0; BLOCK][..padding as usize]).await;
        read.map(drop).map_err(|error| self.unreadable(error))
    }

    /// Skips the contents of a file of `size` bytes, with its padding.
    pub async fn skip(&mut self, size: u64) -> Result<()> {
        let skipped = tokio::io::copy(&mut (&mut self.input).take(size), &mut tokio::io::sink()).await;
        if skipped.map_err(|error| self.unreadable(error))? < size {
            return Err(self.invalid("it is truncated"));
        }
        self.skip_padding(size).await
    }

    /// Checks that only zeros follow the end.
    pub async fn expect_end(&mut self) -> Result<()> {
        let mut buffer = [0; 4096];
        loop {
            let count = self.input.read(&mut buffer).await.map_err(|error| self.unreadable(error))?;
            if count == 0 {
                return Ok(());
            }
            if buffer[..count].iter().any(|&byte| byte != 0) {
                return Err(self.invalid("it has data after its end"));
            }
        }
    }

    /// Returns the error of an invalid archive.
    pub fn invalid(&self, what: impl Into<String>) -> Error {
        Error::invalid(self.operation, format!("the archive is invalid: {}", what.into()))
    }

    /// Returns the error of an archive that cannot be read.
    pub fn unreadable(&self, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return self.invalid("it is truncated");
        }
        Error::new(ErrorKind::Io, self.operation, "cannot read the archive").with_source(error)
    }

    /// Reads the next header. Returns `None` at the end, which is a block of zeros.
    async fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        let read = self.input.read_exact(header.as_mut_bytes()).await;
        read.map_err(|error| self.unreadable(error))?;
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let mut sum = header.clone();
        sum.set_cksum();
        match (header.cksum(), sum.cksum()) {
            (Ok(one), Ok(other)) if one == other => Ok(Some(header)),
            _ => Err(self.invalid("the checksum of a header is wrong")),
        }
    }

    /// Reads the few bytes of an extended header.
    async fn small(&mut self, length: u64) -> Result<Vec<u8>> {
        if length > MAX_RECORDS {
            return Err(self.invalid("the extended header of an entry is too long"));
        }
        let mut bytes = vec![0; (length as usize).next_multiple_of(BLOCK)];
        self.input.read_exact(&mut bytes).await.map_err(|error| self.unreadable(error))?;
        bytes.truncate(length as usize);
        Ok(bytes)
    }
}

/// Verifies a header together with the records before it. Returns its meaning, or the violated rule.
fn verify(header: &Header, records: &pax::Records) -> Result<Step, String> {
    let own = header.entry_size().map_err(|_| "the size of an entry is malformed")?;
    let size = records.size.unwrap_or(own);
    let kind = match header.entry_type() {
        EntryType::XHeader => return Ok(Step::Records(own)),
        EntryType::XGlobalHeader => return Ok(Step::Ignored(own)),
        EntryType::GNULongName => return Ok(Step::Long(own, Long::Path)),
        EntryType::GNULongLink => return Ok(Step::Long(own, Long::Target)),
        kind => kind,
    };
    let path = records.path.clone().unwrap_or_else(|| header.path_bytes().into_owned());
    let shown = String::from_utf8_lossy(&path).escape_debug().to_string();
    let path = below(&path).ok_or_else(|| format!("'{shown}' is not a path below its top directory"))?;
    let target = || records.target.clone().or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
    let kind = match kind {
        EntryType::Regular | EntryType::Continuous => TarKind::File(size),
        _ if size != 0 => return Err(format!("'{shown}' has contents but is not a file")),
        EntryType::Directory => TarKind::Directory,
        EntryType::Symlink => {
            let is_valid = |target: &Vec<u8>| !target.is_empty() && target.len() < MAX_TAR_PATH && !target.contains(&0);
            TarKind::Symlink(
                target().filter(is_valid).ok_or_else(|| format!("the link '{shown}' has no valid target"))?,
            )
        }
        EntryType::Link => {
            let target = target().and_then(|target| below(&target)).filter(|target| !target.is_empty());
            TarKind::Link(target.ok_or_else(|| format!("'{shown}' is a hard link to a path outside"))?)
        }
        EntryType::Char | EntryType::Block | EntryType::Fifo => TarKind::Other,
        _ => return Err(format!("'{shown}' is not a file, directory or link")),
    };
    if path.is_empty() && kind != TarKind::Directory {
        return Err("its top is not a directory".to_owned());
    }
    let mode = header.mode().map_err(|_| "the mode of an entry is malformed")? & 0o7777;
    let modified = match records.modified {
        Some(seconds) => seconds,
        None => header
            .mtime()
            .ok()
            .and_then(|seconds| i64::try_from(seconds).ok())
            .ok_or("the time of an entry is malformed")?,
    };
    Ok(Step::Entry(TarEntry { kind, path, mode, modified }))
}

/// Returns a path of an archive, or `None` if it is invalid or leads outside.
fn below(path: &[u8]) -> Option<Vec<u8>> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    if path == b"." {
        return Some(Vec::new());
    }
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && part.len() <= 255 && !part.contains(&0);
    (path.len() <= MAX_TAR_PATH && path.split(|&byte| byte == b'/').all(plain)).then(|| path.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: EntryType, path: &str, target: &str, size: u64) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        // Set directly, since `set_path` refuses the invalid paths of these tests.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_link_name_literal(target).unwrap();
        header.set_size(size);
        header.set_mode(0o6755);
        header.set_mtime(7);
        header
    }

    fn verified(kind: EntryType, path: &str, target: &str, size: u64) -> Result<Step, String> {
        verify(&header(kind, path, target, size), &pax::Records::default())
    }

    #[test]
    fn files_directories_and_links_are_accepted() {
        let Step::Entry(entry) = verified(EntryType::Regular, "a/b", "", 9).unwrap() else { panic!("an entry") };
        assert_eq!(entry, TarEntry { kind: TarKind::File(9), path: b"a/b".to_vec(), mode: 0o6755, modified: 7 });
        for path in [".", "./"] {
            let Step::Entry(entry) = verified(EntryType::Directory, path, "", 0).unwrap() else { panic!("an entry") };
            assert_eq!(entry.path, b"");
        }
        assert!(verified(EntryType::Directory, "./a/", "", 0).is_ok());
        assert!(verified(EntryType::Symlink, "l", "/etc/passwd", 0).is_ok(), "a link is only text");
        assert!(verified(EntryType::Link, "l", "a", 0).is_ok());
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for (kind, path, target, size) in [
            (EntryType::Regular, "/a", "", 0),
            (EntryType::Regular, "", "", 0),
            (EntryType::Regular, "a/../../etc", "", 0),
            (EntryType::Regular, "..", "", 0),
            (EntryType::Regular, "a//b", "", 0),
            (EntryType::Regular, ".", "", 0),
            (EntryType::Symlink, ".", "/etc", 0),
            (EntryType::Symlink, "l", "", 0),
            (EntryType::Symlink, "l", "x", 1),
            (EntryType::Link, "l", "/etc/passwd", 0),
            (EntryType::Link, "l", "../x", 0),
            (EntryType::Link, "l", ".", 0),
            (EntryType::GNUSparse, "s", "", 0),
            (EntryType::new(b'?'), "q", "", 0),
        ] {
            assert!(verified(kind, path, target, size).is_err(), "{kind:?} {path} {target}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), BLOCK)) {
            let header = Header::from_byte_slice(&bytes);
            if let Ok(Step::Entry(entry)) = verify(header, &pax::Records::default()) {
                prop_assert!(!entry.path.starts_with(b"/") && !entry.path.split(|&byte| byte == b'/').any(|part| part == b".."));
            }
        }
    }
}
