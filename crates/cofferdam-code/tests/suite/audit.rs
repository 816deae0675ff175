//! Tests of the audit records: one for each execution, without secrets.

use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::{End, Expect, Filter, Record, Verdict, query, verify};
use cofferdam_code::{
    AuditConfig, AuditSync, CodeConfig, CodeRequest, Executor, Job, Oversight, ScreeningConfig, ScreeningMode, Secret,
    Secrets, Sessions, Want, Warn,
};
use cofferdam_contract::{ErrorKind, ExecRequest};
use parking_lot::Mutex;
use tokio::sync::oneshot;

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

/// Promise (Code execution): Each execution has a line in the audit log, which contains no secret.
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
    assert_eq!(end.outcome.files.as_ref().map(|files| files.count()), Some(1));
    let text = everything(&log);
    for form in [secret.to_owned(), secret.bytes().map(|byte| format!("{byte:02x}")).collect()] {
        assert!(!text.contains(&form), "{form} is in the log");
    }
    assert!(text.contains("[redacted:TOKEN]"));
}

/// Tests secrets that need escapes, in the documented encodings, on standard output and in the result. An artifact
/// contains the result within JSON.
///
/// Promise (Code execution): No artifact contains a secret in a [documented encoding](docs/audit.md#artifacts).
#[tokio::test]
async fn awkward_secrets_do_not_appear_in_artifacts_either() {
    let home = tempfile::tempdir().expect("a directory");
    let log = home.path().join("audit");
    let screening = ScreeningConfig { mode: ScreeningMode::Off, ..ScreeningConfig::default() };
    let world = World::with(CodeConfig { screening, ..audited(&log) }, spec()).await;
    let python = "import base64, json, os, urllib.parse\nt = os.environ['TOK']\nb = t.encode()\n\
        print(t, json.dumps(t), json.dumps(t, ensure_ascii=False), base64.b64encode(b'xy' + b), b.hex())\n\
        print(urllib.parse.quote(t), urllib.parse.quote_plus(t))\n\
        class Plain:\n    def __repr__(self): return t\nPlain()";
    let javascript = "const t = process.env.TOK, b = Buffer.from('x' + t)\n\
        console.log(t, JSON.stringify(t), b.toString('base64url'), b.toString('hex'), encodeURIComponent(t));\n\
        ({[Symbol.for('nodejs.util.inspect.custom')]: () => t})";
    let secrets = [
        r"corp\svc-Hunter2xyz",
        "it's\"Hunter2xyz",
        "it's-Hunter2xyz",
        "\"a`Hunter2xyz${'",
        "pässwordHunter2xyz",
        "one\ntwo\tHunter2xyz\u{7f}",
        "smile😀€Hunter2xyz",
    ];
    for secret in secrets {
        for (language, code) in [("python", python), ("javascript", javascript)] {
            let mut request = CodeRequest::new(language, code);
            request.secrets.insert("TOK".to_owned(), Secret::new(secret));
            let result = world.try_run(request).await.expect("it runs");
            assert_eq!(result.exit_code, 0, "{language}, {secret}: {}", result.stderr.text());
            assert_eq!(result.results.len(), 1, "{language}, {secret}: {result:?}");
        }
    }
    let text = everything(&log.join("artifacts"));
    let left: Vec<&str> = text.lines().filter(|line| line.contains("Hunter2") || line.contains("xyz")).collect();
    assert!(left.is_empty(), "{left:#?}");
    assert!(text.contains("[redacted:TOK]"));
}

fn ends(log: &Path) -> Vec<End> {
    let records = query(log, Filter::default()).expect("a log").map(|entry| entry.expect("readable").record);
    records.filter_map(|record| if let Record::End(end) = record { Some(*end) } else { None }).collect()
}

