//! Volumes that the host's kernel mounts, as root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_linux::loop_device;
use cofferdam_volume::{Access, Store, Through, VolumeError};

use crate::common::{Fixture, Forge, SMALL, can_mount, inside, loops, name, read, request};

const READ: (Access, Through) = (Access::ReadOnly, Through::Mount);
const WRITE: (Access, Through) = (Access::ReadWrite, Through::Mount);

fn wait_until(what: &str, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Promise (Files): The file system of a volume enforces its size, and its loop device ends with its last use.
#[test]
fn the_size_is_enforced_and_nothing_stays_mounted() {
    if !can_mount("the_size_is_enforced_and_nothing_stays_mounted") {
        return;
    }
    let fixture = Fixture::new();
    fixture.store.create(&name("v"), Some(SMALL)).unwrap();
    let disk = fixture.path().join("v/disk.ext4");
    let mut volume = fixture.store.open_volume(&name("v"), &request(WRITE.0, WRITE.1)).unwrap();
    let mount = volume.mount().unwrap();
    assert_eq!(loops(&disk), 1);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("/dev/loop"), "{mounts}");
    let found = fs::metadata(inside(&mount, ".")).unwrap();
    assert_eq!((found.uid(), found.gid()), (1000, 1000));
    let mut file = File::create(inside(&mount, "large")).unwrap();
    let piece = vec![7; 1 << 20];
    let mut written = 0;
    let full = loop {
        match file.write_all(&piece) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 64, "the size is not enforced");
    };
    assert_eq!((full.kind(), written > 16), (ErrorKind::StorageFull, true));
    // Set-id bits have no effect, and devices do not open.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        inside(&mount, "null"),
        rustix::fs::FileType::CharacterDevice,
        0o666.into(),
        rustix::fs::makedev(1, 3),
    )
    .unwrap();
    assert_eq!(File::open(inside(&mount, "null")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    drop(file);
    fs::remove_file(inside(&mount, "large")).unwrap();
    fs::write(inside(&mount, "small"), "kept").unwrap();
    volume.close().unwrap();
    drop(mount);
    wait_until("the loop device stays", || loops(&disk) == 0);
    wait_until("the space of deleted files stays", || fs::metadata(&disk).unwrap().blocks() * 512 < 24 << 20);
    let (tar, _) = fixture.export("v").unwrap();
    assert!(read(&tar)["small"].ends_with("[107, 101, 112, 116]"));
}

/// Promise (Files): Readers share a volume, and cannot change it.
#[test]
fn readers_share_a_mounted_volume_and_change_nothing() {
    if !can_mount("readers_share_a_mounted_volume_and_change_nothing") {
        return;
    }
    let fixture = Fixture::new();
    fixture.import("v", Some(SMALL), &Forge::new().file("file", b"text").end()).unwrap();
    let before = fs::read(fixture.path().join("v/disk.ext4")).unwrap();
    let mut readers: Vec<_> =
        (0..3).map(|_| fixture.store.open_volume(&name("v"), &request(READ.0, READ.1)).unwrap()).collect();
    let mounts: Vec<_> = readers.iter_mut().map(|volume| volume.mount().unwrap()).collect();
    for mount in &mounts {
        assert_eq!(fs::read(inside(mount, "file")).unwrap(), b"text");
        assert_eq!(fs::write(inside(mount, "new"), "").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
    let writer = fixture.store.open_volume(&name("v"), &request(WRITE.0, WRITE.1));
    assert!(matches!(writer, Err(VolumeError::InUse { .. })));
    drop((readers, mounts));
    assert!(before == fs::read(fixture.path().join("v/disk.ext4")).unwrap());
    // A writer waits until the mounts of the readers have ended.
    let mut writer = fixture.store.open_volume(&name("v"), &request(WRITE.0, WRITE.1)).unwrap();
    drop(writer.mount().unwrap());
}

const VICTIM: &str = "COFFERDAM_VOLUME_WRITER";

/// Promise (Files): After a writer was killed, its loop device is gone, and the volume has what it wrote before.
#[test]
fn a_killed_writer_leaves_no_loop_device() {
    let test = "a_killed_writer_leaves_no_loop_device";
    if let Some(path) = std::env::var_os(VICTIM).map(PathBuf::from) {
        let mut volume = Store::open(&path).unwrap().open_volume(&name("v"), &request(WRITE.0, WRITE.1)).unwrap();
        let mount = volume.mount().unwrap();
        let mut file = File::create(inside(&mount, "log")).unwrap();
        for number in 0_u64.. {
            file.write_all(&number.to_le_bytes()).unwrap();
            if number == 1000 {
                file.sync_all().unwrap();
                fs::write(path.with_file_name("ready"), "").unwrap();
            }
        }
    }
    if !can_mount(test) {
        return;
    }
    let fixture = Fixture::new();
    fixture.store.create(&name("v"), Some(64 << 20)).unwrap();
    let disk = fixture.path().join("v/disk.ext4");
    for _ in 0..3 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args([&format!("mounts::{test}"), "--exact"])
            .env(VICTIM, fixture.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ready = fixture.temp.path().canonicalize().unwrap().join("ready");
        wait_until("the writer does not start", || ready.exists());
        assert_eq!(loops(&disk), 1);
        writer.kill().unwrap();
        writer.wait().unwrap();
        fs::remove_file(ready).unwrap();
        // The next writer needs no wait of its own.
        let mut volume = fixture.store.open_volume(&name("v"), &request(WRITE.0, WRITE.1)).unwrap();
        let mount = volume.mount().unwrap();
        let log = fs::read(inside(&mount, "log")).unwrap();
        let numbers: Vec<u64> =
            log.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert!(numbers.len() > 1000 && numbers.iter().enumerate().all(|(at, number)| *number == at as u64));
    }
    wait_until("the loop device stays", || loops(&disk) == 0);
}

/// Makes the file system look like after a crash of the host: its journal has changes that nothing else has.
fn crash(fixture: &Fixture) {
    let disk = fixture.path().join("v/disk.ext4");
    let mut volume = fixture.store.open_volume(&name("v"), &request(WRITE.0, WRITE.1)).unwrap();
    let mount = volume.mount().unwrap();
    fs::create_dir(inside(&mount, "new")).unwrap();
    let mut file = File::create(inside(&mount, "new/file")).unwrap();
    file.write_all(b"text").unwrap();
    file.sync_all().unwrap();
    let now = fs::read(&disk).unwrap();
    drop((file, mount));
    volume.close().unwrap();
    wait_until("the loop device stays", || loops(&disk) == 0);
    fs::write(&disk, now).unwrap();
}

/// Promise (Files): The journal of a volume is written after a crash, for readers as well.
#[test]
fn a_volume_is_usable_after_a_crash() {
    if !can_mount("a_volume_is_usable_after_a_crash") {
        return;
    }
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let fixture = Fixture::new();
        fixture.store.create(&name("v"), Some(SMALL)).unwrap();
        crash(&fixture);
        // A VM that only reads cannot write the journal.
        let reader = fixture.store.open_volume(&name("v"), &request(Access::ReadOnly, Through::Disk));
        assert!(matches!(reader, Err(VolumeError::Unclean { .. })), "{reader:?}");
        // The reader of exports has its own view of the journal.
        let (tar, _) = fixture.export("v").unwrap();
        assert!(read(&tar)["new/file"].ends_with("[116, 101, 120, 116]"));
        let mut volume = fixture.store.open_volume(&name("v"), &request(access, Through::Mount)).unwrap();
        let mount = volume.mount().unwrap();
        assert_eq!(fs::read(inside(&mount, "new/file")).unwrap(), b"text");
        let other = fixture.store.open_volume(&name("v"), &request(READ.0, READ.1));
        assert_eq!(other.is_ok(), access == Access::ReadOnly, "a reader is not alone in the end");
    }
}

/// Promise (Files): The host's kernel never mounts a file system that a guest could write directly.
#[test]
fn file_system_that_a_guest_wrote_is_recreated_before_a_mount() {
    if !can_mount("file_system_that_a_guest_wrote_is_recreated_before_a_mount") {
        return;
    }
    let fixture = Fixture::new();
    let tar = Forge::new().file("a/file", &[7; 100_000]).link("link", "a").directory("closed", 0o700).end();
    fixture.import("v", Some(SMALL), &tar).unwrap();
    let disk = fixture.path().join("v/disk.ext4");
    let guest = fixture.store.open_volume(&name("v"), &request(Access::ReadWrite, Through::Disk)).unwrap();
    let inode = fs::metadata(&disk).unwrap().ino();
    // A guest's kernel writes.
    let file = File::options().read(true).write(true).open(&disk).unwrap();
    let theirs = loop_device::mount_ext4(file.as_fd(), Access::ReadWrite).unwrap();
    fs::write(inside(&theirs, "new"), "text").unwrap();
    fs::set_permissions(inside(&theirs, "new"), fs::Permissions::from_mode(0o6755)).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, inside(&theirs, "fifo"), fifo, 0o666.into(), 0).unwrap();
    drop((file, theirs));
    guest.close().unwrap();
    {
        let mut volume = fixture.store.open_volume(&name("v"), &request(READ.0, READ.1)).unwrap();
        let mount = volume.mount().unwrap();
        let new = fs::metadata(inside(&mount, "new")).unwrap();
        assert_eq!((new.mode() & 0o7777, new.len()), (0o755, 4));
        assert!(!inside(&mount, "fifo").exists());
        assert_eq!(fs::read(inside(&mount, "a/file")).unwrap(), [7; 100_000]);
        assert_eq!(fs::read_link(inside(&mount, "link")).unwrap(), PathBuf::from("a"));
        assert_eq!(fs::metadata(inside(&mount, "a/file")).unwrap().uid(), 1000);
        assert!(fs::write(inside(&mount, "x"), "").is_err());
    }
    assert_ne!(fs::metadata(&disk).unwrap().ino(), inode);
    assert!(!fixture.store.inspect(&name("v")).unwrap().was_disk);
    assert_eq!(fixture.entries(), ["v"]);
    // A file system that cannot be read is not mounted either.
    drop(fixture.store.open_volume(&name("v"), &request(Access::ReadWrite, Through::Disk)).unwrap());
    let file = File::options().write(true).open(&disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 4096], 4096).unwrap();
    drop(file);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let opened = fixture.store.open_volume(&name("v"), &request(access, Through::Mount));
        assert!(matches!(opened, Err(VolumeError::Damaged { .. })), "{opened:?}");
    }
    assert!(fixture.store.inspect(&name("v")).unwrap().was_disk && fixture.entries() == ["v"]);
}
