//! Tests of ends: of the host, the agent and the connection.

use std::time::{Duration, Instant};

use cofferdam_contract::{ErrorKind, ExecRequest, Fault, Limits, SandboxPath, Stdin};
use cofferdam_guest::{Guest, PROTOCOL, Settings, Termination};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::enclosure::{Enclosure, LONG, Streams, connect, guest};
use crate::execs::{start, wait_for};

/// Returns the pid namespace of a process.
fn namespace(pid: i32) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Returns all processes in a pid namespace, by their pids in the host's namespace.
fn members(of: &std::path::Path) -> Vec<i32> {
    let names = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let pids = names.filter_map(|name| name.to_string_lossy().parse().ok());
    pids.filter(|pid| namespace(*pid).as_deref() == Some(of)).collect()
}

/// Promise (Containers): The guest agent ends all programs when the host closes its connection.
#[tokio::test]
async fn an_agent_whose_host_is_gone_ends_with_everything() {
    let (enclosure, guest) = guest().await;
    let handle = start(&guest, ExecRequest::shell("(setsid sleep 1000 &); echo on; sleep 1000").build().unwrap()).await;
    wait_for(&handle, "on").await;
    let inside = namespace(enclosure.agent()).unwrap();
    assert!(members(&inside).len() >= 3, "the agent, a shell and its child");
    // Like a killed host: the agent gets no request to exit.
    drop(guest);
    enclosure.ended().await;
    assert_eq!(members(&inside), [0; 0]);
    let exit = handle.exit().await.unwrap();
    assert!(exit.cancelled, "its owner ended it: {exit:?}");
}

#[tokio::test]
async fn waiting_callers_get_an_error_when_the_agent_is_killed() {
    let reason = || Some(Termination { remedy: Some("repair it".into()), ..Termination::new("the power failed") });
    let settings =
        Settings { reason: Some(Box::new(move || Box::pin(async move { reason() }))), ..Settings::default() };
    let (enclosure, guest, _) = connect(settings).await.unwrap();
    let handle = start(&guest, ExecRequest::argv(["sleep", "1000"]).stdin(Stdin::Stream).build().unwrap()).await;
    let path = SandboxPath::new("file").unwrap();
    guest.write_file(&path, Box::new(tokio::io::repeat(7).take(4 << 20))).await.unwrap();
    let mut reader = guest.read_file(&path).await.unwrap();
    let inside = namespace(enclosure.agent()).unwrap();
    let agent = rustix::process::Pid::from_raw(enclosure.agent()).unwrap();
    rustix::process::kill_process(agent, rustix::process::Signal::KILL).unwrap();
    let error = handle.exit().await.unwrap_err();
    assert_eq!((error.kind(), error.fault(), error.remedy()), (ErrorKind::Closed, Fault::Host, Some("repair it")));
    assert!(error.message().contains("the power failed"), "{error}");
    assert!(!guest.is_alive());
    assert_eq!(guest.closed().await.unwrap().why, "the power failed");
    assert!(reader.read_to_end(&mut Vec::new()).await.is_err(), "a truncated file is an error");
    let mut stdin = handle.stdin().unwrap();
    assert!(stdin.write_all(b"x").await.is_err());
    for error in [
        guest.read_file(&path).await.err().unwrap(),
        guest.list_dir(&path).await.err().unwrap(),
        guest.usage(&Limits::default()).await.err().unwrap(),
        guest.start(&ExecRequest::argv(["true"]).build().unwrap(), &Limits::default()).await.err().unwrap(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    enclosure.ended().await;
    assert_eq!(members(&inside), [0; 0]);
}

/// Promise (Containers): The guest agent ends if it hears nothing from its host.
#[tokio::test]
async fn an_agent_that_hears_nothing_ends() {
    // The pause keeps the host from sending pings, while the pipe stays open.
    let settings = Settings { silence: Duration::from_millis(500), ..Settings::default() };
    let (enclosure, guest, _) = connect(settings).await.unwrap();
    guest.set_paused(true);
    enclosure.ended().await;
    assert!(guest.closed().await.is_some());
}

#[tokio::test]
async fn an_agent_that_is_talked_to_lives_on() {
    let settings = Settings {
        silence: Duration::from_secs(2),
        answer_timeout: Duration::from_millis(1500),
        ..Settings::default()
    };
    let (_enclosure, guest, _) = connect(settings).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guest.is_alive());
    assert!(crate::execs::shell(&guest, "true").await.0.success());
}

#[tokio::test]
async fn a_stopped_agent_is_found_out() {
    let settings = Settings { answer_timeout: Duration::from_millis(900), ..Settings::default() };
    let (enclosure, guest, _) = connect(settings).await.unwrap();
    let agent = rustix::process::Pid::from_raw(enclosure.agent()).unwrap();
    rustix::process::kill_process(agent, rustix::process::Signal::STOP).unwrap();
    let why = tokio::time::timeout(LONG, guest.closed()).await.expect("the connection ends").unwrap().why;
    assert!(why.contains("does not answer"), "{why}");
    rustix::process::kill_process(agent, rustix::process::Signal::CONT).unwrap();
    enclosure.ended().await;
}

#[tokio::test]
async fn an_agent_ends_at_rubbish_and_at_another_version() {
    let hello = |version: u32| {
        let mut frame = Vec::from(17u32.to_le_bytes());
        frame.push(1);
        frame.extend(1u64.to_le_bytes());
        frame.extend(0x4346_4744u32.to_le_bytes());
        frame.extend(version.to_le_bytes());
        frame
    };
    let request = |kind: u8, body: &[u8]| {
        let mut frame = Vec::from((9 + body.len() as u32).to_le_bytes());
        frame.push(kind);
        frame.extend(2u64.to_le_bytes());
        frame.extend(body);
        frame
    };
    let cases = [
        vec![0xff; 64],
        request(21, b""),
        hello(PROTOCOL - 1),
        hello(PROTOCOL + 1),
        [hello(PROTOCOL), request(200, b"x")].concat(),
        [hello(PROTOCOL), request(4, &[0xff; 40])].concat(),
        [hello(PROTOCOL), request(25, &[0; 40])].concat(),
        [hello(PROTOCOL), request(255, &[0; 100]).repeat(50_000)].concat(),
    ];
    for bytes in cases {
        let (enclosure, Streams { mut reader, mut writer }) = Enclosure::start(crate::enclosure::DISK);
        // The agent may stop reading before the end.
        let _ = writer.write_all(&bytes).await;
        let mut answers = Vec::new();
        tokio::time::timeout(LONG, reader.read_to_end(&mut answers)).await.expect("the agent exits").unwrap();
        enclosure.ended().await;
    }
}

#[tokio::test]
async fn agent_that_is_not_process_1_exits() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent");
    std::fs::write(&path, cofferdam_guest::AGENT).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let output = tokio::process::Command::new(&path).output().await.unwrap();
    assert_eq!(output.status.code(), Some(77));
    assert!(output.stdout.is_empty());
}

#[tokio::test]
async fn missing_greeting_is_a_separate_stage() {
    let mut child = tokio::process::Command::new("true")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let error = Guest::connect(reader, writer, Settings::default(), Instant::now() + LONG).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.context().any(|fact| fact == ("stage", "greeting")), "{error:?}");
    child.wait().await.unwrap();
}
