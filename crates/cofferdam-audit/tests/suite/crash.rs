//! Tests of a crash in the middle of a write, at each byte.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use cofferdam_audit::*;

use crate::support::*;

fn segment(directory: &Path) -> PathBuf {
    directory.join("audit/audit-00000001.jsonl")
}

/// Creates a log whose last line is truncated to a number of bytes. With the old head file it looks as after a killed
/// process, with the new one as after a power failure.
fn cut(directory: &Path, keep: usize, old_head: bool) -> usize {
    let log = Log::open(config(directory)).unwrap();
    execute(&log, "a");
    let mut reservation = log.reserve(subject("b")).unwrap();
    let head = fs::read(directory.join("audit/head")).unwrap();
    let before = fs::metadata(segment(directory)).unwrap().len();
    reservation.commit(outcome()).unwrap();
    drop(reservation);
    drop(log);
    let length = fs::metadata(segment(directory)).unwrap().len() - before;
    let file = OpenOptions::new().write(true).open(segment(directory)).unwrap();
    file.set_len(before + (keep as u64).min(length)).unwrap();
    if old_head {
        fs::write(directory.join("audit/head"), head).unwrap();
    }
    length as usize
}

/// Promise (Static analysis and audit log): A torn line of the audit log is set aside and reported.
#[test]
fn a_torn_line_of_any_length_is_set_aside_and_reported() {
    let length = cut(tempfile::tempdir().unwrap().path(), 0, true);
    // Covers the borders, and a step that hits every kind of position, instead of every byte of the disk.
    for keep in (0..length).filter(|at| at % 7 == 0 || *at < 3 || at + 80 > length) {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(cut(directory.path(), keep, true), length);
        let report = check(directory.path());
        let torn = keep > 0;
        assert_eq!(report.verdict, if torn { Verdict::Incomplete } else { Verdict::Whole }, "{keep}: {report}");

        let log = Log::open(config(directory.path())).unwrap();
        execute(&log, "c");
        let notices = log.notices();
        let report = check(directory.path());
        // A line that lacks only its line break is complete.
        let torn = torn && keep < length - 1;
        assert_eq!(notices.len(), usize::from(torn), "{keep}: {notices:?}");
        assert_eq!(report.verdict, if torn { Verdict::Incomplete } else { Verdict::Whole }, "{keep}: {report}");
        let ends = if keep == length - 1 { vec!["a", "b", "c"] } else { vec!["a", "c"] };
        assert_eq!(ended(directory.path()), ends, "{keep}");
        assert_eq!(report.executions.open, 3 - ends.len() as u64);
        if torn {
            let Notice::Torn { file, bytes } = &notices[0] else { panic!("{notices:?}") };
            assert_eq!(*bytes, keep as u64);
            let aside = fs::read(directory.path().join("audit").join(file)).unwrap();
            assert_eq!(aside.len(), keep);
            // After a later change, it no longer matches the record in the log.
            fs::write(directory.path().join("audit").join(file), b"x").unwrap();
            assert_eq!(check(directory.path()).verdict, Verdict::Broken);
        }
    }
}

#[test]
fn lines_lost_in_a_power_cut_are_reported() {
    for keep in [0, 1, 100] {
        let directory = tempfile::tempdir().unwrap();
        cut(directory.path(), keep, false);
        let report = check(directory.path());
        assert_eq!(report.verdict, Verdict::Broken, "{report}");
        let log = Log::open(config(directory.path())).unwrap();
        let notices = log.notices();
        // The line that records the torn one is at the position of the lost one, but differs from it.
        let gap = notices.iter().any(|notice| matches!(notice, Notice::Gap { written: 5, found: 4 }));
        assert!(gap, "{keep}: {notices:?}");
        execute(&log, "c");
        let report = check(directory.path());
        assert_eq!(report.verdict, Verdict::Incomplete, "{report}");
        assert!(report.to_string().contains("were lost; number 5 had been written"), "{report}");
    }
}

#[test]
fn a_line_removed_under_a_writer_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    execute(&log, "a");
    let before = fs::metadata(segment(directory.path())).unwrap().len();
    execute(&log, "b");
    OpenOptions::new().write(true).open(segment(directory.path())).unwrap().set_len(before).unwrap();
    execute(&log, "c");
    assert_eq!(log.notices(), [Notice::Gap { written: 5, found: 3 }]);
    assert_eq!(check(directory.path()).verdict, Verdict::Incomplete);
    assert_eq!(ended(directory.path()), ["a", "c"]);
}

#[test]
fn a_log_removed_under_a_writer_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    execute(&log, "a");
    fs::remove_file(segment(directory.path())).unwrap();
    execute(&log, "b");
    assert_eq!(log.notices(), [Notice::Gap { written: 3, found: 1 }]);
    assert_eq!(check(directory.path()).verdict, Verdict::Incomplete);
    assert_eq!(ended(directory.path()), ["b"]);
}

#[test]
fn a_power_cut_that_leaves_zeros_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    execute(&Log::open(config(directory.path())).unwrap(), "a");
    let mut file = OpenOptions::new().append(true).open(segment(directory.path())).unwrap();
    file.write_all(&vec![0; 100_000]).unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    assert!(matches!(&log.notices()[..], [Notice::Torn { bytes: 100_000, .. }]));
    execute(&log, "b");
    assert_eq!(ended(directory.path()), ["a", "b"]);
    assert_eq!(check(directory.path()).verdict, Verdict::Incomplete);
}

