//! Tests that any change to the lines of a log is detected.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use cofferdam_audit::*;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::support::*;

type Files = Vec<(String, Vec<u8>)>;

/// Creates a log of three segments and returns its files.
fn log(keyed: bool) -> &'static Files {
    static LOGS: [OnceLock<Files>; 2] = [OnceLock::new(), OnceLock::new()];
    LOGS[usize::from(keyed)].get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let key = keyed.then(|| key_file(directory.path()));
        for segment in 0..3 {
            // With 0 bytes, a segment is closed when the next execution begins.
            let config = config(directory.path());
            let segment_bytes = if segment > 0 { 0 } else { config.segment_bytes };
            let config = Config { key: key.clone(), segment_bytes, ..config };
            let log = Log::open(config).unwrap();
            execute(&log, &format!("first-{segment}"));
            drop(log);
            let log = Log::open(Config { key: key.clone(), ..self::config(directory.path()) }).unwrap();
            execute(&log, &format!("second-{segment}"));
        }
        read(&directory.path().join("audit"))
    })
}

fn read(path: &Path) -> Files {
    let names = listing(path).into_iter().filter(|name| path.join(name).is_file());
    names.map(|name| (name.clone(), fs::read(path.join(name)).unwrap())).collect()
}

fn verdict(files: &Files, expect: &Expect) -> Report {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    verify(directory.path(), expect).unwrap()
}

