//! CPU time of several execs that run in one process sandbox at the same time: each has a limit of its own.
//!
//! Only control groups tell how much the sandbox used; without them each exec is charged with all that the sandbox uses
//! while it runs. What is not for the host that this runs on says so and is not tried.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Backend, ExecHandle, ExecRequest, Exit, LimitKind, Limits, OutputEvent, Protection, Sandbox, Spec, Stdin,
};

use crate::{ProcessBackend, ProcessConfig};

/// CPU seconds that an exec has here.
const LIMIT: u64 = 2;
/// Real time that nothing here comes near to, on a machine under load.
const NO_HANG: Duration = Duration::from_secs(300);
/// Computes for about half a second, says so, and then waits for a line of input.
const USE_SOME_AND_WAIT: &str =
    "i=0; while [ $i -lt 250000 ]; do i=$((i + 1)); done; echo ready; read line; echo still $line";
const SPIN: &str = "while :; do :; done";

/// Who counts.
#[derive(Debug, PartialEq)]
enum Counting {
    Group,
    Watch,
}

/// Runs `body` in a sandbox in which each exec has [`LIMIT`] seconds, where control groups count.
fn in_a_sandbox<F: Future<Output = ()>>(body: impl FnOnce(Arc<dyn Sandbox>) -> F) {
    counted_by(Counting::Group, body);
}

