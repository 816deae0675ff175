//! A writer of an archive. The same entries result in the same bytes.

use std::io;

use tar::{EntryType, Header};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{BLOCK, MAX_TAR_ENTRIES, TarEntry, TarKind, pax};
use crate::{Error, ErrorKind, Result};

/// A writer of an archive, entry by entry.
#[derive(Debug)]
pub struct TarWriter<W> {
    out: W,
    operation: &'static str,
    entries: u64,
}

impl<W: AsyncWrite + Unpin> TarWriter<W> {
    /// Creates a writer. Errors name `operation`.
    pub fn new(out: W, operation: &'static str) -> Self {
        Self { out, operation, entries: 0 }
    }

    /// Returns the number of entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Adds an entry. For a file, [`Self::contents`] and [`Self::pad`] must follow.
    ///
    /// # Errors
    /// - `ResourceExhausted` for more than [`MAX_TAR_ENTRIES`] entries.
    /// - `InvalidInput` for a device or fifo.
    /// - `Io` if the archive cannot be written.
    pub async fn entry(&mut self, entry: &TarEntry) -> Result<()> {
        self.entries += 1;
        if self.entries > MAX_TAR_ENTRIES {
            return Err(Error::new(ErrorKind::ResourceExhausted, self.operation, "the archive has too many entries"));
        }
        let none: &[u8] = b"";
        let (kind, size, target) = match &entry.kind {
            TarKind::File(size) => (EntryType::Regular, *size, none),
            TarKind::Directory => (EntryType::Directory, 0, none),
            TarKind::Symlink(target) => (EntryType::Symlink, 0, target.as_slice()),
            TarKind::Link(target) => (EntryType::Link, 0, target.as_slice()),
            TarKind::Other => return Err(Error::invalid(self.operation, "an archive has no devices and fifos")),
        };
        let mut path = entry.path.clone();
        if kind == EntryType::Directory {
            path.extend_from_slice(if path.is_empty() { b"./" } else { b"/" });
        }
        let mut header = header(kind, entry.mode, size);
        let mut records = Vec::new();
        if !set_name(&mut header, &path) {
            records.extend(pax::record("path", &path));
            set_name(&mut header, b"@long");
        }
        if !target.is_empty() && header.set_link_name_literal(target).is_err() {
            records.extend(pax::record("linkpath", target));
            header.set_link_name_literal("@long").map_err(|error| self.broken(error))?;
        }
        match u64::try_from(entry.modified) {
            Ok(seconds) => header.set_mtime(seconds),
            Err(_) => records.extend(pax::record("mtime", entry.modified.to_string().as_bytes())),
        }
        header.set_cksum();
        if !records.is_empty() {
            let mut more = self::header(EntryType::XHeader, 0o644, records.len() as u64);
            set_name(&mut more, b"@more");
            more.set_cksum();
            self.contents(more.as_bytes()).await?;
            self.contents(&records).await?;
            self.pad(records.len() as u64).await?;
        }
        self.contents(header.as_bytes()).await
    }

    /// Adds contents of the last file.
    pub async fn contents(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).await.map_err(|error| self.broken(error))
    }

    /// Ends a file of `size` bytes: fills its last block with zeros.
    pub async fn pad(&mut self, size: u64) -> Result<()> {
        let over = (size % BLOCK as u64) as usize;
        if over == 0 { Ok(()) } else { self.contents(&[0; BLOCK][over..]).await }
    }

    /// Ends the archive.
    pub async fn finish(mut self) -> Result<W> {
        self.contents(&[0; 2 * BLOCK]).await?;
        let flushed = self.out.flush().await;
        flushed.map_err(|error| self.broken(error))?;
        Ok(self.out)
    }

    fn broken(&self, error: io::Error) -> Error {
        Error::new(ErrorKind::Io, self.operation, "cannot write the archive").with_source(error)
    }
}

/// Creates a header without owner and with a zero time.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Sets the name of an entry. Returns false if it is too long for its field.
fn set_name(header: &mut Header, name: &[u8]) -> bool {
    let field = header.as_old_mut().name.get_mut(..name.len());
    field.map(|field| field.copy_from_slice(name)).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::TarReader;
    use super::*;

    #[tokio::test]
    async fn entries_are_read_back() {
        let long = [b'n'; 200];
        let deep = [&long[..], b"/", &long[..], b"/\xff"].concat();
        let entries = [
            (TarKind::Directory, b"".to_vec(), 0o755, 0),
            (TarKind::Directory, b"d".to_vec(), 0o1777, 5),
            (TarKind::File(3), b"d/f".to_vec(), 0o4755, -5),
            (TarKind::File(0), deep.clone(), 0o600, 7),
            (TarKind::Symlink(deep), b"l".to_vec(), 0o777, 0),
            (TarKind::Link(b"d/f".to_vec()), b"h".to_vec(), 0o644, 0),
        ];
        let entries = entries.map(|(kind, path, mode, modified)| TarEntry { kind, path, mode, modified });
        let mut writer = TarWriter::new(Vec::new(), "test");
        for entry in &entries {
            writer.entry(entry).await.unwrap();
            if entry.kind == TarKind::File(3) {
                writer.contents(b"abc").await.unwrap();
                writer.pad(3).await.unwrap();
            }
        }
        let bytes = writer.finish().await.unwrap();
        let mut reader = TarReader::new(&bytes[..], "test");
        for entry in &entries {
            let read = reader.next().await.unwrap().unwrap();
            assert_eq!(read, *entry);
            if let TarKind::File(size) = read.kind {
                reader.skip(size).await.unwrap();
            }
        }
        assert_eq!(reader.next().await.unwrap(), None);
        reader.expect_end().await.unwrap();
        let whole = tar::Archive::new(&bytes[..]).entries().unwrap().map(Result::unwrap).count();
        assert_eq!(whole, entries.len(), "another program reads it");
    }
}
