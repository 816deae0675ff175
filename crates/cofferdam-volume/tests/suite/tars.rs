//! Export and import.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use cofferdam_volume::{Bounds, VolumeError};
use tar::EntryType;

use crate::common::{Fixture, Forge, SMALL, has_mkfs, name, read, set_mode};

fn example() -> Vec<u8> {
    let long = format!("a/{}", "n".repeat(90));
    Forge::new()
        .directory("./", 0o755)
        .directory("a/", 0o750)
        .file("a/plain", b"text")
        .member(EntryType::Regular, "a/run", "", 0o6755, b"#!")
        .file("empty", b"")
        .file("large", &vec![7; 3 << 20])
        .file("holes", &vec![0; 1 << 20])
        .file(&long, b"x")
        .link("a/link", "../plain")
        .link("away", "/etc/passwd")
        .member(EntryType::Link, "second", "a/plain", 0o644, b"")
        .pax("SCHILY.xattr.user.secret", b"value")
        .file("attributed", b"1")
        .directory("sticky", 0o1777)
        .file("no/parent", b"2")
        .file("line\nfeed \u{1b}", b"3")
        .end()
}

/// Promise (Files): An exported volume is imported with the same names, contents, modes, times and links. Owners,
/// set-id bits and extended attributes are dropped.
#[test]
fn a_volume_is_exported_and_imported() {
    let fixture = Fixture::new();
    let imported = fixture.import("open", None, &example()).unwrap();
    assert_eq!(imported.files, 16);
    let (tar, exported) = fixture.export("open").unwrap();
    let found = read(&tar);
    for (path, text) in [
        ("a", "directory 750"),
        ("a/plain", "file 644 1600000000 [116, 101, 120, 116]"),
        ("a/run", "file 755 1600000000 [35, 33]"),
        ("empty", "file 644 1600000000 []"),
        ("large", "file 644 1600000000 3145728 bytes"),
        ("holes", "file 644 1600000000 1048576 bytes"),
        ("a/link", "link ../plain"),
        ("away", "link /etc/passwd"),
        ("second", "hard link a/plain"),
        ("attributed", "file 644 1600000000 [49]"),
        ("sticky", "directory 1777"),
        ("no", "directory 755"),
        ("line\nfeed \u{1b}", "file 644 1600000000 [51]"),
    ] {
        assert_eq!(found.get(path).map(String::as_str), Some(text), "{path}: {found:?}");
    }
    assert_eq!((exported.files, exported.skipped, found.len()), (15, 0, 15));
    assert!(fs::metadata(fixture.path().join("open/files/holes")).unwrap().blocks() < 64, "it is sparse");
    fixture.import("again", None, &tar).unwrap();
    assert_eq!(read(&fixture.export("again").unwrap().0), found);
    if !has_mkfs("a_volume_is_exported_and_imported") {
        return;
    }
    fixture.import("disk", Some(SMALL), &tar).unwrap();
    let mut expected = found.clone();
    // The reader of file systems does not see that a file has two names.
    expected.insert("second".to_owned(), found["a/plain"].clone());
    assert_eq!(read(&fixture.export("disk").unwrap().0), expected);
    let (tar, _) = fixture.export("disk").unwrap();
    fixture.import("back", None, &tar).unwrap();
    assert_eq!(read(&fixture.export("back").unwrap().0), expected);
    assert!(!fixture.path().join("disk/files").exists());
}

#[test]
fn sockets_and_fifos_are_left_out_and_links_are_not_followed() {
    let fixture = Fixture::new();
    fixture.store.create(&name("v"), None).unwrap();
    let files = fixture.path().join("v/files");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, files.join("fifo"), fifo, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(files.join("socket")).unwrap();
    symlink("/etc", files.join("etc")).unwrap();
    fs::write(files.join("file"), "x").unwrap();
    set_mode(&files.join("file"), 0o4755);
    let (tar, exported) = fixture.export("v").unwrap();
    let found = read(&tar);
    assert_eq!((exported.skipped, found.len()), (2, 2));
    assert!(found["etc"] == "link /etc" && found["file"].starts_with("file 755"), "{found:?}");
}

/// Promise (Files): An import that fails leaves no volume.
#[test]
fn an_import_that_fails_leaves_nothing() {
    let fixture = Fixture::new();
    let tar = example();
    let bounds = |max_bytes, max_files| Bounds { max_bytes, max_files };
    let import = |bounds: &Bounds| fixture.store.import(&name("v"), None, &*tar, bounds, &mut |_| ());
    for bounds in [bounds(1 << 20, 1000), bounds(1 << 30, 5)] {
        assert!(matches!(import(&bounds), Err(VolumeError::TooLarge { .. })));
    }
    for length in [0, 511, 512, 2048, tar.len() / 2, tar.len() - 1024] {
        assert!(matches!(fixture.import("v", None, &tar[..length]), Err(VolumeError::Stream { .. })), "{length}");
    }
    let garbage = [&tar[..], b"x"].concat();
    assert!(fixture.import("v", None, &garbage).is_err());
    assert!(fixture.import("v", None, &vec![0x55; 4096]).is_err());
    if has_mkfs("an_import_that_fails_leaves_nothing") {
        let large = Forge::new().file("large", &vec![7; 40 << 20]).end();
        assert!(matches!(fixture.import("v", Some(SMALL), &large), Err(VolumeError::DoesNotFit { .. })));
        // It is smaller than the volume, but not than its space for files.
        let large = Forge::new().file("large", &vec![7; 30 << 20]).end();
        assert!(matches!(fixture.import("v", Some(SMALL), &large), Err(VolumeError::DoesNotFit { .. })));
    }
    assert_eq!(fixture.entries(), [""; 0]);
    fixture.import("v", None, &tar).unwrap();
    assert!(matches!(fixture.import("v", None, &tar), Err(VolumeError::Exists { .. })));
}

#[test]
fn an_export_is_bounded() {
    let fixture = Fixture::new();
    fixture.import("v", None, &example()).unwrap();
    for (max_bytes, max_files) in [(1 << 20, 1000), (1 << 30, 5)] {
        let bounds = Bounds { max_bytes, max_files };
        let exported = fixture.store.export(&name("v"), std::io::sink(), &bounds, &mut |_| ());
        assert!(matches!(exported, Err(VolumeError::TooLarge { .. })));
    }
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let exported = fixture.store.export(&name("v"), full, &Bounds::default(), &mut |_| ());
    assert!(matches!(exported, Err(VolumeError::Stream { .. })));
}

#[test]
fn progress_counts_all_bytes() {
    let fixture = Fixture::new();
    let mut last = 0;
    fixture.store.import(&name("v"), None, &*example(), &Bounds::default(), &mut |bytes| last = bytes).unwrap();
    let sum = (3 << 20) + (1 << 20) + 4 + 2 + 1 + 1 + 1 + 1;
    assert_eq!(last, sum);
    let mut last = 0;
    let exported =
        fixture.store.export(&name("v"), std::io::sink(), &Bounds::default(), &mut |bytes| last = bytes).unwrap();
    assert_eq!((exported.bytes, last <= sum), (sum, true));
}
