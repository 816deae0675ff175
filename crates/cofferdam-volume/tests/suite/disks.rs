//! Hostile file systems: a guest with the disk can write anything to it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_volume::{Access, Bounds, Through, VolumeError};

use crate::common::{Fixture, Forge, SMALL, has_mkfs, name, request};

fn fill(fixture: &Fixture) -> PathBuf {
    let mut forge = Forge::new().file("a/b/file", &[7; 10_000]).link("a/link", &"t".repeat(80)).link("short", "a");
    for number in 0..200 {
        forge = forge.file(&format!("many/{number}"), b"x");
    }
    fixture.import("v", Some(SMALL), &forge.end()).unwrap();
    fixture.path().join("v/disk.ext4")
}

/// Writes to a disk as a guest does that has ended.
fn poke(disk: &Path, bytes: &[u8], at: u64) {
    File::options().write(true).open(disk).unwrap().write_all_at(bytes, at).unwrap();
}

fn debugfs(disk: &Path, commands: &str) -> bool {
    let tool = ["/usr/sbin/debugfs", "/sbin/debugfs"].into_iter().find(|path| fs::metadata(path).is_ok());
    let Some(tool) = tool else { return false };
    let script = disk.with_file_name("commands");
    fs::write(&script, commands).unwrap();
    let output = std::process::Command::new(tool).args(["-w", "-f"]).arg(&script).arg(disk).output().unwrap();
    fs::remove_file(script).unwrap();
    assert!(output.status.success(), "{output:?}");
    true
}

/// Promise (Files): An export of a file system that a guest damaged ends with an error or with a bounded tar.
#[test]
fn damaged_file_systems_are_read_or_refused() {
    if !has_mkfs("damaged_file_systems_are_read_or_refused") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fill(&fixture);
    let whole = fs::read(&disk).unwrap();
    // Where metadata is: superblock, descriptors, inodes, directories, extents.
    let used: Vec<usize> = (0..whole.len() / 512).filter(|at| whole[at * 512..][..512] != [0; 512]).collect();
    let (mut read, mut refused) = (0, 0);
    let mut seed = 1_u64;
    let mut random = |max: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % max
    };
    let bounds = Bounds { max_bytes: 256 << 20, max_files: 10_000 };
    for _ in 0..250 {
        let changes: Vec<u64> =
            (0..1 + random(3)).map(|_| (used[random(used.len())] * 512 + random(512)) as u64).collect();
        for at in &changes {
            poke(&disk, &[random(256) as u8], *at);
        }
        let begun = Instant::now();
        match fixture.store.export(&name("v"), std::io::sink(), &bounds, &mut |_| ()) {
            Ok(_) => read += 1,
            Err(VolumeError::Damaged { .. } | VolumeError::TooLarge { .. } | VolumeError::Io { .. }) => refused += 1,
            Err(error) => panic!("{changes:?}: {error:?}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{changes:?}");
        for at in changes {
            poke(&disk, &whole[at as usize..][..1], at);
        }
    }
    assert!(read > 0 && refused > 40, "{read} {refused}");
}

#[test]
fn another_geometry_is_refused_before_memory_is_taken_for_it() {
    if !has_mkfs("another_geometry_is_refused_before_memory_is_taken_for_it") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fill(&fixture);
    let whole = fs::read(&disk).unwrap();
    // Blocks, block size, blocks in a group, inodes in a group, inode size, features, journal, high half of blocks.
    for (at, bytes) in [
        (0x04, &[0xff; 4][..]),
        (0x18, &[6]),
        (0x20, &[1, 0, 0, 0]),
        (0x28, &[0xff; 4]),
        (0x28, &[0; 4]),
        (0x58, &[0, 0x10]),
        (0x60, &[0x10, 0, 0, 0]),
        (0x60, &[0xff; 4]),
        (0xe0, &[2]),
        (0x150, &[1]),
        (0x38, &[0, 0]),
    ] {
        poke(&disk, bytes, 1024 + at);
        let error = fixture.export("v").unwrap_err();
        assert!(matches!(error, VolumeError::Damaged { .. }), "{at:x}: {error}");
        let end = 1024 + at as usize + bytes.len();
        poke(&disk, &whole[1024 + at as usize..end], 1024 + at);
    }
    fixture.export("v").unwrap();
}

