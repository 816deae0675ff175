//! A directory that is packed. Hostile packages and installs have files of their own.

mod hostile;
mod installs;

use std::fs::{self, File, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

const MANIFEST: &str =
    "manifest = 1\nname = \"hello\"\nversion = \"1.0.0\"\nruntime = \"python\"\nentry = \"main:activate\"\n";

/// A directory with a plugin, a key and a store.
struct Fixture {
    _temp: tempfile::TempDir,
    top: PathBuf,
    key: SigningKey,
}

impl Fixture {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        SigningKey::create(&top.join("key")).unwrap();
        let key = SigningKey::read(&top.join("key")).unwrap();
        let fixture = Self { _temp: temp, top, key };
        fs::create_dir(fixture.plugin()).unwrap();
        fixture.write("plugin.toml", MANIFEST);
        fixture.write("main.py", "def activate(plugin): pass\n");
        fixture
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

/// Promise (Plugins): The same files and key give the same package.
#[test]
fn a_directory_is_packed_to_the_same_bytes_without_caches_and_times() {
    let fixture = Fixture::new();
    fixture.write("lib/a.py", "a");
    fs::create_dir(fixture.plugin().join("empty")).unwrap();
    symlink("lib/a.py", fixture.plugin().join("link")).unwrap();
    let first = fixture.bytes(&fixture.key);
    for left_out in [".git/config", "lib/__pycache__/a.pyc", "node_modules/.cache/x", "old.cplugin"] {
        fixture.write(left_out, "cache");
    }
    fs::remove_dir_all(fixture.plugin().join("node_modules")).unwrap();
    let file = File::open(fixture.plugin().join("main.py")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    fs::set_permissions(fixture.plugin().join("main.py"), Permissions::from_mode(0o4600)).unwrap();
    assert_eq!(fixture.bytes(&fixture.key), first);
    fs::set_permissions(fixture.plugin().join("main.py"), Permissions::from_mode(0o700)).unwrap();
    assert_ne!(fixture.bytes(&fixture.key), first);
    fixture.write("node_modules/.cache/x", "cache");
    fixture.write("node_modules/m/index.js", "m");
    let tree = Tree::read(&fixture.plugin()).unwrap();
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

/// Promise (Plugins): A private key, a device or a link that leads out of the directory is not packed.
#[test]
fn keys_devices_and_escaping_links_are_not_packed() {
    let fixture = Fixture::new();
    let path = fixture.plugin().join("x");
    for target in ["/etc/passwd", "../secret", "lib/../../secret"] {
        symlink(target, &path).unwrap();
        assert!(fixture.unpackable().contains("link"), "{target}");
        fs::remove_file(&path).unwrap();
    }
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(fixture.unpackable().contains("neither a file nor a directory"));
    fs::remove_file(&path).unwrap();
    File::create(&path).unwrap().set_len(MAX_SIZE + 1).unwrap();
    assert!(fixture.unpackable().contains("256 MiB"));
    fs::remove_file(&path).unwrap();
    fs::copy(fixture.top.join("key"), &path).unwrap();
    assert!(fixture.unpackable().contains("private key"));
    fs::remove_file(&path).unwrap();
    fixture.write("plugin.toml", "manifest = 1\n");
    assert!(matches!(Tree::read(&fixture.plugin()), Err(PackageError::Manifest { .. })));
    fs::remove_file(fixture.plugin().join("plugin.toml")).unwrap();
    assert!(matches!(Tree::read(&fixture.plugin()), Err(PackageError::Manifest { .. })));
}

/// Promise (Plugins): A file that is replaced by a link during packing leads to no file outside the directory.
#[test]
fn a_file_that_becomes_a_link_or_changes_during_packing_leads_nowhere() {
    let fixture = Fixture::new();
    fs::write(fixture.top.join("secret"), "secret").unwrap();
    for outside in ["../secret", "/etc/passwd"] {
        fixture.write("main.py", "first");
        let tree = Tree::read(&fixture.plugin()).unwrap();
        fs::remove_file(fixture.plugin().join("main.py")).unwrap();
        symlink(outside, fixture.plugin().join("main.py")).unwrap();
        let mut bytes = Vec::new();
        assert!(tree.write(&fixture.key, &mut bytes).is_err());
        fs::remove_file(fixture.plugin().join("main.py")).unwrap();
    }
    fixture.write("main.py", "first");
    let tree = Tree::read(&fixture.plugin()).unwrap();
    for text in ["second", "f", "firsts", "fIrst"] {
        fixture.write("main.py", text);
        let error = tree.write(&fixture.key, Vec::new()).unwrap_err();
        assert!(error.to_string().contains("changed while it was packed"), "{error}");
    }
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
            Entry::Other | Entry::Unreadable(_) => panic!("{path:?}"),
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
        let fixture = Fixture::new();
        for (path, contents) in &files {
            let path = fixture.plugin().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, contents).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(if executable { 0o711 } else { 0o600 })).unwrap();
        }
        for link in &links {
            symlink("./main.py", fixture.plugin().join(link)).unwrap();
        }
        let package = fixture.package();
        fixture.store().trust(&package.signer()).unwrap();
        let installed = fixture.install(&package).unwrap();
        prop_assert_eq!(listing(&installed.directory), listing(&fixture.plugin()));
    }

    #[test]
    fn a_package_with_any_changed_byte_is_refused_or_the_same(at in any::<proptest::sample::Index>(), bit in 0..8_u32) {
        let fixture = Fixture::new();
        let mut bytes = fixture.bytes(&fixture.key);
        let digest = fixture.package().digest().to_owned();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok(package) = opened(&bytes) {
            prop_assert_eq!(package.digest(), digest);
        }
    }
}
