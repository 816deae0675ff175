//! Tests of segments: closed by size, removed by number.

use std::fs;

use cofferdam_audit::*;

use crate::support::*;

fn segments(directory: &std::path::Path) -> Vec<String> {
    listing(&directory.join("audit")).into_iter().filter(|name| name.ends_with(".jsonl")).collect()
}

#[test]
fn segments_are_closed_by_size_and_linked() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(Config { segment_bytes: 64 * 1024, ..config(directory.path()) }).unwrap();
    for number in 0..200 {
        execute(&log, &format!("e{number}"));
    }
    let names = segments(directory.path());
    assert!(names.len() >= 3, "{names:?}");
    for name in &names {
        let size = fs::metadata(directory.path().join("audit").join(name)).unwrap().len();
        assert!(size < 64 * 1024 + 4096, "{name} has {size}");
    }
    let report = check(directory.path());
    assert_eq!((report.verdict, report.executions.ended), (Verdict::Whole, 200), "{report}");
    assert_eq!(ended(directory.path()).len(), 200);
}

/// Holds for any size, and for one writer as well as for several in turn.
#[test]
fn a_segment_is_closed_before_the_first_execution_after_it_has_its_bytes() {
    for max_bytes in [0, 1, 6000, 20_000, 70_000] {
        for alone in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let open = || Log::open(Config { segment_bytes: max_bytes, ..config(directory.path()) }).unwrap();
            let log = alone.then(open);
            for number in 0..60 {
                let name = format!("e{number}");
                log.as_ref().map_or_else(|| execute(&open(), &name), |log| execute(log, &name));
            }
            let names = segments(directory.path());
            for (at, name) in names.iter().enumerate() {
                let text = fs::read_to_string(directory.path().join("audit").join(name)).unwrap();
                let lines: Vec<usize> = text.split_inclusive('\n').map(str::len).collect();
                let closed = at + 1 < names.len();
                assert!(!closed || text.len() as u64 >= max_bytes, "{max_bytes}: {name} has {}", text.len());
                // Without its last execution, the segment was smaller than the limit.
                let before: usize = lines.iter().take(lines.len().saturating_sub(2)).sum();
                assert!(lines.len() < 4 || (before as u64) < max_bytes, "{max_bytes}: {name} had {before} already");
            }
            assert_eq!(check(directory.path()).verdict, Verdict::Whole);
        }
    }
}

#[test]
fn an_end_comes_into_the_segment_of_its_beginning_or_a_later_one() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(Config { segment_bytes: 0, ..config(directory.path()) }).unwrap();
    let mut first = log.reserve(subject("first")).unwrap();
    let mut second = log.reserve(subject("second")).unwrap();
    first.commit(outcome()).unwrap();
    second.commit(outcome()).unwrap();
    assert_eq!(segments(directory.path()).len(), 3);
    assert!(first.commit(outcome()).is_err(), "an execution ends once");
    let report = check(directory.path());
    assert_eq!((report.verdict, report.executions.open), (Verdict::Whole, 0), "{report}");
}

#[test]
fn removals_of_retention_are_reported_and_other_gaps_break_the_chain() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let config =
        Config { segment_bytes: 0, keep_segments: Some(2), artifact_bytes: Some(1000), ..config(directory.path()) };
    let log = Log::open(config).unwrap();
    for number in 0..6 {
        let mut reservation = log.reserve(subject(&format!("e{number}"))).unwrap();
        let mut artifact = reservation.artifact(&Redactor::none()).unwrap().unwrap();
        artifact.section("code").unwrap();
        artifact.add(b"x").unwrap();
        let artifact = Some(artifact.finish().unwrap());
        reservation.commit(Outcome { artifact, ..outcome() }).unwrap();
    }
    assert_eq!(log.notices(), []);
    assert_eq!(segments(directory.path()), ["audit-00000005.jsonl", "audit-00000006.jsonl", "audit-00000007.jsonl"]);
    assert_eq!(listing(&path.join("artifacts")), ["e3.jsonl", "e4.jsonl", "e5.jsonl"]);
    let report = verify(&path, &Expect { artifacts: true, ..Expect::default() }).unwrap();
    assert_eq!((report.verdict, report.findings.clone()), (Verdict::Whole, vec![]), "{report}");

    // One further segment is removed.
    fs::remove_file(path.join("audit-00000005.jsonl")).unwrap();
    let report = check(directory.path());
    assert!(report.to_string().contains("what is missing before it is not what retention removed"), "{report}");
    assert_eq!(report.verdict, Verdict::Broken);
}

#[test]
fn a_writer_killed_while_it_removed_is_finished_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let config = |keep| Config { segment_bytes: 0, keep_segments: keep, ..config(directory.path()) };
    let log = Log::open(config(None)).unwrap();
    for name in ["a", "b", "c"] {
        execute(&log, name);
    }
    drop(log);
    let names = ["audit-00000002.jsonl", "audit-00000003.jsonl"];
    let contents = names.map(|name| fs::read(path.join(name)).unwrap());
    execute(&Log::open(config(Some(1))).unwrap(), "d");
    let left = ["audit-00000004.jsonl", "audit-00000005.jsonl"];
    assert_eq!(segments(directory.path()), left);
    // Simulates a writer that was killed after it removed the first of three.
    let put_back = |at: usize| {
        use std::os::unix::fs::PermissionsExt;
        fs::write(path.join(names[at]), &contents[at]).unwrap();
        fs::set_permissions(path.join(names[at]), fs::Permissions::from_mode(0o600)).unwrap();
    };
    put_back(0);
    assert_eq!(check(directory.path()).verdict, Verdict::Broken, "one in the middle is missing");
    put_back(1);
    let report = check(directory.path());
    assert_eq!((report.verdict, report.notes), (Verdict::Whole, 1), "{report}");
    execute(&Log::open(config(Some(1))).unwrap(), "e");
    assert_eq!(segments(directory.path()), ["audit-00000005.jsonl", "audit-00000006.jsonl"]);
    assert_eq!(check(directory.path()).verdict, Verdict::Whole);
}

#[test]
fn only_the_last_segment_has_a_reserve() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(Config { segment_bytes: 0, ..config(directory.path()) }).unwrap();
    execute(&log, "a");
    let reserve = segments(directory.path())
        .iter()
        .map(|name| fs::metadata(directory.path().join("audit").join(name)).unwrap().blocks() * 512)
        .collect::<Vec<_>>();
    // The second one only if the file system can allocate in advance.
    assert!(reserve.len() == 2 && reserve[0] < 64 * 1024, "{reserve:?}");
}