fn segments(files: &Files) -> Vec<usize> {
    (0..files.len()).filter(|at| files[*at].0.starts_with("audit-")).collect()
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Recomputes the chain from the first line on, as an attacker without the key can.
fn forge(files: &mut Files, change: impl Fn(String) -> String) {
    let mut prev = Digest::ZERO.to_string();
    for at in segments(files) {
        let mut created = Vec::new();
        for line in lines(&files[at].1) {
            let line = String::from_utf8(line).unwrap();
            let line = change(line.split_once(r#","hash":""#).unwrap().0.to_owned());
            let (start, rest) = line.split_once(r#""prev":""#).unwrap();
            let line = format!("{start}\"prev\":\"{prev}{}", &rest[64..]);
            prev = Digest::of(&line).to_string();
            created.extend(format!("{line},\"hash\":\"{prev}\"}}\n").into_bytes());
        }
        files[at].1 = created;
    }
    let head = files.iter_mut().find(|(name, _)| name == "head").unwrap();
    let text = String::from_utf8(head.1.clone()).unwrap();
    let (start, rest) = text.split_once(r#""hash":""#).unwrap();
    head.1 = format!("{start}\"hash\":\"{prev}{}", &rest[64..]).into_bytes();
}

#[test]
fn an_unchanged_log_is_whole() {
    for keyed in [false, true] {
        let expect = if keyed { with_key() } else { Expect::default() };
        let report = verdict(log(keyed), &expect);
        assert_eq!((report.verdict, report.findings.clone()), (Verdict::Whole, vec![]), "{report}");
        assert_eq!((report.segments, report.lines, report.keyed), (3, 15, keyed));
        assert_eq!(report.executions, Counts { begun: 6, ended: 6, cancelled: 0, open: 0 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_byte_is_found(keyed: bool, file: Index, at: Index, bits in 1u8..) {
        let mut files = log(keyed).clone();
        let segment = *file.get(&segments(&files));
        let bytes = &mut files[segment].1;
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        // A verifier without a key detects it too.
        let report = verdict(&files, &Expect::default());
        prop_assert_eq!(report.verdict, Verdict::Broken, "{}", report);
        if keyed {
            prop_assert_eq!(verdict(&files, &with_key()).verdict, Verdict::Broken);
        }
    }

    #[test]
    fn a_byte_more_or_less_is_found(file: Index, at: Index, byte: Option<u8>) {
        let mut files = log(false).clone();
        let segment = *file.get(&segments(&files));
        let bytes = &mut files[segment].1;
        let at = at.index(bytes.len());
        match byte {
            Some(byte) => bytes.insert(at, byte),
            None => drop(bytes.remove(at)),
        }
        let report = verdict(&files, &Expect::default());
        prop_assert_eq!(report.verdict, Verdict::Broken, "{}", report);
    }

    #[test]
    fn moved_lines_are_found(what in 0..4, from: (Index, Index), to: (Index, Index)) {
        let mut files = log(false).clone();
        let segments = segments(&files);
        let mut all: Vec<Vec<Vec<u8>>> = segments.iter().map(|at| lines(&files[*at].1)).collect();
        let (a, b) = (from.0.index(all.len()), to.0.index(all.len()));
        let (i, j) = (from.1.index(all[a].len()), to.1.index(all[b].len()));
        let line = all[a][i].clone();
        match what {
            0 => drop(all[a].remove(i)),
            1 => all[b].insert(j, line),
            2 if (a, i) != (b, j) => {
                all[a][i] = std::mem::replace(&mut all[b][j], line);
            }
            // From here on, every line of this segment.
            _ => all[a].truncate(i),
        }
        for (segment, lines) in segments.iter().zip(all) {
            files[*segment].1 = lines.concat();
        }
        let report = verdict(&files, &Expect::default());
        prop_assert_eq!(report.verdict, Verdict::Broken, "{}", report);
    }

    #[test]
    fn no_bytes_make_verify_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), keep: Index) {
        let mut files = log(false).clone();
        let last = *segments(&files).last().unwrap();
        let retained = keep.index(files[last].1.len());
        files[last].1.truncate(retained);
        files[last].1.extend(&bytes);
        prop_assert_eq!(verdict(&files, &Expect::default()).verdict, Verdict::Broken);
        files.retain(|(name, _)| name != "head");
        verdict(&files, &Expect::default());
    }
}

/// Promise (Static analysis and audit log): A missing segment of the audit log is reported by name.
#[test]
fn a_missing_segment_is_found_and_named() {
    for (missing, reason) in [
        (0, "segments before it are missing, and no line records that retention removed them"),
        (1, "audit-00000002.jsonl is missing before it"),
        (2, "its end was cut off"),
    ] {
        let mut files = log(false).clone();
        files.remove(segments(&files)[missing]);
        let report = verdict(&files, &Expect::default());
        assert_eq!(report.verdict, Verdict::Broken);
        assert!(report.to_string().contains(reason), "{report}");
    }
}

/// Promise (Static analysis and audit log): Changed, moved, removed and added lines of the audit log are reported by
/// line.
#[test]
fn breaches_are_reported_by_line() {
    let mut files = log(false).clone();
    let mut all = lines(&files[0].1);
    all[2][100] ^= 1;
    all.remove(3);
    files[0].1 = all.concat();
    let report = verdict(&files, &Expect::default());
    let reported: Vec<_> = report.findings.iter().map(|found| (found.line, found.reason.as_str())).collect();
    assert_eq!(
        reported,
        [
            (3, "its hash does not match its bytes: it was changed"),
            (4, "1 lines are missing before it, by its number 5"),
        ]
    );
}

/// Changes that a chain cannot reveal, and the checks that can.
///
/// Promise (Static analysis and audit log): A rewritten audit log is detected by its key or an earlier head.
#[test]
fn rewritten_log_is_detected_by_key_or_earlier_head() {
    let change = |line: String| line.replace("acme", "evil");
    let mut plain = log(false).clone();
    let old = verdict(&plain, &Expect::default()).head.unwrap().hash;
    forge(&mut plain, change);
    assert_eq!(verdict(&plain, &Expect::default()).verdict, Verdict::Whole);
    let report = verdict(&plain, &Expect { head: Some(old), ..Expect::default() });
    assert!(report.to_string().contains("no line has the expected hash"), "{report}");

    let mut keyed = log(true).clone();
    forge(&mut keyed, change);
    let report = verdict(&keyed, &with_key());
    assert_eq!(report.verdict, Verdict::Broken);
    assert_eq!(report.breaches, 15, "{report}");
    // Without the codes, it does not pass for a log with a key either.
    let mut stripped = log(true).clone();
    forge(&mut stripped, |line| line.split(r#","mac":""#).next().unwrap().to_owned());
    assert_eq!(verdict(&stripped, &with_key()).verdict, Verdict::Broken);
}

/// A log that was cut off between two lines looks like a shorter one only if the head file was corrected.
///
/// Promise (Static analysis and audit log): A truncated audit log is detected by its head file or an earlier head.
#[test]
fn a_cut_off_end_is_found_by_the_head_file_or_an_old_head() {
    let mut files = log(false).clone();
    let old = verdict(&files, &Expect::default()).head.unwrap().hash;
    let last = *segments(&files).last().unwrap();
    let mut retained = lines(&files[last].1);
    retained.pop();
    files[last].1 = retained.concat();
    let report = verdict(&files, &Expect::default());
    assert!(report.to_string().contains("its end was cut off"), "{report}");
    let head = files.iter().position(|(name, _)| name == "head").unwrap();
    for garbage in [&b"nothing"[..], b""] {
        files[head].1 = garbage.to_vec();
        let report = verdict(&files, &Expect::default());
        assert_eq!(report.verdict, Verdict::Broken, "{report}");
        assert!(report.to_string().contains("the log's end may have been cut off"), "{report}");
    }
    files.remove(head);
    let report = verdict(&files, &Expect::default());
    assert_eq!(report.verdict, Verdict::Broken);
    assert!(report.to_string().contains("the log's end may have been cut off"), "{report}");
    assert_eq!(verdict(&files, &Expect { head: Some(old), ..Expect::default() }).verdict, Verdict::Broken);
}

/// The same applies if only the first line is left, as in a log that was only started.
///
/// Promise (Static analysis and audit log): A truncation of the audit log after any line is detected without its head.
#[test]
fn a_log_that_was_cut_off_after_any_line_is_found_without_its_head() {
    for keyed in [false, true] {
        let all = lines(&log(keyed)[segments(log(keyed))[0]].1);
        for retained in 1..=all.len() {
            for head in [None, Some(&b""[..]), Some(b"garbage")] {
                let mut files = vec![("audit-00000001.jsonl".to_owned(), all[..retained].concat())];
                files.extend(head.map(|head| ("head".to_owned(), head.to_vec())));
                let expect = if keyed { with_key() } else { Expect::default() };
                let report = verdict(&files, &expect);
                assert_eq!(report.verdict, Verdict::Broken, "{retained} lines, head {head:?}: {report}");
            }
        }
    }
}

#[test]
fn an_unchanged_log_of_one_line_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    for _ in 0..2 {
        let report = check(directory.path());
        assert_eq!((report.verdict, report.lines, report.findings.clone()), (Verdict::Whole, 1, vec![]), "{report}");
    }
    drop(log);
    assert_eq!(check(directory.path()).verdict, Verdict::Whole);
    assert_eq!(Log::open(config(directory.path())).unwrap().notices(), []);
}

/// The next writer recreates the head file, and records permanently that it was missing.
#[test]
fn a_removed_head_is_reported_from_then_on() {
    for damage in [|path: &Path| fs::remove_file(path).unwrap(), |path: &Path| fs::write(path, "").unwrap()] {
        let directory = tempfile::tempdir().unwrap();
        execute(&Log::open(config(directory.path())).unwrap(), "a");
        damage(&directory.path().join("audit/head"));
        let log = Log::open(config(directory.path())).unwrap();
        assert_eq!(log.notices(), [Notice::UnknownEnd { found: 3 }]);
        execute(&log, "b");
        drop(log);
        assert_eq!(Log::open(config(directory.path())).unwrap().notices(), []);
        let report = verify(&directory.path().join("audit"), &Expect::default()).unwrap();
        assert_eq!((report.verdict, report.exit_status()), (Verdict::Incomplete, 3), "{report}");
        assert!(report.to_string().contains("it went to number 3 at least"), "{report}");
    }
}

/// The same applies to any remainder, and for as long as another file has the name of the head file.
#[test]
fn a_log_whose_lines_or_head_are_gone_never_becomes_a_new_one() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("first line kept, head gone", |path| {
            keep_first_line(path);
            fs::remove_file(path.join("head")).unwrap();
        }),
        ("first line kept, long garbage as head", |path| {
            keep_first_line(path);
            fs::write(path.join("head"), "x".repeat(1000)).unwrap();
        }),
        ("no line kept, garbage as head", |path| {
            fs::remove_file(path.join("audit-00000001.jsonl")).unwrap();
            fs::write(path.join("head"), "x").unwrap();
        }),
        ("no line kept", |path| fs::remove_file(path.join("audit-00000001.jsonl")).unwrap()),
    ];
    for (name, damage) in damages {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        execute(&Log::open(config(directory.path())).unwrap(), "a");
        damage(&path);
        assert_eq!(check(directory.path()).verdict, Verdict::Broken, "{name}");
        let log = Log::open(config(directory.path())).unwrap();
        assert_eq!(log.notices().len(), 1, "{name}");
        execute(&log, "b");
        drop(log);
        assert_eq!(Log::open(config(directory.path())).unwrap().notices(), [], "{name}");
        let report = check(directory.path());
        assert_eq!((report.verdict, report.losses), (Verdict::Incomplete, 1), "{name}: {report}");
        assert!(!path.join("head.new").exists(), "{name}");
    }
}

fn keep_first_line(path: &Path) {
    let segment = path.join("audit-00000001.jsonl");
    let all = lines(&fs::read(&segment).unwrap());
    fs::write(&segment, &all[0]).unwrap();
}

#[test]
fn a_head_from_before_still_fits_a_log_that_grew() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    let head = execute(&log, "a");
    execute(&log, "b");
    let report =
        verify(&directory.path().join("audit"), &Expect { head: Some(head.hash), ..Expect::default() }).unwrap();
    assert_eq!(report.verdict, Verdict::Whole, "{report}");
    assert_eq!(report.head, Some(log.head().unwrap()));
}
