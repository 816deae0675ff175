//! One line an execution, with nothing secret in it.

use std::path::Path;
use std::time::Duration;

use cofferdam_audit::{Expect, Filter, Record, Verdict, query, verify};
use cofferdam_code::{
    AuditConfig, AuditSync, CodeConfig, CodeRequest, Executor, ScreeningConfig, ScreeningMode, Secret,
};
use cofferdam_contract::ErrorKind;

use crate::support::{World, spec};

fn audited(directory: &Path) -> CodeConfig {
    let audit = AuditConfig {
        directory: directory.to_owned(),
        mandatory: true,
        sync: AuditSync::Never,
        key: None,
        segment_bytes: None,
        keep_segments: None,
        artifact_bytes: Some(1 << 20),
    };
    let screening = ScreeningConfig { mode: ScreeningMode::Block, ..ScreeningConfig::default() };
    CodeConfig { audit: Some(audit), screening, ..CodeConfig::default() }
}

fn everything(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).expect("a listing") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text += &everything(&path);
        } else {
            text += &String::from_utf8_lossy(&std::fs::read(path).expect("readable"));
        }
    }
    text
}

#[tokio::test]
async fn each_execution_has_a_line_and_no_secret_appears() {
    let home = tempfile::tempdir().expect("a directory");
    let log = home.path().join("audit");
    let world = World::with(audited(&log), spec()).await;
    let secret = "kW9-hunter2-kW9";
    let code = "import sys\ntoken = sys.stdin.read()\nprint(token)\nopen('file-' + token, 'w').write(token)\nprint(token[::1].encode().hex())";
    let mut request = CodeRequest::new("python", code);
    request.stdin = bytes::Bytes::from_static(secret.as_bytes());
    request.secrets.insert("TOKEN".to_owned(), Secret::new(secret));
    let result = world.try_run(request).await.expect("it runs");
    assert!(result.stdout.text().starts_with(secret), "{}", result.stderr.text());
    world.try_run(CodeRequest::new("python", format!("import os\n'{secret}'"))).await.expect_err("screened");
    let endless = world.try_run(CodeRequest::new("python", "while True: pass"));
    assert!(tokio::time::timeout(Duration::from_millis(700), endless).await.is_err());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let report = verify(&log, &Expect { artifacts: true, ..Expect::default() }).expect("a report");
    assert_eq!(report.verdict, Verdict::Whole, "{report}");
    assert_eq!((report.executions.ended, report.executions.cancelled, report.executions.open), (2, 1, 0), "{report}");
    let filter =
        Filter { id: Some(cofferdam_audit::ExecutionId::new(result.id.clone()).expect("an id")), ..Filter::default() };
    let found: Vec<_> = query(&log, filter).expect("a log").collect::<Result<_, _>>().expect("readable");
    let end = found.iter().find_map(|entry| if let Record::End(end) = &entry.record { Some(end) } else { None });
    let end = end.expect("an end");
    assert_eq!(end.outcome.exit.code, Some(0));
    assert_eq!(end.outcome.posture.map(|hash| hash.to_string()), Some(result.meta.posture));
    assert_eq!(end.outcome.files.count(), 1);
    let text = everything(&log);
    for form in [secret.to_owned(), secret.bytes().map(|byte| format!("{byte:02x}")).collect()] {
        assert!(!text.contains(&form), "{form} is in the log");
    }
    assert!(text.contains("[redacted:TOKEN]"));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_lets_nothing_run() {
    if !std::path::Path::new("/dev/full").exists() {
        println!("SKIP without /dev/full: a full disk is not tested");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let log = home.path().join("audit");
    let world = World::with(audited(&log), spec()).await;
    world.run("python", "print(1)").await;
    // Whoever takes the log's directory away takes the right to run with it.
    std::fs::rename(&log, home.path().join("elsewhere")).expect("moved");
    std::fs::write(&log, "in the way").expect("written");
    assert!(Executor::new(audited(&log)).is_err_and(|error| error.kind() == ErrorKind::Unavailable));
}
