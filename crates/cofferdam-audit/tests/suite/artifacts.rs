//! Tests of artifacts.

use std::fs;
use std::path::Path;

use cofferdam_audit::*;

use crate::support::*;

fn open(directory: &Path, bytes: u64) -> Log {
    Log::open(Config { artifact_bytes: Some(bytes), ..config(directory) }).unwrap()
}

fn store(log: &Log, name: &str, redactor: &Redactor, sections: &[(&str, &[&[u8]])]) -> Artifact {
    let mut reservation = log.reserve(subject(name)).unwrap();
    let mut writer = reservation.artifact(redactor).unwrap().unwrap();
    for (section, chunks) in sections {
        writer.section(section).unwrap();
        chunks.iter().for_each(|chunk| writer.add(chunk).unwrap());
    }
    let artifact = writer.finish().unwrap();
    reservation.commit(Outcome { artifact: Some(artifact.clone()), ..outcome() }).unwrap();
    artifact
}

fn artifact_of(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join("audit/artifacts").join(format!("{name}.jsonl"))).unwrap()
}

/// Promise (Static analysis and audit log): Artifacts contain code and result, and no secret.
#[test]
fn artifacts_hold_code_and_result_and_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path(), 100_000);
    let redactor = Redactor::new([("API_KEY", "hunter2-\"x\"")]).unwrap();
    let artifact = store(
        &log,
        "a",
        &redactor,
        &[("code", &[b"key = 'hun", b"ter2-\"x\"'\n"]), ("stdout", &[b"aHVudGVyMi0ieCI=\n", b"\xff\xfe"])],
    );
    let expected = concat!(
        r#"{"section":"code","text":"key = '[redacted:API_KEY]'\n"}"#,
        "\n",
        r#"{"base64":"W3JlZGFjdGVkOkFQSV9LRVldPQr//g==","section":"stdout"}"#,
        "\n"
    );
    let text = artifact_of(directory.path(), "a");
    assert_eq!(text, expected);
    let Artifact::Stored { file, sha256, bytes, redacted, truncated } = artifact else { panic!("{artifact:?}") };
    assert_eq!((&*file, bytes, redacted, truncated), ("a.jsonl", text.len() as u64, 2, false));
    assert_eq!(sha256, Digest::of(&text));
}

#[test]
fn artifacts_are_bounded_and_marked_as_truncated() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path(), 40_000);
    let much = vec![b'x'; 100_000];
    let artifact = store(&log, "a", &Redactor::none(), &[("code", &[&much]), ("stdout", &[b"small"])]);
    let text = artifact_of(directory.path(), "a");
    assert!(text.len() < 40_200 && text.len() > 30_000, "{}", text.len());
    assert!(matches!(artifact, Artifact::Stored { truncated: true, .. }));
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stored: usize =
        lines.iter().filter(|l| l["section"] == "code").filter_map(|l| Some(l["text"].as_str()?.len())).sum();
    let dropped = lines.iter().find_map(|line| line["dropped"].as_u64()).unwrap();
    assert_eq!(stored as u64 + dropped, 100_000);
    // Later data that is small enough is still stored.
    assert_eq!(lines.last().unwrap()["text"], "small");
}

#[test]
fn characters_are_not_torn_between_lines() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path(), 1 << 20);
    let text = "ö".repeat(40_000);
    store(&log, "a", &Redactor::none(), &[("stdout", &[&text.as_bytes()[..1], &text.as_bytes()[1..]])]);
    let lines = artifact_of(directory.path(), "a");
    let back: String = lines
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(back, text);
}

#[test]
fn changed_and_missing_artifacts_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let log = open(directory.path(), 1000);
    store(&log, "a", &Redactor::none(), &[("code", &[b"x"])]);
    let expect = || Expect { artifacts: true, ..Expect::default() };
    assert_eq!(verify(&audit, &expect()).unwrap().verdict, Verdict::Whole);
    fs::write(audit.join("artifacts/a.jsonl"), "other").unwrap();
    let report = verify(&audit, &expect()).unwrap();
    assert!(report.to_string().contains("its artifact was changed"), "{report}");
    fs::remove_file(audit.join("artifacts/a.jsonl")).unwrap();
    let report = verify(&audit, &expect()).unwrap();
    assert!(report.to_string().contains("its artifact is gone"), "{report}");
    // Artifacts are only checked on request.
    assert_eq!(verify(&audit, &Expect::default()).unwrap().verdict, Verdict::Whole);
}

