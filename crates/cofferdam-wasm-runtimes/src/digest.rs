//! SHA-256 of files, and the comparison with the pinned hashes.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

use cofferdam_util::sha256;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use crate::error::{Result, RuntimesError, io};

/// The maximum size of a file that is copied into memory.
const MAX_SEALED: u64 = 1 << 30;

pub(crate) fn of_file(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(io("open", path))?;
    sha256::of_reader(file).map_err(io("read", path))
}

/// Copies the pinned content into sealed memory and hashes it on the way. The copy can neither change nor be truncated.
///
/// # Errors
///
/// Any content but the pinned one is an error, and so is a file larger than [`MAX_SEALED`].
pub(crate) fn sealed(file: &mut impl Read, path: &Path, expected: &str) -> Result<File> {
    // Not `io`: no space for the copy is a lack of memory, not of space on the disk of `path`.
    let no_copy = |source| RuntimesError::Io { operation: "copy into memory", path: path.to_owned(), source };
    let (found, copy) = seal(file).map_err(no_copy)?;
    compare(path, expected, found).map(|()| copy)
}

fn seal(file: &mut impl Read) -> std::io::Result<(String, File)> {
    let mut copy = memory()?;
    // A file that is truncated here has another hash.
    let found = sha256::of_pieces(file.take(MAX_SEALED), |piece| copy.write_all(piece))?;
    copy.rewind()?;
    fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((found, copy))
}

fn memory() -> std::io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create("interpreter", flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => Ok(memfd_create("interpreter", flags)?.into()),
        other => Ok(other?.into()),
    }
}

/// Fails unless the file has exactly the pinned content.
pub(crate) fn expect(path: &Path, expected: &str) -> Result<()> {
    let mut file = File::open(path).map_err(io("open", path))?;
    expect_of(&mut file, path, expected)
}

/// Fails unless an open file has exactly the pinned content. The file is then at its beginning.
pub(crate) fn expect_of(file: &mut (impl Read + Seek), path: &Path, expected: &str) -> Result<()> {
    let found = sha256::of_reader(&mut *file).map_err(io("read", path))?;
    compare(path, expected, found)?;
    file.rewind().map_err(io("read", path))
}

fn compare(path: &Path, expected: &str, found: String) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let what = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Err(RuntimesError::WrongHash { what, expected: expected.to_owned(), found })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that fails.
    struct Failing(Errno);

    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }
    }

    #[test]
    fn failure_to_copy_is_no_sign_of_damage() {
        for errno in [Errno::NOSPC, Errno::NOMEM, Errno::DQUOT, Errno::IO] {
            let error = sealed(&mut Failing(errno), Path::new("state"), "").expect_err("no copy");
            assert!(matches!(error, RuntimesError::Io { .. }), "{error:?}");
            assert!(!error.shows_damage(), "{error:?}");
        }
        let error = sealed(&mut &b"abc"[..], Path::new("state"), "").expect_err("another hash");
        assert!(error.shows_damage(), "{error:?}");
    }
}
