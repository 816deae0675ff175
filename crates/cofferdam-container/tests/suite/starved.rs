//! Tests of guests that leave hardly any CPU time for process 1: limits still apply, and the container is removed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_contract::{Backend, ExecHandle, ExecRequest, LimitKind, Limits, OutputEvent, Sandbox, Spec};

use crate::support::{self, TestEngine, left};

/// The environment variable with the engine of a supervisor process.
const ENGINE: &str = "COFFERDAM_TEST_STARVED";
const SPINNERS: u32 = 500;
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

fn spec(cpu: u64) -> Spec {
    spec_for(cpu, SPINNERS + 50)
}

fn spec_for(cpu: u64, pids: u32) -> Spec {
    let limits = Limits {
        cpu_time: Some(Duration::from_secs(cpu)),
        wall_time: HANG_TIMEOUT * 10,
        pids: Some(pids),
        ..Limits::default()
    };
    support::spec().limits(limits).build().unwrap()
}

fn spinners() -> ExecRequest {
    // All begin at once, since a running one would delay the start of the next.
    let one = "(: </tmp/begin; while :; do :; done) &";
    let line = format!(
        "mkfifo /tmp/begin; i=0; while [ $i -lt {SPINNERS} ]; do {one} i=$((i+1)); done; sleep 1; echo all; : >/tmp/begin; wait"
    );
    ExecRequest::shell(line).build().unwrap()
}

/// Returns a request for processes that each start a successor and exit, so that no list of them is ever complete.
fn chains() -> ExecRequest {
    // The first shell forks once: with many processes that are not reaped yet, a later fork would end it.
    let begin = "i=0; while [ $i -lt 100 ]; do f; i=$((i+1)); done; echo all";
    let line = format!("mkfifo /tmp/end; f() {{ f & }}; ({begin}) & read line </tmp/end");
    ExecRequest::shell(line).build().unwrap()
}

/// Starts the request, and waits until all of its processes run.
async fn begin(sandbox: &dyn Sandbox, request: ExecRequest) -> ExecHandle {
    let handle = sandbox.start(request).await.unwrap();
    let mut output = handle.output();
    while !matches!(output.next().await, Some(OutputEvent::Chunk(_))) {}
    handle
}

/// Promise (Limits): The limits of a container hold with 500 busy processes, and `close` removes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_and_close_removes_with_five_hundred_spinners() {
    for engine in support::engines("limits_hold_and_close_removes_with_five_hundred_spinners") {
        let before = engine.census().await;
        let backend = engine.backend();
        let sandbox = backend.create(spec(5)).await.unwrap();
        let done = tokio::time::timeout(HANG_TIMEOUT, sandbox.exec(spinners())).await.unwrap().unwrap();
        assert_eq!(done.exit.killed_by, Some(LimitKind::Cpu), "{}: {:?}", engine.name, done.exit);
        assert!(done.exit.usage.cpu_seconds >= 5.0, "{}: {:?}", engine.name, done.exit);
        let _ = tokio::time::timeout(HANG_TIMEOUT, sandbox.close()).await.unwrap();
        let sandbox = backend.create(spec(1000)).await.unwrap();
        let handle = tokio::time::timeout(HANG_TIMEOUT, begin(&*sandbox, spinners())).await.unwrap();
        tokio::time::timeout(HANG_TIMEOUT, sandbox.close()).await.unwrap().unwrap();
        assert!(handle.exit().await.unwrap().cancelled, "{}", engine.name);
        assert!(left(&engine, &before).await.is_empty(), "{}", engine.name);
    }
}

/// Promise (Limits): `close` removes a container whose processes start others faster than they can be listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_removes_chains_of_forks() {
    for engine in support::engines("close_removes_chains_of_forks") {
        let before = engine.census().await;
        let sandbox = engine.backend().create(spec_for(1000, 4000)).await.unwrap();
        let handle = tokio::time::timeout(HANG_TIMEOUT, begin(&*sandbox, chains())).await.unwrap();
        tokio::time::timeout(HANG_TIMEOUT, sandbox.close()).await.unwrap().unwrap();
        let exit = handle.exit().await.unwrap();
        assert!(exit.cancelled, "{}: {exit:?}", engine.name);
        assert!(left(&engine, &before).await.is_empty(), "{}", engine.name);
    }
}

/// The supervisor process that [`killed_supervisor_leaves_no_spinner`] kills. Does nothing as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supervisor() {
    let Ok(name) = std::env::var(ENGINE) else { return };
    let engines: Vec<TestEngine> = support::engines("supervisor");
    let engine = engines.into_iter().find(|engine| engine.name == name).expect("the engine exists");
    let sandbox = engine.backend().create(spec(1000)).await.unwrap();
    let _handle = begin(&*sandbox, spinners()).await;
    println!("spinning");
    std::future::pending::<()>().await;
}

/// Promise (Limits): A killed supervisor leaves no busy process of a container.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_supervisor_leaves_no_spinner() {
    for engine in support::engines("killed_supervisor_leaves_no_spinner") {
        let before = engine.census().await;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "starved::supervisor", "--nocapture"]).env(ENGINE, engine.name);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("spinning")), "{}", engine.name);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(left(&engine, &before).await.is_empty(), "{}", engine.name);
    }
}