#[test]
fn a_writer_killed_while_it_set_something_aside_is_finished_for() {
    let directory = tempfile::tempdir().unwrap();
    execute(&Log::open(config(directory.path())).unwrap(), "a");
    let size = fs::metadata(segment(directory.path())).unwrap().len();
    // The bytes are already cut off, and no line records them yet.
    let pending = format!("audit/audit-00000001-{size}.torn.pending");
    fs::write(directory.path().join(pending), b"half a li").unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    let file = format!("audit-00000001-{size}.torn");
    assert_eq!(log.notices(), [Notice::Torn { file: file.clone(), bytes: 9 }]);
    assert_eq!(fs::read(directory.path().join("audit").join(file)).unwrap(), b"half a li");
    assert_eq!(check(directory.path()).verdict, Verdict::Incomplete);
    drop(log);
    assert_eq!(Log::open(config(directory.path())).unwrap().notices(), []);
}

/// The steps are: the segment under its temporary name, its line, the head file under its temporary name, its content,
/// the name of the head file, the name of the segment.
#[test]
fn a_writer_killed_while_it_began_the_log_is_finished_for() {
    let whole = tempfile::tempdir().unwrap();
    drop(Log::open(config(whole.path())).unwrap());
    let line = fs::read(segment(whole.path())).unwrap();
    let head = fs::read(whole.path().join("audit/head")).unwrap();
    let (half_line, half_head) = (line[..line.len() / 2].to_vec(), head[..70].to_vec());
    let first = ("audit-00000001.jsonl.new", line.clone());
    let steps = [
        (vec![], Verdict::Broken),
        (vec![("audit-00000001.jsonl.new", vec![])], Verdict::Broken),
        (vec![("audit-00000001.jsonl.new", half_line)], Verdict::Broken),
        (vec![first.clone()], Verdict::Broken),
        (vec![first.clone(), ("head.new", vec![])], Verdict::Broken),
        (vec![first.clone(), ("head.new", half_head)], Verdict::Broken),
        (vec![first.clone(), ("head.new", head.clone())], Verdict::Broken),
        (vec![first, ("head", head.clone())], Verdict::Incomplete),
        (vec![("audit-00000001.jsonl", line), ("head", head)], Verdict::Whole),
    ];
    for (number, (files, verdict)) in steps.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        fs::create_dir(&path).unwrap();
        for (name, bytes) in files {
            use std::os::unix::fs::PermissionsExt;
            fs::write(path.join(name), bytes).unwrap();
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        // A directory without a segment is broken.
        let report = check(directory.path());
        assert_eq!(report.verdict, verdict, "{number}: {report}");
        assert!(verdict != Verdict::Broken || report.breaches == 2, "{number}: {report}");
        let log = Log::open(config(directory.path())).unwrap();
        assert_eq!(log.notices(), [], "{number}");
        execute(&log, "a");
        let report = check(directory.path());
        assert_eq!((report.verdict, report.findings.clone()), (Verdict::Whole, vec![]), "{number}: {report}");
        drop(log);
        assert_eq!(listing(&path), ["audit-00000001.jsonl", "head"], "{number}");
    }
}

/// Between the first line and the name of the head file, no state looks like a log that was cut off.
#[test]
fn first_line_that_differs_from_the_head_file_is_a_breach() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    execute(&Log::open(config(directory.path())).unwrap(), "a");
    let first = fs::read_to_string(segment(directory.path())).unwrap().split_inclusive('\n').next().unwrap().to_owned();
    fs::remove_file(segment(directory.path())).unwrap();
    fs::write(path.join("audit-00000001.jsonl.new"), first).unwrap();
    assert_eq!(check(directory.path()).verdict, Verdict::Broken);
    let log = Log::open(config(directory.path())).unwrap();
    assert_eq!(log.notices(), [Notice::Gap { written: 3, found: 1 }]);
}

#[test]
fn damage_that_no_crash_explains_stops_the_writer() {
    for (name, change) in
        [("a whole line that is none", &b"not a line\n"[..]), ("more than any write", &[b'x'; 2 << 20])]
    {
        let directory = tempfile::tempdir().unwrap();
        execute(&Log::open(config(directory.path())).unwrap(), "a");
        OpenOptions::new().append(true).open(segment(directory.path())).unwrap().write_all(change).unwrap();
        let size = fs::metadata(segment(directory.path())).unwrap().len();
        let opened = Log::open(config(directory.path()));
        assert!(matches!(opened, Err(Error::Damaged { .. })), "{name}");
        // It left everything unchanged.
        assert_eq!(fs::metadata(segment(directory.path())).unwrap().len(), size);
    }
    // The same applies to a running writer.
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    execute(&log, "a");
    let mut bytes = fs::read(segment(directory.path())).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    bytes.push(b'\n');
    fs::write(segment(directory.path()), bytes).unwrap();
    assert!(matches!(log.reserve(subject("b")), Err(Error::Damaged { .. })));
    assert!(matches!(log.reserve(subject("c")), Err(Error::Damaged { .. })));
}

#[test]
fn an_execution_without_an_end_shows() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    drop(log.reserve(subject("lost")).unwrap());
    log.reserve(subject("never")).unwrap().cancel("no sandbox\n").unwrap();
    let report = check(directory.path());
    assert_eq!(report.executions, Counts { begun: 2, ended: 0, cancelled: 1, open: 1 });
    assert_eq!((report.verdict, report.open), (Verdict::Whole, vec!["lost".to_owned()]));
}