/// Promise (Static analysis and audit log): Artifacts without a line in the audit log are reported.
#[test]
fn artifacts_that_no_line_names_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let expect = || Expect { artifacts: true, ..Expect::default() };
    let log = open(directory.path(), 1000);
    for name in ["a", "b"] {
        store(&log, name, &Redactor::none(), &[("code", &[b"x"])]);
    }
    let head = fs::read(audit.join("head")).unwrap();
    let lines = fs::read(audit.join("audit-00000001.jsonl")).unwrap();
    store(&log, "c", &Redactor::none(), &[("code", &[b"x"])]);
    // An artifact whose execution is about to get its end record, or whose writer was killed before it.
    let running = log.reserve(subject("d")).unwrap();
    running.artifact(&Redactor::none()).unwrap().unwrap().finish().unwrap();
    let report = verify(&audit, &expect()).unwrap();
    assert_eq!((report.verdict, report.findings.clone()), (Verdict::Whole, vec![]), "{report}");
    running.cancel("no sandbox").unwrap();
    let report = verify(&audit, &expect()).unwrap();
    assert!(report.to_string().contains("BREACH: artifacts/d.jsonl: no line names it"), "{report}");
    fs::remove_file(audit.join("artifacts/d.jsonl")).unwrap();
    drop(log);
    // The end is cut off and the head file corrected. The remaining artifacts reveal it.
    fs::write(audit.join("head"), head).unwrap();
    fs::write(audit.join("audit-00000001.jsonl"), lines).unwrap();
    let report = verify(&audit, &expect()).unwrap();
    assert_eq!((report.verdict, report.breaches), (Verdict::Broken, 1), "{report}");
    assert!(report.to_string().contains("BREACH: artifacts/c.jsonl: no line names it"), "{report}");
    assert_eq!(verify(&audit, &Expect::default()).unwrap().verdict, Verdict::Whole);
}

/// After a recorded loss or retention, the line of an artifact may be gone.
#[test]
fn artifacts_whose_lines_are_known_to_be_gone_are_no_breach() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let log = open(directory.path(), 1000);
    store(&log, "a", &Redactor::none(), &[("code", &[b"x"])]);
    let lines = fs::read(audit.join("audit-00000001.jsonl")).unwrap();
    store(&log, "b", &Redactor::none(), &[("code", &[b"x"])]);
    drop(log);
    fs::write(audit.join("audit-00000001.jsonl"), lines).unwrap();
    drop(open(directory.path(), 1000));
    let report = verify(&audit, &Expect { artifacts: true, ..Expect::default() }).unwrap();
    assert_eq!(report.verdict, Verdict::Incomplete, "{report}");
    assert!(report.to_string().contains("loss: artifacts/b.jsonl: no line names it"), "{report}");

    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let config =
        Config { segment_bytes: 0, keep_segments: Some(0), artifact_bytes: Some(1000), ..config(directory.path()) };
    let log = Log::open(config).unwrap();
    store(&log, "a", &Redactor::none(), &[("code", &[b"x"])]);
    let stored = fs::read(audit.join("artifacts/a.jsonl")).unwrap();
    store(&log, "b", &Redactor::none(), &[("code", &[b"x"])]);
    // Simulates a writer that was killed after it removed the segment and before it removed its artifacts.
    fs::write(audit.join("artifacts/a.jsonl"), stored).unwrap();
    let past = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    fs::File::options().write(true).open(audit.join("artifacts/a.jsonl")).unwrap().set_modified(past).unwrap();
    let report = verify(&audit, &Expect { artifacts: true, ..Expect::default() }).unwrap();
    assert_eq!((report.verdict, report.notes), (Verdict::Whole, 1), "{report}");
}

#[test]
fn unfinished_artifacts_are_not_left() {
    let directory = tempfile::tempdir().unwrap();
    let artifacts = directory.path().join("audit/artifacts");
    let log = open(directory.path(), 1000);
    let reservation = log.reserve(subject("a")).unwrap();
    let mut writer = reservation.artifact(&Redactor::none()).unwrap().unwrap();
    writer.add(b"x").unwrap();
    // Later writers do not touch the file of a running writer.
    drop(open(directory.path(), 1000));
    assert_eq!(listing(&artifacts), ["a.jsonl.new"]);
    drop(writer);
    assert_eq!(listing(&artifacts), Vec::<String>::new());
    // The file of a killed writer is removed.
    fs::write(artifacts.join("b.jsonl.new"), "x").unwrap();
    drop(open(directory.path(), 1000));
    assert_eq!(listing(&artifacts), Vec::<String>::new());
    // An execution does not overwrite the artifact of another one.
    store(&log, "c", &Redactor::none(), &[]);
    let again = log.reserve(subject("c")).unwrap();
    assert!(again.artifact(&Redactor::none()).unwrap().unwrap().finish().is_err());
    assert_eq!(listing(&artifacts), ["c.jsonl"]);
}

#[test]
fn a_log_without_artifacts_keeps_none() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(config(directory.path())).unwrap();
    assert!(log.reserve(subject("a")).unwrap().artifact(&Redactor::none()).unwrap().is_none());
    assert!(!directory.path().join("audit/artifacts").exists());
}