#[test]
fn cycles_and_huge_files_end_at_the_limits() {
    let test = "cycles_and_huge_files_end_at_the_limits";
    if !has_mkfs(test) {
        return;
    }
    let fixture = Fixture::new();
    let disk = fill(&fixture);
    for (case, commands) in [
        ("a cycle of directories", "link <2> a/cycle\n"),
        ("a directory in itself", "link a a/again\n"),
        ("a huge sparse file", "sif a/b/file size 0x10000000000\n"),
        ("a huge target of a link", "sif a/link size 0x10000000000\n"),
        ("a huge directory", "sif many size 0x10000000000\n"),
    ] {
        let whole = fs::read(&disk).unwrap();
        if !debugfs(&disk, commands) {
            println!("SKIP {test}: no debugfs (package e2fsprogs)");
            return;
        }
        let bounds = Bounds { max_bytes: 64 << 20, max_files: 10_000 };
        let begun = Instant::now();
        let error = fixture.store.export(&name("v"), std::io::sink(), &bounds, &mut |_| ()).expect_err(case);
        let is_expected = matches!(error, VolumeError::Damaged { .. } | VolumeError::TooLarge { .. });
        assert!(is_expected && begun.elapsed() < Duration::from_secs(20), "{case}: {error:?}");
        fs::write(&disk, whole).unwrap();
    }
}

#[test]
fn special_files_and_set_id_bits_of_a_guest_are_left_out() {
    let test = "special_files_and_set_id_bits_of_a_guest_are_left_out";
    if !has_mkfs(test) {
        return;
    }
    let fixture = Fixture::new();
    let disk = fill(&fixture);
    if !debugfs(&disk, "mknod device b 7 0\nmknod pipe p\nsif a/b/file mode 0106777\nsif short uid 0\n") {
        println!("SKIP {test}: no debugfs (package e2fsprogs)");
        return;
    }
    let (tar, exported) = fixture.export("v").unwrap();
    let found = crate::common::read(&tar);
    assert_eq!(exported.skipped, 2);
    assert!(found["a/b/file"].starts_with("file 777") && !found.contains_key("device"), "{found:?}");
}

#[test]
fn a_volume_that_was_a_disk_is_marked_before_a_guest_has_it() {
    if !has_mkfs("a_volume_that_was_a_disk_is_marked_before_a_guest_has_it") {
        return;
    }
    let fixture = Fixture::new();
    fixture.store.create(&name("v"), Some(SMALL)).unwrap();
    let was_disk = || fixture.store.inspect(&name("v")).unwrap().was_disk;
    drop(fixture.store.open_volume(&name("v"), &request(Access::ReadOnly, Through::Disk)).unwrap());
    assert!(!was_disk());
    let volume = fixture.store.open_volume(&name("v"), &request(Access::ReadWrite, Through::Disk)).unwrap();
    assert!(was_disk());
    drop(volume);
    assert!(was_disk(), "a VM may have it still");
    fixture.store.remove(&name("v")).unwrap();
    fixture.store.create(&name("v"), Some(SMALL)).unwrap();
    // No VM wrote to it: it is as it was.
    fixture.store.open_volume(&name("v"), &request(Access::ReadWrite, Through::Disk)).unwrap().close().unwrap();
    assert!(!was_disk());
    let volume = fixture.store.open_volume(&name("v"), &request(Access::ReadWrite, Through::Disk)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    poke(&fixture.path().join("v/disk.ext4"), b"x", 0);
    volume.close().unwrap();
    assert!(was_disk());
}