fn counted_by<F: Future<Output = ()>>(counting: Counting, body: impl FnOnce(Arc<dyn Sandbox>) -> F) {
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
        if here == counting {
            body(Arc::clone(&sandbox)).await;
        } else {
            println!("not tried: {row}");
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

async fn said(handle: &ExecHandle, wanted: &str) {
    let (mut output, mut seen) = (handle.output(), String::new());
    while let Some(event) = output.next().await {
        if let OutputEvent::Chunk(chunk) = event {
            seen.push_str(&String::from_utf8_lossy(&chunk.data));
        }
        if seen.contains(wanted) {
            return;
        }
    }
    panic!("the output ended with {seen:?}: {:?}", handle.exit().await);
}

/// What has used a little and waits is still there, goes on, and is not charged with what others used.
async fn lives_on(waiting: ExecHandle) {
    let mut input = waiting.stdin().expect("it was asked for");
    tokio::io::AsyncWriteExt::write_all(&mut input, b"here\n").await.expect("it is read");
    said(&waiting, "still here").await;
    let exit = waiting.exit().await.expect("it ends");
    assert!(exit.success() && exit.killed_by.is_none(), "{exit:?}");
    assert!((0.01..LIMIT as f64).contains(&exit.usage.cpu_seconds), "{exit:?}");
}

fn killed_at_the_limit(exit: &Exit) {
    assert_eq!(exit.killed_by, Some(LimitKind::Cpu), "{exit:?}");
    assert!(!exit.timed_out && (1.9..LIMIT as f64 + 1.5).contains(&exit.usage.cpu_seconds), "{exit:?}");
}

/// Promise (Limits): With control groups, an endless loop ends its own exec only.
#[test]
fn an_endless_loop_ends_itself_and_nobody_else() {
    in_a_sandbox(async |sandbox| {
        let waiting = start(&sandbox, USE_SOME_AND_WAIT).await;
        said(&waiting, "ready").await;
        for _ in 0..2 {
            killed_at_the_limit(&run(&sandbox, SPIN).await);
        }
        lives_on(waiting).await;
    });
}

/// Promise (Limits): Execs within their limits do not use the CPU time of other execs.
#[test]
fn calls_that_keep_their_limits_use_up_nobody_elses() {
    in_a_sandbox(async |sandbox| {
        let waiting = start(&sandbox, USE_SOME_AND_WAIT).await;
        said(&waiting, "ready").await;
        // Its children are waited for. Time of those that are not is everybody's, as below.
        let calls = [
            "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done",
            "(i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done)",
        ];
        for call in calls.iter().cycle().take(6) {
            let exit = run(&sandbox, call).await;
            assert!(exit.success(), "{exit:?}");
        }
        lives_on(waiting).await;
    });
}

/// Promise (Limits): The CPU time of daemonised processes is charged to the exec that started them.
#[test]
fn what_left_its_parents_is_charged_to_who_started_it() {
    in_a_sandbox(async |sandbox| {
        let waiting = start(&sandbox, USE_SOME_AND_WAIT).await;
        said(&waiting, "ready").await;
        // Its parent is gone, its session its own, its name another's.
        let hidden = format!("(setsid sh -c 'exec sh -c \"{SPIN}\"' </dev/null >/dev/null 2>&1 &); exec sleep 1000");
        killed_at_the_limit(&run(&sandbox, &hidden).await);
        lives_on(waiting).await;
    });
}

/// Promise (Limits): The CPU time of processes that an ended exec left running is charged to every exec.
#[test]
fn what_an_exec_left_running_is_charged_to_all() {
    in_a_sandbox(async |sandbox| {
        let left = format!("(setsid sh -c '{SPIN}' </dev/null >/dev/null 2>&1 &)");
        assert!(run(&sandbox, &left).await.success());
        let (one, other) = tokio::join!(run(&sandbox, "exec sleep 1000"), run(&sandbox, "exec sleep 1000"));
        killed_at_the_limit(&one);
        killed_at_the_limit(&other);
    });
}

/// Promise (Limits): The CPU time of a child that its parent did not wait for is charged.
#[test]
fn what_hides_from_its_parent_is_charged_all_the_same() {
    in_a_sandbox(async |sandbox| {
        // Who ignores that its children end is told nothing of what they used.
        let spin = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        let hiding =
            format!("trap '' CHLD; exec perl -e '$SIG{{CHLD}} = \"IGNORE\"; while (1) {{ system(q({spin})) }}'");
        let (one, other) = tokio::join!(run(&sandbox, &hiding), run(&sandbox, &hiding));
        killed_at_the_limit(&one);
        killed_at_the_limit(&other);
    });
}

/// Promise (Limits): CPU time that belongs to no single exec is charged to every exec.
#[test]
fn what_hides_from_its_parent_is_charged_to_others_too() {
    in_a_sandbox(async |sandbox| {
        let waiting = start(&sandbox, "read line; echo still $line").await;
        let spin = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        let hiding =
            format!("trap '' CHLD; exec perl -e '$SIG{{CHLD}} = \"IGNORE\"; while (1) {{ system(q({spin})) }}'");
        killed_at_the_limit(&run(&sandbox, &hiding).await);
        // It did nothing itself, and may even be killed for it. The documents say so.
        if let Some(mut input) = waiting.stdin() {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut input, b"here\n").await;
        }
        let exit = waiting.exit().await.expect("it ends");
        assert!(exit.killed_by == Some(LimitKind::Cpu) || exit.usage.cpu_seconds > LIMIT as f64 / 2.0, "{exit:?}");
    });
}

/// Each process of this ends long before its own limit.
const CHAIN: &str = "while :; do (i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done); done";

/// Promise (Limits): Without control groups, the start of an exec does not reset the CPU time of others.
#[test]
fn no_start_forgives_what_others_used() {
    counted_by(Counting::Watch, async |sandbox| {
        for other in ["true", "no-program-has-this-name"] {
            let hostile = start(&sandbox, CHAIN).await;
            let calls = async {
                loop {
                    // Whatever comes of it: what runs when the limit is passed ends as well.
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

/// Promise (Limits): Without control groups, CPU time before the start of an exec is not charged to it.
#[test]
fn what_ran_before_an_exec_began_is_not_charged_to_it() {
    counted_by(Counting::Watch, async |sandbox| {
        // One of the two always runs, and in all they use far more than one may.
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
