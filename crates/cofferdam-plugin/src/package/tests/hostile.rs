//! Hostile packages: each is refused with a verdict, and nothing of it is unpacked.

use std::io::Write;

use cofferdam_util::sha256;
use tar::{EntryType, Header};

use super::super::archive::{BLOCK, INDEX, SIGNATURE, Signature, header, plain_header};
use super::super::{Contents, Entry, Index, PACKAGE_FORMAT, Package, PackageError, SigningKey, Verdict, index};
use super::{Fixture, MANIFEST, opened};

fn verdict(bytes: &[u8]) -> (Verdict, String) {
    match opened(bytes) {
        Err(PackageError::Refused { verdict, reason }) => (verdict, reason),
        other => panic!("{other:?}"),
    }
}

/// A package that is built by hand: an index, and members that need not match it.
struct Forge<'a> {
    key: &'a SigningKey,
    index: Index,
    tar: Vec<u8>,
}

impl<'a> Forge<'a> {
    fn new(key: &'a SigningKey) -> Self {
        let manifest = index::ManifestFile { name: "plugin.toml".to_owned(), text: MANIFEST.to_owned() };
        let mut forge =
            Self { key, index: Index { format: PACKAGE_FORMAT, manifest, entries: Vec::new() }, tar: Vec::new() };
        forge.list("plugin.toml", file(MANIFEST));
        forge.member(&forge.header_of(0), MANIFEST.as_bytes());
        forge
    }

    fn list(&mut self, path: &str, contents: Contents) {
        self.index.entries.push(Entry { path: path.to_owned(), contents });
    }

    fn header_of(&self, at: usize) -> Header {
        header(&self.index.entries[at]).unwrap()
    }

    fn member(&mut self, header: &Header, contents: &[u8]) {
        self.tar.extend(header.as_bytes());
        self.tar.extend(contents);
        self.tar.resize(self.tar.len().next_multiple_of(BLOCK), 0);
    }

    /// Lists a file, and adds a member whose header was changed.
    fn changed(mut self, change: impl FnOnce(&mut Header)) -> Self {
        self.list("f", file("text"));
        let mut header = self.header_of(1);
        change(&mut header);
        header.set_cksum();
        self.member(&header, b"text");
        self
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes_with(&serde_json::to_vec(&self.index).unwrap(), &[0; 2 * BLOCK])
    }

    fn bytes_with(&self, index: &[u8], end: &[u8]) -> Vec<u8> {
        let signature = Signature { key: self.key.public().to_hex(), signature: self.key.sign(&sha256::of(index)) };
        let signature = serde_json::to_vec(&signature).unwrap();
        let mut head = Forge { key: self.key, index: self.index.clone(), tar: Vec::new() };
        for (name, bytes) in [(INDEX, index), (SIGNATURE, &signature)] {
            head.member(&plain_header(name, EntryType::Regular, bytes.len() as u64, 0o644).unwrap(), bytes);
        }
        let whole = [head.tar, self.tar.clone(), end.to_vec()].concat();
        zstd::encode_all(&*whole, 3).unwrap()
    }
}

fn file(text: &str) -> Contents {
    Contents::File { size: text.len() as u64, sha256: sha256::of(text), executable: false }
}

#[test]
fn a_forged_package_that_matches_its_index_is_accepted() {
    let fixture = Fixture::new();
    let forge = Forge::new(&fixture.key).changed(|_| {});
    assert_eq!(opened(&forge.bytes()).unwrap().index(), &forge.index);
}

/// Promise (Plugins): A package with devices, links, set-id bits, foreign owners, other sizes or repeated names is
/// refused.
#[test]
fn members_that_are_not_those_of_the_index_are_refused() {
    let fixture = Fixture::new();
    let new = || Forge::new(&fixture.key);
    let kinds = [
        (EntryType::Symlink, "a symbolic link"),
        (EntryType::Link, "a hard link"),
        (EntryType::Char, "a device"),
        (EntryType::Block, "a device"),
        (EntryType::Fifo, "a fifo"),
        (EntryType::Directory, "a directory"),
        (EntryType::XHeader, "of an unknown type"),
        (EntryType::GNULongName, "of an unknown type"),
        (EntryType::GNUSparse, "of an unknown type"),
    ];
    for (kind, text) in kinds {
        let found = verdict(&new().changed(|header| header.set_entry_type(kind)).bytes());
        assert_eq!(found, (Verdict::BadMember, format!("'f' is {text}")));
    }
    for mode in [0o4755, 0o2755, 0o1755] {
        let (found, reason) = verdict(&new().changed(|header| header.set_mode(mode)).bytes());
        assert_eq!(found, Verdict::BadMember);
        assert!(reason.contains("mode bits"), "{reason}");
    }
    type Change = fn(&mut Header);
    let changes: [(Change, &str); 7] = [
        (|header| header.set_size(5), "another size"),
        (|header| header.set_size(1 << 40), "another size"),
        (|header| header.set_uid(1000), "owner"),
        (|header| header.set_mtime(1), "time"),
        (|header| header.set_mode(0o666), "mode"),
        (|header| header.set_path("files/g").unwrap(), "'files/g' is in the place of 'f'"),
        (|header| header.as_ustar_mut().unwrap().name[..8].copy_from_slice(b"/../../x"), "in the place of 'f'"),
    ];
    for (change, text) in changes {
        let (found, reason) = verdict(&new().changed(change).bytes());
        assert!(found == Verdict::BadMember && reason.contains(text), "{reason}");
    }
    let mut twice = new().changed(|_| {});
    let header = twice.header_of(1);
    twice.member(&header, b"text");
    assert_eq!(verdict(&twice.bytes()).0, Verdict::BadMember);
    let mut missing = new();
    missing.list("f", file("text"));
    assert_eq!(verdict(&missing.bytes()), (Verdict::BadMember, "it ends before 'f'".to_owned()));
}

