//! Hand-made packages: what `dpkg-deb` would refuse to build is written byte by byte.

use std::path::{Path, PathBuf};

use tar::{EntryType, Header};

/// Writes a package whose files are these blocks of a tar.
pub fn write(directory: &Path, name: &str, control: &str, data: &[u8]) -> PathBuf {
    let path = directory.join(format!("{name}.deb"));
    let control = [entry(b"./control", EntryType::Regular, 0o644, b"", control.as_bytes()), vec![0; 1024]].concat();
    let data = [data, &[0; 1024]].concat();
    let mut bytes = b"!<arch>\n".to_vec();
    for (member, contents) in [("debian-binary", &b"2.0\n"[..]), ("control.tar", &control), ("data.tar", &data)] {
        bytes.extend(format!("{member:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, contents.len()).bytes());
        bytes.extend_from_slice(contents);
        bytes.resize(bytes.len().next_multiple_of(2), b'\n');
    }
    std::fs::write(&path, bytes).expect("a package");
    path
}

pub fn control(name: &str) -> String {
    format!("Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: Test <test@example.org>\nDescription: x\n")
}

/// Returns one entry, with exactly this name.
pub fn entry(name: &[u8], kind: EntryType, mode: u32, link: &[u8], contents: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_700_000_000);
    header.set_size(contents.len() as u64);
    let fields = header.as_gnu_mut().expect("a header of this kind");
    fields.name[..name.len()].copy_from_slice(name);
    fields.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    let mut bytes = [header.as_bytes(), contents].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}
