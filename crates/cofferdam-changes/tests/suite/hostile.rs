//! Archives that no capture writes.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_changes::{
    ApplyOptions, Bounds, Cause, ChangeSet, ChangesError, Refusal, RenderOptions, document, render,
};
use proptest::prelude::*;

use crate::common::*;

fn refused(forge: Forge, part: &str) {
    let error = forge.read().unwrap_err().to_string();
    assert!(error.contains(part), "{part}: {error}");
}

/// Promise (Files): A change set with an entry that its format does not allow is refused as a whole.
#[test]
fn every_violation_of_the_format_is_refused() {
    let f = Fixture::new(&[]);
    let new = || Forge::new(&f.header);
    refused(new().entry(b'0', b"/etc/passwd", b""), "absolute");
    refused(new().entry(b'0', b"../x", b""), "'..'");
    refused(new().entry(b'0', b"a/../x", b""), "'..'");
    refused(new().entry(b'5', b"a/..", b""), "'..'");
    refused(new().entry(b'0', b"", b""), "empty");
    refused(new().entry(b'0', b"a//b", b""), "empty component");
    refused(new().entry(b'0', b"a/./b", b""), "'.'");
    refused(new().entry(b'0', b"a/", b""), "empty component");
    refused(new().entry(b'0', b"a", b"").entry(b'0', b"a", b""), "twice");
    refused(new().entry(b'0', b"a", b"").entry(b'0', b"./a", b""), "twice");
    refused(new().entry(b'0', b"a", b"").entry(b'0', b".wh.a", b""), "twice");
    refused(new().entry(b'5', b"a", b"").entry(b'5', b"a/", b""), "twice");
    refused(new().entry(b'0', b"a", b"").entry(b'0', b"a/b", b""), "not a directory");
    refused(new().entry(b'0', b"a/b/c", b"").entry(b'0', b"a", b""), "not a directory");
    refused(new().member(b'2', b"a", b"b", b"", 0).entry(b'0', b"a/b", b""), "not a directory");
    refused(new().entry(b'0', b".wh.a", b"").entry(b'0', b"a/b", b""), "not a directory");
    refused(new().entry(b'0', b".wh.a", b"").entry(b'0', b"a/.wh..wh..opq", b""), "not a directory");
    refused(new().entry(b'0', b"a/.wh..wh..opq", b"").entry(b'0', b"a/.wh..wh..opq", b""), "twice");
    refused(new().entry(b'0', b".wh.", b""), "no name");
    refused(new().entry(b'0', b".wh..", b""), "no name");
    refused(new().entry(b'0', b".wh...", b""), "no name");
    refused(new().entry(b'0', b".wh..wh.plnk", b""), "unknown");
    refused(new().entry(b'0', b".wh.a/b", b""), "below a whiteout");
    refused(new().entry(b'0', b".wh.a", b"x"), "not an empty file");
    refused(new().entry(b'5', b".wh.a", b""), "not an empty file");
    refused(new().member(b'1', b"a", b"b", b"", 0), "hard links");
    for kind in *b"346" {
        refused(new().entry(kind, b"a", b""), "devices and fifos");
    }
    for kind in *b"7DMNVAZ" {
        refused(new().entry(kind, b"a", b""), "not allowed");
    }
    refused(new().entry(b'S', b"a", b""), "sparse");
    refused(new().entry(b'5', b"a", b"x"), "only a file");
    refused(new().member(b'2', b"a", b"", b"", 0), "target");
    refused(new().member(b'0', b"a", b"b", b"", 0), "target of a link");
    refused(new().entry(b'g', b"x", b""), "second global");
    let long = "n".repeat(256);
    refused(new().entry(b'L', b"x", long.as_bytes()).entry(b'0', b"x", b""), "too long");
    let deep = "d/".repeat(200) + "f";
    refused(new().entry(b'L', b"x", deep.as_bytes()).entry(b'0', b"x", b""), "too deep");
    refused(new().entry(b'L', b"x", &[b'a'; 5000]).entry(b'0', b"x", b""), "too large");
    refused(new().entry(b'L', b"x", b"a\0b").entry(b'0', b"x", b""), "NUL");
    refused(new().entry(b'L', b"x", b"a").entry(b'L', b"x", b"a").entry(b'0', b"x", b""), "two extended");
    refused(new().entry(b'L', b"x", b"a"), "precede no entry");
}

