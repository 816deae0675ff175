//! Processes that start, fail to start, end, and leave nothing.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_contract::ErrorKind;
use cofferdam_vm::firecracker::{InstanceId, InstanceState, Launch};

use crate::fake::{Flaws, Programs, is_gone, process_of};

fn id() -> InstanceId {
    InstanceId::new("vm-1").unwrap()
}

#[tokio::test]
async fn a_process_is_started_and_ended_and_leaves_nothing() {
    let programs = Programs::new(&Flaws::default());
    let launch = programs.launch();
    let (version, _) = launch.version().await.unwrap();
    assert_eq!(version.to_string(), "1.16.1");
    let machine = launch.start(&programs.place(), &id()).await.unwrap();
    assert_eq!(machine.client().describe("test").await.unwrap().state, InstanceState::NotStarted);
    assert_eq!(machine.version(), version);
    let process = process_of(&machine);
    assert!(machine.directory().is_dir());
    let error = launch.start(&programs.place(), &id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(machine.directory().is_dir(), "the other's directory is not touched");
    let waits = tokio::time::timeout(Duration::from_millis(50), machine.ended()).await;
    assert!(waits.is_err(), "it is alive");
    machine.end().await.unwrap();
    assert!(is_gone(process));
    assert!(!programs.place().join("vm-1").exists());
}

#[tokio::test]
async fn a_dropped_process_leaves_nothing() {
    let programs = Programs::new(&Flaws::default());
    let machine = programs.launch().start(&programs.place(), &id()).await.unwrap();
    let process = process_of(&machine);
    drop(machine);
    assert!(is_gone(process));
    assert_eq!(programs.left(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing() {
    let programs = Programs::new(&Flaws { before: "echo begun; exec sleep 3600", ..Flaws::default() });
    for after in [0, 1, 5, 20, 100] {
        let launch = programs.launch();
        let (place, id) = (programs.place(), id());
        let given_up = tokio::time::timeout(Duration::from_millis(after), launch.start(&place, &id)).await;
        assert!(given_up.is_err(), "it never is ready");
        assert_eq!(programs.left(), Vec::<std::path::PathBuf>::new(), "after {after} ms");
    }
}

#[tokio::test]
async fn an_end_that_nobody_ordered_is_noticed() {
    let programs = Programs::new(&Flaws::default());
    let machine = programs.launch().start(&programs.place(), &id()).await.unwrap();
    let process = i32::try_from(process_of(&machine)).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    tokio::time::timeout(Duration::from_secs(5), machine.ended()).await.expect("it is noticed");
    machine.client().describe("test").await.expect_err("the process is gone");
    machine.end().await.unwrap();
    assert!(!programs.place().join("vm-1").exists());
}

#[tokio::test]
async fn what_does_not_become_ready_says_why_and_leaves_nothing() {
    let short = Duration::from_millis(300);
    for (flaws, ready, says) in [
        (Flaws { before: "echo no memory >&2; exit 3", ..Flaws::default() }, None, "exited immediately: no memory"),
        (Flaws { before: "exec sleep 3600", ..Flaws::default() }, Some(short), "no socket within 0.3 s"),
        (Flaws { version: Some("1.15.0"), ..Flaws::default() }, None, "1.15.0 is not supported"),
        (Flaws { version: Some("new"), ..Flaws::default() }, None, "the invalid version 'new'"),
        (Flaws { name: Some("vm-2"), ..Flaws::default() }, None, "another VM answers: 'vm-2'"),
    ] {
        let programs = Programs::new(&flaws);
        let launch = programs.launch();
        let launch = Launch { ready: ready.unwrap_or(launch.ready), ..launch };
        let error = launch.start(&programs.place(), &id()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(says) && error.remedy().is_some(), "{error}");
        assert!(!programs.place().join("vm-1").exists(), "{error}");
    }
}

#[tokio::test]
async fn what_is_no_program_says_so_and_leaves_nothing() {
    let programs = Programs::new(&Flaws::default());
    let launch = Launch::new("/nowhere/firecracker");
    assert_eq!(launch.version().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(launch.start(&programs.place(), &id()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(programs.left(), Vec::<std::path::PathBuf>::new());
    for (program, says) in [("/bin/false", "it exited with"), ("/bin/true", "no version")] {
        let error = Launch::new(program).version().await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let far = programs.place().join("x".repeat(100));
    let error = programs.launch().start(&far, &id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// The process that is killed in the next test.
#[tokio::test]
async fn starts_one_and_waits() {
    let Some(place) = std::env::var_os("COFFERDAM_TEST_KILLED") else { return };
    let place = std::path::PathBuf::from(place);
    let launch = Launch::new(place.join("../firecracker"));
    let machine = launch.start(&place, &id()).await.unwrap();
    println!("STARTED {}", process_of(&machine));
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_supervisor_leaves_no_process() {
    let programs = Programs::new(&Flaws::default());
    let process = killed_supervisor("process::starts_one_and_waits", &programs);
    assert!(is_gone(process));
}

/// Returns the process that a supervisor started before it was killed.
fn killed_supervisor(test: &str, programs: &Programs) -> u32 {
    let mut supervisor = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("COFFERDAM_TEST_KILLED", programs.place())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(supervisor.stdout.take().unwrap()).lines().map_while(Result::ok);
    let process = lines.find_map(|line| line.split_once("STARTED ")?.1.parse().ok()).expect("it starts one");
    assert!(std::path::Path::new(&format!("/proc/{process}")).exists(), "it is alive");
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    process
}
