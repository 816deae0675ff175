//! Volumes from their creation to their removal.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

use cofferdam_volume::{Access, Contents, MAX_SIZE, MIN_SIZE, Store, Through, VolumeError};

use crate::common::{Fixture, SMALL, has_mkfs, name, request, set_mode};

/// Promise (Files): Volumes with and without a size are created, listed, inspected and removed.
#[test]
fn volumes_are_created_listed_inspected_and_removed() {
    let test = "volumes_are_created_listed_inspected_and_removed";
    let fixture = Fixture::new();
    let store = &fixture.store;
    store.create(&name("open"), None).unwrap();
    if has_mkfs(test) {
        store.create(&name("disk"), Some(1 << 30)).unwrap();
        let volume = store.inspect(&name("disk")).unwrap();
        assert_eq!((volume.size, volume.was_disk), (Some(1 << 30), false));
        assert!(volume.used.is_some_and(|used| used < 16 << 20), "the file is sparse: {volume:?}");
        let disk = fixture.path().join("disk/disk.ext4");
        let found = fs::metadata(&disk).unwrap();
        assert_eq!((found.len(), found.mode() & 0o777), (1 << 30, 0o600));
        let opened = store.open_volume(&name("disk"), &request(Access::ReadOnly, Through::Disk)).unwrap();
        assert_eq!(opened.contents(), &Contents::Disk(disk));
        drop(opened);
        store.remove(&name("disk")).unwrap();
    }
    assert!(matches!(store.create(&name("open"), None), Err(VolumeError::Exists { .. })));
    let volume = store.inspect(&name("open")).unwrap();
    assert_eq!((volume.size, &volume.holders[..]), (None, &[][..]));
    assert!(volume.created.elapsed().unwrap() < Duration::from_secs(3600) && volume.last_use.is_some());
    assert_eq!(store.list().unwrap().len(), 1);
    assert_eq!(fs::metadata(fixture.path().join("open")).unwrap().mode() & 0o777, 0o700);
    store.remove(&name("open")).unwrap();
    assert!(matches!(store.remove(&name("open")), Err(VolumeError::NotFound { .. })));
    assert!(matches!(store.inspect(&name("open")), Err(VolumeError::NotFound { .. })));
    assert_eq!(fixture.entries(), [""; 0]);
}

#[test]
fn invalid_sizes_are_refused() {
    let fixture = Fixture::new();
    for size in [0, 1, MIN_SIZE - 4096, MIN_SIZE + 1, MAX_SIZE + 4096, u64::MAX] {
        let created = fixture.store.create(&name("x"), Some(size));
        assert!(matches!(created, Err(VolumeError::InvalidSize { .. })), "{size}");
    }
    assert_eq!(fixture.entries(), [""; 0]);
}

#[test]
fn a_store_that_other_users_can_change_is_refused() {
    let fixture = Fixture::new();
    set_mode(&fixture.path(), 0o770);
    assert!(matches!(Store::open(&fixture.path()), Err(VolumeError::Exposed { .. })));
    symlink(fixture.path(), fixture.temp.path().join("link")).unwrap();
    assert!(Store::open(&fixture.temp.path().join("link")).is_err());
}

/// Promise (Files): A volume is removed whatever a guest left in it.
#[test]
fn deep_and_closed_directories_are_removed() {
    let fixture = Fixture::new();
    fixture.store.create(&name("open"), None).unwrap();
    let files = fixture.path().join("open/files");
    // Deeper than any process may have files open, and than any path is long.
    let mut above = fs::File::open(&files).unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&above, "directory", 0o700.into()).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        above = rustix::fs::openat(&above, "directory", flags, 0.into()).unwrap().into();
    }
    fs::create_dir_all(files.join("closed/inner/innermost")).unwrap();
    fs::write(files.join("closed/inner/file"), "x").unwrap();
    symlink("/etc", files.join("closed/link")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, files.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for path in ["closed/inner/innermost", "closed/inner", "closed"] {
        set_mode(&files.join(path), 0);
    }
    set_mode(&files, 0o500);
    // A tree that is too deep to count has no known size.
    assert_eq!(fixture.store.inspect(&name("open")).unwrap().used, None);
    fixture.store.remove(&name("open")).unwrap();
    assert_eq!(fixture.entries(), [""; 0]);
    assert!(fs::metadata("/etc/passwd").is_ok());
}

#[test]
fn a_damaged_volume_is_reported_and_can_be_removed() {
    let fixture = Fixture::new();
    for record in ["", "{}", "{\"version\":9,\"size\":null,\"created\":1,\"was_disk\":false}"] {
        fixture.store.create(&name("x"), None).unwrap();
        fs::write(fixture.path().join("x/volume.json"), record).unwrap();
        let list = fixture.store.list().unwrap();
        assert!(matches!(list[..], [(_, Err(VolumeError::Damaged { .. }))]), "{list:?}");
        let opened = fixture.store.open_volume(&name("x"), &request(Access::ReadWrite, Through::Mount));
        assert!(matches!(opened, Err(VolumeError::Damaged { .. })));
        fixture.store.remove(&name("x")).unwrap();
    }
    if has_mkfs("a_damaged_volume_is_reported_and_can_be_removed") {
        fixture.store.create(&name("disk"), Some(SMALL)).unwrap();
        fs::write(fixture.path().join("disk/disk.ext4"), "short").unwrap();
        assert!(matches!(fixture.export("disk"), Err(VolumeError::Damaged { .. })));
        fixture.store.remove(&name("disk")).unwrap();
    }
}
