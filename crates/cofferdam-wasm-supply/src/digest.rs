//! SHA-256 of files, and the comparison with what is pinned.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Result, SupplyError, io};

pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn of_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(io("open", path))?;
    of_open(&mut file).map_err(io("read", path))
}

fn of_open(file: &mut impl Read) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..count]);
    }
}

/// Fails closed: what is not exactly the pinned content is an error.
pub(crate) fn expect(path: &Path, expected: &str) -> Result<()> {
    let mut file = File::open(path).map_err(io("open", path))?;
    expect_of(&mut file, path, expected)
}

/// The same for a file that is open, which is then at its beginning.
pub(crate) fn expect_of(file: &mut (impl Read + Seek), path: &Path, expected: &str) -> Result<()> {
    let found = of_open(file).map_err(io("read", path))?;
    if found == expected {
        return file.rewind().map_err(io("read", path));
    }
    let what = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Err(SupplyError::WrongHash { what, expected: expected.to_owned(), found })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn digest_is_the_known_one_of_abc() {
        assert_eq!(super::of_bytes(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