#[test]
fn contents_that_are_not_those_of_the_index_are_refused() {
    let fixture = Fixture::new();
    let mut forge = Forge::new(&fixture.key);
    forge.list("f", file("text"));
    let header = forge.header_of(1);
    forge.member(&header, b"tex!");
    assert_eq!(verdict(&forge.bytes()).0, Verdict::BadDigest);
    let mut padded = Forge::new(&fixture.key).changed(|_| {});
    *padded.tar.last_mut().unwrap() = 1;
    assert_eq!(verdict(&padded.bytes()).0, Verdict::BadMember);
}

/// Promise (Plugins): A signed package whose paths or links lead out of it is refused.
#[test]
fn an_index_with_unsafe_paths_or_sizes_is_refused_though_it_is_signed() {
    let fixture = Fixture::new();
    let with = |path: &str, contents: Contents| {
        let mut forge = Forge::new(&fixture.key);
        forge.list(path, contents);
        verdict(&forge.bytes()).0
    };
    for path in ["../x", "/etc/passwd", "a/../b", "plugin.toml", "none/x"] {
        assert_eq!(with(path, file("text")), Verdict::UnsafePath, "{path}");
    }
    for target in ["/etc/passwd", "../x"] {
        assert_eq!(with("l", Contents::Link { target: target.to_owned() }), Verdict::UnsafePath, "{target}");
    }
    let huge = Contents::File { size: u64::MAX, sha256: sha256::of(""), executable: false };
    assert_eq!(with("huge", huge), Verdict::TooLarge);
    let mut forge = Forge::new(&fixture.key);
    forge.index.manifest.text.push_str("description = \"another\"\n");
    assert_eq!(verdict(&forge.bytes()).0, Verdict::BadManifest);
    let mut forge = Forge::new(&fixture.key);
    forge.index.format = 2;
    assert_eq!(verdict(&forge.bytes()).0, Verdict::UnknownFormat);
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    assert_eq!(verdict(&Forge::new(&fixture.key).bytes_with(&deep, &[])).0, Verdict::BadIndex);
}

/// Promise (Plugins): A package that was changed after it was signed is refused.
#[test]
fn a_changed_index_or_signature_is_refused() {
    let fixture = Fixture::new();
    let forge = Forge::new(&fixture.key);
    let tar = zstd::decode_all(&*forge.bytes()).unwrap();
    let changed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut tar = tar.clone();
        let at = tar.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        tar[at..at + to.len()].copy_from_slice(to.as_bytes());
        verdict(&zstd::encode_all(&*tar, 3).unwrap()).0
    };
    assert_eq!(changed("python", "comman"), Verdict::BadSignature);
    let key = fixture.key.public().to_hex();
    assert_eq!(changed(&key, &fixture.other_key().public().to_hex()), Verdict::BadSignature);
    assert_eq!(changed(&key, &"0".repeat(64)), Verdict::BadSignature);
    assert_eq!(changed(&key, &"x".repeat(64)), Verdict::BadSignature);
}

/// Promise (Plugins): A truncated or extended package is refused.
#[test]
fn truncated_extended_and_other_files_are_refused() {
    let fixture = Fixture::new();
    let forge = Forge::new(&fixture.key).changed(|_| {});
    let (bytes, index) = (forge.bytes(), serde_json::to_vec(&forge.index).unwrap());
    for length in (1..bytes.len()).step_by(7) {
        let (found, _) = verdict(&bytes[..length]);
        assert!(matches!(found, Verdict::BadLength | Verdict::NotAPackage), "{length}: {found:?}");
    }
    assert_eq!(verdict(&forge.bytes_with(&index, &[0; BLOCK])).0, Verdict::BadLength);
    assert_eq!(verdict(&forge.bytes_with(&index, &[0; 3 * BLOCK])).0, Verdict::BadLength);
    assert_eq!(verdict(&forge.bytes_with(&index, &[1; 2 * BLOCK])).0, Verdict::BadMember);
    assert_eq!(verdict(&[&*bytes, b"trailing"].concat()).0, Verdict::NotAPackage);
    for other in [&b""[..], b"PK\x03\x04", &[0; 4096]] {
        assert!(matches!(verdict(other).0, Verdict::BadLength | Verdict::NotAPackage));
    }
    assert_eq!(verdict(&zstd::encode_all(&[7; 4096][..], 3).unwrap()).0, Verdict::NotAPackage);
}

/// Promise (Plugins): A package that unpacks to more than its limits is refused.
#[test]
fn bombs_are_refused_before_they_are_unpacked() {
    let fixture = Fixture::new();
    // A header that announces a terabyte, and a gigabyte of zeros that compresses to nothing.
    let bomb = |size: u64| {
        let header = plain_header(INDEX, EntryType::Regular, size, 0o644).unwrap();
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.write_all(header.as_bytes()).unwrap();
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), 1 << 30), &mut encoder).unwrap();
        encoder.finish().unwrap()
    };
    assert_eq!(verdict(&bomb(1 << 30)).0, Verdict::TooLarge);
    // A window that needs more memory than a reader has for it.
    let valid = zstd::decode_all(&*Forge::new(&fixture.key).bytes()).unwrap();
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(&valid).unwrap();
    assert_eq!(verdict(&encoder.finish().unwrap()).0, Verdict::NotAPackage);
    let sparse = tempfile::tempfile().unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert!(matches!(Package::of_file(sparse), Err(PackageError::Refused { verdict: Verdict::TooLarge, .. })));
}