#[test]
fn malformed_records_are_refused() {
    let f = Fixture::new(&[]);
    let with = |records: Vec<u8>| Forge::new(&f.header).entry(b'x', b"x", &records).entry(b'0', b"a", b"12");
    refused(with(b"nonsense".to_vec()), "malformed");
    refused(with(record("size", b"1")), "two sizes");
    refused(with(record("GNU.sparse.major", b"1")), "sparse");
    refused(with(record("path", b"../x")), "'..'");
    refused(with(record("path", b"a\0")), "NUL");
    refused(with([record("path", b"a"), record("path", b"b")].concat()), "twice");
    refused(with(record("COFFERDAM.base", b"file x")), "fingerprint");
    refused(with(record("COFFERDAM.base", b"\xff")), "fingerprint");
    refused(with(record("COFFERDAM.tree", b"1 abc")), "digest");
    let digest = format!("1 {}", "0".repeat(64));
    refused(with(record("COFFERDAM.tree", digest.as_bytes())), "no directory");
    let flood: Vec<u8> = (0..1000).flat_map(|index| record(&format!("k{index}"), b"v")).collect();
    refused(with(flood), "too many");
    refused(with(vec![b'a'; 1 << 20]), "too large");
    let set =
        with([record("size", b"2"), record("mtime", b"1.5"), record("path", b"line\nfeed")].concat()).read().unwrap();
    assert_eq!(set.changes()[0].path, Path::new("line\nfeed"));
}

