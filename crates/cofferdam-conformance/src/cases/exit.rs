//! Cases: exits and their reports.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Completed, ErrorKind, Exit};
use tokio::task::JoinSet;

use super::cancel::{assert_heartbeat_stopped, heartbeat_started};
use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Verdict, check, check_eq, expect_error, start_ready, stdin_bytes, write_small};

/// Long enough for a guest to start on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

pub(super) async fn success_with_full_output(cx: Context) -> Verdict {
    let done = cx.run(P::Print { stdout: "to stdout\n".into(), stderr: "to stderr\n".into() }).await?;
    check_eq!(done.stdout, "to stdout\n", "stdout");
    check_eq!(done.stderr, "to stderr\n", "stderr");
    clean(&done.exit)?;
    check!(done.exit.success(), "success() is false: {:?}", done.exit);
    let total = 300_000;
    let done = cx.run(P::PrintRepeated { line: "full output".into(), total }).await?;
    check_eq!(done.stdout.len() as u64, total, "bytes of stdout");
    clean(&done.exit)
}

/// Checks that the exit has code 0 and no other flag.
fn clean(exit: &Exit) -> Verdict {
    check_eq!(exit.code, 0, "code");
    check_eq!(exit.signal, None, "signal");
    check!(!exit.timed_out && !exit.cancelled && !exit.truncated, "a plain success has other flags: {exit:?}");
    check_eq!(exit.killed_by, None, "killed_by");
    Ok(())
}

pub(super) async fn code_verbatim(cx: Context) -> Verdict {
    for code in [1, 2, 42, 126, 127, 137, 255] {
        let exit = cx.run(P::Exit(code)).await?.exit;
        check_eq!(exit.code, i32::from(code), "code");
        check_eq!(exit.signal, None, "signal");
        check!(!exit.timed_out && !exit.cancelled && exit.killed_by.is_none(), "unexpected flags: {exit:?}");
    }
    Ok(())
}

pub(super) async fn signal(cx: Context) -> Verdict {
    for signal in [9, 15, 10] {
        let exit = cx.run(P::KillSelf(signal)).await?.exit;
        check_eq!(exit.signal, Some(i32::from(signal)), "signal");
        check_eq!(exit.code, -1, "code");
        check!(!exit.cancelled && !exit.timed_out, "the program killed itself: {exit:?}");
    }
    Ok(())
}

pub(super) async fn timeout(cx: Context) -> Verdict {
    let done = timed(&cx, P::SleepForever).await?;
    check_eq!(done.stdout, "ready\n", "output before the time-out");
    check!(done.exit.duration >= SHORT / 2, "killed after {:?}, with a time-out of {SHORT:?}", done.exit.duration);
    Ok(())
}

pub(super) async fn timeout_although_term_ignored(cx: Context) -> Verdict {
    timed(&cx, P::IgnoreTermAndSleep).await.map(drop)
}

pub(super) async fn timeout_although_output_closed(cx: Context) -> Verdict {
    timed(&cx, P::CloseOutputAndSleep).await.map(drop)
}

async fn timed(cx: &Context, program: P) -> Outcome<Completed> {
    let done = cx.run_request(cx.request(&program)?.timeout(SHORT)).await?;
    timed_out(&done.exit)?;
    Ok(done)
}

pub(super) fn timed_out(exit: &Exit) -> Verdict {
    check!(exit.timed_out, "timed_out is false: {exit:?}");
    check_eq!(exit.code, -1, "code");
    check!(!exit.cancelled, "cancelled without a request: {exit:?}");
    check!(!exit.success(), "a time-out must not be a success");
    Ok(())
}

pub(super) async fn timeout_kills_the_tree(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let request = cx.request(&P::DaemoniseAndSleep { heartbeat: "heartbeat".into() })?;
    let handle = start_ready(&sandbox, request.timeout(SHORT * 2)).await?;
    heartbeat_started(&sandbox).await?;
    timed_out(&handle.exit().await?)?;
    assert_heartbeat_stopped(&sandbox).await
}

pub(super) async fn command_not_found(cx: Context) -> Verdict {
    let request = cx.request(&P::Missing)?.build()?;
    let sandbox = cx.sandbox().await?;
    expect_error(sandbox.start(request).await, &[ErrorKind::NotFound], "starting a program that does not exist")?;
    // The failure must not affect later execs.
    cx.exec_ok(&sandbox, P::Succeed).await.map(drop)
}

pub(super) async fn command_not_executable(cx: Context) -> Verdict {
    let request = cx.request(&P::RunFile { path: "plain.txt".into() })?.build()?;
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "plain.txt", "only text\n").await?;
    expect_error(sandbox.start(request).await, &[ErrorKind::NotExecutable], "starting a plain text file")
}

pub(super) async fn awaited_by_many(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let request = cx.request(&P::CopyInput { code: 7 })?.stdin(stdin_bytes("x"));
    let handle = Arc::new(sandbox.start(request.build()?).await?);
    let mut waiters = JoinSet::new();
    for _ in 0..16 {
        let handle = Arc::clone(&handle);
        waiters.spawn(async move { handle.exit().await });
    }
    let first = handle.exit().await?;
    check_eq!(first.code, 7, "code");
    while let Some(exit) = waiters.join_next().await {
        check_eq!(exit.map_err(std::io::Error::other)??, first, "another waiter's exit");
    }
    check_eq!(handle.exit().await?, first, "a second exit after the end");
    match handle.try_exit() {
        Some(exit) => check_eq!(exit?, first, "try_exit after the end"),
        None => check!(false, "try_exit returns nothing after the end"),
    }
    Ok(())
}

pub(super) async fn usage_is_reported(cx: Context) -> Verdict {
    let exit = cx.run(P::Print { stdout: "12345".into(), stderr: "678".into() }).await?.exit;
    check_eq!(exit.usage.output_bytes, 8, "output bytes");
    check!(exit.usage.cpu_seconds.is_finite() && exit.usage.cpu_seconds >= 0.0, "CPU seconds: {:?}", exit.usage);
    check!(
        exit.duration > Duration::ZERO || cx.backend().level() <= cofferdam_contract::Level::Simulated,
        "no duration"
    );
    check_eq!(exit.limits_hit, vec![], "limits hit");
    Ok(())
}