#[tokio::test]
async fn unmeasured_values_are_null_in_the_audit_log() {
    let home = tempfile::tempdir().expect("a directory");
    let log = home.path().join("audit");
    let world = World::with(audited(&log), spec()).await;
    let mut blind = CodeRequest::new("python", "open('unseen', 'w')");
    blind.files = Want::No;
    assert!(!world.try_run(blind).await.expect("it runs").files.complete, "the workspace was not scanned");
    world.run("python", "print('abc')").await;
    let sessions = Sessions::new(world.executor.clone());
    let session = sessions.open(&world.profile, &world.sandbox, "python").await.expect("a session");
    session.call(CodeRequest::new("", "print('abc')")).await.expect("a result");
    sessions.shutdown().await;
    let ends = ends(&log);
    let counts: Vec<_> = ends.iter().map(|end| end.outcome.files.as_ref().map(|files| files.count())).collect();
    assert_eq!(counts, [None, Some(0), Some(0)]);
    let [_, once, called] = &ends[..] else { panic!("{ends:?}") };
    assert!(once.outcome.usage.cpu_us.is_some());
    assert_eq!((once.outcome.usage.output_bytes, called.outcome.usage.output_bytes), (Some(4), Some(4)));
    assert_eq!(called.outcome.usage.cpu_us, None, "the interpreter counts for all calls together");
}

#[test]
fn a_line_ends_though_the_runtime_does() {
    let home = tempfile::tempdir().expect("a directory");
    let log = home.path().join("audit");
    let outer = tokio::runtime::Runtime::new().expect("a runtime");
    let world = outer.block_on(World::with(audited(&log), spec()));
    // In most iterations the runtime ends before the writing thread starts.
    for _ in 0..20 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (sender, begun) = oneshot::channel();
            let create = async move {
                sender.send(()).expect("the test waits");
                pending().await
            };
            let job = Job {
                exec: ExecRequest::argv(["true"]).build().expect("valid"),
                code: Some(CodeRequest::new("python", "1")),
                secrets: Secrets::default(),
                oversight: Oversight::Full,
                checked_version: None,
                on_screened: &|_| {},
            };
            tokio::select! {
                started = world.executor.start_in(&world.profile, world.sandbox.spec(), job, pending::<()>(), create) => {
                    panic!("no sandbox is created: {started:?}")
                }
                begun = begun => begun.expect("it may begin"),
            }
        });
        runtime.shutdown_timeout(Duration::from_secs(10));
    }
    outer.block_on(world.sandbox.close()).expect("it closes");
    let report = verify(&log, &Expect::default()).expect("a report");
    assert_eq!((report.executions.ended, report.executions.open), (20, 0), "{report}");
}

#[tokio::test]
async fn failure_of_an_optional_log_blocks_no_run_and_warns_once() {
    let home = tempfile::tempdir().expect("a directory");
    let log = home.path().join("audit");
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let config = || {
        let warnings = Arc::clone(&warnings);
        let mut config = audited(&log);
        config.audit.as_mut().expect("a log").mandatory = false;
        config.warn = Warn::new(move |text| warnings.lock().push(text.to_owned()));
        config
    };
    let take_warnings = || std::mem::take(&mut *warnings.lock());
    let world = World::with(config(), spec()).await;
    world.run("python", "1").await;
    assert_eq!(take_warnings(), [""; 0]);
    std::fs::remove_dir_all(&log).expect("removed");
    world.run("python", "1").await;
    world.run("python", "1").await;
    world.try_run(CodeRequest::new("python", "import os")).await.expect_err("screened");
    let once = take_warnings();
    assert!(once.len() == 1 && once[0].starts_with("code runs without an audit record: "), "{once:?}");
    std::fs::write(&log, "in the way").expect("written");
    let world = World::with(config(), spec()).await;
    world.run("python", "1").await;
    assert_eq!(take_warnings().len(), 1);
}

#[tokio::test]
async fn unwritable_mandatory_log_blocks_runs() {
    if !std::path::Path::new("/dev/full").exists() {
        println!("SKIP without /dev/full: a full disk is not tested");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let log = home.path().join("audit");
    let world = World::with(audited(&log), spec()).await;
    world.run("python", "print(1)").await;
    // A client that removes the directory of the log also loses the permission to run code.
    std::fs::rename(&log, home.path().join("elsewhere")).expect("moved");
    std::fs::write(&log, "in the way").expect("written");
    assert!(Executor::new(audited(&log)).is_err_and(|error| error.kind() == ErrorKind::Unavailable));
}
