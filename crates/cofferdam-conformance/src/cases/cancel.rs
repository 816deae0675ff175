//! Cases: ending execs from outside, including all descendants.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Exit, Sandbox};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Stop, Verdict, check, check_eq, read_small};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// Many beats of the heartbeat, even on a busy machine.
const BEATS: Duration = Duration::from_millis(800);

pub(super) async fn idempotent_and_surfaces_as_a_signal(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = Arc::new(cx.start_ready(&sandbox, P::SleepForever).await?);
    let mut cancels = JoinSet::new();
    for _ in 0..8 {
        let handle = Arc::clone(&handle);
        cancels.spawn(async move { handle.cancel().await });
    }
    let first = handle.cancel().await?;
    surfaces(&first, &[SIGTERM, SIGKILL])?;
    while let Some(exit) = cancels.join_next().await {
        check_eq!(exit.map_err(std::io::Error::other)??, first, "the exit of a concurrent cancel");
    }
    check_eq!(handle.cancel().await?, first, "the exit of a later cancel");
    Ok(())
}

fn surfaces(exit: &Exit, signals: &[i32]) -> Verdict {
    check!(exit.cancelled, "cancelled is false: {exit:?}");
    check!(
        exit.signal.is_some_and(|signal| signals.contains(&signal)),
        "the signal is not one of {signals:?}: {exit:?}"
    );
    check_eq!(exit.code, -1, "code");
    check!(!exit.timed_out, "it did not time out: {exit:?}");
    check!(!exit.success(), "a cancelled exec must not be a success");
    Ok(())
}

pub(super) async fn sends_term_first(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, P::ExitOnTerm { code: 43 }).await?;
    let exit = handle.cancel_within(Duration::from_secs(30)).await?;
    check_eq!(exit.code, 43, "the code that the program chose on SIGTERM");
    check_eq!(exit.signal, None, "signal");
    check!(exit.cancelled, "cancelled is false: {exit:?}");
    Ok(())
}

pub(super) async fn kills_after_the_grace(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, P::IgnoreTermAndSleep).await?;
    let exit = handle.cancel_within(Duration::from_millis(300)).await?;
    surfaces(&exit, &[SIGKILL])
}

pub(super) async fn kills_daemonised_grandchildren(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, P::DaemoniseAndSleep { heartbeat: "heartbeat".into() }).await?;
    heartbeat_started(&sandbox).await?;
    let exit = handle.cancel_within(Duration::from_millis(300)).await?;
    check!(exit.cancelled, "cancelled is false: {exit:?}");
    assert_heartbeat_stopped(&sandbox).await
}

pub(super) async fn after_the_end_changes_nothing(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = sandbox.start(cx.request(&P::Exit(3))?.build()?).await?;
    let first = handle.exit().await?;
    handle.request_cancel(Duration::ZERO);
    check_eq!(handle.cancel().await?, first, "the exit after a late cancel");
    check!(!first.cancelled, "it ended by itself: {first:?}");
    Ok(())
}

pub(super) async fn close_is_idempotent(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, P::IgnoreTermAndSleep).await?;
    handle.close().await?;
    let exit = handle.exit().await?;
    surfaces(&exit, &[SIGKILL])?;
    handle.close().await?;
    handle.close().await?;
    check_eq!(handle.exit().await?, exit, "the exit after closing again");
    Ok(())
}

pub(super) async fn dropping_the_handle_kills(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, P::DaemoniseAndSleep { heartbeat: "heartbeat".into() }).await?;
    heartbeat_started(&sandbox).await?;
    drop(handle);
    // A caller cannot wait for the end of a dropped handle, so the end may take a moment.
    for _ in 0..30 {
        let before = heartbeat(&sandbox).await?;
        sleep(BEATS).await;
        if heartbeat(&sandbox).await? == before {
            return Ok(());
        }
    }
    Err(Stop::fail("the program of a dropped handle still runs"))
}

async fn heartbeat(sandbox: &Arc<dyn Sandbox>) -> Outcome<usize> {
    Ok(read_small(sandbox, "heartbeat").await?.len())
}

/// Waits until the grandchild has begun to write.
pub(super) async fn heartbeat_started(sandbox: &Arc<dyn Sandbox>) -> Verdict {
    for _ in 0..600 {
        if heartbeat(sandbox).await.is_ok_and(|length| length > 0) {
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(Stop::fail("the grandchild never wrote its heartbeat"))
}

/// Fails if the grandchild still writes.
pub(super) async fn assert_heartbeat_stopped(sandbox: &Arc<dyn Sandbox>) -> Verdict {
    let before = heartbeat(sandbox).await?;
    sleep(BEATS).await;
    let after = heartbeat(sandbox).await?;
    check!(after == before, "the grandchild is still alive: its heartbeat grew from {before} to {after} bytes");
    Ok(())
}
