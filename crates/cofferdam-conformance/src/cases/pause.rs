//! Cases: pause and resume.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ErrorKind, Sandbox, Stdin};
use tokio::io::AsyncWriteExt;

use crate::GuestProgram as P;
use crate::case::{
    Context, Outcome, Stop, Verdict, check, check_eq, expect_error, path, read_small, wait_for, write_small,
};

/// Long enough for a running program to answer.
const SILENCE: Duration = Duration::from_millis(400);

async fn paused(cx: &Context) -> Outcome<Arc<dyn Sandbox>> {
    let sandbox = cx.sandbox().await?;
    sandbox.pause().await?;
    Ok(sandbox)
}

pub(super) async fn stops_and_goes_on(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = sandbox.start(cx.request(&P::CopyInput { code: 0 })?.stdin(Stdin::Stream).build()?).await?;
    let mut stdin = handle.stdin().ok_or_else(|| Stop::fail("a streaming request has no stdin"))?;
    let mut output = handle.output();
    stdin.write_all(b"before").await?;
    stdin.flush().await?;
    wait_for(&mut output, "before").await?;
    for round in 1..=3 {
        sandbox.pause().await?;
        sandbox.pause().await?;
        let word = format!("during{round}");
        stdin.write_all(word.as_bytes()).await?;
        stdin.flush().await?;
        let silence = tokio::time::timeout(SILENCE, output.next()).await;
        check!(silence.is_err(), "a paused program wrote {silence:?}");
        sandbox.resume().await?;
        sandbox.resume().await?;
        wait_for(&mut output, &word).await?;
    }
    stdin.close().await?;
    check_eq!(handle.exit().await?.code, 0, "code after three pauses");
    Ok(())
}

pub(super) async fn time_stands_still(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let allowed = Duration::from_secs(2);
    let request = cx.request(&P::CopyInput { code: 5 })?.stdin(Stdin::Stream).timeout(allowed).build()?;
    let handle = sandbox.start(request).await?;
    let stdin = handle.stdin().ok_or_else(|| Stop::fail("a streaming request has no stdin"))?;
    sandbox.pause().await?;
    tokio::time::sleep(allowed + SILENCE).await;
    check!(handle.try_exit().is_none(), "an exec ended while it was paused: {:?}", handle.try_exit());
    sandbox.resume().await?;
    stdin.close().await?;
    let exit = handle.exit().await?;
    check_eq!((exit.code, exit.timed_out), (5, false), "code and time-out after a pause longer than the limit");
    let request = cx.request(&P::SleepForever)?.timeout(Duration::from_secs(1)).build()?;
    let handle = sandbox.start(request).await?;
    sandbox.pause().await?;
    sandbox.resume().await?;
    check!(handle.exit().await?.timed_out, "the time-out has no effect after a pause");
    Ok(())
}

pub(super) async fn cancel_takes_effect_when_it_goes_on(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, P::SleepForever).await?;
    sandbox.pause().await?;
    handle.request_cancel(Duration::from_millis(100));
    tokio::time::sleep(SILENCE).await;
    check!(handle.try_exit().is_none(), "a paused exec ended: {:?}", handle.try_exit());
    sandbox.resume().await?;
    let exit = handle.exit().await?;
    check!(exit.cancelled, "cancelled while paused, but the exit is {exit:?}");
    Ok(())
}

pub(super) async fn calls_are_refused_meanwhile(cx: Context) -> Verdict {
    let conflict = [ErrorKind::Conflict];
    let sandbox = paused(&cx).await?;
    expect_error(sandbox.start(cx.request(&P::Succeed)?.build()?).await, &conflict, "starting while paused")?;
    expect_error(sandbox.write_bytes(&path("file")?, "x").await, &conflict, "writing a file while paused")?;
    expect_error(sandbox.read_file(&path("file")?).await, &conflict, "reading a file while paused")?;
    expect_error(sandbox.list_dir(&path("")?).await, &conflict, "listing while paused")?;
    expect_error(sandbox.rename(&path("file")?, &path("new")?).await, &conflict, "renaming while paused")?;
    expect_error(sandbox.remove(&path("file")?).await, &conflict, "removing while paused")?;
    sandbox.usage().await?;
    sandbox.resume().await?;
    expect_error(
        sandbox.read_file(&path("file")?).await,
        &[ErrorKind::NotFound],
        "reading a file whose write was refused",
    )?;
    write_small(&sandbox, "file", "x").await?;
    check_eq!(read_small(&sandbox, "file").await?, b"x", "a file after the pause");
    cx.exec_ok(&sandbox, P::Succeed).await?;
    Ok(())
}

pub(super) async fn closes_while_paused(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let handle = cx.start_ready(&sandbox, P::SleepForever).await?;
    sandbox.pause().await?;
    sandbox.close().await?;
    let exit = handle.exit().await?;
    check!(exit.cancelled, "its sandbox was closed, but the exit is {exit:?}");
    expect_error(sandbox.resume().await, &[ErrorKind::Closed], "resuming a closed sandbox")
}