#[test]
fn damaged_archives_are_refused() {
    let f = Fixture::new(&[]);
    let good = Forge::new(&f.header).entry(b'0', b"a", b"contents").end();
    assert_eq!(read_bytes(&good).unwrap().changes().len(), 1);
    for length in 0..good.len() {
        assert!(read_bytes(&good[..length]).is_err(), "{length}");
    }
    let checksum = good.len() - 1024 - 1024 + 1;
    let mut flipped = good.clone();
    flipped[checksum] ^= 1;
    assert!(read_bytes(&flipped).unwrap_err().to_string().contains("checksum"));
    for (tail, part) in [(vec![1; 512], "after the end"), (vec![0; 2 << 20], "end of the archive")] {
        let error = read_bytes(&[good.clone(), tail].concat()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(read_bytes(&[good.clone(), vec![0; 9216]].concat()).is_ok());
    let huge = Forge::new(&f.header).member(b'0', b"a", b"", b"", 0o77777777777);
    refused(huge, "ends within");
    assert!(read_bytes(b"").is_err() && read_bytes(&[0; 10240]).is_err());
    let foreign = Forge(Vec::new()).entry(b'0', b"a", b"");
    refused(foreign, "not a change set");
    for (key, value) in [("COFFERDAM.format", "2"), ("COFFERDAM.workspace", "relative"), ("COFFERDAM.inode", "-1")] {
        let records = [
            ("COFFERDAM.format", "1"),
            ("COFFERDAM.workspace", "/w"),
            ("COFFERDAM.started", "1"),
            ("COFFERDAM.device", "1"),
            ("COFFERDAM.inode", "1"),
        ];
        let records = records.map(|(name, usual)| record(name, if name == key { value } else { usual }.as_bytes()));
        refused(Forge(Vec::new()).entry(b'g', b"x", &records.concat()), "global header");
    }
}

#[test]
fn limits_are_kept() {
    let f = Fixture::new(&[]);
    let forge =
        (0..20).fold(Forge::new(&f.header), |forge, index| forge.entry(b'0', format!("f{index}").as_bytes(), b"1234"));
    let bytes = forge.end();
    let read = |max_entries, max_bytes| {
        fs::write(f.temp.path().join("set"), &bytes).unwrap();
        let file = fs::File::open(f.temp.path().join("set")).unwrap();
        ChangeSet::read(file, &Bounds { max_entries, max_bytes })
    };
    assert!(read(20, 80).is_ok());
    assert!(matches!(read(19, 80), Err(ChangesError::TooLarge { what: "entries", .. })));
    assert!(matches!(read(20, 79), Err(ChangesError::TooLarge { what: "bytes", .. })));
    for index in 0..20 {
        put(&f.guest, &format!("f{index}"), "1234");
    }
    assert!(f.capture_with(&Bounds { max_entries: 19, ..Bounds::default() }).is_err());
    assert!(f.capture_with(&Bounds { max_bytes: 79, ..Bounds::default() }).is_err());
}

#[test]
fn capture_skips_special_files() {
    let f = Fixture::new(&[]);
    rustix::fs::mknodat(rustix::fs::CWD, f.guest.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(f.guest.join("socket")).unwrap();
    put(&f.guest, ".wh.reserved", "x");
    put(&f.guest, ".wh..wh..opq", "");
    put(&f.guest, &format!("{}f", "d/".repeat(200)), "x");
    put(&f.guest, "plain", "x");
    let (set, summary) = f.capture();
    let reasons: Vec<String> = summary.skipped.iter().map(|skipped| skipped.reason.to_string()).collect();
    assert_eq!(summary.skipped_count, 5, "{reasons:?}");
    assert!(set.get(Path::new("plain")).is_some());
}

/// Promise (Files): Applying a change set never follows a symbolic link of the host.
#[test]
fn links_on_the_path_are_refused() {
    let f = Fixture::new(&[("dir/file", "1"), ("gone/file", "1"), ("tree/sub/file", "1")]);
    let outside = f.temp.path().join("outside");
    put(&outside, "file", "1");
    put(&f.guest, "dir/file", "guest");
    put(&f.guest, "dir/new", "guest");
    put(&f.guest, "dir/sub/new", "guest");
    fs::remove_file(f.guest.join("gone/file")).unwrap();
    fs::remove_dir_all(f.guest.join("tree/sub")).unwrap();
    let set = f.set();
    let before = tree(&outside);
    for name in ["dir", "gone", "tree"] {
        fs::rename(f.base.join(name), f.temp.path().join(name)).unwrap();
        std::os::unix::fs::symlink(&outside, f.base.join(name)).unwrap();
    }
    let done = f.apply(&set, &ApplyOptions::default());
    assert_eq!(done.applied, Vec::<PathBuf>::new());
    assert!(done.refused.iter().all(|refused| refused.reason == Refusal::LinkOnPath), "{done:?}");
    assert_eq!((done.refused.len(), tree(&outside)), (6, before));
}

#[test]
fn a_file_that_became_a_link_is_replaced_and_not_written_through() {
    let f = Fixture::new(&[("file", "1")]);
    put(&f.temp.path().join("outside"), "secret", "secret");
    put(&f.guest, "file", "guest");
    let set = f.set();
    fs::remove_file(f.base.join("file")).unwrap();
    std::os::unix::fs::symlink(f.temp.path().join("outside/secret"), f.base.join("file")).unwrap();
    let done = f.apply(&set, &ApplyOptions::default());
    assert_eq!(done.conflicts[0].cause, Cause::Changed);
    assert_eq!(read(f.temp.path(), "outside/secret"), "secret");
}

#[test]
fn paths_that_differ_in_case_only_are_separate_files() {
    let f = Fixture::new(&[]);
    let set = Forge::new(&f.header).entry(b'0', b"Name", b"1").entry(b'0', b"name", b"2").read().unwrap();
    f.apply_all(&set);
    assert_eq!((read(&f.base, "Name"), read(&f.base, "name")), ("1".into(), "2".into()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_cause_errors_and_no_panic(
        changes in prop::collection::vec((0_usize..1 << 16, any::<u8>()), 1..8),
        reseal in any::<bool>(),
    ) {
        let f = Fixture::untimed();
        put(&f.base, "b", "1");
        let mut bytes = Forge::new(&f.header)
            .entry(b'x', b"x", &record("COFFERDAM.base", b"file 1 2 3 4 644"))
            .entry(b'0', b"b", b"contents\n\x1b")
            .member(b'2', b"l", b"b", b"", 0)
            .entry(b'0', b"d/.wh.x", b"")
            .end();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
            if reseal {
                let block = at / 512 * 512;
                seal(&mut bytes[block..block + 512]);
            }
        }
        if let Ok(set) = read_bytes(&bytes) {
            let mut text = Vec::new();
            render(&set, f.open().as_fd(), &RenderOptions::default(), &mut text).unwrap();
            prop_assert!(text.iter().all(|byte| *byte >= b' ' || matches!(byte, b'\n' | b'\t')));
            document(&set, f.open().as_fd()).unwrap();
            f.apply(&set, &ApplyOptions { workspace: cofferdam_changes::Workspace::Any, ..ApplyOptions::default() });
        }
    }
}
