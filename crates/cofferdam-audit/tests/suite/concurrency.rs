//! Tests with many concurrent threads and processes, some of them killed.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use cofferdam_audit::*;

use crate::child;
use crate::support::*;

const WRITERS: u64 = 8;

#[test]
fn threads_write_whole_lines_while_segments_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Config { segment_bytes: 64 * 1024, keep_segments: Some(3), ..config(directory.path()) };
    // Half of them share a writer.
    let shared = Log::open(open()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..WRITERS {
            let log = if thread % 2 == 0 { shared.clone() } else { Log::open(open()).unwrap() };
            scope.spawn(move || {
                for number in 0..100 {
                    execute(&log, &format!("t{thread}-{number}"));
                }
            });
        }
        let checker = || {
            for _ in 0..20 {
                let report = check(directory.path());
                assert_eq!(report.verdict, Verdict::Whole, "{report}");
            }
        };
        scope.spawn(checker);
    });
    assert_eq!(shared.notices(), []);
    drop(shared);
    let report = check(directory.path());
    assert_eq!((report.verdict, report.findings.clone()), (Verdict::Whole, vec![]), "{report}");
    assert_eq!(report.executions.open, 0);
    assert!(report.segments <= 4, "{report}");
    // At least 1600 lines of executions, including removed ones.
    assert!(report.head.unwrap().seq > 1600);
}

/// Retention removes files repeatedly during a verification. Files that are removed with their segment are not reported
/// as missing.
///
/// Promise (Static analysis and audit log): Artifacts that retention removes during a verification are no breach.
#[test]
fn artifacts_that_retention_removes_while_they_are_checked_are_no_breach() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        segment_bytes: 16 * 1024,
        keep_segments: Some(1),
        artifact_bytes: Some(100_000),
        ..config(directory.path())
    };
    let log = Log::open(config).unwrap();
    let path = directory.path().join("audit");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..300 {
                let mut reservation = log.reserve(subject(&format!("e{number}"))).unwrap();
                let mut artifact = reservation.artifact(&Redactor::none()).unwrap().unwrap();
                artifact.section("code").unwrap();
                artifact.add(&[b'x'; 50_000]).unwrap();
                let artifact = Some(artifact.finish().unwrap());
                reservation.commit(Outcome { artifact, ..outcome() }).unwrap();
            }
        });
        while !writer.is_finished() {
            match verify(&path, &Expect { artifacts: true, ..Expect::default() }) {
                Ok(report) => assert_eq!(report.verdict, Verdict::Whole, "{report}"),
                // It restarted as often as allowed, and reports that.
                Err(Error::Io { source, .. }) => assert_eq!(source.kind(), std::io::ErrorKind::NotFound),
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert_eq!(log.notices(), []);
    let report = verify(&path, &Expect { artifacts: true, ..Expect::default() }).unwrap();
    assert_eq!((report.verdict, report.findings.clone()), (Verdict::Whole, vec![]), "{report}");
}

/// Promise (Static analysis and audit log): A killed writer loses no acknowledged record.
#[test]
fn killed_processes_lose_nothing_that_they_had_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = Vec::new();
    let mut start = |name: &str, count: u64| {
        let path = directory.path().join(format!("output-{name}"));
        outputs.push(path.clone());
        let mut command = child::command(&format!("write {name} {count}"), directory.path());
        command.stdout(File::create(path).unwrap()).spawn().unwrap()
    };
    let mut living: Vec<Child> = (0..WRITERS).map(|number| start(&format!("w{number}"), 1_000_000)).collect();
    for round in 0..24u64 {
        // The delays differ, so that the processes are killed at different points.
        std::thread::sleep(Duration::from_micros(20_000 + round * 7_919 % 9_000));
        let at = (round * 5 % WRITERS) as usize;
        living[at].kill().unwrap();
        living[at].wait().unwrap();
        living[at] = start(&format!("r{round}"), 1_000_000);
    }
    for child in &mut living {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // The next writer repairs the traces of the last ones.
    let mut last = start("last", 20);
    assert!(last.wait().unwrap().success());

    let expect = Expect { artifacts: true, ..Expect::default() };
    let report = verify(&directory.path().join("audit"), &expect).unwrap();
    assert_ne!(report.verdict, Verdict::Broken, "{report}");
    assert!(report.findings.iter().all(|found| found.reason.contains("was set aside")), "{report}");
    assert!(report.segments > 3 && report.executions.ended > 200, "{report}");
    // Each killed process left at most one execution open.
    assert!(report.executions.open <= 24 + WRITERS, "{report}");
    let written: BTreeSet<String> = ended(directory.path()).into_iter().collect();
    for name in outputs.iter().flat_map(|path| reported(path)) {
        assert!(written.contains(&name), "{name} was reported as written and is missing");
    }
    nothing_is_left(&directory.path().join("audit"), &report);
}

/// Returns the ids in the complete lines that a child wrote.
fn reported(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    lines.filter_map(|line| line.strip_prefix("ended ").map(str::to_owned)).collect()
}

/// Checks that there are only segments, the head file, recorded set-aside files, and complete artifacts.
fn nothing_is_left(path: &Path, report: &Report) {
    let names = listing(path);
    assert!(names.iter().all(|name| !name.ends_with(".new") && !name.ends_with(".pending")), "{names:?}");
    assert_eq!(names.iter().filter(|name| name.ends_with(".torn")).count() as u64, report.losses);
    assert_eq!(names.iter().filter(|name| name.ends_with(".jsonl")).count() as u64, report.segments);
    assert!(listing(&path.join("artifacts")).iter().all(|name| name.ends_with(".jsonl")));
}
