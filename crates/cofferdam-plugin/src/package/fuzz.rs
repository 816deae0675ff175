//! Packages that are signed whatever they contain, for fuzz targets.

use std::fs::File;
use std::io::{self, Write};

use cofferdam_util::sha256;
use rustix::fs::{MemfdFlags, memfd_create};
use tar::EntryType;

use super::archive::{BLOCK, INDEX, SIGNATURE, Signature, header, plain_header};
use super::error::{Result, io as io_error};
use super::{Entry, Package, SigningKey};

/// Opens a package with these bytes.
pub fn open(bytes: &[u8]) -> Result<Package> {
    let mut file = File::from(memfd_create(c"package", MemfdFlags::CLOEXEC).map_err(io_error("create", "package"))?);
    file.write_all(bytes).map_err(io_error("write", "package"))?;
    io::Seek::rewind(&mut file).map_err(io_error("read", "package"))?;
    Package::of_file(file)
}

/// Returns a package with an index and its signature, then `members`.
pub fn sealed(index: &[u8], members: &[u8]) -> io::Result<Vec<u8>> {
    let key = SigningKey::fixed();
    let signature = Signature { key: key.public().to_hex(), signature: key.sign(&sha256::of(index)) };
    let mut tar = Vec::new();
    for (name, contents) in [(INDEX, index), (SIGNATURE, &serde_json::to_vec(&signature)?)] {
        tar.extend(plain_header(name, EntryType::Regular, contents.len() as u64, 0o644)?.as_bytes());
        padded(&mut tar, contents);
    }
    tar.extend(members);
    zstd::encode_all(&*tar, 1)
}

/// Returns the member of an entry.
pub fn member(entry: &Entry, contents: &[u8]) -> io::Result<Vec<u8>> {
    let mut member = header(entry)?.as_bytes().to_vec();
    padded(&mut member, contents);
    Ok(member)
}

fn padded(tar: &mut Vec<u8>, contents: &[u8]) {
    tar.extend(contents);
    tar.resize(tar.len().next_multiple_of(BLOCK), 0);
}
