//! CPU time of several execs in one process sandbox. The limit of each exec counts everything that the sandbox uses from
//! the exec's start on.
//!
//! Control groups count it where the host has them, else the init's watch does. Tests for the other kind of host print a
//! message and are skipped.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, ExecHandle, ExecRequest, Exit, LimitKind, Limits, Protection, Sandbox, Spec, Stdin};

use crate::{ProcessBackend, ProcessConfig};

/// The limit of an exec in CPU seconds.
const LIMIT: u64 = 2;
/// A wall time that no test here reaches, on a host under load.
const NO_HANG: Duration = Duration::from_secs(300);
const SPIN: &str = "while :; do :; done";

/// The counter of CPU time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Counting {
    Group,
    Watch,
}

/// Runs `body` in a sandbox in which each exec has [`LIMIT`] seconds, if one of these counts there.
fn counted_by<F: Future<Output = ()>>(counting: &[Counting], body: impl FnOnce(Arc<dyn Sandbox>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let backend = ProcessBackend::new(ProcessConfig::default()).expect("a backend");
        let limits = Limits {
            cpu_time: Some(Duration::from_secs(LIMIT)),
            wall_time: NO_HANG,
            pids: Some(32),
            ..Limits::default()
        };
        let spec = Spec::builder().limits(limits).allow_weaker(Protection::CpuTime).build().expect("valid");
        let sandbox = backend.create(spec).await.expect("a sandbox");
        let row = sandbox.posture().get(Protection::CpuTime).expect("a row").mechanism.clone();
        let here = if row.contains("counts CPU time") { Counting::Group } else { Counting::Watch };
        if counting.contains(&here) {
            body(Arc::clone(&sandbox)).await;
        } else {
            println!("SKIP: {row}");
        }
        sandbox.close().await.expect("it closes");
    });
}

async fn start(sandbox: &Arc<dyn Sandbox>, line: &str) -> ExecHandle {
    let request = ExecRequest::shell(line).stdin(Stdin::Stream).build().expect("valid");
    sandbox.start(request).await.expect("it starts")
}

async fn run(sandbox: &Arc<dyn Sandbox>, line: &str) -> Exit {
    sandbox.exec(ExecRequest::shell(line).build().expect("valid")).await.expect("it runs").exit
}

fn killed_at_the_limit(exit: &Exit) {
    assert_eq!(exit.killed_by, Some(LimitKind::Cpu), "{exit:?}");
    assert!(!exit.timed_out && (1.9..LIMIT as f64 + 1.5).contains(&exit.usage.cpu_seconds), "{exit:?}");
}

/// Promise (Limits): The CPU limit of an exec counts everything that its sandbox uses while it runs.
#[test]
fn execs_that_run_at_the_same_time_share_cpu_time() {
    counted_by(&[Counting::Group], async |sandbox| {
        let waiting = start(&sandbox, "read line").await;
        killed_at_the_limit(&run(&sandbox, SPIN).await);
        killed_at_the_limit(&waiting.exit().await.expect("it ends"));
    });
}

/// Promise (Limits): The CPU time of processes that an ended exec left running counts for later execs.
#[test]
fn processes_left_running_count_for_later_execs() {
    counted_by(&[Counting::Group], async |sandbox| {
        let left = format!("(setsid sh -c '{SPIN}' </dev/null >/dev/null 2>&1 &)");
        assert!(run(&sandbox, &left).await.success());
        killed_at_the_limit(&run(&sandbox, "exec sleep 1000").await);
    });
}

/// Promise (Limits): The CPU time of a child that its parent did not wait for counts.
#[test]
fn children_that_no_parent_waits_for_count() {
    counted_by(&[Counting::Group], async |sandbox| {
        // A parent that ignores SIGCHLD is not informed of the CPU time of its children.
        let spin = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        let hiding =
            format!("trap '' CHLD; exec perl -e '$SIG{{CHLD}} = \"IGNORE\"; while (1) {{ system(q({spin})) }}'");
        killed_at_the_limit(&run(&sandbox, &hiding).await);
    });
}

/// Each process of this command ends long before its own limit.
const CHAIN: &str = "while :; do (i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done); done";

/// Promise (Limits): Without control groups, the start of an exec does not reset the CPU time of others.
#[test]
fn starting_an_exec_does_not_reset_the_cpu_time_of_others() {
    counted_by(&[Counting::Watch], async |sandbox| {
        for other in ["true", "no-program-has-this-name"] {
            let hostile = start(&sandbox, CHAIN).await;
            let calls = async {
                loop {
                    // The result does not matter: execs that run when the limit is exceeded end as well.
                    let _ = sandbox.exec(ExecRequest::argv([other]).build().expect("valid")).await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            let ended = async {
                tokio::select! { exit = hostile.exit() => exit, () = calls => unreachable!() }
            };
            let exit =
                tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it is ended").expect("it ends");
            assert_eq!(exit.killed_by, Some(LimitKind::Cpu), "{exit:?}");
        }
    });
}

/// Promise (Limits): CPU time that a sandbox used before the start of an exec does not count for it.
#[test]
fn cpu_time_before_the_start_of_an_exec_does_not_count() {
    counted_by(&[Counting::Group, Counting::Watch], async |sandbox| {
        // One of the two always runs, and together they use far more than the limit of one.
        let mut before: Option<ExecHandle> = None;
        for _ in 0..12 {
            let next = start(&sandbox, "read line; i=0; while [ $i -lt 150000 ]; do i=$((i + 1)); done").await;
            let mut input = next.stdin().expect("it was asked for");
            tokio::io::AsyncWriteExt::write_all(&mut input, b"go\n").await.expect("it is read");
            if let Some(before) = before.replace(next) {
                let exit = before.exit().await.expect("it ends");
                assert!(exit.success(), "{exit:?}");
            }
        }
    });
}
