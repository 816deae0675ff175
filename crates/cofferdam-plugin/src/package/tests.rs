//! Hostile packages, and what becomes of a directory that is packed, installed and removed.

use std::fs::{self, File, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cofferdam_util::sha256;
use proptest::prelude::*;
use tar::{EntryType, Header};

use super::archive::{BLOCK, INDEX, SIGNATURE, Signature, header, plain_header};
use super::*;

const MANIFEST: &str =
    "manifest = 1\nname = \"hello\"\nversion = \"1.0.0\"\nruntime = \"python\"\nentry = \"main:activate\"\n";

/// A directory with a plugin, a key and a store.
struct Place {
    _temp: tempfile::TempDir,
    top: PathBuf,
    key: SigningKey,
}

impl Place {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        SigningKey::create(&top.join("key")).unwrap();
        let key = SigningKey::read(&top.join("key")).unwrap();
        let place = Self { _temp: temp, top, key };
        fs::create_dir(place.plugin()).unwrap();
        place.write("plugin.toml", MANIFEST);
        place.write("main.py", "def activate(plugin): pass\n");
        place
    }

    fn plugin(&self) -> PathBuf {
        self.top.join("plugin")
    }

    fn store(&self) -> Store {
        Store::new(&self.top.join("data"))
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.plugin().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn other_key(&self) -> SigningKey {
        SigningKey::create(&self.top.join("other")).unwrap();
        SigningKey::read(&self.top.join("other")).unwrap()
    }

    fn bytes(&self, key: &SigningKey) -> Vec<u8> {
        let mut bytes = Vec::new();
        Tree::read(&self.plugin()).unwrap().write(key, &mut bytes).unwrap();
        bytes
    }

    fn package(&self) -> Package {
        opened(&self.bytes(&self.key)).unwrap()
    }

    fn install(&self, package: &Package) -> Result<Installed, PackageError> {
        let store = self.store();
        let review = store.review(package)?;
        store.install(package, &review, KeyChange::Refuse)
    }

    /// Returns the names in the store of packages.
    fn stored(&self) -> Vec<String> {
        names(&self.top.join("data/plugins/store"))
    }

    fn unpackable(&self) -> String {
        match Tree::read(&self.plugin()) {
            Err(error @ PackageError::Unpackable { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn opened(bytes: &[u8]) -> Result<Package, PackageError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    Package::of_file(file)
}

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
    let place = Place::new();
    let forge = Forge::new(&place.key).changed(|_| {});
    assert_eq!(opened(&forge.bytes()).unwrap().index(), &forge.index);
}

#[test]
fn members_that_are_not_those_of_the_index_are_refused() {
    let place = Place::new();
    let new = || Forge::new(&place.key);
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
    let place = Place::new();
    let mut forge = Forge::new(&place.key);
    forge.list("f", file("text"));
    let header = forge.header_of(1);
    forge.member(&header, b"tex!");
    assert_eq!(verdict(&forge.bytes()).0, Verdict::BadDigest);
    let mut padded = Forge::new(&place.key).changed(|_| {});
    *padded.tar.last_mut().unwrap() = 1;
    assert_eq!(verdict(&padded.bytes()).0, Verdict::BadMember);
}

#[test]
fn an_index_with_unsafe_paths_or_sizes_is_refused_though_it_is_signed() {
    let place = Place::new();
    let with = |path: &str, contents: Contents| {
        let mut forge = Forge::new(&place.key);
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
    let mut forge = Forge::new(&place.key);
    forge.index.manifest.text.push_str("description = \"another\"\n");
    assert_eq!(verdict(&forge.bytes()).0, Verdict::BadManifest);
    let mut forge = Forge::new(&place.key);
    forge.index.format = 2;
    assert_eq!(verdict(&forge.bytes()).0, Verdict::UnknownFormat);
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    assert_eq!(verdict(&Forge::new(&place.key).bytes_with(&deep, &[])).0, Verdict::BadIndex);
}

#[test]
fn a_changed_index_or_signature_is_refused() {
    let place = Place::new();
    let forge = Forge::new(&place.key);
    let tar = zstd::decode_all(&*forge.bytes()).unwrap();
    let changed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut tar = tar.clone();
        let at = tar.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        tar[at..at + to.len()].copy_from_slice(to.as_bytes());
        verdict(&zstd::encode_all(&*tar, 3).unwrap()).0
    };
    assert_eq!(changed("python", "comman"), Verdict::BadSignature);
    let key = place.key.public().to_hex();
    assert_eq!(changed(&key, &place.other_key().public().to_hex()), Verdict::BadSignature);
    assert_eq!(changed(&key, &"0".repeat(64)), Verdict::BadSignature);
    assert_eq!(changed(&key, &"x".repeat(64)), Verdict::BadSignature);
}

#[test]
fn truncated_extended_and_other_files_are_refused() {
    let place = Place::new();
    let forge = Forge::new(&place.key).changed(|_| {});
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

#[test]
fn bombs_are_refused_before_they_are_unpacked() {
    let place = Place::new();
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
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(&Forge::new(&place.key).tar).unwrap();
    encoder.write_all(&vec![1; 200 << 20]).unwrap();
    assert_eq!(verdict(&encoder.finish().unwrap()).0, Verdict::NotAPackage);
    let sparse = tempfile::tempfile().unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert!(matches!(Package::of_file(sparse), Err(PackageError::Refused { verdict: Verdict::TooLarge, .. })));
}

#[test]
fn a_directory_is_packed_to_the_same_bytes_without_caches_and_times() {
    let place = Place::new();
    place.write("lib/a.py", "a");
    fs::create_dir(place.plugin().join("empty")).unwrap();
    symlink("lib/a.py", place.plugin().join("link")).unwrap();
    let first = place.bytes(&place.key);
    for left_out in [".git/config", "lib/__pycache__/a.pyc", "node_modules/.cache/x", "old.cplugin"] {
        place.write(left_out, "cache");
    }
    fs::remove_dir_all(place.plugin().join("node_modules")).unwrap();
    let file = File::open(place.plugin().join("main.py")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    fs::set_permissions(place.plugin().join("main.py"), Permissions::from_mode(0o4600)).unwrap();
    assert_eq!(place.bytes(&place.key), first);
    fs::set_permissions(place.plugin().join("main.py"), Permissions::from_mode(0o700)).unwrap();
    assert_ne!(place.bytes(&place.key), first);
    place.write("node_modules/.cache/x", "cache");
    place.write("node_modules/m/index.js", "m");
    let tree = Tree::read(&place.plugin()).unwrap();
    let paths: Vec<&str> = tree.index().entries.iter().map(|entry| entry.path.as_str()).collect();
    let expected = [
        "empty",
        "lib",
        "lib/a.py",
        "link",
        "main.py",
        "node_modules",
        "node_modules/m",
        "node_modules/m/index.js",
        "plugin.toml",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn what_no_package_can_have_is_not_packed() {
    let place = Place::new();
    let path = place.plugin().join("x");
    for target in ["/etc/passwd", "../secret", "lib/../../secret"] {
        symlink(target, &path).unwrap();
        assert!(place.unpackable().contains("link"), "{target}");
        fs::remove_file(&path).unwrap();
    }
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(place.unpackable().contains("neither a file nor a directory"));
    fs::remove_file(&path).unwrap();
    File::create(&path).unwrap().set_len(MAX_SIZE + 1).unwrap();
    assert!(place.unpackable().contains("256 MiB"));
    fs::remove_file(&path).unwrap();
    fs::copy(place.top.join("key"), &path).unwrap();
    assert!(place.unpackable().contains("private key"));
    fs::remove_file(&path).unwrap();
    place.write("plugin.toml", "manifest = 1\n");
    assert!(matches!(Tree::read(&place.plugin()), Err(PackageError::Manifest { .. })));
    fs::remove_file(place.plugin().join("plugin.toml")).unwrap();
    assert!(matches!(Tree::read(&place.plugin()), Err(PackageError::Manifest { .. })));
}

#[test]
fn a_file_that_becomes_a_link_or_changes_during_packing_leads_nowhere() {
    let place = Place::new();
    fs::write(place.top.join("secret"), "secret").unwrap();
    for outside in ["../secret", "/etc/passwd"] {
        place.write("main.py", "first");
        let tree = Tree::read(&place.plugin()).unwrap();
        fs::remove_file(place.plugin().join("main.py")).unwrap();
        symlink(outside, place.plugin().join("main.py")).unwrap();
        let mut bytes = Vec::new();
        assert!(tree.write(&place.key, &mut bytes).is_err());
        fs::remove_file(place.plugin().join("main.py")).unwrap();
    }
    place.write("main.py", "first");
    let tree = Tree::read(&place.plugin()).unwrap();
    for text in ["second", "f", "firsts", "fIrst"] {
        place.write("main.py", text);
        let error = tree.write(&place.key, Vec::new()).unwrap_err();
        assert!(error.to_string().contains("changed while it was packed"), "{error}");
    }
}

#[test]
fn an_installed_plugin_is_read_only_and_found_until_it_is_uninstalled() {
    let place = Place::new();
    place.write("bin/tool", "#!/bin/sh\n");
    fs::set_permissions(place.plugin().join("bin/tool"), Permissions::from_mode(0o755)).unwrap();
    let package = place.package();
    assert!(matches!(place.install(&package), Err(PackageError::UnknownKey { .. })));
    assert_eq!(place.stored(), [""; 0]);
    place.store().trust(&package.signer()).unwrap();
    let found = place.install(&package).unwrap();
    assert_eq!((found.manifest.name.as_str(), found.record.digest.as_str()), ("hello", package.digest()));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&found.directory.join("main.py")), 0o444);
    assert_eq!(mode(&found.directory.join("bin/tool")), 0o555);
    assert_eq!(mode(&place.top.join("data/plugins")), 0o700);
    let data = place.top.join("data");
    assert_eq!(find(&data, "hello").unwrap().record, found.record);
    assert_eq!(installed(&data).unwrap().len(), 1);
    for name in ["other", "../hello", "", "hello/../hello"] {
        assert!(matches!(find(&data, name), Err(PackageError::NotInstalled { .. })), "{name}");
        assert!(matches!(place.store().uninstall(name), Err(PackageError::NotInstalled { .. })), "{name}");
    }
    drop(found);
    place.store().uninstall("hello").unwrap();
    assert!(matches!(find(&data, "hello"), Err(PackageError::NotInstalled { .. })));
    assert_eq!(place.stored(), [""; 0]);
}

#[test]
fn another_key_for_an_installed_plugin_is_refused_unless_it_is_accepted() {
    let place = Place::new();
    let (package, other) = (place.package(), place.other_key());
    for key in [package.signer(), other.public()] {
        place.store().trust(&key).unwrap();
    }
    place.install(&package).unwrap();
    place.write("main.py", "other");
    let foreign = opened(&place.bytes(&other)).unwrap();
    assert!(matches!(place.install(&foreign), Err(PackageError::OtherKey { .. })));
    assert_eq!(find(&place.top.join("data"), "hello").unwrap().record.digest, package.digest());
    let store = place.store();
    let review = store.review(&foreign).unwrap();
    let found = store.install(&foreign, &review, KeyChange::Accept).unwrap();
    assert_eq!(found.record.key, other.public().fingerprint());
}

#[test]
fn an_upgrade_shows_more_permissions_and_keeps_the_files_of_a_running_plugin() {
    let place = Place::new();
    let first = place.package();
    place.store().trust(&first.signer()).unwrap();
    let running = place.install(&first).unwrap();
    place.write("plugin.toml", &format!("{MANIFEST}permissions = [\"invoke\"]\n").replace("1.0.0", "1.1.0"));
    let second = place.package();
    let review = place.store().review(&second).unwrap();
    assert_eq!(review.previous.as_ref().unwrap().version, "1.0.0");
    assert_eq!(review.added, [Grant { name: "permissions", values: vec!["invoke".to_owned()] }]);
    let upgraded = place.store().install(&second, &review, KeyChange::Refuse).unwrap();
    assert_eq!(upgraded.record.version, "1.1.0");
    assert!(running.directory.join("main.py").exists());
    assert_eq!(place.stored().len(), 2);
    drop(running);
    place.store().trust(&first.signer()).unwrap();
    assert_eq!(place.stored(), [second.digest()]);
    // The review was of version 1.0.0.
    place.write("main.py", "third");
    let third = place.package();
    let outdated = place.store().install(&third, &review, KeyChange::Refuse);
    assert!(matches!(outdated, Err(PackageError::Changed { .. })));
}

#[test]
fn leftovers_of_killed_installs_are_removed_and_damage_is_found() {
    let place = Place::new();
    let package = place.package();
    place.store().trust(&package.signer()).unwrap();
    let store = place.top.join("data/plugins/store");
    let orphan = "0".repeat(64);
    for name in ["work.dead", &orphan] {
        fs::create_dir_all(store.join(name).join("files/sub")).unwrap();
    }
    let directory = place.install(&package).unwrap().directory;
    assert_eq!(place.stored(), [package.digest()]);
    let index = directory.with_file_name("index.json");
    fs::set_permissions(&index, Permissions::from_mode(0o600)).unwrap();
    fs::write(&index, "{}").unwrap();
    let data = place.top.join("data");
    assert!(matches!(find(&data, "hello"), Err(PackageError::Damaged { .. })));
    assert!(installed(&data).unwrap()[0].1.is_err());
    place.install(&package).unwrap();
    assert!(find(&data, "hello").is_ok());
    fs::write(data.join("plugins/installed/hello.json"), "{}").unwrap();
    assert!(matches!(find(&data, "hello"), Err(PackageError::Damaged { .. })));
    place.store().uninstall("hello").unwrap();
    assert_eq!(place.stored(), [""; 0]);
    fs::set_permissions(data.join("plugins"), Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(place.install(&package), Err(PackageError::Exposed { .. })));
}

#[test]
fn installs_at_once_leave_one_whole_version() {
    let place = Place::new();
    let packages: Vec<Package> = ["a", "b"]
        .map(|text| {
            place.write("main.py", text);
            place.package()
        })
        .into();
    place.store().trust(&packages[0].signer()).unwrap();
    std::thread::scope(|scope| {
        for at in 0..4 {
            let (place, package) = (&place, &packages[at % 2]);
            scope.spawn(move || {
                for _ in 0..10 {
                    match place.install(package) {
                        Ok(_) | Err(PackageError::Changed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let found = find(&place.top.join("data"), "hello").unwrap();
    let text = fs::read_to_string(found.directory.join("main.py")).unwrap();
    assert_eq!(found.record.digest, packages[usize::from(text == "b")].digest());
    place.store().trust(&packages[0].signer()).unwrap();
    assert_eq!(place.stored(), [found.record.digest.as_str()]);
}

/// Returns kinds, modes and contents by path.
fn listing(root: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let list = &mut |path: &Path, stat: &rustix::fs::Stat, entry: cofferdam_linux::walk::Entry| {
        use cofferdam_linux::walk::Entry;
        let text = match entry {
            Entry::Directory => "directory".to_owned(),
            Entry::File(mut file, _) => {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut file, &mut bytes)?;
                format!("{} {bytes:?}", stat.st_mode & 0o100)
            }
            Entry::Link(target) => format!("link {}", target.display()),
            Entry::Other => panic!("{path:?}"),
        };
        all.push((path.display().to_string(), text));
        Ok(())
    };
    cofferdam_linux::walk::walk(File::open(root).unwrap(), list).unwrap();
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_packed_tree_unpacks_to_the_same(
        files in proptest::collection::btree_map("[a-z]{1,3}(/[a-zü ]{1,3}x){0,3}\\.t", proptest::collection::vec(any::<u8>(), 0..1500), 0..12),
        executable in any::<bool>(),
        links in proptest::collection::btree_set("[A-Z]{1,2}", 0..4),
    ) {
        let place = Place::new();
        for (path, contents) in &files {
            let path = place.plugin().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, contents).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(if executable { 0o711 } else { 0o600 })).unwrap();
        }
        for link in &links {
            symlink("./main.py", place.plugin().join(link)).unwrap();
        }
        let package = place.package();
        place.store().trust(&package.signer()).unwrap();
        let installed = place.install(&package).unwrap();
        prop_assert_eq!(listing(&installed.directory), listing(&place.plugin()));
    }

    #[test]
    fn a_package_with_any_changed_byte_is_refused_or_the_same(at in any::<proptest::sample::Index>(), bit in 0..8_u32) {
        let place = Place::new();
        let mut bytes = place.bytes(&place.key);
        let digest = place.package().digest().to_owned();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok(package) = opened(&bytes) {
            prop_assert_eq!(package.digest(), digest);
        }
    }
}
