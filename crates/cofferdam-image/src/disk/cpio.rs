//! A writer of archives in the "newc" format (portable ASCII), which kernels unpack into their initial file system.

use std::io::{self, Write};

const MAGIC: &[u8] = b"070701";
const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const REGULAR: u32 = 0o100_000;
/// The name of the last entry of an archive.
const LAST: &str = "TRAILER!!!";
/// Alignment of headers and data.
const ALIGNED: usize = 4;

/// A writer of one archive. The output is reproducible: all entries belong to root and have no time.
#[derive(Debug)]
pub(crate) struct Cpio<W> {
    out: W,
    inode: u32,
}

struct Entry<'a> {
    name: &'a str,
    mode: u32,
    device: (u32, u32),
    data: &'a [u8],
}

impl<W: Write> Cpio<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    /// Adds a directory, after its parents.
    pub(crate) fn directory(&mut self, name: &str, mode: u32) -> io::Result<()> {
        self.entry(&Entry { name, mode: DIRECTORY | mode, device: (0, 0), data: &[] })
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        self.entry(&Entry { name, mode: REGULAR | mode, device: (0, 0), data })
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, name: &str, mode: u32, major: u32, minor: u32) -> io::Result<()> {
        self.entry(&Entry { name, mode: CHARACTER | mode, device: (major, minor), data: &[] })
    }

    /// Completes the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry(&Entry { name: LAST, mode: 0, device: (0, 0), data: &[] })?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let Entry { name, mode, device: (major, minor), data } = *entry;
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {name:?}"));
        if name.is_empty() || name.starts_with('/') || name.contains('\0') {
            return Err(bad("invalid name for an archive"));
        }
        let size = u32::try_from(data.len()).map_err(|_| bad("too large for an archive"))?;
        let name_size = u32::try_from(name.len() + 1).map_err(|_| bad("too long for an archive"))?;
        self.inode += 1;
        let inode = if name == LAST { 0 } else { self.inode };
        let mut head = MAGIC.to_vec();
        // Inode, mode, user, group, links, time, size, device, device of a node, length of the name, no checksum.
        for number in [inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0] {
            write!(head, "{number:08X}")?;
        }
        head.extend_from_slice(name.as_bytes());
        head.push(0);
        self.padded(&head)?;
        self.padded(data)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        let missing = bytes.len().next_multiple_of(ALIGNED) - bytes.len();
        self.out.write_all(&[0; ALIGNED][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut cpio = Cpio::new(Vec::new());
        cpio.directory("dev", 0o755).unwrap();
        cpio.device("dev/console", 0o600, 5, 1).unwrap();
        cpio.file("init", 0o755, b"hello").unwrap();
        cpio.finish().unwrap()
    }

    /// Returns fields of the entry at `at`: mode, size, device numbers, name, and the offset of the next entry.
    fn entry(bytes: &[u8], at: usize) -> (u32, usize, (u32, u32), String, usize) {
        assert_eq!(&bytes[at..at + 6], MAGIC);
        let field = |number: usize| {
            let at = at + 6 + number * 8;
            u32::from_str_radix(std::str::from_utf8(&bytes[at..at + 8]).unwrap(), 16).unwrap()
        };
        let (size, length) = (field(6) as usize, field(11) as usize);
        let name = String::from_utf8(bytes[at + 110..at + 110 + length - 1].to_vec()).unwrap();
        let data = (at + 110 + length).next_multiple_of(ALIGNED);
        (field(1), size, (field(9), field(10)), name, (data + size).next_multiple_of(ALIGNED))
    }

    #[test]
    fn entries_are_as_kernels_read_them() {
        let bytes = sample();
        let (mode, _, _, name, next) = entry(&bytes, 0);
        assert_eq!((mode, name.as_str()), (0o040_755, "dev"));
        let (mode, size, device, name, next) = entry(&bytes, next);
        assert_eq!((mode, size, device, name.as_str()), (0o020_600, 0, (5, 1), "dev/console"));
        let (mode, size, _, name, next) = entry(&bytes, next);
        assert_eq!((mode, size, name.as_str()), (0o100_755, 5, "init"));
        assert_eq!(&bytes[next - 8..next - 3], b"hello");
        let (_, _, _, name, next) = entry(&bytes, next);
        assert_eq!((name.as_str(), next), (LAST, bytes.len()));
    }

    #[test]
    fn the_same_gives_the_same_bytes_and_names_are_checked() {
        assert_eq!(sample(), sample());
        for bad in ["", "/init", "a\0b"] {
            assert!(Cpio::new(Vec::new()).file(bad, 0o644, b"").is_err(), "{bad:?}");
        }
    }
}
