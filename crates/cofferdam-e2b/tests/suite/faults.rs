//! Faults of the server and the network.

use std::time::Duration;

use cofferdam_contract::{Backend, Command, Error, ErrorKind, ExecRequest, Retry, Script};
use cofferdam_e2b::{E2bBackend, E2bConfig, Key};

use crate::server::{Fault, LocalE2b};
use crate::support::{backend, config, create, eventually, spec};

const START: &str = "/process.Process/Start";
const CREATE: &str = "POST /v2/sandboxes";

fn everything(error: &Error) -> String {
    format!("{error} {error:?} {}", error.to_json())
}

/// Promise (E2B): No error, and no debug form of one, has the key, even if the server repeats it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_key_is_not_shown_in_errors() {
    let server = LocalE2b::start().await;
    let config = E2bConfig { key: Key::new("e2b_very_secret").unwrap(), ..config(&server) };
    let backend = E2bBackend::new(config).unwrap();
    let error = backend.create(spec()).await.expect_err("refused");
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Denied, Retry::Never));
    assert!(error.remedy().is_some_and(|remedy| remedy.contains("E2B_API_KEY")), "{error:?}");
    let shown = format!("{} {backend:?}", everything(&error));
    assert!(shown.contains("[secret]") && !shown.contains("very_secret"), "{shown}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_creates_have_their_error_kind_and_leave_no_vm() {
    let server = LocalE2b::start().await;
    let config = E2bConfig { template: "none-such".to_owned(), ..config(&server) };
    let error = E2bBackend::new(config).unwrap().create(spec()).await.expect_err("no template");
    assert!(error.kind() == ErrorKind::NotFound && everything(&error).contains("none-such"), "{error}");
    for (part, fault, kind) in [
        (CREATE, Fault::Status(500, "oops"), ErrorKind::Unavailable),
        (CREATE, Fault::Status(403, "no"), ErrorKind::Denied),
        (CREATE, Fault::Says(b"<html>"), ErrorKind::Unavailable),
        (CREATE, Fault::Says(br#"{"sandboxID":"../x","envdVersion":"0.6.0"}"#), ErrorKind::Unavailable),
        (CREATE, Fault::Oversized(2 << 20), ErrorKind::Unavailable),
        (CREATE, Fault::Cut, ErrorKind::Unavailable),
        (START, Fault::Status(500, "no agent"), ErrorKind::Unavailable),
        (START, Fault::Says(&[0, 0xff, 0xff, 0xff, 0xff]), ErrorKind::Unavailable),
        (START, Fault::Says(&[0, 0, 0, 0, 1, b'{']), ErrorKind::Unavailable),
        (START, Fault::Says(&[1, 0, 0, 0, 0]), ErrorKind::Unavailable),
        (START, Fault::Cut, ErrorKind::Unavailable),
    ] {
        server.state.faults.add(part, fault.clone());
        let error = backend(&server).create(spec()).await.expect_err("refused");
        assert!(error.kind() == kind && error.remedy().is_some(), "{fault:?}: {}", everything(&error));
        assert_eq!(server.living(), Vec::<String>::new(), "{fault:?}");
    }
    server.stop().await;
}

/// Promise (E2B): A rate limit is waited for as long as E2B says, if that is short, and reported otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_rate_limits_are_waited_for_and_long_ones_reported() {
    let server = LocalE2b::start().await;
    server.state.faults.add(CREATE, Fault::Limited("1"));
    let begun = std::time::Instant::now();
    let sandbox = backend(&server).create(spec()).await.expect("created");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    server.state.faults.add(CREATE, Fault::Limited("3600"));
    let error = backend(&server).create(spec()).await.expect_err("limited");
    assert_eq!((error.kind(), error.retry()), (ErrorKind::ResourceExhausted, Retry::MayHelp));
    assert!(everything(&error).contains("3600 s"), "{error}");
    // A request that may be repeated is, after a failure that may pass.
    server.state.faults.add("/metrics", Fault::Status(502, "bad gateway"));
    server.state.faults.add("/metrics", Fault::Status(503, ""));
    sandbox.usage().await.expect("the third attempt");
    sandbox.close().await.expect("closed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_an_exec_and_of_files_are_reported() {
    let server = LocalE2b::start().await;
    let sandbox = create(&server).await;
    let request = || ExecRequest::argv(["true"]).build().unwrap();
    let name = cofferdam_contract::SandboxPath::new("file").unwrap();
    let starts = || server.state.faults.seen().iter().filter(|seen| seen.path.ends_with(START)).count();
    for (fault, kind) in [
        (Fault::Status(401, "token"), ErrorKind::Denied),
        (Fault::Status(502, "bad gateway"), ErrorKind::Unavailable),
        (Fault::Says(b"\x00\x00\x20\x00\x00"), ErrorKind::Unavailable),
        (Fault::Says(b"\x02\x00\x00\x00\x02{}"), ErrorKind::Unavailable),
        (Fault::Cut, ErrorKind::Unavailable),
    ] {
        let before = starts();
        server.state.faults.add(START, fault.clone());
        let error = sandbox.start(request()).await.expect_err("refused");
        assert!(error.kind() == kind && error.remedy().is_some(), "{fault:?}: {}", everything(&error));
        // A program that may run although its answer was lost is ended, by another start.
        let more = 1 + usize::from(kind == ErrorKind::Unavailable);
        eventually(async || starts() >= before + more).await;
    }
    for (fault, kind) in [
        (Fault::Status(507, "not enough disk space"), ErrorKind::ResourceExhausted),
        (Fault::Status(500, "x"), ErrorKind::Unavailable),
    ] {
        server.state.faults.add("POST /files", fault.clone());
        let error = sandbox.write_bytes(&name, "x").await.expect_err("refused");
        assert_eq!(error.kind(), kind, "{error}");
    }
    assert_eq!(sandbox.list_dir(&cofferdam_contract::SandboxPath::default()).await.unwrap(), []);
    // A slow server is waited for.
    server.state.faults.add(START, Fault::Slow(Duration::from_secs(2)));
    assert!(sandbox.exec(request()).await.expect("it runs").exit.success());
    sandbox.close().await.expect("closed");
    server.stop().await;
}

/// Promise (E2B): A failure after the create deletes the VM, and a failed start removes its script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_leave_no_vm_and_no_script() {
    let server = LocalE2b::start().await;
    let answer = br#"{"sandboxID":"local1","envdVersion":"0.6.13","envdAccessToken":"a\nb"}"#;
    server.state.faults.add(CREATE, Fault::Replaced(answer));
    let error = backend(&server).create(spec()).await.expect_err("a token with a line break");
    assert_eq!((error.kind(), server.living()), (ErrorKind::Unavailable, Vec::new()), "{error}");
    let sandbox = create(&server).await;
    let script = |interpreter: &str| {
        let script = Script {
            interpreter: vec![interpreter.to_owned()],
            name: "main.sh".to_owned(),
            contents: "exit 3".into(),
            args: Vec::new(),
        };
        ExecRequest::builder(Command::Script(script)).build().unwrap()
    };
    let is_left = async || {
        let listed = sandbox.exec(ExecRequest::shell("ls -d /tmp/cofferdam-*").build().unwrap()).await;
        listed.expect("listed").exit.success()
    };
    server.state.faults.add("POST /files", Fault::Lost);
    sandbox.start(script("sh")).await.expect_err("the answer to the upload is lost");
    eventually(async || !is_left().await).await;
    assert_eq!(sandbox.start(script("none-such")).await.expect_err("no interpreter").kind(), ErrorKind::NotFound);
    eventually(async || !is_left().await).await;
    assert_eq!(sandbox.exec(script("sh")).await.expect("it runs").exit.code, 3);
    eventually(async || !is_left().await).await;
    sandbox.close().await.expect("closed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_server_is_unavailable() {
    let server = LocalE2b::start().await;
    let nowhere = Some("http://127.0.0.1:1".to_owned());
    let config = E2bConfig { api_url: nowhere.clone(), sandbox_url: nowhere, ..config(&server) };
    let error = E2bBackend::new(config).unwrap().create(spec()).await.expect_err("refused");
    assert!(error.kind() == ErrorKind::Unavailable && error.remedy().is_some(), "{error}");
    server.stop().await;
}
